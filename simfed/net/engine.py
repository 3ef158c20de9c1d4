"""Transfers in time: who joins when, who ends when, what the rates were. No SimPy here.

The engine is the clock of `simfed.net.sharing`. Everything that happens at one instant is applied
before rates are solved, once, in this order: flows that end, capacities that change, flows that
join. So a flow that ends when another begins never shared with it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from math import inf

from simfed.net.meter import Meter
from simfed.net.sharing import Flow, Link, Sharing

__all__ = ["Engine"]

_FLOW_ENDS, _LINK_ENDS, _CAPACITY, _JOIN = range(4)

Event = tuple[float, int, int, object, int]


class Engine:
    """Flows over links with capacities in bytes/s, indexed by the link ids in `Flow.links`.

    >>> engine = Engine([10.0])
    >>> a, b = Flow(0, 60.0, (0,)), Flow(1, 20.0, (0,))
    >>> engine.start(a), engine.start(b, at_s=2.0)
    (None, None)
    >>> [(flow.id, flow.spent) for flow in engine.advance(100.0)]
    [(1, 4.0), (0, 8.0)]
    """

    def __init__(self, capacities_bytes_per_s: Sequence[float], meter: Meter | None = None) -> None:
        self.sharing = Sharing(capacities_bytes_per_s, meter)
        self._heap: list[Event] = []
        self._sequence = 0

    @property
    def now(self) -> float:
        """Seconds since the engine's own beginning."""
        return self.sharing.now

    def start(self, flow: Flow, at_s: float | None = None) -> None:
        """`flow` starts at `at_s` (default now): it waits its latency, then shares."""
        flow.spent = flow.latency_s
        self._push((self.now if at_s is None else at_s) + flow.latency_s, _JOIN, flow, flow.stamp)

    def start_all(self, flows: Iterable[tuple[float, Flow]]) -> None:
        """Start many flows at once, each at its own time."""
        for at_s, flow in flows:
            flow.spent = flow.latency_s
            self._sequence += 1
            event = (at_s + flow.latency_s, _JOIN, self._sequence, flow, flow.stamp)
            self._heap.append(event)
        heapq.heapify(self._heap)

    def next_at_s(self) -> float:
        """When something happens next; inf if nothing will."""
        return self._heap[0][0] if self._heap else inf

    def advance(self, until_s: float) -> list[Flow]:
        """Play everything up to and including `until_s`; the flows that ended, in order."""
        ended: list[Flow] = []
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self._play(heap[0][0], ended)
        if until_s < inf:
            self.sharing.now = max(self.now, until_s)
        return ended

    def restart_clock(self) -> None:
        """Set `now` back to 0; only while nothing is in progress. Small instants have fine digits."""
        self._heap.clear()
        self.sharing.now = 0.0

    def cancel(self, flow: Flow) -> float:
        """Take a started flow out now; the bytes that it had moved."""
        sharing = self.sharing
        if flow.joined:
            sharing.leave(flow)
        flow.stamp += 1
        sharing.settle()
        self._schedule()
        return flow.size - flow.remaining

    def _push(self, at_s: float, order: int, what: object, stamp: int) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (at_s, order, self._sequence, what, stamp))

    def _play(self, at_s: float, ended: list[Flow]) -> None:
        """One instant."""
        sharing, heap = self.sharing, self._heap
        sharing.now = at_s
        while heap and heap[0][0] <= at_s:
            _, order, _, what, stamp = heapq.heappop(heap)
            if what.stamp != stamp:
                continue
            if order == _JOIN:
                self._join(what, ended)
            elif order == _FLOW_ENDS:
                self._drained(what, what.remaining / what.limit, ended)
            elif order == _LINK_ENDS:
                self._drain(what, ended)
        sharing.settle()
        self._schedule()

    def _join(self, flow: Flow, ended: list[Flow]) -> None:
        if flow.remaining <= 0 or (not flow.links and flow.cap == inf):
            flow.remaining = 0.0
            ended.append(flow)
        else:
            self.sharing.join(flow)

    def _drain(self, link: Link, ended: list[Flow]) -> None:
        """The own flows of `link` that have reached their ends."""
        first = link.next_end()
        if first is None:
            return
        link.progress = max(link.progress_at(self.now), first.end)
        link.since = self.now
        while first is not None and first.end <= link.progress:
            self._drained(first, self.now - first.since, ended)
            first = link.next_end()

    def _drained(self, flow: Flow, took_s: float, ended: list[Flow]) -> None:
        name = flow.cap_link if flow.owner is None else flow.owner.id
        flow.dwelt[name] = flow.dwelt.get(name, 0.0) + took_s
        flow.spent += took_s
        flow.since = self.now
        flow.remaining = 0.0
        self.sharing.leave(flow)
        ended.append(flow)

    def _schedule(self) -> None:
        """Enter the ends that have moved."""
        sharing = self.sharing
        now = sharing.now
        for flow in sharing.changed_flows:
            if flow.joined and flow.owner is None and flow.limit > 0:
                self._push(flow.since + flow.remaining / flow.limit, _FLOW_ENDS, flow, flow.stamp)
        sharing.changed_flows.clear()
        for link in sharing.changed_links:
            link.stamp += 1
            first = link.next_end()
            if first is not None and link.level > 0:
                left = max(first.end - link.progress, 0.0) / link.level
                self._push(max(link.since + left, now), _LINK_ENDS, link, link.stamp)
        sharing.changed_links.clear()
