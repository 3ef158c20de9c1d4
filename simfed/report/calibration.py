"""The picture of a device's profile: its laws over the points they were fitted to.

`simfed calibrate show` writes it. A profile has a curve for each kind of work, model
and strategy; `profile_figure` groups them into panels and `_draw_curve` draws one.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import FuncFormatter, NullFormatter

from simfed.calibrate.check import find_interval_factor
from simfed.device.curve import Constant, Fitted, Points
from simfed.device.profile import ANY, QUANTITIES, Key, Profile
from simfed.device.table import MeasuredRows, compute_medians
from simfed.ground.errors import InputError
from simfed.ground.units import format_duration
from simfed.report.pictures import build_empty_figure, picture_style
from simfed.report.style import SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 3
_LEGEND: Any = {
    "frameon": False,
    "fontsize": 6,
    "loc": "upper left",
    "borderaxespad": 0.1,
    "ncols": 2,
    "columnspacing": 0.8,
    "handlelength": 1.2,
    "handletextpad": 0.4,
    "labelspacing": 0.3,
}
_PANEL_IN = (2.35, 1.75)
_X_LABELS = {
    "batch": "samples of a batch",
    "samples": "samples",
    "k": "entries kept, K",
}
"""Axis labels: the quantity by which the size of a kind of work counts."""


@picture_style()
def profile_figure(profile: Profile, table: MeasuredRows | None = None) -> Figure:
    """Return every curve of a profile, over the medians it was fitted to.

    A panel per kind of work (and model, where strategies differ), each curve with its
    90 % interval; both axes logarithmic. Outside the measured range a curve is dotted.

    Args:
        profile: of a device.
        table: what was measured, whose medians per session are drawn; None: the rows
            of a table profile are the points, laws have none.

    Raises:
        InputError: for a profile without a curve to draw.
    """
    panels = _group_curves(profile)
    if not panels:
        allowed, problem = "a profile with at least one", "there is no curve to draw"
        raise InputError(allowed, where=profile.name, problem=problem)
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = (_PANEL_IN[0] * columns, _PANEL_IN[1] * rows)
    figure = build_empty_figure(figsize=size, layout="constrained")
    for place, (title, lines) in enumerate(panels.items(), start=1):
        ax = figure.add_subplot(rows, columns, place)
        for line, colour in zip(lines, itertools.cycle(SERIES_COLOURS), strict=False):
            _draw_curve(ax, profile, *line, colour, table)
        ax.set_title(title, fontsize=7.5, loc="left")
        ax.set_xlabel(_X_LABELS[QUANTITIES[lines[0][1][0]].size])
        ax.set_ylabel("time")
        _set_log_scale(ax, headroom=len(lines))
        ax.legend(**_LEGEND)
    return figure


def _group_curves(profile: Profile) -> dict[str, list[tuple[str, Key]]]:
    """Return (label, curve) of each panel, by its title.

    Written constants and laws for any model are not drawn.
    """
    panels: dict[str, list[tuple[str, Key]]] = defaultdict(list)
    for key, curve in profile.curves.items():
        quantity, model, strategy = key
        if isinstance(curve, Constant) or model == ANY:
            continue
        if QUANTITIES[quantity].per_strategy:
            panels[f"{quantity}, {model}"].append((strategy, key))
        else:
            panels[quantity].append((model, key))
    return panels


def _draw_curve(
    ax: Axes,
    profile: Profile,
    label: str,
    key: Key,
    colour: str,
    table: MeasuredRows | None,
) -> None:
    """Draw a curve with its interval, solid in its measured range, and its points.

    Args:
        ax: the panel.
        profile: whose curve it is.
        label: its name in the legend.
        key: quantity, model and strategy.
        colour: of all three.
        table: see `profile_figure`.
    """
    curve = profile.curves[key]
    variable = QUANTITIES[key[0]].variable
    sizes: Sequence[float] = ()
    medians: Sequence[float] = ()
    if isinstance(curve, Points):
        sizes, medians = curve.sizes, curve.seconds
    ends = sizes
    if table is not None:
        rows = compute_medians(table.rows_of(key))
        sizes, medians = [row[0] for row in rows], [row[2] for row in rows]
    if isinstance(curve, Fitted) and variable in curve.valid:
        ends = curve.valid[variable]
    ends = ends or sizes or (1.0, 1e4)
    low, high = min(ends), max(ends)
    x = np.geomspace(max(1.0, low / 2), high * 2, 120)
    inside = (x >= low * 0.999) & (x <= high * 1.001)
    seconds = np.array([curve.at(profile.size_of(key, curve, float(v))) for v in x])
    factor = find_interval_factor(profile, key) or 1.0
    ax.plot(x, seconds, ":", lw=0.8, color=colour)
    ax.plot(x[inside], seconds[inside], lw=1.1, color=colour, label=label)
    if factor > 1:
        ax.fill_between(
            x, seconds / factor, seconds * factor, color=colour, alpha=0.15, lw=0
        )
    ax.plot(sizes, medians, "o", ms=2.2, color=colour, alpha=0.8)


def _set_log_scale(ax: Axes, headroom: int) -> None:
    """Give axes logarithmic scales with readable ticks, and room for a legend.

    Args:
        ax: the panel, with all of its curves.
        headroom: entries of the legend, which stands above, two in a row.
    """
    ax.set_xscale("log")
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    share = 0.1 * math.ceil(headroom / 2)
    ax.set_ylim(low, high * (high / low) ** (share / (1 - share)))
    for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        if high < 30 * low:  # powers of ten alone would leave one tick or none
            steps = (1, 2, 5) if high > 6 * low else (1, 1.5, 2, 3, 4, 5, 6, 8)
            ticks = [step * 10.0**e for e in range(-9, 9) for step in steps]
            axis.set_ticks([tick for tick in ticks if low <= tick <= high])
            axis.set_ticks([], minor=True)
        axis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: format_duration(y)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    ax.grid(color="black", alpha=0.12, lw=0.4)
