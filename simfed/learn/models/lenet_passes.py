"""The passes of the built-in LeNets by compiled convolutions.

`LeNet5.passes` names them; `choose_passes` asks `suit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from simfed.learn.flat import FlatModel
from simfed.learn.models.convpool import ConvpoolPair, compiled
from simfed.learn.models.layers import ReluPool
from simfed.learn.models.lenet import LeNet5
from simfed.learn.objective import Objective
from simfed.learn.passes import SMALL_CHUNK, Loss, Passes


class LeNetPasses(Passes):
    """The passes of the built-in LeNets on a CPU, by hand.

    Convolutions are compiled; the three linear layers behind them are PyTorch's
    products. Same values as the modules'; gradients equal up to float32 rounding. At
    these sizes a tape costs as much as the arithmetic.
    """

    def __init__(self, model: FlatModel, chunk: int = SMALL_CHUNK) -> None:
        super().__init__(model, chunk)
        net: Any = model.module
        self._linear = [
            (fc.weight.detach(), fc.bias.detach()) for fc in (net.fc1, net.fc2, net.fc3)
        ]
        self._last = net.fc3.weight.numel() + net.fc3.bias.numel()
        loops = compiled()
        assert loops is not None, "ask suit() first"
        self._loops = loops
        self._parameters = tuple(
            tensor.detach()
            for layer in (net.conv1, net.conv2)
            for tensor in (layer.weight, layer.bias)
        )
        self._layers: ConvpoolPair | None = None

    @staticmethod
    def suit(model: FlatModel, input_shape: tuple[int, ...]) -> bool:
        """Return whether the passes are of this model.

        That is a LeNet as it was built, all of which trains, on images whose pooling
        windows fit without rest, where the loops were compiled.
        """
        return (
            compiled() is not None
            and _is_plain_lenet(model.module, input_shape)
            and all(p.requires_grad for p in model.module.parameters())
            and all(side % 4 == 0 for side in input_shape[1:])
        )

    @override
    def evaluating_forward(self) -> Callable[[Tensor], Tensor]:
        return self._compute_logits

    @torch.inference_mode()  # views and versions need no account
    def _compute_logits(self, samples: Tensor) -> Tensor:
        """Return the logits of samples, without keeping anything."""
        layers = self._get_layers(samples)
        features, room = layers.forward(samples, keep=False)
        layers.give_back(room)
        return self._classify(features)[-1]

    @torch.inference_mode()
    @override
    def gradient(
        self, samples: Tensor, loss: Loss, into: Tensor, *, training: bool
    ) -> Tensor:
        layers, gradients = self._get_layers(samples), list(self.model.split(into))
        below = self.model.begins < self.model.parameters - self._last
        features, room = layers.forward(samples, keep=below)
        value, gradient = self._train_classifier(features, loss, gradients[4:], below)
        if below:
            layers.backward(gradient, room, gradients[:4])
        else:
            layers.give_back(room)
        return value

    def _classify(self, features: Tensor) -> list[Tensor]:
        """Return the outputs of each linear layer, after ReLU but for the last."""
        outputs: list[Tensor] = []
        for weight, bias in self._linear:
            features = torch.addmm(bias, features, weight.t())
            if len(outputs) < 2:
                features.clamp_(min=0)
            outputs.append(features)
        return outputs

    def _train_classifier(
        self, features: Tensor, loss: Loss, into: Sequence[Tensor], below: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the loss behind the linear layers, and its gradient in the features.

        Args:
            features: (n, features) of the convolutions.
            loss: Of the logits.
            into: Gradients of the linear layers, added to.
            below: Whether anything below the last layer asks for gradients; else only
                the last layer's own are added.
        """
        *inputs, logits = features, *self._classify(features)
        value, gradient = loss(logits)
        gradient = gradient.to(features.dtype)
        for layer in (2, 1, 0):
            x, (weight, _) = inputs[layer], self._linear[layer]
            into[2 * layer] += gradient.t() @ x
            into[2 * layer + 1] += gradient.sum(0)
            if not below:
                break
            gradient = gradient @ weight
            if layer:
                gradient = _undo_relu(gradient, x)
        return value, gradient

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

        A product of a layer's input and output gradient has the product of their norms,
        and the compiled loops keep samples apart anyhow, so that norms cost little and
        only the shares of samples are multiplied in at the end.
        """
        layers, n = self._get_layers(samples), len(samples)
        features, room = layers.forward(samples, keep=True)
        *inputs, logits = features, *self._classify(features)
        value, gradient = objective.loss(logits, targets)
        gradient = gradient.to(features.dtype) * n
        linear = []
        squares = into.new_zeros(n)
        for layer in (2, 1, 0):
            x, (weight, _) = inputs[layer], self._linear[layer]
            squares += gradient.square().sum(1) * (x.square().sum(1) + 1)
            linear.append((2 * layer + 4, gradient, x))
            gradient = gradient @ weight
            if layer:
                gradient = _undo_relu(gradient, x)
        each_gradient = layers.differentiate_each(gradient, room)
        for of_parameter in each_gradient:
            squares += of_parameter.square().sum(1)
        if not (finite := squares.isfinite()).all():
            good = samples[finite], targets[finite]
            return (
                self.clipped_gradient(*good, objective, clip, into)
                if finite.any()
                else squares.new_zeros(())
            )
        shares = (clip / squares.sqrt_()).clamp_(max=1.0)
        places = list(self.model.split(into))
        for place, of_parameter in zip(places, each_gradient, strict=False):
            place += (shares @ of_parameter).view_as(place)
        for at, outer, x in linear:
            outer = outer * shares[:, None]
            places[at] += outer.t() @ x
            places[at + 1] += outer.sum(0)
        return value * n

    def _get_layers(self, samples: Tensor) -> ConvpoolPair:
        """Return the convolutions, made for the shape of the first samples."""
        if self._layers is None:
            self._layers = ConvpoolPair(
                self._loops, self._parameters, tuple(samples.shape[1:])
            )
        return self._layers


def _is_plain_lenet(module: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Return whether it computes what `LeNet5` does.

    A subclass may have put other layers in its places.
    """
    if type(module).forward is not LeNet5.forward or len(input_shape) != 3:
        return False
    assert isinstance(module, LeNet5)
    kinds = [nn.Conv2d, ReluPool, nn.Conv2d, ReluPool, *[nn.Linear] * 3]
    names = ["conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "fc3"]
    layers = dict(module.named_children())
    return (
        {name: type(layer) for name, layer in layers.items()}
        == dict(zip(names, kinds, strict=True))
        and all(layers[name].bias is not None for name in names[4:])
        and _is_plain_convolution(module.conv1, 2)
        and _is_plain_convolution(module.conv2, 0)
    )


def _is_plain_convolution(layer: nn.Conv2d, padding: int) -> bool:
    """Return whether a layer moves as the compiled loops do: 5 × 5, step by step."""
    moves = (
        layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups,
        layer.padding_mode, layer.bias is not None,
    )  # fmt: skip
    return moves == ((5, 5), (1, 1), (padding, padding), (1, 1), 1, "zeros", True)


def _undo_relu(gradient: Tensor, output: Tensor) -> Tensor:
    """Return the gradient before ReLU, as PyTorch computes it from the output."""
    return torch.ops.aten.threshold_backward(gradient, output, 0)
