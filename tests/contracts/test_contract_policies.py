"""Every registered policy keeps the contract; the check notices those that do not."""

import random

import pytest

from simfed.ground.registry import registry
from simfed.policy import Ascend, Choice, Pull, Replay, Uniform
from simfed.testing import check_policy

OPTIONS = {"uniform": {"strategy": "random-k"}}


@pytest.mark.parametrize("name", registry("policy").names())
def test_registered_policy_keeps_the_contract(name):
    check_policy(registry("policy").get(name), **OPTIONS.get(name, {}))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (
            "ascend",
            {
                "initial": "ema-from-zero",
                "ema": "1/n",
                "warmup": 2,
                "count_forced": True,
            },
        ),
        ("ucb", {"discount": 0.9, "exploration": 0.0}),
        ("ucb", {"window": 1}),
        ("thompson", {"discount": 1.0, "sd": 0.01}),
    ],
)
def test_so_it_does_with_other_options(name, options):
    check_policy(registry("policy").get(name), **options)


def test_replay_keeps_the_contract():
    check_policy(
        Replay, recorded=list(map(Choice, ["top-k", "random-k", "periodic-k"])) * 21
    )


class StrangeArm(Ascend):
    def pull(self, rng):
        return Pull(Choice("zip"), "explore", 1.0)


class NoProbability(Ascend):
    def pull(self, rng):
        return Pull(Choice("top-k"), "explore", 0.0)


class PlaysForced(Ascend):
    def pull(self, rng):
        return Pull(Choice("top-k"), "forced")


class GlobalRandomness(Ascend):
    def pull(self, rng):
        random.random()
        return super().pull(rng)


class SharedMemory(Ascend):
    plays = 0

    def pull(self, rng):
        SharedMemory.plays += 1
        return Pull(self.arms[SharedMemory.plays % 3], "explore", 1.0)


class ReadingMovesIt(Ascend):
    def values(self):
        self._pulls += 1
        return super().values()


class LearnsInSecret(Ascend):
    learns = False


class HeedsForcedPulls(Ascend):
    def update(self, pull, reward):
        super().update(Pull(pull.arm, "exploit"), reward)


@pytest.mark.parametrize(
    ("cls", "complaint"),
    [
        (StrangeArm, "one of its arms"),
        (NoProbability, "probability"),
        (PlaysForced, "a choice of"),
        (GlobalRandomness, "global random"),
        (SharedMemory, "the same pulls|nothing shared"),
        (ReadingMovesIt, "change nothing"),
        (LearnsInSecret, "rewards to make no difference"),
        (HeedsForcedPulls, "forced pulls"),
    ],
)
def test_a_broken_policy_is_noticed(cls, complaint):
    with pytest.raises(AssertionError, match=complaint):
        check_policy(cls, warmup=2)


def test_uniform_may_play_an_arm_beside_the_others():
    assert Uniform(("top-k",), strategy="dense").arms == (
        Choice("top-k"),
        Choice("dense"),
    )
