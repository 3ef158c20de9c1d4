"""The source's claims, compared over kept rows: as they are judged, by other readings
of the same runs, and by what the source leaves open.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from orders import holm
from paper_rows import (
    FIXED,
    Rows,
    Runs,
    around,
    at_equal_time,
    end,
    evenness,
    first_s,
    lead,
    mean,
    more_even,
    over,
    points,
    powers,
    ratio,
    shift,
    spread_of,
    until,
)
from scipy import stats

from simfed.report.comparison import format_ratio
from simfed.report.statistics import Estimate, estimate_mean, estimate_median_time

POLICIES = (*FIXED, "exp3", "ascend")
NAMES = dict(
    zip(POLICIES, ("Top-K", "Random-K", "Periodic-K", "EXP3", "ASCEND"), strict=True)
)
LENETS: dict[str, Any] = {"dataset": "cifar10", "rounds": 600}
SETTINGS: dict[str, dict[str, Any]] = {
    **{f"K {k:,}": {"k": k} for k in (500, 1000, 5000)},
    **{f"alpha {alpha}": {"alpha": alpha} for alpha in (0.1, 1)},
    **{f"{up} Mbps": {"up_mbps": up} for up in (5, 500)},
}
WEIGHTS = [
    {"rho": r, "beta": b}
    for r, b in ((1, 0), (0.8, 0.2), (0.4, 0.6), (0.2, 0.8), (0, 1))
]
CONSTANTS = [{"c": c} for c in (1, 2, 4, 5)]
FACTORS = {
    "credit as-printed": "credit as printed",
    "f_n batch": "fₙ on batch",
    "clip none": "rewards unclipped",
    "safeguard off": "safeguard off",
    "compression × 1000": "compression in ms",
}
"""The other value of each of five open points, in a row's `variant` → in words."""
SAFEGUARDS = {
    "as taken": "",
    "residuals by half": "residuals damped",
    "residuals as sent": "residuals as-sent",
    "nobody forced": "forces none",
    "nobody forced, as sent": "residuals as-sent, forces none",
    "median of five": "reference running-median",
    "three in a row": "in a row 3",
    "off": "safeguard off",
}
SLOW_ROUND_MS = {
    1000: (6.068262463131931, 5.578262463131932, 5.808262463131931),
    5000: (12.341312315659657, 9.891312315659657, 11.041312315659657),
}
"""A round under each of `FIXED` where compression takes milliseconds: the same in every
round."""
HOLDS, UNDECIDED, FAILS, MISSING = "holds", "cannot be told", "fails", "short of seeds"
GIVEN = "given by the set-up"
MARGIN, EVEN = 0.005, 0.2
"""Of accuracy and of shares: what `at least as good` and `evenly` leave."""
TOP_FIRST, RANDOM_FIRST = (f"{NAMES[arm]}'s share above the next" for arm in FIXED[:2])
EVENLY = "least chosen strategy's share at most 20 points below the most chosen's"

# --- claims ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """One comparison: a number that is claimed to be above a bound."""

    what: str
    estimate: Estimate
    seeds: int
    needed: int = 5
    bound: float = 0.0
    unit: str = "points"
    freedom: int = 0
    given: bool = False
    """By the source's own tables and charges, whatever the runs do."""

    @property
    def state(self) -> str:
        if self.seeds < self.needed:
            return MISSING
        if self.given:
            return GIVEN
        if (
            not self.estimate.decides()
            or self.estimate.low <= self.bound < self.estimate.high
        ):
            return UNDECIDED
        return HOLDS if self.estimate.low > self.bound else FAILS

    @property
    def p_value(self) -> float:
        """Two-sided, of Student's t against the bound.

        NaN where it has no such interval.
        """
        e = self.estimate
        if (
            self.given
            or not e.is_exact
            or abs(e.coverage - 0.95) > 0.005
            or e.low == e.high
        ):
            return math.nan
        ends = (e.low, e.high, e.least, self.bound)
        low, high, middle, bound = map(math.log, ends) if self.unit == "×" else ends
        freedom = self.freedom or self.seeds - 1
        error = (high - low) / 2 / float(stats.t.ppf(0.975, freedom))
        return float(2 * stats.t.sf(abs(middle - bound) / error, freedom))

    @property
    def text(self) -> str:
        e = self.estimate
        if self.unit != "×":
            return points(e)
        ends = (e.least, e.low, e.high)
        if e.is_exact and all(0.98 < one < 1.02 for one in ends):
            least, low, high = (f"{100 * (one - 1):+.2g} %" for one in ends)
            return f"{least} [{low}, {high}]"
        return format_ratio(e, 0.95)


