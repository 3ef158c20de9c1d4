"""What the runs themselves say about why a claim may not hold, and about how to read a verdict.

Every sentence is made of numbers that are computed here; where they support none, there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from campaign import unpacked
from results import (
    FIXED,
    NAMES,
    POLICIES,
    Result,
    Results,
    Runs,
    accuracy_gap,
    final_accuracy,
    grid_gaps,
    shares,
)

from simfed.ground.units import counted
from simfed.report.statistics import Estimate

CHANCE, NEAR_CHANCE = 0.1, 0.01
"""What guessing one of ten classes gets right, and how near to it a run has learned nothing."""

APART = 1.0
"""A distillation loss that a prototype has only where it contradicts its teacher: among ten classes
a teacher that says nothing and a student that is nearly sure are as far apart."""


def compression_shares(results: Results) -> dict[str, float]:
    """How much of a client's time compression takes, in the run of a data set where it takes most,
    by the source's own times."""
    shares: dict[str, float] = {}
    for result in results.all:
        if "universe" in result.facts["setting"]:
            continue
        phases = result.facts["phases_s"]
        work_s = phases["training_s"] + phases["compression_s"] + phases["uplink_s"]
        dataset = {"mnist": "MNIST", "cifar10": "CIFAR-10"}[result.facts["setting"]["dataset"]]
        shares[dataset] = max(shares.get(dataset, 0.0), phases["compression_s"] / work_s)
    return shares


def compression_share(results: Results) -> str:
    each = [
        f"{100 * share:.2g} % of a round on {name}"
        for name, share in compression_shares(results).items()
    ]
    if not each:
        return ""
    return f"on average over a run's clients, compression takes at most {' and '.join(each)}"


def clipped_share(results: Results) -> str:
    """How many rewards hit the clip at each K, with ASCEND."""
    phrases = []
    for k in (500, 1000, 5000):
        rewards = [run.facts["rewards"] for run in results.runs("ascend", k=k).values()]
        if rewards:
            clipped = sum(r["clipped"] for r in rewards) / sum(r["count"] for r in rewards)
            phrases.append(f"{100 * clipped:.0f} % at K = {k:,}")
    return f"rewards that hit the clip with ASCEND: {', '.join(phrases)}" if phrases else ""


def rejected_rounds(results: Results) -> str:
    """How many rounds ASCEND's safeguard undid, and how many choices it then forced."""
    runs = [r for k in (500, 1000, 5000) for r in results.runs("ascend", k=k).values()]
    if not runs:
        return ""
    each = [100 * run.facts["rollbacks"] / run.facts["setting"]["rounds"] for run in runs]
    return (
        f"ASCEND's safeguard undoes {_span(each)} % of a run's rounds, which stay spent, and forces Top-K in "
        f"{100 * _chosen(runs, 'forced'):.1f} % of all choices (K 500 to 5,000, {len(runs)} runs)"
    )


def what_adapting_costs(results: Results) -> str:
    """Rounds of ASCEND that no fixed strategy spends."""
    runs = [r for k in (500, 1000, 5000) for r in results.runs("ascend", k=k).values()]
    if not runs:
        return ""
    random = 100 * _chosen(runs, "warm-up", "explore")
    return f"ASCEND chooses at random in {random:.0f} % of its plays; {rejected_rounds(results)}"


def steady_preference(results: Results, prototypes: Sequence[str], **setting: Any) -> str:
    """Which strategy ASCEND prefers, where that is also the one that a prototype learns most by."""
    phrases = []
    ascend = results.runs("ascend", **setting)
    for prototype in prototypes if ascend else ():
        each = {arm: [shares(run, prototype)[arm] for run in ascend.values()] for arm in FIXED}
        preferred = max(FIXED, key=lambda arm: sum(each[arm]))
        ground = _ends_higher(results, preferred, prototype, setting)
        if min(each[preferred]) > 0.5 and ground:
            share = _span([100 * value for value in each[preferred]])
            phrases.append(
                f"{NAMES[prototype]} plays {NAMES[preferred]} in {share} % of its free choices, and with "
                f"{NAMES[preferred]} alone it ends {ground}"
            )
    return "; ".join(phrases)


def _ends_higher(results: Results, arm: str, prototype: str, setting: dict[str, Any]) -> str:
    """By how much a prototype ends higher with one strategy than with each that it clearly beats."""
    words = []
    for other in FIXED:
        a, b = results.runs(arm, **setting), results.runs(other, **setting)
        gap, _ = accuracy_gap(a, b, prototype)
        if other != arm and gap.decides() and gap.low > 0:
            words.append(f"{_points(gap)} higher than by {NAMES[other]}")
    return " and ".join(words)


def same_at_every_bandwidth(results: Results, low: float = 5, high: float = 500) -> str:
    """What makes a fixed strategy's times scale with the link and cancel between strategies."""
    differences, sent = [], []
    for arm in FIXED:
        slow, fast = results.runs(arm, up_mbps=low), results.runs(arm, up_mbps=high)
        for seed in set(slow) & set(fast):
            one, other = slow[seed], fast[seed]
            differences.append(np.abs(np.subtract(one.accuracies(), other.accuracies())).max())
            sent += [one.facts["uplink_bytes"], other.facts["uplink_bytes"]]
    if not differences or max(differences) > 0 or max(sent) > min(sent) * (1 + 1e-9):
        return ""
    return (
        f"a fixed strategy reaches the same accuracy in every round at {low:g} and at {high:g} Mbps, and all send "
        f"the same bytes: of the clock nothing but compression tells them apart; {compression_share(results)}"
    )


