"""Who held the round up: its critical client, phase and link, and what it would be without them.

The critical client is the one whose upload the merge waited for (ties: the lowest id). Its phase is
the longest on the way from the round's start to its end; its link is the one that limited that
phase's transfer for the longest time. How much shorter the round would be without the client is
found by playing the round again without it, because on shared links the others would be faster too.

What is ignored: another order of the devices' background load, heat and noise (computations keep
the lengths they had), and everything after this round.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from simfed.net import Network
from simfed.net.topology import Direction
from simfed.sim.flight import Flight
from simfed.sim.server_work import Done

__all__ = [
    "Blame",
    "any_limited_by",
    "blame",
    "blame_last",
    "links_of",
    "longest_phase",
    "play_again",
]

MakeNetwork = Callable[[simpy.Environment], Network]


@dataclass(frozen=True, slots=True)
class Blame:
    """What set one round's length."""

    client: int | None
    """None: nobody in particular was waited for."""
    phase: str | None
    link: str | None
    """None where the phase is no transfer, or latency took longer than any link."""
    saved_s: float | None
    """How much shorter the round would be without the client; None: there would be no round."""


def blame(
    flights: Sequence[Flight], work: Sequence[Done], network: Network, make_network: MakeNetwork
) -> Blame:
    """The blame for one round in which the server waited for all of `flights`.

    `network` is the one they used; `make_network(env)` builds it anew. The second play is left out
    where it could not differ: where no other transfer was ever limited by a link of the critical
    client's paths.
    """
    critical = max(flights, key=lambda flight: (flight.elapsed_s, -flight.client))
    server_s = sum(piece.duration_s for piece in work)
    phase, spent_s = longest_phase(critical, server_s)
    link = _longest_limit(critical.limited_s.get(phase, {}), spent_s)
    others = [flight for flight in flights if flight is not critical]
    if not others:
        return Blame(critical.client, phase, link, None)
    if any_limited_by(others, links_of(network, critical.client)):
        waited_s = play_again(others, make_network)
    else:
        waited_s = max(flight.elapsed_s for flight in others)
    saved_s = critical.elapsed_s - waited_s
    saved_s += sum(piece.duration_s for piece in work if piece.client == critical.client)
    return Blame(critical.client, phase, link, saved_s)


def blame_last(last: Flight | None, work: Sequence[Done], otherwise: str = "deadline") -> Blame:
    """The blame where the merge did not wait for all: on the last arrival that it waited for, or
    (None) on what ended the wait `otherwise`. What it would be without that client is not asked:
    another one would have been the last."""
    if last is None:
        return Blame(None, otherwise, None, None)
    phase, spent_s = longest_phase(last, sum(piece.duration_s for piece in work))
    return Blame(last.client, phase, _longest_limit(last.limited_s.get(phase, {}), spent_s), None)


def play_again(flights: Sequence[Flight], make_network: MakeNetwork) -> float:
    """How long the server would have waited for these clients alone: their transfers, simulated
    again, with computations as long as they were."""
    env = simpy.Environment(initial_time=flights[0].started_at_s)
    network = make_network(env)
    elapsed_s: list[float] = []
    done = env.event()

    def again(flight: Flight, phase: str, way: Direction) -> Generator[simpy.Event, Any, float]:
        """All transmissions of a message, with the pauses between them; their seconds."""
        spent_s = 0.0
        for leg in flight.transmissions(phase):
            if leg.pause:
                yield env.timeout(leg.duration_s)
                spent_s += leg.duration_s
            else:
                weight = float(leg.copies)
                spent_s += yield network.send(
                    flight.client, leg.size_bytes, way, weight=weight
                ).done
        return spent_s

    def story(flight: Flight) -> Generator[simpy.Event, Any, None]:
        downlink_s = uplink_s = 0.0
        if flight.legs:
            downlink_s = yield from again(flight, "download", "down")
        elif flight.downlink_bytes > 0:
            downlink_s = yield network.send(flight.client, flight.downlink_bytes, "down").done
        for unit in flight.units:
            yield env.timeout(unit.duration_s)
        if flight.legs:
            uplink_s = yield from again(flight, "upload", "up")
        elif flight.uplink_bytes > 0:
            uplink_s = yield network.send(flight.client, flight.uplink_bytes, "up").done
        elapsed_s.append(downlink_s + flight.training_s + flight.compression_s + uplink_s)
        if len(elapsed_s) == len(flights):
            done.succeed()

    for flight in flights:
        env.process(story(flight))
    env.run(until=done)
    return max(elapsed_s)


def longest_phase(flight: Flight, server_s: float) -> tuple[str, float]:
    """The kind of what took longest, units of one kind together, and its seconds."""
    spent_s: dict[str, float] = {}
    for kind, _, seconds, _ in flight.phases():
        spent_s[kind] = spent_s.get(kind, 0.0) + seconds
    spent_s["server"] = server_s
    return max(spent_s.items(), key=lambda item: item[1])


def any_limited_by(flights: Iterable[Flight], links: set[str]) -> bool:
    """Whether a transfer of these flights was ever limited by one of these links."""
    return any(
        not links.isdisjoint(limits) for flight in flights for limits in flight.limited_s.values()
    )


def links_of(network: Network, client: int) -> set[str]:
    """The names of the links of a client's two paths."""
    topology = network.topology
    links = (*topology.path(client, "up").links, *topology.path(client, "down").links)
    return {topology.link_name(link) for link in links}


def _longest_limit(limited_s: Mapping[str | None, float], spent_s: float) -> str | None:
    """The link that limited a transfer for longest; None where its latency, or a cap of its own,
    took longer than any link."""
    latency_s = spent_s - sum(limited_s.values())
    link, seconds = max(limited_s.items(), key=lambda item: item[1], default=(None, 0.0))
    return link if seconds >= latency_s else None
