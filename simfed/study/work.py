"""One run of a study, done in whatever process comes to it."""

from __future__ import annotations

import os
import shutil
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from simfed.ground.errors import InputError, InputErrors, Interrupted, SimfedError
from simfed.ground.writing import find_disk_refusal
from simfed.record.directory import note_failure
from simfed.record.lock import Held
from simfed.study.kinds import RunJob, find_kind
from simfed.study.store import StudyFolder


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a job: its status and, where it did not finish, why."""

    status: str
    """`finished`, `failed` (this run alone), `held` (another process is at it),
    `stopped`, `refused` (no other run would fare better)."""
    reason: str = ""
    wall_s: float = 0.0


class WrongPlace(InputError):
    """Raised where this process cannot do any run of the study."""


def play(job: RunJob) -> RunEnd:
    """Do a run, go on with it, or find it finished, and say how it went.

    Why it failed stands in its manifest then. A finished run loses its checkpoint.
    Raises nothing but exits.
    """
    begun = time.perf_counter()
    out = StudyFolder(job.study).find(job.address)
    status, reason = "finished", ""
    try:
        _play_at(out, job)
    except (KeyboardInterrupt, Interrupted) as error:
        status, reason = "stopped", str(error) or "interrupted"
    except Held as error:
        status, reason = "held", str(error)
    except WrongPlace as error:
        status, reason = "refused", str(error)
    except Exception as error:
        status, reason = _settle_failure(error, out)
    return RunEnd(status, reason, time.perf_counter() - begun)


def _play_at(out: Path, job: RunJob) -> None:
    """Do the run of a job in the folder `out`.

    Raises:
        WrongPlace: this process does not see the study, or has other code.
        Exception: the run failed.
    """
    from simfed.study.address import own_code

    if not out.parent.is_dir():
        raise WrongPlace(
            "a folder that every worker can see", where=job.study, got="none here"
        )
    if own_code() != job.code:
        raise WrongPlace("the same version of simfed on every worker", where="--dask")
    find_kind(job.plain).play(job, out)
    shutil.rmtree(out / "checkpoint", ignore_errors=True)


def _settle_failure(error: Exception, out: Path) -> tuple[str, str]:
    """Note in the run's folder why it failed; return its status and the reason.

    A disk that refuses would refuse every other run too: then it is `refused`.
    """
    refusal = find_disk_refusal(error)
    if refusal is None:
        reason = _describe_error(error)
        if isinstance(error, InputError) and (out / "checkpoint").exists():
            reason += f" (once {out} is deleted, the run begins again)"
        detail = "" if isinstance(error, SimfedError) else traceback.format_exc()
        try:
            note_failure(out, reason, detail)
            return "failed", reason
        except InputError as refused:
            refusal = find_disk_refusal(refused)
    assert refusal is not None
    return "refused", f"{refusal.filename or out}: {os.strerror(refusal.errno or 0)}"


def _describe_error(error: Exception) -> str:
    """Return a sentence on why a run failed."""
    if isinstance(error, InputErrors):
        return "; ".join(map(str, error.errors))
    if isinstance(error, SimfedError):
        return str(error)
    if isinstance(error, MemoryError):
        return "not enough memory"
    return f"{type(error).__name__}: {error}".splitlines()[0]
