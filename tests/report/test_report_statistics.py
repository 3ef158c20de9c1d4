"""Statistics over seeds: closed forms, coverage, what censoring may and may not do."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simfed.ground.measure import ACCURACY, MEASURES
from simfed.report.comparison import describe_sides, format_median, inverse
from simfed.report.reach import choose_common_thresholds
from simfed.report.statistics import (
    compare_times,
    estimate_mean,
    estimate_measure,
    estimate_median_time,
)


def compare(a, b, known=True, **options):
    """Times of runs of which all got there, or, of `b`, none."""
    return compare_times(a, [True] * len(a), b, [known] * len(b), **options)


def test_a_mean_of_few_is_of_no_interval():
    assert estimate_mean([5.0]).coverage == 0
    assert math.isnan(estimate_mean([]).least)
    alone = estimate_measure([0.5], ACCURACY)
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)


def test_the_interval_of_a_measure_ends_where_the_measure_does():
    loss = estimate_measure([0.1, 2.0], MEASURES["regression"])
    assert (loss.low, loss.high > 2) == (0, True)
    share = estimate_measure([0.02, 0.98], ACCURACY)
    assert (share.low, share.high) == (0, 1)


def test_a_censored_time_is_longer_than_its_run_and_not_missing():
    # dropping the two that never got there would say 1.5
    median = estimate_median_time([1.0, 2.0, 9.0, 9.0], [True, True, False, False])
    assert (median.least, median.most, median.high) == (5.5, math.inf, math.inf)


def test_ratios_of_paired_times_are_averaged_as_logarithms():
    ratio = compare([10] * 3, [20] * 3).ratio
    assert (ratio.least, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
    paired = compare([1.0] * 2, [2.0, 8.0])
    assert paired.ratio.least == pytest.approx(4.0)  # √(2·8)
    t = 12.706204736432095
    assert paired.ratio.high == pytest.approx(4 * math.exp(t * math.log(2)))
    assert (paired.wins, paired.losses, paired.verdict) == (2, 0, 0)


@pytest.mark.parametrize(
    ("seeds", "confidence", "verdict"),
    [(4, 0.95, 0), (5, 0.95, 1), (5, 0.99, 0), (3, 0.75, 1), (2, 0.5, 1)],
)
def test_an_interval_that_covers_too_little_decides_nothing(seeds, confidence, verdict):
    """All seeds won by a censored margin: two seeds cover 50 %, five 94 %."""
    paired = compare([1] * seeds, [9] * seeds, known=False, confidence=confidence)
    assert (paired.wins, paired.verdict) == (seeds, verdict)


def test_a_run_that_ended_before_the_other_got_there_decides_nothing():
    paired = compare([10.0], [5.0], known=False)
    assert (paired.wins, paired.losses, paired.verdict) == (0, 0, 0)
    # cut at the very instant the other got there: later than that for certain
    assert compare([10.0], [10.0], known=False).wins == 1


def test_the_sign_test_is_exact():
    assert compare([1] * 5, [2] * 5).p_value == pytest.approx(2 * 0.5**5)


times = st.floats(0.1, 100.0)
pairs = st.lists(
    st.tuples(times, st.booleans(), times, st.booleans()), min_size=1, max_size=9
)


@settings(deadline=None)
@given(pairs)
def test_swapping_the_arms_swaps_the_verdict(rows):
    a, known_a, b, known_b = zip(*rows, strict=True)
    one = compare_times(a, known_a, b, known_b)
    other = compare_times(b, known_b, a, known_a)
    swapped = (other.losses, other.wins, -other.verdict)
    assert (one.wins, one.losses, one.verdict) == swapped
    assert one.p_value == other.p_value
    # ratios too, however many seeds there are: the middle of two is the geometric one
    back = inverse(other.ratio)
    assert one.ratio.least == pytest.approx(back.least, rel=1e-9)
    assert one.ratio.most == pytest.approx(back.most, rel=1e-9)


@settings(deadline=None)
@given(pairs)
def test_ending_a_run_sooner_never_turns_a_verdict_into_its_opposite(rows):
    """What censoring takes away is knowledge: true order statistics stay inside the
    bounds.
    """
    a, _, b, _ = zip(*rows, strict=True)
    everything = estimate_median_time(a, [True] * len(a))
    cut = float(np.median(a))
    a_cut, reached = np.minimum(a, cut), [x <= cut for x in a]
    shorter = estimate_median_time(a_cut, reached)
    assert shorter.least <= everything.least <= shorter.most
    paired = compare_times(a_cut, reached, b, [True] * len(b))
    truth = compare(a, b)
    assert paired.wins <= truth.wins
    assert paired.losses <= truth.losses


def test_intervals_cover_what_they_say():
    """1,500 studies of 8 seeds: 95 % intervals cover 95 %, to three standard errors."""
    rng = np.random.default_rng(1)
    studies, truth = 1500, 1.5
    whole, cut = [], []
    for _ in range(studies):
        a = rng.lognormal(2, 1, 8)
        b = a * truth * rng.lognormal(0, 0.3, 8)
        whole.append(compare(a, b).ratio)
        # end every run of B at its third quarter: the two slowest seeds of B are
        # censored
        end = np.sort(b)[5]
        cut.append(compare_times(a, [True] * 8, np.minimum(b, end), b <= end).ratio)

    def covered(ratios):
        return np.mean([ratio.low <= truth <= ratio.high for ratio in ratios])

    error = math.sqrt(0.95 * 0.05 / studies)
    assert covered(whole) == pytest.approx(0.95, abs=3 * error)
    # bounds only widen the interval, so it covers at least what it says
    nominal = cut[-1].coverage
    error = math.sqrt(nominal * (1 - nominal) / studies)
    assert covered(cut) >= nominal - 3 * error
    assert nominal >= 0.95


def against(times):
    return compare([1.0] * len(times), times)


def test_a_sentence_tells_settings_of_one_outcome_together():
    settings = [(f"{n} Mbps", against([1 + n / 10] * 3)) for n in range(1, 7)]
    settings += [("slow", against([0.5] * 3)), ("same", against([1.0] * 3))]
    assert describe_sides("top-k", "random-k", 0.9, settings) == (
        "top-k before random-k to 90 %: in 6 of 8 settings; random-k before top-k to "
        "90 %: at slow random-k 2.00× [2.00, 2.00] sooner in 3 of 3 seeds; top-k "
        "against random-k undecided to 90 %: at same no seed tells which is sooner."
    )


@pytest.mark.parametrize(
    ("paired", "words"),
    [
        (against([2.0] * 3), "a before b to 70 %: a 2.00× [2.00, 2.00] sooner in 3"),
        (against([2.0]), "no clear difference between a and b to 70 %: a 2.00× sooner "
         "in 1 of 1 seed, too few to decide."),
        (against([1.02] * 3), "no relevant difference between a and b to 70 %: a 1.02× "
         "[1.02, 1.02] sooner in 3 of 3 seeds, less than 1.05×."),
        # nobody knows of the second seed which was sooner, so no bound of the median
        (compare_times([1.0, 9.0], [True, False], [9.0, 9.0], [False, False]),
         "to 70 %: a sooner in 1 of 2 seeds, too few to decide."),
        (against([]), "a against b undecided to 70 %: no seed is finished for both."),
    ],
)  # fmt: skip
def test_a_sentence_says_how_much_and_how_surely(paired, words):
    paired = dataclasses.replace(paired, relevant_ratio=1.05)
    assert words in describe_sides("a", "b", 0.7, [("", paired)])


def test_a_median_that_censoring_leaves_open_keeps_its_known_upper_bound():
    # four of five got there: the median lies between the second and the third
    times_s, reached = [10.0, 20.0, 30.0, 40.0, 15.0], [True] * 4 + [False]
    middle = estimate_median_time(times_s, reached)
    row = {
        "seeds": 5, "reached": 4, "median": middle.exact, "at_least": middle.least,
        "at_most": middle.most, "low": middle.low, "high": middle.high,
        "coverage": middle.coverage,
    }  # fmt: skip
    assert format_median(row, 0.95).startswith("20 s to 30 s")


def test_what_reads_as_once_is_no_verdict_whatever_is_asked_for():
    a = np.array([10.0, 20.0, 30.0])
    paired = compare(a, 1.003 * a, relevant_ratio=1.0)
    assert (paired.wins, paired.clear, paired.verdict) == (3, 1, 0)
    assert compare(a, 1.01 * a, relevant_ratio=1.0).verdict == 1


@pytest.mark.parametrize(
    ("best", "threshold"),
    [(0.994, 0.99), (0.985, 0.98), (0.94, 0.9)],
)
def test_one_threshold_for_several_runs_is_the_hardest_round_number(best, threshold):
    curves = [pd.Series([0.5, best])] * 3
    assert choose_common_thresholds(curves) == [threshold]
