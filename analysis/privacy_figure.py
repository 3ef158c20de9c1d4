"""What does privacy cost, and which codec pays least?

Accuracy after a fixed time against ε.

    python analysis/privacy_figure.py run [--out studies/privacy] [--jobs 2]
    python analysis/privacy_figure.py write

1,000 clients of the data set that ships with simfed, of which 100 take part in a round
by coins of their own (client-level privacy, amplified, clip at the median of the
norms), two models, three links, five codecs, four budgets, five seeds. Every run's
evaluations are kept in `runs.csv` in the folder, and the same command goes on where it
stopped. Links share what was learned, so a third of the runs learns and the others are
replays. A seed of LeNet-5 takes twenty minutes of one core, one of logistic regression
two; `pip install "simfed[privacy]"`.

What every run came to is kept in analysis/privacy_rows.csv, of models and seeds of
which all codecs and budgets were played; from these rows come docs/images/privacy.png
and the tables of analysis/PRIVACY.md, with `write` alone. Per link, all codecs are read
at one instant, when the first of them has played all its rounds; whoever is slower has
had fewer rounds, and so less accuracy and less ε.
"""

from __future__ import annotations

import csv
import itertools
import os
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from kept import study_parser
from pages import markdown, write_page

import simfed
from simfed.replay import TrajectoryStore
from simfed.report.pictures import build_empty_figure, picture_style, save_picture
from simfed.report.statistics import estimate_mean

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
    "shared Random-K 5 %": "shared-random-k",
    "Top-K 5 %": "top-k",
    "8 bit": "qsgd(127)",
    "low rank 2": "powersgd(2)",
}
ROOT = Path(__file__).resolve().parents[1]
ROWS = Path(__file__).with_name("privacy_rows.csv")
PAGE = ROOT / "analysis" / "PRIVACY.md"
PICTURE = ROOT / "docs" / "images" / "privacy.png"
TARGETS = {"logistic-regression": 0.75, "lenet5": 0.8}
"""Accuracies to which the seconds are counted."""
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
    clients: int = 1000
    per_round: int = 100
    rounds: int = 60
    evaluate: int = 2


def scenario_of(
    model: str, codec: str, budget: float | None, seed: int, link: str, size: Size
) -> dict[str, object]:
    """One run: a codec, a budget and a link; all else is the same."""
    adaptive = {"quantile": 0.5, "start": 0.2, "count_noise": size.per_round / 10}
    privacy = {
        "level": "client",
        "clip": adaptive,
        "target": {"epsilon": budget, "delta": 1e-5},
    }
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
        "dataset": {
            "name": "mnist-mini",
            "partition": {"kind": "dirichlet", "alpha": 1.0},
        },
        "prototypes": {"only": {"model": model}},
        "clients": [
            {
                "count": size.clients,
                "prototype": "only",
                "device": device,
                "link": LINKS[link],
            }
        ],
        "training": {"batch_size": 10, "learning_rate": 0.1, "local_epochs": 2},
        "compression": {
            "k": "5%",
            "strategies": [CODECS[codec]],
            "index_code": "seeded",
        },
        "policy": {"kind": "uniform", "strategy": CODECS[codec]},
        "participation": {"clients_per_round": size.per_round, "selection": "poisson"},
        "evaluation": {"every": size.evaluate},
        "checkpoint": {"every": 0},
        **({} if budget is None else {"privacy": privacy}),
    }


def play(
    folder: Path,
    size: Size,
    case: tuple[str, str, float | None, int],
    links: Sequence[str],
) -> list[Row]:
    """Runs of one model, codec, budget and seed over these links: the first learns."""
    rows = []
    # a thousand residuals: up to 400 MB
    with tempfile.TemporaryDirectory(dir=folder) as place:
        store = TrajectoryStore(place)
        for link in links:
            run = simfed.run(
                scenario_of(*case, link, size),
                workers=1,
                progress=False,
                trajectories=store,
            )
            rounds = run.rounds.set_index("round")
            sent = rounds["uplink_bytes"].cumsum()
            tested = run.prototypes.dropna(subset=["test_accuracy"])
            for number, accuracy in zip(
                tested["round"], tested["test_accuracy"], strict=True
            ):
                spent = (
                    float(rounds["epsilon"][number]) if "epsilon" in rounds else None
                )
                at_s = float(rounds["finished_at_s"][number])
                uplink = float(sent[number])
                rows.append(
                    Row(*case, link, int(number), at_s, float(accuracy), spent, uplink)
                )
    return rows


