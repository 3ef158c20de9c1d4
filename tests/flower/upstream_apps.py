"""Ten small apps of as many kinds, built as Flower's examples and baselines are, on
data at hand.

Each is a pair of apps; what its server comes to is appended to `finals`. Nodes sum in
64 bits, as Flower sums in the order of arrival.
"""

from __future__ import annotations

import random
import time
from functools import cache
from typing import Any

import flower_apps as apps
import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg as ClassicFedAvg
from flwr.server.strategy import FedProx as ClassicFedProx
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    FedAvg,
)

finals = apps.finals
NODES, ROUNDS = 4, 2
EVERYBODY = {"min_train_nodes": NODES, "min_available_nodes": NODES}


@cache
def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of one of the tables that come with scikit-learn, in a fixed
    order.
    """
    from sklearn import datasets

    data = getattr(datasets, f"load_{name}")()
    order = np.random.default_rng(0).permutation(len(data.target))
    return np.asarray(data.data, np.float64)[order], data.target[order]


def rows(name: str, context: Any) -> tuple[np.ndarray, np.ndarray]:
    """A node's rows of a table: later nodes have more of them."""
    inputs, targets = table(name)
    node = int(context.node_config["partition-id"])
    ends = np.cumsum([0, 10, 20, 30, 40])
    part = slice(ends[node], ends[node + 1])
    return inputs[part], targets[part]


def answer(message: Any, arrays: Any = None, **metrics: float) -> Message:
    """A reply with arrays and metrics."""
    content = {} if arrays is None else {"arrays": ArrayRecord(list(arrays))}
    return Message(
        RecordDict({**content, "metrics": MetricRecord(metrics)}), reply_to=message
    )


def arrays_of(content: Any) -> list[np.ndarray]:
    return content["arrays"].to_numpy_ndarrays()


def ask(grid: Any, kind: str, contents: Any) -> list[Any]:
    """The replies of all nodes to a content each, by partition."""
    while len(nodes := list(grid.get_node_ids())) < NODES:
        time.sleep(0.1)
    replies = grid.send_and_receive(
        [
            Message(content, node, kind)
            for node, content in zip(nodes, contents, strict=True)
        ]
    )
    return sorted(
        (reply.content for reply in replies if reply.has_content()),
        key=lambda content: content["metrics"]["node"],
    )


# ---- scikit-learn: logistic regression, warm-started ---------------------------------

sklearn_client = ClientApp()


@sklearn_client.train()
def fit_logistic(message: Message, context: Any) -> Message:
    import warnings

    from sklearn.linear_model import LogisticRegression

    inputs, labels = rows("iris", context)
    model = LogisticRegression(max_iter=2, warm_start=True)
    model.classes_ = np.arange(3)
    model.coef_, model.intercept_ = (np.array(a) for a in arrays_of(message.content))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is not to converge within a round
        model.fit(np.vstack([inputs, np.eye(3, 4)]), np.append(labels, [0, 1, 2]))
    return answer(
        message, (model.coef_, model.intercept_), **{"num-examples": len(inputs)}
    )


sklearn_server = ServerApp()


@sklearn_server.main()
def average_logistic(grid: Any, context: Any) -> None:
    strategy = FedAvg(**EVERYBODY, fraction_evaluate=0.0)
    start = ArrayRecord([np.zeros((3, 4)), np.zeros(3)])
    finals.append(
        strategy.start(grid, start, num_rounds=ROUNDS).arrays.to_numpy_ndarrays()
    )


# ---- NumPy: ridge regression, a server without a strategy ----------------------------

numpy_client = ClientApp()


@numpy_client.train()
def descend(message: Message, context: Any) -> Message:
    inputs, targets = rows("diabetes", context)
    (weights,) = arrays_of(message.content)
    gradient = inputs.T @ (inputs @ weights - targets) + 0.1 * weights
    node = context.node_config["partition-id"]
    return answer(message, (gradient,), node=node, num_examples=len(inputs))


numpy_server = ServerApp()


