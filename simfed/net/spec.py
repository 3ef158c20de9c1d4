"""The network section: clients' links, shared links, and the model of transfers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from simfed.ground import units
from simfed.ground.errors import InputError
from simfed.ground.registry import Only
from simfed.ground.units import Unit
from simfed.net.trace_files import Separator
from simfed.schema.distribution import (
    LATENCY,
    RATE,
    Distribution,
    DrawnDuration,
    DrawnLoss,
    check_quantity,
)
from simfed.schema.fields import (
    BelowOne,
    Duration,
    FoundFile,
    Frequency,
    Int,
    NonNegative,
    Positive,
    PositiveDuration,
    PositiveInt,
    PositiveRate,
    PositiveSize,
    Rate,
    Share,
    Size,
)
from simfed.schema.section import Section

_ON_OFF = Only("kind", "markov-on-off", needed=True)
_AR1 = Only("kind", "lognormal-ar1", needed=True)


class Generator(Section):
    """A capacity made up anew for every link, from the run's seed.

    `markov-on-off` switches between two rates after exponentially distributed times;
    `lognormal-ar1` draws log-normal rates, one per `step`, each correlated with the one
    before.
    """

    kind: Literal["markov-on-off", "lognormal-ar1"] = Field(
        description="of the random process"
    )
    length: PositiveDuration = Field(
        default=600.0, description="of the made-up trace, before `end` applies"
    )
    high: Annotated[PositiveRate | None, _ON_OFF] = Field(
        default=None, description="the rate while on"
    )
    low: Annotated[Rate | None, _ON_OFF] = Field(
        default=None, description="the rate while off; 0 pauses transfers"
    )
    mean_high: Annotated[PositiveDuration | None, _ON_OFF] = Field(
        default=None, description="mean stay in `high`"
    )
    mean_low: Annotated[PositiveDuration | None, _ON_OFF] = Field(
        default=None, description="mean stay in `low`"
    )
    mean: Annotated[PositiveRate | None, _AR1] = Field(
        default=None, description="mean rate"
    )
    cv: Annotated[NonNegative | None, _AR1] = Field(
        default=None, description="sd over mean"
    )
    correlation: Annotated[BelowOne | None, _AR1] = Field(
        default=None, description="of neighbours' logs"
    )
    step: Annotated[PositiveDuration | None, _AR1] = Field(
        default=None, description="how long a value lasts"
    )


Offset = Annotated[
    Annotated[Literal["random"], Tag("random[]")]
    | Annotated[Duration, Tag("duration[]")],
    Discriminator(lambda value: "random[]" if value == "random" else "duration[]"),
]


class ShareGenerator(Generator):
    """Shares made up from the run's seed, by the same processes as a link's capacity.

    What `lognormal-ar1` draws above 1 counts as 1, so that the mean of what is played
    lies below `mean`.
    """

    high: Annotated[Share | None, _ON_OFF] = Field(
        default=None, description="the share while on"
    )
    low: Annotated[Share | None, _ON_OFF] = Field(
        default=None, description="the share while off"
    )
    mean: Annotated[Share | None, _AR1] = Field(default=None, description="mean share")


_CSV = Only("format", "csv")
_OF_RATES = Only("bytes_column", None)


def _check_some(value: Any) -> Any:
    if not value:
        raise InputError("at least one file", got=value)
    return value


TraceFiles = Annotated[
    Annotated[FoundFile, Tag("file[]")]
    | Annotated[tuple[FoundFile, ...], BeforeValidator(_check_some), Tag("files[]")],
    Discriminator(lambda x: "files[]" if isinstance(x, (list, tuple)) else "file[]"),
]


_FILE = (
    "of what was measured; for a file per client `NAME-{client}.csv`, a list, or a "
    "folder in the order of its names"
)


_TABLE_KEYS = (
    *(f"{x}_column" for x in ("time", "elapsed", "rate", "bytes", "latency")),
    *("time_unit", "rate_unit", "latency_unit", "separator"),
)


class _TraceSection(Section):
    """A trace in files, whatever its numbers are."""

    file: TraceFiles | None = Field(default=None, description=_FILE)
    format: Annotated[
        Literal["mahimahi", "pensieve", "csv"] | None, Only("file", needed=True)
    ] = Field(default=None, description="of the file")
    end: Literal["loop", "hold", "error"] = Field(
        description="what follows the trace's last piece"
    )
    offset: Offset = Field(
        default="random",
        description=(
            "where in it a link starts; random: each client elsewhere; default 0 s "
            "unless end is loop"
        ),
    )
    factor: Positive = Field(default=1.0, description="on every value")
    elapsed_column: Annotated[str | int | None, _CSV] = Field(
        default=None, description="how long each row lasts, in place of time_column"
    )
    time_column: Annotated[str | int, _CSV, Only("elapsed_column", None)] = Field(
        default=0, description="name or number from 0"
    )
    time_unit: Annotated[str, _CSV] = Field(
        default="s",
        description="s, ms, …; date, or a pattern such as `%d/%m/%Y %H:%M:%S`",
    )
    until: Annotated[PositiveDuration | None, _CSV, Only("elapsed_column", None)] = (
        Field(
            default=None,
            description="the last row's end, from the first row's time; omitted: it "
            "lasts as long as the time before it",
        )
    )
    separator: Annotated[Separator, _CSV] = Field(
        default="comma", description="between cells; blanks: any number of them"
    )

    @property
    def table(self) -> dict[str, Any]:
        """The arguments of `read_csv`."""
        keys = {**{key: key for key in _TABLE_KEYS}, "until": "until_s"}
        return {keys[key]: getattr(self, key) for key in keys if hasattr(self, key)}

    @model_validator(mode="before")
    @classmethod
    def _fill_in_offset(cls, value: Any) -> Any:
        if (
            isinstance(value, dict)
            and "offset" not in value
            and value.get("end") != "loop"
        ):
            return {**value, "offset": 0}
        return value


class _CapacityTrace(_TraceSection):
    """A trace of what a link or its air can carry, in files or a generator's."""

    one_of = "file", "generate"

    generate: Generator | None = Field(default=None, description="in place of a file")


