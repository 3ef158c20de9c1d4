"""The check of policies finds what breaks the contract."""

import random

from broken_parts import naming

from simfed.policy import Ascend, Choice, Pull, Replay
from simfed.testing import check_policy


def test_replay_keeps_the_contract():
    check_policy(
        Replay, recorded=list(map(Choice, ["top-k", "random-k", "periodic-k"])) * 21
    )


class StrangeArm(Ascend):
    def pull(self, rng):
        return Pull(Choice("zip"), "explore")


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
        return Pull(self.arms[SharedMemory.plays % 3], "explore")


class ReadingMovesIt(Ascend):
    def values(self):
        self._pulls += 1
        return super().values()


class LearnsInSecret(Ascend):
    learns = False


class HeedsForcedPulls(Ascend):
    def update(self, pull, reward):
        super().update(Pull(pull.arm, "exploit"), reward)


test_a_broken_policy_is_named = naming(
    check_policy,
    {
        StrangeArm: "one of its arms",
        NoProbability: "probability",
        PlaysForced: "a choice of",
        GlobalRandomness: "global random",
        SharedMemory: "the same pulls|nothing shared",
        ReadingMovesIt: "change nothing",
        LearnsInSecret: "rewards to make no difference",
        HeedsForcedPulls: "forced pulls",
    },
    warmup=2,
)
