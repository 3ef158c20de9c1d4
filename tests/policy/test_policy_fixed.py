"""Policies that do not learn."""

import numpy as np

from simfed.policy import Choice, Pull, Replay, Uniform, serves_all

ARMS = Choice("top-k"), Choice("random-k")
RNG = np.random.default_rng(0)


def test_uniform_plays_one_arm_and_draws_nothing():
    policy = Uniform(ARMS, strategy="random-k")
    before = RNG.bit_generator.state
    assert {policy.pull(RNG) for _ in range(10)} == {Pull(ARMS[1], "fixed", 1.0)}
    assert RNG.bit_generator.state == before
    assert policy.values() == (0.0, 1.0)


def test_replay_plays_what_was_recorded_and_shows_what_comes():
    policy = Replay(ARMS, recorded=ARMS[::-1])
    for arm, values in ((ARMS[1], (0.0, 1.0)), (ARMS[0], (1.0, 0.0))):
        assert policy.values() == values
        assert policy.pull(RNG).arm == arm
    assert policy.values() == (0.0, 0.0)


def test_one_object_serves_all_where_its_own_class_says_so():
    class Counts(Uniform):
        """Has a state, and says nothing of it."""

    assert serves_all(Uniform(ARMS, strategy="top-k"))
    assert not serves_all(Counts(ARMS, strategy="top-k"))
    assert not serves_all(Replay(ARMS, recorded=ARMS))
