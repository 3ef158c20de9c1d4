"""Ten sentences that one could quote. Their numbers are computed here, and so is what they conclude:
each has a wording for either outcome and one for an outcome that the runs do not decide. Where runs
are missing there is no sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from choices import Attempt, losses_around
from claims import (
    AT_LEAST_POINTS,
    FAILS,
    HOLDS,
    MISSING,
    SETTINGS,
    Check,
    Judged,
    higher_per_round,
    survives_holm,
)
from multiverse import (
    SAFEGUARDS,
    Preferences,
    Specification,
    is_folded,
    preferences_by_credit,
    settings,
    shares_by_choice,
)
from reasons import compression_shares, fixed_spread, same_at_every_bandwidth
from results import (
    FIXED,
    NAMES,
    Results,
    Runs,
    accuracy_gap,
    final_accuracy,
    mean_accuracy_gap,
    only,
    over_settings,
    time_ratio,
)

from simfed.ground.units import counted
from simfed.report.statistics import Estimate, estimate_mean

Unused = object
Make = Callable[[Results, Sequence[Judged], Sequence[Specification]], str]


def sentences(
    results: Results, judged: Sequence[Judged], read: Sequence[Specification]
) -> list[str]:
    """Of what there is, at most ten; `read`: the claims' readings."""
    texts = (make(results, judged, read) for make in _MAKERS)
    return [sentence for sentence in texts if sentence][:10]


def _side(estimate: Estimate, even: float = 0.0) -> int:
    """1: all of the interval is above `even`; -1: below; 0: not decided."""
    if not estimate.decides():
        return 0
    return int(estimate.low > even) - int(estimate.high < even)


def _pairs(results: Results, policy: str, other: str) -> list[tuple[Runs, Runs]]:
    """The runs of two policies in each of the source's settings."""
    return [(results.runs(policy, **s), results.runs(other, **s)) for _, s in SETTINGS]


def _above_top_k(results: Results, *_unused: Unused) -> str:
    pairs = _pairs(results, "ascend", "top-k")
    checks = [higher_per_round("", a, b, 5) for a, b in pairs]
    if any(math.isnan(check.estimate.low) for check in checks):
        return ""
    pooled, seeds = over_settings(lambda a, b: _mean(a) - _mean(b), pairs)
    sides = [_side(check.estimate) for check in checks]
    stay = sum(
        bool(stays and side) for stays, side in zip(survives_holm(checks), sides, strict=True)
    )
    opening = {
        1: "Choosing per client beats playing Top-K always",
        -1: "Choosing per client does not beat playing Top-K always",
        0: "Whether choosing per client beats playing Top-K always is not decided",
    }[_side(pooled)]
    return (
        f"{opening}: pooled over {len(checks)} settings (blocks: {counted(seeds, 'seed')}), ASCEND's accuracy averaged over "
        f"a run less Top-K's is {_points(pooled, 2)}. Setting by setting it is clearly lower in {sides.count(-1)} and "
        f"clearly higher in {sides.count(1)}, of which Holm's correction leaves {stay}."
    )


def _sooner_than_wrong(results: Results, *_unused: Unused) -> str:
    ratios = [
        time_ratio(a, b, 0.9)
        for other in ("random-k", "periodic-k")
        for a, b in _pairs(results, "ascend", other)
    ]
    if any(math.isnan(one.ratio.least) for one in ratios):
        return ""
    sooner, later = (sum(one.clear == sign for one in ratios) for sign in (1, -1))
    middle = float(np.median([one.ratio.least for one in ratios]))
    if sooner > len(ratios) / 2 and not later:
        opening = "What it does is spare one the wrong choice"
    elif later > len(ratios) / 2 and not sooner:
        opening = "It is later than even the wrong choice"
    else:
        opening = "Whether it spares one the wrong choice is not decided"
    return (
        f"{opening}: at 90 % it is clearly sooner than Random-K or Periodic-K in {sooner} and clearly later in {later} of "
        f"{len(ratios)} comparisons (not corrected for so many), {middle:.1f} times as soon in the middle one. The three bandwidths share "
        f"what the fixed strategies learn."
    )


