"""Runs held against each other without a study file: `simfed.compare(a, b)`."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING

from simfed.ground.errors import InputError
from simfed.ground.measure import Measure, find_common_measure
from simfed.ground.vocabulary import RELEVANT_RATIO
from simfed.record.read import Run, open_run
from simfed.record.summary import count_classes
from simfed.report.comparison import ComparedPair, compare_sides, describe_sides
from simfed.report.reach import (
    WHOLE_RUN,
    build_mean_curve,
    choose_common_thresholds,
    find_outcome,
)
from simfed.report.statistics import Estimate

if TYPE_CHECKING:
    import pandas as pd

Side = Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]]


@dataclass(frozen=True, repr=False)
class Comparison:
    """Which of two or more sides learned sooner, and which ended better.

    Printed, it is one sentence for each pair of sides and threshold; `table` has the
    same as numbers. Times are simulated seconds. What several comparisons at once do to
    the confidence of each is not corrected for.

    `compare` makes it.
    """

    names: tuple[str, ...]
    thresholds: tuple[float, ...]
    """Values of the measure; empty where nothing was learned and whole runs are
    compared."""
    confidence: float
    pairs: tuple[ComparedPair, ...]
    """The pairs of sides at every threshold."""

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per threshold and pair.

        The columns of a study's `comparisons` without its setting.
        """
        import pandas as pd

        return pd.DataFrame([pair.row() for pair in self.pairs])

    @cached_property
    def sentences(self) -> list[str]:
        """One per threshold and pair, and what the final measures differ by."""
        texts = [
            describe_sides(
                pair.a,
                pair.b,
                pair.threshold,
                [("", pair.paired)],
                measure=pair.measure,
            )
            for pair in self.pairs
        ]
        gaps = dict.fromkeys(
            (pair.a, pair.b, pair.gap, pair.measure) for pair in self.pairs
        )
        return texts + [
            _describe_gap(*gap) for gap in gaps if not math.isnan(gap[2].least)
        ]

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{escape(text)}</li>" for text in self.sentences)
        return f"<ul>{items}</ul>"


def compare(
    *sides: Side,
    names: Sequence[str] | None = None,
    thresholds: Sequence[float] | None = None,
    confidence: float = 0.95,
    relevant_ratio: float = RELEVANT_RATIO,
) -> Comparison:
    """Return which of these learns sooner, in simulated time, and which ends better.

    A side is a run (or its directory), or several of them: the same under several
    seeds. Runs of two sides are paired by seed, and only seeds that both have count;
    one seed decides nothing, as nobody knows what another would change. Times to a
    threshold that was not reached are longer than the run: they count as that.

    Args:
        sides: two or more, each a run, the path of a run directory, or a list of these.
        names: what sides are called; the names of their scenarios if omitted.
        thresholds: values of the measure whose first times are compared; if omitted the
            hardest round number that half of the runs reach and guessing does not, and
            whole runs where there is none.
        confidence: of every interval, between 0 and 1.
        relevant_ratio: what is sooner by less than this many times is no verdict.

    Returns:
        The comparison: print it for its sentences, take `table` for its numbers.

    Raises:
        InputError: fewer than two sides, two runs of a side with one seed, no common
            seed, or runs of different measures.
    """
    if len(sides) < 2:
        raise InputError("two sides or more", where="compare", got=f"{len(sides)}")
    if not 0 < confidence < 1:
        raise InputError("a number between 0 and 1", where="confidence", got=confidence)
    if not relevant_ratio >= 1:
        raise InputError(
            "a number of at least 1", where="relevant_ratio", got=relevant_ratio
        )
    sides_by_seed = [_open_runs_by_seed(side) for side in sides]
    runs = [run for side in sides_by_seed for run in side.values()]
    measure = find_common_measure((run.measure for run in runs), where="compare")
    for threshold in thresholds or ():
        measure.check(threshold, where="thresholds")
    called = list(zip(_name_sides(sides_by_seed, names), sides_by_seed, strict=True))
    curves = {id(run): build_mean_curve(run) for run in runs}
    learned = all(len(curve) for curve in curves.values())
    if thresholds is None:
        values = [curve[measure.key] for curve in curves.values()]
        chosen = (
            choose_common_thresholds(values, count_classes(runs), measure)
            if learned
            else []
        )
    elif not learned:
        raise InputError("runs that learned", where="thresholds", got="a time-only run")
    else:
        chosen = list(thresholds)
    for (a, first), (b, second) in itertools.combinations(called, 2):
        if not first.keys() & second.keys():
            got = f"{sorted(first)} and {sorted(second)}"
            raise InputError(
                f"{a} and {b} with a seed in common", where="compare", got=got
            )
    outcomes = [
        (
            name,
            {
                seed: find_outcome(run, curves[id(run)], chosen)
                for seed, run in side.items()
            },
        )
        for name, side in called
    ]
    goals = chosen or [WHOLE_RUN]
    pairs = compare_sides(outcomes, goals, confidence, relevant_ratio, measure=measure)
    return Comparison(
        tuple(name for name, _ in called), tuple(chosen), confidence, tuple(pairs)
    )


