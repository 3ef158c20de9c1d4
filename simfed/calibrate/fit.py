"""Fits laws to measured times: robust, non-negative, chosen by leaving sizes out.

Needs scipy.

The data are medians: one per size and session (one process that measured). What is
minimised is the deviation of the *relative* error, so that microseconds count as much
as seconds:

- with enough points, least squares in which wild points count less, by residuals whose
  scale is taken from the residuals themselves;
- with at most one point more than parameters, the largest relative error (Chebyshev):
  so few points cannot tell an outlier from a law that does not fit, and the worst error
  is then the fair summary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from simfed.device.laws import LAWS, CostLaw
from simfed.ground.arrays import Bools, Floats, Ints

_FLOOR = 0.01  # residuals below 1 % are not outliers, whatever the others are
_PASSES = 3
"""Fits, each with the rows' trust by the one before."""


@dataclass(frozen=True, slots=True)
class FitSample:
    """Medians of one curve: sizes by name, seconds, and which points share a size.

    All arrays have one entry per point. `simfed.calibrate.profiles` makes it from a
    table.
    """

    size: dict[str, Floats]
    seconds: Floats
    group: Ints
    """Points of the same group have the same size and are left out together."""
    session: Ints
    """Points of the same session were measured by one process."""

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def groups(self) -> list[int]:
        """The numbers of the groups, ascending."""
        return [int(g) for g in np.unique(self.group)]

    def where(self, mask: Bools) -> FitSample:
        """Return the points that `mask` selects."""
        return FitSample(
            {n: x[mask] for n, x in self.size.items()},
            self.seconds[mask],
            self.group[mask],
            self.session[mask],
        )


@dataclass(frozen=True, slots=True)
class FittedLaw:
    """A law with fitted parameters and what leaving sizes out says of it.

    `choose_law` makes several and returns one; `simfed.calibrate.spread` adds the
    spread.
    """

    law: CostLaw
    parameters: dict[str, float]
    residuals: Floats
    """log(predicted / measured) at every point."""
    held_out: Floats
    """log(predicted / measured) with the point's own size left out of the fit; empty
    where too few sizes are."""
    spread: float | None = None

    @property
    def in_sample(self) -> float:
        """Mean absolute relative error over the rows that it was fitted to."""
        return float(np.mean(np.abs(np.expm1(self.residuals))))

    @property
    def worst(self) -> float:
        """Largest relative error at a measured point."""
        return float(np.max(np.abs(np.expm1(self.residuals))))

    @property
    def cross_validated(self) -> float:
        """Mean absolute log-error at sizes left out.

        Infinite where that could not be done.
        """
        return float(np.mean(np.abs(self.held_out))) if len(self.held_out) else math.inf


def choose_law(names: Sequence[str], sample: FitSample) -> FittedLaw:
    """Return the law with the smallest cross-validated error.

    Leaving out the smallest or largest size judges how a law extrapolates. So that this
    does not outweigh what was measured, laws take part only if they fit the points
    themselves nearly as well as the best (mean error within twice its own, or 1 %), and
    if they have no more parameters than there are sizes.

    Args:
        names: of `simfed.device.laws.LAWS`, the simplest first: of near equals (10 %,
        0.2 %) the first is taken. Those take part whose sizes the sample has.
        sample: at least two sizes.
    """
    laws = [LAWS[name] for name in names if set(LAWS[name].needs) <= set(sample.size)]
    usable = [law for law in laws if len(law.parameters) <= len(sample.groups)]
    candidates = [_fit_candidate(law, sample) for law in usable]
    close = max(0.01, 2 * min(c.in_sample for c in candidates))
    first, *others = [c for c in candidates if c.in_sample <= close]
    for other in others:
        bar = min(0.9 * first.cross_validated, first.cross_validated - 0.002)
        if other.cross_validated < bar:
            first = other
    return first


def _fit_candidate(law: CostLaw, sample: FitSample) -> FittedLaw:
    """Return a law fitted to all points, and what leaving each size out says of it."""
    parameters = fit_law(law, sample)
    residuals = _compute_log_errors(law, parameters, sample)
    held_out = np.zeros(len(sample))
    if len(sample.groups) <= len(law.parameters):
        return FittedLaw(law, parameters, residuals, np.zeros(0))
    for group in sample.groups:
        out = sample.group == group
        without = fit_law(law, sample.where(~out))
        held_out[out] = _compute_log_errors(law, without, sample.where(out))
    return FittedLaw(law, parameters, residuals, held_out)


