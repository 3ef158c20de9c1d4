"""The population: columns for all clients, objects for those that have taken part.

A million idle clients cost a few bytes each; a client's policy is made when it first
takes part and then kept. Whom a node starts is chosen here, of those who are there and
idle.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simfed.fleet.columns import Fleet
from simfed.fleet.selection import Selector
from simfed.ground.arrays import Ints
from simfed.ground.seeding import Streams
from simfed.policy import Policy
from simfed.scenario import Scenario
from simfed.scenario.policy import Reward
from simfed.sim.aggregator import Aggregator
from simfed.sim.world import Attendance

_TRIES = 100
"""Draws of one client before all that are free are listed instead."""


class Population:
    """The clients of a run: their fleet, their policies, and who is chosen of them."""

    def __init__(
        self,
        scenario: Scenario,
        make_policy: Callable[[int], Policy],
        streams: Streams,
        presence: Attendance | None = None,
        samples_of: Callable[[int], int] = lambda client: 1,
    ) -> None:
        """Make a population of idle clients.

        Args:
            scenario: names clients and selection.
            make_policy: called once per client that takes part.
            streams: keyed generators.
            presence: None: everybody is always there.
            samples_of: how many training samples a client owns; asked only by
                selections other than uniform.
        """
        groups = scenario.clients
        self.fleet = Fleet(scenario, streams)
        selection = scenario.participation.selection.made
        self.selecting = Selector(selection, len(self.fleet), samples_of)
        self._reward = tuple(scenario.policy_of_group(group).reward for group in groups)
        self._make_policy = make_policy
        self._presence = presence
        self._policies: dict[int, Policy] = {}

    def __len__(self) -> int:
        return len(self.fleet)

    def choose(
        self,
        aggregator: Aggregator,
        streams: Streams,
        round: int,
        at_s: float,
        members: Ints | None = None,
        keys: tuple[int, ...] = (),
    ) -> list[int]:
        """Return the clients that a node starts now, ids ascending.

        They are there and idle, and busy from now on. A cohort is drawn for its round;
        where clients are kept in flight, each start is drawn by how many there were
        before, one client after another.

        Args:
            aggregator: the node's: its mode, who is busy, how many it has started.
            streams: keyed generators.
            round: key of a cohort's draw.
            at_s: now.
            members: those of an edge server, ascending; None: everybody.
            keys: an edge server's further keys: (its merge in the round, its place).
        """
        mode, busy = aggregator.mode, aggregator.busy
        if mode.concurrency is None:
            free = self._free(busy, at_s, members)
            return self.selecting.cohort(streams, round, mode.cohort, free, keys)
        chosen: list[int] = []
        while len(busy) < mode.concurrency:
            rng = streams("start", aggregator.starts + len(chosen), *keys[1:])
            client = self._draw(rng, busy, at_s, members)
            if client is None:
                break
            chosen.append(client)
            busy.add(client)
        return sorted(chosen)

    def may_pass(
        self, aggregator: Aggregator, at_s: float, members: Ints | None = None
    ) -> bool:
        """Return whether nobody may be chosen though somebody is there and idle now.

        So it is with selections that toss a coin for each client.

        Args:
            aggregator: the node's.
            at_s: now.
            members: as of `choose`.
        """
        if not self.selecting.varies:
            return False
        free = self._free(aggregator.busy, at_s, members)
        return free is None or len(free) > 0

    def _free(self, busy: set[int], at_s: float, members: Ints | None) -> Ints | None:
        """Ids of the members (None: of all) that are there and idle.

        None: everybody.
        """
        if self._presence is None and not busy:
            return members
        everybody = np.arange(len(self)) if members is None else members
        there = everybody if self._presence is None else self._presence.available(at_s)
        if members is not None and self._presence is not None:
            there = np.intersect1d(there, members, assume_unique=True)
        return (
            there[~np.isin(there, np.fromiter(busy, np.int64, len(busy)))]
            if busy
            else there
        )

    def _draw(
        self,
        rng: np.random.Generator,
        busy: set[int],
        at_s: float,
        members: Ints | None,
    ) -> int | None:
        """Return one that is there and idle, uniformly; None: there is none."""
        # presence is asked once: whole stays are drawn for an answer
        away: set[int] = set()
        for _ in range(_TRIES):
            client = int(rng.integers(len(self if members is None else members)))
            if members is not None:
                client = int(members[client])
            if client in busy or client in away:
                continue
            if self._presence is None or self._presence.there(client, at_s):
                return client
            away.add(client)
        free = self._free(busy, at_s, members)
        left = range(len(self)) if free is None else free.tolist()
        return int(rng.choice(left)) if left else None

    def reward_rule(self, client: int) -> Reward:
        """Return how this client's policy is paid."""
        return self._reward[int(self.fleet.group[client])]

    def policy(self, client: int) -> Policy:
        """Return the policy of this client, made when it is first asked for."""
        if client not in self._policies:
            self._policies[client] = self._make_policy(client)
        return self._policies[client]
