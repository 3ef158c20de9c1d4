"""Pictures for print: a given width, vector text, the same bytes for the same run.

Everything that is drawn with Matplotlib goes through here: `picture_style` sets fonts
and lines, `build_figure` gives panels below one another and a legend above them,
`save_picture` and `render_svg` write. Sizes are in inches, letters in points. No global
state of Matplotlib's is left changed, and no window is opened.
"""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text

from simfed.ground.errors import InputError
from simfed.ground.names import escape_steering
from simfed.ground.writing import put_output
from simfed.report.style import FONT_FAMILY

if TYPE_CHECKING:
    from matplotlib.axes import Axes


FORMATS = ("png", "svg", "pdf")
FONT_POINTS = 7.0

_RC: Any = {
    # text stays text: it can be searched, and edited for a journal
    "svg.fonttype": "none",
    "svg.hashsalt": "simfed",
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "font.family": FONT_FAMILY,
    "axes.linewidth": 0.5,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "hatch.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,
}
_SIZES = {
    "font.size": 7.0,
    "axes.labelsize": 7.0,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
}
"""Sizes of letters in points, where `FONT_POINTS` are asked for."""
_WIDTH = re.compile(r"^\s*(\d+\.?\d*|\.\d+)\s*(in|cm|mm|pt|)\s*$")
_INCHES = {"in": 1.0, "": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72}
_LEGEND_ROW_IN = 0.15
_LEGEND_STYLE: Any = {
    "frameon": False,
    "borderaxespad": 0,
    "borderpad": 0,
    "handlelength": 1.3,
    "handletextpad": 0.4,
    "columnspacing": 1.1,
}


@contextmanager
def picture_style(points: float = FONT_POINTS) -> Iterator[None]:
    """Apply simfed's print style to Matplotlib in the block, or in a function.

    Args:
        points: the size of letters; ticks and legends are a little smaller.
    """
    share = points / FONT_POINTS
    sizes: Any = {name: share * value for name, value in _SIZES.items()}
    with mpl.rc_context({**_RC, **sizes}):
        yield


def parse_width(text: str, side: str = "width") -> float:
    """Return inches from `3.5`, `3.5in`, `88 mm`, `8.8cm`, `252pt`.

    Args:
        text: as written after `--width` or `--height`.
        side: `width`, of 2 to 40 inches, or `height`, of 1 to 40.

    Raises:
        InputError: for another form or size.

    >>> round(parse_width("88 mm"), 3)
    3.465
    """
    match = _WIDTH.match(text)
    inches = float(match[1]) * _INCHES[match[2]] if match else 0.0
    least = 2 if side == "width" else 1
    if not least <= inches <= 40:
        raise InputError(
            f"a {side} of {least} to 40 in, such as 3.5in or 88mm",
            where=f"--{side}",
            got=text,
        )
    return inches


def parse_points(text: str) -> float:
    """Return the size of letters in points, from `8` or `8pt`; 4 to 30.

    Raises:
        InputError: for another form or size.
    """
    match = re.fullmatch(r"\s*(\d{1,2}(?:\.\d{1,3})?)\s*(?:pt)?\s*", text)
    points = float(match[1]) if match else 0.0
    if not 4 <= points <= 30:
        raise InputError(
            "a size of 4 to 30 pt, such as 8pt", where="--font-size", got=text
        )
    return points


def time_unit(length_s: float) -> tuple[float, str]:
    """Return the unit for an axis of this length: (seconds per unit, its name).

    >>> time_unit(0.25), time_unit(4000)
    ((0.001, 'ms'), (60.0, 'min'))
    """
    for below_s, scale, unit in (
        (1e-3, 1e-6, "µs"),
        (0.8, 1e-3, "ms"),
        (300, 1.0, "s"),
    ):
        if length_s < below_s:
            return scale, unit
    return (60.0, "min") if length_s < 3 * 3600 else (3600.0, "h")


