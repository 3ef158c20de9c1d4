"""When a run's accuracy first reached what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from simfed.record.read import Run

__all__ = ["common_thresholds", "first_amount", "first_time", "mean_curve"]

_COLUMNS = ["round", "at_s", "accuracy", "loss", "uplink_bytes", "total_bytes"]


def mean_curve(run: Run) -> pd.DataFrame:
    """Accuracy (mean of clients) wherever it was evaluated: `round, at_s, accuracy, loss,
    uplink_bytes, total_bytes`."""
    from simfed.report import frames

    tidy = frames.curves(run)
    mean = tidy[tidy["prototype"] == frames.headline(tidy)] if len(tidy) else tidy
    measured: pd.DataFrame = mean.dropna(subset=["accuracy"]).reindex(columns=_COLUMNS)
    return measured


def first_time(curve: pd.DataFrame, threshold: float, run: Run) -> tuple[float, bool]:
    """(when `curve` first reached `threshold`, whether it did); else the time is the run's end: it
    took longer than the whole run."""
    return first_amount(curve, threshold, "at_s", float(run.summary["simulated_s"]))


def first_amount(
    curve: pd.DataFrame, threshold: float, column: str, end: float
) -> tuple[float, bool]:
    """The same of any column that only grows; `end` is what it came to in the end."""
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
