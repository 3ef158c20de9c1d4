"""Curves of seconds against size, for one kind of work on one model.

They are measured points, a fitted law, or a constant. Each gives its seconds (`at`),
says where they come from (`tell`) and warns of sizes that were not measured
(`outside`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from simfed.device.laws import CostLaw, Size

STEEPEST = 2.0
"""Two close rows with noise in them must not make a power law that explodes a decade
further on."""


@dataclass(frozen=True, slots=True)
class Constant:
    """The same time at every size: what a person wrote, such as `0 s`."""

    seconds: float

    def at(self, size: Size) -> float:
        """Return the seconds, whatever the size."""
        return self.seconds

    def tell(self, size: Size) -> str:
        """Return where the seconds at a size come from, in words."""
        return "as written"

    def outside(self, size: Size) -> str | None:
        """Return None: it holds for every size."""
        return None


@dataclass(frozen=True, slots=True)
class Points:
    """Measured rows: exact at them, monotone between them, a power law beyond them.

    Between two rows the logarithm of the time is linear in the logarithm of the size,
    so it never leaves the interval of the two times. Where one of the two times is 0,
    it is linear instead. Beyond the rows the power law through the two nearest rows
    goes on, its exponent held to 0 … 2; one row alone is continued in proportion to the
    size.
    """

    variable: str
    sizes: tuple[float, ...]
    seconds: tuple[float, ...]

    def at(self, size: Size) -> float:
        """Return the seconds at a size, between its neighbours' if not measured."""
        x = float(size[self.variable])
        i = bisect_left(self.sizes, x)
        if i < len(self.sizes) and self.sizes[i] == x:
            return self.seconds[i]
        if len(self.sizes) == 1:
            return self.seconds[0] * x / self.sizes[0]
        beyond = i == 0 or i == len(self.sizes)
        i = min(max(i, 1), len(self.sizes) - 1)
        (x0, x1), (y0, y1) = self.sizes[i - 1 : i + 1], self.seconds[i - 1 : i + 1]
        if y0 == 0 or y1 == 0:
            return max(0.0, y0 + (y1 - y0) * (x - x0) / (x1 - x0))
        slope = math.log(y1 / y0) / math.log(x1 / x0)
        if beyond:
            slope = min(max(slope, 0.0), STEEPEST)
        anchor_x, anchor_y = (x1, y1) if x > x1 else (x0, y0)
        return anchor_y * math.exp(slope * math.log(x / anchor_x))

    def tell(self, size: Size) -> str:
        """Return where the seconds at a size come from, in words."""
        x = float(size[self.variable])
        if x in self.sizes:
            return "row"
        return "between rows" if self.sizes[0] < x < self.sizes[-1] else "beyond rows"

    def scaled(self, factor: float) -> Points:
        """Return all rows times a factor."""
        return replace(self, seconds=tuple(factor * s for s in self.seconds))

    def outside(self, size: Size, how: str = "") -> str | None:
        """Return a warning for a size beyond the measured ones, else None.

        Args:
            size: amounts by name.
            how: how it is extrapolated, in words; empty: as `at` does.
        """
        x = size[self.variable]
        if self.sizes[0] <= x <= self.sizes[-1]:
            return None
        single = len(self.sizes) == 1
        how = how or (
            "in proportion" if single else "by the power law of the nearest rows"
        )
        measured = _describe_range(self.variable, self.sizes[0], self.sizes[-1])
        return f"{measured}; {self.variable} = {x:g} is extrapolated {how}"


@dataclass(frozen=True, slots=True)
class Fitted:
    """A law with fitted parameters, and what its fit knows of itself.

    `calibrate fit` writes it into a profile.
    """

    law: CostLaw
    parameters: Mapping[str, float]
    valid: Mapping[str, tuple[float, float]]
    """Range of each size it was fitted on."""
    error: Mapping[str, float | None] = field(default_factory=dict)
    """Relative errors as stored in the profile: in_sample, worst, cross_validated,
    other_model."""
    spread: float | None = None
    """Standard deviation of log(new median / law); None: not known."""
    scale: float = 1.0

    def at(self, size: Size) -> float:
        """Return the law's seconds at a size."""
        return self.scale * float(self.law.seconds(self.parameters, size))

    def tell(self, size: Size) -> str:
        """Return where the seconds at a size come from, in words."""
        return f"law {self.law.name}"

    def outside(self, size: Size) -> str | None:
        """Return a warning for a size beyond the measured ones, else None."""
        for variable, (low, high) in self.valid.items():
            x = size[variable]
            if not low <= x <= high:
                law = f"{variable} = {x:g} follows the law {self.law.formula} beyond it"
                return f"{_describe_range(variable, low, high)}; {law}"
        return None

    def scaled(self, factor: float) -> Fitted:
        """Return the law times a factor."""
        return replace(self, scale=self.scale * factor)


def _describe_range(variable: str, low: float, high: float) -> str:
    """Return the range of sizes that was measured, in words."""
    if low == high:
        return f"measured at {variable} = {low:g}"
    return f"measured for {variable} from {low:g} to {high:g}"


Curve = Constant | Points | Fitted
