"""Blame for a round's length: its critical client, phase and link.

The critical client is the one whose upload the merge waited for (ties: the lowest id).
Its phase is the longest on the way from the round's start to its end; its link is the
one that limited that phase's transfer for the longest time. How much shorter the round
would be without the client is found by playing transfers again without it, because on
shared links the others would be faster too: those that its absence could change, and
those that shared links with them.

What is ignored: what a round whose method tells its own story would be without a
client, another order of the devices' background load, heat and noise (computations keep
the lengths they had), and everything after this round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simfed.ground.method import CLIENT
from simfed.ground.records import make
from simfed.net import FlowStart, Network
from simfed.net.flows import DeadLink
from simfed.net.maxmin import OWN_CAP
from simfed.net.playing import play
from simfed.record.schema import BARRIER
from simfed.sim.flight import Flight, Leg
from simfed.sim.server_work import PlayedWork


@dataclass(frozen=True, slots=True)
class Blame:
    """The cause of one round's length."""

    client: int | None
    """None: nobody in particular was waited for."""
    phase: str | None
    link: str | None
    """None where the phase is no transfer, or latency took longer than any link."""
    saved_s: float | None
    """Seconds that the round would be shorter by without the client; None: there would
    be no round."""


def blame_round(
    flights: Sequence[Flight],
    work: Sequence[PlayedWork],
    network: Network | None,
    *,
    resent: bool = False,
) -> Blame:
    """Return the blame for a round in which the server waited for all `flights`.

    Nothing is played again where it could not differ: where no other transfer was ever
    limited by a link of the critical client's paths; nor where the network is a real
    one, of whose links nothing is known.

    Args:
        flights: all that were started, at least one.
        work: the server's at the merge.
        network: on which transfers are played again; None: a real one.
        resent: True if messages may be lost and sent again.
    """
    critical = max(flights, key=lambda flight: (flight.elapsed_s, -flight.client))
    server_s = sum(piece.duration_s for piece in work)
    phase, spent_s = find_longest_phase(critical, server_s)
    link = find_longest_limit(critical, phase, spent_s, network)
    others = [flight for flight in flights if flight is not critical]
    if not all(flight.chain for flight in flights):
        return _blame_path(critical, flights, server_s, network)
    if not others:
        return Blame(critical.client, phase, link, None)
    if network is None:
        waited_s: float | None = max(flight.elapsed_s for flight in others)
        return Blame(
            critical.client, phase, link, _compute_saved_s(critical, waited_s, work)
        )
    paths = [network.topology.path(critical.client, way) for way in ("up", "down")]
    links = {link for path in paths for link in path.links}
    apart = network.topology.ways_apart and not resent
    if is_any_limited(
        others, links, *(("download",) if apart else ("download", "upload"))
    ):
        waited_s = play_again(others, network)
    elif critical.uplink_bytes > 0 and is_any_limited(others, links, "upload"):
        waited_s = play_uploads_again(others, critical, network)
    else:
        waited_s = max(flight.elapsed_s for flight in others)
    return Blame(
        critical.client, phase, link, _compute_saved_s(critical, waited_s, work)
    )


def _blame_path(
    last: Flight, flights: Sequence[Flight], server_s: float, network: Network | None
) -> Blame:
    """Return the longest phase on the way to the end of `last`, of whichever client.

    For stories with barriers, which are not played again: what would be saved stays
    unknown.
    """
    spent_s: dict[tuple[int, str], float] = {}
    for client, leg in find_critical_path(last, flights):
        spent_s[client, leg.phase] = (
            spent_s.get((client, leg.phase), 0.0) + leg.exposed_s
        )
    spent_s[last.client, "server"] = server_s
    (client, phase), longest_s = max(spent_s.items(), key=lambda item: item[1])
    limited = next(flight for flight in flights if flight.client == client)
    link = find_longest_limit(limited, phase, longest_s, network)
    return Blame(client, phase, link, None)


