"""What the clock costs: its share of a full run, large cohorts, and clients that sit
idle.

    python analysis/benchmarks/clock.py [--rounds 60] [--clients 10000] [--idle 1000000]
                                        [--only share|cohort|idle|fleet|flight|peak]

Prints ratios of things done side by side in this process, so that they mean the same on
a slow, a busy and a fast machine:

- clock, network and recording as a share of a full run's wall time (bound: 5 %);
- a time-only round of many clients against the same number of bare SimPy processes with
  as many waits each and nothing else in them;
- memory of a run with many idle clients, against that of the same run with none;
- processor time per participation in fleets of 100 to 1,000,000 clients drawn from
  distributions, under a synchronous and an asynchronous server, and with 100 to 10,000
  clients in flight;
- the peak memory of a whole `simfed run` of 1,000,000 such clients, 1,000 per round,
  100 rounds.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import simpy
from drawn_fleet import drawn_fleet

import simfed
from simfed.device import DeviceSpec, build_processor, load_profile
from simfed.ground.seeding import Streams
from simfed.learn.catalogue import facts
from simfed.net import Network, Star
from simfed.policy import Choice, Uniform
from simfed.record import Recorder
from simfed.scenario import Scenario
from simfed.sim import Clock, Simulation, TimeOnlyWorkload
from simfed.tasks.tasks import Tasks

PROFILE = "rtx3090-ryzen4800h"
QUICKSTART = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"


def share_of_a_full_run(rounds: int) -> None:
    scenario = simfed.load_scenario(QUICKSTART, {"rounds": rounds})
    # imports, page faults
    simfed.run(scenario, source=QUICKSTART, workers=1, progress=False)
    wall_s = simfed.run(
        scenario, source=QUICKSTART, workers=1, progress=False
    ).manifest["wall_s"]
    clock_s = wall_s["simulation"] + wall_s["recording"]
    print(
        f"full run, 10 clients: clock, network and recording "
        f"{clock_s / wall_s['total']:.1%} "
        f"of the wall time ({1e3 * clock_s / rounds:.2f} ms of "
        f"{1e3 * wall_s['total'] / rounds:.1f} ms a round)"
    )


def time_only(
    clients: int, rounds: int, per_round: int | None, *, shared: bool
) -> Simulation:
    scenario = Scenario.model_validate(
        {
            "name": "clock",
            "rounds": rounds,
            "dataset": {"name": "mnist-mini"},
            "prototypes": {"small": {"model": "lenet5-half"}},
            "clients": [{"count": clients, "prototype": "small", "device": PROFILE}],
            "policy": {"kind": "uniform", "strategy": "top-k"},
            "participation": {"clients_per_round": per_round},
        }
    )
    rates = np.random.default_rng(0).lognormal(14.2, 0.8, clients)
    limit = {"receive_bytes_per_s": rates.sum() / 4} if shared else {}
    star = Star(
        clients,
        up_bytes_per_s=rates,
        down_bytes_per_s=5 * rates,
        latency_s=0.01,
        **limit,
    )
    processor, streams = (
        build_processor(DeviceSpec(profile="p"), load_profile(PROFILE)),
        Streams(0),
    )
    policy = Uniform((Choice("top-k"),), strategy="top-k")
    models = {"small": facts("lenet5-half", "mnist-mini")}
    world = Clock(
        lambda env, on_use: Network(env, star, on_use=on_use),
        lambda client: processor.client(streams, client),
        streams,
    )
    return Simulation(
        scenario,
        world=world,
        workload=TimeOnlyWorkload(Tasks(scenario, models, samples_of=lambda client: 6)),
        make_policy=lambda client: policy,
        recorder=Recorder(),
        streams=streams,
    )


def bare_processes(clients: int, rounds: int) -> None:
    env = simpy.Environment()

    def story(client: int) -> Generator[simpy.Event, None, None]:
        for _ in range(rounds):
            for wait in range(4):
                yield env.timeout(1 + client % 7 + wait)

    for client in range(clients):
        env.process(story(client))
    env.run()


def large_cohort(clients: int, rounds: int) -> None:
    for shared in (False, True):
        best, bare = np.inf, np.inf
        for _ in range(3):
            simulation = time_only(clients, rounds, None, shared=shared)
            best = min(best, seconds(simulation.run))
            bare = min(bare, seconds(lambda: bare_processes(clients, rounds)))
        links = "a shared server link" if shared else "links of their own"
        print(
            f"time-only, {clients:,} clients, {links}: {best / rounds:.2f} s a round, "
            f"{best / bare:.0f} × bare SimPy processes"
        )


def idle_clients(idle: int, rounds: int) -> None:
    peaks = []
    for clients in (100, idle):
        tracemalloc.start()
        took_s = seconds(time_only(clients, rounds, 100, shared=False).run)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    each = (peaks[1] - peaks[0]) / (idle - 100)
    print(
        f"time-only, 100 of {idle:,} clients a round: {each:.0f} bytes per idle "
        f"client, {took_s / rounds:.2f} s a round"
    )


def cohorts_of(size: int) -> dict[str, Any]:
    return {"participation": {"clients_per_round": size}}


def in_flight(clients: int) -> dict[str, Any]:
    return {"aggregation": {"mode": "asynchronous", "concurrency": clients}}


def processor_s(clients: int, rounds: int, **others: Any) -> float:
    """Processor seconds per participation from the first merge on, without what is
    built before.
    """
    scenario = Scenario.model_validate(drawn_fleet(clients, rounds, **others))
    pyarrow.array([0.0])  # imports pandas, once: else the first rounds' columns would
    marks: list[float] = []

    def mark(round: int, simulated_s: float, accuracy: float | None) -> None:
        marks.append(time.process_time())

    run = simfed.run(scenario, time_only=True, progress=mark)
    later = int((run.participations["merge"] > 1).sum())
    return (marks[-1] - marks[0]) / later


def cost_by_fleet_size(most: int) -> None:
    sizes = [n for n in (100, 1_000, 10_000, 100_000, 1_000_000) if n <= most]
    for name, rounds, others in (
        ("synchronous, 100 per round", 40, cohorts_of(100)),
        ("asynchronous, 50 in flight", 4_000, in_flight(50)),
    ):
        costs = [processor_s(n, rounds, **others) for n in sizes]
        shown = ", ".join(
            f"{n:,}: {c / costs[0]:.2f}" for n, c in zip(sizes, costs, strict=True)
        )
        print(f"time-only, {name}: per participation, by clients of the fleet: {shown}")


def cost_by_flight() -> None:
    sizes = (100, 1_000, 10_000)
    costs = [processor_s(100_000, 2 * n + 2_000, **in_flight(n)) for n in sizes]
    shown = ", ".join(
        f"{n:,}: {c / costs[0]:.2f}" for n, c in zip(sizes, costs, strict=True)
    )
    print(f"time-only, asynchronous: per participation, by clients in flight: {shown}")


def peak_of_a_whole_run(clients: int) -> None:
    import yaml

    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder, "fleet.yaml")
        scenario.write_text(
            yaml.safe_dump(drawn_fleet(clients, 100, **cohorts_of(1_000)))
        )
        command = [
            sys.executable,
            "-m",
            "simfed",
            "run",
            str(scenario),
            "--time-only",
            "--quiet",
        ]
        subprocess.run([*command, "--out", str(Path(folder, "run"))], check=True)
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    print(
        f"time-only, 1,000 of {clients:,} drawn clients, 100 rounds: {peak_mb:.0f} "
        f"MB at most"
    )


def seconds(work: object) -> float:
    begun = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=60, help="of the full run")
    parser.add_argument("--clients", type=int, default=10_000, help="in a large cohort")
    parser.add_argument("--idle", type=int, default=1_000_000)
    parser.add_argument(
        "--only", choices=("share", "cohort", "idle", "fleet", "flight", "peak")
    )
    options = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {
        "share": lambda: share_of_a_full_run(options.rounds),
        "cohort": lambda: large_cohort(options.clients, rounds=2),
        "idle": lambda: idle_clients(options.idle, rounds=5),
        "fleet": lambda: cost_by_fleet_size(options.idle),
        "flight": cost_by_flight,
        "peak": lambda: peak_of_a_whole_run(options.idle),
    }
    for name, part in parts.items():
        if options.only in (None, name):
            part()


if __name__ == "__main__":
    main()
