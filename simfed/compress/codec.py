"""Codecs: what becomes of an update between a client and the server, both ways.

A codec is a chain: a *selection* says which entries travel, a *value codec* how each of
them is written, an index code where they stand. What fits no chain (low rank, momentum
inside) is a codec of its own. `codec_from_spec` makes all of them as scenarios write
them.

State comes in and goes out: `payload, state = codec.encode(update, state, rng, k)`.
`decode(payload)` is what the receiver takes the update for, so `update −
decode(payload)` is the error of this round, whatever made it;
`simfed.compress.feedback` carries it to the next.

Begin with `Payload` (what travels) and `Chain` (how most of them are made). `Codec` is
the contract of both, `ValueCodec` that of the second link; selections are in
`sparsifiers`, value codecs in `quantise`, codecs that are no chain in `own` and
`lowrank`, and codecs of codecs in `layers` and `slices`.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from typing_extensions import override

from simfed.compress.index_codes import (
    code_in_use,
    decode_indices,
    encode_indices,
    index_bytes,
)
from simfed.compress.labels import format_link, read_label
from simfed.compress.selection import check_k, refuse_non_finite
from simfed.compress.sparsifiers import Dense, Sparsifier, State, TopK
from simfed.compress.vectors import (
    Block,
    Device,
    Floats,
    Vector,
    convert_to_numpy,
    find_device,
    is_tensor,
    list_layers,
    move_indices,
    move_vector,
    require_vector,
)
from simfed.ground.errors import InputError, check_known, within
from simfed.ground.levels import Level
from simfed.ground.method import Layout
from simfed.ground.plain import Plain
from simfed.ground.registry import registry

__all__ = [
    "Block",
    "Chain",
    "Codec",
    "Feedback",
    "Layout",
    "Memory",
    "Payload",
    "ValueCodec",
    "check_level",
    "codec_from_spec",
]

Feedback = Literal["wanted", "optional", "own", "none"]
"""The place of a codec's error: kept and added to the next update (`wanted`), either
way (`optional`), kept by the codec itself (`own`), or dropped (`none`)."""

Symbols: TypeAlias = Any
"""Values as a codec writes them in place of 32-bit numbers; the codec decides their
type."""

Part: TypeAlias = "Sparsifier | ValueCodec | Codec"
"""The registry's entry for a codec's name."""

COMPOSED: dict[str, Callable[[Plain], Codec]] = {}
"""Key of a scenario → what makes a codec of what stands there; filled by the modules
that know."""


class Memory(NamedTuple):
    """The state of a codec that keeps vectors from play to play.

    Checkpoints write `facts` as JSON and `arrays` as safetensors, so there is nothing
    else in it: float32 arrays of length d, or of a factor's size. A codec without
    vectors has plain facts, or None, as its state.
    """

    facts: Plain
    arrays: dict[str, Floats]
    """NumPy, on the host, whatever the update is."""


class EncodeCall(NamedTuple):
    """The arguments of `Codec.encode`."""

    update: Vector
    state: State
    rng: np.random.Generator | None
    k: int
    layout: Layout | None
    consume: bool


class Arrived(NamedTuple):
    """The arguments of `Codec.from_bytes`."""

    data: bytes
    length: int
    k: int
    index_code: str
    layout: Layout | None
    state: State


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """The compressed update of one client and round, with what it takes to undo it.

    `wire_bytes(index_code)` is what the clock charges, `encoded(index_code)` the very
    bytes, of that length, `dense()` the vector that the receiver makes of them.
    Headers, checksums and encryption are not in it.
    """

    strategy: str
    """The codec's label."""
    length: int
    """d, the length of the flat vector."""
    indices: Vector = None
    """Sorted, distinct, int64, shape (K,); None where the receiver gets a value for
    every entry."""
    values: Vector = None
    """The receiver's values at `indices`, shape (K,), in the update's dtype; None where
    `indices` is None: `dense()` makes them."""
    state: State = None
    """The codec's state for this client's next play."""
    state_before: State = None
    """The codec's state before this play; of a state with vectors only what the
    receiver needs to know."""
    seed: int | None = None
    """The 64-bit number that the indices were made from; see `Selection.seed`."""
    symbols: Symbols = None
    """None where 32-bit values travel."""
    layout: Layout | None = None
    device: Device = None
    """The device of the tensor that `decode` makes."""
    kept: Vector = None
    """Vectors that stay with the sender so that `Codec.undo` can take the play back."""

    @property
    def k(self) -> int:
        """Entries that the receiver gets a value for."""
        return self.length if self.indices is None else len(self.indices)

    @property
    def codec(self) -> Codec:
        """The codec that made it."""
        return codec_from_spec(self.strategy)

    def dense(self) -> Vector:
        """Return the vector that the receiver rebuilds, zeros where nothing travels.

        Shape (length,), of the library of `values`; what `Codec.decode` gives.
        """
        if self.indices is None:
            return self.codec.decode(self)
        if is_tensor(self.values):
            return self.values.new_zeros(self.length).index_copy_(
                0, self.indices, self.values
            )
        vector = np.zeros(self.length, self.values.dtype)
        vector[self.indices] = self.values
        return vector

    def wire_bytes(self, index_code: str) -> float:
        """Return the size on the wire in bytes, which is fractional for `ideal`.

        Args:
            index_code: the format of the indices, see `simfed.compress.index_codes`.
        """
        return self.codec.payload_bytes(self, index_code)

    def encoded(self, index_code: str) -> bytes:
        """Return the payload as it travels, which the codec's `from_bytes` reads.

        It has `wire_bytes` bytes.

        Args:
            index_code: any but `ideal`, which has no encoder.
        """
        return self.codec.to_bytes(self, index_code)


