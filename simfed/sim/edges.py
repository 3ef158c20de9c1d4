"""Edge servers: a server to its clients each, and a client of the cloud.

An edge server's participation in a round of the cloud is a download, so many merges of
its own under its own mode, and an upload of what they changed. What its clients did is
settled when the cloud has merged that upload, or it is lost. What is ignored: the edge
servers' memory, and the sum that they make (a pass over the weights).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

import numpy as np
from simpy import Interrupt
from simpy.events import ProcessGenerator

from simfed.compress.choice import NO_COMPRESSION
from simfed.device import Device
from simfed.fleet.contract import Contribution, Outcome, TieredWorkload
from simfed.fleet.edges import EdgeServer
from simfed.fleet.faults import Faults
from simfed.ground.method import Story, Work, make_key
from simfed.ground.seeding import Streams
from simfed.policy import Pull
from simfed.record import Recorder
from simfed.record.schema import BARRIER, Merge, Span
from simfed.scenario import Scenario
from simfed.sim import rows
from simfed.sim.aggregator import Aggregator, PendingMerge
from simfed.sim.blame import Blame, find_longest_limit, find_longest_phase
from simfed.sim.clock import ClientProcess, Clock
from simfed.sim.flight import Flight, Leg
from simfed.sim.modes import make_edge_mode
from simfed.sim.population import Population
from simfed.sim.rows import Settlement
from simfed.sim.server_work import PlayedWork, play_work
from simfed.sim.world import Carrier
from simfed.tasks.tasks import SERVER

MERGES = "merges"
"""The name, on an edge server's track, of the wait for its merges."""


class _NoDevice:
    """The device of an edge server's participation, which works nothing.

    Its own device works at its merges.
    """

    def charges(self, quantity: str, model: str) -> bool:
        return False


def make_backbone(
    world: Clock, streams: Streams, server_device: Device | None, faults: Faults | None
) -> Clock:
    """Return the world that carries edge servers' participations.

    It stands beside the world of their clients, over the same network and clock.

    Args:
        world: of their clients.
        streams: keyed generators.
        server_device: of the cloud; None: its work takes no time.
        faults: of the run.
    """
    nothing = cast("Device", _NoDevice())
    return Clock(
        world.make_network,
        lambda edge: nothing,
        streams,
        server_device=server_device,
        faults=faults,
    )


class CloudServer(Protocol):
    """The cloud server, as an edge server sees it: `simfed.sim.server.Simulation`."""

    @property
    def round(self) -> int:
        """The round under way."""
        ...

    @property
    def last(self) -> bool:
        """True in the last round."""
        ...

    def start_clients(
        self,
        ids: Sequence[int],
        round: int,
        turns: dict[int, int],
        edge: Contribution | None,
    ) -> list[Flight]:
        """Return the flights of these clients of an edge server."""
        ...

    def blame_clients(self, merging: PendingMerge) -> Blame:
        """Return who held up a merge of clients' uploads."""
        ...

    def land_edge(self, flight: Flight) -> None:
        """Take note that an edge server's participation is over."""
        ...

    def discard(self, flight: Flight) -> None:
        """Take note that nothing of this client's participation will be merged."""
        ...


@dataclass(slots=True, eq=False)
class EdgePart:
    """An edge server's participation: what its merges have come to so far."""

    settled: list[Settlement]
    merges: int = 0
    merging_s: float = 0.0
    blame: tuple[float, Blame] | None = None
    """The blame for the longest of them, with its length."""


