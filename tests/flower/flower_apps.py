"""Apps as Flower's users write them.

Flower's own engine imports them by name in its workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg as ClassicFedAvg
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx, FedXgbBagging

FEATURES, CLASSES, SAMPLES = 20, 3, 40
ROUNDS = 3

finals: list[Any] = []
"""What the server apps of this module came to, one after another."""


def samples(partition: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A node's data."""
    rng = torch.Generator().manual_seed(partition)
    inputs = torch.randn(
        SAMPLES + partition, FEATURES, generator=rng, dtype=torch.float64
    )
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0.5).long()


def model() -> torch.nn.Module:
    torch.manual_seed(7)
    return (
        torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 16), torch.nn.ReLU(), torch.nn.Linear(16, CLASSES)
        ).double()
    )  # Flower sums in the order of arrival, which shows in the last digits of 32 bits


torch_client = ClientApp()


@torch_client.train()
def train(message: Message, context: Any) -> Message:
    """Two passes over the node's data in order, with the proximal term that the server
    asks.
    """
    torch.set_num_threads(1)
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    mu = float(message.content["config"].get("proximal-mu", 0.0))
    start = [p.detach().clone() for p in net.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs, labels = samples(int(context.node_config["partition-id"]))
    for batch in torch.arange(len(inputs)).split(10) * 2:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(inputs[batch]), labels[batch])
        for here, there in zip(net.parameters(), start, strict=True):
            loss = loss + 0.5 * mu * (here - there).square().sum()
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(inputs), "train_loss": loss.item()})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@torch_client.evaluate()
def evaluate(message: Message, context: Any) -> Message:
    """Accuracy on the node's data."""
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, labels = samples(int(context.node_config["partition-id"]))
    with torch.no_grad():
        accuracy = (net(inputs).argmax(1) == labels).float().mean().item()
    metrics = MetricRecord({"num-examples": len(inputs), "eval_acc": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def strategy_app(make: Callable[[], Any]) -> ServerApp:
    """A server app that plays a strategy from one start and keeps the final arrays."""
    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        result = make().start(
            grid, ArrayRecord(model().state_dict()), num_rounds=ROUNDS
        )
        finals.append([array.numpy() for array in result.arrays.values()])

    return app


# Flower's engine begins before all nodes are there: `min_train_nodes` lets it ask all
# of them from the first round on
fedavg = strategy_app(
    lambda: FedAvg(min_train_nodes=4, min_available_nodes=4, fraction_evaluate=0.5)
)
fedprox = strategy_app(
    lambda: FedProx(min_train_nodes=4, min_available_nodes=4, proximal_mu=0.5)
)
fedadam = strategy_app(
    lambda: FedAdam(min_train_nodes=4, min_available_nodes=4, eta=0.05)
)

asynchronous = ServerApp()


@asynchronous.main()
def mix(grid: Any, context: Any) -> None:
    """Push and pull: each reply is mixed in by itself, its node asked again.

    By partition, so that what comes out does not hang on who is first.
    """
    import time

    arrays = ArrayRecord(model().state_dict())
    while len(list(grid.get_node_ids())) < 4:
        time.sleep(0.1)
    nodes = sorted(grid.get_node_ids())
    weights: dict[int, ArrayRecord] = dict.fromkeys(nodes, arrays)
    left = dict.fromkeys(nodes, ROUNDS)
    waiting: set[str] = set()
    for node in nodes:
        content = RecordDict({"arrays": weights[node], "config": _config()})
        waiting |= set(grid.push_messages([Message(content, node, "train")]))
    while waiting:
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            node = reply.metadata.src_node_id
            old, new = weights[node], reply.content["arrays"]
            mixed = {k: 0.5 * (old[k].numpy() + new[k].numpy()) for k in old}
            weights[node] = ArrayRecord({k: _array(v) for k, v in mixed.items()})
            left[node] -= 1
            if left[node]:
                content = RecordDict({"arrays": weights[node], "config": _config()})
                waiting |= set(grid.push_messages([Message(content, node, "train")]))
        time.sleep(0.1)
    sums = sum(
        np.concatenate([a.numpy().ravel() for a in w.values()])
        for w in weights.values()
    )
    finals.append([np.asarray(sums)])


def _config() -> Any:
    from flwr.app import ConfigRecord

    return ConfigRecord({"proximal-mu": 0.0})


def _array(values: Any) -> Any:
    from flwr.app import Array

    return Array(np.asarray(values))


# ---- as written before messages: a client class, a strategy of `flwr.server.strategy`


class Classic(NumPyClient):
    """One pass over the node's data."""

    def __init__(self, partition: int) -> None:
        self.inputs, self.labels = samples(partition)
        self.net = model()

    def _put(self, arrays: list[Any]) -> None:
        for parameter, values in zip(self.net.parameters(), arrays, strict=True):
            parameter.data = torch.from_numpy(np.array(values))

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> Any:
        """Steps on batches in order."""
        torch.set_num_threads(1)
        self._put(parameters)
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        for batch in torch.arange(len(self.inputs)).split(10):
            optimizer.zero_grad()
            F.cross_entropy(self.net(self.inputs[batch]), self.labels[batch]).backward()
            optimizer.step()
        return [p.detach().numpy() for p in self.net.parameters()], len(self.inputs), {}

    def evaluate(self, parameters: list[Any], config: dict[str, Any]) -> Any:
        """Loss and accuracy on the node's data."""
        self._put(parameters)
        with torch.no_grad():
            outputs = self.net(self.inputs)
        right = (outputs.argmax(1) == self.labels).double().mean().item()
        loss = F.cross_entropy(outputs, self.labels).item()
        return loss, len(self.inputs), {"accuracy": right}


classic_client = ClientApp(
    client_fn=lambda context: Classic(
        int(context.node_config["partition-id"])
    ).to_client()
)


def _classic_server(context: Any) -> ServerAppComponents:
    strategy = ClassicFedAvg(
        min_fit_clients=4,
        min_evaluate_clients=4,
        min_available_clients=4,
        initial_parameters=ndarrays_to_parameters(
            [p.detach().numpy() for p in model().parameters()]
        ),
        evaluate_fn=lambda number, arrays, config: _kept(number, arrays),
    )
    return ServerAppComponents(
        strategy=strategy, config=ServerConfig(num_rounds=ROUNDS)
    )


def _kept(number: int, arrays: list[Any]) -> None:
    if number == ROUNDS:
        finals.append([np.array(values) for values in arrays])


classic = ServerApp(server_fn=_classic_server)


# ---- trees ---------------------------------------------------------------------------

trees_client = ClientApp()


@trees_client.train()
def grow(message: Message, context: Any) -> Message:
    """One more tree on the node's data, upon all that there are."""
    import xgboost

    inputs, labels = samples(int(context.node_config["partition-id"]))
    data = xgboost.DMatrix(inputs.numpy(), label=(labels > 0).numpy())
    parameters = {
        "objective": "binary:logistic",
        "max_depth": 3,
        "eta": 0.3,
        "nthread": 1,
    }
    before = message.content["arrays"]["0"].numpy().tobytes()
    if before:
        booster = xgboost.Booster(params=parameters)
        booster.load_model(bytearray(before))
        booster.update(data, booster.num_boosted_rounds())
        count = booster.num_boosted_rounds()
        booster = booster[count - 1 : count]
    else:
        booster = xgboost.train(parameters, data, num_boost_round=1)
    raw = np.frombuffer(booster.save_raw("json"), dtype=np.uint8)
    number = int(context.node_config["partition-id"])
    metrics = MetricRecord({"num-examples": len(inputs), "partition": number})
    content = RecordDict({"arrays": ArrayRecord([raw]), "metrics": metrics})
    return Message(content, reply_to=message)


class SortedBagging(FedXgbBagging):
    """Flower's bagging, with the trees of a round in the order of the partitions: its
    own order is that of arrival, in which no two runs of its engine are alike.
    """

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        def number(reply: Message) -> float:
            return float(reply.content["metrics"]["partition"])

        return super().aggregate_train(server_round, sorted(replies, key=number))


bagging = ServerApp()


@bagging.main()
def bag(grid: Any, context: Any) -> None:
    strategy = SortedBagging(
        min_train_nodes=4, min_available_nodes=4, fraction_evaluate=0.0
    )
    nothing = ArrayRecord([np.frombuffer(b"", dtype=np.uint8)])
    result = strategy.start(grid, nothing, num_rounds=ROUNDS)
    finals.append([result.arrays["0"].numpy()])
