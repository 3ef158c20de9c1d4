"""Running a study: which run is next, what came of it, when to stop."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simfed.experiment.interrupt import CtrlC
from simfed.ground.errors import InputError, InputErrors, Interrupted, RunFailed
from simfed.ground.inputs import read_text
from simfed.ground.measure import find_common_measure
from simfed.ground.registry import import_part
from simfed.ground.units import counted
from simfed.scenario.load import read_yaml
from simfed.study.plan import StudyPlan, merge_errors, plan_study
from simfed.study.standing import RunState, Standing
from simfed.study.store import StudyFolder
from simfed.study.work import Job, Result

if TYPE_CHECKING:
    from simfed.replay import TrajectoryStore
    from simfed.study.executors import Executor
    from simfed.study.results import StudyResult
    from simfed.study.show import Display

RUNNER: str | None = None
"""What does one run, where it is not what its kind says; tests put in theirs."""

_LOOK_EVERY_WALL_S = 0.5
_MANY = 500
"""Runs: to check the scenarios of so many takes seconds."""
_GRACE_WALL_S = 30.0
"""How long runs have to save their state after Ctrl-C."""


def choose_out(study: str | Path) -> Path:
    """Return `studies/NAME` by what the study's file says under `name`. Raises: `InputError`."""
    name = str(read_yaml(study).get("name") or Path(study).stem)
    return Path("studies") / (re.sub(r"[^\w.-]", "-", name).strip(".-")[:80] or "study")


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
    allow_plugins: bool = False,
    overrides: Mapping[str, object] | Sequence[tuple[str, object]] = (),
) -> StudyResult:
    """Run what is not yet done of the study in the file `path`; its folder is `out`.

    Args:
        out: `studies/NAME` if omitted.
        executor: `local`, `dask=ADDRESS` of an existing cluster, or an executor of your own.
        jobs: runs at once on this machine, at most `simfed.ground.cores.most_processes`; if
            omitted one per core, or one on a GPU.
        retry_failed: try again what failed before; otherwise it is left as it is.
        device, time_only: as in `simfed.run`, for every run.
        trajectories: where learning is kept for replay; True is the user's cache, False or None
            computes everything anew.
        progress: True shows it on standard error.
        allow_plugins: as in `simfed.load_scenario`, of the study and its base.
        overrides: key path → value, of the study's own keys or the same in every run.

    Raises:
        InputError, InputErrors: the study, a scenario, the folder or the executor; nothing was run.
        RunFailed: some runs failed (the others are done), or the work could not go on.
        Interrupted: Ctrl-C; the same call goes on.
    """
    from simfed.study.executors import make_executor
    from simfed.study.results import load_study
    from simfed.study.show import make_display

    store = _open_store(trajectories) if not time_only else None
    folder = StudyFolder(Path(out) if out is not None else choose_out(path))
    with CtrlC().heard() as ctrl_c:
        plan = plan_study(
            path,
            allow_plugins=allow_plugins,
            overrides=[*overrides.items()] if isinstance(overrides, Mapping) else overrides,
        )
        display = make_display(plan, progress)
        if plan.count >= _MANY:
            display.say(f"{plan.study.name}: checking {counted(plan.count, 'run')}")
        states, addresses = make_states(
            plan, str(path), device, time_only, replays=store is not None
        )
        ctrl_c.check()
        folder.make(plan.study.name)
        with folder.locked():
            folder.sweep()
            folder.put_plan(plan, addresses, read_text(path))
            if retry_failed:
                folder.forgive(states)
            _mark_done(states, folder)
            make_job = _build_job_maker(plan, folder, device, time_only, store)
            standing = Standing(states.values())
            if standing.waiting:
                if isinstance(executor, str):
                    _check_device(executor, "cpu" if time_only else device)
                    executor = make_executor(executor, jobs=jobs, device=device)
                work = _Work(standing, folder, executor, make_job, display, ctrl_c)
                _do_waiting(work, folder, store)
    _refuse_failed(states, folder)
    return load_study(folder.path)


def _check_device(executor: str, device: str) -> None:
    """Raises: `InputError` where runs on this machine would not find their device."""
    if executor == "local" and device != "cpu":
        import_part("simfed.learn.precision:device_of")(device)


def _do_waiting(work: _Work, folder: StudyFolder, store: TrajectoryStore | None) -> None:
    """Do what waits; leave nothing behind but what was done."""
    try:
        work.do_waiting()
    finally:
        with suppress(OSError):  # a disk that refuses is already what went wrong
            folder.sweep()
        if store is not None:
            store.trim()


def _refuse_failed(states: Mapping[str, RunState], folder: StudyFolder) -> None:
    failed = [state for state in states.values() if state.status == "failed"]
    if failed:
        raise RunFailed(
            f"{len(failed)} of {len(states)} runs failed, such as {failed[0].run.named}: "
            f"{failed[0].reason}; the others are kept in {folder.path}, --retry-failed tries "
            "these again"
        )


def _open_store(trajectories: TrajectoryStore | bool | None) -> TrajectoryStore | None:
    from simfed.replay import TrajectoryStore

    if trajectories is True:
        return TrajectoryStore()
    return trajectories or None


