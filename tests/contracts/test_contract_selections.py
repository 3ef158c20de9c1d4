"""The check of selections finds what breaks the contract."""

import numpy as np
from broken_parts import naming

from simfed.testing import check_selection


class Unsorted:
    def choose(self, ids, count, facts, **when):
        return ids[:count][::-1]


class Strangers:
    def choose(self, ids, count, facts, **when):
        return np.arange(min(count, len(ids)))


class TooFew:
    def choose(self, ids, count, facts, **when):
        return ids[: max(1, count - 1)]


class Greedy:
    def choose(self, ids, count, facts, **when):
        return ids[:count] if facts.samples.sum() % 2 else ids[-count:]


class Remembers:
    calls = 0

    def choose(self, ids, count, facts, **when):
        self.calls += 1
        return ids[:count] if self.calls == 1 else ids[-count:]


class Scribbles:
    def choose(self, ids, count, facts, **when):
        facts.picked[ids[:count]] += 1
        return ids[:count]


class Floats:
    def choose(self, ids, count, facts, **when):
        return ids[:count].astype(float)


class Global:
    def choose(self, ids, count, facts, **when):
        np.random.random()  # noqa: NPY002
        return ids[:count]


test_a_broken_selection_is_named = naming(
    check_selection,
    {
        Unsorted: "sorted, distinct ids",
        Strangers: "ids of those it was offered",
        TooFew: "as many as wanted",
        Greedy: "no look at clients that were not offered",
        Remembers: "the same choice from the same facts|no look at clients",
        Scribbles: "columns that are left alone",
        Floats: "a flat int64 array",
        Global: "no use of the global random generators",
    },
)
