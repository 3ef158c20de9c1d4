"""`--import FILE.py` and `plugins`: parts of one's own from a file, in this process and
in those it starts; files that say so run no code unless somebody consents.
"""

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


def test_name_of_ones_own_is_known_with_its_file_alone(parts, capsys):
    validate = ["validate", str(parts.with_name("own.yaml"))]
    own = ["--import", str(parts)]
    assert main(validate) == 2
    assert "parts of your own: --import FILE.py" in capsys.readouterr().err
    for _ in range(2):  # twice is once
        assert main([*validate, *own]) == 0
    assert main(["list", "policies", *own]) == 0
    assert "always-second" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"bad.py": "x = 1\nraise KeyError('k')"}, "KeyError: 'k' (bad.py, line 2)"),
        ({"bad.py": "def f(:"}, "SyntaxError: invalid syntax (bad.py, line 1)"),
        (
            {
                "bad/deep.py": "raise ValueError(3)",
                "bad/__init__.py": "from . import deep",
            },
            "ValueError: 3 (deep.py, line 1)",
        ),
    ],
)
def test_file_that_does_not_run_is_one_sentence(parts, tmp_path, capsys, files, said):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    bad = tmp_path / name.partition("/")[0]
    assert main(["list", "policies", "--import", str(bad)]) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert error.endswith(f": it fails with {said}")


def test_part_that_raises_is_one_sentence_with_its_name(parts, capsys):
    raises = "    def pull(self, rng):\n        return 1 / 0\n\n\nsimfed.register"
    parts.write_text(PARTS.replace("\nsimfed.register", raises))
    scenario, out = parts.with_name("own.yaml"), parts.with_name("out")
    words = f"run {scenario} --out {out} --time-only --quiet --import {parts}".split()
    assert main(words) == 1
    assert capsys.readouterr().err == (
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


def test_file_alone_runs_no_code(scenario, tmp_path, capsys):
    study, ran = "name: s\nbase: own.yaml\n", tmp_path / "was-run"
    (tmp_path / "study.yaml").write_text(study)
    (tmp_path / "first.yaml").write_text(f"{study}plugins: parts.py\n")
    for words in (
        "validate {}/own.yaml",
        "run {}/own.yaml --out {}/out",
        "show fleet {}/own.yaml",
        "study run {}/study.yaml --out {}/out",
        "study run {}/first.yaml --out {}/out",
    ):
        assert main(words.format(tmp_path, tmp_path).split()) == 2
        [said] = capsys.readouterr().err.splitlines()
        asked = "parts.py is code, and nobody has asked to run it"
        assert f"plugins: {asked} (--allow-plugins, or --import" in said
    with pytest.raises(simfed.InputError, match=asked):
        simfed.run({**SCENARIO, "plugins": ["parts.py"]}, source=scenario)
    with pytest.raises(simfed.InputError, match=asked):
        simfed.load_scenario(scenario)
    assert not ran.exists()
    made = simfed.load_scenario(scenario, allow_plugins=True)
    assert made.policy.kind == "always-second"
    assert ran.exists()


def test_run_keeps_its_plug_ins_and_finds_them_again(scenario, tmp_path, capsys):
    run = f"run {scenario} --out {tmp_path}/out --time-only --quiet --no-figures"
    verify = f"verify {tmp_path}/out"
    assert main(f"{run} --allow-plugins".split()) == 0
    assert main(f"{run} --resume".split()) == 0  # this process has consent
    forget()
    assert main(f"{run} --resume".split()) == 2
    assert main(verify.split()) == 2  # a stranger's run is data as well
    said = "plugins/parts.py is code, and nobody has asked to run it"
    assert said in capsys.readouterr().err
    # the same content
    assert main(f"{verify} --import {tmp_path}/parts.py".split()) == 0


def test_the_processes_of_a_study_find_its_plug_ins(scenario, tmp_path):
    scenario.write_text(yaml.safe_dump(SCENARIO))  # the study alone names them
    study = {"name": "s", "base": "own.yaml", "plugins": ["parts.py"]}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    words = f"study run {tmp_path}/study.yaml --out {tmp_path}/out --time-only --quiet"
    assert main(f"{words} --jobs 1 --allow-plugins".split()) == 0