@numpy_server.main()
def descend_together(grid: Any, context: Any) -> None:
    weights = np.zeros(10)
    for _ in range(ROUNDS):
        content = RecordDict({"arrays": ArrayRecord([weights])})
        replies = ask(grid, "train", [content] * NODES)
        weights = weights - 0.5 * sum(arrays_of(reply)[0] for reply in replies)
    finals.append([weights])


# ---- tabular: moments are asked for first, then a net with an embedding is trained ---

tabular_client = ClientApp()


@tabular_client.query("moments")
def moments(message: Message, context: Any) -> Message:
    inputs, _ = rows("wine", context)
    node = context.node_config["partition-id"]
    sums = (inputs.sum(0), np.square(inputs).sum(0))
    return answer(message, sums, node=node, num_examples=len(inputs))


class Tabular(torch.nn.Module):
    """The first column in ten classes, embedded, beside all others."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, 4)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        classes = (inputs[:, 0] * 2 + 5).long().clamp(0, 9)
        return self.layers(torch.cat([self.embed(classes), inputs[:, 1:]], dim=1))


def tabular_net() -> Tabular:
    torch.manual_seed(3)
    return Tabular().double()


@tabular_client.train()
def train_tabular(message: Message, context: Any) -> Message:
    inputs, labels = rows("wine", context)
    mean, sd = message.content["moments"].to_numpy_ndarrays()
    inputs, labels = torch.tensor((inputs - mean) / sd), torch.tensor(labels)
    net = tabular_net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for batch in torch.arange(len(inputs)).split(10):
        optimizer.zero_grad()
        F.cross_entropy(net(inputs[batch]), labels[batch]).backward()
        optimizer.step()
    metrics = MetricRecord(
        {"num-examples": len(inputs), "node": context.node_config["partition-id"]}
    )
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


tabular_server = ServerApp()


@tabular_server.main()
def train_table(grid: Any, context: Any) -> None:
    replies = ask(grid, "query.moments", [RecordDict()] * NODES)
    count = sum(reply["metrics"]["num_examples"] for reply in replies)
    first, second = (
        sum(sums) / count for sums in zip(*map(arrays_of, replies), strict=True)
    )
    scale = ArrayRecord([first, np.sqrt(second - first**2)])
    arrays = ArrayRecord(tabular_net().state_dict())
    for _ in range(ROUNDS):
        content = RecordDict({"arrays": arrays, "moments": scale})
        replies = ask(grid, "train", [content] * NODES)
        shares = [reply["metrics"]["num-examples"] for reply in replies]
        states = [reply["arrays"].to_torch_state_dict() for reply in replies]
        mean = {
            key: sum(s * state[key] for s, state in zip(shares, states, strict=True))
            / sum(shares)
            for key in states[0]
        }
        arrays = ArrayRecord(mean)
    finals.append([array.numpy() for array in arrays.values()])


# ---- vertical: every node has some columns of all rows, the server has the labels ----

vertical_client = ClientApp()


def bottom(context: Any) -> tuple[torch.nn.Linear, torch.Tensor]:
    """A node's part of the net, as its state has it, and its columns."""
    inputs, _ = table("breast_cancer")
    node = int(context.node_config["partition-id"])
    columns = torch.tensor(inputs[:64, node::NODES])
    columns = (columns - columns.mean(0)) / columns.std(0)
    torch.manual_seed(node)
    net = torch.nn.Linear(columns.shape[1], 4).double()
    if "net" in context.state:
        net.load_state_dict(context.state["net"].to_torch_state_dict())
    return net, columns


@vertical_client.query("embed")
def embed(message: Message, context: Any) -> Message:
    net, columns = bottom(context)
    with torch.no_grad():
        embedding = net(columns).numpy()
    return answer(message, (embedding,), node=context.node_config["partition-id"])


@vertical_client.train("apply")
def apply(message: Message, context: Any) -> Message:
    net, columns = bottom(context)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(columns).backward(torch.tensor(arrays_of(message.content)[0]))
    optimizer.step()
    context.state["net"] = ArrayRecord(net.state_dict())
    return answer(message, node=context.node_config["partition-id"])


