"""Studies: grids of scenarios × seeds, their folder, and their comparison.

`run_study(path, out)` runs what is not yet done of a study file; `load_study(out)`
returns its results as data frames; `compare(a, b)` holds runs against each other
without a study.

- `plan`: axes and settings, a validated scenario for each; nothing runs
- `address`: a run's address, a hash of everything that its results depend on
- `store`: the folder, whose runs lie at their addresses
- `drive`: takes the runs that nobody is at; `places` is where they are done
- `work`: one run, in whatever process comes to it; `kinds`: scenarios, or apps
- `outcomes`, `results`: the runs as data frames, and how arms compare
- `targets`: what arms spent to reach a target
- `tables`, `page`, `target_figure`, `show`: what people see of it

Begin reading with `drive.run_study`.

Imports nothing heavy until it is asked to do something.
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
