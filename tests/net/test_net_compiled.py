"""The compiled engine is Python's engine, bit for bit, whatever happens to both."""

from __future__ import annotations

import gc
import itertools
import json
import weakref
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from simfed import native
from simfed.ground.errors import BrokenInvariant
from simfed.net import FlowStart, Star, play
from simfed.net.compiled import CompiledEngine, make_engine
from simfed.net.engine import Engine
from simfed.net.flows import Flow
from simfed.net.following import DeadLink
from simfed.net.meter import Meter, Use
from simfed.net.models import SlowStart, make_model
from simfed.net.playing import compute_durations
from simfed.net.snapshot import read_graph, write_graph
from simfed.net.traces import LinkTrace, Trace

pytestmark = pytest.mark.skipif(
    native.sharing() is None, reason="the package was built without a C++ compiler"
)

RATES = st.sampled_from([0.5, 1.0, 2.0, 3.7, 10.0, 1e6]) | st.floats(1e-3, 1e3)
SECONDS = st.sampled_from([0.0, 0.125, 1.0]) | st.floats(0, 5)


class Side:
    """One engine, what it was told to carry, and all that it said."""

    def __init__(self, kind: type, capacities: list[float], metered: bool) -> None:
        self.kind, self.capacities, self.metered = kind, capacities, metered
        self.uses: list[Use] = []
        self.flows: dict[int, Flow] = {}
        self.said: list[object] = []
        self.engine = self.make()

    def make(self) -> Engine | CompiledEngine:
        return self.kind(self.capacities, meter=Meter(self.uses.append) if self.metered else None)

    def start(
        self,
        number: int,
        size: float,
        *rest: object,
        burst: float | None = None,
        costs: dict[int, float] | None = None,
        radios: dict[int, int] | None = None,
    ) -> None:
        flow = self.flows[number] = Flow(number, size, *rest)
        flow.costs, flow.radios = costs, radios
        if burst is not None and size > burst:
            flow.remaining_bytes, flow.unsent_bytes = burst, size - burst
            flow.program = SlowStart(burst, 0.25, flow.latency_s)
        self.engine.start(flow)

    def advance(self, until_s: float) -> list[int]:
        ended = self.engine.advance(until_s)
        for flow in ended:
            del self.flows[flow.id]
            self.said.append((flow.id, flow.spent_s, flow.since_s, list(flow.dwelt_s.items())))
        return [flow.id for flow in ended]

    def cancel(self, number: int) -> None:
        flow = self.flows.pop(number)
        self.engine.cancel(flow)
        self.said.append((flow.remaining_bytes, flow.unsent_bytes, list(flow.dwelt_s.items())))

    def look(self) -> list[object]:
        facts: list[object] = [self.engine.now_s, self.engine.next_at_s()]
        for flow in self.flows.values():
            self.engine.look(flow)
            facts += [flow.spent_s, self.engine.left(flow), flow.unsent_bytes, dict(flow.dwelt_s)]
        return facts

    def saved(self) -> str:
        under_way = list(self.flows.values())
        return json.dumps(write_graph({"under way": under_way, **self.engine.state()}))

    def restore(self, saved: str) -> None:
        graph = read_graph(json.loads(saved))
        self.engine = self.make()
        self.engine.restore(graph)
        self.flows = {flow.id: flow for flow in graph["under way"]}


