"""Policies that do not learn."""

import numpy as np
import pytest

from simfed import InputError
from simfed.policy import Choice, Pull, Replay, Uniform, serves_all

ARMS = Choice("top-k"), Choice("random-k")
RNG = np.random.default_rng(0)


def test_uniform_plays_one_arm_and_draws_nothing():
    policy = Uniform(("top-k", "random-k"), strategy="random-k")
    before = RNG.bit_generator.state
    assert {policy.pull(RNG) for _ in range(10)} == {
        Pull(Choice("random-k"), "fixed", 1.0)
    }
    assert RNG.bit_generator.state == before
    assert policy.values() == (0.0, 1.0)


def test_replay_plays_what_was_recorded_and_shows_what_comes():
    policy = Replay(ARMS, recorded=list(map(Choice, ("random-k", "top-k"))))
    assert policy.values() == (0.0, 1.0)
    assert policy.pull(RNG).arm == Choice("random-k")
    assert policy.values() == (1.0, 0.0)
    assert policy.pull(RNG).arm == Choice("top-k")
    assert policy.values() == (0.0, 0.0)


def test_a_replay_that_is_used_up_says_how_far_the_record_goes():
    policy = Replay(tuple(map(Choice, "ab")), recorded=[Choice("a")])
    policy.pull(RNG)
    with pytest.raises(InputError, match="only 1 participations of this client"):
        policy.pull(RNG)


def test_a_recorded_arm_must_be_known():
    with pytest.raises(
        InputError,
        match=r"got 'topk', expected an arm: top-k or "
        r"random-k.*did you mean",
    ):
        Replay(ARMS, recorded=[Choice("topk")])


def test_one_object_serves_all_where_its_own_class_says_so():
    class Counts(Uniform):
        """Has a state, and says nothing of it."""

    arms = (Choice("top-k"),)
    assert serves_all(Uniform(arms, strategy="top-k"))
    assert not serves_all(Counts(arms, strategy="top-k"))
    assert not serves_all(Replay(arms, recorded=arms))
