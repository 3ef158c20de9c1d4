"""Two studies held against each other: every setting and arm that both have, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from simfed.errors import InputError
from simfed.record.summary import chance_of
from simfed.report.compare import settings_table
from simfed.report.page import render_page
from simfed.report.panels import Panel, Table, choices, plain
from simfed.study.comparison import inverse, ratio_text
from simfed.study.pairs import Comparison, compare
from simfed.study.reach import common_thresholds
from simfed.study.statistics import Estimate
from simfed.vocabulary import RELEVANT_RATIO

if TYPE_CHECKING:
    from simfed.record.read import Run
    from simfed.study.results import StudyResult

__all__ = ["Match", "matches", "versus_page"]

_INK = "#0072B2"


@dataclass(frozen=True)
class Match:
    """A setting and arm that two studies have in common."""

    setting: str
    arm: str
    first: Run
    second: Run
    """A run of each under the same seed."""
    found: Comparison
    is_same: bool
    """All runs of both have the same fingerprints."""

    @property
    def named(self) -> str:
        return ", ".join(filter(None, (self.setting, self.arm)))


def matches(a: StudyResult, b: StudyResult) -> Iterator[Match]:
    """Every setting and arm of both studies with a finished seed in common, compared.

    Targets are the thresholds that both studies name or find, else the highest round number that at
    least half of all runs reach; where a study learned nothing, whole runs are compared.
    """
    names, targets = _names(a, b), _targets(a, b)
    theirs = {
        (b.setting_text(setting), arm): entries
        for setting, of_arm in b.settings()
        for arm, entries in of_arm.items()
    }
    for setting, of_arm in a.settings():
        text = a.setting_text(setting)
        for arm, entries in of_arm.items():
            # a study without arms calls its only one by its own name
            key = (text, arm if a.arms_axis is not None else b.name)
            one, other = _finished(a, entries), _finished(b, theirs.get(key, []))
            seeds = [seed for seed in one if seed in other]
            if not seeds:
                continue
            found = compare(
                [one[seed] for seed in seeds],
                [other[seed] for seed in seeds],
                names=names,
                thresholds=targets,
                confidence=a.compare["confidence"],
                relevant_ratio=a.compare.get("relevant_ratio", RELEVANT_RATIO),
            )
            first, second = one[seeds[0]], other[seeds[0]]
            same = all(one[seed].fingerprint == other[seed].fingerprint for seed in seeds)
            shown = arm if a.arms_axis is not None else ""
            yield Match(text, shown, first, second, found, same)


def versus_page(a: StudyResult, b: StudyResult) -> str:
    """The comparison as one self-contained page.

    Raises: `InputError` where the studies have no setting, arm and seed in common.
    """
    found = list(matches(a, b))
    first, second = _names(a, b)
    if not found:
        raise InputError(
            f"{first} and {second} with a setting, arm and finished seed in common",
            where="simfed study report", got="none",
        )  # fmt: skip
    changed = [match for match in found if not match.is_same] or found
    parts: dict[str, dict[str, Any]] = {
        "verdicts": {"title": "Verdicts", "tables": [_times(found, first, second)]},
        "times": {"title": "How many times sooner", "panels": [_chart(changed, first, second)]},
        "settings": {"title": "Settings", "tables": [_settings(changed[0], first, second)]},
    }
    return render_page(f"{first} against {second}", f"{len(found)} settings and arms", parts)


def _settings(match: Match, first: str, second: str) -> Table:
    table = settings_table({first: match.first, second: match.second})
    where = f" (those of {match.named})" if match.named else ""
    return replace(table, caption=table.caption + where)


def _names(a: StudyResult, b: StudyResult) -> list[str]:
    if a.name != b.name:
        return [a.name, b.name]
    if a.path.name != b.path.name:
        return [f"{a.name} ({a.path.name})", f"{b.name} ({b.path.name})"]
    return [f"{a.name} (1)", f"{b.name} (2)"]


def _targets(a: StudyResult, b: StudyResult) -> list[float] | None:
    if a.time_only or b.time_only:
        return None
    shared = [target for target in a.thresholds if target in b.thresholds]
    best = [value for study in (a, b) for value in study.summary["best_accuracy"].dropna()]
    chance = chance_of(run for study in (a, b) for _, run in study.finished)
    return shared or common_thresholds(best, chance) or None


def _finished(study: StudyResult, entries: Sequence[dict[str, Any]]) -> dict[int, Run]:
    done = study.folder.is_finished
    return {e["seed"]: study.run(e["address"]) for e in entries if done(e["address"])}


def _times(found: Sequence[Match], first: str, second: str) -> Table:
    rows, same = [], []
    for match in found:
        if match.is_same:
            same.append((match.named or "all", "the same runs"))
            continue
        for threshold, _, _, paired, gap in match.found.found:
            sooner = {1: first, -1: second, 0: "no clear or relevant difference"}[paired.verdict]
            ratio = paired.ratio if paired.ratio.least >= 1 else inverse(paired.ratio)
            ahead = first if paired.ratio.least >= 1 else second
            known = paired.wins + paired.losses
            text = f"{ahead} {ratio_text(ratio, match.found.confidence)}" if known else "undecided"
            rows.append(
                (
                    match.setting,
                    match.arm,
                    "whole run" if math.isnan(threshold) else f"{100 * threshold:g} %",
                    sooner if known else "undecided",
                    text,
                    f"{paired.wins} : {paired.losses} of {paired.seeds}",
                    _points(gap),
                )
            )
    header = (
        "setting",
        "arm",
        "to",
        "sooner",
        "how many times",
        "seeds",
        f"final accuracy, {first} − {second}",
    )
    note = (
        "Compared seed by seed, with intervals over seeds. A verdict needs an interval that leaves "
        "out 1 and a difference that matters; one seed decides nothing. Nothing is corrected for "
        "the number of comparisons."
    )
    kept = [i for i in range(len(header)) if i > 1 or any(row[i] for row in rows)]
    return Table(
        "Time to target, and final accuracy in points",
        tuple(header[i] for i in kept),
        [tuple(row[i] for i in kept) for row in rows],
        frozenset(n for n, i in enumerate(kept) if i > 3),
        note,
        same,
    )


def _points(gap: Estimate) -> str:
    if math.isnan(gap.least):
        return ""
    text = f"{100 * gap.least:+.1f} points"
    if gap.coverage == 0:
        return text
    return f"{text} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"


def _chart(found: Sequence[Match], first: str, second: str) -> Panel:
    """A row per setting and arm: how many times sooner the first study was, with its interval."""
    options = {}
    for i, (threshold, *_) in enumerate(found[0].found.found):
        rows = [(match.named or "all", match.found.found[i][3]) for match in found]
        known = [(name, p) for name, p in rows if p.wins + p.losses and p.ratio.is_exact]
        label = "whole runs" if math.isnan(threshold) else f"to {100 * threshold:g} %"
        x = [p.ratio.least for _, p in known]
        ends = [(p.ratio.low, p.ratio.high) if p.ratio.coverage else (v, v) for v, (_, p) in zip(
            x, known, strict=True)]  # fmt: skip
        data = [
            {
                "type": "scatter",
                "mode": "markers",
                "x": x,
                "y": [plain(name) for name, _ in known],
                "error_x": {
                    "type": "data", "symmetric": False, "thickness": 1.2, "width": 0,
                    "array": [min(high, 1e3) - v for v, (_, high) in zip(x, ends, strict=True)],
                    "arrayminus": [v - low for v, (low, _) in zip(x, ends, strict=True)],
                },
                "marker": {
                    "size": 9, "color": _INK,
                    "symbol": ["circle" if p.verdict else "circle-open" for _, p in known],
                },
                "hovertemplate": "%{y}: %{x:.3g}×<extra></extra>",
            }
        ]  # fmt: skip
        layout = {
            "height": 150 + 24 * len(known),
            "xaxis": {
                "type": "log", "title": {"text": plain(f"how many times sooner {first} was")},
            },
            "yaxis": {"type": "category", "autorange": "reversed", "showgrid": False},
            "shapes": [{"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1,
                        "line": {"width": 1, "dash": "dash", "color": "#7F7F7F"}}],
        }  # fmt: skip
        options[label] = (data, layout)
    return Panel(
        "times-sooner",
        "Setting by setting",
        f"Right of 1 {first} is sooner, left of it {second}; bars are intervals over seeds, filled "
        "marks are verdicts. What censoring leaves open is in the table alone.",
        choices(options, of="show"),
    )
