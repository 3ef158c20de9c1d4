"""Arms of a study against each other, setting by setting, and what that says in plain words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simfed.study.statistics import (
    Estimate,
    Paired,
    mean_interval,
    median_time,
    paired_difference,
    paired_times,
)
from simfed.units import format_duration
from simfed.vocabulary import RELEVANT_RATIO

if TYPE_CHECKING:
    import pandas as pd

    from simfed.study.results import StudyResult

__all__ = [
    "WHOLE_RUN",
    "arm_rows",
    "comparison_row",
    "comparison_rows",
    "inverse",
    "ratio_text",
    "sentence",
    "sentences",
    "time_text",
]

_MOST_NAMED = 4
"""Settings that a sentence names one by one; the comparisons' table has them all."""

WHOLE_RUN = math.nan
"""The threshold of a comparison of whole runs' simulated time, where nothing was learned."""


def arm_rows(study: StudyResult) -> pd.DataFrame:
    """See `StudyResult.arms`.

    `setting, arm, seeds, final_accuracy` and its interval `_low, _high`; per threshold `reached`
    (of the seeds), `median_s` (NaN where censoring leaves it open), `median_at_least_s`,
    `median_low_s, median_high_s, coverage`.
    """
    import pandas as pd

    accuracy = _by_address(study, "final_accuracy")
    rows = []
    for setting, of_arm in study.settings():
        for arm, entries in of_arm.items():
            done = [entry for entry in entries if entry["address"] in accuracy]
            final = [v for e in done if not math.isnan(v := accuracy[e["address"]])]
            mean = mean_interval(final, study.compare["confidence"])
            for threshold in _thresholds(study):
                times, reached = _times(study, done, threshold)
                median = median_time(times, reached, study.compare["confidence"])
                rows.append(
                    {
                        "setting": study.setting_text(setting),
                        "arm": arm,
                        "seeds": len(done),
                        "final_accuracy": mean.least,
                        "final_accuracy_low": mean.low,
                        "final_accuracy_high": mean.high,
                        "threshold": threshold,
                        "reached": sum(reached),
                        "median_s": median.least if median.is_exact else math.nan,
                        "median_at_least_s": median.least,
                        "median_low_s": median.low,
                        "median_high_s": median.high,
                        "coverage": median.coverage,
                    }
                )
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame


def comparison_rows(study: StudyResult) -> pd.DataFrame:
    """See `StudyResult.comparisons`.

    `setting, threshold, a, b, seeds` (that both have), `wins` (of a), `losses, ratio` (how many
    times sooner a was; NaN where censoring leaves it open), `ratio_at_least, ratio_at_most,
    ratio_low, ratio_high, coverage, p_value, verdict` (1: a before b, −1: b before a, 0: no clear
    and relevant difference), `accuracy_difference` (final, a − b) with `_low, _high`.
    """
    import pandas as pd

    rows = [
        {"setting": study.setting_text(setting), **comparison_row(threshold, a, b, paired, gap)}
        for setting, threshold, a, b, paired, gap in _compared(study)
    ]
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame


def comparison_row(
    threshold: float, a: str, b: str, paired: Paired, gap: Estimate
) -> dict[str, Any]:
    """A row of `comparison_rows` without its setting."""
    return {
        "threshold": threshold,
        "a": a,
        "b": b,
        "seeds": paired.seeds,
        "wins": paired.wins,
        "losses": paired.losses,
        "ratio": paired.ratio.least if paired.ratio.is_exact else math.nan,
        "ratio_at_least": paired.ratio.least,
        "ratio_at_most": paired.ratio.most,
        "ratio_low": paired.ratio.low,
        "ratio_high": paired.ratio.high,
        "coverage": paired.ratio.coverage,
        "p_value": paired.p_value,
        "verdict": paired.verdict,
        "accuracy_difference": gap.least,
        "accuracy_difference_low": gap.low,
        "accuracy_difference_high": gap.high,
    }


def sentences(study: StudyResult) -> list[str]:
    """See `StudyResult.verdicts`."""
    grouped: dict[tuple[str, str, float], list[tuple[str, Paired, Estimate]]] = {}
    for setting, threshold, a, b, paired, gap in _compared(study):
        # all whole-run comparisons belong together, though NaN is not equal to itself
        key = (a, b, -1.0 if math.isnan(threshold) else threshold)
        grouped.setdefault(key, []).append((study.setting_text(setting), paired, gap))
    confidence = study.compare["confidence"]
    return [sentence(a, b, t, found, confidence) for (a, b, t), found in grouped.items()]


# --- numbers -----------------------------------------------------------------------------------


