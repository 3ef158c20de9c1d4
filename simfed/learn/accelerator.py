"""Units of learning work on an accelerator: queued all at once, waited for once.

The numbers that units answer with stay on the device until a whole batch of units has been queued;
so the host waits once per phase of a round and never for a single client. Small models, whose
kernels would take less time than their launches, run for all clients of a prototype together: one
pass over a further dimension (`torch.func.vmap`). Deep models run one client after another, which
fills the device; batch norm, several local steps and models that draw random numbers do so too.

Results are those of the CPU up to float32 rounding. They may depend on which clients are computed
together, so on an accelerator equal bits need the same device and the same PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from simfed.errors import InputError
from simfed.learn.engine import Engine
from simfed.learn.models import plain
from simfed.learn.precision import exact_float32, same_algorithms
from simfed.learn.prototype import Prototype
from simfed.learn.units import Infer, MeasureLoss, Result, Send, Train, Unit
from simfed.learn.worker import Answer, Worker

__all__ = ["AcceleratorEngine", "AcceleratorWorker"]

_SMALL_FLOPS = 20e6
"""Forward FLOPs of a sample up to which clients are computed together (a LeNet-5 has 0.8e6)."""
_TOGETHER = 64
"""Clients in one pass: their activations are all there at once, and must stay below 2³¹ numbers."""


class AcceleratorWorker(Worker):
    """Answers many units at once."""

    small: set[str]
    """Prototypes whose clients are computed in one pass."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.small = set()
        self._plain: dict[str, nn.Module] = {}

    def together(self, prototype: Prototype, samples: int) -> int:
        if not self._one_step:
            return super().together(prototype, samples)
        return _TOGETHER if prototype.name in self.small else 1

    def train(self, unit: Train) -> Answer:
        if len(unit.clients) == 1 or not self._one_step:
            return super().train(unit)
        prototype = self.prototype_of[unit.clients[0]]
        with self.stopwatch.spending("gradients"):
            batches = [
                self.batches(client, key)[0]
                for client, key in zip(unit.clients, unit.keys, strict=True)
            ]
            rows = np.array([prototype.row[client] for client in unit.clients])
            losses = self._trained(
                prototype, self.data.places(np.stack(batches)), self.data.places(rows)
            )
        return list(losses), None

    def answers(self, units: Sequence[Unit]) -> list[Answer]:
        """What each unit answers, in order, before anybody has waited."""
        found: dict[int, Answer] = {}
        for prototype, kind, places in self._groups(units):
            mine: list[Any] = [units[i] for i in places]
            if kind is Send:
                answers = self._send_all(prototype, mine)
            elif kind is MeasureLoss:
                answers = [([loss], None) for loss in self._measure_losses(prototype, mine)]
            elif kind is Infer:
                self._infer_all(prototype, mine)
                answers = [([], None)] * len(mine)
            else:
                answers = [self.answer(unit) for unit in mine]
            found.update(zip(places, answers, strict=True))
        return [found[i] for i in range(len(units))]

    def _groups(self, units: Sequence[Unit]) -> Iterator[tuple[Prototype, type, list[int]]]:
        """Places of units of one kind and prototype, in order of their first."""
        groups: dict[tuple[str, type], list[int]] = {}
        for i, unit in enumerate(units):
            key = self.prototype_for(unit).name, type(unit)
            groups.setdefault(key, []).append(i)
        for (name, kind), places in groups.items():
            yield self.prototypes[name], kind, places

    def _send_all(self, prototype: Prototype, units: list[Send]) -> list[Answer]:
        sent = [self.compress(unit) for unit in units]
        self._infer_all(
            prototype,
            [
                Infer(unit.client, prototype.row[unit.client], unit.round, of.entries, unit.scale)
                for unit, of in zip(units, sent, strict=True)
                if unit.with_logits
            ],
        )
        return [([], of) for of in sent]

    def _trained(self, prototype: Prototype, positions: Tensor, rows: Tensor) -> Tensor:
        """The gradient of each row of positions is added to its client's residual; the losses."""
        module = self._plain_module(prototype).train()
        clients, size = positions.shape
        samples = self.data.samples(positions.flatten())
        samples = samples.view(clients, size, *samples.shape[1:])

        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(module, parameters, (x,)), y)

        parameters = self._named(prototype, prototype.held.weights)
        gradients, losses = vmap(grad_and_value(loss), in_dims=(None, 0, 0))(
            parameters, samples, self.data.labels[positions]
        )
        flat = torch.cat([gradients[name].flatten(1) for name in parameters], dim=1)
        prototype.residuals.index_add_(0, rows, flat)
        return losses  # type: ignore[no-any-return]

    def _infer_all(self, prototype: Prototype, units: list[Infer]) -> None:
        if prototype.name not in self.small or self._bf16 or len(units) < 2:
            for unit in units:
                self.infer(unit)
            return
        for first in range(0, len(units), _TOGETHER):
            with self.stopwatch.spending("logits"), torch.no_grad():
                self._infer_together(prototype, units[first : first + _TOGETHER])

    def _infer_together(self, prototype: Prototype, units: list[Infer]) -> None:
        weights = prototype.server.weights.repeat(len(units), 1)
        for own, unit in zip(weights, units, strict=True):
            indices, values = prototype.sent(unit.row, unit.entries)
            own.index_add_(0, indices, unit.scale * values)
        module = self._plain_module(prototype).eval()

        def logits(parameters: dict[str, Tensor], x: Tensor) -> Any:
            return functional_call(module, parameters, (x,))

        of_all = vmap(logits, in_dims=(0, None))
        samples = self.public_samples(units[0].round)
        for part in prototype.passes.chunks(0, len(samples)):
            found = of_all(self._named(prototype, weights), samples[part])
            for unit, own in zip(units, found, strict=True):
                prototype.logits[unit.row, part] = own

    def _measure_losses(self, prototype: Prototype, units: list[MeasureLoss]) -> list[Tensor]:
        """Everybody's samples go through the prototype's weights as one long batch."""
        if not units:
            return []
        with self.stopwatch.spending("local_losses"):
            samples = [self.own_samples(unit.client, unit.key) for unit in units]
            sizes = [len(own) for own in samples]
            positions = self.data.places(np.concatenate(samples))
            logits = prototype.held_passes.logits(positions, self.data.samples)
            losses = F.cross_entropy(logits, self.data.labels[positions], reduction="none")
            return [own.mean() for own in losses.split(sizes)]

    def _plain_module(self, prototype: Prototype) -> nn.Module:
        """Ordinary layers in place of those made for a CPU, which know no further dimension."""
        if prototype.name not in self._plain:
            self._plain[prototype.name] = plain(prototype.server.module)
        return self._plain[prototype.name]

    def _named(self, prototype: Prototype, flat: Tensor) -> dict[str, Tensor]:
        """Views of weights (…, d) by parameter name."""
        named, start = {}, 0
        for name, parameter in self._plain_module(prototype).named_parameters():
            size = parameter.numel()
            named[name] = flat[..., start : start + size].reshape(
                *flat.shape[:-1], *parameter.shape
            )
            start += size
        return named


