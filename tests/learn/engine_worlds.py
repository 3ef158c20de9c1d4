"""Tiny worlds for tests of the learning engine: a small data set, small models, short
scenarios.
"""

from __future__ import annotations

import multiprocessing
import os
from types import SimpleNamespace

import numpy as np
import torch

from simfed.compress.choice import Choice
from simfed.ground.registry import registry
from simfed.ground.seeding import Streams
from simfed.learn.data import Dataset, deal
from simfed.learn.federation import Federation
from simfed.learn.hosted import HostedWorkload
from simfed.learn.safeguard import Safeguard
from simfed.learn.state import decode_state
from simfed.learn.tree import decode_tree
from simfed.scenario import Scenario


def public_of(method, images):
    """So many public images where the method learns from any.

    Null says nothing of them.
    """
    kind = method if isinstance(method, str) else method["kind"]
    return images if registry("method").get(kind).needs_public else None


def scenario(**changes):
    """Ten clients of two LeNets on mnist-mini, or what `changes` make of it."""
    plain = {
        "name": "tiny",
        "rounds": 3,
        "dataset": {
            "name": "mnist-mini",
            "public": public_of(changes.get("method", "fedkd"), 48),
        },
        "prototypes": {"small": {"model": "lenet5-half"}, "large": {"model": "lenet5"}},
        "client_order": "round-robin",
        "clients": [
            {"count": 2, "prototype": "small", "device": "any"},
            {"count": 2, "prototype": "large", "device": "any"},
        ],
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


def federation(scenario, device="cpu", **shape):
    """The tiny data set dealt to the scenario's clients."""
    made = dataset(**shape)
    public = scenario.public_dealt
    split = deal(
        made.train_labels,
        Streams(scenario.seed),
        clients=scenario.client_count,
        public=public,
    )
    return Federation(made, split.clients, split.public, torch.device(device))


def where_no_gpu_is_seen(function, *arguments):
    """Its result.

    Beside a GPU from a process of its own, as this one may have computed gradients
    already, and could not fork workers for more.
    """
    if not torch.cuda.is_available():
        return function(*arguments)
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(function, arguments)
    finally:
        if before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def state_of(work):
    """Copies of what a workload keeps, as its checkpoints have it.

    Pending clients train first.
    """
    facts, arrays = work.state()
    trees = {"server": decode_tree(facts["server"], arrays, work.data.device)}
    states = {
        int(client): decode_state(state, arrays, work.data.device)
        for client, state in facts["clients"].items()
    }
    trees["own"] = {
        c: state.own for c, state in states.items() if state.own is not None
    }
    trees["residuals"] = {
        f"{c}:{name}": rest
        for c, state in states.items()
        for name, rest in state.rests.items()
    }
    trees["memories"] = {
        (c, name, arm): memory
        for c, state in states.items()
        for name, arms in state.memories.items()
        for arm, memory in arms.items()
    }
    trees["held"] = {
        tuple(key): decode_tree(held, arrays, work.data.device)
        for *key, held in facts["held"]
    }
    return SimpleNamespace(
        **trees, changes=facts["changes"], accepted=facts["accepted"]
    )


def weights(work):
    """The server's weights by prototype."""
    return {name: model["weights"] for name, model in state_of(work).server.items()}


def residual(work, client):
    """What compression has left out of a client's updates; zeros where nothing was."""
    zeros = torch.zeros(work.tasks.who(client).parameters)
    return state_of(work).residuals.get(f"{client}:update", zeros)


def sent(work, upload):
    """The update as the server gets it: its indices and values."""
    if upload.values is None:
        work.state()
    return upload.values.change("update")


def dense(work, upload):
    """The same as a vector."""
    sent(work, upload)
    return upload.values["update"]


def trained_together(work, clients, round=1):
    """Which of these clients, started in this order, are dealt out as one training."""
    uploads = [
        work.execute(work.task(round, client), Choice("top-k", 10))
        for client in clients
    ]
    groups = work.clients.groups(uploads)
    for upload in uploads:
        del work._open[upload.task.order]
    work._pending.clear()
    return [tuple(upload.task.client for upload in group) for group in groups]


class Surging(Safeguard):
    """A safeguard that sees the distillation losses of some rounds times a factor."""

    def __init__(self, scenario, surge):
        super().__init__(scenario, "kd_loss")
        self.surge, self.merges = surge, 0

    def rejects(self, before, after):
        self.merges += 1
        factor = self.surge.get(self.merges, 1.0)
        return super().rejects(before, {p: factor * loss for p, loss in after.items()})


def surging(scenario, streams, surge, **options):
    """A workload with such a safeguard."""
    work = HostedWorkload(scenario, streams, **options)
    work.safeguard = Surging(scenario, surge)
    return work
