"""The one paired comparison of two sides, seed by seed.

Sides are a study's arms, two studies, runs at hand or on one page, a simulation and its
deployment. A side is its runs' results, by seed. Two sides are compared over the seeds
that both have, and the result is a row of a table or a sentence in plain words.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from simfed.ground.measure import ACCURACY, Measure
from simfed.ground.units import counted, format_duration
from simfed.ground.vocabulary import RELEVANT_RATIO
from simfed.report.reach import RunOutcome
from simfed.report.statistics import (
    Estimate,
    PairedTimes,
    compare_times,
    estimate_paired_difference,
)

_MOST_NAMED = 4
"""Settings that a sentence names one by one; the comparisons' table has them all."""


class ComparedPair(NamedTuple):
    """Two sides at one threshold; see `compare_sides`."""

    threshold: float
    """A value of the measure, or `WHOLE_RUN`."""
    a: str
    b: str
    paired: PairedTimes
    """Their times."""
    gap: Estimate
    """Final measure of a less that of b."""
    measure: Measure = ACCURACY

    def row(self) -> dict[str, object]:
        """Return a row of a table.

        `threshold, a, b, seeds` (that both have), `wins` (of a), `losses, ratio` (how
        many times sooner a was; NaN where censoring leaves it open), `ratio_at_least,
        ratio_at_most, ratio_low, ratio_high, coverage, p_value, verdict` (1: a before
        b, −1: b before a, 0: no clear and relevant difference), `accuracy_difference`
        (final, a − b) with `_low, _high`, or `measure_difference` of another measure.
        """
        paired, ratio = self.paired, self.paired.ratio
        difference = f"{self.measure.key}_difference"
        return {
            "threshold": self.threshold,
            "a": self.a,
            "b": self.b,
            "seeds": paired.seeds,
            "wins": paired.wins,
            "losses": paired.losses,
            "ratio": ratio.exact,
            "ratio_at_least": ratio.least,
            "ratio_at_most": ratio.most,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
            "coverage": ratio.coverage,
            "p_value": paired.p_value,
            "verdict": paired.verdict,
            difference: self.gap.least,
            f"{difference}_low": self.gap.low,
            f"{difference}_high": self.gap.high,
        }


def compare_sides(
    sides: Iterable[tuple[str, Mapping[int, RunOutcome]]],
    thresholds: Sequence[float],
    confidence: float = 0.95,
    relevant_ratio: float = RELEVANT_RATIO,
    baseline: str | None = None,
    *,
    measure: Measure = ACCURACY,
) -> Iterator[ComparedPair]:
    """Yield every two sides (or each with the baseline) at every threshold.

    Args:
        sides: (name, seed → outcome), each name once; seeds that only one of two sides
            has do not count.
        thresholds: values of the measure, or `WHOLE_RUN`, at which all outcomes have a
            time.
        confidence: that intervals are to have, between 0 and 1.
        relevant_ratio: how many times sooner a side must be for a verdict.
        baseline: the name of the side that every pair has; None: all pairs.
        measure: the one whose values the thresholds are.
    """
    for (a, of_a), (b, of_b) in itertools.combinations(sides, 2):
        if baseline not in (None, a, b):
            continue
        shared = [seed for seed in of_a if seed in of_b]
        first, second = [of_a[seed] for seed in shared], [of_b[seed] for seed in shared]
        gap = estimate_paired_difference(
            [outcome.final for outcome in first],
            [outcome.final for outcome in second],
            confidence,
        )
        for threshold in thresholds:
            times = (*_list_times(first, threshold), *_list_times(second, threshold))
            paired = compare_times(*times, confidence, relevant_ratio)
            yield ComparedPair(threshold, a, b, paired, gap, measure)


def _list_times(
    outcomes: Sequence[RunOutcome], threshold: float
) -> tuple[list[float], list[bool]]:
    """Return the outcomes' times at a threshold, and whether each reached it."""
    times = [outcome.times[threshold] for outcome in outcomes]
    return [at_s for at_s, _ in times], [reached for _, reached in times]


# --- words ----------------------------------------------------------------------------


def format_threshold(threshold: float, whole: str, measure: Measure = ACCURACY) -> str:
    """Return a threshold for people: `90 %`, `RMSE 2.5`.

    Args:
        threshold: a value of the measure, or `WHOLE_RUN`.
        whole: the words for `WHOLE_RUN`.
        measure: the one whose value it is.
    """
    return whole if math.isnan(threshold) else measure.goal(threshold)


def format_median(
    row: Mapping[str, float],
    confidence: float,
    amount: Callable[[float], str] = format_duration,
) -> str:
    """Return an arm's time, from a row of a study's `targets`: `12.3 s [11 s, 14 s]`.

    Where the interval covers less than `confidence`, what it covers stands beside it.

    Args:
        row: `seeds, reached, median, at_least, at_most, low, high, coverage`.
        confidence: that was asked for, between 0 and 1.
        amount: number → text.
    """
    if not row["seeds"]:
        return ""
    text = amount(row["at_least"])
    if math.isinf(row["at_most"]):
        text = f"> {text}"
    elif math.isnan(row["median"]):
        text += f" to {amount(row['at_most'])}"
    if row["coverage"] == 0 or not row["reached"]:
        return text
    high = "∞" if math.isinf(row["high"]) else amount(row["high"])
    text += f" [{amount(row['low'])}, {high}]"
    return text + _format_coverage(row["coverage"], confidence)


