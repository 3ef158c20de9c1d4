"""The network in SimPy: instants, exact durations, one timer, cancelling, saving."""

from __future__ import annotations

import pytest
import simpy

from simfed import RunFailed
from simfed.net import (
    FlowStart,
    LinkTrace,
    Network,
    Star,
    Trace,
    play,
)
from simfed.net.driver import Pace
from simfed.net.topology import Cell


def world(star, **options):
    env = simpy.Environment()
    return env, Network(env, star, **options)


def shared(count, rate):
    """Clients whose uploads share what the server receives."""
    return world(Star(count, receive_bytes_per_s=rate))


def traced(starts_s, rates, duration_s, end, offset_s=0.0):
    return LinkTrace(Trace.of(starts_s, rates, duration_s, end), offset_s)


def test_late_short_transfers_that_share_keep_their_digits():
    """At 1e7 s the clock's digits are 2 ns apart.

    A shared transfer of a millisecond keeps 1e-9.
    """
    env, network = shared(2, 1e6)
    env.run(env.timeout(1e7 + 0.1))
    both = [network.send(client, 500.0) for client in (0, 1)]
    assert [env.run(one) for one in both] == pytest.approx([1e-3] * 2, rel=1e-12)


def test_the_bottleneck_until_now_is_the_link_that_limited_it_longest():
    env, network = world(Star(2, up_bytes_per_s=[3.0, 100.0], receive_bytes_per_s=4.0))
    slow = network.send(0, 20.0)
    env.run(1.0)
    fast = network.send(1, 4.0)
    env.run(1.5)
    # what the other one changes counts from the next on
    assert slow.bottleneck == "client-0/up"
    assert slow.limited_s == {"client-0/up": 1.0}
    env.run(slow)
    # 3 for 1 s, 2 each for 2 s; then 0 alone at its own link's 3
    own_s = pytest.approx(1.0 + 13 / 3)
    assert slow.limited_s == {"server/receive": 2.0, "client-0/up": own_s}
    assert slow.bottleneck == "client-0/up"
    assert fast.bottleneck == "server/receive"


def test_a_cancelled_transfer_reports_what_it_moved_and_makes_room():
    env, network = shared(2, 4.0)
    left, stays = network.send(0, 100.0), network.send(1, 10.0)
    env.run(env.timeout(3.0))
    assert left.moved_bytes == 6.0
    assert left.cancel() == 6.0
    assert left.cancel() == 6.0  # again changes nothing
    assert not left.in_flight
    assert env.run(stays) == 4.0
    assert not left.triggered


def test_a_transfer_cancelled_at_the_instant_it_ends_has_ended():
    env, network = shared(1, 4.0)
    # scheduled before the network's own wake-up of that instant
    deadline, moved = env.timeout(2.0), []
    transfer = network.send(0, 8.0)
    deadline.callbacks.append(lambda _: moved.append(transfer.cancel()))
    env.run()
    assert moved == [8.0]
    assert transfer.value == 2.0


def tell(env, told, transfer, name):
    """Note when an arrival is told, and its duration."""
    transfer.callbacks.append(lambda event: told.append((name, env.now, event.value)))


def test_who_asked_to_be_told_of_an_arrival_is_told_at_its_instant_with_its_duration():
    env, network = shared(3, 6.0)
    told = []
    for client, size in enumerate((4.0, 4.0, 10.0)):
        transfer = network.send(client, size)
        tell(env, told, transfer, client)
    env.run()
    assert told == [(0, 2.0, 2.0), (1, 2.0, 2.0), (2, 3.0, 3.0)]
    assert transfer.value == 3.0  # asked for afterwards


def test_what_an_arrival_sets_off_comes_before_the_next_one_of_the_instant_is_told():
    env, network = shared(2, 4.0)
    log = []

    def started():
        log.append("a process")
        yield env.timeout(0.0)

    first, second = (network.send(client, 4.0) for client in range(2))
    # SimPy begins it before other events of the instant
    first.callbacks.append(lambda _: log.append(0) or env.process(started()))
    second.callbacks.append(lambda _: log.append(1))
    env.run()
    assert log == [0, "a process", 1]


def test_arrivals_that_a_cancellation_comes_upon_are_told_after_it():
    env, network = shared(3, 6.0)
    told = []
    first, second = (network.send(client, 4.0) for client in range(2))
    tell(env, told, first, 0)
    tell(env, told, second, 1)
    late = network.send(2, 10.0)

    def cut(_):
        told.append(late.cancel())
        second.callbacks.clear()  # nobody cares for the second any longer

    env.timeout(2.0).callbacks.append(cut)  # comes before the network's own wake-up
    env.run()
    assert told == [4.0, (0, 2.0, 2.0)]


def test_a_transfer_cancelled_in_its_latency_moved_nothing():
    env, network = world(Star(1, up_bytes_per_s=4.0, latency_s=1.0))
    transfer = network.send(0, 100.0)
    env.run(env.timeout(0.5))
    assert transfer.cancel() == 0.0
    env.run()
    assert env.now < 2.0


@pytest.mark.parametrize(
    ("end", "at_s", "reason"),
    [("hold", 2, "its capacity is 0 for ever"), ("error", 3, "its trace has ended")],
)
def test_a_dead_link_is_an_error_that_names_it_and_who_waits(end, at_s, reason):
    env, network = shared(3, traced([0.0, 2.0], [4.0, 0.0], 3.0, end))
    network.send(0, 100.0)
    network.send(2, 100.0)
    with pytest.raises(RunFailed) as error:
        env.run()
    for said in (reason, "link server/receive", f"at {at_s} s"):
        assert said in str(error.value)
    assert "client 0 up, client 2 up" in str(error.value)


