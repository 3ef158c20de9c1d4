"""Whether simulations put configurations in the order that reality puts them in.

What a user decides is an order: which configuration is sooner. Each has one or more
measurements on either side, repetitions of a run or the rounds of a single one.
Kendall's τ-b says how alike the two orders of means are (1: the same, −1: reversed).
Its interval redraws every configuration's measurements on both sides: it is what their
scatter leaves open, not what other configurations would give. Reality *separates* two
configurations where Welch's t test does, by Holm's rule over all pairs at 5 %.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError, listed
from simfed.ground.seeding import Streams

_LEAST = 3
_REDRAWN = 2000


def holm(p_values: Sequence[float], level: float = 0.05) -> list[bool]:
    """Which comparisons of a family stay decided if all of them are to be right
    together with probability 1 − `level` (Holm 1979).

    >>> holm([0.04, 0.001, 0.02])  # 0.001 < 0.05/3, 0.02 < 0.05/2, 0.04 < 0.05
    [True, True, True]
    >>> holm([0.04, 0.03])  # 0.03 is not below 0.05/2, so nothing is
    [False, False]
    """
    decided, still = [False] * len(p_values), True
    for rank, (p, i) in enumerate(sorted((p, i) for i, p in enumerate(p_values))):
        still = still and p <= level / (len(p_values) - rank)
        decided[i] = still
    return decided


@dataclass(frozen=True)
class Orders:
    """Two orders of the same configurations."""

    table: pd.DataFrame
    """`configuration, simulated_s, real_s, simulated_rank, real_rank`, by the real
    order."""
    tau: float
    low: float
    high: float
    """95 % interval of τ."""
    separated: int
    """Pairs that reality separates."""
    swapped: tuple[tuple[str, str], ...]
    """Of these, the pairs that the simulation does not put in reality's order, the one
    that is really sooner first."""

    def sentences(self, second: str = "reality") -> list[str]:
        """Agreement of the two orders: Kendall's τ, and pairs that the second
        separates.
        """
        n = len(self.table)
        order = f"Kendall's τ {self.tau:.2f} (95 %: {self.low:.2f} to {self.high:.2f})"
        right = self.separated - len(self.swapped)
        verdict = [
            f"{n} configurations: {order}",
            f"{second} separates {self.separated} of {n * (n - 1) // 2} pairs; "
            f"{right} of them are in order",
        ]
        return verdict + [
            f"not in order: {a} is sooner than {b}" for a, b in self.swapped
        ]


def compare_orders(
    simulated: Mapping[str, Sequence[float]], real: Mapping[str, Sequence[float]]
) -> Orders:
    """Hold the order of simulated seconds against that of real ones.

    simulated, real: configuration → its measurements in seconds. Those of both sides
    count. Raises: `InputError` where fewer than three are on both sides.

    >>> real = {"a": [1.0, 1.1, 0.9], "b": [2.0, 2.1, 1.9], "c": [3.0, 3.1, 2.9]}
    >>> orders = compare_orders({"a": [1.0], "b": [4.0], "c": [3.0]}, real)
    >>> round(orders.tau, 2), orders.separated, orders.swapped
    (0.33, 3, (('b', 'c'),))
    """
    names = [name for name in real if name in simulated]
    if len(names) < _LEAST:
        allowed = f"{_LEAST} configurations or more with the same names on both sides"
        raise InputError(allowed, got=listed(names) if names else "none")
    sides = [
        [np.asarray(side[name], dtype=float) for name in names]
        for side in (simulated, real)
    ]
    means = [np.array([values.mean() for values in side]) for side in sides]
    rng = Streams(0)("orders")
    redrawn = [
        np.stack(
            [
                rng.choice(values, (_REDRAWN, len(values))).mean(axis=1)
                for values in side
            ],
            1,
        )
        for side in sides
    ]
    low, high = np.quantile(_compute_taus(*redrawn), [0.025, 0.975])
    separated = _find_separated_pairs(sides[1])
    ordered = [(a, b) if means[1][a] < means[1][b] else (b, a) for a, b in separated]
    swapped = tuple(
        (names[a], names[b]) for a, b in ordered if not means[0][a] < means[0][b]
    )
    ranks = {
        "simulated_rank": stats.rankdata(means[0]),
        "real_rank": stats.rankdata(means[1]),
    }
    seconds = {"simulated_s": means[0], "real_s": means[1]}
    table = pd.DataFrame({"configuration": names, **seconds, **ranks})
    table = table.sort_values("real_s", ignore_index=True)
    tau = float(_compute_taus(*(side[None, :] for side in means))[0])
    return Orders(table, tau, float(low), float(high), len(separated), swapped)


def _compute_taus(simulated: Floats, real: Floats) -> Floats:
    """Kendall's τ-b of each pair of rows; 0 where a row is all ties."""
    first, second = np.triu_indices(simulated.shape[1], 1)
    signs = [np.sign(side[:, first] - side[:, second]) for side in (simulated, real)]
    untied = np.prod([(sign**2).sum(axis=1) for sign in signs], axis=0)
    return np.asarray(
        (signs[0] * signs[1]).sum(axis=1) / np.sqrt(np.maximum(untied, 1.0))
    )


def _find_separated_pairs(real: Sequence[Floats]) -> list[tuple[int, int]]:
    pairs = list(itertools.combinations(range(len(real)), 2))
    p_values = [_welch(real[a], real[b]) for a, b in pairs]
    return list(itertools.compress(pairs, holm(p_values)))


def _welch(a: Floats, b: Floats) -> float:
    """The p value of Welch's t test; 1 where a side was measured once only."""
    if min(len(a), len(b)) < 2:
        return 1.0
    if a.std() == b.std() == 0:
        return float(a.mean() == b.mean())
    return float(stats.ttest_ind(a, b, equal_var=False).pvalue)
