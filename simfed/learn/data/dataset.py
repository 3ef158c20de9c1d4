"""A data set in memory, as the learning side and a user's own data set see it.

A registered data set is a callable without arguments that returns a `Dataset`;
`load_dataset` calls it by its name. `docs/extending.md` shows one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simfed.ground.errors import InputError, check_known
from simfed.ground.registry import registry
from simfed.learn.data.outline import find_layout
from simfed.learn.facts import DatasetFacts

TASKS = ("classification", "regression", "next-token")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled training and test samples, as they are stored.

    Images are uint8 (a quarter of the memory of floats) and become normalised float32
    when they are used: `normalise` maps a stored value v of channel c to (v/255 −
    mean[c])/sd[c]. Samples that are already numbers of a sensible size are float32 and
    pass through `mean` and `sd` without the division by 255; without `mean` and `sd`
    they are used as they are.

    Raises: `InputError` that names the array, for shapes, types, labels or values that
    do not fit together.

    >>> rng = np.random.default_rng(0)
    >>> data = Dataset(
    ...     train_images=rng.integers(0, 256, (50, 1, 4, 4), dtype=np.uint8),
    ...     train_labels=np.arange(50) % 2,
    ...     test_images=rng.integers(0, 256, (10, 1, 4, 4), dtype=np.uint8),
    ...     test_labels=np.arange(10) % 2,
    ...     classes=2, mean=(0.5,), sd=(0.25,))
    >>> data.facts
    DatasetFacts(input_shape=(1, 4, 4), classes=2, train_samples=50, test_samples=10)
    >>> images, labels = data.train(np.array([3, 1]))
    >>> images.shape, images.dtype, labels.tolist()
    ((2, 1, 4, 4), dtype('float32'), [1, 1])
    """

    train_images: np.ndarray
    """(n, *input_shape), uint8 or float32."""
    train_labels: NDArray[np.int64]
    """(n,), from 0 to classes − 1."""
    test_images: np.ndarray
    test_labels: NDArray[np.int64]
    classes: int
    mean: tuple[float, ...] = ()
    """Per channel (first axis of a sample); one value serves all; empty: 0."""
    sd: tuple[float, ...] = ()
    """The sd of each channel, as `mean`; empty: 1."""
    licence: str = ""
    citation: str = ""
    task: str = "classification"
    """Or `regression`, where labels are (n,) float32 and `classes` is 1; or
    `next-token`, where samples and labels are whole numbers below `classes`, (n,
    length) each."""
    train_owners: NDArray[np.int64] | None = None
    """(n,) indices of `owners`: whose each training sample is; None: nobody's."""
    test_owners: NDArray[np.int64] | None = None
    owners: tuple[str, ...] = ()
    target_sd: float = 1.0
    """The unit of a regression's labels, which are standardised."""
    class_names: tuple[str, ...] = ()
    """Empty: the classes have numbers."""

    def __post_init__(self) -> None:
        check_known(self.task, TASKS, "a task:")
        least = 1 if self.task == "regression" else 2
        whole = isinstance(self.classes, int) and not isinstance(self.classes, bool)
        if not whole or self.classes < least:
            raise InputError(f"at least {least} classes", got=self.classes)
        for split in ("train", "test"):
            images = _check_images(getattr(self, f"{split}_images"), f"{split}_images")
            labels, owners = f"{split}_labels", f"{split}_owners"
            checked = {
                f"{split}_images": images,
                labels: _check_labels(
                    getattr(self, labels), self.task, self.classes, images.shape, labels
                ),
            }
            if (own := getattr(self, owners)) is not None:
                checked[owners] = _check_owners(own, self.owners, len(images), owners)
            for name, array in checked.items():
                object.__setattr__(self, name, array)
        train, test = self.train_images, self.test_images
        if test.shape[1:] != train.shape[1:] or test.dtype != train.dtype:
            raise InputError(
                (
                    f"test_images like train_images, {train.dtype} of shape (n, "
                    f"{', '.join(map(str, train.shape[1:]))})"
                ),
                got=f"{test.dtype} of shape {test.shape}",
            )
        for name, values in (("mean", self.mean), ("sd", self.sd)):
            if len(values) not in (0, 1, train.shape[1]):
                raise InputError(
                    f"{name}: one value, or one per channel ({train.shape[1]})",
                    got=values,
                )
        if not all(np.isfinite(self.mean)) or not all(
            0 < sd < np.inf for sd in self.sd
        ):
            raise InputError("finite mean and sd, sd above 0", got=(self.mean, self.sd))

    @property
    def facts(self) -> DatasetFacts:
        """The input shape, classes and counts of samples, without the samples."""
        return DatasetFacts(
            input_shape=tuple(self.train_images.shape[1:]),
            classes=self.classes,
            train_samples=len(self.train_images),
            test_samples=len(self.test_images),
            task=self.task,
            tokens=self.tokens,
            owners=len(self.owners),
        )

    @property
    def tokens(self) -> bool:
        """True if samples are numbers of characters, which are not normalised."""
        return self.train_images.dtype.kind == "i"

    @cached_property
    def digest(self) -> str:
        """The SHA-256 over all arrays, with types and shapes, and the normalisation."""
        sha = hashlib.sha256(repr((self.classes, self.mean, self.sd)).encode())
        if self.task != "classification":
            sha.update(self.task.encode())
        for array in (
            self.train_images,
            self.train_labels,
            self.test_images,
            self.test_labels,
            self.train_owners,
            self.test_owners,
        ):
            if array is None:
                continue
            sha.update(f"{array.dtype.str}{array.shape}".encode())
            sha.update(np.ascontiguousarray(array).data)
        return sha.hexdigest()

    def train(self, indices: NDArray[np.integer]) -> tuple[np.ndarray, np.ndarray]:
        """Return normalised training samples and labels, in the order of `indices`.

        Args:
            indices: (n,) rows of `train_images`.

        Returns:
            Samples (n, *input_shape) of `normalise`, and labels (n,) as they are
            stored.
        """
        return self.normalise(self.train_images[indices]), self.train_labels[indices]

    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all normalised test samples and their labels."""
        return self.normalise(self.test_images), self.test_labels

    def normalise(self, images: np.ndarray) -> np.ndarray:
        """Return stored samples (n, *input_shape) as float32 of the same shape.

        They are in fresh memory; characters become int64.
        """
        if self.tokens:
            return images.astype(np.int64)
        values = images.astype(np.float32)
        scale, shift = self.affine
        if scale is not None:
            values *= scale
        if shift is not None:
            values -= shift
        return values

    @cached_property
    def affine(self) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """The scale and shift of `normalise`: stored · scale − shift.

        None where one would change nothing. Each has the shape (channels, 1, …), so
        that it applies to any number of samples.
        """
        shape = (-1, *[1] * (self.train_images.ndim - 2))
        sd = np.asarray(self.sd or (1.0,), np.float64).reshape(shape)
        mean = np.asarray(self.mean or (0.0,), np.float64).reshape(shape)
        scale = 1 / sd / (255 if self.train_images.dtype == np.uint8 else 1)
        shift = mean / sd
        return (
            None if (scale == 1).all() else scale.astype(np.float32),
            None if (shift == 0).all() else shift.astype(np.float32),
        )


def load_dataset(name: str, *, where: str | None = None) -> Dataset:
    """Return the registered data set `name`, read from where it is kept.

    Args:
        name: As in `simfed list datasets`.
        where: The scenario's key that asked, for errors.

    Raises:
        InputError: An unknown name, a published data set that is not on this machine
            (with the command that gets it), damaged files, or a callable that returns
            something else than a `Dataset`.

    >>> load_dataset("mnist-mini").facts.train_samples
    10000
    """
    factory = registry("dataset").get(name, where=where)
    try:
        data = factory()
    except InputError as error:
        raise error.within(where) if where else error from None
    if not isinstance(data, Dataset):
        raise InputError(
            f"data set {name}: a callable that returns a simfed.learn.data.Dataset",
            where=where,
            got=type(data).__name__,
        )
    check_channels(data, f"data set {name}", where)
    return data


def check_channels(data: Dataset, name: str, where: str | None = None) -> None:
    """Refuse images made by code whose last axis is the channels.

    Models that take any shape would learn from them turned over.

    Args:
        data: The data set; a sample's last axis of length 1 or 3 is taken for channels.
        name: The set, for errors.
        where: The scenario's key, for errors.

    Raises:
        InputError: With the call of `transpose` that mends them.
    """
    shape = data.train_images.shape[1:]
    if find_layout(shape, None, name) == "channels-last":
        allowed = f"{name}: samples (channels, height, width)"
        raise InputError(
            allowed, where=where, got=shape, hint="images.transpose(0, 3, 1, 2)"
        )


def _check_images(images: Any, name: str) -> np.ndarray:
    """Return samples that may be shared: uint8, float32 or int16/int32 characters.

    Args:
        images: What was given; float64 becomes float32.
        name: The field of `Dataset`, for errors.
    """
    array = np.asarray(images)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    characters = array.dtype in (np.int16, np.int32) and array.ndim == 2
    images = array.dtype in (np.uint8, np.float32) and array.ndim >= 2
    if not (characters or images) or array.size == 0:
        raise InputError(
            f"{name}: uint8 or float32 samples of shape (n, channels, …), or int16 "
            "characters of shape (n, length)",
            got=f"{array.dtype} of shape {array.shape}",
        )
    if array.dtype == np.float32 and not np.isfinite(array).all():
        raise InputError(f"{name}: finite values", got="NaN or infinity")
    return _make_read_only(array)


def _check_labels(
    labels: Any, task: str, classes: int, samples: tuple[int, ...], name: str
) -> np.ndarray:
    """Return labels that may be shared, int64, or float32 in a regression.

    Args:
        labels: What was given.
        task: One of `TASKS`.
        classes: Labels are below.
        samples: Shape of the samples, (n, *input_shape).
        name: The field of `Dataset`, for errors.
    """
    array = np.asarray(labels)
    if task == "regression":
        if array.dtype.kind not in "iuf" or array.shape != samples[:1]:
            raise InputError(
                f"{name}: {samples[0]} numbers, one per sample",
                got=f"{array.dtype} of shape {array.shape}",
            )
        if not np.isfinite(array).all():
            raise InputError(f"{name}: finite values", got="NaN or infinity")
        return _make_read_only(array.astype(np.float32))
    shape = samples if task == "next-token" else samples[:1]
    if not np.issubdtype(array.dtype, np.integer) or array.shape != shape:
        what = "of shape " + str(shape) if task == "next-token" else "one per sample"
        raise InputError(
            f"{name}: {samples[0]} whole numbers, {what}",
            got=f"{array.dtype} of shape {array.shape}",
        )
    if array.min() < 0 or array.max() >= classes:
        wrong = array[(array < 0) | (array >= classes)][0]
        raise InputError(f"{name}: labels from 0 to {classes - 1}", got=int(wrong))
    return _make_read_only(array.astype(np.int64))


def _check_owners(
    owners: Any, names: tuple[str, ...], count: int, name: str
) -> NDArray[np.int64]:
    """Return the owner of each of `count` samples, (count,) indices of `names`."""
    array = np.asarray(owners)
    if not np.issubdtype(array.dtype, np.integer) or array.shape != (count,):
        raise InputError(
            f"{name}: {count} whole numbers, one per sample",
            got=f"{array.dtype} of shape {array.shape}",
        )
    if array.min() < 0 or array.max() >= len(names):
        raise InputError(
            f"{name}: owners from 0 to {len(names) - 1}, as `owners` names them",
            got=f"{array.min()} to {array.max()}",
        )
    return _make_read_only(array.astype(np.int64))


def _make_read_only(array: np.ndarray) -> np.ndarray:
    """Return a view through which nobody writes, since all clients share the arrays."""
    view: np.ndarray = array.view()
    view.flags.writeable = False
    return view
