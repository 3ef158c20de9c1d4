"""A page about a simulation and its deployment: the errors, and both Gantts on one axis."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from simfed.deploy.fidelity import Fidelity
from simfed.ground.units import format_duration
from simfed.report.page import write_text
from simfed.report.pictures import picture_style
from simfed.report.style import Phase, looks
from simfed.report.style import phase as look_of
from simfed.report.timeline import Timeline, kinds_of, timeline_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simfed.record.read import Run

__all__ = ["both_gantts", "shown", "write_fidelity"]

_ROUNDS = 6
_ROW_IN = 0.17
_IN_WORDS = "assumption"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: CanvasText; background: Canvas; color-scheme: light dark; }
table { border-collapse: collapse; margin: 1rem 0; } caption { text-align: left; font-weight: 600; }
th, td { padding: .15rem .9rem .15rem 0; text-align: right; white-space: nowrap;
         font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
.words { text-align: left; white-space: normal; min-width: 12rem; }
tr { border-bottom: 1px solid rgba(128, 128, 128, .3); }
.scroll { overflow-x: auto; } svg { width: 100%; height: auto; background: white; }
@media (max-width: 30rem) { body { font-size: 13px; } th, td { padding-right: .5rem; } }
"""


def both_gantts(simulated: Run, real: Run, rounds: tuple[int, int] | None = None) -> Figure:
    """The simulation above, reality below, with one time axis from the first round's start."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    last = min(len(simulated.rounds), len(real.rounds))
    first, until = rounds or (1, min(last, _ROUNDS))
    with picture_style():
        timelines = [timeline_of(run, (first, until), None) for run in (simulated, real)]
        rows = [len(timeline.clients) + 1 for timeline in timelines]
        kinds = list(dict.fromkeys(k for t in timelines for k in kinds_of(t.bars)))
        phases = looks([*kinds, "server"])
        figure = plt.figure(figsize=(7.0, 1.0 + _ROW_IN * sum(rows)), layout="constrained")
        axes = figure.subplots(2, 1, sharex=True, height_ratios=rows)
        for ax, timeline, name in zip(axes, timelines, ("simulated", "real"), strict=True):
            _draw(ax, timeline, phases)
            for at_s in timeline.rounds["finished_at_s"]:
                ax.axvline(at_s - timeline.from_s, color="black", linewidth=0.5)
            ax.set_title(name, loc="left")
        axes[-1].set_xlabel(f"seconds since the start of round {first}")
        patches = [
            Patch(facecolor=phase.colour, hatch=phase.hatch, label=phase.label)
            for phase in phases.values()
        ]
        figure.legend(handles=patches, loc="outside lower center", ncols=5, frameon=False)
    return figure


def _draw(ax: Axes, timeline: Timeline, phases: Mapping[str, Phase]) -> None:
    bars, clients = timeline.bars, timeline.clients["client"].tolist()
    places = {client: row for row, client in enumerate(clients)}
    server = len(clients)
    on_server = bars["client"].isna()
    rows = bars["client"].map(places).astype(float).where(~on_server, server)
    lengths_s = bars["finished_at_s"] - bars["started_at_s"]
    spans_s = pd.DataFrame({"from": bars["started_at_s"] - timeline.from_s, "length": lengths_s})
    names = bars["kind"].where(~on_server, "server")
    for kind, phase in phases.items():
        for row, spans in spans_s[names == kind].groupby(rows):
            ax.broken_barh(
                spans.to_numpy().tolist(),
                (row - 0.41, 0.82),
                facecolor=phase.colour,
                hatch=phase.hatch,
                linewidth=0,
            )
    ax.set_yticks([*range(server), server], [*map(str, clients), "server"])
    ax.set_ylim(server + 0.6, -0.6)


def write_fidelity(
    errors: Fidelity, simulated: Run, real: Run, path: str | os.PathLike[str]
) -> Path:
    """One page with both Gantts and all errors; no network, no script."""
    import matplotlib.pyplot as plt

    figure = both_gantts(simulated, real)
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg")
    plt.close(figure)
    svg = drawing.getvalue()
    picture = svg[svg.index("<svg") :]
    title = escape(f"{real.manifest['name']}: simulated and real")
    sentences = "".join(f"<li>{_mark_code(sentence)}</li>" for sentence in errors.sentences())
    frames = {
        "Per participation": errors.phases,
        "Per client, from start to arrival": errors.clients,
        "What explains the rounds' error": errors.explanations,
        "Per round": errors.rounds,
    }
    tables = "".join(_table(caption, shown(frame)) for caption, frame in frames.items())
    text = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style><h1>{title}</h1><ul>{sentences}</ul>{picture}{tables}</html>\n"
    )
    return write_text(path, text)


def shown(frame: pd.DataFrame) -> pd.DataFrame:
    """Cells as people read them."""
    columns: dict[str, list[str]] = {}
    for name in frame.columns:
        values = frame[name]
        if name == "phase":
            columns["phase"] = [look_of(str(value)).label for value in values]
        elif name.endswith("_s"):
            columns[name.removesuffix("_s").replace("_", " ")] = list(map(format_duration, values))
        elif name in ("error", "share", "explained"):
            sign = "+" if name == "error" else ""
            columns[name] = [f"{v:{sign}.1%}" if np.isfinite(v) else "–" for v in values]
        else:
            columns[name.replace("_", " ")] = ["–" if pd.isna(v) else str(v) for v in values]
    return pd.DataFrame(columns)


def _mark_code(text: str) -> str:
    """Words between backticks as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _table(caption: str, frame: pd.DataFrame) -> str:
    kinds = [" class=words" if name == _IN_WORDS else "" for name in frame.columns]
    head = "".join(
        f"<th scope=col{kind}>{escape(name)}</th>"
        for name, kind in zip(frame.columns, kinds, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(f"<td{k}>{_mark_code(cell)}</td>" for cell, k in zip(row, kinds, strict=True))
        + "</tr>"
        for row in frame.itertuples(index=False, name=None)
    )
    return (
        f"<div class=scroll><table><caption>{escape(caption)}</caption><tr>{head}</tr>{rows}"
        "</table></div>"
    )
