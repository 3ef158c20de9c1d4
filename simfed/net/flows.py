"""The plain records of sharing: a flow that has bytes left, a link of several flows.

They hold numbers and references to each other; what happens to them is in
`simfed.net.sharing`. A *flow* is a transfer in progress, a *link* whatever limits
several flows at once: a cable one way, or the airtime of a radio cell. A link that one
flow has to itself needs no `Link`: its capacity is that flow's cap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import fsum, inf

from simfed.ground.errors import InputError
from simfed.net.maxmin import OWN_CAP

LEAST_WEIGHT, MOST_WEIGHT = 1e-9, 1e9
"""Further apart, one flow's share would be lost in the rounding of another's."""


@dataclass(slots=True, eq=False)
class Flow:
    """One transfer while bytes of it remain: plain numbers, and what limits it now.

    A network model (`simfed.net.models`) makes it, `Path.enter` adds what it costs in a
    cell, the engine and the sharing move it on. It ends with `spent_s` as its exact
    duration. Sizes are bytes on the wire: a model may have added headers.

    Raises: `InputError` for a weight out of range.
    """

    id: int
    size_bytes: float
    links: tuple[int, ...]
    """The numbers of the links it crosses."""
    latency_s: float = 0.0
    weight: float = 1.0
    cap_bytes_per_s: float = inf
    """The flow's own cap."""
    costs: dict[int, float] | None = None
    """Per link whose capacity is not in bytes/s, what a byte takes of it: seconds of a
    cell's airtime. On a link that is not in it, a wire, a byte takes 1."""
    radios: dict[int, int] | None = None
    """Links whose capacity is what a radio gives the flow while it has its cell to
    itself, and that cell: the cost there is one over the capacity, and follows it."""
    sender_weight: float = field(default=1.0, init=False)
    """`weight` without what it weighs in its cell; of a flow with radios."""
    limit_bytes_per_s: float = field(default=inf, init=False)
    """The rate while capped: the least of its cap and the links it has to itself."""
    cap_link: int = field(default=OWN_CAP, init=False)
    """The one of them that caps it."""
    level_cap: float = field(default=inf, init=False)
    """`limit_bytes_per_s` per weight."""
    shared: list[Link] = field(default_factory=list, init=False)
    """The links of its path that others use, or have used, at the same time."""
    owner: Link | None = field(default=None, init=False)
    """The shared link that limits it; None while capped."""
    remaining_bytes: float = field(init=False)
    """Bytes left at `since_s` of what it is sending now; kept up while capped."""
    end: float = field(default=inf, init=False)
    """The end on the clock of `owner`."""
    since_s: float = field(default=0.0, init=False)
    """The instant at which it came under its present limit; while it waits, at which it
    will join."""
    spent_s: float = field(default=0.0, init=False)
    """Seconds since its start at `since_s`: summed durations, never a difference of
    late instants."""
    stamp: int = field(default=0, init=False)
    """Counts the changes that make scheduled events of this flow void."""
    dwelt_s: dict[int, float] = field(default_factory=dict, init=False)
    """Seconds under each earlier limit."""
    joined: bool = field(default=False, init=False)
    """True if it takes part in the sharing now (not while it waits out a latency)."""
    program: Callable[[Flow], tuple[float, float]] | None = field(
        default=None, init=False
    )
    """What sends the flow in bursts, as TCP's slow start does: after one has drained,
    (seconds to wait, bytes to send then). It looks at `spent_s` and `unsent_bytes`, and
    changes nothing of the flow. None sends everything at once."""
    unsent_bytes: float = field(default=0.0, init=False)
    """Bytes that the program has not yet released."""

    def __post_init__(self) -> None:
        if not LEAST_WEIGHT <= self.weight <= MOST_WEIGHT:
            allowed = f"a weight from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
            raise InputError(allowed, where="weight", got=self.weight)
        self.remaining_bytes = self.size_bytes

    @property
    def bottleneck(self) -> int:
        """The link that limited it longest until now (`OWN_CAP`: none).

        Of links that did equally long it is the first.
        """
        longest_s = max(self.dwelt_s.values(), default=0.0) * (1 - 1e-9)
        return next(
            (link for link, s in self.dwelt_s.items() if s >= longest_s), OWN_CAP
        )

    def cost_on(self, link: int) -> float:
        """Return what a byte takes of a link's capacity: 1, seconds in a cell."""
        return 1.0 if self.costs is None else self.costs.get(link, 1.0)

    def find_air_cost(self, link: int) -> float | None:
        """Return the seconds a byte takes of the link's airtime; None: a wire."""
        return None if self.costs is None else self.costs.get(link)

    def spend(self, seconds: float) -> None:
        """Count these seconds under its present limit, where they are above 0."""
        if seconds > 0:
            link = self.cap_link if self.owner is None else self.owner.id
            self.dwelt_s[link] = self.dwelt_s.get(link, 0.0) + seconds
            self.spent_s += seconds

    def __lt__(self, other: Flow) -> bool:
        return self.id < other.id


