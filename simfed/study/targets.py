"""Arms' spending to reach targets: time, bytes or energy, over a study's axes.

A run that ends before it is there is *censored*: it spent more than it had by its end,
nobody knows how much more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simfed.ground.errors import InputError, check_known, did_you_mean, listed
from simfed.ground.measure import ACCURACY, Measure
from simfed.ground.units import parse_duration, parse_rate, parse_size
from simfed.report.reach import WHOLE_RUN, find_first_amount
from simfed.report.statistics import estimate_median_time
from simfed.study.plan import describe_point, shorten_names

if TYPE_CHECKING:
    import pandas as pd

    from simfed.record.read import Run
    from simfed.study.outcomes import StudyRuns

_NEAR = 0.07
"""Values of an axis closer than this share of its whole length are set at equal steps
instead."""

_ENERGIES = ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"))


@dataclass(frozen=True, slots=True)
class SpentQuantity:
    """Something that a run spends until it reaches a target.

    `name` is what a user writes, `column` the curve's, `label` the axis's.
    """

    name: str
    column: str
    label: str


QUANTITIES = {
    q.name: q
    for q in (
        SpentQuantity("time", "at_s", "simulated time"),
        SpentQuantity("sent", "uplink_bytes", "sent by clients"),
        SpentQuantity("moved", "total_bytes", "moved both ways"),
        SpentQuantity("energy", "energy_j", "energy of the clients"),
    )
}


def find_spent_quantity(name: str, *, where: str | None = None) -> SpentQuantity:
    """Return a quantity by its name.

    Raises:
        InputError: there is no such quantity; `where` names the option.
    """
    check_known(name, QUANTITIES, where=where)
    return QUANTITIES[name]


def choose_unit(column: str, most: float) -> tuple[float, str]:
    """Return the unit in which amounts of a column are drawn.

    Args:
        column: of a `SpentQuantity`.
        most: the largest amount, in the column's own unit.

    Returns:
        How much of the column's own unit it is worth, and its name.
    """
    from simfed.report.pictures import choose_bytes_unit, time_unit

    if column == "at_s":
        return time_unit(most)
    if column == "energy_j":
        return next(((s, u) for s, u in _ENERGIES if most >= s), _ENERGIES[-1])
    return choose_bytes_unit(most)


def parse_target(
    text: str, measure: Measure = ACCURACY, where: str = "--target"
) -> float:
    """Return the value of a measure that a text says: `85%`, `85 %` or `0.85`.

    Args:
        text: percent only of a measure that is a share.
        measure: whose value it is.
        where: the option in which it stands.

    Raises:
        InputError: the measure cannot have it.

    >>> from simfed.ground.measure import MEASURES
    >>> parse_target("85 %"), parse_target("0.85")
    (0.85, 0.85)
    >>> parse_target("12.5", MEASURES["regression"])
    12.5
    """
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,12})?|\.\d{1,12})\s*(%?)\s*", text)
    value = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if measure.is_share and not 0 < value < 1:
        raise InputError("an accuracy such as 85% or 0.85", where=where, got=text)
    if match is None or not value or (match[2] and not measure.is_share):
        raise InputError(f"{measure.name} above 0 such as 12.5", where=where, got=text)
    return value


def choose_targets(study: StudyRuns, wanted: Sequence[float] = ()) -> list[float]:
    """Return the targets `wanted`, else the study's.

    A NaN alone stands for whole runs, where nothing was learned.

    Raises:
        InputError: targets are wanted of a study that learned nothing.
    """
    if wanted and study.time_only:
        raise InputError(
            "a study that learned", where="--target", got="a time-only study"
        )
    return list(dict.fromkeys(wanted)) or study.thresholds or [WHOLE_RUN]


def compute_spent(
    study: StudyRuns, quantity: str = "time", targets: Sequence[float] = ()
) -> pd.DataFrame:
    """Return what each arm spent until it reached each target.

    Arguments, columns and errors are those of `StudyResult.targets`.
    """
    import pandas as pd

    spent = find_spent_quantity(quantity)
    chosen = choose_targets(study, targets)
    amounts = {
        entry["address"]: _find_amounts(
            run, study.curve_of(entry["address"]), spent, chosen
        )
        for entry, run in study.finished
    }
    rows = []
    for setting, arm, entries in study.groups():
        for target in chosen:
            pairs = [amounts[entry["address"]][target] for entry in entries]
            spent_by = [amount for amount, _ in pairs]
            reached = [is_reached for _, is_reached in pairs]
            middle = estimate_median_time(spent_by, reached, study.confidence)
            rows.append(
                {
                    **setting,
                    "setting": study.describe_setting(setting),
                    "arm": arm,
                    "target": target,
                    "seeds": len(pairs),
                    "reached": sum(reached),
                    "median": middle.exact,
                    "at_least": middle.least,
                    "at_most": middle.most,
                    "low": middle.low,
                    "high": middle.high,
                    "coverage": middle.coverage,
                }
            )
    return pd.DataFrame(rows)


def _find_amounts(
    run: Run, curve: pd.DataFrame, quantity: SpentQuantity, targets: Sequence[float]
) -> dict[float, tuple[float, bool]]:
    """Return what a run spent until it reached each target.

    Args:
        run: a finished one.
        curve: its rows of `StudyRuns.curves`.
        quantity: what is spent.
        targets: of the measure; NaN for the whole run.

    Returns:
        Target → the amount, and True; the amount by the end, and False, where it was
        not
        reached.
    """
    column, summary = quantity.column, run.summary
    ends = {
        "at_s": summary["simulated_s"],
        "uplink_bytes": summary["uplink_bytes"],
        "total_bytes": summary["uplink_bytes"] + summary["downlink_bytes"],
    }
    joules = _sum_energy(run) if column == "energy_j" else None
    end = float(ends[column] if joules is None else joules[column].max())
    if all(math.isnan(target) for target in targets):
        return dict.fromkeys(targets, (end, True))
    if joules is not None:
        curve = curve.merge(joules, on="round")
    return {
        target: find_first_amount(curve, target, column, end, run.measure)
        for target in targets
    }


def _sum_energy(run: Run) -> pd.DataFrame:
    """Return `round, energy_j`: joules of the clients by the end of each round.

    They are those of all participations that were merged or lost by then.

    Raises:
        InputError: a device's profile does not know its power.
    """
    joules = run.table("participations").select(["merge", "energy_j"])
    if joules.column("energy_j").null_count or not joules.num_rows:
        allowed = "runs that know the energy of every participation"
        hint = "give the devices' profiles their power"
        raise InputError(allowed, got="devices without power", hint=hint)
    of_merge = joules.group_by("merge").aggregate([("energy_j", "sum")]).to_pandas()
    rounds = run.table("rounds").column("round").to_pandas()
    spent = (
        of_merge.set_index("merge")["energy_j_sum"]
        .reindex(rounds, fill_value=0.0)
        .cumsum()
    )
    return spent.rename("energy_j").rename_axis("round").reset_index()


# --- the swept axis -------------------------------------------------------------------


@dataclass(frozen=True)
class AxisPositions:
    """The positions of an axis's values in a picture, from 0 to 1."""

    axis: str
    """The axis's name in the study file; empty where nothing is swept."""
    label: str
    labels: tuple[str, ...]
    at: tuple[float, ...]

    @property
    def least_gap(self) -> float:
        """The least distance of two values."""
        return min(np.diff(sorted(self.at)), default=1.0) if len(self.at) > 1 else 1.0


