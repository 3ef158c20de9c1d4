"""The compiled engine's state as the records of Python's engine, and back.

The library writes and reads two streams of numbers (`Engine::dump` in simfed/native/sharing.cpp):
whole ones and floats. Heaps of flows and guards are no part of them; they follow from the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from simfed.net.engine import CAPACITY_CHANGES, LINK_ENDS, Engine
from simfed.net.flows import Flow, Link, Tally
from simfed.net.following import Varying
from simfed.net.meter import Meter, MeteredStretch


def list_flows(plain: Engine) -> list[Flow]:
    """The flows under way in Python's engine."""
    sharing = plain.sharing
    flows = dict.fromkeys(sharing.alone.values())
    flows |= dict.fromkeys(flow for link in sharing.shared.values() for flow in link.flows)
    for _, _, _, subject, stamp in plain._heap:
        if isinstance(subject, Flow) and subject.stamp == stamp:
            flows[subject] = None
    return list(flows)


def write_plain(
    plain: Engine, flows: Mapping[int, Flow], whole: Sequence[int], parts: Sequence[float]
) -> None:
    """Fill Python's engine, which is new, with what the library dumps (`Engine::dump`)."""
    n, x = iter(whole), iter(parts)
    sharing, meter = plain.sharing, plain.sharing.meter
    if meter is not None:
        meter._pieces, meter._alone = {}, {}
    sharing.now_s = next(x)
    plain._sequence = next(n)
    flow_count, links = next(n), [Link(0, 0.0, 0.0) for _ in range(next(n))]
    for _ in range(flow_count):
        flow = flows[next(n)]
        flow.stamp, flow.joined, flow.cap_link = next(n), bool(next(n)), next(n)
        number = next(n)
        flow.owner = None if number < 0 else links[number]
        flow.shared = [links[number] for number in _read_numbers(n)]
        flow.dwelt_s = {id: next(x) for id in _read_numbers(n)}
        flow.remaining_bytes, flow.unsent_bytes, flow.spent_s = next(x), next(x), next(x)
        flow.since_s, flow.end, flow.limit_bytes_per_s, flow.level_cap = islice(x, 4)
        flow.costs = {air: next(x) for air in _read_numbers(n)} or None
    for link in links:
        _write_link(link, links, flows, n, x, meter)
        sharing.shared[link.id] = link
    for link in links:
        for owner, level in link.guarded.items():
            owner.guards.append((level, link.id, link.guard, link))
    for link in links:
        link.collect()
    for _ in range(next(n)):
        id, flow = next(n), flows[next(n)]
        sharing.alone[id] = flow
        from_s, left_bytes = next(x), next(x)
        if meter is not None:
            meter._alone[id] = (from_s, left_bytes)
    sharing._changed_capacity = {id: next(x) for id in _read_numbers(n)}
    for _ in range(next(n)):
        order, sequence, number = next(n), next(n), next(n)
        subject: Flow | Link | Varying
        if order == LINK_ENDS:
            subject = links[number]
        else:
            subject = plain._varying[number] if order == CAPACITY_CHANGES else flows[number]
        plain._heap.append((next(x), order, sequence, subject, subject.stamp))


def _write_link(
    link: Link,
    links: Sequence[Link],
    flows: Mapping[int, Flow],
    n: Iterator[int],
    x: Iterator[float],
    meter: Meter | None,
) -> None:
    link.id, link.guard, link.stamp, link.pushes = islice(n, 4)
    link.flows = {flows[number]: None for number in _read_numbers(n)}
    seen: dict[Link, float] = {}
    sending: dict[Link | None, Tally] = {}
    for _ in range(next(n)):
        owner, count, sending_count = links[next(n)], next(n), next(n)
        link.loads[owner] = _read_tally(count, x)
        seen[owner] = next(x)
        sending[owner] = _read_tally(sending_count, x)
    link.watchers = {links[number]: None for number in _read_numbers(n)}
    link.guarded = {links[number]: next(x) for number in _read_numbers(n)}
    metered, airtime, sending_count = islice(n, 3)
    link.capacity_bytes_per_s, link.level, link.progress, link.since_s, link.turned = islice(x, 5)
    link.load = _read_tally(next(n), x)
    from_s, load_from_s, carried, carried_bytes = islice(x, 4)
    piece = MeteredStretch(from_s, load_from_s, carried, seen, bool(airtime), carried_bytes)
    sending[None] = _read_tally(sending_count, x)
    piece.sending = {owner: tally for owner, tally in sending.items() if tally.count}
    if metered and meter is not None:
        meter._pieces[link] = piece


