"""A Flower app's messages on the simulated clock.

The server app runs aside (`simfed.flower.turns`); what it asks its grid for is a story
that is played here: `AppPlay.push`, `pull`, `list_nodes`, `sleep`. A node is a row of
what waits for it: it takes one message at a time, which then is a participation as in
any other run, played by `simfed.sim.clock`: a download, computing, an upload, over the
shared network, on the node's own device. What the app on the node does is done when its
computing begins, and nobody sees anything of it before its computing is over.

What a message meets: its node may be away (it waits for it; after `AWAY_S` the server
is told that the node is unavailable), leave while it is at work (nothing comes of it),
or fail (nothing comes of it either); it may expire, and its app may raise an exception,
which travels back as an error.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import simpy
from flwr.app import Message

from simfed.experiment.assembly import WorldParts
from simfed.flower.charging import RunPrices
from simfed.flower.computing import WorkWatch
from simfed.flower.crew import AppCrew
from simfed.flower.exchanges import Exchanges, Progress
from simfed.flower.hooks import RoundMetrics
from simfed.flower.messages import Mail, make_unavailable
from simfed.flower.node import NodeAtWork
from simfed.flower.turns import CodeResult, ForeignThread, ServerThreads
from simfed.flower.work import Call
from simfed.ground.errors import RunFailed, unwrap_error
from simfed.ground.plain import Plain
from simfed.net import Network
from simfed.net.instants import at, cancel, end_of_instant
from simfed.record.recorder import Recorder
from simfed.scenario.fleet_file import FleetFile
from simfed.sim.clock import Clock
from simfed.sim.flight import Flight
from simfed.sim.world import CUT

AWAY_S = 60.0
"""A node that has been silent for so long is unavailable: two of Flower's
heartbeats."""

_POLLS = 1000
"""So many looks in a row that cannot change before a server app that keeps looking
gives up."""

_LOOKS = 10_000
"""Looks in a row that find nothing before a look takes time: a hundredth of what those
before it took, at least a millisecond. Else an app that only looks would get nowhere.
"""

Story = Generator[simpy.Event, object, Any]


@dataclass(slots=True, eq=False)
class _Waiter:
    """A thread of the server app that waits for replies."""

    awaited: set[str]
    """Ids of the messages whose replies it needs."""
    wake: simpy.Event
    whole: bool = True
    """True if it needs all of them; else any."""


class AppPlay:
    """One run of an app over a fleet, from 0 s to the server app's end.

    It is what the clock asks (`simfed.sim.world.Requester`) and what the app's threads
    ask (`simfed.flower.grid.Question`). `simfed.flower.running` makes one and reads
    `charges`, `exchanges` and `round_metrics` when it is over.
    """

    def __init__(
        self,
        fleet: FleetFile,
        parts: WorldParts,
        recorder: Recorder,
        crew: AppCrew,
        threads: ServerThreads,
        charges: RunPrices,
        run_config: Mapping[str, Plain],
        *,
        stop_requested: Callable[[], bool],
        progress: Progress | None,
    ) -> None:
        """Set the fleet out at 0 s.

        Args:
            fleet: the fleet file.
            parts: what was built from it.
            recorder: gets the rows of every exchange.
            crew: does the nodes' work.
            threads: the server app's.
            charges: the prices of its work and of nodes'.
            run_config: what the apps find in `context.run_config`.
            stop_requested: whether the user has asked to stop.
            progress: is told of every exchange.
        """
        self.charges = charges
        self._parts = parts
        self._crew = crew
        self._threads = threads
        self._run_config = run_config
        self.run_id = parts.streams.integer("flower-run")
        """Flower's number of the run."""
        self._stop_requested = stop_requested
        self.round_metrics: list[RoundMetrics] = []
        """The metrics of strategies, round by round."""
        self._nodes_at_work: dict[Flight, NodeAtWork] = {}
        self._clock = Clock(
            lambda env, on_use: Network(
                env, parts.topology, model=parts.network_model, on_use=on_use
            ),
            parts.device,
            parts.streams,
            presence=parts.fleet.presence(),
            faults=parts.faults,
            device_of=self._nodes_at_work.__getitem__,  # type: ignore[arg-type]
        )
        self._clock.connect(self)
        self._clock.set_out()
        self.env = self._clock.env
        self._presence = self._clock.presence
        clients, faults = fleet.client_count, parts.faults
        self.exchanges = Exchanges(
            recorder,
            fleet.metrics,
            clients,
            self._clock,
            resent=faults is not None and faults.messages is not None,
            progress=progress,
        )
        self.ids = [parts.streams.integer("flower-node", c) for c in range(clients)]
        self._client_of = {node: client for client, node in enumerate(self.ids)}
        self._waiting: dict[int, deque[Mail]] = {}
        """Client → what it has not begun with, where it has anything."""
        self._states: dict[int, bytes | None] = {}
        """Client → the packed state of its app."""
        self._begun: dict[int, int] = defaultdict(int)
        """Client → how many messages it has begun with."""
        self._left_at_s: dict[int, float] = {}
        self._exited: set[int] = set()
        """Clients whose app has ended its process."""
        self._node_configs = _list_node_configs(fleet)
        self._mails: dict[str, Mail] = {}
        """Mails by id, as long as the server app has not been told what became of them.
        """
        self._waiters: list[_Waiter] = []
        self._handed_over = self.env.event()
        """Comes when a thread of the server app has been at work."""
        self._looks, self._looked_s = 0, 0.0
        """Looks in a row that found nothing, and the seconds that they took."""
        self._polls = 0
        """Looks in a row that could not change anything."""
        self._server_device = parts.server_device()
        self._stretches = 0
        self._free_at_s = 0.0
        """The instant at which the server's processor has done what its threads have
        worked."""

    # ---- the server app's side -------------------------------------------------------

    def play(self, app: Callable[[], object]) -> None:
        """Run the server app in its threads to its end.

        Raises: `ForeignError`, `InputError`, `RunFailed`: the app's threads wait for
        each other, or it never sends.
        """
        serve = self.env.process(self._serve(app))
        try:
            self.env.run(until=serve)
        except Exception as error:
            if (
                serve.is_alive
                and isinstance(error, RuntimeError)
                and not self.env._queue
            ):
                raise RunFailed(
                    f"at {self.env.now:g} s all threads of the server app wait for "
                    f"each other"
                ) from None
            raise unwrap_error(error) from None
        if not self.exchanges.has_sent:
            raise RunFailed(
                f"the server app ended at {self.env.now:g} s and never sent a message: "
                "there is nothing to simulate"
            )

    def _serve(self, app: Callable[[], object]) -> Story:
        """Run the app's first thread to its end, then end the run."""
        yield from self._converse(self._threads.first, app)
        yield from self._finish()

    def begin(self, thread: ForeignThread, code: Callable[[], object]) -> Story:
        """Let a pool's thread run, as soon as the one that asks for it waits.

        Args:
            thread: the thread.
            code: what it is to do, to its end.
        """

        def converse() -> Story:
            yield end_of_instant(self.env)
            self._threads.clock.at_s = self.env.now
            yield from self._converse(thread, code)

        self._note_progress()
        self.env.process(converse())
        yield from ()

    def _converse(self, thread: ForeignThread, code: Callable[[], object]) -> Story:
        """Let one thread of the server app run this code, and answer what it asks.

        It goes on to the code's end. Between two questions the thread's work is
        charged, and threads that wait for it look again.

        Args:
            thread: runs while the clock waits for it.
            code: the app's main function, or calls of a pool.
        """
        question = self._threads.run(thread, code)
        while True:
            yield from self._charge_server(thread.watch)
            if self._handed_over.callbacks:
                handed_over, self._handed_over = self._handed_over, self.env.event()
                handed_over.succeed()
            if isinstance(question, CodeResult):
                return
            assert callable(question)
            answer = yield from question(self)
            self._threads.clock.at_s = self.env.now
            question = thread.answer(answer)

    def sleep(self, seconds: float) -> Story:
        """Let seconds pass in which the server app does nothing."""
        self._note_progress()
        yield from self._spend("sleep", seconds)

    def wait_until(
        self, condition: Callable[[], bool], timeout_s: float = math.inf
    ) -> Generator[simpy.Event, object, bool]:
        """Wait until a thread of the app has brought something about.

        Args:
            condition: looked at whenever a thread has been at work.
            timeout_s: simulated seconds of waiting.

        Returns:
            False once the timeout is over.
        """
        self._note_progress()
        until_s = self.env.now + timeout_s
        while not condition():
            if self.env.now >= until_s:
                return False
            yield from self._await_event(self._handed_over, until_s)
        return True

    def _await_event(self, event: simpy.Event, until_s: float) -> Story:
        """Wait for an event, or until an instant."""
        alarm = None if until_s == math.inf else at(self.env, until_s)
        yield event if alarm is None else event | alarm
        cancel(self.env, alarm)

    def _note_progress(self) -> None:
        """Begin to count anew the looks in which the app found nothing new."""
        self._looks, self._looked_s = 0, 0.0

    def _look_on(self, mails: Sequence[Mail]) -> Story:
        """Let the time pass that a look for replies takes.

        It takes none, unless the app does nothing but look: then until a reply to
        `mails` comes, but no longer than the look takes.
        """
        self._looks += 1
        if self._looks > _LOOKS:
            step_s = max(1e-3, 0.01 * self._looked_s)
            self._looked_s += step_s
            ids = {mail.id for mail in mails if mail.reply is None}
            yield from self._await(
                _Waiter(ids, self.env.event(), whole=False), self.env.now + step_s
            )

    def _charge_server(self, charge: WorkWatch) -> Story:
        """Let the time pass that the server app's own work takes.

        Raises: `KeyboardInterrupt` afterwards, if the user has asked to stop.
        """
        replies, size_bytes = self.exchanges.collect_received()
        device, spent = self._server_device, charge.collect()
        processor = None if device is None else device.processor
        work_s = self.charges.price_server(spent, replies, size_bytes, processor)
        if device is not None and work_s > 0:
            self._stretches += 1
            work_s = device.duration_s(
                work_s, self.env.now, round=self._stretches, phase="auxiliary"
            )
        yield from self._spend("aggregation" if replies else "server work", work_s)
        if self._stop_requested():
            raise KeyboardInterrupt

    def _spend(self, kind: str, duration_s: float) -> Story:
        """Let the server app work, or sleep, and note that for the round's spans.

        Works of several threads follow one another, as on one processor; sleeps do not.

        Args:
            kind: of the span; `sleep` is no work.
            duration_s: simulated seconds.
        """
        if duration_s <= 0:
            return
        begun_s, sleeps = self.env.now, kind == "sleep"
        if not sleeps:  # one thread after another
            begun_s = max(begun_s, self._free_at_s)
            self._free_at_s = begun_s + duration_s
        yield at(self.env, begun_s + duration_s)
        yield end_of_instant(self.env)
        self.exchanges.add_work(kind, begun_s, self.env.now)

    def push(self, mails: Sequence[Mail]) -> Generator[simpy.Event, object, list[str]]:
        """Send messages now.

        What is for a node that does not exist is passed over, with a warning.

        Returns:
            The ids of the others, in their order.
        """
        self._note_progress()
        self._polls = 0
        if mails:
            self.exchanges.send(self.env.now, self._clock.uses)
        sent = []
        for mail in mails:
            if mail.node not in self._client_of:
                self.charges.warn(
                    "a message to a node that does not exist was not sent"
                )
                continue
            client = mail.client = self._client_of[mail.node]
            self._mails[mail.id] = mail
            sent.append(mail.id)
            if client in self._waiting:
                self._waiting[client].append(mail)
                continue
            if not self._is_there(client):
                self._left_at_s.setdefault(client, self.env.now - AWAY_S)
            self._waiting[client] = deque([mail])
            self.env.process(self._handle_mails(client))
        yield from ()
        return sent

    def pull(
        self, ids: Sequence[str], timeout_s: float | None = None
    ) -> Generator[simpy.Event, object, list[Message]]:
        """Return what the app gets of these messages' replies.

        Args:
            ids: of messages that were pushed; an id that is not known, or was answered
            before, gets an error.
            timeout_s: seconds to wait for all of them; None: what is there now.

        Returns:
            Replies in the order in which they arrived; errors stand in place of those
            that will never be.
        """
        ids = list(dict.fromkeys(ids))
        mails = [mail for id in ids if (mail := self._mails.get(id)) is not None]
        unknown = [id for id in ids if id not in self._mails]
        for mail in mails:
            mail.polled = True
        if timeout_s is not None:
            self._note_progress()
            yield from self._wait_for(mails, self.env.now + timeout_s)
        elif not any(mail.reply is not None for mail in mails):
            yield from self._look_on(mails)
        replies = self._collect_replies(mails, waited=timeout_s is not None)
        if timeout_s is not None and len(replies) < len(mails):
            self.exchanges.give_up(self.env.now)
        if replies:
            self._polls = 0
            self._note_progress()
        elif timeout_s is None:
            self._count_poll()
        return replies + [
            make_unavailable(id, self.env.now, self.run_id) for id in unknown
        ]

    def _wait_for(self, mails: Sequence[Mail], until_s: float) -> Story:
        """Wait until each of these is replied to, or will never be, or time is over.

        Args:
            mails: what is awaited.
            until_s: the instant at which time is over.
        """
        env = self.env
        while True:
            settled_s = {
                mail.id: at_s
                for mail in mails
                if mail.reply is None and (at_s := self._settled_at_s(mail)) > env.now
            }
            if not settled_s or env.now >= until_s:
                return
            next_s = min(until_s, *settled_s.values())
            yield from self._await(_Waiter({*settled_s}, env.event()), next_s)

    def _await(self, waiter: _Waiter, until_s: float) -> Story:
        """Wait until a waiter is woken, or until an instant."""
        self._waiters.append(waiter)
        yield from self._await_event(waiter.wake, until_s)
        self._waiters.remove(waiter)
        yield end_of_instant(self.env)

    def _collect_replies(self, mails: Sequence[Mail], *, waited: bool) -> list[Message]:
        """Return the replies to these, and errors for those that will never come.

        Args:
            mails: what was asked for; those that are answered are forgotten.
            waited: the server was there when each reply came; else it looks only now
            and may find one expired.
        """
        now_s = self.env.now
        replies: list[tuple[float, Mail, Message, bool]] = []
        for mail in mails:
            if mail.reply is not None and (waited or now_s < mail.expires_at_s):
                replies.append((mail.replied_at_s, mail, mail.reply.message(), True))
            elif self._settled_at_s(mail) <= now_s:
                gone = mail if mail.expires_at_s > now_s else None
                message = make_unavailable(mail.id, now_s, self.run_id, gone)
                replies.append((now_s, mail, message, False))
        replies.sort(key=lambda reply: (reply[0], reply[1].client, reply[1].number))
        for _, mail, message, answered in replies:
            mail.answered = True
            del self._mails[mail.id]  # with all that it carried
            self.exchanges.pull(mail, message, answered=answered, now_s=now_s)
        return [message for _, _, message, _ in replies]

    def _settled_at_s(self, mail: Mail) -> float:
        """Return when the server is told at the latest, if no reply comes."""
        away_s = math.inf
        left_at_s = self._left_at_s.get(mail.client)
        if left_at_s is not None and not self._is_there(mail.client):
            away_s = left_at_s + AWAY_S
        return min(mail.expires_at_s, away_s)

    def list_nodes(self) -> Generator[simpy.Event, object, list[int]]:
        """Return the ids of the nodes that are there."""
        yield from self._look_on([])
        if self._presence is None:
            there: Sequence[int] = range(len(self.ids))
        else:
            there = self._presence.available(self.env.now).tolist()
        there = [client for client in there if client not in self._exited]
        self._count_poll(everybody=len(there) == len(self.ids))
        return [self.ids[client] for client in there]

    def _count_poll(self, *, everybody: bool = False) -> None:
        """Note that the app has looked for something.

        Args:
            everybody: all nodes of the fleet are there.

        Raises:
            RunFailed: nothing can change any more, and it has looked `_POLLS` times.
        """
        comes_s = (
            math.inf
            if self._presence is None
            else self._presence.arrival_after(self.env.now)
        )
        if self._waiting or (comes_s < math.inf and not everybody):
            self._polls = 0
            return
        self._polls += 1
        if self._polls >= _POLLS:
            exited = len(self._exited)
            count = len(self.ids) - exited
            why = (
                f"; on {exited:,} more the app has ended its process" if exited else ""
            )
            raise RunFailed(
                f"at {self.env.now:g} s the server app has looked {_POLLS:,} times in "
                f"a row for what never comes: {count:,} nodes are all there are, no "
                f"message is under way; a strategy that waits for more than {count:,} "
                f"nodes waits for ever{why}"
            )

    def _finish(self) -> Story:
        """End what is still under way when the server app is through.

        It is of no use any more. The last exchange is written.
        """
        flights = list(self._nodes_at_work)
        for flight in flights:
            self._clock.cut(flight, CUT)
        if flights:
            yield end_of_instant(self.env)
        self.exchanges.end(self.env.now, self._clock.uses)
        self.charges.check_some_charged()
        for sentence in sorted(self.exchanges.warnings):
            self.charges.warn(sentence)

    # ---- nodes -----------------------------------------------------------------------

    def _handle_mails(self, client: int) -> Story:
        """Let one node work, as long as something waits for it.

        It passes over what has expired, or was answered in its place, and waits while
        it is away.
        """
        env, waiting, presence = self.env, self._waiting[client], self._presence
        while waiting:
            mail = waiting[0]
            if mail.answered or mail.expires_at_s <= env.now:
                waiting.popleft()
                continue
            if not self._is_there(client):
                back_at_s = math.inf
                if presence is not None and client not in self._exited:
                    back_at_s = presence.change_after(client, env.now)
                yield at(env, min(back_at_s, mail.expires_at_s))
                continue
            self._left_at_s.pop(client, None)
            waiting.popleft()
            yield from self._participate(mail)
        del self._waiting[client]

    def _participate(self, mail: Mail) -> Story:
        """Let a node receive a message, work on it and reply.

        The crew gets the call as the message begins to travel, so that other processes
        may begin with it.
        """
        env, client, streams = self.env, mail.client, self._parts.streams
        # how many messages it has begun before seeds its random numbers
        turn = self._begun[client]
        self._begun[client] += 1
        flight = mail.flight = self.exchanges.begin(mail, env.now)
        ticket = self._crew.give(
            Call(
                message=mail.message,
                size_bytes=mail.size_bytes,
                client=client,
                nodes=len(self.ids),
                state=self._states.get(client),
                run_config=self._run_config,
                seed=streams.integer("flower-call", client, turn),
                reply_id=f"{mail.number:063x}f",
                node_config=self._node_configs[client],
                start_s=env.now,
            )
        )
        node = NodeAtWork(
            mail=mail,
            device=self._clock.device(client),
            crew=self._crew,
            ticket=ticket,
            prices=self.charges,
            scatter_rng=partial(streams, "flower-scatter", client, turn + 1),
            over=env.event(),
        )
        self._nodes_at_work[flight] = node
        self._clock.carry(flight)
        yield node.over

    # ---- what the clock asks and tells -----------------------------------------------

    def size_of(self, flight: Flight) -> float:
        """Return the bytes of a reply; asked when the computing is over.

        Now the node's state is what the app made of it, and a process that the app has
        ended is gone.
        """
        answer = self._nodes_at_work[flight].answer
        assert answer is not None
        if answer.exited:  # before a byte of an answer leaves
            end_of_instant(self.env, lambda _: self._exit(flight))
        self._states[flight.client] = answer.state
        return answer.visible.uplink_bytes

    def _exit(self, flight: Flight) -> None:
        """Note that a node's process is gone.

        Unless its answer, which is nobody's, has taken no time.
        """
        if not flight.over:
            self._clock.cut(flight, "dropped")

    def land(self, flight: Flight) -> None:
        """Settle a message that has been worked on, or never will be.

        Its reply is there, its node may be gone, and threads that wait for it are
        woken.
        """
        node = self._nodes_at_work.pop(flight)
        mail, answer = node.mail, node.answer
        if answer is not None and answer.exited:
            self._exited.add(flight.client)
            flight.away = True
            flight.lose("dropped")
        if not flight.lost:
            assert answer is not None
            mail.reply, mail.replied_at_s = answer.reply, self.env.now
        self.exchanges.land(mail)
        if answer is None:  # nobody waits for it any longer
            node.ticket.future.cancel()
        if flight.away:
            self._left_at_s[flight.client] = self.env.now
        for waiter in self._waiters:
            came = mail.id in waiter.awaited and not flight.lost
            if came:
                waiter.awaited.remove(mail.id)
            ready = flight.away or (came and not (waiter.whole and waiter.awaited))
            if ready and not waiter.wake.triggered:
                waiter.wake.succeed()
        node.over.succeed()

    def forget_model_of(self, client: int | None) -> None:
        """Do nothing: an app sends what it sends."""

    def _is_there(self, client: int) -> bool:
        if client in self._exited:
            return False
        return self._presence is None or self._presence.there(client, self.env.now)


def _list_node_configs(fleet: FleetFile) -> list[dict[str, Plain]]:
    """Return what the fleet says of each node's settings.

    `{node}` and `{nth}` in texts are replaced, see docs/flower.md.
    """
    configs, seen = [], [0] * len(fleet.clients)
    for node, group in enumerate(fleet.group_of_client().tolist()):
        configs.append(fleet.clients[group].config_of(node, seen[group]))
        seen[group] += 1
    return configs
