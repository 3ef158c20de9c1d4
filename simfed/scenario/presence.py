"""The part of a client group that says when its clients are there, and how often they fail."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from simfed.ground.errors import InputError
from simfed.ground.registry import Only
from simfed.schema.distribution import DrawnStay
from simfed.schema.fields import FoundFile, Fraction, Named, Number, PositiveDuration
from simfed.schema.options import OfKind
from simfed.schema.section import Section

_TIME = re.compile(r"^([01]?\d|2[0-4]):([0-5]\d)$")


def parse_time_of_day_s(text: object) -> float:
    """Seconds after midnight from `22:00`, up to `24:00`.

    >>> parse_time_of_day_s("06:30"), parse_time_of_day_s("24:00")
    (23400.0, 86400.0)
    """
    match = _TIME.match(text) if isinstance(text, str) else None
    seconds = 3600.0 * int(match[1]) + 60.0 * int(match[2]) if match else -1.0
    if not 0 <= seconds <= 86_400:
        raise InputError('a time of day in quotes such as "22:00"', got=text)
    return seconds


def _check_time(value: Any) -> str:
    parse_time_of_day_s(value)
    return str(value)


def _check_hours(value: Any) -> Any:
    if isinstance(value, (int, float)) and not -12 <= value <= 14:
        raise InputError("hours ahead of UTC, from -12 to 14", got=value)
    return value


TimeOfDay = Annotated[
    str, BeforeValidator(_check_time, json_schema_input_type=str), Field(examples=["22:00"])
]
Zone = Annotated[Number, BeforeValidator(_check_hours)]


class MarkovSpec(Section):
    """There and away in turn, for exponentially distributed times; at 0 s as at any other
    instant."""

    on: DrawnStay = Field(description="mean stay")
    off: DrawnStay = Field(description="mean absence")


class Daily(Section):
    """There from one time of day to another, which may be on the next day.

    Simulated time 0 is midnight at UTC. A client lives in one of the `zones`, drawn from the run's
    seed, and keeps its local time.
    """

    zones: tuple[Zone, ...] = Field(
        default=(0.0,), min_length=1, description="hours ahead of UTC; each client lives in one"
    )
    # no name that Python would let stand here
    __annotations__["from"] = Annotated[
        TimeOfDay, Field(description="when clients come, in their local time")
    ]
    to: TimeOfDay = Field(description="when they go")

    @model_validator(mode="after")
    def _check_times(self) -> Daily:
        times = (getattr(self, "from"), self.to)
        if len({parse_time_of_day_s(text) % 86_400 for text in times}) == 1:
            raise InputError("two different times of day", where="to", got=self.to)
        return self


class PresenceSpec(Section):
    """When clients are there: a recorded `trace`, `markov` or `daily`.

    A trace is a CSV or Parquet table with the columns `client, from_s, to_s`: intervals in seconds,
    in any order; a client that stands in no row is never there.
    """

    trace: FoundFile | None = Field(default=None, description="table of client, from_s, to_s")
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
    daily: Daily | None = Field(default=None, description="by the time of day")

    @model_validator(mode="after")
    def _check_kind(self) -> PresenceSpec:
        kinds = [key for key in ("trace", "markov", "daily") if getattr(self, key) is not None]
        if len(kinds) != 1:
            raise InputError("one of trace, markov or daily", got=kinds)
        return self


class OwnPresence(OfKind):
    """When clients are there, as a registered part says: a kind, and its options beside it."""

    registry_kind: ClassVar[str] = "availability"

    kind: Named("availability") = Field(description="see `simfed list availabilities`")  # type: ignore[valid-type]


def _choose_tag(value: Any) -> str:
    if isinstance(value, str):
        return "always[]"
    is_kind = isinstance(value, OwnPresence) or (isinstance(value, Mapping) and "kind" in value)
    return "kind[]" if is_kind else "presence[]"


def _check_word(value: Any) -> Any:
    if isinstance(value, str) and value != "always":
        allowed = (
            "always, {trace: FILE}, {markov: {on: 2 h, off: 8 h}}, {daily: {…}} or {kind: NAME}"
        )
        raise InputError(allowed, got=value)
    return value


# The brackets keep a tag out of the key paths in error messages.
AvailabilityOf = Annotated[
    Annotated[Literal["always"], Tag("always[]")]
    | Annotated[PresenceSpec, Tag("presence[]")]
    | Annotated[OwnPresence, Tag("kind[]")],
    Discriminator(_choose_tag),
    BeforeValidator(_check_word),
]


class Failure(Section):
    """With which probability a participation fails at the end of each of its phases."""

    download: Fraction = Field(default=0.0, description="of those that began it")
    training: Fraction = Field(default=0.0, description="of those that began it")
    upload: Fraction = Field(default=0.0, description="of those that began it")
