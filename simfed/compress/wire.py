"""Bytes on the wire: what K of d entries cost under each index code, and real encoders.

The K values travel as 32-bit little-endian floats in the order of their indices; then the indices.
K, d and the strategy are known to both sides (they belong to the task), so nothing else is sent:

| code     | bits for the indices                                                               |
|----------|------------------------------------------------------------------------------------|
| `ideal`  | K·log2 d, not rounded: an accounting, without an encoder                           |
| `fixed`  | K·⌈log2 d⌉, bit-packed                                                             |
| `raw32`  | 32·K                                                                               |
| `bitmap` | d                                                                                  |
| `rice`   | 8 + the Golomb–Rice code of the gaps with the best parameter: depends on the data  |
| `seeded` | 64: a seed from which the server repeats the choice; strategies that look at the   |
|          | update (Top-K) use `fixed`                                                         |

All but `ideal` are rounded up to whole bytes, and an encoded payload has exactly the charged size.
Strategies that keep all entries (`dense`) send no indices. NumPy and arithmetic; torch is never
imported.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simfed.compress.selection import checked_k, is_tensor
from simfed.errors import InputError, did_you_mean, listed
from simfed.registry import registry
from simfed.vocabulary import INDEX_CODES

__all__ = ["INDEX_CODES", "decode", "encode", "size_bytes", "uplink_bytes"]

Bits = NDArray[np.uint8]
"""One bit per entry."""

_VALUE_BITS = 32
_SEED_BITS = 64


def uplink_bytes(strategy: str, d: int, k: int, index_code: str) -> float | None:
    """Bytes of a payload of min(k, d) out of d entries; None where they depend on the data (`rice`).

    `strategy` is a registered compressor's name. Raises: `InputError` for an unknown code or
    strategy, and for more entries than `raw32` can number.

    >>> uplink_bytes("top-k", 2**16, 1000, "ideal")
    6000.0
    >>> [uplink_bytes("random-k", 61_706, 1000, code) for code in INDEX_CODES[1:]]
    [6000.0, 8000.0, 11714.0, None, 4008.0]
    """
    k = checked_k(k, d)
    code = _code_in_use(strategy, index_code, d)
    if code == "none":
        return 4.0 * d
    if code == "ideal":
        return k * (_VALUE_BITS + math.log2(d)) / 8
    if code == "rice":
        return None
    bits = {"fixed": k * _width(d), "raw32": 32 * k, "bitmap": d, "seeded": _SEED_BITS}[code]
    return 4.0 * k + -(-bits // 8)


def size_bytes(strategy: str, indices: Any, d: int, index_code: str) -> float:
    """Bytes of the payload with these sorted indices, under any code.

    >>> size_bytes("top-k", np.arange(0, 8000, 8), 8000, "rice")  # 3 + 1 bits for a gap of 7
    4501.0
    """
    known = uplink_bytes(strategy, d, len(indices), index_code)
    if known is not None:
        return known
    _, bits = _rice_parameter(_gaps(_as_numpy(indices)))
    return 4.0 * len(indices) + 1 + -(-bits // 8)


def encode(
    strategy: str,
    indices: Any,
    values: Any,
    d: int,
    index_code: str,
    *,
    seed: int | None = None,
) -> bytes:
    """The payload as it travels; `len` is what `size_bytes` says.

    `indices`: int64, sorted, distinct, below d, shape (K,); `values`: float32, shape (K,); `seed`:
    that of the selection, for `seeded`. Raises: `InputError` for anything else, and for `ideal`,
    which no encoder reaches.
    """
    indices, values = _as_numpy(indices), _as_numpy(values)
    if values.dtype != np.float32 or values.shape != indices.shape:
        got = f"{values.shape} of {values.dtype}"
        raise InputError("as many float32 values as indices", got=got)
    _check_indices(indices, d)
    code = _code_in_use(strategy, index_code, d)
    head: bytes = values.astype("<f4").tobytes()
    return head + _encode_indices(code, indices, d, seed)


def decode(
    strategy: str, data: bytes, d: int, k: int, index_code: str, *, state: Any = None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """(indices, values): the inverse of `encode`, for K = min(k, d).

    `state`: the strategy's state before the play, mirrored by the server; for `seeded`. Raises:
    `InputError` for data that no encoder wrote, cut short or too long.
    """
    code = _code_in_use(strategy, index_code, d)
    k = d if code == "none" else checked_k(k, d)
    size = uplink_bytes(strategy, d, k, index_code)
    if len(data) < 4 * k or size not in (None, len(data)):
        allowed = f"at least {4 * k}" if size is None else f"{size:.0f}"
        raise InputError(f"a payload of {allowed} bytes", got=len(data))
    values = np.frombuffer(data[: 4 * k], "<f4").astype(np.float32)
    if code == "seeded":
        mirror = registry("compressor").get(strategy)().mirror
        seed = int.from_bytes(data[4 * k :], "little")
        return mirror(d, k, state=state, seed=seed).indices, values
    indices = _decode_indices(code, data[4 * k :], d, k)
    if len(indices) != k:
        raise InputError(f"a payload of {k} entries", got=len(indices))
    _check_indices(indices, d)
    return indices, values


def _encode_indices(code: str, indices: NDArray[np.int64], d: int, seed: int | None) -> bytes:
    if code == "none":
        return b""
    if code == "fixed":
        return np.packbits(_to_bits(indices, _width(d))).tobytes()
    if code == "raw32":
        return indices.astype("<u4").tobytes()
    if code == "bitmap":
        marks = np.zeros(d, bool)
        marks[indices] = True
        return np.packbits(marks).tobytes()
    if code == "rice":
        return _encode_rice(_gaps(indices))
    if code == "seeded":
        if seed is None:
            raise InputError("the selection's seed for index code seeded", got=seed)
        return seed.to_bytes(_SEED_BITS // 8, "little")
    raise _no_encoder(code)


def _decode_indices(code: str, data: bytes, d: int, k: int) -> NDArray[np.int64]:
    if code == "none":
        return np.arange(d)
    if code == "fixed":
        return _from_bits(_from_bytes(data), k, _width(d))
    if code == "raw32":
        return np.frombuffer(data, "<u4").astype(np.int64)
    if code == "bitmap":
        return np.flatnonzero(_from_bytes(data))
    if code == "rice":
        return np.cumsum(_decode_rice(data, k) + 1) - 1
    raise _no_encoder(code)


def _no_encoder(code: str) -> InputError:
    return InputError("an index code with an encoder", got=code)


def _code_in_use(strategy: str, index_code: str, d: int) -> str:
    """The code that this strategy's indices travel in; `none` where all entries do."""
    if index_code not in INDEX_CODES:
        raise InputError(
            f"an index code: {listed(INDEX_CODES)}",
            got=index_code,
            hint=did_you_mean(str(index_code), INDEX_CODES),
        )
    compressor = registry("compressor").get(strategy)
    if getattr(compressor, "keeps_all", False):
        return "none"
    if index_code == "raw32" and d > 2**32:
        raise InputError("at most 2^32 entries for index code raw32", got=d)
    if index_code == "seeded" and not hasattr(compressor, "mirror"):
        return "fixed"
    return index_code


