"""Every codec at 6 kB an upload, and bandits over strategy and level: scenarios/README.md.

    python analysis/codecs_figure.py [--out studies] [--jobs 2] [--draw-only]

Runs the studies scenarios/studies/codecs.yaml and levels.yaml (or goes on with them: what is done
is not done again), draws the maps of both, and prints the tables behind them.

A square says how many times sooner an arm was at 85 % than the map's reference: Top-K among the
codecs; among pairs of strategy and level the pair that was first in this column, known in hindsight
alone. Ratios are paired by seed (geometric mean, 95 %); of an arm that ended below 85 % in too
many seeds only a bound is known. Seeds under which an arm of a column is not finished are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from servers_figure import markdown
from top_k_map import cell_of

from simfed.report.pictures import picture_style, save_picture
from simfed.report.statistics import Paired, median_time, paired_times
from simfed.study import StudyResult, load_study, run_study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
CODECS = ROOT / "scenarios" / "studies" / "codecs.yaml"
LEVELS = ROOT / "scenarios" / "studies" / "levels.yaml"
ARM, SPEED, UP = "list", "clients[0].device.speed", "clients[0].link.up"
REFERENCE = "top-k"
OWN_SIZE = ("ef-sign", "terngrad", "fp16", "bf16", "dense")
"""Codecs whose size is not to be chosen."""
NAMED = "top-k@400"
"""A pair that one might name beforehand."""
LEVEL = 0.85
_DEEPEST = 1.0
"""Colours go no further than twice as soon, or half."""


# ---- numbers -------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """A column of a map."""

    speed: float
    up: str

    def __str__(self) -> str:
        return f"{self.speed:g}×, {self.up}"


class Column(NamedTuple):
    """What a setting came to."""

    setting: Setting
    reference: str
    against: dict[str, Paired]
    """Every arm against the reference."""
    first: str
    is_clear: bool
    """Whether the first was before every other arm, with 95 % confidence."""


def complete(times: pd.DataFrame) -> pd.DataFrame:
    """The rows of settings and seeds under which every arm is finished."""
    arms = times[ARM].nunique()
    return times.groupby([SPEED, UP, "seed"]).filter(lambda rows: rows[ARM].nunique() == arms)


def is_pair(arm: str) -> bool:
    """Whether an arm is a strategy with a level, and no bandit."""
    return "@" in arm


def column(setting: Setting, times: pd.DataFrame, reference: str | None = REFERENCE) -> Column:
    """All arms of one setting; without a reference, it is the first of the pairs."""
    if reference is None:
        pairs = times[times[ARM].map(is_pair)]
        reference = cell_of(pairs, ARM, str(pairs[ARM].iloc[0])).first
    base = times[times[ARM] == reference].sort_values("seed")
    against = {}
    for arm, rows in times.groupby(ARM, sort=False):
        mine = rows.sort_values("seed")
        against[str(arm)] = paired_times(
            *(of[name].tolist() for of in (mine, base) for name in ("at_s", "reached"))
        )
    cell = cell_of(times, ARM, reference)
    return Column(setting, reference, against, cell.first, cell.is_clear)


def columns(times: pd.DataFrame, reference: str | None = REFERENCE) -> list[Column]:
    """The columns of a map, in the order of the study."""
    found = []
    for (speed, up), rows in times.groupby([SPEED, UP], sort=False):
        found.append(column(Setting(float(speed), str(up)), rows, reference))
    return found


def in_words(of: Paired) -> str:
    """The ratio as far as it is known.

    >>> in_words(paired_times([1.0, 1.0], [True] * 2, [2.0, 2.0], [True] * 2))
    '2.00'
    >>> in_words(paired_times([4.0], [False], [2.0], [True]))
    '<0.50'
    """
    ratio = of.ratio
    if ratio.is_exact:
        return f"{ratio.least:.2f}"
    return f"<{ratio.most:.2f}" if ratio.least == 0 else f">{ratio.least:.2f}"


def with_interval(of: Paired) -> str:
    """The ratio and its 95 % interval."""
    ratio = of.ratio
    if not ratio.is_exact or not ratio.coverage:
        return in_words(of)
    return f"{in_words(of)} [{ratio.low:.2f}, {ratio.high:.2f}]"


def kilobytes(participations: pd.DataFrame) -> dict[str, float]:
    """Per arm, the mean upload in kB."""
    means = participations.groupby(ARM)["uplink_bytes"].mean() / 1e3
    return {str(arm): float(mean) for arm, mean in means.items()}


def rounds_needed(curves: pd.DataFrame) -> pd.DataFrame:
    """Per arm, seed and setting the round of the first evaluation at 85 %, and whether there was
    one: `round, reached`."""
    by = [ARM, "seed", SPEED, UP]
    there = curves[curves["accuracy"] >= LEVEL].groupby(by)["round"].min()
    last = curves.groupby(by)["round"].max()
    found = last.to_frame("round").assign(reached=last.index.isin(there.index))
    found.loc[there.index, "round"] = there
    return found.reset_index()


def chosen(participations: pd.DataFrame) -> pd.DataFrame:
    """Of each bandit in each setting, the share of plays per pair of strategy and level."""
    bandits = participations[~participations[ARM].map(is_pair)]
    counts = bandits.groupby([ARM, SPEED, UP])["arm"].value_counts(normalize=True)
    shares: pd.DataFrame = counts.rename("share").reset_index()
    return shares


# ---- the picture ---------------------------------------------------------------------------------


@picture_style()
def codecs_figure(
    codecs: Sequence[Column], levels: Sequence[Column], kb: dict[str, float]
) -> Figure:
    """Two maps: codecs at 6 kB (and what cannot be brought there), and bandits over levels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[9, 9])
    arms = list(codecs[0].against)
    matched = [arm for arm in arms if arm not in OWN_SIZE]
    named = {arm: f"{arm}   {kb[arm]:.1f} kB" for arm in arms}
    _draw_map(left, codecs, [matched, [arm for arm in arms if arm in OWN_SIZE]], named)
    left.set_title("a  codecs: times sooner at 85 % than Top-K", loc="left", fontsize=8)
    arms = list(levels[0].against)
    pairs = [arm for arm in arms if is_pair(arm)]
    bandits = [arm for arm in arms if not is_pair(arm)]
    _draw_map(right, levels, [pairs, bandits], {arm: arm for arm in arms})
    right.set_title("b  … than the best pair of hindsight", loc="left", fontsize=8)
    return figure


