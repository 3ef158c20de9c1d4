"""Sizes whose names say nothing of them, numbers that size nothing, a child that
evaluates.
"""

import os

import numpy as np
import xgboost
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client, server = ClientApp(), ServerApp()
COLUMNS, ROWS = 20, 30_000


def rows_of(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """A node's rows and their classes."""
    count = ROWS // int(context.node_config["num-partitions"])
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    rows = rng.standard_normal((count, COLUMNS))
    return rows, (rows[:, 0] * rows[:, 1] > 0).astype(int)


@client.train()
def train(message: Message, context: Context) -> Message:
    """As many forests as there are local rounds, on all rows but the tested ones."""
    config = context.run_config
    rows, classes = rows_of(context)
    count = int(len(rows) * (1 - config["test-fraction"]))
    data = xgboost.DMatrix(rows[:count], label=classes[:count])
    settings = {
        "max_depth": int(config["params.max-depth"]),
        "eta": config["learning-rate"],
        "min_child_weight": config["min-rows"],
        "seed": config["random-seed"],
        "nthread": 1,
        "tree_method": "hist",
    }
    for _ in range(int(config["num-local-round"])):
        xgboost.train(settings, data, int(config["max-trees"]))
    arrays, metrics = ArrayRecord([np.zeros(9)]), MetricRecord({"num-examples": count})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Sort the tested rows in a process of its own."""
    rows, _ = rows_of(context)
    count = int(len(rows) * context.run_config["test-fraction"])
    child = os.fork()
    if not child:
        for _ in range(30):
            np.sort(rows[:count], axis=0)
        os._exit(0)
    os.waitpid(child, 0)
    metrics = MetricRecord({"num-examples": count, "loss": 0.5})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Rounds of training and evaluation on all nodes."""
    for _ in range(int(context.run_config["num-server-rounds"])):
        for kind in ("train", "evaluate"):
            content = RecordDict({"arrays": ArrayRecord([np.zeros(9)])})
            list(
                grid.send_and_receive(
                    [Message(content, node, kind) for node in grid.get_node_ids()]
                )
            )
