"""The data of a federation: samples, their owners, and the rounds' draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simfed.compress.vectors import move_positions
from simfed.ground.measure import ACCURACY
from simfed.ground.seeding import Streams
from simfed.learn.data import Dataset, hold_out, load_data, split_of
from simfed.learn.data.looks import apply_looks, draw_public_samples
from simfed.learn.objective import Objective, choose_objective
from simfed.scenario import Scenario
from simfed.scenario.model import Training
from simfed.scenario.policy import LocalLoss

Positions = NDArray[np.int64]

CPU = torch.device("cpu")


class Federation:
    """The data of one run.

    What clients own, the public set and the test set are disjoint.

    Training samples are kept as they are stored (images as bytes) and become normalised
    float32 tensors on `device` when they are used: to fetch a quarter of the memory and
    convert it takes less time than to fetch floats.
    """

    def __init__(
        self,
        dataset: Dataset,
        owned: Sequence[Positions],
        public: Positions | np.ndarray,
        device: torch.device = CPU,
        *,
        owners: Positions | None = None,
        measures: tuple[str, ...] = (ACCURACY.key,),
    ) -> None:
        """Deal a data set.

        Args:
            dataset: the samples.
            owned: per client, positions of its samples in the training set.
            public: positions in the training set, or samples that are stored like it.
            device: of the tensors.
            owners: per client which owner of the data set it is, where clients are
                owners.
            measures: of a classification's models, the one that counts first.
        """
        self.device = device
        self.owned = owned
        """The positions of each client's samples in the training set."""
        self.classes = dataset.classes
        self.task, self.tokens = dataset.task, dataset.tokens
        self.measures = measures
        self.objective: Objective = choose_objective(dataset, measures)
        self.input_shape = dataset.facts.input_shape
        self._stored = _copy_to_device(dataset.train_images, device)
        self._affine = [
            None if part is None else _copy_to_device(part, device)
            for part in dataset.affine
        ]
        self.labels = _copy_to_device(dataset.train_labels, device)
        self.poisoned: dict[int, Positions] = {}
        """Attacker → where what it trains on instead is, in the order of its own
        samples."""
        if public.ndim > 1 or public.dtype.kind != "i":
            self.public = self._normalise(_copy_to_device(public, device))
        else:
            self.public = self.samples(_copy_to_device(public, device))
        """The server's unlabelled samples, (samples, *input_shape)."""
        self.test_samples = self._normalise(
            _copy_to_device(dataset.test_images, device)
        )
        self.test_labels = _copy_to_device(dataset.test_labels, device)
        self.own_groups = _find_own_groups(dataset, owners)
        """Per test sample the client whose it is, or the number of clients; on the CPU.
        None: the clients are no owners that have test samples."""
        own_groups = self.own_groups
        self.test_groups = (
            self.test_labels if own_groups is None else own_groups.to(device)
        )
        """Per test sample, what it is counted with: its class, or its client."""
        self.groups = dataset.classes if own_groups is None else len(owned) + 1
        if own_groups is None and self.task != "classification":
            self.own_groups = torch.full((len(self.test_labels),), len(owned))
            self.test_groups, self.groups = self.own_groups.to(device), len(owned) + 1

    def samples(self, positions: Tensor) -> Tensor:
        """Return training samples (n, *input_shape), in the order given."""
        # not [positions], which takes three times as long
        return self._normalise(torch.index_select(self._stored, 0, positions))

    def places(self, positions: Positions) -> Tensor:
        """Positions as a tensor beside the data."""
        tensor: Tensor = move_positions(positions, self.device)
        return tensor

    def at(self, positions: Positions | Tensor) -> tuple[Tensor, Tensor]:
        """Return training samples and labels at these positions."""
        where = positions if isinstance(positions, Tensor) else self.places(positions)
        return self.samples(where), self.labels.index_select(0, where)

    def poison(self, client: int, change: Callable[..., tuple[Tensor, Tensor]]) -> None:
        """Give a client another set of samples beside its own (`Attack.poison`)."""
        places = self.places(self.owned[client])
        stored = torch.index_select(self._stored, 0, places)
        labels = self.labels.index_select(0, places)
        samples, labels = change(
            stored, labels, classes=self.classes, brightest=self.brightest
        )
        start = len(self.labels)
        self._stored = torch.cat([self._stored, samples])
        self.labels = torch.cat([self.labels, labels])
        self.poisoned[client] = np.arange(start, start + len(labels))

    @property
    def brightest(self) -> float:
        """The largest value that a stored input can have: 255 of bytes."""
        whole = not self._stored.is_floating_point()
        return 255.0 if whole else float(self._stored.max())

    def mark_tests(self, mark: Callable[[Tensor, Tensor | float], Tensor]) -> Tensor:
        """Return the test samples with an attacker's mark, as they would be stored.

        See `Backdoor.mark`.
        """
        one = self._stored[:1]
        bright = self._normalise(torch.full_like(one, self.brightest))[0]
        return mark(self.test_samples, bright[:, :1, :1])

    def _normalise(self, stored: Tensor) -> Tensor:
        """Return normalised samples, as `Dataset.normalise`, bit for bit."""
        if self.tokens:
            return stored.long()
        scale, shift = self._affine
        values = stored.to(torch.float32)
        if scale is not None:
            values = values.mul_(scale) if values is not stored else values * scale
        if shift is not None:
            values = values.sub_(shift) if values is not stored else values - shift
        return values


