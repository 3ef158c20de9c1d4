"""What each arm spent to reach a target against a swept axis: a picture for print, and charts of
a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from simfed.ground.errors import InputError
from simfed.ground.measure import Measure
from simfed.ground.units import format_bytes, format_duration
from simfed.report.panels import Chart, Panel, PanelTable, Row, Spec, choices, plain
from simfed.report.pictures import bytes_unit, empty_figure, legend_above, picture_style, time_unit
from simfed.report.style import arm_colours
from simfed.study.targets import (
    QUANTITIES,
    Places,
    SpentQuantity,
    panels_of,
    places_of,
    quantity_of,
    swept_axis,
    target_rows,
    targets_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simfed.study.results import StudyResult

__all__ = ["target_caption", "target_figure", "target_panels"]

_MARKERS = "osD^vPX*<>hd"
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")
_MARK: Any = {"ms": 4, "mew": 0.9}
_COUNT: Any = {"fontsize": 5, "textcoords": "offset points", "zorder": 6}
_BELOW: Any = {**_COUNT, "xytext": (0, -4), "ha": "center", "va": "top"}
_LEFT: Any = {**_COUNT, "xytext": (-4, 0), "ha": "right", "va": "center"}
_MOST_PANELS = 24
_LOG_FROM = 8.0
"""How many times the least value the greatest is from which on the axis is logarithmic."""
_ENERGIES = ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"))


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
    `swept_axis`.

    Raises: `InputError` for more than 24 panels, and where `StudyResult.targets` does.
    """
    axis = swept_axis(study, over)
    rows = target_rows(study, quantity, targets)
    if not (rows["seeds"] > 0).any():
        raise InputError(
            "a study with finished runs", where=str(study.path), problem="no run has finished"
        )
    panels, goals = panels_of(study, rows, axis), targets_of(study, targets)
    if len(panels) * len(goals) > _MOST_PANELS:
        got, hint = len(panels) * len(goals), "draw fewer targets"
        raise InputError(f"at most {_MOST_PANELS} panels", where="--target", got=got, hint=hint)
    arms = list(dict.fromkeys(rows["arm"]))
    handles = _handles(rows, arms) if axis is not None else []
    figure = empty_figure()
    draw = _Drawing(quantity_of(quantity), arms, places_of(study, axis), study.measure)
    columns = min(len(panels), 1 if width_in < 3 else 2 if width_in < 5 else 3)
    shown = [(goal, title) for goal in goals for title in panels]
    lines = math.ceil(len(shown) / columns)
    for i, (goal, title) in enumerate(shown):
        ax = figure.add_subplot(lines, columns, i + 1)
        words = [title] * bool(title) + [_to(goal, study.measure)] * (len(goals) > 1)
        ax.set_title(", ".join(words), fontsize=7, parse_math=False)
        part, in_row = panels[title], rows[_is_target(rows, goal)]
        (draw.dots if axis is None else draw.lines)(ax, part[_is_target(part, goal)], in_row, goal)
        if axis is not None and i % columns and shown[i - 1][0] == goal:
            ax.set_ylabel("")
        if axis is not None and len(shown) - i > columns:
            ax.set_xlabel("")
    tall_in = 1.9 if axis is not None else 0.55 + 0.17 * len(arms)
    legend_above(figure, handles, width_in, tall_in * lines + 0.1, height_in)
    return figure


