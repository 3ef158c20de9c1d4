"""A codec for each layer: patterns over names of parameters, each with a strategy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from typing import NamedTuple

from typing_extensions import override

from simfed.compress.choice import NO_COMPRESSION, Choice
from simfed.compress.codec import COMPOSED, Arrived, Codec, EncodeCall, Layout, Payload
from simfed.compress.labels import format_link
from simfed.compress.sparsifiers import State
from simfed.compress.vectors import Block, find_device, list_layers, require_vector
from simfed.ground.errors import InputError, did_you_mean, listed, within
from simfed.ground.method import Layers
from simfed.ground.plain import Plain

_NAME = "layers"
_SPECIAL = frozenset("()+,=@ ")


class _Layer(NamedTuple):
    """One parameter tensor: where it lies, and by what it travels."""

    stretch: slice
    pattern: str
    codec: Codec
    shapes: Layers
    length: int
    k: int

    def size_bytes(self, index_code: str) -> float | None:
        return self.codec.size_bytes(self.length, self.k, index_code, self.shapes)

    def head_bytes(self, index_code: str) -> int:
        """Return how many bytes say its length, which the receiver may know."""
        return 4 if index_code != "ideal" and self.size_bytes(index_code) is None else 0


class PerLayer(Codec):
    """A codec per parameter tensor: that of the first pattern which its name matches.

    Patterns are those of `fnmatch` (`conv*`, `*.bias`); a tensor that none matches
    travels dense. Levels are of each tensor: `1%` of its own entries, `100` of them, at
    least 1. A payload is the tensors' own, one after another; where the length of one
    depends on the data, 4 bytes say it. Time is the sum over patterns, each charged the
    share of its entries of what its codec takes for a whole model at the same density.

    >>> codec = PerLayer.read({"conv*": "top-k@10%", "fc*": "qsgd"})
    >>> codec.label
    'layers(conv*=top-k@10%,fc*=qsgd(16))'
    >>> shapes = Layers([(4, 5), (10,)], ("conv.weight", "fc.weight"))
    >>> codec.size_bytes(30, 1, "fixed", shapes)  # 2 entries; 10 levels and a scale
    22.0
    """

    name: str = _NAME
    feedback = "wanted"
    takes_k = False
    by_layer = True

    def __init__(self, choices: Mapping[str, Choice]) -> None:
        """Choose by pattern, the first one first.

        Args:
            choices: pattern → codec, with its level where it goes by K.
        """
        self.choices = choices
        self._codecs = {
            p: choice.codec.under_feedback() for p, choice in choices.items()
        }
        self.shared = all(codec.shared for codec in self._codecs.values())
        self.is_dense = all(codec.is_dense for codec in self._codecs.values())

    @classmethod
    def read(cls, value: Plain) -> PerLayer:
        """Return the codec of `{pattern: strategy}` as a scenario writes it.

        Raises:
            InputError: no mapping, a pattern that could match no name, a strategy that
                does not suit a layer.
        """
        if not isinstance(value, Mapping) or not value:
            raise InputError("a strategy for each pattern", where=_NAME, got=value)
        return cls(
            {pattern: _read_choice(pattern, value[pattern]) for pattern in value}
        )

    @cached_property
    @override
    def label(self) -> str:
        return format_link(
            _NAME, {pattern: str(choice) for pattern, choice in self.choices.items()}
        )

    def _play(self, play: EncodeCall) -> tuple[Payload, State]:
        vector = require_vector(play.update)
        layers = self._layers(len(vector), play.layout)
        parts = [
            layer.codec.encode(
                vector[layer.stretch], before, play.rng, layer.k, layout=layer.shapes
            )[0]
            for layer, before in zip(
                layers, play.state or [None] * len(layers), strict=True
            )
        ]
        states: State = [part.state for part in parts]
        after = states if any(state is not None for state in states) else None
        return Payload(
            strategy=self.label,
            length=len(vector),
            state=after,
            state_before=play.state,
            symbols=parts,
            layout=play.layout,
            device=find_device(play.update),
        ), after

    @override
    def blocks(self, payload: Payload) -> Iterator[Block]:
        stretches = list_layers(payload.length, payload.layout)
        for stretch, part in zip(stretches, payload.symbols, strict=True):
            yield stretch, part.dense()

    @override
    def parts(
        self, length: int, k: int, layout: Layout | None
    ) -> tuple[tuple[str, int, float], ...]:
        layers, parts = self._layers(length, layout), []
        for pattern in dict.fromkeys(layer.pattern for layer in layers):
            alike = [layer for layer in layers if layer.pattern == pattern]
            covered = sum(layer.length for layer in alike)
            kept = round(sum(layer.k for layer in alike) * length / covered)
            strategy = self.choices.get(pattern, NO_COMPRESSION).strategy
            parts.append((strategy, kept, covered / length))
        return tuple(parts)

    @override
    def count_told(
        self, length: int, k: int, layout: Layout | None = None
    ) -> int | None:
        counts = [
            layer.codec.count_told(layer.length, layer.k, layer.shapes)
            for layer in self._layers(length, layout)
        ]
        return (
            None
            if None in counts
            else sum(count for count in counts if count is not None)
        )

    @override
    def size_bytes(
        self, length: int, k: int, index_code: str, layout: Layout | None = None
    ) -> float | None:
        sizes = [layer.size_bytes(index_code) for layer in self._layers(length, layout)]
        return (
            None
            if None in sizes
            else math.fsum(size for size in sizes if size is not None)
        )

    @override
    def payload_bytes(self, payload: Payload, index_code: str) -> float:
        layers = self._layers(payload.length, payload.layout)
        return math.fsum(
            layer.head_bytes(index_code) + part.wire_bytes(index_code)
            for layer, part in zip(layers, payload.symbols, strict=True)
        )

    @override
    def to_bytes(self, payload: Payload, index_code: str) -> bytes:
        data = b""
        layers = self._layers(payload.length, payload.layout)
        for layer, part in zip(layers, payload.symbols, strict=True):
            head, body = layer.head_bytes(index_code), part.encoded(index_code)
            data += (len(body).to_bytes(head, "little") if head else b"") + body
        return data

    def _decode(self, arrived: Arrived) -> Payload:
        data, length, _, code, layout, state = arrived
        layers, at, parts = self._layers(length, layout), 0, []
        for layer, before in zip(layers, state or [None] * len(layers), strict=True):
            begin, size = at + layer.head_bytes(code), layer.size_bytes(code)
            at = begin + (
                int.from_bytes(data[at:begin], "little") if size is None else int(size)
            )
            part = layer.codec.from_bytes(
                data[begin:at],
                layer.length,
                layer.k,
                code,
                layout=layer.shapes,
                state=before,
            )
            parts.append(part)
        if at != len(data):
            raise InputError(f"a payload of {at} bytes", got=len(data))
        return Payload(self.label, length, symbols=parts, layout=layout)

    def _layers(self, length: int, layout: Layout | None) -> list[_Layer]:
        """Return the tensors that are not empty.

        Raises: `InputError` for a layout without names, and for a pattern of none.
        """
        if not isinstance(layout, Layers) or not layout.names:
            allowed = "a field whose layers have names, such as a model's update"
            raise InputError(allowed, where=_NAME)
        for pattern in self.choices:
            if not any(fnmatchcase(name, pattern) for name in layout.names):
                allowed = f"a pattern of the model's layers: {listed(layout.names)}"
                hint = did_you_mean(pattern, layout.names)
                raise InputError(allowed, where=_NAME, got=pattern, hint=hint)
        named = [
            pair
            for pair in zip(layout.names, layout, strict=True)
            if math.prod(pair[1])
        ]
        layers = []
        for (name, shape), stretch in zip(
            named, list_layers(length, layout), strict=True
        ):
            pattern = next((p for p in self.choices if fnmatchcase(name, p)), "")
            codec = self._codecs.get(pattern, NO_COMPRESSION.codec)
            level = self.choices.get(pattern, NO_COMPRESSION).level
            size = stretch.stop - stretch.start
            k = size if level is None else level.k(size)
            layers.append(
                _Layer(stretch, pattern, codec, Layers([shape], (name,)), size, k)
            )
        return layers


COMPOSED[_NAME] = PerLayer.read


def _read_choice(pattern: object, strategy: Plain) -> Choice:
    """Return the choice for the layers of a pattern.

    Raises:
        InputError: a codec with a memory of its own, or one by K without a level.
    """
    with within(f"{_NAME}: {pattern}"):
        if not isinstance(pattern, str) or not pattern or _SPECIAL & set(pattern):
            raise InputError("a pattern of names such as conv* or *.bias", got=pattern)
        choice = Choice.read(strategy)
        codec = choice.codec
        if codec.by_layer or codec.own_memory or codec.feedback in ("own", "none"):
            allowed = "a codec without memory of its own that allows error feedback"
            raise InputError(allowed, got=strategy)
        if codec.takes_k and choice.level is None:
            raise InputError(
                f"a level behind it, such as {choice.label}@1%", got=strategy
            )
    return choice
