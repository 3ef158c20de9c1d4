"""Ways of setting K against the best fixed K of hindsight: scenarios/README.md.

    python analysis/adaptive_figure.py [--out studies] [--jobs 2] [--draw-only]

Runs the studies scenarios/studies/adaptive.yaml and adaptive-held-out.yaml (or goes on with them:
what is done is not done again), decides by the rules of adaptive-registration.md, draws, and prints
the tables. Seeds under which an arm of a setting is not finished are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from codecs_figure import with_interval
from scipy import stats
from servers_figure import markdown

from simfed.report.pictures import picture_style, save_picture
from simfed.report.statistics import Paired, holm, paired_times
from simfed.report.style import SERIES_COLOURS
from simfed.study import StudyResult, load_study, run_study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
STUDIES = ROOT / "scenarios" / "studies"
ARM, FLEET = "list", "clients"
POLICIES = ("balance", "ascend")
CONTROL = "all alike"
"""The setting in which there is little to choose."""
RELEVANT = 1.05
"""The smallest relevant effect."""
PRIMARY = 0.85
SHOWN = "two links"
"""The setting whose curves are drawn."""
_STYLES = {"fixed": "#7F7F7F", "pair": SERIES_COLOURS[4], "policy": SERIES_COLOURS[0]}
_BANDIT = SERIES_COLOURS[1]
_WIDTH = (0.25, 2.2)
"""Ratios that are shown."""


# ---- numbers -------------------------------------------------------------------------------------


class Against(NamedTuple):
    """One arm of one setting beside the best fixed K there."""

    setting: str
    arm: str
    reference: str
    paired: Paired
    p_value: float
    missed: int
    """Seeds, none of which decides by times, in which the arm's rounds ended below the accuracy and
    the reference got there later."""


class Setting(NamedTuple):
    """What a setting came to."""

    name: str
    best: str
    """The best fixed K."""
    best_pair: str | None
    """The best pair of one K per group."""
    arms: dict[str, Against]
    typical_s: dict[str, float]
    """Geometric mean of an arm's times; infinite if a seed never got there."""
    seeds: int


def role(arm: str) -> str:
    """`fixed`, `pair` or `policy`."""
    if arm in POLICIES:
        return "policy"
    return "pair" if " and " in arm else "fixed"


def complete(times: pd.DataFrame) -> pd.DataFrame:
    """The rows of settings and seeds under which every arm is finished."""
    arms = times[ARM].nunique()
    return times.groupby([FLEET, "seed"]).filter(lambda rows: rows[ARM].nunique() == arms)


def typical_s(times: pd.DataFrame) -> float:
    """The geometric mean of an arm's times; infinite where one never got there."""
    if not times["reached"].all():
        return float("inf")
    return float(np.exp(np.log(times["at_s"]).mean()))


def best_of(times: pd.DataFrame, arms: Sequence[str]) -> str:
    """The arm of least mean time; where none got there under every seed, that which did so most
    often, then the sooner of these."""

    def rank(arm: str) -> tuple[float, int, float]:
        rows = times[times[ARM] == arm]
        there = rows[rows["reached"]]
        return typical_s(rows), -len(there), float(there["at_s"].mean())

    return min(arms, key=rank)


def against(times: pd.DataFrame, setting: str, arm: str, reference: str) -> Against:
    """An arm's times beside those of the reference, seed by seed."""
    mine, base = (times[times[ARM] == name].sort_values("seed") for name in (arm, reference))
    columns = [of[name].tolist() for of in (mine, base) for name in ("at_s", "reached")]
    paired = paired_times(*columns)
    p_value = paired.p_value
    if paired.ratio.is_exact and arm != reference and len(mine) > 1:
        logs = np.log(base["at_s"].to_numpy() / mine["at_s"].to_numpy())
        p_value = float(stats.ttest_1samp(logs, 0.0).pvalue)
    (end_s, there), (base_s, base_there) = (
        (of["at_s"].to_numpy(), of["reached"].to_numpy(bool)) for of in (mine, base)
    )
    missed = int((~there & base_there & (base_s > end_s)).sum())
    return Against(setting, arm, reference, paired, p_value, missed)


