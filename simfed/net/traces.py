"""Capacity that varies in time: piecewise-constant traces and their generators.

A trace says for how long a link has which capacity, and what comes after its last
piece: `loop` (from the beginning again), `hold` (the last capacity for ever) or `error`
(a run that gets there fails). What is ignored: anything faster than a piece, and that a
real link's losses and delays change with its capacity. No trace is shipped with simfed;
`simfed.net.trace_files` reads files.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from typing import Literal, NamedTuple, get_args

import numpy as np

from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError, check_known
from simfed.ground.strikes import Strikes

EndPolicy = Literal["loop", "hold", "error"]

MOST_PIECES = 1_000_000
"""Pieces of a trace in equal steps, or made up: more would take minutes and
gigabytes."""


def make_column(numbers: Iterable[float] | Floats) -> array[float]:
    """Return the numbers in eight bytes each, where a tuple's take 32.

    A network may hold millions of pieces. Nobody changes them.
    """
    if not isinstance(numbers, np.ndarray):
        return array("d", numbers)
    column = array("d")
    column.frombytes(np.ascontiguousarray(numbers, np.float64).data.cast("B"))
    return column


class Moment(NamedTuple):
    """A piece of a trace on its own time line: which turn of a loop, which piece."""

    turn: int
    piece: int


@dataclass(frozen=True)
class Trace:
    """Pieces of constant capacity, and what follows the last one.

    Made by `Trace.of`, the generators here and `simfed.net.trace_files`; links share
    one. Neighbouring pieces of the same capacity are one piece. The times of a trace of
    latencies (`simfed.net.delays`) are the same, its capacities seconds.

    >>> trace = Trace.of([0.0, 2.0], [10.0, 0.0], 3.0, "loop")
    >>> trace.rate_bytes_per_s(trace.moment(7.5))
    10.0
    """

    starts_s: Sequence[float]
    rates_bytes_per_s: Sequence[float]
    duration_s: float
    end: EndPolicy
    radio_weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name in ("starts_s", "rates_bytes_per_s", "radio_weights"):
            if not isinstance(getattr(self, name), array | None):
                object.__setattr__(self, name, make_column(getattr(self, name)))

    @classmethod
    def of(
        cls,
        starts_s: Sequence[float] | Floats,
        rates_bytes_per_s: Sequence[float] | Floats,
        duration_s: float,
        end: EndPolicy,
        *,
        where: str | None = None,
    ) -> Trace:
        """Return a checked trace.

        Args:
            starts_s: when each piece begins, increasing from 0.
            rates_bytes_per_s: the capacity of each, at least 0, one of them above 0.
            duration_s: when the last piece ends.
            end: what follows: `loop` (from the beginning again), `hold` (the last
                capacity for ever) or `error` (a run that gets there fails).
            where: names the trace in errors.

        Raises:
            InputError: the first of these that does not hold.
        """
        starts = np.asarray(starts_s, dtype=np.float64)
        rates = np.asarray(rates_bytes_per_s, dtype=np.float64)
        if not len(starts) or len(starts) != len(rates):
            raise InputError(
                "a trace with at least one piece", where=where, got=len(starts)
            )
        at = ": ".join(filter(None, (where, "end")))
        check_known(end, get_args(EndPolicy), where=at)
        if starts[0] != 0:
            raise InputError(
                "a trace that begins at 0 s", where=where, got=float(starts[0])
            )
        forwards = (starts[1:] > starts[:-1]) & np.isfinite(starts[1:])
        k = int(np.argmin(forwards)) if not forwards.all() else len(forwards)
        after = float(starts[k + 1]) if k < len(forwards) else float(duration_s)
        if not (isfinite(after) and after > starts[k]):
            allowed = (
                f"a time after {float(starts[k])!r} s: a trace goes forwards in time"
            )
            raise InputError(allowed, where=where, got=after)
        bad = ~((rates >= 0) & (rates < inf))
        if bad.any():
            got = float(rates[np.argmax(bad)])
            raise InputError("a capacity of at least 0 bytes/s", where=where, got=got)
        if not rates.any():
            allowed = "a trace with some capacity above 0"
            raise InputError(allowed, where=where, problem="only zeros")
        changes = np.concatenate([[True], rates[1:] != rates[:-1]])
        if not changes.all():
            starts, rates = starts[changes], rates[changes]
        return cls(make_column(starts), make_column(rates), float(duration_s), end)

    @property
    def peak_bytes_per_s(self) -> float:
        """The highest capacity that it ever has."""
        return float(np.max(self.rates_bytes_per_s))

    @property
    def lowest_bytes_per_s(self) -> float:
        """The lowest capacity that it ever has."""
        return float(np.min(self.rates_bytes_per_s))

    @property
    def mean_bytes_per_s(self) -> float:
        """The mean capacity of one turn, each piece weighed by its length."""
        pieces_s = np.diff(np.asarray(self.starts_s), append=self.duration_s)
        return (
            float(np.cumsum(np.asarray(self.rates_bytes_per_s) * pieces_s)[-1])
            / self.duration_s
        )

    def moment(self, at_s: float) -> Moment:
        """Return the piece in force at an instant.

        A piece begins at its start and ends before the next. The last one holds on
        beyond the end unless the trace loops.

        Args:
            at_s: on the trace's own clock, at least 0.
        """
        turn = 0.0
        if self.end == "loop":
            turn, at_s = divmod(at_s, self.duration_s)
        return Moment(int(turn), max(bisect_right(self.starts_s, at_s) - 1, 0))

    def rate_bytes_per_s(self, moment: Moment) -> float:
        """Return the capacity of a piece."""
        return self.rates_bytes_per_s[moment.piece]

    def radio_weight(self, moment: Moment) -> float | None:
        """Return how a client with this radio weighs in its cell during a piece.

        None: always the same, which the cell knows.
        """
        return None if self.radio_weights is None else self.radio_weights[moment.piece]

    def next_moment(self, moment: Moment) -> tuple[Moment | None, float]:
        """Return the piece after this one, and its instant on the trace's clock.

        `(None, duration)` where an `error` trace ends, `(None, inf)` where the present
        capacity stays for ever.
        """
        turn, piece = moment
        if piece + 1 < len(self.starts_s):
            return Moment(turn, piece + 1), turn * self.duration_s + self.starts_s[
                piece + 1
            ]
        if self.end == "error":
            return None, self.duration_s
        if self.end == "hold" or len(self.starts_s) == 1:
            return None, inf
        return Moment(turn + 1, 0), (turn + 1) * self.duration_s

    def scaled(self, factor: float) -> Trace:
        """Return the same trace with every capacity times `factor`."""
        if factor == 1:
            return self
        rates = np.asarray(self.rates_bytes_per_s) * factor
        return replace(self, rates_bytes_per_s=make_column(rates))


@dataclass(frozen=True)
class LinkTrace:
    """A trace on a link: the link starts `offset_s` into it.

    Links that share a trace start at places of their own, so that they do not rise and
    fall together.
    """

    trace: Trace | StalledLink
    offset_s: float = 0.0


class StalledLink:
    """A capacity, or a trace of it, with stalls; used as a `Trace` on the run's clock.

    During a stall nothing passes. A moment of it holds the trace's piece and how many
    borders of stalls are past.

    >>> from simfed.ground.distributions import Discrete
    >>> from simfed.ground.strikes import Rhythm
    >>> from simfed.ground.seeding import Streams
    >>> rhythm = Rhythm(Discrete((10.0,)), Discrete((2.0,)))
    >>> strikes = Strikes(rhythm, Streams(0), "stall", "client-0")
    >>> link = StalledLink(5.0, strikes)
    >>> link.rate_bytes_per_s(link.moment(11.0)), link.next_moment(link.moment(11.0))[1]
    (0.0, 12.0)
    """

    lowest_bytes_per_s = 0.0

    def __init__(self, capacity: float | LinkTrace, strikes: Strikes) -> None:
        """Lay stalls over a capacity.

        Args:
            capacity: bytes/s, or a trace of it with its place on the link.
            strikes: when it stalls.
        """
        if not isinstance(capacity, LinkTrace):
            capacity = LinkTrace(Trace.of([0.0], [capacity], 1.0, "hold"))
        assert isinstance(capacity.trace, Trace)
        self._trace = capacity.trace
        self._offset_s = capacity.offset_s
        self._pieces = len(self._trace.starts_s)
        """A moment counts borders of stalls in steps of this, and the trace's pieces
        within."""
        self._strikes = strikes

    @property
    def peak_bytes_per_s(self) -> float:
        """The trace's highest capacity, bytes/s; stalls change nothing of it."""
        return self._trace.peak_bytes_per_s

    def moment(self, at_s: float) -> Moment:
        """Return the piece in force at an instant."""
        turn, piece = self._trace.moment(at_s + self._offset_s)
        return self._number_moment(Moment(turn, piece), self._strikes.passed(at_s))

    def rate_bytes_per_s(self, moment: Moment) -> float:
        """Return the capacity of a piece."""
        piece, borders = self._split_moment(moment)
        return 0.0 if borders % 2 else self._trace.rate_bytes_per_s(piece)

    def radio_weight(self, moment: Moment) -> float | None:
        """Return how a client weighs in its cell during a piece.

        A stall leaves it as it is.
        """
        return self._trace.radio_weight(self._split_moment(moment)[0])

    def next_moment(self, moment: Moment) -> tuple[Moment | None, float]:
        """Return the piece after this one, and its instant.

        `(None, inf)` where the capacity stays 0 for ever.
        """
        piece, borders = self._split_moment(moment)
        following, changes_s = self._trace.next_moment(piece)
        changes_s -= self._offset_s
        if changes_s == inf and self._trace.rate_bytes_per_s(piece) == 0:
            return None, inf
        border_s = self._strikes.border_s(borders)
        if changes_s > border_s:
            return self._number_moment(piece, borders + 1), border_s
        if following is None:
            return None, changes_s
        return self._number_moment(
            following, borders + (changes_s == border_s)
        ), changes_s

    def _number_moment(self, piece: Moment, borders: int) -> Moment:
        """Return the moment of a piece of the trace after so many borders of stalls."""
        return Moment(piece.turn, piece.piece + self._pieces * borders)

    def _split_moment(self, moment: Moment) -> tuple[Moment, int]:
        """Return the moment of the trace alone, and the number of borders past."""
        borders, piece = divmod(moment.piece, self._pieces)
        return Moment(moment.turn, piece), borders


