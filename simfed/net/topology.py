"""What connects the clients to the server: links by number, and the path of every client.

A topology is static facts only. Uplink and downlink are different links; a path lists the links
that can limit a transfer (infinitely fast ones cannot and are left out) and the delay of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from simfed.errors import InputError

if TYPE_CHECKING:
    import networkx

    from simfed.net.traces import Trace

__all__ = ["Direction", "Path", "Star", "Topology"]

Direction = Literal["up", "down"]
Floats = np.ndarray[Any, np.dtype[np.float64]]


class Path(NamedTuple):
    """One way between a client and the server."""

    links: tuple[int, ...]
    """The links that can limit, in the order in which bytes cross them."""
    latency_s: float
    """One-way delay of the whole path."""
    rtt_s: float
    """This way and back, without queueing."""


class Topology(Protocol):
    """What the network driver has to know; `Star` and `Routed` are the two kinds."""

    clients: int
    capacities_bytes_per_s: Floats
    """Per link; `inf` for one that never limits, and a placeholder where `traces` has the link."""
    traces: Mapping[int, Trace]
    """The links whose capacity varies."""

    def path(self, client: int, direction: Direction) -> Path:
        """The path of a client's transfers in one direction."""
        ...

    def link_name(self, link: int) -> str:
        """What the link is called in records, such as `client-3/up` or `server/receive`."""
        ...

    def graph(self) -> networkx.DiGraph:
        """The topology as a networkx graph with `capacity_bytes_per_s` and `latency_s` on its edges."""
        ...


class Star:
    """Every client behind a link of its own, the server behind one that all share.

    Four kinds of links: `client-i/up` (2i), `client-i/down` (2i + 1), `server/receive` and
    `server/send`. Rates are bytes/s, `inf` is unlimited; arguments are one number for everybody or
    one per client. Nothing is stored per client but four numbers, so a million clients are cheap.

    >>> star = Star(2, up_bytes_per_s=[1e6, 2e6], receive_bytes_per_s=2.5e6, latency_s=0.01)
    >>> star.path(1, "up")
    Path(links=(2, 4), latency_s=0.01, rtt_s=0.02)
    >>> [star.link_name(link) for link in star.path(1, "up").links]
    ['client-1/up', 'server/receive']
    """

    def __init__(
        self,
        clients: int,
        *,
        up_bytes_per_s: float | Any = inf,
        down_bytes_per_s: float | Any = inf,
        latency_s: float | Any = 0.0,
        down_latency_s: float | Any | None = None,
        receive_bytes_per_s: float = inf,
        send_bytes_per_s: float = inf,
        server_latency_s: float = 0.0,
        traces: Mapping[int, Trace] | None = None,
    ) -> None:
        """`latency_s` is the one-way delay of a client's link, up and (if not given) down."""
        if clients < 1:
            raise InputError("at least one client", where="clients", got=clients)
        n = self.clients = int(clients)
        self.traces: Mapping[int, Trace] = dict(traces or {})
        rates = np.empty(2 * n + 2)
        rates[0 : 2 * n : 2] = up_bytes_per_s
        rates[1 : 2 * n : 2] = down_bytes_per_s
        rates[2 * n :] = (receive_bytes_per_s, send_bytes_per_s)
        self.capacities_bytes_per_s: Floats = rates
        both = np.empty((2, n))
        both[0] = latency_s
        both[1] = latency_s if down_latency_s is None else down_latency_s
        self._latencies_s = both + server_latency_s
        self._check()
        peaks = rates.copy()
        for link, trace in self.traces.items():
            peaks[link] = trace.peak_bytes_per_s
        # A server link that is as fast as all clients together limits nobody.
        self._server_binds = [bool(rates[2 * n + k] < peaks[k : 2 * n : 2].sum()) or 2 * n + k in self.traces for k in (0, 1)]  # fmt: skip

    def _check(self) -> None:
        for link in np.flatnonzero(~(self.capacities_bytes_per_s > 0)):
            if int(link) not in self.traces:
                got = float(self.capacities_bytes_per_s[link])
                raise InputError("a rate above 0", where=self.link_name(int(link)), got=got)
        for k, way in enumerate(("up", "down")):
            bad = np.flatnonzero(~((self._latencies_s[k] >= 0) & (self._latencies_s[k] < inf)))
            if bad.size:
                got = float(self._latencies_s[k][bad[0]])
                raise InputError(
                    "a latency of at least 0 s", where=f"client-{bad[0]}/{way}", got=got
                )

    def path(self, client: int, direction: Direction) -> Path:
        """The client's own link, and the server's where it can limit."""
        if not 0 <= client < self.clients:
            raise InputError(f"a client from 0 to {self.clients - 1}", where="client", got=client)
        k = 0 if direction == "up" else 1
        access, server = 2 * client + k, 2 * self.clients + k
        here, there = self._latencies_s[k, client], self._latencies_s[1 - k, client]
        own = isfinite(self.capacities_bytes_per_s[access]) or access in self.traces
        links = (access,) if own else ()
        if self._server_binds[k]:
            links = (*links, server) if k == 0 else (server, *links)
        return Path(links, float(here), float(here + there))

    def link_name(self, link: int) -> str:
        """`client-i/up`, `client-i/down`, `server/receive` or `server/send`."""
        client, k = divmod(link, 2)
        if client == self.clients:
            return ("server/receive", "server/send")[k]
        return f"client-{client}/{('up', 'down')[k]}"

    def graph(self) -> networkx.DiGraph:
        """Nodes `client-i`, `switch` and `server`, one edge per direction of a link."""
        import networkx

        graph = networkx.DiGraph()
        for link, rate in enumerate(self.capacities_bytes_per_s.tolist()):
            client, k = divmod(link, 2)
            ends = (f"client-{client}", "switch") if client < self.clients else ("switch", "server")
            tail, head = ends if k == 0 else ends[::-1]
            # the server's share of the latency is already inside each client's
            latency = float(self._latencies_s[k, client]) if client < self.clients else 0.0
            graph.add_edge(tail, head, capacity_bytes_per_s=rate, latency_s=latency, name=self.link_name(link))  # fmt: skip
        return graph