class Claim(NamedTuple):
    """A claim of the source and its comparisons."""

    text: str
    checks: list[Check]

    @property
    def verdict(self) -> str:
        states = {check.state for check in self.checks}
        if self.text.startswith("On devices"):  # whose times are not published
            return "not comparable"
        if not any(check.seeds for check in self.checks):
            return "not run"
        if states == {GIVEN}:
            return "follows from the set-up"
        for state in (MISSING, FAILS, UNDECIDED):
            if state in states:
                return UNDECIDED if state == MISSING else state
        return HOLDS


Checks = Iterator[Check]


def higher(
    what: str, a: Runs, b: Runs, needed: int = 5, bound: float = 0.0, of: Any = end
) -> Check:
    """Return whether an accuracy of `a` is above that of `b` by more than the bound."""
    return Check(
        what, *over(lambda one, other: of(one) - of(other), a, b), needed, bound
    )


def sooner(
    what: str, a: Runs, b: Runs, level: float, needed: int = 5, bound: float = 1.0
) -> Check:
    """Return whether `a` reached an accuracy over `bound` times sooner than `b`."""
    paired = ratio(a, b, level)
    return Check(what, paired.ratio, paired.seeds, needed, bound, "×")


def both(
    what: str, a: Runs, b: Runs, needed: int = 5, level: float = 0.9, last: int = 1000
) -> Checks:
    """Return whether `a` is higher than `b`, and sooner."""
    yield higher(f"{what}: higher after {last:,} rounds", a, b, needed)
    yield sooner(f"{what}: sooner to {level:.0%}", a, b, level, needed)


def equal(name: str, a: Runs, b: Runs, needed: int = 5) -> Check:
    """Return whether `a` is higher when the first of both ends."""
    what = f"{name}: higher at equal simulated time"
    return Check(what, *over(at_equal_time, a, b), needed)


def at_least_best(of: Any, name: str, needed: int = 5, level: float = 0.9) -> Checks:
    """Return whether ASCEND is at least as good as the fixed strategy that ends
    highest, and as the one that is first.
    """

    def time_s(arm: str) -> float:
        times = [first_s(run, level) for run in of(arm).values()]
        return estimate_median_time(
            [t for t, _ in times], [there for _, there in times]
        ).least

    best = max(FIXED, key=lambda arm: over(end, of(arm))[0].least)
    first = min(FIXED, key=time_s)
    what = (
        f"{name}: at most 0.5 points lower than the best fixed strategy ({NAMES[best]})"
    )
    yield higher(what, of("ascend"), of(best), needed, -MARGIN)
    what = f"{name}: at most 5 % later to {level:.0%} than the first ({NAMES[first]})"
    yield sooner(what, of("ascend"), of(first), level, needed, 1 / 1.05)


def chosen(
    what: str, of: Any, runs: Runs, needed: int = 5, bound: float = 0.0
) -> Check:
    """Return whether a number made of what a run's clients chose is above a bound."""
    return Check(what, *over(of, runs), needed, bound, "share")


