"""Ridge regression in NumPy on rows of a table, with mini-batches."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client, server = ClientApp(), ServerApp()
COLUMNS, ROWS = 300, 24_000
START = ArrayRecord([np.zeros(COLUMNS)])


def rows_of(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """A node's rows and their targets."""
    count = ROWS // int(context.node_config["num-partitions"])
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    rows = rng.standard_normal((count, COLUMNS))
    return rows, rows @ np.linspace(-1, 1, COLUMNS) + rng.standard_normal(count)


@client.train()
def train(message: Message, context: Context) -> Message:
    """Steps down the gradient of random batches."""
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    rows, targets = rows_of(context)
    rng = np.random.default_rng(0)
    weights, batch = weights.copy(), int(context.run_config["batch-size"])
    for _ in range(int(context.run_config["local-steps"])):
        for at in np.array_split(
            rng.permutation(len(rows)), max(1, len(rows) // batch)
        ):
            weights -= 0.02 * (
                rows[at].T @ (rows[at] @ weights - targets[at]) / len(at)
            )
    metrics = MetricRecord({"num-examples": len(rows)})
    content = RecordDict({"arrays": ArrayRecord([weights]), "metrics": metrics})
    return Message(content, reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """The mean squared error."""
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    rows, targets = rows_of(context)
    loss = float(np.mean((rows @ weights - targets) ** 2))
    metrics = MetricRecord({"num-examples": len(rows), "loss": loss})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def merge(records: list[ArrayRecord]) -> ArrayRecord:
    """Their mean."""
    lists = [record.to_numpy_ndarrays() for record in records]
    return ArrayRecord([np.mean(arrays, axis=0) for arrays in zip(*lists, strict=True)])


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Rounds of training, then of evaluation, of all nodes."""
    arrays = START
    for _ in range(int(context.run_config["num-server-rounds"])):
        for kind in ("train", "evaluate"):
            content = RecordDict({"arrays": arrays})
            messages = [Message(content, node, kind) for node in grid.get_node_ids()]
            replies = list(grid.send_and_receive(messages))
            if kind == "train":
                arrays = merge([reply.content["arrays"] for reply in replies])
