"""Waits of participations beside time and transfers: barriers, and turns.

Both decide at the end of an instant, so that the order of events within it decides
nothing: who waits goes on by client id.
"""

from __future__ import annotations

import heapq
import math

import simpy
from simpy import Interrupt
from simpy.events import Event

from simfed.net.instants import at, end_of_instant, ring


class Gate:
    """A barrier of one round.

    It opens at the end of the instant at which the last one of those who are under way
    has come or is lost, or at a deadline; those who came go on by their ids.
    """

    def __init__(self, env: simpy.Environment, name: str) -> None:
        """Set up a barrier of this name, ahead of nobody yet."""
        self._env, self.name = env, name
        self.ahead = 0
        """The number of those under way that have yet to come to it."""
        self._closes_s = math.inf
        """The instant at which it fails whoever has not come."""
        self.waiting: dict[int, Event] = {}
        """The events of those that wait, by client."""

    def come(self, client: int, deadline_s: float) -> Event:
        """Return the event of its opening.

        The first that comes with a deadline sets when it closes.

        Args:
            client: who comes.
            deadline_s: seconds from now; inf: it waits for all.

        Raises:
            Interrupt: it opened without this one.
        """
        now_s = self._env.now
        late = self._closes_s <= now_s
        if deadline_s < math.inf and self._closes_s == math.inf:
            self._closes_s = now_s + deadline_s
            at(self._env, self._closes_s, call=lambda _: self._open_later())
        self.pass_by()
        if late:
            raise Interrupt("failed")
        event = self.waiting[client] = Event(self._env)
        return event

    def pass_by(self) -> None:
        """Note that one less is ahead of it: it has come, or is lost."""
        self.ahead -= 1
        if not self.ahead:
            self._open_later()

    def _open_later(self) -> None:
        end_of_instant(self._env, self._open)

    def _open(self, _: Event) -> None:
        """Let those that wait go on, by id, unless somebody has yet to come."""
        if self.ahead and self._closes_s > self._env.now:
            return  # somebody has yet to come
        come, self.waiting = self.waiting, {}
        for client in sorted(come):
            if come[client].callbacks:  # else it was cut off meanwhile
                ring(come[client])


class ProcessorQueue:
    """A processor that many share: one unit at a time.

    Units come in the order in which they became ready, of one instant by client.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._ready: list[tuple[float, int, int, Event]] = []
        self._asked = 0
        self._busy = self._looks = False

    def ask(self, client: int) -> Event:
        """Return the event of a client's turn.

        Which one is next is seen when all else has happened at an instant.
        """
        event, self._asked = Event(self._env), self._asked + 1
        heapq.heappush(self._ready, (self._env.now, client, self._asked, event))
        self._look_later()
        return event

    def end(self) -> None:
        """Free the processor: its unit is done, or given up."""
        self._busy = False
        self._look_later()

    def _look_later(self) -> None:
        """Look for the next one at the end of this instant, if there is one to find."""
        if self._ready and not (self._busy or self._looks):
            self._looks = True
            end_of_instant(self._env, self._look)

    def _look(self, _: Event) -> None:
        """Give the processor to whoever is next and still waits."""
        self._looks = False
        while self._ready and not self._busy:
            event = heapq.heappop(self._ready)[-1]
            if event.callbacks:  # else it was given up
                self._busy = True
                ring(event)
