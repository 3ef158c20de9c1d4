"""The network part of a scenario: each client's link, what they share, and how transfers behave on
it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from simfed.errors import InputError, listed
from simfed.scenario.distribution import Distribution, DrawnDuration, DrawnLoss, drawn_as
from simfed.scenario.fields import (
    BelowOne,
    Duration,
    FoundFile,
    NonNegative,
    Positive,
    PositiveDuration,
    PositiveInt,
    Rate,
    Section,
    Size,
)

__all__ = ["Edge", "Generator", "Link", "Network", "ServerLink", "TcpOptions", "Tier", "Trace"]


def _some_rate(rate: float) -> float:
    if rate <= 0:
        raise ValueError(InputError("a rate above 0 such as 20 Mbps", got=f"{rate:g} B/s"))
    return rate


def _some_size(size: float) -> float:
    if size <= 0:
        raise ValueError(InputError("a size above 0 such as 1448 B", got=f"{size:g} B"))
    return size


SomeRate = Annotated[Rate, AfterValidator(_some_rate)]


class Generator(Section):
    """A capacity made up anew for every link, from the run's seed.

    `markov-on-off` switches between two rates after exponentially distributed times;
    `lognormal-ar1` draws log-normal rates, one per `step`, each correlated with the one before.
    """

    kind: Literal["markov-on-off", "lognormal-ar1"] = Field(description="of the random process")
    length: PositiveDuration = Field(
        default=600.0, description="of the made-up trace, before `end` applies"
    )
    high: SomeRate | None = Field(default=None, description="markov-on-off: the rate while on")
    low: Rate | None = Field(
        default=None, description="markov-on-off: the rate while off; 0 pauses transfers"
    )
    mean_high: PositiveDuration | None = Field(
        default=None, description="markov-on-off: mean stay in `high`"
    )
    mean_low: PositiveDuration | None = Field(
        default=None, description="markov-on-off: mean stay in `low`"
    )
    mean: SomeRate | None = Field(default=None, description="lognormal-ar1: mean rate")
    cv: NonNegative | None = Field(default=None, description="lognormal-ar1: sd over mean")
    correlation: BelowOne | None = Field(
        default=None, description="lognormal-ar1: of neighbours' logs"
    )
    step: PositiveDuration | None = Field(
        default=None, description="lognormal-ar1: how long a rate lasts"
    )

    @model_validator(mode="after")
    def _keys_of_kind(self) -> Generator:
        kinds = {
            "markov-on-off": ("high", "low", "mean_high", "mean_low"),
            "lognormal-ar1": ("mean", "cv", "correlation", "step"),
        }
        for kind, keys in kinds.items():
            for key in keys:
                given = getattr(self, key) is not None
                if kind == self.kind and not given:
                    raise ValueError(InputError(f"the key {key!r} beside kind {kind}"))
                if kind != self.kind and given:
                    raise ValueError(
                        InputError(
                            f"a key of kind {self.kind}: {listed(kinds[self.kind])}", got=key
                        )
                    )
        return self


Offset = Annotated[
    Annotated[Literal["random"], Tag("random[]")] | Annotated[Duration, Tag("duration[]")],
    Discriminator(lambda value: "random[]" if value == "random" else "duration[]"),
]


class Trace(Section):
    """A capacity that varies: read from a file of the user's, or generated.

    Formats: `mahimahi` (one line per 1500-byte packet, in ms), `pensieve` (`time_s Mbit/s`, a
    line's rate holds until its time), `csv` (two columns, a row's rate holds from its time).
    """

    file: FoundFile | None = Field(default=None, description="of measured capacities")
    format: Literal["mahimahi", "pensieve", "csv"] | None = Field(
        default=None, description="of the file"
    )
    generate: Generator | None = Field(default=None, description="in place of a file")
    end: Literal["loop", "hold", "error"] = Field(description="what follows the trace's last piece")
    offset: Offset = Field(
        default="random",
        description=(
            "where in it a link starts; random: each client elsewhere; default 0 s "
            "unless end is loop"
        ),
    )
    scale: Positive = Field(default=1.0, description="factor on every capacity")
    bin: PositiveDuration = Field(default=0.1, description="mahimahi: packets are counted per bin")
    time_column: str | int = Field(default=0, description="csv: name or number from 0")
    rate_column: str | int = Field(
        default=1, description="csv: name or number from 0; ue{client}: each client its own"
    )
    time_unit: str = Field(default="s", description="csv: s, ms, …")
    rate_unit: str = Field(default="Mbps", description="csv: Mbps, kB/s, …")

    @model_validator(mode="before")
    @classmethod
    def _offset_of_end(cls, value: Any) -> Any:
        if isinstance(value, dict) and "offset" not in value and value.get("end") != "loop":
            return {**value, "offset": 0}
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Trace:
        if (self.file is None) == (self.generate is None):
            raise ValueError(InputError("either file or generate"))
        if (self.file is None) != (self.format is None):
            raise ValueError(InputError("the key 'format' beside file, and only there"))
        return self


def _rate_or_trace(value: Any) -> str:
    return "trace[]" if isinstance(value, (Mapping, Trace)) else "rate[]"


# The brackets keep a tag out of the key paths in error messages.
LinkRate = Annotated[
    Annotated[SomeRate, Tag("rate[]")] | Annotated[Trace, Tag("trace[]")],
    Discriminator(_rate_or_trace),
]


_DOWN_LATENCY = "one-way delay of the way down, where it differs from `latency`"


def _rate_trace_or_drawn(value: Any) -> str:
    if isinstance(value, Distribution):
        return "distribution[]"
    if isinstance(value, Mapping) and not value.keys() & Trace.model_fields.keys():
        return "distribution[]"
    return _rate_or_trace(value)


AccessRate = Annotated[
    Annotated[SomeRate, Tag("rate[]")]
    | Annotated[Trace, Tag("trace[]")]
    | Annotated[Distribution, drawn_as("rate"), Tag("distribution[]")],
    Discriminator(_rate_trace_or_drawn),
]


class Link(Section):
    """A client's access link. Rates omitted are unlimited."""

    up: AccessRate | None = Field(default=None, description="uplink capacity, client to server")
    down: AccessRate | None = Field(default=None, description="downlink capacity, server to client")
    latency: DrawnDuration = Field(default=0.0, description="one-way delay of the access link")
    down_latency: DrawnDuration | None = Field(default=None, description=_DOWN_LATENCY)
    loss: DrawnLoss = Field(default=0.0, description="packets lost at random; needs model tcp")
    at: str | None = Field(default=None, description="tree, graph: the node it is attached to")

    def plain(self) -> dict[str, Any]:
        """Plain values in base units: one of the `links` of `simfed.net.build`."""
        plain: dict[str, Any] = _plain(self)
        return plain


