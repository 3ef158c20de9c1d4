"""Files of measured capacities, read in blocks: Mahimahi, Pensieve and CSV.

pyarrow parses the blocks that are plain numbers in columns. A block with anything else in it
(comments, quotes, empty cells, what is no number) is read line by line in Python, which decides
what it means and what is wrong with it; both give the same numbers, bit for bit. So a file costs
the eight bytes of each of its numbers, and a few MB.
"""

from __future__ import annotations

import codecs
import csv
import io
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf, isfinite, nan
from pathlib import Path as FilePath

import numpy as np

from simfed.ground import units
from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError, did_you_mean, listed
from simfed.ground.inputs import named_in_errors, open_file
from simfed.net.traces import EndPolicy, Trace, compute_bin_edges

MAHIMAHI_PACKET_BYTES = 1500
MOST_ROWS = 20_000_000
"""Rows of one trace: they take seconds to read, and 320 MB of memory."""
MOST_FILE_BYTES = 2_000_000_000
MOST_LINE_BYTES = 1_000_000

FIRST_BLOCK_BYTES = 1 << 16
"""Small, because it often begins with a header or comments, which cost time."""
BLOCK_BYTES = 1 << 22


def read_mahimahi(path: str | FilePath, end: EndPolicy = "loop", *, bin_s: float = 0.1) -> Trace:
    """A Mahimahi packet-delivery trace: one line per 1500-byte packet, its time in milliseconds.

    Packets are counted in bins of `bin_s`, which keeps their bytes; the trace lasts until its last
    line, where Mahimahi itself begins anew. A time on a bin's edge counts to the bin that ends
    there.
    """
    (times_ms,) = _read_lines(path, 1, lambda line, where: [_parse_number(line, where)])
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
        which = np.clip(np.ceil(part / 1e3 / bin_s - 1e-9).astype(int) - 1, 0, len(packets) - 1)
        packets += np.bincount(which, minlength=len(packets))
    rates = packets * MAHIMAHI_PACKET_BYTES / np.diff(edges)
    return Trace.of(edges[:-1], rates, duration_s, end, where=str(path))


def read_pensieve(path: str | FilePath, end: EndPolicy = "loop") -> Trace:
    """A "cooked" trace of Pensieve: lines of `time in s` and `Mbit/s`.

    As in Pensieve's simulator, the rate of a line holds until the line's time, from the time of the
    line before; so the first line only says when the trace begins, and its rate is never used.
    """
    times, rates = _read_lines(path, 2, lambda line, where: _parse_numbers(line, 2, where))
    _check_order(times, path)
    rates[0] = 0.0  # whatever it says
    with np.errstate(over="ignore"):
        rates *= 1e6
        rates /= 8
    _check_rates(rates, path)
    if len(times) < 2:
        raise InputError("a trace of at least two lines", where=str(path), got=len(times))
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
    """A table with a column of times and one of capacities, in the units that you declare.

    Columns are names of the header line or numbers from 0. The first row is a header if a column
    is asked for by name, or if neither of its two cells is a number. Lines that begin with # are
    comments. A row's capacity holds from its time to the next row's; the last one's until
    `duration_s`, or if that is not given as long as the row before it. Time counts from the first
    row.

    Raises: `InputError` that names the line, also beyond 20,000,000 rows, 2 GB, or 1 MB in a line.
    """
    second = units.parse_duration(f"1 {time_unit}", where="time_unit")
    byte_per_s = units.parse_rate(f"1 {rate_unit}", where="rate_unit")
    asked = {"time_column": time_column, "rate_column": rate_column}
    times, rates = _Table(path, asked).read()
    with np.errstate(over="ignore"):  # what is too large for a number is infinite, and refused
        times *= second
        rates *= byte_per_s
        _check_order(times, path)
        _check_rates(rates, path)
        times -= float(times[0])
        if duration_s is None:
            duration_s = float(times[-1] + (times[-1] - times[-2] if len(times) > 1 else second))
        elif duration_s <= times[-1]:
            where, written = _find_entry(path, len(times) - 1, len(times))
            allowed = f"a last time before the trace's end, {duration_s:g} s after its first"
            raise InputError(allowed, where=where, got=written)
    return Trace.of_arrays(times, rates, duration_s, end, where=str(path))


# ---- columns of numbers ------------------------------------------------------------------------


