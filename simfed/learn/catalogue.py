"""Static facts about models and data sets, without torch and without reading a data set.

A time-only run, a size on the wire and a calibration profile need to know how large a model is, not
what its weights are. The facts of the built-in models are arithmetic over their layers (a test
compares every one with the module itself); a model or data set that a user registered is asked
for its static `facts`, and built once if it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

from simfed.errors import InputError
from simfed.registry import registry

__all__ = ["DatasetFacts", "ModelFacts", "dataset_facts", "facts", "model_facts"]

BYTES_PER_VALUE = 4
"""Weights and running statistics are 32-bit floats."""


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What is known of a data set without reading it."""

    input_shape: tuple[int, ...]
    """Shape of one sample, (channels, height, width) for images."""
    classes: int
    train_samples: int
    test_samples: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Size and work of one model on samples of one shape.

    FLOPs count the convolutions and matrix products alone (a multiply-add is 2); normalisation,
    activations, pooling and biases are left out.
    """

    input_shape: tuple[int, ...]
    classes: int
    parameters: int
    """d: trainable parameters, the length of the flat gradient."""
    buffers: int
    """Running statistics (floating-point buffers); step counters are not counted."""
    forward_flops: int
    """FLOPs of one sample's forward pass."""
    train_flops: int
    """FLOPs of one sample's forward and backward pass (no gradient for the input itself)."""
    features: int = 0
    """Inputs of the last linear layer, the length of an embedding; 0: not known."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of the trainable parameters, in the order of the flat vector; empty: not known."""

    @property
    def parameter_bytes(self) -> int:
        """The dense weights on the wire, 32 bits each."""
        return BYTES_PER_VALUE * self.parameters

    @property
    def buffer_bytes(self) -> int:
        """The running statistics on the wire, 32 bits each."""
        return BYTES_PER_VALUE * self.buffers


def facts(model: str, dataset: str) -> ModelFacts:
    """The facts of a registered model on the samples of a registered data set.

    Raises: `InputError` for unknown names, and for a model that cannot take samples of that shape.

    >>> facts("lenet5", "mnist").parameters
    61706
    >>> facts("resnet18", "cifar10").parameter_bytes, facts("resnet18", "cifar10").buffer_bytes
    (44695848, 38400)
    """
    data = dataset_facts(dataset)
    return model_facts(model, data.input_shape, data.classes)


def dataset_facts(name: str) -> DatasetFacts:
    """The facts of a registered data set; built-in ones are never read for it.

    >>> dataset_facts("mnist-mini")
    DatasetFacts(input_shape=(1, 28, 28), classes=10, train_samples=10000, test_samples=2000)
    """
    entries = registry("dataset")
    if name in PUBLISHED_DATASETS and entries.origin(name) == "built in":
        return PUBLISHED_DATASETS[name]
    from simfed.learn.data import load_dataset

    entry = entries.get(name)
    declared = getattr(entry, "facts", None)
    return declared if isinstance(declared, DatasetFacts) else load_dataset(name).facts


def model_facts(name: str, input_shape: tuple[int, ...], classes: int) -> ModelFacts:
    """The facts of a registered model for samples of `input_shape` and `classes` classes.

    A registered factory may carry them as `factory.facts(input_shape, classes) -> ModelFacts`;
    otherwise it is called once and counted.
    """
    entries = registry("model")
    if name in _MODELS and entries.origin(name) == "built in":
        return _tally(_MODELS[name](input_shape, classes), input_shape, classes)
    declared = getattr(entries.get(name), "facts", None)
    if callable(declared):
        return declared(input_shape, classes)  # type: ignore[no-any-return]
    from simfed.learn.models import count_facts

    return count_facts(name, input_shape, classes)


# ---- the built-in models, layer by layer -------------------------------------------------------


Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Layer:
    parameters: int
    buffers: int
    flops: int
    shapes: tuple[Shape, ...]
    inputs: int = 0


def _tally(layers: Iterable[_Layer], input_shape: Shape, classes: int) -> ModelFacts:
    layers = list(layers)
    forward = sum(layer.flops for layer in layers)
    return ModelFacts(
        input_shape=tuple(input_shape),
        classes=classes,
        parameters=sum(layer.parameters for layer in layers),
        buffers=sum(layer.buffers for layer in layers),
        forward_flops=forward,
        # backward: as much again for the weights and for the inputs, but the first layer's input
        # is the image, which needs no gradient
        train_flops=3 * forward - layers[0].flops,
        features=layers[-1].inputs,
        shapes=tuple(shape for layer in layers for shape in layer.shapes),
    )


