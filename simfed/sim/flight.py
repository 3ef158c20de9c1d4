"""A client in flight: the plain record of what it has been asked, is doing, and has spent.

A client's process (`simfed.sim.client`) only waits and writes here, so what a client in flight is
doing can always be read off, saved, and started again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simfed.contract import Contribution, Task
from simfed.net import Transfer
from simfed.policy import Pull

__all__ = ["Flight"]


@dataclass(slots=True, eq=False)
class Flight:
    """One participation from its start to its merge."""

    task: Task
    contribution: Contribution
    pull: Pull
    started_at_s: float
    phase: str = "download"
    """What it is doing: `download`, `training`, `compression`, `upload`, then `over`."""
    phase_started_at_s: float = 0.0
    outcome: str = "aggregated"
    downlink_s: float = 0.0
    training_s: float = 0.0
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

    def phases_s(self) -> tuple[tuple[str, float], ...]:
        """(kind, seconds) in the order in which a client goes through them."""
        return (
            ("download", self.downlink_s),
            ("training", self.training_s),
            ("compression", self.compression_s),
            ("upload", self.uplink_s),
        )
