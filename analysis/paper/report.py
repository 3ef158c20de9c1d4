"""RESULTS.md, its appendix and figures, from compact results alone: the same files for the same results."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from campaign import Planned, campaign
from choices import losses_around
from claims import (
    FAILS,
    HOLDS,
    MISSING,
    NOT_RUN,
    UNDECIDED,
    UNJUDGED,
    VERDICTS,
    Check,
    Judged,
    headline,
    judge,
    survives_holm,
)
from collapse import read_rows
from figures import FIGURES, FigureSpec
from multiverse import (
    SAFEGUARDS,
    SETUPS,
    Specification,
    alias_text,
    aliases,
    is_folded,
    readings,
    settings,
    shares_by_choice,
    slow_compression,
)
from oracle import EVERY, FOLDER, KS, REWARDS, gain_over_time, samples, shares_over_thirds
from pictures import PICTURES
from reasons import (
    before_chance,
    clipped_share,
    compression_share,
    fixed_spread,
    rejected_rounds,
)
from results import (
    CONSTANTS,
    EXPLORATION,
    FIXED,
    LARGE,
    MEASURES,
    NAMES,
    POLICIES,
    REWARD,
    SMALL,
    WEIGHTS,
    Result,
    Results,
    Runs,
    accuracy_gap,
    final_accuracy,
    mean_accuracy_gap,
    only,
    time_ratio,
    time_to,
)
from sentences import sentences

from simfed.report.comparison import format_ratio
from simfed.report.pictures import save_picture
from simfed.report.statistics import Estimate

_DPI = 160
_PROSE: dict[str, str] = dict(
    re.findall(
        r"<!-- (.*?) -->\n\n(.*?)\n(?=\n<!-- |\Z)",
        Path(__file__).with_name("prose.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
)
"""Name → what the pages say whatever comes out."""


def write_report(folder: Path, into: Path) -> str:
    """Write RESULTS.md, its appendix and `figures/` into a folder; a line about it."""
    began_s = time.perf_counter()
    results = campaign_results(folder)
    drawn = []
    (into / "figures").mkdir(parents=True, exist_ok=True)
    for spec in FIGURES:
        if spec.runs(results):
            save_picture(spec.draw(spec, results), into / "figures" / f"{spec.name}.png", dpi=_DPI)
            drawn.append(spec.name)
    for picture in PICTURES.values():
        if (figure := picture.draw(results)) is not None:
            save_picture(figure, into / "figures" / f"{picture.name}.png", dpi=_DPI)
            drawn.append(picture.name)
    for name, text in (("RESULTS.md", results_text), ("RESULTS-appendix.md", appendix_text)):
        (into / name).write_text(text(results, drawn), encoding="utf-8")
    took_s = time.perf_counter() - began_s
    return f"{len(results.all)} runs, {len(drawn)} figures, {into / 'RESULTS.md'} in {took_s:.1f} s"


def campaign_results(folder: Path) -> Results:
    """The results in a folder that the campaign planned."""
    return Results(folder, {planned.hash for planned in campaign()})


def results_text(results: Results, drawn: Sequence[str] = ()) -> str:
    """The page; `drawn`: the pictures that there are."""
    judged, read = judge(results), list(readings(results))
    return _joined(
        _PROSE["head"],
        _picture("at-a-glance", drawn),
        _hurried(results, judged, read),
        _standing(results, judged),
        _PROSE["one number"],
        _claims_table(judged),
        _PROSE["universe rules"],
        _readings_table(read),
        _setting_rules(results, 1000),
        _settings_table(results, 1000),
        _picture("open-points", drawn),
        _picture("safeguard", drawn),
        _safeguards_table(results),
        _PROSE["again"],
    )


def appendix_text(results: Results, drawn: Sequence[str] = ()) -> str:
    """The appendix: how claims were read, every comparison, figure, number, cost and run."""
    judged = judge(results)
    return _joined(
        _PROSE["appendix head"],
        _PROSE["chosen"],
        _open_points(),
        _PROSE["claim rules"],
        _reading_table(judged, results),
        _PROSE["measure rules"],
        _measures_table(results, judged),
        "## Open points at K = 5,000 and other set-ups",
        _settings_table(results, 5000),
        _picture("open-points-5000", drawn),
        _setups(results),
        _beside_dense(results),
        _PROSE["comparison rules"],
        _comparisons(judged),
        _reasons(results),
        _chance(results),
        _PROSE["figure rules"],
        _picture("mnist-selection-over-time", drawn),
        _oracle(results.folder.with_name(FOLDER)),
        *(_figure(spec, results) for spec in FIGURES),
        _PROSE["number rules"],
        _numbers_table(results),
        "## Cost",
        _cost(results),
        _PROSE["left rules"],
        _left_table(results),
        _PROSE["run rules"],
        _runs_table(results),
    )


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _standing(results: Results, judged: Sequence[Judged]) -> str:
    counts: dict[str, int] = {}
    for one in judged:
        counts[one.verdict] = counts.get(one.verdict, 0) + 1
    words = ", ".join(f"{v} {counts[v]}" for v in (*VERDICTS, *UNJUDGED) if v in counts)
    planned = campaign()
    on_gpu = sum(one.phase.needs_gpu for one in planned)
    text = (
        f"**So far:** {len(results.all)} of {len(planned)} distinct runs ({on_gpu} need a GPU){_code(results)}; of "
        f"{len(judged)} claims: {words}."
    )
    if results.foreign:
        hashes = ", ".join(f"`{one}`" for one in results.foreign)
        text += f"\n\nLeft out, as no run of the campaign: {hashes}."
    return text


def _code(results: Results) -> str:
    """By how many versions of simfed; runs of which nobody noted it are said."""
    noted = [result.facts["made_with"].get("code") for result in results.all]
    versions, unknown = len(set(noted) - {None}), noted.count(None)
    words = [f"by {versions} versions of simfed's code"] if versions > 1 else []
    words += [f"{unknown} by code that was not noted"] if unknown else []
    return f", {', '.join(words)}" if words else ""


# --- claims ------------------------------------------------------------------------------------


def _claims_table(judged: Sequence[Judged]) -> str:
    """One line per claim: what a reader wants first."""
    rows = []
    for one in judged:
        check = headline(one)
        number = f"{check_text(check)} ({check.what})" if check else ""
        states = [c.state for c in one.checks] if one.verdict in VERDICTS else []
        counts = " / ".join(str(states.count(state)) for state in VERDICTS) if states else ""
        rows.append((one.claim.text, _verdict_text(one), counts, number, _seeds_text(one.checks)))
    return _table(("claim", "verdict", _COUNTED, "number", "seeds"), rows)


_COUNTED = "comparisons: hold / cannot be told / fail"


def _verdict_text(judged: Judged) -> str:
    """The verdict; of what was played in part, how much is not there."""
    text = f"**{judged.verdict}**" if judged.verdict in VERDICTS else judged.verdict
    short = sum(check.state == MISSING for check in judged.checks)
    if judged.verdict == NOT_RUN or not short:
        return text
    return f"{text}: {short} of {len(judged.checks)} comparisons are short of seeds"


def _seeds_text(checks: Sequence[Check]) -> str:
    """
    >>> some = Estimate(0, 0, 0, 0, 0.95)
    >>> _seeds_text([Check("", "", some, "", 3), Check("", "", some, "", 5)])
    '3 to 5 of 5'
    """
    seeds = [min(check.seeds, check.needed) for check in checks]
    span = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
    return f"{span} of {max(check.needed for check in checks)}"


def _reading_table(judged: Sequence[Judged], results: Results) -> str:
    """How each claim was read, what its comparisons came to, and what else there is to know."""
    rows = []
    for one in judged:
        has_data = any(check.seeds for check in one.checks)
        reason = one.claim.reason(results) if one.verdict == FAILS else ""
        note = one.claim.note(results) if has_data else ""
        rows.append((one.claim.text, one.claim.rule, _tally(one.checks), reason, note))
    return _table(("claim", "read as", "comparisons", "likely reason", "mind"), rows)


def _measures_table(results: Results, judged: Sequence[Judged]) -> str:
    """The verdict of every claim under each measure of accuracy, where they are not all the same."""
    others = {name: judge(results.measured_by(name)) for name in MEASURES if name != "last"}
    rows = []
    for i, one in enumerate(judged):
        verdicts = [one.verdict, *(verdicts_of[i].verdict for verdicts_of in others.values())]
        if len({*verdicts}) > 1:
            rows.append((one.claim.text, *verdicts))
    if not rows:
        return "No verdict changes."
    return _table(("claim", *(words for _, words in MEASURES.values())), rows)


# --- other universes ---------------------------------------------------------------------------


def _picture(name: str, drawn: Sequence[str]) -> str:
    if name not in drawn:
        return ""
    picture = PICTURES[name]
    head = f"### {picture.title}\n\n" if name != "at-a-glance" else ""
    return f"{head}![{picture.title}](figures/{name}.png)\n\n*{picture.says}*"


def _hurried(results: Results, judged: Sequence[Judged], read: Sequence[Specification]) -> str:
    texts = sentences(results, judged, read)
    lines = "\n".join(f"{i}. {sentence}" for i, sentence in enumerate(texts, start=1))
    return f"## In {len(texts)} sentences\n\n{lines}" if texts else ""


def _readings_table(read: Sequence[Specification]) -> str:
    rows = []
    for claim in dict.fromkeys(one.claim for one in read):
        of_claim = [one for one in read if one.claim == claim and one.state != MISSING]
        if not of_claim:
            continue
        name, of_value = next(iter(shares_by_choice(of_claim).items()))
        most = ", ".join(f"{value} {100 * share:.0f} %" for value, share in of_value.items())
        rows.append((claim, len(of_claim), *_percentages(of_claim), f"{name}: holds {most}"))
    header = ("claim", "readings", HOLDS, UNDECIDED, FAILS, "hangs most on")
    return _table(header, rows) if rows else ""


def _settings_table(results: Results, k: int) -> str:
    rows = []
    for question, each, changes in settings(results, k):
        if len(each) < 2:
            continue
        words = [
            f"{'**' * e.stays}{e.factor.words} {e.factor.other} "
            f"{_change_text(e.estimate, question.unit)}{'**' * e.stays}"
            for e in changes
            if e.clear
        ]
        rows.append((question.claim, len(each), *_percentages(each), "; ".join(words) or "none"))
    points = "points" if is_folded(results, k) else "points (or their aliases)"
    header = ("claim", "settings", HOLDS, UNDECIDED, FAILS, f"{points} that change it")
    return f"K = {k:,}:\n\n{_table(header, rows)}" if rows else ""


def _percentages(readings: Sequence[Specification]) -> list[str]:
    states = [one.state for one in readings]
    if MISSING in states:
        least = min(one.seeds for one in readings)
        return [f"short of seeds: {least} of 3", "", ""]
    return [f"{100 * states.count(s) / len(states):.0f} %" for s in (HOLDS, UNDECIDED, FAILS)]


def _change_text(estimate: Estimate, unit: str) -> str:
    ends = (estimate.least, estimate.low, estimate.high)
    if unit == "×":
        least, low, high = (math.exp(end) for end in ends)
        return f"× {least:.2f} [{low:.2f}, {high:.2f}]"
    least, low, high = (100 * end for end in ends)
    return f"{least:+.1f} points [{low:+.1f}, {high:+.1f}]"


def _setting_rules(results: Results, k: int) -> str:
    folded = is_folded(results, k)
    apart = _PROSE["told apart"] if folded else f"{_PROSE['not told apart']} {_aliases()}."
    return _PROSE["setting rules"].format(share="half" if folded else "quarter", apart=apart)


def _aliases() -> str:
    """What the design of the open points does not tell apart."""
    return "; ".join(
        f"{factor.words} {factor.other} = {alias_text(pairs)}"
        for factor, pairs in aliases().items()
        if pairs
    )


def _setups(results: Results) -> str:
    """The fixed strategies where training, distillation or the clock is set up otherwise."""
    tried = [
        ("1,000", words, {arm: results.runs(arm, **setting) for arm in FIXED})
        for words, setting in SETUPS.items()
    ]
    tried.append(("5,000", "as taken", {arm: results.runs(arm, k=5000) for arm in FIXED}))
    tried += [(f"{k:,}", "compression in ms", slow_compression(results, k)) for k in (1000, 5000)]
    rows = []
    for k, words, runs in sorted(tried, key=lambda setup: setup[0]):
        seeds = sorted(set.intersection(*(set(of_arm) for of_arm in runs.values())))
        if not seeds:
            continue
        runs = {arm: only(of_arm, seeds) for arm, of_arm in runs.items()}
        ends, _ = final_accuracy(runs["top-k"])
        row: list[object] = [k, words, len(seeds), f"{100 * ends.least:.1f} %"]
        for arm in FIXED[1:]:
            gap, _ = accuracy_gap(runs[arm], runs["top-k"])
            sooner = time_ratio(runs[arm], runs["top-k"], 0.9).ratio
            row += [f"{100 * gap.least:+.2f} points{_interval(gap)}", format_ratio(sooner, 0.95)]
        rows.append(row)
    if not rows:
        return ""
    header = ["K", "set-up", "seeds", "Top-K ends at"]
    for arm in FIXED[1:]:
        header += [f"{NAMES[arm]} − Top-K", f"{NAMES[arm]} sooner to 90 % than Top-K"]
    return "\n\n".join((_PROSE["setup rules"], _table(header, rows)))


def _beside_dense(results: Results) -> str:
    """What is saved against sending everything, by K and policy, over the seeds that both have."""
    dense = results.runs("dense")
    rows = []
    for k, policy in itertools.product((500, 1000, 5000), POLICIES):
        runs = results.runs(policy, k=k)
        seeds = sorted(set(runs) & set(dense))
        if not seeds:
            continue
        fewer = [dense[s].facts["uplink_bytes"] / runs[s].facts["uplink_bytes"] for s in seeds]
        gap, _ = accuracy_gap(runs, dense)
        sooner = time_ratio(runs, dense, 0.9).ratio
        rows.append((f"{k:,}", policy, len(seeds), f"{sum(fewer) / len(fewer):.1f} ×",
                     f"{100 * gap.least:+.2f} points{_interval(gap)}", format_ratio(sooner, 0.95)))  # fmt: skip
    if not rows:
        return ""
    header = (
        "K",
        "policy",
        "seeds",
        "fewer bytes per run",
        "final accuracy − dense's",
        "sooner to 90 %",
    )
    return "\n\n".join((_PROSE["dense rules"], _table(header, rows)))


def _oracle(folder: Path) -> str:
    """What ASCEND chose, which strategy would have brought most, and what of that it gained."""
    chosen: list[tuple[object, ...]] = []
    best: list[tuple[object, ...]] = []
    gains: list[tuple[object, ...]] = []
    for k, (reward, words) in itertools.product(KS, REWARDS.items()):
        if not (seeds := len(samples(k, folder))):
            continue

        def shares(
            which: str, prototype: str, k: int = k, reward: str = reward, seeds: int = seeds
        ) -> list[str]:
            thirds = shares_over_thirds(which, k, prototype, folder, reward)
            return [
                f"{100 * early:.0f} → {100 * late:.0f}{_interval(change) if seeds > 2 else ''}"
                for early, late, change in thirds.values()
            ]

        for prototype in (SMALL, LARGE):
            if reward == "reward_raw":
                chosen.append((f"{k:,}", NAMES[prototype], seeds, *shares("chosen", prototype)))
            best.append((f"{k:,}", words, NAMES[prototype], seeds, *shares("best", prototype)))
        thirds = zip(("first", "middle", "last"), gain_over_time(k, folder, reward), strict=True)
        for third, gained in thirds:
            gains.append((f"{k:,}", words, third, *(f"{100 * share:.0f} %" for share in gained)))
    if not gains:
        return ""

    def head(*names: str, which: str) -> list[str]:
        return [*names, *(f"{NAMES[a]} {which}: first → last third, % (change)" for a in FIXED)]

    last = ("third of the run", "ASCEND gains", "best fixed per prototype gains")
    return "\n\n".join(
        [
            _PROSE["oracle rules"].format(every=EVERY),
            _table(head("K", "prototype", "seeds", which="chosen"), chosen),
            _table(head("K", "rewards", "prototype", "seeds", which="best"), best),
            _table(("K", "rewards", *last, "ASCEND played the best"), gains),
        ]
    )


def _safeguards_table(results: Results) -> str:
    """What each variant of the safeguard does, and what ASCEND is worth with it and without."""
    off = results.runs("ascend", rounds=400, **SAFEGUARDS["off"])
    rows = []
    seen: dict[str, tuple[float, float]] = {}
    """Variant → share of second attempts that exceed again, and their loss over the first's."""
    for name, universe in SAFEGUARDS.items():
        runs = results.runs("ascend", rounds=400, **universe)
        if not runs:
            continue
        attempts = [attempt for run in runs.values() for attempt in losses_around(run)]
        again = sum(attempt.exceeds_again for attempt in attempts)
        longer = float(np.median([a.second / a.undone for a in attempts])) if attempts else math.nan
        gap, _ = mean_accuracy_gap(runs, off)
        seen[name] = again / max(1, len(attempts)), longer
        undone = sum(run.facts["rollbacks"] for run in runs.values()) / len(runs)
        second = (
            f"{again} of {len(attempts)}; {longer:.2f} × the undone round's" if attempts else ""
        )
        beside = (
            ""
            if name == "off" or math.isnan(gap.least)
            else f"{100 * gap.least:+.2f} points{_interval(gap)}"
        )
        rows.append((name, len(runs), f"{undone:.0f}", second, beside))
    if not rows:
        return ""
    header = (
        "safeguard",
        "seeds",
        "undone rounds of 400",
        "second attempts above the threshold; their loss",
        "mean accuracy − that without",
    )
    parts = ("as taken", "nobody forced", "residuals by half", "residuals as sent")
    if any(name not in seen for name in parts):
        return _table(header, rows)
    taken, free, *softer = (seen[name] for name in parts)
    told_apart = taken[0] > 0.5 > free[0] and all(one[1] < taken[1] for one in softer)
    by_half, as_sent = (one[1] for one in softer)
    why = _PROSE["safeguard rules"].format(by_half=by_half, as_sent=as_sent, taken=taken[1])
    return (f"{why}\n\n" if told_apart else "") + _table(header, rows)


