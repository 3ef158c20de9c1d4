"""EXP3: exponential weights with importance-weighted rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simfed.errors import InputError
from simfed.policy.base import Policy, Pull, check_arms, finite_reward

__all__ = ["Exp3"]


class Exp3(Policy):
    """The adversarial bandit of Auer, Cesa-Bianchi, Freund and Schapire (2002).

    p(s) = (1 − γ)·w(s)/Σw + γ/|S| with γ = `mixing`. A reward G becomes r = (G − low)/(high − low)
    by the reward range, r̂ = r/p(s) with the p(s) of the pull it belongs to, and
    w(s) ← w(s)·exp(γ·r̂/|S|). Weights are kept as logarithms, so they never overflow.

    `choice` is always `explore`: exploration and exploitation are one draw here.

    >>> policy = Exp3(("top-k", "random-k"), mixing=0.1)
    >>> pull = policy.pull(np.random.default_rng(0))
    >>> pull
    Pull(arm='random-k', choice='explore', probability=0.5)
    >>> policy.update(pull, 1.0)
    >>> [round(p, 4) for p in policy.values()]
    [0.4775, 0.5225]
    """

    learns = True

    def __init__(
        self,
        arms: Sequence[str],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        mixing: float = 0.1,
    ) -> None:
        self.arms = check_arms(arms)
        self.low, self.high = reward_range
        if not self.low < self.high:
            raise InputError("a reward range (low, high) with low < high", got=reward_range)
        self.mixing = mixing
        self._log_weights = [0.0] * len(self.arms)

    def pull(self, rng: np.random.Generator) -> Pull:
        probabilities = self.values()
        at = int(np.searchsorted(np.cumsum(probabilities), rng.random(), side="right"))
        at = min(at, len(self.arms) - 1)  # the sum may fall short of 1 by a rounding error
        return Pull(self.arms[at], "explore", probabilities[at])

    def update(self, pull: Pull, reward: float) -> None:
        if pull.choice == "forced":
            return
        scaled = (finite_reward(reward) - self.low) / (self.high - self.low)
        step = self.mixing * scaled / pull.probability / len(self.arms)
        self._log_weights[self.arms.index(pull.arm)] += step

    def void(self, pull: Pull) -> None:
        pass

    def values(self) -> tuple[float, ...]:
        largest = max(self._log_weights)
        weights = [math.exp(log_weight - largest) for log_weight in self._log_weights]
        total = math.fsum(weights)
        floor = self.mixing / len(self.arms)
        return tuple((1 - self.mixing) * weight / total + floor for weight in weights)

    def state(self) -> dict[str, Any]:
        return {"log_weights": list(self._log_weights)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._log_weights = list(state["log_weights"])
