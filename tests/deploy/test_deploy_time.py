"""Two clocks on one line, instants laid out without gaps, SimPy by the real clock."""

import itertools
import sys
import threading
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed.deploy import Instants, Refused
from simfed.deploy.clocks import ClockLine, Exchange
from simfed.deploy.measured import lay_out_legs
from simfed.deploy.world import RealTime

seconds = st.floats(0, 10)


@given(
    ahead_s=st.floats(-1e6, 1e6),
    ways=st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=20),
)
def test_the_other_clock_is_ahead_by_what_is_found_within_what_is_said(ahead_s, ways):
    """Whatever the two ways take, equal or not."""
    line, now_s = ClockLine(), 100.0
    for there_s, thinking_s, back_s in ways:
        heard_s = now_s + there_s
        came_s = heard_s + thinking_s + back_s
        line.add(
            Exchange(now_s, heard_s + ahead_s, heard_s + thinking_s + ahead_s, came_s)
        )
        now_s = came_s + 1.0
    assert abs(line.ahead_s - ahead_s) <= line.unsure_s + 1e-9 * (1 + abs(ahead_s))
    assert line.unsure_s <= min((a + c) / 2 for a, _, c in ways[-8:]) + 1e-6


@given(
    started_s=seconds,
    later=st.lists(st.floats(-1, 5), min_size=6, max_size=6),
    within=st.tuples(seconds, seconds, seconds),
)
def test_phases_and_host_time_fill_the_time_from_start_to_landing(
    started_s, later, within
):
    """Also where clocks are so wrong that instants stand in another order."""
    at_s = itertools.accumulate([started_s, *later])
    _, sent, received, begun, sending, arrived, landed = at_s
    landed = max(landed, started_s)
    instants = Instants(
        started_s, sent, received, begun, *within, sending, arrived, landed
    )
    legs = lay_out_legs(instants, "top-k", 8.0, 2.0)
    lasting_s = [leg.duration_s for leg in legs]
    assert min(lasting_s, default=0) >= 0
    assert sum(lasting_s) == pytest.approx(landed - started_s, abs=1e-9)


@pytest.mark.parametrize("wrong_s", [-9.0, -1.0, -0.1, 0.0, 0.1, 1.0, 9.0])
def test_what_a_client_measured_keeps_its_length_however_wrong_the_clocks_are(wrong_s):
    """Sent at 1 s, there at 2.

    3 s of work, the upload left at 5.5 s and was there at 6 s.
    """
    server, here = (0.0, 1.0), (2.0 + wrong_s, 2.2 + wrong_s)
    instants = Instants(*server, *here, 2.0, 0.5, 0.5, 5.5 + wrong_s, 6.0, 6.25)
    seconds_of = Counter()
    for leg in lay_out_legs(instants, "top-k", 8.0, 2.0):
        seconds_of[leg.phase] += leg.duration_s
    down_s = seconds_of["download"]
    found_s = seconds_of["training"], seconds_of["compression"], down_s
    assert found_s == pytest.approx((2.0, 0.5, min(max(1.0 + wrong_s, 0.0), 1.5)))
    assert down_s + seconds_of["upload"] == pytest.approx(1.5)


def test_clocks_can_be_asked_while_exchanges_go_on():
    """The connections' thread adds them, the run's reads."""
    line, done = ClockLine(), threading.Event()
    exchange = Exchange(0.0, 1.0, 1.0, 2.0)
    line.add(exchange)

    def add_some():
        while not done.is_set():
            line.add(exchange)

    other = threading.Thread(target=add_some)
    pause_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        other.start()
        assert {line.ahead_s for _ in range(3_000)} == {0.0}
    finally:
        sys.setswitchinterval(pause_s)
        done.set()
        other.join()


def test_clock_that_stood_still_counts_from_its_newest_exchange():
    """As if a laptop slept: what was known before contradicts what is known now."""
    line = ClockLine()
    for now_s in (0.0, 2.0):
        line.add(Exchange(now_s, now_s + 100.0, now_s + 100.0, now_s + 0.01))
    line.add(Exchange(60.0, 110.0, 110.0, 60.5))
    assert line.ahead_s == pytest.approx(49.75)
    line.add(Exchange(62.0, 112.0, 112.0, 62.1))
    assert line.unsure_s == pytest.approx(0.05)


@pytest.mark.parametrize("times", [None, {}, {"received_s": "now"}, [1, 2]])
def test_times_that_are_none_are_refused(times):
    with pytest.raises(Refused):
        Instants.of(times, lambda s: s, started_s=0, sent_s=0, arrived_s=1, landed_s=1)


@pytest.mark.parametrize("zero_s", [0.0, 100.0])
def test_an_event_comes_when_its_instant_has_come(zero_s):
    env = RealTime(initial_time=zero_s)
    env.begin()
    began_s = time.monotonic()
    env.run(until=env.timeout(0.2))
    assert env.now == zero_s + 0.2 <= env.real_now_s() < zero_s + 10.0
    assert time.monotonic() - began_s >= 0.2


def test_what_happened_before_a_deadline_counts_however_late_it_is_heard_of():
    """The story was busy from 0 to 0.3 s.

    The message came at 0.1 s, the deadline at 0.2 s.
    """
    env, heard = RealTime(), []
    env.begin()

    def story():
        zero_s = time.monotonic()
        other = threading.Thread(
            target=env.post, args=(zero_s + 0.1, lambda: heard.append("it"))
        )
        deadline = env.timeout(0.2)
        time.sleep(0.3)  # as a merge does
        other.start()
        other.join()
        assert time.monotonic() - zero_s >= 0.3
        yield deadline
        heard.append("the deadline")

    env.run(until=env.process(story()))
    assert heard == ["it", "the deadline"]
