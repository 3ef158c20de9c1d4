"""Layers that compute what an ordinary one computes, bit for bit, in less time on a CPU."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simfed import native


class ReluPool(nn.Module):
    """ReLU, then the maximum over 2×2 windows: `nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))`.

    On a CPU PyTorch's own pooling is two thirds of the inference time of a LeNet. Compiled loops
    (`simfed/native/relupool.cpp`) go over each number once, forward and backward; without them, the
    maximum of strided slices gives the same values some twenty times as fast as PyTorch's, and the
    same gradients in about half the time. At ties the gradient goes to the first maximum of the
    window in row-major order, as in `nn.MaxPool2d`. Elsewhere (other devices, odd sizes) the
    ordinary layers are used.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) → (n, channels, height // 2, width // 2)."""
        if x.device.type != "cpu" or x.shape[-1] % 2 or x.shape[-2] % 2:
            return F.max_pool2d(F.relu(x), 2)
        loops = compiled() if x.dtype == torch.float32 else None
        if torch.is_grad_enabled() and x.requires_grad:
            kind = _ReluPool if loops is None else _CompiledReluPool
            return kind.apply(x)  # type: ignore[no-untyped-call, no-any-return]
        if loops is not None:
            return loops.forward(x)[0]
        rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
        return torch.maximum(rows[..., ::2], rows[..., 1::2]).clamp_(min=0)

    def plain(self) -> nn.Module:
        """The same function from ordinary layers."""
        return nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))


class ReluPoolLoops:
    """The compiled loops, with vectors of `width` numbers; which changes no result."""

    def __init__(self, library: ctypes.CDLL, width: int) -> None:
        self.width = width
        self._pool, self._pool_back = library.simfed_pool, library.simfed_pool_back
        for call in (self._pool, self._pool_back):
            call.argtypes = [ctypes.c_int, *[ctypes.c_long] * 3, *[ctypes.c_void_p] * 3]
            call.restype = None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(n, channels, height, width), float32, height and width even → the maximum of each window
        after ReLU, and its corner, 0 to 3 in row-major order; −1 where ReLU gives 0. In memory they
        lie as `x` does, by planes or by pixels."""
        form = _find_form(x)
        x = x.contiguous(memory_format=form)
        n, channels, height, width = x.shape
        shape = n, channels, height // 2, width // 2
        pooled = torch.empty(shape, memory_format=form)
        corner = torch.empty(shape, dtype=torch.int32, memory_format=form)
        places = x.data_ptr(), pooled.data_ptr(), corner.data_ptr()
        self._pool(self.width, *_measure_lines(x, form), *places)
        return pooled, corner

    def backward(self, gradient: Tensor, corner: Tensor) -> Tensor:
        """The gradient in `x`, given that in the maxima."""
        form = _find_form(corner)
        gradient = gradient.contiguous(memory_format=form)
        n, channels, height, width = corner.shape
        into = torch.empty(n, channels, 2 * height, 2 * width, memory_format=form)
        places = gradient.data_ptr(), corner.data_ptr(), into.data_ptr()
        self._pool_back(self.width, *_measure_lines(into, form), *places)
        return into


@cache
def compiled() -> ReluPoolLoops | None:
    """The loops for this processor, or None; also where an earlier clone built the library."""
    compiled_layers = native.layers()
    if compiled_layers is None or not hasattr(compiled_layers[0], "simfed_pool"):
        return None
    return ReluPoolLoops(*compiled_layers)


def _find_form(x: Tensor) -> torch.memory_format:
    """By pixels, if `x` lies so in memory; else by planes."""
    by_pixels = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if by_pixels else torch.contiguous_format


def _measure_lines(x: Tensor, form: torch.memory_format) -> tuple[int, int, int]:
    """Rows in all, columns of each, and how far apart in memory numbers of two columns are."""
    n, channels, height, width = x.shape
    by_pixels = form == torch.channels_last
    return n * height * (1 if by_pixels else channels), width, channels if by_pixels else 1


class _CompiledReluPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        loops = compiled()
        assert loops is not None
        pooled, corner = loops.forward(x)
        ctx.save_for_backward(corner)
        return pooled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        loops = compiled()
        assert loops is not None
        [corner] = ctx.saved_tensors
        return loops.backward(gradients[0], corner)


class _ReluPool(torch.autograd.Function):
    """Columns first, then rows, the earlier one at ties: together the row-major first maximum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        left, right = x[..., ::2], x[..., 1::2]
        columns = torch.maximum(left, right)
        top, bottom = columns[..., ::2, :], columns[..., 1::2, :]
        pooled = torch.maximum(top, bottom).clamp_(min=0)
        ctx.save_for_backward(left >= right, top >= bottom, pooled)
        return pooled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        from_left, from_top, pooled = ctx.saved_tensors
        gradient = torch.where(pooled > 0, gradients[0], 0)
        n, channels, height, width = gradient.shape
        columns = gradient.new_empty(n, channels, 2 * height, width)
        _split_gradient(gradient, from_top, columns[..., ::2, :], columns[..., 1::2, :])
        whole = gradient.new_empty(n, channels, 2 * height, 2 * width)
        _split_gradient(columns, from_left, whole[..., ::2], whole[..., 1::2])
        return whole


def _split_gradient(gradient: Tensor, to_first: Tensor, first: Tensor, second: Tensor) -> None:
    """All of `gradient` into `first` where `to_first`, else into `second`; 0 in the other."""
    torch.mul(gradient, to_first, out=first)
    torch.sub(gradient, first, out=second)
