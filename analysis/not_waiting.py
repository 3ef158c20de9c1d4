"""When not waiting wins: the rows, map and tables of analysis/NOT-WAITING.md.

    # some 50 minutes on one core
    python analysis/not_waiting.py run [--out studies] [--jobs 2]
    # from the kept rows
    python analysis/not_waiting.py write

`run` plays scenarios/studies/not-waiting.yaml (what is done is not done again), and
some of it with two data sets in which every client owns nine tenths of its samples in
two labels: in one the labels go with the class of speed (the slowest own 8 and 9), in
the other clients are dealt to classes at random. It keeps one row per run in
not-waiting.parquet. All three sizes of the buffer are reported, so that none has to be
chosen.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml
from answers import compare_ways, times_of
from kept import ROOT, KeptStudy, Row, play_all, read, spent_to, study_parser, write
from pages import as_share, in_words, markdown, with_interval, write_page

from simfed.learn.data import load_dataset
from simfed.report.pictures import build_empty_figure, picture_style, save_picture
from simfed.report.statistics import Estimate, PairedTimes, estimate_paired_difference

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simfed.record.read import Run

HERE = Path(__file__).resolve().parent
FILE = ROOT / "scenarios" / "studies" / "not-waiting.yaml"
ROWS, PAGE, FIGURE = (
    HERE / "not-waiting.parquet",
    HERE / "NOT-WAITING.md",
    HERE / "figures",
)
TARGET = 0.85
LAST = 5
"""Evaluations of which whom the model serves is the mean: one alone jumps by points."""
CLASSES, CLIENTS_PER_CLASS = 5, 8
MAPPED = ("alike", "alpha 0.5", "alpha 0.1")
OWNED = ("two labels, at random", "two labels, with speed")
SKEWS = (*MAPPED, *OWNED)
WAYS = ("over-selection", "buffered 8", "buffered 4", "buffered 2", "asynchronous")
SPREADS = {0.01: 1, 0.01414: 2, 0.02: 4, 0.04: 16}
"""The fastest class's speed → how many times the slowest's that is."""


# ---- rows ----------------------------------------------------------------------------


def owned_by_class(labels: np.ndarray, with_speed: bool, seed: int = 0) -> np.ndarray:
    """The owner (0 to 39) of each sample: nine tenths of every label go to one class of
    eight clients (labels 0 and 1 to the first, … 8 and 9 to the last), the rest to
    anybody. `with_speed`: owners are numbered class by class, as clients are; else at
    random.

    >>> owners = owned_by_class(np.array([0, 9] * 50), with_speed=True)
    >>> int((owners[::2] < 8).sum()) > 35, int((owners[1::2] >= 32).sum()) > 35
    (True, True)
    """
    rng = np.random.default_rng(seed)
    clients = CLASSES * CLIENTS_PER_CLASS
    owners = rng.integers(0, clients, len(labels))
    at_home = rng.random(len(labels)) < 0.9
    first = CLIENTS_PER_CLASS * (labels.astype(np.int64) // 2)
    home = first + rng.integers(0, CLIENTS_PER_CLASS, len(labels))
    owners = np.where(at_home, home, owners)
    return owners if with_speed else rng.permutation(clients)[owners]


def write_data(path: Path, with_speed: bool) -> None:
    """`mnist-mini` with these owners, as a file that `dataset: {file: …}` reads."""
    data = load_dataset("mnist-mini")
    owners = owned_by_class(data.train_labels, with_speed)
    np.savez(
        path,
        x_train=data.train_images,
        y_train=data.train_labels,
        owner_train=owners,
        x_test=data.test_images,
        y_test=data.test_labels,
    )


def row_of(run: Run, curve: pd.DataFrame) -> Row:
    """Return when a run was at `TARGET` and for how many bytes, its last accuracy, and
    that in the label mixes of the fastest and of the slowest class.
    """
    spent = spent_to(curve, TARGET, ("at_s", "total_bytes"))
    accuracies = _own_accuracy(run.table("clients").to_pandas())
    return {
        **told(run.scenario),
        "at_s": spent["at_s"],
        "reached": spent["reached"],
        "moved_bytes": spent["total_bytes"],
        "final_accuracy": float(curve["accuracy"].iloc[-1]),
        "fastest_own": accuracies[0],
        "slowest_own": accuracies[-1],
    }


def _own_accuracy(clients: pd.DataFrame) -> list[float]:
    """Per class of speed, accuracy in its clients' own label mixes: mean of the last
    `LAST` evaluations.
    """
    last = clients[clients["round"].isin(sorted(set(clients["round"]))[-LAST:])]
    of_clients = last.groupby("client")["own_accuracy"].mean()
    return [
        float(part.mean()) for part in np.array_split(of_clients.to_numpy(), CLASSES)
    ]


def told(scenario: Any) -> Row:
    """Return the spread of speeds of a scenario, or of a run's as plain values."""
    plain = scenario if isinstance(scenario, dict) else scenario.model_dump(mode="json")
    return {"spread": SPREADS[float(plain["clients"][0]["device"]["speed"])]}


