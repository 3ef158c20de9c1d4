"""Transfers in time: who joins when, who ends when, what the rates were. No SimPy here.

The engine is the clock of `simfed.net.sharing`. Everything that happens at one instant is applied
before rates are solved, once, in this order: flows that end, capacities that change, flows that
join. So a flow that ends when another begins never shared with it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from simfed.errors import BrokenInvariant
from simfed.net.flows import Flow, Link
from simfed.net.meter import Meter
from simfed.net.sharing import Sharing
from simfed.net.topology import Floats
from simfed.net.traces import LinkTrace, Moment

__all__ = ["DeadLink", "Engine"]

_FLOW_ENDS, _LINK_ENDS, _CAPACITY_CHANGES, _FLOW_JOINS = range(4)


class DeadLink(Exception):
    """A link that flows wait for will never carry anything again."""

    def __init__(self, link: int, flows: Sequence[Flow], at_s: float, trace_ended: bool) -> None:
        super().__init__(link, flows, at_s, trace_ended)
        self.link = link
        self.flows = flows
        self.at_s = at_s
        """On the clock of the traces."""
        self.trace_ended = trace_ended
        """The trace's end policy is `error`, and its end is reached."""


class Varying:
    """A link in use whose capacity follows a trace."""

    __slots__ = ("link", "moment", "stamp", "trace")

    def __init__(self, link: int, trace: LinkTrace, moment: Moment | None) -> None:
        self.link = link
        self.trace = trace
        self.moment = moment
        self.stamp = 0


