"""How far new measurements lie from a fitted law, as a deviation in log-time.

What sizes that were left out of the fit are off by is the law's misfit, what its
parameters do not know, and the noise of medians, all at once. From one *session* (one
process that measured) to another the whole curve moves: a new one lies 2/S of the
sessions' variance further off than one of S that took part in the fit. How much
sessions differ is known from S of them only; from one session it is not known at all,
and left out. A curve of few sizes is drawn towards the typical curve of the same kind
of work, as if `BORROWED` points came from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from simfed.calibrate.fit import FitSample, FittedLaw
from simfed.ground.arrays import Bools

BORROWED = 4.0
LEVEL = 0.9
"""Probability of the intervals."""
QUANTILE = float(stats.norm.ppf(0.5 + LEVEL / 2))
"""Standard deviations to the end of an interval."""
_ALL = slice(None)
_SUREST = 0.001  # no law of time is known better than this
_LEAST_BOUND = 0.015  # errors below it are not outliers, whatever the others are


def estimate_typical_variance(
    fitted: Sequence[tuple[FittedLaw, FitSample]],
) -> float | None:
    """Return the median variance of curves with sizes that could be left out.

    A mean would let one bad curve spoil the others.

    Args:
        fitted: curves of one kind of work, each with what it was fitted to.

    Returns:
        In log-time, squared; None where there is no such curve.
    """
    own = [_estimate_variance(*one) for one in fitted if len(one[0].held_out)]
    return float(np.median(own)) if own else None


def estimate_spread(
    candidate: FittedLaw,
    sample: FitSample,
    typical: float | None,
    keep: Bools | slice = _ALL,
) -> float | None:
    """Return the standard deviation of log(new median / law).

    Args:
        candidate: the fitted law.
        sample: what it was fitted to.
        typical: of the same kind of work, by `estimate_typical_variance`.
        keep: the points whose errors count; all if omitted.

    Returns:
        None where nothing tells how far the law is off.
    """
    weights, variances = [], []
    if typical is not None:
        weights, variances = [BORROWED], [typical]
    if len(candidate.held_out):
        weights.append(float(len(candidate.held_out[keep])))
        variances.append(_estimate_variance(candidate, sample, keep))
    if not weights:
        return None
    return max(_SUREST, math.sqrt(np.average(variances, weights=weights)))


def estimate_coverage(
    candidate: FittedLaw, sample: FitSample, typical: float | None
) -> float | None:
    """Return the share of left-out medians inside their intervals.

    A size's own errors are no part of its interval.

    Args:
        candidate: the fitted law.
        sample: what it was fitted to.
        typical: of the same kind of work, by `estimate_typical_variance`.

    Returns:
        None where no size could be left out.
    """
    if not len(candidate.held_out):
        return None
    inside: list[bool] = []
    for group in sample.groups:
        out = sample.group == group
        spread = estimate_spread(candidate, sample, typical, ~out)
        assert spread is not None
        inside.extend(np.abs(candidate.held_out[out]) <= QUANTILE * spread)
    return float(np.mean(inside))


def _estimate_variance(
    candidate: FittedLaw, sample: FitSample, keep: Bools | slice = _ALL
) -> float:
    """Return the variance of the points that are kept, and of a session beyond them.

    Wild errors are held to three robust deviations.
    """
    errors = candidate.held_out[keep]
    bound = max(3 * 1.4826 * float(np.median(np.abs(errors))), _LEAST_BOUND)
    variance = float(np.mean(np.minimum(np.abs(errors), bound) ** 2))
    names = np.unique(sample.session)
    if len(names) < 2:
        return variance
    means = [candidate.residuals[sample.session == name].mean() for name in names]
    return variance + 2 * float(np.var(means, ddof=1)) / len(names)
