"""The beginning of a participation's training, told from rows of unlike steps.

It takes seconds beside its steps: n steps take starting + n·step, by cold caches and
the loop's own setting out. Rows of one number of steps cannot tell the two apart: those
of few would make many steps too slow, and the other way round.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from simfed.calibrate.fit import fit_relative
from simfed.device.table import MeasuredRows, Row

_STEPS = ("training", "private")
_LEAST = 0.05
"""The share of a row's seconds that no beginning takes away."""


def add_starts(table: MeasuredRows) -> MeasuredRows:
    """Return the table with a row of `starting` for each model that tells it.

    Those are models whose training was measured with several numbers of steps. What
    beginning takes is left out of their rows of training.

    Args:
        table: of measured rows; it stays as it is.
    """
    of_curve: dict[tuple[str, str, float], dict[float, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in table.rows:
        quantity, model, _ = row.key
        if quantity in _STEPS:
            by_steps = of_curve[model, quantity, row.size]
            by_steps[row.steps].append(row.steps * row.seconds)
    starting: dict[str, list[float]] = defaultdict(list)
    for (model, *_), by_steps in of_curve.items():
        if len(by_steps) > 1:
            starting[model].append(_fit_starting_s(by_steps))
    medians = {model: statistics.median(seconds) for model, seconds in starting.items()}
    starts = {model: seconds for model, seconds in medians.items() if seconds > 0}
    rows = [_subtract_start(row, starts.get(row.key[1], 0.0)) for row in table.rows]
    for model, seconds in starts.items():
        like = next(row for row in table.rows if row.key[1] == model)
        row = replace(
            like, key=("starting", model, ""), size=1.0, steps=1.0, seconds=seconds
        )
        rows.append(row)
    return replace(table, rows=tuple(rows))


def _fit_starting_s(by_steps: Mapping[float, list[float]]) -> float:
    """Return the a ≥ 0 of a + n·b ≥ 0 through medians of n steps in a row.

    The fit is by relative errors.
    """
    counts = np.array(sorted(by_steps))
    middle_s = np.array([statistics.median(by_steps[count]) for count in counts])
    design = np.column_stack([np.ones(len(counts)), counts])
    return float(fit_relative(design / middle_s[:, None])[0])


def _subtract_start(row: Row, starting_s: float) -> Row:
    """Return the row without its share of `starting_s`: seconds of its steps alone."""
    if row.key[0] not in _STEPS or not starting_s:
        return row
    step_s = max(row.seconds - starting_s / row.steps, _LEAST * row.seconds)
    return replace(row, seconds=step_s, starting_s=row.steps * (row.seconds - step_s))
