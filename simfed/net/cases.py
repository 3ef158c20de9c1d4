"""Cases: links, flows with given starts, and possibly when they really finished.

A case file is how a network model is held against something that is known: another simulator's
tables, or a user's own measurements. No SimPy, no clients: paths are given link by link.

    {"cases": [{"name": "…",
                "links": [{"capacity_bytes_per_s": 1.25e6, "latency_s": 0.02}, …],
                "flows": [{"start_s": 0, "size_bytes": 30000, "path": [0, 5], "finish_s":
                0.31}, …]}]}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf, isfinite, nan
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import numpy as np

from simfed.errors import InputError, did_you_mean, listed
from simfed.net.compiled import make_engine
from simfed.net.flows import LEAST_WEIGHT, MOST_WEIGHT
from simfed.net.models import Fluid, Model, make_model
from simfed.net.topology import Floats, Path
from simfed.reading import read_text

__all__ = ["Case", "CaseErrors", "error_table", "load_cases", "parse_case", "replay"]

_LINK_KEYS = {"capacity_bytes_per_s", "latency_s", "loss", "name"}
_FLOW_KEYS = {"start_s", "size_bytes", "path", "finish_s", "weight", "cap_bytes_per_s", "name"}


def replay(case: Mapping[str, Any], model: str | Mapping[str, Any] | Model = "fluid") -> Floats:
    """When each flow of a case finishes, in seconds on the case's clock, in the order of the flows.

    case: a mapping with `links` (`capacity_bytes_per_s` above 0, `latency_s`; for `tcp` optional
    `loss`) and `flows` (`start_s`, `size_bytes`, `path`: a list of indices of links; optional
    `weight`, from 1e-9 to 1e9, and `cap_bytes_per_s`). A round trip takes twice the latencies of
    the path.
    model: `"fluid"`, `"tcp"`, `{"kind": "tcp", "handshake": False}` or a model object.

    Raises: `InputError` in one sentence for anything else.

    >>> links = [{"capacity_bytes_per_s": 10.0, "latency_s": 1.0}]
    >>> flows = [{"start_s": 0.0, "size_bytes": 40.0, "path": [0]} for _ in range(2)]
    >>> replay({"links": links, "flows": flows})
    array([9., 9.])
    """
    parsed = parse_case(case)
    made = make_model(model, where="model")
    lossy = any(parsed.losses)
    if lossy and isinstance(made, Fluid):
        where = next(f"links[{k}].loss" for k, loss in enumerate(parsed.losses) if loss)
        raise InputError("no loss with model fluid, which ignores it", where=where)
    engine = make_engine(parsed.capacities_bytes_per_s)
    capacity = parsed.capacities_bytes_per_s.__getitem__
    flows = []
    for number, path in enumerate(parsed.paths):
        latency_s = sum([parsed.latencies_s[k] for k in path])
        loss = 1 - float(np.prod([1 - parsed.losses[k] for k in path])) if lossy else 0.0
        way = Path(path, path, latency_s, 2 * latency_s, loss)
        size, weight, cap = parsed.sizes_bytes[number], parsed.weights[number], parsed.caps[number]
        flows.append(made.flow(number, size, way, capacity, weight, cap))
    engine.start_all(zip(parsed.starts_s, flows, strict=True))
    engine.advance(inf)
    return np.array([at + flow.spent_s for at, flow in zip(parsed.starts_s, flows, strict=True)])


# ---- files -------------------------------------------------------------------------------------


def load_cases(path: str | FilePath) -> list[dict[str, Any]]:
    """The checked cases of a JSON file: `{"cases": [...]}`, a list of cases, or a single case.

    Raises: `InputError` that names the file and the place.
    """
    where = str(path)
    text = read_text(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError("a file in JSON", where=where, got=str(error)) from None
    cases = found
    if isinstance(found, dict):
        cases = found.get("cases", [found] if "flows" in found else None)
    if not isinstance(cases, list) or not cases:
        raise InputError("a list of cases under the key 'cases'", where=where, got=_kind(found))
    for number, case in enumerate(cases):
        try:
            parse_case(case)
        except InputError as error:
            raise error.within(f"{where}: cases[{number}]") from None
    return cases


class Case(NamedTuple):
    """A checked case, in columns."""

    capacities_bytes_per_s: list[float]
    latencies_s: list[float]
    losses: list[float]
    starts_s: list[float]
    sizes_bytes: list[float]
    weights: list[float]
    caps: list[float]
    paths: list[tuple[int, ...]]


def parse_case(case: Any) -> Case:
    """The columns of a case; an `InputError` names the first thing that is wrong with it."""
    if not isinstance(case, Mapping):
        raise InputError("a mapping with 'links' and 'flows'", got=_kind(case))
    for key, known in (("links", _LINK_KEYS), ("flows", _FLOW_KEYS)):
        parts = case.get(key)
        if not isinstance(parts, Sequence) or isinstance(parts, str) or not parts:
            raise InputError("a list that is not empty", where=key, got=parts)
        for number, part in enumerate(parts):
            if not isinstance(part, Mapping):
                raise InputError("a mapping", where=f"{key}[{number}]", got=_kind(part))
            if not part.keys() <= known:
                _check_spelling(part, known, f"{key}[{number}]")
    links, flows = case["links"], case["flows"]
    weights = f"a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
    _numbers(flows, "flows", "finish_s", nan, "a number", lambda x: True)
    return Case(
        _numbers(links, "links", "capacity_bytes_per_s", None, "a number above 0", _positive),
        _numbers(links, "links", "latency_s", 0.0, "a number of at least 0"),
        _numbers(links, "links", "loss", 0.0, "a number from 0 to below 1", _share),
        _numbers(flows, "flows", "start_s", None, "a number of at least 0"),
        _numbers(flows, "flows", "size_bytes", None, "a number of at least 0"),
        _numbers(flows, "flows", "weight", 1.0, weights, _weight),
        _numbers(flows, "flows", "cap_bytes_per_s", inf, "a number above 0", _positive),
        _paths(flows, len(links)),
    )


def _positive(x: float) -> bool:
    return x > 0


def _weight(x: float) -> bool:
    return LEAST_WEIGHT <= x <= MOST_WEIGHT


def _share(x: float) -> bool:
    return 0 <= x < 1


def _check_spelling(part: Mapping[str, Any], known: Set[str], where: str) -> None:
    # Measurements come with keys of their own; only one that misses one of ours is wrong.
    missing = sorted(known - part.keys())
    for key in part:
        hint = did_you_mean(str(key), missing)
        if key not in known and hint:
            allowed = f"one of the keys {listed(sorted(known))}"
            raise InputError(allowed, where=where, got=key, hint=hint)


def _numbers(
    parts: Sequence[Mapping[str, Any]],
    name: str,
    key: str,
    default: float | None,
    allowed: str,
    within: Callable[[float], bool] = lambda x: x >= 0,
) -> list[float]:
    """One key of all links or flows; `default` stands for a missing one or null, unless it is
    None."""
    values = []
    for number, part in enumerate(parts):
        value: Any = part.get(key)
        if value is None and default is not None:
            values.append(default)
            continue
        found = _as_float(value)
        if not isfinite(found) or not within(found):
            got = value if key in part else "nothing"
            raise InputError(allowed, where=f"{name}[{number}].{key}", got=got)
        values.append(found)
    return values


def _as_float(value: Any) -> float:
    """NaN for what is no number, and for an int that no float can hold."""
    # bool is an int and is not meant
    if type(value) in (float, int) or isinstance(value, np.number):
        try:
            return float(value)
        except OverflowError:
            pass
    return nan


def _paths(flows: Sequence[Mapping[str, Any]], links: int) -> list[tuple[int, ...]]:
    paths = []
    for number, flow in enumerate(flows):
        path, where = flow.get("path"), f"flows[{number}].path"
        if not isinstance(path, Sequence) or isinstance(path, str) or not path:
            raise InputError("a list of indices of links", where=where, got=path)
        for link in path:
            whole = isinstance(link, (int, np.integer)) and not isinstance(link, bool)
            if not whole or not 0 <= link < links:
                raise InputError(f"indices of links from 0 to {links - 1}", where=where, got=link)
        if len(set(path)) != len(path):
            raise InputError("each link at most once", where=where, got=list(path))
        paths.append(tuple(path))
    return paths


def _kind(value: Any) -> Any:
    """What to show of a value that may be long."""
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else value


# ---- errors against known finish times -------------------------------------------------------


@dataclass(frozen=True)
class CaseErrors:
    """How far computed completion times are from known ones, relative to the known ones.

    A flow's error is |computed − known| / known, both counted from the flow's start; `makespan` is
    that of the case's length, from its first start to its last finish, with its sign.
    """

    name: str
    flows: int
    mean: float
    median: float
    p90: float
    worst: float
    makespan: float


def error_table(
    cases: Sequence[Mapping[str, Any]], finishes_s: Sequence[Floats | Sequence[float]]
) -> list[CaseErrors]:
    """One row per case that says when flows finished, and a last one, `all`, over all of them.

    Only flows with `finish_s` count. The row `all` pools the flows; its makespan is the mean of the
    cases' absolute makespan errors. Empty if no flow has `finish_s`.

    >>> case = {"name": "a", "links": [], "flows": [{"start_s": 1.0, "finish_s": 5.0}]}
    >>> round(error_table([case], [[4.9]])[0].mean, 6)
    0.025
    """
    rows: list[CaseErrors] = []
    pooled: list[Floats] = []
    for number, (case, finish_s) in enumerate(zip(cases, finishes_s, strict=True)):
        name = str(case.get("name", f"case {number}"))
        which = [k for k, flow in enumerate(case["flows"]) if flow.get("finish_s") is not None]
        if not which:
            continue
        starts = np.array([case["flows"][k]["start_s"] for k in which], dtype=float)
        known = np.array([case["flows"][k]["finish_s"] for k in which], dtype=float)
        computed = np.asarray(finish_s, dtype=float)[which]
        for k in np.flatnonzero(~(known > starts)):
            place = f"{name}: flows[{which[k]}].finish_s"
            raise InputError("an instant after start_s", where=place, got=float(known[k]))
        errors = np.abs(computed - known) / (known - starts)
        span = float(known.max() - starts.min())
        rows.append(_row(name, errors, float(computed.max() - known.max()) / span))
        pooled.append(errors)
    if rows:
        makespan = float(np.mean([abs(row.makespan) for row in rows]))
        rows.append(_row("all", np.concatenate(pooled), makespan))
    return rows


def _row(name: str, errors: Floats, makespan: float) -> CaseErrors:
    return CaseErrors(
        name,
        len(errors),
        float(errors.mean()),
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        float(errors.max()),
        makespan,
    )
