"""Links that stall, devices that freeze, messages lost or sent twice, a server that
restarts.
"""

import mode_worlds as modes
import pytest
import sim_worlds as sim
import simpy
import worlds
from hypothesis import given
from hypothesis import strategies as st

from simfed import RunFailed
from simfed.fleet import Messages, Rhythm
from simfed.fleet.faults import Fate, Faults
from simfed.ground import Discrete, Streams
from simfed.net import FlowStart, LinkUses, Network, Star, play, stall
from simfed.verify import verify

EVERY_10_S = Rhythm(Discrete((10.0,)), Discrete((2.0,)))


class Told(Faults):
    """Messages fare as a test says: (client, phase, transmission) → fate; else well."""

    def __init__(self, fates, tries=5, timeout_s=0.5, **others):
        super().__init__(
            Streams(0), messages=Messages(1.0, 1.0, timeout_s, tries), **others
        )
        self.fates = fates

    def fate(self, client, key, phase, nth):
        return self.fates.get((client, phase, nth), Fate(1, False))


def one_client(faults, rounds=1, device=None, **others):
    """6000 bytes down in 6 s, one second of training, half of compression, 8000 up in 4
    s.
    """
    plain = sim.scenario(
        rounds=rounds,
        clients=1,
    )
    star = Star(1, up_bytes_per_s=2000.0, down_bytes_per_s=1000.0)
    return sim.build(
        plain,
        star=star,
        devices=[device or sim.Fixed()],
        downlink_bytes=6000.0,
        faults=faults,
        **others,
    )


def track(world, who="client 0"):
    rows = [row for row in world.rows("spans") if row["track"] == who]
    return [(r["kind"], r["name"], r["started_at_s"], r["finished_at_s"]) for r in rows]


def test_a_lost_message_is_sent_again_after_its_timeout():
    fates = {(0, "upload", 0): Fate(1, True), (0, "upload", 1): Fate(1, True)}
    world = one_client(Told(fates)).run()
    (row,) = world.rows("participations")
    assert (row["outcome"], row["uplink_s"], row["uplink_bytes"]) == (
        "aggregated",
        13.0,
        24_000.0,
    )
    assert track(world)[3:] == [
        ("upload", "lost", 7.5, 11.5),
        ("timeout", "upload", 11.5, 12.0),
        ("upload", "lost", 12.0, 16.0),
        ("timeout", "upload", 16.0, 16.5),
        ("upload", "upload", 16.5, 20.5),
    ]
    assert (
        sum(row["bytes"] for row in world.rows("links") if row["link"].endswith("up"))
        == 24_000
    )


def test_after_the_last_try_the_participation_has_failed():
    fates = {(0, "download", nth): Fate(1, True) for nth in range(2)}
    world = one_client(Told(fates, tries=2)).run()
    (row,) = world.rows("participations")
    assert (row["outcome"], row["downlink_s"], row["downlink_bytes"]) == (
        "failed",
        13.0,
        12_000.0,
    )
    assert (row["training_s"], row["uplink_bytes"]) == (0.0, 0.0)


def test_a_message_that_leaves_twice_is_two_equal_transfers_of_which_one_counts():
    world = one_client(Told({(0, "upload", 0): Fate(2, False)})).run()
    (row,) = world.rows("participations")
    assert (row["outcome"], row["uplink_s"], row["uplink_bytes"]) == (
        "aggregated",
        8.0,
        16_000.0,
    )
    assert track(world)[-1] == ("upload", "doubled", 7.5, 15.5)


@given(
    up=st.lists(st.floats(100, 5000), min_size=2, max_size=4),
    receive=st.floats(100, 9000),
    sizes=st.lists(st.floats(1, 1e5), min_size=4, max_size=4),
)
def test_one_flow_of_two_copies_is_two_flows(up, receive, sizes):
    star = Star(len(up), up_bytes_per_s=up, receive_bytes_per_s=receive)
    others = [FlowStart(0.0, c, sizes[c]) for c in range(1, len(up))]
    one = [FlowStart(0.0, 0, 2 * sizes[0], weight=2.0)]
    two = [FlowStart(0.0, 0, sizes[0])] * 2
    once, twice = (
        [end.duration_s for end in play(star, [*others, *copies])]
        for copies in (one, two)
    )
    assert [*once, once[-1]] == pytest.approx(twice)


def test_a_frozen_device_does_its_work_later_and_loses_none():
    faults = Faults(Streams(0), freezes=Rhythm(Discrete((6.25,)), Discrete((3.0,))))
    world = one_client(faults).run()
    (row,) = world.rows("participations")
    assert (row["training_s"], row["compression_s"], row["uplink_s"]) == (4.0, 0.5, 4.0)
    assert track(world)[1:5] == [
        ("training", "training", 6.0, 6.25),
        ("frozen", "training", 6.25, 9.25),
        ("training", "training", 9.25, 10.0),
        ("compression", "random-k", 10.0, 10.5),
    ]


