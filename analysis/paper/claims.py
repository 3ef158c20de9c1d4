"""The source's claims, each as checks with an interval, and what they come to.

A check compares runs seed by seed and *holds* if its whole interval is on the claimed side,
*fails* if all of it is on the other side, and *cannot be told* between; with fewer seeds
than asked for it is *short of seeds*. `verdict_of` makes the verdict of these, the same way for every claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import reasons as why
from results import (
    CONSTANTS,
    EXPLORATION,
    FIXED,
    LARGE,
    NAMES,
    POLICIES,
    REWARD,
    SMALL,
    WEIGHTS,
    Results,
    Runs,
    accuracy_gap,
    equal_time_gap,
    final_accuracy,
    grid_gaps,
    mean_accuracy_gap,
    over_seeds,
    shares,
    time_ratio,
    time_to,
)
from scipy import stats

from simfed.report.statistics import Estimate, compare_times, holm

HOLDS, FAILS, UNDECIDED, MISSING = "holds", "fails", "cannot be told", "short of seeds"
GIVEN = "given by the set-up"
"""The source's own tables and charges fix what is compared, whatever the runs do."""
BY_SET_UP, NOT_RUN, NOT_COMPARABLE = "follows from the set-up", "not run", "not comparable"
VERDICTS = (HOLDS, UNDECIDED, FAILS)
UNJUDGED = (BY_SET_UP, NOT_RUN, NOT_COMPARABLE)
AT_LEAST_POINTS, COMPETITIVE_POINTS = 0.005, 0.01
"""Final accuracy that `at least as good` and `competitive` may lack."""
AT_LEAST_TIME, COMPETITIVE_TIME = 1.05, 1.1
"""How many times longer they may take."""
LEAST_GAIN = 1.01
"""A ratio of times that has no scatter at all is above 1 or not by rounding; a gain is at least 1 %."""
BALANCED = 0.2
"""Balanced: no strategy's share is further than this above another's."""
_AFTER = {
    "mnist": "after 1,000 rounds",
    "cifar10": "after 300 rounds",
    "cifar10-small": "after 600 rounds",
}


@dataclass(frozen=True)
class Check:
    what: str
    state: str
    estimate: Estimate
    unit: str
    """`points`, `×` (times sooner), `share`."""
    seeds: int
    needed: int = 5
    bound: float = 0.0
    """What the number is claimed to be above."""
    freedom: int | None = None
    """Degrees of freedom of Student's t, where not one less than seeds."""

    @property
    def p_value(self) -> float:
        """Two-sided, of Student's t against the bound, from the interval; of ratios by their
        logarithms. NaN where there is no such interval."""
        e = self.estimate
        students = e.is_exact and 0.945 < e.coverage < 0.955 and e.low < e.high
        if self.state == GIVEN or not students:
            return math.nan
        ends = [e.low, e.high, e.least, self.bound]
        low, high, middle, bound = [math.log(x) for x in ends] if self.unit == "×" else ends
        freedom = self.freedom or self.seeds - 1
        error = (high - low) / 2 / float(stats.t.ppf(0.975, freedom))
        return float(2 * stats.t.sf(abs(middle - bound) / error, freedom))


def survives_holm(checks: Sequence[Check], level: float = 0.05) -> list[bool | None]:
    """Which of a family's comparisons would still be decided if all of them were to be right
    together (Holm 1979); None where one has no p-value."""
    survives: list[bool | None] = [None] * len(checks)
    tested = [i for i, check in enumerate(checks) if not math.isnan(check.p_value)]
    for i, stays in zip(tested, holm([checks[i].p_value for i in tested], level), strict=True):
        survives[i] = stays
    return survives


@dataclass(frozen=True)
class Claim:
    """A claim of the source."""

    name: str
    text: str
    checks: Callable[[Results], Iterator[Check]]
    rule: str
    """How the checks read the claim."""
    reason: Callable[[Results], str] = lambda _: ""
    """Why it may not hold, where the runs tell; shown where a comparison contradicts it."""
    note: Callable[[Results], str] = lambda _: ""
    """What else the runs say about how much the verdict means; always shown."""
    comparable: bool = True


