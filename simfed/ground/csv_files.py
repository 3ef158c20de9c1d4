"""CSV files: their rows cell by cell, and columns of them in blocks, fast.

Comments begin with a `#`. Blocks are parsed by pyarrow, to eight bytes for each number.
What that parser does not know (words, rows too short, numbers of other alphabets) is
read cell by cell, as `csv` and `float` read it, and so is a block with an error, to
name the cell.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from simfed.ground.errors import InputError
from simfed.ground.inputs import named_in_errors, open_file
from simfed.ground.plain import Plain

if TYPE_CHECKING:
    import pyarrow

MOST_TABLE_BYTES = 2_000_000_000
"""The largest table that is read; it is read as a whole."""
MOST_LINE = 1_000_000
"""Characters of a line that no line of a table has."""
MORE_CELLS = "a row has more cells than the first, which has {}"
_BLOCK_BYTES = 4_000_000
_COMMENT = re.compile(rb"#[^\n]*")
_NEEDLESS = b"  ", b"\n ", b" \n", b" \r"


def read_number(cell: Plain) -> float:
    """Return a finite number that is written in a cell, NaN for whatever is none."""
    try:
        number = float(cell)
    except (OverflowError, TypeError, ValueError):
        return math.nan
    bare = isinstance(cell, bool) or "_" in str(cell)
    return number if math.isfinite(number) and not bare else math.nan


def read_rows(
    file: BinaryIO, path: str | os.PathLike[str], mark: str = ",", before: int = 0
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of an open file, each with the number of its last line.

    Cells are without spaces around them; comments and empty lines are no rows. `mark`:
    between cells; a blank stands for any number of blanks and tabs. `before`: lines
    that are read already.

    Raises: `InputError` that names the file.
    """
    # A lone carriage return ends no line: who skips lines of bytes counts alike.
    text = io.TextIOWrapper(file, "utf-8-sig", newline="\n")
    with named_in_errors(path), _lending(text):
        lines = _list_lines(text, path, before)
        if mark == " ":
            for number, line in enumerate(lines, before + 1):
                if cells := line.split():
                    yield number, cells
            return
        reader = csv.reader(lines, delimiter=mark, skipinitialspace=True, strict=True)
        try:
            for cells in reader:
                cells = [cell.strip() for cell in cells]
                if len(cells) > 1 or any(cells):
                    yield before + reader.line_num, cells
        except csv.Error as error:
            where = f"{path}: line {before + reader.line_num}"
            raise InputError(where=where, problem=f"cannot be read: {error}") from None


@contextmanager
def _lending(text: io.TextIOWrapper) -> Iterator[None]:
    """Leave the file below to whoever opened it, also where rows are left unread."""
    try:
        yield
    finally:
        with suppress(ValueError):  # closed by now
            text.detach()


def _list_lines(
    text: io.TextIOWrapper, path: str | os.PathLike[str], before: int
) -> Iterator[str]:
    """Yield lines without their comments."""
    for number in itertools.count(before + 1):
        line = text.readline(MOST_LINE)
        if not line:
            return
        _check_line(line, path, number)
        line, mark, _ = line.partition("#")
        yield f"{line}\n" if mark else line


def _check_line(line: str | bytes, path: str | os.PathLike[str], number: int) -> None:
    if len(line) == MOST_LINE:
        allowed = f"lines of fewer than {MOST_LINE:,} characters"
        raise InputError(allowed, where=f"{path}: line {number}", got="more")


@dataclass(frozen=True)
class CsvColumn:
    """A column to read, and what its cells stand for."""

    place: int
    name: str
    """In errors; empty: of a file with a single column."""
    allowed: str = "a finite number"
    read: Callable[[pyarrow.Array], Any] | None = None
    """Texts → an array of values, with `ValueError` or `OverflowError` for a text that
    has none; None: they are numbers."""

    def read_cells(self, cells: Sequence[str]) -> Any:
        """Return an array of the cells' values; None: one of them has none."""
        if self.read is None:
            numbers = np.array([read_number(cell) for cell in cells])
            return numbers if np.isfinite(numbers).all() else None
        import pyarrow

        try:
            return self.read(pyarrow.array(cells, pyarrow.string()))
        except (ValueError, OverflowError):
            return None

    def refuse(
        self,
        path: str | os.PathLike[str],
        line: int,
        cells: Sequence[str],
        allowed: str,
        problem: str = "",
    ) -> InputError:
        """Return the error about its cell in a row; `problem`: in place of the cell."""
        where = f"{path}: line {line}" + (f", column {self.name}" if self.name else "")
        if problem:
            return InputError(allowed, where=where, problem=problem)
        got = "".join(cells[self.place : self.place + 1])[:40]
        return InputError(allowed, where=where, got=got or "nothing")


class _Block(NamedTuple):
    """A part of a file that is parsed at once, and begins with a whole row."""

    row: int
    """Rows before it."""
    line: int
    at_byte: int


