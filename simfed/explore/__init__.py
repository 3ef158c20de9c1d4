"""Pages that answer what-if questions: a run or scenario with other settings."""

from __future__ import annotations

from simfed.ground.lazy import load_names

_HOMES = {
    "ExploredWorld": "world",
    "play": "world",
}

__all__ = sorted(_HOMES)
__getattr__ = load_names(__name__, _HOMES)