def choose_swept_axis(study: StudyRuns, over: str | None = None) -> str | None:
    """Return the axis against which arms are drawn.

    It is the one asked for, else the one with most values, numbers before names; None
    where nothing but the arms varies.

    Args:
        study: whose axes count; the arms' does not.
        over: an axis's name, or the end of it.

    Raises:
        InputError: the study does not sweep this axis.
    """
    swept = {
        axis["name"]: axis["labels"]
        for axis in study.plan["axes"]
        if axis["name"] != study.arms_axis
    }
    if over is not None:
        names = shorten_names(study.axes)
        chosen = [axis for axis in swept if over in (axis, names[axis])]
        if not chosen:
            hint = did_you_mean(over, names.values())
            allowed = (
                listed(names[axis] for axis in swept)
                if swept
                else "a study that sweeps one"
            )
            raise InputError(allowed, where="--over", got=over, hint=hint)
        return chosen[0]
    several = [axis for axis, labels in swept.items() if len(labels) > 1]
    ranked: list[str] = sorted(
        several, key=lambda a: (_parse_numbers(swept[a]) is None, -len(swept[a]))
    )
    return ranked[0] if ranked else None


def build_places(study: StudyRuns, axis: str | None) -> AxisPositions:
    """Return where the values of an axis stand in a picture.

    Numbers stand at their distances (those of their logarithms, where they span five
    times or more), all else at equal steps. None for no axis: one place in the middle.
    """
    if axis is None:
        return AxisPositions("", "", ("",), (0.5,))
    labels = next(tuple(a["labels"]) for a in study.plan["axes"] if a["name"] == axis)
    label = shorten_names(study.axes)[axis]
    return AxisPositions(
        axis,
        label if axis not in ("zip", "list") else "",
        labels,
        _compute_positions(labels),
    )


