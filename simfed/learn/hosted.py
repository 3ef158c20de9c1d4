"""The learning side of every method: `Workload`, from a method's steps.

The host does what is the same for all: it trains lazily and in many processes, compresses fields
that say so and keeps what was left out, counts bytes, undoes lost uploads and rounds that are
rejected, keeps the states of those clients alone that have taken part, measures gains, evaluates,
and saves. The method says the rest (`simfed.ground.method`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from simfed.compress.choice import NO_COMPRESSION, Choice
from simfed.compress.sparsifiers import State as CodecState
from simfed.fleet.contract import Contribution, Outcome, Task
from simfed.fleet.privacy import make_account
from simfed.fleet.tasks import Tasks
from simfed.ground.errors import RunFailed
from simfed.ground.method import Arrival, Field, Losses, Method, State, Values, Who, Work
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.learn.attacks import Attack, poison_data
from simfed.learn.catalogue import model_facts
from simfed.learn.changes import HeldModels
from simfed.learn.evaluating import Evaluating, Evaluations
from simfed.learn.federation import Federation, load_federation
from simfed.learn.hosted_upload import EdgeUpload, HostedUpload, OpenUploads
from simfed.learn.kit import Kit
from simfed.learn.memory import Arena
from simfed.learn.own_losses import OwnLosses, waiting
from simfed.learn.participations import Assignment, Trained, Worker, check_fields
from simfed.learn.precision import device_of, exact_float32, same_algorithms
from simfed.learn.privacy import NoisyMeans
from simfed.learn.processes import Processes, Units
from simfed.learn.rules import apply_rule
from simfed.learn.safeguard import Safeguard
from simfed.learn.shelf import Shelf
from simfed.learn.training import split_evenly
from simfed.learn.tree import Arrays, Tree, decode_tree, encode_tree
from simfed.learn.uploads import Encoder, Received, as_received, make_divergence_error
from simfed.scenario import Scenario

__all__ = ["HostedUpload", "HostedWorkload"]

_Upload = TypeVar("_Upload", bound=Contribution)

_COMPRESSION_FLOPS = 100
"""FLOPs that take as long as compression does for each parameter."""


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
    fields. A client that has begun again before it was known (its edge server's upload was lost,
    its round was undone) has gone on from what is lost: that is taken out of sums that it keeps
    (`Method.without`, `Codec.undo_earlier`), and nothing else of what it did since is changed. A
    round that the safeguard rejects leaves the server as it was; what becomes of its clients'
    residuals, the scenario says.
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
        poison_data(self.data, scenario, streams)
        self.method: Method = scenario.method.made
        self.version = 0
        self._settings = ExitStack()  # the same bits whatever the caller has set
        try:
            self._set_up(streams, workers, place, learns=learns)
        except BaseException:  # of a refused run nothing stays set
            self._settings.close()
            raise

    def _set_up(self, streams: Streams, workers: int, place: torch.device, *, learns: bool) -> None:
        scenario = self.scenario
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
        self.kit = Kit(scenario, streams, self.data, self.tasks.setting)
        self._encoder = Encoder(streams, self.tasks)
        self._noisy = self._make_noisy()
        shelf = Shelf(arena, self._rooms(workers))
        self._worker = Worker(self.method, self.kit, self._encoder, shelf)
        self._processes = Processes(self._worker, workers)
        self._settings.callback(self._processes.close)
        self.kit.each = self._processes.each
        self.safeguard = Safeguard(scenario, self.method.shared_loss)
        self._evaluating = Evaluating(scenario, self.data, self.tasks, self.kit)
        self._losses = OwnLosses(
            scenario, self.method, self.kit, learns=learns, together=workers == 1
        )
        self._own: dict[int, State] = {}
        self._memories: dict[tuple[int, str, str], CodecState] = {}
        self._rests: dict[tuple[int, str], Tensor] = {}
        """(client, field) → what compression has left out of it."""
        self._open = OpenUploads()
        self._lost_pending = 0
        """How many of them are lost and wait for their work."""
        self._lent: dict[tuple[int, int | str], EdgeUpload] = {}
        self._gathers = 0
        """Merges of edge servers so far."""
        self._server: State = self.method.begin(self.kit)
        self.held_models = HeldModels(scenario, streams, self.tasks, self._server)

    def _make_noisy(self) -> NoisyMeans | None:
        """What stands between arrivals and the method under client-level privacy."""
        scenario, privacy = self.scenario, self.scenario.privacy
        if privacy is None or privacy.level != "client":
            return None
        account = make_account(scenario, lambda client: len(self.data.owned[client]))
        assert account is not None
        entries = self._encoder.shared_entries
        return NoisyMeans(scenario, privacy, self.method, self.tasks, account.noise, entries)

    def _rooms(self, workers: int) -> list[int]:
        """Bytes of the shelf, for each process: two versions of every model on its way to the
        others, and of what was left out of the uploads of a cohort; one of those of another
        process, and its share of what clients have trained and leave out now."""
        if workers == 1:
            return [0]
        sizes = [4 * (facts.parameters + facts.buffers + 1024) for facts in self._facts.values()]
        trained = self.tasks.setting.participants * max(sizes) // workers
        down, up = 2 * (sum(sizes) + trained * (workers - 1)), sum(sizes) + 2 * trained
        return [down] + [up] * (workers - 1)

    # ---- the contract ----------------------------------------------------------------------------

    def task(self, round: int, client: int, turn: int = 0, held: int | None = None) -> Task:
        """The work of `client` in `round`."""
        return self.tasks.task(round, client, self.version, turn, held)

    def place(self, edges: Sequence[Sequence[int]]) -> None:
        """See `TieredWorkload`."""
        self.tasks.place(edges)

    def lend(self, task: Task) -> EdgeUpload:
        """See `TieredWorkload`."""
        size_bytes = self.tasks.uplink_bytes(task, NO_COMPRESSION)
        assert size_bytes is not None
        edge = EdgeUpload(task, size_bytes, self._server, self.version)
        self._lent[task.client, task.key] = edge
        return edge

    def gather(
        self, edge: EdgeUpload, contributions: Sequence[HostedUpload], weights: Sequence[float]
    ) -> None:
        """See `TieredWorkload`."""
        self.work_off()
        weighed = sorted(
            zip(contributions, weights, strict=True), key=lambda one: one[0].task.order
        )
        arrived: dict[str, list[Arrival]] = {}
        for upload, weight in weighed:
            who = self._own_upload(upload).task.who
            arrival = Arrival(who, 0, upload.values or {}, weight)
            arrived.setdefault(who.prototype, []).append(arrival)
        edge.merged.append([upload for upload, _ in weighed])
        edge.shares.append({name: self.method.shares(mine) for name, mine in arrived.items()})
        for name, mine in arrived.items():
            merged = Arrival(mine[0].who, 0, edge.change(name))
            edge.server = self.method.shift(self.kit, edge.server, merged)
        self._gathers += 1
        edge.version = -self._gathers

    def execute(self, task: Task, choice: Choice, edge: EdgeUpload | None = None) -> HostedUpload:
        """Note the client's work, with what it is sent now."""
        client = task.client
        if any(upload.values is None for upload in self._open.of_client(client)):
            self.work_off()  # its state goes on from what an earlier upload under way left it
        server = self._server if edge is None else edge.server
        down = self.method.send(server, task.who, task.round)
        self._check(task, "down", down, task.plan.down)
        if self.tasks.downlink_varies(task):
            sent = {name: value.numel() for name, value in down.items()}
            task = self.tasks.as_sent(task, sent, self.held_models.sizes(task.prototype))
        down = self.held_models.arrived(task, down)
        if choice.level is not None:
            choice = choice.at(choice.entries(task.plan.longest))
        upload = HostedUpload(self, task, choice, down, self._own.get(client), at=edge)
        self._open.add(upload)
        return upload

    def uplink_bytes(self, upload: HostedUpload) -> float:
        """Size of an upload on the wire."""
        size_bytes = self.tasks.uplink_bytes(upload.task, upload.choice)
        if size_bytes is not None:
            return size_bytes
        self.work_off()
        total = 0.0
        for name, of_plan in upload.task.plan.up.items():
            size = self.tasks.field_bytes(upload.task, of_plan, upload.choice)
            if of_plan.bounded:
                assert upload.values is not None
                size = of_plan.value_bytes * upload.values[name].numel()
            elif size is None:
                size, _ = upload.sizes[name]
            total += size
        return total

    def server_work(self, round: int, contributions: Sequence[Contribution]) -> Sequence[Work]:
        """The method's work at the merge of these contributions."""
        return self.tasks.server_work([c.task.who for c in contributions], round)

    def merge(
        self, round: int, contributions: Sequence[Contribution], weights: Sequence[float] = ()
    ) -> Outcome:
        """What the method makes of the arrivals, unless the safeguard rejects it; then losses and
        the evaluation that is due."""
        self.work_off()
        uploads, arrivals = self._arrivals(round, contributions, weights)
        if not uploads and self._noisy is None:
            answers = self._processes.run(*self.units_of_tests(round))
            evaluation, clients = self._evaluated(round, answers)
            before = self.safeguard.before()
            return Outcome(
                round, self.version, losses=self._evaluating.successes(answers),
                shared_loss_before=before, evaluation=evaluation, clients=clients,
            )  # fmt: skip
        before = self.safeguard.before(lambda: self.method.first_losses(self.kit, self._server))
        server, held = self._server, dict(self.held_models.held)
        losses = self._merged(arrivals, round)
        after = self.safeguard.shared(losses)
        rejected = self.safeguard.rejects(before, after)
        self._check_merged(losses, round, rejected=rejected)
        gains, tests = (
            self.units_of_gains(uploads),
            ([], []) if rejected else self.units_of_tests(round),
        )
        results = self._processes.run([*gains[0], *tests[0]], [*gains[1], *tests[1]])
        local = self._losses.after_merge(uploads, results[: len(gains[0])])
        if rejected:
            self.safeguard.reject()
            self._server, self.held_models.held = server, held
            self._undo_merge(round, uploads)
            answers = self._processes.run(*self.units_of_tests(round))
        else:
            self.safeguard.accept(before, after)
            self.version += 1
            self.held_models.settle(stands=True)
            self._losses.accept(uploads, self.version)
            answers = results[len(gains[0]) :]
        evaluation, clients = self._evaluated(round, answers)
        for name, success in self._evaluating.successes(answers).items():
            losses[name] = {**losses.get(name, {}), **success}
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
        """The upload was lost: what it carried returns to the client, its state is as before. With
        what an edge server sends, all that it merged is lost."""
        if isinstance(contribution, EdgeUpload):
            del self._lent[contribution.task.client, contribution.task.key]
            merged = {upload for merge in contribution.merged for upload in merge}
            for upload in reversed([u for u in self._open if u in merged]):
                self.discard(upload)
            return
        upload = self._own_upload(contribution)
        upload.lost = True
        if upload.values is not None:
            self._lose(upload)
            return
        # It is taken back where its client's state is needed next: trained with others, not alone.
        # What waits for that is as much as a cohort, however many are lost in a row.
        self._lost_pending += 1
        if self._lost_pending >= self.tasks.setting.participants:
            self.work_off()

    def _lose(self, upload: HostedUpload) -> None:
        self._take_back(upload)
        self._open.remove(upload)

    def timings(self) -> dict[str, float]:
        """Activity → host seconds that it has taken so far."""
        return dict(self._processes.wall_s)

    def close(self) -> None:
        """End worker processes; safe to call twice."""
        self._settings.close()

    def contribution(self, task: Task) -> HostedUpload | EdgeUpload:
        """The upload of a task that is under way: what a resumed run goes on with."""
        lent = self._lent.get((task.client, task.key))
        upload = self._open.of_task(task) if lent is None else lent
        assert upload is not None
        return upload

    def state(self) -> tuple[dict[str, Plain], Arrays]:
        """All that a resumed run needs. Pending work is done first."""
        self.work_off()
        arrays: Arrays = {}
        states = {str(client): state for client, state in sorted(self._own.items())}
        rests = {f"{client}:{name}": rest for (client, name), rest in sorted(self._rests.items())}
        plain = {
            "version": self.version,
            **self.safeguard.plain(),
            "losses": [[client, *loss] for client, loss in sorted(self._losses.measured.items())],
            "memories": [
                [*key, encode_tree(memory, f"memories/{'/'.join(map(str, key))}", arrays)]
                for key, memory in sorted(self._memories.items(), key=lambda item: item[0])
            ],
            "server": encode_tree(self._server, "server", arrays),
            "own": encode_tree(states, "own", arrays),
            "residuals": encode_tree(rests, "residuals", arrays),
            "open": [upload.plain(arrays) for upload in self._open],
            "lent": [self._gathers, [edge.plain(arrays) for edge in self._lent.values()]],
            **({} if self._noisy is None else {"privacy": self._noisy.state()}),
            **self.held_models.plain(arrays),
        }
        return plain, arrays

    def restore(self, facts: Mapping[str, Plain], arrays: Mapping[str, Plain]) -> None:
        """Inverse of `state`, on a workload of the same scenario; what it did before is
        forgotten."""

        def tree(plain: Plain) -> Tree:
            return decode_tree(plain, arrays, self.data.device)

        self._open.clear()
        self.version = int(facts["version"])
        self.safeguard.restore(facts)
        if self._noisy is not None:
            self._noisy.restore(facts["privacy"])
        self._losses.measured = {
            client: (version, loss) for client, version, loss in facts["losses"]
        }
        self._memories = {
            (c, name, arm): tree(memory) for c, name, arm, memory in facts["memories"]
        }
        self._server = tree(facts["server"])
        self._own = {int(client): state for client, state in tree(facts["own"]).items()}
        self._rests = {}
        for key, rest in tree(facts["residuals"]).items():
            client, _, name = key.partition(":")
            self._rests[int(client), name] = rest
        self.held_models.restore(facts, arrays, self._server)
        for plain in facts["open"]:
            *of_task, downlink_bytes = plain["task"]
            task = self.tasks.task(*of_task)
            if self.tasks.changes_vary(task):
                task = self.tasks.as_sent(task, None, self.held_models.sizes(task.prototype))
            task = task._replace(downlink_bytes=downlink_bytes)
            values = tree(plain["values"])
            if values is not None:
                values = Received({name: as_received(value) for name, value in values.items()})
            loss_before, loss_after = plain["losses"]
            upload = HostedUpload(
                self, task, Choice.of(plain["choice"]), {}, tree(plain["own_before"]),
                values, plain["sizes"], tree(plain["if_lost"]), loss_before,
                loss_after,
            )  # fmt: skip
            self._open.add(upload)

        self._gathers, lent = facts["lent"]
        by_key = {(upload.task.client, upload.task.key): upload for upload in self._open}
        for plain in lent:
            task = self.tasks.task(*plain["task"])
            self._lent[task.client, task.key] = EdgeUpload(
                task, plain["bytes"], tree(plain["server"]), plain["version"],
                merged=[[by_key[c, key] for c, key in merge] for merge in plain["merged"]],
                shares=plain["shares"],
            )  # fmt: skip

    # ---- clients ---------------------------------------------------------------------------------

    def work_off(self) -> None:
        """Train all who are pending, and compress what they send."""
        pending = [upload for upload in self._open if upload.values is None]
        if not pending:
            return
        gaining = [upload for upload in pending if self._losses.wants(upload)]
        measured = [u for u in gaining if not self._losses.has(u, self._version_of(u))]
        groups = self._groups(pending)
        measuring = self._losses.units([(u, u.own_before) for u in measured], self.model_measured)
        trainings = [("train", ([self._participation(u) for u in group],)) for group in groups]
        costs = [self._training_flops(group) for group in groups]
        results = self._processes.run([*trainings, *measuring[0]], [*costs, *measuring[1]])
        losses = self._losses.by_upload(measured, results[len(groups) :])
        self._finish(groups, results[: len(groups)])
        for upload in gaining:
            self._losses.note(upload, losses.get(upload), self._version_of(upload))
        for upload in pending:
            upload.at = None
        for upload in [upload for upload in pending if upload.lost]:
            self._lose(upload)
        self._lost_pending = 0

    def _version_of(self, upload: HostedUpload) -> int:
        """Of the models of whoever sent it what it trains on."""
        return self.version if upload.at is None else upload.at.version

    def _finish(
        self, groups: Sequence[Sequence[HostedUpload]], results: Sequence[Sequence[Trained]]
    ) -> None:
        """Note what came of trainings; compress here what no other process could."""
        trained_of = {
            upload: trained
            for group, answers in zip(groups, results, strict=True)
            for upload, trained in zip(group, answers, strict=True)
        }
        self._agree(trained_of)
        losses = {u: trained.loss for u, trained in trained_of.items() if trained.loss is not None}
        values = torch.stack(list(losses.values())).tolist() if losses else []
        for upload, loss in zip(losses, values, strict=True):
            _check_finite(upload.task.client, upload.task.round, loss)
        for upload in [u for u in self._open if u in trained_of]:  # as they were started
            trained = trained_of[upload]
            if not trained.encoded:
                trained = self._processes.encode(self._participation(upload), trained)
            self._note(upload, trained)

    def _colludes(self, upload: HostedUpload) -> bool:
        """Whether its client agrees with other attackers on what they send."""
        attack = self.kit.attack_on(upload.task.client, upload.task.round)
        return attack is not None and attack.colludes

    def _agree(self, trained_of: dict[HostedUpload, Trained]) -> None:
        """Attackers of one kind, prototype and round put what they agree on in place of their
        updates. They were started together, so all of them are here."""
        bands: dict[tuple[int, str, Attack], list[HostedUpload]] = {}
        for upload in sorted(trained_of, key=lambda one: one.task.order):
            attack = self.kit.attack_on(upload.task.client, upload.task.round)
            if attack is not None and attack.colludes:
                key = upload.task.round, upload.task.prototype, attack
                bands.setdefault(key, []).append(upload)
        for (round, prototype, attack), band in bands.items():
            cohort = [u for u in self._open if u.task.round == round]
            participants = sum(u.task.prototype == prototype for u in cohort)
            updates = torch.stack([trained_of[upload].values["update"] for upload in band])
            agreed = attack.agree(updates, participants).expand_as(updates)
            for upload, update in zip(band, agreed, strict=True):
                trained = trained_of[upload]
                values = {**trained.values, "update": update.clone()}
                trained_of[upload] = trained._replace(values=values)

    def _note(self, upload: HostedUpload, done: Trained) -> None:
        task = upload.task
        values = {name: as_received(value) for name, value in done.values.items()}
        upload.values, upload.down = Received(values), {}
        upload.sizes, upload.if_lost = done.sizes, done.if_lost
        choice = upload.choice
        for name, memory in done.memories.items():
            self._memories[task.client, name, choice.strategy] = memory
        for name, rest in done.rests.items():
            self._rests[task.client, name] = rest
        self._own[task.client] = done.own

    def _participation(self, upload: HostedUpload) -> Assignment:
        task = upload.task
        compressed = task.plan.compressed
        memories = {
            name: self._memories.get((task.client, name, upload.choice.strategy))
            for name in compressed
        }
        rests = {
            name: self._rests[task.client, name]
            for name in compressed
            if (task.client, name) in self._rests
        }
        return Assignment(
            client=task.client,
            turn=task.who.turn,
            prototype=task.prototype,
            round=task.round,
            down=upload.down,
            own=upload.own_before,
            choice=upload.choice.label,
            memories=memories,
            rests=rests,
            encodes=not self._colludes(upload),
        )

    def _groups(self, pending: Sequence[HostedUpload]) -> list[list[HostedUpload]]:
        """Who is trained with whom: clients of a prototype together as far as that is faster."""
        alike: dict[str, list[HostedUpload]] = {}
        for upload in sorted(pending, key=lambda one: -self.tasks.setting.steps(one.task.who)):
            alike.setdefault(upload.task.prototype, []).append(upload)
        groups: list[list[HostedUpload]] = []
        for name, mine in alike.items():
            most = self._worker.together(name)
            parts = self._processes.parts(self._training_flops(mine), len(alike))
            groups += split_evenly(mine, most, parts)
        return groups

    def _training_flops(self, uploads: Sequence[HostedUpload]) -> float:
        """Roughly: enough to balance the processes."""
        facts, setting = self._facts[uploads[0].task.prototype], self.tasks.setting
        steps = sum(setting.steps(upload.task.who) for upload in uploads)
        flops = facts.train_flops * setting.batch_size * steps
        return float(flops + _COMPRESSION_FLOPS * facts.parameters * len(uploads))

    def _take_back(self, upload: HostedUpload, share: float = 1.0) -> None:
        """What was sent returns to the residuals, or a share of it, and codecs forget the play; the
        client's state is as before it took part, see `_restore_own`."""
        task, client = upload.task, upload.task.client
        if any(one.values is None for one in self._open.after(upload)):
            self.work_off()  # they went on from what this one left
        later = self._open.after(upload)  # of them, those lost meanwhile are gone
        assert upload.values is not None
        choice = upload.choice
        played = [one for one in later if one.choice.strategy == choice.strategy]
        for name, memory in upload.if_lost.items():
            value, rest = upload.values.change(name), self._rests.get((client, name))
            rest = self._encoder.take_back(choice, task.plan.up[name], value, rest, share)
            if rest is not None:
                self._rests[client, name] = rest
            key = client, name, choice.strategy
            if not played:
                self._memories[key] = memory
                continue
            undo = partial(self._encoder.undo_earlier, choice, memory, upload.values[name])
            self._memories[key] = undo(self._memories[key])
            for one in played:
                one.if_lost = {**one.if_lost, name: undo(one.if_lost[name])}
        self._restore_own(upload, later)

    def _restore_own(self, upload: HostedUpload, later: Sequence[HostedUpload]) -> None:
        """Its client's state is as before it; where the client has trained since, `later`, the
        method says what the states are that came of what this one left."""
        client, before = upload.task.client, upload.own_before
        if not later:
            if before is None:
                self._own.pop(client, None)
            else:
                self._own[client] = before
            return
        left = later[0].own_before
        later[0].own_before = before
        if type(self.method).without is not Method.without:
            assert left is not None
            if before is None:
                before = self.method.begin_client(self.kit, upload.task.who)
            for one in later[1:]:
                assert one.own_before is not None
                one.own_before = self.method.without(one.own_before, left, before)
            self._own[client] = self.method.without(self._own[client], left, before)

    def undo_upload(self, upload: HostedUpload) -> None:
        """Its round is undone: residuals and codecs go on as the safeguard says."""
        residuals = self.scenario.safeguard.residuals
        if residuals.kind != "as-sent":
            self._take_back(upload, residuals.factor if residuals.kind == "damped" else 1.0)

    def units_of_gains(self, uploads: Sequence[HostedUpload]) -> Units:
        """What measures f_n after a merge."""
        of_uploads = [(u, self._own[u.task.client]) for u in waiting(uploads)]
        return self._losses.units(of_uploads, self.model_measured)

    def model_measured(self, upload: HostedUpload, own: State) -> Values:
        """The model that a client's loss is measured at."""
        who = upload.task.who
        server = self._server if upload.at is None else upload.at.server
        model = self.method.model(server, own, who)
        held = self.held_models.held.get((who.prototype, "weights"))
        if self.method.personal or held is None:
            return model
        return {**model, "weights": held}

    # ---- the server ------------------------------------------------------------------------------

    def _arrivals(
        self, round: int, contributions: Sequence[Contribution], weights: Sequence[float]
    ) -> tuple[list[HostedUpload], list[Arrival]]:
        """What is merged, in the order in which it is; it is not under way any more."""
        weights = weights or [1.0] * len(contributions)
        weighed = sorted(
            zip(contributions, weights, strict=True), key=lambda pair: pair[0].task.order
        )
        uploads: list[HostedUpload] = []
        arrivals: list[Arrival] = []
        for one, weight in weighed:
            staleness = round - one.task.round
            if isinstance(one, EdgeUpload):
                del self._lent[one.task.client, one.task.key]
                uploads += [upload for merge in one.merged for upload in merge]
                arrivals += self._forwarded(one, staleness, weight)
            else:
                upload = self._own_upload(one)
                uploads.append(upload)
                arrivals.append(Arrival(one.task.who, staleness, upload.values or {}, weight))
        for upload in uploads:
            self._open.remove(upload)
        return uploads, arrivals

    def _forwarded(self, edge: EdgeUpload, staleness: int, weight: float) -> Iterator[Arrival]:
        """What an edge server sends of each prototype, as one client with the samples of all."""
        for name, size in self.tasks.setting.prototypes.items():
            mine = [u for n in range(len(edge.merged)) for u in edge.uploads(name, n)]
            if mine:
                samples = sum(upload.task.who.samples for upload in mine)
                who = Who(edge.task.client, name, size, samples, edge.task.who.turn)
                yield Arrival(who, staleness, edge.forwarded(name), weight, len(mine))

    def _merged(self, arrivals: Sequence[Arrival], round: int) -> dict[str, dict[str, float]]:
        """The server takes the method's next step; what that measured."""
        wall_s = self._processes.wall_s
        begun, elsewhere_s = time.perf_counter(), sum(wall_s.values())
        if self._noisy is not None:
            arrivals = self._noisy.arrivals(self.kit, arrivals, round)
        losses: Losses = {}
        if arrivals := apply_rule(self.scenario.aggregation.rule.made, arrivals):
            self._server, losses = self.method.merge(self.kit, self._server, arrivals, round)
        spent_s = time.perf_counter() - begun
        wall_s["server"] += spent_s - (sum(wall_s.values()) - elsewhere_s)
        return {name: dict(by_name) for name, by_name in losses.items()}

    def _check_merged(self, losses: Losses, round: int, *, rejected: bool) -> None:
        """Raises: `RunFailed` for models or losses that are not finite; a rejected merge may have
        some, and is undone."""
        try:
            self.send_down(round, self.version + 1)
        except RunFailed:
            if not rejected:
                raise
        if not rejected:
            self._check_losses(losses, round)

    def send_down(self, round: int, version: int) -> None:
        """Clients hold from now on what the merge made of their models."""
        self.held_models.advance(self._server, round, version)

    def _undo_merge(self, round: int, uploads: Sequence[HostedUpload]) -> None:
        """The server is as before the merge; so are those who were to get it, and those of whom it
        came, as far as the scenario says."""
        self.held_models.note(self._server, round + 1)
        self.held_models.settle(stands=False)
        for upload in list_latest_first(uploads):
            self.undo_upload(upload)

    def units_of_tests(self, round: int) -> Units:
        """What evaluates the models, where that is due."""
        due = self._evaluating.due(round)
        return self._evaluating.units(self._server, self._arrived_states()) if due else ([], [])

    def _evaluated(self, round: int, answers: Sequence[Tensor]) -> Evaluations:
        if not self._evaluating.due(round):
            return {}, {}
        if self.method.personal:
            return self._evaluating.of_clients(self.judged_by_client(answers))
        return self._evaluating.of_prototypes(answers)

    def judged_by_client(self, answers: Sequence[Tensor]) -> dict[int, Tensor]:
        """Client → how its own model did."""
        return dict(zip(sorted(self._arrived_states()), answers, strict=True))

    def _arrived_states(self) -> dict[int, State]:
        """Clients' own states without what they have under way: by the clock that is yet to come,
        though it may be learned already."""
        states: dict[int, State | None] = dict(self._own)
        for upload in reversed(list(self._open)):  # of a client's several the oldest counts
            states[upload.task.client] = upload.own_before
        return {client: state for client, state in states.items() if state is not None}

    # ---- checks ------------------------------------------------------------------------------

    def _check(self, task: Task, way: str, values: Values, planned: Mapping[str, Field]) -> None:
        """What is sent must be what the plan says: the clock has charged for that."""
        check_fields(self.scenario.method.kind, task.who, task.round, way, values, planned)

    def _check_losses(self, losses: Mapping[str, Mapping[str, float]], round: int) -> None:
        for prototype, named in losses.items():
            for name, value in named.items():
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
        upload = self._open.of_task(contribution.task)
        if upload is None or upload is not contribution:
            raise ValueError(
                f"a contribution that is under way, got that of client {contribution.task.client}"
            )
        return upload


def list_latest_first(uploads: Sequence[_Upload]) -> list[_Upload]:
    """Uploads so that of each client the last one comes first: each is undone to what was before
    it."""
    return sorted(uploads, key=lambda u: (u.task.round, u.task.who.turn), reverse=True)


def _check_finite(client: int, round: int, loss: float) -> None:
    """Raises `RunFailed` when training has left the numbers: a codec would only say that it
    met a NaN."""
    if not math.isfinite(loss):
        raise make_divergence_error(f"client {client}'s training loss is {loss} in round {round}")
