"""Where time and learning meet.

The clock side (`simfed.sim`) asks a `Workload` for tasks, sizes and outcomes and never sees a
tensor; the learning side (`simfed.learn`) answers and never sees a clock. Everything that crosses
is a frozen record of plain numbers, so that it can be logged, replayed from a cache, or made up by
the time-only workload.

One synchronous round, as the server plays it:

    for client in cohort:
        task = workload.task(round, client)                    # what to send down, what to compute
        contribution = workload.execute(task, arm, k)          # may be computed later, in one batch
    ...                                                        # downloads, training, uploads: time
    outcome = workload.merge(round, contributions)             # aggregation, distillation, losses
    workload.discard(contribution)                             # instead of merge: the upload was lost
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

__all__ = ["FORCED_ARM", "Contribution", "Evaluation", "Outcome", "Task", "Workload"]

FORCED_ARM = "top-k"
"""What everybody plays in the round after a rollback, whatever their policies may choose."""


@dataclass(frozen=True, slots=True)
class Task:
    """What one client is asked to do in one round."""

    round: int
    client: int
    prototype: str
    model: str
    """Registry name of the model: the device profile's key."""
    model_version: int
    """Number of accepted merges behind the weights the client receives."""
    batch_size: int
    """Samples per local step, as configured (a client may own fewer)."""
    local_steps: int
    """Local SGD steps; the device is charged `local_steps` × one step at `batch_size`."""
    parameters: int
    """d, the length of the flat gradient."""
    downlink_bytes: float
    """Dense weights, and buffers where they are charged; 0 where the downlink is free."""


@runtime_checkable
class Contribution(Protocol):
    """What one client sends back. Reading `uplink_bytes` may run pending learning work."""

    @property
    def task(self) -> Task: ...
    @property
    def arm(self) -> str: ...
    @property
    def k(self) -> int:
        """Entries kept: min(K, d)."""
        ...

    @property
    def uplink_bytes(self) -> float:
        """Payload on the wire, fractional under `ideal` accounting, buffers included."""
        ...


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One prototype on the test set."""

    accuracy: float
    loss: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a merge did to the models, in plain numbers."""

    round: int
    model_version: int
    """Accepted merges so far; unchanged by a round that was rolled back."""
    rolled_back: bool = False
    forced_arm: str | None = None
    """The arm everybody must play in the next round (after a rollback), else None."""
    kd_loss: Mapping[str, float] = field(default_factory=dict)
    """L_KD per prototype before its distillation step; empty where there is no distillation."""
    kd_loss_before: Mapping[str, float] = field(default_factory=dict)
    """L_KD per prototype of the last accepted round: what `kd_loss` is compared with."""
    local_loss: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Per client: f_n before and after, whose difference is the local gain; empty where no policy learns."""
    evaluation: Mapping[str, Evaluation] = field(default_factory=dict)
    """Per prototype, in evaluated rounds only."""


class Workload(Protocol):
    """What the clock needs to know of learning (or of its stand-in in a time-only run)."""

    def task(self, round: int, client: int) -> Task:
        """The work of `client` in `round`; cheap and without side effects."""
        ...

    def execute(self, task: Task, arm: str, k: int) -> Contribution:
        """Local gradient, residual, compression. Called once per started participation, at its
        start; implementations batch the work until a size or a merge needs it."""
        ...

    def merge(self, round: int, contributions: Sequence[Contribution]) -> Outcome:
        """Aggregate what arrived, in the order of client ids, whatever order it is given in."""
        ...

    def discard(self, contribution: Contribution) -> None:
        """The upload was lost: what it carried returns to the client's residual."""
        ...

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """All that a resumed run needs: (JSON-able facts, name → NumPy array)."""
        ...

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Inverse of `state`, on a freshly built workload of the same scenario."""
        ...

    def timings(self) -> Mapping[str, float]:
        """Host seconds by activity (gradients, compression, logits, …); for the manifest only."""
        ...

    def close(self) -> None:
        """End worker processes and free shared memory; safe to call twice."""
        ...
