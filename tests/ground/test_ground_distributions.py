"""Laws as quantile functions: moments, truncation, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed.ground import Discrete, UniformLaw
from simfed.ground.distributions import Lognormal, Normal, pick_positions

GRID = (np.arange(1_000_000) + 0.5) / 1_000_000
"""Equally likely quantiles: means over it are integrals over the law."""

LAWS = [
    UniformLaw(2.0, 5.0),
    Normal(1.0, 0.25),
    Normal(1.0, 1.0),
    Normal(1.0, 1.0, low=0.5, high=1.5),
    Lognormal(0.3, 0.5),
    Lognormal(0.3, 0.5, low=0.2, high=0.4),
]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_quantiles_rise_inside_the_bounds_and_invert_the_distribution(law):
    values = law.quantile(GRID)
    assert np.all(np.diff(values) >= 0)
    assert law.low <= values[0]
    assert values[-1] <= law.high
    if hasattr(law, "cdf"):
        low, high = law.cdf(law.low), law.cdf(law.high) if law.high < math.inf else 1.0
        at = [1000, 500_000, 999_000]
        shares = [(law.cdf(values[k]) - low) / (high - low) for k in at]
        assert shares == pytest.approx(GRID[at], rel=1e-9)


def test_moments_of_the_laws():
    assert UniformLaw(2.0, 5.0).quantile(GRID).mean() == pytest.approx(3.5)
    lognormal = Lognormal(0.3, 0.5).quantile(GRID)
    assert np.median(lognormal) == pytest.approx(0.3, rel=1e-5)
    assert lognormal.std() / lognormal.mean() == pytest.approx(0.5, rel=1e-3)
    of_mean = Lognormal.of_mean(0.3, 0.5, 0.0, math.inf).quantile(GRID)
    assert of_mean.mean() == pytest.approx(0.3, rel=1e-5)


def test_the_normal_law_is_truncated_at_0_not_clipped():
    """The half of a normal around 0 that is above it has mean sd·√(2/π), and no lump at
    0.
    """
    values = Normal(0.0, 1.0).quantile(GRID)
    assert values.mean() == pytest.approx(math.sqrt(2 / math.pi), rel=1e-4)
    assert (values == 0).sum() == 0


def test_choice_follows_its_weights():
    values = Discrete((1.0, 2.0, 3.0), (1.0, 0.0, 3.0)).quantile(GRID)
    assert (values == 1).mean() == pytest.approx(0.25)
    assert (values == 2).sum() == 0
    even = Discrete((0.0, 1.0, 2.0, 3.0)).quantile(GRID)
    assert np.bincount(even.astype(int)).tolist() == [250_000] * 4


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=8).filter(any),
    st.floats(0, 1 - 2**-53),
)
def test_a_pick_is_always_something_with_weight(weights, u):
    [picked] = pick_positions(np.array([u]), len(weights), np.array(weights))
    assert weights[picked] > 0
