"""A round on a GPU: what docs/learning.md quotes.

    python analysis/benchmarks/learning.py mnist --device cuda
    python analysis/pages.py gpu_table

What the first prints is typed into gpu_rows.csv. The runs of CIFAR-10 are those of
analysis/paper/runs that a GPU computed; their wall times say how long a round took.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
from pages import markdown

ROOT = Path(__file__).resolve().parents[1]
ROWS, RUNS = Path(__file__).with_name("gpu_rows.csv"), ROOT / "analysis" / "paper" / "runs"
PAGE = ROOT / "docs" / "learning.md"


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
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RUNS.glob("*.json"))]
    runs = [one for one in runs if one["made_with"]["device"] == "cuda"]
    seconds = pd.Series([one["cost"]["wall_s"] / one["setting"]["rounds"] for one in runs])
    return (
        f"{len(runs)} runs of `scenarios/paper/cifar10-k.yaml` at once, under NVIDIA's MPS, took "
        f"{seconds.min():.2f} to {seconds.max():.2f} s a round each, {(1 / seconds).sum():.1f} "
        "rounds a second in all, evaluation after every tenth included."
    )
