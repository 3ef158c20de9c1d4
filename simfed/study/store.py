"""A study's folder: its plan, and a run directory for each of its runs.

    study.yaml       the study file as it was given
    study.json       the plan: each run's place on the axes, its seed and its address
    runs/<address>/  the runs, which say themselves how far they are

Any number of processes may work here at once: a run belongs to whoever holds its lock.
Whatever is killed when, the next one finds the finished runs, and goes on with the
others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

from simfed.ground.errors import InputError
from simfed.ground.inputs import read_json
from simfed.ground.writing import writing
from simfed.record import files
from simfed.record.directory import RunStatus, delete_run, find_status
from simfed.study.plan import StudyPlan

FORMAT = 3
"""The format of `study.json`."""


class StoredAxis(TypedDict):
    """An axis of a stored plan."""

    name: str
    keys: list[str]
    labels: list[str]


class StoredCompare(TypedDict):
    """The comparison that a study asks for."""

    arms: str | None
    """The name of the axis."""
    baseline: str | None
    thresholds: list[float]
    confidence: float
    relevant_ratio: float


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
    """The content of `study.json`, the plan as plain values."""

    format: int
    name: str
    seeds: list[int]
    axes: list[StoredAxis]
    compare: StoredCompare
    runs: Sequence[PlanEntry]


class StudyFolder:
    """The folder of one study on disk; it need not be there yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.runs = self.path / "runs"

    def make(self, plan: StudyPlan, addresses: Sequence[str], study_yaml: str) -> None:
        """Make the folder for a study, or go on with its.

        A new plan replaces the last one; runs of the last one stay.

        Args:
            plan: of the study.
            addresses: of its runs, in their order.
            study_yaml: the text of the study file.

        Raises:
            InputError: the folder is of something else, or cannot be written.
        """
        if (self.path / "study.json").exists():
            here, name = self.plan()["name"], plan.study.name
            if here != name:
                allowed = f"the folder of study {here!r}, or a new one"
                raise InputError(allowed, where=str(self.path), got=name)
        elif self.path.exists():
            if not self.path.is_dir():
                raise InputError(
                    "a folder", where=str(self.path), problem="this is a file"
                )
            ours = ("runs", "study.yaml")  # of a beginning that was killed
            if not all(
                p.name in ours or files.is_partial(p) for p in self.path.iterdir()
            ):
                allowed = "a new or empty folder, or a study's"
                problem = "a folder with other files in it"
                raise InputError(allowed, where=str(self.path), problem=problem)
        with writing(self.path):
            self.runs.mkdir(parents=True, exist_ok=True)
            files.put_text(self.path / "study.yaml", study_yaml)
            files.put_json(self.path / "study.json", _make_plain(plan, addresses))

    def plan(self) -> StoredPlan:
        """Return the content of `study.json`.

        Raises:
            InputError: the folder is no study's.
        """
        path = self.path / "study.json"
        if not self.path.is_dir() or not path.exists():
            got = "a file" if self.path.exists() else "no such folder"
            if self.path.is_dir():
                got = "a folder without study.json"
            run = (self.path / "manifest.json").is_file()
            hint = "this is a run: simfed report" if run else None
            raise InputError(
                "a study's folder", where=str(self.path), problem=got, hint=hint
            )
        plan: Any = read_json(path)
        if not isinstance(plan, dict) or plan.get("format") != FORMAT:
            problem = "of another version, or no study's plan"
            allowed = f"a study's plan of format {FORMAT}"
            raise InputError(allowed, where=str(path), problem=problem)
        missing = StoredPlan.__annotations__.keys() - plan.keys()
        if missing:
            problem = f"{min(missing)} is missing"
            raise InputError("a study's whole plan", where=str(path), problem=problem)
        return cast(StoredPlan, plan)

    def find(self, address: str) -> Path:
        """Return where the run of this address is, or will be."""
        return self.runs / address

    def status(self, address: str) -> RunStatus:
        """Return how far the run of this address is; see `find_status`."""
        return find_status(self.find(address))

    def prune(self) -> Iterator[tuple[str, bool]]:
        """Delete the runs that the plan does not name.

        Yields:
            The address of each, and whether it is gone: one that a process is at stays.
        """
        named = {entry["address"] for entry in self.plan()["runs"]}
        for path in sorted(self.runs.iterdir()):
            if path.name not in named:
                yield path.name, delete_run(path)


def _make_plain(plan: StudyPlan, addresses: Sequence[str]) -> dict[str, Any]:
    """Return a plan as `study.json` has it."""
    arms = plan.arms_axis
    return {
        "format": FORMAT,
        "name": plan.study.name,
        "seeds": list(plan.seeds),
        "axes": [
            {
                "name": axis.name,
                "keys": list(axis.keys),
                "labels": [p.label for p in axis.points],
            }
            for axis in plan.axes
        ],
        "compare": {
            **plan.study.compare.model_dump(mode="json"),
            "arms": arms.name if arms is not None else None,
        },
        "runs": [
            {
                "address": address,
                "seed": run.seed,
                "point": run.setting.point,
                "values": run.setting.values,
                "rounds": plan.kind.count_rounds(run.setting.scenario),
            }
            for run, address in zip(plan.runs, addresses, strict=True)
        ],
    }
