"""What each arm spent to reach a target against a swept axis: a picture, which the page has as
well, and a table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from simfed.ground.errors import InputError
from simfed.ground.measure import Measure
from simfed.ground.units import format_bytes, format_duration
from simfed.report.page import PageSection
from simfed.report.panels import PanelTable, Row
from simfed.report.pictures import (
    build_empty_figure,
    choose_bytes_unit,
    picture_style,
    put_legend_above,
    render_svg,
    time_unit,
)
from simfed.report.style import ARM_SHAPES, choose_arm_colours, make_label
from simfed.study.targets import (
    QUANTITIES,
    Places,
    SpentQuantity,
    build_places,
    choose_swept_axis,
    choose_targets,
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
"""How many times the least value the greatest is from which on the axis is logarithmic."""
_ENERGIES = ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"))


# --- what is drawn -----------------------------------------------------------------------------


class _Mark(NamedTuple):
    """What an arm spent at one place of the swept axis, in the unit of its panel."""

    at: float
    """From 0 to 1 along the swept axis, or among the arms where nothing else is swept."""
    value: float
    """The median, or what it is at least."""
    low: float
    """Ends of the interval within the panel; the value where there is none."""
    high: float
    is_bound: bool
    goes_on: bool
    """What is open has no end within the panel."""
    row: Row
    """The facts behind it, of `compute_spent`."""


class _ArmLine(NamedTuple):
    arm: str
    colour: str
    marker: str
    marks: Sequence[_Mark]

    @property
    def pairs(self) -> list[tuple[_Mark, _Mark, bool]]:
        """Neighbouring marks, and whether one of them is only a bound."""
        return [(a, b, a.is_bound or b.is_bound) for a, b in itertools.pairwise(self.marks)]


@dataclass(frozen=True)
class _Panel:
    """One target in one setting of the other axes."""

    quantity: SpentQuantity
    goal: str
    unit: str
    lines: Sequence[_ArmLine]
    ends: tuple[float, float]
    """Of the axis of what was spent, in its unit."""
    ticks: Sequence[float] | None
    """On a logarithmic axis; None on a linear one, where the medium chooses."""
    places: Places
    """Where marks stand: of the swept axis, or of the arms."""

    @property
    def label(self) -> str:
        """What was spent to what."""
        return f"{self.quantity.label} {self.goal}"


def _build_panel(
    study: StudyResult,
    quantity: SpentQuantity,
    places: Places,
    goal: float,
    rows: pd.DataFrame,
    beside: pd.DataFrame,
) -> _Panel:
    """The panel of a setting's `compute_spent`; its axis holds all rows `beside` it."""
    scale, unit, ends, is_log = _choose_extent(beside[_is_target(beside, goal)], quantity)
    rows = rows[_is_target(rows, goal) & (rows["seeds"] > 0)]
    arms = list(dict.fromkeys(beside["arm"]))
    # where nothing else is swept, a place per arm
    step = min(0.025, 0.5 * places.least_gap / len(arms)) if places.axis else 1 / len(arms)
    aside = [step * (i - (len(arms) - 1) / 2) for i in range(len(arms))]
    at = dict(zip(places.labels, places.at, strict=True))
    lines = []
    looks = zip(choose_arm_colours(arms).items(), itertools.cycle(ARM_SHAPES), aside, strict=False)
    for (arm, colour), (marker, _), beyond in looks:
        marks = [
            _build_mark(row, at[row[places.axis] if places.axis else ""] + beyond, scale, ends[1])
            for row in rows[rows["arm"] == arm].to_dict("records")
        ]
        lines.append(_ArmLine(arm, colour, marker, marks))
    if not places.axis:
        places = Places("", "", tuple(arms), tuple(0.5 + beyond for beyond in aside))
    ticks = _choose_log_ticks(*ends) if is_log else None
    return _Panel(quantity, _format_goal(goal, study.measure), unit, lines, ends, ticks, places)


