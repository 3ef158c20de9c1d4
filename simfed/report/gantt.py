"""Gantt charts of rounds for print: clients' phases, critical clients, use of links.

A row per client, grouped by prototype; of more than `MOST_ROWS` the slowest. Below the
rows stand a row per edge server and a panel per link. `gantt_figure` lays the panels
out; `_draw_rows`, `_draw_edges`, `_draw_link` and `_draw_rounds` fill them. Bars of
clients and of servers go through `_draw_bars`; what they are is `timeline.py`'s.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from numpy.typing import ArrayLike

from simfed.ground.errors import InputError
from simfed.record.summary import explain_rounds
from simfed.report.frames import Steps, compute_bytes_per_s, compute_capacity_steps
from simfed.report.pictures import (
    FONT_POINTS,
    build_figure,
    compute_legend_height_in,
    estimate_text_width_in,
    picture_style,
    time_unit,
)
from simfed.report.style import PHASES, Phase, choose_arm_shapes, looks, make_label
from simfed.report.timeline import (
    Timeline,
    build_timeline,
    find_slowest_clients,
    list_kinds,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simfed.record.read import Run

Array = np.ndarray[Any, Any]
Capacities = Mapping[str, Steps]
"""Link → (instants, bytes/s from then on)."""
At = Callable[[ArrayLike], Array]
"""Seconds → the axis' unit, from its origin."""

MOST_ROWS = 120
"""Of more clients than this the slowest have rows."""
MOST_BARS = 20_000
"""More bars than this are no picture any more."""
SLOWEST = 40
MOST_WORDS = 6
"""Rounds explained below a chart whose rounds are too narrow for it."""
_LINK_IN = 0.42
_RIGHT_IN = 0.12
_PALE = 0.62
"""The share of white in the colour of a transfer's latency."""
_BESIDE: Any = {"textcoords": "offset points", "ha": "center", "parse_math": False}
"""Options of text that stands beside what it names."""
_CAPACITY: Any = {"color": "black", "lw": 0.8, "ls": (0, (4, 2))}
"""The line of a link's capacity."""
_RATES = ((1e9, "Gbps"), (1e6, "Mbps"), (1e3, "kbps"), (1.0, "bps"))


def gantt_figure(
    run: Run,
    *,
    rounds: tuple[int, int] | None = None,
    clients: Sequence[int] | None = None,
    width_in: float = 7.0,
    height_in: float | None = None,
    points: float = FONT_POINTS,
    capacities: Capacities | None = None,
) -> Figure:
    """Return the Gantt chart of some rounds and clients.

    The bars that set each round's length are outlined, the compression bars carry their
    strategy's mark, lost participations are crossed out, a transfer's latency is paler
    than the rest of it, and a panel below shows up to three links' use against their
    capacity. Why each round took as long as it did stands above it, or below the chart
    where there is no room.

    Args:
        run: the finished run.
        rounds: first and last, both included; None: all.
        clients: ids; None: all, of too many the slowest.
        width_in: the width in inches; the height follows from the rows.
        height_in: or the rows follow from this height.
        points: the size of letters.
        capacities: link → (instants, bytes/s from then on) of links whose capacity
            varies, as `simfed.experiment.capacities.capacities_of` gives it; without,
            it is drawn where it was recorded, while the link was in use.

    Raises:
        InputError: for more than `MOST_BARS` bars in rows, and for a height that leaves
            no room for them.
    """
    timeline = build_timeline(run, rounds, clients)
    with picture_style(points):
        return _draw_gantt(timeline, width_in, height_in, points, capacities or {})