def compute_bin_edges(duration_s: float, bin_s: float, where: str) -> Floats:
    """Return where equal pieces begin and end, from 0 to the duration.

    Args:
        duration_s: of all of them; the last one may be shorter than the others.
        bin_s: of one.
        where: names the place in errors.

    Raises:
        InputError: more than `MOST_PIECES`.
    """
    if not duration_s / bin_s <= MOST_PIECES:
        allowed = f"at most {MOST_PIECES:,} pieces of {bin_s:g} s in a trace"
        raise InputError(allowed, where=where, got=f"one of {duration_s:g} s")
    count = max(int(np.ceil(duration_s / bin_s - 1e-9)), 1)
    edges: Floats = np.linspace(0.0, count * bin_s, count + 1)
    edges[-1] = duration_s
    return edges


# ---- generators ----------------------------------------------------------------------


def markov_on_off(
    rng: np.random.Generator,
    *,
    on_bytes_per_s: float,
    off_bytes_per_s: float,
    mean_on_s: float,
    mean_off_s: float,
    duration_s: float,
    end: EndPolicy = "loop",
) -> Trace:
    """Return a link that switches between two capacities at exponential times.

    Starts in the state that it is in at a random instant (`on` with probability mean_on
    / (mean_on + mean_off)). Where `off` is 0, a trace that would be silent throughout
    lasts until the first `on` is over.

    Args:
        rng: where the times are drawn.
        on_bytes_per_s: the capacity while on, above 0.
        off_bytes_per_s: while off, at least 0.
        mean_on_s: mean stay in on.
        mean_off_s: mean stay in off.
        duration_s: of the trace.
        end: what follows it, see `Trace.of`.

    Raises:
        InputError: more than `MOST_PIECES` changes are to be expected.
    """
    changes = 2 * duration_s / (mean_on_s + mean_off_s)
    if not changes <= MOST_PIECES:
        allowed = f"at most {MOST_PIECES:,} changes in a trace of {duration_s:g} s"
        raise InputError(allowed, got=f"about {changes:g}")
    starts, rates, at_s, until_s = [], [], 0.0, duration_s
    on = bool(rng.random() < mean_on_s / (mean_on_s + mean_off_s))
    while at_s < until_s:
        starts.append(at_s)
        rates.append(on_bytes_per_s if on else off_bytes_per_s)
        at_s += rng.exponential(mean_on_s if on else mean_off_s)
        on = not on
        if at_s >= until_s and not any(rates):
            until_s = at_s + rng.exponential(mean_on_s)
    return Trace.of(starts, rates, until_s, end)


