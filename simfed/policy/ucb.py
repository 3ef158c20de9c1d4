"""Upper confidence bounds: the arm that could still be the best, given how often it was tried."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np

from simfed.compress.choice import Choice
from simfed.ground.plain import Plain
from simfed.policy.base import Bandit, Pull, check_option

Stats = tuple[float, float]
"""How many rewarded plays of an arm count, and the sum of their rewards."""


class UpperConfidence(Bandit):
    """Plays the arm of the largest mean + padding, ties to the lowest index.

    A subclass says what counts of each arm (`_counted`) and how wide its padding is (`_padding`,
    of the arm's count and of ln of all counts). `choice` is `exploit` where the arm also has the
    largest mean, else `explore`; the probability is 1, as nothing is drawn.

    Pulls without a reward count neither in means nor in counts. An arm of which nothing counts is
    played at once; once that pull is lost or still out, the arm stands in with the lowest mean and
    its unpaid pulls as count, so that an arm whose uploads never arrive does not hold the client
    up.
    """

    def __init__(self, arms: Sequence[Choice], reward_range: tuple[float, float]) -> None:
        super().__init__(arms, reward_range)
        self._unpaid = [0] * len(self.arms)  # pulls since the arm's last reward

    def pull(self, rng: np.random.Generator) -> Pull:
        indices, means = [], []
        stats = self._counted()
        log_all = math.log(max(1.0, sum(n for n, _ in stats) + sum(self._unpaid)))
        for (n, total), unpaid in zip(stats, self._unpaid, strict=True):
            means.append(total / n if n else -1.0)
            if n or unpaid:
                indices.append(max(0.0, means[-1]) + self._padding(n or unpaid, log_all))
            else:
                indices.append(math.inf)
        at = indices.index(max(indices))
        self._unpaid[at] += 1
        best = means[at] == max(means) and means[at] >= 0
        return Pull(self.arms[at], "exploit" if best else "explore")

    def _learn(self, at: int, pull: Pull, share: float) -> None:
        self._unpaid[at] = 0
        self._count(at, share)

    def values(self) -> tuple[float, ...]:
        width = self.high - self.low
        return tuple(self.low + width * s / n if n else math.nan for n, s in self._counted())

    def state(self) -> dict[str, Plain]:
        return {"unpaid": list(self._unpaid)}

    def restore(self, state: Mapping[str, Plain]) -> None:
        self._unpaid = list(state["unpaid"])

    def _counted(self) -> list[Stats]:
        raise NotImplementedError

    def _count(self, at: int, share: float) -> None:
        raise NotImplementedError

    def _padding(self, n: float, log_all: float) -> float:
        raise NotImplementedError


class DiscountedUcb(UpperConfidence):
    """D-UCB: upper confidence bounds from plays that weigh less with every later one.

    In means and numbers of plays a play weighs γ = `discount` per later play of this client.
    Padding 2·√(ξ·ln N/N(s)) with ξ = `exploration`, N(s) the discounted plays of the arm and N of
    all arms. It remembers about 1/(1 − γ) plays: for M changes in T plays the source takes
    γ = 1 − √(M/T)/4, and ξ above ½.

    Source: Garivier and Moulines, "On upper-confidence bound policies for non-stationary bandit
    problems" (2008).

    >>> policy = DiscountedUcb(("top-k", "random-k"), (0.0, 1.0), discount=0.5)
    >>> for reward in (1.0, 0.0):
    ...     policy.update(Pull("top-k", "explore"), reward)
    >>> policy.values()  # (½·1 + 0)/(½ + 1)
    (0.333..., nan)
    """

    def __init__(
        self,
        arms: Sequence[Choice],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        discount: Annotated[float, "γ: weight of a play, per later play"] = 0.99,
        exploration: Annotated[float, "ξ in the padding 2·√(ξ·ln N/N(s))"] = 0.6,
    ) -> None:
        super().__init__(arms, reward_range)
        check_option("discount", discount, 0 < discount <= 1, "a number above 0, up to 1")
        check_option(
            "exploration", exploration, 0 <= exploration < math.inf, "a number of at least 0"
        )
        self.discount = discount
        self.exploration = exploration
        self._n = [0.0] * len(self.arms)
        self._sum = [0.0] * len(self.arms)

    def _counted(self) -> list[Stats]:
        return list(zip(self._n, self._sum, strict=True))

    def _count(self, at: int, share: float) -> None:
        if self.discount < 1:
            self._n = [n * self.discount for n in self._n]
            self._sum = [s * self.discount for s in self._sum]
        self._n[at] += 1
        self._sum[at] += share

    def _padding(self, n: float, log_all: float) -> float:
        return 2 * math.sqrt(self.exploration * log_all / n)

    def state(self) -> dict[str, Plain]:
        return {**super().state(), "n": list(self._n), "sum": list(self._sum)}

    def restore(self, state: Mapping[str, Plain]) -> None:
        super().restore(state)
        self._n = list(state["n"])
        self._sum = list(state["sum"])


class Ucb1(DiscountedUcb):
    """UCB1: the arm that could still be the best, where arms stay as they are.

    The mean of all plays, with padding √(ξ·ln t/n(s)); ξ = `exploration` is 2 in the source. For
    arms whose mean reward does not change. Rewards are scaled to [0, 1] by the reward range: a wide
    clip around small rewards makes it explore long.

    Source: Auer, Cesa-Bianchi and Fischer, "Finite-time analysis of the multiarmed bandit problem"
    (2002).

    >>> policy = Ucb1(("top-k", "random-k"))
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
        exploration: Annotated[float, "ξ in the padding √(ξ·ln t/n(s))"] = 2.0,
    ) -> None:
        super().__init__(arms, reward_range, discount=1.0, exploration=exploration)

    def _padding(self, n: float, log_all: float) -> float:
        return math.sqrt(self.exploration * log_all / n)


