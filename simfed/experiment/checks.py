"""Checks of a scenario that need its built parts, and its omissions.

Nothing here simulates, learns or imports torch: work, sizes and paths are asked of the
parts, for each group's first client. `Checks.errors` is what refuses a scenario before
anything is played, `Checks.warnings` what a run tells beside its result. A check is a
method that raises one `InputError`; `errors` gathers those of all groups.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from simfed.compress.choice import Choice
from simfed.compress.slices import sliced
from simfed.experiment.assembly import Parts, WorldParts, check_data, make_parts
from simfed.fleet.columns import describe_forgotten_links
from simfed.fleet.contract import Task
from simfed.fleet.presence import OwnPresence
from simfed.fleet.world import WorldSpec
from simfed.ground.errors import InputError, InputErrors, listed, within
from simfed.ground.method import Field, Method, Plan, Work
from simfed.ground.registry import import_part, registry
from simfed.ground.units import counted, format_bytes, format_duration, format_rate
from simfed.learn.catalogue import dataset_facts
from simfed.net.spec import LatencyTrace, TraceSpec
from simfed.net.trace_files import list_traces
from simfed.scenario import Scenario
from simfed.tasks.privacy import find_unprovable, is_decided_by_time, require_accountant
from simfed.tasks.tasks import Tasks, make_codec_work

if TYPE_CHECKING:
    from simfed.device import Processor, Profile
    from simfed.device.spec import DeviceSpec

_SLOWEST_BYTES_PER_S = 125.0
"""The rate of a link, 1 kbps, below which its unit may be a slip, as where one transfer
takes longer than `_LONGEST_S`."""
_ALL_HALVED = 8
"""Pixels a side of which simfed's own models with batch norm may leave one."""
_LONGEST_S = 86_400.0


