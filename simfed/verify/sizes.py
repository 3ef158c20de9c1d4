"""Sizes that depend on what was learned, from a run's tables, for its clock to be played again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from simfed.experiment.assembly import Parts
from simfed.fleet.contract import Task
from simfed.record.read import Run, number_turns
from simfed.sim.workload import Recorded
from simfed.verify.invariants import Columns

ROUNDING = 1e-13
"""What sums and differences of instants are rounded by, as a share of the largest."""

_FURTHER_BYTES = 2.0**20


class SizeUnknown(Exception):
    """The tables do not tell how long a message was that depends on what was learned."""


def read_participations(run: Run, *names: str) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """(turn, (round, client, the columns with these names)) of each participation."""
    table = run.table("participations").select(["round", "client", *names])
    return number_turns(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _read_closings(run: Run) -> dict[int, tuple[float, bool]]:
    """Merge → when the server closed it, and whether by a restart."""
    names = ["round", "finished_at_s", "server_s", "critical_phase"]
    rows = zip(*run.table("rounds").select(names).to_pydict().values(), strict=True)
    return {number: (at_s - server_s, phase == "restart") for number, at_s, server_s, phase in rows}


def _find_cut_transfers(run: Run, parts: Parts) -> dict[tuple[int, int, int], str]:
    """(round, client, turn) → `up` or `down` of the participations whose transfer was cut, and
    `unknown` of those of which the tables do not tell whether it was, or in which piece."""
    facts, closings = Columns(run), _read_closings(run)
    staleness = parts.scenario.aggregation.staleness
    bound = math.inf if staleness is None or staleness.bound is None else staleness.bound
    names = "outcome", "merge", "staleness", "finished_at_s", "waiting_s", "offline_s"
    phases = "training_s", "compression_s", "uplink_s"
    cut_transfers = {}
    for turn, row in read_participations(run, *names, *phases, "uplink_bytes"):
        round, client, outcome, merge, stale, at_s, waiting_s, offline_s = row[:8]
        *work_s, uplink_s, moved_bytes = row[8:]
        group, participation = parts.group(client), (round, client, turn)
        if outcome in ("dropped", "failed") and moved_bytes and group.overlap:
            cut_transfers[participation] = "unknown"
        elif outcome == "dropped" and (uplink_s or not any(work_s)):
            closed_at_s, restarted = closings[merge]
            at_closing = abs(at_s - waiting_s - offline_s - closed_at_s) <= 10 * ROUNDING * at_s
            left = offline_s > 0 or (facts.filled and group.availability != "always")
            in_vain = restarted and facts.filled and not at_closing
            arrived = stale > bound or facts.tiered or in_vain
            if at_closing or left:  # where it may have arrived as well, in vain, nobody knows
                cut_transfers[participation] = (
                    "unknown" if arrived else "up" if uplink_s else "down"
                )
    return cut_transfers


class RecordedSizes(Recorded):
    """Sizes of transfers from a run's tables.

    How long one was that was cut no table says, but that it was longer than what had moved until
    then; how much longer, nothing before its end asks. Where messages are doubled or sent again,
    the tables have the bytes of all of them.
    """

    def __init__(self, run: Run, parts: Parts) -> None:
        super().__init__(run)
        self._parts, self._faults = parts, parts.faults
        self._cut = _find_cut_transfers(run, parts)

    def read_sizes(self, task: Task, told: int | None, index_code: str) -> tuple[float, float]:
        up_bytes, down_bytes = super().read_sizes(task, told, index_code)
        cut = self._cut.get((task.round, task.client, task.who.turn))
        if cut == "unknown":
            raise SizeUnknown
        return (
            up_bytes / self._count_copies(task, "upload", cut == "up")
            + _FURTHER_BYTES * (cut == "up"),
            down_bytes / self._count_copies(task, "download", cut == "down")
            + _FURTHER_BYTES * (cut == "down"),
        )

    def _count_copies(self, task: Task, phase: str, cut: bool) -> int:
        """How often a whole message has left. Raises: `SizeUnknown`."""
        if self._faults is None or self._faults.messages is None:
            return 1
        if task.plan.steps or self._parts.group(task.client).overlap:
            raise SizeUnknown
        copies = 0
        for nth in range(self._faults.messages.tries):
            fate = self._faults.fate(task.client, task.key, phase, nth)
            copies += fate.copies
            if not fate.lost:
                break
            if cut:  # in its first transmission, or in which later one?
                raise SizeUnknown
        return copies
