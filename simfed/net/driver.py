"""The network inside a SimPy simulation: transfers that end when the engine says so.

One timer for the whole network; a wake-up that is no longer the next one is cancelled.
The engine's clock begins anew at 0 whenever nothing is in progress, so that instants
late in a run keep their digits. Never take a makespan from `env.now` at the end of a
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf, isfinite
from typing import NamedTuple, NoReturn

import simpy
from simpy.events import Event

from simfed.ground.errors import InputError, RunFailed
from simfed.ground.seeding import Key
from simfed.ground.uses import LinkUses
from simfed.net.engine import Engine
from simfed.net.flows import DeadLink, Flow
from simfed.net.instants import AFTER_EVERYTHING_ELSE, at, cancel, ring
from simfed.net.maxmin import OWN_CAP
from simfed.net.meter import Meter
from simfed.net.models import ModelSpec, make_model
from simfed.net.topology import Direction, Topology

__all__ = ["Network", "Transfer"]


class Pace(NamedTuple):
    """The pace of an upload that leaves in chunks while the next is compressed."""

    chunks: int
    rest_s: float
    """Seconds until all of it is compressed, from its start on."""

    def cap(self, size_bytes: float, idle_bytes_per_s: float) -> float:
        """Return the rate (bytes/s) at which all of it arrives with its last chunk.

        That is when the last chunk would over a path that nobody else uses: exact
        there, an approximation where others share it.

        Args:
            size_bytes: of the whole upload.
            idle_bytes_per_s: what the path gives it alone; 0: not known yet, as it
                stands still.

        >>> Pace(chunks=4, rest_s=6.0).cap(80.0, idle_bytes_per_s=10.0)
        10.0
        """
        chunks = self.chunks
        idle_s = size_bytes / idle_bytes_per_s if idle_bytes_per_s > 0 else 0.0
        whole_s = max(self.rest_s, (chunks - 1) / chunks * idle_s) + idle_s / chunks
        return size_bytes / whole_s if whole_s > 0 else inf


class Transfer(Event):
    """One payload on its way: the event of its arrival.

    Its value is its exact duration in seconds. It is never on the clock: who waits for
    it goes on in the middle of the network's wake-up. `Network.send` makes it; a
    client's process yields it, and cancels it where the client leaves.
    """

    def __init__(
        self,
        network: Network,
        client: int,
        direction: Direction,
        size_bytes: float,
        flow: Flow,
    ) -> None:
        super().__init__(network.env)
        self.network, self.client, self.direction = network, client, direction
        self.size_bytes, self.flow = size_bytes, flow

    @property
    def name(self) -> str:
        """The sender and the direction, for people."""
        return f"client {self.client} {self.direction}"

    @property
    def in_flight(self) -> bool:
        """True from its start until it has arrived or was cancelled."""
        return self.flow in self.network._transfers

    @property
    def moved_bytes(self) -> float:
        """Payload that has arrived so far; all of it once the transfer has ended."""
        network, flow = self.network, self.flow
        if self.in_flight:
            network._catch_up()
        left = network._engine.left(flow)
        if left + flow.unsent_bytes <= 0:
            return self.size_bytes
        sent = flow.size_bytes - flow.unsent_bytes - left
        return max(network.model.payload_bytes(sent), 0.0)

    @property
    def bottleneck(self) -> str | None:
        """The link that limited it for most of its time.

        None when none did (latency, own cap).

        Known from the end of the transfer on; before that, as far as it has come.
        """
        link = self.flow.bottleneck
        return None if link == OWN_CAP else self.network.topology.link_name(link)

    @property
    def limited_s(self) -> dict[str | None, float]:
        """Seconds for which each link (None: its own cap) has limited it so far."""
        name = self.network.topology.link_name
        return {
            None if k == OWN_CAP else name(k): s for k, s in self.flow.dwelt_s.items()
        }

    @property
    def held_s(self) -> float:
        """The seconds for which its own cap held it below its path's rate.

        The path is taken as it is now, with the transfer alone on it.
        """
        flow, network = self.flow, self.network
        idle_bytes_per_s = network._engine.idle_bytes_per_s(
            flow, network._get_local_s()
        )
        if idle_bytes_per_s <= 0:
            return 0.0
        at_rate = min(flow.cap_bytes_per_s / idle_bytes_per_s, 1.0)
        return flow.dwelt_s.get(OWN_CAP, 0.0) * (1 - at_rate)

    def cancel(self) -> float:
        """Stop the transfer now, and return the payload bytes it had moved.

        It then never happens. A transfer that ends at this very instant has ended: it
        happens, the answer is `size_bytes`. Cancelling twice, or after the end, changes
        nothing.
        """
        network = self.network
        if self.in_flight:
            network._catch_up()
        if self.in_flight:
            del network._transfers[self.flow]
            network._engine.cancel(self.flow)
            network._wake_in_time(network._get_local_s())
        return self.moved_bytes


class Network:
    """Sends payloads over a topology, all of them sharing its links max-min fairly.

    Rates are solved once per instant, after everything else that happens at it; a
    transfer that ends at the instant at which another starts does not share with it.
    What the models ignore: see `docs/network.md`.

    >>> import simpy
    >>> from simfed.net import Network, Star
    >>> env = simpy.Environment()
    >>> network = Network(env, Star(2, up_bytes_per_s=4.0, receive_bytes_per_s=6.0))
    >>> slow, fast = network.send(0, 30.0), network.send(1, 12.0)
    >>> env.run(fast), env.run(slow)
    (4.0, 8.5)
    >>> fast.bottleneck, slow.bottleneck
    ('server/receive', 'client-0/up')
    """

    def __init__(
        self,
        env: simpy.Environment,
        topology: Topology,
        *,
        model: ModelSpec = "fluid",
        on_use: LinkUses | None = None,
    ) -> None:
        """Lay a network over a clock.

        Args:
            env: the clock; sends happen at its `now`.
            topology: links and paths.
            model: `"fluid"` (a transfer waits its path's latency, then takes its
                max-min share of every link of the path until the last byte has
                arrived), `"tcp"` (that with TCP's start-up and headers), `{"kind":
                "tcp", "handshake": False}` or a model.
            on_use: filled with every interval of every link that could bind; None:
                nothing is metered.
        """
        self.env = env
        self.topology = topology
        self.model = make_model(model)
        self._epoch_at_s: float = env.now
        meter = None
        if on_use is not None:
            on_use.names_by(topology.link_name)
            meter = Meter(lambda use: on_use.add(use, self._epoch_at_s))
        self._engine = Engine(topology.capacities_bytes_per_s, topology.traces, meter)
        self._transfers: dict[Flow, Transfer] = {}
        self._sent = 0
        self._timer: Event | None = None
        self._timer_at_s = inf
        """The instant of the next wake-up on the engine's clock."""

    def send(
        self,
        client: int,
        size_bytes: float,
        direction: Direction = "up",
        *,
        weight: float = 1.0,
        cap_bytes_per_s: float | None = None,
        pace: Pace | None = None,
        key: tuple[Key, ...] = (),
    ) -> Transfer:
        """Start a transfer between a client and the server now.

        Args:
            client: its id.
            size_bytes: the payload, at least 0.
            direction: `up` to the server or `down` from it.
            weight: its share against others', 1e-9 to 1e9.
            cap_bytes_per_s: a limit of its own, above 0; None: none.
            pace: of an upload that leaves while it is still compressed, which caps it
            too.
            key: names the message among its client's, for a latency that is drawn for
                each; empty: its number among the network's transfers.

        Returns the event of its arrival, whose value is the seconds it took.

        Raises:
            InputError: a size, weight or cap that is not a number in range.
            RunFailed: the trace of its latency has ended; also raised out of the
                simulation when transfers wait for a link whose trace has ended or stays
                at 0 for ever.
        """
        key = key or (self._sent,)
        try:
            path = self.topology.find_path(client, direction, float(self.env.now), key)
        except DeadLink as dead:
            self._give_up(dead)
        cap = inf if cap_bytes_per_s is None else cap_bytes_per_s
        if not (isfinite(size_bytes) and size_bytes >= 0):
            raise InputError(
                "a size of at least 0 bytes", where="size_bytes", got=size_bytes
            )
        if not cap > 0:
            raise InputError("a cap above 0 bytes/s", where="cap_bytes_per_s", got=cap)
        if not self._transfers:
            self._epoch_at_s = self.env.now
            self._engine.restart_clock(self._epoch_at_s)
            cancel(self.env, self._timer)  # it stood on the clock before
            self._timer, self._timer_at_s = None, inf
        self._sent += 1
        engine, now_s, size_bytes = self._engine, self._get_local_s(), float(size_bytes)
        capacity = partial(engine.find_capacity, at_s=now_s)
        flow = path.enter(
            self.model.flow(self._sent, size_bytes, path, capacity, weight, cap)
        )
        if pace is not None:
            idle_bytes_per_s = min(
                engine.idle_bytes_per_s(flow, now_s), flow.cap_bytes_per_s
            )
            cap = pace.cap(flow.size_bytes, idle_bytes_per_s)
            flow.cap_bytes_per_s = min(flow.cap_bytes_per_s, cap)
        engine.start(flow, now_s)
        transfer = self._transfers[flow] = Transfer(
            self, client, direction, size_bytes, flow
        )
        self._wake_in_time(now_s)
        return transfer

    # ---- inside ----------------------------------------------------------------------

    def _get_local_s(self) -> float:
        """Return now on the engine's clock.

        The instant of an event was rounded twice, by SimPy and by the subtraction; the
        engine never goes back.
        """
        now_s = float(self.env.now) - self._epoch_at_s
        return max(now_s, self._engine.sharing.now_s)

    def _wake_in_time(self, now_s: float) -> None:
        """Have SimPy call us when the engine's next event is due.

        An earlier wake-up may stand. `now_s`: on the engine's clock.
        """
        at_s = self._engine.find_next_s()
        if at_s >= self._timer_at_s or not self._transfers:
            return
        if self._timer is not None:
            cancel(self.env, self._timer)
        due_s = float(self.env.now) + max(at_s - now_s, 0.0)
        self._timer = at(self.env, due_s, AFTER_EVERYTHING_ELSE, self._wake)
        self._timer_at_s = at_s

    def _wake(self, _: Event) -> None:
        """Play what is due, and tell those whose transfers have arrived."""
        at_s = max(self._timer_at_s, self._get_local_s())
        self._timer, self._timer_at_s = None, inf
        arrived = self._play_until(at_s)
        if len(arrived) == 1:
            _ring_arrival(arrived[0])
        else:
            # what the first one sets off at this instant may come before the second is
            # told
            self._tell_in_turn(arrived)

    def _play_until(self, at_s: float) -> list[Transfer]:
        """Play up to an instant, and return the arrivals that somebody waits for.

        Args:
            at_s: on the engine's clock, not before now.
        """
        try:
            ended = self._engine.advance(at_s)
        except DeadLink as dead:
            self._give_up(dead)
        arrived = []
        for flow in ended:
            transfer = self._transfers.pop(flow)
            if transfer.callbacks:
                arrived.append(transfer)
            else:
                _ring_arrival(transfer)
        self._wake_in_time(at_s)
        return arrived

    def _catch_up(self) -> None:
        """Have the engine play up to now, in the middle of another action.

        Who is to be told of arrivals is told right after it.
        """
        self._tell_in_turn(self._play_until(self._get_local_s()))

    def _tell_in_turn(self, arrived: Sequence[Transfer]) -> None:
        """Tell of arrivals one after another, each by an event of this instant."""
        for transfer in arrived:
            telling = self.env.event().succeed()
            telling.callbacks.append(partial(_ring_arrival, transfer))

    def _give_up(self, dead: DeadLink) -> NoReturn:
        """Raise the `RunFailed` of a link that will carry nothing any more."""
        names = [self._transfers[flow].name for flow in dead.flows]
        if len(names) > 5:
            names[5:] = [f"{len(names) - 5} more"]
        why = "its trace has ended"
        if not dead.trace_ended:
            why = "its capacity is 0 for ever"
        who = f"transfers wait for it ({', '.join(names)})"
        if not names:
            why, who = "the trace of its latency has ended", "a message starts"
        link = self.topology.link_name(dead.link)
        raise RunFailed(
            f"link {link}: at {dead.at_s:g} s {why}, and {who}; "
            "a trace with `end: loop` goes on"
        )


def _ring_arrival(transfer: Transfer, _: Event | None = None) -> None:
    """Have a transfer happen, with the seconds it took."""
    ring(transfer, transfer.flow.spent_s)
