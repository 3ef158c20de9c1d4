"""`simfed advise`: which way of compressing each group of devices should use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simfed.cli.inspect import AllowPlugins, ScenarioFile
from simfed.experiment.interrupt import sigterm_is_ctrl_c
from simfed.ground.errors import InputError
from simfed.ground.units import parse_duration


def advise(
    scenario: ScenarioFile,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="90%",
            help="What is good enough; if omitted, the hardest round number that half "
            "of the finalists reach.",
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option(metavar="10min", help="How long this may take here.")
    ] = "2min",
    bytes_: Annotated[
        bool,
        typer.Option("--bytes", help="Few bytes, both ways, rather than few seconds."),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A rule of thumb, without learning.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the scenario with the advice in it."),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Its study; runs/NAME-advise if omitted."),
    ] = None,
    allow_plugins: AllowPlugins = False,
) -> None:
    """Say which codec each group of devices should use.

    Candidates race over ever longer runs, then over ever more seeds. Stopped, the same
    command goes on.
    """
    from simfed import advise as room
    from simfed.cli.study import print_tables
    from simfed.study.tables import list_arms_tables

    if out is not None and out.exists():
        raise InputError("a new file", where="--out", got=str(out))
    if quick:
        found = room.advise_by_clock(scenario, allow_plugins=allow_plugins)
    else:
        with sigterm_is_ctrl_c():
            found = room.advise(
                scenario,
                target=target,
                budget_s=parse_duration(budget, where="--budget"),
                by="moved" if bytes_ else "time",
                out=runs,
                allow_plugins=allow_plugins,
            )
    typer.echo(found)
    if found.result is not None:
        for table in list_arms_tables(found.result).values():
            typer.echo(f"{table.caption}:")
            print_tables([table])
    if out is not None:
        found.write(out)
        typer.echo(f"{out}: written")
