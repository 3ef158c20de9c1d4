"""Upper confidence bounds: the arm that could still be the best.

It is so given how often it was tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from typing_extensions import override

from simfed.compress.choice import Choice
from simfed.policy.base import Bandit, Pull, check_option


class Ucb(Bandit):
    """Upper confidence bounds, over all plays or over those that still count.

    Plays the arm of the largest mean + √(ξ·ln N/n(s)) with ξ = `exploration`, n(s) the
    rewarded plays of the arm and N those of all arms; rewards are scaled to [0, 1] by
    the reward range, ties go to the lowest index. A play weighs γ = `discount` per
    later play of this client, in means and numbers of plays alike, and only the last
    `window` plays count. Without either it is UCB1, for arms whose mean reward never
    changes. `choice` is `exploit` where the arm also has the largest mean, else
    `explore`.

    Pulls without a reward count neither in means nor in numbers of plays. An arm of
    which nothing counts is played at once; once that pull is lost or still out, the arm
    stands in with the lowest mean and its unpaid pulls as count, so that an arm whose
    uploads never arrive does not hold the client up.

    Sources: Auer, Cesa-Bianchi and Fischer, "Finite-time analysis of the multiarmed
    bandit problem" (2002), with ξ = 2; Garivier and Moulines, "On upper-confidence
    bound policies for non-stationary bandit problems" (2008): for M changes in T plays
    D-UCB takes γ = 1 − √(M/T)/4 and ξ above 2 (its padding has a factor of 2), SW-UCB a
    window of 2·√(T·ln T/M) and ξ above ½.

    >>> policy = Ucb(("top-k", "random-k"))
    >>> for t in range(4):
    ...     pull = policy.pull(np.random.default_rng(t))
    ...     policy.update(pull, 0.5 if pull.arm == "random-k" else -0.5)
    ...     print(pull.arm, pull.choice)
    top-k explore
    random-k explore
    random-k exploit
    random-k exploit
    >>> policy.values()
    (-0.5, 0.5)
    """

    def __init__(
        self,
        arms: Sequence[Choice],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        exploration: Annotated[float, "ξ in the padding √(ξ·ln N/n(s))"] = 2.0,
        discount: Annotated[
            float, "γ: weight of a play, per later play; 1 never forgets"
        ] = 1.0,
        window: Annotated[int | None, "plays that are remembered; null: all"] = None,
    ) -> None:
        super().__init__(arms, reward_range)
        finite = 0 <= exploration < math.inf
        check_option("exploration", exploration, finite, "a number of at least 0")
        check_option(
            "discount", discount, 0 < discount <= 1, "a number above 0, up to 1"
        )
        counts = window is None or window >= 1
        check_option("window", window, counts, "a whole number of at least 1, or null")
        self.exploration = exploration
        self.discount = discount
        self.window = window
        self._n = [0.0] * len(self.arms)
        self._sum = [0.0] * len(self.arms)
        self._unpaid = [0] * len(self.arms)  # pulls since the arm's last reward
        self._plays: list[tuple[int, float]] = []  # within the window, the oldest first

    @override
    def pull(self, rng: np.random.Generator) -> Pull:
        indices, means = [], []
        log_all = math.log(max(1.0, sum(self._n) + sum(self._unpaid)))
        for n, total, unpaid in zip(self._n, self._sum, self._unpaid, strict=True):
            means.append(total / n if n else -1.0)
            if n or unpaid:
                padding = math.sqrt(self.exploration * log_all / (n or unpaid))
                indices.append(max(0.0, means[-1]) + padding)
            else:
                indices.append(math.inf)
        at = indices.index(max(indices))
        self._unpaid[at] += 1
        best = means[at] == max(means) and means[at] >= 0
        return Pull(self.arms[at], "exploit" if best else "explore")

    def _learn(self, at: int, pull: Pull, share: float) -> None:
        self._unpaid[at] = 0
        plays = [(at, share)]
        if (
            self.window is not None
        ):  # summed anew, since what left is not subtracted exactly
            plays = self._plays = [*self._plays, (at, share)][-self.window :]
            self._n, self._sum = ([0.0] * len(self.arms) for _ in range(2))
        for arm, reward in plays:
            self._n = [n * self.discount for n in self._n]
            self._sum = [s * self.discount for s in self._sum]
            self._n[arm] += 1
            self._sum[arm] += reward

    @override
    def values(self) -> tuple[float, ...]:
        width = self.high - self.low
        counted = zip(self._n, self._sum, strict=True)
        return tuple(self.low + width * s / n if n else math.nan for n, s in counted)
