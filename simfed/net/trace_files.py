"""Files of measured capacities: Mahimahi, Pensieve and CSV.

Python reads them line by line, and says what is wrong with a line. What follows the
first row is given to pyarrow, which is many times as fast, if it is plain numbers in
columns to the end; both give the same numbers, bit for bit. So a file costs the eight
bytes of each of its numbers, and a few MB.
"""

from __future__ import annotations

import codecs
import csv
import io
from array import array
from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite, nan
from pathlib import Path as FilePath
from typing import BinaryIO

import numpy as np

from simfed.ground import units
from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError, listed
from simfed.ground.inputs import named_in_errors, open_file
from simfed.ground.tables import find_column_hint, find_separator_hint
from simfed.net.traces import EndPolicy, Trace, compute_bin_edges

MAHIMAHI_PACKET_BYTES = 1500
MOST_ROWS = 20_000_000
"""Rows of one trace: they take seconds to read, and 320 MB of memory."""
MOST_FILE_BYTES = 2_000_000_000
MOST_LINE_BYTES = 1_000_000


def read_mahimahi(
    path: str | FilePath, end: EndPolicy = "loop", *, bin_s: float = 0.1
) -> Trace:
    """Return the trace of a Mahimahi file: one line per 1500-byte packet.

    A line is the packet's time in milliseconds. Packets are counted in bins of `bin_s`,
    which keeps their bytes; the trace lasts until its last line, where Mahimahi itself
    begins anew. A time on a bin's edge counts to the bin that ends there.
    """
    (times_ms,) = _read_lines(path, 1)
    _check_order(times_ms, path, strictly=False)
    if times_ms[0] < 0 or times_ms[-1] <= 0:
        wrong = 0 if times_ms[0] < 0 else len(times_ms) - 1
        where, written = _find_entry(path, wrong, len(times_ms))
        raise InputError("times in ms above 0", where=where, got=written)
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
    times, rates = _read_lines(path, 2)
    _check_order(times, path)
    if len(times) < 2:
        raise InputError(
            "a trace of at least two lines", where=str(path), got=len(times)
        )
    rates[0] = 0.0  # whatever it says
    with np.errstate(over="ignore"):
        rates *= 1e6
        rates /= 8
    _check_rates(rates, path)
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
    cells is a number. Lines that begin with # are comments. A row's capacity holds from
    its time to the next row's; the last one's until `duration_s`, or if that is not
    given as long as the row before it. Time counts from the first row.

    Raises: `InputError` that names the line, also beyond 20,000,000 rows, 2 GB, or 1 MB
    in a line.
    """
    second = units.parse_duration(f"1 {time_unit}", where="time_unit")
    byte_per_s = units.parse_rate(f"1 {rate_unit}", where="rate_unit")
    asked = {"time_column": time_column, "rate_column": rate_column}
    times, rates = _read_table(path, asked)
    # what is too large for a number is infinite, and refused
    with np.errstate(over="ignore"):
        times *= second
        rates *= byte_per_s
        _check_order(times, path)
        _check_rates(rates, path)
        times -= float(times[0])
        if duration_s is None:
            duration_s = float(
                times[-1] + (times[-1] - times[-2] if len(times) > 1 else second)
            )
        elif duration_s <= times[-1]:
            where, written = _find_entry(path, len(times) - 1, len(times))
            allowed = (
                f"a last time before the trace's end, {duration_s:g} s after its first"
            )
            raise InputError(allowed, where=where, got=written)
    return Trace.of_arrays(times, rates, duration_s, end, where=str(path))


# ---- columns of numbers --------------------------------------------------------------


class _Lines(Iterator[str]):
    """The lines of a file as text, however they end, without a byte order mark."""

    def __init__(self, file: BinaryIO, path: str | FilePath) -> None:
        self.file, self.path = file, path
        self.number = 0
        """The number of the line that came last, from 1."""
        self.pending: list[str] = []

    def __next__(self) -> str:
        if not self.pending:
            line = self.file.readline(MOST_LINE_BYTES + 1)
            if not line:
                raise StopIteration
            if len(line) > MOST_LINE_BYTES:
                allowed = f"lines of at most {MOST_LINE_BYTES:,} bytes"
                raise InputError(allowed, where=str(self.path), got="a longer one")
            if not self.number:
                line = line.removeprefix(codecs.BOM_UTF8)
            with named_in_errors(self.path):
                self.pending = [*io.StringIO(line.decode(), newline=None)] or [""]
        self.number += 1
        return self.pending.pop(0)

    @property
    def where(self) -> str:
        """The place of the line that came last, as errors name it."""
        return f"{self.path}: line {self.number}"


class _Columns:
    """Columns of numbers that grow, of rows that are all full."""

    def __init__(self, count: int, lines: _Lines) -> None:
        self.lines = lines
        self._columns = [array("d") for _ in range(count)]

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, row: Sequence[float]) -> None:
        """Append a row, one number to each column.

        Raises: `InputError` if there are too many.
        """
        for column, number in zip(self._columns, row, strict=True):
            column.append(number)
        self._check()

    def add_rest(self, chosen: Sequence[int], width: int, delimiter: str) -> bool:
        """Add the rest of the file if it is columns of plain numbers, else nothing.

        They have this width, with a finite number in each cell of the chosen ones.
        """
        from pyarrow import ArrowException, csv

        file, before = self.lines.file, len(self)
        # a line's first cell may make it a comment
        if self.lines.pending or 0 not in chosen:
            return False
        begun, names = file.tell(), [f"f{k}" for k in chosen]
        try:
            reader = csv.open_csv(
                _PlainBytes(file),
                # threads of older versions may wait for each other for ever
                csv.ReadOptions(autogenerate_column_names=True, use_threads=False),
                csv.ParseOptions(delimiter=delimiter, quote_char=False),
                csv.ConvertOptions(
                    column_types=dict.fromkeys(names, "float64"), null_values=[]
                ),
            )
            if len(reader.schema) != width:
                raise _NotPlain
            for batch in reader:
                for column, name in zip(self._columns, names, strict=True):
                    numbers = batch.column(name).to_numpy()
                    if not np.isfinite(numbers).all():
                        raise _NotPlain
                    column.frombytes(numbers.data.cast("B"))
                self._check()
        except (ArrowException, _NotPlain):
            file.seek(begun)
            for column in self._columns:
                del column[before:]
            return False
        return True

    def _check(self) -> None:
        if len(self) > MOST_ROWS:
            allowed = f"a trace of at most {MOST_ROWS:,} lines"
            raise InputError(allowed, where=str(self.lines.path), got="more")

    def arrays(self) -> list[Floats]:
        """Return the columns, in the same memory: no row can be added from now on."""
        return [np.frombuffer(column, dtype=np.float64) for column in self._columns]


class _NotPlain(Exception):
    """Signals that the rest of a file is not only numbers."""


class _PlainBytes:
    """A file that nobody closes, without quotes, comments or foreign letters."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        if not data.isascii() or b'"' in data or b"#" in data:
            raise _NotPlain
        return data

    def close(self) -> None:
        """Leave it open."""


