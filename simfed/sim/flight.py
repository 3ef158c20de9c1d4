"""A client in flight: the plain record of what it has been asked, is doing, and has spent.

A client's process (`simfed.sim.client`) only waits and writes here, so what a client in flight is
doing can always be read off, saved, and started again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from simfed.contract import Contribution, Task
from simfed.net import Transfer
from simfed.policy import Pull

__all__ = ["Flight", "Unit"]


class Unit(NamedTuple):
    """One unit of a client's work that has begun."""

    kind: str
    name: str
    duration_s: float
    quantity: str = ""
    """The device profile's word for it."""


@dataclass(slots=True, eq=False)
class Flight:
    """One participation from its start to its merge."""

    task: Task
    contribution: Contribution
    pull: Pull
    started_at_s: float
    phase: str = "download"
    """What it is doing: `download`, the kind of a unit of work, `upload`, then `over`."""
    phase_started_at_s: float = 0.0
    outcome: str = "aggregated"
    downlink_s: float = 0.0
    units: list[Unit] = field(default_factory=list)
    """The work that it has begun, in order."""
    training_s: float = 0.0
    """Of all local work but compression."""
    compression_s: float = 0.0
    uplink_s: float = 0.0
    downlink_bytes: float = 0.0
    uplink_bytes: float = 0.0
    limited_s: dict[str, dict[str | None, float]] = field(default_factory=dict)
    """For `download` and `upload`: seconds for which each link was what limited the transfer."""
    transfer: Transfer | None = None
    """The network's handle of the transfer under way."""

    @property
    def client(self) -> int:
        return self.task.client

    @property
    def elapsed_s(self) -> float:
        """From its start to the arrival (or loss) of its upload, as a sum of durations."""
        return self.downlink_s + self.training_s + self.compression_s + self.uplink_s

    @property
    def tau_s(self) -> float:
        """τ of the reward: training + compression + upload, whatever else is charged."""
        return self.training_s + self.compression_s + self.uplink_s

    @property
    def lost(self) -> bool:
        """Nothing of it will be merged."""
        return self.outcome in ("dropped", "failed")

    def begin_unit(self, unit: Unit) -> None:
        """Count a unit of work as a whole; `cut_unit` takes back what is not done of it."""
        self.units.append(unit)
        if unit.kind == "compression":
            self.compression_s += unit.duration_s
        else:
            self.training_s += unit.duration_s

    def cut_unit(self, spent_s: float) -> None:
        """The last unit ended early."""
        begun = self.units
        *done, last = begun
        begun[-1] = last._replace(duration_s=spent_s)
        kept_s = sum(
            u.duration_s for u in done if (u.kind == "compression") == (last.kind == "compression")
        )
        if last.kind == "compression":
            self.compression_s = kept_s + spent_s
        else:
            self.training_s = kept_s + spent_s

    def phases(self) -> Iterator[Unit]:
        """What the client goes through, in order: download, units of work, upload."""
        yield Unit("download", "download", self.downlink_s)
        yield from self.units
        yield Unit("upload", "upload", self.uplink_s)
