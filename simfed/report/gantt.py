"""Gantt charts of rounds: clients' phases, critical clients, use of links.

A row per client, grouped by prototype; of more than `MOST_ROWS` the slowest.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
At = Callable[[ArrayLike], Array]
"""Seconds → the axis' unit, from its origin."""

MOST_ROWS = 120
"""Of more clients than this the slowest have rows."""
MOST_BARS = 20_000
"""More bars than this are no picture any more."""
SLOWEST = 40
MOST_WORDS = 6
"""Rounds explained below a chart whose rounds are too narrow for it."""
_PALE = 0.62
"""The share of white in the colour of a transfer's latency."""
_BESIDE: Any = {"textcoords": "offset points", "ha": "center", "parse_math": False}
"""Options of text that stands beside what it names."""
_RATES = ((1e9, "Gbps"), (1e6, "Mbps"), (1e3, "kbps"), (1.0, "bps"))


@dataclass(frozen=True)
class _Layout:
    """Heights in inches of what stands below one another."""

    row: float
    gap: float
    left: float
    bottom: float
    link: float = 0.42
    right: float = 0.12


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
        rounds: first and last, both included; None: a choice of the first ones.
        clients: ids; None: all, of too many the slowest.
        width_in: the width in inches; the height follows from the rows.
        height_in: or the rows follow from this height.
        points: the size of letters.
        capacities: link → (instants, bytes/s from then on) of links whose capacity
            varies, as `simfed.experiment.capacities.capacities_of` gives it; without,
            it is drawn where it was recorded, while the link was in use.

    Raises: `InputError` for more than `MOST_BARS` bars in rows, and for a height that
    leaves no room for them.
    """
    with picture_style(points):
        return _draw_gantt(
            build_timeline(run, rounds, clients),
            width_in,
            height_in,
            points,
            capacities,
        )


def _draw_gantt(
    timeline: Timeline,
    width_in: float,
    height_in: float | None,
    points: float,
    capacities: Capacities | None,
) -> Figure:
    rows, bars = _choose_rows_and_bars(timeline)
    share = points / FONT_POINTS
    row = share * float(np.interp(len(rows), [10, 40, 100], [0.19, 0.12, 0.066]))
    layout = _Layout(row, gap=0.08 * share, left=0.62 * share, bottom=0.38 * share)
    links = timeline.links()
    handles = _build_legend(timeline, bars, links)
    inner_in = width_in - layout.left - layout.right
    level, below = _choose_words(timeline, inner_in, width_in - 0.2)
    bottom_in = layout.bottom + 0.135 * share * len(below) + 0.06 * bool(below)
    panels = [layout.row * _count_rows(rows, bars)]
    edges = timeline.edges()
    nodes = list(dict.fromkeys(edges["track"]))[:MOST_ROWS]
    panels += [layout.row * (len(nodes) + 0.4)] * bool(nodes)
    panels += [layout.link] * len(links)
    if height_in is not None:
        room_in = (
            height_in - bottom_in - compute_legend_height_in(handles, inner_in, points)
        )
        room_in -= layout.gap * (len(panels) - 1)
        if room_in < 0.04 * _count_rows(rows, bars) + 0.15 * (len(panels) - 1):
            allowed, hint = (
                "a height with room for every row",
                "show fewer clients, or a smaller font",
            )
            raise InputError(
                allowed, where="--height", got=f"{height_in:g} in", hint=hint
            )
        panels = [room_in * panel / sum(panels) for panel in panels]
    row_in = panels[0] / _count_rows(rows, bars)
    figure, axes = build_figure(
        width_in,
        panels,
        layout.gap,
        handles,
        layout.left,
        layout.right,
        bottom_in,
        points,
    )
    scale, unit = time_unit(timeline.to_s - timeline.from_s)
    origin = 0.0 if int(timeline.rounds["round"].iloc[0]) == 1 else timeline.from_s

    def at(seconds: ArrayLike) -> Array:
        return (np.asarray(seconds, dtype=float) - origin) / scale

    _draw_rows(axes[0], bars, rows, row_in, at)
    absences = timeline.absences()
    for left, right in zip(
        at(absences["started_at_s"]), at(absences["finished_at_s"]), strict=True
    ):
        axes[0].axvspan(
            left,
            right,
            zorder=0,
            gid="absent",
            lw=0,
            **_style_filling(PHASES["absent"]),
        )
    if nodes:
        _draw_edges(axes[1], edges, nodes, at)
    for ax, link in zip(axes[1 + bool(nodes) :], links, strict=True):
        _draw_link(ax, timeline, link, at, (capacities or {}).get(link))
    _draw_rounds(axes, timeline, at, level)
    since = f"{timeline.run.seconds} time"
    if origin:
        since = f"time since the start of round {timeline.rounds['round'].iloc[0]}"
    axes[-1].set_xlabel(f"{since} ({unit})")
    for i, line in enumerate(below):
        y_in = 0.05 * share + 0.135 * share * (len(below) - 1 - i)
        style: Any = {
            "va": "bottom",
            "ha": "left",
            "fontsize": 6.5 * share,
            "parse_math": False,
        }
        figure.text(0.1 / width_in, y_in / figure.get_figheight(), line, **style)
    return figure


def _choose_rows_and_bars(timeline: Timeline) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the clients that have a row, and the bars of these and of the server.

    Of too many clients these are the slowest; bars come with their `latency_s`.

    Raises: `InputError` for more bars than a picture shows.
    """
    rows = timeline.clients
    if len(rows) > MOST_ROWS:
        slowest = find_slowest_clients(timeline, SLOWEST)
        rows = rows[rows["client"].isin(slowest)]
        rows = (
            rows.set_index("client")
            .loc[slowest]
            .reset_index()
            .assign(prototype="slowest")
        )
    shown = timeline.bars["client"].isna() | timeline.bars["client"].isin(
        rows["client"]
    )
    bars = timeline.bars.assign(latency_s=timeline.latency_s())[shown]
    if len(bars) > MOST_BARS:
        hint = "show fewer rounds or clients, or use --format perfetto"
        raise InputError(
            f"at most {MOST_BARS:,} bars in a picture", got=len(bars), hint=hint
        )
    return rows, bars


