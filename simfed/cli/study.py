"""`simfed study`: run a study, say how far it is, show what came out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simfed.cli.inspect import (
    AllowPlugins,
    Dask,
    Device,
    Imports,
    Overrides,
    Quiet,
    TimeOnly,
    Width,
    limit_processes,
    read_overrides,
)
from simfed.experiment.interrupt import sigterm_is_ctrl_c
from simfed.ground.cores import most_processes
from simfed.ground.errors import InputError, RunFailed, check_known, listed
from simfed.ground.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from simfed.report.panels import PanelTable
    from simfed.study.results import StudyResult

app = typer.Typer(help="Many runs from one file, compared.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The study's folder.")]


@app.command()
def run(
    study: Annotated[Path, typer.Argument(metavar="STUDY")],
    out: Annotated[
        Path | None, typer.Option(help="The study's folder; studies/NAME if omitted.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Runs at once on this machine; if omitted one per core, or one on a "
            "GPU."
        ),
    ] = None,
    dask: Dask = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="AXIS=VALUE,…",
            help="Only the runs at this place of the axes, or seed=N.",
        ),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try again what failed before.")
    ] = False,
    device: Device = "cpu",
    time_only: TimeOnly = False,
    cache: Annotated[
        bool,
        typer.Option(
            help="Answer learning from what was learned before (see simfed cache)."
        ),
    ] = True,
    set_: Overrides = None,
    allow_plugins: AllowPlugins = False,
    import_: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Run what is not yet done of a study.

    Killed or stopped, the same command goes on. Several may be at one folder at once,
    on several machines too.
    """
    from simfed.study import load_study, run_study
    from simfed.study.drive import choose_out

    if device not in ("cpu", "cuda"):
        raise InputError("cpu or cuda", where="--device", got=device)
    jobs = limit_processes("--jobs", jobs, most_processes(), quiet=quiet)
    folder = out if out is not None else choose_out(study)
    try:
        with sigterm_is_ctrl_c():
            result = run_study(
                study,
                folder,
                jobs=jobs,
                dask=dask,
                only=only,
                retry_failed=retry_failed,
                device=device,
                time_only=time_only,
                trajectories=cache,
                progress=not quiet,
                allow_plugins=allow_plugins,
                overrides=read_overrides(set_),
            )
    except RunFailed:
        if not quiet and (folder / "study.json").exists():
            _print_result(load_study(folder))
        raise
    _print_outcome(result, folder, quiet=quiet)


def _print_outcome(result: StudyResult, folder: Path, *, quiet: bool) -> None:
    """Print what came out of a study, and write its page where plotly is there."""
    if not quiet:
        _print_result(result)
    try:
        page = _write_page(result)
    except InputError as error:  # without plotly all else is there
        typer.echo(f"{folder}: no page: {error}", err=True)
    else:
        if not quiet:
            runs = counted(len(result.finished), "run")
            typer.echo(f"{folder}: {runs}; the same as a page: {page}")


@app.command()
def status(folder: Folder) -> None:
    """Show how far a study is, and what failed; also while it runs."""
    from simfed.study import load_study
    from simfed.study.tables import describe_status

    for line in describe_status(load_study(folder)):
        typer.echo(line)


@app.command()
def prune(folder: Folder) -> None:
    """Delete the runs that the study no longer names."""
    from simfed.study.store import StudyFolder

    deleted = 0
    for address, is_gone in StudyFolder(folder).prune():
        deleted += is_gone
        if not is_gone:
            typer.echo(f"{folder}: {address} stays, another process is at it")
    typer.echo(f"{folder}: {counted(deleted, 'run')} deleted")


