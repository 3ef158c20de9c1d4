"""Apps as Flower's users write them.

Flower's own engine imports them by name in its workers.
"""

from __future__ import annotations

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
from flwr.serverapp.strategy import FedAvg

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
    """Two passes over the node's data in order."""
    torch.set_num_threads(1)
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs, labels = samples(int(context.node_config["partition-id"]))
    for batch in torch.arange(len(inputs)).split(10) * 2:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(inputs[batch]), labels[batch])
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


fedavg = ServerApp()


@fedavg.main()
def average(grid: Any, context: Any) -> None:
    """Plays a strategy from one start and keeps the final arrays."""
    # Flower's engine begins before all nodes are there: `min_train_nodes` lets it ask
    # all of them from the first round on
    strategy = FedAvg(min_train_nodes=4, min_available_nodes=4, fraction_evaluate=0.5)
    start = ArrayRecord(model().state_dict())
    result = strategy.start(grid, start, num_rounds=ROUNDS)
    finals.append([array.numpy() for array in result.arrays.values()])


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
