"""`simfed explore`: what a recorded run would have been with other settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simfed.cli.inspect import AllowPlugins, Imports


def explore(
    what: Annotated[
        Path, typer.Argument(metavar="RUN|SCENARIO", help="A run directory, or a scenario.")
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    allow_plugins: AllowPlugins = False,
    import_: Imports = None,
) -> None:
    """Ask what would have been with other links, speeds, deadlines.

    Sliders on a local page set them. Each answer is exact: the clock is played again,
    over what the run learned. The page is served to this machine alone, until Ctrl-C.
    """
    from simfed.explore.serve import serve
    from simfed.explore.world import World

    def say(address: str) -> None:
        typer.echo(address)
        if browser:
            import webbrowser

            if not webbrowser.open(address):
                typer.echo("no browser found; open this address in one", err=True)

    serve(World(what, allow_plugins=allow_plugins), port, say)