class _Drawing:
    """How panels of one figure are drawn: the same colours, places and unit in each."""

    def __init__(
        self, quantity: SpentQuantity, arms: Sequence[str], places: Places, measure: Measure
    ) -> None:
        self.quantity, self.arms, self.places, self.measure = quantity, arms, places, measure
        self.colours = arm_colours(arms)
        step = min(0.025, 0.5 * places.least_gap / max(1, len(arms)))
        middle = (len(arms) - 1) / 2
        self.aside = {arm: (i - middle) * step for i, arm in enumerate(arms)}
        self.marker = {arm: _MARKERS[i % len(_MARKERS)] for i, arm in enumerate(arms)}

    def lines(self, ax: Axes, rows: pd.DataFrame, in_row: pd.DataFrame, goal: float) -> None:
        """A line per arm over the swept axis."""
        scale, unit, low, high, is_log = _extent(in_row, self.quantity)
        if is_log:
            _set_log(ax.yaxis)
        ax.set_ylim(low / scale, high / scale)
        at = dict(zip(self.places.labels, self.places.at, strict=True))
        for arm in self.arms:
            of_arm = rows[(rows["arm"] == arm) & (rows["seeds"] > 0)]
            x = of_arm[self.places.axis].map(at).to_numpy(float) + self.aside[arm]
            y = of_arm["at_least"].to_numpy(float) / scale
            exact = of_arm["median"].notna().to_numpy()
            for i in range(len(x) - 1):
                dash: Any = "-" if exact[i] and exact[i + 1] else (0, (1, 1.5))
                pair = slice(i, i + 2)
                ax.plot(x[pair], y[pair], color=self.colours[arm], lw=1.0, ls=dash, zorder=2)
            self._points(ax, arm, x, y, of_arm, scale, upright=True)
        ax.set_xticks(self.places.at, self.places.labels, parse_math=False)
        room = max(0.06, 1.5 * max(self.aside.values(), default=0))
        ax.set_xlim(-room, 1 + room)
        ax.set_xlabel(self.places.label, parse_math=False)
        ax.set_ylabel(f"{self.quantity.label}\n{_to(goal, self.measure)} ({unit})")
        ax.grid(axis="y", color="black", alpha=0.12, lw=0.4)

    def dots(self, ax: Axes, rows: pd.DataFrame, in_row: pd.DataFrame, goal: float) -> None:
        """A row per arm, where nothing else is swept."""
        scale, unit, low, high, is_log = _extent(in_row, self.quantity)
        if is_log:
            _set_log(ax.xaxis)
        ax.set_xlim(low / scale, high / scale)
        for i, arm in enumerate(self.arms):
            of_arm = rows[(rows["arm"] == arm) & (rows["seeds"] > 0)]
            x = of_arm["at_least"].to_numpy(float) / scale
            self._points(ax, arm, x, np.full(len(x), float(i)), of_arm, scale, upright=False)
        ax.set_yticks(range(len(self.arms)), self.arms, parse_math=False)
        ax.set_ylim(len(self.arms) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel(f"{self.quantity.label} {_to(goal, self.measure)} ({unit})")
        ax.grid(axis="x", color="black", alpha=0.12, lw=0.4)

    def _points(
        self, ax: Axes, arm: str, x: Any, y: Any, rows: pd.DataFrame, scale: float, upright: bool
    ) -> None:
        """Marks, intervals and what is censored; `upright`: values go upwards, else to the
        right."""
        from matplotlib.patheffects import withStroke

        colour, end = self.colours[arm], (ax.get_ylim() if upright else ax.get_xlim())[1]
        for px, py, (_, row) in zip(x, y, rows.iterrows(), strict=True):
            bound = math.isnan(row["median"])
            low, high = row["low"] / scale, row["high"] / scale
            if row["coverage"] > 0 and row["reached"]:
                _segment(ax, px, py, low, min(high, end), upright, colour)
            if math.isinf(row["high"]) or bound:
                tip = _further(ax, upright, py if upright else px) if bound else end
                _arrow(ax, px, py, tip, upright, colour)
            look: Any = {**_MARK, "mec": colour, "mfc": "white" if bound else colour}
            ax.plot(px, py, marker=self.marker[arm], ls="none", zorder=4, **look)
            if 0 < row["reached"] < row["seeds"]:
                count = f"{row['reached']}/{row['seeds']}"
                place = _BELOW if upright else _LEFT
                halo = [withStroke(linewidth=1.5, foreground="white")]
                ax.annotate(count, (px, py), color=colour, path_effects=halo, **place)


def _further(ax: Axes, upright: bool, start: float) -> float:
    """A little up the axis (or to the right) from `start`."""
    low, high = ax.get_ylim() if upright else ax.get_xlim()
    if (ax.get_yscale() if upright else ax.get_xscale()) == "log":
        return float(start * (high / low) ** 0.09)
    return float(start + 0.09 * (high - low))


def _segment(
    ax: Axes, x: float, y: float, low: float, high: float, upright: bool, colour: str
) -> None:
    ends = ([x, x], [low, high]) if upright else ([low, high], [y, y])
    ax.plot(*ends, color=colour, lw=0.8, alpha=0.75, zorder=3, solid_capstyle="butt")


def _arrow(ax: Axes, x: float, y: float, tip: float, upright: bool, colour: str) -> None:
    style = "-|>,head_width=0.12,head_length=0.25"
    arrow = {"arrowstyle": style, "color": colour, "lw": 0.8, "shrinkA": 2.5, "shrinkB": 0}
    ax.annotate("", (x, tip) if upright else (tip, y), xytext=(x, y), zorder=3, arrowprops=arrow)


def _handles(rows: pd.DataFrame, arms: Sequence[str]) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = []
    for i, (arm, colour) in enumerate(arm_colours(arms).items()):
        marker = _MARKERS[i % len(_MARKERS)]
        handles.append(Line2D([], [], color=colour, lw=1.0, marker=marker, label=arm, **_MARK))
    if (rows["median"].isna() & (rows["seeds"] > 0)).any():
        hollow: Any = {"color": "black", "ls": "none", "marker": "o", "mfc": "white", **_MARK}
        handles.append(Line2D([], [], label="later than this, or never", **hollow))
    some = rows[(rows["reached"] > 0) & (rows["reached"] < rows["seeds"])]
    if len(some):
        first = f"{some['reached'].iloc[0]}/{some['seeds'].iloc[0]}"
        handles.append(Line2D([], [], ls="none", label=f"{first}  seeds that got there"))
    return handles


def _extent(rows: pd.DataFrame, quantity: SpentQuantity) -> tuple[float, str, float, float, bool]:
    """(the axis' unit, its name, its ends, whether it is logarithmic) for all rows of a target."""
    done = rows[rows["seeds"] > 0]
    values = done[["at_least", "low", "high"]].to_numpy(float).ravel()
    values = values[np.isfinite(values)]
    most = float(values.max(initial=0.0)) or 1.0
    scale, unit = _unit(quantity, most)
    least = float(values[values > 0].min(initial=most))
    if most >= _LOG_FROM * least:
        return scale, unit, least / 1.25, most * 1.7, True
    return scale, unit, 0.0, 1.15 * most, False


def _unit(quantity: SpentQuantity, most: float) -> tuple[float, str]:
    if quantity.column == "at_s":
        return time_unit(most)
    if quantity.column == "energy_j":
        return next(((s, u) for s, u in _ENERGIES if most >= s), _ENERGIES[-1])
    return bytes_unit(most)


def _set_log(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    (axis.axes.set_yscale if axis.axis_name == "y" else axis.axes.set_xscale)("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _is_target(rows: pd.DataFrame, goal: float) -> Any:
    return rows["target"].isna() if math.isnan(goal) else rows["target"] == goal


def _to(goal: float, measure: Measure) -> str:
    return "of whole runs" if math.isnan(goal) else f"to {measure.goal(goal)}"


def target_caption(
    study: StudyResult, *, quantity: str = "time", targets: Sequence[float] = ()
) -> str:
    """What the figure's marks and lines are, as one would write below it."""
    caption = _caption(study, target_rows(study, quantity, targets))
    return f"{quantity_of(quantity).label.capitalize()}: {caption}"


def _caption(study: StudyResult, rows: pd.DataFrame) -> str:
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


# --- for the page ------------------------------------------------------------------------------


def target_panels(study: StudyResult) -> list[Panel]:
    """A chart for every setting of the axes that are not drawn against, with a selector of what was
    spent and to which target."""
    axis = swept_axis(study)
    places, goals = places_of(study, axis), targets_of(study)
    every = {}
    for quantity in QUANTITIES.values():
        try:
            rows = target_rows(study, quantity.name)
        except InputError:  # the profiles know no power
            continue
        if (rows["at_least"] > 0).any():
            every[quantity.name] = rows
    if not every or not (every["time"]["seeds"] > 0).any():
        return []
    colours = arm_colours(every["time"]["arm"])
    about = _caption(study, every["time"])
    about = about[0].upper() + about[1:]
    panels = []
    for number, title in enumerate(panels_of(study, every["time"], axis)):
        options, cells = {}, []
        for name, rows in every.items():
            spent, shown = QUANTITIES[name], panels_of(study, rows, axis)[title]
            for goal in goals:
                done = shown[_is_target(shown, goal) & (shown["seeds"] > 0)]
                label = f"{spent.label} {_to(goal, study.measure)}"
                options[label] = _chart(done, spent, label, places, colours)
                cells += [_cells(row, spent, label, places) for row in done.to_dict("records")]
        header = ("what", places.label or "setting", "arm", "seeds", "got there", "median")
        table = PanelTable(title or "To the target", header, cells, frozenset({3, 4, 5}))
        against = f" against {places.label}" if places.label else ""
        panels.append(
            Panel(
                f"targets-{number}",
                title or f"Spent to reach the target{against}",
                about,
                choices(options, subject="show"),
                (),
                table,
            )
        )
    return panels


def _chart(
    rows: pd.DataFrame,
    quantity: SpentQuantity,
    label: str,
    places: Places,
    colours: dict[str, str],
) -> Chart:
    scale, unit, low, high, is_log = _extent(rows, quantity)
    arms = list(colours)
    if places.axis:
        ticks, texts = list(places.at), list(places.labels)
        step = min(0.02, 0.5 * places.least_gap / max(1, len(arms)))
        aside = {arm: (i - (len(arms) - 1) / 2) * step for i, arm in enumerate(arms)}
    else:  # nothing else is swept: a place per arm
        ticks = [(i + 0.5) / len(arms) for i in range(len(arms))]
        texts, aside = arms, {arm: x - 0.5 for arm, x in zip(arms, ticks, strict=True)}
    at = dict(zip(places.labels, places.at, strict=True))
    data = []
    for i, arm in enumerate(arms):
        of_arm = rows[rows["arm"] == arm]
        across = of_arm[places.axis].map(at) if places.axis else pd.Series(0.5, index=of_arm.index)
        x = (across.astype(float) + aside[arm]).to_numpy()
        data += _arm_traces(arm, i, colours[arm], x, of_arm, quantity, scale, high)
    values = _log_ticks(low / scale, high / scale) if is_log else None
    log = {"type": "log", "tickvals": values, "ticktext": [f"{v:g}" for v in values or ()]}
    ends = [math.log10(low / scale), math.log10(high / scale)] if is_log else [0, high / scale]
    upwards = {"title": {"text": f"{label} ({unit})"}, "range": ends, **(log if is_log else {})}
    layout = {
        "xaxis": {
            "title": {"text": plain(places.label)},
            "tickvals": ticks,
            "zeroline": False,
            "ticktext": [plain(text) for text in texts],
            "range": [-0.1, 1.1],
            "showgrid": False,
        },
        "yaxis": upwards,
        "showlegend": bool(places.axis),
    }
    return data, layout


def _arm_traces(
    arm: str,
    number: int,
    colour: str,
    x: Any,
    rows: pd.DataFrame,
    quantity: SpentQuantity,
    scale: float,
    high: float,
) -> list[Spec]:
    """Lines between the marks, dotted where one is only a bound, and the marks with intervals."""
    y = rows["at_least"].to_numpy(float) / scale
    exact = rows["median"].notna().to_numpy()
    symbol = _SYMBOLS[number % len(_SYMBOLS)]
    has_interval = ((rows["coverage"] > 0) & (rows["reached"] > 0)).to_numpy()
    above = np.minimum(rows["high"].to_numpy(float), high) / scale - y
    below = y - rows["low"].to_numpy(float) / scale
    group = {"type": "scatter", "legendgroup": plain(arm), "x": [float(v) for v in x]}
    traces: list[Spec] = []
    for certain, dash in ((True, "solid"), (False, "dot")):
        pairs = [i for i in range(len(y) - 1) if (exact[i] and exact[i + 1]) == certain]
        ends = [(float(v[i]), float(v[i + 1]), None) for i in pairs for v in (x, y)]
        if pairs:
            line: Spec = {**group, "mode": "lines", "showlegend": False, "hoverinfo": "skip"}
            line["x"] = [v for pair in ends[::2] for v in pair]
            line["y"] = [v for pair in ends[1::2] for v in pair]
            line["line"] = {"color": colour, "width": 1.6, "dash": dash}
            traces.append(line)
    symbols = [symbol if is_exact else f"{symbol}-open" for is_exact in exact]
    bars = {"type": "data", "symmetric": False, "width": 0, "thickness": 1.2, "color": colour}
    texts = [_words(row, quantity) for row in rows.to_dict("records")]
    marks = {
        **group,
        "mode": "markers+text",
        "name": plain(arm),
        "y": [float(v) for v in y],
        "error_y": {
            **bars,
            "array": [float(v) for v in np.where(has_interval, above, 0.0)],
            "arrayminus": [float(v) for v in np.where(has_interval, below, 0.0)],
        },
        "marker": {"size": 9, "color": colour, "symbol": symbols},
        "text": ["" if is_exact else "↑" for is_exact in exact],
        "textposition": "top center",
        "textfont": {"color": colour, "size": 14},
        "cliponaxis": False,
        "hovertext": [f"{plain(arm)}<br>{text}" for text in texts],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }
    return [*traces, marks]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 times powers of ten between two ends; fewer where they are many.

    >>> _log_ticks(0.9, 30), _log_ticks(0.5, 2e4)
    ([1.0, 2.0, 5.0, 10.0, 20.0], [1.0, 10.0, 100.0, 1000.0, 10000.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 1e3 else (1,)
    values = (float(f"{step}e{power}") for power in powers for step in steps)
    return [value for value in values if low <= value <= high]


def _words(row: Row, quantity: SpentQuantity) -> str:
    text = "later than " if math.isnan(row["median"]) else ""
    text += _amount(row["at_least"], quantity)
    if row["coverage"] > 0 and row["reached"]:
        text += f" [{_amount(row['low'], quantity)}, {_amount(row['high'], quantity)}]"
    if not math.isnan(row["target"]):
        text += f"<br>{row['reached']} of {row['seeds']} seeds got there"
    return text


def _cells(row: Row, quantity: SpentQuantity, label: str, places: Places) -> tuple[str, ...]:
    where = str(row[places.axis]) if places.axis else str(row["setting"])
    words = _words(row, quantity).partition("<br>")[0]
    return label, where, str(row["arm"]), f"{row['seeds']}", f"{row['reached']}", words


def _amount(value: float, quantity: SpentQuantity) -> str:
    if math.isinf(value):
        return "∞"
    if quantity.column == "at_s":
        return format_duration(value)
    if quantity.column == "energy_j":
        scale, unit = _unit(quantity, value)
        return f"{value / scale:.3g} {unit}"
    return format_bytes(value)
