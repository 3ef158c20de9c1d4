"""A round on a GPU: what docs/learning.md quotes.

    python analysis/benchmarks/learning.py mnist --device cuda
    python analysis/pages.py gpu_table

What the first prints is typed into gpu_rows.csv. The runs of CIFAR-10 are those of
analysis/paper.parquet that a GPU computed; their wall times say how long a round took.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from pages import markdown

HERE = Path(__file__).resolve().parent
ROWS, RUNS = HERE / "gpu_rows.csv", HERE / "paper.parquet"
PAGE = HERE.parent / "docs" / "learning.md"


def page_parts() -> dict[str, str]:
    """The table of rounds, and what the runs of CIFAR-10 took."""
    rows = pd.read_csv(ROWS)
    table: list[tuple[str, ...]] = [("", "ms per round, best", "median", "device busy")]
    for player, mine in rows.groupby("player", sort=False):
        spans = [_span(mine[name]) for name in ("best_ms", "median_ms")]
        busy = _span(100 * mine["busy"])
        table.append((str(player), *spans, f"{busy} %"))
    return {"gpu rounds": markdown(table), "gpu runs": _of_runs()}


def _span(values: pd.Series[float]) -> str:
    least, most = round(values.min()), round(values.max())
    return f"{least}" if least == most else f"{least}–{most}"


def _of_runs() -> str:
    runs = pd.read_parquet(RUNS, columns=["device", "wall_s", "rounds"])
    runs = runs[runs["device"] == "cuda"]
    seconds = runs["wall_s"] / runs["rounds"]
    return (
        f"{len(runs)} runs of `scenarios/paper/cifar10-k.yaml` at once, under NVIDIA's MPS, took "
        f"{seconds.min():.2f} to {seconds.max():.2f} s a round each, {(1 / seconds).sum():.1f} "
        "rounds a second in all, evaluation after every tenth included."
    )
