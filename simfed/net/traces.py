"""Capacity that varies in time: piecewise-constant traces, their readers and generators.

A trace says for how long a link has which capacity, and what comes after its last piece: `loop`
(from the beginning again), `hold` (the last capacity for ever) or `error` (a run that gets there
fails). What is ignored: anything faster than a piece, and that a real link's losses and delays
change with its capacity. No trace is shipped with simfed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from pathlib import Path as FilePath
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from simfed import units
from simfed.errors import InputError, did_you_mean, listed
from simfed.reading import read_text

__all__ = [
    "EndPolicy",
    "LinkTrace",
    "Moment",
    "Trace",
    "lognormal_ar1",
    "markov_on_off",
    "read_csv",
    "read_mahimahi",
    "read_pensieve",
    "read_rows",
]

Floats = np.ndarray[Any, np.dtype[np.float64]]
Rows = list[tuple[list[str], str]]
EndPolicy = Literal["loop", "hold", "error"]

MAHIMAHI_PACKET_BYTES = 1500
MOST_PIECES = 1_000_000
"""Of a trace in equal steps, or made up: more would take minutes and gigabytes."""


class Moment(NamedTuple):
    """A piece of a trace on its own time line: which turn of a loop, which piece."""

    turn: int
    piece: int


@dataclass(frozen=True)
class Trace:
    """Pieces of constant capacity.

    starts_s: when each piece begins, increasing from 0; rates_bytes_per_s: its capacity, at least 0;
    duration_s: when the last piece ends. Neighbouring pieces of the same capacity are one piece.

    >>> trace = Trace.of([0.0, 2.0], [10.0, 0.0], 3.0, "loop")
    >>> trace.bytes_until(7.5)
    55.0
    """

    starts_s: tuple[float, ...]
    rates_bytes_per_s: tuple[float, ...]
    duration_s: float
    end: EndPolicy

    @classmethod
    def of(
        cls,
        starts_s: Iterable[float],
        rates_bytes_per_s: Iterable[float],
        duration_s: float,
        end: EndPolicy,
        *,
        where: str | None = None,
    ) -> Trace:
        """A checked trace. `where` names it in errors."""
        starts = [float(x) for x in starts_s]
        rates = [float(x) for x in rates_bytes_per_s]
        if not starts or len(starts) != len(rates):
            raise InputError("a trace with at least one piece", where=where, got=len(starts))
        if end not in get_args(EndPolicy):
            allowed = f"an end policy: {listed(get_args(EndPolicy))}"
            raise InputError(
                allowed, where=where, got=end, hint=did_you_mean(end, get_args(EndPolicy))
            )
        if starts[0] != 0:
            raise InputError("a trace that begins at 0 s", where=where, got=starts[0])
        for before, after in zip(starts, [*starts[1:], float(duration_s)], strict=True):
            if not (isfinite(after) and after > before):
                allowed = f"a time after {before!r} s: a trace goes forwards in time"
                raise InputError(allowed, where=where, got=after)
        for rate in rates:
            if not (isfinite(rate) and rate >= 0):
                raise InputError("a capacity of at least 0 bytes/s", where=where, got=rate)
        if not any(rates):
            raise InputError("a trace with some capacity above 0", where=where, got="only zeros")
        kept = [k for k in range(len(rates)) if k == 0 or rates[k] != rates[k - 1]]
        return cls(
            tuple(starts[k] for k in kept), tuple(rates[k] for k in kept), float(duration_s), end
        )

    @property
    def peak_bytes_per_s(self) -> float:
        """The highest capacity."""
        return max(self.rates_bytes_per_s)

    @property
    def mean_bytes_per_s(self) -> float:
        """Bytes of one turn over its duration."""
        return self._bytes_of(self.duration_s) / self.duration_s

    def moment(self, at_s: float) -> Moment:
        """The piece in force at `at_s`. A piece begins at its start and ends before the next."""
        turn = 0.0
        if self.end == "loop":
            turn, at_s = divmod(at_s, self.duration_s)
        return Moment(int(turn), max(bisect_right(self.starts_s, at_s) - 1, 0))

    def rate_bytes_per_s(self, moment: Moment) -> float:
        """The capacity of a piece."""
        return self.rates_bytes_per_s[moment.piece]

    def next_moment(self, moment: Moment) -> tuple[Moment | None, float]:
        """What follows a piece, and when; `(None, duration)` where an `error` trace ends, `(None, inf)` for ever."""
        turn, piece = moment
        if piece + 1 < len(self.starts_s):
            return Moment(turn, piece + 1), turn * self.duration_s + self.starts_s[piece + 1]
        if self.end == "error":
            return None, self.duration_s
        if self.end == "hold" or len(self.starts_s) == 1:
            return None, inf
        return Moment(turn + 1, 0), (turn + 1) * self.duration_s

    def bytes_until(self, at_s: float) -> float:
        """What the link can carry from 0 to `at_s` (an `error` trace carries nothing after its end)."""
        if self.end == "loop":
            turns, at_s = divmod(at_s, self.duration_s)
            return turns * self._bytes_of(self.duration_s) + self._bytes_of(at_s)
        after = max(at_s - self.duration_s, 0.0) if self.end == "hold" else 0.0
        return self._bytes_of(min(at_s, self.duration_s)) + after * self.rates_bytes_per_s[-1]

    def _bytes_of(self, at_s: float) -> float:
        ends = [*self.starts_s[1:], self.duration_s]
        return float(
            sum(
                rate * (min(end, at_s) - start)
                for start, end, rate in zip(
                    self.starts_s, ends, self.rates_bytes_per_s, strict=True
                )
                if start < at_s
            )
        )

    def scaled(self, factor: float) -> Trace:
        """The same trace with every capacity times `factor`."""
        return replace(
            self, rates_bytes_per_s=tuple(rate * factor for rate in self.rates_bytes_per_s)
        )

    def rebinned(self, bin_s: float) -> Trace:
        """Pieces of `bin_s` seconds (the last one may be shorter) that carry the same bytes."""
        if not bin_s > 0:
            raise InputError("a bin above 0 s", where="bin", got=bin_s)
        edges = _edges(self.duration_s, bin_s, "bin")
        bytes_ = np.array([self._bytes_of(edge) for edge in edges])
        rates = np.diff(bytes_) / np.diff(edges)
        return Trace.of(edges[:-1], rates, self.duration_s, self.end)


@dataclass(frozen=True)
class LinkTrace:
    """A trace on a link: the link starts `offset_s` into it."""

    trace: Trace
    offset_s: float = 0.0


def _edges(duration_s: float, bin_s: float, where: str) -> Floats:
    if not duration_s / bin_s <= MOST_PIECES:
        allowed = f"at most {MOST_PIECES:,} pieces of {bin_s:g} s in a trace"
        raise InputError(allowed, where=where, got=f"one of {duration_s:g} s")
    count = max(int(np.ceil(duration_s / bin_s - 1e-9)), 1)
    edges: Floats = np.linspace(0.0, count * bin_s, count + 1)
    edges[-1] = duration_s
    return edges


# ---- readers -----------------------------------------------------------------------------------


def read_mahimahi(path: str | FilePath, end: EndPolicy = "loop", *, bin_s: float = 0.1) -> Trace:
    """A Mahimahi packet-delivery trace: one line per 1500-byte packet, its time in milliseconds.

    Packets are counted in bins of `bin_s`, which keeps their bytes; the trace lasts until its last
    line, where Mahimahi itself begins anew. A time on a bin's edge counts to the bin that ends there.
    """
    times_ms = np.array([_number(line, where) for line, where in _lines(path)])
    _check_order(times_ms, path, strictly=False)
    if times_ms[0] < 0 or times_ms[-1] <= 0:
        raise InputError("times in ms above 0", where=str(path), got=float(times_ms[-1]))
    duration_s = float(times_ms[-1]) / 1e3
    edges = _edges(duration_s, bin_s, str(path))
    # The tolerance keeps 100 ms on the edge 0.1 s whatever 100/1e3 rounds to.
    which = np.clip(np.ceil(times_ms / 1e3 / bin_s - 1e-9).astype(int) - 1, 0, len(edges) - 2)
    packets = np.bincount(which, minlength=len(edges) - 1)
    rates = packets * MAHIMAHI_PACKET_BYTES / np.diff(edges)
    return Trace.of(edges[:-1], rates, duration_s, end, where=str(path))


def read_pensieve(path: str | FilePath, end: EndPolicy = "loop") -> Trace:
    """A "cooked" trace of Pensieve: lines of `time in s` and `Mbit/s`.

    As in Pensieve's simulator, the rate of a line holds until the line's time, from the time of the
    line before; so the first line only says when the trace begins, and its rate is never used.
    """
    rows = [_numbers(line, 2, where) for line, where in _lines(path)]
    times = np.array([row[0] for row in rows])
    _check_order(times, path)
    if len(times) < 2:
        raise InputError("a trace of at least two lines", where=str(path), got=len(times))
    rates = np.array([row[1] for row in rows[1:]]) * 1e6 / 8
    times = times - times[0]
    return Trace.of(times[:-1], rates, float(times[-1]), end, where=str(path))


def read_csv(
    path: str | FilePath,
    end: EndPolicy = "loop",
    *,
    time_column: str | int = 0,
    rate_column: str | int = 1,
    time_unit: str = "s",
    rate_unit: str = "Mbps",
    duration_s: float | None = None,
    rows: Rows | None = None,
) -> Trace:
    """A table with a column of times and one of capacities, in the units that you declare.

    Columns are names of the header line or numbers from 0. The first row is a header if a column
    is asked for by name, or if neither of its two cells is a number. Lines that begin with # are
    comments. A row's capacity holds from its time to the next row's; the last one's until
    `duration_s`, or if that is not given as long as the row before it. Time counts from the first row.
    `rows`: what `read_rows` gave, so that many columns of one file cost one reading.
    """
    second = units.parse_duration(f"1 {time_unit}", where="time_unit")
    byte_per_s = units.parse_rate(f"1 {rate_unit}", where="rate_unit")
    table = list(read_rows(path) if rows is None else rows)
    if not table:
        raise InputError("a trace with at least one line", where=str(path), got="an empty file")
    asked = {"time_column": time_column, "rate_column": rate_column}
    named = any(isinstance(column, str) for column in asked.values())
    header = table.pop(0)[0] if named else []
    columns = [_column(column, header, f"{path}: {key}") for key, column in asked.items()]
    chosen = []
    for row, where in table:
        if len(row) <= max(columns):
            raise InputError(f"at least {max(columns) + 1} columns", where=where, got=len(row))
        chosen.append(([row[k] for k in columns], where))
    if not named and not any(_is_number(cell) for cell in chosen[0][0]):
        del chosen[0]
    if not chosen:
        raise InputError("a trace with at least one row", where=str(path), got="none")
    found = np.array([[_number(cell, where) for cell in cells] for cells, where in chosen])
    times, rates = found[:, 0] * second, found[:, 1] * byte_per_s
    _check_order(times, path)
    times = times - times[0]
    if duration_s is None:
        duration_s = float(times[-1] + (times[-1] - times[-2] if len(times) > 1 else second))
    return Trace.of(times, rates, duration_s, end, where=str(path))


def read_rows(path: str | FilePath) -> Rows:
    """The rows of a CSV file that hold anything, each with its place for errors."""
    return list(_rows(path))


def _rows(path: str | FilePath) -> Iterator[tuple[list[str], str]]:
    import csv
    import io

    reader = csv.reader(io.StringIO(read_text(path), newline=""))
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells) and not cells[0].startswith("#"):
                yield cells, f"{path}: line {reader.line_num}"
    except csv.Error as error:
        where = f"{path}: line {reader.line_num}"
        raise InputError("a row in CSV", where=where, got=str(error)) from None


def _lines(path: str | FilePath) -> Iterator[tuple[str, str]]:
    """The lines of a file that hold anything, each with its place for errors."""
    lines = [(line, f"{path}: line {k + 1}") for k, line in enumerate(read_text(path).splitlines())]
    held = [(line, where) for line, where in lines if line.strip() and line.lstrip()[0] != "#"]
    if not held:
        raise InputError("a trace with at least one line", where=str(path), got="an empty file")
    yield from held


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str, where: str) -> float:
    if not (_is_number(text) and isfinite(float(text))):
        raise InputError("a number", where=where, got=text.strip())
    return float(text)


def _numbers(line: str, count: int, where: str) -> list[float]:
    cells = line.replace(",", " ").split()
    if len(cells) != count:
        raise InputError(f"{count} numbers", where=where, got=line.strip())
    return [_number(cell, where) for cell in cells]


def _check_order(times: Floats, path: str | FilePath, strictly: bool = True) -> None:
    steps = np.diff(times)
    bad = np.flatnonzero(~(steps > 0) if strictly else ~(steps >= 0))
    if bad.size:
        k = int(bad[0])
        allowed = f"a time after {float(times[k])!r}: a trace goes forwards in time"
        raise InputError(allowed, where=f"{path}: entry {k + 2}", got=float(times[k + 1]))


def _column(asked: str | int, header: list[str], where: str) -> int:
    if isinstance(asked, int):
        if asked < 0:
            raise InputError("a column's name, or its number from 0", where=where, got=asked)
        return asked
    if asked not in header:
        allowed = f"a column of the file: {listed(header)}"
        raise InputError(allowed, where=where, got=asked, hint=did_you_mean(asked, header))
    return header.index(asked)


# ---- generators --------------------------------------------------------------------------------


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
    """A link that switches between two capacities after exponentially distributed times.

    Starts in the state that it is in at a random instant (`on` with probability
    mean_on / (mean_on + mean_off)). Where `off` is 0, a trace that would be silent throughout lasts
    until the first `on` is over.
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
    """Log-normal capacities of the given mean and coefficient of variation, one per `step_s`.

    Their logarithms are a stationary AR(1) process: `correlation` is that of neighbouring steps.
    """
    if not 0 <= cv <= 1000:
        raise InputError("a number from 0 to 1000", where="cv", got=cv)
    sigma = sqrt(np.log1p(cv**2))
    edges = _edges(duration_s, step_s, "step")
    shocks = rng.standard_normal(len(edges) - 1)
    level = shocks.copy()
    for k in range(1, len(level)):
        level[k] = correlation * level[k - 1] + sqrt(1 - correlation**2) * shocks[k]
    rates = mean_bytes_per_s * np.exp(sigma * level - sigma**2 / 2)
    return Trace.of(edges[:-1], rates, duration_s, end)
