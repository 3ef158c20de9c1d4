"""A selection made slice by slice of the coordinates, so that one can travel while the next is
compressed (`clients[].overlap`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import cast

import numpy as np

from simfed.compress.choice import Choice
from simfed.compress.codec import COMPOSED, Chain, Codec, codec_from_spec
from simfed.compress.compressors import Compressor, Selection, State
from simfed.compress.labels import label_of
from simfed.compress.vectors import Vector, is_tensor
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain

__all__ = ["Slices", "shares_of", "sliced"]

_NAME = "slices"


class Sliced:
    """A selection of each of `count` slices of the coordinates, each with its share of K.

    >>> from simfed.compress.compressors import TopK
    >>> Sliced(TopK(), 2).select(np.array([9.0, 8.0, 1.0, 2.0]), 2).indices
    array([0, 3])
    """

    name = _NAME

    def __init__(self, selection: Compressor, count: int) -> None:
        self.selection = selection
        self.count = count

    def select(
        self, update: Vector, k: int, *, state: State = None, rng: np.random.Generator | None = None
    ) -> Selection:
        """See `Compressor`; the state is a list of the slices' own."""
        length = len(update)
        before = cast("list[State]", state) or [None] * self.count
        chosen, after = [], []
        for number, (begin, end, share) in enumerate(_cuts(self.count, length, k)):
            if not share:
                after.append(before[number])
                continue
            part = self.selection.select(update[begin:end], share, state=before[number], rng=rng)
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

    def __init__(self, codec: Chain, count: int) -> None:
        super().__init__(Sliced(codec.selection, count))
        self.whole = codec
        self.slices = count
        self.timed_as = codec.label

    @classmethod
    def read(cls, value: Plain) -> Slices:
        """From `{count: codec}`. Raises: `InputError`."""
        if not isinstance(value, Mapping) or len(value) != 1:
            raise InputError("a codec for one number of slices", where=_NAME, got=value)
        [(count, codec)] = value.items()
        return cls(_checked(codec_from_spec(codec)), int(count))

    @property
    def label(self) -> str:
        return label_of(_NAME, {str(self.slices): self.whole.label})

    @property
    def spec(self) -> Plain:
        return {_NAME: {str(self.slices): self.whole.label}}

    @property
    def draws(self) -> bool:
        return self.whole.draws

    def under_feedback(self) -> Slices:
        return self


COMPOSED[_NAME] = Slices.read


def sliced(choice: Choice, count: int) -> Choice:
    """`choice`, made slice by slice; 1: itself. Raises: `InputError` for a codec that is no
    selection of entries."""
    return choice if count == 1 else _sliced(choice, count).at(choice.level)


@lru_cache(maxsize=1024)
def _sliced(choice: Choice, count: int) -> Choice:
    if choice.fields:
        raise InputError("one compressor for all fields", got=choice.label)
    return Choice(Slices(_checked(choice.codec), count))


def _checked(codec: Codec) -> Chain:
    if not isinstance(codec, Chain) or codec.values is not None or codec.keeps_all:
        allowed = "a compressor that selects entries and sends them as they are, such as top-k"
        raise InputError(allowed, got=codec.label)
    return codec


def shares_of(count: int, length: int, k: int) -> list[float]:
    """What each slice is of the upload: its share of K.

    >>> shares_of(4, 1000, 10)
    [0.2, 0.3, 0.2, 0.3]
    """
    return [share / k for _, _, share in _cuts(count, length, k)]


def _cuts(count: int, length: int, k: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, entries) of each slice: as equal as they can be, none of more than it has."""
    done, k = 0, min(k, length)
    borders = [length * number // count for number in range(count + 1)]
    for number, (begin, end) in enumerate(pairwise(borders), start=1):
        share = min(k * number // count - done, end - begin)
        share = max(share, k - (length - end) - done)
        yield begin, end, share
        done += share
