"""simfed: a discrete-event simulator of federated learning.

It can be trusted with a decision:

    import simfed
    scenario = simfed.load_scenario("scenarios/quickstart.yaml", {"rounds": 20})
    result = simfed.run(scenario, out="runs/quick")
    result.rounds                                 # pandas.DataFrame, as its siblings
    simfed.compare(result, simfed.run("other.yaml"))             # in plain words

One word, one meaning:

- scenario: a validated, frozen experiment file
- run: scenario + seed → run directory
- study: many runs and what to compare
- client, server: the federation; a *prototype* is an architecture and its weights
- round: one exchange: tasks go out, contributions come back, a merge follows
- task: what one client is asked to do in a round
- contribution: what it sends back
- arm: a compression strategy, as a bandit sees it; *pull*, *update*, *reward*,
  *regret*
- codec: how an update travels; the *residual* keeps the rest; the *payload* goes
- uplink: client to server; *downlink*: server to client
- link, path: what bytes cross; a *flow* is one transfer on a path
- barrier: what the server waits for; the *cohort* is who takes part
- profile: a device's calibrated times
- span, track: an interval on a timeline, and the line it is drawn on

Units are seconds, bytes and bytes per second inside; suffixes say so (`_s`, `_at_s`,
`_bytes`, `_bytes_per_s`). Host time is spelled `wall_*` and never enters simulated
time.

Importing this package imports neither torch nor simpy; names load when they are first
used.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if (
    sys.argv[:1] == ["-m"]
    and "simfed" in sys.orig_argv
    and sys.path[:1] == [os.getcwd()]
):
    # `python -m simfed` puts the current folder first, which may be a stranger's; the
    # command `simfed` does not. It is looked at last, and only where simfed itself lies
    # in it.
    _here = sys.path.pop(0)
    if os.path.realpath(__file__).startswith(
        os.path.join(os.path.realpath(_here), "simfed", "")
    ):
        sys.path.append(_here)

from simfed.ground.errors import (
    BrokenInvariant,
    InputError,
    InputErrors,
    Interrupted,
    RunFailed,
    SimfedError,
)
from simfed.ground.registry import register
from simfed.ground.version import VERSION as __version__

if TYPE_CHECKING:
    from simfed import compress, flower, net
    from simfed.experiment.checks import check
    from simfed.experiment.running import RunResult, load_run, run
    from simfed.scenario import Scenario, load_scenario
    from simfed.study import Comparison, StudyResult, compare, load_study, run_study

_HOMES = {
    "Comparison": "simfed.study",
    "RunResult": "simfed.experiment.running",
    "Scenario": "simfed.scenario",
    "StudyResult": "simfed.study",
    "check": "simfed.experiment.checks",
    "compare": "simfed.study",
    "load_run": "simfed.experiment.running",
    "load_scenario": "simfed.scenario",
    "load_study": "simfed.study",
    "run": "simfed.experiment.running",
    "run_study": "simfed.study",
}
_ROOMS = ("compress", "flower", "net", "testing")

__all__ = [
    "BrokenInvariant",
    "Comparison",
    "InputError",
    "InputErrors",
    "Interrupted",
    "RunFailed",
    "RunResult",
    "Scenario",
    "SimfedError",
    "StudyResult",
    "__version__",
    "check",
    "compare",
    "compress",
    "flower",
    "load_run",
    "load_scenario",
    "load_study",
    "net",
    "register",
    "run",
    "run_study",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"simfed.{name}")
    raise AttributeError(f"module 'simfed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
