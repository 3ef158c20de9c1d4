"""Tasks, on which both sides must agree: who does what, and bytes on the wire.

The clock plays these tasks, and learning carries them out; neither may import the
other, and a fact that stood in both would sooner or later stand there twice. No tensor
and no clock.

`Tasks.task` makes one from the method's plan. Sizes are asked for on the way: `as_sent`
of what travels down, `uplink_bytes` of what travels up, `server_work` of a merge. All
bytes are those on the wire before any protocol's headers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from simfed.compress.choice import NO_COMPRESSION, Choice
from simfed.compress.selection import check_k
from simfed.fleet.contract import Task
from simfed.ground.errors import InputError
from simfed.ground.levels import Level
from simfed.ground.memo import Memo
from simfed.ground.method import (
    Field,
    Layers,
    Method,
    Plan,
    Setting,
    Size,
    Who,
    Work,
    make_key,
)
from simfed.ground.records import make
from simfed.ground.seeding import Streams
from simfed.ground.story import OwnStory
from simfed.ground.vocabulary import ModelFacts
from simfed.policy import Context, Policy, Pull, prepare_policies, reads_context
from simfed.scenario import Scenario
from simfed.scenario.model import ClientGroup
from simfed.tasks.epochs import LocalEpochs

SERVER = "server"
"""The name in place of a model's: what the server handles at a merge is no client's
messages."""


_UNUSED = np.random.default_rng(0)
"""The generator of policies that say that they draw nothing: to key one takes longer
than their pull."""


class Tasks:
    """The tasks of a scenario's clients, and their sizes.

    Made once per run: by a bench of learning, or by the workload of a time-only run. It
    models nothing that depends on what is learned; where a size does, it answers None
    and learning knows it later.
    """

    def __init__(
        self,
        scenario: Scenario,
        facts: Mapping[str, ModelFacts],
        samples_of: Callable[[int], int],
        *,
        test_samples: int = 0,
    ) -> None:
        """Take the facts from which all tasks follow.

        Args:
            scenario: the validated scenario.
            facts: prototype → the facts of its model.
            samples_of: client → training samples that it owns; asked only by plans that
                depend on it.
            test_samples: of the test set; 0: nothing is evaluated.
        """
        self.scenario = scenario
        self._test_samples = test_samples
        self.method: Method = scenario.method.made
        clients = scenario.clients_of_prototype
        sizes = {}
        for name, known_as in scenario.model_names.items():
            model = facts[name]
            shapes = Layers(model.shapes, model.names)
            counts = model.parameters, model.buffers, model.features, clients[name]
            sizes[name] = Size(known_as, *counts, shapes, model.head, model.norms)
        self.base_bytes = {name: 4.0 * model.base for name, model in facts.items()}
        """Prototype → bytes of what stands still of its model."""
        training = scenario.training
        self.setting = Setting(
            rounds=scenario.rounds,
            clients=scenario.client_count,
            participants=scenario.participation.clients_per_round
            or scenario.client_count,
            classes=next(iter(facts.values())).classes,
            public=scenario.public_samples,
            batch_size=training.batch_size,
            local_steps=training.local_steps,
            local_epochs=training.local_epochs,
            prototypes=sizes,
            distillation_steps=scenario.distillation.steps,
            private=scenario.privacy is not None and scenario.privacy.level == "sample",
            latest=scenario.aggregation.latest,
        )
        self._samples_of = samples_of
        self._epochs = LocalEpochs(scenario, Streams(scenario.seed))
        self._local_times = [group.local_time for group in scenario.clients]
        self.count_steps: Callable[[int, Work, float], int] | None = None
        """(client, work, seconds) → the steps that its device makes in them; set where
        devices are known."""
        self._edges: list[tuple[str, ...]] = []
        """Prototypes of the clients of each edge server."""
        self._first_of: dict[str, int] = {}
        self._group_of_client = scenario.group_of_client()
        self._prototypes = [group.prototype for group in scenario.clients]
        self._measures = [scenario.measures_losses(group) for group in scenario.clients]
        self.index_code = scenario.compression.index_code
        self._charge = scenario.charge
        self._changes = scenario.downlink.compression
        if self._changes is not None:
            self.change_choice = Choice.of(self._changes.strategy)
            """By what changes of the model travel down."""
        self._weight_bytes = 2.0 if scenario.downlink.payload == "fp16" else 4.0
        self._bytes: Memo[tuple[object, ...], float | None] = Memo()

    @property
    def story(self) -> OwnStory | None:
        """The method's story in place of receive, work, send; None: there is none."""
        if not self.method.tells_own_story:
            return None
        name = self.scenario.method.kind
        return OwnStory(name, partial(self.method.participate, self.setting))

    def place(self, edges: Iterable[Sequence[int]]) -> None:
        """Note that there are edge servers, with these clients each.

        They are clients after the others: the first has the id after the last client's.
        """
        of_group = dict(enumerate(self._prototypes))
        for clients in edges:
            groups = np.unique(self._group_of_client[np.asarray(clients)]).tolist()
            self._edges.append(
                tuple(dict.fromkeys(of_group[group] for group in groups))
            )

    def who(self, client: int, turn: int = 0, round: int | None = None) -> Who:
        """Return the plain facts of one client.

        Args:
            client: its id, from 0.
            turn: how often it was started before in this round.
            round: of its participation; None: facts that hang on it, drawn epochs and
                the steps of a `local_time`, are left out.
        """
        group = int(self._group_of_client[client])
        prototype = self._prototypes[group]
        who = Who(
            client,
            prototype,
            self.setting.prototypes[prototype],
            self._samples_of,
            turn,
            None if round is None else self._epochs.draw(client, make_key(round, turn)),
        )
        within_s = self._local_times[group]
        if round is not None and within_s is not None:
            assert self.count_steps is not None, "devices that nobody knows"
            work = self.setting.training(who)
            who.most_steps = self.count_steps(client, work, within_s)
        return who

    def first_of(self, prototype: str) -> Who:
        """Return the client of lowest id that has this prototype.

        It stands for all of them where only facts of the prototype matter.
        """
        if not self._first_of:
            names = [self._prototypes[group] for group in self._group_of_client]
            for client in range(len(names) - 1, -1, -1):
                self._first_of[names[client]] = client
        return self.who(self._first_of[prototype])

    def task(
        self,
        round: int,
        client: int,
        model_version: int,
        turn: int = 0,
        held: int | None = None,
    ) -> Task:
        """Return the task of a client, or of an edge server, in a round.

        Args:
            round: from 1.
            client: its id; those from the number of clients on are edge servers.
            model_version: of the model that it is sent.
            turn: how often it was started before in this round.
            held: the version that it has already; None: none, so it is sent the whole.
                Only where changes travel down.
        """
        if client >= self.setting.clients:
            return self._task_of_edge(round, client, model_version, turn)
        who = self.who(client, turn, round)
        plan = self.method.plan(self.setting, who, round)
        if self._changes is None:
            size = self.downlink_bytes(plan)
            return make(Task, (round, client, who, plan, model_version, size, None, ()))
        return self.as_sent(Task(round, client, who, plan, model_version, 0.0, held))

    def list_weights_down(self, who: Who, round: int) -> dict[str, Field]:
        """Return the fields of weights that a client is sent in `round`.

        They hang on no device, so `who` may lack what hangs on a round.
        """
        down = self.method.plan(self.setting, who, round).down
        return {name: field for name, field in down.items() if field.kind == "weights"}

    def _task_of_edge(
        self, round: int, client: int, model_version: int, turn: int
    ) -> Task:
        """Return the task of an edge server.

        It is sent what its clients are, and sends what they send, uncompressed.
        """
        down: dict[str, Field] = {}
        up: dict[str, Field] = {}
        names = self._edges[client - self.setting.clients]
        for name in names:
            plan = self.method.plan(self.setting, self.first_of(name), round)
            down |= {f"{name}/{key}": field for key, field in plan.down.items()}
            up |= {
                f"{name}/{key}": field._replace(compressed=False)
                for key, field in plan.up.items()
            }
        plan = Plan(down, (), up)
        who = Who(client, names[0], self.setting.prototypes[names[0]], 1, turn)
        return Task(round, client, who, plan, model_version, self.downlink_bytes(plan))

    def as_sent(
        self,
        task: Task,
        sent: Mapping[str, int] | None = None,
        sizes: Mapping[str, Sequence[float]] | None = None,
    ) -> Task:
        """Return `task` with the bytes and the unpacking of what travels down.

        A client that has an earlier version is sent the changes since, one for each
        version, where they are less than the whole.

        Args:
            task: as `task` made it.
            sent: entries of each field as it was sent; without it, bounded fields count
                as the most.
            sizes: field of weights → bytes of each of its changes so far, where these
                depend on what is learned; without it, the whole model counts.
        """
        if self._changes is None or not self._charge.downlink:
            return task._replace(downlink_bytes=self.downlink_bytes(task.plan, sent))
        total = 0.0
        unpacking = []
        missed = None if task.held is None else task.model_version - task.held
        for name, field in task.plan.down.items():
            dense = self._count_dense_bytes(name, field, sent)
            if field.kind == "buffers" and missed == 0:
                continue  # they are those that it has
            if field.kind == "weights" and missed is not None:
                size = self.change_bytes(task.who, field)
                if size is not None:
                    changes = missed * size
                elif sizes is not None:
                    changes = sum(sizes[name][task.held : task.model_version])
                else:
                    changes = dense if missed else 0.0
                if changes < dense:
                    total += changes
                    if missed:
                        unpacking.append(self._make_unpacking(task, field, missed))
                    continue
            total += dense
        return task._replace(downlink_bytes=total, unpacking=tuple(unpacking))

    def name_changes(self, task: Task, sent: Task) -> list[str]:
        """Return the fields of which changes travel in `sent`, which came of `task`.

        The inverse of `as_answered`: a journal keeps these names beside the bytes.
        """
        if not sent.unpacking:
            return []
        assert task.held is not None
        missed = task.model_version - task.held
        return [
            name
            for name, field in task.plan.down.items()
            if field.kind == "weights"
            and self._make_unpacking(task, field, missed) in sent.unpacking
        ]

    def as_answered(self, task: Task, down_bytes: float, names: Sequence[str]) -> Task:
        """Return `task` with the bytes that were sent; these fields were changes."""
        missed = 0 if task.held is None else task.model_version - task.held
        fields = (task.plan.down[name] for name in names)
        unpacking = tuple(self._make_unpacking(task, field, missed) for field in fields)
        return task._replace(downlink_bytes=down_bytes, unpacking=unpacking)

    def _make_unpacking(self, task: Task, field: Field, times: int) -> Work:
        k, choice = self.change_entries(field), self.change_choice
        return make_codec_work(
            "decompression", task.who, field, choice, k, times=times, name=choice.label
        )

    def downlink_bytes(
        self, plan: Plan, sent: Mapping[str, int] | None = None
    ) -> float:
        """Return the bytes down where models travel whole; 0 where that is not charged.

        Args:
            plan: of the task.
            sent: see `as_sent`.
        """
        if not self._charge.downlink:
            return 0.0
        return sum(
            [
                self._count_dense_bytes(name, field, sent)
                for name, field in plan.down.items()
            ]
        )

    def _count_dense_bytes(
        self, name: str, field: Field, sent: Mapping[str, int] | None
    ) -> float:
        """Return the bytes of a whole field down, in the scenario's number format."""
        if field.kind == "buffers" and not self._charge.buffers:
            return 0.0
        size = self._weight_bytes if field.kind == "weights" else field.value_bytes
        return size * (sent[name] if sent and field.bounded else field.entries)

    def downlink_varies(self, task: Task) -> bool:
        """Return whether the bytes that travel down depend on what is learned."""
        fields = task.plan.down.values()
        return self._charge.downlink and (
            any(field.bounded for field in fields) or self.changes_vary(task)
        )

    def changes_vary(self, task: Task) -> bool:
        """Return whether a change's size is charged and depends on what is learned."""
        if self._changes is None or not self._charge.downlink:
            return False
        return any(
            field.kind == "weights" and self.change_bytes(task.who, field) is None
            for field in task.plan.down.values()
        )

    def change_entries(self, field: Field) -> int:
        """Return K of a change of the model, where models travel down compressed."""
        assert self._changes is not None
        return Level.of(self._changes.k).k(field.entries)

    @property
    def change_code(self) -> str:
        """The format of the indices of changes."""
        assert self._changes is not None
        return self._changes.index_code or self.index_code

    def change_bytes(self, who: Who, field: Field) -> float | None:
        """Return the bytes of one change of the model.

        None where that depends on what is learned.
        """
        k, code = self.change_entries(field), self.change_code
        return self._count_coded_bytes(who, field, self.change_choice, k, code)

    def uplink_bytes(self, task: Task, choice: Choice) -> float | None:
        """Return the bytes of an upload by this choice of codec and K.

        None where they depend on the data, as with a codec that keeps what is above a
        threshold.
        """
        total = 0.0
        for field in task.plan.up.values():
            size = self.field_bytes(task, field, choice)
            if size is None:
                return None
            total += size
        return total

    def field_bytes(self, task: Task, field: Field, choice: Choice) -> float | None:
        """Return the bytes of one field of an upload; None where data decide them.

        Fields that are not compressed cost their `value_bytes` for each entry; running
        statistics cost nothing unless `charge.buffers` says so.
        """
        if field.bounded:
            return None
        if not field.compressed:
            charged = field.kind != "buffers" or self._charge.buffers
            return field.value_bytes * field.entries if charged else 0.0
        k = choice.entries(field.entries)
        return self._count_coded_bytes(task.who, field, choice, k, self.index_code)

    def _count_coded_bytes(
        self, who: Who, field: Field, choice: Choice, k: int, index_code: str
    ) -> float | None:
        """Return the bytes of a field of which a codec keeps K entries.

        None where they depend on the data. Sizes that were asked for are kept: all
        clients of a model have the same.
        """
        layout, length = field.layout, field.entries
        shapes = None if layout is None else tuple(map(tuple, layout))
        key = choice.strategy, k, index_code, who.model, field.kind, length, shapes
        if key not in self._bytes:
            self._bytes[key] = choice.codec.size_bytes(
                length, check_k(k, length), index_code, field.layout_of(who)
            )
        return self._bytes[key]

    def server_work(
        self, arrived: Iterable[Who], round: int, *, measured: bool | None = None
    ) -> Sequence[Work]:
        """Return the server's work at a merge, beside decompression of the arrivals.

        That of the merging rule and of the method; the compression of every prototype's
        change, where changes travel down; and, for servers whose device knows how long
        they take, the rest of a merge, the wait for losses that clients measure, and
        the evaluation that is due.

        Args:
            arrived: whose uploads are merged.
            round: of the merge.
            measured: whether one of them measures a loss; None: as the scenario says.
        """
        arrived = list(arrived)
        work = [
            *self._merge_by_rule(arrived),
            *self.method.server_work(self.setting, arrived, round),
        ]
        if self._changes is not None:
            work += self._compress_changes(round)
        work.append(Work("handling", SERVER, 1))
        if self._measure_losses(arrived) if measured is None else measured:
            work.append(Work("losses", SERVER, 1))
        if self.is_evaluated(round) and not self.method.personal:
            work += [
                Work(
                    "evaluation",
                    size.model,
                    self._test_samples,
                    name=f"evaluation of {name}",
                )
                for name, size in self.setting.prototypes.items()
            ]
        return work

    def is_evaluated(self, round: int) -> bool:
        """Return whether models are tested after this round."""
        due = self.scenario.evaluation.due(round, self.scenario.rounds)
        return due and self._test_samples > 0

    def _measure_losses(self, arrived: Iterable[Who]) -> bool:
        """Return whether one of those who arrived has a policy that learns from losses.

        Of an edge server it is not known who stands below, so it counts.
        """
        measures, group_of = self._measures, self._group_of_client
        clients = self.setting.clients
        return any(measures) and any(
            who.client >= clients or measures[group_of[who.client]] for who in arrived
        )

    def _merge_by_rule(self, arrived: Sequence[Who]) -> Iterable[Work]:
        """Yield the work of the scenario's merging rule, prototype by prototype."""
        rule = self.scenario.aggregation.rule
        if not rule.made.flops:
            return
        for name, uploads in Counter(who.prototype for who in arrived).items():
            work = rule.made.work(rule.kind, self.setting.prototypes[name], uploads)
            if work is not None:
                yield work

    def auxiliary(self) -> dict[str, float]:
        """Return FLOPs per sample of auxiliary work, by its name.

        It is of the method and the merging rule; devices without a measured time for a
        name derive it from these.
        """
        rule = self.scenario.aggregation.rule
        works = dict(self.method.auxiliary(self.setting))
        for size in self.setting.prototypes.values():
            works |= rule.made.auxiliary(rule.kind, size)
        return works

    def _compress_changes(self, round: int) -> Iterable[Work]:
        """Yield the server's compression of each prototype's change of the model."""
        if not self._charge.downlink:
            return
        for name in self.setting.prototypes:
            who = self.first_of(name)
            for field in self.list_weights_down(who, round).values():
                k, choice = self.change_entries(field), self.change_choice
                yield make_codec_work(
                    "compression",
                    who,
                    field,
                    choice,
                    k,
                    kind="packing",
                    name=choice.label,
                )


