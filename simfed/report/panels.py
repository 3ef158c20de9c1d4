"""What the HTML report's charts show: specifications for Plotly, from tidy frames.

A builder takes a frame and gives a `Panel`: what is drawn, what it says, and the same numbers as a
table for those who do not see the drawing. `charts.js` adds colours of the page, controls and
drawing; nothing here knows of HTML. A colour "ink" stands for the page's text colour.
"""

from __future__ import annotations

import base64
import functools
import html
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from simfed.ground.units import format_bytes, format_duration
from simfed.record.schema import columns
from simfed.report import frames
from simfed.report.pictures import choose_bytes_unit, time_unit
from simfed.report.style import PHASES, SERIES_COLOURS, SERIES_DASHES, choose_arm_colours, phase

if TYPE_CHECKING:
    import pyarrow as pa

Spec = dict[str, Any]
MOST_POINTS = 4_000
"""The most points of all curves of one panel."""
MOST_CLIENT_BARS = 80
SIMULATED = "simulated time"
MOST_CELLS = 5_000
_QUANTILE_BINS = 80
"""The most stretches of rounds for which a panel shows quantiles."""


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


def build_columns_table(label: str, title: str, table: pa.Table, name: str) -> PanelTable | None:
    """A table that was declared with a heading, column by column: what it means, how many cells
    are filled, least, median and most of its numbers; None without rows."""
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
    """One chart: `spec` is drawn by `charts.js`, the rest is text."""

    key: str
    title: str
    about: str
    spec: Spec
    notes: tuple[str, ...] = ()
    """What the reader must know: a sample, a band, a limit."""
    table: PanelTable | None = field(default=None)


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
    """A table with a row for each of a frame's. numeric: places of columns that are numbers."""
    rows = [tuple(cell(row) for cell in columns.values()) for row in frame.to_dict("records")]
    return PanelTable(caption, tuple(columns), rows, frozenset(numeric), note)


def drop_empty_columns(table: PanelTable, always: Iterable[int] = ()) -> PanelTable:
    """A table without the columns in which nothing stands (`setting` where there is but one);
    always: places of columns that stay."""
    places = [
        i for i in range(len(table.header)) if i in always or any(row[i] for row in table.rows)
    ]
    return replace(
        table,
        header=tuple(table.header[i] for i in places),
        rows=[tuple(row[i] for i in places) for row in table.rows],
        numeric=frozenset(n for n, i in enumerate(places) if i in table.numeric),
    )


def pack_numbers(values: ArrayLike, dtype: str = "f4") -> Spec:
    """Numbers as Plotly's (and `charts.js`'s) packed array; NaN is a gap."""
    array = np.ascontiguousarray(np.asarray(values, dtype=dtype))
    return {"dtype": dtype, "bdata": base64.b64encode(array.tobytes()).decode()}


def plain(text: object) -> str:
    """Text for Plotly, which would read `<b>` and its like as markup.

    >>> plain("<script>")
    '&lt;script&gt;'
    """
    return html.escape(str(text), quote=False)


Chart = tuple[Sequence[Spec], Spec]
"""(traces, layout)."""


def choices(
    options: Mapping[str, Chart] | Mapping[tuple[str, str], Chart], subject: str = "run"
) -> Spec:
    """A chart with a selector: label → what it shows.

    subject: what the labels are, `run` or `clients`. Of runs, and where a label is (run,
    part), the page's one switch of runs chooses among runs and the selector among parts.
    """
    entries = []
    for label, (data, layout) in options.items():
        run, part = (
            label if isinstance(label, tuple) else (label if subject == "run" else None, label)
        )
        entries.append({"label": part, "run": run, "data": data, "layout": layout})
    return {"kind": "choices", "of": subject, "options": entries}


