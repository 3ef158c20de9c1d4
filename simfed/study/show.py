"""What a study shows while it runs: a live table on a terminal, a plain line per run elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from simfed.ground.units import format_duration
from simfed.study.plan import StudyPlan, shorten_names

if TYPE_CHECKING:
    from rich.table import Table

    from simfed.study.standing import RunState, Standing

_MOST_ROWS = 12


class Display:
    """Shows a study while it runs; this one shows nothing."""

    def begin(self, standing: Standing, slots: int) -> None:
        """The study begins with so many runs at once."""

    def update(self, standing: Standing, slots: int) -> None:
        """Called again and again while runs are under way."""

    def ended(self, standing: Standing, state: RunState) -> None:
        """A run has ended, well or not."""

    def say(self, text: str) -> None:
        """Show a line of text."""

    def close(self) -> None:
        """Called once the study has ended, or was interrupted."""


def make_display(plan: StudyPlan, progress: bool | Display) -> Display:
    """The display asked for: True is the live table on a terminal, plain lines elsewhere."""
    if progress is False:
        return Display()
    if progress is not True:
        return progress
    return LiveTable(plan) if sys.stderr.isatty() else PlainLines(plan)


class PlainLines(Display):
    """One line for every run that ends, on standard error."""

    def __init__(self, plan: StudyPlan) -> None:
        self._plan = plan
        self._slots = 1

    def begin(self, standing: Standing, slots: int) -> None:
        self._slots = slots
        self.say(f"{self._plan.study.name}: {describe_standing(standing, slots)}")

    def update(self, standing: Standing, slots: int) -> None:
        self._slots = slots

    def ended(self, standing: Standing, state: RunState) -> None:
        done = sum(standing.ended.values())
        took = f" in {format_duration(state.wall_s)}" if state.wall_s is not None else ""
        left_s = standing.left_s(self._slots)
        left = f", about {format_duration(left_s)} left" if left_s else ""
        how = f"{state.status}{took}" if state.status == "finished" else f"failed: {state.reason}"
        self.say(f"[{done}/{standing.count}] {state.run.named}: {how}{left}")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class LiveTable(Display):
    """Runs under way with their progress, the last that ended, and the time left."""

    def __init__(self, plan: StudyPlan) -> None:
        from rich.console import Console
        from rich.live import Live

        self._plan = plan
        self._ended: list[RunState] = []
        self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)

    def begin(self, standing: Standing, slots: int) -> None:
        self._live.start()
        self.update(standing, slots)

    def update(self, standing: Standing, slots: int) -> None:
        self._live.update(self.table(standing, slots))

    def ended(self, standing: Standing, state: RunState) -> None:
        self._ended.append(state)

    def say(self, text: str) -> None:
        self._live.console.print(text, markup=False)

    def close(self) -> None:
        self._live.stop()

    def table(self, standing: Standing, slots: int) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table(
            title=f"{self._plan.study.name}: {describe_standing(standing, slots)}",
            title_justify="left",
            box=None,
            pad_edge=False,
        )
        names = shorten_names(axis.name for axis in self._plan.axes)
        for name in names.values():
            table.add_column(name, no_wrap=True)
        table.add_column("seed", justify="right")
        table.add_column("", width=16)
        measure = self._plan.kind.measure(self._plan.settings[0].scenario)
        for heading in ("round", "simulated", measure.name, "took"):
            table.add_column(heading, justify="right")
        running = [*standing.running.values()]
        ended = max(3, _MOST_ROWS - len(running))
        for state in [*self._ended[-ended:], *running[:_MOST_ROWS]]:
            labels = [*state.run.point.values(), str(state.run.seed)]
            if state.status == "failed":
                table.add_row(*labels, "failed", "", "", "", state.reason, style="red")
                continue
            progress = state.progress
            rounds = self._plan.kind.rounds(state.run.scenario)
            done = rounds if state.status == "finished" else int(progress.get("round", 0))
            simulated_s, measured = progress.get("simulated_s"), progress.get("measure")
            table.add_row(
                *labels,
                ProgressBar(rounds, done or 0, width=16) if state.status == "running" else "done",
                f"{'' if done is None else done}{'' if rounds is None else f'/{rounds}'}",
                format_duration(simulated_s) if simulated_s else "",
                measure.text(measured) if measured is not None else "",
                format_duration(state.wall_s) if state.wall_s is not None else "",
                style="dim" if state.status == "finished" else "",
            )
        return table


def describe_standing(standing: Standing, slots: int) -> str:
    """The counts of a study and the time left, as a phrase."""
    words = [f"{standing.ended['finished']} of {standing.count} runs done"]
    counts = {"running": len(standing.running), "failed": standing.ended["failed"]}
    words += [f"{count} {status}" for status, count in counts.items() if count]
    left_s = standing.left_s(slots)
    if left_s:
        words.append(f"about {format_duration(left_s)} left")
    return ", ".join(words)
