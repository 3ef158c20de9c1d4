"""The network against queueing theory and closed forms, at a stated confidence.

One link under max-min sharing is a processor-sharing queue. Seeds are fixed, so a test
either passes for ever or fails for ever; each interval holds with the stated
probability over seeds.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from simfed import net


def one_link(starts, sizes):
    """The instants at which flows over a link of 1 byte/s end."""
    flows = [
        {"start_s": a, "size_bytes": s, "path": [0]}
        for a, s in zip(starts.tolist(), sizes.tolist(), strict=True)
    ]
    return net.replay({"links": [{"capacity_bytes_per_s": 1.0}], "flows": flows})


LOAD = 0.6


SOJOURN = 1 / (1 - LOAD)


"""M/G/1 processor sharing: E[T] = E[S]/(1 − ρ) whatever the distribution (Kleinrock
1976, 4.4)."""


def runs(draw_sizes, count, flows):
    """(size, seconds that it took) of flows of mean size 1, which come as Poisson's do,
    after the first thousand.
    """
    for run in range(count):
        rng = np.random.default_rng([2026, run])
        starts = np.cumsum(rng.exponential(1 / LOAD, flows))
        sizes = draw_sizes(rng, flows)
        yield sizes[1000:], (one_link(starts, sizes) - starts)[1000:]


def interval(values):
    """At 99.9 %, over independent runs."""
    half = stats.t.ppf(0.9995, len(values) - 1) * stats.sem(values)
    return np.mean(values) - half, np.mean(values) + half


SIZES = {
    "exponential": lambda rng, n: rng.exponential(1.0, n),
    "constant": lambda rng, n: np.ones(n),
    # squared cv 2.25
    "two-point": lambda rng, n: np.where(rng.random(n) < 0.9, 0.5, 5.5),
    "uniform": lambda rng, n: rng.uniform(0.0, 2.0, n),
}


@pytest.mark.parametrize(
    "sizes",
    [
        "two-point",
        *(pytest.param(s, marks=pytest.mark.long) for s in SIZES if s != "two-point"),
    ],
)
def test_mean_sojourn_is_insensitive_to_the_size_distribution(sizes):
    """The confidence interval of twelve runs holds the value, and is narrow enough to
    tell.
    """
    low, high = interval([took.mean() for _, took in runs(SIZES[sizes], 12, 4000)])
    assert low <= SOJOURN <= high
    assert high - low < 0.8


def test_a_flow_of_size_x_takes_x_over_one_minus_load_on_average():
    """E[T | size] is proportional to the size: the sharing is fair."""
    slowdowns = [
        [
            (took / sizes)[(sizes > low) & (sizes <= high)].mean()
            for low, high in ((0.2, 0.7), (0.7, 1.5), (1.5, 9.0))
        ]
        for sizes, took in runs(SIZES["exponential"], 8, 3000)
    ]
    for values in zip(*slowdowns, strict=True):
        low, high = interval(values)
        assert low <= SOJOURN <= high