def as_good(rows: Rows, grid: Sequence[dict[str, Any]], name: str) -> Checks:
    """Return whether ASCEND's own values lack at most the margin against others of a
    grid: over three seeds, with one variance for the grid.
    """
    runs = [rows.of("ascend", **values) for values in ({}, *grid)]
    seeds = sorted(set.intersection(*map(set, runs)))
    table = np.array([[end(one[s]) for s in seeds] for one in runs])
    deviation, freedom = spread_of(table)
    for values, row in zip(grid, table[1:], strict=True):
        less = float(table[0].mean() - row.mean())
        estimate = around(less, deviation * math.sqrt(2 / len(seeds)), freedom)
        what = f"at most 0.5 points lower than with {name.format(*values.values())}"
        what += " after 1,000 rounds"
        yield Check(what, estimate, len(seeds), 3, -MARGIN, freedom=freedom)


def trend(rows: Rows, models: Sequence[str]) -> Checks:
    """Return what the source finds on CIFAR-10, as two LeNets and two K can show it."""
    small, large = 1_000, 16_000
    low, high = (rows.at(**LENETS, k=k) for k in (small, large))
    last, at = LENETS["rounds"], f"K {small:,}"
    for arm in FIXED[1:]:
        yield from both(f"{at}, Top-K over {arm}", low("top-k"), low(arm), 3, 0.3, last)
    what = f"K {large:,}, Random-K at most 1 point lower than Top-K after {last} rounds"
    yield higher(what, high("random-k"), high("top-k"), 3, -0.01)
    for arm in POLICIES:
        what = f"{arm}, K {large:,} over {small:,}: higher"
        yield higher(f"{what} after {last} rounds", high(arm), low(arm), 3)
        yield equal(what.partition(":")[0], high(arm), low(arm), 3)
    yield from at_least_best(low, f"ASCEND, {at}", 3, 0.3)
    yield from at_least_best(high, f"ASCEND, K {large:,}", 3, 0.3)
    top, random = (partial(lead, arm=arm) for arm in FIXED[:2])
    yield chosen(
        f"{at}, {models[0]}: {TOP_FIRST}",
        partial(top, model="smaller"),
        low("ascend"),
        3,
    )
    even = partial(evenness, model="larger")
    yield chosen(f"{at}, {models[1]}: {EVENLY}", even, low("ascend"), 3, -EVEN)
    for model, curve in zip(models, ("smaller", "larger"), strict=True):
        of = partial(random, model=curve)
        yield chosen(f"K {large:,}, {model}: {RANDOM_FIRST}", of, high("ascend"), 3)


def lead_shrinks(
    rows: Rows, at: str, before: Any, after: Any, given: bool = False
) -> Check:
    """Return whether Top-K ends less far above Random-K than before."""
    runs = [rows.of(arm, **when) for when in (after, before) for arm in FIXED[:2]]
    gain = over(lambda a, b, c, d: end(b) - end(a) - end(d) + end(c), *runs)
    return Check(f"{at}: Top-K's lead shrinks", *gain, given=given)


def links(rows: Rows) -> Check:
    """Return how much Random-K's time over Top-K's is longer at 5 Mbps than at 500."""
    what = "500 Mbps against 5: Random-K's time to 80% shrinks by 1 % more than Top-K's"
    runs = [
        rows.of(arm, up_mbps=up) for up in (5, 500) for arm in ("random-k", "top-k")
    ]

    def gain(*four: Any) -> float:
        random, top, fast_random, fast_top = (
            math.log(first_s(r, 0.8)[0]) for r in four
        )
        return random - top - fast_random + fast_top

    e, seeds = over(gain, *runs)
    return Check(what, powers(e), seeds, 5, 1.01, "×", given=True)


