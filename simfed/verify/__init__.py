"""Checks of a run: its tables' invariants, its clock and its learning played again."""

from __future__ import annotations

from simfed.ground.lazy import load_names

_HOMES = {
    "find_broken": "invariants",
    "verify": "run",
}

__all__ = sorted(_HOMES)
__getattr__ = load_names(__name__, _HOMES)
