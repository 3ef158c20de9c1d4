"""The part of a scenario that says what goes wrong in the simulated world, and how often."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from simfed.ground.errors import InputError
from simfed.schema.distribution import Distribution, DrawnStay
from simfed.schema.fields import Fraction, PositiveDuration, PositiveInt
from simfed.schema.section import Section


class Strike(Section):
    """How often something strikes each of those that it may strike, and for how long."""

    between: DrawnStay = Field(
        description="from the end of one to the beginning of the next: the mean of exponentially "
        "distributed times, or their distribution"
    )
    lasts: DrawnStay = Field(description="always so long, or a distribution of lengths")

    @model_validator(mode="after")
    def _refuse_columns(self) -> Strike:
        for key in ("between", "lasts"):
            value = getattr(self, key)
            if isinstance(value, Distribution) and value.column is not None:
                allowed = "a law, as every time is drawn anew"
                raise InputError(allowed, where=f"{key}.column", got=value.column)
        return self


class Stalls(Strike):
    """Links that carry nothing for a while, both directions of one together."""

    links: Literal["clients", "network", "all"] = Field(
        default="clients",
        description="clients: their own links; network: the server's and those between nodes",
    )


class MessagesSpec(Section):
    """Transfers whose payload is lost, or leaves twice at once.

    The sender of a lost one waits `timeout` after its last byte and sends it again, `tries` times
    in all; then the participation has failed.
    """

    lost: Fraction = Field(default=0.0, description="probability, of each copy")
    doubled: Fraction = Field(default=0.0, description="probability, of each transmission")
    timeout: PositiveDuration | None = Field(
        default=None, description="beside lost; 1 s if omitted"
    )
    tries: PositiveInt | None = Field(default=None, description="beside lost; 5 if omitted")

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("lost"):
            written = {key: option for key, option in value.items() if option is not None}
            return {"timeout": "1 s", "tries": 5, **written}
        return value

    @model_validator(mode="after")
    def _check_some(self) -> MessagesSpec:
        if not self.lost and not self.doubled:
            raise InputError(
                "lost or doubled above 0", problem="no message is ever lost or doubled"
            )
        for key in ("timeout", "tries"):
            if not self.lost and getattr(self, key) is not None:
                raise InputError(problem=f"without lost, {key} says nothing")
        return self


class FaultsSpec(Section):
    """What goes wrong in the simulated world, see faults."""

    stalls: Stalls | None = Field(default=None, description="links that carry nothing for a while")
    freezes: Strike | None = Field(default=None, description="devices that stand still meanwhile")
    messages: MessagesSpec | None = Field(default=None, description="lost, or sent twice")
    restarts: Strike | None = Field(
        default=None, description="the server loses what it got since its last merge"
    )

    @model_validator(mode="after")
    def _check_some(self) -> FaultsSpec:
        if not self.model_fields_set or all(
            getattr(self, name) is None for name in type(self).model_fields
        ):
            allowed = "one of stalls, freezes, messages or restarts; null for none"
            raise InputError(allowed, got={})
        return self