vertical_server = ServerApp()


@vertical_server.main()
def learn_vertically(grid: Any, context: Any) -> None:
    labels = torch.tensor(table("breast_cancer")[1][:64])
    torch.manual_seed(9)
    head = torch.nn.Linear(4 * NODES, 2).double()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(ROUNDS + 1):
        replies = ask(grid, "query.embed", [RecordDict()] * NODES)
        parts = [torch.tensor(arrays_of(r)[0]).requires_grad_() for r in replies]
        optimizer.zero_grad()
        F.cross_entropy(head(torch.cat(parts, dim=1)), labels).backward()
        optimizer.step()
        gradients = [
            RecordDict({"arrays": ArrayRecord([part.grad.numpy()])}) for part in parts
        ]
        # a node is found by its partition only through its replies
        nodes = {
            r["metrics"]["node"]: g for r, g in zip(replies, gradients, strict=True)
        }
        ask(grid, "train.apply", _by_node(grid, nodes))
    finals.append([p.detach().numpy() for p in head.parameters()])


def _by_node(grid: Any, by_partition: dict[int, Any]) -> list[Any]:
    """What is for a partition, in the order in which the grid lists the nodes."""
    nodes = list(grid.get_node_ids())
    partitions = {}
    for reply in grid.send_and_receive(
        [Message(RecordDict(), n, "query.who") for n in nodes]
    ):
        partitions[reply.metadata.src_node_id] = reply.content["metrics"]["node"]
    return [by_partition[partitions[node]] for node in nodes]


@vertical_client.query("who")
def who(message: Message, context: Any) -> Message:
    return answer(message, node=context.node_config["partition-id"])


# ---- legacy: FedProx with stragglers, a client class ---------------------------------


class Proximal(apps.Classic):
    """As many passes as the node manages, held back to the server's weights."""

    def __init__(self, partition: int) -> None:
        super().__init__(partition)
        self.passes = 1 + partition % 2

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> Any:
        self._put(parameters)
        start = [p.detach().clone() for p in self.net.parameters()]
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        for _ in range(self.passes):
            for batch in torch.arange(len(self.inputs)).split(10):
                optimizer.zero_grad()
                loss = F.cross_entropy(self.net(self.inputs[batch]), self.labels[batch])
                pairs = zip(self.net.parameters(), start, strict=True)
                pull = sum((here - there).square().sum() for here, there in pairs)
                (loss + 0.5 * float(config["proximal_mu"]) * pull).backward()
                optimizer.step()
        return [p.detach().numpy() for p in self.net.parameters()], len(self.inputs), {}


fedprox_client = ClientApp(
    client_fn=lambda context: Proximal(
        int(context.node_config["partition-id"])
    ).to_client()
)


def _start() -> Any:
    return ndarrays_to_parameters(
        [p.detach().numpy() for p in apps.model().parameters()]
    )


def _keep_last(number: int, arrays: list[Any], config: dict[str, Any]) -> None:
    if number == ROUNDS:
        finals.append([np.array(values) for values in arrays])


CLASSIC = {
    "min_fit_clients": NODES,
    "min_evaluate_clients": NODES,
    "min_available_clients": NODES,
    "evaluate_fn": _keep_last,
}
fedprox_server = ServerApp(
    server_fn=lambda context: ServerAppComponents(
        strategy=ClassicFedProx(
            proximal_mu=0.3, initial_parameters=_start(), **CLASSIC
        ),
        config=ServerConfig(num_rounds=ROUNDS),
    )
)

# ---- secure aggregation, of which one node drops out after keys were shared ----------


class DropsOut(NumPyClient):
    """Moves the weights by its own number; the last node fails in the second round."""

    def __init__(self, partition: int) -> None:
        self.partition = partition

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> Any:
        if self.partition == NODES - 1 and parameters[0].any():
            raise ConnectionError("the battery is flat")
        return [values + 0.5 + 0.1 * self.partition for values in parameters], 10, {}


