"""How long the longest rounds are on mobile links: the rows, figure and tables of TAIL.md.

    python analysis/tail_figure.py run [--out studies]   # two minutes, by the clock alone
    python analysis/tail_figure.py write                 # from the kept rows, in seconds

`run` plays scenarios/studies/tail.yaml (or goes on with it) and keeps one row per round in
tail.parquet. `write` makes the page's tables and its figure from these rows alone.

Quantiles are those of all rounds of an arm. Their intervals redraw seeds, and places in the traces
at which runs start, both with replacement, and keep a run's rounds together: 95 % of 1,000 draws.
Ratios of two arms redraw both alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from pages import markdown, study_parser, write_page

from simfed.ground.arrays import Floats
from simfed.report.pictures import build_empty_figure, picture_style, save_picture
from simfed.report.style import SERIES_COLOURS
from simfed.study import StudyResult, load_study, run_study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
STUDY = HERE.parent / "scenarios" / "studies" / "tail.yaml"
ROWS, PAGE = HERE / "tail.parquet", HERE / "TAIL.md"
FIGURE = HERE / "figures" / "tail.png"
MOVING = 24
"""Clients from here on are those on the move, two fifths of the fleet."""
SHARES = (0.5, 0.95, 0.99)
DRAWS = 1000
REFERENCE = ("dense", "wait for all")


# ---- rows ----------------------------------------------------------------------------------------


def rows_of(study: StudyResult) -> pd.DataFrame:
    """One row per round: how long it took, whose uploads it merged, and how many were lost."""
    frames = []
    for entry, run in study.finished:
        parts = run.participations
        lost = parts["outcome"].isin(["dropped", "failed"])
        of_merge = parts.assign(
            merged=~lost, moving=~lost & (parts["client"] >= MOVING), lost=lost
        ).groupby("merge")[["merged", "moving", "lost"]]
        counts = of_merge.sum().reindex(run.rounds["round"], fill_value=0).astype(np.int8)
        frames.append(
            counts.reset_index(drop=True).assign(
                codec=entry["point"]["policy"],
                server=entry["point"]["aggregation"],
                seed=np.int8(entry["seed"]),
                start=np.int8(entry["point"]["zip"].removeprefix("start ")),
                duration_ms=(1e3 * run.rounds["duration_s"]).round().astype(np.int32).to_numpy(),
            )
        )
    rows = pd.concat(frames, ignore_index=True)
    return rows.astype({"codec": "category", "server": "category"})


def read_rows() -> pd.DataFrame:
    return pd.read_parquet(ROWS)


# ---- numbers -------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """A number and the 95 % interval around it."""

    value: float
    low: float
    high: float

    def written(self, pattern: str) -> str:
        """With its interval in brackets."""
        return f"{self.value:{pattern}} [{self.low:{pattern}}, {self.high:{pattern}}]"


class Tail(NamedTuple):
    """What one codec under one server came to."""

    codec: str
    server: str
    quantiles_s: tuple[Interval, ...]
    """p50, p95 and p99 of a round's duration."""
    over_reference: tuple[Interval, ...]
    """How many times those of dense uploads and waiting for all these are."""
    moving: float
    """Of the merged uploads, the share of clients on the move, who are 40 % of the fleet."""
    lost: float
    """Of the participations, the share that was thrown away."""


def cells_of(rows: pd.DataFrame) -> Floats:
    """Durations in seconds by seed, start and round."""
    ordered = rows.sort_values(["seed", "start"], kind="stable")
    seeds, starts = rows["seed"].nunique(), rows["start"].nunique()
    durations: Floats = ordered["duration_ms"].to_numpy(float).reshape(seeds, starts, -1) / 1e3
    return durations


def redrawn(cells: Floats, draws: int = DRAWS) -> Floats:
    """Quantiles (draw, share) of rounds, with seeds and starts redrawn; the same for all arms."""
    rng = np.random.default_rng(0)
    seeds, starts, _ = cells.shape
    rounds = np.empty((draws, cells.size))
    for draw in rounds:
        i, j = rng.integers(seeds, size=seeds), rng.integers(starts, size=starts)
        draw[:] = cells[np.ix_(i, j)].ravel()
    quantiles: Floats = np.quantile(rounds, SHARES, axis=1, overwrite_input=True).T
    return quantiles


def tails(rows: pd.DataFrame) -> list[Tail]:
    """Every codec under every server, in the order of the study."""
    arms = {
        (str(codec), str(server)): arm
        for (codec, server), arm in rows.groupby(["codec", "server"], sort=False, observed=True)
    }
    cells = {name: cells_of(arm) for name, arm in arms.items()}
    values = {name: np.quantile(of_arm, SHARES) for name, of_arm in cells.items()}
    draws = {name: redrawn(of_arm) for name, of_arm in cells.items()}
    results = []
    for name, arm in arms.items():
        sums = arm[["merged", "moving", "lost"]].sum()
        results.append(
            Tail(
                *name,
                _intervals(values[name], draws[name]),
                _intervals(values[name] / values[REFERENCE], draws[name] / draws[REFERENCE]),
                float(sums["moving"] / sums["merged"]),
                float(sums["lost"] / (sums["merged"] + sums["lost"])),
            )
        )
    return results


