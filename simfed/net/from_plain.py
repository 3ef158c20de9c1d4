"""From the plain values of a scenario to a `Topology`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from simfed.ground.arrays import Floats, Integers
from simfed.ground.errors import InputError, within
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.net import trace_files, traces
from simfed.net.cells_from_plain import Technologies, join_cells, place_in_cells, read_cells
from simfed.net.graphs import Tier, graph, read_graph, tree
from simfed.net.models import Model, make_model
from simfed.net.topology import Access, Direction, Line, Star, Topology
from simfed.net.traces import LinkTrace, Trace

Spec = Mapping[str, Plain]
"""A mapping of a scenario as plain values, in base units."""

_CSV_KEYS = ("time_column", "rate_column", "time_unit", "rate_unit")
"""Keys of a trace in a file that are options of `read_csv`."""

MOST_PIECES_TOGETHER = 100_000_000
"""Pieces of all traces of a network, 16 bytes each."""


def build(
    network: Spec,
    links: Sequence[Spec],
    streams: Streams,
    *,
    link_of_client: Sequence[int] | Integers | None = None,
    folder: str | FilePath = ".",
) -> Topology:
    """The topology that a scenario describes.

    network: what `simfed.scenario.network.NetworkSpec.plain()` gives; `links`: what
    `LinkSpec.plain()` gives, one per group of clients; base units throughout, None for unlimited,
    missing keys are defaults; rates, latencies and losses may be arrays, with a number for each of
    the link's clients in the order of their ids. link_of_client: for each client the index of its
    link; by default links are per client. folder: where relative paths of trace and graph files
    start.

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
    link_numbers = range(len(links)) if link_of_client is None else link_of_client
    clients = np.asarray(link_numbers, dtype=np.int64)
    return _Builder(network, links, streams, clients, FilePath(folder)).build()


def build_model(network: Spec) -> Model:
    """The network model that a scenario names, with its options.

    >>> build_model({"model": "tcp", "tcp": {"handshake": False}}).handshake
    False
    """
    options = network.get("tcp") or {}
    if network.get("model", "fluid") != "tcp":
        return make_model("fluid", where="network.model")
    renamed = {{"header": "header_bytes"}.get(key, key): value for key, value in options.items()}
    return make_model({"kind": "tcp", **renamed}, where="network.tcp")


