"""`simfed export`: a run for TensorBoard, MLflow or a spreadsheet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simfed.cli.inspect import Runs
from simfed.ground.errors import check_known

_WHERE = {"csv": "curves.csv", "tensorboard": "tensorboard", "mlflow": "mlruns"}


def export(
    runs: Runs,
    to: Annotated[
        str, typer.Option(metavar="csv|tensorboard|mlflow", help="For what.")
    ],
    out: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="File or folder to write, or MLflow's tracking address; curves.csv, "
            "tensorboard/ "
            "or mlruns/ in the run directory (several: here) if omitted.",
        ),
    ] = None,
) -> None:
    """Write curves for other tools: CSV, TensorBoard, MLflow.

    A step is a round, and simulated seconds are a curve.
    """
    from simfed.record.read import open_run
    from simfed.report import export as exporting
    from simfed.report.frames import label_runs

    check_known(to, _WHERE, where="--to")
    opened = [open_run(run) for run in runs]
    named = dict(zip(label_runs(opened), opened, strict=True))
    folder = runs[0] if len(runs) == 1 else Path()
    path = out if out is not None else str(folder / _WHERE[to])
    if to == "csv":
        typer.echo(exporting.write_csv(named, Path(path)))
    elif to == "tensorboard":
        folder = exporting.write_tensorboard(named, Path(path))
        typer.echo(f"tensorboard --logdir {folder}")
    else:
        address = exporting.write_mlflow(named, path)
        allowed = "MLFLOW_ALLOW_FILE_STORE=true " if address.startswith("file:") else ""
        typer.echo(f"{allowed}mlflow ui --backend-store-uri {address}")
