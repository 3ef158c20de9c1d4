"""Descent with compressed gradients goes as theory says.

The figure and words are in docs/theory.md.

With errors fed back and η = 1/√T, the mean squared gradient falls like 1/√T for every
codec that contracts. Without, a selection of the largest entries may never send what
matters: here provably.
"""

import numpy as np
import pytest
from theory_descent import (
    CODECS,
    CONFLICT,
    FLOOR,
    GRID,
    NOISE,
    STEEPEST,
    D,
    K,
    averages,
    descend,
    gradient,
    slope_of,
)

from simfed.compress import codec_from_spec
from simfed.ground.registry import registry


def test_the_codecs_are_all_that_contract():
    """Every registered name whose error may be fed back, `svd` and value codecs behind
    selections; what a cohort shares is one client's own draw to that client.
    """
    of_list = {link for label in CODECS for link in label.replace("(", "+").split("+")}
    for name in registry("codec").names():
        if registry("codec").origin(name) == "built in":
            codec = codec_from_spec(name)
            fed_back = codec.feedback in ("wanted", "optional") and not codec.shared
            assert fed_back == (name in of_list), name


def test_the_world_is_what_its_words_say():
    z = np.linspace(-5, 5, 10_001)
    value = z**2 / (1 + z**2)
    assert np.allclose(np.gradient(value, z), gradient(z), atol=1e-3)
    assert np.abs(gradient(z)).max() == pytest.approx(STEEPEST, rel=1e-6)
    assert np.gradient(np.gradient(value, z), z).min() < -0.4  # not convex
    assert CONFLICT - STEEPEST - NOISE > STEEPEST + NOISE
    assert pytest.approx(FLOOR) == float((gradient(np.ones(D - K)) ** 2).sum())


@pytest.mark.parametrize("label", ["dense", "top-k", "ef-sign"])
def test_with_feedback_the_mean_squared_gradient_falls_like_the_root(label):
    """A quarter of it after sixteen times the steps, or less while the errors are still
    felt.
    """
    first, last = (descend(label, steps, 0).average for steps in (100, 1600))
    assert 0.7 * first / 4 <= last <= 1.05 * first / 4
    assert last < FLOOR / 8


def test_without_feedback_what_is_never_sent_stays():
    """The clients' quarrel is all the largest entries show: the others never move."""
    descent = descend("top-k", 1600, 0, feedback=False)
    assert (descent.end[K:] == 1.0).all()
    assert np.abs(descent.end[:K]).max() < 0.2  # those that are sent do go down
    assert FLOOR <= descent.average <= FLOOR * 1.03
    assert np.abs(descend("top-k", 1600, 0).end).max() < 0.2


@pytest.mark.long
@pytest.mark.parametrize("label", CODECS)
def test_the_slope_is_that_of_theory(label):
    """−½.

    Steeper by what the errors add, which is a term like 1/T, and never flatter.
    """
    grid = GRID[:2]
    slope = slope_of(averages(label, grid, 2), grid)
    assert slope.low <= -0.49
    assert -0.6 <= slope.mean <= -0.48
