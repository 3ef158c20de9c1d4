"""The device part of a scenario: which calibration profile, and what stands between it and a client."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from simfed.scenario.fields import NonNegative, Part, Positive

__all__ = ["Device", "Noise"]


class Noise(Part):
    """Multiplicative noise of mean 1 on every compute duration, drawn per client, round and phase."""

    kind: Literal["lognormal"] = "lognormal"
    cv: NonNegative


class Device(Part):
    """A client's processor: a calibration profile and what scales it. `profile` alone may be written as its name."""

    profile: str
    speed: Positive = 1.0
    noise: Noise | None = None

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"profile": value} if isinstance(value, str) else value
