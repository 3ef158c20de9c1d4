"""The passes of the built-in LeNets, by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from simfed.learn.flat import FlatModel
from simfed.learn.models.convpool import ConvpoolPair, compiled
from simfed.learn.models.layers import ReluPool
from simfed.learn.models.lenet import LeNet5
from simfed.learn.objective import Objective
from simfed.learn.passes import SMALL_CHUNK, Loss, Passes, Share


class LeNetPasses(Passes):
    """The passes of the built-in LeNets on a CPU, by hand: what both ways to compute the
    convolutions share.

    Same values as the modules'; gradients equal up to float32 rounding. At these sizes a tape costs
    as much as the arithmetic.
    """

    def __init__(self, model: FlatModel, chunk: int = SMALL_CHUNK) -> None:
        super().__init__(model, chunk)
        net: Any = model.module
        self._linear = [
            (fc.weight.detach(), fc.bias.detach()) for fc in (net.fc1, net.fc2, net.fc3)
        ]

    @staticmethod
    def suit(model: FlatModel, input_shape: tuple[int, ...]) -> bool:
        """Whether the passes by hand are of this model: pooling windows must fit without rest."""
        return (
            _is_plain_lenet(model.module, input_shape)
            and model.weights.device.type == "cpu"
            and all(p.requires_grad for p in model.module.parameters())
            and all(side % 4 == 0 for side in input_shape[1:])
        )

    def evaluating_forward(self, bf16: bool) -> Callable[[Tensor], Tensor]:
        return super().evaluating_forward(bf16) if bf16 else self._by_hand()

    def gradient(
        self, samples: Tensor, loss: Loss, into: Tensor, *, training: bool, bf16: bool = False
    ) -> Tensor:
        if bf16:
            return super().gradient(samples, loss, into, training=training, bf16=True)
        return self.gradients(samples, [(loss, into)], training=training)[0]

    def _by_hand(self) -> Callable[[Tensor], Tensor]:
        """Samples → logits, at the weights as they are now."""
        raise NotImplementedError

    def _classify(self, features: Tensor) -> list[Tensor]:
        """What each linear layer puts out, after ReLU but for the last."""
        outputs: list[Tensor] = []
        for weight, bias in self._linear:
            features = torch.addmm(bias, features, weight.t())
            if len(outputs) < 2:
                features.clamp_(min=0)
            outputs.append(features)
        return outputs

    def _classified(
        self, features: Tensor, loss: Loss, into: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The loss behind the linear layers, whose gradients are added, and its gradient in the
        features."""
        *inputs, logits = features, *self._classify(features)
        value, gradient = loss(logits)
        gradient = gradient.to(features.dtype)
        for layer in (2, 1, 0):
            x, (weight, _) = inputs[layer], self._linear[layer]
            into[2 * layer] += gradient.t() @ x
            into[2 * layer + 1] += gradient.sum(0)
            gradient = gradient @ weight
            if layer:
                gradient = _relu_backward(gradient, x)
        return value, gradient


