"""What replayed learning costs: bandwidths of a study, and a sweep of a finished run.

    python analysis/benchmarks/replay.py [--rounds 200] [--jobs 2]

Prints ratios of things done side by side, so that they mean the same on a slow, a busy and a fast
machine:

- a study of 3 bandwidths × 3 fixed strategies against its part with one bandwidth, each from an
  empty cache (bound: 1.15);
- a sweep of 20 bandwidths of one finished run, in seconds and against learning that run once.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import yaml

from simfed.replay import TrajectoryStore
from simfed.study import run_study

QUICKSTART = Path(__file__).resolve().parents[2] / "scenarios" / "quickstart.yaml"
STRATEGIES = [{"kind": "uniform", "strategy": s} for s in ("top-k", "random-k", "periodic-k")]


def wall_s(folder: Path, name: str, cache: str, rounds: int, jobs: int, grid: dict[str, list]) -> float:  # fmt: skip
    """Host seconds of a whole study, from its file to its results."""
    path = folder / f"{name}.yaml"
    study = {"name": name, "base": str(QUICKSTART), "set": {"rounds": rounds}, "grid": grid}
    path.write_text(yaml.safe_dump(study))
    began = time.perf_counter()
    result = run_study(
        path, folder / name, jobs=jobs, progress=False, trajectories=TrajectoryStore(folder / cache)
    )
    assert result.summary["fingerprint"].notna().all()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    up = "clients[*].link.up"
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)

        def study(name: str, cache: str, **grid: list) -> float:
            axes = {up: grid["up"], "policy": grid["policy"]}
            return wall_s(folder, name, cache, arguments.rounds, arguments.jobs, axes)

        one = study("one", "cache-one", up=["5 Mbps"], policy=STRATEGIES)
        three = study("three", "cache-three", up=["5 Mbps", "50 Mbps", "500 Mbps"], policy=STRATEGIES)  # fmt: skip
        print(f"1 bandwidth × 3 strategies: {one:.1f} s; 3 × 3: {three:.1f} s; ratio {three / one:.3f}")  # fmt: skip
        single = study("single", "cache-single", up=["50 Mbps"], policy=STRATEGIES[:1])
        sweep = study("sweep", "cache-single", up=[f"{n} Mbps" for n in range(1, 21)], policy=STRATEGIES[:1])  # fmt: skip
        print(
            f"a run: {single:.1f} s; 20 more bandwidths of it: {sweep:.1f} s "
            f"({sweep / 20:.2f} s each, workers' start included); ratio {sweep / single:.2f}"
        )


if __name__ == "__main__":
    main()
