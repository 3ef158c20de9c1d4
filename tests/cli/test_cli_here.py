"""Nothing that lies in the current folder is imported: it may be a stranger's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCENARIO = """
name: x
rounds: 1
dataset: {name: mnist-mini}
method: fedavg
prototypes: {a: {model: logistic-regression}}
clients:
  - count: 1
    prototype: a
    device: {profile: x86-2core-vm}
    link: {up: 5 Mbps, down: 5 Mbps}
policy: {kind: uniform, strategy: top-k}
compression: {k: 10}
"""
STUDY = "name: s\nbase: s.yaml\nseeds: [0]\ngrid: {compression.k: [10, 20]}\n"
TRAP = "open('trapped', 'a').write(__name__ + ' '); raise SystemExit('trapped')"
NAMES = (
    "multiprocessing",
    "simfed",
    "json",
    "torch",
    "numpy",
    "yaml",
    "datasets",
    "mlflow",
)

SIMFED = """import sys
from simfed.cli import main
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture
def trap(tmp_path):
    (tmp_path / "s.yaml").write_text(SCENARIO)
    (tmp_path / "study.yaml").write_text(STUDY)
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(TRAP)
    return tmp_path


def play(folder, *arguments):
    """The command as it is installed: a script elsewhere, so that no folder is looked
    at first.
    """
    script = Path(folder) / "bin" / "simfed"
    script.parent.mkdir(exist_ok=True)
    script.write_text(SIMFED)
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not (folder / "trapped").exists(), (folder / "trapped").read_text()
    assert done.returncode == 0, done.stderr


def test_workers_of_a_study_import_nothing_from_here(trap):
    play(
        trap,
        "study",
        "run",
        "study.yaml",
        "--out",
        "so",
        "--jobs",
        "1",
        "--time-only",
        "--quiet",
    )


def test_clients_of_a_deployment_import_nothing_from_here(trap):
    play(trap, "deploy", "s.yaml", "--out", "o", "--quiet", "--no-figures")


def test_a_tracker_of_resources_imports_nothing_from_here(trap):
    """It is started by the first semaphore, as measuring beside other processes has
    one.
    """
    code = (
        "import sys; sys.path.pop(0); import multiprocessing\n"
        "from simfed.ground.children import starting_elsewhere\n"
        "with starting_elsewhere():\n"
        "    multiprocessing.get_context('spawn').Semaphore(0)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=trap,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
    )
    assert not (trap / "trapped").exists()


def test_the_module_drops_the_folder_that_python_puts_first(trap):
    (trap / "simfed.py").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "simfed", "validate", "s.yaml"],
        cwd=trap,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not (trap / "trapped").exists(), (trap / "trapped").read_text()
    assert done.returncode == 0, done.stderr