def build_curves_panel(
    tidy: pd.DataFrame,
    *,
    key: str,
    title: str,
    about: str,
    y: Mapping[str, str],
    clock: str = SIMULATED,
) -> Panel:
    """Curves of a tidy frame (see `frames.curves`), one per run and prototype, with selectors for
    both axes. `y`: measure → its label; `clock`: the name of the time axis.
    """
    x, scales = _choose_x_axes(tidy, clock)
    names, kinds = (list(dict.fromkeys(tidy[column])) for column in ("run", "prototype"))
    dashes = sorted(kinds, key=lambda name: name != frames.MEAN)
    groups = list(tidy.groupby(["run", "prototype"], sort=False))
    # of several runs the mean of each, or its only prototype
    first = {name: min(rows["prototype"], key=dashes.index) for name, rows in tidy.groupby("run")}
    alone = len(names) == 1
    most = max(50, MOST_POINTS // max(1, len(groups)))
    series, longest = [], 0
    for (name, kind), group in groups:
        group = group.dropna(subset=list(y), how="all").sort_values("round")
        longest = max(longest, len(group))
        group = group.iloc[_choose_places(len(group), most)]
        columns = {axis: pack_numbers(group[axis] / scale) for axis, scale in scales.items()}
        columns |= {measure: pack_numbers(group[measure].astype(float)) for measure in y}
        label = kind if alone else f"{name}, {kind}"
        place = kinds.index(kind) if alone else names.index(name)
        series.append(
            {
                "label": plain(label),
                "colour": _choose_line_colour(label, place),
                "dash": SERIES_DASHES[0 if alone else dashes.index(kind) % len(SERIES_DASHES)],
                "width": 3 if label == frames.MEAN else 2,
                "hidden": not alone and kind != first[name],
                "columns": columns,
            }
        )
    notes = []
    if longest > most:
        notes.append(
            f"Every curve is drawn from {most:,} of up to {longest:,} points, evenly spaced."
        )
    if any(line["hidden"] for line in series):
        notes.append("Click a name in the legend to show or hide its curve.")
    spec = {
        "kind": "curves",
        "x": x,
        "y": [{"key": k, "label": v} for k, v in y.items()],
        "series": series,
    }
    return Panel(key, title, about, spec, tuple(notes), _build_curve_table(tidy, y, title, clock))


def _choose_line_colour(label: object, position: int) -> str:
    return "ink" if label == frames.MEAN else SERIES_COLOURS[position % len(SERIES_COLOURS)]


def _choose_x_axes(tidy: pd.DataFrame, clock: str) -> tuple[list[Spec], dict[str, float]]:
    time_scale, unit = time_unit(float(tidy["at_s"].max()) if len(tidy) else 1.0)
    axes = [
        {"key": "at_s", "label": f"{clock} ({unit})"},
        {"key": "round", "label": "round"},
    ]
    scales = {"at_s": time_scale, "round": 1.0}
    for name, label in (("uplink_bytes", "sent by clients"), ("total_bytes", "moved both ways")):
        if name in tidy and tidy[name].max() > 0:
            scales[name], unit = choose_bytes_unit(float(tidy[name].max()))
            axes.append({"key": name, "label": f"{label} ({unit})"})
    return axes, scales


def _choose_places(length: int, most: int) -> np.ndarray[Any, Any]:
    """Positions of at most `most` of `length` rows, evenly spaced, first and last among them."""
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
        **{label: functools.partial(_format_measure, name=name) for name, label in y.items()},
    }
    shown = measured if len(measured) else shown
    table = build_table(caption, shown, columns, range(2, len(columns)))
    return limited(table, "prototypes.parquet")


def _format_measure(row: Row, name: str) -> str:
    return number(row[name])


def limited(table: PanelTable, source: str, *, first: bool = False, most: int = 200) -> PanelTable:
    """At most `most` rows, the first or evenly spaced ones, and a note that says so."""
    if len(table.rows) <= most:
        return table
    places = range(most) if first else _choose_places(len(table.rows), most)
    which = "the first" if first else "evenly spaced"
    note = f"{len(places):,} of {len(table.rows):,} rows, {which}; all are in {source}."
    return replace(table, rows=[table.rows[i] for i in places], note=note, same=())


def number(value: float | None, digits: int = 4) -> str:
    """A number for a table's cell; empty for none."""
    if value is None or pd.isna(value):
        return ""
    return f"{value:.{digits}g}"


