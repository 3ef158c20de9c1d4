"""Gain and reward, term by term."""

import math

import pytest

from simfed.policy import gain, reward


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ((2.0, 1.5, 3.0, 2.0), 0.6 * 0.5 + 0.4 * 1.0),
        ((2.0, 2.5, 9.0, 9.0), 0.6 * -0.5),
        # no distillation, no term of it; no earlier local loss, no local term
        ((None, 1.0, 3.0, 2.0), 0.4),
        ((2.0, None, 3.0, 2.0), 0.4),
        ((2.0, 1.5, None, 2.0), 0.3),
        ((2.0, 1.5, 3.0, None), 0.3),
    ],
)
def test_gain_weighs_both_falls_of_loss(losses, expected):
    assert gain(0.6, 0.4, *losses) == pytest.approx(expected)


def test_reward_is_gain_per_simulated_second_clipped():
    assert reward(0.5, 2.0) == (0.25, 0.25)
    assert reward(5.0, 2.0) == (2.5, 1.0)
    assert reward(-5.0, 2.0, (-0.1, 0.1)) == (-2.5, -0.1)


def test_no_time_at_all_pays_the_bounds():
    assert reward(0.1, 0.0) == (math.inf, 1.0)
    assert reward(-0.1, 0.0) == (-math.inf, -1.0)
    assert reward(0.0, 0.0) == (0.0, 0.0)


def test_a_diverged_loss_is_not_clipped_away():
    assert all(map(math.isnan, reward(math.nan, 1.0)))
