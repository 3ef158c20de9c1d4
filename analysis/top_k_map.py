"""When does Top-K stop paying? A map over processor speed and uplink bandwidth.

    python analysis/top_k_map.py [--out studies/top-k-map] [--jobs 2] [--figure
    docs/images/top-k-map.png]

Runs the study scenarios/studies/top-k-map.yaml (or goes on with it: what is done is not done
again), draws which strategy was first at 90 % mean accuracy in each cell, and prints the table
behind the map. The story is told in docs/tutorial-when-top-k-stops-paying.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simfed.report.pictures import picture_style, save_picture
from simfed.report.statistics import Paired, median_time, paired_times
from simfed.report.style import ARM_MARKS, arm_colours
from simfed.study import load_study, run_study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
STUDY = ROOT / "scenarios" / "studies" / "top-k-map.yaml"
SPEED, UP, ARM = "clients[*].device.speed", "clients[*].link.up", "policy"
_NAMES = {"top-k": "Top-K", "random-k": "Random-K", "periodic-k": "Periodic-K"}


@dataclass(frozen=True)
class Cell:
    """What one speed and bandwidth came to."""

    first: str
    """The arm that was sooner than each other, by the mean ratio over seeds."""
    is_clear: bool
    """Whether it was before each other arm, with 95 % confidence."""
    beats_top_k: bool
    """Whether it was before Top-K (or another reference) for certain, though perhaps not before the
    others; false if it is Top-K."""
    rival: str
    """Top-K where another was first; where Top-K was, the next after it."""
    against: Paired
    """`first` against `rival`."""


def cell_of(times: pd.DataFrame, axis: str = ARM, reference: str = "top-k") -> Cell:
    """The first arm among the times (`policy, seed, at_s, reached`) of one speed and bandwidth.

    `axis`: the column that names the arms; `reference`: the one that stands for Top-K.
    """
    arms = {arm: rows.sort_values("seed") for arm, rows in times.groupby(axis)}

    def against(one: str, other: str) -> Paired:
        columns = [arms[arm][name].tolist() for arm in (one, other) for name in ("at_s", "reached")]
        return paired_times(*columns)

    def least_lead(one: str) -> float:
        return min(against(one, other).ratio.least for other in arms if other != one)

    order = sorted(arms, key=least_lead, reverse=True)
    first, others = order[0], order[1:]
    rival = others[0] if first == reference else reference
    is_clear = all(against(first, other).verdict == 1 for other in others)
    measured = against(first, rival)
    beats_top_k = first != reference and measured.verdict == 1
    return Cell(first, is_clear, beats_top_k, rival, measured)


@picture_style()
def map_figure(times: pd.DataFrame, speeds: Sequence[float], rates: Sequence[str]) -> Figure:
    """One square per cell, coloured by the arm that was first; hatched where that is not clear."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(
        figsize=(0.62 * len(rates) + 1.3, 0.5 * len(speeds) + 1.35), layout="constrained"
    )
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    colours = arm_colours(ARM_MARKS)
    for (speed, rate), rows in times.groupby([SPEED, UP]):
        _draw_cell(ax, rates.index(rate), list(speeds).index(speed), cell_of(rows), colours)
    ax.set_xticks(range(len(rates)), rates)
    ax.set_yticks(range(len(speeds)), [f"{speed:g}×" for speed in speeds])
    ax.set_xlim(-0.5, len(rates) - 0.5)
    ax.set_ylim(-0.5, len(speeds) - 0.5)
    ax.set_xlabel("uplink of every client")
    ax.set_ylabel("processor speed (1×: as measured)")
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)
    handles = [
        Patch(color=colours[a], label=f"{ARM_MARKS[a]}: {_NAMES[a]} first") for a in ARM_MARKS
    ]
    for hatch, label in (
        ("....", "before Top-K, not clearly before the third"),
        ("////", "not clear"),
    ):
        handles.append(Patch(facecolor="0.7", hatch=hatch, edgecolor="white", label=label))
    figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)
    seeds = times["seed"].nunique()
    figure.supxlabel(
        f"time to 90 % mean accuracy, {seeds} seeds per cell and strategy; numbers: how many "
        "times sooner\n"
        "than Top-K (where Top-K is first: than the next); clear: against each other, with 95 % "
        "confidence",
        fontsize=5.5,
        color="0.35",
    )
    return figure


def _draw_cell(ax: Axes, x: int, y: int, cell: Cell, colours: dict[str, str]) -> None:
    from matplotlib.patches import Rectangle

    sure = cell.is_clear or cell.beats_top_k
    box = Rectangle(
        (x - 0.5, y - 0.5),
        1,
        1,
        facecolor=colours[cell.first],
        edgecolor="white",
        lw=0.8,
        alpha=0.9 if sure else 0.4,
        hatch="" if cell.is_clear else "...." if sure else "////",
    )
    ax.add_patch(box)
    ratio = cell.against.ratio.least
    text = f"{ARM_MARKS[cell.first]}\n{ratio:.2f}×"
    ax.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        fontsize=6,
        color="white" if sure else "black",
        bbox={"facecolor": colours[cell.first], "lw": 0, "pad": 1}
        if sure > cell.is_clear
        else None,
    )


def table(times: pd.DataFrame, speeds: Sequence[float], rates: Sequence[str]) -> str:
    """The map in words, a line per cell."""
    lines = []
    for speed in speeds:
        for rate in rates:
            rows = times[np.isclose(times[SPEED], speed) & (times[UP] == rate)]
            if rows.empty:
                continue
            cell = cell_of(rows)
            ratio = cell.against.ratio
            medians = ", ".join(
                f"{arm} {median_time(t['at_s'], t['reached']).least:.2f} s"
                for arm, t in rows.groupby(ARM)
            )
            unsure = "before top-k, not clearly first" if cell.beats_top_k else "first, not clearly"
            clear = "first" if cell.is_clear else unsure
            lines.append(
                f"speed {speed:g}, {rate}: {cell.first} {clear}, {ratio.least:.2f}× "
                f"[{ratio.low:.2f}, {ratio.high:.2f}] sooner than {cell.rival} ({medians})"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--study", type=Path, default=STUDY)
    parser.add_argument("--out", type=Path, default=Path("studies/top-k-map"))
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "images" / "top-k-map.png")
    parser.add_argument("--draw-only", action="store_true", help="what is there so far")
    arguments = parser.parse_args()
    if not arguments.draw_only:
        run_study(arguments.study, arguments.out, jobs=arguments.jobs)
    study = load_study(arguments.out)
    labels = {axis["name"]: axis["labels"] for axis in study.plan["axes"]}
    speeds, rates = [float(label) for label in labels[SPEED]], labels[UP]
    arms = len(labels[ARM])
    # cells with at least two seeds of every arm: an interval needs two
    complete = study.times.groupby([SPEED, UP]).filter(
        lambda rows: rows.groupby("seed").size().eq(arms).sum() >= 2
    )
    arguments.figure.parent.mkdir(parents=True, exist_ok=True)
    save_picture(map_figure(complete, speeds, rates), arguments.figure, dpi=220)
    print(table(complete, speeds, rates))


if __name__ == "__main__":
    main()
