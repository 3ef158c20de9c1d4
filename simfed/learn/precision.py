"""The device and the precision of learning.

Float32 is float32, with the same algorithms every time, whatever the caller has set.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from simfed.ground.errors import InputError


@contextmanager
def exact_float32() -> Iterator[None]:
    """Make no product or convolution in TF32 or bfloat16 in the block.

    By default PyTorch computes a GPU's convolutions in TF32. What autocast asks for is
    not touched.
    """
    backends: Any = torch.backends
    # PyTorch's older switches raise once somebody has used these
    operations: list[Any] = [
        backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn,
        backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn,
    ]  # fmt: skip
    before = [operation.fp32_precision for operation in operations]
    for operation in operations:
        operation.fp32_precision = "ieee"
    try:
        yield
    finally:
        for operation, precision in zip(operations, before, strict=True):
            operation.fp32_precision = precision


@contextmanager
def same_algorithms() -> Iterator[None]:
    """Let cuDNN choose algorithms by shapes alone in the block.

    None adds in any order.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.enabled, cudnn.benchmark, cudnn.deterministic
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic = True, False, True
    try:
        yield
    finally:
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic = before


@contextmanager
def fix_bits(place: torch.device) -> Iterator[None]:
    """Meanwhile learning has the same bits whatever the caller has set."""
    threads = torch.get_num_threads()
    with exact_float32(), nullcontext() if place.type == "cpu" else same_algorithms():
        # processes share the work, threads would only wait for each other
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def device_of(name: str) -> torch.device:
    """Return where to learn.

    Raises: `InputError` for what is not here.
    """
    if name == "cpu":
        return torch.device("cpu")
    if name != "cuda":
        raise InputError("a device: cpu or cuda", where="--device", got=name)
    if not torch.cuda.is_available():
        raise InputError(
            "cpu, as PyTorch finds no CUDA device here", where="--device", got=name
        )
    return torch.device("cuda", torch.cuda.current_device())
