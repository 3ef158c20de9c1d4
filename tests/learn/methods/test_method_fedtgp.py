"""FedTGP's server against a version by hand."""

import numpy as np
import pytest
import torch
from textbook import World, assert_same, descend, lenets, linear_layers

KIND = {"kind": "fedtgp", "server_epochs": 3, "server_batch": 5, "server_rate": 0.1}


class ByHand:
    """Class vectors and a network of ordinary layers, with the loss written out."""

    def __init__(self, world, width=42):
        drawn = world.book.generator("prototypes")
        self.vectors = torch.randn(4, width, generator=drawn).requires_grad_()
        self.net = linear_layers((width, width, width), drawn)
        self.world = world

    def merge(self, uploads, round, most):
        pairs = [
            (u.values["means"][c], c)
            for u in uploads
            for c in range(4)
            if u.values["counts"][c] > 0
        ]
        centres = [
            torch.stack([p for p, owner in pairs if owner == c]).mean(0)
            for c in sorted({c for _, c in pairs})
        ]
        apart = torch.cdist(torch.stack(centres), torch.stack(centres))
        nearest = apart.fill_diagonal_(torch.inf).min(1).values
        margin = nearest.max().clamp(max=most * (42 / 512) ** 0.5)
        optimiser = torch.optim.SGD([self.vectors, *self.net.parameters()], lr=0.1)
        rng = self.world.book.streams("method prototypes", round)
        for _ in range(3):
            order = rng.permutation(len(pairs))
            for at in np.split(order, range(5, len(order), 5)):
                prototypes, losses = self.net(self.vectors), []
                for p, c in (pairs[i] for i in at):
                    near = torch.exp(-(p - prototypes).norm(dim=1))
                    own = near[c] * torch.exp(-margin)
                    losses.append(-torch.log(own / (own + near.sum() - near[c])))
                descend(optimiser, torch.stack(losses).mean())
        return self.net(self.vectors).detach()


@pytest.mark.parametrize("most", [100.0, 0.05])
def test_prototypes_are_those_by_hand(most):
    world = World(lenets({**KIND, "margin": most}, mixed=True))
    hand = ByHand(world)
    for round in (1, 2):
        outcome = world.play(round)
        expected = hand.merge(world.uploads, round, most)
        assert_same(world.kept.server["means"], expected)
        assert set(outcome.losses["large"]) == {"distance", "contrastive_loss"}
