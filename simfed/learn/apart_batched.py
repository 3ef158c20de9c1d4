"""Both halves of the batched engine's learning (fedkd, fedavg); see `simfed.learn.apart`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simfed.compress import Payload
from simfed.contract import Contribution, Evaluation, Outcome, PersonalEvaluation, Task
from simfed.errors import InputError
from simfed.learn.apart import (
    Ask,
    Fate,
    Made,
    Mirrors,
    Tell,
    loss_of,
    most_bytes,
    nothing_made,
    plain_state,
    taken,
    tensor_of,
    wire_code,
)
from simfed.learn.apart_changes import ChangesHeld, ModelsDown
from simfed.learn.engine import Engine
from simfed.learn.parcel import Parcel, Part, pack, unpack
from simfed.learn.prototype import Prototype
from simfed.learn.units import MeasureLoss, Send, Sent
from simfed.learn.worker import Worker
from simfed.learn.workload import LearningWorkload, Upload
from simfed.levels import Level
from simfed.scenario import Scenario
from simfed.seeding import Streams

__all__ = ["BatchedClient", "BatchedServer"]

_STILL = ("buffers",)
"""What of a model changes with its weights alone."""
_NOBODY = -1
"""The row of an upload that is lost, while its client's row is another's."""


class BatchedServer(LearningWorkload):
    """The server's half: clients' residuals and data are elsewhere; its rows hold what arrived."""

    def __init__(
        self, scenario: Scenario, streams: Streams, *, ask: Ask, tell: Tell, device: str = "cpu"
    ) -> None:
        super().__init__(scenario, streams, device=device)
        self._ask, self._tell = ask, tell
        self._asking_s = 0.0
        self._mirrors = Mirrors(self.tasks.index_code)
        self._down: dict[str, dict[str, Tensor]] = {}
        """Label of a task under way → what its client is sent."""
        self._copies: dict[str, tuple[int, dict[str, Tensor]]] = {}
        self._models = ModelsDown({name: self._changes_of(name) for name in scenario.prototypes})

    def execute(self, task: Task, arm: str, k: Level) -> Upload:
        """Note the client's work, with the weights as they are now."""
        upload = super().execute(task, arm, k)
        prototype = self.engine.prototypes[task.prototype]
        epoch = int(prototype.epoch)
        if self._copies.get(prototype.name, (-1,))[0] != epoch:
            self._copies[prototype.name] = epoch, _model(prototype)
        self._down[task.label] = self._copies[prototype.name][1]
        return upload

    def outgoing(self, contribution: Contribution) -> Parcel:
        upload = self._own(contribution)
        task = upload.task
        facts: dict[str, Any] = {
            "label": task.label, "task": list(task.name), "arm": upload.arm, "k": upload.asked,
        }  # fmt: skip
        if task.client in self._losses:  # what it measured after the last merge
            facts["loss"] = list(self._losses[task.client])
        facts["down"], parts = self._models.of_task(task, self._down[task.label], _STILL)
        return pack(facts, parts)

    def most_bytes(self, contribution: Contribution) -> int:
        return most_bytes(self.scenario, contribution)

    def deliver(self, contribution: Contribution, parcel: Parcel) -> None:
        upload = self._own(contribution)
        task, prototype = upload.task, self.engine.prototypes[upload.task.prototype]
        facts, parts = unpack(parcel)
        d, part = prototype.parameters, taken(parts, "update")
        if facts.get("raw"):
            indices, values = None, tensor_of(part, "update")
        else:
            k = upload.asked if isinstance(upload.asked, int) else facts.get("k")
            if not isinstance(k, int) or not 0 < k <= d:
                raise InputError(f"1 to {d} entries", where="k", got=k)
            payload = self._mirrors.read(
                task.client, task.label, "update", upload.arm, part, d, k, prototype.shapes,
                facts.get("state"),
            )  # fmt: skip
            whole = payload.k == d
            indices = None if whole else tensor_of(np.asarray(payload.indices), "indices")
            values = torch.tensor(payload.dense() if whole else np.asarray(payload.values))
        entries = d if indices is None else len(indices)
        places, room = prototype.sent(upload.row, entries)
        if values.shape != room.shape or values.dtype != room.dtype:
            raise InputError(f"{len(room)} float32 values", where="update", got=list(values.shape))
        if indices is not None:
            places.copy_(indices)
        room.copy_(values)
        statistics = tensor_of(taken(parts, "buffers"), "buffers")
        if len(statistics) != prototype.buffers:
            raise InputError(f"{prototype.buffers} numbers", where="buffers", got=len(statistics))
        prototype.statistics[upload.row].copy_(statistics)
        upload.sent = Sent(entries, None, None)
        upload.payload = Payload(upload.arm, d, *prototype.sent(upload.row, entries))
        upload.loss_before, upload.loss_after = facts.get("losses", (None, None))
        self._down.pop(task.label, None)

    def forget(self, client: int) -> None:
        self._models.forget(client)

    def merge(
        self, round: int, contributions: Sequence[Contribution], weights: Sequence[float] = ()
    ) -> Outcome:
        outcome = super().merge(round, contributions, weights)
        if outcome.rolled_back:
            self._models.undo(self.version + 1)
        for contribution in contributions:
            self._settle(contribution.task, "undone" if outcome.rolled_back else "merged")
        return outcome

    def _send_down(self) -> None:
        super()._send_down()
        self._models.add(self.version + 1)

    def discard(self, contribution: Contribution) -> None:
        """The upload was lost; its client is told to take it back."""
        upload = self._own(contribution)
        if upload.payload is None:
            upload.payload = Payload(upload.arm, upload.task.parameters, [], [])
        self._close(upload)
        self._settle(upload.task, "lost")

    def _undo(self, upload: Upload) -> None:
        """Clients do that themselves, once they know of it."""

    def _settle(self, task: Task, fate: Fate) -> None:
        self._down.pop(task.label, None)
        as_sent = self.scenario.safeguard.residuals.kind == "as-sent"
        stands = fate == "merged" or (fate == "undone" and as_sent)
        self._mirrors.settle(task.label, stands=stands)
        self._tell(task.client, task.label, fate)

    def _set_aside(self, upload: Upload, row: int) -> None:
        if upload.row == row and upload.payload is None:  # it is lost, and holds nothing
            upload.row = _NOBODY
            return
        super()._set_aside(upload, row)

    def _work(self, merging: Mapping[Upload, float] | None = None, round: int = 0) -> None:
        """Clients work where they are; what the server needs beyond it are public logits."""
        merging = merging or {}
        missing = [u for u in merging if self._distils and u.known_for != round]
        self.engine.run([self._inference(upload, round, merging[upload]) for upload in missing])

    def _measure(
        self, uploads: Sequence[Upload], round: int, evaluate: bool
    ) -> tuple[
        dict[str, tuple[float, float]], dict[str, Evaluation], dict[int, PersonalEvaluation]
    ]:
        waiting = [u for u in uploads if u.loss_before is not None and u.loss_after is None]
        if waiting:
            self._ask_losses(waiting)
        return super()._measure(uploads, round, evaluate)

    def _ask_losses(self, waiting: Sequence[Upload]) -> None:
        """Everybody at once."""
        begun = time.perf_counter()
        models = {name: _model(prototype) for name, prototype in self.engine.prototypes.items()}
        asked = []
        for upload in waiting:
            task, name = upload.task, upload.task.prototype
            said, parts = self._models.to_measure(task, self.version + 1, models[name], _STILL)
            asked.append((task.client, pack({"key": task.key, "down": said}, parts)))
        for upload, answer in zip(waiting, self._ask("measure", asked), strict=True):
            upload.loss_after = loss_of(answer)
            if upload.loss_after is None:  # gone: nobody knows
                upload.loss_before = None
        self._asking_s += time.perf_counter() - begun

    def timings(self) -> dict[str, float]:
        return {**super().timings(), "local_losses": self._asking_s}

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        whole, waiting = self._open, {k: u for k, u in self._open.items() if u.payload is None}
        self._open = {key: u for key, u in whole.items() if u.payload is not None}
        try:
            facts, arrays = super().state()
        finally:
            self._open = whole
        facts["under_way"] = [[*u.task.arguments, u.arm, u.asked, u.row] for u in waiting.values()]
        facts["mirrors"] = self._mirrors.plain(arrays)
        return facts, arrays

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        super().restore(facts, arrays)
        self._mirrors.restore(facts["mirrors"], arrays)
        for *of_task, arm, asked, row in facts["under_way"]:
            task = self.tasks.task(*of_task)
            self._open[task.client, task.key] = Upload(self, task, arm, asked, row)

    def _note(self, upload: Upload, sent: Sent) -> None:
        super()._note(upload, sent)
        self.engine.prototypes[upload.task.prototype].used.clear()  # residuals are elsewhere


