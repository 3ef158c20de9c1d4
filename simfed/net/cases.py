"""Cases: links, flows with given starts, and possibly when they really finished.

A case file is how a network model is held against something that is known: another
simulator's tables, or a user's own measurements. No SimPy, no clients: paths are given
link by link.

    {"cases": [{"name": "…",
                "links": [{"capacity_bytes_per_s": 1.25e6, "latency_s": 0.02}, …],
                "flows": [{"start_s": 0, "size_bytes": 30000, "path": [0, 5],
                           "finish_s": 0.31}, …]}]}

A case of a radio cell says in place of links who is in it, and of a flow whose it is:

    {"name": "…",
     "cell": {"standard": "802.11n", "width_mhz": 20},
     "stations": [{"mcs": 7}, {"phy_rate_bytes_per_s": 3250000}],
     "wired": {"capacity_bytes_per_s": 1.25e7, "latency_s": 0.01},
     "flows": [{"start_s": 0, "size_bytes": 30000, "direction": "up", "station": 1,
                "finish_s": 0.05}, …]}

`cell` of Wi-Fi: `standard`; optional `width_mhz`, `spatial_streams`,
`guard_interval_ns`, `aggregation`, `max_ampdu_bytes`, `max_mpdus`, `fair`. Of a
cellular cell: `scheduler` (`Pf`, `Rr`), and in place of `stations` the list `ues` with
`alone_up_bytes_per_s` and `alone_down_bytes_per_s`, what each gets alone in the cell;
its flows have `ue` in place of `station`. `wired` is the link between cell and server,
each way. Where a case says besides after which other flow one started, `start_s` is
what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import numpy as np

from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError, check_known, did_you_mean, listed, within
from simfed.ground.inputs import read_json
from simfed.ground.plain import Plain
from simfed.ground.units import read_number
from simfed.net.cells import Cellular, Wifi
from simfed.net.engine import Engine
from simfed.net.flows import LEAST_WEIGHT, MOST_WEIGHT
from simfed.net.models import Fluid, ModelSpec, make_model
from simfed.net.topology import Cell, Path, Star


class _Number(NamedTuple):
    """The range of a key's number."""

    allowed: str
    holds: Callable[[float], bool]
    default: float | None = None
    """The value for a missing key or null; None: there is none."""


_FROM_0 = _Number("a number of at least 0", lambda x: x >= 0)
_ABOVE_0 = _Number("a number above 0", lambda x: x > 0)
_WIRE = {"capacity_bytes_per_s": _ABOVE_0, "latency_s": _FROM_0._replace(default=0.0)}
_LINK = {
    **_WIRE,
    "loss": _Number("a number from 0 to below 1", lambda x: 0 <= x < 1, 0.0),
}
_FLOW = {
    "start_s": _FROM_0,
    "size_bytes": _FROM_0,
    "finish_s": _Number("a number", lambda x: True, nan),
    "weight": _Number(
        f"a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}",
        lambda x: LEAST_WEIGHT <= x <= MOST_WEIGHT,
        1.0,
    ),
    "cap_bytes_per_s": _ABOVE_0._replace(default=inf),
}
_RATE = {"phy_rate_bytes_per_s": _ABOVE_0._replace(default=nan)}
_ALONE = {"alone_up_bytes_per_s": _ABOVE_0, "alone_down_bytes_per_s": _ABOVE_0}
_CELL_KEYS = (
    *("standard", "width_mhz", "spatial_streams", "guard_interval_ns", "aggregation"),
    *("max_ampdu_bytes", "max_mpdus", "fair", "scheduler"),
)


