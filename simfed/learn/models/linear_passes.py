"""Passes of linear layers and activations, by hand, for one model or many.

Weights are *rows* (m, d): a flat vector of each of m models, of which every layer views
its own part, so that one product of stacks of matrices serves all models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from simfed.learn.flat import FlatModel, make_rows
from simfed.learn.losses import compute_cross_entropies
from simfed.learn.models.linear import LogisticRegression, Perceptron
from simfed.learn.objective import Objective
from simfed.learn.passes import Loss, Passes

_STACKED_VALUES = 1 << 21
"""Weights that go through a pass together, in all: measured, with 8,000 to 200,000 per
model. Beyond, nothing is won."""
_EVEN = 4
"""Values after whose multiples a matrix may begin: elsewhere the library's products of
small matrices have other last bits (measured with MKL on AVX2; the tests would show
other processors)."""


@dataclass(frozen=True, slots=True)
class _Linear:
    """A linear layer's place in the flat vector, its activation and its arithmetic.

    It computes rows of such vectors.
    """

    start: int
    inputs: int
    outputs: int
    biased: bool
    activation: str
    """The activation of its outputs: `relu`, `tanh`, `sigmoid`, or empty."""

    def weight(self, rows: Tensor) -> Tensor:
        """Return (m, outputs, inputs): a view of rows (m, d)."""
        stop = self.start + self.outputs * self.inputs
        return rows[:, self.start : stop].view(-1, self.outputs, self.inputs)

    def bias(self, rows: Tensor) -> Tensor:
        """Return (m, 1, outputs): a view of rows (m, d)."""
        start = self.start + self.outputs * self.inputs
        return rows[:, None, start : start + self.outputs]

    def forward(self, rows: Tensor, x: Tensor) -> Tensor:
        """Return (m, n, inputs) → (m, n, outputs), before the activation."""
        weight = self.weight(rows).transpose(1, 2)
        into = _make_products(x, self.outputs)
        if self.biased:
            return torch.baddbmm(self.bias(rows), x, weight, out=into)
        return torch.bmm(x, weight, out=into)

    def give_gradients(
        self, outer: Tensor, x: Tensor, into: Tensor, rate: float | None = None
    ) -> None:
        """Write the parameters' gradients to their places in the rows of `into`.

        Args:
            outer: (m, n, outputs), the gradients in the outputs.
            x: (m, n, inputs), the inputs.
            into: (m, d), changed in place.
            rate: Take so many times the gradients from what is there; None: overwrite
                it.
        """
        # a product of its own: where rows are not neighbours, one into them would be
        # made row by row
        of_outputs = outer.transpose(1, 2)
        product = torch.bmm(of_outputs, x, out=_make_products(of_outputs, self.inputs))
        _put(self.weight(into), product, rate)
        if self.biased:
            _put(self.bias(into), outer.sum(1, keepdim=True), rate)

    def input_gradient(self, outer: Tensor, rows: Tensor) -> Tensor:
        """Return the gradient in its inputs, (m, n, inputs).

        Args:
            outer: (m, n, outputs), the gradients in the outputs.
            rows: (m, d), the weights.
        """
        return torch.bmm(
            outer, self.weight(rows), out=_make_products(outer, self.inputs)
        )


def _put(into: Tensor, gradient: Tensor, rate: float | None) -> None:
    """Write a gradient, or take `rate` times it from what is there."""
    if rate is None:
        into.copy_(gradient)
    else:
        into.sub_(gradient, alpha=rate)


def _make_products(like: Tensor, width: int) -> Tensor:
    """Return (m, n, width), empty, for the products of (m, n, …) with m matrices.

    Where they would begin at odd places, or have a single column, there is room between
    them, and PyTorch makes one after another, as it makes one alone.
    """
    count, n, _ = like.shape
    if width > 1 and n * width % _EVEN == 0:
        return like.new_empty(count, n, width)
    whole = make_rows(like, count, n * width + 16 * (width == 1))
    return whole[:, : n * width].view(count, n, width)


def _lay_apart(stack: Tensor) -> Tensor:
    """Return the matrices of a stack (m, n, width), none of which begins oddly."""
    if len(stack) == 1 or stack.stride(0) % _EVEN == 0:
        return stack
    return _make_products(stack, stack.shape[2]).copy_(stack)


class LinearPasses(Passes):
    """The passes of chains of linear layers and activations.

    Such are `LogisticRegression`, `Perceptron`, and an `nn.Sequential` of `Flatten`,
    `Linear`, `ReLU`, `Tanh`, `Sigmoid` and `Identity`.

    The tape costs several times the arithmetic at these sizes. And models of one shape
    go through a pass together, each with its own weights and samples, by products of
    stacks of matrices. Every model gets the bits that it gets alone (tested): a product
    of a stack is a product of each pair, and all else is done value by value or sum by
    sum.
    """

    stacks = True

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        self._layers = _find_layers(model.module) or []
        self.stacked_together = max(1, _STACKED_VALUES // model.parameters)

    @staticmethod
    def suit(model: FlatModel, input_shape: tuple[int, ...]) -> bool:
        """Return whether the module is such a chain on flattened samples.

        All of it must be trainable.
        """
        layers = _find_layers(model.module)
        flat = not isinstance(model.module, nn.Sequential) or (
            len(input_shape) == 1 or type(model.module[0]) is nn.Flatten
        )
        return (
            layers is not None
            and flat
            and all(p.requires_grad for p in model.module.parameters())
        )

    @torch.inference_mode()
    @override
    def gradient(
        self, samples: Tensor, loss: Loss, into: Tensor, *, training: bool
    ) -> Tensor:
        rows = self.model.weights[None]
        inputs, logits = self._forward_rows(rows, samples.flatten(1)[None])
        value, gradient = loss(logits[0])
        gradients = torch.empty_like(rows)
        gradient = gradient.to(logits.dtype)[None]
        for layer, x, outer in self._list_output_gradients(rows, inputs, gradient):
            layer.give_gradients(outer, x, gradients)
            if layer.start <= (begins := self.model.begins):
                break
        into[begins:] += gradients[0, begins:]
        return value

    @torch.inference_mode()
    def clipped_gradient(
        self,
        samples: Tensor,
        targets: Tensor,
        objective: Objective,
        clip: float,
        into: Tensor,
    ) -> Tensor:
        """Return the sum of losses, and add clipped gradients, as `Passes` does.

        The product of a layer's input and output gradient has the product of their
        norms, so that no sample's gradient is ever made.
        """
        rows, n = self.model.weights[None], len(samples)
        inputs, logits = self._forward_rows(rows, samples.flatten(1)[None])
        value, gradient = objective.loss(logits[0], targets)
        gradient = n * gradient.to(logits.dtype)[None]
        layers, squares = [], into.new_zeros(n)
        for layer, x, outer in self._list_output_gradients(rows, inputs, gradient):
            squares += outer[0].square().sum(1) * (x[0].square().sum(1) + layer.biased)
            layers.append((layer, x, outer))
        if not (finite := squares.isfinite()).all():
            good = samples[finite], targets[finite]
            return (
                self.clipped_gradient(*good, objective, clip, into)
                if finite.any()
                else squares.new_zeros(())
            )
        shares = (clip / squares.sqrt_()).clamp_(max=1.0)
        total = torch.empty_like(rows)
        for layer, x, outer in layers:
            layer.give_gradients(outer * shares[:, None], x, total)
        into += total[0]
        return value * n

    @override
    def gradients_of_rows(
        self, weights: Tensor, samples: Tensor, labels: Tensor, into: Tensor | float
    ) -> Tensor:
        inputs, logits = self._forward_rows(weights, samples.flatten(2))
        values, gradient = compute_cross_entropies(logits, labels)
        for layer, x, outer in self._list_output_gradients(weights, inputs, gradient):
            if isinstance(into, Tensor):
                layer.give_gradients(outer, x, into)
            else:
                layer.give_gradients(outer, x, weights, into)
        return values

    def _forward_rows(self, rows: Tensor, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the inputs of each layer, and the logits (m, n, classes)."""
        inputs, x = [], _lay_apart(x)
        for layer in self._layers:
            inputs.append(x)
            x = layer.forward(rows, x)
            match layer.activation:
                case "relu":
                    x = x.clamp_(min=0)
                # model by model: where a value stands among vectors decides its last
                # bit
                case "tanh":
                    for block in x:
                        block.tanh_()
                case "sigmoid":
                    for block in x:
                        block.sigmoid_()
        return inputs, x

    def _list_output_gradients(
        self, rows: Tensor, inputs: Sequence[Tensor], gradient: Tensor
    ) -> Iterator[tuple[_Linear, Tensor, Tensor]]:
        """Yield each layer, from the last, with its input and its output's gradient.

        Once it is told, its weights may change.
        """
        for place in reversed(range(len(self._layers))):
            layer, x, outer = self._layers[place], inputs[place], _lay_apart(gradient)
            if place:
                gradient = layer.input_gradient(outer, rows)
                gradient = _backpropagate_through(
                    self._layers[place - 1].activation, gradient, x
                )
            yield layer, x, outer


