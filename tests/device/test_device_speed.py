"""Work across speed regimes: exact ends, closed forms, memory, one client's regimes
under its seed.
"""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simfed import InputError
from simfed.device import (
    DeviceSpec,
    ProcessorState,
    Regimes,
    build_processor,
    load_profile,
)
from simfed.device.speed import ClockSteps, Load, Thermal
from simfed.ground import Streams


@pytest.fixture
def profile():
    return load_profile("rtx3090-ryzen4800h")


def test_work_begun_in_one_load_ends_in_the_next():
    regimes = Regimes(speed=2.0, load=Load((0.0, 10.0, 11.0), (0.0, 1.0, 0.5)))
    # from 9: 1 s × 2, then a second of nothing, then 1 per second
    assert regimes.run(5.0, 9.0, ProcessorState())[0] == 5.0
    assert regimes.run(2.0, 9.0, ProcessorState())[0] == 1.0
    assert regimes.run(1.0, 10.5, ProcessorState())[0] == 1.5
    assert regimes.run(0.0, 10.5, ProcessorState())[0] == 0.0


def test_a_repeating_load_is_crossed_in_closed_form():
    load = Load((0.0, 1.0), (0.0, 0.5), period_s=2.0)
    # a million periods hold 1.5 million seconds of work; iterating them would take
    # seconds
    assert (
        Regimes(load=load).run(1.5e12 + 0.25, 0.5, ProcessorState())[0] == 2e12 + 0.25
    )


def test_a_late_start_costs_no_digits():
    load = Load((0.0, 3600.0), (0.0, 0.5), period_s=7200.0)
    late = Regimes(load=load).run(1e-6, 7200.0 * 10**6 + 1.0, ProcessorState())[0]
    assert late == 1e-6


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


shares = st.lists(st.floats(0, 0.95), min_size=1, max_size=4)


@st.composite
def regimes(draw):
    load = clock = thermal = None
    if draw(st.booleans()):
        share = draw(shares)
        gaps = draw(
            st.lists(st.floats(0.1, 5), min_size=len(share), max_size=len(share))
        )
        at_s = [math.fsum(gaps[:i]) for i in range(len(gaps))]
        period_s = math.fsum(gaps) if draw(st.booleans()) else math.inf
        load = Load(tuple(at_s), tuple(share), period_s)
    if draw(st.booleans()):
        factors = draw(st.lists(st.floats(0.2, 3), min_size=1, max_size=3))
        lasts = draw(
            st.lists(
                st.floats(0.1, 4), min_size=len(factors) - 1, max_size=len(factors) - 1
            )
        )
        clock = ClockSteps(tuple(factors), (*lasts, math.inf), draw(st.floats(0, 3)))
    if draw(st.booleans()):
        at = draw(st.floats(0.05, 0.95))
        thermal = Thermal(
            draw(st.floats(0.5, 9)),
            draw(st.floats(0.5, 9)),
            at,
            draw(st.floats(0.1, 1)),
            at * draw(st.floats(0, 1)),
        )
    return Regimes(draw(st.floats(0.1, 4)), load, clock, thermal)


def speed_after(regimes, start_at_s, memory, busy_s):
    """The speed after `busy_s` of work, straight from the definitions."""
    speed = regimes.speed
    if regimes.load:
        t = start_at_s + busy_s
        t = t % regimes.load.period_s if math.isfinite(regimes.load.period_s) else t
        speed *= (
            1
            - [
                s
                for a, s in zip(regimes.load.at_s, regimes.load.share, strict=True)
                if a <= t
            ][-1]
        )
    if regimes.clock:
        left = memory.busy_s + busy_s
        for factor, lasts in zip(
            regimes.clock.factors, regimes.clock.lasts_s, strict=True
        ):
            if left < lasts:
                speed *= factor
                break
            left -= lasts
    if regimes.thermal:
        heat = 1 - (1 - memory.heat) * math.exp(-busy_s / regimes.thermal.heating_s)
        if memory.throttled or heat >= regimes.thermal.throttle_at:
            speed *= regimes.thermal.factor
    return speed


@given(regimes(), st.floats(0, 50), st.floats(0.01, 20))
def test_the_integral_of_the_speed_over_the_duration_is_the_work(
    regimes, start_at_s, work_s
):
    duration_s, _ = regimes.run(work_s, start_at_s, ProcessorState())
    memory = regimes.rested(ProcessorState(), start_at_s)
    n = 4000
    step_s = duration_s / n
    assume(step_s < 0.05)  # no two switches of one factor within a step
    speeds = [
        speed_after(regimes, start_at_s, memory, (i + 0.5) * step_s) for i in range(n)
    ]
    # the midpoint rule is exact but for the steps in which the speed switches
    slack = step_s * math.fsum(abs(b - a) for a, b in itertools.pairwise(speeds))
    assert math.fsum(speeds) * step_s == pytest.approx(
        work_s, abs=slack + 1e-9, rel=1e-9
    )


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


FULL = {
    "profile": "p",
    "cores": {"count": 4, "measured": 2, "efficiency": 0.5},
    "background": {
        "trace": [["0 s", 0.1], ["60 s", 0.6]],
        "period": "100 s",
        "offset": "random",
    },
}


def timeline(device, rounds):
    now, log = 0.0, []
    for round in rounds:
        for phase, work_s in (("training", 20.0), ("compression", 0.5)):
            now += device.duration_s(work_s, now, round=round, phase=phase)
            log.append(now)
        now += 15.0
    return log


def test_every_client_has_its_own_timeline_and_the_same_one_again(profile):
    processor = build_processor(DeviceSpec.model_validate(FULL), profile)
    first = timeline(processor.client(Streams(0), 0), range(5))
    assert first == timeline(processor.client(Streams(0), 0), range(5))
    assert first != timeline(processor.client(Streams(0), 1), range(5))
    assert first != timeline(processor.client(Streams(1), 0), range(5))


@pytest.mark.parametrize("threads", [0, -1, "four"])
def test_a_profile_of_no_threads_does_not_say_how_many_cores_it_was_measured_with(
    profile, threads
):
    odd = replace(profile, provenance={"threads": threads})
    with pytest.raises(InputError, match="does not say"):
        build_processor(
            DeviceSpec.model_validate({"profile": "p", "cores": {"count": 4}}), odd
        )
