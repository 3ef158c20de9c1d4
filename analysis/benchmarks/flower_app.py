"""The task of `flower.py` in Flower's simulation engine; imports nothing of simfed.

    python flower_app.py TASK.npz      # with this folder on PYTHONPATH

Written for speed: samples are read once per worker process, batches are slices of one tensor, only
the ten clients of a round are asked. The apps live in a module that the workers import; written in
the main script, they would be sent with every message, and the data set with them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

TASK = "FLOWER_APP_TASK"
CLIENTS, PER_ROUND, ROUNDS, EVERY = 1000, 10, 100, 20
BATCH, RATE = 10, 0.03

client_app, server_app = ClientApp(), ServerApp()
accuracy: dict[int, float] = {}


@cache
def task() -> dict[str, Any]:
    """The task's arrays as tensors, read once per process."""
    torch.set_num_threads(1)
    with np.load(os.environ[TASK]) as arrays:
        known: dict[str, Any] = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    known["owned"] = known["owned"].split(known["counts"].tolist())
    return known


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One local epoch of a client."""
    known = task()
    own = known["owned"][int(context.node_config["partition-id"])]
    model = torch.nn.Linear(known["images"].shape[1], 10)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    for batch in own[torch.randperm(len(own))].split(BATCH):
        optimiser.zero_grad()
        F.cross_entropy(model(known["images"][batch]), known["labels"][batch]).backward()
        optimiser.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(own)}),
        }
    )
    return Message(content=content, reply_to=message)


def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord | None:
    """The test set, on the server, every so many rounds."""
    if round == 0 or round % EVERY:
        return None
    known, state = task(), arrays.to_torch_state_dict()
    with torch.no_grad():
        logits = F.linear(known["test_images"], state["weight"], state["bias"])
    accuracy[round] = (logits.argmax(1) == known["test_labels"]).float().mean().item()
    return MetricRecord({"accuracy": accuracy[round]})


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Federated averaging."""
    known = task()
    strategy = FedAvg(
        fraction_train=PER_ROUND / CLIENTS,
        fraction_evaluate=0.0,
        min_train_nodes=PER_ROUND,
        min_available_nodes=CLIENTS,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({"weight": known["weight"], "bias": known["bias"]}),
        num_rounds=ROUNDS,
        evaluate_fn=evaluate,
    )


def main() -> None:
    """All rounds; prints what there is to know as JSON."""
    import flower_app  # the importable twin of this script: what is pickled is its names

    os.environ[TASK] = os.path.abspath(sys.argv[1])
    begin = time.perf_counter()
    run_simulation(
        flower_app.server_app,
        flower_app.client_app,
        num_supernodes=CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": os.cpu_count() or 1, "include_dashboard": False},
        },
    )
    took_s = time.perf_counter() - begin
    print(json.dumps({"rounds_s": took_s, "accuracy": flower_app.accuracy}))


if __name__ == "__main__":
    main()
