"""What the server does."""

from digits.task import Net, test
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Federated averaging, the global model tested after each round."""
    config = context.run_config
    strategy = FedAvg(
        fraction_train=float(config["fraction-train"]),
        fraction_evaluate=0.0,
        min_available_nodes=10,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The global model on the test set."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    accuracy, loss = test(net)
    return MetricRecord({"accuracy": accuracy, "loss": loss})
