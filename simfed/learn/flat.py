"""Modules whose weights are one flat tensor.

Compression, residuals, aggregation and worker processes work on one vector per model;
modules want a tensor per layer. A `FlatModel` is both: every trainable parameter is a
view of `weights`, every running statistic a view of `statistics`, so writing the vector
moves the module and no copy is ever made between the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, compress, pairwise

import torch
from torch import Tensor, nn

from simfed.ground.method import Layers, Values


class FlatModel:
    """`module`, rebuilt upon flat storage.

    Weights keep the order of `module.parameters()`. Frozen parameters stay outside the
    flat vector and never change. Step counters (integer buffers) are put back by
    `reset_counters` before each use that could see them.

    Attributes:
        module: The module whose trainable parameters and statistics are views.
        weights: (d,) float32, all trainable parameters.
        statistics: (s,) float32, all floating-point buffers.

    >>> model = FlatModel(nn.Linear(2, 1))
    >>> model.weights.copy_(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [1.0, 2.0, 3.0]
    >>> model.module(torch.ones(1, 2)).item()
    6.0
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._slots = [
            (owner, name, buffer)
            for owner in module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None and buffer.is_floating_point()
        ]
        self._buffers = [buffer for _, _, buffer in self._slots]
        self._counters = [
            (b, b.clone()) for b in module.buffers() if not b.is_floating_point()
        ]
        self.weights = _flatten([p.detach() for p in self._parameters])
        self.statistics = _flatten(self._buffers)
        self.begins = 0
        """Where the weights begin that ask for gradients; see `hold`."""
        self._holds: tuple[Tensor, int] | None = None
        """The tensor whose values the weights are, as it was then."""
        for parameter, view in zip(
            self._parameters, self.split(self.weights), strict=True
        ):
            parameter.data = view
        for (owner, name, _), view in zip(
            self._slots, self._split_statistics(self.statistics), strict=True
        ):
            owner._buffers[name] = view

    @property
    def parameters(self) -> int:
        """d, the length of `weights`."""
        return self.weights.numel()

    @property
    def shapes(self) -> Layers:
        """The shapes of the parameters that make up `weights`, in its order."""
        named = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        return Layers((tuple(p.shape) for p in named.values()), tuple(named))

    def split(self, flat: Tensor) -> Iterator[Tensor]:
        """Yield views of a flat vector of length d in the shapes of the parameters."""
        return _split_flat(flat, self._parameters)

    def named(self, weights: Tensor, statistics: Tensor) -> dict[str, Tensor]:
        """Return views of flat vectors by name, for `torch.func.functional_call`."""
        places = {id(b): name for name, b in self.module.named_buffers()}
        parameters = (n for n, p in self.module.named_parameters() if p.requires_grad)
        named_views = dict(zip(parameters, self.split(weights), strict=True))
        for (owner, name, _), view in zip(
            self._slots, self._split_statistics(statistics), strict=True
        ):
            named_views[places[id(owner._buffers[name])]] = view
        return named_views

    def _split_statistics(self, flat: Tensor) -> Iterator[Tensor]:
        return _split_flat(flat, self._buffers)

    def accumulate_into(self, gradient: Tensor | None) -> None:
        """Let `backward()` add to `gradient`, a flat vector of length d, from now on.

        What is in it stays: a residual that is given here becomes residual + gradient
        without a further pass over memory. None undoes it.
        """
        if gradient is None:
            for parameter in self._parameters:
                parameter.grad = None
            return
        for parameter, view in zip(self._parameters, self.split(gradient), strict=True):
            parameter.grad = view

    @contextmanager
    def hold(self, places: Sequence[slice]) -> Iterator[None]:
        """Ask for no gradients of the parameters in these places, in the block.

        A parameter is held if its first and last entry are in one place. `begins` says
        from where on gradients are asked for, so that passes by hand can stop there.

        Args:
            places: Slices of the flat vector.
        """
        ends = [*accumulate((p.numel() for p in self._parameters), initial=0)]
        whole = range(self.parameters)
        held = [
            any(start in whole[place] and end - 1 in whole[place] for place in places)
            for start, end in pairwise(ends)
        ]
        still = list(compress(self._parameters, held))
        self.begins = ends[[*held, False].index(False)]
        try:
            for parameter in still:
                parameter.requires_grad_(False)
            yield
        finally:
            self.begins = 0
            for parameter in still:
                parameter.requires_grad_(True)

    def load(self, model: Values) -> FlatModel:
        """Take these values, to be looked at.

        Weights that it has are not copied again.
        """
        weights = model["weights"]
        version = -1 if weights.is_inference() else weights._version
        held, held_version = self._holds or (None, -1)
        if held is not weights or held_version != version:
            self.weights.copy_(weights)
            self._holds = None if version < 0 else (weights, version)
        self.statistics.copy_(model["buffers"])
        return self

    def to_change(self, model: Values) -> FlatModel:
        """Take these values, to be trained."""
        self.load(model)
        self._holds = None
        self.reset_counters()
        return self

    def values(self) -> dict[str, Tensor]:
        """Return copies of `weights` and `buffers` as they are."""
        return {"weights": self.weights.clone(), "buffers": self.statistics.clone()}

    def reset_counters(self) -> None:
        """Set integer buffers back to their initial values.

        So no result hangs on who ran before.
        """
        for counter, initial in self._counters:
            counter.copy_(initial)


def make_rows(like: Tensor, rows: int, length: int) -> Tensor:
    """Return (rows, length), empty.

    Each row begins where the memory of a tensor of its own could: the last bits of a
    product may depend on it.
    """
    return like.new_empty(rows, -(-length // 16) * 16)[:, :length]


def _flatten(tensors: list[Tensor]) -> Tensor:
    if not tensors:
        return torch.zeros(0)
    return torch.cat([tensor.float().reshape(-1) for tensor in tensors])


def _split_flat(
    flat: Tensor, like: list[Tensor] | list[nn.Parameter]
) -> Iterator[Tensor]:
    start = 0
    for tensor in like:
        yield flat[start : start + tensor.numel()].view(tensor.shape)
        start += tensor.numel()
