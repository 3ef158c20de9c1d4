"""The study's figure: what each arm spent to reach a target, against a swept axis.

`target_figure` lays panels out, `_TargetPanel` draws one; the numbers are those of
`compute_spent`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from simfed.ground.errors import InputError
from simfed.report.panels import Row
from simfed.report.pictures import build_empty_figure, picture_style, put_legend_above
from simfed.report.style import ARM_SHAPES, choose_arm_colours, make_label
from simfed.study.targets import (
    AxisPositions,
    build_places,
    choose_swept_axis,
    choose_targets,
    choose_unit,
    compute_spent,
    find_spent_quantity,
    split_rows,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simfed.study.results import StudyResult

_MARK: Any = {"ms": 4, "mew": 0.9}
_COUNT: Any = {"fontsize": 5, "textcoords": "offset points", "zorder": 6}
_BELOW: Any = {**_COUNT, "xytext": (0, -4), "ha": "center", "va": "top"}
_LEFT: Any = {**_COUNT, "xytext": (-4, 0), "ha": "right", "va": "center"}
_ARROW: Any = {
    "arrowstyle": "-|>,head_width=0.12,head_length=0.25",
    "lw": 0.8,
    "shrinkA": 2.5,
    "shrinkB": 0,
}
_MOST_PANELS = 24
_LOG_FROM = 8.0
"""The ratio of greatest to least value from which on the axis is logarithmic."""


@picture_style()
def target_figure(
    study: StudyResult,
    *,
    quantity: str = "time",
    over: str | None = None,
    targets: Sequence[float] = (),
    width_in: float = 7.0,
    height_in: float | None = None,
) -> Figure:
    """Return a picture of what each arm spent to reach each target.

    Medians over seeds stand over the swept axis: a line per arm, its interval, and what
    censoring leaves open. A filled mark is a median. A hollow one with an arrow is a
    bound: at least half of the seeds ended before they got there. `3/5` at a mark:
    three of five seeds got there; a hollow one without: none did. There is a panel for
    each target and setting of the other axes; where nothing but the arms varies, a row
    per arm.

    Args:
        study: whose finished runs are drawn.
        quantity: see `StudyResult.targets`.
        over: the axis to draw against, see `choose_swept_axis`.
        targets: see `StudyResult.targets`.
        width_in: of the whole figure, inches.
        height_in: of the whole figure, inches; by its panels if omitted.

    Raises:
        InputError: no run has finished, more than 24 panels, or what
            `StudyResult.targets` refuses.
    """
    axis, spent = choose_swept_axis(study, over), find_spent_quantity(quantity)
    rows = compute_spent(study, quantity, targets)
    if not (rows["seeds"] > 0).any():
        allowed, problem = "a study with finished runs", "no run has finished"
        raise InputError(allowed, where=str(study.path), problem=problem)
    settings, goals = split_rows(study, rows, axis), choose_targets(study, targets)
    shown = [(goal, title) for goal in goals for title in settings]
    if len(shown) > _MOST_PANELS:
        allowed, hint = f"at most {_MOST_PANELS} panels", "draw fewer targets"
        raise InputError(allowed, where="--target", got=len(shown), hint=hint)
    figure = build_empty_figure()
    columns = min(len(settings), 1 if width_in < 3 else 2 if width_in < 5 else 3)
    lines = math.ceil(len(shown) / columns)
    arms = list(dict.fromkeys(rows["arm"]))
    for i, (goal, title) in enumerate(shown):
        of_goal = rows["target"].isna() if math.isnan(goal) else rows["target"] == goal
        panel = _TargetPanel(
            figure.add_subplot(lines, columns, i + 1),
            build_places(study, axis),
            arms,
            rows[of_goal],
            spent.column,
        )
        words = (
            "of whole runs" if math.isnan(goal) else f"to {study.measure.goal(goal)}"
        )
        panel.name_axes(spent.label, words)
        mine = settings[title]
        panel.draw(mine[of_goal.loc[mine.index] & (mine["seeds"] > 0)])
        titles = [title] * bool(title) + [words] * (len(goals) > 1)
        panel.ax.set_title(", ".join(titles), fontsize=7, parse_math=False)
        if axis is not None and i % columns and shown[i - 1][0] == goal:
            panel.ax.set_ylabel("")
        if axis is not None and len(shown) - i > columns:
            panel.ax.set_xlabel("")
    handles = _build_handles(rows, arms) if axis is not None else []
    tall_in = 1.9 if axis is not None else 0.55 + 0.17 * len(arms)
    put_legend_above(
        figure, handles, width_in, tall_in * lines + 0.1, height_in, study.arms_name
    )
    return figure


class _TargetPanel:
    """One target in one setting: lines over the swept axis, or a row per arm."""

    def __init__(
        self,
        ax: Axes,
        places: AxisPositions,
        arms: Sequence[str],
        beside: pd.DataFrame,
        column: str,
    ) -> None:
        """Begin on these axes.

        Args:
            ax: empty axes.
            places: of the swept axis.
            arms: of the whole figure, which gives them colours and marks.
            beside: the rows of all panels of this target, which share an axis.
            column: of the quantity, which has its unit.
        """
        self.ax, self._places, self._upright = ax, places, bool(places.axis)
        self._looks = dict(zip(arms, itertools.cycle(shape for shape, _ in ARM_SHAPES)))
        self._colours = choose_arm_colours(arms)
        # where nothing else is swept, a place per arm
        step = 1 / len(arms)
        if self._upright:
            step = min(0.025, 0.5 * places.least_gap / len(arms))
        self._aside = {
            arm: step * (i - (len(arms) - 1) / 2) for i, arm in enumerate(arms)
        }
        self._at = dict(zip(places.labels, places.at, strict=True))
        values = (
            beside[beside["seeds"] > 0][["at_least", "low", "high"]]
            .to_numpy(float)
            .ravel()
        )
        values = values[np.isfinite(values)]
        most = float(values.max(initial=0.0)) or 1.0
        least = float(values[values > 0].min(initial=most))
        self._scale, self._unit = choose_unit(column, most)
        self._is_log = most >= _LOG_FROM * least
        ends = (least / 1.25, most * 1.7) if self._is_log else (0.0, 1.15 * most)
        self._low, self._high = ends[0] / self._scale, ends[1] / self._scale

    def name_axes(self, label: str, words: str) -> None:
        """Give the axes their ends, ticks and names."""
        ax, places = self.ax, self._places
        across: Any = ax.xaxis if self._upright else ax.yaxis
        along: Any = ax.yaxis if self._upright else ax.xaxis
        if self._upright:
            ax.set_xlim(-0.06, 1.06)
            ax.set_ylim(self._low, self._high)
            ax.set_xlabel(places.label, parse_math=False)
            ax.set_ylabel(f"{label}\n{words} ({self._unit})")
            across.set_ticks(places.at, places.labels, parse_math=False)
        else:
            ax.set_ylim(1, 0)
            ax.set_xlim(self._low, self._high)
            ax.tick_params(axis="y", length=0)
            ax.set_xlabel(f"{label} {words} ({self._unit})")
            rows = [0.5 + aside for aside in self._aside.values()]
            across.set_ticks(rows, list(self._aside), parse_math=False)
        along.grid(color="black", alpha=0.12, lw=0.4)
        if self._is_log:
            (ax.set_yscale if self._upright else ax.set_xscale)("log")
            ticks = _choose_log_ticks(self._low, self._high)
            along.set_ticks(ticks, [f"{value:g}" for value in ticks])
            along.set_ticks([], minor=True)

    def draw(self, rows: pd.DataFrame) -> None:
        """Draw the marks of all arms, and lines between them.

        Lines to a bound are dotted.
        """
        for arm, of_arm in rows.groupby("arm", sort=False):
            colour = self._colours[str(arm)]
            before: tuple[tuple[float, float], bool] | None = None
            for row in of_arm.to_dict("records"):
                here = self._draw_mark(row, colour)
                is_bound = math.isnan(row["median"])
                if before is not None:
                    dash: Any = (0, (1, 1.5)) if is_bound or before[1] else "-"
                    self._draw_stroke(
                        before[0], here, color=colour, lw=1.0, ls=dash, zorder=2
                    )
                before = here, is_bound

    def _draw_mark(self, row: Row, colour: str) -> tuple[float, float]:
        """Draw a median, or a bound, with its interval; return where it is."""
        from matplotlib.patheffects import withStroke

        value, is_bound = row["at_least"] / self._scale, math.isnan(row["median"])
        label = row[self._places.axis] if self._upright else ""
        at = self._at[label] + self._aside[row["arm"]]
        here = self._point(at, value)
        low, high = value, value
        if row["coverage"] > 0 and row["reached"]:
            low, high = (
                row["low"] / self._scale,
                min(row["high"] / self._scale, self._high),
            )
        thin: Any = {"color": colour, "lw": 0.8, "zorder": 3}
        ends = self._point(at, low), self._point(at, high)
        self._draw_stroke(*ends, alpha=0.75, solid_capstyle="butt", **thin)
        if is_bound or math.isinf(row["high"]):
            # a bound's arrow is short; that of an open interval goes to the panel's end
            tip = self._high
            if is_bound and self._is_log:
                tip = value * (self._high / self._low) ** 0.09
            elif is_bound:
                tip = value + 0.09 * (self._high - self._low)
            arrow = {**_ARROW, "color": colour}
            self.ax.annotate(
                "", self._point(at, tip), xytext=here, zorder=3, arrowprops=arrow
            )
        look: Any = {**_MARK, "mec": colour, "mfc": "white" if is_bound else colour}
        self.ax.plot(*here, ls="none", zorder=4, marker=self._looks[row["arm"]], **look)
        if 0 < row["reached"] < row["seeds"]:
            count, place = (
                f"{row['reached']}/{row['seeds']}",
                _BELOW if self._upright else _LEFT,
            )
            halo = [withStroke(linewidth=1.5, foreground="white")]
            self.ax.annotate(count, here, color=colour, path_effects=halo, **place)
        return here

    def _point(self, at: float, value: float) -> tuple[float, float]:
        """Return the (x, y) of a value at a place of the swept axis."""
        return (at, value) if self._upright else (value, at)

    def _draw_stroke(
        self, start: tuple[float, float], end: tuple[float, float], **look: Any
    ) -> None:
        self.ax.plot(*zip(start, end, strict=True), **look)


def _build_handles(rows: pd.DataFrame, arms: Sequence[str]) -> list[Any]:
    """Return the legend: the arms, a hollow mark and a count where there are some."""
    from matplotlib.lines import Line2D

    looks = zip(
        choose_arm_colours(arms).items(), itertools.cycle(ARM_SHAPES), strict=False
    )
    handles = [
        Line2D(
            [], [], color=colour, lw=1.0, marker=shape, label=make_label(arm), **_MARK
        )
        for (arm, colour), (shape, _) in looks
    ]
    if (rows["median"].isna() & (rows["seeds"] > 0)).any():
        hollow: Any = {
            "color": "black",
            "ls": "none",
            "marker": "o",
            "mfc": "white",
            **_MARK,
        }
        handles.append(Line2D([], [], label="later than this, or never", **hollow))
    some = rows[(rows["reached"] > 0) & (rows["reached"] < rows["seeds"])]
    if len(some):
        first = f"{some['reached'].iloc[0]}/{some['seeds'].iloc[0]}"
        handles.append(
            Line2D([], [], ls="none", label=f"{first}  seeds that got there")
        )
    return handles


def describe_target_figure(
    study: StudyResult, *, quantity: str = "time", targets: Sequence[float] = ()
) -> str:
    """Return a caption for `target_figure`: what its marks and lines are."""
    rows = compute_spent(study, quantity, targets)
    seeds, wanted = int(rows["seeds"].max()), study.confidence
    covers = [c for c in rows["coverage"].unique() if c > 0]
    interval = (
        ""
        if not covers
        else f", with an interval that covers {100 * min(covers):.0f} %"
    )
    if covers and min(covers) >= wanted:
        interval = f", with its {100 * wanted:g} % interval"
    text = f"the median over {seeds} seeds{interval}." if seeds > 1 else "one seed."
    done = rows[rows["seeds"] > 0]
    if done["median"].isna().any():
        text += (
            " Hollow marks are bounds: so many seeds ended before they got there that "
            "the median is only known to be later."
        )
    if ((done["reached"] > 0) & (done["reached"] < done["seeds"])).any():
        text += " Numbers such as 3/5: three of five seeds got there."
    return f"{find_spent_quantity(quantity).label.capitalize()}: {text}"


def _choose_log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2, 5 times powers of ten between two ends; fewer where they are many.

    >>> _choose_log_ticks(0.9, 30), _choose_log_ticks(0.5, 2e4)
    ([1.0, 2.0, 5.0, 10.0, 20.0], [1.0, 10.0, 100.0, 1000.0, 10000.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 1e3 else (1,)
    values = (float(f"{step}e{power}") for power in powers for step in steps)
    return [value for value in values if low <= value <= high]
