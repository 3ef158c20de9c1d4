"""TCP start-up, held against sums on paper."""

from __future__ import annotations

from math import sqrt

import pytest

from simfed import InputError
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


def alone(size, capacity, latency, **options):
    """Completion of one transfer over one link."""
    link = {
        "capacity_bytes_per_s": capacity,
        "latency_s": latency,
        "loss": options.pop("loss", 0.0),
    }
    flow = {"start_s": 0.0, "size_bytes": size, "path": [0]}
    return replay({"links": [link], "flows": [flow]}, {"kind": "tcp", **options})[0]


def test_a_small_transfer_takes_handshake_latency_and_its_bytes_with_headers():
    handshake = 2 * 0.05 + 2 * 54 / 1e5
    assert alone(1448.0, 1e5, 0.05) == pytest.approx(
        handshake + 0.05 + SEGMENT / 1e5, rel=1e-12
    )


def test_each_window_waits_for_a_round_trip_and_is_twice_the_last():
    # 10 + 20 + 40 segments at a rate so high that only round trips count
    rate, latency = 1e9, 0.1
    round_trip = 2 * latency + SEGMENT / rate
    begins = 2 * latency + 2 * 54 / rate + latency
    for segments, rounds, last in (
        (10, 0, 10),
        (11, 1, 1),
        (30, 1, 20),
        (31, 2, 1),
        (70, 2, 40),
        (71, 3, 1),
    ):
        expected = begins + rounds * round_trip + last * SEGMENT / rate
        assert alone(1448.0 * segments, rate, latency) == pytest.approx(
            expected, rel=1e-9
        )


def test_once_a_window_lasts_a_round_trip_nothing_pauses():
    # one window of 10 segments takes 0.15 s at 1e5 bytes/s, a round trip 0.1 s
    begins = 0.1 + 2 * 54 / 1e5 + 0.05
    assert alone(1448.0 * 500, 1e5, 0.05) == pytest.approx(
        begins + 500 * SEGMENT / 1e5, rel=1e-12
    )


def test_slow_start_ends_at_the_fair_share_not_at_the_links_rate():
    """Ten at once on one link: each window lasts a round trip at a tenth of the rate,
    though not at all of it.
    """
    link = {"capacity_bytes_per_s": 1e6, "latency_s": 0.05}
    flow = {"start_s": 0.0, "size_bytes": 144800.0, "path": [0]}
    many = replay({"links": [link], "flows": [dict(flow) for _ in range(10)]}, "tcp")
    begins = 0.1 + 2 * 54 / 1e6 + 0.05
    assert many[0] == pytest.approx(begins + 10 * 100 * SEGMENT / 1e6, rel=1e-9)
    # alone it pauses
    assert alone(144800.0, 1e6, 0.05) > begins + 100 * SEGMENT / 1e6 + 0.1


def test_a_segment_is_stored_and_forwarded_by_every_link_but_the_slowest():
    links = [{"capacity_bytes_per_s": c, "latency_s": 0.0} for c in (1e5, 2e5, 4e5)]
    flow = {"start_s": 0.0, "size_bytes": 144800.0, "path": [0, 1, 2]}
    took = replay(
        {"links": links, "flows": [flow]}, {"kind": "tcp", "handshake": False}
    )[0]
    assert took == pytest.approx(
        100 * SEGMENT / 1e5 + SEGMENT / 2e5 + SEGMENT / 4e5, rel=1e-12
    )


@pytest.mark.parametrize("receive", [0.9e5, 1e5, 1.0001e5, 1e6])
def test_links_that_cannot_limit_store_and_forward_too(receive):
    links = [
        {"capacity_bytes_per_s": rate, "latency_s": delay}
        for rate, delay in ((1e5, 0.005), (4e5, 0.002), (receive, 0.0))
    ]
    flow = {"start_s": 0.0, "size_bytes": 30_000.0, "path": [0, 1, 2]}
    expected = replay({"links": links, "flows": [flow]}, "tcp")[0]
    ap = [Tier("ap", 1, 4e5, latency_s=0.002)]
    topology = tree(1, Access(1e5, latency_s=0.005), ap, receive_bytes_per_s=receive)
    assert play(topology, [FlowStart(0.0, 0, 30_000.0)], "tcp")[
        0
    ].duration_s == pytest.approx(expected, rel=1e-12)


