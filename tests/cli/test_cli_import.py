"""`--import FILE.py`: parts of one's own from a file, in this process and in those it starts."""

import sys

import pytest
import yaml

from simfed.cli import main
from simfed.registry import IMPORTS, registry

PARTS = """
import simfed
from simfed.policy import Uniform


class Second(Uniform):
    \"\"\"Always the second strategy.\"\"\"

    def __init__(self, arms, reward_range):
        super().__init__(arms, reward_range, strategy=arms[1])


simfed.register("policy", "always-second", Second)
"""
SCENARIO = {
    "name": "own", "rounds": 2, "dataset": {"name": "mnist-mini"},
    "prototypes": {"small": {"model": "lenet5-half"}},
    "clients": [{"count": 2, "prototype": "small", "device": "rtx3090-ryzen4800h", "link": {}}],
    "policy": {"kind": "always-second"},
}  # fmt: skip


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A file of parts, which are forgotten again."""
    monkeypatch.setenv(IMPORTS, "")
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(SCENARIO))
    yield tmp_path / "parts.py"
    for name in [name for name in sys.modules if name.startswith("simfed_import_")]:
        del sys.modules[name]
    if "always-second" in registry("policy"):
        registry("policy").remove("always-second")


def test_a_name_of_ones_own_is_known_with_its_file_alone(parts, capsys):
    scenario = str(parts.with_name("own.yaml"))
    assert main(["validate", scenario]) == 2
    assert "parts of your own: --import FILE.py" in capsys.readouterr().err
    assert main(["validate", scenario, "--import", str(parts)]) == 0
    assert main(["validate", scenario, "--import", str(parts)]) == 0  # twice is once
    assert main(["list", "policies", "--import", str(parts)]) == 0
    assert "always-second" in capsys.readouterr().out


def test_a_study_s_processes_know_it_as_well(parts, capsys):
    study = {
        "name": "s", "base": "own.yaml", "seeds": [0], "grid": {"rounds": [1, 2]},
        "compare": {"arms": "rounds"},
    }  # fmt: skip
    path = parts.with_name("study.yaml")
    path.write_text(yaml.safe_dump(study))
    out = str(parts.with_name("out"))
    words = ["study", "run", str(path), "--out", out, "--time-only", "--quiet", "--jobs", "1"]
    assert main([*words, "--import", str(parts)]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "--import {path}: a Python file, got 'none'"),
        ("x = 1\nraise KeyError('k')", "a Python file that runs, got \"KeyError: 'k' (line 2)\""),
        ("def f(:", "a Python file that runs, got 'SyntaxError: "),
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
