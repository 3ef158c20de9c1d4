r"""What a further round costs in two checkouts of simfed, side by side.

    git worktree add /tmp/before v0.1.0  # with its compiled modules built or copied
    python analysis/benchmarks/beside.py --before /tmp/before  # every case
    python analysis/benchmarks/beside.py --before /tmp/before \
        --cases fedkd fedavg --workers 1 2

Each checkout plays the same scenario in a process of its own, through `simfed.run`
alone, and waits before each block of rounds until it is its turn: so both meet the same
machine, and neither pays for imports, data and first rounds. Reported are milliseconds
of a further round, the least over the blocks of processor time (of the process and its
workers) and of wall time, their ratios, and the resident memory at the end of the
process and its workers together.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).resolve().parents[2]
_WARM_UP = 3
"""Rounds before the first block: caches fill, and the safeguard has something to
compare with."""


def _scenario(clients: Mapping[str, tuple[str, int]], **changes: Any) -> dict[str, Any]:
    """Prototype → (model, clients); few public images, no evaluation."""
    link = {"up": "10 Mbps", "down": "50 Mbps", "latency": "10 ms"}
    return {
        "name": "beside",
        "rounds": 10**6,
        "dataset": {"name": "mnist-mini", "public": 256, "partition": {"kind": "iid"}},
        "prototypes": {name: {"model": model} for name, (model, _) in clients.items()},
        "clients": [
            {"count": count, "prototype": name, "device": "x86-2core-vm", "link": link}
            for name, (_, count) in clients.items()
        ],
        "training": {"batch_size": 32},
        "compression": {"k": 1000},
        "evaluation": {"every": 10**6},
        **changes,
    }


_LENETS = {"small": ("lenet5-half", 5), "large": ("lenet5", 5)}
_RESNETS = {"small": ("wresnet40-2", 2), "large": ("resnet18", 2)}
_EPOCH = {"batch_size": 10, "learning_rate": 0.03, "local_epochs": 1}
_WIDER = {**_EPOCH, "batch_size": 32}
_TEN = {"clients_per_round": 10}
_DENSE = {"kind": "uniform", "strategy": "dense"}


def _averaging(method: Any, model: str, count: int, **changes: Any) -> dict[str, Any]:
    changes = {"policy": _DENSE, "participation": _TEN, "training": _EPOCH, **changes}
    data = {"name": "mnist-mini", "public": 0, "partition": {"kind": "iid"}}
    return _scenario({"only": (model, count)}, method=method, dataset=data, **changes)


_LOGISTIC = "logistic-regression"
_REWARDED = {"policy": {"kind": "ascend"}}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "fedkd": (_scenario(_LENETS), 10),
    "fedkd-resnets": (
        _scenario(
            _RESNETS,
            dataset={"name": "mnist-mini", "public": 64, "partition": {"kind": "iid"}},
            training={"batch_size": 8},
            compression={"k": 100_000},
            policy={"kind": "uniform", "strategy": "top-k"},
        ),
        1,
    ),
    "fedavg": (_averaging("fedavg", _LOGISTIC, 150), 100),
    "fedavg-rewards": (_averaging("fedavg", _LOGISTIC, 150, **_REWARDED), 60),
    "fedavg-lenet5": (_averaging("fedavg", "lenet5", 100, training=_WIDER), 4),
    "fedprox": (_averaging("fedprox", _LOGISTIC, 150), 60),
    "fedprox-rewards": (_averaging("fedprox", _LOGISTIC, 150, **_REWARDED), 60),
    "scaffold": (_averaging("scaffold", _LOGISTIC, 150), 60),
    "feddf": (_scenario(_LENETS, method="feddf", policy=_DENSE), 3),
    "fedmd": (_scenario(_LENETS, method="fedmd", policy=_DENSE), 3),
}
"""Name → (scenario, rounds of a block)."""


class Cost(NamedTuple):
    """Of a block of rounds."""

    processor_s: float
    wall_s: float


class _Tree:
    def __init__(self, tree: Path, case: str, workers: int) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--play", case]
        self._process = subprocess.Popen(
            [*command, "--workers", str(workers)],
            env={**os.environ, "PYTHONPATH": str(tree)},
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a checkout's process has ended")
        return dict(json.loads(line))

    def play(self) -> Cost:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.memory_mb = answer["memory_mb"]
        return Cost(answer["processor_s"], answer["wall_s"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _family() -> list[int]:
    """This process and its children."""
    children = Path("/proc/self/task").glob("*/children")
    return [
        os.getpid(),
        *(int(pid) for path in children for pid in path.read_text().split()),
    ]


def _processor_s() -> float:
    """Of every thread of this process and of its workers."""
    threads = [
        path
        for pid in _family()
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
    ]
    return sum(int(path.read_text().split()[0]) for path in threads) / 1e9


def _memory_mb() -> float:
    """Proportional: what processes share is counted once."""
    total = 0
    for pid in _family():
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += next(
            int(line.split()[1]) for line in rollup if line.startswith("Pss:")
        )
    return total / 1e3


def play(case: str, workers: int) -> None:
    """In one checkout's process: play blocks as they are asked for, without end."""
    import simfed

    scenario, block = CASES[case]
    begun = [0.0, 0.0]

    def wait(round: int, simulated_s: float, accuracy: float | None) -> None:
        if round < _WARM_UP or (round - _WARM_UP) % block:
            return
        spent = [_processor_s() - begun[0], time.perf_counter() - begun[1]]
        cost = dict(zip(("processor_s", "wall_s"), spent, strict=True))
        print(json.dumps({**cost, "memory_mb": _memory_mb()}), flush=True)
        if not sys.stdin.readline():
            os._exit(0)
        begun[:] = _processor_s(), time.perf_counter()

    simfed.run(scenario, workers=workers, progress=wait)


def compare(trees: Sequence[Path], case: str, workers: int, blocks: int) -> None:
    """Print one row: what a further round costs in each."""
    players = [_Tree(tree, case, workers) for tree in trees]
    costs: list[list[Cost]] = [[] for _ in players]
    for turn in range(blocks):
        for at in (0, 1) if turn % 2 else (1, 0):
            costs[at].append(players[at].play())
    cells = []
    for number, name in enumerate(("processor", "wall")):
        before, after = (
            1e3 * min(cost[number] for cost in one) / CASES[case][1] for one in costs
        )
        cells.append(f"{name} {before:9.2f} → {after:9.2f} ms, × {after / before:4.2f}")
    before, after = (player.memory_mb for player in players)
    print(
        f"{case:16} {workers} worker(s)  {'   '.join(cells)}   "
        f"memory {before:6.0f} → {after:6.0f} MB",
        flush=True,
    )
    for player in players:
        player.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--before", type=Path, help="a checkout to compare this one with"
    )
    parser.add_argument("--after", type=Path, default=_HERE)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--play", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.play:
        play(arguments.play, arguments.workers[0])
        return
    for case in arguments.cases:
        for workers in arguments.workers:
            compare(
                (arguments.before, arguments.after), case, workers, arguments.blocks
            )


if __name__ == "__main__":
    main()
