"""Flat vectors as NumPy arrays or torch tensors, their layers and stretches.

What is handed over as NumPy comes back as NumPy, a tensor as a tensor on its own
device. Importing this module imports no torch: whoever holds a tensor has imported it
already.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simfed.ground.errors import InputError
from simfed.ground.method import Layout

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeIs

Vector: TypeAlias = Any
"""A flat NumPy array or a flat torch tensor. Who handed one in gets the same library
back, so a union, which every caller would have to take apart again, is not what is
meant."""

Floats: TypeAlias = NDArray[np.float32]

Indices: TypeAlias = NDArray[np.int64]
"""Sorted, distinct places in a vector."""

Block: TypeAlias = tuple[slice, Floats]
"""A stretch of a vector and its values."""

Device: TypeAlias = "torch.device | None"
"""The device of a tensor; None for NumPy."""

_CACHED = 2**16
"""Entries worked on at once: a few such blocks fit a level-2 cache."""


def is_tensor(values: object) -> TypeIs[torch.Tensor]:
    """Return whether this is a torch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def convert_to_numpy(array: object) -> np.ndarray:
    """Return a NumPy array of what may be a tensor; a view where memory allows."""
    return array.detach().cpu().numpy() if is_tensor(array) else np.asarray(array)


def require_vector(update: Vector) -> Floats:
    """Return a flat float32 NumPy array, not copied where it is one already.

    Raises: `InputError` for another shape.
    """
    values: Floats = np.ascontiguousarray(convert_to_numpy(update), dtype=np.float32)
    if values.ndim != 1 or not values.size:
        raise InputError("a flat, non-empty vector", got=f"shape {values.shape}")
    return values


def find_device(update: Vector | None) -> Device:
    """Return the torch device of a tensor, None for anything else."""
    return update.device if is_tensor(update) else None


def move_vector(vector: Floats, device: Device) -> Vector:
    """Return `vector` itself, or as a tensor on a torch device.

    On a CPU the memory is shared.
    """
    if device is None:
        return vector
    import torch

    return torch.from_numpy(vector).to(device)


def move_positions(positions: Indices, device: torch.device) -> torch.Tensor:
    """Return `positions` as a tensor on a torch device.

    The host does not wait for it to get there.
    """
    import torch

    tensor = torch.from_numpy(positions)
    if device.type == "cpu":
        return tensor
    if device.type == "cuda":
        # a copy from ordinary memory may wait for the device
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def move_indices(indices: Vector, update: Vector | None) -> Vector:
    """Return `indices` as a tensor on the update's device where that is a tensor."""
    if not is_tensor(update) or is_tensor(indices):
        return indices
    return move_positions(indices, update.device)


def list_layers(length: int, layout: Layout | None) -> list[slice]:
    """Return the stretches of the layers; one stretch without a layout.

    Raises: `InputError` if the layout does not fit.
    """
    if layout is None:
        return [slice(0, length)]
    ends = np.cumsum([math.prod(shape) for shape in layout]).tolist() if layout else []
    if not ends or ends[-1] != length:
        raise InputError(
            f"shapes of {length} entries in all", where="layout", got=list(layout)
        )
    return [slice(a, b) for a, b in zip([0, *ends], ends, strict=False) if b > a]


def chunks(length: int) -> Iterator[slice]:
    """Return the stretches of a vector that fit the cache, in order.

    >>> list(chunks(100_000))
    [slice(0, 65536, None), slice(65536, 100000, None)]
    """
    return (slice(a, min(a + _CACHED, length)) for a in range(0, length, _CACHED))
