"""Laws of what an app's messages take, fitted to a few plays of it (needs scipy).

A law is a sum of at most four terms with coefficients of at least 0, fitted to
*relative* errors: a constant, and products of what can be seen from outside, such as
`num_examples * local_epochs`, `ceil(num_examples / batch_size)` or `1 / nodes`. Which
settings may come in, and which way, is read off the plays that vary one alone
(`Effect`), so what changes nothing is no term by chance. Terms are taken up, exchanged
and dropped by the error of whole plays that were left out, from a constant up and from
all terms down, as a step at a time may get stuck. What a reply and the settings say is
tried first; bytes only where that leaves more than `GOOD` of error.

What is ignored: dependence on an app's state and on its data's values; products of two
metrics. Rates, losses and other metrics that are no whole numbers cannot size anything
and are passed over, and so are counters.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np

from simfed.calibrate.fit import fit_relative
from simfed.device.noise import Measured, take_quantiles
from simfed.flower.workfile import (
    KindLaw,
    LawError,
    LawPlay,
    Visible,
    round_number,
    select_numbers,
)
from simfed.ground.arithmetic import read_arithmetic
from simfed.ground.arrays import Bools, Floats
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain

GOOD = 0.05
"""Held-out error below which a law asks for nothing further."""
_MOST_TERMS = 4
_MOST_FACTORS = 3
"""Settings that one term may be multiplied by."""
_MOST_TEXTS = 12
"""Different values of a text that tells kinds apart; more are names and dates."""
_SCATTER_FROM = 20
"""Messages from which scatter is their quantiles; fewer give a standard deviation
alone."""
_LEAST_EFFECT = 0.05
"""The least change of a kind's seconds, in log and over all its sizes, that makes a
setting one of its sizes."""
_CHANCE = 0.35
"""A term must mend so much of what plays of the same differ by."""
_NO_WEIGHT = 1e-3
_BYTES = ("bytes_down", "bytes_up")


@dataclass(frozen=True)
class MessageRow:
    """One message of one play, as laws are fitted to.

    `simfed.flower.probing` makes it from what a play said.
    """

    play: int
    visible: Visible
    run_config: Mapping[str, Plain]
    nodes: int
    work_s: float
    """Processor seconds, those of child processes included; the least of its
    `repeats`."""
    waited_s: float = 0.0
    first: bool = False
    """The first of its kind in its process."""
    round: int = 0
    """The exchange that it belongs to."""
    repeats: tuple[float, ...] = ()
    """The seconds in each repeat, of a play that was made more than once."""

    @cached_property
    def values(self) -> dict[str, float]:
        """The values that a law may name, as arithmetic spells them."""
        return self.visible.values(self.run_config, self.nodes)

    def settings(self) -> dict[str, float]:
        """Return the chosen numbers: those of run and node configuration, `nodes`."""
        chosen = {**self.run_config, **self.visible.node_config}
        return {**select_numbers(chosen), "nodes": float(self.nodes)}


def fit_kinds(rows: Sequence[MessageRow], names: Sequence[str] = ()) -> list[KindLaw]:
    """Return the laws of all kinds among these messages, those with most work first.

    Args:
        rows: messages of several plays, of which play number 0 is the one that the
        others vary.
        names: the plays', by their numbers, for the lines of each law's card; empty:
        laws have no card.

    Returns:
        A law per kind (type, action, telling texts): seconds of the machine that was
        measured, with the errors of plays that were left out of the fit.
    """
    total_s = sum(row.work_s for row in rows)
    laws = [
        _fit_kind(key, group, total_s, names)
        for key, group in group_kinds(rows).items()
    ]
    return sorted(laws, key=lambda law: -law.share)


# ---- kinds -------------------------------------------------------------------------

_Key = tuple[str, tuple[tuple[str, str], ...]]


def group_kinds(rows: Sequence[MessageRow]) -> dict[_Key, list[MessageRow]]:
    """Return messages by their type and those texts that tell kinds apart."""
    by_type: dict[str, list[MessageRow]] = defaultdict(list)
    for row in rows:
        by_type[row.visible.message_type].append(row)
    groups: dict[_Key, list[MessageRow]] = defaultdict(list)
    for message_type, alike in by_type.items():
        names = {name for row in alike for name in row.visible.texts}
        telling = sorted(name for name in names if _can_tell_kinds(name, alike))
        for row in alike:
            texts = row.visible.texts
            key = tuple((name, texts[name]) for name in telling if name in texts)
            groups[message_type, key].append(row)
    return groups


def _can_tell_kinds(name: str, rows: Sequence[MessageRow]) -> bool:
    """Return whether a text has few enough values to tell kinds apart.

    A text that nearly every message has anew is a name or a date.
    """
    texts = Counter(
        row.visible.texts[name] for row in rows if name in row.visible.texts
    )
    return len(texts) == 1 or (
        len(texts) <= _MOST_TEXTS and 2 * len(texts) <= len(rows)
    )


# ---- what a setting does -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one setting, varied alone, on a kind of message.

    It says whether the setting may be a term of the law, and which way.
    """

    setting: str
    seconds: Mapping[float, float]
    """Value → mean seconds of a message."""
    noise: float
    """The difference of plays of the same, in log."""

    @property
    def sure(self) -> bool:
        """True if it does more than chance."""
        return float(np.ptp(self._logs())) > max(_LEAST_EFFECT, 2 * self.noise)

    @property
    def ways(self) -> str:
        """`+` where seconds grow with it, `-` where they shrink.

        `+-` for both, or neither.
        """
        if not self.sure:
            return ""
        steps, slack = np.diff(self._logs()), max(_LEAST_EFFECT, self.noise)
        if (steps > -slack).all():
            return "+"
        return "-" if (steps < slack).all() else "+-"

    def _logs(self) -> Floats:
        """Return the logarithm of the seconds, in the order of the setting's values."""
        ordered = [self.seconds[value] for value in sorted(self.seconds)]
        return np.log(np.maximum(ordered, 1e-9))