class DeadLink(Exception):
    """A link that flows wait for will never carry anything again.

    The engine raises it, `Network` turns it into a `RunFailed` that names link and
    transfers, and blame reads it as "for ever".
    """

    def __init__(
        self, link: int, flows: Sequence[Flow], at_s: float, trace_ended: bool
    ) -> None:
        super().__init__(link, flows, at_s, trace_ended)
        self.link = link
        self.flows = flows
        self.at_s = at_s
        """The instant on the clock of the traces."""
        self.trace_ended = trace_ended
        """The trace's end policy is `error`, and its end is reached."""


@dataclass(slots=True, eq=False)
class Tally:
    """A sum of numbers that come and go, and how many there are.

    Neumaier's compensated sum: after 1e5 arrivals and departures, or a huge number
    among small ones, no error is left behind.

    >>> tally = Tally()
    >>> for number, count in ((1e16, 1), (1.0, 1), (-1e16, -1)):
    ...     tally.add(number, count)
    >>> tally.value, tally.count
    (1.0, 1)
    """

    count: int = 0
    total: float = 0.0
    error: float = 0.0

    @property
    def value(self) -> float:
        """The sum so far, with what rounding took put back."""
        return self.total + self.error

    def add(self, number: float, count: int = 1) -> None:
        """Count so many numbers in, or out, that sum up to this.

        The rounding error is carried along. The sum of none is exactly 0.

        Args:
            number: what they sum up to; of numbers that go its negative.
            count: how many come; -1 where one goes.
        """
        self.count += count
        if not self.count:
            self.total = self.error = 0.0
            return
        before = self.total
        self.total = total = before + number
        if abs(before) >= abs(number):
            self.error += (before - total) + number
        else:
            self.error += (number - total) + before


