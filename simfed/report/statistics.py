"""Statistics of comparisons: times that may be censored, in pairs of equal seeds.

A run that ends before it reaches an accuracy says that its time is *longer than the
run*, not that there is none. Every number here takes such a censored time for what it
is, an interval up to infinity:

- an arm's typical time is the median of these intervals: one number where they fix it,
  else a bound. (Kaplan and Meier's estimate would ask that runs end for reasons that
  have nothing to do with how fast they are. Here a fast link makes both rounds and run
  shorter.)
- two arms are compared seed by seed (both saw the same data, weights and batches) by
  the ratio of their times: a number where both are known, a bound where one is, nothing
  where neither is. With all ratios known: their geometric mean, and Student's t
  interval of their logarithms. Otherwise the median of these intervals.
- a median's interval lies between two order statistics, which needs no shape of the
  distribution: the narrowest pair that covers it with the confidence asked for or,
  where seeds are too few for that, all of the range, with what it does cover (1 −
  2^(1−n); 94 % for five seeds). An interval that covers clearly less than was asked for
  is shown, and decides nothing.

Pure functions; NumPy and SciPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special  # scipy.stats takes a second to import

from simfed.ground.arrays import Floats
from simfed.ground.measure import Measure


@dataclass(frozen=True, slots=True)
class Estimate:
    """A typical value, as far as it is known, and the interval around it.

    Means and medians over seeds come as this, whatever was estimated.
    """

    least: float
    """The lower bound of the typical value."""
    most: float
    """… and at most this; the same number where nothing is censored. NaN: no data."""
    low: float
    """Lower end of the interval; NaN where there is none."""
    high: float
    coverage: float
    """The interval's coverage; 0 where there is none."""

    @property
    def is_exact(self) -> bool:
        """True if nothing is left open by censoring."""
        return self.least == self.most

    @property
    def exact(self) -> float:
        """The typical value; NaN where censoring leaves it open."""
        return self.least if self.is_exact else math.nan

    def decides(self, confidence: float = 0.95) -> bool:
        """Return whether the interval covers enough for a verdict at this confidence.

        >>> coverages = 0.95, 0.9375, 0.75, 0
        >>> [Estimate(2, 2, 1.5, 3, coverage).decides() for coverage in coverages]
        [True, True, False, False]
        """
        return self.coverage > 0 and self.coverage >= confidence - _SLACK


_SLACK = 0.02
"""The coverage that an interval may lack and still decide: five seeds of which one is
censored cover 94 %, which is near enough to 95; three cover 75 %."""
_READS_AS_ONE = 1.005
_NOTHING = Estimate(math.nan, math.nan, math.nan, math.nan, 0.0)