def replay(case: Mapping[str, object], model: ModelSpec = "fluid") -> Floats:
    """Return the instant at which each flow of a case finishes, on the case's clock.

    Args:
        case: a mapping with `links` (`capacity_bytes_per_s` above 0, `latency_s`; for
            `tcp` optional `loss`) and `flows` (`start_s`, `size_bytes`, `path`: a list
            of indices of links; optional `weight`, from 1e-9 to 1e9, and
            `cap_bytes_per_s`). A round trip takes twice the latencies of the path. Or a
            case of a cell, see this module.
        model: `"fluid"`, `"tcp"`, `{"kind": "tcp", "handshake": False}` or a model
            object.

    Raises: `InputError` in one sentence for anything else.

    >>> links = [{"capacity_bytes_per_s": 10.0, "latency_s": 1.0}]
    >>> flows = [{"start_s": 0.0, "size_bytes": 40.0, "path": [0]} for _ in range(2)]
    >>> replay({"links": links, "flows": flows})
    array([9., 9.])
    """
    read = parse_case(case)
    flow_model = make_model(model, where="model")
    if read.lossy and isinstance(flow_model, Fluid):
        problem = "model fluid ignores losses"
        raise InputError("no loss, or model tcp", where=read.lossy, problem=problem)
    engine = Engine(read.capacities_bytes_per_s)
    started = []
    for number, (row, path) in enumerate(zip(read.flows, read.paths, strict=True)):
        flow = flow_model.flow(
            number,
            row["size_bytes"],
            path,
            read.capacities_bytes_per_s.__getitem__,
            row["weight"],
            row["cap_bytes_per_s"],
        )
        started.append((row["start_s"], path.enter(flow)))
    engine.start_all(started)
    engine.advance(inf)
    return np.array([at_s + flow.spent_s for at_s, flow in started])


# ---- files ---------------------------------------------------------------------------


def load_cases(path: str | FilePath) -> list[dict[str, Plain]]:
    """Return the checked cases of a JSON file.

    It holds `{"cases": [...]}`, a list of cases, or a single case.

    Raises: `InputError` that names the file and the place.
    """
    where = str(path)
    content = read_json(path)
    cases = content
    if isinstance(content, dict):
        cases = content.get("cases", [content] if "flows" in content else None)
    if not isinstance(cases, list) or not cases:
        allowed = "a list of cases under the key 'cases'"
        raise InputError(allowed, where=where, got=_shorten(content))
    for number, case in enumerate(cases):
        with within(f"{where}: cases[{number}]"):
            parse_case(case)
    return cases


class Case(NamedTuple):
    """A checked case."""

    capacities_bytes_per_s: Sequence[float] | Floats
    flows: list[dict[str, Any]]
    """The flows, by the keys of the case; every number is there."""
    paths: list[Path]
    """The path of each flow."""
    lossy: str = ""
    """The key of the first link that loses packets, if any does."""


def parse_case(case: object) -> Case:
    """Return a checked case.

    Raises: `InputError` that names the first thing that is wrong with it.
    """
    if not isinstance(case, Mapping):
        raise InputError("a mapping with 'links' and 'flows'", got=_shorten(case))
    if "cell" in case:
        return _parse_cell(case)
    links, flows = (
        _read_parts(case, "links", _LINK),
        _read_parts(case, "flows", _FLOW, ["path"]),
    )
    capacities = [link["capacity_bytes_per_s"] for link in links]
    paths = [
        _read_path(flow["path"], links, f"flows[{k}].path")
        for k, flow in enumerate(flows)
    ]
    lossy = next(
        (f"links[{k}].loss" for k, link in enumerate(links) if link["loss"]), ""
    )
    return Case(capacities, flows, paths, lossy)


def _read_path(path: Any, links: Sequence[Mapping[str, float]], where: str) -> Path:
    if not isinstance(path, Sequence) or isinstance(path, str) or not path:
        raise InputError("a list of indices of links", where=where, got=path)
    for link in path:
        if not _is_index(link, links):
            raise InputError(
                f"indices of links from 0 to {len(links) - 1}", where=where, got=link
            )
    if len(set(path)) != len(path):
        raise InputError("each link at most once", where=where, got=list(path))
    latency_s = sum([links[k]["latency_s"] for k in path])
    loss = 1 - float(np.prod([1 - links[k]["loss"] for k in path]))
    return Path(tuple(path), tuple(path), latency_s, 2 * latency_s, loss)


