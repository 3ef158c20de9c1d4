"""The picture of a fleet: the spread of each quantity, before anything runs.

`simfed show fleet` writes it. Columns are what a scenario draws for its clients
(`fleet.columns`); each quantity that differs or matters has a panel.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from simfed.fleet.columns import FIELDS, FleetColumn
from simfed.ground.arrays import Floats
from simfed.report.pictures import build_figure, picture_style
from simfed.report.style import SERIES_COLOURS, make_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_LABELS = {
    "device.speed": "device speed, × profile",
    "link.rate": "PHY rate, Mbps",
    "link.up": "uplink, Mbps",
    "link.down": "downlink, Mbps",
    "link.latency": "latency, ms",
    "link.down_latency": "latency of the way down, ms",
    "link.loss": "packet loss, %",
    "availability.markov.on": "mean stay, h",
    "availability.markov.off": "mean absence, h",
    "k": "K, entries of an update",
}
_SCALES = {
    "link.rate": 8e-6,
    "link.up": 8e-6,
    "link.down": 8e-6,
    "link.latency": 1e3,
    "link.down_latency": 1e3,
    "link.loss": 100.0,
    "availability.markov.on": 1 / 3600,
    "availability.markov.off": 1 / 3600,
}
_MOST_POINTS = 400
_TURN = 4.0
"""The turn of a line among those that lie upon each other, in its widths."""
_DASHES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")


@picture_style()
def draw_fleet_figure(
    columns: Sequence[FleetColumn],
    names: Sequence[str],
    there: Floats | None = None,
    hours: Floats | None = None,
    *,
    width_in: float = 7.0,
) -> Figure:
    """Return per quantity the share of each group's clients with at most so much.

    A drawn quantity is a rising curve, one that is alike for all a step. Quantities
    that are nowhere finite (unlimited links, traces) or 0 for everybody have no panel.

    Args:
        columns: a quantity of a group each, in base units.
        names: of the groups.
        there: shape (hours, groups): the share of a group's clients that are there;
            None: there is no last panel of who is there when.
        hours: simulated hours of `there`.
        width_in: the figure's width in inches; up to three panels stand side by side.
    """
    from matplotlib.lines import Line2D

    fields = [field for field in FIELDS if _is_worth_a_panel(field, columns)]
    fields = fields or ["device.speed"]
    pairs = itertools.cycle((c, dash) for dash in _DASHES for c in SERIES_COLOURS)
    looks = list(itertools.islice(pairs, len(names)))
    legend = [
        Line2D([], [], color=colour, ls=dash, lw=1.2, label=make_label(name))
        for name, (colour, dash) in zip(names, looks, strict=True)
    ]
    count = len(fields) + (there is not None)
    across = 1 if width_in < 5 else min(3, count)
    down = -(-count // across)
    figure, frames = build_figure(
        width_in, [1.35] * down, gap_in=0.5, legend=legend, left_in=0.45, bottom_in=0.42
    )
    panels: list[Axes] = []
    for frame in frames:
        box = frame.get_position()
        frame.remove()
        each = (box.width + 0.05) / across
        for k in range(across):
            if len(panels) < count:
                place = (box.x0 + k * each, box.y0, each - 0.05, box.height)
                panels.append(figure.add_axes(place))
    for k, (axes, field) in enumerate(zip(panels, fields, strict=False)):
        steps = {
            column.group: _compute_steps(column.values * _SCALES.get(field, 1.0))
            for column in columns
            if column.field == field and np.isfinite(column.values).any()
        }
        _draw_steps(axes, steps, looks)
        _scale_x_axis(axes)
        _frame_panel(axes, _LABELS[field])
        if k % across == 0:
            axes.set_ylabel("share of the group")
    if there is not None and hours is not None:
        _draw_steps(
            panels[-1], {i: (hours, shares) for i, shares in enumerate(there.T)}, looks
        )
        _frame_panel(panels[-1], "there at, simulated h")
        panels[-1].set_xlim(hours[0], hours[-1])
        panels[-1].set_xticks(np.arange(hours[0], hours[-1] + 1, 12))
    return figure


def _draw_steps(
    axes: Axes,
    steps: Mapping[int, tuple[Floats, Floats]],
    looks: Sequence[tuple[str, Any]],
) -> None:
    """Draw a step line per group.

    Of those that lie upon each other each has its turn of dashes.

    Args:
        axes: the panel.
        steps: group → (x, share), both of the same length.
        looks: (colour, dashes) of each group.
    """
    alike: dict[bytes, list[int]] = {}
    for group, (x, share) in steps.items():
        alike.setdefault(np.concatenate([x, share]).tobytes(), []).append(group)
    for groups in alike.values():
        for turn, group in enumerate(groups):
            colour, dash = looks[group]
            if len(groups) > 1:
                dash = (_TURN * turn, (_TURN, _TURN * (len(groups) - 1)))
            x, share = steps[group]
            axes.step(x, share, where="post", color=colour, ls=dash, lw=1.2)


def _is_worth_a_panel(field: str, columns: Sequence[FleetColumn]) -> bool:
    """Return whether something is finite and above 0.

    Constant stays are said in the table.
    """
    mine = [column for column in columns if column.field == field]
    if field.startswith("availability") and not any(column.drawn for column in mine):
        return False
    return any((np.isfinite(one.values) & (one.values > 0)).any() for one in mine)


def _compute_steps(values: Any) -> tuple[Any, Any]:
    """Return the empirical distribution as a step curve of a few hundred points."""
    ordered = np.sort(values[np.isfinite(values)])
    at = np.unique(np.linspace(0, len(ordered) - 1, _MOST_POINTS).astype(int))
    share = (at + 1) / len(values)
    return np.concatenate([ordered[:1], ordered[at]]), np.concatenate([[0.0], share])


def _scale_x_axis(axes: Axes) -> None:
    """Make an axis logarithmic where values span a decade, else begin it at 0."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    positive = [
        x for line in axes.get_lines() for x in np.asarray(line.get_xdata()) if x > 0
    ]
    if positive and max(positive) > 20 * min(positive):
        axes.set_xscale("log")
        decades = np.log10(max(positive) / min(positive))
        axes.xaxis.set_major_locator(
            LogLocator(subs=(1, 2, 5) if decades < 3 else (1,))
        )
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda x, _: f"{x:g}" if x < 1e5 else f"{x:.0e}")
        )
        axes.xaxis.set_minor_locator(NullLocator())
    elif positive:
        axes.set_xlim(0, 1.08 * max(positive))


def _frame_panel(axes: Axes, label: str) -> None:
    """Give a panel of shares its ticks, its grid and the name of its x axis."""
    axes.set_ylim(0, 1.03)
    axes.set_yticks([0, 0.5, 1])
    axes.set_xlabel(label, labelpad=2)
    axes.grid(True, linewidth=0.3, color="#D9DBDE")
    axes.set_axisbelow(True)
