"""Trees and any other graph between the clients' links and the server.

Routes are shortest in latency (then in the number of links, then alphabetically), each direction on
its own, unless the user gives them. Routing is fixed for a run: nothing reacts to load.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np

from simfed import units
from simfed.errors import InputError, did_you_mean, listed
from simfed.net.topology import Access, Line, Route, Topology, server_lines
from simfed.net.traces import LinkTrace

if TYPE_CHECKING:
    import networkx

__all__ = ["Tier", "graph", "lines_of", "read_graph", "tree"]


@dataclass(frozen=True)
class Tier:
    """One level of a tree: `count` nodes, each with a link towards the server."""

    name: str
    count: int = 1
    up_bytes_per_s: float | Sequence[float | LinkTrace] = inf
    """One number for all nodes of the tier, or one (or a trace) per node."""
    down_bytes_per_s: float | Sequence[float | LinkTrace] = inf
    latency_s: float = 0.0
    down_latency_s: float | None = None
    """Of the way down; `latency_s` if not given."""
    loss: float = 0.0

    def node(self, index: int) -> str:
        """`edge-2`; a tier of one node is called by its bare name."""
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
    """Clients, then `tiers` from the clients' side to the server's, then the server's own link.

    Each tier's nodes are dealt in equal blocks to the nodes of the next tier, and the clients to the
    nodes of the first, unless `node_of_client` gives an index into these for every client.

    >>> edge = Tier("edge", 2, up_bytes_per_s=5e6, latency_s=0.01)
    >>> small = tree(4, Access(up_bytes_per_s=4e6), [edge], receive_bytes_per_s=8e6)
    >>> [small.link_name(link) for link in small.path(3, "up").links]
    ['client-3/up', 'edge-1/up', 'server/receive']
    """
    if not tiers:
        raise InputError("at least one tier of nodes", where="tiers", got=[])
    for tier in tiers:
        if tier.count < 1:
            raise InputError("at least one node", where=f"tier {tier.name}", got=tier.count)
    lines: list[Line] = []
    first_line: list[int] = []
    for level, tier in enumerate(tiers):
        first_line.append(len(lines))
        for k in range(tier.count):
            node = tier.node(k)
            above = tiers[level + 1] if level + 1 < len(tiers) else None
            parent = "gateway" if above is None else above.node(_block(k, tier.count, above.count))
            up, down = _pick(tier.up_bytes_per_s, k), _pick(tier.down_bytes_per_s, k)
            down_s = tier.latency_s if tier.down_latency_s is None else tier.down_latency_s
            lines.append(Line(f"{node}/up", node, parent, up, tier.latency_s, tier.loss))
            lines.append(Line(f"{node}/down", parent, node, down, down_s, tier.loss))
    own = len(lines)
    lines += server_lines(
        "gateway",
        receive_bytes_per_s,
        send_bytes_per_s,
        server_latency_s,
        server_down_latency_s,
    )
    routes = []
    for k in range(tiers[0].count):
        way, index = [], k
        for level, tier in enumerate(tiers):
            way.append(first_line[level] + 2 * index)
            if level + 1 < len(tiers):
                index = _block(index, tier.count, tiers[level + 1].count)
        back = [line + 1 for line in reversed(way)]
        routes.append(Route(tiers[0].node(k), (*way, own), (own + 1, *back)))
    if node_of_client is None:
        node_of_client = (np.arange(clients) * tiers[0].count // clients).tolist()
    return Topology(clients, access, lines, routes, node_of_client)


def _block(index: int, count: int, above: int) -> int:
    return index * above // count


def _pick(rate: float | Sequence[float | LinkTrace], index: int) -> float | LinkTrace:
    return rate if isinstance(rate, (int, float)) else rate[index]


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
) -> Topology:
    """Any graph: `lines` are its directed edges, `server` the name of the server's node.

    node_of_client: the node of each client; None for a client that is itself a node `client-i`.
    routes: explicit ways as lists of nodes, from a node to the server or from the server to a node;
    those of a node `client-i` are that client's own.

    Raises: `InputError` for a client that has no way to the server or back, and for a route over
    nodes that no line joins.

    >>> lines = [Line("a>server", "a", "server", 1e6, 0.01), Line("server>a", "server", "a", 9e6, 0.01)]
    >>> small = graph(1, Access(up_bytes_per_s=2e6), lines, node_of_client=["a"])
    >>> small.path(0, "up")
    Path(links=(0, 2), crossed=(0, 2), latency_s=0.01, rtt_s=0.02, loss=0.0)
    """
    own = server_lines(
        server,
        receive_bytes_per_s,
        send_bytes_per_s,
        server_latency_s,
        server_down_latency_s,
        server="application",
    )
    last = len(lines)
    nodes = {node for line in lines for node in (line.tail, line.head)} | {server}
    given = _explicit(routes, lines, server)
    found = {way: _shortest(lines, server, way) for way in ("up", "down")}
    made: dict[str, int] = {}
    made_routes: list[Route] = []
    node_indices = []
    for client, asked in enumerate(node_of_client):
        name = f"client-{client}"
        node = name if asked is None else asked
        if node not in nodes:
            allowed = "a node of the network" + (" to be attached to" if asked is None else "")
            raise InputError(allowed, where=name, got=node, hint=did_you_mean(node, nodes))
        # clients of one node share its route, but for those that were given one of their own
        owner = name if ((name, "up") in given or (name, "down") in given) else node
        if owner not in made:
            ways = {
                way: given.get((owner, way), given.get((node, way), found[way].get(node)))
                for way in ("up", "down")
            }
            up, down = ways["up"], ways["down"]
            if up is None:
                got = f"none from its node {node!r}"
                raise InputError(f"a path to node {server!r}", where=name, got=got)
            if down is None:
                got = f"none to its node {node!r}"
                raise InputError(f"a path back from node {server!r}", where=name, got=got)
            made[owner] = len(made_routes)
            made_routes.append(Route(node, (*up, last), (last + 1, *down)))
        node_indices.append(made[owner])
    return Topology(clients, access, [*lines, *own], made_routes, node_indices, server)


def _explicit(
    routes: Iterable[Sequence[str]], lines: Sequence[Line], server: str
) -> dict[tuple[str, str], tuple[int, ...]]:
    """User-given routes by (node or client, direction). A leading `client-i` that no line touches
    stands for that client's own link."""
    between: dict[tuple[str, str], int] = {}
    for k, line in enumerate(lines):
        between.setdefault((line.tail, line.head), k)
    nodes = {node for pair in between for node in pair}
    given: dict[tuple[str, str], tuple[int, ...]] = {}
    for number, route in enumerate(routes):
        where = f"routes[{number}]"
        if len(route) < 2 or (route[0] == server) == (route[-1] == server):
            allowed = f"a list of nodes that begins or ends with {server!r}"
            raise InputError(allowed, where=where, got=list(route))
        way = "up" if route[-1] == server else "down"
        owner = route[0] if way == "up" else route[-1]
        hops = list(route)
        if owner not in nodes and owner.startswith("client-"):
            hops.remove(owner)
        indices = []
        for pair in pairwise(hops):
            if pair not in between:
                raise InputError("nodes that a link joins", where=where, got=" to ".join(pair))
            indices.append(between[pair])
        given[owner, way] = tuple(indices)
    return given