def _interval(estimate: Estimate) -> str:
    if math.isnan(estimate.low):
        return ""
    return f" [{100 * estimate.low:+.2f}, {100 * estimate.high:+.2f}]"


def _open_points() -> str:
    page = Path(__file__).resolve().parents[2] / "docs" / "learning.md"
    section = page.read_text(encoding="utf-8").split("## What the source leaves open", 1)[1]
    return "\n".join(line for line in section.split("\n## ")[0].splitlines() if line[:1] == "|")


def _tally(checks: Sequence[Check]) -> str:
    """How many comparisons hold, and so on; how many of those decided are so all together."""
    counts: dict[str, int] = {}
    for check in checks:
        counts[check.state] = counts.get(check.state, 0) + 1
    text = ", ".join(f"{n} {state}" for state, n in counts.items())
    left = [word for word in _after_holm(checks) if word]
    return (
        text
        if not left or len(checks) == 1
        else f"{text}; Holm: {left.count('stays')} of {len(left)} stay"
    )


def _after_holm(checks: Sequence[Check]) -> list[str]:
    """Of comparisons that decide: whether they still do beside all others of the claim."""
    words = {True: "stays", False: "falls", None: ""}
    return [
        words[left] if check.state in (HOLDS, FAILS) else ""
        for check, left in zip(checks, survives_holm(checks), strict=True)
    ]


