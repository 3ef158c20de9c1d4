"""Topologies: links by number, and the path of every client to the server.

A topology is static facts only. Uplink and downlink are different links. Every client
has a link of its own to a *node*; from the node a route of further links leads to the
server and back. In a star all clients are at one node, whose route is the server's own
link; `simfed.net.graphs` makes trees and any other graph.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from simfed.ground.arrays import Floats, Ints
from simfed.ground.errors import InputError
from simfed.ground.seeding import Key
from simfed.net.delays import Delays
from simfed.net.flows import Flow
from simfed.net.traces import LinkTrace

__all__ = [
    "Access",
    "Cell",
    "Direction",
    "Line",
    "Path",
    "Routes",
    "Star",
    "Topology",
    "Way",
]

Direction = Literal["up", "down"]
PerClient: TypeAlias = "float | Sequence[float] | Floats"
"""One number for all clients, or one for each."""


class Air(NamedTuple):
    """The demands of a way through a cell, which `Path.enter` gives to a flow."""

    costs: dict[int, float]
    """`Flow.costs`."""
    radios: dict[int, int] | None = None
    """`Flow.radios`."""
    weight: float = 1.0
    """Against those of the cell's other clients, whose uploads weigh 1 on average; a
    trace that has weights of its own (`Trace.radio_weights`) takes its place."""


class Path(NamedTuple):
    """One way between a client and the server.

    `Topology.path` makes it, and a network model (`simfed.net.models`) a flow of it.
    """

    links: tuple[int, ...]
    """The links that can limit, in the order in which bytes cross them."""
    crossed: tuple[int, ...]
    """The links of finite rate, those that cannot limit included: each takes its time
    per packet."""
    latency_s: float
    """One-way delay of the whole path."""
    rtt_s: float
    """Seconds this way and back, without queueing."""
    loss: float = 0.0
    """Probability that a packet is lost at random on the way."""
    air: Air | None = None
    """None: it crosses no cell."""

    def enter(self, flow: Flow) -> Flow:
        """Return `flow`, with what it costs and weighs in the cell that it crosses.

        On a path without a cell it stays as it is.
        """
        if self.air is not None:
            flow.costs, flow.radios = self.air.costs, self.air.radios
            flow.sender_weight = flow.weight
            flow.weight *= self.air.weight
        return flow


@dataclass(frozen=True)
class Cell:
    """A radio cell: clients whose transfers share airtime.

    `Access` has for each of them what it gets alone in the cell, which is one over what
    a byte costs of the airtime. `simfed.net.cells` knows the standards; here are their
    numbers only.
    """

    name: str
    members: Sequence[int]
    """The clients."""
    up_weights: Sequence[float] | Floats
    """The weights of their uploads, in the order of `members`."""
    down_weights: Sequence[float] | Floats
    one_air: bool = True
    """Uploads and downloads share one airtime (Wi-Fi); false: each has its own
    (cellular)."""
    share: float | LinkTrace = 1.0
    """The part of the time in which the air is the cell's: above 0, at most 1."""

    def list_air_names(self) -> list[str]:
        """Return the names of its airtimes in records: one, or one for each way."""
        name = f"airtime of cell {self.name}"
        return [name] if self.one_air else [f"{name}, up", f"{name}, down"]


@dataclass(frozen=True)
class Access:
    """The clients' own links: one number for everybody or one per client.

    `inf` is unlimited.
    """

    up_bytes_per_s: PerClient = inf
    down_bytes_per_s: PerClient = inf
    latency_s: PerClient = 0.0
    down_latency_s: PerClient | None = None
    """None: as `latency_s`."""
    loss: PerClient = 0.0
    traces: Mapping[tuple[int, Direction], LinkTrace] = field(default_factory=dict)
    """Varying links by (client, direction); they replace the numbers above."""
    cells: Sequence[Cell] = ()


