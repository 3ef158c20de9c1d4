"""How the network's cost grows with the number of transfers.

    python analysis/benchmarks/network.py [--largest 100000] [--repeat 3]
        [--links 10000] [--lines 10000000]

Draws stars (log-normal access links, one shared server link at a quarter of their sum),
the same with all transfers starting at once, the same inside a SimPy simulation with a
process per client, three-hop trees, and trees whose core is full; replays each and
prints the best of several runs: CPU seconds (which a busy machine stretches less than
wall seconds), microseconds per transfer, and ratios of things done side by side in this
process, which mean the same on a slow and on a fast machine:

- `× heap`: against pushing and popping two events per transfer on a heap, which no
  simulator of these cases can do without. Near-linear growth shows as a column that
  does not rise.
- `× repair`: what solving everything from scratch at every event costs, against
  repairing the last solution (small cases only: it is quadratic).

Then a radio cell of 1,000 transfers against one shared link of as many, in turns.

Then what big inputs cost: graphs of `--links` links with a client at every node (a
chain, a random tree, a square mesh), ten transfers over the whole chain, and traces of
`--lines` lines in each format, each read in a process of its own, whose peak of memory
is shown.
"""

from __future__ import annotations

import argparse
import heapq
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import simpy

from simfed import net
from simfed.net.cells import Wifi
from simfed.net.sharing import Allocator
from simfed.net.topology import Cell

Case = dict[str, Any]


def star(n: int, seed: int = 0) -> Case:
    """n uploads, one per client: access log-normal(14.2, 0.8) bytes/s, server 25 % of
    their sum.
    """
    rng = np.random.default_rng(seed)
    access = rng.lognormal(14.2, 0.8, n)
    return _case(
        [*access, 0.25 * access.sum()],
        0.0,
        rng.uniform(0, 20, n),
        rng.lognormal(15.3, 0.8, n),
        [[k, n] for k in range(n)],
    )


def tree(n: int, seed: int = 0) -> Case:
    """n uploads over access, n/20 edge links log-normal(16, 0.5) and a core of half
    their sum.
    """
    rng = np.random.default_rng(seed)
    edges = n // 20
    access, edge = rng.lognormal(14.2, 0.8, n), rng.lognormal(16.0, 0.5, edges)
    where = rng.integers(0, edges, n)
    return _case(
        [*access, *edge, 0.5 * edge.sum()],
        0.01,
        rng.uniform(0, 20, n),
        rng.lognormal(14.5, 1.0, n),
        [[k, n + int(where[k]), n + edges] for k in range(n)],
    )


def burst(n: int, seed: int = 0) -> Case:
    """The star with all transfers starting at once: a synchronous round."""
    case = star(n, seed)
    return {**case, "flows": [{**flow, "start_s": 0.0} for flow in case["flows"]]}


def crowded_tree(n: int, seed: int = 0) -> Case:
    """The tree with every transfer five times as large and all within a second: the
    core is full.
    """
    case = tree(n, seed)
    flows = [
        {**flow, "start_s": flow["start_s"] / 20, "size_bytes": 5 * flow["size_bytes"]}
        for flow in case["flows"]
    ]
    return {**case, "flows": flows}