def _compute_log_errors(
    law: CostLaw, parameters: dict[str, float], sample: FitSample
) -> Floats:
    """Return log(predicted / measured).

    A law may say 0 s where rows contradict each other.
    """
    ratios = law.seconds(parameters, sample.size) / sample.seconds
    return np.asarray(np.log(np.maximum(ratios, 1e-12)))


def fit_law(law: CostLaw, sample: FitSample) -> dict[str, float]:
    """Return the parameters of one law, all at least 0 and one above.

    Args:
        law: to fit.
        sample: has the sizes that the law needs.
    """
    if law.features is None:
        values = _fit_roofline(law, sample)
    else:
        design = np.column_stack(
            [f(sample.size) * np.ones(len(sample)) for f in law.features]
        )
        few = len(sample) <= len(law.parameters) + 1
        fit = _fit_largest if few else fit_relative
        values = fit(design / sample.seconds[:, None])
    return {
        name: float(value) for name, value in zip(law.parameters, values, strict=True)
    }


def fit_relative(relative: Floats, weights: Floats | float = 1.0) -> Floats:
    """Return the θ ≥ 0 for which the rows of `relative`·θ are nearest to 1.

    Non-negative least squares, three times over: wild rows count less in the next.

    Args:
        relative: features of points over their times, (points, features).
        weights: of each row's square root, (points,).

    Returns:
        θ, (features,).

    >>> sizes = np.array([1.0, 2.0, 4.0])
    >>> seconds = 0.5 + 2 * sizes
    >>> fit_relative(np.column_stack([np.ones(3), sizes]) / seconds[:, None]).round(6)
    array([0.5, 2. ])
    """
    scale = _find_largest(relative)
    scaled, trust = relative / scale, np.ones(len(relative))
    for _ in range(_PASSES):
        root = weights * np.sqrt(trust)
        solved, _ = optimize.nnls(scaled * root[:, None], root)
        trust = _trust(scaled @ solved - 1)
    return np.asarray(solved / scale)


def _trust(residuals: Floats) -> Floats:
    """Return how much each row counts: half at some twice the usual residual.

    Args:
        residuals: relative errors of all rows; below 1 % none counts less.
    """
    usual = max(_FLOOR, 1.4826 * float(np.median(np.abs(residuals))))
    return np.asarray(1 / np.sqrt(1 + (residuals / usual) ** 2))


def _fit_largest(relative: Floats) -> Floats:
    """Return the θ ≥ 0 that minimises the largest |relative·θ − 1|.

    It is a linear programme.
    """
    scale, one = _find_largest(relative), np.ones((len(relative), 1))
    design = relative / scale
    best = optimize.linprog(
        [*np.zeros(design.shape[1]), 1.0],
        A_ub=np.block([[design, -one], [-design, -one]]),
        b_ub=np.vstack([one, -one]),
        method="highs",
    )
    return np.asarray(best.x[:-1] / scale)


def _find_largest(columns: Floats) -> Floats:
    """Return the largest entry of each column.

    It brings features of any unit near 1.
    """
    largest = columns.max(axis=0)
    return np.asarray(np.where(largest > 0, largest, 1.0))


def _fit_roofline(law: CostLaw, sample: FitSample) -> Floats:
    """Return the better fit from two starts: all bound by compute, all by memory.

    Between them each intensity (bytes per FLOP) of the points is tried as the border.
    """
    features = np.column_stack([sample.size["flops"], sample.size["bytes"]])
    intensity = features[:, 1] / features[:, 0]
    best, least = np.zeros(3), math.inf
    for bound in (*np.unique(intensity), math.inf):
        memory = intensity >= bound
        taken = np.where(np.column_stack([~memory, memory]), features, 0.0)
        design = np.column_stack([np.ones(len(sample)), taken])
        values = fit_relative(design / sample.seconds[:, None])
        named = dict(zip(law.parameters, map(float, values), strict=True))
        error = float(np.abs(_compute_log_errors(law, named, sample)).sum())
        if error < least:
            best, least = values, error
    return best
