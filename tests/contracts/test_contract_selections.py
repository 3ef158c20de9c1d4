"""Every registered selection keeps the contract, and the checks find what breaks it."""

from __future__ import annotations

import numpy as np
import pytest

from simfed.ground.registry import registry
from simfed.testing import check_selection

NAMES = registry("selection").names()


@pytest.mark.parametrize("name", NAMES)
def test_registered_selections_keep_the_contract(name):
    check_selection(registry("selection").get(name))


class Unsorted:
    def choose(self, ids, count, facts, *, round, rng):
        return ids[:count][::-1]


class Strangers:
    def choose(self, ids, count, facts, *, round, rng):
        return np.arange(min(count, len(ids)))


class TooFew:
    def choose(self, ids, count, facts, *, round, rng):
        return ids[: max(1, count - 1)]


class Greedy:
    def choose(self, ids, count, facts, *, round, rng):
        return ids[:count] if facts.samples.sum() % 2 else ids[-count:]


class Remembers:
    calls = 0

    def choose(self, ids, count, facts, *, round, rng):
        self.calls += 1
        return ids[:count] if self.calls == 1 else ids[-count:]


class Scribbles:
    def choose(self, ids, count, facts, *, round, rng):
        facts.picked[ids[:count]] += 1
        return ids[:count]


class Floats:
    def choose(self, ids, count, facts, *, round, rng):
        return ids[:count].astype(float)


class Global:
    def choose(self, ids, count, facts, *, round, rng):
        np.random.random()  # noqa: NPY002
        return ids[:count]


@pytest.mark.parametrize(
    ("broken", "clause"),
    [
        (Unsorted, "sorted, distinct ids"),
        (Strangers, "ids of those it was offered"),
        (TooFew, "as many as wanted"),
        (Greedy, "no look at clients that were not offered"),
        (Remembers, "the same choice from the same facts|no look at clients"),
        (Scribbles, "columns that are left alone"),
        (Floats, "a flat int64 array"),
        (Global, "no use of the global random generators"),
    ],
)
def test_a_broken_selection_is_named(broken, clause):
    with pytest.raises(AssertionError, match=clause):
        check_selection(broken)
