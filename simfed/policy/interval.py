"""The interval in which a policy may set K for one codec."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from typing_extensions import override

from simfed.compress.choice import Choice
from simfed.ground.errors import within
from simfed.ground.levels import Level, WrittenLevel
from simfed.policy.base import Policy, check_option


class SetsK(Policy):
    """The base of policies that set K of one codec, in an interval.

    `values` has K itself, a share in per cent, and NaN for the other arms.
    """

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
        strategy: str, least: WrittenLevel, most: WrittenLevel, **rest: object
    ) -> tuple[Choice, Choice]:
        """Return the arms at the ends of what a policy with these options plays."""
        return Choice(strategy, least), Choice(strategy, most)

    @override
    def values(self) -> tuple[float, ...]:
        return tuple(self._k if arm == self.strategy else math.nan for arm in self.arms)


class Interval(NamedTuple):
    """An interval of K: both ends in numbers of entries or both in % of a model."""

    least: float
    most: float
    in_shares: bool

    @classmethod
    def of(cls, strategy: str, least: WrittenLevel, most: WrittenLevel) -> Interval:
        """Return the interval that a policy's options describe.

        Raises:
            InputError: names the option that is wrong.

        >>> Interval.of("top-k", 100, 900)
        Interval(least=100.0, most=900.0, in_shares=False)
        """
        choice = Choice.of(strategy)
        check_option(
            "strategy", strategy, choice.level is None, "a strategy without a level"
        )
        check_option(
            "strategy", strategy, choice.codec.takes_k, "a strategy that goes by K"
        )
        low, high = _check_level("least", least), _check_level("most", most)
        in_shares = low.kind == "share"
        check_option(
            "most",
            most,
            high.kind == low.kind,
            "a share like `least`, or both as numbers",
        )
        interval = cls(float(low.amount), float(high.amount), in_shares)
        wider = interval.least < interval.most
        check_option("most", most, wider, f"more than `least`, {least}")
        return interval

    @property
    def middle(self) -> float:
        """√(least · most): as many times the least as the most is of it."""
        return math.sqrt(self.least * self.most)

    def clamp(self, amount: float) -> float:
        """Return `amount`, or the end of the interval beyond which it lies."""
        return min(max(amount, self.least), self.most)

    def amount(self, option: str, written: WrittenLevel) -> float:
        """Return a level inside the interval, in the interval's unit.

        Raises:
            InputError: names the option that is wrong.
        """
        level = _check_level(option, written)
        of_a_kind = (level.kind == "share") == self.in_shares
        inside = of_a_kind and self.least <= level.amount <= self.most
        check_option(
            option, written, inside, "a level from `least` to `most`, written like them"
        )
        return float(level.amount)

    def level(self, amount: float) -> Level:
        """Return `amount` as a level: a share in % or a number of entries."""
        return Level.read(f"{amount!r}%" if self.in_shares else round(amount))


def _check_level(option: str, level: object) -> Level:
    with within(option):
        return Level.read(level)
