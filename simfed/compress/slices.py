"""A selection made slice by slice of the coordinates, so that one can travel while the next is
compressed, or its gradient computed (`clients[].overlap`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import cast

import numpy as np

from simfed.compress.choice import Choice
from simfed.compress.codec import COMPOSED, Chain, Codec, codec_from_spec
from simfed.compress.labels import format_link
from simfed.compress.sparsifiers import Selection, Sparsifier, State
from simfed.compress.vectors import Vector, is_tensor
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain

_NAME = "slices"

Cuts = int | tuple[int, ...]
"""Slices: so many that are equally long, or the layers that end at these entries."""


class Sliced:
    """A selection of each slice of the coordinates, each with its share of K.

    >>> from simfed.compress.sparsifiers import TopK
    >>> Sliced(TopK(), 2).select(np.array([9.0, 8.0, 1.0, 2.0]), 2).indices
    array([0, 3])
    """

    name = _NAME

    def __init__(self, selection: Sparsifier, cuts: Cuts) -> None:
        self.selection = selection
        self.cuts = cuts

    def select(
        self, update: Vector, k: int, *, state: State = None, rng: np.random.Generator | None = None
    ) -> Selection:
        """See `Sparsifier`; the state is a list of the slices' own."""
        before = cast("list[State]", state)
        chosen, after = [], []
        for number, (begin, end, share) in enumerate(_list_slices(self.cuts, len(update), k)):
            state_before = before[number] if before else None
            if not share:
                after.append(state_before)
                continue
            part = self.selection.select(update[begin:end], share, state=state_before, rng=rng)
            chosen.append(part.indices + begin)
            after.append(part.state)
        if is_tensor(chosen[0]):
            import torch

            return Selection(torch.cat(chosen), after)
        return Selection(np.concatenate(chosen), after)


class Slices(Chain):
    """What `sliced` makes: bytes and time are those of the codec that it cuts up.

    >>> codec_from_spec("slices(8=top-k)").size_bytes(61_706, 1000, "fixed")
    6000.0
    """

    def __init__(self, codec: Chain, cuts: Cuts) -> None:
        super().__init__(codec.selection if codec.keeps_all else Sliced(codec.selection, cuts))
        self.whole = codec
        self.cuts = cuts
        self.shared = codec.shared
        self.timed_as = codec.timed_as or codec.label

    @classmethod
    def read(cls, value: Plain) -> Slices:
        """From `{count: codec}`, or the ends of layers: `{156/2572: codec}`. Raises:
        `InputError`."""
        if not isinstance(value, Mapping) or len(value) != 1:
            raise InputError("a codec for one number of slices", where=_NAME, got=value)
        [(cuts, codec)] = value.items()
        first, *others = map(int, str(cuts).split("/"))
        ends = (first, *others) if others else first
        return cls(_check_slices(codec_from_spec(codec), ends), ends)

    @property
    def label(self) -> str:
        return format_link(_NAME, {self._key: self.whole.label})

    @property
    def spec(self) -> Plain:
        return {_NAME: {self._key: self.whole.label}}

    @property
    def _key(self) -> str:
        return str(self.cuts) if isinstance(self.cuts, int) else "/".join(map(str, self.cuts))

    @property
    def draws(self) -> bool:
        return self.whole.draws

    def under_feedback(self) -> Slices:
        return self


COMPOSED[_NAME] = Slices.read


def sliced(choice: Choice, cuts: Cuts) -> Choice:
    """`choice`, made slice by slice; of one slice itself. Raises: `InputError` for a codec that
    needs the whole vector."""
    return choice if cuts == 1 else _slice_choice(choice, cuts).at(choice.level)


@lru_cache(maxsize=1024)
def _slice_choice(choice: Choice, cuts: Cuts) -> Choice:
    return Choice(Slices(_check_slices(choice.codec, cuts), cuts))


def _check_slices(codec: Codec, cuts: Cuts) -> Chain:
    by_layer = not isinstance(cuts, int)
    plain = isinstance(codec, Chain) and codec.values is None
    if isinstance(codec, Chain) and plain and (by_layer or not codec.keeps_all):
        return codec
    allowed = "a codec that selects entries and sends them as they are, such as top-k"
    raise InputError(allowed + (" or dense" if by_layer else ""), got=codec.label)


def shares_of(cuts: Cuts, length: int, k: int) -> list[float]:
    """What each slice is of the upload: its share of K.

    >>> shares_of(4, 1000, 10)
    [0.2, 0.3, 0.2, 0.3]
    >>> shares_of((100, 1000), 1000, 20)
    [0.1, 0.9]
    """
    return [share / k for _, _, share in _list_slices(cuts, length, k)]


def _list_slices(cuts: Cuts, length: int, k: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, entries) of each slice, none of more than it has. Slices that are equally long
    have as equal shares as they can; layers have one entry each, and of the others as many as they
    are of the coordinates."""
    done, k = 0, min(k, length)
    equal = isinstance(cuts, int)
    ends = [length * n // cuts for n in range(1, cuts + 1)] if isinstance(cuts, int) else cuts
    count = len(ends)
    for number, (begin, end) in enumerate(pairwise((0, *ends)), start=1):
        if equal:
            share = min(k * number // count - done, end - begin)
            share = max(share, k - (length - end) - done)
        else:
            share = number + (k - count) * (end - number) // max(length - count, 1) - done
        yield begin, end, share
        done += share
