"""Runs studies: any number of processes, here and elsewhere, take run by run."""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from simfed.experiment.interrupt import CtrlC
from simfed.ground.errors import InputError, InputErrors, Interrupted, RunFailed
from simfed.ground.inputs import read_text
from simfed.ground.measure import find_common_measure
from simfed.ground.registry import import_part
from simfed.ground.units import counted
from simfed.record.directory import note_failure
from simfed.scenario.load import read_yaml
from simfed.study.kinds import RunJob
from simfed.study.places import Cluster, RunProcesses
from simfed.study.plan import (
    PlannedRun,
    StudyPlan,
    merge_errors,
    parse_place,
    plan_study,
)
from simfed.study.show import StudyProgress
from simfed.study.store import StudyFolder
from simfed.study.work import RunEnd, play

if TYPE_CHECKING:
    from simfed.replay import TrajectoryStore
    from simfed.study.results import StudyResult

_ATTEMPTS = 2
"""The number of times that a run is begun before the death of its worker counts against
it."""
_LOOK_EVERY_WALL_S = 0.5
_MANY = 500
"""Runs: to check the scenarios of so many takes seconds."""
_GRACE_WALL_S = 30.0
"""Host seconds that runs have to save their state after Ctrl-C."""


def choose_out(study: str | Path) -> Path:
    """Return the folder `studies/NAME` by what the study's file says under `name`.

    Characters that are awkward in a path become hyphens; without a name it is the
    file's.

    Raises:
        InputError: the file cannot be read.
    """
    name = str(read_yaml(study).get("name") or Path(study).stem)
    return Path("studies") / (re.sub(r"[^\w.-]", "-", name).strip(".-")[:80] or "study")


def run_study(
    path: str | Path,
    out: str | Path | None = None,
    *,
    jobs: int | None = None,
    dask: str | None = None,
    only: str | None = None,
    retry_failed: bool = False,
    device: str = "cpu",
    time_only: bool = False,
    trajectories: TrajectoryStore | bool | None = True,
    progress: bool = True,
    allow_plugins: bool = False,
    overrides: Mapping[str, object] | Sequence[tuple[str, object]] = (),
) -> StudyResult:
    """Run what is not yet done of the study in the file `path`; its folder is `out`.

    Other processes may do the same at the same time: each takes the runs that nobody is
    at, and returns when all are done.

    Args:
        path: the study file.
        out: `studies/NAME` if omitted.
        jobs: runs at once on this machine, at most
            `simfed.ground.cores.most_processes`; if omitted one per core, or one on a
            GPU.
        dask: address of the scheduler of a Dask cluster, whose workers do the runs.
        only: the runs at this place of the axes alone,
            `link=DSL,strategy=dgc@1%,seed=3`.
        retry_failed: try again what failed before; otherwise it is left as it is.
        device: as in `simfed.run`, for every run.
        time_only: as in `simfed.run`, for every run.
        trajectories: where learning is kept for replay; True is the user's cache, False
            or None computes everything anew.
        progress: show it on standard error.
        allow_plugins: as in `simfed.load_scenario`, of the study and its base.
        overrides: key path → value, of the study's own keys or the same in every run.

    Raises:
        InputError, InputErrors: the study, a scenario, the folder or the cluster;
            nothing was run.
        RunFailed: some runs failed (the others are done), or the work could not go on.
        Interrupted: Ctrl-C; the same call goes on.
    """
    from simfed.replay import TrajectoryStore
    from simfed.study.results import load_study

    if dask is not None and jobs is not None:
        problem = "no --jobs beside a Dask cluster: its workers are the jobs"
        raise InputError(problem, where="--jobs", got=jobs)
    store = None
    if trajectories and not time_only:
        store = TrajectoryStore() if trajectories is True else trajectories
    folder = StudyFolder(Path(out) if out is not None else choose_out(path))
    with CtrlC().heard() as ctrl_c:
        pairs = [*overrides.items()] if isinstance(overrides, Mapping) else overrides
        plan = plan_study(path, allow_plugins=allow_plugins, overrides=pairs)
        place = {} if only is None else parse_place(plan, only)
        shown = StudyProgress(plan.study.name, quiet=not progress)
        if len(plan.runs) >= _MANY:
            shown.say(f"{plan.study.name}: checking {counted(len(plan.runs), 'run')}")
        addresses = check_plan(plan, str(path), device=device, time_only=time_only)
        ctrl_c.check()
        folder.make(plan, addresses, read_text(path))
        chosen = {
            a: r for a, r in zip(addresses, plan.runs, strict=True) if r.is_at(place)
        }
        runs = _list_runs(plan, chosen, folder, device, time_only, store)
        if dask is None and device != "cpu" and not time_only:
            import_part("simfed.learn.precision:device_of")(device)
        worker = StudyWorker(folder, runs, shown, ctrl_c, retry_failed=retry_failed)
        try:
            if not worker.is_done:
                worker.work(
                    RunProcesses(jobs, device) if dask is None else Cluster(dask)
                )
        finally:
            if store is not None:
                store.trim()
    worker.refuse_failed()
    return load_study(folder.path)


