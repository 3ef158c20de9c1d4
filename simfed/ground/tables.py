"""Columns of numbers out of a CSV or Parquet file that a user wrote.

CSV has a header line; commas separate; `#` begins a comment. What is read are numbers alone, so
nothing in a file can be run.
"""

from __future__ import annotations

import csv
import os
import stat
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError, did_you_mean, listed
from simfed.ground.reading import make_missing_file_error

if TYPE_CHECKING:
    import pandas

_PARQUET = (".parquet", ".pq")

MOST_FILE_BYTES = 2_000_000_000
"""The largest table that is read; it is read as a whole."""


def read_columns(path: str | os.PathLike[str], names: Sequence[str]) -> dict[str, Floats]:
    """The columns of these names, as float64, all of the same length, at least one row.

    Raises: `InputError` that names the file, and the column and row of what is no finite number.
    """
    _check_size(path)
    frame = (
        _read_parquet(path, names)
        if Path(path).suffix.lower() in _PARQUET
        else _read_csv(path, names)
    )
    if not len(frame):
        raise InputError("a table with at least one row", where=str(path), problem="it has no row")
    return {name: _read_numbers(frame[name], f"{path}: column {name}") for name in names}


def read_records(text: str, where: str) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the header of a CSV text, and each row's line and cells by name.

    A row may have fewer cells than the header; the others are empty then. Raises: `InputError` for
    a name that stands twice and for a row of more cells, of which nobody knows what they mean.
    """
    reader = csv.DictReader(text.splitlines(), restval="")
    names = list(reader.fieldnames or ())
    for name in names:
        if name and names.count(name) > 1:
            raise InputError("each column once", where=where, got=name)
    records = []
    for record in reader:
        if None in record:
            allowed = f"{len(names)} cells in a row, as the header has"
            raise InputError(allowed, where=f"{where}: line {reader.line_num}", got="more")
        records.append((reader.line_num, record))
    return names, records


def _read_csv(path: str | os.PathLike[str], names: Sequence[str]) -> pandas.DataFrame:
    import pandas

    try:
        first = pandas.read_csv(
            path,
            comment="#",
            header=None,
            nrows=1,
            dtype=str,
            keep_default_na=False,
            skipinitialspace=True,
            encoding="utf-8-sig",
        )
        header = first.iloc[0].tolist()
        _check_names(path, names, header)
        # All columns are read, as pandas counts a row's cells only then: with a decimal comma, or
        # under a header that lacks a name, a number would be taken for another column's.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pandas.errors.DtypeWarning)
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            frame = pandas.read_csv(
                path, comment="#", index_col=False, skipinitialspace=True, encoding="utf-8-sig"
            )
        return frame[list(names)]
    except pandas.errors.ParserWarning:
        allowed = f"{len(header)} cells in a row, as the header has"
        raise InputError(allowed, where=str(path), got="more") from None
    except OSError as error:
        raise _make_error(path, error) from None
    except ValueError as error:  # pandas' own errors, and bytes that are no text
        reason = str(error).strip().splitlines()[0]
        allowed = "a table in CSV with a header line"
        raise InputError(allowed, where=str(path), problem=f"cannot be read: {reason}") from None


def _read_parquet(path: str | os.PathLike[str], names: Sequence[str]) -> pandas.DataFrame:
    from pyarrow import ArrowInvalid, parquet

    try:
        with parquet.ParquetFile(path) as file:
            _check_names(path, names, file.schema_arrow.names)
            return file.read(columns=list(names)).to_pandas()
    except OSError as error:
        raise _make_error(path, error) from None
    except ArrowInvalid:
        raise InputError("a Parquet file", where=str(path), problem="this is none") from None


def _check_size(path: str | os.PathLike[str]) -> None:
    try:
        status = Path(path).stat()
    except OSError as error:
        raise _make_error(path, error) from None
    regular = stat.S_ISREG(status.st_mode)
    if regular and status.st_size > MOST_FILE_BYTES:
        allowed = f"a table of at most {MOST_FILE_BYTES:,} bytes"
        raise InputError(allowed, where=str(path), got=status.st_size)
    if not regular and not stat.S_ISDIR(status.st_mode):
        raise InputError("a file", where=str(path), problem="this is a device or a pipe")


def _check_names(path: object, names: Sequence[str], columns: Sequence[str]) -> None:
    for name in names:
        if columns.count(name) != 1:
            allowed = f"a column of the table: {listed(columns)}"
            hint = "it stands twice" if name in columns else did_you_mean(name, columns)
            raise InputError(allowed, where=str(path), got=name, hint=hint)


def _make_error(path: str | os.PathLike[str], error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError):
        return make_missing_file_error(path)
    return InputError(where=str(path), problem=f"cannot be read: {error.strerror or error}")


def _read_float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
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
        raise InputError("a finite number", where=f"{where}, row {int(bad[0]) + 1}", got=shown)
    return values