def play_all(
    folder: Path, size: Size, models: Sequence[str], seeds: int, jobs: int
) -> None:
    """Every case that is not in `runs.csv` yet."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "runs.csv"
    names = [field.name for field in fields(Row)]
    done: set[tuple[str, str, float | None, int]] = set()
    if file.exists():
        rows = pd.read_csv(file)
        budgets = [
            None if np.isnan(value) else float(value) for value in rows["budget"]
        ]
        done = set(
            zip(rows["model"], rows["codec"], budgets, rows["seed"], strict=True)
        )
    cases = itertools.product(models, CODECS, BUDGETS, range(seeds))
    todo = sorted(
        (case for case in cases if case not in done), key=lambda case: case[3]
    )
    with (
        ProcessPoolExecutor(jobs, initializer=os.nice, initargs=(19,)) as pool,
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


def whole_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of every model and seed of which all codecs and budgets were played."""
    cases = runs.drop_duplicates(["model", "codec", "budget", "seed"])
    played = cases.groupby(["model", "seed"]).size()
    whole = played[played == len(CODECS) * len(BUDGETS)].index
    return runs[runs.set_index(["model", "seed"]).index.isin(whole)]


def at_one_instant(runs: pd.DataFrame) -> pd.DataFrame:
    """Per model and link, the last evaluation of every run until the first codec was
    through, and when it came to the model's target first (`target_s`; NaN: never).
    """
    parts = []
    keys = ["codec", "budget", "seed"]
    for (model, _), mine in runs.groupby(["model", "link"], sort=False):
        ends = mine.groupby(keys, dropna=False)["at_s"].max()
        instant_s = ends.groupby("codec").max().min()
        until = mine[mine["at_s"] <= instant_s * (1 + 1e-9)].sort_values("at_s")
        last = until.groupby(keys, dropna=False).tail(1)
        reached = mine[mine["accuracy"] >= TARGETS.get(str(model), 0.8)]
        first_s = reached.groupby(keys, dropna=False)["at_s"].min().rename("target_s")
        last = last.merge(first_s.reset_index(), "left", on=keys)
        parts.append(last.assign(instant_s=instant_s))
    points = pd.concat(parts)
    points["codec"] = pd.Categorical(points["codec"], CODECS)
    return points.sort_values(["model", "link", "codec", "budget", "seed"], key=_place)


def _place(column: pd.Series) -> pd.Series:
    """By which rows are sorted: names as they stand above."""
    order = {"model": MODELS, "link": tuple(LINKS)}.get(str(column.name))
    return column if order is None else column.map(order.index)


def with_mean(values: Iterable[float]) -> tuple[float, float, float]:
    """(mean, ends of its 95 % interval); of one value it has none."""
    estimate = estimate_mean(list(values))
    return estimate.least, estimate.low, estimate.high


@picture_style()
def privacy_figure(points: pd.DataFrame) -> Figure:
    """A panel per model and link: accuracy against ε, a line per codec."""
    models, links = (
        list(dict.fromkeys(points["model"])),
        list(dict.fromkeys(points["link"])),
    )
    inches = 2.0 * len(links) + 0.4, 1.7 * len(models) + 0.5
    figure = build_empty_figure(figsize=inches, layout="constrained")
    panels = figure.subplots(
        len(models), len(links), squeeze=False, sharey="row", sharex=True
    )
    for (i, model), (j, link) in itertools.product(enumerate(models), enumerate(links)):
        ax, here = (
            panels[i][j],
            points[(points["model"] == model) & (points["link"] == link)],
        )
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
            ax.plot(
                x[x < 30] * shift,
                y[x < 30],
                "o-",
                ms=2.5,
                lw=0.9,
                color=colour,
                label=codec,
            )
            ax.plot(x[x >= 30] * shift, y[x >= 30], "o", ms=2.5, color=colour)
            ax.vlines(x * shift, lows, highs, color=colour, lw=0.6)
        ax.set_xscale("log")
        ax.set_xticks([1, 3, 10, 30], ["1", "3", "10", "none"])
        ax.minorticks_off()
        reach = points.loc[points["model"] == model, "accuracy"]
        ax.set_ylim(np.floor(10 * reach.min()) / 10, np.ceil(10 * reach.max()) / 10)
        ax.set_title(
            f"{model}, {link}, after {here['instant_s'].iloc[0]:.0f} s", fontsize=6.5
        )
        if i == len(models) - 1:
            ax.set_xlabel("ε spent by then (δ = 1e-5)")
        if j == 0:
            ax.set_ylabel("test accuracy")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=len(CODECS), frameon=False
    )
    return figure


