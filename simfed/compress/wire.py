"""Bytes on the wire: what K of d entries cost under each index code, and real encoders.

Values travel as 32-bit floats, K of them, little-endian, in the order of their indices. K and d are
known to both sides (they belong to the task), so nothing else is sent but the indices:

| code     | bits for the indices                                                              |
|----------|-----------------------------------------------------------------------------------|
| `ideal`  | K·log2 d, not rounded: an accounting, without an encoder                          |
| `fixed`  | K·⌈log2 d⌉, bit-packed                                                            |
| `raw32`  | 32·K                                                                              |
| `bitmap` | d                                                                                 |
| `rice`   | 8 + Golomb–Rice code of the sorted gaps with the best parameter: depends on data  |
| `seeded` | 64: the seed from which the server repeats the choice; strategies that look at    |
|          | the update (Top-K) use `fixed`                                                    |

Each but `ideal` is rounded up to whole bytes. Strategies that keep all entries send no indices.
Plain arithmetic and NumPy; imports neither torch nor SciPy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from simfed.errors import InputError, did_you_mean, listed
from simfed.registry import registry

__all__ = ["INDEX_CODES", "size_bytes", "uplink_bytes"]

INDEX_CODES = ("ideal", "fixed", "raw32", "bitmap", "rice", "seeded")

_VALUE_BITS = 32
_SEED_BITS = 64


def uplink_bytes(strategy: str, d: int, k: int, index_code: str) -> float | None:
    """Bytes of one payload of min(k, d) entries out of d, or None where they depend on the data.

    `strategy` is a registered compressor's name.

    >>> uplink_bytes("top-k", 2**16, 1000, "ideal")
    6000.0
    >>> [uplink_bytes("top-k", 61_706, 1000, code) for code in INDEX_CODES]
    [5989.1..., 6000, 8000, 11714, None, 6000]
    """
    code = code_in_use(strategy, index_code)
    k = min(k, d)
    if code == "none":
        return 4 * d
    if code == "ideal":
        return k * (_VALUE_BITS + math.log2(d)) / 8
    if code == "rice":
        return None
    return 4 * k + -(-_index_bits(code, d, k) // 8)


def code_in_use(strategy: str, index_code: str) -> str:
    """The code that a strategy's indices travel in: `none` where they all do."""
    if index_code not in INDEX_CODES:
        raise InputError(
            f"an index code: {listed(INDEX_CODES)}",
            got=index_code,
            hint=did_you_mean(str(index_code), INDEX_CODES),
        )
    compressor = registry("compressor").get(strategy)
    if getattr(compressor, "keeps_all", False):
        return "none"
    if index_code == "seeded" and not hasattr(compressor, "mirror"):
        return "fixed"
    return index_code


def size_bytes(strategy: str, indices: Any, d: int, index_code: str) -> float:
    """Bytes of the payload with these sorted indices, whatever the code."""
    known = uplink_bytes(strategy, d, len(indices), index_code)
    if known is not None:
        return known
    gaps = np.diff(np.asarray(indices), prepend=-1) - 1
    return 4 * len(indices) + 1 + -(-_rice_parameter(gaps)[1] // 8)


def _index_bits(code: str, d: int, k: int) -> int:
    if code == "fixed":
        return k * (d - 1).bit_length()
    if code == "raw32":
        if d > 2**32:
            raise InputError("at most 2^32 entries for index code raw32", got=d)
        return k * 32
    if code == "bitmap":
        return d
    return _SEED_BITS


def _rice_parameter(gaps: Any) -> tuple[int, int]:
    """(parameter, bits) of the shortest Rice code of these gaps."""
    guess = max(0, int(gaps.mean() + 1).bit_length() - 1)
    sizes = {
        r: int((gaps >> r).sum()) + len(gaps) * (1 + r) for r in range(max(0, guess - 2), guess + 2)
    }
    return min(sizes.items(), key=lambda item: (item[1], item[0]))
