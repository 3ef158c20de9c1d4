"""Cases: links, flows with given starts, and possibly when they really finished.

A case is how a network model is held against something that is known: another
simulator's tables, or a user's own measurements. No SimPy, no clients: paths are given
link by link.

    {"name": "…",
     "links": [{"capacity_bytes_per_s": 1.25e6, "latency_s": 0.02}, …],
     "flows": [{"start_s": 0, "size_bytes": 30000, "path": [0, 5],
                "finish_s": 0.31}, …]}

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import ConfigDict, model_validator

from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError, did_you_mean, listed, within
from simfed.ground.plain import Plain
from simfed.net.cells import Cellular, Wifi
from simfed.net.engine import Engine
from simfed.net.flows import LEAST_WEIGHT, MOST_WEIGHT
from simfed.net.models import Fluid, ModelSpec, make_model
from simfed.net.topology import Cell, Path, Star
from simfed.schema.fields import BelowOne, Int, NonNegative, Number, Positive
from simfed.schema.quantity import Quantity
from simfed.schema.section import Section
from simfed.schema.sentences import validate_as


class _Part(Section):
    """A mapping of a case. Measurements come with keys of their own."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _refuse_misspelt(cls, value: Any) -> Any:
        names = set(cls.model_fields)
        for key in value.keys() - names if isinstance(value, Mapping) else ():
            hint = did_you_mean(str(key), sorted(names - value.keys()))
            if hint:
                allowed = f"one of the keys {listed(sorted(names))}"
                raise InputError(allowed, got=key, hint=hint)
        return value


class _Wire(_Part):
    capacity_bytes_per_s: Positive = inf
    latency_s: NonNegative = 0.0


class _Link(_Wire):
    capacity_bytes_per_s: Positive
    loss: BelowOne = 0.0


class _Flow(_Part):
    start_s: NonNegative
    size_bytes: NonNegative
    finish_s: Number | None = None
    weight: Annotated[float, Quantity(ge=LEAST_WEIGHT, le=MOST_WEIGHT)] = 1.0
    cap_bytes_per_s: Positive = inf
    path: tuple[Int, ...] = ()
    station: Int | None = None
    ue: Int | None = None
    direction: Literal["up", "down"] = "up"


class _Cell(_Part):
    """Of these keys `Wifi` says which values there are, and `Cellular`."""

    standard: Any = None
    width_mhz: Any = None
    spatial_streams: Any = None
    guard_interval_ns: Any = None
    aggregation: Any = None
    max_ampdu_bytes: Any = None
    max_mpdus: Any = None
    fair: Any = None
    scheduler: Any = None

    def make(self) -> Wifi | Cellular:
        """Return the cell."""
        given = {
            key.removeprefix("spatial_"): value
            for key, value in self.model_dump().items()
            if value is not None
        }
        if "scheduler" in given:
            return Cellular(str(self.scheduler).lower())
        standard = str(self.standard).removeprefix("802.11")
        return Wifi(
            **{k: v for k, v in given.items() if v or k != "max_ampdu_bytes"}
            | {"standard": standard}
        )


class _Station(_Part):
    mcs: Int | None = None
    phy_rate_bytes_per_s: Positive | None = None

    def rate(self, wifi: Wifi) -> float:
        """Return its PHY rate, which it says or its MCS."""
        if self.phy_rate_bytes_per_s is None and self.mcs is not None:
            return wifi.phy_rate(self.mcs)
        if self.phy_rate_bytes_per_s is None:
            raise InputError("mcs or phy_rate_bytes_per_s", got="neither")
        wifi.check_rate(self.phy_rate_bytes_per_s)
        return self.phy_rate_bytes_per_s


class _Equipment(_Part):
    alone_up_bytes_per_s: Positive
    alone_down_bytes_per_s: Positive


class _CaseSpec(_Part):
    flows: tuple[_Flow, ...]
    links: tuple[_Link, ...] = ()
    cell: _Cell | None = None
    stations: tuple[_Station, ...] = ()
    ues: tuple[_Equipment, ...] = ()
    wired: _Wire = _Wire()


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
    flows = []
    for number, (row, path) in enumerate(zip(read.flows, read.paths, strict=True)):
        flow = flow_model.flow(
            number,
            row.size_bytes,
            path,
            read.capacities_bytes_per_s.__getitem__,
            row.weight,
            row.cap_bytes_per_s,
        )
        flows.append(path.enter(flow))
        engine.start(flow, row.start_s)
    engine.advance(inf)
    ends = zip(read.flows, flows, strict=True)
    return np.array([row.start_s + flow.spent_s for row, flow in ends])


