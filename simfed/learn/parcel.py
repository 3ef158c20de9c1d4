"""Parcels between a server and real clients: plain facts, and arrays as bytes.

No code and nothing that could become code is ever read: facts are JSON, arrays are raw
numbers of a few kinds whose sizes are checked against what has arrived before anything
is made of them. NumPy; torch is never imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from simfed.ground.errors import InputError
from simfed.ground.plain import Plain

Part = np.ndarray | bytes
"""An array, or what a codec of the project has written."""

_KINDS = ("<f4", "<f8", "<i4", "<i8", "|u1", "|i1", "|b1", "<u4", "<u8", "<f2")
_BYTES = "bytes"


class Parcel(NamedTuple):
    """The content of one message between the halves of a run's learning."""

    facts: Mapping[str, Plain]
    """JSON-able; `parts` of it says what the body is."""
    body: bytes = b""


def pack(facts: Mapping[str, Plain], parts: Mapping[str, Part]) -> Parcel:
    """Facts and named arrays as one parcel.

    >>> parcel = pack({"round": 1}, {"w": np.ones(2, np.float32), "code": b"abc"})
    >>> parcel.facts["parts"]
    [['w', '<f4', [2]], ['code', 'bytes', [3]]]
    >>> facts, parts = unpack(parcel)
    >>> facts, parts["w"].tolist(), parts["code"]
    ({'round': 1}, [1.0, 1.0], b'abc')
    """
    listed: list[list[Plain]] = []
    pieces: list[bytes] = []
    for name, part in parts.items():
        if isinstance(part, bytes):
            listed.append([name, _BYTES, [len(part)]])
            pieces.append(part)
            continue
        array = np.ascontiguousarray(part)
        kind = array.dtype.newbyteorder("<").str
        if kind not in _KINDS:
            raise InputError(
                "an array of plain numbers", where=name, got=str(array.dtype)
            )
        # ascontiguousarray gives a number without dimensions one
        listed.append([name, kind, list(np.shape(part))])
        pieces.append(array.astype(kind, copy=False).tobytes())
    return Parcel({**facts, "parts": listed}, b"".join(pieces))


def unpack(parcel: Parcel) -> tuple[dict[str, Plain], dict[str, Part]]:
    """Return (facts, parts): the inverse of `pack`. Arrays are views of the body.

    Raises: `InputError` for what `pack` does not write.
    """
    facts = dict(parcel.facts)
    listed, body, at = facts.pop("parts", None), memoryview(parcel.body), 0
    if not isinstance(listed, list):
        raise InputError("a list of parts", where="parts", got=listed)
    parts: dict[str, Part] = {}
    for entry in listed:
        name, kind, shape = _read_entry(entry)
        size = math.prod(shape) * (1 if kind == _BYTES else np.dtype(kind).itemsize)
        if size > len(body) - at:
            raise InputError(
                f"at most the {len(body)} bytes that came", where=name, got=size
            )
        piece = body[at : at + size]
        at += size
        parts[name] = (
            bytes(piece)
            if kind == _BYTES
            else np.frombuffer(piece, kind).reshape(shape)
        )
    if at != len(body):
        raise InputError(f"parts of {len(body)} bytes in all", where="parts", got=at)
    return facts, parts


def _read_entry(entry: Any) -> tuple[str, str, list[int]]:
    good = isinstance(entry, list) and len(entry) == 3
    if good:
        name, kind, shape = entry
        good = isinstance(name, str) and (kind == _BYTES or kind in _KINDS)
        good = good and isinstance(shape, list) and len(shape) <= 8
        good = good and all(type(n) is int and 0 <= n < 2**40 for n in shape)
    if not good:
        raise InputError("[name, kind, shape] of a part", where="parts", got=entry)
    return name, kind, shape