def _count_rows(rows: pd.DataFrame, bars: pd.DataFrame) -> float:
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
    y_of = _place_rows(rows)
    server_y = max(y_of.values(), default=-1.6) + 1.6
    on_server = bars["client"].isna()
    y = bars["client"].map(y_of).astype(float).where(~on_server, server_y)
    start, end = at(bars["started_at_s"]), at(bars["finished_at_s"])
    lost = bars["outcome"].isin(["dropped", "failed"]).to_numpy() & ~bars["kind"].isin(
        ["waiting", "offline"]
    )
    for kind, look in looks([*list_kinds(bars), "server"]).items():
        at_server = kind == "server"
        shown = (
            on_server if at_server else (bars["kind"] == kind) & ~on_server
        ).to_numpy()
        half = 0.17 if kind == "waiting" else 0.41
        boxes = _build_boxes(start[shown], end[shown], y[shown].to_numpy(), half)
        _add_boxes(ax, boxes, **_style_filling(look), linewidth=0)
    waits = (bars["latency_s"] > 0).to_numpy()
    begun = at(bars["started_at_s"] + bars["latency_s"])
    pale = _build_boxes(start[waits], begun[waits], y[waits].to_numpy(), 0.41)
    _add_boxes(ax, pale, facecolor="white", alpha=_PALE, linewidth=0, gid="latency")
    crossed = _build_boxes(start[lost], end[lost], y[lost].to_numpy(), 0.41)
    look = PHASES["dropped"]
    _add_boxes(
        ax,
        crossed,
        facecolor="none",
        edgecolor=look.colour,
        hatch=look.hatch,
        linewidth=0,
    )
    _draw_marks(ax, bars, start, end, y.to_numpy(), row_in)
    _draw_critical(ax, bars, start, end, y.to_numpy())
    _label_rows(ax, rows, y_of, server_y if on_server.any() else None, row_in)


