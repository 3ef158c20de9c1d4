"""The source's claims, each as checks with an interval, and what they come to.

A check compares runs seed by seed and *holds* if its whole interval is on the claimed side, is
*contradicted* if all of it is on the other side, and is *undecided* between; with fewer seeds
than asked for it is *short of seeds*. `verdict_of` makes the verdict of these, the same way for every claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paper_results import (
    FIXED,
    POLICIES,
    Results,
    Runs,
    accuracy_gap,
    over_seeds,
    shares,
    time_ratio,
)

from simfed.study.statistics import Estimate

__all__ = ["CLAIMS", "Check", "Claim", "Judged", "judge", "verdict_of"]

HOLDS, CONTRADICTED, UNDECIDED, MISSING = "holds", "contradicted", "undecided", "short of seeds"
AT_LEAST_POINTS, COMPETITIVE_POINTS = 0.005, 0.01
"""Final accuracy that `at least as good` and `competitive` may lack."""
AT_LEAST_TIME, COMPETITIVE_TIME = 1.05, 1.1
"""How many times longer they may take."""
BALANCED = 0.2
"""Balanced: no strategy's share is further than this above another's."""
SMALL, LARGE = "lenet5-half", "lenet5"


@dataclass(frozen=True)
class Check:
    """One comparison."""

    what: str
    state: str
    estimate: Estimate
    unit: str
    """`points`, `×` (times sooner), `share`."""
    seeds: int


@dataclass(frozen=True)
class Claim:
    """A claim of the source."""

    name: str
    text: str
    checks: Callable[[Results], Iterator[Check]]
    rule: str
    """How the checks read the claim."""
    reason: Callable[[Results], str] = lambda _: ""
    """Why it may not hold; shown where it does not."""
    comparable: bool = True


@dataclass(frozen=True)
class Judged:
    claim: Claim
    verdict: str
    checks: tuple[Check, ...]


def judge(results: Results) -> list[Judged]:
    """Every claim with its checks and verdict."""
    found = []
    for claim in CLAIMS:
        checks = tuple(claim.checks(results))
        verdict = verdict_of(checks) if claim.comparable else "not comparable"
        found.append(Judged(claim, verdict, checks))
    return found


def verdict_of(checks: Sequence[Check]) -> str:
    """All hold: reproduced; some: partly; none: not reproduced; any lacks seeds: not run."""
    states = [check.state for check in checks]
    if MISSING in states or not states:
        return "not run"
    held = states.count(HOLDS)
    return "reproduced" if held == len(states) else "partly" if held else "not reproduced"


# --- checks ------------------------------------------------------------------------------------


def state_of(estimate: Estimate, bound: float, seeds: int, needed: int) -> str:
    """Whether what is estimated is above the bound."""
    if seeds < needed:
        return MISSING
    if estimate.low > bound:
        return HOLDS
    return CONTRADICTED if estimate.high <= bound else UNDECIDED


def higher(
    what: str, a: Runs, b: Runs, needed: int, *, by: float = 0.0, prototype: str | None = None
) -> Check:
    """The final accuracy of `a` is more than `by` above that of `b` (a negative `by`: a margin)."""
    gap, seeds = accuracy_gap(a, b, prototype)
    return Check(what, state_of(gap, by, seeds, needed), gap, "points", seeds)


def sooner(
    what: str, a: Runs, b: Runs, threshold: float, needed: int, *, times: float = 1.0
) -> Check:
    """`a` reached the threshold more than `times` sooner than `b`."""
    paired = time_ratio(a, b, threshold)
    state = state_of(paired.ratio, times, paired.seeds, needed)
    return Check(what, state, paired.ratio, "×", paired.seeds)


def worst(what: str, checks: Sequence[Check]) -> Check:
    """All of them: as good as the worst."""
    order = (MISSING, CONTRADICTED, UNDECIDED, HOLDS)
    first = min(checks, key=lambda c: (order.index(c.state), _number(c.estimate.least)))
    return Check(what, first.state, first.estimate, first.unit, first.seeds)


def share_check(
    what: str, measure: Callable[[dict[str, float]], float], runs: Runs, prototype: str,
    bound: float, needed: int,
) -> Check:  # fmt: skip
    """A number made of the shares of strategies is above a bound."""
    estimate, seeds = over_seeds(lambda run: measure(shares(run, prototype)), runs)
    return Check(what, state_of(estimate, bound, seeds, needed), estimate, "share", seeds)


def _number(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _lead_of(arm: str) -> Callable[[dict[str, float]], float]:
    return lambda share: share[arm] - max(v for other, v in share.items() if other != arm)


def _both(name: str, a: Runs, b: Runs, threshold: float, needed: int) -> Iterator[Check]:
    """Higher and sooner."""
    yield higher(f"{name}: higher", a, b, needed)
    yield sooner(f"{name}: sooner to {threshold:.0%}", a, b, threshold, needed)


def _at_least_best_fixed(
    results: Results, name: str, threshold: float, needed: int, **setting: Any
) -> Iterator[Check]:
    ascend = results.runs("ascend", **setting)
    fixed = [results.runs(arm, **setting) for arm in FIXED]
    yield worst(
        f"{name}: as high as each fixed strategy",
        [higher("", ascend, other, needed, by=-AT_LEAST_POINTS) for other in fixed],
    )
    yield worst(
        f"{name}: as soon as each",
        [sooner("", ascend, o, threshold, needed, times=1 / AT_LEAST_TIME) for o in fixed],
    )


# --- the claims --------------------------------------------------------------------------------


def _top_k_at_small_k(results: Results) -> Iterator[Check]:
    for k in (500, 1000):
        for other in ("random-k", "periodic-k"):
            a, b = results.runs("top-k", k=k), results.runs(other, k=k)
            yield from _both(f"K {k:,}, over {other}", a, b, 0.9, 5)


def _random_k_at_large_k(results: Results) -> Iterator[Check]:
    a, b = results.runs("random-k", k=5000), results.runs("top-k", k=5000)
    yield higher("K 5,000, Random-K as high as Top-K", a, b, 5, by=-COMPETITIVE_POINTS)
    yield sooner("K 5,000, as soon", a, b, 0.9, 5, times=1 / COMPETITIVE_TIME)
    yield _catching_up(results, "K 5,000 against 500: Top-K's lead shrinks", 5, "k", 500, 5000)


def _catching_up(
    results: Results, what: str, needed: int, key: str, before: float, after: float,
    task: str = "mnist",
) -> Check:  # fmt: skip
    """Top-K's lead in final accuracy over Random-K is smaller after than before."""
    four = [results.runs(arm, task, **{key: v}) for v in (before, after) for arm in ("top-k", "random-k")]  # fmt: skip

    def shrunk(*runs: Any) -> float:
        last = [run.accuracies()[-1] for run in runs]
        return float((last[0] - last[1]) - (last[2] - last[3]))

    estimate, seeds = over_seeds(shrunk, *four)
    return Check(what, state_of(estimate, 0, seeds, needed), estimate, "points", seeds)