def check_plan(
    plan: StudyPlan, study_file: str, *, device: str, time_only: bool
) -> list[str]:
    """Check every scenario of a plan; return the address of each of its runs.

    Args:
        plan: of the study.
        study_file: the name in errors.
        device: where runs learn.
        time_only: runs are the clock alone.

    Returns:
        As many addresses as runs, in their order.

    Raises:
        InputErrors: what is wrong in the scenarios, equal sentences once.
        InputError: scenarios are judged by different measures.
    """
    from simfed.study.address import compute_addresses

    source, kind = plan.study.base, plan.kind
    errors: list[tuple[Mapping[str, str], InputError]] = []
    more = 0
    for setting in plan.settings:  # seeds differ in nothing that is checked
        try:
            kind.check(setting.scenario, source=source, time_only=time_only)
        except InputErrors as several:
            errors += [(setting.point, error) for error in several.errors]
            more += several.more
        except InputError as error:
            errors.append((setting.point, error))
    if errors:
        raise InputErrors(merge_errors(errors, len(plan.settings), study_file), more)
    measures = (kind.find_measure(setting.scenario) for setting in plan.settings)
    find_common_measure(measures, where=study_file)
    addresses = [""] * len(plan.runs)
    for first, setting in enumerate(plan.settings):
        facts = kind.collect_facts(
            setting.scenario, source=source, device=device, time_only=time_only
        )
        addresses[first :: len(plan.settings)] = compute_addresses(facts, plan.seeds)
    return addresses


def _list_runs(
    plan: StudyPlan,
    chosen: Mapping[str, PlannedRun],
    folder: StudyFolder,
    device: str,
    time_only: bool,
    store: TrajectoryStore | None,
) -> list[QueuedRun]:
    """Return the runs that a worker takes up.

    Args:
        plan: of the study.
        chosen: address → planned run.
        folder: of the study.
        device: where they learn.
        time_only: the clock alone.
        store: where learning is kept; None: nowhere.
    """
    from simfed.study.address import own_code

    def make_job(address: str, run: PlannedRun) -> RunJob:
        return RunJob(
            address=address,
            study=str(folder.path.resolve()),
            plain=plan.kind.dump(run.scenario),
            source=str(Path(plan.study.base).resolve()),
            device=device,
            time_only=time_only,
            cache=str(store.folder.resolve()) if store is not None else None,
            cache_limit_bytes=store.limit_bytes if store is not None else float("inf"),
            code=own_code(),
        )

    return [
        QueuedRun(
            address=address,
            named=run.named,
            path_key=plan.kind.compute_path_key(run.scenario, device=device)
            if store
            else None,
            make_job=partial(make_job, address, run),
        )
        for address, run in chosen.items()
    ]


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """One address of a study; runs of equal scenarios share one."""

    address: str
    named: str
    """The run in words: `up 5 Mbps, policy top-k, seed 0`."""
    path_key: str | None
    """Equal for runs that learn the same; None: each has its own way, or nothing is
    kept."""
    make_job: Callable[[], RunJob]


