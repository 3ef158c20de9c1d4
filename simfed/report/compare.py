"""Tables of the HTML report: what came out, when accuracies were reached, how runs differ."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from simfed.ground.measure import Measure
from simfed.ground.units import format_bytes, format_duration, format_rate
from simfed.ground.vocabulary import RELEVANT_RATIO
from simfed.record.summary import classes_of
from simfed.report import frames
from simfed.report.panels import Columns, PanelTable, Row, limited, number, table_of

if TYPE_CHECKING:
    from simfed.record.read import Run

__all__ = [
    "describe_lead",
    "differences",
    "flattened",
    "headline_facts",
    "lead_facts",
    "lead_table",
    "links_table",
    "results_table",
    "settings_table",
    "stragglers_table",
    "thresholds_table",
]


_MOST_LINKS = 60
_SPOKEN = {"B/s": format_rate, "B": format_bytes, "s": format_duration}
_QUANTITY = re.compile(r"^(\d[\d.e+-]*) (B/s|B|s)$")


def headline_facts(run: Run) -> list[tuple[str, str, str]]:
    """The few numbers that one asks for first: (what, value, in other words)."""
    facts: list[tuple[str, str, str]] = []
    tidy = frames.curves(run)
    name = frames.headline(tidy) if len(tidy) else ""
    measure = run.measure
    measured = tidy[(tidy["prototype"] == name) & tidy[measure.key].notna()]
    if len(measured):
        best = measured.loc[measured[measure.key].agg(f"idx{measure.best}")]
        final = measure.text(measured[measure.key].iloc[-1])
        at_best = f"best {measure.text(best[measure.key])} in round {best['round']:,.0f}"
        facts.append((measure.name, final, f"{name}; {at_best}"))
    rounds = run.rounds
    if len(rounds):
        middle = format_duration(rounds["duration_s"].median())
        whole = format_duration(rounds["finished_at_s"].max())
        facts.append(("simulated time", whole, f"{middle} a round (median)"))
        up, down = rounds["uplink_bytes"].sum(), rounds["downlink_bytes"].sum()
        facts.append(("sent by clients", format_bytes(up), f"and {format_bytes(down)} to them"))
    if len(run.participations):
        seconds = run.participations[list(frames.PHASE_OF_COLUMN)].sum()
        total = float(seconds.sum())
        top = frames.PHASE_OF_COLUMN[str(seconds.idxmax())]
        share = 100 * seconds.max() / total if total else 0.0
        facts.append(
            ("most time went to", frames.phase_label(top), f"{share:.0f} % of the clients' time")
        )
    stragglers = frames.blame(run)
    if len(stragglers):
        worst = stragglers.iloc[0]
        phase = frames.phase_label(worst["phase"])
        about = f"{100 * worst['share']:.0f} % of rounds, mostly {phase}"
        facts.append(("waited for most", f"client {worst['client']}", about))
    rolled_back = int(rounds["rolled_back"].sum())
    if rolled_back:
        facts.append(("rolled back", f"{rolled_back:,}", f"of {len(rounds):,} rounds"))
    return facts


def thresholds_table(reached: pd.DataFrame, measure: Measure) -> PanelTable:
    """When thresholds were first reached; `reached` is from `frames.thresholds`."""

    def at_all(row: Row, text: Callable[[Row], str], otherwise: str = "") -> str:
        return otherwise if pd.isna(row["at_s"]) else text(row)

    columns: Columns = {
        "run": lambda row: str(row["run"]),
        "prototype": lambda row: str(row["prototype"]),
        measure.name: lambda row: measure.number(row["threshold"]),
        "first reached after": lambda row: at_all(
            row, lambda row: format_duration(row["at_s"]), "not reached"
        ),
        "in round": lambda row: at_all(row, lambda row: f"{row['round']:,.0f}"),
        "sent by clients": lambda row: at_all(row, lambda row: format_bytes(row["uplink_bytes"])),
        "moved both ways": lambda row: at_all(row, lambda row: format_bytes(row["total_bytes"])),
    }
    return table_of(f"When each {measure.name} was reached", reached, columns, range(2, 7))


def lead_facts(runs: Mapping[str, Run], tidy: pd.DataFrame) -> list[tuple[str, str, str]]:
    """What two runs differ in, for those who read no further: the time to the targets, the final
    measure, the time of the whole. `tidy`: `frames.curves` of both."""
    if len(runs) != 2:
        return []
    a, b = runs
    measure = runs[a].measure
    facts = []
    lead = _leads(runs, tidy)
    for target in [name for name in lead.columns if isinstance(name, float)]:
        times = lead.loc[a, target], lead.loc[b, target]
        facts.append((f"to {measure.goal(target)}", *describe_lead(a, b, *times, lead["end_s"])))
    if "final" in lead and lead["final"].notna().all():
        finals = [float(lead.loc[name, "final"]) for name in (a, b)]
        ahead = measure.advantage(finals[0] - finals[1])
        shown = [measure.text(final) for final in finals]
        level = measure.gap(abs(ahead)) == measure.gap(0.0)
        value = "the same" if level else measure.gap(abs(ahead))
        by = "" if level else f"{a if ahead > 0 else b} {measure.ahead}: "
        facts.append((f"final {measure.name}", value, by + " against ".join(shown)))
    ends = lead["end_s"]
    facts.append(("simulated time", *describe_lead(a, b, ends[a], ends[b], ends)))
    return facts


def lead_table(runs: Mapping[str, Run], tidy: pd.DataFrame) -> PanelTable:
    """Every run's time to the targets and final measure, and what that is beside the first run."""
    lead = _leads(runs, tidy)
    measure = next(iter(runs.values())).measure
    targets = [name for name in lead.columns if isinstance(name, float)]
    first = next(iter(runs))
    rows = []
    for label in runs:
        row = lead.loc[label]
        cells = [_reach(row[target], row["end_s"]) for target in targets]
        if "final" in lead:
            gap = row["final"] - lead.loc[first, "final"]
            cells.append("" if math.isnan(row["final"]) else measure.text(row["final"]))
            cells.append("" if label == first or math.isnan(gap) else measure.gap(gap, "+"))
        rows.append((label, *cells, format_duration(row["end_s"])))
    header = ["run", *(f"time to {measure.goal(target)}" for target in targets)]
    header += [f"final {measure.name}", f"beside {first}"] if "final" in lead else []
    header += ["simulated time"]
    note = (
        "One run of each says nothing about how much another seed would change it: a study, or "
        "simfed.compare with several seeds of each, does."
    )
    caption = "Time to target" if targets else "Time"
    return PanelTable(caption, tuple(header), rows, frozenset(range(1, len(header))), note)


