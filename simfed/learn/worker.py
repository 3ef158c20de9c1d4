"""Units of learning work on the CPU, which any process may run.

Everything that outlives a unit lies in arrays that the processes share; a unit is a small record
that says what to do. Each has shapes of its own, whoever it is run beside, so its result depends
neither on the number of processes nor on when it runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from simfed.compress import with_error_feedback
from simfed.errors import RunFailed
from simfed.learn.federation import (
    Federation,
    Positions,
    draw_batches,
    draw_epoch,
    draw_probe,
    draw_public,
)
from simfed.learn.losses import cross_entropy, kl_sum
from simfed.learn.memory import Arena
from simfed.learn.prototype import Prototype
from simfed.registry import registry
from simfed.scenario import Scenario
from simfed.seeding import Streams

__all__ = ["ACTIVITIES", "Distil", "Evaluate", "Knowledge", "OwnLoss", "Send", "Sent", "Worker"]

ACTIVITIES = ("gradients", "compression", "logits", "distillation", "local_losses", "evaluation")

CHUNK = 128
"""Samples per forward pass in evaluation mode: more leave the cache, fewer waste calls."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Unit: the public logits of the model that `client`'s payload makes of the server's."""

    action: ClassVar[str] = "knowledge"

    client: int
    round: int
    entries: int
    scale: float
    """The payload is added to the server's weights times this: −η, or −1 for weight differences."""


@dataclass(frozen=True, slots=True)
class Send:
    """Unit: one client's round up to its payload."""

    action: ClassVar[str] = "send"

    client: int
    round: int
    arm: str
    k: int
    memory: Any
    """What the compressor remembers of this client."""
    rate: float
    """The learning rate of this round."""
    scale: float
    """As in `Knowledge`."""
    with_loss: bool
    """Also f_n at the weights the client starts from."""
    with_knowledge: bool
    """Also its model's public logits, when they are known to be needed."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Result of `Send`; indices, values, statistics and logits lie in the client's row."""

    entries: int
    memory: Any
    seed: int | None
    loss: float | None


@dataclass(frozen=True, slots=True)
class Distil:
    """Unit: part of the public set as seen by a student; its gradient goes to its row of `gradients`."""

    action: ClassVar[str] = "distil"

    prototype: str
    part: int
    round: int


@dataclass(frozen=True, slots=True)
class OwnLoss:
    """Unit: f_n of a client at the server's weights, on its samples of `round`."""

    action: ClassVar[str] = "own_loss"

    client: int
    round: int


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Unit: part of the test set at a prototype's weights → (right answers, sum of losses)."""

    action: ClassVar[str] = "evaluate"

    prototype: str
    part: int