class Checks:
    """The checks of a scenario's parts.

    Made by `check_parts` and at the end of a run; it changes nothing, but asks parts
    that are then built.

    Args:
        parts: of the scenario.
        time_only: also find what a run without learning cannot do; samples are not
            dealt then.
    """

    def __init__(self, parts: Parts, *, time_only: bool = False) -> None:
        self._parts = parts
        self._time_only = time_only
        self.scenario, self.fleet = parts.scenario, parts.fleet

    @property
    def tasks(self) -> Tasks:
        """Made when it is first asked for, as it fails with the models' sizes."""
        return self._parts.tasks

    def errors(self) -> list[InputError]:
        """Return all errors that show only when the parts are built.

        They are in file order, each once. Where sizes of models or devices are unknown,
        nothing further is asked, as everything hangs on them.
        """
        errors: list[InputError] = []

        def gather(
            build: Callable[..., object], *about: object, where: str = ""
        ) -> None:
            try:
                build(*about)
            except InputError as error:
                errors.append(error.within(where) if where else error)

        errors += find_unprovable(self.scenario)
        gather(lambda: self._parts.facts)
        gather(lambda: self._parts.recorded)
        if not errors:  # what is drawn from tables
            gather(self._parts.columns)
            gather(self.fleet.availability)
            gather(
                lambda: self.scenario.method.made.check(self.tasks.setting),
                where="method",
            )
            gather(self._check_changes, where="downlink.compression")
        for where, device in self._parts.devices():
            if device.profile is not None:
                gather(self._parts.find_profile, device.profile, where=where)
        if errors:
            return errors
        # a clock without learning deals no samples unless sizes are said
        if not self._time_only or self.scenario.dataset.partition.sized:
            gather(check_data, self.scenario)
        if not self._time_only:
            gather(self._check_learnable)
        for i in range(len(self.scenario.clients)):
            before = len(errors)
            gather(self._try_codecs, i)
            if len(errors) > before:
                continue  # what it would take is no question then
            gather(self._check_story, i, where="method")
            gather(self._check_overlap, i, where=f"clients[{i}].overlap")
            gather(self._check_failure, i)
            gather(self._check_private_uploads, i)
            gather(self._check_attack, i, where=f"clients[{i}].attack")
            if not self._time_only:
                gather(self._check_single_samples, i)
            gather(self._try_device, i, where=f"clients[{i}].device")
            gather(_check_battery, self._parts, i)
            gather(
                self._parts.policy, self.fleet.first(i), where=f"clients[{i}].policy"
            )
            if self._time_only:
                gather(self._check_time_only, i)
        if self._time_only:
            gather(self._check_untold_losses, where="participation.selection")
            gather(self._check_untold_rollback, where="safeguard.rollback")
        gather(self._check_account)
        for where, spec in self._parts.list_server_devices():
            if spec is not None:
                gather(self._try_server, spec, where=where)
        gather(lambda: self._parts.topology)
        gather(lambda: self._parts.network_model)
        return list({str(error): error for error in errors}.values())

    def warnings(self) -> list[str]:
        """Return one sentence for each omission that costs realism.

        Those of the profiles in use stand with them; they are complete after `errors`
        or a run.
        """
        return [
            *warn_of_world(self._parts),
            *self._find_weak_privacy(),
            *self._find_doubled_effects(),
            *self._slow_links(),
            *self._find_untimed_unpacking(),
        ]

    def _arms(self, index: int) -> tuple[Choice, ...]:
        """Return the arms that clients of a group may play, replayed ones included."""
        policy = self.scenario.policy_of_group(self.scenario.clients[index])
        if policy.arms_from is not None:
            played = self._parts.recorded[policy.arms_from]
            clients = self.fleet.members(index).tolist()
            return tuple(
                dict.fromkeys(arm for client in clients for arm in played.arms(client))
            )
        return self.scenario.arms_of_group(self.scenario.clients[index])

    def _list_choices(self, index: int) -> tuple[Choice, ...]:
        """Return a group's arms, and the one that everybody plays after a rollback."""
        arms = self._arms(index)
        policy = self.scenario.policy_of_group(self.scenario.clients[index])
        if self._time_only or policy.arms_from is not None:
            return arms
        return tuple(dict.fromkeys((*arms, *self.scenario.forced_arms)))

    def _list_ends_of_k(
        self, index: int, arms: Iterable[Choice], plan: Plan
    ) -> Iterator[Choice]:
        """Yield each arm at its level, or at the smallest and the largest K.

        Args:
            index: of the group, whose clients' K may be drawn.
            arms: with or without a level.
            plan: of a participation; K is of its longest field.
        """
        for arm in arms:
            for k in dict.fromkeys(
                self.fleet.range_of_k(index, plan.longest, arm.level)
            ):
                yield arm.at(k)

    def _list_codec_work(
        self, quantity: str, task: Task, choice: Choice
    ) -> Iterator[Work]:
        """Yield the work on each compressed field of an upload.

        Args:
            quantity: `compression` or `decompression`.
            task: of the client.
            choice: at a level.
        """
        for field in task.plan.compressed.values():
            k = choice.entries(field.entries)
            yield make_codec_work(
                quantity, task.who, field, choice, k, name=choice.label
            )

    def _try_codecs(self, index: int) -> None:
        """Check that codecs find the shapes of layers that they need.

        Raises:
            InputError: at the strategy, or at the policy that named it.
        """
        task = self._parts.make_group_task(index)
        offered = {choice.strategy for choice in self.scenario.compression.choices}
        key = self.scenario.policy_key(index)
        for arm in self._arms(index) if task.plan.compressed else ():
            try:
                _check_memories(arm, task.plan.compressed)
                for choice in self._list_ends_of_k(index, [arm], task.plan):
                    self.tasks.uplink_bytes(task, choice)
            except InputError as error:
                where = "compression.strategies" if arm.strategy in offered else key
                raise error.within(f"prototype {task.prototype}").within(
                    where
                ) from None

    def list_times(self) -> dict[str, list[tuple[str, str, str]]]:
        """Return the seconds of the work of groups and servers, for `simfed show`.

        Returns:
            Key path of a device → rows of (work, its seconds in words, what these are
            taken
            from). Work that takes no time has no row.
        """
        times = {}
        for i, group in enumerate(self.scenario.clients):
            model = self.scenario.model_names[group.prototype]
            beside = (Work(quantity, model, 1) for quantity in ("starting", "handling"))
            work = (*self._list_client_work(i), *beside, *self._list_unpacking(i))
            times[f"clients[{i}].device"] = _tell_work(self._parts.processors[i], work)
        for where, spec in self._parts.list_server_devices():
            if spec is not None:
                processor = self._parts.build_processor(spec)
                times[where] = _tell_work(processor, self._list_server_work())
        return times

    def _list_client_work(self, index: int) -> Iterator[Work]:
        """Yield a group's work in the first round and in a later one.

        Some methods have nothing to send down at first. Each arm is at both ends of its
        K.
        """
        arms, client = self._list_choices(index), self.fleet.first(index)
        for round in dict.fromkeys((1, min(2, self.scenario.rounds))):
            task = self.tasks.task(round, client, 0)
            yield from task.plan.work
            for choice in self._list_ends_of_k(index, arms, task.plan):
                yield from self._list_codec_work("compression", task, choice)

    def _try_device(self, index: int) -> None:
        """Check that a group's profile knows the times of all of its work.

        Raises:
            InputError: a time, a noise or a power that it lacks.
        """
        group = self.scenario.clients[index]
        processor = self._parts.processors[index]
        model = self.scenario.model_names[group.prototype]
        all_work = list(self._list_client_work(index))
        for work in all_work:
            processor.work_s(work)
        phases = {work.quantity for work in all_work}
        phases |= {"handling"} if processor.charges("handling", model) else set()
        for work in self._list_unpacking(index):
            with suppress(InputError):  # a warning says that it is not known
                processor.work_s(work)
                phases.add(work.quantity)
        for phase in sorted(phases, reverse=True):
            processor.find_noise(phase)
        self._check_power(processor.profile)

    def _check_power(self, profile: Profile) -> None:
        """Check that a profile with power knows that of all phases that take time."""
        phases = {"training", "compression", "uplink", "idle"}
        if self.scenario.charge.downlink:
            phases.add("downlink")
        missing = sorted(phases - profile.power_w.keys())
        if profile.power_w and missing:
            allowed = (
                f"watts for each of {', '.join(sorted(phases))} (or no power at all)"
            )
            got = f"none for {', '.join(missing)}"
            raise InputError(allowed, where=f"{profile.name}: power", got=got)

    def _list_unpacking(self, index: int) -> tuple[Work, ...]:
        """Return a group's work on one change of the model.

        Empty where models travel whole.
        """
        task = self.tasks.task(1, self.fleet.first(index), 1, held=0)
        if self.tasks.changes_vary(task):  # of whatever size, smaller than a model
            task = self.tasks.as_sent(
                task, sizes={name: [0.0] for name in task.plan.down}
            )
        return task.unpacking

    def _check_changes(self) -> None:
        """Check that changes travel down only with methods that send a model down.

        Raises:
            InputError: nothing that travels down is a model's weights.
        """
        if self.scenario.downlink.compression is None:
            return
        down = {
            name: field
            for i in range(len(self.scenario.clients))
            for name, field in self.tasks.task(
                2, self.fleet.first(i), 1
            ).plan.down.items()
        }
        if not any(field.kind == "weights" for field in down.values()):
            allowed = (
                f"null with method {self.scenario.method.kind}, which sends no "
                f"models down"
            )
            raise InputError(allowed, got=f"{listed(down) or 'nothing'} travels down")

    def _check_failure(self, index: int) -> None:
        """Check that only a message that is sent can be lost.

        Raises:
            InputError: a failure of the way on which the method sends nothing.
        """
        failure = self.scenario.clients[index].failure
        method = self.scenario.method.kind
        plan = self.tasks.task(2, self.fleet.first(index), 1).plan
        for way, rate, fields in (
            ("download", failure.download, plan.down),
            ("upload", failure.upload, plan.up),
        ):
            if rate and not fields:
                allowed = f"0 with method {method}: there is no {way} that could fail"
                where = f"clients[{index}].failure.{way}"
                raise InputError(allowed, where=where, got=rate)

    def _find_doubled_effects(self) -> list[str]:
        """Return a sentence for each pair of keys that do the same thing.

        They would do it one on top of the other: samples that count in the choice of
        clients and in the mean, momentum at clients, server and codec.
        """
        scenario, method, sentences = self.scenario, self.scenario.method, []
        asked = scenario.participation.clients_per_round or scenario.client_count
        drawn = scenario.participation.selection.kind == "by-samples"
        drawn = drawn and asked < scenario.client_count
        rule = scenario.aggregation.rule.kind
        if drawn and method.made.weighs_samples and rule in ("mean", "norm-bound"):
            sentences.append(
                "participation.selection by-samples asks clients in proportion to "
                f"their samples, and method {method.kind} weighs by samples what they "
                "send: large owners count twice over (selection uniform, or a method "
                "that counts all alike, does so once)"
            )
        of_clients = scenario.training.momentum
        of_server = getattr(method.made, "momentum", 0.0)
        if of_clients and of_server:
            sentences.append(
                f"training.momentum {of_clients:g} at the clients, and method.beta1 "
                f"{of_server:g} "
                "at the server: the model moves by both, one on top of the other"
            )
        beside = {"training.momentum": of_clients, "method.beta1": of_server}
        for i in range(len(scenario.clients)):
            for choice in self._arms(i):
                momentum = getattr(choice.codec, "momentum", 0.0)
                sentences += [
                    f"compression: {choice.strategy} has a momentum of its own, "
                    f"{momentum:g}, beside {key} {other:g}: the model moves by both, "
                    "one on top of the other"
                    for key, other in beside.items()
                    if momentum and other
                ]
        return list(dict.fromkeys(sentences))

    def _slow_links(self) -> list[str]:
        """Return a sentence for each link so slow that another unit may be meant."""
        ways = {"link.up": "upload", "link.down": "download"}
        sentences = []
        for column in self._parts.columns():
            rates = column.values[column.values > 0]
            if column.field not in ways or not rates.size:
                continue
            rate, task = float(rates.min()), self._parts.make_group_task(column.group)
            size_bytes = task.downlink_bytes
            if column.field == "link.up":
                arms = self._arms(column.group) if task.plan.longest else ()
                choices = self._list_ends_of_k(column.group, arms, task.plan)
                sizes = [self.tasks.uplink_bytes(task, choice) for choice in choices]
                size_bytes = max(
                    (size for size in sizes if size is not None), default=0.0
                )
            takes_s = size_bytes / rate
            if rate < _SLOWEST_BYTES_PER_S or takes_s > _LONGEST_S:
                sentences.append(
                    f"{column.where}: at {format_rate(rate)} one {ways[column.field]} "
                    f"of {format_bytes(size_bytes)} takes {format_duration(takes_s)}; "
                    "is another unit meant, such as Mbps?"
                )
        return sentences

    def _find_untimed_unpacking(self) -> list[str]:
        """Return a sentence for each unpacking whose time no profile knows."""
        sentences = []
        for i, group in enumerate(self.scenario.clients):
            processor = self._parts.processors[i]
            name = processor.profile.name if group.device.profile else "none"
            for work in self._list_unpacking(i):
                try:
                    processor.work_s(work)
                except InputError:
                    sentences.append(
                        f"device profile {name}: decompression of {work.model} by "
                        f"{work.name} is not known, so unpacking what travels down "
                        "takes no time"
                    )
        return list(dict.fromkeys(sentences))

    def _check_time_only(self, index: int) -> None:
        """Check that nothing hangs on learning in a run without it.

        There are no rewards for policies, and no sizes that depend on what is learned.
        A recorded run in `arms_from` has both.

        Raises:
            InputError: the policy learns, or a size is not known beforehand.
        """
        group = self.scenario.clients[index]
        policy = self.scenario.policy_of_group(group)
        if policy.arms_from is not None:
            return  # both were recorded
        if policy.learns:
            allowed = "a policy that needs no rewards in a time-only run"
            where = f"{self.scenario.policy_key(index)}.kind"
            hint = "policy.arms_from: RUN replays the arms of a full run"
            raise InputError(allowed, where=where, got=policy.kind, hint=hint)
        from simfed.sim import TimeOnlyWorkload

        task, workload = (
            self._parts.make_group_task(index),
            TimeOnlyWorkload(self.tasks),
        )
        arms = self._arms(index)
        for choice in self._list_ends_of_k(index, arms, task.plan):
            workload.size_bytes(task, choice)

    def _check_untold_losses(self) -> None:
        """Check that no losses select clients in a run without learning."""
        scenario, selection = self.scenario, self.scenario.participation.selection
        policies = map(scenario.policy_of_group, scenario.clients)
        if selection.needs_losses and any(
            policy.arms_from is None for policy in policies
        ):
            allowed = (
                "a selection that needs no losses in a time-only run, such as fastest"
            )
            raise InputError(allowed, got=selection.kind)

    def _check_untold_rollback(self) -> None:
        """Check that no round can be undone in a run without learning.

        It forces nobody either.
        """
        policies = map(self.scenario.policy_of_group, self.scenario.clients)
        choosing = [policy for policy in policies if policy.arms_from is None]
        if any(policy.learns for policy in choosing):
            return  # refused already, and the rollback comes with them
        if self.scenario.safeguard.rollback is not None and choosing:
            allowed = (
                "null in a time-only run, which has no losses that would undo a round"
            )
            hint = "policy.arms_from: RUN replays what a full run played"
            raise InputError(allowed, got="a rollback", hint=hint)

    def _check_attack(self, index: int) -> None:
        """Check that a group's attack can be made on this data set."""
        attack = self.scenario.clients[index].attack
        if attack is not None:
            attack.made.check(dataset_facts(self.scenario.dataset))

    def _check_learnable(self) -> None:
        """Check that there is a model behind each prototype."""
        for name, prototype in self.scenario.prototypes.items():
            if prototype.facts is not None:
                raise InputError(
                    "a model where something is learned",
                    where=f"prototypes.{name}.facts",
                    problem="facts alone learn nothing",
                    hint="simfed run --time-only",
                )

    def _check_single_samples(self, index: int) -> None:
        """Check that nobody trains batch norm on a batch of one.

        The model is a client's own or a method's student. Where it is known that no
        model has batch norm, neither data nor PyTorch are asked.

        Raises:
            InputError: a client whose last batch has one sample, on a model that
            refuses it.
        """
        training, data = self.scenario.training, dataset_facts(self.scenario.dataset)
        work = self._parts.make_group_task(index).plan.work
        trained = {piece.model for piece in work if piece.quantity == "training"}
        pixels = max(data.input_shape[1:], default=1)
        normed = {
            name: str(prototype.model)
            for name, prototype in self.scenario.prototypes.items()
            if prototype.name(name) in trained
            and self._parts.facts[name].buffers  # so it is a whole registered model
            and (
                pixels <= _ALL_HALVED
                or registry("model").origin(str(prototype.model)) != "built in"
            )
        }
        if not normed:
            return  # known without PyTorch, and without the files of the data
        whole, method = training.batch_size, self.scenario.method.made
        for client in self.fleet.members(index):
            samples = self._parts.samples_of(int(client))
            last = (
                samples % whole
                if training.local_epochs is not None
                or self.scenario.clients[index].local_epochs is not None
                or getattr(method, method.further_epochs or "further_epochs")
                else min(samples, whole)
            )
            if last == 1 or whole == 1:
                break
        else:
            return
        takes_one = import_part("simfed.learn.models.build:takes_one_sample")
        for name, model in normed.items():
            if takes_one(model, data.input_shape, data.classes):
                continue
            raise InputError(
                "a batch size that leaves nobody a batch of one, or a model without "
                "batch norm such as resnet18-gn",
                where="training.batch_size",
                problem=f"client {client} owns {samples} of the samples, which in "
                f"batches of {whole} come to a batch of one, and the batch "
                f"norm of prototype {name!r} needs two at least",
                hint="or a partition in which everybody owns several"
                if samples == 1
                else None,
            )

    def _check_story(self, index: int) -> None:
        """Check that a method's own story can be told.

        Nobody may wait alone at its barriers.

        Raises:
            InputError: edge servers, clients kept in flight at barriers, a story that
                no world can play, or a barrier to which a client of the group never
                comes.
        """
        story, aggregation = self.tasks.story, self.scenario.aggregation
        if story is None:
            return
        if aggregation.edge_servers is not None:
            raise InputError(
                "a method without a story of its own, in which edge servers would take "
                "the server's place",
                got=story.method,
            )
        first, group = self.fleet.first(index), self.fleet.group
        tasks = [
            self.tasks.task(1, c, 0)
            for c in (first, first + 1)
            if index in group[c : c + 1]
        ]
        told = [story.rehearse(task.who, task.round, task.plan) for task in tasks]
        if told[0].barriers and aggregation.concurrency is not None:
            raise InputError(
                "a server that starts its clients together (synchronous, deadline or "
                "first), as the method's story has barriers",
                got=aggregation.mode,
            )
        for one, other in itertools.pairwise(told):
            for barrier in set(one.barriers) - set(other.barriers):
                one.refuse(
                    f"waits for nobody at barrier {barrier!r}, to which client "
                    f"{other.who.client} of its group never comes"
                )

    def _check_overlap(self, index: int) -> None:
        """Check that what is cut into slices selects at least as many entries.

        Raises:
            InputError: nothing is compressed, a codec that needs the whole vector, or
                more chunks than entries.
        """
        overlap, task = (
            self.scenario.clients[index].overlap,
            self._parts.make_group_task(index),
        )
        if overlap is None:
            return
        if not task.plan.longest:
            raise InputError(
                "a method whose uploads are compressed", problem="nothing is compressed"
            )
        for arm in self._list_choices(index):
            sliced(arm, overlap.chunks)
            least, _ = self.fleet.range_of_k(index, task.plan.longest, arm.level)
            if least < overlap.chunks:
                raise InputError(
                    f"at most {least} chunks, the entries that {arm.label} sends at "
                    f"the least",
                    where="chunks",
                    got=overlap.chunks,
                )

    def _check_account(self) -> None:
        """Check that what counts ε is installed, and some noise meets the target."""
        account = self._parts.account()
        if account is not None:
            require_accountant()
            _ = account.noise

    def _check_private_uploads(self, index: int) -> None:
        """Check that private data leave a client by way of what is clipped alone.

        Raises:
            InputError: running statistics or other fields travel beside the update; the
                method trains in its own way under privacy of samples; or an upload's
                size would tell who is merged.
        """
        scenario, privacy = self.scenario, self.scenario.privacy
        if privacy is None:
            return
        group, task = scenario.clients[index], self._parts.make_group_task(index)
        if any(
            field.kind == "buffers" and field.entries for field in task.plan.up.values()
        ):
            raise InputError(
                "a model without batch norm under privacy",
                where=f"prototypes.{group.prototype}.model",
                got=task.model,
                problem="running statistics of the data travel outside the clip",
            )
        if privacy.level == "sample":
            if type(scenario.method.made).train is not Method.train:
                allowed = (
                    "a method whose clients train by `local_steps` with privacy "
                    "of samples"
                )
                raise InputError(allowed, where="method", got=scenario.method.kind)
            return
        beside = [
            n for n, field in task.plan.up.items() if n != "update" and field.entries
        ]
        if beside:
            allowed = "a method that sends updates alone under privacy of clients"
            problem = f"{listed(beside)} would travel outside the clip"
            raise InputError(
                allowed, where="method", got=scenario.method.kind, problem=problem
            )
        if not is_decided_by_time(scenario):
            return
        for choice in self._list_ends_of_k(index, self._arms(index), task.plan):
            if self.tasks.uplink_bytes(task, choice) is None:
                raise InputError(
                    "codecs of a size known beforehand under privacy of clients, where "
                    "it hangs on time who is merged",
                    where="compression",
                    got=choice.label,
                    hint="another index code or level, or mode synchronous",
                )

    def _find_weak_privacy(self) -> list[str]:
        """Return a sentence where ε counts for more or less than one may think."""
        account, privacy = self._parts.account(), self.scenario.privacy
        if account is None or privacy is None:
            return []
        sentences, delta = [], privacy.spent_delta
        if not account.amplified:
            sentences.append(
                "privacy: ε is not amplified by sampling: it counts the most merges of "
                "any client, and replacing a client's data, for which half of the "
                "noise counts; amplified is participation.selection poisson with mode "
                "synchronous, clients always there and a server that does not restart"
            )
        if privacy.level == "client" and delta * self.scenario.client_count >= 1:
            sentences.append(
                f"privacy: delta {delta:g} is no less than 1 / "
                f"{self.scenario.client_count:,} "
                "clients: such a δ allows to publish all of one client's data"
            )
        return sentences

    def _list_server_work(self) -> Iterator[Work]:
        """Yield a server's work, of one upload of each group.

        Each arm is at both ends of its K. Merging is asked with as many uploads of each
        group as its rule needs at the least.
        """
        first = [
            self._parts.make_group_task(i) for i in range(len(self.scenario.clients))
        ]
        for i, task in enumerate(first):
            arms = self._list_choices(i)
            for choice in self._list_ends_of_k(i, arms, task.plan):
                yield from self._list_codec_work("decompression", task, choice)
        enough = [
            task.who for task in first
        ] * self.scenario.aggregation.rule.made.least
        yield from self.tasks.server_work(enough, self.scenario.rounds)

    def _try_server(self, spec: DeviceSpec) -> None:
        """Check that a server's profile knows the times of the work that it charges.

        Raises:
            InputError: a time or a noise that it lacks.
        """
        processor = self._parts.build_processor(spec)
        work = [
            w
            for w in self._list_server_work()
            if processor.charges(w.quantity, w.model)
        ]
        for quantity in {piece.quantity for piece in work}:
            processor.find_noise(quantity)
        for piece in work:
            processor.work_s(piece)


