"""Merging at one node: whom it starts, what it waits for, and when it merges.

`Aggregator.merge` tells one merge from top to bottom. Who may take part and what a
merge does, the aggregator's `Node` says. Events of one instant come in this order:
participations that end, the merge, starts. While the node works at a merge, arrivals
wait for the next one and nobody is started.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import simpy
from simpy.events import ProcessGenerator

from simfed.fleet.contract import Outcome
from simfed.ground.errors import RunFailed
from simfed.ground.strikes import Strikes
from simfed.net.instants import cancel, end_of_instant
from simfed.sim.flight import Flight
from simfed.sim.modes import ServerMode
from simfed.sim.server_work import PlayedWork
from simfed.sim.world import CUT, Carrier, InstantEvents

_HOPELESS = 10_000
"""So many losses in a row, and ten per participant, before a node that waits for
arrivals gives up."""


@dataclass(slots=True, eq=False, kw_only=True)
class PendingMerge:
    """One merge, from the moment at which its node stops waiting.

    The aggregator makes it and fills in its work and end; the server makes rows, blame
    and rewards of it.
    """

    round: int
    started_at_s: float
    delay_s: float
    """Seconds until somebody was there to be started."""
    waited_s: float
    """Seconds until the last awaited upload."""
    at_s: float
    """The instant at which the node stopped waiting: its work comes after."""
    waits_for_all: bool
    """Everybody started with the merge and has ended."""
    filled: bool
    """A client is free again as soon as its upload has arrived or is lost."""
    taken: Sequence[Flight] = ()
    """Those that have ended since the one before, in the order in which they are
    merged, lost ones included."""
    last: Flight | None = None
    """The one whose end it waited for; None: it waited for a deadline, or for
    nobody."""
    struck: bool = False
    """The node went down, and all that had arrived is lost."""
    work: Sequence[PlayedWork] = ()
    server_s: float = 0.0
    """Seconds of that work."""
    finished_at_s: float = math.nan

    @property
    def arrived(self) -> list[Flight]:
        """The participations that came in time and whole: those that are merged."""
        return [flight for flight in self.taken if not flight.lost]

    @property
    def duration_s(self) -> float:
        """Seconds from its start to its end: waiting, then the node's work.

        Summed as durations: a difference of late instants would lose digits.
        """
        return self.waited_s + self.server_s


class Node(Protocol):
    """A server or edge server, as the aggregator that merges there sees it.

    `Simulation` and `Edge` are such nodes.
    """

    @property
    def round(self) -> int:
        """The round of the run to which the merge under way belongs."""
        ...

    @property
    def last(self) -> bool:
        """True if nobody is waited for after the merge under way."""
        ...

    def choose(self) -> Sequence[int]:
        """Ids of the clients to start now, as the node's selection has them."""
        ...

    def may_pass(self) -> bool:
        """Return whether nobody may be chosen though somebody is there.

        The merge is then one of nobody.
        """
        ...

    def make_flights(self, ids: Sequence[int]) -> list[Flight]:
        """Return the flights of these, in the order given, before anything moves."""
        ...

    def work(
        self, merging: PendingMerge, merge: Callable[[], Outcome]
    ) -> tuple[list[PlayedWork], Callable[[], Outcome]]:
        """Return the work at a merge, which begins now, and what gives its outcome.

        The outcome may be asked for once the work is over.
        """
        ...

    def lose(self, flight: Flight) -> None:
        """Lose a participation: nothing of it will be merged.

        The learning is told this very moment, before its client can be started again.
        """
        ...

    def merge(self, merging: PendingMerge) -> Outcome:
        """Merge what has arrived, and return the outcome."""
        ...


