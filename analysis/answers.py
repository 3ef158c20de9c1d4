"""Which compression on which device and link, at one learning rate: the rows, figure
and later table of ANSWERS.md.

    # some two hours on two cores
    python analysis/answers.py run [--out studies] [--jobs 2]
    # from the kept rows, in seconds
    python analysis/answers.py write

`run` plays scenarios/studies/answers.yaml (or goes on with it: what is done is not done
again) under seeds that choose and under seeds that report, and under the latter once
more with momentum at the server, without which DGC's own momentum could not be told
from its compression. It keeps one row per run and accuracy in answers.parquet. `write`
makes the table and the figure from these rows alone; the page's first tables are those
of answers_first.py.

Chosen under other seeds than those reported: the level of Top-K and the way to use, by
cell (a device on a link) and accuracy, as the one of least mean time. Intervals are
Student's t over seeds (95 %).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from kept import ROOT, KeptStudy, Row, play_all, read, spent_to, study_parser, write
from pages import in_words, markdown, write_page

from simfed.report.pictures import build_empty_figure, picture_style, save_picture
from simfed.report.statistics import PairedTimes, compare_times

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simfed.record.read import Run

HERE = Path(__file__).resolve().parent
FILE = ROOT / "scenarios" / "studies" / "answers.yaml"
ROWS, PAGE = HERE / "answers.parquet", HERE / "ANSWERS.md"
FIGURE = HERE / "figures" / "answers.png"
REPORTED, CHOOSING = [0, 1, 2, 3, 4], [100, 101, 102]
TARGETS = (0.85, 0.93)
DEVICE = "clients[0].device.speed"
AXES = {"device": DEVICE, "link": "list", "arm": "policy"}
LEVELS = ("top-k@0.1%", "top-k@0.3%", "top-k@1%", "top-k@3%", "top-k@10%")
DGC = "dgc@1%"
"""The only way with a momentum of its own."""
WITH_MOMENTUM: dict[str, object] = {
    "dense, server momentum": "dense",
    "8 bit, server momentum": {"qsgd": {"levels": 127}},
}
"""What is played once more with momentum at the server: 0.9, as DGC has at its
clients."""
MOMENTUM: dict[str, object] = {
    "method": {"kind": "fedopt", "optimizer": "momentum"},
    "grid.policy": {
        way: {"kind": "uniform", "strategy": codec}
        for way, codec in WITH_MOMENTUM.items()
    },
}
"""What that changes in the study."""
RIVAL = "8 bit, server momentum"
_LEVEL = "Top-K, best level"
_ROWS = ("8 bit", "sign", _LEVEL, "top-k@1%", "balance", "ascend", DGC, *WITH_MOMENTUM)
_SHORT = {
    "Redmi Note 8": "Redmi",
    "Raspberry Pi 4": "Pi 4",
    "Raspberry Pi 5": "Pi 5",
    "Jetson Orin Nano": "Orin",
    "laptop i7-8550U": "laptop",
    "Tesla V100": "V100",
}
_DEEPEST = 2.0
"""The power of two whose colour is the darkest."""
RELEVANT = 1.05
"""The smallest ratio of times that is called sooner."""


# ---- rows ----------------------------------------------------------------------------


def rows_of(run: Run, curve: pd.DataFrame) -> list[Row]:
    """Return a row per accuracy: what was spent when it was first reached, else by the
    end. Bytes are what a device sent, a mean over the devices.
    """
    sent = run.participations.groupby("round")["uplink_bytes"].sum().cumsum()
    curve = curve.assign(
        sent_bytes=curve["round"].map(sent / run.participations["client"].nunique())
    )
    end = float(curve["accuracy"].iloc[-1])
    spent = {
        target: spent_to(curve, target, ("at_s", "sent_bytes")) for target in TARGETS
    }
    return [
        {"target": target, **row, "final_accuracy": end}
        for target, row in spent.items()
    ]


def studies_of(
    name: str, changes: Mapping[str, object] | None = None
) -> list[KeptStudy]:
    """Return the study with some changes, under all seeds and once more with momentum.

    name: with what the folders of its runs begin.
    """
    return [
        KeptStudy(FILE, AXES, rows_of, name + part, {**(changes or {}), **more})
        for part, more in (
            ("", {"seeds": REPORTED}),
            ("-choosing", {"seeds": CHOOSING}),
            ("-momentum", {"seeds": REPORTED, **MOMENTUM}),
        )
    ]


STUDIES = studies_of("answers")


# ---- answers -------------------------------------------------------------------------


Times = dict[str, dict[int, tuple[float, bool]]]
"""Way → seed → seconds, and whether the accuracy was reached by then."""


class Answer(NamedTuple):
    """What to use in one cell for one accuracy."""

    device: str
    link: str
    target: float
    level: str
    """Of Top-K, chosen."""
    use: str
    """The way chosen; `dense` where none is clearly sooner."""
    plain: str
    """The same among ways without momentum."""
    over_dense: dict[str, PairedTimes]
    """Way → how many times sooner than sending everything."""
    rival: PairedTimes
    """8 bits with momentum at the server against DGC."""


def times_of(rows: pd.DataFrame, spent: str = "at_s") -> Times:
    """Return when each way was at the accuracy, of one cell and accuracy.

    Or what else of a column it had spent by then.
    """
    times: Times = {}
    for way, seed, *time in rows[["arm", "seed", spent, "reached"]].itertuples(
        index=False
    ):
        times.setdefault(way, {})[seed] = (time[0], time[1])
    return times


def compare_ways(times: Times, way: str, reference: str) -> PairedTimes:
    """How many times sooner a way was than another, over the seeds of both."""
    seeds = sorted(times[way].keys() & times[reference].keys())
    mine_s, mine_reached = zip(*(times[way][seed] for seed in seeds), strict=True)
    other_s, other_reached = zip(
        *(times[reference][seed] for seed in seeds), strict=True
    )
    return compare_times(
        mine_s, mine_reached, other_s, other_reached, relevant_ratio=RELEVANT
    )


def answers(rows: pd.DataFrame) -> list[Answer]:
    """Every cell's answer to every accuracy, in the order of the study."""
    cells = []
    for (device, link, target), cell in rows.groupby(
        ["device", "link", "target"], sort=False
    ):
        reported = cell[cell["seed"].isin(REPORTED)]
        chosen, times = times_of(cell[cell["seed"].isin(CHOOSING)]), times_of(reported)
        level = best_way(chosen, LEVELS)
        ways = [way for way in chosen if way not in LEVELS or way == level]
        over_dense = {way: compare_ways(times, way, "dense") for way in times}
        bests = (
            best_way(chosen, some)
            for some in (ways, [way for way in ways if way != DGC])
        )
        use, plain = (
            best if over_dense[best].verdict > 0 else "dense" for best in bests
        )
        cells.append(
            Answer(
                device=str(device),
                link=str(link),
                target=float(target),
                level=level,
                use=use,
                plain=plain,
                over_dense=over_dense,
                rival=compare_ways(times, RIVAL, DGC),
            )
        )
    return cells


