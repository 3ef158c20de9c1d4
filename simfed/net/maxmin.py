"""Max-min fair sharing, once and for all flows: the plain algorithm.

The engine (`simfed.net.sharing`) never solves from scratch; it repairs the last
solution. This page is the definition it has to agree with, its way out when a repair
does not settle, and the certificate that tells whether an allocation is max-min fair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, inf

OWN_CAP = -1
"""Stands for the flow's own cap where a bottleneck is named by its link's index."""


@dataclass(frozen=True)
class Allocation:
    """Rates in bytes/s, and the link that limits each flow (`OWN_CAP`: its own cap)."""

    rates_bytes_per_s: list[float]
    bottlenecks: list[int]


def max_min(
    capacities_bytes_per_s: Sequence[float],
    paths: Sequence[Sequence[int]],
    weights: Sequence[float] | None = None,
    caps_bytes_per_s: Sequence[float] | None = None,
    costs: Sequence[Sequence[float]] | None = None,
) -> Allocation:
    """Return weighted max-min rates of flows over links, by progressive filling.

    All flows rise together, each in proportion to its weight, until a link on the path
    is full or the flow's own cap is reached; that fixes the flow, the rest rise on. A
    flow without a cap on an empty path gets an infinite rate. Takes O(levels ×
    flow-link pairs).

    Args:
        capacities_bytes_per_s: per link, at least 0; `inf` for a link that never
            limits.
        paths: per flow, indices of the links it uses, each once.
        weights: per flow, above 0 (default 1).
        caps_bytes_per_s: per flow, at least 0 (default none).
        costs: per flow, for each link of its path what a byte takes of the link's
            capacity, above 0 (default 1): Σ cost × rate stays within each capacity.

    >>> max_min([10.0, 4.0], [[0], [0, 1], [0, 1]]).rates_bytes_per_s
    [6.0, 2.0, 2.0]
    >>> max_min([1.0], [[0], [0]], costs=[[0.25], [0.0625]]).rates_bytes_per_s
    [3.2, 3.2]
    """
    n = len(paths)
    weight, cap = _fill_defaults(n, weights, caps_bytes_per_s)
    users: dict[int, list[int]] = {}
    cost_on: dict[int, dict[int, float]] = {}
    for flow, path in enumerate(paths):
        for at, link in enumerate(path):
            users.setdefault(link, []).append(flow)
            cost_on.setdefault(link, {})[flow] = (
                1.0 if costs is None else costs[flow][at]
            )
    rates = [inf] * n
    bottlenecks = [OWN_CAP] * n
    rising = dict.fromkeys(flow for flow in range(n) if paths[flow] or cap[flow] < inf)
    # what is taken is summed anew for every level: repeated subtraction would lose the
    # small ones
    while rising:
        levels = {}
        for link, flows in users.items():
            cost = cost_on[link]
            weights_rising = fsum(cost[f] * weight[f] for f in flows if f in rising)
            if weights_rising:
                taken = fsum(cost[f] * rates[f] for f in flows if f not in rising)
                levels[link] = (
                    max(capacities_bytes_per_s[link] - taken, 0.0) / weights_rising
                )
        level, tightest = min(
            ((v, k) for k, v in levels.items()), default=(inf, OWN_CAP)
        )
        capped = [f for f in rising if cap[f] <= level * weight[f]]
        # fixing them can only raise the level, so all of them at once
        for flow in capped:
            rates[flow] = cap[flow]
            del rising[flow]
        for flow in () if capped else users[tightest]:
            if flow in rising:
                rates[flow] = level * weight[flow]
                bottlenecks[flow] = tightest
                del rising[flow]
    return Allocation(rates, bottlenecks)


def _fill_defaults(
    flows: int, weights: Sequence[float] | None, caps: Sequence[float] | None
) -> tuple[Sequence[float], Sequence[float]]:
    """Return weights and caps per flow, by default 1 and none."""
    return [1.0] * flows if weights is None else weights, [
        inf
    ] * flows if caps is None else caps


def why_not_max_min(
    capacities_bytes_per_s: Sequence[float],
    paths: Sequence[Sequence[int]],
    rates_bytes_per_s: Sequence[float],
    weights: Sequence[float] | None = None,
    caps_bytes_per_s: Sequence[float] | None = None,
    tolerance: float = 1e-9,
    costs: Sequence[Sequence[float]] | None = None,
) -> str | None:
    """Return None if the rates are max-min fair, else which condition fails.

    The certificate: no link carries more than its capacity, no flow exceeds its cap,
    and every flow is at its cap or crosses a full link on which no flow has a higher
    rate per weight. Rates with this property are unique (Bertsekas & Gallager, Data
    Networks, section 6.5.2).

    Args:
        capacities_bytes_per_s: per link.
        paths: per flow, indices of the links it uses, each once.
        rates_bytes_per_s: per flow, what is to be judged.
        weights: per flow, above 0 (default 1).
        caps_bytes_per_s: per flow (default none).
        tolerance: relative, within which a link is full and a flow at its cap.
        costs: as of `max_min`.

    >>> why_not_max_min([10.0], [[0], [0]], [4.0, 6.0])
    'flow 0 is neither at its cap nor the fastest on a full link'
    """
    weight, cap = _fill_defaults(len(paths), weights, caps_bytes_per_s)
    load: dict[int, list[float]] = {}
    top: dict[int, float] = {}
    for flow, (path, rate, w) in enumerate(
        zip(paths, rates_bytes_per_s, weight, strict=True)
    ):
        for at, link in enumerate(path):
            cost = 1.0 if costs is None else costs[flow][at]
            load.setdefault(link, []).append(cost * rate)
            top[link] = max(top.get(link, 0.0), rate / w)
    full = set()
    for link, parts in load.items():
        capacity, used = capacities_bytes_per_s[link], fsum(parts)
        if used > capacity * (1 + tolerance):
            return f"link {link} carries {used} of {capacity} bytes/s"
        if used >= capacity * (1 - tolerance):
            full.add(link)
    for flow, (path, rate, w) in enumerate(
        zip(paths, rates_bytes_per_s, weight, strict=True)
    ):
        if rate > cap[flow] * (1 + tolerance):
            return f"flow {flow} runs at {rate} bytes/s above its cap of {cap[flow]}"
        at_cap = rate >= cap[flow] * (1 - tolerance)
        if not at_cap and not any(
            k in full and rate / w >= top[k] * (1 - tolerance) for k in path
        ):
            return f"flow {flow} is neither at its cap nor the fastest on a full link"
    return None