def find_critical_path(
    last: Flight, flights: Sequence[Flight]
) -> list[tuple[int, Leg]]:
    """Return the legs that the end of `last` waited for, latest first.

    They come with their clients: before a barrier those of whoever came to it last and
    was not lost there, before a turn at the server what that did before.

    Args:
        last: the flight whose end counts.
        flights: all of the round, `last` included.
    """
    path: list[tuple[int, Leg]] = []
    flight, ahead = last, len(last.legs)
    while ahead > 0:
        ahead -= 1
        leg = flight.legs[ahead]
        if leg.phase != BARRIER:
            path.append((flight.client, leg))
        elif leg.node == CLIENT:
            comers = [
                (
                    other.lost and mine is other.legs[-1],
                    -mine.started_at_s,
                    other.client,
                    k,
                    other,
                )
                for other in flights
                for k, mine in enumerate(other.legs)
                if mine[:2] == leg[:2] and mine.node == CLIENT
            ]
            *_, ahead, flight = min(comers, key=lambda comer: comer[:3])
        else:
            begun_s = leg.started_at_s + leg.duration_s
            served = [
                (done.started_at_s, other.client, k, other)
                for other in flights
                for k, done in enumerate(other.legs)
                if done.quantity
                and done.node == leg.node
                and done.started_at_s < begun_s
                if other is not flight
            ]
            if not served:
                break
            *_, ahead, flight = max(served, key=lambda done: done[:2])
            ahead += 1
    return path


def _compute_saved_s(
    critical: Flight, waited_s: float | None, work: Sequence[PlayedWork]
) -> float | None:
    """Return what the round would be shorter by, without a client and its server work.

    Args:
        critical: the client's flight.
        waited_s: what the server would have waited for the others; None: for ever.
        work: the server's at the merge.
    """
    if waited_s is None:
        return None
    pieces_s = [piece.duration_s for piece in work if piece.client == critical.client]
    return critical.elapsed_s - waited_s + sum(pieces_s)


def blame_last(
    last: Flight | None,
    work: Sequence[PlayedWork],
    network: Network | None,
    otherwise: str = "deadline",
) -> Blame:
    """Return the blame where the merge did not wait for all.

    It is on the last arrival that it waited for, or (None) on what ended the wait
    `otherwise`. What it would be without that client is not asked: another one would
    have been the last.

    Args:
        last: the flight whose end made the merge due; None: there was none.
        work: the server's at the merge.
        network: as of `blame_round`.
        otherwise: the phase where there was no such flight.
    """
    if last is None:
        return Blame(None, otherwise, None, None)
    phase, spent_s = find_longest_phase(last, sum(piece.duration_s for piece in work))
    link = find_longest_limit(last, phase, spent_s, network)
    return Blame(last.client, phase, link, None)


def play_again(flights: Sequence[Flight], network: Network) -> float | None:
    """Return the seconds that the server would have waited for these clients alone.

    Their transfers are played again, with computations as long as they were. None: for
    ever, as a link's trace ends.

    Args:
        flights: each a chain of download, work and upload.
        network: whose topology and model play them.
    """
    began_s = min(flight.started_at_s for flight in flights)
    sends: list[FlowStart] = []
    ends: list[tuple[int, float]] = []
    for flight in flights:
        paused_s = _send_again(flight, flight.started_at_s - began_s, sends)
        ends.append((len(sends), paused_s))
    found_s = _compute_durations(sends, network, began_s)
    if found_s is None:
        return None
    waited_s, first = 0.0, 0
    for flight, (after_last, paused_s) in zip(flights, ends, strict=True):
        spent_s = (
            flight.training_s + flight.compression_s + sum(found_s[first:after_last])
        )
        waited_s, first = max(waited_s, spent_s + paused_s), after_last
    return waited_s


def _send_again(flight: Flight, at_s: float, sends: list[FlowStart]) -> float:
    """Add a flight's messages to `sends`, and return the seconds of its pauses.

    Each comes after the one before it and the pause or work between.

    Args:
        flight: whose they are.
        at_s: its start, from the start of the first flight.
        sends: gets them, in order.
    """
    after, paused_s, working = None, 0.0, True
    for leg in flight.sent():
        if leg.phase == "upload" and working:
            worked_s = sum([past.duration_s for past in flight.legs if past.quantity])
            at_s, working = at_s + worked_s, False
        moved_bytes = leg.moved_bytes
        if not moved_bytes:  # a pause
            at_s, paused_s = at_s + leg.duration_s, paused_s + leg.duration_s
            continue
        whose = flight.client, moved_bytes, leg.direction
        sends.append(make(FlowStart, (at_s, *whose, after, float(leg.copies), leg.key)))
        at_s, after = 0.0, len(sends) - 1
    return paused_s


