"""`simfed compare`: a simulation held against its deployment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simfed.cli.calibrate import parse_share
from simfed.cli.terminal import print_columns
from simfed.ground.errors import BrokenInvariant

if TYPE_CHECKING:
    import pandas as pd


def compare(
    simulated: Annotated[
        Path, typer.Argument(metavar="SIMULATED", help="Run directory.")
    ],
    real: Annotated[
        Path, typer.Argument(metavar="REAL", help="Run directory, `deployed`.")
    ],
    bound: Annotated[
        str | None,
        typer.Option(
            metavar="5%",
            help="Exit code 3 where makespan or the median round is further off.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Page (HTML) with both timelines on one scale.")
    ] = None,
) -> None:
    """Compare a simulation with reality, and say why they differ.

    Per phase, client and round. Two simulations, or two deployments, are called by the
    names of their folders.
    """
    from simfed.deploy.fidelity import fidelity
    from simfed.record.read import open_run

    most = None if bound is None else parse_share(bound, "--bound")
    ours, theirs = open_run(simulated), open_run(real)
    comparison = fidelity(ours, theirs, _name_sides(simulated, real))
    _print_frames(comparison.heads, comparison.phases, comparison.clients)
    for sentence in comparison.sentences():
        print(sentence)
    if out is not None:
        from simfed.deploy.fidelity_page import write_fidelity

        print(write_fidelity(comparison, ours, theirs, out))
    if most is not None and (beyond := comparison.beyond(most)):
        raise BrokenInvariant(
            "\n".join(f"{simulated}: {sentence}" for sentence in beyond)
        )


def _name_sides(first: Path, second: Path) -> tuple[str, str] | None:
    """Return what two runs are called; None for a simulation and its deployment."""
    if not _are_deployed(first) and _are_deployed(second):
        return None
    names = first.resolve().name, second.resolve().name
    return names if names[0] != names[1] else ("the first", "the second")


def _are_deployed(folder: Path) -> bool:
    """Return whether the run in a folder is one of real clients."""
    from simfed.record.read import read_manifest

    return read_manifest(folder).get("mode") == "deployed"


def _print_frames(heads: tuple[str, str], *frames: pd.DataFrame) -> None:
    """Print tables of a comparison, with the sides' names in their headers."""
    from simfed.deploy.fidelity_page import spell_out

    for frame in (spell_out(frame, heads) for frame in frames):
        print_columns([*frame.columns], [*frame.itertuples(index=False, name=None)])
        print()