class Aggregator:
    """The state of merging at one node under one mode.

    It starts participations, has the world carry them, is told as each lands, and
    merges when its mode says so. What a merge does to models is its node's matter.
    """

    def __init__(
        self,
        mode: ServerMode,
        node: Node,
        world: Carrier,
        size: int,
        strikes: Strikes | None = None,
    ) -> None:
        """Join a server's or an edge server's mode to the world of its participants.

        Args:
            mode: when it merges, and how many work at once.
            node: the server itself.
            world: carries participations.
            size: how many may take part.
            strikes: when the node goes down; it comes back with what it had after its
                last merge.
        """
        self.mode = mode
        self._node, self.world, self._size, self._strikes = node, world, size, strikes
        self.merges = 0
        """The number of merges that are done."""
        self.starts = 0
        """The number of participations that were started."""
        self.restarts = 0
        """The number of restarts of the node."""
        self.in_flight: dict[int, Flight] = {}
        self.ended: list[Flight] = []
        """Landed since the last merge."""
        self.busy: set[int] = set()
        """Those that cannot be started."""
        self._bound = math.inf if mode.bound is None else mode.bound
        self._lost_in_a_row = 0
        self._started_at_s = self._delay_s = 0.0
        self._cohort = self._cohort_ended = self._arrived = 0
        self._deadline_at_s = self._strikes_at_s = math.inf
        self._deadline: simpy.Event | None = None
        self._merging: PendingMerge | None = None
        """The merge that its node works at."""
        self._wake: simpy.Event | None = None

    def set_out(self) -> None:
        """Begin, once the world's clock stands and before anything is scheduled."""
        self._env = self.world.env
        self._instants = InstantEvents(self._env)

    # ---- one merge -------------------------------------------------------------------

    def merge(self) -> ProcessGenerator:
        """Make one merge, from the start of its participants to its outcome.

        A generator for a SimPy process; returns (the merge, its outcome).

        Raises: `RunFailed` where nobody ever comes, or one loss follows another without
        end.
        """
        env, mode, node = self._env, self.mode, self._node
        self._started_at_s = env.now
        ids = node.choose()
        while not (len(ids) or self.in_flight or self.ended or node.may_pass()):
            yield self.world.await_anybody(node.round, patient=False)
            ids = node.choose()
        self._start(node.make_flights(ids))
        while not (self._due() or self._goes_down()):
            self._wake = env.event()
            if mode.filled and len(self.in_flight) < (mode.concurrency or 0):
                patient = bool(self.in_flight)
                self._alarm(self.world.await_anybody(node.round, patient=patient))
            yield self._wake
            self._wake = None
            yield end_of_instant(env)
            if self._lost_in_a_row > _HOPELESS + 10 * self._size:
                raise RunFailed(
                    f"round {node.round}: {self._lost_in_a_row:,} participations in a "
                    f"row were lost by {env.now:g} s: nobody stays, or succeeds, for "
                    "as long as it takes"
                )
            if mode.filled and not (self._due() or self._goes_down()):
                self._send_off(node.make_flights(node.choose()))
        struck = not self._due()
        last = None if struck else self._find_last_awaited()
        if (struck or not mode.keeps_late or node.last) and self._cut_off():
            yield end_of_instant(env)
        merging = self._merging = self._close(last, struck)
        merge: Callable[[], Outcome] = partial(node.merge, merging)
        if struck:
            merging.work = [self._restart()]
        else:
            merging.work, merge = node.work(merging, merge)
        merging.server_s = sum(piece.duration_s for piece in merging.work)
        yield env.timeout(merging.server_s)
        yield end_of_instant(env)
        self._merging, merging.finished_at_s = None, env.now
        self.merges += 1
        return merging, merge()

    def _start(self, flights: Sequence[Flight]) -> None:
        """Start the participants of a merge; watch its deadline and the node's end.

        A deadline counts from here, after the wait for somebody to start.
        """
        env = self._env
        self._delay_s = env.now - self._started_at_s
        self._cohort, self._cohort_ended = len(flights), 0
        if not self.mode.filled:
            self._arrived = 0
        self._deadline_at_s = env.now + self.mode.deadline_s
        if self._deadline_at_s < math.inf:
            cancel(env, self._deadline)
            self._deadline = env.timeout(self.mode.deadline_s)
            self._alarm(self._deadline)
        self._send_off(flights)
        if self._strikes is not None:
            # a restart that was due while it merged comes now
            restarts_at_s = self._strikes.border_s(2 * self.restarts)
            self._strikes_at_s = max(restarts_at_s, env.now)
            if self._strikes_at_s < math.inf:
                self._alarm(self._instants.at(self._strikes_at_s))

    def _close(self, last: Flight | None, struck: bool) -> PendingMerge:
        """Stop waiting, and take what has ended.

        Args:
            last: the flight whose end was waited for, if any.
            struck: the node went down: all that had arrived is lost.
        """
        if struck:  # what had arrived nobody knows of any longer
            self._drop(self.ended)
        taken = self._take()
        for_all = self.mode.waits_for_all and not struck
        if for_all:
            # all started at once, so the longest sum of durations is exact where a
            # difference of instants would not be
            waited_s = self._delay_s + max(
                (flight.elapsed_s for flight in taken), default=0.0
            )
        else:
            waited_s = self._env.now - self._started_at_s
        return PendingMerge(
            round=self._node.round,
            started_at_s=self._started_at_s,
            delay_s=self._delay_s,
            waited_s=waited_s,
            at_s=self._env.now,
            waits_for_all=for_all,
            filled=self.mode.filled,
            taken=taken,
            last=last,
            struck=struck,
        )

    def stop(self, round: int) -> ProcessGenerator:
        """End whatever is under way, and lose what had arrived.

        A generator; returns a merge of nobody that took those that had not been merged,
        lost ones included.

        Args:
            round: to which that merge belongs.
        """
        cancel(self._env, self._deadline)
        self._wake = self._deadline = None
        self._deadline_at_s = math.inf
        begun, merging, now_s = self._started_at_s, self._merging, self._env.now
        self._merging = None
        if self._cut_off():
            yield self._env.timeout(0)
        before = [] if merging is None else merging.taken
        self._drop([*before, *self.ended])
        return PendingMerge(
            round=round,
            started_at_s=begun,
            delay_s=0.0,
            waited_s=now_s - begun,
            at_s=now_s,
            waits_for_all=False,
            filled=self.mode.filled,
            taken=[*before, *self._take()],
            struck=True,
            finished_at_s=now_s,
        )

    def _cut_off(self) -> bool:
        """Cut off whoever is in flight, and return whether anybody was."""
        late = list(self.in_flight.values())
        for flight in late:
            self.world.cut(flight, CUT)
        return bool(late)

    # ---- what it knows of its participants -------------------------------------------

    def _due(self) -> bool:
        """Return whether enough have arrived, or time is over, for the merge."""
        mode = self.mode
        if mode.filled:
            return self._arrived >= (mode.wanted or 1)
        if self._env.now >= self._deadline_at_s:
            return True
        if mode.wanted is not None and self._arrived >= mode.wanted:
            return True
        if self._cohort:
            return self._cohort_ended == self._cohort
        # nobody was free to be started, or chosen
        return bool(self.ended) or not self.in_flight

    def _goes_down(self) -> bool:
        """Return whether the node's next restart has come."""
        return bool(self._env.now >= self._strikes_at_s)

    def _restart(self) -> PlayedWork:
        """Return the node's restart as its work at this merge."""
        assert self._strikes is not None
        begins_s, ends_s = (
            self._strikes.border_s(2 * self.restarts + k) for k in (0, 1)
        )
        self.restarts += 1
        return PlayedWork("restart", "restart", None, ends_s - begins_s)

    def _take(self) -> list[Flight]:
        """Return what has ended since the last merge, in the order of merging."""
        taken = sorted(self.ended, key=lambda flight: flight.task.order)
        self.ended = []
        self._arrived = 0
        for flight in taken:
            # an upload that waits for its merge keeps its client
            if not self.mode.filled:
                self.busy.discard(flight.client)
            flight.staleness = self.merges - flight.merges
            if flight.staleness and not flight.lost and not self.mode.filled:
                flight.outcome = "late"
        return taken

    def _drop(self, flights: Sequence[Flight]) -> None:
        """Lose those of these that had arrived.

        Of a client's the last one goes first: each goes back to what was before it.
        """
        named = sorted(
            flights, key=lambda flight: (flight.task.round, flight.task.who.turn)
        )
        for flight in reversed(named):
            if not flight.lost:
                flight.lose("dropped")
                self._node.lose(flight)

    def _find_last_awaited(self) -> Flight | None:
        """Return the flight whose end the merge waited for.

        Of several at one instant the one of the lowest client. None: it waited for a
        deadline, or for nobody.
        """
        mode, now_s = self.mode, self._env.now
        if now_s >= self._deadline_at_s and self._cohort_ended < self._cohort:
            return None
        enough = mode.wanted is not None and self._arrived >= mode.wanted
        awaited = [
            f for f in self.ended if f.ended_at_s == now_s and (f.arrived or not enough)
        ]
        return min(awaited, key=lambda f: f.client, default=None)

    def _send_off(self, flights: Sequence[Flight]) -> None:
        """Have the world carry participations from now on."""
        self.starts += len(flights)
        for flight in flights:
            flight.merges = self.merges
            self.in_flight[flight.client] = flight
            self.busy.add(flight.client)
            self.world.carry(flight)

    def land(self, flight: Flight) -> None:
        """Take note that a participation is over, this very moment.

        An arrival that is staler than the mode allows is dropped. Where the merge is
        due, or somebody else may be started, the aggregator wakes.
        """
        del self.in_flight[flight.client]
        if self.mode.filled:
            self.busy.discard(flight.client)
        self.ended.append(flight)
        ours = flight.merges == self.merges
        self._cohort_ended += ours
        flight.arrived = not flight.lost
        self._arrived += flight.arrived and (ours or self.mode.filled)
        self._lost_in_a_row = 0 if flight.arrived else self._lost_in_a_row + 1
        # while the node works at a merge, arrivals are of the one after it
        staleness = self.merges - flight.merges + (self._merging is not None)
        if flight.arrived and staleness > self._bound:
            flight.lose("dropped")
        if flight.lost:
            self._node.lose(flight)
        # who keeps participants in flight has another one to start; others need not
        # look before
        if self.mode.filled or self._due():
            self._ring()

    # ---- waiting ---------------------------------------------------------------------

    def _ring(self, _: simpy.Event | None = None) -> None:
        """Look whether the merge is due, where the aggregator waits for it."""
        if self._wake is not None and not self._wake.triggered:
            self._wake.succeed()

    def _alarm(self, event: simpy.Event) -> None:
        """Have an event wake the aggregator, once."""
        assert event.callbacks is not None
        if self._ring not in event.callbacks:
            event.callbacks.append(self._ring)