def count_told(task: Task, choice: Choice, k: int) -> int | None:
    """Return the K of an upload as tables have it.

    That is of how many entries of its longest compressed field it says anything; None
    where that depends on the data. `k`: those that its codec was to keep.
    """
    if not task.plan.longest:
        return k
    field = task.plan.up[task.plan.longest_name]
    return choice.codec.count_told(field.entries, k, field.layout_of(task.who))


def make_codec_work(
    quantity: str,
    who: Who,
    field: Field,
    choice: Choice,
    k: int,
    name: str = "",
    client: int | None = None,
    *,
    kind: str = "",
    times: float = 1.0,
) -> Work:
    """Return the compression or decompression of a field with K entries by a codec.

    Args:
        quantity: `compression` or `decompression`.
        who: whose model's profile is asked.
        field: the field that is coded.
        choice: the codec; its `timed_as` is the name under which devices know it.
        k: entries kept.
        name: label of the span.
        client: the client whose upload the server works on; None: nobody's in
            particular.
        kind: kind of the span; empty: the quantity.
        times: how often it is done.
    """
    codec = choice.codec
    parts = (
        codec.parts(field.entries, k, field.layout_of(who)) if codec.by_layer else ()
    )
    # by place: by name takes half a microsecond longer, three times in each
    # participation
    timed_as = codec.timed_as or choice.strategy
    entries = field.entries
    return Work(
        quantity, who.model, k, times, kind, name, client, timed_as, parts, entries
    )


