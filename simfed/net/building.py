"""Builds a `Topology` from a scenario's `network` and its clients' links.

`build` is the entry. Sections come checked by `simfed.net.spec`; here traces are read
or made, cells turn PHY rates into what a client gets alone, and what holds between
sections (a cell without clients, a node that there is not) is refused with its key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, TypeAlias

import numpy as np

from simfed.ground.arrays import Floats, Integers
from simfed.ground.errors import InputError, check_known, listed, within
from simfed.ground.seeding import Streams
from simfed.net import trace_files, traces
from simfed.net.cells import Cellular, Wifi
from simfed.net.delays import Delay, Delays, DrawnDelay, TracedDelay
from simfed.net.graph_files import read_graph
from simfed.net.graphs import Tier, graph, tree
from simfed.net.models import Fluid, Model, Tcp
from simfed.net.spec import (
    CellSpec,
    Generator,
    LatencyTrace,
    LinkSpec,
    NetworkSpec,
    PerMessage,
    ShareTrace,
    TraceSpec,
)
from simfed.net.topology import Access, Cell, Direction, Line, Star, Topology
from simfed.net.traces import LinkTrace, Trace, make_column
from simfed.schema.distribution import LATENCY, Distribution

AnyTrace: TypeAlias = TraceSpec | ShareTrace | LatencyTrace
Technologies: TypeAlias = Mapping[str, Wifi | Cellular]
"""Name of a cell → how its stations share the air."""
_WAYS: tuple[Direction, Direction] = ("up", "down")

MOST_PIECES_TOGETHER = 100_000_000
"""Pieces of all traces of a network, 16 bytes each."""


def build(
    network: NetworkSpec,
    links: Sequence[LinkSpec],
    streams: Streams,
    *,
    link_of_client: Sequence[int] | Integers | None = None,
) -> Topology:
    """Return the topology that a scenario describes.

    Random traces and offsets come from `streams`: ("trace-offset", client) and
    ("trace", client, "up" or "down") for a client's links, the link's name in place of
    the client for the others. So adding clients changes nobody's trace, and the two
    directions of a client stay in step.

    Args:
        network: the section.
        links: one per group of clients; their rates, latencies and losses may be
            arrays, with a number for each of the link's clients in the order of their
            ids.
        streams: keyed generators of the run.
        link_of_client: for each client the index of its link; None: links are per
        client.

    Raises:
        InputError: with `clients[i].link.…` (i: the index in `links`) or `network.…` as
            place.

    >>> star = build(NetworkSpec(), [LinkSpec(up="8 Mbps"), LinkSpec()], Streams(0))
    >>> star.path(0, "up").links, star.path(1, "up").links
    ((0,), ())
    """
    link_numbers = range(len(links)) if link_of_client is None else link_of_client
    clients = np.asarray(link_numbers, dtype=np.int64)
    return _Builder(network, links, streams, clients).build()


def build_model(network: NetworkSpec) -> Model:
    """Return the model of a transfer that a network names.

    >>> spec = {"model": "tcp", "tcp": {"handshake": False}}
    >>> build_model(NetworkSpec.model_validate(spec)).handshake
    False
    """
    tcp = network.tcp
    if tcp is None:
        return Fluid()
    return Tcp(tcp.handshake, header_bytes=tcp.header, window_bytes=tcp.window)


@dataclass
class _Builder:
    """The inputs of `build`, and what it has read so far."""

    network: NetworkSpec
    links: Sequence[LinkSpec]
    streams: Streams
    link_of_client: Integers
    _files: dict[tuple[object, ...], Trace] = field(default_factory=dict)
    """Traces by the factor on them, and by what is read."""
    _sources: dict[str | tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    """The files of what a trace's section names."""
    _pieces: int = 0
    _cells: Technologies = field(default_factory=dict)

    @property
    def clients(self) -> int:
        return len(self.link_of_client)

    def build(self) -> Topology:
        server, kind = self.network.server, self.network.topology
        ends: dict[str, Any] = {
            **{
                f"{way}_bytes_per_s": self._rate(
                    getattr(server, way), f"network.server.{way}", f"server/{way}"
                )
                for way in ("receive", "send")
            },
            "server_latency_s": server.latency,
            "server_down_latency_s": server.down_latency,
        }
        self._check_links()
        delays = self._take_delays()
        self._cells = _make_cells(self.network.cells)
        self.links = _place_in_cells(self.network, self.links, self._cells)
        if kind == "star":
            topology: Topology = Star(
                self.clients, **vars(self._build_access()), **ends
            )
        else:
            topology = (
                self._build_tree(ends) if kind == "tree" else self._build_graph(ends)
            )
        topology.delays = delays
        return topology

    def _check_links(self) -> None:
        """Refuse what a fleet's links say without effect.

        Those of a scenario are checked there.
        """
        for i, link in enumerate(self.links):
            if self.network.topology == "star" and link.at is not None:
                where, problem = f"clients[{i}].link.at", "there are no nodes to be at"
                raise InputError(
                    "topology tree or graph", where=where, got=link.at, problem=problem
                )
            self._check_loss(link.loss, f"clients[{i}].link.loss")

    def _check_loss(self, loss: Any, where: str) -> None:
        if np.any(loss) and self.network.model == "fluid":
            problem, got = "model fluid ignores losses", float(np.max(loss))
            raise InputError(
                "no loss, or model tcp", where=where, got=got, problem=problem
            )

    # ---- clients ---------------------------------------------------------------------

    def _take_delays(self) -> Delays | None:
        """Take latencies that differ from message to message out of the links."""
        taken, rest = [], []
        for i, link in enumerate(self.links):
            keys = ("latency", "down_latency")
            up, down = (self._delay(getattr(link, key), i, key) for key in keys)
            taken.append((up, up if link.down_latency is None else down))
            constant = {k: 0.0 for k, x in zip(keys, (up, down), strict=True) if x}
            rest.append(link.model_copy(update=constant) if constant else link)
        self.links = rest
        several = any(up or down for up, down in taken)
        return Delays(taken, self.link_of_client) if several else None

    def _delay(self, latency: Any, group: int, key: str) -> Delay | None:
        """Return a delay that differs from message to message, else None."""
        down = key == "down_latency"
        if isinstance(latency, LatencyTrace):
            where = f"clients[{group}].link.{key}"
            return TracedDelay(
                self._load_client_traces(latency, where, group, ""), down
            )
        if not isinstance(latency, PerMessage):
            return None
        law: Any = latency.per_message
        if isinstance(law, Distribution):
            law = law.law(LATENCY)
        return DrawnDelay(law, self.streams, _WAYS[down])

    def _load_client_traces(
        self, spec: AnyTrace, where: str, group: int, stream: str
    ) -> dict[int, LinkTrace]:
        """Return the trace of each client of a group, by client id.

        Args:
            spec: the section that all of them share.
            where: names it in errors.
            group: the index of their link.
            stream: the last key of what is drawn for a made-up trace; `up`, `down` or
            empty.
        """
        members = np.flatnonzero(self.link_of_client == group).tolist()
        return {
            client: self._trace(spec, where, client, stream, place)
            for place, client in enumerate(members)
        }

    def _build_access(self) -> Access:
        """Return the clients' own links: a column per quantity, and traces."""
        link_traces: dict[tuple[int, Direction], LinkTrace] = {}
        for way in _WAYS:
            for i, link in enumerate(self.links):
                # a radio has one rate for both ways
                key, stream = ("rate", "") if link.rate is not None else (way, way)
                spec, where = getattr(link, way), f"clients[{i}].link.{key}"
                if isinstance(spec, TraceSpec):
                    of_group = self._load_client_traces(spec, where, i, stream)
                    link_traces |= {(k, way): trace for k, trace in of_group.items()}
        access = Access(
            self._column([_read_fixed_rate(link.up) for link in self.links]),
            self._column([_read_fixed_rate(link.down) for link in self.links]),
            self._column([link.latency for link in self.links]),
            self._column([link.down_s for link in self.links]),
            self._column([link.loss for link in self.links]),
            link_traces,
        )
        return self._join_cells(access)

    def _share(self, cell: str) -> float | LinkTrace:
        """Return the part of the time in which the air is the cell's.

        Raises: `InputError` for a trace that leaves (0, 1].
        """
        spec, where = self.network.cells[cell].share, f"network.cells.{cell}.share"
        if not isinstance(spec, ShareTrace):
            return spec
        varying = self._trace(spec, where, f"cell {cell}", "")
        trace = varying.trace
        assert isinstance(trace, Trace)
        if spec.generate is not None and spec.generate.kind == "lognormal-ar1":
            capped = np.minimum(trace.rates_bytes_per_s, 1.0)
            trace = Trace.of(
                trace.starts_s, capped, trace.duration_s, trace.end, where=where
            )
        for share in (trace.lowest_bytes_per_s, trace.peak_bytes_per_s):
            if not 0 < share <= 1:
                raise InputError("shares above 0, at most 1", where=where, got=share)
        return replace(varying, trace=trace)

    def _column(self, values: Sequence[Any]) -> Floats:
        """Return a number per client: its link's, or its own of the link's array."""
        arrays = {
            i: value for i, value in enumerate(values) if isinstance(value, np.ndarray)
        }
        alike = np.array(
            [inf if i in arrays else value for i, value in enumerate(values)], float
        )
        column: Floats = alike[self.link_of_client]
        for i, array in arrays.items():
            column[self.link_of_client == i] = array
        return column

    def _join_cells(self, access: Access) -> Access:
        """Return `access` with its cells, and clients' rates alone for PHY rates."""
        if not self._cells:
            return access
        shares = {name: self._share(name) for name in self._cells}
        rates = np.array([access.up_bytes_per_s, access.down_bytes_per_s])
        means = rates.copy()
        for (client, way), varying in access.traces.items():
            assert isinstance(varying.trace, Trace)
            rates[_WAYS.index(way), client] = varying.trace.peak_bytes_per_s
            means[_WAYS.index(way), client] = varying.trace.mean_bytes_per_s
        link_traces, joined = dict(access.traces), []
        for name, technology in self._cells.items():
            of_links = [i for i, link in enumerate(self.links) if link.cell == name]
            members = np.flatnonzero(np.isin(self.link_of_client, of_links))
            if isinstance(technology, Wifi):
                for i in of_links:
                    highest = float(rates[0, self.link_of_client == i].max())
                    with _placed_at(f"clients[{i}].link.rate"):
                        technology.check_rate(highest)
                rates[:, members] = technology.alone(rates[0, members])
                weights = technology.weights(means[0, members])
                mean_shares = [float(technology.shares(means[0, members]).mean())] * 2
            else:
                weights = (
                    technology.weights(means[0, members]),
                    technology.weights(means[1, members]),
                )
                mean_shares = means[:, members].mean(axis=1).tolist()
            for client in members.tolist():
                for k, way in enumerate(_WAYS):
                    if (client, way) in link_traces:
                        varying = link_traces[client, way]
                        link_traces[client, way] = _convert_trace(
                            varying, technology, k, mean_shares[k]
                        )
            joined.append(
                Cell(name, members.tolist(), *weights, technology.one_air, shares[name])
            )
        up, down = rates
        return replace(
            access,
            up_bytes_per_s=up,
            down_bytes_per_s=down,
            traces=link_traces,
            cells=joined,
        )

    # ---- the rest --------------------------------------------------------------------

    def _build_tree(self, ends: dict[str, Any]) -> Topology:
        """Return a tree of the network's tiers; `ends`: the server's own link."""
        tiers = []
        for i, spec in enumerate(self.network.tiers):
            tier = Tier(
                spec.name,
                spec.count,
                latency_s=spec.latency,
                down_latency_s=spec.down_latency,
                loss=spec.loss,
            )
            where = f"network.tiers[{i}]"
            self._check_loss(spec.loss, f"{where}.loss")
            up, down = (
                [
                    self._rate(
                        getattr(spec, way), f"{where}.{way}", f"{tier.node(k)}/{way}"
                    )
                    for k in range(tier.count)
                ]
                for way in _WAYS
            )
            tiers.append(replace(tier, up_bytes_per_s=up, down_bytes_per_s=down))
        access, nodes = self._build_access(), self._deal_clients(tiers[0])
        return tree(self.clients, access, tiers, node_of_client=nodes, **ends)

    def _deal_clients(self, tier: Tier) -> list[int]:
        """Deal clients in equal blocks, but those whose link says `at`."""
        nodes = {tier.node(k): k for k in range(tier.count)}
        blocks: list[int] = (
            np.arange(self.clients) * tier.count // self.clients
        ).tolist()
        for i, link in enumerate(self.links):
            where = (
                f"network.cells.{link.cell}.at"
                if link.cell
                else f"clients[{i}].link.at"
            )
            if link.at is None and link.cell is not None and tier.count > 1:
                raise InputError(
                    f"a node of tier {tier.name}", where=where, problem="it is missing"
                )
            if link.at is None:
                continue
            if link.at not in nodes:
                named = f"{tier.node(0)} to {tier.node(tier.count - 1)}"
                raise InputError(
                    f"a node of tier {tier.name}: {named}", where=where, got=link.at
                )
            for client in np.flatnonzero(self.link_of_client == i).tolist():
                blocks[client] = nodes[link.at]
        return blocks

    def _build_graph(self, ends: dict[str, Any]) -> Topology:
        """Return a graph of the network's edges, or of its file's."""
        network = self.network
        if network.file is not None:
            lines = read_graph(network.file, network.capacity, network.latency)
            for line in lines:
                edge = f"edge {line.tail} to {line.head}"
                self._check_loss(line.loss, f"network.file: {edge}: loss")
        else:
            lines = self._list_edge_lines()
        nodes = [self.links[i].at for i in self.link_of_client.tolist()]
        ends |= {"server": network.server.node, "where": "network.routes"}
        access = self._build_access()
        routes = network.routes
        return graph(
            self.clients, access, lines, node_of_client=nodes, routes=routes, **ends
        )

    def _list_edge_lines(self) -> list[Line]:
        """Return both lines of each of the section's edges."""
        lines = []
        for i, edge in enumerate(self.network.edges):
            where = f"network.edges[{i}]"
            first, second = edge.between
            self._check_loss(edge.loss, f"{where}.loss")
            ways = (
                ("up", first, second, edge.latency),
                ("down", second, first, edge.down_s),
            )
            for way, tail, head, latency_s in ways:
                name = f"{tail}>{head}"
                rate = self._rate(getattr(edge, way), f"{where}.{way}", name)
                lines.append(Line(name, tail, head, rate, latency_s, edge.loss))
        return lines

    # ---- rates and traces ------------------------------------------------------------

    def _rate(
        self, spec: float | TraceSpec | None, where: str, name: str
    ) -> float | LinkTrace:
        """Return the rate of a link that is no client's."""
        if isinstance(spec, TraceSpec):
            return self._trace(spec, where, name, "")
        return inf if spec is None else spec

    def _trace(
        self,
        spec: AnyTrace,
        where: str,
        link: int | str,
        way: str,
        place: int | None = None,
    ) -> LinkTrace:
        """Return the trace of a link: a client's, or another's by its name.

        Args:
            spec: its section.
            where: names it in errors.
            link: the client's id, or the link's name; key of what is drawn.
            way: the last key of what is drawn for a made-up trace.
            place: of a client in its group, from 0; picks its file of several.
        """
        with within(where):
            if spec.generate is None:
                trace = self._read(_name_client(self._choose_file(spec, place), link))
            else:
                rng = self.streams("trace", link, way)
                trace = _generate(spec.generate, spec.end, rng)
                trace = self._count_pieces(trace.scaled(spec.factor))
        offset = spec.offset
        if offset == "random":
            offset = self.streams("trace-offset", link).random() * trace.duration_s
        return LinkTrace(trace, float(offset))

    def _choose_file(self, spec: AnyTrace, place: int | None) -> AnyTrace:
        """Return a trace's section with the one file of a link.

        Clients take the files of a list or folder in turn, from the first again after
        the last.
        """
        assert spec.file is not None
        if spec.file not in self._sources:
            self._sources[spec.file] = trace_files.list_traces(spec.file)
        files = self._sources[spec.file]
        if files == (spec.file,):
            return spec
        if place is None:
            allowed = "one file: this link is no client's"
            raise InputError(allowed, where="file", got=f"{len(files)} of them")
        return spec.model_copy(update={"file": files[place % len(files)]})

    def _read(self, spec: AnyTrace) -> Trace:
        """Return the trace in a file, times its factor.

        Each is read and scaled once.
        """
        path, table = spec.file, spec.table
        assert isinstance(path, str)
        bin_s = spec.bin if isinstance(spec, TraceSpec) else 0.0
        memo = (spec.factor, path, spec.format, spec.end, bin_s, *table.values())
        if memo not in self._files:
            if spec.factor != 1:
                whole = self._read(spec.model_copy(update={"factor": 1.0}))
                trace = whole.scaled(spec.factor)
            elif spec.format == "mahimahi":
                trace = trace_files.read_mahimahi(path, spec.end, bin_s=bin_s)
            elif spec.format == "pensieve":
                trace = trace_files.read_pensieve(path, spec.end)
            else:
                trace = trace_files.read_csv(path, spec.end, **table)
            self._files[memo] = self._count_pieces(trace)
        return self._files[memo]

    def _count_pieces(self, trace: Trace) -> Trace:
        """Return `trace`.

        Raises: `InputError` where all traces together are too many pieces.
        """
        self._pieces += len(trace.starts_s)
        if self._pieces > MOST_PIECES_TOGETHER:
            allowed = f"traces of at most {MOST_PIECES_TOGETHER:,} pieces together"
            raise InputError(allowed, got="more")
        return trace