def _parse_cell(case: Mapping[str, Plain]) -> Case:
    """Return a case of a cell, on a star whose clients are the cell's stations."""
    (spec,) = _check_parts([case["cell"]], "cell", {}, _CELL_KEYS)
    wires = [case.get("wired") or {}]
    unlimited = {**_WIRE, "capacity_bytes_per_s": _ABOVE_0._replace(default=inf)}
    (wired,) = _check_parts(wires, "wired", unlimited)
    cell: Wifi | Cellular
    scheduler = spec["scheduler"]
    if scheduler is not None:
        try:
            cell = Cellular(
                scheduler.lower() if isinstance(scheduler, str) else scheduler
            )
        except InputError as error:
            raise error.changed(where="cell.scheduler") from None
        kind, members = "ue", _read_parts(case, "ues", _ALONE)
        up, down = (np.array([member[key] for member in members]) for key in _ALONE)
        weights = cell.weights(up), cell.weights(down)
    else:
        kind, members = "station", _read_parts(case, "stations", _RATE, ["mcs"])
        cell = _make_wifi(spec)
        rates = np.array([_read_rate(cell, one, k) for k, one in enumerate(members)])
        up = down = cell.alone(rates)
        weights = cell.weights(rates)
    star = Star(
        len(members),
        up_bytes_per_s=up,
        down_bytes_per_s=down,
        latency_s=cell.latency_s,
        receive_bytes_per_s=wired["capacity_bytes_per_s"],
        send_bytes_per_s=wired["capacity_bytes_per_s"],
        server_latency_s=wired["latency_s"],
        cells=[Cell("case", range(len(members)), *weights, cell.one_air)],
    )
    flows = _read_parts(case, "flows", _FLOW, [kind, "direction"])
    for k, flow in enumerate(flows):
        check_known(flow["direction"], ("up", "down"), where=f"flows[{k}].direction")
        if not _is_index(flow[kind], members):
            allowed = f"an index of {kind}s, from 0 to {len(members) - 1}"
            raise InputError(allowed, where=f"flows[{k}].{kind}", got=flow[kind])
    paths = [star.path(int(flow[kind]), flow["direction"]) for flow in flows]
    return Case(star.capacities_bytes_per_s, flows, paths)


def _make_wifi(spec: Mapping[str, Any]) -> Wifi:
    # 0: the standard's
    spec = {**spec, "max_ampdu_bytes": spec["max_ampdu_bytes"] or None}
    given = {
        k.removeprefix("spatial_"): value
        for k, value in spec.items()
        if value is not None
    }
    try:
        return Wifi(
            **given | {"standard": str(spec["standard"]).removeprefix("802.11")}
        )
    except InputError as error:
        raise error.changed(where=f"cell.{error.where}") from None


def _read_rate(wifi: Wifi, station: Mapping[str, Any], number: int) -> float:
    """Return the PHY rate of a station, which says it or its MCS."""
    (key,) = _RATE
    rate = station[key]
    try:
        if not isfinite(rate) and station["mcs"] is not None:
            key = "mcs"
            return wifi.phy_rate(station["mcs"])
        if not isfinite(rate):
            raise InputError(_ABOVE_0.allowed, got="nothing")
        wifi.check_rate(rate)
    except InputError as error:
        raise error.changed(where=f"stations[{number}].{key}") from None
    return float(rate)


# ---- parts ---------------------------------------------------------------------------


