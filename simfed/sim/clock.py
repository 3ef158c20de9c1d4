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
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import simpy

from simfed.device import Device
from simfed.fleet.contract import Outcome
from simfed.fleet.faults import Faults
from simfed.ground.errors import InputError, RunFailed
from simfed.ground.method import Work
from simfed.ground.plain import Plain
from simfed.ground.records import make
from simfed.ground.seeding import Streams
from simfed.ground.steps import CLIENT, SERVER, Do, Node, Send, Step, Wait
from simfed.net import LinkUses, Network, Transfer
from simfed.net.driver import Behind
from simfed.net.instants import Environment, at, cancel, end_of_instant
from simfed.net.topology import Direction
from simfed.record.schema import BARRIER
from simfed.sim.flight import ENDED, Flight, LaidSteps, Leg, Running
from simfed.sim.rows import compute_powered_s
from simfed.sim.server_work import PlayedWork, play_work
from simfed.sim.world import CUT, Asking, Attendance, InstantEvents, KnowsWork, draw_failure

__all__ = ["Clock", "MakeNetwork"]

MakeNetwork = Callable[[simpy.Environment, LinkUses], Network]
"""`(env, on_use)` → the network."""

_ENDS = (CLIENT, SERVER)

_Gate = tuple[int, str]
"""(round, name) of a barrier."""


