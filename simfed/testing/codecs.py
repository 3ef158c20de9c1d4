"""The contract of selections, value codecs and codecs, and how they are played."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from simfed.compress import (
    Chain,
    Codec,
    Memory,
    Payload,
    Sparsifier,
    ValueCodec,
    codec_from_spec,
    undo,
    with_error_feedback,
)
from simfed.compress.codec import Layout, wrap_as_codec
from simfed.ground.errors import InputError
from simfed.ground.registry import registry
from simfed.ground.seeding import Streams
from simfed.ground.vocabulary import INDEX_CODES
from simfed.testing.common import (
    no_global_randomness,
    put_through_json,
    read_bits,
    require,
)

_ROUNDS = 6


def check_codec(
    cls: Callable[..., Sparsifier | ValueCodec | Codec], **options: object
) -> None:
    """Check a codec class that is registered under its own name (`simfed.register`).

    A selection, a value codec or a whole codec, made as `cls(**options)`. For each:

    - its label makes the same codec again;
    - encoding is a function of update, state, rng, k and layout, and changes none of
      them: no global randomness, no memory of a client; the state may be written as
      JSON and arrays between plays;
    - under every index code the encoded payload has the charged size, which is the size
      known beforehand where one is; read back, it decodes to the same bits;
    - what the receiver gets is finite, and with error feedback (where it wants or
      allows it) nothing is lost: update = decoded + residual; an undone play gives the
      update back;
    - a NaN or an infinity is refused (a selection that does not look at the update need
      not).

    For a selection moreover:

    - `select` gives min(k, d) sorted, distinct int64 indices (all d with `keeps_all`)
      and leaves the update alone;
    - it is a function of update, k, state and rng: no global randomness, no memory of a
      client;
    - the state may be written as JSON and read back between two plays;
    - with `mirror`, the same indices come from the length, the state and the seed
      alone;
    - under every index code the encoded payload has the charged size and is read back;
    - with error feedback, an undone play leaves no trace.

    Args:
        cls: the class, or a function that makes an object of it.
        options: keywords with which it is made.

    Raises:
        AssertionError: at the first clause that it breaks, in one sentence.
    """
    name = cls(**options).name
    registered = name in registry("codec") and registry("codec").get(name) is cls
    require(
        registered, f"registered under its name: simfed.register('codec', {name!r}, …)"
    )
    with no_global_randomness():
        if hasattr(cls, "select"):
            for length in (1, 2, 7, 100, 1000):
                for k in (1, 3, length // 3 + 1, length, length + 5):
                    _check_plays(cls, length, k)
            _check_two_clients_do_not_meet(cls)
        accepted = [
            _check_codec(lambda: wrap_as_codec(cls(**options)), layout, k)
            for layout in _LAYOUTS
            for k in (1, 3, 1000)
        ]
    require(any(accepted), f"one of the layouts {_LAYOUTS} to be accepted")


def _check_plays(cls: Callable[..., Any], length: int, k: int) -> None:
    """Check several rounds of a selection under error feedback.

    Args:
        cls: makes the selection.
        length: d, of the update.
        k: entries asked for; may be more than there are.
    """
    codec, streams = cls(), Streams(k)
    feedback = with_error_feedback(codec)
    expected = length if getattr(codec, "keeps_all", False) else min(k, length)
    residual = np.zeros(length, np.float32)
    state = None
    for round, update in enumerate(_draw_updates(length, streams)):
        where = f"d = {length}, k = {k}, round {round}"
        total = residual + update
        try:
            rng = streams("play", round)
            payload = feedback.encode_in_place(update, residual, k, rng, state=state)
        except InputError as error:
            raise AssertionError(f"{error}; {where}") from None
        _check_indices(payload.indices, expected, length, where)
        untouched = np.array_equal(payload.values, total[payload.indices])
        sent = payload.dense()
        untouched = untouched and np.array_equal(
            residual, np.where(sent != 0, 0, total)
        )
        require(untouched, f"no change of the update; {where}")
        again, _ = with_error_feedback(cls()).encode(
            total,
            np.zeros_like(total),
            k,
            streams("play", round),
            state=put_through_json(state),
        )
        same = np.array_equal(again.indices, payload.indices)
        same = same and put_through_json(again.state) == put_through_json(payload.state)
        require(
            same, f"the same choice from the same update, k, state and rng; {where}"
        )
        _check_mirror(codec, payload, k, where)
        _check_wire(payload, k, where)
        state = payload.state
    undo(residual, payload)
    require(np.array_equal(residual, total), "an undone play to leave no trace")


def _draw_updates(length: int, streams: Streams) -> Iterator[Any]:
    """Yield updates with ties, zeros and signs, float32 of shape (length,).

    They are whole numbers, so that float32 sums are exact.
    """
    for round in range(_ROUNDS):
        scale = 0 if round == 2 else 3 + 1000 * (round % 2)
        yield (
            streams("update", round)
            .integers(-scale, scale + 1, length)
            .astype(np.float32)
        )


def _check_indices(indices: Any, expected: int, length: int, where: str) -> None:
    """Check the form of what a selection chose.

    Args:
        indices: to be sorted, distinct, int64 and flat.
        expected: how many.
        length: d; all are below it.
        where: the end of the sentence.
    """
    shaped = (
        isinstance(indices, np.ndarray)
        and indices.dtype == np.int64
        and indices.ndim == 1
    )
    require(shaped, f"a flat int64 array of indices; {where}")
    require(
        len(indices) == expected, f"{expected} indices, got {len(indices)}; {where}"
    )
    inside = indices[0] >= 0 and indices[-1] < length
    ordered = bool((indices[1:] > indices[:-1]).all())
    require(inside and ordered, f"sorted, distinct indices below {length}; {where}")


def _check_mirror(codec: Sparsifier, payload: Payload, k: int, where: str) -> None:
    """Check that a selection that does not look is made again from its seed."""
    mirror = getattr(codec, "mirror", None)
    if mirror is None:
        return
    require(payload.seed is not None, f"a seed beside the selection; {where}")
    mirrored = mirror(payload.length, k, state=payload.state_before, seed=payload.seed)
    same = (
        np.array_equal(mirrored.indices, payload.indices)
        and mirrored.state == payload.state
    )
    require(same, f"the same choice from mirror as from select; {where}")


def _check_wire(payload: Payload, k: int, where: str) -> None:
    """Check a selection's payload under every index code that has an encoder."""
    for code in INDEX_CODES:
        if code == "ideal":
            continue
        data = payload.encoded(code)
        where_code = f"index code {code}; {where}"
        require(
            len(data) == payload.wire_bytes(code),
            f"the charged size under {where_code}",
        )
        read = payload.codec.from_bytes(
            data, payload.length, k, code, state=payload.state_before
        )
        same = np.array_equal(read.indices, payload.indices)
        same = same and np.array_equal(read.values, payload.values)
        require(same, f"the decoder to read the payload back under {where_code}")


