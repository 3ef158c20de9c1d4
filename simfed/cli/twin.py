"""`simfed twin`: a scenario fitted to a log."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from simfed.ground.errors import InputError, within
from simfed.ground.units import counted


def twin(
    log: Annotated[
        Path, typer.Argument(metavar="LOG.csv", help="Who did what from when to when.")
    ],
    out: Annotated[
        Path, typer.Option(help="Scenario to write; its table lies beside it.")
    ],
    rounds: Annotated[
        str | None,
        typer.Option(metavar="A:B", help="Rounds to fit; if omitted the later ones."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="In place of the logged one; if omitted of nearest size."),
    ] = None,
    predict: Annotated[
        int | None,
        typer.Option(metavar="N", help="Say how long N further rounds take."),
    ] = None,
) -> None:
    """Fit devices, links and server to the log of anybody's run.

    The scenario that comes out runs.
    """
    from simfed.calibrate.twin import fit_twin
    from simfed.calibrate.twin_log import read_log
    from simfed.experiment.running import run
    from simfed.report.timeline import parse_rounds

    if predict is not None and predict < 1:
        raise InputError("a number of rounds", where="--predict", got=predict)
    if out.suffix not in (".yaml", ".yml"):
        raise InputError("a file that ends with .yaml", where="--out", got=str(out))
    rows = read_log(log)
    chosen = (
        None if rounds is None else parse_rounds(rounds, max(row.round for row in rows))
    )
    with within(str(log)):
        fitted = fit_twin(rows, chosen)
    further = None if predict is None else fitted.predict(predict)
    paths = fitted.write(out, model=model, source=log.name)
    played = run(out, time_only=True, progress=False)
    print(fitted.describe_rounds())
    clients = counted(len(fitted.clients), "client")
    scatter = f"{100 * fitted.work_cv:.3g} % from round to round"
    print(f"work {fitted.work_s:.4g} s (mean of {clients}; scatter {scatter})")
    server_s, scatter = fitted.server, f"{100 * fitted.server_cv:.3g} %"
    # to the nanosecond: what equal rounds differ by is the arithmetic's
    margin = "" if math.isnan(server_s.error) else f" ± {round(server_s.error, 9):.2g}"
    print(f"server {server_s.value:.4g}{margin} s a round (scatter {scatter})")
    for phase, watts in fitted.power_w.items():
        print(f"{phase} {watts:.4g} W")
    for sentence in fitted.untold:
        print(sentence)
    mean_s = float(played.rounds["duration_s"].mean())
    logged_s = float(fitted.rounds_s.mean())
    off = round(100 * (mean_s / logged_s - 1), 2) + 0.0  # never -0.00
    print(f"played: {mean_s:.4g} s a round, {off:+.2f} %")
    if further is not None:
        interval = f"90 %: {further.low_s:.4g} to {further.high_s:.4g} s"
        print(f"next {predict} rounds: {further.mean_s:.4g} s each ({interval})")
    print("written: " + ", ".join(map(str, paths)))