class TraceSpec(_CapacityTrace):
    """A capacity that varies: read from files of the user's, or generated.

    Formats: `mahimahi` (one line per 1500-byte packet, in ms), `pensieve` (`time_s
    Mbit/s`, a line's rate holds until its time), `csv` (two columns, a row's rate holds
    from its time).
    """

    rate_column: Annotated[str | int, _CSV, _OF_RATES] = Field(
        default=1, description="name or number from 0; ue{client}: each client its own"
    )
    bin: Annotated[PositiveDuration, Only("format", "mahimahi")] = Field(
        default=0.1, description="packets are counted per bin"
    )
    bytes_column: Annotated[str | int | None, _CSV] = Field(
        default=None,
        description="bytes moved in elapsed_column, or since the time before, in place "
        "of rate_column",
    )
    rate_unit: Annotated[str, _CSV, _OF_RATES] = Field(
        default="Mbps", description="Mbps, kB/s, …"
    )


class ShareTrace(_CapacityTrace):
    """A share of the airtime that varies: a table of the user's, or generated.

    A table has two columns; a row's share holds from its time. All shares, times
    `factor`, are above 0 and at most 1.
    """

    format: Annotated[Literal["csv"] | None, Only("file", needed=True)] = Field(
        default=None, description="of the file"
    )
    generate: ShareGenerator | None = Field(
        default=None, description="in place of a file"
    )
    rate_column: Annotated[str | int, _CSV] = Field(
        default=1, description="of the shares: name or number from 0"
    )

    rate_unit: ClassVar[str] = "B/s"
    """Shares are as they are written."""


def _tell_trace(value: Any) -> str:
    return "trace[]" if isinstance(value, (Mapping, TraceSpec)) else "rate[]"


# The brackets keep a tag out of the key paths in error messages.
LinkRate = Annotated[
    Annotated[PositiveRate, Tag("rate[]")] | Annotated[TraceSpec, Tag("trace[]")],
    Discriminator(_tell_trace),
]


_DOWN_LATENCY = "one-way delay of the way down, where it differs from `latency`"


