"""Error feedback: what is not sent stays with the client for its next update.

With u = e + g (residual plus gradient) and what the receiver takes it for, C(u), the
new residual is u − C(u). Where plain values travel that is u with zeros at the chosen
indices; so after any number of rounds the sum of all gradients equals the sum of all
that was sent plus the residual.

`feedback_for` gives the object that plays a codec on a client's buffer, with a residual
or without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from simfed.compress.codec import Chain, Codec, Layout, Payload, wrap_as_codec
from simfed.compress.sparsifiers import Sparsifier, State
from simfed.compress.vectors import Vector, is_tensor, move_vector
from simfed.ground.errors import InputError

__all__ = [
    "ErrorFeedback",
    "Payload",
    "WithoutFeedback",
    "feedback_for",
    "undo",
    "with_error_feedback",
]

Update: TypeAlias = Vector | Sequence[Vector] | None
"""A flat vector, arrays that make one up when flattened (gradients parameter by
parameter), or None where it has been added to the residual already."""


class ErrorFeedback:
    """A codec with error feedback; made by `with_error_feedback`.

    >>> from simfed.compress import TopK
    >>> feedback = with_error_feedback(TopK())
    >>> update, residual = np.array([1.0, -4.0, 2.0]), np.array([0.0, 1.0, 2.0])
    >>> payload, residual = feedback.encode(update, residual, 1)
    >>> payload.indices, payload.values, residual
    (array([2]), array([4.]), array([ 1., -3.,  0.]))
    """

    def __init__(self, codec: Sparsifier | Codec) -> None:
        codec = wrap_as_codec(codec)
        if codec.feedback not in ("wanted", "optional"):
            why = "keeps its own error" if codec.feedback == "own" else "goes without"
            raise InputError(
                "a codec that error feedback can be put around",
                got=codec.label,
                hint=f"it {why}",
            )
        self.codec = codec.under_feedback()
        """The codec that is played: the given one, or its variant that contracts."""
        self._plain = isinstance(self.codec, Chain) and self.codec.values is None

    def encode(
        self,
        update: Update,
        residual: Vector,
        k: int,
        rng: np.random.Generator | None = None,
        *,
        state: State = None,
        layout: Layout | None = None,
    ) -> tuple[Payload, Vector]:
        """Return (payload, new residual).

        Neither `update` nor `residual` is changed.
        """
        residual = residual.clone() if is_tensor(residual) else np.array(residual)
        return self.encode_in_place(
            update, residual, k, rng, state=state, layout=layout
        ), residual

    def encode_in_place(
        self,
        update: Update,
        residual: Vector,
        k: int,
        rng: np.random.Generator | None = None,
        *,
        state: State = None,
        layout: Layout | None = None,
    ) -> Payload:
        """Return the payload; `residual` becomes the new residual without a dense copy.

        The payload is of the residual's library. `state`, `rng` and `layout` are the
        codec's, see `Codec.encode`.

        Raises: `InputError` for lengths that differ and for what the codec refuses;
        `residual` then holds residual + gradient, or a part of it.
        """
        _add_update(residual, update)
        payload, _ = self.codec.encode(residual, state, rng, k, layout=layout)
        if payload.indices is None:
            for stretch, values in self.codec.blocks(payload):
                residual[stretch] -= move_vector(values, payload.device)
        elif not self._plain:
            residual[payload.indices] -= payload.values
        elif payload.k == payload.length:
            residual[:] = 0.0
        elif is_tensor(residual):
            residual.index_fill_(0, payload.indices, 0.0)
        else:
            residual[payload.indices] = 0.0
        return payload


class WithoutFeedback:
    """A codec played without a residual, as it keeps its own error or on purpose.

    It has the same methods as `ErrorFeedback`, so a client's work need not know which
    of the two it has. What the codec leaves out is gone, unless the codec remembers it.
    """

    def __init__(self, codec: Sparsifier | Codec) -> None:
        self.codec = wrap_as_codec(codec)

    def encode_in_place(
        self,
        update: Update,
        residual: Vector,
        k: int,
        rng: np.random.Generator | None = None,
        *,
        state: State = None,
        layout: Layout | None = None,
    ) -> Payload:
        """Return the payload.

        `residual`, which holds the gradient and nothing else, becomes zero.

        The arrays of `state` are written over: the payload's state goes on from them.
        """
        _add_update(residual, update)
        payload, _ = self.codec.encode(
            residual, state, rng, k, layout=layout, consume=True
        )
        residual[:] = 0.0
        return payload


def with_error_feedback(codec: Sparsifier | Codec) -> ErrorFeedback:
    """Return `codec` with residuals, for a selection, a value codec or any codec.

    Its use: `payload, residual = ….encode(update, residual, k, rng)`.

    Raises: `InputError` for a codec that keeps its own error or goes without.
    """
    return ErrorFeedback(codec)


def feedback_for(
    codec: Sparsifier | Codec, asked: bool | None = None
) -> ErrorFeedback | WithoutFeedback:
    """Return the player of a codec on a client's buffer.

    Args:
        codec: any; what it wants done with its error is its `feedback`.
        asked: False plays it without a residual (to see what that is good for), True
            with one or not at all; None: with one where the codec wants or allows it.

    Raises:
        InputError: True, of a codec that keeps its own error or goes without.

    >>> from simfed.compress import TopK
    >>> type(feedback_for(TopK())).__name__, type(feedback_for(TopK(), False)).__name__
    ('ErrorFeedback', 'WithoutFeedback')
    """
    wants = (
        wrap_as_codec(codec).feedback in ("wanted", "optional")
        if asked is None
        else asked
    )
    return ErrorFeedback(codec) if wants else WithoutFeedback(codec)


def undo(residual: Vector, payload: Payload, share: float = 1.0) -> State:
    """Take back a lost upload, and return the codec's state from before the play.

    Where plain values travelled, right after the play this restores residual + gradient
    bit for bit (other codecs: up to one rounding); after later plays it adds.

    Args:
        residual: shape (d,), changed in place.
        payload: the upload that was lost.
        share: the part of the upload that returns, 0 to 1. 1: all of it was lost; less:
            a server weighed a late upload down and used the rest.

    Returns:
        The codec's state from before the play, for a client whose round is undone.
    """
    if payload.indices is None:
        for stretch, values in payload.codec.blocks(payload):
            residual[stretch] += move_vector(values, payload.device) * share
        return payload.state_before
    values = payload.values if share == 1 else payload.values * share
    current = residual[payload.indices]
    if is_tensor(residual):
        import torch

        where: Any = torch.where
    else:
        where = np.where
    # Where nothing came since, the value itself: 0.0 + -0.0 would lose its sign.
    residual[payload.indices] = where(current == 0, values, current + values)
    return payload.state_before


def _add_update(residual: Vector, update: Update) -> None:
    """Add the update to the residual in place."""
    if update is None:
        return
    parts = update if isinstance(update, (list, tuple)) else [update]
    flat = [_flatten_part(part, residual) for part in parts]
    length = sum(map(len, flat))
    if length != len(residual):
        raise InputError(
            f"an update of {len(residual)} entries, as the residual has", got=length
        )
    start = 0
    for part in flat:
        residual[start : start + len(part)] += part
        start += len(part)


def _flatten_part(part: Vector, residual: Vector) -> Vector:
    """Return `part` as a flat vector of the residual's kind.

    A view where memory allows.
    """
    if is_tensor(part):
        part = part.detach().reshape(-1)
        return part if is_tensor(residual) else part.numpy()
    return np.reshape(part, -1)