def _width(d: int) -> int:
    """⌈log2 d⌉, exactly."""
    return (d - 1).bit_length()


def _gaps(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many entries lie unchosen before each chosen one."""
    gaps: NDArray[np.int64] = np.diff(indices, prepend=-1) - 1
    return gaps


def _rice_parameter(gaps: NDArray[np.int64]) -> tuple[int, int]:
    """(r, bits) of the shortest Rice code: each gap as gap >> r in unary and r bits.

    The size is convex in r (each step saves less than the one before), so the first r that the
    next does not beat is the best.
    """
    parameter, unary = 0, int(gaps.sum())
    while True:
        gaps = gaps >> 1
        shorter = int(gaps.sum())
        if unary - shorter <= len(gaps):
            return parameter, unary + len(gaps) * (1 + parameter)
        parameter, unary = parameter + 1, shorter


def _encode_rice(gaps: NDArray[np.int64]) -> bytes:
    """The parameter in a byte; all quotients as zeros ended by a one; then all remainders.

    Quotients and remainders stand apart so that both are read without a loop over entries.
    """
    parameter, _ = _rice_parameter(gaps)
    ends = np.cumsum((gaps >> parameter) + 1) - 1
    unary = np.zeros(ends[-1] + 1, np.uint8)
    unary[ends] = 1
    remainders = _to_bits(gaps & ((1 << parameter) - 1), parameter)
    return bytes([parameter]) + np.packbits(np.concatenate([unary, remainders])).tobytes()


def _decode_rice(data: bytes, k: int) -> NDArray[np.int64]:
    parameter = data[0] if data else 64
    bits = _from_bytes(data[1:])
    ends = np.flatnonzero(bits)[:k]
    used = ends[-1] + 1 + k * parameter if len(ends) == k else None
    if parameter >= 63 or used is None or -(-used // 8) != len(data) - 1:
        raise InputError(f"a Rice code of {k} gaps", got=f"{len(data)} other bytes")
    return (_gaps(ends) << parameter) | _from_bits(bits[ends[-1] + 1 :], k, parameter)


def _to_bits(numbers: NDArray[np.int64], width: int) -> Bits:
    """Each number's lowest `width` bits, highest first, one number after another."""
    octets = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    return np.unpackbits(octets, axis=1)[:, 64 - width :].reshape(-1)


def _from_bits(bits: Bits, count: int, width: int) -> NDArray[np.int64]:
    """The inverse of `_to_bits` for the first `count` numbers."""
    padded = np.zeros((count, 64), np.uint8)
    padded[:, 64 - width :] = bits[: count * width].reshape(count, width)
    return np.packbits(padded, axis=1).view(">u8").reshape(-1).astype(np.int64)


def _from_bytes(data: bytes) -> Bits:
    return np.unpackbits(np.frombuffer(data, np.uint8))


def _as_numpy(array: Any) -> Any:
    return array.detach().cpu().numpy() if is_tensor(array) else np.asarray(array)


def _check_indices(indices: Any, d: int) -> None:
    fits = indices.ndim == 1 and indices.size and indices[0] >= 0 and indices[-1] < d
    if not fits or not (indices[1:] > indices[:-1]).all():
        raise InputError(f"sorted, distinct indices from 0 to {d - 1}")