class Worker:
    """All that a process needs to run units. Built before processes are forked."""

    def __init__(
        self,
        scenario: Scenario,
        streams: Streams,
        data: Federation,
        prototypes: dict[str, Prototype],
        arena: Arena,
        *,
        processes: int,
        parts: int,
    ) -> None:
        self.scenario = scenario
        self.streams = streams
        self.data = data
        self.prototypes = prototypes
        self.prototype_of = {
            int(client): prototype
            for prototype in prototypes.values()
            for client in prototype.clients
        }
        self.parts = parts
        self.public = len(data.public)
        if scenario.dataset.public_batch is not None:
            self.public = min(self.public, scenario.dataset.public_batch)
        self.targets = arena.zeros(self.public, data.classes, dtype=torch.float64)
        """What the students learn from in this round, written by the server."""
        self._spent = arena.zeros(processes, len(ACTIVITIES), dtype=torch.float64)
        self._process = 0
        self._compressors: dict[str, Any] = {}
        self._probes: dict[int, Positions] = {}
        groups = [scenario.policy_of_group(group).reward.local_loss for group in scenario.clients]
        self._local_losses = [groups[group] for group in scenario.group_of_client()]

    def begin_process(self, number: int) -> None:
        """Called in each worker process at its start."""
        self._process = number

    def spent(self) -> list[float]:
        """Host seconds per activity so far, over all processes."""
        return self._spent.sum(0).tolist()

    def public_chunks(
        self, round: int, start: int = 0, stop: int | None = None
    ) -> Iterator[Tensor]:
        """This round's public samples from `start` to `stop`, a chunk at a time."""
        chosen = draw_public(self.streams, round, len(self.data.public), self.public)
        for part in chunks(start, self.public if stop is None else stop):
            yield self.data.public[part if chosen is None else chosen[part]]

    def own_count(self, client: int) -> int:
        """Samples behind f_n of this client."""
        local, owned = self._local_losses[client], len(self.data.owned[client])
        if local.data == "batch":
            return min(owned, self.training_count(client))
        return min(owned, local.samples) if local.data == "probe" else owned

    def steps(self, client: int) -> int:
        """Local SGD steps of one round."""
        training, owned = self.scenario.training, len(self.data.owned[client])
        if self.scenario.method == "fedavg":
            return training.local_epochs * -(-owned // training.batch_size)
        return training.local_steps

    def training_count(self, client: int) -> int:
        """Samples that pass through one round of local training."""
        training, owned = self.scenario.training, len(self.data.owned[client])
        if self.scenario.method == "fedavg":
            return owned * training.local_epochs
        return min(owned, training.batch_size) * training.local_steps

    def run(self, unit: Any) -> Any:
        """The result of a unit of any kind."""
        return getattr(self, unit.action)(unit)

    # ---- units -----------------------------------------------------------------------------------

    def send(self, unit: Send) -> Sent:
        """Local training, residual, compression."""
        prototype = self.prototype_of[unit.client]
        row = prototype.row[unit.client]
        loss = self.own_loss(OwnLoss(unit.client, unit.round)) if unit.with_loss else None
        with self._spending("gradients"), self._keyed_noise(unit):
            self._train(unit, prototype, prototype.residuals[row])
        with self._spending("compression"):
            if unit.arm not in self._compressors:
                self._compressors[unit.arm] = with_error_feedback(
                    registry("compressor").get(unit.arm)()
                )
            payload = self._compressors[unit.arm].encode_in_place(
                None,
                prototype.residuals[row],
                unit.k,
                self.streams(unit.arm, unit.client, unit.round),
                state=unit.memory,
            )
            indices, values = prototype.sent(unit.client, payload.k)
            indices.copy_(payload.indices)
            values.copy_(payload.values)
        if unit.with_knowledge:
            self.knowledge(Knowledge(unit.client, unit.round, payload.k, unit.scale))
        return Sent(payload.k, payload.state, payload.seed, loss)

    def knowledge(self, unit: Knowledge) -> None:
        """Logits of the client's model, in evaluation mode with its own new statistics."""
        prototype = self.prototype_of[unit.client]
        row = prototype.row[unit.client]
        with self._spending("logits"):
            client = prototype.fresh_scratch()
            client.statistics.copy_(prototype.statistics[row])
            indices, values = prototype.sent(unit.client, unit.entries)
            origin = client.weights[indices]
            client.weights[indices] = origin + unit.scale * values
            parts = self.public_chunks(unit.round)
            prototype.logits[row] = torch.cat(list(prototype.client_passes.logits(parts)))
            client.weights[indices] = origin

    def distil(self, unit: Distil) -> float:
        """Sum of KL over the part; its gradient for the mean over the whole public set."""
        prototype = self.prototypes[unit.prototype]
        gradient = prototype.gradients[unit.part]
        start, stop = stretch(self.public, self.parts, unit.part)
        temperature, total = self.scenario.distillation.temperature, 0.0
        with self._spending("distillation"):
            gradient.zero_()
            for part in chunks(start, stop):
                (samples,) = self.public_chunks(unit.round, part.start, part.stop)

                def loss(
                    logits: Tensor, targets: Tensor = self.targets[part]
                ) -> tuple[Tensor, Tensor]:
                    value, gradient = kl_sum(targets, logits, temperature)
                    return value, gradient.div_(self.public)

                value = prototype.passes.gradient(samples, loss, gradient, training=False)
                total += value.item()
        return total

    def own_loss(self, unit: OwnLoss) -> float:
        """f_n: mean cross-entropy over the client's probe, all its samples, or its batch."""
        with self._spending("local_losses"):
            positions = self._own_samples(unit.client, unit.round)
            parts = [torch.from_numpy(positions[part]) for part in chunks(0, len(positions))]
            passes = self.prototype_of[unit.client].passes
            logits = torch.cat(list(passes.logits(map(self.data.samples, parts))))
            return F.cross_entropy(logits, self.data.labels[torch.cat(parts)]).item()

    def evaluate(self, unit: Evaluate) -> tuple[int, float]:
        """Right answers and the sum of cross-entropies over a stretch of the test set."""
        with self._spending("evaluation"):
            start, stop = stretch(len(self.data.test_labels), self.parts, unit.part)
            parts = [self.data.test_samples[part] for part in chunks(start, stop)]
            if not parts:
                return 0, 0.0
            logits = torch.cat(list(self.prototypes[unit.prototype].passes.logits(parts)))
            labels = self.data.test_labels[start:stop]
            total = F.cross_entropy(logits, labels, reduction="sum").item()
            return int((logits.argmax(1) == labels).sum()), total

    # ---- parts of units --------------------------------------------------------------------------

    def _train(self, unit: Send, prototype: Prototype, residual: Tensor) -> None:
        """residual += the client's update; its new running statistics go to its row."""
        client = prototype.fresh_scratch()
        client.reset_counters()
        batches = self._batches(unit.client, unit.round)
        if self.scenario.method == "fedkd" and len(batches) == 1:
            # added to the residual that is there: residual + gradient without a pass of its own
            self._gradient(unit, prototype, batches[0], residual)
        else:
            gradient = torch.zeros_like(client.weights)
            for batch in batches:
                gradient.zero_()
                self._gradient(unit, prototype, batch, gradient)
                client.weights.sub_(gradient, alpha=unit.rate)
            change = prototype.server.weights - client.weights
            residual += change / unit.rate if self.scenario.method == "fedkd" else change
            prototype.scratch_epoch = -1
        prototype.statistics[prototype.row[unit.client]].copy_(client.statistics)

    def _gradient(self, unit: Send, prototype: Prototype, batch: Positions, into: Tensor) -> None:
        positions = torch.from_numpy(batch)
        labels = self.data.labels[positions]
        loss = prototype.client_passes.gradient(
            self.data.samples(positions),
            lambda logits: cross_entropy(logits, labels),
            into,
            training=True,
        ).item()
        if not math.isfinite(loss):
            raise RunFailed(
                f"client {unit.client}'s training loss is {loss} in round {unit.round}: the "
                "learning has diverged; a smaller training.learning_rate may help"
            )

    def _batches(self, client: int, round: int) -> list[Positions]:
        training, owned = self.scenario.training, self.data.owned[client]
        rng = self.streams("batch", client, round)
        if self.scenario.method == "fedavg":
            return draw_epoch(rng, owned, training.batch_size, training.local_epochs)
        return draw_batches(rng, owned, training.batch_size, training.local_steps)

    def _own_samples(self, client: int, round: int) -> Positions:
        local, owned = self._local_losses[client], self.data.owned[client]
        if local.data == "batch":
            return np.concatenate(self._batches(client, round))
        if local.data == "full":
            return owned
        if client not in self._probes:
            self._probes[client] = draw_probe(self.streams("probe", client), owned, local.samples)
        return self._probes[client]

    @contextmanager
    def _keyed_noise(self, unit: Send) -> Iterator[None]:
        """Where a user's own model draws random numbers (dropout): PyTorch's generator, for this unit
        keyed by client and round, so that its draws do not hang on which process runs what."""
        if not self.prototype_of[unit.client].may_draw:
            yield
            return
        found = torch.get_rng_state()
        seed = self.streams.integer("noise", unit.client, unit.round)
        torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
        try:
            yield
        finally:
            torch.set_rng_state(found)

    @contextmanager
    def _spending(self, activity: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._spent[self._process, ACTIVITIES.index(activity)] += time.perf_counter() - begin


def chunks(start: int, stop: int) -> Iterator[slice]:
    """Slices of at most `CHUNK` from `start` to `stop`."""
    for first in range(start, stop, CHUNK):
        yield slice(first, min(first + CHUNK, stop))


def stretch(total: int, parts: int, part: int) -> tuple[int, int]:
    """The bounds of `part` of `total` things in `parts` nearly equal stretches.

    >>> [stretch(10, 4, part) for part in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return total * part // parts, total * (part + 1) // parts
