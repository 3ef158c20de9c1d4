"""Codecs that keep vectors at the client: momentum, an estimate, an error.

They take the bare update (not residual + update) and bring what error feedback is
theirs. Their state is a `Memory`; a play makes new vectors, or with `consume` writes
over those of the state it was given. A lost upload is taken back by `undo`: what was
sent returns to where it came from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from simfed.compress.codec import (
    Arrived,
    Codec,
    EncodeCall,
    Layout,
    Memory,
    Payload,
    Symbols,
    codec_from_spec,
)
from simfed.compress.index_codes import (
    code_in_use,
    decode_indices,
    encode_indices,
    index_bytes,
)
from simfed.compress.options import check_number, check_whole
from simfed.compress.selection import check_k, refuse_non_finite, top_k_indices
from simfed.compress.sparsifiers import State
from simfed.compress.vectors import (
    Block,
    Device,
    Floats,
    Indices,
    Vector,
    chunks,
    convert_to_numpy,
    find_device,
    list_layers,
    move_indices,
    move_vector,
    require_vector,
)
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain

_COUNT_BYTES = 4
"""Bytes of the number of entries, where the receiver cannot know it."""


class _Counted(Codec):
    """A codec that chooses how many entries it sends: their number travels in front.

    A subclass plays, and has `size_bytes`; one that writes its values in fewer than 32
    bits also has `_value_bytes`, `_write`, `_read` and `_values`.
    """

    own_memory = True
    feedback = "own"

    def blocks(self, payload: Payload) -> Iterator[Block]:
        raise NotImplementedError  # its payloads have indices

    def payload_bytes(self, payload: Payload, index_code: str) -> float:
        code = code_in_use(self, index_code)
        places = index_bytes(code, payload.length, payload.k, payload.indices)
        assert places is not None
        return _COUNT_BYTES + self._value_bytes(payload, ideal=code == "ideal") + places

    def to_bytes(self, payload: Payload, index_code: str) -> bytes:
        code = code_in_use(self, index_code)
        places = encode_indices(code, payload.indices, payload.length, None)
        return (
            payload.k.to_bytes(_COUNT_BYTES, "little") + self._write(payload) + places
        )

    def _decode(self, arrived: Arrived) -> Payload:
        data, length, layout = arrived.data, arrived.length, arrived.layout
        count = int.from_bytes(data[:_COUNT_BYTES], "little")
        if len(data) < _COUNT_BYTES or not 1 <= count <= length:
            raise InputError(f"a payload of 1 to {length} entries", got=count)
        values, symbols, used = self._read(data[_COUNT_BYTES:], count, length, layout)
        code = code_in_use(self, arrived.index_code)
        indices = decode_indices(code, data[_COUNT_BYTES + used :], length, count)
        if values is None:
            values = self._values(symbols, indices, length, layout)
        return Payload(
            self.label, length, indices, values, symbols=symbols, layout=layout
        )

    def _value_bytes(self, payload: Payload, *, ideal: bool) -> float:
        return 4.0 * payload.k

    def _write(self, payload: Payload) -> bytes:
        return convert_to_numpy(payload.values).astype("<f4").tobytes()

    def _read(
        self, data: bytes, count: int, length: int, layout: Layout | None
    ) -> tuple[Floats | None, Symbols, int]:
        if len(data) < 4 * count:
            raise InputError(
                f"a payload of at least {4 * count} bytes of values", got=len(data)
            )
        return (
            np.frombuffer(data[: 4 * count], "<f4").astype(np.float32),
            None,
            4 * count,
        )

    def _values(
        self, symbols: Symbols, indices: Indices, length: int, layout: Layout | None
    ) -> Floats:
        raise NotImplementedError


@dataclass(frozen=True)
class DGC(_Counted):
    """Deep gradient compression (Lin et al., 2018): momentum before the selection.

    u ← momentum·u + g, v ← v + u, with g clipped to norm `clip`; the largest |v|
    travel, and v and u become zero there (momentum factor masking). For the first
    `warmup` plays of a client more is sent: a quarter of all entries, then a sixteenth,
    …, never fewer than K.

    The receiver gets momentum-corrected updates: over many rounds they sum to 1/(1 −
    momentum) times the gradients, so the learning rate is that of momentum SGD.

    Left open or changed: the paper finds the threshold in a sample and then sends about
    K; here the K largest exactly (`top_k_indices`, which looks for its threshold in a
    sample too), so that sizes are known. Its clipping threshold is divided by √N for N
    workers; `clip` is the client's own. A play is what the paper calls an epoch of
    warm-up.
    """

    name = "dgc"

    momentum: float = 0.9
    clip: float | None = None
    warmup: int = 4
    privacy = ("client", "sample")

    def __post_init__(self) -> None:
        if self.momentum != 0:
            check_number("momentum", self.momentum, above=0)
        if self.momentum >= 1:
            raise InputError(
                "a number from 0 to below 1", where="momentum", got=self.momentum
            )
        if self.clip is not None:
            check_number("clip", self.clip, above=0)
        check_whole("warmup", self.warmup, 0, 2**31)

    def _play(self, play: EncodeCall) -> tuple[Payload, State]:
        gradient = require_vector(play.update)
        plays, (momentum, total) = _read_state(
            play.state, ("momentum", "total"), len(gradient), play.consume
        )
        plays = plays or 0
        factor = self._compute_clipping(gradient)
        for stretch in chunks(len(gradient)):
            velocity, g = momentum[stretch], gradient[stretch]
            velocity *= np.float32(self.momentum)
            velocity += g if factor == 1 else g * np.float32(factor)
            total[stretch] += velocity
        indices = top_k_indices(total, self._count(len(gradient), play.k, plays))
        velocities, values = momentum[indices], total[indices]
        momentum[indices] = 0
        total[indices] = 0
        after = Memory(plays + 1, {"momentum": momentum, "total": total})
        payload = Payload(
            strategy=self.label,
            length=len(gradient),
            indices=move_indices(indices, play.update),
            values=move_vector(values, find_device(play.update)),
            state=after,
            state_before=plays,
            kept=velocities,
        )
        return payload, after

    @override
    def undo(self, payload: Payload) -> Memory:
        arrays = {name: array.copy() for name, array in payload.state.arrays.items()}
        indices = convert_to_numpy(payload.indices)
        arrays["momentum"][indices] = payload.kept
        arrays["total"][indices] = convert_to_numpy(payload.values)
        return Memory(payload.state_before, arrays)

    @override
    def undo_earlier(self, state: State, undone: State, sent: Vector) -> State:
        return _add(state, "total", sent, state.facts - 1)

    @override
    def size_bytes(
        self, length: int, k: int, index_code: str, layout: Layout | None = None
    ) -> float | None:
        count = self.count_told(length, k, layout)
        if count is None:
            return None
        places = index_bytes(code_in_use(self, index_code), length, count)
        return None if places is None else _COUNT_BYTES + 4 * count + places

    @override
    def count_told(
        self, length: int, k: int, layout: Layout | None = None
    ) -> int | None:
        first, k = self._count(length, k, 0), check_k(k, length)
        return k if first == k else None  # the warm-up sends more

    def _count(self, length: int, k: int, plays: int) -> int:
        """Entries sent in a client's play of this number, from 0."""
        k = check_k(k, length)
        return max(k, int(length * 0.25 ** (plays + 1))) if plays < self.warmup else k

    def _compute_clipping(self, gradient: Floats) -> float:
        if self.clip is None:
            return 1.0
        norm = math.sqrt(
            sum(
                float(np.square(gradient[stretch], dtype=np.float64).sum())
                for stretch in chunks(len(gradient))
            )
        )
        if not math.isfinite(norm):
            refuse_non_finite(gradient)
        return min(1.0, self.clip / norm) if norm else 1.0


