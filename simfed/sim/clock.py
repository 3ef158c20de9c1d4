"""The simulated world: clients on SimPy's clock, one network, simulated devices.

Begin to read here. A participation is one SimPy process, `ClientProcess.play`, around
what its method tells, which most leave as `simfed.ground.method.participate`: receive,
work, send. Each verb yields what it waits for: a transfer, a timeout, a turn, a
barrier. Whoever leaves, fails or is cut off is interrupted there. A verb notes its
fact, a `Leg`, in one place: so far as it came, it happened. What all clients share is
the `Clock`.

What is modelled: the time of each step, one after another, and what interrupts it:
failures at the end of a phase, clients that go away, devices that stand still, messages
that are lost or doubled. What is ignored: reading of data, and the memory of the
device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import simpy
from simpy import Interrupt
from simpy.events import ProcessGenerator

from simfed.device import Device
from simfed.fleet.availability import Availability
from simfed.fleet.contract import Outcome
from simfed.fleet.faults import Fate, Faults
from simfed.ground.errors import InputError, RunFailed
from simfed.ground.method import CLIENT, Node, Plan, Story, Who, Work, participate
from simfed.ground.records import make
from simfed.ground.seeding import Key, Streams
from simfed.ground.story import OwnStory
from simfed.net import LinkUses, Network
from simfed.net.driver import Pace, Transfer
from simfed.net.instants import Environment, at, cancel, end_of_instant
from simfed.record.schema import BARRIER
from simfed.sim.flight import (
    NOWHERE,
    Course,
    CourseCache,
    Flight,
    Leg,
    WorkUnit,
)
from simfed.sim.rows import compute_powered_s
from simfed.sim.server_work import PlayedWork, play_work
from simfed.sim.waiting import Gate, ProcessorQueue
from simfed.sim.world import CUT, InstantEvents, Requester, draw_failure

__all__ = ["ClientProcess", "Clock", "MakeNetwork"]

MakeNetwork = Callable[[simpy.Environment, LinkUses], Network]
"""`(env, on_use)` → the network."""

_ONCE = Fate(1, False)


class ClientProcess:
    """A client in flight, as its story has it (`simfed.ground.method.Client`).

    `Clock.carry` makes one for each participation and SimPy runs its `play`. The verbs
    `receive`, `work`, `send`, `wait` are what a method's story is told in; each gives
    the generator that carries it out, and notes `Leg`s in the flight.
    """

    __slots__ = (
        "_clock",
        "_counts",
        "_course",
        "_gates",
        "_steps",
        "_worked",
        "flight",
    )

    def __init__(
        self,
        clock: Clock,
        flight: Flight,
        course: Course,
        gates: dict[str, Gate] | None = None,
    ) -> None:
        """Prepare a participation.

        Args:
            clock: the world that carries it.
            flight: its record, to which legs are added.
            course: its work, laid out beforehand.
            gates: of a method's own story, the barriers ahead of it, which count it;
                None: the usual story, whose units the course knows.
        """
        self._clock, self.flight = clock, flight
        self._course, self._gates = course, gates
        self._steps = self._worked = 0
        """Steps begun, and the last that was local work: keys of draws."""
        self._counts: dict[tuple[str, str], int] | None = None if gates is None else {}
        """Units by where and what, where the course does not know them beforehand."""

    def play(self, tell: Callable[[ClientProcess], Story]) -> ProcessGenerator:
        """Play a participation from its start to its end.

        `tell` is its story. An interrupt, wherever it stands, ends it as `dropped`,
        `failed` or cut off.
        """
        flight = self.flight
        try:
            yield from tell(self)
        except Interrupt as interrupt:
            cause = str(interrupt.cause)
            flight.lose("dropped" if cause == CUT else cause)
            flight.away = cause == "dropped"
        self._end()

    # ---- verbs -----------------------------------------------------------------------

    def receive(self, size_bytes: float | None = None) -> ProcessGenerator:
        """Receive, handle and unpack what travels down, or a message beside it.

        Args:
            size_bytes: of the message; None: all that the task sends down, where
                nothing travels without taking time.
        """
        if size_bytes is None and self.flight.task.downlink_bytes <= 0:
            return self._unpack()
        return self._transmit("download", size_bytes)

    def work(self, *units: Work, at: Node = CLIENT) -> ProcessGenerator:
        """Work the plan's units, or these, one after another, here or on the server.

        Args:
            units: in order; none: those of the plan.
            at: where; on the server each unit waits for its processor.
        """
        if at != CLIENT:
            return self._be_served(units, at)
        own = [WorkUnit(work, work.kind or work.quantity, 0) for work in units]
        return self._spend(own or self._course.work, self._plan_work)

    def send(self, size_bytes: float | None = None) -> ProcessGenerator:
        """Compress and send what travels up, or a message beside it.

        Args:
            size_bytes: of the message; None: the upload, which is compressed first.
        """
        return self._transmit("upload", size_bytes)

    def wait(self, barrier: str, deadline_s: float = math.inf) -> ProcessGenerator:
        """Wait for everybody at a barrier; one that opened without it has failed.

        Args:
            barrier: its name, once per story and round.
            deadline_s: seconds from the first arrival to its opening; inf: until all
                are there, or lost.
        """
        assert self._gates is not None
        self._steps += 1
        opening = self._gates.pop(barrier).come(self.flight.client, deadline_s)
        env, begun_s = self._clock.env, self._clock.env.now
        try:
            yield opening
        finally:
            self.flight.legs.append(Leg(BARRIER, barrier, env.now - begun_s, begun_s))

    # ---- what they are made of -------------------------------------------------------

    def _spend(
        self, units: Iterable[Any], plan: Callable[[Any], Leg]
    ) -> ProcessGenerator:
        """Let time pass, for units of work one after another, or for a pause.

        Each becomes a leg, cut short where the client is interrupted in it.

        Args:
            units: in order.
            plan: gives the leg of one that begins now, as long as it takes undisturbed.
        """
        env, legs = self._clock.env, self.flight.legs
        for unit in units:
            leg = plan(unit)
            timer = env.timeout(leg.duration_s)
            try:
                yield timer
            finally:
                if not timer.processed:
                    cancel(env, timer)
                    leg = leg.cut(env.now - leg.started_at_s)
                legs.append(leg)

    def _be_served(self, units: Iterable[Work], at: Node) -> ProcessGenerator:
        """Let the server work for it; its processor does one unit at a time."""
        clock, flight = self._clock, self.flight
        env, turns = clock.env, clock.turns
        for work in units:
            since_s = env.now
            try:
                yield turns.ask(flight.client)
            finally:
                if env.now > since_s:
                    waited_s = env.now - since_s
                    flight.legs.append(Leg(BARRIER, "turn", waited_s, since_s, node=at))
            try:
                yield from self._spend((work,), partial(self._plan_served, at))
            finally:
                turns.end()

    def _pack(self) -> Generator[Any, Any, UploadChunks | None]:
        """Compress the upload, or, of one in chunks, the first.

        Local work that fails has failed by then. Returns what is left to compress of an
        upload in chunks, which leaves meanwhile; else None.
        """
        clock, course = self._clock, self._course
        if course.chunks == 1:
            yield from self._spend(course.packing, self._plan_work)
        self._draw_failure("training", self._worked)
        if course.chunks == 1:
            return None
        self.flight.chain = False
        packing, whole_s = UploadChunks(self.flight, []), 0.0
        for unit in course.packing:
            packing.legs.append(self.make_leg(unit, clock.env.now + whole_s))
            whole_s += packing.legs[-1].duration_s
        packing.ahead_s = whole_s / course.chunks
        packing.pace = Pace(course.chunks, whole_s - packing.ahead_s)
        timer = clock.env.timeout(packing.ahead_s)
        try:
            yield timer
        finally:
            if not timer.processed:
                cancel(clock.env, timer)
                packing.note(clock.env.now)
        return packing

    def _unpack(self) -> ProcessGenerator:
        """Handle and unpack what came down."""
        self.flight.received = True
        return self._spend(self._course.arrival, self._plan_work)

    def _transmit(self, phase: str, size_bytes: float | None) -> ProcessGenerator:
        """Send a message, again as often as it is lost on its way.

        Of its few names each takes eight bytes of every client in flight.

        Args:
            phase: `download` or `upload`.
            size_bytes: of a message beside them; None: what travels down, or the
            upload.

        Raises: `Interrupt` where all tries are lost, or the phase fails.
        """
        clock, flight, packing = self._clock, self.flight, None
        message = phase if size_bytes is None else f"{phase} {self._steps}"
        if size_bytes is None and phase == "upload":
            packing = yield from self._pack()
            if not flight.task.plan.up:
                return
            size_bytes = clock.asking.size_of(flight)
        elif size_bytes is None:
            size_bytes = flight.task.downlink_bytes
        self._steps += 1
        for nth in range(1 if clock.messages is None else clock.messages.tries):
            begun_s, fate = clock.env.now, _ONCE
            if clock.messages is not None:
                assert clock.faults is not None
                fate = clock.faults.fate(flight.client, flight.task.key, message, nth)
            key = flight.task.key, message, nth
            # copies that leave at once are equal flows over one path: one of their
            # weight and bytes
            transfer = clock.network.send(
                flight.client,
                size_bytes * fate.copies,
                "down" if phase == "download" else "up",
                weight=float(fate.copies),
                pace=None if packing is None else packing.pace,
                key=key,
            )
            try:
                yield transfer
            except Interrupt:
                self._note_sent(phase, begun_s, fate, transfer, packing, key)
                raise
            self._note_sent(phase, begun_s, fate, transfer, packing, key)
            packing = None
            if not fate.lost:
                self._draw_failure(phase, self._steps)
                if message == "download":
                    yield from self._unpack()
                return
            yield from self._spend((phase,), self._plan_pause)
        raise Interrupt("failed")

    def _note_sent(
        self,
        phase: str,
        begun_s: float,
        fate: Fate,
        transfer: Transfer,
        packing: UploadChunks | None,
        key: tuple[Key, ...],
    ) -> None:
        """Note a message as far as it came; one that is on its way is given up.

        Args:
            phase: `download` or `upload`.
            begun_s: the instant at which it left.
            fate: its copies, and whether all are lost.
            transfer: over or not.
            packing: the compression beside an upload in chunks; None: it was over.
            key: the message's name among its client's.
        """
        came = transfer.triggered
        name = phase if fate.copies == 1 else "doubled"
        leg = Leg(
            phase=phase,
            name="lost" if came and fate.lost else name,
            duration_s=transfer.flow.spent_s if came else transfer.env.now - begun_s,
            started_at_s=begun_s,
            moved_bytes=transfer.size_bytes if came else transfer.cancel(),
            copies=fate.copies,
            limited_s=tuple(transfer.flow.dwelt_s.items()) if came else NOWHERE,
            key=() if self._clock.network.topology.delays is None else key,
        )
        if packing is not None:
            hidden_s = packing.note(math.inf if came else transfer.env.now)
            hidden_s = min(hidden_s, leg.duration_s) if came else hidden_s
            leg = leg._replace(hidden_s=hidden_s, held_s=transfer.held_s)
        self.flight.legs.append(leg)

    def _draw_failure(self, phase: str, number: int) -> None:
        """Raise an `Interrupt` where a phase that is over fails.

        `number`: of its last step, 0: there was none. Local work is one phase, however
        many units it has.
        """
        clock = self._clock
        if clock.presence is None or not number:
            return
        if draw_failure(clock.presence, clock.streams, self.flight, phase, number):
            raise Interrupt("failed")

    def _end(self) -> None:
        """Sum the participation up and hand it to the server.

        Barriers still ahead no longer count it, and its presence is told of its work.
        """
        clock, flight = self._clock, self.flight
        flight.process = None
        flight.end(clock.env.now)
        departure, flight.departure = flight.departure, None
        cancel(clock.env, departure)
        if self._gates:
            for gate in self._gates.values():
                gate.pass_by()
        there = clock.presence
        # who lands may be chosen again right now
        if there is not None and there.follows_work:
            energy_j = clock.energy_j(flight.client, partial(compute_powered_s, flight))
            there.worked(flight.client, flight.ended_at_s, flight.elapsed_s, energy_j)
        clock.asking.land(flight)

    # ---- how long things take --------------------------------------------------------

    def _plan_work(self, unit: WorkUnit) -> Leg:
        """Return a unit of the client's work that begins now."""
        self._steps = self._worked = self._steps + 1
        return self.make_leg(unit, self._clock.env.now)

    def make_leg(self, unit: WorkUnit, at_s: float) -> Leg:
        """Return a unit of work that begins then, with the freezes of its device.

        Args:
            unit: of the course, or of the method's own story.
            at_s: its beginning.
        """
        clock, flight, (work, phase, nth) = self._clock, self.flight, unit
        if self._counts is not None:
            nth = self._count(work, CLIENT)
        device = clock.find_device_of(flight)
        duration_s = compute_duration_s(work, device, flight, at_s, nth)
        frozen: tuple[tuple[float, float], ...] = ()
        strikes = (
            None if clock.faults is None else clock.faults.find_freezes(flight.client)
        )
        if strikes is not None:
            duration_s, within = strikes.stretch(at_s, duration_s)
            frozen = tuple(within)
        what = phase, work.name or phase, duration_s, at_s, work.quantity
        return make(Leg, (*what, 0.0, 0, NOWHERE, frozen, 0.0, 0.0, CLIENT, ()))

    def _plan_served(self, at: Node, work: Work) -> Leg:
        """Return a unit of the server's work for this client that begins now.

        It takes 0 s where the server's device is not modelled, as at merges.
        """
        self._steps += 1
        now_s, kind = self._clock.env.now, work.kind or work.quantity
        nth, device, duration_s = self._count(work, at), self._clock.server_device, 0.0
        if device is not None and device.charges(work.quantity, work.model):
            duration_s = device.duration_s(
                work.times * device.work_s(work),
                now_s,
                round=f"{self.flight.task.key}/{self.flight.client}",
                phase=work.quantity,
                nth=nth,
            )
        return Leg(kind, work.name or kind, duration_s, now_s, work.quantity, node=at)

    def _plan_pause(self, phase: str) -> Leg:
        """Return the pause before a lost message is sent again."""
        assert self._clock.messages is not None
        return Leg(
            phase, "timeout", self._clock.messages.timeout_s, self._clock.env.now
        )

    def _count(self, work: Work, at: Node) -> int:
        """Return how many units of this quantity the client has had here before."""
        assert self._counts is not None
        key = at, work.quantity
        nth = self._counts.get(key, 0)
        self._counts[key] = nth + 1
        return nth

    # ---- what a story may ask --------------------------------------------------------

    @property
    def who(self) -> Who:
        """The plain facts of the client."""
        return self.flight.task.who

    @property
    def round(self) -> int:
        """The round of the participation."""
        return self.flight.task.round

    @property
    def plan(self) -> Plan:
        """The method's plan of the participation."""
        return self.flight.task.plan