def _comparisons(judged: Sequence[Judged]) -> str:
    """All comparisons with any data; what has none is counted in the claims table."""
    rows = []
    for one in judged:
        checks = [check for check in one.checks if check.seeds]
        for i, (check, left) in enumerate(zip(checks, _after_holm(checks), strict=True)):
            name = one.claim.text if i == 0 else ""
            rows.append((name, check.what, check_text(check), check.seeds, check.state, left))
    return _table(("claim", "comparison", "estimate", "seeds", "", "Holm"), rows) if rows else ""


def check_text(check: Check) -> str:
    """An estimate with its interval and unit.

    >>> check_text(Check("a over b", "holds", Estimate(0.012, 0.012, 0.01, 0.014, 0.95), "points", 5))
    '+1.20 points [+1.00, +1.40]'
    >>> check_text(Check("", "", Estimate(1.00007, 1.00007, 1.00006, 1.00008, 0.95), "×", 5))
    '+0.007 % [+0.006 %, +0.008 %]'
    """
    estimate = check.estimate
    if math.isnan(estimate.least):
        return "unknown"
    if check.unit == "×":
        ends = (estimate.least, estimate.low, estimate.high)
        if estimate.is_exact and all(0.98 < end < 1.02 for end in ends):
            least, low, high = (f"{100 * (end - 1):+.2g} %" for end in ends)
            return f"{least} [{low}, {high}]"
        return format_ratio(estimate, 0.95)
    text = f"{100 * estimate.least:+.2f} points"
    if not math.isnan(estimate.low):
        text += f" [{100 * estimate.low:+.2f}, {100 * estimate.high:+.2f}]"
    return text


