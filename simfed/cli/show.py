"""`simfed show`: what a scenario comes to before anything runs."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simfed.cli.inspect import (
    AllowPlugins,
    Figures,
    Imports,
    Overrides,
    Rounds,
    ScenarioFile,
    Seed,
    Width,
    Workers,
    load,
    read_overrides,
)
from simfed.cli.notes import shorten_warnings
from simfed.cli.terminal import print_columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simfed.fleet.columns import FleetColumn
    from simfed.fleet.world import WorldSpec
    from simfed.net.spec import CellSpec, LinkSpec
    from simfed.record import Run

app = typer.Typer(
    help="Show what a scenario comes to before anything runs.", no_args_is_help=True
)

_SHOWN_HOURS = 48


@app.command()
def fleet(
    scenario: ScenarioFile,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Picture to write: png, svg or pdf; NAME-fleet.png here if omitted."
        ),
    ] = None,
    seed: Seed = None,
    set_: Overrides = None,
    allow_plugins: AllowPlugins = False,
    import_: Imports = None,
    width: Width = "7in",
) -> None:
    """Print and draw what clients have: speeds, links, K, presence."""
    import numpy as np

    from simfed.experiment.assembly import Parts
    from simfed.experiment.checks import Checks, check_world, warn_of_world
    from simfed.report.fleet import draw_fleet_figure
    from simfed.report.pictures import parse_width, save_picture
    from simfed.scenario import Scenario
    from simfed.scenario.fleet_file import load_fleet
    from simfed.scenario.load import is_fleet, read_yaml

    of_app = is_fleet(read_yaml(scenario))
    if of_app:
        pairs = read_overrides(set_, seed=seed)
        loaded: WorldSpec = load_fleet(scenario, pairs)
    else:
        loaded = load(scenario, set_, allow_plugins, seed=seed)
    parts = check_world(loaded, scenario)
    width_in = parse_width(width)
    # what an app sends has no K, nor has an update of which all travels
    by_k = isinstance(loaded, Scenario) and any(
        choice.level is None and choice.codec.takes_k
        for choice in loaded.compression.choices
    )
    columns = [column for column in parts.columns() if by_k or column.field != "k"]
    hours = np.linspace(0, _SHOWN_HOURS, 4 * _SHOWN_HOURS + 1)
    there = parts.fleet.shares_there(3600 * hours)
    names = [
        f"clients[{i}]: {group.count:,} × {group.prototype}, "
        f"{group.device.profile or 'no profile'}"
        + _describe_cell(group.link, loaded.network.cells)
        for i, group in enumerate(loaded.clients)
    ]
    # what an app computes is not known beforehand
    times, warnings = {}, warn_of_world(parts)
    if isinstance(parts, Parts):
        times, warnings = Checks(parts).list_times(), Checks(parts).warnings()
    for i, name in enumerate(names):
        typer.echo(name)
        _print_columns([column for column in columns if column.group == i])
        if there is not None:
            shares = (float(x) for x in np.quantile(there[:, i], (0, 0.5, 1)))
            least, median, most = (f"{share:.0%}" for share in shares)
            typer.echo(
                f"  there: {least} to {most} of its clients, median {median}, in "
                f"{_SHOWN_HOURS} h"
            )
        _print_times(times.pop(f"clients[{i}].device", []))
    for where, rows in times.items():
        typer.echo(where)
        _print_times(rows)
    path = out if out is not None else Path(f"{scenario.stem}-fleet.png")
    typer.echo(
        save_picture(
            draw_fleet_figure(columns, names, there, hours, width_in=width_in), path
        )
    )
    details = f"simfed validate --details {scenario}"
    for warning in shorten_warnings(warnings, details):
        typer.echo(f"{scenario}: warning: {warning}", err=True)


@app.command()
def cost(
    scenario: ScenarioFile,
    seed: Seed = None,
    rounds: Rounds = None,
    set_: Overrides = None,
    time_only: Annotated[
        bool, typer.Option("--time-only", help="Of a run without learning.")
    ] = False,
    workers: Workers = None,
    allow_plugins: AllowPlugins = False,
    import_: Imports = None,
    figures: Figures = True,
) -> None:
    """Print the time, memory and disk that a run will take here.

    Its first rounds are played for it.
    """
    from simfed.cli.run import draw
    from simfed.experiment.checks import check_parts
    from simfed.experiment.cost import estimate_cost
    from simfed.ground.units import counted, format_bytes, format_duration

    loaded = load(scenario, set_, allow_plugins, seed=seed, rounds=rounds)
    check_parts(loaded, scenario, time_only)

    def finish(run: Run) -> None:
        if figures and run.path is not None:
            draw(run, run.path)

    found = estimate_cost(
        loaded,
        scenario,
        workers=workers,
        time_only=time_only,
        finish=finish,
        begun_s=time.process_time(),
    )
    typer.echo(
        f"{loaded.name}: {counted(loaded.rounds, 'round')}, by {found.played} "
        f"of them here"
    )
    processor = format_duration(found.processor_s)
    typer.echo(f"  time    {format_duration(found.wall_s)}, {processor} of processors")
    typer.echo(f"  memory  {format_bytes(found.memory_bytes)} in its largest process")
    typer.echo(f"  disk    {format_bytes(found.disk_bytes)}")


def _describe_cell(link: LinkSpec, cells: Mapping[str, CellSpec]) -> str:
    """Return the radio cell of a link's clients, and its share of the air, if any."""
    if link.cell is None:
        return ""
    place = f", cell {link.cell}" + ("" if link.mcs is None else f" at mcs {link.mcs}")
    share = cells[link.cell].share
    if not isinstance(share, float):
        return f"{place}, whose share of the air varies"
    return place if share == 1 else f"{place}, which has {share:.3g} of the air"


def _print_columns(columns: list[FleetColumn]) -> None:
    """Print what a group's clients have: a row per number that is drawn or written."""
    rows = [(column.field, column.how, *column.summary()) for column in columns]
    _print_table(("field", "drawn from", "min", "median", "max"), rows)


def _print_times(rows: Sequence[tuple[str, str, str]]) -> None:
    """Print what work takes, and whether its seconds were measured or derived."""
    if rows:
        told = [(work, source, takes) for work, takes, source in rows]
        _print_table(("work", "seconds from", "takes"), told)


_print_table = partial(print_columns, words=2, indent="  ")
