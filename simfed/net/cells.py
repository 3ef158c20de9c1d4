"""Radio cells: a cell is one resource, its airtime, which its flows share.

What is modelled: what a byte costs of the cell's time, and how much of that time each
flow gets. A client's rate while it is alone in the cell is one over its cost. Wi-Fi is
half-duplex: uploads, downloads and TCP's acknowledgements take turns in one airtime. A
cellular cell has a scheduler, and an airtime of its own, for each direction.

What is ignored: hidden nodes, RTS, OFDMA, rate adaptation, fading, errors (a trace of a
client's rate stands in for the last three), queues in the access point.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil

import numpy as np

from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError, check_known, listed
from simfed.ground.units import format_rate

# ---- fitted to half of ns-3's cases (tests/golden); all else is timing of the standard

ACK_SHARE = 0.87
"""The share of the time of TCP's acknowledgements, one for two segments in turns of
their own, that they really take."""
CONTENDERS = 4.2
"""Stations that contend at any time: following their true number is no better up to
20."""
MOST_FRAMES = 36.0
"""Frames in a turn: TCP seldom has more of them waiting."""
UPLOAD_POWER = 0.55
"""An upload weighs (frames in its turn) to this power: who has longer turns gets
more."""
DOWNLOAD_WEIGHT = 1.47
"""The weight of every download, against the mean of the cell's uploads."""
WIFI_LATENCY_S = 0.0004
"""Seconds each way, besides those of turns."""
CELLULAR_LATENCY_S = 0.009
"""Seconds each way, of LTE: scheduling request, grant, processing."""

# ---- timing --------------------------------------------------------------------------

_SLOT_S, _SIFS_S = 9e-6, 16e-6
_AIFS_S = _SIFS_S + 3 * _SLOT_S
"""EDCA, best effort."""
_WINDOW, _DOUBLINGS = 16, 6
"""The contention window: slots are drawn from 0..15, doubled six times at most, to
0..1023."""
_PACKET_BYTES, _ACK_PACKET_BYTES = 1500.0, 52.0
_FRAME_BYTES, _DELIMITER_BYTES = 38.0, 6.0
"""Around a packet: MAC, LLC and FCS; in an aggregate its delimiter and padding
besides."""
_BLOCK_ACK_BYTES, _ACK_BYTES = 32, 14
_LEGACY_PREAMBLE_S, _LEGACY_SYMBOL_S, _SERVICE_BITS = 20e-6, 4e-6, 22
_CONTROL_RATES_BITS = (24e6, 12e6, 6e6)


@dataclass(frozen=True)
class _Standard:
    subcarriers: dict[int, int]
    """Width of the channel in MHz → subcarriers that carry data."""
    symbol_s: float
    guards_ns: tuple[int, ...]
    mcs: int
    """The number of modulation and coding schemes."""
    streams: int
    preamble_s: float
    longest_turn_s: float
    ampdu_bytes: float
    mpdus: int
    """Frames that one block acknowledgement covers."""


_STANDARDS = {
    "n": _Standard(
        {20: 52, 40: 108},
        3.2e-6,
        (800, 400),
        8,
        4,
        36e-6,
        10e-3,
        65_535.0,
        64,
    ),
    "ac": _Standard(
        {20: 52, 40: 108, 80: 234, 160: 468},
        3.2e-6,
        (800, 400),
        10,
        8,
        40e-6,
        5.484e-3,
        1_048_575.0,
        64,
    ),
    "ax": _Standard(
        {20: 234, 40: 468, 80: 980, 160: 1960},
        12.8e-6,
        (800, 1600, 3200),
        12,
        8,
        44e-6,
        5.484e-3,
        1_048_575.0,
        256,
    ),
}

_BITS = (1, 2, 2, 4, 4, 6, 6, 6, 8, 8, 10, 10)
"""Per subcarrier and symbol, by MCS."""
_CODE = (
    1 / 2,
    1 / 2,
    3 / 4,
    1 / 2,
    3 / 4,
    2 / 3,
    3 / 4,
    5 / 6,
    3 / 4,
    5 / 6,
    3 / 4,
    5 / 6,
)

_NOT_IN_AC = {
    (20, 9): (1, 2, 4, 5, 7, 8),
    (80, 6): (3, 7),
    (80, 9): (6,),
    (160, 9): (3,),
}
"""(width, MCS) → numbers of streams with which 802.11ac has it not."""


