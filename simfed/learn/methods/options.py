"""Ranges of options of methods, rules and attacks, as marks of their annotations.

`Annotated[float, ABOVE_ZERO, "of the steps"]` says range and help of an option in one
place: `Ranged` checks the one, the reference of keys prints the other.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, get_args, get_type_hints

from simfed.ground.errors import InputError


@dataclass(frozen=True)
class Within:
    """The range that a number is in, unless it is None.

    >>> SHARE.check("mixing", 2.0)
    Traceback (most recent call last):
    simfed.ground.errors.InputError: mixing: got 2.0, expected a number above 0, up to 1
    """

    allowed: str
    """The range in words."""
    least: float
    most: float = inf
    begins: bool = True
    """True if the least number is allowed."""
    ends: bool = False
    """True if the most is allowed."""

    def check(self, where: str, value: float | None) -> None:
        """Refuse a number that is not in the range; None is always in it.

        Args:
            where: the option's name.
            value: as the scenario has it.

        Raises:
            InputError: with the range in words.
        """
        if value is None:
            return
        above = value >= self.least if self.begins else value > self.least
        if not (above and (value <= self.most if self.ends else value < self.most)):
            raise InputError(self.allowed, where=where, got=value)


NOT_NEGATIVE = Within("a number of at least 0", 0)
WHOLE_NOT_NEGATIVE = Within("a whole number of at least 0", 0)
AT_LEAST_TWO = Within("a whole number of at least 2", 2)
AT_LEAST_ONE = Within("a whole number of at least 1", 1)
ABOVE_ZERO = Within("a number above 0", 0, begins=False)
BELOW_ONE = Within("a number from 0 to below 1", 0, 1)
SHARE = Within("a number above 0, up to 1", 0, 1, begins=False, ends=True)


class Ranged:
    """A dataclass of options whose annotations say ranges.

    It is `rate: Annotated[float, ABOVE_ZERO, "of the steps"]`, say.
    """

    def __post_init__(self) -> None:
        """Refuse options out of their range."""
        hints: dict[str, Any] = {}
        for base in reversed(type(self).__mro__):
            with suppress(NameError):  # of a class in a function of somebody's own
                hints |= get_type_hints(base, include_extras=True)
        for name, hint in hints.items():
            # Python 3.10 puts an optional one around what is annotated
            for one in (hint, *get_args(hint)):
                for mark in getattr(one, "__metadata__", ()):
                    if isinstance(mark, Within):
                        mark.check(name, getattr(self, name))
