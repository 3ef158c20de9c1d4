"""The source's evaluation: tables, figures and stated numbers of RESULTS.md, from kept
rows.

    # draws, renews the page's tables, prints its sentences' numbers
    python analysis/paper.py

Rows are made by paper_rows.py and compared by paper_claims.py; what is written here is
how that is shown.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from pages import markdown, write_page
from paper_claims import (
    CONSTANTS,
    FACTORS,
    FAILS,
    HOLDS,
    LENETS,
    MISSING,
    NAMES,
    POLICIES,
    SAFEGUARDS,
    SETTINGS,
    SLOW_ROUND_MS,
    UNDECIDED,
    WEIGHTS,
    Answer,
    Check,
    Claim,
    Reading,
    attempts,
    claims,
    headline,
    held_by_choice,
    left_by_holm,
    open_points,
    readings,
    slowed,
)
from paper_figures import FIGURES
from paper_rows import (
    FIXED,
    LAST,
    MEASURES,
    Rows,
    Runs,
    end,
    first_s,
    gap,
    mean,
    over,
    points,
    powers,
    ratio,
)

from simfed.report.comparison import format_ratio
from simfed.report.pictures import save_picture
from simfed.report.statistics import Estimate, estimate_mean, estimate_median_time

PAGE = Path(__file__).with_name("RESULTS.md")
STATES = (HOLDS, UNDECIDED, FAILS)
Table = list[Sequence[str]]
rows = cache(Rows)


@cache
def compared(measure: str = LAST) -> list[Claim]:
    """Return the claims, compared by a measure of accuracy."""
    return claims(rows(measure))


@cache
def read() -> list[Reading]:
    """Return the readings of the claims about accuracy."""
    return readings(rows())


@cache
def asked(k: int) -> list[Answer]:
    """Return what the open points change at a K."""
    return open_points(rows(), k)


# --- tables ---------------------------------------------------------------------------


def page_parts() -> dict[str, str]:
    """Return the name of each place in the page → the table that stands there."""
    parts = {
        "claims": claims_table(),
        "readings": readings_table(),
        "open points": points_table(1000),
        "safeguards": safeguards_table(),
        "measures": measures_table(),
        "open points at 5,000": points_table(5000),
        "beside": beside_table(),
        "settings": settings_table(),
        "comparisons": comparisons_table(),
        "stacks": stacks_table(),
    }
    return {name: markdown(table) for name, table in parts.items()}


def claims_table() -> Table:
    """Return a line per claim, with the comparison that speaks least for it."""
    head = ("claim", "verdict", "hold / cannot be told / fail", "left by Holm")
    table: Table = [(*head, "number", "seeds")]
    for claim in compared():
        check, states = headline(claim), [one.state for one in claim.checks]
        told, short = claim.verdict in STATES, states.count(MISSING)
        verdict = f"**{claim.verdict}**" if told else claim.verdict
        if told and short:
            verdict += f": {short} of {len(states)} comparisons are short of seeds"
        number = f"{check.text} ({check.what})" if check else ""
        counts = " / ".join(str(states.count(state)) for state in STATES)
        seeds = sorted({min(one.seeds, one.needed) for one in claim.checks})
        span = " to ".join(str(n) for n in dict.fromkeys((seeds[0], seeds[-1])))
        needed = f"{span} of {claim.checks[0].needed}"
        of = left_by_holm(claim.checks)
        left = [
            x
            for x, state in zip(of, states, strict=True)
            if state == claim.verdict and x
        ]
        stay = f"{left.count('stays')} of {len(left)}" if left else ""
        table.append(
            (claim.text, verdict, counts if told else "", stay, number, needed)
        )
    return table


def comparisons_table() -> Table:
    """Return every comparison with any data."""
    table: Table = [("claim", "comparison", "estimate", "seeds", "", "Holm")]
    for claim in compared():
        name, checks = claim.text, [check for check in claim.checks if check.seeds]
        for check, left in zip(checks, left_by_holm(checks), strict=True):
            seeds = str(check.seeds)
            table.append((name, check.what, check.text, seeds, check.state, left))
            name = ""
    return table


def measures_table() -> Table:
    """Return the verdicts that differ between measures of accuracy."""
    each = zip(*(compared(measure) for measure in MEASURES), strict=True)
    lines = [(of[0].text, *(claim.verdict for claim in of)) for of in each]
    return [("claim", *MEASURES), *(line for line in lines if len({*line[1:]}) > 1)]


def shares(states: Sequence[str]) -> list[str]:
    """Return the shares of states, of those that a claim may come to."""
    return [f"{100 * states.count(s) / len(states):.0f} %" for s in STATES]


def readings_table() -> Table:
    """Return in how many readings each claim holds, and on what that hangs most."""
    table: Table = [("claim", "readings", *STATES, "hangs most on")]
    for claim in dict.fromkeys(one.claim for one in read()):
        each = [one for one in read() if one.claim == claim]
        name, held = next(iter(held_by_choice(each).items()))
        words = ", ".join(
            f"{value} {100 * share:.0f} %" for value, share in held.items()
        )
        states = shares([one.state for one in each])
        table.append((claim, str(len(each)), *states, f"{name}: holds {words}"))
    return table


def points_table(k: int) -> Table:
    """Return what ASCEND comes to over open points, and which of them change it."""
    table: Table = [("claim", "settings", *STATES, "points that change it")]
    for question, cells, effects in asked(k):
        words = []
        for effect in effects:
            e, bold = effect.estimate, "**" * effect.stays
            changed = points(e, 1)
            if question.unit == "×":
                e = powers(e)
                changed = f"× {e.least:.2f} [{e.low:.2f}, {e.high:.2f}]"
            if effect.clear:
                words.append(f"{bold}{FACTORS[effect.factor]} {changed}{bold}")
        states = shares([cell.state for cell in cells])
        changes = "; ".join(words) or "none"
        table.append((question.claim, str(len(cells)), *states, changes))
    return table


def safeguards_table() -> Table:
    """Return what variants of the safeguard do, and ASCEND with it and without."""
    head = ("safeguard", "seeds", "undone rounds of 400")
    second = "second attempts above the threshold; their loss"
    table: Table = [(*head, second, "mean accuracy − that without")]
    for name in SAFEGUARDS:
        runs, of = guarded(name)
        undone = f"{np.mean([run.rollbacks for run in runs.values()]):.0f}"
        again = f"{sum(one.again for one in of)} of {len(of)}" if of else ""
        if of:
            times = float(np.median([one.times for one in of]))
            again += f"; {times:.2f} × the undone round's"
        beside = points(gap(runs, guarded("off")[0], mean)) if name != "off" else ""
        table.append((name, str(len(runs)), undone, again, beside))
    return table


@cache
def guarded(name: str) -> tuple[Runs, list[Any]]:
    """Return the runs under a variant of the safeguard, and their second attempts."""
    runs = rows().of("ascend", rounds=400, variant=SAFEGUARDS[name])
    return runs, [one for run in runs.values() for one in attempts(run, 6, 8)]


def beside_table() -> Table:
    """Return pairs of settings that no claim names: fixed strategies in other set-ups,
    and beside sending everything.
    """
    of = rows().of
    pairs = []
    setups: dict[str, dict[str, Any]] = {
        "five local steps": {"variant": "local steps 5"},
        "distillation rate × 10": {"variant": "distillation × 10"},
        "2,000 public images": {"public": 2000},
    }
    for words, at in setups.items():
        pairs += [(words, of(arm, **at), of("top-k", **at), arm) for arm in FIXED[1:]]
    for k in SLOW_ROUND_MS:
        slow = slowed({arm: of(arm, k=k) for arm in FIXED}, k)
        words = f"K {k:,}, compression in ms"
        pairs += [(words, slow[arm], slow["top-k"], arm) for arm in FIXED[1:]]
    pairs += [
        (f"K {k:,}", of(arm, k=k), of("dense"), arm)
        for k in (500, 1000, 5000)
        for arm in POLICIES
    ]
    table: Table = [("set-up", "", "seeds", "final accuracy, less", "sooner to 90 %")]
    for words, a, b, arm in pairs:
        other = "everything sent" if b is of("dense") else "Top-K"
        name, seeds = f"{NAMES[arm]} − {other}", str(len(set(a) & set(b)))
        sooner = format_ratio(ratio(a, b).ratio, 0.95)
        table.append((words, name, seeds, points(gap(a, b)), sooner))
    return table


def settings_table() -> Table:
    """Return accuracy, time and rollbacks of every setting that was run."""
    tried: list[tuple[str, dict[str, Any], float]] = [
        *((name, at, 0.9) for name, at in SETTINGS.items()),
        ("K 10,000", {"k": 10_000}, 0.9),
        *((f"(ρ, β) = {tuple(at.values())}", at, 0.9) for at in WEIGHTS),
        *((f"c = {at['c']}", at, 0.9) for at in CONSTANTS),
        *((f"LeNets, K {k:,}", {**LENETS, "k": k}, 0.3) for k in (1000, 16_000)),
    ]
    head = ("final accuracy, %", "smaller, larger model, %", "median time", "whole run")
    table: Table = [("setting", "policy", "seeds", *head, "rollbacks")]
    for (name, at, level), arm in itertools.product(tried, POLICIES):
        if not (runs := rows().of(arm, **at)):
            continue
        e, each = over(end, runs)[0], list(runs.values())
        within = f" [{100 * e.low:.1f}, {min(100, 100 * e.high):.1f}]" * bool(
            e.coverage
        )
        models = [
            f"{100 * np.mean([end(run, curve) for run in each]):.1f}"
            for curve in ("smaller", "larger")
        ]
        times, reached = zip(*(first_s(run, level) for run in each), strict=True)
        time, there = estimate_median_time(times, reached), sum(reached)
        bound = "" if time.is_exact else "> "
        table.append(
            (
                name,
                arm,
                str(len(each)),
                f"{100 * e.least:.1f}{within}",
                ", ".join(models),
                f"{bound}{time.least:.2f} s to {level:.0%} ({there} of {len(each)})",
                f"{np.mean([run.simulated_s for run in each]):.2f} s",
                f"{np.mean([run.rollbacks for run in each]):.0f}",
            )
        )
    return table


def stacks_table() -> Table:
    """Return the accuracies of the small world in which networks fall to chance."""
    table: Table = [("setting", *(f"{n} rounds, %" for n in range(20, 101, 20)))]
    for name, of_seeds in rows().stacks.groupby("variant", sort=False):
        each = 100 * np.array(of_seeds["smaller"].tolist()).T
        table.append((str(name), *(" / ".join(f"{x:.1f}" for x in at) for at in each)))
    return table


# --- numbers of sentences -------------------------------------------------------------


def numbers() -> dict[str, list[str]]:
    """Return how a sentence of the page begins → the numbers that it states."""
    return {
        **numbers_of_ascend(),
        **numbers_of_k(),
        **numbers_of_safeguard(),
        **numbers_of_credit(),
        **numbers_of_strategies(),
        **numbers_of_page(),
        **facts(),
    }


def count_state(checks: Sequence[Check], state: str) -> int:
    """Return how many comparisons have come to this."""
    return sum(check.state == state for check in checks)


def numbers_of_ascend() -> dict[str, list[str]]:
    """Return the numbers of the sentences that compare ASCEND with others in all
    settings.
    """
    of = rows().of

    def pairs(other: str) -> list[tuple[Runs, Runs]]:
        return [(of("ascend", **at), of(other, **at)) for at in SETTINGS.values()]

    def pooled(measure: Any, other: str) -> Estimate:
        """Over settings, with seeds as blocks: they share data, weights and batches."""
        each = pairs(other)
        gaps = [np.mean([measure(a[s], b[s]) for a, b in each]) for s in range(5)]
        return estimate_mean([float(one) for one in gaps])

    def log_ratio(a: Any, b: Any) -> float:
        return math.log(first_s(b, 0.9)[0] / first_s(a, 0.9)[0])

    top = [
        Check("", *over(lambda a, b: mean(a) - mean(b), *two)) for two in pairs("top-k")
    ]
    below, above = count_state(top, FAILS), count_state(top, HOLDS)
    wrong = [ratio(*two) for arm in FIXED[1:] for two in pairs(arm)]
    sides = Counter(one.clear for one in wrong)
    middle = [one.ratio.least for one in wrong]
    soon = powers(pooled(log_ratio, "exp3"))
    exp3 = checks_of("ASCEND is ahead of EXP3")
    ahead, behind = count_state(exp3, HOLDS), count_state(exp3, FAILS)
    return {
        "Choosing per client": [
            points(pooled(lambda a, b: mean(a) - mean(b), "top-k")),
            f"lower in {below} and clearly higher in {above}",
            f"leaves {left_by_holm(top).count('stays')}.",
        ],
        "What it does is": [
            f"in {sides[1]} and clearly later in {sides[-1]} of {len(wrong)} "
            f"comparisons",
            f"{np.median(middle):.1f} times as soon",
        ],
        "Beside EXP3": [
            f"{soon.least:.3f} times as soon [{soon.low:.3f}, {soon.high:.3f}]",
            points(pooled(lambda a, b: end(a) - end(b), "exp3")),
            f"of {len(exp3)} single comparisons",
            f"in {ahead} and behind in {behind}",
        ],
    }


def checks_of(text: str) -> list[Check]:
    """Return the comparisons of a claim."""
    return next(claim.checks for claim in compared() if claim.text == text)


def numbers_of_k() -> dict[str, list[str]]:
    """Return the numbers of the sentences on how many entries travel."""
    said = []
    for axis, word in (("round", "round"), ("second", "simulated second")):
        checks = checks_of(f"A larger K converges faster, per {axis}")
        held = f"{count_state(checks, HOLDS)} of {len(checks)} comparisons and fails"
        said.append(f"per {word} it does in {held} in {count_state(checks, FAILS)}")
    hang = held_by_choice(
        [one for one in read() if one.claim == "A larger K learns faster"]
    )
    rates = [f"{100 * share:.0f} %" for share in hang["axis"].values()]
    dense, sparse = rows().of("dense"), rows().of("top-k")
    fewer = np.mean([dense[s].uplink_bytes / sparse[s].uplink_bytes for s in sparse])
    times = ratio(sparse, dense).ratio
    return {
        "Whether a larger K": [*said, " and ".join(rates)],
        "Top-K with K = 1,000": [
            f"1/{fewer:.0f} of",
            f"{times.least:.2f} times [{times.low:.2f}, {times.high:.2f}] as soon",
            points(gap(sparse, dense)),
        ],
    }


def numbers_of_safeguard() -> dict[str, list[str]]:
    """Return the numbers of the sentences on rounds that are undone."""
    runs, second = guarded("as taken")
    whole = [attempts(run) for run in rows().all if usual_safeguard(run)]
    each = [one for of_run in whole for one in of_run]
    medians = [
        f"{np.median([one.times for one in guarded(name)[1]]):.1f}"
        for name in ("residuals by half", "residuals as sent", "as taken")
    ]
    return {
        "The safeguard against": [
            f"of {len(second)} second attempts in {len(runs)} seeds",
            again(second),
            f"({sum(map(bool, whole))} runs) these are {len(each):,}",
            again(each),
            points(gap(runs, guarded("off")[0], mean)),
        ],
        "Why do second attempts fail?": [
            f"{medians[0]} or {medians[1]} times the first's in place of {medians[2]} "
            f"times"
        ],
    }


def numbers_of_credit() -> dict[str, list[str]]:
    """Return the numbers of the sentences on the source's open points."""
    stay = Counter(e.factor for *_, effects in asked(1000) for e in effects if e.stays)
    by_short = {question.short: cells for question, cells, _ in asked(1000)}
    said = []
    for there in (False, True):
        half, even = (
            [c.state == HOLDS for c in by_short[name] if there is (PRINTED in c.others)]
            for name in ("LeNet5-half: Top-K's lead", "LeNet5: evenness")
        )
        assert not any(a and b for a, b in zip(half, even, strict=True))
        said.append(
            f"in {sum(half)} and the second in {sum(even)} of {len(half)} settings"
        )
    return {
        "Of 6 measures": [f"*{FACTORS[f]}* changes {n}" for f, n in stay.most_common()],
        "No reading of the credit": said,
    }


