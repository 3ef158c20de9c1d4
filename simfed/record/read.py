"""Reading a run directory: its tables as data frames, its facts as plain values.

Imports neither simpy nor torch. Whatever is not a whole, finished run directory of a
known format ends in one sentence.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from simfed.ground.errors import InputError, check_known
from simfed.ground.inputs import find_memory_bytes, read_json, read_text
from simfed.ground.measure import CLASS_MEASURES, Measure, read_measure
from simfed.ground.plain import Plain
from simfed.ground.registry import import_part
from simfed.ground.tables import open_parquet
from simfed.record.schema import (
    CHOICES,
    EPSILON,
    FORMAT,
    OPTIONAL_TABLES,
    OUTCOMES,
    OWN_LOSSES,
    START,
    TABLES,
    arrow_schema,
    columns,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Row: TypeAlias = tuple[Plain, ...]
"""A row of a table: the values of some of its columns."""


_WORDS = {"outcome": OUTCOMES, "choice": CHOICES}
"""Column → the words in it."""


class Run:
    """A finished run: `run.rounds`, `run.participations`, … are data frames.

    They are read on first use and kept; every name in `TABLES` works. Columns that may
    be empty and hold whole numbers (`critical_client`, `spans.client`) have the dtype
    `Int64`, so that they stay whole numbers.

    Made by `open_run`, or without a folder from a run that was kept in memory.
    """

    rounds: pd.DataFrame
    """One row per communication round."""
    prototypes: pd.DataFrame
    """One row per round and prototype."""
    participations: pd.DataFrame
    """One row per round and client that took part."""
    policies: pd.DataFrame
    """One row per round, client and arm, where policies learn."""
    links: pd.DataFrame
    """One row per link and interval of constant use."""
    spans: pd.DataFrame
    """One row per interval on a track."""
    clients: pd.DataFrame
    """One row per evaluated round and client with a model of its own."""

    def __init__(
        self,
        *,
        path: Path | None,
        manifest: dict[str, Plain],
        summary: dict[str, Plain],
        scenario_yaml: str,
        read_table: Callable[[str], pa.Table],
    ) -> None:
        """Open a run.

        Args:
            path: its folder; None for a run that was not written.
            manifest: the content of `manifest.json`.
            summary: the content of `summary.json`.
            scenario_yaml: the text of its scenario.
            read_table: returns a whole table by its name.
        """
        self.path = path
        self.manifest = manifest
        self.summary = summary
        self.scenario_yaml = scenario_yaml
        self._read_table = read_table
        self._tables: dict[str, pa.Table] = {}

    def __repr__(self) -> str:
        return f"<run {self.manifest.get('name')!r}, fingerprint {self.fingerprint}>"

    def _repr_html_(self) -> str:
        """Return a notebook's view: summary and accuracy, drawn by reports."""
        return str(import_part("simfed.report.notebook:run_html")(self))

    @property
    def fingerprint(self) -> str:
        """The hash over everything simulated; equal means the same trajectory."""
        return str(self.manifest["fingerprint"])

    @property
    def seconds(self) -> str:
        """The kind of its seconds: `measured` of real clients, else `simulated`."""
        return "measured" if self.manifest.get("mode") == "deployed" else "simulated"

    @property
    def measure(self) -> Measure:
        """The measure of its models: accuracy, or a loss of its task."""
        return read_measure(self.manifest)

    @property
    def measures(self) -> list[Measure]:
        """The measure of its models, then the others that are one number each."""
        others = [
            one
            for one in CLASS_MEASURES.values()
            if one.column in self.prototypes and self.measure.key != "measure"
        ]
        return [*dict.fromkeys([self.measure, *others])]

    @cached_property
    def scenario(self) -> dict[str, Plain]:
        """The resolved scenario as plain values."""
        from simfed.ground.reading import parse_yaml

        where = f"{self.path}/scenario.yaml"
        loaded = parse_yaml(self.scenario_yaml, where=where)
        if not isinstance(loaded, dict):
            raise InputError("a mapping of keys to values", where=where, got=loaded)
        return loaded

    def table(self, name: str) -> pa.Table:
        """Return a table as Arrow columns, read on first use and kept.

        Raises:
            InputError: there is no table of this name, or its file is damaged.
        """
        check_known(name, TABLES, "a table:")
        if name not in self._tables:
            self._tables[name] = self._read_table(name)
        return self._tables[name]

    def read_schema(self, name: str) -> pa.Schema:
        """Return all columns of a table's file, also those that no schema knows."""
        if self.path is None or not (self.path / f"{name}.parquet").exists():
            return self.table(name).schema
        with open_parquet(self.path / f"{name}.parquet", find_memory_bytes()) as file:
            return file.schema_arrow

    def frame(self, name: str, rounds: Sequence[int] | None = None) -> pd.DataFrame:
        """Return a table as a new data frame.

        Args:
            name: of the table.
            rounds: only rows of these rounds; None for all.

        Raises:
            InputError: a column of words has a word that is none of its own.
        """
        import pandas as pd
        import pyarrow as pa
        import pyarrow.compute as pc

        table = self.table(name)
        if rounds is not None:
            wanted = pa.array([int(round) for round in rounds], pa.int64())
            table = table.filter(pc.is_in(table.column("round"), wanted))
        for word in sorted(_WORDS.keys() & set(table.column_names)):
            for strange in set(table.column(word).unique().to_pylist()) - {
                *_WORDS[word]
            }:
                problem = f"{word}: {strange!r} is none of {', '.join(_WORDS[word])}"
                raise InputError(where=f"{self.path}/{name}.parquet", problem=problem)
        frame: pd.DataFrame = table.to_pandas()
        for column in columns(name):
            if column.nullable and column.dtype == "int64":
                frame[column.name] = table.column(column.name).to_pandas(
                    types_mapper=lambda _: pd.Int64Dtype()
                )
        return frame

    def __getattr__(self, name: str) -> pd.DataFrame:
        """Return each table as a frame, by its name; read on first use and kept."""
        if name not in TABLES:
            raise AttributeError(f"a run has no {name!r}", name=name, obj=self)
        frame = self.frame(name)
        setattr(self, name, frame)
        return frame


