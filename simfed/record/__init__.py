"""Frozen facts of a run: tables, run directory, fingerprint, checkpoint, reading.

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
