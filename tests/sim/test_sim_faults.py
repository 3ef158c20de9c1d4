"""Links that stall, devices that freeze, messages lost or sent twice, a server that
restarts.
"""

import pytest
import sim_worlds as sim
import simpy
import worlds

from simfed import RunFailed
from simfed.fleet import Messages, Rhythm
from simfed.fleet.faults import Fate, Faults
from simfed.ground import Discrete, Streams
from simfed.net import LinkTrace, LinkUses, Network, Star, Trace, stall
from simfed.verify import verify

LOST = Fate(1, True)


def every(between_s, lasts_s):
    return Rhythm(Discrete((between_s,)), Discrete((lasts_s,)))


class Told(Faults):
    """Messages fare as a test says: (phase, transmission) → fate; else well."""

    def __init__(self, fates, tries=5, **others):
        super().__init__(Streams(0), messages=Messages(1.0, 1.0, 0.5, tries), **others)
        self.fates = fates

    def fate(self, client, key, phase, nth):
        return self.fates.get((phase, nth), Fate(1, False))


def play(faults, rounds=1, device=None, up_bytes_per_s=(2000.0,), **others):
    """6000 bytes down in 6 s, one second of training, half of compression, 8000 up in 4
    s.
    """
    count = len(up_bytes_per_s)
    star = Star(count, up_bytes_per_s=up_bytes_per_s, down_bytes_per_s=1000.0)
    return sim.build(
        sim.scenario(rounds=rounds, clients=count),
        star=star,
        devices=[device or sim.Fixed() for _ in range(count)],
        downlink_bytes=6000.0,
        faults=faults,
        **others,
    ).run()


UPLINK = "outcome", "uplink_s", "uplink_bytes"


def test_a_lost_message_is_sent_again_after_its_timeout():
    world = play(Told({("upload", 0): LOST, ("upload", 1): LOST}))
    assert world.rows("participations", *UPLINK) == [("aggregated", 13.0, 24_000.0)]
    assert world.spans("client 0")[3:] == [
        ("upload", "lost", 7.5, 11.5),
        ("timeout", "upload", 11.5, 12.0),
        ("upload", "lost", 12.0, 16.0),
        ("timeout", "upload", 16.0, 16.5),
        ("upload", "upload", 16.5, 20.5),
    ]
    carried = world.rows("links", "link", "bytes")
    assert sum(size for link, size in carried if link.endswith("up")) == 24_000


def test_after_the_last_try_the_participation_has_failed():
    world = play(Told({("download", nth): LOST for nth in range(2)}, tries=2))
    names = "outcome", "downlink_s", "downlink_bytes", "training_s", "uplink_bytes"
    row = ("failed", 13.0, 12_000.0, 0.0, 0.0)
    assert world.rows("participations", *names) == [row]


def test_a_message_that_leaves_twice_is_two_equal_transfers_of_which_one_counts():
    world = play(Told({("upload", 0): Fate(2, False)}))
    assert world.rows("participations", *UPLINK) == [("aggregated", 8.0, 16_000.0)]
    assert world.spans("client 0")[-1] == ("upload", "doubled", 7.5, 15.5)


def test_a_frozen_device_does_its_work_later_and_loses_none():
    world = play(Faults(Streams(0), freezes=every(6.25, 3.0)))
    names = "training_s", "compression_s", "uplink_s"
    assert world.rows("participations", *names) == [(4.0, 0.5, 4.0)]
    assert world.spans("client 0")[1:5] == [
        ("training", "training", 6.0, 6.25),
        ("frozen", "training", 6.25, 9.25),
        ("training", "training", 9.25, 10.0),
        ("compression", "random-k", 10.0, 10.5),
    ]


def test_a_device_that_stands_still_or_waits_is_idle():
    device = sim.Fixed()
    play(Told({("upload", 0): LOST}, freezes=every(6.25, 3.0)), device=device)
    assert device.told == {
        "downlink": 6.0,
        "uplink": 8.0,
        "idle": 3.5,
        "training": 1.0,
        "compression": 0.5,
    }


