"""Pictures that another process draws, which gets ready while the run goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest

import simfed
from simfed.cli import run as command
from simfed.record.read import open_run

SCENARIO = {
    "name": "drawn",
    "rounds": 2,
    "dataset": {"name": "mnist-mini", "public": 32},
    "prototypes": {"one": {"model": "logistic-regression"}},
    "clients": [{"count": 2, "prototype": "one", "device": "x86-2core-vm", "link": {}}],
    "policy": {"kind": "uniform", "strategy": "top-k"},
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    simfed.run(SCENARIO, tmp_path / "run", workers=1, progress=False)
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    monkeypatch.setattr(command, "available_cores", lambda: 2)
    return open_run(tmp_path / "run")


def here(*_):
    raise AssertionError("drawn here")


def test_its_pictures_are_those_drawn_here(run, monkeypatch):
    drawn = command.draw(run, run.path)
    mine = {name: (run.path / name).read_bytes() for name in drawn}
    for name in drawn:
        (run.path / name).unlink()
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    monkeypatch.setattr(command, "draw", here)
    with command.drawing_beside() as draw:
        assert draw is not here
        assert draw(run, run.path) == drawn == ["accuracy.png", "timeline.png"]
    assert {name: (run.path / name).read_bytes() for name in drawn} == mine


def test_what_lies_in_the_present_folder_is_not_taken_for_a_module(run, monkeypatch, tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise OSError")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    if sys.version_info >= (3, 11):  # before, Python looks there first, and it is drawn here
        monkeypatch.setattr(command, "draw", here)
    with command.drawing_beside() as draw:
        assert draw(run, run.path) == ["accuracy.png", "timeline.png"]


def test_where_it_fails_they_are_drawn_here(run, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with command.drawing_beside() as draw:
        assert draw is not command.draw
        assert draw(run, run.path) == ["accuracy.png", "timeline.png"]


def test_it_ends_with_a_run_that_fails(run, monkeypatch):
    begun = []

    class Noted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            begun.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    with pytest.raises(ValueError, match="no more"), command.drawing_beside():
        raise ValueError("no more")
    assert begun[0].returncode is not None


def test_one_core_draws_for_itself(monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    monkeypatch.setattr(command, "available_cores", lambda: 1)
    with command.drawing_beside() as draw:
        assert draw is command.draw
