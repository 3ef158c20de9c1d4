"""A study's folder: its plan, its finished runs, its failures, and what is under way.

    study.yaml            the study file as it was given
    study.json            the plan: of every setting its point, and the addresses of its runs
    runs/<address>/       finished runs, each put in place whole and at once
    partial/<address>/    runs under way, and beside each its progress
    failed/<address>.json what went wrong

Nothing in `runs` is ever changed. Whatever is killed when, the next `simfed study run` finds the
finished runs, and goes on with the others from their checkpoints or from the beginning.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypedDict, cast

from simfed.ground.errors import InputError
from simfed.ground.inputs import read_json
from simfed.ground.writing import replacing, writing
from simfed.record import files
from simfed.record.lock import is_held, lock_folder
from simfed.record.read import read_manifest
from simfed.study.plan import StudyPlan

FORMAT = 2
"""Of `study.json`; the first listed every run for itself."""


class StoredAxis(TypedDict):
    """An axis of a stored plan."""

    name: str
    keys: list[str]
    labels: list[str]


class StoredCompare(TypedDict):
    """What a study asks to compare."""

    arms: str | None
    """The name of the axis."""
    baseline: str | None
    thresholds: list[float]
    confidence: float
    relevant_ratio: float
    """Missing in the oldest plans."""


class PlanEntry(TypedDict):
    """One run of a stored plan."""

    address: str
    seed: int
    point: dict[str, str]
    """Axis name → label."""
    values: dict[str, object]
    """Key path → value as written in the study file."""
    rounds: int | None


class StoredPlan(TypedDict):
    """`study.json`, with a row per run."""

    format: int
    name: str
    seeds: list[int]
    axes: list[StoredAxis]
    compare: StoredCompare
    runs: Sequence[PlanEntry]


class StoredProgress(TypedDict, total=False):
    """What a run under way last told of itself."""

    round: int
    rounds: int | None
    simulated_s: float
    measure: float | None
    begun_at_wall: float
    told_at_wall: float


_DISK = (errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EIO)


def find_disk_refusal(error: BaseException | None) -> OSError | None:
    """The disk's refusal (full, read-only, …) behind an error, if that is what it is."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK:
            return error
        error = error.__cause__ or error.__context__
    return None


def has_learned(folder: Path) -> bool:
    """Return whether a run's folder holds something that no other attempt gets for nothing:
    a checkpoint, whole or not, or the results of a finished run."""
    return any((folder / "checkpoint").glob("*.json")) or _is_whole(folder)


def _is_whole(folder: Path) -> bool:
    try:
        return bool(read_manifest(folder)["status"] == "finished")
    except InputError:
        return False


def _count_rounds(folder: Path) -> float:
    """Return after how many rounds a run's newest checkpoint is; -1 without one."""
    if _is_whole(folder):
        return float("inf")
    try:
        state: Any = read_json(folder / "checkpoint" / "state.json")
        return float(state["round"])
    except (InputError, ValueError, LookupError, TypeError):
        return -1.0


