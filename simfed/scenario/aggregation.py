"""The keys of a server mode."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from simfed.errors import InputError, listed
from simfed.scenario.fields import (
    Int,
    NonNegative,
    Positive,
    PositiveDuration,
    PositiveInt,
    Section,
)

__all__ = ["Aggregation", "Staleness"]


class Staleness(Section):
    """What an upload counts that began `a` merges ago.

    `constant`: 1; `polynomial`: (1 + a)^(−exponent); `hinge`: 1 up to `after`, then
    1/(slope·(a − after) + 1). Beyond `bound` it is dropped.
    """

    kind: Literal["constant", "polynomial", "hinge"] = Field(
        default="polynomial", description="how the weight falls with staleness"
    )
    exponent: NonNegative = Field(default=0.5, description="polynomial")
    after: Int = Field(default=4, description="hinge: merges up to which nothing is lost")
    slope: Positive = Field(default=0.5, description="hinge: how fast it falls then")
    bound: Int | None = Field(default=None, description="merges beyond which an upload is dropped")


_KEYS: dict[str, tuple[str, ...]] = {
    "synchronous": (),
    "deadline": ("deadline", "late", "staleness"),
    "first": ("over_selection", "late", "staleness"),
    "buffered": ("buffer", "concurrency", "staleness"),
    "asynchronous": ("concurrency", "staleness"),
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "deadline": {"late": "drop"},
    "first": {"late": "drop", "over_selection": 0.3},
    "buffered": {"staleness": {}},
    "asynchronous": {"staleness": {}},
}
_NEEDED = {"deadline": ("deadline",), "buffered": ("buffer", "concurrency"),
           "asynchronous": ("concurrency",)}  # fmt: skip


class Aggregation(Section):
    """When the server merges, and what becomes of the late.

    `synchronous`: when everybody who takes part has ended. `deadline`: at the latest so long after
    the start. `first`: when `clients_per_round` of (1 + over_selection) times as many have arrived.
    `buffered`: `concurrency` clients are kept in flight, and `buffer` arrivals are merged.
    `asynchronous`: the same with every arrival.
    """

    mode: Literal["synchronous", "deadline", "first", "buffered", "asynchronous"] = Field(
        default="synchronous", description="when the server merges"
    )
    deadline: PositiveDuration | None = Field(
        default=None, description="deadline: after the start of a round"
    )
    over_selection: NonNegative | None = Field(
        default=None, description="first: share of clients asked beyond those waited for; 0.3"
    )
    late: Literal["drop", "merge"] | None = Field(
        default=None,
        description="deadline, first: cut off (the default), or go on and be merged later",
    )
    buffer: PositiveInt | None = Field(
        default=None, description="buffered: arrivals that make a merge"
    )
    concurrency: PositiveInt | None = Field(
        default=None, description="buffered, asynchronous: clients kept in flight"
    )
    staleness: Staleness | None = Field(
        default=None,
        description="what late uploads count; polynomial where clients are kept in flight",
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_mode(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        mode = value.get("mode", "synchronous")
        own = _DEFAULTS.get(mode, {}) if isinstance(mode, str) else {}
        return {**value, **{key: of for key, of in own.items() if value.get(key) is None}}

    @model_validator(mode="after")
    def _keys_of_mode(self) -> Aggregation:
        own = _KEYS[self.mode]
        for key in ("deadline", "over_selection", "late", "buffer", "concurrency", "staleness"):
            given = getattr(self, key) is not None
            if given and key not in own:
                takers = [mode for mode, keys in _KEYS.items() if key in keys]
                raise ValueError(
                    InputError(
                        f"a key of mode {self.mode}: {listed(own) if own else 'it has none'}",
                        got=key,
                        hint=f"{key} belongs to {listed(takers)}",
                    )
                )
            if not given and key in _NEEDED.get(self.mode, ()):
                raise ValueError(InputError(f"the key {key!r} beside mode {self.mode}"))
        if self.staleness is not None and self.late == "drop":
            raise ValueError(
                InputError("staleness only where the late are merged", where="late", got=self.late)
            )
        return self