def choose_bytes_unit(most: float) -> tuple[float, str]:
    """Return the unit for sizes up to `most`: (bytes per unit, its name).

    >>> choose_bytes_unit(3e6)
    (1000000.0, 'MB')
    """
    units = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next(((scale, unit) for scale, unit in units if most >= scale), (1.0, "B"))


def build_empty_figure(**options: Any) -> Figure:
    """Return a figure that can be drawn without a screen.

    Args:
        options: those of Matplotlib's `Figure`.
    """
    figure = Figure(**options)
    FigureCanvasAgg(figure)
    return figure


def build_figure(
    width_in: float,
    panels_in: Sequence[float],
    gap_in: float = 0.08,
    legend: Sequence[Artist] = (),
    left_in: float = 0.5,
    right_in: float = 0.12,
    bottom_in: float = 0.38,
    points: float = FONT_POINTS,
) -> tuple[Figure, list[Axes]]:
    """Return a figure of exactly this width, with panels below each other.

    The panels share the x axis; the legend stands above them in as many rows as its
    entries need, and the figure is as high as all of this is.

    Args:
        width_in: of the figure, in inches, as all lengths.
        panels_in: heights of the panels, from above.
        gap_in: between panels.
        legend: entries with labels.
        left_in: room for the y axis' names.
        right_in: room at the right.
        bottom_in: room for the x axis' name, and what stands below it.
        points: the size of letters.
    """
    with picture_style(points):
        rows = _split_legend(legend, width_in - left_in - right_in)
        top_in = compute_legend_height_in(legend, width_in - left_in - right_in, points)
        height_in = top_in + sum(panels_in) + gap_in * (len(panels_in) - 1) + bottom_in
        figure = build_empty_figure(figsize=(width_in, height_in))
        axes: list[Axes] = []
        edge_in = height_in - top_in
        for panel_in in panels_in:
            edge_in -= panel_in
            box = (
                left_in / width_in,
                edge_in / height_in,
                (width_in - left_in - right_in) / width_in,
                panel_in / height_in,
            )
            axes.append(figure.add_axes(box, sharex=axes[0] if axes else None))
            axes[-1].tick_params(
                labelbottom=len(axes) == len(panels_in),
                labelsize=mpl.rcParams["xtick.labelsize"],
            )
            edge_in -= gap_in
        _draw_legend(figure, rows, left_in / width_in, height_in)
    return figure, axes


def put_legend_above(
    figure: Figure,
    handles: Sequence[Artist],
    width_in: float,
    panels_in: float,
    height_in: float | None = None,
    title: str = "",
) -> None:
    """Size a figure so that its panels have room below a common legend.

    Args:
        figure: whose panels Matplotlib is to lay out.
        handles: the legend's entries; none: no legend.
        width_in: of the figure.
        panels_in: the height that all panels need, with their axes.
        height_in: of the figure; None: what legend and panels need.
        title: the legend's heading; empty: none.
    """
    rows = _split_legend(handles, width_in - 0.2)
    title = title if rows else ""
    legend_in = _LEGEND_ROW_IN * (len(rows) + bool(title)) + 0.06 * bool(rows)
    height_in = legend_in + panels_in if height_in is None else height_in
    figure.set_size_inches(width_in, height_in)
    engine = ConstrainedLayoutEngine(
        rect=(0, 0, 1, max(0.2, 1 - legend_in / height_in))
    )
    figure.set_layout_engine(engine)
    _draw_legend(figure, rows, 0.1 / width_in, height_in, title)


