"""Cases of one radio cell: who is in it, what was sent when, and possibly when it really arrived.

    {"name": "…",
     "cell": {"standard": "802.11n", "width_mhz": 20},
     "stations": [{"mcs": 7}, {"phy_rate_bytes_per_s": 3250000}],
     "wired": {"capacity_bytes_per_s": 1.25e7, "latency_s": 0.01},
     "flows": [{"start_s": 0, "size_bytes": 30000, "direction": "up", "station": 1,
                "finish_s": 0.05}, …]}

`cell` of Wi-Fi: `standard`; optional `width_mhz`, `spatial_streams`, `guard_interval_ns`,
`aggregation`, `max_ampdu_bytes`, `max_mpdus`, `fair`. Of a cellular cell: `scheduler` (`Pf`, `Rr`),
and in place of `stations` the list `ues` with `alone_up_bytes_per_s` and `alone_down_bytes_per_s`,
what each gets alone in the cell; its flows have `ue` in place of `station`. `wired` is the link
between cell and server, each way. A flow starts at `start_s`, also where a case says besides after
which other one that was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, nan
from typing import NamedTuple

import numpy as np

from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain
from simfed.net.case_parts import check_mapping, is_positive, read_mappings, read_numbers, weights
from simfed.net.cells import Cellular, Wifi
from simfed.net.playing import FlowStart
from simfed.net.topology import Cell, Star

_RATE = "phy_rate_bytes_per_s"
_ALONE = ("alone_up_bytes_per_s", "alone_down_bytes_per_s")
_CELL_KEYS = {
    *("standard", "width_mhz", "spatial_streams", "guard_interval_ns", "aggregation"),
    *("max_ampdu_bytes", "max_mpdus", "fair", "scheduler"),
}
_FLOW_KEYS = {"start_s", "size_bytes", "direction", "finish_s", "weight"}
_WIRE_KEYS = {"capacity_bytes_per_s", "latency_s"}


class CellCase(NamedTuple):
    """A checked case of a radio cell."""

    topology: Star
    """A star whose clients are the cell's stations."""
    sends: list[FlowStart]
    """The flows, in their order."""


def parse_cell_case(case: Mapping[str, Plain]) -> CellCase:
    """What the case says; an `InputError` names the first thing that is wrong with it."""
    spec = check_mapping(case["cell"], _CELL_KEYS, "cell")
    wired = [check_mapping(case.get("wired") or {}, _WIRE_KEYS, "wired")]
    kind, keys = ("ue", set(_ALONE)) if "scheduler" in spec else ("station", {"mcs", _RATE})
    members = read_mappings(case, f"{kind}s", keys)
    make = _read_cellular_cell if kind == "ue" else _read_wifi_cell
    cell, up, down, latency_s = make(spec, members)
    capacity = read_numbers(
        wired, "wired", "capacity_bytes_per_s", inf, "a number above 0", is_positive
    )[0]
    topology = Star(
        len(members),
        up_bytes_per_s=up,
        down_bytes_per_s=down,
        latency_s=latency_s,
        receive_bytes_per_s=capacity,
        send_bytes_per_s=capacity,
        server_latency_s=read_numbers(wired, "wired", "latency_s", 0.0, "a number of at least 0")[
            0
        ],
        cells=[cell],
    )
    return CellCase(
        topology, _read_sends(read_mappings(case, "flows", _FLOW_KEYS | {kind}), kind, members)
    )


def _read_sends(
    flows: Sequence[Mapping[str, Plain]], kind: str, members: Sequence[object]
) -> list[FlowStart]:
    read_numbers(flows, "flows", "finish_s", nan, "a number", lambda x: True)
    starts_s = read_numbers(flows, "flows", "start_s", None, "a number of at least 0")
    sizes_bytes = read_numbers(flows, "flows", "size_bytes", None, "a number of at least 0")
    sends = []
    for number, (flow, weight) in enumerate(zip(flows, weights(flows), strict=True)):
        where, member, direction = f"flows[{number}]", flow.get(kind), flow.get("direction")
        if direction not in ("up", "down"):
            raise InputError("up or down", where=f"{where}.direction", got=direction)
        whole = isinstance(member, (int, np.integer)) and not isinstance(member, bool)
        index = int(member) if whole and member is not None else -1
        if not 0 <= index < len(members):
            allowed = f"an index of {kind}s, from 0 to {len(members) - 1}"
            raise InputError(allowed, where=f"{where}.{kind}", got=member)
        terms = starts_s[number], index, sizes_bytes[number]
        sends.append(FlowStart(*terms, direction, weight=weight))
    return sends


def _read_wifi_cell(
    spec: Mapping[str, Plain], stations: Sequence[Mapping[str, Plain]]
) -> tuple[Cell, Floats, Floats, float]:
    """The cell, what its stations get alone in it up and down, and its latency."""
    try:
        wifi = Wifi(
            str(spec.get("standard")).removeprefix("802.11"),
            spec.get("width_mhz", 20),
            spec.get("spatial_streams", 1),
            spec.get("guard_interval_ns", 800),
            bool(spec.get("aggregation", True)),
            spec.get("fair", "packets"),
            spec.get("max_ampdu_bytes") or None,
            spec.get("max_mpdus"),
        )
    except InputError as error:
        raise error.changed(where=f"cell.{error.where}") from None
    rates = []
    for number, station in enumerate(stations):
        try:
            if station.get(_RATE) is None and "mcs" in station:
                rates.append(wifi.phy_rate(station["mcs"]))
                continue
            rates += read_numbers([station], "", _RATE, None, "a number above 0", is_positive)
            wifi.check_rate(rates[-1])
        except InputError as error:
            key = "mcs" if error.where == "mcs" else _RATE
            raise error.changed(where=f"stations[{number}].{key}") from None
    alone, members = wifi.alone(np.array(rates)), range(len(rates))
    cell = Cell("case", members, *wifi.weights(np.array(rates)))
    return cell, alone, alone, wifi.latency_s


def _read_cellular_cell(
    spec: Mapping[str, Plain], ues: Sequence[Mapping[str, Plain]]
) -> tuple[Cell, Floats, Floats, float]:
    """A cellular case's cell, rates and air times, as `_read_wifi_cell` gives them."""
    scheduler = spec["scheduler"]
    try:
        cellular = Cellular(scheduler.lower() if isinstance(scheduler, str) else scheduler)
    except InputError as error:
        raise error.changed(where="cell.scheduler") from None
    up, down = (
        np.array(read_numbers(ues, "ues", key, None, "a number above 0", is_positive))
        for key in _ALONE
    )
    terms = cellular.weights(up), cellular.weights(down)
    return Cell("case", range(len(ues)), *terms, one_air=False), up, down, cellular.latency_s
