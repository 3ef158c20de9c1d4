"""Assembles a scenario's parts: profiles, devices, policies, the network.

It also finds what is wrong with them. Nothing here simulates, learns or imports torch,
so that `simfed validate` finds every mistake in a moment. `simfed.experiment.running`
builds the rest and lets the clock play.

`WorldParts` are those of any world, an app's too; `Parts` are a scenario's, which knows
what is learned: sizes of models, tasks, policies, samples. Whatever may be asked more
than once is a cached property, so no part is built that nobody asks for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simfed.device import (
    Device,
    ModelWork,
    Processor,
    Profile,
    build_processor,
    find_profile,
    find_shipped_name,
    load_profile,
    profile_folders,
    profile_names,
)
from simfed.fleet.columns import Fleet
from simfed.fleet.contract import Task
from simfed.fleet.edges import EdgeServer
from simfed.fleet.faults import Faults
from simfed.fleet.world import WorldSpec
from simfed.ground.errors import InputError, within
from simfed.ground.measure import ACCURACY, Measure, choose_measure, list_measure_keys
from simfed.ground.method import Work
from simfed.ground.seeding import Streams
from simfed.ground.strikes import Strikes
from simfed.learn.catalogue import ModelFacts, dataset_facts, facts
from simfed.record.read import Run, open_run
from simfed.record.schema import OwnColumns, measure_columns
from simfed.scenario import Scenario
from simfed.scenario.load import validate_scenario
from simfed.tasks.privacy import Account, make_account
from simfed.tasks.tasks import Tasks, make_policy_maker

if TYPE_CHECKING:
    from simfed.device.spec import DeviceSpec
    from simfed.fleet.columns import FleetColumn
    from simfed.learn.data.owned import Owned
    from simfed.net import Model, Topology
    from simfed.policy import Policy
    from simfed.record.read import Run
    from simfed.scenario.model import ClientGroup
    from simfed.sim import RecordedRun


class WorldParts:
    """The parts of a world that are built from its sections, when first asked for.

    Made by `make_parts`; read by checks, runs and `simfed show`. What is drawn (speeds,
    links, noise) comes from the world's seed, so two of one world are equal.

    Args:
        world: a scenario or an app's fleet, validated.
        source: its file. Profiles are looked for beside it, in a folder `calibration`
            there or above, and among simfed's own; None: from the current folder.
    """

    def __init__(self, world: WorldSpec, source: str | Path | None = None) -> None:
        self.world = world
        self.streams = Streams(world.seed)
        self._source = Path(source) if source is not None else None
        self.fleet = Fleet(world, self.streams)

    @property
    def name(self) -> str:
        """The world's name in errors: its file, or its name."""
        return str(self._source) if self._source is not None else self.world.name

    @cached_property
    def profile_files(self) -> dict[str, Path]:
        """Profile name → the file that it stands for, of all devices in the world.

        Raises:
            InputError: a name that no file has.
        """
        names = dict.fromkeys(spec.profile for _, spec in self.devices())
        return {name: self.find_profile(name) for name in names if name is not None}

    @cached_property
    def profiles(self) -> dict[str, Profile]:
        """Profile name → profile, as its file has it."""
        return {name: load_profile(file) for name, file in self.profile_files.items()}

    @property
    def shipped_profiles(self) -> list[str]:
        """The shipped profiles in use, by name, each with its content as it is shipped.

        A profile that a user has changed is none of them. Manifests list them.
        """
        return sorted(filter(None, map(find_shipped_name, self.profile_files.values())))

    @cached_property
    def processors(self) -> list[Processor]:
        """Group index → the processor of its clients, with the first one's times."""
        return [
            self._give_times(self.build_processor(group.device), self.fleet.first(i))
            for i, group in enumerate(self.world.clients)
        ]

    def _give_times(self, processor: Processor, client: int) -> Processor:
        """Return the client's own processor where its times of work are drawn.

        Args:
            processor: its group's.
            client: its id; epochs are worth as many steps as its samples make.
        """
        times = self.fleet.times(client)
        if not times:
            return processor
        epochs = "epoch" in processor.per.values()
        return processor.assume_for_client(
            times, self.samples_of(client) if epochs else 1
        )

    def samples_of(self, client: int) -> int:
        """Return how many training samples a client owns.

        1 in a world whose learning is an app's: simfed does not know them.
        """
        return 1

    def columns(self) -> list[FleetColumn]:
        """Return the quantities of all clients, fixed or drawn, group by group.

        `simfed show fleet` prints them, and warnings look for rates that seem wrong.
        """
        return self.fleet.columns({})

    def device(self, client: int) -> Device:
        """Return a new device of this client, with its own speed and its own noise.

        Two devices of one client are equal, and each begins at its first draw.
        """
        group = int(self.fleet.group[client])
        processor = self._give_times(self.processors[group], client)
        return processor.client(self.streams, client, self.fleet.speed(client))

    def server_device(self) -> Device | None:
        """Return the server's device; None: its work takes no time.

        It is nobody's client, so its draws are keyed by -1.
        """
        spec = self.world.server.device
        if spec is None:
            return None
        return self.build_processor(spec).client(self.streams, -1)

    def list_server_devices(self) -> Iterator[tuple[str, DeviceSpec | None]]:
        """Yield (key path, device section) of each server; None: it takes no time."""
        yield "server.device", self.world.server.device

    def devices(self) -> Iterator[tuple[str, DeviceSpec]]:
        """Yield (key path, device section) of all groups, and of servers with one."""
        for i, group in enumerate(self.world.clients):
            yield f"clients[{i}].device", group.device
        for where, spec in self.list_server_devices():
            if spec is not None:
                yield where, spec

    @cached_property
    def topology(self) -> Topology:
        """The links and paths of all clients, with their faults.

        Raises:
            InputError: a graph, a trace or a cell that cannot be what it should.
        """
        from simfed import net

        topology = net.build(
            self.world.network,
            self.fleet.links(),
            self.streams,
            link_of_client=self.fleet.group,
        )
        spec = self.world.faults
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
        spec = self.world.faults
        return None if spec is None else spec.build(self.streams)

    @cached_property
    def network_model(self) -> Model:
        """The model of a transfer: fluid or TCP."""
        from simfed import net

        return net.build_model(self.world.network)

    def find_profile(self, name: str) -> Path:
        """Return the file of a profile.

        Raises:
            InputError: no folder has it; with a did-you-mean.
        """
        return find_profile(
            name, profile_folders(self._source.parent if self._source else Path())
        )

    def build_processor(self, spec: DeviceSpec) -> Processor:
        """Return the processor that a device section describes.

        Its profile is empty where the scenario states the times.
        """
        profile = (
            Profile("times said in the scenario", "table", {})
            if spec.profile is None
            else self.profiles[spec.profile]
        )
        return build_processor(spec, profile, self.streams)


