"""The learning side for every method that does not bring its own: `Workload`, from a method's
steps.

The host does what is the same for all: it trains lazily and in many processes, compresses fields
that say so and keeps what was left out, counts bytes, undoes lost uploads, keeps the states of
those clients alone that have taken part, measures gains, evaluates, and saves. The method says the
rest (`simfed.method`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from simfed.compress.codec import Payload, codec_from_spec
from simfed.compress.feedback import ErrorFeedback, WithoutFeedback, feedback_for
from simfed.compress.selection import entries_for
from simfed.contract import Contribution, Evaluation, Outcome, PersonalEvaluation, Task
from simfed.errors import RunFailed
from simfed.learn.accelerator import device_of
from simfed.learn.catalogue import model_facts
from simfed.learn.changes import Changes
from simfed.learn.crew import Crew
from simfed.learn.federation import Federation, draw_own, load_federation
from simfed.learn.kit import Kit
from simfed.learn.mixes import in_mix, label_counts
from simfed.learn.precision import exact_float32
from simfed.learn.training import dealt
from simfed.learn.tree import from_plain, packed, to_plain, unpacked
from simfed.levels import Level
from simfed.method import Arrival, Field, Method, State, Values, Who, Work
from simfed.scenario import Scenario
from simfed.seeding import Streams
from simfed.tasks import Tasks

__all__ = ["HostedUpload", "HostedWorkload", "ModelTest"]

_ACTIVITIES = ("training", "compression", "server", "local_losses", "evaluation")


@dataclass(eq=False, slots=True)
class HostedUpload:
    """A started participation: the contract's `Contribution`. Its work is done when it is
    needed."""

    workload: HostedWorkload
    task: Task
    arm: str
    asked: Level
    """K, or the level of energy."""
    down: Values
    """What the client was sent, as it was then."""
    own_before: State | None
    """The client's state as it began; None: it had not taken part before."""
    values: Values | None = None
    """What the server gets, decoded; None until the work is done."""
    sizes: dict[str, float] = field(default_factory=dict)
    """Bytes on the wire of the compressed fields whose size depends on the data."""
    if_lost: dict[str, Any] = field(default_factory=dict)
    """Compressed field → the memory of its codec if the upload is lost."""
    loss_before: float | None = None
    """f_n at the model that was evaluated for it as it began, where its policy learns."""
    kept: int | None = None
    """K that a level of energy came to, of the first compressed field; the others have the same."""

    @property
    def k(self) -> int:
        """Entries kept; of a level of energy, runs pending work."""
        if isinstance(self.asked, int):
            return self.asked
        if self.kept is None:
            self.workload._work()
        assert self.kept is not None
        return self.kept

    def uplink_bytes(self) -> float:
        """Bytes on the wire; under an index code whose size depends on the data, runs pending
        work."""
        return self.workload.uplink_bytes(self)


