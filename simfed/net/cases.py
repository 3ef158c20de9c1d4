"""Cases: links, flows with given starts, and possibly when they really finished.

A case file is how a network model is held against something that is known: another simulator's
tables, or a user's own measurements. No SimPy, no clients: paths are given link by link.

    {"cases": [{"name": "…",
                "links": [{"capacity_bytes_per_s": 1.25e6, "latency_s": 0.02}, …],
                "flows": [{"start_s": 0, "size_bytes": 30000, "path": [0, 5], "finish_s":
                0.31}, …]}]}

A case of a radio cell has a `cell` and its `stations` (Wi-Fi) or `ues` (cellular) in place of
links, and flows that name one of them and a direction in place of a path
(`simfed.net.cell_cases`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path as FilePath
from typing import NamedTuple

import numpy as np

from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError
from simfed.ground.inputs import read_json
from simfed.ground.plain import Plain
from simfed.net.case_parts import is_positive, read_mappings, read_numbers, shorten_value, weights
from simfed.net.cell_cases import CellCase, parse_cell_case
from simfed.net.engine import Engine
from simfed.net.models import Fluid, ModelSpec, make_model
from simfed.net.playing import play
from simfed.net.topology import Path

_LINK_KEYS = {"capacity_bytes_per_s", "latency_s", "loss", "name"}
_FLOW_KEYS = {"start_s", "size_bytes", "path", "finish_s", "weight", "cap_bytes_per_s", "name"}


def replay(case: Mapping[str, object], model: ModelSpec = "fluid") -> Floats:
    """When each flow of a case finishes, in seconds on the case's clock, in the order of the flows.

    case: a mapping with `links` (`capacity_bytes_per_s` above 0, `latency_s`; for `tcp` optional
    `loss`) and `flows` (`start_s`, `size_bytes`, `path`: a list of indices of links; optional
    `weight`, from 1e-9 to 1e9, and `cap_bytes_per_s`). A round trip takes twice the latencies of
    the path. Or a case of a cell, see `simfed.net.cell_cases`.
    model: `"fluid"`, `"tcp"`, `{"kind": "tcp", "handshake": False}` or a model object.

    Raises: `InputError` in one sentence for anything else.

    >>> links = [{"capacity_bytes_per_s": 10.0, "latency_s": 1.0}]
    >>> flows = [{"start_s": 0.0, "size_bytes": 40.0, "path": [0]} for _ in range(2)]
    >>> replay({"links": links, "flows": flows})
    array([9., 9.])
    """
    columns = parse_case(case)
    flow_model = make_model(model, where="model")
    if isinstance(columns, CellCase):
        arrivals = play(columns.topology, columns.sends, flow_model)
        ends = zip(columns.sends, arrivals, strict=True)
        return np.array([send.at_s + arrival.duration_s for send, arrival in ends])
    lossy = any(columns.losses)
    if lossy and isinstance(flow_model, Fluid):
        where = next(f"links[{k}].loss" for k, loss in enumerate(columns.losses) if loss)
        raise InputError("no loss, or model tcp", where=where, problem="model fluid ignores losses")
    engine = Engine(columns.capacities_bytes_per_s)
    capacity = columns.capacities_bytes_per_s.__getitem__
    flows = []
    terms = zip(columns.paths, columns.sizes_bytes, columns.weights, columns.caps, strict=True)
    for number, (links, size, weight, cap) in enumerate(terms):
        latency_s = sum([columns.latencies_s[k] for k in links])
        loss = 1 - float(np.prod([1 - columns.losses[k] for k in links])) if lossy else 0.0
        path = Path(links, links, latency_s, 2 * latency_s, loss)
        flows.append(flow_model.flow(number, size, path, capacity, weight, cap))
    engine.start_all(zip(columns.starts_s, flows, strict=True))
    engine.advance(inf)
    return np.array([at + flow.spent_s for at, flow in zip(columns.starts_s, flows, strict=True)])


# ---- files -------------------------------------------------------------------------------------


def load_cases(path: str | FilePath) -> list[dict[str, Plain]]:
    """The checked cases of a JSON file: `{"cases": [...]}`, a list of cases, or a single case.

    Raises: `InputError` that names the file and the place.
    """
    where = str(path)
    content = read_json(path)
    cases = content
    if isinstance(content, dict):
        cases = content.get("cases", [content] if "flows" in content else None)
    if not isinstance(cases, list) or not cases:
        raise InputError(
            "a list of cases under the key 'cases'", where=where, got=shorten_value(content)
        )
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


def parse_case(case: object) -> Case | CellCase:
    """What a case says, in columns; an `InputError` names the first thing that is wrong with it."""
    if not isinstance(case, Mapping):
        raise InputError("a mapping with 'links' and 'flows'", got=shorten_value(case))
    if "cell" in case:
        return parse_cell_case(case)
    links, flows = (
        read_mappings(case, "links", _LINK_KEYS),
        read_mappings(case, "flows", _FLOW_KEYS),
    )
    read_numbers(flows, "flows", "finish_s", nan, "a number", lambda x: True)
    return Case(
        read_numbers(links, "links", "capacity_bytes_per_s", None, "a number above 0", is_positive),
        read_numbers(links, "links", "latency_s", 0.0, "a number of at least 0"),
        read_numbers(
            links, "links", "loss", 0.0, "a number from 0 to below 1", lambda x: 0 <= x < 1
        ),
        read_numbers(flows, "flows", "start_s", None, "a number of at least 0"),
        read_numbers(flows, "flows", "size_bytes", None, "a number of at least 0"),
        weights(flows),
        read_numbers(flows, "flows", "cap_bytes_per_s", inf, "a number above 0", is_positive),
        _read_paths(flows, len(links)),
    )


def _read_paths(flows: Sequence[Mapping[str, object]], links: int) -> list[tuple[int, ...]]:
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
    cases: Sequence[Mapping[str, Plain]], finishes_s: Sequence[Floats | Sequence[float]]
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
        ends = np.array([case["flows"][k]["finish_s"] for k in which], dtype=float)
        computed = np.asarray(finish_s, dtype=float)[which]
        for k in np.flatnonzero(~(ends > starts)):
            place = f"{name}: flows[{which[k]}].finish_s"
            raise InputError("an instant after start_s", where=place, got=float(ends[k]))
        errors = np.abs(computed - ends) / (ends - starts)
        span = float(ends.max() - starts.min())
        rows.append(_summarise_errors(name, errors, float(computed.max() - ends.max()) / span))
        pooled.append(errors)
    if rows:
        makespan = float(np.mean([abs(row.makespan) for row in rows]))
        rows.append(_summarise_errors("all", np.concatenate(pooled), makespan))
    return rows


def _summarise_errors(name: str, errors: Floats, makespan: float) -> CaseErrors:
    median, p90 = float(np.median(errors)), float(np.quantile(errors, 0.9))
    mean, worst = float(errors.mean()), float(errors.max())
    return CaseErrors(name, len(errors), mean, median, p90, worst, makespan)