@dataclass(frozen=True)
class AdaComp(_Counted):
    """Adaptive residual compression (Chen et al., 2018): K follows from the data.

    With e what was not sent yet, G = e + g. In each bin of `bin` neighbours all entries
    travel whose |G + g| reaches the bin's largest |G|: many where the gradient moves
    on, few where it does not. Each is sent as its sign; the layer's mean of the bins'
    maxima is the magnitude of all of them. The error, of what was sent too, stays in e.
    K has no say.

    It keeps its error itself because the rule needs e + g and g apart. Left open by the
    paper: the bins (50 for convolutions, 500 for fully connected and recurrent layers
    there) take `conv_bin` for layers of more than two dimensions, `bin` for others and
    where no layout is given; bins do not reach over layers. A bin of zeros sends
    nothing; if no bin sends, the first entry does, as zero. Contraction is not
    guaranteed by the paper, only observed.
    """

    name = "adacomp"
    takes_k = False

    bin: int = 500
    conv_bin: int = 50
    privacy = ("client", "sample")

    def __post_init__(self) -> None:
        check_whole("bin", self.bin, 1, 2**31)
        check_whole("conv_bin", self.conv_bin, 1, 2**31)

    def _play(self, play: EncodeCall) -> tuple[Payload, State]:
        gradient = require_vector(play.update)
        _, (error,) = _read_state(play.state, ("error",), len(gradient), play.consume)
        chosen, scales = [], []
        for layer, size in self._layers(len(gradient), play.layout):
            indices, scale = _select_from_bins(error[layer], gradient[layer], size)
            chosen.append(indices + layer.start)
            scales.append(scale)
        indices = np.concatenate(chosen)
        if not indices.size:
            indices = np.zeros(1, np.int64)
        errors = error.take(indices)
        symbols = np.array(scales, np.float32), errors >= 0
        values = self._values(symbols, indices, len(gradient), play.layout)
        error[indices] = errors - values
        after = Memory(None, {"error": error})
        payload = Payload(
            strategy=self.label,
            length=len(gradient),
            indices=move_indices(indices, play.update),
            values=move_vector(values, find_device(play.update)),
            state=after,
            symbols=symbols,
            layout=play.layout,
            kept=errors,
        )
        return payload, after

    @override
    def undo(self, payload: Payload) -> Memory:
        error = payload.state.arrays["error"].copy()
        error[convert_to_numpy(payload.indices)] = payload.kept
        return Memory(None, {"error": error})

    @override
    def undo_earlier(self, state: State, undone: State, sent: Vector) -> State:
        return _add(state, "error", sent, None)

    @override
    def size_bytes(
        self, length: int, k: int, index_code: str, layout: Layout | None = None
    ) -> float | None:
        code_in_use(self, index_code)
        return None

    @override
    def count_told(
        self, length: int, k: int, layout: Layout | None = None
    ) -> int | None:
        return None

    def _value_bytes(self, payload: Payload, *, ideal: bool) -> float:
        scales, signs = payload.symbols
        return 4.0 * len(scales) + (len(signs) / 8 if ideal else -(-len(signs) // 8))

    def _write(self, payload: Payload) -> bytes:
        """Return the scales as 32-bit floats, then the signs, eight a byte."""
        scales, signs = payload.symbols
        raw: bytes = scales.astype("<f4").tobytes() + np.packbits(signs).tobytes()
        return raw

    def _read(
        self, data: bytes, count: int, length: int, layout: Layout | None
    ) -> tuple[Floats | None, Symbols, int]:
        head = 4 * len(list_layers(length, layout))
        used = head + -(-count // 8)
        if len(data) < used:
            raise InputError(
                f"a payload of at least {used} bytes of values", got=len(data)
            )
        scales = np.frombuffer(data[:head], "<f4").astype(np.float32)
        signs = np.unpackbits(np.frombuffer(data[head:used], np.uint8))[:count].astype(
            bool
        )
        return None, (scales, signs), used

    def _values(
        self, symbols: Symbols, indices: Indices, length: int, layout: Layout | None
    ) -> Floats:
        scales, signs = symbols
        bounds = [0, *(layer.stop for layer in list_layers(length, layout))]
        values: Floats = np.repeat(scales, np.diff(np.searchsorted(indices, bounds)))
        # a choice per entry is several times as slow
        values.view(np.uint32)[...] ^= np.left_shift(~signs, 31, dtype=np.uint32)
        return values

    def _layers(self, length: int, layout: Layout | None) -> list[tuple[slice, int]]:
        shapes = (
            [s for s in layout if math.prod(s)] if layout is not None else [(length,)]
        )
        sizes = [self.conv_bin if len(shape) > 2 else self.bin for shape in shapes]
        return list(zip(list_layers(length, layout), sizes, strict=True))


def _select_from_bins(
    error: Floats, gradient: Floats, size: int
) -> tuple[Indices, float]:
    """Add the gradient to the error; return the entries that travel and their size.

    The size is the mean of the bins' maxima.
    """
    reached, total, bins = [], 0.0, 0
    together = max(1, 2**16 // size) * size
    for start in range(0, len(error), together):
        sums, g = error[start : start + together], gradient[start : start + together]
        sums += g
        largest = np.maximum.reduceat(np.abs(sums), np.arange(0, len(sums), size))
        some = float(largest.sum(dtype=np.float64))
        if not math.isfinite(some):
            refuse_non_finite(sums)
        total, bins = total + some, bins + len(largest)
        limits = np.where(largest > 0, largest, np.float32(np.inf))
        reach = sums + g
        np.abs(reach, out=reach)
        places = np.flatnonzero(reach >= np.repeat(limits, size)[: len(sums)])
        places += start
        reached.append(places)
    return np.concatenate(reached), total / bins


class _Around(Codec):
    """A codec around another one, which does the sending.

    A subclass plays: it keeps one vector, and what the other one sends is added to it
    or taken away. That is undone by putting back the entries that were there before.
    """

    own_memory = True
    feedback = "own"
    inner: Codec | Plain

    def _check_inner(self) -> None:
        codec = codec_from_spec(self.inner, where="inner")
        if codec.feedback not in ("wanted", "optional") or codec.own_memory:
            raise InputError(
                "a codec without memory of its own that allows error feedback",
                where="inner",
                got=codec.label,
            )
        # as text, so that equal codecs have equal options however they were written
        object.__setattr__(self, "inner", codec.label)
        object.__setattr__(self, "takes_k", codec.takes_k)
        object.__setattr__(self, "shared", codec.shared)

    @property
    def _sender(self) -> Codec:
        return codec_from_spec(self.inner).under_feedback()

    def _move(self, vector: Floats, sent: Payload, change: np.ufunc) -> Floats:
        """Add what is sent to `vector` or take it away; return the entries before."""
        before: Floats = vector.copy() if sent.indices is None else vector[sent.indices]
        if sent.indices is None:
            for stretch, values in self._sender.blocks(sent):
                change(vector[stretch], values, out=vector[stretch])
        else:
            vector[sent.indices] = change(before, sent.values)
        return before

    def undo(self, payload: Payload) -> Memory:
        [(name, vector)], sent = payload.state.arrays.items(), payload.symbols
        vector = vector.copy()
        vector[slice(None) if sent.indices is None else sent.indices] = payload.kept
        return Memory(payload.state_before, {name: vector})

    def size_bytes(
        self, length: int, k: int, index_code: str, layout: Layout | None = None
    ) -> float | None:
        return self._sender.size_bytes(length, k, index_code, layout)

    def count_told(
        self, length: int, k: int, layout: Layout | None = None
    ) -> int | None:
        return self._sender.count_told(length, k, layout)

    def payload_bytes(self, payload: Payload, index_code: str) -> float:
        return self._sender.payload_bytes(payload.symbols, index_code)

    def to_bytes(self, payload: Payload, index_code: str) -> bytes:
        return self._sender.to_bytes(payload.symbols, index_code)


@dataclass(frozen=True)
class EF21(_Around):
    """Sends what changed (Richtárik et al., 2021): C(g − estimate).

    Estimate += what was sent.

    The receiver keeps the same estimate of every client and takes *it* for the client's
    update, so `decode` gives all of it, also where little travelled. C is `inner`, any
    codec that contracts.

    Left open by the paper: the first estimate; zero here, so the first play sends C(g)
    and no round is dense. To decode what travelled, the receiver needs the estimate
    before it: `from_bytes` takes the mirrored `state`.
    """

    name = "ef21"

    inner: Codec | Plain = "top-k"
    privacy = ("client", "sample")

    def __post_init__(self) -> None:
        self._check_inner()

    def _play(self, play: EncodeCall) -> tuple[Payload, State]:
        gradient = require_vector(play.update)
        before, (estimate,) = _read_state(
            play.state, ("estimate",), len(gradient), play.consume
        )
        sent, _ = self._sender.encode(
            gradient - estimate, before, play.rng, play.k, layout=play.layout
        )
        payload = self._received(sent, estimate, find_device(play.update))
        return payload, payload.state

    def _decode(self, arrived: Arrived) -> Payload:
        data, length, k, index_code, layout, state = arrived
        before, (estimate,) = _read_state(state, ("estimate",), length, False)
        sent = self._sender.from_bytes(
            data, length, k, index_code, layout=layout, state=before
        )
        return self._received(sent, estimate, None)

    def _received(self, sent: Payload, estimate: Floats, device: Device) -> Payload:
        before = self._move(estimate, sent, np.add)
        return Payload(
            strategy=self.label,
            length=sent.length,
            state=Memory(sent.state, {"estimate": estimate}),
            state_before=sent.state_before,
            symbols=sent,
            device=device,
            kept=before,
        )

    @override
    def undo_earlier(self, state: State, undone: State, sent: Vector) -> State:
        before = undone.arrays["estimate"]
        return _add(state, "estimate", before - convert_to_numpy(sent), undone.facts)

    @override
    def blocks(self, payload: Payload) -> Iterator[Block]:
        yield slice(0, payload.length), payload.state.arrays["estimate"]


@dataclass(frozen=True)
class DetachedEF(_Around):
    """Detached error feedback (Xu & Huang, 2022): gradients beside the weights.

    The error e of what a random selection left out is added to the next update, as
    ever; but that update is computed at the weights moved by `weight` times what e
    would still do to them, where the model will be when it has arrived. `point` says by
    how much; the host moves the weights (in units of the update: times −η for
    gradients, −1 for weight differences). With `weight` 0, or a host that does not move
    them, this is plain error feedback.

    The paper selects random blocks, the same for all workers, which suits all-reduce;
    here the entries are those of `inner`, each client's own, as an upload to a server
    needs no agreement. Its variant DEF-A evaluates at the weights moved by the mean
    error; that is the host's to do.
    """

    name = "detached-ef"

    inner: Codec | Plain = "random-k"
    weight: float = 0.3
    privacy = ("client", "sample")

    def __post_init__(self) -> None:
        self._check_inner()
        if self.weight != 0:
            check_number("weight", self.weight, above=0)
        if self.weight > 1:
            raise InputError("a number from 0 to 1", where="weight", got=self.weight)
        object.__setattr__(self, "moves_point", self.weight != 0)

    @override
    def point(self, state: State) -> Floats | None:
        if state is None or self.weight == 0:
            return None
        moved: Floats = np.float32(self.weight) * state.arrays["error"]
        return moved

    def _play(self, play: EncodeCall) -> tuple[Payload, State]:
        gradient = require_vector(play.update)
        refuse_non_finite(gradient)
        before, (error,) = _read_state(
            play.state, ("error",), len(gradient), play.consume
        )
        error += gradient
        sent, after = self._sender.encode(
            error, before, play.rng, play.k, layout=play.layout
        )
        before_sending = self._move(error, sent, np.subtract)
        memory = Memory(after, {"error": error})
        return self._received(sent, memory, before_sending, play.update), memory

    def _decode(self, arrived: Arrived) -> Payload:
        data, length, k, index_code, layout, state = arrived
        before = state.facts if isinstance(state, Memory) else state
        sent = self._sender.from_bytes(
            data, length, k, index_code, layout=layout, state=before
        )
        return self._received(sent, None, None, None)

    def _received(
        self, sent: Payload, memory: Memory | None, kept: Vector, update: Vector | None
    ) -> Payload:
        indices, values, device = sent.indices, sent.values, find_device(update)
        if indices is not None:
            indices, values = move_indices(indices, update), move_vector(values, device)
        return Payload(
            strategy=self.label,
            length=sent.length,
            indices=indices,
            values=values,
            state=memory,
            state_before=sent.state_before,
            seed=sent.seed,
            symbols=sent,
            layout=sent.layout,
            device=device,
            kept=kept,
        )

    @override
    def undo_earlier(self, state: State, undone: State, sent: Vector) -> State:
        return _add(state, "error", sent, undone.facts)

    @override
    def blocks(self, payload: Payload) -> Iterator[Block]:
        return self._sender.blocks(payload.symbols)


def _add(state: Memory, name: str, change: Vector, facts: Plain) -> Memory:
    """Return a memory with these facts, and `change` added to one of its vectors."""
    vector = state.arrays[name] + convert_to_numpy(change)
    return Memory(facts, {**state.arrays, name: vector})


def _read_state(
    state: State, names: tuple[str, ...], length: int, consume: bool
) -> tuple[Plain, list[Floats]]:
    """Return (facts, arrays) of a state, zeros before the first play.

    Copies unless they may be consumed.
    """
    if state is None:
        return None, [np.zeros(length, np.float32) for _ in names]
    arrays = [state.arrays[name] for name in names]
    for array in arrays:
        if len(array) != length:
            raise InputError(
                f"an update of {len(array)} entries, as its memory has", got=length
            )
    return state.facts, arrays if consume else [array.copy() for array in arrays]