def _larger_k(results: Results) -> Iterator[Check]:
    for policy in POLICIES:
        for less, more in ((500, 1000), (1000, 5000)):
            a, b = results.runs(policy, k=more), results.runs(policy, k=less)
            yield from _both(f"{policy}, K {more:,} over {less:,}", a, b, 0.9, 5)


_SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("K 500", {"k": 500}),
    ("K 1,000", {}),
    ("K 5,000", {"k": 5000}),
    ("alpha 0.1", {"alpha": 0.1}),
    ("alpha 1", {"alpha": 1}),
    ("5 Mbps", {"up_mbps": 5}),
    ("500 Mbps", {"up_mbps": 500}),
)


def _ascend_everywhere(results: Results) -> Iterator[Check]:
    for name, setting in _SETTINGS:
        yield from _at_least_best_fixed(results, name, 0.9, 5, **setting)


def _skewed_labels(results: Results) -> Iterator[Check]:
    for policy in POLICIES:
        a, b = results.runs(policy), results.runs(policy, alpha=0.1)
        yield from _both(f"{policy}, alpha 0.5 over 0.1", a, b, 0.9, 5)


def _slow_links(results: Results) -> Iterator[Check]:
    for other in ("random-k", "periodic-k"):
        a, b = results.runs("top-k", up_mbps=5), results.runs(other, up_mbps=5)
        yield from _both(f"5 Mbps, over {other}", a, b, 0.9, 5)


def _fast_links(results: Results) -> Iterator[Check]:
    yield _catching_up(results, "500 Mbps against 5: Top-K's lead shrinks", 5, "up_mbps", 5, 500)
    four = [results.runs(arm, up_mbps=b) for b in (5, 500) for arm in ("random-k", "top-k")]

    def gained(*runs: Any) -> float:
        times = [run.first_at_s(0.8) for run in runs]
        if not all(reached for _, reached in times):
            return math.nan
        (slow_r, _), (slow_t, _), (fast_r, _), (fast_t, _) = times
        return (slow_r / slow_t) / (fast_r / fast_t)

    estimate, seeds = over_seeds(gained, *four)
    what = "500 Mbps against 5: Random-K's time to 80% shrinks beside Top-K's"
    yield Check(what, state_of(estimate, 1, seeds, 5), estimate, "×", seeds)