def numbers_of_strategies() -> dict[str, list[str]]:
    """Return the numbers of the sentences on CIFAR-10 and on what compression takes."""
    of = rows().of
    lenets: list[dict[str, Any]] = [{**LENETS, "k": k} for k in (1000, 16_000)]
    small, large = (rows().at(**at) for at in lenets)
    leads = [gap(small("top-k"), small(arm)) for arm in FIXED[1:]]
    plain = [run for run in rows().all if not run.variant]
    share = {
        name: max(r.compression_share for r in plain if r.dataset == name)
        for name in ("mnist", "cifar10")
    }
    ends = [
        ratio(of("top-k", up_mbps=up), of("random-k", up_mbps=up), 0.8).ratio.least
        for up in (5, 500)
    ]
    return {
        "On CIFAR-10, with LeNets": [
            f"reach {100 * over(end, small('top-k'))[0].least:.0f} %",
            points(min(leads, key=lambda e: e.least), 1),
            f"within {fixed_spread(large):.1f} points",
            points(gap(small("ascend"), small("top-k")), 1),
        ],
        "With the source's own table": [
            f"{100 * share['mnist']:.2g} % of a round on MNIST",
            f"{100 * share['cifar10']:.2g} % of a round on CIFAR-10",
            f"changes by {100 * abs(ends[0] / ends[1] - 1):.2g} %",
        ],
    }


