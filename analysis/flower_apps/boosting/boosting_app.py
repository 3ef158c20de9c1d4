"""Boosted trees of XGBoost, whose model grows with every round."""

import numpy as np
import xgboost
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client, server = ClientApp(), ServerApp()
COLUMNS, ROWS = 20, 40_000
START = ArrayRecord([np.frombuffer(b"", dtype=np.uint8)])
SETTINGS = {
    "objective": "binary:logistic",
    "max_depth": 6,
    "nthread": 1,
    "tree_method": "hist",
}


def rows_of(context: Context) -> xgboost.DMatrix:
    """A node's rows and their classes."""
    count = ROWS // int(context.node_config["num-partitions"])
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    rows = rng.standard_normal((count, COLUMNS))
    return xgboost.DMatrix(rows, label=rows[:, 0] * rows[:, 1] > 0)


def load(message: Message) -> xgboost.Booster | None:
    """The model so far; None before the first tree."""
    raw = message.content["arrays"].to_numpy_ndarrays()[0].tobytes()
    if not raw:
        return None
    booster = xgboost.Booster(params=SETTINGS)
    booster.load_model(bytearray(raw))
    return booster


@client.train()
def train(message: Message, context: Context) -> Message:
    """More trees upon those that there are."""
    data = rows_of(context)
    trees = int(context.run_config["local-epochs"])
    booster = xgboost.train(SETTINGS, data, trees, xgb_model=load(message))
    raw = np.frombuffer(booster.save_raw("ubj"), dtype=np.uint8)
    metrics = MetricRecord({"num-examples": data.num_row()})
    content = RecordDict({"arrays": ArrayRecord([raw]), "metrics": metrics})
    return Message(content, reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """The share of the node's rows that the model gets wrong."""
    data, booster = rows_of(context), load(message)
    wrong = (booster.predict(data) > 0.5) != data.get_label()
    metrics = MetricRecord(
        {"num-examples": data.num_row(), "loss": float(wrong.mean())}
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def merge(records: list[ArrayRecord]) -> ArrayRecord:
    """The model of the first node, which the next round goes on with."""
    return records[0]


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