def test_a_varying_link_that_cannot_limit_stores_and_forwards_at_its_present_rate():
    def took(at_s):
        trace = LinkTrace(Trace.of([0.0, 1.0], [2e5, 4e5], 3.0, "hold"))
        star = Star(1, up_bytes_per_s=1e5, receive_bytes_per_s=trace)
        return play(star, [FlowStart(at_s, 0, 1448.0)], Tcp(handshake=False))[
            0
        ].duration_s

    assert took(0.0) == pytest.approx(SEGMENT / 1e5 + SEGMENT / 2e5, rel=1e-12)
    assert took(1.5) == pytest.approx(SEGMENT / 1e5 + SEGMENT / 4e5, rel=1e-12)


def test_random_loss_caps_the_rate_as_mathis_says():
    size, latency, loss = 1448.0 * 100_000, 0.05, 0.01
    rate = 1448.0 / (2 * latency) * sqrt(1.5 / loss)
    assert alone(size, 1e9, latency, loss=loss) == pytest.approx(size / rate, rel=0.01)
    assert alone(size, rate / 2, latency, loss=loss) == pytest.approx(
        alone(size, rate / 2, latency)
    )


def test_a_long_fat_path_starts_slowly_then_moves_a_window_per_round_trip():
    """44.7 MB over 1 Gbps and 200 ms: windows of 10 to 1,280 segments, a round trip
    each, then 3 MB per round trip in place of the 25 MB that the path holds.
    """
    size, rate, latency, headers = 44.7e6, 1.25e8, 0.1, SEGMENT / 1448
    round_trip = 2 * latency + SEGMENT / rate
    begins = 2 * latency + 2 * 54 / rate + latency
    slow_bytes = 10 * 1448 * (2**8 - 1)
    rest_s = (size - slow_bytes) / (3e6 / round_trip)
    expected = begins + 8 * round_trip + rest_s
    assert alone(size, rate, latency) == pytest.approx(expected, rel=1e-12)
    assert expected == pytest.approx(4.634, abs=1e-3)
    # without a window it goes on until a window lasts a round trip at the link's rate
    left_s = (size - 10 * 1448 * (2**11 - 1)) * headers / rate
    expected = begins + 11 * round_trip + left_s
    assert alone(size, rate, latency, window_bytes=None) == pytest.approx(expected)


def test_a_transfer_that_does_not_fill_the_window_is_as_without_one():
    def both(segments):
        size = 1448.0 * segments
        return [alone(size, 1e8, 0.1, window_bytes=w) for w in (1448.0 * 64, None)]

    # 10 + 20 + 40 segments, then one window of 64: beyond them it waits for the window
    with_window, without = both(70 + 64)
    assert with_window == without
    with_window, without = both(70 + 65)
    assert with_window == pytest.approx(without + 0.2, rel=0.01)


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
    def case(*losses):
        links = [
            {"capacity_bytes_per_s": 1e9, "latency_s": 0.05 / len(losses), "loss": p}
            for p in losses
        ]
        return {
            "links": links,
            "flows": [
                {"start_s": 0, "size_bytes": 1e7, "path": list(range(len(losses)))}
            ],
        }

    assert replay(case(0.02, 0.03), "tcp")[0] == pytest.approx(
        replay(case(1 - 0.98 * 0.97), "tcp")[0], rel=1e-4
    )


def test_models_come_by_name_by_options_or_as_objects():
    assert make_model("fluid") == Fluid()
    assert make_model({"kind": "tcp", "header_bytes": 4}) == Tcp(header_bytes=4)
    model = Tcp(handshake=False)
    assert make_model(model) is model
    for window in (0.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="window_bytes: got"):
            Tcp(window_bytes=window)