def numbers_of_page() -> dict[str, list[str]]:
    """Return the numbers of the sentences on what was played and judged."""
    verdicts = Counter(claim.verdict for claim in compared())
    words = (*STATES, "follows from the set-up", "not run", "not comparable")
    spans = []
    for name in ("ρ = 0.6, β = 0.4 are good", "c = 3 is good"):
        gaps = [0.0, *(check.estimate.least for check in checks_of(name))]
        spans.append(f"{100 * (max(gaps) - min(gaps)):.2f} points")
    return {
        "**So far:**": [
            f"{len(rows().all)} of ",
            f"by {len({run.code for run in rows().all})} versions",
            f"of {verdicts.total()} claims: "
            + ", ".join(f"{w} {verdicts[w]}" for w in words if w in verdicts),
        ],
        "Over the whole": spans,
    }


PRINTED = next(iter(FACTORS))


def usual_safeguard(run: Any) -> bool:
    """Return whether a run's safeguard is as taken, whatever else is set."""
    changed = {
        words for variant in SAFEGUARDS.values() for words in variant.split(", ")
    } - {""}
    return run.policy == "ascend" and changed.isdisjoint(run.variant.split(", "))


def again(of: Sequence[Any]) -> str:
    """Return how second attempts go, in words."""
    exceed, worse = (
        100 * np.mean(x) for x in ([o.again for o in of], [o.times > 1 for o in of])
    )
    return (
        f"{exceed:.0f} % exceed the threshold again and {worse:.0f} % have a "
        f"higher loss"
    )