def _tell_trace_or_draw(value: Any) -> str:
    if isinstance(value, Distribution):
        return "distribution[]"
    if isinstance(value, Mapping) and not value.keys() & TraceSpec.model_fields.keys():
        return "distribution[]"
    return _tell_trace(value)


AccessRate = Annotated[
    Annotated[PositiveRate, Tag("rate[]")]
    | Annotated[TraceSpec, Tag("trace[]")]
    | Annotated[Distribution, check_quantity(RATE), Tag("distribution[]")],
    Discriminator(_tell_trace_or_draw),
]


class PerMessage(Section):
    """A delay drawn anew for every message. A law alone is drawn once per client."""

    per_message: Annotated[Distribution, check_quantity(LATENCY)] = Field(
        description="its law, or a column of a `table` of which each draws a row"
    )

    @model_validator(mode="after")
    def _check_table(self) -> PerMessage:
        law = self.per_message
        if law.column is not None and law.table is None:
            problem = "the key 'table' is missing beside column"
            allowed = "a table of which every message draws a row"
            raise InputError(allowed, where="per_message", problem=problem)
        return self


class LatencyTrace(_TraceSection):
    """A delay that varies: each message has that of the instant at which it starts.

    It is read from tables of the user's; a row's delay holds from its time.
    """

    file: TraceFiles = Field(description=_FILE)
    format: Literal["csv"] = Field(default="csv", description="of the file")
    latency_column: str | int = Field(
        default=1, description="name or number from 0; of round trips: factor: 0.5"
    )
    unit: str = Field(description="of the column: ms, s, …")
    generate: ClassVar[None] = None

    @property
    def latency_unit(self) -> str:
        """The unit of its column."""
        return self.unit


def _tell_latency(value: Any) -> str:
    keys = value.keys() if isinstance(value, Mapping) else ()
    if "per_message" in keys or isinstance(value, PerMessage):
        return "message[]"
    traced = "file" in keys or "latency_column" in keys
    return "trace[]" if traced or isinstance(value, LatencyTrace) else "drawn[]"


Latency = Annotated[
    Annotated[DrawnDuration, Tag("drawn[]")]
    | Annotated[PerMessage, Tag("message[]")]
    | Annotated[LatencyTrace, Tag("trace[]")],
    Discriminator(_tell_latency),
]


_TCP = Only("network.model", "tcp")
_IN_CELL = Only("cell")


