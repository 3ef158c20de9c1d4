"""How the network's cost grows with the number of transfers.

    python analysis/benchmarks/network.py [--largest 100000] [--repeat 3]

Draws stars (log-normal access links, one shared server link at a quarter of their sum), the same
with all transfers starting at once, the same inside a SimPy simulation with a process per client,
three-hop trees, and trees whose core is full; replays each and prints the best of several runs: CPU seconds (which a busy machine stretches less than wall
seconds), microseconds per transfer, and two ratios of things done side by side in this process,
which mean the same on a slow and on a fast machine:

- `× heap`: against pushing and popping two events per transfer on a heap, which no simulator of
  these cases can do without. Near-linear growth shows as a column that does not rise.
- `× repair`: what solving everything from scratch at every event costs, against repairing the last
  solution (small cases only: it is quadratic).
"""

from __future__ import annotations

import argparse
import heapq
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import simpy

from simfed import net
from simfed.net.sharing import Sharing

Case = dict[str, Any]


def star(n: int, seed: int = 0) -> Case:
    """n uploads, one per client: access log-normal(14.2, 0.8) bytes/s, server 25 % of their sum."""
    rng = np.random.default_rng(seed)
    access = rng.lognormal(14.2, 0.8, n)
    return _case([*access, 0.25 * access.sum()], 0.0, rng.uniform(0, 20, n),
                 rng.lognormal(15.3, 0.8, n), [[k, n] for k in range(n)])  # fmt: skip


def tree(n: int, seed: int = 0) -> Case:
    """n uploads over access, n/20 edge links log-normal(16, 0.5) and a core of half their sum."""
    rng = np.random.default_rng(seed)
    edges = n // 20
    access, edge = rng.lognormal(14.2, 0.8, n), rng.lognormal(16.0, 0.5, edges)
    where = rng.integers(0, edges, n)
    return _case([*access, *edge, 0.5 * edge.sum()], 0.01, rng.uniform(0, 20, n),
                 rng.lognormal(14.5, 1.0, n), [[k, n + int(where[k]), n + edges] for k in range(n)])  # fmt: skip


def burst(n: int, seed: int = 0) -> Case:
    """The star with all transfers starting at once: a synchronous round."""
    case = star(n, seed)
    return {**case, "flows": [{**flow, "start_s": 0.0} for flow in case["flows"]]}


def crowded_tree(n: int, seed: int = 0) -> Case:
    """The tree with every transfer five times as large and all within a second: the core is full."""
    case = tree(n, seed)
    flows = [
        {**flow, "start_s": flow["start_s"] / 20, "size_bytes": 5 * flow["size_bytes"]}
        for flow in case["flows"]
    ]
    return {**case, "flows": flows}


def _case(capacities: Any, latency_s: float, starts: Any, sizes: Any, paths: list[list[int]]) -> Case:  # fmt: skip
    return {
        "links": [{"capacity_bytes_per_s": float(c), "latency_s": latency_s} for c in capacities],
        "flows": [
            {"start_s": float(start), "size_bytes": float(size), "path": path}
            for start, size, path in zip(starts, sizes, paths, strict=True)
        ],
    }


def best_cpu_s(what: Callable[[], object], repeat: int) -> float:
    """CPU seconds of the fastest of `repeat` calls."""
    times = []
    for _ in range(repeat):
        began = time.process_time()
        what()
        times.append(time.process_time() - began)
    return min(times)


def heap_alone(n: int) -> None:
    """The least that an event simulation of n transfers does."""
    rng = np.random.default_rng(0)
    heap = [(at, k) for k, at in enumerate(rng.random(n).tolist())]
    heapq.heapify(heap)
    for k, more in enumerate(rng.random(n).tolist()):
        at, _ = heapq.heappop(heap)
        heapq.heappush(heap, (at + more, n + k))
    while heap:
        heapq.heappop(heap)


def in_simpy(case: Case) -> None:
    """A star's uploads as a simulation sends them: one SimPy process per client."""
    *access, server = [link["capacity_bytes_per_s"] for link in case["links"]]
    env = simpy.Environment()
    star = net.Star(len(access), up_bytes_per_s=access, receive_bytes_per_s=server)
    network = net.Network(env, star)

    def client(number: int, flow: dict[str, Any]) -> Any:
        yield env.timeout(flow["start_s"])
        yield network.send(number, flow["size_bytes"]).done

    for number, flow in enumerate(case["flows"]):
        env.process(client(number, flow))
    env.run()


def from_scratch(case: Case) -> None:
    """A replay that never repairs."""
    patience, Sharing._patience = Sharing._patience, lambda self: 0  # type: ignore[method-assign]
    try:
        net.replay(case)
    finally:
        Sharing._patience = patience  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=100_000, help="transfers in a star")
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{'case':<14}{'transfers':>10}{'cpu_s':>10}{'µs each':>9}{'× heap':>8}{'× repair':>10}")
    kinds: list[tuple[str, Callable[[int], Case], Callable[[Case], object], float]] = [
        ("star", star, net.replay, 1),
        ("burst", burst, net.replay, 1),
        ("star in SimPy", star, in_simpy, 1),
        ("tree", tree, net.replay, 0.1),
        ("crowded tree", crowded_tree, net.replay, 0.1),
    ]
    for name, draw, play, largest in kinds:
        for n in (100, 1_000, 10_000, 100_000):
            if n > arguments.largest * largest:
                continue
            case = draw(n)
            cpu_s = best_cpu_s(partial(play, case), arguments.repeat)
            heap_cpu_s = best_cpu_s(partial(heap_alone, n), arguments.repeat)
            repair = ""
            if n <= 1_000 and play is net.replay:
                repair = f"{best_cpu_s(partial(from_scratch, case), 1) / cpu_s:.0f}"
            print(f"{name:<14}{n:>10,}{cpu_s:>10.4f}{1e6 * cpu_s / n:>9.1f}"
                  f"{cpu_s / heap_cpu_s:>8.1f}{repair:>10}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
