"""Products of gradients and inputs by a compiled loop, with PyTorch's bits.

The loop is `simfed/native/outer.cpp`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from torch import Tensor

from simfed import native

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_long
_MOST_SAMPLES, _FEWEST_OUTPUTS, _FEWEST_INPUTS = 128, 5, 16
"""Bounds of a product that libraries add up from the first sample to the last, too:
they split longer sums, and turn narrow matrices over (measured with MKL on AVX2 and
AVX-512)."""


@cache
def _load_loop() -> tuple[int, ctypes._NamedFuncPointer] | None:
    """Return how many numbers vectors hold, and `simfed_outer_products`.

    None: it was not built.
    """
    library, width = native.layers() or (None, 0)
    loop: ctypes._NamedFuncPointer | None = getattr(
        library, "simfed_outer_products", None
    )
    if loop is None:
        return None
    numbers: list[Any] = [ctypes.c_int, *[_LONG] * 4, *[_POINTER, _LONG] * 3]
    loop.argtypes = [*numbers, ctypes.c_bool, ctypes.c_float]
    loop.restype = None
    return width, loop


def add_product(outer: Tensor, x: Tensor, into: Tensor, factor: float | None) -> bool:
    """Add `factor` × outerᵀ × x of each model to `into`, or write it over.

    Returns False, with nothing done, where no loop does that with a library's bits.
    outer: (m, n, outputs); x: (m, n, inputs); into: (m, outputs, inputs).
    """
    loop = _load_loop()
    (models, samples, outputs), inputs = outer.shape, x.shape[2]
    if (
        loop is None
        or samples > _MOST_SAMPLES
        or outputs < _FEWEST_OUTPUTS
        or inputs < _FEWEST_INPUTS
        or samples * outputs * inputs < 400  # rounds twice in PyTorch
        or outer.stride(1) != outputs
        or not x.stride(1) == into.stride(1) == inputs
        or not outer.stride(2) == x.stride(2) == into.stride(2) == 1
    ):
        return False
    width, multiply = loop
    multiply(
        width, models, samples, outputs, inputs, outer.data_ptr(), outer.stride(0),
        x.data_ptr(), x.stride(0), into.data_ptr(), into.stride(0),
        factor is not None, factor or 0.0,
    )  # fmt: skip
    return True
