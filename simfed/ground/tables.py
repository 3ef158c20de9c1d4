"""Columns of numbers out of a CSV or Parquet file that a user wrote.

CSV has a header line; commas separate; `#` begins a comment. What is read are numbers
alone, so nothing in a file can be run.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simfed.ground.arrays import Bools, Floats, Ints
from simfed.ground.csv_files import (
    MORE_CELLS,
    MOST_TABLE_BYTES,
    CsvColumn,
    CsvTable,
    read_number,
    read_rows,
)
from simfed.ground.errors import InputError, did_you_mean, listed
from simfed.ground.inputs import MOST_FILE_BYTES, open_file
from simfed.ground.plain import Plain

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from pyarrow import parquet


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
        number = np.array([read_number(cell)])
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
        return sign, read_number(text.lstrip("<>=≤≥ "))


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns of numbers of a file, and where each of them stands in it."""

    path: str
    values: Mapping[str, Floats]
    """Per name, all of the same length of at least one."""
    rows: Ints | None = None
    """The rows of the file, from 0, of which they are; None: of all."""
    table: CsvTable | None = None
    """The file; None: it is Parquet."""

    def __getitem__(self, name: str) -> Floats:
        """Return a column as float64."""
        return self.values[name]

    def refuse(self, name: str, row: int, allowed: str, hint: str = "") -> InputError:
        """Return the error about one cell, with its place and what is written there."""
        got = f"{self.values[name][row]:g}"
        row = row if self.rows is None else int(self.rows[row])
        if self.table is not None:
            column = [*self.values].index(name)
            return self.table.refuse(row, allowed, column=column).changed(
                hint=hint or None
            )
        where = f"{self.path}: row {row + 1}, column {name}"
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
    values, holds, table = read(path, names, conditions)
    if not len(holds):
        raise InputError(
            "a table with at least one row", where=str(path), problem="it has no row"
        )
    if holds.all():
        return Columns(str(path), values, table=table)
    if not holds.any():
        texts = " and ".join(f"{name}: {each}" for name, each in conditions.items())
        allowed, problem = "a row that meets the conditions", f"no row has {texts}"
        raise InputError(allowed, where=str(path), problem=problem)
    kept = {name: column[holds] for name, column in values.items()}
    return Columns(str(path), kept, np.flatnonzero(holds), table)


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
                raise InputError(problem=MORE_CELLS.format(len(names)), where=line)
            records.append((reader.line_num, record))
    except csv.Error as error:
        raise InputError(where=where, problem=f"cannot be read: {error}") from None
    return names, records


_Read = tuple[dict[str, Floats], Bools, CsvTable | None]
"""Columns of numbers, which rows meet the conditions, and the file if it is CSV."""


def _read_csv(
    path: str | os.PathLike[str],
    names: Sequence[str],
    conditions: Mapping[str, Condition],
) -> _Read:
    with open_file(path, MOST_TABLE_BYTES) as file:
        lines, header = next(read_rows(file, path), (0, []))
    if not header:
        allowed = "a table in CSV with a header line"
        raise InputError(allowed, where=str(path), problem="it has no line")
    columns = [CsvColumn(find_column(name, header, str(path)), name) for name in names]
    for name, condition in conditions.items():
        place, meets = (
            find_column(name, header, str(path)),
            partial(_find_matches, condition),
        )
        columns.append(CsvColumn(place, name, read=meets))
    table = CsvTable(path, columns, len(header), lines)
    values = dict(zip(names, table.values, strict=False))
    holds = np.ones(len(table.values[0]), bool)
    for met in table.values[len(names) :]:
        holds &= met
    return values, holds, table


def _find_matches(condition: Condition, cells: pyarrow.Array) -> Bools:
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
        for name in asked:
            find_column(name, file.schema_arrow.names, str(path))
        table = file.read(columns=asked)
        holds = np.ones(len(table), bool)
        for name, condition in conditions.items():
            cells = table[name].cast(pa.string()).fill_null("").combine_chunks()
            holds &= _find_matches(condition, cells)
        columns = {name: table[name].to_pandas() for name in names}
    return (
        {
            name: _read_numbers(column, str(path), name)
            for name, column in columns.items()
        },
        holds,
        None,
    )


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


def find_column(
    name: str, columns: Sequence[str], where: str, hint: str | None = None
) -> int:
    """Return the place of a column.

    Raises: `InputError` for a name that is not that of one column; `hint`: why it might
    not be.
    """
    if columns.count(name) == 1:
        return columns.index(name)
    if name in columns:
        problem = f"the column {name!r} stands {columns.count(name)} times"
        hint = "rename all but one of them"
        raise InputError("each once", problem=problem, where=where, hint=hint)
    allowed = f"a column of the table: {listed(each[:40] for each in columns[:40])}"
    hint = hint or find_separator_hint(columns) or did_you_mean(name, columns)
    problem = f"no column {name!r}"
    raise InputError(allowed, where=where, got=name, problem=problem, hint=hint)


def find_separator_hint(cells: Sequence[str]) -> str | None:
    """Return the hint for a row that another character than a comma seems to separate.

    >>> find_separator_hint(["time;mbps"])
    "commas separate the cells of CSV, here it seems to be ';'"
    """
    for mark in ";\t|" if len(cells) == 1 else "":
        if mark in cells[0]:
            return f"commas separate the cells of CSV, here it seems to be {mark!r}"
    return None


def _read_numbers(column: pandas.Series, path: str, name: str) -> Floats:
    import pandas

    try:
        values: Floats = pandas.to_numeric(column, errors="coerce").to_numpy(np.float64)
    except OverflowError:  # whole numbers of hundreds of digits, as Python has them
        values = np.array([read_number(value) for value in column])
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size or column.dtype == bool:
        row = int(bad[0]) if bad.size else 0
        got = column.iloc[row]
        shown = "nothing" if pandas.isna(got) else str(got)[:40]
        where = f"{path}: row {row + 1}, column {name}"
        raise InputError("a finite number", where=where, got=shown)
    return values