class Twins(RuleBasedStateMachine):
    """Both engines under the same commands."""

    from_scratch = False

    def __init__(self) -> None:
        super().__init__()
        self.sides: list[Side] = []
        self.started = 0

    @initialize(
        capacities=st.lists(RATES, min_size=1, max_size=8),
        metered=st.booleans(),
        airs=st.sets(st.integers(0, 7)),
    )
    def build(self, capacities: list[float], metered: bool, airs: set[int]) -> None:
        self.airs = airs
        self.sides = [Side(kind, capacities, metered) for kind in (Engine, CompiledEngine)]
        self.make_impatient()

    def make_impatient(self) -> None:
        """Every repair gives up at once."""
        if self.from_scratch:
            for side in self.sides:
                side.engine.solve_from_scratch()

    @rule(
        data=st.data(),
        size=st.just(0.0) | st.floats(0, 1e3),
        latency=SECONDS,
        weight=st.sampled_from([1.0, 1.0, 2.0]) | st.floats(1e-3, 1e3),
        cap=st.just(inf) | RATES,
        burst=st.none() | st.floats(0.5, 50),
        copies=st.sampled_from([1, 1, 2, 5, 40]),
    )
    def start(self, data, size, latency, weight, cap, burst, copies) -> None:  # type: ignore[no-untyped-def]
        links = range(len(self.sides[0].capacities))
        for _ in range(copies):
            path = tuple(data.draw(st.lists(st.sampled_from(links), unique=True, max_size=4)))
            airs, wires = self.airs & set(path), [link for link in path if link not in self.airs]
            costs = {air: data.draw(st.sampled_from([0.3, 1.0, 7.0])) for air in sorted(airs)}
            radios = None
            if airs and wires and data.draw(st.booleans()):
                radios = {wires[0]: min(airs)}
            for side in self.sides:
                terms = size, path, latency, weight, cap
                side.start(self.started, *terms, burst=burst, costs=costs or None, radios=radios)
            self.started += 1

    @rule(wait=SECONDS)
    def wait(self, wait: float) -> None:
        ended = [side.advance(side.engine.now_s + wait) for side in self.sides]
        assert ended[0] == ended[1]

    @rule(data=st.data())
    def cancel(self, data) -> None:  # type: ignore[no-untyped-def]
        if self.sides[0].flows:
            number = data.draw(st.sampled_from(list(self.sides[0].flows)))
            for side in self.sides:
                side.cancel(number)

    @rule(data=st.data(), capacity=st.just(0.0) | RATES)
    def change(self, data, capacity) -> None:  # type: ignore[no-untyped-def]
        link = data.draw(st.integers(0, len(self.sides[0].capacities) - 1))
        for side in self.sides:
            side.engine.change_capacity(link, capacity)

    @rule(data=st.data(), weight=st.floats(1e-3, 1e3))
    def weigh(self, data, weight) -> None:  # type: ignore[no-untyped-def]
        if self.sides[0].flows:
            number = data.draw(st.sampled_from(list(self.sides[0].flows)))
            for side in self.sides:
                side.engine.set_weight(side.flows[number], weight)
                side.engine.change_capacity(0, 1.0)  # solves

    @rule(swapped=st.booleans())
    def resume(self, swapped: bool) -> None:
        """From a checkpoint of its own, or of the other one's."""
        saved = [side.saved() for side in self.sides]
        for side, state in zip(self.sides, saved[::-1] if swapped else saved, strict=True):
            side.restore(state)
        self.make_impatient()

    @invariant()
    def are_equal(self) -> None:
        if self.sides:
            python, compiled = self.sides
            assert python.look() == compiled.look()
            assert python.said == compiled.said
            assert python.uses == compiled.uses

    def teardown(self) -> None:
        if self.sides:
            for link in range(len(self.sides[0].capacities)):
                for side in self.sides:
                    side.engine.change_capacity(link, 1.0)
            for side in self.sides:
                side.advance(inf)
                assert not side.flows
            self.are_equal()


class TwinsFromScratch(Twins):
    from_scratch = True


TestTwins = Twins.TestCase
TestTwins.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTwinsFromScratch = TwinsFromScratch.TestCase
TestTwinsFromScratch.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_a_crowd_that_comes_and_goes_is_the_same():
    """Enough flows for clocks that turn back, ranks that close and guards that are set anew."""
    count = 1200
    sides = [Side(kind, [50.0, *[3.0, 0.25, 7.0] * 40], True) for kind in (Engine, CompiledEngine)]
    for side in sides:
        for number in range(count):
            link = 1 + number % 120
            path = (link, 0) if number % 3 else (link, 1 + (number * 7 + 1) % 120, 0)
            path = tuple(dict.fromkeys(path))
            side.start(number, 1 + number % 13, path, 0.0, 1 + number % 2, burst=None)
            if number % 5 == 0:
                side.advance(side.engine.now_s + 0.1)
        side.advance(inf)
    assert sides[0].said == sides[1].said
    assert sides[0].uses == sides[1].uses
    assert len(sides[0].said) == count


PIECES = st.lists(
    st.tuples(st.floats(0.1, 3), st.sampled_from([0.0, 1.0, 4.0, 2.5])), min_size=1, max_size=5
).filter(lambda pieces: any(rate for _, rate in pieces))


def trace_of(pieces, end="loop"):
    ends_s = list(itertools.accumulate(seconds for seconds, _ in pieces))
    return Trace.of([0.0, *ends_s[:-1]], [rate for _, rate in pieces], ends_s[-1], end)


