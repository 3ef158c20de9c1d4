"""A Flower app's messages on the simulated clock.

The server app runs aside; what it asks its grid for is played here. A node is a row of what waits
for it: it takes one message at a time, which then is a participation as in any other run, played by
`simfed.sim.client`: a download, computing, an upload, over the shared network, on the node's own
device. What the app on the node does is done when its computing begins, and nobody sees anything of
it before its computing is over.

What a message meets: its node may be away (it waits for it; after `AWAY_S` the server is told that
the node is unavailable), leave while it is at work (nothing comes of it), or fail (nothing comes of
it either); it may expire, and its app may raise an exception, which travels back as an error.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import simpy

from simfed.assembly import Parts
from simfed.device import Device
from simfed.errors import InputError, RunFailed
from simfed.flower.asides import Aside, Done
from simfed.flower.computing import Charge, price
from simfed.flower.crew import Crew, Ticket
from simfed.flower.exchanges import Exchanges
from simfed.flower.grid import Nodes, Outgoing, Pull, Push, ServerClock, Sleep
from simfed.flower.messages import Mail, unavailable
from simfed.flower.work import Answer, Call
from simfed.method import Work
from simfed.net import LinkUses, Network
from simfed.net.instants import at, end_of_instant
from simfed.scenario.fleet_file import FleetFile
from simfed.sim.client import CUT, participation
from simfed.sim.flight import Flight

__all__ = ["AWAY_S", "Play"]

AWAY_S = 60.0
"""A node that has been silent for so long is unavailable: two of Flower's heartbeats."""

_POLLS = 1000
"""So many looks in a row that cannot change before a server app that keeps looking gives up."""

_LEGACY = ("get_parameters", "get_properties", "reconnect")
"""Questions of legacy servers, which take no work unless seconds are declared for them."""

Story = Generator[simpy.Event, Any, Any]


