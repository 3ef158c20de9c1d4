"""The base of policies that set K from the seconds of a participation."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from simfed.ground.levels import Level
from simfed.policy.base import Pull, Spent, Unpaid
from simfed.policy.interval import SetsK


class Clocked(SetsK, Unpaid):
    """One codec whose K, in an interval, follows the seconds of participations.

    A subclass has `_next`. Participations that are lost, or forced to another arm,
    change nothing. `values` has K itself, a share in per cent.
    """

    watches_time = True

    @override
    def pull(self, rng: np.random.Generator) -> Pull:
        return Pull(self.strategy, "fixed", k=self._within.level(self._k))

    @override
    def watch(self, pull: Pull, spent: Spent) -> None:
        if pull.choice != "forced" and pull.k is not None:
            self._k = self._within.clamp(self._next(Level.of(pull.k).amount, spent))

    def _next(self, k: float, spent: Spent) -> float:
        """Return K after a participation with `k`; the caller clamps it."""
        raise NotImplementedError
