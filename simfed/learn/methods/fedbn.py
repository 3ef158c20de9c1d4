"""FedBN (X. Li et al. 2021): batch norm stays with its client."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from simfed.ground.method import Size
from simfed.learn.methods.personal import PartlyPersonal


@dataclass(frozen=True)
class FedBN(PartlyPersonal):
    """Federated averaging of everything but batch norm.

    Each client keeps the weights of its batch norms and all running statistics, which
    begin as its prototype's first; neither travels. The server averages the rest,
    weighted by samples (the paper's clients own equally many). Evaluated, and measured
    for the local gain, is the server's rest with the client's own batch norm. Frozen
    batch norms are no client's own. Models without batch norm are refused.

    The gain of a reward is that of the cross-entropy on the client's own data (local)
    alone. Source: X. Li et al., "FedBN: Federated Learning on Non-IID Features via
    Local Batch Normalization", ICLR 2021.
    """

    keeps_buffers = True
    kept_word = "batch norm"

    @override
    def kept(self, size: Size) -> tuple[str, ...]:
        return size.norms
