"""Files of measured capacities: Mahimahi, Pensieve, and tables of any layout."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from simfed.ground import units
from simfed.ground.arrays import Floats, Integers
from simfed.ground.csv_files import (
    MOST_TABLE_BYTES,
    CsvColumn,
    CsvTable,
    read_rows,
)
from simfed.ground.errors import InputError
from simfed.ground.inputs import named_in_errors, open_file
from simfed.ground.tables import find_column
from simfed.net.traces import EndPolicy, Trace, compute_bin_edges

if TYPE_CHECKING:
    import pyarrow

Separator: TypeAlias = Literal["comma", "semicolon", "tab", "blanks"]
MAHIMAHI_PACKET_BYTES = 1500
MOST_ROWS = 20_000_000
"""Rows of one trace: they take seconds to read, and 320 MB of memory."""
_MARKS = {"comma": ",", "semicolon": ";", "tab": "\t", "blanks": " "}
_ISO = "2019-12-14T08:16:31+01:00"
_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{8}T")
_DAY_OR_MONTH = re.compile(r"\d{1,2}\D\d{1,2}\D")


def list_traces(source: str | Sequence[str]) -> tuple[str, ...]:
    """Return the files that a trace's `file` names: one, a list, or a folder's.

    A folder's files are in the order of their names, without hidden ones and without
    those of folders in it.

    Raises: `InputError` for a folder without any.
    """
    if not isinstance(source, str):
        return tuple(source)
    with named_in_errors(source):
        if not FilePath(source).is_dir():
            return (source,)
        inside = sorted(FilePath(source).iterdir())
    files = [str(f) for f in inside if f.is_file() and not f.name.startswith(".")]
    if not files:
        problem = "there is no file in this folder"
        raise InputError("a folder of traces", where=source, problem=problem)
    return tuple(files)


def read_mahimahi(
    path: str | FilePath, end: EndPolicy = "loop", *, bin_s: float = 0.1
) -> Trace:
    """Return the trace of a Mahimahi file: one line per 1500-byte packet.

    A line is the packet's time in milliseconds. Packets are counted in bins, which
    keeps their bytes; the trace lasts until its last line, where Mahimahi itself begins
    anew. A time on a bin's edge counts to the bin that ends there.

    Args:
        path: the file.
        end: what follows the trace, see `Trace.of`.
        bin_s: the length of a bin, seconds.

    Raises:
        InputError: with the line: no number, times that go back, or none above 0.
    """
    table = _read_lines(path, 1)
    (times_ms,) = table.values
    _check_order(table, strictly=False)
    if times_ms[0] < 0 or times_ms[-1] <= 0:
        wrong = 0 if times_ms[0] < 0 else len(times_ms) - 1
        raise table.refuse(wrong, "times in ms above 0")
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

    Args:
        path: the file.
        end: what follows the trace, see `Trace.of`.

    Raises:
        InputError: with the line: no numbers, times that do not increase, or fewer than
            two lines.
    """
    table = _read_lines(path, 2)
    times, rates = table.values
    _check_order(table)
    if len(times) < 2:
        raise InputError(
            "a trace of at least two lines", where=str(path), got=len(times)
        )
    rates[0] = 0.0  # whatever it says
    with np.errstate(over="ignore"):
        rates *= 1e6
        rates /= 8
    _check_values(table, rates, "capacity")
    rates = rates[1:]
    times -= float(times[0])
    return Trace.of(times[:-1], rates, float(times[-1]), end, where=str(path))


