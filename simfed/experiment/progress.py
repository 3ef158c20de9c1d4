"""Progress of long work: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from simfed.ground.measure import ACCURACY
from simfed.ground.registry import import_part
from simfed.ground.units import format_duration

if TYPE_CHECKING:
    from rich.progress import Progress

_PLAIN_EVERY_WALL_S = 10.0


class RunProgress:
    """Round, simulated time, measure and time left of one run.

    Used as a context manager, and called with each finished round. It writes to
    standard error, so that output can be piped: a live line on a terminal, else a plain
    one every 10 s; in a notebook it draws below the cell.

    Args:
        rounds: of the whole run.
        quiet: True: it shows nothing.
        title: comes first, once the run can begin.
        seconds: the word before the time, `simulated` or `measured`.
        begins: called once the run's folder is there.
    """

    def __init__(
        self,
        rounds: int,
        *,
        quiet: bool = False,
        title: str | None = None,
        seconds: str = "simulated",
        begins: Callable[[], None] | None = None,
    ) -> None:
        self._rounds = rounds
        self.measure = ACCURACY
        """The measure of the run's task; set before the first round."""
        self.again = 0
        """Rounds that are played again before it goes on; set before the first."""
        self._seconds = seconds
        self._first: int | None = None
        self._quiet = quiet
        self._title = title
        self._begins = begins
        self._live = sys.stderr.isatty() and not quiet
        self._value: float | None = None
        self._bar: Progress | None = None
        self._draw: Callable[..., None] | None = None

    def __enter__(self) -> RunProgress:
        self._begun_at_wall_s = self._printed_at_wall_s = time.monotonic()
        if self._title is not None and not self._quiet:
            print(self._title, file=sys.stderr, flush=True)
        if self._begins is not None:
            self._begins()
        if self.again and not self._quiet:
            what = (
                f"playing again up to round {self.again}, where what was learned "
                f"is kept"
            )
            print(what, file=sys.stderr, flush=True)
        if self._live:
            self._bar = self._make_bar()
        elif not self._quiet and is_in_notebook():
            self._draw = import_part("simfed.report.notebook:RunDrawing")(self.measure)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, round: int, simulated_s: float, value: float | None) -> None:
        """Show that a round is done.

        Args:
            round: its number, from 1 on.
            simulated_s: the instant at which it ended.
            value: of the measure where it was evaluated, else None: the last one stays.
        """
        if round == self.again:
            self._begun_at_wall_s = time.monotonic()
        if self._first is None and round > self.again:
            self._first = round - 1  # a resumed run begins in the middle
        if value is not None:
            self._value = value
        if self._quiet:
            return
        shown = "  –   "
        if self._value is not None:
            shown = (
                f"{self._value:6.1%}" if self.measure.is_share else f"{self._value:.4g}"
            )
        if self._bar is not None:
            self._bar.update(
                self._task,
                completed=round,
                simulated=format_duration(simulated_s),
                value=shown,
            )
            return
        now = time.monotonic()
        if self._draw is not None:
            line = self._describe(round, simulated_s, shown, now)
            self._draw(line, simulated_s, value, last=round == self._rounds)
        elif (
            round == self._rounds
            or now - self._printed_at_wall_s >= _PLAIN_EVERY_WALL_S
        ):
            self._printed_at_wall_s = now
            print(
                self._describe(round, simulated_s, shown, now),
                file=sys.stderr,
                flush=True,
            )

    def say(self, sentence: str) -> None:
        """Print a sentence that cannot wait for the end."""
        if not self._quiet:
            print(sentence, file=sys.stderr, flush=True)

    def _describe(
        self, round: int, simulated_s: float, shown: str, now_wall_s: float
    ) -> str:
        """Return how far the run is, in one line.

        Args:
            round: the last that is done.
            simulated_s: the instant at which it ended.
            shown: the measure in words.
            now_wall_s: of the host's clock, for the time left.
        """
        if self._first is None:
            return f"round {round}/{self.again} again"
        done = round - self._first
        left = (now_wall_s - self._begun_at_wall_s) / done * (self._rounds - round)
        return (
            f"round {round}/{self._rounds}  {self._seconds} "
            f"{format_duration(simulated_s)}"
            f"  {self.measure.name} {shown.strip()}  left {format_duration(left)}"
        )

    def _make_bar(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("round {task.completed}/{task.total}"),
            BarColumn(bar_width=None),
            TextColumn(f"{self._seconds} {{task.fields[simulated]}}"),
            TextColumn(f"{self.measure.name} {{task.fields[value]}}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = bar.add_task(
            "", total=self._rounds, simulated="0 s", value="  –   "
        )
        bar.start()
        return bar


def is_in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which can draw."""
    return (
        "ipykernel" in sys.modules and import_part("IPython:get_ipython")() is not None
    )
