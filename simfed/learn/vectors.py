"""Vectors of an upload as the server gets them: whole, as some entries, or as a sum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from simfed.ground.plain import Plain


class Sparse(NamedTuple):
    """A flat vector with zeros but at `indices`, which are distinct and sorted."""

    indices: Tensor
    values: Tensor
    length: int


Change: TypeAlias = Tensor | Sparse
"""A vector as the server gets it."""


class Sum(NamedTuple):
    """The changes that an edge server forwards, times factors, in their order.

    They are added one after another in this order wherever the sum is, so that merging
    them in two steps rounds as merging in one.
    """

    terms: Sequence[tuple[Change, float]]


def list_terms(
    changes: Iterable[tuple[Change | Sum, float]],
) -> Iterator[tuple[Change, float]]:
    """Yield changes and factors, with sums taken apart."""
    for change, factor in changes:
        if isinstance(change, Sum):
            yield from ((one, part * factor) for one, part in change.terms)
        else:
            yield change, factor


def add_change(total: Tensor | None, change: Change | Sum, share: float) -> Tensor:
    """Return the sum of a vector and a change times a factor.

    Args:
        total: (d,), changed in place where the change is sparse; None: of nothing.
        change: What is added.
        share: The factor.
    """
    if isinstance(change, Sum):
        for one, part in change.terms:
            total = add_change(total, one, part * share)
        assert total is not None
        return total
    if not isinstance(change, Sparse):
        dense: Tensor = share * change
        return dense if total is None else total + dense
    if total is None:
        total = change.values.new_zeros(change.length)
    return total.index_add_(0, change.indices, share * change.values)


def _make_dense(value: Change | Sum) -> Tensor:
    if isinstance(value, Sparse):
        return value.values.new_zeros(value.length).index_copy_(
            0, value.indices, value.values
        )
    return add_change(None, value, 1.0) if isinstance(value, Sum) else value


class ArrivedValues(Mapping[str, Tensor]):
    """An upload as the server got it, by the names of its fields.

    What came as a few entries, or as a sum, is made dense when it is asked for.
    """

    def __init__(self, changes: Mapping[str, Change | Sum]) -> None:
        self._changes = dict(changes)

    def __getitem__(self, name: str) -> Tensor:
        return _make_dense(self._changes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._changes)

    def __len__(self) -> int:
        return len(self._changes)

    def change(self, name: str) -> Any:
        """Return it as it came, a `Change` or `Sum`: see `Arrival.change`."""
        return self._changes[name]


def as_received(value: Tensor | list[Plain]) -> Change:
    """Return a change from how checkpoints carry it."""
    return Sparse(*value) if isinstance(value, list) else value
