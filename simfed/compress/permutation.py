"""A pseudo-random order of 0 … d − 1 that is computed, not stored."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 3


def make_generator(key: int, purpose: int) -> np.random.Generator:
    """Return the generator of a 64-bit key; different purposes are independent."""
    return np.random.Generator(
        np.random.Philox(key=np.array([key, purpose], dtype=np.uint64))
    )


class KeyedPermutation:
    """A bijection of 0 … length − 1, chosen by a 64-bit key; O(√length) memory.

    A Feistel network over a table of ⌈length/columns⌉ rows and columns = ⌈√length⌉:
    rows are shifted by a random function of the column, then columns by a random
    function of the row, three times over, modulo their number. (Luby and Rackoff, 1988:
    random functions make four such steps a pseudo-random permutation; these are six.)
    The fewer than √length cells behind the end are passed over by walking on until
    inside, which keeps it a bijection.

    >>> sorted(KeyedPermutation(7, key=1)(np.arange(7)).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """

    def __init__(self, length: int, key: int) -> None:
        self.length = length
        self.columns = math.isqrt(length - 1) + 1
        self.rows = -(-length // self.columns)
        rng = make_generator(key, 0)
        self._row_shifts = rng.integers(self.rows, size=(_ROUNDS, self.columns))
        self._column_shifts = rng.integers(self.columns, size=(_ROUNDS, self.rows))

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the order's indices at these positions, in the positions' order."""
        indices = self._step(positions)
        outside = np.flatnonzero(indices >= self.length)
        while outside.size:
            indices[outside] = self._step(indices[outside])
            outside = outside[indices[outside] >= self.length]
        return indices

    def _step(self, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        row, column = np.divmod(cells, self.columns)
        for row_shift, column_shift in zip(
            self._row_shifts, self._column_shifts, strict=True
        ):
            row += row_shift[column]
            _wrap_values(row, self.rows)
            column += column_shift[row]
            _wrap_values(column, self.columns)
        row *= self.columns
        row += column
        return row


def _wrap_values(values: NDArray[np.int64], modulus: int) -> None:
    """Take `values` below 2·modulus modulo `modulus`, three times as fast as `%`."""
    # below the modulus, the difference wraps to a huge number
    unsigned = values.view(np.uint64)
    np.minimum(unsigned, unsigned - np.uint64(modulus), out=unsigned)
