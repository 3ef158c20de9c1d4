"""Tensors on their way between processes, in memory that all of them share.

Messages travel through pipes, tensors do not: whoever sends puts each tensor into its
own part of the shelf, and its place travels. The first process keeps what it has put
there until the room is used up, so that a model goes down once per version, whatever
number of units and rounds ask for it; the others clear theirs before each batch of
units. What finds no room travels as raw numbers.
"""

from __future__ import annotations

import io
import mmap
import pickle
from collections.abc import Callable
from math import prod
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 64
"""Bytes: the last bits of a product may depend on how its operands are aligned."""
_SMALL = 1024
"""Bytes up to which a tensor travels through the pipe."""
_REMEMBERED = 512
"""Tensors of the first process that another one remembers."""


_DTYPES = [getattr(torch, name) for name in (
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8",
    "uint8", "bool", "complex64", "complex128",
)]  # fmt: skip
_NUMBER_OF = {dtype: number for number, dtype in enumerate(_DTYPES)}
"""The number of the type of a tensor's entries: a number is pickled in a tenth of the
type's time."""


def share_memory(size_bytes: int) -> Tensor:
    """Return zeroed bytes, shape (size_bytes,), that later forks share.

    They begin at a page border, because the last bits of a matrix product may depend on
    how its operands are aligned. Pages cost memory when they are first written. The
    memory has no name to clean up, and goes when the last process that uses it does.

    >>> share_memory(3).tolist()
    [0, 0, 0]
    """
    if not size_bytes:
        return torch.zeros(0, dtype=torch.uint8)
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    block = mmap.mmap(-1, size_bytes, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE") and size_bytes >= 1 << 22:
        # scattered access to 45 MB: a page table miss each
        block.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(block, dtype=torch.uint8)


Place = tuple[Any, ...]
"""A tensor as it travels: (process, number, start, shape, type), where it lies in that
process's memory, with a number that no other tensor of the process has, and its type's
in `_DTYPES`; or its raw numbers, their type and shape."""


class Shelf:
    """The tensors that processes lend each other, in one part of memory per process.

    Built before processes are forked, since memory without a name is shared by
    inheritance; each process then uses its `end`.

    >>> shelf = Shelf([1 << 16, 1 << 16])
    >>> message = shelf.pack({"w": torch.ones(1000)})
    >>> len(message) < 400, shelf.end(1).unpack(message)["w"].sum().item()
    (True, 1000.0)
    """

    def __init__(self, rooms: list[int]) -> None:
        """Begin with memory of this process and the others.

        `rooms`: bytes of each process's part.
        """
        self._begin(0, [share_memory(room) for room in rooms])

    def end(self, process: int) -> Shelf:
        """Return the same shelf as another process uses it."""
        end = Shelf.__new__(Shelf)
        end._begin(process, self._parts)
        return end

    def _begin(self, process: int, parts: list[Tensor]) -> None:
        self.process = process
        self._parts = parts
        self._at = self._number = 0
        self._placed: dict[int, tuple[Tensor, int, Place]] = {}
        """id of a tensor → itself, its version and the slot where it lies."""
        self._own: list[int] = []
        """ids of those that lie in this process's part."""
        self._seen: dict[tuple[int, int], Tensor] = {}

    def clear(self) -> None:
        """Free what this process has put there."""
        self._at = 0
        if self.process == 0 or len(self._seen) > _REMEMBERED:
            self._placed.clear()
            self._seen.clear()
        for key in self._own:
            self._placed.pop(key, None)
        self._own.clear()

    def make_room(self) -> None:
        """Forget what lies there, once half of the room is used.

        For the first process, before it puts down a batch of units.
        """
        if 2 * self._at > len(self._parts[self.process]):
            self.clear()

    def pack(self, message: object) -> bytes:
        """Return a message as it goes through a pipe; its tensors stay on the shelf."""
        written = io.BytesIO()
        _TensorPickler(written, self._put).dump(message)
        return written.getvalue()

    def unpack(self, data: bytes, *, copied: bool = False) -> Any:
        """Return what `pack` packed.

        Args:
            data: The message.
            copied: Tensors of other processes are copied; else they are good for as
                long as they lie there. Those of this process are themselves.
        """
        return _Unpacker(io.BytesIO(data), self._copy if copied else self._get).load()

    def _put(self, tensor: Tensor) -> Place:
        """Return the place of a tensor, where it lies already or is put now."""
        version = 0 if tensor.is_inference() else tensor._version
        placed = self._placed.get(id(tensor))
        if placed is not None and placed[1] == version:
            return placed[2]
        length = tensor.numel() * tensor.element_size()
        start = -(-self._at // _ALIGNMENT) * _ALIGNMENT
        if length <= _SMALL or start + length > len(self._parts[self.process]):
            array = tensor.detach().numpy()
            return array.tobytes(), array.dtype.str, array.shape
        self._at, self._number = start + length, self._number + 1
        shape = tuple(tensor.shape)
        place = self.process, self._number, start, shape, _NUMBER_OF[tensor.dtype]
        self._view(*place).copy_(tensor.detach())
        self._placed[id(tensor)] = tensor, version, place
        self._own.append(id(tensor))
        self._seen[self.process, self._number] = tensor
        return place

    def _get(self, *place: Any) -> Tensor:
        """Return the tensor of a place, a view of the memory of its process."""
        if isinstance(place[0], bytes):
            data, kind, shape = place
            # PyTorch's own memory is aligned alike everywhere
            return torch.tensor(np.frombuffer(data, kind).reshape(shape))
        key = process, _ = place[:2]
        tensor = self._seen.get(key)
        if tensor is None:
            tensor = self._seen[key] = self._view(*place)
            if process != self.process:  # and back, it goes as it came
                self._placed[id(tensor)] = tensor, tensor._version, place
        return tensor

    def _copy(self, *place: Any) -> Tensor:
        """Return the tensor of a place, copied where it is another process's."""
        if isinstance(place[0], bytes) or place[0] == self.process:
            return self._get(*place)
        return self._view(*place).clone()

    def _view(
        self, process: int, _: int, start: int, shape: tuple[int, ...], kind: int
    ) -> Tensor:
        dtype = _DTYPES[kind]
        size = prod(shape) * dtype.itemsize
        return self._parts[process][start : start + size].view(dtype).view(shape)


def take(*place: Any) -> NoReturn:
    """Return the tensor behind a place in a message."""
    raise pickle.UnpicklingError("a message is read by `Shelf.unpack`")


class _TensorPickler(pickle.Pickler):
    """Pickles all but tensors, of which it writes the place."""

    def __init__(self, into: io.BytesIO, put: Callable[[Tensor], Place]) -> None:
        super().__init__(into, pickle.HIGHEST_PROTOCOL)
        self._put = put

    # not `persistent_id`, which Python asks for every number and text of a message as
    # well
    def reducer_override(self, thing: object) -> Any:
        return (take, self._put(thing)) if isinstance(thing, Tensor) else NotImplemented


class _Unpacker(pickle.Unpickler):
    def __init__(self, data: io.BytesIO, get: Callable[..., Tensor]) -> None:
        super().__init__(data)
        self._get = get

    def find_class(self, module: str, name: str) -> Any:
        return (
            self._get if (module, name) == _TAKE else super().find_class(module, name)
        )


_TAKE = take.__module__, take.__qualname__
