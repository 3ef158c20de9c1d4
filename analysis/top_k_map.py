"""When does Top-K stop paying? A map over processor speed and uplink bandwidth.

    python analysis/top_k_map.py run [--out studies] [--jobs 2]
    python analysis/top_k_map.py write     # from the kept rows, in a second

`run` plays the study scenarios/studies/top-k-map.yaml (what is done is not done again)
and keeps one row per run in top_k_map_rows.csv: when 90 % mean accuracy was first
reached, else the end. From these rows come the map and the tables of
docs/tutorial-when-top-k-stops-paying.md: which strategy was first in each cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from kept import ROOT, KeptStudy, Row, play_all, read, spent_to, study_parser, write
from pages import markdown, write_page

from simfed.record.read import Run
from simfed.report.pictures import build_empty_figure, picture_style, save_picture
from simfed.report.statistics import PairedTimes, compare_times
from simfed.report.style import ARM_MARKS, choose_arm_colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = Path(__file__).with_name("top_k_map_rows.csv")
PAGE = ROOT / "docs" / "tutorial-when-top-k-stops-paying.md"
PICTURE = ROOT / "docs" / "images" / "top-k-map.png"
TARGET = 0.9
SPEED, UP, ARM = "speed", "up", "policy"
_NAMES = {"top-k": "Top-K", "random-k": "Random-K", "periodic-k": "Periodic-K"}


def row_of(run: Run, curve: pd.DataFrame) -> Row:
    """Return what is kept of a run."""
    spent = spent_to(curve, TARGET, ("round", "at_s"))
    round_, at_s = int(spent["round"]), round(spent["at_s"], 6)
    return {"reached": spent["reached"], "round": round_, "at_s": at_s}


FILE = ROOT / "scenarios" / "studies" / "top-k-map.yaml"
AXES = {SPEED: "clients[*].device.speed", UP: "clients[*].link.up", ARM: "policy"}
STUDIES = [KeptStudy(FILE, AXES, row_of)]


@dataclass(frozen=True)
class Cell:
    """What one speed and bandwidth came to."""

    first: str
    """The arm that was sooner than each other, by the mean ratio over seeds."""
    is_clear: bool
    """Whether it was before each other arm, with 95 % confidence."""
    beats_top_k: bool
    """Whether it was before Top-K for certain, though perhaps not before the others;
    false if it is Top-K."""
    rival: str
    """Top-K where another was first; where Top-K was, the next after it."""
    against: PairedTimes
    """`first` against `rival`."""


def cell_of(times: pd.DataFrame) -> Cell:
    """The first arm among the times (`policy, seed, at_s, reached`) of one speed and
    bandwidth.
    """
    arms = {arm: rows.sort_values("seed") for arm, rows in times.groupby(ARM)}

    def against(one: str, other: str) -> PairedTimes:
        columns = [
            arms[arm][name].tolist()
            for arm in (one, other)
            for name in ("at_s", "reached")
        ]
        return compare_times(*columns)

    def least_lead(one: str) -> float:
        return min(against(one, other).ratio.least for other in arms if other != one)

    order = sorted(arms, key=least_lead, reverse=True)
    first, others = order[0], order[1:]
    rival = others[0] if first == "top-k" else "top-k"
    is_clear = all(against(first, other).verdict == 1 for other in others)
    measured = against(first, rival)
    beats_top_k = first != "top-k" and measured.verdict == 1
    return Cell(first, is_clear, beats_top_k, rival, measured)


@picture_style()
def map_figure(times: pd.DataFrame) -> Figure:
    """One square per cell, coloured by the arm that was first.

    Hatched where that is not clear.
    """
    speeds, rates = list(times[SPEED].unique()), list(times[UP].unique())
    from matplotlib.patches import Patch

    figure = build_empty_figure(
        figsize=(0.62 * len(rates) + 1.3, 0.5 * len(speeds) + 1.35),
        layout="constrained",
    )
    ax = figure.add_subplot()
    colours = choose_arm_colours(ARM_MARKS)
    for (speed, rate), rows in times.groupby([SPEED, UP]):
        _draw_cell(ax, rates.index(rate), speeds.index(speed), cell_of(rows), colours)
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
        Patch(color=colours[a], label=f"{ARM_MARKS[a]}: {_NAMES[a]} first")
        for a in ARM_MARKS
    ]
    for hatch, label in (
        ("....", "before Top-K, not clearly before the third"),
        ("////", "not clear"),
    ):
        handles.append(
            Patch(facecolor="0.7", hatch=hatch, edgecolor="white", label=label)
        )
    figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)
    seeds = times["seed"].nunique()
    figure.supxlabel(
        f"time to 90 % mean accuracy, {seeds} seeds per cell and strategy; numbers: "
        f"how many "
        "times sooner\n"
        "than Top-K (where Top-K is first: than the next); clear: against each other, "
        "with 95 % "
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


def map_table(times: pd.DataFrame) -> str:
    """The map in words: a line per speed, a column per uplink."""
    rates = list(times[UP].unique())
    lines = [["processors", *rates]]
    for speed, rows in times.groupby(SPEED, sort=False):
        by_rate = dict(iter(rows.groupby(UP, sort=False)))
        lines.append(
            [f"{speed:g}×", *(_words(cell_of(by_rate[rate])) for rate in rates)]
        )
    return markdown(lines)


def _words(cell: Cell) -> str:
    """Who was first, and how many times sooner: in bold if it was clear against all, in
    italics if against Top-K alone.
    """
    ratio = cell.against.ratio
    mark = "**" if cell.is_clear else "*" if cell.beats_top_k else ""
    name = f"{mark}{_NAMES[cell.first]}{mark}"
    return f"{name} {ratio.least:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def rounds_table(times: pd.DataFrame) -> str:
    """Rounds that each strategy needed, seed by seed.

    The clock does not change them.
    """
    seeds = sorted(times["seed"].unique())
    lines = [["strategy", *(f"seed {seed}" for seed in seeds)]]
    for arm, rows in times.groupby(ARM, sort=False):
        of_seed = rows.drop_duplicates("seed").set_index("seed")
        cells = [
            str(of_seed["round"][seed]) if of_seed["reached"][seed] else "–"
            for seed in seeds
        ]
        lines.append([_NAMES[str(arm)], *cells])
    return markdown(lines)


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    rows = read(ROWS)
    return {"map": map_table(rows), "rounds": rounds_table(rows)}


def main() -> None:
    arguments = study_parser(__doc__).parse_args()
    if arguments.do == "run":
        write(play_all(STUDIES, arguments.out, arguments.jobs), ROWS)
    write_page("top_k_map")
    save_picture(map_figure(read(ROWS)), PICTURE, dpi=220)


if __name__ == "__main__":
    main()