@runtime_checkable
class ValueCodec(Protocol):
    """The format of a chain's values, made by its registry class from its options.

    Vectors are flat float32 NumPy arrays of `count` entries; `layout` gives the shapes
    of the layers where the values are a whole update, None behind a selection.
    *Symbols* are whatever the class likes: the only thing that travels.
    """

    name: str
    feedback: Feedback

    def quantise(
        self, values: Floats, rng: np.random.Generator | None, layout: Layout | None
    ) -> Symbols:
        """Return the symbols of `values`, which are not changed.

        Args:
            values: flat float32, at least one.
            rng: keyed by codec, client and round; None where nothing is drawn.
            layout: shapes of the layers where the values are a whole update.

        Raises:
            InputError: a NaN or infinity.
        """
        ...

    def blocks(self, symbols: Symbols) -> Iterator[Block]:
        """Yield the receiver's values, stretch by stretch, in order."""
        ...

    def bits(
        self, count: int, layout: Layout | None, *, ideal: bool, symbols: Symbols = None
    ) -> float | None:
        """Return the bits of `count` values; None where they depend on missing symbols.

        Args:
            count: how many values.
            layout: as of `quantise`.
            ideal: True: as an accounting without rounding; else what `write` comes to
                before it is rounded up to whole bytes.
            symbols: of these values, where they are known.
        """
        ...

    def write(self, symbols: Symbols) -> bytes:
        """Return the symbols as they travel."""
        ...

    def read(
        self, data: bytes, count: int, layout: Layout | None
    ) -> tuple[Symbols, int]:
        """Return (symbols, bytes read): the inverse of `write`.

        Args:
            data: the bytes, which may go on behind them.
            count: how many values there are.
            layout: as of `quantise`.
        """
        ...


