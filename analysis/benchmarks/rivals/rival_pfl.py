"""Apple's pfl: federated averaging with its simulated backend, in one process.

    python rival_pfl.py TASK.npz

pfl keeps a user's samples in their order; here they are shuffled whenever a user is drawn, as on
every other side. A cohort is drawn with replacement, as pfl draws.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from rival_task import Rounds, read_task
from rival_torch import accuracy, build, samples
from torch import Tensor, nn


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """What a user minimises."""
    return F.cross_entropy(model(x), y)


@torch.no_grad()
def metrics(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """What pfl asks for before and after the first cohort's training."""
    return {"loss": Weighted(loss(model, x, y).item() * len(y), len(y))}


class Look(TrainingProcessCallback):  # type: ignore[misc]  # pfl's, where it is not installed
    """The clock after every round."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        """pfl counts from 0."""
        self._rounds.after(central_iteration + 1)
        return False, Metrics()


def main() -> None:
    task = read_task(sys.argv[1])
    module, (images, labels) = build(task), samples(task)
    module.loss, module.metrics = partial(loss, module), partial(metrics, module)  # type: ignore[assignment]
    owned = [torch.from_numpy(own) for own in task.owned]

    def shuffled(user: int) -> Any:
        rows = owned[user][torch.randperm(len(owned[user]))]
        return Dataset((images[rows], labels[rows]), user_id=str(user))

    users = FederatedDataset(shuffled, get_user_sampler("random", list(range(task.clients))))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    rounds = Rounds(task.rounds)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=task.rounds + 1,
            train_cohort_size=task.per_round,
            val_cohort_size=None,
        ),
        SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=task.rate, local_batch_size=task.batch
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Look(rounds)],
    )
    rounds.report(accuracy(module, task), "pfl", "torch")


if __name__ == "__main__":
    main()