def _half_chooses_top_k(results: Results) -> Iterator[Check]:
    runs = results.runs("ascend")
    what = "LeNet5-half: Top-K's share above the next"
    yield share_check(what, _lead_of("top-k"), runs, SMALL, 0, 5)


def _lenet5_balanced(results: Results) -> Iterator[Check]:
    def evenness(share: dict[str, float]) -> float:
        return min(share.values()) - max(share.values())

    what = "LeNet5: least chosen strategy's share less the most chosen's"
    yield share_check(what, evenness, results.runs("ascend"), LARGE, -BALANCED, 5)


def _random_k_chosen_at_5000(results: Results) -> Iterator[Check]:
    runs = results.runs("ascend", k=5000)
    for prototype, name in ((SMALL, "LeNet5-half"), (LARGE, "LeNet5")):
        what = f"{name}: Random-K's share above the next"
        yield share_check(what, _lead_of("random-k"), runs, prototype, 0, 5)


def _cifar10(results: Results) -> Iterator[Check]:
    def runs(policy: str, k: int) -> Runs:
        return results.runs(policy, "cifar10", k=k)

    small, large = 100_000, 2_000_000
    for other in ("random-k", "periodic-k"):
        yield from _both(f"K 1e5, Top-K over {other}", runs("top-k", small), runs(other, small), 0.3, 3)  # fmt: skip
    a, b = runs("random-k", large), runs("top-k", large)
    yield higher("K 2e6, Random-K as high as Top-K", a, b, 3, by=-COMPETITIVE_POINTS)
    for policy in POLICIES:
        yield higher(f"{policy}, K 2e6 over 1e5: higher", runs(policy, large), runs(policy, small), 3)  # fmt: skip
    for name, k in (("K 1e5", small), ("K 2e6", large)):
        yield from _at_least_best_fixed(results, f"ASCEND, {name}", 0.3, 3, task="cifar10", k=k)


def _weights(results: Results) -> Iterator[Check]:
    good = results.runs("ascend")
    for rho, beta in ((1, 0), (0.8, 0.2), (0.4, 0.6), (0.2, 0.8), (0, 1)):
        other = results.runs("ascend", rho=rho, beta=beta)
        yield higher(f"as high as with ({rho:g}, {beta:g})", good, other, 3, by=-AT_LEAST_POINTS)


def _exploration(results: Results) -> Iterator[Check]:
    good = results.runs("ascend")
    for c in (1, 2, 4, 5):
        yield higher(f"as high as with c = {c}", good, results.runs("ascend", c=c), 3, by=-AT_LEAST_POINTS)  # fmt: skip


def _best_for(prototype: str, best: str) -> Callable[[Results], Iterator[Check]]:
    def checks(results: Results) -> Iterator[Check]:
        for other in FIXED:
            if other != best:
                a, b = results.runs(best), results.runs(other)
                yield higher(f"over {other}", a, b, 5, prototype=prototype)

    return checks


def _best_at_10000(results: Results) -> Iterator[Check]:
    yield from _at_least_best_fixed(results, "K 10,000", 0.9, 5, k=10_000)


def _early_at_5000(results: Results) -> Iterator[Check]:
    ascend = results.runs("ascend", k=5000)
    for other in FIXED:
        yield sooner(f"sooner to 80% than {other}", ascend, results.runs(other, k=5000), 0.8, 5)


# --- why a claim may fail ----------------------------------------------------------------------


def compression_share(results: Results) -> str:
    """How much of a client's time compression takes, over all runs there are."""
    found: dict[str, list[float]] = {}
    for result in results.all:
        phases = result.facts["phases_s"]
        work_s = phases["training_s"] + phases["compression_s"] + phases["uplink_s"]
        dataset = {"mnist": "MNIST", "cifar10": "CIFAR-10"}[result.facts["setting"]["dataset"]]
        found.setdefault(dataset, []).append(phases["compression_s"] / work_s)
    if not found:
        return ""
    each = [f"{100 * max(v):.2g} % of a client's round on {name}" for name, v in found.items()]
    return f"compression takes at most {' and '.join(each)}"


def clipped_share(results: Results) -> str:
    """How many rewards hit the clip at each K, with ASCEND."""
    found = []
    for k in (500, 1000, 5000):
        runs = results.runs("ascend", k=k)
        rewards = [run.facts["rewards"] for run in runs.values()]
        if rewards:
            clipped = sum(r["clipped"] for r in rewards) / sum(r["count"] for r in rewards)
            found.append(f"{100 * clipped:.0f} % at K = {k:,}")
    return f"rewards that hit the clip with ASCEND: {', '.join(found)}" if found else ""