class Engine:
    """Flows over links with capacities in bytes/s, indexed by the link ids in `Flow.links`.

    `traces` gives the links whose capacity varies, on a clock that shows `epoch_s` when the
    engine's own shows 0. A `meter` is told what every link carried.

    >>> engine = Engine([10.0])
    >>> a, b = Flow(0, 60.0, (0,)), Flow(1, 20.0, (0,))
    >>> engine.start(a), engine.start(b, at_s=2.0)
    (None, None)
    >>> [(flow.id, flow.spent_s) for flow in engine.advance(100.0)]
    [(1, 4.0), (0, 8.0)]
    """

    def __init__(
        self,
        capacities_bytes_per_s: Sequence[float] | Floats,
        traces: Mapping[int, LinkTrace] | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.sharing = Sharing(capacities_bytes_per_s, meter)
        self.epoch_s = 0.0
        self._traces = traces or {}
        self._varying: dict[int, Varying] = {}
        # entries: instant, order within it, order of arrival, what it is about, its stamp then
        self._heap: list[tuple[float, int, int, Any, int]] = []
        self._sequence = 0

    @property
    def now_s(self) -> float:
        """Seconds since the engine's clock was last set to 0."""
        return self.sharing.now_s

    def restart_clock(self, epoch_s: float) -> None:
        """Set the clock back to 0; only while nothing is in progress. Small instants have fine
        digits."""
        self._heap.clear()
        self._varying.clear()
        self.sharing.now_s = 0.0
        self.epoch_s = epoch_s

    def start(self, flow: Flow, at_s: float | None = None) -> None:
        """`flow` starts at `at_s` (default now): it waits its latency, then shares."""
        flow.spent_s = flow.latency_s
        self._join_at((self.now_s if at_s is None else at_s) + flow.latency_s, flow)

    def start_all(self, flows: Iterable[tuple[float, Flow]]) -> None:
        """Start many flows, each at its own time: (instant, flow)."""
        for at_s, flow in flows:
            flow.spent_s = flow.latency_s
            flow.since_s = at_s + flow.latency_s
            self._sequence += 1
            self._heap.append((flow.since_s, _FLOW_JOINS, self._sequence, flow, flow.stamp))
        heapq.heapify(self._heap)

    def next_at_s(self) -> float:
        """When something happens next; inf if nothing will."""
        heap = self._heap
        while heap and heap[0][3].stamp != heap[0][4]:  # void: its flow or link has changed since
            heapq.heappop(heap)
        return heap[0][0] if heap else inf

    def advance(self, until_s: float) -> list[Flow]:
        """Play everything up to and including `until_s`; the flows that ended, in order.

        Raises: `DeadLink` when flows wait for a capacity that stays 0 for ever.
        """
        ended: list[Flow] = []
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self._play(heap[0][0], ended)
        if until_s < inf:
            self.sharing.now_s = max(self.now_s, until_s)
        return ended

    def cancel(self, flow: Flow) -> None:
        """Take a started flow out now. `flow.remaining_bytes` and `flow.unsent_bytes` say what it
        leaves behind."""
        if flow.joined:
            self.sharing.leave(flow)
        flow.stamp += 1
        self.sharing.settle()
        self._schedule()

    def capacity_at(self, link: int, at_s: float) -> float:
        """The capacity of a link at an instant not before now, bytes/s."""
        trace = self._traces.get(link)
        if trace is None:
            return self.sharing.capacity(link)
        moment = trace.trace.moment(self.epoch_s + at_s + trace.offset_s)
        return trace.trace.rate_bytes_per_s(moment)

    def state(self) -> dict[str, Any]:
        """What decides the future, as names and the engine's own records
        (`simfed.net.snapshot`)."""
        found: dict[str, Any] = {}
        for part, keys in self._parts():
            found |= {f"{type(part).__name__}.{key}": getattr(part, key) for key in keys}
        return found

    def restore(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`, on a new engine of the same links and traces."""
        for part, keys in self._parts():
            for key in keys:
                setattr(part, key, state[f"{type(part).__name__}.{key}"])
        for varying in [what for _, _, _, what, _ in self._heap] + list(self._varying.values()):
            if isinstance(varying, Varying):
                varying.trace = self._traces[varying.link]
                varying.moment = varying.moment and Moment(*varying.moment)

    def _parts(self) -> list[tuple[Any, tuple[str, ...]]]:
        """The objects that a state is made of, and what of each."""
        parts: list[tuple[Any, tuple[str, ...]]] = [
            (self, ("epoch_s", "_varying", "_heap", "_sequence")),
            (self.sharing, (
                "now_s", "alone", "shared", "changed_flows", "changed_links",
                "_changed_capacity", "_dirty",
            )),
        ]  # fmt: skip
        if self.sharing.meter is not None:
            parts.append((self.sharing.meter, ("_pieces", "_alone")))
        return parts

    def _join_at(self, at_s: float, flow: Flow) -> None:
        flow.since_s = at_s
        self._push(at_s, _FLOW_JOINS, flow)

    def _push(self, at_s: float, order: int, what: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (at_s, order, self._sequence, what, what.stamp))

    def _play(self, at_s: float, ended: list[Flow]) -> None:
        """One instant."""
        sharing, heap = self.sharing, self._heap
        if at_s < sharing.now_s - 1e-9 * (1 + abs(at_s)):
            raise BrokenInvariant(f"an event of {at_s} s comes up at {sharing.now_s} s")
        sharing.now_s = at_s
        while heap and heap[0][0] <= at_s:
            _, order, _, what, stamp = heapq.heappop(heap)
            if what.stamp != stamp:
                continue
            if order == _FLOW_JOINS:
                self._join(what, ended)
            elif order == _FLOW_ENDS:
                self._drained(what, what.remaining_bytes / what.limit_bytes_per_s, ended)
            elif order == _LINK_ENDS:
                self._drain(what, ended)
            else:
                self._change(what)
        sharing.settle()
        self._schedule()

    # ---- flows ---------------------------------------------------------------------------------

    def _join(self, flow: Flow, ended: list[Flow]) -> None:
        if self._traces:
            for id in flow.links:
                if id in self._traces and id not in self._varying:
                    self._follow(id)
        if flow.remaining_bytes <= 0 or (not flow.links and flow.cap_bytes_per_s == inf):
            flow.since_s = self.now_s
            self._drained(flow, 0.0, ended)
            return
        self.sharing.join(flow)
        for id in flow.links:
            if id in self._varying:
                self._check_alive(self._varying[id])

    def _drain(self, link: Link, ended: list[Flow]) -> None:
        """The own flows of `link` that have reached their ends."""
        first = link.next_end()
        if first is None:
            return
        # Rounding may have stopped the clock just short of the end that this event stands for.
        link.progress = max(link.progress_at(self.now_s), first.end)
        link.since_s = self.now_s
        while first is not None and first.end <= link.progress:
            self._drained(first, self.now_s - first.since_s, ended)
            first = link.next_end()

    def _drained(self, flow: Flow, took_s: float, ended: list[Flow]) -> None:
        """`flow` has nothing left to send for now; `took_s` is exact where `now_s - since_s` is
        rounded."""
        if took_s > 0:
            name = flow.cap_link if flow.owner is None else flow.owner.id
            flow.dwelt_s[name] = flow.dwelt_s.get(name, 0.0) + took_s
            flow.spent_s += took_s
        flow.since_s = self.now_s
        flow.remaining_bytes = 0.0
        if flow.joined:
            self.sharing.leave(flow)
            if flow.remaining_bytes > 1e-6 * flow.size_bytes:
                raise BrokenInvariant(
                    f"flow {flow.id} ended with {flow.remaining_bytes} bytes to go"
                )
            flow.remaining_bytes = 0.0  # the clock of a link may leave a rounding error behind
        if flow.unsent_bytes > 0 and flow.program is not None:
            wait_s, flow.remaining_bytes = flow.program.next_burst(flow)
            flow.unsent_bytes -= flow.remaining_bytes
            flow.spent_s += wait_s
            self._join_at(self.now_s + wait_s, flow)
        else:
            ended.append(flow)

    # ---- links ---------------------------------------------------------------------------------

    def _follow(self, id: int) -> None:
        """The first flow comes to a link with a trace: begin to follow it."""
        trace = self._traces[id]
        moment = trace.trace.moment(self.epoch_s + self.now_s + trace.offset_s)
        varying = self._varying[id] = Varying(id, trace, moment)
        self.sharing.change_capacity(id, trace.trace.rate_bytes_per_s(moment))
        self._follow_on(varying)

    def _change(self, varying: Varying) -> None:
        """A piece of a trace is over."""
        id, trace, moment = varying.link, varying.trace.trace, varying.moment
        if id not in self.sharing.alone and id not in self.sharing.shared:
            del self._varying[id]  # nobody uses it: the next flow finds its place in the trace anew
            return
        assert moment is not None
        varying.moment, _ = trace.next_moment(moment)
        if varying.moment is not None:
            self.sharing.change_capacity(id, trace.rate_bytes_per_s(varying.moment))
            self._follow_on(varying)
        self._check_alive(varying)

    def _follow_on(self, varying: Varying) -> None:
        assert varying.moment is not None
        _, next_s = varying.trace.trace.next_moment(varying.moment)
        if next_s < inf:
            at_s = next_s - varying.trace.offset_s - self.epoch_s
            self._push(max(at_s, self.now_s), _CAPACITY_CHANGES, varying)

    def _check_alive(self, varying: Varying) -> None:
        trace, moment = varying.trace.trace, varying.moment
        ended = moment is None
        if moment is not None and trace.rate_bytes_per_s(moment) == 0:
            ended = trace.next_moment(moment) == (None, inf)
        if ended:
            id, sharing = varying.link, self.sharing
            flows = list(sharing.shared[id].flows) if id in sharing.shared else [sharing.alone[id]]
            raise DeadLink(id, flows, self.epoch_s + self.now_s, moment is None)

    def _schedule(self) -> None:
        """Enter the ends that have moved."""
        sharing = self.sharing
        now_s = sharing.now_s
        for flow in sharing.changed_flows:
            if flow.joined and flow.owner is None and flow.limit_bytes_per_s > 0:
                self._push(
                    flow.since_s + flow.remaining_bytes / flow.limit_bytes_per_s, _FLOW_ENDS, flow
                )
        sharing.changed_flows.clear()
        for link in sharing.changed_links:
            link.stamp += 1
            first = link.next_end()
            if first is not None and link.level > 0:
                left_s = max(first.end - link.progress, 0.0) / link.level
                self._push(max(link.since_s + left_s, now_s), _LINK_ENDS, link)
        sharing.changed_links.clear()
