"""The tables of a study, for terminal and page, and the sentences beside them.

Tables are `PanelTable`s, texts in rows: `lay_out` makes a terminal's of one, the page
draws the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simfed.ground.errors import InputError
from simfed.ground.units import format_bytes, format_duration, format_energy
from simfed.report.comparison import (
    format_estimate,
    format_median,
    format_ratio,
    format_threshold,
)
from simfed.report.panels import (
    Columns,
    PanelTable,
    Row,
    build_table,
    drop_empty_columns,
)
from simfed.report.statistics import Estimate
from simfed.study.plan import shorten_names
from simfed.study.targets import QUANTITIES

if TYPE_CHECKING:
    from rich.table import Table

    from simfed.study.results import StudyResult

_FORMATS = {"time": format_duration, "energy": format_energy}
"""Formats of quantities that are not bytes."""
_MOST_FAILURES = 5
"""The most failures that stand beside a table; `study status` has all."""


def build_arms_table(study: StudyResult, quantity: str = "time") -> PanelTable:
    """Return a row per setting and arm: what it spent to reach each target.

    Args:
        study: whose finished runs count.
        quantity: a key of `QUANTITIES`.

    Raises:
        InputError: the runs do not know the quantity.
    """
    spent, measure = QUANTITIES[quantity], study.measure
    rows, final = study.targets(quantity), f"final_{measure.key}"
    means = study.arms[[final, f"{final}_low", f"{final}_high"]].to_dict("records")
    several = rows["setting"].nunique() > 1
    learned = any(mean[final] == mean[final] for mean in means)  # NaN is not itself
    amount = _FORMATS.get(quantity, format_bytes)
    cells: dict[tuple[str, str], list[str]] = {}
    for row, mean in zip(rows.to_dict("records"), means, strict=True):
        place = str(row["setting"]), str(row["arm"])
        if place not in cells:
            cells[place] = [*place[0 if several else 1 :], f"{row['seeds']}"]
            if learned:
                cells[place].append(format_estimate(mean, final, measure=measure))
        cells[place].append(format_median(row, study.confidence, amount))
        if learned:
            cells[place].append(f"{row['reached']} of {row['seeds']}")
    header = ["at"] * several + ["arm" if study.arms_axis else "study", "seeds"]
    header += [f"final {measure.name}"] * learned
    for target in rows["target"].unique():
        goal = format_threshold(target, "", measure)
        header += [f"to {goal}" if goal else spent.label] + ["reached"] * learned
    caption = f"{spent.label[:1].upper()}{spent.label[1:]}: the median over seeds"
    numeric = frozenset(range(1 + several, len(header)))
    return PanelTable(caption, tuple(header), [*map(tuple, cells.values())], numeric)


def list_arms_tables(study: StudyResult) -> dict[str, PanelTable]:
    """Return the table of each quantity that the runs know.

    Those without power know no energy.
    """
    tables = {}
    for quantity in QUANTITIES:
        try:
            tables[quantity] = build_arms_table(study, quantity)
        except InputError:
            continue
    return tables


def build_runs_table(study: StudyResult) -> PanelTable:
    """Return a row per run: its place on the axes, seed, status, what it came to."""
    names, measure = shorten_names(study.axes), study.measure
    points = [entry["point"] for entry in study.plan["runs"]]
    rows = []
    for point, row in zip(points, study.summary.to_dict("records"), strict=True):
        reason = f": {row['reason']}" if row["reason"] else ""
        results = [""] * 5
        if row["status"] == "finished":
            results = [
                format_estimate(row, f"final_{measure.key}", measure=measure),
                format_duration(row["simulated_s"]),
                format_bytes(row["uplink_bytes"]),
                format_duration(row["wall_s"]),
                str(row["fingerprint"])[:12],
            ]
        place = [point[axis] for axis in study.axes]
        rows.append((*place, str(row["seed"]), row["status"] + reason, *results))
    header = [
        *(names[axis] for axis in study.axes),
        "seed",
        "status",
        f"final {measure.name}",
    ]
    header += ["simulated time", "sent by clients", "took", "fingerprint"]
    numeric = frozenset({len(names), *range(len(names) + 2, len(names) + 6)})
    return drop_empty_columns(PanelTable("Every run", tuple(header), rows, numeric))


def build_comparisons_table(study: StudyResult) -> PanelTable:
    """Return a row per setting, threshold and pair of arms.

    Columns with nothing in them are left out.
    """
    verdicts = {1: "first arm", -1: "second arm", 0: "no clear difference"}
    measure = study.measure

    def ratio(row: Row) -> str:
        ends = [f"ratio_{end}" for end in ("at_least", "at_most", "low", "high")]
        time_ratio = Estimate(*(row[name] for name in (*ends, "coverage")))
        return format_ratio(time_ratio, study.confidence)

    def decided(row: Row) -> bool:
        return bool(row["seeds"] and row["wins"] + row["losses"])

    columns: Columns = {
        "setting": lambda row: str(row["setting"]),
        "first": lambda row: str(row["a"]),
        "second": lambda row: str(row["b"]),
        measure.name: lambda row: format_threshold(
            row["threshold"], "whole run", measure
        ),
        "first sooner": lambda row: f"{row['wins']}",
        "second sooner": lambda row: f"{row['losses']}",
        "of seeds": lambda row: f"{row['seeds']}",
        "time of second / first": lambda row: ratio(row) if decided(row) else "",
        "sooner": lambda row: verdicts[row["verdict"]] if decided(row) else "undecided",
        "p (sign test)": lambda row: f"{row['p_value']:.3g}",
        f"final {measure.name}, first − second": lambda row: format_estimate(
            row, f"{measure.key}_difference", "+", measure
        ),
    }
    return drop_empty_columns(
        build_table("Arms seed by seed", study.comparisons, columns, range(4, 11))
    )


def list_notes(study: StudyResult) -> list[str]:
    """Return what has to be said beside a study's table, a sentence each.

    These are thresholds that do not count, unlike processors or versions, runs that are
    not finished, and the first failures.
    """
    notes = [*filter(None, (study.caveat, study.unlike))]
    summary, entries = study.summary, study.plan["runs"]
    waiting = int((summary["status"] != "finished").sum())
    if waiting:
        notes.append(f"{waiting} of {len(summary)} runs are not finished")
    failed = summary[summary["status"] == "failed"]
    for i, row in failed.head(_MOST_FAILURES).iterrows():
        notes.append(f"{study.describe_run(entries[i])}: failed: {row['reason']}")
    if len(failed) > _MOST_FAILURES:
        more = len(failed) - _MOST_FAILURES
        notes.append(f"and {more:,} more failed: simfed study status {study.path}")
    return notes


def describe_status(study: StudyResult) -> list[str]:
    """Return lines on how far a study is, what runs, and what stopped and why.

    The first is the study's; each run that neither waits nor is finished has one.
    """
    lines = [f"{study.name}: {study.describe_progress()}"]
    for entry in study.plan["runs"]:
        status, reason = study.statuses[entry["address"]]
        if status not in ("finished", "waiting"):
            lines.append(
                f"  {study.describe_run(entry)}: {status}{reason and f': {reason}'}"
            )
    return lines


def lay_out(table: PanelTable) -> Table:
    """Return a table as `rich` prints it."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for i, heading in enumerate(table.header):
        shown.add_column(heading, justify="right" if i in table.numeric else "left")
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown
