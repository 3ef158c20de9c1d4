"""Links that carry nothing for a while, whatever their capacity is otherwise.

What is modelled: during a stall the capacity of a link is 0, so transfers over it stand
still and go on after it. What is ignored: connections that break, back-off and slow
start after a stall, and a latency that is on its way when one begins. An unlimited link
cannot stall: it takes no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf, isfinite

from simfed.ground.arrays import Floats
from simfed.ground.strikes import Strikes
from simfed.net.topology import Topology
from simfed.net.traces import LinkTrace, Moment, Trace


class StalledLink:
    """A capacity, or a trace of it, with stalls.

    It can be used as a trace on the run's clock.

    >>> from simfed.ground.distributions import Discrete
    >>> from simfed.ground.strikes import Rhythm
    >>> from simfed.ground.seeding import Streams
    >>> rhythm = Rhythm(Discrete((10.0,)), Discrete((2.0,)))
    >>> strikes = Strikes(rhythm, Streams(0), "stall", "client-0")
    >>> link = StalledLink(5.0, strikes)
    >>> link.rate_bytes_per_s(link.moment(11.0)), link.next_moment(link.moment(11.0))[1]
    (0.0, 12.0)
    """

    lowest_bytes_per_s = 0.0

    def __init__(self, capacity: float | LinkTrace, strikes: Strikes) -> None:
        if not isinstance(capacity, LinkTrace):
            capacity = LinkTrace(Trace((0.0,), (capacity,), 1.0, "hold"))
        assert isinstance(capacity.trace, Trace)
        self._trace = capacity.trace
        self._offset_s = capacity.offset_s
        self._pieces = len(self._trace.starts_s)
        """A moment counts borders of stalls in steps of this, and the trace's pieces
        within."""
        self._strikes = strikes

    @property
    def peak_bytes_per_s(self) -> float:
        """The trace's highest capacity, bytes/s; stalls change nothing of it."""
        return self._trace.peak_bytes_per_s

    def moment(self, at_s: float) -> Moment:
        """Return the piece in force at an instant."""
        turn, piece = self._trace.moment(at_s + self._offset_s)
        return self._number_moment(Moment(turn, piece), self._strikes.passed(at_s))

    def rate_bytes_per_s(self, moment: Moment) -> float:
        """Return the capacity of a piece."""
        piece, borders = self._split_moment(moment)
        return 0.0 if borders % 2 else self._trace.rate_bytes_per_s(piece)

    def radio_weight(self, moment: Moment) -> float | None:
        """Return how a client weighs in its cell during a piece.

        A stall leaves it as it is.
        """
        return self._trace.radio_weight(self._split_moment(moment)[0])

    def next_moment(self, moment: Moment) -> tuple[Moment | None, float]:
        """Return the piece after this one, and its instant.

        `(None, inf)` where the capacity stays 0 for ever.
        """
        piece, borders = self._split_moment(moment)
        following, changes_s = self._trace.next_moment(piece)
        changes_s -= self._offset_s
        if changes_s == inf and self._trace.rate_bytes_per_s(piece) == 0:
            return None, inf
        border_s = self._strikes.border_s(borders)
        if changes_s > border_s:
            return self._number_moment(piece, borders + 1), border_s
        if following is None:
            return None, changes_s
        return self._number_moment(
            following, borders + (changes_s == border_s)
        ), changes_s

    def _number_moment(self, piece: Moment, borders: int) -> Moment:
        return Moment(piece.turn, piece.piece + self._pieces * borders)

    def _split_moment(self, moment: Moment) -> tuple[Moment, int]:
        """Return the moment of the trace alone, and the number of borders past."""
        borders, piece = divmod(moment.piece, self._pieces)
        return Moment(moment.turn, piece), borders


class LinkTraceMap(Mapping[int, LinkTrace]):
    """The links of a topology that vary, those that stall among them.

    Made when they are used.
    """

    def __init__(
        self,
        traces: Mapping[int, LinkTrace],
        capacities_bytes_per_s: Floats,
        strikes: Callable[[int], Strikes],
        stalls: Callable[[int], bool],
    ) -> None:
        """Wrap traces in stalls.

        Args:
            traces: links that vary.
            capacities_bytes_per_s: of each link.
            strikes: returns when a link stalls.
            stalls: returns whether a link does.
        """
        self._traces = traces
        self._capacities_bytes_per_s = capacities_bytes_per_s
        self._strikes = strikes
        self._stalls = stalls
        self._stalling: dict[int, LinkTrace] = {}

    def __contains__(self, link: object) -> bool:
        return link in self._traces or (isinstance(link, int) and self._stalls(link))

    def __getitem__(self, link: int) -> LinkTrace:
        if link not in self._stalling:
            if not self._stalls(link):
                return self._traces[link]
            capacity = self._traces.get(link, float(self._capacities_bytes_per_s[link]))
            self._stalling[link] = LinkTrace(StalledLink(capacity, self._strikes(link)))
        return self._stalling[link]

    def __iter__(self) -> Iterator[int]:
        return (
            link for link in range(len(self._capacities_bytes_per_s)) if link in self
        )

    def __len__(self) -> int:
        return len(self._capacities_bytes_per_s)


def stall(
    topology: Topology, strikes: Callable[[str], Strikes], *, access: bool, lines: bool
) -> None:
    """Have links of finite rate stall: the clients' own, lines between nodes, or both.

    `strikes(name)`: when the link of this name does.
    """
    first, rates = 2 * topology.clients, topology.capacities_bytes_per_s

    def stalls(link: int) -> bool:
        return (access if link < first else lines) and isfinite(rates[link])

    topology.vary(
        LinkTraceMap(
            topology.traces,
            rates,
            lambda link: strikes(topology.link_name(link)),
            stalls,
        )
    )
