"""Worlds of a few clients for tests of methods, and local training as PyTorch users
write it.
"""

from __future__ import annotations

import copy

import engine_worlds as tiny
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from simfed.fleet.selection import cohort
from simfed.ground.method import Arrival, Size, Who
from simfed.ground.seeding import Streams
from simfed.learn.federation import Federation, draw_local, draw_public
from simfed.learn.hosted import HostedWorkload
from simfed.learn.models import build_model
from simfed.learn.plain import plain_rounds

ONE = {"a": {"model": "logistic-regression"}}
TWO = {"a": {"model": "logistic-regression"}, "b": {"model": "lenet5-half"}}


def scenario(method, *, prototypes=ONE, arm="dense", **changes):
    """Four clients of one linear model, or two of it and two of a LeNet.

    Three rounds.
    """
    each = 4 // len(prototypes)
    plain = {
        "method": method,
        "dataset": {"name": "mnist-mini", "public": tiny.public_of(method, 24)},
        "prototypes": prototypes,
        "clients": [
            {"count": each, "prototype": p, "device": "any"} for p in prototypes
        ],
        "training": {"batch_size": 16, "learning_rate": 0.05, "local_steps": 3},
        "policy": {"kind": "uniform", "strategy": arm},
        "compression": {"strategies": [arm], "k": 30},
        "evaluation": {"every": 3},
    }
    return tiny.scenario(**{**plain, **changes})


def data_of(made) -> Federation:
    """The tiny data set: clients own different numbers of samples."""
    public = made.public_dealt
    dataset = tiny.dataset()
    cuts = [0, 40, 90, 150, 300]
    owned = [
        torch.arange(public + cuts[i], public + cuts[i + 1]).numpy()
        for i in range(len(cuts) - 1)
    ]
    return Federation(dataset, owned, torch.arange(public).numpy())


def played(made, rounds=None):
    """The workload after its rounds, without a clock, and the last outcome."""
    workload = HostedWorkload(made, Streams(0), data=data_of(made))
    last = None
    for last in plain_rounds(made, workload, Streams(0)):
        if last.round == rounds:
            break
    return workload, last


def assert_close(actual, expected, tolerance=1e-6):
    """Equal up to float32 rounding, in the length of the whole vector."""
    apart = torch.linalg.vector_norm(actual.double() - expected.double())
    assert apart <= tolerance * max(
        torch.linalg.vector_norm(expected.double()).item(), 1e-3
    )


def who(client=0, prototype="a", samples=10, size=None):
    return Who(
        client, prototype, size or Size("logistic-regression", 3, 0, 2, 4), samples
    )


def arrival(values, client=0, staleness=0, weight=1.0, samples=10):
    return Arrival(who(client, samples=samples), staleness, values, weight)


class Textbook:
    """What a script without simfed does: modules, torch.optim, and the same draws of
    data.
    """

    def __init__(self, made):
        self.made, self.data, self.streams = made, data_of(made), Streams(0)
        self.groups = [
            made.clients[group].prototype for group in made.group_of_client()
        ]
        self.samples = [len(owned) for owned in self.data.owned]

    def module(self, prototype):
        name = self.made.prototypes[prototype].model
        seed = self.streams.integer("init", prototype)
        return build_model(name, self.data.input_shape, self.data.classes, seed=seed)

    def cohort(self, round):
        size = self.made.participation.clients_per_round
        return cohort(self.streams, round, self.made.client_count, size).tolist()

    def public(self, round):
        size = len(self.data.public)
        places = draw_public(self.streams, round, size, self.made.public_samples)
        return (
            self.data.public
            if places is None
            else self.data.public[torch.from_numpy(places)]
        )

    def trained(self, module, client, round, added=None):
        """A copy after local training.

        `added`: weights → what each step's gradient gets beside it.
        """
        local = copy.deepcopy(module).train()
        training = self.made.training
        optimiser = torch.optim.SGD(local.parameters(), lr=training.learning_rate)
        batches = draw_local(
            self.streams("batch", client, round), self.data.owned[client], training
        )
        for batch in batches:
            positions = torch.from_numpy(batch)
            optimiser.zero_grad()
            F.cross_entropy(
                local(self.data.samples(positions)), self.data.labels[positions]
            ).backward()
            if added is not None:
                more = copy.deepcopy(local)
                vector_to_parameters(added(flat(local)), more.parameters())
                for parameter, extra in zip(
                    local.parameters(), more.parameters(), strict=True
                ):
                    parameter.grad += extra.detach()
            optimiser.step()
        return local


def flat(module):
    return parameters_to_vector(module.parameters()).detach().clone()


def with_weights(module, weights):
    twin = copy.deepcopy(module)
    vector_to_parameters(weights.clone(), twin.parameters())
    return twin


def distilled(
    book, module, client, round, public, targets, batch, temperature=1.0, epochs=1
):
    """A copy that has learned soft targets in evaluation mode, in keyed orders, with
    plain steps.
    """
    local = copy.deepcopy(module).eval()
    optimiser = torch.optim.SGD(local.parameters(), lr=book.made.training.learning_rate)
    order = book.streams("method digest", client, round)
    for _ in range(epochs):
        for at in torch.from_numpy(order.permutation(len(public))).split(batch):
            optimiser.zero_grad()
            log = F.log_softmax(local(public[at]).double() / temperature, dim=1)
            F.kl_div(log, targets[at], reduction="batchmean").backward()
            optimiser.step()
    return local


def answers(module, samples):
    with torch.no_grad():
        return module.eval()(samples)