@dataclass(frozen=True)
class Line:
    """One direction of a link between two nodes, or of the server's own.

    Its name stands in records; two nodes may be joined by one line each way.
    """

    name: str
    tail: str
    head: str
    capacity_bytes_per_s: float | LinkTrace = inf
    latency_s: float = 0.0
    loss: float = 0.0


MOST_LINES = 500_000
"""Lines of a network, each direction counted: ten seconds to load (twice that where
nearly all ways are as short as others), and half a GB."""
NO_STEP = -1
"""The end of a way: the server is reached."""


class Routes:
    """The routes of the nodes' traffic to the server and back.

    A way is the number of a *step*: over one line, then on by the step that follows
    towards the server (the ways back are walked from the node as well). Ways that end
    alike share their steps, so the routes of a graph are a tree for each direction, one
    step per node, however long they are.

    >>> routes = Routes()
    >>> last = routes.step(8)
    >>> routes.add("far", routes.step(4, routes.step(2, last)), last)
    0
    >>> routes.list_lines(routes.up[0]), routes.list_lines(routes.down[0])
    ([4, 2, 8], [8])
    """

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.up: list[int] = []
        """The first step of each route's way to the server; `NO_STEP` at the server
        itself."""
        self.down: list[int] = []
        """The first step of each route's way back, which bytes cross from its other
        end."""
        self.line: list[int] = []
        """The index of each step's line."""
        self.after: list[int] = []
        """The step that follows each one, `NO_STEP` at the server."""

    def step(self, line: int, after: int = NO_STEP) -> int:
        """Return the number of a new step over a line.

        Args:
            line: its index.
            after: the step that goes on from there; `NO_STEP`: the server is reached.
        """
        self.line.append(line)
        self.after.append(after)
        return len(self.line) - 1

    def add(self, node: str, up: int = NO_STEP, down: int = NO_STEP) -> int:
        """Return the index of a new route.

        Args:
            node: where it begins.
            up: the first step of its way to the server; `NO_STEP`: it is the server's
            node.
            down: the first step of its way back, seen from the node.
        """
        self.nodes.append(node)
        self.up.append(up)
        self.down.append(down)
        return len(self.nodes) - 1

    def list_lines(self, step: int) -> list[int]:
        """Return the lines of a way, from the node's side to the server's."""
        lines = []
        while step != NO_STEP:
            lines.append(self.line[step])
            step = self.after[step]
        return lines


MOST_PATHS_IN_MEMORY = 16_384
"""Clients' paths that a topology holds, about 8 MB; beyond them it begins anew."""
MOST_STEPS_IN_MEMORY = 1_000_000
"""Steps of worked-out ways that a topology holds, about 40 MB; beyond them it begins
anew."""


class Way(NamedTuple):
    """A route in one direction: its links as in `Path`, and its packets' survival.

    The last is the share of packets that arrive.
    """

    links: tuple[int, ...]
    crossed: tuple[int, ...]
    latency_s: float
    success: float


