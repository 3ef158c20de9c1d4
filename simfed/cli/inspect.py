"""`simfed validate`, `schema` and `list`: what a scenario says and what it may say.

Options that several commands share stand here too, as types of their parameters.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simfed.cli.notes import shorten_warnings
from simfed.ground.errors import InputError, InputErrors, check_known
from simfed.ground.plain import Plain
from simfed.ground.registry import REGISTRIES, Registry, import_file
from simfed.ground.units import counted

if TYPE_CHECKING:
    from simfed.scenario import Scenario

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY.PATH=VALUE", help="Change one key; may be repeated."
    ),
]
AllowPlugins = Annotated[
    bool,
    typer.Option(
        "--allow-plugins",
        help="Run the code that the file names: `plugins`, a study's `app`.",
    ),
]


ScenarioFile = Annotated[Path, typer.Argument(metavar="SCENARIO")]
Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN", help="Run directories, one or more.")
]
TimeOnly = Annotated[
    bool, typer.Option("--time-only", help="The clock without learning (no torch).")
]
RunFolder = Annotated[
    str | None,
    typer.Option(help="Run directory; runs/NAME (or the next free) if omitted."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.")]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace the run that is in --out, else in runs/NAME."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")]
Seed = Annotated[int | None, typer.Option(help="In place of the scenario's seed.")]
Rounds = Annotated[int | None, typer.Option(help="In place of the scenario's rounds.")]
Device = Annotated[str, typer.Option(help="Where to learn: cpu or cuda.")]
Figures = Annotated[bool, typer.Option(help="Draw pictures into the run directory.")]
Width = Annotated[
    str, typer.Option(help="Width of a picture with its unit: 3.5in, 88mm.")
]
Workers = Annotated[
    int | None,
    typer.Option(help="Learning processes; the results do not depend on it."),
]
Dask = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Scheduler of a Dask cluster that does the work."
    ),
]


def limit_processes(
    name: str, asked: int | None, most: int, *, each: str = "", quiet: bool = False
) -> int | None:
    """Return the processes that an option asks for, or at most `most`.

    Where it asks for more a sentence on standard error says so.

    Args:
        name: the option.
        asked: its value; None where it was not given.
        most: the most that can do any work.
        each: what keeps one process busy, for the sentence.
        quiet: say nothing.

    Raises:
        InputError: fewer than 1.
    """
    if asked is None:
        return None
    if asked < 1:
        raise InputError("a whole number of at least 1", where=name, got=asked)
    if asked > most and not quiet:
        rule = f"one for {each} and " if each else ""
        refusal = f"{name}: {asked:,} processes are too many, {most:,} do the work"
        print(f"{refusal} (at most {rule}a few for each core)", file=sys.stderr)
    return min(asked, most)


def read_overrides(
    set_: list[str] | None, **keys: int | None
) -> list[tuple[str, Plain]]:
    """Return (key path, value) of each `--set`, then of each given one of `keys`.

    Raises:
        InputError: a text is no `KEY.PATH=VALUE`.
    """
    from simfed.scenario import parse_assignment

    pairs = [parse_assignment(text) for text in set_ or []]
    return pairs + [(key, value) for key, value in keys.items() if value is not None]


def load(
    path: Path,
    set_: list[str] | None,
    allow_plugins: bool,
    **keys: int | None,
) -> Scenario:
    """Return the scenario of a command's options.

    Args:
        path: its file.
        set_: texts of `--set`.
        allow_plugins: see `load_scenario`.
        keys: options in place of keys, `seed` say; None where one was not given.

    Raises:
        InputError, InputErrors: what is wrong in the file or the options.
    """
    from simfed.scenario import load_scenario

    pairs = read_overrides(set_, **keys)
    return load_scenario(path, pairs, allow_plugins=allow_plugins)


def _import_files(files: list[Path] | None) -> list[Path] | None:
    """Run the files of `--import`, before the command itself."""
    for file in files or ():
        import_file(file)
    return files


Imports = Annotated[
    list[Path] | None,
    typer.Option(
        "--import",
        metavar="FILE.py",
        callback=_import_files,
        help="Run a Python file that registers parts of your own; may be repeated.",
    ),
]


def validate(
    scenarios: Annotated[list[Path], typer.Argument(metavar="SCENARIO|STUDY")],
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Print the scenario with every default.")
    ] = False,
    details: Annotated[
        bool,
        typer.Option("--details", help="Every warning of a profile, one line each."),
    ] = False,
    set_: Overrides = None,
    time_only: Annotated[
        bool, typer.Option("--time-only", help="As for a run without learning.")
    ] = False,
    allow_plugins: AllowPlugins = False,
    import_: Imports = None,
) -> None:
    """Check scenarios, studies or fleets of apps before they run.

    Every error of every file comes, one line each.
    """
    from simfed.experiment.checks import Checks, check_parts
    from simfed.scenario import dump_scenario
    from simfed.scenario.load import is_fleet, is_study, read_yaml

    errors: list[InputError] = []
    more = 0
    for path in scenarios:
        try:
            data = read_yaml(path)
            if is_fleet(data):
                _validate_fleet(path, set_, resolved=resolved)
                continue
            if is_study(data) and not resolved:
                _validate_study(path, set_, allow_plugins, time_only)
                continue
            scenario = load(path, set_, allow_plugins)
            parts = check_parts(scenario, path, time_only)
        except InputErrors as several:
            errors += several.errors
            more += several.more
        except InputError as one:
            errors.append(one)
        else:
            if resolved:
                typer.echo(dump_scenario(scenario), nl=False)
                if scenario.compression.k_choices:
                    typer.echo(
                        f"# arms: {', '.join(map(str, scenario.compression.choices))}"
                    )
                for column in parts.columns():
                    if column.drawn:
                        typer.echo(f"# drawn: {column}")
            else:
                clients = counted(scenario.client_count, "client")
                typer.echo(
                    f"{path}: valid ({clients}, {counted(scenario.rounds, 'round')})"
                )
            warnings = Checks(parts).warnings()
            if not details:
                warnings = shorten_warnings(
                    warnings, f"simfed validate --details {path}"
                )
            for warning in warnings:
                typer.echo(f"{path}: warning: {warning}", err=True)
    if errors:
        raise InputErrors(errors, more)


def _validate_study(
    path: Path, set_: list[str] | None, allow_plugins: bool, time_only: bool
) -> None:
    """Check a study, with every scenario of it, and print a line."""
    from simfed.study.drive import check_plan
    from simfed.study.plan import plan_study

    plan = plan_study(path, allow_plugins=allow_plugins, overrides=read_overrides(set_))
    check_plan(plan, str(path), device="cpu", time_only=time_only)
    typer.echo(f"{path}: valid (a study of {counted(len(plan.runs), 'run')})")


def _validate_fleet(path: Path, set_: list[str] | None, *, resolved: bool) -> None:
    """Check the fleet of an app, and print a line or all its keys."""
    from simfed.experiment.checks import check_world, warn_of_world
    from simfed.scenario import dump_scenario
    from simfed.scenario.fleet_file import load_fleet

    fleet = load_fleet(path, read_overrides(set_))
    parts = check_world(fleet, path)
    if resolved:
        typer.echo(dump_scenario(fleet), nl=False)
    else:
        typer.echo(
            f"{path}: valid (a fleet of {counted(fleet.client_count, 'node')} "
            f"for an app)"
        )
    for warning in warn_of_world(parts):
        typer.echo(f"{path}: warning: {warning}", err=True)


def schema() -> None:
    """Print the JSON Schema of a scenario: keys and defaults."""
    from simfed.scenario.reference import build_scenario_schema

    typer.echo(json.dumps(build_scenario_schema(), indent=2, ensure_ascii=False))


def list_parts(
    kind: Annotated[
        str | None,
        typer.Argument(
            autocompletion=lambda incomplete: [
                k for k in _list_kinds() if k.startswith(incomplete)
            ],
            help="scenarios, methods, codecs, policies, models, datasets, selections, "
            "availabilities, rules, attacks, profiles; alone: what can be listed",
        ),
    ] = None,
    import_: Imports = None,
) -> None:
    """List what a scenario can name, or begin with, in a line each."""
    if kind is None:
        typer.echo("\n".join(sorted(_list_kinds())))
        typer.echo("simfed list KIND lists one of these", err=True)
        return
    if kind in ("scenario", "scenarios"):
        from simfed.templates import templates

        rows = [(template.name, template.about) for template in templates()]
    elif kind in ("profile", "profiles"):
        from simfed.experiment.assembly import list_profiles

        rows = list_profiles()
        if not rows:
            typer.echo("no profiles: there is no folder `calibration` here", err=True)
    else:
        registry = _find_registry(kind)
        rows = [(name, _explain_part(registry, name)) for name in registry.names()]
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        typer.echo(f"{name:<{width}}  {text}".rstrip())
    if kind in ("scenario", "scenarios"):
        typer.echo("simfed new NAME writes one of these here", err=True)


def _list_kinds() -> dict[str, str]:
    """Return what may be listed, plural → singular."""
    plurals = {
        registry.group.removeprefix("simfed."): name
        for name, registry in REGISTRIES.items()
    }
    return {**plurals, "profiles": "profile", "scenarios": "scenario"}


def _find_registry(kind: str) -> Registry:
    """Return the registry of a kind, by its singular or plural."""
    name = _list_kinds().get(kind, kind)
    if name not in REGISTRIES:
        check_known(kind, _list_kinds(), where="list")
    return REGISTRIES[name]


def _find_first_sentence(text: str) -> str:
    r"""Return the first sentence of a docstring on one line; `et al. 2017` ends none.

    >>> _find_first_sentence("Sends (A et al. 2017)\n    what changed. More follows.")
    'Sends (A et al. 2017) what changed.'
    """
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0]


def _explain_part(registry: Registry, name: str) -> str:
    """Return a part's own sentence, and where it comes from unless it is built in."""
    part = registry.get(name)
    text = getattr(part, "about", None) or _find_first_sentence(part.__doc__ or "")
    origin = registry.origin(name)
    return text if origin == "built in" else f"{text} ({origin})".strip()
