"""The plain records of the sharing: a flow that has bytes left, a link that several flows use.

They hold numbers and references to each other; what happens to them is in `simfed.net.sharing`.
"""

from __future__ import annotations

import heapq
from math import fsum, inf
from typing import Protocol

from simfed.net.maxmin import OWN_CAP

__all__ = ["Flow", "Link", "Program", "Tally"]


LEAST_WEIGHT, MOST_WEIGHT = 1e-9, 1e9
"""Further apart, one flow's share would be lost in the rounding of another's."""


class Program(Protocol):
    """Sends a flow in bursts (TCP's slow start does); plain numbers, one object per flow. It may
    look at `flow.spent_s` and `flow.unsent_bytes`, and changes nothing of the flow."""

    def next_burst(self, flow: Flow) -> tuple[float, float]:
        """The burst has drained and `flow.unsent_bytes` bytes are left: (seconds to wait, bytes to
        send then)."""
        ...


class Flow:
    """What is known of one transfer while bytes of it remain; plain numbers and its present
    bottleneck."""

    __slots__ = (
        "cap_bytes_per_s", "cap_link", "dwelt_s", "end", "id", "joined", "latency_s", "level_cap",
        "limit_bytes_per_s", "links", "owner", "program", "remaining_bytes", "shared", "since_s",
        "size_bytes", "spent_s", "stamp", "unsent_bytes", "weight",
    )  # fmt: skip

    def __init__(
        self,
        id: int,
        size_bytes: float,
        links: tuple[int, ...],
        latency_s: float = 0.0,
        weight: float = 1.0,
        cap_bytes_per_s: float = inf,
    ) -> None:
        self.id = id
        self.size_bytes = size_bytes
        self.links = links
        self.latency_s = latency_s
        self.weight = weight
        self.cap_bytes_per_s = cap_bytes_per_s
        """The flow's own cap."""
        self.limit_bytes_per_s = inf
        """Its rate while capped: the least of its cap and the links it has to itself."""
        self.cap_link = OWN_CAP
        """Which of them that is."""
        self.level_cap = inf
        """`limit_bytes_per_s` per weight."""
        self.shared: list[Link] = []
        """The links of its path that others use, or have used, at the same time."""
        self.owner: Link | None = None
        """The shared link that limits it; None while capped."""
        self.remaining_bytes = size_bytes
        """Bytes left at `since_s` of what it is sending now; kept up while capped."""
        self.end = inf
        """Its end on the clock of `owner`."""
        self.since_s = 0.0
        """When it came under its present limit; while it waits, when it will join."""
        self.spent_s = 0.0
        """Seconds since its start at `since_s`: summed durations, never a difference of late
        instants."""
        self.stamp = 0
        """Counts the changes that make scheduled events of this flow void."""
        self.dwelt_s: dict[int, float] = {}
        """Seconds under each earlier limit."""
        self.joined = False
        """Whether it takes part in the sharing now (not while it waits out a latency)."""
        self.program: Program | None = None
        """What sends the flow in bursts; None sends everything at once."""
        self.unsent_bytes = 0.0
        """Bytes that the program has not yet released."""

    @property
    def bottleneck(self) -> int:
        """What limited it longest until now (`OWN_CAP`: no link); of equals the first."""
        longest_s = max(self.dwelt_s.values(), default=0.0) * (1 - 1e-9)
        return next((link for link, s in self.dwelt_s.items() if s >= longest_s), OWN_CAP)

    def __lt__(self, other: Flow) -> bool:
        return self.id < other.id


