"""The view of a run in a notebook: the terminal's summary, and the accuracy."""

from __future__ import annotations

import io
import time
from html import escape
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console

from simfed.ground.measure import Measure
from simfed.ground.registry import import_part
from simfed.report import frames
from simfed.report.curves import accuracy_figure, curve_figure
from simfed.report.pictures import render_svg
from simfed.report.summary import WIDTH, build_summary_table

if TYPE_CHECKING:
    from simfed.record.read import Run

_FORMAT = '<pre style="line-height:1.3;overflow-x:auto">{code}</pre>'


_LEAST_PAUSE_WALL_S = 0.5
_SHARE_OF_TIME = 0.05
"""The most of the run's time that is spent on drawing, as a share."""


class RunDrawing:
    """The view below a notebook's cell while a run is under way.

    It has a line of text, and the measure over simulated time up to now. `simfed.run`
    makes it where it runs in a notebook, and calls it after each round.
    """

    def __init__(self, measure: Measure) -> None:
        """Begin with nothing shown; `measure`: the one that is drawn."""
        self._measure = measure
        self._points: list[tuple[float, float]] = []
        self._shown: Any = None
        self._next_at_wall_s = 0.0

    def __call__(
        self, line: str, at_s: float, value: float | None, *, last: bool
    ) -> None:
        """Show the line, and the curve with this value where one was measured.

        It is drawn twice a second at most, and always for the last round.

        Args:
            line: the text above the curve.
            at_s: the simulated instant of the value.
            value: of the measure; None: none was measured.
            last: whether the run has ended.
        """
        if value is not None:
            self._points.append((at_s, value))
        began_at_wall_s = time.monotonic()
        if began_at_wall_s < self._next_at_wall_s and not last:
            return
        html = {"text/html": f"<pre>{escape(line)}</pre>{self._draw_curve()}"}
        if self._shown is None:
            display = import_part("IPython.display:display")
            self._shown = display(html, raw=True, display_id=True)
        else:
            self._shown.update(html, raw=True)
        ended_at_wall_s = time.monotonic()
        pause_wall_s = (ended_at_wall_s - began_at_wall_s) / _SHARE_OF_TIME
        self._next_at_wall_s = ended_at_wall_s + max(_LEAST_PAUSE_WALL_S, pause_wall_s)

    def _draw_curve(self) -> str:
        """Return the curve as SVG; empty before the first value."""
        if not self._points:
            return ""
        key = self._measure.key
        tidy = pd.DataFrame(self._points, columns=["at_s", key]).assign(run=frames.MEAN)
        figure = curve_figure(tidy, y=key, width_in=5.0)
        figure.axes[0].set_ylabel(f"test {self._measure.name}")
        return render_svg(figure)


def run_html(run: Run) -> str:
    """Return a run as HTML of one piece, without scripts.

    It is text as on a terminal, and a drawing where the run learned.
    """
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
