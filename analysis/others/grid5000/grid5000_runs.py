"""Makespans, joules and rounds of 123 logged deployments on Jetson boards."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import yaml
from ledger import FITTED, HELD_OUT, Row, play

import simfed
from simfed.calibrate.twin import Twin, fit_twin
from simfed.calibrate.twin_log import LOG_COLUMNS, read_log
from simfed.ground.errors import InputError

LOGS_COMMIT = "64c26bd"
FLOWER_COMMIT = "297eae3"
_FLOWER_LOGS = "results/outputs_from_tl"
_FLOWER_LINE = re.compile(r"^\[([-\d]+ [:\d]+,\d+)\].* - (.*)$", re.MULTILINE)
_SERVER_EVENT = re.compile(r"(fit|evaluate)_round (\d+):? (strategy|received)")
_CLIENT_EVENT = re.compile(r"CLIENT (\d+) (END )?FIT ROUND (\d+)")
_INSTANT = "%Y-%m-%d_%H-%M-%S_%f"
_CLIENTS = 10


class Seconds(NamedTuple):
    """What a round of a strategy is made of."""

    epoch_s: float
    server_s: float


class Watts(NamedTuple):
    """Of one board."""

    training_w: float
    idle_w: float


def show(data: Path | None, commit: str, path: str) -> bytes:
    """A file of the source at a commit."""
    if data is None:
        problem = "the source's logs are not known"
        allowed = "--data FOLDER, a clone of tuananhngh/FL-G5K-EnergyConsumption"
        raise InputError(allowed, problem=problem)
    command = ["git", "-C", str(data), "show", f"{commit}:{path}"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        allowed = "a clone of tuananhngh/FL-G5K-EnergyConsumption with its history"
        raise InputError(allowed, where=str(data), got=f"{commit}:{path}")
    return done.stdout


def read_makespans(data: Path | None) -> pd.DataFrame:
    """`strategy, epochs, run, rounds, makespan_s` of 63 runs."""
    experiments = json.loads(show(data, "HEAD", "analysis/experiments.json"))
    rows = []
    for strategy, by_epochs in experiments.items():
        for runs in by_epochs.values():
            for run, node in runs.items():
                facts = node["summary"]
                start, end = (
                    pd.to_datetime(
                        facts[f"timestamps.{name}_experiment"], format=_INSTANT
                    )
                    for name in ("start", "end")
                )
                epochs, rounds = (
                    facts["client.local_epochs"],
                    facts["params.num_rounds"],
                )
                rows.append(
                    (strategy, epochs, run, rounds, (end - start).total_seconds())
                )
    return pd.DataFrame(
        rows, columns=["strategy", "epochs", "run", "rounds", "makespan_s"]
    )


def read_rounds(data: Path | None) -> pd.DataFrame:
    """`strategy, epochs, run, round, round_s` of 60 runs."""
    path = "analysis/files/server_round_summary.parquet"
    frame = pd.read_parquet(io.BytesIO(show(data, LOGS_COMMIT, path)))
    frame["epochs"] = frame["epoch"].str.removeprefix("epoch_").astype(int)
    frame = frame.rename(columns={"exp_id": "run", "roundtime": "round_s"})
    return frame[["strategy", "epochs", "run", "round", "round_s"]]


def read_joules(data: Path | None) -> dict[tuple[str, int, str], float]:
    """(strategy, epochs, run) → joules of its clients, all together."""
    path = "analysis/files/hosts_summary.parquet"
    frame = pd.read_parquet(io.BytesIO(show(data, LOGS_COMMIT, path)))
    frame = frame[frame["role"] == "client"]
    sums = frame.groupby(["strategy", "epoch", "exp_id"])["energy_J"].sum()
    return {
        (strategy, int(epoch.removeprefix("epoch_")), run): float(joules)
        for (strategy, epoch, run), joules in sums.items()
    }


def fit_seconds(short_round_s: float, long_round_s: float) -> Seconds:
    """From a round of 1 and one of 5 epochs.

    >>> fit_seconds(25.0, 57.0)
    Seconds(epoch_s=8.0, server_s=17.0)
    """
    epoch_s = (long_round_s - short_round_s) / 4
    return Seconds(epoch_s, short_round_s - epoch_s)


def fit_watts(seconds: Seconds, short_j: float, long_j: float) -> Watts:
    """From one board's joules in a round of 1 and in one of 5 epochs.

    >>> fit_watts(Seconds(8.0, 17.0), short_j=8 * 20 + 17 * 5, long_j=40 * 20 + 17 * 5)
    Watts(training_w=20.0, idle_w=5.0)
    """
    design = [[e * seconds.epoch_s, seconds.server_s] for e in (1, 5)]
    training_w, idle_w = np.linalg.solve(design, [short_j, long_j])
    return Watts(round(float(training_w), 9), round(float(idle_w), 9))


def play_rounds(
    seconds: Seconds, epochs: int, rounds: int, profile: Path | None = None
) -> simfed.RunResult:
    """A run; with joules where the profile of `write_profile` is given."""
    device = (
        {"training": (f"{seconds.epoch_s!r} s")}
        if profile is None
        else {"profile": str(profile)}
    )
    changes = {
        "rounds": rounds,
        "clients[0].device": device,
        "training.local_steps": epochs,
        "server.device.handling": f"{seconds.server_s!r} s",
    }
    return play("grid5000", changes)


def write_profile(seconds: Seconds, watts: Watts, path: Path) -> Path:
    """A board's seconds and watts; transfers take no time here."""
    others = ("idle", "compression", "downlink", "uplink")
    power = {"training": watts.training_w, **dict.fromkeys(others, watts.idle_w)}
    path.write_text(
        yaml.safe_dump(
            {
                "kind": "table",
                "name": "xavier",
                "training": {"logistic-regression": {32: f"{seconds.epoch_s!r} s"}},
                "power": {phase: f"{float(w)!r} W" for phase, w in power.items()},
            }
        ),
        encoding="utf-8",
    )
    return path


