"""Collects the facts of a run, row by row, and keeps them as columns.

Appending a row costs well under a microsecond: the row lists are plain attributes. Every few
thousand, while they are in the processor's cache, rows become Arrow columns, and these, with a
folder to spill into, Parquet segments on disk, so that a long run's memory does not grow with its
length and a checkpoint writes only what is new.

The segments of a table are a chain: the name of each ends in a hash of its content and of the name
before it, the first one's of the run's id. A segment that was changed, moved or taken from another
run is none of the chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simfed.ground.errors import InputError, RunFailed
from simfed.ground.inputs import read_bytes
from simfed.ground.plain import Plain
from simfed.ground.uses import LinkUses
from simfed.record import files
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

_BLOCK = 4096
"""Rows that become columns at once: of 50,000, each is read a column at a time from memory, which
takes twice as long."""


class DamagedSegment(InputError):
    """Recorded rows that are lost."""


class Recorder:
    """The tables of one run while it runs.

    `recorder.spans.append(Span(...))` and its siblings record; `settle()` at a round's end bounds
    the memory; `table(name)` gives everything recorded so far.

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
        run: str = "",
        rows_in_memory: int = 50_000,
        own: OwnColumns | None = None,
    ) -> None:
        """`segments`: the folder for full lists of rows; None keeps them in memory, as columns.
        `run`: the id of the run whose rows they are. `own`: table → columns that this
        run has beside everybody's (`Parts.own_columns`)."""
        self.own: OwnColumns = own or {}
        for name, table in TABLES.items():
            setattr(self, name, table.make_rows())
        self._folder = segments
        self._rows_in_memory = rows_in_memory
        self._chunks: dict[str, list[pa.Table]] = {name: [] for name in TABLES}
        """Columns in memory: with a folder, those that no segment holds yet."""
        self._chains = {name: _Chain(name, run) for name in TABLES}

    def settle(self) -> None:
        """Turn lists of rows that have grown long into columns; call at round borders."""
        for name in TABLES:
            if len(getattr(self, name)) >= min(_BLOCK, self._rows_in_memory):
                self._pack(name)
                if self._in_memory(name) >= self._rows_in_memory:
                    self._spill(name)

    def flush(self) -> None:
        """Turn all rows into columns, and write them as segments where there is a folder."""
        for name in TABLES:
            self._pack(name)
            self._spill(name)

    def batches(self, name: str) -> Iterator[pa.Table]:
        """A table in pieces, in the order of recording; at least one piece.

        Raises: `RunFailed` where a segment is no longer what was written.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._folder is not None:
            try:
                for content in self._chains[name].contents(self._folder):
                    yield pq.read_table(pa.BufferReader(content), schema=self.schema(name))
            except InputError as error:
                raise RunFailed(str(error)) from error
        yield from self._chunks[name]
        yield _build_table(self.schema(name), getattr(self, name))

    def schema(self, name: str) -> pa.Schema:
        """The Arrow schema of a table of this run."""
        return arrow_schema(name, self.own.get(name, ()))

    def table(self, name: str) -> pa.Table:
        """All rows of the table so far, those on disk included."""
        import pyarrow as pa

        return pa.concat_tables(self.batches(name))

    def state(self) -> dict[str, list[Plain]]:
        """How many segments each table has on disk, and the last one's hash; everything must have
        been flushed."""
        if any(getattr(self, name) or self._chunks[name] for name in TABLES):
            raise ValueError("rows that are not on disk cannot be part of a checkpoint")
        return {name: [chain.length, chain.last] for name, chain in self._chains.items()}

    def check(self, state: Mapping[str, Sequence[Plain]]) -> None:
        """Read these segments and change nothing.

        Raises: `DamagedSegment` that names the first one that is missing or not what was written,
        `InputError` where one cannot be read.
        """
        if self._folder is None:
            raise ValueError("segments are restored from a folder")
        for name, chain in self._chains.items():
            length, last = state[name]
            for _ in chain.first(int(length), str(last)).contents(self._folder):
                pass

    def restore(self, state: Mapping[str, Sequence[Plain]] | None) -> None:
        """Go on after these segments (None: there are none); others, of work that is done again,
        are deleted."""
        if self._folder is None:
            raise ValueError("segments are restored from a folder")
        files.delete_partials(self._folder)
        for name, chain in self._chains.items():
            length, last = state[name] if state is not None else (0, "")
            chain = self._chains[name] = chain.first(int(length), str(last))
            for number, paths in _find_segments(self._folder, name).items():
                for path in paths if number >= chain.length else ():
                    path.unlink()

    def _pack(self, name: str) -> None:
        """Turn the collected rows of a table into columns."""
        rows: list[Any] | LinkUses = getattr(self, name)
        if rows:
            self._chunks[name].append(_build_table(self.schema(name), rows))
            rows.clear()

    def _in_memory(self, name: str) -> int:
        return sum(columns.num_rows for columns in self._chunks[name])

    def _spill(self, name: str) -> None:
        """Its columns become a segment, where there is a folder."""
        import pyarrow as pa

        if self._folder is not None and self._chunks[name]:
            self._write_segment(self._folder, name, pa.concat_tables(self._chunks[name]))
            self._chunks[name].clear()

    def _write_segment(self, folder: Path, name: str, columns: pa.Table) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        content = pa.BufferOutputStream()
        try:
            pq.write_table(columns, content, compression="zstd")
            folder.mkdir(parents=True, exist_ok=True)
            self._chains[name] = self._chains[name].write(folder, content.getvalue())
        except OSError as error:
            raise RunFailed(f"{folder}: cannot be written ({error.strerror or error})") from error


@dataclass(frozen=True)
class _Chain:
    table: str
    run: str
    length: int = 0
    last: str = ""
    """The last segment's hash; of an empty chain, nothing."""

    def first(self, length: int, last: str) -> _Chain:
        """As many of its first segments, of which the last one has this hash."""
        return replace(self, length=length, last=last)

    def write(self, folder: Path, content: pa.Buffer) -> _Chain:
        """Write a segment to the folder; the chain that ends with it."""
        digest = self._hash(self.last, content)
        path = folder / f"{self.table}-{self.length:06d}-{digest}.parquet"
        files.put_file(path, lambda temporary: temporary.write_bytes(content))
        return replace(self, length=self.length + 1, last=digest)

    def contents(self, folder: Path) -> Iterator[bytes]:
        """What its segments hold, each checked as it is read. Raises: `InputError`."""
        paths = _find_segments(folder, self.table)
        before, path = "", folder
        for number in range(self.length):
            candidates = paths.get(number, [])
            if not candidates:
                path = folder / f"{self.table}-{number:06d}-….parquet"
                raise _make_damage_error(path, "it is missing")
            for path in candidates:
                content = read_bytes(path)
                digest = self._hash(before, content)
                if path.stem.endswith(f"-{digest}"):
                    break
            else:
                raise _make_damage_error(path, "it was changed, moved, or is of another run")
            yield content
            before = digest
        if before != self.last:
            raise _make_damage_error(path, "it is of another checkpoint")

    def _hash(self, before: str, content: bytes | pa.Buffer) -> str:
        running = hashlib.blake2b(f"{self.run} {self.table} {before}".encode(), digest_size=16)
        running.update(content)
        return running.hexdigest()


def _find_segments(folder: Path, table: str) -> dict[int, list[Path]]:
    """The files of a table by their number in the chain."""
    by_number: dict[int, list[Path]] = {}
    for path in sorted(folder.glob(f"{table}-*.parquet")):
        number = path.name[len(table) + 1 :].partition("-")[0]
        if number.isdecimal():
            by_number.setdefault(int(number), []).append(path)
    return by_number


def _make_damage_error(path: Path, got: str) -> DamagedSegment:
    return DamagedSegment("a whole segment of this run", where=str(path), problem=got)


def _build_table(schema: pa.Schema, rows: list[Any] | LinkUses) -> pa.Table:
    import pyarrow as pa

    if not rows:
        return schema.empty_table()
    if isinstance(rows, LinkUses):
        blocks: list[Any] = [rows.columns()]
    else:
        parts = (rows[first : first + _BLOCK] for first in range(0, len(rows), _BLOCK))
        blocks = [zip(*part, strict=True) for part in parts]
    tables = []
    for columns in blocks:
        arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
        tables.append(pa.Table.from_arrays(arrays, schema=schema))
    return pa.concat_tables(tables)