def claims(rows: Rows) -> list[Claim]:
    """Return the source's claims, compared."""
    of, rule = rows.of, "higher after 1,000 rounds"
    ascend, top, random = (partial(of, arm) for arm in ("ascend", "top-k", "random-k"))
    models = {"LeNet5-half": "smaller", "LeNet5": "larger"}
    half, whole = models.values()
    steps = [
        (f"{arm}, K {more:,} over {less:,}", of(arm, k=more), of(arm, k=less))
        for arm in POLICIES
        for less, more in ((500, 1000), (1000, 5000))
    ]
    resnets = [Check("", estimate_mean([]), 0, 3)]
    # fmt: off
    each: dict[str, Iterator[Check] | list[Check]] = {
        "Top-K is the best fixed strategy at small K": (
            c for k in (500, 1000) for arm in FIXED[1:]
            for c in both(f"K {k:,}, over {arm}", top(k=k), of(arm, k=k))),
        "Random-K is competitive at large K": [
            higher(f"K 5,000, Random-K at most 1 point lower than Top-K {rule[7:]}",
                   random(k=5000), top(k=5000), bound=-0.01),
            sooner("K 5,000, at most 10 % later to "
                   "90%", random(k=5000), top(k=5000), 0.9,
                   bound=1 / 1.1),
            lead_shrinks(rows, "K 5,000 against 500", {"k": 500}, {"k": 5000})],
        "A larger K converges faster, per round": (
            higher(f"{name}: higher on average over equal rounds", a, b, of=mean)
            for name, a, b in steps),
        "A larger K converges faster, per second": (
            c for name, a, b in steps
            for c in (sooner(f"{name}: sooner to 90%", a, b, 0.9), equal(name, a, b))),
        "A larger K ends higher": (higher(f"{name}: "
                                          f"{rule}", a, b) for name, a, b in steps),
        "ASCEND is at least as good as the best fixed strategy in every setting": (
            c for name, at in SETTINGS.items()
            for c in at_least_best(rows.at(**at), name)),
        "ASCEND is ahead of EXP3": (
            c for name, at in SETTINGS.items()
            for c in both(name, ascend(**at), of("exp3", **at))),
        "Training is slower and lower at α = 0.1": (
            c for arm in POLICIES
            for c in both(f"{arm}, alpha 0.5 over 0.1", of(arm), of(arm, alpha=0.1))),
        "Top-K is ahead at 5 Mbps": (
            c for arm in FIXED[1:]
            for c in both(f"5 Mbps, over {arm}", top(up_mbps=5), of(arm, up_mbps=5))),
        "Random-K gains at 500 Mbps": [
            lead_shrinks(rows, ("500 Mbps against "
                               "5"), {"up_mbps": 5}, {"up_mbps": 500}, True),
            links(rows)],
        "LeNet5-half chooses Top-K at K = 1,000": [
            chosen(f"LeNet5-half: "
                   f"{TOP_FIRST}", partial(lead, model=half, arm="top-k"), ascend())],
        "LeNet5 chooses evenly at K = 1,000": [
            chosen(f"LeNet5: "
                   f"{EVENLY}", partial(evenness, model=whole), ascend(), bound=-EVEN)],
        "LeNet5 chooses more evenly than LeNet5-half at K = 1,000": [
            chosen("LeNet5's least and most chosen strategies are nearer to each other "
                   "than "
                   "LeNet5-half's", more_even, ascend())],
        "Both prototypes shift towards Random-K from K = 1,000 to 5,000": (
            Check(f"{name}: Random-K's share is higher at K = 5,000 than at 1,000",
                  *over(partial(shift, model=model), ascend(), ascend(k=5000)),
                  unit="share")
            for name, model in models.items()),
        "Both prototypes move to Random-K at K = 5,000": (
            chosen(f"{name}: "
                   f"{RANDOM_FIRST}", partial(lead, model=model, arm="random-k"),
                   ascend(k=5000))
            for name, model in models.items()),
        "The same trend on CIFAR-10": resnets,
        "The same trend on CIFAR-10 with LeNets": trend(rows, tuple(models)),
        "ρ = 0.6, β = 0.4 are good": as_good(rows, WEIGHTS, "({}, {})"),
        "c = 3 is good": as_good(rows, CONSTANTS, "c = {}"),
        "ρ = 0.6, β = 0.4 are good on CIFAR-10": resnets,
        "c = 3 is good on CIFAR-10": resnets,
        "Top-K is the best for LeNet5-half at K = 1,000": (
            higher(f"over {arm}: {rule}", top(), of(arm), of=partial(end, curve=half))
            for arm in ("random-k", "periodic-k")),
        "Random-K is the best for LeNet5 at K = 1,000": (
            higher(f"over {arm}: "
                   f"{rule}", random(), of(arm), of=partial(end, curve=whole))
            for arm in ("top-k", "periodic-k")),
        "On devices: ASCEND is best at K = 10,000":
            at_least_best(rows.at(k=10_000), "K 10,000"),
        "On devices: ASCEND is faster early at K = 5,000": (
            sooner(f"sooner to 80% than {arm}", ascend(k=5000), of(arm, k=5000), 0.8)
            for arm in FIXED),
    }
    # fmt: on
    return [Claim(text, list(checks)) for text, checks in each.items()]


