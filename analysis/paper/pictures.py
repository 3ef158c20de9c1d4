"""Pictures of more than curves: the one that opens RESULTS.md, what hangs on which choice, who
chose what when, and how the safeguard's second attempts go."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from choices import losses_around, shares_over_time
from claims import FAILS, HOLDS, SETTINGS, UNDECIDED
from figures import COLOURS, axes_in
from multiverse import (
    FACTORS,
    SAFEGUARDS,
    Specification,
    cells,
    is_folded,
    readings,
    settings,
)
from results import FIXED, LARGE, NAMES, SMALL, Results, time_ratio

from simfed.ground.units import counted
from simfed.report.pictures import picture_style
from simfed.report.style import SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STATES = {HOLDS: "#009E73", UNDECIDED: "#C4C4C4", FAILS: "#D55E00"}
_RIVALS = ("top-k", "exp3", "random-k", "periodic-k")
_TICKS = (0.5, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 6)
_STRETCHES = 20
_BEFORE, _AFTER = 6, 8


class Picture(NamedTuple):
    """A picture; `draw` gives None where the results lack what it shows."""

    name: str
    title: str
    says: str
    draw: Callable[[Results], Figure | None]


# --- at a glance -------------------------------------------------------------------------------


@picture_style()
def _opening(results: Results) -> Figure | None:
    if not all(results.runs(policy) for policy in ("ascend", *_RIVALS)):
        return None
    figure, (left, right) = axes_in((2.9,), (1.0, 1.15))
    _sooner(results, left)
    _bars_of_states(list(readings(results)), right)
    return figure


def _sooner(results: Results, ax: Axes) -> None:
    """How many times sooner ASCEND is at 90 % than each rival, by setting."""
    shown = [1.0]
    for at, rival in enumerate(_RIVALS):
        ax.plot([], [], "o", ms=3.2, color=COLOURS[rival], label=NAMES[rival])
        for row, (_, setting) in enumerate(SETTINGS):
            a, b = (results.runs(policy, **setting) for policy in ("ascend", rival))
            ratio = time_ratio(a, b, 0.9).ratio
            if math.isnan(ratio.least):
                continue
            y, colour = row + 0.17 * (at - 1.5), COLOURS[rival]
            if ratio.is_exact:
                ax.plot([ratio.low, ratio.high], [y, y], color=colour, lw=1)
            mark = "o" if ratio.is_exact else ">"  # at least: some runs never got there
            ax.plot(ratio.least, y, mark, ms=3.2, color=colour)
            shown.append(ratio.least)
    low, high = 0.85 * min(shown), 1.2 * max(shown)
    ax.axvline(1, color="black", lw=0.6)
    ax.set_xscale("log")
    ax.minorticks_off()
    ticks = [tick for tick in _TICKS if low < tick < high]
    ax.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    ax.set_xlim(low, high)
    ax.set_yticks(range(len(SETTINGS)), [name.replace("alpha", "α") for name, _ in SETTINGS])
    ax.set_ylim(len(SETTINGS) - 0.5, -0.5)
    ax.grid(axis="x", color="black", alpha=0.12, lw=0.4)
    ax.set_title("ASCEND is so many times sooner at 90 % than", fontsize=7.5, loc="left")
    ax.legend(loc="upper center", bbox_to_anchor=(0.45, -0.09), ncols=4, fontsize=6.5,
              frameon=False, handletextpad=0.1, columnspacing=0.9)  # fmt: skip


def _bars_of_states(readings: Sequence[Specification], ax: Axes) -> None:
    """Per claim and axis, the shares of its readings that hold, cannot be told, fail."""
    ticks, names = [], []
    claims = list(dict.fromkeys(one.claim for one in readings))
    for row, claim in enumerate(claims):
        ax.text(0, 3 * row - 0.15, claim, fontsize=6.8, va="center")
        for line, axis in enumerate(("per round", "per second")):
            states = [s.state for s in readings if s.claim == claim and s.choices["axis"] == axis]
            y, left = 3 * row + 0.65 + line, 0.0
            ticks.append(y)
            names.append(axis)
            for state, colour in STATES.items():
                width = 100 * states.count(state) / len(states)
                label = state if not row and not line else None
                ax.barh(y, width, 0.8, left=left, color=colour, label=label, lw=0)
                if width >= 9:
                    ax.text(
                        left + width / 2, y, f"{width:.0f}", fontsize=6, ha="center", va="center"
                    )
                left += width
    ax.set_yticks(ticks, names, fontsize=6.5)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(3 * len(claims) - 0.75, -0.8)
    ax.set_xlim(0, 100)
    ax.set_xticks([])
    ax.spines["bottom"].set_visible(False)
    ax.set_title("share of readings (%) in which a claim", fontsize=7.5, loc="left")
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.0),
        ncols=3,
        fontsize=6.5,
        frameon=False,
        handlelength=1.0,
    )


# --- open points -------------------------------------------------------------------------------


@picture_style()
def _specification_curves(results: Results, k: int) -> Figure | None:
    """Every question in every combination of open points, in order of its answer; below, which
    combination that is."""
    whole = len(cells(is_folded(results, k)))
    judged = [(q, each) for q, each, _ in settings(results, k) if len(each) == whole]
    if not judged:
        return None
    figure, axes = axes_in((1.25, 0.9) * 2, (1.0,) * 3)
    for at, (question, each) in enumerate(judged[:6]):
        row, column = 2 * (at // 3), at % 3
        curve, matrix = axes[3 * row + column], axes[3 * (row + 1) + column]
        ordered = sorted(each, key=lambda one: one.estimate.least)
        _one_curve(curve, question.short, question.unit, question.bound, ordered)
        for x, one in enumerate(ordered):
            for y, factor in enumerate(FACTORS):
                other = one.choices[factor.words] == factor.other
                matrix.plot(x, y, "s", ms=4, color="black" if other else "#DDDDDD")
        labels = [f"{f.words} {f.other}" for f in FACTORS] if column == 0 else [""] * len(FACTORS)
        matrix.set_yticks(range(len(FACTORS)), labels, fontsize=6)
        matrix.set_ylim(len(FACTORS) - 0.4, -0.6)
        matrix.set_xlim(-0.5, len(ordered) - 0.5)
        matrix.set_xticks([])
        matrix.tick_params(length=0)
        for side in ("left", "bottom"):
            matrix.spines[side].set_visible(False)
    for ax in axes[3 * 2 * math.ceil(len(judged) / 3) :]:
        ax.set_axis_off()
    return figure


def _one_curve(
    ax: Axes, name: str, unit: str, bound: float, readings: Sequence[Specification]
) -> None:
    def shown(value: float) -> float:
        return math.exp(value) if unit == "×" else 100 * value

    for x, one in enumerate(readings):
        colour = STATES.get(one.state, "#C4C4C4")
        e = one.estimate
        ax.plot([x, x], [shown(e.low), shown(e.high)], color=colour, lw=1.2)
        taken = all(one.choices[f.words] == f.taken for f in FACTORS)
        ax.plot(x, shown(e.least), "D" if taken else "o", ms=4.2 if taken else 3.2, color=colour)
    ax.axhline(shown(bound), color="black", lw=0.6, ls=":")
    ax.set_title(name, fontsize=7, loc="left")
    ax.set_xlim(-0.5, len(readings) - 0.5)
    ax.set_xticks([])
    ax.set_ylabel(
        {"×": "× sooner", "points": "points", "share": "points of share"}[unit], fontsize=6
    )
    ax.tick_params(axis="y", labelsize=6)
    ax.grid(axis="y", color="black", alpha=0.12, lw=0.4)


# --- choices over time -------------------------------------------------------------------------


@picture_style()
def _over_time(results: Results) -> Figure | None:
    """Each strategy's share of free choices in twentieths of the run, by prototype."""
    panels = list(itertools.product((1000, 5000), (SMALL, LARGE)))
    by_panel = {
        (k, prototype): [
            shares
            for run in results.runs("ascend", k=k).values()
            if (shares := shares_over_time(run, prototype, _STRETCHES)) is not None
        ]
        for k, prototype in panels
    }
    drawn = [panel for panel in panels if by_panel[panel]]
    if not drawn:
        return None
    figure, axes = axes_in((1.7,), (1.0,) * len(drawn))
    rounds = (np.arange(_STRETCHES) + 0.5) * 1000 / _STRETCHES
    for ax, (k, prototype) in zip(axes, drawn, strict=True):
        for arm in FIXED:
            each = 100 * np.array([shares[arm] for shares in by_panel[k, prototype]])
            ax.plot(rounds, each.T, color=COLOURS[arm], lw=0.4, alpha=0.45)
            ax.plot(rounds, each.mean(axis=0), color=COLOURS[arm], lw=1.4, label=NAMES[arm])
        ax.axhline(100 / 3, color="black", lw=0.5, ls=":")
        ax.set_ylim(0, 100)
        ax.set_xlim(0, 1000)
        seeds = counted(len(by_panel[k, prototype]), "seed")
        ax.set_title(f"{NAMES[prototype]}, K = {k:,} ({seeds})", fontsize=7)
        ax.set_xlabel("round")
    axes[0].set_ylabel("share of free choices (%)")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False)
    return figure


