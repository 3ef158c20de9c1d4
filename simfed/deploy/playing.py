"""Real clients as a world of the server's.

Whom to start, when to merge, what becomes of the late, policies, rewards, records and
checkpoints are `simfed.sim.Simulation`'s. What is real stands here: a client's part is
a message that goes out and one that comes back, a merge takes the time that it takes,
and who is there is who has joined.

The run's journal notes what happened outside, each with the number of events before it.
Played again, these happen at the same place of the story, and nobody is connected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import simpy
from numpy.typing import NDArray

from simfed.deploy.measured import Instants, lay_out_legs, read_busy
from simfed.deploy.messages import Message, Refused, format_reason
from simfed.deploy.world import RealTime
from simfed.experiment.assembly import Parts
from simfed.fleet.contract import Outcome
from simfed.ground.errors import InputError, RunFailed
from simfed.ground.method import Work
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.learn.parcel import Parcel
from simfed.net import LinkUses
from simfed.net.instants import at, cancel
from simfed.record import Recorder
from simfed.record.schema import HOST
from simfed.replay.journaled import Answered, Journaled
from simfed.sim import Simulation
from simfed.sim.flight import BusySeconds, Flight, Leg
from simfed.sim.server_work import PlayedWork
from simfed.sim.world import Attendance, Requester, draw_failure

if TYPE_CHECKING:
    from simfed.deploy.peers import ArrivedUpload, Peers
    from simfed.learn.apart import Elsewhere
    from simfed.learn.orders import Order

_MERGING = ("server", "distillation", "logits")
"""Activities of a workload that are the method's work at a merge."""


class Joined:
    """The presence of clients that have joined, in the story's time.

    The scenario has them there as well. It is an `Attendance`. Ignored is a battery's
    charge: nobody knows the joules of real devices.
    """

    def __init__(self, planned: Attendance | None) -> None:
        """Begin with nobody.

        `planned`: the scenario's; None: everybody is to be there, and nothing to fail.
        """
        self.ids: set[int] = set()
        self._planned = planned

    def available(self, at_s: float) -> NDArray[np.int64]:
        """Return the ids of clients that are there."""
        joined = np.array(sorted(self.ids), dtype=np.int64)
        if self._planned is None:
            return joined
        return np.intersect1d(joined, self._planned.available(at_s), assume_unique=True)

    def there(self, client: int, at_s: float) -> bool:
        """Return whether a client is there."""
        planned = self._planned
        return client in self.ids and (planned is None or planned.there(client, at_s))

    def battery(self, client: int, at_s: float) -> float:
        """Return how full a client's battery is to be; 1 where none is planned."""
        planned = self._planned
        return 1.0 if planned is None else planned.battery(client, at_s)

    def change_after(self, client: int, at_s: float) -> float:
        """Return the instant at which a client that is there goes away."""
        return (
            math.inf
            if self._planned is None
            else self._planned.change_after(client, at_s)
        )

    def arrival_after(self, at_s: float) -> float:
        """Return the next instant at which the scenario has a client come."""
        return math.inf if self._planned is None else self._planned.arrival_after(at_s)

    def failure(self, client: int, phase: str) -> float:
        """Return the probability that a phase of a client is to fail.

        Args:
            client: its number.
            phase: `download`, `training` or `upload`.
        """
        return 0.0 if self._planned is None else self._planned.failure(client, phase)


