"""`simfed compare`: a simulation held against its deployment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simfed.cli.calibrate import parse_share
from simfed.ground.errors import BrokenInvariant, InputError

if TYPE_CHECKING:
    import pandas as pd


def compare(
    simulated: Annotated[
        Path, typer.Argument(metavar="SIMULATED", help="Run directory, or a folder of them.")
    ],
    real: Annotated[
        Path, typer.Argument(metavar="REAL", help="Run directory, `deployed`, or a folder.")
    ],
    bound: Annotated[
        str | None,
        typer.Option(
            metavar="5%", help="Exit code 3 where makespan or the median round is further off."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Page (HTML) with both timelines on one scale.")
    ] = None,
) -> None:
    """How far a simulation is from reality: per phase, client and round, and why.

    Two simulations, or two deployments, are called by the names of their folders.

    Of two folders with a folder per configuration, whether their orders are the same.
    """
    from simfed.deploy.fidelity import fidelity
    from simfed.record.read import open_run

    most = None if bound is None else parse_share(bound, "--bound")
    if _has_runs(simulated) and _has_runs(real):
        if most is not None or out is not None:
            option = "--bound" if most is not None else "--out"
            raise InputError(where=option, problem="of two runs alone, not of folders of them")
        _compare_orders(simulated, real)
        return
    ours, theirs = open_run(simulated), open_run(real)
    comparison = fidelity(ours, theirs, _name_sides(simulated, real))
    _print_frames(comparison.heads, comparison.phases, comparison.clients)
    for sentence in comparison.sentences():
        print(sentence)
    if out is not None:
        from simfed.deploy.fidelity_page import write_fidelity

        print(write_fidelity(comparison, ours, theirs, out))
    if most is not None and (beyond := comparison.beyond(most)):
        raise BrokenInvariant("\n".join(f"{simulated}: {sentence}" for sentence in beyond))


def _has_runs(folder: Path) -> bool:
    """Whether run directories lie in the folder, itself none."""
    if not folder.is_dir() or (folder / "manifest.json").is_file():
        return False
    return any(folder.glob("*/manifest.json")) or any(folder.glob("*/*/manifest.json"))


def _compare_orders(simulated: Path, real: Path) -> None:
    from simfed.study.orders import compare_orders, read_configurations

    try:
        orders = compare_orders(read_configurations(simulated), read_configurations(real))
    except InputError as error:
        raise error if error.where else error.within(f"{simulated} and {real}") from None
    table, names = orders.table, _name_sides(simulated, real)
    if names is not None:
        heads = [f"{name}_{what}" for what in ("s", "rank") for name in names]
        table = table.set_axis(["configuration", *heads], axis="columns")
    print(table.to_string(index=False, float_format=lambda number: f"{number:.4g}"))
    print()
    for sentence in orders.sentences("reality" if names is None else names[1]):
        print(sentence)


def _name_sides(first: Path, second: Path) -> tuple[str, str] | None:
    """What two runs, or folders of runs, are called; None for simulations and deployments."""
    if not _are_deployed(first) and _are_deployed(second):
        return None
    names = first.resolve().name, second.resolve().name
    return names if names[0] != names[1] else ("the first", "the second")


def _are_deployed(folder: Path) -> bool:
    from simfed.record.read import read_manifest

    manifests = (m for depth in ("", "*/", "*/*/") for m in folder.glob(f"{depth}manifest.json"))
    return read_manifest(next(manifests).parent).get("mode") == "deployed"


def _print_frames(heads: tuple[str, str], *frames: pd.DataFrame) -> None:
    from rich.console import Console
    from rich.table import Table

    from simfed.deploy.fidelity_page import spell_out

    for frame in (spell_out(frame, heads) for frame in frames):
        table = Table(box=None, pad_edge=False)
        for number, name in enumerate(frame.columns):
            table.add_column(name, justify="right" if number else "left")
        for row in frame.itertuples(index=False, name=None):
            table.add_row(*row)
        Console().print(table)
        print()
