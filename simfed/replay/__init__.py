"""Learning replay: answers of learning from earlier runs with the same decisions.

All of learning passes through the `Workload` contract as plain numbers, so a run whose
decisions (who takes part, with which arm and K, whose upload is lost) were met before
can be answered from a record. Imports neither torch nor simpy.

`journaled` asks the run's own journal first, `cached` a `store` that runs share, under
a `key` of all that learning depends on; `parts` digests what users registered.
"""

from __future__ import annotations

from simfed.ground.lazy import load_names

_HOMES = {
    "Cached": "cached",
    "TrajectoryStore": "store",
    "digest_named_data": "key",
    "learning_key": "key",
}

__all__ = [
    "Cached",
    "TrajectoryStore",
    "learning_key",
]
__getattr__ = load_names(__name__, _HOMES)
