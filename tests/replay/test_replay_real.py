"""Replay of real learning: equal fingerprints, whatever the clock says."""

from pathlib import Path

import pytest

from simfed import experiment
from simfed.replay import TrajectoryStore
from simfed.scenario.load import validated

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
    return validated(data, source="test", folder=Path("."))


def play(scenario, store=None, **options):
    return experiment.run(scenario, workers=1, progress=False, trajectories=store, **options)


def learned(run):
    """Host seconds of real learning; none in a replay."""
    return run.manifest["learning_wall_s"].get("gradients", 0.0)


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
