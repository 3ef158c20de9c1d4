"""Nothing that lies in the current folder is imported: it may be a stranger's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import worlds

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
    (tmp_path / "s.yaml").write_text(worlds.FIRST.replace("count: 3", "count: 1"))
    (tmp_path / "study.yaml").write_text(STUDY)
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(TRAP)
    return tmp_path


def play(folder, *command):
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not (folder / "trapped").exists(), (folder / "trapped").read_text()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "study run study.yaml --out so --jobs 1 --time-only --quiet",
        "deploy s.yaml --out o --quiet --no-figures",
    ],
)
def test_processes_of_a_command_import_nothing_from_here(trap, words):
    """As it is installed: a script elsewhere, so that no folder is looked at first."""
    (trap / "bin").mkdir()
    (trap / "bin" / "simfed").write_text(SIMFED)
    play(trap, "bin/simfed", *words.split())


def test_tracker_of_resources_imports_nothing_from_here(trap):
    """It is started by the first semaphore, as measuring beside other processes has
    one.
    """
    code = (
        "import sys; sys.path.pop(0); import multiprocessing\n"
        "from simfed.ground.children import starting_elsewhere\n"
        "with starting_elsewhere():\n"
        "    multiprocessing.get_context('spawn').Semaphore(0)\n"
    )
    play(trap, "-c", code)


def test_module_drops_the_folder_that_python_puts_first(trap):
    (trap / "simfed.py").unlink()
    play(trap, "-m", "simfed", "validate", "s.yaml")
