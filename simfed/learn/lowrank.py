"""Updates as products of thin matrices, by singular values.

There are as many as an energy share needs.

Each parameter of two or more dimensions is a matrix of its first dimension by the rest
(a convolution: outputs × inputs·height·width). It travels as its rank r and two
factors, U·Σ (m × r) and V (r × n), or, where that would be no shorter, as it is, under
the rank -1. Other parameters travel as they are. One float32 vector, of a length that
depends on the values. Importing this needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Shapes = Sequence[tuple[int, ...]]

_AS_IT_IS = -1.0


def count_most_entries(shapes: Shapes) -> int:
    """Return the longest that an encoded update can be: all as it is, with its ranks.

    >>> count_most_entries([(4, 3), (4,)])
    17
    """
    return sum(prod(shape) + (len(shape) > 1) for shape in shapes)


def count_svd_flops(shapes: Shapes) -> float:
    """Return the FLOPs of the thin singular value decompositions of one update.

    14·m·n² + 8·n³ for an m × n matrix, m ≥ n (Golub & Van Loan, Matrix Computations,
    4th ed., for U, Σ and V by R-SVD is 6·m·n² + 20·n³; the larger of the two).
    """
    total = 0.0
    for shape in shapes:
        if len(shape) > 1:
            n, m = sorted((shape[0], prod(shape[1:])))
            total += max(14.0 * m * n**2 + 8.0 * n**3, 6.0 * m * n**2 + 20.0 * n**3)
    return total


def encode(flat: Tensor, shapes: Shapes, energy: float) -> Tensor:
    """Return the vector that stands for `flat` (d,).

    Args:
        flat: The update, all parameters one after another.
        shapes: Those of the parameters.
        energy: From 0 to 1: of each matrix the vector has the fewest singular values
            whose squares sum to at least this share of all squares.
    """
    import torch

    parts, start = [], 0
    for shape in shapes:
        part = flat[start : start + prod(shape)]
        start += prod(shape)
        if len(shape) < 2:
            parts.append(part)
            continue
        matrix = part.view(shape[0], -1)
        u, s, v = torch.linalg.svd(matrix, full_matrices=False)
        squares = s.double().square()
        # rounding must not ask for more than all of it
        missing = squares.sum() * (1 - energy)
        beyond = squares.flip(0).cumsum(0).flip(0)
        rank = int((beyond > missing * (1 + 1e-12)).sum())
        if rank * sum(matrix.shape) >= matrix.numel():
            parts += [flat.new_tensor([_AS_IT_IS]), part]
        else:
            factors = [(u[:, :rank] * s[:rank]).reshape(-1), v[:rank].reshape(-1)]
            parts += [flat.new_tensor([float(rank)]), *factors]
    return torch.cat(parts)


def decode(vector: Tensor, shapes: Shapes, start: int = 0) -> tuple[Tensor, int]:
    """Return the update (d,) of an encoded one, and where the latter ends.

    Args:
        vector: From `encode`, perhaps with other things before and after it.
        shapes: Those of the parameters.
        start: Where it begins.
    """
    import torch

    parts = []
    for shape in shapes:
        rank = _AS_IT_IS
        if len(shape) > 1:
            rank, start = float(vector[start]), start + 1
        if rank == _AS_IT_IS:
            parts.append(vector[start : start + prod(shape)])
            start += prod(shape)
            continue
        r, m, n = int(rank), shape[0], prod(shape[1:])
        left = vector[start : start + m * r].view(m, r)
        right = vector[start + m * r : start + (m + n) * r].view(r, n)
        parts.append((left @ right).reshape(-1))
        start += (m + n) * r
    return torch.cat(parts), start
