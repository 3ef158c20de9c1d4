"""The composition root: from a scenario's parts to a run, to its result.

Nothing here simulates or learns; `run` joins what does, and lets the clock play. Read
it from the top: `run` chooses what learns, `carry_out_run` is the life of any run (an
app's and a deployment's too), and below stand its steps in their order: the scenario is
accepted, a directory is made or found, the workload (what learns) and the simulation
(what has a clock) are built, rounds are played, and an error leaves the directory in a
state that `--resume` understands.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from simfed.experiment.assembly import Parts, WorldParts
from simfed.experiment.checks import Checks, check_parts
from simfed.experiment.interrupt import CtrlC
from simfed.experiment.progress import RunProgress
from simfed.fleet.contract import Learning, Workload
from simfed.fleet.world import WorldSpec
from simfed.ground.cluster import SchedulerConnection
from simfed.ground.cores import available_cores, most_processes
from simfed.ground.errors import InputError, Interrupted, RunFailed
from simfed.ground.inputs import list_files_below, read_bytes
from simfed.ground.measure import ACCURACY
from simfed.ground.method import Method
from simfed.ground.plain import Plain
from simfed.ground.registry import import_part
from simfed.ground.units import parse_size
from simfed.ground.writing import find_disk_refusal
from simfed.net.spec import LatencyTrace, ShareTrace, TraceSpec
from simfed.record.digest import digest_value, fingerprint
from simfed.record.directory import RunDirectory, reserve
from simfed.record.journal import Journal, OtherDecisions
from simfed.record.manifest import count_threads, versions
from simfed.record.read import Run, open_run
from simfed.record.recorder import Recorder
from simfed.record.schema import TABLES
from simfed.record.summary import summarise, warn_of_clipping
from simfed.replay.cached import Cached
from simfed.replay.journaled import Journaled
from simfed.replay.key import data_digest
from simfed.scenario import Scenario, dump_scenario, load_scenario
from simfed.scenario.load import validate_scenario
from simfed.schema.fields import list_files
from simfed.schema.places import list_sections

if TYPE_CHECKING:
    from simfed.policy import Policy
    from simfed.replay.store import TrajectoryStore
    from simfed.sim import Simulation

RunResult = Run
Progress = Callable[[int, float, "float | None"], None]
"""`(round, simulated_s, mean measure where it was evaluated)`, after each round."""

Beside = Callable[
    ["Parts", "Simulation"], "contextlib.AbstractContextManager[Progress]"
]
"""Opened once the simulation is built, closed before its learning side; gives a
function that is called after each round."""

ScenarioLike: TypeAlias = "Scenario | str | os.PathLike[str] | Mapping[str, Plain]"
"""A scenario, its file, or what such a file says as a mapping."""

_STOPPING = "stopping after this round; Ctrl-C again stops at once"

load_run = open_run
"""A run from its directory: the same object that `run` returned."""


def run(
    scenario: ScenarioLike,
    out: str | Path | None = None,
    *,
    source: str | Path | None = None,
    workers: int | str | None = None,
    device: str = "cpu",
    memory: float | str | None = None,
    time_only: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | Progress = True,
    trajectories: TrajectoryStore | None = None,
    beside: Beside | None = None,
) -> RunResult:
    """Play a scenario; its run directory goes to `out` (None: nothing is written).

    Args:
        scenario: as `load_scenario` gives it, or its file, or what such a file says as
            a mapping.
        out: the run directory; None: nothing is written.
        source: the scenario's file, beside which profiles are looked for.
        workers: learning processes; None picks one per core. There are never more than
            `count_useful_workers`, and the results do not depend on it. Or the address
            of a Dask cluster's scheduler, whose workers do the work.
        device: where to learn, `cpu` or `cuda`.
        memory: bytes, or a size such as `4 GB`, of what clients keep (residuals, own
            models, control variates); what is more lies in files beside the
            checkpoints. None: all of it is in memory. The results do not depend on it.
        time_only: the clock without learning; torch is never imported.
        resume: go on with the run in `out` from its last whole checkpoint; begin it
            where none has begun, give its result where it is finished.
        overwrite: replace the run that is in `out`, once the new one has something to
            keep.
        progress: True shows it on standard error; or a function called after each
            round.
        trajectories: answer learning from what runs recorded there before, and record
            in turn; the result is the same bit for bit.
        beside: a context manager that observes the simulation between rounds; it must
            not change it.

    Raises:
        InputError, InputErrors: the scenario or `out` is wrong; nothing was run.
        RunFailed: the run could not go on; `out` says why.
        Interrupted: Ctrl-C; after a first one the state is saved where there is an
            `out`.
    """
    if resume and out is None:
        raise InputError(
            "a run directory to go on with", where="resume", problem="no run is named"
        )
    scenario, source = accept_scenario(scenario, source)
    parts = check_parts(scenario, source, time_only)
    device = "cpu" if time_only else device
    dask, given = (workers, None) if isinstance(workers, str) else (None, workers)
    if dask is not None and (time_only or device != "cpu"):
        raise InputError("a run that learns on processors", where="--dask", got=dask)
    count = choose_workers(scenario, given)
    makers: dict[str, Callable[[], object]] = {}
    if isinstance(memory, str):
        memory = parse_size(memory, where="memory")
    if memory is not None:
        kept = None if out is None else Path(out)
        makers["store"] = lambda: import_part("simfed.learn.store:Store")(memory, kept)

    def workload() -> Workload:
        if time_only:
            return make_time_only_workload(parts)
        return _make_learning(parts, count, device, trajectories, makers)

    with contextlib.ExitStack() as stack:
        if dask is not None:
            connection = SchedulerConnection(dask)
            stack.callback(connection.close)
            count = len(connection.threads())
            say = progress.say if isinstance(progress, RunProgress) else None
            makers["pool"] = lambda: partial(
                import_part("simfed.experiment.dask_pool:DaskPool"),
                connection=connection,
                say=say,
            )
        return carry_out_run(
            parts,
            out,
            mode="time-only" if time_only else "full",
            device=device,
            workers=0 if time_only else count,
            make_workload=workload,
            make_simulation=build_simulation,
            resume=resume,
            overwrite=overwrite,
            progress=progress,
            beside=beside,
        )


def carry_out_run(
    parts: Parts,
    out: str | Path | None,
    *,
    mode: str,
    device: str,
    workers: int,
    make_workload: Callable[[], Workload],
    make_simulation: Callable[[Parts, Workload, Recorder], Simulation],
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | Progress = True,
    beside: Beside | None = None,
    at_end: Callable[[], dict[str, Plain]] = dict,
) -> RunResult:
    """Carry out a run, whatever plays its rounds.

    It makes run directory, checkpoints, manifest and errors.

    Args:
        parts: of the scenario, checked.
        out: the run directory; None: nothing is written.
        mode: `full`, `time-only` or `deployed`, for the manifest.
        device: where is learned, for the manifest.
        workers: learning processes, for the manifest; 0: nothing is learned.
        make_workload: makes what learns, once nothing can be refused at once any more.
        make_simulation: makes the clock side of parts, workload and recorder.
        resume: as of `run`.
        overwrite: as of `run`.
        progress: as of `run`.
        beside: as of `run`.
        at_end: further facts for the manifest, asked after the last round.

    Returns:
        The finished run; on resuming one that is finished, that one.

    Raises:
        InputError, RunFailed, Interrupted: as `run`.
    """
    began = time.perf_counter()
    scenario = parts.scenario
    directory = None
    recorder = Recorder(own=parts.own_columns)
    with contextlib.ExitStack() as stack:
        if out is not None:
            stack.enter_context(reserve(out, overwrite=overwrite, resume=resume))
        try:
            at_start, begun = collect_facts_at_start(parts, mode, device), None
            kept = ({}, "") if out is None else make_self_contained(parts)
            if out is not None and resume:
                begun = RunDirectory.resume(
                    out,
                    scenario_yaml=kept[1],
                    mode=mode,
                    device=device,
                    manifest=at_start,
                    beside=kept[0],
                )
                if begun is not None and begun.finished:
                    begun.tidy()
                    return open_run(begun.path)
            workload = stack.enter_context(contextlib.closing(make_workload()))
            # only now, when nothing is left that could be refused at once
            if out is not None:
                directory = begun or RunDirectory.create(
                    out,
                    scenario_yaml=kept[1],
                    manifest=at_start,
                    overwrite=overwrite,
                    beside=kept[0],
                )
                directory.go_on()
                recorder = directory.recorder(own=parts.own_columns)
            away = mode == "deployed"
            if away or (mode == "full" and directory is not None):
                workload = _make_journaled(parts, workload, directory, elsewhere=away)
            simulation = make_simulation(parts, workload, recorder)
            shown = RunProgress(scenario.rounds) if progress is True else progress
            if isinstance(shown, RunProgress):
                shown.measure = parts.measure
            observer = (
                stack.enter_context(beside(parts, simulation)) if beside else None
            )
            save_every = scenario.checkpoint.every
            _play_rounds(
                simulation, workload, directory, shown or None, save_every, observer
            )
            if isinstance(workload, Journaled):
                workload.note_open()
            of_caller = at_end()
            facts_at_end: dict[str, Plain] = {
                "warnings": [
                    *Checks(parts).warnings(),
                    *getattr(workload, "warnings", ()),
                    *(directory.manifest["warnings"] if directory is not None else ()),
                    *of_caller.pop("warnings", ()),
                ],
                "wall_s": {"total": 0.0, **simulation.wall_s()},
                "learning_wall_s": dict(workload.timings()),
                **of_caller,
            }
            summary = summarise(
                recorder.table, scenario.clients_of_prototype, parts.measure
            )
            facts_at_end["warnings"] += warn_of_clipping(summary)
            facts_at_end["wall_s"]["total"] = time.perf_counter() - began
            facts_at_end["workers"] = workers
            facts_at_end["threads"] = count_threads() if workers else 1
            if directory is None:
                facts = at_start | facts_at_end
                return run_in_memory(recorder, facts, summary, dump_scenario(scenario))
            directory.finish(recorder, manifest=facts_at_end, summary=summary)
            return open_run(directory.path)
        except BaseException as error:
            any_round = resume or bool(recorder.rounds)
            to_raise = settle_error(error, parts.name, directory, begun=any_round)
            if to_raise is error:
                raise
            raise to_raise from None


# ---- the steps of a run --------------------------------------------------------------


def accept_scenario(
    scenario: ScenarioLike, source: str | Path | None
) -> tuple[Scenario, str | Path | None]:
    """Return (validated scenario, its file or None).

    Args:
        scenario: a scenario, its file, or a mapping.
        source: the file of a scenario that is handed over ready.

    Raises:
        InputError, InputErrors: it is none of these, or wrong.
    """
    return accept_as(
        Scenario, "scenario", scenario, source, validate_scenario, load_scenario
    )


Read = TypeVar("Read")


def accept_as(
    kind: type[Read],
    name: str,
    value: Read | str | os.PathLike[str] | Mapping[str, Plain],
    source: str | Path | None,
    check: Callable[..., Read],
    load: Callable[[Path], Read],
) -> tuple[Read, str | Path | None]:
    """Return a scenario or fleet from any form that callers give, and its file or None.

    A value is taken as it is, a mapping checked by `check`, a file read by `load`.

    Args:
        kind: the class of the value.
        name: what errors call it.
        value: one of the three.
        source: the file that a value or mapping comes from, where relative paths start.
        check: mapping, `source` and `folder` → value.
        load: path → value.

    Raises:
        InputError: it is none of these.
    """
    if isinstance(value, kind):
        return value, source
    if isinstance(value, Mapping):
        folder = Path(source).parent if source is not None else Path()
        return check(value, source=str(source or name), folder=folder), source
    if not isinstance(value, (str, os.PathLike)):
        raise InputError(f"a {name}, its file or a mapping", where=name, got=value)
    path = Path(value)
    return load(path), path if source is None else source


def make_time_only_workload(parts: Parts) -> Workload:
    """Return the workload of a time-only run, which answers with sizes alone.

    Sizes that depend on what is learned come from a recorded run, where one is named.
    """
    from simfed.sim import TimeOnlyWorkload

    return TimeOnlyWorkload(
        parts.tasks, recorded=next(iter(parts.recorded.values()), None)
    )


def _make_learning(
    parts: Parts,
    workers: int,
    device: str,
    store: TrajectoryStore | None,
    makers: Mapping[str, Callable[[], object]],
) -> Workload:
    """Return the learning side; with a store, it learns what is not known there.

    Args:
        parts: of the scenario.
        workers: learning processes.
        device: `cpu` or `cuda`.
        store: answers of earlier runs; None: everything is learned.
        makers: name of a further argument of the workload → what makes it (`pool`,
        `store`).

    Raises:
        InputError: such arguments beside a method with a workload of its own.
    """
    if makers and parts.scenario.method.made.workload != Method.workload:
        where = "--dask" if "pool" in makers else "memory"
        raise InputError("a method with simfed's own workload", where=where)
    make = partial(make_method_workload, parts, workers, device, makers)
    if store is None:
        return make()
    from simfed.replay.key import describe_learning, learning_key

    scenario = parts.scenario
    kept = store.open(
        learning_key(scenario, device=device),
        describe_learning(scenario, device=device),
    )
    charged = digest_value(
        scenario.model_dump(mode="json", include={"charge", "downlink"})
    )
    return Cached(parts.tasks, make, kept, charged=charged)


def make_self_contained(parts: Parts) -> tuple[dict[str, bytes], str]:
    """Return the files that a run keeps, and the scenario that names these copies.

    Returns:
        Name in the run directory → content of the profiles, traces, graphs and plug-ins
        in
        use; the scenario as YAML.
    """
    files, profiles, names = copy_files(
        parts, parts.scenario.model_copy(update={"plugins": ()})
    )
    plugins = tuple(
        plugin.model_copy(
            update={
                "file": _take_up(files, plugin.file, "plugins"),
                "origin": plugin.origin or plugin.file,
            }
        )
        for plugin in parts.scenario.plugins
    )
    scenario = parts.scenario.model_copy(update={"plugins": plugins})
    return files, dump_scenario(scenario, profiles, names)


def copy_files(
    parts: WorldParts, world: WorldSpec
) -> tuple[dict[str, bytes], dict[str, str], dict[str, str]]:
    """Return the files that a world names, and what their copies are called.

    Args:
        parts: of the world; its profiles are read.
        world: whose files are looked for.

    Returns:
        Name of a copy → content; profile → the stem of its copy; path of another file →
        name of its copy.
    """
    files: dict[str, bytes] = {}
    profiles = {
        name: Path(_take_up(files, profile.source, "calibration", suffix=".yaml")).stem
        for name, profile in parts.profiles.items()
    }
    sources = dict.fromkeys(list_files(world))
    parts_of = (part for _, part in list_sections(world))
    kinds = TraceSpec | ShareTrace | LatencyTrace
    traces = {one.file for one in parts_of if isinstance(one, kinds)}
    found = (one for one in sources if one in traces or Path(one).is_file())
    many = world.client_count
    names = {source: _take_up(files, source, "network", many) for source in found}
    return files, profiles, names


def _take_up(
    files: dict[str, bytes],
    source: str,
    folder: str,
    clients: int = 0,
    suffix: str | None = None,
) -> str:
    """Take up a file or a folder among `files`; return its unique name there.

    Args:
        files: name → content, to which it is added.
        source: its path, which may name a file for each client by `{client}`.
        folder: in which the copy stands.
        clients: how many there are.
        suffix: of the copy; None: that of the file.
    """
    path, own = Path(source), Path()
    inside = list_files_below(path)
    if "{client}" in source:
        path = Path(f"{source.partition('{client}')[0]}_").parent  # of all of them
        own = Path(source).relative_to(path)
        each = (Path(source.replace("{client}", str(k))) for k in range(clients))
        inside = (file for file in each if file.is_file())
    suffix = path.suffix if suffix is None else suffix
    taken = {name for file in files for name in (file, *map(str, Path(file).parents))}
    name, number = f"{folder}/{path.stem}{suffix}", 1
    while name in taken:  # two of one name in different folders
        number += 1
        name = f"{folder}/{path.stem}-{number}{suffix}"
    for file in inside:
        files[(Path(name) / file.relative_to(path)).as_posix()] = read_bytes(file)
    return (Path(name) / own).as_posix()


def make_method_workload(
    parts: Parts,
    workers: int,
    device: str,
    makers: Mapping[str, Callable[[], object]] = {},
) -> Learning:
    """Return the learning side that the method names.

    Args:
        parts: of the scenario.
        workers: learning processes.
        device: `cpu` or `cuda`.
        makers: name of a further argument → what makes it.
    """
    workload: Callable[..., Learning] = import_part(parts.scenario.method.made.workload)
    more = {name: make() for name, make in makers.items()}
    made = workload(
        parts.scenario, parts.streams, workers=workers, device=device, **more
    )
    if (tasks := getattr(made, "tasks", None)) is not None:
        tasks.count_steps = parts.count_steps
    return made


def _make_journaled(
    parts: Parts, workload: Workload, directory: RunDirectory | None, *, elsewhere: bool
) -> Journaled:
    """Return the workload with its journal, in which it notes what learning answers.

    Args:
        parts: of the scenario.
        workload: what learns; one over a store brings its own journaling.
        directory: keeps the journal; None: it is kept nowhere.
        elsewhere: True if clients are real and cannot be asked again.
    """
    journal = (
        Journal(Path(), appends=False)
        if directory is None
        else directory.open_journal()
    )
    if isinstance(workload, Cached):
        workload.journal = journal
        return workload
    live = directory is None or directory.last is None
    return Journaled(parts.tasks, journal, workload, live=live, elsewhere=elsewhere)


def count_useful_workers(scenario: Scenario) -> int:
    """Return the learning processes that have something to do.

    There is one for each client that takes part at a time, and a few for each core that
    this process may use.
    """
    from simfed.sim.modes import make_server_mode

    clients = scenario.client_count
    if scenario.aggregation.edge_servers is None:
        clients = make_server_mode(scenario).at_once(clients)
    return min(most_processes(), clients)


def choose_workers(scenario: Scenario, asked: int | None) -> int:
    """Return a run's learning processes: as many as were asked for.

    There are no more than have something to do.

    Args:
        scenario: of the run.
        asked: None: one per core.

    Raises:
        InputError: fewer than 1 are asked for.
    """
    if asked is not None and asked < 1:
        raise InputError("a whole number of at least 1", where="workers", got=asked)
    return min(asked or available_cores(), count_useful_workers(scenario))


def build_simulation(
    parts: Parts,
    workload: Workload,
    recorder: Recorder,
    make_policy: Callable[[int], Policy] | None = None,
) -> Simulation:
    """Return the clock side of a scenario.

    Args:
        parts: of the scenario.
        workload: what the clock asks for sizes, and has learn.
        recorder: hears every event.
        make_policy: client → policy, in place of the scenario's.
    """
    from simfed.net import Network
    from simfed.sim import Clock, Simulation
    from simfed.sim.edges import make_backbone

    edges, device = parts.edge_servers, parts.server_device()

    world = Clock(
        lambda env, on_use: Network(
            env, parts.topology, model=parts.network_model, on_use=on_use
        ),
        parts.device,
        parts.streams,
        server_device=None if edges else device,
        presence=parts.fleet.presence(),
        faults=parts.faults,
        story=parts.tasks.story,
    )
    return Simulation(
        parts.scenario,
        workload=workload,
        world=world,
        make_policy=make_policy or parts.policy,
        recorder=recorder,
        streams=parts.streams,
        samples_of=parts.samples_of,
        base_bytes=parts.tasks.base_bytes if parts.scenario.charge.base else None,
        faults=parts.faults,
        edges=edges,
        backbone=make_backbone(world, parts.streams, device, parts.faults)
        if edges
        else None,
    )


def _play_rounds(
    simulation: Simulation,
    workload: Workload,
    directory: RunDirectory | None,
    shown: RunProgress | Progress | None,
    save_every: int,
    observer: Progress | None = None,
) -> None:
    """Let the clock run, with Ctrl-C at round borders.

    Where there is a checkpoint, it plays again up to there, and learning goes on.

    Args:
        simulation: the clock side.
        workload: what learns.
        directory: of the run; None: there are no checkpoints.
        shown: hears rounds, but none that is played again; None: nobody does.
        save_every: rounds between checkpoints.
        observer: hears all rounds.

    Raises:
        InputError: a checkpoint of other options or another version.
        RunFailed: played again, something was decided otherwise.
    """
    # what a checkpoint needs: a journal of what was learned, and a place
    kept = None
    if isinstance(workload, Journaled) and directory is not None:
        kept = workload, directory
    last = None if kept is None else kept[1].last

    def save(round: int) -> bool:
        assert kept is not None
        learning, place = kept
        if learning.live:
            place.save_checkpoint(round, *learning.state())
        return learning.live

    def play_again(round: int) -> int:
        if last is None or kept is None or round > last.round:
            return 0
        if round == last.round:
            try:
                kept[0].take_up(last.facts, last.arrays)
            except InputError:
                raise
            except (LookupError, TypeError, ValueError) as error:
                # it is whole, so others made it
                allowed = "a checkpoint of this version of simfed and the same options"
                got = f"{type(error).__name__}: {error}"
                raise InputError(allowed, where="checkpoint", got=got) from error
        return last.round

    begun = 0 if last is None else last.round
    if isinstance(shown, RunProgress):
        shown.again, begun = begun, 0

    def tell(round: int, time_s: float, measure: float | None) -> None:
        if shown is not None and round > begun:  # nobody hears again of the others
            shown(round, time_s, measure)
        if observer is not None:
            observer(round, time_s, measure)

    bar = shown if isinstance(shown, RunProgress) else contextlib.nullcontext()
    with CtrlC().heard() as ctrl_c, ctrl_c.patient(_STOPPING), bar:
        try:
            simulation.run(
                progress=tell,
                stop_requested=ctrl_c.asked,
                save=None if kept is None else save,
                save_every=save_every,
                plays_again=play_again,
            )
        except OtherDecisions as error:
            assert directory is not None
            raise RunFailed("; ".join([str(error), *directory.warnings])) from None


def settle_error(
    error: BaseException,
    name: str,
    directory: RunDirectory | None,
    *,
    begun: bool,
    resumable: bool = True,
) -> BaseException:
    """Leave the run directory as it should be after an error; return what to raise.

    A run without a checkpoint gives way to the one it was to replace; one that never
    began leaves nothing.

    Args:
        error: that ended the run.
        name: of the run, for errors about its input.
        directory: of the run; None: nothing was written.
        begun: rounds were played.
        resumable: checkpoints of it can be kept at all.

    Returns:
        The error to raise, which says what is kept.
    """
    stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
    rest = "nothing was kept" if begun else "no round was done and nothing was changed"
    if directory is not None:
        reason = (
            "stopped at once" if isinstance(error, KeyboardInterrupt) else str(error)
        )
        reason = error.reason if isinstance(error, Interrupted) else reason
        reason = reason or type(error).__name__
        in_vain = not begun and (stopped or isinstance(error, InputError))
        # a disk that is full today says nothing of the run
        stopped = stopped or find_disk_refusal(error) is not None
        status = "interrupted" if stopped else "failed"
        rest = _leave_directory(directory, status, reason, in_vain=in_vain)
    if isinstance(error, InputError):
        return error.within(name)
    if isinstance(error, KeyboardInterrupt):
        rest = rest if resumable else "an app cannot be saved, so nothing was kept"
        return Interrupted(f"stopped at once; {rest}")
    if isinstance(error, RunFailed) and directory is not None:
        return RunFailed(f"{error}; {rest}") if resumable else error
    return error


def _leave_directory(
    directory: RunDirectory, status: str, reason: str, *, in_vain: bool
) -> str:
    """Mark the run as stopped, or remove what is of no use.

    Args:
        directory: of the run.
        status: `interrupted` or `failed`.
        reason: one sentence for the manifest.
        in_vain: nothing of it is worth keeping.

    Returns:
        A phrase that says what is kept.
    """
    if not directory.has_checkpoint and directory.replaces:
        directory.abandon()
        return f"{directory.path} holds the run that was there before"
    if in_vain and not directory.has_checkpoint:
        directory.abandon()
        return "no round was done and nothing is kept"
    # a full disk is already the error that is on its way
    with contextlib.suppress(OSError):
        directory.stop(status, reason)
    if directory.has_checkpoint:
        return f"{directory.path} keeps the last checkpoint, --resume goes on from it"
    return f"{directory.path} keeps the scenario alone, --resume begins it again"


# ---- what the manifest says ----------------------------------------------------------


def collect_facts_at_start(parts: Parts, mode: str, device: str) -> dict[str, Plain]:
    """Return the manifest's facts that are known before the first round.

    Args:
        parts: of the scenario.
        mode: `full`, `time-only` or `deployed`.
        device: where is learned.
    """
    scenario = parts.scenario
    return {
        "name": scenario.name,
        "mode": mode,
        "device": device,
        "seed": scenario.seed,
        "versions": versions(),
        "models": {
            name: {
                "model": scenario.model_names[name],
                "parameters": of_model.parameters,
                "buffers": of_model.buffers,
            }
            for name, of_model in parts.facts.items()
        },
        "classes": parts.tasks.setting.classes,
        "data": {scenario.dataset.label: data_digest(scenario)},
        "profiles": parts.shipped_profiles,
        "network": scenario.network.model,
        "warnings": [],
        **({} if parts.measure == ACCURACY else {"measure": parts.measure.plain()}),
        **({"owned": parts.owned.plain()} if mode == "full" else {}),
        **({"privacy": account.plain()} if (account := parts.account()) else {}),
    }


def run_in_memory(
    recorder: Recorder,
    facts: Mapping[str, Plain],
    summary: dict[str, Plain],
    scenario_yaml: str,
) -> Run:
    """Return a finished run of which nothing was written.

    Args:
        recorder: has all rows.
        facts: of its manifest; fingerprint and status are added.
        summary: as `summarise` makes it.
        scenario_yaml: the resolved scenario.
    """
    tables = {name: recorder.table(name) for name in TABLES}
    digest = fingerprint(lambda name: [tables[name]])
    return Run(
        path=None,
        manifest={**facts, "fingerprint": digest, "status": "finished"},
        summary=summary,
        scenario_yaml=scenario_yaml,
        read_table=tables.__getitem__,
    )