# --- the safeguard -----------------------------------------------------------------------------


@picture_style()
def _second_attempts(results: Results) -> Figure | None:
    """Left, the distillation loss around undone rounds; right, how often the second attempt exceeds
    the threshold again."""
    attempts = {
        name: [a for run in runs.values() for a in losses_around(run, _BEFORE, _AFTER)]
        for name, universe in SAFEGUARDS.items()
        if (runs := results.runs("ascend", rounds=400, **universe))
    }
    attempts = {name: each for name, each in attempts.items() if each}
    if not attempts:
        return None
    figure, (left, right) = axes_in((2.3,), (1.25, 1.0))
    offsets = np.arange(-_BEFORE, _AFTER + 1)
    for (name, each), colour in zip(attempts.items(), itertools.cycle(SERIES_COLOURS)):
        curves = np.array([a.losses for a in each])
        left.plot(offsets, np.nanmedian(curves, axis=0), "-", color=colour, lw=1.2, label=name)
    left.axvline(0, color="black", lw=0.5, ls=":")
    left.set_yscale("log")
    ticks = (0.5, 1, 2, 4, 8)
    left.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    left.minorticks_off()
    left.set_xlabel("rounds after the undone one")
    left.set_ylabel("distillation loss (its median around = 1)")
    for y, ((_, each), colour) in enumerate(zip(attempts.items(), itertools.cycle(SERIES_COLOURS))):
        again = 100 * np.mean([a.exceeds_again for a in each])
        right.barh(y, again, 0.7, color=colour, lw=0)
        right.text(again + 1, y, f"{again:.0f} % of {len(each)}", va="center", fontsize=6.5)
    right.set_yticks(range(len(attempts)), list(attempts), fontsize=6.5)
    right.set_ylim(len(attempts) - 0.5, -0.5)
    right.set_xlim(0, 130)
    right.set_xticks([0, 25, 50, 75, 100])
    right.set_xlabel("second attempts above the threshold (%)")
    return figure


PICTURES: dict[str, Picture] = {
    p.name: p
    for p in (
        Picture("at-a-glance", "At a glance",
                "Left: geometric mean over seeds and 95 % t interval; an arrow is a lower bound (some runs never "
                "got there). Right: readings of the same runs on two axes, at three horizons, by two measures of accuracy.",
                _opening),
        Picture("open-points", "ASCEND by five open points, K = 1,000",
                "Mean and 95 % interval over seeds, one variance for all settings; the diamond is the setting taken "
                "everywhere else, the dotted line what is claimed. Black squares: the other value of an open point.",
                lambda results: _specification_curves(results, 1000)),
        Picture("open-points-5000", "ASCEND by five open points, K = 5,000",
                "As at K = 1,000.", lambda results: _specification_curves(results, 5000)),
        Picture("mnist-selection-over-time", "MNIST: strategies chosen in the course of a run",
                "ASCEND; share of free choices in twentieths of the run, thin lines single seeds. Dotted: a third. "
                "Drawn are the seeds whose results carry choices by round.",
                _over_time),
        Picture("safeguard", "The safeguard's second attempts",
                "Runs of 400 rounds, K = 1,000; medians over undone rounds.", _second_attempts),
    )
}  # fmt: skip
