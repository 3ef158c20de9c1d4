"""Opens a scenario's `dataset`: a registered set, or files of one's own.

Sizes, labels and owners are read without the samples (`labels_in`, `split_of`), digests
without understanding the files (`files_digest`). What was read last is kept as long as
names, times of change and sizes of all files stay (`_stamp_files`), as plans, checks
and the run ask one after another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simfed.fleet.columns import Fleet
from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError
from simfed.ground.inputs import make_missing_file_error, open_file, read_bytes
from simfed.ground.seeding import Streams
from simfed.learn.data.arrays import Arrays, NpzReader
from simfed.learn.data.dataset import Dataset, load_dataset
from simfed.learn.data.hub import (
    TorchvisionReader,
    locate_hub_set,
    open_huggingface_tables,
)
from simfed.learn.data.leaf import LeafReader
from simfed.learn.data.outline import Labels, Reader, build_labels, check_finite
from simfed.learn.data.partition import Split, deal
from simfed.learn.data.pictures import FolderReader
from simfed.learn.data.sizing import Sizing
from simfed.learn.data.store import list_data_folders
from simfed.learn.data.tables import TableReader, open_table
from simfed.scenario import Scenario
from simfed.scenario.dataset import DatasetSpec
from simfed.schema.distribution import Distribution


def load_data(data: str | DatasetSpec, *, where: str | None = None) -> Dataset:
    """Return the data set that a scenario names, read from where it is kept.

    Args:
        data: The name of a registered set, or the scenario's section `dataset`.
        where: The key that asked, for errors.

    Returns:
        The data set; files of one's own are read once, while they stay as they are.

    Raises:
        InputError: Files are missing, damaged, or do not fit together.
    """
    if isinstance(data, str):
        return load_dataset(data, where=where)
    if data.name is not None:
        return load_dataset(data.name, where=where or "dataset.name")
    return _read_dataset(data.source, _stamp_files(data))


def labels_in(data: DatasetSpec) -> Labels:
    """Return sizes, labels and owners of files of one's own, without their samples.

    Args:
        data: The section `dataset` of a scenario, which names files.

    Raises:
        InputError: Files are missing, damaged, or do not fit together.
    """
    return _read_labels(data.source, _stamp_files(data))


def open_labels(data: DatasetSpec) -> Dataset | Labels:
    """Return a registered set as a whole, of files of one's own only the labels.

    Both have `train_labels`, `train_owners` and `facts`.
    """
    return load_data(data) if data.name is not None else labels_in(data)


def list_inputs(data: DatasetSpec) -> list[str]:
    """Return the columns of a table that are learned from, as texts for people.

    Empty for what has no columns.
    """
    if data.name is not None:
        return []
    reader = _build_reader(data.source, _stamp_files(data))
    return reader.list_inputs() if isinstance(reader, TableReader) else []


def split_of(scenario: Scenario, streams: Streams) -> Split:
    """Return the clients' training samples in a scenario.

    Of files of one's own no sample is read.

    Args:
        scenario: Its `dataset.partition`, number of clients and public samples.
        streams: Those of the run's seed; see `deal`.

    Raises:
        InputError: There are too few samples or owners.
    """
    named, partition = open_labels(scenario.dataset), scenario.dataset.partition
    sizes: str | tuple[int, int] | Distribution | Floats | None = partition.sizes
    if isinstance(sizes, Distribution):
        sizes = Fleet(scenario, streams).sizes(sizes)
    return deal(
        named.train_labels,
        streams,
        clients=scenario.client_count,
        public=scenario.public_dealt,
        kind=partition.kind,
        alpha=partition.alpha,
        shards_per_client=partition.shards_per_client,
        sigma=partition.sigma,
        owners=named.train_owners,
        sizing=Sizing(sizes, partition.least, partition.classes),
        names=name_classes(named),
        held_share=scenario.evaluation.held_share,
    )


def count_held_out(scenario: Scenario, streams: Streams) -> int:
    """Return the number of samples, training and test, that held-out owners have.

    Raises:
        InputError: As `split_of`, and where the data name no owners.
    """
    named = open_labels(scenario.dataset)
    held = split_of(scenario, streams).held
    if held is None:
        where = "evaluation.owners"
        raise InputError("a data set that names owners", where=where, got="held-out")
    both = (named.train_owners, named.test_owners)
    return sum(int(np.isin(own, held).sum()) for own in both if own is not None)


def hold_out(dataset: Dataset, held: NDArray[np.int64]) -> Dataset:
    """Return the data set with all samples of these owners, and no others, as tests.

    Args:
        dataset: One with owners.
        held: Numbers of the owners, as `Split.held` has them.
    """
    parts = [
        [array[np.isin(owners, held)] for array in (images, labels, owners)]
        for images, labels, owners in (
            (dataset.train_images, dataset.train_labels, dataset.train_owners),
            (dataset.test_images, dataset.test_labels, dataset.test_owners),
        )
        if owners is not None
    ]
    images, labels, owners = map(np.concatenate, zip(*parts, strict=True))
    return replace(dataset, test_images=images, test_labels=labels, test_owners=owners)


def name_classes(data: Dataset | Labels) -> tuple[str, ...]:
    """Return the names of a data set's classes; where it has none, their numbers."""
    names = data.class_names if isinstance(data, Dataset) else data.classes
    return names or tuple(map(str, range(data.facts.classes)))