@np.errstate(over="ignore")  # what is too large is infinite, and refused
def read_csv(
    path: str | FilePath,
    end: EndPolicy = "loop",
    *,
    time_column: str | int = 0,
    rate_column: str | int = 1,
    elapsed_column: str | int | None = None,
    bytes_column: str | int | None = None,
    latency_column: str | int | None = None,
    time_unit: str = "s",
    rate_unit: str = "Mbps",
    latency_unit: str = "ms",
    separator: Separator = "comma",
    until_s: float | None = None,
) -> Trace:
    r"""Return the trace of a table with a column of times and one of capacities.

    Columns are names of the header line or numbers from 0. The first row is a header if
    a column is asked for by name, or if neither of its two cells is a number. What
    follows a # is a comment.

    Args:
        path: the file, UTF-8.
        end: what follows the trace.
        time_column: when a row's capacity begins to hold, until the next row's time.
            Time counts from the first row. Rows of one time share the shortest step
            between two times evenly, in their order; over times that are missing the
            last row goes on.
        rate_column: capacities.
        elapsed_column: in place of `time_column`, how long each row lasts, above 0: one
            follows the other, from 0.
        bytes_column: in place of `rate_column`, bytes that moved in `elapsed_column`,
            or since the time before: then the first time only says when the trace
            begins, and rows of one time are added up.
        latency_column: in place of `rate_column`, delays, of which the trace then is
            one in seconds.
        time_unit: `s`, `ms`, …; `date` for dates with the year first or the month's
            name; or a pattern of dates such as `%d/%m/%Y %H:%M:%S`. One without a zone
            is UTC.
        rate_unit: `Mbps`, `kB/s`, …
        latency_unit: `ms`, `s`, …
        separator: what is between cells; blanks: any number of them, or tabs.
        until_s: when the last row's capacity ends, by default after as long as that of
            the time before it (one unit of time if there is none).

    Raises:
        InputError: it names line and column, also beyond 20,000,000 rows, or 2 GB.

    >>> from tempfile import NamedTemporaryFile
    >>> with NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write("at,mbps\n2019-12-14,8\n2019-12-15,16\n")
    ...     file.flush()
    ...     read_csv(file.name, time_unit="date").mean_bytes_per_s
    1500000.0
    """
    dated = time_unit == "date" or "%" in time_unit
    lasting = elapsed_column is not None
    if dated and lasting:
        raise InputError("s, ms or another unit", where="time_unit", got=time_unit)
    if until_s is not None and (lasting or bytes_column is not None):
        allowed = "no end beside elapsed_column or bytes_column: rows tell it"
        raise InputError(allowed, where="until", got=until_s)
    second = 1.0 if dated else units.parse_duration(f"1 {time_unit}", where="time_unit")
    kind, noun, factor = "bytes_column", "amount", 1.0
    if latency_column is not None:
        kind, noun = "latency_column", "latency"
        factor = units.parse_duration(f"1 {latency_unit}", where="unit")
    elif bytes_column is None:
        kind, noun = "rate_column", "capacity"
        factor = units.parse_rate(f"1 {rate_unit}", where="rate_unit")
    times_by = "elapsed_column" if lasting else "time_column"
    columns = {
        "time_column": time_column,
        "elapsed_column": elapsed_column,
        "rate_column": rate_column,
        "bytes_column": bytes_column,
        "latency_column": latency_column,
    }
    asked = {key: columns[key] for key in (times_by, kind)}
    table = _read_table(
        path, separator, _choose(asked, str(path)), time_unit if dated else ""
    )
    times, values = table.values
    if dated:
        times -= float(times[0])
        times /= 1e6
    times *= second
    values *= factor
    if lasting:
        good = (times > 0) & (times < inf)
        if not good.all():
            allowed = "a length of a row above 0, and finite"
            raise table.refuse(int(np.argmin(good)), allowed)
        starts = np.concatenate([[0.0], np.cumsum(times)])
        rates = values if bytes_column is None else values / times
        _check_values(table, rates, noun)
        return Trace.of(starts[:-1], rates, float(starts[-1]), end, where=str(path))
    _check_order(table, strictly=False)
    _check_values(table, values, noun)
    times -= float(times[0])
    first = np.flatnonzero(np.diff(times, prepend=-1.0) > 0)
    distinct = times[first]
    if bytes_column is not None:
        if len(distinct) < 2:
            allowed = "bytes at two times at least: those of the first are not used"
            raise table.refuse(len(times) - 1, allowed)
        rates = np.add.reduceat(values, first)[1:] / np.diff(distinct)
        return Trace.of(distinct[:-1], rates, float(distinct[-1]), end, where=str(path))
    _share_times(times, first, second)
    if until_s is None:
        length = distinct[-1] - distinct[-2] if len(distinct) > 1 else second
        until_s = float(distinct[-1] + length)
    elif until_s <= times[-1]:
        allowed = f"a last time before the trace's end, {until_s:g} s after its first"
        raise table.refuse(len(times) - 1, allowed)
    return Trace.of(times, values, until_s, end, where=str(path))


