"""The server's end of all connections: who is there, what is under way, what came.

Runs on a thread of its own, so that hearts beat while the server merges. What happens is told to
`post`, with the instant by this machine's monotonic clock at which it happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, TypeVar

from simfed.deploy import handshake
from simfed.deploy.clocks import ClockLine, Exchange
from simfed.deploy.doorstep import Doorstep
from simfed.deploy.frames import (
    Altered,
    Frame,
    Gone,
    Refused,
    RefusedForNow,
    quote,
    read_number,
    wait_within,
)
from simfed.deploy.wire import Wire
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain
from simfed.learn.parcel import Parcel

_Result = TypeVar("_Result")
Post = Callable[[float, Callable[[], object]], object]

_STRANGERS, _OF_ONE_ADDRESS = 64, 16
"""Connections at a time that have not said who they are."""
_MOST_REFUSALS = 20
"""Of which is told why."""
_PAUSE_S = 0.1
"""Before another connection is accepted where the system could not give us one."""
_SMALL = 2**16
_FIRST_EXCHANGES = 8
_FAREWELL_S = 2.0
"""How long clients have to hang up when they have been told that it is over."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for what."""

    handshake_s: float = 10.0
    """For each message of a handshake."""
    silence_s: float = 30.0
    """Without a byte from the other end it is gone."""
    beat_s: float = 2.0
    """Between signs of life, and exchanges of clocks."""
    answer_s: float = 600.0
    """For what only a client can measure."""


@dataclass(frozen=True, slots=True)
class ArrivedUpload:
    """An upload, or that there will be none."""

    frame: Frame | None
    """None: its client is gone."""
    sent_s: float
    """When the first byte of the task left, by this machine's monotonic clock."""
    sent_bytes: int
    line: ClockLine


@dataclass(slots=True)
class _Errand:
    """A task that a client was given and has not answered."""

    tell: Callable[[ArrivedUpload], object]
    most_body: int
    sent_s: float = 0.0
    sent_bytes: int = 0

    def add_sent(self, size: int) -> None:
        """So many bytes of it more have left."""
        self.sent_bytes += size

    def arrival(self, frame: Frame | None, line: ClockLine) -> ArrivedUpload:
        return ArrivedUpload(frame, self.sent_s, self.sent_bytes, line)


@dataclass(eq=False, slots=True)
class _Peer:
    client: int
    life: str
    wire: Wire
    line: ClockLine = field(default_factory=ClockLine)
    errands: dict[str, _Errand] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    """Labels of tasks whose uploads nobody waits for any longer, and which may still come."""
    questions: dict[int, asyncio.Future[Frame]] = field(default_factory=dict)
    ready: bool = False
    most_body: int = _SMALL
    """Bytes of the longest body that may come: of all that was asked for so far, as the answer to
    what nobody waits for any longer may still be on its way."""
    heard_s: float = 0.0
    pinged_s: dict[int, float] = field(default_factory=dict)

    def heard(self) -> None:
        """Note that bytes have come just now, which shows that it is alive."""
        self.heard_s = time.monotonic()


