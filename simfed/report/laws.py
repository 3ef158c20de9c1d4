"""The card of an app's laws: measured against fitted, play by play.

A law says how many seconds a kind of message takes on the measured machine; `simfed
flower measure` fits it to some plays of the app, and keeps a card of how well that
went. A card has `kinds` (each with its `title`, `plays`, `error`, `seconds`, `share`
and `messages`) and `busy`, how far the least times of one play lie apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import FuncFormatter, NullFormatter

from simfed.ground.plain import Plain
from simfed.ground.units import format_duration
from simfed.report.panels import PanelTable
from simfed.report.pictures import build_empty_figure, picture_style
from simfed.report.style import SERIES_COLOURS

BUSY = 0.05
"""The difference of a play's two least times on a machine that had other work to do."""

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def build_metrics_table(label: str, rows: Sequence[Sequence[Plain]]) -> PanelTable:
    """Return a row of metrics per round of a strategy, of its nodes or its own.

    Args:
        label: the run's name.
        rows: (round, whose metrics they are, name → number).
    """
    return PanelTable(
        caption="What the strategy made of metrics, by its own rounds",
        header=("run", "round", "of", "metrics"),
        rows=[
            (
                label,
                f"{number:,}",
                kind,
                ", ".join(f"{k} {v:.4g}" for k, v in numbers.items()),
            )
            for number, kind, numbers in rows
        ],
        numeric=(1,),
    )


def build_laws_table(label: str, card: Mapping[str, Plain]) -> PanelTable:
    """Return a row per message kind and play: mean seconds, of the measured machine.

    Args:
        label: the run's name.
        card: see the module.
    """
    rows = []
    for kind in card["kinds"]:
        for play in kind["plays"]:
            times = [play[name] for name in ("measured", "fitted", "unseen")]
            cells = ["" if s is None else format_duration(s) for s in times]
            rows.append(
                (label, kind["title"], play["play"], f"{play['messages']:,}", *cells)
            )
    return PanelTable(
        caption="Laws of messages, by play",
        header=(
            "run",
            "kind",
            "play",
            "messages",
            "measured",
            "by the law",
            "not having seen it",
        ),
        rows=rows,
        numeric=(3, 4, 5, 6),
        note="; ".join(describe_card(card)),
    )


def describe_card(card: Mapping[str, Plain]) -> list[str]:
    """Return a clause per law with its errors, and one on how busy the machine was.

    Args:
        card: see the module.
    """
    sentences = []
    for kind in card["kinds"]:
        error = kind["error"]
        unseen = "?" if error["held_out"] is None else f"{error['held_out']:.0%}"
        sentences.append(
            f"{kind['title']}: {kind['seconds']} s ({kind['share']:.0%} of the work, "
            f"{kind['messages']:,} messages, off by {error['median']:.0%}, in plays "
            f"not seen by {unseen})"
        )
    busy = "the machine was busy: " if card["busy"] > BUSY else ""
    apart = f"{busy}the two least times of a play differ by {card['busy']:.0%}"
    return [*sentences, apart]


@picture_style()
def draw_laws_figure(card: Mapping[str, Plain]) -> Figure:
    """Return a figure of the mean seconds of plays' messages, by the law over measured.

    Circles: by the law that had not seen the play. Grey: 15 % off.

    Args:
        card: see the module.
    """
    figure = build_empty_figure(figsize=(3.4, 3.0), layout="constrained")
    ax = figure.add_subplot()
    drawn = {
        kind["title"]: [play for play in kind["plays"] if play["fitted"] > 0]
        for kind in card["kinds"]
    }
    if every := [play["measured"] for plays in drawn.values() for play in plays]:
        ends = np.array([0.7 * min(every), 1.4 * max(every)])
        ax.plot(ends, ends, color="black", lw=0.6)
        ax.fill_between(ends, 0.85 * ends, 1.15 * ends, color="0.9", lw=0)
    for (title, plays), colour in zip(
        drawn.items(), itertools.cycle(SERIES_COLOURS), strict=False
    ):
        measured = [play["measured"] for play in plays]
        fitted = [play["fitted"] for play in plays]
        unseen = [play["unseen"] or float("nan") for play in plays]
        style: Any = {"color": colour, "ls": "", "ms": 4}
        ax.plot(measured, fitted, marker=".", label=title, **style)
        ax.plot(measured, unseen, marker="o", mfc="none", mew=0.6, **style)
    ax.set_xscale("log")
    ax.set_yscale("log")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(
            FuncFormatter(lambda seconds, _: format_duration(seconds))
        )
        axis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("measured, mean of a play's messages")
    ax.set_ylabel("by the law")
    ax.legend(frameon=False, fontsize=6)
    return figure
