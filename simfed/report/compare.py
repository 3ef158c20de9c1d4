"""Tables of the HTML report: results, times to accuracies, differences of runs.

Each builder takes runs by their labels and gives one `PanelTable`. A page about one run
shows `list_headline_facts` in place of the first three: lead, settings and results,
which stand side by side for several runs. What the tables say is computed in
`frames.py` and `reach.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from simfed.ground.measure import Measure
from simfed.ground.units import (
    format_bytes,
    format_duration,
    format_energy,
    format_rate,
)
from simfed.record.summary import count_classes
from simfed.report import frames
from simfed.report.panels import (
    Columns,
    PanelTable,
    build_table,
    format_cell,
    limited,
    number,
)
from simfed.report.reach import (
    WHOLE_RUN,
    find_hardest_targets,
    find_outcome,
)

if TYPE_CHECKING:
    from simfed.record.read import Run

_SPOKEN = {"B/s": format_rate, "B": format_bytes, "s": format_duration}
_QUANTITY = re.compile(r"^(\d[\d.e+-]*) (B/s|B|s)$")


def list_headline_facts(run: Run) -> list[tuple[str, str, str]]:
    """Return the few numbers that one asks for first.

    Facts that a run does not know (a measure in a time-only run, say) are left out.

    Args:
        run: the finished run.

    Returns:
        (what, value, in other words), such as `("simulated time", "2 min 5 s",
        "3.1 s a round (median)")`.
    """
    facts: list[tuple[str, str, str]] = []
    tidy, measure, rounds = frames.curves(run), run.measure, run.rounds
    name = frames.choose_headline(tidy) if len(tidy) else ""
    measured = tidy[(tidy["prototype"] == name) & tidy[measure.key].notna()]
    if len(measured):
        values = measured[measure.key]
        best = measured.loc[values.agg(f"idx{measure.best}")]
        at_best = measure.text(best[measure.key])
        told = f"{name}; best {at_best} in round {best['round']:,.0f}"
        facts.append((measure.name, measure.text(values.iloc[-1]), told))
    if len(rounds):
        middle = format_duration(rounds["duration_s"].median())
        whole = format_duration(rounds["finished_at_s"].max())
        facts.append(("simulated time", whole, f"{middle} a round (median)"))
        up, down = (
            format_bytes(rounds[f"{way}link_bytes"].sum()) for way in ("up", "down")
        )
        facts.append(("sent by clients", up, f"and {down} to them"))
    if (energy := frames.describe_energy(run)) is not None:
        facts.append(("energy of devices", *energy))
    if len(run.participations):
        shares = frames.compute_phase_shares(run)
        top = frames.label_phase(str(shares.idxmax()))
        told = f"{100 * shares.max():.0f} % of the clients' time"
        facts.append(("most time went to", top, told))
    for worst in frames.list_stragglers(run).head(1).to_dict("records"):
        phase = frames.label_phase(worst["phase"])
        told = f"{100 * worst['share']:.0f} % of rounds, mostly {phase}"
        facts.append(("waited for most", f"client {worst['client']}", told))
    if rolled_back := int(rounds["rolled_back"].sum()):
        facts.append(("rolled back", f"{rolled_back:,}", f"of {len(rounds):,} rounds"))
    return facts


def build_thresholds_table(reached: pd.DataFrame, measure: Measure) -> PanelTable:
    """Return when each value of the measure was first reached, or that it was not.

    Args:
        reached: see `reach.list_threshold_rows`.
        measure: the one whose values the thresholds are.
    """
    columns: Columns = {
        "run": "run",
        "prototype": "prototype",
        measure.name: lambda row: measure.number(row["threshold"]),
        "first reached after": lambda row: (
            format_cell("at_s", row["at_s"]) or "not reached"
        ),
        "in round": "round",
        "sent by clients": "uplink_bytes",
        "moved both ways": "total_bytes",
    }
    caption = f"When each {measure.name} was reached"
    reached = reached.astype({"round": "Int64"})
    return build_table(caption, reached, columns, range(2, 7))


def build_lead_table(runs: Mapping[str, Run], tidy: pd.DataFrame) -> PanelTable:
    """Return every run's time to the targets and final measure, beside the first's.

    A time that was not reached stands as `> ` and the whole run's. The targets are the
    hardest that all runs and that one run reached.

    Args:
        runs: label → run; the first is what the others are held against.
        tidy: `frames.curves` of all of them, with these labels.
    """
    measure = next(iter(runs.values())).measure
    mean = frames.select_headlines(tidy.dropna(subset=[measure.key]))
    targets = []
    if len(mean):
        targets = find_hardest_targets(mean, count_classes(runs.values()), measure)
    outcomes = {
        label: find_outcome(run, mean[mean["run"] == label], targets)
        for label, run in runs.items()
    }
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
    return PanelTable(caption, tuple(header), rows, range(1, len(header)), note)


def _format_time(at_s: float, is_reached: bool) -> str:
    """Return an instant; with `> ` where the run ended there."""
    return f"{'' if is_reached else '> '}{format_duration(at_s)}"


def build_results_table(runs: Mapping[str, Run]) -> PanelTable:
    """Return the results of several runs side by side, a column each.

    Rows that say the same of all runs are folded away (`PanelTable.same`).
    """
    columns = [_list_results(run) for run in runs.values()]
    names = dict.fromkeys(name for column in columns for name in column)
    every = [(name, *(column.get(name, "") for column in columns)) for name in names]
    rows = [row for row in every if len(set(row[1:])) > 1]
    same = [row for row in every if len(set(row[1:])) == 1]
    numeric = range(1, len(runs) + 1)
    header = ("result", *runs)
    return PanelTable("Results, side by side", header, rows, numeric, same=same)


def _list_results(run: Run) -> dict[str, str]:
    """Return a run's results: name → text."""
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
        for kind, share in frames.compute_phase_shares(run).items():
            results[f"clients' time in {kind}"] = f"{100 * share:.1f} %"
        counts = run.participations["arm"].value_counts(normalize=True)
        for arm in frames.list_arms(run):
            results[f"plays of {arm}"] = f"{100 * counts[arm]:.1f} %"
    return results