def _draw_gantt(
    timeline: Timeline,
    width_in: float,
    height_in: float | None,
    points: float,
    capacities: Capacities,
) -> Figure:
    """Return the figure; see `gantt_figure` for the arguments.

    Heights and widths are in inches; what holds letters grows with their size.
    """
    rows, bars = _choose_rows_and_bars(timeline)
    share = points / FONT_POINTS
    left_in, gap_in = 0.62 * share, 0.08 * share
    inner_in = width_in - left_in - _RIGHT_IN
    links, edges = timeline.links(), timeline.edges()
    nodes = list(dict.fromkeys(edges["track"]))[:MOST_ROWS]
    handles = _build_legend(timeline, bars, links)
    level, below = _choose_words(timeline, inner_in, width_in - 0.2)
    bottom_in = 0.38 * share + 0.135 * share * len(below) + 0.06 * bool(below)
    count = _count_rows(rows, bars)
    row_in = share * float(np.interp(len(rows), [10, 40, 100], [0.19, 0.12, 0.066]))
    panels = [row_in * count]
    panels += [row_in * (len(nodes) + 0.4)] * bool(nodes)
    panels += [_LINK_IN] * len(links)
    if height_in is not None:
        legend_in = compute_legend_height_in(handles, inner_in, points)
        room_in = height_in - bottom_in - legend_in - gap_in * (len(panels) - 1)
        if room_in < 0.04 * count + 0.15 * (len(panels) - 1):
            raise InputError(
                "a height with room for every row",
                where="--height",
                got=f"{height_in:g} in",
                hint="show fewer clients, or a smaller font",
            )
        panels = [room_in * panel / sum(panels) for panel in panels]
    figure, axes = build_figure(
        width_in, panels, gap_in, handles, left_in, _RIGHT_IN, bottom_in, points
    )
    scale, unit = time_unit(timeline.to_s - timeline.from_s)
    first = int(timeline.rounds["round"].iloc[0])
    origin_s = 0.0 if first == 1 else timeline.from_s

    def at(seconds: ArrayLike) -> Array:
        return (np.asarray(seconds, dtype=float) - origin_s) / scale

    _draw_rows(axes[0], bars, rows, panels[0] / count, at)
    absences = timeline.absences()
    absent: Any = {"zorder": 0, "gid": "absent", "lw": 0}
    absent |= _style_filling(PHASES["absent"])
    for ends in zip(
        at(absences["started_at_s"]), at(absences["finished_at_s"]), strict=True
    ):
        axes[0].axvspan(*ends, **absent)
    if nodes:
        _draw_edges(axes[1], edges, nodes, at)
    for ax, link in zip(axes[1 + bool(nodes) :], links, strict=True):
        _draw_link(ax, timeline, link, at, capacities.get(link))
    _draw_rounds(axes, timeline, at, level)
    since = f"{timeline.run.seconds} time"
    if origin_s:
        since = f"time since the start of round {first}"
    axes[-1].set_xlabel(f"{since} ({unit})")
    style: Any = {"va": "bottom", "ha": "left", "parse_math": False}
    for i, line in enumerate(below, start=1):
        y = (0.05 + 0.135 * (len(below) - i)) * share / figure.get_figheight()
        figure.text(0.1 / width_in, y, line, fontsize=6.5 * share, **style)
    return figure


def _choose_rows_and_bars(timeline: Timeline) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the clients that have a row, and the bars of these and of the server.

    Of too many clients these are the slowest; bars come with their `latency_s`.

    Raises:
        InputError: for more bars than a picture shows.
    """
    rows = timeline.clients
    if len(rows) > MOST_ROWS:
        slowest = find_slowest_clients(timeline, SLOWEST)
        rows = rows.set_index("client").loc[slowest].reset_index()
        rows = rows.assign(prototype="slowest")
    bars = timeline.bars.assign(latency_s=timeline.latency_s())
    bars = bars[bars["client"].isna() | bars["client"].isin(rows["client"])]
    if len(bars) > MOST_BARS:
        raise InputError(
            f"at most {MOST_BARS:,} bars in a picture",
            got=len(bars),
            hint="show fewer rounds or clients, or use --format perfetto",
        )
    return rows, bars


def _count_rows(rows: pd.DataFrame, bars: pd.DataFrame) -> float:
    """Return the height of the clients' panel in rows, with gaps and the server's."""
    has_server = bool(bars["client"].isna().any())
    gaps = max(0, int(rows["prototype"].nunique()) - 1)
    return len(rows) + 0.6 * gaps + 1.6 * has_server + 0.4


def _place_rows(rows: pd.DataFrame) -> dict[int, float]:
    """Return y of each client's row, downwards, with a gap between prototypes."""
    changes = (rows["prototype"] != rows["prototype"].shift()).cumsum() - 1
    y = np.arange(len(rows)) + 0.6 * changes.to_numpy()
    return dict(zip(rows["client"], y, strict=True))