class Play:
    """One run of an app over a fleet."""

    def __init__(
        self,
        fleet: FleetFile,
        parts: Parts,
        exchanges: Exchanges,
        crew: Crew,
        run_config: Mapping[str, Any],
        *,
        run_id: int,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        self._fleet = fleet
        self._parts = parts
        self._crew = crew
        self._run_config = run_config
        self._run_id = run_id
        self._stop_requested = stop_requested
        self._exchanges = exchanges
        self.env = simpy.Environment()
        self._uses = LinkUses()
        self.network = Network(
            self.env, parts.topology, model=parts.network_model, on_use=self._uses
        )
        self._presence = parts.fleet.presence()
        clients = fleet.client_count
        self.ids = [parts.streams.integer("flower-node", c) for c in range(clients)]
        self._client_of = {node: client for client, node in enumerate(self.ids)}
        self._waiting: dict[int, deque[Mail]] = {}
        """Client → what it has not begun with, where it has anything."""
        self._states: dict[int, bytes | None] = {}
        self._asked: dict[int, int] = {}
        self._devices: dict[int, Device] = {}
        self._left_at_s: dict[int, float] = {}
        self._stories: dict[int, simpy.Process] = {}
        self._mails: dict[str, Mail] = {}
        """By id, as long as the server app has not been told what became of them."""
        self._sent = 0
        self._awaited: set[str] = set()
        self._wake: simpy.Event | None = None
        self._under_way = 0
        self._polls = 0
        self._numbers = itertools.count()
        self._server_device = parts.server_device()
        self._stretches = itertools.count(1)
        self.warnings: dict[str, int] = {}
        """What the user should know, and how often it happened."""

    # ---- the server app's side -------------------------------------------------------------------

    def play(self, app: Callable[[], Any], aside: Aside, clock: ServerClock, charge: Charge) -> Any:
        """Run the server app to its end; what it answers."""
        serve = self.env.process(self._serve(app, aside, clock, charge))
        try:
            return self.env.run(until=serve)
        except Exception as error:
            raise _as_raised(error) from None

    def _serve(
        self, app: Callable[[], Any], aside: Aside, clock: ServerClock, charge: Charge
    ) -> Story:
        question = aside.run(app)
        while True:
            yield from self._charge(charge)
            if self._stop_requested():
                raise KeyboardInterrupt
            answer: Any = None
            if isinstance(question, Push):
                answer = self._push(question.messages)
            elif isinstance(question, Pull):
                answer = yield from self._pull(question)
            elif isinstance(question, Nodes):
                answer = self._nodes()
            elif isinstance(question, Sleep):
                yield from self._spend("sleep", question.seconds)
            else:
                assert isinstance(question, Done)
                yield from self._finish()
                return question.answer
            clock.at_s = self.env.now
            question = aside.answer(answer)

    def _charge(self, charge: Charge) -> Story:
        """Let the time pass that the server app's own work takes."""
        spent, got = charge.take(), self._exchanges.take_got()
        device, computing = self._server_device, self._fleet.server.charged
        if computing is None:
            return
        if computing.kind == "declared" and not got.replies:
            return
        nominal_s = price(
            computing, spent, processor=None if device is None else device.processor,
            kind="server", values=lambda: {"replies": got.replies, "bytes": got.size_bytes},
        )  # fmt: skip
        if nominal_s <= 0:
            return
        duration_s = nominal_s
        if device is not None:
            duration_s = device.duration_s(
                nominal_s, self.env.now, round=next(self._stretches), phase="auxiliary"
            )
        yield from self._spend("aggregation" if got.replies else "server work", duration_s)

    def _spend(self, kind: str, duration_s: float) -> Story:
        begun_s = self.env.now
        if duration_s > 0:
            yield self.env.timeout(duration_s)
            yield end_of_instant(self.env)
            self._exchanges.worked(kind, begun_s, self.env.now)

    def _push(self, messages: Sequence[Outgoing]) -> list[str]:
        self._polls = 0
        if messages:
            self._exchanges.sends(self.env.now, self._uses)
        sent = []
        for outgoing in messages:
            metadata = outgoing.message.metadata
            client = self._client_of.get(metadata.dst_node_id)
            if client is None:
                self.warn("a message to a node that does not exist was not sent")
                continue
            self._sent += 1
            mail = Mail(
                self._sent, client, outgoing.message, outgoing.size_bytes, outgoing.expires_at_s
            )
            self._mails[mail.id] = mail
            sent.append(mail.id)
            if not self._is_there(client) and client not in self._waiting:
                self._left_at_s.setdefault(client, self.env.now - AWAY_S)
            if client in self._waiting:
                self._waiting[client].append(mail)
            else:
                self._waiting[client] = deque([mail])
                self.env.process(self._live(client))
        return sent

    def _pull(self, question: Pull) -> Generator[simpy.Event, Any, list[Any]]:
        """The messages that the app gets: in the order in which they arrived."""
        env = self.env
        ids = list(dict.fromkeys(question.ids))
        mails = [mail for id in ids if (mail := self._mails.get(id)) is not None]
        unknown = [id for id in ids if id not in self._mails]
        until_s = math.inf if question.timeout_s is None else env.now + question.timeout_s
        while question.wait:
            settled_s = {mail.id: self._settled_at_s(mail) for mail in mails if mail.reply is None}
            self._awaited = {id for id, at_s in settled_s.items() if at_s > env.now}
            if not self._awaited or env.now >= until_s:
                break
            next_s = min(until_s, *(settled_s[id] for id in self._awaited))
            self._wake = wake = env.event()
            yield wake if next_s == math.inf else wake | at(env, next_s)
            self._wake = None
            yield end_of_instant(env)
        self._awaited = set()
        answer = self._take(mails, waited=question.wait)
        if question.wait and len(answer) < len(mails):
            self._exchanges.waited_until(env.now)
        answer += [unavailable(id, env.now, self._run_id) for id in unknown]
        if len(answer) > len(unknown):
            self._polls = 0
        elif not question.wait:
            self._look()
        return answer

    def _take(self, mails: Sequence[Mail], *, waited: bool) -> list[Any]:
        """What is known of these by now, as messages. A server that `waited` took each reply when
        it came; one that looks only now may find that it has expired."""
        now_s, found = self.env.now, []
        for mail in mails:
            if mail.reply is not None and (waited or now_s < mail.expires_at_s):
                found.append((mail.replied_at_s, mail, mail.reply.message(), True))
            elif self._settled_at_s(mail) <= now_s:
                gone = mail if mail.expires_at_s > now_s else None
                message = unavailable(mail.id, now_s, self._run_id, gone)
                found.append((now_s, mail, message, False))
        found.sort(key=lambda one: (one[0], one[1].client, one[1].number))
        for _, mail, message, answered in found:
            mail.told = True
            del self._mails[mail.id]  # with all that it carried
            self._exchanges.pulled(mail, message, answered=answered, now_s=now_s)
        return [message for _, _, message, _ in found]

    def _settled_at_s(self, mail: Mail) -> float:
        """When the server is told at the latest, if no reply comes."""
        away_s = math.inf
        left_at_s = self._left_at_s.get(mail.client)
        if left_at_s is not None and not self._is_there(mail.client):
            away_s = left_at_s + AWAY_S
        return min(mail.expires_at_s, away_s)

    def _nodes(self) -> list[int]:
        if self._presence is None:
            there: Sequence[int] = range(len(self.ids))
        else:
            there = self._presence.available(self.env.now).tolist()
        self._look(everybody=len(there) == len(self.ids))
        return [self.ids[client] for client in there]

    def _look(self, *, everybody: bool = False) -> None:
        """The app has looked for something; one that will never be there is not looked for for
        ever."""
        comes_s = math.inf if self._presence is None else self._presence.next_return_s(self.env.now)
        if self._under_way or (comes_s < math.inf and not everybody):
            self._polls = 0
            return
        self._polls += 1
        if self._polls >= _POLLS:
            count = len(self.ids)
            raise RunFailed(
                f"at {self.env.now:g} s the server app has looked {_POLLS:,} times in a row for "
                f"what never comes: {count:,} nodes are all there are, no message is under way; a "
                f"strategy that waits for more than {count:,} nodes waits for ever"
            )

    def _finish(self) -> Story:
        """The server app is through: what is under way is of no use any more."""
        stories = list(self._stories.values())
        for story in stories:
            story.interrupt(CUT)
        if stories:
            yield end_of_instant(self.env)
        self._exchanges.end(self.env.now, self._uses)

    # ---- nodes -----------------------------------------------------------------------------------

    def _live(self, client: int) -> Story:
        """One node, as long as something waits for it."""
        env, waiting = self.env, self._waiting[client]
        while waiting:
            mail = waiting[0]
            if mail.told or mail.expires_at_s <= env.now:
                waiting.popleft()
                continue
            if not self._is_there(client):
                back_at_s = self._changes_at_s(client)
                yield at(env, min(back_at_s, mail.expires_at_s))
                continue
            self._left_at_s.pop(client, None)
            waiting.popleft()
            yield from self._take_part(mail)
        del self._waiting[client]

    def _take_part(self, mail: Mail) -> Story:
        env, client = self.env, mail.client
        turn = self._asked.get(client, 0)
        self._asked[client] = turn + 1
        flight = mail.flight = self._exchanges.begin(mail, env.now)
        node = _Node(self, mail, self.device(client), self._crew.give(self._call(mail, turn)))

        def landed(flight: Flight) -> None:
            self._under_way -= 1
            self._exchanges.landed(flight, useless=mail.told)
            if node.answer is None:
                self._crew.drop(node.ticket)
            if not flight.lost:
                assert node.answer is not None
                mail.reply, mail.replied_at_s = node.answer.reply, env.now
                self._awaited.discard(mail.id)
                if not self._awaited:
                    self._wake_up()

        self._under_way += 1
        self._stories[client] = story = env.process(
            participation(
                env, flight, node, self.network, node.size_of, landed,  # type: ignore[arg-type]
                fails=self._fails if self._presence is not None else None,
                faults=self._parts.faults, numbers=self._numbers,
            )
        )  # fmt: skip
        leaves_at_s = math.inf if self._presence is None else self._changes_at_s(client)
        if leaves_at_s < math.inf:
            env.process(self._leave(client, story, leaves_at_s))
        yield story
        del self._stories[client]

    def _leave(self, client: int, story: simpy.Process, at_s: float) -> Story:
        """The node goes away in the middle, unless it has ended by then."""
        yield at(self.env, at_s)
        yield end_of_instant(self.env)  # what arrives at this very instant has arrived
        if self._stories.get(client) is story and story.is_alive:
            self._left_at_s[client] = self.env.now
            story.interrupt("dropped")
            self._wake_up()

    def _wake_up(self) -> None:
        """Let a server that waits look again."""
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None

    def _fails(self, flight: Flight, phase: str) -> bool:
        assert self._presence is not None
        phase = phase if phase in ("download", "upload") else "training"
        chance = self._presence.failure(flight.client, phase)
        if not chance:
            return False
        draw = self._parts.streams("failure", flight.client, flight.task.key, phase, flight.step)
        return bool(draw.random() < chance)

    def _is_there(self, client: int) -> bool:
        return self._presence is None or self._presence.is_available(client, self.env.now)

    def _changes_at_s(self, client: int) -> float:
        """When a node goes away that is there, or comes that is not; inf: never."""
        assert self._presence is not None
        return self._presence.leaves_at_s(client, self.env.now)

    def device(self, client: int) -> Device:
        """A node's processor."""
        if client not in self._devices:
            self._devices[client] = self._parts.device(client)
        return self._devices[client]

    def _call(self, mail: Mail, turn: int) -> Call:
        return Call(
            mail.message, mail.client, len(self.ids), self._states.get(mail.client),
            self._run_config, self._parts.streams.integer("flower-call", mail.client, turn),
            f"{mail.number:063x}f",
        )  # fmt: skip

    def compute(self, ticket: Ticket) -> Answer:
        """Have the app on a node work on a message now."""
        answer = self._crew.fetch(ticket, self.env.now)
        if answer.error is not None:
            self.warn(f"the app on a node raised {answer.error}")
        return answer

    def seconds(self, mail: Mail, answer: Answer, device: Device) -> float:
        """Nominal seconds of a node's work."""
        if answer.error is not None and self._fleet.computing.kind == "declared":
            return 0.0  # nothing is declared of an exception
        if mail.kind in _LEGACY and not self._declared(mail.kind):
            return 0.0
        try:
            return price(
                self._fleet.computing, answer.spent, processor=device.processor, kind=mail.kind,
                values=lambda: answer.metrics,
                must_count=mail.kind == "train" and answer.error is None,
            )  # fmt: skip
        except InputError as error:
            raise error.within(f"a message of type {mail.kind} to node {mail.client}") from None

    def _declared(self, kind: str) -> bool:
        """Whether seconds are declared for this very type of message."""
        seconds = self._fleet.computing.seconds
        return self._fleet.computing.kind != "declared" or (
            isinstance(seconds, dict) and kind in seconds
        )

    def keep(self, client: int, state: bytes | None) -> None:
        """A node's computing is over: what it keeps of it."""
        self._states[client] = state

    def warn(self, sentence: str) -> None:
        """Something the user should know of."""
        self.warnings[sentence] = self.warnings.get(sentence, 0) + 1


def _as_raised(error: Exception) -> Exception:
    """The error that a process raised: SimPy raises a copy in each process that waits for it, made
    from its arguments alone."""
    while type(error.__cause__) is type(error) and error.__cause__.args == error.args:
        error = error.__cause__
    return error


class _Node:
    """A node's device in one participation, in the words of `simfed.sim.client`: what its work
    takes is known when the app has done it."""

    def __init__(self, play: Play, mail: Mail, device: Device, ticket: Ticket) -> None:
        self._play = play
        self._mail = mail
        self._device = device
        self.ticket = ticket
        self.answer: Answer | None = None

    def work_s(self, work: Work) -> float:
        """Seconds of the app's work, which is done now."""
        self.answer = self._play.compute(self.ticket)
        return self._play.seconds(self._mail, self.answer, self._device)

    def duration_s(
        self, nominal_s: float, start_at_s: float, *, round: int | str, phase: str, nth: int = 0
    ) -> float:
        """With the device's speed, load and noise; what the app slept is no work."""
        assert self.answer is not None
        work_s = self._device.duration_s(nominal_s, start_at_s, round=round, phase=phase, nth=nth)
        return work_s + self.answer.spent.slept_s

    def size_of(self, flight: Flight) -> float:
        """The bytes of the reply; asked when the computing is over."""
        assert self.answer is not None
        self._play.keep(flight.client, self.answer.state)
        return float(self.answer.size_bytes)
