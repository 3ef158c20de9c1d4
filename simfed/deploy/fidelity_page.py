"""A page about a simulation and its deployment: the errors, and both Gantts on one axis."""

from __future__ import annotations

import io
import os
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from simfed.deploy.fidelity import Fidelity
from simfed.ground.units import format_duration
from simfed.report.page import write_text
from simfed.report.style import phase as look_of
from simfed.report.timeline import timeline_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simfed.record.read import Run

__all__ = ["both_gantts", "shown", "write_fidelity"]

_ROUNDS = 6
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
    from simfed.report.gantt import paired_gantt

    last = min(len(simulated.rounds), len(real.rounds))
    shown_rounds = rounds or (1, min(last, _ROUNDS))
    runs = {"simulated": simulated, "real": real}
    return paired_gantt({name: timeline_of(run, shown_rounds) for name, run in runs.items()})


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