def warn_of_world(parts: WorldParts) -> list[str]:
    """Return a sentence for each omission of a world that costs realism.

    Links that nobody described, edges without latency, traces that clients share, and
    the warnings of profiles.

    Args:
        parts: of any world; their profiles are read.
    """
    of_profiles = (w for p in parts.profiles.values() for w in p.warnings)
    return [
        *describe_forgotten_links(parts.world),
        *_list_edges_without_latency(parts),
        *_list_shared_traces(parts.world),
        *dict.fromkeys(of_profiles),
    ]


def _list_edges_without_latency(parts: WorldParts) -> list[str]:
    """Return a sentence where a graph's file does not say how long its edges are."""
    network = parts.world.network
    if network.file is None:
        return []
    lines = parts.topology.lines[:-2]  # the last two are the server's own
    at_once = sum(not line.latency_s for line in lines)
    if not at_once:
        return []
    return [
        f"network.file: {at_once:,} of {len(lines):,} ways over edges of "
        f"{Path(network.file).name} take no time: their attribute `latency`, such as 5 "
        "ms, is missing or 0"
    ]


def _list_shared_traces(world: WorldSpec) -> Iterator[str]:
    """Yield a sentence for each list or folder of traces that is too short."""
    for i, group in enumerate(world.clients):
        for key in ("up", "down", "rate", "latency", "down_latency"):
            trace = getattr(group.link, key)
            if not isinstance(trace, TraceSpec | LatencyTrace) or trace.file is None:
                continue
            files = list_traces(trace.file)
            if files != (trace.file,) and len(files) < group.count:
                yield (
                    f"clients[{i}].link.{key}: {group.count:,} clients take "
                    f"{counted(len(files), 'trace')} in turn, so that some have the "
                    "same"
                )


