"""SecAgg+ as Flower has it: four stages a round, and a node that drops out before the
last one.
"""

import numpy as np
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

COLUMNS, ROWS, NUMBERS = 100, 40_000, 100_000


class Regression(NumPyClient):
    """Steps down a gradient.

    What is sent has more numbers than the rows have columns.
    """

    def __init__(self, partition: int, nodes: int, steps: int) -> None:
        self.drops_out, self.steps = partition == nodes - 1, steps
        rng = np.random.default_rng(partition)
        self.rows = rng.standard_normal((ROWS // nodes, COLUMNS))
        self.targets = self.rows @ np.linspace(-1, 1, COLUMNS)

    def fit(self, parameters, config):
        if self.drops_out:
            raise ConnectionError("the battery is flat")
        weights = parameters[0].copy()
        for _ in range(self.steps):
            errors = self.rows @ weights[:COLUMNS] - self.targets
            weights[:COLUMNS] -= 0.1 * self.rows.T @ errors / len(errors)
        return [weights], len(self.rows), {}


def client_of(context: Context):
    """A node's client."""
    config, steps = context.node_config, int(context.run_config["local-steps"])
    return Regression(
        int(config["partition-id"]), int(config["num-partitions"]), steps
    ).to_client()


client, server = ClientApp(client_fn=client_of, mods=[secaggplus_mod]), ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Federated averaging of sums that nobody sees the parts of."""
    nodes = len(list(grid.get_node_ids()))
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=nodes,
        min_available_clients=nodes,
        initial_parameters=ndarrays_to_parameters([np.zeros(NUMBERS, np.float32)]),
    )
    rounds = ServerConfig(num_rounds=int(context.run_config["num-server-rounds"]))
    workflow = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.5)
    DefaultWorkflow(fit_workflow=workflow)(
        grid, LegacyContext(context, rounds, strategy)
    )