class _Columns:
    """Columns of numbers that grow, of rows that are all full."""

    def __init__(self, count: int, path: str | FilePath) -> None:
        self.path = path
        self._columns = [array("d") for _ in range(count)]

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, row: Sequence[float]) -> None:
        """Append a row, one number to each column. Raises: `InputError` if there are too many."""
        for column, number in zip(self._columns, row, strict=True):
            column.append(number)
        self._check()

    def extend(self, columns: Sequence[Floats]) -> None:
        """Add rows, as columns of equal length."""
        for column, numbers in zip(self._columns, columns, strict=True):
            column.frombytes(np.ascontiguousarray(numbers).data.cast("B"))
        self._check()

    def _check(self) -> None:
        if len(self) > MOST_ROWS:
            allowed = f"a trace of at most {MOST_ROWS:,} lines"
            raise InputError(allowed, where=str(self.path), got="more")

    def arrays(self) -> list[Floats]:
        """The columns, in the same memory: no row can be added from now on."""
        return [np.frombuffer(column, dtype=np.float64) for column in self._columns]


def _read_lines(
    path: str | FilePath, count: int, parse: Callable[[str, str], Sequence[float]]
) -> list[Floats]:
    """The `count` columns of a file with that many numbers in each line; `parse(line, where)` is
    the law."""
    columns = _Columns(count, path)
    lines_before = 0
    for block in _read_blocks(path):
        first = block[: block.find(b"\n") + 1]
        delimiter = next((x for x in "\t," if x.encode() in first), " ")
        numbers = _parse_block(block, range(count), delimiter, exactly=True)
        if numbers is not None:
            columns.extend(numbers)
            lines_before += _count_lines(block)
            continue
        lines = _decode_block(block, path).splitlines()
        for number, line in enumerate(lines, lines_before + 1):
            if line.strip() and line.lstrip()[0] != "#":
                columns.add(parse(line, f"{path}: line {number}"))
        lines_before += len(lines)
    if not len(columns):
        allowed = "a trace with at least one line"
        raise InputError(allowed, where=str(path), problem="the file is empty")
    return columns.arrays()


class _Table:
    """A CSV file, of which two columns are wanted."""

    def __init__(self, path: str | FilePath, asked: Mapping[str, str | int]) -> None:
        self.path = path
        self.asked = asked
        self._numbers = _Columns(len(asked), path)
        self._chosen: list[int] = []
        """Which columns of the file; known when its first row has been seen."""
        self._width = 0
        """Cells of the first row."""
        self._lines_before = 0

    def read(self) -> list[Floats]:
        """The columns that are asked for, as numbers."""
        blocks = _read_blocks(self.path)
        for block in blocks:
            numbers = None
            if block.partition(b"\n")[0].count(b",") + 1 == self._width:
                numbers = _parse_block(block, self._chosen, ",")
            if numbers is None:
                self._read_rows(block, blocks)
            else:
                self._numbers.extend(numbers)
                self._lines_before += _count_lines(block)
        if not self._chosen:
            allowed = "a trace with at least one line"
            raise InputError(allowed, where=str(self.path), got="an empty file")
        if not len(self._numbers):
            allowed = "a trace with at least one row"
            raise InputError(allowed, where=str(self.path), problem="it has no row")
        return self._numbers.arrays()

    def _read_rows(self, block: bytes, blocks: Iterator[bytes]) -> None:
        """The rows of a block, and of as many more as a row needs that a quoted cell leads into."""
        lines_given = lines_done = 0

        def lines() -> Iterator[str]:
            nonlocal lines_given
            for piece in chain([block], blocks):
                for line in io.StringIO(_decode_block(piece, self.path)):
                    lines_given += 1
                    yield line
                if lines_done == lines_given:
                    return

        reader = csv.reader(lines())
        try:
            for row in reader:
                lines_done = reader.line_num
                cells = [cell.strip() for cell in row]
                if any(cells) and not cells[0].startswith("#"):
                    self._add_row(cells, f"{self.path}: line {self._lines_before + lines_done}")
        except csv.Error as error:
            where = f"{self.path}: line {self._lines_before + reader.line_num}"
            raise InputError("a row in CSV", where=where, got=str(error)) from None
        self._lines_before += lines_given

    def _add_row(self, cells: list[str], where: str) -> None:
        """Add the numbers of a row, unless it is the file's first and so may be its header."""
        is_first = not self._chosen
        if is_first:
            self._width = len(cells)
            named = any(isinstance(x, str) for x in self.asked.values())
            header = cells if named else []
            self._chosen = [
                _find_column(x, header, f"{self.path}: {key}") for key, x in self.asked.items()
            ]
            if named:
                return
        if len(cells) <= max(self._chosen):
            allowed = f"at least {max(self._chosen) + 1} columns"
            raise InputError(allowed, where=where, got=len(cells))
        if any(cells[self._width :]):  # a decimal comma, say
            allowed = f"{self._width} columns, as the first row has"
            raise InputError(allowed, where=where, got=len(cells))
        chosen = [cells[k] for k in self._chosen]
        if not is_first or any(_is_number(cell) for cell in chosen):
            self._numbers.add([_parse_number(cell, where) for cell in chosen])