def compare_rows(data: Path | None = None) -> list[Row]:
    """Makespans, joules and twins; `data`: a clone of the source."""
    rounds = read_rounds(data)
    with tempfile.TemporaryDirectory() as folder:
        return [
            *_makespan_rows(read_makespans(data)),
            *_joule_rows(rounds, read_joules(data), Path(folder)),
            *_twin_rows(rounds, Path(folder)),
            *_flower_rows(data, Path(folder)),
        ]


def _makespan_rows(runs: pd.DataFrame) -> list[Row]:
    rows = []
    for strategy, of_strategy in runs.groupby("strategy", sort=False):
        first = of_strategy[of_strategy["run"] == "exp_0"].set_index("epochs")
        round_s = first["makespan_s"] / first["rounds"]
        seconds = fit_seconds(float(round_s[1]), float(round_s[5]))
        for (epochs, count), group in of_strategy.groupby(["epochs", "rounds"]):
            result = play_rounds(seconds, int(epochs), int(count))
            simulated_s = float(result.rounds["finished_at_s"].iloc[-1])
            for run, makespan_s in zip(group["run"], group["makespan_s"], strict=True):
                use = FITTED if run == "exp_0" and epochs != 3 else HELD_OUT
                quantity = f"makespan, {strategy}, E = {epochs}, {run}"
                rows.append(Row(quantity, "s", makespan_s, simulated_s, use))
    return rows


def _joule_rows(
    rounds: pd.DataFrame, joules: dict[tuple[str, int, str], float], folder: Path
) -> list[Row]:
    lengths = rounds.groupby(["strategy", "epochs", "run"])["round_s"].agg(
        ["mean", "count"]
    )
    means, counts = lengths["mean"], lengths["count"]
    seconds = {
        strategy: fit_seconds(*(float(means[strategy, e, "exp_0"]) for e in (1, 5)))
        for strategy in rounds["strategy"].unique()
    }
    fitted = [("fedavg", epochs, "exp_0") for epochs in (1, 5)]
    watts = fit_watts(
        seconds["fedavg"], *(joules[k] / counts[k] / _CLIENTS for k in fitted)
    )
    rows = []
    for key, measured_j in joules.items():
        strategy, epochs, run = key
        profile = write_profile(seconds[strategy], watts, folder / "xavier.yaml")
        result = play_rounds(seconds[strategy], epochs, int(counts[key]), profile)
        simulated_j = float(result.participations["energy_j"].sum())
        use = FITTED if run == "exp_0" else HELD_OUT
        quantity = f"joules of all boards, {strategy}, E = {epochs}, {run}"
        rows.append(Row(quantity, "J", measured_j, simulated_j, use))
    return rows


def _twin_rows(rounds: pd.DataFrame, folder: Path) -> list[Row]:
    rows = []
    for (strategy, epochs, run), group in rounds.groupby(
        ["strategy", "epochs", "run"], sort=False
    ):
        lengths_s = group.sort_values("round")["round_s"].to_numpy()
        fitted = max(3, math.ceil(len(lengths_s) / 10))
        rest_s = lengths_s[fitted:]
        log = write_round_log(lengths_s[:fitted], folder / "log.csv")
        twin = fit_twin(read_log(log))
        what = f"round after the first tenth, {strategy}, E = {epochs}, {run}"
        rows += _judge_rest(twin, rest_s, what, folder, plays_mean=False)
    return rows


