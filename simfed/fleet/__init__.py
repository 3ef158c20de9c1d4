"""The fleet: clients' devices and links, their presence, faults and tasks.

`columns` has each client's device and link, `availability` when it is online,
`selection` who is chosen, `faults` what fails, `tasks` what a chosen one is asked, and
`contract` is where time and learning meet.
"""

from __future__ import annotations

from simfed.ground.lazy import load_names

_HOMES = {
    "Availability": "availability",
    "Battery": "battery",
    "Daily": "availability",
    "Evaluation": "contract",
    "FaultsSpec": "faults",
    "Fleet": "columns",
    "Markov": "availability",
    "Messages": "faults",
    "Outcome": "contract",
    "Rhythm": "faults",
    "Task": "contract",
    "cohort": "selection",
}

__all__ = sorted(_HOMES)
__getattr__ = load_names(__name__, _HOMES)
