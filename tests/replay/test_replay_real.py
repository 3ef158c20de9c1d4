"""Replay of real learning: equal fingerprints, whatever the clock says."""

from pathlib import Path

import pytest

from simfed.experiment import running as experiment
from simfed.replay import TrajectoryStore
from simfed.scenario.load import validate_scenario

TOP = {"kind": "uniform", "strategy": "top-k"}


def scenario(up="50 Mbps", **changes):
    link = {"up": up, "down": "300 Mbps", "latency": "10 ms"}
    data = {
        "name": "replay",
        "rounds": 8,
        "dataset": {"name": "mnist-mini", "public": 32},
        "prototypes": {"small": {"model": "lenet5-half"}, "large": {"model": "lenet5"}},
        "clients": [
            {"count": 2, "prototype": p, "device": "rtx3090-ryzen4800h", "link": link}
            for p in ("small", "large")
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


def test_sizes_that_depend_on_data_come_out_the_same(store):
    rice = {"policy": TOP, "compression": {"k": 500, "index_code": "rice"}}
    play(scenario(**rice), store)
    replayed = play(scenario(up="2 Mbps", **rice), store)
    assert learned(replayed) == 0.0
    assert replayed.fingerprint == play(scenario(up="2 Mbps", **rice)).fingerprint


def test_a_longer_run_begins_with_a_shorter_one(store):
    play(scenario(policy=TOP, rounds=6), store)
    longer = play(scenario(policy=TOP, rounds=9), store)
    assert longer.fingerprint == play(scenario(policy=TOP, rounds=9)).fingerprint
    assert longer.manifest["learning_wall_s"]["rebuild"] > 0


@pytest.mark.parametrize("known", [0, 8])
def test_an_interrupted_run_goes_on_wherever_its_learning_was(store, tmp_path, known):
    whole = play(scenario(policy=TOP))
    if known:
        play(scenario(policy=TOP, rounds=known), store)

    class Stop(Exception):
        pass

    def stop(round, simulated_s, accuracy):
        if round == 5:
            raise Stop

    slow = scenario(policy=TOP, checkpoint={"every": 2})
    with pytest.raises(Stop):
        experiment.run(slow, tmp_path / "run", workers=1, progress=stop, trajectories=store)
    resumed = play(slow, store, out=tmp_path / "run", resume=True)
    assert resumed.fingerprint == whole.fingerprint
    assert play(slow, store).fingerprint == whole.fingerprint


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


@pytest.mark.parametrize("mode", FLYING)
def test_arrivals_in_another_order_are_learned_anew(store, mode):
    first = play(flying(mode), store)
    elsewhere = flying(mode, uplinks=(4.0, 2.5, 1.0, 0.4))
    other = play(elsewhere, store)
    assert other.manifest["learning_wall_s"]["rebuild"] > 0.0
    assert other.fingerprint == play(elsewhere).fingerprint
    assert not first.prototypes["test_loss"].equals(other.prototypes["test_loss"])
    assert len(store.kept()) == 1  # one tree: what differs is the way down, not the root


@pytest.mark.parametrize("stops", [2, 6])
def test_an_interrupted_replay_with_uploads_in_flight_goes_on(store, tmp_path, stops):
    made = flying("asynchronous", checkpoint={"every": 1})
    whole = play(made)
    play(flying("asynchronous").model_copy(update={"rounds": 4}), store)  # known up to there

    class Stop(Exception):
        pass

    def stop(round, simulated_s, accuracy):
        if round == stops:
            raise Stop

    with pytest.raises(Stop):
        experiment.run(made, tmp_path / "run", workers=1, progress=stop, trajectories=store)
    resumed = play(made, store, out=tmp_path / "run", resume=True)
    assert resumed.fingerprint == whole.fingerprint
