"""Compact results of the campaign: found by their setting, compared seed by seed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from simfed.ground.errors import InputError
from simfed.report.statistics import (
    Estimate,
    Paired,
    compare_times,
    estimate_mean,
    estimate_median_time,
    estimate_paired_difference,
)

FORMAT = 1
FIXED = ("top-k", "random-k", "periodic-k")
LEARNING = ("exp3", "ascend")
POLICIES = (*FIXED, *LEARNING)
SMALL, LARGE = "lenet5-half", "lenet5"
NAMES = {
    "top-k": "Top-K",
    "random-k": "Random-K",
    "periodic-k": "Periodic-K",
    "exp3": "EXP3",
    "ascend": "ASCEND",
    SMALL: "LeNet5-half",
    LARGE: "LeNet5",
    "resnet18": "ResNet18",
    "wresnet40-2": "WResNet40-2",
}
MNIST = {"dataset": "mnist", "rounds": 1000, "public": 256, "k": 1000, "alpha": 0.5, "up_mbps": 50}
CIFAR10 = {**MNIST, "dataset": "cifar10", "rounds": 300, "k": 100_000}
CIFAR10_SMALL = {**MNIST, "dataset": "cifar10", "rounds": 600}
"""LeNets on CIFAR-10: what a processor can learn."""
REWARD = {"rho": 0.6, "beta": 0.4}
EXPLORATION = {"c": 3}
WEIGHTS = ((1, 0), (0.8, 0.2), (0.6, 0.4), (0.4, 0.6), (0.2, 0.8), (0, 1))
"""The source's grid of (ρ, β), its own choice `REWARD` among them; of c likewise."""
CONSTANTS = (1, 2, 3, 4, 5)
_TASKS = {"mnist": MNIST, "cifar10": CIFAR10, "cifar10-small": CIFAR10_SMALL}


@dataclass(frozen=True)
class Result:
    facts: dict[str, Any] = field(repr=False)
    measure: str = "last"
    """What counts as its accuracy: one of `MEASURES`."""

    def final(self, prototype: str | None = None) -> float:
        return MEASURES[self.measure][0](self.accuracies(prototype))

    @property
    def seed(self) -> int:
        return int(self.facts["seed"])

    @property
    def hash(self) -> str:
        return str(self.facts["hash"])

    @property
    def at_s(self) -> list[float]:
        """Simulated times of the evaluations."""
        return list(self.facts["curve"]["at_s"])

    def accuracies(self, prototype: str | None = None) -> list[float]:
        """At `at_s`; the mean over clients if no prototype is named (both have as many)."""
        curves = self.facts["curve"]["accuracy"]
        if prototype is not None:
            return list(curves[prototype])
        return [sum(values) / len(values) for values in zip(*curves.values(), strict=True)]

    def accuracy_by(self, at_s: float) -> float:
        """The mean over clients at the last evaluation not later than this."""
        done = sum(evaluated_s <= at_s for evaluated_s in self.at_s)
        return self.accuracies()[done - 1] if done else math.nan

    def first_at_s(self, threshold: float, prototype: str | None = None) -> tuple[float, bool]:
        """When the accuracy first was at least this, or else when the run ended; which of them.

        It is evaluated every ten rounds; between the last evaluation below and the first one that
        is not, it is taken to rise in a straight line.
        """
        before_s, before = 0.0, 0.0
        for at_s, accuracy in zip(self.at_s, self.accuracies(prototype), strict=True):
            if accuracy >= threshold:
                share = (threshold - before) / (accuracy - before) if before else 1.0
                return before_s + share * (at_s - before_s), True
            before_s, before = at_s, accuracy
        return float(self.facts["simulated_s"]), False


MEASURES: dict[str, tuple[Callable[[Sequence[float]], float], str]] = {
    "last": (lambda curve: curve[-1], "the last evaluation"),
    "last ten": (lambda curve: sum(curve[-10:]) / len(curve[-10:]), "the mean of the last ten"),
    "whole run": (lambda curve: sum(curve) / len(curve), "the mean of all evaluations of a run"),
}
"""What may count as a run's accuracy, from its evaluations; and in words."""

