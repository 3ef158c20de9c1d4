"""Columns of numbers out of a CSV or Parquet file that a user wrote.

CSV has a header line; commas separate; `#` begins a comment. What is read are numbers
alone, so nothing in a file can be run.
"""

from __future__ import annotations

import csv
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError, did_you_mean, listed
from simfed.ground.inputs import MOST_FILE_BYTES, open_file
from simfed.ground.plain import Plain

if TYPE_CHECKING:
    import pandas
    from pyarrow import parquet

_PARQUET = (".parquet", ".pq")
_MORE_CELLS = "a row has more cells than the header, which has {}"

MOST_TABLE_BYTES = 2_000_000_000
"""The largest table that is read; it is read as a whole."""


def read_columns(
    path: str | os.PathLike[str], names: Sequence[str]
) -> dict[str, Floats]:
    """Return the columns of these names as float64, all of the same length.

    There is at least one row.

    Raises: `InputError` that names the file, and the column and row of what is no
    finite number.
    """
    frame = (
        _read_parquet(path, names)
        if Path(path).suffix.lower() in _PARQUET
        else _read_csv(path, names)
    )
    if not len(frame):
        raise InputError(
            "a table with at least one row", where=str(path), problem="it has no row"
        )
    return {
        name: _read_numbers(frame[name], f"{path}: column {name}") for name in names
    }


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


def _read_csv(path: str | os.PathLike[str], names: Sequence[str]) -> pandas.DataFrame:
    import pandas

    try:
        with open_file(path, MOST_TABLE_BYTES) as file, warnings.catch_warnings():
            first = pandas.read_csv(
                file,
                comment="#",
                header=None,
                nrows=1,
                dtype=str,
                keep_default_na=False,
                skipinitialspace=True,
                encoding="utf-8-sig",
            )
            header = first.iloc[0].tolist()
            check_names(path, names, header)
            # All columns are read, as pandas counts a row's cells only then: with a
            # decimal comma, or under a header that lacks a name, a number would be
            # taken for another column's.
            warnings.simplefilter("ignore", pandas.errors.DtypeWarning)
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            file.seek(0)
            frame = pandas.read_csv(
                file,
                comment="#",
                index_col=False,
                skipinitialspace=True,
                encoding="utf-8-sig",
            )
        return frame[list(names)]
    except pandas.errors.ParserWarning:
        problem = _MORE_CELLS.format(len(header))
        raise InputError(problem=problem, where=str(path)) from None
    except InputError:
        raise
    except ValueError as error:  # pandas' own errors
        reason = str(error).strip().splitlines()[0]
        allowed = "a table in CSV with a header line"
        raise InputError(
            allowed, where=str(path), problem=f"cannot be read: {reason}"
        ) from None


def _read_parquet(
    path: str | os.PathLike[str], names: Sequence[str]
) -> pandas.DataFrame:
    with open_parquet(path, MOST_TABLE_BYTES) as file:
        check_names(path, names, file.schema_arrow.names)
        return file.read(columns=list(names)).to_pandas()


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


def _read_float(value: Plain) -> float:
    try:
        return float(value)
    except (OverflowError, TypeError, ValueError):
        return np.nan


def _read_numbers(column: pandas.Series, where: str) -> Floats:
    import pandas

    try:
        values: Floats = pandas.to_numeric(column, errors="coerce").to_numpy(np.float64)
    except OverflowError:  # whole numbers of hundreds of digits, as Python has them
        values = np.array([_read_float(value) for value in column])
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        got = column.iloc[int(bad[0])]
        shown = "nothing" if pandas.isna(got) else str(got)[:40]
        raise InputError(
            "a finite number", where=f"{where}, row {int(bad[0]) + 1}", got=shown
        )
    return values
