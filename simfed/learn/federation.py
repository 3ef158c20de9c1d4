"""What a learning engine is given: samples, who owns which, and how the rounds draw from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simfed.learn.data import Dataset, deal, load_dataset
from simfed.scenario import Scenario
from simfed.seeding import Streams

__all__ = [
    "Federation",
    "draw_batches",
    "draw_epoch",
    "draw_probe",
    "draw_public",
    "load_federation",
    "prototype_clients",
]

Positions = NDArray[np.int64]

CPU = torch.device("cpu")

NORMALISED_BYTES = 256 << 20
"""The largest training set that is kept as floats: MNIST's 188 MB, not CIFAR-10's 614 MB."""


class Federation:
    """The data of one run. What clients own, the public set and the test set are disjoint.

    Samples come out as normalised float32 tensors on `device`. The training set is normalised once
    on an accelerator and where that takes at most `NORMALISED_BYTES`, else batch by batch.
    """

    def __init__(
        self,
        dataset: Dataset,
        owned: Sequence[Positions],
        public: Positions,
        device: torch.device = CPU,
    ) -> None:
        self.device = device
        self.dataset = dataset
        self.owned = owned
        """For each client, the positions of its samples in the training set."""
        self.classes = dataset.classes
        self.input_shape = dataset.facts.input_shape
        self.labels = torch.tensor(dataset.train_labels, device=device)
        self.public = self._normalised(dataset.train_images[public])
        """The server's unlabelled samples, (samples, *input_shape)."""
        self.test_samples = self._normalised(dataset.test_images)
        self.test_labels = torch.tensor(dataset.test_labels, device=device)
        images = dataset.train_images
        small = device.type != "cpu" or images.size * 4 <= NORMALISED_BYTES
        self._samples = self._normalised(images) if small else None

    def samples(self, positions: Tensor) -> Tensor:
        """Training samples (n, *input_shape), in the order given."""
        if self._samples is not None:
            return self._samples[positions]
        return self._normalised(self.dataset.train_images[positions.numpy()])

    def _normalised(self, images: NDArray[Any]) -> Tensor:
        # Copied: PyTorch's own memory is aligned alike in every process, NumPy's is not, and the
        # last bits of a product may depend on it.
        return torch.from_numpy(self.dataset.normalise(images)).to(self.device, copy=True)


def load_federation(scenario: Scenario, streams: Streams, device: torch.device = CPU) -> Federation:
    """The scenario's data set, dealt to its clients.

    Raises: `InputError` for a data set that is not on this machine or has too few samples.
    """
    dataset = load_dataset(scenario.dataset.name, where="dataset.name")
    partition = scenario.dataset.partition
    split = deal(
        dataset.train_labels,
        streams,
        clients=scenario.client_count,
        public=scenario.dataset.public if scenario.method == "fedkd" else 0,
        kind=partition.kind,
        alpha=partition.alpha,
        shards_per_client=partition.shards_per_client,
    )
    return Federation(dataset, split.clients, split.public, device)


def draw_batches(
    rng: np.random.Generator, owned: Positions, size: int, steps: int
) -> list[Positions]:
    """`steps` mini-batches, each without replacement; all of `owned` where it is smaller than one.

    >>> [b.size for b in draw_batches(np.random.default_rng(0), np.arange(10), 4, 2)]
    [4, 4]
    """
    if owned.size <= size:
        return [owned] * steps
    return [owned[rng.choice(owned.size, size, replace=False)] for _ in range(steps)]


def draw_epoch(
    rng: np.random.Generator, owned: Positions, size: int, epochs: int
) -> list[Positions]:
    """`epochs` passes over `owned`, each in an order of its own, cut into batches; the last may be short.

    >>> [b.size for b in draw_epoch(np.random.default_rng(0), np.arange(10), 4, 1)]
    [4, 4, 2]
    """
    orders = [owned[rng.permutation(owned.size)] for _ in range(epochs)]
    return [order[i : i + size] for order in orders for i in range(0, order.size, size)]


def draw_probe(rng: np.random.Generator, owned: Positions, size: int) -> Positions:
    """The client's fixed probe: a random subset of its samples, or all of them."""
    if owned.size <= size:
        return owned
    return owned[np.sort(rng.choice(owned.size, size, replace=False))]


def draw_public(streams: Streams, round: int, size: int, batch: int | None) -> Positions | None:
    """Positions in the public set that `round` uses; None for all of them. Round 0 is the initial loss."""
    if batch is None or batch >= size:
        return None
    chosen = streams("public-batch", round).choice(size, batch, replace=False)
    return np.sort(chosen)


def prototype_clients(scenario: Scenario) -> dict[str, NDArray[np.int64]]:
    """For each prototype, its clients in the order of their ids."""
    groups = scenario.group_of_client()
    names = np.array([group.prototype for group in scenario.clients])[groups]
    return {name: np.flatnonzero(names == name) for name in scenario.prototypes}
