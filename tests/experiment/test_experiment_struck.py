"""Killed anywhere, or on a disk that is full anywhere: going on ends where an undisturbed run ends.

What is struck, and what has to be true after it, is in `struck.py`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import simfed

STRUCK = Path(__file__).with_name("struck.py")


def strike(mode, folder, *jobs):
    """The operations struck by each job; asserts that nothing went wrong with any."""
    source = str(Path(simfed.__file__).parents[1])
    told = subprocess.run(
        [sys.executable, str(STRUCK), mode, str(folder), *jobs],
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    struck = {}
    for line in map(json.loads, told.stdout.splitlines()):
        if "job" in line:
            assert "fingerprint" in line["expected"], line
            operations = struck[line["job"]] = []
        else:
            assert line["wrong"] == {}, line
            operations.append(line["struck"])
    return struck


def test_a_sample_of_strikes(tmp_path):
    jobs = ["begin:kill:30:100", "overwrite:full:60:300"]
    struck = strike("time-only", tmp_path, *jobs)
    assert list(struck) == jobs
    assert all(struck.values())


# All of them take more than an hour on two cores (two seconds each): 1 and 1 strike every
# operation.
CLOCK_STRIDE, LEARNING_STRIDE = 10, 24


@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "full"])
@pytest.mark.parametrize(
    ("case", "operations"), [("begin", 40), ("go-on", 30), ("overwrite", 70), ("study", 100)]
)
def test_operations_of_a_clock_are_struck(tmp_path, case, operations, how):
    (struck,) = strike("time-only", tmp_path, f"{case}:{how}:1:{CLOCK_STRIDE}").values()
    assert len(struck) > operations // (CLOCK_STRIDE + 1)


@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "full"])
@pytest.mark.parametrize("case", ["begin", "go-on", "overwrite", "study"])
def test_operations_of_learning_are_struck(tmp_path, case, how):
    (struck,) = strike("full", tmp_path, f"{case}:{how}:1:{LEARNING_STRIDE}").values()
    assert len(struck) > 1