def _leads(runs: Mapping[str, Run], tidy: pd.DataFrame) -> pd.DataFrame:
    """A row per run: `end_s`; where it learned `final`, and under each target (a number) the time
    at which it was reached, NaN for never."""
    ends = {label: float(run.rounds["finished_at_s"].max()) for label, run in runs.items()}
    lead = pd.DataFrame({"end_s": pd.Series(ends)})
    measure = next(iter(runs.values())).measure
    measured = tidy.dropna(subset=[measure.key])
    if measured.empty:
        return lead
    mean = frames.headlines(measured)
    lead["final"] = mean.groupby("run")[measure.key].last()
    targets = frames.targets_for(mean, classes_of(runs.values()), measure)
    reached = frames.thresholds(mean, targets, measure)
    for target in targets:
        rows = reached[reached["threshold"] == target]
        lead[target] = rows.set_index("run")["at_s"].astype(float)
    return lead


def _reach(at_s: float, end_s: float) -> str:
    return f"> {format_duration(end_s)}" if math.isnan(at_s) else format_duration(at_s)


def describe_lead(a: str, b: str, a_s: float, b_s: float, ends: pd.Series) -> tuple[str, str]:
    """(how many times sooner, who and when); NaN is never."""
    against = f"{_reach(a_s, ends[a])} against {_reach(b_s, ends[b])}"
    if math.isnan(a_s) or math.isnan(b_s):
        first = [label for label, at_s in ((a, a_s), (b, b_s)) if not math.isnan(at_s)]
        return f"only {first[0]}" if first else "neither", against
    if max(a_s, b_s) < RELEVANT_RATIO * min(a_s, b_s) or a_s == b_s:
        return "no relevant difference", against
    ratio = max(a_s, b_s) / min(a_s, b_s) if min(a_s, b_s) > 0 else math.inf
    return f"{ratio:.2f}× sooner".replace("inf", "∞"), f"{a if a_s < b_s else b}: {against}"


