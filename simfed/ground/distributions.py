"""Distributions of a fleet's quantities, each as its quantile function.

A law turns a uniform number u in (0, 1) into a value, so one uniform per client and
field is all the randomness there is: client i's value depends on its own u alone, never
on how many clients there are or on what another law would have consumed. Everything is
vectorised.

Bounds truncate: the law is what it is under the condition that the value lies between
`low` and `high` (its density there, rescaled), not clipped at them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from simfed.ground.arrays import Floats, Ints
from simfed.ground.errors import InputError
from simfed.ground.seeding import Streams

_LEAST_MASS = 1e-6
"""Bounds that leave less of a law than this are a mistake, and its tail has too few
digits."""


class Law(Protocol):
    """A distribution of one quantity."""

    @property
    def low(self) -> float:
        """The least value that it can draw."""
        ...

    @property
    def high(self) -> float:
        """The largest value that it can draw; infinite where there is none."""
        ...

    @property
    def attains_low(self) -> bool:
        """True if `low` itself may be drawn."""
        ...

    def quantile(self, u: Floats) -> Floats:
        """Return the value below which a share `u` of the law lies; 0 < u < 1."""
        ...


@dataclass(frozen=True)
class UniformLaw:
    """The uniform law from `low` to `high`.

    >>> UniformLaw(2.0, 4.0).quantile(np.array([0.25]))
    array([2.5])
    """

    low: float
    high: float
    attains_low = True

    def __post_init__(self) -> None:
        _check_ordered(self.low, self.high)

    def quantile(self, u: Floats) -> Floats:
        """Return the value at each u in (0, 1)."""
        return self.low + (self.high - self.low) * u


@dataclass(frozen=True)
class Normal:
    """Normal with `mean` and `sd`, both before truncation to `low` … `high`."""

    mean: float
    sd: float
    low: float = 0.0
    high: float = math.inf
    attains_low = False

    def __post_init__(self) -> None:
        _check_positive(self.sd, "sd")
        truncate_law(self.cdf, self.low, self.high)

    def cdf(self, x: float) -> float:
        """Return the share of the law below `x`, before truncation."""
        return _ndtr((x - self.mean) / self.sd)

    def quantile(self, u: Floats) -> Floats:
        """Return the value at each u in (0, 1)."""
        from scipy.special import ndtri

        below, inside = truncate_law(self.cdf, self.low, self.high)
        values: Floats = self.mean + self.sd * ndtri(below + inside * u)
        return np.clip(values, self.low, self.high)  # rounding in the tails


@dataclass(frozen=True)
class Lognormal:
    """The log-normal law with `median` and `cv`, its sd over its mean.

    Both are those before truncation.

    >>> Lognormal(median=10.0, cv=0.5).quantile(np.array([0.5]))
    array([10.])
    """

    median: float
    cv: float
    low: float = 0.0
    high: float = math.inf
    attains_low = False

    def __post_init__(self) -> None:
        _check_positive(self.median, "median")
        if not 0 < self.cv <= 100:
            raise InputError("a number above 0, at most 100", where="cv", got=self.cv)
        truncate_law(self.cdf, self.low, self.high)

    @classmethod
    def of_mean(cls, mean: float, cv: float, low: float, high: float) -> Lognormal:
        """Return the law with a mean in place of the median."""
        return cls(mean / math.sqrt(1 + cv**2), cv, low, high)

    @property
    def log_sd(self) -> float:
        """Standard deviation of the logarithm."""
        return math.sqrt(math.log1p(self.cv**2))

    def cdf(self, x: float) -> float:
        """Return the share of the law below `x`, before truncation."""
        return _ndtr(math.log(x / self.median) / self.log_sd) if x > 0 else 0.0

    def quantile(self, u: Floats) -> Floats:
        """Return the value at each u in (0, 1)."""
        from scipy.special import ndtri

        below, inside = truncate_law(self.cdf, self.low, self.high)
        values: Floats = self.median * np.exp(self.log_sd * ndtri(below + inside * u))
        return np.clip(values, self.low, self.high)


@dataclass(frozen=True)
class Discrete:
    """One of `values`, with probabilities proportional to `weights` (alike without).

    Values may be in any order; a quantile is the value at that share of the weights, so
    it need not rise with u.

    >>> Discrete((5.0, 1.0), (3.0, 1.0)).quantile(np.array([0.5, 0.9]))
    array([5., 1.])
    """

    values: tuple[float, ...]
    weights: tuple[float, ...] = ()
    attains_low = True

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError("at least one value", where="values", got=[])
        if self.weights and len(self.weights) != len(self.values):
            allowed = f"as many weights as values ({len(self.values)})"
            raise InputError(allowed, where="weights", got=len(self.weights))
        if any(not 0 <= w < math.inf for w in self.weights) or (
            self.weights and not 0 < math.fsum(self.weights) < math.inf
        ):
            allowed = "numbers of at least 0, one of them above 0"
            raise InputError(allowed, where="weights", got=list(self.weights))

    @property
    def low(self) -> float:
        """The least value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest value."""
        return max(self.values)

    @cached_property
    def _arrays(self) -> tuple[Floats, Floats | None]:
        weights = np.array(self.weights) if self.weights else None
        return np.array(self.values), weights

    def quantile(self, u: Floats) -> Floats:
        """Return the value at each u in (0, 1)."""
        values, weights = self._arrays
        return values[pick_positions(u, len(values), weights)]


def draw_uniform(streams: Streams, field: str, count: int) -> Floats:
    """Return a number in (0, 1) for every client of a fleet.

    The i-th is that of the field's stream.
    """
    return np.maximum(streams("fleet", field).random(count), _LEAST_U)


_LEAST_U = 2.0**-54
"""The number in place of a uniform one that is exactly 0, whose quantile may be
infinite."""


def pick_positions(u: Floats, count: int, weights: Floats | None = None) -> Ints:
    """Return the position, of `count`, that each uniform number picks.

    All are alike or in proportion to `weights`.

    >>> pick_positions(np.array([0.0, 0.49, 0.5, 0.99]), 2)
    array([0, 0, 1, 1])
    """
    if weights is None:
        return np.asarray(u * count).astype(np.int64)  # below count, as u ≤ 1 − 2^-53
    edges = np.cumsum(weights)
    picked = np.searchsorted(edges, u * edges[-1], side="right")
    last = np.flatnonzero(weights)[-1]  # u × the sum may round up to the sum
    return np.asarray(np.minimum(picked, last), np.int64)


def truncate_law(
    cdf: Callable[[float], float], low: float, high: float
) -> tuple[float, float]:
    """Return (share of the law below `low`, share between the bounds).

    Raises: `InputError` for bounds the wrong way round, or between which next to
    nothing lies.
    """
    _check_ordered(low, high)
    below = cdf(low)
    inside = (cdf(high) if high < math.inf else 1.0) - below
    if not inside > _LEAST_MASS:
        raise InputError(
            "bounds between which some of the distribution lies",
            got=f"{inside:.2g} of it",
        )
    return below, inside


def _check_ordered(low: float, high: float) -> None:
    if not low < high:
        raise InputError("low below high", got=[low, high])


def _check_positive(value: float, where: str) -> None:
    if not 0 < value < math.inf:
        raise InputError("a value above 0", where=where, got=value)


def _ndtr(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))