def _compared(
    study: StudyResult,
) -> Iterable[tuple[dict[str, str], float, str, str, Paired, Estimate]]:
    if study.arms_axis is None:
        return
    accuracy = _by_address(study, "final_accuracy")
    confidence, baseline = study.compare["confidence"], study.compare["baseline"]
    for setting, of_arm in study.settings():
        pairs = [(a, b) for a, b in itertools.combinations(of_arm, 2) if baseline in (None, a, b)]
        for (a, b), threshold in itertools.product(pairs, _thresholds(study)):
            both = _same_seeds(of_arm[a], of_arm[b], accuracy)
            first, second = [one for one, _ in both], [other for _, other in both]
            paired = paired_times(
                *_times(study, first, threshold),
                *_times(study, second, threshold),
                confidence,
                study.compare.get("relevant_ratio", RELEVANT_RATIO),
            )
            gap = paired_difference(
                [accuracy[entry["address"]] for entry in first],
                [accuracy[entry["address"]] for entry in second],
                confidence,
            )
            yield setting, threshold, a, b, paired, gap


def _thresholds(study: StudyResult) -> list[float]:
    return study.thresholds or [WHOLE_RUN]


def _by_address(study: StudyResult, fact: str) -> dict[str, float]:
    done = study.summary[study.summary["status"] == "finished"]
    values = done[fact].astype(float)
    return dict(zip(done["address"], values, strict=True))