@dataclass(frozen=True)
class Judged:
    claim: Claim
    verdict: str
    checks: tuple[Check, ...]


def judge(results: Results) -> list[Judged]:
    """Every claim with its checks and verdict."""
    judged = []
    for claim in CLAIMS:
        checks = tuple(claim.checks(results))
        verdict = verdict_of(checks) if claim.comparable else NOT_COMPARABLE
        judged.append(Judged(claim, verdict, checks))
    return judged


def verdict_of(checks: Sequence[Check]) -> str:
    """A claim holds where all of its comparisons do, and fails where one fails; of one that is
    short of seeds nothing can be told."""
    states = {check.state for check in checks}
    if not any(check.seeds for check in checks):
        return NOT_RUN
    if MISSING in states:
        return UNDECIDED
    if not (states := states - {GIVEN}):
        return BY_SET_UP
    if FAILS in states:
        return FAILS
    return HOLDS if states == {HOLDS} else UNDECIDED


def headline(judged: Judged) -> Check | None:
    """The comparison that speaks least for the claim: of the worst state, the lowest.

    Of a claim that is short of seeds: of those with the most.
    """
    order = (FAILS, UNDECIDED, HOLDS, GIVEN, MISSING)
    checks = [check for check in judged.checks if check.seeds]
    if not checks:
        return None
    if any(check.state == MISSING for check in judged.checks):
        most = max(check.seeds for check in checks)
        checks = [check for check in checks if check.seeds == most]
    state = min((check.state for check in checks), key=order.index)
    those = [check for check in checks if check.state == state]
    return min(
        (c for c in those if c.unit == those[0].unit), key=lambda c: _number(c.estimate.least)
    )


# --- checks ------------------------------------------------------------------------------------


def state_of(estimate: Estimate, bound: float, seeds: int, needed: int) -> str:
    """Whether what is estimated is above the bound."""
    if seeds < needed:
        return MISSING
    if not estimate.decides():
        return UNDECIDED
    if estimate.low > bound:
        return HOLDS
    return FAILS if estimate.high <= bound else UNDECIDED


def higher(
    what: str, a: Runs, b: Runs, needed: int, *, by: float = 0.0, prototype: str | None = None
) -> Check:
    """The final accuracy of `a` is more than `by` above that of `b` (a negative `by`: a margin)."""
    gap, seeds = accuracy_gap(a, b, prototype)
    return Check(what, state_of(gap, by, seeds, needed), gap, "points", seeds, needed, by)


def higher_per_round(what: str, a: Runs, b: Runs, needed: int) -> Check:
    """The accuracy of `a` is above that of `b` at equal rounds, on average over the run."""
    gap, seeds = mean_accuracy_gap(a, b)
    return Check(what, state_of(gap, 0, seeds, needed), gap, "points", seeds, needed)


def higher_at_equal_time(what: str, a: Runs, b: Runs, needed: int) -> Check:
    """The accuracy of `a` is above that of `b` when the first of them has ended."""
    gap, seeds = equal_time_gap(a, b)
    return Check(what, state_of(gap, 0, seeds, needed), gap, "points", seeds, needed)


def as_high_in_grid(
    what: Callable[[Any], str], good: Runs, others: dict[Any, Runs]
) -> Iterator[Check]:
    """The final accuracy of `good` lacks at most the margin, over 3 seeds; one variance for the grid."""
    gaps, seeds, freedom = grid_gaps(good, list(others.values()))
    for value, gap in zip(others, gaps, strict=True):
        state = state_of(gap, -AT_LEAST_POINTS, seeds, 3)
        yield Check(what(value), state, gap, "points", seeds, 3, -AT_LEAST_POINTS, freedom)


def sooner(
    what: str, a: Runs, b: Runs, threshold: float, needed: int, *, times: float = 1.0
) -> Check:
    """`a` reached the threshold more than `times` sooner than `b`."""
    paired = time_ratio(a, b, threshold)
    state = state_of(paired.ratio, times, paired.seeds, needed)
    return Check(what, state, paired.ratio, "×", paired.seeds, needed, times)


