"""What-if: given transfers over a topology, without a simulation around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, NamedTuple

from simfed.net.engine import Engine
from simfed.net.maxmin import OWN_CAP
from simfed.net.models import Model, make_model
from simfed.net.topology import Direction, Topology

__all__ = ["Arrival", "Send", "play"]


class Send(NamedTuple):
    """One transfer and when it starts."""

    at_s: float
    client: int
    size_bytes: float
    direction: Direction = "up"


class Arrival(NamedTuple):
    """What became of it."""

    duration_s: float
    bottleneck: str | None
    """The link that limited it for most of its time, None if no link did."""


def play(
    topology: Topology, sends: Iterable[Send], model: str | Mapping[str, Any] | Model = "fluid"
) -> list[Arrival]:
    """Durations and bottlenecks of transfers whose starts are known, in their order.

    The same as `Network` gives for them; a twentieth of a millisecond per transfer. Instants are on
    the clock of the topology's traces and at least 0.

    Raises: `simfed.net.engine.DeadLink` where transfers wait for a capacity that stays 0.

    >>> from simfed.net import Send, Star, play
    >>> star = Star(2, up_bytes_per_s=4.0, receive_bytes_per_s=6.0)
    >>> play(star, [Send(0.0, 0, 12.0), Send(0.0, 1, 6.0)])
    [Arrival(duration_s=3.5, bottleneck='server/receive'), Arrival(duration_s=2.0,
    bottleneck='server/receive')]
    """
    made = make_model(model)
    engine = Engine(topology.capacities_bytes_per_s, topology.traces)
    started = []
    for number, send in enumerate(sends):
        flow = made.flow(
            number,
            send.size_bytes,
            topology.path(send.client, send.direction),
            lambda link, at_s=send.at_s: engine.capacity_at(link, at_s),  # type: ignore[misc]
            1.0,
            inf,
        )
        started.append((send.at_s, flow))
    engine.start_all(started)
    engine.advance(inf)
    arrivals = []
    for _, flow in started:
        link = flow.bottleneck
        name = None if link == OWN_CAP else topology.link_name(link)
        arrivals.append(Arrival(flow.spent_s, name))
    return arrivals
