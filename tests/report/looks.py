"""What a picture or a page's charts look like, line by line, to hold against a kept
text.

A line says a thing that is drawn and how: ends and ticks of an axis, colour, width and
data of a curve, the words of a legend. Numbers have five digits. Kept is a digest of
each part's lines, and a test that fails says the lines of the parts that moved.
`RENEW_LOOKS=1` in the environment writes the kept digests anew instead, for a change
that is to move looks.
"""

import base64
import gzip
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, FixedLocator, LogLocator

import simfed


def assert_looks(path, lines):
    """Fails with the lines of all parts that differ from `path`."""
    parts = {}
    for part, line in lines:
        parts.setdefault(part, []).append(line)
    now = {
        part: hashlib.sha256("\n".join(said).encode()).hexdigest()[:12]
        for part, said in parts.items()
    }
    if os.environ.get("RENEW_LOOKS"):
        path.write_text("".join(f"{is_now} {part}\n" for part, is_now in now.items()))
    before = dict(line.split(" ", 1)[::-1] for line in path.read_text().splitlines())
    moved = [part for part in {**before, **now} if before.get(part) != now.get(part)]
    assert not moved, "\n".join(
        f"{part}: {parts.get(part, 'is gone')}" for part in moved
    )


def of_figure(name, figure):
    """Yield each thing in a Matplotlib figure, which is not drawn for it: the part it
    belongs to, and what it says.
    """
    said = [_text(figure.get_size_inches())]
    for legend in figure.legends:
        said += _of_legend(legend)
    said += map(_of_text, figure.texts)
    yield from ((f"{name}: frame", line) for line in said)
    every = (inner for axes in figure.axes for inner in (axes, *axes.child_axes))
    for number, ax in enumerate(every):
        yield from ((f"{name}: axes {number}", line) for line in _of_axes(ax))


def _of_axes(ax):
    yield f"at {_text(ax.get_position().bounds)}"
    yield f"x {_of_axis(ax.xaxis)} {ax.get_xscale()} {_text(ax.get_xlim())}"
    yield f"y {_of_axis(ax.yaxis)} {ax.get_yscale()} {_text(ax.get_ylim())}"
    for line in ax.lines:
        yield f"{_look_of(line)} {_text(line.get_xydata())}"
    for area in ax.collections:
        paths = [path.vertices for path in area.get_paths()]
        yield f"{_look_of(area)} {_text(area.get_linewidths())} {_text(paths)}"
    for patch in ax.patches:
        box = patch.get_path().transformed(patch.get_patch_transform()).vertices
        yield f"{_look_of(patch)} {_text(box)}"
    for image in ax.images:
        shown = [image.get_clim(), image.get_extent(), image.get_array()]
        yield f"image {_text(shown)}"
    for child in ax.get_children():
        if isinstance(child, Text) and child.get_text():
            yield _of_text(child)
    if ax.get_legend() is not None:
        yield from _of_legend(ax.get_legend())


def of_chart(name, spec):
    """The figures of a page's chart, each with its layout and traces."""
    for key, figure in spec["figures"]:
        part = f"{name}: {', '.join(key) or 'chart'}"
        yield part, _text(figure["layout"])
        yield from ((part, _text(trace)) for trace in figure["data"])


def of_page(name, text):
    """The charts of a page, and its words but for the manifests, which name this very
    run, and for scripts' digests and embedded pictures, which are of the libraries that
    are installed.
    """
    (payload,) = re.findall(r'id="payload"[^>]*>([^<]+)<', text)
    left_out = (
        r"<(script|style|svg)\b.*?</\1>|<pre[^>]*manifest.json.*?</pre>|<meta "
        r"http-equiv[^>]*>"
    )
    words = re.sub(left_out, "", text, flags=re.DOTALL)
    words = re.sub(r"\s+", " ", words.replace(simfed.__version__, "VERSION"))
    yield from ((f"{name}: words", said) for said in words.split("<h"))
    data = json.loads(gzip.decompress(base64.b64decode(payload)))
    yield f"{name}: timeline", _text(data.get("timeline", {}))
    for key, spec in data["panels"].items():
        yield from of_chart(f"{name}: {key}", spec)


def _text(value):
    if isinstance(value, Mapping):
        if "bdata" in value:
            packed = base64.b64decode(value["bdata"])
            numbers = np.frombuffer(packed, dtype=value["dtype"])
            return f"{value['dtype']}{value.get('shape', '')} {_text(numbers)}"
        items = (f"{key} {_text(item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, str | None):
        return str(value)
    if isinstance(value, np.ndarray | Sequence):
        return "[" + " ".join(map(_text, value)) + "]"
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return str(value)
    return f"{float(value):.5g}"


def _of_axis(axis):
    where, words = axis.get_major_locator(), axis.get_major_formatter()
    ticks, named = [], []
    if isinstance(where, FixedLocator | LogLocator):
        ticks = list(where.tick_values(*axis.get_view_interval()))
    if isinstance(words, FixedFormatter):
        named = list(words.seq)
    look = axis.get_tick_params()
    look = {key: look[key] for key in look if "color" not in key}
    return f"{_of_text(axis.label)} ticks {_text(ticks)} {_text(named)} {_text(look)}"


_LOOKS = ("color", "facecolor", "edgecolor", "linestyle", "linewidth", "alpha", "hatch")
_LOOKS += ("marker", "markersize", "markerfacecolor", "markeredgecolor")


def _look_of(artist):
    looks = {what: getattr(artist, f"get_{what}", lambda: None)() for what in _LOOKS}
    known = {key: look for key, look in looks.items() if look is not None}
    return f"{artist.get_label()!r} {_text(known)}"


def _of_legend(legend):
    yield f"legend at {_text(legend.get_bbox_to_anchor().bounds[:2])}"
    for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
        yield f"{_of_text(text)} {_look_of(handle)}"


def _of_text(text):
    look = _text(
        [text.get_position(), text.get_size(), text.get_color(), text.get_rotation()]
    )
    return f"{text.get_text()!r} {look}"