def _judge_rest(
    twin: Twin, rest_s: np.ndarray, what: str, folder: Path, *, plays_mean: bool
) -> list[Row]:
    """Return the rows of a twin's median and mean round, against later rounds.

    Args:
        twin: fitted to a run's first rounds.
        rest_s: lengths of the run's later rounds, seconds.
        what: the rounds, in words.
        folder: where the twin's scenario is written.
        plays_mean: the twin's mean is that of its played rounds, not its estimate.
    """
    scenario = simfed.load_scenario(
        twin.write(folder / "twin.yaml")[0], {"rounds": len(rest_s)}
    )
    played_s = simfed.run(scenario, time_only=True, progress=False).rounds["duration_s"]
    medians_s = float(np.median(rest_s)), float(played_s.median())
    mean_s, low_s, high_s = twin.predict(len(rest_s))
    mean_s = float(played_s.mean()) if plays_mean else mean_s
    means_s = float(rest_s.mean()), mean_s
    return [
        Row(f"median {what}", "s, twin's median", *medians_s, HELD_OUT),
        Row(f"mean {what}", "s, twin's mean", *means_s, HELD_OUT, low_s, high_s),
    ]


def _flower_rows(data: Path | None, folder: Path) -> list[Row]:
    """Twins of the older runs, whose six clients wrote Flower's log."""
    rows = []
    for number, (server, clients) in enumerate(read_flower_logs(data)):
        log = write_flower_log(server, clients, folder / "log.csv")
        lines = read_log(log)
        rounds = sorted({line.round for line in lines if line.phase == "round"})
        lengths_s = {
            line.round: line.duration_s for line in lines if line.phase == "round"
        }
        fitted = max(3, math.ceil(len(rounds) / 10))
        twin = fit_twin([line for line in lines if line.round in rounds[:fitted]])
        rest_s = np.array([lengths_s[number] for number in rounds[fitted:]])
        what = f"round after the first tenth, six clients, run {number}"
        rows += _judge_rest(twin, rest_s, what, folder, plays_mean=True)
    return rows


def read_flower_logs(data: Path | None) -> list[tuple[str, list[str]]]:
    """Per run, the server's log and its clients'."""
    show(data, FLOWER_COMMIT, _FLOWER_LOGS)
    command = ["git", "-C", str(data), "ls-tree", "-r", "--name-only", FLOWER_COMMIT]
    names = subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.split()
    logs: dict[str, list[str]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        if name.startswith(_FLOWER_LOGS) and file in ("main_server.log", "client.log"):
            owner = folder.split("/")[2]
            logs.setdefault(owner, []).append(show(data, FLOWER_COMMIT, name).decode())
    servers = logs.pop("main_server_0")
    return [
        (server, [texts[at] for texts in logs.values()])
        for at, server in enumerate(servers)
    ]


def write_flower_log(server: str, clients: Sequence[str], path: Path) -> Path:
    """Flower's logs as `simfed twin` reads them: a client's fit is its training, a
    round lasts from asking for fits to the last answer to its evaluation.
    """
    starts_s: dict[int, float] = {}
    rows: list[tuple[int, str, str, float, float]] = []
    for at_s, text in _flower_lines(server):
        if event := _SERVER_EVENT.search(text):
            kind, number, what = event[1], int(event[2]), event[3]
            if (kind, what) == ("fit", "strategy"):
                starts_s[number] = at_s
            elif (kind, what) == ("evaluate", "received"):
                rows.append((number, "", "round", starts_s[number], at_s))
    for client in clients:
        begun_s = 0.0
        for at_s, text in _flower_lines(client):
            if event := _CLIENT_EVENT.search(text):
                if event[2]:
                    rows.append((int(event[3]), event[1], "training", begun_s, at_s))
                begun_s = at_s
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(LOG_COLUMNS)
        writer.writerows((*row[:3], f"{row[3]:.3f}", f"{row[4]:.3f}") for row in rows)
    return path


def _flower_lines(log: str) -> Iterator[tuple[float, str]]:
    for when, text in _FLOWER_LINE.findall(log):
        at = datetime.strptime(when, ("%Y-%m-%d %H:%M:%S,%f")).replace(
            tzinfo=timezone.utc
        )
        yield at.timestamp(), text


def write_round_log(
    lengths_s: np.ndarray[tuple[int], np.dtype[np.float64]], path: Path
) -> Path:
    """Whole rounds, one after the other, as `simfed twin` reads them."""
    ends_s = np.cumsum(lengths_s)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(LOG_COLUMNS)
        for n, (length_s, end_s) in enumerate(zip(lengths_s, ends_s, strict=True)):
            writer.writerow((n + 1, "", "round", end_s - length_s, end_s))
    return path