def _generate(
    spec: Generator, end: traces.EndPolicy, rng: np.random.Generator
) -> Trace:
    """Return a trace made up by the section's random process."""
    options: Any = spec
    if spec.kind == "markov-on-off":
        return traces.markov_on_off(
            rng,
            on_bytes_per_s=options.high,
            off_bytes_per_s=options.low,
            mean_on_s=options.mean_high,
            mean_off_s=options.mean_low,
            duration_s=spec.length,
            end=end,
        )
    return traces.lognormal_ar1(
        rng,
        mean_bytes_per_s=options.mean,
        cv=options.cv,
        correlation=options.correlation,
        step_s=options.step,
        duration_s=spec.length,
        end=end,
    )


def _name_client(spec: AnyTrace, client: int | str) -> AnyTrace:
    """Return a trace's section with a client's id for `{client}` in file and columns.

    `client`: a text is the name of a link that is no client's.
    """
    columns = (f"{x}_column" for x in ("time", "elapsed", "rate", "bytes", "latency"))
    names = {key: getattr(spec, key, None) for key in ("file", *columns)}
    own = {
        key: name.replace("{client}", str(client))
        for key, name in names.items()
        if isinstance(name, str) and "{client}" in name
    }
    if own and isinstance(client, str):
        key = next(iter(own))
        allowed = "a name without {client}: this link is no client's"
        raise InputError(allowed, where=key, got=names[key])
    return spec.model_copy(update=own) if own else spec