class Codec(ABC):
    """Update and state in, payload and state out; decoding; true size.

    Holds no client's state.

    Under privacy it is refused unless its own class says `privacy = ("client",
    "sample")`: what it sends is made of nothing but what this client gave it.

    Made from its options by its registry class; equal options make codecs that do the
    same. What is NumPy comes back as NumPy, a tensor as a tensor beside it; on an
    accelerator all but plain selections are worked out on the host, which waits for the
    device.
    """

    name: str
    feedback: Feedback
    own_memory: bool = False
    """True if its state is a `Memory`, dense vectors included."""
    by_layer: bool = False
    """True if several codecs share the work; see `parts`."""
    chunks: int = 1
    """The slices of the coordinates that it makes its payload of, one after another;
    see `simfed.compress.slices`."""
    shared: bool = False
    """True if its random numbers are those of a round, for all clients of a prototype.
    """
    timed_as: str | None = None
    """The label under which profiles know its times, where that is not its own."""
    takes_k: bool = True
    """True if what it sends depends on the number of entries that it is given."""
    draws: bool = True
    """True if it may ask for random numbers; where not, it can be played without
    `rng`."""
    sends_all: bool = False
    """True if what is sent is the update as it is: a copy does for `encode`."""
    is_dense: bool = False
    """True if it leaves no entry out, which is 0 in what the server decodes."""
    moves_point: bool = False
    """True if it wants the gradient taken beside the weights; the host has to move
    them."""

    def tell(self, state: State) -> Plain:
        """Return the part of a state that a receiver needs to read the next payload.

        That is a selection's state, which is plain; None of a state that keeps vectors.
        """
        return None if isinstance(state, Memory) else state

    def point(self, state: State) -> Floats | None:
        """Return how far a client in this state moves its weights before it trains.

        The vector is in units of the update; None stands for not at all.
        """
        return None

    # ---- who it is -------------------------------------------------------------------

    @cached_property
    def label(self) -> str:
        """The short name in tables; `codec_from_spec` makes the codec from it again."""
        return _label(self)

    # ---- what it does ----------------------------------------------------------------

    def encode(
        self,
        update: Vector,
        state: State = None,
        rng: np.random.Generator | None = None,
        k: int = 1,
        *,
        layout: Layout | None = None,
        consume: bool = False,
    ) -> tuple[Payload, State]:
        """Return (payload, new state) of the flat vector `update`.

        Args:
            update: not changed.
            state: what the same client's last play returned (None before the first);
                not changed, unless `consume` says that its arrays may be overwritten.
            rng: keyed by codec, client and round.
            k: the number of entries, where the codec goes by one.
            layout: the shapes of the layers, for codecs that look at them.
            consume: see `state`.

        Raises: `InputError` for a NaN or an infinity (random and dense selections of
        plain values do not look) and for what does not fit; the caller knows which
        client and round it was.
        """
        return self._play(EncodeCall(update, state, rng, k, layout, consume))

    def _play(self, play: EncodeCall) -> tuple[Payload, State]:
        """Do the work of `encode` for codecs that do not bring one of their own."""
        raise NotImplementedError

    @abstractmethod
    def blocks(self, payload: Payload) -> Iterator[Block]:
        """Return the decoded vector, stretch by stretch.

        Only asked for where `payload.indices` is None.
        """

    def decode(self, payload: Payload) -> Vector:
        """Return the update as the receiver takes it: a new flat float32 vector."""
        if payload.indices is not None:
            return payload.dense()
        vector = np.empty(payload.length, np.float32)
        for stretch, values in self.blocks(payload):
            vector[stretch] = values
        return move_vector(vector, payload.device)

    def undo(self, payload: Payload) -> State:
        """Return the state for the next play when the upload of the last one was lost.

        It is as if nothing had been sent. The gradient of the round stays in it where
        the codec keeps its own error.
        """
        return payload.state_before

    def undo_earlier(self, state: State, undone: State, sent: Vector) -> State:
        """Return `state`, which later plays have left, without an earlier lost upload.

        What is kept in sums, it is taken out of; what tells one play from the next (the
        place in a period) goes back to before it, so that no entry is left out.

        Args:
            state: after the last play.
            undone: what `undo` gave for the lost play.
            sent: what the receiver would have got, shape (d,).
        """
        return undone

    def under_feedback(self) -> Codec:
        """Return the codec to play with its error kept: itself or a smaller one."""
        return self

    def parts(
        self, length: int, k: int, layout: Layout | None
    ) -> tuple[tuple[str, int, float], ...]:
        """Return `Work.parts` of an update, where it is made `by_layer`.

        Args:
            length: d.
            k: entries asked for.
            layout: shapes of the layers.

        Returns:
            (strategy, K, share of the entries) of each codec that takes part.
        """
        return ()

    def count_told(
        self, length: int, k: int, layout: Layout | None = None
    ) -> int | None:
        """Return the number of entries that every payload of such an update tells of.

        None where that depends on the data or on earlier plays. Arguments are those of
        `size_bytes`.
        """
        return length if self.is_dense else min(k, length)

    # ---- on the wire -----------------------------------------------------------------

    @abstractmethod
    def size_bytes(
        self, length: int, k: int, index_code: str, layout: Layout | None = None
    ) -> float | None:
        """Return the bytes of every payload of such an update.

        None where they depend on the data. The clock asks before anything is learned.

        Args:
            length: d, of the update.
            k: entries asked for.
            index_code: the format of the indices.
            layout: shapes of the layers, for codecs that look at them.
        """

    @abstractmethod
    def payload_bytes(self, payload: Payload, index_code: str) -> float:
        """Return the bytes of this payload; fractional under the index code `ideal`."""

    @abstractmethod
    def to_bytes(self, payload: Payload, index_code: str) -> bytes:
        """Return the payload as it travels; its length is what `payload_bytes` says.

        Raises: `InputError` for `ideal`.
        """

    def from_bytes(
        self,
        data: bytes,
        length: int,
        k: int,
        index_code: str,
        *,
        layout: Layout | None = None,
        state: State = None,
    ) -> Payload:
        """Return the payload that the receiver decodes.

        Args:
            data: as `to_bytes` wrote it.
            length: d, which belongs to the task.
            k: entries asked for, which do too.
            index_code: the format of the indices.
            layout: shapes of the layers.
            state: the sender's before the play, mirrored.

        Raises:
            InputError: bytes that no encoder wrote.
        """
        return self._decode(Arrived(data, length, k, index_code, layout, state))

    def _decode(self, arrived: Arrived) -> Payload:
        """Do the work of `from_bytes` for codecs that do not bring one of their own."""
        raise NotImplementedError