class Case(NamedTuple):
    """A checked case."""

    capacities_bytes_per_s: Sequence[float] | Floats
    flows: Sequence[_Flow]
    paths: list[Path]
    """The path of each flow."""
    lossy: str = ""
    """The key of the first link that loses packets, if any does."""


def parse_case(case: Mapping[str, object]) -> Case:
    """Return a checked case.

    Raises: `InputError` that names what is wrong with it.
    """
    spec = validate_as(_CaseSpec, case, source="case", folder=FilePath())
    if spec.cell is not None:
        return _parse_cell(spec, spec.cell)
    links, paths = spec.links, list[Path]()
    _check_filled(spec, "links", "flows")
    for k, flow in enumerate(spec.flows):
        path, where = flow.path, f"flows[{k}].path"
        if not path or max(path) >= len(links) or len({*path}) < len(path):
            allowed = f"indices of links, each once, from 0 to {len(links) - 1}"
            raise InputError(allowed, where=where, got=list(path))
        latency_s = sum([links[k].latency_s for k in path])
        loss = 1 - float(np.prod([1 - links[k].loss for k in path]))
        paths.append(Path(path, path, latency_s, 2 * latency_s, loss))
    lossy = next((f"links[{k}].loss" for k, link in enumerate(links) if link.loss), "")
    return Case([link.capacity_bytes_per_s for link in links], spec.flows, paths, lossy)


def _check_filled(spec: _CaseSpec, *keys: str) -> None:
    """Refuse a case in which one of these lists is empty."""
    for key in keys:
        if not getattr(spec, key):
            raise InputError("a list that is not empty", where=key, got=[])


def _parse_cell(spec: _CaseSpec, written: _Cell) -> Case:
    """Return a case of a cell, on a star whose clients are the cell's stations."""
    with within("cell"):
        cell = written.make()
    members: Sequence[_Station | _Equipment]
    if isinstance(cell, Wifi):
        members, kind, rates = spec.stations, "station", []
        for k, station in enumerate(spec.stations):
            with within(f"stations[{k}]"):
                rates.append(station.rate(cell))
        up = down = cell.alone(np.array(rates))
        weights = cell.weights(np.array(rates))
    else:
        members, kind = spec.ues, "ue"
        up = np.array([one.alone_up_bytes_per_s for one in spec.ues])
        down = np.array([one.alone_down_bytes_per_s for one in spec.ues])
        weights = cell.weights(up), cell.weights(down)
    _check_filled(spec, f"{kind}s", "flows")
    wired = spec.wired
    star = Star(
        len(members),
        up_bytes_per_s=up,
        down_bytes_per_s=down,
        latency_s=cell.latency_s,
        receive_bytes_per_s=wired.capacity_bytes_per_s,
        send_bytes_per_s=wired.capacity_bytes_per_s,
        server_latency_s=wired.latency_s,
        cells=[Cell("case", range(len(members)), *weights, cell.one_air)],
    )
    paths = []
    for k, flow in enumerate(spec.flows):
        member = getattr(flow, kind)
        if member is None or member >= len(members):
            allowed = f"an index of {kind}s, from 0 to {len(members) - 1}"
            raise InputError(allowed, where=f"flows[{k}].{kind}", got=member)
        paths.append(star.path(member, flow.direction))
    return Case(star.capacities_bytes_per_s, spec.flows, paths)


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

    Args:
        cases: as of `replay`.
        finishes_s: of each case the computed instants, as `replay` returns them.

    Raises:
        InputError: a known finish that is not after its flow's start.

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
    """Return the row of a case from its flows' relative errors."""
    median, p90 = float(np.median(errors)), float(np.quantile(errors, 0.9))
    mean, worst = float(errors.mean()), float(errors.max())
    return CaseErrors(name, len(errors), mean, median, p90, worst, makespan)
