"""`balance` beside its rivals, by time and by bytes: the rows, figure and tables of
BALANCE.md.

    # some ten minutes on one core
    python analysis/rivals_figure.py run [--out studies]
    # from the kept rows, in seconds
    python analysis/rivals_figure.py write

`run` plays scenarios/studies/rivals.yaml (what is done is not done again), and keeps
one row per run in rivals.parquet: time, and bytes sent by all clients, when 85 % was
first reached, else by the end. `write` decides by the rules that stand in the study's
file, and makes the page's tables and figure from these rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from kept import ROOT, KeptStudy, Row, play_all, read, spent_to, study_parser, write
from orders import holm
from pages import markdown, with_interval, write_page
from scipy import stats

from simfed.compress.choice import Choice
from simfed.record.read import Run
from simfed.report.pictures import build_empty_figure, picture_style, save_picture
from simfed.report.statistics import PairedTimes, compare_times, estimate_mean
from simfed.report.style import SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
ROWS, PAGE = HERE / "rivals.parquet", HERE / "BALANCE.md"
FIGURE = HERE / "figures" / "rivals.png"
ARM = "list"
RELEVANT = 1.05
"""The smallest relevant effect."""
FEWEST_SEEDS = 5
"""Below, the rules decide nothing."""
TARGET = 0.85
SPENT = {"time": "at_s", "bytes": "uplink_bytes"}
"""What is compared, and the column of a run's curve that has it."""
RIVALS = {
    "fixed K": ("top-k@0.3%", "top-k@1%", "top-k@3%", "top-k@10%", "top-k@30%"),
    "BCRS": ("bcrs 0.3%", "bcrs 1%", "bcrs 3%"),
    "deadline": ("deadline 0.25 s", "deadline 0.4 s", "deadline 0.6 s"),
}
WORDS = {
    "wins": "won",
    "loses": "lost",
    "cannot be told": "that cannot be told",
    "not decided": "not decided, for want of seeds",
}
"""Verdicts on `balance`, and how they are counted."""
SHARES = ("balance 0.1", "balance", "balance 0.6", "balance 1")


# ---- rows ----------------------------------------------------------------------------


def row_of(run: Run, curve: pd.DataFrame) -> Row:
    """Return what had been spent when 85 % was first reached, else by the end."""
    spent = spent_to(curve, TARGET, SPENT.values())
    return {**spent, "final_accuracy": float(curve["accuracy"].iloc[-1])}


FILE = ROOT / "scenarios" / "studies" / "rivals.yaml"
STUDIES = [KeptStudy(FILE, {"setting": "zip", ARM: "list"}, row_of)]


# ---- what decides --------------------------------------------------------------------


class Against(NamedTuple):
    """One arm of one setting beside another."""

    setting: str
    arm: str
    reference: str
    paired: PairedTimes
    p_value: float


def typical_s(times: pd.DataFrame) -> float:
    """The geometric mean of an arm's times; infinite where one never got there."""
    if not times["reached"].all():
        return float("inf")
    return float(np.exp(np.log(times["at_s"]).mean()))


def best_of(times: pd.DataFrame, arms: Sequence[str]) -> str:
    """The arm of least mean time.

    Where none got there under every seed, that which did so most often, then the sooner
    of these.
    """

    def rank(arm: str) -> tuple[float, int, float]:
        rows = times[times[ARM] == arm]
        there = rows[rows["reached"]]
        return typical_s(rows), -len(there), float(there["at_s"].mean())

    return min(arms, key=rank)


def against(times: pd.DataFrame, setting: str, arm: str, reference: str) -> Against:
    """An arm's times beside those of the reference, seed by seed."""
    mine, base = (
        times[times[ARM] == name].sort_values("seed") for name in (arm, reference)
    )
    columns = [
        rows[name].tolist() for rows in (mine, base) for name in ("at_s", "reached")
    ]
    paired = compare_times(*columns)
    p_value = paired.p_value
    if paired.ratio.is_exact and arm != reference and len(mine) > 1:
        logs = np.log(base["at_s"].to_numpy() / mine["at_s"].to_numpy())
        p_value = float(stats.ttest_1samp(logs, 0.0).pvalue)
    return Against(setting, arm, reference, paired, p_value)


class Verdict(NamedTuple):
    spent: str
    rival: str
    against: Against
    word: str
    """One of `WORDS`."""


def judge(rows: pd.DataFrame) -> list[Verdict]:
    """The nine comparisons by time and the nine by bytes."""
    verdicts, enough = [], rows["seed"].nunique() >= FEWEST_SEEDS
    for spent in SPENT:
        family = [
            (rival, against(there, str(setting), "balance", best_of(there, arms)))
            for setting, there in amounts(rows, spent).groupby("setting", sort=False)
            for rival, arms in RIVALS.items()
        ]
        survivals = holm([one.p_value for _, one in family])
        for (rival, one), survives in zip(family, survivals, strict=True):
            word = _word(one, survives) if enough else "not decided"
            verdicts.append(Verdict(spent, rival, one, word))
    return verdicts


def amounts(rows: pd.DataFrame, spent: str) -> pd.DataFrame:
    """The rows with what is compared in the column of times, which the shared functions
    read.
    """
    return rows.assign(at_s=rows[SPENT[spent]])


def _word(one: Against, survives: bool) -> str:
    ratio = one.paired.ratio
    if survives and ratio.least >= RELEVANT:
        return "wins"
    return "loses" if survives and ratio.most <= 1 / RELEVANT else "cannot be told"


# ---- the page ------------------------------------------------------------------------


