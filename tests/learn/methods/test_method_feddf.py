"""FedDF: averaging, then Adam on the ensemble's answers, ended by a held-out part."""

import pytest
import torch
import torch.nn.functional as F
from engine_worlds import Host, played
from textbook import (
    TWO,
    Textbook,
    answers,
    assert_close,
    beside,
    distilled,
    flat,
    scenario,
    with_weights,
)

RUINOUS = {"kind": "feddf", "patience": 2, "rate": 50.0}


def test_two_prototypes_are_averaged_and_learn_from_all_clients():
    made = scenario(
        {"kind": "feddf", "steps": 5, "batch_size": 8, "rate": 0.002, "held_out": 0},
        prototypes=TWO,
        rounds=2,
    )
    workload, last = played(made)
    book = Textbook(made)
    modules = {name: book.module(name) for name in TWO}
    for round in (1, 2):
        local = [book.trained(modules[book.prototypes[c]], c, round) for c in range(4)]
        public = book.public(round)
        rng = book.streams("method feddf split", round)
        public = public[torch.from_numpy(rng.permutation(len(public)))]
        mean = sum(answers(one, public) for one in local) / 4
        targets = torch.softmax(mean, 1)
        for name, module in modules.items():
            mine = [c for c in range(4) if book.prototypes[c] == name]
            total = sum(book.samples[c] for c in mine)
            fused = sum(book.samples[c] / total * flat(local[c]) for c in mine)
            start = with_weights(module, fused)
            log = F.log_softmax(answers(start, public), 1)
            loss = F.kl_div(log, targets, reduction="batchmean").item()
            order = book.streams("method feddf order", name, round)
            modules[name] = distilled(
                start, order, public, targets, 8, steps=5, adam=0.002
            )
    for name, module in modules.items():
        # Adam divides by roots of tiny squares: rounding of a gradient is seen whole
        assert_close(workload.array(f"server/{name}/weights"), flat(module), 1e-5)
    measured = last.outcome.losses["b"]["distillation_loss"]
    assert measured == last.outcome.shared_loss["b"] == pytest.approx(loss, rel=1e-3)


def test_what_is_kept_is_the_best_on_the_held_out_part():
    """With a rate that ruins everything, the mean itself is the best."""
    made = scenario({**RUINOUS, "steps": 6, "check_every": 2}, rounds=1)
    ruined, book, w = beside(made)
    local = torch.stack(book.locals(w, 1)[1])
    samples = torch.tensor(book.samples) / sum(book.samples)
    assert_close(ruined.array("server/a/weights"), samples @ local)


def test_distillation_ends_when_the_held_out_part_gets_worse():
    workload = Host(scenario({**RUINOUS, "steps": 1000, "check_every": 1}))
    seen = []
    distil = workload.kit.distil
    workload.kit.distil = lambda *a, watch, **k: distil(
        *a, watch=lambda step, model: seen.append(step) or watch(step, model), **k
    )
    workload.merge(1, [workload.begin(1, 0)])
    assert seen == [1, 2]