def _read_lines(path: str | FilePath, count: int) -> list[Floats]:
    """Return the `count` columns of a file with that many numbers in each line."""
    with open_file(path, MOST_FILE_BYTES) as file:
        lines = _Lines(file, path)
        columns = _Columns(count, lines)
        for line in lines:
            if not line.strip() or line.lstrip()[0] == "#":
                continue
            columns.add(_parse_numbers(line, count, lines.where))
            delimiter = next((x for x in "\t," if x in line), " ")
            if len(columns) == 1 and columns.add_rest(range(count), count, delimiter):
                break
    if not len(columns):
        allowed = "a trace with at least one line"
        raise InputError(allowed, where=str(path), problem="the file is empty")
    return columns.arrays()


def _read_table(path: str | FilePath, asked: Mapping[str, str | int]) -> list[Floats]:
    """Return the columns of a CSV file that are asked for, by the keys that ask."""
    chosen: list[int] = []
    width = 0
    with open_file(path, MOST_FILE_BYTES) as file:
        lines = _Lines(file, path)
        columns = _Columns(len(asked), lines)
        try:
            for row in csv.reader(lines):
                cells = [cell.strip() for cell in row]
                if not any(cells) or cells[0].startswith("#"):
                    continue
                first, header = not chosen, False
                if first:
                    width = len(cells)
                    header = any(isinstance(x, str) for x in asked.values())
                    names = cells if header else []
                    chosen = [
                        _find_column(x, names, (f"{path}: {k}"))
                        for k, x in asked.items()
                    ]
                if not header:
                    numbers = _choose_cells(cells, chosen, width, lines.where)
                    if not first or any(map(_is_number, numbers)):
                        columns.add(
                            [_parse_number(cell, lines.where) for cell in numbers]
                        )
                if first and columns.add_rest(chosen, width, ","):
                    break
        except csv.Error as error:
            raise InputError(
                "a row in CSV", where=lines.where, got=str(error)
            ) from None
    if not len(columns):
        allowed = f"a trace with at least one {'row' if chosen else 'line'}"
        empty = {"problem": "it has no row"} if chosen else {"got": "an empty file"}
        raise InputError(allowed, where=str(path), **empty)
    return columns.arrays()