def find_effects(rows: Sequence[MessageRow]) -> list[Effect]:
    """Return the effect of each setting varied alone, beside the first play.

    Args:
        rows: messages of one kind, of several plays.
    """
    noise = _estimate_noise(rows)
    seconds: dict[str, dict[float, float]] = defaultdict(dict)
    for setting, *pair in _list_changes(rows):
        for own in pair:
            value = _read_settings(own)[setting]
            seconds[setting][value] = _compare_means(pair[0], own)
    return [Effect(name, found, noise) for name, found in seconds.items()]


def _list_changes(
    rows: Sequence[MessageRow],
) -> Iterator[tuple[str, list[MessageRow], list[MessageRow]]]:
    """Yield the settings varied alone, each with the first play and another one."""
    plays = _group_plays(rows)
    base = plays[min(plays)]
    before = _read_settings(base)
    for own in plays.values():
        now = _read_settings(own)
        changed = [name for name, value in before.items() if now.get(name) != value]
        if len(changed) == 1:
            yield changed[0], base, own


def _group_plays(rows: Sequence[MessageRow]) -> dict[int, list[MessageRow]]:
    plays: dict[int, list[MessageRow]] = defaultdict(list)
    for row in rows:
        plays[row.play].append(row)
    return plays


def _read_settings(own: Sequence[MessageRow]) -> dict[str, float]:
    """Return the settings of a play, but for those in which its nodes are unlike."""
    return dict(set.intersection(*(set(row.settings().items()) for row in own)))


def _compare_means(base: Sequence[MessageRow], other: Sequence[MessageRow]) -> float:
    """Return mean seconds of a play's messages, in proportion to the first play's.

    Only exchanges that both have are compared: what grows from round to round is no
    effect of their number.

    Args:
        base: the first play's.
        other: the play's.
    """
    common = {row.round for row in base} & {row.round for row in other}
    pair = [
        float(np.mean([r.work_s for r in own if not common or r.round in common]))
        for own in (base, other)
    ]
    return float(np.mean([row.work_s for row in base])) * pair[1] / max(pair[0], 1e-9)


def differ(base: Sequence[MessageRow], other: Sequence[MessageRow]) -> bool:
    """Return whether two plays' messages of a kind differ by more than chance.

    Args:
        base: one play's messages.
        other: the other's.
    """
    seconds = {0.0: _compare_means(base, base), 1.0: _compare_means(base, other)}
    return Effect("", seconds, _estimate_noise([*base, *other])).sure