class Topology:
    """Clients behind links of their own, and routes between their nodes and the server.

    Link ids: client i's uplink is 2i, its downlink 2i + 1, the lines follow, then the
    airtimes of cells. Nothing is stored per client but a few numbers, so a million
    clients are cheap. Links that can never limit (unlimited ones, and lines faster than
    all links that lead into them together) are no `links` of the paths. A client in a
    cell crosses its airtime in place of a link of its own, which limits it only where
    it varies.

    Raises: `InputError` for a rate that is not above 0, a latency below 0, a loss
    outside [0, 1), two links of one name.
    """

    def __init__(
        self,
        clients: int,
        access: Access,
        lines: Sequence[Line],
        routes: Routes,
        node_of_client: Sequence[int] | None = None,
        server: str = "server",
    ) -> None:
        """Join the clients' links to the routes.

        Args:
            clients: how many there are.
            access: their own links.
            lines: the links between nodes and to the server.
            routes: ways over these lines.
            node_of_client: for each client the index of its route; None: all take the
            first.
            server: the name of the server's node.
        """
        if clients < 1:
            raise InputError("at least one client", where="clients", got=clients)
        n = self.clients = int(clients)
        self.lines = tuple(lines)
        self.routes = routes
        self.server = server
        self.traces: Mapping[int, LinkTrace] = {}
        self.cells = tuple(access.cells)
        self.delays: Delays | None = None
        """Latencies of clients' own links that differ from message to message, which
        `build` sets; they are added to the constant ones."""
        self._airs = [name for cell in self.cells for name in cell.list_air_names()]
        self.capacities_bytes_per_s: Floats = np.full(
            2 * n + len(lines) + len(self._airs), inf
        )
        """Per link, of an airtime in seconds per second; of a link in `traces` its
        highest."""
        self._nodes = np.zeros(n, dtype=np.int64)
        if node_of_client is not None:
            self._nodes[:] = node_of_client
        self._latencies_s = np.empty((2, n))
        self._losses = np.empty(n)
        self._fill_columns(access)
        self._fill_cells()
        self._check()
        self._check_names()
        # of each line whether it can bind, whether its rate is finite, its latency
        self._of_lines = (
            self._find_binding_lines(),
            np.isfinite(
                self.capacities_bytes_per_s[2 * n : 2 * n + len(lines)]
            ).tolist(),
            [line.latency_s for line in self.lines],
        )
        self._lossy = any(line.loss for line in self.lines)
        self._paths: dict[tuple[int, Direction], Path] = {}
        self._ways: dict[int, tuple[Way, Way]] = {}
        self._steps_in_memory = 0
        self._below: dict[int, int] = {}
        """Route → how many of its lines are the clients', where their traffic ends at a
        node."""
        self._first_routes: dict[int, int] = {}
        """A route that passes each such node, by the node's place."""
        # views, whose items are Python's own numbers in a third of the time of an
        # array's
        up_s, down_s = self._latencies_s
        self._of_clients = (self._nodes.data, up_s.data, down_s.data, self._losses.data)
        self._rates = self.capacities_bytes_per_s.data
        self._airs_of_clients = [row.data for row in self._air_of_clients]
        self._weights_of_clients = [row.data for row in self._weights]

    def vary(self, traces: Mapping[int, LinkTrace]) -> None:
        """Make these links vary, in place of those that do now.

        Call it before any transfer.

        Args:
            traces: by link. None exceeds the capacity that the link has now.
        """
        self.traces = traces
        if not self._below:
            self._of_lines = (self._find_binding_lines(), *self._of_lines[1:])
        self._paths.clear()
        self._ways.clear()

    def end_at(self, tier: Sequence[str]) -> tuple[list[str], Ints]:
        """Let clients' traffic end at the node of `tier` on their way to the server.

        From now on node k of them sends and gets as client `clients + k`, by `path`.
        Call it before any transfer.

        Args:
            tier: the nodes at which it may end, in the order in which they are
            numbered.

        Returns the names of the nodes that have clients, and for each client the index
        of its own among them.

        Raises: `InputError` for a client whose way passes no such node.
        """
        # what flows into a line is no longer what the clients behind it can send
        self._of_lines = (list(self._of_lines[1]), *self._of_lines[1:])
        self._below.clear()
        self._first_routes.clear()
        self._paths.clear()
        self._ways.clear()
        names, routes, node_of_route = set(tier), self.routes, {}
        for route in np.unique(self._nodes).tolist():
            way = routes.list_lines(routes.up[route])
            below = next(
                (i for i, k in enumerate(way) if self.lines[k].tail in names), None
            )
            if below is None:
                allowed = f"a node whose way to the server passes one of {tier[0]}"
                raise InputError(allowed, where="node", got=routes.nodes[route])
            node_of_route[route] = self.lines[way[below]].tail
            self._below[route] = below
        present = set(node_of_route.values())
        nodes = [name for name in tier if name in present]
        place = {name: k for k, name in enumerate(nodes)}
        of_route = np.zeros(len(routes.nodes), dtype=np.int64)
        for route, node in node_of_route.items():
            of_route[route] = place[node]
            self._first_routes.setdefault(place[node], route)
        return nodes, of_route[self._nodes]

    def _fill_columns(self, access: Access) -> None:
        """Fill in each link's capacity, and each client's latencies and loss."""
        n, rates = self.clients, self.capacities_bytes_per_s
        rates[0 : 2 * n : 2] = access.up_bytes_per_s
        rates[1 : 2 * n : 2] = access.down_bytes_per_s
        down_s = (
            access.latency_s if access.down_latency_s is None else access.down_latency_s
        )
        self._latencies_s[0] = access.latency_s
        self._latencies_s[1] = down_s
        self._losses[:] = access.loss
        traces = {
            2 * client + (way == "down"): x
            for (client, way), x in access.traces.items()
        }
        for k, line in enumerate(self.lines):
            if isinstance(line.capacity_bytes_per_s, LinkTrace):
                traces[2 * n + k] = line.capacity_bytes_per_s
            else:
                rates[2 * n + k] = line.capacity_bytes_per_s
        for link, trace in traces.items():
            rates[link] = trace.trace.peak_bytes_per_s
        self.traces = traces

    def _fill_cells(self) -> None:
        """Note each client's airtime each way (-1: none), and its weight there."""
        self._air_of_clients = np.full((2, self.clients), -1)
        self._weights = np.ones((2, self.clients))
        first, traces = 2 * self.clients + len(self.lines), dict(self.traces)
        for cell in self.cells:
            members = np.asarray(cell.members)
            if members.size == 0:
                problem = "nobody is in it"
                raise InputError("a client", where=f"cell {cell.name}", problem=problem)
            if (self._air_of_clients[0, members] >= 0).any():
                got = int(members[self._air_of_clients[0, members] >= 0][0])
                allowed = "each client in one cell"
                problem = f"client {got} is in another, too"
                raise InputError(allowed, where=f"cell {cell.name}", problem=problem)
            airs = range(first, first + len(cell.list_air_names()))
            self._air_of_clients[:, members] = [[airs[0]], [airs[-1]]]
            self._weights[:, members] = cell.up_weights, cell.down_weights
            for air in airs:
                if isinstance(cell.share, LinkTrace):
                    traces[air] = cell.share
                    self.capacities_bytes_per_s[air] = cell.share.trace.peak_bytes_per_s
                else:
                    self.capacities_bytes_per_s[air] = cell.share
            first = airs[-1] + 1
        self.traces = traces

    def _check(self) -> None:
        """Refuse numbers that no link has, and node indices that do not fit."""
        rates, nodes = self.capacities_bytes_per_s, self._nodes
        latencies = np.concatenate(
            [self._latencies_s.T.ravel(), [x.latency_s for x in self.lines]]
        )
        losses = np.concatenate(
            [np.repeat(self._losses, 2), [x.loss for x in self.lines]]
        )
        for allowed, numbers, good in (
            ("a rate above 0 bytes/s", rates, rates > 0),
            (
                "a latency of at least 0 s",
                latencies,
                (latencies >= 0) & (latencies < inf),
            ),
            ("a loss from 0 to below 1", losses, (losses >= 0) & (losses < 1)),
        ):
            for link in np.flatnonzero(~good):
                where, got = self.link_name(int(link)), float(numbers[link])
                raise InputError(allowed, where=where, got=got)
        if nodes.min() < 0 or nodes.max() >= len(self.routes.nodes):
            problem = "more or fewer than there are clients"
            raise InputError(
                "one node index per client", where="node_of_client", problem=problem
            )

    def _check_names(self) -> None:
        """Refuse a name that two links have: records know a link by its name alone."""
        seen = set()
        for name in [*(line.name for line in self.lines), *self._airs]:
            client = re.fullmatch(r"client-(0|[1-9]\d*)/(up|down)", name)
            if name in seen or (client and int(client[1]) < self.clients):
                allowed = "a name that no other link has"
                hint = "rename a tier, or make parallel edges one"
                raise InputError(allowed, where="links", got=name, hint=hint)
            seen.add(name)

    def _find_binding_lines(self) -> list[bool]:
        """Return for each line whether it is slower than all that can flow into it.

        One that is not can never limit, and is left out of the paths' `links`. Into a
        line flow the lines before it on the routes, and the clients whose route begins
        with it (downwards: ends with it). Equality counts as binding, so that rounding
        decides nothing.
        """
        n, rates, routes = self.clients, self.capacities_bytes_per_s, self.routes
        inflow = np.zeros(len(self.lines))
        feeders: dict[int, set[int]] = {}
        walked = bytearray(len(routes.line))
        order = np.argsort(self._nodes, kind="stable")
        bounds = np.searchsorted(self._nodes[order], np.arange(len(routes.nodes) + 1))
        for r, ends in enumerate(zip(routes.up, routes.down, strict=True)):
            members = order[bounds[r] : bounds[r + 1]]
            # towards the client, the links that a line leads into bound what it can be
            # asked for
            for k, step in enumerate(ends):
                if step == NO_STEP or not members.size:
                    continue
                inflow[routes.line[step]] += rates[2 * members + k].sum()
                # beyond, an earlier route has been the same way
                while not walked[step]:
                    walked[step] = True
                    after = routes.after[step]
                    if after == NO_STEP:
                        break
                    feeders.setdefault(routes.line[after], set()).add(routes.line[step])
                    step = after
        line_rates = rates[2 * n : 2 * n + len(self.lines)]
        for k, into in feeders.items():
            inflow[k] += sum(line_rates[j] for j in into)
        slowest = line_rates.copy()
        for k in range(len(self.lines)):
            if 2 * n + k in self.traces:
                slowest[k] = self.traces[2 * n + k].trace.lowest_bytes_per_s
        binds: list[bool] = ((slowest < inf) & (slowest <= inflow)).tolist()
        return binds

    @cached_property
    def ways_apart(self) -> bool:
        """True if no line or airtime carries both uploads and downloads."""
        routes = self.routes
        if any(cell.one_air for cell in self.cells):
            return False
        seen: list[set[int]] = []
        for starts in (routes.up, routes.down):
            lines: set[int] = set()
            walked: set[int] = set()
            for step in starts:
                while step != NO_STEP and step not in walked:
                    walked.add(step)
                    lines.add(routes.line[step])
                    step = routes.after[step]
            seen.append(lines)
        return seen[0].isdisjoint(seen[1])

    def find_path(
        self, client: int, direction: Direction, at_s: float, key: tuple[Key, ...]
    ) -> Path:
        """Return the path of one message.

        Args:
            client: its id, or `clients + k` for node k of `end_at`.
            direction: `up` or `down`.
            at_s: the instant at which it starts, on the run's clock.
            key: names it among its client's, for a latency that is drawn for each.

        Raises:
            InputError: there is no such client.
            DeadLink: the trace of its latency has ended.
        """
        path = self.path(client, direction)
        if self.delays is None or client >= self.clients:
            return path
        up_s, down_s = self.delays.draw_delays(client, at_s, key)
        here_s = path.latency_s + (up_s if direction == "up" else down_s)
        return path._replace(latency_s=here_s, rtt_s=path.rtt_s + up_s + down_s)

    def path(self, client: int, direction: Direction) -> Path:
        """Return the one path of a client's transfers in a direction.

        Its latencies are without those that differ from message to message. Paths are
        found when they are first asked for and kept, up to `MOST_PATHS_IN_MEMORY`.

        Args:
            client: its id, or `clients + k` for node k of `end_at`.
            direction: `up` or `down`.
        """
        path = self._paths.get((client, direction))
        if path is None:
            path = self._find_path(client, direction)
            if len(self._paths) >= MOST_PATHS_IN_MEMORY:
                self._paths.clear()
            self._paths[client, direction] = path
        return path

    def _find_path(self, client: int, direction: Direction) -> Path:
        """Return a path put together from the client's own link and its route's way.

        In a cell the airtime stands in place of that link, beside it where that varies.
        """
        if not 0 <= client < self.clients:
            return self._find_path_above(client - self.clients, direction)
        route = self._of_clients[0][client]
        up, down = self._ways.get(route) or self._walk_ways(route)
        _, up_latencies_s, down_latencies_s, losses = self._of_clients
        up_s = up_latencies_s[client] + up.latency_s
        down_s = down_latencies_s[client] + down.latency_s
        if direction == "up":
            access, way, here_s = 2 * client, up, up_s
        else:
            access, way, here_s = 2 * client + 1, down, down_s
        own_links: tuple[int, ...] = (access,) if self._rates[access] < inf else ()
        own_crossed = own_links
        air = None
        cell = self._airs_of_clients[access % 2][client] if self.cells else -1
        if cell >= 0:
            own_links, radios = (cell,), None
            if access in self.traces:
                own_links, radios = (access, cell), {access: cell}
            costs = {cell: 1 / self._rates[access]}
            weight = self._weights_of_clients[access % 2][client]
            air, own_crossed = Air(costs, radios, weight), (access,)
        if direction == "up":
            links, crossed = own_links + way.links, own_crossed + way.crossed
        else:
            links, crossed = way.links + own_links[::-1], way.crossed + own_crossed
        # written so that a path without loss has exactly 0
        loss = losses[client] + (1 - losses[client]) * (1 - way.success)
        return Path(links, crossed, here_s, up_s + down_s, loss, air)

    def _find_path_above(self, place: int, direction: Direction) -> Path:
        """Return the path between a node where clients' traffic ends and the server."""
        if place not in self._first_routes:
            allowed = f"a client from 0 to {self.clients - 1}"
            raise InputError(allowed, where="client", got=self.clients + place)
        route = self._first_routes[place]
        below = self._below[route]
        up = self.way(self.routes.list_lines(self.routes.up[route])[below:])
        down = self.way(self.routes.list_lines(self.routes.down[route])[below:][::-1])
        way = up if direction == "up" else down
        rtt_s = up.latency_s + down.latency_s
        return Path(way.links, way.crossed, way.latency_s, rtt_s, 1 - way.success)

    def _walk_ways(self, route: int) -> tuple[Way, Way]:
        """Return both ways of a route, which stay in memory for its next transfer."""
        below = self._below.get(route)
        up = self.routes.list_lines(self.routes.up[route])[:below]
        down = self.routes.list_lines(self.routes.down[route])[:below][::-1]
        self._steps_in_memory += len(up) + len(down)
        if self._steps_in_memory > MOST_STEPS_IN_MEMORY:
            self._ways.clear()
            self._steps_in_memory = len(up) + len(down)
        ways = self._ways[route] = (self.way(up), self.way(down))
        return ways

    def way(self, indices: Sequence[int]) -> Way:
        """Return the links, latency and arriving share of packets of these lines."""
        first, binds, finite, latencies_s = 2 * self.clients, *self._of_lines
        success = 1.0
        if self._lossy:
            success = float(np.prod([1 - self.lines[k].loss for k in indices]))
        return Way(
            tuple([first + k for k in indices if binds[k]]),
            tuple([first + k for k in indices if finite[k]]),
            float(sum([latencies_s[k] for k in indices])),
            success,
        )

    def link_name(self, link: int) -> str:
        """Return a link's name in records: `client-3/up`, `server/receive`."""
        client, k = divmod(link, 2)
        if client < self.clients:
            return f"client-{client}/{('up', 'down')[k]}"
        line = link - 2 * self.clients
        return (
            self.lines[line].name
            if line < len(self.lines)
            else self._airs[line - len(self.lines)]
        )


