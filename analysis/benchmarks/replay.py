"""What replayed learning costs: bandwidths of a study, and a sweep of a finished run.

    python analysis/benchmarks/replay.py [--rounds 200] [--jobs 2]

Prints ratios of things done one after the other in this process, of wall time and of processor time
(all workers'; it means the same on a busy machine):

- a study of 3 bandwidths × 3 fixed strategies against its part with one bandwidth, each from an
  empty cache (bound: 1.15);
- a sweep of 20 bandwidths of one finished run, in seconds and against learning that run once.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from simfed.replay import TrajectoryStore
from simfed.study import run_study

QUICKSTART = Path(__file__).resolve().parents[2] / "scenarios" / "quickstart.yaml"
STRATEGIES = [{"kind": "uniform", "strategy": s} for s in ("top-k", "random-k", "periodic-k")]


class Cost(NamedTuple):
    """What something took."""

    wall_s: float
    processor_s: float

    def __str__(self) -> str:
        return f"{self.wall_s:.1f} s (processor {self.processor_s:.1f} s)"

    def over(self, other: Cost) -> str:
        wall, processor = self.wall_s / other.wall_s, self.processor_s / other.processor_s
        return f"ratio {wall:.3f} (processor {processor:.3f})"


def cost(path: Path, cache: str, jobs: int, **study: Any) -> Cost:
    """A whole study, from its file to its results, workers' start included."""
    path.write_text(yaml.safe_dump({"name": path.stem, "base": str(QUICKSTART), **study}))
    began, processor = time.perf_counter(), _processor_s()
    result = run_study(
        path,
        path.with_suffix(""),
        jobs=jobs,
        progress=False,
        trajectories=TrajectoryStore(path.parent / cache),
    )
    assert result.summary["fingerprint"].notna().all()
    return Cost(time.perf_counter() - began, _processor_s() - processor)


def _processor_s() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:

        def study(name: str, cache: str, up: list[str], policy: list[Any]) -> Cost:
            grid = {"clients[*].link.up": up, "policy": policy}
            path = Path(folder) / f"{name}.yaml"
            return cost(path, cache, arguments.jobs, set={"rounds": arguments.rounds}, grid=grid)

        one = study("one", "a", ["5 Mbps"], STRATEGIES)
        three = study("three", "b", ["5 Mbps", "50 Mbps", "500 Mbps"], STRATEGIES)
        print(f"1 bandwidth × 3 strategies: {one}; 3 × 3: {three}; {three.over(one)}")
        single = study("single", "c", ["0.5 Mbps"], STRATEGIES[:1])
        sweep = study("sweep", "c", [f"{n} Mbps" for n in range(1, 21)], STRATEGIES[:1])
        print(f"one run: {single}; 20 more bandwidths of it: {sweep}; {sweep.over(single)}")


if __name__ == "__main__":
    main()
