"""A study as a page of HTML, and as a picture for print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simfed.ground.errors import InputError
from simfed.ground.measure import Measure
from simfed.ground.units import format_bytes, format_duration
from simfed.ground.writing import put_output
from simfed.report.comparison import format_estimate, format_median_time, format_ratio
from simfed.report.page import PageSection, render_page
from simfed.report.panels import (
    Columns,
    Panel,
    PanelTable,
    Row,
    build_table,
    draw_curves,
    drop_empty_columns,
)
from simfed.report.pictures import time_unit
from simfed.report.statistics import Estimate
from simfed.report.style import choose_arm_colours
from simfed.study.plan import shorten_names
from simfed.study.target_figure import build_target_section
from simfed.study.targets import choose_targets

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simfed.study.results import StudyResult


def write_page(study: StudyResult, out: Path | None = None) -> Path:
    """Write the page to `out`, `report.html` in the study's folder if omitted."""
    return put_output(
        out if out is not None else study.path / "report.html", render_study_page(study)
    )


def render_study_page(study: StudyResult) -> str:
    """The study as one self-contained page: verdicts, what each arm spent to reach the targets,
    curves with bands, tables."""
    parts: dict[str, PageSection] = {
        "verdicts": _build_verdicts(study),
        "targets": build_target_section(study),
    }
    if len(study.curves):
        panels = [_build_curves_panel(study, setting) for setting in _list_settings(study)]
        name = study.measure.name
        title = f"{name[:1].upper()}{name[1:]} over simulated time"
        parts["curves"] = {"title": title, "panels": panels}
    parts["arms"] = {"title": "Arms", "tables": [_build_arms_table(study)]}
    if study.arms_axis is not None:
        parts["comparisons"] = {"title": "Comparisons", "tables": [_build_comparisons_table(study)]}
    parts["runs"] = {"title": "Runs", "tables": [_build_runs_table(study)]}
    done = len(study.finished)
    seeds = len(study.plan["seeds"])
    words = [f"{done} of {len(study.plan['runs'])} runs", f"{seeds} seed{'s' * (seeds > 1)}"]
    return render_page(study.name, " · ".join(words), parts)


def draw_study_figure(
    study: StudyResult,
    *,
    targets: Sequence[float] = (),
    width_in: float = 7.0,
    height_in: float | None = None,
) -> Figure:
    """The measure against simulated time: one panel per setting, one curve with its band per arm, a
    dashed line at each target (the study's thresholds if omitted)."""
    from simfed.report.curves import draw_curves
    from simfed.report.pictures import build_empty_figure, picture_style, put_legend_above

    if not len(study.curves):
        raise InputError(
            "a study that learned",
            where=str(study.path),
            problem=f"there is no {study.measure.name} to draw",
        )
    settings, colours = _list_settings(study), choose_arm_colours(study.bands["arm"])
    goals = [goal for goal in choose_targets(study, targets) if not math.isnan(goal)]
    columns = min(3, len(settings))
    rows = math.ceil(len(settings) / columns)
    with picture_style():
        figure = build_empty_figure()
        arms: dict[str, Any] = {}
        ends_s = study.bands.groupby("setting")["at_s"].max()
        comparable = ends_s.max() <= 4 * ends_s.min()  # else the fastest would be a stroke
        for i, setting in enumerate(settings):
            ax = figure.add_subplot(rows, columns, i + 1)
            shown = study.bands[study.bands["setting"] == setting]
            draw_curves(
                ax, shown, y=study.measure.key, colour="arm", colours=colours, targets=goals
            )
            ax.set_ylabel(f"test {study.measure.name}")
            ax.set_title(setting, fontsize=7)
            if comparable:
                scale, _ = time_unit(float(ends_s[setting]))
                ax.set_xlim(right=1.02 * float(ends_s.max()) / scale)
            if i % columns:
                ax.set_ylabel("")
            handles = ax.get_legend_handles_labels()[0]
            legend = ax.get_legend()
            if legend is not None:
                legend.remove()
            arms |= {str(handle.get_label()): handle for handle in handles}
        put_legend_above(figure, list(arms.values()), width_in, 2.1 * rows, height_in)
    return figure


def _list_settings(study: StudyResult) -> list[str]:
    return [str(setting) for setting in study.bands["setting"].unique()]


# --- sections ----------------------------------------------------------------------------------


