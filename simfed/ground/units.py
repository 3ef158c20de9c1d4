"""Quantities: text with units in files, base units inside.

Base units are seconds, bytes, bytes/s, watts. Prefixes are decimal (1 Mbps = 10^6
bit/s); `KiB`, `MiB`, `GiB` are the binary ones. A bare number is refused, except 0,
because 20 could be anything. `Mb` is refused as a rate: it is an amount. The prefix of
a rate in bits may be small (`50 mbps`): nobody means a thousandth of a bit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real

from simfed.ground.errors import InputError

_QUANTITY = re.compile(
    r"^\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-zµμ/]*)\s*$"
)

_DURATIONS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_RATES = {
    **{
        p + bits: m / 8
        for prefix, m in _PREFIXES.items()
        for p in (prefix.lower(), prefix)
        for bits in ("bps", "bit/s")
    },
    **{p + "B/s": m for p, m in _PREFIXES.items()},
}
_SIZES = {
    **{p + bits: m / 8 for p, m in _PREFIXES.items() for bits in ("bit", "b")},
    **{p + "B": m for p, m in _PREFIXES.items()},
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
_HERTZ = {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}
_WATTS = {"mW": 1e-3, "W": 1.0, "kW": 1e3}

_LEAST, _MOST = 1e-18, 1e18
"""The least and the largest number of seconds, bytes, bytes per second, watts: beyond
them, times become 0 or infinite."""


def read_number(value: object) -> float:
    """Return a finite number without a unit as a float.

    NaN for whatever is none, or is none that a float can hold.

    >>> read_number(3), read_number(True), read_number("3"), read_number(10**400)
    (3.0, nan, nan, nan)
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        return math.nan
    return number if math.isfinite(number) else math.nan


@dataclass(frozen=True, eq=False)
class Unit:
    """Amounts of one kind: how they are written, read and shown.

    >>> DURATION.parse("20 ms"), RATE.parse("50 mbps"), SIZE.parse("10 MB")
    (0.02, 6250000.0, 10000000.0)
    """

    noun: str
    example: str
    scales: Mapping[str, float]
    """Unit → base units."""
    base: str = ""
    """The unit in which dumps write them."""
    format: Callable[[float], str] = "{:.4g}".format
    """Function from base units to a text for people."""

    def parse(self, text: object, *, where: str | None = None) -> float:
        """Return a written amount in base units.

        Raises: `InputError`, also for a negative one and for one without a unit but 0.
        """
        error = InputError(
            f"{self.noun} with its unit such as {self.example}", where=where, got=text
        )
        if read_number(text) == 0:
            return 0.0
        match = _QUANTITY.match(text) if isinstance(text, str) else None
        if match is None:
            raise error
        number, unit = float(match[1]), match[2]
        if unit not in self.scales or not math.isfinite(number):
            raise error
        if number < 0:
            raise error.changed(hint="it cannot be negative")
        value = number * self.scales[unit]
        # 1e-400 is no 0, but becomes one
        written = float(match[1].lower().partition("e")[0])
        if written and not _LEAST <= value <= _MOST:
            large = "too large to be meant"
            raise error.changed(hint=large if value > 1 else "too small to be meant")
        return value


def counted(n: int, what: str, plural: str | None = None) -> str:
    """Return a number of things for people.

    >>> counted(1, "round"), counted(2000, "round")
    ('1 round', '2,000 rounds')
    >>> counted(0, "trajectory", "trajectories")
    '0 trajectories'
    """
    return f"{n:,} {what if n == 1 else plural or f'{what}s'}"


def format_duration(seconds: float) -> str:
    """Seconds for people: three significant digits and a fitting unit.

    >>> [format_duration(s) for s in (0, 2.5e-7, 0.0123, 4.98, 250, 7300)]
    ['0 s', '250 ns', '12.3 ms', '4.98 s', '4 min 10 s', '2 h 2 min']
    """
    if not math.isfinite(seconds):
        return str(seconds)
    size = abs(seconds)
    if size == 0:
        return "0 s"
    for scale, unit in ((1e-6, "ns"), (1e-3, "µs"), (1.0, "ms")):
        if size < scale * 0.9995:
            return f"{seconds / (scale * 1e-3):.3g} {unit}"
    if size < 59.95:
        return f"{seconds:.3g} s"
    whole = round(size)
    sign = "-" if seconds < 0 else ""
    if whole < 3600:
        return f"{sign}{whole // 60} min {whole % 60} s"
    minutes = round(size / 60)
    if minutes < 48 * 60:
        return f"{sign}{minutes // 60} h {minutes % 60} min"
    hours = round(size / 3600)
    return f"{sign}{hours // 24} d {hours % 24} h"


def format_bytes(size_bytes: float) -> str:
    """Bytes for people, decimal prefixes.

    >>> [format_bytes(b) for b in (0, 999, 5993.5, 44.7e6)]
    ['0 B', '999 B', '5.99 kB', '44.7 MB']
    """
    return _format_decimal(size_bytes, "B")


def format_energy(energy_j: float) -> str:
    """Return joules for people, decimal prefixes.

    >>> format_energy(3210)
    '3.21 kJ'
    """
    return _format_decimal(energy_j, "J")


def format_rate(bytes_per_s: float) -> str:
    """Return a rate for people, in bit/s as networks are sold.

    >>> format_rate(6.25e6)
    '50 Mbps'
    """
    return _format_decimal(bytes_per_s * 8, "bps")


def _format_decimal(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return f"{value} {unit}"
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale * 0.9995:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


DURATION = Unit("a duration", "20 ms", _DURATIONS, "s", format_duration)
RATE = Unit("a rate", "20 Mbps", _RATES, "B/s", format_rate)
SIZE = Unit("a size", "10 MB", _SIZES, "B")
FREQUENCY = Unit("a frequency", "40 MHz", _HERTZ, "Hz")

parse_duration = DURATION.parse
parse_rate = RATE.parse
parse_size = SIZE.parse
parse_power = Unit("a power", "5 W", _WATTS).parse
