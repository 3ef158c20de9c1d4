"""What every engine can do, and how it follows links whose capacity varies: when to look at a
trace, what capacity to set, when to give up.

A link is followed from the first flow that comes to it until a piece of its trace ends and nobody
uses it, so that a million links with traces cost what those in use cost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from simfed.net.flows import Flow
from simfed.net.traces import LinkTrace, Moment


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


@dataclass(slots=True, eq=False)
class Varying:
    """A link in use whose capacity follows a trace."""

    link: int
    trace: LinkTrace
    moment: Moment | None
    """The piece in force; None: the trace has ended."""
    stamp: int = 0


class AnyEngine(ABC):
    """Flows over links, in time. `traces` gives the links whose capacity varies, on a clock that
    shows `epoch_s` when the engine's own shows 0."""

    def __init__(self, traces: Mapping[int, LinkTrace] | None) -> None:
        self.epoch_s = 0.0
        self._traces = traces or {}
        self._varying: dict[int, Varying] = {}

    @property
    @abstractmethod
    def now_s(self) -> float:
        """Seconds since the engine's clock was last set to 0."""

    @abstractmethod
    def restart_clock(self, epoch_s: float) -> None:
        """Set the clock back to 0; only while nothing is in progress. Small instants have fine
        digits."""

    @abstractmethod
    def start(self, flow: Flow, at_s: float | None = None) -> None:
        """`flow` starts at `at_s` (default now): it waits its latency, then shares."""

    @abstractmethod
    def start_all(self, flows: Iterable[tuple[float, Flow]]) -> None:
        """Start many flows, each at its own time: (instant, flow)."""

    @abstractmethod
    def next_at_s(self) -> float:
        """When something happens next; inf if nothing will."""

    @abstractmethod
    def advance(self, until_s: float) -> list[Flow]:
        """Play everything up to and including `until_s`; the flows that ended, in order.

        Raises: `DeadLink` when flows wait for a capacity that stays 0 for ever.
        """

    @abstractmethod
    def cancel(self, flow: Flow) -> None:
        """Take a started flow out now. `flow.remaining_bytes` and `flow.unsent_bytes` say what it
        leaves behind."""

    @abstractmethod
    def change_capacity(self, link: int, capacity_bytes_per_s: float) -> None:
        """From now on a link has this capacity, finite and at least 0."""

    @abstractmethod
    def left(self, flow: Flow) -> float:
        """The bytes that a flow that was started has yet to send, but for those that its program
        holds back (`flow.unsent_bytes`)."""

    @abstractmethod
    def look(self, flow: Flow) -> None:
        """Bring what `flow` says of itself up to its last change of rate."""

    @abstractmethod
    def solve_from_scratch(self) -> None:
        """From now on solve every instant anew, as where repairs do not settle: for checks."""

    @abstractmethod
    def state(self) -> dict[str, object]:
        """What decides the future, as names and the records of Python's engine
        (`simfed.net.snapshot`)."""

    @abstractmethod
    def restore(self, state: Mapping[str, object]) -> None:
        """Inverse of `state`, on a new engine of the same links and traces."""

    @abstractmethod
    def capacity_of(self, id: int) -> float:
        """The present capacity of a link, bytes/s."""

    @abstractmethod
    def set_capacity(self, id: int, capacity_bytes_per_s: float) -> None:
        """From now on a link has this capacity, bytes/s."""

    @abstractmethod
    def set_weight(self, flow: Flow, weight: float) -> None:
        """From now on a flow that was started weighs this."""

    @abstractmethod
    def users_of(self, id: int) -> list[Flow]:
        """The flows across a link."""

    @abstractmethod
    def is_in_use(self, id: int) -> bool:
        """Whether any flow crosses a link."""

    @abstractmethod
    def change_at(self, at_s: float, varying: Varying) -> None:
        """Have `_change(varying)` called at this instant."""

    def capacity_at(self, link: int, at_s: float) -> float:
        """The capacity of a link at an instant not before now, bytes/s."""
        trace = self._traces.get(link)
        if trace is None:
            return self.capacity_of(link)
        moment = trace.trace.moment(self.epoch_s + at_s + trace.offset_s)
        return trace.trace.rate_bytes_per_s(moment)

    def _follow_path(self, flow: Flow) -> None:
        """Before a flow joins: begin to follow the traces of the links that it crosses."""
        for id in flow.links:
            if id in self._traces and id not in self._varying:
                self._follow(id)
        for id in flow.radios or ():
            self._follow_weight(flow, self._varying.get(id))

    def _check_path(self, flow: Flow) -> None:
        """After a flow has joined. Raises: `DeadLink` where a link of its path stays at 0."""
        for id in flow.links:
            if id in self._varying:
                self._check_alive(self._varying[id])

    def _follow(self, id: int) -> None:
        """The first flow comes to a link with a trace: begin to follow it."""
        trace = self._traces[id]
        moment = trace.trace.moment(self.epoch_s + self.now_s + trace.offset_s)
        varying = self._varying[id] = Varying(id, trace, moment)
        self.set_capacity(id, trace.trace.rate_bytes_per_s(moment))
        self._follow_on(varying)

    def _change(self, varying: Varying) -> None:
        """Give the link the rate of the trace's next piece; stop following a link without flows."""
        id, trace, moment = varying.link, varying.trace.trace, varying.moment
        if not self.is_in_use(id):
            del self._varying[id]  # the next flow finds its place in the trace anew
            return
        assert moment is not None
        varying.moment, _ = trace.next_moment(moment)
        if varying.moment is not None:
            self.set_capacity(id, trace.rate_bytes_per_s(varying.moment))
            if trace.radio_weight(varying.moment) is not None:
                for flow in self.users_of(id):
                    self._follow_weight(flow, varying)
            self._follow_on(varying)
        self._check_alive(varying)

    def _follow_weight(self, flow: Flow, varying: Varying | None) -> None:
        """Have a flow weigh what its radio has it weigh now; None: that one does not vary."""
        if varying is None or varying.moment is None:
            return
        radio_weight = varying.trace.trace.radio_weight(varying.moment)
        if radio_weight is not None and flow.weight != flow.sender_weight * radio_weight:
            self.set_weight(flow, flow.sender_weight * radio_weight)

    def _follow_on(self, varying: Varying) -> None:
        assert varying.moment is not None
        _, next_s = varying.trace.trace.next_moment(varying.moment)
        if next_s < inf:
            at_s = next_s - varying.trace.offset_s - self.epoch_s
            self.change_at(max(at_s, self.now_s), varying)

    def _check_alive(self, varying: Varying) -> None:
        trace, moment = varying.trace.trace, varying.moment
        ended = moment is None
        if moment is not None and trace.rate_bytes_per_s(moment) == 0:
            ended = trace.next_moment(moment) == (None, inf)
        if ended:
            id = varying.link
            raise DeadLink(id, self.users_of(id), self.epoch_s + self.now_s, moment is None)
