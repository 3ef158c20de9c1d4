"""Reading the files that data sets are published in.

Nothing here runs code found in a file.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simfed.ground.errors import InputError

Arrays = tuple[NDArray[np.uint8], NDArray[np.uint8]]

CIFAR_SHAPE = (3, 32, 32)
CIFAR_ROW_BYTES = 1 + 3 * 32 * 32


def read_idx(content: bytes, name: str = "idx file") -> NDArray[np.uint8]:
    """Return the array of unsigned bytes in an idx file, the format of MNIST.

    The header is 0, 0, the type code 8, the number of axes, then each axis as a
    big-endian 32-bit integer.

    Args:
        content: The file's, uncompressed; the array shares its memory.
        name: The file, for errors.

    Raises:
        InputError: Another type or no header, or another length than it says.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])).tolist()
    [7, 8, 9]
    """
    axes = content[3] if len(content) >= 4 else 0
    header = 4 + 4 * axes
    if content[:3] != b"\x00\x00\x08" or axes == 0 or len(content) < header:
        raise InputError(f"{name}: an idx file of unsigned bytes", got=content[:8])
    shape = struct.unpack(f">{axes}I", content[4:header])
    size = header + int(np.prod(shape, dtype=object))
    if len(content) != size:
        raise InputError(f"{name}: {size} bytes, as its header says", got=len(content))
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_mnist(files: Mapping[str, bytes]) -> tuple[Arrays, Arrays]:
    """Return training and test sets of the four files of MNIST.

    Args:
        files: Name → content, uncompressed; names as published
            (`train-images-idx3-ubyte`, …).

    Returns:
        For each set images (n, 1, height, width) and labels (n,), uint8.
    """
    return _read_mnist_split(files, "train"), _read_mnist_split(files, "t10k")


def _read_mnist_split(files: Mapping[str, bytes], split: str) -> Arrays:
    images, labels = f"{split}-images-idx3-ubyte", f"{split}-labels-idx1-ubyte"
    return read_idx(files[images], images)[:, None], read_idx(files[labels], labels)


def read_cifar(files: Mapping[str, bytes]) -> tuple[Arrays, Arrays]:
    """Return training and test sets of the binary version of CIFAR-10.

    Args:
        files: Name → content: `data_batch_*.bin` are training, in their order.

    Returns:
        For each set images (n, 3, 32, 32) and labels (n,), uint8.
    """
    train = [name for name in sorted(files) if name.startswith("data_batch_")]
    return _read_cifar_split(files, train), _read_cifar_split(files, ["test_batch.bin"])


def _read_cifar_split(files: Mapping[str, bytes], names: Sequence[str]) -> Arrays:
    """Return images and labels of some files; a row is a label and 3,072 pixels."""
    rows = np.frombuffer(b"".join(files[name] for name in names), np.uint8)
    rows = rows.reshape(-1, CIFAR_ROW_BYTES)
    return np.ascontiguousarray(rows[:, 1:]).reshape(-1, *CIFAR_SHAPE), rows[
        :, 0
    ].copy()


def join_cifar_rows(labels: NDArray[np.uint8], pixels: NDArray[np.uint8]) -> bytes:
    """Return the binary version of images: label, then red, green and blue plane.

    Pixels are (n, 3072).
    """
    return np.concatenate([labels[:, None], pixels], axis=1).astype(np.uint8).tobytes()


def convert_cifar_pickle(content: bytes, labels_key: bytes = b"labels") -> bytes:
    """Return the binary version of a batch of the "Python version", a pickle.

    A pickle may call anything; this reader knows three names, those of an array of
    bytes, and builds none of NumPy's objects for them.

    Raises: `InputError` for a pickle that asks for more.
    """
    try:
        batch = _BatchUnpickler(io.BytesIO(content), encoding="bytes").load()
        labels, array = batch[labels_key], batch[b"data"]
        pixels = np.frombuffer(array.content, np.uint8).reshape(array.shape)
        return join_cifar_rows(np.asarray(labels, np.uint8), pixels)
    except (
        pickle.UnpicklingError,
        EOFError,
        KeyError,
        IndexError,
        ValueError,
        TypeError,
        AttributeError,
        OverflowError,
    ) as error:
        raise InputError(problem=f"no pickled batch of CIFAR-10: {error}") from None


class _PickledArray:
    """Stands in for `numpy.ndarray`: keeps shape and bytes of the pickle's array."""

    shape: tuple[int, ...]
    content: bytes

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, self.shape, kind, fortran_order, self.content = state
        if not isinstance(kind, _PickledType) or kind.code != b"u1" or fortran_order:
            raise pickle.UnpicklingError("an array of unsigned bytes, row by row")


class _PickledType:
    """Stands in for `numpy.dtype`, so that no pickled file calls NumPy."""

    def __init__(self, code: bytes, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment, which mean nothing to single bytes."""


def _reconstruct(*_: object) -> _PickledArray:
    return _PickledArray()


class _BatchUnpickler(pickle.Unpickler):
    """An unpickler that knows the three names in a pickled array of bytes alone."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
            ("numpy", "ndarray"): _PickledArray,
            ("numpy", "dtype"): _PickledType,
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return allowed[module, name]
