"""`simfed new`, `list scenarios`, `help` and completion: the first minutes of somebody
without a clone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simfed import templates
from simfed.cli import main
from simfed.scenario import load_scenario

HERE = Path(__file__).resolve().parents[2]
NAMES = [template.name for template in templates.templates()]
QUICK = ("fleet", "lte", "quickstart")
"""Those that are written and run in a few seconds."""


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.long)
        for name in NAMES
    ],
)
def test_template_is_written_and_runs_with_nothing_beside_it(empty, name, capsys):
    assert main(["new", name]) == 0
    *files, command = capsys.readouterr().out.splitlines()
    assert {*files} == {path.name for path in empty.iterdir()}
    said, _, words = command.partition("simfed ")
    assert said == "run it: "
    more = "--jobs 1 --set seeds=[0]"
    if not words.startswith("study"):
        more = "--no-figures --workers 1 --set evaluation.every=1"
    # learning is tried by the others
    more += " --time-only" * (name in ("fleet", "lte"))
    words += f" --out out --quiet --set rounds=2 {more}"
    if name in QUICK:  # registers no part
        assert main(words.split()) == 0, capsys.readouterr().err
    else:
        environment = {**os.environ, "PYTHONPATH": str(HERE), "SIMFED_IMPORT": ""}
        python = [sys.executable, "-m", "simfed", *words.split()]
        subprocess.run(python, check=True, env=environment)
    assert (empty / "out").is_dir()


def test_the_quickstart_is_that_of_the_repository(empty):
    assert main(["new", "quickstart", "a folder", "--out", "mine.yaml"]) == 0
    copy = load_scenario(empty / "a folder" / "mine.yaml")
    assert copy == load_scenario(HERE / "scenarios" / "quickstart.yaml")


def test_the_listed_are_those_that_can_be_written(capsys):
    assert main(["list", "scenarios"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == NAMES
    assert {*QUICK, "study", "own-model", "own-method"} <= {*NAMES}
    assert all(len(line.split()) > 5 for line in listed)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("new own-model", "model.py: there is a file of this name, expected a new"),
        ("new fleet model.py", "model.py: cannot be written: File exists"),
        ("help fleet", "did you mean 'fleets'?"),
    ],
)
def test_what_cannot_be_written_or_shown_is_one_sentence(empty, capsys, words, said):
    (empty / "model.py").write_text("mine\n")
    assert main(words.split()) == 2
    [sentence] = capsys.readouterr().err.splitlines()
    assert said in sentence
    assert (empty / "model.py").read_text() == "mine\n"
    # nothing, or all of it
    assert [path.name for path in empty.iterdir()] == ["model.py"]


def test_every_page_can_be_shown(capsys):
    assert main(["help"]) == 0
    pages = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    names = {path.stem for path in (HERE / "docs").glob("*.md")}
    assert set(pages) == names | {"devices"}
    assert main(["help", "faults"]) == 0
    assert capsys.readouterr().out == (HERE / "docs" / "faults.md").read_text()


def test_commands_and_their_words_are_completed(monkeypatch, capsys):
    monkeypatch.setenv("_SIMFED_COMPLETE", "complete_bash")

    def completed(*words):
        monkeypatch.setenv("COMP_WORDS", " ".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        with pytest.raises(SystemExit) as ended:
            main([])
        assert ended.value.code == 0
        return capsys.readouterr().out.split()

    assert completed("simfed", "va") == ["validate"]
    assert completed("simfed", "new", "own") == ["own-method", "own-model"]
    assert completed("simfed", "list", "sc") == ["scenarios"]
    assert "--allow-plugins" in completed("simfed", "run", "--allow")


def test_the_wheel_carries_templates_and_pages():
    """What setup.cfg says of files beside the code is what the commands look for."""
    from setuptools.config.setupcfg import read_configuration

    said = read_configuration(HERE / "setup.cfg")
    data = dict(said["options"]["data_files"])
    for folder, pages in (("docs", "docs/*.md"), ("calibration", "calibration/*.yaml")):
        shipped = {HERE / name for name in data[f"share/simfed/{folder}"]}
        assert shipped >= set(HERE.glob(pages))
    assert "calibration/README.md" in data["share/simfed/calibration"]
    assert "templates/*/*" in said["options"]["package_data"]["simfed"]
    assert "py.typed" in said["options"]["package_data"]["simfed"]
