"""Small worlds in which models travel down as changes."""

import engine_worlds  # noqa: F401 (registers its data set)

from simfed.scenario import Scenario

BATCH, RATE, STEPS = 8, 0.05, 2
D = 4 * (12 * 12 + 1)
TOP_K_BYTES = {40: 160 + 50, 200: 800 + 250}
"""K values of 32 bits, and K indices of 10."""

MODES = {
    "synchronous": {"mode": "synchronous"},
    "deadline, drop": {"mode": "deadline", "deadline": "30 ms"},
    "deadline, merge": {"mode": "deadline", "deadline": "30 ms", "late": "merge"},
    "first, drop": {"mode": "first", "over_selection": 0.5},
    "first, merge": {"mode": "first", "over_selection": 0.5, "late": "merge"},
    "buffered": {"mode": "buffered", "buffer": 2, "concurrency": 3},
    "asynchronous": {"mode": "asynchronous", "concurrency": 2},
}


def scenario(mode="synchronous", *, count=3, **changes):
    """Clients of a logistic regression, two of them per round.

    Who has the slower link is last.
    """
    aggregation = MODES[mode]
    per_round = {} if "concurrency" in aggregation else {"clients_per_round": 2}
    times = {"training": "5 ms", "compression": "1 ms", "decompression": "0.5 ms"}
    device = {"profile": "x86-2core-vm", "assume": times}
    link = {"down": "4 Mbps", "latency": "1 ms"}
    groups = [
        {
            "prototype": "only",
            "device": device,
            "link": {**link, "up": f"{2 / (1 + client)} Mbps"},
        }
        for client in range(count)
    ]
    plain = {
        "name": "changes",
        "rounds": 8,
        "seed": 3,
        "method": "fedavg",
        "dataset": {"name": "stripes"},
        "prototypes": {"only": {"model": "logistic-regression"}},
        "clients": groups,
        "training": {"batch_size": BATCH, "learning_rate": RATE, "local_steps": STEPS},
        "policy": {"kind": "uniform", "strategy": "dense"},
        "compression": {"strategies": ["dense"], "index_code": "fixed"},
        "downlink": {"compression": {"k": 200}},
        "participation": per_round,
        "aggregation": aggregation,
        "evaluation": {"every": 4},
    }
    return Scenario.model_validate({**plain, **changes})
