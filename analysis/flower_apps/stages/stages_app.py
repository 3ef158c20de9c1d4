"""A sum in stages, as secure aggregation has them: each costs something else.

All are queries.
"""

import hashlib

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client, server = ClientApp(), ServerApp()
STAGES = ("setup", "share", "mask", "unmask")
NUMBERS = 400_000


@client.query()
def take_part(message: Message, context: Context) -> Message:
    """What a node does in a stage: keys, shares for every other node, masks, what was
    masked.
    """
    stage = str(message.content["config"]["stage"])
    others = int(context.node_config["num-partitions"])
    if stage == "setup":
        hashlib.pbkdf2_hmac("sha256", b"key", b"salt", 20_000)
    elif stage == "share":
        for other in range(others):
            hashlib.pbkdf2_hmac("sha256", b"share", bytes([other % 256]), 6_000)
    elif stage == "mask":
        total = np.zeros(NUMBERS)
        for other in range(others):
            for _ in range(int(context.run_config["sum-repeats"])):
                total += np.random.default_rng(other).standard_normal(NUMBERS)
    else:
        np.random.default_rng(0).standard_normal(NUMBERS)
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """All stages in each round."""
    for _ in range(int(context.run_config["num-server-rounds"])):
        for stage in STAGES:
            content = RecordDict({"config": ConfigRecord({"stage": stage})})
            nodes = list(grid.get_node_ids())
            list(
                grid.send_and_receive(
                    [Message(content, node, "query") for node in nodes]
                )
            )