def best_way(times: Times, ways: Sequence[str]) -> str:
    """The way of least mean time.

    Where none got there under every seed, that which did most often, then the sooner of
    these.
    """

    def rank(way: str) -> tuple[float, int, float]:
        there = [at_s for at_s, reached in times[way].values() if reached]
        mean_log = float(np.log(there).mean()) if there else math.inf
        return (
            mean_log if len(there) == len(times[way]) else math.inf,
            -len(there),
            mean_log,
        )

    return min(ways, key=rank)


# ---- the page ------------------------------------------------------------------------


def name_of(way: str) -> str:
    """What tables call a way.

    >>> name_of("top-k@0.3%"), name_of("8 bit | dgc@1%")
    ('Top-K 0.3 %', '8 bit and DGC 1 %')
    """
    for short, long in (
        ("top-k@", "Top-K "),
        ("dgc@", "DGC "),
        ("ascend", "ASCEND"),
        ("%", " %"),
        (" | ", " and "),
    ):
        way = way.replace(short, long)
    return way


def short_table(
    cells: Sequence[Answer], target: float, words: Callable[[Answer], str]
) -> str:
    """A line per link, a column per device."""
    devices = list(dict.fromkeys(cell.device for cell in cells))
    lines = [["link", *devices]]
    for link in dict.fromkeys(cell.link for cell in cells):
        here = {c.device: c for c in cells if (c.link, c.target) == (link, target)}
        lines.append([link, *(words(here[device]) for device in devices)])
    return markdown(lines)


