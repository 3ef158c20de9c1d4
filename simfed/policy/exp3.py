"""Exponential weights with importance-weighted rewards: EXP3 and two of its kin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np

from simfed.compress.choice import Choice
from simfed.ground.plain import Plain
from simfed.policy.base import Bandit, Pull, check_option


class ExponentialWeights(Bandit):
    """Arms drawn with probabilities that the subclass's `values` gives.

    `choice` is always `explore`: exploration and exploitation are one draw here.
    """

    def pull(self, rng: np.random.Generator) -> Pull:
        probabilities = self.values()
        at = int(np.searchsorted(np.cumsum(probabilities), rng.random(), side="right"))
        at = min(at, len(self.arms) - 1)  # the sum may fall short of 1 by a rounding error
        return Pull(self.arms[at], "explore", probabilities[at])


class Exp3(ExponentialWeights):
    """EXP3: exponential weights, for rewards that an opponent might choose.

    p(s) = (1 − γ)·w(s)/Σw + γ/|S| with γ = `mixing`. A reward G becomes r = (G − low)/(high − low)
    by the reward range, r̂ = r/p(s) with the p(s) of the pull it belongs to, and
    w(s) ← w(s)·exp(γ·r̂/|S|). Weights are kept as logarithms, so they never overflow.

    Source: Auer, Cesa-Bianchi, Freund and Schapire, "The nonstochastic multiarmed bandit problem"
    (2002).

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

    def _learn(self, at: int, pull: Pull, share: float) -> None:
        step = self.mixing * share / pull.probability / len(self.arms)
        self._log_weights[at] += step

    def values(self) -> tuple[float, ...]:
        largest = max(self._log_weights)
        weights = [math.exp(log_weight - largest) for log_weight in self._log_weights]
        total = math.fsum(weights)
        floor = self.mixing / len(self.arms)
        return tuple((1 - self.mixing) * weight / total + floor for weight in weights)

    def state(self) -> dict[str, Plain]:
        return {"log_weights": list(self._log_weights)}

    def restore(self, state: Mapping[str, Plain]) -> None:
        self._log_weights = list(state["log_weights"])


class Exp3S(Exp3):
    """EXP3.S: EXP3 that gives every arm a share of all weight back, and so follows a change.

    As `Exp3`, then w(s) ← w(s) + (e·α/|S|)·Σw with α = `share` and the Σw before the play. For M
    changes in T plays the source takes α = 1/T and γ = min(1, √(|S|·(M·ln(|S|·T) + e)/((e −
    1)·T))).

    Source: Auer, Cesa-Bianchi, Freund and Schapire, "The nonstochastic multiarmed bandit problem"
    (2002), section 8.

    >>> policy = Exp3S(("top-k", "random-k"), mixing=0.1, share=0.01)
    >>> for _ in range(2000):
    ...     policy.update(Pull("top-k", "explore", policy.values()[0]), 1.0)
    >>> [round(p, 3) for p in policy.values()]  # without shares the other would be at 0.05
    [0.799, 0.201]
    """

    def __init__(
        self,
        arms: Sequence[Choice],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        mixing: Annotated[float, "share of uniform exploration"] = 0.1,
        share: Annotated[float, "α: of all weight, given to every arm after a play"] = 0.001,
    ) -> None:
        super().__init__(arms, reward_range, mixing=mixing)
        check_option("share", share, 0 <= share <= 1, "a number from 0 to 1")
        self.share = share

    def _learn(self, at: int, pull: Pull, share: float) -> None:
        largest = max(self._log_weights)
        total = math.fsum(math.exp(weight - largest) for weight in self._log_weights)
        super()._learn(at, pull, share)
        if self.share:
            gift = largest + math.log(math.e * self.share / len(self.arms) * total)
            self._log_weights = [float(np.logaddexp(w, gift)) for w in self._log_weights]


class Exp3Ix(ExponentialWeights):
    """EXP3-IX: EXP3 with implicit exploration, right for every length of play.

    p(s) ∝ exp(−η·L(s)); the loss ℓ = 1 − r of the arm played counts as ℓ/(p(s) + η/2) in its sum
    L(s), with the p(s) of the pull it belongs to. η = `rate`; without one η = √(ln|S|/(|S|·t)) at
    the t-th rewarded play, which needs no horizon. Its regret bound holds with high probability,
    not only on average.

    Source: Neu, "Explore no more: improved high-probability regret bounds for non-stochastic
    bandits" (2015).

    >>> policy = Exp3Ix(("top-k", "random-k"), rate=0.1)
    >>> policy.update(Pull("top-k", "explore", 0.5), -1.0)  # a loss of 1, counted as 1/0.55
    >>> [round(p, 4) for p in policy.values()]
    [0.4547, 0.5453]
    """

    def __init__(
        self,
        arms: Sequence[Choice],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        rate: Annotated[float | None, "η; omitted: √(ln S/(S·t)) at the t-th of its plays"] = None,
    ) -> None:
        super().__init__(arms, reward_range)
        check_option("rate", rate, rate is None or 0 < rate < math.inf, "a number above 0, or null")
        self.rate = rate
        self._losses = [0.0] * len(self.arms)
        self._plays = 0

    def _learn(self, at: int, pull: Pull, share: float) -> None:
        self._losses[at] += (1 - share) / (pull.probability + self._rate_now() / 2)
        self._plays += 1

    def _rate_now(self) -> float:
        if self.rate is not None:
            return self.rate
        return math.sqrt(math.log(len(self.arms)) / (len(self.arms) * (self._plays + 1)))

    def values(self) -> tuple[float, ...]:
        rate, least = self._rate_now(), min(self._losses)
        weights = [math.exp(-rate * (loss - least)) for loss in self._losses]
        total = math.fsum(weights)
        # an arm that is out of the question may be too improbable for a float
        return tuple(max(weight / total, 5e-324) for weight in weights)

    def state(self) -> dict[str, Plain]:
        return {"losses": list(self._losses), "plays": self._plays}

    def restore(self, state: Mapping[str, Plain]) -> None:
        self._losses = list(state["losses"])
        self._plays = state["plays"]
