"""Federated averaging beside FedJAX and pfl-research, in one process on one core.

    pip install fedjax pfl              # beside simfed, in an environment of its own
    python analysis/benchmarks/peers.py # two jobs, a quarter of an hour
    python analysis/benchmarks/peers.py --write  # and the table of docs/speed.md,
    # once with and once without the compiled layers (simfed/native/*.so) for LeNet-5

The jobs are those of `learning.py fedavg`: ten of 1,000 clients with logistic
regression, ten of 100 with LeNet-5, an epoch of SGD each. All four programs play blocks
of rounds in turn on one core with one thread, so that they meet the same machine; each
draws its own clients and batches, of which there are equally many. Reported is the
processor time of a round, the median of the blocks. Data is made up, which takes the
same time, unless `simfed data get mnist` has fetched it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import learning
from pages import markdown, write_page

from simfed.ground.seeding import Streams
from simfed.learn.federation import Federation
from simfed.learn.models import build_model, plain
from simfed.learn.plain import plain_rounds
from simfed.native import layers
from simfed.scenario import Scenario

ROWS = Path(__file__).with_name("peers_rows.csv")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "speed.md"
JOBS = {"logistic-regression": 20, "lenet5": 1}
"""Model → rounds of a block."""
KEYS = ["model", "compiled"]
Play = Callable[[int], object]
"""Plays so many further rounds."""


def play_simfed(made: Scenario, data: Federation) -> Play:
    """Return simfed's learning side, without a clock."""
    streams = Streams(made.seed)
    rounds = plain_rounds(made, learning.workload(made, streams, data), streams)
    return lambda times: [next(rounds) for _ in range(times)]


def play_loop(made: Scenario, data: Federation) -> Play:
    """Return the plain PyTorch loop."""
    rounds = map(learning.AveragingLoop(made, Streams(made.seed), data).round, count(1))
    return lambda times: [next(rounds) for _ in range(times)]


def read_owners(data: Federation) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return each client's normalised images and labels."""
    return [data.at(torch.from_numpy(np.asarray(rows))) for rows in data.owned]


def play_pfl(made: Scenario, data: Federation) -> Play:
    """Return pfl-research's simulation, whose model is the loop's."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    [(name, prototype)] = made.prototypes.items()
    seed = Streams(made.seed).integer("init", name)
    net: Any = plain(build_model(prototype, data.input_shape, data.classes, seed=seed))

    def loss(images: torch.Tensor, labels: torch.Tensor, eval: bool = False) -> Any:
        net.eval() if eval else net.train()
        return torch.nn.functional.cross_entropy(net(images), labels)

    net.loss, net.metrics = loss, lambda *_, **__: {}
    owners = read_owners(data)
    users = FederatedDataset(
        lambda user: Dataset(list(owners[user]), user_id=str(user)),
        get_user_sampler("random", range(len(owners))),
    )
    model = PyTorchModel(
        net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)
    )
    backend = SimulatedBackend(training_data=users, val_data=users)
    training = made.training
    steps = NNTrainHyperParams(
        local_num_epochs=training.local_epochs,
        local_learning_rate=training.learning_rate,
        local_batch_size=training.batch_size,
    )

    def play(times: int) -> None:
        settings = NNAlgorithmParams(
            central_num_iterations=times,
            evaluation_frequency=10**6,
            train_cohort_size=made.participation.clients_per_round,
            val_cohort_size=0,
        )
        FederatedAveraging().run(
            settings, backend, model, steps, send_metrics_to_platform=False
        )

    return play


def play_fedjax(made: Scenario, data: Federation) -> Play:
    """Return FedJAX's federated averaging, a compiled step per batch."""
    import fedjax
    import jax
    import jax.numpy as jnp
    from fedjax.algorithms import fed_avg

    # FedJAX 0.0.17 calls a name that JAX has taken away since
    jax.tree_map = jax.tree_util.tree_map
    [prototype] = made.prototypes.values()
    training = made.training
    net: Any = plain(build_model(prototype, data.input_shape, data.classes, seed=0))
    params = {
        name: jnp.asarray(x.detach().numpy()) for name, x in net.named_parameters()
    }

    def linear(at: Any, name: str, x: Any) -> Any:
        return x @ at[f"{name}.weight"].T + at[f"{name}.bias"]

    def convolve(at: Any, name: str, x: Any, padding: int) -> Any:
        x = jax.lax.conv_general_dilated(
            x, at[f"{name}.weight"], (1, 1), [(padding, padding)] * 2
        )
        x = jax.nn.relu(x + at[f"{name}.bias"][None, :, None, None])
        window = (1, 1, 2, 2)
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")

    def logits(at: Any, x: Any) -> Any:
        if prototype.model == "logistic-regression":
            weight, bias = (at[name] for name, _ in net.named_parameters())
            return x.reshape(len(x), -1) @ weight.T + bias
        x = convolve(at, "conv2", convolve(at, "conv1", x, 2), 0).reshape(len(x), -1)
        x = jax.nn.relu(linear(at, "fc1", x))
        return linear(at, "fc3", jax.nn.relu(linear(at, "fc2", x)))

    def loss(at: Any, batch: Any, rng: Any) -> Any:
        logs = jax.nn.log_softmax(logits(at, batch["x"]))
        return -jnp.mean(jnp.take_along_axis(logs, batch["y"][:, None], axis=1))

    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(training.learning_rate),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=training.batch_size,
            num_epochs=training.local_epochs,
            drop_remainder=False,
        ),
    )
    clients = [
        fedjax.ClientDataset({"x": x.numpy(), "y": y.numpy()})
        for x, y in read_owners(data)
    ]
    rng, state = np.random.default_rng(0), algorithm.init(params)
    per_round = made.participation.clients_per_round

    def play(times: int) -> None:
        nonlocal state
        for _ in range(times):
            cohort = rng.choice(len(clients), per_round, replace=False)
            keys = jax.random.split(jax.random.PRNGKey(rng.integers(2**31)), per_round)
            named = [
                (str(n), clients[n], key) for n, key in zip(cohort, keys, strict=True)
            ]
            state, _ = algorithm.apply(state, named)
        jax.block_until_ready(state.params)

    return play


