"""Orders of configurations, simulated and real."""

import numpy as np
import pytest
from orders import compare_orders
from scipy import stats


def measured(*means, sd=0.0, count=5):
    rng = np.random.default_rng(0)
    return {
        f"c{i}": list(mean + sd * rng.standard_normal(count))
        for i, mean in enumerate(means)
    }


def test_the_same_order_is_1_and_a_reversed_one_minus_1():
    real = measured(1, 2, 3, 4, sd=0.01)
    same = compare_orders(measured(10, 20, 30, 40), real)
    assert (same.tau, same.low, same.high, same.separated, same.swapped) == (
        1,
        1,
        1,
        6,
        (),
    )
    reversed_ = compare_orders(measured(4, 3, 2, 1), real)
    assert (reversed_.tau, len(reversed_.swapped)) == (-1, 6)
    assert reversed_.swapped[0] == ("c0", "c1")


def test_tau_is_scipys_with_ties():
    simulated, real = (1, 1, 2, 5, 4), (1, 2, 3, 4, 5)
    orders = compare_orders(measured(*simulated), measured(*real, sd=1e-3))
    assert orders.tau == pytest.approx(stats.kendalltau(simulated, real).statistic)
    assert ("c0", "c1") in orders.swapped  # a tie is not reality's order
    assert ("c3", "c4") in orders.swapped