def _why_selection(results: Results) -> str:
    facts = [text for text in (compression_share(results), clipped_share(results)) if text]
    return (
        "all strategies send the same bytes, so the reward's τ hardly differs between them; what is left "
        f"is the gain, which is noisy and clipped ({'; '.join(facts)})"
    )


def _why_bandwidth(results: Results) -> str:
    return (
        "strategies send the same bytes and differ in compression time alone, so that the bandwidth "
        f"cancels out of their ratio ({compression_share(results)})"
    )


def _why_time(results: Results) -> str:
    return (
        "a larger K makes rounds longer (upload at 50 Mbps: 0.5 ms at K = 500, 4.8 ms at 5,000, beside "
        "4.5 ms of training), so more is learned per round and not always more per second"
    )


def _why_adaptive(results: Results) -> str:
    return (
        "ASCEND spends its warm-up and a sixth of 1,000 rounds on random strategies, which costs "
        f"most where one strategy is far better; {clipped_share(results)}"
    )


def _why_random(results: Results) -> str:
    return "with the residual, Top-K keeps the larger part of the gradient at equal cost"


CLAIMS: tuple[Claim, ...] = (
    Claim("top-k-at-small-k", "Top-K is the best fixed strategy at small K", _top_k_at_small_k,
          "higher final accuracy and sooner to 90 %, K 500 and 1,000"),
    Claim("random-k-at-large-k", "Random-K is competitive at large K", _random_k_at_large_k,
          "K 5,000: at most 1 point lower and 10 % later than Top-K, whose lead has shrunk since K 500",
          _why_random),
    Claim("larger-k", "A larger K converges faster and higher", _larger_k,
          "every policy, 1,000 over 500 and 5,000 over 1,000: higher, and sooner to 90 %", _why_time),
    Claim("ascend-everywhere", "ASCEND is at least as good as the best fixed strategy in every setting",
          _ascend_everywhere, "at most 0.5 points lower and 5 % later to 90 % than each fixed strategy",
          _why_adaptive),
    Claim("skewed-labels", "Training is slower and lower at α = 0.1", _skewed_labels,
          "every policy, α 0.5 over 0.1: higher, and sooner to 90 %"),
    Claim("slow-links", "Top-K is ahead at 5 Mbps", _slow_links,
          "higher, and sooner to 90 %, than the other fixed strategies"),
    Claim("fast-links", "Random-K gains at 500 Mbps", _fast_links,
          "beside Top-K, from 5 to 500 Mbps: final accuracy, and time to 80 %", _why_bandwidth),
    Claim("half-chooses-top-k", "LeNet5-half chooses Top-K at K = 1,000", _half_chooses_top_k,
          "ASCEND after its warm-up: share of Top-K above every other's", _why_selection),
    Claim("lenet5-balanced", "LeNet5 chooses evenly at K = 1,000", _lenet5_balanced,
          "no strategy's share more than 20 points above another's", _why_selection),
    Claim("random-k-chosen", "Both prototypes move to Random-K at K = 5,000", _random_k_chosen_at_5000,
          "ASCEND after its warm-up: share of Random-K above every other's", _why_selection),
    Claim("cifar10", "The same trend on CIFAR-10", _cifar10,
          "Top-K best at K 1e5; Random-K within 1 point at 2e6; larger K higher; ASCEND at least as good as "
          "each fixed strategy (3 seeds)"),
    Claim("weights", "ρ = 0.6, β = 0.4 are good", _weights,
          "at most 0.5 points lower than each other pair (3 seeds)", _why_selection),
    Claim("exploration", "c = 3 is good", _exploration,
          "at most 0.5 points lower than c = 1, 2, 4, 5 (3 seeds)", _why_selection),
    Claim("half-learns-by-top-k", "Top-K is the best for LeNet5-half at K = 1,000",
          _best_for(SMALL, "top-k"), "final accuracy of the prototype above the other strategies'"),
    Claim("lenet5-learns-by-random-k", "Random-K is the best for LeNet5 at K = 1,000",
          _best_for(LARGE, "random-k"), "final accuracy of the prototype above the other strategies'",
          _why_random),
    Claim("devices-10000", "On devices: ASCEND is best at K = 10,000", _best_at_10000,
          "as for every setting; the devices' times are not published", comparable=False),
    Claim("devices-5000", "On devices: ASCEND is faster early at K = 5,000", _early_at_5000,
          "sooner to 80 % than each fixed strategy; the devices' times are not published",
          comparable=False),
)  # fmt: skip
