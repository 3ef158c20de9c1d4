"""Units of learning work on the CPU, which any process may run.

Everything that outlives a unit lies in arrays that the processes share. A unit's result depends
neither on the number of processes nor on when and beside what it runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from simfed.compress import ErrorFeedback, Payload, codec_from_spec, feedback_for
from simfed.compress.codec import Chain, Codec
from simfed.compress.feedback import WithoutFeedback
from simfed.compress.selection import beside, entries_for
from simfed.errors import InputError, RunFailed
from simfed.learn.federation import (
    Federation,
    Positions,
    draw_local,
    draw_own,
    draw_public,
)
from simfed.learn.losses import DIVERGENCES, cross_entropy
from simfed.learn.memory import Arena
from simfed.learn.methods.batched import Batched
from simfed.learn.mixes import by_class
from simfed.learn.noise import keyed_noise
from simfed.learn.passes import Loss
from simfed.learn.prototype import Prototype
from simfed.learn.timing import Stopwatch
from simfed.learn.training import Course, Trainer
from simfed.learn.units import (
    Distil,
    Evaluate,
    Infer,
    MeasureLoss,
    Result,
    Send,
    Sent,
    Train,
    Unit,
)
from simfed.levels import Level
from simfed.scenario import Scenario
from simfed.seeding import Streams

__all__ = ["Answer", "Worker", "stretch"]

Answer = tuple[list[Tensor], Sent | None]
"""A unit's numbers before anybody has waited for them."""


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
        self.stopwatch = Stopwatch(arena, processes, cuda=data.device.type == "cuda")
        self._bf16 = scenario.precision.public == "bf16"
        self._method = cast(Batched, scenario.method.made)
        training = scenario.training
        self._one_step = (
            self._method.sends_gradients and training.local_steps == 1 and training.plain_sgd
        )
        self._trainers = {
            name: Trainer(of.scratch, of.client_passes, data, training)
            for name, of in prototypes.items()
        }
        self._index_code = scenario.compression.index_code
        self._players: dict[str, ErrorFeedback | WithoutFeedback] = {}
        self._sized: dict[tuple[str, Level, str], bool] = {}
        self._probes: dict[int, Positions] = {}
        groups = [scenario.policy_of_group(group).reward.local_loss for group in scenario.clients]
        self._local_losses = [groups[group] for group in scenario.group_of_client()]

    def begin_process(self, number: int) -> None:
        """Called in each worker process at its start."""
        self.stopwatch.process = number

    def public_samples(self, round: int) -> Tensor:
        """This round's public samples."""
        chosen = draw_public(self.streams, round, len(self.data.public), self.public)
        return self.data.public if chosen is None else self.data.public[self.data.places(chosen)]

    def own_count(self, client: int) -> int:
        """Samples behind f_n of this client."""
        local, owned = self._local_losses[client], len(self.data.owned[client])
        if local.data == "batch":
            return min(owned, self.training_count(client))
        return min(owned, local.samples) if local.data == "probe" else owned

    def together(self, prototype: Prototype, samples: int) -> int:
        """Clients with so many samples each whose training is one unit, at most.

        What comes of it does not depend on who is in the unit: in one step, a share of 16, 32, …
        samples lies in memory as it would alone.
        """
        if not self._one_step:
            return self._trainers[prototype.name].together
        if samples % 16:
            return 1
        return max(1, prototype.client_passes.samples_together // samples)

    def training_count(self, client: int) -> int:
        """Samples that pass through one round of local training."""
        training, owned = self.scenario.training, len(self.data.owned[client])
        if training.local_epochs is not None:
            return owned * training.local_epochs
        assert training.local_steps is not None
        return min(owned, training.batch_size) * training.local_steps

    def alike(self, client: int) -> int:
        """What clients of one prototype must have in common to be trained in one unit: the samples
        of their one batch, or nothing."""
        return self.training_count(client) if self._one_step else 0

    def prototype_for(self, unit: Unit) -> Prototype:
        """The prototype that a unit is about."""
        if isinstance(unit, (Distil, Evaluate)):
            return self.prototypes[unit.prototype]
        client = unit.clients[0] if isinstance(unit, Train) else unit.client
        return self.prototype_of[client]

    def run(self, unit: Unit) -> Result:
        """The result of a unit of any kind."""
        numbers, sent = self.answer(unit)
        return Result([number.item() for number in numbers], sent)

    def answer(self, unit: Unit) -> Answer:
        """The same, without waiting for the numbers."""
        match unit:
            case Train():
                return self.train(unit)
            case Send():
                return self.send(unit)
            case Infer():
                return self.infer(unit)
            case Distil():
                return self.distil(unit)
            case MeasureLoss():
                return self.measure_loss(unit)
            case Evaluate():
                return self.evaluate(unit)

    # ---- units -----------------------------------------------------------------------------------

    def train(self, unit: Train) -> Answer:
        """Updates to the clients' residuals, new running statistics to their rows."""
        prototype = self.prototype_of[unit.clients[0]]
        with self.stopwatch.spending("gradients"):
            if not self._one_step:
                return self._descend(prototype, unit), None
            rows = [prototype.row[client] for client in unit.clients]
            client, key = unit.clients[0], unit.keys[0]
            scratch = prototype.fresh_scratch(prototype.held)
            scratch.reset_counters()
            if unit.shift is not None:
                scratch.weights.add_(beside(unit.shift, self.data.device))
                prototype.scratch_epoch = -1
            # into the residuals that are there: residual + gradient without a pass of its own
            batches = [
                self.batches(client, key)[0]
                for client, key in zip(unit.clients, unit.keys, strict=True)
            ]
            residuals = [prototype.residuals[row] for row in rows]
            with keyed_noise(self.streams, self.data.device, prototype.may_draw, client, key):
                losses = self._gradients(prototype, batches, residuals)
            for row in rows:
                prototype.statistics[row].copy_(scratch.statistics)
        return losses, None

    def send(self, unit: Send) -> Answer:
        """Compression, and public logits where it is asked for."""
        sent = self.compress(unit)
        if unit.with_logits:
            row = self.prototype_of[unit.client].row[unit.client]
            self.infer(Infer(unit.client, row, unit.round, sent.entries, unit.scale))
        return [], sent

    def infer(self, unit: Infer) -> Answer:
        """Logits of the client's model, in evaluation mode with its own new statistics."""
        prototype, row = self.prototype_of[unit.client], unit.row
        with self.stopwatch.spending("logits"):
            client = prototype.fresh_scratch(prototype.server)
            client.statistics.copy_(prototype.statistics[row])
            indices, values = prototype.sent(row, unit.entries)
            origin = client.weights.index_select(0, indices)
            client.weights.index_copy_(0, indices, origin + unit.scale * values)
            prototype.logits[row] = prototype.client_passes.logits(
                self.public_samples(unit.round), bf16=self._bf16
            )
            client.weights.index_copy_(0, indices, origin)
        return [], None

    def distil(self, unit: Distil) -> Answer:
        """Sum of KL over the part; its gradient for the mean over the whole public set."""
        prototype = self.prototypes[unit.prototype]
        gradient = prototype.gradients[unit.part]
        total = torch.zeros((), dtype=torch.float64, device=self.data.device)
        with self.stopwatch.spending("distillation"):
            gradient.zero_()
            samples = self.public_samples(unit.round)
            for part in prototype.passes.chunks(*stretch(self.public, prototype.parts, unit.part)):
                loss = self._distillation_loss(part)
                total += prototype.passes.gradient(
                    samples[part], loss, gradient, training=False, bf16=self._bf16
                )
        return [total], None

    def measure_loss(self, unit: MeasureLoss) -> Answer:
        """f_n: mean cross-entropy over the client's probe, all its samples, or its batch."""
        with self.stopwatch.spending("local_losses"):
            positions = self.data.places(self.own_samples(unit.client, unit.key))
            passes = self.prototype_of[unit.client].held_passes
            logits = passes.logits(positions, self.data.samples)
            return [F.cross_entropy(logits, self.data.labels.index_select(0, positions))], None

    def evaluate(self, unit: Evaluate) -> Answer:
        """Right answers and the sum of cross-entropies over a part of the test set; with
        `evaluation.clients`, then `by_class` of it."""
        with self.stopwatch.spending("evaluation"):
            part = slice(*stretch(len(self.data.test_labels), self.parts, unit.part))
            logits = self.prototypes[unit.prototype].passes.logits(self.data.test_samples[part])
            labels = self.data.test_labels[part]
            total = F.cross_entropy(logits, labels, reduction="sum")
            answers = [(logits.argmax(1) == labels).sum(), total]
            if self.scenario.evaluation.clients:
                answers += by_class(logits, labels, self.data.classes).flatten().unbind()
            return answers, None

    # ---- parts of units --------------------------------------------------------------------------

    def _descend(self, prototype: Prototype, unit: Train) -> list[Tensor]:
        """Local steps of every client; their sum goes to its residual. The mean losses."""
        begun, server = prototype.held.weights, prototype.server
        if unit.shift is not None:
            begun = begun + beside(unit.shift, self.data.device)
        courses = [
            Course(
                begun,
                server.statistics,
                self.batches(client, key),
                noise=partial(
                    keyed_noise, self.streams, self.data.device, prototype.may_draw, client, key
                ),
            )
            for client, key in zip(unit.clients, unit.keys, strict=True)
        ]
        prototype.scratch_epoch = -1
        losses = []
        trained = self._trainers[prototype.name].train(courses, unit.rate)
        for client, after in zip(unit.clients, trained, strict=True):
            row = prototype.row[client]
            change = begun - after.weights
            residual = prototype.residuals[row]
            residual += change / unit.rate if self._method.sends_gradients else change
            if prototype.buffers:
                prototype.statistics[row].copy_(after.statistics)
            losses.append(after.loss)
        return losses

    def player(self, arm: str) -> ErrorFeedback | WithoutFeedback:
        """What plays the codec of an arm on a client's residual."""
        if arm not in self._players:
            self._players[arm] = feedback_for(codec_from_spec(arm))
        return self._players[arm]

    def compress(self, unit: Send) -> Sent:
        """What the server gets of residual + update, to the client's row."""
        prototype, row = (
            self.prototype_of[unit.client],
            self.prototype_of[unit.client].row[unit.client],
        )
        codec = self.player(unit.arm).codec
        with self.stopwatch.spending("compression"):
            residual = prototype.residuals[row]
            if codec.sends_all:
                self._require_finite(residual, unit)
                prototype.values[row].copy_(residual)
                residual.zero_()
                return Sent(prototype.parameters, unit.memory, None, unit.memory)
            payload = self._played(unit, residual, prototype)
            indices, values = prototype.sent(row, payload.k)
            if payload.k < prototype.parameters:
                indices.copy_(payload.indices)
                values.copy_(payload.values)
            else:
                values.copy_(codec.decode(payload))
            size = None if self._is_sized(unit, prototype) else payload.wire_bytes(self._index_code)
        return Sent(payload.k, payload.state, payload.seed, codec.undo(payload), size)

    def _played(self, unit: Send, residual: Tensor, prototype: Prototype) -> Payload:
        """The payload; what it leaves out is in the residual, or in the codec's own memory."""
        player = self.player(unit.arm)
        draws = self.streams(unit.arm, unit.client, unit.key) if player.codec.draws else None
        state, layout = unit.memory, prototype.shapes
        if not _looks(player.codec):
            self._require_finite(residual, unit)
        try:
            k = entries_for(residual, unit.k)
            if isinstance(player, ErrorFeedback):
                return player.encode_in_place(None, residual, k, draws, state=state, layout=layout)
            # what arms with feedback left behind goes with the update
            payload, _ = player.codec.encode(residual, state, draws, k, layout=layout)
        except InputError:
            if bool(torch.isfinite(residual).all()):
                raise
            raise _diverged(unit) from None
        residual.zero_()
        return payload

    def _require_finite(self, residual: Tensor, unit: Send) -> None:
        """On a processor; an accelerator would have to be waited for."""
        if residual.device.type != "cpu" or math.isfinite(residual.sum()):
            return
        if not torch.isfinite(residual).all():  # the sum may overflow where every value is finite
            raise _diverged(unit)

    def _is_sized(self, unit: Send, prototype: Prototype) -> bool:
        """Whether the size on the wire is known without the data."""
        key = unit.arm, unit.k, prototype.name
        if key not in self._sized:
            codec, d = self.player(unit.arm).codec, prototype.parameters
            k = min(unit.k, d) if isinstance(unit.k, int) else 1
            known = codec.size_bytes(d, k, self._index_code, prototype.shapes)
            self._sized[key] = known is not None
        return self._sized[key]

    def _gradients(
        self, prototype: Prototype, batches: Sequence[Positions], into: Sequence[Tensor]
    ) -> list[Tensor]:
        """The loss of each batch, all of one size, at the scratch model; its gradient is added
        to its vector."""
        positions = self.data.places(np.concatenate(batches))
        labels = self.data.labels.index_select(0, positions).split(len(batches[0]))
        shares = [
            (partial(cross_entropy, labels=own), vector)
            for own, vector in zip(labels, into, strict=True)
        ]
        samples = self.data.samples(positions)
        return prototype.client_passes.gradients(samples, shares, training=True)

    def _distillation_loss(self, part: slice) -> Loss:
        distillation = self.scenario.distillation
        divergence = DIVERGENCES[distillation.divergence]

        def loss(logits: Tensor) -> tuple[Tensor, Tensor]:
            value, gradient = divergence(self.targets[part], logits, distillation.temperature)
            return value, gradient.div_(self.public)

        return loss

    def batches(self, client: int, key: int | str) -> list[Positions]:
        rng = self.streams("batch", client, key)
        return draw_local(rng, self.data.owned[client], self.scenario.training)

    def own_samples(self, client: int, key: int | str) -> Positions:
        """Where f_n of a client is computed in a participation."""
        if client not in self._probes or self._local_losses[client].data == "batch":
            self._probes[client] = draw_own(
                self.streams, self._local_losses[client], client, key, self.data.owned[client],
                self.scenario.training,
            )  # fmt: skip
        return self._probes[client]


def _looks(codec: Codec) -> bool:
    """Whether a codec refuses what is not a finite number."""
    return not isinstance(codec, Chain) or codec.values is not None or codec.takes_largest


def _diverged(unit: Send) -> RunFailed:
    return RunFailed(
        f"client {unit.client}, round {unit.round}: the update has values that are not finite "
        "numbers: the learning has diverged; a smaller training.learning_rate may help"
    )


def stretch(total: int, parts: int, part: int) -> tuple[int, int]:
    """The bounds of `part` of `total` things in `parts` nearly equal stretches.

    >>> [stretch(10, 4, part) for part in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return total * part // parts, total * (part + 1) // parts