def _draw_rows(
    ax: Axes, bars: pd.DataFrame, rows: pd.DataFrame, row_in: float, at: At
) -> None:
    """Draw the clients' rows and the server's below them.

    Args:
        ax: the panel.
        bars: those of the rows and of the server, with `latency_s`.
        rows: `client, prototype`, from above.
        row_in: the height of a row in inches, by which marks and names are sized.
        at: seconds → x.
    """
    y_of = _place_rows(rows)
    server_y = max(y_of.values(), default=-1.6) + 1.6
    on_server = bars["client"].isna()
    y = bars["client"].map(y_of).astype(float).where(~on_server, server_y)
    bars = bars.assign(
        y=y, left=at(bars["started_at_s"]), right=at(bars["finished_at_s"])
    )
    _draw_bars(ax, bars, [*list_kinds(bars), "server"])
    pale = bars[bars["latency_s"] > 0]
    pale = pale.assign(right=at(pale["started_at_s"] + pale["latency_s"]))
    white: Any = {"facecolor": "white", "alpha": _PALE, "gid": "latency"}
    _add_boxes(ax, _build_boxes(pale), linewidth=0, **white)
    look = PHASES["dropped"]
    cross: Any = {"facecolor": "none", "edgecolor": look.colour, "hatch": look.hatch}
    _add_boxes(ax, _build_boxes(bars[bars["lost"]]), linewidth=0, **cross)
    _draw_marks(ax, bars, row_in)
    _draw_critical(ax, bars)
    _label_rows(ax, rows, y_of, server_y if on_server.any() else None, row_in)


def _draw_edges(ax: Axes, spans: pd.DataFrame, nodes: Sequence[str], at: At) -> None:
    """Draw a row for each edge server: transfers, waiting for clients, work.

    Args:
        ax: the panel.
        spans: `Timeline.edges`; those of servers that `nodes` leaves out are not drawn.
        nodes: names, from above.
        at: seconds → x.
    """
    spans = spans.assign(
        y=spans["track"].map({name: k for k, name in enumerate(nodes)}),
        left=at(spans["started_at_s"]),
        right=at(spans["finished_at_s"]),
    ).dropna(subset="y")
    _draw_bars(ax, spans, ["download", "upload", "waiting", "server"])
    ax.set_ylim(len(nodes) - 0.3, -0.7)
    ax.set_yticks(range(len(nodes)), nodes)
    ax.tick_params(axis="y", length=0)


def _draw_bars(ax: Axes, bars: pd.DataFrame, kinds: Iterable[str]) -> None:
    """Draw the bars of these kinds, one collection each; waiting is a thin line.

    Args:
        ax: the panel.
        bars: `look, left, right, y`, in the axes' units.
        kinds: those that are drawn, in this order.
    """
    for kind, look in looks(kinds).items():
        boxes = _build_boxes(
            bars[bars["look"] == kind], 0.17 if kind == "waiting" else 0.41
        )
        _add_boxes(ax, boxes, **_style_filling(look), linewidth=0)


def _build_boxes(bars: pd.DataFrame, half: float = 0.41) -> Array:
    """Return the corners of horizontal bars, shape (n, 4, 2).

    Args:
        bars: `left, right, y`, in the axes' units.
        half: half of a bar's height.
    """
    x = bars[["left", "right", "right", "left"]].to_numpy(dtype=float)
    y = bars[["y"]].to_numpy(dtype=float) + half * np.array([-1, -1, 1, 1])
    return np.stack([x, y], axis=2)


def _add_boxes(ax: Axes, boxes: Array, **style: Any) -> None:
    """Add boxes as one collection, which leaves the axes' ends as they are."""
    if len(boxes):
        ax.add_collection(PolyCollection(list(boxes), **style), autolim=False)


def _draw_marks(ax: Axes, bars: pd.DataFrame, row_in: float) -> None:
    """Draw a mark in the middle of each compression, by its strategy."""
    per_round_pt = 72 * _measure_width_in(ax) / max(1, bars["round"].nunique())
    size = float(np.clip(min(row_in * 72 * 0.36, 0.16 * per_round_pt), 1.2, 4.2))
    compressed = bars[bars["kind"] == "compression"]
    for arm, style in _style_marks(bars, size=size, edge=0.4).items():
        marked = compressed[compressed["arm"] == arm]
        middle = (marked["left"] + marked["right"]) / 2
        ax.plot(middle, marked["y"], zorder=4, **style)


def _style_marks(
    bars: pd.DataFrame, *, size: float, edge: float
) -> dict[str, dict[str, Any]]:
    """Return Matplotlib's options for the mark of each arm that compressed.

    Args:
        bars: those that are drawn.
        size: of a mark, in points.
        edge: the width of its outline, in points.
    """
    arms = bars.loc[bars["kind"] == "compression", "arm"].dropna().unique()
    return {
        arm: {
            "linestyle": "none",
            "marker": marker,
            "markersize": size,
            "markerfacecolor": f"{white:.2f}",
            "markeredgecolor": "black",
            "markeredgewidth": edge,
        }
        for arm, (marker, _, white) in choose_arm_shapes(arms).items()
    }