def share_check(
    what: str,
    measure: Callable[[dict[str, float]], float],
    runs: Runs,
    prototype: str,
    bound: float,
    needed: int,
) -> Check:
    """A number made of the shares of strategies is above a bound."""
    estimate, seeds = over_seeds(lambda run: measure(shares(run, prototype)), runs)
    state = state_of(estimate, bound, seeds, needed)
    return Check(what, state, estimate, "share", seeds, needed, bound)


def _number(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _later(estimate: Estimate) -> float:
    return math.inf if math.isnan(estimate.least) else estimate.least


def _evenness(share: dict[str, float]) -> float:
    return min(share.values()) - max(share.values())


def _lead_of(arm: str) -> Callable[[dict[str, float]], float]:
    return lambda share: share[arm] - max(v for other, v in share.items() if other != arm)


def _both(
    name: str, a: Runs, b: Runs, threshold: float, needed: int, task: str = "mnist"
) -> Iterator[Check]:
    """Higher and sooner."""
    yield higher(f"{name}: higher {_AFTER[task]}", a, b, needed)
    yield sooner(f"{name}: sooner to {threshold:.0%}", a, b, threshold, needed)


def _at_least_best_fixed(
    results: Results, name: str, threshold: float, needed: int, task: str = "mnist", **setting: Any
) -> Iterator[Check]:
    setting["task"] = task
    ascend = results.runs("ascend", **setting)
    fixed = {arm: results.runs(arm, **setting) for arm in FIXED}
    best = max(fixed, key=lambda arm: _number(final_accuracy(fixed[arm])[0].least))
    what = f"{name}: at most 0.5 points lower than the best fixed strategy ({NAMES[best]})"
    lower = higher(what, ascend, fixed[best], needed, by=-AT_LEAST_POINTS)
    first = min(fixed, key=lambda arm: _later(time_to(fixed[arm], threshold)[0]))
    what = f"{name}: at most 5 % later to {threshold:.0%} than the first ({NAMES[first]})"
    later = sooner(what, ascend, fixed[first], threshold, needed, times=1 / AT_LEAST_TIME)
    if not all(fixed.values()):  # which of them is best is not known yet
        seeds = min(len(runs) for runs in fixed.values())
        lower, later = (replace(c, state=MISSING, seeds=seeds) for c in (lower, later))
    yield from (lower, later)


# --- the claims --------------------------------------------------------------------------------


def _top_k_at_small_k(results: Results) -> Iterator[Check]:
    for k in (500, 1000):
        for other in ("random-k", "periodic-k"):
            a, b = results.runs("top-k", k=k), results.runs(other, k=k)
            yield from _both(f"K {k:,}, over {other}", a, b, 0.9, 5)


def _random_k_at_large_k(results: Results) -> Iterator[Check]:
    a, b = results.runs("random-k", k=5000), results.runs("top-k", k=5000)
    what = f"K 5,000, Random-K at most 1 point lower than Top-K {_AFTER['mnist']}"
    yield higher(what, a, b, 5, by=-COMPETITIVE_POINTS)
    yield sooner("K 5,000, at most 10 % later to 90%", a, b, 0.9, 5, times=1 / COMPETITIVE_TIME)
    yield _catching_up(results, "K 5,000 against 500: Top-K's lead shrinks", "k", 500, 5000)


def _catching_up(results: Results, what: str, key: str, before: float, after: float) -> Check:
    """Top-K's lead in final accuracy over Random-K is smaller after than before."""
    four = [
        results.runs(arm, "mnist", **{key: v})
        for v in (before, after)
        for arm in ("top-k", "random-k")
    ]

    def shrunk(*runs: Any) -> float:
        last = [run.final() for run in runs]
        return float((last[0] - last[1]) - (last[2] - last[3]))

    estimate, seeds = over_seeds(shrunk, *four)
    return Check(what, state_of(estimate, 0, seeds, 5), estimate, "points", seeds, 5)


def _larger_and_smaller(results: Results) -> Iterator[tuple[str, Runs, Runs]]:
    for policy in POLICIES:
        for less, more in ((500, 1000), (1000, 5000)):
            name = f"{policy}, K {more:,} over {less:,}"
            yield name, results.runs(policy, k=more), results.runs(policy, k=less)


def _larger_k_per_round(results: Results) -> Iterator[Check]:
    for name, a, b in _larger_and_smaller(results):
        yield higher_per_round(f"{name}: higher on average over equal rounds", a, b, 5)


def _larger_k_per_second(results: Results) -> Iterator[Check]:
    for name, a, b in _larger_and_smaller(results):
        yield sooner(f"{name}: sooner to 90%", a, b, 0.9, 5)
        yield higher_at_equal_time(f"{name}: higher at equal simulated time", a, b, 5)


def _larger_k_ends_higher(results: Results) -> Iterator[Check]:
    for name, a, b in _larger_and_smaller(results):
        yield higher(f"{name}: higher {_AFTER['mnist']}", a, b, 5)


SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("K 500", {"k": 500}),
    ("K 1,000", {}),
    ("K 5,000", {"k": 5000}),
    ("alpha 0.1", {"alpha": 0.1}),
    ("alpha 1", {"alpha": 1}),
    ("5 Mbps", {"up_mbps": 5}),
    ("500 Mbps", {"up_mbps": 500}),
)


