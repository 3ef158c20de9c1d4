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

from simfed.ground.registry import registry
from simfed.learn.facts import PUBLISHED_DATASETS, DatasetFacts, ModelFacts, image_shape
from simfed.scenario.dataset import DatasetSpec

__all__ = ["DatasetFacts", "ModelFacts", "dataset_facts", "facts", "model_facts"]


def facts(model: str, dataset: str | DatasetSpec) -> ModelFacts:
    """The facts of a registered model on the samples of a registered data set.

    Raises: `InputError` for unknown names, and for a model that cannot take samples of that shape.

    >>> facts("lenet5", "mnist").parameters
    61706
    >>> facts("resnet18", "cifar10").parameter_bytes, facts("resnet18", "cifar10").buffer_bytes
    (44695848, 38400)
    """
    data = dataset_facts(dataset)
    return model_facts(model, data.input_shape, data.classes)


def dataset_facts(data: str | DatasetSpec) -> DatasetFacts:
    """The facts of a data set; of built-in ones nothing is read for it, of files of one's own
    targets and owners at most.

    >>> dataset_facts("mnist-mini")
    DatasetFacts(input_shape=(1, 28, 28), classes=10, train_samples=10000, test_samples=2000)
    """
    if not isinstance(data, str) and data.name is None:
        from simfed.learn.data import labels_in

        return labels_in(data).facts
    name = data if isinstance(data, str) else str(data.name)
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
    name: str
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
        names=tuple(
            f"{layer.name}.{name}"
            for layer in layers
            for name in ("weight", "bias")[: len(layer.shapes)]
        ),
    )


def _convolution(
    name: str, inputs: int, outputs: int, kernel: int, pixels: int, *, bias: bool
) -> _Layer:
    weights = inputs * outputs * kernel**2
    shapes = ((outputs, inputs, kernel, kernel), (outputs,))[: 1 + bias]
    return _Layer(name, weights + outputs * bias, 0, 2 * weights * pixels, shapes)


def _linear(name: str, inputs: int, outputs: int) -> _Layer:
    shapes = ((outputs, inputs), (outputs,))
    return _Layer(name, inputs * outputs + outputs, 0, 2 * inputs * outputs, shapes, inputs)


def _batch_norm(name: str, channels: int) -> _Layer:
    return _Layer(name, 2 * channels, 2 * channels, 0, ((channels,), (channels,)))


def _lenet(name: str, widths: tuple[int, int, int, int]) -> Callable[[Shape, int], list[_Layer]]:
    def layers(input_shape: Shape, classes: int) -> list[_Layer]:
        channels, height, width = image_shape(name, input_shape, 12)
        first, second, third, fourth = widths
        inner = (height // 2 - 4, width // 2 - 4)  # padding keeps the size, the pool halves it
        return [
            _convolution("conv1", channels, first, 5, height * width, bias=True),
            _convolution("conv2", first, second, 5, prod(inner), bias=True),
            _linear("fc1", second * (inner[0] // 2) * (inner[1] // 2), third),
            _linear("fc2", third, fourth),
            _linear("fc3", fourth, classes),
        ]

    return layers


def _resnet18(input_shape: Shape, classes: int) -> list[_Layer]:
    channels, height, width = image_shape("resnet18", input_shape, 1)
    stem = _convolution("stem", channels, 64, 3, height * width, bias=False)
    layers = [stem, _batch_norm("norm", 64)]
    inputs = 64
    strides = (
        (64, 1),
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        (256, 1),
        (512, 2),
        (512, 1),
    )
    for i, (outputs, stride) in enumerate(strides):
        block = f"blocks.{i}"
        height, width = -(-height // stride), -(-width // stride)
        pixels = height * width
        convolutions = [("conv1", "norm1", inputs, 3), ("conv2", "norm2", outputs, 3)]
        if inputs != outputs:
            convolutions.append(("shortcut.0", "shortcut.1", inputs, 1))
        for name, norm, incoming, kernel in convolutions:
            layers += [
                _convolution(f"{block}.{name}", incoming, outputs, kernel, pixels, bias=False),
                _batch_norm(f"{block}.{norm}", outputs),
            ]
        inputs = outputs
    return [*layers, _linear("head", inputs, classes)]


def _wresnet40x2(input_shape: Shape, classes: int) -> list[_Layer]:
    channels, height, width = image_shape("wresnet40-2", input_shape, 1)
    layers = [_convolution("stem", channels, 16, 3, height * width, bias=False)]
    inputs, number = 16, 0
    for outputs, stride in ((32, 1), (64, 2), (128, 2)):
        height, width = -(-height // stride), -(-width // stride)
        pixels = height * width
        for _ in range(6):
            block = f"blocks.{number}"
            for place, incoming in ((1, inputs), (2, outputs)):
                layers += [
                    _batch_norm(f"{block}.norm{place}", incoming),
                    _convolution(f"{block}.conv{place}", incoming, outputs, 3, pixels, bias=False),
                ]
            if inputs != outputs:
                name = f"{block}.projection"
                layers += [_convolution(name, inputs, outputs, 1, pixels, bias=False)]
            number += 1
            inputs = outputs
    return [*layers, _batch_norm("norm", inputs), _linear("head", inputs, classes)]


def _logistic_regression(input_shape: Shape, classes: int) -> list[_Layer]:
    return [_linear("linear", prod(input_shape), classes)]


def _perceptron(input_shape: Shape, classes: int) -> list[_Layer]:
    widths = (prod(input_shape), 200), (200, 200), (200, classes)
    return [_linear(str(1 + 2 * i), *width) for i, width in enumerate(widths)]


_MODELS: dict[str, Callable[[Shape, int], list[_Layer]]] = {
    "lenet5": _lenet("lenet5", (6, 16, 120, 84)),
    "lenet5-half": _lenet("lenet5-half", (3, 8, 60, 42)),
    "resnet18": _resnet18,
    "wresnet40-2": _wresnet40x2,
    "logistic-regression": _logistic_regression,
    "perceptron": _perceptron,
}
