"""How far another order of sums, such as another processor's, moves a page's numbers.

    python analysis/processors.py          # twenty curves three times, in ten minutes
    python analysis/pages.py processors    # the table of docs/reliability.md

Equal seeds give equal bits on one processor. Another one adds in another order, and
training amplifies the last bit. Here PyTorch is told to use the instructions of the
oldest processors, or the linear algebra to add in the order that all processors share;
of each curve the seconds to an accuracy are set beside those of this processor's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from kept import ROOT
from pages import markdown, write_page

ROWS = Path(__file__).with_name("processors_rows.csv")
PAGE = ROOT / "docs" / "reliability.md"
ORDERS = {
    "as it is": {},
    "oldest instructions": {"ATEN_CPU_CAPABILITY": "default"},
    "linear algebra, shared order": {"MKL_CBWR": "COMPATIBLE"},
}
"""Order of sums → what says so to a new process."""
ARMS = ("dense", "qsgd(127)", "top-k@1%", "dgc(warmup=0)@1%")
SEEDS = range(5)
TARGETS = (0.85, 0.93)
PLAY = """
import sys
import simfed
from simfed.report.reach import find_first_amount

for seed in map(int, sys.argv[3:]):
    changes = {"seed": seed, "policy": {"kind": "uniform", "strategy": sys.argv[1]}}
    run = simfed.run(simfed.load_scenario(sys.argv[2], changes), progress=False)
    curve = run.prototypes.dropna(subset=["test_accuracy"])
    ends = run.rounds.set_index("round")["finished_at_s"]
    curve = curve.assign(accuracy=curve["test_accuracy"], at_s=curve["round"].map(ends))
    for target in (0.85, 0.93):
        found = find_first_amount(curve, target, "at_s", float("nan"))
        print(seed, target, found[0], run.fingerprint, sep=",")
"""


def play(order: str, arm: str) -> pd.DataFrame:
    """Return the seconds of an arm's curves under an order of sums."""
    scenario = ROOT / "scenarios" / "answers.yaml"
    words = [sys.executable, "-c", PLAY, arm, str(scenario), *map(str, SEEDS)]
    said = subprocess.run(
        words,
        env={**os.environ, "OMP_NUM_THREADS": "1", **ORDERS[order]},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    rows = [line.split(",") for line in said.split()]
    table = pd.DataFrame(rows, columns=["seed", "target", "at_s", "fingerprint"])
    return table.assign(order=order, arm=arm)


def page_parts() -> dict[str, str]:
    """Return the table of what other orders move, by its place."""
    return {"orders": orders_table(pd.read_csv(ROWS))}


def orders_table(rows: pd.DataFrame) -> str:
    """Return a line for each other order: how far it moves curves, and comparisons."""
    at_s = rows.pivot(
        index=["arm", "target", "seed"], columns="order", values="at_s"
    ).dropna()
    lines = [
        [
            "order of sums",
            "crossings moved",
            "one crossing, median and most",
            "the mean of five seeds, most",
            "an arm's lead over dense, most",
        ]
    ]
    own = at_s["as it is"]
    for order in [*ORDERS][1:]:
        change = (at_s[order] / own - 1).abs()
        means = at_s.groupby(["arm", "target"])[[order, "as it is"]].mean()
        leads = means / means.xs("dense").reindex(means.index, level="target")
        lead = (leads[order] / leads["as it is"] - 1).abs()
        mean = (means[order] / means["as it is"] - 1).abs()
        texts = [f"{change.median():.1%} and {change.max():.1%}"]
        texts += [f"{mean.max():.1%}", f"{lead.max():.1%}"]
        moved = f"{np.count_nonzero(change)} of {len(change)}"
        lines.append([order, moved, *(text.replace("%", " %") for text in texts)])
    return markdown(lines)


if __name__ == "__main__":
    pd.concat([play(*one) for one in product(ORDERS, ARMS)]).to_csv(ROWS, index=False)
    write_page("processors")
