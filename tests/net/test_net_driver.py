"""The network in SimPy: instants, exact durations, one timer, cancelling, saving."""

from __future__ import annotations

from functools import partial

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


def world(star: Star, **options):
    env = simpy.Environment()
    return env, Network(env, star, **options)


def test_late_short_transfers_that_share_keep_their_digits():
    """At 1e7 s the clock's digits are 2 ns apart.

    A shared transfer of a millisecond keeps 1e-9.
    """
    env, network = world(Star(2, receive_bytes_per_s=1e6))
    env.run(env.timeout(1e7 + 0.1))
    a, b = network.send(0, 500.0), network.send(1, 500.0)
    assert env.run(a) == pytest.approx(1e-3, rel=1e-12)
    assert b.value == pytest.approx(1e-3, rel=1e-12)


def test_the_bottleneck_until_now_is_known_before_the_end():
    env, network = world(Star(2, up_bytes_per_s=[3.0, 100.0], receive_bytes_per_s=4.0))
    slow = network.send(0, 20.0)
    env.run(1.0)
    network.send(1, 40.0)
    env.run(1.5)
    # what the other one changes counts from the next on
    assert slow.bottleneck == "client-0/up"
    assert slow.limited_s == {"client-0/up": 1.0}


def test_the_bottleneck_is_the_link_that_limited_it_longest():
    env, network = world(Star(2, up_bytes_per_s=[3.0, 100.0], receive_bytes_per_s=4.0))
    slow, fast = network.send(0, 20.0), network.send(1, 4.0)
    env.run(slow)
    # 2 each for 2 s; then 0 alone at its own link's 3
    assert slow.limited_s == {
        "server/receive": 2.0,
        "client-0/up": pytest.approx(16 / 3),
    }
    assert slow.bottleneck == "client-0/up"
    assert fast.bottleneck == "server/receive"


def test_a_cancelled_transfer_reports_what_it_moved_and_makes_room():
    env, network = world(Star(2, receive_bytes_per_s=4.0))
    left, stays = network.send(0, 100.0), network.send(1, 10.0)
    env.run(env.timeout(3.0))
    assert left.moved_bytes == 6.0
    assert left.cancel() == 6.0
    assert left.cancel() == 6.0  # again changes nothing
    assert not left.in_flight
    assert env.run(stays) == 4.0
    assert not left.triggered


def test_a_transfer_cancelled_at_the_instant_it_ends_has_ended():
    env, network = world(Star(1, up_bytes_per_s=4.0))
    transfer = network.send(0, 8.0)
    moved = []

    def deadline():
        # scheduled before the network's own wake-up of that instant
        yield env.timeout(2.0)
        moved.append(transfer.cancel())

    env.process(deadline())
    env.run()
    assert moved == [8.0]
    assert transfer.value == 2.0


def test_who_asked_to_be_told_of_an_arrival_is_told_at_its_instant_with_its_duration():
    env, network = world(Star(3, receive_bytes_per_s=6.0))
    told = []
    for client, size in ((0, 4.0), (1, 4.0), (2, 10.0)):
        transfer = network.send(client, size)
        transfer.callbacks.append(
            lambda event, client=client: told.append((client, env.now, event.value))
        )
    env.run()
    assert told == [(0, 2.0, 2.0), (1, 2.0, 2.0), (2, 3.0, 3.0)]
    assert transfer.value == 3.0  # asked for afterwards


def test_what_an_arrival_sets_off_comes_before_the_next_one_of_the_instant_is_told():
    env, network = world(Star(2, receive_bytes_per_s=4.0))
    log = []

    def started():
        log.append("a process")
        yield env.timeout(0.0)

    def tell(client, _):
        log.append(client)
        if client == 0:
            env.process(started())  # SimPy begins it before other events of the instant

    for client in range(2):
        transfer = network.send(client, 4.0)
        transfer.callbacks.append(partial(tell, client))
    env.run()
    assert log == [0, "a process", 1]


def test_arrivals_that_a_cancellation_comes_upon_are_told_after_it():
    env, network = world(Star(3, receive_bytes_per_s=6.0))
    told = []
    for client in range(2):
        transfer = network.send(client, 4.0)
        transfer.callbacks.append(
            lambda event, client=client: told.append((client, event.value))
        )
    late = network.send(2, 10.0)

    def cut(_):
        told.append(late.cancel())
        transfer.callbacks.clear()  # nobody cares for the second any longer

    env.timeout(2.0).callbacks.append(cut)  # comes before the network's own wake-up
    env.run()
    assert told == [4.0, (0, 2.0)]


def test_a_transfer_cancelled_in_its_latency_moved_nothing():
    env, network = world(Star(1, up_bytes_per_s=4.0, latency_s=1.0))
    transfer = network.send(0, 100.0)
    env.run(env.timeout(0.5))
    assert transfer.cancel() == 0.0
    env.run()
    assert env.now < 2.0


@pytest.mark.parametrize(
    ("end", "reason"),
    [("hold", "its capacity is 0 for ever"), ("error", ("its trace has ended"))],
)
def test_a_dead_link_is_an_error_that_names_it_and_who_waits(end, reason):
    trace = LinkTrace(Trace.of([0.0, 2.0], [4.0, 0.0], 3.0, end))
    env, network = world(Star(3, receive_bytes_per_s=trace))
    network.send(0, 100.0)
    network.send(2, 100.0)
    with pytest.raises(RunFailed, match=reason) as error:
        env.run()
    text = str(error.value)
    assert "link server/receive" in text
    assert "client 0 up, client 2 up" in text
    assert f"at {2 if end == 'hold' else 3} s" in text


