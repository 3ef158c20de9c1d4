"""The HTML report's charts: Plotly Express figures of tidy frames.

A builder takes a frame and gives a `Panel`: figures, what they say, and the same
numbers as a table for those who do not see the drawing. `page.js` adds colours of the
page, a selector among the figures and drawing; nothing here knows of HTML. Black stands
for the page's text colour.
"""

from __future__ import annotations

import functools
import html
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

from simfed.ground.measure import SHARES
from simfed.ground.units import format_bytes, format_duration
from simfed.record.schema import columns
from simfed.report import frames
from simfed.report.pictures import choose_bytes_unit, time_unit
from simfed.report.style import (
    PHASES,
    SERIES_COLOURS,
    SERIES_DASHES,
    WORK,
    choose_arm_colours,
    phase,
)

if TYPE_CHECKING:
    import pyarrow as pa

MOST_POINTS = 4_000
"""The most points of all curves of one figure."""
MOST_CLIENT_BARS = 80
SIMULATED = "simulated time"
MOST_CELLS = 5_000
_QUANTILE_BINS = 80
"""The most stretches of rounds for which a panel shows quantiles."""
_INK = "#000000"

Figures = dict[tuple[str, ...], go.Figure]
"""Figures of a panel, by what is chosen: an entry for each of its `by`."""


@dataclass(frozen=True)
class PanelTable:
    """A table of the page: texts, and which columns are numbers (right-aligned)."""

    caption: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numeric: frozenset[int] = frozenset()
    note: str = ""
    same: Sequence[tuple[str, ...]] = ()
    """Rows in which nothing differs, folded away below the others."""


def build_columns_table(
    label: str, title: str, table: pa.Table, name: str
) -> PanelTable | None:
    """Return a table that was declared with a heading, column by column.

    A row says what the column means, how many cells are filled, and the least, median
    and most of its numbers; None for a table without rows.
    """
    if not len(table):
        return None
    rows = []
    for column in columns(name):
        cells = table.column(column.name).drop_null()
        ends = ("", "", "")
        if column.dtype in ("int64", "float64") and len(cells):
            low, middle, high = np.quantile(cells.to_numpy(), (0.0, 0.5, 1.0))
            ends = (f"{low:.6g}", f"{middle:.6g}", f"{high:.6g}")
        rows.append((label, column.name, column.meaning, f"{len(cells):,}", *ends))
    header = ("run", "column", "meaning", "values", "least", "median", "most")
    caption = f"{title} ({name}.parquet, {len(table):,} rows)"
    return PanelTable(caption, header, rows, frozenset({3, 4, 5, 6}))


@dataclass(frozen=True)
class Panel:
    """A chart of the page: figures of which one is shown, and text."""

    key: str
    title: str
    about: str
    figures: Figures
    by: tuple[str, ...] = ("run",)
    """The selectors' names; for `run` the page has one switch."""
    notes: tuple[str, ...] = ()
    """Sentences that the reader must know: a sample, a band, a limit."""
    table: PanelTable | None = None


Row = Mapping[str, Any]
"""A row of a frame: column → value."""
Columns = Mapping[str, Callable[[Row], str]]
"""Heading → what a row says below it."""


def build_table(
    caption: str,
    frame: pd.DataFrame,
    columns: Columns,
    numeric: Iterable[int] = (),
    note: str = "",
) -> PanelTable:
    """Return a table with a row for each of a frame's.

    `numeric`: places of columns that are numbers.
    """
    rows = [
        tuple(cell(row) for cell in columns.values())
        for row in frame.to_dict("records")
    ]
    return PanelTable(caption, tuple(columns), rows, frozenset(numeric), note)


def drop_empty_columns(table: PanelTable, always: Iterable[int] = ()) -> PanelTable:
    """Return a table without the columns in which nothing stands.

    `always`: places of columns that stay.
    """
    places = [
        i
        for i in range(len(table.header))
        if i in always or any(row[i] for row in table.rows)
    ]
    return replace(
        table,
        header=tuple(table.header[i] for i in places),
        rows=[tuple(row[i] for i in places) for row in table.rows],
        numeric=frozenset(n for n, i in enumerate(places) if i in table.numeric),
    )


def limited(
    table: PanelTable, source: str, *, first: bool = False, most: int = 200
) -> PanelTable:
    """Return at most `most` rows, the first or evenly spaced ones, and say so."""
    if len(table.rows) <= most:
        return table
    places = range(most) if first else _choose_places(len(table.rows), most)
    which = "the first" if first else "evenly spaced"
    note = f"{len(places):,} of {len(table.rows):,} rows, {which}; all are in {source}."
    return replace(table, rows=[table.rows[i] for i in places], note=note, same=())