def estimate_mean(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return the mean and Student's t interval; no interval from one value.

    Args:
        values: one per seed; none gives NaN everywhere.
        confidence: of the interval, between 0 and 1.

    >>> estimate_mean([1.0, 2.0, 3.0])
    Estimate(least=2.0, most=2.0, low=-0.484..., high=4.484..., coverage=0.95)
    """
    if not len(values):
        return _NOTHING
    mean = float(np.mean(np.asarray(values, dtype=float)))
    half = compute_half_width(values, confidence)
    if math.isnan(half):
        return Estimate(mean, mean, half, half, 0.0)
    return Estimate(mean, mean, mean - half, mean + half, confidence)


def estimate_measure(
    values: Sequence[float], measure: Measure, confidence: float = 0.95
) -> Estimate:
    """Return the mean of a measure's values, and an interval within its range.

    Args:
        values: one per seed.
        measure: says whether values are shares, which end at 1; all begin at 0.
        confidence: of the interval, between 0 and 1.

    >>> from simfed.ground.measure import ACCURACY
    >>> estimate_measure([0.95, 0.99], ACCURACY)
    Estimate(least=0.97, most=0.97, low=0.715..., high=1.0, coverage=0.95)
    """
    mean = estimate_mean(values, confidence)
    most = 1.0 if measure.is_share else math.inf
    # in this order of arguments a bound that is NaN stays so
    return replace(mean, low=max(mean.low, 0.0), high=min(mean.high, most))


def compute_half_width(values: Sequence[float], confidence: float = 0.95) -> float:
    """Return half the width of Student's t interval of the mean; NaN for one value."""
    if len(values) < 2:
        return math.nan
    quantile = special.stdtrit(len(values) - 1, 0.5 + confidence / 2)
    return float(
        quantile
        * np.std(np.asarray(values, dtype=float), ddof=1)
        / math.sqrt(len(values))
    )


def estimate_median_time(
    times_s: Sequence[float], reached: Sequence[bool], confidence: float = 0.95
) -> Estimate:
    """Return the median of times of which some are censored.

    Args:
        times_s: one per seed, in seconds or any other amount that grows.
        reached: in step; False: the true time is longer than this one.
        confidence: that the interval is to have, between 0 and 1; with few seeds it
            covers less, as `Estimate.coverage` says.

    >>> estimate_median_time([1.0, 2.0, 3.0], [True, True, True]).least
    2.0
    >>> estimate_median_time([1.0, 8.0, 9.0], [True, False, False])
    Estimate(least=8.0, most=inf, low=1.0, high=inf, coverage=0.75)
    """
    low = np.asarray(times_s, dtype=float)
    return _estimate_median(
        low, np.where(np.asarray(reached, dtype=bool), low, np.inf), confidence
    )


@dataclass(frozen=True, slots=True)
class PairedTimes:
    """Arm A against arm B over the same seeds.

    Made by `compare_times`; `comparison.py` puts it into rows and words.
    """

    seeds: int
    """Seeds that both arms have."""
    wins: int
    """Seeds in which A was sooner for certain."""
    losses: int
    """Seeds in which B was."""
    ratio: Estimate
    """Time of B over time of A: how many times sooner A was."""
    p_value: float
    """Exact two-sided sign test over the seeds that decided."""
    confidence: float = 0.95
    """Asked for; an interval that covers clearly less decides nothing."""
    relevant_ratio: float = 1.0
    """A difference below this many times is no verdict, however clear."""

    @property
    def decided(self) -> int:
        """Seeds that say which arm was sooner."""
        return self.wins + self.losses

    @property
    def clear(self) -> int:
        """1: A before B.

        -1: B before A; 0: not clear, as with one seed, which has no interval.
        """
        if not self.ratio.decides(self.confidence):
            return 0
        return int(self.ratio.low > 1) - int(self.ratio.high < 1)

    @property
    def verdict(self) -> int:
        """`clear`, where the difference is large enough to matter, and else 0."""
        sooner = max(
            self.ratio.least, 1 / self.ratio.most if self.ratio.most > 0 else math.inf
        )
        return self.clear if sooner >= self.needed_ratio else 0

    @property
    def needed_ratio(self) -> float:
        """The ratio that a verdict asks for; what reads as 1.00× is never enough."""
        return max(self.relevant_ratio, _READS_AS_ONE)


def compare_times(
    a_s: Sequence[float],
    a_reached: Sequence[bool],
    b_s: Sequence[float],
    b_reached: Sequence[bool],
    confidence: float = 0.95,
    relevant_ratio: float = 1.0,
) -> PairedTimes:
    """Compare the times of two arms; position i of both is the same seed.

    Args:
        a_s: times of arm A in seconds, one per seed.
        a_reached: in step; False: the true time is longer than this one.
        b_s: times of arm B.
        b_reached: as for A.
        confidence: that the ratio's interval is to have, between 0 and 1.
        relevant_ratio: how many times sooner an arm must be for a verdict.

    Returns:
        How often each arm was sooner for certain, and by how many times A was: the
        geometric mean of the seeds' ratios with Student's t interval of their
        logarithms where nothing is censored, else their median between order
        statistics.

    >>> compare_times([10, 20, 30], [True] * 3, [20, 40, 60], [True] * 3).ratio.least
    2.0
    >>> lost = compare_times([10, 20, 30], [True] * 3, [99] * 3, [False] * 3)
    >>> lost.wins, lost.ratio.least, lost.ratio.most, lost.ratio.low
    (3, 4.95, inf, 3.3)
    """
    a, b = np.asarray(a_s, dtype=float), np.asarray(b_s, dtype=float)
    exact_a = np.asarray(a_reached, dtype=bool)
    exact_b = np.asarray(b_reached, dtype=bool)
    # what took no time is sooner than all
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = b / a
        logs = np.log(ratios)
    low, high = np.where(exact_a, ratios, 0.0), np.where(exact_b, ratios, np.inf)
    # a censored time is longer than where it was cut, so a bound of exactly 1 decides
    # too
    wins = int(np.sum(np.where(exact_b, low > 1, low >= 1)))
    losses = int(np.sum(np.where(exact_a, high < 1, high <= 1)))
    # of fair coins, so both tails are alike
    p_value = min(1.0, 2 * float(special.bdtr(min(wins, losses), wins + losses, 0.5)))
    if bool((exact_a & exact_b).all()):
        mean = estimate_mean(logs.tolist(), confidence)
        middle, least, most = np.exp([mean.least, mean.low, mean.high]).tolist()
        ratio = Estimate(middle, middle, least, most, mean.coverage)
    else:
        ratio = _estimate_median(low, high, confidence, _find_geometric_middle)
    return PairedTimes(len(a), wins, losses, ratio, p_value, confidence, relevant_ratio)


def estimate_paired_difference(
    a: Sequence[float], b: Sequence[float], confidence: float = 0.95
) -> Estimate:
    """Return the mean of a − b over the same seeds, with Student's t interval.

    Args:
        a: values of one side, one per seed.
        b: those of the other, in step.
        confidence: of the interval, between 0 and 1.
    """
    differences = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    return estimate_mean(differences.tolist(), confidence)


def _find_arithmetic_middle(a: float, b: float) -> float:
    return (a + b) / 2


def _find_geometric_middle(a: float, b: float) -> float:
    """Return the middle of two ratios, the same for their inverses.

    Of 1/a and 1/b it is the inverse, whichever arm comes first.
    """
    return math.sqrt(a) * math.sqrt(b)


def _find_middle(values: Floats, between: Callable[[float, float], float]) -> float:
    """Return the median; of an even number, what lies between the two in the middle."""
    ordered = np.sort(values)
    a, b = float(ordered[(len(values) - 1) // 2]), float(ordered[len(values) // 2])
    return a if a == b else between(a, b)


def _estimate_median(
    low: Floats,
    high: Floats,
    confidence: float,
    between: Callable[[float, float], float] = _find_arithmetic_middle,
) -> Estimate:
    """Return the median, with its interval, of values known by bounds.

    The interval lies between order statistics.

    Args:
        low: lower bounds of the values.
        high: upper bounds, in step; equal to `low` where a value is known.
        confidence: that the interval is to have.
        between: the middle of two values, for an even number of them.
    """
    n = len(low)
    if n == 0:
        return _NOTHING
    least, most = _find_middle(low, between), _find_middle(high, between)
    rank, coverage = _choose_rank(n, confidence)
    if coverage == 0:
        return Estimate(least, most, math.nan, math.nan, 0.0)
    ends = float(np.sort(low)[rank]), float(np.sort(high)[n - 1 - rank])
    return Estimate(least, most, *ends, coverage)


def _choose_rank(n: int, confidence: float) -> tuple[int, float]:
    """Return how many values to leave out on each side, and what the rest covers.

    The interval between the outermost values that are left covers the median with that
    probability: 1 − 2·P(Binomial(n, ½) ≤ rank).

    >>> [_choose_rank(n, 0.95) for n in (1, 5, 6, 20)]
    [(0, 0.0), (0, 0.9375), (0, 0.96875), (5, 0.958...)]
    """
    rank = 0
    while (
        rank + 1 < (n + 1) // 2 and 1 - 2 * special.bdtr(rank + 1, n, 0.5) >= confidence
    ):
        rank += 1
    return rank, max(0.0, float(1 - 2 * special.bdtr(rank, n, 0.5)))
