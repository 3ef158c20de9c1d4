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
from typing import TYPE_CHECKING

from simfed.report.comparison import ComparedPair, compare_sides, describe_sides
from simfed.report.reach import WHOLE_RUN
from simfed.report.statistics import PairedTimes, estimate_measure
from simfed.study.bands import compute_bands
from simfed.study.outcomes import StudyRuns
from simfed.study.targets import compute_spent

if TYPE_CHECKING:
    import pandas as pd


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
        import pandas as pd

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
        return compute_bands(self)
