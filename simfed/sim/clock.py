"""The simulated world: participations on SimPy's clock, over one network, on simulated devices.

What is modelled: the time of each step, one after another, and what interrupts it: failures at the
end of a phase, clients that go away, devices that stand still, messages that are lost or doubled.
What is ignored: reading of data, and the memory of the device.

A client in flight is a `Flight` with two events on the clock at most: the end of the step under way
and the client's departure. What comes after a step stands in `_finish`; a message that is lost is
sent again in `_ring`, a barrier opens in `_open`, and whoever leaves or is cut off ends in `cut`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import simpy

from simfed.device import Device
from simfed.fleet.availability import Availability
from simfed.fleet.contract import Outcome
from simfed.fleet.faults import Faults
from simfed.ground.errors import InputError, RunFailed
from simfed.ground.method import Work
from simfed.ground.records import make
from simfed.ground.seeding import Streams
from simfed.ground.steps import CLIENT, UPLOAD, Do, Send, Wait
from simfed.net import LinkUses, Network
from simfed.net.driver import Pace, Transfer
from simfed.net.instants import Environment, at, cancel, end_of_instant
from simfed.record.schema import BARRIER
from simfed.sim.flight import Flight, LaidSteps, Leg, Running
from simfed.sim.rows import compute_powered_s
from simfed.sim.server_work import PlayedWork, play_work
from simfed.sim.world import CUT, Asking, InstantEvents, draw_failure

__all__ = ["Clock", "MakeNetwork"]

MakeNetwork = Callable[[simpy.Environment, LinkUses], Network]
"""`(env, on_use)` → the network."""

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
        presence: Availability | None = None,
        faults: Faults | None = None,
        device_of: Callable[[Flight], Device] | None = None,
    ) -> None:
        """`make_device(client)` is called once per client that takes part; `server_device` None:
        the server's work takes no simulated time; `presence` None: everybody is always there, and
        nothing fails; `faults`: what freezes devices and becomes of messages (links stall in
        `make_network`'s). `device_of(flight)`: what works in its place, asked for each unit."""
        self.presence = presence
        self.uses = LinkUses()
        self.make_network = make_network
        self._make_device = make_device
        self._devices: dict[int, Device] = {}
        self._server_device = server_device
        self._device_of = device_of
        self._streams = streams
        self._faults = faults
        self._at_wait: Callable[[Flight], None] | None = None
        self._messages = None if faults is None else faults.messages
        self._numbers = itertools.count()
        """Counts the beginnings of steps."""
        self._laid: LaidSteps = {}
        self._ahead: dict[_Gate, int] = {}
        """Barrier → how many of those under way have yet to come to it."""
        self._closes_s: dict[_Gate, float] = {}
        """Barrier with a deadline that somebody has come to → when it opens for those who have."""
        self._turns: list[tuple[float, int, int, Flight, Running]] = []
        """Who waits for the server's processor: a heap by (ready since, client, order)."""
        self._served: Running | None = None
        """Whose work that does."""
        self._looks = False
        """It will look for the next unit at the end of this instant."""
        self._waiting: dict[_Gate, list[Flight]] = {}
        """Those who have come to a barrier that is not open."""

    # ---- from outside ----------------------------------------------------------------------------

    def connect(self, asking: Asking) -> None:
        """See `World`."""
        self._asking = asking

    def set_out(self) -> None:
        """See `World`."""
        self.env = Environment()
        self.network = self.make_network(self.env, self.uses)
        self._returns = InstantEvents(self.env)

    def join(self, other: Clock) -> None:
        """Stand on the same clock as another, and send over the same network, in place of setting
        out."""
        self.env, self.network, self.uses = other.env, other.network, other.uses
        self._returns = InstantEvents(self.env)

    def come_to(self, at_wait: Callable[[Flight], None]) -> None:
        """Call this where a flight comes to a barrier, which then is none: it waits until `go_on`.
        Of edge servers, which make their own merges meanwhile."""
        self._at_wait = at_wait

    def go_on(self, flight: Flight, waited_s: float, name: str) -> None:
        """What it came to a barrier for is done, in so many seconds."""
        self._note_leg(flight, BARRIER, name, waited_s)
        self._finish(flight)

    def gather(self, stop_requested: Callable[[], bool]) -> None:
        """Rounds can be played at once."""

    def device(self, client: int) -> Device:
        """The processor of this client, made when it is first asked for."""
        device = self._devices.get(client)
        if device is None:
            device = self._devices[client] = self._make_device(client)
        return device

    def _device_for(self, flight: Flight) -> Device:
        """What works for it: its client's device, or what `device_of` says."""
        if self._device_of is not None:
            return self._device_of(flight)
        return self._devices.get(flight.client) or self.device(flight.client)

    def carry(self, flight: Flight) -> None:
        """See `World`. What arrives at the very instant at which its client leaves has arrived."""
        self._lay_out(flight)
        self._begin_next(flight)
        if self.presence is not None and not flight.over:
            leaves_at_s = self.presence.change_after(flight.client, self.env.now)
            if leaves_at_s < math.inf:
                flight.departure = at(self.env, leaves_at_s, call=partial(self._depart, flight))

    def cut(self, flight: Flight, cause: str) -> None:
        """See `World`."""
        flight.lose("dropped" if cause == CUT else cause)
        flight.away = cause == "dropped"
        self._give_up(flight)
        self._end(flight)

    def somebody_back(self, round: int, *, patient: bool) -> simpy.Event:
        """See `World`."""
        now_s = self.env.now
        back_at_s = math.inf if self.presence is None else self.presence.arrival_after(now_s)
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

    # ---- what comes after what -------------------------------------------------------------------

    def _lay_out(self, flight: Flight) -> None:
        device = self._device_for(flight)
        flight.lay_steps(device.charges("handling", flight.task.model), self._laid)
        if flight.task.plan.steps and self._at_wait is None:
            self._announce(flight)

    def _begin_next(self, flight: Flight) -> None:
        """The next step is ready; after the last one it is over."""
        course = flight.course
        if flight.done == len(course.steps):
            self._end(flight)
            return
        step = course.steps[flight.done]
        flight.running = running = Running(self.env.now, next(self._numbers))
        if isinstance(step, Send):
            if course.packing and step == UPLOAD:
                self._pack(flight, running)
            else:
                self._transmit(flight, running, step)
        elif isinstance(step, Wait):
            if self._at_wait is None:
                self._come(flight, step)
            else:
                self._at_wait(flight)
        elif step.node == CLIENT:
            self._work(flight, running, step)
        else:
            self._queue(flight, running)

    def _finish(self, flight: Flight) -> None:
        """The step under way is over, and with it, it may be, the flight."""
        flight.running = None
        if self.presence is not None and self._fails(flight):
            flight.lose("failed")
        if flight.lost:
            self._end(flight)
        else:
            flight.done += 1
            self._begin_next(flight)

    def _end(self, flight: Flight) -> None:
        flight.end(self.env.now)
        departure, flight.departure = flight.departure, None
        cancel(self.env, departure)
        if flight.task.plan.steps and self._at_wait is None:
            self._leave_gates(flight)
        there = self.presence
        if there is not None and there.follows_work:  # who lands may be chosen again right now
            energy_j = self.energy_j(flight.client, partial(compute_powered_s, flight))
            there.worked(flight.client, flight.ended_at_s, flight.elapsed_s, energy_j)
        self._asking.land(flight)

    def _set_timer(self, flight: Flight, running: Running, timer: simpy.Event) -> None:
        running.timer = timer
        timer.callbacks.append(partial(self._ring, flight, running))

    def _ring(self, flight: Flight, running: Running, _: simpy.Event) -> None:
        """A unit of work, the first chunk's compression, or a pause is over."""
        running.timer = None
        if running.work is not None:
            flight.legs.append(running.work)
            if running is self._served:
                self._serve_next()
            self._finish(flight)
            return
        if not running.packing:
            messages = self._messages
            assert messages is not None
            self._note_pause(flight, messages.timeout_s)
            if running.tries == messages.tries:
                flight.lose("failed")
                self._finish(flight)
                return
        running.started_at_s = self.env.now
        step = flight.steps[flight.done]
        assert isinstance(step, Send)
        self._transmit(flight, running, step)

    def _depart(self, flight: Flight, _: simpy.Event) -> None:
        flight.departure = end_of_instant(self.env, lambda _: self.cut(flight, "dropped"))

    # ---- work ------------------------------------------------------------------------------------

    def _work(self, flight: Flight, running: Running, step: Do) -> None:
        nth = flight.course.nths[flight.done]
        running.work = leg = self._leg_of(flight, step, running.started_at_s, nth)
        self._set_timer(flight, running, self.env.timeout(leg.duration_s))

    def _leg_of(self, flight: Flight, step: Do, at_s: float, nth: int) -> Leg:
        """A unit of work that begins then, with the freezes of its device."""
        work, node = step.work, step.node
        frozen: tuple[tuple[float, float], ...] = ()
        if node != CLIENT:
            duration_s = self._seconds_elsewhere(flight, work, nth, at_s)
        else:
            device = self._device_for(flight)
            duration_s = compute_duration_s(work, device, flight, at_s, nth)
            strikes = None if self._faults is None else self._faults.freezes_of(flight.client)
            if strikes is not None:
                duration_s, within = strikes.stretch(at_s, duration_s)
                frozen = tuple(within)
        name, quantity = work.name or step.phase, work.quantity
        what = step.phase, name, duration_s, at_s, quantity
        return make(Leg, (*what, 0.0, 0, {}, frozen, 0.0, 0.0, node))

    def _pack(self, flight: Flight, running: Running) -> None:
        """Compress an upload that leaves when the first of its chunks is there."""
        course, at_s = flight.course, running.started_at_s
        packing, whole_s = [], 0.0
        for nth, step in enumerate(course.packing):
            leg = self._leg_of(flight, step, at_s + whole_s, nth)
            packing.append(leg)
            whole_s += leg.duration_s
        running.packing, running.ahead_s = packing, whole_s / course.chunks
        self._set_timer(flight, running, self.env.timeout(running.ahead_s))

    def _seconds_elsewhere(self, flight: Flight, work: Work, nth: int, now_s: float) -> float:
        """Seconds of a unit of the server's work within a participation; none where its device is
        not modelled, as at merges."""
        device = self._server_device
        if device is None or not device.charges(work.quantity, work.model):
            return 0.0
        key = f"{flight.task.key}/{flight.client}"
        nominal_s = work.times * device.work_s(work)
        return device.duration_s(nominal_s, now_s, round=key, phase=work.quantity, nth=nth)

    def _queue(self, flight: Flight, running: Running) -> None:
        """A unit of the server's is ready; which one begins is seen when all else has happened at
        this instant."""
        place = running.started_at_s, flight.client, running.order
        heapq.heappush(self._turns, (*place, flight, running))
        self._look_later()

    def _look_later(self) -> None:
        if self._served is None and self._turns and not self._looks:
            self._looks = True
            end_of_instant(self.env, self._look)

    def _look(self, _: simpy.Event) -> None:
        """Begin the unit that has been ready for longest."""
        self._looks = False
        now_s = self.env.now
        while self._turns and self._served is None:
            flight, running = heapq.heappop(self._turns)[-2:]
            if running is not flight.running:
                continue  # given up
            step = flight.steps[flight.done]
            assert isinstance(step, Do)
            if now_s > running.started_at_s:
                self._note_turn(flight, step)
                running.started_at_s = now_s
            self._served = running
            self._work(flight, running, step)

    def _serve_next(self) -> None:
        self._served = None
        self._look_later()

    def _fails(self, flight: Flight) -> bool:
        """Whether the step that is over has failed; local work is one phase, however many units it
        has."""
        number = flight.done
        if flight.lost or number not in flight.course.draws:
            return False
        assert self.presence is not None
        phase = flight.steps[number].phase
        if phase not in ("download", "upload"):
            phase = "training"
        return draw_failure(self.presence, self._streams, flight, phase, number + 1)

    # ---- barriers --------------------------------------------------------------------------------

    def _announce(self, flight: Flight) -> None:
        """Count a participation at the barriers that are ahead of it."""
        for name in flight.gates_ahead():
            gate = flight.task.round, name
            self._ahead[gate] = self._ahead.get(gate, 0) + 1

    def _come(self, flight: Flight, step: Wait) -> None:
        gate = flight.task.round, step.gate
        if self._closes_s.get(gate, math.inf) <= self.env.now:
            flight.lose("failed")  # it opened without this one
            self._pass_by(gate)
            self._finish(flight)
            return
        if step.deadline_s < math.inf and gate not in self._closes_s:
            self._close_at(gate, self.env.now + step.deadline_s)
        self._waiting.setdefault(gate, []).append(flight)
        self._pass_by(gate)

    def _close_at(self, gate: _Gate, at_s: float) -> None:
        self._closes_s[gate] = at_s
        at(self.env, at_s, call=lambda _: self._open_later(gate))

    def _leave_gates(self, flight: Flight) -> None:
        for name in flight.gates_ahead():
            self._pass_by((flight.task.round, name))

    def _pass_by(self, gate: _Gate) -> None:
        """One less is ahead of a barrier; it opens when all else has happened at this instant."""
        self._ahead[gate] -= 1
        if not self._ahead[gate]:
            self._open_later(gate)

    def _open_later(self, gate: _Gate) -> None:
        end_of_instant(self.env, partial(self._open, gate))

    def _open(self, gate: _Gate, _: simpy.Event) -> None:
        ahead = self._ahead.get(gate)
        if ahead and self._closes_s.get(gate, math.inf) > self.env.now:
            return  # somebody has yet to come
        if not ahead:
            self._ahead.pop(gate, None)
            self._closes_s.pop(gate, None)
        come = sorted(self._waiting.pop(gate, ()), key=lambda flight: flight.client)
        for flight in come:
            assert flight.running is not None
            self._note_leg(flight, BARRIER, gate[1], self.env.now - flight.running.started_at_s)
            self._finish(flight)

    # ---- messages --------------------------------------------------------------------------------

    def _transmit(self, flight: Flight, running: Running, step: Send) -> None:
        """Start a message on its way, once more or for the first time."""
        down = step.phase == "download"
        if step.size_bytes is not None:
            size_bytes = step.size_bytes
        elif down:
            size_bytes = flight.task.downlink_bytes
        else:
            size_bytes = self._asking.size_of(flight)
        weight = 1.0
        if self._messages is not None:
            # copies that leave at once are equal flows over one path: one of their weight and bytes
            weight = float(self._fate(flight, running, step).copies)
            size_bytes *= weight
        pace = None
        if running.packing:
            whole_s = sum(leg.duration_s for leg in running.packing)
            pace = Pace(flight.course.chunks, whole_s - running.ahead_s)
        running.transfer = transfer = self.network.send(
            flight.client,
            size_bytes,
            "down" if down else "up",
            weight=weight,
            pace=pace,
        )
        transfer.callbacks.append(partial(self._arrive, flight, running))

    def _arrive(self, flight: Flight, running: Running, transfer: simpy.Event) -> None:
        """The last byte of a transmission is there."""
        assert isinstance(transfer, Transfer)
        running.transfer, spent_s = None, transfer.value
        step = flight.course.steps[flight.done]
        assert isinstance(step, Send)
        phase = name = step.phase
        copies, lost, hidden_s, held_s = 1, False, 0.0, 0.0
        if self._messages is not None:
            copies, lost = self._fate(flight, running, step)
            name = "lost" if lost else name if copies == 1 else "doubled"
        if running.packing:
            hidden_s = min(_note_packing(flight, running, math.inf), spent_s)
            held_s = transfer.held_s
        moved = transfer.size_bytes, copies, transfer.limited_s
        when = spent_s, running.started_at_s
        leg = make(Leg, (phase, name, *when, "", *moved, (), hidden_s, held_s, CLIENT))
        flight.legs.append(leg)
        if not lost:
            self._finish(flight)
            return
        assert self._messages is not None
        running.tries += 1
        running.started_at_s = now_s = self.env.now
        self._set_timer(flight, running, at(self.env, now_s + self._messages.timeout_s))

    def _fate(self, flight: Flight, running: Running, step: Send) -> Any:
        assert self._faults is not None
        message = step.phase if step.size_bytes is None else f"{step.phase} {flight.done}"
        return self._faults.fate(flight.client, flight.task.key, message, running.tries)

    def _give_up(self, flight: Flight) -> None:
        """The step under way ends before its time: note what it spent and moved until now."""
        running = flight.running
        if running is None:
            return
        step, spent_s = flight.steps[flight.done], self.env.now - running.started_at_s
        transfer, packing = running.transfer, running.packing
        hidden_s = _note_packing(flight, running, self.env.now)
        cancel(self.env, running.timer)
        if isinstance(step, Wait):
            gate = flight.task.round, step.gate
            if flight in self._waiting.get(gate, ()):
                self._waiting[gate].remove(flight)
            self._note_leg(flight, BARRIER, step.gate, spent_s)
        elif isinstance(step, Do):
            if running.work is None:
                self._note_turn(flight, step)
            else:
                flight.legs.append(running.work.cut(spent_s))
            if running is self._served:
                self._serve_next()
        elif transfer is not None:
            transfer.callbacks.clear()
            # not the flow's weight: in a cell that is its client's there, times the copies
            copies = 1 if self._messages is None else self._fate(flight, running, step).copies
            name, moved_bytes = step.phase if copies == 1 else "doubled", transfer.cancel()
            self._note_leg(flight, step.phase, name, spent_s, moved_bytes, copies)
            if packing:
                held_s = transfer.held_s
                flight.legs[-1] = flight.legs[-1]._replace(hidden_s=hidden_s, held_s=held_s)
        elif not packing:
            self._note_pause(flight, spent_s)
        flight.running = None

    def _note_pause(self, flight: Flight, spent_s: float) -> None:
        self._note_leg(flight, flight.steps[flight.done].phase, "timeout", spent_s)

    def _note_turn(self, flight: Flight, step: Do) -> None:
        """Note that it waited for the server's processor until now."""
        assert flight.running is not None
        since_s = flight.running.started_at_s
        leg = Leg(BARRIER, "turn", self.env.now - since_s, since_s, node=step.node)
        flight.legs.append(leg)

    @staticmethod
    def _note_leg(
        flight: Flight,
        phase: str,
        name: str,
        spent_s: float,
        moved_bytes: float = 0.0,
        copies: int = 0,
    ) -> None:
        """Note what a step spent that is no work and no whole transmission."""
        assert flight.running is not None
        since_s = flight.running.started_at_s
        leg = Leg(phase, name, spent_s, since_s, "", moved_bytes, copies)
        flight.legs.append(leg)


def _note_packing(flight: Flight, running: Running, until_s: float) -> float:
    """Note the compression of an upload in chunks as far as it came by then; the seconds of it in
    which the upload was under way."""
    spent_s = 0.0
    for leg in running.packing:
        if leg.started_at_s < until_s:
            whole = leg.started_at_s + leg.duration_s <= until_s
            flight.legs.append(leg if whole else leg.cut(until_s - leg.started_at_s))
            spent_s += flight.legs[-1].duration_s
    running.packing = ()
    return max(spent_s - running.ahead_s, 0.0)


def compute_duration_s(
    work: Work, device: Device, flight: Flight, start_at_s: float, nth: int
) -> float:
    """Seconds of one unit of a client's work that starts now. Its noise is drawn by its quantity,
    and by how many of that quantity stand before it (`nth`)."""
    try:
        nominal_s = device.stretch_s(work)
    except InputError:
        if work not in flight.task.unpacking:
            raise
        return 0.0  # a warning of the run says so
    duration_s = device.duration_s(
        nominal_s,
        start_at_s,
        round=flight.task.key,
        phase=work.quantity,
        nth=nth,
        steps=work.times,
    )
    # SimPy accepts a NaN delay without a word and never gets past it
    if not 0 <= duration_s < math.inf:
        raise RunFailed(
            f"client {flight.client}, round {flight.task.round}: the device model gave "
            f"{duration_s!r} seconds for {work.kind or work.quantity}"
        )
    return duration_s
