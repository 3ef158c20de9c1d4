"""Why networks with batch norm fall to chance on CIFAR-10: a small world in which they do.

Two stacks of convolutions with batch norm stand in for the source's ResNets, which need a GPU. All
else is the source's scenario with fewer clients and public images, at a higher rate: the rate that
is too high falls with depth. One thing is changed at a time. What is kept of a run, evaluation by
evaluation: accuracy and distillation loss, each the mean of the two prototypes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from campaign import STUDIES
from torch import Tensor, nn

import simfed
from simfed.ground.seeding import Streams

ROWS = Path(__file__).with_name("collapse_rows.csv")
SEEDS, ROUNDS, EVERY = (0, 1), 100, 20
RATE = 0.3


class Stack(nn.Module):
    """3×3 convolutions, each followed by batch norm and ReLU; four halve the sides, the first among
    them, and three double the channels."""

    depth = 8
    tracks = True
    """Whether norms keep running statistics, which are what counts in evaluation and distillation;
    else they take those of the samples at hand, there too."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = input_shape[0]
        for place in range(self.depth):
            outputs = 8 * 2 ** (4 * place // self.depth)
            stride = 1 if 4 * place % self.depth else 2
            convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
            layers += [convolution, self.norm(outputs), nn.ReLU()]
            inputs = outputs
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def norm(self, channels: int) -> nn.Module:
        """Batch norm of so many channels."""
        return nn.BatchNorm2d(channels, track_running_stats=self.tracks)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, channels, height, width) → logits (n, classes)."""
        return self.head(self.layers(x).mean((2, 3)))  # type: ignore[no-any-return]


class ShortStack(Stack):
    """Half as deep."""

    depth = 4


class DeepStack(Stack):
    """Twice as deep."""

    depth = 16


class UntrackedStack(Stack):
    """Without running statistics."""

    tracks = False


class ShortUntrackedStack(ShortStack):
    """Without running statistics."""

    tracks = False


MODELS = {
    "stack-4": ShortStack,
    "stack-8": Stack,
    "stack-16": DeepStack,
    "stack-4-untracked": ShortUntrackedStack,
    "stack-8-untracked": UntrackedStack,
}

WORLD: dict[str, Any] = {
    "rounds": ROUNDS,
    "prototypes.resnet18.model": "stack-8",
    "prototypes.wresnet40-2.model": "stack-4",
    "clients[*].count": 3,
    "dataset.public": 128,
    "training.learning_rate": RATE,
    "compression.k": "0.9%",
    "policy": {"kind": "uniform", "strategy": "random-k"},
    "evaluation.every": EVERY,
}
"""What makes the source's scenario on CIFAR-10 small."""

SETTINGS: dict[str, dict[str, Any]] = {
    "as the source": {},
    "no distillation": {"distillation.learning_rate": 1e-12},
    "distillation at a tenth of the rate": {"distillation.learning_rate": RATE / 10},
    "no running statistics": {
        "prototypes.resnet18.model": "stack-8-untracked",
        "prototypes.wresnet40-2.model": "stack-4-untracked",
    },
    "everything sent": {"policy": {"kind": "uniform", "strategy": "dense"}},
    "both at a third of the rate": {"training.learning_rate": RATE / 3},
    "both at a third of the rate, twice as deep": {
        "training.learning_rate": RATE / 3,
        "prototypes.resnet18.model": "stack-16",
        "prototypes.wresnet40-2.model": "stack-8",
    },
}
"""What is changed, in words → in the scenario."""

COLUMNS = ["setting", "seed", "round", "accuracy", "kd_loss"]


def play(folder: Path = ROWS.parent, seeds: Sequence[int] = SEEDS) -> None:
    """Every run that is missing; some fifteen seconds each."""
    for name, model in MODELS.items():
        simfed.register("model", name, model)
    torch.set_num_threads(1)
    rows = read_rows(folder)
    for seed, setting in itertools.product(seeds, SETTINGS):
        if not ((rows["setting"] == setting) & (rows["seed"] == seed)).any():
            rows = pd.concat([rows, played(setting, seed)], ignore_index=True)
            rows.to_csv(folder / ROWS.name, index=False, float_format="%.6g")


def played(setting: str, seed: int) -> pd.DataFrame:
    """A row per evaluation of one run."""
    from simfed.learn.hosted import HostedWorkload
    from simfed.learn.plain import plain_rounds

    changes = {**WORLD, **SETTINGS[setting], "seed": seed}
    scenario = simfed.load_scenario(STUDIES / "cifar10.yaml", overrides=changes)
    streams = Streams(seed)
    workload = HostedWorkload(scenario, streams)
    rows = []
    try:
        for one in plain_rounds(scenario, workload, streams):
            tested = [each.accuracy for each in one.outcome.evaluation.values()]
            if tested:
                losses = one.outcome.shared_loss.values()
                rows.append((setting, seed, one.round, _mean(tested), _mean(losses)))
                print(*rows[-1], flush=True)
    finally:
        workload.close()
    return pd.DataFrame(rows, columns=COLUMNS)


def read_rows(folder: Path = ROWS.parent) -> pd.DataFrame:
    """The kept rows."""
    file = folder / ROWS.name
    return pd.read_csv(file) if file.is_file() else pd.DataFrame(columns=COLUMNS)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