class Edge:
    """One edge server: the `Node` of its aggregator.

    It merges its clients' uploads as often as the scenario says in each participation
    of its own; nothing of that counts before the cloud has merged what it sends.
    """

    def __init__(self, place: int, spec: EdgeServer, edges: EdgeLayer) -> None:
        """Place an edge server; `place` is its number among `edges`."""
        self.place, self.spec, self._edges = place, spec, edges
        mode = make_edge_mode(edges.scenario, len(spec.clients))
        self.aggregator = Aggregator(
            mode, self, edges.world, len(spec.clients), spec.strikes
        )
        self.flight: Flight | None = None
        """The participation under way."""
        self._turns: dict[int, int] = {}
        self._turns_of = 0

    @property
    def round(self) -> int:
        """The cloud's round in which it was sent the model."""
        assert self.flight is not None
        return self.flight.task.round

    @property
    def last(self) -> bool:
        """True in the last merge that anybody waits for."""
        cloud = self._edges.server
        ends = self._part.merges + 1 == self._edges.merges
        return ends and cloud.last and self.round == cloud.round

    @property
    def _part(self) -> EdgePart:
        assert self.flight is not None
        return self._edges.parts[self.flight.task.name]

    @property
    def _nth(self) -> int:
        """The place, from 0, of its merge under way among those of the round."""
        assert self.flight is not None
        return self.flight.task.who.turn * self._edges.merges + self._part.merges

    def choose(self) -> Sequence[int]:
        """Return the clients that it starts now."""
        keys = (self._nth, self.place) if self._nth or self.place else ()
        return self._edges.population.choose(
            self.aggregator,
            self._edges.streams,
            self.round,
            self._edges.world.env.now,
            self.spec.clients,
            keys,
        )

    def may_pass(self) -> bool:
        """Return whether nobody may be chosen though somebody is there."""
        now_s = self._edges.world.env.now
        return self._edges.population.may_pass(
            self.aggregator, now_s, self.spec.clients
        )

    def make_flights(self, ids: Sequence[int]) -> list[Flight]:
        """Return the participations of these clients."""
        assert self.flight is not None
        if self._turns_of != self.round:
            self._turns_of = self.round
            self._turns.clear()
        edge = self.flight.contribution
        return self._edges.server.start_clients(ids, self.round, self._turns, edge)

    def work(
        self, merging: PendingMerge, merge: Callable[[], Outcome]
    ) -> tuple[list[PlayedWork], Callable[[], Outcome]]:
        """Return the work at a merge, and what gives its outcome."""
        device, arrived = self.spec.device, merging.arrived
        if device is None or not arrived:
            return [], merge
        key = make_key(self.round, self._nth)
        work = [Work("handling", SERVER, 1)]
        return play_work(device, arrived, work, self._edges.world.env.now, key), merge

    def lose(self, flight: Flight) -> None:
        """Lose a participation of a client."""
        self._edges.server.discard(flight)

    def merge(self, merging: PendingMerge) -> Outcome:
        """Merge what has arrived; the cloud's merge tells what it was worth."""
        assert self.flight is not None
        arrived = merging.arrived
        if arrived:
            weights = [
                self.aggregator.mode.weight(flight.staleness) for flight in arrived
            ]
            contributions = [flight.contribution for flight in arrived]
            self._edges.workload.gather(
                self.flight.contribution, contributions, weights
            )
        return Outcome(self.round, self.flight.task.model_version)

    def make_merges(self, flight: Flight) -> ProcessGenerator:
        """Make its merges, between its download and its upload.

        If it is cut off, none of them counts.

        Args:
            flight: its participation, which gets one leg for all of them.

        Raises:
            Interrupt: it was cut off, or all that it had merged is lost.
        """
        self.flight, env = flight, self._edges.world.env
        part = self._edges.parts[flight.task.name]
        begun_s, spent_s = env.now, None
        try:
            for _ in range(self._edges.merges):
                merging, _ = yield from self.aggregator.merge()
                self._note(merging)
            spent_s = part.merging_s
        except Interrupt:
            spent_s = env.now - begun_s
            yield from self.stop()
            raise
        finally:
            flight.legs.append(Leg(BARRIER, MERGES, spent_s or 0.0, begun_s))
        if all(one.flight.lost for one in part.settled):
            raise Interrupt("failed")

    def _note(self, merging: PendingMerge) -> None:
        """Note one of its merges; the cloud's will tell what it was worth."""
        part, edges, track = self._part, self._edges, self.spec.name
        part.settled += [Settlement(one, merging) for one in merging.taken]
        part.merges += 1
        part.merging_s += merging.duration_s
        if part.blame is None or merging.duration_s > part.blame[0]:
            part.blame = merging.duration_s, edges.server.blame_clients(merging)
        edges.note_merge(track, self.aggregator.merges, merging)
        begun_s, until_s = merging.started_at_s, merging.at_s
        if until_s > begun_s:
            name = f"merge {part.merges}"
            edges.spans.append(
                Span(track, "waiting", name, self.round, None, begun_s, until_s)
            )
        edges.spans.extend(rows.list_server_spans(merging, track))

    def stop(self) -> ProcessGenerator:
        """Lose whatever its clients do: nothing of it is merged any more."""
        merging = yield from self.aggregator.stop(self._edges.server.round)
        self._edges.stray += [Settlement(flight, merging) for flight in merging.taken]