def _build_mark(row: Row, at: float, scale: float, end: float) -> _Mark:
    value, is_bound = row["at_least"] / scale, math.isnan(row["median"])
    low, high = value, value
    if row["coverage"] > 0 and row["reached"]:
        low, high = row["low"] / scale, min(row["high"] / scale, end)
    return _Mark(at, value, low, high, is_bound, is_bound or math.isinf(row["high"]), row)


def _choose_extent(
    rows: pd.DataFrame, quantity: SpentQuantity
) -> tuple[float, str, tuple[float, float], bool]:
    """(the axis' unit, its name, its ends, whether it is logarithmic) for all rows of a target."""
    done = rows[rows["seeds"] > 0]
    values = done[["at_least", "low", "high"]].to_numpy(float).ravel()
    values = values[np.isfinite(values)]
    most = float(values.max(initial=0.0)) or 1.0
    scale, unit = _choose_unit(quantity, most)
    least = float(values[values > 0].min(initial=most))
    if most >= _LOG_FROM * least:
        return scale, unit, (least / 1.25 / scale, most * 1.7 / scale), True
    return scale, unit, (0.0, 1.15 * most / scale), False


def _choose_unit(quantity: SpentQuantity, most: float) -> tuple[float, str]:
    if quantity.column == "at_s":
        return time_unit(most)
    if quantity.column == "energy_j":
        return next(((s, u) for s, u in _ENERGIES if most >= s), _ENERGIES[-1])
    return choose_bytes_unit(most)


def _is_target(rows: pd.DataFrame, goal: float) -> Any:
    return rows["target"].isna() if math.isnan(goal) else rows["target"] == goal


def _format_goal(goal: float, measure: Measure) -> str:
    return "of whole runs" if math.isnan(goal) else f"to {measure.goal(goal)}"


# --- for print ---------------------------------------------------------------------------------


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
    """The median of what each arm spent to reach each target, over the swept axis: a line per arm,
    its interval over seeds, and what censoring leaves open.

    A filled mark is a median. A hollow one with an arrow is a bound: at least half of the seeds
    ended before they got there. `3/5` at a mark: three of five seeds got there; a hollow one
    without: none did. A panel for each target and setting of the other axes; where nothing but the
    arms varies, a row per arm. quantity, targets: see `StudyResult.targets`; over: see
    `choose_swept_axis`.

    Raises: `InputError` for more than 24 panels, and where `StudyResult.targets` does.
    """
    axis = choose_swept_axis(study, over)
    rows = compute_spent(study, quantity, targets)
    if not (rows["seeds"] > 0).any():
        raise InputError(
            "a study with finished runs", where=str(study.path), problem="no run has finished"
        )
    panels, goals = split_rows(study, rows, axis), choose_targets(study, targets)
    if len(panels) * len(goals) > _MOST_PANELS:
        got, hint = len(panels) * len(goals), "draw fewer targets"
        raise InputError(f"at most {_MOST_PANELS} panels", where="--target", got=got, hint=hint)
    figure = build_empty_figure()
    columns = min(len(panels), 1 if width_in < 3 else 2 if width_in < 5 else 3)
    shown = [(goal, title) for goal in goals for title in panels]
    lines = math.ceil(len(shown) / columns)
    spent, places = find_spent_quantity(quantity), build_places(study, axis)
    for i, (goal, title) in enumerate(shown):
        ax = figure.add_subplot(lines, columns, i + 1)
        panel = _build_panel(study, spent, places, goal, panels[title], rows)
        _draw_panel(ax, panel)
        words = [title] * bool(title) + [panel.goal] * (len(goals) > 1)
        ax.set_title(", ".join(words), fontsize=7, parse_math=False)
        if axis is not None and i % columns and shown[i - 1][0] == goal:
            ax.set_ylabel("")
        if axis is not None and len(shown) - i > columns:
            ax.set_xlabel("")
    handles = _build_handles(rows, panel.lines) if axis is not None else []
    tall_in = 1.9 if axis is not None else 0.55 + 0.17 * len(panel.lines)
    put_legend_above(figure, handles, width_in, tall_in * lines + 0.1, height_in)
    return figure


