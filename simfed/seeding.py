"""Randomness keyed by meaning.

Every random draw of a run comes from a generator that is named by what it is for
(`streams("batch", client, round)`), never from one that depends on who asked first. So adding a
client, a policy, a worker or a trace changes nobody else's draws.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike, NDArray

__all__ = ["Streams"]

Key = int | str


class _Key(ISeedSequence):
    """Hands Philox its key. `Philox(key=…)` gives the same generator, three times as slowly: it
    draws a seed from the operating system first, and throws it away."""

    def __init__(self, key: NDArray[np.uint64]) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> NDArray[np.uint64]:
        return self._key


class Streams:
    """The keyed generators of one run.

    A stream is the Philox counter generator whose 128-bit key is BLAKE2b of the run's seed, the
    purpose and the further keys. Keys are strings and integers; `1` and `"1"` are different keys.

    >>> streams = Streams(0)
    >>> a = streams("batch", 3, 7).integers(0, 100, 4)
    >>> _ = streams("batch", 4, 7).integers(0, 100, 4)
    >>> bool((a == Streams(0)("batch", 3, 7).integers(0, 100, 4)).all())
    True
    """

    def __init__(self, seed: int) -> None:
        self.seed = int(seed)

    def __call__(self, purpose: str, *keys: Key) -> np.random.Generator:
        """The NumPy generator for this purpose and keys, at its beginning."""
        key = np.frombuffer(self._digest(purpose, keys), dtype="<u8")
        # the stubs know no seed sequence but NumPy's own
        return np.random.Generator(np.random.Philox(_Key(key)))  # type: ignore[arg-type]

    def integer(self, purpose: str, *keys: Key) -> int:
        """A 63-bit integer for this purpose and keys: the seed of a foreign generator."""
        return int.from_bytes(self._digest(purpose, keys)[:8], "little") >> 1

    def _digest(self, purpose: str, keys: tuple[Key, ...]) -> bytes:
        # int() so that NumPy integers name the same stream as Python's.
        plain = tuple(key if isinstance(key, str) else int(key) for key in keys)
        return hashlib.blake2b(repr((self.seed, purpose, *plain)).encode(), digest_size=16).digest()
