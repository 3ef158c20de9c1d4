"""Running a study: which run is next, what came of it, when to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from simfed.errors import InputError, InputErrors, Interrupted, RunFailed
from simfed.interrupt import CtrlC
from simfed.scenario import dump_scenario
from simfed.study.plan import Plan, PlannedRun, each_once, plan_study
from simfed.study.store import StudyFolder
from simfed.study.work import Job, Result
from simfed.units import counted

if TYPE_CHECKING:
    from simfed.replay import TrajectoryStore
    from simfed.study.executors import Executor
    from simfed.study.results import StudyResult

__all__ = ["Display", "RunState", "default_out", "run_study"]

RUNNER = "simfed.study.work:run_scenario"
"""What does one run; tests put in theirs."""

_LOOK_EVERY_WALL_S = 0.5
_MANY = 500
"""Runs: to check the scenarios of so many takes seconds."""
_GRACE_WALL_S = 30.0
"""How long runs have to save their state after Ctrl-C."""


@dataclass
class RunState:
    """One address of the store, while a study runs. Runs of equal scenarios share one."""

    run: PlannedRun
    address: str
    path_key: str | None = None
    """Equal for runs that learn the same; None where each has its own way (or nothing is kept)."""
    family: str | None = None
    """Equal for runs that may learn the same for a while: their learning key."""
    status: str = "waiting"
    """`waiting`, `running`, `finished`, `failed`."""
    reason: str = ""
    wall_s: float | None = None
    """How long it took, of those finished now."""
    replayed: bool = False
    """Whether its learning was known when it began."""
    progress: dict[str, Any] = field(default_factory=dict)


class Display(Protocol):
    """Shows a study while it runs."""

    def begin(self, states: list[RunState], slots: int) -> None: ...
    def update(self, states: list[RunState], slots: int) -> None: ...
    def ended(self, states: list[RunState], state: RunState) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


def default_out(study: str | Path) -> Path:
    """`studies/NAME` for a study file `NAME.yaml`."""
    return Path("studies") / Path(study).stem


def run_study(
    path: str | Path,
    out: str | Path | None = None,
    *,
    executor: str | Executor = "local",
    jobs: int | None = None,
    retry_failed: bool = False,
    device: str = "cpu",
    time_only: bool = False,
    trajectories: TrajectoryStore | bool | None = True,
    progress: bool | Display = True,
    allow_outside: bool = False,
    allow_plugins: bool = False,
    overrides: Mapping[str, Any] | Sequence[tuple[str, Any]] = (),
) -> StudyResult:
    """Run what is not yet done of the study in the file `path`; its folder is `out`.

    Args:
        out: `studies/NAME` if omitted.
        executor: `local`, `dask=ADDRESS` of an existing cluster, or an executor of your own.
        jobs: runs at once on this machine; if omitted one per core, or one on a GPU.
        retry_failed: try again what failed before; otherwise it is left as it is.
        device, time_only: as in `simfed.run`, for every run.
        trajectories: where learning is kept for replay; True is the user's cache, False or None
            computes everything anew.
        progress: True shows it on standard error.
        allow_outside, allow_plugins: as in `simfed.load_scenario`, of the study and its base.
        overrides: key path → value, of the study's own keys or the same in every run.

    Raises:
        InputError, InputErrors: the study, a scenario, the folder or the executor; nothing was run.
        RunFailed: some runs failed (the others are done), or the work could not go on.
        Interrupted: Ctrl-C; the same call goes on.
    """
    from simfed.study.executors import make_executor
    from simfed.study.results import load_study
    from simfed.study.show import make_display

    store = _store(trajectories) if not time_only else None
    folder = StudyFolder(Path(out) if out is not None else default_out(path))
    with CtrlC().heard() as ctrl_c:
        plan = plan_study(
            path, allow_outside=allow_outside, allow_plugins=allow_plugins,
            overrides=[*overrides.items()] if isinstance(overrides, Mapping) else overrides,
        )  # fmt: skip
        shown = make_display(plan, progress)
        if len(plan.runs) >= _MANY:
            shown.say(f"{plan.study.name}: checking {counted(len(plan.runs), 'run')}")
        states, addresses = _states(plan, str(path), device, time_only, replays=store is not None)
        ctrl_c.check()
        folder.make(plan.study.name)
        with folder.locked():
            folder.sweep()
            folder.put_plan(plan, addresses, Path(path).read_text(encoding="utf-8"))
            if retry_failed:
                folder.forgive(states)
            _find_done(states, folder)
            job = _job_maker(plan, folder, device, time_only, store)
            if any(state.status == "waiting" for state in states.values()):
                if isinstance(executor, str):
                    executor = make_executor(executor, jobs=jobs, device=device)
                try:
                    _work(list(states.values()), folder, executor, job, shown, ctrl_c)
                finally:
                    with suppress(OSError):  # a disk that refuses is already what went wrong
                        folder.sweep()
                    if store is not None:
                        store.trim()
    failed = [state for state in states.values() if state.status == "failed"]
    if failed:
        raise RunFailed(
            f"{len(failed)} of {len(states)} runs failed, such as {failed[0].run.named}: "
            f"{failed[0].reason}; the others are kept in {folder.path}, --retry-failed tries "
            "these again"
        )
    return load_study(folder.path)


def _store(trajectories: TrajectoryStore | bool | None) -> TrajectoryStore | None:
    from simfed.replay import TrajectoryStore

    if trajectories is True:
        return TrajectoryStore()
    return trajectories or None


def _states(
    plan: Plan, study_file: str, device: str, time_only: bool, *, replays: bool
) -> tuple[dict[str, RunState], list[str]]:
    """Address → state, and every planned run's address. Raises: `InputErrors` of all scenarios."""
    from simfed.assembly import check
    from simfed.replay.key import learning_key
    from simfed.study.address import address_under, facts_of, path_key

    source = plan.study.base
    errors: list[tuple[Mapping[str, str], InputError]] = []
    points = plan.runs[: len(plan.runs) // len(plan.seeds)]  # seeds differ in nothing checked
    for run in points:
        try:
            check(run.scenario, source=source, time_only=time_only)
        except InputErrors as several:
            errors += [(run.point, error) for error in several.errors]
    if errors:
        raise InputErrors(each_once(errors, len(points), study_file))
    addresses = [""] * len(plan.runs)
    for first, point in enumerate(points):
        facts = facts_of(point.scenario, source=source, device=device, time_only=time_only)
        for number in range(first, len(plan.runs), len(points)):
            addresses[number] = address_under(facts, plan.runs[number].seed)
    states: dict[str, RunState] = {}
    for run, found in zip(plan.runs, addresses, strict=True):
        if found not in states:
            states[found] = RunState(run, found)
            if replays:
                states[found].path_key = path_key(run.scenario, device=device)
                states[found].family = learning_key(run.scenario, device=device)
    return states, addresses


def _find_done(states: dict[str, RunState], folder: StudyFolder) -> None:
    failures = folder.failures()
    for address, state in states.items():
        if folder.is_finished(address):
            state.status = "finished"
        elif address in failures:
            state.status, state.reason = "failed", failures[address]


def _job_maker(
    plan: Plan, folder: StudyFolder, device: str, time_only: bool, store: TrajectoryStore | None
) -> Callable[[RunState], Job]:
    from simfed.study.address import own_code

    code = own_code()

    def make(state: RunState) -> Job:
        return Job(
            address=state.address,
            study=str(folder.path.resolve()),
            scenario_yaml=dump_scenario(state.run.scenario),
            source=str(Path(plan.study.base).resolve()),
            rounds=state.run.scenario.rounds,
            device=device,
            time_only=time_only,
            cache=str(store.folder.resolve()) if store is not None else None,
            cache_limit_bytes=store.limit_bytes if store is not None else float("inf"),
            code=code,
            runner=RUNNER,
        )

    return make


def _work(
    states: list[RunState],
    folder: StudyFolder,
    executor: Executor,
    job: Callable[[RunState], Job],
    shown: Display,
    ctrl_c: CtrlC,
) -> None:
    """Do everything that waits. Raises: `RunFailed` when it makes no sense to go on."""
    from simfed.study.executors import ExecutorLost

    try:
        with ctrl_c.patient():
            shown.begin(states, executor.slots())
            _loop(states, folder, executor, job, shown, ctrl_c)
    except ExecutorLost as error:
        raise _refused(folder, str(error)) from error
    except KeyboardInterrupt:
        _stop(states, folder, executor, shown)
        done = sum(state.status == "finished" for state in states)
        raise Interrupted(
            f"interrupted with {done} of {len(states)} runs finished, which are kept in "
            f"{folder.path}; the same command goes on"
        ) from None
    finally:
        shown.close()
        executor.close()


def _loop(
    states: list[RunState],
    folder: StudyFolder,
    executor: Executor,
    job: Callable[[RunState], Job],
    shown: Display,
    ctrl_c: CtrlC,
) -> None:
    of_address = {state.address: state for state in states}
    known = {state.path_key for state in states if state.status == "finished"}
    left = states
    looked = 0.0
    while left := [state for state in left if state.status in ("waiting", "running")]:
        slots = executor.slots()
        ctrl_c.check()
        while (state := _next(left, slots)) is not None:
            state.status, state.replayed = "running", _is_known(state, known)
            executor.submit(job(state))
            ctrl_c.check()
        for result in executor.ended(_LOOK_EVERY_WALL_S):
            state = of_address[result.address]
            _take(state, result, folder)
            if state.status == "finished":
                known.add(state.path_key)
            shown.ended(states, state)
        now = time.monotonic()
        if now - looked >= _LOOK_EVERY_WALL_S:
            looked = now
            _look(states, folder)
            shown.update(states, slots)


def _next(states: list[RunState], slots: int) -> RunState | None:
    """The next run to begin, if there is a slot for it.

    Of runs that learn the same, one goes first and the others wait for what it learns: computing
    it twice at the same time would take as long and do the work twice.
    """
    running = [state for state in states if state.status == "running"]
    if len(running) >= slots:
        return None
    learning = {s.path_key for s in running if s.path_key is not None and not s.replayed}
    # the others may still have a beginning in common with one under way: rather something else
    families = {s.family for s in running if s.family is not None and not s.replayed}
    first = None
    for state in states:
        if state.status == "waiting" and state.path_key not in learning:
            if state.family not in families:
                return state
            first = first or state
    return first


def _is_known(state: RunState, finished: set[str | None]) -> bool:
    """Whether a run that learns the same has finished; `finished`: the keys of those that have."""
    return state.path_key is not None and state.path_key in finished


def _take(state: RunState, result: Result, folder: StudyFolder) -> None:
    state.wall_s, state.progress = result.wall_s, {}
    if result.status == "finished":
        state.status = "finished"
    elif result.status == "failed":
        state.status, state.reason = "failed", result.reason
        try:
            folder.fail(state.address, result.reason, result.detail)
        except OSError as error:
            raise _refused(folder, f"{folder.failed}: {error.strerror}") from error
    else:  # refused, or stopped by a signal that was not for the whole study
        state.status = "waiting"
        raise _refused(folder, result.reason)


def _refused(folder: StudyFolder, reason: str) -> RunFailed:
    return RunFailed(f"{reason}; finished runs are kept in {folder.path}, the same command goes on")


def _look(states: list[RunState], folder: StudyFolder) -> None:
    """Fetch how far the runs under way are."""
    told = folder.progress()
    for state in states:
        if state.status == "running" and state.address in told:
            state.progress = told[state.address]


def _stop(states: list[RunState], folder: StudyFolder, executor: Executor, shown: Display) -> None:
    """Let runs save their state; a second Ctrl-C does not wait for them."""
    try:
        shown.say("stopping after the rounds under way; Ctrl-C again stops at once")
        executor.interrupt()
        deadline = time.monotonic() + _GRACE_WALL_S
        while executor.under_way() and time.monotonic() < deadline:
            executor.ended(_LOOK_EVERY_WALL_S)
    except (KeyboardInterrupt, RunFailed):
        pass  # asked twice, or nobody is left to wait for
    for state in states:
        if state.status == "running":
            state.status = "finished" if folder.is_finished(state.address) else "waiting"
