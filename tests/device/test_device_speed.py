"""Work across speed regimes: exact ends, closed forms, memory."""

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simfed.device import ProcessorState, Regimes
from simfed.device.speed import ClockSteps, Load, Thermal


def run(regimes, work_s, start_at_s):
    """How long it takes who was at rest before."""
    return regimes.run(work_s, start_at_s, ProcessorState())[0]


def test_work_begun_in_one_load_ends_in_the_next():
    regimes = Regimes(speed=2.0, load=Load((0.0, 10.0, 11.0), (0.0, 1.0, 0.5)))
    # from 9: 1 s × 2, then a second of nothing, then 1 per second
    assert run(regimes, 5.0, 9.0) == 5.0
    assert run(regimes, 0.0, 10.5) == 0.0


def test_a_repeating_load_is_crossed_in_closed_form_and_a_late_start_costs_no_digits():
    regimes = Regimes(load=Load((0.0, 1.0), (0.0, 0.5), period_s=2.0))
    # a million periods hold 1.5 million seconds of work; iterating them would take
    # seconds
    assert run(regimes, 1.5e12 + 0.25, 0.5) == 2e12 + 0.25
    regimes = Regimes(load=Load((0.0, 3600.0), (0.0, 0.5), period_s=7200.0))
    assert run(regimes, 1e-6, 7200.0 * 10**6 + 1.0) == 1e-6


def test_clock_steps_count_busy_time_and_a_rest_starts_them_over():
    clock = ClockSteps((0.5, 2.0, 1.0), (1.0, 3.0, math.inf), reset_after_s=10.0)
    regimes = Regimes(clock=clock)
    duration_s, memory = regimes.run(2.5, 0.0, ProcessorState())  # 0.5 in 1 s, 2 in 1 s
    assert duration_s == 2.0
    duration_s, memory = regimes.run(5.0, 2.0, memory)  # 4 in 2 s, 1 in 1 s
    assert duration_s == 3.0
    assert regimes.run(1.0, 6.0, memory)[0] == 1.0  # a rest of 1 s is too short
    assert regimes.run(1.0, 15.0, memory)[0] == 1.25  # 0.5 in 1 s, 0.5 in 0.25 s


def test_the_throttle_sets_in_when_first_order_heating_reaches_it():
    thermal = Thermal(60.0, 120.0, throttle_at=0.5, factor=0.25, resume_at=0.25)
    regimes = Regimes(thermal=thermal)
    at_s = 60.0 * math.log(2)  # 1 − exp(−t/60) = 1/2
    duration_s, memory = regimes.run(100.0, 0.0, ProcessorState())
    assert duration_s == pytest.approx(at_s + (100.0 - at_s) / 0.25, rel=1e-14)
    assert memory.throttled
    assert memory.heat == pytest.approx(1 - math.exp(-duration_s / 60), rel=1e-14)
    # cooling from there to 0.25 takes 120·ln(h/0.25)
    cool_s = 120 * math.log(memory.heat / 0.25)
    end_s = duration_s
    assert regimes.run(1.0, end_s + cool_s * 0.99, memory)[0] == pytest.approx(4.0)
    assert regimes.run(1.0, end_s + cool_s * 1.01, memory)[0] == pytest.approx(1.0)


def lists(low, high, count):
    return st.lists(st.floats(low, high), min_size=count, max_size=count)


@st.composite
def regimes(draw):
    load = clock = thermal = None
    if draw(st.booleans()):
        count = draw(st.integers(1, 4))
        share, gaps = draw(lists(0, 0.95, count)), draw(lists(0.1, 5, count))
        at_s = [math.fsum(gaps[:i]) for i in range(count)]
        period_s = math.fsum(gaps) if draw(st.booleans()) else math.inf
        load = Load(tuple(at_s), tuple(share), period_s)
    if draw(st.booleans()):
        count = draw(st.integers(1, 3))
        factors, lasts_s = draw(lists(0.2, 3, count)), draw(lists(0.1, 4, count - 1))
        rest_s = draw(st.floats(0, 3))
        clock = ClockSteps(tuple(factors), (*lasts_s, math.inf), rest_s)
    if draw(st.booleans()):
        heating_s, cooling_s = draw(lists(0.5, 9, 2))
        at, factor = draw(st.floats(0.05, 0.95)), draw(st.floats(0.1, 1))
        resume_at = at * draw(st.floats(0, 1))
        thermal = Thermal(heating_s, cooling_s, at, factor, resume_at)
    return Regimes(draw(st.floats(0.1, 4)), load, clock, thermal)


def speed_after(regimes, start_at_s, memory, busy_s):
    """The speed after `busy_s` of work, straight from the definitions."""
    speed = regimes.speed
    if load := regimes.load:
        t = start_at_s + busy_s
        t = t % load.period_s if math.isfinite(load.period_s) else t
        speed *= 1 - load.share[sum(at_s <= t for at_s in load.at_s) - 1]
    if clock := regimes.clock:
        left = memory.busy_s + busy_s
        ends_s = itertools.accumulate(clock.lasts_s)
        speed *= clock.factors[sum(end_s <= left for end_s in ends_s)]
    if regimes.thermal:
        heat = 1 - (1 - memory.heat) * math.exp(-busy_s / regimes.thermal.heating_s)
        if memory.throttled or heat >= regimes.thermal.throttle_at:
            speed *= regimes.thermal.factor
    return speed


@given(regimes(), st.floats(0, 50), st.floats(0.01, 20))
def test_the_integral_of_the_speed_over_the_duration_is_the_work(
    regimes, start_at_s, work_s
):
    duration_s = run(regimes, work_s, start_at_s)
    memory = regimes.rested(ProcessorState(), start_at_s)
    n = 4000
    step_s = duration_s / n
    assume(step_s < 0.05)  # no two switches of one factor within a step
    busy_s = (step_s * (i + 0.5) for i in range(n))
    speeds = [speed_after(regimes, start_at_s, memory, at_s) for at_s in busy_s]
    # the midpoint rule is exact but for the steps in which the speed switches
    slack = step_s * math.fsum(abs(b - a) for a, b in itertools.pairwise(speeds))
    done_s = pytest.approx(work_s, abs=slack + 1e-9, rel=1e-9)
    assert math.fsum(speeds) * step_s == done_s


@given(regimes(), st.floats(0, 50), st.floats(0.01, 20), st.floats(0, 1))
def test_work_in_two_pieces_without_a_pause_takes_as_long_as_in_one(
    regimes, start_at_s, work_s, cut
):
    whole_s, memory = regimes.run(work_s, start_at_s, ProcessorState())
    first_s, between = regimes.run(work_s * cut, start_at_s, ProcessorState())
    second_s, end = regimes.run(work_s * (1 - cut), start_at_s + first_s, between)
    assert first_s + second_s == pytest.approx(whole_s, rel=1e-9, abs=1e-9)
    assert end.heat == pytest.approx(memory.heat, rel=1e-6, abs=1e-9)
    assert end.busy_s == pytest.approx(memory.busy_s, rel=1e-9, abs=1e-9)