def build_settings_table(runs: Mapping[str, Run]) -> PanelTable:
    """Return the keys of the scenarios that differ."""
    rows = list_differences([run.scenario for run in runs.values()])
    note = "" if rows else "The scenarios are the same in every key."
    return PanelTable("Settings that differ", ("key", *runs), rows, (), note)


def list_differences(
    scenarios: Sequence[Mapping[str, object]],
) -> list[tuple[str, ...]]:
    """Return (key path, value in each) for every key that is not the same in all.

    Quantities are written for people, unless that would hide that they differ; `—`
    stands where a key is absent.

    Args:
        scenarios: resolved ones, as mappings.

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
    """Return quantities for people, or all as they were where two would look alike."""
    spoken = [_format_quantity(value) for value in values]
    return spoken if len(set(spoken)) == len(set(values)) else list(values)


def _format_quantity(value: str) -> str:
    """Return `50 Mbps` for `6250000.0 B/s`; other texts as they are."""
    match = _QUANTITY.match(value)
    return _SPOKEN[match[2]](float(match[1])) if match else value


def flatten_settings(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key path, value as text) of every leaf of a scenario.

    >>> list(flatten_settings({"a": {"b": [1, None]}}))
    [('a.b[0]', '1'), ('a.b[1]', 'null')]
    """
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flatten_settings(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for i, inner in enumerate(value):
            yield from flatten_settings(inner, f"{path}[{i}]")
    else:
        yield path, "null" if value is None else str(value)


def build_stragglers_table(runs: Mapping[str, Run]) -> PanelTable:
    """Return the clients that rounds waited for: how often, and for what.

    Args:
        runs: label → run; each run's stragglers stand in the order of
            `frames.list_stragglers`.
    """
    columns: Columns = {
        "run": "run",
        "client": lambda row: str(row["client"]),
        "prototype": "prototype",
        "rounds": "rounds",
        "share": "share",
        "mostly for (rounds)": lambda row: (
            f"{frames.label_phase(row['phase'])} ({row['phase_rounds']:,})"
        ),
        "link": "link",
        "rounds shorter without it": lambda row: (
            format_cell("saved_s", row["saved_s"]) or "–"
        ),
    }
    rows = pd.concat(
        [frames.list_stragglers(run).assign(run=label) for label, run in runs.items()]
    )
    table = build_table("Who the rounds waited for", rows, columns, (3, 4, 7))
    return limited(table, "rounds.parquet", first=True)


def build_links_table(label: str, use: pd.DataFrame) -> PanelTable:
    """Return how each link was used, at most 60 of them.

    Args:
        label: the run's name; empty where the page is about one run.
        use: see `frames.summarise_links`.
    """
    columns: Columns = {
        "link": "link",
        "rounds held up": "held_up",
        "bytes": "bytes",
        "busy": "busy_s",
        "of the run": "busy_share",
        "use while busy": lambda row: f"{number(100 * row['use_when_busy'], 3)} %",
        "most transfers": "most_flows",
        "full": "full_s",
    }
    caption = f"Links of {label}" if label else "Links"
    table = build_table(caption, use, columns, range(1, 8))
    return limited(table, "links.parquet", first=True, most=60)