class ServerLink(Section):
    """The server's own link, shared by everybody. Rates omitted are unlimited."""

    receive: LinkRate | None = Field(
        default=None, description="capacity of all uploads together; unlimited if omitted"
    )
    send: LinkRate | None = Field(default=None, description="of all downloads together")
    latency: Duration = Field(default=0.0, description="one-way delay")
    down_latency: Duration | None = Field(default=None, description=_DOWN_LATENCY)
    node: str = Field(default="server", description="graph: the name of the server's node")


class Tier(Section):
    """`count` nodes of a tree that are alike, each with a link towards the server."""

    name: str = Field(description="of its links in records")
    count: PositiveInt = Field(default=1, description="links in the tier")
    up: LinkRate | None = Field(default=None, description="capacity of each towards the server")
    down: LinkRate | None = Field(default=None, description="of each towards the clients")
    latency: Duration = Field(default=0.0, description="one-way delay")
    down_latency: Duration | None = Field(default=None, description=_DOWN_LATENCY)
    loss: BelowOne = Field(default=0.0, description="packets lost at random; needs model tcp")


class Edge(Section):
    """A link between two nodes of a graph. Rates omitted are unlimited."""

    between: tuple[str, str] = Field(description="two nodes")
    up: LinkRate | None = Field(default=None, description="capacity from the first to the second")
    down: LinkRate | None = Field(default=None, description="capacity the other way")
    latency: Duration = Field(default=0.0, description="one-way delay")
    down_latency: Duration | None = Field(default=None, description=_DOWN_LATENCY)
    loss: BelowOne = Field(default=0.0, description="packets lost at random; needs model tcp")
    one_way: bool = Field(default=False, description="there is no way back")


class TcpOptions(Section):
    """Of `model: tcp`."""

    handshake: bool = Field(default=True, description="false: connections are kept open")
    initial_window: PositiveInt = Field(default=10, description="segments of the first burst")
    mss: Annotated[Size, AfterValidator(_some_size)] = Field(
        default=1448.0, description="payload of a full segment"
    )
    header: Size = Field(default=54.0, description="bytes that every segment carries besides")


class Network(Section):
    """How clients reach the server, and how a transfer behaves on the way.

    `star`: every client straight at the server's link. `tree`: clients, then `tiers` from their
    side to the server's. `graph`: `edges`, or a GraphML or GML `file`; clients are attached by
    `link.at`, or are the graph's own nodes `client-0`, `client-1`, …
    """

    topology: Literal["star", "tree", "graph"] = Field(
        default="star", description="of shared links"
    )
    model: Literal["fluid", "tcp"] = Field(default="fluid", description="how transfers behave")
    tcp: TcpOptions | None = Field(default=None, description="options of model tcp")
    server: ServerLink = Field(default=ServerLink(), description="the link that all share")
    tiers: tuple[Tier, ...] = Field(
        default=(), description="tree: from the clients' side to the server's"
    )
    edges: tuple[Edge, ...] = Field(default=(), description="graph: its links")
    file: FoundFile | None = Field(default=None, description="graph: GraphML or GML")
    routes: tuple[tuple[str, ...], ...] = Field(
        default=(), description="graph: ways as lists of nodes, in place of those of least latency"
    )

    @model_validator(mode="before")
    @classmethod
    def _options_of_model(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("model") == "tcp" and value.get("tcp") is None:
            return {**value, "tcp": {}}
        return value

    @model_validator(mode="after")
    def _hangs_together(self) -> Network:
        if self.tcp is not None and self.model != "tcp":
            raise ValueError(InputError("tcp options only with model tcp", where="tcp"))
        keys = {"tree": ("tiers",), "graph": ("edges", "file", "routes")}
        for topology, own in keys.items():
            for key in own:
                if getattr(self, key) and self.topology != topology:
                    raise ValueError(InputError(f"only with topology {topology}", where=key))
        if self.topology == "tree" and not self.tiers:
            raise ValueError(InputError("at least one tier with topology tree", where="tiers"))
        if self.topology == "graph" and bool(self.edges) == bool(self.file):
            raise ValueError(InputError("either edges or file with topology graph"))
        return self

    def plain(self) -> dict[str, Any]:
        """Plain values in base units: the argument `network` of `simfed.net.build`."""
        plain: dict[str, Any] = _plain(self)
        return plain


def _plain(value: Any) -> Any:
    # not model_dump: that writes quantities back as text with their units
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, (list, tuple)):
        return [_plain(x) for x in value]
    return value
