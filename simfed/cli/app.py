"""The page of all commands, in the order in which `simfed --help` lists them."""

from __future__ import annotations

from typing import Annotated

import typer
import typer.core

from simfed.cli import (
    advise,
    cache,
    calibrate,
    compare,
    data,
    deploy,
    explore,
    export,
    flower,
    inspect,
    new,
    report,
    run,
    show,
    study,
    twin,
)

# Help is plain, and brackets stand in it as they are: typer before 0.21, which Flower
# asks for, writes `\[default: 10]` wherever rich is installed.
typer.core.HAS_RICH = False

app = typer.Typer(
    name="simfed",
    help="Simulate federated learning: real training, calibrated devices, an exact "
    "network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="To begin: `simfed new quickstart`; to go on: `simfed help`. --debug, "
    "anywhere, shows "
    "the traceback of an error.",
)


def _say_version(wanted: bool) -> None:
    """Print the version and exit, where it is `wanted`."""
    if wanted:
        from simfed.ground.version import VERSION

        typer.echo(f"simfed {VERSION}")
        raise typer.Exit


@app.callback()
def simfed(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Say it and exit."
        ),
    ] = False,
) -> None:
    """Simulate federated learning: real training, calibrated devices, exact network."""


app.command()(new.new)
app.command()(run.run)
app.command()(inspect.validate)
app.command()(inspect.schema)
app.command("list")(inspect.list_parts)
app.add_typer(show.app, name="show")
app.command(cls=run.Verify)(run.verify)
app.command()(deploy.serve)
app.command()(deploy.join)
app.command()(deploy.deploy)
app.command()(deploy.certificate)
app.command()(report.timeline)
app.command()(report.report)
app.command()(advise.advise)
app.command()(explore.explore)
app.command()(compare.compare)
app.command()(twin.twin)
app.command()(export.export)
app.add_typer(study.app, name="study")
app.add_typer(cache.app, name="cache")
app.add_typer(data.app, name="data")
app.add_typer(calibrate.app, name="calibrate")
app.command("help")(new.show_page)
app.add_typer(flower.app, name="flower")
