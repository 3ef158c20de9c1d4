"""Codecs of low rank: a layer's matrix as the product of two thin ones.

A layer of two or more dimensions is the matrix of its first dimension by all others. It
travels as r·(rows + columns) 32-bit floats where that is less than the matrix; the
other layers travel whole. The shapes come as `layout`, without which there is nothing
to factor. K has no say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from simfed.compress.codec import Arrived, Codec, EncodeCall, Layout, Memory, Payload
from simfed.compress.index_codes import INDEX_CODES, code_in_use
from simfed.compress.options import check_number, check_whole
from simfed.compress.selection import refuse_non_finite
from simfed.compress.sparsifiers import State
from simfed.compress.vectors import (
    Block,
    Floats,
    find_device,
    list_layers,
    require_vector,
)
from simfed.ground.errors import InputError


class Factors(NamedTuple):
    """A matrix as left @ right.T; a layer that travels whole has no right."""

    left: Floats
    right: Floats | None


class _LowRank(Codec):
    """The base of low-rank codecs: factors, and their bytes."""

    feedback = "wanted"
    takes_k = False
    is_dense = True
    rank: int | None

    def _play(self, play: EncodeCall) -> tuple[Payload, State]:
        vector = require_vector(play.update)
        shapes = self._shapes(len(vector), play.layout)
        stretches = list_layers(len(vector), play.layout)
        symbols = [
            self._factor(vector[stretch], shape, f"right{i}", play)
            for i, (stretch, shape) in enumerate(zip(stretches, shapes, strict=True))
        ]
        after = play.state
        if self.own_memory:
            rights = {f"right{i}": one.right for i, one in enumerate(symbols)}
            after = Memory(
                None, {name: it for name, it in rights.items() if it is not None}
            )
        return Payload(
            strategy=self.label,
            length=len(vector),
            state=after,
            state_before=play.state,
            symbols=symbols,
            layout=play.layout,
            device=find_device(play.update),
        ), after

    def _factor(
        self, values: Floats, shape: tuple[int, int], name: str, play: EncodeCall
    ) -> Factors:
        """Return a layer's factors.

        Args:
            values: of the layer, flat.
            shape: (rows, columns) of its matrix.
            name: of its right factor in a state that has it.
            play: the arguments of `encode`, for state and generator.
        """
        raise NotImplementedError

    def blocks(self, payload: Payload) -> Iterator[Block]:
        for stretch, factors in zip(
            list_layers(payload.length, payload.layout), payload.symbols, strict=True
        ):
            if factors.right is None:
                yield stretch, factors.left.reshape(-1)
            else:
                yield from _multiply_factors(factors.left, factors.right, stretch.start)

    def size_bytes(
        self, length: int, k: int, index_code: str, layout: Layout | None = None
    ) -> float | None:
        code_in_use(_AllEntries, index_code)
        shapes = self._shapes(length, layout)
        if self.rank is None:
            return None
        return 4.0 * sum(_count_floats(shape, self._rank(shape)) for shape in shapes)

    def payload_bytes(self, payload: Payload, index_code: str) -> float:
        code_in_use(_AllEntries, index_code)
        floats = sum(
            f.size for factors in payload.symbols for f in factors if f is not None
        )
        return float(4 * floats) + self._head_bytes(payload.length, payload.layout)

    def to_bytes(self, payload: Payload, index_code: str) -> bytes:
        if index_code == "ideal" or index_code not in INDEX_CODES:
            raise InputError("an index code with an encoder", got=index_code)
        parts = [f for factors in payload.symbols for f in factors if f is not None]
        body = b"".join(np.ascontiguousarray(f).astype("<f4").tobytes() for f in parts)
        return self._head(payload) + body

    def _decode(self, arrived: Arrived) -> Payload:
        data, length, layout = arrived.data, arrived.length, arrived.layout
        shapes = self._shapes(length, layout)
        ranks, used = self._read_ranks(data, shapes)
        size = used + 4 * sum(
            _count_floats(s, r) for s, r in zip(shapes, ranks, strict=True)
        )
        if len(data) != size:
            raise InputError(f"a payload of {size} bytes", got=len(data))
        floats = np.frombuffer(data[used:], "<f4").astype(np.float32)
        symbols, start = [], 0
        for (rows, columns), rank in zip(shapes, ranks, strict=True):
            ends = np.cumsum([start, *_list_sizes((rows, columns), rank)])
            parts = [floats[a:b] for a, b in pairwise(ends)]
            if rank:
                symbols.append(
                    Factors(parts[0].reshape(rows, rank), parts[1].reshape(-1, rank))
                )
            else:
                symbols.append(Factors(parts[0], None))
            start = ends[-1]
        return Payload(self.label, length, symbols=symbols, layout=layout)

    def _shapes(self, length: int, layout: Layout | None) -> list[tuple[int, int]]:
        """Return (rows, columns) of every layer that is not empty.

        Those that are no matrix are (entries, 1).

        Raises:
            InputError: no layout, or a rank that no matrix has.
        """
        if layout is None:
            raise InputError(
                f"the shapes of the layers (layout) for {self.name}", got=layout
            )
        list_layers(length, layout)
        shapes = [
            (s[0], math.prod(s[1:])) if len(s) > 1 else (math.prod(s), 1)
            for s in layout
            if math.prod(s)
        ]
        most = max(min(shape) for shape in shapes)
        if self.rank is not None and self.rank > most:
            raise InputError(
                f"a rank of at most {most}, that of the largest matrix",
                where=f"{self.name}: rank",
                got=self.rank,
            )
        return shapes

    def _rank(self, shape: tuple[int, int]) -> int:
        """Return the rank that a matrix travels with; 0 for the whole matrix."""
        assert self.rank is not None
        return self.rank if _is_smaller(shape, self.rank) else 0

    def _head_bytes(self, length: int, layout: Layout | None) -> int:
        """Return the bytes in front of the factors that say their ranks."""
        return 0

    def _head(self, payload: Payload) -> bytes:
        """Return the ranks of a payload's matrices as bytes, where it has a head."""
        return b""

    def _read_ranks(
        self, data: bytes, shapes: list[tuple[int, int]]
    ) -> tuple[list[int], int]:
        """Return (rank of each matrix, bytes read); 0 of one that travels whole."""
        return [self._rank(shape) for shape in shapes], 0


