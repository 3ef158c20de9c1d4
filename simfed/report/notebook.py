"""A run as a notebook shows it: the summary of the command line, and the accuracy over time."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from simfed.report import frames
from simfed.report.curves import accuracy_figure
from simfed.report.pictures import render_svg
from simfed.report.summary import WIDTH, build_summary_table

if TYPE_CHECKING:
    from simfed.record.read import Run

_FORMAT = '<pre style="line-height:1.3;overflow-x:auto">{code}</pre>'


def run_html(run: Run) -> str:
    """HTML of one piece, without scripts: text as on a terminal, and a drawing where the run
    learned."""
    console = Console(
        record=True,
        file=io.StringIO(),
        width=WIDTH,
        force_terminal=True,
        force_jupyter=False,  # else what is printed is shown at once, and then returned
        color_system="truecolor",
    )
    console.print(build_summary_table(run))
    html = console.export_html(inline_styles=True, code_format=_FORMAT)
    if frames.curves(run)[run.measure.key].notna().any():
        html += render_svg(accuracy_figure(run, width_in=5.0))
    return html