class Tally:
    """A sum of numbers that come and go, and how many there are.

    Neumaier's compensated sum: after 1e5 arrivals and departures, or a huge number among small
    ones, no error is left behind.
    """

    __slots__ = ("count", "error", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.error = 0.0

    @property
    def value(self) -> float:
        """The sum."""
        return self.total + self.error

    def add(self, number: float) -> None:
        """One number more."""
        self.count += 1
        self._shift(number)

    def remove(self, number: float) -> None:
        """One number less."""
        self.count -= 1
        if self.count:
            self._shift(-number)
        else:
            self.total = self.error = 0.0

    def _shift(self, by: float) -> None:
        total = self.total + by
        if abs(self.total) >= abs(by):
            self.error += (self.total - total) + by
        else:
            self.error += (by - total) + self.total
        self.total = total


class Link:
    """A link that several flows use at once."""

    __slots__ = (
        "by_cap",
        "by_limit",
        "capacity_bytes_per_s",
        "dirty",
        "ends",
        "flows",
        "guard",
        "guarded",
        "guards",
        "id",
        "level",
        "load",
        "loads",
        "progress",
        "pushes",
        "since_s",
        "stamp",
        "turned",
        "watchers",
    )

    def __init__(self, id: int, capacity_bytes_per_s: float, now_s: float) -> None:
        self.id = id
        self.capacity_bytes_per_s = capacity_bytes_per_s
        self.flows: dict[Flow, None] = {}
        """All flows that cross it, in order of arrival (a set would order them by address)."""
        self.level = inf
        """Rate per weight of its own flows; inf while it limits nobody."""
        self.progress = 0.0
        """Integral of the level at `since_s`, in bytes per weight."""
        self.since_s = now_s
        self.turned = 0.0
        """What was taken off `progress` by turning the clock back to 0."""
        self.ends: list[tuple[float, int, Flow]] = []
        """Heap of its own flows' ends on the clock `progress`; stale entries are skipped."""
        self.by_cap: list[tuple[float, int, Flow]] = []
        """Heap of its own flows' caps per weight, lowest first."""
        self.by_limit: list[tuple[float, int, Flow]] = []
        """Heap of the capped flows that cross it, by minus their rate per weight."""
        self.load = Tally()
        """Rates of the capped flows that cross it."""
        self.loads: dict[Link, Tally] = {}
        """For each link whose own flows cross this one (itself included): their weights."""
        self.watchers: dict[Link, None] = {}
        """Limiting links crossed by own flows of this one: they feel every change of its level."""
        self.guards: list[tuple[float, int, int, Link]] = []
        """Heap of levels of this link above which a link that limits nobody must look again."""
        self.guard = 0
        """Counts the times its guards on others were set anew; older entries are void."""
        self.guarded: dict[Link, float] = {}
        """Up to which level of each other link it need not look again."""
        self.stamp = 0
        self.pushes = 0
        self.dirty = False

    def __lt__(self, other: Link) -> bool:
        return self.id < other.id

    def progress_at(self, now_s: float) -> float:
        """Bytes per weight that its own flows have received on this link's clock."""
        if self.level == inf or now_s <= self.since_s:
            return self.progress
        return self.progress + self.level * (now_s - self.since_s)

    def settle(self, now_s: float) -> None:
        """Bring the clock to `now_s`, before the level changes."""
        self.progress = self.progress_at(now_s)
        self.since_s = now_s

    def slack(self) -> float:
        """Capacity that flows limited elsewhere leave, bytes/s."""
        load = self.load
        left = (self.capacity_bytes_per_s - load.total) - load.error
        if len(self.loads) <= (self in self.loads):
            return left
        others = [
            -link.level * (of.total + of.error)
            for link, of in self.loads.items()
            if link is not self
        ]
        return fsum([left, *others])

    def rebase(self) -> None:
        """Set the clock back to 0 and drop stale entries from the heaps.

        The clock's numbers stay as small as the flows that it measures (late instants have coarse
        digits), the heaps as long as there are flows.
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
        own = [flow for flow in self.flows if flow.owner is self]
        self.ends = [(flow.end, flow.id, flow) for flow in own]
        self.by_cap = [(flow.level_cap, flow.id, flow) for flow in own if flow.level_cap < inf]
        self.by_limit = [(-f.level_cap, f.id, f) for f in self.flows if f.owner is None]
        heapq.heapify(self.ends)
        heapq.heapify(self.by_cap)
        heapq.heapify(self.by_limit)
        heapq.heapify(self.guards)

    def next_end(self) -> Flow | None:
        """Its own flow that ends first."""
        ends = self.ends
        while ends:
            end, _, flow = ends[0]
            if flow.owner is self and flow.end == end:
                return flow
            heapq.heappop(ends)
        return None

    def lowest_cap(self) -> Flow | None:
        """Its own flow that would be the first to reach its cap if the level rose."""
        heap = self.by_cap
        while heap:
            cap, _, flow = heap[0]
            if flow.owner is self and flow.level_cap == cap:
                return flow
            heapq.heappop(heap)
        return None

    def fastest_capped(self) -> Flow | None:
        """The capped flow across it with the highest rate per weight."""
        heap = self.by_limit
        while heap:
            minus, _, flow = heap[0]
            if flow.owner is None and flow.level_cap == -minus:
                return flow
            heapq.heappop(heap)
        return None
