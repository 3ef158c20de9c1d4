"""Parts of a plug-in, one of each kind that a drawn world may name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

import simfed
from simfed.compress import Selection
from simfed.ground import SERVER
from simfed.learn import Dataset, FedAvg
from simfed.policy import Policy, Pull

(Path(__file__).parent / "opened.txt").read_text()


@dataclass(frozen=True)
class WithKeys(FedAvg):
    """FedAvg whose clients agree on keys first, and tell more as they train."""

    stays_s: Annotated[float, "seconds after which the barrier opens"] = 1e9

    def participate(self, setting, client):
        yield from client.send(640.0)
        yield from client.wait("keys", deadline_s=self.stays_s)
        yield from client.receive(64.0 * setting.participants)
        yield from client.receive()
        yield from client.work()
        yield from client.send(3000.0)
        yield from client.send()


@dataclass(frozen=True)
class AtServer(FedAvg):
    """FedAvg whose server works on what each client sends before it goes on."""

    def participate(self, setting, client):
        yield from client.receive()
        yield from client.send(2000.0)
        work = setting.training(client.who)
        yield from client.work(work._replace(kind="half"), at=SERVER)
        yield from client.work()
        yield from client.send()


class Normed(torch.nn.Sequential):
    """A model with batch norm, whose running statistics travel."""

    def __init__(self, input_shape, classes):
        super().__init__(
            torch.nn.Flatten(),
            torch.nn.Linear(int(np.prod(input_shape)), 6),
            torch.nn.BatchNorm1d(6),
            torch.nn.ReLU(),
            torch.nn.Linear(6, classes),
        )


def stripes():
    """Bright or dark images of 4 × 4 pixels."""
    labels = np.arange(64) % 2
    images = np.repeat(60 + labels * 100, 16).reshape(64, 1, 4, 4)
    images = (images + np.arange(64 * 16).reshape(images.shape) % 37).astype(np.uint8)
    return Dataset(images, labels, images, labels, classes=2, mean=(0.4,), sd=(0.4,))


class EveryOther:
    """The first even positions, then the first odd ones, in turn."""

    name = "every-other"

    def select(self, update, k, *, state=None, rng=None):
        turn = state or 0
        indices = np.arange(turn % 2, len(update), 2)[:k]
        rest = np.setdiff1d(np.arange(len(update)), indices)
        indices = np.concatenate([indices, rest[: min(k, len(update)) - len(indices)]])
        return Selection(np.sort(indices).astype(np.int64), turn + 1)


class Alternating(Policy):
    """The arms in turn."""

    learns = False

    def __init__(
        self, arms, reward_range=(-1.0, 1.0), *, start: Annotated[int, "first arm"] = 0
    ):
        self.arms = tuple(arms)
        self.turn = start

    def pull(self, rng):
        self.turn += 1
        return Pull(self.arms[self.turn % len(self.arms)], "fixed")

    def update(self, pull, reward):
        pass

    def void(self, pull):
        pass

    def values(self):
        return tuple(1.0 / len(self.arms) for _ in self.arms)


class LowestIds:
    """Those of the lowest ids."""

    def choose(self, ids, count, facts, *, round, rng):
        return ids[:count]


simfed.register("method", "with-keys", WithKeys)
simfed.register("method", "at-server", AtServer)
simfed.register("model", "normed", Normed)
simfed.register("dataset", "law-stripes", stripes)
simfed.register("codec", "every-other", EveryOther)
simfed.register("policy", "alternating", Alternating)
simfed.register("selection", "lowest-ids", LowestIds)