def _tell_work(
    processor: Processor, work: Iterable[Work]
) -> list[tuple[str, str, str]]:
    """Return (work, its seconds in words, what these are taken from) of each unit.

    Units that the processor does not charge, or whose time nobody knows, are left out.
    """
    rows = []
    for piece in work:
        if not processor.charges(piece.quantity, piece.model):
            continue
        size = f"K = {piece.size:,}" if piece.strategy else f"{piece.size:,} samples"
        by = f" by {piece.strategy}" if piece.strategy else ""
        what = f"{piece.quantity} of {piece.model}{by}, {size}"
        with suppress(InputError):  # a warning says what unpacking is not known
            takes, source = (
                format_duration(processor.work_s(piece)),
                processor.tell_source(piece),
            )
            rows.append((what, takes, source))
    return list(dict.fromkeys(rows))


def _check_memories(choice: Choice, fields: Mapping[str, Field]) -> None:
    """Raise `InputError` for a codec that would send once more what it left out.

    That is where what is left out is in the next value by itself.

    Args:
        choice: the codec.
        fields: those that it compresses, by name.
    """
    for name, field in fields.items():
        if not field.feedback and choice.codec.feedback == "own":
            raise InputError(
                f"a codec that keeps no error of its own for {name}: what is left out "
                "of it is not to be added to the next",
                got=choice.label,
            )


