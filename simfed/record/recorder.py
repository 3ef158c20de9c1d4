"""Collects the facts of a run, row by row, and keeps them as columns.

Appending a row costs well under a microsecond: the row lists are plain attributes.
Every few thousand, while they are in the processor's cache, rows become Arrow columns,
and these, with a folder to spill into, Parquet segments on disk, so that a long run's
memory does not grow with its length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simfed.ground.errors import InputError, RunFailed
from simfed.ground.inputs import read_bytes
from simfed.ground.plain import Plain
from simfed.ground.uses import LinkUses
from simfed.ground.writing import replacing
from simfed.record.digest import sha256
from simfed.record.schema import (
    TABLES,
    ClientResult,
    OwnColumns,
    Participation,
    PolicyValue,
    PrototypeResult,
    Round,
    Span,
    arrow_schema,
)

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 4096
"""Rows that become columns at once: of 50,000, each is read a column at a time from
memory, which takes twice as long."""


class Recorder:
    """The tables of one run while it runs.

    `recorder.spans.append(Span(...))` and its siblings record; `settle()` at a round's
    end bounds the memory; `table(name)` returns everything recorded so far.

    >>> recorder = Recorder()
    >>> recorder.policies.append(PolicyValue(1, 0, "top-k", 0.25))
    >>> recorder.table("policies").to_pylist()
    [{'round': 1, 'client': 0, 'arm': 'top-k', 'value': 0.25}]
    """

    rounds: list[Round | tuple[Plain, ...]]
    prototypes: list[PrototypeResult | tuple[Plain, ...]]
    participations: list[Participation]
    policies: list[PolicyValue]
    links: LinkUses
    spans: list[Span]
    clients: list[ClientResult | tuple[Plain, ...]]

    def __init__(
        self,
        segments: Path | None = None,
        *,
        rows_in_memory: int = 50_000,
        own: OwnColumns | None = None,
    ) -> None:
        """Begin to record.

        Args:
            segments: the folder for full lists of rows; None keeps them in memory, as
                columns.
            rows_in_memory: rows of a table that are kept as objects.
            own: table → columns that this run has beside everybody's
                (`Parts.own_columns`).
        """
        self.own: OwnColumns = own or {}
        for name, table in TABLES.items():
            setattr(self, name, table.make_rows())
        self._folder = segments
        self._rows_in_memory = rows_in_memory
        self._chunks: dict[str, list[pa.Table]] = {name: [] for name in TABLES}
        """Columns in memory: with a folder, those that no segment holds yet."""
        self._segments: dict[str, list[tuple[Path, str]]] = {
            name: [] for name in TABLES
        }
        """File and digest of each."""

    def settle(self) -> None:
        """Turn lists of rows that have grown long into columns, and these into files.

        Call it at round borders.

        Raises:
            RunFailed: the disk refuses a file.
        """
        for name, chunks in self._chunks.items():
            if len(getattr(self, name)) < min(BLOCK, self._rows_in_memory):
                continue
            self._pack(name)
            in_memory = sum(columns.num_rows for columns in chunks)
            if self._folder and chunks and in_memory >= self._rows_in_memory:
                self._write_segment(self._folder, name)

    def batches(self, name: str) -> Iterator[pa.Table]:
        """Yield a table in pieces, in the order of recording; at least one piece.

        Raises:
            RunFailed: a file is no longer what was written.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        for path, digest in self._segments[name]:
            try:
                content = read_bytes(path)
            except InputError as error:
                raise RunFailed(str(error)) from error
            if sha256(content) != digest:
                raise RunFailed(f"{path}: was changed while the run was under way")
            yield pq.read_table(pa.BufferReader(content), schema=self.schema(name))
        yield from self._chunks[name]
        yield _build_table(self.schema(name), getattr(self, name))

    def schema(self, name: str) -> pa.Schema:
        """Return the Arrow schema of a table of this run, its own columns included."""
        return arrow_schema(name, self.own.get(name, ()))

    def table(self, name: str) -> pa.Table:
        """Return all rows of the table so far, those on disk included."""
        import pyarrow as pa

        return pa.concat_tables(self.batches(name))

    def _pack(self, name: str) -> None:
        """Turn the collected rows of a table into columns."""
        rows: list[Any] | LinkUses = getattr(self, name)
        if rows:
            self._chunks[name].append(_build_table(self.schema(name), rows))
            rows.clear()

    def _write_segment(self, folder: Path, name: str) -> None:
        """Move the columns in memory of a table to a new file in `folder`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        content, segments = pa.BufferOutputStream(), self._segments[name]
        columns = pa.concat_tables(self._chunks[name])
        path = folder / f"{name}-{len(segments):06d}.parquet"
        try:
            pq.write_table(columns, content, compression="zstd")
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as whole:
                whole.write_bytes(content.getvalue())
        except OSError as error:
            raise RunFailed(
                f"{folder}: cannot be written ({error.strerror or error})"
            ) from error
        segments.append((path, sha256(content.getvalue())))
        self._chunks[name].clear()


def _build_table(schema: pa.Schema, rows: list[Any] | LinkUses) -> pa.Table:
    """Return rows as columns, `BLOCK` rows at a time."""
    import pyarrow as pa

    if not rows:
        return schema.empty_table()
    if isinstance(rows, LinkUses):
        blocks: Iterable[Any] = rows.blocks()
    else:
        parts = (rows[first : first + BLOCK] for first in range(0, len(rows), BLOCK))
        blocks = (zip(*part, strict=True) for part in parts)
    tables = []
    for columns in blocks:
        arrays = [
            pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)
        ]
        tables.append(pa.Table.from_arrays(arrays, schema=schema))
    return pa.concat_tables(tables)