def fixed_spread(of: Any) -> float:
    """Return how far apart fixed strategies end, in points."""
    ends = [over(end, of(arm))[0].least for arm in FIXED]
    return 100 * (max(ends) - min(ends))


def facts() -> dict[str, list[str]]:
    """Return the numbers of what the page says beside."""
    of = rows().of
    ks = {k: list(of("ascend", k=k).values()) for k in (500, 1000, 5000)}
    runs = [run for each in ks.values() for run in each]
    undone = [100 * run.rollbacks / run.rounds for run in runs]
    plays = sum(10 * run.rounds for run in runs)
    lengths = {
        k: np.mean(
            [r.simulated_s / r.rounds for arm in FIXED for r in of(arm, k=k).values()]
        )
        for k in ks
    }
    top = [r.larger_chose[0] / r.larger_chose.sum() for r in of("ascend").values()]
    larger = partial(end, curve="larger")
    higher = [gap(of("top-k"), of(arm), larger) for arm in FIXED[1:]]
    return {
        "A round lasts": [
            f"{1000 * s:.2f} ms at K = {k:,}" for k, s in lengths.items()
        ],
        "Rewards that hit": [
            f"{100 * sum(r.clipped for r in each) / sum(r.rewards for r in each):.0f} "
            f"% at K = {k:,}"
            for k, each in ks.items()
        ],
        "ASCEND's safeguard": [
            f"{min(undone):.1f} to {max(undone):.1f} %",
            f"in {100 * sum(r.forced for r in runs) / plays:.1f} % of all choices",
            f"in {100 * sum(r.random for r in runs) / plays:.0f} % of its plays",
        ],
        "LeNet5 plays Top-K": [
            f"{100 * min(top):.1f} to {100 * max(top):.1f} % of its free choices",
            *(points(e, 1).replace("+", "") for e in higher),
        ],
        "Fixed strategies end": [f"{fixed_spread(rows().at(k=5000)):.2f} points"],
    }


if __name__ == "__main__":
    for name, draw in FIGURES.items():
        save_picture(draw(rows()), PAGE.parent / "figures" / f"{name}.png", dpi=160)
    write_page("paper")
    for sentence, parts in numbers().items():
        print(f"{sentence} …", *parts, sep="\n    ")