def _draw_edges(ax: Axes, spans: pd.DataFrame, nodes: Sequence[str], at: At) -> None:
    """Draw a row for each edge server: transfers, waiting for clients, work."""
    y = (
        spans["track"]
        .map({name: k for k, name in enumerate(nodes)})
        .to_numpy(dtype=float)
    )
    start, end, kinds = (
        at(spans["started_at_s"]),
        at(spans["finished_at_s"]),
        spans["kind"],
    )
    shown_kinds = kinds.where(
        kinds.isin(["download", "upload", "waiting"]), "server"
    ).to_numpy()
    for kind, look in looks(["download", "upload", "waiting", "server"]).items():
        shown = (shown_kinds == kind) & ~np.isnan(y)
        half = 0.17 if kind == "waiting" else 0.41
        _add_boxes(
            ax,
            _build_boxes(start[shown], end[shown], y[shown], half),
            **_style_filling(look),
            linewidth=0,
        )
    ax.set_ylim(len(nodes) - 0.3, -0.7)
    ax.set_yticks(range(len(nodes)), nodes)
    ax.tick_params(axis="y", length=0)


def _build_boxes(start: Array, end: Array, y: Array, half: float) -> Array:
    """Corners of horizontal bars, shape (n, 4, 2)."""
    x = np.stack([start, end, end, start], axis=1)
    return np.stack([x, y[:, None] + half * np.array([-1, -1, 1, 1])], axis=2)


def _add_boxes(ax: Axes, boxes: Array, **style: Any) -> None:
    if len(boxes):
        ax.add_collection(PolyCollection(list(boxes), **style), autolim=False)


def _draw_marks(
    ax: Axes, bars: pd.DataFrame, start: Array, end: Array, y: Array, row_in: float
) -> None:
    per_round_pt = 72 * _measure_width_in(ax) / max(1, bars["round"].nunique())
    size = float(np.clip(min(row_in * 72 * 0.36, 0.16 * per_round_pt), 1.2, 4.2))
    compressed = (bars["kind"] == "compression").to_numpy()
    for arm, (marker, _, white) in _choose_shapes(bars).items():
        marked = compressed & (bars["arm"] == arm).to_numpy()
        look = _style_mark(marker, white, size=size, edge=0.4)
        ax.plot((start[marked] + end[marked]) / 2, y[marked], zorder=4, **look)


def _style_mark(
    marker: str, white: float, *, size: float, edge: float
) -> dict[str, Any]:
    return {
        "linestyle": "none",
        "marker": marker,
        "markersize": size,
        "markerfacecolor": f"{white:.2f}",
        "markeredgecolor": "black",
        "markeredgewidth": edge,
    }


def _choose_shapes(bars: pd.DataFrame) -> dict[str, tuple[str, str, float]]:
    return choose_arm_shapes(
        bars.loc[bars["kind"] == "compression", "arm"].dropna().unique()
    )


def _draw_critical(
    ax: Axes, bars: pd.DataFrame, start: Array, end: Array, y: Array
) -> None:
    """Draw an outline around the work that set each round's length."""
    critical = bars["critical"].to_numpy(dtype=bool)
    path = pd.DataFrame({"round": bars["round"], "y": y, "start": start, "end": end})[
        critical
    ]
    for (_, row), group in path.groupby(["round", "y"]):
        left, right = group["start"].min(), group["end"].max()
        ax.add_patch(
            Rectangle(
                (left, row - 0.44),
                right - left,
                0.88,
                fill=False,
                lw=0.9,
                ec="black",
                zorder=5,
            )
        )