def _intervals(values: Floats, draws: Floats) -> tuple[Interval, ...]:
    ends = np.quantile(draws, (0.025, 0.975), axis=0).T
    return tuple(
        Interval(float(value), *map(float, end)) for value, end in zip(values, ends, strict=True)
    )


# ---- the page ------------------------------------------------------------------------------------


def table(results: Sequence[Tail]) -> str:
    """Every arm: seconds of a round, and what its tail is of the reference's."""
    lines = [["uploads", "server", "p50 (s)", "p95 (s)", "p99 (s)", "p99 against the first row"]]
    lines[0] += ["merged uploads of those on the move", "thrown away"]
    for one in results:
        of_first = one.over_reference[-1].written(".2f")
        lines.append(
            [
                one.codec,
                one.server,
                *(quantile.written(".2f") for quantile in one.quantiles_s),
                "1" if (one.codec, one.server) == REFERENCE else of_first,
                f"{100 * one.moving:.0f} %",
                f"{100 * one.lost:.0f} %",
            ]
        )
    return markdown(lines)


@picture_style()
def tail_figure(rows: pd.DataFrame, results: Sequence[Tail]) -> Figure:
    """The share of rounds that take longer than so many seconds, by codec; p50 to p99 of all."""
    figure = build_empty_figure(figsize=(7.6, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
    codecs = list(dict.fromkeys(one.codec for one in results))
    servers = list(dict.fromkeys(one.server for one in results))
    colours = dict(zip(codecs, SERIES_COLOURS, strict=False))
    for (codec, server), arm in rows.groupby(["codec", "server"], sort=False, observed=True):
        if server in (servers[0], servers[2]):
            durations = np.sort(arm["duration_ms"].to_numpy(float) / 1e3)
            longer = 1 - np.arange(1, len(durations) + 1) / len(durations)
            style = "-" if server == servers[0] else "--"
            label = codec if server == servers[0] else None
            left.plot(durations, longer, style, color=colours[codec], lw=1.1, label=label)
    left.set(
        xscale="log",
        yscale="log",
        ylim=(2e-3, 1),
        xlabel="seconds",
        ylabel="rounds that take longer",
    )
    left.set_xticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
    left.set_yticks([1, 0.5, 0.05, 0.01], ["100 %", "50 %", "5 %", "1 %"])
    left.tick_params(which="minor", length=0, labelbottom=False, labelleft=False)
    left.legend(frameon=False, loc="lower left", fontsize=6)
    left.set_title(
        "a  wait for all (lines); 25 % more, late merged (dashes)", loc="left", fontsize=8
    )
    _draw_quantiles(right, results, colours, servers)
    right.set_title("b  p50, p95 and p99 with 95 % intervals", loc="left", fontsize=8)
    return figure


def _draw_quantiles(
    axes: Axes, results: Sequence[Tail], colours: Mapping[str, str], servers: Sequence[str]
) -> None:
    codecs = list(colours)
    for one in results:
        x = servers.index(one.server) + 0.19 * (codecs.index(one.codec) - (len(codecs) - 1) / 2)
        colour = colours[one.codec]
        axes.plot(
            [x, x],
            [q.value for q in (one.quantiles_s[0], one.quantiles_s[-1])],
            color=colour,
            lw=0.7,
        )
        for mark, quantile in zip("o^s", one.quantiles_s, strict=True):
            axes.plot([x, x], quantile[1:], color=colour, lw=2.2, alpha=0.45)
            axes.plot([x], [quantile.value], mark, color=colour, ms=3)
    for mark, share in zip("o^s", SHARES, strict=True):
        axes.plot([], [], mark, color="0.3", ms=3, label=f"p{100 * share:.0f}")
    axes.legend(frameon=False, loc="upper right", fontsize=6)
    axes.set_yscale("log")
    axes.set_yticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
    axes.tick_params(axis="y", which="minor", length=0, labelleft=False)
    axes.set_xticks(
        range(len(servers)),
        [name.replace(", ", ",\n").replace("for all", "\nfor all") for name in servers],
        fontsize=6,
    )
    axes.set_ylabel("seconds of a round")


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    return {"tails": table(tails(read_rows()))}


def main() -> None:
    arguments = study_parser(__doc__, "studies").parse_args()
    if arguments.do == "run":
        run_study(STUDY, arguments.out / "tail", jobs=arguments.jobs, time_only=True)
        rows_of(load_study(arguments.out / "tail")).to_parquet(ROWS, index=False)
    write_page("tail_figure")
    rows = read_rows()
    save_picture(tail_figure(rows, tails(rows)), FIGURE, dpi=180)


if __name__ == "__main__":
    main()
