"""Links that carry nothing for a while, whatever their capacity is otherwise.

What is modelled: during a stall the capacity of a link is 0, so transfers over it stand
still and go on after it. What is ignored: connections that break, back-off and slow
start after a stall, and a latency that is on its way when one begins. An unlimited link
cannot stall: it takes no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isfinite

from simfed.ground.arrays import Floats
from simfed.ground.strikes import Strikes
from simfed.net.topology import Topology
from simfed.net.traces import LinkTrace, StalledLink


class LinkTraceMap(Mapping[int, LinkTrace]):
    """The links of a topology that vary, those that stall among them.

    Link number → trace. A link's stalls are made when it is first used, so that a
    million links that may stall cost what those in use cost.
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

    Call it before any transfer. Both directions of a link stall together where
    `strikes` gives them the same.

    Args:
        topology: whose links they are.
        strikes: a link's name in records → when it stalls.
        access: True: clients' own links do.
        lines: True: lines between nodes and the server's do.
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
