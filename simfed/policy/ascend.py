"""ASCEND: a balanced warm-up, then decaying exploration over a moving average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, get_args

import numpy as np
from typing_extensions import override

from simfed.compress.choice import Choice
from simfed.ground.errors import listed
from simfed.policy.base import Policy, Pull, check_arms, check_option, check_reward

Initial = Literal["warm-up-mean", "ema-from-zero"]


class Ascend(Policy):
    """The bandit of the ASCEND method: a balanced warm-up, then ever rarer exploration.

    *Warm-up*: each arm exactly `warmup` = h times, in uniformly random order; Q(s) is
    the mean reward of these plays. *Afterwards*, at this client's t-th pull (warm-up
    included), with probability ε_t = min(1, `c`/√t) a uniformly random arm (`explore`),
    else the arm of the largest Q, ties to the lowest index (`exploit`); then Q(s) ← (1
    − `ema`)·Q(s) + `ema`·reward.

    A void warm-up pull gives its slot back, so that every arm still gets its h rewarded
    plays. A warm-up reward that arrives late joins the mean, or the moving average once
    that has begun. Arms without any reward yet count as worse than every other. The
    reward range is not used.

    Where the source leaves a choice: `initial="ema-from-zero"` starts Q at 0 and takes
    the moving average through the warm-up, too; `ema="1/n"` steps by 1/n at an arm's
    n-th reward, which makes Q the mean of all its rewards; with `count_forced` rounds
    that the server forced count in t.

    Source: Liu et al., "Adaptive Heterogeneous Compression for Resource-Efficient
    Federated Knowledge Distillation"; its text, where its pseudo-code differs on the
    warm-up.

    >>> policy = Ascend(("top-k", "random-k"), warmup=1, c=0)
    >>> for t in range(3):
    ...     pull = policy.pull(np.random.default_rng(t))
    ...     policy.update(pull, 1.0 if pull.arm == "random-k" else 0.25)
    >>> pull
    Pull(arm='random-k', choice='exploit', probability=1.0)
    >>> policy.values()
    (0.25, 1.0)
    """

    learns = True

    def __init__(
        self,
        arms: Sequence[Choice],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        warmup: Annotated[int, "warm-up plays per strategy"] = 5,
        c: Annotated[float, "exploration: ε = min(1, c/√t)"] = 3.0,
        ema: Annotated[
            float | Literal["1/n"], "step of the moving average, or 1/n"
        ] = 0.1,
        initial: Annotated[
            Initial, "utilities at first: text or pseudo-code"
        ] = "warm-up-mean",
        count_forced: Annotated[bool, "whether forced rounds count in t"] = False,
    ) -> None:
        self.arms = check_arms(arms)
        check_option(
            "warmup", warmup, 1 <= warmup <= 10**9, "a whole number of at least 1"
        )
        check_option("c", c, 0 <= c < math.inf, "a number of at least 0")
        fits = ema == "1/n" if isinstance(ema, str) else 0 <= ema <= 1
        check_option("ema", ema, fits, "a number from 0 to 1, or 1/n")
        check_option(
            "initial", initial, initial in get_args(Initial), listed(get_args(Initial))
        )
        self.c = c
        self.ema = ema
        self.initial = initial
        self.count_forced = count_forced
        self._pulls = 0
        self._slots_left = [warmup] * len(self.arms)
        self._warmup_rewards: list[list[float]] = [[] for _ in self.arms]
        start = 0.0 if initial == "ema-from-zero" else None
        self._average: list[float | None] = [start] * len(self.arms)
        self._rewarded = [0] * len(self.arms)

    @override
    def pull(self, rng: np.random.Generator) -> Pull:
        self._pulls += 1
        left = sum(self._slots_left)
        if left:
            # A slot drawn uniformly from those left, pull after pull, is a uniform
            # shuffle of all.
            slot = int(rng.integers(left))
            at = 0
            while slot >= self._slots_left[at]:
                slot -= self._slots_left[at]
                at += 1
            probability = self._slots_left[at] / left
            self._slots_left[at] -= 1
            return Pull(self.arms[at], "warm-up", probability)
        epsilon = min(1.0, self.c / math.sqrt(self._pulls))
        values = self.values()
        utilities = [-math.inf if math.isnan(value) else value for value in values]
        best = utilities.index(max(utilities))
        explores = rng.random() < epsilon
        at = int(rng.integers(len(utilities))) if explores else best
        probability = epsilon / len(utilities) + (1 - epsilon) * (at == best)
        return Pull(self.arms[at], "explore" if explores else "exploit", probability)

    @override
    def update(self, pull: Pull, reward: float) -> None:
        if pull.choice == "forced":
            return
        at = self.arms.index(pull.arm)
        reward = check_reward(reward)
        value = self.values()[at]
        self._rewarded[at] += 1
        if pull.choice == "warm-up" and self._average[at] is None:
            self._warmup_rewards[at].append(reward)
        elif math.isnan(value):
            self._average[at] = reward
        else:
            step = 1 / self._rewarded[at] if isinstance(self.ema, str) else self.ema
            self._average[at] = (1 - step) * value + step * reward

    @override
    def void(self, pull: Pull) -> None:
        if pull.choice == "forced":
            self._pulls += self.count_forced
        elif pull.choice == "warm-up":
            self._slots_left[self.arms.index(pull.arm)] += 1

    @override
    def values(self) -> tuple[float, ...]:
        values = []
        for average, rewards in zip(self._average, self._warmup_rewards, strict=True):
            if average is None:
                # fsum: equal sets of rewards tie exactly, in whatever order they came
                average = math.fsum(rewards) / len(rewards) if rewards else math.nan
            values.append(average)
        return tuple(values)
