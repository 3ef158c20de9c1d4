"""The evaluation's figures, drawn from compact results: what each needs, and how it looks.

One colour per policy in every figure (simfed's own, told apart with colour-vision deficiencies),
and one line style beside it, so that a print without colour still reads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from results import (
    CONSTANTS,
    FIXED,
    LARGE,
    NAMES,
    POLICIES,
    SMALL,
    WEIGHTS,
    Result,
    Results,
    Runs,
    Setting,
    final_accuracy,
    shares,
)

from simfed.report.pictures import build_empty_figure, picture_style
from simfed.report.statistics import estimate_mean
from simfed.report.style import choose_arm_colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = choose_arm_colours(POLICIES)
_DASHES: dict[str, Any] = {
    "top-k": "-",
    "random-k": (0, (4, 1.5)),
    "periodic-k": (0, (1, 1)),
    "exp3": (0, (5, 1, 1, 1)),
    "ascend": "-",
}
_WIDTH_IN = 7.0
_POINTS = 200
_FEW = 10
"""Evaluations up to which each is marked."""
_ENOUGH = 5
"""Seeds from which on an interval is drawn; below, Student's t is wider than all there is to see."""
_LAST = 0.3
"""The last part of a run, shown again on a scale of its own (which may cut bands off)."""


@dataclass(frozen=True)
class Panel:
    """One set of axes: runs of several policies under one setting."""

    title: str
    changes: dict[str, Any]
    policies: tuple[str, ...] = POLICIES
    task: str = "mnist"
    prototype: str | None = None

    def settings(self) -> list[Setting]:
        return [Setting(self.task, p, tuple(self.changes.items())) for p in self.policies]


@dataclass(frozen=True)
class FigureSpec:
    """A figure, and what it is made of."""

    name: str
    title: str
    says: str
    """How to read it."""
    panels: tuple[Panel, ...]
    seeds: int
    """Asked for, per panel and policy."""
    draw: Callable[[FigureSpec, Results], Figure]

    def of(self, panel: Panel, results: Results) -> dict[str, Runs]:
        """Policy → the runs that a panel shows: of its first seeds, the same for all."""
        return {
            setting.policy: {s: run for s, run in results.of(setting).items() if s < self.seeds}
            for setting in panel.settings()
        }

    def runs(self, results: Results) -> list[Result]:
        """Its distinct runs, as far as there are any."""
        by_hash = {
            run.hash: run
            for panel in self.panels
            for runs in self.of(panel, results).values()
            for run in runs.values()
        }
        return list(by_hash.values())

    def drawn(self, results: Results) -> list[Panel]:
        """The panels of which there are runs."""
        return [panel for panel in self.panels if any(self.of(panel, results).values())]

    @property
    def planned(self) -> int:
        """How many runs it asks for; a run that two panels show counts once."""
        keys = {setting.key() for panel in self.panels for setting in panel.settings()}
        return len(keys) * self.seeds

    def caption(self, results: Results) -> str:
        """Seeds and runs in words."""
        counts = [
            len(runs) for panel in self.panels for runs in self.of(panel, results).values() if runs
        ]
        least, most = min(counts), max(counts)
        seeds = f"{most} seed{'s' * (most > 1)}" if least == most else f"{least} to {most} seeds"
        of_runs = f"{len(self.runs(results))} of {self.planned} runs"
        drawn = self.drawn(results)
        if missing := [panel.title for panel in self.panels if panel not in drawn]:
            of_runs += f"; not run: {', '.join(missing)}"
        if most == 1:
            return f"single seeds, so no band; {of_runs}"
        shown = ["mean" + " and 95 % t interval" * (most >= _ENOUGH) + f" over {seeds}"]
        if least < _ENOUGH:
            shown.append(f"with fewer than {_ENOUGH} every seed is drawn, and no interval")
        return "; ".join([*shown, of_runs])


# --- accuracy over simulated time --------------------------------------------------------------


