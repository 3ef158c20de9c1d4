"""What goes wrong in the simulated world, when and with whom: strikes, and messages that are lost.

A *strike* is an interval in which something does not work: a link carries nothing (stall), a
device does not compute (freeze), the server is down (restart); see `simfed.ground.strikes`.

A *message* is a transfer of a payload; what becomes of its n-th transmission hangs on the client,
its participation, the direction and n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simfed.ground.seeding import Streams
from simfed.ground.strikes import Exponential, Rhythm, Strikes

__all__ = ["Exponential", "Fate", "Faults", "Messages", "Rhythm", "Strikes", "cable_of"]


class Fate(NamedTuple):
    """What becomes of one transmission of a message."""

    copies: int
    """2: it leaves twice at once."""
    lost: bool
    """None of its copies is of use where it arrives."""


@dataclass(frozen=True)
class Messages:
    """How messages fare. Where one is lost, its sender waits `timeout_s` after its last byte and
    sends it again, `tries` times in all, and a last time waits in vain."""

    lost: float = 0.0
    """Probability, of each copy."""
    doubled: float = 0.0
    """Probability, of each transmission."""
    timeout_s: float = 1.0
    tries: int = 5

    def fate(self, streams: Streams, client: int, key: int | str, phase: str, nth: int) -> Fate:
        """The fate of transmission `nth` = 0, 1, … of a participation's `download` or `upload`."""
        doubled, *lost = streams("message", client, key, phase, nth).random(3).tolist()
        copies = 2 if doubled < self.doubled else 1
        return Fate(copies, max(lost[:copies]) < self.lost)


class Faults:
    """The faults of a run; what is None never happens."""

    def __init__(
        self,
        streams: Streams,
        *,
        stalls: Rhythm | None = None,
        freezes: Rhythm | None = None,
        messages: Messages | None = None,
        restarts: Rhythm | None = None,
    ) -> None:
        self.streams = streams
        self.stalls = stalls
        self.freezes = freezes
        self.messages = messages
        self.restarts = None if restarts is None else Strikes(restarts, streams, "restart")
        self._frozen: dict[int, Strikes] = {}

    def freezes_of(self, client: int) -> Strikes | None:
        """The intervals in which a client's device is frozen; None: it never is."""
        if self.freezes is None:
            return None
        freezes = self._frozen.get(client)
        if freezes is None:
            freezes = self._frozen[client] = Strikes(self.freezes, self.streams, "freeze", client)
        return freezes

    def stalls_of(self, link: str) -> Strikes:
        """The intervals in which a link, named as in records, carries nothing."""
        assert self.stalls is not None
        return Strikes(self.stalls, self.streams, "stall", cable_of(link))

    def fate(self, client: int, key: int | str, phase: str, nth: int) -> Fate:
        """See `Messages.fate`."""
        assert self.messages is not None
        return self.messages.fate(self.streams, client, key, phase, nth)


def cable_of(link: str) -> str:
    """The name that both directions of a link share, as they stall together.

    >>> cable_of("client-3/up"), cable_of("server/receive"), cable_of("b>a")
    ('client-3', 'server', 'a>b')
    """
    tail, arrow, head = link.partition(">")
    if arrow:
        return ">".join(sorted((tail, head)))
    name, _, way = link.rpartition("/")
    return name if way in ("up", "down", "receive", "send") else link
