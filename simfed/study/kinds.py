"""The two kinds of runs that a study may have: scenarios, or an app on a fleet.

`ScenarioRuns` and `AppRuns` have the same methods; a plan holds one of the two, and
whoever drives a study asks it and never the run itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from simfed.ground.errors import InputError
from simfed.ground.measure import ACCURACY, Measure, choose_measure
from simfed.ground.plain import Plain
from simfed.ground.registry import import_part
from simfed.scenario import Scenario, dump_scenario
from simfed.scenario.fleet_file import FleetFile, validate_fleet
from simfed.scenario.load import is_fleet, validate_scenario
from simfed.schema.section import Section

if TYPE_CHECKING:
    from simfed.study.address import AddressedRun

Studied: TypeAlias = Any
"""The value that one run is made from, a `Scenario` or a `FleetFile`, as the plan's
kind made it."""


@dataclass(frozen=True, slots=True)
class RunJob:
    """The plain values that a process far away needs to do one run.

    `drive` makes it, `work.play` reads it; it is pickled in between.
    """

    address: str
    study: str
    """The study's folder, absolute."""
    plain: Mapping[str, Plain]
    """The scenario, or the fleet with its app."""
    source: str
    """The base scenario's file, absolute: profiles are looked for beside it."""
    device: str
    time_only: bool
    cache: str | None
    """The folder of kept trajectories; None: everything is computed, nothing is kept. A
    run that goes on does so with or without one, as it began."""
    cache_limit_bytes: float
    code: str
    """Digest of the code that planned this; other code would give other results."""


class ScenarioRuns:
    """Runs of scenarios, by the steps in which runs of apps differ."""

    keys: type[Section] = Scenario
    """The file's model, whose keys the axes of a study name."""

    def validate(
        self, data: Mapping[str, object], *, source: str, folder: Path
    ) -> Scenario:
        """Return the scenario of a mapping.

        Args:
            data: keys as in a file.
            source: the file, for errors.
            folder: where relative paths begin.

        Raises:
            InputError, InputErrors: what is wrong with it.
        """
        return validate_scenario(data, source=source, folder=folder)

    def check(self, run: Scenario, *, source: str, time_only: bool) -> None:
        """Build the run's parts, and forget them.

        Raises:
            InputErrors: all that is wrong with them.
        """
        from simfed.experiment.checks import check

        check(run, source=source, time_only=time_only)

    def collect_facts(
        self, run: Scenario, *, source: str, device: str, time_only: bool
    ) -> AddressedRun:
        """Return all that a run's results depend on; see `collect_facts`."""
        from simfed.study.address import collect_facts

        return collect_facts(run, source=source, device=device, time_only=time_only)

    def list_code(self, run: Scenario) -> list[str]:
        """Return nothing: consent to plug-ins is asked for where they are read."""
        return []  # consent to plug-ins is asked for where they are read

    def dump(self, run: Scenario) -> dict[str, Plain]:
        """Return the run as plain values, for another process."""
        return run.model_dump(mode="json")

    def play(self, job: RunJob, out: Path) -> None:
        """Do the run of a job in the folder `out`, or go on with it there.

        Raises:
            SimfedError: it cannot be done, or was interrupted.
        """
        from simfed.experiment.running import run
        from simfed.replay import TrajectoryStore

        scenario = validate_scenario(
            job.plain,
            source=job.source,
            folder=Path(job.source).parent,
            allow_plugins=True,  # whoever began the study has consented
        )
        learns = job.cache is not None and not job.time_only
        run(
            scenario,
            out,
            source=job.source,
            workers=1,
            device=job.device,
            time_only=job.time_only,
            resume=True,
            progress=False,
            trajectories=TrajectoryStore(job.cache, job.cache_limit_bytes)
            if learns
            else None,
        )

    def count_rounds(self, run: Scenario) -> int | None:
        """Return the number of rounds; None where it is not known."""
        return run.rounds

    def find_measure(self, run: Scenario) -> Measure:
        """Return by what its models are judged."""
        from simfed.learn.catalogue import dataset_facts

        task = dataset_facts(run.dataset).task
        return choose_measure(task, run.evaluation.measures)

    def compute_path_key(self, run: Scenario, *, device: str) -> str | None:
        """Return a key that runs share which learn the same; see `compute_path_key`."""
        from simfed.study.address import compute_path_key

        return compute_path_key(run, device=device)


class AppRuns:
    """Runs of `simfed flower run`, by the same steps: the fleet file says which app.

    An app cannot go on after a stop, and what it learns is not kept for others.
    """

    keys: type[Section] = FleetFile

    def validate(
        self, data: Mapping[str, object], *, source: str, folder: Path
    ) -> FleetFile:
        """Return the fleet of a mapping; arguments as of `ScenarioRuns.validate`.

        Raises:
            InputError, InputErrors: what is wrong with it, or it names no app's folder.
        """
        fleet = validate_fleet(data, source=source, folder=folder)
        if fleet.app is None:
            problem = "the fleet of a study has no app"
            hint = "in the study: set: {app: FOLDER}"
            raise InputError("one", where=f"{source}: app", problem=problem, hint=hint)
        if not Path(fleet.app.folder, "pyproject.toml").is_file():
            allowed = "the folder of a Flower app, with its pyproject.toml"
            raise InputError(
                allowed, where=f"{source}: app.folder", got=fleet.app.folder
            )
        return fleet

    def check(self, run: FleetFile, *, source: str, time_only: bool) -> None:
        """Check the fleet, and that Flower is there.

        Raises:
            InputError, InputErrors: what is wrong; also `time_only`, as what an app
                sends is known when it has run.
        """
        from simfed.experiment.checks import check_world

        import_part("simfed.flower.versions:flower_version")()
        if time_only:
            raise InputError(
                problem="--time-only is not for apps: what an app sends is known when "
                "it has run"
            )
        check_world(run, source)

    def collect_facts(
        self, run: FleetFile, *, source: str, device: str, time_only: bool
    ) -> AddressedRun:
        """Return all that a run's results depend on; see `collect_app_facts`."""
        from simfed.study.address import collect_app_facts

        return collect_app_facts(run, source=source)

    def list_code(self, run: FleetFile) -> list[str]:
        """Return the app's folder, for whose code somebody has to consent."""
        return [run.app.folder] if run.app is not None else []

    def dump(self, run: FleetFile) -> dict[str, Plain]:
        """Return the fleet as plain values."""
        plain: dict[str, Plain] = yaml.safe_load(dump_scenario(run))
        return plain

    def play(self, job: RunJob, out: Path) -> None:
        """Do the run of a job in the folder `out`."""
        import_part("simfed.flower.running:run_studied")(job.plain, out, job.source)

    def count_rounds(self, run: FleetFile) -> int | None:
        """Return None: only the app knows how many rounds it will have."""
        return None

    def find_measure(self, run: FleetFile) -> Measure:
        """Return the measure of the app's models, which is taken to be accuracy."""
        return ACCURACY

    def compute_path_key(self, run: FleetFile, *, device: str) -> str | None:
        """Return None: what apps learn is not kept."""
        return None


AnyKind: TypeAlias = ScenarioRuns | AppRuns
"""A study's plan holds runs of one kind alone, those that its own kind made."""


def find_kind(base: Mapping[str, object]) -> AnyKind:
    """Return the kind of the runs that a study's base file describes."""
    return AppRuns() if is_fleet(base) else ScenarioRuns()