def settings(times: pd.DataFrame) -> list[Setting]:
    """Every setting of a study, of the times at one threshold."""
    found = []
    for name, rows in complete(times).groupby(FLEET, sort=False):
        arms = list(dict.fromkeys(rows[ARM]))
        best = best_of(rows, [arm for arm in arms if role(arm) == "fixed"])
        pairs = [arm for arm in arms if role(arm) == "pair"]
        found.append(
            Setting(
                str(name),
                best,
                best_of(rows, pairs) if pairs else None,
                {arm: against(rows, str(name), arm, best) for arm in arms},
                {arm: typical_s(rows[rows[ARM] == arm]) for arm in arms},
                int(rows["seed"].nunique()),
            )
        )
    return found


def decided(family: Sequence[Against]) -> list[bool]:
    """Which comparisons of a family say that the arm wins: at least 1.05 times as soon, and a
    p-value that survives Holm's correction."""
    survives = holm([one.p_value for one in family])
    return [
        sure and one.paired.ratio.least >= RELEVANT
        for sure, one in zip(survives, family, strict=True)
    ]


def verdicts(found: Sequence[Setting]) -> list[str]:
    """What the registered rules say of the study."""
    judged = [of for of in found if of.name != CONTROL]
    family = [of.arms[arm] for arm in POLICIES for of in judged]
    lines, won = [], dict.fromkeys(POLICIES, True)
    for one, wins in zip(family, decided(family), strict=True):
        won[one.arm] &= wins
        said = "wins" if wins else "does not win"
        lines.append(f"{one.arm} {said} in {one.setting}: {in_full(one)}")
    for of in found:
        for arm in POLICIES if of.name == CONTROL else ():
            ratio = of.arms[arm].paired.ratio
            behind = ratio.high < 1
            won[arm] &= not behind
            said = "behind" if behind else "not clearly behind"
            lines.append(f"{arm} is {said} in {of.name}: {in_full(of.arms[arm])}")
    lines += [f"{arm}: {'wins' if wins else 'has not won'}" for arm, wins in won.items()]
    return lines


def in_full(one: Against) -> str:
    """The ratio with its interval, the p-value, and in how many seeds it was sooner; what is left
    of it if seeds that missed what the reference reached count as behind."""
    paired = one.paired
    words = (
        f"{with_interval(paired)} times as soon as {one.reference}, p = {one.p_value:.2g}, "
        f"sooner in {paired.wins} of {paired.seeds} seeds"
    )
    if not one.missed:
        return words
    seeds = paired.wins + paired.losses + one.missed
    p_value = float(stats.binomtest(paired.wins, seeds).pvalue)
    return (
        f"{words}; {one.missed} that decide nothing missed the accuracy, which {one.reference} "
        f"reached: counted as behind, {paired.wins} of {seeds}, p = {p_value:.2g}"
    )


def table(found: Sequence[Setting]) -> str:
    """Every setting's arms beside its best fixed K."""
    rows = [["setting", "best fixed K", "best pair of K", *POLICIES]]
    for of in found:
        pair = "" if of.best_pair is None else f"{of.best_pair}: {_ratio(of, of.best_pair)}"
        policies = [_ratio(of, arm) if arm in of.arms else "" for arm in POLICIES]
        rows.append([of.name, f"{of.best}, {of.typical_s[of.best]:.2f} s", pair, *policies])
    return markdown(rows)


def _ratio(of: Setting, arm: str) -> str:
    return with_interval(of.arms[arm].paired)


def pair_against_policies(times: pd.DataFrame, found: Sequence[Setting]) -> list[str]:
    """The policies beside the best pair of hindsight."""
    lines = []
    for of in found:
        rows = complete(times)
        rows = rows[rows[FLEET] == of.name]
        if of.best_pair is None:
            continue
        for arm in POLICIES:
            lines.append(f"{of.name}, {arm}: {in_full(against(rows, of.name, arm, of.best_pair))}")
    return lines