def price_table(points: pd.DataFrame, model: str) -> str:
    """Accuracy at the instant in per cent, and what ε costs in points, rounds and
    bytes.
    """
    head = [
        "link",
        "codec",
        "no privacy",
        *(f"ε = {budget:g}" for budget in reversed(BUDGETS[:-1])),
    ]
    lines = [[*head, "rounds", "MB up"]]
    mine = points[points["model"] == model]
    for (link, codec), here in mine.groupby(
        ["link", "codec"], sort=False, observed=True
    ):
        instant_s = here["instant_s"].iloc[0]
        free = here[here["budget"].isna()].set_index("seed")["accuracy"]
        cells = [f"{link}, {instant_s:.0f} s", str(codec), _percent(free)]
        for budget in reversed(BUDGETS[:-1]):
            by_seed = here[here["budget"] == budget].set_index("seed")["accuracy"]
            lost, low, high = with_mean(100 * (free - by_seed))
            spread = "" if np.isnan(low) else f" ± {(high - low) / 2:.1f}"
            cells.append(
                f"{_percent(by_seed)} (−{lost:.1f}{spread})".replace("−-", "+")
            )
        cells += [
            f"{here['round'].mean():.0f}",
            f"{here['uplink_bytes'].mean() / 1e6:.0f}",
        ]
        lines.append(cells)
    return markdown(lines)


def time_table(points: pd.DataFrame, model: str) -> str:
    """Seconds to the model's target, means over seeds.

    A dash where a seed never came to it.
    """
    mine = points[points["model"] == model]
    budgets = (None, *reversed(BUDGETS[:-1]))
    names = [
        "no privacy" if budget is None else f"ε = {budget:g}" for budget in budgets
    ]
    lines = [["link", "codec", *names]]
    for (link, codec), here in mine.groupby(
        ["link", "codec"], sort=False, observed=True
    ):
        cells = [str(link), str(codec)]
        for budget in budgets:
            rows = here[
                here["budget"].isna() if budget is None else here["budget"] == budget
            ]
            seconds = rows["target_s"].mean(skipna=False)
            cells.append("–" if np.isnan(seconds) else f"{seconds:.1f}")
        lines.append(cells)
    return markdown(lines)


def _percent(accuracy: pd.Series) -> str:
    return f"{100 * accuracy.mean():.1f}"


def page_tables(points: pd.DataFrame) -> str:
    """Both tables of every model, with what they are."""
    parts = []
    for model, mine in points.groupby("model", sort=False):
        seeds = mine["seed"].nunique()
        title = f"**{model}**, {seeds} seed{'s' * (seeds > 1)}. "
        parts += [
            title + "Test accuracy in % at one instant per link, by the ε that all "
            "rounds would "
            "spend, and in brackets the points that it costs:",
            price_table(points, str(model)),
            f"Seconds to {100 * TARGETS.get(str(model), 0.8):.0f} % (–: not in the "
            f"rounds played):",
            time_table(points, str(model)),
        ]
    return "\n\n".join(parts)


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    return {"privacy": page_tables(pd.read_csv(ROWS))}


def main() -> None:
    parser = study_parser(__doc__, "studies/privacy")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    for field in fields(Size):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", type=int, default=field.default
        )
    arguments = parser.parse_args()
    size = Size(
        **{field.name: getattr(arguments, field.name) for field in fields(Size)}
    )
    if arguments.do == "run":
        play_all(
            arguments.out, size, arguments.models, arguments.seeds, arguments.jobs or 2
        )
        points = at_one_instant(whole_seeds(pd.read_csv(arguments.out / "runs.csv")))
        points.round(4).to_csv(ROWS, index=False)
    save_picture(privacy_figure(pd.read_csv(ROWS)), PICTURE, dpi=220)
    write_page("privacy_figure")


if __name__ == "__main__":
    main()
