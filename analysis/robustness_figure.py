"""Merging rules against attackers: the picture and the table of docs/robustness.md.

    python analysis/robustness_figure.py [--model lenet5-half] [--jobs 2]
        [--seeds 5] [--draw-only]

Every rule meets every attacker at 10 and at 30 % of twenty clients, on the scenario of
`simfed new robust`, with attackers from round 1 on. A row per run is kept in
analysis/robustness_rows.csv, and what is there is not run again: stop it at any time.
Five seeds take about five minutes on two quiet cores with logistic regression, half an
hour with a LeNet-5 of half width. Then the picture is drawn
(docs/images/robustness.png; with another model robustness-MODEL.png) and the table
printed: means over seeds with Student's t intervals (95 %), and each rule's worst case,
the attacker that leaves it the least accuracy. Rules are told the true number of
attackers. Cells that a rule's theorem leaves undefined (Bulyan needs 4f + 3 uploads)
are printed so. Runs at nice 19.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from pages import markdown, write_page

import simfed
from simfed.ground.errors import InputErrors
from simfed.report.pictures import picture_style, save_picture
from simfed.report.statistics import compute_half_width, estimate_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "simfed" / "templates" / "robust" / "robust.yaml"
ROWS = Path(__file__).with_name("robustness_rows.csv")
_FEWEST = 3
"""Seeds of an interval: two span 13 standard errors."""
PAGE = ROOT / "docs" / "robustness.md"
PICTURES = ROOT / "docs" / "images"
MODELS = ("logistic-regression", "lenet5-half")
CLIENTS = 20
SHARES = (0.1, 0.3)
RULES = (
    "mean", "norm-bound", "median", "trimmed-mean", "geometric-median",
    "krum", "multi-krum", "bulyan",
)  # fmt: skip
ATTACKS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "label-flip": {"kind": "label-flip"},
    "sign-flip": {"kind": "sign-flip", "scale": 5},
    "gaussian": {"kind": "gaussian", "scale": 10},
    "alie": {"kind": "alie"},
    "ipm": {"kind": "ipm", "scale": 0.5},
    "backdoor": {"kind": "backdoor", "scale": 5},
}
BOUND = 0.5
"""S of `norm-bound`: half of the honest updates are longer than 0.4 to 0.9 after round
1."""


class Cell(NamedTuple):
    model: str
    seed: int
    share: float
    rule: str
    attack: str


def cells(seeds: int, model: str = MODELS[0]) -> Iterator[Cell]:
    """All runs of a model, seed by seed."""
    for seed in range(seeds):
        for share in SHARES:
            for attack in ATTACKS:
                yield from (Cell(model, seed, share, rule, attack) for rule in RULES)


def options_of(rule: str, share: float) -> dict[str, Any]:
    """The rule as a scenario writes it, for this share of attackers."""
    hostile = round(share * CLIENTS)
    options: dict[str, dict[str, Any]] = {
        "norm-bound": {"bound": BOUND},
        "trimmed-mean": {"share": share},
        **{kind: {"f": hostile} for kind in ("krum", "multi-krum", "bulyan")},
    }
    return {"kind": rule, **options.get(rule, {})}


def is_defined(cell: Cell) -> bool:
    """Whether there are enough uploads for the rule."""
    return cell.rule != "bulyan" or 4 * round(cell.share * CLIENTS) + 3 <= CLIENTS


def run(cell: Cell) -> dict[str, Any]:
    """The row of one run."""
    hostile = round(cell.share * CLIENTS)
    overrides = {
        "seed": cell.seed,
        "prototypes.net.model": cell.model,
        "aggregation.rule": options_of(cell.rule, cell.share),
        "clients[0].count": CLIENTS - hostile,
        "clients[1].count": hostile,
        "clients[1].attack": ATTACKS[cell.attack],
        "evaluation.every": 40,
    }
    row = {**cell._asdict(), "accuracy": "", "attack_success": "", "server_ms": ""}
    if not is_defined(cell):
        try:
            simfed.load_scenario(BASE, overrides)
        except InputErrors:
            return row
        raise AssertionError(f"{cell} is not refused")
    result = simfed.run(simfed.load_scenario(BASE, overrides), progress=False)
    last = result.prototypes.iloc[-1]
    row["accuracy"] = round(float(last["test_accuracy"]), 4)
    if "attack_success" in last:
        row["attack_success"] = round(float(last["attack_success"]), 4)
    row["server_ms"] = round(1e3 * float(result.rounds["server_s"].mean()), 4)
    return row


def run_all(jobs: int, seeds: int, model: str = MODELS[0]) -> None:
    """Run what is not kept yet; each row is written as it comes."""
    there = (
        set(read_rows(model).set_index(list(Cell._fields)).index)
        if ROWS.exists()
        else set()
    )
    missing = [cell for cell in cells(seeds, model) if tuple(cell) not in there]
    with ProcessPoolExecutor(jobs, get_context("spawn"), os.nice, (19,)) as pool:
        for done in as_completed([pool.submit(run, cell) for cell in missing]):
            row, is_new = done.result(), not ROWS.exists()
            with ROWS.open("a", newline="") as file:
                writer = csv.DictWriter(file, row, lineterminator="\n")
                if is_new:
                    writer.writeheader()
                writer.writerow(row)


def read_rows(model: str = MODELS[0]) -> pd.DataFrame:
    """What is kept of a model, in the order of `cells`."""
    rows = pd.read_csv(ROWS)
    rows = rows[rows["model"] == model]
    seeds = 0 if rows.empty else 1 + int(rows["seed"].max())
    rank = {cell: place for place, cell in enumerate(cells(seeds, model))}
    places = [
        rank[Cell(*key)] for key in rows[list(Cell._fields)].itertuples(index=False)
    ]
    return rows.assign(place=places).sort_values("place").drop(columns="place")


def means(
    rows: pd.DataFrame, share: float, column: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rules × attackers: means over seeds, and half the width of their intervals.

    NaN where a rule is undefined.
    """
    middle = pd.DataFrame(index=RULES, columns=list(ATTACKS), dtype=float)
    half = middle.copy()
    for (rule, attack), cell in rows[rows["share"] == share].groupby(
        ["rule", "attack"]
    ):
        values = cell[column].dropna().tolist()
        middle.loc[rule, attack] = estimate_mean(values).exact
        if len(values) >= _FEWEST:
            half.loc[rule, attack] = compute_half_width(values)
    return middle, half