def build_time_panel(seconds: Mapping[str, pd.DataFrame], clock: str = SIMULATED) -> Panel:
    """Stacked bars: each client's seconds per phase over the whole run. seconds: label →
    `sum_phase_seconds` by client and prototype."""
    options, rows, notes = {}, [], []
    kinds_of = {name: [kind for kind in PHASES if kind in f] for name, f in seconds.items()}
    most_s = max(float(f[kinds_of[name]].sum(axis=1).max()) for name, f in seconds.items())
    for label, frame in seconds.items():
        shown = frame
        if len(frame) > MOST_CLIENT_BARS:
            busy_s = frame[["download", "training", "compression", "upload"]].sum(axis=1)
            shown = frame.loc[busy_s.nlargest(MOST_CLIENT_BARS).index.sort_values()]
            notes.append(
                f"{label}: the {MOST_CLIENT_BARS} of {len(frame):,} clients that were busy longest."
            )
        options[label] = _build_time_bars(shown, most_s, clock)
        for row in shown.to_dict("records"):
            cells = (f"{row['client']}", str(row["prototype"]), f"{row['participations']:,}")
            lengths = (format_duration(row[kind]) for kind in PHASES if kind in row)
            rows.append((label, *cells, *lengths))
    kinds = [PHASES[kind].label for kind in PHASES if kind in next(iter(seconds.values()))]
    header = ("run", "client", "prototype", "participations", *kinds)
    table = PanelTable(
        "Seconds in each phase, by client", header, rows, frozenset(range(3, len(header)))
    )
    return Panel(
        "time",
        "Where each client's time went",
        "Simulated time of every client over the whole run, by phase. Long waiting means that "
        "somebody else set the pace.",
        choices(options),
        tuple(notes),
        table,
    )


def _build_time_bars(frame: pd.DataFrame, most_s: float, clock: str) -> tuple[list[Spec], Spec]:
    """`most_s`: the end of the axis, the same for every run of a page."""
    kinds = [kind for kind in PHASES if kind in frame and frame[kind].sum() > 0]
    scale, unit = time_unit(most_s)
    names = [f"{row.client} · {plain(row.prototype)}" for row in frame.itertuples()]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": PHASES[kind].label,
            "x": pack_numbers(frame[kind] / scale),
            "y": names,
            "marker": {"color": PHASES[kind].web, "pattern": {"shape": PHASES[kind].pattern}},
            "hovertemplate": (
                f"client %{{y}}<br>{PHASES[kind].label}: %{{x:.4g}} {unit}<extra></extra>"
            ),
        }
        for kind in kinds
    ]
    layout = {
        "barmode": "stack",
        "bargap": 0.25,
        "height": 130 + 17 * len(frame),
        "xaxis": {"title": {"text": f"{clock} ({unit})"}, "range": [0, 1.02 * most_s / scale]},
        "yaxis": {"type": "category", "autorange": "reversed", "dtick": 1, "showgrid": False},
        "legend": {"traceorder": "normal"},
    }
    return data, layout


def build_round_length_panel(rounds: Mapping[str, tuple[pd.DataFrame, Mapping[int, str]]]) -> Panel:
    """The length of every round, coloured by what it was waited for. Label → (rounds, words)."""
    options, notes = {}, []
    most = MOST_POINTS // len(rounds)
    longest_s = max(float(frame["duration_s"].max()) for frame, _ in rounds.values())
    last = max(int(frame["round"].max()) for frame, _ in rounds.values())
    scale, unit = time_unit(longest_s)
    top = 1.06 * longest_s / scale or 1
    for label, (frame, words) in rounds.items():
        if len(frame) > most:
            # the longest are what one looks for; the rest shows the level
            keep = np.union1d(
                np.argsort(-frame["duration_s"].to_numpy())[: most // 4],
                _choose_places(len(frame), 3 * most // 4),
            )
            notes.append(
                f"{label}: {len(keep):,} of {len(frame):,} rounds, the longest among them."
            )
            frame = frame.iloc[keep]
        data = []
        phases = frame["critical_phase"].astype(object)
        phases = phases.where(frame["critical_phase"].notna(), "nobody")
        for name, group in frame.groupby(phases, sort=False):
            look = None if name == "nobody" else phase(str(name))
            texts = []
            for row in group.itertuples():
                text = plain(words.get(row.round, f"round {row.round}"))
                text += f"<br>{format_duration(row.duration_s)}"
                if not pd.isna(row.saved_without_critical_s):
                    saved = format_duration(row.saved_without_critical_s)
                    text += f", {saved} shorter without this client"
                texts.append(text)
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": look.label if look else str(name),
                    "x": pack_numbers(group["round"], "i4"),
                    "y": pack_numbers(group["duration_s"] / scale),
                    "text": texts,
                    "hovertemplate": "%{text}<extra></extra>",
                    "marker": {
                        "color": look.web if look else "#7F7F7F",
                        "size": 6,
                        "symbol": _SYMBOLS.get(str(name), "circle"),
                    },
                }
            )
        layout = {
            "xaxis": {"title": {"text": "round"}, "range": [0.5 - 0.02 * last, 1.02 * last + 0.5]},
            "yaxis": {"title": {"text": f"length ({unit})"}, "range": [0, top]},
            "showlegend": True,
        }
        options[label] = (data, layout)
    return Panel(
        "round-lengths",
        "How long each round took, and for what",
        "Every round's length, marked by the longest phase of the client that it waited for.",
        choices(options),
        tuple(notes),
    )


