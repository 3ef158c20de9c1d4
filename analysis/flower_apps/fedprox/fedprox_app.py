"""FedProx as apps had it before messages: a client class, stragglers, updates that are
clipped.
"""

import numpy as np
import torch
import torch.nn.functional as F
from flwr.client import NumPyClient
from flwr.client.mod import fixedclipping_mod
from flwr.clientapp import ClientApp
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import DifferentialPrivacyClientSideFixedClipping, FedProx
from flwr.serverapp import ServerApp
from torch import nn

ROWS = 8_000


def build_net() -> nn.Module:
    """For images of 14 by 14 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 10)
    )


class Proximal(NumPyClient):
    """As many epochs as the node manages, held back to the server's weights."""

    def __init__(self, context: Context) -> None:
        self.config, node = context.run_config, int(context.node_config["partition-id"])
        rng = torch.Generator().manual_seed(node)
        count = ROWS // int(context.node_config["num-partitions"])
        self.images = torch.randn(count, 1, 14, 14, generator=rng)
        self.classes = (self.images.mean((1, 2, 3)) * 20).long().remainder(10)
        self.epochs = int(self.config["local-epochs"]) * (1 + node % 2)
        self.net = build_net()

    def load(self, parameters) -> None:
        for parameter, came in zip(self.net.parameters(), parameters, strict=True):
            parameter.data = torch.tensor(came)

    def fit(self, parameters, config):
        self.load(parameters)
        start = [p.detach().clone() for p in self.net.parameters()]
        optimizer, batch_size = (
            torch.optim.SGD(self.net.parameters(), lr=0.05),
            int(self.config["batch-size"]),
        )
        for _ in range(self.epochs):
            for batch in torch.randperm(len(self.images)).split(batch_size):
                optimizer.zero_grad()
                loss = F.cross_entropy(
                    self.net(self.images[batch]), self.classes[batch]
                )
                pairs = zip(self.net.parameters(), start, strict=True)
                pull = sum((here - there).square().sum() for here, there in pairs)
                (loss + 0.5 * config["proximal_mu"] * pull).backward()
                optimizer.step()
        return [p.detach().numpy() for p in self.net.parameters()], len(self.images), {}

    def evaluate(self, parameters, config):
        self.load(parameters)
        with torch.no_grad():
            outputs = torch.cat([self.net(part) for part in self.images.split(128)])
        right = (outputs.argmax(1) == self.classes).float().mean().item()
        return (
            F.cross_entropy(outputs, self.classes).item(),
            len(self.images),
            {"accuracy": right},
        )


def server_of(context: Context) -> ServerAppComponents:
    """FedProx, with noise on clipped updates."""
    start = [p.detach().numpy() for p in build_net().parameters()]
    rule = FedProx(
        proximal_mu=float(context.run_config["proximal-mu"]),
        initial_parameters=ndarrays_to_parameters(
            [np.array(values) for values in start]
        ),
    )
    strategy = DifferentialPrivacyClientSideFixedClipping(rule, 0.01, 5.0, 10)
    config = ServerConfig(num_rounds=int(context.run_config["num-server-rounds"]))
    return ServerAppComponents(strategy=strategy, config=config)


client = ClientApp(
    client_fn=lambda context: Proximal(context).to_client(), mods=[fixedclipping_mod]
)
server = ServerApp(server_fn=server_of)