def _shortest(lines: Sequence[Line], server: str, way: str) -> dict[str, tuple[int, ...]]:
    """For every node that has one, the way to the server (`up`) or from it (`down`).

    Dijkstra with the ties decided by the graph alone; networkx decides them by the order of edges,
    and two files of the same network would then give different runs.
    """
    touching: dict[str, list[tuple[str, int]]] = {}
    for k, line in enumerate(lines):
        near, far = (line.head, line.tail) if way == "up" else (line.tail, line.head)
        touching.setdefault(near, []).append((far, k))
    found: dict[str, tuple[int, ...]] = {}
    heap: list[tuple[float, int, tuple[str, ...], tuple[int, ...]]] = [(0.0, 0, (server,), ())]
    while heap:
        latency_s, hops, names, indices = heapq.heappop(heap)
        node = names[-1]
        if node in found:
            continue
        found[node] = indices
        for far, k in touching.get(node, ()):
            if far not in found:
                longer = (k, *indices) if way == "up" else (*indices, k)
                heapq.heappush(
                    heap, (latency_s + lines[k].latency_s, hops + 1, (*names, far), longer)
                )
    return found


# ---- files -------------------------------------------------------------------------------------


def read_graph(path: str | FilePath) -> list[Line]:
    """The lines of a GraphML or GML file.

    Edge attributes are text with units: `capacity` (both directions, or the one of a directed
    edge), or `up` (source to target) and `down` (back) on an undirected edge; `latency`, and
    `down_latency` where the way back differs; and the number `loss`. What is missing is unlimited, 0 and 0. Other attributes are ignored.
    """
    import networkx

    readers = {".graphml": networkx.read_graphml, ".gml": networkx.read_gml}
    where = str(path)
    suffix = FilePath(path).suffix.lower()
    if suffix not in readers:
        raise InputError(f"a file ending in {listed(readers)}", where=where, got=suffix)
    try:
        found: Any = readers[suffix](str(path))
    except OSError as error:
        raise InputError("a readable file", where=where, got=error.strerror) from None
    except Exception as error:  # the parsers raise many kinds; all mean the same to the user
        raise InputError(f"a graph in {suffix[1:]} format", where=where, got=str(error)) from None
    return lines_of(found, where=where)


def lines_of(graph: networkx.Graph, *, where: str = "graph") -> list[Line]:
    """The lines of a networkx graph, with edge attributes as in `read_graph`."""
    if graph.number_of_edges() == 0:
        raise InputError("a graph with at least one edge", where=where, got="none")
    lines = []
    for tail, head, data in graph.edges(data=True):
        place = f"{where}: edge {tail} to {head}"
        lines.append(_line(str(tail), str(head), data, "up", place))
        if not graph.is_directed():
            lines.append(_line(str(head), str(tail), data, "down", place))
    return lines


def _line(tail: str, head: str, data: Mapping[str, Any], way: str, where: str) -> Line:
    rate, latency, loss = data.get(way, data.get("capacity")), data.get("latency"), data.get("loss")
    if way == "down":
        latency = data.get("down_latency", latency)
    if loss is not None and not isinstance(loss, (int, float)):
        raise InputError("a number", where=f"{where}: loss", got=loss)
    return Line(
        f"{tail}>{head}",
        tail,
        head,
        inf if rate is None else units.parse_rate(rate, where=f"{where}: {way}"),
        0.0 if latency is None else units.parse_duration(latency, where=f"{where}: latency"),
        0.0 if loss is None else float(loss),
    )