def files_digest(data: DatasetSpec) -> str:
    """Return SHA-256 over the files of one's own.

    Files count by their names below what the scenario names.
    """
    return _digest_files(data.source, _stamp_files(data))


def public_digest(path: str) -> str:
    """Return SHA-256 of a public set's file."""
    return hashlib.sha256(read_bytes(locate_path(path))).hexdigest()


def public_samples(path: str, like: Dataset, layout: str | None = None) -> np.ndarray:
    """Return `x` of an npz file: samples as the training set has them, channels first.

    Args:
        path: The file, where the scenario says or in a data folder.
        like: The training set; numbers are converted to its type, shapes must be equal.
        layout: Of images in the files, where the scenario says it. Without it the
            training set's shape tells: an axis of one channel may lack, nothing else is
            guessed.

    Returns:
        (n, *input_shape), not normalised.

    Raises:
        InputError: Another shape or type, or numbers that are not finite.
    """
    values = _open_public(path).read("x")
    dtype = like.train_images.dtype
    if dtype != np.uint8 and values.dtype.kind in "uif":
        values = values.astype(dtype)
    values = _arrange_public(values, like.train_images.shape[1:], path, layout)
    if values.dtype != dtype:
        allowed = f"{dtype} samples, as the training set has"
        raise InputError(allowed, where=f"{path}: x", got=str(values.dtype))
    if values.dtype == np.float32:
        check_finite(values, f"{path}: x")
    return values


def check_public_file(data: DatasetSpec, shape: tuple[int, ...]) -> None:
    """Check a public set's file by its header, beside training samples of this shape.

    Args:
        data: The section `dataset`, with its public file and number of public samples.
        shape: Of one training sample.

    Raises:
        InputError: Another shape, or fewer samples than `public`.
    """
    path = str(data.public_file)
    (count, *rest), dtype = _open_public(path).header("x")
    _arrange_public(np.empty((0, *rest), dtype), shape, path, data.layout)
    if count < data.public:
        allowed = f"at most the {count} samples of {path}"
        raise InputError(allowed, where="dataset.public", got=data.public)


def _open_public(path: str) -> Arrays:
    """Return the arrays of a public set's file, of which `x` must be one."""
    arrays = Arrays(locate_path(path))
    if "x" not in arrays.names:
        raise InputError(
            "the array x", where=path, got=", ".join(arrays.names) or "no array"
        )
    if not arrays.header("x")[0]:
        raise InputError(
            "an array of samples", where=f"{path}: x", got="a single number"
        )
    return arrays


def _arrange_public(
    values: np.ndarray, shape: tuple[int, ...], path: str, layout: str | None
) -> np.ndarray:
    """Return samples of a public set in the shape of the training set's.

    Args:
        values: (n, …) as the file has them.
        shape: Of one training sample.
        path: The file, for errors.
        layout: See `public_samples`.
    """
    came = values.shape[1:]
    if values.ndim == 4 and (layout == "channels-last" or came != shape):
        moved = np.moveaxis(values, -1, 1)
        values = np.ascontiguousarray(moved) if moved.shape[1:] == shape else values
    if shape[0] == 1 and came in (shape[1:], (int(np.prod(shape)),)):
        values = values.reshape(len(values), *shape)
    if values.shape[1:] != shape:
        allowed = (
            f"samples of shape (n, {', '.join(map(str, shape))}), as the "
            f"training set has"
        )
        raise InputError(
            allowed, where=f"{path}: x", got=f"(n, {', '.join(map(str, came))})"
        )
    return values


