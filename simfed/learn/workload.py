"""The learning side of the contract: real models behind tasks, contributions and outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, ClassVar, cast

import numpy as np
import torch

from simfed.compress import ErrorFeedback, Payload, undo
from simfed.contract import (
    Contribution,
    Evaluation,
    Outcome,
    PersonalEvaluation,
    Task,
)
from simfed.errors import RunFailed
from simfed.learn.accelerator import AcceleratorEngine, device_of
from simfed.learn.changes import Changes
from simfed.learn.engine import Engine, Part
from simfed.learn.federation import Federation, load_federation
from simfed.learn.methods.batched import Batched
from simfed.learn.precision import exact_float32
from simfed.learn.tree import from_plain, to_plain
from simfed.learn.units import Infer, MeasureLoss, Result, Send, Sent, Train, Unit
from simfed.levels import Level
from simfed.method import Work
from simfed.scenario import Scenario
from simfed.seeding import Streams
from simfed.tasks import Tasks

__all__ = ["LearningWorkload", "Upload"]

_NO_LOSS = 1e-12
"""A distillation loss up to here is rounding: one client's model is its own teacher."""


class Upload:
    """A started participation: the contract's `Contribution`. Its work is done when it is
    needed."""

    __slots__ = (
        "_workload",
        "arm",
        "asked",
        "known_for",
        "loss_after",
        "loss_before",
        "payload",
        "row",
        "sent",
        "task",
    )

    def __init__(
        self, workload: LearningWorkload, task: Task, arm: str, k: Level, row: int
    ) -> None:
        self._workload = workload
        self.task = task
        self.arm = arm
        self.asked: Level = min(k, task.parameters) if isinstance(k, int) else k
        """K, or the level of energy."""
        self.payload: Payload | None = None
        """None until the work is done."""
        self.sent: Sent | None = None
        """What the worker said of it."""
        self.row = row
        """Where it is among its prototype's arrays: the client's own row, or a spare one."""
        self.known_for: int | None = None
        """The round on whose public samples its model's logits are in its row."""
        self.loss_before: float | None = None
        self.loss_after: float | None = None
        """f_n before and after, where a policy learns from it."""

    @property
    def k(self) -> int:
        """Entries kept; of a level of energy, runs pending work."""
        if isinstance(self.asked, int):
            return self.asked
        return self._workload._payload(self).k

    def uplink_bytes(self) -> float:
        """Bytes on the wire; under an index code whose size depends on the data, runs pending
        work."""
        return self._workload.uplink_bytes(self)

    def facts(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """What a checkpoint keeps of it beside the arrays in its row; codecs' memories go to
        `arrays`."""
        assert self.sent is not None
        sent, name = self.sent, f"open/{self.task.client}/{self.task.key}"
        return {
            "task": self.task.arguments,
            "row": self.row,
            "arm": self.arm,
            "k": self.asked,
            "losses": [self.loss_before, self.loss_after],
            "sent": [
                sent.entries,
                to_plain(sent.memory, f"{name}/memory", arrays),
                sent.seed,
                to_plain(sent.if_lost, f"{name}/if-lost", arrays),
                sent.wire_bytes,
            ],
        }


class LearningWorkload:
    """Federated distillation, or federated averaging, with real models.

    `workers` processes share the work; results do not depend on their number. With `device` `cuda`
    it is done on the GPU by this process alone, whatever `workers` says. `learns` says
    whether a policy learns from rewards, in which case local losses are computed. `data` replaces
    the scenario's data set.

    Work is lazy: `execute` notes what is to be done; it is done, for all clients at once, when a
    merge, a loss of an upload, a saved state or a size that depends on the data needs it. A merge
    changes weights, so everything pending is computed before it.
    """

    cpu_engine: ClassVar[type[Engine]] = Engine

    def __init__(
        self,
        scenario: Scenario,
        streams: Streams,
        *,
        workers: int = 1,
        device: str = "cpu",
        learns: bool = True,
        data: Federation | None = None,
    ) -> None:
        place = device_of(device)
        if data is not None and data.device.type != place.type:
            raise ValueError(
                f"data on {place.type}, where it is to be learned; got it on {data.device}"
            )
        self.scenario = scenario
        self.data = data if data is not None else load_federation(scenario, streams, place)
        self._settings = ExitStack()  # the same bits whatever the caller has set
        self._settings.enter_context(exact_float32())
        self.engine: Engine
        if place.type == "cpu":
            self.engine = self.cpu_engine(scenario, streams, self.data, workers=workers)
        else:
            self.engine = AcceleratorEngine(scenario, streams, self.data)
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # processes share the work, threads would only wait for each other
        self.tasks = Tasks(
            scenario, self.engine.facts, lambda client: len(self.data.owned[client]),
            test_samples=len(self.data.test_labels),
        )  # fmt: skip
        self._method = cast(Batched, scenario.method.made)
        self.version = 0
        self._accepted: list[Mapping[str, float]] = []
        """Losses of the last accepted rounds, where their median counts."""
        self._rollbacks_in_a_row = 0
        self._distillation_loss: dict[str, float] = {}
        self._memories: dict[tuple[int, str], Any] = {}
        self._losses: dict[int, tuple[int, float]] = {}
        self._open: dict[tuple[int, int | str], Upload] = {}
        self._streams = streams
        self._changes: dict[str, Changes] = {}
        if scenario.downlink.compression is not None:
            for name in scenario.prototypes:
                who = self.tasks.first_of(name)
                field = self.tasks.task(1, who.client, 0).plan.down["weights"]
                self._changes[name] = Changes(scenario, self.tasks, who, field)
        groups = scenario.group_of_client()
        self._group = [scenario.clients[group] for group in groups]
        self._learners = [learns and scenario.measures_losses(group) for group in self._group]
        self._local_loss = [scenario.policy_of_group(g).reward.local_loss for g in self._group]

    # ---- the contract ----------------------------------------------------------------------------

    def task(self, round: int, client: int, turn: int = 0, held: int | None = None) -> Task:
        """The work of `client` in `round`."""
        return self.tasks.task(round, client, self.version, turn, held)

    def execute(self, task: Task, arm: str, k: Level) -> Upload:
        """Note the client's work; it reads the weights as they are now, whenever it is done."""
        prototype = self.engine.prototypes[task.prototype]
        if isinstance(k, int) and min(k, task.parameters) > prototype.capacity:
            raise ValueError(
                f"at most the {prototype.capacity} entries that the scenario speaks of, got {k}"
            )
        task = self._as_sent(task)
        row = prototype.row[task.client]
        for waiting in [u for u in self._open.values() if u.task.client == task.client]:
            self._set_aside(waiting, row)
        upload = self._open[task.client, task.key] = Upload(self, task, arm, k, row)
        return upload

    def _as_sent(self, task: Task) -> Task:
        """With the true size of what travels down."""
        if not self._changes or not self.tasks.changes_vary(task):
            return task
        return self.tasks.as_sent(task, sizes={"weights": self._changes[task.prototype].sizes})

    def _set_aside(self, upload: Upload, row: int) -> None:
        """Make room in a client's row: an earlier upload of its still waits to be merged."""
        if upload.row != row:
            return
        self._payload(upload)
        upload.row = self.engine.prototypes[upload.task.prototype].set_aside(row)
        assert upload.sent is not None
        self._note(upload, upload.sent)

    def uplink_bytes(self, upload: Upload) -> float:
        """Size of an upload on the wire, running statistics included where they are charged."""
        known = self.tasks.uplink_bytes(upload.task, upload.arm, upload.k)
        if known is None:
            buffers = self.tasks.field_bytes(
                upload.task, upload.task.plan.up["buffers"], upload.arm, upload.k
            )
            self._payload(upload)
            assert buffers is not None
            assert upload.sent is not None
            assert upload.sent.wire_bytes is not None
            known = upload.sent.wire_bytes + buffers
        return float(known)

    def merge(
        self, round: int, contributions: Sequence[Contribution], weights: Sequence[float] = ()
    ) -> Outcome:
        """Average, distil, check the safeguard, measure what the round was worth."""
        counted = zip(contributions, weights or [1.0] * len(contributions), strict=True)
        weighed = sorted(
            ((self._own(c), weight) for c, weight in counted),
            key=lambda of: of[0].task.order,
        )
        uploads = [upload for upload, _ in weighed]
        scales = {upload: self._scale(upload.task.round) * weight for upload, weight in weighed}
        self._work(scales, round)
        for upload in uploads:
            self._close(upload)
        if not uploads:
            _, evaluation, clients = self._measure([], round, True)
            return Outcome(round, self.version, evaluation=evaluation, clients=clients)
        before = self._before()
        self._average(scales)
        after = self._distil(uploads, round)
        rejected = self._reject(round, before, after)
        try:
            self._send_down()
        except RunFailed:
            if not rejected:  # a model that is not finite is undone like any other bad one
                raise
        local, evaluation, clients = self._measure(uploads, round, not rejected)
        self._remember_losses(uploads, rejected)
        if rejected:
            self.engine.return_to_remembered()
            for changes in self._changes.values():
                changes.undo()
            for upload in uploads:
                self._undo(upload)
            _, evaluation, clients = self._measure([], round, True)
            self._rollbacks_in_a_row += 1
        else:
            self.version += 1
            for changes in self._changes.values():
                changes.keep()
            self._rollbacks_in_a_row = 0
            self._accept(after)
        return Outcome(
            round=round,
            model_version=self.version,
            rolled_back=rejected,
            forced_arm=next(iter(self.scenario.forced_arms), None) if rejected else None,
            losses={name: {"kd_loss": loss} for name, loss in after.items()},
            shared_loss=after,
            shared_loss_before=before,
            local_loss=local,
            evaluation=evaluation,
            clients=clients,
        )

    def server_work(self, round: int, contributions: Sequence[Contribution]) -> Sequence[Work]:
        """What the method says."""
        return self.tasks.server_work([c.task.who for c in contributions], round)

    def discard(self, contribution: Contribution) -> None:
        """The upload was lost: its entries return to the residual, its period steps back."""
        upload = self._own(contribution)
        self._take_back(upload)
        self._close(upload)

    def timings(self) -> dict[str, float]:
        """Host seconds by activity."""
        return self.engine.timings()

    def close(self) -> None:
        """End worker processes; safe to call twice."""
        self.engine.close()
        torch.set_num_threads(self._threads)
        self._settings.close()

    def contribution(self, task: Task) -> Upload:
        """The upload of a task that is under way: what a resumed run goes on with."""
        return self._open[task.client, task.key]

    def _close(self, upload: Upload) -> None:
        """It has arrived or is lost."""
        del self._open[upload.task.client, upload.task.key]
        self.engine.prototypes[upload.task.prototype].free(upload.row)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """All that a resumed run needs. Pending work is done first."""
        self._work()
        arrays: dict[str, Any] = {}
        facts: dict[str, Any] = {
            "version": self.version,
            "rollbacks_in_a_row": self._rollbacks_in_a_row,
            "distillation_loss": self._distillation_loss,
            "accepted": self._accepted,
            "memories": [
                [*key, to_plain(memory, f"memories/{key[0]}/{key[1]}", arrays)]
                for key, memory in sorted(self._memories.items(), key=lambda of: of[0])
            ],
            "losses": [[client, *known] for client, known in sorted(self._losses.items())],
            "open": [upload.facts(arrays) for upload in self._open.values()],
            "changes": {
                name: of.plain(f"changes/{name}", arrays) for name, of in self._changes.items()
            },
        }
        for name, prototype in self.engine.prototypes.items():
            mine = [u.row for u in self._open.values() if u.task.prototype == name]
            arrays |= prototype.arrays(sorted(mine))
        return facts, arrays

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Inverse of `state`, on a workload of the same scenario; what it did before is
        forgotten."""

        def tree(plain: Any) -> Any:
            return from_plain(plain, arrays, self.data.device)

        self._open.clear()
        self.version = int(facts["version"])
        self._rollbacks_in_a_row = int(facts["rollbacks_in_a_row"])
        self._distillation_loss = dict(facts["distillation_loss"])
        self._accepted = list(facts.get("accepted", ()))
        self._memories = {(client, arm): tree(memory) for client, arm, memory in facts["memories"]}
        self._losses = {client: (version, loss) for client, version, loss in facts["losses"]}
        for prototype in self.engine.prototypes.values():
            prototype.restore(arrays)
        for name, (sizes, memory) in facts.get("changes", {}).items():
            self._changes[name].restore(sizes, tree(memory))
        for known in facts["open"]:
            task = self._as_sent(self.tasks.task(*known["task"]))
            upload = Upload(self, task, known["arm"], known["k"], known["row"])
            self._open[task.client, task.key] = upload
            upload.loss_before, upload.loss_after = known["losses"]
            entries, memory, seed, if_lost, size = known["sent"]
            self._note(upload, Sent(entries, tree(memory), seed, tree(if_lost), size))

    # ---- clients ---------------------------------------------------------------------------------

    def _work(self, merging: Mapping[Upload, float] | None = None, round: int = 0) -> None:
        """Do what is pending, and what the merge of `merging` (with what makes each a change of
        weights) in `round` needs beyond it."""
        merging = merging or {}
        pending = [upload for upload in self._open.values() if upload.payload is None]
        losses = self._train(pending)
        sure = {u for u in merging if self._distils and u.task.round == round}
        units = [self._unit(upload, upload in sure) for upload in pending]
        for upload, unit, result in zip(pending, units, self.engine.run(units), strict=True):
            self._sent(upload, unit, result, losses.get(unit.client))
        missing = [u for u in merging if self._distils and u.known_for != round]
        self.engine.run([self._inference(upload, round, merging[upload]) for upload in missing])

    def _train(self, pending: Sequence[Upload]) -> dict[int, float]:
        """Local training of all; f_n at the weights as they are now, of those who need it."""
        trainings: list[Train] = []
        for round in dict.fromkeys(upload.task.round for upload in pending):
            mine = [upload for upload in pending if upload.task.round == round]
            tasks, shifts = [upload.task for upload in mine], self._shifts(mine, round)
            trainings += self.engine.trainings(tasks, round, self._rate(round), shifts)
        losses = [
            MeasureLoss(upload.task.client, upload.task.key)
            for upload in pending
            if self._wants_loss(upload.task.client)
        ]
        results = self.engine.run([*trainings, *losses])
        for unit, result in zip(trainings, results, strict=False):
            for client, loss in zip(unit.clients, result.numbers, strict=True):
                _check_finite(client, unit.round, loss)
        found = zip(losses, results[len(trainings) :], strict=True)
        return {unit.client: result.numbers[0] for unit, result in found}

    def _shifts(self, uploads: Sequence[Upload], round: int) -> dict[int, Any]:
        """What is added to the weights of clients whose codec wants them to begin elsewhere."""
        found = {}
        for upload in uploads:
            client, codec = upload.task.client, self.engine.worker.player(upload.arm).codec
            point = codec.point(self._memories.get((client, upload.arm)))
            if point is not None:
                found[client] = np.float32(self._scale(round)) * point
        return found

    def _wants_loss(self, client: int) -> bool:
        """Whether a policy learns from f_n at the weights as they are now, and it is not known."""
        known = self._losses.get(client)
        # a batch is another one every round
        fresh = (
            known is not None
            and known[0] == self.version
            and self._local_loss[client].data != "batch"
        )
        return self._learners[client] and not fresh

    def _unit(self, upload: Upload, with_logits: bool) -> Send:
        task = upload.task
        return Send(
            client=task.client,
            round=task.round,
            key=task.key,
            arm=upload.arm,
            k=upload.asked,
            memory=self._memories.get((task.client, upload.arm)),
            scale=self._scale(task.round),
            with_logits=with_logits,
        )

    def _sent(self, upload: Upload, unit: Send, result: Result, now: float | None) -> None:
        """Note what came of a `Send`. `now`: f_n at the weights as they are, unless it is known."""
        client, sent = unit.client, result.sent
        assert sent is not None
        self._note(upload, sent)
        upload.known_for = unit.round if unit.with_logits else None
        self._memories[client, upload.arm] = sent.memory
        if self._learners[client]:
            printed = self._local_loss[client].credit == "as-printed"
            if now is None:
                now = self._losses[client][1]
            held = self._losses[client][1] if client in self._losses else now
            upload.loss_before, upload.loss_after = (held, now) if printed else (now, None)
            if printed or self._local_loss[client].data != "batch":
                self._losses[client] = (self.version, now)

    def _note(self, upload: Upload, sent: Sent) -> None:
        """What became of an upload; what the server gets of it lies in its row."""
        upload.sent = sent
        prototype = self.engine.prototypes[upload.task.prototype]
        prototype.used.add(prototype.row[upload.task.client])
        indices, values = prototype.sent(upload.row, sent.entries)
        upload.payload = Payload(
            strategy=upload.arm,
            length=prototype.parameters,
            indices=indices,
            values=values,
            state=sent.memory,
            state_before=sent.if_lost,
            seed=sent.seed,
        )

    def _inference(self, upload: Upload, round: int, scale: float) -> Infer:
        upload.known_for = round
        entries = self._payload(upload).k
        return Infer(upload.task.client, upload.row, round, entries, scale)

    def _undo(self, upload: Upload) -> None:
        """Its round is undone: residual and codec go on as the safeguard says."""
        residuals = self.scenario.safeguard.residuals
        if residuals.kind != "as-sent":
            self._take_back(upload, residuals.factor if residuals.kind == "damped" else 1.0)

    def _take_back(self, upload: Upload, share: float = 1.0) -> None:
        """What was sent returns to the residual, or a share of it; or all of it to the codec's own
        memory. It forgets the play."""
        payload, client = self._payload(upload), upload.task.client
        prototype = self.engine.prototypes[upload.task.prototype]
        if isinstance(self.engine.worker.player(upload.arm), ErrorFeedback):
            undo(prototype.residuals[prototype.row[client]], payload, share)
        self._memories[client, upload.arm] = payload.state_before

    def _payload(self, upload: Upload) -> Payload:
        if upload.payload is None:
            self._work()
        assert upload.payload is not None
        return upload.payload

    def _own(self, contribution: Contribution) -> Upload:
        upload = self._open.get((contribution.task.client, contribution.task.key))
        if upload is not contribution:
            raise ValueError(
                f"a contribution that is under way, got that of client {contribution.task.client}"
            )
        return upload

    # ---- the server ------------------------------------------------------------------------------

    def _average(self, scales: Mapping[Upload, float]) -> None:
        if self.scenario.safeguard.rollback is not None:
            self.engine.remember()
        parts: dict[Upload, Part] = {}
        for name in self.engine.prototypes:
            mine = [upload for upload in scales if upload.task.prototype == name]
            sizes = [
                len(self.data.owned[u.task.client]) if self._method.weighs_by_samples else 1
                for u in mine
            ]
            for u, size in zip(mine, sizes, strict=True):
                entries, share = self._payload(u).k, size / sum(sizes)
                parts[u] = Part(u.task.client, u.row, entries, scales[u], share)
        self.engine.average([parts[upload] for upload in scales])

    def _changes_of(self, prototype: str) -> dict[str, Changes]:
        """By field of weights."""
        return {"weights": self._changes[prototype]} if self._changes else {}

    def _send_down(self) -> None:
        """Where changes travel down, clients hold from now on what the next one makes of theirs."""
        for name, changes in self._changes.items():
            prototype = self.engine.prototypes[name]
            draws = self._streams("downlink", name, "weights", self.version + 1)
            held = prototype.held.weights
            held.add_(changes.next(prototype.server.weights, held, draws))
            prototype.moved()

    def _distil(self, uploads: Sequence[Upload], round: int) -> dict[str, float]:
        if not self._distils:
            return {}
        self.engine.teach([(upload.task.prototype, upload.row) for upload in uploads])
        distillation = self.scenario.distillation
        rate = distillation.learning_rate or self.scenario.training.learning_rate
        rate *= self.scenario.learning_rate_factor(round)
        return self.engine.distil(round, rate, distillation.steps)

    def _before(self) -> dict[str, float]:
        """L_KD of the last accepted round; the initial models count as round 0."""
        if self._distils and not self._distillation_loss:
            self._distillation_loss = self.engine.initial_distillation_loss()
        return self._distillation_loss

    def _accept(self, after: Mapping[str, float]) -> None:
        """The round stands; its losses are what the next one is compared with."""
        reference = self.scenario.safeguard.reference
        if self._distils and reference.kind == "running-median":
            self._accepted = [*(self._accepted or [self._before()]), after][-reference.window :]
        self._distillation_loss = dict(after)

    def _reject(self, round: int, before: Mapping[str, float], after: Mapping[str, float]) -> bool:
        rollback = self.scenario.safeguard.rollback
        if rollback is None or self._rollbacks_in_a_row >= rollback.max_consecutive:
            return False
        if self._accepted:
            before = {name: median(of[name] for of in self._accepted) for name in before}
        # not (≤) rather than (>), so that a NaN is rejected
        return any(not after[p] <= rollback.threshold * before[p] + _NO_LOSS for p in after)

    def _measure(
        self, uploads: Sequence[Upload], round: int, evaluate: bool
    ) -> tuple[
        dict[str, tuple[float, float]], dict[str, Evaluation], dict[int, PersonalEvaluation]
    ]:
        """Local losses before and after, and the evaluation if it is due, in one go."""
        waiting = [u for u in uploads if u.loss_before is not None and u.loss_after is None]
        units: list[Unit] = [MeasureLoss(u.task.client, u.task.key) for u in waiting]
        due = self.scenario.evaluation.due(round, self.scenario.rounds)
        tests = self.engine.evaluation_units() if evaluate and due else []
        results = self.engine.run([*units, *tests])
        for upload, result in zip(waiting, results, strict=False):
            upload.loss_after = result.numbers[0]
        local = {
            u.task.label: (u.loss_before, u.loss_after)
            for u in uploads
            if u.loss_before is not None and u.loss_after is not None
        }
        tested = results[len(units) :]
        return local, self.engine.evaluation(tested), self.engine.evaluation_of_clients(tested)

    def _remember_losses(self, uploads: Sequence[Upload], rejected: bool) -> None:
        """A loss after an accepted merge is the next round's loss before, if no sample changes."""
        for upload in uploads:
            client = upload.task.client
            local = self._local_loss[client]
            if upload.loss_after is None or local.credit == "as-printed":
                continue
            if not rejected and local.data != "batch":
                self._losses[client] = (self.version + 1, upload.loss_after)

    # ---- plain facts -----------------------------------------------------------------------------

    @property
    def _distils(self) -> bool:
        return self._method.needs_public

    def _rate(self, round: int) -> float:
        return self.scenario.training.learning_rate * self.scenario.learning_rate_factor(round)

    def _scale(self, round: int) -> float:
        """What makes a payload a change of weights: −η for gradients, −1 for weight differences."""
        return -self._rate(round) if self._method.sends_gradients else -1.0


def _check_finite(client: int, round: int, loss: float) -> None:
    """Raises `RunFailed` when training has left the numbers: a compressor would only say that it
    met a NaN."""
    if not math.isfinite(loss):
        raise RunFailed(
            f"client {client}'s training loss is {loss} in round {round}: the learning "
            "has diverged; a smaller training.learning_rate may help"
        )
