"""From the plain values of a scenario to a `Topology`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from simfed.errors import InputError
from simfed.net import trace_files, traces
from simfed.net.graphs import Tier, graph, read_graph, tree
from simfed.net.models import Model, make_model
from simfed.net.topology import Access, Direction, Line, Star, Topology
from simfed.net.traces import LinkTrace, Trace
from simfed.seeding import Streams

__all__ = ["build", "build_model"]

Plain = Mapping[str, Any]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]

MOST_PIECES_TOGETHER = 100_000_000
"""Of all traces of a network, 16 bytes each."""


def build(
    network: Plain,
    links: Sequence[Plain],
    streams: Streams,
    *,
    link_of_client: Sequence[int] | Ints | None = None,
    folder: str | FilePath = ".",
) -> Topology:
    """The topology that a scenario describes.

    network: what `simfed.scenario.network.Network.plain()` gives; `links`: what `Link.plain()`
    gives, one per group of clients; base units throughout, None for unlimited, missing keys are
    defaults; rates, latencies and losses may be arrays, with a number for each of the link's
    clients in the order of their ids. link_of_client: for each client the index of its link; by
    default links are per client. folder: where relative paths of trace and graph files start.

    Random traces and offsets come from `streams`: ("trace-offset", client) and
    ("trace", client, "up" or "down") for a client's links, the link's name in place of the client
    for the others. So adding clients changes nobody's trace, and the two directions of a client
    stay in step.

    Raises: `InputError`, with `clients[i].link.…` (i: the index in `links`) or `network.…` as
    place.

    >>> star = build({"topology": "star"}, [{"up": 1e6}, {"up": None}], Streams(0))
    >>> star.path(0, "up").links, star.path(1, "up").links
    ((0,), ())
    """
    return _Builder(network, links, streams, link_of_client, FilePath(folder)).build()


def build_model(network: Plain) -> Model:
    """The network model that a scenario names, with its options.

    >>> build_model({"model": "tcp", "tcp": {"handshake": False}}).handshake
    False
    """
    options = network.get("tcp") or {}
    if network.get("model", "fluid") != "tcp":
        return make_model("fluid", where="network.model")
    names = {"mss": "mss_bytes", "header": "header_bytes"}
    renamed = {names.get(key, key): value for key, value in options.items()}
    return make_model({"kind": "tcp", **renamed}, where="network.tcp")


class _Builder:
    def __init__(
        self,
        network: Plain,
        links: Sequence[Plain],
        streams: Streams,
        link_of_client: Sequence[int] | Ints | None,
        folder: FilePath,
    ) -> None:
        self.network = network
        self.links = links
        self.streams = streams
        self.folder = folder
        chosen = range(len(links)) if link_of_client is None else link_of_client
        self.link_of_client = np.asarray(chosen, dtype=np.int64)
        self.clients = len(self.link_of_client)
        self._files: dict[tuple[Any, ...], dict[float, Trace]] = {}
        """By what is read and by the factor on it."""
        self._pieces = 0

    def build(self) -> Topology:
        server = self.network.get("server") or {}
        ends: dict[str, Any] = {
            "receive_bytes_per_s": self._rate(
                server.get("receive"), "network.server.receive", "server/receive"
            ),
            "send_bytes_per_s": self._rate(
                server.get("send"), "network.server.send", "server/send"
            ),
            "server_latency_s": server.get("latency") or 0.0,
            "server_down_latency_s": server.get("down_latency"),
        }
        kind = self.network.get("topology", "star")
        self._check_links(kind)
        if kind == "star":
            access = self._access()
            return Star(
                self.clients,
                up_bytes_per_s=access.up_bytes_per_s,
                down_bytes_per_s=access.down_bytes_per_s,
                latency_s=access.latency_s,
                down_latency_s=access.down_latency_s,
                loss=access.loss,
                traces=access.traces,
                **ends,
            )
        if kind == "tree":
            return self._tree(ends)
        if kind == "graph":
            return self._graph(ends, server.get("node") or "server")
        raise InputError("star, tree or graph", where="network.topology", got=kind)

    def _check_links(self, topology: str) -> None:
        for i, link in enumerate(self.links):
            if topology == "star" and link.get("at") is not None:
                raise InputError(
                    "only with topology tree or graph",
                    where=f"clients[{i}].link.at",
                    got=link["at"],
                )
            self._check_loss(link.get("loss"), f"clients[{i}].link.loss")

    def _check_loss(self, loss: Any, where: str) -> None:
        if np.any(_or_zero(loss)) and self.network.get("model", "fluid") == "fluid":
            raise InputError(
                "no loss with model fluid, which ignores it", where=where, got=float(np.max(loss))
            )

    # ---- clients -------------------------------------------------------------------------------

    def _access(self) -> Access:
        found: dict[tuple[int, Direction], LinkTrace] = {}
        ways: tuple[Direction, Direction] = ("up", "down")
        for way in ways:
            for i, link in enumerate(self.links):
                spec, where = link.get(way), f"clients[{i}].link.{way}"
                if isinstance(spec, Mapping):
                    for client in np.flatnonzero(self.link_of_client == i).tolist():
                        found[client, way] = self._trace(spec, where, client, way)
                elif spec is not None:
                    _check_rates(spec, where)
        latencies = [_latencies_s(link) for link in self.links]
        return Access(
            self._column([_untraced(link.get("up")) for link in self.links]),
            self._column([_untraced(link.get("down")) for link in self.links]),
            self._column([up for up, _ in latencies]),
            self._column([down for _, down in latencies]),
            self._column([_or_zero(link.get("loss")) for link in self.links]),
            found,
        )

    def _column(self, of_link: Sequence[Any]) -> Floats:
        """A number per client: its link's, or its own where the link has an array of them."""
        own = {i: value for i, value in enumerate(of_link) if isinstance(value, np.ndarray)}
        alike = np.array([inf if i in own else value for i, value in enumerate(of_link)], float)
        column: Floats = alike[self.link_of_client]
        for i, values in own.items():
            column[self.link_of_client == i] = values
        return column

    # ---- the rest ------------------------------------------------------------------------------

    def _tree(self, ends: dict[str, Any]) -> Topology:
        tiers = []
        for i, spec in enumerate(self.network.get("tiers") or ()):
            plain = Tier(spec["name"], spec.get("count", 1))
            rates = {
                way: [
                    self._rate(spec.get(way), f"network.tiers[{i}].{way}", f"{plain.node(k)}/{way}")
                    for k in range(plain.count)
                ]
                for way in ("up", "down")
            }
            loss = spec.get("loss") or 0.0
            self._check_loss(loss, f"network.tiers[{i}].loss")
            up_s, down_s = _latencies_s(spec)
            tiers.append(
                Tier(plain.name, plain.count, rates["up"], rates["down"], up_s, down_s, loss)
            )
        if not tiers:
            raise InputError("at least one tier with topology tree", where="network.tiers", got=[])
        return tree(
            self.clients, self._access(), tiers, node_of_client=self._tree_nodes(tiers[0]), **ends
        )

    def _tree_nodes(self, tier: Tier) -> list[int]:
        """Clients in equal blocks, but those whose link says `at` where they want to be."""
        nodes = {tier.node(k): k for k in range(tier.count)}
        blocks: list[int] = (np.arange(self.clients) * tier.count // self.clients).tolist()
        for i, link in enumerate(self.links):
            at = link.get("at")
            if at is None:
                continue
            if at not in nodes:
                allowed = (
                    f"a node of tier {tier.name}: {tier.node(0)} to {tier.node(tier.count - 1)}"
                )
                raise InputError(allowed, where=f"clients[{i}].link.at", got=at)
            for client in np.flatnonzero(self.link_of_client == i).tolist():
                blocks[client] = nodes[at]
        return blocks

    def _graph(self, ends: dict[str, Any], server: str) -> Topology:
        file = self.network.get("file")
        lines = read_graph(self.folder / file) if file else self._edges()
        for line in lines if file else ():
            self._check_loss(line.loss, f"network.file: edge {line.tail} to {line.head}: loss")
        wanted = [self.links[i].get("at") for i in self.link_of_client.tolist()]
        routes = self.network.get("routes") or ()
        return graph(
            self.clients,
            self._access(),
            lines,
            node_of_client=wanted,
            routes=routes,
            server=server,
            where="network.routes",
            **ends,
        )

    def _edges(self) -> list[Line]:
        lines = []
        for i, edge in enumerate(self.network.get("edges") or ()):
            where = f"network.edges[{i}]"
            first, second = edge["between"]
            loss = edge.get("loss") or 0.0
            self._check_loss(loss, f"{where}.loss")
            up_s, down_s = _latencies_s(edge)
            ways = (("up", first, second, up_s), ("down", second, first, down_s))
            for way, tail, head, latency_s in ways:
                if way == "down" and edge.get("one_way"):
                    continue
                name = f"{tail}>{head}"
                rate = self._rate(edge.get(way), f"{where}.{way}", name)
                lines.append(Line(name, tail, head, rate, latency_s, loss))
        return lines

    # ---- rates and traces ----------------------------------------------------------------------

    def _rate(self, spec: Any, where: str, name: str) -> float | LinkTrace:
        if spec is None:
            return inf
        if isinstance(spec, Mapping):
            return self._trace(spec, where, name, "")
        return _checked_rate(spec, where)

    def _trace(self, spec: Plain, where: str, link: int | str, way: str) -> LinkTrace:
        """`link` is the client, or the name of a link that is not a client's."""
        try:
            if spec.get("file") is not None:
                trace = self._read(_with_own_column(spec, link))
            else:
                trace = self._generate(spec, self.streams("trace", link, way))
                trace = self._kept(trace.scaled(spec.get("scale", 1.0)))
        except InputError as error:
            raise error.within(where) from None
        offset = spec.get("offset", "random" if spec["end"] == "loop" else 0.0)
        if offset == "random":
            offset = self.streams("trace-offset", link).random() * trace.duration_s
        return LinkTrace(trace, float(offset))

    def _read(self, spec: Plain) -> Trace:
        keys = (
            "file",
            "format",
            "end",
            "bin",
            "time_column",
            "rate_column",
            "time_unit",
            "rate_unit",
        )
        memo = tuple(spec.get(key) for key in keys)
        if memo not in self._files:
            path, end = self.folder / spec["file"], spec["end"]
            if spec["format"] == "mahimahi":
                found = trace_files.read_mahimahi(path, end, bin_s=spec.get("bin", 0.1))
            elif spec["format"] == "pensieve":
                found = trace_files.read_pensieve(path, end)
            else:
                options = {key: spec[key] for key in keys[4:] if spec.get(key) is not None}
                found = trace_files.read_csv(path, end, **options)
            self._files[memo] = {1.0: self._kept(found)}
        scaled, scale = self._files[memo], spec.get("scale", 1.0)
        if scale not in scaled:
            scaled[scale] = self._kept(scaled[1.0].scaled(scale))
        return scaled[scale]

    def _kept(self, trace: Trace) -> Trace:
        """`trace`, counted: all traces of a network have to fit into memory."""
        self._pieces += len(trace.starts_s)
        if self._pieces > MOST_PIECES_TOGETHER:
            allowed = f"traces of at most {MOST_PIECES_TOGETHER:,} pieces together"
            raise InputError(allowed, got="more")
        return trace

    def _generate(self, spec: Plain, rng: np.random.Generator) -> Trace:
        made = spec["generate"]
        duration_s = made.get("length") or 600.0
        if made["kind"] == "markov-on-off":
            return traces.markov_on_off(
                rng,
                on_bytes_per_s=made["high"],
                off_bytes_per_s=made["low"],
                mean_on_s=made["mean_high"],
                mean_off_s=made["mean_low"],
                duration_s=duration_s,
                end=spec["end"],
            )
        return traces.lognormal_ar1(
            rng,
            mean_bytes_per_s=made["mean"],
            cv=made["cv"],
            correlation=made["correlation"],
            step_s=made["step"],
            duration_s=duration_s,
            end=spec["end"],
        )


def _with_own_column(spec: Plain, link: int | str) -> Plain:
    """`{client}` in the name of a column of capacities stands for the client's id."""
    column = spec.get("rate_column")
    if not isinstance(column, str) or "{client}" not in column:
        return spec
    if isinstance(link, str):
        allowed = "a column's name without {client}: this link is no client's"
        raise InputError(allowed, where="rate_column", got=column)
    return {**spec, "rate_column": column.replace("{client}", str(link))}


def _latencies_s(spec: Plain) -> tuple[Any, Any]:
    """Of the way up and the way down."""
    up, down = _or_zero(spec.get("latency")), spec.get("down_latency")
    return up, up if down is None else down


def _or_zero(value: Any) -> Any:
    return 0.0 if value is None else value


def _untraced(rate: Any) -> Any:
    """A rate as a number; a trace, which replaces it, as no limit."""
    return inf if rate is None or isinstance(rate, Mapping) else rate


def _checked_rate(rate: Any, where: str) -> float:
    _check_rates(rate, where)
    return float(rate)


def _check_rates(rates: Any, where: str) -> None:
    """Of one client, or of many."""
    for rate in np.ravel(rates)[~((np.ravel(rates) > 0) & (np.ravel(rates) < inf))]:
        raise InputError("a rate above 0 bytes/s", where=where, got=float(rate))
