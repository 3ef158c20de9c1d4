"""Selections of entries, the largest or random ones: pure functions of flat vectors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from simfed.compress.vectors import Floats, Indices, Vector, is_tensor
from simfed.ground.errors import InputError

if TYPE_CHECKING:
    import torch

Bits: TypeAlias = np.ndarray
"""Floats of 32 or 64 bits, or their magnitudes, as unsigned integers of as many
bits."""

Magnitude: TypeAlias = Any
"""One such number, of NumPy's type."""

# Magnitudes are compared as unsigned integers: the bits of a float without its sign
# have the order of |x|, equal zeros, and everything from infinity's bits on is no
# finite number. Per item size:
_UNSIGNED = {4: np.uint32, 8: np.uint64}
_WITHOUT_SIGN = {size: u(np.iinfo(u).max >> 1) for size, u in _UNSIGNED.items()}
_INFINITY = {
    size: np.array(np.inf, f"f{size}").view(u)[()] for size, u in _UNSIGNED.items()
}

# entries; measured: up to here a plain partition is as fast as sampling
_DIRECT_BELOW = 2**17
_SAMPLE_AT_MOST = 2**15
_SAMPLE_ONE_IN = 32
_BLOCK = 2**16  # entries; half of the temporary memory fits a level-2 cache


def top_k_indices(values: Vector, k: int) -> Vector:
    """Return the sorted indices of the min(k, d) largest |values|.

    Exact: the same set as the first k of a stable sort by falling |value|. Ties go to
    the lowest index; zeros of either sign are equal.

    Args:
        values: shape (d,), a NumPy array or torch tensor of 16-, 32- or 64-bit floats
            (bfloat16 too). On an accelerator at most 32 bits, and the device is never
            waited for.
        k: how many, at least 1.

    Returns:
        int64 indices, shape (min(k, d),); of a tensor a tensor on its device.

    Raises:
        InputError: a NaN or an infinity (not looked for on an accelerator, where
            looking means waiting), k < 1, or anything but a flat, non-empty vector of
            floats.

    >>> top_k_indices(np.array([0.5, -3.0, 0.5, 2.0]), 3)
    array([0, 1, 3])
    """
    if is_tensor(values):
        import torch

        _check_vector(values, values.is_floating_point())
        values = values.detach()
        if values.itemsize == 2:
            values = values.float()
        if values.device.type != "cpu":
            return select_top_k_on_device(values, check_k(k, len(values)))
        return torch.from_numpy(top_k_indices(values.numpy(), k))
    values = np.asarray(values)
    _check_vector(values, values.dtype.char in "efd" and values.dtype.isnative)
    if values.itemsize == 2:  # exact, and so are its order and its ties
        values = values.astype(np.float32)
    raw, k = values.view(_UNSIGNED[values.itemsize]), check_k(k, values.size)
    # A sample gives a threshold that most likely lies just below the k-th largest
    # magnitude; one pass in blocks that fit the cache collects what exceeds it, and
    # only that is searched exactly. The threshold decides how long it takes, never the
    # result.
    threshold = None if raw.size < _DIRECT_BELOW else _threshold_below_kth(raw, k)
    if threshold is not None:
        indices, magnitudes = _find_entries_above(raw, threshold)
        _refuse_non_finite(magnitudes.max(initial=threshold))
        if indices.size >= k:
            return indices[_select_largest(magnitudes, k)]
        chosen = _add_ties(indices, raw, threshold, k)
        if chosen.size == k:
            return chosen
    magnitudes = raw & _WITHOUT_SIGN[raw.itemsize]
    _refuse_non_finite(magnitudes.max())
    return _select_largest(magnitudes, k)


def random_k_indices(length: int, k: int, rng: np.random.Generator) -> Indices:
    """Return min(k, length) sorted indices, drawn uniformly without replacement.

    Args:
        length: d, of the vector.
        k: how many, at least 1.
        rng: draws are its alone; equal generators draw equal indices.

    Returns:
        int64 indices below `length`, shape (min(k, length),).

    >>> random_k_indices(10, 4, np.random.default_rng(0))
    array([2, 5, 6, 8])
    """
    k = check_k(k, length)
    if k < length // 20:
        return np.sort(rng.choice(length, k, replace=False, shuffle=False))
    # Dense: mark until enough are marked (or, above one half, left out). `choice` takes
    # 5 × as long.
    fewer = min(k, length - k)
    marked = np.zeros(length, bool)
    missing = fewer
    while missing:
        marked[rng.integers(length, size=missing)] = True
        missing = fewer - np.count_nonzero(marked)
    return np.flatnonzero(marked if fewer == k else ~marked)


