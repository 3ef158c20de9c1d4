"""`simfed study`: run a study, say how far it is, show what came out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simfed.cli.inspect import AllowOutside, AllowPlugins, Imports, Overrides
from simfed.errors import InputError, RunFailed, listed
from simfed.interrupt import sigterm_is_ctrl_c
from simfed.units import counted

if TYPE_CHECKING:
    from simfed.study.results import StudyResult

__all__ = ["app"]

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
            help="Runs at once on this machine; if omitted one per core, or one on a GPU."
        ),
    ] = None,
    executor: Annotated[
        str, typer.Option(metavar="local|dask=ADDRESS", help="Where the runs are done.")
    ] = "local",
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try again what failed before.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where to learn: cpu or cuda.")] = "cpu",
    time_only: Annotated[
        bool, typer.Option("--time-only", help="The clock without learning (no torch).")
    ] = False,
    cache: Annotated[
        bool, typer.Option(help="Answer learning from what was learned before (see simfed cache).")
    ] = True,
    set_: Overrides = None,
    allow_outside: AllowOutside = False,
    allow_plugins: AllowPlugins = False,
    import_: Imports = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
) -> None:
    """Run what is not yet done of a study; killed or stopped, the same command goes on."""
    from simfed.scenario import parse_assignment
    from simfed.study import load_study, run_study
    from simfed.study.drive import default_out

    pairs = [parse_assignment(text) for text in set_ or []]
    if device not in ("cpu", "cuda"):
        raise InputError("cpu or cuda", where="--device", got=device)
    if jobs is not None and jobs < 1:
        raise InputError("a whole number of at least 1", where="--jobs", got=jobs)
    folder = out if out is not None else default_out(study)
    try:
        with sigterm_is_ctrl_c():
            result = run_study(
                study, folder, executor=executor, jobs=jobs, retry_failed=retry_failed,
                device=device, time_only=time_only, trajectories=cache, progress=not quiet,
                allow_outside=allow_outside, allow_plugins=allow_plugins, overrides=pairs,
            )  # fmt: skip
    except RunFailed:
        if not quiet and (folder / "study.json").exists():
            _show(load_study(folder))
        raise
    if not quiet:
        _show(result)
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
    """How far a study is, and what failed; at any time, also while it runs."""
    from simfed.study import load_study
    from simfed.study.tables import status_lines

    for line in status_lines(load_study(folder)):
        typer.echo(line)


@app.command()
def table(
    folder: Folder,
    runs: Annotated[bool, typer.Option("--runs", help="One row per run, not per arm.")] = False,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the rows to a CSV file.")
    ] = None,
) -> None:
    """What came out so far: every arm in every setting, and the verdicts in words."""
    from simfed.study import load_study

    result = load_study(folder)
    if csv is not None:
        (result.summary if runs else result.arms).to_csv(csv, index=False)
        typer.echo(f"{csv}: written")
        return
    _show(result, runs=runs)


@app.command()
def report(
    folder: Folder,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="DIR/report.html if omitted; .png, .svg or .pdf for a picture."
        ),
    ] = None,
) -> None:
    """Make the page that overlays the arms, one self-contained HTML file; or its curves as a
    picture for print."""
    from simfed.study import load_study

    kinds = (".html", ".png", ".svg", ".pdf")
    if out is not None and out.suffix.lower() not in kinds:
        raise InputError(f"a file that ends in {listed(kinds)}", where="--out", got=out.name)
    typer.echo(f"{_write_page(load_study(folder), out)}: written")


def _show(result: StudyResult, *, runs: bool = False) -> None:
    from rich.console import Console

    from simfed.study.tables import arms_table, runs_table

    # a pipe has no width: nothing is cut there
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print(runs_table(result) if runs else arms_table(result))


def _write_page(result: StudyResult, out: Path | None = None) -> Path:
    from simfed.study.page import write_page

    return write_page(result, out)
