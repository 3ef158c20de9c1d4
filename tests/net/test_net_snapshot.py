"""A network saved in the middle of transfers goes on to the same bits, in another environment."""

from __future__ import annotations

import json
from functools import partial

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from simfed.ground.errors import InputError, RunFailed
from simfed.net import (
    Access,
    Fluid,
    Line,
    LinkTrace,
    LinkUse,
    Network,
    Star,
    Tcp,
    Tier,
    Trace,
    graph,
    tree,
)
from simfed.net.instants import at, end_of_instant

CLIENTS = 6
RATES = st.floats(0.3, 40.0)
TRACE = Trace.of([0.0, 0.7, 1.9, 3.3], [5.0, 0.0, 17.3, 2.1], 4.1, "loop")
LINK = st.one_of(RATES, st.builds(LinkTrace, st.just(TRACE), st.floats(0.0, 9.0)))


@st.composite
def topologies(draw):
    up = draw(st.lists(RATES, min_size=CLIENTS, max_size=CLIENTS))
    traced = draw(st.dictionaries(st.integers(0, CLIENTS - 1), st.floats(0.0, 5.0), max_size=2))
    traces = {(c, "up"): LinkTrace(TRACE, offset_s) for c, offset_s in traced.items()}
    options = {"receive_bytes_per_s": draw(LINK), "send_bytes_per_s": draw(RATES)}
    latency_s = draw(st.sampled_from([0.0, 0.01, 0.3]))
    kind = draw(st.sampled_from(["star", "tree", "mesh"]))
    if kind == "star":
        return Star(
            CLIENTS, up_bytes_per_s=up, down_bytes_per_s=7.0, latency_s=latency_s, **options
        )
    access = Access(up, 9.0, latency_s, loss=draw(st.sampled_from([0.0, 0.01])), traces=traces)
    if kind == "tree":
        edges = draw(st.lists(LINK, min_size=2, max_size=2))
        return tree(CLIENTS, access, [Tier("edge", 2, edges, 6.0, 0.02)], **options)
    ways = [("a", "b"), ("b", "server"), ("c", "b"), ("c", "server")]
    pairs = ways + [(head, tail) for tail, head in ways]
    lines = [Line(f"{t}-{h}", t, h, draw(RATES), 0.01) for t, h in pairs]
    homes = draw(st.lists(st.sampled_from("abc"), min_size=CLIENTS, max_size=CLIENTS))
    return graph(CLIENTS, access, lines, node_of_client=homes, **options)


SEND = st.tuples(
    st.floats(0.0, 12.0),
    st.integers(0, CLIENTS - 1),
    st.sampled_from(["up", "up", "down"]),
    st.floats(0.0, 60.0),
    st.sampled_from([1.0, 1.0, 0.5, 3.0]),
    st.none() | st.floats(0.5, 9.0),
)
TCP = Tcp(mss_bytes=1.0, header_bytes=0.1, initial_window=2)
CANCELS = st.dictionaries(st.integers(0, 11), st.floats(0.0, 15.0), max_size=3)


class World:
    """A network, the sends and cancels that are yet to come, and what has become of them."""

    def __init__(self, topology, model, sends, cancels, begins_s=0.0):
        self.env = simpy.Environment(initial_time=begins_s)
        self.uses: list[LinkUse] = []
        self.network = Network(self.env, topology, model=model, on_use=self.uses.append)
        self.ends: list[tuple[int, float, float, dict]] = []
        self.moved: dict[int, float] = {}
        self.transfers = {}
        for number, (at_s, *send) in enumerate(sends):
            if at_s > begins_s or begins_s == 0:
                at(self.env, at_s).callbacks.append(partial(self._send, number, send))
        for number, at_s in cancels.items():
            if at_s > begins_s or begins_s == 0:
                at(self.env, at_s).callbacks.append(partial(self._cancel, number))

    def _send(self, number, send, _):
        client, direction, size, weight, cap = send
        options = {"weight": weight, "cap_bytes_per_s": cap}
        self.follow(number, self.network.send(client, size, direction, **options))

    def follow(self, number, transfer):
        self.transfers[number] = transfer
        transfer.done.callbacks.append(
            lambda done: self.ends.append((number, self.env.now, done.value, transfer.limited_s))
        )

    def _cancel(self, number, _):
        if number in self.transfers:
            self.moved[number] = self.transfers[number].cancel()

    def play_to(self, instant_s):
        """Up to and including everything that happens at this instant."""

        def story():
            yield at(self.env, instant_s)
            yield end_of_instant(self.env)

        self.env.run(self.env.process(story()))

    def numbers(self):
        """Which sends are under way, in the network's order."""
        numbers = {transfer: number for number, transfer in self.transfers.items()}
        return [numbers[transfer] for transfer in self.network.transfers]