# ---- blocks ------------------------------------------------------------------------------------


def _read_blocks(path: str | FilePath) -> Iterator[bytes]:
    """The file in pieces that end where a line ends, without a byte order mark."""
    with open_file(path, MOST_FILE_BYTES) as file:
        begun = file.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)
        wanted = FIRST_BLOCK_BYTES
        while more := file.read(wanted):
            block = begun + more
            end = max(block.rfind(b"\n"), block.rfind(b"\r", 0, -1)) + 1
            if len(block) - end > MOST_LINE_BYTES:
                allowed = f"lines of at most {MOST_LINE_BYTES:,} bytes"
                raise InputError(allowed, where=str(path), got="a longer one")
            begun = block[end:]
            if end:
                wanted = BLOCK_BYTES
                yield block[:end]
        if begun:
            yield begun


def _parse_block(
    block: bytes, chosen: Sequence[int], delimiter: str, *, exactly: bool = False
) -> list[Floats] | None:
    """The chosen columns if every cell in them is a finite number and nothing in the block is
    special.

    `exactly`: there must be no other columns.
    """
    if b'"' in block or b"#" in block or not block.isascii():
        return None
    if block.count(b"\r") != block.count(b"\r\n"):
        return None
    from pyarrow import ArrowInvalid, ArrowKeyError, BufferReader, csv

    names = [f"f{k}" for k in chosen]
    try:
        table = csv.read_csv(
            BufferReader(block),
            # a block is small, and threads of older versions may wait for each other for ever
            csv.ReadOptions(autogenerate_column_names=True, use_threads=False),
            csv.ParseOptions(delimiter=delimiter, quote_char=False),
            csv.ConvertOptions(
                column_types=dict.fromkeys(names, "float64"),
                include_columns=[] if exactly else list(dict.fromkeys(names)),
                null_values=[],
            ),
        )
    except (ArrowInvalid, ArrowKeyError):
        return None
    if exactly and table.column_names != names:
        return None
    columns = [table.column(name).to_numpy() for name in names]
    return columns if all(np.isfinite(column).all() for column in columns) else None


def _decode_block(block: bytes, path: str | FilePath) -> str:
    with named_in_errors(path):
        return block.decode().replace("\r\n", "\n").replace("\r", "\n")


def _count_lines(block: bytes) -> int:
    return block.count(b"\n") + (not block.endswith(b"\n"))


# ---- numbers -----------------------------------------------------------------------------------


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parse_number(text: str, where: str) -> float:
    number = float(text) if _is_number(text) else nan
    if not isfinite(number):
        raise InputError("a number", where=where, got=text.strip())
    return number


def _parse_numbers(line: str, count: int, where: str) -> list[float]:
    cells = line.replace(",", " ").split()
    if len(cells) != count:
        raise InputError(f"{count} numbers", where=where, got=line.strip())
    return [_parse_number(cell, where) for cell in cells]


def _check_order(times: Floats, path: str | FilePath, strictly: bool = True) -> None:
    if not np.isfinite(times).all():
        where, written = _find_entry(path, int(np.argmin(np.isfinite(times))), len(times))
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
        raise InputError("a capacity of at least 0, and finite", where=where, got=written)


def _find_entry(path: str | FilePath, entry: int, count: int) -> tuple[str, str]:
    """Return where an entry stands of the `count` that were read, and its line as written; the
    file is read once more, as nobody keeps lines for an error that seldom comes."""
    lines: list[tuple[int, str]] = []
    for block in _read_blocks(path):
        begin = lines[-1][0] if lines else 0
        lines += enumerate(_decode_block(block, path).splitlines(), begin + 1)
    filled = [(n, line) for n, line in lines if line.strip() and line.lstrip()[0] != "#"]
    header = len(filled) - count
    if header not in (0, 1):  # cells of several lines
        return f"{path}: entry {entry + 1}", "another order"
    number, line = filled[header + entry]
    return f"{path}: line {number}", line.strip()


def _find_column(asked: str | int, header: list[str], where: str) -> int:
    if isinstance(asked, int):
        if asked < 0:
            raise InputError("a column's name, or its number from 0", where=where, got=asked)
        return asked
    if header.count(asked) != 1:
        allowed = f"a column of the file: {listed(header)}"
        hint = "it stands twice" if asked in header else did_you_mean(asked, header)
        raise InputError(allowed, where=where, got=asked, hint=hint)
    return header.index(asked)
