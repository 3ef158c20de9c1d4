"""Tables of the HTML report: results, times to accuracies, differences of runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from simfed.ground.measure import Measure
from simfed.ground.units import (
    format_bytes,
    format_duration,
    format_energy,
    format_rate,
)
from simfed.record.schema import list_phases
from simfed.record.summary import count_classes
from simfed.report import frames
from simfed.report.panels import Columns, PanelTable, Row, build_table, limited, number
from simfed.report.reach import (
    WHOLE_RUN,
    RunOutcome,
    find_hardest_targets,
    find_outcome,
)

if TYPE_CHECKING:
    from simfed.record.read import Run

_SPOKEN = {"B/s": format_rate, "B": format_bytes, "s": format_duration}
_QUANTITY = re.compile(r"^(\d[\d.e+-]*) (B/s|B|s)$")


def list_headline_facts(run: Run) -> list[tuple[str, str, str]]:
    """Return the few numbers that one asks for first: (what, value, in other words)."""
    facts: list[tuple[str, str, str]] = []
    tidy = frames.curves(run)
    name = frames.choose_headline(tidy) if len(tidy) else ""
    measure = run.measure
    measured = tidy[(tidy["prototype"] == name) & tidy[measure.key].notna()]
    if len(measured):
        best = measured.loc[measured[measure.key].agg(f"idx{measure.best}")]
        final = measure.text(measured[measure.key].iloc[-1])
        at_best = (
            f"best {measure.text(best[measure.key])} in round {best['round']:,.0f}"
        )
        facts.append((measure.name, final, f"{name}; {at_best}"))
    rounds = run.rounds
    if len(rounds):
        middle = format_duration(rounds["duration_s"].median())
        whole = format_duration(rounds["finished_at_s"].max())
        facts.append(("simulated time", whole, f"{middle} a round (median)"))
        up, down = rounds["uplink_bytes"].sum(), rounds["downlink_bytes"].sum()
        facts.append(
            ("sent by clients", format_bytes(up), (f"and {format_bytes(down)} to them"))
        )
    if (energy := frames.describe_energy(run)) is not None:
        facts.append(("energy of devices", *energy))
    if len(run.participations):
        phases = list_phases(run.participations.columns)
        seconds = run.participations[list(phases)].sum()
        total = float(seconds.sum())
        top = phases[str(seconds.idxmax())]
        share = 100 * seconds.max() / total if total else 0.0
        facts.append(
            (
                "most time went to",
                frames.label_phase(top),
                (f"{share:.0f} % of the clients' time"),
            )
        )
    stragglers = frames.list_stragglers(run)
    if len(stragglers):
        worst = stragglers.iloc[0]
        phase = frames.label_phase(worst["phase"])
        about = f"{100 * worst['share']:.0f} % of rounds, mostly {phase}"
        facts.append(("waited for most", f"client {worst['client']}", about))
    rolled_back = int(rounds["rolled_back"].sum())
    if rolled_back:
        facts.append(("rolled back", f"{rolled_back:,}", f"of {len(rounds):,} rounds"))
    return facts


def build_thresholds_table(reached: pd.DataFrame, measure: Measure) -> PanelTable:
    """Return the first instants at thresholds, from `list_threshold_rows`."""

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
        "sent by clients": lambda row: at_all(
            row, lambda row: format_bytes(row["uplink_bytes"])
        ),
        "moved both ways": lambda row: at_all(
            row, lambda row: format_bytes(row["total_bytes"])
        ),
    }
    return build_table(
        f"When each {measure.name} was reached", reached, columns, range(2, 7)
    )


def build_lead_table(runs: Mapping[str, Run], tidy: pd.DataFrame) -> PanelTable:
    """Return every run's time to the targets and final measure, beside the first's."""
    measure = next(iter(runs.values())).measure
    targets, outcomes = _find_outcomes(runs, tidy)
    learned = any(not math.isnan(outcome.final) for outcome in outcomes.values())
    first = next(iter(runs))
    rows = []
    for label, outcome in outcomes.items():
        cells = [_format_time(*outcome.times[target]) for target in targets]
        if learned:
            gap = outcome.final - outcomes[first].final
            cells.append(
                "" if math.isnan(outcome.final) else measure.text(outcome.final)
            )
            cells.append(
                "" if label == first or math.isnan(gap) else measure.gap(gap, "+")
            )
        rows.append((label, *cells, _format_time(*outcome.times[WHOLE_RUN])))
    header = ["run", *(f"time to {measure.goal(target)}" for target in targets)]
    header += [f"final {measure.name}", f"beside {first}"] if learned else []
    header += ["simulated time"]
    note = (
        "One run of each says nothing about how much another seed would change it: a "
        "study, or simfed.compare with several seeds of each, does."
    )
    caption = "Time to target" if targets else "Time"
    return PanelTable(
        caption, tuple(header), rows, frozenset(range(1, len(header))), note
    )


def _find_outcomes(
    runs: Mapping[str, Run], tidy: pd.DataFrame
) -> tuple[list[float], dict[str, RunOutcome]]:
    """Targets that tell these runs apart, and what each run came to at them."""
    measure = next(iter(runs.values())).measure
    mean = frames.select_headlines(tidy.dropna(subset=[measure.key]))
    targets = (
        find_hardest_targets(mean, count_classes(runs.values()), measure)
        if len(mean)
        else []
    )
    curves = {label: mean[mean["run"] == label] for label in runs}
    return targets, {
        label: find_outcome(run, curves[label], targets) for label, run in runs.items()
    }


def _format_time(at_s: float, is_reached: bool) -> str:
    return f"{'' if is_reached else '> '}{format_duration(at_s)}"


def build_results_table(runs: Mapping[str, Run]) -> PanelTable:
    """Return the results of several runs, side by side; folded: the same in all."""
    columns = [_list_results(run) for run in runs.values()]
    names = dict.fromkeys(name for column in columns for name in column)
    every = [(name, *(column.get(name, "") for column in columns)) for name in names]
    rows = [row for row in every if len(set(row[1:])) > 1]
    same = [row for row in every if len(set(row[1:])) == 1]
    numeric = frozenset(range(1, len(runs) + 1))
    header = ("result", *runs)
    return PanelTable("Results, side by side", header, rows, numeric, same=same)


def _list_results(run: Run) -> dict[str, str]:
    """Return each result's name and text."""
    results: dict[str, str] = {}
    measure = run.measure
    measured = frames.curves(run).dropna(subset=[measure.key])
    for name, group in measured.groupby("prototype", sort=False):
        values = group[measure.key]
        results[f"final {measure.name}, {name}"] = measure.text(values.iloc[-1], 2)
        best = values.agg(measure.best)
        results[f"best {measure.name}, {name}"] = measure.text(best, 2)
    rounds = run.rounds
    if len(rounds):
        for name, seconds in (
            ("simulated time", rounds["finished_at_s"].max()),
            ("median round", rounds["duration_s"].median()),
            ("longest round", rounds["duration_s"].max()),
        ):
            results[name] = format_duration(seconds)
    for name, column in (("sent by", "uplink_bytes"), ("sent to", "downlink_bytes")):
        results[f"{name} clients"] = format_bytes(rounds[column].sum())
    energy_j = run.participations["energy_j"].sum(min_count=1)
    if not math.isnan(energy_j):
        results["energy of devices"] = format_energy(energy_j)
    results["rounds"] = f"{len(rounds):,}"
    results["rounds rolled back"] = f"{rounds['rolled_back'].sum():,}"
    if len(run.participations):
        phases = list_phases(run.participations.columns)
        spent = run.participations[list(phases)].sum()
        for column, kind in phases.items():
            share = spent[column] / spent.sum() if spent.sum() else 0.0
            results[f"clients' time in {kind}"] = f"{100 * share:.1f} %"
        counts = run.participations["arm"].value_counts(normalize=True)
        for arm in frames.list_arms(run):
            results[f"plays of {arm}"] = f"{100 * counts[arm]:.1f} %"
    return results


