"""What is known of bandits, learned again: figures and tables of docs/theory.md.

    python analysis/theory_bandits.py [--seeds 6] [--only still|steps|moving]

Plays the policies of simfed on arms whose rewards are 0 or 1 with known means, and
counts the regret: per play, the best arm's mean less that of the arm played. What
tables quote is kept in theory_rows.csv, a row per client. tests/theory holds the same
facts with fewer seeds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pages import markdown, write_page
from theory_rows import PAGE, ROOT, Rows, interval, percent, slope

from simfed.ground.seeding import Streams
from simfed.policy import Policy, build_policy
from simfed.report.pictures import build_empty_figure, picture_style, save_picture
from simfed.report.style import SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PAGE", "interval", "slope"]
ARMS = ("top-k", "random-k", "periodic-k")
MEANS = (0.3, 0.7, 0.5)
"""Of the rewards of the arms, where nothing changes."""
CLOSE = (0.5, 0.6, 0.4)
"""Of three arms that are harder to tell apart: a tenth from one to the next."""

Floats = NDArray[np.float64]
Make = Callable[[int, int], Policy]
"""From the number of plays and of changes to come, by which some policies are tuned."""


# --- worlds ---------------------------------------------------------------------------


def constant(plays: int, means: Sequence[float] = MEANS) -> Floats:
    """Means (plays, arms) that never change."""
    return np.tile(means, (plays, 1))


def changing(plays: int, changes: int) -> Floats:
    """Means (plays, arms) that move on by one arm at each of `changes` instants, evenly
    spaced.
    """
    segment = np.arange(plays) * (changes + 1) // plays
    arm = np.arange(len(MEANS))
    means: Floats = np.array(MEANS)[(arm[None, :] - segment[:, None]) % len(MEANS)]
    return means


def overtaken(plays: int) -> Floats:
    """Means (plays, arms) of which the worst becomes the best half way.

    The others stay as they are.

    Nothing that a client plays tells it of the change: only who tries all arms again
    finds it.
    """
    means: Floats = np.tile((0.5, 0.3, 0.2), (plays, 1))
    means[plays // 2 :, 2] = 0.8
    return means


@dataclass(frozen=True)
class Story:
    regret: Floats
    """Per play."""
    explored: NDArray[np.bool_]
    """Per play, whether the policy called it exploration."""
    exploited: NDArray[np.bool_]
    """Per play, whether the policy called it exploitation: neither of the two in a
    warm-up."""
    played: NDArray[np.int64]
    """Per play, which arm."""

    @property
    def average(self) -> Floats:
        """Regret per play so far, after each play."""
        return np.cumsum(self.regret) / np.arange(1, len(self.regret) + 1)


def play(policy: Policy, means: Floats, seed: int) -> Story:
    """Play `policy`, whose rewards are in [0, 1], on arms of these means."""
    streams = Streams(seed)
    rng = streams("pulls")
    pays = streams("rewards").random(means.shape) < means
    index = {arm: i for i, arm in enumerate(policy.arms)}
    played = np.empty(len(means), np.int64)
    choices = []
    for t in range(len(means)):
        pull = policy.pull(rng)
        played[t] = at = index[pull.arm]
        choices.append(pull.choice)
        policy.update(pull, float(pays[t, at]))
    regret = means.max(axis=1) - means[np.arange(len(means)), played]
    called = np.array(choices)
    return Story(regret, called == "explore", called == "exploit", played)


# --- policies, tuned as their sources say ---------------------------------------------


def kind(name: str, **options: Any) -> Make:
    """A policy with the same options for every length."""
    return lambda plays, changes: build_policy(
        name, ARMS, reward_range=(0.0, 1.0), options=options
    )


def tuned_exp3(plays: int, changes: int) -> Policy:
    """γ = √(S·ln S/((e − 1)·T)), for no change."""
    arms = len(ARMS)
    mixing = min(1.0, math.sqrt(arms * math.log(arms) / ((math.e - 1) * plays)))
    return kind("exp3", mixing=mixing)(plays, changes)


def tuned_d_ucb(plays: int, changes: int) -> Policy:
    """γ = 1 − √(M/T)/4."""
    return kind(
        "ucb", exploration=2.4, discount=1 - math.sqrt(max(1, changes) / plays) / 4
    )(plays, changes)


def tuned_sw_ucb(plays: int, changes: int) -> Policy:
    """τ = 2·√(T·ln T/M)."""
    window = 2 * math.sqrt(plays * math.log(plays) / max(1, changes))
    return kind("ucb", exploration=0.6, window=round(window))(plays, changes)


def tuned_thompson(plays: int, changes: int) -> Policy:
    """The discount of D-UCB: the source of discounted sampling gives no rule."""
    return kind("thompson", discount=1 - math.sqrt(max(1, changes) / plays) / 4)(
        plays, changes
    )


STILL: dict[str, Make] = {
    "ascend": kind("ascend"),
    "ascend, ema 1/n": kind("ascend", ema="1/n"),
    "ucb": kind("ucb"),
    "thompson, no discount": kind("thompson", discount=1.0),
    "exp3, mixing 0.1": kind("exp3"),
}
"""Shown on arms that never change."""

MOVING: dict[str, Make] = {
    "ucb, discount": tuned_d_ucb,
    "ucb, window": tuned_sw_ucb,
    "thompson": tuned_thompson,
    "ascend": kind("ascend"),
    "ucb": kind("ucb"),
}
"""Shown on arms that change, the best arm among them; the last does not forget."""

FORGETFUL = ("ucb, discount", "ucb, window", "thompson", "ascend")
UNFORGETTING: dict[str, Make] = {
    "ascend, ema 1/n": kind("ascend", ema="1/n"),
    "exp3, mixing 0.1": kind("exp3"),
    "thompson, no discount": kind("thompson", discount=1.0),
}
"""Shown beside them where an arm overtakes the others unseen."""


# --- facts ----------------------------------------------------------------------------


def exploration_counts(
    plays: int, seeds: int, c: float = 3.0
) -> tuple[Floats, Floats, Floats]:
    """ASCEND's plays called exploration so far, per seed and play.

    Σ ε_t and its standard deviation.
    """
    warmup = 5
    stories = [
        play(kind("ascend", warmup=warmup, c=c)(plays, 0), constant(plays), seed)
        for seed in range(seeds)
    ]
    counts = np.cumsum([story.explored for story in stories], axis=1)
    epsilon = np.minimum(1, c / np.sqrt(np.arange(1, plays + 1)))
    epsilon[: warmup * len(ARMS)] = 0  # the warm-up draws no coin
    return counts, np.cumsum(epsilon), np.sqrt(np.cumsum(epsilon * (1 - epsilon)))


def averages(make: Make, plays: int, seeds: int) -> Floats:
    """Average regret (seeds, plays) on arms that never change."""
    world = constant(plays)
    return np.array(
        [play(make(plays, 0), world, seed).average for seed in range(seeds)]
    )


def totals(make: Make, sizes: Sequence[tuple[int, int]], seeds: int) -> Floats:
    """Total regret (seeds, sizes); a size is (plays, changes)."""
    return np.array(
        [
            [
                play(make(t, m), changing(t, m), 1000 * at + seed).regret.sum()
                for at, (t, m) in enumerate(sizes)
            ]
            for seed in range(seeds)
        ]
    )


@dataclass(frozen=True)
class Parts:
    """Regret so far (seeds, plays) of one policy, by what its plays were called."""

    exploited: Floats
    explored: Floats
    """Of the warm-up, too."""
    fewest: Floats
    """Plays so far of the arm that was played least."""

    @property
    def total(self) -> Floats:
        return self.exploited + self.explored


def regret_parts(
    make: Make, plays: int, seeds: int, means: Sequence[float] = CLOSE
) -> Parts:
    """Regret of choosing by what is known, apart from that of finding out."""
    world = constant(plays, means)
    stories = [play(make(plays, 0), world, seed) for seed in range(seeds)]
    exploited = np.array(
        [np.cumsum(story.regret * story.exploited) for story in stories]
    )
    total = np.array([np.cumsum(story.regret) for story in stories])
    counts = np.array(
        [
            [np.cumsum(story.played == arm) for arm in range(len(means))]
            for story in stories
        ]
    )
    return Parts(exploited, total - exploited, counts.min(axis=1).astype(float))


def certain_plays(
    plays: int, c: float = 3.0, warmup: int = 5, arms: int = len(ARMS)
) -> Floats:
    """How many plays of each arm ASCEND's schedule sees to so far on average, whatever
    rewards say: `warmup` at its beginning and Σ ε_t/arms of exploration.
    """
    epsilon = np.minimum(1, c / np.sqrt(np.arange(1, plays + 1)))
    epsilon[: warmup * arms] = 0
    return warmup + np.cumsum(epsilon) / arms


def best_arm_shares(make: Make, plays: int, seeds: int) -> NDArray[np.bool_]:
    """Whether the best arm was played (seeds, plays), where it is overtaken halfway."""
    world = overtaken(plays)
    stories = [play(make(plays, 1), world, seed) for seed in range(seeds)]
    return np.array([story.regret == 0 for story in stories])


# --- figures --------------------------------------------------------------------------

GRID = (1000, 2000, 4000, 8000, 16000)
EXP3_GRID = (4000, 8000, 16000, 32000, 64000)
SIZES = tuple((t, m) for m in (1, 3, 9) for t in GRID[1:])
LONG = 100_000
"""Plays, to see how regret grows with them (`theory_steps.py` plays a hundred times as
many)."""
PLACES = (1000, 10_000, LONG)
EXP3: dict[str, Make] = {"tuned to T": tuned_exp3, "0.1": kind("exp3")}
"""EXP3 by its mixing."""
STEPS: dict[str, Make] = {
    "step 0.1": kind("ascend"),
    "step 0.03": kind("ascend", ema=0.03),
    "step 1/n": kind("ascend", ema="1/n"),
}
"""ASCEND by the step of its utilities."""
FLOOR = 0.1 * (max(MEANS) - sum(MEANS) / len(MEANS))
"""What a mixing of 0.1 costs per play, however well the best arm is known."""


def still_figure(seeds: int, rows: Rows) -> Figure:
    """ASCEND's exploration.

    Average regret on arms that never change; EXP3 tuned and not.
    """
    figure, (left, middle, right) = _panels(3)
    plays = GRID[-1]
    t = np.arange(1, plays + 1)

    counts, expected, sd = exploration_counts(plays, seeds)
    low, high = expected - 1.96 * sd, expected + 1.96 * sd
    left.fill_between(t, low, high, color="0.8", lw=0, label="95 % of runs")
    left.plot(t, counts.T, color=SERIES_COLOURS[0], lw=0.3, alpha=0.5)
    left.plot(t, expected, color="black", lw=0.8, label="Σ ε")
    left.set(
        xlabel="plays", ylabel="explorations of ASCEND", xlim=(0, plays), ylim=(0, None)
    )
    left.set_xticks([0, 8000, 16000], ["0", "8,000", "16,000"])
    left.legend(frameon=False, loc="upper left")
    rows.put("explorations", "ascend", plays, counts[:, -1])

    for colour, (name, make) in zip(SERIES_COLOURS, STILL.items(), strict=False):
        average = averages(make, plays, seeds)
        middle.loglog(
            t[99:], average.mean(axis=0)[99:], color=colour, lw=0.9, label=name
        )
        for at in (GRID[0], plays):
            rows.put("average regret", name, at, average[:, at - 1])
    middle.set(xlabel="plays", ylabel="average regret", ylim=(1e-4, 0.3))
    _log_ticks(middle, [100, 1000, 4000, 16000], [1e-4, 1e-3, 1e-2, 1e-1])
    middle.legend(frameon=False, fontsize=5.5, loc="lower left")

    for colour, (name, make) in zip(SERIES_COLOURS, EXP3.items(), strict=False):
        total = totals(make, [(t, 0) for t in EXP3_GRID], seeds)
        right.loglog(
            EXP3_GRID,
            total.mean(axis=0),
            "o-",
            ms=2.5,
            lw=0.9,
            color=colour,
            label=name,
        )
        for at, of_seeds in zip(EXP3_GRID, total.T, strict=True):
            rows.put("regret of exp3", name, at, of_seeds)
    right.loglog(
        EXP3_GRID,
        FLOOR * np.array(EXP3_GRID),
        ":",
        color="0.4",
        lw=0.8,
        label="floor of mixing 0.1",
    )
    right.set(xlabel="plays T", ylabel="regret of EXP3")
    _log_ticks(right, [4000, 16000, 64000], [100, 300, 1000])
    right.legend(frameon=False)
    return figure


def moving_figure(seeds: int, rows: Rows) -> Figure:
    """How soon an arm that overtakes is found, and how regret grows with plays and
    changes.
    """
    figure, (left, right) = _panels(2)
    plays, width = 4000, 100
    sizes = np.array([t * m for t, m in SIZES])
    order = np.argsort(sizes)
    colours = dict(
        zip((*MOVING, *UNFORGETTING), (*SERIES_COLOURS, "#000000"), strict=False)
    )
    for name, make in (MOVING | UNFORGETTING).items():
        best = best_arm_shares(make, plays, 4 * seeds)
        smooth = np.convolve(best.mean(axis=0), np.ones(width) / width, "valid")
        style = "-" if name in FORGETFUL else ":"
        at = np.arange(len(smooth)) + width
        left.plot(at, smooth, style, color=colours[name], lw=0.9, label=name)
        for end in (plays // 2, plays):
            rows.put(
                "best arm of 500", name, end, best[:, end - 500 : end].mean(axis=1)
            )
    for name, make in MOVING.items():
        total = totals(make, SIZES, seeds)
        right.loglog(
            sizes[order], total.mean(axis=0)[order], "o", ms=2.5, color=colours[name]
        )
        for (t, m), of_seeds in zip(SIZES, total.T, strict=True):
            rows.put(f"regret, {m} changes", name, t, of_seeds)
    left.axvline(plays / 2, color="0.5", lw=0.6, ls=":")
    left.set(
        xlabel=f"plays (mean of {width})",
        ylabel="best arm played",
        ylim=(0, 1.02),
        xlim=(0, plays),
    )
    line = np.array([sizes.min(), sizes.max()])
    right.loglog(line, 3 * np.sqrt(line), ":", color="0.4", lw=0.8, label="like √(M·T)")
    right.set(xlabel="changes M × plays T", ylabel="regret")
    _log_ticks(right, [2000, 10_000, 40_000, 144_000], [100, 300, 1000])
    left.set_xticks(
        [0, 1000, 2000, 3000, 4000], ["0", "1,000", "2,000", "3,000", "4,000"]
    )
    right.legend(frameon=False)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False)
    return figure


def steps_figure(seeds: int, rows: Rows) -> Figure:
    """ASCEND's regret by the step of its utilities, and how often its schedule plays
    every arm.
    """
    figure, (left, middle, right) = _panels(3)
    t = np.arange(1, LONG + 1)
    shown = np.unique(np.geomspace(100, LONG, 120).astype(int)) - 1
    for colour, (name, make) in zip(SERIES_COLOURS, STEPS.items(), strict=False):
        parts = regret_parts(make, LONG, 4 * seeds)
        exploited, root = parts.exploited.mean(axis=0), parts.total / np.sqrt(t)
        # from nothing a logarithm cannot be drawn
        left.loglog(
            t[shown],
            np.maximum(exploited, 0.1)[shown],
            color=colour,
            lw=0.9,
            label=name,
        )
        middle.semilogx(t[shown], root.mean(axis=0)[shown], color=colour, lw=0.9)
        right.loglog(t[shown], parts.fewest.mean(axis=0)[shown], color=colour, lw=0.9)
        for at in PLACES:
            rows.put("exploitation", name, at, parts.exploited[:, at - 1])
            rows.put("exploration", name, at, parts.explored[:, at - 1])
            rows.put("least played", name, at, parts.fewest[:, at - 1])
        if name == "step 1/n":
            left.loglog(
                t[shown],
                parts.explored.mean(axis=0)[shown],
                ":",
                color="0.3",
                lw=0.9,
                label="exploration, any step",
            )
    left.set(xlabel="plays T", ylabel="regret of exploitation", ylim=(0.1, 5000))
    left.legend(frameon=False, fontsize=5.5, loc="upper left")
    middle.set(xlabel="plays T", ylabel="all regret / √T", ylim=(0, None))
    right.loglog(t[shown], certain_plays(LONG)[shown], "k--", lw=0.8, label="h + Σ ε/3")
    right.loglog(
        t[shown], 0.02 * t[shown], ":", color="0.4", lw=0.8, label="in proportion to T"
    )
    right.set(xlabel="plays T", ylabel="plays of the least-played arm", ylim=(2, 5000))
    right.legend(frameon=False, loc="upper left")
    powers = {100: "10²", 1000: "10³", 10_000: "10⁴", 100_000: "10⁵"}
    _log_ticks(left, list(powers), [0.1, 1, 10, 100, 1000])
    _log_ticks(right, list(powers), [10, 100, 1000])
    middle.tick_params(which="minor", length=0)
    for ax in (left, middle, right):
        ax.set_xticks(list(powers), list(powers.values()))
    return figure


def _log_ticks(ax: Axes, xs: Sequence[float], ys: Sequence[float]) -> None:
    """Ticks of a log-log panel, as plain numbers."""
    ax.set_xticks(xs, [f"{x:,g}" for x in xs])
    ax.set_yticks(ys, [f"{y:,g}" for y in ys])
    ax.tick_params(which="minor", length=0, labelbottom=False, labelleft=False)


def _panels(n: int) -> tuple[Figure, list[Axes]]:
    figure = build_empty_figure(figsize=(6.7, 2.4), layout="constrained")
    return figure, list(figure.subplots(1, n))


# --- tables ---------------------------------------------------------------------------

_AS_OPTIONS = {
    "thompson, no discount": "`thompson`, `discount: 1`",
    "ascend, ema 1/n": "`ascend`, `ema: 1/n`",
    "exp3, mixing 0.1": "`exp3`, `mixing: 0.1`",
}
_STEP_NAMES = {
    "step 0.1": "0.1 (`ema: 0.1`, the source's form)",
    "step 0.03": "0.03 (`ema: 0.03`)",
    "step 1/n": "1/n (`ema: 1/n`)",
}


def _name(policy: str) -> str:
    return _AS_OPTIONS.get(policy, f"`{policy}`")


def explorations_table(rows: Rows) -> str:
    """How often ASCEND explored beside what its schedule says."""
    plays, counts = GRID[-1], rows.values("explorations", "ascend", GRID[-1])
    epsilon = np.minimum(1, 3.0 / np.sqrt(np.arange(1, plays + 1)))[5 * len(ARMS) :]
    expected, half = epsilon.sum(), 1.96 * np.sqrt((epsilon * (1 - epsilon)).sum())
    inside = f"{int((np.abs(counts - expected) <= half).sum())} of {len(counts)}"
    head = ["plays", "Σ ε_t", "95 % of clients are within", "clients inside"]
    return markdown([head, [f"{plays:,}", f"{expected:.0f}", f"± {half:.0f}", inside]])


def averages_table(rows: Rows) -> str:
    """Average regret where nothing changes, the least first."""
    lines = {}
    for policy in STILL:
        averages = [
            rows.values("average regret", policy, at) for at in (GRID[0], GRID[-1])
        ]
        lines[averages[-1].mean()] = [
            _name(policy),
            *(str(interval(one)) for one in averages),
        ]
    head = ["policy", f"average regret after {GRID[0]:,} plays", f"after {GRID[-1]:,}"]
    return markdown([head, *(lines[end] for end in sorted(lines))])


def exp3_table(rows: Rows) -> str:
    """Regret of EXP3 by its mixing."""
    lines = [
        [
            "mixing",
            f"regret per play over {EXP3_GRID[-1]:,}",
            "grows like T to the power of",
        ]
    ]
    for mixing in EXP3:
        total = rows.over("regret of exp3", mixing, EXP3_GRID)
        end = interval(total[:, -1] / EXP3_GRID[-1])
        lines.append([mixing, str(end), str(slope(total, EXP3_GRID))])
    return markdown(lines)


def steps_table(rows: Rows) -> str:
    """Regret of ASCEND by the step of its utilities."""
    places = [f"{at:,}" for at in PLACES]
    lines = [
        ["step η of Q ← (1 − η)·Q + η·G", f"exploitation per play, at {places[0]}"]
    ]
    lines[0] += [f"at {at}" for at in places[1:]]
    lines[0] += [f"all regret / √T, at {places[0]}", *(f"at {at}" for at in places[1:])]
    for step in STEPS:
        cells, roots = [], []
        for at in PLACES:
            exploited, explored = (
                rows.values(fact, step, at) for fact in ("exploitation", "exploration")
            )
            cells.append(str(interval(exploited / at)))
            roots.append(f"{((exploited + explored) / math.sqrt(at)).mean():.2f}")
        lines.append([_STEP_NAMES[step], *cells, *roots])
    return markdown(lines)


def schedule_table(rows: Rows) -> str:
    """What finding out costs, and how often it plays the arm that is played least."""
    lines = [["plays", "exploration and warm-up, regret per play"]]
    lines[0] += ["h + Σ ε_t/3", "plays of the arm played least"]
    certain = certain_plays(LONG)
    for at in PLACES:
        explored, fewest = (
            rows.values(fact, "step 1/n", at)
            for fact in ("exploration", "least played")
        )
        cells = [
            str(interval(explored / at)),
            f"{certain[at - 1]:.0f}",
            str(interval(fewest)),
        ]
        lines.append([f"{at:,}", *cells])
    return markdown(lines)


def overtaken_table(rows: Rows) -> str:
    """Who plays the arm that has become the best, those first who do most."""
    lines = {}
    for policy in MOVING | UNFORGETTING:
        before, after = (
            rows.values("best arm of 500", policy, at) for at in (2000, 4000)
        )
        lines[policy] = after.mean(), [_name(policy), percent(before), percent(after)]
    head = ["policy", "last 500 plays before", "1,500 to 2,000 plays after"]
    ordered = sorted(lines.values(), key=lambda line: -line[0])
    return markdown([head, *(cells for _, cells in ordered)])


def moving_table(rows: Rows) -> str:
    """By which power of changes × plays regret grows."""
    lines = [["policy", "slope"]]
    for policy in MOVING:
        columns = [rows.values(f"regret, {m} changes", policy, t) for t, m in SIZES]
        lines.append(
            [_name(policy), str(slope(np.array(columns).T, [t * m for t, m in SIZES]))]
        )
    return markdown(lines)


TABLES = {
    "explorations": explorations_table,
    "averages": averages_table,
    "exp3": exp3_table,
    "steps": steps_table,
    "schedule": schedule_table,
    "overtaken": overtaken_table,
    "moving": moving_table,
}


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    rows = Rows.read()
    return {name: table(rows) for name, table in TABLES.items()}


FIGURES = {"still": still_figure, "steps": steps_figure, "moving": moving_figure}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--only", choices=FIGURES, help="one figure alone")
    arguments = parser.parse_args()
    for name, draw in FIGURES.items():
        if arguments.only in (None, name):
            rows = Rows.read()
            with picture_style():
                figure = draw(arguments.seeds, rows)
                save_picture(
                    figure, ROOT / f"docs/images/theory-bandits-{name}.png", dpi=220
                )
            rows.save()
    write_page("theory_bandits")


if __name__ == "__main__":
    main()
