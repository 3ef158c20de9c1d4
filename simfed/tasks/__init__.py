"""Tasks of a scenario's clients in work and bytes, and the price of its privacy."""

from __future__ import annotations

from simfed.ground.lazy import load_names

_HOMES = {
    "LocalEpochs": "epochs",
    "Tasks": "tasks",
}

__all__ = sorted(_HOMES)
__getattr__ = load_names(__name__, _HOMES)
