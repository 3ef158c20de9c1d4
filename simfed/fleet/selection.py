"""Selections: whom a server asks next, of those who are there.

A selection sees plain facts only, one NumPy column each, indexed by client id, and
gives ids. It keeps nothing between calls and draws from the generator that it is
handed, so a resumed run goes on alike, and learning without a clock asks the same
clients as a run with one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Protocol

import numpy as np

from simfed.ground.arrays import Floats, Ints
from simfed.ground.errors import InputError
from simfed.ground.seeding import Streams


@dataclass(frozen=True)
class Facts:
    """The facts by which clients are selected, each indexed by client id.

    Selections read them only.
    """

    samples: Ints
    """Training samples that the client owns."""
    duration_s: Floats
    """Seconds of its last participation that was not cut off; NaN before the first."""
    loss: Floats
    """The client's own mean loss as it last told the server; NaN before."""
    picked: Ints
    """The number of times that it was asked."""
    last_round: Ints
    """The round in which it was last asked; 0 before."""

    @classmethod
    def unknown(cls, samples: Ints) -> Facts:
        """Return the facts before the first round, when nobody was asked."""
        n = len(samples)
        nothing = np.full(n, np.nan)
        return cls(
            samples,
            nothing,
            nothing.copy(),
            np.zeros(n, np.int64),
            np.zeros(n, np.int64),
        )


class ClientSelection(Protocol):
    """Chooses among clients.

    One with `needs_losses = True` is told their own losses; to measure these costs a
    forward pass over every participant's samples twice a round. One with `varies =
    True` draws how many it chooses, maybe nobody. `privacy` says where it goes with
    privacy, see `simfed.tasks.covered`: `client` and `sample` where it looks at nothing
    that hangs on clients' data, `untimed` where it does not look at durations either.
    """

    def choose(
        self,
        ids: Ints,
        count: int,
        facts: Facts,
        *,
        round: int,
        rng: np.random.Generator,
    ) -> Ints:
        """Return `count` of `ids` (all where there are not more), ascending, each once.

        `ids` are those that may be asked now (there and idle), ascending.
        """
        ...


class All:
    """Everybody who is there, however many are wanted."""

    privacy: ClassVar[tuple[str, ...]] = ("client", "sample", "untimed")

    def choose(
        self,
        ids: Ints,
        count: int,
        facts: Facts,
        *,
        round: int,
        rng: np.random.Generator,
    ) -> Ints:
        """Return all ids."""
        return ids


class UniformSelection:
    """A uniformly random subset; the cost is that of its size."""

    privacy: ClassVar[tuple[str, ...]] = ("client", "sample", "untimed")

    def choose(
        self,
        ids: Ints,
        count: int,
        facts: Facts,
        *,
        round: int,
        rng: np.random.Generator,
    ) -> Ints:
        """Return ids drawn uniformly without replacement."""
        return ids if count >= len(ids) else ids[_draw_ids(rng, len(ids), count)]


class Poisson:
    """A coin for each client, with probability `clients_per_round` / clients.

    These are the cohorts of amplified privacy.

    A cohort is as large as its coins fall, in the mean `clients_per_round` where
    everybody is there. An empty one is a round without participants, which takes no
    time but the server's own.
    """

    varies: ClassVar[bool] = True
    privacy: ClassVar[tuple[str, ...]] = ("client", "sample", "untimed", "coins")

    def choose(
        self,
        ids: Ints,
        count: int,
        facts: Facts,
        *,
        round: int,
        rng: np.random.Generator,
    ) -> Ints:
        """Return the ids whose coin fell so."""
        clients = len(facts.samples)
        return ids[rng.random(clients)[ids] * clients < count]


class BySamples:
    """A draw without replacement in proportion to the samples that clients own.

    One after another is drawn.
    """

    def choose(
        self,
        ids: Ints,
        count: int,
        facts: Facts,
        *,
        round: int,
        rng: np.random.Generator,
    ) -> Ints:
        """Return ids drawn in proportion to samples."""
        if count >= len(ids):
            return ids
        # whose exponential clock of rate `samples` rings first (Efraimidis and Spirakis
        # 2006)
        with np.errstate(divide="ignore"):
            rings = rng.standard_exponential(len(ids)) / facts.samples[ids]
        return np.sort(ids[np.argpartition(rings, count - 1)[:count]])