def check_k(k: int, length: int) -> int:
    """Return min(k, length); `InputError` unless both are at least 1."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise InputError("a whole number of at least 1 for k", got=k)
    if length < 1:
        raise InputError("a vector of at least one entry", got=length)
    return min(int(k), int(length))


def refuse_non_finite(values: Floats) -> None:
    """Raises `InputError` if there is a NaN or an infinity in a vector.

    One pass over it.
    """
    for start in range(0, values.size, _BLOCK):
        part = values[start : start + _BLOCK]
        with np.errstate(over="ignore", invalid="ignore"):
            total = part.sum()
        if not math.isfinite(total) and not np.isfinite(part).all():
            raise _make_non_finite_error(part[~np.isfinite(part)][0])


def _check_vector(values: Vector, suits: bool) -> None:
    if values.ndim != 1 or not len(values) or not suits:
        got = f"shape {tuple(values.shape)} of {values.dtype}"
        raise InputError(
            "a flat, non-empty vector of 16-, 32- or 64-bit floats", got=got
        )


def _select_largest(magnitudes: Bits, k: int) -> Indices:
    """Return sorted positions of the k largest, ties to the lowest position."""
    # Complemented: NumPy's vectorised selection needs up to 60 × as long where the
    # smallest number fills more than half of its input, and zeros do that in many a
    # gradient.
    complement = ~magnitudes
    complement.partition(k - 1)
    kth = ~complement[k - 1]
    chosen = magnitudes >= kth
    surplus = np.count_nonzero(chosen) - k
    if surplus:  # from the first surplus tie on, only what is larger
        end = np.flatnonzero(magnitudes == kth)[-surplus]
        np.greater(magnitudes[end:], kth, out=chosen[end:])
    places: Indices = chosen.nonzero()[0]  # without the overhead of `np.flatnonzero`
    return places


def _add_ties(above: Indices, raw: Bits, magnitude: Magnitude, k: int) -> Indices:
    """Return `above`, sorted, with the lowest indices of entries of this magnitude.

    There are k in all, fewer where there are not that many.
    """
    missing = k - above.size
    parts, start, size = [above], 0, max(missing, 1024)
    while missing and start < raw.size:
        some = raw[start : start + size] & _WITHOUT_SIGN[raw.itemsize]
        ties = np.flatnonzero(some == magnitude)[:missing]
        parts.append(ties + start)
        missing -= ties.size
        start, size = start + size, min(2 * size, _BLOCK)
    return np.sort(np.concatenate(parts))


def _threshold_below_kth(raw: Bits, k: int) -> Magnitude | None:
    """Return a magnitude just below the k-th largest, or equal to it.

    It is right in all but 1 of 10,000 cases. None where a sample cannot tell (k close
    to d).
    """
    size = min(_SAMPLE_AT_MOST, raw.size // _SAMPLE_ONE_IN)
    # One draw in each of `size` equal stretches: a fixed stride could beat with a
    # layer's shape.
    offsets = np.random.Generator(np.random.Philox(key=0)).random(size)
    places = ((np.arange(size) + offsets) * (raw.size / size)).astype(np.int64)
    share = k / raw.size
    rank = int(size * share + 4 * math.sqrt(size * share * (1 - share)) + 4)
    if rank > size:
        return None
    sample = raw[places] & _WITHOUT_SIGN[raw.itemsize]
    return np.partition(sample, size - rank)[size - rank]


def _find_entries_above(raw: Bits, threshold: Magnitude) -> tuple[Indices, Bits]:
    """Return (indices, magnitudes) of entries whose magnitude exceeds `threshold`."""
    blocks = []
    for start in range(0, raw.size, _BLOCK):
        magnitudes = raw[start : start + _BLOCK] & _WITHOUT_SIGN[raw.itemsize]
        indices = np.flatnonzero(magnitudes > threshold)
        blocks.append((indices + start, magnitudes[indices]))
    all_indices, all_magnitudes = zip(*blocks, strict=True)
    return np.concatenate(all_indices), np.concatenate(all_magnitudes)


def _refuse_non_finite(largest: Magnitude) -> None:
    infinity = _INFINITY[largest.itemsize]
    if largest >= infinity:
        raise _make_non_finite_error(np.inf if largest == infinity else np.nan)


def _make_non_finite_error(entry: float | np.floating) -> InputError:
    return InputError(
        "finite entries", got=float(entry), hint="has the learning diverged?"
    )


def select_top_k_on_device(values: torch.Tensor, k: int) -> torch.Tensor:
    """Return the Top-K indices of 32-bit floats, by torch's own kernels.

    One number per entry, magnitude above and falling index below, makes all entries
    distinct: the k largest of them are the k largest magnitudes with ties to the lowest
    index, and nothing has to be counted on the host.
    """
    import torch

    if values.dtype != torch.float32:
        raise InputError(
            "16- or 32-bit floats on an accelerator", got=str(values.dtype)
        )
    magnitudes = values.view(torch.int32).bitwise_and(2**31 - 1).long()
    places = torch.arange(len(values), device=values.device)
    keys = (magnitudes << 32) | (2**32 - 1 - places)
    lowest_first = keys.topk(k, sorted=False).values.bitwise_and(2**32 - 1)
    return (2**32 - 1 - lowest_first).sort().values
