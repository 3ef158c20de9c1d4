"""FedMD: own models of two kinds, which meet in their answers on the public set."""

import pytest
import torch
import torch.nn.functional as F
from engine_worlds import Host, played
from textbook import TWO, Textbook, answers, assert_close, distilled, flat, scenario

PUBLIC = {"name": "stripes", "public": 24, "public_batch": 16}


@pytest.mark.parametrize("everybody", [True, False])
def test_rounds_are_digest_revisit_and_mean_answers(everybody):
    made = scenario(
        {"kind": "fedmd", "digest_batch": 8, "digest_epochs": 2, "temperature": 2.0},
        prototypes=TWO,
        dataset=PUBLIC,
        participation={} if everybody else {"clients_per_round": 2},
    )
    workload, last = played(made)
    book = Textbook(made)
    models = book.models()
    consensus = None
    for round in (1, 2, 3):
        told = []
        for client in book.cohort(round):
            model = models[client]
            if consensus is not None:
                targets = torch.softmax(consensus.double() / 2.0, 1)
                public = book.public(round)
                order = book.streams("method digest", client, round)
                model = distilled(
                    model, order, public, targets, 8, temperature=2.0, steps=4
                )
            models[client] = book.trained(model, client, round)
            told.append(answers(models[client], book.public(round + 1)))
        consensus = sum(told) / len(told)
    own = workload.kept.own
    for client in own:
        assert_close(own[client]["weights"], flat(models[client]), 2e-6)
    targets = torch.softmax(consensus.double() / 2.0, 1)
    shares = [F.log_softmax(one.double() / 2.0, 1) for one in told]
    apart = [
        F.kl_div(share, targets, reduction="batchmean").item()
        for share, client in zip(shares, book.cohort(3), strict=True)
        if book.prototypes[client] == "a"
    ]
    expected = sum(apart) / len(apart)
    assert last.outcome.losses["a"]["disagreement"] == pytest.approx(expected, rel=1e-4)
    assert last.outcome.clients.keys() == own.keys()


def test_late_answers_are_about_the_samples_that_were_asked():
    made = scenario("fedmd", dataset=PUBLIC)
    workload = Host(made)
    slow = workload.begin(1, 0)
    workload.merge(1, [workload.begin(1, 1)])
    workload.merge(2, [workload.begin(2, 2), slow])
    consensus = workload.array("server/consensus")
    before, now = (workload.kit.public_places(round).tolist() for round in (2, 3))
    late = dict(zip(before, slow.values["logits"], strict=True))
    logits = workload.kit.logits("a", workload.kept.own[2], workload.kit.public(3))
    fresh = dict(zip(now, logits, strict=True))
    only = next(place for place in before if place not in now)
    both = next(place for place in before if place in now)
    assert_close(consensus[only], late[only])
    assert_close(consensus[both], (late[both] + fresh[both]) / 2)