AXES = {"skew": "dataset", "arm": "list"}
STUDIES = [KeptStudy(FILE, AXES, row_of, told=told)]


# ---- answers -------------------------------------------------------------------------


class Cell(NamedTuple):
    """One spread of speeds and one skew of labels."""

    spread: int
    skew: str
    sooner: dict[str, PairedTimes]
    """Way → how many times sooner than waiting."""
    fewer_bytes: dict[str, PairedTimes]
    """Way → how many times fewer bytes than when waiting were moved up to the
    accuracy."""
    behind: dict[str, Estimate]
    """Way → by how many points more than when waiting the slowest class's accuracy (in
    its own label mix, at the end) is below the fastest's."""
    waiting: tuple[float, float]
    """Accuracies of the fastest and of the slowest class when waiting."""


def cells(rows: pd.DataFrame) -> list[Cell]:
    """What came out, by skew and spread."""
    by_cell = sorted(
        rows.groupby(["skew", "spread"]),
        key=lambda one: (SKEWS.index(one[0][0]), one[0][1]),
    )
    cells = []
    for (skew, spread), here in by_cell:
        arms = {str(arm): runs.sort_values("seed") for arm, runs in here.groupby("arm")}
        base, times, moved = (
            arms["synchronous"],
            times_of(here),
            times_of(here, "moved_bytes"),
        )
        ways = [way for way in WAYS if way in arms]
        cells.append(
            Cell(
                int(spread),
                str(skew),
                {way: compare_ways(times, way, "synchronous") for way in ways},
                {way: compare_ways(moved, way, "synchronous") for way in ways},
                {
                    way: estimate_paired_difference(_gaps(arms[way]), _gaps(base))
                    for way in ways
                },
                (float(base["fastest_own"].mean()), float(base["slowest_own"].mean())),
            )
        )
    return cells


def _gaps(runs: pd.DataFrame) -> list[float]:
    gaps: list[float] = (100 * (runs["fastest_own"] - runs["slowest_own"])).tolist()
    return gaps


def border(rows: pd.DataFrame, skew: str, way: str) -> tuple[float, float, float]:
    """From which spread on a way is sooner than waiting: per seed where the ratio of
    times, straight between the logarithms of spreads, first passes 1. Least, median and
    greatest of seeds.

    Seeds that one of the two did not finish count at the run's end.
    """
    table = rows[rows["skew"] == skew].pivot_table(
        index=["seed", "spread"], columns="arm", values="at_s"
    )
    crossings = []
    for _, times in table.groupby(level="seed"):
        spreads = np.log(times.index.get_level_values("spread").to_numpy(float))
        gains = np.log(times["synchronous"].to_numpy() / times[way].to_numpy())
        crossings.append(_crossing(spreads, gains))
    low, middle, high = np.exp([min(crossings), np.median(crossings), max(crossings)])
    return float(low), float(middle), float(high)


