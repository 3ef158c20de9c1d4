"""The learning side of every method: `Workload`, from a method's steps.

The host does what is the same for all: it trains lazily and in many processes, compresses fields
that say so and keeps what was left out, counts bytes, undoes lost uploads and rounds that are
rejected, keeps the states of those clients alone that have taken part, measures gains, evaluates,
and saves. The method says the rest (`simfed.ground.method`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from simfed.compress.choice import Choice
from simfed.compress.vectors import beside
from simfed.fleet.tasks import Tasks, k_of
from simfed.ground.contract import Contribution, Evaluation, Outcome, PersonalEvaluation, Task
from simfed.ground.errors import RunFailed
from simfed.ground.method import Arrival, Field, Method, State, Values, Who, Work
from simfed.ground.seeding import Streams
from simfed.learn.accelerator import device_of, kit_on
from simfed.learn.catalogue import model_facts
from simfed.learn.changes import Changes
from simfed.learn.crew import Crew, worth_sharing
from simfed.learn.federation import Federation, load_federation, prototype_clients
from simfed.learn.kit import Kit
from simfed.learn.memory import Arena
from simfed.learn.mixes import in_mix, own_mix
from simfed.learn.precision import exact_float32, same_algorithms
from simfed.learn.shelf import Shelf
from simfed.learn.training import dealt
from simfed.learn.tree import from_plain, to_plain
from simfed.learn.uploads import Encoder, Received, Residuals, as_received, require_finite
from simfed.scenario import Scenario
from simfed.scenario.policy import LocalLoss

__all__ = ["HostedUpload", "HostedWorkload", "Units"]

_ACTIVITIES = {
    "train": "training",
    "public_logits": "logits",
    "distil_part": "distillation",
    "own_losses": "local_losses",
    "test": "evaluation",
}
"""Unit of work → what its time is spent on; compression is told apart from training."""

_COMPRESSION_FLOPS = 100
"""FLOPs that take as long as compression does for each parameter."""

_NO_LOSS = 1e-12
"""A shared loss up to here is rounding: one client's model is its own teacher."""


@dataclass(eq=False, slots=True)
class HostedUpload:
    """A started participation: the contract's `Contribution`. Its work is done when it is
    needed."""

    workload: HostedWorkload
    task: Task
    choice: Choice
    down: Values
    """What the client was sent, as it was then."""
    own_before: State | None
    """The client's state as it began; None: it had not taken part before."""
    values: Received | None = None
    """What the server gets; None until the work is done."""
    sizes: Mapping[str, float] = field(default_factory=dict)
    """Bytes on the wire of the compressed fields whose size depends on the data."""
    if_lost: Mapping[str, Any] = field(default_factory=dict)
    """Compressed field → the memory of its codec if the upload is lost."""
    loss_before: float | None = None
    """f_n at the model that was evaluated for it as it began, where its policy learns."""
    loss_after: float | None = None
    """The same after its merge; where credit goes as printed, at its next participation."""
    kept: int | None = None
    """K that a level of energy came to, of the first compressed field; the others have the same."""

    @property
    def k(self) -> int:
        """Entries kept; of a level of energy, runs pending work."""
        asked = k_of(self.task.plan, self.choice)
        if isinstance(asked, int):
            return asked
        if self.kept is None:
            self.workload._work()
        assert self.kept is not None
        return self.kept

    @property
    def sent(self) -> Choice:
        """With the K that a level of energy came to; for that, runs pending work."""
        return self.choice.at(self.k) if isinstance(self.choice.level, str) else self.choice

    def uplink_bytes(self) -> float:
        """Bytes on the wire; under an index code whose size depends on the data, runs pending
        work."""
        return self.workload.uplink_bytes(self)


