"""The page of a simulation and its deployment: errors, and timelines on one scale."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from simfed.deploy.fidelity import Fidelity
from simfed.ground.units import counted, format_duration
from simfed.ground.writing import put_output
from simfed.report.page import PageSection, build_timelines, render_page
from simfed.report.panels import PanelTable
from simfed.report.style import phase as look_of

if TYPE_CHECKING:
    from simfed.record.read import Run


def write_fidelity(
    errors: Fidelity, simulated: Run, real: Run, path: str | os.PathLike[str]
) -> Path:
    """Write one page with both timelines and all errors.

    The simulation stands above reality.

    Args:
        errors: of the one against the other.
        simulated: the first run.
        real: the second.
        path: of the page, in HTML.

    Raises:
        InputError: it cannot be written.
    """
    verdicts = [(sentence,) for sentence in errors.sentences()]
    frames = {
        "Per participation": errors.phases,
        "Per client, from start to arrival": errors.clients,
        "What explains the rounds' error": errors.explanations,
        "Per round": errors.rounds,
    }
    section, timelines = build_timelines(
        dict(zip(errors.heads, (simulated, real), strict=True))
    )
    tables = [
        _build_table(caption, spell_out(frame, errors.heads))
        for caption, frame in frames.items()
    ]
    in_words = PanelTable("In plain words", ("verdict",), verdicts)
    parts: dict[str, PageSection] = {
        "verdicts": {"title": "Verdicts", "tables": [in_words]},
        "timeline": section,
        "errors": {"title": "Errors", "tables": tables},
    }
    title = f"{real.manifest['name']}: {' and '.join(errors.heads)}"
    return put_output(
        path, render_page(title, counted(len(errors.rounds), "round"), parts, timelines)
    )


def spell_out(frame: pd.DataFrame, heads: tuple[str, str]) -> pd.DataFrame:
    """Return a table of errors with cells as people read them.

    Args:
        frame: one of `Fidelity`'s.
        heads: the names of the two runs.
    """
    columns: dict[str, list[str]] = {}
    sides = dict(zip(("simulated", "real"), heads, strict=True))
    for name in frame.columns:
        values = frame[name]
        side, *rest = name.removesuffix("_s").split("_")
        head = " ".join((sides.get(side, side), *rest))
        if name == "phase":
            columns[head] = [look_of(str(value)).label for value in values]
        elif name.endswith("_s"):
            columns[head] = list(map(format_duration, values))
        elif name in ("error", "share", "explained"):
            sign = "+" if name == "error" else ""
            columns[head] = [
                f"{v:{sign}.1%}" if np.isfinite(v) else "–" for v in values
            ]
        else:
            columns[head] = ["–" if pd.isna(v) else str(v) for v in values]
    return pd.DataFrame(columns)


def _build_table(caption: str, frame: pd.DataFrame) -> PanelTable:
    numbers = {i for i, name in enumerate(frame.columns) if i and name != "assumption"}
    rows = list(frame.itertuples(index=False, name=None))
    return PanelTable(caption, tuple(frame.columns), rows, frozenset(numbers))
