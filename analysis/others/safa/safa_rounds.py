"""The average FedAvg round of SAFA's two larger tasks, with and without its clock's bug."""

from __future__ import annotations

import math
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ledger import STATED, Row, play

from simfed.ground.errors import InputError
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams

SHARES = (0.1, 0.3, 0.5, 0.7, 1.0)
CRASHES = (0.1, 0.3, 0.5, 0.7)
MODEL_BYTES, CLIENT_BYTES_PER_S, SERVER_BYTES_PER_S = 10e6, 0.175e6, 1250e6
_SENT_BYTES = 61_706 * 4  # what the scenario's model is on the wire


class Task(NamedTuple):
    """A task of the source."""

    name: str
    clients: int
    rounds: int
    epochs: int
    batch: int
    samples: int
    limit_s: float
    published_s: tuple[tuple[float, ...], ...]
    """A row per crash probability, a column per share of clients asked."""


_CNN = (5602.04, 5606.12, 5610.2, 5614.28, 5620.4)
_SVM = (1640.2, 1680.6, 1721.0, 1761.4, 1822.0)
TASKS = (
    Task(
        "CNN",
        100,
        50,
        5,
        40,
        70_000,
        5600,
        (
            (3402.55, 5557.25, *_CNN[2:]),
            (5410.97, *_CNN[1:]),
            _CNN,
            _CNN,
        ),
    ),
    Task("SVM", 500, 100, 5, 100, 186_480, 1620, (_SVM,) * 4),
)


def read_speeds(data: Path | None, clients: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Batches per second of each client, as the source drew them: gen/clients_perf_N of its
    repository, from a checkout or from a git folder without a work tree."""
    name = f"gen/clients_perf_{clients}"
    if data is None:
        problem = "the source's drawn speeds are not known"
        raise InputError("--data FOLDER, a checkout of wingter562/SAFA", problem=problem)
    if (data / name).is_file():
        text = (data / name).read_text()
    else:
        show = ["git", "-C", str(data), "show", f"HEAD:{name}"]
        done = subprocess.run(show, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError("a checkout of wingter562/SAFA", where=str(data), got=name)
        text = done.stdout
    return np.array(text.split(), dtype=float)


def draw_seconds(task: Task, speeds: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
    """Local work per client: shards are normal with an sd of 0.3 of the mean, at least one."""
    mean = task.samples / task.clients
    rng = Streams(0)("safa", task.name)
    shards = np.maximum(1, np.round(rng.normal(mean, 0.3 * mean, task.clients)))
    return [float(x) for x in shards / task.batch * task.epochs / speeds]


def average_rounds(
    task: Task, seconds: list[float], share: float, crash: float
) -> tuple[float, float]:
    """(as the source adds it up, corrected): mean seconds of a round.

    The time to distribute a round's models is the server's work. The source adds, in every round,
    that of all rounds so far.
    """
    asked = math.ceil(task.clients * share)
    distribution_s = asked * MODEL_BYTES / SERVER_BYTES_PER_S
    rate = f"{_SENT_BYTES / (MODEL_BYTES / CLIENT_BYTES_PER_S) * 8e-6:.12g} Mbps"
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "fleet.csv"
        table.write_text("speed\n" + "".join(f"{1 / s!r}\n" for s in seconds))
        group = {
            "count": task.clients,
            "prototype": "one",
            "devices": {"table": str(table), "rows": "in-order"},
            "device": {"training": "1 s", "speed": {"column": "speed"}},
            "link": {"up": rate, "down": rate},
        }
        changes: dict[str, Plain] = {
            "rounds": task.rounds,
            "clients": [group],
            "participation.clients_per_round": asked,
            "aggregation.deadline": f"{task.limit_s} s",
            "server.device.handling": f"{distribution_s!r} s",
        }
        # a crash is a lost message, down or up, that is waited for until the limit
        if crash:
            changes["faults.messages.lost"] = 1 - math.sqrt(1 - crash)
        else:
            changes["faults"] = None
        corrected_s = float(play("safa", changes).rounds["duration_s"].mean())
    return corrected_s + distribution_s * (task.rounds - 1) / 2, corrected_s


def compare_rows(data: Path | None = None) -> list[Row]:
    """The 40 cells; `data`: a checkout of the source."""
    rows = []
    for task in TASKS:
        seconds = draw_seconds(task, read_speeds(data, task.clients))
        for crash, published in zip(CRASHES, task.published_s, strict=True):
            for share, published_s in zip(SHARES, published, strict=True):
                simulated_s, corrected_s = average_rounds(task, seconds, share, crash)
                quantity = f"{task.name} round, C = {share}, crashes {crash}"
                note = f"corrected: {corrected_s:.2f} s"
                rows.append(Row(quantity, "s", published_s, simulated_s, STATED, note=note))
    return rows
