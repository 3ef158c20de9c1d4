"""Errors of the models of radio cells against ns-3, and PHY rates: docs/radio-cells.md.

    python analysis/network_errors.py    # puts the tables into the page

The cases are in tests/golden (ns3_wifi, ns3_lte). Beside the model stand two simpler
ones, which a scenario without cells would have: each client's own link at its PHY rate
(LTE: at what it gets alone), and one shared link of what the fastest client gets alone
(saturation throughput).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pages import markdown, write_page

from simfed import net
from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError
from simfed.net.cases import parse_case
from simfed.net.cells import Wifi
from simfed.net.playing import FlowStart, play
from simfed.net.topology import Star

PAGE = Path(__file__).parents[1] / "docs" / "radio-cells.md"
GOLDEN = Path(__file__).parents[1] / "tests" / "golden"

Case = Mapping[str, Any]
KINDS = {
    "solo": "one client, one transfer at a time",
    "upequal": "uploads at once, equal rates",
    "upmixed": "uploads at once, mixed rates",
    "downequal": "downloads at once, equal rates",
    "downmixed": "downloads at once, mixed rates",
    "updown": "uploads and downloads at once",
    "round": "a federated round, mixed rates",
    "roundfast": "a federated round, all fast",
    "stagger": "starts spread over 2 s",
    "anomaly": "one slow station among fast ones",
}
CELLS = {
    "n20": "802.11n, 20 MHz",
    "n20noagg": "802.11n, no aggregation",
    "ac80": "802.11ac, 80 MHz",
    "ax40": "802.11ax, 40 MHz",
}


class Errors(NamedTuple):
    """Of some cases: shares."""

    mean: float
    median: float
    makespan: float
    """Mean of the cases'."""
    within_a_fifth: float
    """Of the flows."""


def load(name: str) -> list[Case]:
    """The cases of a golden table."""
    cases: list[Case] = json.loads((GOLDEN / f"{name}.json").read_text())["cases"]
    return cases


def replay(case: Case) -> Floats:
    """The finish times of the model."""
    return net.replay(case, "tcp")


def replay_own_links(case: Case) -> Floats:
    """The same where each client has a link of its own at its PHY rate."""
    members = case.get("stations") or case["ues"]
    names = ("phy_rate_bytes_per_s",) * 2 if "stations" in case else _ALONE
    up, down = (np.array([member[name] for member in members]) for name in names)
    return _replay_wires(case, up, down, np.inf)


def replay_shared_link(case: Case) -> Floats:
    """The same where all share one link, each way, at what the fastest of them gets
    alone.
    """
    alone = np.asarray(parse_case(case).capacities_bytes_per_s)[: 2 * _count(case)]
    return _replay_wires(case, np.inf, np.inf, float(alone.max()))


def errors_of(cases: Sequence[Case], finishes_s: Sequence[Floats]) -> Errors:
    """How far a model is from what the cases say."""
    pooled = net.error_table(cases, finishes_s)[-1]
    shares = np.concatenate(
        [_errors(*pair) for pair in zip(cases, finishes_s, strict=True)]
    )
    return Errors(
        pooled.mean, pooled.median, pooled.makespan, float((shares <= 0.2).mean())
    )


def scatter(cases: Sequence[Case]) -> float:
    """How far a seed of a scenario is from the mean of its others: mean over flows."""
    errors = []
    for name in dict.fromkeys(case["name"] for case in cases):
        seeds = [case["flows"] for case in cases if case["name"] == name]
        if len(seeds) < 2:
            continue
        took = np.array(
            [[f["finish_s"] - f["start_s"] for f in flows] for flows in seeds]
        )
        others = (took.sum(0) - took) / (len(seeds) - 1)
        errors.append(np.abs(others / took - 1).ravel())
    return float(np.concatenate(errors).mean())


def table() -> str:
    wifi, lte = load("ns3_wifi"), load("ns3_lte")
    groups = [("**Wi-Fi, all**", wifi)]
    groups += [
        (text, [c for c in wifi if c["cell"]["name"] == key])
        for key, text in CELLS.items()
    ]
    groups += [
        (text, [c for c in wifi if c["kind"] == key]) for key, text in KINDS.items()
    ]
    groups.append(("**LTE, all**", lte))
    models = (replay, replay_own_links, replay_shared_link)
    ends_s = {id(case): [one(case) for one in models] for case in (*wifi, *lte)}
    lines = [["cases of ns-3", "flows", "mean", "median", "makespan", "within 20 %"]]
    lines[0] += ["ns-3's own scatter", "each its own link", "one shared link"]
    for text, cases in groups:
        model, own, shared = (
            errors_of(cases, of_model)
            for of_model in zip(*(ends_s[id(case)] for case in cases), strict=True)
        )
        figures = [
            *model[:3],
            model.within_a_fifth,
            scatter(cases),
            own.mean,
            shared.mean,
        ]
        flows = sum(len(case["flows"]) for case in cases)
        lines.append(
            [text, str(flows), *(f"{100 * figure:.1f} %" for figure in figures)]
        )
    return markdown(lines)


def phy_rates() -> str:
    """The table of PHY rates as Markdown: a row per standard and width, a column per
    MCS.
    """
    lines = [["MCS", *map(str, range(12))]]
    for standard, widths in (
        ("n", (20, 40)),
        ("ac", (20, 40, 80, 160)),
        ("ax", (20, 40, 80, 160)),
    ):
        for width in widths:
            cells = [_mbps(Wifi(standard, width), mcs) for mcs in range(12)]
            lines.append([f"{standard}, {width} MHz", *cells])
    return markdown(lines)


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    return {"cell errors": table(), "phy rates": phy_rates()}


def _mbps(wifi: Wifi, mcs: int) -> str:
    try:
        return f"{8e-6 * wifi.phy_rate(mcs):.4g}"
    except InputError:
        return "–"


_ALONE = ("alone_up_bytes_per_s", "alone_down_bytes_per_s")


def _count(case: Case) -> int:
    return len(case.get("stations") or case["ues"])


def _replay_wires(
    case: Case, up: Floats | float, down: Floats | float, shared: float
) -> Floats:
    wired = case["wired"]
    rate = min(shared, wired["capacity_bytes_per_s"])
    star = Star(
        _count(case),
        up_bytes_per_s=up,
        down_bytes_per_s=down,
        receive_bytes_per_s=rate,
        send_bytes_per_s=rate,
        server_latency_s=wired["latency_s"],
    )
    kind = "station" if "stations" in case else "ue"
    sends = [
        FlowStart(flow["start_s"], flow[kind], flow["size_bytes"], flow["direction"])
        for flow in case["flows"]
    ]
    arrivals = zip(sends, play(star, sends, "tcp"), strict=True)
    return np.array([send.at_s + end.duration_s for send, end in arrivals])


def _errors(case: Case, finish_s: Floats) -> Floats:
    starts_s = np.array([flow["start_s"] for flow in case["flows"]])
    ends_s = np.array([flow["finish_s"] for flow in case["flows"]])
    shares: Floats = np.abs(finish_s - ends_s) / (ends_s - starts_s)
    return shares


if __name__ == "__main__":
    write_page("network_errors")