def count_line(verdicts: Sequence[Verdict]) -> str:
    """How often `balance` won, lost and neither."""
    seeds = max(one.against.paired.seeds for one in verdicts)
    counts = []
    for spent in SPENT:
        words = [one.word for one in verdicts if one.spent == spent]
        shown = [
            f"{words.count(word)} {said}"
            for word, said in WORDS.items()
            if word in words
        ]
        counts.append(f"by {spent} {', '.join(shown)}")
    over = f"{seeds} seed{'s' * (seeds > 1)}"
    return f"**Of nine comparisons by each, over {over}: {'; '.join(counts)}.**"


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """Every comparison: the rival's best arm of hindsight, the ratio, p and the
    verdict.
    """
    lines = [
        [
            "setting",
            "rival",
            "its best of hindsight",
            "by",
            "rival's over `balance`'s",
            "p",
        ]
    ]
    lines[0].append("`balance`")
    settings = list(dict.fromkeys(one.against.setting for one in verdicts))
    for one in sorted(verdicts, key=lambda one: settings.index(one.against.setting)):
        paired, p_value = (
            with_interval(one.against.paired),
            f"{one.against.p_value:.2g}",
        )
        who = [one.against.setting, one.rival, one.against.reference]
        lines.append([*who, one.spent, paired, p_value, one.word])
    return markdown(lines)


def share_table(rows: pd.DataFrame) -> str:
    """Time and bytes to 85 % for each share of `balance`: geometric means over seeds,
    95 %.
    """
    settings = list(dict.fromkeys(rows["setting"]))
    lines = [["share", *settings]]
    for arm in SHARES:
        cells = []
        for setting in settings:
            mine = rows[(rows["setting"] == setting) & (rows[ARM] == arm)]
            time_s, sent = (amounts(mine, spent)["at_s"] for spent in SPENT)
            reached = (
                f"{_typical_text(time_s, '.1f')} s, "
                f"{_typical_text(sent / 1e6, '.2f')} MB"
            )
            missed = int((~mine["reached"]).sum())
            cells.append(
                f"85 % missed in {missed} of {len(mine)}" if missed else reached
            )
        lines.append([arm.removeprefix("balance").strip() or "0.3", *cells])
    return markdown(lines)


def _typical_text(amounts: pd.Series, pattern: str) -> str:
    """The geometric mean and its 95 % interval."""
    logs = estimate_mean(np.log(amounts.to_numpy()).tolist())
    mean, low, high = (
        f"{np.exp(end):{pattern}}" for end in (logs.least, logs.low, logs.high)
    )
    return f"{mean} [{low}, {high}]"


@picture_style()
def rivals_figure(rows: pd.DataFrame) -> Figure:
    """Time and bytes to 85 % of every arm that got there under every seed, a panel per
    setting.
    """
    figure = build_empty_figure(figsize=(9.2, 3.3), layout="constrained")
    panels = figure.subplots(1, rows["setting"].nunique(), sharey=True)
    for letter, axes, (setting, there) in zip(
        "abc", panels, rows.groupby("setting", sort=False), strict=False
    ):
        _draw_front(axes, there)
        axes.set_title(f"{letter}  {setting}", loc="left", fontsize=8)
    panels[0].set_ylabel("MB sent by 85 %, all clients")
    panels[0].legend(frameon=False, fontsize=6)
    return figure


def _draw_front(axes: Axes, there: pd.DataFrame) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    families = {**RIVALS, "balance": SHARES}
    colours = ("0.45", *SERIES_COLOURS[1:3], SERIES_COLOURS[0])
    for (name, arms), colour, mark in zip(
        families.items(), colours, "so^D", strict=True
    ):
        offset = _OFFSETS[mark]
        points = {}
        for arm in arms:
            mine = there[there[ARM] == arm]
            if mine["reached"].all():
                time_s, sent = (typical_s(amounts(mine, spent)) for spent in SPENT)
                points[_label(arm)] = (time_s, sent / 1e6)
        if not points:
            continue
        axes.plot(
            *zip(*points.values(), strict=True),
            f"{mark}-",
            color=colour,
            ms=3.5,
            lw=0.8,
        )
        axes.plot([], [], f"{mark}-", color=colour, ms=3.5, lw=0.8, label=name)
        for label, point in points.items():
            axes.annotate(
                label,
                point,
                offset,
                textcoords="offset points",
                fontsize=5,
                color=colour,
            )
    axes.set(xscale="log", yscale="log", xlabel="simulated seconds to 85 %")
    for axis, ticks in (
        (axes.xaxis, (8, 10, 12, 15, 20, 30, 50, 70)),
        (axes.yaxis, (0.3, 1, 3, 10)),
    ):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())


def _label(arm: str) -> str:
    if arm == "balance":
        return "0.3"
    level = Choice.of(arm).level
    return arm.partition(" ")[2] if level is None else str(level)


_OFFSETS = {"s": (3, -7), "o": (3, 4), "^": (-9, -9), "D": (-13, -1)}
"""Of labels from marks, in points: each family elsewhere, as some arms play alike."""


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    rows = read(ROWS)
    verdicts = judge(rows)
    return {
        "counts": count_line(verdicts),
        "verdicts": verdict_table(verdicts),
        "shares": share_table(rows),
    }


def main() -> None:
    arguments = study_parser(__doc__).parse_args()
    if arguments.do == "run":
        write(play_all(STUDIES, arguments.out, arguments.jobs), ROWS)
    write_page("rivals_figure")
    save_picture(rivals_figure(read(ROWS)), FIGURE, dpi=180)


if __name__ == "__main__":
    main()
