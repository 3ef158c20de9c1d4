"""The meter of links: bytes carried, piece by piece, and of how many flows.

A piece is an interval in which neither the flows on a link nor its capacity changed.
Its bytes are integrals that the sharing keeps anyway (the clocks of the links), so
metering never touches flows. On the airtime of a cell these are seconds; bytes are then
counted beside them. What comes of it is `links.parquet` of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from simfed.ground.uses import NO_AIR
from simfed.net.flows import Link, Tally

Use = tuple[int, float, float, float, float, int, float]
"""A link's use in one interval: link, from and to (s), bytes, its capacity (bytes/s),
how many flows, seconds of airtime (`NO_AIR`: a wire). A `LinkUse` before links have
names, and instants a clock."""


@dataclass(slots=True, eq=False)
class MeteredStretch:
    """The bytes of a shared link since its flows or its capacity last changed."""

    from_s: float = 0.0
    load_from_s: float = 0.0
    """Up to when `carried` holds what its capped flows sent."""
    carried: float = 0.0
    """Bytes; of a cell, seconds of airtime."""
    seen: dict[Link, float] = field(default_factory=dict)
    """Per link that limits some of its flows: up to which reading of that link's
    clock."""
    airtime: bool = False
    """True if it is a cell's."""
    bytes: float = 0.0
    """Bytes that a cell has carried; 0 of another link."""
    sending: dict[Link | None, Tally] = field(default_factory=dict)
    """The weights, in a cell, of flows by the link that limits them; under None the
    rates of the capped ones."""


class Meter:
    """Follows the links of one `Allocator`, which calls it before each change.

    A link that one flow has to itself is followed by that flow's bytes, a shared one by
    the clocks of the links that limit its flows.
    """

    def __init__(self, on_use: Callable[[Use], None]) -> None:
        """Begin without any link; `on_use` is called with each piece as it ends."""
        self.on_use = on_use
        self._pieces: dict[Link, MeteredStretch] = {}
        self._alone: dict[int, tuple[float, float]] = {}

    def begin_alone(self, id: int, now_s: float, left_bytes: float) -> None:
        """Note that a flow with `left_bytes` to go has link `id` to itself."""
        self._alone[id] = (now_s, left_bytes)

    def end_alone(
        self,
        id: int,
        now_s: float,
        left_bytes: float,
        capacity: float,
        cost: float | None,
    ) -> None:
        """Note that a flow no longer has a link to itself, or the capacity changes.

        Args:
            id: of the link.
            now_s: on the engine's clock.
            left_bytes: what the flow has yet to send.
            capacity: until now, bytes/s; of an airtime in seconds per second.
            cost: seconds of airtime that a byte takes; None on a wire.
        """
        from_s, left_before = self._alone.pop(id)
        if now_s > from_s:
            carried = left_before - left_bytes
            airtime_s = None if cost is None else carried * cost
            self._report(id, from_s, now_s, carried, capacity, 1, airtime_s)

    def count_flow_change(self, link: Link, owner: Link | None, now_s: float) -> None:
        """Count what the flows across a link that `owner` limits have carried.

        Called before they change.

        Args:
            link: the link that they cross.
            owner: the link that limits them; None: those that are capped.
            now_s: on the engine's clock.
        """
        piece = self._pieces.get(link)
        if piece is None:
            piece = self._pieces[link] = MeteredStretch(now_s, now_s)
        if owner is None:
            duration_s = now_s - piece.load_from_s
            load = link.load
            piece.carried += (load.total + load.error) * duration_s
            if None in piece.sending:
                piece.bytes += piece.sending[None].value * duration_s
            piece.load_from_s = now_s
            return
        total = owner.turned + owner.read_clock(now_s)
        tally = link.loads.get(owner)
        if tally is not None:
            piece.carried += (tally.total + tally.error) * (total - piece.seen[owner])
            if owner in piece.sending:
                piece.bytes += piece.sending[owner].value * (total - piece.seen[owner])
        piece.seen[owner] = total

    def count_sending(
        self, link: Link, owner: Link | None, number: float, count: int
    ) -> None:
        """Note that a flow which `owner` limits comes to the airtime `link`, or goes.

        Called after `count_flow_change`.

        Args:
            link: the airtime of a cell.
            owner: the link that limits the flow; None: its own cap does.
            number: its weight, of a capped one its rate; negative as it goes.
            count: 1 as it comes, -1 as it goes.
        """
        piece = self._pieces[link]
        piece.airtime = True
        tally = piece.sending.setdefault(owner, Tally())
        tally.add(number, count)
        if not tally.count:
            del piece.sending[owner]

    def close(self, link: Link, now_s: float) -> None:
        """Report what `link` carried until now.

        Called before its flows or its capacity change.
        """
        for owner in (None, *link.loads):
            self.count_flow_change(link, owner, now_s)
        piece = self._pieces[link]
        if now_s > piece.from_s:
            self._report(
                link.id,
                piece.from_s,
                now_s,
                piece.bytes if piece.airtime else piece.carried,
                link.capacity_bytes_per_s,
                len(link.flows),
                piece.carried if piece.airtime else None,
            )
            piece.from_s = now_s
            piece.carried = piece.bytes = 0.0
            piece.seen = {owner: piece.seen[owner] for owner in link.loads}

    def _report(
        self,
        id: int,
        from_s: float,
        to_s: float,
        bytes: float,
        capacity: float,
        flows: int,
        airtime_s: float | None,
    ) -> None:
        """Hand out one piece.

        The capacity of a cell is told in bytes/s: that of its flows' mix, so that bytes
        over capacity and time is how full it is, as on a wire.

        Args:
            id: of the link.
            from_s: its beginning on the engine's clock.
            to_s: its end.
            bytes: carried in it.
            capacity: bytes/s, of an airtime seconds per second.
            flows: how many crossed it.
            airtime_s: of a cell, the seconds of it that were used; None on a wire.
        """
        # differences of what is left are rounded: a link that stands still carries none
        if not (bytes > 0 and capacity > 0):
            bytes = 0.0
        if airtime_s is None:
            airtime_s = NO_AIR
        elif airtime_s > 0 and capacity > 0:
            capacity *= bytes / airtime_s
        else:
            capacity = airtime_s = 0.0
        self.on_use((id, from_s, to_s, bytes, capacity, flows, airtime_s))

    def forget(self, link: Link) -> None:
        """Drop what is counted of a link that has become idle."""
        self._pieces.pop(link, None)