def test_a_transfer_that_starts_on_a_dead_link_is_an_error_too():
    trace = LinkTrace(Trace.of([0.0, 2.0], [4.0, 0.0], 3.0, "hold"))
    env, network = world(Star(1, traces={(0, "down"): trace}))
    env.run(env.timeout(50.0))
    network.send(0, 1.0, "down")
    with pytest.raises(
        RunFailed, match="client-0/down: at 50 s its capacity is 0 for ever"
    ):
        env.run()


def test_a_trace_goes_on_while_nobody_uses_its_link():
    trace = LinkTrace(Trace.of([0.0, 10.0], [1.0, 5.0], 20.0, "loop"), offset_s=3.0)
    env, network = world(Star(1, traces={(0, "up"): trace}))
    assert env.run(network.send(0, 2.0)) == 2.0
    env.run(until=106.0)  # 109 in the trace: 9 s into its sixth turn
    assert env.run(network.send(0, 6.0)) == pytest.approx(2.0)


def test_a_link_finds_its_place_in_its_trace_anew_while_others_are_busy():
    trace = LinkTrace(Trace.of([0.0, 10.0], [1.0, 5.0], 20.0, "loop"))
    env, network = world(Star(2, up_bytes_per_s=[1.0, 1.0], traces={(0, "up"): trace}))
    network.send(1, 1000.0)  # the network is never idle
    assert env.run(network.send(0, 2.0)) == 2.0
    # changes at 10, 20, … have passed unseen: it is 15 s into the third turn
    env.run(until=55.0)
    assert env.run(network.send(0, 10.0)) == pytest.approx(2.0)


def test_tcps_segment_time_is_that_of_the_capacity_it_meets():
    """A seventh of the link's peak when it starts: the handshake's packets take the
    time of now.
    """
    trace = LinkTrace(Trace.of([0.0, 1.0], [7e5, 1e5], 1e6, "loop"))
    env, network = world(
        Star(1, latency_s=0.05, traces={(0, "up"): trace}), model="tcp"
    )
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
    trace = LinkTrace(Trace.of([0.0, 0.5], [4e5, 9e5], 1.0, "loop"), 0.2)
    star = Star(
        6,
        up_bytes_per_s=3e5,
        latency_s=0.05,
        receive_bytes_per_s=trace,
        send_bytes_per_s=1e6,
    )
    sends = [
        FlowStart(0.3 * k, k, 1e5 * (k + 1), "up" if k % 3 else "down")
        for k in range(6)
    ]
    env, network = world(star, model=model)
    uses = {}

    def client(send):
        yield env.timeout(send.at_s)
        transfer = network.send(send.client, send.size_bytes, send.direction)
        uses[send.client] = ((yield transfer), transfer.bottleneck)

    for send in sends:
        env.process(client(send))
    env.run()
    for send, arrival in zip(sends, play(star, sends, model), strict=True):
        duration_s, bottleneck = uses[send.client]
        assert arrival.duration_s == pytest.approx(duration_s, rel=1e-12)
        assert arrival.bottleneck == bottleneck


def test_transfers_that_follow_others_and_a_late_beginning():
    rates = Trace.of([0.0, 100.0], [2.0, 4.0], 200.0, "loop")
    star = Star(2, receive_bytes_per_s=LinkTrace(rates), down_bytes_per_s=1.0)
    sends = [
        FlowStart(0.0, 0, 4.0, "down"),
        FlowStart(2.0, 0, 8.0, "up", after=0),
        FlowStart(0.0, 1, 4.0),
    ]
    assert [arrival.duration_s for arrival in play(star, sends)] == [4.0, 4.0, 2.0]
    late = [arrival.duration_s for arrival in play(star, sends, epoch_s=94.0)]
    assert late == [4.0, 2.0, 2.0]  # from the hundredth second on 4 bytes/s


def test_a_paced_upload_never_ends_before_its_compression():
    """Its link stands still when it starts, or is many times as fast right after."""
    for rates in ([0.0, 1e9], [1.0, 1e9]):
        env = simpy.Environment()
        trace = LinkTrace(Trace([0.0, 1.0], rates, 2.0, end="hold"))
        network = Network(env, Star(1, traces={(0, "up"): trace}))
        assert env.run(network.send(0, 100.0, pace=Pace(4, 6.0))) >= 6.0


def test_a_paced_upload_in_a_cell_goes_by_what_its_radio_gives():
    """A byte takes 1 / 50 s of the air, of which half is the cell's: 100 bytes take 4
    s.
    """
    for traces in ({}, {(0, "up"): LinkTrace(Trace([0.0], [50.0], 1.0, end="hold"))}):
        env = simpy.Environment()
        home = Cell("home", [0], [1.0], [1.0], share=0.5)
        star = Star(1, up_bytes_per_s=50.0, cells=[home], traces=traces)
        took_s = env.run(Network(env, star).send(0, 100.0, pace=Pace(4, 6.0)))
        assert took_s == pytest.approx(6.0 + 1.0, rel=1e-9)


def test_two_paced_uploads_that_share_a_link_are_held_by_it_or_by_their_caps():
    """Both could send for half a second alone.

    Together they need more than the link has.
    """
    env = simpy.Environment()
    network = Network(env, Star(2, receive_bytes_per_s=100.0))
    both = [network.send(client, 50.0, pace=Pace(2, 0.1)) for client in (0, 1)]
    assert [env.run(one) for one in both] == [1.0, 1.0]
