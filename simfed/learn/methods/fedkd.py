"""Federated distillation over heterogeneous prototypes: the reference method (ASCEND)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from simfed.learn.methods.batched import Batched
from simfed.method import Setting, Who, Work

__all__ = ["FedKD"]


@dataclass(frozen=True)
class FedKD(Batched):
    """Clients of a prototype send gradients; the server averages each prototype's models and
    distils all of them from the mean logits of the client models on its public set.

    The gain of a reward is that of the distillation loss on the public set (shared) and of the
    cross-entropy on the client's own data at the weights of its prototype (local). How distillation
    goes stands in the scenario's `distillation`. Its learning is the batched engine,
    `simfed.learn.workload`. Source: C. Liu et al., "Adaptive Heterogeneous Compression for
    Resource-Efficient Federated Knowledge Distillation".
    """

    needs_public: ClassVar[bool] = True
    counts_steps: ClassVar[bool] = True
    shared_loss: ClassVar[str | None] = "kd_loss"
    safeguarded: ClassVar[bool] = True
    sends_gradients: ClassVar[bool] = True

    def server_work(self, setting: Setting, arrived: Sequence[Who], round: int) -> Sequence[Work]:
        """The logits of every client model (N passes, not P), then the students' steps, whether or
        not one of a prototype's clients took part."""
        logits = [
            Work("inference", who.model, setting.public, 1, "logits", who.prototype, who.client)
            for who in arrived
        ]
        steps = [
            Work("distillation", size.model, setting.public, setting.distillation_steps, name=name)
            for name, size in setting.prototypes.items()
        ]
        return [*logits, *steps]
