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
    """Return the runs' measure, or another column `y`, against time, rounds or bytes.

    Columns are those of `frames.curves`; `x` is `at_s`, `round`, `uplink_bytes` or
    `total_bytes`. One run: a curve per prototype and their mean. Several: the mean of
    each, coloured by run.

    Raises: `InputError` where no run has that measure.
    """
    chosen = list(runs) if isinstance(runs, Sequence) else [runs]
    measure = find_common_measure((run.measure for run in chosen), where="runs")
    y = measure.key if y is None else y
    parts = [
        frames.curves(run, label)
        for run, label in zip(chosen, frames.label_runs(chosen), strict=True)
    ]
    if len(parts) == 1:
        figure = curve_figure(parts[0], x=x, y=y, colour="prototype", width_in=width_in)
    else:
        means = frames.select_headlines(pd.concat(parts))
        figure = curve_figure(means, x=x, y=y, colour="run", width_in=width_in)
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
    """Return a figure of the curves in a tidy frame; see `draw_curves`."""
    for name in (y, x):
        check_known(name, tidy.columns)
    if tidy[y].notna().sum() == 0:
        raise InputError(
            f"a run that recorded {_Y_LABELS.get(y, y)}",
            problem=f"no {_Y_LABELS.get(y, y)} was recorded",
        )
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

    `colours` says which colour each value has; in order of appearance if omitted.
    `targets`: values of the measure with a dashed line across.

    Rows without the measure are left out. Where the frame has columns `low` and `high`,
    a band is drawn between them: seeds of a study, or quantiles of clients.
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
    last = float(values.max())
    if x == "at_s":
        scale, unit = time_unit(last)
        return scale, f"simulated time ({unit})"
    if x.endswith("_bytes"):
        scale, unit = choose_bytes_unit(last)
        kind = {"uplink_bytes": "sent by clients", "total_bytes": "moved"}.get(x, x)
        return scale, f"{kind} ({unit})"
    return 1.0, x
