"""Memory for the arrays that all processes of a learning engine see."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor


class Arena:
    """Zeroed tensors, in memory that later forks share, or private to this process.

    Both kinds begin at a page border, because the last bits of a matrix product may
    depend on how its operands are aligned. Pages cost memory when they are first
    written. The memory is anonymous: it has no name to clean up, and goes when the last
    process that uses it does.

    >>> Arena(shared=False).zeros(3).tolist()
    [0.0, 0.0, 0.0]
    """

    def __init__(self, *, shared: bool, device: torch.device | None = None) -> None:
        """Begin.

        `device`: an accelerator, whose own memory is used (and nothing is shared).
        """
        self.shared = shared
        self._device = device if device is not None and device.type != "cpu" else None
        self._flags = (
            mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
        ) | mmap.MAP_ANONYMOUS
        self._flags |= getattr(mmap, "MAP_NORESERVE", 0)

    def zeros(
        self, length: int, *, dtype: torch.dtype = torch.float32, on_host: bool = False
    ) -> Tensor:
        """Return a zeroed tensor of shape (length,).

        `on_host`: in the processor's memory even where there is an accelerator.
        """
        if self._device is not None and not on_host:
            return torch.zeros(length, dtype=dtype, device=self._device)
        if not length:
            return torch.zeros(0, dtype=dtype)
        block = mmap.mmap(-1, length * dtype.itemsize, flags=self._flags)
        if hasattr(mmap, "MADV_HUGEPAGE") and length * dtype.itemsize >= 1 << 22:
            # scattered access to 45 MB: a page table miss each
            block.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(block, dtype=dtype, count=length)
