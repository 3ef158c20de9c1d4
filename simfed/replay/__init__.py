"""Learning replay: answers of learning from earlier runs with the same decisions.

All of learning passes through the `Workload` contract as plain numbers, so a run whose
decisions (who takes part, with which arm and K, whose upload is lost) were met before
can be answered from a record. Imports neither torch nor simpy.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Cached": "cached",
    "Trajectory": "store",
    "TrajectoryStore": "store",
    "learning_key": "key",
    "learning_setup": "key",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
