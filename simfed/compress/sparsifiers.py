"""Compression strategies: which K of d entries a client sends.

No strategy holds a client's state.

A strategy is one class with a `name` and `select`; state comes in and goes out.
Residuals are not its business: `simfed.compress.with_error_feedback` adds them to any
strategy.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from typing_extensions import override

from simfed.compress.permutation import make_generator, permute
from simfed.compress.selection import check_k, random_k_indices, top_k_indices
from simfed.compress.vectors import Indices, Vector, is_tensor
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain

State: TypeAlias = Plain
"""The memory of a strategy about one client between plays: None at first, always
JSON-able."""


class Selection(NamedTuple):
    """The result of `select`: indices, the state afterwards, and the indices' seed.

    What a selection of your own returns. Values are not in it: whoever plays the codec
    takes them from the update at these indices.
    """

    indices: Vector
    """Sorted, distinct, int64; a tensor on the device of an update that is one, or
    NumPy."""
    state: State = None
    seed: int | None = None
    """The 64-bit number from which `mirror` makes the same indices elsewhere (index
    code `seeded`), for strategies that do not look at the update."""


@runtime_checkable
class Sparsifier(Protocol):
    """A compression strategy; made without arguments by its registry class.

    Optional members tell the wire more: `keeps_all = True` says that all d entries
    travel whatever k is, so that no indices need to; and strategies that do not look at
    the update are `Mirrored`, so that the server can repeat their choice. A third,
    `shared = True`, asks the host for the same random numbers for all clients of a
    prototype in a round.
    """

    name: str

    def select(
        self,
        update: Vector,
        k: int,
        *,
        state: State = None,
        rng: np.random.Generator | None = None,
    ) -> Selection:
        """Return min(k, d) indices of the flat vector `update`, which is not changed.

        `state` is what the same client's last play returned (None before the first);
        `rng` is the generator keyed by strategy, client and round.
        """
        ...


@runtime_checkable
class Mirrored(Protocol):
    """A codec whose choice can be made again from the seed that it drew."""

    def mirror(self, length: int, k: int, *, state: State, seed: int) -> Selection:
        """Return the choice of `select` in `state` when it draws `seed`."""
        ...


class TopK:
    """The K entries of largest magnitude; ties go to the lowest index.

    Exact, deterministic.

    >>> TopK().select(np.array([1.0, -4.0, 2.0]), 2).indices
    array([1, 2])
    """

    name = "top-k"
    privacy = ("client", "sample")

    def select(
        self,
        update: Vector,
        k: int,
        *,
        state: State = None,
        rng: np.random.Generator | None = None,
    ) -> Selection:
        """Return the min(k, d) entries of the largest magnitude."""
        return Selection(top_k_indices(update, k), state)


class Dense:
    """The selection of all entries, whatever K is: no compression.

    >>> Dense().select(np.array([1.0, -4.0, 2.0]), 2).indices
    array([0, 1, 2])
    """

    name = "dense"
    keeps_all = True
    privacy = ("client", "sample")

    def select(
        self,
        update: Vector,
        k: int,
        *,
        state: State = None,
        rng: np.random.Generator | None = None,
    ) -> Selection:
        """Return all entries."""
        if is_tensor(update):
            import torch

            return Selection(torch.arange(len(update), device=update.device), state)
        return Selection(_list_indices(len(update)), state)


@lru_cache(maxsize=2)
def _list_indices(count: int) -> Indices:
    """Return all indices below `count`, shared by clients and never written to."""
    return np.arange(count)


class _Blind:
    """The base of strategies that make their indices from a 64-bit seed alone."""

    name: str

    def select(
        self,
        update: Vector,
        k: int,
        *,
        state: State = None,
        rng: np.random.Generator | None = None,
    ) -> Selection:
        if rng is None:
            raise InputError(f"a generator `rng` for {self.name}", got=rng)
        seed = int(rng.integers(2**64, dtype=np.uint64))
        return self.mirror(len(update), k, state=state, seed=seed)

    def mirror(self, length: int, k: int, *, state: State, seed: int) -> Selection:
        raise NotImplementedError


class RandomK(_Blind):
    """K indices uniformly without replacement.

    The values are not scaled up; the residual makes up.

    >>> RandomK().select(np.zeros(10), 4, rng=np.random.default_rng(0)).indices.size
    4
    """

    name = "random-k"
    privacy = ("client", "sample")

    @override
    def mirror(self, length: int, k: int, *, state: State, seed: int) -> Selection:
        return Selection(
            random_k_indices(length, k, make_generator(seed, 1)), state, seed
        )


class SharedRandomK(RandomK):
    """Random-K with one draw per round for all clients that have a model in common.

    The server knows which entries come, so that nothing but they needs noise under
    privacy, and sums of uploads stay as short as an upload. The host of the learning
    side keys `rng` by round and prototype in place of round and client.
    """

    name = "shared-random-k"
    shared = True
    timed_as = "random-k"
    privacy = ("client", "sample")


class PeriodicK(_Blind):
    """A selection of every coordinate once per period, in random order.

    A play takes the next K coordinates of the period's order. When fewer than K are
    left, it takes all of them and fills up with random ones already visited in this
    period; the next play then starts a new period. K may change from play to play.

    The order is computed (`permute`), so a client remembers two numbers only: its state
    is `[key, position]`, or None where the next play starts a period. To undo a play,
    go on from the state before it.

    >>> codec, update, state = PeriodicK(), np.zeros(6), None
    >>> for t in range(2):
    ...     chosen = codec.select(update, 4, state=state, rng=np.random.default_rng(t))
    ...     state = chosen.state
    ...     print(chosen.indices.size, state is None)
    4 False
    4 True
    """

    name = "periodic-k"
    privacy = ("client", "sample")

    @override
    def mirror(self, length: int, k: int, *, state: State, seed: int) -> Selection:
        k = check_k(k, length)
        key, position = (seed, 0) if state is None else state
        unvisited = min(k, length - position)
        positions = np.arange(position, position + unvisited)
        if unvisited < k:
            fill = random_k_indices(position, k - unvisited, make_generator(seed, 2))
            positions = np.concatenate([fill, positions])
        after = position + unvisited
        return Selection(
            np.sort(permute(positions, length, key)),
            [key, after] if after < length else None,
            seed,
        )
