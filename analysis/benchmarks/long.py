"""What a long run costs per round, and whether that and its memory stay the same to the
end.

    python analysis/benchmarks/long.py clock [--rounds 1000000] [--clients 2]
        [--save-every 10000]
    python analysis/benchmarks/long.py learn [--rounds 10000] [--clients 4]
        [--save-every 500]

Plays one run into a folder that is thrown away, and prints for each tenth of its rounds
the processor time per round (this process and its workers) and the resident memory at
its end (of this process); then what ending the run takes and the peak. Beside it stands
what a bare SimPy event takes in this process at that time, as machines differ and are
busy. `--keep` keeps a row per tenth in long_rows.csv, and makes of them the table of
docs/reliability.md.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
import simpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pages import markdown, write_page

import simfed
from simfed.scenario import Scenario

ROWS = Path(__file__).with_name("long_rows.csv")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
TENTHS = 10


def scenario(what: str, rounds: int, clients: int, save_every: int) -> Scenario:
    """A few clients on links of their own, evaluated a hundred times."""
    plain: dict[str, Any] = {
        "name": f"long-{what}",
        "rounds": rounds,
        "dataset": {"name": "mnist-mini", "public": 32},
        "prototypes": {"small": {"model": "logistic-regression"}},
        "clients": [
            {
                "count": clients,
                "prototype": "small",
                "device": "x86-2core-vm",
                "link": {"up": "10 Mbps", "down": "50 Mbps", "latency": "10 ms"},
            }
        ],
        "evaluation": {"every": max(rounds // 100, 1)},
        "checkpoint": {"every": save_every},
    }
    if what == "clock":
        plain["policy"] = {"kind": "uniform", "strategy": "top-k"}
    return Scenario.model_validate(plain)


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def cpu_s() -> float:
    """Of this process and its children that have ended."""
    return sum(
        resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )


def bare_event_s(events: int = 200_000) -> float:
    """Processor time of one timeout of one process."""
    env = simpy.Environment()

    def story() -> Any:
        for _ in range(events):
            yield env.timeout(1.0)

    env.process(story())
    begun = time.process_time()
    env.run()
    return (time.process_time() - begun) / events


def table(rows: pd.DataFrame, what: str) -> str:
    """A line per tenth of one of the two runs."""
    lines = [["to round", "ms a round", "bare events' time a round", "MB"]]
    for row in rows[rows["what"] == what].itertuples():
        events = 1e3 * row.round_ms / row.event_us
        cells = [f"{row.round_ms:#.3g}", f"{events:,.0f}", f"{row.resident_mb:.0f}"]
        lines.append([f"{row.to_round:,}", *cells])
    return markdown(lines)


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    rows = pd.read_csv(ROWS)
    return {f"long, {what}": table(rows, what) for what in ("clock", "learn")}


def keep(rows: pd.DataFrame) -> None:
    """In place of what there is of this kind of run."""
    if ROWS.is_file():
        others = pd.read_csv(ROWS)
        rows = pd.concat([others[others["what"] != rows["what"].iloc[0]], rows])
    rows.sort_values(["what", "to_round"]).to_csv(ROWS, index=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a long run costs per round.")
    parser.add_argument("what", choices=("clock", "learn"))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--clients", type=int)
    parser.add_argument("--save-every", type=int)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    clock = options.what == "clock"
    rounds = options.rounds or (1_000_000 if clock else 10_000)
    made = scenario(
        options.what,
        rounds,
        options.clients or (2 if clock else 4),
        options.save_every or (10_000 if clock else 500),
    )
    block = max(rounds // TENTHS, 1)
    bare_s = [bare_event_s()]
    marks: list[tuple[int, float]] = [(0, cpu_s())]
    rows: list[dict[str, object]] = []
    print(f"{'to round':>10}  {'ms a round':>10}  {'MB':>6}", flush=True)

    def told(round: int, simulated_s: float, accuracy: float | None) -> None:
        if round % block == 0:
            before, since_s = marks[-1]
            now_s = cpu_s()
            each_ms = 1e3 * (now_s - since_s) / (round - before)
            print(f"{round:>10,}  {each_ms:>10.3f}  {resident_mb():>6.0f}", flush=True)
            row = {"what": options.what, "to_round": round, "round_ms": each_ms}
            row |= {"resident_mb": resident_mb()}
            bare_s.append(bare_event_s())
            rows.append({**row, "event_us": 1e6 * bare_s[-1]})
            marks.append((round, cpu_s()))

    with tempfile.TemporaryDirectory() as folder:
        simfed.run(made, f"{folder}/run", workers=1, time_only=clock, progress=told)
        on_disk = sum(
            file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()
        )
    ended_s = cpu_s()
    typical_s = sorted(bare_s)[len(bare_s) // 2]
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"the end took {ended_s - marks[-1][1]:.1f} s; peak {peak_mb:.0f} MB")
    print(f"{on_disk / 1e6:.0f} MB on disk")
    whole_s = ended_s - marks[0][1] - sum(200_000 * s for s in bare_s[1:])
    print(
        f"{whole_s:.0f} s of processor time, a bare SimPy event takes "
        f"{1e6 * typical_s:.2f} µs: "
        f"{1e-6 * whole_s / typical_s:.0f} s where it takes 1 µs"
    )
    if options.keep:
        keep(pd.DataFrame(rows).round(4))
        write_page("long")


if __name__ == "__main__":
    main()
