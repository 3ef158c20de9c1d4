"""`simfed flower`: Flower apps on simulated fleets."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from simfed.cli.inspect import (
    Figures,
    Overrides,
    Overwrite,
    Quiet,
    Resume,
    RunFolder,
    limit_processes,
    read_overrides,
)
from simfed.cli.run import draw, folder_for, print_summary
from simfed.experiment.interrupt import sigterm_is_ctrl_c
from simfed.ground.cores import most_processes
from simfed.ground.errors import InputError

app = typer.Typer(
    help="Flower apps, unmodified, on simulated fleets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def flower() -> None:
    """Flower apps, unmodified, on simulated fleets."""


@app.command()
def run(
    app_dir: Annotated[Path, typer.Argument(metavar="APP_DIR")],
    fleet: Annotated[Path, typer.Option(help="Fleet file, or a scenario as one.")],
    out: RunFolder = None,
    seed: Annotated[
        int | None, typer.Option(help="In place of the fleet's seed.")
    ] = None,
    run_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'KEY=VALUE …'",
            help="Override the app's configuration, as `flwr run` does.",
        ),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Charge nodes' work by this file of `simfed flower measure`; "
            "otherwise as the fleet says, by the app's own work file, or metered.",
        ),
    ] = None,
    set_: Overrides = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    workers: Annotated[
        int,
        typer.Option(help="Processes for the nodes' work; no result depends on it."),
    ] = 1,
    host_timeout: Annotated[
        float,
        typer.Option(
            help="Host seconds after which an app that gives no sign is given up."
        ),
    ] = 600.0,
    figures: Figures = True,
    quiet: Quiet = False,
) -> None:
    """Run a Flower app on a simulated fleet and write its run."""
    from simfed import flower
    from simfed.flower.running import check_some_worked
    from simfed.flower.versions import flower_version
    from simfed.scenario.fleet_file import load_fleet

    if resume:
        raise InputError(
            "a run from its beginning",
            where="--resume",
            problem="a Flower app cannot go on where it stopped: what its server app "
            "keeps in its "
            "variables cannot be saved",
            hint="--overwrite, or a study, whose finished runs are kept",
        )
    flower_version()
    if not host_timeout > 0:
        raise InputError("seconds above 0", where="--host-timeout", got=host_timeout)
    loaded = load_fleet(fleet, read_overrides(set_, seed=seed))
    if work is not None:
        loaded = loaded.charged_by(work)
    most = min(most_processes(), loaded.client_count)
    workers = (
        limit_processes("--workers", workers, most, each="each node", quiet=quiet) or 1
    )
    with folder_for(out, loaded.name, overwrite) as folder, sigterm_is_ctrl_c():
        if not quiet:
            print(
                f"{loaded.name}: {loaded.client_count:,} nodes → {folder}",
                file=sys.stderr,
            )
        result = flower.run_folder(
            app_dir,
            loaded,
            folder,
            source=fleet,
            run_config=flower.read_config(run_config or []),
            overwrite=overwrite,
            host_timeout_s=host_timeout,
            progress=not quiet,
            workers=workers,
        )
    drawn = draw(result, folder) if figures else []
    if not quiet:
        print_summary(result, drawn)
    check_some_worked(result)


@app.command()
def measure(
    app_dir: Annotated[Path, typer.Argument(metavar="APP_DIR")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The work file; APP_DIR/app.work.yaml, where `run` finds it, if "
            "omitted."
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            help="Of the smallest play; others have twice and four times as many. As "
            "the app's "
            "`num-supernodes` if omitted, or 4."
        ),
    ] = None,
    fleet: Annotated[
        Path | None,
        typer.Option(help="Fleet file whose nodes' `node_config` the app is to have."),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…",
            help="Numbers of the app's or its nodes' configuration that are varied; "
            "all if "
            "omitted.",
        ),
    ] = None,
    run_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'KEY=VALUE …'",
            help="Override the app's configuration, as `flwr run` does.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option(help="Replace the work file that is there.")
    ] = False,
    figures: Annotated[
        bool, typer.Option(help="Draw the laws' card beside the work file.")
    ] = True,
    quiet: Quiet = False,
) -> None:
    """Measure what a Flower app's messages take on this machine.

    By a few short plays of it.
    """
    from simfed.flower import read_config
    from simfed.flower.measuring import measure as measure_app
    from simfed.flower.workfile import write_work
    from simfed.report.laws import describe_card, draw_laws_figure
    from simfed.scenario.fleet_file import load_fleet

    path = _choose_work_file(app_dir, out, overwrite)
    say = partial(print, file=sys.stderr, flush=True)
    work = measure_app(
        app_dir,
        overrides=read_config(run_config or []),
        nodes=nodes,
        fleet=None if fleet is None else load_fleet(fleet),
        sizes=None if sizes is None else [name.strip() for name in sizes.split(",")],
        tell=(lambda line: None) if quiet else say,
    ).work
    write_work(work, path)
    for line in work.left_out:
        say(f"left out: {line}")
    card, drawn = work.card(), []
    if figures:
        from simfed.report.pictures import save_picture

        drawn = [save_picture(draw_laws_figure(card), path.with_suffix(".png"))]
    if not quiet:
        print(*describe_card(card), *drawn, sep="\n")
        print(f"simfed flower run {app_dir} --fleet FLEET.yaml --work {path}")


def _choose_work_file(app_dir: Path, out: Path | None, overwrite: bool) -> Path:
    """Return where the work file goes, which is checked before any play is made.

    Raises: `InputError` for a file that is there, or a folder that is not.
    """
    path = out or app_dir / "app.work.yaml"
    if path.exists() and not overwrite:
        raise InputError(
            "--overwrite", where=str(path), problem="there is a work file already"
        )
    if out is not None and not path.parent.is_dir():
        raise InputError(
            "a file in a folder that is there", where="--out", got=str(path)
        )
    return path