def build_settings_table(runs: Mapping[str, Run]) -> PanelTable:
    """Return the keys of the scenarios that differ."""
    rows = list_differences([run.scenario for run in runs.values()])
    note = "" if rows else "The scenarios are the same in every key."
    return PanelTable("Settings that differ", ("key", *runs), rows, frozenset(), note)


def list_differences(
    scenarios: Sequence[Mapping[str, object]],
) -> list[tuple[str, ...]]:
    """Return (key path, value in each) for every key that is not the same in all.

    `—` where it is absent.

    Quantities are written for people, unless that would hide that they differ.

    >>> list_differences([{"a": {"b": 1}, "c": [2]}, {"a": {"b": 3}, "c": [2]}])
    [('a.b', '1', '3')]
    >>> fast = {"up": "6250000.0 B/s", "end": "60.0 s"}
    >>> list_differences([fast, {"up": "625000.0 B/s", "end": "60.01 s"}])
    [('up', '50 Mbps', '5 Mbps'), ('end', '60.0 s', '60.01 s')]
    """
    flat = [dict(flatten_settings(scenario)) for scenario in scenarios]
    keys = dict.fromkeys(key for values in flat for key in values)
    rows = [(key, *(values.get(key, "—") for values in flat)) for key in keys]
    return [
        (row[0], *_format_quantities(row[1:])) for row in rows if len(set(row[1:])) > 1
    ]


def _format_quantities(values: Sequence[str]) -> list[str]:
    spoken = [_format_quantity(value) for value in values]
    return spoken if len(set(spoken)) == len(set(values)) else list(values)


def _format_quantity(value: str) -> str:
    match = _QUANTITY.match(value)
    return _SPOKEN[match[2]](float(match[1])) if match else value


def flatten_settings(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Return (key path, value as text) of every leaf of a scenario."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flatten_settings(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for i, inner in enumerate(value):
            yield from flatten_settings(inner, f"{path}[{i}]")
    else:
        yield path, "null" if value is None else str(value)


def build_stragglers_table(runs: Mapping[str, Run]) -> PanelTable:
    """Return the stragglers of runs: how often, and for what."""
    columns: Columns = {
        "run": lambda row: str(row["run"]),
        "client": lambda row: f"{row['client']}",
        "prototype": lambda row: str(row["prototype"]),
        "rounds": lambda row: f"{row['rounds']:,}",
        "share": lambda row: f"{100 * row['share']:.1f} %",
        "mostly for (rounds)": lambda row: (
            f"{frames.label_phase(row['phase'])} ({row['phase_rounds']:,})"
        ),
        "link": lambda row: "" if pd.isna(row["link"]) else str(row["link"]),
        "rounds shorter without it": lambda row: (
            "–" if pd.isna(row["saved_s"]) else format_duration(row["saved_s"])
        ),
    }
    rows = pd.concat(
        [frames.list_stragglers(run).assign(run=label) for label, run in runs.items()]
    )
    table = build_table("Who the rounds waited for", rows, columns, (3, 4, 7))
    return limited(table, "rounds.parquet", first=True)


def build_links_table(label: str, use: pd.DataFrame) -> PanelTable:
    """Return how each link was used; `use` is from `frames.summarise_links`."""
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
    caption = f"Links of {label}" if label else "Links"
    table = build_table(caption, use, columns, range(1, 8))
    return limited(table, "links.parquet", first=True, most=60)
