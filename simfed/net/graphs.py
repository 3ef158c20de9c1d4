"""Trees and any other graph between the clients' links and the server.

Routes are shortest in latency (then in the number of links, then alphabetically), each
direction on its own, unless the user gives them. Routing is fixed for a run: nothing
reacts to load.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np

from simfed.ground.errors import InputError, did_you_mean
from simfed.net.topology import (
    Access,
    Line,
    Routes,
    Topology,
    check_line_count,
    make_server_lines,
)
from simfed.net.traces import LinkTrace

MOST_NODES = 100_000
"""Nodes of one tier: they take seconds to build, more would take minutes."""
_WAYS = ("up", "down")


@dataclass(frozen=True)
class Tier:
    """One level of a tree: `count` nodes, each with a link towards the server.

    Its nodes are named by `node`; their links `NODE/up` and `NODE/down`.
    """

    name: str
    count: int = 1
    up_bytes_per_s: float | Sequence[float | LinkTrace] = inf
    """One number for all nodes of the tier, or one (or a trace) per node."""
    down_bytes_per_s: float | Sequence[float | LinkTrace] = inf
    latency_s: float = 0.0
    down_latency_s: float | None = None
    """The latency of the way down; `latency_s` if not given."""
    loss: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST_NODES:
            allowed = f"from 1 to {MOST_NODES:,} nodes"
            raise InputError(allowed, where=f"tier {self.name}", got=self.count)

    def node(self, index: int) -> str:
        """Return `edge-2`; a tier of one node is called by its bare name."""
        return self.name if self.count == 1 else f"{self.name}-{index}"


def tree(
    clients: int,
    access: Access,
    tiers: Sequence[Tier],
    *,
    node_of_client: Sequence[int] | None = None,
    receive_bytes_per_s: float | LinkTrace = inf,
    send_bytes_per_s: float | LinkTrace = inf,
    server_latency_s: float = 0.0,
    server_down_latency_s: float | None = None,
) -> Topology:
    """Return clients, then `tiers` up to the server's, then the server's own link.

    Each tier's nodes are dealt in equal blocks to the nodes of the next tier.

    Args:
        clients: how many there are.
        access: their own links.
        tiers: from the clients' side to the server's, at least one.
        node_of_client: for each client the index of its node in the first tier; None:
            they are dealt in equal blocks.
        receive_bytes_per_s: the server's rate for uploads.
        send_bytes_per_s: the server's rate for downloads.
        server_latency_s: seconds of the server's own link, up.
        server_down_latency_s: the same, down; None: as up.

    >>> edge = Tier("edge", 2, up_bytes_per_s=5e6, latency_s=0.01)
    >>> small = tree(4, Access(up_bytes_per_s=4e6), [edge], receive_bytes_per_s=8e6)
    >>> [small.link_name(link) for link in small.path(3, "up").links]
    ['client-3/up', 'edge-1/up', 'server/receive']
    """
    if not tiers:
        raise InputError("at least one tier of nodes", where="tiers", got=[])
    check_line_count(2 * sum(tier.count for tier in tiers), "tiers")
    lines: list[Line] = []
    first_line: list[int] = []
    for level, tier in enumerate(tiers):
        first_line.append(len(lines))
        for k in range(tier.count):
            node = tier.node(k)
            above = tiers[level + 1] if level + 1 < len(tiers) else None
            parent = "gateway"
            if above is not None:
                parent = above.node(_find_parent(k, tier.count, above.count))
            up, down = (
                rate if isinstance(rate, (int, float)) else rate[k]
                for rate in (tier.up_bytes_per_s, tier.down_bytes_per_s)
            )
            down_s = (
                tier.latency_s if tier.down_latency_s is None else tier.down_latency_s
            )
            lines.append(
                Line(f"{node}/up", node, parent, up, tier.latency_s, tier.loss)
            )
            lines.append(Line(f"{node}/down", parent, node, down, down_s, tier.loss))
    rates, latency_s = (receive_bytes_per_s, send_bytes_per_s), server_latency_s
    lines += make_server_lines("gateway", *rates, latency_s, server_down_latency_s)
    routes = Routes()
    up_steps, down_steps = [routes.step(len(lines) - 2)], [routes.step(len(lines) - 1)]
    above_count = 1
    for level in reversed(range(len(tiers))):
        count, first = tiers[level].count, first_line[level]
        parents = [_find_parent(k, count, above_count) for k in range(count)]
        up_steps = [
            routes.step(first + 2 * k, up_steps[parents[k]]) for k in range(count)
        ]
        down_steps = [
            routes.step(first + 2 * k + 1, down_steps[parents[k]]) for k in range(count)
        ]
        above_count = count
    for k in range(tiers[0].count):
        routes.add(tiers[0].node(k), up_steps[k], down_steps[k])
    if node_of_client is None:
        node_of_client = (np.arange(clients) * tiers[0].count // clients).tolist()
    return Topology(clients, access, lines, routes, node_of_client)


def _find_parent(index: int, count: int, above: int) -> int:
    """Return the node of a tier of `above` that node `index` of `count` is dealt to."""
    return index * above // count


def graph(
    clients: int,
    access: Access,
    lines: Sequence[Line],
    *,
    node_of_client: Sequence[str | None],
    routes: Iterable[Sequence[str]] = (),
    receive_bytes_per_s: float | LinkTrace = inf,
    send_bytes_per_s: float | LinkTrace = inf,
    server_latency_s: float = 0.0,
    server_down_latency_s: float | None = None,
    server: str = "server",
    where: str = "routes",
) -> Topology:
    """Return any graph of directed edges.

    Args:
        clients: how many there are.
        access: the clients' own links.
        lines: the directed edges.
        node_of_client: the node of each client; None for a client that is itself a node
            `client-i`.
        routes: explicit ways as lists of nodes, between the server and a node with
            clients, which all take it, or between the server and a client `client-i`,
            whose own it is.
        receive_bytes_per_s: the server's rate for uploads.
        send_bytes_per_s: the server's rate for downloads.
        server_latency_s: seconds of the server's own link, up.
        server_down_latency_s: the same, down (default: as up).
        server: the name of the server's node.
        where: names the routes in errors.

    Raises: `InputError` for a client that has no way to the server or back, for a route
    that nobody takes, and for one over nodes that no line joins or that it has passed
    before.

    >>> there, back = ("a>server", "a", "server"), ("server>a", "server", "a")
    >>> lines = [Line(*there, 1e6, 0.01), Line(*back, 9e6, 0.01)]
    >>> small = graph(1, Access(up_bytes_per_s=2e6), lines, node_of_client=["a"])
    >>> small.path(0, "up")
    Path(links=(0, 2), crossed=(0, 2), latency_s=0.01, rtt_s=0.02, loss=0.0, air=None)
    """
    check_line_count(len(lines), "graph")
    rates, latency_s = (receive_bytes_per_s, send_bytes_per_s), server_latency_s
    last_lines = make_server_lines(
        server, *rates, latency_s, server_down_latency_s, "application"
    )
    nodes = {node for line in lines for node in (line.tail, line.head)} | {server}
    homes = _find_homes(node_of_client, nodes)
    network_routes = Routes()
    ends = {way: network_routes.step(len(lines) + k) for k, way in enumerate(_WAYS)}
    own_routes = {}
    resolved = _resolve_routes(routes, lines, server, homes, where)
    for (owner, way), indices in resolved.items():
        step = ends[way]  # steps are added from the server's side on
        for line in indices if way == "down" else indices[::-1]:
            step = network_routes.step(line, step)
        own_routes[owner, way] = step
    steps = {
        way: _add_shortest(lines, server, way, network_routes, ends[way])
        for way in _WAYS
    }
    route_indices: dict[int | str, int] = {}
    node_indices = []
    for client, node in enumerate(homes):
        # clients of one node share its route, but for those that were given one of
        # their own
        owner = client if any((client, way) in own_routes for way in _WAYS) else node
        if owner not in route_indices:
            up, down = (
                own_routes.get(
                    (owner, way), own_routes.get((node, way), steps[way].get(node))
                )
                for way in _WAYS
            )
            if up is None or down is None:
                allowed = (
                    f"a path {'to' if up is None else 'back from'} node {server!r}"
                )
                got = f"none {'from' if up is None else 'to'} its node {node!r}"
                raise InputError(allowed, where=f"client-{client}", got=got)
            route_indices[owner] = network_routes.add(node, up, down)
        node_indices.append(route_indices[owner])
    lines = [*lines, *last_lines]
    return Topology(clients, access, lines, network_routes, node_indices, server)


def _find_homes(node_of_client: Sequence[str | None], nodes: set[str]) -> list[str]:
    """Return the node of each client: the one it is attached to, or its own.

    Raises: `InputError` for one that is not in the network.
    """
    homes = []
    for client, attached in enumerate(node_of_client):
        node = f"client-{client}" if attached is None else attached
        if node not in nodes:
            if attached is None:
                allowed = "link.at, or a node of this name"
                problem = "it is attached to no node"
                raise InputError(allowed, where=node, problem=problem)
            allowed, hint = "a node of the network", did_you_mean(node, nodes)
            raise InputError(allowed, where=f"client-{client}", got=node, hint=hint)
        homes.append(node)
    return homes


def _resolve_routes(
    routes: Iterable[Sequence[str]],
    lines: Sequence[Line],
    server: str,
    homes: Sequence[str],
    where: str,
) -> dict[tuple[int | str, str], list[int]]:
    """Return the lines of each user-given route, by (client or node, direction).

    Args:
        routes: ways as lists of nodes.
        lines: the directed edges.
        server: the name of the server's node.
        homes: the node of each client.
        where: names the routes in errors.
    """
    between = {(line.tail, line.head): k for k, line in enumerate(lines)}
    owners: dict[str, tuple[int | str, str]] = {node: (node, node) for node in homes}
    for client, node in enumerate(homes):
        owners.setdefault(f"client-{client}", (client, node))
    resolved: dict[tuple[int | str, str], list[int]] = {}
    for number, route in enumerate(routes):
        place = f"{where}[{number}]"
        if len(route) < 2 or (route[0] == server) == (route[-1] == server):
            allowed = f"a list of nodes that begins or ends with {server!r}"
            raise InputError(allowed, where=place, got=list(route))
        if len(set(route)) < len(route):
            raise InputError("each node at most once", where=place, got=list(route))
        way = "up" if route[-1] == server else "down"
        hops = list(route) if way == "up" else list(route)[::-1]
        if hops[0] not in owners:
            hint = did_you_mean(hops[0], owners)
            allowed = "a client, or a node with clients"
            raise InputError(allowed, where=place, got=hops[0], hint=hint)
        owner, node = owners[hops[0]]
        if isinstance(owner, int):  # its own link leads to its node, and is no line
            del hops[0]
            if hops[0] != node:
                allowed = f"{node!r} beside client-{owner}, which is attached to it"
                raise InputError(allowed, where=place, got=hops[0])
        if (owner, way) in resolved:
            raise InputError(
                "one route per owner and direction", where=place, got=list(route)
            )
        pairs = [*pairwise(hops if way == "up" else hops[::-1])]
        for pair in pairs:
            if pair not in between:
                got = " to ".join(pair)
                raise InputError("nodes that a link joins", where=place, got=got)
        resolved[owner, way] = [between[pair] for pair in pairs]
    return resolved


def _add_shortest(
    lines: Sequence[Line], server: str, way: str, routes: Routes, end: int
) -> dict[str, int]:
    """Add the shortest way of every node to the server or back, and return them.

    Dijkstra, with the ties decided by the graph alone: decided by the order of edges,
    two files of the same network would give different runs. Memory and time grow with
    the lines, not with the lengths of the ways.

    Args:
        lines: the directed edges.
        server: the node at which all ways end.
        way: `up`: towards it; `down`: back.
        routes: gets the steps.
        end: the step over the server's own link, which is every way's last.

    Returns the first step of each node's way.
    """
    touching: dict[str, list[tuple[str, int]]] = {}
    for k, line in enumerate(lines):
        near, far = (line.head, line.tail) if way == "up" else (line.tail, line.head)
        touching.setdefault(near, []).append((far, k))
    parent_of = {server: server}
    steps = {server: end}
    best: dict[str, tuple[tuple[float, int], str, int]] = {}
    heap = [((0.0, 0), server)]
    while heap:
        (latency_s, hops), node = heapq.heappop(heap)
        if node in steps and node != server:
            continue
        if node in best:
            _, parent, line_index = best.pop(node)
            parent_of[node] = parent
            steps[node] = routes.step(line_index, steps[parent])
        for far, k in touching.get(node, ()):
            if far in steps:
                continue
            cost = (latency_s + lines[k].latency_s, hops + 1)
            rival = best.get(far)
            if rival is None or cost < rival[0]:
                best[far] = (cost, node, k)
                heapq.heappush(heap, (cost, far))
            elif cost == rival[0] and _comes_first(node, rival[1], parent_of):
                best[far] = (cost, node, k)
    return steps


def _comes_first(a: str, b: str, parent_of: Mapping[str, str]) -> bool:
    """Return whether the names on the way to `a` stand before those to `b`.

    Both ways are equally long.
    """
    while parent_of[a] != parent_of[b]:
        a, b = parent_of[a], parent_of[b]
    return a < b