class HostedWorkload:
    """Learning by a method's own steps, with real models.

    `workers` processes share training and evaluation; results do not depend on their number. With
    `device` `cuda` everything is done on the GPU by this process alone. `data`: in place of the
    scenario's data set.

    What is modelled: what a client's state is after an upload that was lost is what it was before
    the participation, and what the upload would have changed returns to the residuals of its
    fields.
    """

    def __init__(
        self,
        scenario: Scenario,
        streams: Streams,
        *,
        workers: int = 1,
        device: str = "cpu",
        data: Federation | None = None,
    ) -> None:
        self.scenario = scenario
        self.data = data or load_federation(scenario, streams, device_of(device))
        self.method: Method = scenario.method.made
        self.version = 0
        self._streams = streams
        self._settings = ExitStack()  # the same bits whatever the caller has set
        self._settings.enter_context(exact_float32())
        threads = torch.get_num_threads()
        self._settings.callback(torch.set_num_threads, threads)
        torch.set_num_threads(1)
        shape, classes = self.data.input_shape, self.data.classes
        of_models = {
            name: model_facts(p.model, shape, classes) for name, p in scenario.prototypes.items()
        }
        self._train_flops = {name: of.train_flops for name, of in of_models.items()}
        self.tasks = Tasks(
            scenario, of_models, lambda client: len(self.data.owned[client]),
            test_samples=len(self.data.test_labels),
        )  # fmt: skip
        self.kit = Kit(scenario, streams, self.data, self.tasks.setting)
        worker = _Worker(self.method, self.kit)
        on_cpu = self.data.device.type == "cpu"
        self._crew = self._settings.enter_context(Crew(worker, workers if on_cpu else 1))
        self._policies = [
            scenario.policy_of_group(scenario.clients[group])
            for group in scenario.group_of_client()
        ]
        self._server: State = self.method.begin(self.kit)
        self._own: dict[int, State] = {}
        self._residuals: dict[tuple[int, str], Tensor] = {}
        self._memories: dict[tuple[int, str, str], Any] = {}
        self._shared_loss: dict[str, float] = {}
        self._open: dict[tuple[int, int | str], HostedUpload] = {}
        self._players: dict[str, ErrorFeedback | WithoutFeedback] = {}
        self._changes: dict[tuple[str, str], Changes] = {}
        self._weights: dict[tuple[str, str], Tensor] = {}
        self._held: dict[tuple[str, str], Tensor] = {}
        self._begin_changes()
        self._wall = dict.fromkeys(_ACTIVITIES, 0.0)

    # ---- the contract ----------------------------------------------------------------------------

    def task(self, round: int, client: int, turn: int = 0, held: int | None = None) -> Task:
        """The work of `client` in `round`."""
        return self.tasks.task(round, client, self.version, turn, held)

    def execute(self, task: Task, arm: str, k: Level) -> HostedUpload:
        """Note the client's work, with what it is sent now."""
        client = task.client
        if any(upload.task.client == client for upload in self._open.values()):
            self._work()  # its state goes on from where an earlier upload, not merged yet, left it
        down = self.method.send(self._server, task.who, task.round)
        self._check(task, "down", down, task.plan.down)
        if self.tasks.downlink_varies(task):
            sent = {name: value.numel() for name, value in down.items()}
            task = self.tasks.as_sent(task, sent, self._change_sizes(task.prototype))
        if self._changes:
            down = self._held_of(task, down)
        k = min(k, task.plan.longest) if isinstance(k, int) else k
        upload = HostedUpload(self, task, arm, k, down, self._own.get(client))
        self._open[client, task.key] = upload
        return upload

    def uplink_bytes(self, upload: HostedUpload) -> float:
        """Size of an upload on the wire."""
        known = self.tasks.uplink_bytes(upload.task, upload.arm, upload.asked)
        if known is not None:
            return known
        self._work()
        total = 0.0
        for name, of_plan in upload.task.plan.up.items():
            size = self.tasks.field_bytes(upload.task, of_plan, upload.arm, upload.k)
            if of_plan.bounded:
                assert upload.values is not None
                size = of_plan.value_bytes * upload.values[name].numel()
            elif size is None:
                size = upload.sizes[name]
            total += size
        return total

    def server_work(self, round: int, contributions: Sequence[Contribution]) -> Sequence[Work]:
        """What the method says."""
        return self.tasks.server_work([c.task.who for c in contributions], round)

    def merge(
        self, round: int, contributions: Sequence[Contribution], weights: Sequence[float] = ()
    ) -> Outcome:
        """What the method makes of the arrivals; then losses and the evaluation that is due."""
        self._work()
        counted = zip(contributions, weights or [1.0] * len(contributions), strict=True)
        weighed = sorted(
            ((self._own_upload(c), weight) for c, weight in counted),
            key=lambda of: of[0].task.order,
        )
        uploads = [upload for upload, _ in weighed]
        for upload in uploads:
            del self._open[upload.task.client, upload.task.key]
        losses: dict[str, dict[str, float]] = {}
        before = dict(self._shared_loss)
        if uploads:
            arrivals = [
                Arrival(u.task.who, round - u.task.round, u.values or {}, weight)
                for u, weight in weighed
            ]
            with self._spending("server"):
                self._server, found = self.method.merge(self.kit, self._server, arrivals, round)
            losses = {name: dict(of) for name, of in found.items()}
            self._check_losses(losses, round)
            self.version += 1
            self._send_down(round)
        shared = {
            name: of[self.method.shared_loss]
            for name, of in losses.items()
            if self.method.shared_loss in of
        }
        self._shared_loss |= shared
        evaluation, clients = self._evaluated(round)
        return Outcome(
            round=round,
            model_version=self.version,
            losses=losses,
            shared_loss=shared,
            shared_loss_before=before,
            local_loss=self._local_losses(uploads),
            evaluation=evaluation,
            clients=clients,
        )

    def discard(self, contribution: Contribution) -> None:
        """The upload was lost: what it carried returns to the client, its state is as before."""
        self._work()
        upload = self._own_upload(contribution)
        client = upload.task.client
        assert upload.values is not None
        for name, memory in upload.if_lost.items():
            rest = self._residuals.get((client, name))
            # what keeps its own error has it in its memory
            if rest is not None and isinstance(self._player(upload.arm), ErrorFeedback):
                lost = upload.values[name].reshape(-1)
                # Where nothing came since, the value itself: 0.0 + -0.0 would lose its sign.
                rest.copy_(torch.where((rest == 0) & (lost != 0), lost, rest + lost))
            self._memories[client, name, upload.arm] = memory
        of_client = [u for u in self._open.values() if u.task.client == client]
        later = of_client[of_client.index(upload) + 1 :]
        if later:  # that one began from what this one left: it stands, and would go back further
            later[0].own_before = upload.own_before
        elif upload.own_before is None:
            self._own.pop(client, None)
        else:
            self._own[client] = upload.own_before
        del self._open[client, upload.task.key]

    def timings(self) -> dict[str, float]:
        """Host seconds by activity."""
        return dict(self._wall)

    def close(self) -> None:
        """End worker processes; safe to call twice."""
        self._settings.close()

    def contribution(self, task: Task) -> HostedUpload:
        """The upload of a task that is under way: what a resumed run goes on with."""
        return self._open[task.client, task.key]

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """All that a resumed run needs. Pending work is done first."""
        self._work()
        arrays: dict[str, Any] = {}
        own = {str(client): state for client, state in sorted(self._own.items())}
        rests = {f"{c}:{name}": rest for (c, name), rest in sorted(self._residuals.items())}
        plain = {
            "version": self.version,
            "shared_loss": self._shared_loss,
            "memories": [
                [*key, to_plain(memory, f"memories/{'/'.join(map(str, key))}", arrays)]
                for key, memory in sorted(self._memories.items(), key=lambda of: of[0])
            ],
            "server": to_plain(self._server, "server", arrays),
            "own": to_plain(own, "own", arrays),
            "residuals": to_plain(rests, "residuals", arrays),
            "open": [_plain_upload(upload, arrays) for upload in self._open.values()],
            "changes": [
                [*key, *of.plain(f"changes/{'/'.join(key)}", arrays)]
                for key, of in self._changes.items()
            ],
            "held": [
                [*key, to_plain(of, f"held/{'/'.join(key)}", arrays)]
                for key, of in self._held.items()
            ],
        }
        return plain, arrays

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Inverse of `state`, on a workload of the same scenario; what it did before is
        forgotten."""

        def tree(plain: Any) -> Any:
            return from_plain(plain, arrays, self.data.device)

        self._open.clear()
        self._residuals.clear()
        self.version = int(facts["version"])
        self._shared_loss = dict(facts["shared_loss"])
        self._memories = {
            (c, name, arm): tree(memory) for c, name, arm, memory in facts["memories"]
        }
        self._server = tree(facts["server"])
        self._own = {int(client): state for client, state in tree(facts["own"]).items()}
        for key, rest in tree(facts["residuals"]).items():
            client, _, name = key.partition(":")
            self._residuals[int(client), name] = rest
        for prototype, name, sizes, memory in facts.get("changes", ()):
            self._changes[prototype, name].restore(sizes, tree(memory))
        for prototype, name, held in facts.get("held", ()):
            self._held[prototype, name] = tree(held)
        self._note_weights(self.version + 1)
        for plain in facts["open"]:
            *of_task, downlink_bytes = plain["task"]
            task = self.tasks.task(*of_task)
            if self.tasks.changes_vary(task):
                task = self.tasks.as_sent(task, None, self._change_sizes(task.prototype))
            task = task._replace(downlink_bytes=downlink_bytes)
            self._open[task.client, task.key] = HostedUpload(
                self, task, plain["arm"], plain["k"], {}, tree(plain["own_before"]),
                tree(plain["values"]), plain["sizes"], tree(plain["if_lost"]), plain["loss_before"],
                plain["kept"],
            )  # fmt: skip

    # ---- clients ---------------------------------------------------------------------------------

    def _work(self) -> None:
        """Train all who are pending, and compress what they send."""
        pending = [upload for upload in self._open.values() if upload.values is None]
        if not pending:
            return
        with self._spending("local_losses"):
            self._measure_before(pending)
        with self._spending("training"):
            results = self._train(pending)
        with self._spending("compression"):
            for upload, (values, own) in zip(pending, results, strict=True):
                self._check(upload.task, "up", values, upload.task.plan.up)
                upload.values = self._decoded(upload, values)
                upload.down = {}
                self._own[upload.task.client] = self.method.sent(own, upload.values)

    def _train(self, pending: Sequence[HostedUpload]) -> list[tuple[Values, State]]:
        """What `Method.train` answers for each; those who may be trained together are."""
        alike: dict[str, list[HostedUpload]] = {}
        for upload in sorted(pending, key=lambda of: -self.tasks.setting.steps(of.task.who)):
            alike.setdefault(upload.task.prototype, []).append(upload)
        groups: list[list[HostedUpload]] = []
        for name, mine in alike.items():
            most = self.kit.together(name) if _steps_locally(self.method) else 1
            setting = self.tasks.setting
            steps = sum(setting.steps(upload.task.who) for upload in mine)
            flops = self._train_flops[name] * setting.batch_size * steps
            groups += dealt(mine, most, self._crew.parts(flops, len(alike)))
        units = [
            _Training([(u.task.who, u.task.round, u.down, u.own_before) for u in group])
            for group in groups
        ]
        found: dict[HostedUpload, tuple[Values, State]] = {}
        for group, results in zip(groups, self._run(units), strict=True):
            found |= zip(group, results, strict=True)
        return [found[upload] for upload in pending]

    def _decoded(self, upload: HostedUpload, values: Values) -> dict[str, Tensor]:
        """What the server gets of `values`; payloads and residuals are noted."""
        found: dict[str, Tensor] = {}
        client, round = upload.task.client, upload.task.round
        for name, of_plan in upload.task.plan.up.items():
            value = values[name]
            if not bool(torch.isfinite(value).all()):
                raise RunFailed(
                    f"client {client}, round {round}: {name} has values that are not finite "
                    "numbers: the learning has diverged; a smaller training.learning_rate may help"
                )
            if not of_plan.compressed:
                found[name] = value
                continue
            if self._player(upload.arm).codec.sends_all:
                found[name] = self._whole(upload, name, value.reshape(-1), of_plan).view_as(value)
                continue
            payload = self._encoded(upload, name, value.reshape(-1), of_plan)
            found[name] = payload.dense().view_as(value)
            upload.if_lost[name] = payload.codec.undo(payload)
            if self.tasks.field_bytes(upload.task, of_plan, upload.arm, upload.k) is None:
                upload.sizes[name] = payload.wire_bytes(self.tasks.index_code)
        return found

    def _whole(self, upload: HostedUpload, name: str, value: Tensor, of_plan: Field) -> Tensor:
        """What travels where nothing is left out, as `_encoded` and decoding would have it."""
        place = upload.task.client, name
        upload.if_lost[name] = self._memories.setdefault((*place, upload.arm), None)
        kept = self._residuals.get(place)
        if not of_plan.feedback or not isinstance(self._player(upload.arm), ErrorFeedback):
            self._residuals.pop(place, None)
            whole = value.clone() if kept is None else value + kept
        elif kept is None:
            whole = value.clone()
            self._residuals[place] = torch.zeros_like(value)
        else:
            whole = kept.add_(value).clone()
            kept.zero_()
        self._entries(upload, whole)
        return whole

    def _encoded(self, upload: HostedUpload, name: str, value: Tensor, of_plan: Field) -> Payload:
        """What travels of a compressed field; with error feedback, the rest stays."""
        task, arm = upload.task, upload.arm
        place, key = (task.client, name), (task.client, name, arm)
        is_update = name == "update"
        player = self._player(arm)
        draws = None
        if player.codec.draws:
            draws = self._streams(arm, task.client, task.key, *([] if is_update else [name]))
        layout = task.who.size.shapes if is_update else None
        memory = self._memories.get(key)
        kept = self._residuals.get(place)
        if not of_plan.feedback or not isinstance(player, ErrorFeedback):
            # what an arm with feedback left behind is not lost when one without is played
            whole = value if kept is None else value + kept
            self._residuals.pop(place, None)
            k = self._entries(upload, whole)
            payload, _ = player.codec.encode(whole, memory, draws, k, layout=layout)
        else:
            whole = value.clone() if kept is None else kept.add_(value)
            k = self._entries(upload, whole)
            payload = player.encode_in_place(None, whole, k, draws, state=memory, layout=layout)
            self._residuals[place] = whole
        self._memories[key] = payload.state
        return payload

    def _entries(self, upload: HostedUpload, whole: Tensor) -> int:
        """K of a field; what a level of energy comes to is noted."""
        if upload.kept is None and isinstance(upload.asked, str):
            upload.kept = entries_for(whole, upload.asked)
        return min(upload.k, len(whole))

    def _player(self, arm: str) -> ErrorFeedback | WithoutFeedback:
        if arm not in self._players:
            self._players[arm] = feedback_for(codec_from_spec(arm))
        return self._players[arm]

    def _measure_before(self, pending: Sequence[HostedUpload]) -> None:
        """f_n at the model that each client is evaluated with as it begins."""
        learners = [u for u in pending if self._wants_gain(u)]
        units = [self._loss_unit(u, u.own_before) for u in learners]
        for upload, loss in zip(learners, self._run(units), strict=True):
            upload.loss_before = loss

    def _local_losses(self, uploads: Sequence[HostedUpload]) -> dict[str, tuple[float, float]]:
        """f_n before and after, of those whose policies learn from it."""
        learners = [u for u in uploads if u.loss_before is not None]
        with self._spending("local_losses"):
            after = self._run([self._loss_unit(u, self._own[u.task.client]) for u in learners])
        return {
            u.task.label: (u.loss_before, loss)
            for u, loss in zip(learners, after, strict=True)
            if u.loss_before is not None
        }

    def _wants_gain(self, upload: HostedUpload) -> bool:
        if self.scenario.participation.selection.needs_losses:
            return True
        return bool(upload.task.plan.longest) and self._policies[upload.task.client].learns

    def _loss_unit(self, upload: HostedUpload, own: State | None) -> _MeasureLoss:
        who = upload.task.who
        if own is None:
            own = self.method.begin_client(self.kit, who)
        local = self._policies[who.client].reward.local_loss
        owned, training = self.data.owned[who.client], self.scenario.training
        positions = draw_own(self._streams, local, who.client, upload.task.key, owned, training)
        return _MeasureLoss(who.prototype, self._model_of(upload, own), positions)

    def _model_of(self, upload: HostedUpload, own: State) -> Values:
        """The model that a client's loss is measured at."""
        who = upload.task.who
        model = self.method.model(self._server, own, who)
        if not self.method.personal and (who.prototype, "weights") in self._held:
            model = {**model, "weights": self._held[who.prototype, "weights"]}
        return model

    # ---- what travels down as changes ------------------------------------------------------------

    def _begin_changes(self) -> None:
        """Everybody is sent the first models whole."""
        if self.scenario.downlink.compression is None:
            return
        self._note_weights(1)
        for key, weights in self._weights.items():
            who = self.tasks.first_of(key[0])
            of_plan = self.tasks.task(1, who.client, 0).plan.down[key[1]]
            self._changes[key] = Changes(self.scenario, self.tasks, who, of_plan)
            self._held[key] = weights.clone()

    def _note_weights(self, round: int) -> None:
        """The weights that clients of each prototype are to have in `round`."""
        if self.scenario.downlink.compression is None:
            return
        round = min(round, self.scenario.rounds)
        for prototype in self.scenario.prototypes:
            who = self.tasks.first_of(prototype)
            planned = self.tasks.task(round, who.client, self.version).plan.down
            sent = self.method.send(self._server, who, round)
            for name, of_plan in planned.items():
                if of_plan.kind == "weights":
                    self._weights[prototype, name] = sent[name]

    def _send_down(self, round: int) -> None:
        """Clients hold from now on what the next change makes of theirs."""
        self._note_weights(round + 1)
        for key, changes in self._changes.items():
            draws = self._streams("downlink", *key, self.version)
            sent = changes.next(self._weights[key].reshape(-1), self._held[key].reshape(-1), draws)
            self._held[key] = self._held[key] + sent.view_as(self._held[key])

    def _held_of(self, task: Task, down: Values) -> Values:
        """What a client has of `down` once changes have arrived."""
        found = dict(down)
        for name in down:
            key = task.prototype, name
            if key not in self._held:
                continue
            if down[name] is not self._weights[key] and not torch.equal(
                down[name], self._weights[key]
            ):
                raise RunFailed(
                    f"method {self.scenario.method.kind} sends {name} that differ between the "
                    f"clients of {task.prototype}, of which downlink.compression knows one"
                )
            found[name] = self._held[key]
        return found

    def _changes_of(self, prototype: str) -> dict[str, Changes]:
        """By field of weights."""
        return {name: of for (of_it, name), of in self._changes.items() if of_it == prototype}

    def _change_sizes(self, prototype: str) -> dict[str, list[float]]:
        """Bytes of each change so far, where they depend on what is learned."""
        return {name: of.sizes for name, of in self._changes_of(prototype).items()}

    # ---- the server ------------------------------------------------------------------------------

    def _evaluated(self, round: int) -> tuple[dict[str, Evaluation], dict[int, PersonalEvaluation]]:
        due = self.scenario.evaluation.due(round, self.scenario.rounds)
        if not due or not len(self.data.test_labels):
            return {}, {}
        with self._spending("evaluation"):
            if self.method.personal:
                clients = self._evaluate_clients()
                return self._means(clients), clients
            tested = self._test_prototypes()
            return self._of_prototypes(tested), self._of_clients(tested)

    def _test_prototypes(self) -> dict[str, Tensor]:
        one_of: dict[str, Who] = {}
        for client in range(len(self.data.owned)):
            who = self.tasks.who(client)
            one_of.setdefault(who.prototype, who)
            if len(one_of) == len(self.scenario.prototypes):
                break
        method, server = self.method, self._server
        units = [ModelTest(name, method.model(server, {}, w)) for name, w in one_of.items()]
        return dict(zip(one_of, self._run(units), strict=True))

    def _of_prototypes(self, tested: Mapping[str, Tensor]) -> dict[str, Evaluation]:
        found = {}
        for name in self.scenario.prototypes:
            samples, right, losses = (float(row.sum()) for row in tested[name])
            found[name] = Evaluation(right / samples, losses / samples)
        return found

    def _of_clients(self, tested: Mapping[str, Tensor]) -> dict[int, PersonalEvaluation]:
        if not self.scenario.evaluation.clients:
            return {}
        return {
            client: in_mix(
                tested[self.tasks.who(client).prototype], label_counts(self.data, client)
            )
            for client in range(len(self.data.owned))
        }

    def _evaluate_clients(self) -> dict[int, PersonalEvaluation]:
        known = [self.tasks.who(client) for client in sorted(self._own)]
        units = [
            ModelTest(w.prototype, self.method.model(self._server, self._own[w.client], w))
            for w in known
        ]
        return {
            who.client: in_mix(found, label_counts(self.data, who.client))
            for who, found in zip(known, self._run(units), strict=True)
        }

    def _means(self, clients: Mapping[int, PersonalEvaluation]) -> dict[str, Evaluation]:
        """Per prototype, over those of its clients that have a model."""
        found = {}
        for name in self.scenario.prototypes:
            mine = [
                of for client, of in clients.items() if self.tasks.who(client).prototype == name
            ]
            if mine:
                accuracy = math.fsum(of.accuracy for of in mine) / len(mine)
                found[name] = Evaluation(accuracy, math.fsum(of.loss for of in mine) / len(mine))
        return found

    # ---- checks and accounts ---------------------------------------------------------------------

    def _check(self, task: Task, way: str, values: Values, planned: Mapping[str, Any]) -> None:
        """What is sent must be what the plan says: the clock has charged for that."""
        where = f"method {self.scenario.method.kind}, client {task.client}, round {task.round}"
        if set(values) != set(planned):
            raise RunFailed(
                f"{where}: fields {', '.join(planned) or 'none'} travel {way} by its plan, "
                f"got {', '.join(values) or 'none'}"
            )
        for name, of_plan in planned.items():
            got = getattr(values[name], "numel", lambda name=name: type(values[name]))()
            fits = got == of_plan.entries or (of_plan.bounded and got <= of_plan.entries)
            if not isinstance(values[name], Tensor) or not fits:
                most = "at most " if of_plan.bounded else ""
                raise RunFailed(
                    f"{where}: field {name!r} has {most}{of_plan.entries} entries by its plan, "
                    f"got {got}"
                )

    def _check_losses(self, losses: Mapping[str, Mapping[str, float]], round: int) -> None:
        for prototype, of in losses.items():
            for name, value in of.items():
                if name not in self.method.losses and name != "kd_loss":
                    raise RunFailed(
                        f"method {self.scenario.method.kind}: measures a loss {name!r} that it "
                        "does not name in `losses`"
                    )
                if not math.isfinite(value):
                    raise RunFailed(
                        f"{name} of {prototype} is {value} in round {round}: the learning has "
                        "diverged"
                    )

    def _own_upload(self, contribution: Contribution) -> HostedUpload:
        upload = self._open.get((contribution.task.client, contribution.task.key))
        if upload is not contribution:
            raise ValueError(
                f"a contribution that is under way, got that of client {contribution.task.client}"
            )
        return upload

    def _run(self, units: Sequence[Any]) -> list[Any]:
        """What the units come to, in order; with several processes they travel as NumPy arrays."""
        if self._crew.workers == 1 or len(units) < 2:
            return [self._crew.subject.answer(unit) for unit in units]
        costs = [self._cost(unit) for unit in units]
        found = self._crew.map("run", [packed_unit(unit) for unit in units], costs)
        return [unpacked(result, self.data.device) for result in found]

    def _cost(self, unit: Any) -> float:
        if isinstance(unit, _Training):
            return float(sum(self.tasks.setting.steps(who) for who, *_ in unit.participations))
        return 0.0

    @contextmanager
    def _spending(self, activity: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._wall[activity] += time.perf_counter() - begun


# ---- units of work, which any process may run ----------------------------------------------------


class _Training(NamedTuple):
    participations: Sequence[tuple[Who, int, Values, State | None]]
    """Of clients of one prototype: who, round, what was sent, the client's state."""


class _MeasureLoss(NamedTuple):
    prototype: str
    model: Values
    positions: Any


class ModelTest(NamedTuple):
    prototype: str
    model: Values


class _Worker:
    """What a process needs to run units. Built before processes are forked."""

    def __init__(self, method: Method, kit: Kit) -> None:
        self._method = method
        self._kit = kit

    def run(self, unit: tuple[str, Any]) -> Any:
        """The result of a unit that has come through a pipe."""
        kind, parts = unit
        return packed(self.answer(_UNITS[kind](*unpacked(list(parts), self._kit.device))))

    def answer(self, unit: Any) -> Any:
        match unit:
            case _Training(participations):
                return self._train(participations)
            case _MeasureLoss(prototype, model, positions):
                return self._kit.cross_entropy(prototype, model, positions)
            case ModelTest(prototype, model):
                return self._kit.test(prototype, model)
        raise TypeError(f"a unit of work, got {unit!r}")

    def _train(
        self, participations: Sequence[tuple[Who, int, Values, State | None]]
    ) -> list[tuple[Values, State]]:
        method, kit = self._method, self._kit
        known = [
            (who, round, down, method.begin_client(kit, who) if own is None else own)
            for who, round, down, own in participations
        ]
        if len(known) == 1 or not _steps_locally(method):
            return [method.train(kit, *of) for of in known]
        models = kit.descend_each([(of[0], of[1], method.local_steps(kit, *of)) for of in known])
        return [
            method.trained(kit, *of, after) for of, (after, _) in zip(known, models, strict=True)
        ]


def _steps_locally(method: Method) -> bool:
    """Whether a participation's training is `local_steps` and nothing else."""
    return type(method).train is Method.train


_UNITS: dict[str, Any] = {kind.__name__: kind for kind in (_Training, _MeasureLoss, ModelTest)}


def packed_unit(unit: Any) -> tuple[str, Any]:
    return type(unit).__name__, packed(tuple(unit))


def _plain_upload(upload: HostedUpload, arrays: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint keeps of an upload under way."""
    name = f"open/{upload.task.client}/{upload.task.key}"
    return {
        "task": [*upload.task.arguments, upload.task.downlink_bytes],
        "arm": upload.arm,
        "k": upload.asked,
        "kept": upload.kept,
        "loss_before": upload.loss_before,
        "own_before": to_plain(upload.own_before, f"{name}/own", arrays),
        "values": to_plain(upload.values, f"{name}/values", arrays),
        "sizes": upload.sizes,
        "if_lost": to_plain(upload.if_lost, f"{name}/if-lost", arrays),
    }