def _choose_cells(
    cells: list[str], chosen: list[int], width: int, where: str
) -> list[str]:
    """Return the chosen cells of a row.

    Raises: `InputError` where it has too few or too many.
    """
    if len(cells) <= max(chosen):
        allowed, hint = (
            f"at least {max(chosen) + 1} columns",
            find_separator_hint(cells),
        )
        raise InputError(allowed, where=where, got=len(cells), hint=hint)
    if any(cells[width:]):  # a decimal comma, say
        allowed = f"{width} columns, as the first row has"
        raise InputError(allowed, where=where, got=len(cells))
    return [cells[k] for k in chosen]


# ---- numbers -------------------------------------------------------------------------


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parse_number(text: str, where: str) -> float:
    number = float(text) if _is_number(text) else nan
    if not isfinite(number):
        hint = find_separator_hint([text])
        raise InputError("a number", where=where, got=text.strip(), hint=hint)
    return number


def _parse_numbers(line: str, count: int, where: str) -> list[float]:
    if count == 1:
        return [_parse_number(line, where)]
    cells = line.replace(",", " ").split()
    if len(cells) != count:
        raise InputError(f"{count} numbers", where=where, got=line.strip())
    return [_parse_number(cell, where) for cell in cells]


def _check_order(times: Floats, path: str | FilePath, strictly: bool = True) -> None:
    if not np.isfinite(times).all():
        where, written = _find_entry(
            path, int(np.argmin(np.isfinite(times))), len(times)
        )
        raise InputError("a time that is a number of seconds", where=where, got=written)
    good = times[1:] > times[:-1] if strictly else times[1:] >= times[:-1]
    if not good.all():
        k = int(np.argmin(good))
        where, written = _find_entry(path, k + 1, len(times))
        before = _find_entry(path, k, len(times))[1]
        allowed = f"a time after that of {before!r}: a trace goes forwards in time"
        raise InputError(allowed, where=where, got=written)


def _check_rates(rates: Floats, path: str | FilePath) -> None:
    good = (rates >= 0) & (rates < inf)
    if not good.all():
        where, written = _find_entry(path, int(np.argmin(good)), len(rates))
        raise InputError(
            "a capacity of at least 0, and finite", where=where, got=written
        )
    if not rates.any():
        where, written = _find_entry(path, len(rates) - 1, len(rates))
        problem = f"every capacity is 0, to the last in {written!r}"
        allowed = "a trace with some capacity above 0"
        raise InputError(allowed, where=where, problem=problem)


def _find_entry(path: str | FilePath, entry: int, count: int) -> tuple[str, str]:
    """Return the place of an entry of the `count` that were read, and its line.

    The file is read once more, as nobody keeps lines for an error that seldom comes.
    """
    with open_file(path, MOST_FILE_BYTES) as file:
        lines = enumerate(_Lines(file, path), 1)
        filled = [
            (n, line) for n, line in lines if line.strip() and line.lstrip()[0] != "#"
        ]
    header = len(filled) - count
    if header not in (0, 1):  # cells of several lines
        return f"{path}: entry {entry + 1}", "another order"
    number, line = filled[header + entry]
    return f"{path}: line {number}", line.strip()


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
