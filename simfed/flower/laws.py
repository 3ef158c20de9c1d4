"""Laws of what an app's messages take, fitted to a few plays of it (needs scipy).

A law is a sum of at most four terms with coefficients of at least 0, fitted to *relative* errors: a
constant, and products of what can be seen from outside, such as `num_examples * local_epochs`,
`ceil(num_examples / batch_size)` or `1 / nodes`. Terms are taken up one after the other, as long as
messages that were left out come out clearly better, and by more than two plays of the same differ;
of terms that are nearly as good, the one by
which whole plays that were left out come out best. What a reply and the settings say is tried
first, counted passes only where that leaves more than `GOOD` of error, bytes last.

What is ignored: dependence on an app's state and on its data's values; products of two metrics.
Rates, losses and other metrics that are no whole numbers cannot size anything and are passed over.
"""

from __future__ import annotations

import keyword
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from scipy import optimize

from simfed.device.noise import Measured, fit_noise
from simfed.flower.workfile import COUNTED, KindLaw, LawError, Visible, select_numbers
from simfed.ground.arithmetic import read_arithmetic, spell_name
from simfed.ground.arrays import Bools, Floats
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain

__all__ = ["GOOD", "MessageRow", "fit_kinds", "needs_counts"]


GOOD = 0.05
"""Held-out error below which a law asks for nothing further."""
_MOST_TERMS = 4
_MOST_TEXTS = 12
"""Different values of a text that tells kinds apart; more are names and dates."""
_SCATTER_FROM = 20
"""Messages from which their scatter is fitted; fewer give a standard deviation alone."""
_BYTES = ("bytes_down", "bytes_up")


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One message of one play."""

    play: int
    visible: Visible
    run_config: Mapping[str, Plain]
    nodes: int
    work_s: float
    """Processor seconds, those of child processes included; the lesser of its `repeats`."""
    waited_s: float = 0.0
    first: bool = False
    """The first of its kind in its process."""
    round: int = 0
    """The exchange that it belongs to."""
    repeats: tuple[float, ...] = ()
    """Of a play that was made more than once, the seconds in each."""
    readings: int = 0
    """How often the app read its clock."""
    values: dict[str, float] = field(init=False, repr=False)
    """What a law may name, as arithmetic spells it."""

    def __post_init__(self) -> None:
        values = self.visible.values(self.run_config, self.nodes)
        spelled = {spell_name(name): value for name, value in values.items()}
        usable = {n: float(v) for n, v in spelled.items() if _is_name(n) and math.isfinite(v)}
        object.__setattr__(self, "values", usable)


def _is_name(name: str) -> bool:
    reserved = keyword.iskeyword(name) or name in ("min", "max", "ceil")
    return name.isidentifier() and not reserved


def fit_kinds(rows: Sequence[MessageRow]) -> list[KindLaw]:
    """The laws of all kinds among these messages, those with most work first."""
    total_s = sum(row.work_s for row in rows)
    laws = [_fit_kind(key, group, total_s) for key, group in _group_kinds(rows).items()]
    return sorted(laws, key=lambda law: -law.share)


def needs_counts(laws: Sequence[KindLaw]) -> bool:
    """Whether a kind with much of the work has a law that counted passes may mend."""
    return any(
        law.share >= GOOD and (law.error.held_out is None or law.error.held_out > GOOD)
        for law in laws
    )


# ---- kinds ---------------------------------------------------------------------------------------

_Key = tuple[str, tuple[tuple[str, str], ...]]


def _group_kinds(rows: Sequence[MessageRow]) -> dict[_Key, list[MessageRow]]:
    """Messages by their type and those texts of their configuration that tell kinds apart."""
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
    texts = Counter(row.visible.texts[name] for row in rows if name in row.visible.texts)
    return len(texts) == 1 or (len(texts) <= _MOST_TEXTS and 2 * len(texts) <= len(rows))


# ---- one kind ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Term:
    text: str
    """As arithmetic; empty: a constant."""
    column: Floats
    """Its value in every row."""


@dataclass(frozen=True, slots=True)
class _Fit:
    terms: tuple[_Term, ...]
    coefficients: Floats
    errors: Floats
    """Of messages that were left out, in log."""
    score: float
    """Error of messages that were left out, and of their sums per play, in the mean."""
    held_out: Floats
    """Errors of the sums of whole plays that were left out; NaN where there is one play."""

    def seconds(self) -> Floats:
        """By the law, in every row."""
        return _build_design(self.terms) @ self.coefficients


def _fit_kind(key: _Key, rows: Sequence[MessageRow], total_s: float) -> KindLaw:
    firsts = [row for row in rows if row.first]
    later = [row for row in rows if not row.first] or firsts
    seconds = np.array([max(row.work_s, 1e-9) for row in later])
    plays = np.array([row.play for row in later])
    fit = _choose_terms(later, seconds, plays)
    predicted = np.maximum(fit.seconds(), 1e-12)
    errors = np.abs(predicted / seconds - 1)
    text = _format_law(fit)
    law = read_arithmetic(text)
    extra = [max(0.0, row.work_s - law(row.values)) for row in firsts if later is not firsts]
    waited = float(np.median([row.waited_s for row in later]))
    unknown = bool(np.isnan(fit.held_out).any())
    return KindLaw(
        message=key[0],
        texts=dict(key[1]),
        seconds=text,
        waits=_round_number(waited) if waited > 0.05 * float(np.median(seconds)) else 0.0,
        first=_round_number(float(np.median(extra))) if extra else 0.0,
        scatter=_estimate_scatter(seconds / predicted),
        ranges=_find_ranges(later, set(law.names)),
        messages=len(later),
        share=round(sum(row.work_s for row in rows) / max(total_s, 1e-12), 4),
        error=LawError(
            median=_round_number(float(np.median(errors))),
            worst=_round_number(float(errors.max())),
            held_out=None if unknown else _round_number(float(np.median(fit.held_out))),
            held_out_worst=None if unknown else _round_number(float(fit.held_out.max())),
        ),
    )


def _round_number(value: float) -> float:
    return float(f"{value:.4g}")


def _estimate_scatter(factors: Floats) -> dict[str, Plain]:
    if len(factors) >= _SCATTER_FROM:
        return fit_noise(factors).written()
    if len(factors) < 3:
        return {}
    return Measured(float(np.std(np.log(factors)))).written()


def _find_ranges(rows: Sequence[MessageRow], names: set[str]) -> dict[str, tuple[float, float]]:
    """Of what the law names, what sizes a message, and the bytes that it comes with."""
    watched = names | set(_list_amounts(rows, varied=False)) | {"bytes_down"}
    columns = {
        name: [row.values[name] for row in rows if name in row.values] for name in sorted(watched)
    }
    return {
        name: (_round_number(min(column)), _round_number(max(column)))
        for name, column in columns.items()
        if column
    }


def _choose_terms(rows: Sequence[MessageRow], seconds: Floats, plays: Floats) -> _Fit:
    """Take up terms as long as plays that were left out come out clearly better."""
    constant = _Term("", np.ones(len(rows)))
    best = _fit_terms([constant], seconds, plays)
    chance = _CHANCE * _estimate_repeat_error(rows, plays)
    pool: list[_Term] = []
    for tier in _list_tiers(rows):
        pool += tier
        while len(best.terms) < _MOST_TERMS and best.score > max(GOOD / 5, chance):
            better = _find_better_fit(best, pool, seconds, plays)
            if better is None:
                break
            best = better
        if best.score <= max(GOOD, chance):
            break
    # a term of no weight in all plays may take over where one is left out
    present = [
        term
        for term, weighs in zip(best.terms, _weigh_terms(best) > _NO_WEIGHT, strict=True)
        if weighs
    ]
    return _fit_terms(present, seconds, plays) if present else best


_CHANCE = 1.5
"""So far above what two plays of the same differ by, an error is worth a term. Of twelve made-up
kinds that take always as long, with 5 % of chance between plays, 8 get a term at 0, 3 at 1, 2 at
1.5; laws with true terms are as near at 1.5, and further off at 2."""


def _estimate_repeat_error(rows: Sequence[MessageRow], plays: Floats) -> float:
    """How far apart two times of one play are in the median, in log: what a law need not explain.
    0 where plays were made once."""
    if not all(row.repeats for row in rows):
        return 0.0
    times = np.maximum([row.repeats for row in rows], 1e-9)
    sums = np.array([times[plays == number].sum(axis=0) for number in np.unique(plays)])
    return float(np.median(np.log(sums.max(axis=1) / sums.min(axis=1))))


def _find_better_fit(
    best: _Fit, pool: Sequence[_Term], seconds: Floats, plays: Floats
) -> _Fit | None:
    """The best law with a term more; None: none is better by 10 %, by half a percent, and by three
    standard errors of what it is better."""
    present = {term.text for term in best.terms}
    fits = [
        _fit_terms([*best.terms, term], seconds, plays) for term in pool if term.text not in present
    ]
    least = min((fit.score for fit in fits), default=math.inf)
    if least >= min(0.9 * best.score, best.score - 0.005):
        return None
    near = [
        fit
        for fit in fits
        if fit.score <= max(1.1 * least, least + 0.005) and _is_sure(best.errors, fit.errors)
    ]
    if not near:
        return None
    # of equals the first: nothing tells a line from a parabola where nodes had two numbers
    return min(
        near, key=lambda fit: round(fit.score + float(np.nan_to_num(fit.held_out).mean()), 9)
    )


def _is_sure(before: Floats, after: Floats) -> bool:
    """Whether errors fell by more than chance would have it."""
    gains = before - after
    # where a law is far off some messages alone, gains differ by more than chance: what is left
    # then tells how much that is
    chance = min(float(gains.std()), float(after.std()))
    return float(gains.mean()) > 3 * chance / math.sqrt(len(gains))


_FOLDS = 4


def _fit_terms(terms: Sequence[_Term], seconds: Floats, plays: Floats) -> _Fit:
    """Fit to all rows; and to all but some, to see how far off those are."""
    design = _build_design(terms)

    def without(out: Bools) -> Floats:
        """Seconds of the rows under the mask, by the law that is fitted to the others."""
        coefficients = _fit_coefficients(design[~out], seconds[~out])
        return np.asarray(np.maximum(design[out] @ coefficients, 1e-9))

    predicted = np.array(seconds)
    folds = np.arange(len(seconds)) % _FOLDS
    for fold in np.unique(folds):
        if not (folds == fold).all():
            predicted[folds == fold] = without(folds == fold)
    numbers = np.unique(plays)
    masks = [plays == number for number in numbers] if len(numbers) > 1 else []
    sums = [abs(math.log(predicted[mask].sum() / seconds[mask].sum())) for mask in masks]
    errors = np.abs(np.log(predicted / seconds))
    score = np.mean([errors.mean(), np.mean(sums or [0.0])])
    held_out = [abs(math.log(without(mask).sum() / seconds[mask].sum())) for mask in masks]
    solved = _fit_coefficients(design, seconds)
    off = np.expm1(np.array(held_out or [math.nan]))
    return _Fit(tuple(terms), solved, errors, float(score), off)


def _build_design(terms: Sequence[_Term]) -> Floats:
    return np.column_stack([term.column for term in terms])


def _fit_coefficients(design: Floats, seconds: Floats) -> Floats:
    """Coefficients ≥ 0 of the smallest relative errors, wild rows counting less."""
    relative = design / seconds[:, None]
    scale = np.maximum(relative.max(axis=0), 1e-300)
    scaled, weights = relative / scale, np.ones(len(seconds))
    for _ in range(3):
        root = np.sqrt(weights)
        coefficients, _ = optimize.nnls(scaled * root[:, None], root)
        errors = np.abs(scaled @ coefficients - 1)
        usual = max(0.01, 1.4826 * float(np.median(errors)))
        weights = 1 / np.sqrt(1 + (errors / usual) ** 2)
    return np.asarray(coefficients / scale)


def _format_law(fit: _Fit) -> str:
    """The law as arithmetic; a term of no weight is not there."""
    parts = [
        f"{coefficient:.5g} * {term.text}" if term.text else f"{coefficient:.5g}"
        for term, coefficient, weight in zip(
            fit.terms, fit.coefficients, _weigh_terms(fit), strict=True
        )
        if weight > _NO_WEIGHT
    ]
    return " + ".join(parts) or "0"


_NO_WEIGHT = 1e-3


def _weigh_terms(fit: _Fit) -> Floats:
    """The most that each term comes to in any row, beside what a message takes."""
    most = np.array([term.column.max() for term in fit.terms])
    return np.asarray(fit.coefficients * most / np.median(fit.seconds()))


# ---- terms ---------------------------------------------------------------------------------------


def _list_tiers(rows: Sequence[MessageRow]) -> Iterator[list[_Term]]:
    """Terms by what they ask for: replies and settings, counted passes, bytes; the simplest
    first."""
    settings = _list_settings(rows)
    amounts = _list_amounts(rows, varied=True)
    yield _make_terms(rows, _list_products(amounts, settings))
    yield _make_terms(rows, [name for name in COUNTED if _is_varied(rows, name)])
    sizes = [name for name in _BYTES if _is_varied(rows, name)]
    yield _make_terms(rows, [*sizes, *(f"{size} * {n}" for size in sizes for n in amounts)])


def _list_products(amounts: Sequence[str], settings: Sequence[str]) -> list[str]:
    """What may size a message, the simplest first: amounts times settings (epochs), or in pieces
    of a setting (batches), nodes, and pairs of them; without any amount, settings over one another
    and over `nodes`."""
    keys = [name for name in settings if name != "nodes"]
    pairs = [f"{one} * {other}" for one, other in combinations(keys, 2)]
    texts = [
        *amounts,
        *settings,
        *pairs,
        *(f"nodes * {name}" for name in keys if "nodes" in settings),
        *(["nodes * nodes"] if "nodes" in settings else []),
    ]
    for amount in amounts:
        pieces = [f"ceil({amount} / {over})" for over in keys]
        texts += [f"{amount} * {times}" for times in keys] + pieces
        texts += [f"{amount} * {pair}" for pair in pairs]
        texts += [
            f"{piece} * {t}" for piece, o in zip(pieces, keys, strict=True) for t in keys if t != o
        ]
    for over in settings if not amounts else []:
        others = [name for name in settings if name != over]
        texts += [f"1 / {over}", *(f"{times} / {over}" for times in others)]
        texts += [f"{t} / {o} / {over}" for t in others for o in others if t != o and o < over]
    return texts


def _make_terms(rows: Sequence[MessageRow], texts: Sequence[str]) -> list[_Term]:
    """Those that have a finite value in every row, and not the same in all."""
    terms = []
    for text in texts:
        parsed = read_arithmetic(text)
        if all(name in row.values for row in rows for name in parsed.names):
            try:
                column = np.array([parsed(row.values) for row in rows])
            except InputError:  # a setting that was 0
                continue
            if np.ptp(column) > 0 and column.min() >= 0:
                terms.append(_Term(text, column))
    return terms


def _is_varied(rows: Sequence[MessageRow], name: str) -> bool:
    column = {row.values.get(name) for row in rows}
    return None not in column and len(column) > 1


def _list_settings(rows: Sequence[MessageRow]) -> list[str]:
    """Numbers of the run's configuration that varied between plays, and `nodes`."""
    names = [spell_name(name) for name in select_numbers(rows[0].run_config)]
    return [n for n in ("nodes", *names) if _is_name(n) and _is_varied(rows, n)]


def _list_amounts(rows: Sequence[MessageRow], *, varied: bool) -> list[str]:
    """Whole numbers in replies, and in messages' configurations, that may size their work."""
    names: dict[str, None] = {}
    for row in rows:
        asked = select_numbers(row.visible.config)
        for name in (*row.visible.reply, *asked):
            if "round" not in name.lower():
                names.setdefault(spell_name(name))
    whole = []
    for name in names:
        column = [row.values.get(name) for row in rows]
        numbers = [value for value in column if value is not None]
        if len(numbers) < len(rows) or max(numbers) < 2 or (varied and not _is_varied(rows, name)):
            continue
        if all(value >= 0 and value.is_integer() for value in numbers):
            whole.append(name)
    return whole
