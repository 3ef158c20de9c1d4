"""Plug-ins that read files beside themselves, and plug-ins that are packages."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import yaml

from simfed.cli import main
from simfed.ground import IMPORTS
from simfed.ground.registry import registry
from simfed.replay import digest_named_data

READS = """
from pathlib import Path

import numpy as np

import simfed
from simfed.learn.data import Dataset


def mine():
    content = np.load(Path(__file__).parent / "mine.npz")
    images, labels = content["images"], content["labels"]
    return Dataset(images, labels, images, labels, classes=2, mean=(0.5,), sd=(0.5,))
"""
REGISTERS = 'simfed.register("dataset", "mine", mine)\n'
SCENARIO = yaml.safe_load("""
name: own
rounds: 2
method: fedavg
dataset: {name: mine}
prototypes: {small: {model: logistic-regression}}
clients: [{count: 2, prototype: small, device: {training: 1 ms}, link: {}}]
policy: {kind: uniform, strategy: dense}
""")
RUN = "run own.yaml --out out --allow-plugins --no-figures --quiet"
COMMANDS = {
    "verify": "verify out --allow-plugins",
    "recompute": "verify out --recompute 1 --allow-plugins",
    "again": "run out/scenario.yaml --out again --allow-plugins --no-figures",
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
    os.environ[IMPORTS] = ""
    digest_named_data.cache_clear()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a scenario and its plug-in: a file and what it reads, and both as a
    package.
    """
    monkeypatch.setenv(IMPORTS, "")
    monkeypatch.chdir(tmp_path)
    write_data("mine.npz")
    (tmp_path / "parts.py").write_text(READS + REGISTERS)
    package = tmp_path / "mynet"
    package.mkdir()
    write_data(package / "mine.npz")
    (package / "reads.py").write_text(READS)
    (package / "__init__.py").write_text(
        f"import simfed\nfrom .reads import mine\n{REGISTERS}"
    )
    write("parts.py")
    yield tmp_path
    forget()


def write(*plugins):
    with open("own.yaml", "w") as file:
        yaml.safe_dump({**SCENARIO, "plugins": list(plugins)}, file)


def play(command):
    """A command, as if in a process of its own."""
    forget()
    shutil.rmtree("again", ignore_errors=True)
    return main(COMMANDS[command].split())


def list_modules():
    return {
        module.__file__
        for name, module in sys.modules.items()
        if "simfed_import_" in name
    }


def test_copy_is_run_where_it_lay_as_long_as_nobody_has_changed_it(folder, capsys):
    assert main(RUN.split()) == 0
    [plugin] = yaml.safe_load((folder / "out" / "scenario.yaml").read_text())["plugins"]
    assert plugin == {"file": "plugins/parts.py", "origin": str(folder / "parts.py")}
    for command in COMMANDS:
        assert play(command) == 0  # it finds the file beside itself
        assert list_modules() == {str(folder / "parts.py")}
    out, again = (
        json.loads((folder / name / "manifest.json").read_text())
        for name in ("out", "again")
    )
    assert out["fingerprint"] == again["fingerprint"]
    with open("parts.py", "a") as file:
        file.write("# changed\n")
    capsys.readouterr()
    assert play("verify") == 1  # the copy has no such file beside it
    assert "mine.npz" in capsys.readouterr().err
    shutil.copy("mine.npz", folder / "out" / "plugins")
    assert play("recompute") == 0
    assert list_modules() == {str(folder / "out" / "plugins" / "parts.py")}


def test_run_has_a_copy_of_a_package_with_all_that_lies_in_it(folder):
    write("mynet/")
    assert main(RUN.split()) == 0
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    beside = {name for name in manifest["files"] if name.startswith("plugins/")}
    names = "__init__.py", "reads.py", "mine.npz"
    assert beside == {f"plugins/mynet/{name}" for name in names}
    assert play("verify") == 0
    assert str(folder / "mynet" / "reads.py") in list_modules()
    write_data("mynet/mine.npz", seed=1)  # which makes it another package
    assert play("verify") == 0
    assert str(folder / "out" / "plugins" / "mynet" / "reads.py") in list_modules()
    shutil.rmtree("mynet")
    for command in COMMANDS:
        assert play(command) == 0


def test_process_that_begins_with_scenarios_knows_a_package(folder):
    """As workers of a study do; the package imports what is being imported then."""
    code = (
        "import simfed.study.places\n"
        "from simfed.ground.registry import registry\n"
        "assert 'mine' in registry('dataset')"
    )
    environment = {**os.environ, IMPORTS: str(folder / "mynet")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
