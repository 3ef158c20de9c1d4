"""A round on a GPU: what docs/learning-engine.md quotes.

    python analysis/benchmarks/learning.py mnist --device cuda
    python analysis/pages.py gpu_table

What the first prints is typed into gpu_rows.csv.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from pages import markdown

HERE = Path(__file__).resolve().parent
ROWS = HERE / "gpu_rows.csv"
PAGE = HERE.parent / "docs" / "learning-engine.md"


def page_parts() -> dict[str, str]:
    """Return the table of rounds."""
    rows = pd.read_csv(ROWS)
    table: list[tuple[str, ...]] = [("", "ms per round, best", "median", "device busy")]
    for player, mine in rows.groupby("player", sort=False):
        spans = [_span(mine[name]) for name in ("best_ms", "median_ms")]
        busy = _span(100 * mine["busy"])
        table.append((str(player), *spans, f"{busy} %"))
    return {"gpu rounds": markdown(table)}


def _span(values: pd.Series[float]) -> str:
    least, most = round(values.min()), round(values.max())
    return f"{least}" if least == most else f"{least}–{most}"
