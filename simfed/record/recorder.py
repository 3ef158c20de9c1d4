"""Collects the facts of a run, row by row, and keeps them as columns.

Appending a row costs well under a microsecond: the row lists are plain attributes. Now and then the
rows become Arrow columns, and with a folder to spill into, Parquet segments on disk, so that a long
run's memory does not grow with its length and a checkpoint writes only what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simfed.errors import RunFailed
from simfed.record.schema import (
    TABLES,
    ClientResult,
    LinkUse,
    Participation,
    PolicyValue,
    PrototypeResult,
    Round,
    Span,
    arrow_schema,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Recorder"]


class Recorder:
    """The tables of one run while it runs.

    `recorder.spans.append(Span(...))` and its siblings record; `settle()` at a round's end bounds
    the memory; `table(name)` gives everything recorded so far.

    >>> recorder = Recorder()
    >>> recorder.policies.append(PolicyValue(1, 0, "top-k", 0.25))
    >>> recorder.table("policies").to_pylist()
    [{'round': 1, 'client': 0, 'arm': 'top-k', 'value': 0.25}]
    """

    def __init__(
        self,
        segments: Path | None = None,
        *,
        rows_in_memory: int = 50_000,
        losses: tuple[str, ...] = (),
    ) -> None:
        """`segments`: the folder for full lists of rows; None keeps them in memory, as columns.
        `losses`: columns that the method adds to the prototypes."""
        self._losses = losses
        self.rounds: list[Round] = []
        self.prototypes: list[PrototypeResult | tuple[Any, ...]] = []
        self.participations: list[Participation] = []
        self.policies: list[PolicyValue] = []
        self.links: list[LinkUse] = []
        self.spans: list[Span] = []
        self.clients: list[ClientResult] = []
        self._folder = segments
        self._rows_in_memory = rows_in_memory
        self._chunks: dict[str, list[pa.Table]] = {name: [] for name in TABLES}
        self._segments: dict[str, int] = dict.fromkeys(TABLES, 0)

    def settle(self) -> None:
        """Turn lists of rows that have grown long into columns; call at round borders."""
        for name in TABLES:
            if len(getattr(self, name)) >= self._rows_in_memory:
                self._put_away(name)

    def flush(self) -> None:
        """Turn all rows into columns, and write them as segments where there is a folder."""
        for name in TABLES:
            if getattr(self, name):
                self._put_away(name)

    def batches(self, name: str) -> Iterator[pa.Table]:
        """A table in pieces, in the order of recording; at least one piece."""
        import pyarrow.parquet as pq

        for number in range(self._segments[name]):
            yield pq.read_table(self._segment(name, number), schema=self.schema(name))
        yield from self._chunks[name]
        yield _columns(self.schema(name), getattr(self, name))

    def schema(self, name: str) -> pa.Schema:
        """The Arrow schema of a table of this run."""
        return arrow_schema(name, self._losses)

    def table(self, name: str) -> pa.Table:
        """A whole table."""
        import pyarrow as pa

        return pa.concat_tables(self.batches(name))

    def state(self) -> dict[str, int]:
        """How many segments each table has on disk; everything must have been flushed."""
        if any(getattr(self, name) or self._chunks[name] for name in TABLES):
            raise ValueError("rows that are not on disk cannot be part of a checkpoint")
        return dict(self._segments)

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on after these segments; later ones, of work that is done again, are deleted.

        Raises: `ValueError` where one of these segments is missing.
        """
        if self._folder is None:
            raise ValueError("segments are restored from a folder")
        for name in TABLES:
            number = self._segments[name] = int(state.get(name, 0))
            missing = [n for n in range(number) if not self._segment(name, n).exists()]
            if missing:
                raise ValueError(f"{self._segment(name, missing[0])} is missing")
            while self._segment(name, number).exists():
                self._segment(name, number).unlink()
                number += 1

    def _put_away(self, name: str) -> None:
        rows: list[Any] = getattr(self, name)
        columns = _columns(self.schema(name), rows)
        if self._folder is None:
            self._chunks[name].append(columns)
        else:
            self._write_segment(self._folder, name, columns)
        rows.clear()

    def _write_segment(self, folder: Path, name: str, columns: pa.Table) -> None:
        import pyarrow.parquet as pq

        try:
            folder.mkdir(parents=True, exist_ok=True)
            pq.write_table(columns, self._segment(name, self._segments[name]), compression="zstd")
        except OSError as error:
            raise RunFailed(f"{folder}: cannot be written ({error.strerror or error})") from error
        self._segments[name] += 1

    def _segment(self, name: str, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}-{number:06d}.parquet"


def _columns(schema: pa.Schema, rows: list[Any]) -> pa.Table:
    import pyarrow as pa

    if not rows:
        return schema.empty_table()
    arrays = [
        pa.array(values, field.type)
        for values, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
