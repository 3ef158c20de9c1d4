"""The first time at which a run's accuracy reached a threshold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

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

_COLUMNS = ["round", "at_s", "accuracy", "loss", "uplink_bytes", "total_bytes"]


class RunOutcome(NamedTuple):
    """The times and the accuracy of a run that comparisons need."""

    times: Mapping[float, tuple[float, bool]]
    """Threshold → (simulated seconds, whether it was reached by then). A run that did not reach it
    has its end there: it took longer than the whole run."""
    final_accuracy: float
    """Mean of clients; NaN where nothing was learned."""


def mean_curve(run: Run) -> pd.DataFrame:
    """Accuracy (mean of clients) wherever it was evaluated: `round, at_s, accuracy, loss,
    uplink_bytes, total_bytes`."""
    from simfed.report import frames

    tidy = frames.curves(run)
    mean = tidy[tidy["prototype"] == frames.headline(tidy)] if len(tidy) else tidy
    measured: pd.DataFrame = mean.dropna(subset=["accuracy"]).reindex(columns=_COLUMNS)
    return measured


def outcome_of(run: Run, curve: pd.DataFrame, thresholds: Sequence[float]) -> RunOutcome:
    """The outcome of a run, whose `mean_curve` is `curve`, at these thresholds."""
    end_s = float(run.summary["simulated_s"])
    times = {t: first_amount(curve, t, "at_s", end_s) for t in thresholds}
    final = run.summary["accuracy"].get("mean", {}).get("final")
    return RunOutcome(
        {**times, WHOLE_RUN: (end_s, True)}, math.nan if final is None else float(final)
    )


def first_amount(
    curve: pd.DataFrame, threshold: float, column: str, end: float
) -> tuple[float, bool]:
    """(value of a growing column where `curve` first reached `threshold`, True), or (`end`, False)
    where it never did."""
    above = curve.loc[curve["accuracy"] >= threshold, column]
    return (float(above.min()), True) if len(above) else (end, False)


def common_thresholds(best: Iterable[float], chance: float = 0.0) -> list[float]:
    """The highest round number above `chance` that at least half of the runs reach, by their best
    accuracies; none where guessing does as well.

    >>> common_thresholds([0.93, 0.88, 0.52]), common_thresholds([0.11, 0.12], chance=0.1)
    ([0.85], [])
    """
    best = list(best)
    steps = [*(n / 20 for n in range(1, 20)), 0.97, 0.98, 0.99]
    reached = [step for step in steps if 2 * sum(b >= step for b in best) >= len(best) > 0]
    return [step for step in reached[-1:] if step > chance]
