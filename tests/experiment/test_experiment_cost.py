"""What a run will take: by arithmetic on two plays; for a small run as it then is."""

import pytest
import yaml

import simfed
from simfed import RunFailed
from simfed.cli import main
from simfed.experiment import cost
from simfed.experiment.cost import _extrapolate, _Play, _Seconds, estimate_cost
from simfed.ground.inputs import list_files_below
from simfed.scenario import Scenario

SCENARIO = """
name: tiny
rounds: 60
method: fedavg
dataset: {name: mnist-mini}
prototypes: {only: {model: logistic-regression}}
clients: [{count: 40, prototype: only, device: x86-2core-vm}]
participation: {clients_per_round: 4}
policy: {kind: uniform, strategy: top-k}
evaluation: {every: 4}
"""


@pytest.fixture
def scenario():
    return Scenario.model_validate(yaml.safe_load(SCENARIO))


def test_all_rounds_follow_from_two_plays(scenario):
    few = _Seconds(2.0, [1.0, 3.0], 0.5)
    # of eight rounds the fourth and the last are evaluated, which takes two seconds
    # more
    more = _Seconds(2.0, [9.0, 9.0, 3.0, 1.0, 1.0, 1.0, 3.0], 1.0)
    half = more._replace(rounds_s=[spent_s / 2 for spent_s in more.rounds_s])
    plays = (
        _Play(3, few, few, 1.0, 1000.0, 50.0, 300.0),
        _Play(8, more, half, 4.0, 1100.0, 100.0, 800.0),
    )
    found = _extrapolate(scenario, *plays)
    # 52 further rounds of 1.1 s with their part of the end, 13 of them evaluated
    assert found.wall_s == pytest.approx(2 + 27 + 1 + 52 * 1.1 + 13 * 2)
    assert found.processor_s == pytest.approx(2 + 13.5 + 1 + 52 * 0.6 + 13 + 4 * 60 / 8)
    # after ten rounds of four, all forty have taken part
    assert found.memory_bytes == pytest.approx(1100 + 2 * 100 / 5)
    assert found.disk_bytes == pytest.approx(800 + 52 * 100 + 100 + 2 * 10)
    assert found.played == 8


def test_run_leaves_what_was_foretold(scenario, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "_PLAYED_S", 0.0)
    found = estimate_cost(scenario, time_only=True)
    assert found.played == 6
    assert found.wall_s > 0
    simfed.run(scenario, out=tmp_path / "run", time_only=True, progress=False)
    left = sum(file.stat().st_size for file in list_files_below(tmp_path))
    assert found.disk_bytes == pytest.approx(left, rel=1 / 3)
    assert 5e7 < found.memory_bytes < 2e9


def test_run_that_cannot_be_played_has_no_cost(tmp_path, monkeypatch, capsys):
    def fail(made, **kwargs):
        # of three rounds two states are kept
        raise RunFailed(f"round {made.checkpoint.every}: nobody is available again")

    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO)
    monkeypatch.setattr(cost, "run", fail)
    assert main(["show", "cost", str(path), "--time-only"]) == 1
    assert "tiny: round 1: nobody is available again" in capsys.readouterr().err