@dataclass(slots=True, eq=False)
class UploadChunks:
    """The compression of an upload whose chunks leave while the next is made.

    Its legs are planned as one; they are noted when the upload is, as far as it came.
    """

    flight: Flight
    legs: list[Leg]
    ahead_s: float = 0.0
    """The seconds of it before the upload begins."""
    pace: Pace | None = None

    def note(self, until_s: float) -> float:
        """Note it as far as it came by then.

        Returns the seconds of it in which the upload was under way.
        """
        spent_s = 0.0
        for leg in self.legs:
            if leg.started_at_s < until_s:
                whole = leg.started_at_s + leg.duration_s <= until_s
                self.flight.legs.append(
                    leg if whole else leg.cut(until_s - leg.started_at_s)
                )
                spent_s += self.flight.legs[-1].duration_s
        return max(spent_s - self.ahead_s, 0.0)


class Clock:
    """A `Carrier` of simulated devices over a simulated network.

    It holds what clients in flight share: SimPy's environment, the network, devices
    (made when a client first takes part), barriers, and the server's processor.
    """

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
        story: OwnStory | None = None,
    ) -> None:
        """Make a world.

        Args:
            make_network: makes the network on the clock.
            make_device: called once per client that takes part.
            streams: keyed generators.
            server_device: None: the server's work takes no simulated time.
            presence: None: everybody is always there, and nothing fails.
            faults: what freezes devices and becomes of messages (links stall in
                `make_network`'s).
            device_of: what works in a flight's device's place, asked for each unit.
            story: what the method tells in place of receive, work, send.
        """
        self.presence = presence
        self.uses = LinkUses()
        self.make_network = make_network
        self._make_device = make_device
        self._devices: dict[int, Device] = {}
        self.server_device = server_device
        self._device_of = device_of
        self.streams = streams
        self.faults = faults
        self.messages = None if faults is None else faults.messages
        self._own = story
        self.tell: Callable[[ClientProcess], Story] = (
            participate if story is None else story.tell
        )
        """The story of each client."""
        self._courses = CourseCache()
        self._gates = WeakValueDictionary[tuple[int, str], Gate]()
        """Barriers by round and name, while somebody is to come to one or waits."""

    # ---- from outside ----------------------------------------------------------------

    def connect(self, asking: Requester) -> None:
        """Take the server that asks for participations."""
        self.asking = asking

    def set_out(self) -> None:
        """Begin at instant 0."""
        self.env = Environment()
        self.network = self.make_network(self.env, self.uses)
        self._returns, self.turns = InstantEvents(self.env), ProcessorQueue(self.env)

    def join(self, other: Clock) -> None:
        """Stand on another's clock and send over its network, in place of `set_out`."""
        self.env, self.network, self.uses = other.env, other.network, other.uses
        self._returns, self.turns = InstantEvents(self.env), ProcessorQueue(self.env)

    def gather(self, stop_requested: Callable[[], bool]) -> None:
        """Do nothing: rounds can be played at once."""

    def device(self, client: int) -> Device:
        """Return the processor of this client, made when it is first asked for."""
        device = self._devices.get(client)
        if device is None:
            device = self._devices[client] = self._make_device(client)
        return device

    def find_device_of(self, flight: Flight) -> Device:
        """Return a flight's device: its client's, or what `device_of` says."""
        if self._device_of is not None:
            return self._device_of(flight)
        return self._devices.get(flight.client) or self.device(flight.client)

    def carry(self, flight: Flight) -> None:
        """Carry out a participation from now on.

        What arrives at the very instant at which its client leaves has arrived.

        Args:
            flight: not begun; gets its process, and the event of its client's leaving.
        """
        handled = self.find_device_of(flight).charges("handling", flight.task.model)
        gates = None if self._own is None else self._announce(self._own, flight)
        client = ClientProcess(self, flight, self._courses.of(flight, handled), gates)
        flight.process = self.env.process(client.play(self.tell))
        if self.presence is not None:
            leaves_at_s = self.presence.change_after(flight.client, self.env.now)
            if leaves_at_s < math.inf:
                flight.departure = at(
                    self.env, leaves_at_s, call=partial(self._depart, flight)
                )

    def cut(self, flight: Flight, cause: str) -> None:
        """Cut a participation off: its client is interrupted where it stands.

        Args:
            flight: one that is over stays as it is.
            cause: `CUT`, `dropped` or `failed`.
        """
        process, flight.process = flight.process, None
        if process is not None:
            process.interrupt(cause)

    def await_anybody(self, round: int, *, patient: bool) -> simpy.Event:
        """Return the event of a client's coming back.

        Args:
            round: named in the error.
            patient: True: an event that never comes will do, as others are under way.

        Raises: `RunFailed` where nobody ever comes, unless `patient`.
        """
        now_s = self.env.now
        back_at_s = (
            math.inf if self.presence is None else self.presence.arrival_after(now_s)
        )
        if back_at_s < math.inf:
            return self._returns.at(back_at_s)
        if patient:
            return self.env.event()
        raise RunFailed(
            f"round {round}: from {now_s:g} s on no client is ever available again"
        )

    def merge(
        self,
        round: int,
        arrived: Sequence[Flight],
        work: Callable[[], Sequence[Work]],
        merge: Callable[[], Outcome],
    ) -> tuple[list[PlayedWork], Callable[[], Outcome]]:
        """Return the server's work on its device at a merge, and `merge` itself.

        Args:
            round: key of the device's noise.
            arrived: the participations that are merged.
            work: what the method says the server works.
            merge: makes the models' change; the simulated world does it after the work.
        """
        if self.server_device is None or not arrived:
            return [], merge
        return play_work(
            self.server_device, arrived, work(), self.env.now, round
        ), merge

    def energy_j(
        self, client: int, phases_s: Callable[[], Mapping[str, float]]
    ) -> float | None:
        """Return a participation's joules; None where its device knows no power."""
        device = self.device(client)
        return device.energy_j(phases_s()) if device.counts_energy else None

    def check_stuck(self) -> None:
        """Raise `RunFailed` where clients wait at barriers and no event is left."""
        waiting = sorted(
            f"client {client} stands at wait({gate.name!r})"
            for gate in self._gates.values()
            for client in gate.waiting
        )
        if self._own is not None and waiting:
            more = [f"and {len(waiting) - 5:,} more"] if len(waiting) > 5 else []
            who = ", ".join([*waiting[:5], *more])
            raise RunFailed(
                f"the story of {self._own.method} never ends: {who}, "
                "and nothing is on the clock"
            )

    # ---- inside ----------------------------------------------------------------------

    def _announce(self, story: OwnStory, flight: Flight) -> dict[str, Gate]:
        """Count a participation at the barriers ahead of it, and return them by name.

        They are those of a rehearsal of its story; the first one makes a barrier.
        """
        task, gates = flight.task, dict[str, Gate]()
        flight.chain = False
        for name in story.rehearse(task.who, task.round, task.plan).barriers:
            gate = self._gates.get((task.round, name))
            if gate is None:
                gate = self._gates[task.round, name] = Gate(self.env, name)
            gate.ahead += 1
            gates[name] = gate
        return gates

    def _depart(self, flight: Flight, _: simpy.Event) -> None:
        """Drop a participation at the end of this instant, as its client leaves."""
        flight.departure = end_of_instant(
            self.env, lambda _: self.cut(flight, "dropped")
        )


def compute_duration_s(
    work: Work, device: Device, flight: Flight, start_at_s: float, nth: int
) -> float:
    """Return the seconds of one unit of a client's work that begins now.

    Its noise is drawn by its quantity, and by how many of that quantity stand before
    it. Unpacking of which the device knows nothing takes 0 s; a warning of the run says
    so.

    Args:
        work: the unit.
        device: what works it.
        flight: whose participation it is part of.
        start_at_s: its beginning.
        nth: units of its quantity before it.

    Raises:
        InputError: work whose time the device does not know.
        RunFailed: a time that is below 0, infinite or no number.
    """
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
