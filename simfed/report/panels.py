"""The HTML report's charts and tables: Plotly Express figures of tidy frames.

A builder takes a frame and gives a `Panel`: figures, what they say, and the same
numbers as a `PanelTable` for those who do not see the drawing. `page.js` adds colours
of the page, a selector among the figures and drawing; nothing here knows of HTML. Black
stands for the page's text colour.

Figures of several runs are keyed by the run's label, and stand on the same axes, so
that the page's switch changes bars and points and nothing else. Names of runs,
prototypes and arms go through `plain` on their way to Plotly.

`build_table` makes most tables, here and in `compare.py` and studies: a heading for
each column of a frame, whose name says how its cells are written.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
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
    """A table of a page or a terminal: texts, and which columns are numbers.

    Made by `build_table` and the builders of this room and of studies; `page.html` and
    `simfed.study.tables.lay_out` show it. It knows no runs and formats nothing.
    """

    caption: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    """As many cells as the header has."""
    numeric: Collection[int] = ()
    """Places of columns that are numbers (right-aligned)."""
    note: str = ""
    """A sentence below the table."""
    same: Sequence[tuple[str, ...]] = ()
    """Rows in which nothing differs, folded away below the others."""

    def select(self, places: Sequence[int]) -> PanelTable:
        """Return the table with only the columns at these places, in this order."""
        return replace(
            self,
            header=tuple(self.header[i] for i in places),
            rows=[tuple(row[i] for i in places) for row in self.rows],
            numeric=[n for n, i in enumerate(places) if i in self.numeric],
        )


def build_columns_table(
    label: str, title: str, table: pa.Table, name: str
) -> PanelTable | None:
    """Return a table that was declared with a heading, column by column.

    A row says what the column means, how many cells are filled, and the least, median
    and most of its numbers.

    Args:
        label: the run's name.
        title: the declared heading.
        table: the run's rows.
        name: the table's name, without `.parquet`.

    Returns:
        None for a table without rows.
    """
    if not len(table):
        return None
    rows = []
    for column in columns(name):
        cells = table.column(column.name).drop_null()
        ends = ["", "", ""]
        if column.dtype in ("int64", "float64") and len(cells):
            quantiles = np.quantile(cells.to_numpy(), (0.0, 0.5, 1.0))
            ends = [f"{value:.6g}" for value in quantiles]
        rows.append((label, column.name, column.meaning, f"{len(cells):,}", *ends))
    header = ("run", "column", "meaning", "values", "least", "median", "most")
    caption = f"{title} ({name}.parquet, {len(table):,} rows)"
    return PanelTable(caption, header, rows, (3, 4, 5, 6))


@dataclass(frozen=True)
class Panel:
    """A chart of the page: figures of which one is shown, and text.

    Made by this module's builders, one for each chart whatever the number of runs;
    `page.render_page` puts its text into the page and its figures into the payload.
    """

    key: str
    """Its name in the page's addresses, unique there."""
    title: str
    about: str
    """A sentence or two below the title: what is drawn, and how to read it."""
    figures: Figures
    by: tuple[str, ...] = ("run",)
    """The selectors' names; for `run` the page has one switch."""
    notes: tuple[str, ...] = ()
    """Sentences that the reader must know: a sample, a band, a limit."""
    table: PanelTable | None = None
    """The same numbers."""


Row = Mapping[str, Any]
"""A row of a frame: column → value."""
Columns = Mapping[str, str | Callable[[Row], str]]
"""Heading → the frame's column below it, or what a row says there."""


def build_table(
    caption: str,
    frame: pd.DataFrame,
    columns: Columns,
    numeric: Collection[int] = (),
    note: str = "",
) -> PanelTable:
    """Return a table with a row for each of a frame's.

    Args:
        caption: the table's heading.
        frame: the values, tidy.
        columns: heading → a column of the frame, whose cells `format_cell` writes, or a
            function from a row to a text.
        numeric: places of columns that are numbers.
        note: a sentence below the table.
    """
    rows = [
        tuple(
            format_cell(cell, row[cell]) if isinstance(cell, str) else cell(row)
            for cell in columns.values()
        )
        for row in frame.to_dict("records")
    ]
    return PanelTable(caption, tuple(columns), rows, numeric, note)


