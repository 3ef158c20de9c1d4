"""Tensors on their way between processes, in memory that all of them share.

Descriptions of work travel through pipes, tensors do not: whoever sends puts each tensor into its
own part of the shelf, and a small `Slot` travels in its place. The first process keeps what it has
put there until the room is used up, so that a model goes down once per version, whatever number of
units and rounds ask for it; the others clear theirs before each batch of units. What finds no room
travels as a NumPy array.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simfed.learn.memory import Arena
from simfed.learn.tree import mapped

__all__ = ["Shelf"]

_ALIGNMENT = 64
"""Bytes: the last bits of a product may depend on how its operands are aligned."""
_SMALL = 1024
"""Bytes up to which a tensor travels through the pipe."""


_KNOWN = 512
"""Tensors of the first process that another one remembers."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor lies."""

    process: int
    number: int
    """No other tensor of this process has it."""
    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Shelf:
    """One part per process; built before processes are forked.

    >>> shelf = Shelf(Arena(shared=True), [1 << 16, 1 << 16])
    >>> sent = shelf.packed({"w": torch.ones(1000)})
    >>> sent["w"].start, shelf.unpacked(sent)["w"].sum().item()
    (0, 1000.0)
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
        self._seen: dict[tuple[int, int], Tensor] = {}

    def clear(self) -> None:
        """What this process has put there is not needed any more."""
        self._at = 0
        if self.process == 0 or len(self._seen) > _KNOWN:
            self._placed.clear()
            self._seen.clear()
        own = [key for key, (*_, slot) in self._placed.items() if slot.process == self.process]
        for key in own:
            del self._placed[key]

    def packed(self, tree: Any) -> Any:
        """The tree as it goes through a pipe."""
        return mapped(tree, lambda leaf: self._put(leaf) if isinstance(leaf, Tensor) else leaf)

    def unpacked(self, tree: Any, *, copied: bool = False) -> Any:
        """Inverse of `packed`. Of another process's tensors, `copied` or for as long as they lie
        there; of its own, the tensors themselves."""
        return mapped(tree, self._copy if copied else self._take)

    def make_room(self) -> None:
        """Forget what lies there, once half of the room is used; for the first process, before it
        puts down a batch of units."""
        if 2 * self._at > len(self._parts[self.process]):
            self.clear()

    def _put(self, tensor: Tensor) -> Any:
        version = 0 if tensor.is_inference() else tensor._version
        known = self._placed.get(id(tensor))
        if known is not None and known[1] == version:
            return known[2]
        length = tensor.numel() * tensor.element_size()
        start = -(-self._at // _ALIGNMENT) * _ALIGNMENT
        if length <= _SMALL or start + length > len(self._parts[self.process]):
            return tensor.detach().numpy()
        self._at, self._number = start + length, self._number + 1
        slot = Slot(self.process, self._number, start, tuple(tensor.shape), tensor.dtype)
        self._view(slot).copy_(tensor.detach())
        self._placed[id(tensor)] = tensor, version, slot
        self._seen[slot.process, slot.number] = tensor
        return slot

    def _take(self, leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return torch.tensor(
                leaf
            )  # into PyTorch's own memory, which is aligned alike everywhere
        if not isinstance(leaf, Slot):
            return leaf
        key = leaf.process, leaf.number
        found = self._seen.get(key)
        if found is None:
            found = self._seen[key] = self._view(leaf)
            if leaf.process != self.process:  # and back, it goes as it came
                self._placed[id(found)] = found, found._version, leaf
        return found

    def _copy(self, leaf: Any) -> Any:
        if isinstance(leaf, Slot) and leaf.process != self.process:
            return self._view(leaf).clone()
        return self._take(leaf)

    def _view(self, slot: Slot) -> Tensor:
        size = prod(slot.shape) * slot.dtype.itemsize
        part = self._parts[slot.process][slot.start : slot.start + size]
        return part.view(slot.dtype).view(slot.shape)
