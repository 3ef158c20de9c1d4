"""Thompson sampling: draw a world that the rewards allow, play the arm best in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from typing_extensions import override

from simfed.compress.choice import Choice
from simfed.policy.base import Bandit, Pull, check_option


class Thompson(Bandit):
    """Thompson sampling: the best arm of a world drawn from fading Gaussian beliefs.

    With rewards r scaled to [0, 1], an arm's belief is N((½ + S)/(1 + n), `sd`²/(1 +
    n)), where n counts its rewarded plays and S sums their r, both with weight γ =
    `discount` per later play of this client: one play's worth of prior in the middle of
    the range. Each pull draws a value per arm and plays the largest: `exploit` where
    that arm also has the largest mean, else `explore`.

    Arms that are not played drift back to the prior, so that a change is found.
    `discount: 1` never forgets. No reward in [0, 1] scatters more than `sd` = ½. A pull
    without a reward changes nothing. The chance of a pull is not worked out.

    Sources: Agrawal and Goyal, "Further optimal regret bounds for Thompson sampling"
    (2013), for the Gaussian beliefs about bounded rewards; Raj and Kalyani, "Taming
    non-stationary bandits: a Bayesian approach" (2017), for the discount.

    >>> policy = Thompson(("top-k", "random-k"), discount=1.0)
    >>> policy.update(policy.pull(np.random.default_rng(0)), 0.5)
    >>> policy.values()  # (½ + ¾)/2 of the way from −1 to 1
    (0.25, nan)
    """

    def __init__(
        self,
        arms: Sequence[Choice],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        discount: Annotated[
            float, "γ: weight of a play, per later play; 1 never forgets"
        ] = 0.99,
        sd: Annotated[
            float, "scatter of a reward, as a share of the reward range"
        ] = 0.5,
    ) -> None:
        super().__init__(arms, reward_range)
        check_option(
            "discount", discount, 0 < discount <= 1, "a number above 0, up to 1"
        )
        check_option("sd", sd, 0 < sd < math.inf, "a number above 0")
        self.discount = discount
        self.sd = sd
        self._n = [0.0] * len(self.arms)
        self._sum = [0.0] * len(self.arms)

    @override
    def pull(self, rng: np.random.Generator) -> Pull:
        means, sds = self.beliefs()
        at = int(np.argmax(rng.normal(means, sds)))
        best = means[at] == max(means)
        return Pull(self.arms[at], "exploit" if best else "explore")

    def _learn(self, at: int, pull: Pull, share: float) -> None:
        self._n = [n * self.discount for n in self._n]
        self._sum = [s * self.discount for s in self._sum]
        self._n[at] += 1
        self._sum[at] += share

    def beliefs(self) -> tuple[list[float], list[float]]:
        """Return means and standard deviations of the beliefs, scaled to [0, 1]."""
        means = [(0.5 + s) / (1 + n) for n, s in zip(self._n, self._sum, strict=True)]
        return means, [self.sd / math.sqrt(1 + n) for n in self._n]

    @override
    def values(self) -> tuple[float, ...]:
        means, _ = self.beliefs()
        width = self.high - self.low
        return tuple(
            self.low + width * m if n else math.nan
            for n, m in zip(self._n, means, strict=True)
        )