class StudyWorker:
    """Takes the runs of a study that nobody is at, until all have ended.

    A run is at one of four places: waiting, running here, running in another process,
    or held back until one that learns the same has ended. Other workers may be at the
    same folder; they meet in the runs' locks alone.

    Made by `run_study`, which then calls `work` and `refuse_failed`.
    """

    def __init__(
        self,
        folder: StudyFolder,
        runs: Iterable[QueuedRun],
        shown: StudyProgress,
        ctrl_c: CtrlC,
        *,
        retry_failed: bool,
    ) -> None:
        self._folder, self._shown, self._ctrl_c = folder, shown, ctrl_c
        self._waiting: deque[QueuedRun] = deque()
        self._running: dict[Future[RunEnd], QueuedRun] = {}
        self._elsewhere: list[QueuedRun] = []
        """The runs that other processes are at."""
        self._looks_at_wall_s = 0.0
        """The instant, of `time.monotonic`, from which on they are looked at again."""
        self._followers: dict[str, list[QueuedRun]] = {}
        """Path key that is being learned → runs that wait for what comes of it:
        computing it twice at the same time would take as long and do the work twice."""
        self._learned: set[str] = set()
        """Path keys of finished runs."""
        self._attempts: Counter[str] = Counter()
        self._retried: set[str] = set()
        """Runs that failed before and are to be tried again."""
        self._failed: list[tuple[QueuedRun, str]] = []
        self._finished = 0
        for run in runs:
            status, reason = folder.status(run.address)
            if status == "finished":
                self._note_finished(run)
            elif status == "failed" and not retry_failed:
                self._failed.append((run, reason))
            else:
                self._waiting.append(run)
                if status == "failed":
                    self._retried.add(run.address)
        self._count = len(self._waiting) + len(self._failed) + self._finished

    @property
    def is_done(self) -> bool:
        """True if nothing waits and nothing runs."""
        held = sum(map(len, self._followers.values()))
        return not (self._waiting or self._running or self._elsewhere or held)

    def work(self, place: RunProcesses | Cluster) -> None:
        """Do everything that waits, and wait for what other processes do.

        Args:
            place: where runs are done; closed at the end.

        Raises:
            RunFailed: no other run would fare better: a disk that is full, a cluster
                that is gone, other code.
            Interrupted: Ctrl-C; runs have had time to save their states.
        """
        try:
            with self._ctrl_c.patient():
                self._shown.begin(self._finished + len(self._failed), self._count)
                while not self.is_done:
                    self._ctrl_c.check()
                    self._begin_runs(place)
                    self._wait_a_little()
                    for future in [future for future in self._running if future.done()]:
                        self._end(self._running.pop(future), future, place)
                    self._look_elsewhere()
        except KeyboardInterrupt:
            self._interrupt(place)
            raise Interrupted(
                f"interrupted with {self._finished} of {self._count} runs finished, "
                f"which are kept in {self._folder.path}; the same command goes on"
            ) from None
        except RunFailed as error:
            raise RunFailed(
                f"{error}; finished runs are kept in {self._folder.path}, the same "
                "command goes on"
            ) from error
        finally:
            self._shown.close()
            place.close()

    def refuse_failed(self) -> None:
        """Count the failed runs and name the first of them in an error.

        Raises:
            RunFailed: there is one.
        """
        if self._failed:
            run, reason = self._failed[0]
            raise RunFailed(
                f"{len(self._failed)} of {self._count} runs failed, such as "
                f"{run.named}: {reason}; the others are kept in {self._folder.path}, "
                "--retry-failed tries these again"
            )

    def _begin_runs(self, place: RunProcesses | Cluster) -> None:
        """Begin runs until all slots are taken or none waits."""
        slots = place.slots()
        while len(self._running) < slots and (run := self._take()) is not None:
            self._attempts[run.address] += 1
            if run.path_key is not None and run.path_key not in self._learned:
                self._followers[run.path_key] = []
            self._running[place.submit(play, run.make_job())] = run
            self._ctrl_c.check()

    def _take(self) -> QueuedRun | None:
        """Return the next run that nobody is at, None where there is none."""
        while self._waiting:
            run = self._waiting.popleft()
            if run.path_key in self._followers:
                self._followers[run.path_key].append(run)
                continue
            status, reason = self._folder.status(run.address)
            if status == "running":
                self._elsewhere.append(run)
            elif status == "finished":
                self._note_finished(run)
                self._shown.ended(run.named, "finished elsewhere")
            elif status == "failed" and run.address not in self._retried:
                self._note_failed(run, reason)
            else:
                self._retried.discard(run.address)
                return run
        return None

    def _wait_a_little(self) -> None:
        """Wait until a run ends, half a second at the most."""
        if self._running:
            wait(self._running, _LOOK_EVERY_WALL_S, FIRST_COMPLETED)
        elif self._elsewhere:
            time.sleep(_LOOK_EVERY_WALL_S)

    def _look_elsewhere(self) -> None:
        """Take up again what other processes have ended or left."""
        now = time.monotonic()
        if not self._elsewhere or now < self._looks_at_wall_s:
            return
        self._looks_at_wall_s = now + _LOOK_EVERY_WALL_S
        self._waiting.extend(self._elsewhere)  # which are looked at as they are taken
        self._elsewhere.clear()

    def _end(
        self, run: QueuedRun, future: Future[RunEnd], place: RunProcesses | Cluster
    ) -> None:
        """Take note of how a run ended; those that learn the same wait no longer.

        Raises:
            RunFailed: it was refused or stopped, as all others would be.
        """
        result = self._read(run, future, place)
        if result.status == "finished":
            self._note_finished(run)
            self._shown.ended(run.named, "finished", result.wall_s)
        elif result.status == "failed":
            self._note_failed(run, result.reason, result.wall_s)
        elif result.status == "held":
            self._elsewhere.append(run)
        elif result.status == "dead":
            self._waiting.appendleft(run)
        if run.path_key is not None:
            self._waiting.extendleft(reversed(self._followers.pop(run.path_key, [])))
        if result.status in ("refused", "stopped"):
            raise RunFailed(result.reason)

    def _read(
        self, run: QueuedRun, future: Future[RunEnd], place: RunProcesses | Cluster
    ) -> RunEnd:
        """Return how a run ended, also where its worker did not live to say so."""
        try:
            return place.collect(future)
        except BrokenExecutor:
            if self._attempts[run.address] < _ATTEMPTS:
                return RunEnd("dead")
            reason = (
                f"its worker process died {_ATTEMPTS} times: perhaps it ran out "
                f"of memory"
            )
        except RunFailed:
            raise
        except Exception as error:  # of the cluster, which tried it again and again
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
        note_failure(self._folder.find(run.address), reason, "")
        return RunEnd("failed", reason)

    def _note_finished(self, run: QueuedRun) -> None:
        self._finished += 1
        if run.path_key is not None:
            self._learned.add(run.path_key)

    def _note_failed(
        self, run: QueuedRun, reason: str, wall_s: float | None = None
    ) -> None:
        self._failed.append((run, reason))
        self._shown.ended(run.named, f"failed: {reason}", wall_s)

    def _interrupt(self, place: RunProcesses | Cluster) -> None:
        """Let runs save their states, half a minute at the most.

        A second Ctrl-C does not wait for them.
        """
        with suppress(KeyboardInterrupt):
            self._shown.say(
                "stopping after the rounds under way; Ctrl-C again stops at once"
            )
            place.stop()
            done, _ = wait(self._running, _GRACE_WALL_S)
            for future in done:
                gone = future.cancelled() or future.exception() is not None
                if not gone and future.result().status == "finished":
                    self._note_finished(self._running[future])
