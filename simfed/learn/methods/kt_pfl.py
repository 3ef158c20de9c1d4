"""KT-pFL (Zhang et al. 2021): whom each client learns from is learned at the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typing_extensions import override

from simfed.ground.method import Arrival, Losses, Setting, State, Who, Work
from simfed.learn.methods.answering import Answering
from simfed.learn.methods.averaging import mean_losses
from simfed.learn.methods.options import ABOVE_ZERO, AT_LEAST_ONE, NOT_NEGATIVE

if TYPE_CHECKING:
    from torch import Tensor

    from simfed.learn.kit import Kit


@dataclass(frozen=True)
class KtPfl(Answering):
    """Distillation from a target of each client's own, Σ_m c_nm·z_m.

    z_m are the logits that each client answered last. At a merge the rows c_n of those
    who arrived descend, `coefficient_steps` times,

        Σ_n (samples of n / samples of all who arrived)
            ·KL(softmax(Σ_m c_nm·z_m/T) ‖ softmax(z_n/T))
        + ρ·‖c − 1/N‖²

    with the mean over public samples of the divergence, summed over classes. c begins
    as 1/N, and ρ keeps it there; with ρ large this is fedmd. Up and down travel logits;
    clients keep their models, the server c (N × N) and everybody's last logits (N ×
    public set × classes).

    Left open there, or settled otherwise: what is combined (logits, so that a target is
    a distribution whatever c is); who has not answered yet (the mean of those who have
    stands in for it, so that targets are not flattened); rows of clients that did not
    arrive (they stay). Targets are made with the coefficients after the merge, for the
    samples of the next round. Late answers take the place of the client's older ones;
    the server mode's weight scales the client's term. The server is charged for the
    coefficients (`auxiliary` work `kt-pfl/coefficients-…`, of as many samples as the
    table of everybody's answers has rows).

    The gain of a reward, where answers are compressed, is that of the transfer loss
    (shared: per prototype the mean of its arrivals' divergences above before the steps)
    and of the cross-entropy of the client's own model on its own data (local). Source:
    J. Zhang et al., "Parameterized Knowledge Transfer for Personalized Federated
    Learning", 2021.
    """

    losses = ("transfer_loss",)
    shared_loss = "transfer_loss"

    coefficient_rate: Annotated[
        float, ABOVE_ZERO, "of the steps on the coefficients"
    ] = 0.01
    coefficient_steps: Annotated[
        int, AT_LEAST_ONE, "steps on the coefficients at a merge"
    ] = 1
    rho: Annotated[
        float, NOT_NEGATIVE, "ρ: how strongly the coefficients are held at 1/N"
    ] = 0.7

    @override
    def server_work(
        self, setting: Setting, arrived: Sequence[Who], round: int
    ) -> Sequence[Work]:
        rows, steps = (
            setting.public * setting.clients,
            self.coefficient_steps * len(arrived),
        )
        return [Work("auxiliary", self._name_coefficients_work(setting), rows, steps)]

    def _name_coefficients_work(self, setting: Setting) -> str:
        """Return the name of the work on coefficients in profiles of devices."""
        return f"kt-pfl/coefficients-{setting.classes}"

    def auxiliary(self, setting: Setting) -> Mapping[str, float]:
        """Return a client's target and slope: two products with everybody's logits."""
        return {self._name_coefficients_work(setting): 4.0 * setting.classes}

    @override
    def first(self, kit: Kit) -> State:
        import torch

        clients, device = kit.setting.clients, kit.device
        table = clients, kit.public_size, kit.setting.classes
        return {
            "coefficients": torch.full(
                (clients, clients), 1 / clients, dtype=torch.float64, device=device
            ),
            "answers": torch.zeros(table, device=device),
            "answered": torch.zeros(table[:2], dtype=torch.bool, device=device),
        }

    @override
    def given(self, server: State, who: Who) -> Tensor:
        import torch

        answers = _fill_missing(server["answers"], server["answered"])
        target: Tensor = torch.tensordot(server["coefficients"][who.client], answers, 1)
        return target.float()

    @override
    def merge(
        self, kit: Kit, server: State, arrivals: Sequence[Arrival], round: int
    ) -> tuple[State, Losses]:

        answers, answered = server["answers"].clone(), server["answered"].clone()
        for arrival, places, logits in self.answers(kit, arrivals, round):
            answers[arrival.who.client, places] = logits
            answered[arrival.who.client, places] = True
        filled = _fill_missing(answers, answered)
        coefficients = server["coefficients"].clone()
        samples = sum(arrival.who.samples for arrival in arrivals)
        apart = []
        for arrival, places, _ in self.answers(kit, arrivals, round):
            client = arrival.who.client
            share = arrival.weight * arrival.who.samples / samples
            row, loss = self._learn_coefficients(
                coefficients[client], filled[:, places], client, share
            )
            coefficients[client] = row
            apart.append(loss)
        losses = mean_losses("transfer_loss", arrivals, apart)
        state = {"coefficients": coefficients, "answers": answers, "answered": answered}
        return {**server, **state}, losses

    def _learn_coefficients(
        self, row: Tensor, answers: Tensor, client: int, share: float
    ) -> tuple[Tensor, float]:
        """Return a client's new coefficients, and its divergence before the steps.

        Args:
            row: (N,) its coefficients, float64.
            answers: (N, samples, classes) of everybody, on the samples that it was
                asked.
            client: its id, and so its place among the answers.
            share: the weight of its term.
        """
        import torch

        log_answers = torch.log_softmax(answers[client] / self.temperature, dim=1)
        first = 0.0
        for step in range(self.coefficient_steps):
            mixed = torch.tensordot(row, answers, 1) / self.temperature
            log_target = torch.log_softmax(mixed, dim=1)
            target, apart = log_target.exp(), log_target - log_answers
            each = (target * apart).sum(dim=1, keepdim=True)
            slope = target * (apart - each) / (self.temperature * len(each))
            gradient = share * torch.tensordot(answers, slope, 2)
            first = first if step else each.mean().clamp(min=0).item()
            row = row - self.coefficient_rate * (
                gradient + 2 * self.rho * (row - 1 / len(row))
            )
        return row, first


def _fill_missing(answers: Tensor, answered: Tensor) -> Tensor:
    """Return everybody's logits in float64.

    Where a client has not answered, the mean of those who have stands in.
    """
    weights = answered[:, :, None].double()
    mean = (answers * weights).sum(0) / weights.sum(0).clamp(min=1)
    return answers * weights + mean * (1 - weights)