def _check_two_clients_do_not_meet(cls: Callable[..., Any]) -> None:
    """Check that one object serves two clients in turn as it serves either alone.

    Args:
        cls: makes the selection, which is played for both by turns.
    """
    codec = cls()
    pairs = [*zip(*(_play_selection(codec, client) for client in (0, 1)), strict=True)]
    for client in (0, 1):
        alone = [*_play_selection(codec, client)]
        same = [pair[client] for pair in pairs] == alone
        require(same, "no memory of a client but the state that comes in")


def _play_selection(codec: Sparsifier, client: int) -> Iterator[list[int]]:
    """Yield the indices that one client's rounds choose, from its own streams."""
    streams, state = Streams(client), None
    for round in range(_ROUNDS):
        update = streams("update", round).standard_normal(50).astype(np.float32)
        indices, state, _ = codec.select(
            update, 8, state=state, rng=streams("play", round)
        )
        yield indices.tolist()


_LAYOUTS = ([(1,)], [(7,)], [(3, 4), (5,)], [(20, 3, 3, 3), (20,), (10, 40), (10,)])


def _check_codec(make: Callable[[], Codec], layout: Layout, k: int) -> bool:
    """Play a codec for some rounds; return False where it refuses such updates.

    Args:
        make: makes the codec, as often as it is asked.
        layout: shapes of the layers of the update.
        k: entries asked for.

    Raises:
        AssertionError: at the first clause that it breaks.
    """
    codec, length = make(), sum(math.prod(shape) for shape in layout)
    label, read_again = codec.label, codec_from_spec(codec.label).label
    require(read_again == label, f"the same codec from {label!r}, got {read_again}")
    try:
        codec.size_bytes(length, k, "fixed", layout)
    except InputError:
        return False
    streams, state = Streams(k), None
    for round, update in enumerate(_draw_updates(length, streams)):
        where = f"{codec.label}, d = {length}, k = {k}, round {round}"
        before, argument = _copy_state(state), update.copy()
        payload, after = codec.encode(
            update, state, streams("play", round), min(k, length), layout=layout
        )
        require(np.array_equal(update, argument), f"no change of the update; {where}")
        same = read_bits(state) == read_bits(before)
        require(same, f"no change of the state that it was given; {where}")
        again, last = make().encode(
            argument,
            _copy_state(before),
            streams("play", round),
            min(k, length),
            layout=layout,
        )
        same = np.array_equal(again.dense(), payload.dense())
        same = same and read_bits(last) == read_bits(after)
        require(
            same, f"the same payload from the same update, state, rng and k; {where}"
        )
        decoded = codec.decode(payload)
        sound = decoded.dtype == np.float32 and decoded.shape == update.shape
        require(
            sound and bool(np.isfinite(decoded).all()),
            f"a finite float32 update; {where}",
        )
        _check_bytes(codec, payload, min(k, length), before, where)
        if codec.feedback in ("wanted", "optional"):
            _check_residual(
                codec, update, before, streams("play", round), min(k, length), layout
            )
        else:
            refused = _refuses(partial(with_error_feedback, codec))
            require(refused, f"{codec.label} to be refused by with_error_feedback")
        state = after
    for wrong in (math.nan, math.inf):
        if isinstance(codec, Chain) and codec.values is None:
            break  # need not look
        argument = update.copy()
        argument[length // 2] = wrong
        play = argument, state, streams("play", 0), min(k, length)
        refused = _refuses(partial(codec.encode, *play, layout=layout))
        require(refused, f"{codec.label} to refuse {wrong}")
    return True


def _refuses(call: Callable[[], object]) -> bool:
    """Return whether a call raises an `InputError`."""
    try:
        call()
    except InputError:
        return True
    return False


def _check_bytes(
    codec: Codec, payload: Payload, k: int, before: Any, where: str
) -> None:
    """Check the sizes of a payload under every index code, and what is read back.

    Args:
        codec: that made it.
        payload: of one play.
        k: entries asked for.
        before: the sender's state before the play.
        where: the end of the sentence.
    """
    decoded, length, layout = codec.decode(payload), payload.length, payload.layout
    require(
        0 < codec.payload_bytes(payload, "ideal") < math.inf, f"an ideal size; {where}"
    )
    for code in INDEX_CODES:
        stated = codec.size_bytes(length, k, code, layout)
        size = codec.payload_bytes(payload, code)
        require(
            stated in (None, size),
            f"{stated} bytes as known, got {size}; {code}, {where}",
        )
        if code == "ideal":
            continue
        data = codec.to_bytes(payload, code)
        require(
            len(data) == size,
            f"the charged size {size}, got {len(data)}; {code}, {where}",
        )
        read = codec.from_bytes(data, length, k, code, layout=layout, state=before)
        same = codec.decode(read).tobytes() == decoded.tobytes()
        require(same, f"the decoder to read the payload back under {code}; {where}")


def _check_residual(
    codec: Codec,
    update: Any,
    state: Any,
    rng: np.random.Generator,
    k: int,
    layout: Layout,
) -> None:
    """Check that what is not sent stays in the residual, and undoing gives it back.

    Args:
        codec: one that allows error feedback.
        update: shape (d,), not changed.
        state: before the play.
        rng: of the play.
        k: entries asked for.
        layout: shapes of the layers.
    """
    feedback, residual = with_error_feedback(codec), update.copy()
    payload = feedback.encode_in_place(
        None, residual, k, rng, state=state, layout=layout
    )
    expected = update - payload.dense()
    require(
        np.array_equal(residual, expected),
        f"update = decoded + residual; {codec.label}",
    )
    undo(residual, payload)
    slack = 1e-5 * float(np.abs(update).max() + np.abs(expected).max())
    given_back = bool((np.abs(residual - update) <= slack).all())
    require(given_back, f"an undone play to give the update back; {codec.label}")


def _copy_state(state: Any) -> Any:
    """Return a state as it comes back from a checkpoint: JSON, and copies of arrays."""
    if isinstance(state, Memory):
        arrays = {name: np.array(array) for name, array in state.arrays.items()}
        return Memory(put_through_json(state.facts), arrays)
    return put_through_json(state)