def estimate_repeat_error(rows: Sequence[MessageRow]) -> float:
    """Return the difference of plays' two least times, in log: their median.

    0 where plays were made once.
    """
    gaps = []
    for own in _group_plays(rows).values():
        fewest = min(len(row.repeats) for row in own)
        if fewest > 1:
            sums = np.sort(np.sum([row.repeats[:fewest] for row in own], axis=0))
            gaps.append(math.log(max(sums[1], 1e-9) / max(sums[0], 1e-9)))
    return float(np.median(gaps)) if gaps else 0.0


def _estimate_noise(rows: Sequence[MessageRow]) -> float:
    """Return by how much the means of two plays of the same differ, in log.

    Both are in it: what repeats of a play differ by, and what alike messages do.
    """
    groups = _gather_samples(rows, _list_amounts(rows))
    alike = [np.log(sample.times) for sample in groups if len(sample.times) > 1]
    within = sum(float(np.sum((logs - logs.mean()) ** 2)) for logs in alike)
    variance = within / max(1, sum(len(logs) - 1 for logs in alike))
    fewest = min(len(own) for own in _group_plays(rows).values())
    return math.hypot(estimate_repeat_error(rows), math.sqrt(2 * variance / fewest))


# ---- one kind ----------------------------------------------------------------------


def _fit_kind(
    key: _Key, rows: Sequence[MessageRow], total_s: float, names: Sequence[str]
) -> KindLaw:
    """Return the law of one kind of message.

    First messages are left out of the fit, as far as there are others; what they take
    on top is `first`.

    Args:
        key: type and telling texts.
        rows: its messages.
        total_s: work of all kinds, of which this one has a share.
        names: as for `fit_kinds`.
    """
    firsts = [row for row in rows if row.first]
    later = [row for row in rows if not row.first] or firsts
    whole = _list_amounts(later)
    amounts, varied = (
        [name for name in some if len({row.values[name] for row in later}) > 1]
        for some in (whole, _BYTES)
    )
    effects = [e for e in find_effects(later) if not _moves(e.setting, amounts, later)]
    telling = [*(effect.setting for effect in effects), *amounts, *varied]
    samples = _gather_samples(later, list(dict.fromkeys(telling)))
    fitter = _Fitter(samples, estimate_repeat_error(later))
    terms = fitter.choose(_list_tiers(effects, amounts, varied))
    text, verdict = fitter.write(terms), fitter.judge(terms)
    law = read_arithmetic(text)
    fitted = np.array([law(sample.values) for sample in samples])
    seconds = np.concatenate([sample.times for sample in samples])
    ratios = seconds / np.maximum(np.repeat(fitted, fitter.counts), 1e-12)
    errors, off = np.abs(1 / ratios - 1), np.expm1(verdict.sums)
    extra = [
        max(0.0, row.work_s - law(row.values)) for row in firsts if later is not firsts
    ]
    waited = float(np.median([row.waited_s for row in later]))
    alone = len(verdict.sums) < 2
    plays = []
    for number in np.unique(fitter.plays).tolist() if names else ():
        own = fitter.plays == number
        weights = fitter.counts[own]
        columns = {"measured": fitter.means, "fitted": fitted}
        if not alone:
            columns["unseen"] = verdict.unseen
        mean_s = {
            name: round_number(float(np.average(column[own], weights=weights)))
            for name, column in columns.items()
        }
        plays.append(LawPlay(play=names[number], messages=int(weights.sum()), **mean_s))
    return KindLaw(
        message=key[0],
        texts=dict(key[1]),
        seconds=text,
        waits=round_number(waited)
        if waited > 0.05 * float(np.median(seconds))
        else 0.0,
        first=round_number(float(np.median(extra))) if extra else 0.0,
        scatter=_estimate_scatter(_compare_alike(samples, ratios)),
        ranges=_find_ranges(later, {*law.names, *whole, "bytes_down"}),
        messages=len(later),
        share=round(sum(row.work_s for row in rows) / max(total_s, 1e-12), 4),
        error=LawError(
            median=round_number(float(np.median(errors))),
            worst=round_number(float(errors.max())),
            held_out=None if alone else round_number(float(np.median(off))),
            held_out_worst=None if alone else round_number(float(off.max())),
        ),
        plays=plays,
    )


def _estimate_scatter(factors: Floats) -> dict[str, Plain]:
    """Return scatter as a profile writes it; empty from too few messages.

    Nodes that are unlike in what nobody sees, such as one that trains for twice the
    epochs, make two heaps, which no law of scatter has: so it is quantiles.
    """
    if len(factors) >= _SCATTER_FROM:
        return take_quantiles(factors).written()
    if len(factors) < 3:
        return {}
    return Measured(float(np.std(np.log(factors)))).written()


