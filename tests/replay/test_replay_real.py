"""Replay of real learning: equal fingerprints, whatever the clock says."""

import signal

import pytest
import worlds

from simfed import Interrupted
from simfed.experiment import CtrlC
from simfed.replay import TrajectoryStore
from simfed.verify import verify


def scenario(**changes):
    keys = {
        "rounds": 8,
        "prototypes.b.model": "perceptron",
        "compression.k": 500,
        "evaluation.every": 3,
    }
    return worlds.world("two", keys, **changes)


def play(scenario, store=None, **options):
    return worlds.play(scenario, trajectories=store, **options)


def learned(run):
    """Host seconds of real learning; none in a replay."""
    return run.manifest["learning_wall_s"].get("training", 0.0)


@pytest.fixture
def store(tmp_path):
    return TrajectoryStore(tmp_path / "cache")


@pytest.mark.parametrize("known", [0, 3, 8])
def test_an_interrupted_run_goes_on_wherever_its_learning_was(store, tmp_path, known):
    whole = play(scenario())
    if known:
        play(scenario(rounds=known), store)

    def stop(round, simulated_s, accuracy):
        if round == 5:
            raise KeyboardInterrupt

    slow = scenario(checkpoint={"every": 2})
    kept = "the scenario alone" if known == 8 else "the last checkpoint"
    with pytest.raises(Interrupted, match=kept):
        play(slow, store, out=tmp_path / "run", progress=stop)
    resumed = play(slow, store, out=tmp_path / "run", resume=True)
    assert resumed.fingerprint == whole.fingerprint
    assert verify(tmp_path / "run") == []
    again = play(slow, store)
    assert (again.fingerprint, learned(again)) == (whole.fingerprint, 0.0)


@pytest.mark.parametrize(
    ("known", "says"), [(0, "goes on from there"), (8, "begins again")]
)
def test_ctrl_c_says_whether_anything_was_learned(
    store, tmp_path, known, says, monkeypatch
):
    if known:
        play(scenario(rounds=known), store)
    monkeypatch.setattr(CtrlC, "asked", lambda ctrl_c: True)
    with pytest.raises(Interrupted, match=f"stopped after round 1; --resume {says}"):
        play(scenario(), store, out=tmp_path / "run")


def test_ctrl_c_is_remembered_and_no_more_where_workers_are_ended():
    ctrl_c = CtrlC()
    with ctrl_c.heard():
        ctrl_c.hear_on()
        signal.raise_signal(signal.SIGINT)
        assert ctrl_c.asked()
