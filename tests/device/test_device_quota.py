"""Quotas of processor time: closed forms against a kernel played filling by filling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed.device import (
    DeviceSpec,
    ProcessorState,
    Regimes,
    build_processor,
    load_profile,
)
from simfed.device.quota import Quota
from simfed.ground import Streams

CONTAINER = Quota(0.15, 0.1)


def played(quota, work_s, left_s, fill_in_s):
    """The same filling by filling, from the definition."""
    taken_s = 0.0
    while True:
        step_s = min(work_s, left_s, fill_in_s)
        taken_s, work_s, left_s = taken_s + step_s, work_s - step_s, left_s - step_s
        if work_s <= 1e-11 * quota.period_s:
            return taken_s, left_s
        taken_s += fill_in_s - step_s
        left_s, fill_in_s = quota.most_s, quota.period_s


@given(
    share=st.floats(0.02, 0.98),
    period_s=st.sampled_from([0.01, 0.1, 1.0]),
    work=st.floats(1e-3, 40),
    left=st.floats(0, 1),
    fill=st.floats(1e-3, 1),
)
def test_work_ends_when_a_kernel_lets_it(share, period_s, work, left, fill):
    quota = Quota(share, period_s)
    asked = work * period_s, left * quota.most_s, fill * period_s
    taken_s, left_s = quota.run(*asked)
    wanted_s, _ = played(quota, *asked)
    assert taken_s == pytest.approx(wanted_s, abs=1e-7 * period_s)
    assert 0 <= left_s <= quota.most_s


def test_long_work_takes_one_over_the_share():
    # in one step, where 10¹¹ periods could not be gone through
    assert CONTAINER.run(1.5e9, 0.015, 0.1)[0] == pytest.approx(1e10, rel=1e-9)


def test_work_goes_on_with_what_was_left():
    """Two pieces of work in a row take what both take as one."""
    regimes = Regimes(quota=CONTAINER)
    whole_s, _ = regimes.run(0.05, 3.02, ProcessorState())
    first_s, memory = regimes.run(0.031, 3.02, ProcessorState())
    second_s, _ = regimes.run(0.019, 3.02 + first_s, memory)
    assert first_s + second_s == pytest.approx(whole_s)
    # compression of a millisecond waits for the filling that training has left nothing
    # of
    trained_s, memory = regimes.run(0.015, 3.02, ProcessorState())
    assert trained_s == 0.015
    assert regimes.run(0.001, 3.035, memory)[0] == pytest.approx(0.065 + 0.001)
    # still empty
    assert regimes.run(0.015, 3.09, memory)[0] == pytest.approx(0.01 + 0.015)
    # a filling while it rests gives it all of its allowance back
    assert regimes.run(0.015, 3.11, memory)[0] == 0.015


def test_the_speed_is_that_of_the_processor_and_the_quota_counts_its_seconds():
    regimes = Regimes(speed=0.5, quota=CONTAINER)
    assert regimes.run(0.007, 3.02, ProcessorState())[0] == 0.014


LOAD = {"trace": [["0 s", 0.1], ["60 s", 0.6]], "period": "100 s", "offset": "random"}


@pytest.mark.parametrize(
    ("keys", "work_s", "most_s"),
    [({"quota": {"share": 0.15}}, 0.02, 0.11), ({"background": LOAD}, 20.0, 50.001)],
    ids=["quota", "background"],
)
def test_periods_of_clients_are_apart_and_hang_on_the_seed_alone(keys, work_s, most_s):
    device = DeviceSpec.model_validate({"profile": "p", **keys})
    processor = build_processor(device, load_profile("rtx3090-ryzen4800h"))

    def seconds(client, seed=0):
        device = processor.client(Streams(seed), client)
        return tuple(
            device.duration_s(work_s, 10.0 + 51 * i, round=i, phase="training")
            for i in range(3)
        )

    of_clients = [seconds(client) for client in range(8)]
    assert of_clients == [seconds(client) for client in range(8)]
    assert len({*of_clients}) > 5
    assert seconds(1) != seconds(1, seed=5)
    assert all(work_s <= s < most_s for times in of_clients for s in times)
