"""What people try in their first hour: short forms that are taken, and errors that say
the line and what was meant.
"""

from __future__ import annotations

import pytest
import yaml

from simfed import InputError, InputErrors
from simfed.cli import main
from simfed.experiment import Checks, Parts
from simfed.scenario import add_line, dump_scenario, load_scenario

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


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SCENARIO)
    return tmp_path / "s.yaml"


def device(file, **changes):
    loaded = load_scenario(
        file, {f"clients[*].device.{key}": v for key, v in changes.items()}
    )
    parts = Parts(loaded, file)
    assert Checks(parts).errors() == []
    return parts.device(0)


def test_times_alone_are_a_device(file):
    times_s, model = device(file).processor.nominal_s, "lenet5-half"
    assert times_s("training", model=model, batch=32) == 0.012
    assert times_s("compression", model=model, strategy="top-k", k=157) == 0.0003
    slow = device(file, speed=0.5)
    assert slow.duration_s(0.012, 0.0, round=1, phase="training") == 0.024
    assert slow.energy_j({"training": 1.0}) is None


def test_times_stand_in_place_of_what_a_profile_knows(file):
    made = device(file, profile="x86-2core-vm", training="5 ms")
    assert made.processor.nominal_s("training", model="lenet5-half", batch=32) == 0.005
    loaded = load_scenario(file, {"clients[0].device.assume.inference": "1 ms"})
    assert loaded.clients[0].device.assume.inference == 0.001
    assert loaded.clients[0].device.assume.training == 0.012
    assert load_scenario(file, {"clients[0].device.decompression": "0 s"})


def test_a_resolved_device_without_a_profile_loads_again(file, tmp_path):
    loaded = load_scenario(file)
    (tmp_path / "again.yaml").write_text(dump_scenario(loaded))
    assert load_scenario(tmp_path / "again.yaml") == loaded
    assert (
        "training" not in yaml.safe_load(dump_scenario(loaded))["clients"][0]["device"]
    )


def test_short_forms(file):
    loaded = load_scenario(file)
    assert loaded.clients[0].link.up == 10e6 / 8
    ascend = {"method": "fedkd", "policy": {"kind": "ascend"}}
    for word, on in (
        ("off", False),
        (False, False),
        (None, False),
        ("on", True),
        (True, True),
    ):
        said = load_scenario(
            file, {**ascend, "safeguard.rollback": word}
        ).safeguard.rollback
        assert (said is not None) == on
    assert load_scenario(file, ascend).safeguard.rollback is not None


def test_a_name_in_another_case_is_suggested_and_megabytes_are_not_guessed(file):
    with pytest.raises(InputErrors, match="did you mean 'mnist'"):
        load_scenario(file, {"dataset.name": "MNIST"})
    with pytest.raises(InputErrors, match="got '10 MBps'"):
        load_scenario(file, {"clients[*].link.up": "10 MBps"})


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("clients.link.up", "clients[*].link.up"),
        ("link.up", "clients[*].link.up"),
        ("device.speed", "server.device.speed or clients[*].device.speed"),
        ("k", "compression.k or clients[*].k"),
        ("learning_rate", "training.learning_rate or distillation.learning_rate"),
        ("network.edges.between", "network.edges[*].between"),
    ],
)
def test_a_key_path_that_lacks_something_is_completed(file, path, meant):
    with pytest.raises(InputError) as error:
        load_scenario(file, {path: 1})
    wanted = set(meant.split(" or "))
    said = str(error.value).rpartition("did you mean ")[2].rstrip("?)")
    assert wanted <= set(said.replace(", ", " or ").split(" or "))


def test_errors_name_the_line_of_the_file(file, capsys):
    lines = SCENARIO.splitlines()
    wrong = {
        2: "rounds: 0",
        4: "dataset: {nam: mnist-mini}",
        8: "  - count: 1.5",
        11: "    link: {up: 10 Mb}",
        13: "policy: {kind: off}",
    }
    file.write_text("\n".join(wrong.get(n + 1, line) for n, line in enumerate(lines)))
    assert main(["validate", "s.yaml"]) == 2
    err = capsys.readouterr().err
    for number, key in (
        (2, "rounds"),
        (4, "dataset"),
        (8, "clients[0].count"),
        (11, "clients[0].link.up"),
        (13, "policy.kind"),
    ):
        assert f"simfed: s.yaml: line {number}: {key}: " in err
    assert "YAML reads on, yes, off and no as true and false" in err


def test_a_value_from_the_command_line_has_no_line(file, capsys):
    assert main(["validate", "s.yaml", "--set", "rounds=0"]) == 2
    assert "s.yaml: rounds: got 0, expected a whole number" in capsys.readouterr().err
    assert main(["validate", "s.yaml", "--set", "clients[0].device.speed=0"]) == 2
    assert (
        "s.yaml: clients[0].device.speed: got 0, expected a number above 0\n"
        in capsys.readouterr().err
    )
    file.write_text(SCENARIO.replace("rounds: 2", "rounds: 0"))
    assert main(["validate", "s.yaml", "--set", "seed=1"]) == 2
    assert (
        "s.yaml: line 2: rounds: got 0, expected a whole number"
        in capsys.readouterr().err
    )


def test_a_key_of_an_extended_file_names_that_file(file, tmp_path, capsys):
    file.write_text(SCENARIO.replace("rounds: 2", "rounds: 0"))
    (tmp_path / "own.yaml").write_text("extends: s.yaml\nseed: 1\n")
    assert main(["validate", "own.yaml"]) == 2
    assert (
        "own.yaml: s.yaml: line 2: rounds: got 0, expected a whole number"
        in capsys.readouterr().err
    )
    (tmp_path / "round.yaml").write_text("extends: round.yaml\n")
    circle = InputError("x", where=f"{tmp_path / 'round.yaml'}: rounds")
    assert str(add_line(circle)) == str(circle)


def test_a_study_s_keys_are_paths_themselves(file, tmp_path, capsys):
    (tmp_path / "study.yaml").write_text(
        "name: s\nbase: s.yaml\ngrid:\n  clients[*].link.up: [1 Mbps]\n  "
        "clients[*].lnk: [1]\n"
    )
    assert main(["study", "run", "study.yaml", "--out", "out"]) == 2
    assert (
        "study.yaml: line 5: grid.clients[*].lnk: there is no key 'lnk' here, "
        "expected count, prototype, device, link,"
    ) in capsys.readouterr().err


def test_what_yaml_takes_for_one_key_is_told_apart(file):
    for written, said in (
        (
            "safeguard: {rollback: {threshold:3}}",
            "a space follows a colon: threshold: 3",
        ),
        ("training: {schedule.kind: cosine}", "write schedule: {kind: …}"),
    ):
        file.write_text(SCENARIO + written + "\n")
        with pytest.raises(InputErrors) as error:
            load_scenario(file)
        assert said in str(error.value)
