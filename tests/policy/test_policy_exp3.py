"""EXP3 against its formulas."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from simfed.policy import Exp3, Pull

ARMS = ("top-k", "random-k", "periodic-k")
pays = st.lists(st.tuples(st.sampled_from(ARMS), st.floats(-1, 1)), max_size=60)


@given(
    pays=pays,
    low=st.floats(-5, 0),
    width=st.floats(0.5, 5),
    mixing=st.floats(0.05, 1),
)
def test_equals_the_weights_written_out(pays, low, width, mixing):
    policy = Exp3(ARMS, reward_range=(low, low + width), mixing=mixing)
    weights = dict.fromkeys(ARMS, 1.0)
    for arm, share in pays:
        total = sum(weights.values())
        p = {s: (1 - mixing) * weights[s] / total + mixing / 3 for s in ARMS}
        assert policy.values() == pytest.approx(tuple(p.values()), rel=1e-9)
        reward = low + width * (share + 1) / 2
        policy.update(Pull(arm, "explore", p[arm]), reward)
        weights[arm] *= math.exp(mixing * (reward - low) / width / p[arm] / 3)


def test_the_reward_is_weighted_by_the_probability_of_its_own_pull():
    policy = Exp3(ARMS, mixing=0.3)
    late = Pull("top-k", "explore", 0.5)
    policy.update(Pull("random-k", "explore", 0.1), 1.0)
    policy.update(late, 0.0)  # (0 − (−1))/2 = 0.5
    assert policy._log_weights == [0.3 * 0.5 / 0.5 / 3, 0.3 * 1 / 0.1 / 3, 0.0]


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
    # their sum may fall short of the largest draw
    assert policy.pull(SimpleNamespace(random=lambda: 1.0)).arm == ARMS[-1]


def test_weights_never_overflow():
    policy = Exp3(ARMS)
    for _ in range(50_000):
        policy.update(Pull("top-k", "explore", policy.values()[0]), 1.0)
    for _ in range(2000):
        policy.update(Pull("random-k", "explore", 1e-3), 1.0)
    assert sum(policy.values()) == pytest.approx(1)
