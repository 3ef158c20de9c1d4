"""Index codes: sizes, encoders and decoders of the indices of K of d entries.

Values travel first, then their indices. Plain values are 32-bit little-endian floats in
the order of their indices; a value codec (`qsgd`, `fp16`, …) writes its own, rounded up
to whole bytes. K, d, the codec, its options and the shapes of the layers are known to
both sides (they belong to the task), so nothing else is sent. Indices:

| code     | bits for the indices                                               |
|----------|--------------------------------------------------------------------|
| `ideal`  | K·log2 d, not rounded: an accounting, without an encoder           |
| `fixed`  | K·⌈log2 d⌉, bit-packed                                             |
| `rice`   | 8 + the Golomb–Rice code of the gaps with the best parameter:      |
|          | depends on the data                                                |
| `seeded` | 64: a seed from which the server repeats the choice; strategies    |
|          | that look at the update (Top-K) use `fixed`                        |

All but `ideal` are rounded up to whole bytes, and an encoded payload has exactly the
charged size. Codecs that keep all entries (`dense`, a value codec alone) send none.
"""

from __future__ import annotations

import math

import numpy as np

from simfed.compress.bits import (
    choose_rice_parameter,
    decode_rice,
    encode_rice,
    pack,
    unpack,
)
from simfed.compress.sparsifiers import Mirrored, State
from simfed.compress.vectors import Indices, Vector, convert_to_numpy
from simfed.ground.errors import InputError, check_known
from simfed.ground.vocabulary import INDEX_CODES

__all__ = [
    "INDEX_CODES",
    "code_in_use",
    "decode_indices",
    "encode_indices",
    "index_bytes",
]

_SEED_BITS = 64


def code_in_use(selection: object, index_code: str) -> str:
    """Return the code that this selection's indices travel in.

    `none` where all entries do.
    """
    check_known(index_code, INDEX_CODES, "an index code:")
    if getattr(selection, "keeps_all", False):
        return "none"
    if index_code == "seeded" and not hasattr(selection, "mirror"):
        return "fixed"
    return index_code


def index_bytes(
    code: str, d: int, k: int, indices: Vector | None = None
) -> float | None:
    """Bytes of k indices below d; under `rice` those of `indices`, or None without any.

    Fractional under `ideal`, whole bytes under the others.
    """
    if code == "ideal":
        return k * math.log2(d) / 8
    if code == "rice":
        if indices is None:
            return None
        _, bits = choose_rice_parameter(_compute_gaps(convert_to_numpy(indices)))
        return 1.0 + -(-bits // 8)
    bits = {"none": 0, "fixed": k * _count_bits(d), "seeded": _SEED_BITS}[code]
    return float(-(-bits // 8))


def encode_indices(
    code: str, indices: Vector | None, d: int, seed: int | None
) -> bytes:
    """Return sorted, distinct indices below d as they travel.

    Raises: `InputError` for others and `ideal`.
    """
    if code == "none":
        return b""
    places = convert_to_numpy(indices)
    _check_indices(places, d)
    if code == "fixed":
        return pack(places, _count_bits(d))
    if code == "rice":
        return encode_rice(_compute_gaps(places))
    if code == "seeded":
        if seed is None:
            raise InputError("the selection's seed for index code seeded", got=seed)
        return seed.to_bytes(_SEED_BITS // 8, "little")
    raise _make_code_error(code)


def decode_indices(
    code: str,
    data: bytes,
    d: int,
    k: int,
    *,
    selection: object = None,
    state: State = None,
) -> Indices:
    """Return the k indices that `encode_indices` wrote.

    `seeded` repeats the selection's choice in `state`.

    Raises: `InputError` for data that no encoder wrote, cut short or too long.
    """
    if code == "ideal":
        raise _make_code_error(code)
    size = index_bytes(code, d, k)
    if size is not None and size != len(data):
        raise InputError(f"a payload of {size:.0f} bytes of indices", got=len(data))
    if code == "none":
        return np.arange(d)
    if code == "seeded":
        assert isinstance(selection, Mirrored)
        seed = int.from_bytes(data, "little")
        return convert_to_numpy(selection.mirror(d, k, state=state, seed=seed).indices)
    if code == "fixed":
        indices = unpack(data, k, _count_bits(d))
    else:
        indices = np.cumsum(decode_rice(data, k) + 1) - 1
    _check_indices(indices, d)
    return indices


def _make_code_error(code: str) -> InputError:
    return InputError("an index code with an encoder", got=code)


def _count_bits(d: int) -> int:
    """Bits of the largest of `d` indices: ⌈log2 d⌉, without rounding."""
    return (d - 1).bit_length()


def _compute_gaps(indices: Indices) -> Indices:
    """Return how many entries lie unchosen before each chosen one."""
    return np.diff(indices, prepend=-1) - 1


def _check_indices(indices: Indices, d: int) -> None:
    fits = indices.ndim == 1 and indices.size and indices[0] >= 0 and indices[-1] < d
    if not fits or not (indices[1:] > indices[:-1]).all():
        raise InputError(f"sorted, distinct indices from 0 to {d - 1}")
