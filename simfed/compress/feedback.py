"""Error feedback: what is not sent stays with the client and is added to its next update.

With u = e + g (residual plus gradient) and the chosen indices I, the values u[I] travel and the new
residual is u with zeros at I; so after any number of rounds the sum of all gradients equals the sum
of all that was sent plus the residual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simfed.compress import wire
from simfed.compress.compressors import Compressor, State
from simfed.compress.selection import beside, is_tensor
from simfed.errors import InputError

__all__ = ["ErrorFeedback", "Payload", "undo", "with_error_feedback"]


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """What one client sends in one round, and what is needed to take it back."""

    strategy: str
    length: int
    """d, the length of the flat vector."""
    indices: Any
    """Sorted, distinct, int64, shape (K,)."""
    values: Any
    """The entries at `indices`, shape (K,), in the residual's dtype."""
    state: State
    """The strategy's state for this client's next play."""
    state_before: State
    """Its state before this play."""
    seed: int | None = None
    """See `Selection.seed`."""

    @property
    def k(self) -> int:
        """Entries sent."""
        return len(self.indices)

    def dense(self) -> Any:
        """The vector that the server rebuilds: the values in place, zeros elsewhere."""
        if is_tensor(self.values):
            return self.values.new_zeros(self.length).index_copy_(0, self.indices, self.values)
        vector = np.zeros(self.length, self.values.dtype)
        vector[self.indices] = self.values
        return vector

    def wire_bytes(self, index_code: str) -> float:
        """Its size on the wire, fractional for `ideal`."""
        return wire.size_bytes(self.strategy, self.indices, self.length, index_code)

    def encoded(self, index_code: str) -> bytes:
        """As it travels: `wire_bytes` bytes, read back by `wire.decode`. Values must be float32."""
        return wire.encode(
            self.strategy, self.indices, self.values, self.length, index_code, seed=self.seed
        )


class ErrorFeedback:
    """A strategy with error feedback; made by `with_error_feedback`.

    >>> from simfed.compress import TopK
    >>> feedback = with_error_feedback(TopK())
    >>> payload, residual = feedback.encode(np.array([1.0, -4.0, 2.0]), np.array([0.0, 1.0, 2.0]), 1)
    >>> payload.indices, payload.values, residual
    (array([2]), array([4.]), array([ 1., -3.,  0.]))
    """

    def __init__(self, compressor: Compressor) -> None:
        self.compressor = compressor

    def encode(
        self,
        update: Any,
        residual: Any,
        k: int,
        rng: np.random.Generator | None = None,
        *,
        state: State = None,
    ) -> tuple[Payload, Any]:
        """(payload, new residual); neither `update` nor `residual` is changed."""
        residual = residual.clone() if is_tensor(residual) else np.array(residual)
        return self.encode_in_place(update, residual, k, rng, state=state), residual

    def encode_in_place(
        self,
        update: Any,
        residual: Any,
        k: int,
        rng: np.random.Generator | None = None,
        *,
        state: State = None,
    ) -> Payload:
        """The payload; `residual` becomes the new residual without a dense copy.

        `update` is a flat vector, a sequence of arrays that make one up when flattened (gradients
        parameter by parameter), or None when `residual` already holds residual + gradient. NumPy
        arrays and torch tensors alike; the payload is of the residual's kind. `state` and `rng` are
        the strategy's, see `Compressor.select`.

        Raises: `InputError` for lengths that differ and for what the strategy refuses; `residual`
        then holds residual + gradient, or a part of it.
        """
        _accumulate(residual, update)
        chosen = self.compressor.select(residual, k, state=state, rng=rng)
        self._check_count(chosen.indices, residual, k)
        indices = _indices_beside(chosen.indices, residual)
        values = residual[indices]
        if is_tensor(residual):
            residual.index_fill_(0, indices, 0.0)
        else:
            residual[indices] = 0.0
        return Payload(
            strategy=self.compressor.name,
            length=len(residual),
            indices=indices,
            values=values,
            state=chosen.state,
            state_before=state,
            seed=chosen.seed,
        )

    def _check_count(self, indices: Any, residual: Any, k: int) -> None:
        """What is charged is K entries, so K entries must be sent."""
        kept = len(residual) if getattr(self.compressor, "keeps_all", False) else k
        if len(indices) != min(kept, len(residual)):
            raise InputError(
                f"{min(kept, len(residual))} indices chosen by strategy {self.compressor.name}",
                got=len(indices),
            )


def with_error_feedback(compressor: Compressor) -> ErrorFeedback:
    """`compressor` with residuals: `payload, residual = ….encode(update, residual, k, rng)`."""
    return ErrorFeedback(compressor)


def undo(residual: Any, payload: Payload) -> State:
    """The upload was lost: its values return to `residual` (in place) at the sent indices.

    Right after the play this restores residual + gradient bit for bit; after later plays it adds.
    Returns the strategy's state from before the play, for a client whose round is undone.
    """
    current = residual[payload.indices]
    if is_tensor(residual):
        import torch

        where: Any = torch.where
    else:
        where = np.where
    # Where nothing came since, the value itself: 0.0 + -0.0 would lose its sign.
    residual[payload.indices] = where(current == 0, payload.values, current + payload.values)
    return payload.state_before


def _accumulate(residual: Any, update: Any) -> None:
    """residual += update, in place."""
    if update is None:
        return
    parts = update if isinstance(update, (list, tuple)) else [update]
    flat = [_flat_beside(part, residual) for part in parts]
    length = sum(map(len, flat))
    if length != len(residual):
        raise InputError(f"an update of {len(residual)} entries, as the residual has", got=length)
    start = 0
    for part in flat:
        residual[start : start + len(part)] += part
        start += len(part)


def _flat_beside(part: Any, residual: Any) -> Any:
    """`part` as a flat vector of the residual's kind; a view where memory allows."""
    if is_tensor(part):
        part = part.detach().reshape(-1)
        return part if is_tensor(residual) else part.numpy()
    return np.reshape(part, -1)


def _indices_beside(indices: Any, residual: Any) -> Any:
    """`indices` as a tensor on the residual's device where that is a tensor."""
    if not is_tensor(residual) or is_tensor(indices):
        return indices
    return beside(indices, residual.device)
