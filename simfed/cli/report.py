"""`simfed timeline` and `simfed report`: what a run directory looks like."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simfed.cli.inspect import Runs, Width
from simfed.ground.errors import InputError, check_known, listed

if TYPE_CHECKING:
    from simfed.record.read import Run

_FORMATS = {
    "png": ".png",
    "svg": ".svg",
    "pdf": ".pdf",
    "perfetto": ".json.gz",
    "html": ".html",
}
_DEFAULT_ROUNDS = 3
"""Rounds in a picture, counted from the first, when nobody says which."""


def timeline(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    rounds: Annotated[
        str | None,
        typer.Option(
            metavar="A:B",
            help="Rounds, both ends included; 1:3 in a picture, else all.",
        ),
    ] = None,
    clients: Annotated[
        str | None,
        typer.Option(
            metavar="0,3,7-9|PROTOTYPE",
            help="Rows of a picture; all clients if omitted.",
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="png, svg, pdf, perfetto or html; by --out's suffix, else png.",
        ),
    ] = None,
    width: Width = "7in",
    height: Annotated[
        str | None, typer.Option(help="Height of a picture; by its rows if omitted.")
    ] = None,
    font_size: Annotated[
        str, typer.Option(help="Size of a picture's letters.")
    ] = "7pt",
    out: Annotated[
        Path | None,
        typer.Option(help="File to write; timeline.* in the run directory if omitted."),
    ] = None,
) -> None:
    """Draw who did what when, and who was waited for.

    A Gantt chart as png, svg or pdf; a trace for ui.perfetto.dev or chrome://tracing;
    or an interactive page.
    """
    from simfed.record.read import open_run
    from simfed.report.timeline import parse_rounds

    kind = _choose_format(format_, out)
    opened = open_run(run)
    if opened.rounds.empty:
        raise InputError(
            "a run with at least one round", where=str(run), problem="it has no round"
        )
    last = int(opened.rounds["round"].max())
    chosen = None if rounds is None else parse_rounds(rounds, last)
    path = out if out is not None else run / f"timeline{_FORMATS[kind]}"
    if kind in ("perfetto", "html") and clients is not None:
        hint = (
            "the page and the trace hold all clients and filter them when they are read"
        )
        allowed = "a picture: png, svg or pdf"
        raise InputError(allowed, where="--clients", got=f"--format {kind}", hint=hint)
    if kind == "perfetto":
        from simfed.report.trace import write_trace

        write_trace(opened, path, rounds=chosen)
    elif kind == "html":
        from simfed.report.page import write_page

        varies = [_find_capacities(opened, run)]
        write_page(
            [opened], path, sections=("timeline",), rounds=chosen, capacities=varies
        )
    else:
        drawn = chosen or (1, min(last, _DEFAULT_ROUNDS))
        _draw_timeline(opened, run, path, drawn, clients, width, height, font_size)
    typer.echo(path)


def report(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write; report.html in the run directory (several: here) if "
            "omitted."
        ),
    ] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
) -> None:
    """Write one HTML page about one run, or comparing several.

    It needs no network and no server.
    """
    from simfed.record.read import open_run
    from simfed.report.page import write_page

    if out is not None and out.suffix.lower() != ".html":
        hint = "simfed timeline draws png, svg and pdf"
        raise InputError(
            "a file that ends in .html", where="--out", got=out.name, hint=hint
        )
    opened = [open_run(run) for run in runs]
    folder = runs[0] if len(runs) == 1 else Path()
    target = out if out is not None else folder / "report.html"
    path = write_page(
        opened, target, capacities=list(map(_find_capacities, opened, runs))
    )
    typer.echo(path)
    if open_:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            typer.echo(f"no browser found; open {path} in one", err=True)


def _draw_timeline(
    run: Run,
    at: Path,
    path: Path,
    rounds: tuple[int, int],
    clients: str | None,
    width: str,
    height: str | None,
    font_size: str,
) -> None:
    """Draw the rounds of a run as a Gantt chart into a file.

    Args:
        run: an open one.
        at: its folder.
        path: the picture; its ending says the format.
        rounds: the first and the last one.
        clients: the option's text; None for all.
        width: the option's text, as `3.5in`.
        height: the option's text; None for one by the rows.
        font_size: the option's text, as `7pt`.
    """
    from simfed.report.frames import list_clients
    from simfed.report.gantt import gantt_figure
    from simfed.report.pictures import parse_points, parse_width, save_picture
    from simfed.report.timeline import parse_clients

    figure = gantt_figure(
        run,
        rounds=rounds,
        clients=None if clients is None else parse_clients(clients, list_clients(run)),
        width_in=parse_width(width),
        height_in=None if height is None else parse_width(height, "height"),
        points=parse_points(font_size),
        capacities=_find_capacities(run, at),
    )
    save_picture(figure, path)


def _find_capacities(run: Run, at: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Return how links' capacities step, where they vary: link → (instants, bytes/s).

    Only then is the network built anew.
    """
    groups = run.scenario.get("clients", [])
    rates = [group.get("link") for group in groups], run.scenario.get("network")
    if "'end':" not in repr(rates) and not run.scenario.get("faults"):
        return {}
    from simfed.experiment.capacities import capacities_of

    return capacities_of(run, at)


def _choose_format(asked: str | None, out: Path | None) -> str:
    """Return the format asked for, else that of the file's ending, else `png`.

    Raises:
        InputError: there is no such format, or the file's ending says another.
    """
    if asked is None:
        suffixes = {suffix: name for name, suffix in _FORMATS.items()}
        ending = out.name.lower() if out is not None else ""
        fitting = [name for suffix, name in suffixes.items() if ending.endswith(suffix)]
        if out is not None and not fitting:
            raise InputError(
                f"a file that ends in {listed(suffixes)}", where="--out", got=out.name
            )
        return fitting[0] if fitting else "png"
    check_known(asked, _FORMATS, where="--format")
    if out is not None and not out.name.lower().endswith(_FORMATS[asked]):
        raise InputError(
            f"a file that ends in {_FORMATS[asked]}", where="--out", got=out.name
        )
    return asked
