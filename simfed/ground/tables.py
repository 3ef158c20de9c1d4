"""Columns of numbers out of a CSV or Parquet file that a user wrote.

CSV has a header line; commas separate; `#` begins a comment. What is read are numbers
alone, so nothing in a file can be run.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from simfed.ground.arrays import Bools, Floats, Ints
from simfed.ground.errors import InputError, did_you_mean, listed
from simfed.ground.inputs import MOST_FILE_BYTES, named_in_errors, open_file
from simfed.ground.plain import Plain

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from pyarrow import parquet

_MORE_CELLS = "a row has more cells than the header, which has {}"

MOST_TABLE_BYTES = 2_000_000_000
"""The largest table that is read; it is read as a whole."""
MOST_LINE = 1_000_000
"""Characters of a line that no line of a table has."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The cells of a column that rows are chosen by, as a file writes it.

    A text or a number: equal; several in a list: one of them; `">= 5"` and `"<= 5"`: at
    least, at most. Numbers are compared as numbers, texts as they are written.

    >>> [Condition(">= 5").holds(cell) for cell in ("5", "4.9", "none")]
    [True, False, False]
    >>> Condition(["LTE", "5G"]).holds("5G"), Condition(2019).holds("2019.0")
    (True, True)
    """

    written: Plain

    def holds(self, cell: str) -> bool:
        """Return whether a cell meets it."""
        number = np.array([_read_number(cell)])
        return cell in self._among or bool(self.compare(number)[0])

    def compare(self, numbers: Floats) -> Bools:
        """Return which numbers meet it."""
        if (bound := self.read_bound()) is not None:
            sign, most = bound
            return sign * numbers <= sign * most
        among = [one for one in self._among if not isinstance(one, str)]
        return np.isin(numbers, among)

    def __str__(self) -> str:
        return listed(map(str, self._among))

    @property
    def takes_texts(self) -> bool:
        """True if a cell that is no number may meet it."""
        texts = any(isinstance(one, str) for one in self._among)
        return texts and self.read_bound() is None

    @property
    def _among(self) -> Sequence[Plain]:
        several = isinstance(self.written, (list, tuple))
        return self.written if several else [self.written]

    def read_bound(self) -> tuple[int, float] | None:
        """Return 1 for at most and -1 for at least, and the number; None: no bound.

        Raises: `InputError` for a bound that is no number.
        """
        text = self.written if isinstance(self.written, str) else ""
        sign = {">=": -1, "≥": -1, "<=": 1, "≤": 1}.get(text.rstrip("0123456789.eE+- "))
        if sign is None:
            if text.startswith((">", "<", "≥", "≤")):
                raise InputError("a bound such as '>= 5' or '<= 5'", got=text)
            return None
        return sign, _read_number(text.lstrip("<>=≤≥ "))


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns of numbers of a file, and where each of them stands in it."""

    path: str
    values: Mapping[str, Floats]
    """Per name, all of the same length of at least one."""
    rows: Ints | None = None
    """The rows of the file, from 0, of which they are; None: of all."""

    def __getitem__(self, name: str) -> Floats:
        """Return a column as float64."""
        return self.values[name]

    def refuse(self, name: str, row: int, allowed: str, hint: str = "") -> InputError:
        """Return the error about one cell, with its place and what is written there."""
        got = f"{self.values[name][row]:g}"
        row = row if self.rows is None else int(self.rows[row])
        where = f"{self.path}: row {row + 1}"
        if not _is_parquet(self.path):
            line, cells = next(itertools.islice(list_rows(self.path), row + 1, None))
            header = next(list_rows(self.path))[1]
            where, got = f"{self.path}: line {line}", cells[header.index(name)]
        where = f"{where}, column {name}"
        return InputError(allowed, where=where, got=got, hint=hint or None)


def read_columns(
    path: str | os.PathLike[str],
    names: Sequence[str],
    where: Mapping[str, Plain] | None = None,
) -> Columns:
    """Return the columns of these names, of the rows that meet all conditions.

    Args:
        path: a CSV file with a header line, or Parquet.
        names: of columns of finite numbers.
        where: per name of a column of any kind what `Condition` takes.

    Raises: `InputError` that names the file, and the line and column of what is no
    finite number, with what is written there.
    """
    conditions = {name: Condition(written) for name, written in (where or {}).items()}
    read = _read_parquet if _is_parquet(path) else _read_csv
    values, holds = read(path, names, conditions)
    if not len(holds):
        raise InputError(
            "a table with at least one row", where=str(path), problem="it has no row"
        )
    if holds.all():
        return Columns(str(path), values)
    if not holds.any():
        texts = " and ".join(f"{name}: {each}" for name, each in conditions.items())
        allowed, problem = "a row that meets the conditions", f"no row has {texts}"
        raise InputError(allowed, where=str(path), problem=problem)
    kept = {name: column[holds] for name, column in values.items()}
    return Columns(str(path), kept, np.flatnonzero(holds))