def _find_ranges(
    rows: Sequence[MessageRow], names: set[str]
) -> dict[str, tuple[float, float]]:
    return {
        name: (round_number(min(column)), round_number(max(column)))
        for name in sorted(names)
        if (column := [row.values[name] for row in rows if name in row.values])
    }


class _Sample(NamedTuple):
    """Messages of a play that are alike in all that a law may name."""

    play: int
    values: Mapping[str, float]
    times: Floats

    @property
    def seconds(self) -> float:
        """Their mean, without what a collector of garbage took once.

        Several that take longer are unlike nodes, and count.
        """
        *others, last = np.sort(self.times)
        once = len(others) > 1 and last > 1.5 * others[-1]
        return float(np.mean(others if once else self.times))


def _gather_samples(rows: Sequence[MessageRow], names: Sequence[str]) -> list[_Sample]:
    """Return the messages of each play that have the same values of these names."""
    groups: dict[tuple[float, ...], list[MessageRow]] = defaultdict(list)
    for row in rows:
        key = (row.play, *(row.values[name] for name in names))
        groups[key].append(row)
    return [
        _Sample(
            alike[0].play,
            alike[0].values,
            np.array([max(row.work_s, 1e-9) for row in alike]),
        )
        for alike in groups.values()
    ]


def _compare_alike(samples: Sequence[_Sample], around_law: Floats) -> Floats:
    """Return seconds of messages beside those of their play that are alike.

    By how far the law is off is no chance, and would be drawn anew for every message.
    Where few are alike it is around the law.
    """
    alike = [s.times / s.seconds for s in samples if len(s.times) > 2]
    if sum(map(len, alike)) < len(around_law) / 2:
        return around_law
    return np.concatenate(alike)


# ---- terms by whole plays left out -------------------------------------------------


class _Verdict(NamedTuple):
    """The errors of a law on plays that were left out."""

    unseen: Floats
    """Seconds of each sample, by the law that has not seen its play."""
    rows: Floats
    """Squared errors of each message, in log: unlike nodes hide no bias in them."""
    sums: Floats
    """Errors of each play's sum, in log."""
    score: float
    """The mean over plays, half of their samples and half of their sums."""