def _compute_positions(labels: Sequence[str]) -> tuple[float, ...]:
    """Return positions from 0 to 1, one per label.

    >>> _compute_positions(["2 Mbps", "20 Mbps", "200 Mbps"])
    (0.0, 0.5, 1.0)
    >>> _compute_positions(["a", "b", "c"])
    (0.0, 0.5, 1.0)

    1 and 2 would touch, but not their logarithms:

    >>> _compute_positions(["1", "2", "3", "300"])
    (0.0, 0.121..., 0.192..., 1.0)
    """
    if len(labels) == 1:
        return (0.5,)
    equal = tuple(i / (len(labels) - 1) for i in range(len(labels)))
    values = _parse_numbers(labels)
    if values is None:
        return equal
    numbers = np.array(values)
    if numbers.min() > 0 and numbers.max() >= 5 * numbers.min():
        numbers = np.log(numbers)
    spread = numbers.max() - numbers.min()
    if spread == 0 or np.diff(np.sort(numbers)).min() < _NEAR * spread:
        return equal
    return tuple(float(x) for x in (numbers - numbers.min()) / spread)


def _parse_numbers(labels: Sequence[str]) -> list[float] | None:
    """Return the labels as numbers of one quantity, in its base unit.

    These are plain numbers, rates, durations or sizes; None where a label is none of
    them.
    """
    for read in (_parse_number, parse_rate, parse_duration, parse_size):
        try:
            return [read(label) for label in labels]
        except InputError:
            continue
    return None


def _parse_number(label: str) -> float:
    try:
        value = float(label.removesuffix("%"))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError("a number", got=label)
    return value


def split_rows(
    study: StudyRuns, rows: pd.DataFrame, axis: str | None
) -> dict[str, pd.DataFrame]:
    """Return rows by panel: title → rows, in their order.

    A panel is a setting of the axes that are neither the arms nor drawn against.

    Args:
        study: whose axes count.
        rows: of `compute_spent`.
        axis: the one drawn against, or None.
    """
    others = [name for name in study.axes if name not in (study.arms_axis, axis)]
    if not others:
        return {"": rows}
    return {
        describe_point(
            dict(zip(others, map(str, labels), strict=True)), study.axes
        ): group
        for labels, group in rows.groupby(others, sort=False)
    }
