"""Runs of scenarios: parts, checks, the run with its directory, and Ctrl-C.

`assembly` puts parts together, `checks` checks them, `running` plays the run with
checkpoints and resumption, `progress` is what a terminal shows of it, and `capacities`
works out how the capacities of a finished run's links stepped.
"""

from __future__ import annotations

from simfed.ground.lazy import load_names

_HOMES = {
    "Checks": "checks",
    "CtrlC": "interrupt",
    "Parts": "assembly",
    "check": "checks",
    "check_parts": "checks",
    "check_world": "checks",
    "list_profiles": "assembly",
    "make_parts": "assembly",
    "run": "running",
}

__all__ = sorted(_HOMES)
__getattr__ = load_names(__name__, _HOMES)