class Remote:
    """Clients that are elsewhere. A `simfed.sim.world.Carrier`."""

    network = None

    def __init__(
        self,
        workload: Journaled,
        rejoin_s: float,
        streams: Streams,
        planned: Attendance | None,
    ) -> None:
        """Begin without a connection.

        Args:
            workload: the learning over a journal; where that is not at its end, the run
            is played again.
            rejoin_s: how long to wait while nobody is there.
            streams: draws of what the scenario lets fail.
            planned: whom the scenario has there; None: everybody.
        """
        self.env = RealTime()
        if not workload.live:
            self.env.happen_again = self._take_next_if_due
        workload.beside = self
        self.presence = Joined(planned)
        self._streams = streams
        self.uses = LinkUses()
        self._workload = workload
        self._rejoin_s = rejoin_s
        self._back = self.env.event()
        self._under_way: dict[int, simpy.Event] = {}
        """The events of clients' uploads."""
        self._flights: dict[int, Flight] = {}
        self.before: Callable[[Callable[[], bool]], object] = lambda stop_requested: (
            None
        )
        """Called with `stop_requested` before the first round: waits for clients, then
        `begin`s."""
        self.refused: Callable[[str], object] = lambda sentence: None
        """Called with a sentence for each upload that is refused."""
        self.client_states: dict[int, Parcel] = {}
        """The states that clients need to go on from the last checkpoint."""
        self.fates: dict[int, list[Message]] = {}
        """Client → what has become since of uploads that were under way in its state
        there: who goes on from that state has to know."""

    @property
    def _clients(self) -> Elsewhere:
        clients: Elsewhere = self._workload.real.clients
        return clients

    def play_with(self, peers: Peers) -> None:
        """Take the clients' connections; called before anything else."""
        self._peers = peers

    def begin(self) -> None:
        """Let time pass from now on."""
        self.presence.ids.update(self._peers.there)
        self.env.begin()

    # ---- what happened outside, and happens again ------------------------------------

    def _note(self, what: str, client: int) -> None:
        """Note in the journal what happened outside, and after how many events."""
        if self._workload.live:
            facts = [self.env.handled, self.env.now, client]
            self._workload.journal.note("", what, facts)

    def _take_next_if_due(self) -> bool:
        """Let what the journal has next from outside happen, if it is time.

        Returns:
            Whether something happened.

        Raises:
            RunFailed: the journal ends while clients are awaited.
        """
        line = self._workload.journal.next
        if line is None and not self.env._queue:
            raise RunFailed(
                f"{self._workload.journal.path}: ends while clients are awaited"
            )
        if line is None or line.label not in ("joined", "left", "arrived"):
            return False
        handled, now_s, client = line.answer
        if handled != self.env.handled:
            return False
        self._workload.journal.known("", line.label)
        self.env.set_out(now_s)
        if line.label == "arrived":
            self._under_way[client].succeed(None)
        elif line.label == "joined":
            self.joined(client)
        else:
            self.left(client, "")
        return True

    def come_back_again(self) -> None:
        """Come back at a round's border where the server had, when played again."""
        while not self._workload.live and (line := self._workload.journal.next):
            if line.label != "resumed":
                return
            self._come_back()

    def _come_back(self) -> None:
        """Note that the server was gone, and is back with those who have joined.

        All under way is lost.
        """
        for flight in list(self._flights.values()):
            flight.away = True
            self._lose(flight, "dropped")
            self._under_way[flight.client].callbacks.clear()
            self._land(flight)
        self._asking.forget_model_of(None)
        self._say_who_is_there("resumed")

    def _say_who_is_there(self, what: str) -> None:
        """Ask the journal, or tell it, who is there now."""
        there = sorted(self.presence.ids), self._rejoin_s
        ids, self._rejoin_s = self._workload.ask_world(what, lambda: [*there])
        self.presence.ids.clear()
        self.presence.ids.update(ids)

    # ---- called in the story's time --------------------------------------------------

    def note_fate(self, client: int, label: str, message: Message) -> None:
        """Keep what became of an upload for a client that goes on from a checkpoint.

        It is kept if the upload was under way in the client's state there.

        Args:
            client: its number.
            label: the upload's task.
            message: tells the client.
        """
        state = self.client_states.get(client)
        under_way = None if state is None else state.facts.get("under_way")
        if isinstance(under_way, list) and label in under_way:
            self.fates.setdefault(client, []).append(message)

    def joined(self, client: int) -> None:
        """Note that a client's connection stands: it may be chosen from now on."""
        self._note("joined", client)
        self.presence.ids.add(client)
        back, self._back = self._back, self.env.event()
        back.succeed()

    def left(self, client: int, why: str) -> None:
        """Note that a client is there no longer."""
        self._note("left", client)
        self.presence.ids.discard(client)
        self._forget(client)

    def _forget(self, client: int) -> None:
        self._asking.forget_model_of(client)
        if self._workload.live:
            self._clients.forget(client)

    # ---- what every world does -------------------------------------------------------

    def connect(self, asking: Requester) -> None:
        """Take the server that asks for participations."""
        self._asking = asking

    def set_out(self) -> None:
        """Set the clock to 0, with nothing under way."""
        self.env.set_out(0.0)

    def gather(self, stop_requested: Callable[[], bool]) -> None:
        """Wait until rounds can be played; then time passes."""
        self._stop_requested = stop_requested
        if self._workload.live:
            self.before(stop_requested)
        self._say_who_is_there("begin")

    def await_anybody(self, round: int, *, patient: bool) -> simpy.Event:
        """Return the event of a client's coming back.

        Args:
            round: for the sentence.
            patient: wait for as long as it takes.

        Raises:
            RunFailed: (by the event) nobody is back in `rejoin_s`, unless patient.
        """
        returns_at_s = self.presence.arrival_after(self.env.now)
        back = self._back
        if returns_at_s < math.inf:
            back = back | at(self.env, returns_at_s)
        return (
            back if patient else self.env.process(self._wait_for_somebody(round, back))
        )

    def _wait_for_somebody(
        self, round: int, back: simpy.Event
    ) -> Generator[simpy.Event, Any, None]:
        yield back | self.env.timeout(self._rejoin_s)
        if back.triggered:
            return
        if not self.presence.ids or back is self._back:
            raise RunFailed(
                f"round {round}: no client was there for {self._rejoin_s:g} s"
            )
        yield back

    def carry(self, flight: Flight) -> None:
        """Ask a client to do its part; it answers when it is done."""
        done = self._under_way[flight.client] = self.env.event()
        self._flights[flight.client] = flight
        done.callbacks.append(lambda event: self._arrive(flight, event.value))

        def tell(arrival: ArrivedUpload) -> None:
            if not done.triggered:
                self._note("arrived", flight.client)
                done.succeed(arrival)

        if self._workload.live:
            parcel = self._clients.outgoing(self._find_real(flight))
            self._peers.give(flight.client, flight.task.label, parcel, tell)
        leaves_at_s = self.presence.change_after(flight.client, self.env.now)
        if leaves_at_s < math.inf:
            flight.departure = at(
                self.env, leaves_at_s, call=lambda _: self.cut(flight, "dropped")
            )

    def cut(self, flight: Flight, cause: str) -> None:
        """End a participation; what its client still does of it is not waited for."""
        flight.away = cause == "dropped"
        done = self._under_way[flight.client]
        done.callbacks.clear()
        if not done.triggered:
            done.succeed(None)
        label = flight.task.label
        sent_bytes = self._workload.ask_world(
            f"cut {label}", lambda: self._peers.forget(flight.client, label)
        )
        self._lose(flight, "dropped", sent_bytes)
        self._land(flight)

    def _arrive(self, flight: Flight, arrival: ArrivedUpload | None) -> None:
        """Note that its upload is there, or never will be.

        Played again, the journal says what it was.
        """

        def ask() -> Plain:
            assert arrival is not None
            self._receive(flight, arrival)
            legs = [leg.plain() for leg in flight.legs]
            of_flight = flight.outcome, flight.away, flight.received, flight.told
            return [*of_flight, flight.busy, legs]

        answer = self._workload.ask_world(f"landed {flight.task.label}", ask)
        outcome, flight.away, flight.received, flight.told, busy, legs = answer
        if outcome in ("dropped", "failed"):
            flight.lose(outcome)
        flight.busy = None if busy is None else BusySeconds(*busy)
        flight.legs = [Leg.of_plain(leg) for leg in legs]
        self._land(flight)

    @staticmethod
    def _find_real(flight: Flight) -> Order:
        """Return what the server's learning knows of a participation."""
        answered = flight.contribution
        assert isinstance(answered, Answered)
        return cast("Order", answered.real)

    def _receive(self, flight: Flight, arrival: ArrivedUpload) -> None:
        """Take what came of a participation, or note that it is lost.

        What no client of this version sends counts as a failure of its own.
        """
        message = arrival.message
        if message is None:
            flight.away = True
            self._lose(flight, "dropped", arrival.sent_bytes)
        else:
            round, client = flight.task.round, flight.client
            try:
                if message.kind != "failed":
                    self._take_upload(flight, arrival, message)
                else:
                    self._lose(flight, "failed", arrival.sent_bytes, message.size)
                    why = format_reason(message.facts.get("why")) or (
                        "it gives no reason"
                    )
                    self.refused(f"client {client} failed in round {round}: {why}")
            except (InputError, Refused) as error:
                # what no client of this version sends: it counts as a failure of its
                # own
                self._lose(flight, "failed", arrival.sent_bytes, message.size)
                self.refused(
                    f"client {client}: its upload of round {round} is refused: {error}"
                )

    def _take_upload(
        self, flight: Flight, arrival: ArrivedUpload, message: Message
    ) -> None:
        """Deliver an upload to the learning, and lay out its phases.

        Raises:
            Refused, InputError: it is none of the task's.
        """
        facts = dict(message.facts)
        times = facts.pop("times", None)
        busy = read_busy(times, self.env.now - flight.started_at_s)
        ahead_s = arrival.line.ahead_s  # read once, as exchanges go on meanwhile
        instants = Instants.of(
            times,
            lambda there_s: self.env.instant_s(there_s - ahead_s),
            started_s=flight.started_at_s,
            sent_s=self.env.instant_s(arrival.sent_s),
            arrived_s=self.env.instant_s(message.at_s),
            landed_s=self.env.now,
        )
        sizes = float(arrival.sent_bytes), float(message.size)
        if self._fails(flight):
            self._lose(flight, "failed", *sizes)
            return
        real = self._find_real(flight)
        if len(message.body) > (most := self._clients.most_bytes(real)):
            raise Refused(f"{len(message.body):,} bytes, at most {most:,} are needed")
        self._clients.deliver(real, Parcel(facts, message.body))
        flight.told = real.told
        flight.legs = lay_out_legs(instants, flight.pull.arm.label, *sizes)
        flight.received, flight.busy = True, busy

    def _fails(self, flight: Flight) -> bool:
        """Return whether the scenario lets one of its phases fail.

        It does by the draws of the simulation; it is known when the upload is there.
        """
        task = flight.task
        down = int(task.downlink_bytes > 0)
        worked = down + len(task.work) + len(task.plan.compressed)
        steps = {
            "download": down,
            "training": worked,
            "upload": worked + bool(task.plan.up),
        }
        return any(
            draw_failure(self.presence, self._streams, flight, phase, number)
            for phase, number in steps.items()
        )

    def _land(self, flight: Flight) -> None:
        del self._under_way[flight.client], self._flights[flight.client]
        departure, flight.departure = flight.departure, None
        cancel(self.env, departure)
        flight.end(self.env.now)
        self._asking.land(flight)
        if flight.lost:
            self._forget(flight.client)

    def _lose(
        self,
        flight: Flight,
        outcome: str,
        down_bytes: float = 0.0,
        up_bytes: float = 0.0,
    ) -> None:
        """Note that an upload never arrives.

        What its client did until now is not known, but how much travelled.

        Args:
            flight: the participation.
            outcome: `dropped` or `failed`.
            down_bytes: that have left for the client.
            up_bytes: that came.
        """
        flight.lose(outcome)
        flight.legs = [
            Leg("download", "download", 0.0, moved_bytes=float(down_bytes)),
            Leg("upload", "upload", 0.0, moved_bytes=float(up_bytes)),
            Leg(HOST, "lost", self.env.now - flight.started_at_s),
        ]

    def merge(
        self,
        round: int,
        arrived: Sequence[Flight],
        work: Callable[[], Sequence[Work]],
        merge: Callable[[], Outcome],
    ) -> tuple[list[PlayedWork], Callable[[], Outcome]]:
        """Return the merge's work, timed, and what gives its outcome.

        The merge is done here, whatever time it takes; played again, the journal has
        its seconds. What a simulation would charge (`work`) is not asked for.
        """
        before = dict(self._workload.timings())
        outcome = merge()
        seconds = self._workload.ask_world(
            f"played {round}", lambda: self._time(before)
        )
        kinds = (
            ("merge", "merge"),
            (HOST, "evaluation"),
            (HOST, "losses"),
            (HOST, "other"),
        )
        played = [
            PlayedWork(kind, name, None, duration_s)
            for (kind, name), duration_s in zip(kinds, seconds, strict=True)
        ]
        return played, lambda: outcome

    def _time(self, before: Mapping[str, float]) -> list[float]:
        """Return the seconds of a merge, of tests, of losses and of the rest.

        Args:
            before: the learning's timings when it began.
        """
        after = self._workload.timings()
        spent = {name: max(after[name] - before.get(name, 0.0), 0.0) for name in after}
        whole_s = max(self.env.real_now_s() - self.env.now, 0.0)
        merge_s = min(sum(spent.get(name, 0.0) for name in _MERGING), whole_s)
        tests_s = min(spent.get("evaluation", 0.0), whole_s - merge_s)
        losses_s = min(spent.get("local_losses", 0.0), whole_s - merge_s - tests_s)
        return [merge_s, tests_s, losses_s, whole_s - merge_s - tests_s - losses_s]

    def energy_j(
        self, client: int, phases_s: Callable[[], Mapping[str, float]]
    ) -> float | None:
        """Return None: nobody knows the power of a real device."""
        return None

    # ---- checkpoints -----------------------------------------------------------------

    def state(self) -> tuple[dict[str, Plain], dict[str, np.ndarray]]:
        """Return what clients need to go on from here, as facts and arrays.

        Of those that are not there it is what was known of them.
        """
        kept = self._peers.states()
        self.client_states |= kept
        for client in kept:
            self.fates.pop(client, None)
        states = self.client_states.items()
        facts = {str(client): dict(state.facts) for client, state in states}
        bodies = {
            f"client/{client}": np.frombuffer(state.body, np.uint8)
            for client, state in states
        }
        return {"clients": facts}, bodies

    def restore(
        self, facts: Mapping[str, Plain], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Take up what clients had kept, and wait for them: time passes again."""
        self.client_states = {
            int(client): Parcel(
                of_client, np.asarray(arrays[f"client/{client}"]).tobytes()
            )
            for client, of_client in facts["clients"].items()
        }
        self.env.happen_again = None
        self.presence.ids.clear()
        self.before(self._stop_requested)
        self._come_back()


def play_again(parts: Parts, workload: Journaled, recorder: Recorder) -> None:
    """Play a finished deployment again, over its journal, as `verify` does.

    Args:
        parts: of its scenario.
        workload: the journal in the learning's place.
        recorder: gets the rows anew.
    """
    world = Remote(workload, 0.0, parts.streams, parts.fleet.presence())
    loop = make_loop(parts, workload, world, recorder)
    loop.run(progress=lambda *_: world.come_back_again())


def make_loop(
    parts: Parts, workload: Journaled, world: Remote, recorder: Recorder
) -> Simulation:
    """Return the server's loop over real clients, or over the journal of some."""
    return Simulation(
        parts.scenario,
        workload=workload,
        world=world,
        make_policy=parts.policy,
        recorder=recorder,
        streams=parts.streams,
        samples_of=parts.samples_of,
        faults=parts.faults,
    )