class SlidingWindowUcb(UpperConfidence):
    """SW-UCB: upper confidence bounds from the client's last plays, older ones forgotten.

    Means are those of the last τ = `window` rewarded plays. Padding √(ξ·ln n/n(s)) with ξ =
    `exploration`, n(s) the plays of the arm within the window and n all of them there. For M
    changes in T plays the source takes τ = 2·√(T·ln T/M), and ξ above ½.

    Source: Garivier and Moulines (2008), as for D-UCB.

    >>> policy = SlidingWindowUcb(("top-k", "random-k"), (0.0, 1.0), window=2)
    >>> for reward in (1.0, 0.25, 0.75):
    ...     policy.update(Pull("top-k", "explore"), reward)
    >>> policy.values()
    (0.5, nan)
    """

    def __init__(
        self,
        arms: Sequence[Choice],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        window: Annotated[int, "τ: plays that are remembered"] = 200,
        exploration: Annotated[float, "ξ in the padding √(ξ·ln n/n(s))"] = 0.6,
    ) -> None:
        super().__init__(arms, reward_range)
        check_option("window", window, window >= 1, "a whole number of at least 1")
        check_option(
            "exploration", exploration, 0 <= exploration < math.inf, "a number of at least 0"
        )
        self.window = window
        self.exploration = exploration
        self._plays: list[tuple[int, float]] = []  # (arm, reward), the oldest first

    def _counted(self) -> list[Stats]:
        n, total = [0] * len(self.arms), [0.0] * len(self.arms)
        for at, share in self._plays:
            n[at] += 1
            total[at] += share
        return list(zip(n, total, strict=True))

    def _count(self, at: int, share: float) -> None:
        self._plays.append((at, share))
        del self._plays[: -self.window]

    def _padding(self, n: float, log_all: float) -> float:
        return math.sqrt(self.exploration * log_all / n)

    def state(self) -> dict[str, Plain]:
        return {**super().state(), "plays": [list(play) for play in self._plays]}

    def restore(self, state: Mapping[str, Plain]) -> None:
        super().restore(state)
        self._plays = [(at, share) for at, share in state["plays"]]