def check(
    scenario: Scenario, *, source: str | Path | None = None, time_only: bool = False
) -> list[str]:
    """Build everything that needs no torch; return the warnings of a run.

    This is what `simfed validate` does: nothing is trained, and no clock runs.

    Args:
        scenario: a loaded one.
        source: the file it came from, beside which its other files are looked for; the
            current folder if omitted.
        time_only: check it as a run that plays the clock alone, which needs no data.

    Returns:
        One sentence per warning; empty where there is nothing to say.

    Raises:
        InputErrors: with every sentence at once: profiles that lack rows, a topology
            that leads nowhere, options of policies, too little data for the clients.
    """
    return Checks(check_parts(scenario, source, time_only)).warnings()


def check_parts(
    scenario: Scenario, source: str | Path | None, time_only: bool
) -> Parts:
    """Return the scenario's parts, all of them built.

    Args:
        scenario: a validated one.
        source: its file, see `WorldParts`.
        time_only: as for a run of the clock alone.

    Raises:
        InputErrors: one sentence for each error, see `Checks.errors`.
    """
    parts = Parts(scenario, source)
    errors = Checks(parts, time_only=time_only).errors()
    if errors:
        raise InputErrors([error.within(parts.name) for error in errors])
    return parts


def check_world(world: WorldSpec, source: str | Path | None) -> WorldParts:
    """Return the parts of a world, whatever learns in it, all of them built.

    Args:
        world: a scenario or an app's fleet.
        source: its file, see `WorldParts`.

    Raises:
        InputErrors: the first thing that is wrong with profiles, tables, availability
            or topology.
    """
    parts = make_parts(world, source)
    try:
        for where, spec in parts.devices():
            with within(where):
                parts.build_processor(spec).find_noise("training")
        parts.columns()
        parts.fleet.availability()
        parts.server_device()
        _ = parts.topology, parts.network_model
        for group in range(len(world.clients)):
            _check_battery(parts, group)
    except InputError as error:
        raise InputErrors([error.within(parts.name)]) from None
    return parts


def _check_battery(parts: WorldParts, group: int) -> None:
    """Raise where a group's energy is unknown and its presence depends on it."""
    spec = parts.world.clients[group].availability
    needs_power = isinstance(spec, OwnPresence) and getattr(
        spec.made, "needs_power", False
    )
    if needs_power and not parts.processors[group].profile.power_w:
        raise InputError(
            "work_w, or a device profile with power",
            where="work_w",
            problem="nobody knows how much energy the devices' work takes",
        ).within(f"clients[{group}].availability")
