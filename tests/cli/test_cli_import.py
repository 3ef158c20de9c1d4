"""`--import FILE.py` and `plugins`: parts of one's own from a file, in this process and
in those it starts; files that say so run no code unless somebody consents.
"""

import json
import os
import sys

import pytest
import yaml

import simfed
from simfed.cli import main
from simfed.ground import IMPORTS
from simfed.ground.registry import registry

PARTS = """
import simfed
from simfed.policy import Uniform


class Second(Uniform):
    \"\"\"Always the second strategy.\"\"\"

    def __init__(self, arms, reward_range):
        super().__init__(arms, reward_range, strategy=arms[1])


simfed.register("policy", "always-second", Second)
"""
SCENARIO = yaml.safe_load("""
name: own
rounds: 2
dataset: {name: mnist-mini}
prototypes: {small: {model: lenet5-half}}
clients: [{count: 2, prototype: small, device: rtx3090-ryzen4800h, link: {}}]
policy: {kind: always-second}
""")


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A file of parts, which are forgotten again."""
    monkeypatch.setenv(IMPORTS, "")
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(SCENARIO))
    yield tmp_path / "parts.py"
    forget()


def test_a_name_of_ones_own_is_known_with_its_file_alone(parts, capsys):
    scenario = str(parts.with_name("own.yaml"))
    assert main(["validate", scenario]) == 2
    assert "parts of your own: --import FILE.py" in capsys.readouterr().err
    assert main(["validate", scenario, "--import", str(parts)]) == 0
    assert main(["validate", scenario, "--import", str(parts)]) == 0  # twice is once
    assert main(["list", "policies", "--import", str(parts)]) == 0
    assert "always-second" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "--import {path}: no file '{path}', expected a Python file"),
        (
            "x = 1\nraise KeyError('k')",
            ": it fails with KeyError: 'k' (bad.py, line 2)\n",
        ),
        ("def f(:", ": it fails with SyntaxError: invalid syntax (bad.py, line 1)\n"),
    ],
)
def test_a_file_that_does_not_run_is_one_sentence(parts, tmp_path, capsys, text, said):
    path = tmp_path / "bad.py"
    if text is not None:
        path.write_text(text)
    assert main(["list", "policies", "--import", str(path)]) == 2
    error = capsys.readouterr().err
    assert said.format(path=path) in error
    assert len(error.splitlines()) == 1


def test_a_part_that_raises_is_one_sentence_with_its_name(parts, capsys):
    raises = "    def pull(self, rng):\n        return 1 / 0\n\n\nsimfed.register"
    parts.write_text(PARTS.replace("\nsimfed.register", raises))
    scenario, out = parts.with_name("own.yaml"), parts.with_name("out")
    words = f"run {scenario} --out {out} --time-only --quiet --import {parts}".split()
    assert main(words) == 1
    said = capsys.readouterr().err
    assert said == (
        "simfed: your policy 'always-second', called as pull(rng), raised "
        "ZeroDivisionError: "
        "division by zero (parts.py, line 13, in pull; --debug shows more)\n"
    )
    with pytest.raises(ZeroDivisionError):
        main([*words, "--overwrite", "--debug"])


def forget():
    """As a new process begins."""
    for name in [name for name in sys.modules if name.startswith("simfed_import_")]:
        del sys.modules[name]
    if "always-second" in registry("policy"):
        registry("policy").remove("always-second")
    os.environ[IMPORTS] = ""


@pytest.fixture
def scenario(parts):
    """A scenario whose file names its parts, and parts that leave a mark where they are
    run.
    """
    mark = parts.with_name("was-run")
    parts.write_text(f"open({str(mark)!r}, 'w').close()\n{PARTS}")
    path = parts.with_name("own.yaml")
    path.write_text(yaml.safe_dump({**SCENARIO, "plugins": [parts.name]}))
    return path


def test_a_file_alone_runs_no_code(scenario, tmp_path, capsys):
    (tmp_path / "study.yaml").write_text("name: s\nbase: own.yaml\n")
    (tmp_path / "first.yaml").write_text("name: s\nbase: own.yaml\nplugins: parts.py\n")
    out = ["--out", str(tmp_path / "out")]
    for words in (
        ["validate", str(scenario)],
        ["run", str(scenario), *out],
        ["show", "fleet", str(scenario)],
        ["study", "run", str(tmp_path / "study.yaml"), *out],
        ["study", "run", str(tmp_path / "first.yaml"), *out],
    ):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1
        assert (
            "plugins: parts.py is code, and nobody has asked to run it "
            "(--allow-plugins, or --import"
        ) in said
    with pytest.raises(simfed.InputError, match="nobody has asked to run it"):
        simfed.run({**SCENARIO, "plugins": ["parts.py"]}, source=scenario)
    with pytest.raises(simfed.InputError, match="nobody has asked to run it"):
        simfed.load_scenario(scenario)
    assert not (tmp_path / "was-run").exists()
    assert (
        simfed.load_scenario(scenario, allow_plugins=True).policy.kind
        == "always-second"
    )
    assert (tmp_path / "was-run").exists()


def test_a_run_keeps_its_plug_ins_and_finds_them_again(scenario, tmp_path, capsys):
    out = str(tmp_path / "out")
    clock = "--time-only --quiet --no-figures"
    words = f"run {scenario} --out {out} {clock}".split()
    assert main([*words, "--allow-plugins"]) == 0
    assert main([*words, "--resume"]) == 0  # this process has consent
    written = yaml.safe_load((tmp_path / "out" / "scenario.yaml").read_text())
    [plugin] = written["plugins"]
    assert plugin == {"file": "plugins/parts.py", "origin": str(tmp_path / "parts.py")}
    assert (tmp_path / "out" / "plugins" / "parts.py").read_text() == (
        tmp_path / "parts.py"
    ).read_text()
    forget()
    assert main([*words, "--resume"]) == 2
    assert main(["verify", out]) == 2  # a stranger's run is data as well
    assert (
        "plugins/parts.py is code, and nobody has asked to run it"
        in capsys.readouterr().err
    )
    assert main(["verify", out, "--allow-plugins"]) == 0
    forget()
    # the same content
    assert main(["verify", out, "--import", str(tmp_path / "parts.py")]) == 0
    forget()
    again = f"run {out}/scenario.yaml --out {out}2 {clock} --allow-plugins"
    assert main(again.split()) == 0
    one, two = (
        json.loads((tmp_path / f / "manifest.json").read_text())
        for f in ("out", "out2")
    )
    assert one["fingerprint"] == two["fingerprint"]


def test_the_processes_of_a_study_find_its_plug_ins(scenario, tmp_path):
    scenario.write_text(yaml.safe_dump(SCENARIO))  # the study alone names them
    study = {"name": "s", "base": "own.yaml", "plugins": ["parts.py"]}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    words = f"study run {tmp_path}/study.yaml --out {tmp_path}/out --time-only --quiet"
    assert main(f"{words} --jobs 1 --allow-plugins".split()) == 0