def test_a_transfer_that_starts_on_a_dead_link_is_an_error_too():
    trace = traced([0.0, 2.0], [4.0, 0.0], 3.0, "hold")
    env, network = world(Star(1, traces={(0, "down"): trace}))
    env.run(env.timeout(50.0))
    network.send(0, 1.0, "down")
    sentence = "client-0/down: at 50 s its capacity is 0 for ever"
    with pytest.raises(RunFailed, match=sentence):
        env.run()


@pytest.mark.parametrize("busy", [False, True])
def test_a_trace_goes_on_while_nobody_uses_its_link(busy):
    """Be the network idle meanwhile, or never."""
    trace = traced([0.0, 10.0], [1.0, 5.0], 20.0, "loop", offset_s=3.0)
    env, network = world(Star(2, up_bytes_per_s=1.0, traces={(0, "up"): trace}))
    if busy:
        network.send(1, 1000.0)
    assert env.run(network.send(0, 2.0)) == 2.0
    env.run(until=106.0)  # 109 in the trace: 9 s into its sixth turn
    assert env.run(network.send(0, 6.0)) == pytest.approx(2.0)


def test_tcps_segment_time_is_that_of_the_capacity_it_meets():
    """A seventh of the link's peak when it starts: the handshake's packets take the
    time of now.
    """
    trace = traced([0.0, 1.0], [7e5, 1e5], 1e6, "loop")
    star = Star(1, latency_s=0.05, traces={(0, "up"): trace})
    env, network = world(star, model="tcp")
    env.run(until=10.0)
    took = env.run(network.send(0, 1448.0))
    assert took == pytest.approx(0.15 + (2 * 54 + 1502) / 1e5)


def test_cancelled_tcp_transfers_report_payload_without_headers():
    env, network = world(Star(1, up_bytes_per_s=1502.0), model="tcp")
    transfer = network.send(0, 144800.0)
    env.run(env.timeout(2 * 54 / 1502.0 + 10.0))
    assert transfer.moved_bytes == pytest.approx(10 * 1448.0)
    assert transfer.cancel() == pytest.approx(10 * 1448.0)


@pytest.mark.parametrize("model", ["fluid", "tcp"])
def test_play_gives_what_the_network_gives(model):
    star = Star(
        6,
        up_bytes_per_s=3e5,
        latency_s=0.05,
        receive_bytes_per_s=traced([0.0, 0.5], [4e5, 9e5], 1.0, "loop", 0.2),
        send_bytes_per_s=1e6,
    )
    sends = [
        FlowStart(0.3 * k, k, 1e5 * (k + 1), "up" if k % 3 else "down")
        for k in range(6)
    ]
    env, network = world(star, model=model)

    def client(send):
        yield env.timeout(send.at_s)
        transfer = network.send(send.client, send.size_bytes, send.direction)
        duration_s = yield transfer
        return pytest.approx(duration_s, rel=1e-12), transfer.bottleneck

    clients = [env.process(client(send)) for send in sends]
    played = [tuple(arrival) for arrival in play(star, sends, model)]
    assert played == [env.run(one) for one in clients]


def test_transfers_that_follow_others_and_a_late_beginning():
    receive = traced([0.0, 100.0], [2.0, 4.0], 200.0, "loop")
    star = Star(2, receive_bytes_per_s=receive, down_bytes_per_s=1.0)
    sends = [
        FlowStart(0.0, 0, 4.0, "down"),
        FlowStart(2.0, 0, 8.0, "up", after=0),
        FlowStart(0.0, 1, 4.0),
    ]
    # from the hundredth second on 4 bytes/s
    for epoch_s, took_s in ((0.0, [4.0, 4.0, 2.0]), (94.0, [4.0, 2.0, 2.0])):
        played = play(star, sends, epoch_s=epoch_s)
        assert [arrival.duration_s for arrival in played] == took_s


def test_a_paced_upload_never_ends_before_its_compression():
    """Its link stands still when it starts, or is many times as fast right after."""
    for first in (0.0, 1.0):
        trace = traced([0.0, 1.0], [first, 1e9], 2.0, "hold")
        env, network = world(Star(1, traces={(0, "up"): trace}))
        assert env.run(network.send(0, 100.0, pace=Pace(4, 6.0))) >= 6.0


def test_a_paced_upload_in_a_cell_goes_by_what_its_radio_gives():
    """A byte takes 1 / 50 s of the air, of which half is the cell's: 100 bytes take 4
    s.
    """
    home = Cell("home", [0], [1.0], [1.0], share=0.5)
    for traces in ({}, {(0, "up"): traced([0.0], [50.0], 1.0, "hold")}):
        star = Star(1, up_bytes_per_s=50.0, cells=[home], traces=traces)
        env, network = world(star)
        took_s = env.run(network.send(0, 100.0, pace=Pace(4, 6.0)))
        assert took_s == pytest.approx(6.0 + 1.0, rel=1e-9)


def test_two_paced_uploads_that_share_a_link_are_held_by_it_or_by_their_caps():
    """Both could send for half a second alone.

    Together they need more than the link has.
    """
    env, network = shared(2, 100.0)
    both = [network.send(client, 50.0, pace=Pace(2, 0.1)) for client in (0, 1)]
    assert [env.run(one) for one in both] == [1.0, 1.0]