# --- figures and numbers -----------------------------------------------------------------------


def _figure(spec: FigureSpec, results: Results) -> str:
    if not spec.runs(results):
        return f"### {spec.title}\n\nNot run: 0 of {spec.planned} runs."
    caption = spec.caption(results)
    caption = f"*{spec.says} {caption[0].upper()}{caption[1:]}.*"
    return f"### {spec.title}\n\n![{spec.title}](figures/{spec.name}.png)\n\n{caption}"


def _numbers_table(results: Results) -> str:
    """Accuracy, time and rollbacks of every setting that was run."""
    rows = []
    for name, task, changes in _settings():
        for policy in POLICIES:
            runs = results.runs(policy, task, **changes)
            if not runs:
                continue
            threshold = _THRESHOLDS[task]
            final, seeds = final_accuracy(runs)
            times, reached = time_to(runs, threshold)
            models = [
                f"{model} {_percent(final_accuracy(runs, model)[0].least)}"
                for model in next(iter(runs.values())).facts["curve"]["accuracy"]
            ]
            ends_s = sum(r.facts["simulated_s"] for r in runs.values()) / seeds
            rollbacks = sum(r.facts["rollbacks"] for r in runs.values()) / seeds
            rows.append(
                (name, policy, seeds, _accuracy(final), ", ".join(models),
                 f"{_seconds(times)} to {threshold:.0%} ({reached} of {seeds})", f"{ends_s:.2f} s",
                 f"{rollbacks:.0f}" if rollbacks else "0")
            )  # fmt: skip
    header = ("setting", "policy", "seeds", "final accuracy, %", "by prototype, %",
              "median time (seeds that got there)", "whole run", "rollbacks")  # fmt: skip
    return _table(header, rows) if rows else "No run yet."


