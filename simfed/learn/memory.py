"""Memory for the arrays that all processes of a learning engine see."""

from __future__ import annotations

import mmap
from math import prod

import torch
from torch import Tensor

_ALIGNMENT = 16
"""Rows begin at multiples of 16 elements: the same place in a cache line in every process."""


class Arena:
    """Zeroed tensors, in memory that processes forked later share, or private to this one.

    Both kinds begin at a page border, because the last bits of a matrix product may depend on how
    its operands are aligned. Pages cost memory when they are first written, so rows of clients
    that never take part are free. The memory is anonymous: it has no name to clean up, and goes
    when the last process that uses it does.

    >>> Arena(shared=False).zeros(2, 3).tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """

    def __init__(self, *, shared: bool, device: torch.device | None = None) -> None:
        """`device`: an accelerator, whose own memory is used (and nothing is shared)."""
        self.shared = shared
        self._device = device if device is not None and device.type != "cpu" else None
        self._flags = (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | mmap.MAP_ANONYMOUS
        self._flags |= getattr(mmap, "MAP_NORESERVE", 0)

    @property
    def device(self) -> torch.device:
        """The device on which its tensors lie."""
        return self._device or torch.device("cpu")

    def zeros(
        self, *shape: int, dtype: torch.dtype = torch.float32, on_host: bool = False
    ) -> Tensor:
        """A zeroed tensor; of more than one dimension, the rows of the first are aligned.

        `on_host`: in the processor's memory even where there is an accelerator.
        """
        if self._device is not None and not on_host:
            return torch.zeros(shape, dtype=dtype, device=self._device)
        row = prod(shape[1:]) if len(shape) > 1 else 1
        stride = -(-row // _ALIGNMENT) * _ALIGNMENT if len(shape) > 1 else 1
        items = stride * shape[0]
        if items == 0:
            return torch.zeros(shape, dtype=dtype)
        block = mmap.mmap(-1, items * dtype.itemsize, flags=self._flags)
        if hasattr(mmap, "MADV_HUGEPAGE") and items * dtype.itemsize >= 1 << 22:
            block.madvise(mmap.MADV_HUGEPAGE)  # scattered access to 45 MB: a page table miss each
        flat = torch.frombuffer(block, dtype=dtype, count=items)
        if len(shape) == 1:
            return flat
        return flat.as_strided(
            shape, (stride, *(prod(shape[i:]) for i in range(2, len(shape) + 1)))
        )
