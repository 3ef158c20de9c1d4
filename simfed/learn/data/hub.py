"""Folders as torchvision and Hugging Face's library leave them, read without either.

Only `fetch_hub_set` needs Hugging Face's `datasets`, since it asks the hub.
"""

from __future__ import annotations

import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from simfed.ground.errors import InputError, listed
from simfed.ground.inputs import make_missing_file_error, read_json
from simfed.learn.data.formats import (
    Arrays,
    convert_cifar_pickle,
    read_cifar,
    read_mnist,
)
from simfed.learn.data.outline import Outline, Reader, describe_error
from simfed.learn.data.store import Folder, gunzip_bytes, list_data_folders
from simfed.learn.data.tables import DiskTable, open_arrow_files, open_parquet_files

_MOST_BYTES = 1 << 30
_HUB_SETS = "huggingface"
"""Folder below a data folder with sets that came from the hub."""
_SAFE = (2, 20)
"""The first version of the library that runs no code of a repository unasked."""

_MNIST = tuple(
    f"{part}-{what}-ubyte"
    for part in ("train", "t10k")
    for what in ("images-idx3", "labels-idx1")
)
_SCALES = {
    "MNIST": ((0.1307,), (0.3081,)),
    "FashionMNIST": ((0.2860,), (0.3530,)),
    "KMNIST": ((0.1918,), (0.3483,)),
    "CIFAR10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "CIFAR100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
_CIFAR = {
    "CIFAR10": (
        "cifar-10-batches-py",
        {
            **{f"data_batch_{i}.bin": f"data_batch_{i}" for i in range(1, 6)},
            "test_batch.bin": "test_batch",
        },
    ),
    "CIFAR100": (
        "cifar-100-python",
        {"data_batch_1.bin": "train", "test_batch.bin": "test"},
    ),
}


class TorchvisionReader(Reader):
    """A reader of a data set as torchvision keeps it below its `root`, gzipped or not.

    It knows MNIST and its kin (idx files), CIFAR-10 and CIFAR-100 (pickles, which are
    read by a reader that runs no code).
    """

    def __init__(self, name: str, root: str | None) -> None:
        """Find the set's folder.

        Args:
            name: The class of `torchvision.datasets`, such as `CIFAR10`.
            root: The `root` that was given to it; None: the data folders.

        Raises:
            InputError: There is no such folder.
        """
        self._name = name
        self._roots = [Path(root)] if root else list_data_folders()
        folder = f"{name}/raw" if name not in _CIFAR else _CIFAR[name][0]
        homes = [home / folder for home in self._roots if (home / folder).is_dir()]
        if not homes:
            raise InputError(
                f"torchvision's folder {folder}",
                where=f"torchvision {name}",
                got="none",
                hint=f"looked in {listed(map(str, self._roots))}; root: FOLDER names "
                f"another",
            )
        self.place = homes[0]

    @cached_property
    def _sets(self) -> tuple[Arrays, Arrays]:
        """The training and the test set."""
        if self._name not in _CIFAR:
            return read_mnist({name: self._read_content(name) for name in _MNIST})
        labels = b"labels" if self._name == "CIFAR10" else b"fine_labels"
        return read_cifar(
            {
                name: convert_cifar_pickle(self._read_content(source), labels)
                for name, source in _CIFAR[self._name][1].items()
            }
        )

    def _read_content(self, name: str) -> bytes:
        """Return a file's content, unpacked where it lies there gzipped.

        Raises:
            InputError: It is missing, damaged, or larger than a gibibyte.
        """
        view = Folder(self.place)
        content = view.read(name, _MOST_BYTES)
        if (
            content is None
            and (packed := view.read(f"{name}.gz", _MOST_BYTES)) is not None
        ):
            content = gunzip_bytes(packed, _MOST_BYTES, f"{self.place / name}.gz")
        if content is None:
            raise make_missing_file_error(str(self.place / name))
        if len(content) > _MOST_BYTES:
            raise InputError(
                f"a file of at most {_MOST_BYTES:,} bytes",
                where=str(self.place / name),
                got="more",
            )
        return content

    @override
    def outline(self) -> Outline:
        (images, labels), (_, tests) = self._sets
        classes = int(max(labels.max(), tests.max())) + 1
        return Outline(
            str(self.place),
            images.shape[1:],
            [labels, tests],
            classes=tuple(map(str, range(max(2, classes)))),
        )

    @override
    def samples(self, test: bool) -> np.ndarray:
        return self._sets[int(test)][0]

    @override
    def compute_scaling(
        self, rows: np.ndarray
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return _SCALES[self._name]


def open_huggingface_tables(name: str) -> tuple[DiskTable, DiskTable | None]:
    """Return the training and, where there is one, test split of a folder.

    Args:
        name: A folder that `save_to_disk` wrote (of a set or of its splits), or one of
            Parquet files, whose names or folders say the split.

    Raises:
        InputError: There is neither, or no split `train`.
    """
    root = Path(name)
    if not root.is_dir():
        raise make_missing_file_error(name)
    if os.path.lexists(root / "state.json"):
        return _open_saved(root), None
    if (root / "dataset_dict.json").is_file():
        train, test = root / "train", root / "test"
        if not train.is_dir():
            folders = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
            raise InputError("a split `train`", where=name, got=listed(folders))
        return _open_saved(train), _open_saved(test) if test.is_dir() else None
    files = sorted(root.rglob("*.parquet"))
    if not files:
        allowed = "a data set that `save_to_disk` wrote, or Parquet files"
        raise InputError(allowed, where=name, problem="there is neither")
    parts: dict[str, list[str]] = {"train": [], "test": []}
    for file in files:
        split = _find_split(file.relative_to(root))
        if split in parts:
            parts[split].append(str(file))
    if not parts["train"]:
        raise InputError(
            "files of a split `train`", where=name, got=listed(f.name for f in files)
        )
    tests = open_parquet_files(parts["test"]) if parts["test"] else None
    return open_parquet_files(parts["train"]), tests


_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
}
"""Word in a file's name → split, as Hugging Face's library has them."""


def _find_split(file: Path) -> str:
    """Return the split that a whole word of a file's name says, else of its folders'.

    Folders count from the inner to the outer; `train` where none does.

    >>> names = "test/latest-00000.parquet", "contest.parquet"
    >>> [_find_split(Path(name)) for name in names]
    ['test', 'train']
    """
    for part in reversed(file.parts):
        for word in re.split("[^a-z]+", part.lower()):
            if word in _SPLITS:
                return _SPLITS[word]
    return "train"


def _open_saved(folder: Path) -> DiskTable:
    """Return one split that `save_to_disk` wrote, mapped into memory.

    Raises:
        InputError: Its state is damaged, names files elsewhere, or is a selection of
            rows, which only the library can apply.
    """
    try:
        state: Any = read_json(folder / "state.json")
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (LookupError, TypeError) as error:
        raise InputError(
            "the state of a saved data set",
            where=str(folder / "state.json"),
            problem=f"cannot be read: {error}",
        ) from None
    if state.get("_indices_data_files"):
        raise InputError(
            "rows in the order of the files",
            where=str(folder),
            problem="a selection of rows",
            hint="flatten_indices() before save_to_disk()",
        )
    for name in names:
        if Path(name).name != name:
            raise InputError("files in the folder itself", where=str(folder), got=name)
    return open_arrow_files(str(folder), [folder / name for name in names])


def locate_hub_set(name: str) -> str:
    """Return the folder in which `fetch_hub_set` put a data set of the hub.

    Raises: `InputError` where it is in no data folder; nobody is asked for it.
    """
    for folder in list_data_folders():
        if (place := folder / _HUB_SETS / name.replace("/", "--")).is_dir():
            return str(place)
    raise InputError(
        "a folder, or a data set of the hub that was fetched",
        where="dataset.huggingface",
        got=name,
        problem=f"{name} is not on this machine",
        hint=f"simfed data get huggingface:{name}",
    )


def fetch_hub_set(name: str) -> Path:
    """Fetch a data set from the hub into the first data folder.

    No code of it is run.

    Args:
        name: `NAME` or `OWNER/NAME`, as on the hub.

    Returns:
        The folder, which `locate_hub_set` finds by the same name.

    Raises:
        InputError: The library is missing or too old, or the hub has no such set.
    """
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
        raise InputError("OWNER/NAME", where="huggingface", got=name)
    try:
        import datasets
    except ImportError:
        raise InputError(
            where=f"huggingface {name}",
            problem="a name of the hub needs the library",
            hint="pip install 'simfed[huggingface]'",
        ) from None
    version = tuple(int(part) for part in datasets.__version__.split(".")[:2])
    if version < _SAFE:  # earlier ones run what a repository calls NAME.py
        raise InputError(
            "datasets 2.20 or later", where="huggingface", got=datasets.__version__
        )
    # from version 4 on none runs code, and none knows the switch
    switches = {"trust_remote_code": False} if version < (4, 0) else {}
    place = list_data_folders()[0] / _HUB_SETS / name.replace("/", "--")
    try:
        splits = datasets.load_dataset(name, **switches)
        if "train" not in splits:
            raise InputError(
                "a split `train`", where=f"huggingface {name}", got=listed(splits)
            )
        splits.save_to_disk(str(place))
    except InputError:
        raise
    # whatever the library meets: no network, no such name, a full disk
    except Exception as error:
        raise InputError(
            where=f"huggingface {name}",
            problem=f"cannot be had: {describe_error(error)}",
            hint="save_to_disk() where there is a network, and name the folder",
        ) from None
    return place
