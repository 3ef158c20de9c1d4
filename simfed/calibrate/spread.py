"""The spread of new measurements around a fitted law (needs scipy).

Regression in log-time with two sources of scatter. *Within* a session (one process that
measured) points lie off the law because it does not quite fit and medians are noisy;
from one *session* to another the whole curve moves, because memory, clocks and
neighbours differ. A new median at a size of leverage h has the variance

    within² · (1 + h) + session² · (1 + 1/S)

after S sessions, and Student's t with Satterthwaite's degrees of freedom. With few
sizes per curve the two are themselves uncertain: both are drawn towards those of the
typical curve of the same kind of work, as if `BORROWED` degrees of freedom came from
it. How much sessions differ is known from S of them only, however many curves; from one
session it is not known at all, and left out.

Source: textbook variance components (F. E. Satterthwaite, Biometrics Bulletin 2, 1946).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from simfed.calibrate.fit import Candidate, FitSample
from simfed.device.curve import Spread
from simfed.device.laws import CostLaw, Size
from simfed.ground.arrays import Floats

BORROWED = 4.0
"""Degrees of freedom that a curve's spread borrows from its kin."""

_SUREST = 0.001  # no law of time is known better than this
_LEAST_BOUND = 0.015  # residuals below it are not outliers, whatever the others are


@dataclass(frozen=True, slots=True)
class Typical:
    """Variances of the typical curve of one kind of work."""

    within: float
    session: float


@dataclass(frozen=True, slots=True)
class _Components:
    squares: float
    """Sum of squared residuals within sessions."""
    freedom: float
    """Degrees of freedom behind it."""
    session: float
    """Variance between sessions; 0 where there is one."""
    sessions: int


def estimate_typical_spread(
    fitted: Sequence[tuple[Candidate, FitSample]],
) -> Typical | None:
    """Return the medians over the curves that have points to spare.

    None where none has. (A mean would let one bad curve spoil the others.)
    """
    parts = [_estimate_components(c.residuals, s, c.parameters) for c, s in fitted]
    spare = [part for part in parts if part.freedom > 0]
    if not spare:
        return None
    within = float(np.median([part.squares / part.freedom for part in spare]))
    return Typical(within, float(np.median([part.session for part in spare])))


def estimate_spread(
    candidate: Candidate, sample: FitSample, typical: Typical | None
) -> Spread | None:
    """Return the uncertainty of a fit; None where nothing says how large it is."""
    return _estimate_law_spread(candidate.law, candidate.parameters, sample, typical)


def coverage(
    candidate: Candidate, sample: FitSample, typical: Typical | None, level: float
) -> float | None:
    """Return the share of left-out medians inside their predicted intervals.

    The prediction is without their size; None where no size could be left out.
    """
    inside: list[bool] = []
    for (parameters, others), group in zip(candidate.fits, sample.groups, strict=False):
        spread = _estimate_law_spread(candidate.law, parameters, others, typical)
        if spread is None:
            return None
        out = sample.group == group
        factor = compute_interval_factor(
            candidate.law, parameters, spread, sample.where(out).size, level
        )
        inside.extend(np.abs(candidate.held_out[out]) <= np.log(factor))
    return float(np.mean(inside)) if inside else None


def compute_interval_factor(
    law: CostLaw,
    parameters: Mapping[str, float],
    spread: Spread,
    size: Size,
    level: float,
) -> Floats:
    """Return the factor f of the interval of a new median.

    It lies in [predicted/f, predicted·f] with probability `level`.
    """
    jacobian = _jacobian(law, parameters, size)
    parameter_variance = np.einsum("ij,jk,ik->i", jacobian, spread.covariance, jacobian)
    quantile = stats.t.ppf(0.5 + level / 2, spread.freedom)
    return np.asarray(
        np.exp(quantile * np.sqrt(spread.residual**2 + parameter_variance))
    )


def _estimate_law_spread(
    law: CostLaw,
    parameters: Mapping[str, float],
    sample: FitSample,
    typical: Typical | None,
) -> Spread | None:
    residuals = np.log(law.seconds(parameters, sample.size) / sample.seconds)
    scatter = _estimate_components(residuals, sample, parameters)
    borrowed = BORROWED if typical is not None else 0.0
    freedom = scatter.freedom + borrowed
    if freedom == 0:
        return None
    within = (
        scatter.squares + (borrowed * typical.within if typical else 0.0)
    ) / freedom
    within = max(within, _SUREST**2)
    session = 0.0
    if scatter.sessions > 1:
        others = scatter.sessions - 1
        pulled = others * scatter.session + (
            borrowed * typical.session if typical else 0.0
        )
        session = pulled / (others + borrowed) * (1 + 1 / scatter.sessions)
        freedom = (within + session) ** 2 / (within**2 / freedom + session**2 / others)
    covariance = within * _inverse_information(_jacobian(law, parameters, sample.size))
    return Spread(math.sqrt(within + session), freedom, covariance)


def _estimate_components(
    residuals: Floats, sample: FitSample, parameters: Mapping[str, float]
) -> _Components:
    used = sum(value > 0 for value in parameters.values())
    names = np.unique(sample.session)
    freedom = len(residuals) - used - (len(names) - 1)
    if len(names) == 1 or freedom <= 0:
        freedom = max(0, len(residuals) - used)
        return _Components(
            _sum_robust_squares(residuals) if freedom else 0.0, freedom, 0.0, 1
        )
    means = np.array([residuals[sample.session == name].mean() for name in names])
    moved = residuals - means[np.searchsorted(names, sample.session)]
    squares = _sum_robust_squares(moved)
    per_session = len(residuals) / len(names)
    between = float(np.var(means, ddof=1)) - squares / freedom / per_session
    return _Components(squares, freedom, max(0.0, between), len(names))


def _inverse_information(jacobian: Floats) -> Floats:
    """Return (JᵀJ)⁻¹ for the columns that are not 0; 0 for the others."""
    scale = np.linalg.norm(jacobian, axis=0)  # seconds per FLOP are tiny numbers
    used = scale > 0
    scaled = jacobian[:, used] / scale[used]
    inverse = np.zeros((len(scale), len(scale)))
    information = scaled.T @ scaled
    units = np.outer(scale[used], scale[used])
    inverse[np.ix_(used, used)] = np.linalg.pinv(information, rcond=1e-10) / units
    return inverse


def _sum_robust_squares(residuals: Floats) -> float:
    """Return the sum of squared residuals, wild ones held to 3 robust deviations."""
    bound = max(3 * 1.4826 * float(np.median(np.abs(residuals))), _LEAST_BOUND)
    return float(np.sum(np.minimum(np.abs(residuals), bound) ** 2))


def _jacobian(law: CostLaw, parameters: Mapping[str, float], size: Size) -> Floats:
    """Return d log seconds / d parameter, one row per point.

    0 for parameters that are held at 0.
    """
    columns: list[Floats | None] = []
    for name in law.parameters:
        step = 1e-5 * parameters[name]
        if step == 0:
            columns.append(None)
            continue
        rise, fall = (
            np.log(law.seconds({**parameters, name: parameters[name] + by}, size))
            for by in (step, -step)
        )
        columns.append(np.atleast_1d((rise - fall) / (2 * step)))
    filled = next(c for c in columns if c is not None)
    return np.column_stack([np.zeros_like(filled) if c is None else c for c in columns])
