"""What came out of methods tuned alike: the tables and the figure of METHODS.md, which
this script makes from the kept rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from methods_tuned import (
    BUDGETS,
    CLIP_SEEDS,
    CLIPPED,
    DATA,
    DIVERGED,
    FEWEST_SEEDS,
    MEASURES,
    OWN,
    REPORTED,
    ROWS,
    Family,
    at_budgets,
    family_table,
    judge,
    measure_of,
    p_value,
    reported,
    settings_of,
    tried,
)
from orders import holm
from pages import markdown, write_page

from simfed.report.pictures import picture_style, save_picture
from simfed.report.statistics import Estimate, estimate_mean
from simfed.report.style import SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
PAGE, FIGURE = HERE / "METHODS.md", HERE / "figures" / "methods-tuned.png"
_NAMED = 8
"""Whoever is ahead of more is ahead of all but the others."""
_SHORT = {
    "training.learning_rate": "rate",
    "training.local_steps": "steps",
    "distillation.learning_rate": "distillation rate",
    "distillation.steps": "distillation steps",
}


def read_rows() -> pd.DataFrame:
    rows: pd.DataFrame = pd.read_parquet(ROWS)
    return rows


def seeds_line(rows: pd.DataFrame, families: Sequence[Family]) -> str:
    """Over how many seeds, how many pairs are told apart, and who diverged."""
    seeds = reported(rows)["seed"].nunique()
    told = sum(pair.told for family in families for pair in family.pairs)
    pairs = sum(len(family.pairs) for family in families)
    enough = "" if seeds >= FEWEST_SEEDS else f" ({FEWEST_SEEDS} are needed)"
    return (
        f"**Over {seeds} of {len(REPORTED)} seeds{enough} {told} of {pairs:,} "
        f"comparisons are told "
        f"apart.** Runs that diverged, and count as guesses: {diverged(rows)}."
    )


def diverged(rows: pd.DataFrame) -> str:
    """Runs that report and diverged, by method and data set."""
    there = rows[rows["seed"].isin(reported(rows)["seed"].unique())]
    lost = there[(there["at_s"] == DIVERGED["at_s"]) & (there["moved_bytes"] == 0)]
    counts = lost.groupby(["data", "method"], sort=False)["seed"].nunique()
    return (
        ", ".join(f"{n} of {method} ({data})" for (data, method), n in counts.items())
        or "none"
    )


Estimates = dict[tuple[str, str, str], Estimate]
"""Method, measure and budget → accuracy in percent, with its interval over seeds."""


def estimates(rows: pd.DataFrame, data: str) -> tuple[Estimates, dict[str, float]]:
    """What every method came to on a data set, and the MB that it moved in the equal
    seconds.
    """
    ends = reported(rows)
    by = ends[ends["data"] == data].groupby(["method", "budget"])
    accuracies = {
        (method, measure, budget): estimate_mean((100 * one[measure]).tolist())
        for (method, budget), one in by
        for measure in MEASURES
    }
    moved = {
        method: one["moved_bytes"].mean() / 1e6
        for (method, b), one in by
        if b == BUDGETS[0]
    }
    return accuracies, moved


def accuracy_table(rows: pd.DataFrame, data: str) -> str:
    """Of every method: both accuracies at both budgets, with intervals over seeds, and
    MB moved.
    """
    accuracies, moved = estimates(rows, data)
    heads = [
        (f"{words}, equal {budget}")
        for words in MEASURES.values()
        for budget in BUDGETS
    ]
    lines = [["method", *heads, "MB moved in the seconds"]]
    for method in OWN:
        cells = [
            _percent(accuracies[method, m, budget])
            for m in MEASURES
            for budget in BUDGETS
        ]
        lines.append([method, *cells, f"{moved[method]:.3g}"])
    return markdown(lines)


def _percent(estimate: Estimate) -> str:
    within = (
        f" [{estimate.low:.1f}, {estimate.high:.1f}]"
        if np.isfinite(estimate.low)
        else ""
    )
    return f"{estimate.least:.1f}{within}"


def apart_table(families: Sequence[Family], data: str, measure: str) -> str:
    """Of every method, the best at equal seconds first: whom it is clearly ahead of."""
    both = {f.budget: f for f in families if (f.data, f.measure) == (data, measure)}
    lines = [["method", *(f"ahead of, equal {budget}" for budget in BUDGETS)]]
    for method in both["seconds"].means.index:
        lines.append(
            [
                method,
                *(_names(both[budget].behind(method), method) for budget in BUDGETS),
            ]
        )
    return markdown(lines)


def tally_table(families: Sequence[Family]) -> str:
    """Of every method, in how many comparisons it is clearly ahead, clearly behind, and
    neither.
    """
    lines = [["method", "ahead", "behind", "not told apart"]]
    for method in OWN:
        mine = [
            p for family in families for p in family.pairs if method in (p.one, p.other)
        ]
        ahead = sum(len(family.behind(method)) for family in families)
        told = sum(pair.told for pair in mine)
        lines.append([method, str(ahead), str(told - ahead), str(len(mine) - told)])
    return markdown(lines)


def _names(behind: Sequence[str], method: str) -> str:
    """Name the methods behind one.

    >>> _names(["fedopt", "fedmd"], "fedavg"), _names([], "fedavg")
    ('fedopt, fedmd', '–')
    >>> _names([one for one in OWN if one not in ("fedavg", "fedmd")], "fedavg")
    'all but fedmd'
    """
    rest = [other for other in OWN if other != method and other not in behind]
    if not rest:
        return "all"
    return (
        f"all but {', '.join(rest)}"
        if len(behind) > _NAMED
        else ", ".join(behind) or "–"
    )


def clip_table(rows: pd.DataFrame, clipped: pd.DataFrame) -> str:
    """By how many points the same clip changes each method's accuracy, as its paper
    measures it; in bold what stays clear beside all others (Holm).
    """
    gaps = clip_gaps(rows, clipped)
    told = dict(zip(gaps, holm([p_value(gap) for gap in gaps.values()]), strict=True))
    columns = list(dict.fromkeys((data, budget) for _, data, budget in gaps))
    lines = [["method", *(f"{data}, equal {budget}" for data, budget in columns)]]
    for method in dict.fromkeys(method for method, *_ in gaps):
        cells = []
        for key in ((method, *column) for column in columns):
            if key in gaps:
                estimate = estimate_mean((100 * gaps[key]).tolist())
                text = (
                    f"{estimate.least:+.1f} [{estimate.low:+.1f}, {estimate.high:+.1f}]"
                )
                cells.append(f"**{text}**" if told[key] else text)
            else:
                cells.append("not played")
        lines.append([method, *cells])
    return markdown(lines)


def clip_gaps(
    rows: pd.DataFrame, clipped: pd.DataFrame
) -> dict[tuple[str, str, str], pd.Series]:
    """Method, data set and budget → accuracy with the clip less that without, by seed.

    Of those that were played under all seeds.
    """
    keys = ["method", "data", "budget", "seed"]
    with_clip, without = (
        ends.set_index(keys).sort_index()
        for ends in (at_budgets(clipped), reported(rows))
    )
    both = (with_clip - without).dropna()
    gaps = {
        (method, data, budget): both[measure_of(method)].loc[method, data, budget]
        for data in DATA
        for budget in BUDGETS
        for method in OWN
        if (method, data, budget) in both.index
    }
    return {key: gap for key, gap in gaps.items() if len(gap) == len(CLIP_SEEDS)}


def setting_table(rows: pd.DataFrame) -> str:
    """Return what was chosen for every method, of eight settings each, and how many
    points the second best was behind.
    """
    ordered = tried(rows)
    lines = [["method", *(word for data in DATA for word in (data, "second best"))]]
    for method in OWN:
        line = [method]
        for data in DATA:
            best, second = ordered[data, method].iloc[:2]
            chosen = int(ordered[data, method].index[0])
            line += [_setting(method, chosen), f"{100 * (second - best):+.1f}"]
        lines.append(line)
    return markdown(lines)


def _setting(method: str, chosen: int) -> str:
    setting = settings_of(method)[chosen]
    names = {
        key: _SHORT.get(key, key.partition(".")[2].replace("_", " ")) for key in setting
    }
    return ", ".join(f"{names[key]} {value}" for key, value in setting.items())


@picture_style()
def methods_figure(rows: pd.DataFrame) -> Figure:
    """Accuracy of every method at equal seconds and at equal bytes, by data set and
    measure.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = [(data, measure) for data in DATA for measure in MEASURES]
    all_axes = figure.subplots(1, len(panels), sharey=True)
    for letter, axes, (data, measure) in zip("abcd", all_axes, panels, strict=True):
        accuracies, _ = estimates(rows, data)
        for budget, colour, mark, lower in zip(
            BUDGETS, SERIES_COLOURS, "os", (-0.17, 0.17), strict=False
        ):
            for y, method in enumerate(OWN):
                value = accuracies[method, measure, budget]
                label = f"equal {budget}" if not y else None
                axes.plot(
                    [value.low, value.high],
                    [y + lower] * 2,
                    color=colour,
                    lw=1.6,
                    alpha=0.5,
                )
                axes.plot(value.least, y + lower, mark, color=colour, ms=3, label=label)
        axes.set_title(f"{letter}  {data}: {MEASURES[measure]}", loc="left", fontsize=7)
        axes.set_xlabel("percent right")
        axes.grid(axis="y", color="black", alpha=0.1, lw=0.4)
    all_axes[0].set_yticks(range(len(OWN)), list(OWN), fontsize=6.5)
    all_axes[0].set_ylim(len(OWN) - 0.4, -0.6)
    all_axes[2].legend(frameon=False, fontsize=6, loc="lower right")
    return figure


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    rows = read_rows()
    families = judge(rows)
    parts = {"seeds": seeds_line(rows, families), "families": family_table(families)}
    parts["tally"] = tally_table(families)
    for data in DATA:
        parts[f"accuracies on {data}"] = accuracy_table(rows, data)
        for measure, words in MEASURES.items():
            parts[f"apart on {data}, {words}"] = apart_table(families, data, measure)
    clipped = pd.read_parquet(CLIPPED) if CLIPPED.exists() else None
    parts[("the same clip")] = (
        "Not played yet." if clipped is None else clip_table(rows, clipped)
    )
    return {**parts, "settings": setting_table(rows)}


if __name__ == "__main__":
    write_page("methods_page")
    save_picture(methods_figure(read_rows()), FIGURE, dpi=180)
