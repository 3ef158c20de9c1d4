"""A study as a page of HTML, and as a picture for print."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from simfed.errors import InputError
from simfed.report.page import render_page, write_text
from simfed.report.panels import Panel, Table, packed, plain
from simfed.report.pictures import FORMATS, time_unit
from simfed.report.style import arm_colours
from simfed.study.comparison import ratio_text, time_text
from simfed.study.plan import short_names
from simfed.study.statistics import Estimate
from simfed.study.target_figure import target_figure, target_panels
from simfed.study.targets import targets_of
from simfed.units import format_bytes, format_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simfed.study.results import StudyResult

__all__ = ["study_figure", "study_page", "write_page"]


def write_page(study: StudyResult, out: Path | None = None, **options: Any) -> Path:
    """Write the page to `out` (`report.html` in the study's folder if omitted), or, where its
    suffix says png, svg or pdf, the figure of `target_figure`, with its options."""
    out = out if out is not None else study.path / "report.html"
    if out.suffix[1:].lower() in FORMATS:
        from simfed.report.pictures import save_picture

        return save_picture(target_figure(study, **options), out)
    return write_text(out, study_page(study))


def study_page(study: StudyResult) -> str:
    """The study as one self-contained page: verdicts, what each arm spent to reach the targets,
    curves with bands, tables."""
    parts: dict[str, dict[str, Any]] = {"verdicts": _verdicts(study)}
    found = target_panels(study)
    if found:
        parts["targets"] = {"title": "To the target", "panels": found}
    if len(study.curves):
        panels = [_curves(study, setting) for setting in _settings(study)]
        parts["curves"] = {"title": "Accuracy over simulated time", "panels": panels}
    parts["arms"] = {"title": "Arms", "tables": [_arms(study)]}
    if study.arms_axis is not None:
        parts["comparisons"] = {"title": "Comparisons", "tables": [_comparisons(study)]}
    parts["runs"] = {"title": "Runs", "tables": [_runs(study)]}
    done = len(study.finished)
    seeds = len(study.plan["seeds"])
    words = [f"{done} of {len(study.plan['runs'])} runs", f"{seeds} seed{'s' * (seeds > 1)}"]
    return render_page(study.name, " · ".join(words), parts)


def study_figure(
    study: StudyResult,
    *,
    targets: Sequence[float] = (),
    width_in: float = 7.0,
    height_in: float | None = None,
) -> Figure:
    """Accuracy against simulated time: one panel per setting, one curve with its band per arm, a
    dashed line at each target (the study's thresholds if omitted)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from simfed.report.curves import draw_curves
    from simfed.report.pictures import legend_above, picture_style

    if not len(study.curves):
        raise InputError("a study with accuracies to draw", where=str(study.path))
    settings, colours = _settings(study), arm_colours(study.bands["arm"])
    goals = [goal for goal in targets_of(study, targets) if not math.isnan(goal)]
    columns = min(3, len(settings))
    rows = math.ceil(len(settings) / columns)
    with picture_style():
        figure = Figure()
        FigureCanvasAgg(figure)
        arms: dict[str, Any] = {}
        ends_s = study.bands.groupby("setting")["at_s"].max()
        comparable = ends_s.max() <= 4 * ends_s.min()  # else the fastest would be a stroke
        for i, setting in enumerate(settings):
            ax = figure.add_subplot(rows, columns, i + 1)
            shown = study.bands[study.bands["setting"] == setting]
            draw_curves(ax, shown, colour="arm", colours=colours, targets=goals)
            ax.set_title(setting, fontsize=7)
            if comparable:
                scale, _ = time_unit(float(ends_s[setting]))
                ax.set_xlim(right=1.02 * float(ends_s.max()) / scale)
            if i % columns:
                ax.set_ylabel("")
            handles = ax.get_legend_handles_labels()[0]
            drawn = ax.get_legend()
            if drawn is not None:
                drawn.remove()
            arms |= {str(handle.get_label()): handle for handle in handles}
        legend_above(figure, list(arms.values()), width_in, 2.1 * rows, height_in)
    return figure


def _settings(study: StudyResult) -> list[str]:
    return [str(setting) for setting in study.bands["setting"].unique()]


# --- sections ----------------------------------------------------------------------------------


def _verdicts(study: StudyResult) -> dict[str, Any]:
    confidence = study.compare["confidence"]
    note = (
        f"Intervals of {100 * confidence:g} % confidence over seeds, except where it is said that "
        "one covers less: the seeds are too few. Arms are compared seed by seed: both see the "
        "same data, first weights and batches. A run that never reaches an accuracy counts as "
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
    table = Table("In plain words", ("verdict",), rows, frozenset(), note)
    return {"title": "Verdicts", "warnings": warnings, "tables": [table]}


def _curves(study: StudyResult, setting: str) -> Panel:
    bands = study.bands[study.bands["setting"] == setting]
    scale, unit = time_unit(float(bands["at_s"].max()))
    series = []
    colours = arm_colours(study.bands["arm"])
    for arm, band in bands.groupby("arm", sort=False):
        columns = {"at_s": packed(band["at_s"] / scale)}
        columns |= {name: packed(band[name]) for name in ("accuracy", "low", "high")}
        line = {
            "label": plain(arm),
            "colour": colours[arm],
            "dash": "solid",
            "width": 2,
            "hidden": False,
        }
        series.append({**line, "columns": columns})
    spec = {
        "kind": "curves",
        "x": [{"key": "at_s", "label": f"simulated time ({unit})"}],
        "y": [{"key": "accuracy", "label": "test accuracy, mean of clients"}],
        "series": series,
        "band": ["low", "high"] if bands["low"].notna().any() else None,
        "targets": study.thresholds,
    }
    rows = [
        (str(row["arm"]), format_duration(row["at_s"]), _accuracy(row, "accuracy", "low", "high"))
        for row in bands.to_dict("records")
    ]
    header = ("arm", "simulated time", "accuracy")
    about = "The mean over seeds at equal simulated times, and the band in which it lies."
    key = f"curves-{_settings(study).index(setting)}"
    table = Table(setting or study.name, header, rows, frozenset({1, 2}))
    return Panel(key, setting or "All runs", about, spec, (), table)


def _arms(study: StudyResult) -> Table:
    rows = [
        (
            str(row["setting"]), str(row["arm"]), f"{row['seeds']}", _goal(row["threshold"]),
            "" if math.isnan(row["threshold"]) else f"{row['reached']}",
            time_text(row, study.compare["confidence"]),
            _accuracy(row, "final_accuracy", "final_accuracy_low", "final_accuracy_high"),
        )
        for row in study.arms.to_dict("records")
    ]  # fmt: skip
    header = ("setting", "arm", "seeds", "accuracy", "reached by", "median time", "final accuracy")
    return _without_empty(Table("How every arm did", header, rows, frozenset(range(2, 7))))


def _comparisons(study: StudyResult) -> Table:
    confidence = study.compare["confidence"]
    words = {1: "first arm", -1: "second arm", 0: "no clear difference"}
    rows = []
    for row in study.comparisons.to_dict("records"):
        ratio = Estimate(
            row["ratio_at_least"],
            row["ratio_at_most"],
            row["ratio_low"],
            row["ratio_high"],
            row["coverage"],
        )
        known = row["seeds"] and row["wins"] + row["losses"]
        gap = _accuracy(
            row, "accuracy_difference", "accuracy_difference_low", "accuracy_difference_high", "+"
        )
        rows.append(
            (
                str(row["setting"]),
                str(row["a"]),
                str(row["b"]),
                _goal(row["threshold"]),
                f"{row['wins']}",
                f"{row['losses']}",
                f"{row['seeds']}",
                ratio_text(ratio, confidence) if known else "",
                words[row["verdict"]] if known else "undecided",
                f"{row['p_value']:.3g}",
                gap,
            )
        )
    header = (
        "setting",
        "first",
        "second",
        "accuracy",
        "first sooner",
        "second sooner",
        "of seeds",
        "time of second / first",
        "sooner",
        "p (sign test)",
        "final accuracy, first − second",
    )
    return _without_empty(Table("Arms seed by seed", header, rows, frozenset(range(4, 11))))


def _runs(study: StudyResult) -> Table:
    names = short_names(study.axes)
    rows = []
    for entry, row in zip(study.plan["runs"], study.summary.to_dict("records"), strict=True):
        done = row["status"] == "finished"
        cells = [entry["point"][axis] for axis in study.axes]
        cells += [str(row["seed"]), str(row["status"])]
        cells += [
            _number(row["final_accuracy"]), format_duration(row["simulated_s"]),
            format_bytes(row["uplink_bytes"]), str(row["fingerprint"])[:12],
        ] if done else [""] * 4  # fmt: skip
        rows.append(tuple(map(str, cells)))
    header = (
        *(names[axis] for axis in study.axes),
        "seed",
        "status",
        "final accuracy",
        "simulated time",
        "sent by clients",
        "fingerprint",
    )
    count = len(study.axes)
    return Table("Every run", header, rows, frozenset({count, *range(count + 2, count + 5)}))


# --- cells -------------------------------------------------------------------------------------


def _goal(threshold: float) -> str:
    return "whole run" if math.isnan(threshold) else f"{100 * threshold:g} %"


def _number(value: float, sign: str = "") -> str:
    return "" if value is None or pd.isna(value) else f"{value:{sign}.3f}"


def _accuracy(row: Any, value: str, low: str, high: str, sign: str = "") -> str:
    text = _number(row[value], sign)
    if not text or pd.isna(row[low]):
        return text
    return f"{text} [{_number(row[low], sign)}, {_number(row[high], sign)}]"


def _without_empty(table: Table) -> Table:
    """A table without the columns in which nothing stands (`setting` where there is but one)."""
    kept = [i for i in range(len(table.header)) if any(row[i] for row in table.rows)]
    return Table(
        table.caption,
        tuple(table.header[i] for i in kept),
        [_chosen(row, kept) for row in table.rows],
        frozenset(n for n, i in enumerate(kept) if i in table.numeric),
        table.note,
    )


def _chosen(row: tuple[str, ...], kept: Iterable[int]) -> tuple[str, ...]:
    return tuple(row[i] for i in kept)
