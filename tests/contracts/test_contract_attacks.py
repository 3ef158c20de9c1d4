"""The check of attacks finds what breaks the contract."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from broken_parts import naming

from simfed.learn.attacks import Attack
from simfed.testing import check_attack


@dataclass(frozen=True)
class Idle(Attack):
    pass


class Scribbles(Idle):
    def craft(self, update, rng):
        return update.neg_()


class Global(Idle):
    def craft(self, update, rng):
        return update + torch.randn(update.shape)


class Counts(Idle):
    times: ClassVar[list[int]] = []

    def craft(self, update, rng):
        self.times.append(1)
        return update * (1 + len(self.times))


class Loses(Idle):
    def poison(self, samples, labels, rng, **facts):
        return samples[1:], labels[1:]


class Invents(Idle):
    def poison(self, samples, labels, rng, *, classes, brightest):
        return samples, labels + classes


class Short(Idle):
    def agree(self, updates, participants):
        return updates[0, 1:]


test_a_broken_attack_is_named = naming(
    check_attack,
    {
        Scribbles: "arguments that are left alone",
        Global: "no use of the global random generators|the same bits twice",
        Counts: "the same bits twice",
        Loses: "as many samples and labels",
        Invents: "labels that are classes",
        Short: "an update, or one for each attacker",
        Idle: "something other than an honest client's",
    },
)
