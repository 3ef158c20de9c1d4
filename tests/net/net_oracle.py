"""Slow networks, written from the definitions and sharing no code with simfed.

`Oracle` is what the engine is held against: rates by progressive filling in `Fraction`s
after every event, remaining bytes of every flow carried along. `least_ways` is what the
routes are. O(everything).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass
class OracleFlow:
    path: tuple[int, ...]
    left: Fraction
    joins_at: Fraction
    started_at: Fraction
    weight: Fraction = Fraction(1)
    cap: Fraction | None = None
    costs: dict[int, Fraction] = field(default_factory=dict)
    radio: tuple[int, int] | None = None
    """A link, and the airtime on which a byte costs one over that link's capacity."""
    ended_at: Fraction | None = None
    cancelled: bool = False

    @property
    def there(self):
        return self.ended_at is None and not self.cancelled

    def active(self, now):
        return self.there and self.joins_at <= now

    def waits(self, now):
        return self.there and self.joins_at > now


@dataclass
class Oracle:
    capacities: list[Fraction]
    now: Fraction = Fraction(0)
    flows: list[OracleFlow] = field(default_factory=list)

    def cost(self, k, link):
        flow = self.flows[k]
        if flow.radio is not None and flow.radio[1] == link:
            alone = self.capacities[flow.radio[0]]
            if alone:
                return 1 / alone
        return flow.costs.get(link, Fraction(1))

    def rates(self):
        """Max-min rates of the active flows by raising one common level."""
        rising = {k for k, f in enumerate(self.flows) if f.active(self.now)}
        rates: dict[int, Fraction] = {}
        while rising:
            limits = []
            for link, capacity in enumerate(self.capacities):
                over = [k for k in rising if link in self.flows[k].path]
                users = [k for k in rates if link in self.flows[k].path]
                left = capacity - sum(rates[k] * self.cost(k, link) for k in users)
                cost = sum(self.flows[k].weight * self.cost(k, link) for k in over)
                if over:
                    limits.append((left / cost, over))
            for k in rising:
                flow = self.flows[k]
                if flow.cap is not None:
                    limits.append((flow.cap / flow.weight, [k]))
            level = min(limit for limit, _ in limits)
            for limit, who in limits:
                for k in who if limit == level else ():
                    rates[k] = level * self.flows[k].weight
                    rising.discard(k)
        return rates

    def advance(self, until):
        while True:
            rates = self.rates()
            # what ends at this very instant ends before anything else happens
            over = [k for k in rates if self.flows[k].left == 0]
            if over:
                for k in over:
                    self.flows[k].ended_at = self.now
                continue
            waits = [f.joins_at for f in self.flows if f.waits(self.now)]
            ends = [
                self.now + self.flows[k].left / r for k, r in rates.items() if r > 0
            ]
            then = min([until, *waits, *ends])
            if then > until or then == self.now:
                return
            for k, rate in rates.items():
                self.flows[k].left -= rate * (then - self.now)
            self.now = then

    def drain(self):
        """Play until nothing is left to happen."""
        while any(f.there for f in self.flows):
            before = self.now
            self.advance(self.now + 1000)
            if self.now == before:
                return


def least_ways(lines, server, way):
    """For every node that has one, the lines of its way to the server (`up`) or from it
    (`down`).

    Dijkstra over whole ways: of least latency, then of fewest links, then first in the
    alphabet by the names from the server on, then by the numbers of the lines.
    """
    ways = {}
    heap = [(0.0, 0, (server,), ())]
    while heap:
        latency_s, links, names, way_lines = heapq.heappop(heap)
        if names[-1] in ways:
            continue
        ways[names[-1]] = way_lines
        for k, line in enumerate(lines):
            near, far = (
                (line.head, line.tail) if way == "up" else (line.tail, line.head)
            )
            if near == names[-1] and far not in ways:
                longer = (k, *way_lines) if way == "up" else (*way_lines, k)
                heapq.heappush(
                    heap, (latency_s + line.latency_s, links + 1, (*names, far), longer)
                )
    return ways
