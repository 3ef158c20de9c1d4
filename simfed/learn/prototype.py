"""The arrays of one prototype: the server's model, and one row per client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from simfed.learn.flat import FlatModel
from simfed.learn.memory import Arena
from simfed.learn.passes import passes_of

__all__ = ["Prototype"]

_UPLOAD = ("indices", "values", "statistics")


class Prototype:
    """One architecture: the server's weights, and for each client a row of what outlives its work.

    Residuals are the only dense state per client; the other rows hold what is on its way to the
    server (K indices and values, running statistics, logits on the public set). `spare` rows more
    are for uploads that wait for a merge while their client is at work again.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[], nn.Module],
        clients: NDArray[np.int64],
        arena: Arena,
        *,
        input_shape: tuple[int, ...],
        may_draw: bool,
        k: int | None,
        public: int,
        classes: int,
        parts: int,
        spare: int = 0,
        changes: bool = False,
    ) -> None:
        """`changes`: they travel down, in place of models, so that clients hold other weights than
        the server."""
        self.name = name
        self.clients = clients
        self.may_draw = may_draw
        """Whether the module may draw random numbers in training, as dropout does."""
        self.row = {int(client): row for row, client in enumerate(clients)}
        device = arena.zeros(0).device
        module = build().to(device)
        own = FlatModel(module)
        d, b, n = own.weights.numel(), own.statistics.numel(), len(clients)
        self.parameters = d
        """The length of the flat gradient."""
        self.buffers = b
        """Number of running statistics."""
        self.server = FlatModel(module, weights=arena.zeros(d), statistics=arena.zeros(b))
        self.shapes = self.server.shapes
        """Of the layers, for codecs that look at them."""
        self.held = self.server
        """What clients that are up to date hold; statistics are the server's."""
        if changes:
            self.held = FlatModel(
                build().to(device), weights=arena.zeros(d), statistics=self.server.statistics
            )
        self.scratch = FlatModel(build().to(device))
        """This process's stand-in for its clients; a copy of the server's weights between units."""
        self.passes = passes_of(self.server, input_shape)
        self.held_passes = passes_of(self.held, input_shape) if changes else self.passes
        self.client_passes = passes_of(self.scratch, input_shape)
        self.scratch_epoch = -1
        """The epoch of the server's weights that the scratch copy holds."""
        self.residuals = arena.zeros(n, d)
        self.used: set[int] = set()
        """Rows of clients that have worked; the others' pages were never touched."""
        self.capacity = d if k is None else min(k, d)
        self.indices = arena.zeros(n + spare, self.capacity, dtype=torch.int64)
        self.values = arena.zeros(n + spare, self.capacity)
        self.statistics = arena.zeros(n + spare, b)
        self.logits = arena.zeros(n + spare, public, classes)
        self._every: Tensor | None = None
        """The indices of all entries."""
        self._spare = list(range(n, n + spare))
        self.parts = self.passes.parts(public, parts)
        """Units in which it is distilled."""
        self.gradients = arena.zeros(self.parts, d if public else 0)
        """Distillation gradients of the parts of the public set."""
        self.epoch = arena.zeros(1, dtype=torch.int64, on_host=True)
        """Counts the changes of the server's weights."""
        self._remembered: tuple[Tensor, ...] | None = None
        self._scratch_like = self.server

    @property
    def _apart(self) -> tuple[Tensor, ...]:
        """What clients hold, where that is not the server's model."""
        return () if self.held is self.server else (self.held.weights,)

    def moved(self) -> None:
        """The server's weights were changed."""
        self.epoch += 1

    def remember(self) -> None:
        """Keep the server's weights and statistics as they are now."""
        kept = (self.server.weights, self.server.statistics, *self._apart)
        if self._remembered is None:
            self._remembered = tuple(of.clone() for of in kept)
        for memory, now in zip(self._remembered, kept, strict=True):
            memory.copy_(now)

    def return_to_remembered(self) -> None:
        """Go back to what `remember` kept."""
        assert self._remembered is not None
        kept = (self.server.weights, self.server.statistics, *self._apart)
        for now, memory in zip(kept, self._remembered, strict=True):
            now.copy_(memory)
        self.moved()

    def fresh_scratch(self, like: FlatModel) -> FlatModel:
        """The scratch model with the weights of `like` (`server` or `held`), and its statistics."""
        epoch = int(self.epoch)
        if self.scratch_epoch != epoch or self._scratch_like is not like:
            self.scratch.weights.copy_(like.weights)
            self.scratch_epoch, self._scratch_like = epoch, like
        self.scratch.statistics.copy_(self.server.statistics)
        return self.scratch

    def sent(self, row: int, entries: int) -> tuple[Tensor, Tensor]:
        """Views of the indices and values on their way in this row; of all entries, which lie in
        order, the indices are in no row."""
        values = self.values[row, :entries]
        if entries < self.parameters:
            return self.indices[row, :entries], values
        if self._every is None:
            self._every = torch.arange(entries, device=values.device)
        return self._every, values

    def set_aside(self, row: int) -> int:
        """Move what is on its way in a client's row to a spare row, which is given."""
        place = self._spare.pop()
        for arrays in (self.indices, self.values, self.statistics, self.logits):
            arrays[place] = arrays[row]
        return place

    def free(self, row: int) -> None:
        """What was in this row has arrived or is lost."""
        if row >= len(self.clients):
            self._spare.append(row)

    def arrays(self, busy: Sequence[int]) -> dict[str, NDArray[Any]]:
        """What a checkpoint keeps, as name → copy: the server's model, the rows of clients that
        have a residual, and the `busy` rows, with uploads under way."""
        kept = {"weights": self.server.weights, "statistics": self.server.statistics}
        kept |= dict(zip(("held",), self._apart, strict=False))
        rows = torch.tensor(sorted(self.used), dtype=torch.int64)
        kept |= {"residual_rows": rows, "residuals": self.residuals[rows]}
        rows = torch.tensor(busy, dtype=torch.int64)
        kept |= {f"upload_{key}": getattr(self, key)[rows] for key in _UPLOAD} | {
            "upload_rows": rows
        }
        return {f"{self.name}/{key}": value.cpu().numpy().copy() for key, value in kept.items()}

    def restore(self, arrays: Mapping[str, Any]) -> None:
        """Inverse of `arrays`."""
        kept = {
            key: torch.from_numpy(np.array(arrays[f"{self.name}/{key}"]))
            for key in (
                "weights",
                "statistics",
                "residual_rows",
                "residuals",
                "upload_rows",
                *[f"upload_{key}" for key in _UPLOAD],
            )
        }
        self.server.weights.copy_(kept["weights"])
        self.server.statistics.copy_(kept["statistics"])
        for held in self._apart:
            held.copy_(torch.from_numpy(np.array(arrays[f"{self.name}/held"])))
        for row in self.used:
            self.residuals[row].zero_()
        self.used = set(kept["residual_rows"].tolist())
        self.residuals[kept["residual_rows"]] = kept["residuals"].to(self.residuals.device)
        for key in _UPLOAD:
            rows = getattr(self, key)
            rows[kept["upload_rows"]] = kept[f"upload_{key}"].to(rows.device)
        taken = set(kept["upload_rows"].tolist())
        spare = range(len(self.clients), len(self.indices))
        self._spare = [row for row in spare if row not in taken]
        self.moved()