def test_a_device_that_stands_still_or_waits_is_idle():
    class Counting(sim.Fixed):
        def energy_j(self, phases_s):
            self.told = phases_s
            return sum(phases_s.values())

    device = Counting()
    fates = {(0, "upload", 0): Fate(1, True)}
    faults = Told(fates, freezes=Rhythm(Discrete((6.25,)), Discrete((3.0,))))
    world = one_client(faults, device=device).run()
    assert device.told == {
        "downlink": 6.0,
        "uplink": 8.0,
        "idle": 3.5,
        "training": 1.0,
        "compression": 0.5,
    }
    assert world.column("participations", "energy_j") == [19.0]


def test_a_stalled_link_carries_nothing_and_then_goes_on():
    star = Star(2, up_bytes_per_s=10.0)
    faults = Faults(Streams(0), stalls=EVERY_10_S)
    stall(star, faults.stalls_of, access=True, lines=True)
    env = simpy.Environment()
    uses = LinkUses()
    network = Network(env, star, on_use=uses)
    assert env.run(network.send(0, 150.0)) == 17.0
    assert [(use.from_s, use.to_s, use.bytes) for use in uses] == [
        (0.0, 10.0, 100.0),
        (10.0, 12.0, 0.0),
        (12.0, 17.0, 50.0),
    ]


def test_an_unlimited_link_cannot_stall():
    star = Star(1)
    faults = Faults(Streams(0), stalls=Rhythm(Discrete((1e-3,)), Discrete((100.0,))))
    stall(star, faults.stalls_of, access=True, lines=True)
    env = simpy.Environment()
    assert env.run(Network(env, star).send(0, 1e9)) == 0.0


def test_stalls_lie_over_traces_whatever_these_do_at_their_end():
    from simfed.net import LinkTrace, Trace

    faults = Faults(Streams(0), stalls=EVERY_10_S)
    seconds = {}
    for end in ("loop", "hold"):
        trace = LinkTrace(Trace.of([0.0, 4.0], [10.0, 30.0], 5.0, end), 1.0)
        star = Star(1, traces={(0, "up"): trace})
        stall(star, faults.stalls_of, access=True, lines=True)
        env = simpy.Environment()
        seconds[end] = env.run(Network(env, star).send(0, 400.0))
    # looped: 10 B/s for 3 s, 30 for 1, then 4 and 1 s in turn; the 2 s from 10 and 22
    # are lost
    carried = [*[10] * 3, 30, *([10] * 4 + [30]) * 6]
    for second in (10, 11, 22, 23):
        carried[second] = 0
    total, at = 0.0, 0
    while total + carried[at] <= 400:
        total += carried[at]
        at += 1
    assert seconds["loop"] == pytest.approx(at + (400 - total) / carried[at])
    assert seconds["hold"] == pytest.approx(3 + 7 + 2 + (400 - 30 - 210) / 30)


def test_transfers_over_a_link_that_stays_at_0_under_its_stalls_end_the_run():
    from simfed.net import LinkTrace, Trace

    star = Star(
        1, traces={(0, "up"): LinkTrace(Trace.of([0.0, 1.0], [5.0, 0.0], 2.0, "hold"))}
    )
    stall(
        star, Faults(Streams(0), stalls=EVERY_10_S).stalls_of, access=True, lines=True
    )
    env = simpy.Environment()
    transfer = Network(env, star).send(0, 50.0)
    with pytest.raises(RunFailed, match="its capacity is 0 for ever"):
        env.run(transfer)


def test_what_came_since_the_last_merge_is_lost_when_the_server_restarts():
    faults = Faults(Streams(0), restarts=Rhythm(Discrete((14.0,)), Discrete((3.0,))))
    plain = sim.scenario(
        rounds=3,
        clients=2,
    )
    # rounds of 11.5 s and, for the second client, of 15.5 s
    star = Star(2, up_bytes_per_s=[2000.0, 1000.0], down_bytes_per_s=1000.0)
    world = sim.build(
        plain,
        star=star,
        devices=[sim.Fixed(), sim.Fixed()],
        downlink_bytes=6000.0,
        faults=faults,
    ).run()
    rows = world.rows("participations")
    assert [row["outcome"] for row in rows[:2]] == ["dropped", "dropped"]
    first = world.rows("rounds")[0]
    assert (first["started_at_s"], first["duration_s"], first["server_s"]) == (
        0.0,
        17.0,
        3.0,
    )
    assert (first["critical_phase"], first["critical_client"]) == ("restart", None)
    assert track(world, "server")[0] == ("restart", "restart", 14.0, 17.0)
    assert rows[0]["uplink_bytes"] == 8000.0  # it had arrived
    assert rows[1]["uplink_bytes"] == 6500.0
    # the next restart is due at 31 s, 14 s after the first one's end
    second = world.rows("rounds")[1]
    assert (second["critical_phase"], second["finished_at_s"]) == ("restart", 34.0)
    assert {row["model_version"] for row in rows} == {0}


