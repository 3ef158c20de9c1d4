"""A codec for each layer: patterns over the names of parameters, each with a strategy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from typing import ClassVar, NamedTuple

from simfed.compress.choice import NO_COMPRESSION, Choice
from simfed.compress.codec import (
    COMPOSED,
    LAYERS,
    Arrived,
    Codec,
    EncodeCall,
    Feedback,
    Layout,
    Memory,
    Payload,
)
from simfed.compress.labels import format_link
from simfed.compress.sparsifiers import State
from simfed.compress.vectors import Block, Floats, find_device, list_layers, require_vector
from simfed.ground.errors import InputError, did_you_mean, listed
from simfed.ground.method import Layers
from simfed.ground.plain import Plain

_LENGTH_BYTES = 4
"""How long a layer's part is, where the receiver cannot know."""

_SPECIAL = frozenset("()+,=@ ")


class _Slice(NamedTuple):
    """One parameter tensor: where it lies, by what it travels."""

    stretch: slice
    choice: Choice
    pattern: str
    k: int
    layout: Layers

    @property
    def length(self) -> int:
        return int(self.stretch.stop - self.stretch.start)


class PerLayer(Codec):
    """Each parameter tensor of an update by the codec of the first pattern that its name matches.

    Patterns are those of `fnmatch` (`conv*`, `*.bias`); a tensor that none matches travels dense.
    Levels are of each tensor: `1%` of its own entries, `100` of them, at least 1. A payload is the
    tensors' own, one after another; where the length of one depends on the data, 4 bytes say it.
    Residuals, memories and lost uploads are as with one codec; time is the sum over patterns, each
    charged the share of its entries of what its codec takes for a whole model at the same density.

    >>> codec = PerLayer.read({"conv*": "top-k@10%", "fc*": "qsgd"})
    >>> codec.label
    'layers(conv*=top-k@10%,fc*=qsgd(16))'
    >>> shapes = Layers([(4, 5), (10,)], ("conv.weight", "fc.weight"))
    >>> codec.size_bytes(30, 1, "fixed", shapes)  # 2 entries, and 10 levels with their scale
    22.0
    """

    name: str = LAYERS
    feedback: ClassVar[Feedback] = "wanted"  # type: ignore[misc]
    takes_k: ClassVar[bool] = False
    by_layer = True

    def __init__(self, choices: tuple[tuple[str, Choice], ...]) -> None:
        self.choices = choices
        self._plans: dict[tuple[tuple[str, ...], tuple[tuple[int, ...], ...]], list[_Slice]] = {}

    @classmethod
    def read(cls, value: Plain) -> PerLayer:
        """From `{pattern: strategy}`. Raises: `InputError`."""
        if not isinstance(value, Mapping) or not value:
            raise InputError("a strategy for each pattern", where=LAYERS, got=value)
        choices = []
        for pattern, strategy in value.items():
            try:
                choices.append((_check_pattern(pattern), _read_strategy(strategy)))
            except InputError as error:
                raise error.within(f"{LAYERS}: {pattern}") from None
        return cls(tuple(choices))

    @cached_property
    def label(self) -> str:
        return format_link(LAYERS, {pattern: choice.label for pattern, choice in self.choices})

    @property
    def spec(self) -> Plain:
        return {LAYERS: {pattern: choice.label for pattern, choice in self.choices}}

    @cached_property
    def draws(self) -> bool:
        return any(choice.codec.draws for _, choice in self.choices)

    @cached_property
    def shared(self) -> bool:  # type: ignore[override]
        return all(choice.codec.shared for _, choice in self.choices)

    @cached_property
    def is_dense(self) -> bool:
        return all(choice.codec.is_dense for _, choice in self.choices)

    def under_feedback(self) -> PerLayer:
        return PerLayer(
            tuple(
                (pattern, Choice(choice.codec.under_feedback(), choice.level))
                for pattern, choice in self.choices
            )
        )

    def _play(self, play: EncodeCall) -> tuple[Payload, State]:
        vector = require_vector(play.update)
        layers = self._layers(len(vector), play.layout)
        before = _split_states(play.state, len(layers))
        payloads, after = [], []
        for layer, state_before in zip(layers, before, strict=True):
            payload, state_after = layer.choice.codec.encode(
                vector[layer.stretch],
                state_before,
                play.rng,
                layer.k,
                layout=layer.layout,
                consume=play.consume,
            )
            payloads.append(payload)
            after.append(state_after)
        whole = Payload(
            self.label,
            len(vector),
            None,
            None,
            _join_states(after),
            _join_states([payload.state_before for payload in payloads]),
            symbols=payloads,
            layout=play.layout,
            device=find_device(play.update),
        )
        return whole, whole.state

    def tell(self, state: State) -> Plain:
        """Of each tensor what its codec tells; None where none tells anything."""
        if not isinstance(state, Memory):
            return state
        told = [None if "memory" in facts else facts["plain"] for facts in state.facts]
        return None if all(one is None for one in told) else told

    def blocks(self, payload: Payload) -> Iterator[Block]:
        for stretch, part in zip(
            list_layers(payload.length, payload.layout), payload.symbols, strict=True
        ):
            yield stretch, part.dense()

    def undo(self, payload: Payload) -> State:
        return _join_states([part.codec.undo(part) for part in payload.symbols])

    def parts(
        self, length: int, k: int, layout: Layout | None
    ) -> tuple[tuple[str, int, float], ...]:
        of_pattern: dict[str, list[_Slice]] = {}
        for layer in self._layers(length, layout):
            of_pattern.setdefault(layer.pattern, []).append(layer)
        parts = []
        for layers in of_pattern.values():
            covered = sum(layer.length for layer in layers)
            k = round(sum(layer.k for layer in layers) * length / covered)
            parts.append((layers[0].choice.strategy, k, covered / length))
        return tuple(parts)

    def count_told(self, length: int, k: int, layout: Layout | None = None) -> int:
        return sum(
            layer.choice.codec.count_told(layer.length, layer.k, layer.layout)
            for layer in self._layers(length, layout)
        )

    # ---- on the wire -----------------------------------------------------------------------------

    def size_bytes(
        self, length: int, k: int, index_code: str, layout: Layout | None = None
    ) -> float | None:
        sizes = [self._size(layer, index_code) for layer in self._layers(length, layout)]
        return None if None in sizes else math.fsum(size for size in sizes if size is not None)

    def payload_bytes(self, payload: Payload, index_code: str) -> float:
        layers = self._layers(payload.length, payload.layout)
        return math.fsum(
            part.wire_bytes(index_code) + self._head_bytes(layer, index_code)
            for layer, part in zip(layers, payload.symbols, strict=True)
        )

    def to_bytes(self, payload: Payload, index_code: str) -> bytes:
        layers = self._layers(payload.length, payload.layout)
        data: list[bytes] = []
        for layer, part in zip(layers, payload.symbols, strict=True):
            body = part.encoded(index_code)
            head = self._head_bytes(layer, index_code)
            data += [len(body).to_bytes(head, "little") if head else b"", body]
        return b"".join(data)

    def _decode(self, arrived: Arrived) -> Payload:
        data, length, _, index_code, layout, state = arrived
        layers, at, parts = self._layers(length, layout), 0, []
        before = _split_states(state, len(layers))
        for layer, state_before in zip(layers, before, strict=True):
            head, fixed = self._head_bytes(layer, index_code), self._size(layer, index_code)
            size = int.from_bytes(data[at : at + head], "little") if fixed is None else int(fixed)
            body = data[at + head : at + head + size]
            if len(body) != size:
                raise InputError(f"a payload of more than {len(data)} bytes", got=len(data))
            codec = layer.choice.codec
            parts.append(
                codec.from_bytes(
                    body, layer.length, layer.k, index_code, layout=layer.layout, state=state_before
                )
            )
            at += head + size
        if at != len(data):
            raise InputError(f"a payload of {at} bytes", got=len(data))
        return Payload(self.label, length, None, None, symbols=parts, layout=layout)

    @staticmethod
    def _size(layer: _Slice, index_code: str) -> float | None:
        return layer.choice.codec.size_bytes(layer.length, layer.k, index_code, layer.layout)

    def _head_bytes(self, layer: _Slice, index_code: str) -> int:
        varies = index_code != "ideal" and self._size(layer, index_code) is None
        return _LENGTH_BYTES if varies else 0

    # ---- inside ----------------------------------------------------------------------------------

    def _layers(self, length: int, layout: Layout | None) -> list[_Slice]:
        """Raises: `InputError` for a layout without names, and for patterns that none matches."""
        if not isinstance(layout, Layers) or not layout.names:
            raise InputError(
                "a field whose layers have names, such as a model's update", where=LAYERS
            )
        key = layout.names, tuple(layout)
        if key not in self._plans:
            self._plans[key] = self._planned(length, layout)
        return self._plans[key]

    def _planned(self, length: int, layout: Layers) -> list[_Slice]:
        unused = [
            pattern
            for pattern, _ in self.choices
            if not any(fnmatchcase(name, pattern) for name in layout.names)
        ]
        if unused:
            raise InputError(
                f"a pattern of the model's layers: {listed(layout.names)}",
                where=LAYERS,
                got=unused[0],
                hint=did_you_mean(unused[0], layout.names),
            )
        layers = []
        named = [n for n, shape in zip(layout.names, layout, strict=True) if math.prod(shape)]
        shapes = [shape for shape in layout if math.prod(shape)]
        for name, shape, stretch in zip(named, shapes, list_layers(length, layout), strict=True):
            pattern, choice = next(
                (pair for pair in self.choices if fnmatchcase(name, pair[0])),
                ("", NO_COMPRESSION),
            )
            size = stretch.stop - stretch.start
            k = size if choice.level is None else choice.level.k(size)
            layers.append(_Slice(stretch, choice, pattern, k, Layers([shape], (name,))))
        return layers


