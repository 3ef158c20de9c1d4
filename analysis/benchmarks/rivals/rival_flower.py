"""Flower's simulation engine, written for speed.

    python rival_flower.py TASK.npz      # with this folder on PYTHONPATH

Samples are read once per worker process, batches are slices of one tensor, only the clients of a
round are asked, as many at a time as there are cores. The apps live in a module that the workers
import; written in the main script, they would be sent with every message, and the data with them.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from rival_task import Rounds, Task, read_task
from rival_torch import accuracy, build, samples
from torch import Tensor, nn

TASK = "RIVAL_TASK"
client_app, server_app = ClientApp(), ServerApp()
reached: list[float] = []
"""The accuracy at the end."""


@cache
def read() -> tuple[Task, nn.Module, Tensor, Tensor]:
    """The task, a module and the samples, once per process."""
    task = read_task(os.environ[TASK])
    return task, build(task), *samples(task)


@cache
def clock() -> Rounds:
    """Of the server's process."""
    return Rounds(read()[0].rounds)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One local epoch of a client."""
    task, model, images, labels = read()
    rows = torch.from_numpy(task.owned[int(context.node_config["partition-id"])])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=task.rate)
    for batch in rows[torch.randperm(len(rows))].split(task.batch):
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(rows)}),
        }
    )
    return Message(content=content, reply_to=message)


def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord | None:
    """Called on the server after every round; the test set is looked at after the last one."""
    clock().after(round)
    task, model, *_ = read()
    if round < task.rounds:
        return None
    model.load_state_dict(arrays.to_torch_state_dict())
    reached.append(accuracy(model, task))
    return MetricRecord({"accuracy": reached[-1]})


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    task, model, *_ = read()
    strategy = FedAvg(
        fraction_train=task.per_round / task.clients,
        fraction_evaluate=0.0,
        min_train_nodes=task.per_round,
        min_available_nodes=task.clients,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=task.rounds,
        evaluate_fn=evaluate,
    )


def main() -> None:
    import rival_flower as app  # the importable twin of this script: what is pickled is its names

    os.environ[TASK] = os.path.abspath(sys.argv[1])
    settings: dict[str, Any] = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": os.cpu_count() or 1, "include_dashboard": False},
    }
    run_simulation(
        app.server_app,
        app.client_app,
        num_supernodes=read_task(os.environ[TASK]).clients,
        backend_config=settings,
    )
    app.clock().report(app.reached[-1], "flwr", "ray", "torch")


if __name__ == "__main__":
    main()
