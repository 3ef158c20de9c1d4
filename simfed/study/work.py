"""One run of a study, done in whatever process an executor offers."""

from __future__ import annotations

import os
import shutil
import time
import traceback
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from simfed.ground.errors import InputError, InputErrors, Interrupted, SimfedError
from simfed.ground.registry import import_part
from simfed.record.lock import Held
from simfed.study.store import StudyFolder, find_disk_refusal, has_learned

_WRITE_EVERY_WALL_S = 0.5


@dataclass(frozen=True, slots=True)
class Job:
    """All that a process far away needs to do one run; plain values."""

    address: str
    study: str
    """The study's folder, absolute."""
    scenario_yaml: str
    source: str
    """The base scenario's file, absolute: profiles are looked for beside it."""
    rounds: int | None
    """How many there will be, where that is known."""
    device: str = "cpu"
    time_only: bool = False
    cache: str | None = None
    """The folder of kept trajectories; None: everything is computed, nothing is kept. A run
    that goes on does so with or without one, as it began."""
    cache_limit_bytes: float = float("inf")
    contested: bool = False
    """Another process may be doing the same: a cluster begins a run again when it believes its
    worker dead. Each then works in a folder of its own, and the first to finish counts."""
    code: str = ""
    """Digest of the code that planned this; other code would give other results."""
    runner: str = "simfed.study.work:run_scenario"
    """`module:function` that does it."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a job: its status and, where it failed, why."""

    address: str
    status: str
    """`finished`, `failed` (this run alone), `refused` (no other would fare better), `stopped`."""
    reason: str = ""
    detail: str = ""
    """Traceback of a failure."""
    wall_s: float = 0.0


def do(job: Job) -> Result:
    """Do the run, put it in its place, and say how it went; raises nothing but exits."""
    begun = time.perf_counter()
    status, reason, detail = "finished", "", ""
    try:
        _run_job(job)
    except (KeyboardInterrupt, Interrupted) as error:
        status, reason = "stopped", str(error) or "interrupted"
    except WrongPlace as error:
        status, reason = "refused", str(error)
    except Exception as error:
        refusal = find_disk_refusal(error)
        if refusal is not None:
            status = "refused"
            reason = f"{refusal.filename or job.study}: {os.strerror(refusal.errno or 0)}"
        else:
            status, reason = "failed", _describe_error(error)
            detail = "" if isinstance(error, SimfedError) else traceback.format_exc()
    return Result(job.address, status, reason, detail, time.perf_counter() - begun)


class WrongPlace(InputError):
    """This process cannot do any run of the study."""


def _run_job(job: Job) -> None:
    from simfed.study.address import own_code

    folder = StudyFolder(job.study)
    if not folder.partial.is_dir():
        raise WrongPlace("a folder that every worker can see", where=job.study, got="none here")
    if job.code and own_code() != job.code:
        raise WrongPlace("the same version of simfed on every worker", where="executor")
    if folder.is_finished(job.address):
        return
    runner: Callable[..., None] = import_part(job.runner)
    name = f"{job.address}-{uuid.uuid4().hex[:8]}" if job.contested else job.address
    out = folder.partial / name
    if job.contested:
        with suppress(OSError):  # one that stopped on its way is for the first who asks
            os.rename(folder.partial / job.address, out)
    if not has_learned(out):
        shutil.rmtree(out, ignore_errors=True)  # of a run that was killed early
    runner(job, out, _ProgressWriter(folder, job))
    folder.commit(job.address, out)


def run_scenario(job: Job, out: Path, tell: Callable[[int, float, float | None], None]) -> None:
    """Play the scenario into `out`, from its checkpoint if there is one."""
    from simfed.experiment import running as experiment
    from simfed.replay import TrajectoryStore
    from simfed.scenario.load import validate_scenario

    scenario = validate_scenario(
        yaml.safe_load(job.scenario_yaml),
        source=job.source,
        folder=Path(job.source).parent,
        allow_plugins=True,  # whoever began the study has consented
    )
    store = None
    if job.cache is not None and not job.time_only:
        store = TrajectoryStore(job.cache, job.cache_limit_bytes)
    options: dict[str, Any] = {
        "source": job.source,
        "workers": 1,
        "device": job.device,
        "time_only": job.time_only,
        "trajectories": store,
        "progress": tell,
    }
    try:
        experiment.run(scenario, out, resume=out.exists(), **options)
    except InputError as error:
        if isinstance(error, Held) or not has_learned(out):
            raise
        raise error.changed(hint=f"once {out} is deleted, the run begins again") from error


class _ProgressWriter:
    """Writes down for the study how far a run is, at most every half second."""

    def __init__(self, folder: StudyFolder, job: Job) -> None:
        self._folder = folder
        self._job = job
        self._written_at = 0.0
        self._begun_at_wall = time.time()
        self._measure: float | None = None
        self(0, 0.0, None)

    def __call__(self, round: int, simulated_s: float, measure: float | None) -> None:
        if measure is not None:
            self._measure = measure
        now = time.monotonic()
        if self._written_at and now - self._written_at < _WRITE_EVERY_WALL_S:
            return
        self._written_at = now
        self._folder.tell_progress(
            self._job.address,
            {
                "round": round,
                "rounds": self._job.rounds,
                "simulated_s": simulated_s,
                "measure": self._measure,
                "begun_at_wall": self._begun_at_wall,
                "told_at_wall": time.time(),
            },
        )


def _describe_error(error: Exception) -> str:
    if isinstance(error, InputErrors):
        return "; ".join(map(str, error.errors))
    if isinstance(error, SimfedError):
        return str(error)
    if isinstance(error, MemoryError):
        return "not enough memory"
    return f"{type(error).__name__}: {error}".splitlines()[0]