def _copy_to_device(array: np.ndarray, device: torch.device) -> Tensor:
    # Copied: PyTorch's own memory is aligned alike in every process, NumPy's is not,
    # and the last bits of a product may depend on it.
    return torch.tensor(array, device=device)


def _find_own_groups(dataset: Dataset, owners: Positions | None) -> Tensor | None:
    if owners is None or dataset.test_owners is None:
        return None
    client_of = np.full(len(dataset.owners), len(owners))
    client_of[owners] = np.arange(len(owners))
    return torch.from_numpy(client_of[dataset.test_owners])


def load_federation(
    scenario: Scenario, streams: Streams, device: torch.device = CPU
) -> Federation:
    """Return the scenario's data set, dealt to its clients.

    Args:
        scenario: its `dataset` is read and split.
        streams: of the run's seed: who owns what hangs on it.
        device: of the tensors.

    Raises:
        InputError: for a data set that is not on this machine or has too few samples.
    """
    dataset, split = load_data(scenario.dataset), split_of(scenario, streams)
    if split.held is not None:
        dataset = hold_out(dataset, split.held)
    if scenario.dataset.partition.kind == "feature":
        dataset = apply_looks(dataset, split, scenario.dataset.partition, streams)
    own_file = scenario.dataset.public_file
    public: Positions | np.ndarray = split.public
    if own_file is not None and scenario.method.made.needs_public:
        public = draw_public_samples(
            own_file, dataset, scenario.dataset.public, streams, scenario.dataset.layout
        )
    return Federation(
        dataset,
        split.clients,
        public,
        device,
        owners=split.owners,
        measures=scenario.evaluation.measures,
    )


def draw_local(
    rng: np.random.Generator,
    owned: Positions,
    training: Training,
    epochs: int | None = None,
) -> list[Positions]:
    """Return the batches of one participation.

    Args:
        rng: of the participation.
        owned: positions of the client's samples.
        training: batch size, and steps or epochs.
        epochs: so many in place of those; None: as `training` says.

    Returns:
        Positions for each local step.
    """
    epochs = epochs or training.local_epochs
    if epochs is not None:
        return draw_epoch(rng, owned, training.batch_size, epochs)
    assert training.local_steps is not None
    return draw_batches(rng, owned, training.batch_size, training.local_steps)


def draw_batches(
    rng: np.random.Generator, owned: Positions, size: int, steps: int
) -> list[Positions]:
    """Return `steps` mini-batches, each without replacement.

    All of `owned` where it is smaller than one.

    >>> [b.size for b in draw_batches(np.random.default_rng(0), np.arange(10), 4, 2)]
    [4, 4]
    """
    if owned.size <= size:
        return [owned] * steps
    return [owned[rng.choice(owned.size, size, replace=False)] for _ in range(steps)]


def draw_epoch(
    rng: np.random.Generator, owned: Positions, size: int, epochs: int
) -> list[Positions]:
    """Return `epochs` passes over `owned`, each in an order of its own, in batches.

    The last batch may be short.

    >>> [b.size for b in draw_epoch(np.random.default_rng(0), np.arange(10), 4, 1)]
    [4, 4, 2]
    """
    orders = [owned[rng.permutation(owned.size)] for _ in range(epochs)]
    return [order[i : i + size] for order in orders for i in range(0, order.size, size)]


def draw_poisson(
    rng: np.random.Generator, owned: Positions, parts: int, steps: int
) -> list[Positions]:
    """Return `steps` batches that hold each of `owned` with probability 1 / parts.

    Samples are drawn independently of each other.

    >>> batches = draw_poisson(np.random.default_rng(0), np.arange(100), 4, 50)
    >>> sizes = [batch.size for batch in batches]
    >>> bool(20 < np.mean(sizes) < 30), min(sizes) < 25 < max(sizes)
    (True, True)
    """
    return [owned[rng.random(owned.size) * parts < 1] for _ in range(steps)]


def draw_own(
    streams: Streams,
    local: LocalLoss,
    client: int,
    key: int | str,
    owned: Positions,
    training: Training,
    epochs: int | None = None,
) -> Positions:
    """Return where f_n is computed.

    Args:
        streams: of the run's seed.
        local: `probe` (a fixed subset), `full` (all samples) or `batch`.
        client: its id.
        key: of the participation: that of its batches.
        owned: positions of its samples.
        training: how batches are drawn.
        epochs: of the participation, where its group draws them.
    """
    if local.data == "batch":
        return np.concatenate(
            draw_local(streams("batch", client, key), owned, training, epochs)
        )
    if local.data == "full":
        return owned
    return draw_probe(streams("probe", client), owned, local.samples)


def draw_probe(rng: np.random.Generator, owned: Positions, size: int) -> Positions:
    """Return the client's fixed probe: a random subset of its samples, or all."""
    if owned.size <= size:
        return owned
    return owned[np.sort(rng.choice(owned.size, size, replace=False))]


def draw_public(
    streams: Streams, round: int, size: int, batch: int | None
) -> Positions | None:
    """Positions in the public set that `round` uses; None for all of them.

    Round 0 is the initial loss.
    """
    if batch is None or batch >= size:
        return None
    chosen = streams("public-batch", round).choice(size, batch, replace=False)
    return np.sort(chosen)