@dataclass(frozen=True)
class Fastest:
    """Those whose last participation was shortest, nobody far ahead of the others.

    Who never took part comes first. With `bound`, a client that was asked more than
    that many times more often than the least asked one who is there waits until the
    others have caught up (and fills in where there are too few). Ties go to the lower
    id. Draws nothing.
    """

    bound: Annotated[
        int | None, "participations that a client may be ahead of the least asked"
    ] = 10
    privacy: ClassVar[tuple[str, ...]] = ("client", "sample")

    def __post_init__(self) -> None:
        if self.bound is not None and self.bound < 1:
            raise InputError(
                "a whole number of at least 1, or null", where="bound", got=self.bound
            )

    def choose(
        self,
        ids: Ints,
        count: int,
        facts: Facts,
        *,
        round: int,
        rng: np.random.Generator,
    ) -> Ints:
        """Return the ids of the shortest durations."""
        if count >= len(ids):
            return ids
        duration_s = np.nan_to_num(facts.duration_s[ids], nan=-1.0)
        ahead = facts.picked[ids] - facts.picked[ids].min()
        waits = (
            ahead > self.bound
            if self.bound is not None
            else np.zeros(len(ids), dtype=bool)
        )
        order = np.lexsort((ids, duration_s, np.where(waits, ahead, 0)))
        return np.sort(ids[order[:count]])


@dataclass(frozen=True)
class Oort:
    """Statistical utility times speed, with exploration: F.

    Lai et al., "Oort", OSDI 2021.

    Of the count, a share ε = max(`least_exploration`, `exploration` · `decay`^(round −
    1)) are clients that were never asked, drawn uniformly; the others are drawn among
    the best: all whose utility is at least `cutoff` times that of the last one needed,
    in proportion to it. The utility of a client is samples · loss, clipped at its
    `clip` quantile, plus √(0.1 · ln round / last round) of the largest, times
    (T/duration)^`penalty` where its last participation took longer than T, the
    `preferred` quantile of the known durations.

    What differs from the source: the root mean square of the losses of a client's
    samples, which no method here tells, is replaced by their mean; T follows the
    durations instead of a pacer; nobody is barred for having been asked often.
    """

    exploration: Annotated[float, "share of clients never asked before, at first"] = 0.9
    decay: Annotated[float, "what remains of that share per round"] = 0.98
    least_exploration: Annotated[float, "the share does not fall below this"] = 0.2
    preferred: Annotated[float, "quantile of the durations that is fast enough"] = 0.5
    penalty: Annotated[float, "how much slowness beyond that counts"] = 2.0
    cutoff: Annotated[
        float, "the best are those of at least this × the last needed utility"
    ] = 0.95
    clip: Annotated[float, "quantile at which utilities are cut"] = 0.95
    needs_losses: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in (
            "exploration",
            "decay",
            "least_exploration",
            "preferred",
            "cutoff",
            "clip",
        ):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(
                    "a number from 0 to 1", where=name, got=getattr(self, name)
                )
        if not 0 <= self.penalty < np.inf:
            raise InputError(
                "a number of at least 0", where="penalty", got=self.penalty
            )

    def choose(
        self,
        ids: Ints,
        count: int,
        facts: Facts,
        *,
        round: int,
        rng: np.random.Generator,
    ) -> Ints:
        """Return ids by utility, some of them explored."""
        if count >= len(ids):
            return ids
        # a client whose loss nobody was told yet is as good as never asked
        told = np.isfinite(facts.loss[ids]) & (facts.picked[ids] > 0)
        new, old = ids[~told], ids[told]
        share = max(
            self.least_exploration, self.exploration * self.decay ** (round - 1)
        )
        exploring = min(len(new), max(int(np.rint(share * count)), count - len(old)))
        fresh = new[_draw_ids(rng, len(new), exploring)]
        best = self._draw_best(old, count - exploring, facts, round, rng)
        return np.sort(np.concatenate([fresh, best]))

    def _draw_best(
        self, ids: Ints, count: int, facts: Facts, round: int, rng: np.random.Generator
    ) -> Ints:
        if count >= len(ids) or count == 0:
            return ids[:count]
        utility = self.utility(ids, facts, round)
        least = np.partition(utility, len(ids) - count)[len(ids) - count]
        good = np.flatnonzero(utility >= self.cutoff * least)
        weights = (
            utility[good] / utility.max() if utility.max() > 0 else np.ones(len(good))
        )
        rings = rng.standard_exponential(len(good)) / np.maximum(weights, 1e-12)
        return ids[good[np.argpartition(rings, count - 1)[:count]]]

    def utility(self, ids: Ints, facts: Facts, round: int) -> Floats:
        """Return the utility of each of these clients, whose losses are known."""
        gain = facts.samples[ids] * np.maximum(facts.loss[ids], 0.0)
        gain = np.minimum(gain, np.quantile(gain, self.clip))
        uncertain = np.sqrt(
            0.1 * np.log(max(round, 1)) / np.maximum(facts.last_round[ids], 1)
        )
        utility: Floats = gain + uncertain * gain.max()
        duration_s = facts.duration_s[ids]
        told = np.isfinite(duration_s)
        if told.any():
            preferred_s = np.quantile(duration_s[told], self.preferred)
            slow = told & (duration_s > preferred_s)
            utility[slow] *= (preferred_s / duration_s[slow]) ** self.penalty
        return utility


