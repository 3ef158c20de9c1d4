"""Both halves of the host; see `simfed.learn.apart`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simfed.compress.choice import Choice
from simfed.compress.codec import Memory, Payload
from simfed.fleet.contract import Contribution, Outcome, Task
from simfed.ground.errors import InputError, SimfedError
from simfed.ground.method import State, Values
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.learn import apart_checks as checks
from simfed.learn.apart import (
    Ask,
    Fate,
    Mirrors,
    TaskAnswer,
    Tell,
    answer_nothing,
    choose_wire_code,
    decode_mirrors,
    find_part,
    is_mirrored,
    read_loss,
    read_tensor,
)
from simfed.learn.apart_changes import ChangesHeld, ModelsDown
from simfed.learn.hosted import HostedUpload, HostedWorkload, list_latest_first
from simfed.learn.own_losses import waiting
from simfed.learn.parcel import Parcel, Part, pack, unpack
from simfed.learn.processes import Units
from simfed.learn.uploads import Received, Sparse
from simfed.scenario import Scenario

_DOWN, _MODEL, _UP = "down/", "model/", "up/"


class HostedServer(HostedWorkload):
    """The server's half: clients' states, residuals and data are elsewhere."""

    def __init__(
        self, scenario: Scenario, streams: Streams, *, ask: Ask, tell: Tell, device: str = "cpu"
    ) -> None:
        super().__init__(scenario, streams, device=device)
        self._ask, self._tell = ask, tell
        self._mirrors = Mirrors(self.tasks.index_code)
        self._known: set[int] = set()
        """Clients of whom an upload was merged, who so have a model of their own."""
        self._models = ModelsDown(
            {name: self.held_models.of_prototype(name) for name in scenario.prototypes}
        )

    def outgoing(self, contribution: Contribution) -> Parcel:
        upload = self._own_upload(contribution)
        task = upload.task
        said, parts = self._models.of_task(task, upload.down, _list_buffers(task))
        parts = _add_prefix(_DOWN, parts)
        if self._losses.wants(upload) and not self.method.personal:
            parts |= _name_parts(_MODEL, _find_unsent(self.model_measured(upload, {}), upload.down))
        self._mirrors.ask(task)
        facts: dict[str, Any] = {
            "label": task.label, "task": list(task.name), "choice": upload.choice.label,
            "down": said,
        }  # fmt: skip
        if task.client in self._losses.measured:  # what it measured after the last merge
            facts["loss"] = list(self._losses.measured[task.client])
        return pack(facts, parts)

    def send_down(self, round: int, version: int) -> None:
        super().send_down(round, version)
        self._models.add(version)

    def most_bytes(self, contribution: Contribution) -> int:
        """Enough for every codec: raw values and 64-bit indices of all entries, and room for the
        codec's own numbers."""
        entries = sum(field.entries for field in contribution.task.plan.up.values())
        return 24 * entries + 2**20

    def deliver(self, contribution: Contribution, parcel: Parcel) -> None:
        upload = self._own_upload(contribution)
        task, setting = upload.task, self.tasks.setting
        facts, parts = unpack(parcel)
        checks.check_label(facts, task)
        if task.plan.up and not parts:  # see `answer_nothing`
            raise InputError(problem="its client lacks the model whose changes it was sent")
        losses = checks.read_losses(facts.get("losses"))
        coded = checks.read_coded(facts.get("coded"), task.plan.compressed, setting.classes)
        values: dict[str, Any] = {}
        sizes: dict[str, tuple[float, int]] = {}
        for name, of_plan in task.plan.up.items():
            part = find_part(parts, _UP + name)
            if name not in coded:
                values[name] = checks.read_values(name, part, of_plan, setting.classes)
                continue
            shape, state = coded[name]
            payload = self._mirrors.read(task, name, of_plan, upload.choice, part, state)
            values[name] = _decode_payload(payload, shape)
            sizes[name] = float(len(part)), payload.k
        received = Received(values)
        entries = sum(of_plan.entries for of_plan in task.plan.up.values())
        most = checks.find_largest(entries, setting.participants)
        variances = self.kit.variances(task.prototype)
        checks.check_magnitude(task, received, most, variances)
        upload.values, upload.down, upload.sizes = received, {}, sizes
        upload.loss_before, upload.loss_after = losses

    def forget(self, client: int) -> None:
        self._models.forget(client)

    def hand_over(self, client: int) -> Parcel:
        return self._mirrors.hand_over(client)

    def merge(
        self, round: int, contributions: Sequence[Contribution], weights: Sequence[float] = ()
    ) -> Outcome:
        self._known.update(self._own_upload(one).task.client for one in contributions)
        outcome = super().merge(round, contributions, weights)
        if outcome.rolled_back:
            self._models.undo(self.version + 1)
        fate: Fate = "undone" if outcome.rolled_back else "merged"
        for upload in list_latest_first(contributions):
            self._settle(upload, fate)
        return outcome

    def undo_upload(self, upload: HostedUpload) -> None:
        """Clients do that themselves, once they know of it."""

    def discard(self, contribution: Contribution) -> None:
        """The upload was lost; its client is told to take it back."""
        upload = self._own_upload(contribution)
        self._open.remove(upload)
        self._settle(contribution, "lost")

    def _settle(self, contribution: Contribution, fate: Fate) -> None:
        task = contribution.task
        as_sent = self.scenario.safeguard.residuals.kind == "as-sent"
        stands = fate == "merged" or (fate == "undone" and as_sent)
        self._mirrors.settle(task.label, stands=stands)
        self._tell(task.client, task.label, fate)

    def state(self) -> tuple[dict[str, Plain], dict[str, np.ndarray]]:
        facts, arrays = super().state()
        facts["mirrors"] = self._mirrors.plain(arrays)
        facts["known"] = sorted(self._known)
        return facts, arrays

    def restore(self, facts: Mapping[str, Plain], arrays: Mapping[str, np.ndarray]) -> None:
        super().restore(facts, arrays)
        self._mirrors.restore(facts["mirrors"], arrays)
        self._known = set(facts["known"])

    def work_off(self) -> None:
        """Clients work where they are."""

    def units_of_gains(self, uploads: Sequence[HostedUpload]) -> Units:
        """Clients are asked, everybody at once."""
        measured = waiting(uploads)
        if measured:
            begun = time.perf_counter()
            answers = self._ask("measure", [self._asked(upload) for upload in measured])
            for upload, answer in zip(measured, answers, strict=True):
                upload.loss_after = read_loss(answer)
                if upload.loss_after is None:  # gone: nobody knows
                    upload.loss_before = None
            self._processes.wall_s["local_losses"] += time.perf_counter() - begun
        return [], []

    def _asked(self, upload: HostedUpload) -> tuple[int, Parcel]:
        task = upload.task
        if self.method.personal:
            return task.client, pack({"key": task.key}, {})
        model = self.model_measured(upload, {})
        said, parts = self._models.to_measure(task, self.version + 1, model, _list_buffers(task))
        return task.client, pack({"key": task.key, "down": said}, _add_prefix(_DOWN, parts))

    def units_of_tests(self, round: int) -> Units:
        return ([], []) if self.method.personal else super().units_of_tests(round)

    def judged_by_client(self, answers: Sequence[Tensor]) -> dict[int, Tensor]:
        """Each client's own answers to the test set, asked over its connection."""
        clients = sorted(self._known)
        parcels = self._ask("test", [(client, pack({}, {})) for client in clients])
        rows = {}
        for client, answer in zip(clients, parcels, strict=True):
            if answer is None or not answer.facts.get("tested"):
                continue
            with suppress(InputError):  # no test at all, as of one that is gone
                _, parts = unpack(answer)
                rows[client] = checks.read_rows(
                    find_part(parts, "rows"),
                    self.data.test_groups,
                    self.data.groups,
                    classified=self.data.task == "classification",
                )
        return rows