def headline(claim: Claim) -> Check | None:
    """Return the comparison that speaks least for a claim: of the worst state, the
    lowest.

    Of a claim that is short of seeds: of those with the most.
    """
    most = max(check.seeds for check in claim.checks)
    some = [
        c for c in claim.checks if c.seeds and (c.seeds == most or c.state != MISSING)
    ]
    if any(check.state == MISSING for check in claim.checks):
        some = [check for check in some if check.seeds == most]
    for state in (FAILS, UNDECIDED, HOLDS, GIVEN, MISSING):
        if those := [check for check in some if check.state == state]:
            same = [check for check in those if check.unit == those[0].unit]
            return min(same, key=lambda check: check.estimate.least)
    return None


def left_by_holm(checks: Sequence[Check]) -> list[str]:
    """Return of each comparison whether its state stays where all are to be right
    together.
    """
    tested = [i for i, check in enumerate(checks) if not math.isnan(check.p_value)]
    stay = dict(zip(tested, holm([checks[i].p_value for i in tested]), strict=True))
    return [
        {True: "stays", False: "falls", None: ""}[stay.get(i)]
        if c.state in (HOLDS, FAILS)
        else ""
        for i, c in enumerate(checks)
    ]


# --- readings of the same runs --------------------------------------------------------


class Reading(NamedTuple):
    """A comparison as it comes out by one choice of axis, horizon and measure."""

    claim: str
    choices: dict[str, str]
    state: str


def readings(rows: Rows) -> list[Reading]:
    """Return claims of accuracy on either axis, at three horizons, by two measures."""
    of = rows.of
    pairs: list[tuple[str, dict[str, str], Runs, Runs, float]] = []
    for k, arm in itertools.product((500, 1000), FIXED[1:]):
        claim, at = "Top-K is the best fixed strategy at small K", _where(k, arm)
        pairs.append((claim, at, of("top-k", k=k), of(arm, k=k), 0.0))
    for arm, (less, more) in itertools.product(POLICIES, ((500, 1000), (1000, 5000))):
        at = {"K": f"{more:,} over {less:,}", "policy": NAMES[arm]}
        pairs.append(
            ("A larger K learns faster", at, of(arm, k=more), of(arm, k=less), 0.0)
        )
    for k, arm in itertools.product((500, 1000, 5000), (*FIXED, "exp3")):
        claim, at = "ASCEND is at least as good as each fixed strategy", _where(k, arm)
        bound = -MARGIN
        if arm == "exp3":
            claim, at, bound = "ASCEND is ahead of EXP3", {"K": f"{k:,}"}, 0.0
        pairs.append((claim, at, of("ascend", k=k), of(arm, k=k), bound))
    axes, horizons = ("per round", "per second"), (250, 500, 1000)
    ways = list(itertools.product(axes, horizons, ("the last", "the mean")))
    read = []
    for (claim, at, a, b, bound), (axis, horizon, measure) in itertools.product(
        pairs, ways
    ):
        check = Check(
            "", *over(partial(_read, axis, horizon, measure), a, b), bound=bound
        )
        choices = {
            **at,
            "axis": axis,
            "horizon": f"{horizon:,} rounds",
            "measure": measure,
        }
        read.append(Reading(claim, choices, check.state))
    return read