def _draw_panel(ax: Axes, panel: _Panel) -> None:
    """A line per arm upwards from the swept axis, or a row per arm where nothing else is swept."""
    from matplotlib.patheffects import withStroke

    places, upright = panel.places, bool(panel.places.axis)
    across: Any = ax.xaxis if upright else ax.yaxis
    along: Any = ax.yaxis if upright else ax.xaxis
    if upright:
        ax.set_xlim(-0.06, 1.06)
        ax.set_ylim(*panel.ends)
        ax.set_xlabel(places.label, parse_math=False)
        ax.set_ylabel(f"{panel.quantity.label}\n{panel.goal} ({panel.unit})")
    else:
        ax.set_ylim(1, 0)
        ax.set_xlim(*panel.ends)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel(f"{panel.label} ({panel.unit})")
    across.set_ticks(places.at, places.labels, parse_math=False)
    along.grid(color="black", alpha=0.12, lw=0.4)
    if panel.ticks is not None:
        (ax.set_yscale if upright else ax.set_xscale)("log")
        along.set_ticks(panel.ticks, [f"{value:g}" for value in panel.ticks])
        along.set_ticks([], minor=True)

    def point(at: float, value: float) -> tuple[float, float]:
        return (at, value) if upright else (value, at)

    def stroke(start: tuple[float, float], end: tuple[float, float], **look: Any) -> None:
        ax.plot(*zip(start, end, strict=True), **look)

    for arm in panel.lines:
        for a, b, is_open in arm.pairs:
            dash: Any = (0, (1, 1.5)) if is_open else "-"
            ends = point(a.at, a.value), point(b.at, b.value)
            stroke(*ends, color=arm.colour, lw=1.0, ls=dash, zorder=2)
        for mark in arm.marks:
            here, row = point(mark.at, mark.value), mark.row
            ends = point(mark.at, mark.low), point(mark.at, mark.high)
            thin: Any = {"color": arm.colour, "lw": 0.8, "zorder": 3}
            stroke(*ends, alpha=0.75, solid_capstyle="butt", **thin)
            if mark.goes_on:
                tip = _find_arrow_tip(panel, mark.value) if mark.is_bound else panel.ends[1]
                arrow = {**_ARROW, "color": arm.colour}
                ax.annotate("", point(mark.at, tip), xytext=here, zorder=3, arrowprops=arrow)
            filling = "white" if mark.is_bound else arm.colour
            look: Any = {**_MARK, "mec": arm.colour, "mfc": filling, "marker": arm.marker}
            ax.plot(*here, ls="none", zorder=4, **look)
            if 0 < row["reached"] < row["seeds"]:
                count, place = f"{row['reached']}/{row['seeds']}", _BELOW if upright else _LEFT
                halo = [withStroke(linewidth=1.5, foreground="white")]
                ax.annotate(count, here, color=arm.colour, path_effects=halo, **place)


def _find_arrow_tip(panel: _Panel, start: float) -> float:
    """A little along the axis of what was spent from `start`."""
    low, high = panel.ends
    return start * (high / low) ** 0.09 if panel.ticks else start + 0.09 * (high - low)


def _build_handles(rows: pd.DataFrame, lines: Sequence[_ArmLine]) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            color=arm.colour,
            lw=1.0,
            marker=arm.marker,
            label=make_label(arm.arm),
            **_MARK,
        )
        for arm in lines
    ]
    if (rows["median"].isna() & (rows["seeds"] > 0)).any():
        hollow: Any = {"color": "black", "ls": "none", "marker": "o", "mfc": "white", **_MARK}
        handles.append(Line2D([], [], label="later than this, or never", **hollow))
    some = rows[(rows["reached"] > 0) & (rows["reached"] < rows["seeds"])]
    if len(some):
        first = f"{some['reached'].iloc[0]}/{some['seeds'].iloc[0]}"
        handles.append(Line2D([], [], ls="none", label=f"{first}  seeds that got there"))
    return handles


