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


def permute(positions: NDArray[np.int64], length: int, key: int) -> NDArray[np.int64]:
    """Return the indices at some positions of a keyed order of 0 … length − 1.

    A Feistel network over a table of ⌈length/columns⌉ rows and columns = ⌈√length⌉:
    rows are shifted by a random function of the column, then columns by a random
    function of the row, three times over, modulo their number. (Luby and Rackoff, 1988:
    random functions make four such steps a pseudo-random permutation; these are six.)
    The fewer than √length cells behind the end are passed over by walking on until
    inside, which keeps it a bijection. It takes O(√length) memory beside the result.

    Args:
        positions: places in the order, shape (n,), from 0 to below `length`.
        length: how many indices the order has.
        key: the 64-bit number that chooses the order.

    Returns:
        The index at each position, shape (n,).

    >>> sorted(permute(np.arange(7), 7, key=1).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """
    columns = math.isqrt(length - 1) + 1
    rows = -(-length // columns)
    rng = make_generator(key, 0)
    row_shifts = rng.integers(rows, size=(_ROUNDS, columns))
    column_shifts = rng.integers(columns, size=(_ROUNDS, rows))
    indices = np.empty_like(positions)
    outside, cells = np.arange(len(positions)), positions
    while outside.size:
        row, column = np.divmod(cells, columns)
        # Three times as fast as `%`: below the modulus, the difference of unsigned
        # numbers wraps to a huge one.
        some_row, some_column = row.view(np.uint64), column.view(np.uint64)
        for row_shift, column_shift in zip(row_shifts, column_shifts, strict=True):
            row += row_shift[column]
            np.minimum(some_row, some_row - np.uint64(rows), out=some_row)
            column += column_shift[row]
            np.minimum(some_column, some_column - np.uint64(columns), out=some_column)
        indices[outside] = row * columns + column
        outside = outside[indices[outside] >= length]
        cells = indices[outside]
    return indices