def _where(k: int, arm: str) -> dict[str, str]:
    return {"K": f"{k:,}", "over": NAMES[arm]}


def _read(axis: str, horizon: int, measure: str, a: Any, b: Any) -> float:
    """Return the accuracy of `a` less that of `b`."""
    early = a.round <= horizon
    if axis == "per round":
        gaps = a.accuracy[early] - b.accuracy[early]
        return float(gaps[-1] if measure == "the last" else gaps.mean())
    a_s, b_s = a.at_s[early], b.at_s[early]
    end_s = min(a_s[-1], b_s[-1])
    if measure == "the last":
        return until(a, end_s) - until(b, end_s)
    grid_s = np.linspace(max(a_s[0], b_s[0]), end_s, len(a_s))
    two = (
        np.interp(grid_s, at_s, run.accuracy[early])
        for at_s, run in ((a_s, a), (b_s, b))
    )
    return float((next(two) - next(two)).mean())


def held_by_choice(read: Sequence[Reading]) -> dict[str, dict[str, float]]:
    """Return choice → value → the share of readings that hold, what it hangs most on
    first.
    """
    table = pd.DataFrame([{**one.choices, "held": one.state == HOLDS} for one in read])
    choices = table.columns.drop("held")
    held = {name: table.groupby(name, sort=False)["held"].mean() for name in choices}
    ordered = sorted(held, key=lambda name: held[name].min() - held[name].max())
    return {name: held[name].to_dict() for name in ordered}


# --- open points ----------------------------------------------------------------------


class Question(NamedTuple):
    """A number of ASCEND's run and the fixed ones' of its seed, and what is claimed of
    it.
    """

    short: str
    claim: str
    unit: str
    bound: float
    of: Callable[[Any, dict[str, Any]], float]


def _soon(run: Any, fixed: dict[str, Any]) -> float:
    """Return the logarithm of how many times sooner to 90 % than the first fixed
    strategy; a run that does not get there counts as its whole length, which flatters
    it.
    """
    return math.log(
        min(first_s(one, 0.9)[0] for one in fixed.values()) / first_s(run, 0.9)[0]
    )


_BEST = "ASCEND ends at most 0.5 points below the best fixed strategy"
_MEAN = "ASCEND's mean accuracy over the run is at most 0.5 points below Top-K's"
_FIRST = "ASCEND is at most 5 % later to 90 % than the first fixed strategy"
# fmt: off
QUESTIONS = (
    Question("final accuracy − best fixed", _BEST, "points", -MARGIN,
             lambda run, fixed: end(run) - max(map(end, fixed.values()))),
    Question("mean accuracy − Top-K's", _MEAN, "points", -MARGIN,
             lambda run, fixed: mean(run) - mean(fixed["top-k"])),
    Question("sooner to 90 % than best fixed", _FIRST, "×", -math.log(1.05), _soon),
    Question("LeNet5-half: Top-K's lead", "LeNet5-half chooses Top-K", "share", 0.0,
             lambda run, _: lead(run, "smaller", "top-k")),
    Question("LeNet5: evenness", "LeNet5 chooses evenly", "share", -EVEN,
             lambda run, _: evenness(run, "larger")),
    Question("LeNet5 more even than half", ("LeNet5 chooses more evenly than "
                                           "LeNet5-half"),
             "share", 0.0, lambda run, _: more_even(run)),
)
# fmt: on


class Cell(NamedTuple):
    """A combination of open points: which are other than taken, and what comes out."""

    others: frozenset[str]
    estimate: Estimate
    state: str


class Effect(NamedTuple):
    """What taking the other value of an open point changes, the others met equally
    often.
    """

    factor: str
    estimate: Estimate
    stays: bool

    @property
    def clear(self) -> bool:
        return self.estimate.low > 0 or self.estimate.high < 0


class Answer(NamedTuple):
    """What a question comes to over the open points."""

    question: Question
    cells: list[Cell]
    effects: list[Effect]