def _draw_map(
    ax: Axes, map_of: Sequence[Column], groups: Sequence[Sequence[str]], named: dict[str, str]
) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    shades = colormaps["PuOr"]
    places: dict[str, float] = {}
    for number, group in enumerate(groups):
        places |= {arm: len(places) + i + 0.5 * number for i, arm in enumerate(group)}
    speeds = [one.setting.speed for one in map_of]
    at, x = [], 0.0
    for i in range(len(map_of)):
        x += 1.25 if i and speeds[i] != speeds[i - 1] else float(bool(i))
        at.append(x)
    for x, of in zip(at, map_of, strict=True):
        for arm, y in places.items():
            paired = of.against[arm]
            ratio = paired.ratio.least if paired.ratio.least > 0 else paired.ratio.most
            depth = max(-_DEEPEST, min(_DEEPEST, log2(ratio))) / _DEEPEST
            box = Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=shades((depth + 1) / 2))
            ax.add_patch(box)
            is_sure = arm == of.reference or paired.verdict != 0
            ax.text(
                x,
                y,
                in_words(paired),
                ha="center",
                va="center",
                fontsize=5.5,
                color="white" if abs(depth) > 0.5 else "black" if is_sure else "0.45",
            )
        y = places[of.first]
        frame = Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, facecolor="none", edgecolor="black")
        frame.set_linewidth(1.2)
        frame.set_linestyle("-" if of.is_clear else (0, (2, 1.2)))
        ax.add_patch(frame)
    ax.set_xticks(at, [of.setting.up.removesuffix(" Mbps") for of in map_of])
    ax.set_yticks(list(places.values()), [named[arm] for arm in places])
    ax.set_xlim(at[0] - 0.5, at[-1] + 0.5)
    ax.set_ylim(max(places.values()) + 0.5, -0.5)
    ax.tick_params(length=0)
    ax.set_xlabel("uplink (Mbps), by the speed of devices")
    top = ax.secondary_xaxis("top")
    middles = {s: [x for x, own in zip(at, speeds, strict=True) if own == s] for s in speeds}
    top.set_xticks([sum(xs) / len(xs) for xs in middles.values()], [f"{s:g}×" for s in middles])
    top.tick_params(length=0)
    for axis in (ax, top):
        for side in axis.spines.values():
            side.set_visible(False)


# ---- the tables ----------------------------------------------------------------------------------