def _crossing(spreads: np.ndarray, gains: np.ndarray) -> float:
    """Where `gains` first is above 0: the first place if it begins there, infinity if
    never.
    """
    if gains[0] > 0:
        return float(spreads[0])
    for i in range(1, len(gains)):
        if gains[i] > 0:
            share = -gains[i - 1] / (gains[i] - gains[i - 1])
            return float(spreads[i - 1] + share * (spreads[i] - spreads[i - 1]))
    return float("inf")


def _border_text(rows: pd.DataFrame, skew: str, way: str) -> str:
    texts = [
        "over 16" if np.isinf(at) else f"{at:.2g}" for at in border(rows, skew, way)
    ]
    return f"{texts[1]} ({texts[0]} to {texts[2]})"


def times_table(cells: Sequence[Cell]) -> str:
    """Return how many times sooner than waiting, and bytes of waiting's, by skew and
    spread.
    """
    lines = [["labels", "fastest ÷ slowest", *WAYS]]
    for cell in cells:
        texts = {
            way: f"{with_interval(ratio)}×<br>{as_share(cell.fewer_bytes[way])}"
            for way, ratio in cell.sooner.items()
        }
        lines.append(
            [cell.skew, str(cell.spread), *(texts.get(way, "–") for way in WAYS)]
        )
    return markdown(lines)


def pooled(rows: pd.DataFrame) -> dict[int, dict[str, tuple[PairedTimes, PairedTimes]]]:
    """Return spread → way → how many times sooner than waiting and how many times fewer
    bytes, over the three skews: geometric means, whose unit is the seed, since skews
    share it.
    """
    rows = rows[rows["skew"].isin(MAPPED)]
    logs = rows.assign(**np.log(rows[["at_s", "moved_bytes"]]))
    means = logs.groupby(["spread", "arm", "seed"]).agg(
        {"at_s": "mean", "moved_bytes": "mean", "reached": "all"}
    )
    means = means.assign(**np.exp(means[["at_s", "moved_bytes"]])).reset_index()
    of_spreads = {}
    for spread, here in means.groupby("spread"):
        both = [times_of(here, column) for column in ("at_s", "moved_bytes")]
        of_spreads[int(spread)] = {
            way: (
                compare_ways(both[0], way, "synchronous"),
                compare_ways(both[1], way, "synchronous"),
            )
            for way in WAYS
        }
    return of_spreads


def pooled_table(rows: pd.DataFrame) -> str:
    """Return the same over the three skews."""
    lines = [["fastest ÷ slowest", *WAYS]]
    for spread, ways in pooled(rows).items():
        texts = (f"{with_interval(a)}×<br>{as_share(b)}" for a, b in ways.values())
        lines.append([str(spread), *texts])
    return markdown(lines)


def border_table(rows: pd.DataFrame) -> str:
    """From which spread on not waiting is sooner."""
    lines = [["labels", *WAYS]]
    for skew in MAPPED:
        lines.append([skew, *(_border_text(rows, skew, way) for way in WAYS)])
    return markdown(lines)


def served_table(cells: Sequence[Cell]) -> str:
    """At the largest spread: accuracies of the fastest and the slowest class when
    waiting, and how many points further behind the slowest is with the others.
    """
    lines = [["labels", "waiting: fastest, slowest", *WAYS]]
    for cell in cells:
        if cell.spread == max(SPREADS.values()):
            fastest, slowest = (f"{100 * accuracy:.1f} %" for accuracy in cell.waiting)
            texts = {
                way: f"{gap.least:+.1f} [{gap.low:+.1f}, {gap.high:+.1f}]"
                for way, gap in cell.behind.items()
            }
            texts_in_order = (texts.get(way, "–") for way in WAYS)
            lines.append([cell.skew, f"{fastest}, {slowest}", *texts_in_order])
    return markdown(lines)