def open_points(rows: Rows, k: int) -> list[Answer]:
    """Return each question's answer in every combination of open points that was
    played, and what each point changes by itself: one variance for all, over the seeds
    that all have.
    """
    played: dict[frozenset[str], Runs] = {}
    for variant in {run.variant for run in rows.all}:
        runs = rows.of("ascend", k=k, variant=variant)
        others = frozenset(filter(None, variant.split(", ")))
        if others <= set(FACTORS) and len(runs) > 2:
            played[others] = runs
    seeds = sorted(set.intersection(*map(set, played.values())))
    fixed = {arm: rows.of(arm, k=k) for arm in FIXED}
    slow = slowed(fixed, k)
    answers, p_values = [], []
    for question in QUESTIONS:
        values = []
        for others, runs in played.items():
            beside = slow if "compression × 1000" in others else fixed
            arms = {seed: {arm: beside[arm][seed] for arm in FIXED} for seed in runs}
            values.append(
                {seed: question.of(run, arms[seed]) for seed, run in runs.items()}
            )
        table = np.array([[of_seed[seed] for seed in seeds] for of_seed in values])
        deviation, freedom = spread_of(table)
        cells, changes = [], []
        for others, of_seed in zip(played, values, strict=True):
            middle, n = float(np.mean(list(of_seed.values()))), len(of_seed)
            estimate = around(middle, deviation / math.sqrt(n), freedom)
            cells.append(
                Cell(others, estimate, Check("", estimate, n, 3, question.bound).state)
            )
        for factor in FACTORS:
            there = np.array([factor in others for others in played])
            change = float(table[there].mean() - table[~there].mean())
            error = deviation * math.sqrt(
                1 / table[there].size + 1 / table[~there].size
            )
            p_values.append(2 * float(stats.t.sf(abs(change) / error, freedom)))
            changes.append((factor, around(change, error, freedom)))
        answers.append((question, cells, changes))
    stay = iter(holm(p_values))
    return [
        Answer(q, cells, [Effect(*one, next(stay)) for one in changes])
        for q, cells, changes in answers
    ]


def slowed(fixed: dict[str, Runs], k: int) -> dict[str, Runs]:
    """Return fixed strategies' runs where compression takes milliseconds: what they
    learn hangs on no clock.
    """
    runs: dict[str, Runs] = {}
    for arm, length_ms in zip(FIXED, SLOW_ROUND_MS[k], strict=True):
        s = length_ms / 1000
        runs[arm] = {
            seed: run._replace(at_s=s * run.round, simulated_s=s * run.rounds)
            for seed, run in fixed[arm].items()
        }
    return runs


# --- the safeguard --------------------------------------------------------------------


class Attempt(NamedTuple):
    """A round that the safeguard undid and the next, by the prototype that exceeded
    most.
    """

    losses: np.ndarray
    """Distillation losses of the rounds around the undone one, over their median."""
    again: bool
    """Whether the second attempt exceeds the threshold too."""
    times: float
    """Its loss over the undone round's."""


def attempts(run: Any, before: int = 10, after: int = 10) -> list[Attempt]:
    """Return every undone round of a run whose predecessor was accepted and that
    another follows.
    """
    if run.undone is None:
        return []
    losses, each = np.array([run.smaller_kd, run.larger_kd]), []
    padded = np.pad(
        losses.astype(float), ((0, 0), (before, after)), constant_values=np.nan
    )
    for at in run.undone - 1:
        if at < 1 or at + 1 == run.rounds or at in run.undone:
            continue
        # a loss may be 0, and stay 0
        with np.errstate(divide="ignore", invalid="ignore"):
            worst = np.argmax(
                np.nan_to_num(losses[:, at] / losses[:, at - 1], posinf=np.inf)
            )
        last, here, second = losses[worst, at - 1 : at + 2].astype(float)
        near = padded[worst, at : at + before + after + 1]
        usual = float(np.nanmedian(near)) or 1.0
        each.append(Attempt(near / usual, bool(second > 2 * last), second / here))
    return each
