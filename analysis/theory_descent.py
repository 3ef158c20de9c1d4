"""Descent with compressed gradients, learned again: a figure and the tables of
docs/theory.md.

    python analysis/theory_descent.py [--seeds 3]

Two clients descend the mean of their smooth, non-convex functions with simfed's codecs,
with error feedback as it is played in runs, and without. What tables quote is kept in
theory_rows.csv, a row per seed. tests/theory holds the same facts with fewer steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pages import markdown, write_page
from theory_rows import PAGE, ROOT, Interval, Rows, slope

from simfed.compress import codec_from_spec, feedback_for
from simfed.ground.seeding import Streams
from simfed.report.pictures import build_empty_figure, picture_style, save_picture
from simfed.report.style import SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PAGE"]
Floats = NDArray[np.float32]

D, K = 40, 4
"""Entries of the vector, and how many of them travel."""
LAYOUT = [(5, 8)]
"""As a matrix, for codecs of low rank."""
CONFLICT = 1.6
"""How hard the clients pull at the first K entries, in opposite directions."""
NOISE = 0.1
"""A gradient's entries are off by as much, uniformly."""
STEEPEST = 3 * 3**0.5 / 8
"""The largest slope of z²/(1 + z²). What the clients quarrel about is larger than all
else: in every gradient, CONFLICT − STEEPEST − NOISE > STEEPEST + NOISE."""
FLOOR = (D - K) * 0.5**2
"""The squared gradient of the entries that never travel from 1, where the slope is
½."""

GRID = (400, 1600, 6400)
CODECS = (
    "dense",
    "top-k",
    "random-k",
    "periodic-k",
    "ef-sign",
    "qsgd(4)",
    "fp16",
    "bf16",
    "top-k+qsgd(4)",
    "random-k+qsgd(4)",
    "powersgd(2)",
    "svd(2)",
)
"""Contractive ones: their errors are fed back."""
STALLS = "top-k without feedback"


def gradient(x: Floats) -> Floats:
    """Of Σ x²/(1 + x²), the mean of the clients' functions."""
    return 2 * x / (1 + x * x) ** 2


class Descent(NamedTuple):
    """What came of a descent."""

    average: float
    """Mean over the steps of the squared norm of the gradient."""
    end: Floats


def descend(label: str, steps: int, seed: int, *, feedback: bool = True) -> Descent:
    """So many steps from x = 1 with η = 1/(2√steps).

    Client i has f_i = ±1.6·(x_1 + … + x_4) + Σ x²/(1 + x²): the first term is the
    clients' quarrel, and is not in the mean. Each step takes the mean of what the two
    payloads decode to.
    """
    streams = Streams(seed)
    noise = streams("noise").uniform(-NOISE, NOISE, (steps, 2, D)).astype(np.float32)
    draws = streams("codec")
    player = feedback_for(codec_from_spec(label), feedback)
    x = np.ones(D, np.float32)
    residuals = [np.zeros(D, np.float32) for _ in range(2)]
    memories: list[Any] = [None, None]
    quarrel = np.zeros(D, np.float32)
    quarrel[:K] = CONFLICT
    rate = np.float32(0.5 * steps**-0.5)
    total = 0.0
    for step in range(steps):
        true = gradient(x)
        total += float(true @ true)
        moved = np.zeros(D, np.float32)
        for client, side in enumerate((quarrel, -quarrel)):
            seen = true + side + noise[step, client]
            payload = player.encode_in_place(
                seen, residuals[client], K, draws, state=memories[client], layout=LAYOUT
            )
            memories[client] = payload.state
            moved += payload.dense()
        x -= rate / 2 * moved
    return Descent(total / steps, x)


def averages(
    label: str, grid: Sequence[int], seeds: int, *, feedback: bool = True
) -> NDArray[np.float64]:
    """The averages of `descend` (seeds, grid)."""
    return np.array(
        [
            [
                descend(label, steps, 1000 * at + seed, feedback=feedback).average
                for at, steps in enumerate(grid)
            ]
            for seed in range(seeds)
        ]
    )


def slope_of(gradients: NDArray[np.float64], grid: Sequence[int]) -> Interval:
    """Of log average over log steps."""
    return slope(gradients, grid)


def figure_of(seeds: int, rows: Rows) -> Figure:
    """Averaged squared gradients over steps, with feedback and without."""
    figure = build_empty_figure(figsize=(4.6, 2.8), layout="constrained")
    ax = figure.subplots()
    for at, label in enumerate(CODECS):
        gradients = averages(label, GRID, seeds)
        colour = SERIES_COLOURS[at % len(SERIES_COLOURS)]
        style = "o-" if at < len(SERIES_COLOURS) else "s--"
        ax.loglog(
            GRID,
            gradients.mean(axis=0),
            style,
            ms=2.5,
            lw=0.8,
            color=colour,
            label=label,
        )
        for at_steps, of_seeds in zip(GRID, gradients.T, strict=True):
            rows.put("squared gradient", label, at_steps, of_seeds)
    gradients = averages("top-k", GRID, seeds, feedback=False)
    ax.loglog(
        GRID,
        gradients.mean(axis=0),
        "kx-",
        ms=3,
        lw=0.9,
        label="top-k without feedback",
    )
    for at_steps, of_seeds in zip(GRID, gradients.T, strict=True):
        rows.put("squared gradient", STALLS, at_steps, of_seeds)
    ax.axhline(FLOOR, color="0.4", lw=0.8, ls=":")
    line = np.array(GRID[:: len(GRID) - 1])
    ax.loglog(line, 75 / np.sqrt(line), ":", color="0.4", lw=0.8, label="like 1/√T")
    ax.set(xlabel="steps T, with η = 1/(2√T)", ylabel="mean squared gradient")
    ax.set_xticks(GRID, [f"{steps:,}" for steps in GRID])
    ax.set_yticks([0.5, 1, 2, 4, 9], ["0.5", "1", "2", "4", "9"])
    ax.tick_params(which="minor", length=0, labelbottom=False, labelleft=False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=5.5)
    return figure


def descent_table(rows: Rows) -> str:
    """Mean squared gradients with feedback, and how they fall."""
    lines = [
        ["codec", f"mean squared gradient at {GRID[0]}", f"at {GRID[-1]:,}", "slope"]
    ]
    for label in CODECS:
        gradients = rows.over("squared gradient", label, GRID)
        ends = (f"{gradients[:, at].mean():.3f}" for at in (0, -1))
        lines.append([f"`{label}`", *ends, f"{slope_of(gradients, GRID)}"])
    return markdown(lines)


def stalled_table(rows: Rows) -> str:
    """Mean squared gradients without feedback."""
    gradients = rows.over("squared gradient", STALLS, GRID).mean(axis=0)
    head = ["steps", *(f"{steps:,}" for steps in GRID), "in the limit"]
    cells = [f"{value:.2f}" for value in gradients]
    return markdown([head, ["`top-k` without feedback", *cells, f"{FLOOR:g}"]])


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    rows = Rows.read()
    return {"descent": descent_table(rows), "stalled": stalled_table(rows)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    rows = Rows.read()
    with picture_style():
        figure = figure_of(parser.parse_args().seeds, rows)
        save_picture(figure, ROOT / "docs" / "images" / "theory-descent.png", dpi=220)
    rows.save()
    write_page("theory_descent")


if __name__ == "__main__":
    main()
