"""Curves for print: a measure of learning against time, rounds or bytes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from simfed.ground.errors import InputError, check_known
from simfed.ground.measure import CLASS_MEASURES, SHARES, find_common_measure
from simfed.report import frames
from simfed.report.pictures import (
    build_figure,
    choose_bytes_unit,
    picture_style,
    time_unit,
)
from simfed.report.style import SERIES_COLOURS, make_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simfed.record.read import Run

_X_LABELS = {
    "at_s": "simulated time",
    "uplink_bytes": "sent by clients",
    "total_bytes": "moved",
}
_Y_LABELS = {
    **{one.key: f"test {one.name}" for one in CLASS_MEASURES.values()},
    "measure": "test measure",
    "loss": "test loss",
    "kd_loss": "distillation loss",
}


def accuracy_figure(
    runs: Run | Sequence[Run],
    *,
    x: str = "at_s",
    y: str | None = None,
    width_in: float = 3.5,
) -> Figure:
    """Return the runs' measure, or another column, against time, rounds or bytes.

    One run: a curve per prototype and their mean. Several: the mean of each, coloured
    by run.

    Args:
        runs: a finished run, or several that are judged by one measure.
        x: the column of `frames.curves` across: `at_s`, `round`, `uplink_bytes` or
            `total_bytes`.
        y: the column upwards; None: the measure.
        width_in: the figure's width in inches.

    Raises:
        InputError: for a column that there is not, and where no run has that measure.
    """
    chosen = list(runs) if isinstance(runs, Sequence) else [runs]
    measure = find_common_measure((run.measure for run in chosen), where="runs")
    y = measure.key if y is None else y
    tidy = pd.concat(map(frames.curves, chosen, frames.label_runs(chosen)))
    colour = "prototype"
    if len(chosen) > 1:
        tidy, colour = frames.select_headlines(tidy), "run"
    figure = curve_figure(tidy, x=x, y=y, colour=colour, width_in=width_in)
    (axes,) = figure.axes
    if y == measure.key:
        axes.set_ylabel(f"test {measure.name}")
    if all(run.seconds == "measured" for run in chosen):
        axes.set_xlabel(axes.get_xlabel().replace("simulated", "measured"))
    return figure


@picture_style()
def curve_figure(
    tidy: pd.DataFrame,
    *,
    x: str = "at_s",
    y: str = "accuracy",
    colour: str = "run",
    width_in: float = 3.5,
) -> Figure:
    """Return a figure of the curves in a tidy frame.

    Args:
        tidy: see `draw_curves`, as the rest.
        x: the column across.
        y: the column upwards.
        colour: the column that tells curves apart.
        width_in: the figure's width in inches.

    Raises:
        InputError: for a column that there is not, or one without any number.
    """
    for name in (y, x):
        check_known(name, tidy.columns)
    if not tidy[y].notna().any():
        what = _Y_LABELS.get(y, y)
        problem = f"no {what} was recorded"
        raise InputError(f"a run that recorded {what}", problem=problem)
    figure, (ax,) = build_figure(width_in, [2.0], left_in=0.48, right_in=0.14)
    draw_curves(ax, tidy, x=x, y=y, colour=colour)
    return figure


def draw_curves(
    ax: Axes,
    tidy: pd.DataFrame,
    *,
    x: str = "at_s",
    y: str = "accuracy",
    colour: str = "run",
    colours: Mapping[str, str] | None = None,
    targets: Sequence[float] = (),
) -> None:
    """Draw one curve per value of the column `colour`, with axis labels and a legend.

    Rows without the measure are left out; the curve of `frames.MEAN` is black. Where
    the frame has columns `low` and `high`, a band is drawn between them: seeds of a
    study, or quantiles of clients.

    Args:
        ax: the panel.
        tidy: the values, a row per point.
        x: the column across, in base units; the axis chooses its own.
        y: the column upwards.
        colour: the column that tells curves apart.
        colours: which colour each of its values has; None: in order of appearance.
        targets: values of the measure with a dashed line across.
    """
    tidy = tidy.dropna(subset=[y])
    scale, x_label = _choose_x_axis(tidy[x], x)
    names = list(dict.fromkeys(tidy[colour]))
    if colours is None:
        colours = dict(zip(names, itertools.cycle(SERIES_COLOURS), strict=False))
    for name, group in tidy.groupby(colour, sort=False):
        group = group.sort_values(x)
        emphasised = name == frames.MEAN
        ax.plot(
            group[x] / scale,
            group[y],
            color="black" if emphasised else colours[name],
            lw=1.5 if emphasised else 1.0,
            label=make_label(str(name)),
            marker="." if len(group) < 15 else None,
            markersize=3,
        )
        if {"low", "high"} <= set(group.columns):
            band: Any = {"color": colours[name], "alpha": 0.2, "lw": 0}
            ax.fill_between(group[x] / scale, group["low"], group["high"], **band)
    for target in targets:
        ax.axhline(target, color="black", lw=0.6, ls=(0, (4, 3)), alpha=0.7, zorder=1.5)
    ax.set_xlabel(x_label)
    ax.set_ylabel(_Y_LABELS.get(y, y))
    ax.set_xlim(left=0)
    if y in SHARES:
        ax.set_ylim(0, 1)  # an R² below 0 is worse than no model, and left out
        ax.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    ax.grid(color="black", alpha=0.12, lw=0.4)
    legend = ax.legend(frameon=False, handlelength=1.6, loc="best")
    for text in legend.get_texts():
        text.set_parse_math(False)


def _choose_x_axis(values: pd.Series, x: str) -> tuple[float, str]:
    """Return what to divide an axis' values by, and its label with the unit."""
    if x not in _X_LABELS:
        return 1.0, x
    scale, unit = (time_unit if x == "at_s" else choose_bytes_unit)(float(values.max()))
    return scale, f"{_X_LABELS[x]} ({unit})"