class Star(Topology):
    """A topology of clients behind links of their own, and the server behind one.

    Links: `client-i/up` (2i), `client-i/down` (2i + 1), `server/receive` and
    `server/send`, then the airtimes of cells.

    >>> rates = {"up_bytes_per_s": [1e6, 2e6], "receive_bytes_per_s": 2.5e6}
    >>> star = Star(2, **rates, latency_s=0.01)
    >>> star.path(1, "up")
    Path(links=(2, 4), crossed=(2, 4), latency_s=0.01, rtt_s=0.02, loss=0.0, air=None)
    >>> [star.link_name(link) for link in star.path(1, "up").links]
    ['client-1/up', 'server/receive']
    """

    def __init__(
        self,
        clients: int,
        *,
        up_bytes_per_s: PerClient = inf,
        down_bytes_per_s: PerClient = inf,
        latency_s: PerClient = 0.0,
        down_latency_s: PerClient | None = None,
        loss: PerClient = 0.0,
        traces: Mapping[tuple[int, Direction], LinkTrace] | None = None,
        receive_bytes_per_s: float | LinkTrace = inf,
        send_bytes_per_s: float | LinkTrace = inf,
        server_latency_s: float = 0.0,
        server_down_latency_s: float | None = None,
        cells: Sequence[Cell] = (),
    ) -> None:
        """Lay a star.

        Args:
            clients: how many there are.
            up_bytes_per_s: of clients' uplinks: one number for all, or one each; `inf`
                is unlimited.
            down_bytes_per_s: of their downlinks.
            latency_s: one way, of a client's link up.
            down_latency_s: the same, down; None: as up.
            loss: the share of packets lost on a client's link, each way; 0 to below 1.
            traces: links that vary, by (client, direction), in place of their rates.
            receive_bytes_per_s: the server's, of all uploads together; may be a trace.
            send_bytes_per_s: of all downloads together; may be a trace.
            server_latency_s: one way, of the server's link up.
            server_down_latency_s: the same, down; None: as up.
            cells: radio cells, whose members' rates are what each gets alone there.
        """
        access = Access(
            up_bytes_per_s,
            down_bytes_per_s,
            latency_s,
            down_latency_s,
            loss,
            traces or {},
            cells,
        )
        rates, latency_s = (receive_bytes_per_s, send_bytes_per_s), server_latency_s
        lines = make_server_lines("switch", *rates, latency_s, server_down_latency_s)
        routes = Routes()
        routes.add("switch", routes.step(0), routes.step(1))
        super().__init__(clients, access, lines, routes)


def check_line_count(lines: int, where: str) -> None:
    """Raise `InputError` for a network of more than `MOST_LINES` lines."""
    if lines > MOST_LINES:
        allowed = f"at most {MOST_LINES:,} links between nodes, each direction counted"
        raise InputError(allowed, where=where, got=lines)


def make_server_lines(
    node: str,
    receive_bytes_per_s: float | LinkTrace,
    send_bytes_per_s: float | LinkTrace,
    latency_s: float,
    down_latency_s: float | None = None,
    server: str = "server",
) -> list[Line]:
    """Return the server's own link, up and down, between it and a node.

    Args:
        node: where it is attached.
        receive_bytes_per_s: the capacity of all uploads together.
        send_bytes_per_s: of all downloads together.
        latency_s: one way, up.
        down_latency_s: the same, down; None: as up.
        server: the name of the server's end.
    """
    down_s = latency_s if down_latency_s is None else down_latency_s
    return [
        Line("server/receive", node, server, receive_bytes_per_s, latency_s),
        Line("server/send", server, node, send_bytes_per_s, down_s),
    ]