class HostedClient(HostedWorkload):
    """One client's half: its state, its residuals, its data."""

    def __init__(
        self, scenario: Scenario, streams: Streams, *, client: int, device: str = "cpu"
    ) -> None:
        super().__init__(scenario, streams, device=device)
        self._client = client
        self._has = ChangesHeld(self.held_models.of_prototype(self.tasks.who(client).prototype))
        self._payloads: dict[str, Payload] = {}
        self._encoder.payloads = self._payloads
        self._model: Values = {}
        """The model that the client's loss is measured at, where it is not its own."""
        self._as_begun = self.keep()

    def work(self, parcel: Parcel) -> TaskAnswer:
        facts, parts = unpack(parcel)
        round, client, version, turn = facts["task"]
        task = self.tasks.task(round, client, version, turn)
        down = self._arrived(facts["down"], parts, to_keep=True)
        if down is None:
            return answer_nothing(task.label)
        self._check(task, "down", down, task.plan.down)
        self._model = {**down, **self._values(_MODEL, parts)}
        self.version = version
        if "loss" in facts:
            measured_at, loss = facts["loss"]
            self._losses.measured[client] = int(measured_at), float(loss)
        upload = HostedUpload(self, task, Choice.of(facts["choice"]), down, self._own.get(client))
        self._open.add(upload)
        self._payloads.clear()
        before = self._spent()
        try:
            super().work_off()
        except SimfedError:
            self._open.remove(upload)
            raise
        spent_s = [after - begun for begun, after in zip(before, self._spent(), strict=True)]
        made_s = time.perf_counter()
        parcel = self._sent(upload)
        training_s, compression_s, *busy_s = spent_s
        return TaskAnswer(parcel, training_s, compression_s, time.perf_counter() - made_s, *busy_s)

    def _spent(self) -> list[float]:
        """Host seconds so far of training and of compression, and those on processors."""
        spent = self._processes.wall_s, self._processes.busy_s
        return [seconds[activity] for seconds in spent for activity in ("training", "compression")]

    def _sent(self, upload: HostedUpload) -> Parcel:
        assert upload.values is not None
        code, coded = choose_wire_code(self.tasks.index_code), {}
        parts: dict[str, Part] = {}
        for name in upload.values:
            if name in self._payloads:
                payload, value = self._payloads[name], upload.values.change(name)
                parts[_UP + name] = payload.encoded(code)
                coded[name] = {
                    "shape": [payload.length] if isinstance(value, Sparse) else list(value.shape),
                    "state": payload.codec.tell(payload.state_before),
                }
            else:
                parts |= _name_parts(_UP, {name: upload.values[name]})
        self._payloads.clear()
        facts = {
            "label": upload.task.label,
            "coded": coded,
            "losses": [upload.loss_before, upload.loss_after],
        }
        return pack(facts, parts)

    def settle(self, label: str, fate: Fate) -> None:
        for upload in [u for u in self._open if u.task.label == label]:
            if fate == "lost":
                self.discard(upload)
                continue
            if fate == "undone":
                self.undo_upload(upload)
            self._open.remove(upload)

    def answer(self, what: str, parcel: Parcel) -> Parcel:
        facts, parts = unpack(parcel)
        who = self.tasks.who(self._client)
        own = self._own.get(self._client)
        if what == "measure":
            if not self.method.personal:
                model = self._arrived(facts["down"], parts, to_keep=False)
                if model is None:
                    return pack({"loss": None}, {})
                self._model = model
            at = self.method.model({}, own or {}, who) if self.method.personal else self._model
            [loss] = self.kit.own_losses(who.prototype, at, [(self._client, facts["key"])])
            return pack({"loss": loss.item()}, {})
        if own is None:
            return pack({"tested": False}, {})
        tested = self.kit.test(who.prototype, self.method.model({}, own, who))
        return pack({"tested": True}, {"rows": tested.numpy()})

    def keep(self) -> Parcel:
        server, held = self._server, self.held_models.held
        self._server, self.held_models.held = {}, {}  # the server's, which it sends
        try:
            facts, arrays = self.state()
        finally:
            self._server, self.held_models.held = server, held
        under_way = [upload.task.label for upload in self._open]
        return pack({"kept": facts, "under_way": under_way}, arrays)

    def take_up(self, parcel: Parcel) -> None:
        facts, arrays = unpack(parcel)
        self.restore(facts["kept"], arrays)

    def begin_anew(self) -> None:
        self.take_up(self._as_begun)

    def agree(self, parcel: Parcel) -> None:
        facts, parts = unpack(parcel)
        arrays = {name: part for name, part in parts.items() if isinstance(part, np.ndarray)}
        before = self._memories
        mirrored = {key for key in before if is_mirrored(Choice.of(key[-1]))}
        self._memories = {key: before[key] for key in before.keys() - mirrored}
        for key, mirror in decode_mirrors(facts["mirrors"], arrays).items():
            memory = before.get(key)  # the selection's state is the client's
            self._memories[key] = Memory(memory.facts if memory else None, mirror.arrays)

    def model_measured(self, upload: HostedUpload, own: State) -> Values:
        if self.method.personal:
            return self.method.model({}, own, upload.task.who)
        return self._model

    def _arrived(
        self, said: Mapping[str, Any], parts: Mapping[str, Part], *, to_keep: bool
    ) -> dict[str, Tensor] | None:
        return self._has.arrived(said, _pick_parts(_DOWN, parts), to_keep=to_keep)

    def _values(self, prefix: str, parts: Mapping[str, Part]) -> dict[str, Tensor]:
        return {name: read_tensor(part, name) for name, part in _pick_parts(prefix, parts).items()}