def format_cell(column: str, value: Any) -> str:
    """Return a value as its column's name says: `_s`, `bytes`, `share`, or as it is.

    Texts stand as they are, other whole numbers with commas, other numbers with four
    digits; empty cells are empty.

    >>> [format_cell(name, 1500) for name in ("busy_s", "bytes", "rounds")]
    ['25 min 0 s', '1.5 kB', '1,500']
    >>> format_cell("busy_share", 0.25), format_cell("loss", 0.123456)
    ('25.0 %', '0.1235')
    """
    if isinstance(value, str):
        return value
    if pd.isna(value):
        return ""
    if column.endswith("_s"):
        return format_duration(value)
    if column.endswith("bytes"):
        return format_bytes(value)
    if column.endswith("share"):
        return f"{100 * value:.1f} %"
    return f"{value:,}" if isinstance(value, int) else number(value)


def drop_empty_columns(table: PanelTable) -> PanelTable:
    """Return a table without the columns in which nothing stands."""
    places = range(len(table.header))
    return table.select([i for i in places if any(row[i] for row in table.rows)])


def limited(
    table: PanelTable, source: str, *, first: bool = False, most: int = 200
) -> PanelTable:
    """Return a table of not too many rows, and say so where some are left out.

    Args:
        table: the whole one.
        source: where all rows are.
        first: True keeps the first rows; else evenly spaced ones.
        most: how many rows there may be.
    """
    if len(table.rows) <= most:
        return table
    places = range(most) if first else _choose_places(len(table.rows), most)
    which = "the first" if first else "evenly spaced"
    note = f"{len(places):,} of {len(table.rows):,} rows, {which}; all are in {source}."
    return replace(table, rows=[table.rows[i] for i in places], note=note, same=())


def number(value: float | None, digits: int = 4) -> str:
    """Return a number of so many digits for a table's cell; empty for none.

    >>> number(1234.5), number(float("nan")), number(0.5, 1)
    ('1234', '', '0.5')
    """
    return "" if value is None or pd.isna(value) else f"{value:.{digits}g}"


def plain(text: object) -> str:
    """Return text for Plotly, which would read `<b>` and its like as markup.

    Names are whatever somebody wrote into a scenario.

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

    Rows without `y` are left out; points are marked where no curve has 25 of them.

    Args:
        frame: the values, tidy.
        x: the column across.
        y: the column upwards.
        colour: the column that tells curves apart.
        colours: value → its colour.
        dash: another column that does.
        band: fill between the columns `low` and `high`.
        targets: heights of dashed lines across.
        options: those of `plotly.express.line`.
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
    """Return what fills a curve's band, in its colour and hidden with it.

    Args:
        rows: `low`, `high` and the column `x` of one curve, in its order.
        x: the column across.
        name: the curve's, as `figure` has it.
        figure: where the curve is.
    """
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
    y: Mapping[str, str],
    clock: str = SIMULATED,
) -> Panel:
    """Return curves of a tidy frame, one per run and prototype, on axes to choose.

    One run: a colour per prototype, their mean in black. Several: a colour per run, a
    dash per prototype, of which only those that speak for their runs are shown at
    first.

    Args:
        tidy: see `frames.curves`; of several runs, one below another.
        y: column → its label, of those that can be chosen.
        clock: the name of the time axis.
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
    kinds = list(map(plain, dict.fromkeys([frames.MEAN, *tidy["prototype"]])))
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
                category_orders={"prototype": kinds} if several else {},
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
    return Panel(
        "learning",
        "Learning curves",
        "Measured on the test set; the distillation loss is the students' distance "
        "from the clients' joint answer, before each step.",
        figures,
        ("show", "against"),
        tuple(notes),
        _build_curve_table(tidy, y, clock),
    )