_THRESHOLDS = {"mnist": 0.9, "cifar10": 0.3, "cifar10-small": 0.3}


def _settings() -> Iterable[tuple[str, str, dict[str, float]]]:
    for k in (500, 1000, 5000, 10_000):
        yield f"K {k:,}", "mnist", {"k": k}
    for alpha in (0.1, 1):
        yield f"α {alpha:g}", "mnist", {"alpha": alpha}
    for up in (5, 500):
        yield f"{up} Mbps", "mnist", {"up_mbps": up}
    for task in ("mnist", "cifar10"):
        on = f"{task}, " * (task != "mnist")
        for rho, beta in WEIGHTS:
            if {"rho": rho, "beta": beta} != REWARD:
                yield f"{on}(ρ, β) = ({rho:g}, {beta:g})", task, {"rho": rho, "beta": beta}
        for c in CONSTANTS:
            if {"c": c} != EXPLORATION:
                yield f"{on}c = {c}", task, {"c": c}
    for task, ks in (
        ("cifar10", (100_000, 500_000, 2_000_000)),
        ("cifar10-small", (1_000, 16_000)),
    ):
        for k in ks:
            yield f"{task}, K {k:,}", task, {"k": k}


def _accuracy(estimate: Estimate) -> str:
    text = _percent(estimate.least)
    if not math.isnan(estimate.low):
        text += f" [{_percent(max(0.0, estimate.low))}, {_percent(min(1.0, estimate.high))}]"
    return text


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _seconds(estimate: Estimate) -> str:
    return f"{'' if estimate.is_exact else '> '}{estimate.least:.2f} s"