@dataclass(frozen=True)
class Wifi:
    """One access point and its stations, after 802.11n, ac or ax (DCF).

    There is no RTS and no OFDMA. A byte's cost: a turn is back-off, preamble, frames
    and the MAC's acknowledgement; those of TCP have turns of their own; collisions take
    a share of all (Bianchi 2000). With `fair: packets` every station has equally many
    turns (the anomaly of Heusse et al. 2003: a slow one slows all); with `airtime`
    equally much time, as with the queues of recent Linux access points.

    >>> wifi = Wifi("n", 20)
    >>> float(wifi.phy_rate(7)), float(wifi.alone(wifi.phy_rate(7)).round(-3))
    (8125000.0, 6426000.0)
    """

    standard: str
    """n, ac or ax."""
    width_mhz: int = 20
    streams: int = 1
    guard_interval_ns: int = 800
    aggregation: bool = True
    fair: str = "packets"
    """packets or airtime."""
    max_ampdu_bytes: float | None = None
    """The largest aggregate of frames; None: what the standard allows."""
    max_mpdus: int | None = None

    one_air = True
    """True if both directions share one airtime."""
    latency_s = WIFI_LATENCY_S

    def __post_init__(self) -> None:
        facts = _STANDARDS.get(self.standard)
        if facts is None:
            allowed = listed(_STANDARDS)
            raise InputError(allowed, where="standard", got=self.standard)
        name = f"802.11{self.standard}"
        for key, value, choices in (
            ("width", self.width_mhz, facts.subcarriers),
            ("guard_interval", self.guard_interval_ns, facts.guards_ns),
        ):
            if value not in choices:
                unit = "MHz" if key == "width" else "ns"
                allowed = f"one of {name}: {listed([f'{x} {unit}' for x in choices])}"
                raise InputError(allowed, where=key, got=f"{value} {unit}")
        check_known(self.fair, ("packets", "airtime"), where="fair")
        if not 1 <= self.streams <= facts.streams:
            allowed = f"from 1 to {facts.streams} in {name}"
            raise InputError(allowed, where="streams", got=self.streams)

    def phy_rate(self, mcs: int) -> float:
        """Return the rate of the bits on the air, bytes/s.

        Raises: `InputError` where there is no such MCS.
        """
        facts = self._facts
        if not 0 <= mcs < facts.mcs or not self._has(mcs):
            hint, numbers = None, [k for k in range(facts.mcs) if self._has(k)]
            if self.standard == "n" and facts.mcs <= mcs < facts.mcs * facts.streams:
                hint = f"mcs {mcs % 8} with streams: {mcs // 8 + 1}"
            allowed = f"an MCS of {self._name}: {numbers[0]} to {numbers[-1]}"
            raise InputError(allowed, where="mcs", got=mcs, hint=hint)
        return self._rate(mcs)

    def check_rate(self, most_bytes_per_s: float) -> None:
        """Raises: `InputError` for a PHY rate above the standard's."""
        most = max(self._rate(mcs) for mcs in range(self._facts.mcs) if self._has(mcs))
        # rates are often written with three digits
        if most_bytes_per_s > most * (1 + 1e-3):
            allowed = (
                f"at most {format_rate(most)}, the PHY rate of the highest MCS of "
                f"{self._name}"
            )
            raise InputError(allowed, where="rate", got=format_rate(most_bytes_per_s))

    def alone(self, rates_bytes_per_s: Floats | float) -> Floats:
        """Return the bytes/s of stations with these PHY rates while alone in the cell.

        It is one over the seconds of airtime that each byte of a packet costs. A rate
        of 0 gives 0.
        """
        rates = np.asarray(rates_bytes_per_s, dtype=np.float64)
        with np.errstate(divide="ignore"):
            frames = self._count_frames(rates)
            turn_s = self._turn_s(frames, _PACKET_BYTES, rates)
            # without aggregation one turn for two segments, else one of half as many
            # frames
            turns = 1.0 if self.aggregation else 0.5
            acks = np.maximum(frames / 2, 0.5) if self.aggregation else 1.0
            acks_s = ACK_SHARE * turns * self._turn_s(acks, _ACK_PACKET_BYTES, rates)
            idle_s, collisions = _solve_contention(CONTENDERS)
            cost_s = (
                (turn_s + acks_s + idle_s) / (frames * _PACKET_BYTES) * (1 + collisions)
            )
            alone: Floats = 1 / cost_s
        return alone

    def shares(self, rates_bytes_per_s: Floats) -> Floats:
        """Return the shares, in any unit, of uploads with these PHY rates.

        With `fair: airtime` they are as the rates while alone; else as the frames in a
        turn, to the power that was fitted.
        """
        if self.fair == "airtime":
            return self.alone(rates_bytes_per_s)
        shares: Floats = (
            self._count_frames(np.asarray(rates_bytes_per_s, np.float64))
            ** UPLOAD_POWER
        )
        return shares

    def weights(
        self, rates_bytes_per_s: Floats, mean_share: float | None = None
    ) -> tuple[Floats, Floats]:
        """Return the weights of uploads and of downloads with these PHY rates.

        An upload with the share `mean_share` (default: their mean) weighs 1, and so
        does a share of 0: it takes no air.
        """
        weights = _compute_weights(self.shares(rates_bytes_per_s), mean_share)
        downloads = np.full_like(weights, DOWNLOAD_WEIGHT)
        return weights, weights if self.fair == "airtime" else downloads

    # ---- inside ----------------------------------------------------------------------

    @property
    def _facts(self) -> _Standard:
        return _STANDARDS[self.standard]

    @property
    def _name(self) -> str:
        plural = "" if self.streams == 1 else "s"
        return (
            f"802.11{self.standard} at {self.width_mhz} MHz, {self.streams} "
            f"stream{plural}"
        )

    def _has(self, mcs: int) -> bool:
        missing = _NOT_IN_AC.get((self.width_mhz, mcs), ())
        return self.standard != "ac" or self.streams not in missing

    def _rate(self, mcs: int) -> float:
        facts = self._facts
        bits = (
            facts.subcarriers[self.width_mhz] * self.streams * _BITS[mcs] * _CODE[mcs]
        )
        return bits / 8 / (facts.symbol_s + 1e-9 * self.guard_interval_ns)

    def _count_frames(self, rates: Floats) -> Floats:
        """Return how many packets a station sends when it gets the air, per rate."""
        facts = self._facts
        if not self.aggregation:
            return np.ones_like(rates)
        each = _PACKET_BYTES + _FRAME_BYTES + _DELIMITER_BYTES
        most = min(
            MOST_FRAMES,
            facts.mpdus if self.max_mpdus is None else self.max_mpdus,
            (
                facts.ampdu_bytes
                if self.max_ampdu_bytes is None
                else self.max_ampdu_bytes
            )
            / each,
        )
        frames: Floats = np.clip(
            facts.longest_turn_s * rates / each, 1.0, max(most, 1.0)
        )
        return frames

    def _turn_s(
        self, frames: Floats | float, packet_bytes: float, rates: Floats
    ) -> Floats:
        """Return the seconds of air that packets and their acknowledgement take."""
        each = (
            packet_bytes
            + _FRAME_BYTES
            + (_DELIMITER_BYTES if self.aggregation else 0.0)
        )
        ack_bits = 8 * (_BLOCK_ACK_BYTES if self.aggregation else _ACK_BYTES)
        acks_s = [
            _LEGACY_PREAMBLE_S
            + _LEGACY_SYMBOL_S
            * ceil((_SERVICE_BITS + ack_bits) / (bits * _LEGACY_SYMBOL_S))
            for bits in _CONTROL_RATES_BITS
        ]
        conditions = [8 * rates >= bits for bits in _CONTROL_RATES_BITS[:-1]]
        ack_s = np.select(conditions, acks_s[:-1], acks_s[-1])
        turn_s: Floats = (
            _AIFS_S + self._facts.preamble_s + frames * each / rates + _SIFS_S + ack_s
        )
        return turn_s