def _read_tally(count: int, x: Iterator[float]) -> Tally:
    return Tally(count, next(x), next(x))


def _read_numbers(n: Iterator[int]) -> list[int]:
    """As many numbers as the first one says."""
    return list(islice(n, next(n)))


def read_plain(plain: Engine, numbers: Mapping[Flow, int]) -> tuple[list[int], list[float]]:
    """The two streams that `Engine::undump` takes; flows by these numbers."""
    sharing, meter = plain.sharing, plain.sharing.meter
    links = {link: number for number, link in enumerate(sharing.shared.values())}
    n: list[int] = [plain._sequence, len(numbers), len(links)]
    x: list[float] = [sharing.now_s]
    for flow, number in numbers.items():
        owner = -1 if flow.owner is None else links[flow.owner]
        n += [number, flow.stamp, flow.joined, flow.cap_link, owner]
        n += [len(flow.shared), *(links[link] for link in flow.shared)]
        n += [len(flow.dwelt_s), *flow.dwelt_s]
        x += [*flow.dwelt_s.values(), flow.remaining_bytes, flow.unsent_bytes, flow.spent_s]
        x += [flow.since_s, flow.end, flow.limit_bytes_per_s, flow.level_cap]
        costs = flow.costs or {}
        n += [len(costs), *costs]
        x += costs.values()
    for link in links:
        piece = None if meter is None else meter._pieces.get(link)
        sending = {} if piece is None else piece.sending
        n += [link.id, link.guard, link.stamp, link.pushes]
        n += [len(link.flows), *(numbers[flow] for flow in link.flows), len(link.loads)]
        for owning, tally in link.loads.items():
            airtime = sending.get(owning, Tally())
            n += [links[owning], tally.count, airtime.count]
            x += [tally.total, tally.error, 0.0 if piece is None else piece.seen[owning]]
            x += [airtime.total, airtime.error]
        n += [len(link.watchers), *(links[watcher] for watcher in link.watchers)]
        guarded = {links[k]: level for k, level in link.guarded.items() if k in links}
        capped = sending.get(None, Tally())
        n += [len(guarded), *guarded, piece is not None]
        n += [piece is not None and piece.airtime, capped.count]
        x += [*guarded.values(), link.capacity_bytes_per_s, link.level, link.progress]
        x += [link.since_s, link.turned, link.load.total, link.load.error]
        piece = piece or MeteredStretch()
        x += [piece.from_s, piece.load_from_s, piece.carried, piece.bytes]
        x += [capped.total, capped.error]
        n.append(link.load.count)
    n.append(len(sharing.alone))
    for id, flow in sharing.alone.items():
        n += [id, numbers[flow]]
        x += (0.0, 0.0) if meter is None else meter._alone[id]
    n += [len(sharing._changed_capacity), *sharing._changed_capacity]
    x += sharing._changed_capacity.values()
    events = [event for event in sorted(plain._heap) if event[3].stamp == event[4]]
    events = [event for event in events if not isinstance(event[3], Link) or event[3] in links]
    n.append(len(events))
    for at_s, order, sequence, subject, _ in events:
        if isinstance(subject, Varying):
            number = subject.link
        else:
            number = numbers[subject] if isinstance(subject, Flow) else links[subject]
        n += [order, sequence, number]
        x.append(at_s)
    return n, x