Runs = dict[int, Result]
"""Seed → run, of one setting."""


@dataclass(frozen=True)
class Setting:
    """Coordinates of runs in the evaluation."""

    task: str = "mnist"
    """`mnist`, `cifar10`, `cifar10-small`."""
    policy: str = "ascend"
    changes: tuple[tuple[str, Any], ...] = ()
    """What differs from the task's usual K, alpha, bandwidth, weights, exploration."""

    def coordinates(self) -> dict[str, Any]:
        learns = self.policy in LEARNING
        reward = REWARD if learns else dict.fromkeys(REWARD)
        explores = EXPLORATION if self.policy == "ascend" else dict.fromkeys(EXPLORATION)
        usual = {**_TASKS[self.task], **reward, **explores}
        return {**usual, "policy": self.policy, **dict(self.changes)}

    def key(self) -> str:
        """Equal for equal settings."""
        return _key(self.coordinates())


class Results:
    """The compact results of a folder: those of the campaign alone, where its hashes are given.

    A run of something else may have the same coordinates (they leave out, say, the learning rate)
    and must not stand in for the campaign's.
    """

    def __init__(
        self, folder: str | Path, planned: Collection[str] | None = None, measure: str = "last"
    ) -> None:
        self.all: list[Result] = []
        self.foreign: list[str] = []
        """Hashes of results that are not the campaign's: left out of everything."""
        if not Path(folder).is_dir():
            raise InputError("a folder of compact results", where=str(folder), got="none")
        for path in sorted(Path(folder).glob("*.json")):
            try:
                facts = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise InputError("a whole JSON file", where=str(path), got=str(error)) from None
            if facts.get("format") != FORMAT:
                raise InputError(f"a compact result of format {FORMAT}", where=str(path))
            result = Result(facts, measure)
            if planned is None or result.hash in planned:
                self.all.append(result)
            else:
                self.foreign.append(result.hash)
        self.folder = Path(folder)
        self._of: dict[str, Runs] = {}
        for result in self.all:
            runs = self._of.setdefault(_key(result.facts["setting"]), {})
            other = runs.setdefault(result.seed, result)
            if other is not result:
                raise InputError(
                    "one run per setting and seed",
                    where=str(folder),
                    got=f"{other.hash} and {result.hash}",
                )

    def measured_by(self, measure: str) -> Results:
        """The same runs, whose accuracy is taken by another measure."""
        return Results(self.folder, {result.hash for result in self.all}, measure)

    def runs(self, policy: str, task: str = "mnist", **changes: Any) -> Runs:
        """The runs of a setting, by seed; empty where there are none."""
        return self.of(Setting(task, policy, tuple(changes.items())))

    def of(self, setting: Setting) -> Runs:
        """The same, of a setting."""
        return self._of.get(setting.key(), {})


def _key(coordinates: dict[str, Any]) -> str:
    """Equal for equal settings, however a number was written."""
    return json.dumps(_in_floats(coordinates), sort_keys=True)


def _in_floats(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _in_floats(of_it) for name, of_it in value.items()}
    return float(value) if isinstance(value, (int, float)) else value


# --- numbers -----------------------------------------------------------------------------------


def only(runs: Runs, seeds: Collection[int]) -> Runs:
    """Those of these seeds."""
    return {seed: runs[seed] for seed in seeds}


def _common(*several: Runs) -> list[int]:
    return sorted(set.intersection(*(set(runs) for runs in several))) if several else []


def over_seeds(measure: Callable[..., float], *several: Runs) -> tuple[Estimate, int]:
    """The mean of a number that is made of the runs of one seed, and over how many seeds."""
    seeds = _common(*several)
    return estimate_mean([measure(*(r[s] for r in several)) for s in seeds]), len(seeds)


def over_settings(
    measure: Callable[[Result, Result], float], pairs: Sequence[tuple[Runs, Runs]]
) -> tuple[Estimate, int]:
    """The mean over settings of a number of two runs, with seeds as blocks: one value per seed that
    all settings have, since settings share their seeds' data, weights and batches."""
    seeds = _common(*(runs for pair in pairs for runs in pair))
    each = [float(np.mean([measure(a[s], b[s]) for a, b in pairs])) for s in seeds]
    return estimate_mean(each), len(seeds)


