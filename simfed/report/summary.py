"""The table at the end of a run: results, seconds by phase, stragglers.

`build_summary_table` puts the parts below one another; each part is a table of Rich. A
notebook shows the same text. The page's tables of the same facts, which have room for
more, are in `compare.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simfed.ground.measure import Measure
from simfed.ground.units import counted, format_bytes, format_duration
from simfed.record.summary import describe_clipping, explain_rounds
from simfed.report import frames
from simfed.report.reach import choose_thresholds, list_threshold_rows
from simfed.report.style import phase as look_of

if TYPE_CHECKING:
    from simfed.record.read import Run

WIDTH = 78
_STYLE: Any = {"box": None, "width": WIDTH, "padding": (0, 1), "pad_edge": False}
_BAR = 16


def build_summary_table(run: Run) -> RenderableType:
    """Return a run in one screen, at most 80 columns wide.

    Print it with a `rich.console.Console`. It tells the measure per prototype,
    simulated time and bytes, shares of the clients' time by phase, the strategies per
    prototype and the clients that rounds waited for. What a run has not (accuracy in a
    time-only run, say) is left out.
    """
    parts: list[RenderableType] = [_build_facts_table(run)]
    tidy = frames.curves(run)
    if tidy[run.measure.key].notna().any():
        parts.append(_build_measure_table(tidy, run.measure))
    if len(run.participations):
        parts += [_build_time_table(run), build_strategies_table(run)]
    if run.rounds["critical_client"].notna().any():
        parts.append(_build_stragglers_table(run))
    spaced = [piece for part in parts for piece in (part, Text())]
    return Group(*spaced[:-1])


def _build_table(title: str, *headers: str) -> Table:
    """Return an empty table: a title above names, then columns of numbers."""
    table = Table(
        **_STYLE, header_style="dim", caption_justify="left", caption_style="dim"
    )
    table.add_column(
        Text(title, style="bold not dim"), ratio=1, no_wrap=True, overflow="ellipsis"
    )
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True, overflow="ellipsis")
    return table


def _build_facts_table(run: Run) -> Table:
    """Return what one asks for first, a line each: time, bytes, energy, losses."""
    rounds = run.rounds
    table = Table(**_STYLE, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    clients = sum(frames.count_clients(run).values())
    name = Text(frames.find_run_name(run), style="bold")
    name.append(
        f"  {counted(clients, 'client')} · {counted(len(rounds), 'round')} · seed "
        f"{run.manifest.get('seed', '?')}",
        style="dim",
    )
    table.add_row("run", name)
    if len(rounds):
        longest = rounds.iloc[int(rounds["duration_s"].argmax())]
        table.add_row(
            f"{run.seconds} time",
            f"{format_duration(rounds['finished_at_s'].max())},"
            f" {format_duration(rounds['duration_s'].median())} a round (median)",
        )
        if (without_s := run.summary.get("without_starts_s")) is not None:
            what = "if nodes' processes were there when messages come"
            table.add_row("without starts", f"{format_duration(without_s)}, {what}")
        elif run.manifest.get("mode") == "flower":
            measured = run.manifest.get("start") is not None
            why = "" if measured else ": none was measured (simfed flower measure)"
            table.add_row("nodes' starts", f"not charged{why}")
        number = int(longest["round"])
        words = explain_rounds(run.table, {number}).get(number, f"round {number}")
        table.add_row(
            "longest round", Text(f"{format_duration(longest['duration_s'])}, {words}")
        )
        up, down = rounds["uplink_bytes"].sum(), rounds["downlink_bytes"].sum()
        table.add_row("bytes", f"{format_bytes(up)} up · {format_bytes(down)} down")
    if (energy := frames.describe_energy(run)) is not None:
        table.add_row("energy of devices", ", ".join(energy))
    outcomes = (
        run.participations["outcome"].value_counts().drop("aggregated", errors="ignore")
    )
    if len(outcomes):
        counts = ", ".join(
            f"{count:,} {outcome}" for outcome, count in outcomes.items()
        )
        table.add_row("participations", f"{counts} of {len(run.participations):,}")
    if (
        "rewards" in run.summary
        and (clipping := describe_clipping(run.summary)) is not None
    ):
        table.add_row("rewards", clipping)
    if (privacy := frames.describe_privacy(run)) is not None:
        table.add_row("privacy", "; ".join(privacy))
    if rounds["rolled_back"].any():
        table.add_row("rolled back", counted(int(rounds["rolled_back"].sum()), "round"))
    return table


def _build_measure_table(tidy: pd.DataFrame, measure: Measure) -> Table:
    """Return final and best value per prototype, and when round values were reached.

    Args:
        tidy: `frames.curves` of the run.
        measure: the one by which its models are judged.
    """
    key = measure.key
    digits = ".3f" if measure.is_share else ".4g"
    title = measure.name[:1].upper() + measure.name[1:]
    table = _build_table(title, "final", "best", "in round", "after")
    for prototype, group in tidy.dropna(subset=[key]).groupby("prototype", sort=False):
        best = group.loc[group[key].agg(f"idx{measure.best}")]
        table.add_row(
            Text(str(prototype)),
            f"{group[key].iloc[-1]:{digits}}",
            f"{best[key]:{digits}}",
            f"{best['round']:,.0f}",
            format_duration(best["at_s"]),
        )
    name = frames.choose_headline(tidy)
    wanted = choose_thresholds(tidy, 3, measure=measure)
    reached = list_threshold_rows(tidy[tidy["prototype"] == name], wanted, measure)
    words = [
        f"{row.threshold:g} after {format_duration(row.at_s)}"
        for row in reached.dropna(subset=["at_s"]).itertuples()
    ]
    if words:
        table.caption = Text(f"{name} reached {', '.join(words)}")
    return table


def _build_time_table(run: Run) -> Table:
    """Return the clients' seconds by phase: share, per participation and in all."""
    participations = run.participations
    seconds = frames.sum_phase_seconds(participations.assign(all=0), ["all"]).iloc[0]
    table = _build_table(
        "Where the clients' time went", "", "share", "per round", "in all"
    )
    table.columns[0].ratio = None  # the bars take what is left
    table.columns[1].justify = "left"
    table.columns[1].ratio = 1
    for kind, share in frames.compute_phase_shares(run).items():
        if not share and kind == "offline":
            continue
        look = look_of(str(kind))
        table.add_row(
            look.label,
            _draw_bar(share, look.colour),
            f"{100 * share:.1f} %",
            format_duration(seconds[kind] / len(participations)),
            format_duration(seconds[kind]),
        )
    return table


