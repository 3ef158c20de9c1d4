"""Distillation over heterogeneous prototypes: the reference method (ASCEND)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from typing_extensions import override

from simfed.ground.method import (
    Arrival,
    LocalSteps,
    Losses,
    Setting,
    State,
    Values,
    Who,
    Work,
)
from simfed.learn.methods.averaging import (
    Averaging,
    list_logits_work,
    make_arrived_model,
    merge_models,
)

if TYPE_CHECKING:
    from simfed.learn.kit import Kit


@dataclass(frozen=True)
class FedKD(Averaging):
    """Gradients averaged per prototype, then distillation from the mean logits.

    Clients of a prototype send gradients.

    The server averages each prototype's models and distils all of them from the mean
    logits of the client models on its public set.

    The gain of a reward is that of the distillation loss on the public set (shared) and
    of the cross-entropy on the client's own data at the weights of its prototype
    (local). How distillation goes stands in the scenario's `distillation`. A client of
    several local steps, or of steps that are not plain, sends what they changed over
    the learning rate. Source: C. Liu et al., "Adaptive Heterogeneous Compression for
    Resource-Efficient Federated Knowledge Distillation".
    """

    shares_add_up = False
    needs_classes = True
    needs_public = True
    counts_steps = True
    shared_loss = "kd_loss"
    safeguarded = True
    moves_point = True
    weighs_samples = False

    def server_work(
        self, setting: Setting, arrived: Sequence[Who], round: int
    ) -> Sequence[Work]:
        """Return the logits of every client model (N passes), then the students' steps.

        A prototype's steps are charged whether or not one of its clients took part, as
        all of them are distilled.
        """
        steps = [
            Work(
                "distillation",
                size.model,
                setting.public,
                setting.distillation_steps,
                name=name,
            )
            for name, size in setting.prototypes.items()
        ]
        return [*list_logits_work(setting, arrived), *steps]

    @override
    def local_steps(
        self, kit: Kit, who: Who, round: int, down: Values, own: State
    ) -> LocalSteps:
        return LocalSteps(down, gradient=True)

    @override
    def trained(
        self, kit: Kit, who: Who, round: int, down: Values, own: State, after: Values
    ) -> tuple[Values, State]:
        return {"update": after["gradient"], "buffers": after["buffers"]}, own

    @override
    def update_scale(self, kit: Kit, round: int) -> float:
        return -float(kit.rate(round))

    def measure_first_losses(self, kit: Kit, server: State) -> Losses:
        """Return the losses of the first models, against which round 1 is judged.

        Logits of all clients are those of their prototypes, so the mean is weighted by
        how many have each.
        """
        import torch

        from simfed.learn.kit import Changed
        from simfed.learn.losses import DIVERGENCES, soft_targets

        options, counts = (
            kit.distillation,
            [one.clients for one in kit.setting.prototypes.values()],
        )
        logits = kit.logits_each(
            [Changed(name, server[name]) for name in kit.prototypes], 0
        )
        weighed = torch.stack([one * n for one, n in zip(logits, counts, strict=True)])
        targets = soft_targets(weighed.sum(0) / sum(counts), options.temperature)
        divergence = DIVERGENCES[options.divergence]
        losses = [
            divergence(targets, one, options.temperature)[0].item() for one in logits
        ]
        return {
            name: {"kd_loss": loss / len(targets)}
            for name, loss in zip(kit.prototypes, losses, strict=True)
        }

    @override
    def merge(
        self, kit: Kit, server: State, arrivals: Sequence[Arrival], round: int
    ) -> tuple[State, Losses]:
        from simfed.learn.losses import mean_logits, soft_targets

        factors = self._find_factors(kit, arrivals, round)
        clients = map(partial(make_arrived_model, server), arrivals, factors)
        options, logits = kit.distillation, kit.logits_each([*clients], round)
        after, _ = super().merge(kit, server, arrivals, round)
        after, losses = kit.distil_each(
            dict(after),
            round,
            soft_targets(mean_logits(logits), options.temperature),
            rate=kit.rate(round, options.learning_rate),
            steps=options.steps,
            temperature=options.temperature,
            divergence=options.divergence,
        )
        return after, {name: {"kd_loss": loss} for name, loss in losses.items()}

    @override
    def merged(
        self, kit: Kit, before: Values, arrivals: Sequence[Arrival], round: int
    ) -> Values:
        factors = self._find_factors(kit, arrivals, round)
        return merge_models(kit, before, arrivals, [1] * len(arrivals), factors)

    def _find_factors(
        self, kit: Kit, arrivals: Sequence[Arrival], round: int
    ) -> list[float]:
        """Return by how much each update changes a model."""
        return [
            self.update_scale(kit, round - a.staleness) * a.weight for a in arrivals
        ]