def _draw_legend(
    figure: Figure,
    rows: Sequence[Sequence[Artist]],
    left: float,
    height_in: float,
    title: str = "",
) -> None:
    """Put rows of a legend below its title, from the top of a figure downwards.

    Args:
        figure: of the right size.
        rows: see `_split_legend`.
        left: where they begin, as a share of the figure's width.
        height_in: of the figure.
        title: the legend's heading; empty: none.
    """
    size = float(mpl.rcParams["legend.fontsize"])
    titled: dict[str, Any] = {
        "title": title,
        "title_fontsize": size,
        "alignment": "left",
    }
    for i, row in enumerate(rows):
        share = size / 6.5
        # the title takes a row of its own above the first
        above = i + (bool(title) if i else 0)
        top = 1 - (0.04 + _LEGEND_ROW_IN * above) * share / height_in
        legend = figure.legend(
            handles=row,
            ncols=len(row),
            loc="upper left",
            bbox_to_anchor=(left, top),
            **_LEGEND_STYLE,
            **(titled if title and not i else {}),
        )
        legend.set_in_layout(False)


def compute_legend_height_in(
    legend: Sequence[Artist], width_in: float, points: float = FONT_POINTS
) -> float:
    """Return the inches that a legend of this width needs above the first panel.

    Args:
        legend: entries with labels; none need a margin alone.
        width_in: that entries may take.
        points: the size of letters.

    >>> twice_in = compute_legend_height_in([], 3.5, 2 * FONT_POINTS)
    >>> twice_in / compute_legend_height_in([], 3.5)
    2.0
    """
    with picture_style(points):
        rows = len(_split_legend(legend, width_in))
    return (0.2 + _LEGEND_ROW_IN * rows + (0.08 if rows else 0)) * points / FONT_POINTS


def estimate_text_width_in(text: str, points: float | None = None) -> float:
    """Return about how wide a line of text is drawn, in inches.

    Args:
        text: one line.
        points: the size of letters; None: the style's.
    """
    size = mpl.rcParams["font.size"] if points is None else points
    return 0.0083 * size * len(text)


def _split_legend(handles: Sequence[Artist], width_in: float) -> list[list[Artist]]:
    """Return the handles in order, as many in a row of this width as fit."""
    rows: list[list[Artist]] = []
    used_in = width_in
    for handle in handles:
        points = mpl.rcParams["legend.fontsize"]
        need_in = 0.28 * points / 6.5 + estimate_text_width_in(
            str(handle.get_label()), points
        )
        if used_in + need_in > width_in or not rows:
            rows.append([])
            used_in = 0.0
        rows[-1].append(handle)
        used_in += need_in
    return rows


def render_svg(figure: Figure) -> str:
    """Return a figure as an element of a page."""
    _, start, drawing = _draw(figure, "svg").decode().partition("<svg")
    return start + drawing


def save_picture(
    figure: Figure, path: str | os.PathLike[str], *, dpi: int = 300
) -> Path:
    """Write a figure as PNG, SVG or PDF, by the file's suffix, and return its path.

    The same figure gives the same bytes.

    Args:
        figure: any of Matplotlib's.
        path: of the file.
        dpi: dots per inch of a PNG.

    Raises:
        InputError: for another suffix, or a folder that cannot be written.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise InputError("a file named *.png, *.svg or *.pdf", got=path.name)
    return put_output(path, _draw(figure, kind, dpi))


def _draw(figure: Figure, kind: str, dpi: int = 300) -> bytes:
    """Return a figure as a file's bytes, without the date of its making.

    Args:
        figure: any of Matplotlib's.
        kind: of `FORMATS`.
        dpi: dots per inch of a PNG.
    """
    undated: dict[str, Any] = {
        "svg": {"Date": None},
        "pdf": {"CreationDate": None},
    }.get(kind, {})
    drawn = io.BytesIO()
    with picture_style(), warnings.catch_warnings():
        for text in figure.findobj(Text):
            if "$" in text.get_text() and "\\mathdefault" not in text.get_text():
                # a name, where ticks of logarithms are formulas
                text.set_parse_math(False)
        # A name in a script that the font lacks is drawn as boxes; everything else is
        # readable.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure.savefig(drawn, format=kind, dpi=dpi, metadata=undated)
    if kind != "svg":
        return drawn.getvalue()
    # XML has no control characters, in whatever name they stand
    return escape_steering(drawn.getvalue().decode()).encode()