def worst_of(accuracy: pd.DataFrame) -> pd.Series:
    """Per rule the least accuracy under any attacker; NaN where it is undefined."""
    return accuracy.drop(columns="none").min(axis=1, skipna=False)


def draw(rows: pd.DataFrame) -> Figure:
    """Accuracy of every rule under every attacker, the worst case last, for both
    shares.
    """
    with picture_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.2, 5.6), layout="constrained")
        panels = figure.subplots(len(SHARES), 1)
        figure.supxlabel(
            "accuracy after 40 rounds, %; in brackets the marked images that the "
            "backdoor gets through, %",
            size=7,
        )
        for axes, share in zip(panels, SHARES, strict=True):
            accuracy, _ = means(rows, share, "accuracy")
            success, _ = means(rows, share, "attack_success")
            shown = accuracy.assign(worst=worst_of(accuracy))
            values = 100 * shown.to_numpy()
            axes.imshow(
                values, cmap="RdYlBu", vmin=0, vmax=100, aspect="auto", alpha=0.75
            )
            for (y, x), value in np.ndenumerate(values):
                text = _none_of(RULES[y], share) if np.isnan(value) else f"{value:.0f}"
                if shown.columns[x] == "backdoor" and not np.isnan(value):
                    text += f"  ({100 * success.loc[RULES[y], 'backdoor']:.0f})"
                grey, weight = (
                    ("#777777", "normal") if np.isnan(value) else ("black", "bold")
                )
                weight = weight if shown.columns[x] == "worst" else "normal"
                axes.text(
                    x,
                    y,
                    text,
                    ha="center",
                    va="center",
                    color=grey,
                    weight=weight,
                    size=7,
                )
            axes.set_xticks(range(values.shape[1]), [*ATTACKS, "worst case"])
            axes.set_yticks(range(len(RULES)), RULES)
            axes.axvline(len(ATTACKS) - 0.5, color="white", linewidth=4)
            axes.axvline(0.5, color="white", linewidth=2)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            hostile = round(share * CLIENTS)
            axes.set_title(f"{hostile} of {CLIENTS} clients are hostile", loc="left")
    return figure


def table(rows: pd.DataFrame) -> str:
    """Means over seeds and intervals in points, as Markdown."""
    tables = []
    for share in SHARES:
        accuracy, half = means(rows, share, "accuracy")
        success, _ = means(rows, share, "attack_success")
        cost = rows[rows["share"] == share].groupby("rule")["server_ms"].mean()
        lines = [[f"{100 * share:.0f} % hostile", *ATTACKS, "backdoor succeeds"]]
        lines[0] += ["worst case", "server"]
        worst = worst_of(accuracy)
        for rule in RULES:
            values = [(accuracy.loc[rule, a], half.loc[rule, a]) for a in ATTACKS]
            values += [(success.loc[rule, "backdoor"], np.nan), (worst[rule], np.nan)]
            none = _none_of(rule, share)
            texts = [
                none if np.isnan(value) else _percent(value, count)
                for value, count in values
            ]
            texts += ["–" if np.isnan(cost[rule]) else f"{cost[rule]:.2g} ms"]
            lines.append([rule, *texts])
        tables.append(markdown(lines))
    return "\n\n".join(tables)


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    return {"robustness": table(read_rows())}


def _none_of(rule: str, share: float) -> str:
    """What stands where there is no number."""
    return "–" if is_defined(Cell(MODELS[0], 0, share, rule, "none")) else "undefined"


def _percent(value: float, half: float) -> str:
    return f"{100 * value:.1f}" + ("" if np.isnan(half) else f" ± {100 * half:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=MODELS, default=MODELS[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--draw-only", action="store_true")
    arguments = parser.parse_args()
    model = arguments.model
    if not arguments.draw_only:
        run_all(arguments.jobs, arguments.seeds, model)
    rows = read_rows(model)
    name = "robustness.png" if model == MODELS[0] else f"robustness-{model}.png"
    save_picture(draw(rows), PICTURES / name, dpi=180)
    if model == MODELS[0]:
        write_page("robustness_figure")
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
