"""When the server merges, and what: the one place in which kinds of servers differ.

A synchronous server merges when everybody it waits for has arrived or is lost. Deadline,
semi-asynchronous and asynchronous servers are the same server with another barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from simfed.sim.flight import Flight

__all__ = ["Barrier", "FullBarrier"]


class Barrier(Protocol):
    """Watches participations start and end; says when it is time to merge."""

    def started(self, flights: Sequence[Flight]) -> None:
        """These clients have just been sent on their way."""
        ...

    def ended(self, flight: Flight) -> bool:
        """An upload has arrived or was lost; True: merge now."""
        ...

    def take(self) -> list[Flight]:
        """The flights that this merge is about, lost ones included, in client order."""
        ...

    def waited_s(self, taken: Sequence[Flight], now_s: float) -> float:
        """How long the server has waited since it last started clients, as a duration."""
        ...


class FullBarrier:
    """Merge when every client in flight has arrived or is lost."""

    def __init__(self) -> None:
        self._away = 0
        self._flights: list[Flight] = []

    def started(self, flights: Sequence[Flight]) -> None:
        self._flights = sorted(flights, key=lambda flight: flight.client)
        self._away = len(flights)

    def ended(self, flight: Flight) -> bool:
        self._away -= 1
        return self._away == 0

    def take(self) -> list[Flight]:
        taken, self._flights = self._flights, []
        return taken

    def waited_s(self, taken: Sequence[Flight], now_s: float) -> float:
        # all started at once, so the longest sum of durations is exact where a difference of
        # instants would not be
        return max(flight.elapsed_s for flight in taken)
