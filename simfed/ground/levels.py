"""Levels: how many entries of an update travel.

A *level* is K: a number of entries, or a share of all of them. Scenarios and tables
write it `1000` and `1%`; this module alone reads that and writes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from simfed.ground.errors import InputError

WrittenLevel: TypeAlias = int | str
"""A level as files have it: `1000`, `1%`."""

LEVELS = "a whole number of at least 1, or a share of the parameters such as 1%"

_SHARE = r"(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?\s*%"
LEVEL = rf"(\d+|{_SHARE})"
"""The pattern of a level's text."""

_KINDS = ("entries", "share")


@dataclass(frozen=True, slots=True)
class Level:
    """K of a choice: so many entries, or a share of the entries.

    >>> Level.of("1%"), str(Level.of("0.5 %")), Level.of(500)
    (Level('1%'), '0.5%', Level(500))
    """

    kind: Literal["entries", "share"]
    amount: float
    """A whole number of entries, or per cent."""

    @classmethod
    def of(cls, written: Level | WrittenLevel) -> Level:
        """Return a level from a file, which is not checked; a level itself as it is."""
        return written if isinstance(written, Level) else _parse_level(written)

    @classmethod
    def read(cls, written: object) -> Level:
        """Return a level from what people write.

        Raises: `InputError` for anything else.

        >>> Level.read(500), Level.read(" 1 %")
        (Level(500), Level('1%'))
        """
        if isinstance(written, Level):
            return written
        if isinstance(written, str) and re.fullmatch(rf"\s*{_SHARE}\s*", written):
            level = _parse_level(written)
            if 0 < level.amount <= 100:
                return level
        elif (
            isinstance(written, int) and not isinstance(written, bool) and written >= 1
        ):
            return cls("entries", written)
        raise InputError(LEVELS, got=written)

    def k(self, parameters: int) -> int:
        """Return K of an update of so many entries: at least 1, at most all of them.

        0 where there are none. A share is rounded to the nearest whole number.

        >>> [Level.of(k).k(61_706) for k in (1000, "1%", "0.0001%", 100_000)]
        [1000, 617, 1, 61706]
        >>> Level.of(1000).k(0)
        0
        """
        share = self.kind == "share"
        count = self.amount / 100 * parameters if share else self.amount
        return bound_entries(count, parameters)

    @property
    def plain(self) -> WrittenLevel:
        """The level as files have it; `of` reads it."""
        if self.kind == "entries":
            return int(self.amount)
        number = np.format_float_positional(self.amount, trim="-")
        return f"{number}%"

    @property
    def order(self) -> tuple[int, float]:
        """Sorts levels: numbers and then shares, each by how much they keep.

        >>> levels = map(Level.of, ["2%", 1000, "10%", 50])
        >>> [level.plain for level in sorted(levels, key=lambda level: level.order)]
        [50, 1000, '2%', '10%']
        """
        return _KINDS.index(self.kind), self.amount

    def __str__(self) -> str:
        return str(self.plain)

    def __repr__(self) -> str:
        return f"Level({self.plain!r})"


def bound_entries(count: float, parameters: int) -> int:
    """Return a drawn or computed number of entries as an update can have it.

    It is whole, at least 1 and at most `parameters`.
    """
    return min(max(1, round(count)), parameters)


@lru_cache(maxsize=4096)
def _parse_level(written: WrittenLevel) -> Level:
    if isinstance(written, int):
        return Level("entries", written)
    plain = written.replace(" ", "")
    if plain.endswith("%"):
        return Level("share", float(plain[:-1]))
    return Level("entries", int(plain))
