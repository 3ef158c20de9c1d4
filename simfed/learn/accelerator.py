"""The kit on an accelerator: work is queued, and waited for as seldom as can be.

The numbers that units of work answer with stay on the device until all of a phase have been queued,
so the host never waits for a single client. Small models, whose kernels would take less time than
their launches, run for many clients of a prototype together: one pass over a further dimension
(`torch.func.vmap`). Deep models run one client after another, which fills the device; batch norm,
several local steps and models that draw random numbers do so too.

Results are those of the CPU up to float32 rounding. They may depend on which clients are computed
together, so on an accelerator equal bits need the same device and the same PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from simfed.ground.errors import InputError
from simfed.ground.method import LocalSteps, Values, Who
from simfed.learn.federation import Positions
from simfed.learn.kit import Changed, Kit, Model
from simfed.learn.models import plain

__all__ = ["AcceleratorKit", "device_of", "kit_on"]

_SMALL_FLOPS = 20e6
"""Forward FLOPs of a sample up to which clients are computed together (a LeNet-5 has 0.8e6)."""
_TOGETHER = 64
"""Clients in one pass: their activations are all there at once, and must stay below 2³¹ numbers."""


class AcceleratorKit(Kit):
    """A `Kit` whose operations on many clients are passes over a further dimension."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parts = 1
        self.small = {
            name
            for name, seat in self._seats.items()
            if self.flops[name] <= _SMALL_FLOPS
            and self._data.task == "classification"
            and not seat.flat.statistics.numel()
            and not seat.may_draw
            and all(p.requires_grad for p in seat.flat.module.parameters())
        }
        """Prototypes whose clients are computed in one pass."""
        self._plain: dict[str, nn.Module] = {}

    def logits_each(self, models: Sequence[Changed], round: int) -> list[Tensor]:
        alike: dict[str, list[int]] = {}
        for place, changed in enumerate(models):
            alike.setdefault(changed.prototype, []).append(place)
        passes: list[list[int]] = []
        for name, places in alike.items():
            most = _TOGETHER if name in self.small and not self._bf16 else 1
            passes += [places[first : first + most] for first in range(0, len(places), most)]
        calls = [([models[place] for place in some], round) for some in passes]
        costs = [sum(self._of_public(model.prototype) for model in some) for some, _ in calls]
        logits_at: dict[int, Tensor] = {}
        for some, logits in zip(passes, self.each("logits_of_some", calls, costs), strict=True):
            logits_at |= zip(some, logits, strict=True)
        return [logits_at[place] for place in range(len(models))]

    def logits_of_some(self, models: Sequence[Changed], round: int) -> list[Tensor]:
        """Public logits of so many models of `logits_each` as go through one pass."""
        if len(models) == 1:
            return [self.public_logits(models[0], round)]
        return self._logits_together(models, round)

    def own_losses(
        self, prototype: str, model: Values, participations: Sequence[tuple[int, int | str]]
    ) -> list[Tensor]:
        """Everybody's samples go through the model as one long batch."""
        if not participations:
            return []
        if self._data.task != "classification":
            return super().own_losses(prototype, model, participations)
        seat = self._seats[prototype]
        seat.load(model)
        samples = [self.own_samples(*participation) for participation in participations]
        positions = self._data.places(np.concatenate(samples))
        logits = seat.passes.logits(positions, self._data.samples)
        losses = F.cross_entropy(logits, self._data.labels[positions], reduction="none")
        return [each.mean() for each in losses.split([len(each) for each in samples])]

    def most_in_one_pass(self, prototype: str, samples: int) -> int:
        return _TOGETHER if prototype in self.small else 1

    def gradients_of_some(
        self,
        participations: Sequence[tuple[Who, int, LocalSteps]],
        batches: Sequence[Positions],
    ) -> list[tuple[Model, Tensor]]:
        if len(batches) == 1:
            return super().gradients_of_some(participations, batches)
        who, _, steps = participations[0]
        module = self._plain_module(who.prototype).train()
        positions = self._data.places(np.stack(batches))
        samples = self._data.samples(positions.flatten())
        samples = samples.view(*positions.shape, *samples.shape[1:])

        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(module, parameters, (x,)), y)

        parameters = self._named(who.prototype, steps.model["weights"])
        gradients, losses = vmap(grad_and_value(loss), in_dims=(None, 0, 0))(
            parameters, samples, self._data.labels[positions]
        )
        flat = torch.cat([gradients[name].flatten(1) for name in parameters], dim=1)
        return [
            ({**steps.model, "gradient": gradient}, loss)
            for gradient, loss in zip(flat.unbind(), losses.unbind(), strict=True)
        ]

    @torch.no_grad()
    def _logits_together(self, models: Sequence[Changed], round: int) -> list[Tensor]:
        prototype = models[0].prototype
        weights = torch.stack(
            [
                changed.model["weights"]
                if changed.change is None
                else self.add(changed.model["weights"], [(changed.change, changed.factor)])
                for changed in models
            ]
        )
        module = self._plain_module(prototype).eval()

        def logits(parameters: dict[str, Tensor], x: Tensor) -> Any:
            return functional_call(module, parameters, (x,))

        of_all, samples = vmap(logits, in_dims=(0, None)), self.public(round)
        parameters = self._named(prototype, weights)
        parts = [
            of_all(parameters, samples[part])
            for part in self._seats[prototype].passes.chunks(0, len(samples))
        ]
        return list(torch.cat(parts, dim=1).unbind())

    def _plain_module(self, prototype: str) -> nn.Module:
        """Ordinary layers in place of those made for a CPU, which know no further dimension."""
        if prototype not in self._plain:
            self._plain[prototype] = plain(self._seats[prototype].flat.module)
        return self._plain[prototype]

    def _named(self, prototype: str, flat: Tensor) -> dict[str, Tensor]:
        """Views of weights (…, d) by parameter name."""
        named, start = {}, 0
        for name, parameter in self._plain_module(prototype).named_parameters():
            size = parameter.numel()
            named[name] = flat[..., start : start + size].reshape(
                *flat.shape[:-1], *parameter.shape
            )
            start += size
        return named


def kit_on(device: torch.device) -> type[Kit]:
    """The kit for this device."""
    return Kit if device.type == "cpu" else AcceleratorKit


def device_of(name: str) -> torch.device:
    """Where to learn. Raises: `InputError` for what is not here."""
    if name == "cpu":
        return torch.device("cpu")
    if name != "cuda":
        raise InputError("a device: cpu or cuda", where="--device", got=name)
    if not torch.cuda.is_available():
        raise InputError("cpu, as PyTorch finds no CUDA device here", where="--device", got=name)
    return torch.device("cuda", torch.cuda.current_device())
