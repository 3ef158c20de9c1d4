"""Pools of processes that do units of work: this one, and those forked from it.

A unit is a pure call of a `Bench` or its kit: what it gives depends on its arguments
alone. So a run's results depend neither on where units are done, nor on how often.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from simfed.learn.clients import Bench, Unit
from simfed.learn.crew import Crew, is_worth_sharing
from simfed.learn.shelf import Shelf

_ACTIVITIES = {
    "work": "training",
    "public_logits": "logits",
    "distil_public": "distillation",
    "own_loss": "local_losses",
    "test": "evaluation",
    "test_own": "evaluation",
    "attack_success": "evaluation",
}
"""Unit of work → what its time is spent on; of clients' work some is told apart."""


class UnitWorker:
    """The part of a process that does units.

    It is built before others are forked, which have it, too.
    """

    def __init__(self, bench: Bench, shelf: Shelf) -> None:
        self.bench = bench
        self.shelf = shelf
        self.batch: Sequence[Unit] = ()
        """The units that are shared now, in the first process: its own need no message.
        """
        self._batch = 0
        activities = (*_ACTIVITIES.values(), "compression", "server")
        self.busy_s = dict.fromkeys(activities, 0.0)
        """Activity → seconds on processors so far, of this process."""

    def begin_process(self, number: int) -> None:
        """Take this process's part of the shelf; called in each that was forked."""
        self.shelf = self.shelf.end(number)

    def run(self, unit: tuple[int, int, str, bytes]) -> tuple[Any, dict[str, float]]:
        """Return the `answer` to a unit of a batch; from another process packed.

        Args:
            unit: the batch's number, its own there, what it calls and, as it comes
                through a pipe, with what.
        """
        batch, at, name, packed = unit
        if not self.shelf.process:
            return self.answer(*self.batch[at])
        if batch != self._batch:
            self.shelf.clear()
            self._batch = batch
        result, seconds = self.answer(name, self.shelf.unpack(packed))
        return self.shelf.pack(result), seconds

    def answer(
        self, name: str, arguments: tuple[Any, ...]
    ) -> tuple[Any, dict[str, float]]:
        """Return the result of a unit, and host seconds by activity."""
        bench, activity = self.bench, _ACTIVITIES.get(name, "server")
        bench.spent_s.clear()
        begun_s, busy_s = time.perf_counter(), time.process_time()
        result = getattr(bench if name == "work" else bench.kit, name)(*arguments)
        wall_s, busy_s = time.perf_counter() - begun_s, time.process_time() - busy_s
        seconds = {}
        for apart, (apart_s, apart_busy_s) in bench.spent_s.items():
            seconds[apart] = apart_s
            self.busy_s[apart] += apart_busy_s
            wall_s, busy_s = wall_s - apart_s, busy_s - apart_busy_s
        self.busy_s[activity] += busy_s
        return result, {activity: wall_s, **seconds}


class ForkedPool:
    """A `Pool` of this process and those forked from it.

    Attributes: `wall_s`, activity → host seconds of this process so far; `busy_s`,
    those of them on processors.
    """

    def __init__(self, bench: Bench, workers: int) -> None:
        """Fork all but one of so many.

        Beside an accelerator there is this one alone.
        """
        workers = workers if bench.data.device.type == "cpu" else 1
        self._worker = UnitWorker(bench, Shelf(_list_rooms(bench, workers)))
        self._crew = Crew(self._worker, workers)
        self._batches = 0
        self.workers = workers
        self.busy_s = self._worker.busy_s
        self.wall_s = dict.fromkeys(self.busy_s, 0.0)
        self.close = self._crew.close
        bench.kit.run = self.run

    def run(self, units: Sequence[Unit], costs: Sequence[float]) -> list[Any]:
        """Do units and return their results in order.

        The time goes to the activities' account: what passed here is dealt to
        activities by what they took in all processes.
        """
        if not units:
            return []
        begun_s = time.perf_counter()
        if self.pays(units, costs):
            answers = self.share(units, costs)
        else:
            answers = [self._worker.answer(*unit) for unit in units]
        spent_s = dict.fromkeys(self.wall_s, 0.0)
        for _, seconds in answers:
            for activity, some_s in seconds.items():
                spent_s[activity] += some_s
        scale = (time.perf_counter() - begun_s) / max(sum(spent_s.values()), 1e-9)
        for activity, some_s in spent_s.items():
            self.wall_s[activity] += some_s * scale
        return [result for result, _ in answers]

    def parts(self, flops: float, groups: int) -> int:
        """Return the least number of parts of each group; see `Pool.parts`."""
        return -(-self.workers // groups) if is_worth_sharing(flops) else 1

    def pays(self, units: Sequence[Unit], costs: Sequence[float]) -> bool:
        """Return whether units take longer than the messages that share them.

        Training may take longer than its FLOPs say: steps of one client after another,
        or a method's own.
        """
        together = self._worker.bench.together
        return (
            self.workers > 1
            and len(units) > 1
            and (
                is_worth_sharing(sum(costs))
                or any(
                    name == "work" and together(orders[0].task.prototype) == 1
                    for name, (orders, *_) in units
                )
            )
        )

    def share(
        self, units: Sequence[Unit], costs: Sequence[float]
    ) -> list[tuple[Any, dict[str, float]]]:
        """Return each unit's result and its seconds by activity, of all processes."""
        shelf = self._worker.shelf
        self._batches += 1
        shelf.make_room()
        self._worker.batch = units
        packed = [
            (self._batches, at, name, shelf.pack(arguments))
            for at, (name, arguments) in enumerate(units)
        ]
        return [
            (
                shelf.unpack(answer, copied=True)
                if isinstance(answer, bytes)
                else answer,
                seconds,
            )
            for answer, seconds in self._crew.map("run", packed, costs)
        ]


def _list_rooms(bench: Bench, workers: int) -> list[int]:
    """Return the bytes of the shelf for each process.

    They hold two versions of every model on its way to the others, and of what was left
    out of the uploads of a cohort; one of those of another process, and its share of
    what clients have trained and leave out now.
    """
    if workers == 1:
        return [0]
    sizes = [4 * (one.parameters + one.buffers + 1024) for one in bench.facts.values()]
    trained = bench.tasks.setting.participants * max(sizes) // workers
    down, up = 2 * (sum(sizes) + trained * (workers - 1)), sum(sizes) + 2 * trained
    return [down] + [up] * (workers - 1)