def _exp3(results: Results, judged: Sequence[Judged], __: Unused) -> str:
    checks, pairs = _checks(judged, "before-exp3"), _pairs(results, "ascend", "exp3")
    if not checks or not all(set(a) & set(b) for a, b in pairs):
        return ""
    ends, seeds = over_settings(lambda a, b: a.final() - b.final(), pairs)
    held, lost = (sum(c.state == state for c in checks) for state in (HOLDS, FAILS))
    sides, soon = {_side(ends)}, ""
    if all(run.first_at_s(0.9)[1] for pair in pairs for runs in pair for run in runs.values()):
        logs, _ = over_settings(
            lambda a, b: math.log(b.first_at_s(0.9)[0] / a.first_at_s(0.9)[0]), pairs
        )
        sides.add(_side(logs))
        least, low, high = (math.exp(end) for end in (logs.least, logs.low, logs.high))
        soon = f"at 90 % it is {least:.3f} times as soon [{low:.3f}, {high:.3f}], and "
    if sides >= {1, -1}:
        word = "ahead by one measure and behind by the other"
    else:
        word = {1: "ahead", -1: "behind", 0: "not told apart"}[sum(sides)]
    return (
        f"Beside EXP3, the bandit that the source calls inferior, ASCEND is {word} once {len(pairs)} settings are pooled "
        f"(blocks: {counted(seeds, 'seed')}): {soon}its end less EXP3's is {_points(ends, 2)}; of {len(checks)} single "
        f"comparisons it is ahead in {held} and behind in {lost}."
    )


def _larger_k(results: Results, judged: Sequence[Judged], read: Sequence[Specification]) -> str:
    rounds, seconds = (
        _checks(judged, name) for name in ("larger-k-per-round", "larger-k-per-second")
    )
    axis = shares_by_choice([s for s in read if s.claim == "A larger K learns faster"]).get("axis")
    if not rounds or not seconds or axis is None:
        return ""
    sides = _majority(rounds), _majority(seconds)
    opening = {
        (1, -1): "Whether a larger K learns faster is a matter of the axis",
        (-1, 1): "Whether a larger K learns faster is a matter of the axis",
        (1, 1): "A larger K learns faster on either axis",
        (-1, -1): "A larger K learns more slowly on either axis",
    }.get(sides, "Whether a larger K learns faster is not decided on both axes")
    words = [
        f"per {name} it does in {sum(c.state == HOLDS for c in checks)} of {len(checks)} comparisons and fails "
        f"in {sum(c.state == FAILS for c in checks)}"
        for name, checks in (("round", rounds), ("simulated second", seconds))
    ]
    return (
        f"{opening}: {', '.join(words)}; over all readings of these runs the claim holds in {100 * axis['per round']:.0f} % "
        f"and {100 * axis['per second']:.0f} %."
    )


def _majority(checks: Sequence[Check]) -> int:
    """1: more than half hold; -1: more than half fail; 0: neither."""
    states = [check.state for check in checks]
    return int(2 * states.count(HOLDS) > len(states)) - int(2 * states.count(FAILS) > len(states))


def _cifar(results: Results, *_unused: Unused) -> str:
    """By how much the best fixed strategy leads at a small K, and what is left of it at a large
    one."""
    task, small, large = "cifar10-small", 1_000, 16_000
    runs = {
        (arm, k): results.runs(arm, task, k=k) for arm in (*FIXED, "ascend") for k in (small, large)
    }
    if min(len(by_seed) for by_seed in runs.values()) < 3:
        return ""
    best = max(FIXED, key=lambda arm: final_accuracy(runs[arm, small])[0].least)
    top, seeds = final_accuracy(runs[best, small])
    rivals = [accuracy_gap(runs[best, small], runs[arm, small])[0] for arm in FIXED if arm != best]
    lead = min(rivals, key=lambda gap: gap.least)
    leads = (
        "leads the other fixed strategies" if _side(lead) > 0 else "is highest, but not clearly,"
    )
    spread, _ = fixed_spread(results, task, k=large)
    behind, _ = accuracy_gap(runs["ascend", small], runs[best, small])
    return (
        f"On CIFAR-10, with LeNets that reach {100 * top.least:.0f} % in 600 rounds, {NAMES[best]} {leads} by at least "
        f"{_points(lead)} at K = 1,000; at 16,000 the means of all three are within {100 * spread:.1f} points. "
        f"ASCEND's end less {NAMES[best]}'s is {_points(behind)} at K = 1,000 ({counted(seeds, 'seed')})."
    )