def why_longer_rounds(results: Results) -> str:
    """How long a round is at each K; where it is longer, a larger K must save rounds to be sooner."""
    lengths = []
    for k in (500, 1000, 5000):
        runs = [run for arm in FIXED for run in results.runs(arm, k=k).values()]
        if runs:
            each_s = [r.facts["simulated_s"] / r.facts["setting"]["rounds"] for r in runs]
            lengths.append((sum(each_s) / len(each_s), f"K = {k:,}"))
    if len(lengths) < 2 or sorted(lengths) != lengths:
        return ""
    words = ", ".join(f"{1000 * length_s:.2f} ms at {k}" for length_s, k in lengths)
    return f"a round lasts {words}: a larger K is sooner only where it needs that much fewer rounds"


def fixed_spread(results: Results, task: str = "mnist", **setting: Any) -> tuple[float, int]:
    """How far apart fixed strategies end, over how many seeds that all have; NaN where one has none."""
    runs = [results.runs(arm, task, **setting) for arm in FIXED]
    common = set.intersection(*map(set, runs))
    means = [final_accuracy({s: of_arm[s] for s in common})[0].least for of_arm in runs]
    return max(means) - min(means) if common else math.nan, len(common)


def narrow_settings(
    results: Results, margin: float, settings: Iterable[tuple[str, dict[str, Any]]]
) -> str:
    """Settings in which a margin is wider than all that the choice of a fixed strategy changes."""
    spreads = {name: fixed_spread(results, **setting) for name, setting in settings}
    narrow = [
        f"{100 * spread:.2f} points at {name}, {seeds} seed{'s' * (seeds > 1)}"
        for name, (spread, seeds) in spreads.items()
        if spread < margin
    ]
    if not narrow:
        return ""
    return (
        f"the margin of {100 * margin:g} point{'s' * (margin != 0.01)} is wider than all that fixed strategies "
        f"end apart, and says little there ({'; '.join(narrow)})"
    )


def at_chance(results: Results, settings: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Settings in which no run ends a point or more from chance."""
    phrases = []
    for name, setting in settings:
        runs = [run for arm in POLICIES for run in results.runs(arm, **setting).values()]
        if runs and all(abs(run.final() - CHANCE) < NEAR_CHANCE for run in runs):
            best = max(max(run.accuracies()) for run in runs)
            phrases.append(f"{name}, {counted(len(runs), 'run')}, after {100 * best:.1f} % at best")
    if not phrases:
        return ""
    return f"all runs end at chance, which tells nothing apart ({'; '.join(phrases)})"


def before_chance(results: Results) -> str:
    """How the distillation loss moves before CIFAR-10's runs fall to chance; nothing, if one does
    not."""
    runs = [run for arm in POLICIES for run in results.runs(arm, "cifar10").values()]
    if not runs or any(abs(run.final() - CHANCE) >= NEAR_CHANCE for run in runs):
        return ""
    rounds, losses = zip(*map(_first_apart, runs), strict=True)
    if not all(rounds):
        return ""
    best = max(map(_best_after, runs, rounds))
    return (
        f"{min(losses):.1g} to {max(losses):.1g} in the middle of the first 25 rounds, has "
        f"exceeded {APART:g} for both prototypes by round {', '.join(map(str, rounds))}, and no "
        f"evaluation after it finds more than {100 * best:.1f} %"
    )


def _first_apart(run: Result) -> tuple[int, float]:
    """The round by which each prototype has had a distillation loss above `APART` (0: one never
    has), and the median of the losses of the first 25 rounds."""
    length = run.facts["setting"]["rounds"]
    packed_losses = run.facts["by_round"]["kd_loss"].values()
    losses = np.array([unpacked(one, "float32", length) for one in packed_losses])
    above = losses > APART
    last = int(above.argmax(axis=1).max()) + 1 if above.any(axis=1).all() else 0
    return last, float(np.median(losses[:, :25]))


def _best_after(run: Result, round: int) -> float:
    """The best accuracy of any prototype in evaluations after a round."""
    curve = run.facts["curve"]
    first = sum(number <= round for number in curve["round"])
    best: float = max(max(of_one[first:]) for of_one in curve["accuracy"].values())
    return best


def grid_spread(good: Runs, others: Sequence[Runs], margin: float) -> str:
    """How much a parameter changes at all, over the whole of its grid."""
    gaps, seeds, _ = grid_gaps(good, others)
    if not seeds or any(math.isnan(gap.least) for gap in gaps):
        return ""
    levels = [0.0, *(-gap.least for gap in gaps)]
    span = max(levels) - min(levels)
    text = f"over the whole grid final accuracy spans {100 * span:.2f} points ({seeds} seed{'s' * (seeds > 1)}"
    if not math.isnan(gaps[0].low):
        text += f"; a difference's interval is ±{50 * (gaps[0].high - gaps[0].low):.2f}"
    within = f"), less than the margin of {100 * margin:g}: the parameter hardly matters"
    return text + (within if span < margin else ")")


def _chosen(runs: Iterable[Result], *reasons: str) -> float:
    """The share of all plays that were chosen for one of these reasons."""
    counts: dict[str, int] = {}
    for run in runs:
        for of_arm in run.facts["plays"].values():
            for chosen in of_arm.values():
                for why, n in chosen.items():
                    counts[why] = counts.get(why, 0) + n
    return sum(counts.get(why, 0) for why in reasons) / sum(counts.values())


def _span(values: Sequence[float]) -> str:
    """
    >>> _span([3.24, 6.81]), _span([5.0])
    ('3.2 to 6.8', '5.0')
    """
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"


def _points(gap: Estimate) -> str:
    return f"{100 * gap.least:.1f} points [{100 * gap.low:.1f}, {100 * gap.high:.1f}]"
