"""Convolution, ReLU and pooling by compiled loops (`simfed/native/convpool.cpp`).

Where the package was built without them, `compiled()` is None and PyTorch's
convolutions are used. Samples lie in *lanes*: sixteen of them side by side, as the last
dimension of every tensor here, so that one vector instruction works on as many samples
and no sample's result depends on another.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from simfed import native

LANES = 16
"""Samples side by side, in blocks of so many; the last one may be filled up with
nothing."""
KERNEL = 5
_POINTER, _LONG = ctypes.c_void_p, ctypes.c_long


class Convpool:
    """The compiled loops, with vectors of `width` numbers; which changes no result."""

    def __init__(self, library: ctypes.CDLL, width: int) -> None:
        """Say what the library's functions take.

        Args:
            library: From `native.layers`.
            width: Numbers in a vector of this processor, 8 or 16.
        """
        self.width = width
        self._layer_calls = {
            name: getattr(library, f"simfed_{name}")
            for name in ("forward", "weight_gradient", "input_gradient")
        }
        for call in self._layer_calls.values():
            call.argtypes = [ctypes.c_int, _POINTER, *[_POINTER] * 5]
            call.restype = None
        self.side_by_side = library.simfed_side_by_side
        self.side_by_side.argtypes = [_POINTER, *[_LONG] * 5, _POINTER]
        self.one_by_one = library.simfed_one_by_one
        self.one_by_one.argtypes = [_POINTER, _LONG, _LONG, _POINTER]
        self.add_lanes = library.simfed_add_lanes
        self.add_lanes.argtypes = [_POINTER, _LONG, _POINTER]
        for call in (self.side_by_side, self.one_by_one, self.add_lanes):
            call.restype = None

    def call(self, name: str, layer: _LayerShape, *tensors: Tensor | None) -> None:
        """Call a function of the compiled library on one layer.

        Args:
            name: `forward`, `weight_gradient` or `input_gradient`.
            layer: Its shape.
            tensors: In the order of the C++ function; None: not wanted.
        """
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        self._layer_calls[name](self.width, ctypes.byref(layer), *pointers)


@cache
def compiled() -> Convpool | None:
    """Return the loops for this processor, or None."""
    compiled_layers = native.layers()
    return None if compiled_layers is None else Convpool(*compiled_layers)


class _LayerShape(ctypes.Structure):
    """`Layer` of convpool.cpp; height and width of the input with its padding."""

    _fields_ = [
        (name, _LONG)
        for name in (
            "blocks", "inputs", "height", "width", "outputs", "pooled_height",
            "pooled_width",
        )
    ]  # fmt: skip

    def pooled(self, blocks: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return room for the layer's output in lanes."""
        return _make_lanes(
            blocks, self.outputs, self.pooled_height, self.pooled_width, dtype=dtype
        )


class _Kept:
    """Values that a forward pass leaves for the backward pass, and room for it."""

    def __init__(self, first: _LayerShape, second: _LayerShape, blocks: int) -> None:
        self.blocks = blocks
        self.samples = _make_lanes(blocks, first.inputs, first.height, first.width)
        self.pooled = [layer.pooled(blocks) for layer in (first, second)]
        self.corners = [layer.pooled(blocks, torch.int32) for layer in (first, second)]
        """The window's first maximum, 0 to 3 in row-major order; −1 where ReLU gave
        0."""
        self.gradients = [layer.pooled(blocks) for layer in (first, second)]
        columns = 2 * second.pooled_width + 2 * (KERNEL - 1)
        self.spread = _make_lanes(
            second.outputs, 2 * second.pooled_height, columns
        ).zero_()


