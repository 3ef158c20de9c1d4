"""Server modes: how many clients work at once, when to merge, what is late.

The names of scenarios (`synchronous`, `deadline`, `first`, `buffered`, `asynchronous`)
are choices among these; nothing here knows of methods or tensors. `Aggregator` obeys a
mode; server, edge servers and a cloud of edge servers each have one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from simfed.scenario import Scenario
from simfed.scenario.aggregation import Aggregation, EdgeServers, Staleness


@dataclass(frozen=True)
class ServerMode:
    """The choices that a server mode is made of.

    Either cohorts are started together (`cohort`), or clients are kept in flight
    (`concurrency`).
    """

    cohort: int | None
    """Clients that are started together for each merge; None: everybody, or see
    `concurrency`."""
    concurrency: int | None
    """Clients that are kept in flight, whenever one ends; None: cohorts."""
    wanted: int | None
    """Arrivals that make a merge: of the cohort, or since the last merge where clients
    are kept in flight; None: the merge waits until the whole cohort has ended."""
    deadline_s: float
    """The merge comes at the latest so long after the cohort's start."""
    keeps_late: bool
    """True if late clients go on and are merged later; else they are cut off."""
    weight: Callable[[int], float]
    """Staleness → what an upload counts."""
    bound: int | None
    """Beyond this staleness an upload is dropped."""

    @cached_property
    def filled(self) -> bool:
        """True if clients are kept in flight, not started in cohorts."""
        return self.concurrency is not None

    def at_once(self, clients: int) -> int:
        """Return the most clients that take part at a time, of so many."""
        return self.concurrency or self.cohort or clients

    @property
    def waits_for_all(self) -> bool:
        """True if everybody who was started has ended when the server merges."""
        return not self.filled and self.wanted is None and self.deadline_s == math.inf


def make_server_mode(scenario: Scenario) -> ServerMode:
    """Return a server's mode from `aggregation` and `participation`."""
    per_round = scenario.participation.clients_per_round
    return _make_mode(scenario.aggregation, per_round, scenario.client_count)


def make_edge_mode(scenario: Scenario, clients: int) -> ServerMode:
    """Return the mode of an edge server with so many clients."""
    assert scenario.aggregation.edge_servers is not None
    per_round = scenario.participation.clients_per_round
    return _make_mode(scenario.aggregation.edge_servers, per_round, clients)


def make_cloud_mode(scenario: Scenario, edges: int) -> ServerMode:
    """Return the mode of a server whose participants are so many edge servers.

    All are started, and of `first` as many are waited for as leave a share
    `over_selection` of them over.
    """
    extra = scenario.aggregation.over_selection
    wanted = None if extra is None else max(1, math.floor(edges / (1 + extra)))
    return _make_mode(scenario.aggregation, wanted, edges)


def _make_mode(
    chosen: Aggregation | EdgeServers, per_round: int | None, participants: int
) -> ServerMode:
    """Return the mode of a section of a scenario.

    Args:
        chosen: `aggregation`, or its `edge_servers`.
        per_round: `participation.clients_per_round`; None: everybody.
        participants: how many may take part.
    """
    cohort, wanted = per_round, None
    if chosen.over_selection is not None:
        wanted = min(per_round or participants, participants)
        cohort = min(math.ceil(wanted * (1 + chosen.over_selection)), participants)
    if chosen.concurrency is not None:
        wanted = chosen.buffer or 1
    return ServerMode(
        cohort=cohort,
        concurrency=chosen.concurrency,
        wanted=wanted,
        deadline_s=math.inf if chosen.deadline is None else chosen.deadline,
        keeps_late=chosen.concurrency is not None or chosen.late == "merge",
        weight=make_staleness_weight(chosen.staleness),
        bound=None if chosen.staleness is None else chosen.staleness.bound,
    )


def make_staleness_weight(staleness: Staleness | None) -> Callable[[int], float]:
    """Return s(a), the weight of an upload from a model of `a` merges ago.

    `polynomial` and `hinge` are those of FedAsync (Xie et al. 2019), without its mixing
    factor; None and `constant` are 1.

    >>> from simfed.scenario.aggregation import Staleness
    >>> polynomial = make_staleness_weight(Staleness(kind="polynomial", exponent=0.5))
    >>> polynomial(0), polynomial(3)
    (1.0, 0.5)
    >>> hinge = make_staleness_weight(Staleness(kind="hinge", after=2, slope=1.0))
    >>> hinge(2), hinge(4)
    (1.0, 0.3333333333333333)
    """
    if staleness is None or staleness.kind == "constant":
        return lambda a: 1.0
    if staleness.kind == "polynomial":
        exponent = staleness.exponent
        return lambda a: float((1 + a) ** -exponent)
    after, slope = staleness.after, staleness.slope
    return lambda a: 1.0 if a <= after else 1.0 / (slope * (a - after) + 1)