def _draw_critical(ax: Axes, bars: pd.DataFrame) -> None:
    """Draw an outline around the work that set each round's length."""
    for (_, y), path in bars[bars["critical"]].groupby(["round", "y"]):
        left, right = path["left"].min(), path["right"].max()
        style: Any = {"fill": False, "lw": 0.9, "ec": "black", "zorder": 5}
        ax.add_patch(Rectangle((left, y - 0.44), right - left, 0.88, **style))


def _label_rows(
    ax: Axes,
    rows: pd.DataFrame,
    y_of: Mapping[int, float],
    server_y: float | None,
    row_in: float,
) -> None:
    """Name rows at the left: as many ids as fit, prototypes upright beside them.

    Args:
        ax: the panel.
        rows: `client, prototype`, from above.
        y_of: client → its y.
        server_y: the server's; None: it has no row.
        row_in: the height of a row in inches.
    """
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100) if n >= np.ceil(0.095 / row_in))
    ticks: dict[str, float] = {}
    for prototype, members in rows.groupby("prototype", sort=False):
        ids = list(members["client"])
        ticks |= {str(client): y_of[client] for client in ids[::every]}
        fits = max(3, int(row_in * (len(ids) + 0.6) / 0.058))
        name = str(prototype)
        ax.annotate(
            name if len(name) <= fits else name[: fits - 1] + "…",
            (0, (y_of[ids[0]] + y_of[ids[-1]]) / 2),
            xycoords=("axes fraction", "data"),
            xytext=(-34, 0),
            rotation=90,
            va="center",
            annotation_clip=False,
            **_BESIDE,
        )
    if server_y is not None:
        ticks["server"] = server_y
    ax.set_yticks([*ticks.values()], [*ticks])
    ax.tick_params(axis="y", length=0, pad=2)
    ax.set_ylim(max([*y_of.values(), server_y or 0]) + 0.7, -0.7)


def _draw_link(
    ax: Axes, timeline: Timeline, link: str, at: At, varies: Steps | None
) -> None:
    """Draw a link's use as an area, and its capacity as a dashed line.

    Args:
        ax: the panel.
        timeline: where the link's use is recorded.
        link: its name.
        at: seconds → x.
        varies: how its capacity steps, see `compute_capacity_steps`.
    """
    use = timeline.link_use(link).sort_values("from_s")
    rate = 8 * compute_bytes_per_s(use)
    steps_s, capacity = compute_capacity_steps(
        use, timeline.from_s, timeline.to_s, varies
    )
    capacity = 8 * capacity
    top = np.max(capacity[np.isfinite(capacity)], initial=0) or np.max(rate, initial=1)
    scale, unit = next((s, u) for s, u in _RATES if top >= s or s == 1.0)
    use = use.assign(left=at(use["from_s"]), right=at(use["to_s"]), y=0.0)
    boxes = _build_boxes(use, 0.0)
    boxes[:, 2:, 1] = (rate / scale)[:, None]
    _add_boxes(ax, boxes, facecolor="#8DA9C4", edgecolor="#8DA9C4", linewidth=0.2)
    ax.plot(at(steps_s), capacity / scale, gid="capacity", **_CAPACITY)
    ax.set_ylim(0, 1.65 * top / scale)
    ax.set_yticks([0, top / scale], ["0", f"{top / scale:.3g}"])
    ax.set_ylabel(unit)
    name = link if len(link) <= 40 else link[:39] + "…"
    style: Any = {"va": "top", "ha": "left", "parse_math": False}
    ax.text(0.004, 1, name, transform=ax.transAxes, **style)


def _draw_rounds(axes: Sequence[Axes], timeline: Timeline, at: At, level: int) -> None:
    """Draw the borders of the rounds through all panels, and their texts on top.

    Args:
        axes: all panels.
        timeline: the rounds.
        at: seconds → x.
        level: which of `_list_texts` stands above the rounds.
    """
    rounds = timeline.rounds
    start, end = at(rounds["started_at_s"]), at(rounds["finished_at_s"])
    left, right = float(start.min()), float(end.max())
    if right <= left:  # nothing took any time
        right = left + 1.0
    for ax in axes:
        ax.set_xlim(left, right)
        for border in (*start[1:], right) if len(rounds) <= 200 else ():
            ax.axvline(border, color="black", lw=0.5, alpha=0.6, zorder=3)
    inches = _measure_width_in(axes[0]) / (right - left)
    free_from = -np.inf
    place: Any = {"xycoords": ("data", "axes fraction"), "xytext": (0, 2)}
    for texts, middle in zip(_list_texts(timeline), (start + end) / 2, strict=True):
        width = estimate_text_width_in(texts[level]) / inches
        if level == 2 and middle - width / 2 < free_from:
            continue
        axes[0].annotate(texts[level], (middle, 1), va="bottom", **place, **_BESIDE)
        free_from = middle + 1.4 * width


