"""Static facts about models and data sets, without torch and without reading.

A time-only run, a size on the wire and a calibration profile need to know how large a
model is, not what its weights are. The facts of the built-in models are arithmetic over
their layers (a test compares every one with the module itself); a model or data set
that a user registered is asked for its static `facts`, and built once if it has none.

`facts` is the way in; `model_facts` and `dataset_facts` are its halves. A built-in
model is a function from (input shape, classes) to its `_Layer`s, in the order of the
module's parameters; a new one is one more of these in `_MODELS`. FLOPs are those of
matrix products alone, a multiply-add counts 2.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from math import prod
from typing import cast

from simfed.ground.errors import InputError
from simfed.ground.method import Method, Setting, Size
from simfed.ground.registry import registry
from simfed.ground.vocabulary import ModelFacts
from simfed.learn.facts import (
    PUBLISHED_DATASETS,
    DatasetFacts,
    check_image_shape,
    check_token_shape,
)
from simfed.learn.pretrained import (
    GPT2Config,
    check_texts,
    find_targets,
    find_weights,
    make_head_error,
    read_config,
)
from simfed.scenario.dataset import DatasetSpec
from simfed.scenario.prototype import FactsSpec, PrototypeSpec

__all__ = [
    "DatasetFacts",
    "ModelFacts",
    "dataset_facts",
    "facts",
    "list_auxiliary",
    "model_facts",
    "takes_text",
]


def facts(model: str | PrototypeSpec, dataset: str | DatasetSpec) -> ModelFacts:
    """Return the facts of a model on the samples of a registered data set.

    Args:
        model: A registered name, or a scenario's prototype.
        dataset: A registered name, or a scenario's section `dataset`.

    Raises:
        InputError: An unknown name, a model that cannot take samples of that shape or
            type, or samples that do not show which axis is the channels.

    >>> facts("lenet5", "mnist").parameters
    61706
    >>> facts("resnet18", "cifar10").parameter_bytes
    44695848
    """
    data = dataset_facts(dataset)
    named = isinstance(model, str) or model.facts is None
    name = model if isinstance(model, str) else model.name("gpt2")
    if named and data.tokens is not takes_text(model):
        takes, kind = ("texts", "others") if takes_text(model) else ("numbers", "texts")
        raise InputError(
            f"a model of {'texts' if data.tokens else 'numbers'}",
            got=name,
            problem=f"model {name} takes {takes}, the data set has {kind}",
        )
    of_model = model_facts(model, data.input_shape, data.classes)
    if named and data.layout == "either" and _takes_channels_last(model, data):
        raise InputError(
            "channels-first or channels-last",
            where="dataset.layout",
            problem=f"samples of {'×'.join(map(str, data.input_shape))} do not show "
            f"which axis is the channels, and model {name} takes them either way",
        )
    return of_model


def _takes_channels_last(model: str | PrototypeSpec, data: DatasetFacts) -> bool:
    """Return whether a model takes the samples with channels as the last axis, too."""
    *image, channels = data.input_shape
    try:
        model_facts(model, (channels, *image), data.classes)
    except Exception:  # a model of somebody's own may raise anything
        return False
    return True


def takes_text(model: str | PrototypeSpec) -> bool:
    """Return whether a model takes characters."""
    if isinstance(model, PrototypeSpec):
        if model.model is None:
            return True  # GPT-2's layout
        model = model.model
    entries = registry("model")
    if model in _MODELS and entries.origin(model) == "built in":
        return model in _OF_TEXT
    return bool(getattr(entries.get(model), "tokens", False))


def dataset_facts(data: str | DatasetSpec) -> DatasetFacts:
    """Return the facts of a data set.

    Of built-in ones nothing is read for it, of files of one's own targets and owners at
    most.

    Args:
        data: A registered name, or a scenario's section `dataset`.

    Raises:
        InputError: An unknown name, or files that cannot be read.

    >>> dataset_facts("mnist-mini")
    DatasetFacts(input_shape=(1, 28, 28), classes=10, train_samples=10000,
    test_samples=2000)
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


