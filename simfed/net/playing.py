"""Plays given transfers over a topology, without a simulation around them.

For questions whose starts are known beforehand: what a round would have been without
one client (`simfed.sim.blame`), or a user's own what-if.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import inf
from typing import NamedTuple

from simfed.ground.errors import BrokenInvariant, InputError
from simfed.ground.seeding import Key
from simfed.net.engine import Engine
from simfed.net.flows import Flow
from simfed.net.maxmin import OWN_CAP
from simfed.net.models import ModelSpec, make_model
from simfed.net.topology import Direction, Topology


class FlowStart(NamedTuple):
    """One transfer and when it starts.

    Given to `play`; instants are seconds from the beginning of the whole.
    """

    at_s: float
    client: int
    size_bytes: float
    direction: Direction = "up"
    after: int | None = None
    """The number of the transfer that must have arrived: this one starts `at_s` after
    it."""
    weight: float = 1.0
    """The share of a link, relative to the others' weights."""
    key: tuple[Key, ...] = ()
    """The name of the message among its client's, for a latency that is drawn for each;
    empty: its number."""


class FlowEnd(NamedTuple):
    """The seconds that one transfer took, and the link that limited it.

    What `play` returns for each `FlowStart`.
    """

    duration_s: float
    bottleneck: str | None
    """The link that limited it for most of its time, None if no link did."""


def play(
    topology: Topology,
    sends: Iterable[FlowStart],
    model: ModelSpec = "fluid",
    *,
    epoch_s: float = 0.0,
) -> list[FlowEnd]:
    """Return durations and bottlenecks of transfers whose starts are known.

    They are in the order given, and the same as `Network` gives; a twentieth of a
    millisecond per transfer.

    Args:
        topology: links and paths.
        sends: the transfers; instants are at least 0 and count from `epoch_s`. Late
            ones have coarse digits, so a late beginning is better said by `epoch_s`.
        model: as of `Network`.
        epoch_s: the beginning, on the clock of the topology's traces.

    Raises:
        DeadLink: transfers wait for a capacity that stays 0 (`simfed.net.flows`).
        InputError: a transfer after one that does not come before it, or a weight out
            of range.

    >>> from simfed.net import FlowStart, Star, play
    >>> star = Star(2, up_bytes_per_s=4.0, receive_bytes_per_s=6.0)
    >>> play(star, [FlowStart(0.0, 0, 12.0), FlowStart(0.0, 1, 6.0)])
    [FlowEnd(duration_s=3.5, bottleneck='server/receive'), FlowEnd(duration_s=2.0,
    bottleneck='server/receive')]
    """
    flow_model = make_model(model)
    engine = Engine(topology.capacities_bytes_per_s, topology.traces)
    engine.restart_clock(epoch_s)
    sends = list(sends)
    flows: list[Flow | None] = [None] * len(sends)
    follow: dict[int, list[int]] = {}

    def make_flow(number: int, at_s: float) -> Flow:
        send = sends[number]
        key = send.key or (number,)
        path = topology.find_path(send.client, send.direction, epoch_s + at_s, key)
        capacity = partial(engine.find_capacity, at_s=at_s)
        flow = path.enter(
            flow_model.flow(number, send.size_bytes, path, capacity, send.weight, inf)
        )
        flows[number] = flow
        return flow

    for number, send in enumerate(sends):
        if send.after is None:
            engine.start(make_flow(number, send.at_s), send.at_s)
        elif 0 <= send.after < number:
            follow.setdefault(send.after, []).append(number)
        else:
            allowed = "the number of an earlier transfer"
            raise InputError(allowed, where="after", got=send.after)
    while follow:
        at_s = engine.find_next_s()
        if at_s == inf:
            raise BrokenInvariant(
                f"{len(follow)} transfers wait for others that never arrive"
            )
        for ended in engine.advance(at_s):
            for number in follow.pop(ended.id, ()):
                at_s = engine.sharing.now_s + sends[number].at_s
                engine.start(make_flow(number, at_s), at_s)
    engine.advance(inf)
    ends = []
    for flow in filter(None, flows):
        link = flow.bottleneck
        name = None if link == OWN_CAP else topology.link_name(link)
        ends.append(FlowEnd(flow.spent_s, name))
    return ends
