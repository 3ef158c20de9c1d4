"""Frozen facts of a run: tables, run directory, fingerprint, checkpoint, reading.

- `schema`: the tables, one row type each, whose annotations are the columns
- `recorder`: collects rows while a run is played
- `directory`: begins a run directory, goes on with it, finishes it
- `journal`: the answers of learning, over which a clock can be played again
- `checkpoint`: what was learned, and how much of the journal goes with it
- `aside`: the run that another one replaces, until that one has something to keep
- `read`: opens a finished run, its tables as data frames
- `digest`: the fingerprint, and hashes of files
- `summary`: the numbers of `summary.json`, and what held each round up

Begin reading with `schema`, then `directory`. Nothing in here knows how a run is
played: it is told rows, and asked for them.

Imports pyarrow when tables are made or read, pandas when a data frame is asked for, and
neither simpy nor torch.
"""

from __future__ import annotations

from simfed.ground.lazy import load_names

_HOMES = {
    "COMPRESSED": "journal",
    "Checkpoint": "checkpoint",
    "CheckpointFolder": "checkpoint",
    "Journal": "journal",
    "LinkUse": "schema",
    "NAME": "journal",
    "PolicyValue": "schema",
    "PrototypeResult": "schema",
    "Recorder": "recorder",
    "Round": "schema",
    "Run": "read",
    "RunDirectory": "directory",
    "Span": "schema",
    "TABLES": "schema",
    "columns": "schema",
    "describe_table": "schema",
    "digest_file": "digest",
    "digest_manifest": "digest",
    "digest_scenario": "digest",
    "digest_value": "digest",
    "explain_rounds": "summary",
    "fingerprint": "digest",
    "lock_folder": "lock",
    "open_run": "read",
    "rank_stragglers": "summary",
    "read_finished": "journal",
    "read_manifest": "read",
    "summarise": "summary",
    "versions": "manifest",
}

__all__ = [
    "Checkpoint",
    "Recorder",
    "Run",
    "RunDirectory",
    "fingerprint",
    "open_run",
    "read_manifest",
    "summarise",
    "versions",
]
__getattr__ = load_names(__name__, _HOMES)
