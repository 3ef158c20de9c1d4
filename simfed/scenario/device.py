"""The device part of a scenario: which calibration profile, and what stands between it and a client."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

from simfed.scenario.fields import Duration, NonNegative, Part, Positive

__all__ = ["Assumed", "Device", "Noise"]


class Noise(Part):
    """Multiplicative noise of mean 1 on every compute duration, drawn per client, round and phase."""

    kind: Literal["lognormal"] = "lognormal"
    cv: NonNegative


class Assumed(Part):
    """Seconds per call to assume for a kind of work, in place of what the profile knows or lacks."""

    training: Duration | None = None
    compression: Duration | None = None
    decompression: Duration | None = None
    inference: Duration | None = None
    distillation: Duration | None = None


class Device(Part):
    """A client's processor: a calibration profile and what scales it. `profile` alone may be written as its name."""

    profile: str
    speed: Positive = Field(
        default=1.0, description="factor on the profile's speed; 0.5 is half as fast"
    )
    noise: Noise | None = None
    assume: Assumed | None = Field(
        default=None, description="times of what the profile lacks, such as inference: 0 s"
    )

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"profile": value} if isinstance(value, str) else value

    def plain(self) -> dict[str, Any]:
        """Plain values in base units, without what is left at None: the argument of `simfed.device.build_processor`."""
        plain: dict[str, Any] = _plain(self)
        return plain


def _plain(value: Any) -> Any:
    # not model_dump: that writes quantities back as text with their units
    if isinstance(value, BaseModel):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        return {name: _plain(x) for name, x in fields.items() if x is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(x) for x in value]
    return value
