"""`simfed explore`: what a recorded run would have been with other settings."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from simfed.cli.inspect import AllowPlugins, Imports


def explore(
    what: Annotated[
        Path,
        typer.Argument(metavar="RUN|SCENARIO", help="A run directory, or a scenario."),
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="0 for any that is free.")
    ] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    allow_plugins: AllowPlugins = False,
    import_: Imports = None,
) -> None:
    """Ask what would have been with other links, speeds, deadlines.

    Sliders on a local page set them. Each answer is exact: the clock is played again,
    over what the run learned. Of a run that is under way the page goes on as it does.
    The page is served to this machine alone, until Ctrl-C.
    """
    from simfed.explore.serve import announce, serve
    from simfed.explore.world import ExploredWorld

    world = ExploredWorld(what, allow_plugins=allow_plugins)
    serve(world, port, partial(announce, browser=browser))