_SMALL_SHARE, _SMALL_CHANGE = 0.01, 0.01
"""Of a round, and of the ratio of two strategies' times: below them bandwidth changes no order here."""


def _bandwidth(results: Results, *_unused: Unused) -> str:
    shares = compression_shares(results)
    slow, fast = (
        time_ratio(
            results.runs("top-k", up_mbps=up), results.runs("random-k", up_mbps=up), 0.8
        ).ratio
        for up in (5, 500)
    )
    if not shares or math.isnan(slow.least) or math.isnan(fast.least):
        return ""
    change = abs(slow.least / fast.least - 1)
    alike = bool(same_at_every_bandwidth(results))
    if alike and max(shares.values()) < _SMALL_SHARE and change < _SMALL_CHANGE:
        end = "so that bandwidth stretches the times of strategies that send the same number of entries alike"
    else:
        end = "so that bandwidth may change the order of strategies that send the same number of entries"
    words = " and ".join(
        f"{100 * share:.2g} % of a round on {name}" for name, share in shares.items()
    )
    return (
        f"With the source's own table of times compression takes, on average over a run's clients, at most {words}, "
        f"{end}: from 5 to 500 Mbps the ratio of Random-K's time to 80 % to Top-K's changes by {100 * change:.2g} %."
    )


def _chosen(results: Results, *_unused: Unused) -> str:
    by_credit = preferences_by_credit(results, 1000)
    if not by_credit:
        return ""
    both = sum(reading.both for reading in by_credit.values())
    opening = (
        "No reading of the credit reproduces both halves of the source's figure of choices at K = 1,000"
        if not both
        else f"Both halves of the source's figure of choices at K = 1,000 hold in {counted(both, 'setting')}"
    )
    words = "; ".join(f"{name} credit {_preferences(one)}" for name, one in by_credit.items())
    return f"{opening} (LeNet5-half prefers Top-K; LeNet5 chooses evenly): {words}."


def _preferences(reading: Preferences) -> str:
    return (
        f"gives the first clearly in {reading.prefers} and the second in {reading.even} of {reading.settings} settings of "
        f"the other open points"
    )


def _safeguard(results: Results, *_unused: Unused) -> str:
    """Of runs that all carry their losses by round: the safeguard's own phase."""
    runs = results.runs("ascend", rounds=400)
    off = results.runs("ascend", rounds=400, **SAFEGUARDS["off"])
    attempts = [losses for run in runs.values() if (losses := losses_around(run))]
    if len(runs) < 3 or len(attempts) < len(runs):
        return ""
    worse = estimate_mean([float(np.mean([a.second > a.undone for a in one])) for one in attempts])
    each = [attempt for one in attempts for attempt in one]
    opening = {
        1: "The safeguard against bad rounds mostly makes a worse one",
        -1: "The safeguard against bad rounds mostly makes a better one",
        0: "Whether the safeguard's second attempts are better or worse is not decided",
    }[_side(worse, 0.5)]
    beside = ""
    gap, seeds = mean_accuracy_gap(runs, off)
    if seeds > 2:
        beside = f" Averaged over a run, accuracy less that without it is {_points(gap, 2)}."
    return (
        f"{opening}: of {len(each)} second attempts in {counted(len(runs), 'seed')} of 400 rounds "
        f"{_again(each)} than the round that was undone.{_everywhere(results)}{beside}"
    )


def _again(attempts: Sequence[Attempt]) -> str:
    exceed = np.mean([attempt.exceeds_again for attempt in attempts])
    worse = np.mean([attempt.second > attempt.undone for attempt in attempts])
    return f"{100 * exceed:.0f} % exceed the threshold again and {100 * worse:.0f} % have a higher loss"


