"""Adapters on a pretrained model: the base, the runs, the figure and the table.

    nice -n 15 python analysis/adapters.py base   # scenarios/text-base.safetensors
    nice -n 15 python analysis/adapters.py run    # the study, into runs/adapters
    python analysis/adapters.py show              # rows, figure, table

The base is a causal transformer trained on the presidents before 1909 (23 of the 43
owners of the embedded text), by AdamW with a cosine schedule; the twenty since are left
to the study. `show` keeps one row per run in `adapters_rows.csv`, from which figure and
table come.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from scipy.stats import t as student_t

import simfed

HERE = Path(__file__).resolve().parent
SCENARIOS = HERE.parent / "scenarios"
BASE = SCENARIOS / "text-base.safetensors"
ROWS = HERE / "adapters_rows.csv"
PARTICIPATIONS = 50
COLOURS = {
    "all": "tab:blue", "rank 2": "tab:orange", "rank 8": "tab:red",
    "rank 32": "tab:brown", "head": "tab:green",
}  # fmt: skip
MARKERS = {"": "o", "top-k": "v", "8 bits": "s"}
STEPS, BATCH, RATE = 900, 32, 2e-3


def train_base(steps: int) -> None:
    """Write the base, with 16-bit weights, and print its perplexity on both halves."""
    sys.path.insert(0, str(SCENARIOS))
    from later_owners import read_half

    from simfed.learn.models import build_model

    earlier, later = (read_half(later=late) for late in (False, True))
    module = build_model("causal-transformer", (80,), 96, seed=0)
    x = torch.from_numpy(earlier.train_images.astype(np.int64))
    y = torch.from_numpy(earlier.train_labels.astype(np.int64))
    optimizer = torch.optim.AdamW(module.parameters(), RATE, weight_decay=0.01)
    rng, begun_s = np.random.default_rng(0), time.process_time()
    for step in range(steps):
        warm = min(1.0, (step + 1) / 50)
        rate = RATE * warm * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        rows = torch.from_numpy(rng.choice(len(x), BATCH, replace=False))
        loss = F.cross_entropy(module(x[rows]).flatten(0, 1), y[rows].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(step, f"{loss.item():.3f}", f"{time.process_time() - begun_s:.0f} s",
                  flush=True)  # fmt: skip
    save_file({n: t.half() for n, t in module.state_dict().items()}, BASE)
    for name, data in (("earlier", earlier), ("later", later)):
        with torch.no_grad():
            logits = module.eval()(torch.from_numpy(data.test_images.astype(np.int64)))
        labels = torch.from_numpy(data.test_labels.astype(np.int64)).flatten()
        loss = F.cross_entropy(logits.flatten(0, 1), labels)
        print(f"perplexity on {name} owners: {loss.exp():.2f}")


def play_study() -> None:
    """Play what the rows lack, and append one row for each run."""
    from simfed.study import plan_study

    plan = plan_study(SCENARIOS / "studies" / "adapted.yaml", allow_plugins=True)
    kept = read() if ROWS.exists() else []
    done = {(row["trains"], int(row["seed"])) for row in kept}
    for run in sorted(plan.runs, key=lambda run: run.seed):
        trains = run.point["list"]
        if (trains, run.seed) in done:
            continue
        played = simfed.run(run.scenario, progress=False, workers=1)
        measured = played.prototypes["test_measure"].dropna()
        rounds = played.rounds
        row = {
            "trains": trains,
            "seed": run.seed,
            "parameters": played.manifest["models"]["lm"]["parameters"],
            "up_bytes": rounds["uplink_bytes"].sum() / PARTICIPATIONS,
            "down_bytes": rounds["downlink_bytes"].sum() / PARTICIPATIONS,
            "training_s": played.participations["training_s"].mean(),
            "seconds": rounds["finished_at_s"].max(),
            "perplexity": measured.iloc[-1],
        }
        with ROWS.open("a", newline="") as file:
            writer = csv.DictWriter(file, row)
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)


def read() -> list[dict[str, str]]:
    """Return the kept rows."""
    with ROWS.open(newline="") as file:
        return [*csv.DictReader(file)]


def list_table(rows: pd.DataFrame) -> list[str]:
    """Return the page's table, a row for what trains and by which codec it travels."""
    lines = [
        "| trains | d | kB up | kB down | work | ten rounds | perplexity |",
        "|---|---|---|---|---|---|---|",
    ]
    for trains in sort_settings(rows):
        mean, half = average(rows, trains)
        cells = (
            trains,
            f"{mean['parameters']:,.0f}",
            f"{mean['up_bytes'] / 1e3:,.1f}",
            f"{mean['down_bytes'] / 1e3:,.1f}",
            f"{mean['training_s']:.2f} s",
            f"{mean['seconds']:.1f} s",
            f"{mean['perplexity']:.3f} ± {half:.3f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def sort_settings(rows: pd.DataFrame) -> list[str]:
    """Return what trains and travels in the rows, whole updates first."""

    def place(trains: str) -> tuple[int, int]:
        name, _, codec = trains.partition(", ")
        return [*MARKERS].index(codec), [*COLOURS].index(name)

    return sorted(set(rows["trains"]), key=place)


def average(rows: pd.DataFrame, trains: str) -> tuple[pd.Series, float]:
    """Return the means over seeds, and half the 95 % interval of the perplexity."""
    one = rows[rows["trains"] == trains]
    half = student_t.ppf(0.975, len(one) - 1) * one["perplexity"].sem()
    return one.mean(numeric_only=True), float(half)


def draw(rows: pd.DataFrame) -> None:
    """Draw perplexity over the bytes of an upload, and over seconds."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for trains in sort_settings(rows):
        mean, half = average(rows, trains)
        name, _, codec = trains.partition(", ")
        style = {"marker": MARKERS[codec], "color": COLOURS[name], "linestyle": "none"}
        for axis, x in zip(
            axes, (mean["up_bytes"] / 1e3, mean["seconds"]), strict=True
        ):
            axis.errorbar(x, mean["perplexity"], half, label=trains, capsize=2, **style)
    axes[0].set(xscale="log", xlabel="kB of an upload")
    axes[0].set_ylabel("perplexity per character")
    axes[1].set(xscale="log", xlabel="seconds of ten rounds")
    axes[1].set_xticks([3, 5, 10, 20, 40], ["3", "5", "10", "20", "40"])
    axes[1].minorticks_off()
    axes[1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(HERE / "figures" / "adapters.png", dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("do", choices=["base", "run", "show"])
    parser.add_argument("--steps", type=int, default=STEPS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.do == "base":
        train_base(asked.steps)
    elif asked.do == "run":
        play_study()
    else:
        kept = pd.read_csv(ROWS)
        print("\n".join(list_table(kept)))
        draw(kept)
