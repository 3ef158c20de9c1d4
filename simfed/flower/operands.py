"""What an operator or a module of foreign code is given, as far as metering asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Operands(NamedTuple):
    """What an operator, or a module, is given."""

    parameters: Mapping[int, int]
    """Identity of a learned tensor → how many numbers it has."""
    samples: int
    records: bool
    """Autograd notes it for a backward run."""
    nodes: int = 0
    """How many nodes autograd had noted before."""


def count_samples(inputs: Iterable[object]) -> int:
    """How many samples a module was given: the length of its first tensor."""
    for value in inputs:
        shape = getattr(value, "shape", None)
        if shape is not None and len(shape):
            return max(1, int(shape[0]))
    return 1
