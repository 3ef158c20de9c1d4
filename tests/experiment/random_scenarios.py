"""Scenarios in which everything that can be chosen is drawn: methods, servers, codecs, policies,
fleets, faults. Tiny worlds, so that each plays in a fraction of a second."""

import itertools
import random

from simfed.compress.codec import codec_from_spec
from simfed.experiment.checks import check_parts
from simfed.ground.errors import InputError, InputErrors
from simfed.ground.registry import registry
from simfed.scenario import Scenario

STRATEGIES = (
    "top-k", "random-k", "periodic-k", "dense", {"qsgd": {"levels": 4}}, "dgc", {"ef21": {}},
    "adacomp", {"powersgd": {"rank": 2}}, "fp16", "terngrad", "shared-random-k", "svd", "ef-sign",
    {"chain": ["top-k", "fp16"]},
)  # fmt: skip
POLICIES = (
    "uniform", "exp3", "ascend", "thompson", "ucb",
    "balance", "bcrs", "adaptive-k",
)  # fmt: skip
FAULTS = (
    {"restarts": {"between": "4 s", "lasts": "1 s"}},
    {"stalls": {"between": "3 s", "lasts": "1 s"}},
    {"freezes": {"between": "3 s", "lasts": "1 s"}},
    {"messages": {"lost": 0.1, "doubled": 0.1, "timeout": "1 s"}},
)
SELECTIONS = "uniform", "by-samples", "fastest", "oort"
DEVICE = {
    "training": "1 s", "compression": "50 ms", "auxiliary": "10 ms", "inference": "10 ms",
    "distillation": "10 ms", "decompression": "1 ms",
}  # fmt: skip
EDGES = (
    {"mode": "synchronous"},
    {"mode": "asynchronous", "concurrency": 1},
    {"mode": "deadline", "deadline": "2 s", "late": "drop"},
)


def draw_scenario(seed: int) -> Scenario:
    """The first valid one of those that this seed draws."""
    rng = random.Random(seed)
    for _ in itertools.count():
        try:
            scenario = Scenario.model_validate(_draw_plain(rng))
            check_parts(scenario, None, time_only=False)
        except (ValueError, InputError, InputErrors):
            continue
        return scenario
    raise AssertionError


def _draw_plain(rng: random.Random) -> dict:
    def sometimes(share, value):
        return value() if rng.random() < share else None

    methods = registry("method")
    method = rng.choice([name for name in methods.names() if methods.origin(name) == "built in"])
    mode = _draw_mode(rng)
    strategies = rng.sample(STRATEGIES, rng.choice([1, 2, 3]))
    groups = [_draw_group(rng, "small")]
    if rng.random() < 0.3:
        groups.append({**groups[0], "count": 2, "prototype": "large"})
    policy = {"kind": rng.choice(POLICIES)}
    if policy["kind"] == "uniform":
        policy["strategy"] = codec_from_spec(strategies[0]).label
    tree = {
        "topology": "tree",
        "tiers": [
            {"name": "edge", "count": 2, "up": "4 Mbps", "down": "10 Mbps", "latency": "10 ms"}
        ],
    }
    network = rng.choice([None, None, {"server": {"receive": "3 Mbps", "send": "6 Mbps"}}, tree])
    if rng.random() < 0.25:
        network = {**(network or {}), "model": "tcp"}
    if "tiers" in (network or {}) and rng.random() < 0.5:
        mode = {**mode, "edge_servers": {"at": "edge", "merges": 2, **rng.choice(EDGES)}}
    few = {"first": 1.0, "synchronous": 0.5, "deadline": 0.5}.get(mode["mode"], 0.0)
    rollback = {"threshold": rng.choice([0.3, 0.9, 1.0]), "max_consecutive": 2}
    residuals = rng.choice(["restored", "as-sent"])
    chosen = {
        "faults": sometimes(0.25, lambda: rng.choice(FAULTS)),
        "downlink": sometimes(0.2, lambda: {"compression": {"k": 300, "strategy": "top-k"}}),
        "safeguard": sometimes(0.2, lambda: {"rollback": rollback, "residuals": residuals}),
        "participation": sometimes(
            few, lambda: {"clients_per_round": 2, "selection": rng.choice(SELECTIONS)}
        ),
        "server": sometimes(0.2, lambda: {"device": {"assume": DEVICE}}),
        "privacy": sometimes(0.1, lambda: {"level": "client", "clip": 1.0, "noise": 0.5}),
        "network": network,
    }
    models = {"small": "lenet5-half", "large": rng.choice(["lenet5", "lenet5-half"])}
    return {
        "name": "random", "seed": rng.randrange(1000), "method": method,
        "rounds": rng.choice([3, 5, 8]),
        "dataset": {
            "name": "mnist-mini",
            **({"public": 16} if methods.get(method).needs_public else {}),
            **rng.choice([{}, {"partition": {"kind": "dirichlet", "alpha": 0.5}}]),
        },
        "prototypes": {group["prototype"]: {"model": models[group["prototype"]]}
                       for group in groups},
        "clients": groups, "policy": policy, "aggregation": mode,
        "compression": {
            "k": rng.choice([200, "1%", "5%"]), "strategies": strategies,
            "index_code": rng.choice(["fixed", "rice", "seeded", "ideal"]),
        },
        "training": {"local_steps": rng.choice([1, 2])},
        "evaluation": {"every": rng.choice([1, 2, 50]), "clients": rng.random() < 0.2},
        "checkpoint": {"every": rng.choice([0, 1, 2, 3])},
        **{key: value for key, value in chosen.items() if value is not None},
    }  # fmt: skip


def _draw_mode(rng: random.Random) -> dict:
    late = {"late": rng.choice(["drop", "merge"])}
    mode = rng.choice(
        [
            {"mode": "synchronous"},
            {"mode": "deadline", "deadline": f"{rng.choice([300, 1000, 3000])} ms", **late},
            {"mode": "first", "over_selection": 0.5, **late},
            {"mode": "buffered", "buffer": rng.choice([1, 2]), "concurrency": 2},
            {"mode": "asynchronous", "concurrency": rng.choice([1, 2])},
        ]
    )
    if rng.random() < 0.3:
        bounded = {"kind": "hinge", "after": 1, "slope": 0.5, "bound": 3}
        mode["staleness"] = rng.choice([bounded, {"kind": "constant", "bound": 1}])
    return mode


def _draw_group(rng: random.Random, prototype: str) -> dict:
    device = {**DEVICE, "training": rng.choice(["200 ms", "1 s"])}
    further = (
        {"speed": {"uniform": {"low": 0.3, "high": 1}}},
        {"quota": {"share": 0.5, "period": "100 ms"}},
        {"noise": {"kind": "lognormal", "cv": 0.2}},
        {"background": 0.3},
    )
    chosen = {
        "availability": (0.25, {"markov": {"on": "3 s", "off": "2 s"}}),
        "failure": (0.25, {"download": 0.1, "training": 0.2, "upload": 0.2}),
        "overlap": (0.15, {"chunks": rng.choice([2, 4])}),
    }
    latency, rate = rng.choice(["0 ms", "20 ms"]), rng.choice([0.2, 1, 5])
    return {
        "count": rng.choice([2, 3, 4, 6]),
        "prototype": prototype,
        "device": {
            "assume": device,
            **rng.choice([{}, {}, {}, *further]),
        },
        "link": {"up": f"{rate} Mbps", "down": "5 Mbps", "latency": latency},
        **{key: value for key, (share, value) in chosen.items() if rng.random() < share},
    }
