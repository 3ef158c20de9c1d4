"""Ten boards on one access point, simulated three ways: scenarios/README.md.

    python analysis/cell_figure.py run [--out studies] [--jobs 2]
    python analysis/cell_figure.py write

Runs the study scenarios/studies/cell.yaml (or goes on with it: what is done is not done
again), keeps a row per run in analysis/cell_rows.csv, and from those rows draws
docs/images/cell.png and makes the page's table. `write` does the latter alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from kept import ROOT, KeptStudy, Row, play_all, read, study_parser, write
from pages import markdown, write_page

from simfed.record.read import Run
from simfed.report.pictures import build_empty_figure, picture_style, save_picture
from simfed.report.style import SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = Path(__file__).with_name("cell_rows.csv")
PAGE = ROOT / "scenarios" / "README.md"
PICTURE = ROOT / "docs" / "images" / "cell.png"
WORLDS = {
    "own links": "links of\ntheir own",
    "one link": "one\nshared link",
    "cell": "cell",
}
POLICIES = ("top-k", "ascend", "balance")
STRATEGIES = ("top-k", "random-k", "periodic-k")
FAR = 8
"""From this client on, boards are two walls away."""
_PHASES = ("downlink_s", "training_s", "compression_s", "uplink_s")
_PHASE_NAMES = ("download", "training", "compression", "upload")


def row_of(run: Run, curve: pd.DataFrame) -> Row:
    """Return how long a run's rounds took, whom they waited for, what was chosen."""
    rounds, parts = run.rounds, run.participations
    far = parts["client"] >= FAR
    # the phases of whom each round waited for
    last = parts.merge(
        rounds[["round", "critical_client"]].astype(int),
        left_on=["round", "client"],
        right_on=["round", "critical_client"],
    )
    row = {
        "round_s": rounds["duration_s"].mean(),
        **{f"critical_{phase}": last[phase].mean() for phase in _PHASES},
        "near_downlink_s": parts["downlink_s"][~far].mean(),
        "far_critical": (rounds["critical_client"] >= FAR).mean(),
        **{f"share_{name}": (parts["arm"] == name).mean() for name in STRATEGIES},
        "k_near": parts["k"][~far].mean(),
        "k_far": parts["k"][far].mean(),
        "accuracy": run.summary["accuracy"]["mean"]["final"],
    }
    return {key: round(float(x), 5) for key, x in row.items()}


FILE = ROOT / "scenarios" / "studies" / "cell.yaml"
STUDIES = [KeptStudy(FILE, {"arm": "list"}, row_of)]


def read_rows() -> pd.DataFrame:
    """Return the kept rows; an arm is a world and a policy."""
    rows = read(ROWS)
    arms = rows.pop("arm").str.partition(", ")
    return rows.assign(world=arms[0], policy=arms[2])


@picture_style()
def draw(rows: pd.DataFrame) -> Figure:
    """Rounds, stragglers and choices in the three worlds."""
    figure = build_empty_figure(figsize=(7.2, 2.7), layout="constrained")
    panels = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
    _draw_rounds(panels[0], rows[rows["policy"] == "top-k"])
    _draw_stragglers(panels[1], rows)
    _draw_choices(panels[2], rows)
    for panel, letter in zip(panels, "abc", strict=True):
        panel.set_title(letter, loc="left", fontweight="bold")
        panel.set_xticks(range(len(WORLDS)), WORLDS.values())
    return figure


def _draw_rounds(axes: Axes, rows: pd.DataFrame) -> None:
    means = rows.groupby("world").mean(numeric_only=True)
    bottom = np.zeros(len(WORLDS))
    for k, (phase, name) in enumerate(zip(_PHASES, _PHASE_NAMES, strict=True)):
        heights = 1e3 * means.loc[list(WORLDS), f"critical_{phase}"].to_numpy()
        colour = SERIES_COLOURS[k]
        axes.bar(range(len(WORLDS)), heights, 0.6, bottom, label=name, color=colour)
        bottom += heights
    axes.set_ylabel("a round's last client, ms")
    axes.legend(frameon=False, loc="upper left")


def _draw_stragglers(axes: Axes, rows: pd.DataFrame) -> None:
    for k, policy in enumerate(POLICIES):
        shares = rows[rows["policy"] == policy].groupby("world")["far_critical"].mean()
        at = np.arange(len(WORLDS)) + 0.25 * (k - 1)
        heights = 100 * shares.loc[list(WORLDS)].to_numpy()
        axes.bar(at, heights, 0.22, color=SERIES_COLOURS[k], label=policy)
    axes.axhline(20, color="#7F7F7F", linewidth=0.8, linestyle=":")
    axes.set_ylabel("rounds that wait for a far board, %")
    axes.set_ylim(0, 130)
    axes.legend(
        frameon=False, loc="upper center", ncols=3, columnspacing=0.8, handlelength=1
    )


def _draw_choices(axes: Axes, rows: pd.DataFrame) -> None:
    means = (
        rows[rows["policy"] == "balance"].groupby("world")[["k_near", "k_far"]].mean()
    )
    for k, (column, name) in enumerate((("k_near", "near"), ("k_far", "far"))):
        heights = means.loc[list(WORLDS), column].to_numpy()
        at = np.arange(len(WORLDS)) + 0.3 * (k - 0.5)
        axes.bar(at, heights, 0.26, color=SERIES_COLOURS[k + 3], label=f"{name} boards")
    axes.set_ylabel("K that balance chooses")
    axes.set_ylim(0, 6500)
    axes.legend(
        frameon=False, loc="upper center", ncols=2, columnspacing=0.8, handlelength=1
    )


def table(rows: pd.DataFrame) -> str:
    """Means over seeds, as Markdown."""
    lines = [
        [
            "world",
            "policy",
            "round",
            "a near board's download",
            "waits for a far board",
        ]
    ]
    lines[0] += ["top-k, random-k, periodic-k", "K near, far", "accuracy"]
    means = rows.groupby(["world", "policy"]).mean(numeric_only=True)
    for world in WORLDS:
        for policy in POLICIES:
            mean = means.loc[(world, policy)]
            shares = ", ".join(
                f"{100 * mean[f'share_{name}']:.0f}" for name in STRATEGIES
            )
            lines.append(
                [
                    world,
                    policy,
                    f"{1e3 * mean['round_s']:.0f} ms",
                    f"{1e3 * mean['near_downlink_s']:.0f} ms",
                    f"{100 * mean['far_critical']:.0f} %",
                    f"{shares} %",
                    f"{mean['k_near']:,.0f}, {mean['k_far']:,.0f}",
                    f"{100 * mean['accuracy']:.1f} %",
                ]
            )
    return markdown(lines)


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    return {"cell": table(read_rows())}


def main() -> None:
    """Run what is missing, keep the rows, draw, write the table."""
    arguments = study_parser(__doc__).parse_args()
    if arguments.do == "run":
        write(play_all(STUDIES, arguments.out, arguments.jobs), ROWS)
    save_picture(draw(read_rows()), PICTURE, dpi=200)
    write_page("cell_figure")


if __name__ == "__main__":
    main()