def _convolution(inputs: int, outputs: int, kernel: int, pixels: int, *, bias: bool) -> _Layer:
    weights = inputs * outputs * kernel**2
    shapes = ((outputs, inputs, kernel, kernel), (outputs,))[: 1 + bias]
    return _Layer(weights + outputs * bias, 0, 2 * weights * pixels, shapes)


def _linear(inputs: int, outputs: int) -> _Layer:
    shapes = ((outputs, inputs), (outputs,))
    return _Layer(inputs * outputs + outputs, 0, 2 * inputs * outputs, shapes, inputs)


def _batch_norm(channels: int) -> _Layer:
    return _Layer(2 * channels, 2 * channels, 0, ((channels,), (channels,)))


def image_shape(model: str, input_shape: Shape, smallest: int) -> Shape:
    """`input_shape` as (channels, height, width) of at least `smallest` pixels, or an
    `InputError`."""
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest or input_shape[0] < 1:
        raise InputError(
            (
                f"images (channels, height, width) of at least {smallest}×{smallest} pixels for "
                f"model {model}"
            ),
            got=tuple(input_shape),
        )
    return tuple(input_shape)


def _lenet(name: str, widths: tuple[int, int, int, int]) -> Callable[[Shape, int], list[_Layer]]:
    def layers(input_shape: Shape, classes: int) -> list[_Layer]:
        channels, height, width = image_shape(name, input_shape, 12)
        first, second, third, fourth = widths
        inner = (height // 2 - 4, width // 2 - 4)  # padding keeps the size, the pool halves it
        return [
            _convolution(channels, first, 5, height * width, bias=True),
            _convolution(first, second, 5, prod(inner), bias=True),
            _linear(second * (inner[0] // 2) * (inner[1] // 2), third),
            _linear(third, fourth),
            _linear(fourth, classes),
        ]

    return layers


def _resnet18(input_shape: Shape, classes: int) -> list[_Layer]:
    channels, height, width = image_shape("resnet18", input_shape, 1)
    layers = [_convolution(channels, 64, 3, height * width, bias=False), _batch_norm(64)]
    inputs = 64
    for outputs, stride in (
        (64, 1),
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        (256, 1),
        (512, 2),
        (512, 1),
    ):
        height, width = -(-height // stride), -(-width // stride)
        pixels = height * width
        layers += [_convolution(inputs, outputs, 3, pixels, bias=False), _batch_norm(outputs)]
        layers += [_convolution(outputs, outputs, 3, pixels, bias=False), _batch_norm(outputs)]
        if inputs != outputs:
            layers += [_convolution(inputs, outputs, 1, pixels, bias=False), _batch_norm(outputs)]
        inputs = outputs
    return [*layers, _linear(inputs, classes)]


def _wresnet40x2(input_shape: Shape, classes: int) -> list[_Layer]:
    channels, height, width = image_shape("wresnet40-2", input_shape, 1)
    layers = [_convolution(channels, 16, 3, height * width, bias=False)]
    inputs = 16
    for outputs, stride in ((32, 1), (64, 2), (128, 2)):
        height, width = -(-height // stride), -(-width // stride)
        pixels = height * width
        for _ in range(6):
            layers += [_batch_norm(inputs), _convolution(inputs, outputs, 3, pixels, bias=False)]
            layers += [_batch_norm(outputs), _convolution(outputs, outputs, 3, pixels, bias=False)]
            if inputs != outputs:
                layers += [_convolution(inputs, outputs, 1, pixels, bias=False)]
            inputs = outputs
    return [*layers, _batch_norm(inputs), _linear(inputs, classes)]


def _logistic_regression(input_shape: Shape, classes: int) -> list[_Layer]:
    return [_linear(prod(input_shape), classes)]


def _perceptron(input_shape: Shape, classes: int) -> list[_Layer]:
    return [_linear(prod(input_shape), 200), _linear(200, 200), _linear(200, classes)]


_MODELS: dict[str, Callable[[Shape, int], list[_Layer]]] = {
    "lenet5": _lenet("lenet5", (6, 16, 120, 84)),
    "lenet5-half": _lenet("lenet5-half", (3, 8, 60, 42)),
    "resnet18": _resnet18,
    "wresnet40-2": _wresnet40x2,
    "logistic-regression": _logistic_regression,
    "perceptron": _perceptron,
}

PUBLISHED_DATASETS: dict[str, DatasetFacts] = {
    "mnist-mini": DatasetFacts((1, 28, 28), 10, 10_000, 2_000),
    "mnist": DatasetFacts((1, 28, 28), 10, 60_000, 10_000),
    "fashion-mnist": DatasetFacts((1, 28, 28), 10, 60_000, 10_000),
    "cifar10": DatasetFacts((3, 32, 32), 10, 50_000, 10_000),
}