def _same_seeds(
    a: Sequence[dict[str, Any]], b: Sequence[dict[str, Any]], finished: Any
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of finished runs under one seed."""
    other = {entry["seed"]: entry for entry in b if entry["address"] in finished}
    return [(e, other[e["seed"]]) for e in a if e["address"] in finished and e["seed"] in other]


def _times(
    study: StudyResult, entries: Sequence[dict[str, Any]], threshold: float
) -> tuple[list[float], list[bool]]:
    """First times of reach, and whether they were reached (else the time is the run's end)."""
    if math.isnan(threshold):
        whole = _by_address(study, "simulated_s")
        return [whole[entry["address"]] for entry in entries], [True] * len(entries)
    rows = [
        next(row for row in study.times_of(entry["address"]) if row["threshold"] == threshold)
        for entry in entries
    ]
    return [row["at_s"] for row in rows], [row["reached"] for row in rows]


# --- words -------------------------------------------------------------------------------------


def time_text(row: Any, confidence: float) -> str:
    """An arm's median time with its interval, from a row of `arms`: `12.3 s [11 s, 14 s]`, and what
    that covers where it is less than `confidence`."""
    if not row["seeds"]:
        return ""
    open_ = "> " if math.isnan(row["median_s"]) else ""
    text = open_ + format_duration(row["median_at_least_s"])
    if row["coverage"] == 0 or not row["reached"]:
        return text
    high = "∞" if math.isinf(row["median_high_s"]) else format_duration(row["median_high_s"])
    text += f" [{format_duration(row['median_low_s'])}, {high}]"
    return text + _covered(row["coverage"], confidence)


def ratio_text(ratio: Estimate, confidence: float) -> str:
    """A ratio above 1 with its interval: `1.80× [1.50, 2.20]`, `at least 3.30× [2.10, ∞]`."""
    text = f"{'' if ratio.is_exact else 'at least '}{_number(ratio.least)}×"
    if ratio.coverage == 0:
        return text
    text += f" [{_number(ratio.low)}, {_number(ratio.high)}]"
    return text + _covered(ratio.coverage, confidence)


def _covered(coverage: float, confidence: float) -> str:
    return "" if coverage >= confidence else f" (covers {100 * coverage:.0f} %)"


def sentence(
    a: str, b: str, threshold: float, found: list[tuple[str, Paired, Estimate]], confidence: float
) -> str:
    """Two arms at one threshold (below 0 or NaN: whole runs), setting by setting, in words."""
    goal = "in simulated time" if not threshold >= 0 else f"to {100 * threshold:g} %"
    sides = {1: (a, b), -1: (b, a)}
    clauses = []
    every = [setting for setting, _, _ in found]
    for side, (winner, loser) in sides.items():
        won = {s: p for s, p, _ in found if p.seeds and p.verdict == side}
        if len(won) > _MOST_NAMED:
            clauses.append(
                f"{winner} before {loser} {goal}{_at(list(won), every)}, {_range(won, side)}"
            )
        elif won:
            each = [
                _won(setting, paired, side, goal, confidence) for setting, paired in won.items()
            ]
            clauses.append(f"{winner} before {loser} {', and '.join(each)}")
    clauses += [
        _alone(a, b, setting, p, goal, confidence) for setting, p, _ in found if _is_alone(p)
    ]
    clauses += [
        _small(a, b, setting if len(every) > 1 else "", p, goal, confidence)
        for setting, p, _ in found
        if _is_small(p)
    ]
    level = [s for s, p, _ in found if _is_level(p)]
    counts = dict.fromkeys(_counts(p) for _, p, _ in found if _is_level(p))
    if len(counts) > 1 and len(level) > _MOST_NAMED:
        clauses.append(f"no clear difference between {a} and {b} {goal}{_at(level, every)}")
        counts = {}
    for wins, losses, seeds in counts:
        level = [s for s, p, _ in found if _is_level(p) and _counts(p) == (wins, losses, seeds)]
        clauses.append(
            f"no clear difference between {a} and {b} {goal}{_at(level, every)} "
            f"({a} sooner in {wins}, {b} in {losses} of {seeds} seeds)"
        )
    never = [s for s, p, _ in found if p.seeds and not p.wins + p.losses]
    if never:
        where = _at(never, every)
        clauses.append(f"{a} against {b} {goal} undecided{where}: no seed tells which is sooner")
    missing = [s for s, p, _ in found if not p.seeds]
    if missing:
        where = _at(missing, every)
        clauses.append(f"{a} and {b} not yet compared{where}: no seed is finished for both")
    return "; ".join(clauses) + "."


def _range(won: Mapping[str, Paired], side: int) -> str:
    """How many times sooner, from the setting with the least to that with the most."""
    ratios = {s: p.ratio if side == 1 else inverse(p.ratio) for s, p in won.items()}
    ends = []
    for setting in (
        min(ratios, key=lambda s: ratios[s].least),
        max(ratios, key=lambda s: ratios[s].least),
    ):
        bound = "" if ratios[setting].is_exact else "at least "
        ends.append(f"{bound}{_number(ratios[setting].least)}× (at {setting})")
    return f"{ends[0]} to {ends[1]} sooner"


def _is_level(paired: Paired) -> bool:
    decided = paired.wins + paired.losses
    return bool(paired.seeds > 1 and paired.clear == 0 and decided)


def _is_small(paired: Paired) -> bool:
    """A clear difference that does not matter."""
    return bool(paired.seeds and paired.clear and not paired.verdict)


def _small(a: str, b: str, setting: str, paired: Paired, goal: str, confidence: float) -> str:
    first, other = (a, b) if paired.clear > 0 else (b, a)
    ratio = paired.ratio if paired.clear > 0 else inverse(paired.ratio)
    where = f" at {setting}" if setting else ""
    return (
        f"no relevant difference between {a} and {b} {goal}{where}: {first} is "
        f"{ratio_text(ratio, confidence)} sooner than {other}, less than {paired.needed_ratio:g}×"
    )


def _is_alone(paired: Paired) -> bool:
    return paired.seeds == 1 and paired.wins + paired.losses == 1


def _alone(a: str, b: str, setting: str, paired: Paired, goal: str, confidence: float) -> str:
    """One seed has a number, and nothing that says how much another seed would change it."""
    first, other, ratio = (a, b, paired.ratio) if paired.wins else (b, a, inverse(paired.ratio))
    where = f" at {setting}" if setting else ""
    return (
        f"{first} {ratio_text(ratio, confidence)} sooner than {other} {goal}{where} in the one "
        "seed, which decides nothing"
    )


def _counts(paired: Paired) -> tuple[int, int, int]:
    return paired.wins, paired.losses, paired.seeds


def _won(setting: str, paired: Paired, side: int, goal: str, confidence: float) -> str:
    wins = paired.wins if side == 1 else paired.losses
    ratio = paired.ratio if side == 1 else inverse(paired.ratio)
    seeds = f"in {wins} of {paired.seeds} seeds"
    where = f" at {setting}" if setting else ""
    return f"{seeds}, {ratio_text(ratio, confidence)} sooner {goal}{where}"


def _at(settings: Sequence[str], every: Sequence[str]) -> str:
    if len(every) == 1:
        return ""
    if len(settings) == len(every):
        return " everywhere"
    if len(settings) > _MOST_NAMED:
        return f" in {len(settings)} of {len(every)} settings"
    return " at " + " and at ".join(settings)


def inverse(ratio: Estimate) -> Estimate:
    """The ratio of the second to the first, of one of the first to the second."""

    def over(x: float) -> float:
        return math.inf if x == 0 else 1 / x

    return Estimate(
        over(ratio.most), over(ratio.least), over(ratio.high), over(ratio.low), ratio.coverage
    )


def _number(value: float) -> str:
    if math.isinf(value):
        return "∞"
    return f"{value:.2f}" if value < 9.995 else f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}"
