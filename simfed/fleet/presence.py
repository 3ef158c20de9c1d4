"""The presence section of a client group, and the presence made of it.

It says when its clients are there, and how often they fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from simfed.fleet.availability import (
    Always,
    Daily,
    Markov,
    Presence,
    PresenceKind,
    PresenceTrace,
    parse_time_of_day_s,
    read_trace,
)
from simfed.ground.arrays import Floats, Ints
from simfed.ground.distributions import draw_uniform, pick_positions
from simfed.ground.errors import InputError
from simfed.ground.registry import Only
from simfed.ground.seeding import Streams
from simfed.schema.distribution import DrawnStay
from simfed.schema.fields import FoundFile, Named, Number, PositiveDuration
from simfed.schema.options import OfKind
from simfed.schema.section import Section


def _check_time(value: Any) -> str:
    parse_time_of_day_s(value)
    return str(value)


def _check_hours(value: Any) -> Any:
    if isinstance(value, (int, float)) and not -12 <= value <= 14:
        raise InputError("hours ahead of UTC, from -12 to 14", got=value)
    return value


TimeOfDay = Annotated[
    str,
    BeforeValidator(_check_time, json_schema_input_type=str),
    Field(examples=["22:00"]),
]
Zone = Annotated[Number, BeforeValidator(_check_hours)]


class MarkovSpec(Section):
    """Presence and absence in turn, for exponentially distributed times.

    At 0 s as at any other instant.
    """

    on: DrawnStay = Field(description="mean stay")
    off: DrawnStay = Field(description="mean absence")


class DailySpec(Section):
    """Presence from one time of day to another, which may be on the next day.

    Simulated time 0 is midnight at UTC. A client lives in one of the `zones`, drawn
    from the run's seed, and keeps its local time.
    """

    zones: tuple[Zone, ...] = Field(
        default=(0.0,),
        min_length=1,
        description="hours ahead of UTC; each client lives in one",
    )
    # no name that Python would let stand here
    __annotations__["from"] = Annotated[
        TimeOfDay, Field(description="when clients come, in their local time")
    ]
    to: TimeOfDay = Field(description="when they go")

    @model_validator(mode="after")
    def _check_times(self) -> DailySpec:
        times = (getattr(self, "from"), self.to)
        if len({parse_time_of_day_s(text) % 86_400 for text in times}) == 1:
            raise InputError("two different times of day", where="to", got=self.to)
        return self


class PresenceSpec(Section):
    """The presence of clients: a recorded `trace`, `markov` or `daily`.

    A trace is a CSV or Parquet table with the columns `client, from_s, to_s`: intervals
    in seconds, in any order; a client that stands in no row is never there.
    """

    one_of = "trace", "markov", "daily"

    trace: FoundFile | None = Field(
        default=None, description="table of client, from_s, to_s"
    )
    period: Annotated[PositiveDuration | None, Only("trace")] = Field(
        default=None, description="repeats after so long; omitted: once"
    )
    devices: Annotated[Literal["by-id", "drawn"] | None, Only("trace")] = Field(
        default=None,
        description=(
            "its clients are those of this scenario (by-id, if omitted), or each "
            "client is one of the trace's at random"
        ),
    )
    markov: MarkovSpec | None = Field(default=None, description="mean stays on and off")
    daily: DailySpec | None = Field(default=None, description="by the time of day")

    def build(
        self,
        clients: Ints,
        streams: Streams,
        fleet_size: int,
        stays: Mapping[str, Floats],
    ) -> Presence:
        """Return the presence of the clients of one group.

        Args:
            clients: their ids, ascending.
            streams: keyed generators.
            fleet_size: clients of all groups.
            stays: what was drawn for each of the mean stays `on` and `off`.

        Raises:
            InputError: a trace that cannot be read, or has none of the clients.
        """
        if self.markov is not None:
            on, off = (
                stays.get(key, getattr(self.markov, key)) for key in ("on", "off")
            )
            return Markov(streams, clients, on, off)
        if self.daily is not None:
            zones = np.array(self.daily.zones) * 3600.0
            u = draw_uniform(streams, "availability.zone", fleet_size)[clients]
            from_s, to_s = map(
                parse_time_of_day_s, (getattr(self.daily, "from"), self.daily.to)
            )
            return Daily(from_s, to_s, zones[pick_positions(u, len(zones))])
        assert self.trace is not None
        intervals = read_trace(self.trace)
        period_s = np.inf if self.period is None else self.period
        if self.devices == "drawn":
            u = draw_uniform(streams, "availability.trace", fleet_size)[clients]
            return PresenceTrace(
                intervals, pick_positions(u, len(intervals.ids)), period_s
            )
        if intervals.ids[-1] >= fleet_size:
            allowed = f"clients of this scenario, 0 to {fleet_size - 1}"
            hint = "`devices: drawn` gives each client a random one of the trace's"
            raise InputError(
                allowed, where=self.trace, got=int(intervals.ids[-1]), hint=hint
            )
        row = np.searchsorted(intervals.ids, clients)
        listed = intervals.ids[np.minimum(row, len(intervals.ids) - 1)] == clients
        if not listed.any():
            raise InputError(
                "intervals of some client of the group",
                where=self.trace,
                problem="there are none",
            )
        return PresenceTrace(intervals, np.where(listed, row, -1), period_s)


class OwnPresence(OfKind):
    """The presence of clients by a registered part: a kind, with options beside it."""

    registry_kind: ClassVar[str] = "availability"

    kind: Annotated[str, Named("availability")] = Field(
        description="see `simfed list availabilities`"
    )


def build_presence(
    spec: AvailabilitySpec,
    clients: Ints,
    streams: Streams,
    fleet_size: int,
    stays: Mapping[str, Floats],
) -> Presence:
    """Return the presence of the clients of one group, whatever its section is.

    Arguments and errors as of `PresenceSpec.build`.
    """
    if isinstance(spec, str):
        return Always(len(clients))
    if isinstance(spec, OwnPresence):
        kind: PresenceKind = spec.made
        return kind.presence(clients, streams)
    return spec.build(clients, streams, fleet_size, stays)


def _choose_tag(value: Any) -> str:
    if isinstance(value, str):
        return "always[]"
    is_kind = isinstance(value, OwnPresence) or (
        isinstance(value, Mapping) and "kind" in value
    )
    return "kind[]" if is_kind else "presence[]"


def _check_word(value: Any) -> Any:
    if isinstance(value, str) and value != "always":
        allowed = (
            "always, {trace: FILE}, {markov: {on: 2 h, off: 8 h}}, {daily: {…}} or "
            "{kind: NAME}"
        )
        raise InputError(allowed, got=value)
    return value


AvailabilitySpec: TypeAlias = "Literal['always'] | PresenceSpec | OwnPresence"
# The brackets keep a tag out of the key paths in error messages.
AvailabilityOf = Annotated[
    Annotated[Literal["always"], Tag("always[]")]
    | Annotated[PresenceSpec, Tag("presence[]")]
    | Annotated[OwnPresence, Tag("kind[]")],
    Discriminator(_choose_tag),
    BeforeValidator(_check_word),
]