def send(size_bytes, rhythm, uses=None, **star):
    """The seconds of an upload over a star whose links stall."""
    topology = Star(1, **star)
    stalls_of = Faults(Streams(0), stalls=rhythm).stalls_of
    stall(topology, stalls_of, access=True, lines=True)
    env = simpy.Environment()
    return env.run(Network(env, topology, on_use=uses).send(0, size_bytes))


def test_a_stalled_link_carries_nothing_and_then_goes_on():
    uses = LinkUses()
    assert send(150.0, every(10.0, 2.0), uses, up_bytes_per_s=10.0) == 17.0
    assert [(use.from_s, use.to_s, use.bytes) for use in uses] == [
        (0.0, 10.0, 100.0),
        (10.0, 12.0, 0.0),
        (12.0, 17.0, 50.0),
    ]


def test_an_unlimited_link_cannot_stall():
    assert send(1e9, every(1e-3, 100.0)) == 0.0


def follow(rates, end, size_bytes, offset_s=0.0):
    """The seconds of an upload over a link of such rates, which stalls at 10, 22, …"""
    trace = LinkTrace(Trace.of([0.0, 4.0], rates, 5.0, end), offset_s)
    return send(size_bytes, every(10.0, 2.0), traces={(0, "up"): trace})


def test_stalls_lie_over_traces_whatever_these_do_at_their_end():
    # looped, from second 1 on: 10 B/s for 3 s, 30 for 1, then 4 and 1 s in turn; 140
    # bytes by 10, 140 from 12 to 22, 110 from 24 to 33
    took_s = follow([10.0, 30.0], "loop", 400.0, 1.0)
    assert took_s == pytest.approx(33 + 10 / 30)
    held = 3 + 7 + 2 + (400 - 30 - 210) / 30
    assert follow([10.0, 30.0], "hold", 400.0, 1.0) == pytest.approx(held)


def test_transfers_over_a_link_that_stays_at_0_under_its_stalls_end_the_run():
    with pytest.raises(RunFailed, match="its capacity is 0 for ever"):
        follow([5.0, 0.0], "hold", 50.0)


def test_what_came_since_the_last_merge_is_lost_when_the_server_restarts():
    # rounds of 11.5 s and, for the second client, of 15.5 s
    faults = Faults(Streams(0), restarts=every(14.0, 3.0))
    world = play(faults, rounds=3, up_bytes_per_s=(2000.0, 1000.0))
    names = "outcome", "model_version", "uplink_bytes"
    assert world.rows("participations", *names)[:2] == [
        ("dropped", 0, 8000.0),  # it had arrived
        ("dropped", 0, 6500.0),
    ]
    assert set(world.column("participations", "model_version")) == {0}
    names = "finished_at_s", "server_s", "critical_phase", "critical_client"
    # the next restart is due at 31 s, 14 s after the first one's end
    assert world.rows("rounds", *names)[:2] == [
        (17.0, 3.0, "restart", None),
        (34.0, 3.0, "restart", None),
    ]
    assert world.spans("server")[0] == ("restart", "restart", 14.0, 17.0)


def test_a_restart_that_is_due_during_a_merge_comes_after_it():
    faults = Faults(Streams(0), restarts=every(12.0, 3.0))
    server = sim.Fixed(decompression=2.0, inference=0.0, distillation=0.0)
    world = play(faults, rounds=2, server_device=server)
    assert world.rows("rounds", "finished_at_s", "critical_phase") == [
        (13.5, "download"),
        (16.5, "restart"),
    ]
    assert world.column("participations", "outcome") == ["aggregated", "dropped"]


# ---- whole runs ----------------------------------------------------------------------


def make(faults, aggregation, **changes):
    """Six clients whose 6 kB take a second or two."""
    keys = {
        "clients[0].count": 6,
        "clients[0].device": {"profile": "x86-2core-vm", "speed": 0.01},
        "clients[0].link": {"up": "0.2 Mbps", "down": "0.4 Mbps"},
        "network.server": {"receive": "1 Mbps", "send": "2 Mbps"},
        "aggregation": aggregation,
        "faults": faults,
    }
    return worlds.world("tiny", keys, **changes)


