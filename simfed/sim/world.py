"""The seam between a server and the world that carries out what it asks.

A server (`simfed.sim.server.Simulation`) is a mode, a workload and a world. It says who
takes part and what is merged; the world says who is there, what time it is, what
becomes of a participation and how long a merge takes. `simfed.sim.clock.Clock` is the
simulated world, `simfed.deploy.playing. Remote` one of real clients; a Flower app's
messages are carried by the simulated one, where the app takes the server's place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import simpy
from numpy.typing import NDArray

from simfed.fleet.contract import Outcome
from simfed.ground.method import Work
from simfed.ground.seeding import Streams
from simfed.net import LinkUses, Network
from simfed.net.instants import at
from simfed.sim.flight import Flight
from simfed.sim.server_work import PlayedWork

CUT = "cut"
"""The outcome of a participation that nobody waits for any longer: it is dropped, but
its client is there."""


class Attendance(Protocol):
    """The presence of clients, and the instants at which it changes.

    Of a simulated world it is `simfed.fleet.availability.Availability`.
    """

    def available(self, at_s: float) -> NDArray[np.int64]:
        """Return the ids of the clients that are there, ascending."""
        ...

    def there(self, client: int, at_s: float) -> bool:
        """Return whether a client is there."""
        ...

    def change_after(self, client: int, at_s: float) -> float:
        """Return the instant at which a client that is there goes away; inf: never."""
        ...

    def arrival_after(self, at_s: float) -> float:
        """Return the next instant after `at_s` at which somebody comes.

        Inf: nobody ever does.
        """
        ...

    def failure(self, client: int, phase: str) -> float:
        """Return the probability that a phase of this client fails."""
        ...

    def battery(self, client: int, at_s: float) -> float:
        """Return how full a client's battery is, as a share; 1 where it has none."""
        ...


class Requester(Protocol):
    """The server for which a world carries out participations."""

    def size_of(self, flight: Flight) -> float:
        """Bytes of its upload; asked when that starts."""
        ...

    def land(self, flight: Flight) -> None:
        """Take note that a participation is over, this very moment.

        The world's presence knows its work already.
        """
        ...

    def forget_model_of(self, client: int | None) -> None:
        """Note that this client's model is unknown; None: that any client's is."""
        ...


class Carrier(Protocol):
    """A carrier of participations: the simulated clock, or real sockets."""

    @property
    def env(self) -> simpy.Environment:
        """The clock, from `set_out` on."""
        ...

    @property
    def presence(self) -> Attendance | None:
        """None: everybody is always there."""
        ...

    uses: LinkUses
    """The uses of links since somebody cleared them."""

    @property
    def network(self) -> Network | None:
        """The network on which transfers can be played again.

        None: of its links nothing is known.
        """
        ...

    def connect(self, asking: Requester) -> None:
        """Work for this server; called once, before anything else."""
        ...

    def set_out(self) -> None:
        """Set the clock to 0, with nothing under way."""
        ...

    def gather(self, stop_requested: Callable[[], bool]) -> None:
        """Wait until rounds can be played; then time passes.

        Raises: `Interrupted`, `RunFailed`.
        """
        ...

    def carry(self, flight: Flight) -> None:
        """Let a participation begin now."""
        ...

    def cut(self, flight: Flight, cause: str) -> None:
        """End a participation where it is: what it has spent so far stays spent.

        `cause`: `CUT`, `dropped` (its client is gone) or `failed` (it stays).
        """
        ...

    def await_anybody(self, round: int, *, patient: bool) -> simpy.Event:
        """Return the event of a client's coming.

        Raises: `RunFailed` if nobody ever does, unless `patient`.
        """
        ...

    def merge(
        self,
        round: int,
        arrived: Sequence[Flight],
        work: Callable[[], Sequence[Work]],
        merge: Callable[[], Outcome],
    ) -> tuple[list[PlayedWork], Callable[[], Outcome]]:
        """Return the server's work at a merge, and what gives its outcome after it.

        `work()`: what the method says it works; `merge()`: done once.
        """
        ...

    def energy_j(
        self, client: int, phases_s: Callable[[], Mapping[str, float]]
    ) -> float | None:
        """Return the joules of a participation from its seconds per phase.

        None: not known.
        """
        ...


def draw_failure(
    presence: Attendance, streams: Streams, flight: Flight, phase: str, number: int
) -> bool:
    """Return whether a phase of a participation fails, as its scenario has it.

    Args:
        presence: knows the probability.
        streams: keyed generators.
        flight: the participation.
        phase: `download`, `training` or `upload`.
        number: of the phase's last step among all of the participation, from 1.
    """
    chance = presence.failure(flight.client, phase)
    if not chance:
        return False
    draw = streams("failure", flight.client, flight.task.key, phase, number)
    return bool(draw.random() < chance)


class InstantEvents:
    """Events of instants, one for all that ask before it has come.

    So thousands that wait for one client's coming put one event on the clock.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._events: dict[float, simpy.Event] = {}

    def at(self, at_s: float) -> simpy.Event:
        """Return the event of this instant."""
        event = self._events.get(at_s)
        if event is None:
            event = at(self._env, at_s, call=partial(self._forget, at_s))
            self._events[at_s] = event
        return event

    def _forget(self, at_s: float, _: simpy.Event) -> None:
        del self._events[at_s]