def number(value: float | None, digits: int = 4) -> str:
    """Return a number for a table's cell; empty for none."""
    if value is None or pd.isna(value):
        return ""
    return f"{value:.{digits}g}"


def plain(text: object) -> str:
    """Return text for Plotly, which would read `<b>` and its like as markup.

    >>> plain("<script>")
    '&lt;script&gt;'
    """
    return html.escape(str(text), quote=False)


def draw_curves(
    frame: pd.DataFrame,
    x: str,
    y: str,
    colour: str,
    *,
    colours: Mapping[str, str],
    dash: str | None = None,
    band: bool = False,
    targets: Sequence[float] = (),
    **options: Any,
) -> go.Figure:
    """Return curves of the columns `x` and `y`, one per value of `colour` and `dash`.

    Args:
        frame: the values, tidy.
        x: the column across.
        y: the column upwards.
        colour: the column that tells curves apart.
        colours: value → its colour.
        dash: another column that does.
        band: fill between the columns `low` and `high`.
        targets: heights of dashed lines across.
        options: those of Plotly Express.
    """
    shown = frame.dropna(subset=[y]).astype({y: "float32"})
    names = list(dict.fromkeys(name for name in (colour, dash) if name is not None))
    shown = shown.assign(**{name: shown[name].map(plain) for name in names})
    sizes = shown.groupby(names).size()
    figure = px.line(
        shown,
        x=x,
        y=y,
        color=colour,
        line_dash=dash,
        color_discrete_map={plain(name): value for name, value in colours.items()},
        line_dash_sequence=SERIES_DASHES,
        markers=bool(len(sizes) and sizes.max() < 25),
        template="none",
        **options,
    )
    if band:
        edges = shown.dropna(subset=["low", "high"]).groupby(colour, sort=False)
        bands = [_draw_band(rows, x, name, figure) for name, rows in edges]
        figure = go.Figure([*bands, *figure.data], figure.layout)
    for target in targets:
        figure.add_hline(target, line={"width": 1, "dash": "dash", "color": "#7F7F7F"})
    return figure


def _draw_band(rows: pd.DataFrame, x: str, name: str, figure: go.Figure) -> go.Scatter:
    """Return what fills a curve's band, in its colour and hidden with it."""
    (line,) = (trace for trace in figure.data if trace.legendgroup == name)
    red, green, blue = (int(line.line.color[i : i + 2], 16) for i in (1, 3, 5))
    return go.Scatter(
        x=np.concatenate([rows[x], rows[x][::-1]]),
        y=np.concatenate([rows["low"], rows["high"][::-1]]).astype("float32"),
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=f"rgba({red},{green},{blue},0.16)",
        legendgroup=name,
        showlegend=False,
        hoverinfo="skip",
    )


