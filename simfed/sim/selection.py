"""Who takes part in a round."""

from __future__ import annotations

from typing import Any

import numpy as np

from simfed.seeding import Streams

__all__ = ["cohort"]


def cohort(
    streams: Streams, round: int, clients: int, clients_per_round: int | None
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Client ids in ascending order: all, or a uniformly random subset of the given size.

    Costs O(size of the cohort), however many clients there are.

    >>> cohort(Streams(0), 1, 5, None)
    array([0, 1, 2, 3, 4])
    >>> len(set(cohort(Streams(0), 1, 1_000_000, 100).tolist()))
    100
    """
    if clients_per_round is None or clients_per_round == clients:
        return np.arange(clients)
    rng = streams("selection", round)
    return np.sort(rng.choice(clients, clients_per_round, replace=False, shuffle=False))
