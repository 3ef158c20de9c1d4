"""What edge servers save on the line behind them, and what that costs: docs/servers.md.

    python analysis/edges_figure.py  # plays what is missing, draws, writes the table

The scenario is `scenarios/edges.yaml`: 20 clients below four nodes. Without edge
servers all of them send over the nodes' lines; with them each node merges κ times for
each merge of the cloud. All variants train the same number of times, 40 per client.
Bytes over the line are those of the edge servers' transfers (rows `server` of
merges.parquet), or of all clients where there are none.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pandas as pd
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
        for round, accuracy in zip(
            tested["round"], tested["test_accuracy"], strict=True
        )
    ]


def load() -> pd.DataFrame:
    """The kept rows; those of runs that are missing are played and kept."""
    rows = pd.read_csv(ROWS) if ROWS.is_file() else pd.DataFrame(columns=COLUMNS)
    done = set(zip(rows["merges"], rows["seed"], strict=True))
    for merges, seed in itertools.product(MERGES, SEEDS):
        if (merges, seed) not in done:
            rows = pd.concat([rows, pd.DataFrame(play(merges, seed), columns=COLUMNS)])
            rows.to_csv(ROWS, index=False, float_format="%.10g")
    return rows


def name_of(merges: int) -> str:
    """What a variant is called."""
    return (
        f"{merges} merge{'s' * (merges > 1)} at the edge"
        if merges
        else "no edge servers"
    )


def draw(rows: pd.DataFrame) -> None:
    """Accuracy against bytes and against time: mean and range over the seeds."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, 2, figsize=(7.2, 2.9), sharey=True, layout="constrained"
    )
    colours = ("#444444", "#D55E00", "#E69F00", "#009E73", "#0072B2")
    for merges, colour in zip(MERGES, colours, strict=True):
        of_round = rows[rows["merges"] == merges].groupby("round")
        mean, low, high = (
            100 * of_round["accuracy"].agg(end) for end in ("mean", "min", "max")
        )
        for ax, column, scale in zip(
            axes, ("line_bytes", "time_s"), (1e6, 1.0), strict=True
        ):
            x = of_round[column].mean() / scale
            ax.plot(x, mean, color=colour, marker=".", label=name_of(merges))
            ax.fill_between(x, low, high, color=colour, alpha=0.15)
    axes[0].set_xscale("log")
    axes[0].set_xlabel("bytes over the lines behind the edge (MB)")
    axes[1].set_xlabel("simulated time (s)")
    axes[0].set_ylabel("test accuracy (%)")
    axes[1].legend(frameon=False, fontsize=7, loc="lower right")
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_ylim(40, 100)
    figure.savefig(FIGURE, dpi=160, metadata={"Software": None})


def table(rows: pd.DataFrame) -> str:
    """Each variant at its end, as Markdown: means over seeds (least to most)."""
    lines = [
        [
            "",
            "bytes over the lines",
            "accuracy",
            "against no edge servers, per seed",
            "time",
        ]
    ]
    last = rows.groupby(["merges", "seed"]).last()
    for merges in MERGES:
        ends = last.loc[merges]
        lost = 100 * (ends["accuracy"] - last.loc[0]["accuracy"])
        less = f"{lost.mean():+.1f} points ({lost.min():+.1f} to {lost.max():+.1f})"
        accuracy, moved = 100 * ends["accuracy"].mean(), ends["line_bytes"].mean() / 1e6
        cells = [
            f"{moved:.1f} MB",
            f"{accuracy:.1f} %",
            less.replace("-", "−") if merges else "–",
        ]
        lines.append([name_of(merges), *cells, f"{ends['time_s'].mean():.1f} s"])
    return markdown(lines)


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    return {"edge servers": table(load())}


if __name__ == "__main__":
    draw(load())
    write_page("edges_figure")