def codecs_table(
    map_of: Sequence[Column], rounds: pd.DataFrame, kb: dict[str, float], shown: Sequence[Setting]
) -> str:
    """Bytes, rounds to 85 % and how many times sooner than Top-K in some settings."""
    one = map_of[0].setting
    here = rounds[(rounds[SPEED] == one.speed) & (rounds[UP] == one.up)]
    table = [["codec", "kB", "rounds to 85 %", *(str(setting) for setting in shown)]]
    for arm in map_of[0].against:
        mine = here[here[ARM] == arm]
        needed = median_time(mine["round"].tolist(), mine["reached"].tolist())
        text = f"{needed.least:g}" if needed.is_exact else f"> {needed.least:g}"
        if not mine["reached"].all():
            text += f" ({int(mine['reached'].sum())} of {len(mine)} seeds got there)"
        ratios = [with_interval(of.against[arm]) for of in map_of if of.setting in shown]
        table.append([arm, f"{kb[arm]:.1f}", text, *ratios])
    return markdown(table)


def levels_table(
    map_of: Sequence[Column], times: pd.DataFrame, shares: pd.DataFrame, named: str
) -> str:
    """Of each setting the best pair with its median time, and how many times sooner than that one
    the pair `named` and the bandits were; of these, how often they played the best pair, and any of
    its strategy."""
    bandits = [arm for arm in map_of[0].against if not is_pair(arm)]
    table = [["setting", "best pair", named, *bandits]]
    for of in map_of:
        here = (times[SPEED] == of.setting.speed) & (times[UP] == of.setting.up)
        mine = times[here & (times[ARM] == of.reference)]
        typical = median_time(mine["at_s"].tolist(), mine["reached"].tolist())
        best = f"{of.reference}, {'' if typical.is_exact else '> '}{typical.least:.2f} s"
        cells = ["" if of.reference == named else with_interval(of.against[named])]
        for arm in bandits:
            cells.append(f"{with_interval(of.against[arm])}; {_plays(shares, arm, of)}")
        table.append([str(of.setting), best, *cells])
    return markdown(table)


def _plays(shares: pd.DataFrame, arm: str, of: Column) -> str:
    mine = shares[
        (shares[ARM] == arm) & (shares[SPEED] == of.setting.speed) & (shares[UP] == of.setting.up)
    ]
    strategy = of.reference.split("@")[0]
    best = mine.loc[mine["arm"] == of.reference, "share"].sum()
    of_strategy = mine.loc[mine["arm"].str.startswith(f"{strategy}@"), "share"].sum()
    return f"{100 * best:.0f} %, {strategy} {100 * of_strategy:.0f} %"


def firsts(map_of: Sequence[Column]) -> str:
    """Who was first where, a line per column."""
    lines = []
    for of in map_of:
        clear = "clearly" if of.is_clear else "not clearly before each other"
        ahead = [arm for arm, paired in of.against.items() if paired.verdict == 1]
        lines.append(
            f"{of.setting}: {of.first} first, {clear}; {with_interval(of.against[of.first])} "
            f"sooner than {of.reference}; before it for certain: {', '.join(ahead) or 'nobody'}"
        )
    return "\n".join(lines)


def _loaded(study: Path, out: Path, jobs: int | None, *, runs: bool) -> StudyResult:
    if runs:
        run_study(study, out / study.stem, jobs=jobs)
    return load_study(out / study.stem)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("studies"))
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "images" / "codecs.png")
    parser.add_argument("--draw-only", action="store_true", help="what is there so far")
    arguments: Any = parser.parse_args()
    codecs, levels = (
        _loaded(study, arguments.out, arguments.jobs, runs=not arguments.draw_only)
        for study in (CODECS, LEVELS)
    )
    kb = kilobytes(codecs.participations)
    of_codecs = columns(complete(codecs.times))
    of_levels = columns(complete(levels.times), None)
    arguments.figure.parent.mkdir(parents=True, exist_ok=True)
    save_picture(codecs_figure(of_codecs, of_levels, kb), arguments.figure, dpi=200)
    slow, middle, fast = Setting(0.01, "50 Mbps"), Setting(0.1, "10 Mbps"), Setting(1, "2 Mbps")
    print(codecs_table(of_codecs, rounds_needed(codecs.curves), kb, [slow, middle, fast]))
    print(f"\n{firsts(of_codecs)}\n")
    print(levels_table(of_levels, complete(levels.times), chosen(levels.participations), NAMED))
    print(f"\n{firsts(of_levels)}")


if __name__ == "__main__":
    main()
