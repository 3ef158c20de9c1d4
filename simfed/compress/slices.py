"""Selections made slice by slice, so that one slice travels while the next is made.

See `clients[].overlap`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import cast

import numpy as np
from typing_extensions import override

from simfed.compress.choice import Choice
from simfed.compress.codec import COMPOSED, Chain, Codec, codec_from_spec
from simfed.compress.labels import format_link
from simfed.compress.sparsifiers import Selection, Sparsifier, State
from simfed.compress.vectors import Vector, is_tensor
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain

_NAME = "slices"


class Sliced:
    """A selection of each slice of the coordinates, each with its share of K.

    >>> from simfed.compress.sparsifiers import TopK
    >>> Sliced(TopK(), 2).select(np.array([9.0, 8.0, 1.0, 2.0]), 2).indices
    array([0, 3])
    """

    name = _NAME

    def __init__(self, selection: Sparsifier, chunks: int) -> None:
        """Select within slices.

        Args:
            selection: of each slice.
            chunks: how many slices there are.
        """
        self.selection = selection
        self.chunks = chunks

    def select(
        self,
        update: Vector,
        k: int,
        *,
        state: State = None,
        rng: np.random.Generator | None = None,
    ) -> Selection:
        """Select in slices as equal as can be, in length and in number of entries.

        There are no more slices than entries.

        Args:
            update: shape (d,).
            k: entries of all slices together.
            state: a list of the slices' own.
            rng: draws for one slice after another.
        """
        before = cast("list[State]", state)
        length, count = len(update), self.chunks
        chosen, after = [], []
        begin = done = 0
        for number in range(count):
            end = length * (number + 1) // count
            share = min(k * (number + 1) // count - done, end - begin)
            share = max(share, k - (length - end) - done)
            state_before = before[number] if before else None
            if share:
                part = self.selection.select(
                    update[begin:end], share, state=state_before, rng=rng
                )
                chosen.append(part.indices + begin)
                after.append(part.state)
            else:
                after.append(state_before)
            begin, done = end, done + share
        if is_tensor(chosen[0]):
            import torch

            return Selection(torch.cat(chosen), after)
        return Selection(np.concatenate(chosen), after)


class Slices(Chain):
    """The codec that `sliced` makes: bytes and time are those of the codec it cuts up.

    >>> codec_from_spec("slices(8=top-k)").size_bytes(61_706, 1000, "fixed")
    6000.0
    """

    def __init__(self, codec: Chain, chunks: int) -> None:
        super().__init__(Sliced(codec.selection, chunks))
        self.whole = codec
        self.chunks = chunks
        self.shared, self.draws = codec.shared, codec.draws
        self.timed_as = codec.timed_as or codec.label

    @classmethod
    def read(cls, value: Plain) -> Slices:
        """Return the codec of `{chunks: codec}`."""
        if not isinstance(value, Mapping) or len(value) != 1:
            raise InputError("a codec for one number of slices", where=_NAME, got=value)
        [(chunks, codec)] = value.items()
        return cls(_check_selection(codec_from_spec(codec)), int(str(chunks)))

    @property
    @override
    def label(self) -> str:
        return format_link(_NAME, {str(self.chunks): self.whole.label})


COMPOSED[_NAME] = Slices.read


def sliced(choice: Choice, chunks: int) -> Choice:
    """Return `choice`, made slice by slice; of one slice itself.

    So a chunk of an upload can leave while the next one is compressed (`overlap`).

    Args:
        choice: a codec and its level; the level is of each slice's own entries.
        chunks: into how many slices of about equal length the vector is cut.

    Raises:
        InputError: a codec that needs the whole vector.
    """
    return choice if chunks == 1 else _slice_choice(choice, chunks).at(choice.level)


@lru_cache(maxsize=1024)
def _slice_choice(choice: Choice, chunks: int) -> Choice:
    return Choice(Slices(_check_selection(choice.codec), chunks))


def _check_selection(codec: Codec) -> Chain:
    if isinstance(codec, Chain) and codec.values is None and not codec.keeps_all:
        return codec
    allowed = "a codec that selects entries and sends them as they are, such as top-k"
    raise InputError(allowed, got=codec.label)
