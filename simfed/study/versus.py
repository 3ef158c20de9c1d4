"""Two studies held against each other: every setting and arm that both have, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simfed.ground.errors import InputError
from simfed.ground.measure import Measure, find_common_measure
from simfed.record.summary import count_classes
from simfed.report.compare import build_settings_table
from simfed.report.comparison import format_ratio, format_threshold, inverse
from simfed.report.page import PageSection, render_page
from simfed.report.panels import Panel, PanelTable, choices, drop_empty_columns, plain
from simfed.report.reach import choose_common_thresholds
from simfed.report.statistics import Estimate
from simfed.study.pairs import Comparison, compare
from simfed.study.store import PlanEntry

if TYPE_CHECKING:
    from simfed.record.read import Run
    from simfed.study.results import StudyResult

_INK = "#0072B2"


@dataclass(frozen=True)
class Match:
    """A setting and arm that two studies have in common."""

    setting: str
    arm: str
    first: Run
    second: Run
    """A run of each under the same seed."""
    comparison: Comparison
    is_same: bool
    """All runs of both have the same fingerprints."""

    @property
    def name(self) -> str:
        """Setting and arm in words; empty where neither study has several."""
        return ", ".join(filter(None, (self.setting, self.arm)))


def match_studies(a: StudyResult, b: StudyResult) -> Iterator[Match]:
    """Every setting and arm of both studies with a finished seed in common, compared.

    Targets are the thresholds that both studies name or find, else the highest round number that at
    least half of all runs reach; where a study learned nothing, whole runs are compared.
    """
    names, targets = _name_studies(a, b), _choose_targets(a, b)
    theirs = {(b.setting_text(setting), arm): entries for setting, arm, entries in b.groups()}
    for setting, arm, entries in a.groups():
        text = a.setting_text(setting)
        # a study without arms calls its only one by its own name
        key = (text, arm if a.arms_axis is not None else b.name)
        first, second = _open_runs_by_seed(a, entries), _open_runs_by_seed(b, theirs.get(key, []))
        pairs = [(first[seed], second[seed]) for seed in first if seed in second]
        if not pairs:
            continue
        comparison = compare(
            [run for run, _ in pairs],
            [run for _, run in pairs],
            names=names,
            thresholds=targets,
            confidence=a.confidence,
            relevant_ratio=a.relevant_ratio,
        )
        same = all(run.fingerprint == other.fingerprint for run, other in pairs)
        shown = arm if a.arms_axis is not None else ""
        yield Match(text, shown, *pairs[0], comparison, same)


def render_versus_page(a: StudyResult, b: StudyResult) -> str:
    """The comparison as one self-contained page.

    Raises: `InputError` where the studies have no setting, arm and seed in common.
    """
    shared = list(match_studies(a, b))
    first, second = _name_studies(a, b)
    if not shared:
        allowed = f"{first} and {second} with a setting, arm and finished seed in common"
        problem = "nothing can be paired"
        raise InputError(allowed, where="simfed study report", problem=problem)
    changed = [match for match in shared if not match.is_same] or shared
    parts: dict[str, PageSection] = {
        "verdicts": {"title": "Verdicts", "tables": [_build_times_table(shared, first, second)]},
        "times": {
            "title": "How many times sooner",
            "panels": [_build_times_panel(changed, first, second)],
        },
        "settings": {
            "title": "Settings",
            "tables": [_build_settings_table(changed[0], first, second)],
        },
    }
    return render_page(f"{first} against {second}", f"{len(shared)} settings and arms", parts)


def _build_settings_table(match: Match, first: str, second: str) -> PanelTable:
    table = build_settings_table({first: match.first, second: match.second})
    where = f" (those of {match.name})" if match.name else ""
    return replace(table, caption=table.caption + where)


def _name_studies(a: StudyResult, b: StudyResult) -> list[str]:
    if a.name != b.name:
        return [a.name, b.name]
    if a.path.name != b.path.name:
        return [f"{a.name} ({a.path.name})", f"{b.name} ({b.path.name})"]
    return [f"{a.name} (1)", f"{b.name} (2)"]


def _choose_targets(a: StudyResult, b: StudyResult) -> list[float] | None:
    if a.time_only or b.time_only:
        return None
    shared = [target for target in a.thresholds if target in b.thresholds]
    runs = [run for study in (a, b) for _, run in study.finished]
    measure = find_common_measure((run.measure for run in runs), where="simfed study report")
    values = [
        curve
        for study in (a, b)
        for _, curve in study.curves.groupby("address")[measure.key]
        if not study.curves.empty
    ]
    return shared or choose_common_thresholds(values, count_classes(runs), measure) or None


def _open_runs_by_seed(study: StudyResult, entries: Sequence[PlanEntry]) -> dict[int, Run]:
    return {entry["seed"]: study.run(entry["address"]) for entry in entries}


def _build_times_table(shared: Sequence[Match], first: str, second: str) -> PanelTable:
    verdicts = {1: first, -1: second, 0: "no clear or relevant difference"}
    rows, same = [], []
    for match in shared:
        if match.is_same:
            same.append((match.name or "all", "the same runs"))
            continue
        for pair in match.comparison.pairs:
            paired, ratio = pair.paired, pair.paired.ratio
            ahead = first if ratio.least >= 1 else second
            ratio = ratio if ratio.least >= 1 else inverse(ratio)
            text = f"{ahead} {format_ratio(ratio, match.comparison.confidence)}"
            rows.append(
                (
                    match.setting,
                    match.arm,
                    format_threshold(pair.threshold, "whole run", pair.measure),
                    verdicts[paired.verdict] if paired.decided else "undecided",
                    text if paired.decided else "undecided",
                    f"{paired.wins} : {paired.losses} of {paired.seeds}",
                    _format_gap(pair.gap, pair.measure),
                )
            )
    measure = shared[0].comparison.pairs[0].measure
    gap = f"final {measure.name}, {first} − {second}"
    header = ("setting", "arm", "to", "sooner", "how many times", "seeds", gap)
    note = (
        "Compared seed by seed, with intervals over seeds. A verdict needs an interval that leaves "
        "out 1 and a difference that matters; one seed decides nothing. Nothing is corrected for "
        "the number of comparisons."
    )
    caption = f"Time to target, and final {measure.name}{' in points' * measure.is_share}"
    table = PanelTable(caption, header, rows, frozenset(range(4, 7)), note, same)
    return drop_empty_columns(table, always=range(2, len(header)))


def _format_gap(gap: Estimate, measure: Measure) -> str:
    if math.isnan(gap.least):
        return ""
    text = measure.gap(gap.least, "+")
    if gap.coverage == 0:
        return text
    low, high = (measure.gap(end, "+").removesuffix(" points") for end in (gap.low, gap.high))
    return f"{text} [{low}, {high}]"


def _build_times_panel(shared: Sequence[Match], first: str, second: str) -> Panel:
    """A row per setting and arm: how many times sooner the first study was, with its interval."""
    options = {}
    for i, (threshold, *_) in enumerate(shared[0].comparison.pairs):
        pairs = [(match.name or "all", match.comparison.pairs[i].paired) for match in shared]
        exact = [(name, p) for name, p in pairs if p.decided and p.ratio.is_exact]
        target = format_threshold(threshold, "", shared[0].comparison.pairs[i].measure)
        label = f"to {target}" if target else "whole runs"
        x = [p.ratio.least for _, p in exact]
        low = [p.ratio.low if p.ratio.coverage else p.ratio.least for _, p in exact]
        high = [p.ratio.high if p.ratio.coverage else p.ratio.least for _, p in exact]
        trace = {
            "type": "scatter",
            "mode": "markers",
            "x": x,
            "y": [plain(name) for name, _ in exact],
            "error_x": {
                "type": "data",
                "symmetric": False,
                "thickness": 1.2,
                "width": 0,
                "array": [min(end, 1e3) - v for v, end in zip(x, high, strict=True)],
                "arrayminus": [v - end for v, end in zip(x, low, strict=True)],
            },
            "marker": {
                "size": 9,
                "color": _INK,
                "symbol": ["circle" if p.verdict else "circle-open" for _, p in exact],
            },
            "hovertemplate": "%{y}: %{x:.3g}×<extra></extra>",
        }
        title = plain(f"how many times sooner {first} was")
        line = {"width": 1, "dash": "dash", "color": "#7F7F7F"}
        level = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": line}
        layout = {
            "height": 150 + 24 * len(exact),
            "xaxis": {"type": "log", "title": {"text": title}},
            "yaxis": {"type": "category", "autorange": "reversed", "showgrid": False},
            "shapes": [level],
        }
        options[label] = ([trace], layout)
    return Panel(
        "times-sooner",
        "Setting by setting",
        f"Right of 1 {first} is sooner, left of it {second}; bars are intervals over seeds, filled "
        "marks are verdicts. What censoring leaves open is in the table alone.",
        choices(options, subject="show"),
    )
