"""Replay of real learning: equal fingerprints, whatever the clock says."""

import pytest
import worlds

from simfed import Interrupted
from simfed.experiment import CtrlC
from simfed.experiment import running as experiment
from simfed.replay import TrajectoryStore
from simfed.verify import verify

TOP = {"kind": "uniform", "strategy": "top-k"}


def scenario(up="50 Mbps", **changes):
    keys = {
        "rounds": 8,
        "prototypes.b.model": "perceptron",
        "clients[*].link": {"up": up, "latency": "10 ms"},
        "compression.k": 500,
        "policy": {
            "kind": "ascend",
            "warmup": 1,
            "reward": {"local_loss": {"samples": 20}},
        },
        "evaluation.every": 3,
    }
    return worlds.world("two", keys, **changes)


def play(scenario, store=None, **options):
    return experiment.run(
        scenario, workers=1, progress=False, trajectories=store, **options
    )


def learned(run):
    """Host seconds of real learning; none in a replay."""
    return run.manifest["learning_wall_s"].get("training", 0.0)


@pytest.fixture
def store(tmp_path):
    return TrajectoryStore(tmp_path / "cache")


def test_an_adaptive_run_shares_its_beginning_and_goes_its_own_way(store):
    first = play(scenario(), store)
    elsewhere = scenario(up="0.2 Mbps", **{"policy.c": 0})
    computed = play(elsewhere)
    replayed = play(elsewhere, store)
    assert replayed.fingerprint == computed.fingerprint
    # the same warm-up; then greedy against exploring
    arms = [
        run.participations.set_index(["round", "client"])["arm"]
        for run in (first, computed)
    ]
    assert (arms[0] == arms[1]).loc[1:3].all()
    assert not (arms[0] == arms[1]).all()
    again = play(elsewhere, store)
    assert again.fingerprint == computed.fingerprint
    assert learned(again) == 0.0


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
        experiment.run(
            slow, tmp_path / "run", workers=1, progress=stop, trajectories=store
        )
    resumed = play(slow, store, out=tmp_path / "run", resume=True)
    assert resumed.fingerprint == whole.fingerprint
    assert verify(tmp_path / "run") == []
    again = play(slow, store)
    assert (again.fingerprint, learned(again)) == (whole.fingerprint, 0.0)


@pytest.mark.parametrize(
    ("known", "says"), [(0, "goes on from there"), (8, ("begins again"))]
)
def test_ctrl_c_says_whether_anything_was_learned(
    store, tmp_path, known, says, monkeypatch
):
    if known:
        play(scenario(policy=TOP, rounds=known), store)
    monkeypatch.setattr(CtrlC, "asked", lambda ctrl_c: True)
    with pytest.raises(Interrupted, match=f"stopped after round 1; --resume {says}"):
        play(scenario(policy=TOP), store, out=tmp_path / "run")