class Parts(WorldParts):
    """The parts of a scenario that need no torch, made when first asked for.

    To a world's parts it adds what is learned, as far as a clock needs it: sizes of
    models, tasks and their bytes, samples of clients, policies, recorded runs.
    `check_parts` makes them and builds all; a run and `simfed.verify` read them.
    """

    def __init__(self, scenario: Scenario, source: str | Path | None = None) -> None:
        super().__init__(scenario, source)
        self.scenario = scenario

    @cached_property
    def facts(self) -> dict[str, ModelFacts]:
        """Prototype → sizes and work of its model, built only where nobody knows them.

        Raises:
            InputError: a prototype that makes no model on these data, with its key.
        """
        dataset = self.scenario.dataset
        known = {}
        for name, prototype in self.scenario.prototypes.items():
            try:
                known[name] = facts(prototype, dataset)
            except InputError as error:
                if prototype.bare:
                    raise
                place, key = f"prototypes.{name}", str(error.where).partition(".")[0]
                if key in type(prototype).model_fields:
                    raise error.changed(where=f"{place}.{error.where}") from None
                of_file = prototype.pretrained and prototype.pretrained in str(error)
                raise error.within(place + ".pretrained" * bool(of_file)) from None
        return known

    @cached_property
    def profiles(self) -> dict[str, Profile]:
        """Profile name → profile, told the sizes of the models in use.

        Laws of work are in parameters and FLOPs, so a profile has to know those of each
        prototype and of the method's auxiliary work.
        """
        profiles = super().profiles
        for profile in profiles.values():
            for prototype, of_model in self.facts.items():
                model = self.scenario.model_names[prototype]
                profile.models[model] = ModelWork.of(of_model)
            for work, flops in self.tasks.auxiliary().items():
                profile.models[work] = ModelWork(0, flops, flops)
        return profiles

    @cached_property
    def recorded(self) -> dict[str, RecordedRun]:
        """Run directory → its recorded arms and sizes, for `policy.arms_from`.

        Raises:
            InputError: a folder that is no finished run.
        """
        recorded: dict[str, RecordedRun] = {}
        for i, group in enumerate(self.scenario.clients):
            run = self.scenario.policy_of_group(group).arms_from
            if run is not None and run not in recorded:
                from simfed.sim import RecordedRun  # brings simpy

                with within(f"{self.scenario.policy_key(i)}.arms_from"):
                    recorded[run] = RecordedRun(open_run(run))
        return recorded

    def columns(self) -> list[FleetColumn]:
        """Return the quantities of all clients, fixed or drawn, group by group."""
        return self.fleet.columns(
            {name: model.parameters for name, model in self.facts.items()}
        )

    @cached_property
    def tasks(self) -> Tasks:
        """The tasks of clients and their sizes in bytes, as the clock asks for them.

        Test samples are those of the data, or the held-out owners' where these can be
        counted.
        """
        from simfed.learn.data import count_held_out

        tests = dataset_facts(self.scenario.dataset).test_samples
        if self.scenario.evaluation.held_share is not None:
            # a clock without learning may have no such data, as in `samples_of`
            with suppress(InputError):
                tests = count_held_out(self.scenario, self.streams)
        tasks = Tasks(self.scenario, self.facts, self.samples_of, test_samples=tests)
        tasks.count_steps = self.count_steps
        return tasks

    def count_steps(self, client: int, work: Work, within_s: float) -> int:
        """Return the whole steps that a client's device makes in so many seconds.

        Args:
            client: its id.
            work: one unit of its training.
            within_s: `local_time` of its group, in seconds.
        """
        with within(f"clients[{int(self.fleet.group[client])}].device"):
            device = self.device(client)
            return device.processor.count_steps(work, device.speed, within_s)

    def make_group_task(self, index: int) -> Task:
        """Return the task of a group's first client in the first round.

        Checks ask it what clients of a group do: they differ in samples and K alone.
        """
        return self.tasks.task(1, self.fleet.first(index), 0)

    def samples_of(self, client: int) -> int:
        """Return how many training samples a client owns, as learning deals them."""
        return self._owned_samples[client]

    @cached_property
    def _owned_samples(self) -> list[int]:
        """The number of training samples of each client, as learning deals them.

        Where they cannot be dealt, which only a clock without learning allows, all own
        equally many, and at least one.
        """
        from simfed.learn.data import split_of

        data, clients = self.scenario.dataset, self.scenario.client_count
        try:
            check_data(self.scenario)
        except InputError:
            return [max(1, dataset_facts(data).train_samples // clients)] * clients
        split = split_of(self.scenario, self.streams)
        return [len(samples) for samples in split.clients]

    def account(self) -> Account | None:
        """Return a new account of what privacy costs; None: there is none.

        A run keeps one, in which each merge is entered.
        """
        return make_account(self.scenario, self.samples_of)

    @property
    def task(self) -> str:
        """The data's task: classification, regression or next-token."""
        return dataset_facts(self.scenario.dataset).task

    @property
    def measure(self) -> Measure:
        """The measure that counts: that named first, or the task's."""
        return choose_measure(self.task, self.scenario.evaluation.measures)

    @property
    def own_columns(self) -> OwnColumns:
        """The columns that scenario and measures add to the tables: table → names."""
        columns = dict(self.scenario.own_columns)
        named, classes = self.scenario.evaluation.measures, self.tasks.setting.classes
        keys = list_measure_keys(self.task, named, classes)
        for table, names in measure_columns(keys).items():
            columns[table] = (*columns.get(table, ()), *names)
        return columns

    @cached_property
    def owned(self) -> Owned:
        """The samples of each client by class, and the size of the public set.

        Manifests have it; data are read and dealt for it.
        """
        from simfed.learn.data.owned import count_owned

        return count_owned(self.scenario, self.streams)

    def policy(self, client: int) -> Policy:
        """Return a new policy for one client, or the one that serves its group."""
        return self._policy_makers[int(self.fleet.group[client])](client)

    @cached_property
    def _policy_makers(self) -> list[Callable[[int], Policy]]:
        """Group index → a function that makes the policy of a client of this id."""
        return [self._make_policy_maker(group) for group in self.scenario.clients]

    def _make_policy_maker(self, group: ClientGroup) -> Callable[[int], Policy]:
        """Return a function from a client's id to its policy.

        Args:
            group: of the client. Its policy replays a recorded run, is one object for
                all (`serves_all`), or is made anew for each.
        """
        from simfed.policy import serves_all

        run = self.scenario.policy_of_group(group).arms_from
        if run is not None:
            return partial(self.replay, self.recorded[run])
        make = make_policy_maker(self.scenario, group)
        first = make()
        return (lambda client: first) if serves_all(first) else (lambda client: make())

    def replay(self, recorded: RecordedRun, client: int) -> Policy:
        """Return a policy that plays what one client played in a recorded run.

        Args:
            recorded: the run, of as many participations as will be asked for.
            client: its id in both runs.
        """
        from simfed.policy import Replay

        played = recorded.arms(client)
        arms = tuple(dict.fromkeys((*self.scenario.compression.choices, *played)))
        return Replay(arms, recorded=played, levels=recorded.levels(client))

    def list_server_devices(self) -> Iterator[tuple[str, DeviceSpec | None]]:
        """Yield the devices of the server and of edge servers, with their keys."""
        yield from super().list_server_devices()
        edges = self.scenario.aggregation.edge_servers
        if edges is not None:
            yield "aggregation.edge_servers.device", edges.device

    def group(self, client: int) -> ClientGroup:
        """Return the group a client belongs to."""
        return self.scenario.clients[int(self.fleet.group[client])]

    @property
    def edge_servers(self) -> list[EdgeServer]:
        """The edge servers, with new devices and the clients below each.

        Empty where clients' uploads go to the server. Devices and restarts are keyed by
        ids behind those of all clients.
        """
        spec = self.scenario.aggregation.edge_servers
        if spec is None:
            return []
        from simfed.net import Tier

        tiers = self.scenario.network.tiers
        count = next(tier.count for tier in tiers if tier.name == spec.at)
        names = [Tier(spec.at, count).node(k) for k in range(count)]
        nodes, node_of_client = self.topology.end_at(names)
        processor = None if spec.device is None else self.build_processor(spec.device)
        rhythm = None if spec.restarts is None else spec.restarts.build()
        streams = self.streams
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


def make_parts(world: WorldSpec, source: str | Path | None) -> WorldParts:
    """Return the parts of a world, of a scenario all of them.

    Args:
        world: a scenario, or an app's fleet.
        source: its file, see `WorldParts`.
    """
    if isinstance(world, Scenario):
        return Parts(world, source)
    return WorldParts(world, source)


def check_data(scenario: Scenario) -> None:
    """Check that the data can be dealt to the clients as the scenario says.

    Every client owns a sample, and as many as the partition says; tables have a value
    in every cell; a public set of its own fits; a task has the measures and the method
    that are asked of it. Where sizes are said, samples are dealt to see it.

    Args:
        scenario: a validated one.

    Raises:
        InputError: at the first thing that cannot be.
    """
    data, clients = scenario.dataset, scenario.client_count
    sizes = dataset_facts(data)
    method = scenario.method
    if data.table is not None:
        from simfed.learn.data import load_data

        load_data(data)
    if data.public_file is not None and method.made.needs_public:
        from simfed.learn.data.own import check_public_file

        check_public_file(data, sizes.input_shape)
    if sizes.task != "classification" and method.made.needs_classes:
        allowed = f"a method without classes for a {sizes.task} task, such as fedavg"
        problem = f"{method.kind} compares classes"
        raise InputError(allowed, where="method.kind", got=method.kind, problem=problem)
    named = scenario.evaluation.measures
    if sizes.task != "classification" and named != (ACCURACY.key,):
        task_measure = choose_measure(sizes.task, named).name
        allowed = f"no measures of classes, as a {sizes.task} task has {task_measure}"
        raise InputError(allowed, where="evaluation.measures", got=[*named])
    samples, kind = sizes.train_samples, data.partition.kind
    held_share = scenario.evaluation.held_share
    if held_share is not None and kind != "natural":
        allowed = "all, or partition natural, whose clients are owners"
        raise InputError(allowed, where="evaluation.owners", got="held-out")
    if kind == "natural" and clients > sizes.owners:
        if not sizes.owners:
            allowed = "a data set that names owners"
            hint = "owner: COLUMN, arrays owner_train, a folder per owner"
            raise InputError(
                allowed, where="dataset.partition.kind", got=kind, hint=hint
            )
        allowed = f"at most {sizes.owners}, as many as there are owners"
        raise InputError(allowed, where="clients", got=clients)
    if kind in ("dirichlet", "shards") and sizes.task != "classification":
        allowed = f"natural, quantity, feature or iid, as a {sizes.task} has no classes"
        raise InputError(allowed, where="dataset.partition.kind", got=kind)
    if kind == "feature" and len(sizes.input_shape) != 3:
        got = f"samples of shape {sizes.input_shape}"
        raise InputError(
            "feature with images alone", where="dataset.partition.kind", got=got
        )
    public = scenario.public_dealt
    most = samples - min(public, 1)
    if clients > most:
        allowed = (
            f"at most {most} clients, as {data.label} has {samples} training samples"
        )
        raise InputError(allowed, where="clients", got=clients)
    most = samples - clients
    if public > most:
        allowed = (
            f"at most {most} public images, so that each client owns one of the "
            f"{samples}"
        )
        raise InputError(allowed, where="dataset.public", got=public)
    most, shards = (samples - public) // clients, data.partition.shards_per_client
    if kind == "shards" and shards > most:
        allowed = f"at most {most}, so that no shard is empty"
        where = "dataset.partition.shards_per_client"
        raise InputError(allowed, where=where, got=shards)
    if data.partition.sized or held_share is not None:
        from simfed.learn.data import split_of

        split_of(scenario, Streams(scenario.seed))


def load_parts(run: Run, path: str | os.PathLike[str]) -> Parts:
    """Return the parts of the run in a folder.

    They are made from its resolved scenario and the files kept beside it.

    Args:
        run: the run that was read from there.
        path: its folder.

    Raises:
        InputError, InputErrors: a scenario that this version does not read.
    """
    where = Path(path) / "scenario.yaml"
    return Parts(
        validate_scenario(run.scenario, source=where.name, folder=Path(path)), where
    )


def list_profiles(folder: str | Path = ".") -> list[tuple[str, str]]:
    """Return name and one line of provenance of each calibration profile at hand.

    Args:
        folder: profiles are looked for in a folder `calibration` here or above, and
            among simfed's own.

    Returns:
        Rows in the order of names; of a profile that cannot be read the line says why.
    """
    search = profile_folders(folder)
    rows = []
    for name in profile_names(search):
        try:
            profile = load_profile(name, search)
        except InputError as error:
            rows.append((name, str(error)))
            continue
        told = profile.provenance
        about = told.get("description") or told.get("source") or ""
        rows.append((name, f"{profile.kind}; {about}".rstrip("; ")))
    return rows