def _compute_weights(shares: Floats, mean_share: float | None) -> Floats:
    """Return shares over `mean_share` (default: their mean); 1 for a share of 0."""
    mean_share = float(np.mean(shares)) if mean_share is None else mean_share
    weights: Floats = np.ones_like(shares)
    return np.divide(shares, mean_share, out=weights, where=shares > 0)


@cache
def _solve_contention(stations: float) -> tuple[float, float]:
    """Return (seconds of idle slots, collisions) for each turn that succeeds.

    The fixed point of Bianchi 2000, found by bisection over the probability that a
    frame collides.

    Args:
        stations: how many have something to send: above 1, also between whole numbers.
    """
    low, high = 0.0, 0.5  # of the probability that a frame collides
    for _ in range(60):
        collides = (low + high) / 2
        doubled = (
            collides * _WINDOW * sum((2 * collides) ** k for k in range(_DOUBLINGS))
        )
        sends = 2 / (_WINDOW + 1 + doubled)
        if 1 - (1 - sends) ** (stations - 1) > collides:
            low = collides
        else:
            high = collides
    busy = 1 - (1 - sends) ** stations
    success = stations * sends * (1 - sends) ** (stations - 1) / busy
    return (1 - busy) / (busy * success) * _SLOT_S, (1 - success) / success


@dataclass(frozen=True)
class Cellular:
    """A base station whose scheduler gives every active client equal airtime.

    It does so in each direction (proportional fair and round robin alike, where rates
    stand still). Rates are what a client gets alone in the cell, measured or sold.
    """

    scheduler: str = "pf"

    one_air = False
    latency_s = CELLULAR_LATENCY_S

    def __post_init__(self) -> None:
        if self.scheduler not in ("pf", "rr"):
            raise InputError("pf or rr", where="scheduler", got=self.scheduler)

    def weights(
        self, alone_bytes_per_s: Floats, mean_share: float | None = None
    ) -> Floats:
        """Return the weights of flows of clients with these rates.

        The rate `mean_share` (default: their mean) weighs 1, and so does a rate of 0:
        it takes no air.
        """
        return _compute_weights(alone_bytes_per_s, mean_share)
