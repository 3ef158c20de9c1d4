"""What all sides share: the file of the task, the clock of its rounds, the line that is printed.

Standard library and NumPy only: every side's environment has these.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Task:
    """Federated averaging of one model; `owned[c]` are the positions of client c's samples."""

    model: str
    rounds: int
    per_round: int
    batch: int
    rate: float
    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]
    owned: tuple[NDArray[np.int64], ...]
    weights: Mapping[str, NDArray[np.float32]]

    @property
    def clients(self) -> int:
        return len(self.owned)


_SETTINGS = ("model", "rounds", "per_round", "batch", "rate")
_ARRAYS = ("images", "labels", "test_images", "test_labels")


def write_task(path: Path, task: Task) -> None:
    """The task as one `.npz`, not packed: it is read at every start."""
    arrays: dict[str, Any] = {f"weights/{name}": value for name, value in task.weights.items()}
    arrays.update({name: getattr(task, name) for name in _ARRAYS})
    arrays["settings"] = np.array(json.dumps({name: getattr(task, name) for name in _SETTINGS}))
    arrays["positions"] = np.concatenate(task.owned)
    arrays["counts"] = np.array([len(own) for own in task.owned])
    np.savez(path, **arrays)


def read_task(path: str | Path) -> Task:
    with np.load(path) as file:
        ends = np.cumsum(file["counts"])[:-1]
        weights = {
            name.removeprefix("weights/"): file[name]
            for name in file.files
            if name.startswith("weights/")
        }
        return Task(
            **json.loads(str(file["settings"])),
            **{name: file[name] for name in _ARRAYS},
            owned=tuple(np.split(file["positions"], ends)),
            weights=weights,
        )


class Rounds:
    """Seconds per round of those between the first tenth and the last.

    The first rounds warm up or compile, and the test set is looked at in or after the last one:
    both belong to a run from start to end, not to its pace.
    """

    def __init__(self, rounds: int) -> None:
        self._first, self._last = max(1, rounds // 10), rounds - 1
        self._seen: list[tuple[float, float]] = []

    def after(self, round: int) -> None:
        """To be called after every round, counted from 1."""
        if round in (self._first, self._last):
            self._seen.append((time.perf_counter(), sum(cpu_seconds(os.getpid()).values())))

    def report(self, accuracy: float, *packages: str) -> None:
        """Print the line that the benchmark reads."""
        (wall, cpu), (wall_end, cpu_end) = self._seen
        rounds = self._last - self._first
        facts: dict[str, Any] = {
            "round_wall_s": (wall_end - wall) / rounds,
            "round_cpu_s": (cpu_end - cpu) / rounds,
            "accuracy": accuracy,
            "versions": {name: version(name) for name in packages},
        }
        print(json.dumps(facts), flush=True)


def cpu_seconds(root: int, members: Set[int] = frozenset()) -> dict[int, float]:
    """User and system seconds of a process and its descendants that are alive, by process id
    (Linux). Processes among `members` belong to the family when their parent has ended, too.
    """
    parents, spent = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended meanwhile
        pid = int(entry.name)
        parents[pid] = int(stat[1])
        spent[pid] = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    family = {pid for pid in spent if pid == root or pid in members}
    while more := {pid for pid in spent if pid not in family and parents[pid] in family}:
        family |= more
    return {pid: spent[pid] for pid in family}