def model_facts(
    model: str | PrototypeSpec, input_shape: tuple[int, ...], classes: int
) -> ModelFacts:
    """Return the facts of a model for these samples and classes.

    Args:
        model: A registered name, or a scenario's prototype, of which d is what trains.
            A registered factory may carry the facts of the whole model as
            `factory.facts( input_shape, classes) -> ModelFacts`; otherwise it is called
            and its model counted, once in a process.
        input_shape: Of one sample, channels first.
        classes: The number of classes, or of tokens; 1 in a regression.

    Raises:
        InputError: Weights do not fit, adapters find no layer, or the model cannot take
            such samples.

    >>> adapted = PrototypeSpec(model="causal-transformer", adapters={"rank": 8})
    >>> known = model_facts(adapted, (80,), 96)
    >>> known.parameters, known.base
    (12288, 431712)
    """
    spec = model if isinstance(model, PrototypeSpec) else None
    if spec is not None and spec.facts is not None:
        return _read_facts(spec.facts, tuple(input_shape), classes)
    if spec is not None and spec.model is None:
        layers = _gpt2(str(spec.pretrained), input_shape, classes)
        return _tally_layers(layers, input_shape, classes, "gpt2", spec)
    name = str(model if spec is None else spec.model)
    entries = registry("model")
    if name in _MODELS and entries.origin(name) == "built in":
        layers = _MODELS[name](input_shape, classes)
        return _tally_layers(layers, input_shape, classes, name, spec)
    factory = entries.get(name)
    declared = getattr(factory, "facts", None)
    if callable(declared) and (spec is None or spec.bare):
        counted: ModelFacts = declared(input_shape, classes)
        return counted
    count = _count_once if isinstance(factory, Hashable) else _count_once.__wrapped__
    return count(factory, spec or name, tuple(input_shape), classes)


def _read_facts(said: FactsSpec, input_shape: Shape, classes: int) -> ModelFacts:
    """Return the facts that a scenario says itself.

    Backward, every layer costs as much as forward for the gradients of activations,
    and trainable weights their share of that again.
    """
    trained = said.parameters if said.trainable is None else said.trainable
    return ModelFacts(
        input_shape=input_shape,
        classes=classes,
        parameters=trained,
        buffers=said.buffers,
        forward_flops=round(said.flops_per_sample),
        train_flops=round(said.flops_per_sample * (2 + trained / said.parameters)),
        base=said.parameters - trained,
    )


@lru_cache(maxsize=64)
def _count_once(
    factory: object, model: str | PrototypeSpec, input_shape: Shape, classes: int
) -> ModelFacts:
    """Return the facts of a factory's model, which is built for it.

    `factory` is the cache's key: another part may be registered under the same name.
    """
    from simfed.learn.models import count_facts

    return count_facts(model, input_shape, classes)


# ---- the built-in models, layer by layer ---------------------------------------------


Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer of a built-in model: parameters, running statistics and FLOPs.

    `flops` are those of one sample forward.
    """

    name: str
    parameters: int
    buffers: int
    flops: int
    shapes: tuple[Shape, ...]
    inputs: int = 0
    """Of a linear layer."""
    parts: tuple[str, ...] = ("weight", "bias")
    kind: str = ""
    products: int = 1
    """Factors of its products that are no weights of its own: activations, or another
    layer's weights."""
    trains: bool = True

    @property
    def linear(self) -> bool:
        """True if adapters may stand beside it."""
        return bool(self.inputs and self.shapes) and self.parts[0] == "weight"

    @property
    def named_shapes(self) -> dict[str, Shape]:
        """Its parameters, by name."""
        names = (f"{self.name}.{part}".lstrip(".") for part in self.parts)
        return dict(zip(names, self.shapes, strict=False))


