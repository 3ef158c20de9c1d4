"""Who gets how much of which link, kept up to date while flows come and go.

What is modelled: weighted max-min sharing of every link, with a cap per flow, in continuous time.
What is ignored: packets, queues, protocols (`simfed.net.tcp` adds start-up on top).

How it stays fast. A flow is either *capped* (its own cap, or a link that it has to itself, limits
it: its rate is fixed) or *belongs to the link* that limits it. All flows of a link have the same
rate per weight, the link's *level*, so the link keeps one clock of bytes per weight (its *progress*,
the integral of the level) and a flow's end is one number on that clock: when the level changes, no
flow is touched. A change of flows or capacity makes the links it concerns dirty; a dirty link finds
its level anew, pulling in flows that now get too much and pushing out those that it no longer
limits, and only links that feel the difference become dirty in turn. A link on which nobody waits
watches the levels that load it through thresholds (`_Guard`). At rest every link satisfies

    sum over its flows of weight × min(level, what limits the flow elsewhere) = capacity,

which is the max-min certificate. Repairs settle in a few steps; when they do not, the allocation is
solved from scratch by `maxmin.max_min`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import fsum, inf
from typing import TYPE_CHECKING, Protocol

from simfed.net.maxmin import OWN_CAP, max_min

if TYPE_CHECKING:
    from simfed.net.meter import Meter
    from simfed.net.topology import Floats

__all__ = ["Flow", "Link", "Program", "Sharing"]

_TIE = 1e-12
"""Relative difference below which two levels are the same: rounding must not move flows to and fro."""


class Program(Protocol):
    """Sends a flow in bursts (TCP's slow start does); plain numbers, one object per flow."""

    def next_burst(self, flow: Flow) -> tuple[float, float]:
        """The burst has drained and `flow.unsent` bytes are left: (seconds to wait, bytes to send then)."""
        ...


class Flow:
    """What is known of one transfer while bytes of it remain; plain numbers and its present bottleneck."""

    __slots__ = (
        "cap", "cap_link", "dwelt", "end", "id", "joined", "latency_s", "level_cap", "limit", "links",
        "owner", "program", "remaining", "shared", "since", "size", "spent", "stamp", "unsent", "weight",
    )  # fmt: skip

    def __init__(
        self,
        id: int,
        size: float,
        links: tuple[int, ...],
        latency_s: float = 0.0,
        weight: float = 1.0,
        cap: float = inf,
    ) -> None:
        self.id = id
        self.size = size
        self.links = links
        self.latency_s = latency_s
        self.weight = weight
        self.cap = cap
        """The flow's own cap, bytes/s."""
        self.limit = inf
        """Its rate while capped: the least of its cap and the links it has to itself."""
        self.cap_link = OWN_CAP
        """Which of them that is."""
        self.level_cap = inf
        """`limit` per weight."""
        self.shared: list[Link] = []
        """The links of its path that others use, or have used, at the same time."""
        self.owner: Link | None = None
        """The shared link that limits it; None while capped."""
        self.remaining = size
        """Bytes left at `since` of what it is sending now; kept up while capped."""
        self.end = inf
        """Its end on the clock of `owner`."""
        self.since = 0.0
        """When it came under its present limit; while it waits, when it will join."""
        self.spent = 0.0
        """Seconds since its start at `since`: summed durations, never a difference of late instants."""
        self.stamp = 0
        """Counts the changes that make scheduled events of this flow void."""
        self.dwelt: dict[int, float] = {}
        """Seconds under each earlier limit."""
        self.joined = False
        """Whether it takes part in the sharing now (not while it waits out a latency)."""
        self.program: Program | None = None
        """What sends the flow in bursts; None sends everything at once."""
        self.unsent = 0.0
        """Bytes that the program has not yet released."""

    def __lt__(self, other: Flow) -> bool:
        return self.id < other.id


class Link:
    """A link that several flows use at once."""

    __slots__ = (
        "by_cap", "by_limit", "capacity", "dirty", "ends", "flows", "guard", "guards", "id", "level",
        "load", "load_error", "loads", "progress", "pushes", "since", "stamp", "turned", "watchers",
    )  # fmt: skip

    def __init__(self, id: int, capacity: float, now: float) -> None:
        self.id = id
        self.capacity = capacity
        self.flows: dict[Flow, None] = {}
        """All flows that cross it, in order of arrival (a set would order them by address)."""
        self.level = inf
        """Rate per weight of its own flows; inf while it limits nobody."""
        self.progress = 0.0
        """Integral of the level at `since`, in bytes per weight."""
        self.since = now
        self.turned = 0.0
        """What was taken off `progress` by turning the clock back to 0."""
        self.ends: list[tuple[float, int, Flow]] = []
        """Heap of its own flows' ends on the clock `progress`; stale entries are skipped."""
        self.by_cap: list[tuple[float, int, Flow]] = []
        """Heap of its own flows' caps per weight, lowest first."""
        self.by_limit: list[tuple[float, int, Flow]] = []
        """Heap of the capped flows that cross it, by minus their rate per weight."""
        self.load = 0.0
        self.load_error = 0.0
        """Sum of the capped flows' rates, with its rounding error kept apart."""
        self.loads: dict[Link, list[float]] = {}
        """For each link whose own flows cross this one (itself included): [count, weight] of them."""
        self.watchers: dict[Link, None] = {}
        """Limiting links crossed by own flows of this one: they feel every change of its level."""
        self.guards: list[tuple[float, int, int, Link]] = []
        """Heap of levels of this link above which a link that limits nobody must look again."""
        self.guard = 0
        self.stamp = 0
        self.pushes = 0
        self.dirty = False

    def __lt__(self, other: Link) -> bool:
        return self.id < other.id

    def add_load(self, rate: float) -> None:
        """Neumaier's compensated sum: 1e5 arrivals and departures leave no drift behind."""
        total = self.load + rate
        if abs(self.load) >= abs(rate):
            self.load_error += (self.load - total) + rate
        else:
            self.load_error += (rate - total) + self.load
        self.load = total

    def progress_at(self, now: float) -> float:
        """Bytes per weight that its own flows have received on this link's clock."""
        if self.level == inf or now <= self.since:
            return self.progress
        return self.progress + self.level * (now - self.since)

    def settle(self, now: float) -> None:
        """Bring the clock to `now`, before the level changes."""
        self.progress = self.progress_at(now)
        self.since = now

    def slack(self) -> float:
        """Capacity that flows limited elsewhere leave, bytes/s."""
        if len(self.loads) <= 1 and (not self.loads or self in self.loads):
            return (self.capacity - self.load) - self.load_error
        parts = [link.level * of[1] for link, of in self.loads.items() if link is not self]
        return fsum([self.capacity, -self.load, -self.load_error, *(-part for part in parts)])

    def rebase(self) -> None:
        """Set the clock back to 0 and drop stale entries from the heaps.

        The clock's numbers stay as small as the flows that it measures (late instants have coarse
        digits), the heaps as long as there are flows.
        """
        own = [flow for flow in self.flows if flow.owner is self]
        for flow in own:
            flow.end -= self.progress
        self.turned += self.progress
        self.progress = 0.0
        self.ends = [(flow.end, flow.id, flow) for flow in own]
        self.by_cap = [(flow.level_cap, flow.id, flow) for flow in own if flow.level_cap < inf]
        self.by_limit = [(-f.level_cap, f.id, f) for f in self.flows if f.owner is None]
        self.guards = [entry for entry in self.guards if entry[3].guard == entry[2]]
        heapq.heapify(self.ends)
        heapq.heapify(self.by_cap)
        heapq.heapify(self.by_limit)
        heapq.heapify(self.guards)
        self.pushes = 0

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


class Sharing:
    """The flows in progress and the links they share, at one instant `now`.

    `capacities` are bytes/s by link id, finite and at least 0. The caller moves `now` forward, makes any number of changes (`join`, `leave`, `change_capacity`), then calls
    `settle`, and finds in `changed_flows` and `changed_links` whose ends have moved.
    """

    def __init__(self, capacities: Sequence[float] | Floats, meter: Meter | None = None) -> None:
        self.now = 0.0
        self.meter = meter
        self._capacities = capacities
        self._changed_capacity: dict[int, float] = {}
        self.alone: dict[int, Flow] = {}
        """Links with one flow: no sharing to work out, they are that flow's cap."""
        self.shared: dict[int, Link] = {}
        self.changed_flows: dict[Flow, None] = {}
        self.changed_links: dict[Link, None] = {}
        self._dirty: list[tuple[float, int, Link]] = []

    # ---- changes -------------------------------------------------------------------------------

    def join(self, flow: Flow) -> None:
        """`flow` begins to take its share, with `flow.remaining` bytes."""
        shared = []
        for id in flow.links:
            link = self.shared.get(id)
            if link is None:
                first = self.alone.get(id)
                if first is None:
                    self.alone[id] = flow
                    if self.meter:
                        self.meter.begin_alone(id, self.now, flow.remaining)
                    continue
                link = self._share(id, first)
            elif self.meter:
                self.meter.close(link, self.now)
            link.flows[flow] = None
            shared.append(link)
        flow.shared = shared
        flow.since = self.now
        flow.joined = True
        self._find_limit(flow)
        self._enter(flow)

    def leave(self, flow: Flow) -> None:
        """`flow` has drained or is cancelled; `flow.remaining` is what it leaves behind."""
        meter, now = self.meter, self.now
        if meter:
            for link in flow.shared:
                meter.close(link, now)
        self._release(flow)
        for id in flow.links:
            if self.alone.get(id) is flow:
                del self.alone[id]
                if meter:
                    meter.end_alone(id, now, flow.remaining, self.capacity(id))
        for link in flow.shared:
            del link.flows[flow]
            if link.flows:
                self._mark(link)
            else:
                del self.shared[link.id]
                if meter:
                    meter.forget(link)
        flow.joined = False
        flow.owner = None
        flow.level_cap = -1.0  # makes its entries in heaps stale
        flow.shared = []

    def capacity(self, id: int) -> float:
        """The present capacity of a link, bytes/s."""
        changed = self._changed_capacity.get(id)
        return float(self._capacities[id]) if changed is None else changed

    def change_capacity(self, id: int, capacity: float) -> None:
        """From now on link `id` has this capacity."""
        link, flow, meter = self.shared.get(id), self.alone.get(id), self.meter
        if meter and link is not None:
            meter.close(link, self.now)
        elif meter and flow is not None:
            meter.end_alone(id, self.now, self.left(flow), self.capacity(id))
            meter.begin_alone(id, self.now, self.left(flow))
        self._changed_capacity[id] = capacity
        if link is not None:
            link.capacity = capacity
            self._mark(link)
        elif flow is not None:
            self._refresh(flow)

    def settle(self) -> None:
        """Solve what the changes since the last call have made dirty."""
        patience = 64 + 16 * len(self.shared)
        while self._dirty:
            link = heapq.heappop(self._dirty)[2]
            if not link.dirty:
                continue
            link.dirty = False
            if link.flows:
                patience -= 1
                if patience < 0:
                    return self._solve_all()
                self._solve(link)
        return None

    def rate(self, flow: Flow) -> float:
        """The present rate of a flow in progress, bytes/s."""
        return flow.limit if flow.owner is None else flow.owner.level * flow.weight

    def left(self, flow: Flow) -> float:
        """The bytes that a flow in progress has yet to send."""
        if flow.owner is None:
            return max(flow.remaining - flow.limit * (self.now - flow.since), 0.0)
        return max((flow.end - flow.owner.progress_at(self.now)) * flow.weight, 0.0)

    # ---- one flow ------------------------------------------------------------------------------

    def _share(self, id: int, first: Flow) -> Link:
        """A second flow comes to the link that `first` had to itself."""
        del self.alone[id]
        if self.meter:
            self.meter.end_alone(id, self.now, self.left(first), self.capacity(id))
        link = self.shared[id] = Link(id, self.capacity(id), self.now)
        link.flows[first] = None
        first.shared.append(link)
        if first.owner is not None:
            self._count(link, first.owner, first.weight, 1)
        else:
            self._load(link, first.limit)
            heapq.heappush(link.by_limit, (-first.level_cap, first.id, first))
        self._refresh(first)
        return link

    def _find_limit(self, flow: Flow) -> None:
        limit, cap_link = flow.cap, OWN_CAP
        if len(flow.shared) < len(flow.links):
            for id in flow.links:
                if id not in self.shared:
                    capacity = self.capacity(id)
                    if capacity < limit:
                        limit, cap_link = capacity, id
        flow.limit, flow.cap_link = limit, cap_link
        flow.level_cap = limit / flow.weight

    def _refresh(self, flow: Flow) -> None:
        """What caps `flow` may have changed."""
        owner = flow.owner
        if owner is None:
            self._release(flow)
            self._find_limit(flow)
            self._enter(flow)
            return
        before = flow.level_cap
        self._find_limit(flow)
        if flow.level_cap != before:
            heapq.heappush(owner.by_cap, (flow.level_cap, flow.id, flow))
            self._mark(owner)

    def _enter(self, flow: Flow) -> None:
        """Start a flow at the highest rate that its surroundings could allow; `settle` lowers it."""
        shared = flow.shared
        if not shared or flow.limit < min([link.capacity for link in shared]):
            self._cap(flow)
        else:
            owner = min(shared, key=lambda link: (link.level, link.capacity, link.id))
            if owner.level == inf:
                owner.settle(self.now)
                owner.level = owner.capacity / flow.weight  # anything finite: it is dirty
                self._begin_watch(owner)
            self._bind(flow, owner)
        for link in shared:
            self._mark(link)

    def _cap(self, flow: Flow) -> None:
        """From now on its own cap limits it."""
        flow.owner = None
        self.changed_flows[flow] = None
        for link in flow.shared:
            self._load(link, flow.limit)
            heapq.heappush(link.by_limit, (-flow.level_cap, flow.id, flow))
            link.pushes += 1

    def _bind(self, flow: Flow, owner: Link) -> None:
        """From now on the shared link `owner`, whose clock is settled, limits it."""
        flow.owner = owner
        flow.end = owner.progress_at(self.now) + flow.remaining / flow.weight
        heapq.heappush(owner.ends, (flow.end, flow.id, flow))
        if flow.level_cap < inf:
            heapq.heappush(owner.by_cap, (flow.level_cap, flow.id, flow))
        owner.pushes += 1
        self.changed_links[owner] = None
        for link in flow.shared:
            self._count(link, owner, flow.weight, 1)

    def _release(self, flow: Flow) -> None:
        """Bring its books up to now and take its rate off its links."""
        now = self.now
        owner = flow.owner
        passed = now - flow.since
        flow.remaining = self.left(flow)
        if owner is None:
            for link in flow.shared:
                self._load(link, -flow.limit)
        else:
            for link in flow.shared:
                self._count(link, owner, flow.weight, -1)
            self.changed_links[owner] = None
        if passed > 0:
            name = flow.cap_link if owner is None else owner.id
            flow.dwelt[name] = flow.dwelt.get(name, 0.0) + passed
            flow.spent += passed
            flow.since = now
        flow.stamp += 1

    def _load(self, link: Link, rate: float) -> None:
        """Capped flows of this rate more (or, negative, fewer) cross `link`."""
        if self.meter:
            self.meter.load_changes(link, self.now)
        link.add_load(rate)

    def _count(self, link: Link, owner: Link, weight: float, change: int) -> None:
        """One flow more or less that crosses `link` and is limited by `owner`."""
        if self.meter:
            self.meter.count_changes(link, owner, self.now)
        entry = link.loads.get(owner)
        if entry is None:
            link.loads[owner] = [1, weight]
            if owner is not link and link.level < inf:
                owner.watchers[link] = None
            return
        entry[0] += change
        entry[1] += change * weight
        if entry[0] == 0:
            del link.loads[owner]
            owner.watchers.pop(link, None)

    # ---- one link ------------------------------------------------------------------------------

    def _mark(self, link: Link) -> None:
        if not link.dirty:
            link.dirty = True
            heapq.heappush(self._dirty, (link.level, link.id, link))

    def _solve(self, link: Link) -> None:
        """Find the level of one link anew, given the levels of the others."""
        link.settle(self.now)
        slack = link.slack()
        while True:
            own = link.loads.get(link)
            if own is not None:
                level = slack / own[1]
            else:
                level = inf if slack >= -_TIE * link.capacity else -1.0
            released = self._pull(link, level)
            if not released:
                released = -self._push(link, level)
                if not released:
                    break
            slack += released
        self._set_level(link)

    def _pull(self, link: Link, level: float) -> float:
        """Make the fastest flow that gets more than `level` elsewhere the link's own; the rate this frees."""
        if level == inf:
            return 0.0
        bound = level + _TIE * abs(level)
        flow = link.fastest_capped()
        speed = -1.0 if flow is None else flow.level_cap
        if len(link.loads) > 1 or link not in link.loads:
            rival = max((k for k in link.loads if k is not link), key=_level, default=None)
            if rival is not None and rival.level > bound and rival.level >= speed:
                freed = rival.level * link.loads[rival][1]
                self._move_all(rival, link)
                return max(freed, 5e-324)
        if flow is None or speed <= bound:
            return 0.0
        self._release(flow)
        self._bind(flow, link)
        self._mark_others(flow, link)
        return max(flow.limit, 5e-324)

    def _push(self, link: Link, level: float) -> float:
        """Give up the own flow that is slowest elsewhere, below `level`; the rate it takes there."""
        if level <= 0:
            return 0.0
        bound = level - _TIE * level if level < inf else level
        flow = link.lowest_cap()
        speed = inf if flow is None else flow.level_cap
        rival = min(link.watchers, key=_level, default=None)
        if rival is not None and rival.level < bound and rival.level <= speed:
            taken = rival.level * rival.loads[link][1]
            rival.settle(self.now)
            self._move_all(link, rival)
            return max(taken, 5e-324)
        if flow is None or speed >= bound:
            return 0.0
        self._release(flow)
        self._cap(flow)
        self._mark_others(flow, link)
        return max(flow.limit, 5e-324)

    def _move_all(self, source: Link, target: Link) -> None:
        """The own flows of `source` that cross `target` become its own."""
        few, other = (source, target) if len(source.flows) < len(target.flows) else (target, source)
        for flow in [f for f in few.flows if f.owner is source and f in other.flows]:
            self._release(flow)
            self._bind(flow, target)
            self._mark_others(flow, None)

    def _mark_others(self, flow: Flow, solving: Link | None) -> None:
        for link in flow.shared:
            if link is not solving:
                self._mark(link)

    def _set_level(self, link: Link) -> None:
        """Adopt the level that follows from who the own flows are; tell who has to know."""
        before = link.level
        own = link.loads.get(link)
        link.level = level = inf if own is None else max(link.slack(), 0.0) / own[1]
        if level == inf:
            if before < inf:
                for owner in link.loads:
                    owner.watchers.pop(link, None)
            self._set_guards(link)
        elif before == inf:
            self._begin_watch(link)
        if level == before:
            return
        link.stamp += 1
        self.changed_links[link] = None
        for watcher in link.watchers:
            self._mark(watcher)
        guards = link.guards
        while guards and guards[0][0] * (1 + _TIE) < level:
            _, _, guard, watching = heapq.heappop(guards)
            if watching.guard == guard:
                self._mark(watching)
        if link.pushes > 2 * len(link.flows) + 64:
            link.rebase()

    def _begin_watch(self, link: Link) -> None:
        for owner in link.loads:
            if owner is not link:
                owner.watchers[link] = None

    def _set_guards(self, link: Link) -> None:
        """A link that limits nobody: up to which levels of others can it stay so?"""
        link.guard += 1
        if not link.loads:
            return
        room = link.slack() / fsum([of[1] for of in link.loads.values()])
        for owner in link.loads:
            heapq.heappush(owner.guards, (owner.level + room, link.id, link.guard, link))
            owner.pushes += 1

    # ---- the way out ---------------------------------------------------------------------------

    def _solve_all(self) -> None:
        """Solve everything from scratch, for the rare state in which repairs go in circles."""
        links = list(self.shared.values())
        index = {link: i for i, link in enumerate(links)}
        flows = list(dict.fromkeys(flow for link in links for flow in link.flows))
        found = max_min(
            [link.capacity for link in links],
            [[index[link] for link in flow.shared] for flow in flows],
            [flow.weight for flow in flows],
            [flow.limit for flow in flows],
        )
        levels: dict[Link, float] = {}
        for link in links:
            link.settle(self.now)
        for flow, rate, bottleneck in zip(
            flows, found.rates_bytes_per_s, found.bottlenecks, strict=True
        ):
            self._release(flow)
            if bottleneck == OWN_CAP:
                self._cap(flow)
            else:
                self._bind(flow, links[bottleneck])
                levels[links[bottleneck]] = rate / flow.weight
        for link in links:
            self._set_watch(link, levels.get(link, inf))
        for link in sorted(links, key=lambda k: levels.get(k, inf)):
            self._set_level(link)  # lowest first: each depends only on lower ones
            link.stamp += 1
            self.changed_links[link] = None
        for link in links:
            link.dirty = False
        self._dirty.clear()

    def _set_watch(self, link: Link, level: float) -> None:
        link.level = level
        for owner in link.loads:
            if owner is not link:
                owner.watchers.pop(link, None)
                if level < inf:
                    owner.watchers[link] = None


def _level(link: Link) -> float:
    return link.level
