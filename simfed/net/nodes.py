"""Paths between any two nodes of a network: clients, the nodes of its lines, the server."""

from __future__ import annotations

import heapq
import re
from typing import NamedTuple

from simfed.ground.errors import InputError, did_you_mean, listed
from simfed.net.topology import Air, Path, Topology, Way

_HERE = Way((), (), 0.0, 1.0)


class _Home(NamedTuple):
    node: str
    route: int | None
    """The one that its traffic with the server takes, where it has one."""


class Nodes:
    """The nodes of a topology by name: a client is `client-3`, the server `server`.

    Between a client, or a node with clients, and a node on its route to or from the server a path
    is that route's part; else it is the shortest in latency, then in links, then alphabetically.

    >>> from simfed.net import Star
    >>> star = Star(2, up_bytes_per_s=1e6, down_bytes_per_s=4e6, latency_s=0.01)
    >>> Nodes(star).path("client-0", "client-1")
    Path(links=(0, 3), crossed=(0, 3), latency_s=0.02, rtt_s=0.04, loss=0.0, air=None)
    """

    def __init__(self, topology: Topology) -> None:
        if not topology.between_nodes:
            topology.open_between()
        self._topology = topology
        self._lines_from: dict[str, list[int]] = {}
        for number, line in enumerate(topology.lines):
            self._lines_from.setdefault(line.tail, []).append(number)
        routes = topology.routes
        self._route_of = {node: route for route, node in reversed([*enumerate(routes.nodes)])}
        self._names = {*self._route_of, *(line.head for line in topology.lines)}
        self._names |= self._lines_from.keys()
        ways = (routes.lines_from(step) for step in routes.up)
        last = next((way[-1] for way in ways if way), None)
        self._end = topology.server if last is None else topology.lines[last].head
        """Where the server itself is."""
        self._lines: dict[tuple[_Home, _Home], tuple[int, ...]] = {}

    def node_of(self, client: int, name: str) -> str:
        """What `name` means to a client: the node of that name, or its own node of that tier, the
        one on its way to the server. Raises: `InputError` where there is none."""
        if name in self._names or name == "server" or self._client_of(name) is not None:
            return name
        topology, home = self._topology, self._home(f"client-{client}")
        assert home.route is not None
        way = topology.routes.lines_from(topology.routes.up[home.route])
        for node in (home.node, *(topology.lines[number].head for number in way)):
            if re.fullmatch(rf"{re.escape(name)}-\d+", node):
                return node
        tiers = {re.sub(r"-\d+$", "", node) for node in self._names}
        allowed = f"a node or a tier of the network: {listed(sorted(tiers))}"
        raise InputError(allowed, got=name, hint=did_you_mean(name, self._names | tiers))

    def path(self, source: str, target: str) -> Path:
        """The path of what one node sends another. Raises: `InputError` for a node that there is
        not, or that cannot be reached from there and reach back."""
        topology = self._topology
        sender, receiver = self._client_of(source), self._client_of(target)
        there = topology.way(self._lines_between(source, target))
        back = topology.way(self._lines_between(target, source))
        if sender is not None:
            path = topology.path_by(sender, "up", there, back)
            if receiver is None:
                return path
            return _join_paths(path, topology.path_by(receiver, "down", _HERE, _HERE))
        if receiver is not None:
            return topology.path_by(receiver, "down", back, there)
        rtt_s = there.latency_s + back.latency_s
        return Path(there.links, there.crossed, there.latency_s, rtt_s, 1 - there.success)

    def _client_of(self, name: str) -> int | None:
        prefix, _, number = name.partition("-")
        if prefix == "client" and number.isdecimal() and int(number) < self._topology.clients:
            return int(number)
        return None

    def _home(self, name: str) -> _Home:
        client, topology = self._client_of(name), self._topology
        if client is not None:
            route = topology.route_of(client)
            return _Home(topology.routes.nodes[route], route)
        if name == "server":
            return _Home(self._end, None)
        if name not in self._names:
            hint = did_you_mean(name, self._names)
            raise InputError("a node of the network, a client or the server", got=name, hint=hint)
        return _Home(name, self._route_of.get(name))

    def _lines_between(self, source: str, target: str) -> tuple[int, ...]:
        """The lines from one to the other, clients' own links left out."""
        homes = self._home(source), self._home(target)
        lines = self._lines.get(homes)
        if lines is None:
            lines = self._part_of_route(*homes)
            lines = self._shortest(homes[0].node, homes[1].node) if lines is None else lines
            self._lines[homes] = lines
        return lines

    def _part_of_route(self, source: _Home, target: _Home) -> tuple[int, ...] | None:
        """The lines where both are on the way up of `source` or the way down to `target`."""
        if source.node == target.node:
            return ()
        routes, lines = self._topology.routes, self._topology.lines
        ways = []
        if source.route is not None:
            ways.append(routes.lines_from(routes.up[source.route]))
        if target.route is not None:
            ways.append(routes.lines_from(routes.down[target.route])[::-1])
        for way in ways:
            nodes = [*(lines[number].tail for number in way), lines[way[-1]].head] if way else []
            if source.node in nodes and target.node in nodes:
                begin, end = nodes.index(source.node), nodes.index(target.node)
                if begin < end:
                    return tuple(way[begin:end])
        return None

    def _shortest(self, source: str, target: str) -> tuple[int, ...]:
        waiting: list[tuple[float, int, str, tuple[int, ...]]] = [(0.0, 0, source, ())]
        reached: set[str] = set()
        while waiting:
            latency_s, links, node, way = heapq.heappop(waiting)
            if node == target:
                return way
            if node in reached:
                continue
            reached.add(node)
            for number in self._lines_from.get(node, ()):
                line = self._topology.lines[number]
                if line.head not in reached:
                    there = latency_s + line.latency_s, links + 1, line.head, (*way, number)
                    heapq.heappush(waiting, there)
        raise InputError(f"a node that {source!r} can reach", got=target)


def _join_paths(first: Path, then: Path) -> Path:
    """One path after the other; an airtime that both cross is taken by both."""
    air = first.air or then.air
    if first.air is not None and then.air is not None:
        costs = dict(first.air.costs)
        for link, cost in then.air.costs.items():
            costs[link] = costs.get(link, 0.0) + cost
        radios = {**(first.air.radios or {}), **(then.air.radios or {})}
        air = Air(costs, radios or None, first.air.weight)
    return Path(
        tuple(dict.fromkeys(first.links + then.links)),
        first.crossed + then.crossed,
        first.latency_s + then.latency_s,
        first.rtt_s + then.rtt_s,
        first.loss + (1 - first.loss) * then.loss,
        air,
    )