class _KeepingWorker(Worker):
    """Remembers the last payload, which is to travel as it was encoded."""

    payload: Payload | None = None

    def compress(self, unit: Send) -> Sent:
        self.payload = None
        return super().compress(unit)

    def _played(self, unit: Send, residual: Tensor, prototype: Prototype) -> Payload:
        self.payload = super()._played(unit, residual, prototype)
        return self.payload


class _KeepingEngine(Engine):
    worker_class = _KeepingWorker


class BatchedClient(LearningWorkload):
    """One client's half: its residual, its codecs' memories, its data."""

    cpu_engine = _KeepingEngine

    def __init__(
        self, scenario: Scenario, streams: Streams, *, client: int, device: str = "cpu"
    ) -> None:
        super().__init__(scenario, streams, device=device)
        self._client = client
        name = self.tasks.who(client).prototype
        self._has = ChangesHeld(self._changes_of(name))

    def work(self, parcel: Parcel) -> Made:
        facts, parts = unpack(parcel)
        round, client, version, turn = facts["task"]
        task = self.tasks.task(round, client, version, turn)
        if not self._take(task.prototype, facts["down"], parts, to_keep=True):
            return nothing_made(task.label)
        self.version = version
        if "loss" in facts:
            measured_at, loss = facts["loss"]
            self._losses[client] = int(measured_at), float(loss)
        before = self.timings()
        upload = self.execute(task, facts["arm"], facts["k"])
        self._work()
        training_s, compression_s = (
            self.timings()[of] - before[of] for of in ("gradients", "compression")
        )
        made_s = time.perf_counter()
        parcel = self._sent_up(upload)
        return Made(parcel, training_s, compression_s, time.perf_counter() - made_s)

    def _sent_up(self, upload: Upload) -> Parcel:
        prototype = self.engine.prototypes[upload.task.prototype]
        worker = self.engine.worker
        assert upload.payload is not None
        assert isinstance(worker, _KeepingWorker)
        payload = worker.payload
        parts: dict[str, Part] = {}
        facts: dict[str, Any] = {
            "label": upload.task.label,
            "losses": [upload.loss_before, upload.loss_after],
            "k": upload.payload.k,
        }
        if payload is None:
            facts["raw"] = True
            parts["update"] = np.asarray(prototype.values[upload.row].cpu())
        else:
            facts["state"] = plain_state(payload.state_before)
            parts["update"] = payload.encoded(wire_code(self.tasks.index_code))
        parts["buffers"] = np.asarray(prototype.statistics[upload.row].cpu())
        return pack(facts, parts)

    def settle(self, label: str, fate: Fate) -> None:
        for upload in [u for u in self._open.values() if u.task.label == label]:
            if fate == "lost":
                self.discard(upload)
                continue
            if fate == "undone":
                self._undo(upload)
            self._close(upload)

    def answer(self, what: str, parcel: Parcel) -> Parcel:
        if what != "measure":
            raise InputError("measure", where="ask", got=what)
        facts, parts = unpack(parcel)
        name = self.tasks.who(self._client).prototype
        if not self._take(name, facts["down"], parts, to_keep=False):
            return pack({"loss": None}, {})
        [found] = self.engine.run([MeasureLoss(self._client, facts["key"])])
        return pack({"loss": found.numbers[0]}, {})

    def keep(self) -> Parcel:
        facts, arrays = self.state()
        return pack({"kept": facts}, {n: a for n, a in arrays.items() if not _is_models(n)})

    def take_up(self, parcel: Parcel) -> None:
        facts, arrays = unpack(parcel)
        own = self.state()[1]
        self.restore(facts["kept"], {**{n: a for n, a in own.items() if _is_models(n)}, **arrays})

    def _take(
        self, name: str, said: Mapping[str, Any], parts: Mapping[str, Part], *, to_keep: bool
    ) -> bool:
        """The prototype's model becomes what came, if that can be told."""
        prototype = self.engine.prototypes[name]
        arrived = self._has.arrived(said, parts, to_keep=to_keep)
        if arrived is None:
            return False
        for part, into in (
            ("weights", prototype.held.weights), ("buffers", prototype.server.statistics),
        ):  # fmt: skip
            if part not in arrived:
                raise InputError(f"a part {part!r}", where="parts", got=", ".join(arrived))
            came = arrived[part]
            if came.shape != into.shape or came.dtype != into.dtype:
                raise InputError(f"{len(into)} float32 numbers", where=part, got=list(came.shape))
            into.copy_(came)
        prototype.moved()
        return True


def _model(prototype: Prototype) -> dict[str, Tensor]:
    """What clients are to have."""
    held, server = prototype.held, prototype.server
    return {"weights": held.weights.clone(), "buffers": server.statistics.clone()}


def _is_models(name: str) -> bool:
    """Whether an array of a checkpoint is the server's model."""
    return name.endswith(("/weights", "/statistics", "/held")) and "upload_" not in name
