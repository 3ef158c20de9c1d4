"""Weighted max-min sharing of links, kept up to date while flows come and go.

What is modelled: every link is shared by weight, with a cap per flow, in continuous
time. A byte of a flow may cost more or less than 1 of a link's capacity: a radio cell
is a link whose capacity is its airtime, and a byte costs there the seconds that its
sender needs for it. What is ignored: packets, queues, protocols (`simfed.net.models`
adds TCP's start-up).

How it stays fast. A flow is either *capped* (its own cap, or a link that it has to
itself, limits it: its rate is fixed) or *belongs to the link* that limits it. All flows
of a link have the same rate per weight, the link's *level*, so the link keeps one clock
of bytes per weight (its *progress*, the integral of the level) and a flow's end is one
number on that clock: when the level changes, no flow is touched. A change of flows or
capacity makes the links it concerns dirty; a dirty link finds its level anew, pulling
in flows that now get too much and pushing out those that it no longer limits, and only
links that feel the difference become dirty in turn. A link on which nobody waits
watches the levels that load it through thresholds (its guards). At rest every link
satisfies

    Σ cost × weight × min(level, what limits the flow elsewhere) = capacity,

summed over its flows, which is the max-min certificate. Repairs settle in a few steps;
when they do not, the allocation is solved from scratch by `maxmin.max_min`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import fsum, inf
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from simfed.ground.arrays import Floats
from simfed.ground.errors import BrokenInvariant
from simfed.net.flows import Flow, Link, Tally
from simfed.net.maxmin import OWN_CAP, max_min

if TYPE_CHECKING:
    from simfed.net.meter import Meter

_TIE = 1e-12
"""Relative difference below which two levels are the same: rounding must not move flows
to and fro."""

_LONG_PATH = 64
"""Links. On a longer path, a flow met on many of them is refreshed once, not once for
each: that would be quadratic. (On shorter ones it stays, because the order of additions
shows in the last digits.)"""


class Allocator:
    """The flows in progress and the links they share, at one instant `now_s`.

    The caller (`simfed.net.engine`) moves `now_s` forward, makes any number of changes
    (`join`, `leave`, `change_capacity`, `change_weight`), then calls `settle`, and
    finds in `changed_flows` and `changed_links` whose ends have moved.

    Inside, a change goes the same way each time: `_release` takes a flow off the books
    of its links, `_find_limit` finds its own limit, `_enter` puts it back at the
    highest rate it could have, and marks its links; `settle` solves these one by one
    (`_solve`) until none is marked.
    """

    def __init__(
        self,
        capacities_bytes_per_s: Sequence[float] | Floats,
        meter: Meter | None = None,
    ) -> None:
        """Prepare links without flows, at 0 s.

        Args:
            capacities_bytes_per_s: by link id (of an airtime: seconds per second), at
                least 0; `inf`: unlimited.
            meter: called before each change; None: nobody asks what links carry.
        """
        self.now_s = 0.0
        self.meter = meter
        self._capacities = np.asarray(capacities_bytes_per_s, dtype=np.float64).data
        self._changed_capacity: dict[int, float] = {}
        self.alone: dict[int, Flow] = {}
        """Links with one flow: no sharing to work out, they are that flow's cap."""
        self.shared: dict[int, Link] = {}
        self.changed_flows: dict[Flow, None] = {}
        self.changed_links: dict[Link, None] = {}
        self._dirty: list[tuple[float, int, Link]] = []
        self.patience, self.patience_per_link = 64, 16
        """So many links may be solved in one instant, and so many more for each shared
        link, before it looks like going in circles."""

    # ---- changes ---------------------------------------------------------------------

    def join(self, flow: Flow) -> None:
        """Let `flow` take its share from now on, with `flow.remaining_bytes` bytes."""
        if flow.radios is not None:
            self._read_radios(flow)
        shared = []
        met: dict[Flow, None] = {}
        for id in flow.links:
            link = self.shared.get(id)
            if link is None:
                first = self.alone.get(id)
                if first is None:
                    self.alone[id] = flow
                    if self.meter:
                        self.meter.begin_alone(id, self.now_s, flow.remaining_bytes)
                    continue
                link = self._share(id, first)
                if len(flow.links) > _LONG_PATH:
                    met[first] = None
                else:
                    self._refresh(first)
            elif self.meter:
                self.meter.close(link, self.now_s)
            link.flows[flow] = None
            shared.append(link)
        for first in met:
            self._refresh(first)
        flow.shared = shared
        flow.since_s = self.now_s
        flow.joined = True
        self._find_limit(flow)
        self._enter(flow)

    def leave(self, flow: Flow) -> None:
        """Take out `flow`, which has drained or is cancelled.

        `flow.remaining_bytes` is what it leaves behind.
        """
        meter, now_s = self.meter, self.now_s
        if meter:
            for link in flow.shared:
                meter.close(link, now_s)
        self._release(flow)
        for id in flow.links:
            if self.alone.get(id) is flow:
                del self.alone[id]
                if meter:
                    meter.end_alone(
                        id,
                        now_s,
                        flow.remaining_bytes,
                        self.capacity(id),
                        flow.find_air_cost(id),
                    )
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
        """Return the present capacity of a link."""
        changed = self._changed_capacity.get(id)
        return self._capacities[id] if changed is None else changed

    def change_capacity(self, id: int, capacity_bytes_per_s: float) -> None:
        """Set the capacity of a link from now on, bytes/s, finite and at least 0.

        Flows whose radio it is cost otherwise in their cells.
        """
        link, flow, meter = self.shared.get(id), self.alone.get(id), self.meter
        if meter and link is not None:
            meter.close(link, self.now_s)
        elif meter and flow is not None:
            self._begin_piece(id, flow, meter)
        self._changed_capacity[id] = capacity_bytes_per_s
        if link is not None:
            link.capacity_bytes_per_s = capacity_bytes_per_s
            self._mark(link)
            for user in [f for f in link.flows if f.radios is not None]:
                self._retune(user, id)
        elif flow is not None:
            self._refresh(flow)
            self._retune(flow, id)

    def change_weight(self, flow: Flow, weight: float) -> None:
        """Have `flow` weigh this from now on; it may be in progress or not."""
        if flow.joined:
            self._release(flow)
        flow.weight = weight
        if flow.joined:
            self._find_limit(flow)
            self._enter(flow)

    def settle(self) -> None:
        """Solve what the changes since the last call have made dirty.

        Links are solved lowest level first. When that takes more steps in one instant
        than `patience` allows, everything is solved from scratch.
        """
        patience = self.patience + self.patience_per_link * len(self.shared)
        while self._dirty:
            link = heapq.heappop(self._dirty)[2]
            if not link.dirty:
                continue
            link.dirty = False  # before it is solved: that may mark it anew
            if link.flows:
                patience -= 1
                if patience < 0:
                    self._solve_all()  # which leaves nothing dirty
                else:
                    self._solve(link)

    def rate(self, flow: Flow) -> float:
        """Return the present rate of a flow in progress, bytes/s."""
        return (
            flow.limit_bytes_per_s
            if flow.owner is None
            else flow.owner.level * flow.weight
        )

    def left(self, flow: Flow) -> float:
        """Return the bytes that a flow in progress has yet to send."""
        if flow.owner is None:
            sent = flow.limit_bytes_per_s * (self.now_s - flow.since_s)
            return max(flow.remaining_bytes - sent, 0.0)
        return max((flow.end - flow.owner.read_clock(self.now_s)) * flow.weight, 0.0)

    # ---- one flow --------------------------------------------------------------------

    def _share(self, id: int, first: Flow) -> Link:
        """Return the link that `first` had to itself, as a second flow comes to it.

        Until now it was `first`'s cap; the limit of `first` is to be found anew.
        """
        del self.alone[id]
        if self.meter:
            self.meter.end_alone(
                id,
                self.now_s,
                self.left(first),
                self.capacity(id),
                first.find_air_cost(id),
            )
        link = self.shared[id] = Link(id, self.capacity(id), self.now_s)
        link.flows[first] = None
        first.shared.append(link)
        self._add(first, link)
        return link

    def _find_limit(self, flow: Flow) -> None:
        """Find what caps `flow`: the least of its cap and the links of its own.

        Sets `limit_bytes_per_s`, `cap_link` and `level_cap`; its place in any link's
        books is the caller's.
        """
        limit, cap_link = flow.cap_bytes_per_s, OWN_CAP
        if len(flow.shared) < len(flow.links):
            for id in flow.links:
                if id not in self.shared:
                    capacity = self.capacity(id)
                    if flow.costs is not None:
                        capacity /= flow.cost_on(id)
                    if capacity < limit:
                        limit, cap_link = capacity, id
        flow.limit_bytes_per_s, flow.cap_link = limit, cap_link
        flow.level_cap = limit / flow.weight

    def _refresh(self, flow: Flow) -> None:
        """Find the limit of `flow` anew, as what caps it may have changed."""
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
        """Start a flow at the highest rate that its surroundings could allow.

        `settle` lowers it. It begins capped where its own limit is below every shared
        link's capacity, else as a flow of the link of lowest level.
        """
        shared = flow.shared
        if flow.costs is None:
            slowest = min([link.capacity_bytes_per_s for link in shared], default=inf)
        else:
            slowest = min(
                [k.capacity_bytes_per_s / flow.cost_on(k.id) for k in shared],
                default=inf,
            )
        if not shared or flow.limit_bytes_per_s < slowest:
            self._cap(flow)
        else:
            owner = min(
                shared,
                key=lambda link: (link.level, link.capacity_bytes_per_s, link.id),
            )
            if owner.level == inf:
                owner.settle(self.now_s)
                # anything finite: it is dirty
                owner.level = owner.capacity_bytes_per_s / (
                    flow.weight * flow.cost_on(owner.id)
                )
                self._begin_watch(owner)
            self._bind(flow, owner)
        for link in shared:
            self._mark(link)

    def _cap(self, flow: Flow) -> None:
        """Let the flow's own limit hold its rate down from now on."""
        flow.owner = None
        self.changed_flows[flow] = None
        for link in flow.shared:
            self._add(flow, link)

    def _bind(self, flow: Flow, owner: Link) -> None:
        """Let the shared link `owner`, whose clock is settled, limit the flow."""
        flow.owner = owner
        flow.end = owner.read_clock(self.now_s) + flow.remaining_bytes / flow.weight
        heapq.heappush(owner.ends, (flow.end, flow.id, flow))
        if flow.level_cap < inf:
            heapq.heappush(owner.by_cap, (flow.level_cap, flow.id, flow))
        owner.pushes += 1
        self.changed_links[owner] = None
        for link in flow.shared:
            self._add(flow, link)

    def _release(self, flow: Flow) -> None:
        """Bring the flow's sums up to now and take its rate off its links.

        Scheduled events of it are void then.
        """
        flow.remaining_bytes = self.left(flow)
        for link in flow.shared:
            self._remove(flow, link)
        if flow.owner is not None:
            self.changed_links[flow.owner] = None
        if self.now_s > flow.since_s:
            flow.spend(self.now_s - flow.since_s)
            flow.since_s = self.now_s
        flow.stamp += 1

    def _add(self, flow: Flow, link: Link) -> None:
        """Enter a flow in its present state into the books of a link it crosses."""
        owner = flow.owner
        if self.meter:
            self.meter.count_flow_change(link, owner, self.now_s)
        if owner is None:
            rate = flow.limit_bytes_per_s
            if flow.costs is not None:
                rate *= self._count_cost(flow, link, rate, 1)
            link.load.add(rate)
            heapq.heappush(link.by_limit, (-flow.level_cap, flow.id, flow))
            link.pushes += 1
            return
        tally = link.loads.get(owner)
        if tally is None:
            tally = link.loads[owner] = Tally()
            if owner is not link and link.level < inf:
                owner.watchers[link] = None
        weight = flow.weight
        if flow.costs is not None:
            weight *= self._count_cost(flow, link, weight, 1)
        tally.add(weight)

    def _remove(self, flow: Flow, link: Link) -> None:
        """Take a flow out of the books of a link.

        Its state is that in which it was entered.
        """
        owner = flow.owner
        if self.meter:
            self.meter.count_flow_change(link, owner, self.now_s)
        if owner is None:
            rate = flow.limit_bytes_per_s
            if flow.costs is not None:
                rate *= self._count_cost(flow, link, rate, -1)
            link.load.add(-rate, -1)
            return
        tally = link.loads[owner]
        weight = flow.weight
        if flow.costs is not None:
            weight *= self._count_cost(flow, link, weight, -1)
        tally.add(-weight, -1)
        if not tally.count:
            del link.loads[owner]
            owner.watchers.pop(link, None)

    def _count_cost(self, flow: Flow, link: Link, number: float, count: int) -> float:
        """Return what a byte takes of the link.

        The meter counts a cell's bytes besides its airtime: `number` is the flow's
        weight there, of a capped one its rate, `count` 1 as it comes and -1 as it goes.
        """
        cost = flow.find_air_cost(link.id)
        if cost is None:
            return 1.0
        if self.meter:
            self.meter.count_sending(link, flow.owner, count * number, count)
        return cost

    def _read_radios(self, flow: Flow) -> None:
        """Set the costs that follow the capacities of the flow's radios.

        At 0 it stands still.
        """
        assert flow.radios is not None
        assert flow.costs is not None
        rates = {cell: self.capacity(link) for link, cell in flow.radios.items()}
        flow.costs = flow.costs | {
            cell: 1 / rate for cell, rate in rates.items() if rate > 0
        }

    def _retune(self, flow: Flow, link: int) -> None:
        """Set a flow's costs anew where `link`, of a changed capacity, is its radio."""
        if flow.radios is None or link not in flow.radios:
            return
        cell = flow.radios[link]
        if self.meter and self.alone.get(cell) is flow:
            self._begin_piece(cell, flow, self.meter)
        elif self.meter:
            self.meter.close(self.shared[cell], self.now_s)
        self._release(flow)
        self._read_radios(flow)
        self._find_limit(flow)
        self._enter(flow)

    def _begin_piece(self, id: int, flow: Flow, meter: Meter) -> None:
        """Begin a metered piece of a link that `flow` has to itself.

        Its capacity or the flow's cost is about to change.
        """
        left_bytes = self.left(flow)
        meter.end_alone(
            id, self.now_s, left_bytes, self.capacity(id), flow.find_air_cost(id)
        )
        meter.begin_alone(id, self.now_s, left_bytes)

    # ---- one link --------------------------------------------------------------------

    def _mark(self, link: Link) -> None:
        """Have `settle` find the link's level anew."""
        if not link.dirty:
            link.dirty = True
            heapq.heappush(self._dirty, (link.level, link.id, link))

    def _solve(self, link: Link) -> None:
        """Find the level of one link anew, given the levels of the others.

        Every pull and every push raises the level that the own flows get, so this ends.
        A flow that another link would limit more is pulled by that link when its turn
        comes.
        """
        link.settle(self.now_s)
        while True:
            weights, slack = link.loads.get(link), link.slack()
            if weights is not None:
                level = slack / (weights.total + weights.error)
            else:
                level = inf if slack >= -_TIE * link.capacity_bytes_per_s else -1.0
            if not self._pull(link, level) and not self._push(link, level):
                return self._set_level(link, slack)

    def _pull(self, link: Link, level: float) -> bool:
        """Make the fastest flows that get more than `level` elsewhere the link's own.

        These are all of the link of highest level that cross this one, or one capped
        flow.

        Returns whether there were any.
        """
        if level == inf:
            return False
        bound = level + _TIE * abs(level)
        flow = link.find_fastest_capped()
        speed = -1.0 if flow is None else flow.level_cap
        if len(link.loads) > (link in link.loads):
            rival = max(
                (k for k in link.loads if k is not link), key=attrgetter("level")
            )
            if rival.level > bound and rival.level >= speed:
                self._move_all(rival, link)
                return True
        if flow is None or speed <= bound:
            return False
        self._release(flow)
        self._bind(flow, link)
        self._mark_others(flow, link)
        return True

    def _push(self, link: Link, level: float) -> bool:
        """Give up the own flow with the lowest cap, if that is below `level`.

        Returns whether there was one.
        """
        flow = link.find_lowest_cap() if level > 0 else None
        if flow is None or flow.level_cap >= level * (1 - _TIE):
            return False
        self._release(flow)
        self._cap(flow)
        self._mark_others(flow, link)
        return True

    def _move_all(self, source: Link, target: Link) -> None:
        """Make the own flows of `source` that cross `target` its own."""
        few, other = source, target
        if len(source.flows) >= len(target.flows):
            few, other = target, source
        for flow in [f for f in few.flows if f.owner is source and f in other.flows]:
            self._release(flow)
            self._bind(flow, target)
            self._mark_others(flow, None)

    def _mark_others(self, flow: Flow, solving: Link | None) -> None:
        """Mark the links that a flow shares, but for the one that is being solved."""
        for link in flow.shared:
            if link is not solving and not link.dirty:
                self._mark(link)

    def _set_level(self, link: Link, slack: float) -> None:
        """Adopt the level that follows from who the own flows are, and tell of it.

        Links that watch this one are marked, and those whose guards it has passed.

        Args:
            link: whose own flows are settled.
            slack: the capacity that others leave to them, bytes/s.
        """
        if link.pushes > 2 * len(link.flows) + 64:
            link.reset_clock()
        before = link.level
        weights, capacity = link.loads.get(link), link.capacity_bytes_per_s
        if slack < -1e-9 * capacity:
            above = f"{-slack} bytes/s above its capacity of {capacity}"
            raise BrokenInvariant(f"link {link.id}: {above}")
        link.level = level = inf if weights is None else max(slack, 0.0) / weights.value
        if level == inf:
            if before < inf:
                for owner in link.loads:
                    owner.watchers.pop(link, None)
            self._set_guards(link, slack)
        elif before == inf:
            self._begin_watch(link)
        if level == before:
            return
        self.changed_links[link] = None
        for watcher in link.watchers:
            self._mark(watcher)
        guards = link.guards
        while guards and guards[0][0] * (1 + _TIE) < level:
            _, _, guard, watching = heapq.heappop(guards)
            if watching.guard == guard:
                del watching.guarded[link]
                self._mark(watching)

    def _begin_watch(self, link: Link) -> None:
        """Have links that limit flows across `link` tell it of changed levels."""
        for owner in link.loads:
            if owner is not link:
                owner.watchers[link] = None

    def _set_guards(self, link: Link, slack: float) -> None:
        """Set the levels of others up to which a link that limits nobody stays so.

        Half of the slack is shared out evenly. While the guards it has still fit, they
        stay.

        Args:
            link: one that limits nobody.
            slack: the capacity that is left on it, bytes/s.
        """
        loads, levels = link.loads, link.guarded
        if not loads:
            return
        if all(owner in levels and owner.level <= levels[owner] for owner in loads):
            taken = [
                (levels[owner] - owner.level) * tally.value
                for owner, tally in loads.items()
            ]
            if fsum(taken) <= slack:
                return
        link.guard += 1
        room = slack / (2 * fsum([tally.value for tally in loads.values()]))
        link.guarded = {owner: owner.level + room for owner in loads}
        for owner, level in link.guarded.items():
            heapq.heappush(owner.guards, (level, link.id, link.guard, link))
            owner.pushes += 1

    # ---- the way out -----------------------------------------------------------------

    def _solve_all(self) -> None:
        """Solve everything from scratch, where repairs go in circles.

        The rates are those of `max_min`; flows and links are entered anew from them.
        """
        links = list(self.shared.values())
        index = {link: i for i, link in enumerate(links)}
        flows = list(dict.fromkeys(flow for link in links for flow in link.flows))
        solution = max_min(
            [link.capacity_bytes_per_s for link in links],
            [[index[link] for link in flow.shared] for flow in flows],
            [flow.weight for flow in flows],
            [flow.limit_bytes_per_s for flow in flows],
            [[flow.cost_on(link.id) for link in flow.shared] for flow in flows],
        )
        levels = dict.fromkeys(links, inf)
        for link in links:
            link.settle(self.now_s)
        for flow, rate, bottleneck in zip(
            flows, solution.rates_bytes_per_s, solution.bottlenecks, strict=True
        ):
            self._release(flow)
            if bottleneck == OWN_CAP:
                self._cap(flow)
            else:
                self._bind(flow, links[bottleneck])
                levels[links[bottleneck]] = rate / flow.weight
        for link in links:
            link.level = levels[link]
            for owner in link.loads:
                owner.watchers.pop(link, None)
            if link.level < inf:
                self._begin_watch(link)
        # lowest first: each depends only on lower ones
        for link in sorted(links, key=levels.__getitem__):
            self._set_level(link, link.slack())
            self.changed_links[link] = None
        for link in links:
            link.dirty = False
        self._dirty.clear()
