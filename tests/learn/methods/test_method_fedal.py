"""FedAL against a version by hand; what it sends, what it is charged."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from textbook import World, assert_same, divergence, flat, lenets, linear_layers, step

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


def scenario(**changes):
    return lenets(KIND, mixed=True, public=PUBLIC, **changes)


def by_hand(world, cohorts):
    models = {c: world.book.module(world.book.prototypes[c]) for c in range(3)}
    net = linear_layers((4, 6, 3), world.book.generator("discriminator"))
    public = world.data.public
    mean, feedback, losses = None, {}, []
    for round, cohort in enumerate(cohorts, start=1):
        sent = {}
        for c in cohort:
            model = models[c]
            if mean is not None:
                with torch.no_grad():
                    before = model(public)
                order = world.book.streams("method public order", c, round).permutation(
                    PUBLIC
                )
                for start in range(0, PUBLIC, 8):
                    at = order[start : start + 8]
                    z = model(public[at])
                    loss = divergence(mean[at], z) + 0.2 * divergence(before[at], z)
                    if c in feedback:
                        loss = loss + 0.3 * (feedback[c][at] * z).sum(1).mean()
                    step(model, loss)
            anchor = copy.deepcopy(model)
            for x, y in world.book.batches(c, round):
                loss = F.cross_entropy(model(x), y)
                if mean is not None:
                    loss = loss + 0.2 * divergence(anchor(x).detach(), model(x))
                step(model, loss)
            with torch.no_grad():
                sent[c] = model(public)
        mean = sum(sent.values()) / len(sent)
        optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
        outputs = torch.cat(list(sent.values())).softmax(1)
        whose = torch.tensor([c for c in sent for _ in range(PUBLIC)])
        rng = world.book.streams("method discriminator steps", round)
        losses.append(0.0)
        for _ in range(4):
            at = rng.choice(len(outputs), 7, replace=False)
            optimiser.zero_grad()
            loss = F.cross_entropy(net(outputs[at]), whose[at])
            loss.backward()
            optimiser.step()
            losses[-1] += loss.item() / 4
        feedback = {}
        for c, z in sent.items():
            z = z.clone().requires_grad_()
            each = F.cross_entropy(
                net(z.softmax(1)), torch.full((PUBLIC,), c), reduction="none"
            )
            feedback[c] = -torch.autograd.grad(each.sum(), z)[0]
    return models, mean, feedback, losses


def test_rounds_are_those_by_hand_with_a_client_that_was_away():
    world = World(scenario(rounds=3))
    cohorts = [[0, 1, 2], [0, 2], [0, 1, 2]]
    outcomes = [
        world.play(r, clients=cohort) for r, cohort in enumerate(cohorts, start=1)
    ]
    models, mean, feedback, losses = by_hand(world, cohorts)
    for c, model in models.items():
        assert_same(world.kept.own[c]["weights"], flat(model))
        assert_same(world.kept.server["feedback"][str(c)], feedback[c])
    assert_same(world.kept.server["mean"], mean)
    for outcome, loss in zip(outcomes, losses, strict=True):
        assert outcome.losses["small"]["discriminator_loss"] == pytest.approx(
            loss, rel=1e-5
        )
    last = [divergence(mean, u.values["logits"]).item() for u in world.uploads]
    assert outcomes[-1].shared_loss["small"] == pytest.approx(
        (last[0] + last[1]) / 2, rel=1e-3
    )
    assert outcomes[-1].shared_loss["large"] == pytest.approx(last[2], rel=1e-3)