@dataclass(slots=True, eq=False)
class WorkQueue:
    """Of a node where steps fork, or that many share: one unit at a time."""

    node: int | str
    ready: list[tuple[float, int, int, int, Flight, Running]] = field(default_factory=list)
    """A heap by (ready since, client, step, order)."""
    busy: Running | None = None
    last: tuple[int, int] | None = None
    """Client and leg of the unit that ended last."""
    looks: bool = False
    """It will look for the next unit at the end of this instant."""


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
        presence: Attendance | None = None,
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
        self.make_network = make_network
        self._make_device = make_device
        self._devices: dict[int, Device] = {}
        self._server_device = server_device
        self._device_of = device_of
        self._streams = streams
        self._faults = faults
        self._at_wait: Callable[[Flight], None] | None = None
        self._companions: list[Clock] | None = []
        """Those that joined it; None: it joined another, which keeps the network's state."""
        self._messages = None if faults is None else faults.messages
        self._numbers = itertools.count()
        """Counts the beginnings of steps."""
        self._under_way = 0
        self._laid: LaidSteps = {}
        self._ahead: dict[_Gate, int] = {}
        """Barrier → how many of those under way have yet to come to it."""
        self._closes_s: dict[_Gate, float] = {}
        """Barrier with a deadline that somebody has come to → when it opens for those who have."""
        self._processors: dict[int | str, WorkQueue] = {}
        """Where steps fork: client or node → its processor, while it has work."""
        self._waiting: dict[_Gate, list[tuple[Flight, Running]]] = {}
        """Those who have come to a barrier that is not open."""
        self._transfers: dict[tuple[int, ...], Transfer] = {}
        """By (client, step): those that a checkpoint left in the middle."""

    # ---- from outside ----------------------------------------------------------------------------

    def connect(self, asking: Asking) -> None:
        """See `World`."""
        self._asking = asking

    def set_out(self, now_s: float) -> None:
        """See `World`."""
        self.env = Environment(initial_time=now_s)
        self.network = self.make_network(self.env, self.uses)
        self._returns = InstantEvents(self.env)

    def join(self, other: Clock) -> None:
        """Stand on the same clock as another, and send over the same network, in place of setting
        out."""
        self.env, self.network, self.uses = other.env, other.network, other.uses
        self._returns = InstantEvents(self.env)
        assert other._companions is not None
        other._companions.append(self)
        self._companions = None

    def come_to(self, at_wait: Callable[[Flight], None]) -> None:
        """Call this where a flight comes to a barrier, which then is none: it waits until `go_on`.
        Of edge servers, which make their own merges meanwhile."""
        self._at_wait = at_wait

    def go_on(self, flight: Flight, waited_s: float, name: str) -> None:
        """What it came to a barrier for is done, in so many seconds."""
        (running,) = flight.running
        leg = Leg(BARRIER, name, waited_s, running.started_at_s, step=running.step)
        flight.legs.append(leg)
        self._finish(flight, running)

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
        return self.device(flight.client) if self._device_of is None else self._device_of(flight)

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
        for running in flight.running:
            self._resume_step(flight, running)
        if flight.departs_at_s is not None:
            self._await_departure(flight, flight.departs_at_s)

    def cut(self, flight: Flight, cause: str) -> None:
        """See `World`."""
        flight.lose("dropped" if cause == CUT else cause)
        flight.away = cause == "dropped"
        self._stop(flight)
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

    def state(self) -> tuple[dict[str, Plain], dict[str, np.ndarray]]:
        """See `World`."""
        server = self._server_device
        clocks = () if self._companions is None else (self, *self._companions)
        under_way = any(clock._under_way for clock in clocks)
        facts = {
            "devices": {str(c): s for c, d in self._devices.items() if (s := d.state())},
            "server_device": server.state() if server else {},
            "steps": next(self._numbers),
            "network": self.network.state() if under_way else None,
            "closes_s": [[*gate, at_s] for gate, at_s in self._closes_s.items()],
        }
        return facts, {}

    def restore(self, facts: Mapping[str, Plain], arrays: Mapping[str, np.ndarray]) -> None:
        """See `World`."""
        for client, of_device in facts["devices"].items():
            self.device(int(client)).restore(of_device)
        if self._server_device is not None:
            self._server_device.restore(facts["server_device"])
        self._numbers = itertools.count(facts["steps"] + 1)
        if facts["network"] is not None:
            self.network.restore(facts["network"])
        for round, name, at_s in facts["closes_s"]:
            self._close_at((round, name), at_s)
        self._transfers = {transfer.key: transfer for transfer in self.network.transfers}

    # ---- what comes after what -------------------------------------------------------------------

    def _lay_out(self, flight: Flight) -> None:
        self._under_way += 1
        device = self._device_for(flight)
        flight.lay_steps(device.charges("handling", flight.task.model), self._laid)
        if flight.task.plan.steps and self._at_wait is None:
            self._announce(flight)

    def _begin(self, flight: Flight) -> None:
        if flight.left is None:
            self._begin_next(flight)
            return
        start = flight.client, -1
        for number in [n for n, left in enumerate(flight.left) if not left]:
            self._begin_step(flight, number, start)
        if not flight.steps:
            self._end(flight)

    def _begin_next(self, flight: Flight) -> None:
        """The next step of a chain; after the last one it is over."""
        if flight.done == len(flight.course.steps):
            self._end(flight)
        else:
            self._begin_step(flight, flight.done)

    def _begin_step(
        self, flight: Flight, number: int, because: tuple[int, int] | None = None
    ) -> None:
        """A step is ready: it begins, or queues for its processor or its stream."""
        step = flight.course.steps[number]
        flight.order = order = next(self._numbers)
        running = Running(number, self.env.now, order, because)
        flight.running.append(running)
        if isinstance(step, Do):
            if flight.left is None:
                self._work(flight, running, step)
            else:
                self._queue(self._processor(flight, step), flight, running)
        elif isinstance(step, Wait):
            if self._at_wait is None:
                self._come(flight, running, step)
            else:
                self._at_wait(flight)
        elif step.stream and any(
            _find_stream(flight.steps[other.step]) == step.stream for other in flight.running[:-1]
        ):
            running.queued, running.ready_at_s = True, self.env.now
        else:
            self._transmit(flight, running)

    def _finish(self, flight: Flight, running: Running) -> None:
        """A step under way is over, and with it, it may be, the flight."""
        flight.running.remove(running)
        if self.presence is not None and self._fails(flight, running.step):
            flight.lose("failed")
        left = flight.left
        if flight.lost:
            if left is not None:
                left[running.step] = ENDED
                if isinstance(flight.steps[running.step], Do):
                    self._pass_on(flight, running)
            self._stop(flight)
            self._end(flight)
        elif left is None:
            flight.done += 1
            self._begin_next(flight)
        else:
            self._go_on(flight, running, left)

    def _go_on(self, flight: Flight, running: Running, left: list[int]) -> None:
        """A step is over where steps fork and join."""
        flight.done += 1
        left[running.step] = ENDED
        self._pass_on(flight, running)
        course, because = flight.course, (flight.client, len(flight.legs) - 1)
        assert course.follow is not None
        for number in course.follow[running.step]:
            left[number] -= 1
            if not left[number]:
                self._begin_step(flight, number, because)
        if flight.done == len(course.steps):
            self._end(flight)

    def _stop(self, flight: Flight) -> None:
        while flight.running:
            running = flight.running.pop(0)
            self._give_up(flight, running)

    def _end(self, flight: Flight) -> None:
        flight.end(self.env.now)
        departure, flight.departure = flight.departure, None
        cancel(self.env, departure)
        self._under_way -= 1
        if flight.task.plan.steps and self._at_wait is None:
            self._leave_gates(flight)
        if self._working is not None:  # whoever lands may be chosen again at this instant
            energy_j = self.energy_j(flight.client, partial(compute_powered_s, flight))
            self._working.worked(flight.client, flight.ended_at_s, flight.elapsed_s, energy_j)
        self._asking.land(flight)

    def _resume_step(self, flight: Flight, running: Running) -> None:
        """Go on with a step that a checkpoint left in the middle."""
        step = flight.steps[running.step]
        if isinstance(step, Wait) and self._at_wait is not None:
            pass  # its merges go on by themselves
        elif isinstance(step, Wait):
            gate = flight.task.round, step.gate
            self._waiting.setdefault(gate, []).append((flight, running))
            self._open_later(gate)  # if all had come; `_open` sees whether somebody is ahead
        elif isinstance(step, Do) and flight.left is not None:
            processor = self._processor(flight, step)
            if running.queued:
                self._queue(processor, flight, running)
            else:
                processor.busy = running
                self._set_timer(flight, running, at(self.env, running.ends_at_s or 0.0))
        elif running.queued:
            return  # its stream's transfer will call it
        elif running.ends_at_s is not None:
            self._set_timer(flight, running, at(self.env, running.ends_at_s))
        else:
            transfer = self._transfers.pop((flight.client, running.step))
            running.transfer = transfer
            transfer.tell = partial(self._arrive, flight, running)

    def _set_timer(self, flight: Flight, running: Running, timer: simpy.Event) -> None:
        running.timer = timer
        timer.callbacks.append(partial(self._ring, flight, running))

    def _ring(self, flight: Flight, running: Running, _: simpy.Event) -> None:
        """A unit of work, or a pause, is over."""
        running.timer = None
        if running.work is not None:
            flight.legs.append(running.work)
            self._finish(flight, running)
            return
        messages = self._messages
        assert messages is not None
        self._note_pause(flight, running, messages.timeout_s)
        flight.order = running.order = next(self._numbers)
        if running.tries < messages.tries:
            running.started_at_s, running.ends_at_s = self.env.now, None
            running.ready_at_s = None
            self._transmit(flight, running)
        else:
            flight.lose("failed")
            self._finish(flight, running)

    def _await_departure(self, flight: Flight, leaves_at_s: float) -> None:
        flight.departs_at_s = leaves_at_s
        flight.departure = at(self.env, leaves_at_s, call=partial(self._depart, flight))

    def _depart(self, flight: Flight, _: simpy.Event) -> None:
        flight.departure = end_of_instant(self.env, lambda _: self.cut(flight, "dropped"))

    # ---- work ------------------------------------------------------------------------------------

    def _work(self, flight: Flight, running: Running, step: Do) -> None:
        running.work = leg = self._leg_of(flight, running, step)
        running.ends_at_s = running.started_at_s + leg.duration_s
        self._set_timer(flight, running, self.env.timeout(leg.duration_s))

    def _leg_of(self, flight: Flight, running: Running, step: Do) -> Leg:
        """A unit of work that begins now, with the freezes of its device."""
        work, now_s, nth = step.work, running.started_at_s, flight.course.nths[running.step]
        frozen: tuple[tuple[float, float], ...] = ()
        if step.node != CLIENT:
            duration_s = self._seconds_elsewhere(flight, work, nth, now_s)
        else:
            device = self._device_for(flight)
            duration_s = compute_duration_s(work, device, flight, now_s, nth)
            strikes = None if self._faults is None else self._faults.freezes_of(flight.client)
            if strikes is not None:
                duration_s, within = strikes.stretch(now_s, duration_s)
                frozen = tuple(within)
        name, quantity = work.name or step.phase, work.quantity
        start, place = (now_s, quantity), (running.step, running.because, step.node)
        return make(Leg, (step.phase, name, duration_s, *start, 0.0, 0, {}, frozen, *place))

    def _seconds_elsewhere(self, flight: Flight, work: Work, nth: int, now_s: float) -> float:
        """Seconds of a unit of the server's work within a participation; none where its device is
        not modelled, as at merges."""
        device = self._server_device
        if device is None or not device.charges(work.quantity, work.model):
            return 0.0
        key = f"{flight.task.key}/{flight.client}"
        nominal_s = work.times * device.work_s(work)
        return device.duration_s(nominal_s, now_s, round=key, phase=work.quantity, nth=nth)

    def _processor(self, flight: Flight, step: Do) -> WorkQueue:
        """What does this unit: the client's for its own work, one that all share elsewhere."""
        node = flight.client if step.node == CLIENT else flight.places.get(step.node, step.node)
        processor = self._processors.get(node)
        if processor is None:
            processor = self._processors[node] = WorkQueue(node)
        return processor

    def _queue(self, processor: WorkQueue, flight: Flight, running: Running) -> None:
        """A unit is ready; which one begins is seen when all else has happened at this instant."""
        if running.ready_at_s is None:
            running.ready_at_s = self.env.now
        running.queued = True
        place = running.ready_at_s, flight.client, running.step, running.order
        heapq.heappush(processor.ready, (*place, flight, running))
        self._look_later(processor)

    def _look_later(self, processor: WorkQueue) -> None:
        if processor.busy is None and processor.ready and not processor.looks:
            processor.looks = True
            end_of_instant(self.env, partial(self._look, processor))

    def _look(self, processor: WorkQueue, _: simpy.Event) -> None:
        """Begin the unit that has been ready for longest."""
        processor.looks = False
        while processor.ready and processor.busy is None:
            first = heapq.heappop(processor.ready)
            since_s, flight, running = first[0], first[-2], first[-1]
            if running not in flight.running:
                continue  # given up
            step = flight.steps[running.step]
            assert isinstance(step, Do)
            processor.busy = running
            running.queued, running.started_at_s = False, self.env.now
            if running.started_at_s > since_s and processor.last is not None:
                running.because = processor.last
            self._work(flight, running, step)
        if not processor.ready and processor.busy is None:
            self._processors.pop(processor.node, None)

    def _pass_on(self, flight: Flight, running: Running) -> None:
        """Who waited for a step's processor or stream may go on."""
        step = flight.steps[running.step]
        if isinstance(step, Do):
            processor = self._processor(flight, step)
            if processor.busy is running:
                processor.busy, processor.last = None, (flight.client, len(flight.legs) - 1)
            if processor.ready:
                self._look_later(processor)
            elif processor.busy is None:
                self._processors.pop(processor.node, None)
        elif isinstance(step, Send) and step.stream:
            for other in flight.running:
                if other.queued and _find_stream(flight.steps[other.step]) == step.stream:
                    other.queued, other.started_at_s = False, self.env.now
                    other.because = flight.client, len(flight.legs) - 1
                    self._transmit(flight, other)
                    break

    def _fails(self, flight: Flight, number: int) -> bool:
        """Whether the step that is over has failed; local work is one phase, however many units it
        has, and so is what travels on one stream."""
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

    def _come(self, flight: Flight, running: Running, step: Wait) -> None:
        gate = flight.task.round, step.gate
        if self._closes_s.get(gate, math.inf) <= self.env.now:
            flight.lose("failed")  # it opened without this one
            self._pass_by(gate)
            self._finish(flight, running)
            return
        if step.deadline_s < math.inf and gate not in self._closes_s:
            self._close_at(gate, self.env.now + step.deadline_s)
        self._waiting.setdefault(gate, []).append((flight, running))
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
        come = sorted(self._waiting.pop(gate, ()), key=lambda pair: pair[0].client)
        for flight, running in come:
            step = flight.steps[running.step]
            assert isinstance(step, Wait)
            begun_s = running.started_at_s
            self._note_leg(flight, running, BARRIER, step.gate, self.env.now - begun_s)
            if len(come) < step.least:
                flight.lose("failed")
            self._finish(flight, running)

    # ---- messages --------------------------------------------------------------------------------

    def _transmit(self, flight: Flight, running: Running) -> None:
        """Start a message on its way, once more or for the first time."""
        step = flight.course.steps[running.step]
        assert isinstance(step, Send)
        down = step.target == CLIENT
        if step.size_bytes is not None:
            size_bytes = step.size_bytes
        elif down:
            size_bytes = flight.task.downlink_bytes
        else:
            size_bytes = self._asking.size_of(flight) * step.share
        weight = 1.0
        if self._messages is not None:
            # copies that leave at once are equal flows over one path: one of their weight and bytes
            weight = float(self._fate(flight, running).copies)
            size_bytes *= weight
        key = flight.client, running.step
        behind = None
        if step.stream and step.stream in flight.streams:
            waited_s = 0.0 if running.ready_at_s is None else self.env.now - running.ready_at_s
            behind = Behind(flight.streams[step.stream], waited_s)
        if step.source in _ENDS and step.target in _ENDS and not flight.places:
            way: Direction = "down" if down else "up"
            transfer = self.network.send(
                flight.client, size_bytes, way, weight=weight, key=key, behind=behind
            )
        else:
            ends = self._place(flight, step.source), self._place(flight, step.target)
            transfer = self.network.send_between(
                *ends, size_bytes, weight=weight, key=key, behind=behind
            )
        running.transfer = transfer
        transfer.tell = partial(self._arrive, flight, running)

    def _place(self, flight: Flight, node: Node) -> str:
        """What a node of a plan is called in the network."""
        name = flight.places.get(node, node)
        if name == CLIENT:
            return f"client-{flight.client}"
        return self.network.nodes.node_of(flight.client, name)

    def _arrive(self, flight: Flight, running: Running, spent_s: float) -> None:
        """The last byte of a transmission is there."""
        transfer, running.transfer = running.transfer, None
        assert transfer is not None
        step = flight.course.steps[running.step]
        assert isinstance(step, Send)
        phase = name = step.phase
        copies, lost = 1, False
        if self._messages is not None:
            copies, lost = self._fate(flight, running)
            name = "lost" if lost else name if copies == 1 else "doubled"
        moved_bytes, limited_s = transfer.size_bytes, transfer.limited_s
        if step.stream:
            carried_bytes = flight.streams.get(step.stream, 0.0)
            flight.streams[step.stream] = carried_bytes + moved_bytes
        moved, place = (moved_bytes, copies, limited_s), (running.step, running.because, CLIENT)
        leg = make(Leg, (phase, name, spent_s, running.started_at_s, "", *moved, (), *place))
        flight.legs.append(leg)
        if not lost:
            self._finish(flight, running)
            return
        assert self._messages is not None
        running.tries += 1
        running.started_at_s = now_s = self.env.now
        running.ends_at_s = ends_at_s = now_s + self._messages.timeout_s
        if running.because is not None:
            running.because = flight.client, len(flight.legs) - 1
        flight.order = running.order = next(self._numbers)
        self._set_timer(flight, running, at(self.env, ends_at_s))

    def _note_pause(self, flight: Flight, running: Running, spent_s: float) -> None:
        phase = flight.steps[running.step].phase
        self._note_leg(flight, running, phase, "timeout", spent_s)
        if running.because is not None:
            running.because = flight.client, len(flight.legs) - 1

    def _fate(self, flight: Flight, running: Running) -> Any:
        assert self._faults is not None
        step = flight.steps[running.step]
        message = step.phase
        if isinstance(step, Send) and (step.size_bytes is not None or step.share < 1):
            message = f"{message} {running.step}"
        return self._faults.fate(flight.client, flight.task.key, message, running.tries)

    def _give_up(self, flight: Flight, running: Running) -> None:
        """A step ends before its time: note what it spent and moved until now."""
        step, spent_s = flight.steps[running.step], self.env.now - running.started_at_s
        transfer, phase = running.transfer, step.phase
        if transfer is not None:
            transfer.tell = None
            # not the flow's weight: in a cell that is its client's there, times the copies
            copies = 1 if self._messages is None else self._fate(flight, running).copies
            name, moved_bytes = phase if copies == 1 else "doubled", transfer.cancel()
            self._note_leg(flight, running, phase, name, spent_s, moved_bytes, copies)
            return
        cancel(self.env, running.timer)
        if isinstance(step, Wait):
            gate = flight.task.round, step.gate
            if (flight, running) in self._waiting.get(gate, ()):
                self._waiting[gate].remove((flight, running))
            if flight.left is not None:
                flight.left[running.step] = ENDED
            self._note_leg(flight, running, BARRIER, step.gate, spent_s)
        elif running.queued:
            return
        elif running.work is None:
            self._note_pause(flight, running, spent_s)
        else:
            flight.legs.append(running.work.cut(spent_s))
            self._pass_on(flight, running)

    @staticmethod
    def _note_leg(
        flight: Flight,
        running: Running,
        phase: str,
        name: str,
        spent_s: float,
        moved_bytes: float = 0.0,
        copies: int = 0,
    ) -> None:
        """Note what a step spent that is no work and no whole transmission."""
        leg = Leg(phase, name, spent_s, running.started_at_s, "", moved_bytes, copies)
        flight.legs.append(leg._replace(step=running.step, because=running.because))


def _find_stream(step: Step) -> str:
    return step.stream if isinstance(step, Send) else ""


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