def _reasons(results: Results) -> str:
    """Facts behind reasons and margins."""
    facts = [
        compression_share(results),
        clipped_share(results),
        rejected_rounds(results),
        _spread_at_5000(results),
    ]
    told = [fact for fact in facts if fact]
    return (
        "What the runs say beside:\n\n" + "\n".join(f"- {fact}." for fact in told) if told else ""
    )


def _spread_at_5000(results: Results) -> str:
    spread, seeds = fixed_spread(results, k=5000)
    if not seeds:
        return ""
    of_seeds = f"{seeds} seed{'s' * (seeds > 1)}"
    return f"fixed strategies end within {100 * spread:.1f} points of each other at K = 5,000 ({of_seeds})"


def _chance(results: Results) -> str:
    """How CIFAR-10's networks fall to chance, and the small world that says why."""
    before = before_chance(results)
    if not before:
        return ""
    rows = read_rows()
    wide = rows.pivot(index=["setting", "seed"], columns="round", values="accuracy")
    table = []
    for setting in rows["setting"].unique():
        of_seeds = wide.loc[setting]
        table.append((setting, *(_each_percent(of_seeds[number]) for number in wide.columns)))
    header = ("setting", *(f"{number} rounds, %" for number in wide.columns))
    return f"{_PROSE['chance rules'].format(before=before)}\n\n{_table(header, table)}"