@dataclass(frozen=True)
class PowerSGD(_LowRank):
    """One step of power iteration per play (Vogels et al., 2019).

    P = orthogonalised M·Q, then Q = Mᵀ·P; the receiver takes P·Qᵀ, the projection of M
    on the columns of P, so the error is never larger than M. Q stays for the next play
    (warm start); the first is drawn from a normal distribution.

    Changed for a server: in the paper workers average P and Q between the two products;
    here each client factors its own update. Left open: P is made orthonormal by
    Householder reflections (QR). Two products of d·r multiplications, and a third to
    decode.
    """

    name = "powersgd"
    own_memory = True

    rank: int = 2
    privacy = ("client", "sample")

    def __post_init__(self) -> None:
        check_whole("rank", self.rank, 1, 2**31)

    @override
    def _factor(
        self, values: Floats, shape: tuple[int, int], name: str, play: EncodeCall
    ) -> Factors:
        if not self._rank(shape):
            refuse_non_finite(values)
            return Factors(values.copy(), None)
        right = None if play.state is None else play.state.arrays[name]
        # of a matrix that was zero nothing is left to start from
        if right is None or not right.any():
            if play.rng is None:
                raise InputError(f"a generator `rng` for {self.name}", got=None)
            right = play.rng.standard_normal((shape[1], self.rank), dtype=np.float32)
        return _project_matrix(values.reshape(shape), right)


