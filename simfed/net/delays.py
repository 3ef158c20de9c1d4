"""Latencies of clients' own links that differ from message to message.

A delay is asked for once per message, as it starts: that of the way which the message
takes, and that of the way back, of which a round trip is made. What is ignored: that a
delay changes while a message is under way, and that neighbouring ones are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from simfed.ground.arrays import Integers
from simfed.ground.distributions import Law
from simfed.ground.seeding import Key, Streams
from simfed.net.flows import DeadLink
from simfed.net.traces import LinkTrace

Delay: TypeAlias = Callable[[int, float, tuple[Key, ...]], float]
"""(client, instant on the run's clock, key of the message) → seconds."""
_LEAST_U = 2.0**-54
"""In place of a uniform number that is exactly 0."""


@dataclass(frozen=True)
class DrawnDelay:
    """A delay that is drawn for each message, by link, client and message.

    So neither the order in which messages start nor workers decide anything.
    """

    law: Law
    streams: Streams
    link: str
    """The direction whose draws they are: `up`, or `down` where that has a law of its
    own."""

    def __call__(self, client: int, at_s: float, key: tuple[Key, ...]) -> float:
        """Return the seconds of one message, whenever it starts.

        Args:
            client: its id.
            at_s: the instant; not looked at.
            key: what names the message among its client's.
        """
        u = self.streams("latency", self.link, client, *key).random() or _LEAST_U
        return float(self.law.quantile(np.array([u]))[0])


@dataclass(frozen=True)
class TracedDelay:
    """A delay that is read in each client's trace, whose capacities are seconds."""

    traces: Mapping[int, LinkTrace]
    """By client."""
    down: bool
    """True: of the way down."""

    def __call__(self, client: int, at_s: float, key: tuple[Key, ...]) -> float:
        """Return the seconds in the trace at the instant at which a message starts.

        Args:
            client: its id.
            at_s: on the run's clock.
            key: not looked at.

        Raises:
            DeadLink: the trace, with `end: error`, has ended.
        """
        varying = self.traces[client]
        moment = varying.trace.moment(at_s + varying.offset_s)
        after, until_s = varying.trace.next_moment(moment)
        if after is None and at_s + varying.offset_s >= until_s:
            raise DeadLink(2 * client + self.down, (), at_s, trace_ended=True)
        return varying.trace.rate_bytes_per_s(moment)


@dataclass(frozen=True)
class Delays:
    """The delays of clients' own links, of each group of them up and down."""

    of_groups: Sequence[tuple[Delay | None, Delay | None]]
    """None: a constant one, which the topology knows. Where both are one, a message
    meets the same delay both ways."""
    group_of_client: Integers

    def draw_delays(
        self, client: int, at_s: float, key: tuple[Key, ...]
    ) -> tuple[float, float]:
        """Return the seconds up and down that one message meets.

        Args:
            client: its id.
            at_s: the instant at which it starts, on the run's clock.
            key: what names it among its client's.
        """
        up, down = self.of_groups[self.group_of_client[client]]
        up_s = 0.0 if up is None else up(client, at_s, key)
        if down is up:
            return up_s, up_s
        return up_s, 0.0 if down is None else down(client, at_s, key)
