"""What edge servers save on the line behind them, and what that costs: docs/servers.md.

    python analysis/edges_figure.py          # plays what is missing, draws, writes the table

The scenario is `scenarios/edges.yaml`: 20 clients below four nodes. Without edge servers all of
them send over the nodes' lines; with them each node merges κ times for each merge of the cloud. All
variants train the same number of times, 40 per client. Bytes over the line are those of the edge
servers' transfers (rows `server` of merges.parquet), or of all clients where there are none.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import yaml
from pages import markdown, write_page

import simfed

HERE = Path(__file__).resolve().parent
SCENARIO = HERE.parent / "scenarios" / "edges.yaml"
ROWS = HERE / "edges_rows.csv"
PAGE = HERE.parent / "docs" / "servers.md"
FIGURE = HERE.parent / "docs" / "images" / "edges.png"
SEEDS = range(5)
TRAININGS = 40
MERGES = (0, 1, 2, 4, 8)
"""κ; 0: no edge servers."""
COLUMNS = ("merges", "seed", "round", "time_s", "line_bytes", "accuracy")


def play(merges: int, seed: int) -> list[tuple[float, ...]]:
    """Rounds of one run: time, bytes over the line so far, accuracy."""
    plain = yaml.safe_load(SCENARIO.read_text())
    plain |= {"seed": seed, "rounds": TRAININGS // max(merges, 1)}
    plain["evaluation"] = {"every": max(1, 4 // max(merges, 1))}
    if merges:
        plain["aggregation"]["edge_servers"]["merges"] = merges
    else:
        del plain["aggregation"]["edge_servers"]
    run = simfed.run(plain, workers=1, progress=False)
    at_cloud = run.merges[run.merges["node"] == "server"] if merges else run.rounds
    moved = (at_cloud["uplink_bytes"] + at_cloud["downlink_bytes"]).cumsum().to_numpy()
    time_s = run.rounds["finished_at_s"].to_numpy()
    tested = run.prototypes.dropna(subset=["test_accuracy"])
    return [
        (merges, seed, round, time_s[round - 1], moved[round - 1], accuracy)
        for round, accuracy in zip(tested["round"], tested["test_accuracy"], strict=True)
    ]


def load() -> list[dict[str, float]]:
    """The kept rows; those of runs that are missing are played and kept."""
    rows: list[dict[str, float]] = []
    if ROWS.is_file():
        with ROWS.open(newline="") as file:
            rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    done = {(row["merges"], row["seed"]) for row in rows}
    for merges in MERGES:
        for seed in SEEDS:
            if (merges, seed) not in done:
                rows += [dict(zip(COLUMNS, one, strict=True)) for one in play(merges, seed)]
                with ROWS.open("w", newline="") as file:
                    writer = csv.writer(file)
                    writer.writerow(COLUMNS)
                    writer.writerows([f"{row[name]:.10g}" for name in COLUMNS] for row in rows)
    return rows


def name_of(merges: int) -> str:
    """What a variant is called."""
    return f"{merges} merge{'s' * (merges > 1)} at the edge" if merges else "no edge servers"


def draw(rows: list[dict[str, float]]) -> None:
    """Accuracy against bytes and against time: mean and range over the seeds."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(7.2, 2.9), sharey=True, layout="constrained")
    colours = ("#444444", "#D55E00", "#E69F00", "#009E73", "#0072B2")
    for merges, colour in zip(MERGES, colours, strict=True):
        by_round: dict[float, list[dict[str, float]]] = defaultdict(list)
        for row in rows:
            if row["merges"] == merges:
                by_round[row["round"]].append(row)
        groups = [by_round[round] for round in sorted(by_round)]
        accuracy = 100 * np.array([[row["accuracy"] for row in group] for group in groups])
        for ax, column, scale in zip(axes, ("line_bytes", "time_s"), (1e6, 1.0), strict=True):
            x = np.array([np.mean([row[column] for row in group]) for group in groups]) / scale
            ax.plot(x, accuracy.mean(axis=1), color=colour, marker=".", label=name_of(merges))
            ax.fill_between(x, accuracy.min(axis=1), accuracy.max(axis=1), color=colour, alpha=0.15)
    axes[0].set_xscale("log")
    axes[0].set_xlabel("bytes over the lines behind the edge (MB)")
    axes[1].set_xlabel("simulated time (s)")
    axes[0].set_ylabel("test accuracy (%)")
    axes[1].legend(frameon=False, fontsize=7, loc="lower right")
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_ylim(40, 100)
    figure.savefig(FIGURE, dpi=160, metadata={"Software": None})


def table(rows: list[dict[str, float]]) -> str:
    """Each variant at its end, as Markdown: means over seeds (the least to the most)."""
    lines = [["", "bytes over the lines", "accuracy", "against no edge servers, per seed", "time"]]
    last = {(row["merges"], row["seed"]): row for row in rows}
    flat = np.array([last[0, seed]["accuracy"] for seed in SEEDS])
    for merges in MERGES:
        ends = [last[merges, seed] for seed in SEEDS]
        accuracy = np.array([row["accuracy"] for row in ends])
        lost = 100 * (accuracy - flat)
        less = f"{lost.mean():+.1f} points ({lost.min():+.1f} to {lost.max():+.1f})"
        less = less.replace("-", "−")
        moved = np.mean([row["line_bytes"] for row in ends]) / 1e6
        time_s = np.mean([row["time_s"] for row in ends])
        cells = [f"{moved:.1f} MB", f"{100 * accuracy.mean():.1f} %", less if merges else "–"]
        lines.append([name_of(merges), *cells, f"{time_s:.1f} s"])
    return markdown(lines)


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    return {"edge servers": table(load())}


if __name__ == "__main__":
    draw(load())
    write_page("edges_figure")
