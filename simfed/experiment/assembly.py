"""From a scenario to built parts: profiles, devices, policies, the network; and what is wrong with
them.

Nothing here simulates, learns or imports torch, so that `simfed validate` finds every mistake in a
moment. `simfed.experiment.running` builds the rest and lets the clock play.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simfed.compress.choice import Choice
from simfed.compress.slices import sliced
from simfed.device import (
    Device,
    ModelWork,
    Processor,
    Profile,
    build_processor,
    find_profile,
    load_profile,
    profile_folders,
    profile_names,
    shipped_name,
)
from simfed.fleet.columns import Fleet, forgotten_links
from simfed.fleet.contract import Task
from simfed.fleet.edges import EdgeServer
from simfed.fleet.faults import Exponential, Faults, Messages, Rhythm
from simfed.fleet.privacy import (
    Account,
    account_of,
    find_unprovable,
    require_accountant,
    time_decides,
)
from simfed.fleet.tasks import Tasks, codec_work, policies_of
from simfed.ground.distributions import Discrete, Law
from simfed.ground.errors import InputError, InputErrors, listed
from simfed.ground.measure import MEASURES, Measure
from simfed.ground.method import Method, Plan, Work
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.ground.steps import Wait, check_steps, nodes_of
from simfed.ground.strikes import Strikes
from simfed.ground.units import format_bytes, format_duration, format_rate
from simfed.learn.catalogue import ModelFacts, dataset_facts, facts
from simfed.record.read import Run, open_run
from simfed.record.schema import OwnColumns, measure_columns
from simfed.scenario import Scenario
from simfed.scenario.distribution import QUANTITIES as DRAWN
from simfed.scenario.distribution import Distribution
from simfed.scenario.load import validated
from simfed.scenario.presence import OwnPresence

if TYPE_CHECKING:
    from simfed.fleet.columns import FleetColumn
    from simfed.learn.data.owned import Owned
    from simfed.net import Model, Topology
    from simfed.net.traces import LinkTrace
    from simfed.policy import Policy
    from simfed.record.read import Run
    from simfed.scenario.device import DeviceSpec
    from simfed.scenario.faults import MessagesSpec, Strike
    from simfed.scenario.model import ClientGroup
    from simfed.sim import Recorded

_SLOWEST_BYTES_PER_S = 125.0
"""Of a link, 1 kbps: below that, and where one transfer takes longer than `_LONGEST_S`, its unit
may be a slip."""
_LONGEST_S = 86_400.0


class Parts:
    """Everything of a scenario that is built without torch, made when it is first asked for.

    `source` is the scenario's file: profiles are looked for beside it, in a folder `calibration`
    there or above, and among simfed's own.
    """

    def __init__(self, scenario: Scenario, source: str | Path | None = None) -> None:
        self.scenario = scenario
        self.streams = Streams(scenario.seed)
        self._source = Path(source) if source is not None else None
        self.fleet = Fleet(scenario, self.streams)

    @property
    def name(self) -> str:
        """What errors call this scenario: its file, or its name."""
        return str(self._source) if self._source is not None else self.scenario.name

    @cached_property
    def facts(self) -> dict[str, ModelFacts]:
        """Prototype → sizes of its model."""
        dataset = self.scenario.dataset
        return {name: facts(p.model, dataset) for name, p in self.scenario.prototypes.items()}

    @cached_property
    def profile_files(self) -> dict[str, Path]:
        """Profile name → the file that it stands for."""
        names = dict.fromkeys(spec.profile for _, spec in self._devices())
        return {name: self._find_profile(name) for name in names if name is not None}

    @cached_property
    def profiles(self) -> dict[str, Profile]:
        """Profile name → profile, told the sizes of the models in use."""
        profiles: dict[str, Profile] = {}
        for name, file in self.profile_files.items():
            profile = profiles[name] = load_profile(file)
            for prototype, of_model in self.facts.items():
                profile.models[self.scenario.prototypes[prototype].model] = ModelWork(
                    of_model.parameters, of_model.forward_flops, of_model.train_flops
                )
            for work, flops in self.tasks.auxiliary().items():
                profile.models[work] = ModelWork(0, flops, flops)
        return profiles

    @property
    def shipped_profiles(self) -> list[str]:
        """Which of simfed's own profiles are in use, each as it is shipped."""
        return sorted(filter(None, map(shipped_name, self.profile_files.values())))

    @cached_property
    def processors(self) -> list[Processor]:
        """Group index → the processor model of its clients' devices."""
        return [self._build_processor(group.device) for group in self.scenario.clients]

    @cached_property
    def recorded(self) -> dict[str, Recorded]:
        """Run directory → its recorded arms and sizes, for `policy.arms_from`."""
        named: dict[str, str] = {}
        for i, group in enumerate(self.scenario.clients):
            run = self.scenario.policy_of_group(group).arms_from
            if run is not None:
                named.setdefault(run, "policy" if group.policy is None else f"clients[{i}].policy")
        return {
            run: self._read_recorded(run, f"{policy}.arms_from") for run, policy in named.items()
        }

    @property
    def changes_vary(self) -> bool:
        """Whether models travel down as changes whose sizes depend on what is learned."""
        return any(
            self.tasks.changes_vary(self._task_of_group(i))
            for i in range(len(self.scenario.clients))
        )

    def columns(self) -> list[FleetColumn]:
        """The quantities of all clients, fixed or drawn, group by group."""
        return self.fleet.columns({name: model.parameters for name, model in self.facts.items()})

    def group(self, client: int) -> ClientGroup:
        """The group a client belongs to."""
        return self.scenario.clients[int(self.fleet.group[client])]

    @cached_property
    def tasks(self) -> Tasks:
        """The tasks of clients and their sizes in bytes."""
        tests = dataset_facts(self.scenario.dataset).test_samples
        return Tasks(self.scenario, self.facts, self.samples_of, test_samples=tests)

    def samples_of(self, client: int) -> int:
        """How many training samples a client owns."""
        return self._owned_samples[client]

    @cached_property
    def _owned_samples(self) -> list[int]:
        """How many training samples each client owns, as learning deals them.

        Where they cannot be dealt, which only a clock without learning allows, all own equally
        many, and at least one.
        """
        from simfed.learn.data import split_of

        data, clients = self.scenario.dataset, self.scenario.client_count
        try:
            self._check_data()
        except InputError:
            return [max(1, dataset_facts(data).train_samples // clients)] * clients
        split = split_of(self.scenario, self.streams)
        return [len(samples) for samples in split.clients]

    def account(self) -> Account | None:
        """A new account of what privacy costs; None: there is none."""
        return account_of(self.scenario, self.samples_of)

    @property
    def task(self) -> str:
        """Of the data: classification, regression or next-token."""
        return dataset_facts(self.scenario.dataset).task

    @property
    def measure(self) -> Measure:
        """By what models of the task are judged."""
        return MEASURES[self.task]

    @property
    def own_columns(self) -> OwnColumns:
        """What the scenario and the measure add to the tables of the run."""
        columns = dict(self.scenario.own_columns)
        for table, names in measure_columns(self.measure).items():
            columns[table] = (*columns.get(table, ()), *names)
        return columns

    @cached_property
    def owned(self) -> Owned:
        """How many samples of which classes each client owns, and the size of the public set."""
        from simfed.learn.data.owned import owned_in

        return owned_in(self.scenario, self.streams)

    def device(self, client: int) -> Device:
        """A new device of this client, with its own speed and its own noise."""
        processor = self.processors[int(self.fleet.group[client])]
        return processor.client(self.streams, client, self.fleet.speed(client))

    def server_device(self) -> Device | None:
        """The server's device; it is nobody's client, so its draws are keyed by -1."""
        spec = self.scenario.server.device
        return None if spec is None else self._build_processor(spec).client(self.streams, -1)

    def policy(self, client: int) -> Policy:
        """A new policy for one client."""
        return self._policy_makers[int(self.fleet.group[client])](client)

    @cached_property
    def _policy_makers(self) -> list[Callable[[int], Policy]]:
        """Group index → a function that makes the policy of a client of this id."""
        return [self._policy_maker(group) for group in self.scenario.clients]

    def _policy_maker(self, group: ClientGroup) -> Callable[[int], Policy]:
        run = self.scenario.policy_of_group(group).arms_from
        if run is not None:
            return partial(self.replay, self.recorded[run])
        from simfed.policy import serves_all

        make = policies_of(self.scenario, group)
        first = make()
        return (lambda client: first) if serves_all(first) else (lambda client: make())

    def replay(self, recorded: Recorded, client: int) -> Policy:
        """A policy that plays what one client played in a recorded run."""
        from simfed.policy import Replay

        played = recorded.arms(client)
        arms = tuple(dict.fromkeys((*self.scenario.compression.choices, *played)))
        return Replay(arms, recorded=played, levels=recorded.levels(client))

    def _server_devices(self) -> Iterator[tuple[str, DeviceSpec | None]]:
        """Of the server and of edge servers, with where the scenario says them."""
        yield "server.device", self.scenario.server.device
        edges = self.scenario.aggregation.edge_servers
        if edges is not None:
            yield "aggregation.edge_servers.device", edges.device

    def _devices(self) -> Iterator[tuple[str, DeviceSpec]]:
        """Of clients and servers, with where the scenario says them."""
        for i, group in enumerate(self.scenario.clients):
            yield f"clients[{i}].device", group.device
        for where, spec in self._server_devices():
            if spec is not None:
                yield where, spec

    @property
    def edge_servers(self) -> list[EdgeServer]:
        """Where they are, with new devices; empty: clients' uploads go to the server."""
        spec = self.scenario.aggregation.edge_servers
        if spec is None:
            return []
        nodes, node_of_client = self.topology.end_at(self._tier(spec.at))
        processor = None if spec.device is None else self._build_processor(spec.device)
        rhythm, streams = _make_rhythm(spec.restarts), self.streams
        first = self.scenario.client_count
        return [
            EdgeServer(
                name,
                np.flatnonzero(node_of_client == k),
                None if processor is None else processor.client(streams, first + k),
                None if rhythm is None else Strikes(rhythm, streams, "restart", name),
            )
            for k, name in enumerate(nodes)
        ]

    def _tier(self, name: str) -> list[str]:
        """The nodes of a tier of the network."""
        from simfed.net import Tier

        count = next(tier.count for tier in self.scenario.network.tiers if tier.name == name)
        tier = Tier(name, count)
        return [tier.node(k) for k in range(count)]

    @cached_property
    def topology(self) -> Topology:
        """Links and paths of all clients."""
        from simfed import net

        topology = net.build(
            self.scenario.network.plain(),
            self.fleet.links(),
            self.streams,
            link_of_client=self.fleet.group,
        )
        spec = self.scenario.faults
        if self.faults is not None and spec is not None and spec.stalls is not None:
            which = spec.stalls.links
            net.stall(
                topology,
                self.faults.stalls_of,
                access=which in ("clients", "all"),
                lines=which in ("network", "all"),
            )
        return topology

    @cached_property
    def faults(self) -> Faults | None:
        """The faults of the simulated world; None: nothing goes wrong."""
        spec = self.scenario.faults
        if spec is None:
            return None
        return Faults(
            self.streams,
            stalls=_make_rhythm(spec.stalls),
            freezes=_make_rhythm(spec.freezes),
            messages=_make_messages(spec.messages),
            restarts=_make_rhythm(spec.restarts),
        )

    @cached_property
    def network_model(self) -> Model:
        """The model of a transfer: fluid or TCP."""
        from simfed import net

        return net.build_model(self.scenario.network.plain())

    def errors(self, *, time_only: bool = False) -> list[InputError]:
        """All errors that show only when the parts are built, in file order, each once.

        `time_only`: also what a run without learning cannot do; samples are not dealt then.
        """
        errors: list[InputError] = []

        def gather(build: Callable[[], object], where: str | None = None) -> None:
            try:
                build()
            except InputError as error:
                errors.append(error.within(where) if where else error)

        errors += find_unprovable(self.scenario)
        gather(lambda: self.facts)
        gather(lambda: self.recorded)
        if not errors:  # what is drawn from tables
            gather(self.columns)
            gather(self.fleet.availability)
            gather(lambda: self.scenario.method.made.check(self.tasks.setting), "method")
            gather(self._check_changes, "downlink.compression")
        for where, device in self._devices():
            if device.profile is not None:
                gather(partial(self._find_profile, device.profile), where)
        if errors:
            return errors
        if not time_only:  # a clock without learning deals no samples
            gather(self._check_data)
        for i in range(len(self.scenario.clients)):
            before = len(errors)
            gather(partial(self._try_codecs, i))
            if len(errors) > before:
                continue  # what it would take is no question then
            gather(partial(self._check_steps, i), "method")
            gather(partial(self._check_overlap, i, time_only), f"clients[{i}].overlap")
            gather(partial(self._check_private_uploads, i))
            gather(partial(self._check_attack, i), f"clients[{i}].attack")
            gather(partial(self._try_device, i, time_only), f"clients[{i}].device")
            gather(partial(self._check_battery, i), f"clients[{i}].availability")
            gather(partial(self.policy, self.fleet.first(i)), f"clients[{i}].policy")
            if time_only:
                gather(partial(self._check_time_only, i))
        gather(self._check_account)
        for where, spec in self._server_devices():
            if spec is not None:
                gather(partial(self._try_server, spec, time_only), where)
        gather(lambda: self.topology)
        gather(lambda: self.network_model)
        return list({str(error): error for error in errors}.values())

    def warnings(self) -> list[str]:
        """One sentence for each omission that costs realism, and those of the profiles in use,
        which are complete after `errors` or a run."""
        of_profiles = (w for p in self.profiles.values() for w in p.warnings)
        return [
            *forgotten_links(self.scenario),
            *self._weak_privacy(),
            *self._slow_links(),
            *dict.fromkeys(of_profiles),
            *self._not_timed(),
        ]

    # ---- inside ----------------------------------------------------------------------------------

    def _find_profile(self, name: str) -> Path:
        return find_profile(name, profile_folders(self._source.parent if self._source else Path()))

    def _build_processor(self, spec: DeviceSpec) -> Processor:
        return build_processor(spec.plain(), self._profile_of(spec), self.streams)

    def _profile_of(self, spec: DeviceSpec) -> Profile:
        """The device's profile; an empty one where the scenario states the times."""
        if spec.profile is None:
            return Profile("times said in the scenario", "table", {})
        return self.profiles[spec.profile]

    @staticmethod
    def _read_recorded(run: str, where: str) -> Recorded:
        from simfed.sim import Recorded  # brings simpy

        try:
            return Recorded(open_run(run))
        except InputError as error:
            raise error.within(where) from None

    def _check_data(self) -> None:
        """Every client owns a sample, and no shard is empty."""
        data, clients = self.scenario.dataset, self.scenario.client_count
        sizes = dataset_facts(data)
        method = self.scenario.method
        if sizes.task != "classification" and method.made.needs_classes:
            allowed = f"a method without classes for a {sizes.task} task, such as fedavg"
            problem = f"{method.kind} compares classes"
            raise InputError(allowed, where="method.kind", got=method.kind, problem=problem)
        samples, kind = sizes.train_samples, data.partition.kind
        if kind == "natural" and clients > sizes.owners:
            if not sizes.owners:
                allowed = "a data set that names owners"
                hint = "owner: COLUMN, arrays owner_train, a folder per owner"
                raise InputError(allowed, where="dataset.partition.kind", got=kind, hint=hint)
            allowed = f"at most {sizes.owners}, as many as there are owners"
            raise InputError(allowed, where="clients", got=clients)
        if kind in ("dirichlet", "shards") and sizes.task != "classification":
            allowed = f"natural, quantity, feature or iid, as a {sizes.task} has no classes"
            raise InputError(allowed, where="dataset.partition.kind", got=kind)
        if kind == "feature" and len(sizes.input_shape) != 3:
            got = f"samples of shape {sizes.input_shape}"
            raise InputError("feature with images alone", where="dataset.partition.kind", got=got)
        public = self.scenario.public_dealt
        most = samples - min(public, 1)
        if clients > most:
            allowed = f"at most {most} clients, as {data.label} has {samples} training samples"
            raise InputError(allowed, where="clients", got=clients)
        most = samples - clients
        if public > most:
            allowed = f"at most {most} public images, so that each client owns one of the {samples}"
            raise InputError(allowed, where="dataset.public", got=public)
        most, shards = (samples - public) // clients, data.partition.shards_per_client
        if data.partition.kind == "shards" and shards > most:
            allowed = f"at most {most}, so that no shard is empty"
            where = "dataset.partition.shards_per_client"
            raise InputError(allowed, where=where, got=shards)

    def _arms(self, index: int) -> tuple[Choice, ...]:
        policy = self.scenario.policy_of_group(self.scenario.clients[index])
        if policy.arms_from is not None:
            played = self.recorded[policy.arms_from]
            clients = self.fleet.members(index).tolist()
            return tuple(dict.fromkeys(arm for client in clients for arm in played.arms(client)))
        return self.scenario.arms_of_group(self.scenario.clients[index])

    def _arms_and_forced(self, index: int, time_only: bool) -> tuple[Choice, ...]:
        """A group's arms, and the one that everybody plays after a rollback."""
        scenario = self.scenario
        recorded = scenario.policy_of_group(scenario.clients[index]).arms_from is not None
        if time_only or recorded:
            return self._arms(index)
        return tuple(dict.fromkeys((*self._arms(index), *scenario.forced_arms)))

    def _at_both_ends(self, index: int, arms: Iterable[Choice], plan: Plan) -> Iterator[Choice]:
        """Each arm at its level, or at the smallest and the largest K of the group's clients."""
        for arm in arms:
            if arm.fields:
                ends = {
                    name: self.fleet.range_of_k(index, field.entries, arm.of_field(name).level)
                    for name, field in plan.compressed.items()
                }
                for end in (0, 1):
                    yield Choice.per_field(
                        {name: arm.of_field(name).at(ks[end]) for name, ks in ends.items()}
                    )
                continue
            for k in dict.fromkeys(self.fleet.range_of_k(index, plan.longest, arm.level)):
                yield arm.at(k)

    def _codec_work(self, quantity: str, task: Task, choice: Choice) -> Iterator[Work]:
        """The work on each compressed field of an upload."""
        for name, field in task.plan.compressed.items():
            of_field = choice.of_field(name)
            k = of_field.entries(field.entries)
            yield codec_work(quantity, task.who, field, of_field, k, name=choice.label)

    def _try_codecs(self, index: int) -> None:
        """Codecs that look at the shapes of layers find what they need in the prototype's, and
        choices per field the fields that they speak of."""
        task = self._task_of_group(index)
        offered = {choice.strategy for choice in self.scenario.compression.choices}
        by_group = self.scenario.clients[index].policy is not None
        policy_key = f"clients[{index}].policy" if by_group else "policy"
        for arm in self._arms(index) if task.plan.compressed else ():
            try:
                arm.check_fields(task.plan.compressed)
                for choice in self._at_both_ends(index, [arm], task.plan):
                    self.tasks.uplink_bytes(task, choice)
            except InputError as error:
                where = "compression.strategies" if arm.strategy in offered else policy_key
                raise error.within(f"prototype {task.prototype}").within(where) from None

    def _check_battery(self, group: int) -> None:
        """Whether somebody knows what a group's work takes, where who is there depends on it."""
        spec = self.scenario.clients[group].availability
        needs_power = isinstance(spec, OwnPresence) and getattr(spec.made, "needs_power", False)
        if needs_power and not self.processors[group].profile.power_w:
            raise InputError(
                "work_w, or a device profile with power",
                where="work_w",
                problem="nobody knows how much energy the devices' work takes",
            )

    def _try_device(self, index: int, time_only: bool) -> None:
        group = self.scenario.clients[index]
        processor = self._build_processor(group.device)
        model = self.scenario.prototypes[group.prototype].model
        task = self._task_of_group(index)
        for work in task.plan.work:
            processor.work_s(work)
        arms = self._arms_and_forced(index, time_only)
        for choice in self._at_both_ends(index, arms, task.plan):
            for work in self._codec_work("compression", task, choice):
                processor.work_s(work)
        phases = {work.quantity for work in task.plan.work}
        phases |= {"compression"} if task.plan.compressed else set()
        phases |= {"handling"} if processor.charges("handling", model) else set()
        for work in self._unpacking(index):
            with suppress(InputError):  # a warning says that it is not known
                processor.work_s(work)
                phases.add(work.quantity)
        for phase in sorted(phases, reverse=True):
            processor.noise_of(phase)
        self._check_power(processor.profile)

    def _check_power(self, profile: Profile) -> None:
        """A profile that knows the power of some phases must know that of all that take time."""
        phases = {"training", "compression", "uplink", "idle"}
        if self.scenario.charge.downlink:
            phases.add("downlink")
        missing = sorted(phases - profile.power_w.keys())
        if profile.power_w and missing:
            allowed = f"watts for each of {', '.join(sorted(phases))} (or no power at all)"
            got = f"none for {', '.join(missing)}"
            raise InputError(allowed, where=f"{profile.name}: power", got=got)

    def _unpacking(self, index: int) -> tuple[Work, ...]:
        """A group's work on one change of the model; empty where models travel whole."""
        task = self.tasks.task(1, self.fleet.first(index), 1, held=0)
        if self.tasks.changes_vary(task):  # of whatever size, smaller than a model
            task = self.tasks.as_sent(task, sizes={name: [0.0] for name in task.plan.down})
        return task.unpacking

    def _check_changes(self) -> None:
        """Changes travel down only with methods that send a model down."""
        if self.scenario.downlink.compression is None:
            return
        down = {
            name: field
            for i in range(len(self.scenario.clients))
            for name, field in self.tasks.task(2, self.fleet.first(i), 1).plan.down.items()
        }
        if not any(field.kind == "weights" for field in down.values()):
            allowed = f"null with method {self.scenario.method.kind}, which sends no models down"
            raise InputError(allowed, got=f"{listed(down) or 'nothing'} travels down")

    def _slow_links(self) -> list[str]:
        """A sentence for each link so slow that another unit may be meant."""
        ways = {"link.up": "upload", "link.down": "download"}
        sentences = []
        for column in self.columns():
            rates = column.values[column.values > 0]
            if column.field not in ways or not rates.size:
                continue
            rate, task = float(rates.min()), self._task_of_group(column.group)
            size_bytes = task.downlink_bytes
            if column.field == "link.up":
                arms = self._arms(column.group) if task.plan.longest else ()
                choices = self._at_both_ends(column.group, arms, task.plan)
                sizes = [self.tasks.uplink_bytes(task, choice) for choice in choices]
                size_bytes = max((size for size in sizes if size is not None), default=0.0)
            takes_s = size_bytes / rate
            if rate < _SLOWEST_BYTES_PER_S or takes_s > _LONGEST_S:
                sentences.append(
                    f"{column.where}: at {format_rate(rate)} one {ways[column.field]} of "
                    f"{format_bytes(size_bytes)} takes {format_duration(takes_s)}; is another unit "
                    "meant, such as Mbps?"
                )
        return sentences

    def _not_timed(self) -> list[str]:
        """A sentence for each unpacking whose time no profile knows."""
        sentences = []
        for i, group in enumerate(self.scenario.clients):
            for work in self._unpacking(i):
                try:
                    self.processors[i].work_s(work)
                except InputError:
                    sentences.append(
                        f"device profile {group.device.profile or 'none'}: decompression of "
                        f"{work.model} by {work.name} is not known, so unpacking what travels "
                        "down takes no time"
                    )
        return list(dict.fromkeys(sentences))

    def _check_time_only(self, index: int) -> None:
        """A run without learning has no rewards for policies, and no sizes that depend on what is
        learned."""
        group = self.scenario.clients[index]
        policy = self.scenario.policy_of_group(group)
        if policy.arms_from is not None:
            return  # both were recorded
        if policy.learns:
            allowed = "a policy that needs no rewards in a time-only run"
            where = "policy.kind" if group.policy is None else f"clients[{index}].policy.kind"
            hint = "policy.arms_from: RUN replays the arms of a full run"
            raise InputError(allowed, where=where, got=policy.kind, hint=hint)
        from simfed.sim import TimeOnlyWorkload

        task, workload = self._task_of_group(index), TimeOnlyWorkload(self.tasks)
        arms = self._arms(index)
        for arm in arms:
            if arm.follows_update:
                workload.known_k(task, arm)
        for choice in self._at_both_ends(index, arms, task.plan):
            workload.size_bytes(task, choice)

    def _check_attack(self, index: int) -> None:
        """A group's attack can be made on this data set."""
        attack = self.scenario.clients[index].attack
        if attack is not None:
            attack.made.check(dataset_facts(self.scenario.dataset))

    def _check_steps(self, index: int) -> None:
        """A plan that says its steps can be carried out, and its barriers open."""
        plan = self._task_of_group(index).plan
        check_steps(plan, self.tasks.setting.participants)
        for node in sorted(nodes_of(plan)):
            from simfed.net import Nodes

            nodes = Nodes(self.topology)
            nodes.path(nodes.node_of(self.fleet.first(index), node), "server")
        if plan.steps and self.scenario.aggregation.edge_servers is not None:
            raise InputError(
                "a plan without steps of its own, as edge servers take the server's place in them"
            )
        gates = [step for step in plan.steps if isinstance(step, Wait)]
        if gates and self.scenario.aggregation.concurrency is not None:
            raise InputError(
                "a server that starts its clients together (synchronous, deadline or first), as "
                "the method's plan has barriers",
                got=self.scenario.aggregation.mode,
            )
        for gate in gates:
            come = sum(
                group.count
                for i, group in enumerate(self.scenario.clients)
                if any(
                    isinstance(step, Wait) and step.gate == gate.gate
                    for step in self._task_of_group(i).plan.steps
                )
            )
            if come < gate.least:
                raise InputError(
                    f"at least {gate.least} clients whose plans come to barrier {gate.gate}",
                    got=come,
                    problem="nobody would ever pass it",
                )

    def _check_overlap(self, index: int, time_only: bool) -> None:
        """What is cut into slices is a selection of at least as many entries; what is cut into
        layers, the gradient of a step."""
        overlap, task = self.scenario.clients[index].overlap, self._task_of_group(index)
        if overlap is None:
            return
        plan = task.plan
        if not plan.longest:
            allowed, problem = "a method whose uploads are compressed", "nothing is compressed"
            raise InputError(allowed, problem=problem)
        if overlap == "layers":
            self._check_gradient(task)
        cuts = self.fleet.cuts(index, task.who.size)
        count = cuts if isinstance(cuts, int) else len(cuts)
        for arm in self._arms_and_forced(index, time_only):
            if sliced(arm, cuts).codec.is_dense:
                continue
            if arm.level is not None and arm.level.kind == "energy":
                allowed = "a number or a share of entries, as slices are cut before they are seen"
                raise InputError(allowed, got=arm.label)
            least, _ = self.fleet.range_of_k(index, plan.longest, arm.level)
            if least < count and overlap == "layers":
                allowed = f"at least {count} entries of {arm.label}, one for each layer"
                raise InputError(allowed, got=least)
            if least < count:
                raise InputError(
                    f"at most {least} chunks, the entries that {arm.label} sends at the least",
                    where="chunks",
                    got=count,
                )

    def _check_gradient(self, task: Task) -> None:
        """Each layer of an upload is there once the pass back has come through it."""
        scenario, setting = self.scenario, self.tasks.setting
        if setting.local_steps != 1:
            allowed = "training.local_steps 1, as later steps need what the first one changed"
            raise InputError(allowed, got=setting.local_steps or "epochs")
        for round in (1, 2):
            plan = self.tasks.task(round, task.client, 0).plan
            alone = [work.quantity for work in plan.work] == ["training"] and not plan.steps
            whole = {name: field.entries for name, field in plan.compressed.items()}
            if not alone or whole != {"update": task.parameters}:
                allowed = "a method whose upload is the gradient of one local step"
                raise InputError(allowed, got=scenario.method.kind)
        if scenario.training.clip_norm is not None:
            allowed = "gradients that nobody clips: a clip needs all layers before any of them"
            raise InputError(allowed, got="training.clip_norm")
        if not task.who.size.layers:
            allowed = "a model whose facts have `layers`: (entries, FLOPs) of each"
            raise InputError(allowed, got=task.model)

    def _check_account(self) -> None:
        """What counts ε is installed, and some noise meets the target."""
        account = self.account()
        if account is not None:
            require_accountant()
            _ = account.noise

    def _check_private_uploads(self, index: int) -> None:
        """Under privacy, nothing of a client's data leaves it but by way of what is clipped."""
        scenario, privacy = self.scenario, self.scenario.privacy
        if privacy is None:
            return
        group, task = scenario.clients[index], self._task_of_group(index)
        if any(field.kind == "buffers" and field.entries for field in task.plan.up.values()):
            raise InputError(
                "a model without batch norm under privacy",
                where=f"prototypes.{group.prototype}.model",
                got=task.model,
                problem="running statistics of the data travel outside the clip",
            )
        if privacy.level == "sample":
            if type(scenario.method.made).train is not Method.train:
                allowed = "a method whose clients train by `local_steps` with privacy of samples"
                raise InputError(allowed, where="method", got=scenario.method.kind)
            return
        beside = [n for n, field in task.plan.up.items() if n != "update" and field.entries]
        if beside:
            allowed = "a method that sends updates alone under privacy of clients"
            problem = f"{listed(beside)} would travel outside the clip"
            raise InputError(allowed, where="method", got=scenario.method.kind, problem=problem)
        if not time_decides(scenario):
            return
        for choice in self._at_both_ends(index, self._arms(index), task.plan):
            if self.tasks.uplink_bytes(task, choice) is None:
                raise InputError(
                    "codecs of a size known beforehand under privacy of clients, where it hangs on "
                    "time who is merged",
                    where="compression",
                    got=choice.label,
                    hint="another index code or level, or mode synchronous",
                )

    def _weak_privacy(self) -> list[str]:
        """A sentence where ε counts for more or less than one may think."""
        account, privacy = self.account(), self.scenario.privacy
        if account is None or privacy is None:
            return []
        sentences, delta = [], privacy.spent_delta
        if not account.amplified:
            sentences.append(
                "privacy: ε is not amplified by sampling: it counts the most merges of any client, "
                "and replacing a client's data, for which half of the noise counts; amplified is "
                "participation.selection poisson with mode synchronous, clients always there and a "
                "server that does not restart"
            )
        if privacy.level == "client" and delta * self.scenario.client_count >= 1:
            sentences.append(
                f"privacy: delta {delta:g} is no less than 1 / {self.scenario.client_count:,} "
                "clients: such a δ allows to publish all of one client's data"
            )
        return sentences

    def _task_of_group(self, index: int) -> Task:
        """The task of a group's first client in the first round."""
        return self.tasks.task(1, self.fleet.first(index), 0)

    def _try_server(self, spec: DeviceSpec, time_only: bool) -> None:
        device = self._build_processor(spec).client(self.streams, -1)
        first = [self._task_of_group(i) for i in range(len(self.scenario.clients))]
        enough = [task.who for task in first] * self.scenario.aggregation.rule.made.least
        work = [
            piece
            for piece in self.tasks.server_work(enough, self.scenario.rounds)
            if device.charges(piece.quantity, piece.model)
        ]
        compressed = any(task.plan.compressed for task in first)
        phases = {piece.quantity for piece in work} | ({"decompression"} if compressed else set())
        for phase in phases:
            device.processor.noise_of(phase)
        for i, task in enumerate(first):
            arms = self._arms_and_forced(i, time_only)
            for choice in self._at_both_ends(i, arms, task.plan):
                for unpacked in self._codec_work("decompression", task, choice):
                    device.work_s(unpacked)
        for piece in work:
            device.work_s(piece)


def _make_messages(spec: MessagesSpec | None) -> Messages | None:
    if spec is None:
        return None
    return Messages(spec.lost, spec.doubled, spec.timeout or 0.0, spec.tries or 1)


def _make_rhythm(strike: Strike | None) -> Rhythm | None:
    """The laws of times between strikes and of their lengths."""
    if strike is None:
        return None
    return Rhythm(
        _make_law(strike.between, Exponential),
        _make_law(strike.lasts, lambda length_s: Discrete((length_s,))),
    )


def _make_law(spec: float | Distribution, of_number: Callable[[float], Law]) -> Law:
    if not isinstance(spec, Distribution):
        return of_number(float(spec))
    law = spec.law(DRAWN["stay"])
    assert law is not None  # a column is refused where it is written
    return law


def check(
    scenario: Scenario, *, source: str | Path | None = None, time_only: bool = False
) -> list[str]:
    """Build everything that needs no torch; the warnings that a run would record.

    Raises: `InputErrors` with every sentence: profiles, missing rows, topology, policy arguments,
    too little data for the clients and the public images.
    """
    return checked(scenario, source, time_only).warnings()


def parts_of_run(run: Run, path: str | os.PathLike[str]) -> Parts:
    """The parts of the run in a folder, from its resolved scenario and the files kept beside it.

    Raises: `InputError`, `InputErrors` for a scenario that this version does not read.
    """
    where = Path(path) / "scenario.yaml"
    return Parts(
        validated(run.scenario, source=where.name, folder=Path(path), recorded=True), where
    )


_MOST_STEPS = 100_000
"""The most steps of one link's capacity that a picture is given."""


def capacities_of(run: Run, path: str | Path) -> dict[str, tuple[list[float], list[float]]]:
    """Link → (instants, bytes/s from then on), for each link of a run whose capacity varies; not
    for airtime, whose bytes/s also depend on who sends.

    Computed anew from the scenario in the run's directory `path`, as tables record no capacity
    while a link is idle. Empty where no capacity varies, and where the traces are missing.
    """
    if not _may_vary(run.scenario):
        return {}
    end_s = float(run.rounds["finished_at_s"].max()) if len(run.rounds) else 0.0
    try:
        topology = parts_of_run(run, path).topology
        recorded = run.links["link"].unique()
    except (InputError, InputErrors):
        return {}
    wires = 2 * topology.clients + len(topology.lines)
    names = {topology.link_name(k): k for k in range(wires)}
    capacities = {}
    for name in recorded:
        link = topology.traces[names[name]] if names.get(name) in topology.traces else None
        if link is not None:
            capacities[str(name)] = _list_steps(link, end_s)
    return capacities


def _may_vary(scenario: Mapping[str, Plain]) -> bool:
    """Whether a resolved scenario has a trace where a rate could stand, or stalls."""
    faults = scenario.get("faults") or {}
    if isinstance(faults, dict) and faults.get("stalls"):
        return True

    def has_trace(value: object) -> bool:
        if isinstance(value, dict):
            return "end" in value or any(map(has_trace, value.values()))
        return isinstance(value, list) and any(map(has_trace, value))

    links = [group.get("link") for group in scenario.get("clients", [])]
    return has_trace(links) or has_trace(scenario.get("network"))


def _list_steps(link: LinkTrace, end_s: float) -> tuple[list[float], list[float]]:
    """(instants from 0 to before `end_s`, bytes/s from each on) of a trace."""
    moment = link.trace.moment(link.offset_s)
    at_s, rates = [0.0], [link.trace.rate_bytes_per_s(moment)]
    while len(at_s) < _MOST_STEPS:
        after, from_s = link.trace.next_moment(moment)
        if after is None or from_s - link.offset_s >= end_s:
            break
        moment = after
        at_s.append(max(0.0, from_s - link.offset_s))
        rates.append(link.trace.rate_bytes_per_s(moment))
    return at_s, rates


def checked(scenario: Scenario, source: str | Path | None, time_only: bool) -> Parts:
    """The scenario's parts, all of them built. Raises: `InputErrors`, see `Parts.errors`."""
    parts = Parts(scenario, source)
    errors = parts.errors(time_only=time_only)
    if errors:
        raise InputErrors([error.within(parts.name) for error in errors])
    return parts


def checked_world(world: Scenario, source: str | Path | None) -> Parts:
    """The parts of a world without learning of its own, such as a fleet's for an app.

    Raises: `InputErrors` for profiles, tables, availability, topology.
    """
    parts = Parts(world, source)
    try:
        _ = parts.processors
        parts.columns()
        parts.fleet.availability()
        parts.server_device()
        _ = parts.topology, parts.network_model
    except InputError as error:
        raise InputErrors([error.within(parts.name)]) from None
    return parts


def available_profiles(folder: str | Path = ".") -> list[tuple[str, str]]:
    """Name and one line of provenance of each calibration profile at hand.

    Those in a folder `calibration` here or above, and simfed's own; one that cannot be read says
    why.
    """
    search = profile_folders(folder)
    rows = []
    for name in profile_names(search):
        try:
            profile = load_profile(name, search)
        except InputError as error:
            rows.append((name, str(error)))
            continue
        about = profile.provenance.get("description") or profile.provenance.get("source") or ""
        rows.append((name, f"{profile.kind}; {about}".rstrip("; ")))
    return rows