secagg_client = ClientApp(
    client_fn=lambda context: DropsOut(
        int(context.node_config["partition-id"])
    ).to_client(),
    mods=[secaggplus_mod],
)
secagg_server = ServerApp()


@secagg_server.main()
def aggregate_securely(grid: Any, context: Any) -> None:
    while len(list(grid.get_node_ids())) < NODES:
        time.sleep(0.1)
    strategy = ClassicFedAvg(
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters([np.zeros(8, np.float32)]),
        **CLASSIC,
    )
    legacy = LegacyContext(
        context, config=ServerConfig(num_rounds=ROUNDS), strategy=strategy
    )
    workflow = SecAggPlusWorkflow(
        num_shares=3, reconstruction_threshold=2, max_weight=100
    )
    DefaultWorkflow(fit_workflow=workflow)(grid, legacy)


# ---- mods of one's own: one makes updates sparse, one counts and times ---------------


def sparse(message: Message, context: Any, call_next: Any) -> Message:
    """Of what a node sends only the largest half moves; the rest is as it came."""
    came = arrays_of(message.content)
    reply = call_next(message, context)
    if reply.has_content() and "arrays" in reply.content:
        sent = []
        for old, new in zip(came, arrays_of(reply.content), strict=True):
            moved = np.abs(new - old)
            sent.append(np.where(moved >= np.median(moved), new, old))
        keys = list(reply.content["arrays"])
        state = {
            key: torch.tensor(values) for key, values in zip(keys, sent, strict=True)
        }
        reply.content["arrays"] = ArrayRecord(state)
    return reply


def timed(message: Message, context: Any, call_next: Any) -> Message:
    """What the node did per second, and how often it was asked."""
    began = time.perf_counter()
    reply = call_next(message, context)
    seconds = time.perf_counter() - began
    asked = context.state.get("asked", {"times": 0})["times"] + 1
    context.state["asked"] = MetricRecord({"times": asked})
    metrics = reply.content["metrics"]
    metrics["samples_per_s"], metrics["asked"] = (
        metrics["num-examples"] / seconds,
        asked,
    )
    return reply


mods_client = ClientApp(mods=[timed, sparse])
mods_client.train()(apps.train)
mods_server = ServerApp()


@mods_server.main()
def average_sparse(grid: Any, context: Any) -> None:
    strategy = FedAvg(**EVERYBODY, fraction_evaluate=0.0)
    start = ArrayRecord(apps.model().state_dict())
    result = strategy.start(
        grid, start, num_rounds=ROUNDS, train_config=ConfigRecord({"proximal-mu": 0.0})
    )
    asked = result.train_metrics_clientapp[ROUNDS]["asked"]
    finals.append([*(a.numpy() for a in result.arrays.values()), np.asarray(asked)])


# ---- differential privacy: nodes clip, the server adds noise -------------------------

private_client = ClientApp(mods=[fixedclipping_mod])
private_client.train()(apps.train)
private_server = ServerApp()


@private_server.main()
def average_privately(grid: Any, context: Any) -> None:
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    strategy = DifferentialPrivacyClientSideFixedClipping(
        FedAvg(**EVERYBODY, fraction_evaluate=0.0),
        noise_multiplier=0.1,
        clipping_norm=0.05,
        num_sampled_clients=NODES,
    )
    result = strategy.start(
        grid,
        ArrayRecord(apps.model().state_dict()),
        num_rounds=ROUNDS,
        train_config=ConfigRecord({"proximal-mu": 0.0}),
    )
    finals.append([array.numpy() for array in result.arrays.values()])


APPS = {
    "pytorch": (apps.fedavg, apps.torch_client),
    "scikit-learn": (sklearn_server, sklearn_client),
    "xgboost": (apps.bagging, apps.trees_client),
    "numpy": (numpy_server, numpy_client),
    "tabular": (tabular_server, tabular_client),
    "vertical": (vertical_server, vertical_client),
    "secure-aggregation": (secagg_server, secagg_client),
    "legacy-fedprox": (fedprox_server, fedprox_client),
    "mods": (mods_server, mods_client),
    "differential-privacy": (private_server, private_client),
}
