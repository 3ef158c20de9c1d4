"""FedMD (Li and Wang 2019): models of any kind learn from the mean answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from simfed.ground.method import Arrival, Losses, State, Who
from simfed.learn.methods.answering import Answering
from simfed.learn.methods.averaging import mean_losses

if TYPE_CHECKING:
    from torch import Tensor

    from simfed.learn.kit import Kit


@dataclass(frozen=True)
class FedMD(Answering):
    """Distillation from the consensus: the mean of the logits answered last.

    Up and down travel logits (samples of a round × classes); clients keep their models.
    The server's mean is plain, weighed by what a server mode makes of staleness; late
    answers are about the samples that they were asked for. Samples that nobody has
    answered have zeros, which say nothing.

    Left open there, or settled otherwise: the loss of the digest (here the divergence
    of softmaxes, since scores mean something only up to a shift), and the first
    training, for which the paper has a labelled public set: here the public set has no
    labels, and clients begin with their own data.

    The gain of a reward, where answers are compressed, is that of the disagreement
    (shared: per prototype the mean divergence from the consensus to its clients'
    answers) and of the cross-entropy of the client's own model on its own data (local).
    Source: D. Li and J. Wang, "FedMD: Heterogenous Federated Learning via Model
    Distillation", 2019.
    """

    shares_add_up = True
    losses = ("disagreement",)
    shared_loss = "disagreement"

    @override
    def first(self, kit: Kit) -> State:
        import torch

        size = kit.public_size, kit.setting.classes
        return {"consensus": torch.zeros(size, device=kit.device)}

    @override
    def given(self, server: State, who: Who) -> Tensor:
        consensus: Tensor = server["consensus"]
        return consensus

    @override
    def merge(
        self, kit: Kit, server: State, arrivals: Sequence[Arrival], round: int
    ) -> tuple[State, Losses]:
        import torch

        from simfed.learn.losses import kl_sum, soft_targets

        consensus = server["consensus"]
        total, weight = torch.zeros_like(consensus), torch.zeros_like(consensus[:, :1])
        for arrival, places, logits in self.answers(kit, arrivals, round):
            total[places] += arrival.weight * logits
            weight[places] += arrival.weight
        consensus = torch.where(weight > 0, total / weight.clamp(min=1e-30), consensus)
        apart = []
        for _, places, logits in self.answers(kit, arrivals, round):
            targets = soft_targets(consensus[places], self.temperature)
            apart.append(
                kl_sum(targets, logits, self.temperature)[0].item() / len(places)
            )
        losses = mean_losses("disagreement", arrivals, apart)
        return {**server, "consensus": consensus}, losses