def describe_target_figure(
    study: StudyResult, *, quantity: str = "time", targets: Sequence[float] = ()
) -> str:
    """What the figure's marks and lines are, as one would write below it."""
    caption = _describe_marks(study, compute_spent(study, quantity, targets))
    return f"{find_spent_quantity(quantity).label.capitalize()}: {caption}"


def _describe_marks(study: StudyResult, rows: pd.DataFrame) -> str:
    seeds, wanted = int(rows["seeds"].max()), study.confidence
    covers = [c for c in rows["coverage"].unique() if c > 0]
    interval = "" if not covers else f", with an interval that covers {100 * min(covers):.0f} %"
    if covers and min(covers) >= wanted:
        interval = f", with its {100 * wanted:g} % interval"
    text = f"the median over {seeds} seeds{interval}." if seeds > 1 else "one seed."
    done = rows[rows["seeds"] > 0]
    if done["median"].isna().any():
        text += (
            " Hollow marks are bounds: so many seeds ended before they got there that the median "
            "is only known to be later."
        )
    if ((done["reached"] > 0) & (done["reached"] < done["seeds"])).any():
        text += " Numbers such as 3/5: three of five seeds got there."
    return text


def _choose_log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 times powers of ten between two ends; fewer where they are many.

    >>> _choose_log_ticks(0.9, 30), _choose_log_ticks(0.5, 2e4)
    ([1.0, 2.0, 5.0, 10.0, 20.0], [1.0, 10.0, 100.0, 1000.0, 10000.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 1e3 else (1,)
    values = (float(f"{step}e{power}") for power in powers for step in steps)
    return [value for value in values if low <= value <= high]


# --- for the page ------------------------------------------------------------------------------


def build_target_section(study: StudyResult) -> PageSection:
    """The figure of each quantity that was spent, and one table of their numbers; empty where no
    run has finished."""
    pictures, cells, about = [], [], ""
    for quantity in QUANTITIES.values():
        try:
            rows = compute_spent(study, quantity.name)
        except InputError:  # the profiles know no power
            continue
        rows = rows[rows["seeds"] > 0]
        if not (rows["at_least"] > 0).any():
            continue
        with suppress(InputError):  # too many panels for one picture
            pictures.append(render_svg(target_figure(study, quantity=quantity.name)))
        about = about or _describe_marks(study, rows)
        cells += [_format_cells(row, quantity, study.measure) for row in rows.to_dict("records")]
    if not cells:
        return {}
    header = ("what", "setting", "arm", "seeds", "got there", "median")
    note = about[0].upper() + about[1:]
    table = PanelTable("Spent to reach the target", header, cells, frozenset({3, 4, 5}), note)
    return {"title": "To the target", "pictures": pictures, "tables": [table]}


def _describe_row(row: Row, quantity: SpentQuantity) -> str:
    text = _format_amount(row["at_least"], quantity)
    if math.isinf(row["at_most"]):
        text = f"later than {text}"
    elif math.isnan(row["median"]):
        text += f" to {_format_amount(row['at_most'], quantity)}"
    if row["coverage"] > 0 and row["reached"]:
        text += (
            f" [{_format_amount(row['low'], quantity)}, {_format_amount(row['high'], quantity)}]"
        )
    return text


def _format_cells(row: Row, quantity: SpentQuantity, measure: Measure) -> tuple[str, ...]:
    what = f"{quantity.label} {_format_goal(row['target'], measure)}"
    counts = f"{row['seeds']}", f"{row['reached']}"
    return what, str(row["setting"]), str(row["arm"]), *counts, _describe_row(row, quantity)


def _format_amount(value: float, quantity: SpentQuantity) -> str:
    if math.isinf(value):
        return "∞"
    if quantity.column == "at_s":
        return format_duration(value)
    if quantity.column == "energy_j":
        scale, unit = _choose_unit(quantity, value)
        return f"{value / scale:.3g} {unit}"
    return format_bytes(value)