def _case(
    capacities: Any, latency_s: float, starts: Any, sizes: Any, paths: list[list[int]]
) -> Case:
    return {
        "links": [
            {"capacity_bytes_per_s": float(c), "latency_s": latency_s}
            for c in capacities
        ],
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
        yield network.send(number, flow["size_bytes"])

    for number, flow in enumerate(case["flows"]):
        env.process(client(number, flow))
    env.run()


def from_scratch(case: Case) -> None:
    """Replay without ever repairing."""
    begin = Allocator.__init__

    def begin_impatient(sharing: Allocator, *arguments: Any, **options: Any) -> None:
        begin(sharing, *arguments, **options)
        sharing.patience = sharing.patience_per_link = 0

    Allocator.__init__ = begin_impatient  # type: ignore[assignment, method-assign]
    try:
        net.replay(case)
    finally:
        Allocator.__init__ = begin  # type: ignore[method-assign]


def cell_against_link(n: int, repeat: int) -> tuple[float, float]:
    """CPU seconds of n uploads in a Wi-Fi cell of mixed rates, and over one shared
    link; each the best of `repeat`, in turns.
    """
    rng = np.random.default_rng(0)
    wifi = Wifi("ac", 80)
    rates = np.array([wifi.phy_rate(int(mcs)) for mcs in rng.integers(0, 10, n)])
    cell = Cell("home", range(n), *wifi.weights(rates))
    topologies = (
        net.Star(n, up_bytes_per_s=wifi.alone(rates), cells=[cell]),
        net.Star(n, receive_bytes_per_s=1 / float((1 / wifi.alone(rates)).mean())),
    )
    starts, sizes = rng.uniform(0, 20, n).tolist(), rng.lognormal(13.3, 0.8, n).tolist()
    sends = [
        net.FlowStart(at, k, size)
        for k, (at, size) in enumerate(zip(starts, sizes, strict=True))
    ]
    times = [
        [best_cpu_s(partial(net.play, topology, sends), 1) for topology in topologies]
        for _ in range(repeat)
    ]
    cell_s, link_s = np.array(times).min(axis=0).tolist()
    return cell_s, link_s


def edges(kind: str, links: int) -> list[tuple[str, str]]:
    """A graph of about that many links, each node by its number; the server is `0`."""
    if kind == "chain":
        return [(f"{k}", f"{k - 1}") for k in range(1, links + 1)]
    if kind == "random tree":
        above = np.random.default_rng(0).integers(0, np.arange(1, links + 1))
        return [(f"{k}", f"{other}") for k, other in enumerate(above.tolist(), 1)]
    side = isqrt(links // 2)
    across = [(f"{k}", f"{k - 1}") for k in range(side * side) if k % side]
    return across + [(f"{k}", f"{k - side}") for k in range(side, side * side)]


def joined(pairs: list[tuple[str, str]]) -> net.Topology:
    """The graph with a client at each of its nodes."""
    ways = [way for a, b in pairs for way in ((a, b), (b, a))]
    lines = [net.Line(f"{a}>{b}", a, b, 1e6, 1e-3) for a, b in ways]
    nodes = sorted(
        {node for pair in pairs for node in pair} - {"0"}, key=int, reverse=True
    )
    access = net.Access(2e5, 2e5)
    return net.graph(len(nodes), access, lines, node_of_client=nodes, server="0")


def rows(format: str, lines: int) -> Iterator[str]:
    """A trace with a line about every half second, in pieces."""
    rng = np.random.default_rng(0)
    at_s, left = 0.0, lines
    while left:
        count = min(left, 100_000)
        times = at_s + np.cumsum(rng.uniform(0.001, 1, count))
        at_s, left = float(times[-1]), left - count
        pairs = zip(times.tolist(), rng.uniform(0, 50, count).tolist(), strict=True)
        if format == "mahimahi":
            yield "".join(f"{int(time)}\n" for time in times.tolist())
        else:
            between = "," if format == "csv" else "\t"
            yield "".join(f"{time:.6f}{between}{rate!r}\n" for time, rate in pairs)


def read(format: str, path: Path) -> tuple[float, float]:
    """CPU seconds of reading a trace, and the process's peak of memory in MB."""
    began = time.process_time()
    if format == "mahimahi":
        net.read_mahimahi(path, bin_s=1.0)
    else:
        {"pensieve": net.read_pensieve, "csv": net.read_csv}[format](path)
    cpu_s = time.process_time() - began
    return cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def big_inputs(links: int, lines: int) -> None:
    print(f"\n{'graph':<14}{'links':>10}{'cpu_s':>10}")
    for kind in ("chain", "random tree", "mesh"):
        pairs = edges(kind, links)
        print(
            f"{kind:<14}{len(pairs):>10,}"
            f"{best_cpu_s(partial(joined, pairs), 1):>10.2f}",
            flush=True,
        )
    chain = joined(edges("chain", links))
    sends = [net.FlowStart(float(k), k, 3e6) for k in range(10)]
    print(
        f"{'ten transfers':<14}{links:>10,}"
        f"{best_cpu_s(partial(net.play, chain, sends), 1):>10.2f}"
    )
    print(f"\n{'trace':<14}{'lines':>10}{'cpu_s':>10}{'MB':>7}")
    for format in ("csv", "pensieve", "mahimahi"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace"
            with path.open("w") as file:
                file.writelines(rows(format, lines))
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                cpu_s, peak_mb = pool.apply(read, (format, path))
        print(f"{format:<14}{lines:>10,}{cpu_s:>10.2f}{peak_mb:>7.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--largest", type=int, default=100_000, help="transfers in a star"
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--links", type=int, default=10_000, help="of the graphs")
    parser.add_argument("--lines", type=int, default=10_000_000, help="of the traces")
    arguments = parser.parse_args()
    print(
        f"{'case':<14}{'transfers':>10}{'cpu_s':>10}{'µs each':>9}"
        f"{'× heap':>8}{'× repair':>10}"
    )
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
            print(
                f"{name:<14}{n:>10,}{cpu_s:>10.4f}{1e6 * cpu_s / n:>9.1f}"
                f"{cpu_s / heap_cpu_s:>8.1f}{repair:>10}",
                flush=True,
            )
    cell_s, link_s = cell_against_link(1_000, 10 * arguments.repeat)
    print(
        f"\n{'a cell':<14}{1_000:>10,}{cell_s:>10.4f}   × one shared "
        f"link{cell_s / link_s:>6.2f}"
    )
    big_inputs(arguments.links, arguments.lines)


if __name__ == "__main__":
    main()
