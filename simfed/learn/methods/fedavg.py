"""Federated averaging of one model (McMahan et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from simfed.learn.methods.batched import Batched

__all__ = ["FedAvg"]


@dataclass(frozen=True)
class FedAvg(Batched):
    """Clients train the server's model on their own data and send what that changed; the server
    averages over the participants, weighted by how many samples they own.

    The gain of a reward is that of the cross-entropy on the client's own data (local) alone. Its
    learning is the batched engine, `simfed.learn.workload`. Source: McMahan et al.,
    "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017.
    """

    mixes_prototypes: ClassVar[bool] = False
    weighs_by_samples: ClassVar[bool] = True
