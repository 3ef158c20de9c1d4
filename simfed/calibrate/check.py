"""Checks a profile against measurements it has not seen (needs scipy).

`compare` gives a `ProfileCheck`: a point for every size with its error and its
interval, and a verdict in words.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass

from simfed.calibrate.spread import LEVEL, QUANTILE
from simfed.device.profile import QUANTITIES, Key, Profile
from simfed.device.table import MeasuredRows, Row
from simfed.ground.errors import InputError


@dataclass(frozen=True, slots=True)
class HeldOutPoint:
    """One held-out size: the median of its measurements beside its prediction.

    Times are seconds of one call, the size is that of the curve's variable (K, batch,
    samples).
    """

    key: Key
    size: float
    measured_s: float
    predicted_s: float
    factor: float | None
    """The factor of the interval [predicted/factor, predicted·factor]; None where the
    profile states none."""
    source: str = ""
    """The source of the prediction: a row, a law, or rows of another shape."""

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted_s / self.measured_s - 1

    @property
    def inside(self) -> bool | None:
        """True if the median lies in the interval; None where there is none."""
        if self.factor is None:
            return None
        return abs(math.log(self.predicted_s / self.measured_s)) <= math.log(
            self.factor
        )


@dataclass(frozen=True, slots=True)
class ProfileCheck:
    """A profile's predictions at all sizes of a table.

    `simfed calibrate check` prints it by curve and ends with `verdict`.
    """

    points: tuple[HeldOutPoint, ...]

    @property
    def median_error(self) -> float:
        """Median of the absolute relative errors."""
        return statistics.median(abs(p.error) for p in self.points)

    @property
    def worst(self) -> HeldOutPoint:
        """The point with the largest factor between prediction and median."""
        return max(
            self.points, key=lambda p: abs(math.log(p.predicted_s / p.measured_s))
        )

    @property
    def coverage(self) -> float | None:
        """Share of the medians inside their interval.

        None where there are no intervals.
        """
        inside = [p.inside for p in self.points if p.inside is not None]
        return sum(inside) / len(inside) if inside else None

    @property
    def verdict(self) -> str:
        """One sentence: whether the profile holds, and how far it is off.

        It holds up to a median error of 10 %, roughly to 25 %.
        """
        covered = self.coverage
        error = f"the median error is {self.median_error:.1%}"
        if covered is not None:
            error += (
                f" and {covered:.0%} of the held-out medians lie in their {LEVEL:.0%} "
                f"intervals"
            )
        if self.median_error > 0.25:
            return f"The profile does not describe these measurements: {error}."
        if self.median_error > 0.10:
            return f"The profile describes these measurements roughly: {error}."
        if covered is not None and covered < LEVEL - 0.05:
            return f"The profile is accurate but surer than it should be: {error}."
        return f"The profile holds: {error}."


def compare(profile: Profile, table: MeasuredRows) -> ProfileCheck:
    """Return a profile's predictions for the median of every size in a table.

    Args:
        profile: what is checked; its laws and rows are taken without noise.
        table: measurements that it was not fitted to. Of rows of training in several
            steps the beginning is taken off, as far as the profile knows it.

    Returns:
        A point for each curve and size, with the interval in which the median should
        lie nine times in ten where the profile states one.

    Raises:
        InputError: the profile lacks a curve that the table measures, or has 0 s.
    """
    times: dict[tuple[Key, float], list[float]] = defaultdict(list)
    for row in table.rows:
        times[row.key, row.size].append(
            row.seconds - _estimate_starting_s(profile, row) / row.steps
        )
    points = []
    for (key, x), seconds in times.items():
        quantity, model, strategy = key
        size = {QUANTITIES[quantity].size: x}
        predicted_s = profile.seconds(quantity, model=model, strategy=strategy, **size)
        if predicted_s == 0:
            allowed = f"a profile that predicts a time for {quantity} of {model}"
            raise InputError(allowed, where=profile.name, got="0 s")
        measured_s, factor = (
            statistics.median(seconds),
            find_interval_factor(profile, key),
        )
        source = profile.tell_source(quantity, model=model, strategy=strategy, **size)
        points.append(HeldOutPoint(key, x, measured_s, predicted_s, factor, source))
    return ProfileCheck(tuple(points))


def _estimate_starting_s(profile: Profile, row: Row) -> float:
    """Return the seconds of a row that the beginning of training takes.

    It is as far as the profile knows it.
    """
    quantity, model, _ = row.key
    if quantity not in ("training", "private") or not profile.has(
        "starting", model=model
    ):
        return 0.0
    return profile.seconds("starting", model=model, samples=1)


def find_interval_factor(profile: Profile, key: Key) -> float | None:
    """Return the factor by which a new median may differ from the profile.

    It does so, up or down, with probability `LEVEL`.

    Args:
        profile: states its spread, or does not.
        key: the curve: quantity, model, strategy.

    Returns:
        None where the profile has no such curve, or states no spread.
    """
    entry = profile.find(key)
    if entry is None:
        return None
    spread = profile.find_spread(key, entry[1])
    return None if spread is None else math.exp(QUANTILE * spread)
