"""FedAL against a version by hand; what it sends, what it is charged."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from textbook import (
    World,
    answers,
    assert_same,
    descend,
    divergence,
    flat,
    lenets,
    linear_layers,
    step,
)

KIND = {
    "kind": "fedal",
    "adversarial": 0.3,
    "forgetting": 0.2,
    "hidden": 6,
    "server_steps": 4,
    "server_batch": 7,
    "server_rate": 0.01,
}
PUBLIC = 12


def by_hand(world, cohorts):
    book, public = world.book, world.data.public
    models, mean, feedback, losses = book.models(), None, {}, []
    net = linear_layers((4, 6, 3), book.generator("discriminator"))
    for round, cohort in enumerate(cohorts, start=1):
        sent = {}
        for c in cohort:
            model, before = models[c], answers(models[c], public)
            rng = book.streams("method public order", c, round)
            batches = np.split(rng.permutation(PUBLIC), [8])
            for at in batches if mean is not None else ():
                z = model(public[at])
                loss = divergence(mean[at], z) + 0.2 * divergence(before[at], z)
                if c in feedback:
                    loss = loss + 0.3 * (feedback[c][at] * z).sum(1).mean()
                step(model, loss)
            anchor = copy.deepcopy(model)
            for x, y in book.batches(c, round):
                loss = F.cross_entropy(model(x), y)
                if mean is not None:
                    loss = loss + 0.2 * divergence(answers(anchor, x), model(x))
                step(model, loss)
            sent[c] = answers(model, public)
        mean = sum(sent.values()) / len(sent)
        optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
        outputs = torch.cat([*sent.values()]).softmax(1)
        whose = torch.tensor([*sent]).repeat_interleave(PUBLIC)
        rng = book.streams("method discriminator steps", round)
        drawn = [rng.choice(len(outputs), 7, replace=False) for _ in range(4)]
        steps = [
            descend(optimiser, F.cross_entropy(net(outputs[at]), whose[at]))
            for at in drawn
        ]
        losses.append(sum(steps) / 4)
        feedback = {}
        for c, z in sent.items():
            z.requires_grad_()
            here = torch.full((PUBLIC,), c)
            loss = F.cross_entropy(net(z.softmax(1)), here, reduction="sum")
            feedback[c] = -torch.autograd.grad(loss, z)[0]
    return models, mean, feedback, losses


def test_rounds_are_those_by_hand_with_a_client_that_was_away():
    world = World(lenets(KIND, mixed=True, public=PUBLIC, rounds=3))
    cohorts = [[0, 1, 2], [0, 2], [0, 1, 2]]
    outcomes = [world.play(r, clients=c) for r, c in enumerate(cohorts, start=1)]
    models, mean, feedback, losses = by_hand(world, cohorts)
    for c, model in enumerate(models):
        assert_same(world.kept.own[c]["weights"], flat(model))
        assert_same(world.kept.server["feedback"][str(c)], feedback[c])
    assert_same(world.kept.server["mean"], mean)
    told = [outcome.losses["small"]["discriminator_loss"] for outcome in outcomes]
    assert told == pytest.approx(losses, rel=1e-5)
    last = [divergence(mean, u.values["logits"]).item() for u in world.uploads]
    expected = {"small": (last[0] + last[1]) / 2, "large": last[2]}
    assert dict(outcomes[-1].shared_loss) == pytest.approx(expected, rel=1e-3)