def _build_verdicts(study: StudyResult) -> PageSection:
    confidence = study.confidence
    note = (
        f"Intervals of {100 * confidence:g} % confidence over seeds, except where it is said that "
        "one covers less: the seeds are too few. Arms are compared seed by seed: both see the "
        "same data, first weights and batches. A run that never reaches a threshold counts as "
        "later than its end. Several comparisons are not corrected for their number."
    )
    rows = [(sentence,) for sentence in study.verdicts]
    if not rows:
        rows = [("No arms are compared: the study file says which under compare.arms.",)]
    unfinished = int((study.summary["status"] != "finished").sum())
    failed = study.summary[study.summary["status"] == "failed"]
    warnings = [study.caveat] if study.caveat else []
    warnings += [f"{unfinished} runs are not finished."] if unfinished else []
    entries = study.plan["runs"]
    warnings += [
        f"{study.named(entries[i])}: failed: {row['reason']}" for i, row in failed.iterrows()
    ]
    table = PanelTable("In plain words", ("verdict",), rows, frozenset(), note)
    return {"title": "Verdicts", "warnings": warnings, "tables": [table]}


def _build_curves_panel(study: StudyResult, setting: str) -> Panel:
    bands = study.bands[study.bands["setting"] == setting]
    scale, unit = time_unit(float(bands["at_s"].max()))
    measure, key = study.measure, study.measure.key
    x, y = f"simulated time ({unit})", f"test {measure.name}, mean of clients"
    figure = draw_curves(
        bands.assign(**{x: bands["at_s"] / scale, y: bands[key]}),
        x,
        y,
        "arm",
        colours=choose_arm_colours(bands["arm"]),
        band=bool(bands["low"].notna().any()),
        targets=study.thresholds,
    )
    if key == "accuracy":
        figure.update_yaxes(range=[0, 1], tickformat=".0%")
    shown = bands.rename(columns={"low": f"{key}_low", "high": f"{key}_high"})
    columns: Columns = {
        "arm": lambda row: str(row["arm"]),
        "simulated time": lambda row: format_duration(row["at_s"]),
        measure.name: lambda row: format_estimate(row, key, measure=measure),
    }
    about = "The mean over seeds at equal simulated times, and the band in which it lies."
    panel = f"curves-{_list_settings(study).index(setting)}"
    table = build_table(setting or study.name, shown, columns, (1, 2))
    return Panel(panel, setting or "All runs", about, {(): figure}, (), (), table)


def _build_arms_table(study: StudyResult) -> PanelTable:
    measure = study.measure
    final = f"final_{measure.key}"
    columns: Columns = {
        "setting": lambda row: str(row["setting"]),
        "arm": lambda row: str(row["arm"]),
        "seeds": lambda row: f"{row['seeds']}",
        measure.name: lambda row: _format_goal(row["threshold"], measure),
        "reached by": lambda row: "" if math.isnan(row["threshold"]) else f"{row['reached']}",
        "median time": lambda row: format_median_time(row, study.confidence),
        f"final {measure.name}": lambda row: format_estimate(row, final, measure=measure),
    }
    return drop_empty_columns(build_table("How every arm did", study.arms, columns, range(2, 7)))


def _build_comparisons_table(study: StudyResult) -> PanelTable:
    verdicts = {1: "first arm", -1: "second arm", 0: "no clear difference"}
    measure = study.measure

    def ratio(row: Row) -> str:
        bounds = (row["ratio_at_least"], row["ratio_at_most"], row["ratio_low"], row["ratio_high"])
        return format_ratio(Estimate(*bounds, row["coverage"]), study.confidence)

    def decided(row: Row) -> bool:
        return bool(row["seeds"] and row["wins"] + row["losses"])

    columns: Columns = {
        "setting": lambda row: str(row["setting"]),
        "first": lambda row: str(row["a"]),
        "second": lambda row: str(row["b"]),
        measure.name: lambda row: _format_goal(row["threshold"], measure),
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


def _format_goal(threshold: float, measure: Measure) -> str:
    return "whole run" if math.isnan(threshold) else measure.number(threshold)


def _build_runs_table(study: StudyResult) -> PanelTable:
    names = shorten_names(study.axes)
    rows = []
    for entry, row in zip(study.plan["runs"], study.summary.to_dict("records"), strict=True):
        cells = [*(entry["point"][axis] for axis in study.axes), str(row["seed"]), row["status"]]
        results = [""] * 4
        if row["status"] == "finished":
            results = [
                format_estimate(row, f"final_{study.measure.key}", measure=study.measure),
                format_duration(row["simulated_s"]),
                format_bytes(row["uplink_bytes"]),
                str(row["fingerprint"])[:12],
            ]
        rows.append((*cells, *results))
    axes = tuple(names[axis] for axis in study.axes)
    results = [f"final {study.measure.name}", "simulated time", "sent by clients", "fingerprint"]
    header = (*axes, "seed", "status", *results)
    numeric = frozenset({len(axes), *range(len(axes) + 2, len(axes) + 5)})
    return PanelTable("Every run", header, rows, numeric)
