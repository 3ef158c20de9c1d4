"""Arms over simulated time: the mean over seeds, and the band in which it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from simfed.ground.measure import Measure
from simfed.report.statistics import estimate_measure

if TYPE_CHECKING:
    from simfed.study.outcomes import StudyRuns

_MOST_POINTS = 200


def compute_bands(study: StudyRuns) -> pd.DataFrame:
    """Return the measure over simulated time by setting and arm.

    Args:
        study: whose finished runs count.

    Returns:
        The columns of `StudyResult.bands`.
    """
    parts = []
    for setting, arm, entries in study.groups():
        curves = [study.curve_of(entry["address"]) for entry in entries]
        band = _compute_band(curves, study.confidence, study.measure)
        band.insert(0, "setting", study.describe_setting(setting))
        band.insert(1, "arm", arm)
        parts.append(band)
    return pd.concat(parts, ignore_index=True)


def _compute_band(
    curves: Sequence[pd.DataFrame], confidence: float, measure: Measure
) -> pd.DataFrame:
    """Return mean and interval at equal simulated times, where all seeds have values.

    Between two evaluations a seed's measure is taken to go straight from one to the
    other. One seed has its own evaluations' times.

    Args:
        curves: one per seed, with `at_s` and the measure.
        confidence: of the interval, between 0 and 1.
        measure: the column.

    Returns:
        `at_s`, the measure's mean, `low`, `high`, `seeds`; no rows where nothing was
        evaluated, or no time is common.
    """
    columns = ["at_s", measure.key, "low", "high", "seeds"]
    lines = [
        (c["at_s"].to_numpy(float), c[measure.key].to_numpy(float)) for c in curves
    ]
    lines = [line for line in lines if len(line[0])]
    if not lines:
        return pd.DataFrame(columns=columns, dtype=float)
    first = max(at_s[0] for at_s, _ in lines)
    last = min(at_s[-1] for at_s, _ in lines)
    if len(lines) == 1:
        grid = lines[0][0]
    else:
        points = min(_MOST_POINTS, max(len(at_s) for at_s, _ in lines))
        grid = np.linspace(first, last, points) if last > first else np.empty(0)
    values = np.array([np.interp(grid, at_s, measured) for at_s, measured in lines])
    rows = []
    for i, at_s in enumerate(grid):
        mean = estimate_measure(values[:, i].tolist(), measure, confidence)
        rows.append((at_s, mean.least, mean.low, mean.high, len(lines)))
    return pd.DataFrame(rows, columns=columns)
