"""The results of a study: its runs, and how its arms compare over them.

An *arm* is a value of the axis that `compare.arms` names; arms are compared in each
setting of the other axes, seed by seed, by the first time at each threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd

from simfed.ground.measure import Measure
from simfed.report.comparison import ComparedPair, compare_sides, describe_sides
from simfed.report.reach import WHOLE_RUN
from simfed.report.statistics import PairedTimes, estimate_measure
from simfed.study.outcomes import StudyRuns
from simfed.study.targets import compute_spent


def load_study(path: str | Path) -> StudyResult:
    """Return the results so far of the study in a folder.

    Raises:
        InputError: the folder is no study's; one sentence says what it is.
    """
    return StudyResult(path)


_ARM_COLUMNS = {
    "target": "threshold",
    "median": "median_s",
    "at_least": "median_at_least_s",
    "at_most": "median_at_most_s",
    "low": "median_low_s",
    "high": "median_high_s",
}
"""Columns of `targets` as `arms` names them."""


class StudyResult(StudyRuns):
    """The runs of a study with its arms compared.

    Frames are made when they are first asked for. `load_study` and `run_study` make it;
    tables, pages and figures of studies read it.
    """

    def _repr_html_(self) -> str:
        """Return a notebook's view: its arms in a table, and the verdicts."""
        items = "".join(f"<li>{escape(text)}</li>" for text in self.verdicts)
        arms = self.arms.to_html(index=False, float_format="{:.4g}".format, na_rep="")
        return f"<p>{escape(repr(self))}</p>{arms}<ul>{items}</ul>"

    @cached_property
    def arms(self) -> pd.DataFrame:
        """One row per setting, arm and threshold: how it did over its seeds.

        `setting, arm, seeds, final_accuracy` and its interval `_low, _high`
        (`final_measure` of another measure); per threshold `reached` (of the seeds),
        `median_s` (NaN where censoring leaves it open), `median_at_least_s,
        median_at_most_s`, `median_low_s, median_high_s, coverage`.
        """
        means = []
        for _, _, entries in self.groups():
            final = [self.outcomes[entry["address"]].final for entry in entries]
            learned = [value for value in final if not math.isnan(value)]
            mean = estimate_measure(learned, self.measure, self.confidence)
            means += [mean] * max(1, len(self.thresholds))
        rows = self.targets().rename(columns=_ARM_COLUMNS)
        rows = rows.drop(columns=[name for name in self.axes if name != self.arms_axis])
        rows.insert(2, "seeds", rows.pop("seeds"))
        final_column = f"final_{self.measure.key}"
        rows.insert(3, final_column, [mean.least for mean in means])
        rows.insert(4, f"{final_column}_low", [mean.low for mean in means])
        rows.insert(5, f"{final_column}_high", [mean.high for mean in means])
        return rows

    def targets(
        self, quantity: str = "time", targets: Sequence[float] = ()
    ) -> pd.DataFrame:
        """Return what each arm spent until it reached each target.

        There is a row per setting, arm and target.

        Args:
            quantity: `time` (s), `sent` (bytes up), `moved` (bytes both ways) or
            `energy` (J).
            targets: values of the measure; the study's thresholds if omitted, and whole
                runs (`target` is NaN) where there are none.

        Returns:
            One column per axis but the arms', `setting, arm, target, seeds, reached`
            (of the
            seeds), `median` (NaN where censoring leaves it open), `at_least, at_most`,
            and its
            interval `low, high` with `coverage`.

        Raises:
            InputError: another quantity, energy that the devices' profiles do not know,
                or targets of a study that learned nothing.
        """
        return compute_spent(self, quantity, targets)

    @cached_property
    def comparisons(self) -> pd.DataFrame:
        """A row per setting, threshold and pair of arms, compared seed by seed.

        It has `setting` and what `simfed.report.comparison.ComparedPair.row` says.
        """
        rows = [{"setting": text, **pair.row()} for text, pair in self._pairs]
        return pd.DataFrame(rows)

    @cached_property
    def verdicts(self) -> list[str]:
        """The comparisons in plain words, a sentence per pair of arms and threshold."""
        settings: dict[tuple[str, str, float], list[tuple[str, PairedTimes]]] = {}
        for text, pair in self._pairs:
            settings.setdefault((pair.a, pair.b, pair.threshold), []).append(
                (text, pair.paired)
            )
        return [
            describe_sides(*key, named, measure=self.measure)
            for key, named in settings.items()
        ]

    @cached_property
    def _pairs(self) -> list[tuple[str, ComparedPair]]:
        """(setting in words, two of its arms compared); empty where none are."""
        pairs = []
        for setting, by_arm in self.settings():
            sides = []
            for arm, entries in by_arm.items():
                done = self.select_finished(entries)
                sides.append(
                    (arm, {e["seed"]: self.outcomes[e["address"]] for e in done})
                )
            compared = compare_sides(
                sides,
                self.thresholds or [WHOLE_RUN],
                self.confidence,
                self.relevant_ratio,
                self.compare["baseline"],
                measure=self.measure,
            )
            pairs += [(self.describe_setting(setting), pair) for pair in compared]
        return pairs

    @cached_property
    def bands(self) -> pd.DataFrame:
        """The measure over simulated time by setting and arm.

        Columns: `setting, arm, at_s, accuracy` (mean over seeds; `measure` of another
        one), `low, high` (its interval), `seeds`.
        """
        parts = []
        for setting, arm, entries in self.groups():
            curves = [self.curve_of(entry["address"]) for entry in entries]
            band = _compute_band(curves, self.confidence, self.measure)
            band.insert(0, "setting", self.describe_setting(setting))
            band.insert(1, "arm", arm)
            parts.append(band)
        return pd.concat(parts, ignore_index=True)


_MOST_POINTS = 200
"""The most instants of a band."""


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