PLAYERS: dict[str, Callable[[Scenario, Federation], Play]] = {
    "simfed": play_simfed,
    "plain loop": play_loop,
    "FedJAX": play_fedjax,
    "pfl-research": play_pfl,
}


def compare(model: str, blocks: int) -> list[dict[str, object]]:
    """Return a row per program and block: its processor milliseconds of a round."""
    made = learning.averaging(model, "fedavg")
    data = learning.federation(made)
    players = {name: begin(made, data) for name, begin in PLAYERS.items()}
    rounds, rows = JOBS[model], []
    for turn in range(blocks + 2):  # two blocks compile and warm up
        for name, play in players.items():
            begin_s = time.process_time()
            play(rounds)
            spent_ms = 1e3 * (time.process_time() - begin_s) / rounds
            if turn >= 2:
                row = {"model": model, "compiled": bool(layers()), "program": name}
                rows.append({**row, "block": turn - 2, "ms": spent_ms})
    return rows


def page_parts() -> dict[str, str]:
    """Return the table of docs/speed.md by its place, from the kept rows."""
    lines = [["model", *PLAYERS]]
    for (model, compiled), rows in pd.read_csv(ROWS).groupby(KEYS, sort=False):
        medians = rows.groupby("program")["ms"].median()
        cells = [f"{medians[name]:.3g} ms" for name in PLAYERS]
        for at, name in enumerate(PLAYERS):
            if name != "simfed":
                cells[at] += f" ({medians[name] / medians['simfed']:.1f} ×)"
        lines.append([f"`{model}`{'' if compiled else ', no compiler'}", *cells])
    return {"peers": markdown(lines)}


def keep(rows: pd.DataFrame) -> None:
    """Write the rows, in place of kept ones of the same job and layers."""
    kept = pd.read_csv(ROWS) if ROWS.is_file() else rows.head(0)
    again = kept.set_index(KEYS).index.isin(rows.set_index(KEYS).index)
    pd.concat([kept[~again], rows]).to_csv(ROWS, index=False, float_format="%.3f")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=11)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument(
        "--write", action="store_true", help="keep rows, write the page"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows = [row for job in arguments.jobs for row in compare(job, arguments.blocks)]
    table = pd.DataFrame(rows)
    for (model, program), ms in table.groupby(["model", "program"], sort=False)["ms"]:
        print(
            f"{model:20} {program:13} median {statistics.median(ms):8.2f} ms, "
            f"least {min(ms):8.2f}"
        )
    if arguments.write:
        keep(table)
        write_page("peers")


if __name__ == "__main__":
    main()
