"""The tables and sentences of a study on a terminal."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simfed.study.comparison import time_text
from simfed.study.plan import short_names
from simfed.units import format_duration

if TYPE_CHECKING:
    from simfed.study.results import StudyResult

__all__ = ["arms_table", "runs_table", "status_lines"]


def arms_table(study: StudyResult) -> RenderableType:
    """How every arm did in every setting, and the verdicts."""
    parts: list[RenderableType] = [_arms(study)]
    if study.verdicts:
        parts += [Text(), *(Text(f"· {sentence}") for sentence in study.verdicts)]
    if study.caveat:
        parts += [Text(), Text(study.caveat, "yellow")]
    waiting = int((study.summary["status"] != "finished").sum())
    if waiting:
        parts += [
            Text(),
            Text(f"{waiting} of {len(study.summary)} runs are not finished", "yellow"),
        ]
    return Group(*parts)


def _arms(study: StudyResult) -> Table:
    rows = study.arms
    several = rows["setting"].nunique() > 1
    learned = bool(rows["final_accuracy"].notna().any())
    table = _table()
    if several:
        table.add_column("at")
    table.add_column("arm" if study.arms_axis else "study")
    table.add_column("seeds", justify="right")
    if learned:
        table.add_column("final accuracy", justify="right")
    for threshold in study.thresholds or [math.nan]:
        goal = "simulated time" if math.isnan(threshold) else f"to {100 * threshold:g} %"
        table.add_column(goal, justify="right")
        if learned:
            table.add_column("reached", justify="right")
    for (setting, arm), group in rows.groupby(["setting", "arm"], sort=False):
        first = group.iloc[0]
        cells = [str(setting)] if several else []
        cells += [str(arm), f"{first['seeds']}"]
        if learned:
            cells.append(_accuracy(first))
        for _, row in group.iterrows():
            cells.append(time_text(row, study.compare["confidence"]))
            if learned:
                cells.append(f"{row['reached']} of {row['seeds']}")
        table.add_row(*cells)
    return table


def runs_table(study: StudyResult) -> RenderableType:
    """One row per run."""
    names = short_names(study.axes)
    table = _table()
    for axis in study.axes:
        table.add_column(names[axis])
    for heading in ("seed", "status", "accuracy", "simulated", "took"):
        table.add_column(heading, justify="left" if heading == "status" else "right")
    for entry, (_, row) in zip(study.plan["runs"], study.summary.iterrows(), strict=True):
        status = row["status"] if row["status"] != "failed" else f"failed: {row['reason']}"
        cells = [*(entry["point"][axis] for axis in study.axes), str(row["seed"]), status]
        if row["status"] == "finished":
            final = row["final_accuracy"]
            cells.append("" if final is None or math.isnan(final) else f"{final:.3f}")
            cells += [format_duration(row["simulated_s"]), format_duration(row["wall_s"])]
        table.add_row(*cells, style="red" if row["status"] == "failed" else "")
    return table


def status_lines(study: StudyResult) -> list[str]:
    """How far a study is, with every failure, as lines of text."""
    entries = {entry["address"]: entry for entry in study.plan["runs"]}
    failures = {a: why for a, why in study.folder.failures().items() if a in entries}
    done = sum(study.folder.is_finished(address) for address in entries)
    told = study.folder.progress() if study.folder.is_running() else {}
    told = {a: facts for a, facts in told.items() if a in entries}
    left = len(entries) - done - len(failures) - len(told)
    words = [f"{done} of {len(entries)} runs finished"]
    words += [f"{len(told)} under way"] * bool(told) + [f"{len(failures)} failed"] * bool(failures)
    words += [f"{left} waiting"] * bool(left)
    lines = [f"{study.name}: {', '.join(words)}"]
    now = time.time()
    for address, facts in told.items():
        heard = max(0.0, now - facts["told_at_wall"])
        of = "" if facts["rounds"] is None else f"/{facts['rounds']}"
        silent = f", last heard of {format_duration(heard)} ago" if heard > 60 else ""
        lines.append(f"  {study.named(entries[address])}: round {facts['round']}{of}{silent}")
    lines += [f"  {study.named(entries[a])}: failed: {why}" for a, why in failures.items()]
    return lines


def _accuracy(row: Any) -> str:
    if math.isnan(row["final_accuracy"]):
        return ""
    text = f"{row['final_accuracy']:.3f}"
    if math.isnan(row["final_accuracy_low"]):
        return text
    return f"{text} [{row['final_accuracy_low']:.3f}, {row['final_accuracy_high']:.3f}]"


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