def ends(study: StudyResult) -> pd.DataFrame:
    """Accuracy at the end, per setting and arm: mean over seeds."""
    last = study.curves[study.curves["round"] == study.curves["round"].max()]
    shown: pd.DataFrame = last.pivot_table(
        index=ARM, columns=FLEET, values="accuracy", sort=False, observed=True
    )
    return shown


# ---- the picture ---------------------------------------------------------------------------------


@picture_style()
def adaptive_figure(
    groups: Mapping[str, Sequence[Setting]], bands: pd.DataFrame, plays: pd.DataFrame
) -> Figure:
    """Ratios by setting; curves of one setting; what K a client was given, by its uplink.

    groups: settings by what is said behind their names.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3, width_ratios=[1.5, 1, 1])
    _draw_ratios(left, [(of, said) for said, found in groups.items() for of in found])
    left.set_title("a  times as soon as the best fixed K", loc="left", fontsize=8)
    _draw_curves(
        middle, next(of for found in groups.values() for of in found if of.name == SHOWN), bands
    )
    middle.set_title(f"b  {SHOWN}", loc="left", fontsize=8)
    _draw_levels(right, plays)
    right.set_title("c  K that balance set", loc="left", fontsize=8)
    return figure


def _colour(arm: str) -> str:
    return _BANDIT if arm == "ascend" else _STYLES[role(arm)]


def _draw_ratios(ax: Axes, found: Sequence[tuple[Setting, str]]) -> None:
    y, places, names = 0.0, [], []
    for of, said in found:
        ax.text(
            0.26,
            y,
            f"{of.name}{said}; best: {of.best}",
            fontsize=6,
            va="center",
            weight="bold",
            bbox={"color": "white", "pad": 0.5},
        )
        for arm, one in of.arms.items():
            if arm == of.best:
                continue
            y += 1
            places.append(y)
            names.append(arm)
            ratio, colour = one.paired.ratio, _colour(arm)
            from_, to = max(ratio.low, _WIDTH[0]), min(ratio.high, _WIDTH[1])
            ax.plot([from_, to], [y, y], color=colour, lw=1, ls="-" if ratio.is_exact else ":")
            if ratio.is_exact:
                ax.plot([ratio.least], [y], "o", ms=3, color=colour)
            else:  # a bound: it was this much sooner at least, or at most
                mark, place = ("<", ratio.most) if ratio.least == 0 else (">", ratio.least)
                ax.plot([place], [y], mark, ms=3.5, mfc="white", mew=0.8, color=colour)
        y += 1.6
    ax.axvline(1, color="0.4", lw=0.7)
    ax.set_xscale("log")
    ticks = [0.25, 0.4, 0.6, 0.8, 1, 1.25, 1.6, 2]
    ax.set_xticks(ticks, [f"{x:g}" for x in ticks])
    ax.tick_params(axis="x", which="minor", length=0, labelbottom=False)
    ax.set_xlim(*_WIDTH)
    ax.set_yticks(places, names, fontsize=5.5)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(y - 0.8, -1)


def _draw_curves(ax: Axes, of: Setting, bands: pd.DataFrame) -> None:
    pairs = [] if of.best_pair is None else [of.best_pair]
    shown = [of.best, *pairs, *POLICIES]
    for arm in shown:
        rows = bands[(bands["arm"] == arm) & bands["setting"].str.contains(of.name)]
        named = {"fixed": f"best fixed: {arm}", "pair": f"best pair: {arm}"}
        label = named.get(role(arm), arm)
        ax.plot(rows["at_s"], 100 * rows["accuracy"], color=_colour(arm), lw=1, label=label)
        ax.fill_between(
            rows["at_s"],
            100 * rows["low"],
            100 * rows["high"],
            color=_colour(arm),
            alpha=0.15,
            lw=0,
        )
    ax.axhline(100 * PRIMARY, color="0.4", lw=0.6, ls=":")
    ax.set(xlabel="simulated seconds", ylabel="mean test accuracy (%)", ylim=(0, 100))
    ax.set_xlim(0, None)
    ax.legend(frameon=False, fontsize=6, loc="lower right")


def _draw_levels(ax: Axes, plays: pd.DataFrame) -> None:
    for colour, (name, rows) in zip(
        (SERIES_COLOURS[0], SERIES_COLOURS[2], SERIES_COLOURS[3]),
        plays.groupby(FLEET, sort=False),
        strict=False,
    ):
        ax.loglog(rows["mbps"], rows["k"], ".", ms=3, alpha=0.6, color=colour, label=name)
    ax.set(xlabel="a client's uplink while sending (Mbps)", ylabel="K, mean from round 11 on")
    ax.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    ax.set_yticks([30, 100, 300, 1000, 3000], ["30", "100", "300", "1,000", "3,000"])
    ax.tick_params(which="minor", length=0, labelbottom=False, labelleft=False)
    ax.set_xlim(0.04, 40)
    ax.legend(frameon=False, fontsize=6, loc="lower right")


def levels_set(participations: pd.DataFrame, latency_s: float = 0.01) -> pd.DataFrame:
    """Of each client of `balance`: its uplink's rate while it sends, and the mean K after the first
    ten rounds."""
    rows = participations[(participations[ARM] == "balance") & (participations["round"] > 10)]
    seconds = rows["uplink_s"] - latency_s
    rows = rows.assign(mbps=8e-6 * rows["uplink_bytes"] / seconds)
    of_client = rows.groupby([FLEET, "seed", "client"], sort=False)[["mbps", "k"]]
    found: pd.DataFrame = of_client.mean().reset_index()
    return found


def times_to(curves: pd.DataFrame, accuracy: float) -> pd.DataFrame:
    """The times to an accuracy that the study did not name: rows as in its `times`."""
    runs = [FLEET, ARM, "seed"]
    there = curves[curves["accuracy"] >= accuracy].groupby(runs, sort=False)["at_s"].min()
    ends_s = curves.groupby(runs, sort=False)["at_s"].max()
    found = ends_s.to_frame().assign(reached=ends_s.index.isin(there.index))
    found.loc[there.index, "at_s"] = there
    rows: pd.DataFrame = found.reset_index()
    return rows


def at(times: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """The times to one threshold."""
    found: pd.DataFrame = times[np.isclose(times["threshold"], threshold)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("studies"))
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "images" / "adaptive.png")
    parser.add_argument("--draw-only", action="store_true", help="what is there so far")
    arguments: Any = parser.parse_args()
    studies = []
    for name in ("adaptive", "adaptive-held-out"):
        if not arguments.draw_only:
            run_study(STUDIES / f"{name}.yaml", arguments.out / name, jobs=arguments.jobs)
        studies.append(load_study(arguments.out / name))
    study, held = studies
    found = settings(at(study.times, PRIMARY))
    held_out = settings(held.times)
    arguments.figure.parent.mkdir(parents=True, exist_ok=True)
    afterwards = settings(times_to(held.curves, PRIMARY))
    groups = {
        "": found,
        f" (held out, {held.times['threshold'].iloc[0]:.0%})": held_out,
        f" (held out, {PRIMARY:.0%}, afterwards)": afterwards,
    }
    figure = adaptive_figure(groups, study.bands, levels_set(study.participations))
    save_picture(figure, arguments.figure, dpi=200)
    print(table(found), "\n".join(verdicts(found)), sep="\n\n")
    print(
        "\nbeside the best pair:", *pair_against_policies(at(study.times, PRIMARY), found), sep="\n"
    )
    print(f"\nheld out, at {held.times['threshold'].unique()}:", table(held_out), sep="\n\n")
    confirmed = [of.arms["balance"] for of in held_out]
    for one, wins in zip(confirmed, decided(confirmed), strict=True):
        print(f"{one.setting}: {'confirmed' if wins else 'not confirmed'}, {in_full(one)}")
    print("\nheld out, at 85 %:", table(afterwards), sep="\n\n")
    print(*(f"{of.name}: {in_full(of.arms['balance'])}" for of in afterwards), sep="\n")
    print("\nat 80 %:", table(settings(at(study.times, 0.8))), sep="\n\n")
    for of in (study, held):
        print(f"\naccuracy at the end:\n{(100 * ends(of)).round(1).to_string()}")


if __name__ == "__main__":
    main()