class CsvTable:
    """Some columns of a file, read as a whole, which know where their cells stand.

    Args:
        path: the file, UTF-8.
        columns: those to read.
        width: cells of a row. There may be fewer, and empty ones beside them.
        skipped: lines before the first row.
        mark: what is between cells, as `read_rows` takes it.
        most_rows: that are read.

    Raises: `InputError` that names the line and column of what `columns` do not allow.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[CsvColumn],
        width: int,
        skipped: int,
        mark: str = ",",
        most_rows: float = math.inf,
    ) -> None:
        self.path, self.columns, self._width, self._mark = path, columns, width, mark
        self._blocks: list[_Block] = []
        parts = []
        rows = 0
        for line, at_byte, content in self._list_blocks(skipped):
            self._blocks.append(_Block(rows, line, at_byte))
            parts.append(self._parse(content) or self._parse_slowly(content, line))
            rows += len(parts[-1][0])
            if rows > most_rows:
                allowed = f"a file of at most {most_rows:,} rows"
                raise InputError(allowed, where=str(path), got="more")
        parts = parts or [self._parse_slowly(b"", 0)]
        self.values = [np.concatenate(part) for part in zip(*parts, strict=True)]
        """An array for each column."""

    def refuse(
        self, row: int, allowed: str, problem: str = "", *, column: int = 0
    ) -> InputError:
        """Return the error about a cell, which names its line and its column.

        Its block is read once more, as nobody keeps cells for an error that seldom
        comes. `problem`: in place of the cell.
        """
        block = self._blocks[bisect_right(self._blocks, row, key=itemgetter(0)) - 1]
        with open_file(self.path, MOST_TABLE_BYTES) as file:
            file.seek(block.at_byte)
            rows = read_rows(file, self.path, self._mark, block.line)
            line, cells = next(itertools.islice(rows, row - block.row, None))
        return self.columns[column].refuse(self.path, line, cells, allowed, problem)

    def _list_blocks(self, skipped: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield the lines and bytes before each block, and its content."""
        with open_file(self.path, MOST_TABLE_BYTES) as file:
            for _ in range(skipped):
                file.readline()
            line = skipped
            while True:
                at_byte = file.tell()
                parts = [file.read(_BLOCK_BYTES)]
                # A row ends with its line, but in a cell that is quoted. A mark that
                # quotes nothing (as of inches) waits for no other for long.
                marks, more = parts[0].count(b'"'), 0
                while end := file.readline(MOST_LINE):
                    if len(end) == MOST_LINE:
                        line += sum(part.count(b"\n") for part in parts)
                        _check_line(end, self.path, line + 1)
                    parts.append(end)
                    marks, more = marks + end.count(b'"'), more + len(end)
                    if marks % 2 == 0 or more > MOST_LINE:
                        break
                content = b"".join(parts)
                if not content:
                    return
                yield line, at_byte, content
                line += content.count(b"\n")

    def _parse(self, content: bytes) -> list[Any] | None:
        """Return the columns of a block without oddities, fast, or None."""
        from pyarrow import ArrowException, BufferReader, csv, float64, string

        content = _COMMENT.sub(b"", content)
        if self._mark == " ":
            content = content.replace(b"\t", b" ")
            if any(blank in b"\n%b\n" % content for blank in _NEEDLESS):
                lines = content.split(b"\n")
                content = b"\n".join([b" ".join(line.split()) for line in lines])
        texts = {column.place for column in self.columns if column.read is not None}
        types = {
            str(column.place): string() if column.place in texts else float64()
            for column in self.columns
        }
        names = [str(place) for place in range(self._width)]
        columns = []
        try:
            read = csv.read_csv(
                BufferReader(content),
                csv.ReadOptions(column_names=names, use_threads=False),
                csv.ParseOptions(delimiter=self._mark),
                csv.ConvertOptions(
                    column_types=types, include_columns=[*types], null_values=[]
                ),
            )
            for column in self.columns:
                cells = read.column(str(column.place)).combine_chunks()
                if column.read is not None:
                    columns.append(column.read(cells))
                    continue
                columns.append(cells.cast(float64()).to_numpy())
                if not np.isfinite(columns[-1]).all():
                    return None
        except (ArrowException, ValueError, OverflowError):
            return None
        return columns

    def _parse_slowly(self, content: bytes, before: int) -> list[Any]:
        """Return the columns cell by cell, or raise the error that names the wrong one.

        `before`: lines before the block.
        """
        rows = [*read_rows(io.BytesIO(content), self.path, self._mark, before)]
        for line, cells in rows:
            if any(cells[self._width :]):
                problem = MORE_CELLS.format(self._width)
                raise InputError(where=f"{self.path}: line {line}", problem=problem)
            cells += [""] * (self._width - len(cells))
        columns = []
        for column in self.columns:
            texts = [cells[column.place] for _, cells in rows]
            values = column.read_cells(texts)
            if values is None:
                line, cells = next(
                    row
                    for row, text in zip(rows, texts, strict=True)
                    if column.read_cells([text]) is None
                )
                raise column.refuse(self.path, line, cells, column.allowed)
            columns.append(values)
        return columns