class _Fitter:
    """Chooses the terms of a law, and fits their coefficients.

    A *term* is arithmetic over what can be seen, of which it keeps the value in every
    sample (`_columns`).
    """

    def __init__(self, samples: Sequence[_Sample], noise: float) -> None:
        """`noise`: what plays of the same differ by, in log."""
        self._samples = samples
        self.seconds = np.array([sample.seconds for sample in samples])
        self.plays = np.array([sample.play for sample in samples])
        self.counts = np.array([len(sample.times) for sample in samples])
        self.means = np.array([sample.times.mean() for sample in samples])
        self._around = np.log(np.concatenate([s.times / s.seconds for s in samples]))
        _, place, counts = np.unique(
            self.plays, return_inverse=True, return_counts=True
        )
        self._weights = 1 / np.sqrt(counts[place])  # all plays count alike
        self._columns = {"1": np.ones(len(samples))}
        self._chance = _CHANCE * noise
        self._judged: dict[tuple[str, ...], _Verdict] = {}

    def choose(self, tiers: Iterator[list[str]]) -> list[str]:
        """Return the terms by which plays that were left out come out best.

        Args:
            tiers: lists of terms; the next one is asked for where the error is above
            `GOOD`.
        """
        best, pool = ["1"], ["1"]
        for tier in tiers:
            pool += [text for text in tier if self._add_column(text)]
            # two ways there, as a step at a time may get stuck
            for start in (best, self._find_support(pool)):
                found = self._drop(self._climb(self._drop(start), pool))
                best = self._find_better(best, [found]) or best
            if self.judge(best).score <= GOOD:
                break
        return best

    def write(self, terms: Sequence[str]) -> str:
        """Return the law as arithmetic; a term of no weight is not there."""
        solved = self._solve(terms)
        least = _NO_WEIGHT * float(np.median(self.seconds))
        parts = [
            f"{number:.5g}" if term == "1" else f"{number:.5g} * {term}"
            for term, number in zip(terms, solved, strict=True)
            if number * self._columns[term].max() > least
        ]
        return " + ".join(parts) or "0"

    def judge(self, terms: Sequence[str]) -> _Verdict:
        """Return how far off each play is by the law that is fitted to the others.

        With one play it is the law that has seen it.
        """
        key = tuple(sorted(terms))
        if key not in self._judged:
            design, predicted = self._build_design(terms), np.empty(len(self.seconds))
            masks = [self.plays == number for number in np.unique(self.plays)]
            for out in masks:
                solved = self._solve(terms, ~out if len(masks) > 1 else out)
                predicted[out] = np.maximum(design[out] @ solved, 1e-9)
            off = np.log(predicted / self.seconds)
            sums = [math.log(predicted[m].sum() / self.seconds[m].sum()) for m in masks]
            rows = [float(np.abs(off[mask]).mean()) for mask in masks]
            self._judged[key] = _Verdict(
                predicted,
                (np.repeat(off, self.counts) - self._around) ** 2,
                np.abs(sums),
                float(np.mean([*np.abs(sums), *rows])),
            )
        return self._judged[key]

    def _add_column(self, text: str) -> bool:
        """Keep a term's value in every sample.

        False: it has none, or the same in all.
        """
        try:
            parsed = read_arithmetic(text)
            column = np.array([parsed(sample.values) for sample in self._samples])
        except InputError:  # a setting that was 0, a metric that is not always there
            return False
        if np.ptp(column) > 0 and column.min() >= 0:
            self._columns[text] = column
        return text in self._columns

    def _build_design(self, terms: Sequence[str]) -> Floats:
        return np.column_stack([self._columns[term] for term in terms])

    def _solve(self, terms: Sequence[str], keep: Bools | slice = slice(None)) -> Floats:
        """Return coefficients ≥ 0 of the smallest relative errors.

        Wild rows count less.

        Args:
            terms: of the law.
            keep: the samples that it is fitted to; all if omitted.
        """
        relative = self._build_design(terms)[keep] / self.seconds[keep][:, None]
        return fit_relative(relative, self._weights[keep])

    def _find_support(self, pool: Sequence[str]) -> list[str]:
        """Return the terms that a fit of all of them to all plays gives any weight."""
        solved = self._solve(pool)
        return [
            text for text, number in zip(pool, solved, strict=True) if number > 0
        ] or ["1"]

    def _climb(self, best: list[str], pool: Sequence[str]) -> list[str]:
        """Take up terms, or exchange one, as long as that is clearly better."""
        while True:
            new = [term for term in pool if term not in best]
            tries = [[*best, term] for term in new if len(best) < _MOST_TERMS]
            tries += [
                [term if one == old else one for one in best]
                for old in best
                for term in new
            ]
            better = self._find_better(best, tries)
            if better is None:
                return best
            best = better

    def _drop(self, best: list[str]) -> list[str]:
        """Leave out what hardly helps, or is beyond the most that a law may have."""
        while len(best) > 1:
            each = [[term for term in best if term != old] for old in best]
            least = min(each, key=lambda terms: self.judge(terms).score)
            if len(best) <= _MOST_TERMS and self._find_better(least, [best]):
                break
            best = least
        return best

    def _find_better(self, best: list[str], tries: list[list[str]]) -> list[str] | None:
        """Return, of laws that are nearly as good as the best, the shortest.

        Args:
            best: the terms so far.
            tries: other laws' terms; longer ones must be better by more than chance.

        Returns:
            None where none is better by enough.
        """
        verdict, better = self.judge(best), []
        for terms in tries:
            own = self.judge(terms)
            needed = 0.97 * verdict.score
            if _count_parts(terms) > _count_parts(best):
                needed = min(
                    0.9 * verdict.score, verdict.score - max(0.004, self._chance)
                )
                if not _is_sure(verdict.rows, own.rows):
                    continue
            if own.score < needed:
                better.append((own.score, terms))
        least = min((score for score, _ in better), default=0.0)
        near = [terms for score, terms in better if score <= 1.05 * least + 0.001]
        return min(near, key=_count_parts, default=None)


def _is_sure(before: Floats, after: Floats) -> bool:
    """Return whether errors fell by more than chance would have it."""
    gains = before - after
    # where a law is far off some messages alone, gains differ by more than chance: what
    # is left then tells how much that is
    chance = min(float(gains.std()), float(after.std()))
    return float(gains.mean()) > 3 * chance / math.sqrt(len(gains))


