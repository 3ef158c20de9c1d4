"""EXP3 against its formulas."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from simfed import InputError
from simfed.policy import Exp3, Pull

ARMS = ("top-k", "random-k", "periodic-k")
pays = st.lists(st.tuples(st.sampled_from(ARMS), st.floats(-1, 1)), max_size=60)


@given(pays=pays, mixing=st.floats(0.01, 1))
def test_probabilities_sum_to_1_and_never_fall_below_the_mixing_share(pays, mixing):
    policy = Exp3(ARMS, mixing=mixing)
    for arm, reward in pays:
        probability = policy.values()[ARMS.index(arm)]
        policy.update(Pull(arm, "explore", probability), reward)
        assert math.fsum(policy.values()) == pytest.approx(1, abs=1e-12)
        assert min(policy.values()) >= mixing / 3 * (1 - 1e-12)


@given(pays=pays, low=st.floats(-5, 0), width=st.floats(0.5, 5))
def test_equals_the_weights_written_out(pays, low, width):
    policy = Exp3(ARMS, reward_range=(low, low + width), mixing=0.1)
    weights = dict.fromkeys(ARMS, 1.0)
    for arm, share in pays:
        total = sum(weights.values())
        p = {s: 0.9 * weights[s] / total + 0.1 / 3 for s in ARMS}
        assert policy.values() == pytest.approx(tuple(p.values()), rel=1e-9)
        reward = low + width * (share + 1) / 2
        policy.update(Pull(arm, "explore", p[arm]), reward)
        weights[arm] *= math.exp(0.1 * (reward - low) / width / p[arm] / 3)


def test_the_reward_is_weighted_by_the_probability_of_its_own_pull():
    policy = Exp3(ARMS, mixing=0.3)
    late = Pull("top-k", "explore", 0.5)
    policy.update(Pull("random-k", "explore", 0.1), 1.0)
    policy.update(late, 0.0)  # (0 − (−1))/2 = 0.5
    assert policy._log_weights == [0.3 * 0.5 / 0.5 / 3, 0.3 * 1 / 0.1 / 3, 0.0]


def test_the_importance_weighted_estimate_is_unbiased():
    """E[r̂(s)] = r(s) for every arm, whatever the probabilities."""
    rewards = {"top-k": 0.2, "random-k": 0.9, "periodic-k": 0.5}
    policy = Exp3(ARMS, reward_range=(0, 1))
    policy._log_weights = [0.0, 1.0, -1.0]
    estimate = dict.fromkeys(ARMS, 0.0)
    for arm, p in zip(ARMS, policy.values(), strict=True):
        after = Exp3(ARMS, reward_range=(0, 1))
        after.update(Pull(arm, "explore", p), rewards[arm])
        step = after._log_weights[ARMS.index(arm)]
        estimate[arm] = p * step * 3 / 0.1
    assert estimate == pytest.approx(rewards, rel=1e-12)


def test_pulls_follow_the_probabilities():
    policy = Exp3(ARMS)
    policy._log_weights = [0.0, 0.7, -0.4]
    counts = dict.fromkeys(ARMS, 0)
    for seed in range(4000):
        pull = policy.pull(np.random.default_rng(seed))
        assert pull.probability == policy.values()[ARMS.index(pull.arm)]
        counts[pull.arm] += 1
    expected = [4000 * p for p in policy.values()]
    assert chisquare(list(counts.values()), expected).pvalue > 1e-4


def test_weights_never_overflow():
    policy = Exp3(ARMS)
    for _ in range(50_000):
        policy.update(Pull("top-k", "explore", policy.values()[0]), 1.0)
    for _ in range(2000):
        policy.update(Pull("random-k", "explore", 1e-3), 1.0)
    assert sum(policy.values()) == pytest.approx(1)


def test_forced_and_void_pulls_change_nothing():
    policy = Exp3(ARMS)
    policy.update(Pull("top-k", "forced"), 1.0)
    policy.void(Pull("top-k", "explore", 0.3))
    assert policy.values() == pytest.approx((1 / 3, 1 / 3, 1 / 3))


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(reward):
    with pytest.raises(InputError, match="a finite reward"):
        Exp3(ARMS).update(Pull("top-k", "explore", 0.3), reward)
