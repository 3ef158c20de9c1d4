"""Every registered merging rule keeps the contract; the checks find what breaks it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from simfed.ground.registry import registry
from simfed.learn.rules import Median, Rule
from simfed.testing import check_rule

NAMES = registry("rule").names()


@pytest.mark.parametrize("name", NAMES)
def test_registered_rules_keep_the_contract(name):
    rule = registry("rule").get(name)
    check_rule(rule, **rule.example)


@dataclass(frozen=True)
class Scribbles(Median):
    def merge(self, fields):
        fields["update"].zero_()
        return super().merge(fields)


@dataclass(frozen=True)
class Forgets(Median):
    def merge(self, fields):
        return {"update": super().merge(fields)["update"]}


@dataclass(frozen=True)
class Sums(Rule):
    def merge(self, fields):
        return {name: table.sum(0) for name, table in fields.items()}


@dataclass(frozen=True)
class Divides(Rule):
    def merge(self, fields):
        return {name: table.mean(0) / 0 for name, table in fields.items()}


@dataclass(frozen=True)
class NeedsAMiddle(Rule):
    def merge(self, fields):
        odd = len(fields["update"]) % 2
        return {name: table.mean(0) / odd for name, table in fields.items()}


@dataclass(frozen=True)
class Doubles(Rule):
    def merge(self, fields):
        return {name: table.mean(0).double() for name, table in fields.items()}


@pytest.mark.parametrize(
    ("broken", "clause"),
    [
        (Scribbles, "arguments that are left alone"),
        (Forgets, "an answer to every field"),
        (Sums, "what all agree on"),
        (Divides, "finite numbers of update"),
        (NeedsAMiddle, "finite numbers of update"),
        (Doubles, "float32 vectors of update"),
    ],
)
def test_a_broken_rule_is_named(broken, clause):
    with pytest.raises(AssertionError, match=clause):
        check_rule(broken)
