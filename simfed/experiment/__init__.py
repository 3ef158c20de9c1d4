"""Runs of scenarios: parts, checks, the run with its directory, and Ctrl-C.

Begin with `running`: `run` takes a scenario from its parts to its result. `assembly`
puts parts together (`Parts`, made when first asked for), `checks` finds what is wrong
with them before anything is played (`simfed validate`), `progress` is what a terminal
shows of a run, `interrupt` is Ctrl-C that loses nothing, and `dask_pool` has learning
done by the workers of a cluster. `cost` foretells what a run will take, `capacities`
works out how the capacities of a finished run's links stepped.

This is the room in which clock and learning meet: both are imported by it, and neither
knows of the other.
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