def _tally_layers(
    layers: Iterable[_Layer],
    input_shape: Shape,
    classes: int,
    model: str,
    spec: PrototypeSpec | None = None,
) -> ModelFacts:
    """Return the facts of a model that is made of these layers.

    Args:
        layers: In the order of the module's parameters; the last is the head.
        input_shape: Of one sample.
        classes: The number of classes.
        model: Its name, for errors.
        spec: What of it trains, and its pretrained weights, whose shapes are checked;
            None: all of it.
    """
    layers = list(layers)
    features, last = layers[-1].inputs, layers[-1].name
    if spec is not None and spec.pretrained is not None:
        whole = {n: s for layer in layers for n, s in layer.named_shapes.items()}
        find_weights(spec.pretrained).check(whole, model)
    if spec is not None and not spec.whole:
        layers = _freeze(layers, spec, model)
    trained = [layer for layer in layers if layer.trains and layer.parameters]
    work = below = 0
    for layer in layers:
        # gradients of its weights, and of its inputs where something below trains: the
        # first layer's is the sample
        own = layer.trains and layer.products != _ACTIVATIONS
        work += layer.flops * (1 + own + (layer.products if below else 0))
        below += layer.trains and layer.parameters
    return ModelFacts(
        input_shape=tuple(input_shape),
        classes=classes,
        parameters=sum(layer.parameters for layer in trained),
        buffers=sum(layer.buffers for layer in layers),
        forward_flops=sum(layer.flops for layer in layers),
        train_flops=work,
        features=features,
        shapes=tuple(shape for layer in trained for shape in layer.shapes),
        names=tuple(name for layer in trained for name in layer.named_shapes),
        base=sum(layer.parameters for layer in layers if not layer.trains),
        head=last if any(layer.name == last for layer in trained) else None,
        norms=tuple(x.name for x in layers if x.kind == "batch norm" and x.trains),
    )


_ACTIVATIONS = 2
"""`products` of attention: scores are of queries and keys."""


def _freeze(layers: list[_Layer], spec: PrototypeSpec, model: str) -> list[_Layer]:
    """Return the layers of which those that `spec` says train, with its adapters.

    An adapter is two layers beside its own, A and B, at the same places of the input.
    The others' running statistics stand still.
    """
    fixed = [
        replace(x, trains=False, parameters=x.parameters + x.buffers, buffers=0)
        for x in layers
    ]
    if spec.adapters is None:
        if not fixed[-1].linear:
            raise make_head_error(model)
        return [*fixed[:-1], replace(fixed[-1], trains=True)]
    sizes = {x.name: cast(tuple[int, int], x.shapes[0]) for x in fixed if x.linear}
    rank = spec.adapters.rank
    found = {*find_targets(sizes, spec.adapters.targets, rank, model)}
    adapted = []
    for layer in fixed:
        adapted.append(layer)
        if layer.name in found and layer.linear:
            outputs, inputs = layer.shapes[0]
            times = layer.flops // (2 * outputs * inputs)
            for part, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                size = prod(shape)
                flops = 2 * size * times
                adapted.append(
                    _Layer(layer.name, size, 0, flops, (shape,), parts=(part,))
                )
    return adapted


def _make_convolution(
    name: str, inputs: int, outputs: int, kernel: int, pixels: int, *, bias: bool
) -> _Layer:
    """Return a convolution of kernel × kernel, whose output has so many pixels."""
    weights = inputs * outputs * kernel**2
    shapes = ((outputs, inputs, kernel, kernel), (outputs,))[: 1 + bias]
    return _Layer(name, weights + outputs * bias, 0, 2 * weights * pixels, shapes)


def _make_linear(name: str, inputs: int, outputs: int) -> _Layer:
    """Return a linear layer with bias, for one place of the input."""
    shapes = ((outputs, inputs), (outputs,))
    return _Layer(
        name, inputs * outputs + outputs, 0, 2 * inputs * outputs, shapes, inputs
    )


def _make_batch_norm(name: str, channels: int) -> _Layer:
    """Return a batch norm, whose running mean and variance are statistics."""
    layer = _make_sample_norm(name, channels)
    return replace(layer, buffers=2 * channels, kind="batch norm")


def _make_sample_norm(name: str, channels: int) -> _Layer:
    """Return a norm of single samples (group or layer norm): a scale and a shift."""
    return _Layer(name, 2 * channels, 0, 0, ((channels,), (channels,)))


