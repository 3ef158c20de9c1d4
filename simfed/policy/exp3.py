"""Exponential weights with importance-weighted rewards: EXP3."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from typing_extensions import override

from simfed.compress.choice import Choice
from simfed.policy.base import Bandit, Pull, check_option


class Exp3(Bandit):
    """EXP3: exponential weights, for rewards that an opponent might choose.

    p(s) = (1 − γ)·w(s)/Σw + γ/|S| with γ = `mixing`. A reward G becomes r = (G −
    low)/(high − low) by the reward range, r̂ = r/p(s) with the p(s) of the pull it
    belongs to, and w(s) ← w(s)·exp(γ·r̂/|S|). Weights are kept as logarithms, so they
    never overflow.

    `choice` is always `explore`: exploration and exploitation are one draw here.

    Source: Auer, Cesa-Bianchi, Freund and Schapire, "The nonstochastic multiarmed
    bandit problem" (2002).

    >>> policy = Exp3(("top-k", "random-k"), mixing=0.1)
    >>> pull = policy.pull(np.random.default_rng(0))
    >>> pull
    Pull(arm='random-k', choice='explore', probability=0.5)
    >>> policy.update(pull, 1.0)
    >>> [round(p, 4) for p in policy.values()]
    [0.4775, 0.5225]
    """

    def __init__(
        self,
        arms: Sequence[Choice],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        mixing: Annotated[float, "share of uniform exploration"] = 0.1,
    ) -> None:
        super().__init__(arms, reward_range)
        check_option("mixing", mixing, 0 <= mixing <= 1, "a number from 0 to 1")
        self.mixing = mixing
        self._log_weights = [0.0] * len(self.arms)

    @override
    def pull(self, rng: np.random.Generator) -> Pull:
        probabilities = self.values()
        at = int(np.searchsorted(np.cumsum(probabilities), rng.random(), side="right"))
        at = min(
            at, len(self.arms) - 1
        )  # the sum may fall short of 1 by a rounding error
        return Pull(self.arms[at], "explore", probabilities[at])

    def _learn(self, at: int, pull: Pull, share: float) -> None:
        step = self.mixing * share / pull.probability / len(self.arms)
        self._log_weights[at] += step

    @override
    def values(self) -> tuple[float, ...]:
        largest = max(self._log_weights)
        weights = [math.exp(log_weight - largest) for log_weight in self._log_weights]
        total = math.fsum(weights)
        floor = self.mixing / len(self.arms)
        return tuple((1 - self.mixing) * weight / total + floor for weight in weights)
