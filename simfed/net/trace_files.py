"""Files of measured capacities: Mahimahi, Pensieve and CSV.

pandas cuts a file into cells, some rows at a time, and Python's `float` reads them.
So a file costs the eight bytes of each of its numbers, and some hundred MB while it is
read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isfinite
from pathlib import Path as FilePath
from typing import NamedTuple

import numpy as np

from simfed.ground import units
from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError, listed
from simfed.ground.inputs import open_file
from simfed.ground.tables import find_column_hint, find_separator_hint
from simfed.net.traces import EndPolicy, Trace, compute_bin_edges

MAHIMAHI_PACKET_BYTES = 1500
MOST_ROWS = 20_000_000
"""Rows of one trace: they take seconds to read, and 320 MB of memory."""
MOST_FILE_BYTES = 2_000_000_000
_ROWS_AT_ONCE = 200_000
_BLANKS = r"\s+"


def read_mahimahi(
    path: str | FilePath, end: EndPolicy = "loop", *, bin_s: float = 0.1
) -> Trace:
    """Return the trace of a Mahimahi file: one line per 1500-byte packet.

    A line is the packet's time in milliseconds. Packets are counted in bins of `bin_s`,
    which keeps their bytes; the trace lasts until its last line, where Mahimahi itself
    begins anew. A time on a bin's edge counts to the bin that ends there.
    """
    table = _read_lines(path, 1)
    (times_ms,) = table.columns
    _check_order(table, strictly=False)
    if times_ms[0] < 0 or times_ms[-1] <= 0:
        wrong = 0 if times_ms[0] < 0 else len(times_ms) - 1
        raise table.error(wrong, "times in ms above 0")
    duration_s = float(times_ms[-1]) / 1e3
    edges = compute_bin_edges(duration_s, bin_s, str(path))
    packets = np.zeros(len(edges) - 1, dtype=np.int64)
    for part in np.array_split(times_ms, len(times_ms) // 1_000_000 + 1):
        # The tolerance keeps 100 ms on the edge 0.1 s whatever 100/1e3 rounds to.
        which = np.clip(
            np.ceil(part / 1e3 / bin_s - 1e-9).astype(int) - 1, 0, len(packets) - 1
        )
        packets += np.bincount(which, minlength=len(packets))
    rates = packets * MAHIMAHI_PACKET_BYTES / np.diff(edges)
    return Trace.of(edges[:-1], rates, duration_s, end, where=str(path))


def read_pensieve(path: str | FilePath, end: EndPolicy = "loop") -> Trace:
    """Return a "cooked" trace of Pensieve: lines of `time in s` and `Mbit/s`.

    As in Pensieve's simulator, the rate of a line holds until the line's time, from the
    time of the line before; so the first line only says when the trace begins, and its
    rate is never used.
    """
    table = _read_lines(path, 2)
    times, rates = table.columns
    _check_order(table)
    if len(times) < 2:
        raise InputError(
            "a trace of at least two lines", where=str(path), got=len(times)
        )
    rates[0] = 0.0  # whatever it says
    with np.errstate(over="ignore"):
        rates *= 1e6
        rates /= 8
    _check_rates(table)
    rates = rates[1:]
    times -= float(times[0])
    return Trace.of_arrays(times[:-1], rates, float(times[-1]), end, where=str(path))


def read_csv(
    path: str | FilePath,
    end: EndPolicy = "loop",
    *,
    time_column: str | int = 0,
    rate_column: str | int = 1,
    time_unit: str = "s",
    rate_unit: str = "Mbps",
    duration_s: float | None = None,
) -> Trace:
    """Return the trace of a table with a column of times and one of capacities.

    Their units are declared. Columns are names of the header line or numbers from 0.
    The first row is a header if a column is asked for by name, or if neither of its two
    cells is a number. What follows a # is a comment. A row's capacity holds from its
    time to the next row's; the last one's until `duration_s`, or if that is not given
    as long as the row before it. Time counts from the first row.

    Raises: `InputError` that names the line, also beyond 20,000,000 rows, or 2 GB.
    """
    second = units.parse_duration(f"1 {time_unit}", where="time_unit")
    byte_per_s = units.parse_rate(f"1 {rate_unit}", where="rate_unit")
    asked = {"time_column": time_column, "rate_column": rate_column}

    def choose(first: Sequence[str]) -> tuple[list[int], int]:
        named = any(isinstance(column, str) for column in asked.values())
        header = [*first] if named else []
        places = [
            _find_column(column, header, f"{path}: {key}")
            for key, column in asked.items()
        ]
        if max(places) >= len(first):
            allowed = f"at least {max(places) + 1} columns"
            hint = find_separator_hint(first)
            raise InputError(allowed, where=str(path), got=len(first), hint=hint)
        return places, int(named or not any(_is_number(first[k]) for k in places))

    table = _read_table(path, ",", choose)
    times, rates = table.columns
    # what is too large for a number is infinite, and refused
    with np.errstate(over="ignore"):
        times *= second
        rates *= byte_per_s
        _check_order(table)
        _check_rates(table)
        times -= float(times[0])
        if duration_s is None:
            duration_s = float(
                times[-1] + (times[-1] - times[-2] if len(times) > 1 else second)
            )
        elif duration_s <= times[-1]:
            allowed = (
                f"a last time before the trace's end, {duration_s:g} s after its first"
            )
            raise table.error(len(times) - 1, allowed)
    return Trace.of_arrays(times, rates, duration_s, end, where=str(path))


# ---- columns of numbers --------------------------------------------------------------


class _Table(NamedTuple):
    """The columns of numbers of a file."""

    path: str | FilePath
    header: int
    """Rows before the first of numbers."""
    columns: Sequence[Floats]

    def error(self, row: int, allowed: str, problem: str = "") -> InputError:
        """Return the error about a row, which names its line.

        The file is read once more, as nobody keeps lines for an error that seldom
        comes. `problem`: in place of the line that it got.
        """
        with open_file(self.path, MOST_FILE_BYTES) as file:
            lines = [
                line.strip() for line in file.read().decode("utf-8-sig").splitlines()
            ]
        filled = [n for n, line in enumerate(lines) if line and line[0] != "#"]
        number = filled[row + self.header]
        where, got = f"{self.path}: line {number + 1}", lines[number]
        if problem:
            problem = f"{problem} in {got!r}"
            return InputError(allowed, where=where, problem=problem)
        return InputError(allowed, where=where, got=got)


def _read_table(
    path: str | FilePath,
    separator: str,
    choose: Callable[[Sequence[str]], tuple[list[int], int]],
) -> _Table:
    """Return some columns of a file of rows of cells.

    `choose`: cells of its first row → the places of the columns, and how many of
    them are headers.
    """
    import pandas

    chosen: list[int] = []
    header, rows, parts = 0, 0, list[list[Floats]]()
    try:
        with open_file(path, MOST_FILE_BYTES) as file:
            for frame in pandas.read_csv(
                file,
                sep=separator,
                header=None,
                comment="#",
                dtype=str,
                keep_default_na=False,
                skipinitialspace=True,
                encoding="utf-8-sig",
                chunksize=_ROWS_AT_ONCE,
            ):
                if not chosen:
                    chosen, header = choose(frame.iloc[0].tolist())
                    frame = frame.iloc[header:]
                cells = frame[chosen].to_numpy(object)
                try:
                    numbers = cells.astype(np.float64)
                except ValueError:
                    numbers = np.where(np.vectorize(_is_number, [bool])(cells), 0, inf)
                bad = ~np.isfinite(numbers).all(axis=1)
                if bad.any():
                    row = rows + int(np.argmax(bad))
                    raise _Table(path, header, ()).error(row, "numbers")
                rows += len(numbers)
                if rows > MOST_ROWS:
                    allowed = f"a trace of at most {MOST_ROWS:,} lines"
                    raise InputError(allowed, where=str(path), got="more")
                parts.append([*numbers.T])
    except InputError:
        raise
    except pandas.errors.EmptyDataError:
        pass
    except ValueError as error:  # of pandas, or of bytes that are no text
        reason = str(error).strip().splitlines()[0]
        problem = f"cannot be read: {reason}"
        raise InputError("rows of numbers", where=str(path), problem=problem) from None
    if not rows:
        allowed = "a trace with at least one line"
        raise InputError(allowed, where=str(path), problem="it has no row")
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return _Table(path, header, columns)


def _read_lines(path: str | FilePath, count: int) -> _Table:
    """Return the `count` columns of a file with that many numbers in each line."""

    def choose(first: Sequence[str]) -> tuple[list[int], int]:
        if len(first) != count:
            allowed, got = f"lines of {count} numbers", " ".join(first)
            raise InputError(allowed, where=str(path), got=got)
        return [*range(count)], 0

    return _read_table(path, _BLANKS, choose)


def _is_number(text: object) -> bool:
    try:
        return isfinite(float(str(text)))
    except ValueError:
        return False


def _check_order(table: _Table, strictly: bool = True) -> None:
    times = table.columns[0]
    finite = np.isfinite(times)
    if not finite.all():
        allowed = "a time that is a number of seconds"
        raise table.error(int(np.argmin(finite)), allowed)
    good = times[1:] > times[:-1] if strictly else times[1:] >= times[:-1]
    if not good.all():
        allowed = "a time after that of the line before: a trace goes forwards in time"
        raise table.error(int(np.argmin(good)) + 1, allowed)


def _check_rates(table: _Table) -> None:
    rates = table.columns[1]
    good = (rates >= 0) & (rates < inf)
    if not good.all():
        allowed = "a capacity of at least 0, and finite"
        raise table.error(int(np.argmin(good)), allowed)
    if not rates.any():
        allowed = "a trace with some capacity above 0"
        raise table.error(len(rates) - 1, allowed, "every capacity is 0, to the last")


def _find_column(asked: str | int, header: list[str], where: str) -> int:
    if isinstance(asked, int):
        if asked < 0:
            raise InputError(
                "a column's name, or its number from 0", where=where, got=asked
            )
        return asked
    if header.count(asked) != 1:
        allowed = f"a column of the file: {listed(header)}"
        hint = find_column_hint(asked, header)
        raise InputError(allowed, where=where, got=asked, hint=hint)
    return header.index(asked)