def _share_times(times: Floats, first: Integers, second: float) -> None:
    """Move rows of one time apart, evenly over the shortest step between two times.

    `first`: the first row of each time. Clocks of whole seconds stamp several rows
    alike, and the shortest step is the clock's.
    """
    if len(first) == len(times):
        return
    rows = np.diff(first, append=len(times))
    step = np.diff(times[first]).min() if len(first) > 1 else second
    place = np.arange(len(times)) - np.repeat(first, rows)
    times += place * (step / np.repeat(rows, rows))


def _choose(
    asked: Mapping[str, str | int | None], path: str
) -> Callable[[Sequence[str]], tuple[list[CsvColumn], bool]]:
    """Return the choice of columns by name or number, as `_read_table` asks for it."""

    def choose(first: Sequence[str]) -> tuple[list[CsvColumn], bool]:
        named = any(isinstance(column, str) for column in asked.values())
        header = [*first] if named else []
        places = [
            _find_column(column, header, f"{path}: {key}")
            for key, column in asked.items()
        ]
        if places[0] == places[1]:
            time, key = asked
            allowed = f"another column than {time}"
            raise InputError(allowed, where=f"{path}: {key}", got=asked[key])
        if max(places) >= len(first):
            allowed = f"at least {max(places) + 1} columns"
            hint = _find_separator_hint(first)
            raise InputError(allowed, where=path, got=len(first), hint=hint)
        titled = named or not any(_holds_number(first[place]) for place in places)
        names = (first[at][:40] if titled else str(at) for at in places)
        return [*map(CsvColumn, places, names)], titled

    return choose


# ---- columns of numbers --------------------------------------------------------------


def _read_dates(form: str, cells: pyarrow.Array) -> Floats:
    """Return the microseconds since 1970 of dates in a form, as pandas calls it.

    Raises: `ValueError` for a cell that is none, `OverflowError` for one that is none
    of this calendar.
    """
    import pandas

    texts = [cell.strip() for cell in cells.to_pylist()]
    # pandas takes the word `now` for a date, too
    if not all(any(map(str.isdigit, text)) for text in texts):
        raise ValueError
    dates = pandas.to_datetime(texts, format=form, utc=True)
    days = dates.tz_localize(None).to_numpy().astype("datetime64[us]")
    micros: Floats = days.astype(np.int64).astype(np.float64)
    return micros


def _read_table(
    path: str | FilePath,
    separator: Separator,
    choose: Callable[[Sequence[str]], tuple[list[CsvColumn], bool]],
    time_unit: str = "",
) -> CsvTable:
    """Return some columns of a file of rows of cells.

    `choose`: cells of its first row → the columns, and whether the row is a header.
    `time_unit`: how dates are written in the first of them; empty: it holds numbers.
    """
    mark = _MARKS[separator]
    with open_file(path, MOST_TABLE_BYTES) as file:
        rows = read_rows(file, path, mark)
        line, cells = next(rows, (0, []))
        columns, header = choose(cells) if cells else ([], False)
        width, skipped = len(cells), line if header else 0
        if header:
            line, cells = next(rows, (0, []))
    if not cells:
        allowed = "a trace with at least one line"
        raise InputError(allowed, where=str(path), problem="it has no row")
    if time_unit:
        column = columns[0]
        form = _find_date_form(time_unit, cells[column.place : column.place + 1])
        if form is None:
            allowed = f"a date with the year first or the month's name, such as {_ISO}"
            hint = "time_unit may be a pattern: '%d/%m/%Y %H:%M:%S'"
            raise column.refuse(path, line, cells, allowed).changed(hint=hint)
        allowed = f"such as {_ISO}" if form == "ISO8601" else f"as {form}"
        columns[0] = replace(
            column, allowed=f"a date {allowed}", read=partial(_read_dates, form)
        )
    try:
        return CsvTable(path, columns, width, skipped, mark, MOST_ROWS)
    except InputError as error:
        if time_unit or not _DATE.match(str(error.got)):
            raise
        raise error.changed(hint="time_unit: date reads dates") from None