def play_uploads_again(
    flights: Sequence[Flight], critical: Flight, network: Network
) -> float | None:
    """Return the seconds that the server would have waited without `critical`.

    Uploads alone are played again. Valid where no download would change: every upload
    starts when it did, and those that were over before the critical client's began, and
    met none that was not, stay as they were.

    Args:
        flights: the others.
        critical: the flight that would not be.
        network: whose topology and model play them.
    """
    # an upload is a flight's last leg
    uploads = [
        (flight.legs[-1].started_at_s, flight)
        for flight in flights
        if flight.uplink_bytes > 0
    ]
    uploads.sort(key=lambda upload: upload[0])
    first, busy_until_s = 0, -math.inf
    touched_s = critical.legs[-1].started_at_s
    for number, (at_s, flight) in enumerate(uploads):
        if at_s > touched_s:
            break
        if at_s > busy_until_s:
            first = number
        busy_until_s = max(busy_until_s, flight.ended_at_s)
    began_s, again = uploads[first][0], [flight for _, flight in uploads[first:]]
    sends = [
        FlowStart(
            at_s - began_s,
            flight.client,
            flight.uplink_bytes,
            "up",
            key=flight.legs[-1].key,
        )
        for at_s, flight in uploads[first:]
    ]
    found_s = _compute_durations(sends, network, began_s)
    if found_s is None:
        return None
    spent_s = [
        flight.elapsed_s - flight.uplink_s + upload_s
        for flight, upload_s in zip(again, found_s, strict=True)
    ]
    played = {flight.client for flight in again}
    return max([*spent_s, *(f.elapsed_s for f in flights if f.client not in played)])


def _compute_durations(
    sends: Sequence[FlowStart], network: Network, epoch_s: float
) -> list[float] | None:
    """Return the seconds of each transfer; None where one would wait for ever."""
    try:
        ends = play(network.topology, sends, network.model, epoch_s=epoch_s)
    except DeadLink:
        return None
    return [end.duration_s for end in ends]


def find_longest_phase(flight: Flight, server_s: float) -> tuple[str, float]:
    """Return the longest phase and its seconds, units of one kind together.

    Args:
        flight: whose phases they are.
        server_s: the server's work after it, a phase of its own.
    """
    spent_s: dict[str, float] = {"download": 0.0}
    for leg in flight.legs:
        spent_s[leg.seen_as] = spent_s.get(leg.seen_as, 0.0) + leg.exposed_s
    spent_s.setdefault("upload", 0.0)
    spent_s["server"] = server_s
    return max(spent_s.items(), key=lambda item: item[1])


def is_any_limited(flights: Iterable[Flight], links: set[int], *phases: str) -> bool:
    """Return whether one of these links ever limited a transfer of these phases."""
    for flight in flights:
        for leg in flight.legs:
            for link, _ in leg.limited_s:
                if link in links and leg.phase in phases:
                    return True
    return False


def find_longest_limit(
    flight: Flight, phase: str, spent_s: float, network: Network | None
) -> str | None:
    """Return the name of the link that limited a phase's transfers for longest.

    None where their latency, or a cap of their own, took longer than any link, and on a
    real network, of whose links nothing is known.

    Args:
        flight: whose transfers they are.
        phase: `download`, `upload` or another, which has none.
        spent_s: seconds of the phase.
        network: knows the links' names; None: a real one.
    """
    limited_s = flight.limited_s(phase)
    if network is None or not limited_s:
        return None
    link, seconds = max(limited_s.items(), key=lambda item: item[1])
    if link == OWN_CAP or seconds < spent_s - sum(limited_s.values()):
        return None
    return network.topology.link_name(link)
