"""Random forests of scikit-learn, of which the server keeps the best.

Replies name no size.
"""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from sklearn.ensemble import RandomForestClassifier

client, server = ClientApp(), ServerApp()
COLUMNS, ROWS = 20, 12_000
START = ArrayRecord([np.zeros(COLUMNS)])


def rows_of(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """A node's rows and their classes."""
    count = ROWS // int(context.node_config["num-partitions"])
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    rows = rng.standard_normal((count, COLUMNS))
    return rows, (rows[:, 0] * rows[:, 1] > 0).astype(int)


@client.train()
def train(message: Message, context: Context) -> Message:
    """A forest on the node's rows; its importances travel."""
    rows, classes = rows_of(context)
    forest = RandomForestClassifier(int(context.run_config["trees"]), n_jobs=1).fit(
        rows, classes
    )
    metrics = MetricRecord({"accuracy": float(forest.score(rows, classes))})
    content = RecordDict(
        {"arrays": ArrayRecord([forest.feature_importances_]), "metrics": metrics}
    )
    return Message(content, reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """How far the mean importances are from the node's correlations."""
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    rows, classes = rows_of(context)
    correlations = np.abs(np.corrcoef(rows.T, classes)[-1, :-1])
    metrics = MetricRecord({"loss": float(np.abs(correlations - weights).mean())})
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