def _choose_x_axes(tidy: pd.DataFrame, clock: str) -> list[tuple[str, str, float]]:
    """Return (label, column, what to divide it by) of the axes that can be chosen.

    Bytes are an axis where any were moved.
    """
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
    tidy: pd.DataFrame, y: Mapping[str, str], clock: str
) -> PanelTable:
    """Return the curves' points as a table.

    Those of the first measure; where it was never measured, of any.
    """
    measured = tidy.dropna(subset=[next(iter(y))])
    shown = measured if len(measured) else tidy.dropna(subset=list(y), how="all")
    columns: Columns = {
        "run": "run",
        "prototype": "prototype",
        "round": "round",
        clock: "at_s",
        "sent by clients": "uplink_bytes",
        **{label: name for name, label in y.items()},
    }
    table = build_table("Learning curves", shown, columns, range(2, len(columns)))
    return limited(table, "prototypes.parquet")


def build_time_panel(
    seconds: Mapping[str, pd.DataFrame], clock: str = SIMULATED
) -> Panel:
    """Return stacked bars: each client's seconds per phase over the whole run.

    Of more than `MOST_CLIENT_BARS` clients those that were busy longest have a bar.

    Args:
        seconds: run's label → `frames.sum_phase_seconds` by client and prototype.
        clock: the name of the time axis.
    """
    figures: Figures = {}
    notes, rows = [], []
    kinds = [k for k in (*PHASES, *WORK) if any(k in f for f in seconds.values())]
    most_s = max(float(f.filter(kinds).sum(axis=1).max()) for f in seconds.values())
    for label, frame in seconds.items():
        if len(frame) > MOST_CLIENT_BARS:
            words = f"the {MOST_CLIENT_BARS} of {len(frame):,} clients"
            notes.append(f"{label}: {words} that were busy longest.")
            work = frame[["download", "training", "compression", "upload"]].sum(axis=1)
            frame = frame.loc[work.nlargest(MOST_CLIENT_BARS).index.sort_values()]
        used = [kind for kind in kinds if kind in frame]
        figures[(label,)] = _draw_time_bars(frame, used, most_s, clock)
        rows.append(frame.assign(run=label).rename(columns="{}_s".format))
    columns: Columns = {
        "run": "run_s",
        "client": lambda row: str(row["client_s"]),
        "prototype": "prototype_s",
        "participations": lambda row: f"{row['participations_s']:,}",
        **{phase(kind).label: f"{kind}_s" for kind in kinds},
    }
    caption, numeric = "Seconds in each phase, by client", range(3, len(columns))
    return Panel(
        "time",
        "Where each client's time went",
        "Simulated time of every client over the whole run, by phase. Long waiting "
        "means that somebody else set the pace.",
        figures,
        notes=tuple(notes),
        table=build_table(caption, pd.concat(rows), columns, numeric),
    )


def _draw_time_bars(
    frame: pd.DataFrame, kinds: Sequence[str], most_s: float, clock: str
) -> go.Figure:
    """Return a bar per client, from above.

    Args:
        frame: `client, prototype` and a column of seconds for each kind.
        kinds: phases; those without any seconds are left out.
        most_s: the end of the axis, the same for every run of a page.
        clock: the name of the axis.
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
    """Return every round's length as a point, marked by what was waited for.

    Of too many rounds the longest quarter and evenly spaced ones are shown.

    Args:
        rounds: run's label → (its rows of `rounds.parquet`, round → why it took as long
            as it did).
    """
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
        kinds = frame["critical_phase"].dropna().unique()
        looks = {kind: phase(str(kind)) for kind in kinds}
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
    """Return the text beside a round's point: why, how long, and what it could save."""
    number, saved_s = row["round"], row["saved_without_critical_s"]
    said = plain(words.get(number, f"round {number}: nobody was waited for"))
    said += f"<br>{format_duration(row['duration_s'])}"
    if pd.isna(saved_s):
        return said
    return f"{said}, {format_duration(saved_s)} shorter without this client"


