"""Small scenarios by name, and what key paths make of them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import simfed
from simfed.record import Run
from simfed.scenario import Scenario, load_scenario, split_key_path

DEVICE = {"training": "50 ms", "compression": "10 ms"}
TINY = {
    "name": "tiny",
    "rounds": 2,
    "method": "fedavg",
    "dataset": {"name": "mnist-mini"},
    "prototypes": {"a": {"model": "logistic-regression"}},
    "clients": [
        {"count": 2, "prototype": "a", "device": DEVICE, "link": {"up": "5 Mbps"}}
    ],
    "policy": {"kind": "uniform", "strategy": "top-k"},
}
"""Two clients of one linear model, which a server averages."""

TWO = {
    **TINY,
    "method": "fedkd",
    "dataset": {"name": "mnist-mini", "public": 32},
    "prototypes": {
        "a": {"model": "logistic-regression"},
        "b": {"model": "lenet5-half"},
    },
    "clients": [
        {"count": 2, "prototype": "a", "device": DEVICE},
        {"count": 2, "prototype": "b", "device": DEVICE},
    ],
}
"""Two prototypes of two clients each, distilled on public images."""

FLEET = {
    "name": "fleet",
    "clients": [{"count": 2, "device": "x86-2core-vm", "link": {"up": "5 Mbps"}}],
    "server": {"device": "x86-2core-vm"},
}
"""Two clients of an app."""

FIRST = """\
name: first
rounds: 3
dataset: {name: mnist-mini, public: 16}
prototypes:
  small: {model: logistic-regression}
clients:
- {count: 3, prototype: small, device: x86-2core-vm, link: {up: 5 Mbps, down: 20 Mbps}}
policy: {kind: uniform, strategy: top-k}
"""
"""The text of somebody's first scenario."""

WORLDS = {"tiny": TINY, "two": TWO, "fleet": FLEET}
GONE = "(gone)"
"""As a key's value: the key is taken out."""


def change(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `base` in which each key path has its value, right or wrong.

    Unlike the overrides of `load_scenario`, which refuse a path that the schema lacks,
    this writes what somebody might write into the file.
    """
    made = copy.deepcopy(dict(base))
    for path, value in changes.items():
        node: Any = made
        *above, last = split_key_path(path)
        for step, below in itertools.pairwise([*above, last]):
            if isinstance(step, str) and not isinstance(node.get(step), (dict, list)):
                node[step] = [] if isinstance(below, int) else {}
            node = node[step]
        if value == GONE:
            del node[last]
        elif isinstance(last, int) and last == len(node):
            node.append(value)
        else:
            node[last] = value
    return made


def world(name: str, changes: Mapping[str, Any] = {}, **more: Any) -> Scenario:
    """Return the scenario of this name with what is different in it, by key path or
    key.
    """
    return load_scenario(WORLDS[name], {**changes, **more})


def groups(*changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return groups of one client of `tiny`, with what is different in each."""
    return [{**TINY["clients"][0], "count": 1, **change} for change in changes]


def play(scenario: str | Scenario, out: Path | None = None, **options: Any) -> Run:
    """Run a scenario, or the world of this name, in one process."""
    made = world(scenario) if isinstance(scenario, str) else scenario
    return simfed.run(made, out, **{"workers": 1, "progress": False, **options})
