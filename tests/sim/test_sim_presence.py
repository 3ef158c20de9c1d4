"""Clients that come, go and fail, and selections, through the command that users type."""

import math

import numpy as np
import pytest
import sim_worlds as sim

import simfed
from simfed.cli import main
from simfed.fleet.availability import Availability
from simfed.fleet.battery import Battery
from simfed.ground.errors import RunFailed
from simfed.ground.seeding import Streams
from simfed.scenario import Scenario


def scenario(**changes):
    return Scenario.model_validate(
        {
            "name": "fleet",
            "rounds": 6,
            "dataset": {"name": "mnist-mini", "public": 16},
            "prototypes": {"a": {"model": "logistic-regression"}},
            "policy": {"kind": "uniform", "strategy": "top-k"},
            "clients": [
                {
                    "count": 6,
                    "prototype": "a",
                    "device": {"profile": "x86-2core-vm", "speed": 0.01},
                    "link": {"up": "1 Mbps", "down": "2 Mbps"},
                    **changes.pop("group", {}),
                }
            ],
            **changes,
        }
    )


COMES_AND_GOES = {
    "availability": {"markov": {"on": "2 s", "off": "1 s"}},
    "failure": {"download": 0.05, "training": 0.1, "upload": 0.1},
}


MODES = [
    {"mode": "synchronous"},
    {"mode": "deadline", "deadline": "0.3 s", "late": "merge"},
    {"mode": "first", "late": "drop"},
    {"mode": "buffered", "buffer": 2, "concurrency": 4},
    {"mode": "asynchronous", "concurrency": 3},
]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode["mode"])
def test_a_fleet_that_comes_and_goes_keeps_every_invariant(tmp_path, mode):
    size = {"clients_per_round": 3} if mode["mode"] == "first" else {}
    made = scenario(group=COMES_AND_GOES, aggregation=mode, participation=size)
    run = simfed.run(made, tmp_path / "run", time_only=True, progress=False)
    outcomes = set(run.participations["outcome"])
    assert outcomes & {"dropped", "failed"}
    assert outcomes <= {"aggregated", "late", "dropped", "failed"}
    assert main(["verify", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode["mode"])
def test_what_is_learned_under_every_server_keeps_every_invariant(tmp_path, mode):
    size = {"clients_per_round": 3} if mode["mode"] == "first" else {}
    policy = {"kind": "ascend", "warmup": 1, "reward": {"local_loss": {"samples": 20}}}
    made = scenario(group=COMES_AND_GOES, aggregation=mode, participation=size, policy=policy)
    run = simfed.run(made, tmp_path / "run", workers=1, progress=False)
    assert run.participations["reward_raw"].notna().any()
    assert run.prototypes["test_accuracy"].iloc[-1] > 0
    assert main(["verify", str(tmp_path / "run")]) == 0


def test_who_is_never_there_again_ends_the_run_with_a_sentence(tmp_path):
    trace = tmp_path / "online.csv"
    trace.write_text("client,from_s,to_s\n0,0,1.5\n")
    made = scenario(group={"count": 1, "availability": {"trace": str(trace)}}, rounds=100)
    with pytest.raises(RunFailed, match="no client is ever available again"):
        simfed.run(made, time_only=True, progress=False)


def test_a_server_whose_clients_always_fail_gives_up(monkeypatch):
    monkeypatch.setattr("simfed.sim.aggregator._HOPELESS", 50)
    made = scenario(
        group={"failure": {"upload": 1.0}},
        aggregation={"mode": "asynchronous", "concurrency": 3},
    )
    with pytest.raises(RunFailed, match="participations in a row were lost"):
        simfed.run(made, time_only=True, progress=False)


def test_the_fastest_are_asked_after_everybody_was_met():
    fast = {"count": 3, "prototype": "a", "device": "x86-2core-vm", "link": {"up": "50 Mbps"}}
    made = scenario(
        group={"count": 3},
        participation={"clients_per_round": 3, "selection": {"kind": "fastest", "bound": None}},
    )
    plain = made.model_dump(mode="json")
    plain["clients"].append(fast)
    run = simfed.run(Scenario.model_validate(plain), time_only=True, progress=False)
    asked = run.participations.groupby("round")["client"].apply(list)
    assert set(asked[1] + asked[2]) == set(range(6))
    assert all(asked[number] == [3, 4, 5] for number in (3, 4, 5, 6))


def test_utility_guided_selection_is_told_losses():
    made = scenario(participation={"clients_per_round": 2, "selection": "oort"}, rounds=4)
    run = simfed.run(made, progress=False, workers=1)
    assert run.participations["local_loss"].notna().all()
    assert (run.participations.groupby("round").size() == 2).all()


def test_phases_fail_independently_as_often_as_said():
    def failed_in(**chances):
        made = scenario(group={"count": 400, "failure": chances}, rounds=2)
        rows = simfed.run(made, time_only=True, progress=False).participations
        failed = rows[rows["outcome"] == "failed"].set_index(["round", "client"])
        arrived = rows[rows["outcome"] == "aggregated"]
        assert (arrived["uplink_bytes"] > 0).all()
        assert len(failed) + len(arrived) == 800
        sent = failed["uplink_bytes"] > 0
        return set(failed[~sent].index), set(failed[sent].index)

    training, upload = failed_in(training=0.1, upload=0.5)
    for lost, share in ((training, 0.1), (upload, 0.9 * 0.5)):
        assert abs(len(lost) / 800 - share) <= 4.5 * math.sqrt(share * (1 - share) / 800)
    # keyed: whoever failed still does where failures are more frequent, and the others' luck holds
    more_training, other_upload = failed_in(training=0.2, upload=0.5)
    assert training < more_training
    assert other_upload == upload - more_training


class Hungry(sim.Fixed):
    """A device that needs 1 W for work and 5 W to wait."""

    def energy_j(self, phases_s):
        return sum((5.0 if name == "idle" else 1.0) * s for name, s in phases_s.items())


def test_waiting_for_the_others_empties_no_battery():
    """Client 0 works 1 s and waits 9 s: its row has 46 J, its battery gives 1 J."""
    clients = [{"count": 2, "prototype": "small", "device": "rtx3090-ryzen4800h"}]
    plain = sim.scenario(rounds=4, clients=clients)
    ids = np.arange(2)
    phones = Battery(100.0, 1e-6).presence(ids, Streams(0))
    presence = Availability([(ids, phones)])
    devices = [Hungry(1.0, 0.0), Hungry(10.0, 0.0)]
    played = sim.build(plain, devices=devices, presence=presence).run()
    assert played.column("rounds", "participants") == [2] * 4
    assert played.column("participations", "energy_j") == [46.0, 10.0] * 4
    assert phones._level_j.tolist() == pytest.approx([96.0, 60.0], abs=1e-3)
