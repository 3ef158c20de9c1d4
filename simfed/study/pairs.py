"""Runs held against each other without a study file: `simfed.compare(a, b)`."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING

from simfed.errors import InputError
from simfed.record.read import Run, open_run
from simfed.record.summary import chance_of
from simfed.study.comparison import WHOLE_RUN, comparison_row, sentence
from simfed.study.reach import common_thresholds, first_time, mean_curve
from simfed.study.statistics import Estimate, Paired, paired_difference, paired_times
from simfed.vocabulary import RELEVANT_RATIO

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Comparison", "compare"]

Side = Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]]


@dataclass(frozen=True, repr=False)
class Comparison:
    """What `compare` found. Printed, or in a notebook, it is its sentences."""

    names: tuple[str, ...]
    thresholds: tuple[float, ...]
    """Accuracies; empty where nothing was learned and whole runs are compared."""
    confidence: float
    found: tuple[tuple[float, str, str, Paired, Estimate], ...]
    """(threshold, a, b, times, final accuracies) of every pair."""

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per threshold and pair; the columns of a study's `comparisons` without its
        setting."""
        import pandas as pd

        frame: pd.DataFrame = pd.DataFrame([comparison_row(*found) for found in self.found])
        return frame

    @cached_property
    def sentences(self) -> list[str]:
        """One per threshold and pair, and what the final accuracies differ by."""
        said = []
        for threshold, a, b, paired, gap in self.found:
            said.append(sentence(a, b, threshold, [("", paired, gap)], self.confidence))
        for a, b, gap in dict.fromkeys((a, b, gap) for _, a, b, _, gap in self.found):
            if not math.isnan(gap.least):
                said.append(_gap_sentence(a, b, gap))
        return said

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in self.sentences) + "</ul>"


def compare(
    *sides: Side,
    names: Sequence[str] | None = None,
    thresholds: Sequence[float] | None = None,
    confidence: float = 0.95,
    relevant_ratio: float = RELEVANT_RATIO,
) -> Comparison:
    """Which of these learns sooner, in simulated time, and which ends better.

    A side is a run (or its directory), or several of them: the same under several seeds. Runs of
    two sides are paired by seed, and only seeds that both have count; one seed decides nothing, as
    nobody knows what another would change. Times to a threshold that was not reached are longer
    than the run: they count as that.

    names: what sides are called; the names of their scenarios if omitted. thresholds: accuracies
    whose first times are compared; if omitted the highest round number that half of the runs reach
    and guessing does not, and whole runs where there is none. relevant_ratio: what is sooner by
    less is no verdict.

    Raises: `InputError` for fewer than two sides, two runs of a side with one seed, no common seed.
    """
    if len(sides) < 2:
        raise InputError("two sides or more", where="compare", got=f"{len(sides)}")
    if not 0 < confidence < 1:
        raise InputError("a number between 0 and 1", where="confidence", got=confidence)
    if not relevant_ratio >= 1:
        raise InputError("a number of at least 1", where="relevant_ratio", got=relevant_ratio)
    for threshold in thresholds or ():
        if not 0 < threshold <= 1:
            raise InputError("an accuracy above 0, at most 1", where="thresholds", got=threshold)
    of_side = [_by_seed(side) for side in sides]
    called = _names(of_side, names)
    curves = {id(run): mean_curve(run) for runs in of_side for run in runs.values()}
    learned = all(len(curve) for curve in curves.values())
    if thresholds is None:
        best = (curve["accuracy"].max() for curve in curves.values())
        chance = chance_of(run for runs in of_side for run in runs.values())
        chosen = common_thresholds(best, chance) if learned else []
    elif not learned:
        raise InputError("runs that learned", where="thresholds", got="a time-only run")
    else:
        chosen = list(thresholds)
    found = []
    for (a, ours), (b, others) in itertools.combinations(zip(called, of_side, strict=True), 2):
        both = [(ours[seed], others[seed]) for seed in ours if seed in others]
        if not both:
            raise InputError(
                f"{a} and {b} with a seed in common", where="compare",
                got=f"{sorted(ours)} and {sorted(others)}",
            )  # fmt: skip
        first, second = [run for run, _ in both], [run for _, run in both]
        gap = paired_difference(
            [_final(run) for run in first], [_final(run) for run in second], confidence
        )
        for threshold in chosen or [WHOLE_RUN]:
            paired = paired_times(
                *_times(first, curves, threshold),
                *_times(second, curves, threshold),
                confidence,
                relevant_ratio,
            )
            found.append((threshold, a, b, paired, gap))
    return Comparison(tuple(called), tuple(chosen), confidence, tuple(found))


def _by_seed(side: Side) -> dict[int, Run]:
    given = side if isinstance(side, Sequence) and not isinstance(side, str) else [side]
    found: dict[int, Run] = {}
    for one in given:
        run = one if isinstance(one, Run) else open_run(one)
        seed = int(run.manifest["seed"])
        if seed in found:
            raise InputError(
                "one run of a side per seed", where="compare",
                got=f"two of {run.manifest.get('name')} with seed {seed}",
            )  # fmt: skip
        found[seed] = run
    if not found:
        raise InputError("a run or more for each side", where="compare", got="none")
    return found


def _names(sides: Sequence[dict[int, Run]], names: Sequence[str] | None) -> list[str]:
    if names is not None:
        if len(names) != len(sides) or len(set(names)) != len(sides):
            raise InputError("one name of its own for each side", where="names", got=list(names))
        return list(names)
    called = [str(next(iter(runs.values())).manifest.get("name")) for runs in sides]
    if len(set(called)) == len(called):
        return called
    return [
        f"{name} ({next(iter(runs.values())).path or number})"
        for number, (name, runs) in enumerate(zip(called, sides, strict=True), 1)
    ]


def _final(run: Run) -> float:
    final = run.summary["accuracy"].get("mean", {}).get("final")
    return float("nan") if final is None else float(final)


def _times(
    runs: Sequence[Run], curves: Mapping[int, pd.DataFrame], threshold: float
) -> tuple[list[float], list[bool]]:
    if math.isnan(threshold):
        return [float(run.summary["simulated_s"]) for run in runs], [True] * len(runs)
    found = [first_time(curves[id(run)], threshold, run) for run in runs]
    return [at_s for at_s, _ in found], [reached for _, reached in found]


def _gap_sentence(a: str, b: str, gap: Estimate) -> str:
    better, worse, points = (a, b, gap) if gap.least >= 0 else (b, a, _negative(gap))
    said = f"{better} ends {100 * points.least:.1f} points above {worse}"
    if gap.coverage == 0:
        return f"{said} in the one seed, which decides nothing."
    interval = f"[{100 * points.low:.1f}, {100 * points.high:.1f}]"
    if points.low <= 0:
        return f"No clear difference in final accuracy: {said} {interval}."
    return f"{said} {interval}."


def _negative(gap: Estimate) -> Estimate:
    return Estimate(-gap.most, -gap.least, -gap.high, -gap.low, gap.coverage)
