"""Flower's own examples and baselines under the simulated clock, from a checkout that you name.

    git clone https://github.com/adap/flower
    python analysis/flower_originals.py flower --fleet scenarios/flower/phones.yaml --out originals
    python analysis/flower_originals.py flower --fleet FLEET.yaml --out originals --only quickstart

Every folder below CHECKOUT with a `pyproject.toml` that names a Flower app is played by
`simfed flower run`, each in a process of its own, for so many rounds as `--rounds` says where the
app has a setting of that name; then its run directory is checked by `simfed verify`. What an app
needs (its packages, its data, which most of them download) has to be there: one that misses
something is a row with the sentence that says what. OUT gets the run directories and `apps.csv`, a
row for each app: its folder, how it ended, simulated and host seconds, and the last line that it
said.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROUND_SETTINGS = ("num-server-rounds", "num-rounds", "num_rounds")


class Played(NamedTuple):
    """How one app ended."""

    app: str
    outcome: str
    """`finished`, `failed` (exit code 1), `refused` (2), `timeout` or `broken` (by verify)."""
    simulated_s: float | None
    wall_s: float
    sentence: str


def find_apps(checkout: Path, only: str) -> Iterator[Path]:
    """The folders of apps below a checkout whose path has `only` in it, in their order."""
    for project in sorted(checkout.rglob("pyproject.toml")):
        folder = project.parent
        if only in str(folder.relative_to(checkout)) and "[tool.flwr.app.components]" in (
            project.read_text(encoding="utf-8")
        ):
            yield folder


def play_app(
    folder: Path, name: str, fleet: Path, out: Path, rounds: int, limit_s: float
) -> Played:
    """Play one app and check its run directory."""
    run = out / name.replace("/", "--")
    command = [sys.executable, "-m", "simfed", "flower", "run", str(folder), "--fleet", str(fleet)]
    command += ["--out", str(run), "--overwrite", "--quiet", "--no-figures"]
    project = (folder / "pyproject.toml").read_text(encoding="utf-8")
    setting = next((key for key in ROUND_SETTINGS if f"\n{key}" in project), None)
    command += ["--run-config", f"{setting}={rounds}"] if setting else []
    began_s = time.perf_counter()
    outcome, sentence = _call(command, limit_s)
    wall_s = time.perf_counter() - began_s
    simulated_s = None
    if outcome == "finished":
        simulated_s = json.loads((run / "summary.json").read_text())["simulated_s"]
        checked, broken = _call([sys.executable, "-m", "simfed", "verify", str(run)], limit_s)
        if checked != "finished":
            outcome, sentence = "broken", broken
    return Played(name, outcome, simulated_s, round(wall_s, 1), sentence)


def _call(command: Sequence[str], limit_s: float) -> tuple[str, str]:
    """How a command ended, and the last line that it wrote to standard error."""
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return "timeout", f"gave up after {limit_s:g} s"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    outcome = {0: "finished", 2: "refused"}.get(done.returncode, "failed")
    return outcome, "" if done.returncode == 0 or not lines else lines[-1].strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Play all apps of a checkout; 0 where each of them finished."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="folder of a checkout of Flower")
    parser.add_argument("--fleet", type=Path, required=True, help="fleet file")
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and apps.csv")
    parser.add_argument("--only", default="", help="apps whose path has this in it")
    parser.add_argument("--rounds", type=int, default=2, help="of each app (2)")
    parser.add_argument("--limit", type=float, default=900.0, help="host seconds per app (900)")
    options = parser.parse_args(arguments)
    folders = list(find_apps(options.checkout, options.only))
    if not folders:
        parser.error(f"{options.checkout}: no folder with a Flower app's pyproject.toml")
    options.out.mkdir(parents=True, exist_ok=True)
    played = []
    with open(options.out / "apps.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(Played._fields)
        for folder in folders:
            name = folder.relative_to(options.checkout).as_posix()
            row = play_app(folder, name, options.fleet, options.out, options.rounds, options.limit)
            played.append(row)
            table.writerow(row)
            file.flush()
            print(f"{row.app}: {row.outcome} {row.sentence}".rstrip(), flush=True)
    finished = sum(row.outcome == "finished" for row in played)
    print(f"{finished} of {len(played)} apps finished; {options.out / 'apps.csv'}")
    return int(finished < len(played))


if __name__ == "__main__":
    sys.exit(main())
