"""The pictures that lie in a run directory beside its tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from simfed.report.curves import accuracy_figure
from simfed.report.gantt import gantt_figure
from simfed.report.pictures import save_picture

if TYPE_CHECKING:
    from simfed.record.read import Run


def draw_run(run: Run, folder: str | os.PathLike[str]) -> list[Path]:
    """Draw the two pictures of a run's end, and return their paths.

    They are `accuracy.png` (where it learned) and `timeline.png`, its first round as a
    Gantt chart.

    Args:
        run: the finished run.
        folder: where the pictures are put, the run's as a rule.

    Raises:
        InputError: for a folder that cannot be written.
    """
    figures = {}
    if run.prototypes[run.measure.column].notna().any():
        figures["accuracy.png"] = accuracy_figure(run, width_in=5.0)
    if len(run.rounds):
        first = int(run.rounds["round"].min())
        figures["timeline.png"] = gantt_figure(run, rounds=(first, first))
    return [
        save_picture(figure, Path(folder) / name, dpi=200)
        for name, figure in figures.items()
    ]
