"""The composition root: from a scenario to built parts, to a run, to its result.

Nothing here simulates or learns. `check` builds everything that can be wrong without torch, so
that `simfed validate` finds it in a moment; `run` builds the rest and lets the clock play.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simfed.contract import Workload
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
)
from simfed.errors import InputError, InputErrors, Interrupted, RunFailed
from simfed.learn.catalogue import ModelFacts, facts
from simfed.progress import RunProgress
from simfed.record.digest import fingerprint
from simfed.record.directory import RunDirectory, reserved
from simfed.record.manifest import versions
from simfed.record.read import Run, open_run
from simfed.record.recorder import Recorder
from simfed.record.schema import TABLES
from simfed.record.summary import summarise
from simfed.registry import registry
from simfed.replay.key import data_digest
from simfed.scenario import Scenario, dump_scenario
from simfed.scenario.fields import files_in
from simfed.seeding import Streams

if TYPE_CHECKING:
    from simfed.learn.workload import LearningWorkload
    from simfed.net import Model, Topology
    from simfed.policy import Policy
    from simfed.record.checkpoint import Checkpoint
    from simfed.replay.store import TrajectoryStore
    from simfed.scenario.device import Device as DeviceSpec
    from simfed.scenario.model import ClientGroup
    from simfed.sim import Recorded, Simulation, TimeOnlyWorkload

__all__ = [
    "Parts",
    "Progress",
    "RunResult",
    "available_profiles",
    "check",
    "default_workers",
    "load_run",
    "run",
]

RunResult = Run
Progress = Callable[[int, float, "float | None"], None]
"""`(round, simulated_s, mean accuracy where it was evaluated)`, after each round."""

load_run = open_run
"""A run from its directory: the same object that `run` returned."""


class Parts:
    """Everything of a scenario that is built without torch, made when it is first asked for.

    `source` is the scenario's file: profiles are looked for beside it, in a folder `calibration`
    there or above, and among simfed's own.
    """

    def __init__(self, scenario: Scenario, source: str | Path | None = None) -> None:
        self.scenario = scenario
        self.streams = Streams(scenario.seed)
        self._source = Path(source) if source is not None else None
        self._group_of_client: list[int] = scenario.group_of_client().tolist()

    @property
    def name(self) -> str:
        """What errors call this scenario: its file, or its name."""
        return str(self._source) if self._source is not None else self.scenario.name

    @cached_property
    def facts(self) -> dict[str, ModelFacts]:
        """Prototype → sizes of its model."""
        dataset = self.scenario.dataset.name
        return {name: facts(p.model, dataset) for name, p in self.scenario.prototypes.items()}

    @cached_property
    def profile_files(self) -> dict[str, Path]:
        """Profile name → the file that it stands for."""
        specs = [group.device for group in self.scenario.clients]
        if self.scenario.server.device is not None:
            specs.append(self.scenario.server.device)
        folders = profile_folders(self._source.parent if self._source else Path())
        names = dict.fromkeys(spec.profile for spec in specs)
        return {name: find_profile(name, folders) for name in names}

    @cached_property
    def profiles(self) -> dict[str, Profile]:
        """Profile name → profile, told the sizes of the models in use."""
        found = {}
        for name, file in self.profile_files.items():
            profile = found[name] = load_profile(file)
            for prototype, of_model in self.facts.items():
                profile.models[self.scenario.prototypes[prototype].model] = ModelWork(
                    of_model.parameters, of_model.forward_flops, of_model.train_flops
                )
        return found

    @cached_property
    def processors(self) -> list[Processor]:
        """Group index → what its clients' devices have in common."""
        return [self._processor(group.device) for group in self.scenario.clients]

    @cached_property
    def recorded(self) -> dict[str, Recorded]:
        """Run directory → its arms and sizes, for `policy.arms_from`."""
        named: dict[str, str] = {}
        for i, group in enumerate(self.scenario.clients):
            run = self.scenario.policy_of_group(group).arms_from
            if run is not None:
                named.setdefault(run, "policy" if group.policy is None else f"clients[{i}].policy")
        return {run: self._record(run, f"{policy}.arms_from") for run, policy in named.items()}

    def group(self, client: int) -> ClientGroup:
        """The group a client belongs to."""
        return self.scenario.clients[self._group_of_client[client]]

    def local_steps(self, client: int) -> int:
        """Local SGD steps of one round, as the learning side counts them."""
        training = self.scenario.training
        if self.scenario.method != "fedavg":
            return training.local_steps
        owned = int(self._owned_samples[client])
        return training.local_epochs * -(-owned // training.batch_size)

    @cached_property
    def _owned_samples(self) -> list[int]:
        """How many training samples each client owns (federated averaging, which keeps none back).

        Where they cannot be dealt, which only a clock without learning allows, all own equally
        many, and at least one.
        """
        from simfed.learn.data import deal, load_dataset

        data, clients = self.scenario.dataset, self.scenario.client_count
        try:
            self._check_data()
        except InputError:
            from simfed.learn.catalogue import dataset_facts

            return [max(1, dataset_facts(data.name).train_samples // clients)] * clients
        split = deal(
            load_dataset(data.name).train_labels,
            self.streams,
            clients=clients,
            public=0,
            kind=data.partition.kind,
            alpha=data.partition.alpha,
            shards_per_client=data.partition.shards_per_client,
        )
        return [len(samples) for samples in split.clients]

    def device(self, client: int) -> Device:
        """One client's device."""
        return self.processors[self._group_of_client[client]].client(self.streams, client)

    def server_device(self) -> Device | None:
        """The server's device; it is nobody's client, so its draws are keyed by -1."""
        spec = self.scenario.server.device
        return None if spec is None else self._processor(spec).client(self.streams, -1)

    def policy(self, client: int) -> Policy:
        """A new policy for one client."""
        from simfed.policy import Replay

        scenario = self.scenario
        spec = scenario.policy_of_group(self.group(client))
        arms = scenario.compression.strategies
        if spec.arms_from is not None:
            arms_played = self.recorded[spec.arms_from].arms(client)
            return Replay(tuple(dict.fromkeys((*arms, *arms_played))), recorded=arms_played)
        made: Policy = registry("policy").get(spec.kind)(
            arms, reward_range=spec.reward.clip, **spec.options
        )
        return made

    @cached_property
    def topology(self) -> Topology:
        """Links and paths of all clients."""
        from simfed import net

        return net.build(
            self.scenario.network.plain(),
            [group.link.plain() for group in self.scenario.clients],
            self.streams,
            link_of_client=self._group_of_client,
        )

    @cached_property
    def network_model(self) -> Model:
        """What a transfer does."""
        from simfed import net

        return net.build_model(self.scenario.network.plain())

    def errors(self, *, time_only: bool = False) -> list[InputError]:
        """What is wrong with the scenario beyond its form: every sentence, in file order."""
        found: list[InputError] = []
        self._gather(found, None, lambda: self.facts)
        self._gather(found, None, lambda: self.recorded)
        if found:
            return found
        if not time_only:  # a clock without learning deals no samples
            self._gather(found, None, self._check_data)
        for i in range(len(self.scenario.clients)):
            self._gather(found, f"clients[{i}].device", partial(self._try_device, i))
            self._gather(found, f"clients[{i}].policy", partial(self._try_policy, i))
            if time_only:
                self._gather(found, None, partial(self._check_time_only, i))
        self._gather(found, "server.device", self._try_server)
        self._gather(found, None, lambda: self.topology)
        self._gather(found, None, lambda: self.network_model)
        return list({str(error): error for error in found}.values())

    def warnings(self) -> list[str]:
        """What the profiles in use have to say (after `errors` or a run): one sentence each."""
        return list(dict.fromkeys(w for p in self.profiles.values() for w in p.warnings))

    # ---- inside ----------------------------------------------------------------------------------

    def _processor(self, spec: DeviceSpec) -> Processor:
        return build_processor(spec.plain(), self.profiles[spec.profile], self.streams)

    @staticmethod
    def _record(run: str, where: str) -> Recorded:
        from simfed.sim import Recorded  # brings simpy

        try:
            return Recorded(open_run(run))
        except InputError as error:
            raise error.within(where) from None

    @staticmethod
    def _gather(found: list[InputError], where: str | None, build: Callable[[], object]) -> None:
        try:
            build()
        except InputError as error:
            found.append(error.within(where) if where else error)

    def _check_data(self) -> None:
        """Every client owns a sample, and no shard is empty."""
        from simfed.learn.catalogue import dataset_facts

        data, clients = self.scenario.dataset, self.scenario.client_count
        samples = dataset_facts(data.name).train_samples
        public = data.public if self.scenario.method == "fedkd" else 0
        most = samples - min(public, 1)
        if clients > most:
            raise InputError(
                f"at most {most} clients, as {data.name} has {samples} training samples",
                where="clients", got=clients,
            )  # fmt: skip
        if public > samples - clients:
            raise InputError(
                f"at most {samples - clients} public images, so that each client owns one of the "
                f"{samples}", where="dataset.public", got=public,
            )  # fmt: skip
        most = (samples - public) // clients
        if data.partition.kind == "shards" and data.partition.shards_per_client > most:
            raise InputError(
                f"at most {most}, so that no shard is empty",
                where="dataset.partition.shards_per_client", got=data.partition.shards_per_client,
            )  # fmt: skip

    def _arms(self, index: int) -> tuple[str, ...]:
        policy = self.scenario.policy_of_group(self.scenario.clients[index])
        if policy.arms_from is not None:
            played = self.recorded[policy.arms_from]
            clients = [c for c, g in enumerate(self._group_of_client) if g == index]
            return tuple(dict.fromkeys(arm for client in clients for arm in played.arms(client)))
        if policy.strategy is not None:
            return (policy.strategy,)
        return self.scenario.compression.strategies

    def _try_device(self, index: int) -> None:
        group = self.scenario.clients[index]
        processor = self._processor(group.device)
        of_model = self.facts[group.prototype]
        model = self.scenario.prototypes[group.prototype].model
        processor.nominal_s("training", model=model, batch=self.scenario.training.batch_size)
        k = min(self.scenario.k_of_group(group), of_model.parameters)
        for arm in self._arms(index):
            processor.nominal_s("compression", model=model, strategy=arm, k=k)

    def _try_policy(self, index: int) -> None:
        try:
            self.policy(self._group_of_client.index(index))
        except TypeError as error:
            raise InputError(f"parameters that the policy takes ({error})") from None

    def _check_time_only(self, index: int) -> None:
        """Where nothing is learned, nothing is rewarded, and no size may depend on what is learned."""
        group = self.scenario.clients[index]
        policy = self.scenario.policy_of_group(group)
        if policy.arms_from is not None:
            return  # both were recorded
        if getattr(registry("policy").get(policy.kind), "learns", True):
            raise InputError(
                "a policy that needs no rewards in a time-only run",
                where="policy.kind" if group.policy is None else f"clients[{index}].policy.kind",
                got=policy.kind,
                hint="policy.arms_from: RUN replays the arms of a full run",
            )
        k = min(self.scenario.k_of_group(group), self.facts[group.prototype].parameters)
        for arm in self._arms(index):
            _sizes_only(self).size_bytes(group.prototype, arm, k)

    def _try_server(self) -> None:
        device = self.server_device()
        if device is None:
            return
        for i, group in enumerate(self.scenario.clients):
            model = self.scenario.prototypes[group.prototype].model
            k = min(self.scenario.k_of_group(group), self.facts[group.prototype].parameters)
            for arm in self._arms(i):
                device.nominal_s("decompression", model=model, strategy=arm, k=k)
            if self.scenario.method == "fedkd":
                samples = self.scenario.dataset.public_batch or self.scenario.dataset.public
                device.nominal_s("inference", model=model, samples=samples)
                device.nominal_s("distillation", model=model, samples=samples)


def check(
    scenario: Scenario, *, source: str | Path | None = None, time_only: bool = False
) -> list[str]:
    """Build everything that needs no torch; the warnings that a run would record.

    Raises: `InputErrors` with every sentence: profiles, missing rows, topology, policy arguments,
    too little data for the clients and the public images.
    """
    return _checked(scenario, source, time_only).warnings()


def _checked(scenario: Scenario, source: str | Path | None, time_only: bool) -> Parts:
    parts = Parts(scenario, source)
    errors = parts.errors(time_only=time_only)
    if errors:
        raise InputErrors([error.within(parts.name) for error in errors])
    return parts


def available_profiles(folder: str | Path = ".") -> list[tuple[str, str]]:
    """Name and one line of provenance of each calibration profile at hand.

    Those in a folder `calibration` here or above, and simfed's own; one that cannot be read says why.
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


def run(
    scenario: Scenario,
    out: str | Path | None = None,
    *,
    source: str | Path | None = None,
    workers: int | None = None,
    device: str = "cpu",
    time_only: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | Progress = True,
    trajectories: TrajectoryStore | None = None,
) -> RunResult:
    """Play a scenario; its run directory goes to `out` (None: nothing is written).

    Args:
        source: the scenario's file, beside which profiles are looked for.
        workers: learning processes, 1 to as many as there are clients; None picks one per core.
            The results do not depend on it.
        device: where to learn, `cpu` or `cuda`.
        time_only: the clock without learning; torch is never imported.
        resume: go on from the checkpoint in `out`.
        overwrite: replace the run that is in `out`, once the new one has something to keep.
        progress: True shows it on standard error; or a function called after each round.
        trajectories: answer learning from what runs recorded there before, and record in turn; the
            result is the same bit for bit.

    Raises:
        InputError, InputErrors: the scenario or `out` is wrong; nothing was run.
        RunFailed: the run could not go on; `out` says why.
        Interrupted: Ctrl-C; after a first one the state is saved where there is an `out`.
    """
    if resume and out is None:
        raise InputError("a run directory to go on with", where="resume")
    began = time.perf_counter()
    parts = _checked(scenario, source, time_only)
    mode = "time-only" if time_only else "full"
    workers = workers or default_workers(scenario)
    directory = None
    recorder = Recorder()
    with contextlib.ExitStack() as stack:
        if out is not None:
            stack.enter_context(reserved(out, overwrite=overwrite, resume=resume))
        try:
            going_on = _going_on(parts, out, mode) if out is not None and resume else None
            made = _clock(parts) if time_only else _full(parts, workers, device, trajectories)
            workload = stack.enter_context(contextlib.closing(made))
            if out is not None:  # only now, when nothing is left that could be refused at once
                directory = going_on or _begun(parts, out, mode, overwrite=overwrite)
                directory.go_on()
                recorder = directory.recorder()
            simulation = _simulation(parts, workload, recorder)
            shown = _shown(progress, scenario)
            _play(simulation, directory, recorder, shown, scenario.checkpoint.every)
            facts_at_end = _at_end(parts, workload, simulation, device)
            summary = summarise(recorder.table, scenario.clients_of_prototype)
            facts_at_end["wall_s"]["total"] = time.perf_counter() - began
            facts_at_end["workers"] = 0 if time_only else workers
            if directory is None:
                return _in_memory(parts, recorder, facts_at_end, summary, mode)
            directory.finish(recorder, manifest=facts_at_end, summary=summary)
            return open_run(directory.path)
        except BaseException as error:
            told = _told(error, parts, directory, begun=resume or bool(recorder.rounds))
            if told is error:
                raise
            raise told from None


# ---- the steps of a run ------------------------------------------------------------------------


def _begun(parts: Parts, out: str | Path, mode: str, *, overwrite: bool) -> RunDirectory:
    """A new run directory; it holds the files it names, so it runs as it is."""
    beside, text = _self_contained(parts)
    return RunDirectory.create(
        out,
        scenario_yaml=text,
        manifest=_at_start(parts, mode),
        overwrite=overwrite,
        beside=beside,
    )


def _going_on(parts: Parts, out: str | Path, mode: str) -> RunDirectory:
    return RunDirectory.resume(out, scenario_yaml=_self_contained(parts)[1], mode=mode)


def _clock(parts: Parts) -> Workload:
    return _sizes_only(parts, next(iter(parts.recorded.values()), None))


def _full(parts: Parts, workers: int, device: str, store: TrajectoryStore | None) -> Workload:
    make = partial(_learning, parts, workers, device)
    return _replaying(parts, make, device, store) if store else make()


def _self_contained(parts: Parts) -> tuple[dict[str, bytes], str]:
    """Profiles, traces and graphs in use, and the scenario that finds them beside it."""
    files: dict[str, bytes] = {}

    def kept(source: str, folder: str, suffix: str) -> str:
        stem = unique = Path(source).stem
        number = 1
        while f"{folder}/{unique}{suffix}" in files:  # two files of one name in different folders
            number += 1
            unique = f"{stem}-{number}"
        files[f"{folder}/{unique}{suffix}"] = Path(source).read_bytes()
        return f"{folder}/{unique}{suffix}"

    profiles = {
        name: Path(kept(profile.source, "calibration", ".yaml")).stem
        for name, profile in parts.profiles.items()
    }
    named = dict.fromkeys(files_in(parts.scenario))
    network = {
        source: kept(source, "network", Path(source).suffix)
        for source in named
        if Path(source).is_file()
    }
    return files, dump_scenario(parts.scenario, profiles, network)


def _learning(parts: Parts, workers: int, device: str) -> LearningWorkload:
    from simfed.learn.workload import LearningWorkload

    return LearningWorkload(parts.scenario, parts.streams, workers=workers, device=device)


def _replaying(
    parts: Parts, make: Callable[[], LearningWorkload], device: str, store: TrajectoryStore
) -> Workload:
    """Learning answered from a recorded trajectory as far as one is known."""
    from simfed.replay.key import last_round_if_special, learning_key, learning_setup
    from simfed.replay.workload import ReplayingWorkload

    scenario = parts.scenario
    return ReplayingWorkload(
        make,
        _sizes_only(parts),
        store.open(learning_key(scenario, device=device), learning_setup(scenario, device=device)),
        index_code=scenario.compression.index_code,
        last_round=last_round_if_special(scenario),
    )


def default_workers(scenario: Scenario) -> int:
    """One learning process per core that this process may use, at most one per client."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # macOS
        cores = os.cpu_count() or 1
    return max(1, min(cores, scenario.client_count))


def _time_only(parts: Parts) -> Workload:
    return _sizes_only(parts, next(iter(parts.recorded.values()), None))


def _sizes_only(parts: Parts, recorded: Recorded | None = None) -> TimeOnlyWorkload:
    from simfed.sim import PrototypeSize, TimeOnlyWorkload

    scenario = parts.scenario
    value_bytes = 2 if scenario.downlink.payload == "fp16" else 4
    charge = scenario.charge
    sizes = {}
    for name, of_model in parts.facts.items():
        buffers = float(of_model.buffer_bytes if charge.buffers else 0)
        down = value_bytes * of_model.parameters + buffers if charge.downlink else 0.0
        model = scenario.prototypes[name].model
        sizes[name] = PrototypeSize(model, of_model.parameters, down, buffers)
    return TimeOnlyWorkload(
        sizes,
        prototype_of=lambda client: parts.group(client).prototype,
        index_code=scenario.compression.index_code,
        batch_size=scenario.training.batch_size,
        local_steps=parts.local_steps,
        recorded=recorded,
    )


def _simulation(parts: Parts, workload: Workload, recorder: Recorder) -> Simulation:
    from simfed.net import Network
    from simfed.sim import Simulation

    return Simulation(
        parts.scenario,
        workload=workload,
        make_policy=parts.policy,
        make_device=parts.device,
        make_network=lambda env, on_use: Network(
            env, parts.topology, model=parts.network_model, on_use=on_use
        ),
        recorder=recorder,
        streams=parts.streams,
        server_device=parts.server_device(),
    )


def _play(
    simulation: Simulation,
    directory: RunDirectory | None,
    recorder: Recorder,
    shown: RunProgress | Progress | None,
    save_every: int,
) -> None:
    """Let the clock run, from the checkpoint where there is one, with Ctrl-C at round borders."""

    def save(checkpoint: Checkpoint) -> None:
        if directory is not None:
            directory.save_checkpoint(checkpoint, recorder)

    if directory is not None:
        kept = directory.load_checkpoint(recorder)
        if kept is not None:
            simulation.restore(kept)
    with _polite_interrupt() as stop_requested, contextlib.ExitStack() as stack:
        if isinstance(shown, RunProgress):
            stack.enter_context(shown)
        simulation.run(
            progress=shown,
            stop_requested=stop_requested,
            save=save if directory is not None else None,
            save_every=save_every,
        )


@contextmanager
def _polite_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks for a stop at the next round border; the second stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set  # only the main thread may handle signals
        return

    def on_signal(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        print("stopping after this round; Ctrl-C again stops at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _shown(progress: bool | Progress, scenario: Scenario) -> RunProgress | Progress | None:
    if progress is True:
        return RunProgress(scenario.rounds)
    return progress or None


def _told(
    error: BaseException, parts: Parts, directory: RunDirectory | None, *, begun: bool
) -> BaseException:
    """The error to raise: what happened and what is kept of the run, which the folder says too.

    `begun`: rounds were played. A run with nothing to go on from gives way to the one it was to
    replace; one that never began leaves nothing.
    """
    stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
    kept = "nothing was kept" if begun else "no round was done and nothing was changed"
    if directory is not None:
        reason = "stopped at once" if isinstance(error, KeyboardInterrupt) else str(error)
        in_vain = not begun and (stopped or isinstance(error, InputError))
        kept = _close(directory, "interrupted" if stopped else "failed",
                      reason or type(error).__name__, in_vain=in_vain)  # fmt: skip
    if isinstance(error, InputError):
        return error.within(parts.name)
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(f"stopped at once; {kept}")
    if isinstance(error, RunFailed) and directory is not None and "--resume" not in str(error):
        return RunFailed(f"{error}; {kept}")
    return error


def _close(directory: RunDirectory, status: str, reason: str, *, in_vain: bool) -> str:
    """Leave a run that cannot go on now; what is kept, in words."""
    if not directory.has_checkpoint and directory.replaces:
        directory.abandon()
        return f"{directory.path} holds the run that was there before"
    if in_vain and not directory.has_checkpoint:
        directory.abandon()
        return "no round was done and nothing is kept"
    with contextlib.suppress(OSError):  # a full disk is already the error that is on its way
        directory.stop(status, reason)
    if directory.has_checkpoint:
        return f"{directory.path} keeps the last checkpoint, --resume goes on from it"
    return f"{directory.path} keeps the scenario, no checkpoint was due yet"


# ---- what the manifest says --------------------------------------------------------------------


def _at_start(parts: Parts, mode: str) -> dict[str, Any]:
    scenario = parts.scenario
    return {
        "name": scenario.name,
        "mode": mode,
        "seed": scenario.seed,
        "versions": versions(),
        "models": {
            name: {
                "model": scenario.prototypes[name].model,
                "parameters": of_model.parameters,
                "buffers": of_model.buffers,
            }
            for name, of_model in parts.facts.items()
        },
        "data": {scenario.dataset.name: data_digest(scenario.dataset.name)},
        "network": scenario.network.model,
        "warnings": [],
    }


def _at_end(
    parts: Parts, workload: Workload, simulation: Simulation, device: str
) -> dict[str, Any]:
    return {
        "warnings": [*parts.warnings(), *getattr(workload, "warnings", ())],
        "wall_s": {"total": 0.0, **simulation.wall_s()},
        "learning_wall_s": dict(workload.timings()),
        "device": device,
    }


def _in_memory(
    parts: Parts, recorder: Recorder, at_end: dict[str, Any], summary: dict[str, Any], mode: str
) -> Run:
    tables = {name: recorder.table(name) for name in TABLES}
    manifest = {
        **_at_start(parts, mode),
        **at_end,
        "fingerprint": fingerprint(lambda name: [tables[name]]),
        "status": "finished",
    }
    return Run(
        path=None,
        manifest=manifest,
        summary=summary,
        scenario_yaml=dump_scenario(parts.scenario),
        read_table=tables.__getitem__,
    )