def _label_rows(
    ax: Axes,
    rows: pd.DataFrame,
    y_of: dict[int, float],
    server_y: float | None,
    row_in: float,
) -> None:
    every = max(1, int(np.ceil(0.095 / row_in)))
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100) if n >= every)
    ticks, labels = [], []
    for prototype, members in rows.groupby("prototype", sort=False):
        ids = list(members["client"])
        ticks += [y_of[client] for client in ids[::every]]
        labels += [str(client) for client in ids[::every]]
        middle = (y_of[ids[0]] + y_of[ids[-1]]) / 2
        fits = max(3, int(row_in * (len(ids) + 0.6) / 0.058))
        name = str(prototype)
        ax.annotate(
            name if len(name) <= fits else name[: fits - 1] + "…",
            (0, middle),
            xycoords=("axes fraction", "data"),
            xytext=(-34, 0),
            rotation=90,
            va="center",
            annotation_clip=False,
            **_BESIDE,
        )
    if server_y is not None:
        ticks.append(server_y)
        labels.append("server")
    ax.set_yticks(ticks, labels)
    ax.tick_params(axis="y", length=0, pad=2)
    bottom = max([*y_of.values(), server_y or 0]) + 0.7
    ax.set_ylim(bottom, -0.7)


def _draw_link(
    ax: Axes, timeline: Timeline, link: str, at: At, varies: Steps | None = None
) -> None:
    use = timeline.link_use(link).sort_values("from_s")
    rate = 8 * compute_bytes_per_s(use)
    steps_s, capacity = compute_capacity_steps(
        use, timeline.from_s, timeline.to_s, varies
    )
    capacity = 8 * capacity
    top = np.max(capacity[np.isfinite(capacity)], initial=0) or np.max(rate, initial=1)
    scale, unit = next((s, u) for s, u in _RATES if top >= s or s == 1.0)
    boxes = _build_boxes(at(use["from_s"]), at(use["to_s"]), np.zeros(len(use)), 0.0)
    boxes[:, 2:, 1] = (rate / scale)[:, None]
    _add_boxes(ax, boxes, facecolor="#8DA9C4", edgecolor="#8DA9C4", linewidth=0.2)
    ax.plot(
        at(steps_s),
        capacity / scale,
        color="black",
        lw=0.8,
        ls=(0, (4, 2)),
        gid="capacity",
    )
    ax.set_ylim(0, 1.65 * top / scale)
    ax.set_yticks([0, top / scale], ["0", f"{top / scale:.3g}"])
    ax.set_ylabel(unit)
    name = link if len(link) <= 40 else link[:39] + "…"
    ax.text(
        0.004, 1, name, transform=ax.transAxes, va="top", ha="left", parse_math=False
    )


def _draw_rounds(axes: Sequence[Axes], timeline: Timeline, at: At, level: int) -> None:
    """Borders of the rounds through all panels, their numbers on top."""
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
    levels = _levels(timeline)
    free_from = -np.inf
    for texts, middle in zip(levels, (start + end) / 2, strict=True):
        width = estimate_text_width_in(texts[level]) / inches
        if level == 2 and middle - width / 2 < free_from:
            continue
        place: Any = {
            "xycoords": ("data", ("axes fraction")),
            "xytext": (0, 2),
            "va": "bottom",
        }
        axes[0].annotate(texts[level], (middle, 1), **place, **_BESIDE)
        free_from = middle + 1.4 * width


def _levels(timeline: Timeline) -> list[list[str]]:
    """Return the texts above rounds, longest first: in words, name, number."""
    words = explain_rounds(timeline.run.table, set(timeline.rounds["round"]))
    names = {n: f"round {n}" for n in timeline.rounds["round"]}
    for n in timeline.rounds.loc[timeline.rounds["participants"] == 0, "round"]:
        words.setdefault(n, f"{names[n]}: nobody was there")
    return [[words.get(n, name), name, f"{n}"] for n, name in names.items()]


