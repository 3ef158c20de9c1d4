"""Tables of the HTML report: what came out, when accuracies were reached, how runs differ."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from simfed.record.summary import chance_of
from simfed.report import frames
from simfed.report.panels import Table, limited, number
from simfed.units import format_bytes, format_duration, format_rate
from simfed.vocabulary import RELEVANT_RATIO

if TYPE_CHECKING:
    from simfed.record.read import Run

__all__ = [
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
    measured = tidy[(tidy["prototype"] == name) & tidy["accuracy"].notna()]
    if len(measured):
        best = measured.loc[measured["accuracy"].idxmax()]
        facts.append(
            ("accuracy", f"{100 * measured['accuracy'].iloc[-1]:.1f} %",
             f"{name}; best {100 * best['accuracy']:.1f} % in round {best['round']:,.0f}")
        )  # fmt: skip
    rounds = run.rounds
    if len(rounds):
        middle = format_duration(rounds["duration_s"].median())
        facts.append(
            (
                "simulated time",
                format_duration(rounds["finished_at_s"].max()),
                f"{middle} a round (median)",
            )
        )
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
    found = frames.blame(run)
    if len(found):
        worst = found.iloc[0]
        facts.append(
            ("waited for most", f"client {worst['client']}",
             f"{100 * worst['share']:.0f} % of rounds, mostly {frames.phase_label(worst['phase'])}")
        )  # fmt: skip
    rolled_back = int(rounds["rolled_back"].sum())
    if rolled_back:
        facts.append(("rolled back", f"{rolled_back:,}", f"of {len(rounds):,} rounds"))
    return facts


def thresholds_table(found: pd.DataFrame) -> Table:
    """When accuracies were first reached; `found` is from `frames.thresholds`."""
    rows = [
        (
            str(row["run"]), str(row["prototype"]), f"{100 * row['accuracy']:g} %",
            *(("not reached", "", "", "") if pd.isna(row["at_s"]) else
              (format_duration(row["at_s"]), f"{row['round']:,.0f}",
               format_bytes(row["uplink_bytes"]), format_bytes(row["total_bytes"]))),
        )
        for row in found.to_dict("records")
    ]  # fmt: skip
    header = (
        "run",
        "prototype",
        "accuracy",
        "first reached after",
        "in round",
        "sent by clients",
        "moved both ways",
    )
    return Table("When accuracies were reached", header, rows, frozenset(range(2, 7)))


def lead_facts(runs: Mapping[str, Run], tidy: pd.DataFrame) -> list[tuple[str, str, str]]:
    """What two runs differ in, for those who read no further: the time to the targets, the final
    accuracy in points, the time of the whole. `tidy`: `frames.curves` of both."""
    if len(runs) != 2:
        return []
    a, b = runs
    facts = []
    lead = _leads(runs, tidy)
    for target in [name for name in lead.columns if isinstance(name, float)]:
        one, other = lead.loc[a, target], lead.loc[b, target]
        facts.append((f"to {100 * target:g} %", *_sooner(a, b, one, other, lead["end_s"])))
    if "final" in lead and lead["final"].notna().all():
        gap = 100 * (lead.loc[a, "final"] - lead.loc[b, "final"])
        better = a if gap > 0 else b
        value = "the same" if abs(gap) < 0.05 else f"{abs(gap):.1f} points"
        by = f"{better} above: " if abs(gap) >= 0.05 else ""
        shown = [f"{100 * lead.loc[name, 'final']:.1f} %" for name in (a, b)]
        facts.append(("final accuracy", value, by + " against ".join(shown)))
    ends = lead["end_s"]
    facts.append(("simulated time", *_sooner(a, b, ends[a], ends[b], ends)))
    return facts


def lead_table(runs: Mapping[str, Run], tidy: pd.DataFrame) -> Table:
    """Every run's time to the targets and final accuracy, and what that is in points beside the
    first run."""
    lead = _leads(runs, tidy)
    targets = [name for name in lead.columns if isinstance(name, float)]
    first = next(iter(runs))
    rows = []
    for label in runs:
        row = lead.loc[label]
        cells = [_reach(row[target], row["end_s"]) for target in targets]
        if "final" in lead:
            gap = 100 * (row["final"] - lead.loc[first, "final"])
            cells.append("" if math.isnan(row["final"]) else f"{100 * row['final']:.1f} %")
            cells.append("" if label == first or math.isnan(gap) else f"{gap:+.1f} points")
        rows.append((label, *cells, format_duration(row["end_s"])))
    header = ["run", *(f"time to {100 * target:g} %" for target in targets)]
    header += ["final accuracy", f"beside {first}"] if "final" in lead else []
    header += ["simulated time"]
    note = (
        "One run of each says nothing about how much another seed would change it: a study, or "
        "simfed.compare with several seeds of each, does."
    )
    caption = "Time to target" if targets else "Time"
    return Table(caption, tuple(header), rows, frozenset(range(1, len(header))), note)


def _leads(runs: Mapping[str, Run], tidy: pd.DataFrame) -> pd.DataFrame:
    """A row per run: `end_s`; where it learned `final`, and under each target (a number) the time
    at which it was reached, NaN for never."""
    ends = {label: float(run.rounds["finished_at_s"].max()) for label, run in runs.items()}
    lead = pd.DataFrame({"end_s": pd.Series(ends)})
    measured = tidy.dropna(subset=["accuracy"])
    if measured.empty:
        return lead
    mean = frames.headlines(measured)
    lead["final"] = mean.groupby("run")["accuracy"].last()
    targets = frames.targets_for(mean, chance_of(runs.values()))
    found = frames.thresholds(mean, targets)
    for target in targets:
        lead[target] = found[found["accuracy"] == target].set_index("run")["at_s"].astype(float)
    return lead


def _reach(at_s: float, end_s: float) -> str:
    return f"> {format_duration(end_s)}" if math.isnan(at_s) else format_duration(at_s)


def _sooner(a: str, b: str, a_s: float, b_s: float, ends: pd.Series) -> tuple[str, str]:
    """(how many times sooner, who and when); NaN is never."""
    against = f"{_reach(a_s, ends[a])} against {_reach(b_s, ends[b])}"
    if math.isnan(a_s) or math.isnan(b_s):
        found = [label for label, at_s in ((a, a_s), (b, b_s)) if not math.isnan(at_s)]
        return f"only {found[0]}" if found else "neither", against
    if max(a_s, b_s) < RELEVANT_RATIO * min(a_s, b_s) or a_s == b_s:
        return "no relevant difference", against
    ratio = max(a_s, b_s) / min(a_s, b_s) if min(a_s, b_s) > 0 else math.inf
    return f"{ratio:.2f}× sooner".replace("inf", "∞"), f"{a if a_s < b_s else b}: {against}"


def results_table(runs: Mapping[str, Run]) -> Table:
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
    return Table("Results, side by side", header, rows, numeric, same=same)


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
    found: dict[str, _Result] = {}

    def share(name: str, value: float, digits: int) -> None:
        found[name] = (float(value), f"{100 * value:.{digits}f} %", True)

    for name, group in (
        frames.curves(run).dropna(subset=["accuracy"]).groupby("prototype", sort=False)
    ):
        share(f"final accuracy, {name}", group["accuracy"].iloc[-1], 2)
        share(f"best accuracy, {name}", group["accuracy"].max(), 2)
    rounds = run.rounds
    if len(rounds):
        for name, value in (
            ("simulated time", rounds["finished_at_s"].max()),
            ("median round", rounds["duration_s"].median()),
            ("longest round", rounds["duration_s"].max()),
        ):
            found[name] = (value, format_duration(value), False)
    for name, column in (
        ("sent by clients", "uplink_bytes"),
        ("sent to clients", "downlink_bytes"),
    ):
        found[name] = (rounds[column].sum(), format_bytes(rounds[column].sum()), False)
    found["rounds"] = (len(rounds), f"{len(rounds):,}", False)
    undone = rounds["rolled_back"].sum()
    found["rounds rolled back"] = (undone, f"{undone:,}", False)
    if len(run.participations):
        seconds = run.participations[list(frames.PHASE_OF_COLUMN)].sum()
        for column, kind in frames.PHASE_OF_COLUMN.items():
            part = seconds[column] / seconds.sum() if seconds.sum() else 0.0
            share(f"clients' time in {kind}", part, 1)
        counts = run.participations["arm"].value_counts(normalize=True)
        for arm in frames.arms_of(run):
            share(f"plays of {arm}", counts[arm], 1)
    return found


def settings_table(runs: Mapping[str, Run]) -> Table:
    """The keys of the scenarios that differ."""
    rows = differences([run.scenario for run in runs.values()])
    note = "" if rows else "The scenarios are the same in every key."
    return Table("Settings that differ", ("key", *runs), rows, frozenset(), note)


def differences(scenarios: list[dict[str, Any]]) -> list[tuple[str, ...]]:
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
    found = _QUANTITY.match(value)
    return _SPOKEN[found[2]](float(found[1])) if found else value


def flattened(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(key path, value as text) of every leaf of a scenario."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flattened(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for i, inner in enumerate(value):
            yield from flattened(inner, f"{path}[{i}]")
    else:
        yield path, "null" if value is None else str(value)


def stragglers_table(runs: Mapping[str, Run]) -> Table:
    """Who was the straggler how often, and for what."""
    rows = [
        (
            label,
            f"{row.client}",
            str(row.prototype),
            f"{row.rounds:,}",
            f"{100 * row.share:.1f} %",
            f"{frames.phase_label(row.phase)} ({row.phase_rounds:,})",
            _text(row.link),
            format_duration(row.saved_s),
        )
        for label, run in runs.items()
        for row in frames.blame(run).itertuples()
    ]
    header = (
        "run",
        "client",
        "prototype",
        "rounds",
        "share",
        "mostly for (rounds)",
        "link",
        "rounds shorter without it",
    )
    return limited(
        Table("Who the rounds waited for", header, rows, frozenset({3, 4, 7})),
        "rounds.parquet",
        first=True,
    )


def _text(value: Any) -> str:
    return "" if pd.isna(value) else str(value)


def links_table(label: str, found: pd.DataFrame) -> Table:
    """How each link was used; `found` is from `frames.link_table`."""
    rows = [
        (
            str(row["link"]), f"{row['held_up']:,}", format_bytes(row["bytes"]),
            format_duration(row["busy_s"]),
            f"{100 * row['busy_share']:.1f} %", f"{number(100 * row['use_when_busy'], 3)} %",
            f"{row['most_flows']:,}", format_duration(row["full_s"]),
        )
        for row in found.head(_MOST_LINKS).to_dict("records")
    ]  # fmt: skip
    header = (
        "link",
        "rounds held up",
        "bytes",
        "busy",
        "of the run",
        "use while busy",
        "most transfers",
        "full",
    )
    caption = f"Links of {label}" if label else "Links"
    note = ""
    if len(found) > _MOST_LINKS:
        note = (
            f"The {_MOST_LINKS} of {len(found):,} links that held up most rounds or carried most; "
            "all are in links.parquet."
        )
    return Table(caption, header, rows, frozenset(range(1, 8)), note)
