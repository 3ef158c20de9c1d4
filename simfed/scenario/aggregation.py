"""The keys of a server mode."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simfed.ground.registry import Only
from simfed.scenario.fields import (
    Int,
    NonNegative,
    Positive,
    PositiveDuration,
    PositiveInt,
)
from simfed.scenario.section import Refused, Section

__all__ = ["Aggregation", "Staleness"]


class Staleness(Section):
    """What an upload counts that began `a` merges ago.

    `constant`: 1; `polynomial`: (1 + a)^(−exponent); `hinge`: 1 up to `after`, then
    1/(slope·(a − after) + 1). Beyond `bound` it is dropped.
    """

    kind: Literal["constant", "polynomial", "hinge"] = Field(
        default="polynomial", description="how the weight falls with staleness"
    )
    exponent: Annotated[NonNegative, Only("kind", "polynomial")] = Field(
        default=0.5, description="how fast it falls"
    )
    after: Annotated[Int, Only("kind", "hinge")] = Field(
        default=4, description="merges up to which nothing is lost"
    )
    slope: Annotated[Positive, Only("kind", "hinge")] = Field(
        default=0.5, description="how fast it falls then"
    )
    bound: Int | None = Field(default=None, description="merges beyond which an upload is dropped")


_DEFAULTS: dict[str, dict[str, Any]] = {
    "deadline": {"late": "drop"},
    "first": {"late": "drop", "over_selection": 0.3},
    "buffered": {"staleness": {}},
    "asynchronous": {"staleness": {}},
}


class Aggregation(Section):
    """When the server merges, and what happens to late uploads.

    `synchronous`: when everybody who takes part has ended. `deadline`: at the latest so long after
    the start. `first`: when `clients_per_round` of (1 + over_selection) times as many have arrived.
    `buffered`: `concurrency` clients are kept in flight, and `buffer` arrivals are merged.
    `asynchronous`: the same with every arrival.
    """

    mode: Literal["synchronous", "deadline", "first", "buffered", "asynchronous"] = Field(
        default="synchronous", description="when the server merges"
    )
    deadline: Annotated[PositiveDuration | None, Only("mode", "deadline", needed=True)] = Field(
        default=None, description="after the start of a round"
    )
    over_selection: Annotated[NonNegative | None, Only("mode", "first")] = Field(
        default=None, description="share of clients asked beyond those waited for; 0.3"
    )
    late: Annotated[Literal["drop", "merge"] | None, Only("mode", "deadline", "first")] = Field(
        default=None, description="cut off (the default), or go on and be merged later"
    )
    buffer: Annotated[PositiveInt | None, Only("mode", "buffered", needed=True)] = Field(
        default=None, description="arrivals that make a merge"
    )
    concurrency: Annotated[
        PositiveInt | None, Only("mode", "buffered", "asynchronous", needed=True)
    ] = Field(default=None, description="clients kept in flight")
    staleness: Annotated[
        Staleness | None, Only("mode", "deadline", "first", "buffered", "asynchronous")
    ] = Field(
        default=None,
        description="what late uploads count; polynomial where clients are kept in flight",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        mode = value.get("mode", "synchronous")
        defaults = _DEFAULTS.get(mode, {}) if isinstance(mode, str) else {}
        missing = {key: defaults[key] for key in defaults if value.get(key) is None}
        return {**value, **missing}

    @model_validator(mode="after")
    def _check_staleness(self) -> Aggregation:
        if self.staleness is not None and self.late == "drop":
            raise Refused("staleness only where the late are merged", where="late", got=self.late)
        return self