@settings(max_examples=40, deadline=None)
@given(
    topology=topologies(),
    model=st.sampled_from([Fluid(), TCP]),
    sends=st.lists(SEND, min_size=1, max_size=12),
    cancels=CANCELS,
    instant_s=st.floats(0.01, 14.0),
)
def test_it_goes_on_bit_for_bit(topology, model, sends, cancels, instant_s):
    whole = World(topology, model, sends, cancels)
    whole.play_to(1e4)

    saved = World(topology, model, sends, cancels)
    saved.play_to(instant_s)
    text = json.dumps(saved.network.state())
    under_way = saved.numbers()
    before = len(saved.ends), len(saved.uses)

    resumed = World(topology, model, sends, cancels, begins_s=instant_s)
    resumed.network.restore(json.loads(text))
    for number, transfer, old in zip(
        under_way, resumed.network.transfers, saved.network.transfers, strict=True
    ):
        for name in ("client", "direction", "size_bytes", "started_at_s"):
            assert getattr(transfer, name) == getattr(old, name)
        resumed.follow(number, transfer)
    assert json.dumps(resumed.network.state()) == text

    saved.play_to(1e4)  # taking the state has changed nothing
    resumed.play_to(1e4)
    assert (saved.ends, saved.uses, saved.moved) == (whole.ends, whole.uses, whole.moved)
    assert resumed.ends == whole.ends[before[0] :]
    assert resumed.uses == whole.uses[before[1] :]
    assert resumed.moved.items() <= whole.moved.items()
    # a transfer that had ended by the instant of the state is not there to be cancelled again
    for number in resumed.transfers:
        assert (number in resumed.moved) == (number in whole.moved and cancels[number] > instant_s)


def test_a_state_is_plain_numbers_and_names_no_code():
    world = World(Star(2, receive_bytes_per_s=6.0), TCP, [(0.0, 0, "up", 50.0, 1.0, None)] * 2, {})
    world.play_to(3.0)
    state = world.network.state()

    def kinds(value):
        if isinstance(value, (list, dict)):
            parts = value.values() if isinstance(value, dict) else value
            return set().union(*(kinds(part) for part in parts)) if value else set()
        return {type(value)}

    assert kinds(state) <= {int, float, str, bool, type(None)}
    assert {row[0] for row in state["records"]} == {
        *("Flow", "Link", "Tally", "MeteredStretch", "SlowStart")
    }


def test_an_idle_network_has_a_state_too():
    world = World(Star(1, up_bytes_per_s=2.0), Fluid(), [(0.0, 0, "up", 4.0, 1.0, None)], {})
    world.play_to(5.0)
    resumed = World(Star(1, up_bytes_per_s=2.0), Fluid(), [], {}, begins_s=5.0)
    resumed.network.restore(json.loads(json.dumps(world.network.state())))
    assert resumed.network.transfers == []
    assert resumed.env.run(resumed.network.send(0, 4.0).done) == 2.0


def test_a_state_of_another_version_is_refused():
    world = World(Star(1), Fluid(), [], {})
    state = world.network.state()
    with pytest.raises(InputError, match="a checkpoint of this version"):
        world.network.restore({**state, "fields": {**state["fields"], "Flow": ["id"]}})


class Own(Fluid):
    """A network model of one's own, with a program that is nobody's business."""

    def flow(self, *args):
        flow = super().flow(*args)
        flow.program = object()
        return flow


def test_a_model_of_ones_own_cannot_be_saved_in_the_middle():
    world = World(Star(1, up_bytes_per_s=1.0), Own(), [(0.0, 0, "up", 9.0, 1.0, None)], {})
    world.play_to(1.0)
    with pytest.raises(RunFailed, match="it knows fluid and tcp"):
        world.network.state()


def test_a_wake_up_of_a_cancelled_transfer_does_not_wind_the_clock_forward():
    """The last transfer is cancelled in its latency, its wake-up at 1 s stands: the next starts
    anew."""
    sends = [(0.0, 0, "up", 2.0, 1.0, None), (0.75, 0, "up", 2.0, 1.0, None)]
    world = World(Star(1, up_bytes_per_s=1.0, latency_s=1.0), Fluid(), sends, {0: 0.5})
    world.play_to(100.0)
    assert [(number, now_s) for number, now_s, *_ in world.ends] == [(1, 3.75)]
