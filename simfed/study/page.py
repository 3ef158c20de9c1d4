"""A study as a page of HTML, and its curves as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simfed.ground.errors import InputError
from simfed.ground.writing import put_output
from simfed.report.page import PageSection, render_page
from simfed.report.panels import PanelTable
from simfed.report.pictures import render_svg
from simfed.report.style import choose_arm_colours
from simfed.study.tables import (
    build_comparisons_table,
    build_runs_table,
    list_arms_tables,
    list_notes,
)
from simfed.study.target_figure import describe_target_figure, target_figure
from simfed.study.targets import choose_targets

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simfed.study.results import StudyResult


def write_page(study: StudyResult, out: Path | None = None) -> Path:
    """Write the page about a study, and return its path.

    Args:
        study: whose results so far are shown.
        out: the file; `report.html` in the study's folder if omitted.

    Raises:
        InputError: it cannot be written, or plotly is missing.
    """
    return put_output(
        out if out is not None else study.path / "report.html", render_study_page(study)
    )


def render_study_page(study: StudyResult) -> str:
    """Return the study as one self-contained page of HTML.

    It has verdicts, what each arm spent to reach the targets, curves with bands, and
    tables of arms, comparisons and runs. What the runs do not know is left out.
    """
    arms = list_arms_tables(study)
    verdicts = [(sentence,) for sentence in study.verdicts]
    if not verdicts:
        verdicts = [
            ("No arms are compared: the study file says which under compare.arms.",)
        ]
    said = PanelTable(
        "In plain words", ("verdict",), verdicts, frozenset(), _describe(study)
    )
    parts: dict[str, PageSection] = {
        "verdicts": {
            "title": "Verdicts",
            "warnings": list_notes(study),
            "tables": [said, arms.pop("time")],
        }
    }
    pictures, captions = [], []
    for quantity in ("time", *arms):
        # no run has finished, or too many panels for one picture
        with suppress(InputError):
            pictures.append(render_svg(target_figure(study, quantity=quantity)))
            captions.append((describe_target_figure(study, quantity=quantity),))
    if pictures:
        shown = PanelTable("What the marks say", ("picture",), captions)
        tables = [shown, *arms.values()]
        parts["targets"] = {
            "title": "To the target",
            "pictures": pictures,
            "tables": tables,
        }
    if len(study.curves):
        name = study.measure.name
        title = f"{name[:1].upper()}{name[1:]} over simulated time"
        lines = [(describe_study_figure(study),)]
        parts["curves"] = {
            "title": title,
            "pictures": [render_svg(draw_study_figure(study))],
            "tables": [PanelTable("What the lines say", ("picture",), lines)],
        }
    if study.arms_axis is not None:
        parts["comparisons"] = {
            "title": "Comparisons",
            "tables": [build_comparisons_table(study)],
        }
    parts["runs"] = {"title": "Runs", "tables": [build_runs_table(study)]}
    seeds = len(study.plan["seeds"])
    words = [f"{len(study.finished)} of {len(study.plan['runs'])} runs"]
    words += [f"{seeds} seed{'s' * (seeds > 1)}"]
    return render_page(study.name, " · ".join(words), parts)


def _describe(study: StudyResult) -> str:
    """Return how intervals, pairs and runs without a threshold are to be read."""
    return (
        f"Intervals of {100 * study.confidence:g} % confidence over seeds, except "
        "where it is said that one covers less: the seeds are too few. Arms are "
        "compared seed by seed: both see the same data, first weights and batches. A "
        "run that never reaches a threshold counts as later than its end. Several "
        "comparisons are not corrected for their number."
    )


def draw_study_figure(
    study: StudyResult,
    *,
    targets: Sequence[float] = (),
    y_min: float | None = None,
    width_in: float = 7.0,
    height_in: float | None = None,
) -> Figure:
    """Return the measure against simulated time, one panel per setting.

    Each arm is a curve with its band; a dashed line marks each target. Panels have one
    scale of time unless the slowest lasts more than four times as long as the fastest.

    Args:
        study: whose finished runs are drawn.
        targets: of the measure; the study's thresholds if omitted.
        y_min: where the measure's axis begins; by the data if omitted.
        width_in: of the whole figure, inches.
        height_in: of the whole figure, inches; by its panels if omitted.

    Raises:
        InputError: nothing was learned, or all lies below `y_min`.
    """
    from simfed.report.curves import draw_curves
    from simfed.report.pictures import (
        build_empty_figure,
        picture_style,
        put_legend_above,
        time_unit,
    )

    if not len(study.curves):
        problem = f"there is no {study.measure.name} to draw"
        raise InputError("a study that learned", where=str(study.path), problem=problem)
    settings = [str(setting) for setting in study.bands["setting"].unique()]
    colours = choose_arm_colours(study.bands["arm"])
    goals = [goal for goal in choose_targets(study, targets) if not math.isnan(goal)]
    columns = min(3, len(settings))
    rows = math.ceil(len(settings) / columns)
    with picture_style():
        figure = build_empty_figure()
        arms: dict[str, Any] = {}
        ends_s = study.bands.groupby("setting")["at_s"].max()
        # else the fastest would be a stroke
        comparable = ends_s.max() <= 4 * ends_s.min()
        for i, setting in enumerate(settings):
            ax = figure.add_subplot(rows, columns, i + 1)
            shown = study.bands[study.bands["setting"] == setting]
            draw_curves(
                ax,
                shown,
                y=study.measure.key,
                colour="arm",
                colours=colours,
                targets=goals,
            )
            ax.set_ylabel("" if i % columns else f"test {study.measure.name}")
            ax.set_title(setting, fontsize=7)
            if y_min is not None:
                _begin_axis_at(ax, y_min, study)
            if comparable:
                scale, _ = time_unit(float(ends_s[setting]))
                ax.set_xlim(right=1.02 * float(ends_s.max()) / scale)
            handles = ax.get_legend_handles_labels()[0]
            if (legend := ax.get_legend()) is not None:
                legend.remove()
            arms |= {str(handle.get_label()): handle for handle in handles}
        put_legend_above(
            figure,
            list(arms.values()),
            width_in,
            2.1 * rows,
            height_in,
            study.arms_name,
        )
    return figure


def _begin_axis_at(ax: Axes, y_min: float, study: StudyResult) -> None:
    """Let the measure's axis begin at `y_min`, with ticks of its own.

    Raises:
        InputError: all that is drawn lies below it.
    """
    from matplotlib.ticker import AutoLocator

    top = max(float(study.bands[name].max()) for name in ("high", study.measure.key))
    if y_min >= top:
        allowed = f"a value below {study.measure.text(top)}, the highest that is drawn"
        raise InputError(allowed, where="--ymin", got=study.measure.text(y_min))
    ax.yaxis.set_major_locator(AutoLocator())
    ax.set_ylim(y_min, top + 0.05 * (top - y_min))


def describe_study_figure(study: StudyResult, *, targets: Sequence[float] = ()) -> str:
    """Return a caption for `draw_study_figure`: what its lines and bands are."""
    seeds = int(study.bands["seeds"].max())
    text = f"{study.measure.name.capitalize()} on the test set over simulated time: "
    text += (
        "one seed."
        if seeds == 1
        else (
            f"the mean over {seeds} seeds and the band in which it lies "
            f"({100 * study.confidence:g} %, Student's t), from the latest first "
            "evaluation to the earliest last one."
        )
    )
    goals = [goal for goal in choose_targets(study, targets) if not math.isnan(goal)]
    if goals:
        text += f" Dashed: {', '.join(study.measure.goal(goal) for goal in goals)}."
    return text
