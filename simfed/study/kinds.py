"""The two kinds of runs that a study may have: scenarios, or an app on a fleet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from simfed.ground.errors import InputError
from simfed.ground.measure import ACCURACY, MEASURES, Measure
from simfed.ground.registry import import_part
from simfed.scenario import Scenario, dump_scenario
from simfed.scenario.fleet_file import FleetFile, dump_fleet, validate_fleet
from simfed.scenario.load import is_fleet, validate_scenario
from simfed.scenario.section import Section

if TYPE_CHECKING:
    from simfed.study.address import AddressedRun

Studied: TypeAlias = Scenario | FleetFile
"""All that one run is made from; both have a `seed` and a `name`."""


_R = TypeVar("_R", Scenario, FleetFile)


class Kind(Protocol[_R]):
    """The steps that differ between runs of scenarios and of apps."""

    keys: type[Section]
    """The file's model, whose keys the axes of a study name."""
    runner: str
    """`module:function` that does one run; see `simfed.study.work.Job`."""

    def validate(self, data: Mapping[str, object], *, source: str, folder: Path) -> _R:
        """A run from a mapping. Raises: `InputError`, `InputErrors`."""

    def check(self, run: _R, *, source: str, time_only: bool) -> None:
        """Build the run's parts. Raises: `InputErrors` for all that is wrong with them."""

    def facts(self, run: _R, *, source: str, device: str, time_only: bool) -> AddressedRun:
        """All that a run's results depend on: its `scenario`, with a seed, and more."""

    def code(self, run: _R) -> list[str]:
        """Folders whose code it runs, for which somebody has to consent."""

    def dump(self, run: _R) -> str:
        """The run as YAML, for another process."""

    def rounds(self, run: _R) -> int | None:
        """The number of rounds; None where it is not known."""

    def measure(self, run: _R) -> Measure:
        """By what its models are judged."""

    def learning(self, run: _R, *, device: str) -> tuple[str | None, str | None]:
        """(key that runs which learn the same share, key that runs which begin alike share); None
        where learning is not shared."""


AnyKind: TypeAlias = Kind[Any]
"""Either kind. A study's plan holds runs of one kind alone, those that its own kind made."""


class ScenarioRuns:
    """A study's runs are what `simfed run` makes of a scenario."""

    keys: type[Section] = Scenario
    runner = "simfed.study.work:run_scenario"

    def validate(self, data: Mapping[str, object], *, source: str, folder: Path) -> Scenario:
        return validate_scenario(data, source=source, folder=folder)

    def check(self, run: Scenario, *, source: str, time_only: bool) -> None:
        from simfed.experiment.checks import check

        check(run, source=source, time_only=time_only)

    def facts(self, run: Scenario, *, source: str, device: str, time_only: bool) -> AddressedRun:
        from simfed.study.address import collect_facts

        return collect_facts(run, source=source, device=device, time_only=time_only)

    def code(self, run: Scenario) -> list[str]:
        return []  # consent to plug-ins is asked for where they are read

    def dump(self, run: Scenario) -> str:
        return dump_scenario(run)

    def rounds(self, run: Scenario) -> int | None:
        return run.rounds

    def measure(self, run: Scenario) -> Measure:
        from simfed.learn.catalogue import dataset_facts

        return MEASURES[dataset_facts(run.dataset).task]

    def learning(self, run: Scenario, *, device: str) -> tuple[str | None, str | None]:
        from simfed.replay.key import learning_key
        from simfed.study.address import compute_path_key

        return compute_path_key(run, device=device), learning_key(run, device=device)


class AppRuns:
    """Runs of `simfed flower run`: the fleet file says which app."""

    keys: type[Section] = FleetFile
    runner = "simfed.flower.running:run_studied"

    def validate(self, data: Mapping[str, object], *, source: str, folder: Path) -> FleetFile:
        fleet = validate_fleet(data, source=source, folder=folder)
        if fleet.app is None:
            problem = "the fleet of a study has no app"
            hint = "in the study: set: {app: FOLDER}"
            raise InputError("one", where=f"{source}: app", problem=problem, hint=hint)
        if not Path(fleet.app.folder, "pyproject.toml").is_file():
            allowed = "the folder of a Flower app, with its pyproject.toml"
            raise InputError(allowed, where=f"{source}: app.folder", got=fleet.app.folder)
        return fleet

    def check(self, run: FleetFile, *, source: str, time_only: bool) -> None:
        from simfed.experiment.checks import check_world

        import_part("simfed.flower.versions:flower_version")()
        if time_only:
            raise InputError(
                problem="--time-only is not for apps: what an app sends is known when it has run"
            )
        check_world(run.world(), source)

    def facts(self, run: FleetFile, *, source: str, device: str, time_only: bool) -> AddressedRun:
        from simfed.study.address import collect_app_facts

        return collect_app_facts(run, source=source)

    def code(self, run: FleetFile) -> list[str]:
        return [run.app.folder] if run.app is not None else []

    def dump(self, run: FleetFile) -> str:
        return dump_fleet(run)

    def rounds(self, run: FleetFile) -> int | None:
        return None

    def measure(self, run: FleetFile) -> Measure:
        return ACCURACY

    def learning(self, run: FleetFile, *, device: str) -> tuple[str | None, str | None]:
        return None, None


def find_kind(base: Mapping[str, object]) -> AnyKind:
    """The kind of the runs that a study's base file describes, given as a mapping."""
    return AppRuns() if is_fleet(base) else ScenarioRuns()