def read_records(
    text: str, where: str
) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the header of a CSV text, and each row's line and cells by name.

    A row may have fewer cells than the header; the others are empty then. Raises:
    `InputError` for a name that stands twice and for a row of more cells, of which
    nobody knows what they mean.
    """
    reader = csv.DictReader(text.splitlines(), restval="")
    records = []
    try:
        names = list(reader.fieldnames or ())
        for name, times in Counter(names).items():
            if name and times > 1:
                raise InputError("each column once", where=where, got=name)
        for record in reader:
            if None in record:
                line = f"{where}: line {reader.line_num}"
                raise InputError(problem=_MORE_CELLS.format(len(names)), where=line)
            records.append((reader.line_num, record))
    except csv.Error as error:
        raise InputError(where=where, problem=f"cannot be read: {error}") from None
    return names, records


_Read = tuple[dict[str, Floats], Bools]
"""Columns of numbers, and which rows meet the conditions."""


def list_rows(path: str | os.PathLike[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file, header first, as `read_rows` does."""
    with open_file(path, MOST_TABLE_BYTES) as file:
        yield from read_rows(file, path)


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
        if len(line) == MOST_LINE:
            raise make_long_line_error(path, number)
        line, mark, _ = line.partition("#")
        yield f"{line}\n" if mark else line


def make_long_line_error(path: str | os.PathLike[str], number: int) -> InputError:
    """Return the error about a line of `MOST_LINE` characters."""
    allowed = f"lines of fewer than {MOST_LINE:,} characters"
    return InputError(allowed, where=f"{path}: line {number}", got="more")


def _read_csv(
    path: str | os.PathLike[str],
    names: Sequence[str],
    conditions: Mapping[str, Condition],
) -> _Read:
    rows = list_rows(path)
    lines, header = next(rows, (0, []))
    if not header:
        allowed = "a table in CSV with a header line"
        raise InputError(allowed, where=str(path), problem="it has no line")
    check_names(path, [*names, *conditions], header)
    fast = _read_csv_fast(path, lines, header, names, conditions)
    if fast is not None:
        return fast
    values: dict[str, list[float]] = {name: [] for name in names}
    holds = []
    places = {name: header.index(name) for name in [*names, *conditions]}
    for line, cells in rows:
        if len(cells) > len(header):
            problem = _MORE_CELLS.format(len(header))
            raise InputError(problem=problem, where=f"{path}: line {line}")
        cells += [""] * (len(header) - len(cells))
        for name, column in values.items():
            column.append(number := _read_number(cells[places[name]]))
            if math.isnan(number):
                where = f"{path}: line {line}, column {name}"
                got = cells[places[name]][:40] or "nothing"
                raise InputError("a finite number", where=where, got=got)
        holds.append(all(c.holds(cells[places[n]]) for n, c in conditions.items()))
    return {name: np.array(values[name]) for name in names}, np.array(holds, bool)


def _read_csv_fast(
    path: str | os.PathLike[str],
    lines: int,
    header: Sequence[str],
    names: Sequence[str],
    conditions: Mapping[str, Condition],
) -> _Read | None:
    """Return what `_read_csv` does of a file without oddities, or None.

    `lines`: of the file, up to the header.
    """
    from pyarrow import ArrowException, csv, float64, string

    # cells that name a condition's column and a number's one are read as texts
    places = {str(header.index(name)): string() for name in conditions}
    asked = {name: str(header.index(name)) for name in names}
    if places.keys() & {*asked.values()}:
        return None
    places |= dict.fromkeys(asked.values(), float64())
    parts: list[list[Floats]] = [[] for _ in names]
    holds = [np.ones(0, bool)]
    with open_file(path, MOST_TABLE_BYTES) as file:
        for _ in range(lines):
            file.readline()
        at = file.tell()
        # what follows a # is no cell, which the parser does not know
        while block := file.read(1 << 24):
            if b"#" in block:
                return None
        file.seek(at)
        try:
            for batch in csv.open_csv(
                file,
                csv.ReadOptions(column_names=[*map(str, range(len(header)))]),
                convert_options=csv.ConvertOptions(
                    column_types=places, include_columns=[*places], null_values=[]
                ),
            ):
                for part, name in zip(parts, names, strict=True):
                    part.append(batch.column(asked[name]).to_numpy())
                    if not np.isfinite(part[-1]).all():
                        return None
                holds.append(np.ones(batch.num_rows, bool))
                for name, condition in conditions.items():
                    cells = batch.column(str(header.index(name)))
                    holds[-1] &= _meet(cells, condition)
        except (ArrowException, ValueError):
            return None
    if len(holds) == 1:
        return None
    joined = (np.concatenate(part) for part in parts)
    return dict(zip(names, joined, strict=True)), np.concatenate(holds)


