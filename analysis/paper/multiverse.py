"""The claims in other universes: how much a verdict hangs on what was chosen.

A *universe* is one way to settle what the source leaves open, or one way to read a claim: on which
axis, how far into the runs, by which accuracy. Every comparison is made in each of them, seed by
seed as everywhere. What comes of it is the share of universes in which a claim holds, and the choice
on whose two or three values that share depends most.

Two families: *readings* of runs that the campaign has anyway, all combinations of axis, horizon and
measure; and *settings*, a quarter of all combinations of five open points (`cells`), or a half where
the quarter is folded over, each with runs of its own. With so few runs per setting, one variance is
taken for all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from campaign import STUDIES, setting_of
from claims import (
    AT_LEAST_POINTS,
    AT_LEAST_TIME,
    BALANCED,
    GIVEN,
    HOLDS,
    MISSING,
    state_of,
)
from results import FIXED, LARGE, NAMES, SMALL, Result, Results, Runs, shares
from scipy import stats

import simfed
from simfed.report.statistics import Estimate, estimate_mean, holm
from simfed.scenario import Scenario
from simfed.study import plan_study

Choices = dict[str, str]
"""Choice → the value taken in a universe, in words."""


@dataclass(frozen=True)
class Specification:
    """One comparison in one universe."""

    claim: str
    choices: Choices
    estimate: Estimate
    state: str
    seeds: int


# --- readings of the same runs -----------------------------------------------------------------

HORIZONS = (250, 500, 1000)
"""Rounds after which a run is read."""
_AXES, _READ_AS = ("per round", "per second"), ("the last", "the mean")


def readings(results: Results) -> Iterator[Specification]:
    """Claims about accuracy, of MNIST runs: on either axis, at three horizons, by two measures."""
    for claim, comparison, a, b, bound in _compared(results):
        seeds = sorted(set(a) & set(b))
        for axis, horizon, measure in itertools.product(_AXES, HORIZONS, _READ_AS):
            gaps = [_gap(a[s], b[s], axis, horizon, measure) for s in seeds]
            estimate = estimate_mean(gaps)
            state = state_of(estimate, bound, len(seeds), 5)
            where = {
                **comparison,
                "axis": axis,
                "horizon": f"{horizon:,} rounds",
                "measure": measure,
            }
            yield Specification(claim, where, estimate, state, len(seeds))


def _compared(results: Results) -> Iterator[tuple[str, Choices, Runs, Runs, float]]:
    """Claim, what is compared, its two arms and the least difference that is claimed."""
    for k, other in itertools.product((500, 1000), ("random-k", "periodic-k")):
        a, b = results.runs("top-k", k=k), results.runs(other, k=k)
        yield "Top-K is the best fixed strategy at small K", _at(k, over=NAMES[other]), a, b, 0.0
    for policy, (less, more) in itertools.product(
        (*FIXED, "exp3", "ascend"), ((500, 1000), (1000, 5000))
    ):
        a, b = results.runs(policy, k=more), results.runs(policy, k=less)
        what = {"K": f"{more:,} over {less:,}", "policy": NAMES[policy]}
        yield "A larger K learns faster", what, a, b, 0.0
    for k in (500, 1000, 5000):
        ascend = results.runs("ascend", k=k)
        for other in FIXED:
            b = results.runs(other, k=k)
            claim = "ASCEND is at least as good as each fixed strategy"
            yield claim, _at(k, over=NAMES[other]), ascend, b, -AT_LEAST_POINTS
        yield "ASCEND is ahead of EXP3", _at(k), ascend, results.runs("exp3", k=k), 0.0


def _at(k: int, **more: str) -> Choices:
    return {"K": f"{k:,}", **more}


def _gap(a: Result, b: Result, axis: str, horizon: int, measure: str) -> float:
    """Accuracy of `a` − that of `b`."""
    (rounds, a_s, a_curve), (_, b_s, b_curve) = (_until(run, horizon) for run in (a, b))
    if axis == "per round":
        assert len(a_curve) == len(b_curve), "runs that are evaluated in the same rounds"
        gaps = a_curve - b_curve
        return float(gaps[-1] if measure == "the last" else gaps.mean())
    end_s = min(a_s[-1], b_s[-1])
    if measure == "the last":
        return a.accuracy_by(end_s) - b.accuracy_by(end_s)
    grid_s = np.linspace(max(a_s[0], b_s[0]), end_s, len(rounds))
    return float((np.interp(grid_s, a_s, a_curve) - np.interp(grid_s, b_s, b_curve)).mean())


def _until(run: Result, horizon: int) -> tuple[Any, Any, Any]:
    """Rounds, times and accuracies of the evaluations up to a round."""
    rounds = np.array(run.facts["curve"]["round"])
    early = rounds <= horizon
    return rounds[early], np.array(run.at_s)[early], np.array(run.accuracies())[early]


# --- settings with runs of their own -----------------------------------------------------------


@dataclass(frozen=True)
class Factor:
    """An open point with two values."""

    name: str
    """In the setting of a compact result, where it is not as taken."""
    words: str
    taken: str
    other: str


FACTORS = (
    Factor("credit", "credit", "causal", "as printed"),
    Factor("f_n", "fₙ on", "probe", "batch"),
    Factor("clip", "rewards", "clipped", "unclipped"),
    Factor("usual safeguard", "safeguard", "on", "off"),
    Factor("compression ×", "compression in", "µs", "ms"),
)


FEWEST_SEEDS = 3
"""Of a setting, to say anything about it."""


@dataclass(frozen=True)
class Cell:
    """One combination of the open points: what of it a compact result's setting says, and in
    words."""

    universe: Mapping[str, Any]
    choices: Choices

    @property
    def slow_compression(self) -> bool:
        return "compression ×" in self.universe


@cache
def cells(folded: bool = False) -> tuple[Cell, ...]:
    """The combinations of `scenarios/paper/multiverse.yaml`; `folded`: and of
    `multiverse-folded.yaml`, which are those with every choice the other way."""
    distinct: dict[str, Cell] = {}
    for name in ("multiverse", "multiverse-folded")[: 1 + folded]:
        for run in plan_study(STUDIES / f"{name}.yaml").runs:
            assert isinstance(run.scenario, Scenario)
            universe = setting_of(run.scenario.model_dump(mode="json")).get("universe", {})
            words = {f.words: f.other if f.name in universe else f.taken for f in FACTORS}
            distinct.setdefault(str(words), Cell(universe, words))
    return tuple(distinct.values())


def is_folded(results: Results, k: int) -> bool:
    """Whether the folded settings have runs enough to count with the others."""
    return len(set.intersection(*(set(_runs_of(results, cell, k)) for cell in cells(True)))) >= (
        FEWEST_SEEDS
    )


@dataclass(frozen=True)
class Question:
    """A number of a setting, one per seed, and what is claimed of it."""

    short: str
    claim: str
    unit: str
    """`points`, `×` (a logarithm until it is shown) or `share`."""
    bound: float
    of: Callable[[Result, Mapping[str, Result]], float]
    """ASCEND's run and the fixed strategies' of the same seed → the number."""


def _end(run: Result, fixed: Mapping[str, Result]) -> float:
    return run.final() - max(one.final() for one in fixed.values())


def _mean(run: Result, fixed: Mapping[str, Result]) -> float:
    return float(np.mean(run.accuracies()) - np.mean(fixed["top-k"].accuracies()))


def _sooner(run: Result, fixed: Mapping[str, Result]) -> float:
    """The logarithm of how many times sooner to 90 %; a run that does not get there counts as its
    whole length, which flatters it."""
    first_s = min(one.first_at_s(0.9)[0] for one in fixed.values())
    return math.log(first_s / run.first_at_s(0.9)[0])


def _lead(run: Result, _: Mapping[str, Result]) -> float:
    share = shares(run, SMALL)
    return share["top-k"] - max(share["random-k"], share["periodic-k"])


def _evenness(run: Result, prototype: str) -> float:
    share = shares(run, prototype).values()
    return min(share) - max(share)


QUESTIONS = (
    Question("final accuracy − best fixed", "ASCEND ends at most 0.5 points below the best fixed strategy", "points",
             -AT_LEAST_POINTS, _end),
    Question("mean accuracy − Top-K's", "ASCEND's mean accuracy over the run is at most 0.5 points below Top-K's",
             "points", -AT_LEAST_POINTS, _mean),
    Question("sooner to 90 % than best fixed", "ASCEND is at most 5 % later to 90 % than the first fixed strategy", "×",
             -math.log(AT_LEAST_TIME), _sooner),
    Question("LeNet5-half: Top-K's lead", "LeNet5-half chooses Top-K", "share", 0.0, _lead),
    Question("LeNet5: evenness", "LeNet5 chooses evenly", "share", -BALANCED,
             lambda run, _: _evenness(run, LARGE)),
    Question("LeNet5 more even than half", "LeNet5 chooses more evenly than LeNet5-half", "share", 0.0,
             lambda run, _: _evenness(run, LARGE) - _evenness(run, SMALL)),
)  # fmt: skip


def settings(results: Results, k: int) -> list[tuple[Question, list[Specification], list[Effect]]]:
    """Every question in every cell that has runs, and what each open point changes by itself: of
    the seeds that all cells have. Cells are those of the folded design where it `is_folded`."""
    of_design = cells(is_folded(results, k))
    runs = [_runs_of(results, cell, k) for cell in of_design]
    seeds = sorted(set.intersection(*map(set, runs)))
    fixed = {slow: _fixed(results, k, slow) for slow in (False, True)}
    estimated = []
    for question in QUESTIONS:
        values = [
            {
                seed: question.of(run, fixed[cell.slow_compression][seed])
                for seed, run in of_cell.items()
                if seed in fixed[False]
            }
            for cell, of_cell in zip(of_design, runs, strict=True)
        ]
        table = np.array([[of_seed[s] for s in seeds] for of_seed in values])
        spread = _pooled(table)
        each = [
            _specification(question, cell, list(of_seed.values()), spread)
            for cell, of_seed in zip(of_design, values, strict=True)
            if of_seed
        ]
        estimated.append((question, each, effects(table, of_design)))
    stay = iter(holm([effect.p_value for *_, changed in estimated for effect in changed]))
    return [
        (question, each, [replace(effect, stays=next(stay)) for effect in changed])
        for question, each, changed in estimated
    ]


def _runs_of(results: Results, cell: Cell, k: int) -> Runs:
    universe: dict[str, Any] = {"universe": dict(cell.universe)} if cell.universe else {}
    return results.runs("ascend", k=k, **universe)


def _fixed(results: Results, k: int, slow_compression: bool) -> dict[int, dict[str, Result]]:
    """Seed → fixed strategy → its run; with the clock of compression a thousand times as long."""
    runs = {arm: results.runs(arm, k=k) for arm in FIXED}
    seeds = set.intersection(*(set(of_seed) for of_seed in runs.values()))
    stretch = {arm: _round_s(arm, k) if slow_compression else None for arm in FIXED}
    return {seed: {arm: _retimed(runs[arm][seed], stretch[arm]) for arm in FIXED} for seed in seeds}


def slow_compression(results: Results, k: int) -> dict[str, Runs]:
    """Fixed strategy → its runs, with compression a thousand times as long."""
    of_seed = _fixed(results, k, True)
    return {arm: {seed: runs[arm] for seed, runs in of_seed.items()} for arm in FIXED}


def _retimed(run: Result, round_s: float | None) -> Result:
    """What a fixed strategy learns does not hang on the clock: the same curve at other times."""
    if round_s is None:
        return run
    curve = run.facts["curve"]
    at_s = [round_s * number for number in curve["round"]]
    ends_s = round_s * run.facts["setting"]["rounds"]
    return Result(
        {**run.facts, "curve": {**curve, "at_s": at_s}, "simulated_s": ends_s}, run.measure
    )


@cache
def _round_s(arm: str, k: int) -> float:
    """A round's length under a fixed strategy where compression takes a thousand times as long: the
    same in every round, so that two of them on the clock alone tell it."""
    changes = {
        "rounds": 2,
        "compression.k": k,
        "policy": {"kind": "uniform", "strategy": arm},
        "clients[*].device": {"profile": "rtx3090-ryzen4800h", "scale": {"compression": 1000}},
    }
    scenario = simfed.load_scenario(STUDIES / "mnist.yaml", overrides=changes)
    run = simfed.run(scenario, time_only=True, progress=False)
    return float(run.summary["simulated_s"]) / 2


@dataclass(frozen=True)
class _Spread:
    """What is left of a table of cells × seeds once the levels of both are taken out."""

    deviation: float
    freedom: int


def _pooled(table: np.ndarray) -> _Spread | None:
    """One variance for all cells; None where there are fewer than two seeds."""
    n_cells, seeds = table.shape
    freedom = (n_cells - 1) * (seeds - 1)
    if freedom <= 0:
        return None
    left = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    return _Spread(math.sqrt(float((left**2).sum()) / freedom), freedom)


def _specification(
    question: Question, cell: Cell, values: Sequence[float], spread: _Spread | None
) -> Specification:
    mean = float(np.mean(values))
    if spread is None or len(values) < 2:
        estimate = Estimate(mean, mean, math.nan, math.nan, 0.0)
    else:
        half = float(stats.t.ppf(0.975, spread.freedom)) * spread.deviation / math.sqrt(len(values))
        estimate = Estimate(mean, mean, mean - half, mean + half, 0.95)
    state = state_of(estimate, question.bound, len(values), FEWEST_SEEDS)
    return Specification(question.claim, cell.choices, estimate, state, len(values))


@dataclass(frozen=True)
class Effect:
    """What taking the other value of an open point changes, the others met equally often."""

    factor: Factor
    estimate: Estimate
    p_value: float
    stays: bool = False
    """Clear also where all effects on all questions are to be right together (Holm)."""

    @property
    def clear(self) -> bool:
        return self.estimate.decides() and (self.estimate.low > 0 or self.estimate.high < 0)


def effects(table: np.ndarray, cells: Sequence[Cell]) -> list[Effect]:
    """Of each factor, from cells × seeds; none with a single seed.

    In a quarter of all combinations a factor's own effect cannot be told from how two others act
    together (`aliases`): a number here is the sum of both.
    """
    if (spread := _pooled(table)) is None:
        return []
    estimates = []
    for factor in FACTORS:
        other = np.array([cell.choices[factor.words] == factor.other for cell in cells])
        change = float(table[other].mean() - table[~other].mean())
        error = spread.deviation * math.sqrt(1 / table[other].size + 1 / table[~other].size)
        half = float(stats.t.ppf(0.975, spread.freedom)) * error
        p_value = 2 * float(stats.t.sf(abs(change) / error, spread.freedom)) if error else 1.0
        estimate = Estimate(change, change, change - half, change + half, 0.95)
        estimates.append(Effect(factor, estimate, p_value))
    return estimates


@cache
def aliases(folded: bool = False) -> dict[Factor, tuple[tuple[int, Factor, Factor], ...]]:
    """Of each factor, the pairs of others whose acting together changes a number in the same cells
    as the factor itself does (1) or just in the other cells (-1)."""
    one = cells(folded)
    sign = {
        factor: np.array([1 if cell.choices[factor.words] == factor.other else -1 for cell in one])
        for factor in FACTORS
    }
    return {
        factor: tuple(
            (int(np.sign(product)), first, second)
            for first, second in itertools.combinations(FACTORS, 2)
            if factor not in (first, second)
            and abs(product := int((sign[factor] * sign[first] * sign[second]).sum())) == len(one)
        )
        for factor in FACTORS
    }


def alias_text(pairs: Sequence[tuple[int, Factor, Factor]]) -> str:
    """Pairs that a factor cannot be told from, as a formula.

    >>> alias_text([(-1, FACTORS[0], FACTORS[1]), (1, FACTORS[0], FACTORS[2])])
    '−credit × fₙ = credit × rewards'
    """
    return " = ".join(
        f"{'−' if sign < 0 else ''}{_short(first)} × {_short(second)}"
        for sign, first, second in pairs
    )


def _short(factor: Factor) -> str:
    return factor.words.removesuffix(" on").removesuffix(" in")


@dataclass(frozen=True)
class Preferences:
    """What prototypes choose under one reading of the credit, over settings of the other points."""

    settings: int
    prefers: int
    """In how many LeNet5-half clearly chooses Top-K most."""
    even: int
    """In how many LeNet5 clearly chooses evenly."""
    both: int
    """In how many both."""


def preferences_by_credit(results: Results, k: int) -> dict[str, Preferences]:
    """Reading of the credit → what it makes prototypes choose; nothing where a setting lacks
    runs."""
    by_name = {question.short: each for question, each, _ in settings(results, k)}
    half, whole = by_name["LeNet5-half: Top-K's lead"], by_name["LeNet5: evenness"]
    of_design = cells(is_folded(results, k))
    if len(half) < len(of_design) or any(one.state == MISSING for one in (*half, *whole)):
        return {}
    preferences = {}
    credit = FACTORS[0]
    for value in (credit.taken, credit.other):
        at = [i for i, cell in enumerate(of_design) if cell.choices[credit.words] == value]
        prefers, even = ([each[i].state == HOLDS for i in at] for each in (half, whole))
        both = sum(a and b for a, b in zip(prefers, even, strict=True))
        preferences[value] = Preferences(len(at), sum(prefers), sum(even), both)
    return preferences


SAFEGUARDS: dict[str, dict[str, Any]] = {
    "as taken": {},
    "residuals by half": {"universe": {"residuals": {"kind": "damped", "factor": 0.5}}},
    "residuals as sent": {"universe": {"residuals": {"kind": "as-sent"}}},
    "nobody forced": {"universe": {"forces": "none"}},
    "nobody forced, as sent": {"universe": {"residuals": {"kind": "as-sent"}, "forces": "none"}},
    "median of five": {"universe": {"reference": {"kind": "running-median", "window": 5}}},
    "three in a row": {"universe": {"in a row": 3}},
    "off": {"universe": {"usual safeguard": False}},
}
"""The safeguard's variants of `scenarios/paper/mnist-safeguard.yaml` → what of them a compact
result's setting says."""


SETUPS: dict[str, dict[str, Any]] = {
    "as taken": {},
    "five local steps": {"universe": {"local steps": 5}},
    "distillation rate × 10": {"universe": {"distillation ×": 10}},
    "2,000 public images": {"public": 2000},
}
"""Those of `scenarios/paper/multiverse-setup.yaml` → what of them a compact result's setting says."""


# --- what it comes to --------------------------------------------------------------------------


def shares_by_choice(specifications: Sequence[Specification]) -> dict[str, dict[str, float]]:
    """Choice → value → the share of universes in which the claim holds; the choice first on whose
    values it hangs most."""
    judged = [one for one in specifications if one.state not in (MISSING, GIVEN)]
    names = list(dict.fromkeys(name for one in judged for name in one.choices))
    shares = {}
    for name in names:
        of_value: dict[str, list[bool]] = {}
        for one in judged:
            of_value.setdefault(one.choices[name], []).append(one.state == "holds")
        shares[name] = {value: float(np.mean(held)) for value, held in of_value.items()}
    return dict(
        sorted(shares.items(), key=lambda item: min(item[1].values()) - max(item[1].values()))
    )
