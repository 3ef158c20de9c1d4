"""What is known of descent with compressed gradients, learned again: a figure of docs/theory.md.

    python analysis/theory_descent.py [--seeds 3] [--figures docs/images]

Two clients descend the mean of their smooth, non-convex functions with simfed's codecs, with error
feedback as it is played in runs, and without. tests/theory holds the same facts with fewer steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from theory_bandits import ROOT, Interval, slope

from simfed.compress import codec_from_spec, feedback_for
from simfed.ground.seeding import Streams
from simfed.report.pictures import picture_style, save_picture
from simfed.report.style import SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
"""The largest slope of z²/(1 + z²). What the clients quarrel about is larger than all else: in
every gradient, CONFLICT − STEEPEST − NOISE > STEEPEST + NOISE."""
FLOOR = (D - K) * 0.5**2
"""The squared gradient of the entries that never travel from 1, where the slope is ½."""

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

    Client i has f_i = ±1.6·(x_1 + … + x_4) + Σ x²/(1 + x²): the first term is the clients' quarrel,
    and is not in the mean. Each step takes the mean of what the two payloads decode to.
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


def slope_of(found: NDArray[np.float64], grid: Sequence[int]) -> Interval:
    """Of log average over log steps."""
    return slope(found, grid)


def figure_of(seeds: int, say: Callable[[str], None]) -> Figure:
    """Averaged squared gradients over steps, with feedback and without."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 2.8), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    for at, label in enumerate(CODECS):
        found = averages(label, GRID, seeds)
        colour = SERIES_COLOURS[at % len(SERIES_COLOURS)]
        style = "o-" if at < len(SERIES_COLOURS) else "s--"
        ax.loglog(GRID, found.mean(axis=0), style, ms=2.5, lw=0.8, color=colour, label=label)
        say(f"{label}: {found.mean(axis=0).round(4)}, slope {slope_of(found, GRID)}")
    found = averages("top-k", GRID, seeds, feedback=False)
    ax.loglog(GRID, found.mean(axis=0), "kx-", ms=3, lw=0.9, label="top-k without feedback")
    say(f"top-k without feedback: {found.mean(axis=0).round(4)}, floor {FLOOR}")
    ax.axhline(FLOOR, color="0.4", lw=0.8, ls=":")
    line = np.array(GRID[:: len(GRID) - 1])
    ax.loglog(line, 75 / np.sqrt(line), ":", color="0.4", lw=0.8, label="like 1/√T")
    ax.set(xlabel="steps T, with η = 1/(2√T)", ylabel="mean squared gradient")
    ax.set_xticks(GRID, [f"{steps:,}" for steps in GRID])
    ax.set_yticks([0.5, 1, 2, 4, 9], ["0.5", "1", "2", "4", "9"])
    ax.tick_params(which="minor", length=0, labelbottom=False, labelleft=False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=5.5)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--figures", type=Path, default=ROOT / "docs" / "images")
    arguments = parser.parse_args()
    arguments.figures.mkdir(parents=True, exist_ok=True)
    with picture_style():
        figure = figure_of(arguments.seeds, print)
        save_picture(figure, arguments.figures / "theory-descent.png", dpi=220)


if __name__ == "__main__":
    main()
