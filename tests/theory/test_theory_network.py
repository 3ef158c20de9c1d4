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


def one_link(starts, sizes, capacity=1.0):
    links = [{"capacity_bytes_per_s": capacity, "latency_s": 0.0}]
    flows = [
        {"start_s": a, "size_bytes": s, "path": [0]}
        for a, s in zip(starts, sizes, strict=True)
    ]
    return net.replay({"links": links, "flows": flows})


def test_unequal_flows_end_one_after_another_as_the_triangle_says():
    """n flows started together: the k-th smallest ends when all have had its size, or
    all of theirs.
    """
    sizes = np.sort(np.random.default_rng(0).lognormal(0.0, 1.0, 200))
    finish = one_link([0.0] * 200, sizes.tolist())
    left = np.arange(200, 0, -1)
    expected = np.cumsum(np.diff(sizes, prepend=0.0) * left)
    np.testing.assert_allclose(finish, expected, rtol=1e-11)


@pytest.mark.parametrize("gap", [0.0, 0.25, 1.0, 1.75, 2.0, 3.0])
@pytest.mark.parametrize("second", [0.5, 2.0, 5.0])
def test_a_staggered_pair(gap, second):
    first = 2.0  # alone it would take 2 s
    a, b = one_link([0.0, gap], [first, second])
    if gap >= first:
        assert (a, b) == pytest.approx((first, gap + second), rel=1e-12)
    elif (
        first - gap <= second
    ):  # the first ends first: it had first - gap left, at half the rate
        end = gap + 2 * (first - gap)
        assert (a, b) == pytest.approx((end, first + second), rel=1e-12)
    else:
        end = gap + 2 * second
        assert (a, b) == pytest.approx((first + second, end), rel=1e-12)


def sojourn_means(draw_sizes, load, runs=12, flows=6000, warm_up=1000):
    """Mean sojourn times of independent runs of a link under Poisson arrivals of mean
    size 1.
    """
    means = []
    for run in range(runs):
        rng = np.random.default_rng([2026, run])
        starts = np.cumsum(rng.exponential(1 / load, flows))
        sizes = draw_sizes(rng, flows)
        finish = one_link(starts.tolist(), sizes.tolist())
        means.append(float((finish - starts)[warm_up:].mean()))
    return np.array(means)


def interval(values, confidence):
    half = stats.t.ppf((1 + confidence) / 2, len(values) - 1) * stats.sem(values)
    return values.mean() - half, values.mean() + half


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
    """M/G/1 processor sharing: E[T] = E[S]/(1 − ρ) whatever the distribution (Kleinrock
    1976, 4.4).

    The 99.9 % confidence interval of twelve runs holds the value, and is narrow enough
    to tell.
    """
    load = 0.6
    low, high = interval(sojourn_means(SIZES[sizes], load, flows=4000), 0.999)
    assert low <= 1 / (1 - load) <= high
    assert high - low < 0.8


def test_a_flow_of_size_x_takes_x_over_one_minus_load_on_average():
    """E[T | size] is proportional to the size: the sharing is fair.

    99.9 % intervals per size class.
    """
    load = 0.6
    slowdowns: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for run in range(8):
        rng = np.random.default_rng([7, run])
        starts, sizes = (
            np.cumsum(rng.exponential(1 / load, 3000)),
            rng.exponential(1.0, 3000),
        )
        took = one_link(starts.tolist(), sizes.tolist()) - starts
        for k, (low, high) in enumerate(((0.2, 0.7), (0.7, 1.5), (1.5, 9.0))):
            chosen = (sizes > low) & (sizes <= high) & (np.arange(3000) >= 1000)
            slowdowns[k].append(float((took[chosen] / sizes[chosen]).mean()))
    for values in slowdowns.values():
        low, high = interval(np.array(values), 0.999)
        assert low <= 1 / (1 - load) <= high


def test_proportional_sharing_by_weight():
    """k flows of weight w_i started together and never ending first get exactly w_i/Σw
    each.
    """
    weights = [0.5, 1.0, 2.5, 6.0]
    links = [{"capacity_bytes_per_s": 10.0, "latency_s": 0.0}]
    flows = [
        {"start_s": 0.0, "size_bytes": 5.0 * w, "path": [0], "weight": w}
        for w in weights
    ]
    np.testing.assert_allclose(
        net.replay({"links": links, "flows": flows}), 5.0, rtol=1e-12
    )


def test_the_parking_lot():
    """A long flow over m links, one short flow on each: the long one gets half of every
    link.
    """
    for m in (2, 5, 40):
        links = [{"capacity_bytes_per_s": 2.0, "latency_s": 0.0}] * m
        flows = [{"start_s": 0, "size_bytes": 10.0, "path": list(range(m))}]
        flows += [{"start_s": 0, "size_bytes": 10.0, "path": [k]} for k in range(m)]
        np.testing.assert_allclose(
            net.replay({"links": links, "flows": flows}), 10.0, rtol=1e-12
        )
