"""Who held the round up: its critical client, phase and link, and what it would be without them.

The critical client is the one whose upload the merge waited for (ties: the lowest id). Its phase is
the longest on the way from the round's start to its end; its link is the one that limited that
phase's transfer for the longest time. How much shorter the round would be without the client is
found by playing the round again without it, because on shared links the others would be faster too.

What is ignored: another order of the devices' background load, heat and noise (computations keep
the lengths they had), and everything after this round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from simfed.sim.flight import Flight
from simfed.sim.server_work import Work

__all__ = ["Blame", "blame", "play_again"]

MakeNetwork = Callable[[simpy.Environment], Any]


@dataclass(frozen=True, slots=True)
class Blame:
    """What set one round's length."""

    client: int
    phase: str
    link: str | None
    """None where the phase is no transfer, or no link limited it."""
    saved_s: float | None
    """How much shorter the round would be without the client; None: there would be no round."""


def blame(
    flights: Sequence[Flight], work: Sequence[Work], make_network: MakeNetwork, path_of: Callable[[int], Iterable[str]]
) -> Blame:  # fmt: skip
    """The blame for one round in which the server waited for all of `flights`.

    `path_of(client)` names the links of its two paths; `make_network(env)` builds the run's
    network anew. The second play is left out where it could not differ: where no other transfer was
    ever limited by a link that the critical client uses too.
    """
    critical = max(flights, key=lambda flight: (flight.elapsed_s, -flight.client))
    server_s = sum(piece.duration_s for piece in work)
    phase, _ = max((*critical.phases_s(), ("server", server_s)), key=lambda item: item[1])
    others = [flight for flight in flights if flight is not critical]
    if not others:
        return Blame(critical.client, phase, _link(critical, phase), None)
    if _feels(others, set(path_of(critical.client))):
        waited_s = play_again(others, make_network)
    else:
        waited_s = max(flight.elapsed_s for flight in others)
    saved_s = critical.elapsed_s - waited_s
    saved_s += sum(piece.duration_s for piece in work if piece.client == critical.client)
    return Blame(critical.client, phase, _link(critical, phase), saved_s)


def play_again(flights: Sequence[Flight], make_network: MakeNetwork) -> float:
    """How long the server would have waited for these clients alone, by simulating their transfers."""
    env = simpy.Environment(initial_time=flights[0].started_at_s)
    network = make_network(env)
    spent_s: list[float] = []
    done = env.event()

    def story(flight: Flight) -> Any:
        downlink_s = uplink_s = 0.0
        if flight.downlink_bytes > 0:
            sent = network.send(flight.client, flight.downlink_bytes, direction="down")
            downlink_s = yield sent.done
        busy_s = flight.training_s + flight.compression_s
        yield env.timeout(busy_s)
        if flight.uplink_bytes > 0:
            sent = network.send(flight.client, flight.uplink_bytes, direction="up")
            uplink_s = yield sent.done
        spent_s.append(downlink_s + busy_s + uplink_s)
        if len(spent_s) == len(flights):
            done.succeed()

    for flight in flights:
        env.process(story(flight))
    env.run(until=done)
    return max(spent_s)


def _feels(others: Iterable[Flight], links: set[str]) -> bool:
    return any(
        link in links
        for flight in others
        for bound_by in flight.bound_by.values()
        for link in bound_by
    )


def _link(flight: Flight, phase: str) -> str | None:
    bound_by = flight.bound_by.get(phase)
    return max(bound_by, key=lambda link: bound_by[link]) if bound_by else None
