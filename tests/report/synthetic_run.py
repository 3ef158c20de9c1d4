"""Run directories of a clock that ran alone and of learning that is made up.

Instants, bytes and bars are a time-only run's: two edge links that clients share,
uploads that fail. What only learning could tell (arms, accuracy, losses, rewards)
follows smooth curves with noise.
"""

import functools
import itertools

import numpy as np
import yaml

import simfed
from simfed.record import (
    TABLES,
    PolicyValue,
    PrototypeResult,
    Recorder,
    RunDirectory,
    summarise,
)

ARMS = ("top-k", "random-k", "periodic-k")
GROUP = {
    "device": {"training": "50 ms", "compression": "20 ms", "noise": {"cv": 0.1}},
    "link": {"up": "8 Mbps", "down": "80 Mbps", "latency": "10 ms"},
    "failure": {"upload": 0.04},
}
SERVER = {"decompression": "1 ms", "inference": "12 ms", "distillation": "8 ms"}


def write(
    path,
    clients=10,
    rounds=20,
    seed=0,
    name="synthetic",
    *,
    learns=True,
    diverges=False,
    prototypes=("small", "large"),
):
    """Write a run; `diverges`: its losses end in infinity and NaN."""
    counts = {
        prototype: len(range(i, clients, len(prototypes)))
        for i, prototype in enumerate(prototypes[:clients])
    }
    scenario = {
        "name": name,
        "seed": seed,
        "rounds": rounds,
        "method": "fedkd",
        "dataset": {"name": "mnist-mini", "public": 16},
        "prototypes": {prototype: {"model": "lenet5"} for prototype in counts},
        "client_order": "round-robin",
        "clients": [
            {**GROUP, "count": count, "prototype": prototype}
            for prototype, count in counts.items()
        ],
        "network": {
            "topology": "tree",
            "tiers": [{"name": "edge", "count": 2, "up": f"{0.3 * clients:.2f} Mbps"}],
        },
        "server": {"device": SERVER},
        "compression": {"k": 1000, "strategies": list(ARMS)},
        "policy": {"kind": "uniform", "strategy": "top-k"},
    }
    clock = simfed.run(scenario, time_only=True, progress=False)
    rng, recorder = np.random.default_rng([seed, clients]), Recorder()
    arm = rng.choice(ARMS, (rounds + 1, clients))
    for table in ("rounds", "participations", "links", "spans"):
        for row in clock.table(table).to_pylist():
            t, client = row.get("round"), row.get("client")
            if row.get("kind") == "compression":
                row["name"] = arm[t, client]
            elif table == "participations":
                row |= {"arm": arm[t, client], "choice": "exploit"}
                if learns and row["outcome"] == "aggregated":
                    gain = 0.4 * np.exp(-t / 10) + 0.02 * rng.normal()
                    row |= dict.fromkeys(("gain", "reward_raw", "reward"), gain)
                    row["local_loss"] = 2 * np.exp(-t / 30)
            getattr(recorder, table).append(TABLES[table].row(**row))
    for t in range(1, rounds + 1 if learns else 0):
        for client, strategy in itertools.product(range(clients), ARMS):
            value = np.inf if diverges and strategy == "top-k" else 0.1 * rng.normal()
            recorder.policies.append(PolicyValue(t, client, strategy, value))
        loss, broken = np.exp(-3 * t / rounds), diverges and t > rounds / 2
        for i, prototype in enumerate(counts):
            noise = 0.01 * rng.normal()
            kd_loss = np.inf if broken else loss * (1 + noise)
            result = PrototypeResult(t, prototype, kd_loss, None, None)
            if t % max(1, rounds // 20) == 0:
                accuracy = 0.1 + (0.82 + 0.05 * i) * (1 - loss) + noise
                result = result._replace(
                    test_accuracy=min(accuracy, 1),
                    test_loss=np.nan if broken else 2.3 * loss,
                )
            recorder.prototypes.append(result)
    directory = RunDirectory.create(
        path,
        scenario_yaml=yaml.safe_dump(scenario, sort_keys=False),
        manifest={
            "name": name,
            "mode": "full" if learns else "time-only",
            "seed": seed,
            "versions": {"simfed": "0.1.0", "python": "3.11.7"},
            "warnings": ["made up: no device was measured"],
        },
    )
    summary = summarise(recorder.table, counts)
    directory.finish(recorder, manifest={}, summary=summary)
    return path


def run_maker(root):
    """A function that writes the run of given arguments below `root`, once, and gives
    its folder.
    """
    numbers = itertools.count()
    return functools.cache(
        lambda *args, **kwargs: write(root / f"run-{next(numbers)}", *args, **kwargs)
    )