def _read_fixed_rate(rate: Any) -> Any:
    """Return a rate as a number; a trace, which replaces it, as no limit."""
    return inf if rate is None or isinstance(rate, TraceSpec) else rate


# ---- cells
# -------------------------------------------------------------------------------------
# Before traces are read, each client of a cell gets a link whose rate is its PHY rate
# (in a cellular cell: what it gets alone). Once they are known, PHY rates become what
# each gets alone.


@contextmanager
def _placed_at(where: str) -> Iterator[None]:
    """Name the key that an error of a cell's standard is about."""
    try:
        yield
    except InputError as error:
        raise error.changed(where=where) from None


def _make_cells(specs: Mapping[str, CellSpec]) -> Technologies:
    """Return what cells are.

    Raises: `InputError` for what a standard does not have.
    """
    cells: dict[str, Wifi | Cellular] = {}
    for name, spec in specs.items():
        wifi = spec.wifi
        if wifi is None:
            assert spec.cellular is not None
            cells[name] = Cellular(spec.cellular.scheduler)
            continue
        try:
            cells[name] = Wifi(
                wifi.standard,
                round(wifi.width / 1e6),
                wifi.streams,
                aggregation=wifi.aggregation,
                fair=wifi.fair,
            )
        except InputError as error:
            raise error.changed(
                where=f"network.cells.{name}.wifi.{error.where}"
            ) from None
    return cells