def final_accuracy(runs: Runs, prototype: str | None = None) -> tuple[Estimate, int]:
    """By the results' measure."""
    return over_seeds(lambda run: run.final(prototype), runs)


def accuracy_gap(a: Runs, b: Runs, prototype: str | None = None) -> tuple[Estimate, int]:
    """Final accuracy of `a` − that of `b`, seed by seed."""
    seeds = _common(a, b)
    last_a, last_b = ([runs[s].final(prototype) for s in seeds] for runs in (a, b))
    return estimate_paired_difference(last_a, last_b), len(seeds)


def mean_accuracy_gap(a: Runs, b: Runs) -> tuple[Estimate, int]:
    """Accuracy of `a` − that of `b`, the mean over all evaluations at equal rounds."""
    mean, _ = MEASURES["whole run"]
    return over_seeds(lambda one, other: mean(one.accuracies()) - mean(other.accuracies()), a, b)


def equal_time_gap(a: Runs, b: Runs) -> tuple[Estimate, int]:
    """Accuracy of `a` − that of `b` when the first of the two ended, seed by seed."""

    def gap(one: Result, other: Result) -> float:
        end_s = min(one.at_s[-1], other.at_s[-1])
        return one.accuracy_by(end_s) - other.accuracy_by(end_s)

    return over_seeds(gap, a, b)


def grid_gaps(good: Runs, others: Sequence[Runs]) -> tuple[list[Estimate], int, int]:
    """Final accuracy of `good` − that of each other setting of a grid, over the seeds that all
    have; how many these are; degrees of freedom.

    Three seeds say little about how much runs scatter, but all settings of a grid together say
    more: one variance is taken for all of them, that of what is left of final accuracy once each
    setting's and each seed's own level are taken out, with (settings − 1)(seeds − 1) degrees of
    freedom for Student's t. It takes for granted that settings scatter alike.
    """
    seeds = _common(good, *others)
    last = np.array([[runs[s].final() for s in seeds] for runs in (good, *others)])
    if len(seeds) < 2:
        return [estimate_paired_difference(last[0], row) for row in last[1:]], len(seeds), 0
    left = last - last.mean(axis=1, keepdims=True) - last.mean(axis=0) + last.mean()
    freedom = len(others) * (len(seeds) - 1)
    error = math.sqrt(2 * float((left**2).sum()) / freedom / len(seeds))
    half = float(stats.t.ppf(0.975, freedom)) * error
    gaps = [float(last[0].mean() - row.mean()) for row in last[1:]]
    estimates = [Estimate(gap, gap, gap - half, gap + half, 0.95) for gap in gaps]
    return estimates, len(seeds), freedom


def time_ratio(a: Runs, b: Runs, threshold: float, prototype: str | None = None) -> Paired:
    """How many times sooner `a` reached the threshold than `b`, seed by seed; may be censored."""
    seeds = _common(a, b)
    times = [[runs[s].first_at_s(threshold, prototype) for s in seeds] for runs in (a, b)]
    columns: list[Any] = []
    for of_arm in times:
        columns += [[at_s for at_s, _ in of_arm], [reached for _, reached in of_arm]]
    return compare_times(*columns)


def time_to(runs: Runs, threshold: float) -> tuple[Estimate, int]:
    """The median time to the threshold, and how many seeds got there."""
    times = [run.first_at_s(threshold) for run in runs.values()]
    reached = [there for _, there in times]
    return estimate_median_time([at_s for at_s, _ in times], reached), sum(reached)


def shares(run: Result, prototype: str) -> dict[str, float]:
    """Strategy → its share of the rounds in which a client of the prototype was free to choose."""
    counts = {
        arm: sum(n for why, n in chosen.items() if why not in ("warm-up", "forced"))
        for arm, chosen in run.facts["plays"][prototype].items()
    }
    total = sum(counts.values())
    return {arm: counts.get(arm, 0) / total if total else math.nan for arm in FIXED}