def _decode_payload(payload: Payload, shape: Sequence[int]) -> Any:
    """What the server takes a field for."""
    if payload.indices is None or payload.k == payload.length or len(shape) != 1:
        return torch.tensor(payload.dense()).reshape(list(shape))
    indices, values = torch.tensor(payload.indices), torch.tensor(payload.values)
    return Sparse(indices, values, payload.length)


def _list_buffers(task: Task) -> list[str]:
    """The fields that change with the weights alone."""
    return [name for name, of_plan in task.plan.down.items() if of_plan.kind == "buffers"]


def _name_parts(prefix: str, values: Values) -> dict[str, Part]:
    return _add_prefix(
        prefix, {name: value.detach().cpu().numpy() for name, value in values.items()}
    )


def _add_prefix(prefix: str, parts: Mapping[str, Part]) -> dict[str, Part]:
    return {prefix + name: part for name, part in parts.items()}


def _pick_parts(prefix: str, parts: Mapping[str, Part]) -> dict[str, Part]:
    return {n[len(prefix) :]: part for n, part in parts.items() if n.startswith(prefix)}


def _find_unsent(model: Values, down: Values) -> dict[str, Any]:
    """What of a model does not travel anyway."""
    return {
        name: value
        for name, value in model.items()
        if not (name in down and torch.equal(down[name], value))
    }
