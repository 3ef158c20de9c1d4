"""The first time at which a run's measure reached a threshold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from simfed.ground.measure import ACCURACY, Measure

if TYPE_CHECKING:
    import pandas as pd

    from simfed.record.read import Run

__all__ = [
    "WHOLE_RUN",
    "RunOutcome",
    "common_thresholds",
    "first_amount",
    "mean_curve",
    "outcome_of",
]

WHOLE_RUN = math.nan
"""The threshold of a comparison of whole runs' simulated time, where nothing was learned. It finds
itself in a dictionary, as dictionaries ask for identity first."""


class RunOutcome(NamedTuple):
    """The times and the measure of a run that comparisons need."""

    times: Mapping[float, tuple[float, bool]]
    """Threshold → (simulated seconds, whether it was reached by then). A run that did not reach it
    has its end there: it took longer than the whole run."""
    final: float
    """Mean of clients; NaN where nothing was learned."""


def mean_curve(run: Run) -> pd.DataFrame:
    """The measure (mean of clients) wherever it was evaluated: `round, at_s, accuracy, loss,
    uplink_bytes, total_bytes`, with `measure` in place of `accuracy` where it is another."""
    from simfed.report import frames

    key = run.measure.key

    tidy = frames.curves(run)
    mean = tidy[tidy["prototype"] == frames.headline(tidy)] if len(tidy) else tidy
    columns = ["round", "at_s", key, "loss", "uplink_bytes", "total_bytes"]
    measured: pd.DataFrame = mean.dropna(subset=[key]).reindex(columns=columns)
    return measured


def outcome_of(run: Run, curve: pd.DataFrame, thresholds: Sequence[float]) -> RunOutcome:
    """The outcome of a run, whose `mean_curve` is `curve`, at these thresholds."""
    end_s = float(run.summary["simulated_s"])
    measure = run.measure
    times = {t: first_amount(curve, t, "at_s", end_s, measure) for t in thresholds}
    final = run.summary[measure.key].get("mean", {}).get("final")
    return RunOutcome(
        {**times, WHOLE_RUN: (end_s, True)}, math.nan if final is None else float(final)
    )


def first_amount(
    curve: pd.DataFrame, threshold: float, column: str, end: float, measure: Measure = ACCURACY
) -> tuple[float, bool]:
    """(value of a growing column where `curve` first reached `threshold`, True), or (`end`, False)
    where it never did."""
    there = curve.loc[measure.is_reached(curve[measure.key], threshold), column]
    return (float(there.min()), True) if len(there) else (end, False)


def common_thresholds(
    curves: Iterable[pd.Series], classes: int = 0, measure: Measure = ACCURACY
) -> list[float]:
    """The hardest round number that at least half of the runs reach, by the values of their curves;
    none where guessing among so many classes does as well.

    >>> import pandas as pd
    >>> runs = [pd.Series([0.1, value]) for value in (0.93, 0.88, 0.52)]
    >>> common_thresholds(runs), common_thresholds([pd.Series([0.11])], classes=10)
    ([0.85], [])
    """
    curves = list(curves)
    best = [curve.agg(measure.best) for curve in curves]
    shares = [*(n / 20 for n in range(1, 20)), 0.97, 0.98, 0.99]
    steps = measure.steps((value for curve in curves for value in curve), shares)
    reached = [
        step
        for step in steps
        if 2 * sum(bool(measure.is_reached(b, step)) for b in best) >= len(best) > 0
    ]
    return [step for step in reached[-1:] if measure.beats_guessing(step, classes)]
