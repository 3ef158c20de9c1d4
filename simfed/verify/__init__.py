"""Checks of a run directory: is it what its scenario comes to?

`run.py` says in which order things are checked, `invariants.py` holds files against
each other, `again.py` plays and learns again. Begin reading at `verify`.
"""

from __future__ import annotations

from simfed.ground.lazy import load_names

_HOMES = {
    "find_broken": "invariants",
    "verify": "run",
}

__all__ = sorted(_HOMES)
__getattr__ = load_names(__name__, _HOMES)