def _backpropagate_through(activation: str, gradient: Tensor, output: Tensor) -> Tensor:
    """Return the gradient before an activation, as PyTorch computes it.

    Args:
        activation: As in `_Linear`.
        gradient: (m, n, outputs), behind it.
        output: What the activation put out.
    """
    aten = torch.ops.aten
    if activation == "relu":
        return aten.threshold_backward(gradient, output, 0)
    if activation:
        backward = aten.tanh_backward if activation == "tanh" else aten.sigmoid_backward
        return torch.stack(
            [backward(*pair) for pair in zip(gradient, output, strict=True)]
        )
    return gradient


_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
}


def _find_layers(module: nn.Module) -> list[_Linear] | None:
    """Return the linear layers of a chain that these passes know.

    None for any other module.
    """
    # not `children()`, which names a layer once that stands in two places
    children = list(module._modules.values())
    alone = type(module).forward is LogisticRegression.forward and len(children) == 1
    if not alone and type(module) not in (nn.Sequential, Perceptron):
        return None
    layers: list[_Linear] = []
    start = 0
    for layer, activation in _pair_activations(children) or ():
        inputs, outputs = layer.in_features, layer.out_features
        biased = layer.bias is not None
        layers.append(_Linear(start, inputs, outputs, biased, activation))
        start += (inputs + biased) * outputs
    owned = sum(p.numel() for p in module.parameters())
    return layers if layers and start == owned and not _is_hooked(module) else None


def _pair_activations(
    children: Sequence[Any],
) -> list[tuple[nn.Linear, str]] | None:
    """Return each linear layer with the activation that follows it.

    None where anything else is there.
    """
    pairs: list[tuple[nn.Linear, str]] = []
    for place, child in enumerate(children):
        if type(child) is nn.Linear:
            pairs.append((child, ""))
        elif type(child) in _ACTIVATIONS and pairs and not pairs[-1][1]:
            pairs[-1] = pairs[-1][0], _ACTIVATIONS[type(child)]
        elif (
            type(child) is nn.Flatten
            and place == 0
            and (child.start_dim, child.end_dim) == (1, -1)
        ):
            continue
        elif type(child) is not nn.Identity:
            return None
    if pairs and pairs[-1][1]:
        return None  # logits are what the last linear layer puts out
    return pairs


def _is_hooked(module: nn.Module) -> bool:
    """Return whether a module has hooks, which a pass by hand would skip."""
    return any(
        part._forward_hooks or part._forward_pre_hooks or part._backward_hooks
        for part in module.modules()
    )
