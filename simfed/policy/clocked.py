"""The base of policies that set K from the seconds of a participation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from simfed.compress.choice import Choice
from simfed.ground.levels import Level, WrittenLevel
from simfed.policy.base import Pull, Spent, Unpaid
from simfed.policy.interval import Interval


class Clocked(Unpaid):
    """One codec whose K, in an interval, follows the seconds of participations.

    A subclass has `_next`. Participations that are lost, or forced to another arm,
    change nothing. `values` has K itself, a share in per cent.
    """

    watches_time = True

    def __init__(
        self,
        arms: Sequence[Choice],
        strategy: str,
        least: WrittenLevel,
        most: WrittenLevel,
    ) -> None:
        self._within = Interval.of(strategy, least, most)
        self.strategy = Choice(strategy)
        self.arms = tuple(dict.fromkeys((*map(Choice.of, arms), self.strategy)))
        self._k = self._within.middle

    @staticmethod
    def ends(
        strategy: str = "top-k",
        least: WrittenLevel = "0.2%",
        most: WrittenLevel = "30%",
        **rest: object,
    ) -> tuple[Choice, Choice]:
        """The arms at the ends of what it plays."""
        return Choice(strategy, least), Choice(strategy, most)

    @override
    def pull(self, rng: np.random.Generator) -> Pull:
        return Pull(self.strategy, "fixed", k=self._within.level(self._k))

    def watch(self, pull: Pull, spent: Spent) -> None:
        """Move K by the seconds that a participation took."""
        if pull.choice != "forced" and pull.k is not None:
            self._k = self._within.clamp(self._next(Level.of(pull.k).amount, spent))

    def _next(self, k: float, spent: Spent) -> float:
        """Return K after a participation with `k`; the caller clamps it."""
        raise NotImplementedError

    @override
    def values(self) -> tuple[float, ...]:
        return tuple(self._k if arm == self.strategy else math.nan for arm in self.arms)
