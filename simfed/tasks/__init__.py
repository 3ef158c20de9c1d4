"""Tasks of a scenario's clients in work and bytes, and the price of its privacy.

Both sides of a run build on this room: the clock (`simfed.sim`) plays tasks, and
learning (`simfed.learn`) carries them out. `tasks` holds the tasks and their sizes,
`epochs` the lengths of partial work, `privacy` the account of ε, and `covered` what a
privacy theorem covers. Begin with `Tasks.task`.
"""

from __future__ import annotations

from simfed.ground.lazy import load_names

_HOMES = {
    "LocalEpochs": "epochs",
    "Tasks": "tasks",
}

__all__ = sorted(_HOMES)
__getattr__ = load_names(__name__, _HOMES)
