"""The processes that share a run's learning, and what their time is spent on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from simfed.learn.crew import Crew, is_worth_sharing
from simfed.learn.participations import Assignment, Trained, Unit, Worker

Units = tuple[list[Unit], list[float]]
"""Units of work, and the FLOPs of each."""


class Processes:
    """Units of work, in this process or shared with others; `close` ends these.

    Attributes: `wall_s`, activity → host seconds of this process so far; `busy_s`, those of them
    on processors.
    """

    def __init__(self, worker: Worker, workers: int) -> None:
        self._worker = worker
        self._crew = Crew(worker, workers)
        self._batches = 0
        self.busy_s = worker.busy_s
        self.wall_s = dict.fromkeys([*worker.activities, "compression", "server"], 0.0)

    def parts(self, flops: float, groups: int) -> int:
        """See `Crew.parts`."""
        return self._crew.parts(flops, groups)

    def run(self, units: Sequence[Unit], costs: Sequence[float]) -> list[Any]:
        """What the units come to, in order; the time goes to the activities' account."""
        if not units:
            return []
        begun = time.perf_counter()
        alone = self._crew.workers == 1 or len(units) == 1
        if alone or not (is_worth_sharing(sum(costs)) or self._worker.takes_longer(units)):
            answers = [self._worker.answer(*unit) for unit in units]
        else:
            answers = self._shared(units, costs)
        spent = dict.fromkeys(self.wall_s, 0.0)
        for _, seconds in answers:
            for activity, wall_s in seconds.items():
                spent[activity] += wall_s
        wall_s = (time.perf_counter() - begun) / max(sum(spent.values()), 1e-9)
        for activity, share in spent.items():
            self.wall_s[activity] += wall_s * share
        return [result for result, _ in answers]

    def _shared(
        self, units: Sequence[Unit], costs: Sequence[float]
    ) -> list[tuple[Any, dict[str, float]]]:
        shelf = self._worker.shelf
        self._batches += 1
        shelf.make_room()
        self._worker.batch = units
        packed = [
            (self._batches, at, name, shelf.pack(arguments))
            for at, (name, arguments) in enumerate(units)
        ]
        return [
            (shelf.unpack(answer, copied=True) if isinstance(answer, bytes) else answer, seconds)
            for answer, seconds in self._crew.map("run", packed, costs)
        ]

    def each(self, name: str, calls: Sequence[tuple[Any, ...]], costs: Sequence[float]) -> Any:
        """What a method of the kit's answers to each of these calls."""
        return self.run([(name, call) for call in calls], costs)

    def encode(self, participation: Assignment, trained: Trained) -> Trained:
        """What travels of what was trained, compressed in this process."""
        begun = time.perf_counter()
        encoded = self._worker.encode(participation, trained)
        self.wall_s["compression"] += time.perf_counter() - begun
        return encoded

    def close(self) -> None:
        """End the processes that were forked; this one goes on."""
        self._crew.close()
