"""GraphML and GML files, such as the Topology Zoo's, and the lines of their edges.

Each format has a reader that gives nodes by name, and edges; from there on
(`_list_lines`) they are alike: an edge's attributes become capacity, latency and loss,
each way.
"""

from __future__ import annotations

import difflib
import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import asin, cos, hypot, inf, radians, sin
from pathlib import Path as FilePath
from typing import IO, NamedTuple
from xml.etree import ElementTree

from simfed.ground import units
from simfed.ground.errors import InputError, check_known, listed, within
from simfed.ground.inputs import open_file
from simfed.ground.plain import Plain
from simfed.net.spec import FileCapacity, FileLatency
from simfed.net.topology import Line, check_line_count

MOST_FILE_BYTES = 200_000_000
"""Bytes of a GraphML or GML file, which is read whole."""
EARTH_M = 6_371_008.8
"""The earth's mean radius."""
LIGHT_M_PER_S = 299_792_458 * 2 / 3
"""Two thirds of the speed of light: a signal's in fibre."""
_ATTRIBUTES = ("capacity", "up", "down", "latency", "down_latency", "loss")
_COORDINATES = {"latitude": 90, "longitude": 180}
_PREFIXES = ("K", "M", "G", "T")

Attributes = Mapping[str, Plain]


class _Edge(NamedTuple):
    """An edge as its file has it: both ways where it is not directed."""

    tail: str
    head: str
    directed: bool
    attributes: Attributes


_Drawn = tuple[Mapping[str, Attributes], Sequence[_Edge]]
"""The nodes of a graph by name, and its edges."""


def read_graph(
    path: str | FilePath,
    capacity: FileCapacity | None = None,
    latency: FileLatency | None = None,
) -> list[Line]:
    """Return the lines of a GraphML or GML file.

    Edge attributes are text with units: `capacity` (both directions, or the one of a
    directed edge), or `up` (source to target) and `down` (back) on an undirected edge;
    `latency`, and `down_latency` where the way back differs; and the number `loss`.
    Where latency or loss is missing, it is 0. Other attributes are ignored, unless they
    look like one of these misspelt, or `capacity` and `latency` name them. A node is
    called by its label, one without by its id. Edges that join the same nodes are one
    link with the sum of their capacities, the least latency and the largest loss.

    Args:
        path: of the file.
        capacity: which attribute says the capacity, and what ways have of which an
            edge says none.
        latency: which attribute says the latency, or that it is that of the distance
            between the nodes' coordinates.

    Raises: `InputError` for a file that is no graph, for labels that stand twice, and
    for an edge without a capacity where `capacity.missing` does not say any: others'
    files call it by many names, and in several units.
    """
    readers = {".graphml": _read_graphml, ".gml": _read_gml}
    where = str(path)
    suffix = FilePath(path).suffix.lower()
    if suffix not in readers:
        raise InputError(f"a file ending in {listed(readers)}", where=where, got=suffix)
    with open_file(path, MOST_FILE_BYTES) as file, within(where):
        nodes, edges = readers[suffix](file)
    capacity = capacity or FileCapacity.model_construct()
    return _list_lines(
        nodes, edges, where, capacity, latency or FileLatency.model_construct()
    )


# ---- formats -------------------------------------------------------------------------