def _ascend_everywhere(results: Results) -> Iterator[Check]:
    for name, setting in SETTINGS:
        yield from _at_least_best_fixed(results, name, 0.9, 5, **setting)


def _before_exp3(results: Results) -> Iterator[Check]:
    for name, setting in SETTINGS:
        a, b = results.runs("ascend", **setting), results.runs("exp3", **setting)
        yield from _both(name, a, b, 0.9, 5)


def _skewed_labels(results: Results) -> Iterator[Check]:
    for policy in POLICIES:
        a, b = results.runs(policy), results.runs(policy, alpha=0.1)
        yield from _both(f"{policy}, alpha 0.5 over 0.1", a, b, 0.9, 5)


def _slow_links(results: Results) -> Iterator[Check]:
    for other in ("random-k", "periodic-k"):
        a, b = results.runs("top-k", up_mbps=5), results.runs(other, up_mbps=5)
        yield from _both(f"5 Mbps, over {other}", a, b, 0.9, 5)


def _fast_links(results: Results) -> Iterator[Check]:
    """Where nothing that is learned hangs on the clock, accuracies are the same at every bandwidth
    and times differ by what the source's tables say of compression: no run could tell otherwise."""
    given = bool(why.same_at_every_bandwidth(results))
    for check in _gains(results):
        yield replace(check, state=GIVEN) if given and check.state != MISSING else check


def _gains(results: Results) -> Iterator[Check]:
    yield _catching_up(results, "500 Mbps against 5: Top-K's lead shrinks", "up_mbps", 5, 500)
    (slow_r, slow_t), (fast_r, fast_t) = (
        [results.runs(arm, up_mbps=up) for arm in ("random-k", "top-k")] for up in (5, 500)
    )
    seeds = sorted(set(slow_r) & set(slow_t) & set(fast_r) & set(fast_t))
    # (Random-K's time / Top-K's) at 5 Mbps over the same at 500: a ratio of two products of times,
    # each of which is longer than its value where one of its times is
    columns: list[Any] = []
    for one, other in ((slow_t, fast_r), (slow_r, fast_t)):
        times = [(one[s].first_at_s(0.8), other[s].first_at_s(0.8)) for s in seeds]
        columns.append([a_s * b_s for (a_s, _), (b_s, _) in times])
        columns.append([a and b for (_, a), (_, b) in times])
    gain = compare_times(*columns).ratio
    what = "500 Mbps against 5: Random-K's time to 80% shrinks by 1 % more than Top-K's"
    state = state_of(gain, LEAST_GAIN, len(seeds), 5)
    yield Check(what, state, gain, "×", len(seeds), bound=LEAST_GAIN)


def _half_chooses_top_k(results: Results) -> Iterator[Check]:
    runs = results.runs("ascend")
    what = "LeNet5-half: Top-K's share above the next"
    yield share_check(what, _lead_of("top-k"), runs, SMALL, 0, 5)