def _name_span(first: int, last: int) -> str:
    """Return rounds as `3–7`, or `3` where they are one."""
    return f"{first}–{last}" if first != last else f"{first}"


def build_choice_share_panel(
    shares: Mapping[str, pd.DataFrame], arms: Sequence[str]
) -> Panel:
    """Return stacked shares of the arms over rounds, one strip per prototype.

    Args:
        shares: run's label → `frames.compute_arm_shares` by prototype.
        arms: all arms of the page, in their order.
    """
    figures: Figures = {}
    colours, rows = choose_arm_colours(arms), []
    for label, frame in shares.items():
        ends = frame["from_round"], frame["to_round"]
        shown = pd.DataFrame(
            {
                "round": (ends[0] + ends[1]) / 2,
                "share (%)": (100 * frame["share"]).astype("float32"),
                "strategy": frame["arm"].map(plain),
                "prototype": frame["prototype"].map(plain),
                "rounds": list(map(_name_span, *ends)),
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
        table=PanelTable(caption, header, rows, (3, 4)),
    )


def build_client_choice_panel(
    plays: Mapping[str, pd.DataFrame], arms: Sequence[str], notes: Sequence[str] = ()
) -> Panel:
    """Return a cell per client and part of the run: the strategy played most there.

    Args:
        plays: run's label → `frames.compute_arm_shares` by prototype and client.
        arms: all arms of the page, in their order.
        notes: sentences that stand before the panel's own.
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
    """Return a row per client and a column per part of the run.

    Args:
        frame: `frames.compute_arm_shares` by prototype and client; of arms that were
            played equally often in a part the first by name is shown.
        arms: those that have a colour.
    """
    best = frame.sort_values(["share", "arm"], ascending=[False, True])
    best = best.drop_duplicates(["prototype", "client", "from_round"])
    key = ["prototype", "client"]
    rows = pd.MultiIndex.from_frame(frame[key].drop_duplicates())
    wide, shares = (
        best.pivot(index=key, columns="from_round", values=value).loc[rows]
        for value in ("arm", "share")
    )
    last = frame.groupby("from_round")["to_round"].first()
    spans = [_name_span(first, last[first]) for first in wide.columns]
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


_QUANTILES = {
    "levels": (
        "Entries kept",
        "K of each participation, where it is not the same for all: the median over "
        "participations, and the band that holds 80 % of them.",
        "K",
    ),
    "rewards": (
        "Rewards",
        "What the policies were told, by the strategy played: the median over "
        "participations, and the band that holds 80 % of them.",
        "reward",
    ),
    "values": (
        "What the policies believed",
        "Each client's estimate of each strategy before its pull (a probability where "
        "the policy works with probabilities): the median over clients, and the band "
        "that holds 80 % of them.",
        "utility or probability",
    ),
}
"""Key of a panel of quantiles → its title, what it is about, and the value's name."""


def build_quantile_panel(
    key: str, frames_of: Mapping[str, pd.DataFrame], arms: Sequence[str]
) -> Panel:
    """Return the median over clients and the band that holds 80 % of them, per arm.

    There is a figure per run and prototype, and one of all clients where there are
    several prototypes.

    Args:
        key: of `_QUANTILES`.
        frames_of: run's label → a frame with `round, prototype, arm, value`; values
            that are not finite are left out.
        arms: all arms of the page, in their order.
    """
    title, about, y_label = _QUANTILES[key]
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
    table = PanelTable(caption, header, rows, range(3, 7))
    by = ("run", "clients")
    return Panel(
        key, title, about, figures, by, (), limited(table, "the run", first=True)
    )


def _compute_quantiles(frame: pd.DataFrame, y: str) -> pd.DataFrame:
    """Return `strategy, round, low, high` and the median of stretches of rounds.

    Args:
        frame: `round, arm, value`.
        y: the name of the median's column.

    Returns:
        A row per arm and stretch, whose middle is `round`; `low` and `high` are the
        10th and the 90th percentile.
    """
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
