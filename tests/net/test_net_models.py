"""TCP start-up, held against sums on paper."""

from __future__ import annotations

from math import sqrt

import pytest

from simfed.net import (
    Access,
    FlowStart,
    Fluid,
    LinkTrace,
    Star,
    Tcp,
    Tier,
    Trace,
    play,
    replay,
    tree,
)
from simfed.net.models import make_model

SEGMENT = 1502.0


def link(capacity, latency=0.0, **more):
    return {"capacity_bytes_per_s": capacity, "latency_s": latency, **more}


def upload(links, size, count=1, **options):
    """Completion of the first of so many transfers over all of the links at once."""
    flow = {"start_s": 0.0, "size_bytes": size, "path": list(range(len(links)))}
    case = {"links": links, "flows": [dict(flow) for _ in range(count)]}
    return replay(case, {"kind": "tcp", **options})[0]


def alone(size, capacity, latency, loss=0.0, **options):
    """Completion of one transfer over one link."""
    return upload([link(capacity, latency, loss=loss)], size, **options)


def begins_s(latency, rate):
    """A handshake, and the way up of the first segment."""
    return 2 * latency + 2 * 54 / rate + latency


def test_a_small_transfer_takes_handshake_latency_and_its_bytes_with_headers():
    expected = begins_s(0.05, 1e5) + SEGMENT / 1e5
    assert alone(1448.0, 1e5, 0.05) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("segments", "rounds", "last"),
    [(10, 0, 10), (11, 1, 1), (30, 1, 20), (31, 2, 1), (70, 2, 40), (71, 3, 1)],
)
def test_each_window_waits_for_a_round_trip_and_is_twice_the_last(
    segments, rounds, last
):
    # 10 + 20 + 40 segments at a rate so high that only round trips count
    rate, latency = 1e9, 0.1
    round_trip = 2 * latency + SEGMENT / rate
    expected = begins_s(latency, rate) + rounds * round_trip + last * SEGMENT / rate
    took = alone(1448.0 * segments, rate, latency)
    assert took == pytest.approx(expected, rel=1e-9)


def test_once_a_window_lasts_a_round_trip_nothing_pauses():
    # one window of 10 segments takes 0.15 s at 1e5 bytes/s, a round trip 0.1 s
    expected = begins_s(0.05, 1e5) + 500 * SEGMENT / 1e5
    assert alone(1448.0 * 500, 1e5, 0.05) == pytest.approx(expected, rel=1e-12)


def test_slow_start_ends_at_the_fair_share_not_at_the_links_rate():
    """Ten at once on one link: each window lasts a round trip at a tenth of the rate,
    though not at all of it.
    """
    begins = begins_s(0.05, 1e6)
    many = upload([link(1e6, 0.05)], 144800.0, count=10)
    assert many == pytest.approx(begins + 10 * 100 * SEGMENT / 1e6, rel=1e-9)
    # alone it pauses
    assert alone(144800.0, 1e6, 0.05) > begins + 100 * SEGMENT / 1e6 + 0.1


def test_a_segment_is_stored_and_forwarded_by_every_link_but_the_slowest():
    links = [link(rate) for rate in (1e5, 2e5, 4e5)]
    expected = 100 * SEGMENT / 1e5 + SEGMENT / 2e5 + SEGMENT / 4e5
    took = upload(links, 144800.0, handshake=False)
    assert took == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("receive", [0.9e5, 1e5, 1.0001e5, 1e6])
def test_links_that_cannot_limit_store_and_forward_too(receive):
    links = [link(1e5, 0.005), link(4e5, 0.002), link(receive)]
    expected = upload(links, 30_000.0)
    ap = [Tier("ap", 1, 4e5, latency_s=0.002)]
    topology = tree(1, Access(1e5, latency_s=0.005), ap, receive_bytes_per_s=receive)
    [took] = play(topology, [FlowStart(0.0, 0, 30_000.0)], "tcp")
    assert took.duration_s == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("at_s", "rate"), [(0.0, 2e5), (1.5, 4e5)])