def _lenet5_balanced(results: Results) -> Iterator[Check]:
    what = "LeNet5: least chosen strategy's share at most 20 points below the most chosen's"
    yield share_check(what, _evenness, results.runs("ascend"), LARGE, -BALANCED, 5)


def _more_even(results: Results) -> Iterator[Check]:
    runs = results.runs("ascend")

    def apart(run: Any) -> float:
        return _evenness(shares(run, LARGE)) - _evenness(shares(run, SMALL))

    estimate, seeds = over_seeds(apart, runs)
    what = "LeNet5's least and most chosen strategies are nearer to each other than LeNet5-half's"
    yield Check(what, state_of(estimate, 0, seeds, 5), estimate, "share", seeds)


def _shift_to_random_k(results: Results) -> Iterator[Check]:
    small, large = results.runs("ascend"), results.runs("ascend", k=5000)
    for prototype, name in ((SMALL, "LeNet5-half"), (LARGE, "LeNet5")):

        def shifted(before: Any, after: Any, prototype: str = prototype) -> float:
            return shares(after, prototype)["random-k"] - shares(before, prototype)["random-k"]

        estimate, seeds = over_seeds(shifted, small, large)
        what = f"{name}: Random-K's share is higher at K = 5,000 than at 1,000"
        yield Check(what, state_of(estimate, 0, seeds, 5), estimate, "share", seeds)


def _random_k_chosen_at_5000(results: Results) -> Iterator[Check]:
    runs = results.runs("ascend", k=5000)
    for prototype, name in ((SMALL, "LeNet5-half"), (LARGE, "LeNet5")):
        what = f"{name}: Random-K's share above the next"
        yield share_check(what, _lead_of("random-k"), runs, prototype, 0, 5)


