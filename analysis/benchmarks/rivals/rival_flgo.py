"""FLGo: its federated averaging on a task made from the file, in one process.

    python rival_flgo.py TASK.npz

FLGo evaluates before the first round and at intervals, for every client; that is switched off, and
the test set is looked at once at the end. Its subsets of samples get the method that newer PyTorch
requires of them; what it would print and draw goes nowhere.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import flgo
import flgo.algorithm.fedavg as fedavg
from flgo.benchmark.toolkits.partition import BasicPartitioner
from rival_task import Rounds, read_task
from rival_torch import accuracy

rounds: Rounds


class Given(BasicPartitioner):  # type: ignore[misc]  # FLGo's, where it is not installed
    def __init__(self, owned: list[list[int]]) -> None:
        self.owned, self.num_clients = owned, len(owned)

    def __call__(self, data: Any) -> list[list[int]]:
        return self.owned

    def __str__(self) -> str:
        return "given"


class Server(fedavg.Server):  # type: ignore[misc]
    """FLGo's, with the clock after every round."""

    def iterate(self) -> Any:
        updated = super().iterate()
        rounds.after(self.current_round)
        return updated


class Averaging:
    """The algorithm, as FLGo takes it."""

    Server, Client = Server, fedavg.Client


def main() -> None:
    """All rounds, in a folder that is taken away afterwards."""
    global rounds
    path = os.environ["RIVAL_TASK"] = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        described = Path(__file__).with_name("rival_flgo_data.py")
        name = flgo.gen_benchmark_from_file("rival", str(described), target_path=".")
        benchmark = importlib.import_module(name)
        vars(benchmark)["visualize"] = lambda *drawn: None  # a picture of a thousand clients
        task = importlib.import_module(f"{name}.config").task
        subset = importlib.import_module(f"{name}.core").TaskPipe.TaskDataset
        subset.__getitems__ = lambda self, places: [self[place] for place in places]
        rounds = Rounds(task.rounds)
        flgo.gen_task_by_(benchmark, Given([own.tolist() for own in task.owned]), "task")
        runner = flgo.init(
            "task",
            Averaging,
            {
                "num_rounds": task.rounds,
                "proportion": task.per_round / task.clients,
                "sample": "uniform",
                "aggregate": "uniform",  # all own as many
                "num_epochs": 1,
                "batch_size": task.batch,
                "learning_rate": task.rate,
                "lr_scheduler": -1,
                "train_holdout": 0.0,
                "eval_interval": -1,
                "no_log_console": True,
                "no_tqdm": True,
            },
        )
        runner.run()
        rounds.report(accuracy(runner.model, read_task(path)), "flgo", "torch")
        os.chdir("/")


if __name__ == "__main__":
    main()
