"""Thompson sampling against its formulas."""

import math

import numpy as np
import pytest

from simfed.policy import Pull, Thompson

ARMS = ("top-k", "random-k", "periodic-k")


def with_plays(plays, **options):
    policy = Thompson(ARMS, (0.0, 1.0), **options)
    for arm, reward in plays:
        policy.update(Pull(arm, "explore", 0.5), reward)
    return policy


def test_beliefs_are_those_of_one_prior_play_in_the_middle_and_discounted_rewards():
    policy = with_plays(
        [("top-k", 1.0), ("random-k", 0.25), ("top-k", 0.5)], discount=0.8
    )
    n = (0.8**2 + 1, 0.8, 0)
    s = (0.8**2 * 1.0 + 0.5, 0.8 * 0.25, 0)
    means, sds = policy.beliefs()
    assert means == pytest.approx([(0.5 + s[i]) / (1 + n[i]) for i in range(3)])
    assert sds == pytest.approx([0.5 / math.sqrt(1 + n[i]) for i in range(3)])
    assert policy.values()[:2] == pytest.approx(means[:2])
    assert math.isnan(policy.values()[2])


PLAYS = [("top-k", 0.9), ("top-k", 0.7), ("random-k", 0.8), ("periodic-k", 0.1)]


def test_the_arm_of_the_largest_mean_is_exploited_and_every_other_explored():
    policy = with_plays(PLAYS)
    best = ARMS[int(np.argmax(policy.beliefs()[0]))]
    pulls = [policy.pull(np.random.default_rng(seed)) for seed in range(200)]
    assert {(pull.arm == best, pull.choice) for pull in pulls} == {
        (True, "exploit"),
        (False, "explore"),
    }