def _read_parts(
    case: Mapping[str, Any],
    key: str,
    numbers: Mapping[str, _Number],
    others: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return the list of mappings under a key of a case, see `_check_parts`."""
    parts = case.get(key)
    if not isinstance(parts, Sequence) or isinstance(parts, str) or not parts:
        raise InputError("a list that is not empty", where=key, got=parts)
    return _check_parts(parts, f"{key}[]", numbers, others)


def _check_parts(
    parts: Sequence[Any],
    name: str,
    numbers: Mapping[str, _Number],
    others: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return mappings with these numbers and, unless None, keys of `others`.

    A `[]` in `name`, what errors call them, stands for their place. Measurements come
    with keys of their own; only one that misses one of ours is wrong.
    """
    rows = []
    for place, part in enumerate(parts):
        where = name.replace("[]", f"[{place}]")
        if not isinstance(part, Mapping):
            raise InputError("a mapping", where=where, got=_shorten(part))
        names = {*numbers, *others}
        for key in part.keys() - names:
            hint = did_you_mean(str(key), sorted(names - part.keys()))
            if hint:
                allowed = f"one of the keys {listed(sorted(names))}"
                raise InputError(allowed, where=where, got=key, hint=hint)
        row = {key: part.get(key) for key in others}
        for key, (allowed, holds, default) in numbers.items():
            value = part.get(key)
            row[key] = default
            if value is not None or default is None:
                row[key] = number = read_number(value)
                if not (isfinite(number) and holds(number)):
                    got = part.get(key, "nothing")
                    raise InputError(allowed, where=f"{where}.{key}", got=got)
        rows.append(row)
    return rows


def _is_index(value: Any, of: Sequence[object]) -> bool:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return whole and 0 <= value < len(of)


def _shorten(value: object) -> object:
    """Return a value, which may be long, as an error shows it."""
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else value


# ---- errors against known finish times -----------------------------------------------


@dataclass(frozen=True)
class CaseErrors:
    """The errors of computed completion times, relative to the known ones.

    A flow's error is |computed − known| / known, both counted from the flow's start;
    `makespan` is that of the case's length, from its first start to its last finish,
    with its sign.
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
    """Return one row per case with known finishes, and a last one, `all`, over them.

    Only flows with `finish_s` count. The row `all` pools the flows; its makespan is the
    mean of the cases' absolute makespan errors. Empty if no flow has `finish_s`.

    >>> case = {"name": "a", "links": [], "flows": [{"start_s": 1.0, "finish_s": 5.0}]}
    >>> round(error_table([case], [[4.9]])[0].mean, 6)
    0.025
    """
    rows: list[CaseErrors] = []
    pooled: list[Floats] = []
    for number, (case, finish_s) in enumerate(zip(cases, finishes_s, strict=True)):
        name = str(case.get("name", f"case {number}"))
        which = [
            k
            for k, flow in enumerate(case["flows"])
            if flow.get("finish_s") is not None
        ]
        if not which:
            continue
        starts = np.array([case["flows"][k]["start_s"] for k in which], dtype=float)
        ends = np.array([case["flows"][k]["finish_s"] for k in which], dtype=float)
        computed = np.asarray(finish_s, dtype=float)[which]
        for k in np.flatnonzero(~(ends > starts)):
            place = f"{name}: flows[{which[k]}].finish_s"
            raise InputError(
                "an instant after start_s", where=place, got=float(ends[k])
            )
        errors = np.abs(computed - ends) / (ends - starts)
        span = float(ends.max() - starts.min())
        rows.append(
            _summarise_errors(name, errors, float(computed.max() - ends.max()) / span)
        )
        pooled.append(errors)
    if rows:
        makespan = float(np.mean([abs(row.makespan) for row in rows]))
        rows.append(_summarise_errors("all", np.concatenate(pooled), makespan))
    return rows


def _summarise_errors(name: str, errors: Floats, makespan: float) -> CaseErrors:
    median, p90 = float(np.median(errors)), float(np.quantile(errors, 0.9))
    mean, worst = float(errors.mean()), float(errors.max())
    return CaseErrors(name, len(errors), mean, median, p90, worst, makespan)
