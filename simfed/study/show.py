"""The progress of a study: a bar on a terminal, a plain line per run elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from simfed.ground.units import format_duration


class StudyProgress:
    """Shows on standard error how far a study is: a bar on a terminal, else lines.

    `quiet` shows nothing.
    """

    def __init__(self, name: str, *, quiet: bool) -> None:
        self._name, self._quiet = name, quiet
        self._ended = 0
        self._bar: Any = None

    def begin(self, done: int, count: int) -> None:
        """Show that the study begins.

        Args:
            done: runs that are over already.
            count: runs in all.
        """
        self._done, self._count = done, count
        self._begun_at_wall_s = time.monotonic()
        self.say(f"{self._name}: {done} of {count} runs done")
        if sys.stderr.isatty() and not self._quiet:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._name, total=count, completed=done)
            self._bar.start()

    def ended(self, run: str, how: str, wall_s: float | None = None) -> None:
        """Show that a run has ended.

        Args:
            run: in words.
            how: `finished`, `finished elsewhere`, or `failed: ` and why.
            wall_s: host seconds that it took here; None where it was elsewhere.
        """
        self._done += 1
        self._ended += wall_s is not None
        took = "" if wall_s is None else f" in {format_duration(wall_s)}"
        left_s = self._estimate_left_s()
        left = f", about {format_duration(left_s)} left" if left_s else ""
        if self._bar is None:
            self.say(f"[{self._done}/{self._count}] {run}: {how}{took}{left}")
            return
        if how != "finished":
            self.say(f"{run}: {how}")
        self._bar.update(
            self._task, completed=self._done, description=f"{self._name}{left}"
        )

    def say(self, text: str) -> None:
        """Show a line of text."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False)
        elif not self._quiet:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _estimate_left_s(self) -> float:
        """Return host seconds until all is done, at the pace so far."""
        spent_s = time.monotonic() - self._begun_at_wall_s
        return spent_s * (self._count - self._done) / max(1, self._ended)