def _meet(cells: pyarrow.Array, condition: Condition) -> Bools:
    """Return which texts meet a condition."""
    if not condition.takes_texts:
        with suppress(ValueError):  # of which some are no numbers
            return condition.compare(cells.cast("float64").to_numpy())
    encoded = cells.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    met = np.array([condition.holds(str(text).strip()) for text in texts], bool)
    chosen: Bools = met[encoded.indices.to_numpy()]
    return chosen


def _is_parquet(path: str | os.PathLike[str]) -> bool:
    return Path(path).suffix.lower() in (".parquet", ".pq")


def _read_parquet(
    path: str | os.PathLike[str],
    names: Sequence[str],
    conditions: Mapping[str, Condition],
) -> _Read:
    import pyarrow as pa

    asked = [*dict.fromkeys([*names, *conditions])]
    with open_parquet(path, MOST_TABLE_BYTES) as file:
        check_names(path, asked, file.schema_arrow.names)
        table = file.read(columns=asked)
        holds = np.ones(len(table), bool)
        for name, condition in conditions.items():
            cells = table[name].cast(pa.string()).fill_null("").combine_chunks()
            holds &= _meet(cells, condition)
        columns = {name: table[name].to_pandas() for name in names}
    return {
        name: _read_numbers(column, str(path), name) for name, column in columns.items()
    }, holds


@contextmanager
def open_parquet(
    path: str | os.PathLike[str], most_bytes: int = MOST_FILE_BYTES
) -> Iterator[parquet.ParquetFile]:
    """Open a Parquet file that unpacks to at most `most_bytes`, as its footer says.

    Raises: `InputError` that names the file, also for what the body finds damaged in
    it.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with (
            open_file(path, most_bytes) as content,
            parquet.ParquetFile(content) as file,
        ):
            check_unpacked(count_unpacked_bytes(file), most_bytes, str(path))
            yield file
    except InputError:
        raise
    except (pa.ArrowException, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        problem = f"cannot be read: {reason}"
        raise InputError(
            "a whole Parquet file", where=str(path), problem=problem
        ) from None


def count_unpacked_bytes(file: parquet.ParquetFile) -> int:
    """Return how much memory a Parquet file's rows take, as its footer says."""
    facts = file.metadata
    groups = (facts.row_group(i).total_byte_size for i in range(facts.num_row_groups))
    # rows that are all alike take next to nothing in the file
    return int(max(sum(groups), 4 * facts.num_rows * facts.num_columns))


def check_unpacked(size: int, most_bytes: int, where: str) -> None:
    """Raise an `InputError` where so many bytes are more than allowed."""
    if size > most_bytes:
        allowed = f"a table that unpacks to at most {most_bytes:,} bytes"
        raise InputError(allowed, where=where, got=f"{size:,} bytes")


def check_names(path: object, names: Sequence[str], columns: Sequence[str]) -> None:
    """Raise an `InputError` for a name that is not that of one column."""
    for name in names:
        if columns.count(name) > 1:
            problem = f"the column {name!r} stands {columns.count(name)} times"
            raise InputError(problem=problem, where=str(path))
        if name not in columns:
            allowed = f"a column of the table: {listed(columns)}"
            hint = find_column_hint(name, columns)
            raise InputError(allowed, where=str(path), got=name, hint=hint)


def find_column_hint(name: str, columns: Sequence[str]) -> str | None:
    """Return a guess why no column, or several, have this name."""
    if name in columns:
        return "it stands twice"
    return find_separator_hint(columns) or did_you_mean(name, columns)


def find_separator_hint(cells: Sequence[str]) -> str | None:
    """Return the hint for a row that another character than a comma seems to separate.

    >>> find_separator_hint(["time;mbps"])
    "commas separate the cells of CSV, here it seems to be ';'"
    """
    for mark in ";\t|" if len(cells) == 1 else "":
        if mark in cells[0]:
            return f"commas separate the cells of CSV, here it seems to be {mark!r}"
    return None


def _read_number(cell: Plain) -> float:
    """Return a finite number that is written in a cell, NaN for whatever is none."""
    try:
        number = float(cell)
    except (OverflowError, TypeError, ValueError):
        return math.nan
    bare = isinstance(cell, bool) or "_" in str(cell)
    return number if math.isfinite(number) and not bare else math.nan


def _read_numbers(column: pandas.Series, path: str, name: str) -> Floats:
    import pandas

    try:
        values: Floats = pandas.to_numeric(column, errors="coerce").to_numpy(np.float64)
    except OverflowError:  # whole numbers of hundreds of digits, as Python has them
        values = np.array([_read_number(value) for value in column])
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size or column.dtype == bool:
        row = int(bad[0]) if bad.size else 0
        got = column.iloc[row]
        shown = "nothing" if pandas.isna(got) else str(got)[:40]
        where = f"{path}: row {row + 1}, column {name}"
        raise InputError("a finite number", where=where, got=shown)
    return values