@dataclass(eq=False)
class Peers:
    """The connections of one server, on a thread of their own."""

    clients: int
    """How many the scenario has."""
    token: bytes
    post: Post
    """Lets something happen in the story's time."""
    _: KW_ONLY
    welcome: Callable[[int], Parcel]
    """Client → what it is told beside the server's proof."""
    check: Callable[[int, dict[str, Plain]], str | None]
    """Client and its facts of itself → what is wrong with them, or None."""
    tell_newcomer: Callable[[int], Sequence[Frame]]
    """Client that is another process than before → what it goes on from."""
    joined: Callable[[int], object]
    """Called in the story's time, as is `left` with the reason."""
    left: Callable[[int, str], object]
    most_state: int
    """Bytes of a client's state."""
    patience: Patience = Patience()

    def __post_init__(self) -> None:
        self._peers: dict[int, _Peer] = {}
        self._lives: dict[int, str] = {}
        """Client → its process that was here last."""
        self._news: dict[int, list[Frame]] = {}
        """Client that is away → what it is told when it is back."""
        self._clocks: dict[int, ClockLine] = {}
        self.strangers = Doorstep(_STRANGERS, _OF_ONE_ADDRESS)
        self._listeners: list[socket.socket] = []
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_log_in_a_line)
        self._thread = threading.Thread(target=self._run, name="simfed-peers", daemon=True)
        self.refused: deque[str] = deque(maxlen=_MOST_REFUSALS)
        """Why the last connections were refused, for whoever looks on."""

    # ---- from the server's thread ----------------------------------------------------------------

    def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Begin to accept connections; where. Raises: `InputError`."""
        self._thread.start()
        try:
            self._listeners += _open_listeners(host, port)
        except OSError as error:
            self.close(Frame("bye"))
            allowed, why = (
                "an address of this machine and a free port",
                error.strerror or str(error),
            )
            raise InputError(allowed, where="--listen", got=f"{host}:{port}", hint=why) from None
        for listener in self._listeners:
            self._soon(self._accept(listener, tls))
        where = self._listeners[0].getsockname()
        return str(where[0]), int(where[1])

    def give(
        self,
        client: int,
        label: str,
        parcel: Parcel,
        most_body: int,
        tell: Callable[[ArrivedUpload], object],
    ) -> None:
        """A task for a client; `tell` is called, in the story's time, with what comes of it."""
        frame = Frame("task", parcel.facts, parcel.body)
        self._soon(self._give(client, label, frame, _Errand(tell, most_body)))

    def forget(self, client: int, label: str) -> int:
        """Nobody waits for this upload any longer: it need not be sent. How many bytes of its task
        have left."""
        errand = self._wait(self._take_back(client, label))
        if errand is None:
            return 0
        self._soon(self._tell(client, Frame("skip", {"label": label})))
        return errand.sent_bytes

    def tell(self, client: int, frame: Frame) -> None:
        """Something that a client must know, now or when it is back."""
        self._soon(self._tell(client, frame))

    def ask(
        self, what: str, questions: Sequence[tuple[int, Parcel]], most_body: int = _SMALL
    ) -> list[Parcel | None]:
        """Clients' answers to questions, of all at once; None: the client is gone."""

        async def ask_all() -> list[Parcel | None]:
            return await asyncio.gather(
                *(self._ask(client, what, parcel, most_body) for client, parcel in questions)
            )

        return self._wait(ask_all())

    def states(self) -> dict[int, Parcel]:
        """What every client that is there needs to go on from here."""
        there = self.there
        answers = self.ask("keep", [(client, Parcel({})) for client in there], self.most_state)
        return {c: state for c, state in zip(there, answers, strict=True) if state is not None}

    @property
    def there(self) -> list[int]:
        """Clients that are ready, ascending."""
        return sorted(client for client, peer in list(self._peers.items()) if peer.ready)

    def clocks(self) -> dict[str, dict[str, float]]:
        """Client → how far its clock is ahead, and how sure that is."""
        return {
            str(client): {
                "ahead_s": line.ahead_s,
                "unsure_s": line.unsure_s,
                "exchanges": line.exchanges,
                "wandered_s": line.wandered_s,
            }
            for client, line in sorted(self._clocks.items())
            if line.exchanges
        }

    def close(self, last: Frame) -> None:
        """Say it to everybody and hang up; safe to call twice."""
        if self._loop.is_closed() or not self._thread.is_alive():
            return
        with contextlib.suppress(Exception):
            self._wait(self._hang_up(last))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        unfinished = asyncio.all_tasks(self._loop)
        for task in unfinished:
            task.cancel()
        if unfinished:
            self._loop.run_until_complete(asyncio.wait(unfinished))
        self._loop.close()

    def _wait(self, work: Coroutine[object, None, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _soon(self, work: Coroutine[object, None, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop)

    # ---- one connection --------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(listener)
            except OSError:  # too many are open: what is silent goes first
                if listener.fileno() < 0:
                    return
                self.strangers.end_oldest()
                await asyncio.sleep(_PAUSE_S)
                continue
            task = self._loop.create_task(self._meet(connection, str(address[0]), tls))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _meet(
        self, connection: socket.socket, address: str, tls: ssl.SSLContext | None
    ) -> None:
        peer: _Peer | None = None
        wire: Wire | None = None
        why = "the connection was closed"
        task = asyncio.current_task()
        assert task is not None
        try:
            with self.strangers.hold(address, task.cancel):
                wire = await self._open(connection, tls)
                opening = await self._identify(wire)
            peer = await self._admit(wire, opening)
            await self._listen_to(peer)
        except (Refused, Altered) as error:
            why = str(error)
            self.refused.append(why)
            if wire is not None:
                later = isinstance(error, (Altered, RefusedForNow))
                wire.patience_s = self.patience.handshake_s
                with contextlib.suppress(Gone):
                    await wire.send(Frame("refused", {"why": why, "later": later}))
        except Gone as error:
            why = str(error)
        except OSError as error:
            why = f"the connection was lost ({error})"
        except asyncio.CancelledError:
            why = "the server has stopped"
        finally:
            if peer is not None:
                self._lose(peer, why)
            if wire is not None:
                wire.close()
            else:
                connection.close()

    async def _open(self, connection: socket.socket, tls: ssl.SSLContext | None) -> Wire:
        """Raises: `OSError` where TLS does not come about."""
        # asyncio does so for sockets that it opened itself; else the last, short segment of a task
        # waits for an acknowledgement that the other end delays, by 40 ms as a rule
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = asyncio.StreamReader(limit=2**18)
        protocol = asyncio.StreamReaderProtocol(reader)
        patience_s = self.patience.handshake_s
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else patience_s,
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        return Wire(reader, writer, patience_s)

    async def _identify(self, wire: Wire) -> handshake.Opening:
        """Who the other end is. Raises: `Gone`, `Refused`."""
        ours, patience_s = handshake.nonce(), self.patience.handshake_s
        await wire.send(handshake.greeting(ours))
        try:
            hello = await wait_within(patience_s, wire.receive(0))
        except asyncio.TimeoutError:
            raise Gone(f"it did not say who it is within {patience_s:g} s") from None
        return handshake.check_hello(hello, self.token, ours, self.clients)

    async def _admit(self, wire: Wire, opening: handshake.Opening) -> _Peer:
        """Welcome a client. Raises: `RefusedForNow` where it is here already, `Gone`."""
        if self.token:
            wire.seal(*opening.keys(self.token))
        wire.patience_s = self.patience.silence_s
        peer = _Peer(opening.client, opening.life, wire)
        peer.heard()
        before = self._peers.get(peer.client)
        if before is not None:
            alive = time.monotonic() - before.heard_s < 3 * self.patience.beat_s
            if before.life != peer.life and alive:
                raise RefusedForNow(f"client {peer.client} is here already")
            self._lose(before, "its client has come again")
            before.wire.close()
        self._peers[peer.client] = peer
        parcel = self.welcome(peer.client)
        beat_s, silence_s = self.patience.beat_s, self.patience.silence_s
        facts = {**parcel.facts, "beat_s": beat_s, "silence_s": silence_s}
        try:
            await wire.send(Frame("welcome", facts, parcel.body))
        except BaseException as error:
            self._lose(peer, str(error))
            raise
        return peer

    async def _listen_to(self, peer: _Peer) -> None:
        beat = asyncio.ensure_future(self._beat(peer))
        try:
            while True:
                await self._hear(peer, await peer.wire.receive(lambda: peer.most_body, peer.heard))
        finally:
            beat.cancel()

    async def _hear(self, peer: _Peer, frame: Frame) -> None:
        facts = frame.facts
        if frame.kind == "pong":
            asked_s = peer.pinged_s.pop(_read_int(facts.get("n")), None)
            if asked_s is not None:
                heard_s, answered_s = (
                    read_number(facts, "heard_s"),
                    read_number(facts, "answered_s"),
                )
                peer.line.add(Exchange(asked_s, heard_s, answered_s, frame.at_s))
                self._clocks[peer.client] = peer.line
        elif frame.kind in ("upload", "failed"):
            for errand in self._find_errands(peer, _read_text(facts, "label")):
                arrival = errand.arrival(frame, peer.line)
                self.post(frame.at_s, partial(errand.tell, arrival))
        elif frame.kind == "answer":
            waiting = peer.questions.pop(_read_int(facts.get("number")), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)
        elif frame.kind == "built":
            await self._greet(peer, dict(facts))
        elif frame.kind == "ready":
            if not peer.line.exchanges:
                raise Refused("its clock is not known yet")
            peer.ready = True
            self.post(frame.at_s, lambda: self.joined(peer.client))
        elif frame.kind != "beat":
            raise Refused(f"a message {quote(frame.kind)} that no client sends")

    def _find_errands(self, peer: _Peer, label: str) -> list[_Errand]:
        """What an upload answers. One of a task that the client was not given here, or has
        answered before, answers all that it was given: each refuses it by its label, as nobody
        could tell how long the right one is to be waited for."""
        if label in peer.forgotten:
            peer.forgotten.discard(label)
            return []
        if label in peer.errands:
            return [peer.errands.pop(label)]
        errands = [*peer.errands.values()]
        peer.errands.clear()
        return errands

    async def _greet(self, peer: _Peer, facts: dict[str, Plain]) -> None:
        """A client that has built its half: check what it has, give it what it lacks."""
        wrong = self.check(peer.client, facts)
        if wrong is not None:
            raise Refused(wrong)
        news: Sequence[Frame] = self._news.pop(peer.client, [])
        if self._lives.get(peer.client) != peer.life:
            news = self.tell_newcomer(peer.client)
        for frame in news:
            await peer.wire.send(frame)
        self._lives[peer.client] = peer.life
        for _ in range(_FIRST_EXCHANGES):
            await self._ping(peer)
        await peer.wire.send(Frame("go"))

    async def _beat(self, peer: _Peer) -> None:
        with contextlib.suppress(Gone):
            while True:
                await asyncio.sleep(self.patience.beat_s)
                await self._ping(peer)

    async def _ping(self, peer: _Peer) -> None:
        number = next(self._numbers)

        def ask() -> Frame:
            peer.pinged_s[number] = time.monotonic()
            if len(peer.pinged_s) > 1000:
                peer.pinged_s.pop(next(iter(peer.pinged_s)))
            return Frame("ping", {"n": number})

        await peer.wire.send(ask)

    def _lose(self, peer: _Peer, why: str) -> None:
        """A connection is over: what was under way there will not come."""
        if self._peers.get(peer.client) is peer:
            del self._peers[peer.client]
        now_s = time.monotonic()
        for errand in peer.errands.values():
            self.post(now_s, partial(errand.tell, errand.arrival(None, peer.line)))
        peer.errands.clear()
        for waiting in peer.questions.values():
            if not waiting.done():
                waiting.set_exception(Gone(why))
        if peer.ready:
            peer.ready = False
            self.post(now_s, lambda: self.left(peer.client, why))

    # ---- what the server wants -------------------------------------------------------------------

    async def _give(self, client: int, label: str, frame: Frame, errand: _Errand) -> None:
        peer = self._peers.get(client)
        if peer is None or not peer.ready:
            errand.sent_s = time.monotonic()
            self.post(errand.sent_s, partial(errand.tell, errand.arrival(None, ClockLine())))
            return
        peer.errands[label] = errand
        peer.most_body = max(peer.most_body, errand.most_body)

        def task() -> Frame:
            errand.sent_s = time.monotonic()  # its answer may come before `send` returns
            return frame

        try:
            await peer.wire.send(task, errand.add_sent)
        except Gone as error:
            self._lose(peer, str(error))
            peer.wire.close()

    async def _take_back(self, client: int, label: str) -> _Errand | None:
        peer = self._peers.get(client)
        if peer is None or label not in peer.errands:
            return None
        peer.forgotten.add(label)
        return peer.errands.pop(label)

    async def _tell(self, client: int, frame: Frame) -> None:
        peer = self._peers.get(client)
        if peer is None or not peer.ready:
            self._news.setdefault(client, []).append(frame)
            return
        with contextlib.suppress(Gone):
            await peer.wire.send(frame)

    async def _ask(self, client: int, what: str, parcel: Parcel, most_body: int) -> Parcel | None:
        peer = self._peers.get(client)
        if peer is None or not peer.ready:
            return None
        number = next(self._numbers)
        waiting: asyncio.Future[Frame] = self._loop.create_future()
        peer.questions[number] = waiting
        peer.most_body = max(peer.most_body, most_body)
        facts = {**parcel.facts, "number": number, "what": what}
        try:
            await peer.wire.send(Frame("ask", facts, parcel.body))
            answer = await asyncio.wait_for(waiting, self.patience.answer_s)
        except (Gone, asyncio.TimeoutError):
            return None
        finally:
            peer.questions.pop(number, None)
        return Parcel(answer.facts, answer.body)

    async def _hang_up(self, last: Frame) -> None:
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        while len(self.strangers):
            self.strangers.end_oldest()
        for peer in list(self._peers.values()):
            with contextlib.suppress(Gone, asyncio.TimeoutError):
                await wait_within(self.patience.handshake_s, peer.wire.send(last))
        # who is told hangs up; closing first could throw away what is on its way to a client
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=_FAREWELL_S)
        for peer in list(self._peers.values()):
            peer.wire.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _open_listeners(host: str, port: int) -> list[socket.socket]:
    """One for every address of this machine that the host's name stands for. Raises: `OSError`."""
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(
        socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    ):
        try:
            listener = socket.create_server((str(address[0]), port), family=family, backlog=128)
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # as ::1 without IPv6
                missing = error
                continue
            for listener in listeners:
                listener.close()
            raise
        listener.setblocking(False)
        listeners.append(listener)
    if missing is not None and not listeners:
        raise missing
    return listeners


def _log_in_a_line(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio would print with a traceback."""
    error = context.get("exception")
    logging.getLogger(__name__).warning("%s%s", context["message"], f": {error}" if error else "")


def _read_text(facts: Mapping[str, Plain], name: str) -> str:
    value = facts.get(name)
    return value if isinstance(value, str) else ""


def _read_int(value: object) -> int:
    return value if type(value) is int else -1
