"""States of clients between participations: trees that are never changed in place.

So a state can be sent to another process, written while work goes on, and handed back
where an upload is lost. `simfed.learn.clients.Bench` makes new ones of old ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from simfed.compress.sparsifiers import State as CodecState
from simfed.ground.method import State
from simfed.ground.plain import Plain
from simfed.learn.tree import decode_tree
from simfed.learn.vectors import Change, as_received

Fate = Literal["merged", "lost", "undone"]
"""The fate of an upload. `lost`: what it carried returns to its client. `undone`: its
round was rolled back, and of what it carried becomes what the scenario says."""

Name = tuple[int, int]
"""(round, turn): tells apart the uploads of one client."""


class OpenUpload(NamedTuple):
    """The part of a client's state for an upload that is under way."""

    name: Name
    choice: str
    """The label of what its compressed fields travel by."""
    own: State | None
    """The method's own state before it; None: the client had not taken part."""
    memories: Mapping[str, CodecState]
    """Compressed field → what its codec is to remember if the upload is lost."""
    values: Mapping[str, Change]
    """The values that were sent."""


class ClientState(NamedTuple):
    """The state of one client; the empty one before it has taken part."""

    own: State | None = None
    """The method's own."""
    rests: Mapping[str, Tensor] = {}
    """Field → what compression has left out of it, shape (d,)."""
    memories: Mapping[str, Mapping[str, CodecState]] = {}
    """Field → strategy → what that codec remembers."""
    open: tuple[OpenUpload, ...] = ()
    """Uploads under way, the oldest first."""

    @property
    def arrived(self) -> State | None:
        """The method's own state without what is under way."""
        return self.open[0].own if self.open else self.own

    def memory(self, field: str, strategy: str) -> CodecState:
        """Return what a codec remembers of a field; None: nothing yet."""
        return self.memories.get(field, {}).get(strategy)


def decode_state(
    plain: Plain, arrays: Mapping[str, np.ndarray], device: torch.device
) -> ClientState:
    """Return the state of which `encode_tree` has written `plain` and the arrays.

    Args:
        plain: as JSON carries it.
        arrays: by the names that stand in `plain`.
        device: of the tensors.
    """
    own, rests, memories, under_way = decode_tree(plain, arrays, device)
    return ClientState(own, rests, memories, tuple(map(_read_open, under_way)))


def _read_open(parts: Plain) -> OpenUpload:
    name, choice, own, memories, values = parts
    changes = {field: as_received(value) for field, value in values.items()}
    return OpenUpload(tuple(name), choice, own, memories, changes)