def format_estimate(
    row: Mapping[str, float | None],
    name: str,
    sign: str = "",
    measure: Measure = ACCURACY,
) -> str:
    """Return a mean with its interval, `0.812 [0.801, 0.823]`; empty for none.

    Args:
        row: has the columns `name`, `name_low` and `name_high`.
        name: of the mean's column.
        sign: `+` to show it at positive numbers, too.
        measure: shares have three decimals, other measures four digits.
    """
    digits = ".3f" if measure.is_share else ".4g"
    texts = []
    for column in (name, f"{name}_low", f"{name}_high"):
        value = row.get(column)
        texts.append(
            "" if value is None or math.isnan(value) else f"{value:{sign}{digits}}"
        )
    middle, low, high = texts
    return f"{middle} [{low}, {high}]" if middle and low else middle


def format_ratio(ratio: Estimate, confidence: float) -> str:
    """Return a ratio above 1 with its interval: `1.80× [1.50, 2.20]`.

    Or a bound of it: `at least 3.30× [2.10, ∞]`.

    Args:
        ratio: the typical value, as far as it is known.
        confidence: that was asked for; an interval that covers less says so.
    """
    text = f"{_format_number(ratio.least)}×"
    if not ratio.is_exact and math.isinf(ratio.most):
        text = f"at least {text}"
    elif not ratio.is_exact:
        least, most = _format_number(ratio.least), _format_number(ratio.most)
        text = f"between {least} and {most}×"
    if ratio.coverage == 0:
        return text
    text += f" [{_format_number(ratio.low)}, {_format_number(ratio.high)}]"
    return text + _format_coverage(ratio.coverage, confidence)


def _format_coverage(coverage: float, confidence: float) -> str:
    """Return what an interval covers, where that is less than was asked for."""
    return "" if coverage >= confidence else f" (covers {100 * coverage:.0f} %)"


def describe_sides(
    a: str,
    b: str,
    threshold: float,
    settings: Sequence[tuple[str, PairedTimes]],
    *,
    measure: Measure = ACCURACY,
) -> str:
    """Return two sides at one threshold in words, settings of one outcome together.

    Args:
        a: the name of one side.
        b: that of the other.
        threshold: a value of the measure, or `WHOLE_RUN`.
        settings: (name, the sides' times in it); an empty name is not told.
        measure: the one whose value the threshold is.

    Returns:
        One sentence: `a before b to 90 %: at wifi a 1.80× [1.50, 2.20] sooner in 5 of 5
        seeds.`
    """
    whole = "in simulated time"
    goal = whole if math.isnan(threshold) else f"to {measure.goal(threshold)}"
    outcomes: dict[str, list[tuple[str, PairedTimes]]] = {}
    for name, paired in settings:
        outcomes.setdefault(_name_outcome(a, b, paired), []).append((name, paired))
    clauses = []
    for outcome, alike in outcomes.items():
        told = f"in {len(alike)} of {len(settings)} settings"
        if len(alike) <= _MOST_NAMED:
            each = [
                f"{f'at {name} ' if name else ''}{_describe_times(a, b, paired)}"
                for name, paired in alike
            ]
            told = ", ".join(each)
        clauses.append(f"{outcome} {goal}: {told}")
    return "; ".join(clauses) + "."


def _name_outcome(a: str, b: str, paired: PairedTimes) -> str:
    """Return the verdict on two sides in words."""
    if paired.verdict:
        return f"{a} before {b}" if paired.verdict == 1 else f"{b} before {a}"
    if not paired.decided:
        return f"{a} against {b} undecided"
    kind = "relevant" if paired.clear else "clear"
    return f"no {kind} difference between {a} and {b}"


def _describe_times(a: str, b: str, paired: PairedTimes) -> str:
    """Return how many times sooner the sooner side was, and in how many seeds."""
    if not paired.seeds:
        return "no seed is finished for both"
    if not paired.decided:
        return "no seed tells which is sooner"
    side = paired.clear or (1 if paired.wins >= paired.losses else -1)
    ratio = paired.ratio if side == 1 else inverse(paired.ratio)
    first, wins = (a, paired.wins) if side == 1 else (b, paired.losses)
    # where nothing is known below, "at least 0.00×" would say nothing
    times = f"{format_ratio(ratio, paired.confidence)} " if ratio.least > 0 else ""
    text = f"{first} {times}sooner in {wins} of {counted(paired.seeds, 'seed')}"
    if paired.clear and not paired.verdict:
        return f"{text}, less than {paired.needed_ratio:g}×"
    few = not paired.ratio.decides(paired.confidence)
    return f"{text}, too few to decide" if few else text


def inverse(ratio: Estimate) -> Estimate:
    """Return the ratio of second to first, of one of the first to the second."""
    least, most, low, high = (
        1 / bound if bound else math.inf
        for bound in (ratio.most, ratio.least, ratio.high, ratio.low)
    )
    return Estimate(least, most, low, high, ratio.coverage)


def _format_number(value: float) -> str:
    """Return a ratio's number with three digits, or all before its point."""
    if math.isinf(value):
        return "∞"
    return f"{value:,.{2 if value < 9.995 else 1 if value < 99.5 else 0}f}"