def use_in_words(cell: Answer) -> str:
    """What to use, how many times sooner than dense, and the same without momentum."""
    first, second = (
        "dense"
        if way == "dense"
        else f"{name_of(way)} {in_words(cell.over_dense[way])}×"
        for way in (cell.use, cell.plain)
    )
    return first if cell.use == cell.plain else f"{first}<br>{second}"


def rival_in_words(cell: Answer) -> str:
    """How many times sooner than DGC 8 bits with momentum are.

    In bold where that is clear.
    """
    text = f"{in_words(cell.rival)}×"
    return f"**{text}**" if cell.rival.verdict > 0 else text


@picture_style()
def answers_figure(cells: Sequence[Answer]) -> Figure:
    """Two maps, one per accuracy: how many times sooner than dense each way was, by
    cell.
    """
    figure = build_empty_figure(figsize=(9.6, 5.6), layout="constrained")
    for letter, axes, target in zip("ab", figure.subplots(2, 1), TARGETS, strict=True):
        _draw_map(axes, [cell for cell in cells if cell.target == target])
        axes.set_title(
            f"{letter}  times sooner than dense at {target:.0%}", loc="left", fontsize=8
        )
    return figure


def _draw_map(axes: Axes, cells: Sequence[Answer]) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    shades = colormaps["PuOr"]
    links = list(dict.fromkeys(cell.link for cell in cells))
    ordered = sorted(cells, key=lambda cell: links.index(cell.link))
    places = [i + 0.3 * links.index(cell.link) for i, cell in enumerate(ordered)]
    for x, cell in zip(places, ordered, strict=True):
        for y, row in enumerate(_ROWS):
            way = cell.level if row == _LEVEL else row
            paired = cell.over_dense[way]
            ratio = paired.ratio.least if paired.ratio.least > 0 else paired.ratio.most
            depth = max(-1.0, min(1.0, math.log2(ratio) / _DEEPEST))
            box = Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=shades((depth + 1) / 2))
            axes.add_patch(box)
            shade = (
                "white" if abs(depth) > 0.5 else "black" if paired.verdict else "0.45"
            )
            text = in_words(paired)
            axes.text(x, y, text, ha="center", va="center", fontsize=5.5, color=shade)
            if way == cell.use:
                frame = Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, fill=False, lw=1.2)
                axes.add_patch(frame)
    axes.set_xticks(places, [_SHORT[cell.device] for cell in ordered], fontsize=5.5)
    axes.set_yticks(range(len(_ROWS)), [name_of(row) for row in _ROWS])
    axes.set(xlim=(-0.5, places[-1] + 0.5), ylim=(len(_ROWS) - 0.5, -0.5))
    top = axes.secondary_xaxis("top")
    of_link = {
        k: [x for x, c in zip(places, ordered, strict=True) if c.link == k]
        for k in links
    }
    top.set_xticks([sum(xs) / len(xs) for xs in of_link.values()], links)
    for axis in (axes, top):
        axis.tick_params(length=0)
        for side in axis.spines.values():
            side.set_visible(False)


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    return {"at 93%": short_table(answers(read(ROWS)), TARGETS[-1], use_in_words)}


def main() -> None:
    arguments = study_parser(__doc__).parse_args()
    if arguments.do == "run":
        write(play_all(STUDIES, arguments.out, arguments.jobs), ROWS)
    write_page("answers")
    save_picture(answers_figure(answers(read(ROWS))), FIGURE, dpi=180)


if __name__ == "__main__":
    main()
