"""FedDF (Lin et al. 2020): model fusion by distillation from client models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typing_extensions import override

from simfed.ground.method import Arrival, Losses, Setting, State, Who, Work
from simfed.ground.registry import Only
from simfed.learn.methods.averaging import (
    Averaging,
    by_prototype,
    list_logits_work,
    make_arrived_model,
    moved,
)
from simfed.learn.methods.options import ABOVE_ZERO, AT_LEAST_ONE, BELOW_ONE

if TYPE_CHECKING:
    from simfed.learn.kit import Kit


@dataclass(frozen=True)
class FedDF(Averaging):
    """Averaging per prototype, after which each mean is fitted to the ensemble.

    The ensemble is the softmax of the mean logits of all client models that arrived;
    the fit is on the server's public set, with Adam.

    A part of the round's public samples is held out; every `check_every` steps the
    distillation loss there is compared with the best so far, and after `patience`
    checks without a better one it ends. What is kept is the best of the models looked
    at, the mean itself among them. Every prototype is fitted, those without an arrival
    from where they stand. Clients send and keep what they do with fedprox; only what
    the server does differs.

    Left open there: what to hold out (the paper has labelled samples at the server;
    here the public set has no labels, and the criterion is the distillation loss),
    statistics of batch norm during distillation (the mean ones, unmoved). A client's
    model is today's weights minus its update; late ones count in the mean of weights
    and of logits by the server mode's weight. The paper's dropping of clients worse
    than chance needs labels and is left out. The server is charged for the logits of
    every arrival, and for all `steps` and checks: whether they end early is not known
    beforehand.

    The gain of a reward is that of the distillation loss before distillation, on the
    samples not held out (shared), and of the cross-entropy on the client's own data at
    the weights of its prototype (local). Source: T. Lin et al., "Ensemble Distillation
    for Robust Model Fusion in Federated Learning", 2020.
    """

    needs_classes = True
    needs_public = True
    losses = ("distillation_loss",)
    shared_loss = "distillation_loss"

    steps: Annotated[int, AT_LEAST_ONE, "distillation steps of a merge, at most"] = 200
    rate: Annotated[float, ABOVE_ZERO, "of Adam, on the server"] = 1e-3
    batch_size: Annotated[int, AT_LEAST_ONE, "public samples of a step"] = 64
    temperature: Annotated[float, ABOVE_ZERO, "T of the softened logits"] = 1.0
    held_out: Annotated[
        float,
        BELOW_ONE,
        "share of the public samples that says when to stop; 0: never",
    ] = 0.2
    check_every: Annotated[
        int,
        AT_LEAST_ONE,
        Only("held_out"),
        "steps between two looks at the held-out part",
    ] = 20
    patience: Annotated[
        int,
        AT_LEAST_ONE,
        Only("held_out"),
        "looks without a better loss after which it ends",
    ] = 3

    def _held(self, public: int) -> int:
        """Return how many of the public samples are held out.

        One is left to be fitted at least.
        """
        return min(math.ceil(self.held_out * public), public - 1)

    @override
    def server_work(
        self, setting: Setting, arrived: Sequence[Who], round: int
    ) -> Sequence[Work]:
        work = list_logits_work(setting, arrived)
        held = self._held(setting.public)
        size = min(self.batch_size, setting.public - held)
        for name, size_of in setting.prototypes.items():
            work.append(
                Work("distillation", size_of.model, size, self.steps, name=name)
            )
            if held:
                looks = 1 + math.ceil(self.steps / self.check_every)
                work.append(
                    Work("inference", size_of.model, held, looks, "held-out", name)
                )
        return work

    @override
    def merge(
        self, kit: Kit, server: State, arrivals: Sequence[Arrival], round: int
    ) -> tuple[State, Losses]:
        import torch

        from simfed.learn.losses import soft_targets

        public = kit.public(round)
        total = sum(arrival.weight for arrival in arrivals)
        clients = [make_arrived_model(server, arrival, -1.0) for arrival in arrivals]
        logits = kit.logits_each(clients, round)
        mean = torch.zeros_like(logits[0])
        for arrival, its_logits in zip(arrivals, logits, strict=True):
            mean += (arrival.weight / total) * its_logits
        targets = soft_targets(mean, self.temperature)
        order = kit.rng("feddf split", round).permutation(len(public))
        split = torch.from_numpy(order).to(public.device)
        held = self._held(len(public))
        judged, fitted = split[:held], split[held:]
        after, losses, arrived = dict(server), {}, by_prototype(arrivals)
        for name in kit.prototypes:
            model = (
                moved(server[name], arrived[name]) if name in arrived else server[name]
            )
            best = _Best(kit, name, public[judged], targets[judged], self)
            if held:
                best(0, model)
            last, loss = kit.distil(
                name,
                model,
                public[fitted],
                targets[fitted],
                rate=self.rate,
                steps=self.steps,
                batch_size=self.batch_size,
                temperature=self.temperature,
                optimizer="adam",
                order=kit.rng("feddf order", name, round),
                watch=best if held else None,
                watch_every=self.check_every,
            )
            if held and self.steps % self.check_every:
                best(self.steps, last)
            after[name] = best.model if held else last
            losses[name] = {"distillation_loss": loss}
        return after, losses


class _Best:
    """The best model so far, judged by its distillation loss on held-out samples.

    `Kit.distil` shows it models as it goes. Early stopping is here: it says True after
    `patience` looks in a row without a better one.
    """

    def __init__(
        self, kit: Kit, prototype: str, samples: Any, targets: Any, options: FedDF
    ):
        """Begin without a model.

        Args:
            kit: passes samples.
            prototype: of the models.
            samples: held out.
            targets: what the ensemble says of them, (n, classes).
            options: temperature and patience.
        """
        self._kit = kit
        self._prototype = prototype
        self._samples = samples
        self._targets = targets
        self._options = options
        self._loss = float("inf")
        self._worse = 0
        self.model: Any = None

    def __call__(self, step: int, model: Any) -> bool:
        """Look at a model, and return whether it is time to end."""
        from simfed.learn.losses import kl_sum

        logits = self._kit.logits(self._prototype, model, self._samples)
        loss = kl_sum(self._targets, logits, self._options.temperature)[0].item()
        if loss < self._loss or self.model is None:
            self._loss, self._worse, self.model = loss, 0, model
            return False
        self._worse += 1
        return self._worse >= self._options.patience
