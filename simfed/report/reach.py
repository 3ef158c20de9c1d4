"""First instants at values of a measure, and the values worth asking about.

A *threshold* is a value of the measure; an *outcome* is what a run comes to at some of
them: when it first reached each, or that it ended before. Comparisons, studies and the
advice on settings read outcomes alone. Where nobody names thresholds they are chosen
among round numbers that the curves reach and guessing does not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from simfed.ground.measure import ACCURACY, Measure
from simfed.report import frames

if TYPE_CHECKING:
    from simfed.record.read import Run

WHOLE_RUN = math.nan
"""The threshold of a comparison of whole runs' simulated time, where nothing was
learned. It finds itself in a dictionary, as dictionaries ask for identity first."""

_SHARES = (*(n / 10 for n in range(1, 10)), 0.95, 0.97, 0.98, 0.99, 0.995)
_FINE_SHARES = (*(n / 20 for n in range(1, 20)), 0.97, 0.98, 0.99)
"""Round shares for a single number that has to do for several runs."""


class RunOutcome(NamedTuple):
    """The times and the measure of a run that comparisons need.

    Made by `find_outcome`; `comparison.compare_sides` reads it.
    """

    times: Mapping[float, tuple[float, bool]]
    """Threshold → (simulated seconds, whether it was reached by then). A run that did
    not reach it has its end there: it took longer than the whole run."""
    final: float
    """Mean of clients; NaN where nothing was learned."""


def build_mean_curve(run: Run) -> pd.DataFrame:
    """Return the measure (mean of clients) wherever it was evaluated.

    Returns:
        `round, at_s, accuracy, loss, uplink_bytes, total_bytes`, with `measure` in
        place of `accuracy` where it is another.
    """
    key = run.measure.key
    columns = ["round", "at_s", key, "loss", "uplink_bytes", "total_bytes"]
    mean = frames.select_headlines(frames.curves(run))
    return mean.dropna(subset=[key]).reindex(columns=columns)


def find_outcome(
    run: Run, curve: pd.DataFrame, thresholds: Sequence[float]
) -> RunOutcome:
    """Return a run's outcome at some thresholds, and its whole simulated time.

    Args:
        run: the finished run.
        curve: its `build_mean_curve`, or the rows of `frames.curves` that speak for it.
        thresholds: values of its measure.
    """
    end_s = float(run.summary["simulated_s"])
    measure = run.measure
    times = {t: find_first_amount(curve, t, "at_s", end_s, measure) for t in thresholds}
    final = run.summary[measure.key].get("mean", {}).get("final")
    return RunOutcome(
        {**times, WHOLE_RUN: (end_s, True)}, math.nan if final is None else float(final)
    )


def _find_first_reached(
    curve: pd.DataFrame, threshold: float, measure: Measure
) -> pd.DataFrame:
    """Return the row of the first round in which a curve reached a threshold.

    No row where it never did.
    """
    reached = curve[measure.is_reached(curve[measure.key], threshold)]
    return reached.sort_values("round").head(1)


def find_first_amount(
    curve: pd.DataFrame,
    threshold: float,
    column: str,
    end: float,
    measure: Measure = ACCURACY,
) -> tuple[float, bool]:
    """Return the amount at which a curve first reached a threshold, and True.

    Args:
        curve: `round`, the measure's column and `column`.
        threshold: a value of the measure.
        column: the growing amount that is asked for, such as `at_s`.
        end: the amount at the run's end.
        measure: the one whose column is looked at.

    Returns:
        (`end`, False) where the curve never reached the threshold.
    """
    first = _find_first_reached(curve, threshold, measure)
    return (float(first[column].iloc[0]), True) if len(first) else (end, False)


def list_threshold_rows(
    tidy: pd.DataFrame, wanted: Sequence[float], measure: Measure = ACCURACY
) -> pd.DataFrame:
    """Return the first instants at which thresholds of the measure were reached.

    Args:
        tidy: `frames.curves`, of one run or several.
        wanted: the thresholds.
        measure: the one whose values they are.

    Returns:
        `run, prototype, threshold, round, at_s, uplink_bytes, total_bytes`, a row per
        curve and threshold; one that was never reached has empty cells.
    """
    amounts = ["round", "at_s", "uplink_bytes", "total_bytes"]
    rows: list[dict[str, object]] = []
    for (run, prototype), group in tidy.groupby(["run", "prototype"], sort=False):
        for threshold in wanted:
            first = _find_first_reached(group, threshold, measure)[amounts]
            row = {"run": run, "prototype": prototype, "threshold": threshold}
            rows.append(row | next(iter(first.to_dict("records")), {}))
    return pd.DataFrame(rows, columns=["run", "prototype", "threshold", *amounts])


# --- thresholds that nobody named -----------------------------------------------------


def choose_thresholds(
    tidy: pd.DataFrame, most: int = 4, classes: int = 0, measure: Measure = ACCURACY
) -> list[float]:
    """Return thresholds worth asking "when?" about, easy to hard.

    They are the hardest round numbers that some run reached, and guessing does not.

    Args:
        tidy: has the measure's column.
        most: how many thresholds to return at most.
        classes: among which guessing chooses; 0: it is not known.
        measure: the one whose values are chosen.

    >>> choose_thresholds(pd.DataFrame({"accuracy": [0.3, 0.84, 0.93]}))
    [0.6, 0.7, 0.8, 0.9]
    """
    values = tidy[measure.key]
    return _list_reached_steps(
        values, values.agg(measure.best), classes, measure, _SHARES
    )[-most:]


def find_hardest_targets(
    tidy: pd.DataFrame, classes: int = 0, measure: Measure = ACCURACY
) -> list[float]:
    """Return the hardest round numbers that all runs, and that one run, reached.

    Only those that guessing does not reach: two, one or none, easy to hard.

    Args:
        tidy: `run` and the measure's column.
        classes: among which guessing chooses; 0: it is not known.
        measure: the one whose values are chosen.

    >>> runs = pd.DataFrame({"run": ["a", "a", "b"], "accuracy": [0.3, 0.84, 0.93]})
    >>> find_hardest_targets(runs)
    [0.8, 0.9]
    """
    best = tidy.groupby("run")[measure.key].agg(measure.best)
    hardest = (
        _list_reached_steps(tidy[measure.key], value, classes, measure, _SHARES)[-1:]
        for value in sorted((best.min(), best.max()), key=measure.compute_advantage)
    )
    return list(dict.fromkeys(itertools.chain.from_iterable(hardest)))


def choose_common_thresholds(
    curves: Iterable[pd.Series], classes: int = 0, measure: Measure = ACCURACY
) -> list[float]:
    """Return the hardest round number that at least half of the curves reach.

    Args:
        curves: values of the measure, one series per run.
        classes: among which guessing chooses; 0: it is not known.
        measure: the one whose value is chosen.

    Returns:
        One number; none without curves, and where guessing does as well.

    >>> runs = [pd.Series([0.1, value]) for value in (0.93, 0.88, 0.52)]
    >>> choose_common_thresholds(runs)
    [0.85]
    >>> choose_common_thresholds([pd.Series([0.11])], classes=10)
    []
    """
    curves = list(curves)
    if not curves:
        return []
    best = pd.Series([curve.agg(measure.best) for curve in curves], dtype=float)
    best = best.sort_values(ascending=measure.higher_is_better, na_position="first")
    upper_half = float(best.iloc[len(best) // 2])
    return _list_reached_steps(
        pd.concat(curves), upper_half, classes, measure, _FINE_SHARES
    )[-1:]


def _list_reached_steps(
    values: pd.Series,
    best: float,
    classes: int,
    measure: Measure,
    shares: Sequence[float],
) -> list[float]:
    """Return the round numbers that a run with this best value reached, easy to hard.

    Args:
        values: between whose least and most the numbers are chosen.
        best: of the run.
        classes: among which guessing chooses; 0: it is not known.
        measure: the one whose values they are.
        shares: the steps of measures that are shares.
    """
    return [
        step
        for step in measure.steps(values, shares)
        if measure.is_reached(best, step) and measure.beats_guessing(step, classes)
    ]
