"""What people try in their first hour: short forms, and errors that name the line."""

from __future__ import annotations

import pytest
import yaml

from simfed import InputError
from simfed.cli import main
from simfed.experiment import Checks, Parts
from simfed.scenario import add_line, load_scenario

SCENARIO = """\
name: first
rounds: 2
method: fedavg
dataset: {name: mnist-mini}
prototypes:
  net: {model: lenet5-half}
clients:
  - count: 2
    prototype: net
    device: {training: 12 ms, compression: 0.3 ms}
    link: {up: 10 mbps, down: 50 Mbps}
compression: {k: 1%, strategies: [top-k]}
policy: {kind: uniform, strategy: top-k}
"""


def device(**changes):
    changes = {f"clients[*].device.{key}": value for key, value in changes.items()}
    loaded = load_scenario(yaml.safe_load(SCENARIO), changes)
    parts = Parts(loaded)
    assert Checks(parts).errors() == []
    assert loaded.clients[0].link.up == 10e6 / 8
    return parts.device(0), loaded.clients[0].device.assume


def test_times_alone_are_a_device():
    made, _ = device()
    times_s, model = made.processor.nominal_s, "lenet5-half"
    assert times_s("training", model=model, batch=32) == 0.012
    assert times_s("compression", model=model, strategy="top-k", k=157) == 0.0003
    slow, _ = device(speed=0.5)
    assert slow.duration_s(0.012, 0.0, round=1, phase="training") == 0.024
    assert slow.energy_j({"training": 1.0}) is None


def test_times_stand_in_place_of_what_a_profile_knows():
    made, _ = device(profile="x86-2core-vm", training="5 ms")
    assert made.processor.nominal_s("training", model="lenet5-half", batch=32) == 0.005
    _, assume = device(**{"assume.inference": "1 ms", "decompression": "0 s"})
    assert (assume.inference, assume.training) == (0.001, 0.012)


ZERO = SCENARIO.replace("rounds: 2", "rounds: 0")


@pytest.mark.parametrize(
    ("files", "words", "said"),
    [
        ({}, "--set rounds=0", "s.yaml: rounds: got 0, "),
        (
            {},
            "--set clients[0].device.speed=0",
            "s.yaml: clients[0].device.speed: got 0, expected a number above 0\n",
        ),
        ({"s.yaml": ZERO}, "--set seed=1", "s.yaml: line 2: rounds: got 0, "),
        (
            {"s.yaml": "extends: up.yaml\nseed: 1\n", "up.yaml": ZERO},
            "",
            "s.yaml: up.yaml: line 2: rounds: got 0, expected a whole number",
        ),
    ],
)
def test_errors_have_the_line_of_their_file_and_none_from_the_command_line(
    tmp_path, monkeypatch, capsys, files, words, said
):
    monkeypatch.chdir(tmp_path)
    for name, text in {"s.yaml": SCENARIO, **files}.items():
        (tmp_path / name).write_text(text)
    assert main(["validate", "s.yaml", *words.split()]) == 2
    assert f"simfed: {said}" in capsys.readouterr().err


def test_line_is_looked_for_in_a_circle_once(tmp_path):
    (tmp_path / "round.yaml").write_text("extends: round.yaml\n")
    circle = InputError("x", where=f"{tmp_path / 'round.yaml'}: rounds")
    assert str(add_line(circle)) == str(circle)


def test_keys_of_a_study_are_paths_themselves(tmp_path, capsys):
    (tmp_path / "s.yaml").write_text(SCENARIO)
    grid = "  clients[*].link.up: [1 Mbps]\n  clients[*].lnk: [1]\n"
    (tmp_path / "study.yaml").write_text(f"name: s\nbase: s.yaml\ngrid:\n{grid}")
    assert main(["study", "run", f"{tmp_path}/study.yaml", "--out", "out"]) == 2
    said = "study.yaml: line 5: grid.clients[*].lnk: there is no key 'lnk' here, "
    assert said in capsys.readouterr().err