def make_policy_maker(scenario: Scenario, group: ClientGroup) -> Callable[[], Policy]:
    """Return a maker of policies for a group's clients: each call gives a new one.

    A group's clients share options and arms, never what a policy has learned.
    """
    spec = scenario.policy_of_group(group)
    among = spec.learns and not spec.sets_k
    return prepare_policies(
        spec.kind,
        scenario.compression.choices,
        reward_range=spec.reward.bounds,
        options=spec.options,
        factored=among and scenario.compression.pairs == "factored",
    )


def choose_pull(
    task: Task,
    policy: Policy,
    forced: Choice | None,
    streams: Streams,
    context: Callable[[int], Context] | None = None,
) -> Pull:
    """Return the pull for a task's upload.

    It is the server's forced arm, else the client's policy's choice; where nothing is
    compressed, no policy is asked.

    Args:
        task: of the participation.
        policy: the client's.
        forced: the arm that the server asks of everybody after a rejected round, if
            any.
        streams: keys the policy's draws by client and participation.
        context: client → what its policy is asked with, where it reads that.

    Raises:
        InputError: where a policy answers with text in place of an arm.
    """
    if not task.plan.longest:
        return Pull(NO_COMPRESSION, "fixed")
    if forced is not None:
        return Pull(forced, "forced")
    rng = streams("policy", task.client, task.key) if policy.draws else _UNUSED
    asked = policy.pull
    if context is not None and reads_context(policy):
        asked = partial(cast(Any, policy.pull), context=context(task.client))
    pull = asked(rng)
    if isinstance(pull.arm, str):
        allowed = "one of the policy's arms in a pull, or Choice.of its label"
        raise InputError(allowed, where=f"policy {type(policy).__name__}", got=pull.arm)
    return pull
