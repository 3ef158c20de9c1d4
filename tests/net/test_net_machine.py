"""Any sequence of starts, aborts, capacity changes and waits: the engine agrees with
exact arithmetic.
"""

from __future__ import annotations

from fractions import Fraction
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from net_oracle import Oracle, OracleFlow

from simfed.net import why_not_max_min
from simfed.net.engine import Engine
from simfed.net.flows import Flow
from simfed.net.meter import Meter, Use

# Eighths are exact in binary: both sides see the very same instants.
EIGHTHS = st.integers(0, 32).map(lambda n: Fraction(n, 8))
SMALL = st.integers(1, 12).map(Fraction)


def took_s(exact):
    took = float(exact.ended_at - exact.started_at)
    return pytest.approx(took, rel=1e-9, abs=1e-12)


class NetworkMachine(RuleBasedStateMachine):
    """One engine and one oracle under the same commands."""

    from_scratch = False

    def __init__(self):
        super().__init__()
        self.uses: list[Use] = []
        self.flows: list[Flow] = []
        self.ended: set[int] = set()
        self.gone: set[int] = set()

    @initialize(
        capacities=st.lists(SMALL, min_size=1, max_size=6),
        airs=st.sets(st.integers(0, 5)),
    )
    def build(self, capacities, airs):
        self.airs = airs
        self.oracle = Oracle(list(capacities))
        self.engine = Engine(
            [float(c) for c in capacities], meter=Meter(self.uses.append)
        )
        if self.from_scratch:  # every repair gives up at once
            sharing = self.engine.sharing
            sharing.patience = sharing.patience_per_link = 0

    @rule(
        data=st.data(),
        size=st.integers(0, 60),
        latency=EIGHTHS,
        weight=st.sampled_from([Fraction(1), Fraction(1), Fraction(2), Fraction(1, 2)]),
        cap=st.none() | SMALL,
        copies=st.sampled_from([1, 1, 2, 5]),
    )
    def start(self, data, size, latency, weight, cap, copies):
        links = data.draw(st.permutations(range(len(self.oracle.capacities))))
        path = tuple(links[: data.draw(st.integers(1, len(links)))])
        airs = self.airs & set(path)
        wires = [link for link in path if link not in airs]
        prices = st.sampled_from([Fraction(1, 4), Fraction(3)])
        exact = {air: data.draw(prices) for air in airs}
        radio = None
        if airs and wires and data.draw(st.booleans()):
            radio = wires[0], min(airs)
        now, limit = self.oracle.now, inf if cap is None else float(cap)
        for _ in range(copies):
            self.oracle.flows.append(
                OracleFlow(
                    path, Fraction(size), now + latency, now, weight, cap, exact, radio
                )
            )
            flow = Flow(
                len(self.flows), float(size), path, float(latency), float(weight), limit
            )
            flow.costs = {air: float(cost) for air, cost in exact.items()} or None
            flow.radios = None if radio is None else dict([radio])
            self.flows.append(flow)
            self.engine.start(flow)
        self._advance(self.oracle.now)

    @rule(data=st.data())
    def abort(self, data):
        # A flow within rounding of its end may have ended on one side only: leave it
        # alone.
        running = [
            k
            for k, exact in enumerate(self.oracle.flows)
            if k not in self.ended | self.gone and exact.left > 1e-6
        ]
        if running:
            k = data.draw(st.sampled_from(running))
            flow, exact = self.flows[k], self.oracle.flows[k]
            exact.cancelled = True
            self.engine.cancel(flow)
            self.gone.add(k)
            left = float(exact.left)
            assert flow.remaining_bytes == pytest.approx(left, rel=1e-9)

    @rule(data=st.data(), capacity=st.integers(0, 12).map(Fraction))
    def change_capacity(self, data, capacity):
        link = data.draw(st.integers(0, len(self.oracle.capacities) - 1))
        self.oracle.capacities[link] = capacity
        self.engine.change_capacity(link, float(capacity))

    @rule(
        data=st.data(),
        weight=st.sampled_from([Fraction(1), Fraction(3), Fraction(1, 4)]),
    )
    def change_weight(self, data, weight):
        """Of one that has begun, or not yet; as a trace of its radio does."""
        under_way = [k for k, f in enumerate(self.oracle.flows) if f.ended_at is None]
        if under_way:
            number = data.draw(st.sampled_from(under_way))
            self.oracle.flows[number].weight = weight
            self.engine.sharing.change_weight(self.flows[number], float(weight))
            self.engine._finish()

    @rule(wait=EIGHTHS)
    def wait(self, wait):
        self._advance(self.oracle.now + wait)

    def _advance(self, until):
        self.oracle.advance(until)
        self.oracle.now = until
        self.ended |= {flow.id for flow in self.engine.advance(float(until))}

    @invariant()
    def agrees(self):
        if not hasattr(self, "oracle"):
            return
        now, sharing = self.oracle.now, self.engine.sharing
        rates = self.oracle.rates()
        there = [
            (k, flow, exact)
            for k, (flow, exact) in enumerate(
                zip(self.flows, self.oracle.flows, strict=True)
            )
            if k not in self.gone
        ]
        # one that ends at this very instant may, by rounding, end an ulp later in the
        # engine, and has its share until then
        lags = any(e.ended_at is not None and k not in self.ended for k, _, e in there)
        for k, flow, exact in there:
            if exact.ended_at is not None:
                if k in self.ended:
                    assert flow.spent_s == took_s(exact)
                else:
                    assert sharing.left(flow) <= 1e-9 * flow.size_bytes
            elif exact.joins_at <= now:
                spare = 1e-9 * max(flow.size_bytes, 1)
                left = pytest.approx(float(exact.left), rel=1e-9, abs=spare)
                assert (sharing.left(flow) if flow.joined else 0.0) == left
                if exact.left > 1e-6 and not lags:
                    rate = pytest.approx(float(rates[k]), rel=1e-9, abs=1e-9)
                    assert sharing.rate(flow) == rate
            else:
                assert not flow.joined

    @invariant()
    def is_max_min_fair(self):
        flows = [flow for flow in self.flows if flow.joined]
        if flows:
            why = why_not_max_min(
                [float(c) for c in self.oracle.capacities],
                [flow.links for flow in flows],
                [self.engine.sharing.rate(flow) for flow in flows],
                [flow.weight for flow in flows],
                [flow.cap_bytes_per_s for flow in flows],
                costs=[[flow.cost_on(link) for link in flow.links] for flow in flows],
            )
            assert why is None

    def teardown(self):
        if not hasattr(self, "oracle"):
            return
        for link, capacity in enumerate(self.oracle.capacities):
            if capacity == 0:
                self.engine.change_capacity(link, 1.0)
                self.oracle.capacities[link] = Fraction(1)
        self.oracle.drain()
        self.ended |= {flow.id for flow in self.engine.advance(inf)}
        assert self.ended | self.gone == set(range(len(self.flows)))
        for k in self.ended:
            assert self.flows[k].spent_s == took_s(self.oracle.flows[k])
        for link in range(len(self.oracle.capacities)):
            carried = sum(use[3] for use in self.uses if use[0] == link)
            moved = sum(
                f.size_bytes - f.remaining_bytes for f in self.flows if link in f.links
            )
            assert carried == pytest.approx(moved, rel=1e-9, abs=1e-9)
        for link, from_s, to_s, moved, capacity, _, airtime_s in self.uses:
            assert (airtime_s >= 0) == (link in self.airs)
            room = capacity * (to_s - from_s)
            assert -1e-9 <= moved <= room * (1 + 1e-9) + 1e-9


class FromScratchMachine(NetworkMachine):
    """The same with every repair replaced by the solution from scratch."""

    from_scratch = True


NetworkMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None
)
FromScratchMachine.TestCase.settings = settings(
    max_examples=20, stateful_step_count=20, deadline=None
)


class TestRepairs(NetworkMachine.TestCase):
    """Every change repairs the last solution."""


class TestFromScratch(FromScratchMachine.TestCase):
    """Every change solves from scratch: the way out is as right as the way in."""


@pytest.mark.long
class TestRepairsLong(NetworkMachine.TestCase):
    """Many more, longer stories."""

    settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
