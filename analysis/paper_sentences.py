"""Ten sentences that one could quote. Each is made of numbers that are computed here; where the
results do not support one, there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from paper_choices import losses_around
from paper_claims import CONTRADICTED, HOLDS, SETTINGS, Check, Judged
from paper_multiverse import Specification, settings, shares_by_choice
from paper_reasons import compression_share, fixed_spread
from paper_results import (
    FIXED,
    LARGE,
    NAMES,
    SMALL,
    Results,
    accuracy_gap,
    final_accuracy,
    mean_accuracy_gap,
    only,
    over_seeds,
    shares,
    time_ratio,
)

from simfed.study.statistics import Estimate
from simfed.units import counted

__all__ = ["sentences"]

Unused = object
Make = Callable[[Results, Sequence[Judged], Sequence[Specification]], str]


def sentences(
    results: Results, judged: Sequence[Judged], read: Sequence[Specification]
) -> list[str]:
    """Of what there is, at most ten; `read`: the claims' readings."""
    found = (make(results, judged, read) for make in _MAKERS)
    return [sentence for sentence in found if sentence][:10]


def _below_top_k(results: Results, *_unused: Unused) -> str:
    gaps = [
        mean_accuracy_gap(results.runs("ascend", **s), results.runs("top-k", **s))[0]
        for _, s in SETTINGS
    ]
    if any(math.isnan(gap.low) for gap in gaps):
        return ""
    below, clearly = sum(g.least < 0 for g in gaps), sum(g.high < 0 for g in gaps)
    middle = -float(np.median([g.least for g in gaps]))
    return (
        f"Choosing per client does not beat playing Top-K always: averaged over a run, ASCEND's accuracy is below it "
        f"in {below} of {len(gaps)} settings ({clearly} clearly), by {100 * middle:.1f} points in the middle one."
    )


def _sooner_than_wrong(results: Results, *_unused: Unused) -> str:
    ratios = []
    for _, setting in SETTINGS:
        ascend = results.runs("ascend", **setting)
        for other in ("random-k", "periodic-k"):
            ratios.append(time_ratio(ascend, results.runs(other, **setting), 0.9))
    known = [r for r in ratios if not math.isnan(r.ratio.least)]
    if len(known) < len(ratios):
        return ""
    clear = sum(r.clear > 0 for r in known)
    middle = float(np.median([r.ratio.least for r in known]))
    return (
        f"What it does is spare one the wrong choice: it is clearly sooner at 90 % than Random-K or Periodic-K in "
        f"{clear} of {len(known)} comparisons, {middle:.1f} times in the middle one."
    )


def _exp3(_results: Results, judged: Sequence[Judged], __: Unused) -> str:
    checks = _checks(judged, "before-exp3")
    if not checks:
        return ""
    held, lost = (sum(c.state == state for c in checks) for state in (HOLDS, CONTRADICTED))
    return (
        f"Against EXP3, the bandit that the source calls inferior, ASCEND is ahead in {held}, behind in {lost} and "
        f"not told apart in {len(checks) - held - lost} of {len(checks)} comparisons."
    )


def _larger_k(results: Results, judged: Sequence[Judged], read: Sequence[Specification]) -> str:
    rounds, seconds = (_checks(judged, name) for name in ("larger-k-per-round", "larger-k-per-second"))  # fmt: skip
    axis = shares_by_choice([s for s in read if s.claim == "A larger K learns faster"]).get("axis")
    if not rounds or not seconds or axis is None:
        return ""
    held = sum(c.state == HOLDS for c in rounds)
    refuted = sum(c.state == CONTRADICTED for c in seconds)
    return (
        f"Whether a larger K learns faster is a matter of the axis: per round it does in {held} of {len(rounds)} "
        f"comparisons, per simulated second it is refuted in {refuted} of {len(seconds)}; over all readings of these runs "
        f"the claim holds in {100 * axis['per round']:.0f} % and {100 * axis['per second']:.0f} %."
    )


def _cifar(results: Results, *_unused: Unused) -> str:
    """By how much the best fixed strategy leads at a small K, and what is left of it at a large
    one."""
    task, small, large = "cifar10-small", 1_000, 16_000
    runs = {
        (arm, k): results.runs(arm, task, k=k) for arm in (*FIXED, "ascend") for k in (small, large)
    }
    if min(len(of) for of in runs.values()) < 3:
        return ""
    top, seeds = final_accuracy(runs["top-k", small])
    rivals = [accuracy_gap(runs["top-k", small], runs[arm, small])[0] for arm in FIXED[1:]]
    lead = min(rivals, key=lambda gap: gap.least)
    if lead.low <= 0:
        return ""
    spread, _ = fixed_spread(results, task, k=large)
    behind, _ = accuracy_gap(runs["ascend", small], runs["top-k", small])
    return (
        f"On CIFAR-10, with LeNets that reach {100 * top.least:.0f} % in 600 rounds, Top-K leads the other fixed "
        f"strategies by at least {_points(lead)} at K = 1,000; at 16,000 the means of all three are within {100 * spread:.1f} points. "
        f"ASCEND's end less Top-K's is {_points(behind)} at K = 1,000 ({counted(seeds, 'seed')})."
    )