def _place_in_cells(
    network: NetworkSpec, links: Sequence[LinkSpec], cells: Technologies
) -> list[LinkSpec]:
    """Return `links`, those in cells with the rates, latencies and nodes there.

    Raises: `InputError` for a cell that there is not, one without members or without a
    node, and rates that its clients need or do not have.
    """
    members = set()
    placed: list[LinkSpec] = []
    for i, link in enumerate(links):
        name, where = link.cell, f"clients[{i}].link"
        if name is None:
            placed.append(link)
            continue
        check_known(name, cells, "one of network.cells:", where=f"{where}.cell")
        if link.at is not None:
            allowed = f"no node beside cell {name}"
            problem = f"network.cells.{name}.at has it"
            raise InputError(allowed, where=f"{where}.at", got=link.at, problem=problem)
        members.add(name)
        placed.append(_place_link(link, cells[name], network.cells[name].at, where))
    for name, spec in network.cells.items():
        where = f"network.cells.{name}"
        if name not in members:
            allowed = f"clients with link: {{cell: {name}}}"
            raise InputError(allowed, where=where, problem="nobody is in it")
        if network.topology == "graph" and spec.at is None:
            allowed = "a node of the graph to be attached to"
            raise InputError(allowed, where=f"{where}.at", problem="it is missing")
    return placed