def locate_path(path: str) -> str:
    """Return where a file or folder is.

    It is where the scenario says or, where it was moved, under its name in a data
    folder (`simfed data path`).
    """
    if not Path(path).exists():
        for folder in list_data_folders():
            if (folder / Path(path).name).exists():
                return str(folder / Path(path).name)
    return path


Stamp = tuple[tuple[str, int, int], ...]


def _stamp_files(data: DatasetSpec) -> Stamp:
    """Return names, times of change and sizes of all files, in folders too.

    While they stay, what was read is not read again. Files that are missing are left
    out.
    """
    return tuple(
        (str(file), (facts := file.stat()).st_mtime_ns, facts.st_size)
        for place in _list_places(data.source).values()
        for file in _list_files(place)
    )


def _list_places(data: DatasetSpec) -> dict[str, Path]:
    """Return the file or folder that is read for each key."""
    if data.torchvision is not None:
        return {"root": TorchvisionReader(data.torchvision, data.root).place}
    return {key: Path(path) for key, path in _locate_paths(data).items()}


def _locate_paths(data: DatasetSpec) -> dict[str, str]:
    """Return where the file or folder of each key of the scenario is now."""
    return {
        key: locate_hub_set(path)
        if key == "huggingface" and not Path(path).is_absolute()
        else locate_path(path)
        for key, path in data.paths.items()
    }


@lru_cache(maxsize=1)
def _build_reader(data: DatasetSpec, stamp: Stamp) -> Reader:
    """Return the reader of the files that a scenario names."""
    data = data.model_copy(update=_locate_paths(data))
    ways: dict[str, Callable[[], Reader]] = {
        "file": lambda: NpzReader(str(data.file), data.task, data.layout),
        "table": lambda: _build_table_reader(data),
        "folder": lambda: FolderReader(str(data.folder), data.pixels),
        "leaf": lambda: LeafReader(str(data.leaf)),
        "torchvision": lambda: TorchvisionReader(str(data.torchvision), data.root),
        "huggingface": lambda: _build_table_reader(data),
    }
    return ways[data.kind]()


def _build_table_reader(data: DatasetSpec) -> TableReader:
    """Return the reader of a table, or of a Hugging Face folder, which holds tables."""
    if data.table is not None:
        train = open_table(data.table)
        test = open_table(data.test, train) if data.test else None
    else:
        train, test = open_huggingface_tables(str(data.huggingface))
    return TableReader(
        train,
        test,
        target=data.target or "label",
        owner=data.owner,
        features=data.features,
        missing=data.missing,
        layout=data.layout,
    )


@lru_cache(maxsize=4)
def _read_labels(data: DatasetSpec, stamp: Stamp) -> Labels:
    """Return the labels of files; kept while their `stamp` stays."""
    return build_labels(_build_reader(data, stamp).outline(), data.task)


@lru_cache(maxsize=1)
def _read_dataset(data: DatasetSpec, stamp: Stamp) -> Dataset:
    """Return the data set of files; kept while their `stamp` stays."""
    reader, labels = _build_reader(data, stamp), _read_labels(data, stamp)
    samples = reader.samples(test=False)
    if labels.test_rows is None:
        tests = reader.samples(test=True)
    else:
        samples, tests = samples[labels.train_rows], samples[labels.test_rows]
    mean, sd = reader.compute_scaling(samples)
    _build_reader.cache_clear()  # a table may be large
    return Dataset(
        samples,
        labels.train_labels,
        tests,
        labels.test_labels,
        len(labels.classes) or 1,
        mean,
        sd,
        task=labels.task,
        train_owners=labels.train_owners,
        test_owners=labels.test_owners,
        owners=labels.owners,
        class_names=labels.classes,
        target_sd=labels.target_sd,
    )


@lru_cache(maxsize=16)
def _digest_files(data: DatasetSpec, stamp: Stamp) -> str:
    """Return SHA-256 over keys, relative names, sizes and content of all files."""
    sha = hashlib.sha256()
    places = _list_places(data)
    for key, place in places.items():
        if not place.exists():
            raise make_missing_file_error(str(place))
        for file in _list_files(place):
            name = file.relative_to(place).as_posix() if place.is_dir() else ""
            sha.update(f"{key}/{name}\0{file.stat().st_size}\0".encode())
            with open_file(file) as content:
                while piece := content.read(1 << 20):
                    sha.update(piece)
    return sha.hexdigest()


def _list_files(place: Path) -> Iterator[Path]:
    """Yield a file, or all files below a folder, sorted."""
    if place.is_file():
        yield place
    else:
        yield from sorted(file for file in place.rglob("*") if file.is_file())