@dataclass(frozen=True)
class _Trend:
    """What the source finds on CIFAR-10, as two models and two K can show it."""

    task: str
    small: int
    """The K of which Top-K makes most."""
    large: int
    to: float
    """The accuracy to which times are compared."""
    prefers: str
    """The smaller model, which chooses Top-K at the small K."""
    balanced: str
    """The larger one, which chooses evenly there."""

    @property
    def settings(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        """The two K, in words and as a setting."""
        return tuple((f"K {k:,}", {"task": self.task, "k": k}) for k in (self.small, self.large))

    def checks(self, results: Results) -> Iterator[Check]:
        def runs(policy: str, k: int) -> Runs:
            return results.runs(policy, self.task, k=k)

        small, large = self.small, self.large
        for other in ("random-k", "periodic-k"):
            yield from _both(f"K {small:,}, Top-K over {other}", runs("top-k", small), runs(other, small), self.to, 3, self.task)  # fmt: skip
        a, b = runs("random-k", large), runs("top-k", large)
        after = _AFTER[self.task]
        what = f"K {large:,}, Random-K at most 1 point lower than Top-K {after}"
        yield higher(what, a, b, 3, by=-COMPETITIVE_POINTS)
        for policy in POLICIES:
            a, b = runs(policy, large), runs(policy, small)
            name = f"{policy}, K {large:,} over {small:,}: higher"
            yield higher(f"{name} {after}", a, b, 3)
            yield higher_at_equal_time(f"{name} at equal simulated time", a, b, 3)
        for k in (small, large):
            yield from _at_least_best_fixed(results, f"ASCEND, K {k:,}", self.to, 3, self.task, k=k)
        at_small, at_large = runs("ascend", small), runs("ascend", large)
        what = f"K {small:,}, {NAMES[self.prefers]}: Top-K's share above the next"
        yield share_check(what, _lead_of("top-k"), at_small, self.prefers, 0, 3)
        what = f"K {small:,}, {NAMES[self.balanced]}: least chosen strategy's share at most 20 points below the most chosen's"
        yield share_check(what, _evenness, at_small, self.balanced, -BALANCED, 3)
        for prototype in (self.prefers, self.balanced):
            what = f"K {large:,}, {NAMES[prototype]}: Random-K's share above the next"
            yield share_check(what, _lead_of("random-k"), at_large, prototype, 0, 3)


_CIFAR10 = _Trend("cifar10", 100_000, 2_000_000, 0.3, "wresnet40-2", "resnet18")
_CIFAR10_SMALL = _Trend("cifar10-small", 1_000, 16_000, 0.3, SMALL, LARGE)


def _weight_runs(results: Results, task: str = "mnist") -> dict[Any, Runs]:
    others = [pair for pair in WEIGHTS if pair != tuple(REWARD.values())]
    return {(r, b): results.runs("ascend", task, rho=r, beta=b) for r, b in others}


def _weights(results: Results, task: str = "mnist") -> Iterator[Check]:
    yield from as_high_in_grid(
        lambda pair: (
            f"at most 0.5 points lower than with ({pair[0]:g}, {pair[1]:g}) {_AFTER[task]}"
        ),
        results.runs("ascend", task),
        _weight_runs(results, task),
    )


def _exploration_runs(results: Results, task: str = "mnist") -> dict[Any, Runs]:
    return {c: results.runs("ascend", task, c=c) for c in CONSTANTS if c != EXPLORATION["c"]}


def _exploration(results: Results, task: str = "mnist") -> Iterator[Check]:
    yield from as_high_in_grid(
        lambda c: f"at most 0.5 points lower than with c = {c} {_AFTER[task]}",
        results.runs("ascend", task),
        _exploration_runs(results, task),
    )


def _best_for(prototype: str, best: str) -> Callable[[Results], Iterator[Check]]:
    def checks(results: Results) -> Iterator[Check]:
        for other in FIXED:
            if other != best:
                a, b = results.runs(best), results.runs(other)
                what = f"over {other}: higher {_AFTER['mnist']}"
                yield higher(what, a, b, 5, prototype=prototype)

    return checks


def _best_at_10000(results: Results) -> Iterator[Check]:
    yield from _at_least_best_fixed(results, "K 10,000", 0.9, 5, k=10_000)


def _early_at_5000(results: Results) -> Iterator[Check]:
    ascend = results.runs("ascend", k=5000)
    for other in FIXED:
        yield sooner(f"sooner to 80% than {other}", ascend, results.runs(other, k=5000), 0.8, 5)


CLAIMS: tuple[Claim, ...] = (
    Claim("top-k-at-small-k", "Top-K is the best fixed strategy at small K", _top_k_at_small_k,
          "higher final accuracy and sooner to 90 %, K 500 and 1,000"),
    Claim("random-k-at-large-k", "Random-K is competitive at large K", _random_k_at_large_k,
          "K 5,000: at most 1 point lower and 10 % later to 90 % than Top-K, whose lead has shrunk since K 500",
          note=lambda r: why.narrow_settings(r, COMPETITIVE_POINTS, [("K 5,000", {"k": 5000})])),
    Claim("larger-k-per-round", "A larger K converges faster, per round", _larger_k_per_round,
          "every policy, 1,000 over 500 and 5,000 over 1,000: higher on average over equal rounds"),
    Claim("larger-k-per-second", "A larger K converges faster, per second", _larger_k_per_second,
          "the same pairs: sooner to 90 %, and higher at equal simulated time (when the first of both ends)",
          why.why_longer_rounds),
    Claim("larger-k-ends-higher", "A larger K ends higher", _larger_k_ends_higher,
          "the same pairs: higher final accuracy"),
    Claim("ascend-everywhere", "ASCEND is at least as good as the best fixed strategy in every setting",
          _ascend_everywhere, "on MNIST, K, α and bandwidth (CIFAR-10 is a claim of its own): at most 0.5 points "
          "lower than the fixed strategy that ends highest, and 5 % later to 90 % than the one that is first there",
          why.what_adapting_costs,
          lambda r: why.narrow_settings(r, AT_LEAST_POINTS, SETTINGS)),
    Claim("before-exp3", "ASCEND is ahead of EXP3", _before_exp3,
          "in the same settings: higher final accuracy, and sooner to 90 %"),
    Claim("skewed-labels", "Training is slower and lower at α = 0.1", _skewed_labels,
          "every policy, α 0.5 over 0.1: higher, and sooner to 90 %"),
    Claim("slow-links", "Top-K is ahead at 5 Mbps", _slow_links,
          "higher, and sooner to 90 %, than the other fixed strategies",
          note=lambda r: why.same_at_every_bandwidth(r, 5, 50)),
    Claim("fast-links", "Random-K gains at 500 Mbps", _fast_links,
          "beside Top-K, from 5 to 500 Mbps: final accuracy, and time to 80 % by at least 1 %",
          why.same_at_every_bandwidth),
    Claim("half-chooses-top-k", "LeNet5-half chooses Top-K at K = 1,000", _half_chooses_top_k,
          "ASCEND after its warm-up: share of Top-K above every other's",
          lambda r: why.steady_preference(r, [SMALL])),
    Claim("lenet5-balanced", "LeNet5 chooses evenly at K = 1,000", _lenet5_balanced,
          "no strategy's share more than 20 points above another's",
          lambda r: why.steady_preference(r, [LARGE])),
    Claim("lenet5-more-even", "LeNet5 chooses more evenly than LeNet5-half at K = 1,000", _more_even,
          "the distance between a prototype's most and least chosen strategies"),
    Claim("shift-to-random-k", "Both prototypes shift towards Random-K from K = 1,000 to 5,000", _shift_to_random_k,
          "Random-K's share of free choices after the warm-up"),
    Claim("random-k-chosen", "Both prototypes move to Random-K at K = 5,000", _random_k_chosen_at_5000,
          "ASCEND after its warm-up: share of Random-K above every other's",
          lambda r: why.steady_preference(r, [SMALL, LARGE], k=5000)),
    Claim("cifar10", "The same trend on CIFAR-10", _CIFAR10.checks,
          "Top-K best at K 1e5; Random-K within 1 point at 2e6; larger K higher, after equal rounds and at equal "
          "simulated time; ASCEND at least as good as each fixed strategy; WResNet40-2 choosing Top-K and ResNet18 "
          "evenly at 1e5, both Random-K at 2e6 (3 seeds)",
          note=lambda r: why.at_chance(r, _CIFAR10.settings)
          or why.narrow_settings(r, AT_LEAST_POINTS, _CIFAR10.settings)),
    Claim("cifar10-small", "The same trend on CIFAR-10 with LeNets", _CIFAR10_SMALL.checks,
          "the same at the same shares of all entries (K 1,000 and 16,000), in place of the source's models, which "
          "need a GPU (3 seeds)",
          note=lambda r: why.narrow_settings(r, AT_LEAST_POINTS, _CIFAR10_SMALL.settings)),
    Claim("weights", "ρ = 0.6, β = 0.4 are good", _weights,
          "at most 0.5 points lower than each other pair (3 seeds, one variance for the grid)",
          note=lambda r: why.grid_spread(r.runs("ascend"), list(_weight_runs(r).values()), AT_LEAST_POINTS)),
    Claim("exploration", "c = 3 is good", _exploration,
          "at most 0.5 points lower than c = 1, 2, 4, 5 (3 seeds, one variance for the grid)",
          note=lambda r: why.grid_spread(r.runs("ascend"), list(_exploration_runs(r).values()), AT_LEAST_POINTS)),
    Claim("weights-cifar10", "ρ = 0.6, β = 0.4 are good on CIFAR-10", lambda r: _weights(r, "cifar10"),
          "as on MNIST, K 1e5"),
    Claim("exploration-cifar10", "c = 3 is good on CIFAR-10", lambda r: _exploration(r, "cifar10"),
          "as on MNIST, K 1e5"),
    Claim("half-learns-by-top-k", "Top-K is the best for LeNet5-half at K = 1,000",
          _best_for(SMALL, "top-k"), "final accuracy of the prototype above the other strategies'"),
    Claim("lenet5-learns-by-random-k", "Random-K is the best for LeNet5 at K = 1,000",
          _best_for(LARGE, "random-k"), "final accuracy of the prototype above the other strategies'"),
    Claim("devices-10000", "On devices: ASCEND is best at K = 10,000", _best_at_10000,
          "as for every setting; the devices' times are not published", comparable=False),
    Claim("devices-5000", "On devices: ASCEND is faster early at K = 5,000", _early_at_5000,
          "sooner to 80 % than each fixed strategy; the devices' times are not published",
          comparable=False),
)  # fmt: skip
