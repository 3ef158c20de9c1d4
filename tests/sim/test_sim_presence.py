"""Clients that come, go and fail, and selections, in whole runs."""

import math

import numpy as np
import pytest
import sim_worlds as sim
from worlds import TINY, play, world

from simfed import RunFailed
from simfed.fleet import Availability, Battery
from simfed.ground import Streams


def scenario(count=6, changes=(), **more):
    """Return a world of clients of one group; `changes` by key path."""
    keys = {
        "clients[0].count": count,
        "clients[0].device": {"profile": "x86-2core-vm", "speed": 0.01},
        "clients[0].link.up": "1 Mbps",
        "rounds": 6,
    }
    return world("tiny", {**keys, **dict(changes), **more})


def test_who_is_never_there_again_ends_the_run_with_a_sentence(tmp_path):
    trace = tmp_path / "online.csv"
    trace.write_text("client,from_s,to_s\n0,0,1.5\n")
    made = scenario(1, {"clients[0].availability.trace": str(trace)}, rounds=100)
    with pytest.raises(RunFailed, match="no client is ever available again"):
        play(made, time_only=True)


def test_a_server_whose_clients_always_fail_gives_up(monkeypatch):
    monkeypatch.setattr("simfed.sim.aggregator._HOPELESS", 50)
    aggregation = {"mode": "asynchronous", "concurrency": 3}
    made = scenario(6, {"clients[0].failure.upload": 1.0}, aggregation=aggregation)
    with pytest.raises(RunFailed, match="participations in a row were lost"):
        play(made, time_only=True)


def test_the_fastest_are_asked_after_everybody_was_met():
    fastest = {"kind": "fastest", "bound": None}
    slow = TINY["clients"][0] | {"count": 3, "link": {"up": "1 Mbps"}}
    quick = {"training": "1 ms", "compression": "0 s"}
    keys = {
        "rounds": 6,
        "clients": [slow, slow | {"device": quick, "link": {"up": "50 Mbps"}}],
        "participation": {"clients_per_round": 3, "selection": fastest},
    }
    run = play(world("tiny", keys), time_only=True)
    asked = run.participations.groupby("round")["client"].apply(list)
    assert set(asked[1] + asked[2]) == set(range(6))
    assert all(asked[number] == [3, 4, 5] for number in (3, 4, 5, 6))


def test_phases_fail_independently_as_often_as_said():
    def failed_in(**chances):
        made = scenario(400, {"clients[0].failure": chances}, rounds=2)
        rows = play(made, time_only=True).participations
        failed = rows[rows["outcome"] == "failed"].set_index(["round", "client"])
        arrived = rows[rows["outcome"] == "aggregated"]
        assert (arrived["uplink_bytes"] > 0).all()
        assert len(failed) + len(arrived) == 800
        sent = failed["uplink_bytes"] > 0
        return set(failed[~sent].index), set(failed[sent].index)

    training, upload = failed_in(training=0.1, upload=0.5)
    for lost, share in ((training, 0.1), (upload, 0.9 * 0.5)):
        spare = 4.5 * math.sqrt(share * (1 - share) / 800)
        assert abs(len(lost) / 800 - share) <= spare
    # keyed: whoever failed still does where failures are more frequent, and the others'
    # luck holds
    more_training, other_upload = failed_in(training=0.2, upload=0.5)
    assert training < more_training
    assert other_upload == upload - more_training


class Hungry(sim.Fixed):
    """A device that needs 1 W for work and 5 W to wait."""

    def energy_j(self, phases_s):
        return sum((5.0 if name == "idle" else 1.0) * s for name, s in phases_s.items())


def test_waiting_for_the_others_empties_no_battery():
    """Client 0 works 1 s and waits 9 s: its row has 46 J, its battery gives 1 J."""
    ids = np.arange(2)
    phones = Battery(100.0, 1e-6).presence(ids, Streams(0))
    presence = Availability([(ids, phones)])
    devices = [Hungry(1.0, 0.0), Hungry(10.0, 0.0)]
    plain = sim.scenario(rounds=4, clients=2)
    played = sim.build(plain, devices=devices, presence=presence).run()
    assert played.column("rounds", "participants") == [2] * 4
    assert played.column("participations", "energy_j") == [46.0, 10.0] * 4
    assert phones._level_j.tolist() == pytest.approx([96.0, 60.0], abs=1e-3)
