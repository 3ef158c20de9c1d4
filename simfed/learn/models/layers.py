"""Layers that are found, and such that are an ordinary one, bit for bit, but faster."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def find_last_linear(module: nn.Module) -> nn.Linear | None:
    """Return the last linear layer, whose input is a sample's embedding.

    None where there is none.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    return layers[-1] if layers else None


class ReluPool(nn.Module):
    """ReLU, then the maximum over 2×2 windows.

    It stands for `nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))`.

    On a CPU PyTorch's own pooling is two thirds of the inference time of a LeNet; the
    maximum of strided slices gives the same values some twenty times as fast, and the
    same gradients in about half the time. At ties the gradient goes to the first
    maximum of the window in row-major order, as in `nn.MaxPool2d`. Elsewhere (other
    devices, odd sizes) the ordinary layers are used.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, channels, height, width) to (n, channels, height/2, width/2)."""
        if x.device.type != "cpu" or x.shape[-1] % 2 or x.shape[-2] % 2:
            return F.max_pool2d(F.relu(x), 2)
        if torch.is_grad_enabled() and x.requires_grad:
            return _ReluPool.apply(x)  # type: ignore[no-untyped-call]
        rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
        return torch.maximum(rows[..., ::2], rows[..., 1::2]).clamp_(min=0)

    def plain(self) -> nn.Module:
        """Return the same function from ordinary layers."""
        return nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))


class _ReluPool(torch.autograd.Function):
    """The function of `ReluPool`: columns first, then rows, the earlier one at ties.

    Together that is the row-major first maximum.
    """

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


def _split_gradient(
    gradient: Tensor, to_first: Tensor, first: Tensor, second: Tensor
) -> None:
    """Return `gradient` in `first` where `to_first`, else in `second`.

    It is 0 in the other.
    """
    torch.mul(gradient, to_first, out=first)
    torch.sub(gradient, first, out=second)