def _each_percent(values: Iterable[float]) -> str:
    return " / ".join(map(_percent, values))


# --- cost and runs -----------------------------------------------------------------------------


def _cost(results: Results) -> str:
    rows = [_cost_row(spec.title, spec.runs(results), spec.planned) for spec in FIGURES]
    header = ("figure", "runs", "computed", "replayed", "processor time", "wall time")
    total = _cost_row("**everything, each run once**", results.all, None)
    note = (
        "Runs in several figures count in each. Replayed runs took what they learned from runs that had learned "
        "the same before. Processor time is of the one thread that computed a run, on whatever machine it was."
    )
    return f"{_table(header, [*rows, total])}\n\n{note}"


def _cost_row(name: str, runs: Sequence[Result], planned: int | None) -> tuple[object, ...]:
    costs = [run.facts["cost"] for run in runs]
    computed = sum(cost["learning"] == "computed" for cost in costs)
    done = f"{len(runs)} of {planned}" if planned is not None else f"{len(runs)}"
    cpu_s = sum(cost["cpu_s"] or 0.0 for cost in costs)
    wall_s = sum(cost["wall_s"] for cost in costs)
    return name, done, computed, len(runs) - computed, _hours(cpu_s), _hours(wall_s)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{seconds:,.0f} s"


def _left_table(results: Results) -> str:
    """How far each phase of the campaign is."""
    done = {result.hash for result in results.all}
    phases: dict[str, list[Planned]] = {}
    for planned in campaign():
        phases.setdefault(planned.phase.name, []).append(planned)
    rows = [
        (
            name,
            runs[0].phase.study,
            f"{sum(p.hash in done for p in runs)} of {len(runs)}",
            "GPU" if runs[0].phase.needs_gpu else "CPU",
        )
        for name, runs in phases.items()
    ]
    return _table(("phase", "study", "runs done", "on"), rows)


def _runs_table(results: Results) -> str:
    if not results.all:
        return ""
    keys = list(dict.fromkeys(key for one in results.all for key in one.facts["setting"]))
    groups: dict[tuple[str, ...], Runs] = {}
    for result in results.all:
        name = tuple(_cell(result.facts["setting"].get(key)) for key in keys)
        groups.setdefault(name, {})[result.seed] = result
    rows = [
        (*name, "<br>".join(f"{seed}: `{runs[seed].hash}`" for seed in sorted(runs)))
        for name, runs in sorted(groups.items())
    ]
    return _table((*keys, "seed: hash"), rows)


def _cell(value: object) -> str:
    """
    >>> [_cell(v) for v in (None, 50.0, 2_000_000, "top-k", {"credit": "as-printed", "clip": None})]
    ['', '50', '2000000', 'top-k', 'credit as-printed, clip none']
    """
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(inner) or 'none'}" for key, inner in value.items())
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