class CompiledLeNetPasses(LeNetPasses):
    """With the compiled convolutions, where the package was built with a compiler."""

    def __init__(self, model: FlatModel, chunk: int = SMALL_CHUNK) -> None:
        super().__init__(model, chunk)
        loops, net = compiled(), cast(Any, model.module)
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
        return compiled() is not None and LeNetPasses.suit(model, input_shape)

    def _by_hand(self) -> Callable[[Tensor], Tensor]:
        return self._logits

    @torch.inference_mode()  # views and versions need no account
    def _logits(self, samples: Tensor) -> Tensor:
        layers = self._layers_for(samples)
        features, room = layers.forward(samples, keep=False)
        layers.give_back(room)
        return self._classify(features)[-1]

    @torch.inference_mode()
    def gradients(
        self, samples: Tensor, shares: Sequence[Share], *, training: bool
    ) -> list[Tensor]:
        """As in `Passes`: share by share, since blocks of samples are filled by one share each."""
        values = []
        for part, (loss, into) in zip(
            samples.split(len(samples) // len(shares)), shares, strict=True
        ):
            layers = self._layers_for(part)
            gradients = list(self.model.split(into))
            features, room = layers.forward(part, keep=True)
            value, gradient = self._classified(features, loss, gradients[4:])
            layers.backward(gradient, room, gradients[:4])
            values.append(value)
        return values

    @torch.inference_mode()
    def clipped_gradient(
        self, samples: Tensor, targets: Tensor, objective: Objective, clip: float, into: Tensor
    ) -> Tensor:
        """As in `Passes`: a product of a layer's input and output gradient has the product of
        their norms, and the compiled loops keep samples apart anyhow."""
        layers, n = self._layers_for(samples), len(samples)
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
                gradient = _relu_backward(gradient, x)
        each_gradient = layers.backward_each(gradient, room)
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

    def _layers_for(self, samples: Tensor) -> ConvpoolPair:
        if self._layers is None:
            self._layers = ConvpoolPair(self._loops, self._parameters, tuple(samples.shape[1:]))
        return self._layers


class TorchLeNetPasses(LeNetPasses):
    """With PyTorch's convolutions, in about half of autograd's time.

    A convolution with few output channels leaves most of a vector register empty: here the four
    results under each pooling window are made as four groups of channels by one convolution of
    stride 2 whose kernel is one wider (each group's weights are the kernel, shifted, with zeros
    around). That is 1.44 times the work for a 5×5 kernel, and more where channels are added to fill
    vectors, in less time, and pooling becomes a maximum of contiguous blocks.
    """

    samples_together = SMALL_CHUNK

    def __init__(self, model: FlatModel, chunk: int = SMALL_CHUNK) -> None:
        super().__init__(model, chunk)
        net: Any = model.module
        self._convolutions = [
            _ConvReluPool(net.conv1.weight.detach(), net.conv1.bias.detach(), padding=2),
            _ConvReluPool(net.conv2.weight.detach(), net.conv2.bias.detach(), padding=0),
        ]

    def _by_hand(self) -> Callable[[Tensor], Tensor]:
        for convolution in self._convolutions:
            convolution.prepare(gradients=False)
        return self._logits

    @torch.inference_mode()  # a tenth of the time: views and versions need no account
    def _logits(self, samples: Tensor) -> Tensor:
        for convolution in self._convolutions:
            samples = convolution.maxima(samples)
        return self._classify(samples.flatten(1))[-1]

    @torch.inference_mode()
    def gradients(
        self, samples: Tensor, shares: Sequence[Share], *, training: bool
    ) -> list[Tensor]:
        """As in `Passes`, bit for bit what each share would give alone.

        Convolutions and what lies between them treat every sample by itself, so they see all at
        once; the linear layers see a share at a time, because a product's rounding may depend on
        its shape.
        """
        for convolution in self._convolutions:
            convolution.prepare(gradients=True)
        first, second = self._convolutions
        pooled1 = first.pooled(samples)
        pooled2 = second.pooled(pooled1[0])
        features = pooled2[0].flatten(1)
        gradient = torch.empty_like(features)
        # of each share: its samples, and weight and bias of conv1, conv2, fc1, fc2, fc3
        size = len(samples) // len(shares)
        places = [slice(start, start + size) for start in range(0, len(samples), size)]
        parts = [list(self.model.split(into)) for _, into in shares]
        values = []
        for place, part, (loss, _) in zip(places, parts, shares, strict=True):
            value, gradient[place] = self._classified(features[place], loss, part[4:])
            values.append(value)
        gradient = gradient.view_as(pooled2[0])
        into = [(place, part[2], part[3]) for place, part in zip(places, parts, strict=True)]
        gradient = second.backward(gradient, pooled1[0], pooled2, into)
        into = [(place, part[0], part[1]) for place, part in zip(places, parts, strict=True)]
        first.backward(gradient, samples, pooled1, into, wants_input=False)
        return values


Pooled = tuple[Tensor, Tensor, Tensor, list[Tensor]]
"""The maximum of each window after ReLU; those of its upper and lower half; its four corners."""

_CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))
"""(row, column) of each entry of a 2×2 window, in row-major order."""


