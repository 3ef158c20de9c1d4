"""The simulated world: participations on SimPy's clock, over one network, on simulated devices.

What is modelled: the time of each step, one after another, and what interrupts it: failures at the
end of a phase, clients that go away, devices that stand still, messages that are lost or doubled.
What is ignored: overlap of steps within a client, reading of data, and the memory of the device.

A client in flight is a `Flight` with two events on the clock at most: the end of the step under way
and the client's departure. What comes after a step stands in `_finish`; a message that is lost is
sent again in `_ring`, a barrier opens in `_open`, and whoever leaves or is cut off ends in `cut`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import simpy

from simfed.device import Device
from simfed.fleet.contract import Outcome
from simfed.fleet.faults import Faults
from simfed.ground.errors import InputError, RunFailed
from simfed.ground.method import Work
from simfed.ground.seeding import Streams
from simfed.ground.steps import CLIENT, SERVER, Do, Node, Send, Wait
from simfed.net import LinkUses, Network, Transfer
from simfed.net.instants import at, cancel, end_of_instant
from simfed.net.topology import Direction
from simfed.record.schema import BARRIER
from simfed.sim.flight import Flight, LaidSteps, Leg, Running
from simfed.sim.rows import powered_s
from simfed.sim.server_work import PlayedWork, play_work
from simfed.sim.world import CUT, Asking, Instants, KnowsWork, Presence

__all__ = ["Clock", "MakeNetwork"]

MakeNetwork = Callable[[simpy.Environment, LinkUses], Network]
"""`(env, on_use)` → the network."""

_ENDS = (CLIENT, SERVER)

_Gate = tuple[int, str]
"""(round, name) of a barrier."""


class Clock:
    """Carries participations out on simulated devices over a simulated network. A `World`."""

    env: simpy.Environment
    network: Network

    def __init__(
        self,
        make_network: MakeNetwork,
        make_device: Callable[[int], Device],
        streams: Streams,
        *,
        server_device: Device | None = None,
        presence: Presence | None = None,
        faults: Faults | None = None,
        device_of: Callable[[Flight], Device] | None = None,
    ) -> None:
        """`make_device(client)` is called once per client that takes part; `server_device` None:
        the server's work takes no simulated time; `presence` None: everybody is always there, and
        nothing fails; `faults`: what freezes devices and becomes of messages (links stall in
        `make_network`'s). `device_of(flight)`: what works in its place, asked for each unit."""
        self.presence = presence
        self._working: KnowsWork | None = None
        if isinstance(presence, KnowsWork) and presence.follows_work:
            self._working = presence
        self.uses = LinkUses()
        self._make_network = make_network
        self._make_device = make_device
        self._devices: dict[int, Device] = {}
        self._server_device = server_device
        self._device_of = device_of or (lambda flight: self.device(flight.client))
        self._streams = streams
        self._faults = faults
        self._messages = None if faults is None else faults.messages
        self._numbers = itertools.count()
        """Counts the beginnings of steps."""
        self._under_way = 0
        self._laid: LaidSteps = {}
        self._ahead: dict[_Gate, int] = {}
        """Barrier → how many of those under way have yet to come to it."""
        self._waiting: dict[_Gate, list[Flight]] = {}
        """Those who have come to a barrier that is not open."""
        self._transfers: dict[tuple[int, ...], Transfer] = {}
        """By (client, step): those that a checkpoint left in the middle."""

    # ---- from outside ----------------------------------------------------------------------------

    def connect(self, asking: Asking) -> None:
        """See `World`."""
        self._asking = asking

    def set_out(self, now_s: float) -> None:
        """See `World`."""
        self.env = simpy.Environment(initial_time=now_s)
        self.network = self._make_network(self.env, self.uses)
        self._returns = Instants(self.env)

    def gather(self, stop_requested: Callable[[], bool]) -> None:
        """Rounds can be played at once."""

    def device(self, client: int) -> Device:
        """This client's processor."""
        if client not in self._devices:
            self._devices[client] = self._make_device(client)
        return self._devices[client]

    def carry(self, flight: Flight) -> None:
        """See `World`. What arrives at the very instant at which its client leaves has arrived."""
        self._lay_out(flight)
        self._begin(flight)
        if self.presence is not None and not flight.over:
            leaves_at_s = self.presence.leaves_at_s(flight.client, self.env.now)
            if leaves_at_s < math.inf:
                self._await_departure(flight, leaves_at_s)

    def resume(self, flight: Flight) -> None:
        """See `World`. When its client leaves was settled at its start: work that others have done
        since may have changed what presence says now."""
        self._lay_out(flight)
        assert flight.running is not None
        self._resume_step(flight, flight.running)
        if flight.departs_at_s is not None:
            self._await_departure(flight, flight.departs_at_s)

    def cut(self, flight: Flight, cause: str) -> None:
        """See `World`."""
        flight.lose("dropped" if cause == CUT else cause)
        flight.away = cause == "dropped"
        running, flight.running = flight.running, None
        if running is not None:
            self._give_up(flight, running)
        self._end(flight)

    def somebody_back(self, round: int, *, patient: bool) -> simpy.Event:
        """See `World`."""
        now_s = self.env.now
        back_at_s = math.inf if self.presence is None else self.presence.next_return_s(now_s)
        if back_at_s < math.inf:
            return self._returns.at(back_at_s)
        if patient:
            return self.env.event()
        raise RunFailed(f"round {round}: from {now_s:g} s on no client is ever available again")

    def merge(
        self,
        round: int,
        arrived: Sequence[Flight],
        work: Callable[[], Sequence[Work]],
        merge: Callable[[], Outcome],
    ) -> tuple[list[PlayedWork], Callable[[], Outcome]]:
        """See `World`: the server's device works, then models change."""
        if self._server_device is None or not arrived:
            return [], merge
        return play_work(self._server_device, arrived, work(), self.env.now, round), merge

    def energy_j(self, client: int, phases_s: Callable[[], Mapping[str, float]]) -> float | None:
        """See `World`."""
        device = self.device(client)
        return device.energy_j(phases_s()) if device.counts_energy else None

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """See `World`."""
        server = self._server_device
        facts = {
            "devices": {str(c): s for c, d in self._devices.items() if (s := d.state())},
            "server_device": server.state() if server else {},
            "steps": next(self._numbers),
            "network": self.network.state() if self._under_way else None,
        }
        return facts, {}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """See `World`."""
        for client, of_device in facts["devices"].items():
            self.device(int(client)).restore(of_device)
        if self._server_device is not None:
            self._server_device.restore(facts["server_device"])
        self._numbers = itertools.count(facts["steps"] + 1)
        if facts["network"] is not None:
            self.network.restore(facts["network"])
        self._transfers = {transfer.key: transfer for transfer in self.network.transfers}

    # ---- what comes after what -------------------------------------------------------------------

    def _lay_out(self, flight: Flight) -> None:
        self._under_way += 1
        device = self._device_of(flight)
        flight.lay_steps(device.charges("handling", flight.task.model), self._laid)
        if flight.task.plan.steps:
            self._announce(flight)

    def _begin(self, flight: Flight) -> None:
        """The next step of a flight; after the last one it is over."""
        if flight.done == len(flight.steps):
            self._end(flight)
            return
        step = flight.steps[flight.done]
        now_s, order = self.env.now, next(self._numbers)
        flight.order = order
        flight.running = running = Running(now_s, order)
        if isinstance(step, Do):
            running.work = leg = self._leg_of(flight, step, now_s)
            running.ends_at_s = now_s + leg.duration_s
            self._set_timer(flight, running, self.env.timeout(leg.duration_s))
        elif isinstance(step, Wait):
            self._come(flight, step)
        else:
            self._transmit(flight, running)

    def _finish(self, flight: Flight) -> None:
        """The step under way is over, and with it, it may be, the flight."""
        flight.running = None
        if self.presence is not None and self._fails(flight):
            flight.lose("failed")
        if flight.lost:
            self._end(flight)
        else:
            flight.done += 1
            self._begin(flight)

    def _end(self, flight: Flight) -> None:
        flight.end(self.env.now)
        departure, flight.departure = flight.departure, None
        cancel(self.env, departure)
        self._under_way -= 1
        if flight.task.plan.steps:
            self._leave_gates(flight)
        if self._working is not None:  # whoever lands may be chosen again at this instant
            energy_j = self.energy_j(flight.client, partial(powered_s, flight))
            self._working.worked(flight.client, flight.ended_at_s, flight.elapsed_s, energy_j)
        self._asking.land(flight)

    def _resume_step(self, flight: Flight, running: Running) -> None:
        """Go on with a step that a checkpoint left in the middle."""
        step = flight.steps[flight.done]
        if isinstance(step, Wait):
            gate = flight.task.round, step.gate
            self._waiting.setdefault(gate, []).append(flight)
            self._open_later(gate)  # if all had come; `_open` sees whether somebody is ahead
        elif running.ends_at_s is not None:
            self._set_timer(flight, running, at(self.env, running.ends_at_s))
        else:
            running.transfer = transfer = self._transfers.pop((flight.client, flight.done))
            transfer.done.callbacks.append(partial(self._arrive, flight, running))

    def _set_timer(self, flight: Flight, running: Running, timer: simpy.Event) -> None:
        running.timer = timer
        timer.callbacks.append(partial(self._ring, flight, running))

    def _ring(self, flight: Flight, running: Running, _: simpy.Event) -> None:
        """A unit of work, or a pause, is over."""
        running.timer = None
        if running.work is not None:
            flight.legs.append(running.work)
            self._finish(flight)
            return
        messages = self._messages
        assert messages is not None
        self._note_pause(flight, running, messages.timeout_s)
        flight.order = running.order = next(self._numbers)
        if self._tries(flight) < messages.tries:
            running.started_at_s, running.ends_at_s = self.env.now, None
            self._transmit(flight, running)
        else:
            flight.lose("failed")
            self._finish(flight)

    def _await_departure(self, flight: Flight, leaves_at_s: float) -> None:
        flight.departs_at_s = leaves_at_s
        flight.departure = departure = at(self.env, leaves_at_s)
        departure.callbacks.append(partial(self._depart, flight))

    def _depart(self, flight: Flight, _: simpy.Event) -> None:
        flight.departure = departure = end_of_instant(self.env)
        departure.callbacks.append(lambda _: self.cut(flight, "dropped"))

    # ---- work ------------------------------------------------------------------------------------

    def _leg_of(self, flight: Flight, step: Do, now_s: float) -> Leg:
        """A unit of work that begins now, with the freezes of its device."""
        work = step.work
        frozen: tuple[tuple[float, float], ...] = ()
        duration_s = seconds_of(work, self._device_of(flight), flight, now_s)
        strikes = None if self._faults is None else self._faults.freezes_of(flight.client)
        if strikes is not None:
            duration_s, within = strikes.stretch(now_s, duration_s)
            frozen = tuple(within)
        name, quantity = work.name or step.phase, work.quantity
        return Leg(step.phase, name, duration_s, now_s, quantity, 0.0, 0, {}, frozen)

    def _fails(self, flight: Flight) -> bool:
        """Whether the step that is over has failed; local work is one phase, however many units it
        has."""
        if flight.lost or isinstance(flight.steps[flight.done], Wait):
            return False
        assert self.presence is not None
        phase, number = self._phase(flight), flight.done + 1
        if phase not in ("download", "upload"):
            if any(isinstance(step, Do) for step in flight.steps[number:]):
                return False
            phase = "training"
        chance = self.presence.failure(flight.client, phase)
        if not chance:
            return False
        draw = self._streams("failure", flight.client, flight.task.key, phase, number)
        return bool(draw.random() < chance)

    # ---- barriers --------------------------------------------------------------------------------

    def _announce(self, flight: Flight) -> None:
        """Count a participation at the barriers that are ahead of it."""
        begun = flight.done + (flight.running is not None)
        for gate in self._gates(flight, begun):
            self._ahead[gate] = self._ahead.get(gate, 0) + 1

    @staticmethod
    def _gates(flight: Flight, first: int) -> list[_Gate]:
        """The barriers among its steps from `first` on."""
        round, steps = flight.task.round, flight.steps[first:]
        return [(round, step.gate) for step in steps if isinstance(step, Wait)]

    def _come(self, flight: Flight, step: Wait) -> None:
        gate = flight.task.round, step.gate
        self._waiting.setdefault(gate, []).append(flight)
        self._pass_by(gate)

    def _leave_gates(self, flight: Flight) -> None:
        """Nobody waits for it any longer."""
        for gate in self._gates(flight, flight.done):
            if flight in self._waiting.get(gate, ()):
                self._waiting[gate].remove(flight)
        for gate in self._gates(flight, flight.done + 1):
            self._pass_by(gate)

    def _pass_by(self, gate: _Gate) -> None:
        """One less is ahead of a barrier; it opens when all else has happened at this instant."""
        self._ahead[gate] -= 1
        if not self._ahead[gate]:
            self._open_later(gate)

    def _open_later(self, gate: _Gate) -> None:
        opening = end_of_instant(self.env)
        assert opening.callbacks is not None
        opening.callbacks.append(partial(self._open, gate))

    def _open(self, gate: _Gate, _: simpy.Event) -> None:
        if self._ahead.get(gate):
            return  # somebody has yet to come
        self._ahead.pop(gate, None)
        flights = sorted(self._waiting.pop(gate, ()), key=lambda flight: flight.client)
        for flight in flights:
            step, running = flight.steps[flight.done], flight.running
            assert isinstance(step, Wait)
            assert running is not None
            begun_s = running.started_at_s
            flight.legs.append(Leg(BARRIER, step.gate, self.env.now - begun_s, begun_s))
            if len(flights) < step.least:
                flight.lose("failed")
            self._finish(flight)

    # ---- messages --------------------------------------------------------------------------------

    def _transmit(self, flight: Flight, running: Running) -> None:
        """Start a message on its way, once more or for the first time."""
        step = flight.steps[flight.done]
        assert isinstance(step, Send)
        down = step.target == CLIENT
        if step.size_bytes is not None:
            size_bytes = step.size_bytes
        else:
            size_bytes = flight.task.downlink_bytes if down else self._asking.size_of(flight)
        weight = 1.0
        if self._messages is not None:
            # copies that leave at once are equal flows over one path: one of their weight and bytes
            weight = float(self._fate(flight, self._tries(flight)).copies)
            size_bytes *= weight
        key = flight.client, flight.done
        if step.source in _ENDS and step.target in _ENDS and not flight.places:
            way: Direction = "down" if down else "up"
            transfer = self.network.send(flight.client, size_bytes, way, weight=weight, key=key)
        else:
            ends = self._place(flight, step.source), self._place(flight, step.target)
            transfer = self.network.send_between(*ends, size_bytes, weight=weight, key=key)
        running.transfer = transfer
        transfer.done.callbacks.append(partial(self._arrive, flight, running))

    def _place(self, flight: Flight, node: Node) -> str:
        """What a node of a plan is called in the network."""
        name = flight.places.get(node, node)
        if name == CLIENT:
            return f"client-{flight.client}"
        return self.network.nodes.node_of(flight.client, name)

    def _arrive(self, flight: Flight, running: Running, done: simpy.Event) -> None:
        """The last byte of a transmission is there."""
        transfer, running.transfer = running.transfer, None
        assert transfer is not None
        phase = name = flight.steps[flight.done].phase
        copies, lost = 1, False
        if self._messages is not None:
            copies, lost = self._fate(flight, self._tries(flight))
            name = "lost" if lost else name if copies == 1 else "doubled"
        moved_bytes, limited_s = transfer.size_bytes, transfer.limited_s
        spent_s: Any = done.value
        begun_s = running.started_at_s
        flight.legs.append(Leg(phase, name, spent_s, begun_s, "", moved_bytes, copies, limited_s))
        if not lost:
            self._finish(flight)
            return
        assert self._messages is not None
        running.started_at_s = now_s = self.env.now
        running.ends_at_s = ends_at_s = now_s + self._messages.timeout_s
        flight.order = running.order = next(self._numbers)
        self._set_timer(flight, running, at(self.env, ends_at_s))

    def _note_pause(self, flight: Flight, running: Running, spent_s: float) -> None:
        leg = Leg(self._phase(flight), "timeout", spent_s, running.started_at_s)
        flight.legs.append(leg)

    def _fate(self, flight: Flight, nth: int) -> Any:
        assert self._faults is not None
        step = flight.steps[flight.done]
        message = step.phase
        if isinstance(step, Send) and step.size_bytes is not None:
            message = f"{message} {flight.done}"
        return self._faults.fate(flight.client, flight.task.key, message, nth)

    def _tries(self, flight: Flight) -> int:
        """How many transmissions of the present message are over: the latest legs, all lost."""
        tries = 0
        for leg in reversed(flight.legs):
            if leg.name not in ("lost", "timeout"):
                break
            tries += leg.name == "lost"
        return tries

    @staticmethod
    def _phase(flight: Flight) -> str:
        return flight.steps[flight.done].phase

    def _give_up(self, flight: Flight, running: Running) -> None:
        """A step ends before its time: note what it spent and moved until now."""
        spent_s, phase = self.env.now - running.started_at_s, self._phase(flight)
        if running.transfer is not None:
            transfer = running.transfer
            transfer.done.callbacks.clear()
            copies = round(transfer.flow.weight)
            name, moved_bytes = phase if copies == 1 else "doubled", transfer.cancel()
            leg = Leg(phase, name, spent_s, running.started_at_s, "", moved_bytes, copies)
            flight.legs.append(leg)
            return
        cancel(self.env, running.timer)
        step = flight.steps[flight.done]
        if isinstance(step, Wait):
            flight.legs.append(Leg(BARRIER, step.gate, spent_s, running.started_at_s))
        elif running.work is None:
            self._note_pause(flight, running, spent_s)
        else:
            flight.legs.append(running.work.cut(spent_s))


def seconds_of(work: Work, device: Device, flight: Flight, start_at_s: float) -> float:
    """Seconds of one unit of a client's work that starts now. Its noise is drawn by its quantity,
    and by how many of that quantity came before it."""
    try:
        nominal_s = work.times * device.work_s(work)
    except InputError:
        if work not in flight.task.unpacking:
            raise
        return 0.0  # a warning of the run says so
    nth = 0
    for leg in flight.legs:
        nth += leg.quantity == work.quantity
    duration_s = device.duration_s(
        nominal_s, start_at_s, round=flight.task.key, phase=work.quantity, nth=nth
    )
    # SimPy accepts a NaN delay without a word and never gets past it
    if not 0 <= duration_s < math.inf:
        raise RunFailed(
            f"client {flight.client}, round {flight.task.round}: the device model gave "
            f"{duration_s!r} seconds for {work.kind or work.quantity}"
        )
    return duration_s