def _place_link(
    link: LinkSpec, technology: Wifi | Cellular, at: str | None, where: str
) -> LinkSpec:
    """Return a link in a cell as that of a client with its rates to itself."""
    rates = {key: getattr(link, key) for key in ("rate", "mcs", "up", "down")}
    stated = {key for key, rate in rates.items() if rate is not None}
    up, down = rates["up"], rates["down"]
    if isinstance(technology, Wifi):
        if len(stated) != 1 or not stated & {"rate", "mcs"}:
            got = listed(sorted(stated)) or "neither"
            raise InputError("rate or mcs, in a Wi-Fi cell", where=where, got=got)
        up = rates["rate"]
        if link.mcs is not None:
            with _placed_at(f"{where}.mcs"):
                up = technology.phy_rate(link.mcs)
        down = up
    elif stated != {"up", "down"}:
        allowed = "up and down, in a cellular cell: what each gets alone in it"
        raise InputError(allowed, where=where, got=listed(sorted(stated)) or "neither")
    latency: Any = link.latency
    latencies = {
        "latency": latency + technology.latency_s,
        "down_latency": link.down_s + technology.latency_s,
    }
    return link.model_copy(update={"up": up, "down": down, **latencies, "at": at})


def _convert_trace(
    varying: LinkTrace, technology: Wifi | Cellular, way: int, mean_share: float
) -> LinkTrace:
    """Return what a client gets alone and how it weighs, of a trace of its rate.

    Args:
        varying: PHY rates, or of a cellular cell what it gets alone.
        technology: of the cell.
        way: the index in `_WAYS`.
        mean_share: the cell's mean share that way, which weighs 1.
    """
    trace = varying.trace
    assert isinstance(trace, Trace)
    rates = np.asarray(trace.rates_bytes_per_s)
    if isinstance(technology, Wifi):
        alone = technology.alone(rates)
        weights = technology.weights(rates, mean_share)[way]
    else:
        alone, weights = rates, technology.weights(rates, mean_share)
    heard = replace(
        trace, rates_bytes_per_s=make_column(alone), radio_weights=make_column(weights)
    )
    return LinkTrace(heard, varying.offset_s)
