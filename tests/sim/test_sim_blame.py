"""Who held the round up, and what the round would have been without them."""

import math
from unittest import mock

import pytest
import sim_worlds as sim
import worlds
from hypothesis import given
from hypothesis import strategies as st

from simfed.net import Star
from simfed.record import explain_rounds, rank_stragglers
from simfed.sim import blame

SIZE = 8000.0


@pytest.mark.parametrize(
    ("star", "trains_s", "down_bytes", "blame"),
    [
        (Star(3, up_bytes_per_s=SIZE), (1, 9, 2), 0.0, (1, "training", None, 7.0)),
        (
            Star(2, up_bytes_per_s=[SIZE, SIZE / 16]),
            (1, 1),
            0.0,
            (1, "upload", "client-1/up", 15.0),
        ),
        (
            Star(2, down_bytes_per_s=[1000.0, 500.0]),
            (1, 1),
            2000.0,
            (1, "download", "client-1/down", 2.0),
        ),
        # a link is not blamed for what is mostly latency
        (
            Star(2, up_bytes_per_s=SIZE, latency_s=[0.0, 0.75]),
            (0.5, 0.5),
            0.0,
            (1, "upload", "client-1/up", 0.75),
        ),
        (
            Star(2, up_bytes_per_s=SIZE, latency_s=[0.0, 1.25]),
            (0.5, 0.5),
            0.0,
            (1, "upload", None, 1.25),
        ),
        # ties blame the lowest id
        (Star(3), (1, 1, 1), 0.0, (0, "training", None, 0.0)),
        # nobody is there to be compared with
        (Star(1), (2,), 0.0, (0, "training", None, None)),
    ],
)
def test_the_last_client_is_blamed_with_its_longest_phase_and_link(
    star, trains_s, down_bytes, blame
):
    devices = [sim.Fixed(seconds) for seconds in trains_s]
    world = one_round(star, devices, downlink_bytes=down_bytes)
    assert blamed(world) == blame
    ends_s = world.column("participations", "slack_s")
    assert min(ends_s) == ends_s[blame[0]] == 0.0


def one_round(star, devices, **options):
    plain = sim.scenario(rounds=1, clients=len(devices))
    return sim.build(plain, star=star, devices=devices, **options).run()


def blamed(world):
    [row] = world.rows(
        "rounds",
        "critical_client",
        "critical_phase",
        "critical_link",
        "saved_without_critical_s",
    )
    return row


def test_without_the_straggler_the_others_are_faster_on_a_shared_link():
    # three at once on a link of 1 upload/s: all end after 3 s; without one the rest
    # take 2 s. The simple difference to the next one would say that nothing is saved.
    star = Star(3, receive_bytes_per_s=SIZE, up_bytes_per_s=SIZE)
    world = one_round(star, [sim.Fixed(1, 0)] * 3)
    assert blamed(world) == (0, "upload", "server/receive", pytest.approx(1.0))
    told = explain_rounds(world.recorder.table)
    assert told == {1: "round 1: client 0, 75 % upload, shared link server/receive"}


def test_the_servers_own_work_can_be_to_blame_and_shrinks_with_the_client():
    server = sim.Fixed(decompression=4.0, inference=3.0, distillation=2.0)
    world = one_round(Star(2), [sim.Fixed(1.0), sim.Fixed(1.5)], server_device=server)
    assert blamed(world) == (1, "server", None, 0.5 + 4.0 + 3.0)
    assert explain_rounds(world.recorder.table) == {1: "round 1: client 1, 89 % server"}


@given(
    uploads=st.lists(st.floats(0.1, 10.0), min_size=2, max_size=6),
    training=st.lists(st.floats(0.0, 5.0), min_size=6, max_size=6),
    receive=st.floats(0.2, 8.0),
    send=st.sampled_from([math.inf, 0.5, 3.0]),
)
def test_the_saving_is_that_of_a_run_in_which_the_client_never_was(
    uploads, training, receive, send
):
    def play(clients):
        rates = [SIZE * uploads[c] for c in clients]
        star = Star(
            len(clients),
            up_bytes_per_s=rates,
            receive_bytes_per_s=SIZE * receive,
            down_bytes_per_s=rates,
            send_bytes_per_s=SIZE * send,
        )
        devices = [sim.Fixed(training[c], 0.0) for c in clients]
        world = one_round(star, devices, downlink_bytes=SIZE)
        return world.column("rounds", "duration_s")[0], blamed(world)

    everybody = list(range(len(uploads)))
    length_s, (critical, _, _, saved_s) = play(everybody)
    everybody.remove(critical)
    without_s, _ = play(everybody)
    assert saved_s == pytest.approx(length_s - without_s, abs=1e-9 * length_s)


def test_the_second_play_is_left_out_where_no_link_is_shared(monkeypatch):
    spy = mock.Mock(side_effect=blame.play)
    monkeypatch.setattr(blame, "play", spy)
    one_round(Star(3, up_bytes_per_s=SIZE, down_bytes_per_s=SIZE), [sim.Fixed()] * 3)
    assert not spy.called
    one_round(Star(3, up_bytes_per_s=SIZE, receive_bytes_per_s=SIZE), [sim.Fixed()] * 3)
    [call] = spy.call_args_list
    assert len(call.args[1]) == 2


def test_the_straggler_table_counts_rounds_phases_links_and_savings():
    plain = sim.scenario(rounds=5, clients=2)
    star = Star(2, up_bytes_per_s=[SIZE, SIZE / 4])
    world = sim.build(plain, star=star, devices=[sim.Fixed(1)] * 2).run()
    assert rank_stragglers(world.recorder.table) == [
        {
            "client": 1,
            "rounds": 5,
            "phases": {"upload": 5},
            "links": {"client-1/up": 5},
            "saved_s": 15.0,
        }
    ]
    assert list(explain_rounds(world.recorder.table, {2, 4})) == [2, 4]


def test_a_round_that_waits_for_anybody_to_come_does_not_read_as_a_client_s_work():
    keys = {
        "prototypes.a.model": "lenet5-half",
        "policy.strategy": "dense",
        "training.local_steps": 1,
        "clients[0].device": {"training": "3 s", "compression": "0 s"},
        "clients[0].link.up": "1 Mbps",
        "clients[0].availability": {"markov": {"on": "20 s", "off": "10 min"}},
    }
    run = worlds.play(worlds.world("tiny", keys), time_only=True)
    waited_s, length_s = run.participations.started_at_s[0], run.rounds.duration_s[0]
    assert waited_s > 90
    assert explain_rounds(run.table) == {
        1: f"round 1: nobody was there for {100 * waited_s / length_s:.0f} %, "
        "then client 1, 3 % training",
        2: "round 2: client 1, 86 % training",
    }
