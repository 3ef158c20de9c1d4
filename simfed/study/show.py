"""What a study shows while it runs: a live table on a terminal, a plain line per run elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simfed.study.plan import Plan, short_names
from simfed.units import format_duration

if TYPE_CHECKING:
    from rich.table import Table

    from simfed.study.drive import Display, RunState

__all__ = ["LiveTable", "PlainLines", "make_display", "time_left_s"]

_MOST_ROWS = 12
_REPLAY_SHARE = 0.05
"""What a replayed run is taken to cost of a computed one until one has been seen."""


def make_display(plan: Plan, progress: bool | Display) -> Display:
    """The display asked for: True is the live table on a terminal, plain lines elsewhere."""
    if progress is False:
        return Silent()
    if progress is not True:
        return progress
    return LiveTable(plan) if sys.stderr.isatty() else PlainLines(plan)


class Silent:
    """Shows nothing."""

    def begin(self, states: list[RunState], slots: int) -> None:
        pass

    def update(self, states: list[RunState], slots: int) -> None:
        pass

    def ended(self, states: list[RunState], state: RunState) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class PlainLines:
    """One line for every run that ends, on standard error."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._slots = 1

    def begin(self, states: list[RunState], slots: int) -> None:
        self._slots = slots
        self.say(f"{self._plan.study.name}: {headline(states, slots)}")

    def update(self, states: list[RunState], slots: int) -> None:
        self._slots = slots

    def ended(self, states: list[RunState], state: RunState) -> None:
        done = sum(s.status in ("finished", "failed") for s in states)
        took = f" in {format_duration(state.wall_s)}" if state.wall_s is not None else ""
        left_s = time_left_s(states, self._slots)
        left = f", about {format_duration(left_s)} left" if left_s else ""
        how = f"{state.status}{took}" if state.status == "finished" else f"failed: {state.reason}"
        self.say(f"[{done}/{len(states)}] {state.run.named}: {how}{left}")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class LiveTable:
    """Runs under way with their progress, the last that ended, and the time left."""

    def __init__(self, plan: Plan) -> None:
        from rich.console import Console
        from rich.live import Live

        self._plan = plan
        self._ended: list[RunState] = []
        self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)

    def begin(self, states: list[RunState], slots: int) -> None:
        self._live.start()
        self.update(states, slots)

    def update(self, states: list[RunState], slots: int) -> None:
        self._live.update(self._table(states, slots))

    def ended(self, states: list[RunState], state: RunState) -> None:
        self._ended.append(state)

    def say(self, text: str) -> None:
        self._live.console.print(text, markup=False)

    def close(self) -> None:
        self._live.stop()

    def _table(self, states: Sequence[RunState], slots: int) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table(
            title=f"{self._plan.study.name}: {headline(states, slots)}",
            title_justify="left",
            box=None,
            pad_edge=False,
        )
        names = short_names(axis.name for axis in self._plan.axes)
        for name in names.values():
            table.add_column(name, no_wrap=True)
        table.add_column("seed", justify="right")
        table.add_column("", width=16)
        table.add_column("round", justify="right")
        table.add_column("simulated", justify="right")
        table.add_column("accuracy", justify="right")
        table.add_column("took", justify="right")
        running = [state for state in states if state.status == "running"]
        rest = max(3, _MOST_ROWS - len(running))
        for state in [*self._ended[-rest:], *running[:_MOST_ROWS]]:
            labels = [*state.run.point.values(), str(state.run.seed)]
            if state.status == "failed":
                table.add_row(*labels, "failed", "", "", "", state.reason, style="red")
                continue
            told = state.progress
            rounds = state.run.scenario.rounds
            done = rounds if state.status == "finished" else int(told.get("round", 0))
            accuracy = told.get("accuracy")
            table.add_row(
                *labels,
                ProgressBar(rounds, done, width=16) if state.status == "running" else "done",
                f"{done}/{rounds}",
                format_duration(told["simulated_s"]) if told.get("simulated_s") else "",
                f"{accuracy:.1%}" if accuracy is not None else "",
                format_duration(state.wall_s) if state.wall_s is not None else "",
                style="dim" if state.status == "finished" else "",
            )
        return table


def headline(states: Sequence[RunState], slots: int) -> str:
    """How far all of it is, in words."""
    count = {
        status: sum(state.status == status for state in states)
        for status in ("finished", "running", "failed")
    }
    words = [f"{count['finished']} of {len(states)} runs done"]
    words += [f"{count[status]} {status}" for status in ("running", "failed") if count[status]]
    left_s = time_left_s(states, slots)
    if left_s:
        words.append(f"about {format_duration(left_s)} left")
    return ", ".join(words)


def time_left_s(states: Sequence[RunState], slots: int) -> float | None:
    """Host seconds until all is done, from what runs took so far; None before anything is known.

    Runs whose learning is known by then are taken to cost what such runs cost.
    """
    now = time.time()
    computed = [s.wall_s for s in states if s.wall_s is not None and not s.replayed]
    replayed = [s.wall_s for s in states if s.wall_s is not None and s.replayed]
    running = [state for state in states if state.status == "running"]
    whole = {state.address: _whole_s(state.progress, now) for state in running}
    computed += [s for state in running if (s := whole[state.address]) and not state.replayed]
    if not computed and not replayed:
        return None
    typical = sum(computed) / len(computed) if computed else None
    replay = sum(replayed) / len(replayed) if replayed else _REPLAY_SHARE * (typical or 0.0)
    typical = replay if typical is None else typical
    left = 0.0
    known = {state.path_key for state in states if state.status in ("finished", "running")}
    for state in states:
        if state.status == "running":
            usual = replay if state.replayed else typical
            begun = state.progress.get("begun_at_wall", now)
            left += max(0.0, (whole[state.address] or usual) - (now - begun))
        elif state.status == "waiting":
            is_replay = state.path_key is not None and state.path_key in known
            left += replay if is_replay else typical
            known.add(state.path_key)
    return left / max(1, slots)


def _whole_s(told: dict[str, Any], now: float) -> float | None:
    """How long a run under way will take in all, if it goes on as it did."""
    if not told.get("round"):
        return None
    return float((told["told_at_wall"] - told["begun_at_wall"]) * told["rounds"] / told["round"])
