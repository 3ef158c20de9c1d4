"""Linear layers of many models, and the loss behind them, by compiled loops
(`simfed/native/linear.cpp`).

Where the package was built without them, `compiled()` is None and PyTorch's products are used.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from simfed import native

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float


class _Shape(ctypes.Structure):
    _fields_ = [(name, _LONG) for name in ("models", "samples", "inputs", "outputs", "stride")]


class LinearLoops:
    """The compiled loops, with vectors of `width` numbers; which changes no result.

    Rows are models, (m, d) float32 with neighbours in memory along the row; `start` is where a
    layer's weights (outputs, inputs) begin in each, and its bias follows them. Samples x are
    (m, n, inputs), gradients in outputs (m, n, outputs).
    """

    def __init__(self, library: ctypes.CDLL, width: int) -> None:
        self.width = width
        self._forward = library.simfed_linear_forward
        self._forward.argtypes = [_INT, _POINTER, *[_POINTER] * 4]
        self._weight_gradient = library.simfed_linear_weight_gradient
        self._weight_gradient.argtypes = [_INT, _POINTER, *[_POINTER] * 4, _FLOAT, _INT]
        self._input_gradient = library.simfed_linear_input_gradient
        self._input_gradient.argtypes = [_INT, _POINTER, *[_POINTER] * 3]
        self._cross_entropies = library.simfed_cross_entropies
        self._cross_entropies.argtypes = [_INT, *[_LONG] * 3, *[_POINTER] * 4]
        self._cross_entropies.restype = _INT
        for call in (self._forward, self._weight_gradient, self._input_gradient):
            call.restype = None

    def forward(self, rows: Tensor, start: int, outputs: int, biased: bool, x: Tensor) -> Tensor:
        """Weight · x + bias: (m, n, outputs)."""
        x = x.contiguous()
        models, samples, inputs = x.shape
        y = x.new_empty(models, samples, outputs)
        weight, bias = _locate_layer(rows, start, inputs * outputs, biased)
        shape = _Shape(models, samples, inputs, outputs, rows.stride(0))
        self._forward(self.width, ctypes.byref(shape), x.data_ptr(), weight, bias, y.data_ptr())
        return y

    def weight_gradient(
        self,
        gradient: Tensor,
        x: Tensor,
        into: Tensor,
        start: int,
        biased: bool,
        rate: float | None = None,
    ) -> None:
        """The gradients of weights and bias, to their places in the rows of `into`; with a `rate`,
        these move by −rate times them."""
        gradient, x = gradient.contiguous(), x.contiguous()
        models, samples, inputs = x.shape
        outputs = gradient.shape[2]
        weight, bias = _locate_layer(into, start, inputs * outputs, biased)
        shape = _Shape(models, samples, inputs, outputs, into.stride(0))
        self._weight_gradient(
            self.width, ctypes.byref(shape), gradient.data_ptr(), x.data_ptr(), weight, bias,
            rate or 0.0, rate is not None,
        )  # fmt: skip

    def input_gradient(self, gradient: Tensor, rows: Tensor, start: int, inputs: int) -> Tensor:
        """The gradient in x: (m, n, inputs)."""
        gradient = gradient.contiguous()
        models, samples, outputs = gradient.shape
        result = gradient.new_empty(models, samples, inputs)
        shape = _Shape(models, samples, inputs, outputs, rows.stride(0))
        weight, _ = _locate_layer(rows, start, inputs * outputs, False)
        self._input_gradient(
            self.width, ctypes.byref(shape), gradient.data_ptr(), weight, result.data_ptr()
        )
        return result

    def cross_entropies(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """`simfed.learn.losses.cross_entropies`, equal up to rounding.

        Raises: `IndexError` for a label that is none of the classes, as PyTorch does.
        """
        logits, labels = logits.contiguous(), labels.contiguous()
        values, gradient = logits.new_empty(len(logits)), torch.empty_like(logits)
        trouble = self._cross_entropies(
            self.width, *logits.shape, logits.data_ptr(), labels.data_ptr(), values.data_ptr(),
            gradient.data_ptr(),
        )  # fmt: skip
        if trouble:
            raise IndexError(f"labels from 0 to {logits.shape[2] - 1}, got up to {labels.max()}")
        return values, gradient


def _locate_layer(rows: Tensor, start: int, weights: int, biased: bool) -> tuple[int, int | None]:
    """Where the first row's weights and bias are in memory."""
    weight = rows.data_ptr() + 4 * start
    return weight, weight + 4 * weights if biased else None


@cache
def compiled() -> LinearLoops | None:
    """The loops for this processor, or None."""
    compiled_layers = native.layers()
    return None if compiled_layers is None else LinearLoops(*compiled_layers)