def _read_lines(path: str | FilePath, width: int) -> CsvTable:
    """Return the `width` columns of a file with that many numbers in each line."""

    def choose(first: Sequence[str]) -> tuple[list[CsvColumn], bool]:
        if len(first) != width:
            allowed, got = f"lines of {width} numbers", " ".join(first)
            raise InputError(allowed, where=str(path), got=got)
        return [CsvColumn(k, str(k) if width > 1 else "") for k in range(width)], False

    return _read_table(path, "blanks", choose)


def _holds_number(cell: str) -> bool:
    """Return whether a cell is a number, or the date of a row of them."""
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return bool(_DATE.match(cell))


def _find_date_form(unit: str, cells: Sequence[str]) -> str | None:
    """Return the form of a column of dates, by its first cell if there is one.

    None where that could be a day of several months, or is no date.
    """
    if unit != "date":
        return unit
    from pandas.tseries.api import guess_datetime_format

    date = "".join(cells)
    if _DATE.match(date):
        return "ISO8601"
    if _DAY_OR_MONTH.match(date):  # pandas takes 03/04 for the fourth of March
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        form: str | None = guess_datetime_format(date)
    return form


def _find_separator_hint(cells: Sequence[str]) -> str | None:
    """Return a guess at the separator of a row that seems to be one cell."""
    if len(cells) > 1:
        return None
    marks = (name for name, mark in _MARKS.items() if mark in cells[0])
    separator = next(marks, None)
    return separator and f"separator: {separator}"


def _check_order(table: CsvTable, strictly: bool = True) -> None:
    """Refuse times of the first column that are not finite, or go back.

    `strictly`: nor may two be the same.
    """
    times = table.values[0]
    finite = np.isfinite(times)
    if not finite.all():
        allowed = "a time that is a number of seconds"
        raise table.refuse(int(np.argmin(finite)), allowed)
    good = times[1:] > times[:-1] if strictly else times[1:] >= times[:-1]
    if not good.all():
        allowed = "a time after that of the line before: a trace goes forwards in time"
        raise table.refuse(int(np.argmin(good)) + 1, allowed)


def _check_values(table: CsvTable, values: Floats, noun: str) -> None:
    """Refuse values of the second column that no link has; `noun`: what they are."""
    good = (values >= 0) & (values < inf)
    if not good.all():
        allowed = f"a{'n' * (noun == 'amount')} {noun} of at least 0, and finite"
        raise table.refuse(int(np.argmin(good)), allowed, column=1)
    if not values.any():
        kind = "latency" if noun == "latency" else "capacity"
        allowed = f"a trace with some {kind} above 0"
        problem = f"every {noun} is 0, to the last"
        raise table.refuse(len(values) - 1, allowed, problem, column=1)


def _find_column(asked: str | int | None, header: list[str], where: str) -> int:
    """Return the number of a column that is asked for by name or number."""
    if isinstance(asked, str):
        return find_column(asked, header, where, _find_separator_hint(header))
    if asked is None or asked < 0:
        allowed = "a column's name, or its number from 0"
        raise InputError(allowed, where=where, got=asked)
    return asked