def _draw_bar(share: float, colour: str) -> Text:
    """Return a bar of up to `_BAR` characters, to an eighth of one."""
    eighths = round(share * _BAR * 8)
    whole, part = divmod(eighths, 8)
    return Text("█" * whole + " ▏▎▍▌▋▊▉"[part].strip(), style=colour)


def build_strategies_table(run: Run, most: int = 12) -> Table:
    """Return how often each prototype's clients played each arm.

    The ranges of K stand below, where it is not the same for all.

    Args:
        run: the run, with participations.
        most: of more arms only so many have a row: those played most.
    """
    arms = frames.list_arms(run)
    counts = (
        run.participations.groupby(["prototype", "arm"]).size().unstack(fill_value=0)
    )
    shares = counts.div(counts.sum(axis=1), axis=0)
    often = set(counts.sum().sort_values(ascending=False, kind="stable").index[:most])
    count = f" ({most} of {len(arms)})" if len(arms) > most else ""
    table = _build_table(f"Strategies chosen{count}", *map(str, counts.index))
    for arm in (arm for arm in arms if arm in often):
        cells = (
            f"{counts[arm][name]:,} ({100 * shares[arm][name]:.0f} %)"
            for name in counts.index
        )
        table.add_row(Text(arm), *cells)
    varying = frames.find_varying_k(run)
    if len(varying):
        ranges = varying.groupby(["arm", "prototype"])["value"].agg(
            ["min", "median", "max"]
        )
        table.caption = Text(
            "\n".join(
                f"K of {arm}, {prototype}: {row['min']:,.0f} to {row['max']:,.0f}, "
                f"median {row['median']:,.0f}"
                for (arm, prototype), row in ranges.head(8).iterrows()
            )
        )
    return table


def _build_stragglers_table(run: Run) -> Table:
    """Return the clients that most rounds waited for, and how many more there are."""
    most = 3
    stragglers = frames.list_stragglers(run)
    table = _build_table(
        "Who the rounds waited for", "rounds", "mostly", "over link", "saved without"
    )
    for row in stragglers.head(most).itertuples():
        table.add_row(
            Text(f"client {row.client} ({row.prototype})"),
            f"{row.rounds:,} ({100 * row.share:.0f} %)",
            frames.label_phase(row.phase),
            Text("" if pd.isna(row.link) else str(row.link)),
            "–" if pd.isna(row.saved_s) else format_duration(row.saved_s),
        )
    if len(stragglers) > most:
        rounds = int(stragglers["rounds"].iloc[most:].sum())
        table.caption = Text(
            f"{counted(len(stragglers) - most, 'other client')}: "
            f"{counted(rounds, 'round')}"
        )
    return table