LATE = {
    "mode": "deadline",
    "deadline": "1.1 s",
    "late": "merge",
    "staleness": {"kind": "constant", "bound": 1},
}


@pytest.mark.parametrize(
    ("aggregation", "seed", "doubled", "tries", "between_s", "lasts_s"),
    [(LATE, 253, 0.0, 1, 0.5, 1.0), ({}, 184, 0.5, 2, 1.046875, 2.0)],
)
def test_a_stalled_link_carries_exactly_nothing(
    tmp_path, aggregation, seed, doubled, tries, between_s, lasts_s
):
    """Once it carried −4e-12 bytes, and once +7e-12."""
    often = {"between": f"{between_s} s", "lasts": f"{lasts_s} s"}
    faults = {
        "messages": {"lost": 0.5, "doubled": doubled, "tries": tries},
        "stalls": {**often, "links": "all"},
        "freezes": often,
        "restarts": {"between": f"{5 * between_s} s", "lasts": f"{lasts_s} s"},
    }
    made = make(faults, aggregation, rounds=5, seed=seed)
    assert verify(worlds.play(made, tmp_path / "run", time_only=True).path) == []


@pytest.mark.parametrize(
    "aggregation", [{}, {"mode": "buffered", "buffer": 2, "concurrency": 4}]
)
def test_faults_that_never_strike_change_nothing(aggregation):
    never = {"between": "1000000000 s", "lasts": "1 s"}
    faults = {
        "stalls": {**never, "links": "all"},
        "freezes": never,
        "messages": {"lost": 1e-300, "doubled": 1e-300},
        "restarts": never,
    }
    with_them, without = (
        worlds.play(make(spec, aggregation, rounds=4), time_only=True)
        for spec in (faults, None)
    )
    assert with_them.fingerprint == without.fingerprint


def test_personal_models_are_evaluated_once_there_are_some():
    """Nobody's upload arrives in the first round, client 2's never does."""
    [group] = worlds.TINY["clients"]
    clients = [
        group | {"count": count, "failure": {"training": chance}}
        for count, chance in ((2, 0.7), (1, 1))
    ]
    keys = {"method": "local-only", "rounds": 4, "seed": 3, "clients": clients}
    made = worlds.play(worlds.world("tiny", keys | {"policy.strategy": "dense"}))
    assert 1 < made.prototypes["round"].min() <= 4
    assert set(made.clients["client"]) <= {0, 1}


def test_a_message_that_is_cut_in_a_cell_is_one_copy_whatever_it_weighs_there(tmp_path):
    """The round without its critical client is played again with the copies that there
    were.
    """
    online = tmp_path / "online.csv"
    online.write_text("client,from_s,to_s\n0,0,5\n1,0,1000\n2,0,1000\n")
    clients = [
        {
            "prototype": "a",
            "device": {"training": training},
            "link": {"cell": "street", "up": up, "down": down},
            "availability": {"trace": str(online)},
        }
        for up, down, training in (
            ("20 kbps", "10 Mbps", "100 ms"),
            ("1 Mbps", "50 kbps", "1 s"),
            ("1 Mbps", "10 Mbps", "9 s"),
        )
    ]
    keys = {
        "rounds": 1,
        "clients": clients,
        "training.local_steps": 1,
        "policy.strategy": "dense",
        "network.cells": {"street": {"cellular": {}}},
        "faults.messages.lost": 1.0e-9,
    }
    run = worlds.play(worlds.world("tiny", keys), time_only=True)
    [cut] = run.participations.query("client == 0").itertuples()
    assert cut.outcome == "dropped"
    assert 0 < cut.uplink_bytes < 31_400
    assert "doubled" not in set(run.spans.query("client == 0")["name"])
    assert run.rounds["critical_client"].tolist() == [2]
    assert run.rounds["saved_without_critical_s"][0] > 0