class HostedWorkload:
    """Learning by a method's own steps, with real models.

    `workers` processes share the work; results do not depend on their number. With `device` `cuda`
    everything is done on the GPU by this process alone. `learns` says whether a policy learns from
    rewards, in which case local losses are computed. `data`: in place of the scenario's data set.

    Work is lazy: `execute` notes what is to be done; it is done, for all clients at once, when a
    merge, a loss of an upload, a saved state or a size that depends on the data needs it. A merge
    changes weights, so everything pending is computed before it.

    What is modelled: what a client's state is after an upload that was lost is what it was before
    the participation, and what the upload would have changed returns to the residuals of its
    fields. A round that the safeguard rejects leaves the server as it was; what becomes of its
    clients' residuals, the scenario says.
    """

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
        self.method: Method = scenario.method.made
        self.version = 0
        self._streams = streams
        self._settings = ExitStack()  # the same bits whatever the caller has set
        self._settings.enter_context(exact_float32())
        if place.type != "cpu":
            self._settings.enter_context(same_algorithms())
        threads = torch.get_num_threads()
        self._settings.callback(torch.set_num_threads, threads)
        torch.set_num_threads(1)  # processes share the work, threads would only wait for each other
        shape, classes = self.data.input_shape, self.data.classes
        self._facts = {
            name: model_facts(p.model, shape, classes) for name, p in scenario.prototypes.items()
        }
        self.tasks = Tasks(
            scenario, self._facts, lambda client: len(self.data.owned[client]),
            test_samples=len(self.data.test_labels),
        )  # fmt: skip
        workers = workers if self.data.device.type == "cpu" else 1
        arena = Arena(shared=workers > 1, device=self.data.device)
        clients = prototype_clients(scenario) if workers > 1 else None
        self._residuals = Residuals(arena, self.tasks, clients)
        kit_class = kit_on(self.data.device)
        self.kit = kit_class(scenario, streams, self.data, self.tasks.setting, arena)
        self._encoder = Encoder(streams, self.tasks, self._residuals)
        shelf = Shelf(arena, self._rooms(workers))
        self._worker = _Worker(self.method, self.kit, self._encoder, shelf)
        self._crew = self._settings.enter_context(Crew(self._worker, workers))
        self.kit.each = self._each
        self._policies = [
            scenario.policy_of_group(scenario.clients[group])
            for group in scenario.group_of_client()
        ]
        self._learns = learns
        self._batches = 0
        self._rollbacks_in_a_row = 0
        self._accepted: list[Mapping[str, float]] = []
        """Losses of the last accepted rounds, where their median counts."""
        self._losses: dict[int, tuple[int, float]] = {}
        """Client → f_n, and the version at whose weights it was measured."""
        self._own: dict[int, State] = {}
        self._memories: dict[tuple[int, str, str], Any] = {}
        self._shared_loss: dict[str, float] = {}
        self._open: dict[tuple[int, int | str], HostedUpload] = {}
        self._changes: dict[tuple[str, str], Changes] = {}
        self._weights: dict[tuple[str, str], Tensor] = {}
        self._held: dict[tuple[str, str], Tensor] = {}
        self._wall = dict.fromkeys([*_ACTIVITIES.values(), "compression", "server"], 0.0)
        self._server: State = self.method.begin(self.kit)
        self._begin_changes()

    def _rooms(self, workers: int) -> list[int]:
        """Bytes of the shelf, for each process: several versions of every model on their way to
        the others, and as much as is likely to come back at once."""
        if workers == 1:
            return [0]
        sizes = [4 * (of.parameters + of.buffers + 1024) for of in self._facts.values()]
        back = self.tasks.setting.participants * max(sizes)
        return [8 * sum(sizes) + back] + [2 * sum(sizes) + back] * (workers - 1)

    # ---- the contract ----------------------------------------------------------------------------

    def task(self, round: int, client: int, turn: int = 0, held: int | None = None) -> Task:
        """The work of `client` in `round`."""
        return self.tasks.task(round, client, self.version, turn, held)

    def execute(self, task: Task, choice: Choice) -> HostedUpload:
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
        if isinstance(choice.level, int):
            choice = choice.at(min(choice.level, task.plan.longest))
        upload = HostedUpload(self, task, choice, down, self._own.get(client))
        self._open[client, task.key] = upload
        return upload

    def uplink_bytes(self, upload: HostedUpload) -> float:
        """Size of an upload on the wire."""
        known = self.tasks.uplink_bytes(upload.task, upload.choice)
        if known is not None:
            return known
        self._work()
        total = 0.0
        for name, of_plan in upload.task.plan.up.items():
            size = self.tasks.field_bytes(upload.task, of_plan, upload.sent.of_field(name))
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
        """What the method makes of the arrivals, unless the safeguard rejects it; then losses and
        the evaluation that is due."""
        self._work()
        counted = zip(contributions, weights or [1.0] * len(contributions), strict=True)
        weighed = sorted(
            ((self._own_upload(c), weight) for c, weight in counted),
            key=lambda of: of[0].task.order,
        )
        uploads = [upload for upload, _ in weighed]
        for upload in uploads:
            del self._open[upload.task.client, upload.task.key]
        if not uploads:
            evaluation, clients = self._evaluated(round, self._run(*self._tests(round)))
            return Outcome(
                round, self.version, shared_loss_before=dict(self._shared_loss),
                evaluation=evaluation, clients=clients,
            )  # fmt: skip
        before = self._before()
        arrivals = [
            Arrival(u.task.who, round - u.task.round, u.values or {}, weight)
            for u, weight in weighed
        ]
        known = self._server, dict(self._held)
        losses = self._merged(arrivals, round)
        after = {
            name: of[self.method.shared_loss]
            for name, of in losses.items()
            if self.method.shared_loss in of
        }
        rejected = self._rejects(before, after)
        try:
            self._send_down(round, self.version + 1)
        except RunFailed:
            if not rejected:  # a model that is not finite is undone like any other bad one
                raise
        if not rejected:
            self._check_losses(losses, round)
        measured = self._gains(uploads)
        tests = self._tests(round) if not rejected else ([], [])
        results = self._run([*measured[0], *tests[0]], [*measured[1], *tests[1]])
        local = self._local_losses(uploads, results[: len(measured[0])], rejected)
        if rejected:
            self._server, self._held = known
            self._note_weights(round + 1)
            for changes in self._changes.values():
                changes.undo()
            for upload in uploads:
                self._undo(upload)
            self._rollbacks_in_a_row += 1
            tests = self._tests(round)
            tested = self._run(*tests)
        else:
            self.version += 1
            for changes in self._changes.values():
                changes.keep()
            self._rollbacks_in_a_row = 0
            self._accept(before, after)
            tested = results[len(measured[0]) :]
        evaluation, clients = self._evaluated(round, tested)
        return Outcome(
            round=round,
            model_version=self.version,
            rolled_back=rejected,
            forced_arm=self.scenario.safeguard.forced if rejected else None,
            losses=losses,
            shared_loss=after,
            shared_loss_before=before,
            local_loss=local,
            evaluation=evaluation,
            clients=clients,
        )

    def discard(self, contribution: Contribution) -> None:
        """The upload was lost: what it carried returns to the client, its state is as before."""
        upload = self._own_upload(contribution)
        if upload.values is None:
            self._work()
        self._take_back(upload)
        del self._open[upload.task.client, upload.task.key]

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
        rests = {
            f"{client}:{name}": self._residuals.known(self.tasks.who(client), name)
            for client, name in sorted(self._residuals.used)
        }
        plain = {
            "version": self.version,
            "shared_loss": self._shared_loss,
            "rollbacks_in_a_row": self._rollbacks_in_a_row,
            "accepted": self._accepted,
            "losses": [[client, *known] for client, known in sorted(self._losses.items())],
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
        self._residuals.clear(self.tasks)
        self.version = int(facts["version"])
        self._shared_loss = dict(facts["shared_loss"])
        self._rollbacks_in_a_row = int(facts["rollbacks_in_a_row"])
        self._accepted = list(facts["accepted"])
        self._losses = {client: (version, loss) for client, version, loss in facts["losses"]}
        self._memories = {
            (c, name, arm): tree(memory) for c, name, arm, memory in facts["memories"]
        }
        self._server = tree(facts["server"])
        self._own = {int(client): state for client, state in tree(facts["own"]).items()}
        for key, rest in tree(facts["residuals"]).items():
            client, _, name = key.partition(":")
            self._residuals.used.add((int(client), name))
            who = self.tasks.who(int(client))
            self._residuals.row(who, name, len(rest)).copy_(rest)
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
            values = {name: as_received(of) for name, of in tree(plain["values"]).items()}
            loss_before, loss_after = plain["losses"]
            self._open[task.client, task.key] = HostedUpload(
                self, task, Choice.of(plain["choice"]), {}, tree(plain["own_before"]),
                Received(values), plain["sizes"], tree(plain["if_lost"]), loss_before,
                loss_after, plain["kept"],
            )  # fmt: skip

    # ---- clients ---------------------------------------------------------------------------------

    def _work(self) -> None:
        """Train all who are pending, and compress what they send."""
        pending = [upload for upload in self._open.values() if upload.values is None]
        if not pending:
            return
        gaining = [upload for upload in pending if self._wants_gain(upload)]
        measured = [upload for upload in gaining if not self._has_loss(upload)]
        groups = self._groups(pending)
        losses = self._loss_units([(u, u.own_before) for u in measured])
        trainings = [("train", ([self._participation(u) for u in group],)) for group in groups]
        results = self._run(
            [*trainings, *losses[0]], [*(self._training_flops(of) for of in groups), *losses[1]]
        )
        lost = self._losses_of(measured, results[len(groups) :])
        self._finish(groups, results[: len(groups)])
        for upload in gaining:
            self._note_loss(upload, lost.get(upload))

    def _finish(self, groups: Sequence[Sequence[HostedUpload]], results: Sequence[Any]) -> None:
        """Note what came of trainings; compress here what no other process could."""
        made = {u: of for group, of_all in zip(groups, results, strict=True)
                for u, of in zip(group, of_all, strict=True)}  # fmt: skip
        losses = [of.loss for of in made.values() if of.loss is not None]
        values = iter(torch.stack(losses).tolist() if losses else [])
        for upload, done in made.items():
            if done.loss is not None:
                _check_finite(upload.task.client, upload.task.round, next(values))
        for upload in [u for u in self._open.values() if u in made]:  # in order of their start
            done = made[upload]
            if not done.encoded:
                begun = time.perf_counter()
                done = self._worker.encoded(self._participation(upload), done)
                self._wall["compression"] += time.perf_counter() - begun
            self._note(upload, done)

    def _note(self, upload: HostedUpload, done: _Done) -> None:
        task = upload.task
        values = {name: as_received(value) for name, value in done.values.items()}
        upload.values, upload.down = Received(values), {}
        upload.sizes, upload.if_lost, upload.kept = done.sizes, done.if_lost, done.k
        for name, memory in done.memories.items():
            choice = upload.choice.of_field(name)
            self._memories[task.client, name, choice.strategy] = memory
            if self._encoder.leaves_rest(choice, task.plan.up[name]):
                self._residuals.used.add((task.client, name))
        self._own[task.client] = done.own

    def _participation(self, upload: HostedUpload) -> _Participation:
        task = upload.task
        compressed = task.plan.compressed
        memories = {
            name: self._memories.get((task.client, name, upload.choice.of_field(name).strategy))
            for name in compressed
        }
        used = self._residuals.used
        return _Participation(
            client=task.client,
            turn=task.who.turn,
            prototype=task.prototype,
            round=task.round,
            down=upload.down,
            own=upload.own_before,
            choice=upload.choice.label,
            memories=memories,
            rests=frozenset(name for name in compressed if (task.client, name) in used),
            encodes=self._residuals.reach(task.who, compressed),
        )

    def _groups(self, pending: Sequence[HostedUpload]) -> list[list[HostedUpload]]:
        """Who is trained with whom: clients of a prototype together as far as that is faster."""
        alike: dict[str, list[HostedUpload]] = {}
        for upload in sorted(pending, key=lambda of: -self.tasks.setting.steps(of.task.who)):
            alike.setdefault(upload.task.prototype, []).append(upload)
        groups: list[list[HostedUpload]] = []
        for name, mine in alike.items():
            most = self._together(name)
            parts = self._crew.parts(self._training_flops(mine), len(alike))
            groups += dealt(mine, most, parts)
        return groups

    def _training_flops(self, uploads: Sequence[HostedUpload]) -> float:
        """Roughly: enough to balance the processes."""
        facts, setting = self._facts[uploads[0].task.prototype], self.tasks.setting
        steps = sum(setting.steps(upload.task.who) for upload in uploads)
        flops = facts.train_flops * setting.batch_size * steps
        return float(flops + _COMPRESSION_FLOPS * facts.parameters * len(uploads))

    def _take_back(self, upload: HostedUpload, share: float = 1.0) -> None:
        """What was sent returns to the residuals, or a share of it; codecs forget the play, and
        the client's state is as before it took part."""
        task, client = upload.task, upload.task.client
        assert upload.values is not None
        for name, memory in upload.if_lost.items():
            value, choice = upload.values.change(name), upload.choice.of_field(name)
            self._encoder.take_back(task.who, choice, name, task.plan.up[name], value, share)
            self._memories[client, name, choice.strategy] = memory
        of_client = [u for u in self._open.values() if u.task.client == client]
        later = of_client[of_client.index(upload) + 1 :] if upload in of_client else of_client
        if later:  # that one began from what this one left: it would go back further
            later[0].own_before = upload.own_before
        if later and later[0].values is not None:
            pass  # and it stands
        elif upload.own_before is None:
            self._own.pop(client, None)
        else:
            self._own[client] = upload.own_before

    # ---- losses and the safeguard ----------------------------------------------------------------

    def _wants_gain(self, upload: HostedUpload) -> bool:
        """Whether somebody learns from the client's own loss before and after the merge."""
        if not self._learns:
            return False
        if self.scenario.participation.selection.needs_losses:
            return True
        return self._policies[upload.task.client].learns and bool(upload.task.plan.longest)

    def _has_loss(self, upload: HostedUpload) -> bool:
        """Whether that before is known."""
        known = self._losses.get(upload.task.client)
        return known is not None and known[0] == self.version and self._lasts(upload)

    def _lasts(self, upload: HostedUpload) -> bool:
        """Whether a loss holds for as long as the model is the same: a batch is another one every
        round, and a model of the client's own has no version."""
        return not self.method.personal and self._local_loss(upload).data != "batch"

    def _local_loss(self, upload: HostedUpload) -> LocalLoss:
        return self._policies[upload.task.client].reward.local_loss

    def _note_loss(self, upload: HostedUpload, now: float | None) -> None:
        """f_n at the weights as they are, unless it is known: what is compared with it, and
        when."""
        client, known = upload.task.client, self._losses.get(upload.task.client)
        if now is None:
            assert known is not None
            now = known[1]
        printed = self._local_loss(upload).credit == "as-printed"
        before = known[1] if known is not None else now
        upload.loss_before, upload.loss_after = (before, now) if printed else (now, None)
        if printed or self._lasts(upload):
            self._losses[client] = (self.version, now)

    def _gains(self, uploads: Sequence[HostedUpload]) -> Units:
        """What measures f_n after a merge."""
        return self._loss_units([(u, self._own[u.task.client]) for u in _waiting(uploads)])

    def _local_losses(
        self, uploads: Sequence[HostedUpload], results: Sequence[Any], rejected: bool
    ) -> dict[str, tuple[float, float]]:
        """f_n before and after, of those for whom somebody wants to know, by the task's label."""
        for upload, loss in self._losses_of(_waiting(uploads), results).items():
            upload.loss_after = loss
        for upload in uploads:
            causal = self._local_loss(upload).credit == "causal"
            if not rejected and causal and upload.loss_after is not None and self._lasts(upload):
                # after an accepted merge it is the next participation's loss before
                self._losses[upload.task.client] = (self.version + 1, upload.loss_after)
        return {
            u.task.label: (u.loss_before, u.loss_after)
            for u in uploads
            if u.loss_before is not None and u.loss_after is not None
        }

    def _loss_units(self, of_uploads: Sequence[tuple[HostedUpload, State | None]]) -> Units:
        """What measures f_n of uploads' clients, each at the model that is evaluated for it in
        this state of its own; in the order of `_in_units`."""
        own_of, units, costs = dict(of_uploads), [], []
        for group in self._in_units([upload for upload, _ in of_uploads]):
            first, own = group[0], own_of[group[0]]
            if own is None:
                own = self.method.begin_client(self.kit, first.task.who)
            name, whos = first.task.prototype, [(u.task.client, u.task.key) for u in group]
            units.append(("own_losses", (name, self._model_of(first, own), whos)))
            samples = sum(len(self.kit.own_samples(*who)) for who in whos)
            costs.append(float(self._facts[name].forward_flops * samples))
        return units, costs

    def _in_units(self, uploads: Sequence[HostedUpload]) -> list[list[HostedUpload]]:
        """Clients of a prototype have one model to be measured at, unless they have their own."""
        if self.method.personal:
            return [[upload] for upload in uploads]
        alike: dict[str, list[HostedUpload]] = {}
        for upload in uploads:
            alike.setdefault(upload.task.prototype, []).append(upload)
        units = []
        for mine in alike.values():
            units += dealt(mine, len(mine), 1 if self._crew.workers == 1 else len(mine))
        return units

    def _losses_of(
        self, uploads: Sequence[HostedUpload], results: Sequence[Any]
    ) -> dict[HostedUpload, float]:
        """The answers of `_loss_units`."""
        known = [upload for group in self._in_units(uploads) for upload in group]
        losses = [loss for answer in results for loss in answer]
        values = torch.stack(losses).tolist() if losses else []
        return dict(zip(known, values, strict=True))

    def _model_of(self, upload: HostedUpload, own: State) -> Values:
        """The model that a client's loss is measured at."""
        who = upload.task.who
        model = self.method.model(self._server, own, who)
        if not self.method.personal and (who.prototype, "weights") in self._held:
            model = {**model, "weights": self._held[who.prototype, "weights"]}
        return model

    def _before(self) -> dict[str, float]:
        """The shared losses of the last accepted round; the first models count as round 0."""
        if self.method.shared_loss is not None and not self._shared_loss:
            first = self.method.first_losses(self.kit, self._server)
            self._shared_loss = {name: of[self.method.shared_loss] for name, of in first.items()}
        return dict(self._shared_loss)

    def _merged(self, arrivals: Sequence[Arrival], round: int) -> dict[str, dict[str, float]]:
        """The server takes the method's next step; what that measured."""
        begun, elsewhere = time.perf_counter(), sum(self._wall.values())
        self._server, losses = self.method.merge(self.kit, self._server, arrivals, round)
        wall_s = time.perf_counter() - begun
        self._wall["server"] += wall_s - (sum(self._wall.values()) - elsewhere)
        return {name: dict(of) for name, of in losses.items()}

    def _rejects(self, before: Mapping[str, float], after: Mapping[str, float]) -> bool:
        """Whether the safeguard undoes the round."""
        rollback = self.scenario.safeguard.rollback
        if rollback is None or self._rollbacks_in_a_row >= rollback.max_consecutive:
            return False
        if self._accepted:
            before = {name: median(of[name] for of in self._accepted) for name in before}
        # not (≤) rather than (>), so that a NaN is rejected
        return any(not after[p] <= rollback.threshold * before[p] + _NO_LOSS for p in after)

    def _accept(self, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        """The round stands; its losses are what the next one is compared with."""
        reference = self.scenario.safeguard.reference
        if self.scenario.safeguard.rollback is not None and reference.kind == "running-median":
            self._accepted = [*(self._accepted or [before]), after][-reference.window :]
        self._shared_loss = {**self._shared_loss, **after}

    def _undo(self, upload: HostedUpload) -> None:
        """Its round is undone: residuals and codecs go on as the safeguard says."""
        residuals = self.scenario.safeguard.residuals
        if residuals.kind != "as-sent":
            self._take_back(upload, residuals.factor if residuals.kind == "damped" else 1.0)

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

    def _send_down(self, round: int, version: int) -> None:
        """Clients hold from now on what the next change makes of theirs."""
        self._note_weights(round + 1)
        for key, changes in self._changes.items():
            draws = self._streams("downlink", *key, version)
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

    def _tests(self, round: int) -> Units:
        """What evaluates the models, where that is due."""
        due = self.scenario.evaluation.due(round, self.scenario.rounds)
        samples = len(self.data.test_labels)
        if not due or not samples:
            return [], []
        server, model = self._server, self.method.model
        if self.method.personal:
            whos = [self.tasks.who(client) for client in sorted(self._own)]
            tested = [(w.prototype, model(server, self._own[w.client], w), 0, 1) for w in whos]
        else:
            parts = self.kit.parts
            firsts = {name: self.tasks.first_of(name) for name in self.scenario.prototypes}
            models = {name: model(server, {}, who) for name, who in firsts.items()}
            tested = [(name, of, p, parts) for name, of in models.items() for p in range(parts)]
        costs = [self._facts[of].forward_flops * samples / parts for of, *_, parts in tested]
        return [("test", of) for of in tested], costs

    def _evaluated(
        self, round: int, results: Sequence[Tensor]
    ) -> tuple[dict[str, Evaluation], dict[int, PersonalEvaluation]]:
        """What the answers of `_tests` say."""
        due = self.scenario.evaluation.due(round, self.scenario.rounds)
        if not due or not len(self.data.test_labels):
            return {}, {}
        if self.method.personal:
            clients = self._of_own_models(results)
            return self._means(clients), clients
        parts = self.kit.parts
        tested = {
            name: torch.stack(list(results[i * parts : (i + 1) * parts])).sum(0).cpu()
            for i, name in enumerate(self.scenario.prototypes)
        }
        return self._of_prototypes(tested), self._of_clients(tested)

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
            client: in_mix(tested[self.tasks.who(client).prototype], own_mix(self.data, client))
            for client in range(len(self.data.owned))
        }

    def _of_own_models(self, results: Sequence[Tensor]) -> dict[int, PersonalEvaluation]:
        return {
            client: in_mix(tested.cpu(), own_mix(self.data, client))
            for client, tested in zip(sorted(self._own), results, strict=True)
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
        check_fields(self.scenario.method.kind, task.who, task.round, way, values, planned)

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

    def _each(
        self, name: str, calls: Sequence[tuple[Any, ...]], costs: Sequence[float]
    ) -> list[Any]:
        """What the kit shares among processes."""
        return self._run([(name, call) for call in calls], costs)

    def _run(self, units: Sequence[_Unit], costs: Sequence[float]) -> list[Any]:
        """What the units come to, in order; the time goes to the activities' account."""
        if not units:
            return []
        begun, worker, shelf = time.perf_counter(), self._worker, self._worker.shelf
        alone = self._crew.workers == 1 or len(units) == 1
        if alone or not (worth_sharing(sum(costs)) or self._weighs_more(units)):
            answers = [worker.answer(*unit) for unit in units]
        else:
            self._batches += 1
            shelf.make_room()
            packed = [(self._batches, name, shelf.pack(args)) for name, args in units]
            shared = self._crew.map("run", packed, costs)
            answers = [
                (shelf.unpack(done, copied=True) if isinstance(done, bytes) else done, seconds)
                for done, seconds in shared
            ]
        spent = dict.fromkeys(self._wall, 0.0)
        for _, seconds in answers:
            for activity, wall_s in seconds.items():
                spent[activity] += wall_s
        wall_s = (time.perf_counter() - begun) / max(sum(spent.values()), 1e-9)
        for activity, share in spent.items():
            self._wall[activity] += wall_s * share
        return [result for result, _ in answers]

    def _weighs_more(self, units: Sequence[_Unit]) -> bool:
        """Whether there are trainings among them that take longer than their FLOPs say: steps of
        one client after another, or a method's own."""
        return any(
            name == "train" and self._together(participations[0].prototype) == 1
            for name, (participations, *_) in units
        )

    def _together(self, prototype: str) -> int:
        """Clients of a prototype that are trained in one pass, at most."""
        return self.kit.together(prototype) if _steps_locally(self.method) else 1


# ---- units of work, which any process may run ----------------------------------------------------


_Unit = tuple[str, tuple[Any, ...]]
"""`train`, or the name of a method of the kit's; its arguments."""

Units = tuple[list[_Unit], list[float]]
"""Units, and the FLOPs of each."""


class _Participation(NamedTuple):
    client: int
    turn: int
    prototype: str
    round: int
    down: Values
    own: State | None
    """The client's state; None: it has not taken part before."""
    choice: str
    """Its label."""
    memories: Mapping[str, Any]
    """Compressed field → what the codec remembers of the client."""
    rests: frozenset[str]
    """Compressed fields of which something was left out before."""
    encodes: bool
    """Whether its fields can be compressed by any process."""


_NONE: Mapping[str, Any] = {}


class _Done(NamedTuple):
    """What came of a participation."""

    values: dict[str, Any]
    own: State
    loss: Tensor | None
    """The mean of its batches, where training is local steps."""
    encoded: bool = False
    memories: Mapping[str, Any] = _NONE
    if_lost: Mapping[str, Any] = _NONE
    sizes: Mapping[str, float] = _NONE
    k: int | None = None


class _Worker:
    """What a process needs to run units. Built before processes are forked."""

    def __init__(self, method: Method, kit: Kit, encoder: Encoder, shelf: Shelf) -> None:
        self._method = method
        self._kit = kit
        self._encoder = encoder
        self.shelf = shelf
        self._batch = 0
        self._compressing_s = 0.0

    def begin_process(self, number: int) -> None:
        """Called in each worker process at its start."""
        self.shelf = self.shelf.end(number)

    def run(self, unit: tuple[int, str, bytes]) -> tuple[Any, dict[str, float]]:
        """The answer to a unit that has come through a pipe."""
        batch, name, args = unit
        if self.shelf.process and batch != self._batch:
            self.shelf.clear()
            self._batch = batch
        result, seconds = self.answer(name, self.shelf.unpack(args))
        return (self.shelf.pack(result) if self.shelf.process else result), seconds

    def answer(self, name: str, args: Sequence[Any]) -> tuple[Any, dict[str, float]]:
        """The result of a unit, and host seconds by activity."""
        begun, self._compressing_s = time.perf_counter(), 0.0
        result = self.train(*args) if name == "train" else getattr(self._kit, name)(*args)
        wall_s = time.perf_counter() - begun
        seconds = {_ACTIVITIES.get(name, "server"): wall_s - self._compressing_s}
        return result, {**seconds, "compression": self._compressing_s}

    def train(self, participations: Sequence[_Participation]) -> list[_Done]:
        """Local training of clients of one prototype, and what they send."""
        method, kit = self._method, self._kit
        known = [self._beginning(of) for of in participations]
        if not _steps_locally(method):
            trained = [_Done(*_as_dict(method.train(kit, *of)), None) for of in known]
        else:
            steps = [(of[0], of[1], method.local_steps(kit, *of)) for of in known]
            trained = [
                _Done(*_as_dict(method.trained(kit, *of, after)), loss)
                for of, (after, loss) in zip(known, kit.trained_each(steps), strict=True)
            ]
        done = []
        for one, of in zip(participations, trained, strict=True):
            check_fields(
                self._kit.method, self._who(one), one.round, "up", of.values, self._up(one)
            )
            done.append(self.encoded(one, of) if one.encodes else of)
        return done

    def _beginning(self, of: _Participation) -> tuple[Who, int, Values, State]:
        method, own, down = self._method, of.own, of.down
        if method.moves_point:
            for name, memory in of.memories.items():
                choice = self._encoder.choice(of.choice).of_field(name)
                point = self._encoder.player(choice).codec.point(memory)
                if point is not None and self._up(of)[name].kind == "update":
                    shift = np.float32(method.update_scale(self._kit, of.round)) * point
                    weights = down["weights"] + beside(shift, self._kit.device)
                    down = {**down, "weights": weights}
        who = self._who(of)
        return who, of.round, down, method.begin_client(self._kit, who) if own is None else own

    def _who(self, of: _Participation) -> Who:
        return self._encoder.tasks.who(of.client, of.turn)

    def _up(self, of: _Participation) -> Mapping[str, Field]:
        """What travels up of it, by its plan."""
        return self._method.plan(self._kit.setting, self._who(of), of.round).up

    def encoded(self, of: _Participation, done: _Done) -> _Done:
        """What travels of what was trained."""
        begun, choice, up = time.perf_counter(), self._encoder.choice(of.choice), self._up(of)
        who = self._who(of)
        values: dict[str, Any] = {}
        memories, if_lost, sizes, k = {}, {}, {}, None
        for name, value in done.values.items():
            if not up[name].compressed:
                require_finite(value, who.client, of.round, name)
                values[name] = value
                continue
            sent = self._encoder.encode(
                who, of.round, choice.of_field(name), name, up[name], value, of.memories[name],
                rested=name in of.rests,
            )  # fmt: skip
            values[name], memories[name], if_lost[name] = sent.value, sent.memory, sent.if_lost
            if sent.wire_bytes is not None:
                sizes[name] = sent.wire_bytes
            if isinstance(choice.level, str):  # the other fields have the K of the first
                k = sent.k
                choice = choice.at(k)
        own = done.own
        if type(self._method).sent is not Method.sent:
            own = self._method.sent(own, Received({n: as_received(v) for n, v in values.items()}))
        self._compressing_s += time.perf_counter() - begun
        return _Done(values, own, done.loss, True, memories, if_lost, sizes, k)


def _as_dict(trained: tuple[Values, State]) -> tuple[dict[str, Any], State]:
    values, own = trained
    return dict(values), own


def _waiting(uploads: Sequence[HostedUpload]) -> list[HostedUpload]:
    """Those whose f_n after the merge is to be measured."""
    return [u for u in uploads if u.loss_before is not None and u.loss_after is None]


def _steps_locally(method: Method) -> bool:
    """Whether a participation's training is `local_steps` and nothing else."""
    return type(method).train is Method.train


def check_fields(
    kind: str, who: Who, round: int, way: str, values: Values, planned: Mapping[str, Field]
) -> None:
    """Raises: `RunFailed` for values that are not what a plan says."""
    where = f"method {kind}, client {who.client}, round {round}"
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


def _check_finite(client: int, round: int, loss: float) -> None:
    """Raises `RunFailed` when training has left the numbers: a compressor would only say that it
    met a NaN."""
    if not math.isfinite(loss):
        raise RunFailed(
            f"client {client}'s training loss is {loss} in round {round}: the learning "
            "has diverged; a smaller training.learning_rate may help"
        )


def _plain_upload(upload: HostedUpload, arrays: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint keeps of an upload under way."""
    name = f"open/{upload.task.client}/{upload.task.key}"
    assert upload.values is not None
    values = upload.values
    return {
        "task": [*upload.task.arguments, upload.task.downlink_bytes],
        "choice": upload.choice.label,
        "kept": upload.kept,
        "losses": [upload.loss_before, upload.loss_after],
        "own_before": to_plain(upload.own_before, f"{name}/own", arrays),
        "values": to_plain({of: values.change(of) for of in values}, f"{name}/values", arrays),
        "sizes": upload.sizes,
        "if_lost": to_plain(upload.if_lost, f"{name}/if-lost", arrays),
    }