def _open_runs_by_seed(side: Side) -> dict[int, Run]:
    """Return the runs of a side by their seeds.

    Raises:
        InputError: it has none, two with one seed, or one that is no finished run.
    """
    entries = (
        side if isinstance(side, Sequence) and not isinstance(side, str) else [side]
    )
    runs: dict[int, Run] = {}
    for entry in entries:
        run = entry if isinstance(entry, Run) else open_run(entry)
        seed = int(run.manifest["seed"])
        if seed in runs:
            got = f"two of {run.manifest.get('name')} with seed {seed}"
            raise InputError("one run of a side per seed", where="compare", got=got)
        runs[seed] = run
    if not runs:
        problem = "a side has no run"
        raise InputError(
            "a run or more for each side", where="compare", problem=problem
        )
    return runs


def _name_sides(
    sides: Sequence[dict[int, Run]], names: Sequence[str] | None
) -> list[str]:
    """Return the names of sides, those of their scenarios unless others are given.

    Scenarios of one name have their folders, or numbers, behind it.

    Raises:
        InputError: `names` are not as many as sides, or not all different.
    """
    if names is not None:
        if len(names) != len(sides) or len(set(names)) != len(sides):
            raise InputError(
                "one name of its own for each side", where="names", got=list(names)
            )
        return list(names)
    firsts = [next(iter(side.values())) for side in sides]
    scenarios = [str(run.manifest.get("name")) for run in firsts]
    if len(set(scenarios)) == len(scenarios):
        return scenarios
    return [
        f"{name} ({run.path or number})"
        for number, (name, run) in enumerate(zip(scenarios, firsts, strict=True), 1)
    ]


def _describe_gap(a: str, b: str, gap: Estimate, measure: Measure) -> str:
    """Return a sentence on the final measure of two sides.

    Args:
        a: name of the first.
        b: name of the second.
        gap: the first's measure less the second's.
        measure: theirs.
    """
    gap = gap if measure.higher_is_better else _turn_round(gap)
    better, worse, ahead = (a, b, gap) if gap.least >= 0 else (b, a, _turn_round(gap))
    text = f"{better} ends {measure.gap(ahead.least)} {measure.ahead} {worse}"
    text += "" if measure.is_share else f" in {measure.name}"
    if gap.coverage == 0:
        return f"{text} in the one seed, which decides nothing."
    low, high = (
        measure.gap(end).removesuffix(" points") for end in (ahead.low, ahead.high)
    )
    if ahead.low <= 0:
        return f"No clear difference in final {measure.name}: {text} [{low}, {high}]."
    return f"{text} [{low}, {high}]."


def _turn_round(gap: Estimate) -> Estimate:
    """Return the estimate of a difference the other way round."""
    return Estimate(-gap.most, -gap.least, -gap.high, -gap.low, gap.coverage)
