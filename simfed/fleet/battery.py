"""Batteries: a device that has worked much is away until it has charged.

A part of the kind `availability` that knows what its clients have worked. Between two
participations a battery only gains: at `charge_w` in the hours from `charges_from` to
`charges_to`, local time, up to its `capacity_j`. The work of a participation is taken
out when the participation ends: its joules, where the device's profile knows its power,
else `work_w` for its seconds. A client is away from the end of a participation that
leaves less than `low` of the capacity until `back` of it is charged again; it does not
leave in the midst of its work.

Ignored: what a device uses beside its participations, ageing, charging curves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from simfed.fleet.availability import Presence, parse_time_of_day_s
from simfed.ground.arrays import Bools, Floats, Ints
from simfed.ground.errors import InputError, within
from simfed.ground.seeding import Streams

_DAY_S = 86_400.0


@dataclass(frozen=True)
class Battery:
    """The presence of clients while their batteries last.

    They charge in given hours of the day.
    """

    capacity_j: Annotated[float, "joules of a full battery; all are full at 0 s"]
    charge_w: Annotated[float, "watts while it charges"]
    charges_from: Annotated[str, 'local time of day, such as "22:00"'] = "22:00"
    charges_to: Annotated[str, "local time of day, which may be on the next day"] = (
        "06:00"
    )
    zone: Annotated[float, "hours ahead of UTC; 0 s is midnight at UTC"] = 0.0
    low: Annotated[float, "below this share of the capacity a client is away"] = 0.2
    back: Annotated[float, "from this share on it is there again"] = 0.5
    work_w: Annotated[
        float | None, "of work on devices whose profile knows no power"
    ] = None
    privacy: ClassVar[tuple[str, ...]] = ("client", "sample")

    def __post_init__(self) -> None:
        for name in ("capacity_j", "charge_w", "work_w"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError("a number above 0", where=name, got=value)
        if not 0 <= self.low <= self.back <= 1:
            raise InputError(
                "shares with 0 ≤ low ≤ back ≤ 1", where="low", got=[self.low, self.back]
            )
        for name in ("charges_from", "charges_to"):
            with within(name):
                parse_time_of_day_s(getattr(self, name))
        if self.hours_s[1] == 0:
            raise InputError(
                "another time than charges_from",
                where="charges_to",
                got=self.charges_to,
            )

    @property
    def needs_power(self) -> bool:
        """True if devices' profiles have to know the joules of work."""
        return self.work_w is None

    @property
    def hours_s(self) -> tuple[float, float]:
        """The beginning of charging, in seconds after midnight UTC, and its length."""
        begin_s, end_s = map(parse_time_of_day_s, (self.charges_from, self.charges_to))
        return (begin_s - self.zone * 3600) % _DAY_S, (end_s - begin_s) % _DAY_S

    def presence(self, clients: Ints, streams: Streams) -> Presence:
        """Return the batteries of one group's clients."""
        return _Batteries(self, len(clients))


class _Batteries:
    """The batteries of one group's clients, by their places in it; a `Presence`.

    Charge is worked out when somebody asks: between participations it only grows.
    """

    def __init__(self, battery: Battery, count: int) -> None:
        self._battery = battery
        self._level_j: Floats = np.full(count, battery.capacity_j, dtype=np.float64)
        """Joules after the last participation; what was charged since is worked out."""
        self._since_s: Floats = np.zeros(count)
        self._back_s: Floats = np.zeros(count)
        """The instant from which on each is there."""

    def _count_charging_s(self, until_s: float) -> float:
        """Return seconds of charging hours from midnight before 0 s to an instant."""
        first_s, length_s = self._battery.hours_s
        days, rest_s = divmod(until_s - first_s + _DAY_S, _DAY_S)
        return days * length_s + min(rest_s, length_s)

    def worked(
        self, place: int, ended_s: float, worked_s: float, energy_j: float | None
    ) -> None:
        """Take a participation's work out of a battery.

        Raises: `InputError` for work of which nobody knows the joules.
        """
        battery = self._battery
        if energy_j is None:
            if battery.work_w is None:
                raise InputError(
                    "joules of work, or work_w", where="availability", got=None
                )
            energy_j = worked_s * battery.work_w
        level_j = max(self._compute_charge_j(place, ended_s) - energy_j, 0.0)
        self._level_j[place], self._since_s[place] = level_j, ended_s
        if level_j < battery.low * battery.capacity_j:
            missing_s = (battery.back * battery.capacity_j - level_j) / battery.charge_w
            charging_s = self._count_charging_s(ended_s) + missing_s
            first_s, length_s = battery.hours_s
            days = math.ceil(charging_s / length_s) - 1
            back_s = days * _DAY_S + charging_s - days * length_s + first_s - _DAY_S
            self._back_s[place] = max(back_s, np.nextafter(ended_s, math.inf))

    def _compute_charge_j(self, place: int, at_s: float) -> float:
        """Return the joules of a battery that has charged until now."""
        battery, since_s = self._battery, float(self._since_s[place])
        gained_s = self._count_charging_s(at_s) - self._count_charging_s(since_s)
        full_j = float(self._level_j[place]) + battery.charge_w * gained_s
        return min(full_j, battery.capacity_j)

    def battery(self, place: int, at_s: float) -> float:
        """Return how full a battery is, as a share of its capacity."""
        return self._compute_charge_j(place, at_s) / self._battery.capacity_j

    def mask(self, at_s: float) -> Bools:
        """Return per client whether it is there at an instant."""
        return np.asarray(self._back_s <= at_s, dtype=bool)

    def there(self, place: int, at_s: float) -> bool:
        """Return whether a client is there at an instant."""
        return bool(self._back_s[place] <= at_s)

    def change_after(self, place: int, at_s: float) -> float:
        """Return the instant at which an absent client is back; inf: it is there."""
        back_s = float(self._back_s[place])
        return back_s if at_s < back_s else math.inf

    def arrival_after(self, at_s: float) -> float:
        """Return the next instant at which a client comes back; inf: nobody is away."""
        return float(np.min(self._back_s, initial=math.inf, where=self._back_s > at_s))