def results_table(runs: Mapping[str, Run]) -> PanelTable:
    """What came out of several runs, side by side; with two, also their difference: shares in
    points, all else in percent. What is the same in all is folded."""
    columns = [_results(run) for run in runs.values()]
    measures = list(dict.fromkeys(name for column in columns for name in column))
    rows, same = [], []
    for name in measures:
        values = [column.get(name) for column in columns]
        texts = [value[1] if value else "" for value in values]
        if len(set(texts)) == 1:
            same.append((name, *texts, *([""] * (len(values) == 2))))
            continue
        if len(values) == 2:
            texts.append(_change(values[0], values[1]))
        rows.append((name, *texts))
    header = ("result", *runs, *(("change",) if len(columns) == 2 else ()))
    numeric = frozenset(range(1, len(header)))
    return PanelTable("Results, side by side", header, rows, numeric, same=same)


_Result = tuple[float, str, bool]
"""(number, text, whether it is a share)."""


def _change(a: _Result | None, b: _Result | None) -> str:
    if a is None or b is None:
        return ""
    if a[2]:
        return f"{100 * (b[0] - a[0]):+.1f} points"
    return f"{100 * (b[0] / a[0] - 1):+.1f} %" if a[0] else ""


def _results(run: Run) -> dict[str, _Result]:
    """Result → (number, text, whether it is a share)."""
    results: dict[str, _Result] = {}

    def add_share(name: str, value: float, digits: int) -> None:
        results[name] = (float(value), f"{100 * value:.{digits}f} %", True)

    def add(name: str, value: float, text: str) -> None:
        results[name] = (value, text, False)

    measure = run.measure
    measured = frames.curves(run).dropna(subset=[measure.key])
    for name, group in measured.groupby("prototype", sort=False):
        values = group[measure.key]
        for which, value in (("final", values.iloc[-1]), ("best", values.agg(measure.best))):
            named = f"{which} {measure.name}, {name}"
            results[named] = (float(value), measure.text(value, 2), measure.is_share)
    rounds = run.rounds
    if len(rounds):
        for name, seconds in (
            ("simulated time", rounds["finished_at_s"].max()),
            ("median round", rounds["duration_s"].median()),
            ("longest round", rounds["duration_s"].max()),
        ):
            add(name, seconds, format_duration(seconds))
    for name, column in (("sent by", "uplink_bytes"), ("sent to", "downlink_bytes")):
        add(f"{name} clients", rounds[column].sum(), format_bytes(rounds[column].sum()))
    add("rounds", len(rounds), f"{len(rounds):,}")
    undone = rounds["rolled_back"].sum()
    add("rounds rolled back", undone, f"{undone:,}")
    if len(run.participations):
        spent = run.participations[list(frames.PHASE_OF_COLUMN)].sum()
        for column, kind in frames.PHASE_OF_COLUMN.items():
            part = spent[column] / spent.sum() if spent.sum() else 0.0
            add_share(f"clients' time in {kind}", part, 1)
        counts = run.participations["arm"].value_counts(normalize=True)
        for arm in frames.arms_of(run):
            add_share(f"plays of {arm}", counts[arm], 1)
    return results


