"""Runs of a fleet with an app, written to a run directory.

`run` takes two apps, `run_folder` the folder of an app, `run_studied` one run of a
study. All of them go one way: the fleet is built (`check_world`), the app is played to
its end (`_play_fleet`), and tables, manifest and summary are written, or kept in
memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simfed.experiment.assembly import WorldParts
from simfed.experiment.checks import check_world, warn_of_world
from simfed.experiment.interrupt import CtrlC
from simfed.experiment.running import (
    RunResult,
    accept_as,
    copy_files,
    run_in_memory,
    settle_error,
)
from simfed.flower.versions import flower_version
from simfed.flower.workfile import SUFFIX, load_work
from simfed.ground.cores import most_processes
from simfed.ground.errors import InputError, RunFailed, listed
from simfed.ground.inputs import read_bytes
from simfed.ground.plain import Plain
from simfed.ground.units import format_duration
from simfed.record.digest import digest_folder
from simfed.record.directory import RunDirectory, reserve
from simfed.record.manifest import count_threads, versions
from simfed.record.read import open_run
from simfed.record.recorder import Recorder
from simfed.record.schema import START
from simfed.record.summary import summarise
from simfed.scenario import dump_scenario
from simfed.scenario.fleet_file import APP, App, FleetFile, load_fleet, validate_fleet

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from simfed.flower.charging import RunPrices, Watch
    from simfed.flower.exchanges import Progress
    from simfed.flower.grid import SimGrid
    from simfed.flower.play import AppPlay
    from simfed.flower.turns import ServerThreads


HOST_TIMEOUT_S = 600.0
"""An app that gives no sign for so long is given up."""

_TELL_EVERY_S = 10.0
"""The least host seconds between two lines of progress."""

AnyFleet = FleetFile | str | os.PathLike[str] | Mapping[str, Any]


def run(  # noqa: PLR0913  options by keyword
    server_app: ServerApp,
    client_app: ClientApp,
    fleet: AnyFleet,
    out: str | Path | None = None,
    *,
    run_config: Mapping[str, Plain] | None = None,
    source: str | Path | None = None,
    overwrite: bool = False,
    host_timeout_s: float = HOST_TIMEOUT_S,
    progress: bool | Progress = True,
    workers: int = 1,
    app: Mapping[str, Plain] | None = None,
    notes: Sequence[str] = (),
    watch: Watch | None = None,
) -> RunResult:
    """Run a Flower app on a simulated fleet.

    Its run directory goes to `out` (None: nothing is written).

    Modelled: every message over the network with the bytes Flower writes, each node's
    work on one message at a time, the server's own time; the time that the app is told.
    Ignored: what Flower's processes, heartbeats and polls take. A run that was stopped
    begins anew: an app cannot be saved.

    Args:
        server_app: the app's server side.
        client_app: the app's client side.
        fleet: a `FleetFile`, its file or a mapping; a whole scenario's learning part is
            passed over.
        out: the run directory; None: nothing is written.
        run_config: what the apps find in `context.run_config`.
        source: the fleet's file, beside which profiles are looked for.
        overwrite: replace the run that is in `out`.
        host_timeout_s: host seconds after which an app that gives no sign is given up.
        progress: show on standard error how far it is, now and then; or what is told
            instead.
        workers: processes for the nodes' work, at most one per node and
            `simfed.ground.cores.most_processes`; the results do not depend on it.
        app: what the manifest says of where the apps came from.
        notes: sentences that the run's warnings begin with.
        watch: is told of every message that a node has worked on.

    Raises:
        InputError, InputErrors: the fleet, the app or `out` is wrong.
        RunFailed: the app failed, or waits for what never comes.
        Interrupted: Ctrl-C.
    """
    version = flower_version()
    from simfed.flower.charging import RunPrices

    fleet, source = _load_fleet(fleet, source)
    parts = check_world(fleet, source)
    work = None if fleet.charged.file is None else load_work(fleet.charged.file)
    if not host_timeout_s > 0:
        raise InputError("seconds above 0", where="host_timeout_s", got=host_timeout_s)
    if workers < 1:
        raise InputError("a whole number of at least 1", where="workers", got=workers)
    workers = min(workers, fleet.client_count, most_processes())
    config = dict(run_config or {})
    charges = RunPrices(fleet, config, work, watch)
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        directory = None
        if out is not None:
            stack.enter_context(reserve(out, overwrite=overwrite))
        try:
            origin = {**(app or {}), "run_config": config}
            manifest = _begin_manifest(fleet, version, origin)
            if out is not None:
                beside, text = _make_self_contained(fleet, parts)
                directory = RunDirectory.create(
                    out,
                    scenario_yaml=text,
                    manifest=manifest,
                    overwrite=overwrite,
                    beside=beside,
                )
            free = charges.start in (None, "never")
            own = None if free else {"participations": (f"{START}_s",)}
            recorder = (
                Recorder(own=own) if directory is None else directory.recorder(own=own)
            )
            tell = _make_progress_printer() if progress is True else progress or None
            played = _play_fleet(
                (server_app, client_app),
                fleet,
                parts,
                recorder,
                charges,
                config,
                host_timeout_s,
                tell,
                workers,
            )
            if work is not None and fleet.charged.kind == "work":
                manifest["laws"] = work.card()
            wall_s = time.perf_counter() - began
            manifest |= _finish_manifest(manifest, parts, played, notes, wall_s)
            summary = summarise(recorder.table, {APP: fleet.client_count})
            if directory is not None:
                directory.finish(recorder, manifest=manifest, summary=summary)
                return open_run(directory.path)
            return run_in_memory(
                recorder, manifest, summary, dump_scenario(_drop_app(fleet))
            )
        except BaseException as error:
            begun = not isinstance(error, InputError)
            raise settle_error(
                error, parts.name, directory, begun=begun, resumable=False
            ) from None


def run_folder(
    app: str | Path,
    fleet: str | Path | FleetFile,
    out: str | Path | None = None,
    *,
    run_config: Mapping[str, Plain] | None = None,
    source: str | Path | None = None,
    **options: Plain,
) -> RunResult:
    """Run the Flower app in a folder, loaded by its `pyproject.toml`.

    Args:
        app: the app's folder.
        fleet: as for `run`; where it says nothing of computing, a work file in the
            app's folder does.
        out: the run directory; None: nothing is written.
        run_config: overrides, key by key, what the fleet says of it (`app.run_config`)
            and the app's own configuration.
        source: the fleet's file, beside which profiles are looked for.
        options: those of `run`, but for `app` and `notes`.

    Returns:
        The run's tables, manifest and summary.

    Raises:
        InputError, InputErrors: as `run`; the folder is no app or cannot be imported.
        RunFailed: as `run`.
    """
    flower_version()
    from simfed.flower.loading import load, read_stated_nodes

    fleet, source = _load_fleet(fleet, source)
    folder = Path(app)
    fleet = _choose_computing(fleet, folder)
    overrides = {**(fleet.app.run_config if fleet.app else {}), **(run_config or {})}
    fleet = fleet.model_copy(update={"app": App.model_construct(folder=str(app))})
    origin = {"folder": folder.resolve().name, "digest": digest_folder(folder)}
    with load(app, overrides) as (server_app, client_app, config):
        notes = _compare_sizes(folder, read_stated_nodes(folder), fleet.client_count)
        if fleet.charged.file is not None:
            notes += _compare_code(folder, fleet.charged.file)
        own: dict[str, Any] = {"source": source, "run_config": config, "app": origin}
        return run(server_app, client_app, fleet, out, notes=notes, **own, **options)


def _compare_sizes(folder: Path, stated: Sequence[int], nodes: int) -> list[str]:
    """Return a sentence where the app was written for another number of nodes.

    Args:
        folder: the app's, for the sentence.
        stated: what `read_stated_nodes` found.
        nodes: of the fleet.
    """
    if not stated or nodes in stated:
        return []
    counts = " or ".join(f"{count:,}" for count in stated)
    return [
        f"{folder / 'pyproject.toml'} has num-supernodes = {counts}, the fleet "
        f"{nodes:,} nodes: an app that deals its data by `num-partitions` gives each "
        "node another share than there"
    ]


def _compare_code(folder: Path, work_file: str) -> list[str]:
    """Return a sentence where the app is not the one that was measured."""
    if load_work(work_file).digest == digest_folder(folder, "*.py"):
        return []
    return [
        f"the app's code has changed since {work_file} was measured; `simfed flower "
        "measure` with --overwrite brings it up to date"
    ]


def check_some_worked(result: RunResult) -> None:
    """Check that some message of a run was answered.

    Args:
        result: a run of an app; its manifest has the first node's exception (`raised`).

    Raises:
        RunFailed: all messages failed or came to nothing, or none reached a node.
    """
    outcomes = result.participations["outcome"]
    if outcomes.isin(["aggregated", "late"]).any():
        return
    raised = result.manifest.get("raised")
    why = f": {raised}" if raised else ""
    where = "" if result.path is None else f"; {result.path} has what happened"
    how = "failed" if (outcomes == "failed").all() else "failed or came to nothing"
    what = (
        f"all {len(outcomes):,} messages {how}"
        if len(outcomes)
        else ("no message reached a node")
    )
    raise RunFailed(f"{what}{why}{where}")


def _choose_computing(fleet: FleetFile, folder: Path) -> FleetFile:
    """Return the fleet with the app's work file where that is to charge it.

    It does where the fleet says nothing of computing; a metered one without a file
    takes its level from it.

    Raises:
        InputError: the folder has more than one work file.
    """
    chosen = fleet.charged.kind != "metered" or fleet.charged.file is not None
    files = [] if chosen else sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        return fleet
    if len(files) > 1:
        allowed = f"one of them as --work: {listed(file.name for file in files)}"
        raise InputError(allowed, where=str(folder), problem="more than one work file")
    if fleet.computing is None:
        return fleet.charged_by(files[0])
    level = {"file": str(files[0].resolve())}
    computing = fleet.computing.model_copy(update=level)
    return fleet.model_copy(update={"computing": computing})


def run_studied(plain: Mapping[str, Plain], out: Path, source: str) -> None:
    """Do one run of a study, or find it done.

    Args:
        plain: a fleet with its app.
        out: the run directory.
        source: the file that the fleet is from.

    Raises:
        InputError, InputErrors, RunFailed: as for `run_folder`; also where no message
        came to anything.
    """
    fleet = validate_fleet(plain, source=source, folder=Path(source).parent)
    if fleet.app is None:
        problem = "the fleet of a study has no app"
        raise InputError("one", where=f"{source}: app", problem=problem)
    try:
        result = open_run(out)
    except InputError:  # an app cannot be saved: one that was stopped begins again
        result = run_folder(
            fleet.app.folder, fleet, out, source=source, overwrite=True, progress=False
        )
    check_some_worked(result)


def read_config(texts: Sequence[str]) -> dict[str, Plain]:
    """Return what `flwr run` takes as `--run-config`.

    Args:
        texts: `key=value` pairs in TOML, several to a text, or one TOML file.

    Returns:
        The values by key, with dots between the names of tables.

    Raises:
        InputError: they are neither, or Flower is not installed.
    """
    flower_version()
    from flwr.common.config import parse_config_args

    allowed = "key=value pairs with values in TOML, or a TOML file"
    config: dict[str, Plain] = {}
    with contextlib.suppress(Exception):  # of tomli, click, or the file
        config.update(parse_config_args(list(texts)))
    if texts and not config:  # Flower passes over what is neither
        raise InputError(allowed, where="--run-config", got=" ".join(texts))
    return config


def _make_progress_printer() -> Progress:
    """Return what prints a line about an exchange on standard error, now and then."""
    printed_wall_s = time.monotonic()

    def print_line(exchange: int, simulated_s: float, accuracy: float | None) -> None:
        nonlocal printed_wall_s
        if time.monotonic() - printed_wall_s < _TELL_EVERY_S:
            return
        printed_wall_s = time.monotonic()
        line = f"exchange {exchange}  simulated {format_duration(simulated_s)}"
        line += "" if accuracy is None else f"  accuracy {accuracy:.1%}"
        print(line, file=sys.stderr, flush=True)

    return print_line


# ---- the steps of a run --------------------------------------------------------------


def _load_fleet(
    fleet: AnyFleet, source: str | Path | None
) -> tuple[FleetFile, str | Path | None]:
    return accept_as(FleetFile, "fleet", fleet, source, validate_fleet, load_fleet)


def _play_fleet(
    apps: tuple[ServerApp, ClientApp],
    fleet: FleetFile,
    parts: WorldParts,
    recorder: Recorder,
    charges: RunPrices,
    run_config: dict[str, Plain],
    host_timeout_s: float,
    progress: Progress | None,
    workers: int,
) -> AppPlay:
    """Play an app to its end, and return what is known then.

    Everything that is put in the place of Python's or Flower's own (time, threads,
    random numbers, the legacy server) holds inside of this call alone.

    Args:
        apps: the server app and the client app.
        fleet: the fleet file.
        parts: what was built from it.
        recorder: gets the rows.
        charges: the run's prices.
        run_config: what both apps find in `context.run_config`.
        host_timeout_s: host seconds after which an app that gives no sign is given up.
        progress: is told of every exchange; None: Flower's log keeps silent too.
        workers: processes for the nodes' work.

    Raises:
        InputError: a message has no price.
        RunFailed: what the server app raises, or that it sends nothing.
        Interrupted: Ctrl-C.
    """
    from flwr.supercore.date import now

    from simfed.flower.clocks import foreign_randomness, foreign_time
    from simfed.flower.crew import AppCrew, one_thread
    from simfed.flower.hooks import evaluations_told
    from simfed.flower.legacy import legacy_server
    from simfed.flower.play import AppPlay
    from simfed.flower.turns import ForeignError, ServerThreads, describe_error

    server_app, client_app = apps
    with contextlib.ExitStack() as stack:
        stack.enter_context(foreign_time(now))
        stack.enter_context(one_thread())
        if progress is None:
            stack.enter_context(_quiet_flower())
        crew = AppCrew(client_app, fleet.charged, workers, host_timeout_s)
        stack.callback(crew.close)
        threads = ServerThreads(fleet.server.charged, host_timeout_s)
        stack.callback(threads.stop)
        play = AppPlay(
            fleet,
            parts,
            recorder,
            crew,
            threads,
            charges,
            run_config,
            stop_requested=stack.enter_context(CtrlC().heard()).asked,
            progress=progress,
        )
        stack.enter_context(threads.patched())
        stack.enter_context(
            evaluations_told(play.exchanges.set_evaluation, play.round_metrics.extend)
        )
        stack.enter_context(legacy_server())
        stack.enter_context(foreign_randomness(parts.streams.integer("flower-server")))
        app = partial(server_app, *_build_world(play.run_id, threads, run_config))
        try:
            play.play(app)
        except ForeignError as raised:
            raise RunFailed(
                f"at {play.env.now:g} s the server app raised "
                f"{describe_error(raised.error)}"
            ) from raised.error
    return play


def _build_world(
    run_id: int, threads: ServerThreads, run_config: dict[str, Plain]
) -> tuple[SimGrid, Context]:
    """Return the grid and the context that a server app is called with.

    Flower keeps the identity of its task in a class, which is set here.
    """
    from flwr.app import Context, RecordDict
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.supercore.run import Run as FlowerRun
    from flwr.supercore.task_identity import TaskIdentity

    from simfed.flower.grid import SimGrid

    TaskIdentity.task_id, TaskIdentity.run_id = 1, run_id
    TaskIdentity.node_id = SUPERLINK_NODE_ID
    grid = SimGrid(FlowerRun.create_empty(run_id), threads.ask)
    return grid, Context(run_id, SUPERLINK_NODE_ID, {}, RecordDict(), run_config)


@contextlib.contextmanager
def _quiet_flower() -> Iterator[None]:
    log = logging.getLogger("flwr")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


# ---- what the manifest says ----------------------------------------------------------


def _begin_manifest(
    fleet: FleetFile, version: str, app: dict[str, Plain]
) -> dict[str, Plain]:
    charged = {c.kind for c in (fleet.charged, fleet.server.computing) if c}
    return {
        "name": fleet.name,
        "mode": "flower",
        "device": "cpu",
        "seed": fleet.seed,
        "versions": {**versions(), "flwr": version},
        "network": fleet.network.model,
        "computing": fleet.charged.kind,
        "app": app,
        "repeatable": "measured" not in charged,
        "warnings": [],
    }


def _finish_manifest(
    manifest: Mapping[str, Plain],
    parts: WorldParts,
    played: AppPlay,
    notes: Sequence[str],
    wall_s: float,
) -> dict[str, Plain]:
    """Return the manifest's facts that are known when an app has ended.

    Args:
        manifest: as it was at the beginning.
        parts: what was built from the fleet file.
        played: the app's run.
        notes: the first warnings.
        wall_s: host seconds that the run took.
    """
    warnings = [*notes, *played.charges.warnings()]
    if not manifest["repeatable"]:
        warnings.append(
            "computing was measured on this machine: another run takes another time"
        )
    facts = {
        "warnings": [*warnings, *warn_of_world(parts)],
        "wall_s": {"total": wall_s},
        "workers": 0,
        "threads": count_threads(),
        "start": played.charges.start,
    }
    rare = {"round_metrics": played.round_metrics, "raised": played.charges.raised}
    return facts | {name: fact for name, fact in rare.items() if fact}


def _drop_app(fleet: FleetFile) -> FleetFile:
    return fleet.model_copy(update={"app": None})  # which the manifest names


def _make_self_contained(
    fleet: FleetFile, parts: WorldParts
) -> tuple[dict[str, bytes], str]:
    """Return files to lie beside a run's scenario, and that scenario as YAML.

    The files are profiles, tables and the work file, by their paths in the run
    directory, which the scenario names in place of their own.
    """
    bare, work = _drop_app(fleet), fleet.charged.file
    beside, profiles, files = copy_files(
        parts, bare.model_copy(update={"computing": None})
    )
    if work is not None:
        files[work] = f"calibration/{Path(work).name}"
        beside[files[work]] = read_bytes(work)
    return beside, dump_scenario(bare, profiles, files)