class AcceleratorEngine(Engine):
    """An `Engine` whose arrays lie on the device of the data; it forks nothing."""

    worker: AcceleratorWorker
    parts = 1
    worker_class = AcceleratorWorker

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, workers=1, **options)
        self.worker.small = {
            name
            for name, prototype in self.prototypes.items()
            if self.facts[name].forward_flops <= _SMALL_FLOPS
            and not prototype.buffers
            and not prototype.may_draw
            and all(p.requires_grad for p in prototype.server.module.parameters())
        }

    def _results(self, units: Sequence[Unit]) -> list[Result]:
        with exact_float32(), same_algorithms():
            answers = self.worker.answers(units)
            numbers = [number.double() for found, _ in answers for number in found]
            values = iter(torch.stack(numbers).tolist() if numbers else [])  # the one wait
        self.worker.stopwatch.settle()
        return [Result([next(values) for _ in found], sent) for found, sent in answers]

    def initial_distillation_loss(self) -> dict[str, float]:
        with exact_float32(), same_algorithms():
            return super().initial_distillation_loss()


def device_of(name: str) -> torch.device:
    """Where to learn. Raises: `InputError` for what is not here."""
    if name == "cpu":
        return torch.device("cpu")
    if name != "cuda":
        raise InputError("a device: cpu or cuda", where="--device", got=name)
    if not torch.cuda.is_available():
        raise InputError("cpu, as PyTorch finds no CUDA device here", where="--device", got=name)
    return torch.device("cuda", torch.cuda.current_device())
