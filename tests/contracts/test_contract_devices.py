"""Devices: simfed's own profiles and registered ones keep the contract."""

from pathlib import Path

import pytest
import worlds

import simfed
from simfed import InputError
from simfed.device import load_profile, profile_names
from simfed.experiment import list_profiles
from simfed.ground import REGISTRIES, Registry
from simfed.testing import check_device

OWN = sorted((Path(__file__).resolve().parents[2] / "calibration").glob("*.yaml"))
TEXT = """
kind: table
name: my-board
description: made up
training: {lenet5: {32: 4 ms}}
compression: {lenet5: {top-k: {1000: 1 ms}}}
"""


@pytest.fixture
def board(tmp_path, monkeypatch):
    monkeypatch.setitem(REGISTRIES, "device", Registry("device", {}))
    path = tmp_path / "board.yaml"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_own_profiles(path):
    check_device(path)


def test_a_registered_device_is_used_by_its_name(board, tmp_path):
    simfed.register("device", "my-board", lambda: board)
    assert "my-board" in profile_names()
    assert ("my-board", "table; made up") in list_profiles(tmp_path)
    assert (
        load_profile("my-board").seconds("training", model="lenet5", batch=32) == 0.004
    )
    with pytest.raises(InputError, match="did you mean 'my-board'"):
        load_profile("my-bored")


def test_a_run_keeps_the_profile_of_a_registered_device(board, tmp_path):
    simfed.register("device", "my-board", board)
    here = {
        "clients[0].device": "my-board",
        "prototypes.a.model": "lenet5",
        "training.local_steps": 1,
    }
    run = worlds.play(worlds.world("tiny", here), tmp_path / "run", time_only=True)
    assert run.participations["training_s"].eq(0.004).all()
    assert (tmp_path / "run" / "calibration" / "board.yaml").read_text() == TEXT


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("description: made up\n", ""), "a description"),
        (("my-board", "another"), "the name 'another'"),
        (("4 ms", "-4 ms"), "training"),
    ],
)
def test_the_check_finds(board, change, says):
    simfed.register("device", "my-board", board)
    board.write_text(TEXT.replace(*change))
    with pytest.raises((AssertionError, InputError), match=says):
        check_device(board)


def test_a_device_that_is_no_path_is_one_sentence(board):
    simfed.register("device", "my-board", board.parent / "none.yaml")
    refused = "device my-board: got .+, expected a path of a calibration profile"
    with pytest.raises(InputError, match=refused):
        load_profile("my-board")
