"""The tables and sentences of a study on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simfed.ground.units import format_duration
from simfed.report.comparison import format_estimate, format_median_time, format_threshold
from simfed.report.reach import WHOLE_RUN
from simfed.study.plan import shorten_names

if TYPE_CHECKING:
    from simfed.study.results import StudyResult


def build_arms_table(study: StudyResult) -> RenderableType:
    """How every arm did in every setting, and the verdicts."""
    parts: list[RenderableType] = [_build_arms_rows(study)]
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


def _build_arms_rows(study: StudyResult) -> Table:
    rows, measure = study.arms, study.measure
    final = f"final_{measure.key}"
    several = rows["setting"].nunique() > 1
    learned = bool(rows[final].notna().any())
    table = _make_table()
    if several:
        table.add_column("at")
    table.add_column("arm" if study.arms_axis else "study")
    table.add_column("seeds", justify="right")
    if learned:
        table.add_column(f"final {measure.name}", justify="right")
    for threshold in study.thresholds or [WHOLE_RUN]:
        target = format_threshold(threshold, "", measure)
        table.add_column(f"to {target}" if target else "simulated time", justify="right")
        if learned:
            table.add_column("reached", justify="right")
    for (setting, arm), group in rows.groupby(["setting", "arm"], sort=False):
        first = group.iloc[0]
        cells = [str(setting)] if several else []
        cells += [str(arm), f"{first['seeds']}"]
        if learned:
            cells.append(format_estimate(first, final, measure=measure))
        for _, row in group.iterrows():
            cells.append(format_median_time(row, study.confidence))
            if learned:
                cells.append(f"{row['reached']} of {row['seeds']}")
        table.add_row(*cells)
    return table


def build_runs_table(study: StudyResult) -> RenderableType:
    """One row per run: its place on the axes, seed, status, measure and times."""
    names = shorten_names(study.axes)
    table, measure = _make_table(), study.measure
    for axis in study.axes:
        table.add_column(names[axis])
    for heading in ("seed", "status", measure.name, "simulated", "took"):
        table.add_column(heading, justify="left" if heading == "status" else "right")
    for entry, (_, row) in zip(study.plan["runs"], study.summary.iterrows(), strict=True):
        status = row["status"] if row["status"] != "failed" else f"failed: {row['reason']}"
        cells = [*(entry["point"][axis] for axis in study.axes), str(row["seed"]), status]
        if row["status"] == "finished":
            cells.append(format_estimate(row, f"final_{measure.key}", measure=measure))
            cells += [format_duration(row["simulated_s"]), format_duration(row["wall_s"])]
        table.add_row(*cells, style="red" if row["status"] == "failed" else "")
    return table


def describe_status(study: StudyResult) -> list[str]:
    """Return how far a study is, with what runs and what stopped and why, as lines of text."""
    lines = [f"{study.name}: {study.describe_progress()}"]
    for entry in study.plan["runs"]:
        status, reason = study.statuses[entry["address"]]
        if status not in ("finished", "waiting"):
            lines.append(f"  {study.named(entry)}: {status}{reason and f': {reason}'}")
    return lines


def _make_table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
