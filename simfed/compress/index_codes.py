"""How the indices of K of d entries travel: sizes, encoders and decoders. See
`simfed.compress.wire`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simfed.compress.bits import (
    bits_of,
    decode_rice,
    encode_rice,
    pack,
    rice_parameter,
    unpack,
)
from simfed.compress.selection import is_tensor
from simfed.ground.errors import InputError, did_you_mean, listed
from simfed.ground.vocabulary import INDEX_CODES

__all__ = [
    "INDEX_CODES",
    "as_numpy",
    "code_in_use",
    "decode_indices",
    "encode_indices",
    "index_bytes",
]

_SEED_BITS = 64


def code_in_use(selection: Any, index_code: str, d: int) -> str:
    """The code that this selection's indices travel in; `none` where all entries do."""
    if index_code not in INDEX_CODES:
        raise InputError(
            f"an index code: {listed(INDEX_CODES)}",
            got=index_code,
            hint=did_you_mean(str(index_code), INDEX_CODES),
        )
    if getattr(selection, "keeps_all", False):
        return "none"
    if index_code == "raw32" and d > 2**32:
        raise InputError("at most 2^32 entries for index code raw32", got=d)
    if index_code == "seeded" and not hasattr(selection, "mirror"):
        return "fixed"
    return index_code


def index_bytes(code: str, d: int, k: int, indices: Any = None) -> float | None:
    """Bytes of k indices below d; under `rice` those of `indices`, or None without any.

    Fractional under `ideal`, whole bytes under the others.
    """
    if code == "ideal":
        return k * math.log2(d) / 8
    if code == "rice":
        if indices is None:
            return None
        _, bits = rice_parameter(_gaps(as_numpy(indices)))
        return 1.0 + -(-bits // 8)
    bits = {"none": 0, "fixed": k * _width(d), "raw32": 32 * k, "bitmap": d, "seeded": _SEED_BITS}[
        code
    ]
    return float(-(-bits // 8))


def encode_indices(code: str, indices: Any, d: int, seed: int | None) -> bytes:
    """Sorted, distinct indices below d as they travel. Raises: `InputError` for others and
    `ideal`."""
    if code == "none":
        return b""
    indices = as_numpy(indices)
    _check_indices(indices, d)
    if code == "fixed":
        return pack(indices, _width(d))
    if code == "raw32":
        raw: bytes = indices.astype("<u4").tobytes()
        return raw
    if code == "bitmap":
        marks = np.zeros(d, bool)
        marks[indices] = True
        return np.packbits(marks).tobytes()
    if code == "rice":
        return encode_rice(_gaps(indices))
    if code == "seeded":
        if seed is None:
            raise InputError("the selection's seed for index code seeded", got=seed)
        return seed.to_bytes(_SEED_BITS // 8, "little")
    raise _no_encoder(code)


def decode_indices(
    code: str, data: bytes, d: int, k: int, *, selection: Any = None, state: Any = None
) -> NDArray[np.int64]:
    """The k indices that `encode_indices` wrote; `seeded` repeats the selection's choice in
    `state`.

    Raises: `InputError` for data that no encoder wrote, cut short or too long.
    """
    if code == "ideal":
        raise _no_encoder(code)
    known = index_bytes(code, d, k)
    if known is not None and known != len(data):
        raise InputError(f"a payload of {known:.0f} bytes of indices", got=len(data))
    if code == "none":
        return np.arange(d)
    if code == "seeded":
        seed = int.from_bytes(data, "little")
        made: NDArray[np.int64] = selection.mirror(d, k, state=state, seed=seed).indices
        return made
    indices = _decoded(code, data, d, k)
    if len(indices) != k:
        raise InputError(f"a payload of {k} entries", got=len(indices))
    _check_indices(indices, d)
    return indices


def as_numpy(array: Any) -> Any:
    """A NumPy array of what may be a tensor; a view where memory allows."""
    return array.detach().cpu().numpy() if is_tensor(array) else np.asarray(array)


def _decoded(code: str, data: bytes, d: int, k: int) -> NDArray[np.int64]:
    if code == "fixed":
        return unpack(data, k, _width(d))
    if code == "raw32":
        return np.frombuffer(data, "<u4").astype(np.int64)
    if code == "bitmap":
        return np.flatnonzero(bits_of(data))
    return np.cumsum(decode_rice(data, k) + 1) - 1


def _no_encoder(code: str) -> InputError:
    return InputError("an index code with an encoder", got=code)


def _width(d: int) -> int:
    """⌈log2 d⌉, exactly."""
    return (d - 1).bit_length()


def _gaps(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many entries lie unchosen before each chosen one."""
    gaps: NDArray[np.int64] = np.diff(indices, prepend=-1) - 1
    return gaps


def _check_indices(indices: Any, d: int) -> None:
    fits = indices.ndim == 1 and indices.size and indices[0] >= 0 and indices[-1] < d
    if not fits or not (indices[1:] > indices[:-1]).all():
        raise InputError(f"sorted, distinct indices from 0 to {d - 1}")