class EdgeLayer:
    """The edge servers of a run, between its clients and the cloud.

    What carries their participations asks them (`Requester`).
    """

    def __init__(
        self,
        scenario: Scenario,
        edges: Sequence[EdgeServer],
        backbone: Clock,
        *,
        server: CloudServer,
        world: Carrier,
        workload: TieredWorkload,
        population: Population,
        recorder: Recorder,
        streams: Streams,
    ) -> None:
        """Place edge servers between clients and the server.

        Args:
            scenario: says how they merge.
            edges: the servers and their clients.
            backbone: the world of their participations, as `world` is of their
            clients'.
            server: the cloud.
            world: of their clients.
            workload: learning, at two levels.
            population: the clients.
            recorder: gets their merges and spans.
            streams: keyed generators.
        """
        assert scenario.aggregation.edge_servers is not None
        self.scenario, self.server = scenario, server
        self.world, self.backbone = world, backbone
        self.workload, self.population = workload, population
        self.recorder, self.streams = recorder, streams
        self.merges = scenario.aggregation.edge_servers.merges
        self._first = scenario.client_count
        self._edges = [Edge(place, spec, self) for place, spec in enumerate(edges)]
        self._of_client = np.zeros(self._first, np.int64)
        for edge in self._edges:
            self._of_client[edge.spec.clients] = edge.place
        self.parts: dict[tuple[int, ...], EdgePart] = {}
        """The merged parts, by the names of their tasks, of participations that the
        cloud has not merged."""
        self.stray: list[Settlement] = []
        """Clients' participations that came to no merge."""
        self.spans: list[Span] = []
        """Spans of edge servers, and below their merges, since the cloud's last merge:
        several may act at one instant, so they are put in order before they are
        recorded."""
        self._merges: list[Merge] = []
        workload.place([spec.clients.tolist() for spec in edges])
        backbone.connect(self)
        backbone.tell = self.participate

    def __len__(self) -> int:
        return len(self._edges)

    def set_out(self) -> None:
        """Begin, once the clients' world has a clock, which the backbone shares."""
        assert isinstance(self.world, Clock)
        self.backbone.join(self.world)
        for edge in self._edges:
            edge.aggregator.set_out()

    def find_aggregator(self, client: int) -> Aggregator:
        """Return where a client's uploads are merged."""
        return self._edges[int(self._of_client[client])].aggregator

    # ---- as participants of the cloud ------------------------------------------------

    def choose(self, aggregator: Aggregator) -> list[int]:
        """Return the edge servers that the cloud starts now.

        These are all that are idle, or as many as it keeps in flight, each drawn by how
        many there were before.
        """
        mode, busy = aggregator.mode, aggregator.busy
        idle = [k for k in range(self._first, self._first + len(self)) if k not in busy]
        if mode.concurrency is None:
            return idle
        chosen: list[int] = []
        while idle and len(busy) < mode.concurrency:
            rng = self.streams("edge", aggregator.starts + len(chosen))
            chosen.append(idle.pop(int(rng.integers(len(idle)))))
            busy.add(chosen[-1])
        return sorted(chosen)

    def make_flights(self, ids: Sequence[int], turns: dict[int, int]) -> list[Flight]:
        """Return their participations, before anything moves."""
        flights = []
        for k in ids:
            turn = turns.get(k, 0)
            turns[k] = turn + 1
            contribution = self.workload.lend(
                self.workload.task(self.server.round, k, turn)
            )
            pull = Pull(NO_COMPRESSION, "fixed")
            flight = Flight(contribution.task, contribution, pull, self.world.env.now)
            self.parts[flight.task.name] = EdgePart([])
            flights.append(flight)
        return flights

    def _find_edge(self, flight: Flight) -> Edge:
        """Return the edge server whose participation a flight is."""
        return self._edges[flight.client - self._first]

    def participate(self, client: ClientProcess) -> Story:
        """Tell an edge server's story: a client's, but its work is its merges."""
        yield from client.receive()
        yield from self._find_edge(client.flight).make_merges(client.flight)
        yield from client.send()

    def size_of(self, flight: Flight) -> float:
        """Return the bytes of an upload."""
        return flight.contribution.uplink_bytes()

    def land(self, flight: Flight) -> None:
        """Take note that an edge server's participation is over."""
        edge = self._find_edge(flight)
        edge.flight = None
        at_s = flight.started_at_s
        for leg in flight.legs:
            until_s = at_s + leg.duration_s
            if leg.phase != BARRIER and leg.duration_s > 0:
                labels = edge.spec.name, leg.phase, leg.name, flight.task.round
                self.spans.append(Span(*labels, None, at_s, until_s))
            at_s = until_s
        self.server.land_edge(flight)

    def forget_model_of(self, client: int | None) -> None:
        """Do nothing: edge servers are sent whole models."""

    # ---- what comes of a merge of the cloud ------------------------------------------

    def note_merge(self, name: str, merge: int, merging: PendingMerge) -> None:
        """Note the row of a merge at a node, the cloud's included.

        Args:
            name: of the node.
            merge: its number there, or the round.
            merging: the merge.
        """
        taken = merging.taken
        self._merges.append(
            Merge(
                node=name,
                merge=merge,
                round=merging.round,
                started_at_s=merging.started_at_s,
                finished_at_s=merging.finished_at_s,
                participants=len(taken),
                uplink_bytes=sum(flight.uplink_bytes for flight in taken),
                downlink_bytes=sum(flight.downlink_bytes for flight in taken),
            )
        )

    def stop(self) -> None:
        """Stop every edge server; nobody is waited for any longer."""
        for edge in self._edges:
            self.world.env.process(edge.stop())

    def lose(self, flight: Flight) -> None:
        """Lose an edge server's participation, and with it what it had merged."""
        for client, _ in self.parts[flight.task.name].settled:
            if not client.lost:
                client.lose("dropped")
                client.forget_upload()

    def settle(self, merging: PendingMerge) -> list[Settlement]:
        """Return the clients' participations that a merge of the cloud settles.

        They come in the order of the tables.
        """
        settled, self.stray = self.stray, []
        into, spans, merges = self.recorder, self.spans, self._merges
        into.spans.extend(
            sorted(spans, key=lambda one: (one.started_at_s, one.track, one.name))
        )
        into.merges.extend(
            sorted(merges, key=lambda one: (one.finished_at_s, one.node))
        )
        self.spans, self._merges = [], []
        for flight in merging.taken:
            settled += self.parts.pop(flight.task.name).settled
        return sorted(settled, key=lambda one: one.flight.task.order)

    def blame(self, merging: PendingMerge, otherwise: str) -> Blame:
        """Return who held the cloud up.

        It is the client that held up the longest merge of the edge server that came
        last, or what that spent longer on.
        """
        taken = merging.taken
        last = merging.last
        if merging.waits_for_all and taken:
            last = max(taken, key=lambda flight: (flight.elapsed_s, -flight.client))
        if last is None:
            return Blame(None, otherwise, None, None)
        phase, spent_s = find_longest_phase(last, merging.server_s)
        blamed = self.parts[last.task.name].blame
        if phase != BARRIER or blamed is None:
            link = find_longest_limit(last, phase, spent_s, self.backbone.network)
            return Blame(None, phase, link, None)
        who, others_s = blamed[1], [one.elapsed_s for one in taken if one is not last]
        if who.saved_s is None or not others_s:
            return who
        return replace(who, saved_s=min(who.saved_s, last.elapsed_s - max(others_s)))