COMPOSED[LAYERS] = PerLayer.read


def _check_pattern(pattern: object) -> str:
    if not isinstance(pattern, str) or not pattern or _SPECIAL & set(pattern):
        raise InputError("a pattern of names such as conv* or *.bias", got=pattern)
    return pattern


def _read_strategy(value: Plain) -> Choice:
    choice = Choice.read(value)
    if choice.codec.by_layer:
        raise InputError("a codec", got=value)
    if choice.codec.feedback not in ("wanted", "optional"):
        raise InputError("a codec that error feedback can be put around", got=value)
    if choice.codec.takes_k and choice.level is None:
        raise InputError(f"a level behind it, such as {choice.label}@1%", got=value)
    if choice.follows_update:
        raise InputError("a level that is known before the update is", got=value)
    return choice


def _join_states(states: list[State]) -> State:
    """The state of all layers; None where none has any."""
    if all(state is None for state in states):
        return None
    if not any(isinstance(state, Memory) for state in states):
        return states
    arrays: dict[str, Floats] = {}
    facts = []
    for at, state in enumerate(states):
        if isinstance(state, Memory):
            arrays |= {f"{at}/{key}": array for key, array in state.arrays.items()}
            facts.append({"memory": state.facts})
        else:
            facts.append({"plain": state})
    return Memory(facts, arrays)


def _split_states(state: State, count: int) -> list[State]:
    if state is None:
        return [None] * count
    if not isinstance(state, Memory):
        return list(state)
    states: list[State] = []
    for at, facts in enumerate(state.facts):
        begin = f"{at}/"
        arrays = {k.removeprefix(begin): a for k, a in state.arrays.items() if k.startswith(begin)}
        states.append(Memory(facts["memory"], arrays) if "memory" in facts else facts["plain"])
    return states
