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


class NetworkMachine(RuleBasedStateMachine):
    """One engine and one oracle under the same commands."""

    from_scratch = False

    def __init__(self) -> None:
        super().__init__()
        self.uses: list[Use] = []
        self.flows: list[Flow] = []
        self.ended: set[int] = set()
        self.gone: set[int] = set()

    @initialize(
        capacities=st.lists(SMALL, min_size=1, max_size=6),
        airs=st.sets(st.integers(0, 5)),
    )
    def build(self, capacities: list[Fraction], airs: set[int]) -> None:
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
    def start(  # type: ignore[no-untyped-def]
        self, data, size, latency, weight, cap, copies
    ) -> None:
        count = len(self.oracle.capacities)
        path = tuple(
            data.draw(st.permutations(range(count)))[: data.draw(st.integers(1, count))]
        )
        airs, wires = (
            self.airs & set(path),
            [link for link in path if link not in self.airs],
        )
        exact = {
            air: data.draw(st.sampled_from([Fraction(1, 4), Fraction(3)]))
            for air in airs
        }
        radio = (
            (wires[0], min(airs))
            if airs and wires and data.draw(st.booleans())
            else None
        )
        costs = {air: float(cost) for air, cost in exact.items()} or None
        for _ in range(copies):
            now = self.oracle.now
            self.oracle.flows.append(
                OracleFlow(
                    path, Fraction(size), now + latency, now, weight, cap, exact, radio
                )
            )
            limit = inf if cap is None else float(cap)
            flow = Flow(
                len(self.flows), float(size), path, float(latency), float(weight), limit
            )
            flow.costs, flow.radios = costs, None if radio is None else dict([radio])
            self.flows.append(flow)
            self.engine.start(flow)
        self._advance(self.oracle.now)

    @rule(data=st.data())
    def abort(self, data) -> None:  # type: ignore[no-untyped-def]
        # A flow within rounding of its end may have ended on one side only: leave it
        # alone.
        running = [
            k
            for k, f in enumerate(self.oracle.flows)
            if f.ended_at is None
            and not f.cancelled
            and k not in self.ended
            and f.left > 1e-6
        ]
        if running:
            k = data.draw(st.sampled_from(running))
            self.oracle.flows[k].cancelled = True
            self.engine.cancel(self.flows[k])
            self.gone.add(k)
            assert self.flows[k].remaining_bytes == pytest.approx(
                float(self.oracle.flows[k].left), rel=1e-9
            )

    @rule(data=st.data(), capacity=st.integers(0, 12).map(Fraction))
    def change_capacity(self, data, capacity) -> None:  # type: ignore[no-untyped-def]
        link = data.draw(st.integers(0, len(self.oracle.capacities) - 1))
        self.oracle.capacities[link] = capacity
        self.engine.change_capacity(link, float(capacity))

    @rule(
        data=st.data(),
        weight=st.sampled_from([Fraction(1), Fraction(3), Fraction(1, 4)]),
    )
    def change_weight(self, data, weight) -> None:  # type: ignore[no-untyped-def]
        """Of one that has begun, or not yet; as a trace of its radio does."""
        under_way = [k for k, f in enumerate(self.oracle.flows) if f.ended_at is None]
        if under_way:
            number = data.draw(st.sampled_from(under_way))
            self.oracle.flows[number].weight = weight
            self.engine.sharing.change_weight(self.flows[number], float(weight))
            self.engine._finish()

    @rule(wait=EIGHTHS)
    def wait(self, wait: Fraction) -> None:
        self._advance(self.oracle.now + wait)

    def _advance(self, until: Fraction) -> None:
        self.oracle.advance(until)
        self.oracle.now = until
        self.ended |= {flow.id for flow in self.engine.advance(float(until))}

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "oracle"):
            return
        now, sharing = self.oracle.now, self.engine.sharing
        rates = self.oracle.rates()
        # one that ends at this very instant may, by rounding, end an ulp later in the
        # engine, and has its share until then
        lags = any(
            exact.ended_at is not None and k not in self.ended and k not in self.gone
            for k, exact in enumerate(self.oracle.flows)
        )
        for k, (flow, exact) in enumerate(
            zip(self.flows, self.oracle.flows, strict=True)
        ):
            close = pytest.approx(
                float(exact.left), rel=1e-9, abs=1e-9 * max(flow.size_bytes, 1)
            )
            if k in self.gone:
                continue
            if exact.ended_at is not None:
                assert k in self.ended or sharing.left(flow) <= 1e-9 * flow.size_bytes
                assert (
                    flow.spent_s
                    == pytest.approx(
                        float(exact.ended_at - exact.started_at), rel=1e-9, abs=1e-12
                    )
                    or k not in self.ended
                )
            elif exact.joins_at <= now:
                assert (sharing.left(flow) if flow.joined else 0.0) == close
                if exact.left > 1e-6 and not lags:
                    assert sharing.rate(flow) == pytest.approx(
                        float(rates[k]), rel=1e-9, abs=1e-9
                    )
            else:
                assert not flow.joined

    @invariant()
    def is_max_min_fair(self) -> None:
        flows = [flow for flow in self.flows if flow.joined]
        if flows:
            sharing = self.engine.sharing
            assert (
                why_not_max_min(
                    [float(c) for c in self.oracle.capacities],
                    [flow.links for flow in flows],
                    [sharing.rate(flow) for flow in flows],
                    [flow.weight for flow in flows],
                    [flow.cap_bytes_per_s for flow in flows],
                    costs=[
                        [flow.cost_on(link) for link in flow.links] for flow in flows
                    ],
                )
                is None
            )

    def teardown(self) -> None:
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
            exact = self.oracle.flows[k]
            took = float(exact.ended_at - exact.started_at)
            assert self.flows[k].spent_s == pytest.approx(took, rel=1e-9, abs=1e-12)
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
