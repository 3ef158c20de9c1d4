"""Transfers in time: who joins when, who ends when, what the rates were. No SimPy here.

The engine is the clock of `simfed.net.sharing`. Everything that happens at one instant
is applied before rates are solved, once, in this order: flows that end, capacities that
change, flows that join. So a flow that ends when another begins never shared with it.

A heap holds what is due. Entries are never searched for: each notes the `stamp` of its
flow or link, which counts changes, and one whose stamp is old is skipped as it comes
up. A flow that owns its rate ends at an instant of its own; the flows of a shared link
have one entry together, for the first of them.

A link whose capacity varies is followed from the first flow that comes to it until a
piece of its trace ends and nobody uses it, so that a million links with traces cost
what those in use cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from simfed.ground.arrays import Floats
from simfed.ground.errors import BrokenInvariant
from simfed.net.flows import DeadLink, Flow, Link
from simfed.net.meter import Meter
from simfed.net.sharing import Allocator
from simfed.net.traces import LinkTrace, Moment

FLOW_ENDS, LINK_ENDS, CAPACITY_CHANGES, FLOW_JOINS = range(4)
"""The events of one instant, in order."""


@dataclass(slots=True, eq=False)
class TraceFollower:
    """A link in use whose capacity follows a trace; its entry among the events due."""

    link: int
    trace: LinkTrace
    moment: Moment | None
    """The piece in force; None: the trace has ended."""
    stamp: int = 0


class Engine:
    """Flows over links with capacities in bytes/s, on a clock of seconds.

    `Network` drives it inside SimPy, `play` and `replay` without. Flows are made by a
    network model; here they are started, played on and cancelled.

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
        """Prepare links without flows, at 0 s.

        Args:
            capacities_bytes_per_s: by the ids in `Flow.links`, above 0; `inf`:
                unlimited. Of an airtime in seconds per second.
            traces: the links whose capacity varies, on a clock that shows `epoch_s`
                when the engine's own shows 0.
            meter: told what every link carried; None: nobody asks.
        """
        self.epoch_s = 0.0
        self._traces = traces or {}
        self._varying: dict[int, TraceFollower] = {}
        self.sharing = Allocator(capacities_bytes_per_s, meter)
        # entries: instant, order within it, order of arrival, flow or link, its stamp
        # then
        self._heap: list[tuple[float, int, int, Any, int]] = []
        self._sequence = 0

    def restart_clock(self, epoch_s: float) -> None:
        """Set the clock back to 0; only while nothing is in progress.

        Small instants have fine digits.

        Args:
            epoch_s: what the traces' clock shows at the engine's 0.
        """
        self._heap.clear()
        self._varying.clear()
        self.sharing.now_s = 0.0
        self.epoch_s = epoch_s

    def start(self, flow: Flow, at_s: float | None = None) -> None:
        """Start a flow: it waits out its latency, then takes its share.

        Args:
            flow: made anew, with all its bytes ahead of it.
            at_s: on the engine's clock, not before now; None: now.
        """
        flow.spent_s = flow.latency_s
        begins_s = self.sharing.now_s if at_s is None else at_s
        flow.since_s = begins_s + flow.latency_s
        self._push(flow.since_s, FLOW_JOINS, flow)

    def find_next_s(self) -> float:
        """Return the instant at which something happens next; inf if nothing will."""
        heap = self._heap
        # void: its flow or link has changed since
        while heap and heap[0][3].stamp != heap[0][4]:
            heapq.heappop(heap)
        return heap[0][0] if heap else inf

    def advance(self, until_s: float) -> list[Flow]:
        """Play everything up to and including an instant, and stand there.

        Args:
            until_s: on the engine's clock; inf: until nothing is left, without moving
            on.

        Returns the flows that ended, in the order in which they did.

        Raises: `DeadLink` when flows wait for a capacity that stays 0 for ever.
        """
        ended: list[Flow] = []
        heap = self._heap
        while (at_s := self.find_next_s()) <= until_s and heap:
            self._play_instant(at_s, ended)
        if until_s < inf:
            self.sharing.now_s = max(self.sharing.now_s, until_s)
        return ended

    def cancel(self, flow: Flow) -> None:
        """Take a started flow out now.

        `flow.remaining_bytes` and `flow.unsent_bytes` say what it leaves behind.
        """
        if flow.joined:
            self.sharing.leave(flow)
        flow.stamp += 1
        self._finish()

    def change_capacity(self, link: int, capacity_bytes_per_s: float) -> None:
        """Give a link this capacity from now on, finite and at least 0."""
        self.sharing.change_capacity(link, capacity_bytes_per_s)
        self._finish()

    def left(self, flow: Flow) -> float:
        """Return the bytes that a flow that was started has yet to send.

        Those that its program holds back (`flow.unsent_bytes`) are not among them.
        """
        return self.sharing.left(flow) if flow.joined else flow.remaining_bytes

    def _push(
        self, at_s: float, order: int, subject: Flow | Link | TraceFollower
    ) -> None:
        """Put an event of a flow or link on the heap, void once its `stamp` changes.

        `order` is its place among those of one instant, `FLOW_ENDS` to `FLOW_JOINS`.
        """
        if at_s != at_s:  # nothing would ever come before it or after it
            raise BrokenInvariant(f"the next event of {subject!r:.200} is at {at_s} s")
        self._sequence += 1
        heapq.heappush(
            self._heap, (at_s, order, self._sequence, subject, subject.stamp)
        )

    def _play_instant(self, at_s: float, ended: list[Flow]) -> None:
        """Play everything of `at_s`; flows that end are put into `ended`."""
        sharing, heap = self.sharing, self._heap
        if at_s < sharing.now_s - 1e-9 * (1 + abs(at_s)):
            raise BrokenInvariant(f"an event of {at_s} s comes up at {sharing.now_s} s")
        sharing.now_s = at_s
        while heap and heap[0][0] <= at_s:
            _, order, _, subject, stamp = heapq.heappop(heap)
            if subject.stamp != stamp:
                continue
            if order == FLOW_JOINS:
                self._join(subject, ended)
            elif order == FLOW_ENDS:
                took_s = subject.remaining_bytes / subject.limit_bytes_per_s
                self._end_burst(subject, took_s, ended)
            elif order == LINK_ENDS:
                self._end_flows(subject, ended)
            else:
                self._change(subject)
        self._finish()

    def _finish(self) -> None:
        """Solve the rates, now that all that changes at this instant has changed.

        Then put the ends that have moved among the events that are due.
        """
        sharing = self.sharing
        sharing.settle()
        now_s = sharing.now_s
        for flow in sharing.changed_flows:
            if flow.joined and flow.owner is None and flow.limit_bytes_per_s > 0:
                left_s = flow.remaining_bytes / flow.limit_bytes_per_s
                self._push(flow.since_s + left_s, FLOW_ENDS, flow)
        sharing.changed_flows.clear()
        for link in sharing.changed_links:
            link.stamp += 1
            first = link.find_next_end()
            if first is not None and link.level > 0:
                left_s = max(first.end - link.progress, 0.0) / link.level
                self._push(max(link.since_s + left_s, now_s), LINK_ENDS, link)
        sharing.changed_links.clear()

    # ---- flows -----------------------------------------------------------------------

    def _join(self, flow: Flow, ended: list[Flow]) -> None:
        """Let a flow whose latency is over take its share.

        One without bytes, or without any limit, ends at once.
        """
        if self._traces:
            self._follow_path(flow)
        if flow.remaining_bytes <= 0 or (
            not flow.links and flow.cap_bytes_per_s == inf
        ):
            flow.since_s = self.sharing.now_s
            self._end_burst(flow, 0.0, ended)
            return
        self.sharing.join(flow)
        for id in flow.links if self._varying else ():
            if id in self._varying:
                self._check_alive(self._varying[id])

    def _end_flows(self, link: Link, ended: list[Flow]) -> None:
        """End the flows limited by `link` that have reached their ends on its clock."""
        first = link.find_next_end()
        if first is None:
            return
        # Rounding may have stopped the clock just short of the end that this event
        # stands for.
        link.progress = max(link.read_clock(self.sharing.now_s), first.end)
        link.since_s = self.sharing.now_s
        while first is not None and first.end <= link.progress:
            self._end_burst(first, self.sharing.now_s - first.since_s, ended)
            first = link.find_next_end()

    def _end_burst(self, flow: Flow, took_s: float, ended: list[Flow]) -> None:
        """Note that `flow` has nothing left to send for now.

        It ends, or waits for its next burst where a program sends it in several.

        Args:
            flow: in progress or not.
            took_s: seconds since `flow.since_s`, exact where `now_s - since_s` is
            rounded.
            ended: takes the flow if that was all of it.
        """
        flow.spend(took_s)
        flow.since_s = self.sharing.now_s
        flow.remaining_bytes = 0.0
        if flow.joined:
            self.sharing.leave(flow)
            if flow.remaining_bytes > 1e-6 * flow.size_bytes:
                left = f"ended with {flow.remaining_bytes} bytes to go"
                raise BrokenInvariant(f"flow {flow.id} {left}")
            # the clock of a link may leave a rounding error behind
            flow.remaining_bytes = 0.0
        if flow.unsent_bytes > 0 and flow.program is not None:
            wait_s, flow.remaining_bytes = flow.program(flow)
            flow.unsent_bytes -= flow.remaining_bytes
            flow.spent_s += wait_s
            flow.since_s = self.sharing.now_s + wait_s
            self._push(flow.since_s, FLOW_JOINS, flow)
        else:
            ended.append(flow)

    # ---- links -----------------------------------------------------------------------

    def _list_users(self, id: int) -> list[Flow]:
        """Return the flows in progress over a link that is in use."""
        link = self.sharing.shared.get(id)
        return [self.sharing.alone[id]] if link is None else list(link.flows)

    def find_capacity(self, link: int, at_s: float) -> float:
        """Return the capacity of a link at an instant not before now, bytes/s."""
        trace = self._traces.get(link)
        if trace is None:
            return self.sharing.capacity(link)
        moment = trace.trace.moment(self.epoch_s + at_s + trace.offset_s)
        return trace.trace.rate_bytes_per_s(moment)

    def idle_bytes_per_s(self, flow: Flow, at_s: float) -> float:
        """Return the rate that the links of `flow` would give it alone at an instant.

        Its own cap is not looked at; `inf` where no link limits.
        """
        rates = {link: self.find_capacity(link, at_s) for link in flow.links}
        alone = {cell: rates[radio] for radio, cell in (flow.radios or {}).items()}
        return min(
            [
                rate * alone[link] if link in alone else rate / flow.cost_on(link)
                for link, rate in rates.items()
            ],
            default=inf,
        )

    def _follow_path(self, flow: Flow) -> None:
        """Begin to follow the traces of the links a flow crosses, before it joins."""
        for id in flow.links:
            if id in self._traces and id not in self._varying:
                self._follow(id)
        for id in flow.radios or ():
            self._follow_weight(flow, self._varying.get(id))

    def _follow(self, id: int) -> None:
        """Begin to follow a link with a trace, as the first flow comes to it."""
        trace = self._traces[id]
        moment = trace.trace.moment(self.epoch_s + self.sharing.now_s + trace.offset_s)
        varying = self._varying[id] = TraceFollower(id, trace, moment)
        self.sharing.change_capacity(id, trace.trace.rate_bytes_per_s(moment))
        self._follow_on(varying)

    def _change(self, varying: TraceFollower) -> None:
        """Give the link the rate of the trace's next piece.

        Stop following a link without flows.
        """
        id, trace, moment = varying.link, varying.trace.trace, varying.moment
        if id not in self.sharing.alone and id not in self.sharing.shared:
            del self._varying[id]  # the next flow finds its place in the trace anew
            return
        assert moment is not None
        varying.moment, _ = trace.next_moment(moment)
        if varying.moment is not None:
            self.sharing.change_capacity(id, trace.rate_bytes_per_s(varying.moment))
            if trace.radio_weight(varying.moment) is not None:
                for flow in self._list_users(id):
                    self._follow_weight(flow, varying)
            self._follow_on(varying)
        self._check_alive(varying)

    def _follow_weight(self, flow: Flow, varying: TraceFollower | None) -> None:
        """Have a flow weigh in its cell what the trace of its radio says now.

        `varying` is the radio's link; None, or without weights of its own: nothing
        changes.
        """
        if varying is None or varying.moment is None:
            return
        radio_weight = varying.trace.trace.radio_weight(varying.moment)
        if (
            radio_weight is not None
            and flow.weight != flow.sender_weight * radio_weight
        ):
            self.sharing.change_weight(flow, flow.sender_weight * radio_weight)

    def _follow_on(self, varying: TraceFollower) -> None:
        """Put the end of the present piece of a trace among the events due."""
        assert varying.moment is not None
        _, next_s = varying.trace.trace.next_moment(varying.moment)
        if next_s < inf:
            at_s = next_s - varying.trace.offset_s - self.epoch_s
            self._push(max(at_s, self.sharing.now_s), CAPACITY_CHANGES, varying)

    def _check_alive(self, varying: TraceFollower) -> None:
        """Raise `DeadLink` where a link's trace has ended, or stays at 0 for ever."""
        trace, moment = varying.trace.trace, varying.moment
        ended = moment is None
        if moment is not None and trace.rate_bytes_per_s(moment) == 0:
            ended = trace.next_moment(moment) == (None, inf)
        if ended:
            id = varying.link
            raise DeadLink(
                id,
                self._list_users(id),
                self.epoch_s + self.sharing.now_s,
                moment is None,
            )