def _count_parts(terms: Sequence[str]) -> tuple[int, int]:
    return len(terms), sum(len(read_arithmetic(term).names) for term in terms)


# ---- terms -------------------------------------------------------------------------


def _list_tiers(
    effects: Sequence[Effect], amounts: Sequence[str], varied: Sequence[str]
) -> Iterator[list[str]]:
    """Yield lists of terms by what they ask for, replies and settings before bytes.

    Terms are amounts times settings (epochs), in pieces of a setting (batches), nodes,
    and pairs of them.

    Args:
        effects: of settings that were varied alone.
        amounts: whole numbers of replies and configurations that differ.
        varied: bytes that differ.
    """
    ways = {e.setting: e.ways for e in effects if e.ways}
    counts = next((len(e.seconds) for e in effects if e.setting == "nodes"), 0)
    of_nodes = ways.pop("nodes", "")
    grow = [name for name, way in ways.items() if "+" in way]
    shrink = [name for name, way in ways.items() if "-" in way]
    products = [
        some for n in range(_MOST_FACTORS + 1) for some in combinations(grow, n)
    ]
    # a power of the nodes that no play has shown to grow would be wild among thousands,
    # and two numbers of nodes do not tell a line from a parabola
    nodes = ["nodes", "nodes * nodes"][: counts - 1] if "+" in of_nodes else []
    heads = [
        *amounts,
        *nodes,
        *(f"ceil({a} / {over})" for a in amounts for over in shrink),
    ]
    heads += [f"1 / {over}" for over in shrink]
    if not amounts and "-" in of_nodes:  # what nodes share among them
        heads += ["1 / nodes", *(f"1 / nodes / {over}" for over in shrink)]
    factors = [
        [part for part in (head, *some) if part]
        for some in products
        for head in (*heads, "")
        if (head or some) and not set(some) & _find_divisors(head)
    ]
    yield [" * ".join(parts) for parts in factors]
    # rows beyond a cache, trees that are deeper: one factor once more
    powers = {*grow, *amounts}
    yield [
        " * ".join((*parts, part))
        for parts in factors
        for part in parts
        if part in powers
    ]
    yield [" * ".join((name, *some)) for some in products for name in varied]
    yield [f"{name} * {amount}" for name in varied for amount in amounts]


def _find_divisors(head: str) -> set[str]:
    """Return what a term is divided by, which may not be among its factors."""
    return {part.rstrip(")") for part in head.split(" / ")[1:]}


def _list_amounts(rows: Sequence[MessageRow]) -> list[str]:
    """Return the names of whole numbers that may size work, but for counters.

    They are of replies, and of messages' and nodes' configurations.
    """
    names = dict.fromkeys(
        name
        for row in rows
        for shown in (row.visible.reply, row.visible.config, row.visible.node_config)
        for name in select_numbers(shown)
    )
    amounts = []
    for name in names:
        column = [row.values.get(name, math.nan) for row in rows]
        whole = all(value >= 0 and value.is_integer() for value in column)
        if whole and max(column) >= 2 and not _counts(name, rows):
            amounts.append(name)
    return amounts


def _counts(name: str, rows: Sequence[MessageRow]) -> bool:
    """Return whether a number is a counter.

    It is the same at every node of an exchange, and grows by one with each.

    Args:
        name: the number's.
        rows: messages of one kind.
    """
    longest = 0
    for own in _group_plays(rows).values():
        rounds: dict[int, set[float]] = defaultdict(set)
        for row in own:
            rounds[row.round].add(row.values[name])
        steps = [rounds[number] for number in sorted(rounds)]
        first = min(steps[0])
        if steps != [{first + nth} for nth in range(len(steps))]:
            return False
        longest = max(longest, len(steps))
    return longest > 1


def _moves(setting: str, amounts: Sequence[str], rows: Sequence[MessageRow]) -> bool:
    """Return whether a setting, varied alone, moves an amount.

    Then that is how it sizes work. The number of nodes may do both.
    """
    return setting != "nodes" and any(
        {row.values[name] for row in own} != {row.values[name] for row in base}
        for changed, base, own in _list_changes(rows)
        if changed == setting
        for name in amounts
        if name != setting
    )
