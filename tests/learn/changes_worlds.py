"""Small worlds in which models travel down as changes, and the same by hand, client by
client.
"""

from __future__ import annotations

import copy

import engine_worlds as tiny
import numpy as np
import torch
import torch.nn.functional as F

from simfed.ground.registry import register
from simfed.ground.seeding import Streams
from simfed.learn.federation import draw_batches, load_federation
from simfed.learn.models import build_model
from simfed.scenario import Scenario

register("dataset", "change-stripes", tiny.dataset, replace=True)

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
    groups = [
        {
            "prototype": "only",
            "device": {
                "profile": "x86-2core-vm",
                "assume": {
                    "training": "5 ms",
                    "compression": "1 ms",
                    "decompression": "0.5 ms",
                },
            },
            "link": {
                "up": (f"{2 / (1 + client)} Mbps"),
                "down": "4 Mbps",
                "latency": "1 ms",
            },
        }
        for client in range(count)
    ]
    plain = {
        "name": "changes",
        "rounds": 8,
        "seed": 3,
        "method": "fedavg",
        "dataset": {"name": "change-stripes"},
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


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class ByHand:
    """Federated averaging whose server sends everybody what they lack.

    Clients hold what they got.
    """

    def __init__(self, made):
        self.streams = Streams(made.seed)
        self.data = load_federation(made, Streams(made.seed))
        self.k = made.downlink.compression.k
        self.model = build_model(
            "logistic-regression",
            self.data.input_shape,
            self.data.classes,
            seed=self.streams.integer("init", "only"),
        )
        self.weights = flat(self.model).double()
        self.error = torch.zeros(D, dtype=torch.float64)
        self.common = self.weights.clone()
        self.sent = []
        self.mine = {}
        self.version_of = {}

    def download(self, client):
        """Bytes, and the client's own copy brought up to date."""
        size = TOP_K_BYTES[self.k]
        version = self.version_of.get(client)
        self.version_of[client] = len(self.sent)
        missed = [] if version is None else self.sent[version:]
        if version is None or len(missed) * size >= 4 * D:
            self.mine[client] = self.common.clone()
            return 4 * D, 0
        for indices, values in missed:
            self.mine[client][indices] += values
        return len(missed) * size, len(missed)

    def train(self, client, round):
        local = copy.deepcopy(self.model)
        torch.nn.utils.vector_to_parameters(
            self.mine[client].float(), local.parameters()
        )
        optimiser = torch.optim.SGD(local.parameters(), lr=RATE)
        rng = self.streams("batch", client, round)
        for batch in draw_batches(rng, self.data.owned[client], BATCH, STEPS):
            at = torch.from_numpy(batch)
            optimiser.zero_grad()
            F.cross_entropy(
                local(self.data.samples(at)), self.data.labels[at]
            ).backward()
            optimiser.step()
        return self.mine[client] - flat(local)

    def merge(self, updates):
        sizes = [len(self.data.owned[client]) for client in updates]
        before = self.weights.clone()
        for (_, update), size in zip(updates.items(), sizes, strict=True):
            self.weights -= size / sum(sizes) * update
        whole = self.weights - before + self.error
        order = np.argsort(-whole.abs().numpy(), kind="stable")[: self.k]
        indices = torch.from_numpy(np.sort(order))
        self.sent.append((indices, whole[indices].clone()))
        self.common[indices] += whole[indices]
        whole[indices] = 0.0
        self.error = whole