def test_a_restart_that_is_due_during_a_merge_comes_after_it():
    faults = Faults(Streams(0), restarts=Rhythm(Discrete((12.0,)), Discrete((3.0,))))
    server = sim.Fixed(decompression=2.0, inference=0.0, distillation=0.0)
    world = one_client(faults, rounds=2, server_device=server).run()
    first, second = world.rows("rounds")
    assert (first["finished_at_s"], first["critical_phase"]) == (13.5, "download")
    assert (second["finished_at_s"], second["critical_phase"]) == (16.5, "restart")
    assert world.column("participations", "outcome") == ["aggregated", "dropped"]


# ---- whole runs ----------------------------------------------------------------------


def scenario(faults, mode="synchronous", rounds=12, **changes):
    """Six clients whose 6 kB take a second or two."""
    device = {"profile": "x86-2core-vm", "speed": 0.01}
    [group] = worlds.TINY["clients"]
    clients = {
        "count": 6,
        "device": device,
        "link": {"up": "0.2 Mbps", "down": "0.4 Mbps"},
    }
    keys = {
        "rounds": rounds,
        "clients": [group | clients],
        "network.server": {"receive": "1 Mbps", "send": "2 Mbps"},
        "aggregation": modes.MODES[mode],
        "faults": faults,
    }
    return worlds.world("tiny", keys, **changes)


@pytest.mark.parametrize(
    ("mode", "seed", "doubled", "tries", "between_s", "lasts_s"),
    [
        ("deadline, bound", 253, 0.0, 1, 0.5, 1.0),
        ("synchronous", 184, 0.5, 2, 1.046875, 2.0),
    ],
)
def test_a_stalled_link_carries_exactly_nothing(
    tmp_path, mode, seed, doubled, tries, between_s, lasts_s
):
    """Once it carried −4e-12 bytes, and once +7e-12."""
    often = {"between": f"{between_s} s", "lasts": f"{lasts_s} s"}
    faults = {
        "messages": {"lost": 0.5, "doubled": doubled, "tries": tries},
        "stalls": {**often, "links": "all"},
        "freezes": often,
        "restarts": {"between": f"{5 * between_s} s", "lasts": f"{lasts_s} s"},
    }
    made = scenario(faults, mode, rounds=5, seed=seed)
    assert verify(worlds.play(made, tmp_path / "run", time_only=True).path) == []


@pytest.mark.parametrize("mode", ["synchronous", "buffered"])
def test_faults_that_never_strike_change_nothing(mode):
    never = {"between": "1000000000 s", "lasts": "1 s"}
    faults = {
        "stalls": {**never, "links": "all"},
        "freezes": never,
        "messages": {"lost": 1e-300, "doubled": 1e-300},
        "restarts": never,
    }
    with_them, without = (
        worlds.play(scenario(spec, mode, rounds=4), time_only=True)
        for spec in (faults, None)
    )
    assert with_them.fingerprint == without.fingerprint


def test_personal_models_are_evaluated_once_there_are_some():
    """Nobody's upload arrives in the first round, client 2's never does."""
    [group] = worlds.TINY["clients"]
    chances = {2: 0.7, 1: 1}
    clients = [
        group | {"count": count, "failure": {"training": chances[count]}}
        for count in chances
    ]
    keys = {"method": "local-only", "rounds": 4, "seed": 3, "clients": clients}
    made = worlds.play(
        worlds.world("tiny", keys, policy={"kind": "uniform", "strategy": "dense"})
    )
    assert 1 < made.prototypes["round"].min() <= 4
    assert set(made.clients["client"]) <= {0, 1}


def test_a_message_that_is_cut_in_a_cell_is_one_copy_whatever_it_weighs_there(tmp_path):
    """The round without its critical client is played again with the copies that there
    were.
    """
    online = tmp_path / "online.csv"
    online.write_text("client,from_s,to_s\n0,0,5\n1,0,1000\n2,0,1000\n")

    def group(up, down, training, **more):
        link = {"cell": "street", "up": up, "down": down}
        return {
            "prototype": "a",
            "device": {"training": training},
            "link": link,
            **more,
        }

    keys = {
        "rounds": 1,
        "clients": [
            group(
                "20 kbps",
                "10 Mbps",
                "100 ms",
                availability={"trace": str(tmp_path / "online.csv")},
            ),
            group("1 Mbps", "50 kbps", "1 s"),
            group("1 Mbps", "10 Mbps", "9 s"),
        ],
        "training.local_steps": 1,
        "policy": {"kind": "uniform", "strategy": "dense"},
        "network.cells": {"street": {"cellular": {}}},
        "faults.messages.lost": 1.0e-9,
    }
    made = worlds.world("tiny", keys)
    run = worlds.play(made, time_only=True)
    [cut] = run.participations.query("client == 0").itertuples()
    assert cut.outcome == "dropped"
    assert 0 < cut.uplink_bytes < 31_400
    names = run.spans.query("client == 0")["name"]
    assert "doubled" not in set(names)
    assert run.rounds["critical_client"].tolist() == [2]
    assert run.rounds["saved_without_critical_s"][0] > 0