@app.command()
def table(
    folder: Folder,
    runs: Annotated[
        bool, typer.Option("--runs", help="One row per run, not per arm.")
    ] = False,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the rows to a CSV file.")
    ] = None,
) -> None:
    """Print what came out so far: every arm, and the verdicts in words."""
    from simfed.study import load_study

    result = load_study(folder)
    if csv is not None:
        from simfed.report.export import write_table

        write_table(result.summary if runs else result.arms, csv)
        typer.echo(f"{csv}: written")
        return
    _print_result(result, runs=runs)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A study's folder.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="DIR/report.html if omitted; .png, .svg or .pdf for a picture.",
        ),
    ] = None,
    figure: Annotated[
        str,
        typer.Option(
            metavar="targets|curves",
            help="The picture: what was spent to reach the targets, or the measure "
            "over time.",
        ),
    ] = "targets",
    spent: Annotated[
        str,
        typer.Option(
            metavar="time|sent|moved|energy",
            help="What was spent to reach the targets.",
        ),
    ] = "time",
    over: Annotated[
        str | None,
        typer.Option(
            metavar="AXIS", help="The axis to draw against; most values if omitted."
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="85%",
            help="An accuracy such as 85%, or RMSE such as 12.5, may be repeated; else "
            "the "
            "study's thresholds.",
        ),
    ] = None,
    ymin: Annotated[
        str | None,
        typer.Option(metavar="60%", help="Of curves: where the measure's axis begins."),
    ] = None,
    width: Width = "7in",
    height: Annotated[
        str | None,
        typer.Option(help="Height of a picture; by what it holds if omitted."),
    ] = None,
) -> None:
    """Make the page about a study, or a picture of it for print.

    The page is one self-contained HTML file. The picture is what each arm spent to
    reach the targets against the swept axis, or its curves. A caption for it is
    printed.
    """
    from simfed.study import load_study

    kinds = (".html", ".png", ".svg", ".pdf")
    if out is not None and out.suffix.lower() not in kinds:
        raise InputError(
            f"a file that ends in {listed(kinds)}", where="--out", got=out.name
        )
    check_known(figure, ("targets", "curves"), where="--figure")
    if out is None or out.suffix.lower() == ".html":
        typer.echo(f"{_write_page(load_study(folder), out)}: written")
        return
    from simfed.report.pictures import parse_width

    size: Any = {"width_in": parse_width(width)}
    if height is not None:
        size["height_in"] = parse_width(height, "height")
    _draw_figure(load_study(folder), out, figure, spent, over, target or (), ymin, size)


def _draw_figure(
    result: StudyResult,
    out: Path,
    figure: str,
    spent: str,
    over: str | None,
    target: Sequence[str],
    ymin: str | None,
    size: Any,
) -> None:
    """Write a picture of a study, and print its caption.

    Args:
        result: of the study.
        out: the picture; its ending says the format.
        figure: `targets` or `curves`.
        spent: the option's text.
        over: the option's text; None for the axis with most values.
        target: texts of `--target`.
        ymin: the option's text; None for an axis by the data.
        size: `width_in`, and `height_in` where it was asked for.

    Raises:
        InputError: an option that the figure does not have, or what it refuses.
    """
    from simfed.report.pictures import save_picture
    from simfed.study.page import describe_study_figure, draw_study_figure
    from simfed.study.target_figure import describe_target_figure, target_figure
    from simfed.study.targets import find_spent_quantity, parse_target

    goals = [parse_target(text, result.measure) for text in target]
    if figure == "curves":
        if over is not None:
            raise InputError("--figure targets", where="--over", got="--figure curves")
        least = None if ymin is None else parse_target(ymin, result.measure, "--ymin")
        drawn = draw_study_figure(result, targets=goals, y_min=least, **size)
        caption = describe_study_figure(result, targets=goals)
    else:
        if ymin is not None:
            raise InputError("--figure curves", where="--ymin", got="--figure targets")
        find_spent_quantity(spent, where="--spent")
        drawn = target_figure(result, quantity=spent, over=over, targets=goals, **size)
        caption = describe_target_figure(result, quantity=spent, targets=goals)
    typer.echo(f"{save_picture(drawn, out)}: written")
    typer.echo(caption)


def _print_result(result: StudyResult, *, runs: bool = False) -> None:
    """Print the table of arms with verdicts and notes, or that of runs with notes."""
    from simfed.study.tables import build_arms_table, build_runs_table, list_notes

    table = build_runs_table(result) if runs else build_arms_table(result)
    console = print_tables([table])
    for mark, lines in {
        "· ": [] if runs else result.verdicts,
        "": list_notes(result),
    }.items():
        for i, line in enumerate(lines):
            console.print("\n" * (i == 0) + mark + line, markup=False)


def print_tables(tables: Iterable[PanelTable]) -> Console:
    """Print tables of a study; return the console, for more lines."""
    from rich.console import Console

    from simfed.study.tables import lay_out

    # a pipe has no width: nothing is cut there
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    for table in tables:
        console.print(lay_out(table))
    return console


def _write_page(result: StudyResult, out: Path | None = None) -> Path:
    from simfed.study.page import write_page

    return write_page(result, out)
