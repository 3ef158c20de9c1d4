"""What a picture or a page's charts look like, line by line, to hold against a kept
text.

A line says a thing that is drawn and how: ends and ticks of an axis, colour, width and
data of a curve, the words of a legend. Numbers have five digits. Kept is a digest of
each part's lines, and a test that fails says the lines of the parts that moved.
`RENEW_LOOKS=1` in the environment writes the kept digests anew instead, for a change
that is to move looks.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, FixedLocator, LogLocator

import simfed

Line = tuple[str, str]
"""The part it belongs to, and what it says."""


def assert_looks(path: Path, lines: Iterable[Line]) -> None:
    """Fails with the lines of all parts that differ from `path`."""
    parts: dict[str, list[str]] = {}
    for part, line in lines:
        parts.setdefault(part, []).append(line)
    now = {part: _digest("\n".join(said)) for part, said in parts.items()}
    if os.environ.get("RENEW_LOOKS"):
        path.write_text("".join(f"{is_now} {part}\n" for part, is_now in now.items()))
    before = dict(line.split(" ", 1)[::-1] for line in path.read_text().splitlines())
    moved = [part for part in {**before, **now} if before.get(part) != now.get(part)]
    assert not moved, "\n".join(
        f"{part}: {parts.get(part, 'is gone')}" for part in moved
    )


def of_figure(name: str, figure) -> Iterator[Line]:
    """Each thing in a Matplotlib figure, which is not drawn for it."""
    part = f"{name}: frame"
    yield part, _text(figure.get_size_inches())
    for legend in figure.legends:
        yield from ((part, line) for line in _of_legend(legend))
    yield from ((part, _of_text(text)) for text in figure.texts)
    for number, ax in enumerate(
        inner for axes in figure.axes for inner in (axes, *axes.child_axes)
    ):
        part = f"{name}: axes {number}"
        yield part, f"at {_text(ax.get_position().bounds)}"
        yield part, f"x {_of_axis(ax.xaxis)} {ax.get_xscale()} {_text(ax.get_xlim())}"
        yield part, f"y {_of_axis(ax.yaxis)} {ax.get_yscale()} {_text(ax.get_ylim())}"
        yield from (
            (part, (f"{_look_of(line)} {_text(line.get_xydata())}"))
            for line in ax.lines
        )
        for area in ax.collections:
            paths = [path.vertices for path in area.get_paths()]
            yield (
                part,
                (f"{_look_of(area)} {_text(area.get_linewidths())} {_text(paths)}"),
            )
        for patch in ax.patches:
            box = patch.get_path().transformed(patch.get_patch_transform()).vertices
            yield part, f"{_look_of(patch)} {_text(box)}"
        for image in ax.images:
            shown = [image.get_clim(), image.get_extent(), image.get_array()]
            yield part, f"image {_text(shown)}"
        said = (child for child in ax.get_children() if isinstance(child, Text))
        yield from ((part, _of_text(text)) for text in said if text.get_text())
        if ax.get_legend() is not None:
            yield from ((part, line) for line in _of_legend(ax.get_legend()))


def of_chart(name: str, spec: Mapping) -> Iterator[Line]:
    """The figures of a page's chart, each with its layout and traces."""
    for key, figure in spec["figures"]:
        part = f"{name}: {', '.join(key) or 'chart'}"
        yield part, _text(figure["layout"])
        yield from ((part, _text(trace)) for trace in figure["data"])


def of_page(name: str, text: str) -> Iterator[Line]:
    """The charts of a page, and its words but for the manifests, which name this very
    run, and for scripts' digests and embedded pictures, which are of the libraries that
    are installed.
    """
    (payload,) = re.findall(r'id="payload"[^>]*>([^<]+)<', text)
    left_out = (
        r"<(script|style|svg)\b.*?</\1>|<pre[^>]*manifest.json.*?</pre>|<meta "
        r"http-equiv[^>]*>"
    )
    words = re.sub(left_out, "", text, flags=re.DOTALL).replace(
        simfed.__version__, "VERSION"
    )
    yield from (
        (f"{name}: words", said) for said in re.sub(r"\s+", " ", words).split("<h")
    )
    data = json.loads(gzip.decompress(base64.b64decode(payload)))
    yield f"{name}: timeline", _text(data.get("timeline", {}))
    for key, spec in data["panels"].items():
        yield from of_chart(f"{name}: {key}", spec)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        if "bdata" in value:
            numbers = np.frombuffer(
                base64.b64decode(value["bdata"]), dtype=value["dtype"]
            )
            return f"{value['dtype']}{value.get('shape', '')} {_text(numbers)}"
        return (
            "{" + ", ".join(f"{key} {_text(item)}" for key, item in value.items()) + "}"
        )
    if isinstance(value, str) or value is None:
        return str(value)
    if isinstance(value, np.ndarray | Sequence):
        return "[" + " ".join(_text(item) for item in value) + "]"
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return str(value)
    return f"{float(value):.5g}"


def _of_axis(axis) -> str:
    where, words = axis.get_major_locator(), axis.get_major_formatter()
    ticks, named = [], []
    if isinstance(where, FixedLocator | LogLocator):
        ticks = list(where.tick_values(*axis.get_view_interval()))
    if isinstance(words, FixedFormatter):
        named = list(words.seq)
    look = {
        key: value
        for key, value in axis.get_tick_params().items()
        if "color" not in key
    }
    return f"{_of_text(axis.label)} ticks {_text(ticks)} {_text(named)} {_text(look)}"


_LOOKS = (
    "color",
    "facecolor",
    "edgecolor",
    "linestyle",
    "linewidth",
    "alpha",
    "hatch",
    "marker",
)
_LOOKS += ("markersize", "markerfacecolor", "markeredgecolor")


def _look_of(artist) -> str:
    looks = {what: getattr(artist, f"get_{what}", lambda: None)() for what in _LOOKS}
    return f"{artist.get_label()!r} " + _text(
        {key: looks[key] for key in looks if looks[key] is not None}
    )


def _of_legend(legend) -> Iterator[str]:
    yield f"legend at {_text(legend.get_bbox_to_anchor().bounds[:2])}"
    for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
        yield f"{_of_text(text)} {_look_of(handle)}"


def _of_text(text) -> str:
    look = _text(
        [text.get_position(), text.get_size(), text.get_color(), text.get_rotation()]
    )
    return f"{text.get_text()!r} {look}"
