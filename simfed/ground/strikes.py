"""Strikes: intervals in which a link, device or server does not work.

Times between strikes and their lengths are drawn alternately, from time 0 on; draw
number j hangs on the run's seed, the kind of fault, whom it strikes and j alone. So
every answer is a function of the instant: asking in another order, twice, or after a
resumed run changes nothing.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from simfed.ground.arrays import Floats
from simfed.ground.distributions import Law
from simfed.ground.errors import RunFailed
from simfed.ground.seeding import Streams

_BLOCK = 64
"""Strikes that are drawn at once."""
_MOST_STRIKES = 1_000_000
"""The most strikes of one link or device in a run: beyond that the times between them
are a mistake."""


@dataclass(frozen=True)
class Exponential:
    """Times without memory, of this mean.

    >>> Exponential(2.0).quantile(np.array([0.5])).round(3)
    array([1.386])
    """

    mean: float
    low = 0.0
    high = math.inf
    attains_low = False

    def quantile(self, u: Floats) -> Floats:
        """Return the value at each u in (0, 1)."""
        return -self.mean * np.log1p(-u)


@dataclass(frozen=True)
class Rhythm:
    """The laws of a strike's frequency and length, both in seconds."""

    between: Law
    """Seconds from the end of a strike (or time 0) to the beginning of the next."""
    lasts: Law


class Strikes:
    """The strikes of one kind that a link, device or server meets.

    They are intervals [from, to), in order. Their *borders* are numbered: strike j
    begins at border 2j and ends at border 2j + 1. Nothing is drawn before somebody
    asks; what is kept is one block of borders and an instant per block.

    >>> from simfed.ground.distributions import Discrete
    >>> rhythm = Rhythm(Discrete((10.0,)), Discrete((2.0,)))
    >>> strikes = Strikes(rhythm, Streams(0), "freeze", 3)
    >>> [strikes.border_s(n) for n in range(4)], strikes.passed(11.0)
    ([10.0, 12.0, 22.0, 24.0], 1)
    >>> strikes.stretch(9.0, 3.0)
    (5.0, [(1.0, 2.0)])
    """

    __slots__ = ("_block", "_borders", "_ends", "_keys", "_rhythm", "_streams")

    def __init__(self, rhythm: Rhythm, streams: Streams, *keys: int | str) -> None:
        self._rhythm = rhythm
        self._streams = streams
        self._keys = keys
        self._ends = array("d", [0.0])
        """The beginning of each block: the end of the last strike before it."""
        self._block = -1
        self._borders = array("d")

    def border_s(self, number: int) -> float:
        """Return the instant of a border."""
        self._load(number // (2 * _BLOCK))
        return self._borders[number % (2 * _BLOCK)]

    def passed(self, at_s: float) -> int:
        """Return how many borders are not after an instant.

        Where it is odd, a strike is under way.
        """
        while self._ends[-1] <= at_s:
            self._load(len(self._ends) - 1)
        block = max(bisect_right(self._ends, at_s) - 1, 0)
        self._load(block)
        return 2 * _BLOCK * block + bisect_right(self._borders, at_s)

    def stretch(
        self, start_s: float, work_s: float
    ) -> tuple[float, list[tuple[float, float]]]:
        """Return the seconds that work takes from `start_s` on, and the strikes within.

        Strikes are pairs (seconds since the start, length). Work that ends as a strike
        begins has ended.
        """
        pieces: list[tuple[float, float]] = []
        if work_s <= 0:
            return work_s, pieces
        number, total_s, left_s = self.passed(start_s), 0.0, work_s
        free_from_s = start_s
        if number % 2:
            free_from_s = self.border_s(number)
            total_s = free_from_s - start_s
            pieces.append((0.0, total_s))
            number += 1
        while (free_s := self.border_s(number) - free_from_s) < left_s:
            free_from_s = self.border_s(number + 1)
            length_s = free_from_s - self.border_s(number)
            pieces.append((total_s + free_s, length_s))
            total_s += free_s + length_s
            left_s -= free_s
            number += 2
        return total_s + left_s, pieces

    def _load(self, block: int) -> None:
        """Draw the borders of this block, and the end of each block before it."""
        while self._block != block:
            nearest = min(block, len(self._ends) - 1)
            if nearest * _BLOCK >= _MOST_STRIKES:
                raise RunFailed(
                    f"faults: {' '.join(map(str, self._keys))} is struck more than "
                    f"{_MOST_STRIKES:,} times by {self._ends[-1]:g} s; a longer time "
                    "`between` strikes is needed"
                )
            self._borders = self._draw(nearest)
            self._block = nearest
            if nearest == len(self._ends) - 1:
                self._ends.append(self._borders[-1])

    def _draw(self, block: int) -> array[float]:
        first = 2 * _BLOCK * block
        numbers = np.arange(first, first + 2 * _BLOCK)
        u = self._streams.uniform_at(
            "fault", *self._keys, client=np.zeros_like(numbers), number=numbers
        )
        lengths_s = np.empty(2 * _BLOCK)
        lengths_s[0::2] = self._rhythm.between.quantile(u[0::2])
        lengths_s[1::2] = self._rhythm.lasts.quantile(u[1::2])
        lengths_s[0] += self._ends[block]
        return array("d", np.cumsum(lengths_s).tolist())