@settings(max_examples=60, deadline=None)
@given(
    traces=st.dictionaries(st.integers(0, 3), PIECES, max_size=4),
    end=st.sampled_from(["loop", "hold", "error"]),
    flows=st.lists(
        st.tuples(st.floats(0, 9), st.floats(0, 20), st.lists(st.integers(0, 3), unique=True)),
        min_size=1,
        max_size=12,
    ),
    epoch_s=st.floats(0, 50),
)
def test_links_that_vary_are_the_same(traces, end, flows, epoch_s):
    def played(kind):
        by_link = {link: LinkTrace(trace_of(pieces, end)) for link, pieces in traces.items()}
        uses = []
        engine = kind([4.0, 4.0, 4.0, 4.0], by_link, Meter(uses.append))
        engine.restart_clock(epoch_s)
        capacity = [engine.capacity_at(link, 1.0) for link in range(4)]
        started = [Flow(n, size, tuple(path)) for n, (_, size, path) in enumerate(flows)]
        engine.start_all([(at_s, flow) for (at_s, _, _), flow in zip(flows, started, strict=True)])
        try:
            engine.advance(100.0)
        except DeadLink as dead:
            return capacity, dead.link, [f.id for f in dead.flows], dead.at_s, dead.trace_ended
        for flow in started:
            engine.look(flow)
        return capacity, uses, [(f.spent_s, engine.left(f), f.dwelt_s) for f in started]

    assert played(Engine) == played(CompiledEngine)


def test_the_compiled_engine_is_used_where_there_is_one(monkeypatch):
    assert isinstance(make_engine([1.0]), CompiledEngine)
    star = Star(3, up_bytes_per_s=[4.0, 1.0, 2.0], receive_bytes_per_s=6.0)
    sends = [FlowStart(0.1 * client, client, 12.0 + client) for client in range(3)]
    compiled = play(star, sends, "tcp")
    monkeypatch.setattr(native, "sharing", lambda: None)
    assert isinstance(make_engine([1.0]), Engine)
    assert play(star, sends, "tcp") == compiled


class Refusing:
    def next_burst(self, flow):
        raise ZeroDivisionError(flow.spent_s)


def test_what_a_program_raises_is_raised():
    engine = CompiledEngine([2.0])
    flow = Flow(0, 10.0, (0,))
    flow.remaining_bytes, flow.unsent_bytes, flow.program = 4.0, 6.0, Refusing()
    engine.start(flow)
    with pytest.raises(ZeroDivisionError, match=r"2\.0"):
        engine.advance(inf)


def test_what_the_solution_from_scratch_raises_is_raised(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("simfed.net.compiled.max_min", interrupted)
    engine = CompiledEngine([2.0])
    engine.solve_from_scratch()
    for number in range(2):
        engine.start(Flow(number, 10.0, (0,)))
    with pytest.raises(KeyboardInterrupt):
        engine.advance(inf)


def test_an_event_of_the_past_is_a_broken_invariant():
    sentences = []
    for kind in (Engine, CompiledEngine):
        engine = kind([2.0])
        engine.advance(5.0)
        engine.start(Flow(0, 10.0, (0,)), at_s=3.0)
        with pytest.raises(BrokenInvariant) as error:
            engine.advance(inf)
        sentences.append(str(error.value))
    assert sentences == ["an event of 3.0 s comes up at 5.0 s"] * 2


def test_an_engine_that_nobody_needs_is_given_back():
    trace = LinkTrace(trace_of([(1.0, 1.0), (2.0, 3.0)]))
    engine = CompiledEngine([3.0, 2.0], {0: trace}, Meter(print))
    flow = Flow(0, 10.0, (0, 1))
    flow.remaining_bytes, flow.unsent_bytes, flow.program = 4.0, 6.0, SlowStart(4.0, 1.0, 0.0)
    engine.start(flow)
    engine.advance(0.5)
    reference = weakref.ref(engine)
    gc.disable()
    try:
        del engine
        assert reference() is None
    finally:
        gc.enable()


@settings(max_examples=60, deadline=None)
@given(
    rates=st.lists(RATES, min_size=3, max_size=3),
    server=st.just(inf) | RATES,
    sends=st.lists(
        st.tuples(
            SECONDS,
            st.integers(0, 2),
            st.floats(0, 50),
            st.sampled_from(["up", "down"]),
            st.booleans(),
            st.sampled_from([1.0, 1.0, 2.0]),
        ),
        max_size=25,
    ),
    latency_s=SECONDS,
    data=st.data(),
)
def test_durations_alone_are_the_same(rates, server, sends, latency_s, data):
    star = Star(3, up_bytes_per_s=rates, receive_bytes_per_s=server, latency_s=latency_s)
    transfers = []
    for number, (at_s, client, size, way, follows, weight) in enumerate(sends):
        after = data.draw(st.integers(0, number - 1)) if follows and number else None
        transfers.append(FlowStart(at_s, client, size, way, after, weight))
    seconds = compute_durations(star, transfers, make_model("fluid"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "sharing", lambda: None)
        assert compute_durations(star, transfers, make_model("fluid")) == seconds
    assert [arrival.duration_s for arrival in play(star, transfers)] == seconds