def settings_table(runs: Mapping[str, Run]) -> PanelTable:
    """The keys of the scenarios that differ."""
    rows = differences([run.scenario for run in runs.values()])
    note = "" if rows else "The scenarios are the same in every key."
    return PanelTable("Settings that differ", ("key", *runs), rows, frozenset(), note)


def differences(scenarios: Sequence[Mapping[str, object]]) -> list[tuple[str, ...]]:
    """(key path, value in each) for every key that is not the same in all; `—` where it is absent.

    Quantities are written for people, unless that would hide that they differ.

    >>> differences([{"a": {"b": 1}, "c": [2]}, {"a": {"b": 3}, "c": [2]}])
    [('a.b', '1', '3')]
    >>> fast = {"up": "6250000.0 B/s", "end": "60.0 s"}
    >>> differences([fast, {"up": "625000.0 B/s", "end": "60.01 s"}])
    [('up', '50 Mbps', '5 Mbps'), ('end', '60.0 s', '60.01 s')]
    """
    flat = [dict(flattened(scenario)) for scenario in scenarios]
    keys = dict.fromkeys(key for values in flat for key in values)
    rows = [(key, *(values.get(key, "—") for values in flat)) for key in keys]
    return [(row[0], *_for_people(row[1:])) for row in rows if len(set(row[1:])) > 1]


def _for_people(values: Sequence[str]) -> list[str]:
    spoken = [_spoken(value) for value in values]
    return spoken if len(set(spoken)) == len(set(values)) else list(values)


def _spoken(value: str) -> str:
    """A resolved scenario's quantity as people write it."""
    match = _QUANTITY.match(value)
    return _SPOKEN[match[2]](float(match[1])) if match else value


def flattened(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """(key path, value as text) of every leaf of a scenario."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flattened(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for i, inner in enumerate(value):
            yield from flattened(inner, f"{path}[{i}]")
    else:
        yield path, "null" if value is None else str(value)


def stragglers_table(runs: Mapping[str, Run]) -> PanelTable:
    """Who was the straggler how often, and for what."""
    columns: Columns = {
        "run": lambda row: str(row["run"]),
        "client": lambda row: f"{row['client']}",
        "prototype": lambda row: str(row["prototype"]),
        "rounds": lambda row: f"{row['rounds']:,}",
        "share": lambda row: f"{100 * row['share']:.1f} %",
        "mostly for (rounds)": lambda row: (
            f"{frames.phase_label(row['phase'])} ({row['phase_rounds']:,})"
        ),
        "link": lambda row: "" if pd.isna(row["link"]) else str(row["link"]),
        "rounds shorter without it": lambda row: format_duration(row["saved_s"]),
    }
    rows = pd.concat([frames.blame(run).assign(run=label) for label, run in runs.items()])
    table = table_of("Who the rounds waited for", rows, columns, (3, 4, 7))
    return limited(table, "rounds.parquet", first=True)


def links_table(label: str, use: pd.DataFrame) -> PanelTable:
    """How each link was used; `use` is from `frames.link_table`."""
    columns: Columns = {
        "link": lambda row: str(row["link"]),
        "rounds held up": lambda row: f"{row['held_up']:,}",
        "bytes": lambda row: format_bytes(row["bytes"]),
        "busy": lambda row: format_duration(row["busy_s"]),
        "of the run": lambda row: f"{100 * row['busy_share']:.1f} %",
        "use while busy": lambda row: f"{number(100 * row['use_when_busy'], 3)} %",
        "most transfers": lambda row: f"{row['most_flows']:,}",
        "full": lambda row: format_duration(row["full_s"]),
    }
    note = ""
    if len(use) > _MOST_LINKS:
        note = (
            f"The {_MOST_LINKS} of {len(use):,} links that held up most rounds or carried most; "
            "all are in links.parquet."
        )
    caption = f"Links of {label}" if label else "Links"
    return table_of(caption, use.head(_MOST_LINKS), columns, range(1, 8), note)
