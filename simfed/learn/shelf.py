"""Tensors on their way between processes, in memory that all of them share.

Messages travel through pipes, tensors do not: whoever sends puts each tensor into its own part of
the shelf, and its place travels. The first process keeps what it has put there until the room is
used up, so that a model goes down once per version, whatever number of units and rounds ask for it;
the others clear theirs before each batch of units. What finds no room travels as a NumPy array.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simfed.learn.memory import Arena

__all__ = ["Shelf"]

_ALIGNMENT = 64
"""Bytes: the last bits of a product may depend on how its operands are aligned."""
_SMALL = 1024
"""Bytes up to which a tensor travels through the pipe."""
_REMEMBERED = 512
"""Tensors of the first process that another one remembers."""


class Slot(NamedTuple):
    """Where a tensor lies."""

    process: int
    number: int
    """No other tensor of this process has it."""
    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype


Place = Slot | NDArray[np.generic]
"""What travels of a tensor."""


class Shelf:
    """One part per process; built before processes are forked.

    >>> shelf = Shelf(Arena(shared=True), [1 << 16, 1 << 16])
    >>> message = shelf.pack({"w": torch.ones(1000)})
    >>> len(message) < 400, shelf.end(1).unpack(message)["w"].sum().item()
    (True, 1000.0)
    """

    def __init__(self, arena: Arena, rooms: list[int]) -> None:
        """rooms: bytes of each process's part."""
        self._begin(0, [arena.zeros(room, dtype=torch.uint8, on_host=True) for room in rooms])

    def end(self, process: int) -> Shelf:
        """The same shelf as another process uses it."""
        end = Shelf.__new__(Shelf)
        end._begin(process, self._parts)
        return end

    def _begin(self, process: int, parts: list[Tensor]) -> None:
        self.process = process
        self._parts = parts
        self._at = self._number = 0
        self._placed: dict[int, tuple[Tensor, int, Slot]] = {}
        """id of a tensor → itself, its version and its place."""
        self._seen: dict[tuple[int, int], Tensor] = {}

    def clear(self) -> None:
        """What this process has put there is not needed any more."""
        self._at = 0
        if self.process == 0 or len(self._seen) > _REMEMBERED:
            self._placed.clear()
            self._seen.clear()
        own = [key for key, (*_, slot) in self._placed.items() if slot.process == self.process]
        for key in own:
            del self._placed[key]

    def make_room(self) -> None:
        """Forget what lies there, once half of the room is used; for the first process, before it
        puts down a batch of units."""
        if 2 * self._at > len(self._parts[self.process]):
            self.clear()

    def pack(self, message: object) -> bytes:
        """A message as it goes through a pipe; its tensors stay on the shelf."""
        written = io.BytesIO()
        _Packer(written, self._put).dump(message)
        return written.getvalue()

    def unpack(self, data: bytes, *, copied: bool = False) -> Any:
        """Inverse of `pack`. Tensors of other processes are `copied`, or good for as long as they
        lie there; those of this one are themselves."""
        return _Unpacker(io.BytesIO(data), self._copy if copied else self._get).load()

    def _put(self, tensor: Tensor) -> Place:
        version = 0 if tensor.is_inference() else tensor._version
        placed = self._placed.get(id(tensor))
        if placed is not None and placed[1] == version:
            return placed[2]
        length = tensor.numel() * tensor.element_size()
        start = -(-self._at // _ALIGNMENT) * _ALIGNMENT
        if length <= _SMALL or start + length > len(self._parts[self.process]):
            array: NDArray[np.generic] = tensor.detach().numpy()
            return array
        self._at, self._number = start + length, self._number + 1
        slot = Slot(self.process, self._number, start, tuple(tensor.shape), tensor.dtype)
        self._view(slot).copy_(tensor.detach())
        self._placed[id(tensor)] = tensor, version, slot
        self._seen[slot.process, slot.number] = tensor
        return slot

    def _get(self, place: Place) -> Tensor:
        if not isinstance(place, Slot):
            return torch.tensor(place)  # PyTorch's own memory is aligned alike everywhere
        key = place.process, place.number
        tensor = self._seen.get(key)
        if tensor is None:
            tensor = self._seen[key] = self._view(place)
            if place.process != self.process:  # and back, it goes as it came
                self._placed[id(tensor)] = tensor, tensor._version, place
        return tensor

    def _copy(self, place: Place) -> Tensor:
        if isinstance(place, Slot) and place.process != self.process:
            return self._view(place).clone()
        return self._get(place)

    def _view(self, slot: Slot) -> Tensor:
        size = prod(slot.shape) * slot.dtype.itemsize
        part = self._parts[slot.process][slot.start : slot.start + size]
        return part.view(slot.dtype).view(slot.shape)


class _Packer(pickle.Pickler):
    """Pickles all but tensors, of which it writes the place."""

    def __init__(self, into: io.BytesIO, put: Callable[[Tensor], Place]) -> None:
        super().__init__(into, pickle.HIGHEST_PROTOCOL)
        self._put = put

    def persistent_id(self, thing: object) -> Place | None:
        return self._put(thing) if isinstance(thing, Tensor) else None


class _Unpacker(pickle.Unpickler):
    def __init__(self, data: io.BytesIO, get: Callable[[Place], Tensor]) -> None:
        super().__init__(data)
        self._get = get

    def persistent_load(self, place: Place) -> Tensor:
        return self._get(place)
