"""Every registered attack keeps the contract, and the checks find what breaks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from simfed.ground.registry import registry
from simfed.learn.attacks import Attack
from simfed.testing import check_attack

NAMES = registry("attack").names()


@pytest.mark.parametrize("name", NAMES)
def test_registered_attacks_keep_the_contract(name):
    attack = registry("attack").get(name)
    check_attack(attack, **attack.example)


@dataclass(frozen=True)
class Scribbles(Attack):
    def craft(self, update, rng):
        return update.neg_()


@dataclass(frozen=True)
class Global(Attack):
    def craft(self, update, rng):
        return update + torch.randn(update.shape)


@dataclass(frozen=True)
class Counts(Attack):
    times: ClassVar[list[int]] = []

    def craft(self, update, rng):
        self.times.append(1)
        return update * (1 + len(self.times))


@dataclass(frozen=True)
class Loses(Attack):
    def poison(self, samples, labels, rng, *, classes, brightest):
        return samples[1:], labels[1:]


@dataclass(frozen=True)
class Invents(Attack):
    def poison(self, samples, labels, rng, *, classes, brightest):
        return samples, labels + classes


@dataclass(frozen=True)
class Short(Attack):
    def agree(self, updates, participants):
        return updates[0, 1:]


@dataclass(frozen=True)
class Idle(Attack):
    pass


@pytest.mark.parametrize(
    ("broken", "clause"),
    [
        (Scribbles, "arguments that are left alone"),
        (Global, "no use of the global random generators|the same bits twice"),
        (Counts, "the same bits twice"),
        (Loses, "as many samples and labels"),
        (Invents, "labels that are classes"),
        (Short, "an update, or one for each attacker"),
        (Idle, "something other than an honest client's"),
    ],
)
def test_a_broken_attack_is_named(broken, clause):
    with pytest.raises(AssertionError, match=clause):
        check_attack(broken)