def build_curves_panel(
    tidy: pd.DataFrame,
    *,
    key: str,
    title: str,
    about: str,
    y: Mapping[str, str],
    clock: str = SIMULATED,
) -> Panel:
    """Return curves of a tidy frame (see `frames.curves`), one per run and prototype.

    Both axes can be chosen. `y`: measure → its label; `clock`: the name of the time
    axis.
    """
    several = tidy["run"].nunique() > 1
    groups = [
        rows.dropna(subset=list(y), how="all").sort_values("round")
        for _, rows in tidy.groupby(["run", "prototype"], sort=False)
    ]
    most = max(50, MOST_POINTS // max(1, len(groups)))
    longest = max(map(len, groups), default=0)
    thin = pd.concat([g.iloc[_choose_places(len(g), most)] for g in groups])
    axes = _choose_x_axes(tidy, clock)
    thin = thin.assign(
        **{label: (thin[name] / by).astype("float32") for label, name, by in axes},
        **{label: thin[name] for name, label in y.items()},
    )
    names = list(dict.fromkeys(tidy["run" if several else "prototype"]))
    colours = dict(zip(names, itertools.cycle(SERIES_COLOURS), strict=False))
    # the mean of each of several runs, or its only prototype, has the full line
    first = frames.select_headlines(tidy).drop_duplicates("run")
    leads = set(map(plain, first["run"] + ", " + first["prototype"]))
    kinds = [
        frames.MEAN,
        *(name for name in tidy["prototype"].unique() if name != frames.MEAN),
    ]
    figures: Figures = {}
    for name, label in y.items():
        for across, *_ in axes:
            figure = draw_curves(
                thin,
                across,
                label,
                "run" if several else "prototype",
                dash="prototype" if several else None,
                colours={**colours, frames.MEAN: _INK},
                category_orders={"prototype": list(map(plain, kinds))}
                if several
                else {},
            )
            for trace in figure.data:
                trace.line.width = 3 if trace.name == frames.MEAN else 2
                if several and trace.name not in leads:
                    trace.visible = "legendonly"
            figure.update_xaxes(rangemode="tozero")
            if name in SHARES:
                figure.update_yaxes(range=[0, 1], tickformat=".0%")
            figures[label, across] = figure
    notes = []
    if longest > most:
        words = f"Every curve is drawn from {most:,} of up to {longest:,} points"
        notes.append(f"{words}, evenly spaced.")
    if several and tidy["prototype"].nunique() > 1:
        notes.append("Click a name in the legend to show or hide its curve.")
    table = _build_curve_table(tidy, y, title, clock)
    return Panel(key, title, about, figures, ("show", "against"), tuple(notes), table)


def _choose_x_axes(tidy: pd.DataFrame, clock: str) -> list[tuple[str, str, float]]:
    """Return (label, column, what to divide it by) of the axes that can be chosen."""
    scale, unit = time_unit(float(tidy["at_s"].max()) if len(tidy) else 1.0)
    axes = [(f"{clock} ({unit})", "at_s", scale), ("round", "round", 1.0)]
    for name, label in (
        ("uplink_bytes", "sent by clients"),
        ("total_bytes", "moved both ways"),
    ):
        if name in tidy and tidy[name].max() > 0:
            scale, unit = choose_bytes_unit(float(tidy[name].max()))
            axes.append((f"{label} ({unit})", name, scale))
    return axes


def _choose_places(length: int, most: int) -> np.ndarray[Any, Any]:
    """Return at most `most` of `length` positions, evenly spaced, with both ends."""
    if length <= most:
        return np.arange(length)
    return np.unique(np.linspace(0, length - 1, most).round().astype(int))


def _build_curve_table(
    tidy: pd.DataFrame, y: Mapping[str, str], caption: str, clock: str
) -> PanelTable:
    shown = tidy.dropna(subset=list(y), how="all")
    measured = shown.dropna(subset=[next(iter(y))])
    columns: Columns = {
        "run": lambda row: str(row["run"]),
        "prototype": lambda row: str(row["prototype"]),
        "round": lambda row: f"{row['round']:,}",
        clock: lambda row: format_duration(row["at_s"]),
        "sent by clients": lambda row: format_bytes(row["uplink_bytes"]),
        **{
            label: functools.partial(_format_measure, name=name)
            for name, label in y.items()
        },
    }
    shown = measured if len(measured) else shown
    table = build_table(caption, shown, columns, range(2, len(columns)))
    return limited(table, "prototypes.parquet")


def _format_measure(row: Row, name: str) -> str:
    return number(row[name])


def build_time_panel(
    seconds: Mapping[str, pd.DataFrame], clock: str = SIMULATED
) -> Panel:
    """Return stacked bars: each client's seconds per phase over the whole run.

    `seconds`: label → `sum_phase_seconds` by client and prototype.
    """
    figures: Figures = {}
    rows, notes = [], []
    kinds_of = {
        name: [k for k in (*PHASES, *WORK) if k in f] for name, f in seconds.items()
    }
    most_s = max(
        float(f[kinds_of[name]].sum(axis=1).max()) for name, f in seconds.items()
    )
    for label, frame in seconds.items():
        shown = frame
        if len(frame) > MOST_CLIENT_BARS:
            work = ["download", "training", "compression", "upload"]
            busiest = frame[work].sum(axis=1).nlargest(MOST_CLIENT_BARS)
            shown = frame.loc[busiest.index.sort_values()]
            words = f"the {MOST_CLIENT_BARS} of {len(frame):,} clients"
            notes.append(f"{label}: {words} that were busy longest.")
        figures[(label,)] = _draw_time_bars(shown, kinds_of[label], most_s, clock)
        for row in shown.to_dict("records"):
            lengths = (format_duration(row[kind]) for kind in kinds_of[label])
            cells = (f"{row['client']}", str(row["prototype"]))
            rows.append((label, *cells, f"{row['participations']:,}", *lengths))
    kinds = [look.label for look in map(phase, next(iter(kinds_of.values())))]
    header = ("run", "client", "prototype", "participations", *kinds)
    numeric = frozenset(range(3, len(header)))
    return Panel(
        "time",
        "Where each client's time went",
        "Simulated time of every client over the whole run, by phase. Long waiting "
        "means that somebody else set the pace.",
        figures,
        notes=tuple(notes),
        table=PanelTable("Seconds in each phase, by client", header, rows, numeric),
    )


def _draw_time_bars(
    frame: pd.DataFrame, kinds: Sequence[str], most_s: float, clock: str
) -> go.Figure:
    """Return a bar per client.

    `most_s` ends the axis, the same for every run of a page.
    """
    used = [phase(kind) for kind in kinds if frame[kind].sum() > 0]
    scale, unit = time_unit(most_s)
    across = f"{clock} ({unit})"
    rows = frame.assign(
        client=[f"{row.client} · {plain(row.prototype)}" for row in frame.itertuples()]
    ).melt("client", [look.name for look in used], "phase", across)
    rows[across] = (rows[across] / scale).astype("float32")
    rows["phase"] = rows["phase"].map({look.name: look.label for look in used})
    figure = px.bar(
        rows,
        x=across,
        y="client",
        color="phase",
        pattern_shape="phase",
        orientation="h",
        color_discrete_map={look.label: look.web for look in used},
        pattern_shape_map={look.label: look.pattern for look in used},
        template="none",
        height=140 + 17 * len(frame),
    )
    figure.update_layout(bargap=0.25, legend_traceorder="normal")
    figure.update_xaxes(range=[0, 1.02 * most_s / scale])
    ends = {"autorange": "reversed", "dtick": 1, "showgrid": False, "title": None}
    figure.update_yaxes(type="category", **ends)
    return figure


_SYMBOLS = {
    "download": "triangle-down",
    "training": "circle",
    "compression": "diamond",
    "upload": "triangle-up",
    "server": "square",
}


def build_round_length_panel(
    rounds: Mapping[str, tuple[pd.DataFrame, Mapping[int, str]]],
) -> Panel:
    """Return every round's length by what was waited for; label → (rounds, words)."""
    figures: Figures = {}
    notes = []
    most = MOST_POINTS // len(rounds)
    longest_s = max(float(frame["duration_s"].max()) for frame, _ in rounds.values())
    last = max(int(frame["round"].max()) for frame, _ in rounds.values())
    scale, unit = time_unit(longest_s)
    up, waited_for = f"length ({unit})", "waited for"
    for label, (frame, words) in rounds.items():
        if len(frame) > most:
            # the longest are what one looks for; the rest shows the level
            keep = np.union1d(
                np.argsort(-frame["duration_s"].to_numpy())[: most // 4],
                _choose_places(len(frame), 3 * most // 4),
            )
            said = f"{len(keep):,} of {len(frame):,} rounds"
            notes.append(f"{label}: {said}, the longest among them.")
            frame = frame.iloc[keep]
        kinds = frame["critical_phase"].astype(object)
        kinds = kinds.where(kinds.notna(), None).unique()
        looks = {kind: phase(str(kind)) for kind in kinds if kind is not None}
        labels = {kind: look.label for kind, look in looks.items()}
        texts = [_describe_round(row, words) for row in frame.to_dict("records")]
        shown = frame.assign(
            **{
                up: (frame["duration_s"] / scale).astype("float32"),
                waited_for: frame["critical_phase"].map(labels).fillna("nobody"),
                "words": texts,
            }
        )
        figure = px.scatter(
            shown,
            x="round",
            y=up,
            color=waited_for,
            symbol=waited_for,
            custom_data=["words"],
            color_discrete_map={
                "nobody": "#7F7F7F",
                **{look.label: look.web for look in looks.values()},
            },
            symbol_map={
                "nobody": "circle-open",
                **{labels[kind]: _SYMBOLS.get(kind, "circle") for kind in looks},
            },
            template="none",
        )
        figure.update_traces(
            hovertemplate="%{customdata[0]}<extra></extra>", marker_size=8
        )
        figure.update_xaxes(range=[0.5 - 0.02 * last, 1.02 * last + 0.5])
        figure.update_yaxes(range=[0, 1.06 * longest_s / scale or 1])
        figures[(label,)] = figure
    return Panel(
        "round-lengths",
        "How long each round took, and for what",
        "Every round's length, marked by the longest phase of the client that it "
        "waited for.",
        figures,
        notes=tuple(notes),
    )


def _describe_round(row: Row, words: Mapping[int, str]) -> str:
    said = plain(
        words.get(row["round"], (f"round {row['round']}: nobody was waited for"))
    )
    said += f"<br>{format_duration(row['duration_s'])}"
    saved_s = row["saved_without_critical_s"]
    if pd.isna(saved_s):
        return said
    return f"{said}, {format_duration(saved_s)} shorter without this client"


def build_choice_share_panel(
    shares: Mapping[str, pd.DataFrame], arms: Sequence[str]
) -> Panel:
    """Return stacked shares of the arms over rounds, one strip per prototype.

    `shares`: label → `compute_arm_shares`.
    """
    figures: Figures = {}
    colours, rows = choose_arm_colours(arms), []
    for label, frame in shares.items():
        ends = frame["from_round"], frame["to_round"]
        spans = [f"{a}–{b}" if a != b else f"{a}" for a, b in zip(*ends, strict=True)]
        shown = pd.DataFrame(
            {
                "round": (ends[0] + ends[1]) / 2,
                "share (%)": (100 * frame["share"]).astype("float32"),
                "strategy": frame["arm"].map(plain),
                "prototype": frame["prototype"].map(plain),
                "rounds": spans,
            }
        )
        figure = px.bar(
            shown,
            x="round",
            y="share (%)",
            color="strategy",
            facet_row="prototype",
            facet_row_spacing=0.05,
            custom_data=["rounds", "strategy", "prototype"],
            color_discrete_map={plain(arm): colours[arm] for arm in arms},
            category_orders={"strategy": [plain(arm) for arm in arms]},
            template="none",
            height=130 + 150 * frame["prototype"].nunique(),
        )
        figure.update_traces(
            width=float((ends[1] - ends[0]).max() + 1) if len(frame) else 1,
            marker_line_width=0,
            hovertemplate="%{customdata[2]}, round %{customdata[0]}<br>"
            "%{customdata[1]}: %{y:.0f} %<extra></extra>",
        )
        figure.for_each_annotation(lambda a: a.update(text=a.text.partition("=")[2]))
        figure.update_yaxes(range=[0, 100], tickvals=[0, 50, 100])
        figure.update_layout(bargap=0)
        figures[(label,)] = figure
        for prototype, group in frame.groupby("prototype", sort=False):
            plays = group.groupby("arm")["plays"].sum().reindex(arms, fill_value=0)
            for arm, count in plays.items():
                share = f"{100 * count / plays.sum():.1f} %"
                rows.append((label, str(prototype), str(arm), f"{count:,}", share))
    header = ("run", "prototype", "strategy", "plays", "share")
    caption = "Strategies chosen over the whole run"
    return Panel(
        "strategy-shares",
        "Strategies over time",
        "Share of each compression strategy (@: at a level of K) among the "
        "participations of a prototype's clients.",
        figures,
        table=PanelTable(caption, header, rows, frozenset({3, 4})),
    )


def build_client_choice_panel(
    plays: Mapping[str, pd.DataFrame], arms: Sequence[str], notes: Sequence[str] = ()
) -> Panel:
    """Return a cell per client and part of the run: the strategy played most there.

    `plays`: label → `compute_arm_shares` by prototype and client.
    """
    notes = list(notes)
    for label, frame in plays.items():
        rounds = int((frame["to_round"] - frame["from_round"]).max()) + 1
        if rounds > 1:
            words = f"a cell stands for {rounds} rounds"
            notes.append(f"{label}: {words} and shows what was played most in them.")
    return Panel(
        "strategy-clients",
        "What each client chose",
        "Rows are clients, columns are rounds; the colour is the strategy played.",
        {(label,): _draw_choice_cells(frame, arms) for label, frame in plays.items()},
        notes=tuple(notes),
    )


def _draw_choice_cells(frame: pd.DataFrame, arms: Sequence[str]) -> go.Figure:
    best = frame.sort_values(["share", "arm"], ascending=[False, True])
    best = best.drop_duplicates(["prototype", "client", "from_round"])
    key = ["prototype", "client"]
    rows = pd.MultiIndex.from_frame(frame[key].drop_duplicates())
    wide, shares = (
        best.pivot(index=key, columns="from_round", values=value).loc[rows]
        for value in ("arm", "share")
    )
    last = frame.groupby("from_round")["to_round"].first()
    spans = [f"{a}–{last[a]}" if last[a] != a else f"{a}" for a in wide.columns]
    texts = [
        [
            f"round {span}<br>{plain(arm)} ({100 * share:.0f} %)"
            if arm in arms
            else f"round {span}<br>took no part"
            for span, arm, share in zip(spans, *line, strict=True)
        ]
        for line in zip(wide.to_numpy(), shares.to_numpy(), strict=True)
    ]
    colours = choose_arm_colours(arms)
    bar_px = max(min(40 * len(arms), 120), 26 * len(arms))
    edges = [(i + step) / len(arms) for i in range(len(arms)) for step in (0, 1)]
    cells = go.Heatmap(
        z=[
            [arms.index(a) if a in arms else None for a in row]
            for row in wide.to_numpy()
        ],
        x=[(a + last[a]) / 2 for a in wide.columns],
        y=[f"{client} · {plain(prototype)}" for prototype, client in wide.index],
        text=texts,
        hovertemplate="client %{y}, %{text}<extra></extra>",
        zmin=-0.5,
        zmax=len(arms) - 0.5,
        colorscale=[[edge, colours[arms[i // 2]]] for i, edge in enumerate(edges)],
        xgap=1,
        ygap=1,
        colorbar={
            "title": {"text": "strategy"},
            "tickvals": list(range(len(arms))),
            "ticktext": [plain(arm) for arm in arms],
            "lenmode": "pixels",
            "len": bar_px + 30,
            "y": 1,
            "yanchor": "top",
            "thickness": 14,
        },
    )
    figure = go.Figure(cells)
    rows_px = max(9, min(17, 1500 // len(wide))) * len(wide)
    figure.update_layout(height=max(154 + rows_px, bar_px + 140), margin_t=36)
    figure.update_xaxes(title_text="round", showgrid=False, zeroline=False)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return figure


def build_quantile_panel(
    frames_of: Mapping[str, pd.DataFrame],
    arms: Sequence[str],
    *,
    key: str,
    title: str,
    about: str,
    y_label: str,
) -> Panel:
    """Return the median over clients and the band that holds 80 % of them, per arm.

    `frames_of`: label → a frame with `round, prototype, arm, value`. One figure per
    label and prototype.
    """
    figures: Figures = {}
    colours, rows = choose_arm_colours(arms), []
    for label, frame in frames_of.items():
        # a diverged run's are not all numbers
        frame = frame[np.isfinite(frame["value"])]
        prototypes = list(dict.fromkeys(frame["prototype"]))
        parts = {"all clients": frame} if len(prototypes) > 1 else {}
        parts |= {str(name): frame[frame["prototype"] == name] for name in prototypes}
        for part, rows_of in parts.items():
            figures[label, part] = draw_curves(
                _compute_quantiles(rows_of, y_label),
                "round",
                y_label,
                "strategy",
                colours=colours,
                dash="strategy",
                band=True,
                category_orders={"strategy": list(map(plain, arms))},
            )
            for arm, values in rows_of.groupby("arm")["value"]:
                cells = map(number, values.quantile([0.1, 0.5, 0.9]))
                rows.append((label, part, str(arm), f"{values.count():,}", *cells))
    quantiles = ("10th percentile", "median", "90th percentile")
    header = ("run", "clients", "strategy", "values", *quantiles)
    caption = f"{title}: over the whole run"
    table = PanelTable(caption, header, rows, frozenset(range(3, 7)))
    by = ("run", "clients")
    return Panel(
        key, title, about, figures, by, (), limited(table, "the run", first=True)
    )


def _compute_quantiles(frame: pd.DataFrame, y: str) -> pd.DataFrame:
    """Return `strategy, round, low, high` and the median `y` of stretches of rounds."""
    last = int(frame["round"].max()) if len(frame) else 1
    bins = frames.split_rounds(last, _QUANTILE_BINS)
    part = bins.get_indexer(pd.Index(frame["round"]))
    quantiles = frame["value"].groupby([frame["arm"], part]).quantile([0.1, 0.5, 0.9])
    wide = quantiles.unstack().reindex(columns=[0.1, 0.5, 0.9])
    places = wide.index.get_level_values(1).to_numpy(dtype=int)
    middle = (bins.left.to_numpy()[places] + 1 + bins.right.to_numpy()[places]) / 2
    wide = wide.set_axis(["low", y, "high"], axis=1)
    strategies = wide.index.get_level_values(0)
    return wide.assign(strategy=strategies, round=middle.astype("float32"))