def make_states(
    plan: StudyPlan, study_file: str, device: str, time_only: bool, *, replays: bool
) -> tuple[dict[str, RunState], list[str]]:
    """Address → state, and every planned run's address. Raises: `InputErrors` of all scenarios."""
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
    measures = (kind.measure(setting.scenario) for setting in plan.settings)
    find_common_measure(measures, where=study_file)
    addresses = [""] * plan.count
    for first, setting in enumerate(plan.settings):
        facts = kind.facts(setting.scenario, source=source, device=device, time_only=time_only)
        addresses[first :: len(plan.settings)] = compute_addresses(facts, plan.seeds)
    states: dict[str, RunState] = {}
    for run, address in zip(plan.runs, addresses, strict=True):
        if address not in states:
            state = states[address] = RunState(run, address)
            if replays:
                state.path_key, state.family = kind.learning(run.scenario, device=device)
    return states, addresses


def _mark_done(states: dict[str, RunState], folder: StudyFolder) -> None:
    for address in folder.finished():
        if address in states:
            states[address].status = "finished"
    for address, reason in folder.failures().items():
        if address in states and states[address].status == "waiting":
            states[address].status, states[address].reason = "failed", reason


def _build_job_maker(
    plan: StudyPlan,
    folder: StudyFolder,
    device: str,
    time_only: bool,
    store: TrajectoryStore | None,
) -> Callable[[RunState], Job]:
    from simfed.study.address import own_code

    code = own_code()

    def make(state: RunState) -> Job:
        return Job(
            address=state.address,
            study=str(folder.path.resolve()),
            scenario_yaml=plan.kind.dump(state.run.scenario),
            source=str(Path(plan.study.base).resolve()),
            rounds=plan.kind.rounds(state.run.scenario),
            device=device,
            time_only=time_only,
            cache=str(store.folder.resolve()) if store is not None else None,
            cache_limit_bytes=store.limit_bytes if store is not None else float("inf"),
            code=code,
            runner=RUNNER or plan.kind.runner,
        )

    return make


@dataclass(frozen=True)
class _Work:
    standing: Standing
    folder: StudyFolder
    executor: Executor
    make_job: Callable[[RunState], Job]
    display: Display
    ctrl_c: CtrlC

    def do_waiting(self) -> None:
        """Do everything that waits. Raises: `RunFailed` when it makes no sense to go on."""
        from simfed.study.executors import ExecutorLost

        try:
            with self.ctrl_c.patient():
                self.display.begin(self.standing, self.executor.slots())
                self._loop()
        except ExecutorLost as error:
            raise self._make_failure(str(error)) from error
        except KeyboardInterrupt:
            self._interrupt_runs()
            finished = self.standing.ended["finished"]
            raise Interrupted(
                f"interrupted with {finished} of {self.standing.count} runs finished, "
                f"which are kept in {self.folder.path}; the same command goes on"
            ) from None
        finally:
            self.display.close()
            self.executor.close()

    def _loop(self) -> None:
        standing, looked = self.standing, 0.0
        while standing.waiting or standing.running:
            slots = self.executor.slots()
            self.ctrl_c.check()
            while (state := standing.next(slots)) is not None:
                standing.begin(state)
                self.executor.submit(self.make_job(state))
                self.ctrl_c.check()
            for result in self.executor.ended(_LOOK_EVERY_WALL_S):
                state = standing.running[result.address]
                self._end_run(state, result)
                self.display.ended(standing, state)
            now = time.monotonic()
            if now - looked >= _LOOK_EVERY_WALL_S:
                looked = now
                progress = self.folder.progress()
                for address, state in standing.running.items():
                    state.progress = progress.get(address, state.progress)
                self.display.update(standing, slots)

    def _end_run(self, state: RunState, result: Result) -> None:
        if result.status in ("finished", "failed"):
            self.standing.end(state, result.status, result.wall_s)
        if result.status == "failed":
            state.reason = result.reason
            try:
                self.folder.fail(state.address, result.reason, result.detail)
            except OSError as error:
                raise self._make_failure(
                    f"{self.folder.failed}: {error.strerror or error}"
                ) from error
        elif result.status != "finished":
            # refused, or stopped by a signal that was not for the whole study
            self.standing.end(state, "waiting", result.wall_s)
            raise self._make_failure(result.reason)

    def _make_failure(self, reason: str) -> RunFailed:
        return RunFailed(
            f"{reason}; finished runs are kept in {self.folder.path}, the same command goes on"
        )

    def _interrupt_runs(self) -> None:
        """Let runs save their state; a second Ctrl-C does not wait for them."""
        try:
            self.display.say("stopping after the rounds under way; Ctrl-C again stops at once")
            self.executor.interrupt()
            deadline = time.monotonic() + _GRACE_WALL_S
            while self.executor.under_way() and time.monotonic() < deadline:
                self.executor.ended(_LOOK_EVERY_WALL_S)
        except (KeyboardInterrupt, RunFailed):
            pass  # asked twice, or nobody is left to wait for
        for state in list(self.standing.running.values()):
            done = self.folder.is_finished(state.address)
            self.standing.end(state, "finished" if done else "waiting", None)
