"""The fingerprint of a run: one hash over everything that was simulated.

It covers every value of every table, bit for bit, and nothing of the host: no wall
time, no path, no version, no worker count. Equal fingerprints mean the same trajectory.
It does not depend on how the rows were cut into pieces or files, because every column
is hashed as one long run of values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simfed.ground.inputs import find_memory_bytes, list_files_below, open_file
from simfed.ground.plain import Plain
from simfed.record.schema import ADDED_COLUMNS, OPTIONAL_TABLES, TABLES, Column, columns

if TYPE_CHECKING:
    import pyarrow as pa


def digest_value(value: Plain) -> str:
    """Return a hash of plain values, 32 hexadecimal digits.

    The order of keys counts, as that of prototypes does in a run.
    """
    return digest_text(json.dumps(value))


def digest_text(text: str) -> str:
    """Return a hash of a text, 32 hexadecimal digits of BLAKE2b."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def digest_file(path: Path) -> str:
    """Return a hash of a file's content, 32 hexadecimal digits of BLAKE2b.

    The file is read in pieces of a megabyte.

    Raises:
        InputError: it cannot be read.
    """
    running = hashlib.blake2b(digest_size=16)
    with open_file(path, find_memory_bytes()) as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            running.update(block)
    return running.hexdigest()


def digest_folder(folder: Path, pattern: str = "*") -> str:
    """Return a hash of the names and contents of the files below a folder.

    Args:
        folder: where to look; its own name does not count.
        pattern: which files count, see `list_files_below`.
    """
    files = list_files_below(folder, pattern)
    return digest_value(
        [[f.relative_to(folder).as_posix(), digest_file(f)] for f in files]
    )


def digest_manifest(manifest: Mapping[str, Plain]) -> str:
    """Return a hash of everything in a manifest but its own `digest`."""
    return digest_value(
        {key: value for key, value in manifest.items() if key != "digest"}
    )


def sha256(content: bytes) -> str:
    """Return the SHA-256 of a file's content in hexadecimal, as of `sha256sum`."""
    return hashlib.sha256(content).hexdigest()


def digest_scenario(scenario_yaml: str) -> str:
    """Return the SHA-256 of a run's `scenario.yaml`, as `sha256sum` gives it."""
    return sha256(scenario_yaml.encode("utf-8"))


class Fingerprint:
    """The fingerprint of a run while its tables stream past; see `fingerprint`.

    Every column has a running hash of its own, so rows may come in pieces of any size,
    but each table's in their order.

    >>> Fingerprint().hexdigest() == Fingerprint().hexdigest()
    True
    """

    def __init__(self) -> None:
        self._columns = {
            (table, column.name): _ColumnHash(column)
            for table in TABLES
            if table not in OPTIONAL_TABLES
            for column in columns(table)
        }
        self._informative: set[str] = set()

    def add(self, table: str, piece: pa.Table) -> None:
        """Add the next rows of a table.

        Args:
            table: its name, a key of `TABLES`.
            piece: the rows. An optional table without rows counts as none. Columns
                beyond the schema are the method's own losses, float64.
        """
        if table in OPTIONAL_TABLES and not len(piece):
            return
        declared = {column.name: column for column in columns(table)}
        if any(_is_informative(piece, name) for name in ADDED_COLUMNS.get(table, ())):
            self._informative.add(table)
        for name in piece.column_names:
            column = declared.get(name) or Column(name, "float64", True, "")
            running = self._columns.setdefault((table, name), _ColumnHash(column))
            for chunk in piece.column(name).chunks:
                running.add(chunk)

    def hexdigest(self) -> str:
        """Return 32 hexadecimal digits, of the bits of all columns that count.

        `ADDED_COLUMNS` that say nothing in this run do not count.
        """
        # what is hashed has been the same since format 1
        whole = hashlib.blake2b(b"simfed run format 1", digest_size=16)
        for (table, name), column in self._columns.items():
            if name in ADDED_COLUMNS.get(table, ()) and table not in self._informative:
                continue
            whole.update(f"{table}.{name}".encode() + column.digest())
        return whole.hexdigest()


def _is_informative(table: pa.Table, name: str) -> bool:
    """Return whether a column of `ADDED_COLUMNS` has more than its default.

    The default: each participation was merged in its own round, no link is a cell's.
    """
    column = table.column(name)
    if name == "airtime_s":
        return bool(column.null_count < len(column))
    values = column.to_numpy()
    plain = 0 if name == "staleness" else table.column("round").to_numpy()
    return bool((values != plain).any())


def fingerprint(batches: Callable[[str], Iterable[pa.Table]]) -> str:
    """Return the fingerprint of a run: a hash over its simulated events and metrics.

    Equal fingerprints mean the same trajectory, bit for bit. Host times are not in it.

    Args:
        batches: returns the table of a name in pieces, however it is cut.

    Returns:
        32 hexadecimal digits.
    """
    running = Fingerprint()
    for table in TABLES:
        for piece in batches(table):
            running.add(table, piece)
    return running.hexdigest()


class _ColumnHash:
    """The hash of one column: its values in a row, and which of them are null.

    A null counts as 0, or the empty text, among the values. Texts count by their UTF-8
    bytes and their lengths.
    """

    def __init__(self, column: Column) -> None:
        self._column = column
        self._values = hashlib.blake2b()
        self._valid = hashlib.blake2b()
        self._lengths = hashlib.blake2b()

    def add(self, chunk: pa.Array) -> None:
        """Add the column's next values."""
        if self._column.nullable:
            valid: np.ndarray = chunk.is_valid().to_numpy(zero_copy_only=False)
            self._valid.update(valid.astype(np.uint8).tobytes())
        if self._column.dtype == "str":
            lengths, text = _encode_strings(chunk)
            self._lengths.update(lengths)
            self._values.update(text)
        else:
            self._values.update(_encode_numbers(chunk))

    def digest(self) -> bytes:
        """Return the hash of all values so far, 192 bytes."""
        return self._values.digest() + self._valid.digest() + self._lengths.digest()


def _encode_numbers(chunk: pa.Array) -> bytes:
    """Return numbers as little-endian bytes of eight each, nulls as 0."""
    import pyarrow as pa

    if pa.types.is_boolean(chunk.type):
        chunk = chunk.cast(pa.uint8())
    values: np.ndarray = chunk.fill_null(0).to_numpy(zero_copy_only=False)
    if values.dtype.kind == "f":
        # one not-a-number: its sign and payload depend on the processor that made it
        values = np.where(np.isnan(values), np.nan, values).astype("<f8")
    else:
        values = values.astype("<i8")
    return values.tobytes()


def _encode_strings(chunk: pa.Array) -> tuple[bytes, bytes]:
    """Return the lengths of texts, eight bytes each, and their UTF-8 bytes in a row."""
    text = chunk.fill_null("")
    if len(text) == 0:
        return b"", b""
    _, offsets_buffer, data_buffer = text.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[text.offset :][: len(text) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    data = data_buffer[first:last].to_pybytes() if data_buffer else b""
    return np.diff(offsets).astype("<i8").tobytes(), data