def _bandwidth(results: Results, *_unused: Unused) -> str:
    share = compression_share(results)
    runs = [results.runs(arm, up_mbps=up) for arm in FIXED for up in (5, 500)]
    if not share or not all(runs):
        return ""
    return (
        f"With the source's own table of times, {share}, so that no bandwidth can change the order of strategies that "
        f"send the same number of entries."
    )


def _chosen(results: Results, *_unused: Unused) -> str:
    runs = results.runs("ascend")
    if not runs:
        return ""
    each = [over_seeds(lambda run, p=p: shares(run, p)["top-k"], runs)[0] for p in (SMALL, LARGE)]
    words = [f"{NAMES[p]} {100 * e.least:.0f} %" for p, e in zip((SMALL, LARGE), each, strict=True)]
    return (
        f"At K = 1,000 both prototypes prefer Top-K, {' and '.join(words)} of their free choices; the even choice of LeNet5 "
        f"that the source shows is not found."
    )


def _safeguard(results: Results, *_unused: Unused) -> str:
    runs = results.runs("ascend")
    found = [attempt for run in runs.values() for attempt in losses_around(run)]
    if not found:
        return ""
    again = np.mean([a.exceeds_again for a in found])
    worse = np.mean([a.second > a.undone for a in found])
    return (
        f"The safeguard against bad rounds mostly makes a worse one: of {len(found)} second attempts "
        f"{100 * again:.0f} % exceed the threshold again and {100 * worse:.0f} % have a higher loss than the round that was "
        f"undone."
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
    ranked = sorted(changed.items(), key=lambda item: -item[1])
    words = ", ".join(f"*{name}* changes {number}" for name, number in ranked if number)
    return (
        f"Of {len(asked)} measures of ASCEND at K = 1,000 that may hang on five points which the source leaves open, "
        + (f"{words}, and the other points none clearly" if words else "none does clearly")
        + " (Holm's correction over all of them)."
    )


def _dense(results: Results, *_unused: Unused) -> str:
    dense, sparse = results.runs("dense"), results.runs("top-k")
    seeds = set(dense) & set(sparse)
    if not seeds:
        return ""
    bytes_ratio = np.mean([dense[s].facts["uplink_bytes"] / sparse[s].facts["uplink_bytes"] for s in seeds])  # fmt: skip
    gap, _ = accuracy_gap(only(sparse, seeds), only(dense, seeds))
    paired = time_ratio(only(sparse, seeds), only(dense, seeds), 0.9)
    return (
        f"Against sending everything, Top-K with K = 1,000 uploads {bytes_ratio:.0f} times less per run, is at 90 % "
        f"{_times(paired.ratio)} as soon at 50 Mbps, and its end less that of sending everything is {_points(gap)} "
        f"({counted(len(seeds), 'seed')})."
    )


def _parameters(results: Results, judged: Sequence[Judged], __: Unused) -> str:
    checks = _checks(judged, "weights") + _checks(judged, "exploration")
    if not checks:
        return ""
    largest = max(abs(c.estimate.least) for c in checks)
    best, _ = final_accuracy(results.runs("ascend"))
    return (
        f"The reward's weights and the exploration constant hardly matter: over both of the source's grids final accuracy "
        f"stays within {100 * largest:.1f} points of the {100 * best.least:.1f} % at its own values."
    )


_MAKERS: tuple[Make, ...] = (
    _below_top_k, _sooner_than_wrong, _exp3, _larger_k, _safeguard, _open_points, _dense, _cifar,
    _bandwidth, _chosen, _parameters,
)  # fmt: skip


def _checks(judged: Sequence[Judged], name: str) -> tuple[Check, ...]:
    """Those of a claim, if it is judged at all."""
    one = next(j for j in judged if j.claim.name == name)
    return () if one.verdict == "not run" else one.checks


def _points(gap: Estimate) -> str:
    within = f" [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]" if gap.decides() else ""
    return f"{100 * gap.least:+.1f} points{within}"


def _times(ratio: Estimate) -> str:
    least = "" if ratio.is_exact else "at least "
    if math.isnan(ratio.low):
        return f"{least}{ratio.least:.2f} times"
    return f"{least}{ratio.least:.2f} times [{ratio.low:.2f}, {ratio.high:.2f}]"
