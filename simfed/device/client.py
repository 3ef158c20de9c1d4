"""One client's processor: from a profile's nominal seconds to simulated seconds.

A `Processor` is what a group of clients has in common (profile, speed, noise); a `Device` is one
client of it and costs next to nothing until it computes. Noise is drawn per client, round and
phase from its own keyed generator, so no draw depends on another client or on the order of calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simfed.device.profile import QUANTITIES, Profile
from simfed.errors import InputError, did_you_mean, listed
from simfed.seeding import Streams

__all__ = ["Device", "Processor", "build_device", "build_processor"]


@dataclass(frozen=True, slots=True)
class LognormalNoise:
    """A factor of mean 1 and coefficient of variation `cv` on every compute duration."""

    cv: float

    def factor(self, rng: Any) -> float:
        variance = math.log1p(self.cv**2)
        return math.exp(math.sqrt(variance) * rng.standard_normal() - variance / 2)


@dataclass(frozen=True, slots=True)
class Processor:
    """What the clients of one group have in common."""

    profile: Profile
    speed: float = 1.0
    noise: LognormalNoise | None = None
    assume: Mapping[str, float] | None = None

    def nominal_s(self, quantity: str, *, model: str, strategy: str = "", **size: float) -> float:
        """Seconds of one call on the measured device, before speed and noise; see `Profile.seconds`.

        What the scenario assumes for a quantity stands in place of the profile's.
        """
        if self.assume and quantity in self.assume:
            return self.assume[quantity]
        return self.profile.seconds(quantity, model=model, strategy=strategy, **size)

    def client(self, streams: Streams, client: int) -> Device:
        """The processor of one client."""
        return Device(self, streams, client)


class Device:
    """One client's processor.

    >>> from simfed.device import build_device, load_profile
    >>> profile = load_profile("rtx3090-ryzen4800h")
    >>> device = build_device({"speed": 0.5}, profile, Streams(0), client=3)
    >>> step_s = device.nominal_s("training", model="lenet5", batch=32)
    >>> device.duration_s(step_s, start_at_s=10.0, round=1, phase="training")
    0.009
    """

    __slots__ = ("_streams", "client", "processor")

    def __init__(self, processor: Processor, streams: Streams, client: int) -> None:
        self.processor = processor
        self.client = client
        self._streams = streams

    def nominal_s(self, quantity: str, *, model: str, strategy: str = "", **size: float) -> float:
        """Seconds of one call on the measured device; see `Processor.nominal_s`."""
        return self.processor.nominal_s(quantity, model=model, strategy=strategy, **size)

    def duration_s(self, nominal_s: float, start_at_s: float, *, round: int, phase: str) -> float:
        """Simulated seconds that `nominal_s` of work takes when it starts at `start_at_s`.

        `phase` (training, compression, …) names the noise draw together with client and round.
        Calls of one client come in the order of their starts.
        """
        work_s = nominal_s
        noise = self.processor.noise
        if noise is not None and nominal_s > 0:
            work_s *= noise.factor(self._streams("device-noise", self.client, round, phase))
        return work_s / self.processor.speed

    def energy_j(self, phases_s: Mapping[str, float]) -> float | None:
        """Joules of a participation, from seconds per phase; None where the profile knows no power."""
        power_w = self.processor.profile.power_w
        if not power_w:
            return None
        for phase, seconds in phases_s.items():
            if seconds > 0 and phase not in power_w:
                raise InputError(
                    "watts for this phase", where=f"{self.processor.profile.name}: power", got=phase
                )
        return math.fsum(power_w[phase] * s for phase, s in phases_s.items() if s > 0)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to know of this device (JSON-able)."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`."""


def build_processor(spec: Mapping[str, Any], profile: Profile) -> Processor:
    """The processor of a group of clients from plain values.

    `spec` has the keys of a scenario's `device` in base units: `speed`, `noise`, `assume`; keys
    that are missing or None are at their defaults.
    """
    given = {key: value for key, value in spec.items() if value is not None and key != "profile"}
    assume = given.pop("assume", None) or None
    for quantity in assume or ():
        if quantity not in QUANTITIES:
            raise InputError(
                f"a kind of work: {listed(QUANTITIES)}", where="assume", got=quantity,
                hint=did_you_mean(quantity, QUANTITIES),
            )  # fmt: skip
    noise = given.pop("noise", None)
    speed = given.pop("speed", 1.0)
    if given:
        raise InputError("a key of a device", got=sorted(given)[0])
    return Processor(profile, speed, LognormalNoise(noise["cv"]) if noise else None, assume)


def build_device(
    spec: Mapping[str, Any], profile: Profile, streams: Streams, client: int
) -> Device:
    """One client's device; for many clients of a group, build the processor once instead."""
    return build_processor(spec, profile).client(streams, client)
