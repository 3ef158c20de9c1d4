"""What came out of methods tuned alike: the tables of METHODS.md, from the kept rows.

python analysis/pages.py methods_page
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from methods_tuned import (
    BUDGETS,
    DATA,
    DIVERGED,
    FEWEST_SEEDS,
    MEASURES,
    OWN,
    REPORTED,
    ROWS,
    Family,
    choices,
    family_table,
    judge,
    reported,
    settings_of,
)
from pages import markdown

from simfed.report.statistics import mean_interval

PAGE = Path(__file__).resolve().parent / "METHODS.md"
_NAMED = 8
"""Whoever is ahead of more is ahead of all but the others."""
_SHORT = {
    "training.learning_rate": "rate",
    "training.local_steps": "steps",
    "distillation.learning_rate": "distillation rate",
    "distillation.steps": "distillation steps",
}


def read_rows() -> pd.DataFrame:
    """The kept rows."""
    rows: pd.DataFrame = pd.read_parquet(ROWS)
    return rows


def seeds_line(rows: pd.DataFrame, families: Sequence[Family]) -> str:
    """Over how many seeds, how many pairs are told apart, and who diverged."""
    seeds = reported(rows)["seed"].nunique()
    told = sum(pair.told for family in families for pair in family.pairs)
    pairs = sum(len(family.pairs) for family in families)
    enough = "" if seeds >= FEWEST_SEEDS else f" ({FEWEST_SEEDS} are needed)"
    return (
        f"**Over {seeds} of {len(REPORTED)} seeds{enough} {told} of {pairs:,} comparisons are told "
        f"apart.** Runs that diverged, and count as guesses: {diverged(rows)}."
    )


def diverged(rows: pd.DataFrame) -> str:
    """Runs that report and diverged, by method and data set."""
    there = rows[rows["seed"].isin(reported(rows)["seed"].unique())]
    lost = there[(there["at_s"] == DIVERGED["at_s"]) & (there["moved_bytes"] == 0)]
    counts = lost.groupby(["data", "method"], sort=False)["seed"].nunique()
    return ", ".join(f"{n} of {method} ({data})" for (data, method), n in counts.items()) or "none"


def accuracy_table(rows: pd.DataFrame, data: str) -> str:
    """Of every method: both accuracies at both budgets, with intervals over seeds, and MB moved."""
    ends = reported(rows)
    ends = ends[ends["data"] == data]
    heads = [f"{words}, equal {budget}" for words in MEASURES.values() for budget in BUDGETS]
    lines = [["method", *heads, "MB moved in the seconds"]]
    for method in OWN:
        of = {
            budget: ends[(ends["method"] == method) & (ends["budget"] == budget)]
            for budget in BUDGETS
        }
        cells = [_percent(of[budget][measure]) for measure in MEASURES for budget in BUDGETS]
        moved = of["seconds"]["moved_bytes"].mean() / 1e6
        lines.append([method, *cells, f"{moved:.3g}"])
    return markdown(lines)


def _percent(shares: pd.Series) -> str:
    of = mean_interval((100 * shares).tolist())
    within = f" [{of.low:.1f}, {of.high:.1f}]" if np.isfinite(of.low) else ""
    return f"{of.least:.1f}{within}"


def apart_table(families: Sequence[Family], data: str, measure: str) -> str:
    """Of every method, the best at equal seconds first: whom it is clearly ahead of."""
    of = {f.budget: f for f in families if (f.data, f.measure) == (data, measure)}
    lines = [["method", *(f"ahead of, equal {budget}" for budget in BUDGETS)]]
    for method in of["seconds"].means.index:
        lines.append([method, *(_names(of[budget].behind(method), method) for budget in BUDGETS)])
    return markdown(lines)


def _names(behind: Sequence[str], method: str) -> str:
    """
    >>> _names(["fedopt", "fedmd"], "fedavg"), _names([], "fedavg")
    ('fedopt, fedmd', '–')
    >>> _names([one for one in OWN if one not in ("fedavg", "fedmd")], "fedavg")
    'all but fedmd'
    """
    rest = [other for other in OWN if other != method and other not in behind]
    if not rest:
        return "all"
    return f"all but {', '.join(rest)}" if len(behind) > _NAMED else ", ".join(behind) or "–"


def setting_table(rows: pd.DataFrame) -> str:
    """What was chosen for every method, of eight settings each."""
    best = choices(rows)
    lines = [["method", *DATA]]
    for method in OWN:
        lines.append([method, *(_setting(method, best[data, method]) for data in DATA)])
    return markdown(lines)


def _setting(method: str, chosen: int) -> str:
    setting = settings_of(method)[chosen]
    names = {key: _SHORT.get(key, key.partition(".")[2].replace("_", " ")) for key in setting}
    return ", ".join(f"{names[key]} {value}" for key, value in setting.items())


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    rows = read_rows()
    families = judge(rows)
    parts = {"seeds": seeds_line(rows, families), "families": family_table(families)}
    for data in DATA:
        parts[f"accuracies on {data}"] = accuracy_table(rows, data)
        for measure, words in MEASURES.items():
            parts[f"apart on {data}, {words}"] = apart_table(families, data, measure)
    return {**parts, "settings": setting_table(rows)}