_SYMBOLS = {
    "download": "triangle-down",
    "training": "circle",
    "compression": "diamond",
    "upload": "triangle-up",
    "server": "square",
}


def build_choice_share_panel(shares: Mapping[str, pd.DataFrame], arms: Sequence[str]) -> Panel:
    """Stacked shares of the arms over rounds, one strip per prototype. shares: label →
    `compute_arm_shares`."""
    colours, options, rows = choose_arm_colours(arms), {}, []
    for label, frame in shares.items():
        prototypes = list(dict.fromkeys(frame["prototype"]))
        data: list[Spec] = []
        layout: Spec = {
            "grid": {"rows": len(prototypes), "columns": 1, "pattern": "independent"},
            "height": 110 + 150 * len(prototypes),
        }
        for i, prototype in enumerate(prototypes):
            suffix = str(i + 1) if i else ""
            wide = frame[frame["prototype"] == prototype].pivot_table(
                index=["from_round", "to_round"], columns="arm", values="share", fill_value=0.0
            )
            middle = wide.index.to_frame().mean(axis=1)
            for arm in arms:
                share = 100 * wide[arm] if arm in wide else pd.Series(0.0, index=wide.index)
                data.append(
                    {
                        "type": "bar",
                        "name": plain(arm),
                        "legendgroup": plain(arm),
                        "showlegend": i == 0,
                        "x": pack_numbers(middle),
                        "y": pack_numbers(share),
                        "width": pack_numbers(wide.index.to_frame().diff(axis=1)["to_round"] + 1),
                        "xaxis": f"x{suffix}",
                        "yaxis": f"y{suffix}",
                        "marker": {"color": colours[arm], "line": {"width": 0}},
                        "customdata": [f"{a}–{b}" if a != b else f"{a}" for a, b in wide.index],
                        "hovertemplate": (
                            f"{plain(prototype)}, round "
                            f"%{{customdata}}<br>{plain(arm)}: %{{y:.0f}} "
                            "%<extra></extra>"
                        ),
                    }
                )
            below = "round" if i == len(prototypes) - 1 else ""
            layout[f"xaxis{suffix}"] = {"title": {"text": below}}
            side = {"text": f"{plain(prototype)} (%)"}
            layout[f"yaxis{suffix}"] = {"title": side, "range": [0, 100]}
            totals = frame[frame["prototype"] == prototype].groupby("arm")["plays"].sum()
            for arm in arms:
                plays = totals.get(arm, 0)
                share = f"{100 * plays / totals.sum():.1f} %"
                rows.append((label, str(prototype), arm, f"{plays:,}", share))
        options[label] = (data, {**layout, "barmode": "stack", "bargap": 0})
    table = PanelTable(
        "Strategies chosen over the whole run",
        ("run", "prototype", "strategy", "plays", "share"),
        rows,
        frozenset({3, 4}),
    )
    return Panel(
        "strategy-shares",
        "Strategies over time",
        "Share of each compression strategy (@: at a level of K) among the participations of a "
        "prototype's clients.",
        choices(options),
        (),
        table,
    )


def build_client_choice_panel(
    plays: Mapping[str, pd.DataFrame], arms: Sequence[str], notes: Sequence[str] = ()
) -> Panel:
    """A cell per client and part of the run in the colour of the strategy played most there.
    Label → `compute_arm_shares` by prototype and client."""
    notes = list(notes)
    for label, frame in plays.items():
        rounds = int((frame["to_round"] - frame["from_round"]).max()) + 1
        if rounds > 1:
            notes.append(
                f"{label}: a cell stands for {rounds} rounds and shows what was played most in "
                "them."
            )
    return Panel(
        "strategy-clients",
        "What each client chose",
        "Rows are clients, columns are rounds; the colour is the strategy played.",
        choices({label: _build_choice_cells(frame, arms) for label, frame in plays.items()}),
        tuple(notes),
    )