def lognormal_ar1(
    rng: np.random.Generator,
    *,
    mean_bytes_per_s: float,
    cv: float,
    correlation: float,
    step_s: float,
    duration_s: float,
    end: EndPolicy = "loop",
) -> Trace:
    """Return log-normal capacities whose logarithms are a stationary AR(1) process.

    Args:
        rng: where they are drawn.
        mean_bytes_per_s: the mean capacity.
        cv: their standard deviation over the mean, 0 to 1000.
        correlation: of the logarithms of neighbouring steps, 0 to below 1.
        step_s: how long each capacity lasts.
        duration_s: of the trace.
        end: what follows it, see `Trace.of`.

    Raises:
        InputError: a `cv` out of range, or more than `MOST_PIECES` steps.
    """
    if not 0 <= cv <= 1000:
        raise InputError("a number from 0 to 1000", where="cv", got=cv)
    sigma = sqrt(np.log1p(cv**2))
    edges = compute_bin_edges(duration_s, step_s, "step")
    shocks = rng.standard_normal(len(edges) - 1)
    level = shocks.copy()
    for k in range(1, len(level)):
        level[k] = correlation * level[k - 1] + sqrt(1 - correlation**2) * shocks[k]
    rates = mean_bytes_per_s * np.exp(sigma * level - sigma**2 / 2)
    return Trace.of(edges[:-1], rates, duration_s, end)