class Selector:
    """A selection in use, and the facts about clients that it goes by."""

    def __init__(
        self, selection: ClientSelection, clients: int, samples_of: Callable[[int], int]
    ) -> None:
        """Begin before the first round, when nothing is known of anybody.

        Args:
            selection: chooses.
            clients: how many there are.
            samples_of: client id → training samples; called only for selections that
                look at facts.
        """
        self._selection = selection
        self._clients = clients
        self._samples_of = samples_of
        self._uniform = isinstance(selection, UniformSelection)
        self.varies = bool(getattr(selection, "varies", False))
        """True if nobody may be chosen though somebody is there."""

    def cohort(
        self,
        streams: Streams,
        round: int,
        count: int | None,
        free: Ints | None = None,
        keys: tuple[int, ...] = (),
    ) -> list[int]:
        """Return the ids of the clients that are asked, ascending.

        Args:
            streams: keyed generators.
            round: key of the draw.
            count: how many are wanted; None: all.
            free: those that may be asked, ascending; None: everybody.
            keys: of the draw, beside the round.
        """
        wanted = self._clients if count is None else count
        if self._uniform and free is None:  # at the cost of the cohort alone
            return list(map(int, cohort(streams, round, self._clients, wanted)))
        ids = np.arange(self._clients) if free is None else free
        rng = streams("selection", round, *keys)
        facts = Facts.unknown(ids[:0]) if self._uniform else self._facts
        chosen = self._selection.choose(ids, wanted, facts, round=round, rng=rng)
        if not self._uniform:
            self._facts.picked[chosen] += 1
            self._facts.last_round[chosen] = round
        return list(map(int, chosen))

    def tell(self, client: int, duration_s: float | None, loss: float | None) -> None:
        """Update the facts after a participation.

        `duration_s`: its seconds (None: it was cut off); `loss`: the client's own
        (None: it was not measured).
        """
        if self._uniform:
            return
        if duration_s is not None:
            self._facts.duration_s[client] = duration_s
        if loss is not None:
            self._facts.loss[client] = loss

    @cached_property
    def _facts(self) -> Facts:
        samples = np.fromiter(
            map(self._samples_of, range(self._clients)), np.int64, self._clients
        )
        return Facts.unknown(samples)


def cohort(
    streams: Streams, round: int, clients: int, clients_per_round: int | None
) -> Ints:
    """Return ids in ascending order: all, or a uniformly random subset.

    Costs O(size of the cohort), however many clients there are; `UniformSelection` over
    all ids gives the same.

    Args:
        streams: keyed generators; the draw's key is ("selection", round).
        round: of the run.
        clients: how many there are.
        clients_per_round: how many are asked; None: all.

    >>> cohort(Streams(0), 1, 5, None)
    array([0, 1, 2, 3, 4])
    >>> len(set(cohort(Streams(0), 1, 1_000_000, 100).tolist()))
    100
    """
    if clients_per_round is None or clients_per_round == clients:
        return np.arange(clients)
    return _draw_ids(streams("selection", round), clients, clients_per_round)


def _draw_ids(rng: np.random.Generator, clients: int, count: int) -> Ints:
    """Return `count` of 0 … clients − 1, each once, ascending."""
    return np.sort(rng.choice(clients, count, replace=False, shuffle=False))