def open_run(path: str | os.PathLike[str]) -> Run:
    """Return the finished run in a folder.

    Raises:
        InputError: the folder is not there, is no run directory, is of another format,
            holds a run that has not finished, or lacks a file; one sentence says which.
    """
    path = Path(path)
    manifest = read_manifest(path)
    if manifest["status"] != "finished":
        # an app on Flower's messages cannot be saved
        goes_on = (
            [] if manifest.get("mode") == "flower" else ["--resume goes on with it"]
        )
        raise InputError(
            "a finished run",
            where=str(path),
            problem=f"its status is {manifest['status']}",
            hint="; ".join(filter(None, [manifest.get("reason"), *goes_on])) or None,
        )
    if not isinstance(manifest.get("fingerprint"), str):
        raise InputError(
            "the fingerprint of a finished run",
            where=str(path / "manifest.json"),
            got=manifest.get("fingerprint"),
        )
    tables = [f"{name}.parquet" for name in TABLES if name not in OPTIONAL_TABLES]
    for file in ("scenario.yaml", "summary.json", *tables):
        if not (path / file).is_file():
            raise InputError(
                "a whole run directory",
                where=str(path),
                problem=f"{file} is missing",
                hint="copy it from where the run is whole, or run its scenario.yaml "
                "again",
            )
    return Run(
        path=path,
        manifest=manifest,
        summary=_read_object(path / "summary.json"),
        scenario_yaml=read_text(path / "scenario.yaml"),
        read_table=lambda name: _read_parquet(path / f"{name}.parquet", name),
    )


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Plain]:
    """Return the manifest of a run directory, whatever its status.

    That is `running`, `interrupted`, `failed` or `finished`.

    Raises:
        InputError: the folder is no run directory, or of another format.
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError(
            "a run directory",
            where=str(path),
            problem="a file" if path.exists() else "no such folder",
        )
    if not (path / "manifest.json").is_file():
        study = (path / "study.json").is_file()
        raise InputError(
            "a run directory",
            where=str(path),
            problem="a folder without manifest.json",
            hint="this is a study: simfed study report" if study else None,
        )
    manifest = _read_object(path / "manifest.json")
    if manifest.get("format") != FORMAT or "status" not in manifest:
        made_by = manifest.get("versions")
        writer = made_by.get("simfed") if isinstance(made_by, dict) else None
        raise InputError(
            f"a run directory of format {FORMAT}",
            where=str(path / "manifest.json"),
            got=manifest.get("format"),
            hint=f"simfed {writer} wrote it and reads it"
            if writer
            else "is it a run of simfed?",
        )
    return manifest


def number_turns(rows: Iterable[Row]) -> Iterator[tuple[int, Row]]:
    """Yield (turn, row) of rows of participations, in the table's order.

    A turn counts how often the client was started before in the same round: 0 at first.

    Args:
        rows: each begins with round and client.

    >>> [turn for turn, _ in number_turns([(1, 7), (1, 8), (1, 7)])]
    [0, 0, 1]
    """
    counts: Counter[tuple[int, int]] = Counter()
    for row in rows:
        yield counts[row[:2]], row
        counts[row[:2]] += 1


def _read_object(path: Path) -> dict[str, Plain]:
    """Return the object of a JSON file."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError("a JSON object", where=str(path), got=value)
    return value


_MAY_HAVE_MORE = (OWN_LOSSES, "clients")
"""Tables to which methods and measures add columns."""


def _read_parquet(path: Path, name: str) -> pa.Table:
    """Return a table from its file, its columns in the schema's order and types.

    An optional table without a file has no rows.

    Raises:
        InputError: the file is damaged, or a column is missing.
    """
    schema = arrow_schema(name)
    if name in OPTIONAL_TABLES and not path.exists():
        return schema.empty_table()
    with open_parquet(path, find_memory_bytes()) as file:
        names = file.schema_arrow.names
        missing = [field.name for field in schema if field.name not in names]
        if missing:
            raise InputError(
                where=str(path), problem=f"the column {missing[0]!r} is missing"
            )
        more = tuple(
            column
            for column in names
            if column not in schema.names
            and (name in _MAY_HAVE_MORE or column in (EPSILON, f"{START}_s"))
        )
        schema = arrow_schema(name, more)
        return file.read(columns=schema.names).select(schema.names).cast(schema)