@dataclass(slots=True, eq=False)
class Link:
    """A link that several flows use at once, and its books.

    A flow *belongs* to the link that limits it; those that something else limits cross
    it as *capped* flows (their own cap, or a link of theirs alone) or as flows of other
    links. Its own flows all have the same rate per weight, the `level`, so one clock of
    bytes per weight, the `progress`, tells when each of them ends.
    """

    id: int
    capacity_bytes_per_s: float
    since_s: float
    """The instant of `progress`."""
    flows: dict[Flow, None] = field(default_factory=dict)
    """The flows that cross it, in order of arrival; a set would order by address."""
    level: float = inf
    """Rate per weight of its own flows; inf while it limits nobody."""
    progress: float = 0.0
    """Integral of the level at `since_s`, in bytes per weight."""
    turned: float = 0.0
    """The part of `progress` that was taken off by turning the clock back to 0."""
    ends: list[tuple[float, int, Flow]] = field(default_factory=list)
    """Heap of its own flows' ends on the clock `progress`; stale entries are
    skipped."""
    by_cap: list[tuple[float, int, Flow]] = field(default_factory=list)
    """Heap of its own flows' caps per weight, lowest first."""
    by_limit: list[tuple[float, int, Flow]] = field(default_factory=list)
    """Heap of the capped flows that cross it, by minus their rate per weight."""
    load: Tally = field(default_factory=Tally)
    """Rates of the capped flows that cross it, each times its cost."""
    loads: dict[Link, Tally] = field(default_factory=dict)
    """The weights of the own flows of each link that cross this one (itself included),
    each times the flow's cost here."""
    watchers: dict[Link, None] = field(default_factory=dict)
    """Limiting links crossed by own flows of this one: they feel every change of its
    level."""
    guards: list[tuple[float, int, int, Link]] = field(default_factory=list)
    """Heap of levels of this link above which a link that limits nobody must look
    again."""
    guard: int = 0
    """Counts the times its guards on others were set anew; older entries are void."""
    guarded: dict[Link, float] = field(default_factory=dict)
    """Up to which level of each other link it need not look again."""
    stamp: int = 0
    """Counts the changes that make scheduled events of this link void."""
    pushes: int = 0
    """Entries put on its heaps since they were last made anew."""
    dirty: bool = False
    """True if its level is to be found anew."""

    def __lt__(self, other: Link) -> bool:
        return self.id < other.id

    def read_clock(self, now_s: float) -> float:
        """Return the reading of the link's clock at an instant, in bytes per weight.

        It stands still while the link limits nobody.
        """
        if self.level == inf or now_s <= self.since_s:
            return self.progress
        return self.progress + self.level * (now_s - self.since_s)

    def settle(self, now_s: float) -> None:
        """Bring the link's clock to `now_s`, before its level changes."""
        self.progress = self.read_clock(now_s)
        self.since_s = now_s

    def slack(self) -> float:
        """Return the capacity that flows limited elsewhere leave to its own, bytes/s.

        Of an airtime it is in seconds per second. Below 0 where they take more than
        there is.
        """
        load = self.load
        left = (self.capacity_bytes_per_s - load.total) - load.error
        if len(self.loads) <= (self in self.loads):
            return left
        taken = [
            -link.level * (load.total + load.error)
            for link, load in self.loads.items()
            if link is not self
        ]
        return fsum([left, *taken])

    def reset_clock(self) -> None:
        """Set the clock back to 0 and drop stale entries from the heaps.

        The clock's numbers stay as small as the flows that it measures (late instants
        have coarse digits), the heaps as long as there are flows.
        """
        for flow in self.flows:
            if flow.owner is self:
                flow.end -= self.progress
        self.turned += self.progress
        self.progress = 0.0
        self.guards = [entry for entry in self.guards if entry[3].guard == entry[2]]
        self.collect()
        self.pushes = 0

    def collect(self) -> None:
        """Make the heaps anew, of its flows and its guards as they are."""
        limited = [flow for flow in self.flows if flow.owner is self]
        self.ends = [(flow.end, flow.id, flow) for flow in limited]
        self.by_cap = [
            (flow.level_cap, flow.id, flow) for flow in limited if flow.level_cap < inf
        ]
        self.by_limit = [(-f.level_cap, f.id, f) for f in self.flows if f.owner is None]
        heapq.heapify(self.ends)
        heapq.heapify(self.by_cap)
        heapq.heapify(self.by_limit)
        heapq.heapify(self.guards)

    def find_next_end(self) -> Flow | None:
        """Return the own flow that ends first, None where it has none.

        Entries of flows that have moved on are dropped on the way, as in the next two.
        """
        ends = self.ends
        while ends:
            end, _, flow = ends[0]
            if flow.owner is self and flow.end == end:
                return flow
            heapq.heappop(ends)
        return None

    def find_lowest_cap(self) -> Flow | None:
        """Return the own flow that reaches its cap first if the level rises."""
        heap = self.by_cap
        while heap:
            cap, _, flow = heap[0]
            if flow.owner is self and flow.level_cap == cap:
                return flow
            heapq.heappop(heap)
        return None

    def find_fastest_capped(self) -> Flow | None:
        """Return the capped flow across it with the highest rate per weight."""
        heap = self.by_limit
        while heap:
            minus, _, flow = heap[0]
            if flow.owner is None and flow.level_cap == -minus:
                return flow
            heapq.heappop(heap)
        return None
