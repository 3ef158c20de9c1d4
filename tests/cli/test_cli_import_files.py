"""Plug-ins that open files of their own: found, referred to by place and content, checked."""

import json
import os
import re
import shutil
import sys

import numpy as np
import pytest
import yaml

from simfed.cli import main
from simfed.ground.registry import IMPORTS, PLACES, registry
from simfed.replay.key import learning_setup
from simfed.scenario import load_scenario

PARTS = """
from pathlib import Path

import numpy as np

import simfed
from simfed.learn.data import Dataset


def mine():
    content = np.load(Path(__file__).parent / "{name}")
    images, labels = content["images"], content["labels"]
    return Dataset(images, labels, images, labels, classes=2, mean=(0.5,), sd=(0.5,))


simfed.register("dataset", "mine", mine)
"""
SCENARIO = {
    "name": "own",
    "rounds": 2,
    "method": "fedavg",
    "dataset": {"name": "mine"},
    "prototypes": {"small": {"model": "logistic-regression"}},
    "clients": [{"count": 2, "prototype": "small", "device": {"training": "1 ms"}, "link": {}}],
    "policy": {"kind": "uniform", "strategy": "dense"},
    "plugins": ["parts.py"],
}
COMMANDS = {
    "verify": ["verify", "out", "--allow-plugins"],
    "recompute": ["verify", "out", "--recompute", "1", "--allow-plugins"],
    "again": ["run", "out/scenario.yaml", "--out", "again", "--allow-plugins", "--no-figures"],
}


def write_data(path, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.random((40, 1, 4, 4)).astype(np.float32)
    np.savez(path, images=images, labels=np.arange(40) % 2)


def forget():
    """As a new process begins."""
    for name in [name for name in sys.modules if name.startswith("simfed_import_")]:
        del sys.modules[name]
    if "mine" in registry("dataset"):
        registry("dataset").remove("mine")
    os.environ[IMPORTS] = os.environ[PLACES] = ""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a scenario, its plug-in, and the file that this opens."""
    monkeypatch.setenv(IMPORTS, "")
    monkeypatch.setenv(PLACES, "")
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    yield tmp_path
    forget()


def write(folder, name="mine.npz", plugins=("parts.py",)):
    (folder / name).parent.mkdir(exist_ok=True)
    write_data(folder / name)
    (folder / "parts.py").write_text(PARTS.format(name=name))
    (folder / "own.yaml").write_text(yaml.safe_dump({**SCENARIO, "plugins": list(plugins)}))


def play(command):
    """A command, as if in a process of its own."""
    forget()
    shutil.rmtree("again", ignore_errors=True)
    return main(COMMANDS[command])


def run_first(folder, then=()):
    """(manifest, plug-ins of the run); `then`: another command, in the same process."""
    words = ["run", "own.yaml", "--out", "out", "--allow-plugins", "--no-figures", "--quiet"]
    assert main(words) == 0
    assert not then or main(then) == 0
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    plugins = yaml.safe_load((folder / "out" / "scenario.yaml").read_text())["plugins"]
    forget()
    return manifest, plugins


def test_a_run_finds_the_files_of_its_plug_ins_where_they_lie(folder, capsys):
    manifest, [plugin] = run_first(folder)
    path = str(folder / "mine.npz")
    assert manifest["opened"].keys() == {path}
    digest = manifest["opened"][path]
    assert plugin == {
        "file": "plugins/parts.py",
        "place": str(folder),
        "with": [{"file": path, "sha256": digest}],
    }
    assert os.listdir(folder / "out" / "plugins") == ["parts.py"]
    capsys.readouterr()
    for command in COMMANDS:
        assert play(command) == 0
    again = json.loads((folder / "again" / "manifest.json").read_text())
    assert again["fingerprint"] == manifest["fingerprint"]
    # the plug-in itself may have changed since: its copy runs, and still finds the file
    (folder / "parts.py").unlink()
    assert play("recompute") == 0


@pytest.mark.parametrize("command", ["verify", "again"])
def test_a_file_that_is_not_as_it_was_is_said(folder, capsys, command):
    run_first(folder)
    write_data(folder / "mine.npz", seed=1)
    assert main(COMMANDS[command]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "plugins" in said
    assert "mine.npz: another content, of SHA-256 " in said
    assert "which the run began with (put the old content back, or begin a new run)" in said
    (folder / "mine.npz").unlink()
    assert main(COMMANDS[command]) == 2
    assert "mine.npz: no such file (put it back)" in capsys.readouterr().err


def test_copies_make_a_run_stand_alone(folder):
    plugin = {"file": "parts.py", "with": ["data/mine.npz"], "copy": True}
    write(folder, "data/mine.npz", [plugin])
    manifest, [resolved] = run_first(folder, then=COMMANDS["verify"])
    assert "opened" not in manifest
    assert resolved["file"] == "plugins/parts/parts.py"
    assert resolved["with"][0]["file"] == "plugins/parts/data/mine.npz"
    assert "plugins/parts/data/mine.npz" in manifest["files"]
    shutil.rmtree(folder / "data")
    (folder / "parts.py").unlink()
    (folder / "mine.npz").unlink()
    for command in COMMANDS:
        assert play(command) == 0


def test_files_of_packages_outside_the_environment_are_not_the_plug_ins(folder, monkeypatch):
    packages = folder.parent / "elsewhere" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "lawful_package.py").write_text("open(__file__[:-2] + 'txt').close()")
    (packages / "lawful_package.txt").touch()
    monkeypatch.syspath_prepend(packages)
    text = (folder / "parts.py").read_text()
    (folder / "parts.py").write_text(f"import lawful_package\n{text}")
    manifest, _ = run_first(folder)
    assert manifest["opened"].keys() == {str(folder / "mine.npz")}


def test_what_is_opened_counts_for_recorded_learning(folder):
    keys = []
    for seed in (0, 1):
        write_data(folder / "other.npz", seed)
        text = (folder / "parts.py").read_text()
        (folder / "own.yaml").write_text(
            yaml.safe_dump({**SCENARIO, "plugins": [{"file": "parts.py", "with": "other.npz"}]})
        )
        keys.append(learning_setup(load_scenario(folder / "own.yaml", allow_plugins=True)))
        assert (folder / "parts.py").read_text() == text
    assert keys[0]["data"] == keys[1]["data"]
    assert len(keys[0]["opened"]) == 2  # one was named, the other found
    assert keys[0]["opened"] != keys[1]["opened"]


@pytest.mark.parametrize(
    ("plugin", "sentence"),
    [
        ({"file": "parts.py", "with": ["mine.npy"]}, "plugins: .*mine.npy: no such file"),
        ({"file": "part.py"}, "plugins: part.py: no file .*part.py', expected a Python file"),
        ({"file": "parts.py", "wiht": ["mine.npz"]}, "there is no key 'wiht' here.*'with'"),
        ({"file": "parts.py", "copy": "mine.npz"}, "copy: got 'mine.npz', expected true or false"),
        ({"with": ["mine.npz"]}, r"plugins\[0\].file: this key is missing"),
        ({"file": "parts.py", "with": ["../mine.npz"]}, "'../mine.npz' lies outside"),
    ],
)
def test_a_wrong_entry_is_one_sentence(folder, capsys, plugin, sentence):
    write_data(folder.parent / "mine.npz")
    write(folder, plugins=[plugin])
    assert main(["validate", "own.yaml", "--allow-plugins"]) == 2
    lines = capsys.readouterr().err.splitlines()
    if "file" in plugin:
        assert len(lines) == 1, lines
    assert any(re.search(sentence, line) for line in lines), lines
