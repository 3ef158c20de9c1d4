"""Frozen facts of a run: tables, run directory, fingerprint, checkpoint, reading.

Imports pyarrow when tables are made or read, pandas when a data frame is asked for, and
neither simpy nor torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Checkpoint": "checkpoint",
    "Recorder": "recorder",
    "Run": "read",
    "RunDirectory": "directory",
    "fingerprint": "digest",
    "open_run": "read",
    "read_manifest": "read",
    "summarise": "summary",
    "versions": "manifest",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
