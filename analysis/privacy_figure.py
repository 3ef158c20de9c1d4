"""What does privacy cost, and which codec pays least? Accuracy after a fixed time against ε.

    python analysis/privacy_figure.py [--out studies/privacy] [--jobs 2] [--draw-only]

1,000 clients of the data set that ships with simfed, of which 100 take part in a round by coins of
their own (client-level privacy, amplified, clip at the median of the norms), two models, three
links, five codecs, four budgets, five seeds. Every run is kept as rows of `runs.csv` in the folder:
the same command goes on where it stopped. Links share what was learned, so a third of the runs
learns and the others are replays. At two quiet cores it takes about an hour, at low priority;
`pip install "simfed[privacy]"`.

What it shows: per link, all codecs are read at one instant, when the first of them has played all
its rounds; whoever is slower has had fewer rounds, and so less accuracy and less ε. Random-K draws
its entries per client, so that noise falls on all of them.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

import simfed
from simfed.replay import TrajectoryStore
from simfed.report.pictures import picture_style, save_picture
from simfed.report.statistics import mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINKS = {
    "1 Mbps up": {"up": "1 Mbps", "down": "20 Mbps", "latency": "40 ms"},
    "5 Mbps up": {"up": "5 Mbps", "down": "50 Mbps", "latency": "20 ms"},
    "50 Mbps up": {"up": "50 Mbps", "down": "200 Mbps", "latency": "10 ms"},
}
MODELS = ("logistic-regression", "lenet5")
CODECS = {
    "dense": "dense",
    "Random-K 5 %": "random-k",
    "Top-K 5 %": "top-k",
    "8 bit": "qsgd(127)",
    "low rank 2": "powersgd(2)",
}
BUDGETS = (1.0, 3.0, 10.0, None)
"""ε of all rounds at δ = 1e-5; None: no privacy."""


@dataclass(frozen=True)
class Row:
    """One evaluation of one run."""

    model: str
    codec: str
    budget: float | None
    seed: int
    link: str
    round: int
    at_s: float
    accuracy: float
    epsilon: float | None
    uplink_bytes: float


@dataclass(frozen=True)
class Size:
    """How much is played."""

    clients: int = 1000
    per_round: int = 100
    rounds: int = 120
    evaluate: int = 5


def scenario_of(
    model: str, codec: str, budget: float | None, seed: int, link: str, size: Size
) -> dict[str, object]:
    """One run: a codec, a budget and a link; all else is the same."""
    adaptive = {"quantile": 0.5, "start": 0.2, "count_noise": size.per_round / 10}
    privacy = {"level": "client", "clip": adaptive, "target": {"epsilon": budget, "delta": 1e-5}}
    device = {
        "training": "20 ms",
        "compression": "3 ms",
        "speed": {"lognormal": {"median": 1, "cv": 0.5}},
    }
    return {
        "name": "privacy",
        "seed": seed,
        "rounds": size.rounds,
        "method": "fedavg",
        "dataset": {"name": "mnist-mini", "partition": {"kind": "dirichlet", "alpha": 1.0}},
        "prototypes": {"only": {"model": model}},
        "clients": [
            {"count": size.clients, "prototype": "only", "device": device, "link": LINKS[link]}
        ],
        "training": {"batch_size": 10, "learning_rate": 0.1, "local_epochs": 2},
        "compression": {"k": "5%", "strategies": [CODECS[codec]], "index_code": "fixed"},
        "policy": {"kind": "uniform", "strategy": CODECS[codec]},
        "participation": {"clients_per_round": size.per_round, "selection": "poisson"},
        "evaluation": {"every": size.evaluate},
        "checkpoint": {"every": 0},
        **({} if budget is None else {"privacy": privacy}),
    }


def play(
    folder: Path, size: Size, case: tuple[str, str, float | None, int], links: Sequence[str]
) -> list[Row]:
    """The runs of one model, codec, budget and seed over these links: the first learns."""
    os.nice(19)
    store = TrajectoryStore(folder / "trajectories")
    rows = []
    for link in links:
        run = simfed.run(
            scenario_of(*case, link, size), workers=1, progress=False, trajectories=store
        )
        rounds = run.rounds.set_index("round")
        sent = rounds["uplink_bytes"].cumsum()
        tested = run.prototypes.dropna(subset=["test_accuracy"])
        for number, accuracy in zip(tested["round"], tested["test_accuracy"], strict=True):
            spent = float(rounds["epsilon"][number]) if "epsilon" in rounds else None
            at_s = float(rounds["finished_at_s"][number])
            uplink = float(sent[number])
            rows.append(Row(*case, link, int(number), at_s, float(accuracy), spent, uplink))
    return rows


def play_all(folder: Path, size: Size, seeds: int, jobs: int) -> None:
    """Every case that is not in `runs.csv` yet."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "runs.csv"
    names = [field.name for field in fields(Row)]
    done: set[tuple[str, str, float | None, int]] = set()
    if file.exists():
        kept = pd.read_csv(file)
        budgets = [None if np.isnan(value) else float(value) for value in kept["budget"]]
        done = set(zip(kept["model"], kept["codec"], budgets, kept["seed"], strict=True))
    cases = itertools.product(MODELS, CODECS, BUDGETS, range(seeds))
    todo = sorted((case for case in cases if case not in done), key=lambda case: case[3])
    with (
        ProcessPoolExecutor(jobs) as pool,
        file.open("a", newline="", encoding="utf-8") as out,
    ):
        writer = csv.DictWriter(out, names)
        if out.tell() == 0:
            writer.writeheader()
        started = [pool.submit(play, folder, size, case, list(LINKS)) for case in todo]
        for number, ended in enumerate(as_completed(started), 1):
            writer.writerows(asdict(row) for row in ended.result())  # a case as a whole
            out.flush()
            print(f"{number} of {len(todo)} cases", flush=True)