@picture_style()
def map_figure(rows: pd.DataFrame) -> Figure:
    """One map per way: how many times sooner than waiting, by skew and spread, and the
    border.
    """
    mapped = [cell for cell in cells(rows) if cell.skew in MAPPED]
    figure = build_empty_figure(figsize=(9.6, 2.0), layout="constrained")
    panels = figure.subplots(1, len(WAYS), sharey=True)
    for letter, axes, way in zip("abcde", panels, WAYS, strict=True):
        _draw_map(axes, mapped, way)
        for y, skew in enumerate(MAPPED):
            _draw_border(axes, y, border(rows, skew, way))
        axes.set_title(f"{letter}  {way}", loc="left", fontsize=8)
    return figure


def _draw_map(axes: Axes, cells: Sequence[Cell], way: str) -> None:
    spreads = list(SPREADS.values())
    grid = np.zeros((len(MAPPED), len(spreads)))
    for cell in cells:
        paired = cell.sooner[way]
        x, y = spreads.index(cell.spread), MAPPED.index(cell.skew)
        grid[y, x] = np.log2(paired.ratio.least or paired.ratio.most)
        shade = (
            "white" if abs(grid[y, x]) > 1 else "black" if paired.verdict else "0.45"
        )
        axes.text(
            x, y, in_words(paired), ha="center", va="center", fontsize=6.5, color=shade
        )
    axes.imshow(grid, cmap="PuOr", vmin=-2, vmax=2, aspect="auto")
    axes.set_xticks(range(len(spreads)), [str(spread) for spread in spreads])
    axes.set_yticks(range(len(MAPPED)), MAPPED)
    axes.tick_params(length=0)
    axes.set_xlabel("fastest class's speed ÷ slowest's")


def _draw_border(axes: Axes, y: float, spreads: tuple[float, float, float]) -> None:
    """A bar over the range of seeds, with a tick at their median, at the row's lower
    edge.
    """
    log_spreads = np.log(list(SPREADS.values()))
    low, middle, high = np.interp(np.log(spreads), log_spreads, range(len(SPREADS)))
    axes.plot(
        [low, high], [y + 0.34] * 2, color="black", linewidth=1, solid_capstyle="butt"
    )
    axes.plot([middle] * 2, [y + 0.24, y + 0.44], color="black", linewidth=1.6)


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    rows = read(ROWS)
    of_rows = cells(rows)
    return {
        "borders": border_table(rows),
        "pooled": pooled_table(rows),
        "not waiting": times_table(of_rows),
        "served": served_table(of_rows),
    }


def main() -> None:
    arguments = study_parser(__doc__).parse_args()
    if arguments.do == "run":
        changes = _owned(arguments.out)
        owned = KeptStudy(FILE, AXES, row_of, "not-waiting-owned", changes)
        write(play_all([*STUDIES, owned], arguments.out, arguments.jobs), ROWS)
    write_page("not_waiting")
    save_picture(map_figure(read(ROWS)), FIGURE / "not-waiting.png", dpi=180)


def _owned(out: Path) -> dict[str, object]:
    """What of the study is played with labels that clients own: its largest spread and
    four servers.
    """
    out.mkdir(parents=True, exist_ok=True)
    plan = yaml.safe_load(FILE.read_text())
    data = {}
    for skew in OWNED:
        path = (out / f"{skew.replace(', ', '-').replace(' ', '-')}.npz").resolve()
        write_data(path, skew.endswith("speed"))
        data[skew] = {"file": str(path), "partition": {"kind": "natural"}}
    servers = ("synchronous", "over-selection", "buffered 2", "asynchronous")
    return {
        "grid.dataset": data,
        "zip": {key: speeds[-1:] for key, speeds in plan["zip"].items()},
        "list": {server: plan["list"][server] for server in servers},
    }


if __name__ == "__main__":
    main()
