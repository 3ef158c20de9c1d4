"""Bytes on the wire: what a payload costs under each index code, and real encoders.

Values travel first, then their indices. Plain values are 32-bit little-endian floats in the order
of their indices; a value codec (`qsgd`, `fp16`, …) writes its own, rounded up to whole bytes. K, d,
the codec, its options and the shapes of the layers are known to both sides (they belong to the
task), so nothing else is sent. Indices:

| code     | bits for the indices                                                               |
|----------|------------------------------------------------------------------------------------|
| `ideal`  | K·log2 d, not rounded: an accounting, without an encoder                           |
| `fixed`  | K·⌈log2 d⌉, bit-packed                                                             |
| `raw32`  | 32·K                                                                               |
| `rice`   | 8 + the Golomb–Rice code of the gaps with the best parameter: depends on the data  |
| `seeded` | 64: a seed from which the server repeats the choice; strategies that look at the   |
|          | update (Top-K) use `fixed`                                                         |

All but `ideal` are rounded up to whole bytes, and an encoded payload has exactly the charged size.
Codecs that keep all entries (`dense`, a value codec alone) send no indices. The functions here take
a codec by its label and plain values; `Codec.to_bytes` and `from_bytes` do the same for any codec.
NumPy and arithmetic; torch is never imported.
"""

from __future__ import annotations

import numpy as np

from simfed.compress.codec import Layout, Payload, codec_from_spec
from simfed.compress.index_codes import INDEX_CODES
from simfed.compress.selection import check_k
from simfed.compress.sparsifiers import State
from simfed.compress.vectors import Floats, Indices, Vector, convert_to_numpy
from simfed.ground.errors import InputError

__all__ = ["INDEX_CODES", "decode", "encode", "size_bytes", "uplink_bytes"]


def uplink_bytes(
    strategy: str, d: int, k: int, index_code: str, layout: Layout | None = None
) -> float | None:
    """Bytes of a payload of d entries by a codec; None where they depend on the data (`rice`).

    `strategy` is a codec's label; one that goes by a number of entries sends min(k, d). `layout`:
    the shapes of the layers, for codecs that look at them. Raises: `InputError` for an unknown code
    or strategy, and for more entries than `raw32` can number.

    >>> uplink_bytes("top-k", 2**16, 1000, "ideal")
    6000.0
    >>> [uplink_bytes("random-k", 61_706, 1000, code) for code in INDEX_CODES[1:]]
    [6000.0, 8000.0, None, 4008.0]
    >>> d = 61_706
    >>> uplink_bytes("top-k+qsgd(4)", d, 1000, "fixed"), uplink_bytes("fp16", d, 1, "fixed")
    (2508.0, 123412.0)
    """
    return codec_from_spec(strategy).size_bytes(d, check_k(k, d), index_code, layout)


def size_bytes(strategy: str, indices: Vector, d: int, index_code: str) -> float:
    """Bytes of the payload of plain values with these sorted indices, under any code.

    >>> size_bytes("top-k", np.arange(0, 8000, 8), 8000, "rice")  # 3 + 1 bits for a gap of 7
    4501.0
    """
    return codec_from_spec(strategy).payload_bytes(Payload(strategy, d, indices, None), index_code)


def encode(
    strategy: str,
    indices: Vector,
    values: Vector,
    d: int,
    index_code: str,
    *,
    seed: int | None = None,
) -> bytes:
    """The payload of plain values as it travels; `len` is what `size_bytes` says.

    `indices`: int64, sorted, distinct, below d, shape (K,); `values`: float32, shape (K,); `seed`:
    that of the selection, for `seeded`. Raises: `InputError` for anything else, and for `ideal`,
    which no encoder reaches.
    """
    indices, values = convert_to_numpy(indices), convert_to_numpy(values)
    if values.dtype != np.float32 or values.shape != indices.shape:
        got = f"{values.shape} of {values.dtype}"
        raise InputError("as many float32 values as indices", got=got)
    payload = Payload(strategy, d, indices, values, seed=seed)
    return codec_from_spec(strategy).to_bytes(payload, index_code)


def decode(
    strategy: str, data: bytes, d: int, k: int, index_code: str, *, state: State = None
) -> tuple[Indices, Floats]:
    """(indices, values): the inverse of `encode`, for K = min(k, d).

    `state`: the strategy's state before the play, mirrored by the server; for `seeded`. Raises:
    `InputError` for data that no encoder wrote, cut short or too long.
    """
    payload = codec_from_spec(strategy).from_bytes(data, d, k, index_code, state=state)
    if payload.indices is None:
        return np.arange(d), convert_to_numpy(payload.dense())
    return convert_to_numpy(payload.indices), convert_to_numpy(payload.values)
