"""Replay of real learning: equal fingerprints, whatever the clock says."""

from pathlib import Path

import pytest

from simfed.experiment import running as experiment
from simfed.experiment.interrupt import CtrlC
from simfed.ground.errors import Interrupted
from simfed.replay import TrajectoryStore
from simfed.scenario.load import validate_scenario
from simfed.verify.run import verify

TOP = {"kind": "uniform", "strategy": "top-k"}


def scenario(up="50 Mbps", device="rtx3090-ryzen4800h", **changes):
    link = {"up": up, "down": "300 Mbps", "latency": "10 ms"}
    data = {
        "name": "replay",
        "rounds": 8,
        "dataset": {"name": "mnist-mini", "public": 32},
        "prototypes": {"small": {"model": "lenet5-half"}, "large": {"model": "lenet5"}},
        "clients": [
            {"count": 2, "prototype": p, "device": device, "link": link}
            for p in changes.get("prototypes", ("small", "large"))
        ],
        "compression": {"k": 500},
        "policy": {"kind": "ascend", "warmup": 1},
        "evaluation": {"every": 3},
        **changes,
    }
    return validate_scenario(data, source="test", folder=Path("."))


def play(scenario, store=None, **options):
    return experiment.run(scenario, workers=1, progress=False, trajectories=store, **options)


def learned(run):
    """Host seconds of real learning; none in a replay."""
    return run.manifest["learning_wall_s"].get("training", 0.0)


@pytest.fixture
def store(tmp_path):
    return TrajectoryStore(tmp_path / "cache")


def test_a_replay_over_another_network_and_device_is_bit_identical(store):
    play(scenario(policy=TOP), store)
    slow = {"profile": "rtx3090-ryzen4800h", "speed": 0.1, "noise": {"cv": 0.5}}
    other = scenario(policy=TOP, up="1 Mbps", charge={"downlink": False, "buffers": False})
    other = other.model_copy(
        update={
            "clients": tuple(
                g.model_copy(update={"device": type(g.device).model_validate(slow)})
                for g in other.clients
            )
        }
    )
    replayed = play(other, store)
    assert learned(replayed) == 0.0
    assert replayed.fingerprint == play(other).fingerprint
    assert len(store.kept()) == 1


def test_an_adaptive_run_shares_its_beginning_and_goes_its_own_way(store):
    first = play(scenario(rounds=12), store)
    elsewhere = scenario(rounds=12, up="0.2 Mbps", policy={"kind": "ascend", "warmup": 1, "c": 0})
    computed = play(elsewhere)
    replayed = play(elsewhere, store)
    assert replayed.fingerprint == computed.fingerprint
    # the same warm-up; then greedy against exploring
    arms = [run.participations.set_index(["round", "client"])["arm"] for run in (first, computed)]
    assert (arms[0] == arms[1]).loc[1:3].all()
    assert not (arms[0] == arms[1]).all()
    again = play(elsewhere, store)
    assert again.fingerprint == computed.fingerprint
    assert learned(again) == 0.0


LOGISTIC = {
    "dataset": {"name": "mnist-mini"},
    "prototypes": {"small": {"model": "logistic-regression"}},
    "method": "fedavg",
    "policy": TOP,
    "rounds": 4,
}
RICE = {"compression": {"k": 500, "index_code": "rice"}}
TIER = {"name": "edge", "count": 2, "up": "3 Mbps", "down": "9 Mbps"}
WORLDS = {
    "sizes of uploads": {**RICE, "policy": TOP, "rounds": 4},
    "sizes of changes": {**LOGISTIC, **RICE, "downlink": {"compression": {"k": 200}}},
    "sizes of what a method sends": {
        **LOGISTIC,
        "method": {"kind": "fedkd-mutual", "student": "small"},
        "rounds": 2,
    },
    "losses that are measured": {
        **LOGISTIC,
        "policy": {"kind": "ascend"},
        "faults": {"messages": {"lost": 0.3, "tries": 1}},
    },
    "edge servers": {
        **LOGISTIC,
        **RICE,
        "network": {"topology": "tree", "tiers": [TIER]},
        "aggregation": {"edge_servers": {"at": "edge", "merges": 2}},
    },
}


def world(name, **changes):
    times = {"profile": "x86-2core-vm", "assume": {"auxiliary": "1 ms"}}
    return scenario(**{"device": times, **WORLDS[name], **changes})


