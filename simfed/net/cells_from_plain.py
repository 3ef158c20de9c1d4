"""From the cells of a scenario to what a topology knows of them.

In two steps: before traces are read, each client of a cell gets a link whose rate is its PHY rate
(in a cellular cell: what it gets alone); once they are known, PHY rates become what each gets
alone, and cells get their members and weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError, check_known, listed
from simfed.ground.plain import Plain
from simfed.net.cells import Cellular, Wifi
from simfed.net.topology import Access, Cell, Direction
from simfed.net.traces import LinkTrace, Trace, make_column

Spec = Mapping[str, Plain]
Technologies = Mapping[str, Wifi | Cellular]
"""Name of a cell → how its stations share the air."""
_WAYS: tuple[Direction, Direction] = ("up", "down")


def read_cells(network: Spec) -> Technologies:
    """What the cells of the network are. Raises: `InputError` for what a standard does not have."""
    cells: dict[str, Wifi | Cellular] = {}
    for name, spec in (network.get("cells") or {}).items():
        kind = "wifi" if spec.get("wifi") is not None else "cellular"
        options = spec.get(kind) or {}
        try:
            cells[name] = _make_wifi(options) if kind == "wifi" else Cellular(**options)
        except InputError as error:
            raise error.changed(where=f"network.cells.{name}.{kind}.{error.where}") from None
    return cells


def place_in_cells(network: Spec, links: Sequence[Spec], cells: Technologies) -> list[Spec]:
    """`links`, those in cells with the rates, latencies and nodes that they have there.

    Raises: `InputError` for a cell that there is not, one without members or without a node, and
    rates that its clients need or do not have.
    """
    specs, members = network.get("cells") or {}, set()
    placed: list[Spec] = []
    for i, link in enumerate(links):
        name, where = link.get("cell"), f"clients[{i}].link"
        if name is None:
            placed.append(link)
            continue
        check_known(name, cells, "one of network.cells:", where=f"{where}.cell")
        if link.get("at") is not None:
            allowed, problem = f"no node beside cell {name}", f"network.cells.{name}.at has it"
            raise InputError(allowed, where=f"{where}.at", got=link["at"], problem=problem)
        members.add(name)
        placed.append(_place_link(link, cells[name], specs[name].get("at"), where))
    for name in cells:
        where = f"network.cells.{name}"
        if name not in members:
            allowed = f"clients with link: {{cell: {name}}}"
            raise InputError(allowed, where=where, problem="nobody is in it")
        if network.get("topology") == "graph" and specs[name].get("at") is None:
            allowed = "a node of the graph to be attached to"
            raise InputError(allowed, where=f"{where}.at", problem="it is missing")
    return placed


def join_cells(
    access: Access,
    links: Sequence[Spec],
    link_of_client: np.ndarray,
    cells: Technologies,
    shares: Mapping[str, float | LinkTrace],
) -> Access:
    """`access` with its cells, which have these shares of the air's time, and with what clients get
    alone in place of PHY rates."""
    if not cells:
        return access
    rates = np.array([access.up_bytes_per_s, access.down_bytes_per_s])
    means = rates.copy()
    for (client, way), varying in access.traces.items():
        assert isinstance(varying.trace, Trace)
        rates[_WAYS.index(way), client] = varying.trace.peak_bytes_per_s
        means[_WAYS.index(way), client] = varying.trace.mean_bytes_per_s
    link_traces, joined = dict(access.traces), []
    for name, technology in cells.items():
        of_links = [i for i, link in enumerate(links) if link.get("cell") == name]
        members = np.flatnonzero(np.isin(link_of_client, of_links))
        if isinstance(technology, Wifi):
            for i in of_links:
                _check_rates(technology, rates[0, link_of_client == i], f"clients[{i}].link.rate")
            rates[:, members] = technology.alone(rates[0, members])
            weights = technology.weights(means[0, members])
            mean_shares = [float(technology.shares(means[0, members]).mean())] * 2
        else:
            weights = technology.weights(means[0, members]), technology.weights(means[1, members])
            mean_shares = means[:, members].mean(axis=1).tolist()
        for client in members.tolist():
            for k, way in enumerate(_WAYS):
                if (client, way) in link_traces:
                    varying = link_traces[client, way]
                    link_traces[client, way] = _convert_trace(
                        varying, technology, k, mean_shares[k]
                    )
        joined.append(Cell(name, members.tolist(), *weights, technology.one_air, shares[name]))
    up, down = rates
    return replace(
        access, up_bytes_per_s=up, down_bytes_per_s=down, traces=link_traces, cells=joined
    )


def _make_wifi(spec: Mapping[str, Any]) -> Wifi:
    return Wifi(
        spec["standard"],
        round(spec.get("width", 20e6) / 1e6),
        spec.get("streams", 1),
        aggregation=spec.get("aggregation", True),
        fair=spec.get("fair", "packets"),
    )


def _place_link(link: Spec, technology: Wifi | Cellular, at: Plain, where: str) -> Spec:
    """A link of a client in a cell, as that of a client with its rates to itself."""
    rates = {key: link.get(key) for key in ("rate", "mcs", "up", "down")}
    stated = {key for key, rate in rates.items() if rate is not None}
    if isinstance(technology, Wifi):
        if len(stated & {"rate", "mcs"}) != 1 or len(stated) > 1:
            got = listed(sorted(stated)) or "neither"
            raise InputError("rate or mcs, in a Wi-Fi cell", where=where, got=got)
        rate = rates["rate"]
        if rate is None:
            try:
                rate = technology.phy_rate(int(link["mcs"]))
            except InputError as error:
                raise error.changed(where=f"{where}.mcs") from None
        ways = {"up": rate, "down": rate}
    else:
        if stated != {"up", "down"}:
            allowed = "up and down, in a cellular cell: what each gets alone in it"
            raise InputError(allowed, where=where, got=listed(sorted(stated)) or "neither")
        ways = {"up": rates["up"], "down": rates["down"]}
    latency, down_latency = link.get("latency") or 0.0, link.get("down_latency")
    latencies = {
        "latency": latency + technology.latency_s,
        "down_latency": None if down_latency is None else down_latency + technology.latency_s,
    }
    return {**link, **ways, **latencies, "at": at}


def _check_rates(wifi: Wifi, rates: Floats, where: str) -> None:
    try:
        wifi.check_rate(float(rates.max()))
    except InputError as error:
        raise error.changed(where=where) from None


def _convert_trace(
    varying: LinkTrace, technology: Wifi | Cellular, way: int, mean_share: float
) -> LinkTrace:
    """What a client gets alone and how it weighs, of a trace of its rate; `way`: of `_WAYS`."""
    trace = varying.trace
    assert isinstance(trace, Trace)
    rates = np.asarray(trace.rates_bytes_per_s)
    if isinstance(technology, Wifi):
        alone, weights = technology.alone(rates), technology.weights(rates, mean_share)[way]
    else:
        alone, weights = rates, technology.weights(rates, mean_share)
    heard = replace(trace, rates_bytes_per_s=make_column(alone), radio_weights=make_column(weights))
    return LinkTrace(heard, varying.offset_s)