def _two_convolutions(
    name: str, channels_of: tuple[int, int], hidden: tuple[int, ...], smallest: int,
    lost: int = 0,
) -> Callable[[Shape, int], list[_Layer]]:  # fmt: skip
    """Return two convolutions of 5 × 5, each with a pool that halves, then layers.

    lost: pixels of each side that the second one loses for want of padding.
    """

    def layers(input_shape: Shape, classes: int) -> list[_Layer]:
        channels, height, width = check_image_shape(name, input_shape, smallest)
        first, second = channels_of
        inner = (height // 2 - lost, width // 2 - lost)
        pooled = second * (inner[0] // 2) * (inner[1] // 2)
        linear = pairwise((pooled, *hidden, classes))
        return [
            _make_convolution("conv1", channels, first, 5, height * width, bias=True),
            _make_convolution("conv2", first, second, 5, prod(inner), bias=True),
            *(_make_linear(f"fc{i}", *pair) for i, pair in enumerate(linear, 1)),
        ]

    return layers


def _resnet18(input_shape: Shape, classes: int, norms: bool = True) -> list[_Layer]:
    """Return the layers of ResNet-18 for small images.

    norms: of batches, with running statistics; else of groups.
    """
    channels, height, width = check_image_shape(
        "resnet18" if norms else "resnet18-gn", input_shape, 1
    )
    norm_of = _make_batch_norm if norms else _make_sample_norm
    stem = _make_convolution("stem", channels, 64, 3, height * width, bias=False)
    layers = [stem, norm_of("norm", 64)]
    inputs = 64
    for i, outputs in enumerate((64, 64, 128, 128, 256, 256, 512, 512)):
        block, stride = f"blocks.{i}", 1 if inputs == outputs else 2
        height, width = -(-height // stride), -(-width // stride)
        pixels = height * width
        convolutions = [("conv1", "norm1", inputs, 3), ("conv2", "norm2", outputs, 3)]
        if inputs != outputs:
            convolutions.append(("shortcut.0", "shortcut.1", inputs, 1))
        for name, norm, incoming, kernel in convolutions:
            layers += [
                _make_convolution(
                    f"{block}.{name}", incoming, outputs, kernel, pixels, bias=False
                ),
                norm_of(f"{block}.{norm}", outputs),
            ]
        inputs = outputs
    return [*layers, _make_linear("head", inputs, classes)]


def _wresnet40x2(input_shape: Shape, classes: int) -> list[_Layer]:
    channels, height, width = check_image_shape("wresnet40-2", input_shape, 1)
    layers = [_make_convolution("stem", channels, 16, 3, height * width, bias=False)]
    inputs, number = 16, 0
    for outputs, stride in ((32, 1), (64, 2), (128, 2)):
        height, width = -(-height // stride), -(-width // stride)
        pixels = height * width
        for _ in range(6):
            block = f"blocks.{number}"
            for place, incoming in ((1, inputs), (2, outputs)):
                layers += [
                    _make_batch_norm(f"{block}.norm{place}", incoming),
                    _make_convolution(
                        f"{block}.conv{place}", incoming, outputs, 3, pixels, bias=False
                    ),
                ]
            if inputs != outputs:
                name = f"{block}.projection"
                layers += [
                    _make_convolution(name, inputs, outputs, 1, pixels, bias=False)
                ]
            number += 1
            inputs = outputs
    return [
        *layers,
        _make_batch_norm("norm", inputs),
        _make_linear("head", inputs, classes),
    ]


def _logistic_regression(input_shape: Shape, classes: int) -> list[_Layer]:
    return [_make_linear("linear", prod(input_shape), classes)]


def _perceptron(input_shape: Shape, classes: int) -> list[_Layer]:
    widths = (prod(input_shape), 200), (200, 200), (200, classes)
    return [_make_linear(str(1 + 2 * i), *width) for i, width in enumerate(widths)]


def _make_embedding(classes: int, width: int) -> _Layer:
    """Return an embedding of so many tokens; looking up costs no FLOPs."""
    return _Layer("embed", classes * width, 0, 0, ((classes, width),))


def _scale_flops(layer: _Layer, times: int) -> _Layer:
    """Return the layer with its FLOPs at so many places, as of characters in a text."""
    return replace(layer, flops=times * layer.flops)


def _char_lstm(input_shape: Shape, classes: int) -> list[_Layer]:
    (length,) = check_token_shape("char-lstm", input_shape)
    layers, inputs, hidden = [_make_embedding(classes, 8)], 8, 256
    for k in range(2):
        gates, products = 4 * hidden, 4 * hidden * (inputs + hidden)
        shapes = ((gates, inputs), (gates, hidden), (gates,), (gates,))
        parts = tuple(
            f"{part}_l{k}" for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        size, flops = products + 2 * gates, 2 * products * length
        layers.append(_Layer("lstm", size, 0, flops, shapes, hidden, parts))
        inputs = hidden
    return [*layers, _scale_flops(_make_linear("head", hidden, classes), length)]


def _causal_transformer(input_shape: Shape, classes: int) -> list[_Layer]:
    (length,) = check_token_shape("causal-transformer", input_shape)
    sizes = GPT2Config(classes, length, 128, 2, 4, 512, 1e-5)
    head = _scale_flops(_make_linear("head", sizes.width, classes), length)
    return [*_decode(sizes, length), head]


def _gpt2(folder: str, input_shape: Shape, classes: int) -> list[_Layer]:
    sizes = read_config(folder)
    check_texts(sizes, input_shape, classes)
    # its head's weights are those of the embedding
    flops = 2 * sizes.width * classes * input_shape[0]
    head = _Layer("head", 0, 0, flops, (), sizes.width)
    return [*_decode(sizes, input_shape[0]), head]


def _decode(sizes: GPT2Config, length: int) -> list[_Layer]:
    """Return the layers between tokens and head."""
    width, inner, places = sizes.width, sizes.inner, (sizes.positions, sizes.width)
    layers = [
        # the module's own parameters come before those of its layers
        _Layer("", prod(places), 0, 0, (places,), 0, ("places",)),
        _make_embedding(sizes.vocabulary, width),
    ]
    for k in range(sizes.depth):
        block = f"blocks.{k}"
        products = {
            "attend": (width, 3 * width),
            "project": (width, width),
            "up": (width, inner),
            "down": (inner, width),
        }
        linear = {
            name: _scale_flops(_make_linear(f"{block}.{name}", *shape), length)
            for name, shape in products.items()
        }
        # scores and their sums of values, over all pairs of places
        attention = _Layer(
            f"{block}.attention", 0, 0, 4 * length * length * width, (),
            products=_ACTIVATIONS,
        )  # fmt: skip
        layers += [
            _make_sample_norm(f"{block}.norm1", width),
            linear["attend"],
            attention,
            linear["project"],
            _make_sample_norm(f"{block}.norm2", width),
            linear["up"],
            linear["down"],
        ]
    return [*layers, _make_sample_norm("norm", width)]


_MODELS: dict[str, Callable[[Shape, int], list[_Layer]]] = {
    "lenet5": _two_convolutions("lenet5", (6, 16), (120, 84), 12, lost=4),
    "lenet5-half": _two_convolutions("lenet5-half", (3, 8), (60, 42), 12, lost=4),
    "resnet18": _resnet18,
    "wresnet40-2": _wresnet40x2,
    "logistic-regression": _logistic_regression,
    "perceptron": _perceptron,
    "mcmahan-cnn": _two_convolutions("mcmahan-cnn", (32, 64), (512,), 4),
    "femnist-cnn": _two_convolutions("femnist-cnn", (32, 64), (2048,), 4),
    "resnet18-gn": partial(_resnet18, norms=False),
    "char-lstm": _char_lstm,
    "causal-transformer": _causal_transformer,
}

_OF_TEXT = ("char-lstm", "causal-transformer")


def list_auxiliary(model: str, dataset: str) -> dict[str, float]:
    """Return FLOPs per sample of the auxiliary work of every method and rule.

    They are at default options, in a run of ten clients in which everybody has this
    model.

    >>> sorted(list_auxiliary("lenet5-half", "mnist-mini"))[:2]
    ['bulyan/lenet5-half', 'fedal/discriminator-10-64-10']
    """
    sizes = facts(model, dataset)
    counts = sizes.parameters, sizes.buffers, sizes.features, 10
    size = Size(model, *counts, sizes.shapes, sizes.head, sizes.norms)
    setting = Setting(
        rounds=1,
        clients=10,
        participants=10,
        classes=sizes.classes,
        public=256,
        batch_size=32,
        local_steps=None,
        local_epochs=1,
        prototypes={model: size},
    )
    flops_of: dict[str, float] = {}
    for name in registry("method").names():
        # a method with options that are required, one that cannot take this model, a
        # broken package
        with suppress(TypeError, InputError, ImportError):
            method: Method = registry("method").get(name)()
            method.check(setting)
            flops_of |= method.auxiliary(setting)
    for name in registry("rule").names():
        with suppress(TypeError, InputError, ImportError, AttributeError):
            rule = registry("rule").get(name)
            flops_of |= rule(**rule.example).auxiliary(name, size)
    return flops_of