@dataclass(frozen=True)
class SVD(_LowRank):
    """The best approximation of a rank or of a share of the energy (Wu et al., 2022).

    Either `rank` singular values per matrix, or the fewest whose squares make up more
    than the share `energy` of all (the default: 0.95), as in FedKD. U·Σ and V travel.
    With `energy` the size depends on the data and each matrix is preceded by its rank
    in 2 bytes; where its factors would be no smaller, it travels whole.

    Settled here: the factors come from the eigenvectors of M·Mᵀ (of the smaller side),
    several times as fast as a decomposition of M; singular values below a thousandth of
    the largest lose accuracy, but what is sent is always an orthogonal projection of M,
    so the error contracts all the same.
    """

    name = "svd"

    rank: int | None = None
    energy: float | None = None
    privacy = ("client", "sample")

    def __post_init__(self) -> None:
        if self.rank is not None and self.energy is not None:
            got = f"rank {self.rank} and energy {self.energy}"
            raise InputError("either a rank or an energy share", got=got)
        if self.rank is None and self.energy is None:
            object.__setattr__(self, "energy", 0.95)
        if self.rank is not None:
            check_whole("rank", self.rank, 1, 2**31)
        if self.energy is not None:
            check_number("energy", self.energy, above=0)
            if self.energy > 1:
                raise InputError(
                    "a share above 0, at most 1", where="energy", got=self.energy
                )

    @override
    def _factor(
        self, values: Floats, shape: tuple[int, int], name: str, play: EncodeCall
    ) -> Factors:
        refuse_non_finite(values)
        if not _is_smaller(shape, self.rank or 1):
            return Factors(values.copy(), None)
        matrix = values.reshape(shape)
        wide = shape[0] <= shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            gram = matrix @ matrix.T if wide else matrix.T @ matrix
        if not np.isfinite(gram).all():  # squares beyond 32 bits
            exact = matrix.astype(np.float64)
            gram = exact @ exact.T if wide else exact.T @ exact
        squares, vectors = np.linalg.eigh(gram.astype(np.float64))
        rank = self.rank or _choose_rank(
            np.maximum(squares[::-1], 0), self.energy or 1.0
        )
        if not _is_smaller(shape, rank):
            return Factors(values.copy(), None)
        basis = np.ascontiguousarray(vectors[:, ::-1][:, :rank], np.float32)
        other = matrix.T @ basis if wide else matrix @ basis
        return Factors(basis, other) if wide else Factors(other, basis)

    def _head_bytes(self, length: int, layout: Layout | None) -> int:
        return 0 if self.rank is not None else 2 * len(list_layers(length, layout))

    def _head(self, payload: Payload) -> bytes:
        if self.rank is not None:
            return b""
        ranks = [0 if f.right is None else f.right.shape[1] for f in payload.symbols]
        return np.array(ranks, "<u2").tobytes()

    def _read_ranks(
        self, data: bytes, shapes: list[tuple[int, int]]
    ) -> tuple[list[int], int]:
        if self.rank is not None:
            return super()._read_ranks(data, shapes)
        used = 2 * len(shapes)
        if len(data) < used:
            raise InputError(f"a payload of at least {used} bytes", got=len(data))
        ranks: list[int] = np.frombuffer(data[:used], "<u2").tolist()
        for shape, rank in zip(shapes, ranks, strict=True):
            if rank and not _is_smaller(shape, rank):
                raise InputError(
                    f"a rank that a matrix of {shape} is sent with", got=rank
                )
        return ranks, used


class _AllEntries:
    """Stands for a selection that keeps every entry, so that no indices travel."""

    keeps_all = True


def _multiply_factors(left: Floats, right: Floats, start: int) -> Iterator[Block]:
    """Return left @ right.T, a few rows at a time."""
    across, together = np.ascontiguousarray(right.T), max(1, 2**16 // len(right))
    for row in range(0, len(left), together):
        some = left[row : row + together]
        # NumPy's product over a single column is several times slower than broadcasting
        rows = some * across if len(across) == 1 else some @ across
        begin = start + row * len(right)
        yield slice(begin, begin + rows.size), rows.reshape(-1)


def _project_matrix(matrix: Floats, right: Floats) -> Factors:
    """Return the factors of the projection on the columns of `matrix @ right`."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = matrix @ right
        refuse_non_finite(product.reshape(-1))
        left = np.ascontiguousarray(np.linalg.qr(product).Q)
        new = matrix.T @ left
    refuse_non_finite(new.reshape(-1))
    return Factors(left, new)


def _choose_rank(squares: NDArray[np.float64], share: float) -> int:
    """Return the fewest singular values whose squares exceed the share.

    A share of 1 takes all of them.
    """
    total = np.cumsum(squares)
    if total[-1] == 0:
        return 1
    return min(
        int(np.searchsorted(total, share * total[-1], side="right")) + 1, len(squares)
    )


def _is_smaller(shape: tuple[int, int], rank: int) -> bool:
    """Return whether factors of this rank are smaller than the matrix."""
    return rank * sum(shape) < math.prod(shape) and rank <= min(shape)


def _count_floats(shape: tuple[int, int], rank: int) -> int:
    """Return how many floats a matrix travels as, with this rank; 0: whole."""
    return sum(_list_sizes(shape, rank))


def _list_sizes(shape: tuple[int, int], rank: int) -> list[int]:
    """Return the entries of each factor of a matrix, or those of a whole one."""
    return [rank * shape[0], rank * shape[1]] if rank else [math.prod(shape)]