@picture_style()
def _curves(spec: FigureSpec, results: Results) -> Figure:
    """Above the whole runs, below their last part on the scale of its means."""
    panels = spec.drawn(results)
    columns = len(panels)
    figure, axes = _axes(2 * columns, 2.0, columns)
    for ax, near, panel in zip(axes[:columns], axes[columns:], panels, strict=True):
        ax.set_title(panel.title, fontsize=7)
        curves = [
            _curve((ax, near), policy, list(runs.values()), panel.prototype)
            for policy, runs in spec.of(panel, results).items()
            if runs
        ]
        ax.set_xlim(left=0)
        _percent_axis(ax, max(mean.max() for _, mean in curves))
        _zoom(near, curves)
        near.set_xlabel("simulated time (s)")
    for ax in (axes[0], axes[columns]):
        ax.set_ylabel("test accuracy (%)")
    _legend(figure, axes, spec, results)
    return figure


_Curve = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""Times, and the mean accuracy (%) at them."""


def _curve(
    both: tuple[Axes, Axes], policy: str, runs: Sequence[Result], prototype: str | None
) -> _Curve:
    """Mean over seeds at equal simulated times, as long as every seed has a value."""
    grid = np.linspace(max(run.at_s[0] for run in runs), min(run.at_s[-1] for run in runs), _POINTS)
    values = np.array([np.interp(grid, run.at_s, run.accuracies(prototype)) for run in runs])
    bands = [estimate_mean(column.tolist()) for column in values.T]
    colour = COLOURS[policy]
    for ax in both:
        ax.plot(
            grid,
            [100 * b.least for b in bands],
            color=colour,
            linestyle=_DASHES[policy],
            lw=1.1,
            label=NAMES[policy],
            zorder=3 if policy == "ascend" else 2,
        )
        if len(runs) >= _ENOUGH:
            low = [100 * max(0.0, b.low) for b in bands]
            high = [100 * min(1.0, b.high) for b in bands]
            ax.fill_between(grid, low, high, color=colour, alpha=0.18, lw=0)
        elif len(runs) > 1:
            ax.plot(grid, 100 * values.T, color=colour, lw=0.35, alpha=0.6)
        for run in runs:
            if len(run.at_s) <= _FEW:  # the line between them is not measured
                ax.plot(
                    run.at_s, [100 * a for a in run.accuracies(prototype)], ".", color=colour, ms=5
                )
    return grid, 100 * values.mean(axis=0)


def _zoom(ax: Axes, drawn: Sequence[_Curve]) -> None:
    """To the last part of what is drawn, between the even percentages around its means."""
    ax.grid(color="black", alpha=0.12, lw=0.4)
    end_s = max(grid[-1] for grid, _ in drawn)
    from_s = (1 - _LAST) * end_s
    shown = [mean[grid >= from_s] for grid, mean in drawn if grid[-1] >= from_s]
    low = 2 * math.floor(min(part.min() for part in shown) / 2)
    high = 2 * math.ceil(max(part.max() for part in shown) / 2)
    ax.set_xlim(from_s, end_s)
    ax.set_ylim(low, max(low + 2, high))


# --- who chose what ----------------------------------------------------------------------------


@picture_style()
def _selection(spec: FigureSpec, results: Results) -> Figure:
    """Shares of strategies in rounds of free choice: grouped bars per panel and policy."""
    panels = spec.drawn(results)
    figure, axes = _axes(len(panels), 1.9, min(3, len(panels)))
    for ax, panel in zip(axes, panels, strict=True):
        ax.set_title(panel.title, fontsize=7)
        for at, runs in enumerate(spec.of(panel, results).values()):
            for i, arm in enumerate(FIXED):
                values = [100 * shares(run, str(panel.prototype))[arm] for run in runs.values()]
                if values:
                    _bar(ax, at + 0.25 * (i - 1), values, arm)
        ax.axhline(100 / 3, color="black", lw=0.5, ls=":")
        ax.set_xticks(range(len(panel.policies)), [NAMES[p] for p in panel.policies])
        ax.set_xlim(-0.5, len(panel.policies) - 0.5)
        ax.set_ylim(0, 100)
    axes[0].set_ylabel("share of free choices (%)")
    _legend(figure, axes, spec, results)
    return figure


def _bar(ax: Axes, x: float, values: Sequence[float], arm: str) -> None:
    band = estimate_mean(values)
    low, high = max(0.0, band.low), min(100.0, band.high)  # a share ends there, and so do its caps
    enough = len(values) >= _ENOUGH
    error = [[band.least - low], [high - band.least]] if enough else None
    hatch = {"top-k": "", "random-k": "////", "periodic-k": "...."}[arm]
    ax.bar(
        x, band.least, 0.23, yerr=error, color=COLOURS[arm], hatch=hatch, edgecolor="white", lw=0,
        label=NAMES[arm], error_kw={"lw": 0.7, "capsize": 1.5, "clip_on": False},
    )  # fmt: skip
    if not enough:
        ax.plot([x] * len(values), values, ".", color="black", ms=2.5, clip_on=False)


# --- sensitivity -------------------------------------------------------------------------------


@picture_style()
def _sensitivity(spec: FigureSpec, results: Results) -> Figure:
    """Final accuracy per setting: every seed, their mean, and from enough seeds its interval."""
    figure, axes = _axes(2, 2.0, 2)
    groups = [[p for p in spec.panels if p.title.startswith(s)] for s in ("(ρ, β)", "c")]
    for ax, panels in zip(axes, groups, strict=True):
        for x, panel in enumerate(panels):
            runs = spec.of(panel, results)["ascend"]
            values = [100 * run.final() for run in runs.values()]
            ax.plot([x] * len(values), values, ".", color=COLOURS["ascend"], alpha=0.45, ms=4)
            if values:
                band, _ = final_accuracy(runs)
                ax.plot([x], [100 * band.least], "D", color=COLOURS["ascend"], ms=3.5)
                if len(values) >= _ENOUGH:
                    ax.vlines(x, 100 * band.low, 100 * band.high, color=COLOURS["ascend"], lw=0.9)
        labels = [panel.title.partition(" = ")[2] for panel in panels]
        ax.set_xticks(range(len(panels)), labels)
        ax.set_xlim(-0.5, len(panels) - 0.5)
        ax.set_xlabel(panels[0].title.partition(" = ")[0])
        ax.grid(axis="y", color="black", alpha=0.12, lw=0.4)
    axes[1].sharey(axes[0])
    axes[0].set_ylabel("final test accuracy (%)")
    _note(figure, spec, results)
    return figure


# --- shared ------------------------------------------------------------------------------------


def _axes(count: int, height_in: float, columns: int) -> tuple[Figure, list[Axes]]:
    rows = math.ceil(count / columns)
    figure, axes = axes_in((height_in,) * rows, (1.0,) * columns)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def axes_in(heights_in: Sequence[float], widths: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """Rows of so many inches, columns of such relative widths; the axes row by row."""
    figure = build_empty_figure(figsize=(_WIDTH_IN, sum(heights_in) + 0.45), layout="constrained")
    grid = figure.add_gridspec(
        len(heights_in), len(widths), height_ratios=heights_in, width_ratios=widths
    )
    cells = itertools.product(range(len(heights_in)), range(len(widths)))
    return figure, [figure.add_subplot(grid[cell]) for cell in cells]


def _percent_axis(ax: Axes, most: float) -> None:
    """From 0 to 100, or to 60 where nothing comes near that."""
    top = 60 if most < 50 else 100
    ax.set_ylim(0, top)
    ax.set_yticks(range(0, top + 1, 20))
    ax.grid(color="black", alpha=0.12, lw=0.4)


def _legend(figure: Figure, axes: Sequence[Axes], spec: FigureSpec, results: Results) -> None:
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside upper center",
            ncols=len(handles),
            frameon=False,
            handlelength=2.4,
        )
    _note(figure, spec, results)


def _note(figure: Figure, spec: FigureSpec, results: Results) -> None:
    figure.supxlabel(spec.caption(results), fontsize=6, color="0.35")


# --- the figures -------------------------------------------------------------------------------


def _k_panels(ks: Sequence[int], task: str = "mnist", **more: Any) -> tuple[Panel, ...]:
    return tuple(Panel(f"K = {k:,}", {"k": k, **more}, task=task) for k in ks)


def _by_model(
    ks: Sequence[int], models: Sequence[str], policies: tuple[str, ...], task: str
) -> tuple[Panel, ...]:
    return tuple(
        Panel(f"{NAMES[m]}, K = {k:,}", {"k": k}, policies, task, m) for m in models for k in ks
    )


def _grids(task: str) -> tuple[Panel, ...]:
    only = ("ascend",)
    pairs = (Panel(f"(ρ, β) = {r:g}, {b:g}", {"rho": r, "beta": b}, only, task) for r, b in WEIGHTS)
    return (*pairs, *(Panel(f"c = {c}", {"c": c}, only, task) for c in CONSTANTS))


_ADAPTIVE = ("ascend", "exp3")
_CIFAR_MODELS = ("resnet18", "wresnet40-2")
FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec("mnist-k", "MNIST: accuracy by K", "α 0.5, 50 Mbps; mean over the ten clients.",
               _k_panels((500, 1000, 5000)), 5, _curves),
    FigureSpec("mnist-prototypes", "MNIST: accuracy by prototype at K = 1,000", "α 0.5, 50 Mbps.",
               _by_model((1000,), (SMALL, LARGE), POLICIES, "mnist"), 5, _curves),
    FigureSpec("mnist-selection", "MNIST: strategies chosen, by prototype and K",
               "Rounds of free choice: without the warm-up and rounds forced by a rollback. Dotted: a third.",
               _by_model((500, 1000, 5000), (SMALL, LARGE), _ADAPTIVE, "mnist"), 5, _selection),
    FigureSpec("mnist-alpha", "MNIST: accuracy by label skew", "K 1,000, 50 Mbps; small α is skewed.",
               tuple(Panel(f"α = {a:g}", {"alpha": a}) for a in (0.1, 0.5, 1)), 5, _curves),
    FigureSpec("mnist-bandwidth", "MNIST: accuracy by bandwidth", "K 1,000, α 0.5; mind the time axes.",
               tuple(Panel(f"{b} Mbps", {"up_mbps": b}) for b in (5, 50, 500)), 5, _curves),
    FigureSpec("mnist-sensitivity", "MNIST: ASCEND's sensitivity",
               "K 1,000, α 0.5, 50 Mbps; dots are seeds, diamonds their means.",
               _grids("mnist"), 3, _sensitivity),
    FigureSpec("mnist-large-k", "MNIST: accuracy at K = 5,000 and 10,000",
               "α 0.5, 50 Mbps. The source's runs at these K were on devices whose times are not published.",
               _k_panels((5000, 10_000)), 5, _curves),
    FigureSpec("cifar10-k", "CIFAR-10: accuracy by K", "α 0.5, 50 Mbps, 300 rounds.",
               _k_panels((100_000, 500_000, 2_000_000), "cifar10"), 3, _curves),
    FigureSpec("cifar10-selection", "CIFAR-10: strategies chosen, by prototype and K",
               "Rounds of free choice. Dotted: a third.",
               _by_model((100_000, 2_000_000), _CIFAR_MODELS, _ADAPTIVE, "cifar10"), 3, _selection),
    FigureSpec("cifar10-sensitivity", "CIFAR-10: ASCEND's sensitivity",
               "K 100,000, α 0.5, 50 Mbps; dots are seeds, diamonds their means.",
               _grids("cifar10"), 3, _sensitivity),
    FigureSpec("cifar10-small", "CIFAR-10 with LeNets: accuracy by K",
               "α 0.5, 50 Mbps. Not the source's models; the same shares of entries as K 100,000 and 2,000,000 of its.",
               _k_panels((1_000, 16_000), "cifar10-small"), 3, _curves),
    FigureSpec("cifar10-small-selection", "CIFAR-10 with LeNets: strategies chosen, by prototype and K",
               "Rounds of free choice. Dotted: a third.",
               _by_model((1_000, 16_000), (SMALL, LARGE), _ADAPTIVE, "cifar10-small"), 3, _selection),
)  # fmt: skip