class Chain(Codec):
    """A selection and, behind it, a value codec; 32-bit floats without one.

    >>> chain = codec_from_spec({"chain": ["top-k", {"qsgd": {"levels": 4}}]})
    >>> chain.label, chain.feedback, chain.size_bytes(61_706, 1000, "fixed")
    ('top-k+qsgd(4)', 'wanted', 2508.0)
    """

    def __init__(self, selection: Sparsifier, values: ValueCodec | None = None) -> None:
        """Join two links, of which the second may be missing.

        Args:
            selection: says which entries travel.
            values: writes them; None: as 32-bit floats.
        """
        self.selection, self.values = selection, values
        self.keeps_all = self.is_dense = bool(getattr(selection, "keeps_all", False))
        self.takes_k = not self.keeps_all
        self.shared = bool(getattr(selection, "shared", False))
        self.draws = values is not None or type(selection) not in (TopK, Dense)
        self.links: list[Sparsifier | ValueCodec] = [selection]
        """The parts that the label names; before values, no selection of all."""
        self.feedback = "wanted"
        if values is None:
            self.timed_as = getattr(selection, "timed_as", None)
            self.sends_all = type(selection) is Dense
        else:
            self.links = [values] if self.keeps_all else [selection, values]
            if self.keeps_all or values.feedback == "none":
                self.feedback = values.feedback
        self.name = "+".join(link.name for link in self.links)

    @override
    def encode(
        self,
        update: Vector,
        state: State = None,
        rng: np.random.Generator | None = None,
        k: int = 1,
        *,
        layout: Layout | None = None,
        consume: bool = False,
    ) -> tuple[Payload, State]:
        length, device = len(update), find_device(update)
        indices: Vector | None = None
        values: Vector | None = None
        symbols, after, seed = None, state, None
        if self.values is not None and self.keeps_all:
            list_layers(length, layout)  # refuses one that does not fit
            symbols = self.values.quantise(require_vector(update), rng, layout)
        else:
            selected = self.selection.select(update, k, state=state, rng=rng)
            chosen, after, seed = selected
            expected = length if self.keeps_all else min(k, length)
            if len(chosen) != expected:  # so many are charged
                allowed = f"{expected} indices chosen by strategy {self.selection.name}"
                raise InputError(allowed, got=len(chosen))
            indices = move_indices(chosen, update)
            if expected < length:
                values = update[indices]
            else:  # all of it, copied
                values = np.array(update) if device is None else update.clone()
            if self.values is not None:
                if seed is not None and (device is None or device.type == "cpu"):
                    refuse_non_finite(require_vector(update))  # top-k looks itself
                symbols = self.values.quantise(require_vector(values), rng, None)
                joined = _join_blocks(self.values, symbols, expected)
                if device is None:
                    values = joined.astype(values.dtype, copy=False)
                else:
                    values = move_vector(joined, device).to(values.dtype)
        payload = Payload(
            strategy=self.label,
            length=length,
            indices=indices,
            values=values,
            state=after,
            state_before=state,
            seed=seed,
            symbols=symbols,
            layout=layout,
            device=device,
        )
        return payload, after

    @override
    def blocks(self, payload: Payload) -> Iterator[Block]:
        assert self.values is not None
        return self.values.blocks(payload.symbols)

    @override
    def under_feedback(self) -> Chain:
        adapt = getattr(self.values, "under_feedback", None)
        return self if adapt is None else Chain(self.selection, adapt())

    @override
    def size_bytes(
        self, length: int, k: int, index_code: str, layout: Layout | None = None
    ) -> float | None:
        return self._bytes(length, check_k(k, length), index_code, layout)

    @override
    def payload_bytes(self, payload: Payload, index_code: str) -> float:
        layout, symbols = payload.layout, payload.symbols
        size = self._bytes(
            payload.length, payload.k, index_code, layout, payload.indices, symbols
        )
        assert size is not None
        return size

    def _bytes(
        self,
        length: int,
        k: int,
        index_code: str,
        layout: Layout | None,
        indices: Vector | None = None,
        symbols: Symbols = None,
    ) -> float | None:
        code = code_in_use(self.selection, index_code)
        k = length if self.keeps_all else k
        if self.values is None and code == "ideal":
            return k * (32 + math.log2(length)) / 8
        values = self._value_bytes(k, layout, symbols, ideal=index_code == "ideal")
        places = index_bytes(code, length, k, indices)
        return None if values is None or places is None else values + places

    def _value_bytes(
        self, k: int, layout: Layout | None, symbols: Symbols, *, ideal: bool
    ) -> float | None:
        if self.values is None:
            return 4.0 * k
        layout = layout if self.keeps_all else None
        bits = self.values.bits(k, layout, ideal=ideal, symbols=symbols)
        return (
            None if bits is None else bits / 8 if ideal else float(-(-int(bits) // 8))
        )

    @override
    def to_bytes(self, payload: Payload, index_code: str) -> bytes:
        if index_code == "ideal":
            raise InputError("an index code with an encoder", got=index_code)
        code = code_in_use(self.selection, index_code)
        values = payload.symbols if self.values else convert_to_numpy(payload.values)
        if self.values is None and values.dtype != np.float32:
            raise InputError("values of float32", got=str(values.dtype))
        head: bytes = (
            self.values.write(values) if self.values else values.astype("<f4").tobytes()
        )
        return head + encode_indices(
            code, payload.indices, payload.length, payload.seed
        )

    def _decode(self, arrived: Arrived) -> Payload:
        data, length, k, index_code, layout, state = arrived
        code = code_in_use(self.selection, index_code)
        k = length if self.keeps_all else check_k(k, length)
        size = self._bytes(length, k, index_code, layout)
        if size not in (None, len(data)) or (self.values is None and len(data) < 4 * k):
            allowed = f"at least {4 * k}" if size is None else f"{size:.0f}"
            raise InputError(f"a payload of {allowed} bytes", got=len(data))
        symbols, used = None, 4 * k
        if self.values is None:
            values: Floats | None = np.frombuffer(data[:used], "<f4").astype(np.float32)
        else:
            symbols, used = self.values.read(
                data, k, layout if self.keeps_all else None
            )
            values = None if self.keeps_all else _join_blocks(self.values, symbols, k)
        rest, whole = data[used:], values is None
        indices = decode_indices(
            code, rest, length, k, selection=self.selection, state=state
        )
        return Payload(
            self.label,
            length,
            None if whole else indices,
            values,
            state_before=state,
            symbols=symbols,
            layout=layout,
        )


# ---- codecs as scenarios write them --------------------------------------------------


def codec_from_spec(spec: Codec | Plain, *, where: str | None = None) -> Codec:
    """Return the codec that a scenario writes.

    Args:
        spec: a name, a label, `{name: {option: value}}`, `{chain: [selection, values]}`
            or `{layers: {pattern: strategy}}`; a codec comes back as it is.
        where: key path that an error names.

    >>> codec_from_spec({"qsgd": {"levels": 4, "bucket": 64}}).label
    'qsgd(4,bucket=64)'
    >>> codec_from_spec({"chain": ["top-k", "fp16"]}).label
    'top-k+fp16'

    Raises: `InputError` for unknown names and options and for chains that make no
    sense.
    """
    if isinstance(spec, Codec):
        return spec
    try:
        return _codec(spec)
    except InputError as error:
        raise (error.within(where) if where else error) from None


def check_level(codec: Codec, level: Level) -> None:
    """Raise `InputError` for a level that does not suit a codec."""
    if not codec.takes_k:
        raise InputError(
            f"no level behind {codec.label}, which does not go by a number of entries",
            got=level.plain,
            hint="its own options say how much it sends",
        )


def wrap_as_codec(part: Part) -> Codec:
    """Return a codec, a selection or a value codec as a codec."""
    if isinstance(part, Codec):
        return part
    return Chain(part) if isinstance(part, Sparsifier) else Chain(Dense(), part)


def _codec(spec: Plain) -> Codec:
    links = _list_links(spec)
    if len(links) == 1 and links[0][0] in COMPOSED:
        [(name, inner)] = links
        return COMPOSED[name](inner)
    return _make_chain([_make_part(name, options) for name, options in links])


def _list_links(spec: Plain, *, whole: bool = True) -> Sequence[tuple[str, Plain]]:
    """Return the name and the options of each link that a scenario writes.

    A link of a chain, which is not the `whole`, is no chain itself.
    """
    if isinstance(spec, str):
        links = [(spec, {})] if spec in registry("codec") else read_label(spec)
        if whole or len(links) == 1:
            return links
    elif isinstance(spec, Mapping) and len(spec) == 1:
        [(name, inner)] = spec.items()
        if isinstance(name, str) and name != "chain":
            return [(name, inner)]
        if name == "chain" and whole:
            if not isinstance(inner, (list, tuple)) or not inner:
                allowed = "a list of a selection and a value codec"
                raise InputError(allowed, where="chain", got=inner)
            return [one for link in inner for one in _list_links(link, whole=False)]
    raise InputError(
        "a codec: its name, {name: {option: value}} or {chain: [selection, values]}",
        got=spec,
    )


def _make_part(name: str, options: Plain) -> Part:
    """Return the registered part of this name.

    Args:
        name: in the registry of codecs.
        options: keyword → value; an option under None is its constructor's first. None
            or empty: it is made without any.

    Raises:
        InputError: no such part or option, or a value that the constructor refuses.
    """
    if options is not None and not isinstance(options, Mapping):
        raise InputError("options as a mapping", where=name, got=options)
    cls: Callable[..., Part] = registry("codec").get(name)
    if not options:
        return cls()
    allowed = list(_list_parameters(cls))
    first = allowed[0] if allowed else None
    named: dict[Any, Plain] = {
        first if key is None else key: v for key, v in options.items()
    }
    for option in named:
        check_known(option, allowed, f"an option of {name}:", where=name)
    with within(name):
        return cls(**named)


@lru_cache
def _list_parameters(cls: Callable[..., Part]) -> dict[str, Plain]:
    """Return the options of a class with their defaults.

    Asking Python takes 0.1 ms each time.
    """
    return {name: p.default for name, p in inspect.signature(cls).parameters.items()}


def _make_chain(parts: list[Part]) -> Codec:
    """Return the codec of one part, or of a selection before a value codec.

    Raises:
        InputError: parts that make no chain.
    """
    if len(parts) == 1:
        return wrap_as_codec(parts[0])
    for part in parts:
        if isinstance(part, Codec):
            raise InputError(
                "a chain of a selection and a value codec",
                where="chain",
                got=part.label,
                hint=f"{part.name} stands alone",
            )
    names = [part.name for part in parts]
    selections = [part for part in parts if isinstance(part, Sparsifier)]
    values = [part for part in parts if isinstance(part, ValueCodec)]
    for kind, chosen in (("selection", selections), ("value codec", values)):
        if len(chosen) > 1:
            raise InputError(f"at most one {kind} in a chain", where="chain", got=names)
    if parts != [*selections, *values]:
        raise InputError(
            "the selection before the value codec", where="chain", got=names
        )
    return Chain(selections[0], values[0])


def _list_options(part: Part) -> dict[str | None, Plain]:
    """Return the options that differ from the constructor's defaults.

    The first option always stands there, under None.
    """
    shown: dict[str | None, Plain] = {}
    for place, (option, default) in enumerate(_list_parameters(type(part)).items()):
        value = getattr(part, option)
        if place == 0 and value is not None:
            shown[None] = value
        elif place and value != default:
            shown[option] = value
    return shown


def _label(codec: Codec) -> str:
    """Return a codec's label from the names and options of its links."""
    links = codec.links if isinstance(codec, Chain) else [codec]
    return "+".join(format_link(link.name, _list_options(link)) for link in links)


def _join_blocks(codec: ValueCodec, symbols: Symbols, count: int) -> Floats:
    """Return the receiver's values of some symbols, float32 of shape (count,)."""
    vector = np.empty(count, np.float32)
    for stretch, values in codec.blocks(symbols):
        vector[stretch] = values
    return vector
