"""The figures of RESULTS.md, drawn of kept rows by paper.py."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from paper_claims import (
    FACTORS,
    FAILS,
    HOLDS,
    NAMES,
    POLICIES,
    SAFEGUARDS,
    SETTINGS,
    UNDECIDED,
    attempts,
    open_points,
    readings,
)
from paper_rows import Rows, ratio

from simfed.report.pictures import build_empty_figure, picture_style
from simfed.report.statistics import estimate_mean
from simfed.report.style import SERIES_COLOURS, choose_arm_colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STATES = {HOLDS: "#009E73", UNDECIDED: "#C4C4C4", FAILS: "#D55E00"}
COLOURS = choose_arm_colours(POLICIES)


def axes_in(
    heights_in: Sequence[float], widths: Sequence[float]
) -> tuple[Figure, list[Axes]]:
    """Return a figure with rows of so many inches and columns of such relative widths,
    and its axes row by row.
    """
    size = (7.0, sum(heights_in) + 0.45)
    figure = build_empty_figure(figsize=size, layout="constrained")
    shape = len(heights_in), len(widths)
    grid = figure.add_gridspec(*shape, height_ratios=heights_in, width_ratios=widths)
    return figure, [figure.add_subplot(grid[at]) for at in range(math.prod(shape))]


@picture_style()
def at_a_glance(rows: Rows) -> Figure:
    """Draw how many times sooner ASCEND is than each rival by setting, and, by claim
    and axis, the shares of its readings that hold, cannot be told, fail.
    """
    figure, (left, right) = axes_in((2.9,), (1.0, 1.15))
    for at, rival in enumerate(("top-k", "exp3", "random-k", "periodic-k")):
        left.plot([], [], "o", ms=3.2, color=COLOURS[rival], label=NAMES[rival])
        for row, setting in enumerate(SETTINGS.values()):
            e = ratio(rows.of("ascend", **setting), rows.of(rival, **setting)).ratio
            y, colour = row + 0.17 * (at - 1.5), COLOURS[rival]
            if e.is_exact:
                left.plot([e.low, e.high], [y, y], color=colour, lw=1)
            # at least: some runs never got there
            left.plot(e.least, y, "o" if e.is_exact else ">", ms=3.2, color=colour)
    left.axvline(1, color="black", lw=0.6)
    left.set_xscale("log")
    left.minorticks_off()
    ticks = (0.8, 1, 1.25, 1.5, 2)
    left.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    left.set_yticks(
        range(len(SETTINGS)), [name.replace("alpha", "α") for name in SETTINGS]
    )
    left.set_ylim(len(SETTINGS) - 0.5, -0.5)
    left.grid(axis="x", color="black", alpha=0.12, lw=0.4)
    left.set_title(
        "ASCEND is so many times sooner at 90 % than", fontsize=7.5, loc="left"
    )
    small: dict[str, Any] = {"loc": "upper center", "fontsize": 6.5, "frameon": False}
    small_left = {"ncols": 4, "handletextpad": 0.1, "columnspacing": 0.9, **small}
    left.legend(bbox_to_anchor=(0.45, -0.09), **small_left)
    read = readings(rows)
    names = list(dict.fromkeys(one.claim for one in read))
    ticks_y = []
    for row, claim in enumerate(names):
        right.text(0, 3 * row - 0.15, claim, fontsize=6.8, va="center")
        for line, axis in enumerate(("per round", "per second")):
            states = [
                s.state for s in read if (s.claim, s.choices["axis"]) == (claim, axis)
            ]
            y, start = 3 * row + 0.65 + line, 0.0
            ticks_y.append(y)
            for state, colour in STATES.items():
                width = 100 * states.count(state) / len(states)
                label = state if not row and not line else None
                right.barh(y, width, 0.8, left=start, color=colour, label=label, lw=0)
                if width >= 9:
                    text, middle = f"{width:.0f}", start + width / 2
                    right.text(middle, y, text, fontsize=6, ha="center", va="center")
                start += width
    right.set_yticks(ticks_y, ["per round", "per second"] * len(names), fontsize=6.5)
    right.tick_params(axis="y", length=0)
    right.set_ylim(3 * len(names) - 0.75, -0.8)
    right.set_xlim(0, 100)
    right.set_xticks([])
    right.spines["bottom"].set_visible(False)
    right.set_title("share of readings (%) in which a claim", fontsize=7.5, loc="left")
    right.legend(bbox_to_anchor=(0.5, 0), ncols=3, handlelength=1.0, **small)
    return figure


@picture_style()
def open_points_figure(rows: Rows) -> Figure:
    """Draw every question in every combination of open points, in order of its answer.

    Below, which combination that is.
    """
    figure, axes = axes_in((1.25, 0.9) * 2, (1.0,) * 3)
    for at, (question, cells, _) in enumerate(open_points(rows, 1000)):
        row, column = 2 * (at // 3), at % 3
        curve, matrix = axes[3 * row + column], axes[3 * (row + 1) + column]
        ratios = question.unit == "×"
        for x, cell in enumerate(sorted(cells, key=lambda cell: cell.estimate.least)):
            e, colour = cell.estimate, STATES[cell.state]
            ends = [
                math.exp(v) if ratios else 100 * v for v in (e.low, e.high, e.least)
            ]
            curve.plot([x, x], ends[:2], color=colour, lw=1.2)
            mark, size = ("o", 3.2) if cell.others else ("D", 4.2)
            curve.plot(x, ends[2], mark, ms=size, color=colour)
            for y, factor in enumerate(FACTORS):
                dark = factor in cell.others
                matrix.plot(x, y, "s", ms=4, color="black" if dark else "#DDDDDD")
        bound = math.exp(question.bound) if ratios else 100 * question.bound
        curve.axhline(bound, color="black", lw=0.6, ls=":")
        curve.set_title(question.short, fontsize=7, loc="left")
        unit = {"×": "× sooner", "points": "points", "share": "points of share"}
        curve.set_ylabel(unit[question.unit], fontsize=6)
        curve.tick_params(axis="y", labelsize=6)
        curve.grid(axis="y", color="black", alpha=0.12, lw=0.4)
        labels = list(FACTORS.values()) if column == 0 else [""] * len(FACTORS)
        matrix.set_yticks(range(len(FACTORS)), labels, fontsize=6)
        matrix.set_ylim(len(FACTORS) - 0.4, -0.6)
        matrix.tick_params(length=0)
        matrix.spines[["left", "bottom"]].set_visible(False)
        for ax in (curve, matrix):
            ax.set_xlim(-0.5, len(cells) - 0.5)
            ax.set_xticks([])
    return figure


@picture_style()
def safeguard(rows: Rows) -> Figure:
    """Draw the distillation loss around undone rounds, and how often the second attempt
    exceeds the threshold again.
    """
    figure, (left, right) = axes_in((2.3,), (1.25, 1.0))
    names = [name for name in SAFEGUARDS if name != "off"]
    for y, (name, colour) in enumerate(zip(names, itertools.cycle(SERIES_COLOURS))):
        runs = rows.of("ascend", rounds=400, variant=SAFEGUARDS[name]).values()
        each = [one for run in runs for one in attempts(run, 6, 8)]
        curve = np.nanmedian([one.losses for one in each], axis=0)
        left.plot(range(-6, 9), curve, color=colour, lw=1.2, label=name)
        share = 100 * np.mean([one.again for one in each])
        right.barh(y, share, 0.7, color=colour, lw=0)
        right.text(
            share + 1, y, f"{share:.0f} % of {len(each)}", va="center", fontsize=6.5
        )
    left.axvline(0, color="black", lw=0.5, ls=":")
    left.set_yscale("log")
    ticks = (0.5, 1, 2, 4, 8)
    left.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    left.minorticks_off()
    left.set_xlabel("rounds after the undone one")
    left.set_ylabel("distillation loss (its median around = 1)")
    right.set_yticks(range(len(names)), names, fontsize=6.5)
    right.set_ylim(len(names) - 0.5, -0.5)
    right.set_xlim(0, 130)
    right.set_xticks([0, 25, 50, 75, 100])
    right.set_xlabel("second attempts above the threshold (%)")
    return figure


@picture_style()
def by_k(rows: Rows) -> Figure:
    """Draw accuracy over simulated time at each K: above whole runs, below their last
    30 %.
    """
    figure, axes = axes_in((2.0, 2.0), (1.0,) * 3)
    for far, near, k in zip(axes[:3], axes[3:], (500, 1000, 5000), strict=True):
        ends = []
        for arm in POLICIES:
            runs = list(rows.of(arm, k=k).values())
            start, stop = max(r.at_s[0] for r in runs), min(r.at_s[-1] for r in runs)
            grid = np.linspace(start, stop, 200)
            values = 100 * np.array([np.interp(grid, r.at_s, r.accuracy) for r in runs])
            bands = [estimate_mean(at.tolist()) for at in values.T]
            low, high = ([getattr(b, e) for b in bands] for e in ("low", "high"))
            for ax in (far, near):
                z, colour = 3 if arm == "ascend" else 2, COLOURS[arm]
                mean = values.mean(axis=0)
                ax.plot(grid, mean, lw=1.1, label=NAMES[arm], color=colour, zorder=z)
                ax.fill_between(grid, low, high, color=COLOURS[arm], alpha=0.18, lw=0)
            ends.append(values.mean(axis=0)[grid >= 0.7 * stop])
        far.set_title(f"K = {k:,}", fontsize=7)
        far.set(xlim=(0, stop), ylim=(0, 100))
        bounds = 2 * math.floor(np.min(ends) / 2), 2 * math.ceil(np.max(ends) / 2)
        near.set(xlim=(0.7 * stop, stop), ylim=bounds, xlabel="simulated time (s)")
        for ax in (far, near):
            ax.grid(color="black", alpha=0.12, lw=0.4)
    for ax in axes[::3]:
        ax.set_ylabel("test accuracy (%)")
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=5, frameon=False)
    return figure


FIGURES = {
    "at-a-glance": at_a_glance,
    "open-points": open_points_figure,
    "safeguard": safeguard,
    "mnist-k": by_k,
}
