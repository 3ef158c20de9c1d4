"""Tiny worlds for tests of learning: a small data set, small models, short scenarios,
and the engine that a test drives by hand.
"""

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from simfed import register
from simfed.ground import Streams
from simfed.ground.registry import registry
from simfed.learn import Dataset, HostedWorkload, deal, plain_rounds
from simfed.learn.federation import Federation
from simfed.learn.state import decode_state
from simfed.learn.tree import decode_tree
from simfed.policy import Choice
from simfed.scenario import Scenario

OPEN = []
"""Engines of the test that runs; `conftest` closes them when it ends."""


def kind_of(method):
    return method if isinstance(method, str) else method["kind"]


def public_of(method, images):
    """So many public images where the method learns from any.

    Null says nothing of them.
    """
    return images if registry("method").get(kind_of(method)).needs_public else None


def normed(input_shape, classes):
    """A small model with batch norm."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 3, 3, stride=2),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(12, classes),
    )


register("model", "tiny-normed", normed, replace=True)


def model_of(method):
    """The smallest model that the method takes."""
    smallest = {"fedrep": "lenet5-half", "fedbn": "tiny-normed"}
    return smallest.get(kind_of(method), "logistic-regression")


def scenario(clients=4, **changes):
    """Four clients of two LeNets, or what `changes` make of it.

    `clients`: how many, evenly of all prototypes, or groups, whose prototype is the
    first where they say none.
    """
    lenets = {"small": {"model": "lenet5-half"}, "large": {"model": "lenet5"}}
    prototypes = changes.get("prototypes", lenets)
    if isinstance(clients, int):
        count = clients // len(prototypes)
        clients = [{"count": count, "prototype": name} for name in prototypes]
    group = {"prototype": next(iter(prototypes)), "device": "any"}
    plain = {
        "name": "tiny",
        "rounds": 3,
        "dataset": {
            "name": "stripes",
            "public": public_of(changes.get("method", "fedkd"), 48),
        },
        "prototypes": prototypes,
        "client_order": "round-robin",
        "clients": [{**group, **one} for one in clients],
        "training": {"batch_size": 16},
        "policy": {"kind": "ascend", "reward": {"local_loss": {"samples": 40}}},
        "evaluation": {"every": 2},
    }
    return Scenario.model_validate({**plain, **changes})


def dataset(side=12, channels=1, train=400, test=60, classes=4):
    """Noise with a class-dependent stripe: learnable, and quick to make."""
    rng = np.random.default_rng(5)

    def split(count):
        labels = np.arange(count) % classes
        images = rng.integers(0, 120, (count, channels, side, side), dtype=np.uint8)
        images[np.arange(count), :, labels * side // classes] += 130
        return images, labels

    return Dataset(*split(train), *split(test), classes=classes, mean=(0.4,), sd=(0.3,))


register("dataset", "stripes", dataset, replace=True)


def federation(scenario, device="cpu", **shape):
    """The tiny data set dealt to the scenario's clients."""
    made = dataset(**shape)
    sizes = {"clients": scenario.client_count, "public": scenario.public_dealt}
    split = deal(made.train_labels, Streams(scenario.seed), **sizes)
    return Federation(made, split.clients, split.public, torch.device(device))


def state_of(work):
    """Copies of what a workload keeps, as its checkpoints have it.

    Pending clients train first.
    """
    facts, arrays = work.state()
    device = work.data.device
    states = {
        int(client): decode_state(state, arrays, device)
        for client, state in facts["clients"].items()
    }
    return SimpleNamespace(
        server=decode_tree(facts["server"], arrays, device),
        states=states,
        own={c: state.own for c, state in states.items() if state.own is not None},
        held={
            tuple(key): decode_tree(held, arrays, device)
            for *key, held in facts["held"]
        },
        changes=facts["changes"],
    )


def weights(work):
    """The server's weights by prototype."""
    return {name: model["weights"] for name, model in state_of(work).server.items()}


def residual(work, client):
    """What compression has left out of a client's updates; zeros where nothing was."""
    zeros = torch.zeros(work.tasks.who(client).parameters)
    return state_of(work).states[client].rests.get("update", zeros)


class Host(HostedWorkload):
    """The engine, round by round."""

    def __init__(self, made, **options):
        super().__init__(made, Streams(made.seed), **options)
        OPEN.append(self)

    def begin(self, round, client, arm="dense", k=1, turn=0, held=None):
        """One participation's upload."""
        task = self.task(round, client, turn, held=held)
        return self.execute(task, Choice(arm, k))

    def play(self, round, clients=None, arm="dense", k=1):
        """The outcome of one round of these clients, or of all; see `uploads`."""
        chosen = range(self.scenario.client_count) if clients is None else clients
        self.uploads = [self.begin(round, client, arm, k) for client in chosen]
        return self.merge(round, self.uploads)

    def rounds(self):
        """The scenario's rounds without a clock, one after another."""
        return plain_rounds(self.scenario, self, Streams(self.scenario.seed))

    @property
    def kept(self):
        """What it keeps now, see `state_of`."""
        return state_of(self)

    def array(self, path):
        """One array of its checkpoint."""
        return torch.tensor(self.state()[1][path])

    def received(self, upload):
        """An update as the server gets it: its indices and values."""
        self.work_off()
        return upload.values.change("update")

    def sent(self, round=1, clients=None, arm="dense", k=1):
        """What each client would send in this round, as it stands."""
        chosen = range(self.scenario.client_count) if clients is None else clients
        uploads = [self.begin(round, client, arm, k) for client in chosen]
        self.work_off()
        return [upload.values["update"].clone() for upload in uploads]


def played(made, rounds=None, **options):
    """The engine after its rounds, or so many of them, and the last round."""
    host, last = Host(made, **options), None
    for last in host.rounds():
        if last.round == rounds:
            break
    return host, last