@pytest.mark.parametrize("name", WORLDS)
def test_recorded_is_replayed_in_every_table(name, store, tmp_path):
    computed, slower = play(world(name)), play(world(name, up="15 Mbps"))
    assert play(world(name), store).fingerprint == computed.fingerprint
    again = play(world(name), store, out=tmp_path / "run")
    assert (again.fingerprint, learned(again)) == (computed.fingerprint, 0.0)
    elsewhere = play(world(name, up="15 Mbps"), store)
    assert elsewhere.fingerprint == slower.fingerprint
    assert verify(tmp_path / "run") == []


@pytest.mark.parametrize("known", [0, 3, 8])
def test_an_interrupted_run_goes_on_wherever_its_learning_was(store, tmp_path, known):
    whole = play(scenario(policy=TOP))
    if known:
        play(scenario(policy=TOP, rounds=known), store)

    def stop(round, simulated_s, accuracy):
        if round == 5:
            raise KeyboardInterrupt

    slow = scenario(policy=TOP, checkpoint={"every": 2})
    kept = "the scenario alone" if known == 8 else "the last checkpoint"
    with pytest.raises(Interrupted, match=kept):
        experiment.run(slow, tmp_path / "run", workers=1, progress=stop, trajectories=store)
    resumed = play(slow, store, out=tmp_path / "run", resume=True)
    assert resumed.fingerprint == whole.fingerprint
    assert verify(tmp_path / "run") == []
    again = play(slow, store)
    assert (again.fingerprint, learned(again)) == (whole.fingerprint, 0.0)


@pytest.mark.parametrize(("known", "says"), [(0, "goes on from there"), (8, "begins again")])
def test_ctrl_c_says_whether_anything_was_learned(store, tmp_path, known, says, monkeypatch):
    if known:
        play(scenario(policy=TOP, rounds=known), store)
    monkeypatch.setattr(CtrlC, "asked", lambda ctrl_c: True)
    with pytest.raises(Interrupted, match=f"stopped after round 1; --resume {says}"):
        play(scenario(policy=TOP), store, out=tmp_path / "run")


# ---- clients in flight ---------------------------------------------------------------------------

FLYING = {
    "buffered": {"mode": "buffered", "buffer": 2, "concurrency": 3},
    "asynchronous": {"mode": "asynchronous", "concurrency": 3},
}


def flying(mode, method="fedavg", *, slower=1.0, uplinks=(0.4, 1.0, 2.5, 4.0), **changes):
    """Four clients, each on an uplink of its own (Mbps), all together `slower` in everything."""
    clients = [
        {
            "prototype": "small",
            "device": {"profile": "x86-2core-vm", "speed": 1 / slower},
            "link": {"up": f"{up / slower} Mbps", "down": f"{8 / slower} Mbps"},
        }
        for up in uplinks
    ]
    return scenario(
        clients=clients,
        prototypes={"small": {"model": "logistic-regression"}},
        method=method,
        dataset={"name": "mnist-mini"},
        policy=TOP,
        aggregation=FLYING[mode],
        rounds=8,
        evaluation={"every": 8},
        **changes,
    )


@pytest.mark.parametrize(("mode", "method"), [("buffered", "fedprox"), ("asynchronous", "fedavg")])
def test_a_replay_with_uploads_in_flight_is_bit_identical(store, mode, method):
    real = play(flying(mode, method))
    assert real.participations["staleness"].max() > 0
    play(flying(mode, method), store)
    again = play(flying(mode, method), store)
    assert again.manifest["learning_wall_s"]["rebuild"] == 0.0
    assert again.fingerprint == real.fingerprint
    # where everything takes twice as long, everything happens in the same order
    slow = play(flying(mode, method, slower=2.0), store)
    assert slow.manifest["learning_wall_s"]["rebuild"] == 0.0
    assert slow.prototypes.equals(real.prototypes)
    assert slow.summary["simulated_s"] > 1.9 * real.summary["simulated_s"]


def test_arrivals_in_another_order_are_learned_anew(store):
    first = play(flying("buffered"), store)
    elsewhere = flying("buffered", uplinks=(4.0, 2.5, 1.0, 0.4))
    other = play(elsewhere, store)
    assert other.manifest["learning_wall_s"]["rebuild"] > 0.0
    assert other.fingerprint == play(elsewhere).fingerprint
    assert not first.prototypes["test_loss"].equals(other.prototypes["test_loss"])
    assert len(store.kept()) == 1  # one tree: what differs is the way down, not the root
