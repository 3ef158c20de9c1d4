"""Fits a profile to measured rows, and finds its errors on others (needs scipy).

`fit_profile` goes through the kinds of work: medians of each curve become a sample
(`_build_sample`), the sample a law (`simfed.calibrate.fit`) with its spread, laws and
rows the nodes of the profile's file. Sentences on what the table cannot tell come with
it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import yaml

from simfed.calibrate.fit import FitSample, FittedLaw, choose_law
from simfed.calibrate.spread import (
    estimate_coverage,
    estimate_spread,
    estimate_typical_variance,
)
from simfed.calibrate.starts import add_starts
from simfed.device.laws import ACROSS_MODELS, PER_MODEL
from simfed.device.noise import fit_noise
from simfed.device.profile import ANY, QUANTITIES, Key, ModelWork
from simfed.device.table import MeasuredRows, compute_medians
from simfed.ground.plain import Plain
from simfed.ground.version import VERSION

_TABLE_BETTER = 0.10
"""A law that misses a measured size by more than this, and by more than sessions differ
among themselves (twice their standard deviation), is worse than keeping the rows."""

FEW_REPEATS = 3
"""Rows of a size; of fewer nobody knows how far their median is off."""

NOISE_ROWS = 20
NOISE_REPEATS = 5
"""Noise of a kind of work is known from so many rows, of sizes repeated so often in a
session."""


@dataclass(frozen=True, slots=True)
class CurveReport:
    """The findings of fitting one curve.

    A curve is a kind of work of one model with one strategy; `simfed calibrate fit`
    prints a line for each.
    """

    key: Key
    sizes: int
    candidate: FittedLaw | None
    """None: too few sizes for a law; the profile keeps the rows."""
    coverage: float | None = None
    other_model: float | None = None
    """The mean absolute log-error on models left out, of a law across models."""
    repeats: int = 0
    """Rows of the size with the fewest, all sessions together."""
    missed: float = 0.0
    """Largest relative error at a size, its sessions averaged, that is too large for a
    good law; 0 where there is none."""

    @property
    def error_is_known(self) -> bool:
        """True if something tells how far the law is off.

        That is sizes that could be left out of the fit, and enough repeats to know the
        medians that it is held against.
        """
        enough = self.candidate is not None and len(self.candidate.held_out) > 0
        return enough and self.repeats >= FEW_REPEATS

    @property
    def prefers_table(self) -> bool:
        """True if the rows say more than the law."""
        return self.candidate is None or self.missed > 0 or not self.error_is_known


@dataclass(frozen=True, slots=True)
class Calibration:
    """A profile as its file will say it, and the report that goes with it.

    `format_profile` writes `document`; `simfed calibrate fit` prints `curves` and
    `notes`.
    """

    document: dict[str, Plain]
    curves: tuple[CurveReport, ...]
    notes: tuple[str, ...] = ()

    @property
    def recommended(self) -> str:
        """`table` where the law is off or unknown, else `law`.

        It is off where some curve misses a measured median by more than 10 %, unknown
        where nothing tells how far.
        """
        prefers = any(c.prefers_table for c in self.curves if c.key[1] != ANY)
        return "table" if prefers else "law"


def fit_profile(
    table: MeasuredRows,
    *,
    kind: str = "law",
    name: str,
    models: Mapping[str, ModelWork] | None = None,
) -> Calibration:
    """Return the profile that a table of measurements supports.

    Args:
        table: rows of one machine, see `read_table`. Training that was measured with
        several numbers of steps in a row tells what its beginning takes, and what of
        its scatter is each step's own.
        kind: `law` fits a law to every curve of at least two sizes and keeps the rows
        of the others; `table` keeps the medians of all rows. Both come with noise and
        uncertainty, where rows were repeated, and with laws for other models, where
        `models` are known.
        name: the profile's name.
        models: sizes of the measured models, for laws that count d or FLOPs.

    Returns:
        The file's contents, a report for each curve, and notes.
    """
    table, models = add_starts(table), models or {}
    samples = {key: _build_sample(table, [key], models) for key in table.keys}
    document: dict[str, Plain] = {
        "kind": kind,
        "name": name,
        "provenance": _build_provenance(table),
    }
    shapes = {model: build_shape_node(models.get(model)) for _, model, _ in table.keys}
    if known := {model: shape for model, shape in shapes.items() if shape}:
        document["measured_on"] = known
    curves: list[CurveReport] = []
    between = _estimate_session_scatter(table)
    for quantity in QUANTITIES:
        of_work = {key: sample for key, sample in samples.items() if key[0] == quantity}
        if not of_work:
            continue
        laws = PER_MODEL[QUANTITIES[quantity].variable]
        fitted = {
            k: choose_law(laws, x) for k, x in of_work.items() if len(x.groups) >= 2
        }
        repeats = {
            key: min(Counter(row.size for row in table.rows_of(key)).values())
            for key in of_work
        }
        reports = _report_curves(of_work, fitted, between.get(quantity, 0.0), repeats)
        reports += _fit_across_models(quantity, table, models)
        document[quantity] = _build_work_node(reports, kind)
        curves += [report for report, _ in reports]
    if between:
        document["uncertainty"] = {q: _round_number(sd) for q, sd in between.items()}
    factors = _collect_noise_factors(table)
    enough = {
        q: np.array(pairs).T for q, pairs in factors.items() if len(pairs) >= NOISE_ROWS
    }
    if enough:
        document["noise"] = {
            q: fit_noise(*pairs).written() for q, pairs in enough.items()
        }
    notes = [
        *_list_law_notes(curves),
        *_list_row_notes(table),
        *_list_noise_notes(factors),
        *_list_shape_notes(table, shapes),
    ]
    return Calibration(document, tuple(curves), tuple(notes))


def _list_law_notes(curves: Sequence[CurveReport]) -> list[str]:
    """Return where no error of a law can be known, and what it would take."""
    fits = [
        (c, c.candidate) for c in curves if c.candidate is not None and c.key[1] != ANY
    ]
    few = [curve for curve, candidate in fits if not len(candidate.held_out)]
    seldom = [c for c, _ in fits if c not in few and c.repeats < FEW_REPEATS]
    notes = []
    if few:
        notes.append(
            f"the error of the law of {_name_curves(few)} cannot be known: with "
            f"{few[0].sizes} sizes none can be left out of the fit; measure more "
            "sizes, or take --kind table"
        )
    if seldom:
        notes.append(
            f"the error of the law of {_name_curves(seldom)} cannot be known: a size "
            f"was measured {seldom[0].repeats} times, and fewer than {FEW_REPEATS} "
            "tell nothing of how far their median is off; raise --repeat, or take "
            "--kind table"
        )
    return [note.replace("measured 1 times", "measured once") for note in notes]


def _name_curves(curves: Sequence[CurveReport]) -> str:
    names = [" ".join(filter(None, c.key)) for c in curves]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _list_noise_notes(
    factors: Mapping[str, Sequence[tuple[float, float]]],
) -> list[str]:
    have = ", ".join(
        f"{quantity} has {len(pairs)}"
        for quantity, pairs in factors.items()
        if len(pairs) < NOISE_ROWS
    )
    if not have:
        return []
    return [
        f"`noise: measured` needs {NOISE_ROWS} rows of a kind of work, of sizes "
        f"repeated at least {NOISE_REPEATS} times in one session: {have}; --repeat "
        f"{NOISE_ROWS} is always enough"
    ]


def _list_row_notes(table: MeasuredRows) -> list[str]:
    notes = []
    if table.dropped:
        counts = Counter(row.key[0] for row in table.dropped)
        parts = ", ".join(
            f"{count} of {quantity}" for quantity, count in counts.items()
        )
        whole = len(table.dropped) + len(table.rows)
        notes.append(
            f"{len(table.dropped)} of {whole} rows left out ({parts}): the operating "
            "system gave the processor to others during them (column `preempted`), so "
            "they time more than the work; close what else runs and measure again for "
            "fewer"
        )
    if table.sessions == 1:
        notes.append(
            "one session: the intervals do not know how much another process differs; "
            "measure again and fit both together"
        )
    return notes


def _list_shape_notes(table: MeasuredRows, shapes: Mapping[str, object]) -> list[str]:
    unknown = dict.fromkeys(
        model
        for quantity, model, _ in table.keys
        if quantity != "auxiliary" and not shapes[model]
    )
    if not unknown:
        return []
    return [
        f"nothing says what {', '.join(unknown)} was measured on (column `dataset`, of "
        "a model and a data set that are known here): runs take these times whatever "
        "their samples, and warn"
    ]


def _report_curves(
    samples: Mapping[Key, FitSample],
    fitted: Mapping[Key, FittedLaw],
    between: float,
    repeats: Mapping[Key, int],
) -> list[tuple[CurveReport, FitSample]]:
    """Return fits of all curves of a kind of work, with uncertainty and remarks.

    Each comes with its sample.

    Args:
        samples: of each curve.
        fitted: those with a law.
        between: how much sessions differ, in log-time.
        repeats: rows of each curve's size with the fewest.
    """
    typical = estimate_typical_variance(
        [(candidate, samples[key]) for key, candidate in fitted.items()]
    )
    reports = []
    for key, sample in samples.items():
        sizes = len(sample.groups)
        if key not in fitted:
            report = CurveReport(key, sizes, None, repeats=repeats[key])
            reports.append((report, sample))
            continue
        candidate = replace(
            fitted[key], spread=estimate_spread(fitted[key], sample, typical)
        )
        residuals = [
            float(np.mean(candidate.residuals[sample.group == g]))
            for g in sample.groups
        ]
        largest = max(residuals, key=abs)
        tolerated = max(math.log1p(_TABLE_BETTER), 2 * between)
        missed = abs(math.expm1(largest)) if abs(largest) > tolerated else 0.0
        covered = estimate_coverage(candidate, sample, typical)
        report = CurveReport(key, sizes, candidate, covered, None, repeats[key], missed)
        reports.append((report, sample))
    return reports


def _build_work_node(
    reports: Sequence[tuple[CurveReport, FitSample]], kind: str
) -> dict[str, Plain]:
    """Return the part of the profile's file on one kind of work.

    Args:
        reports: of its curves and laws for other models, each with its sample.
        kind: `law` or `table`.
    """
    node: dict[str, Plain] = {}
    for report, sample in reports:
        _, model, strategy = report.key
        by_rows = report.candidate is None or (kind == "table" and model != ANY)
        value = (
            _build_rows_node(report.key, sample)
            if by_rows
            else _build_law_node(report, sample)
        )
        if strategy:
            node.setdefault(model, {})[strategy] = value
        else:
            node[model] = value
    return node


def _fit_across_models(
    quantity: str, table: MeasuredRows, models: Mapping[str, ModelWork]
) -> list[tuple[CurveReport, FitSample]]:
    """Return laws for models that were not measured, from at least two that were.

    Each comes with its sample; empty where work is beside any model.
    """
    reports: list[tuple[CurveReport, FitSample]] = []
    if QUANTITIES[quantity].beside:
        return reports
    by_strategy: dict[str, list[Key]] = defaultdict(list)
    for key in table.keys:
        if key[0] == quantity and key[1] in models:
            by_strategy[key[2]].append(key)
    for strategy, keys in by_strategy.items():
        if len(keys) < 2:
            continue
        sample = _build_sample(table, keys, models)
        laws = ACROSS_MODELS[QUANTITIES[quantity].variable]
        candidate = choose_law(laws, sample)
        errors = _estimate_model_error(candidate, keys, table, models)
        spread = estimate_spread(candidate, sample, None)
        candidate = replace(candidate, spread=spread)
        key = (quantity, ANY, strategy)
        reports.append(
            (CurveReport(key, len(sample.groups), candidate, None, errors), sample)
        )
    return reports


def _estimate_model_error(
    candidate: FittedLaw,
    keys: Sequence[Key],
    table: MeasuredRows,
    models: Mapping[str, ModelWork],
) -> float | None:
    """Return the law's mean absolute log-error on models left out of the fit.

    Args:
        candidate: the law across models.
        keys: the curves that it was fitted to, one per model.
        table: of measured rows.
        models: works.

    Returns:
        None where leaving a model out leaves too little.
    """
    errors: list[float] = []
    for left_out in keys:
        others = _build_sample(table, [key for key in keys if key != left_out], models)
        if len(others.groups) < len(candidate.law.parameters):
            return None
        without = choose_law([candidate.law.name], others)
        out = _build_sample(table, [left_out], models)
        predicted = without.law.seconds(without.parameters, out.size)
        errors += list(np.abs(np.log(predicted / out.seconds)))
    return float(np.mean(errors))


def _build_sample(
    table: MeasuredRows, keys: Sequence[Key], models: Mapping[str, ModelWork]
) -> FitSample:
    """Return the medians of some curves as points with their sizes.

    Args:
        table: of measured rows.
        keys: the curves, of one model or of several.
        models: works, whose d and FLOPs are sizes as well.
    """
    features: list[dict[str, float]] = []
    seconds: list[float] = []
    group: dict[tuple[str, float], int] = {}
    session: dict[str, int] = {}
    labels: list[tuple[int, int]] = []
    for key in keys:
        quantity, model, _ = key
        work = models.get(model)
        for x, name, middle, _ in compute_medians(table.rows_of(key)):
            size = {QUANTITIES[quantity].variable: x}
            features.append({**size, **(work.size(quantity, x) if work else {})})
            seconds.append(middle)
            labels.append(
                (
                    group.setdefault((model, x), len(group)),
                    session.setdefault(name, len(session)),
                )
            )
    names = set.intersection(*(set(f) for f in features))
    return FitSample(
        {name: np.array([f[name] for f in features]) for name in sorted(names)},
        np.array(seconds),
        *np.array(labels).T,
    )


def _estimate_session_scatter(table: MeasuredRows) -> dict[str, float]:
    """Return the scatter of sessions' medians, per kind of work.

    It is the sd of the logarithm of a new session's medians over the table's, from
    sizes measured in several sessions; a kind that has none is not there.
    """
    deviations = {}
    for quantity in QUANTITIES:
        squares = freedom = sessions = 0.0
        for key in (key for key in table.keys if key[0] == quantity):
            logs: dict[tuple[float, float], list[float]] = defaultdict(list)
            for steps in {row.steps for row in table.rows_of(key)}:
                alike = [row for row in table.rows_of(key) if row.steps == steps]
                for x, _, middle, _ in compute_medians(alike):
                    logs[x, steps].append(math.log(middle))
            for values in logs.values():
                squares += float(np.var(values)) * len(values)
                freedom += len(values) - 1
                sessions = max(sessions, len(values))
        if freedom:
            deviations[quantity] = math.sqrt(squares / freedom * (1 + 1 / sessions))
    return deviations


def _collect_noise_factors(table: MeasuredRows) -> dict[str, list[tuple[float, float]]]:
    """Return (rows' seconds over their medians, steps) of each kind of work.

    They are of sizes that were repeated often enough in one session.
    """
    factors: dict[str, list[tuple[float, float]]] = {}
    # training's holds that
    for key in (key for key in table.keys if key[0] != "starting"):
        alike: dict[tuple[float, str, float], list[float]] = defaultdict(list)
        for row in table.rows_of(key):
            alike[row.size, row.session, row.steps].append(row.whole_s)
        values = factors.setdefault(key[0], [])
        for (*_, steps), whole_s in alike.items():
            if len(whole_s) >= NOISE_REPEATS:
                middle_s = statistics.median(whole_s)
                values += [(seconds / middle_s, steps) for seconds in whole_s]
    return factors


# ---- the profile's file --------------------------------------------------------------


def _build_provenance(table: MeasuredRows) -> dict[str, Plain]:
    machine: dict[str, Plain] = {
        column: values[0] if len(values) == 1 else values
        for column, values in table.machine.items()
        if column != "measured_at"
    }
    if isinstance(machine.get("threads"), str):
        machine["threads"] = int(machine["threads"])
    dates = sorted(table.machine.get("measured_at", []))
    return {
        "fitted_by": f"simfed {VERSION}",
        "files": [{"name": name, "sha256": digest} for name, digest in table.files],
        "sessions": table.sessions,
        **({"measured": f"{dates[0][:10]} to {dates[-1][:10]}"} if dates else {}),
        **machine,
    }


def build_shape_node(work: ModelWork | None) -> dict[str, Plain]:
    """Return the shape that rows were measured on, as the file says it.

    Args:
        work: of the model; None: nobody knows.

    Returns:
        Empty where the shape is not known.
    """
    if work is None or not (
        work.input_shape or work.parameters == 0 < work.train_flops
    ):
        return {}
    if not work.parameters:
        return {"flops": _shorten_number(work.train_flops)}
    return {
        "input": list(work.input_shape),
        "classes": work.classes,
        "d": work.parameters,
        "forward_flops": _shorten_number(work.forward_flops),
        "train_flops": _shorten_number(work.train_flops),
    }


def _build_rows_node(key: Key, sample: FitSample) -> dict[float, str]:
    """Return the medians of a curve by size, sessions averaged."""
    variable = QUANTITIES[key[0]].variable
    rows: dict[float, str] = {}
    for group in sample.groups:
        points = sample.where(sample.group == group)
        # geometric mean of the sessions' medians; of one session, its median to the
        # last digit
        t = points.seconds
        middle = (
            float(t[0]) if len(t) == 1 else float(f"{np.exp(np.mean(np.log(t))):.6g}")
        )
        rows[_shorten_number(points.size[variable][0])] = f"{middle!r} s"
    return rows


def _build_law_node(report: CurveReport, sample: FitSample) -> dict[str, Plain]:
    """Return a fitted law with its range and its errors, as the file says it."""
    candidate = report.candidate
    assert candidate is not None
    law = candidate.law
    node: dict[str, Plain] = {
        "law": law.name,
        "parameters": {p: float(f"{v:.6g}") for p, v in candidate.parameters.items()},
        "valid": {
            n: [
                _shorten_number(sample.size[n].min()),
                _shorten_number(sample.size[n].max()),
            ]
            for n in law.needs
        },
        "error": {
            "in_sample": _round_share(candidate.in_sample),
            "worst": _round_share(candidate.worst),
            "cross_validated": _round_share(candidate.cross_validated),
            "coverage_90": _round_share(report.coverage),
            **(
                {"other_model": _round_share(report.other_model)}
                if report.key[1] == ANY
                else {}
            ),
            "sizes": report.sizes,
        },
    }
    if candidate.spread is not None:
        node["uncertainty"] = _round_number(candidate.spread)
    return node


def _shorten_number(x: float) -> float | int:
    return int(x) if float(x).is_integer() else float(x)


def _round_number(x: float) -> float:
    return float(f"{x:.4g}")


def _round_share(x: float | None) -> float | None:
    """Return a relative error or a share, as a person wants to read it."""
    return None if x is None or not math.isfinite(x) else round(x, 4)


def format_profile(document: Mapping[str, Plain], header: str = "") -> str:
    """Return the profile's YAML, with rows on one line, like a table.

    Args:
        document: `Calibration.document`.
        header: lines of a comment at the top.
    """

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    comment = "".join(f"# {line}\n" for line in header.splitlines())
    layout: dict[str, Plain] = {"sort_keys": False, "allow_unicode": True, "width": 130}
    text = yaml.dump(dict(document), Dumper=Dumper, default_flow_style=None, **layout)
    return f"{comment}{text}"