def _everywhere(results: Results) -> str:
    """The same of all runs that carry their losses, whatever else is set in them."""
    changed = {key for one in SAFEGUARDS.values() for key in one.get("universe", {})}
    runs = [
        run
        for run in results.all
        if run.facts["setting"].get("policy") == "ascend"
        and not changed & set(run.facts["setting"].get("universe", {}))
    ]
    of_runs = [attempts for run in runs if (attempts := losses_around(run))]
    each = [attempt for attempts in of_runs for attempt in attempts]
    return (
        f" Over every recorded seed and setting with this safeguard ({len(of_runs)} runs) these are {len(each):,}, of which "
        f"{_again(each)}."
    )


def _open_points(results: Results, *_unused: Unused) -> str:
    asked = settings(results, 1000)
    if not asked or not all(effects for *_, effects in asked):
        return ""
    changed: dict[str, int] = {}
    for *_, effects in asked:
        for effect in effects:
            name = f"{effect.factor.words} {effect.factor.other}"
            changed[name] = changed.get(name, 0) + effect.stays
    ranked = [(name, n) for name, n in sorted(changed.items(), key=lambda item: -item[1]) if n]
    opening = f"Of {len(asked)} measures of ASCEND at K = 1,000 that may hang on five points which the source leaves open, "
    if not ranked:
        return f"{opening}none changes clearly with any of them (Holm's correction over all)."
    words = ", ".join(f"*{name}* changes {number}" for name, number in ranked)
    apart = "told apart" if is_folded(results, 1000) else "not told apart"
    return (
        f"{opening}{words}, and the other points none clearly (Holm's correction over all). A point is {apart} from "
        f"how [two others](#in-other-universes) act together."
    )


def _dense(results: Results, *_unused: Unused) -> str:
    dense, sparse = results.runs("dense"), results.runs("top-k")
    seeds = set(dense) & set(sparse)
    if not seeds:
        return ""
    bytes_ratio = np.mean(
        [dense[s].facts["uplink_bytes"] / sparse[s].facts["uplink_bytes"] for s in seeds]
    )
    gap, _ = accuracy_gap(only(sparse, seeds), only(dense, seeds))
    paired = time_ratio(only(sparse, seeds), only(dense, seeds), 0.9)
    return (
        f"Top-K with K = 1,000 uploads 1/{bytes_ratio:.0f} of what sending everything does, is at 90 % "
        f"{_times(paired.ratio)} as soon at 50 Mbps, and its end less that of sending everything is {_points(gap, 2)} "
        f"({counted(len(seeds), 'seed')})."
    )


def _parameters(results: Results, judged: Sequence[Judged], __: Unused) -> str:
    checks = _checks(judged, "weights") + _checks(judged, "exploration")
    if not checks:
        return ""
    largest = max(abs(c.estimate.least) for c in checks)
    best, _ = final_accuracy(results.runs("ascend"))
    matters = "hardly matter" if largest < AT_LEAST_POINTS else "matter"
    return (
        f"The reward's weights and the exploration constant {matters}: over both of the source's grids final accuracy "
        f"stays within {100 * largest:.1f} points of the {100 * best.least:.1f} % at its own values."
    )


_MAKERS: tuple[Make, ...] = (
    _above_top_k, _sooner_than_wrong, _exp3, _larger_k, _safeguard, _open_points, _dense, _cifar,
    _bandwidth, _chosen, _parameters,
)  # fmt: skip


def _checks(judged: Sequence[Judged], name: str) -> tuple[Check, ...]:
    """Those of a claim, if it is judged at all."""
    one = next(j for j in judged if j.claim.name == name)
    return () if any(check.state == MISSING for check in one.checks) else one.checks


def _mean(run: Any) -> float:
    """Accuracy averaged over a run's evaluations."""
    return float(np.mean(run.accuracies()))


def _points(gap: Estimate, digits: int = 1) -> str:
    def text(value: float) -> str:
        return f"{100 * value:+.{digits}f}"

    within = f" [{text(gap.low)}, {text(gap.high)}]" if gap.decides() else ""
    return f"{text(gap.least)} points{within}"


def _times(ratio: Estimate) -> str:
    least = "" if ratio.is_exact else "at least "
    if math.isnan(ratio.low):
        return f"{least}{ratio.least:.2f} times"
    return f"{least}{ratio.least:.2f} times [{ratio.low:.2f}, {ratio.high:.2f}]"