@dataclass
class _Builder:
    """What `build` is given, and what it has read so far."""

    network: Spec
    links: Sequence[Spec]
    streams: Streams
    link_of_client: Integers
    folder: FilePath
    _files: dict[tuple[object, ...], dict[float, Trace]] = field(default_factory=dict)
    """Traces by what is read and by the factor on it."""
    _pieces: int = 0
    _cells: Technologies = field(default_factory=dict)

    @property
    def clients(self) -> int:
        return len(self.link_of_client)

    def build(self) -> Topology:
        server = self.network.get("server") or {}
        rates = {
            f"{way}_bytes_per_s": self._rate(
                server.get(way), f"network.server.{way}", f"server/{way}"
            )
            for way in ("receive", "send")
        }
        ends: dict[str, Any] = {
            **rates,
            "server_latency_s": server.get("latency") or 0.0,
            "server_down_latency_s": server.get("down_latency"),
        }
        kind = self.network.get("topology", "star")
        self._check_links(kind)
        self._cells = read_cells(self.network)
        self.links = place_in_cells(self.network, self.links, self._cells)
        if kind == "star":
            return Star(self.clients, **vars(self._access()), **ends)
        if kind == "tree":
            return self._tree(ends)
        if kind == "graph":
            return self._graph(ends, server.get("node") or "server")
        raise InputError("star, tree or graph", where="network.topology", got=kind)

    def _check_links(self, topology: str) -> None:
        for i, link in enumerate(self.links):
            if topology == "star" and link.get("at") is not None:
                where, got = f"clients[{i}].link.at", link["at"]
                allowed, problem = "topology tree or graph", "there are no nodes to be at"
                raise InputError(allowed, where=where, got=got, problem=problem)
            self._check_loss(link.get("loss"), f"clients[{i}].link.loss")

    def _check_loss(self, loss: Any, where: str) -> None:
        if np.any(_or_zero(loss)) and self.network.get("model", "fluid") == "fluid":
            problem, got = "model fluid ignores losses", float(np.max(loss))
            raise InputError("no loss, or model tcp", where=where, got=got, problem=problem)

    # ---- clients -------------------------------------------------------------------------------

    def _access(self) -> Access:
        link_traces: dict[tuple[int, Direction], LinkTrace] = {}
        ways: tuple[Direction, Direction] = ("up", "down")
        for way in ways:
            for i, link in enumerate(self.links):
                # a radio has one rate for both ways
                key, stream = ("rate", "") if link.get("rate") is not None else (way, way)
                spec, where = link.get(way), f"clients[{i}].link.{key}"
                if isinstance(spec, Mapping):
                    for client in np.flatnonzero(self.link_of_client == i).tolist():
                        link_traces[client, way] = self._trace(spec, where, client, stream)
        latencies = [_read_latencies_s(link) for link in self.links]
        access = Access(
            self._column([_read_fixed_rate(link.get("up")) for link in self.links]),
            self._column([_read_fixed_rate(link.get("down")) for link in self.links]),
            self._column([up for up, _ in latencies]),
            self._column([down for _, down in latencies]),
            self._column([_or_zero(link.get("loss")) for link in self.links]),
            link_traces,
        )
        shares = {name: self._share(name) for name in self._cells}
        return join_cells(access, self.links, self.link_of_client, self._cells, shares)

    def _share(self, cell: str) -> float | LinkTrace:
        """Of the time in which the air is the cell's. Raises: `InputError` for a trace that leaves
        (0, 1]."""
        spec, where = self.network["cells"][cell].get("share", 1.0), f"network.cells.{cell}.share"
        if not isinstance(spec, Mapping):
            return float(spec)
        # a number without a unit, as a trace holds it
        varying = self._trace({"rate_unit": "B/s", **spec}, where, f"cell {cell}", "")
        trace = varying.trace
        assert isinstance(trace, Trace)
        if (spec.get("generate") or {}).get("kind") == "lognormal-ar1":
            capped = np.minimum(trace.rates_bytes_per_s, 1.0)
            trace = Trace.of(trace.starts_s, capped, trace.duration_s, trace.end, where=where)
        for share in (trace.lowest_bytes_per_s, trace.peak_bytes_per_s):
            if not 0 < share <= 1:
                raise InputError("shares above 0, at most 1", where=where, got=share)
        return replace(varying, trace=trace)

    def _column(self, values: Sequence[Any]) -> Floats:
        """A number per client: its link's, or its own where the link has an array of them."""
        arrays = {i: value for i, value in enumerate(values) if isinstance(value, np.ndarray)}
        alike = np.array([inf if i in arrays else value for i, value in enumerate(values)], float)
        column: Floats = alike[self.link_of_client]
        for i, array in arrays.items():
            column[self.link_of_client == i] = array
        return column

    # ---- the rest ------------------------------------------------------------------------------

    def _tree(self, ends: dict[str, Any]) -> Topology:
        tiers = []
        for i, spec in enumerate(self.network.get("tiers") or ()):
            tier = Tier(spec["name"], spec.get("count", 1))
            rates = {
                way: [
                    self._rate(spec.get(way), f"network.tiers[{i}].{way}", f"{tier.node(k)}/{way}")
                    for k in range(tier.count)
                ]
                for way in ("up", "down")
            }
            loss = spec.get("loss") or 0.0
            self._check_loss(loss, f"network.tiers[{i}].loss")
            up_s, down_s = _read_latencies_s(spec)
            tiers.append(
                Tier(tier.name, tier.count, rates["up"], rates["down"], up_s, down_s, loss)
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
            if at is None and link.get("cell") is not None and tier.count > 1:
                allowed, where = f"a node of tier {tier.name}", f"network.cells.{link['cell']}.at"
                raise InputError(allowed, where=where, problem="it is missing")
            if at is None:
                continue
            if at not in nodes:
                allowed = (
                    f"a node of tier {tier.name}: {tier.node(0)} to {tier.node(tier.count - 1)}"
                )
                cell = link.get("cell")
                where = f"network.cells.{cell}.at" if cell else f"clients[{i}].link.at"
                raise InputError(allowed, where=where, got=at)
            for client in np.flatnonzero(self.link_of_client == i).tolist():
                blocks[client] = nodes[at]
        return blocks

    def _graph(self, ends: dict[str, Any], server: str) -> Topology:
        file = self.network.get("file")
        missing = (self.network.get("capacity") or {}).get("missing")
        missing_bytes_per_s = inf if missing == "unlimited" else missing
        lines = read_graph(self.folder / file, missing_bytes_per_s) if file else self._edges()
        for line in lines if file else ():
            self._check_loss(line.loss, f"network.file: edge {line.tail} to {line.head}: loss")
        nodes = [self.links[i].get("at") for i in self.link_of_client.tolist()]
        ends |= {"server": server, "where": "network.routes"}
        routes = self.network.get("routes") or ()
        access = self._access()
        return graph(self.clients, access, lines, node_of_client=nodes, routes=routes, **ends)

    def _edges(self) -> list[Line]:
        lines = []
        for i, edge in enumerate(self.network.get("edges") or ()):
            where = f"network.edges[{i}]"
            first, second = edge["between"]
            loss = edge.get("loss") or 0.0
            self._check_loss(loss, f"{where}.loss")
            up_s, down_s = _read_latencies_s(edge)
            ways = (("up", first, second, up_s), ("down", second, first, down_s))
            for way, tail, head, latency_s in ways:
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
        return float(spec)

    def _trace(self, spec: Spec, where: str, link: int | str, way: str) -> LinkTrace:
        """`link` is the client, or the name of a link that is not a client's."""
        with within(where):
            if spec.get("file") is not None:
                trace = self._read(_name_column(spec, link))
            else:
                trace = self._generate(spec, self.streams("trace", link, way))
                trace = self._count_pieces(trace.scaled(spec.get("scale", 1.0)))
        offset = spec.get("offset", "random" if spec["end"] == "loop" else 0.0)
        if offset == "random":
            offset = self.streams("trace-offset", link).random() * trace.duration_s
        return LinkTrace(trace, float(offset))

    def _read(self, spec: Spec) -> Trace:
        """The trace in a file, times the factor `scale`; each is read and scaled once."""
        keys = ("file", "format", "end", "bin", *_CSV_KEYS)
        memo = tuple(spec.get(key) for key in keys)
        if memo not in self._files:
            path, end = self.folder / spec["file"], spec["end"]
            if spec["format"] == "mahimahi":
                trace = trace_files.read_mahimahi(path, end, bin_s=spec.get("bin", 0.1))
            elif spec["format"] == "pensieve":
                trace = trace_files.read_pensieve(path, end)
            else:
                options = {key: spec[key] for key in _CSV_KEYS if spec.get(key) is not None}
                trace = trace_files.read_csv(path, end, **options)
            self._files[memo] = {1.0: self._count_pieces(trace)}
        scaled, scale = self._files[memo], spec.get("scale", 1.0)
        if scale not in scaled:
            scaled[scale] = self._count_pieces(scaled[1.0].scaled(scale))
        return scaled[scale]

    def _count_pieces(self, trace: Trace) -> Trace:
        """`trace` itself. Raises: `InputError` where all traces together are too many pieces."""
        self._pieces += len(trace.starts_s)
        if self._pieces > MOST_PIECES_TOGETHER:
            allowed = f"traces of at most {MOST_PIECES_TOGETHER:,} pieces together"
            raise InputError(allowed, got="more")
        return trace

    def _generate(self, spec: Spec, rng: np.random.Generator) -> Trace:
        options = spec["generate"]
        duration_s, end = options.get("length") or 600.0, spec["end"]
        if options["kind"] == "markov-on-off":
            return traces.markov_on_off(
                rng,
                on_bytes_per_s=options["high"],
                off_bytes_per_s=options["low"],
                mean_on_s=options["mean_high"],
                mean_off_s=options["mean_low"],
                duration_s=duration_s,
                end=end,
            )
        return traces.lognormal_ar1(
            rng,
            mean_bytes_per_s=options["mean"],
            cv=options["cv"],
            correlation=options["correlation"],
            step_s=options["step"],
            duration_s=duration_s,
            end=end,
        )


def _name_column(spec: Spec, link: int | str) -> Spec:
    """`{client}` in the name of a column of capacities stands for the client's id."""
    column = spec.get("rate_column")
    if not isinstance(column, str) or "{client}" not in column:
        return spec
    if isinstance(link, str):
        allowed = "a column's name without {client}: this link is no client's"
        raise InputError(allowed, where="rate_column", got=column)
    return {**spec, "rate_column": column.replace("{client}", str(link))}


def _read_latencies_s(spec: Spec) -> tuple[Any, Any]:
    """The latencies of the way up and the way down."""
    up, down = _or_zero(spec.get("latency")), spec.get("down_latency")
    return up, up if down is None else down


def _or_zero(value: Any) -> Any:
    return 0.0 if value is None else value


def _read_fixed_rate(rate: Any) -> Any:
    """A rate as a number; a trace, which replaces it, as no limit."""
    return inf if rate is None or isinstance(rate, Mapping) else rate