def _check_one_cell(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        raise InputError(
            "the name of one cell",
            got=list(value),
            hint="a client is in one cell at a time",
        )
    return value


class LinkSpec(Section):
    """A client's access link, or its place in a radio cell.

    Rates omitted are unlimited; in a cell they are needed: of Wi-Fi `rate` or `mcs`, of
    a cellular one `up` and `down`, each alone in it.
    """

    cell: Annotated[str | None, BeforeValidator(_check_one_cell)] = Field(
        default=None, description="one of network.cells, in place of a link of its own"
    )
    rate: Annotated[AccessRate | None, _IN_CELL] = Field(
        default=None, description="PHY rate in a Wi-Fi cell, both ways"
    )
    mcs: Annotated[Int | None, _IN_CELL] = Field(
        default=None, description="modulation in a Wi-Fi cell, in place of its rate"
    )
    up: AccessRate | None = Field(
        default=None, description="uplink capacity, client to server"
    )
    down: AccessRate | None = Field(
        default=None, description="downlink capacity, server to client"
    )
    latency: Latency = Field(
        default=0.0, description="one-way delay of the access link"
    )
    down_latency: Latency | None = Field(default=None, description=_DOWN_LATENCY)
    loss: Annotated[DrawnLoss, _TCP] = Field(
        default=0.0, description="packets lost at random"
    )
    at: Annotated[str | None, Only("network.topology", "tree", "graph")] = Field(
        default=None, description="the node it is attached to"
    )

    @property
    def down_s(self) -> Any:
        """The delay of the way down."""
        return self.latency if self.down_latency is None else self.down_latency


class ServerLink(Section):
    """The server's own link, shared by everybody. Rates omitted are unlimited."""

    receive: LinkRate | None = Field(
        default=None,
        description="capacity of all uploads together; unlimited if omitted",
    )
    send: LinkRate | None = Field(default=None, description="of all downloads together")
    latency: Duration = Field(default=0.0, description="one-way delay")
    down_latency: Duration | None = Field(default=None, description=_DOWN_LATENCY)
    node: Annotated[str, Only("network.topology", "graph")] = Field(
        default="server", description="the name of the server's node"
    )


class TierSpec(Section):
    """`count` nodes of a tree that are alike, each with a link towards the server."""

    name: str = Field(description="of its links in records")
    count: PositiveInt = Field(default=1, description="links in the tier")
    up: LinkRate | None = Field(
        default=None, description="capacity of each towards the server"
    )
    down: LinkRate | None = Field(
        default=None, description="of each towards the clients"
    )
    latency: Duration = Field(default=0.0, description="one-way delay")
    down_latency: Duration | None = Field(default=None, description=_DOWN_LATENCY)
    loss: Annotated[BelowOne, _TCP] = Field(
        default=0.0, description="packets lost at random"
    )


class EdgeSpec(Section):
    """A link between two nodes of a graph. Rates omitted are unlimited."""

    between: tuple[str, str] = Field(description="two nodes")
    up: LinkRate | None = Field(
        default=None, description="capacity from the first to the second"
    )
    down: LinkRate | None = Field(default=None, description="capacity the other way")
    latency: Duration = Field(default=0.0, description="one-way delay")
    down_latency: Duration | None = Field(default=None, description=_DOWN_LATENCY)
    loss: Annotated[BelowOne, _TCP] = Field(
        default=0.0, description="packets lost at random"
    )

    @property
    def down_s(self) -> float:
        """The delay of the way down."""
        return self.latency if self.down_latency is None else self.down_latency


class TcpOptions(Section):
    """Keys that go with `model: tcp`."""

    handshake: bool = Field(
        default=True, description="false: connections are kept open"
    )
    header: Size = Field(
        default=54.0, description="bytes that every segment carries besides"
    )
    window: PositiveSize | None = Field(
        default=3e6,
        description="receive window: a flow's rate is at most window/RTT; null: any",
    )


class WifiSpec(Section):
    """One access point of 802.11 and its stations: both directions share one
    airtime.
    """  # noqa: D205 - one paragraph of docs/scenario.md

    standard: Literal["n", "ac", "ax"] = Field(
        description="802.11n, ac or ax (Wi-Fi 4, 5, 6)"
    )
    width: Frequency = Field(default=20e6, description="of the channel")
    streams: PositiveInt = Field(default=1, description="spatial streams")
    aggregation: bool = Field(default=True, description="several frames go in one turn")
    fair: Literal["packets", "airtime"] = Field(
        default="packets",
        description="packets: equally many turns; airtime: equally much time",
    )


class CellularSpec(Section):
    """One base station: each direction has an airtime and a scheduler of its own."""

    scheduler: Literal["pf", "rr"] = Field(
        default="pf",
        description="proportional fair or round robin: equally much airtime",
    )


AirShare = Annotated[
    Annotated[Share, Tag("share[]")] | Annotated[ShareTrace, Tag("trace[]")],
    Discriminator(
        lambda x: "trace[]" if isinstance(x, (Mapping, ShareTrace)) else "share[]"
    ),
]


class CellSpec(Section):
    """A radio cell: `wifi` or `cellular`. Its clients name it in `link.cell`."""

    one_of = "wifi", "cellular"

    wifi: WifiSpec | None = Field(default=None, description="an access point")
    cellular: CellularSpec | None = Field(default=None, description="a base station")
    at: Annotated[str | None, Only("network.topology", "tree", "graph")] = Field(
        default=None,
        description="the node that it is attached to; of a star, the server's link",
    )
    share: AirShare = Field(
        default=1.0,
        description="of the time in which the air is the cell's: others use the rest",
    )


_GRAPH = Only("topology", "graph")


MissingRate = Annotated[
    Annotated[Literal["unlimited"], Tag("unlimited[]")]
    | Annotated[PositiveRate, Tag("rate[]")],
    Discriminator(lambda value: "unlimited[]" if value == "unlimited" else "rate[]"),
]


class _FileAttribute(Section):
    """An attribute of the edges of a graph's file."""

    brief = None
    amount: ClassVar[Unit]

    attribute: str | None = Field(default=None, description="its name")
    unit: Annotated[str | None, Only("attribute")] = Field(
        default=None, description="of plain numbers; omitted: it stands beside them"
    )
    unit_attribute: Annotated[str | None, Only("attribute")] = Field(
        default=None, description="the attribute that says the unit of each edge"
    )

    @model_validator(mode="after")
    def _check_unit(self) -> _FileAttribute:
        if self.unit is not None and self.unit_attribute is not None:
            problem = "unit and unit_attribute stand together"
            raise InputError("one of them", problem=problem)
        if self.unit is not None and self.unit not in self.amount.scales:
            allowed = f"a unit such as {self.amount.example.split()[1]}"
            raise InputError(allowed, where="unit", got=self.unit)
        return self


class FileCapacity(_FileAttribute):
    """The capacities of a graph's file: an attribute and its unit, and what is missing.

    Without `attribute` they are in the attribute `capacity`.
    """

    amount = units.RATE

    missing: MissingRate | None = Field(
        default=None,
        description="what each way has of which an edge says nothing: `1 Gbps`, or "
        "`unlimited`; omitted: an error",
    )

    @model_validator(mode="after")
    def _check_something(self) -> FileCapacity:
        if self.attribute is None and self.missing is None:
            raise InputError("attribute or missing", problem="neither is there")
        return self


class FileLatency(_FileAttribute):
    """The latencies of a graph's file: an attribute and its unit, or distances."""

    amount = units.DURATION
    one_of = "attribute", "by"

    by: Literal["distance"] | None = Field(
        default=None,
        description="that of the great circle between the nodes' Latitude and "
        "Longitude, at two thirds of the speed of light",
    )


class NetworkSpec(Section):
    """The network between clients and server, and the model of transfers on it.

    `star`: every client straight at the server's link. `tree`: clients, then `tiers`
    from their side to the server's. `graph`: `edges`, or a GraphML or GML `file`;
    clients are attached by `link.at`, or are the graph's own nodes `client-0`,
    `client-1`, …
    """

    brief = ("latency",)

    topology: Literal["star", "tree", "graph"] = Field(
        default="star", description="of shared links"
    )
    model: Literal["fluid", "tcp"] = Field(
        default="fluid", description="how transfers behave"
    )
    tcp: Annotated[TcpOptions | None, Only("model", "tcp")] = Field(
        default=None, description="its options"
    )
    server: ServerLink = Field(
        default=ServerLink(), description="the link that all share"
    )
    tiers: Annotated[tuple[TierSpec, ...], Only("topology", "tree")] = Field(
        default=(), description="from the clients' side to the server's"
    )
    edges: Annotated[tuple[EdgeSpec, ...], _GRAPH] = Field(
        default=(), description="its links"
    )
    file: Annotated[FoundFile | None, _GRAPH] = Field(
        default=None, description="GraphML or GML"
    )
    capacity: Annotated[FileCapacity | None, Only("file")] = Field(
        default=None,
        description="of the file's edges; omitted: their attribute `capacity`",
    )
    latency: Annotated[FileLatency | None, Only("file")] = Field(
        default=None,
        description="of the file's edges; omitted: their attribute `latency`",
    )
    cells: dict[str, CellSpec] = Field(
        default={}, description="radio cells, in which clients share airtime"
    )
    routes: Annotated[tuple[tuple[str, ...], ...], _GRAPH] = Field(
        default=(),
        description="ways as lists of nodes, in place of those of least latency",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_options(cls, value: Any) -> Any:
        if (
            isinstance(value, dict)
            and value.get("model") == "tcp"
            and value.get("tcp") is None
        ):
            return {**value, "tcp": {}}
        return value

    @model_validator(mode="after")
    def _check_together(self) -> NetworkSpec:
        if self.topology == "tree" and not self.tiers:
            allowed = "at least one tier with topology tree"
            raise InputError(allowed, where="tiers", problem="there is none")
        if self.topology == "graph" and bool(self.edges) == bool(self.file):
            problem = "neither or both of edges and file"
            raise InputError("one of them with topology graph", problem=problem)
        return self