class ConvpoolPair:
    """Two layers in a row, the first with padding 2, the second without.

    Each is a 5 × 5 convolution, ReLU and the maximum over 2 × 2 windows. The weights
    and biases are read at each call. What `forward` keeps goes to `backward` or to
    `give_back`; room is used again by whoever has layers of the same shape.
    """

    _room: dict[tuple[int, ...], list[_Kept]] = {}  # noqa: RUF012 (shared on purpose)

    def __init__(
        self,
        loops: Convpool,
        parameters: tuple[Tensor, Tensor, Tensor, Tensor],
        shape: tuple[int, ...],
    ) -> None:
        """Take weight and bias of the first and of the second convolution.

        `shape`: (channels, height, width) of a sample, height and width multiples of
        four.
        """
        self._loops = loops
        self._parameters = parameters
        self._shape = shape
        channels, height, width = shape
        outputs = [parameters[0].shape[0], parameters[2].shape[0]]
        self._first = _LayerShape(
            0, channels, height + 4, width + 4, outputs[0], height // 2, width // 2
        )
        self._second = _LayerShape(
            0, outputs[0], height // 2, width // 2,
            outputs[1], (height // 2 - 4) // 2, (width // 2 - 4) // 2,
        )  # fmt: skip
        self.features = (
            outputs[1] * self._second.pooled_height * self._second.pooled_width
        )
        self._key = (*shape, *outputs)

    def forward(self, samples: Tensor, *, keep: bool) -> tuple[Tensor, _Kept]:
        """Return features and kept values.

        Args:
            samples: (n, channels, height, width).
            keep: Note where each maximum came from, for `backward`.

        Returns:
            (n, features), and what `backward`, `differentiate_each` or `give_back`
            takes.
        """
        samples = samples.float().contiguous()
        n = len(samples)
        room = self._take(-(-n // LANES))
        loops, corners = self._loops, room.corners if keep else (None, None)
        loops.side_by_side(
            samples.data_ptr(), n, *self._shape, 2, room.samples.data_ptr()
        )
        for at, layer in enumerate((self._first, self._second)):
            x = room.pooled[0] if at else room.samples
            parameters = self._parameters[2 * at : 2 * at + 2]
            loops.call("forward", layer, x, *parameters, room.pooled[at], corners[at])
        features = samples.new_empty(n, self.features)
        loops.one_by_one(
            room.pooled[1].data_ptr(), n, self.features, features.data_ptr()
        )
        return features, room

    def backward(self, gradient: Tensor, room: _Kept, into: list[Tensor]) -> None:
        """Add to the parameters' gradients, and give the room back.

        Args:
            gradient: (n, features), that in the features.
            room: From `forward` with `keep`.
            into: Gradients of weights and biases in their order, changed in place.
        """
        blocks = self._pull_back(gradient, room)
        sums = [_make_lanes(*parameter.shape).zero_() for parameter in self._parameters]
        self._add_weight_gradients(room, slice(0, blocks), sums)
        for lanes, to in zip(sums, into, strict=True):
            self._loops.add_lanes(lanes.data_ptr(), to.numel(), to.data_ptr())
        self.give_back(room)

    def differentiate_each(self, gradient: Tensor, room: _Kept) -> list[Tensor]:
        """Return the gradients of each sample, and give the room back.

        A sample is a lane, so that its gradient is only kept apart.

        Args:
            gradient: (n, features), that in the features.
            room: From `forward` with `keep`.

        Returns:
            (n, entries) of each parameter.
        """
        blocks = self._pull_back(gradient, room)
        sums = [
            _make_lanes(blocks, parameter.numel()).zero_()
            for parameter in self._parameters
        ]
        for block in range(blocks):
            one = slice(block, block + 1)
            self._add_weight_gradients(room, one, [lanes[block] for lanes in sums])
        self.give_back(room)
        return [lanes.transpose(1, 2).flatten(0, 1)[: len(gradient)] for lanes in sums]

    def _pull_back(self, gradient: Tensor, room: _Kept) -> int:
        """Bring the gradient in the features behind both layers.

        Returns the number of blocks of lanes that the samples fill.
        """
        gradient, loops = gradient.contiguous(), self._loops
        blocks = self._first.blocks = self._second.blocks = -(-len(gradient) // LANES)
        loops.side_by_side(
            gradient.data_ptr(), len(gradient), 1, 1, self.features, 0,
            room.gradients[1].data_ptr(),
        )  # fmt: skip
        loops.call(
            "input_gradient", self._second,
            room.gradients[1], room.corners[1], self._parameters[2], room.spread,
            room.gradients[0],
        )  # fmt: skip
        return blocks

    def _add_weight_gradients(
        self, room: _Kept, blocks: slice, sums: Sequence[Tensor]
    ) -> None:
        """Add these blocks' gradients of weights to `sums`, sample by sample."""
        self._first.blocks = self._second.blocks = blocks.stop - blocks.start
        for layer, x, at in (
            (self._second, room.pooled[0], 1),
            (self._first, room.samples, 0),
        ):
            self._loops.call(
                "weight_gradient", layer,
                x[blocks], room.gradients[at][blocks], room.corners[at][blocks],
                sums[2 * at], sums[2 * at + 1],
            )  # fmt: skip

    def give_back(self, room: _Kept) -> None:
        """Give back the memory of kept values."""
        self._room.setdefault(self._key, []).append(room)

    def _take(self, blocks: int) -> _Kept:
        """Return room for so many blocks, that of an earlier call where it suffices."""
        self._first.blocks = self._second.blocks = blocks
        free = self._room.setdefault(self._key, [])
        room = free.pop() if free else None
        if room is None or room.blocks < blocks:
            room = _Kept(self._first, self._second, blocks)
        return room


def _make_lanes(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return values with the lanes as a last dimension, aligned for vectors.

    PyTorch aligns to 64.
    """
    return torch.empty(*shape, LANES, dtype=dtype)