def _build_choice_cells(frame: pd.DataFrame, arms: Sequence[str]) -> tuple[list[Spec], Spec]:
    best = frame.sort_values(["share", "arm"], ascending=[False, True])
    best = best.drop_duplicates(["prototype", "client", "from_round"])
    rows = pd.MultiIndex.from_frame(frame[["prototype", "client"]].drop_duplicates())
    wide, shares = (
        best.pivot(index=["prototype", "client"], columns="from_round", values=value).loc[rows]
        for value in ("arm", "share")
    )
    last = frame.groupby("from_round")["to_round"].first()
    spans = [f"round {a}–{last[a]}" if last[a] != a else f"round {a}" for a in wide.columns]
    codes = [[arms.index(arm) if arm in arms else None for arm in row] for row in wide.to_numpy()]
    texts = [
        [
            f"{span}<br>{plain(arm)} ({100 * share:.0f} %)"
            if arm in arms
            else f"{span}<br>took no part"
            for span, arm, share in zip(spans, *line, strict=True)
        ]
        for line in zip(wide.to_numpy(), shares.to_numpy(), strict=True)
    ]
    colours = choose_arm_colours(arms)
    bar_px = max(min(40 * len(arms), 120), 26 * len(arms))
    edges = [(i + step) / len(arms) for i in range(len(arms)) for step in (0, 1)]
    scale = [[edge, colours[arms[i // 2]]] for i, edge in enumerate(edges)]
    ticks = {"tickvals": list(range(len(arms))), "ticktext": [plain(arm) for arm in arms]}
    place = {"lenmode": "pixels", "len": bar_px, "y": 1, "yanchor": "top", "thickness": 14}
    trace = {
        "type": "heatmap",
        "z": codes,
        "x": [(a + last[a]) / 2 for a in wide.columns],
        "y": [f"{client} · {plain(prototype)}" for prototype, client in wide.index],
        "text": texts,
        "hovertemplate": "client %{y}, %{text}<extra></extra>",
        "zmin": -0.5,
        "zmax": len(arms) - 0.5,
        "colorscale": scale,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {**ticks, **place},
    }
    layout = {
        "height": max(154 + max(9, min(17, 1500 // len(wide))) * len(wide), bar_px + 110),
        "margin": {"l": 60, "r": 16, "t": 36, "b": 48},  # room for the tool bar above the cells
        "xaxis": {"title": {"text": "round"}, "showgrid": False, "zeroline": False},
        "yaxis": {"type": "category", "autorange": "reversed", "showgrid": False},
    }
    return [trace], layout


def build_quantile_panel(
    frames_of: Mapping[str, pd.DataFrame],
    arms: Sequence[str],
    *,
    key: str,
    title: str,
    about: str,
    y_label: str,
) -> Panel:
    """Median over clients and the band from the 10th to the 90th percentile, per arm, over rounds.

    Label → a frame with `round, prototype, arm, value`. One choice per label and prototype.
    """
    colours, rows = choose_arm_colours(arms), []
    options: dict[tuple[str, str], Chart] = {}
    layout = {"xaxis": {"title": {"text": "round"}}, "yaxis": {"title": {"text": y_label}}}
    for label, frame in frames_of.items():
        frame = frame[np.isfinite(frame["value"])]  # a diverged run's are not all numbers
        prototypes = list(dict.fromkeys(frame["prototype"]))
        parts = {"all clients": frame} if len(prototypes) > 1 else {}
        parts |= {str(name): frame[frame["prototype"] == name] for name in prototypes}
        for part, of_part in parts.items():
            options[label, part] = _build_quantile_traces(of_part, arms, colours), layout
            for arm, values in of_part.groupby("arm")["value"]:
                cells = map(number, values.quantile([0.1, 0.5, 0.9]))
                rows.append((label, part, str(arm), f"{values.count():,}", *cells))
    quantiles = ("10th percentile", "median", "90th percentile")
    header = ("run", "clients", "strategy", "values", *quantiles)
    table = PanelTable(f"{title}: over the whole run", header, rows, frozenset(range(3, 7)))
    return Panel(
        key,
        title,
        about,
        choices(options, subject="clients"),
        (),
        limited(table, "the run", first=True),
    )


def _build_quantile_traces(
    frame: pd.DataFrame, arms: Sequence[str], colours: Mapping[str, str]
) -> list[Spec]:
    data: list[Spec] = []
    if frame.empty:
        return data
    bins = frames.split_rounds(int(frame["round"].max()), _QUANTILE_BINS)
    part = bins.get_indexer(pd.Index(frame["round"]))
    for arm in arms:
        mine = (frame["arm"] == arm).to_numpy()
        if not mine.any():
            continue
        quantiles = frame["value"][mine].groupby(part[mine]).quantile([0.1, 0.5, 0.9]).unstack()
        x = (bins.left.to_numpy()[quantiles.index] + 1 + bins.right.to_numpy()[quantiles.index]) / 2
        colour, name = colours[arm], plain(arm)
        line = {"type": "scatter", "mode": "lines", "legendgroup": name, "x": pack_numbers(x)}
        edge: Spec = {**line, "line": {"width": 0, "color": colour}}
        edge |= {"hoverinfo": "skip", "showlegend": False}
        filled = {"fill": "tonexty", "fillcolor": _fade_colour(colour)}
        dash = SERIES_DASHES[arms.index(arm) % len(SERIES_DASHES)]
        bands = zip(quantiles[0.1], quantiles[0.9], strict=True)
        data += [
            {**edge, "y": pack_numbers(quantiles[0.1])},
            {**edge, "y": pack_numbers(quantiles[0.9]), **filled},
            {
                **line,
                "name": name,
                "y": pack_numbers(quantiles[0.5]),
                "line": {"color": colour, "width": 2, "dash": dash},
                "customdata": [f"{low:.4g} to {high:.4g}" for low, high in bands],
                "hovertemplate": f"{name}: %{{y:.4g}} (80 % within %{{customdata}})<extra></extra>",
            },
        ]
    return data


def _fade_colour(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def build_utilisation_panel(
    links: Mapping[str, pd.DataFrame], most_links: int = 6, clock: str = SIMULATED
) -> Panel:
    """How full links were over time. links: label → `frames.compute_utilisation`, the links
    that matter most first."""
    options, notes = {}, []
    last_s = max(float(frame["to_s"].max()) if len(frame) else 1.0 for frame in links.values())
    scale, unit = time_unit(last_s)
    every = dict.fromkeys(
        name for frame in links.values() for name in list(dict.fromkeys(frame["link"]))[:most_links]
    )
    colour_of = dict(zip(every, itertools.cycle(SERIES_COLOURS), strict=False))
    for label, frame in links.items():
        names = list(dict.fromkeys(frame["link"]))
        if len(names) > most_links:
            notes.append(
                f"{label}: the {most_links} of {len(names):,} links that held up most rounds or "
                "carried most."
            )
        data = []
        for name in names[:most_links]:
            rows = frame[frame["link"] == name]
            x = np.append(rows["from_s"].to_numpy(), rows["to_s"].to_numpy()[-1:]) / scale
            share = np.append(rows["share"].to_numpy(), rows["share"].to_numpy()[-1:])
            spans = [
                f"{a}–{b}" if a != b else f"{a}"
                for a, b in zip(rows["from_round"], rows["to_round"], strict=True)
            ]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": plain(name),
                    "x": pack_numbers(x),
                    "y": pack_numbers(100 * share),
                    "line": {"shape": "hv", "width": 1.6, "color": colour_of[name]},
                    "customdata": [*spans, *spans[-1:]],
                    "hovertemplate": (
                        f"{plain(name)}: %{{y:.0f}} %, round %{{customdata}}<extra></extra>"
                    ),
                }
            )
        layout = {
            "xaxis": {"title": {"text": f"{clock} ({unit})"}, "range": [0, last_s / scale]},
            "yaxis": {"title": {"text": "share of capacity (%)"}, "range": [0, 103]},
            "showlegend": True,
        }
        options[label] = (data, layout)
    return Panel(
        "link-use",
        "How full the links were",
        "Bytes moved over what the link could have carried, averaged over whole rounds.",
        choices(options),
        tuple(notes),
    )