def _list_texts(timeline: Timeline) -> list[list[str]]:
    """Return the texts of each round, longest first: in words, name, number."""
    words = explain_rounds(timeline.run.table, set(timeline.rounds["round"]))
    names = {n: f"round {n}" for n in timeline.rounds["round"]}
    for n in timeline.rounds.loc[timeline.rounds["participants"] == 0, "round"]:
        words.setdefault(n, f"{names[n]}: nobody was there")
    return [[words.get(n, name), name, f"{n}"] for n, name in names.items()]


def _choose_words(
    timeline: Timeline, inner_in: float, page_in: float
) -> tuple[int, list[str]]:
    """Return which of `_list_texts` stands above the rounds, and the lines below.

    One level is the same for all rounds, so that it reads as one line; the lines stand
    below the chart where the words do not fit above.

    Args:
        timeline: the rounds.
        inner_in: the width of the panels in inches.
        page_in: that of the lines below.
    """
    rounds, texts = timeline.rounds, _list_texts(timeline)
    length_s = (rounds["finished_at_s"] - rounds["started_at_s"]).to_numpy()
    whole_s = timeline.to_s - timeline.from_s or 1.0
    wide_in = np.array([[*map(estimate_text_width_in, three)] for three in texts])
    fits = np.all(wide_in < (0.98 * inner_in * length_s / whole_s)[:, None], axis=0)
    level = next((i for i in (0, 1) if fits[i]), 2)
    if level == 0:
        return level, []
    longest = np.argsort(-length_s, kind="stable")[:MOST_WORDS]
    words = [texts[i][0] for i in sorted(longest) if texts[i][0] != texts[i][1]]
    points = 6.5 / FONT_POINTS * float(mpl.rcParams["font.size"])
    letters = max(20, int(page_in / estimate_text_width_in("n", points)))
    lines = [line for text in words for line in textwrap.wrap(text, letters)]
    if len(rounds) > MOST_WORDS and words:
        lines.insert(0, f"the {MOST_WORDS} longest of {len(rounds)} rounds:")
    return level, lines


def _measure_width_in(ax: Axes) -> float:
    """Return the width of a panel in inches."""
    return float(ax.bbox.width / ax.figure.dpi)


def _build_legend(
    timeline: Timeline, bars: pd.DataFrame, links: Sequence[str]
) -> list[Patch | Line2D]:
    """Return an entry for everything that the chart shows, and for nothing else.

    Args:
        timeline: all bars, of which those that took time count.
        bars: those that are drawn, with `latency_s`.
        links: names of those that have a panel.
    """
    visible = timeline.bars[
        timeline.bars["finished_at_s"] > timeline.bars["started_at_s"]
    ]
    handles: list[Patch | Line2D] = [
        _build_swatch(look) for look in looks(list_kinds(visible)).values()
    ]
    if (bars["latency_s"] > 0).any():
        colour = np.array(to_rgb(PHASES["download"].colour))
        pale: Any = tuple(colour + (1 - colour) * _PALE)
        handles.append(Patch(facecolor=pale, lw=0, label="latency (paler)"))
    for kind, is_there in (
        ("server", visible["client"].isna().any()),
        ("dropped", bars["lost"].any()),
        ("absent", len(timeline.absences())),
    ):
        handles += [_build_swatch(PHASES[kind])] * bool(is_there)
    if bars["critical"].any():
        outline: Any = {"facecolor": "none", "edgecolor": "black", "lw": 0.9}
        handles.append(Patch(**outline, label="sets the round's length"))
    for arm, style in _style_marks(bars, size=4, edge=0.5).items():
        handles.append(Line2D([], [], label=make_label(arm), **style))
    if links:
        handles.append(Line2D([], [], label="link capacity", **_CAPACITY))
    return handles


def _build_swatch(look: Phase) -> Patch:
    """Return a legend's patch, hatched twice as densely as a bar."""
    filling = _style_filling(look)
    if look.hatch:
        filling["hatch"] = 2 * look.hatch
    return Patch(**filling, lw=0, label=look.label)


def _style_filling(look: Phase) -> dict[str, Any]:
    """Return Matplotlib's options for an area with this look."""
    if look.hatch:
        return {"facecolor": "white", "edgecolor": look.colour, "hatch": look.hatch}
    return {"facecolor": look.colour}
