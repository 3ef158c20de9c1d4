"""Clients who see digits each with a contrast of its own: which method's models are
right on their owners' test images? The second table of docs/personal.md.

`python analysis/personal_inputs.py [SEEDS [METHOD …]]`: some ten minutes a seed on one
core.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

import simfed
from simfed.learn.data import load_dataset

METHODS = {
    "fedavg": "fedavg",
    "local-only": "local-only",
    "ditto": "ditto",
    "fedrep": {"kind": "fedrep", "head_epochs": 2},
    "fedbn": "fedbn",
}
CLIENTS, IMAGES, ROUNDS = 10, 100, 60


class NormedNet(nn.Sequential):
    """Two convolutions with batch norm, two linear layers."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(
            *(nn.Conv2d(input_shape[0], 8, 5, stride=2), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 16, 5, stride=2), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, classes)),
        )


def write_images(seed: int, path: Path) -> None:
    """Images by owner, with contrasts from 0.15 to 1, every other one inverted."""
    rng, digits = np.random.default_rng(seed), load_dataset("mnist-mini")
    arrays: dict[str, Any] = {}
    shares = {
        part: rng.permutation(len(labels))[: CLIENTS * IMAGES].reshape(CLIENTS, IMAGES)
        for part, labels in (
            ("train", digits.train_labels),
            ("test", digits.test_labels),
        )
    }
    contrasts = np.geomspace(0.15, 1, CLIENTS)[rng.permutation(CLIENTS)]
    contrasts *= np.where(np.arange(CLIENTS) % 2, 1, -1)
    for part, share in shares.items():
        images = getattr(digits, f"{part}_images")[share].astype(np.float32) / 255
        seen = 0.5 + contrasts[:, None, None, None, None] * (images - 0.5)
        arrays[f"x_{part}"] = np.concatenate(seen).astype(np.float32)
        arrays[f"y_{part}"] = getattr(digits, f"{part}_labels")[share].reshape(-1)
        arrays[f"owner_{part}"] = np.repeat(range(CLIENTS), IMAGES)
    np.savez(path, **arrays)


def play(method: str, seed: int, path: Path) -> pd.Series[float]:
    """The share of right answers on each client's own test images."""
    scenario = {
        "name": "inputs",
        "seed": seed,
        "rounds": ROUNDS,
        "method": METHODS[method],
        "dataset": {"file": str(path), "partition": {"kind": "natural"}},
        "prototypes": {"a": {"model": "normed-net"}},
        "clients": [
            {
                "count": CLIENTS,
                "prototype": "a",
                "device": {"training": "5 ms", "inference": "2 ms"},
            }
        ],
        "training": {"learning_rate": 0.05, "local_epochs": 1},
        "compression": {"strategies": ["dense"]},
        "policy": {"kind": "uniform", "strategy": "dense"},
        "evaluation": {"every": ROUNDS, "clients": True},
    }
    return simfed.run(scenario, progress=False, workers=1).clients["own_accuracy"]


def main(seeds: int | str = 2, *methods: str) -> None:
    """Print a row for each method: the mean over clients, and the worst client."""
    simfed.register("model", "normed-net", NormedNet)
    print("| method | mean | worst client |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.npz"
        for method in methods or METHODS:
            own = []
            for seed in range(int(seeds)):
                write_images(seed, path)
                own.append(play(method, seed, path))
            mean, worst = (
                100 * np.mean([f(one) for one in own]) for f in (np.mean, np.min)
            )
            print(f"| `{method}` | {mean:.1f} | {worst:.0f} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
