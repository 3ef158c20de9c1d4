"""Parcels between a server and real clients: plain facts, and arrays as bytes.

No code and nothing that could become code is ever read: facts are JSON, arrays are in
the safetensors format, whose header is checked against what has arrived before anything
is made of it. NumPy; torch is never imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from simfed.ground.errors import InputError
from simfed.ground.plain import Plain

Part = np.ndarray | bytes
"""An array, or what a codec of the project has written."""


class Parcel(NamedTuple):
    """The content of one message between the halves of a run's learning.

    Made by `pack`, read by `unpack`; how it travels is `simfed.deploy`'s.
    """

    facts: Mapping[str, Plain]
    """JSON-able; `bytes` of it names the parts that a codec has written."""
    body: bytes = b""
    """Parts as safetensors; empty: there are none."""


def pack(facts: Mapping[str, Plain], parts: Mapping[str, Part]) -> Parcel:
    """Return facts and named parts as one parcel.

    Args:
        facts: JSON-able; they may not use the name `bytes`.
        parts: by name, arrays or what codecs have written.

    Raises:
        InputError: for an array of anything but numbers.

    >>> parcel = pack({"round": 1}, {"w": np.ones(2, np.float32), "code": b"abc"})
    >>> facts, parts = unpack(parcel)
    >>> facts, parts["w"].tolist(), parts["code"]
    ({'round': 1}, [1.0, 1.0], b'abc')
    """
    coded = [name for name, part in parts.items() if isinstance(part, bytes)]
    arrays = {
        name: np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        for name, part in parts.items()
    }
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise InputError(
                "an array of plain numbers", where=name, got=str(array.dtype)
            )
    return Parcel({**facts, "bytes": coded}, save(arrays) if arrays else b"")


def unpack(parcel: Parcel) -> tuple[dict[str, Plain], dict[str, Part]]:
    """Return facts and parts of a parcel: the inverse of `pack`.

    Parts that a codec has written are bytes again, all others arrays.

    Raises:
        InputError: for what `pack` does not write.
    """
    facts = dict(parcel.facts)
    try:
        arrays = load(parcel.body) if parcel.body else {}
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            "arrays of plain numbers", where="parts", problem=str(error)
        ) from error
    coded = facts.pop("bytes", None)
    if not isinstance(coded, list) or not all(
        isinstance(name, str) and name in arrays and arrays[name].dtype == np.uint8
        for name in coded
    ):
        raise InputError("names of parts", where="bytes", got=repr(coded)[:80])
    return facts, {**arrays, **{name: arrays[name].tobytes() for name in coded}}