def _read_graphml(file: IO[bytes]) -> _Drawn:
    """Return the graph of a GraphML file, attributes as they are written.

    Raises: `InputError` for a file that is no graph, or has edges of several ends.
    """
    try:
        root = ElementTree.parse(file).getroot()
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise InputError(problem=f"no graph in graphml format: {error}") from None
    graph = root.find("{*}graph")
    if graph is None:
        raise InputError(
            "a file with <graph> in it", problem="no graph in graphml format"
        )
    names: dict[str, str] = {}
    defaults: dict[str, dict[str, Plain]] = {"node": {}, "edge": {}}
    for key in root.findall("{*}key"):
        id = key.get("id", "")
        name = key.get("attr.name") or key.get("yfiles.type") or id
        names[id] = name = " ".join(name.split())
        if (value := key.findtext("{*}default", "").strip()) and key.get("for"):
            for kind in defaults if key.get("for") == "all" else (key.get("for"),):
                defaults.get(str(kind), {})[name] = value
    hyperedge = graph.find(".//{*}hyperedge")
    if hyperedge is not None:
        ends = [str(end.get("node")) for end in hyperedge.findall("{*}endpoint")]
        allowed = "edges between two nodes"
        raise InputError(allowed, where="hyperedge", got=" to ".join(ends))

    def read_data(element: ElementTree.Element, kind: str) -> dict[str, Plain]:
        values = dict(defaults[kind])
        for data in element.findall("{*}data"):
            key = data.get("key", "")
            if key not in names:
                place = f"{kind} {element.get('id', '')}".rstrip()
                raise InputError("a key of the file", where=place, got=key)
            if text := (data.text or "").strip():
                values[names[key]] = text
            if label := data.findtext(".//{*}NodeLabel", "").strip():  # yEd's
                values["label"] = label
        return values

    nodes = [
        (node.get("id"), read_data(node, "node"))
        for node in graph.findall(".//{*}node")
    ]
    directed = graph.get("edgedefault") == "directed"
    edges = (
        (
            edge.get("source"),
            edge.get("target"),
            edge.get("directed", str(directed)).lower() == "true",
            read_data(edge, "edge"),
        )
        for edge in graph.findall(".//{*}edge")
    )
    return _name_nodes(nodes, edges)


_GML = re.compile(r'[\s;]+|#[^\n]*|("[^"]*"|[^\s"\[\]]+|\[|\]|")')

_Block = list[tuple[str, "str | _Block"]]


def _parse_gml(text: str) -> _Block:
    """Return the pairs of a text in GML, values as they are written.

    Raises: `InputError` with the line of what is out of place.
    """
    blocks: list[_Block] = [[]]
    key = ""
    for match in _GML.finditer(text):
        token = match[1]
        if token is None:
            continue
        if key and token not in ("]", '"'):
            if token == "[":
                blocks.append([])
                blocks[-2].append((key, blocks[-1]))
            else:
                blocks[-1].append((key, html.unescape(token.strip('"'))))
            key = ""
        elif not key and token == "]" and len(blocks) > 1:
            blocks.pop()
        elif not key and token[0] not in '"[]':
            key = token
        else:
            line = f"line {text.count(chr(10), 0, match.start()) + 1}"
            raise InputError(
                f"{'a value' if key else 'a key'}, as GML has", where=line, got=token
            )
    if key or len(blocks) > 1:
        raise InputError(
            "a whole file",
            problem="no graph in gml format: it ends before its graph does",
        )
    return blocks[0]


def _read_gml(file: IO[bytes]) -> _Drawn:
    """Return the graph of a GML file, attributes as they are written."""
    try:
        text = file.read().decode()
    except UnicodeDecodeError as error:
        raise InputError(problem=f"no graph in gml format: {error}") from None
    graph = dict(_parse_gml(text)).get("graph")
    if not isinstance(graph, list):
        raise InputError(
            "a file with graph [ … ] in it", problem="no graph in gml format"
        )

    def list_blocks(kind: str) -> Iterator[dict[str, Plain]]:
        for key, block in graph:
            if key == kind and isinstance(block, list):
                yield {name: value for name, value in block if isinstance(value, str)}

    directed = dict(graph).get("directed") == "1"
    nodes = [(node.get("id"), node) for node in list_blocks("node")]
    edges = (
        (edge.pop("source", None), edge.pop("target", None), directed, edge)
        for edge in list_blocks("edge")
    )
    return _name_nodes(nodes, edges)