def _choose_words(
    timeline: Timeline, inner_in: float, page_in: float
) -> tuple[int, list[str]]:
    """Return which of `_levels` stands above the rounds, and the lines below.

    One level is the same for all rounds, so that it reads as one line; the lines stand
    below the chart where the words do not fit above.
    """
    rounds, levels = timeline.rounds, _levels(timeline)
    length_s = (rounds["finished_at_s"] - rounds["started_at_s"]).to_numpy()
    whole_s = timeline.to_s - timeline.from_s or 1.0
    wide = np.array(
        [[estimate_text_width_in(text) for text in texts] for texts in levels]
    )
    fits = np.all(wide < (0.98 * inner_in * length_s / whole_s)[:, None], axis=0)
    level = next((i for i in (0, 1) if fits[i]), 2)
    if level == 0:
        return level, []
    longest = np.argsort(-length_s, kind="stable")[:MOST_WORDS]
    words = [levels[i][0] for i in sorted(longest) if levels[i][0] != levels[i][1]]
    letters = max(
        20,
        int(
            page_in
            / estimate_text_width_in("n", 6.5 / FONT_POINTS * _read_font_points())
        ),
    )
    lines = [line for text in words for line in textwrap.wrap(text, letters)]
    if len(rounds) > MOST_WORDS and words:
        lines.insert(0, f"the {MOST_WORDS} longest of {len(rounds)} rounds:")
    return level, lines


def _read_font_points() -> float:
    return float(mpl.rcParams["font.size"])


def _measure_width_in(ax: Axes) -> float:
    return float(ax.bbox.width / ax.figure.dpi)


def _build_legend(
    timeline: Timeline, bars: pd.DataFrame, links: Sequence[str]
) -> list[Patch | Line2D]:
    visible = timeline.bars[
        timeline.bars["finished_at_s"] > timeline.bars["started_at_s"]
    ]
    kinds = looks(list_kinds(visible))
    handles: list[Patch | Line2D] = [_build_swatch(look) for look in kinds.values()]
    if (bars["latency_s"] > 0).any():
        red, green, blue = to_rgb(PHASES["download"].colour)
        pale = (
            red + (1 - red) * _PALE,
            green + (1 - green) * _PALE,
            blue + (1 - blue) * _PALE,
        )
        handles.append(Patch(facecolor=pale, lw=0, label="latency (paler)"))
    if visible["client"].isna().any():
        handles.append(_build_swatch(PHASES["server"]))
    work = ~bars["kind"].isin(["waiting", "offline"])
    if (work & bars["outcome"].isin(["dropped", "failed"])).any():
        handles.append(_build_swatch(PHASES["dropped"]))
    if len(timeline.absences()):
        handles.append(_build_swatch(PHASES["absent"]))
    if bars["critical"].any():
        handles.append(
            Patch(
                facecolor="none",
                edgecolor="black",
                lw=0.9,
                label="sets the round's length",
            )
        )
    for arm, (marker, _, white) in _choose_shapes(bars).items():
        handles.append(
            Line2D(
                [],
                [],
                label=make_label(arm),
                **_style_mark(marker, white, size=4, edge=0.5),
            )
        )
    if links:
        handles.append(
            Line2D([], [], color="black", lw=0.8, ls=(0, (4, 2)), label="link capacity")
        )
    return handles


def _build_swatch(look: Phase) -> Patch:
    filling = _style_filling(look)
    if look.hatch:
        filling["hatch"] = 2 * look.hatch
    return Patch(**filling, lw=0, label=look.label)


def _style_filling(look: Phase) -> dict[str, Any]:
    if look.hatch:
        return {"facecolor": "white", "edgecolor": look.colour, "hatch": look.hatch}
    return {"facecolor": look.colour}
