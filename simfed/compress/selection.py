"""Which entries travel: the largest, or random ones. Pure functions on flat vectors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simfed.errors import InputError

__all__ = ["random_k_indices", "top_k_indices"]

Indices = NDArray[np.int64]


def top_k_indices(values: Any, k: int) -> Any:
    """Sorted int64 indices of the min(k, d) largest |values|, ties to the lowest index.

    Exact: the same set as the first k of a stable sort by falling |value|. Zeros of either sign are
    equal. `values` is a flat NumPy array or torch tensor of 16-, 32- or 64-bit floats; a tensor
    gives a tensor on its device, and one on an accelerator is never waited for.

    Raises: `InputError` for a NaN or an infinity (not looked for on an accelerator, where looking
    means waiting), for k < 1 and for anything but a flat, non-empty vector of floats.

    >>> top_k_indices(np.array([0.5, -3.0, 0.5, 2.0]), 3)
    array([0, 1, 3])
    """
    if is_tensor(values):
        return _top_k_of_tensor(values, k)
    values = np.asarray(values)
    if values.ndim != 1 or values.size == 0 or values.dtype.kind != "f":
        raise InputError("a flat, non-empty vector of floats", got=_described(values))
    return _top_k_of_keys(magnitude_bits(values), checked_k(k, values.size))


def random_k_indices(length: int, k: int, rng: np.random.Generator) -> Indices:
    """min(k, length) indices below `length`, uniformly without replacement, sorted, int64.

    >>> random_k_indices(10, 4, np.random.default_rng(0))
    array([2, 4, 5, 7])
    """
    k = checked_k(k, length)
    return np.sort(rng.choice(length, k, replace=False, shuffle=False))


def checked_k(k: int, length: int) -> int:
    """min(k, length); `InputError` unless both are at least 1."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise InputError("a whole number of at least 1 for k", got=k)
    if length < 1:
        raise InputError("a vector of at least one entry", got=length)
    return min(int(k), int(length))


def is_tensor(values: object) -> bool:
    """Whether this is a torch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def magnitude_bits(values: Any) -> Any:
    """|values| as unsigned integers of the same order: the bits without the sign.

    Infinity and NaN come out at or above the bits of infinity, and zeros of either sign as 0.
    """
    unsigned = np.dtype(f"u{values.dtype.itemsize}")
    return values.view(unsigned) & unsigned.type(np.iinfo(unsigned).max >> 1)


def _top_k_of_keys(keys: Any, k: int) -> Indices:
    kth = np.partition(keys, keys.size - k)[keys.size - k]
    chosen = keys > kth
    ties = np.flatnonzero(keys == kth)
    chosen[ties[: k - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def _top_k_of_tensor(values: Any, k: int) -> Any:
    import torch

    if values.device.type == "cpu":
        return torch.from_numpy(top_k_indices(values.detach().numpy(), k))
    k = checked_k(k, values.numel())
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.dtype.itemsize]
    keys = values.detach().view(integer).bitwise_and(torch.iinfo(integer).max).long()
    kth = keys.topk(k, sorted=False).values.amin()
    # Rank ties by index without asking how many there are, which would wait for the device.
    above, tied = keys > kth, keys == kth
    chosen = above | (tied & (tied.cumsum(0) <= k - above.sum()))
    return torch.nonzero_static(chosen, size=k).flatten()


def _described(values: Any) -> str:
    return f"shape {tuple(values.shape)} of {values.dtype}"
