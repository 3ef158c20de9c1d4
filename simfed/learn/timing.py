"""Host seconds by activity, on processes and on an accelerator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from simfed.learn.memory import Arena

__all__ = ["ACTIVITIES", "Stopwatch"]

ACTIVITIES = ("gradients", "compression", "logits", "distillation", "local_losses", "evaluation")


class Stopwatch:
    """Adds up what each activity takes, a row per process in shared memory.

    An accelerator works behind the program's back, so there the time between two marks in its
    queue is taken, and read when the queue has been waited for anyway (`settle`).
    """

    def __init__(self, arena: Arena, processes: int, *, cuda: bool = False) -> None:
        # as NumPy sees them: PyTorch takes ten times as long to add a number to one place
        self._seconds = arena.zeros(
            processes, len(ACTIVITIES), dtype=torch.float64, on_host=True
        ).numpy()
        self.process = 0
        self._cuda = cuda
        self._marks: list[tuple[int, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def spending(self, activity: str) -> Iterator[None]:
        """Time spent inside belongs to `activity`."""
        column = ACTIVITIES.index(activity)
        if self._cuda:
            begin, end = _mark(), _mark()
            begin.record()
            yield
            end.record()
            self._marks.append((column, begin, end))
            return
        since = time.perf_counter()
        yield
        self._seconds[self.process, column] += time.perf_counter() - since

    def settle(self) -> None:
        """Read the marks if the accelerator has done everything: nobody may have waited for it."""
        if self._marks and not self._marks[-1][2].query():
            return  # they are read when somebody has
        for column, begin, end in self._marks:
            self._seconds[self.process, column] += begin.elapsed_time(end) / 1e3
        self._marks.clear()

    def totals(self) -> list[float]:
        """Seconds per activity so far, over all processes."""
        totals: list[float] = self._seconds.sum(0).tolist()
        return totals


def _mark() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
