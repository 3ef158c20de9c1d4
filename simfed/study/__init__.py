"""Studies: grids of scenarios × seeds, their folder, and their comparison.

`run_study(path, out)` runs what is not yet done of a study file; `load_study(out)`
gives its results as data frames; `compare(a, b)` holds runs against each other without
a study. Imports nothing heavy until it is asked to do something.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Comparison": "pairs",
    "StudyResult": "results",
    "compare": "pairs",
    "load_study": "results",
    "plan_study": "plan",
    "run_study": "drive",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