class StudyFolder:
    """The folder of one study on disk: its plan, runs, and runs that failed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.runs = self.path / "runs"
        self.partial = self.path / "partial"
        self.failed = self.path / "failed"

    # --- the plan ------------------------------------------------------------------------------

    def make(self, name: str) -> None:
        """Make the folder for the study of this name, or go on with its.

        Raises: `InputError` for a folder of something else, or that cannot be written.
        """
        if (self.path / "study.json").exists():
            here = self.plan()["name"]
            if here != name:
                raise InputError(
                    f"the folder of study {here!r}, or a new one", where=str(self.path), got=name
                )
        elif self.path.exists():
            if not self.path.is_dir():
                raise InputError("a folder", where=str(self.path), problem="this is a file")
            if any(self.path.iterdir()) and not self.runs.is_dir():
                allowed = "a new or empty folder, or a study's"
                problem = "a folder with other files in it"
                raise InputError(allowed, where=str(self.path), problem=problem)
        with writing(self.path):
            for folder in (self.runs, self.partial, self.failed):
                folder.mkdir(parents=True, exist_ok=True)

    def put_plan(self, plan: StudyPlan, addresses: list[str], study_yaml: str) -> None:
        """Write `study.yaml` and `study.json`; a plan that has grown replaces the last one."""
        with writing(self.path):
            files.put_text(self.path / "study.yaml", study_yaml)
            files.put_json(self.path / "study.json", _make_plain(plan, addresses))

    def plan(self) -> StoredPlan:
        """`study.json`. Raises: `InputError` for a folder that is no study's."""
        path = self.path / "study.json"
        if not self.path.is_dir() or not path.exists():
            got = "a file" if self.path.exists() else "no such folder"
            if self.path.is_dir():
                got = "a folder without study.json"
            run = (self.path / "manifest.json").is_file()
            hint = "this is a run: simfed report" if run else None
            raise InputError("a study's folder", where=str(self.path), problem=got, hint=hint)
        plan: Any = read_json(path)
        if not isinstance(plan, dict) or plan.get("format") not in (1, FORMAT):
            problem = "of another version, or no study's plan"
            raise InputError(f"a study's plan of format {FORMAT}", where=str(path), problem=problem)
        try:
            if plan["format"] == FORMAT:
                plan["runs"] = _make_entries(plan["settings"], plan["seeds"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("a study's whole plan", where=str(path), got=repr(error)) from None
        return cast(StoredPlan, plan)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A block in which no other process runs this study. Raises: `InputError` where one does
        already."""
        with ExitStack() as stack:
            with writing(self.path):
                stack.enter_context(
                    lock_folder(self.path, "study", "simfed study status shows how far it is")
                )
            yield

    def is_running(self) -> bool:
        """Whether a process is running this study now, as far as locks tell."""
        return is_held(self.path)

    # --- runs ----------------------------------------------------------------------------------

    def is_finished(self, address: str) -> bool:
        """Whether a whole run stands under this address."""
        return (self.runs / address / "manifest.json").is_file()

    def finished(self) -> set[str]:
        """The addresses of all finished runs."""
        return {path.name for path in self.runs.iterdir() if self.is_finished(path.name)}

    def commit(self, address: str, partial: Path) -> None:
        """Move a whole run from `partial` to the finished ones, in one step, its files synced
        before; where another process was first, `partial` is deleted."""
        shutil.rmtree(partial / "checkpoint", ignore_errors=True)
        for folder, _, names in os.walk(partial):
            for name in names:
                _sync_path(Path(folder) / name)
            _sync_path(Path(folder))
        try:
            os.rename(partial, self.runs / address)
        except OSError:
            if not self.is_finished(address):
                raise
            shutil.rmtree(partial, ignore_errors=True)  # somebody else was first
        _sync_path(self.runs)
        self.forget_progress(address)

    def fail(self, address: str, reason: str, detail: str = "") -> None:
        """Keep why a run failed, and what it had learned for another attempt."""
        files.put_json(self.failed / f"{address}.json", {"reason": reason, "detail": detail})
        if not has_learned(self.partial / address):
            shutil.rmtree(self.partial / address, ignore_errors=True)
        self.forget_progress(address)

    def failures(self) -> dict[str, str]:
        """Address → why it failed."""
        reasons = {}
        for path in sorted(self.failed.glob("*.json")):
            try:
                record: Any = read_json(path)
                reasons[path.stem] = str(record["reason"])
            except (InputError, LookupError, TypeError):
                reasons[path.stem] = "unknown: its record is damaged"
        return reasons

    def forgive(self, addresses: Iterable[str]) -> None:
        """Forget failures, so that the runs are tried again."""
        for address in addresses:
            (self.failed / f"{address}.json").unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete what killed processes left: progress of nobody, files half-written.

        Of what several processes learned of one run, the furthest stays for the next one.
        """
        for folder in (self.path, self.failed, self.partial):
            files.delete_partials(folder)
        for path in self.partial.glob("*.json"):
            path.unlink(missing_ok=True)
        contested = [path for path in self.partial.glob("*-*") if not is_held(path)]
        for path in sorted(contested, key=_count_rounds, reverse=True):
            place = path.with_name(path.name.partition("-")[0])
            further = not has_learned(place) or _count_rounds(path) > _count_rounds(place)
            if has_learned(path) and further and not self.is_finished(place.name):
                shutil.rmtree(place, ignore_errors=True)
                os.replace(path, place)
            else:
                shutil.rmtree(path, ignore_errors=True)
        for path in self.runs.glob(".*"):
            shutil.rmtree(path, ignore_errors=True)

    # --- progress ------------------------------------------------------------------------------

    def tell_progress(self, address: str, facts: StoredProgress) -> None:
        """Write down how far a run is; a disk that refuses is passed over."""
        path = self.partial / f"{address}.json"
        with suppress(OSError), replacing(path) as whole:
            whole.write_text(json.dumps(facts), encoding="utf-8")

    def progress(self) -> dict[str, StoredProgress]:
        """Address → the last progress of a run under way."""
        progress: dict[str, StoredProgress] = {}
        for path in self.partial.glob("*.json"):
            with suppress(InputError):
                progress[path.stem] = cast(StoredProgress, read_json(path))
        return progress

    def forget_progress(self, address: str) -> None:
        """Delete what a run under way told of itself."""
        with suppress(OSError):
            (self.partial / f"{address}.json").unlink(missing_ok=True)


def _make_entries(settings: Sequence[Any], seeds: Sequence[int]) -> list[PlanEntry]:
    """The runs of a stored plan's settings.

    Raises: `KeyError`, `TypeError`, `ValueError` for what is no whole plan.
    """
    for setting in settings:
        if len(setting["addresses"]) != len(seeds):
            raise ValueError("a setting without an address for every seed")
    return [
        PlanEntry(
            address=setting["addresses"][number],
            seed=seed,
            point=setting["point"],
            values=setting["values"],
            rounds=setting["rounds"],
        )
        for number, seed in enumerate(seeds)
        for setting in settings
    ]


def _make_plain(plan: StudyPlan, addresses: list[str]) -> dict[str, Any]:
    arms = plan.arms_axis
    return {
        "format": FORMAT,
        "name": plan.study.name,
        "seeds": list(plan.seeds),
        "axes": [
            {"name": axis.name, "keys": list(axis.keys), "labels": [p.label for p in axis.points]}
            for axis in plan.axes
        ],
        "compare": {
            **plan.study.compare.model_dump(mode="json"),
            "arms": arms.name if arms is not None else None,
        },
        "settings": [
            {
                "point": dict(setting.point),
                "values": dict(setting.values),
                "rounds": plan.kind.rounds(setting.scenario),
                "addresses": addresses[first :: len(plan.settings)],
            }
            for first, setting in enumerate(plan.settings)
        ],
    }


def _sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
