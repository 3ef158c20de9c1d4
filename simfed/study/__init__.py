"""Studies: grids of scenarios × seeds, their folder, and their comparison.

`run_study(path, out)` runs what is not yet done of a study file; `load_study(out)`
gives its results as data frames; `compare(a, b)` holds runs against each other without
a study. Imports nothing heavy until it is asked to do something.
"""

from __future__ import annotations

from simfed.ground.lazy import load_names

_HOMES = {
    "Comparison": "pairs",
    "RunProcesses": "places",
    "ScenarioRuns": "kinds",
    "StudyFolder": "store",
    "StudyResult": "results",
    "check_plan": "drive",
    "compare": "pairs",
    "compute_addresses": "address",
    "draw_study_figure": "page",
    "load_study": "results",
    "plan_study": "plan",
    "render_study_page": "page",
    "run_study": "drive",
}

__all__ = [
    "Comparison",
    "StudyResult",
    "compare",
    "load_study",
    "plan_study",
    "run_study",
]
__getattr__ = load_names(__name__, _HOMES)