def test_a_varying_link_that_cannot_limit_stores_and_forwards_at_its_present_rate(
    at_s, rate
):
    trace = LinkTrace(Trace.of([0.0, 1.0], [2e5, 4e5], 3.0, "hold"))
    star = Star(1, up_bytes_per_s=1e5, receive_bytes_per_s=trace)
    [took] = play(star, [FlowStart(at_s, 0, 1448.0)], Tcp(handshake=False))
    assert took.duration_s == pytest.approx(SEGMENT / 1e5 + SEGMENT / rate, rel=1e-12)


def test_random_loss_caps_the_rate_as_mathis_says():
    size, latency, loss = 1448.0 * 100_000, 0.05, 0.01
    rate = 1448.0 / (2 * latency) * sqrt(1.5 / loss)
    assert alone(size, 1e9, latency, loss) == pytest.approx(size / rate, rel=0.01)
    without = alone(size, rate / 2, latency)
    assert alone(size, rate / 2, latency, loss) == pytest.approx(without)


def test_a_long_fat_path_starts_slowly_then_moves_a_window_per_round_trip():
    """44.7 MB over 1 Gbps and 200 ms: windows of 10 to 1,280 segments, a round trip
    each, then 3 MB per round trip in place of the 25 MB that the path holds.
    """
    size, rate, latency = 44.7e6, 1.25e8, 0.1
    round_trip, begins = 2 * latency + SEGMENT / rate, begins_s(latency, rate)
    rest_s = (size - 10 * 1448 * (2**8 - 1)) / (3e6 / round_trip)
    expected = begins + 8 * round_trip + rest_s
    assert alone(size, rate, latency) == pytest.approx(expected, rel=1e-12)
    assert expected == pytest.approx(4.634, abs=1e-3)
    # without a window it goes on until a window lasts a round trip at the link's rate
    left_s = (size - 10 * 1448 * (2**11 - 1)) * SEGMENT / 1448 / rate
    expected = begins + 11 * round_trip + left_s
    assert alone(size, rate, latency, window_bytes=None) == pytest.approx(expected)


def test_a_transfer_that_does_not_fill_the_window_is_as_without_one():
    # 10 + 20 + 40 segments, then one window of 64: beyond them it waits for the window
    for segments, waits_s in ((70 + 64, 0.0), (70 + 65, 0.2)):
        with_window, without = (
            alone(1448.0 * segments, 1e8, 0.1, window_bytes=window)
            for window in (1448.0 * 64, None)
        )
        near = without if not waits_s else pytest.approx(without + waits_s, rel=0.01)
        assert with_window == near


def test_a_window_below_the_first_burst_limits_from_the_beginning():
    took = alone(1e6, 1e8, 0.1, window_bytes=5000.0, handshake=False)
    assert took == pytest.approx(0.1 + 1e6 / 5000 * 0.2, rel=1e-4)


def test_a_window_leaves_its_links_to_others():
    """Of two on one link the nearer gets what the farther one's window leaves."""
    star = Star(2, latency_s=[0.5, 0.005], receive_bytes_per_s=1.502e6)
    model = Tcp(handshake=False, window_bytes=0.5e6)
    far, near = play(star, [FlowStart(0.0, k, 30e6) for k in (0, 1)], model)
    assert far.bottleneck is None
    assert far.duration_s == pytest.approx(30e6 / 0.5e6, rel=0.1)
    assert near.bottleneck == "server/receive"
    assert near.duration_s == pytest.approx(30e6 / 1e6, rel=0.1)


def test_losses_of_a_path_combine():
    two, one = (
        upload([link(1e9, 0.05 / len(losses), loss=loss) for loss in losses], 1e7)
        for losses in ((0.02, 0.03), (1 - 0.98 * 0.97,))
    )
    assert two == pytest.approx(one, rel=1e-4)


def test_models_come_by_name_by_options_or_as_objects():
    assert make_model("fluid") == Fluid()
    assert make_model({"kind": "tcp", "header_bytes": 4}) == Tcp(header_bytes=4)
    model = Tcp(handshake=False)
    assert make_model(model) is model