def _name_nodes(
    nodes: Iterable[tuple[str | None, Attributes]],
    edges: Iterable[tuple[str | None, str | None, bool, Attributes]],
) -> _Drawn:
    """Return a graph whose nodes are called by their labels, or ids without.

    Raises: `InputError` for a name that stands twice, and an edge to no node.
    """
    names: dict[str | None, str] = {}
    named: dict[str, Attributes] = {}
    for number, (id, data) in enumerate(nodes):
        name = " ".join(str(data.get("label") or id).split())  # of one line
        if id is None or id in names:
            problem = "it is missing" if id is None else "it is another node's, too"
            raise InputError(
                "an id", where=f"node {number}: id", got=id, problem=problem
            )
        if name in named:
            first = next(other for other, called in names.items() if called == name)
            where = f"nodes {first} and {id}: label"
            raise InputError("a label of each node's own", where=where, got=name)
        names[id], named[name] = name, data
    drawn = []
    for number, (*ends, directed, data) in enumerate(edges):
        for key, id in zip(("source", "target"), ends, strict=True):
            if id not in names:
                where = f"edge {number}: {key}"
                raise InputError("the id of a node", where=where, got=id)
        drawn.append(_Edge(names[ends[0]], names[ends[1]], directed, data))
    return named, drawn


# ---- lines ---------------------------------------------------------------------------


def _list_lines(
    nodes: Mapping[str, Attributes],
    edges: Sequence[_Edge],
    where: str,
    capacity: FileCapacity,
    latency: FileLatency,
) -> list[Line]:
    """Return one line per pair of nodes and direction that an edge joins.

    Args:
        nodes: by name; their coordinates count where latency is by distance.
        edges: of the file.
        where: names the file in errors.
        capacity: where an edge's capacity stands, and what a missing one is.
        latency: where its latency stands.
    """
    if not edges:
        allowed = "a graph with at least one edge"
        raise InputError(allowed, where=where, problem="it has no edge")
    check_line_count(sum(2 - edge.directed for edge in edges), where)
    sections: tuple[FileCapacity | FileLatency, ...] = capacity, latency
    attributes = ((each.attribute, each.unit_attribute) for each in sections)
    chosen = [*filter(None, chain.from_iterable(attributes))]
    seen = sorted({name for edge in edges for name in edge.attributes})
    for name in chosen:
        check_known(name, seen, "an attribute of its edges:", where=where)
    lines: dict[tuple[str, str], tuple[float, float, float]] = {}
    checked: set[tuple[str, ...]] = set()
    for edge in edges:
        place = f"{where}: edge {edge.tail} to {edge.head}"
        # edges of a file mostly have the same ones
        if (names := tuple(edge.attributes)) not in checked:
            _check_spelling([name for name in names if name not in chosen], place)
            checked.add(names)
        distance_s = None
        if latency.by is not None:
            ends = [_find_place(nodes, end, place) for end in (edge.tail, edge.head)]
            distance_s = _compute_distance_m(*ends) / LIGHT_M_PER_S
        loss = _read_loss(edge.attributes, place)
        ways = (("up", edge.tail, edge.head), ("down", edge.head, edge.tail))
        for way, tail, head in ways[:1] if edge.directed else ways:
            rate_bytes_per_s = _read_capacity(edge.attributes, way, place, capacity)
            latency_s = distance_s
            if latency_s is None:
                latency_s = _read_latency(edge.attributes, way, place, latency)
            # of edges that join the same nodes
            beside = lines.get((tail, head), (0.0, inf, 0.0))
            lines[tail, head] = (
                beside[0] + rate_bytes_per_s,
                min(beside[1], latency_s),
                max(beside[2], loss),
            )
    return [
        Line(f"{tail}>{head}", tail, head, *facts)
        for (tail, head), facts in lines.items()
    ]


def _check_spelling(names: Sequence[str], where: str) -> None:
    """Refuse an attribute that is nearly, but not quite, one that is read."""
    # Files carry attributes of all kinds (`class`, `owner`); only one that is nearly
    # ours is wrong.
    missing = [name for name in _ATTRIBUTES if name not in names]
    for name in names:
        close = difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.8)
        if name not in _ATTRIBUTES and close:
            allowed = f"one of the attributes {listed(_ATTRIBUTES)}"
            hint = f"did you mean {close[0]!r}?"
            raise InputError(allowed, where=where, got=name, hint=hint)