class _ConvReluPool:
    """Convolution, ReLU, maximum over 2×2 windows; at ties the first in row-major order, as in
    PyTorch."""

    def __init__(self, weight: Tensor, bias: Tensor, *, padding: int) -> None:
        self.weight, self.bias, self.padding = weight, bias, padding
        outputs, inputs, k, _ = weight.shape
        self.outputs = outputs
        # Measured: four groups of up to 8 channels waste less of the vector registers than one;
        # for the gradient in the inputs, which pays for its own padding, of up to 4.
        self.grouped = outputs <= 8
        self.grouped_back = inputs <= 4 and padding == 0
        # Layers of 16, 32, … channels fill the library's vectors, which are laid out again from and
        # to tensors much faster then. So groups have channels that nobody reads.
        self._lanes = _round_up_channels(outputs)
        self._spread = weight.new_zeros(4, self._lanes, inputs, k + 1, k + 1)
        self._spread_bias = bias.new_zeros(4, self._lanes)
        self._lanes_back = _round_up_channels(inputs)
        self._spread_back = weight.new_zeros(4, self._lanes_back, outputs, k + 1, k + 1)
        self._kernels = self._under_kernel(self._spread[:, :outputs])
        self._kernels_back = self._under_kernel(self._spread_back[:, :inputs])

    def prepare(self, *, gradients: bool) -> None:
        """Bring what is made of the weights up to date."""
        if self.grouped:
            self._spread_bias[:, : self.outputs] = self.bias
            for kernel in self._kernels:
                kernel.copy_(self.weight)
        if self.grouped_back and gradients:
            flipped = self.weight.flip(2, 3).transpose(0, 1)
            for kernel in self._kernels_back:
                kernel.copy_(flipped)

    def pooled(self, x: Tensor) -> Pooled:
        """(n, inputs, h, w) → the maxima, (n, outputs, h′ // 2, w′ // 2), and what led to them."""
        corners = self.corners(x)
        top = torch.maximum(corners[0], corners[1])
        bottom = torch.maximum(corners[2], corners[3])
        return torch.maximum(top, bottom).clamp_(min=0), top, bottom, corners

    def corners(self, x: Tensor) -> list[Tensor]:
        """The convolution's four results under each pooling window."""
        if self.grouped:
            spread, bias = self._spread.flatten(0, 1), self._spread_bias.flatten()
            groups = torch.conv2d(x, spread, bias, 2, self.padding)
            return [groups.narrow(1, i * self._lanes, self.outputs) for i in range(4)]
        whole = torch.conv2d(x, self.weight, self.bias, 1, self.padding)
        # One copy that brings equal corners together: to compare every other pixel in place
        # takes several times as long.
        n, outputs, height, width = whole.shape
        blocks = whole.view(n, outputs, height // 2, 2, width // 2, 2)
        return list(blocks.permute(3, 5, 0, 1, 2, 4).contiguous().flatten(0, 1).unbind())

    def maxima(self, x: Tensor) -> Tensor:
        """The first of what `pooled` gives, where no gradient will be asked for."""
        if self.grouped:
            corners = self.corners(x)
            best = torch.maximum(corners[0], corners[1])
            for corner in corners[2:]:
                torch.maximum(best, corner, out=best)
            return best.clamp_(min=0)
        whole = torch.conv2d(x, self.weight, self.bias, 1, self.padding)
        rows = torch.maximum(whole[..., ::2, :], whole[..., 1::2, :])
        return torch.maximum(rows[..., ::2], rows[..., 1::2]).clamp_(min=0)

    def backward(
        self,
        gradient: Tensor,
        x: Tensor,
        pooled: Pooled,
        into: Sequence[tuple[slice, Tensor, Tensor]],
        *,
        wants_input: bool = True,
    ) -> Tensor:
        """Adds to the gradients of the parameters, `into`: for some of the samples, those of weight
        and bias. Returns the gradient in the input (or anything)."""
        gradient = _relu_backward(gradient, pooled[0])
        for place, _, into_bias in into:
            into_bias += gradient[place].sum((0, 2, 3))
        if self.grouped and not wants_input:
            corners = self._to_corners(gradient, pooled, self._lanes).flatten(1, 2)
            spread = self._spread.flatten(0, 1)
            for place, into_weight, _ in into:
                gradient_here = _weight_gradient(corners[place], x[place], spread, 2, self.padding)
                parts = self._under_kernel(gradient_here.view_as(self._spread)[:, : self.outputs])
                into_weight += parts[0] + parts[1] + parts[2] + parts[3]
            return gradient
        whole = _join_corners(self._to_corners(gradient, pooled, self.outputs).unbind(1))
        for place, into_weight, _ in into:
            gradient_here = _weight_gradient(whole[place], x[place], self.weight, 1, self.padding)
            into_weight += gradient_here
        return self._input_gradient(whole, x) if wants_input else gradient

    def _to_corners(self, gradient: Tensor, pooled: Pooled, lanes: int) -> Tensor:
        """Each window's gradient to its first maximum: (n, 4, lanes, height, width).

        What lies in lanes beyond the outputs is left open. By halves, then by corners, the earlier
        one at ties. The comparisons put out floats, because to select by booleans takes twenty
        times as long.
        """
        _, top, bottom, corners = pooled
        n, outputs, height, width = gradient.shape
        whole = gradient.new_empty(n, 4, lanes, height, width)
        into = whole[:, :, :outputs].unbind(1)
        mask = torch.empty_like(gradient)
        upper = gradient * torch.ge(top, bottom, out=mask)
        for half, left, right in ((upper, 0, 1), (gradient - upper, 2, 3)):
            torch.mul(half, torch.ge(corners[left], corners[right], out=mask), out=into[left])
            torch.sub(half, into[left], out=into[right])
        return whole

    def _input_gradient(self, gradient: Tensor, x: Tensor) -> Tensor:
        if not self.grouped_back:
            wanted = (True, False, False)
            return _convolution_backward(gradient, x, self.weight, 1, self.padding, wanted)[0]
        # The transposed convolution as an ordinary one with the flipped kernel, the four results of
        # each 2×2 block as groups of channels again.
        k, inputs = self.weight.shape[-1], x.shape[1]
        groups = torch.conv2d(gradient, self._spread_back.flatten(0, 1), None, 2, k - 1)
        return _join_corners([groups.narrow(1, i * self._lanes_back, inputs) for i in range(4)])

    def _under_kernel(self, spread: Tensor) -> list[Tensor]:
        """In each of four groups, the part that holds the kernel: shifted by the corner."""
        k = self.weight.shape[-1]
        return [
            group[..., row : row + k, column : column + k]
            for group, (row, column) in zip(spread, _CORNERS, strict=True)
        ]


def _is_plain_lenet(module: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Whether it computes what `LeNet5` does: a subclass may have put other layers in its
    places."""
    if type(module).forward is not LeNet5.forward or len(input_shape) != 3:
        return False
    assert isinstance(module, LeNet5)
    convolutions, linear = (module.conv1, module.conv2), (module.fc1, module.fc2, module.fc3)
    return (
        all(type(layer) is nn.Conv2d for layer in convolutions)
        and all(type(layer) is nn.Linear and layer.bias is not None for layer in linear)
        and all(type(layer) is ReluPool for layer in (module.pool1, module.pool2))
        and [_read_shape(layer) for layer in convolutions] == [_build_shape(2), _build_shape(0)]
        and len(list(module.children())) == 7
    )


def _read_shape(layer: nn.Conv2d) -> tuple[object, ...]:
    """What decides how a convolution moves over its input."""
    return (
        layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups,
        layer.padding_mode, layer.bias is not None,
    )  # fmt: skip


def _build_shape(padding: int) -> tuple[object, ...]:
    return (5, 5), (1, 1), (padding, padding), (1, 1), 1, "zeros", True


def _join_corners(corners: Sequence[Tensor]) -> Tensor:
    """Four (n, channels, height, width), the corners of 2×2 blocks, to (n, channels, 2 height, 2
    width).

    Four copies with gaps take a third of the time of one by permuted dimensions.
    """
    n, channels, height, width = corners[0].shape
    whole = corners[0].new_empty(n, channels, height, 2, width, 2)
    for corner, (row, column) in zip(corners, _CORNERS, strict=True):
        whole[:, :, :, row, :, column] = corner
    return whole.view(n, channels, 2 * height, 2 * width)


def _round_up_channels(channels: int) -> int:
    """As many channels or a few more, so that four groups of them are a multiple of 16."""
    return -(-channels // 4) * 4


def _relu_backward(gradient: Tensor, output: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward(gradient, output, 0)  # type: ignore[no-any-return]


def _weight_gradient(
    gradient: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int
) -> Tensor:
    if x.shape[1] > 4:
        # measured: half the time in this layout, unless there are few channels
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    return _convolution_backward(gradient, x, weight, stride, padding, (False, True, False))[1]


def _convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: int,
    padding: int,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
        gradient, x, weight, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, wanted
    )
