"""Laws over worlds nobody thought of: a fixed handful of each (CI draws others)."""

import random
from contextlib import suppress

import laws
import laws_worlds as worlds
import pytest

from simfed.scenario.load import import_plugins

SEEDS = dict.fromkeys(
    ("deployed", "spread", "killed", "resolved", "filled", "replaced"), 2
)
"""Worlds of a law in the suite that always runs; of the others three."""


def test_every_key_of_the_schema_can_be_drawn():
    plugin = {"plugins": ["parts.py"]}
    import_plugins(plugin, source="", folder=laws.files(), allow=True)
    assert worlds.list_undrawn() == []
    assert worlds.list_stale() == []


@pytest.mark.parametrize(
    ("law", "seed"),
    [(law, seed) for law in laws.LAWS for seed in range(SEEDS.get(law, 3))],
)
def test_a_handful_of_worlds_obeys(law, seed):
    with suppress(laws.Fails, laws.Unfit):
        laws.obey(law, draw_one(law, random.Random(f"world {seed} of {law}")))


def draw_one(law, rng):
    """Return the first drawn world whose parts go together."""
    while True:
        with suppress(worlds.NoWorld):
            return laws.draw(law, rng)


DEVICE = {"training": "50 ms", "compression": "50 ms"}
SMALL = {
    "name": "law",
    "seed": 1,
    "rounds": 2,
    "method": "fedavg",
    "dataset": {"leaf": "leaf"},
    "prototypes": {"a": {"model": "logistic-regression"}},
    "clients": [{"count": 2, "prototype": "a", "device": DEVICE}],
    "policy": {"kind": "uniform", "strategy": "top-k"},
}


def group(**changes):
    return {"clients": [{**SMALL["clients"][0], **changes}]}


DENSE = {"policy": {"kind": "uniform", "strategy": "dense"}}
FOUND = {
    "a model of 45 MB fills no link that nobody can fill": (
        "unlimited",
        {
            "dataset": {"name": "mnist-mini"},
            "prototypes": {"a": {"model": "resnet18"}},
            "rounds": 1,
            **DENSE,
        },
    ),
    "a warning names the profile of a file as the run's copy does": (
        "verified",
        {
            "downlink": {"compression": {"k": 5}},
            **group(device={"profile": "board.yaml"}),
        },
    ),
    "products that begin at odd places of a stack are those of one alone": (
        "spread",
        {
            "seed": 90,
            "dataset": {"huggingface": "hub"},
            "prototypes": {"a": {"model": "perceptron"}},
            "training": {"batch_size": 3, "local_epochs": 2},
            "policy": {"kind": "ascend"},
            **group(count=4),
        },
    ),
    "how long a cut upload was is not known of who has waited before it": (
        "verified",
        {
            "plugins": ["parts.py"],
            "method": {"kind": "with-keys"},
            "seed": 58,
            "rounds": 1,
            "dataset": {"huggingface": "hub"},
            "prototypes": {"a": {"model": "perceptron"}},
            "compression": {"strategies": [{"svd": {}}]},
            "policy": {"kind": "ascend"},
            "aggregation": {"mode": "deadline", "deadline": "400 ms"},
            "clients": [
                {
                    "count": 1,
                    "prototype": "a",
                    "device": {"training": "200 ms", "compression": "50 ms"},
                    "link": {"latency": "20 ms"},
                },
                {
                    "count": 1,
                    "prototype": "a",
                    "device": {"training": "200 ms", "compression": "0 s"},
                    "link": {"up": "300 kbps"},
                },
            ],
        },
    ),
    "the factors of a student are not of its client's model": (
        "deployed",
        {
            "method": {"kind": "fedkd-mutual"},
            "prototypes": {
                "a": {"model": "perceptron"},
                "b": {"model": "logistic-regression"},
            },
            "rounds": 1,
            "clients": [
                {
                    "count": 1,
                    "prototype": name,
                    "device": {**DEVICE, "auxiliary": "10 ms"},
                }
                for name in "ab"
            ],
            **DENSE,
        },
    ),
    "recorded arms know the size of an upload that was cut off, which tables have "
    "not": (
        "recorded",
        {
            "seed": 58,
            "rounds": 1,
            "dataset": {"name": "mnist-mini"},
            "prototypes": {"a": {"model": "perceptron"}},
            "aggregation": {"mode": "first"},
            "compression": {"index_code": "rice"},
            "participation": {"clients_per_round": 1},
            **group(
                device={"training": "200 ms", "compression": "50 ms"},
                link={"up": "1 Mbps"},
            ),
        },
    ),
    "what a server works on within a participation is played again": (
        "verified",
        {
            "plugins": ["parts.py"],
            "method": "at-server",
            "rounds": 4,
            "server": {"device": {"training": "300 ms", "decompression": "1 ms"}},
            "aggregation": {"mode": "asynchronous", "concurrency": 2},
            "faults": {
                "messages": {
                    "lost": 0.2,
                    "doubled": 0.1,
                    "timeout": "0.1 s",
                    "tries": 3,
                }
            },
            **group(
                count=3,
                link={"up": "100 kbps"},
                availability={"markov": {"on": "3 s", "off": "1 s"}},
            ),
        },
    ),
    "what travels down is known before devices are that cut training off": (
        "verified",
        {
            "downlink": {"compression": {"k": 5}},
            **group(local_time="100 ms"),
            **DENSE,
        },
    ),
    "facts alone play a clock whose clients own sizes that are said": (
        "twice_as_fast",
        {
            "dataset": {"file": "images.npz", "partition": {"sizes": [1, 9]}},
            "prototypes": {"a": {"facts": {"parameters": 50, "flops_per_sample": 9}}},
            **DENSE,
        },
    ),
    "heads train for epochs of samples, which one more client deals anew": (
        "never_there",
        {
            "method": "fedrep",
            "dataset": {"file": "images.npz"},
            "prototypes": {"a": {"model": "perceptron"}},
            **group(device={**DEVICE, "inference": "20 ms"}),
            **DENSE,
        },
    ),
    "an edge server's noise is drawn by a number behind those of all clients": (
        "never_there",
        {
            "network": {"topology": "tree", "tiers": [{"name": "edge"}]},
            "aggregation": {
                "edge_servers": {
                    "at": "edge",
                    "device": {"noise": {"cv": 0.3}, "decompression": "10 ms"},
                }
            },
        },
    ),
    "a link that all clients together could not fill has no rows": (
        "never_there",
        {
            "network": {
                "topology": "tree",
                "tiers": [{"name": "edge", "up": "4 Mbps"}],
            },
            **group(count=1, link={"up": "3 Mbps"}),
            **DENSE,
        },
    ),
    "the process that ran a plug-in knows it by the run's copy": (
        "verified",
        {"plugins": ["parts.py"]},
    ),
}
"""What drawn worlds broke, in the smallest world that does, and what few of them
have."""


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found(what):
    law, changes = FOUND[what]
    laws.obey(law, laws.read(law, {**SMALL, **changes}))