def _find_amount(
    data: Attributes,
    own: str,
    section: FileCapacity | FileLatency,
    usual: str,
    where: str,
) -> tuple[str, Plain]:
    """Return the name and value of an edge's attribute, with its unit.

    Args:
        data: the edge's attributes.
        own: a key that goes before all others; empty: none.
        section: names an attribute and its unit.
        usual: the attribute where the section names none.
        where: names the edge in errors.

    The value is None where the edge has none of them.
    """
    if own in data:
        return own, data[own]
    name, unit = section.attribute or usual, section.unit
    value = data.get(name)
    if value is not None and (of_edge := section.unit_attribute) is not None:
        if of_edge not in data:
            allowed = f"its unit in the attribute {of_edge}"
            raise InputError(allowed, where=f"{where}: {name}", got=value)
        unit = str(data[of_edge])
        if usual == "capacity" and unit.upper() in _PREFIXES:
            unit += "bps"
    return name, value if value is None or unit is None else f"{value} {unit}"


def _read_capacity(
    data: Attributes, way: str, where: str, section: FileCapacity
) -> float:
    """Return an edge's capacity one way, bytes/s; inf where `missing` says so."""
    name, rate = _find_amount(data, way, section, "capacity", where)
    if rate is not None:
        rate_bytes_per_s = units.parse_rate(rate, where=f"{where}: {name}")
        if rate_bytes_per_s == 0:
            raise InputError("a rate above 0", where=f"{where}: {name}", got=data[name])
        return rate_bytes_per_s
    if section.missing is None:
        raise _make_missing_error(data, name, way, where)
    return inf if section.missing == "unlimited" else section.missing


def _read_latency(
    data: Attributes, way: str, where: str, section: FileLatency
) -> float:
    """Return an edge's latency one way, seconds; 0 where none is written."""
    own = "down_latency" if way == "down" else ""
    name, latency = _find_amount(data, own, section, "latency", where)
    if latency is None:
        return 0.0
    return units.parse_duration(latency, where=f"{where}: {name}")


def _read_loss(data: Attributes, where: str) -> float:
    """Return the share of packets that an edge loses; 0 where none is written."""
    written = data.get("loss", 0.0)
    try:
        loss = float(written)
    except (TypeError, ValueError):
        loss = -1.0
    if not 0 <= loss < 1:
        allowed = "a number from 0 to below 1"
        raise InputError(allowed, where=f"{where}: loss", got=written)
    return loss


def _find_place(
    nodes: Mapping[str, Attributes], node: str, where: str
) -> tuple[float, float]:
    """Return a node's latitude and longitude, in radians.

    Raises: `InputError` where it has none, or what is nowhere on earth.
    """
    data = {name.lower(): value for name, value in nodes[node].items()}
    place = []
    for name, most in _COORDINATES.items():
        written = data.get(name)
        try:
            degrees = float(written)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            degrees = inf
        if not abs(degrees) <= most:
            raise InputError(
                f"{name.capitalize()} from {-most} to {most} degrees, as latency is by "
                "distance",
                where=f"{where}: node {node}",
                got=written,
                problem="it is missing" if written is None else "",
            )
        place.append(radians(degrees))
    return place[0], place[1]


def _compute_distance_m(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the great-circle distance between two places (haversine formula).

    >>> london, new_york = (0.8988, -0.0022), (0.7106, -1.2916)
    >>> round(_compute_distance_m(london, new_york) / 1e3, -1)
    5570.0
    """
    (lat, long), (other_lat, other_long) = one, other
    across = sin((other_lat - lat) / 2)
    along = sin((other_long - long) / 2) * (cos(lat) * cos(other_lat)) ** 0.5
    return 2 * EARTH_M * asin(min(1.0, hypot(across, along)))


def _make_missing_error(
    data: Attributes, name: str, way: str, where: str
) -> InputError:
    """Return the error for an edge of a file that does not say one way's capacity."""
    others = [other for other in data if other not in _ATTRIBUTES]
    seen = f"; its other attributes are {', '.join(others[:8])}" if others else ""
    if len(others) > 8:
        seen += ", …"
    return InputError(
        f"{name}{'' if way == 'up' else f', or {way}'} such as 10 Mbps",
        where=where,
        problem=f"no capacity {'' if way == 'up' else 'back '}is given{seen}",
        hint="network.capacity: {attribute: LinkSpeedRaw, unit: bps} says where it "
        "stands, {missing: 1 Gbps}, or {missing: unlimited}, what such edges have",
    )