def at_one_instant(rows: pd.DataFrame) -> pd.DataFrame:
    """Per model and link, the last evaluation of every run until the first codec was through."""
    parts = []
    keys = ["codec", "budget", "seed"]
    for (_, _), mine in rows.groupby(["model", "link"], sort=False):
        ends = mine.groupby(keys, dropna=False)["at_s"].max()
        instant_s = ends.groupby("codec").max().min()
        until = mine[mine["at_s"] <= instant_s * (1 + 1e-9)].sort_values("at_s")
        last = until.groupby(keys, dropna=False).tail(1)
        parts.append(last.assign(instant_s=instant_s))
    return pd.concat(parts)


def with_mean(values: Iterable[float]) -> tuple[float, float, float]:
    """(mean, ends of its 95 % interval); of one value it has none."""
    estimate = mean_interval(list(values))
    return estimate.least, estimate.low, estimate.high


@picture_style()
def privacy_figure(points: pd.DataFrame) -> Figure:
    """A panel per model and link: accuracy against ε, a line per codec."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    models, links = list(dict.fromkeys(points["model"])), list(dict.fromkeys(points["link"]))
    inches = 2.0 * len(links) + 0.4, 1.7 * len(models) + 0.5
    figure = Figure(figsize=inches, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(models), len(links), squeeze=False, sharey="row", sharex=True)
    for (i, model), (j, link) in itertools.product(enumerate(models), enumerate(links)):
        ax, here = panels[i][j], points[(points["model"] == model) & (points["link"] == link)]
        for nth, codec in enumerate(CODECS):
            mine = here[here["codec"] == codec]
            ends = []
            for budget, of_seeds in mine.groupby("budget", dropna=False):
                mean, low, high = with_mean(of_seeds["accuracy"])
                spent = 30.0 if np.isnan(budget) else of_seeds["epsilon"].mean()
                ends.append((spent, mean, low, high))
            ends.sort()
            x, y, lows, highs = (np.array(column) for column in zip(*ends, strict=True))
            shift = 1.03 ** (nth - 2)  # so that intervals do not hide each other
            colour = f"C{nth}"
            ax.plot(x[x < 30] * shift, y[x < 30], "o-", ms=2.5, lw=0.9, color=colour, label=codec)
            ax.plot(x[x >= 30] * shift, y[x >= 30], "o", ms=2.5, color=colour)
            ax.vlines(x * shift, lows, highs, color=colour, lw=0.6)
        ax.set_xscale("log")
        ax.set_xticks([1, 3, 10, 30], ["1", "3", "10", "none"])
        ax.minorticks_off()
        ax.set_ylim(0, 1)
        ax.set_title(f"{model}, {link}, after {here['instant_s'].iloc[0]:.0f} s", fontsize=6.5)
        if i == len(models) - 1:
            ax.set_xlabel("ε spent by then (δ = 1e-5)")
        if j == 0:
            ax.set_ylabel("test accuracy")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(CODECS), frameon=False)
    return figure


def price_table(points: pd.DataFrame) -> str:
    """What each budget costs in points of accuracy and in bytes, beside the codec without it."""
    lines = ["| model | link | codec | ε | accuracy | points lost | MB up | rounds |"]
    lines.append("|---|---|---|---:|---:|---:|---:|---:|")
    for (model, link, codec), mine in points.groupby(["model", "link", "codec"], sort=False):
        free = mine[mine["budget"].isna()].set_index("seed")["accuracy"]
        for budget, of_seeds in mine.groupby("budget", dropna=False):
            by_seed = of_seeds.set_index("seed")["accuracy"]
            mean, low, high = with_mean(by_seed)
            lost, at_least, at_most = with_mean(100 * (free - by_seed).dropna())
            spent = "none" if np.isnan(budget) else f"{of_seeds['epsilon'].mean():.2f}"
            price = "" if np.isnan(budget) else f"{lost:.1f} [{at_least:.1f}, {at_most:.1f}]"
            lines.append(
                f"| {model} | {link} | {codec} | {spent} | {mean:.3f} [{low:.3f}, {high:.3f}] | "
                f"{price} | {of_seeds['uplink_bytes'].mean() / 1e6:.1f} | "
                f"{of_seeds['round'].mean():.0f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("studies/privacy"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--draw-only", action="store_true", help="what is there so far")
    for field in fields(Size):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default)
    arguments = parser.parse_args()
    size = Size(**{field.name: getattr(arguments, field.name) for field in fields(Size)})
    if not arguments.draw_only:
        play_all(arguments.out, size, arguments.seeds, arguments.jobs)
    points = at_one_instant(pd.read_csv(arguments.out / "runs.csv"))
    save_picture(privacy_figure(points), arguments.out / "privacy.png", dpi=220)
    print(price_table(points))


if __name__ == "__main__":
    main()
