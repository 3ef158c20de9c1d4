"""Randomness keyed by meaning.

Every random draw of a run comes from a generator that is named by what it is for
(`streams("batch", client, round)`), never from one that depends on who asked first. So
adding a client, a policy, a worker or a trace changes nobody else's draws.
"""

from __future__ import annotations

import hashlib
from typing import Any, cast

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike, NDArray

from simfed.ground.arrays import Floats, Integers

Key = int | str
Words = NDArray[np.uint64]


class _Key(ISeedSequence):
    """Hands Philox its key.

    `Philox(key=…)` gives the same generator, three times as slowly: it draws a seed
    from the operating system first, and throws it away.
    """

    def __init__(self, key: NDArray[np.uint64]) -> None:
        self._key = key

    def generate_state(
        self, n_words: int, dtype: DTypeLike = np.uint32
    ) -> NDArray[np.uint64]:
        return self._key


class Streams:
    """The keyed generators of one run.

    A stream is the Philox counter generator whose 128-bit key is BLAKE2b of the run's
    seed, the purpose and the further keys. Keys are strings and integers; `1` and `"1"`
    are different keys.

    >>> streams = Streams(0)
    >>> a = streams("batch", 3, 7).integers(0, 100, 4)
    >>> _ = streams("batch", 4, 7).integers(0, 100, 4)
    >>> bool((a == Streams(0)("batch", 3, 7).integers(0, 100, 4)).all())
    True
    """

    def __init__(self, seed: int) -> None:
        self.seed = int(seed)

    def __call__(self, purpose: str, *keys: Key) -> np.random.Generator:
        """Return the NumPy generator for this purpose and keys, at its beginning."""
        key = np.frombuffer(self._digest(purpose, keys), dtype="<u8")
        # the stubs know no seed sequence but NumPy's own
        return np.random.Generator(np.random.Philox(cast(Any, _Key(key))))

    def integer(self, purpose: str, *keys: Key) -> int:
        """Return a 63-bit integer for this purpose and keys: a foreign seed."""
        return int.from_bytes(self._digest(purpose, keys)[:8], "little") >> 1

    def uniform_at(
        self, purpose: str, *keys: Key, client: Integers, number: Integers
    ) -> Floats:
        """Return a number in (0, 1) for each pair (client, number), at once.

        The `number`-th draw of a client hangs on nothing but the purpose, the keys and
        the pair, so a million clients can each be at their own number, in any order,
        without a generator of their own.

        >>> streams, numbers = Streams(0), np.array([7, 0, 7])
        >>> drawn = streams.uniform_at("stay", client=np.arange(3), number=numbers)
        >>> client, number = np.array([2]), np.array([7])
        >>> alone = streams.uniform_at("stay", client=client, number=number)
        >>> bool(drawn[2] == alone[0])
        True
        """
        digest = self._digest(purpose, keys)[:8]
        key = np.frombuffer(digest, dtype="<u4").astype(np.uint64)
        who = np.asarray(client).astype(np.uint64)
        which = np.asarray(number).astype(np.uint64)
        words = philox_4x32(
            (who & _LOW, who >> _HALF, which & _LOW, which >> _HALF), (key[0], key[1])
        )
        bits = (words[0] << np.uint64(21)) | (words[1] >> np.uint64(11))  # 53 of them
        uniforms: Floats = (bits.astype(np.float64) + 0.5) * 2.0**-53 * (1 - 2.0**-53)
        return uniforms

    def _digest(self, purpose: str, keys: tuple[Key, ...]) -> bytes:
        # int() so that NumPy integers name the same stream as Python's.
        plain = tuple(key if isinstance(key, str) else int(key) for key in keys)
        return hashlib.blake2b(
            repr((self.seed, purpose, *plain)).encode(), digest_size=16
        ).digest()


_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ROUNDS = 10


def philox_4x32(
    counter: tuple[Words, Words, Words, Words], key: tuple[np.uint64, np.uint64]
) -> tuple[Words, Words, Words, Words]:
    """Return the Philox-4x32-10 block cipher over arrays of counters.

    All words are 32 bits, kept in uint64.

    Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as
    1, 2, 3", SC 2011.
    """
    a, b, c, d = counter
    left, right = key
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (
            (second >> _HALF) ^ b ^ left,
            second & _LOW,
            (first >> _HALF) ^ d ^ right,
            first & _LOW,
        )
        left, right = (left + _WEYL[0]) & _LOW, (right + _WEYL[1]) & _LOW
    return a, b, c, d
