"""The server's end of all connections: who is there, what is under way, what came.

Runs on a thread of its own, so that hearts beat while the server merges. What happens
is told to `post`, with the instant by this machine's monotonic clock at which it
happened. The upper half of `Peers` is called by the server's thread, the lower half
(`async`) runs on the connections'.
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

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from simfed.deploy.access import Seat, read_seat
from simfed.deploy.clocks import ClockLine, Exchange
from simfed.deploy.doorstep import Doorstep
from simfed.deploy.messages import (
    Gone,
    Message,
    Refused,
    RefusedForNow,
    quote,
    read_number,
)
from simfed.deploy.wire import DONE, LATER, LEAVING, REFUSED, SILENT, ServerEnd, Wire
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain
from simfed.learn.parcel import Parcel

_Result = TypeVar("_Result")
Post = Callable[[float, Callable[[], object]], object]

_MOST_REFUSALS = 20
"""The most refusals of which is told why."""
_FIRST_EXCHANGES = 8
_FAREWELL_S = 2.0
"""Seconds that clients have to answer when they have been told that it is over."""


@dataclass(frozen=True, slots=True)
class Patience:
    """The seconds of waiting, by what is waited for.

    Part of `Listening`; tests make them short.
    """

    handshake_s: float = 10.0
    """Seconds until a connection has said who it is."""
    silence_s: float = 30.0
    """Without a byte from the other end it is gone."""
    beat_s: float = 2.0
    """Between pings, and exchanges of clocks."""
    answer_s: float = 600.0
    """Seconds for what only a client can measure."""


@dataclass(frozen=True, slots=True)
class ArrivedUpload:
    """An upload, or that there will be none.

    The connections' thread makes it, `simfed.deploy.playing` takes it in the story's
    time.
    """

    message: Message | None
    """None: its client is gone."""
    sent_s: float
    """The instant at which the first byte of the task left, by this machine's monotonic
    clock."""
    sent_bytes: int
    line: ClockLine


@dataclass(slots=True)
class _Errand:
    """A task that a client was given and has not answered.

    `tell` is called, in the story's time, with what comes of it.
    """

    tell: Callable[[ArrivedUpload], object]
    sent_s: float = 0.0
    sent_bytes: int = 0

    def add_sent(self, size: int) -> None:
        """Count so many bytes of it more that have left."""
        self.sent_bytes += size

    def arrival(self, message: Message | None, line: ClockLine) -> ArrivedUpload:
        """Return what came of it; `message` None: its client is gone."""
        return ArrivedUpload(message, self.sent_s, self.sent_bytes, line)


@dataclass(eq=False, slots=True)
class _Peer:
    """One client's connection, and what is under way on it.

    It ends with the connection; what the client is told when it is back is kept in
    `Peers`.
    """

    client: int
    life: str
    wire: Wire
    line: ClockLine = field(default_factory=ClockLine)
    errands: dict[str, _Errand] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    """Labels of tasks whose uploads nobody waits for any longer, and which may still
    come."""
    questions: dict[int, asyncio.Future[Message]] = field(default_factory=dict)
    ready: bool = False
    asked_s: dict[int, float] = field(default_factory=dict)
    """Exchange of clocks → when it was begun."""


@dataclass(eq=False)
class Peers:
    """The connections of one server, on a thread of their own.

    `simfed.deploy.serving` makes it; `simfed.deploy.playing` gives tasks and asks.
    """

    clients: int
    """The number of the scenario's clients."""
    token: str
    post: Post
    """Lets something happen in the story's time."""
    _: KW_ONLY
    welcome: Parcel
    """The message that every client is told first."""
    check: Callable[[int, dict[str, Plain]], str | None]
    """Client and its facts of itself → what is wrong with them, or None."""
    tell_newcomer: Callable[[int], Sequence[Message]]
    """Client that is another process than before → what it goes on from."""
    joined: Callable[[int], object]
    """Called in the story's time, as is `left` with the reason."""
    left: Callable[[int, str], object]
    most: int
    """Bytes of the longest message of a client's."""
    patience: Patience = Patience()

    def __post_init__(self) -> None:
        self._peers: dict[int, _Peer] = {}
        self._lives: dict[int, str] = {}
        """Client → its process that was here last."""
        self._news: dict[int, list[Message]] = {}
        """Client that is away → what it is told when it is back."""
        self._clocks: dict[int, ClockLine] = {}
        self.doors: list[Doorstep] = []
        self._servers: list[Any] = []
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_print_in_a_line)
        self._thread = threading.Thread(
            target=self._run, name="simfed-peers", daemon=True
        )
        self.refused: deque[str] = deque(maxlen=_MOST_REFUSALS)
        """The reasons of the last refusals, for whoever looks on."""

    # ---- from the server's thread ----------------------------------------------------

    def listen(
        self, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Begin to accept connections, and return host and port.

        Args:
            host: a name or address of this machine; empty: all of them.
            port: 0: any free one.
            tls: None: without.

        Raises:
            InputError: the address or port is not to be had.
        """
        self._thread.start()
        try:
            self.doors += _open_doors(host, port)
        except OSError as error:
            self.close()
            allowed = "an address of this machine and a free port"
            why = error.strerror or str(error)
            raise InputError(
                allowed, where="--listen", got=f"{host}:{port}", hint=why
            ) from None
        where = self.doors[0].getsockname()
        for door in self.doors:
            self._servers.append(self._wait(self._serve(door, tls)))
        return str(where[0]), int(where[1])

    def give(
        self,
        client: int,
        label: str,
        parcel: Parcel,
        tell: Callable[[ArrivedUpload], object],
    ) -> None:
        """Give a client a task.

        Args:
            client: its number; where it is not there, the task is lost at once.
            label: the task's, by which its upload is known.
            parcel: what the task carries.
            tell: is called, in the story's time, with what comes of it.
        """
        task = Message("task", parcel.facts, parcel.body)
        self._soon(self._give(client, label, task, _Errand(tell)))

    def forget(self, client: int, label: str) -> int:
        """Wait for this upload no longer: it need not be sent.

        Returns:
            The bytes of its task that have left.
        """
        errand = self._wait(self._take_back(client, label))
        if errand is None:
            return 0
        self._soon(self._tell(client, Message("skip", {"label": label})))
        return errand.sent_bytes

    def tell(self, client: int, message: Message) -> None:
        """Tell a client what it must know, now or when it is back."""
        self._soon(self._tell(client, message))

    def ask(
        self, what: str, questions: Sequence[tuple[int, Parcel]]
    ) -> list[Parcel | None]:
        """Return clients' answers to questions, asked all at once.

        Args:
            what: the kind of question: `keep`, or one of the learning's.
            questions: clients, each with what the question carries.

        Returns:
            In the same order; None: the client is gone, or silent for too long.
        """

        async def ask_all() -> list[Parcel | None]:
            return await asyncio.gather(
                *(self._ask(client, what, parcel) for client, parcel in questions)
            )

        return self._wait(ask_all())

    def states(self) -> dict[int, Parcel]:
        """Return what every client that is there needs to go on from here."""
        there = self.there
        answers = self.ask("keep", [(client, Parcel({})) for client in there])
        return {
            c: state
            for c, state in zip(there, answers, strict=True)
            if state is not None
        }

    @property
    def there(self) -> list[int]:
        """Clients that are ready, ascending."""
        return sorted(
            client for client, peer in list(self._peers.items()) if peer.ready
        )

    def clocks(self) -> dict[str, dict[str, float]]:
        """Return, by client, how far its clock is ahead and how sure that is, in s."""
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

    def close(self, *, done: bool = False) -> None:
        """Tell everybody that the run is done, or that the server stops.

        Safe to call twice.

        Args:
            done: clients end; else they look for the server for a while.
        """
        if self._loop.is_closed() or not self._thread.is_alive():
            return
        with contextlib.suppress(Exception):
            self._wait(self._hang_up(DONE if done else LEAVING))
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

    # ---- one connection --------------------------------------------------------------

    async def _serve(self, door: Doorstep, tls: ssl.SSLContext | None) -> object:
        patience_s = self.patience.handshake_s
        options: dict[str, Any] = (
            {} if tls is None else {"ssl_handshake_timeout": patience_s}
        )
        return await serve(
            self._hear_client,
            sock=door,
            ssl=tls,
            process_request=self._look_at,
            create_connection=ServerEnd,
            origins=[None],  # a page in somebody's browser names one
            compression=None,
            max_size=self.most,
            open_timeout=patience_s,
            close_timeout=_FAREWELL_S,
            ping_interval=self.patience.beat_s,
            ping_timeout=None,  # see `Wire.watch`
            server_header=None,
            logger=SILENT,
            **options,
        )

    def _look_at(
        self, connection: ServerConnection, request: Request
    ) -> Response | None:
        """Return what refuses a request; None: who sent it may talk."""
        assert isinstance(connection, ServerEnd)
        try:
            bearers = request.headers.get_all("Authorization")
            connection.seat = read_seat(request.path, bearers, self.token, self.clients)
        except Refused as error:
            self.refused.append(str(error))
            return connection.respond(403, f"{error}\n")
        return None

    async def _hear_client(self, connection: ServerConnection) -> None:
        """Hear one client until its connection is over, and note why that is."""
        assert isinstance(connection, ServerEnd)
        peer: _Peer | None = None
        wire, why = Wire(connection), "the server has stopped"
        helpers = [asyncio.ensure_future(wire.watch(self.patience.silence_s))]
        try:
            peer = await self._admit(wire, connection.seat)
            helpers.append(asyncio.ensure_future(self._compare_clocks(peer)))
            while True:
                await self._hear(peer, await wire.receive())
        except Refused as error:
            why = str(error)
            self.refused.append(why)
            await wire.close(
                LATER if isinstance(error, RefusedForNow) else REFUSED, why
            )
        except Gone as error:
            why = str(error)
        except Exception as error:  # the library's log is silent
            self._loop.call_exception_handler(
                {"message": ("a connection"), "exception": error}
            )
            raise
        finally:
            if peer is not None:
                self._lose(peer, why)
            for helper in helpers:
                helper.cancel()

    async def _admit(self, wire: Wire, seat: Seat) -> _Peer:
        """Welcome a client.

        Raises: `RefusedForNow` where it is here already, `Gone`.
        """
        peer = _Peer(*seat, wire)
        before = self._peers.get(peer.client)
        if before is not None:
            quiet_s = time.monotonic() - before.wire.connection.heard_s
            if before.life != peer.life and quiet_s < 3 * self.patience.beat_s:
                raise RefusedForNow(f"client {peer.client} is here already")
            self._lose(before, "its client has come again")
            before.wire.connection.transport.abort()
        self._peers[peer.client] = peer
        for door in self.doors:
            door.let_in(wire.connection.transport.get_extra_info("socket").fileno())
        facts = {**self.welcome.facts, "silence_s": self.patience.silence_s}
        try:
            await wire.send(Message("welcome", facts, self.welcome.body))
        except BaseException as error:
            self._lose(peer, str(error))
            raise
        return peer

    async def _hear(self, peer: _Peer, message: Message) -> None:
        """Take a message of a client.

        Raises:
            Refused: no client sends such a message.
        """
        facts = message.facts
        if message.kind == "clock":
            asked_s = peer.asked_s.pop(_read_int(facts.get("number")), None)
            if asked_s is not None:
                there_s = (
                    read_number(facts, "heard_s"),
                    read_number(facts, "answered_s"),
                )
                peer.line.add(Exchange(asked_s, *there_s, message.at_s))
                self._clocks[peer.client] = peer.line
        elif message.kind in ("upload", "failed"):
            for errand in self._find_errands(peer, _read_text(facts, "label")):
                arrival = errand.arrival(message, peer.line)
                self.post(message.at_s, partial(errand.tell, arrival))
        elif message.kind == "answer":
            waiting = peer.questions.pop(_read_int(facts.get("number")), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
        elif message.kind == "built":
            await self._greet(peer, dict(facts))
        elif message.kind == "ready" and not peer.ready:
            if not peer.line.exchanges:
                raise Refused("its clock is not known yet")
            peer.ready = True
            self.post(message.at_s, lambda: self.joined(peer.client))
        else:
            raise Refused(f"a message {quote(message.kind)} that no client sends")

    def _find_errands(self, peer: _Peer, label: str) -> list[_Errand]:
        """Return what an upload answers.

        One of a task that the client was not given here, or has answered before,
        answers all that it was given: each refuses it by its label, as nobody could
        tell how long the right one is to be waited for.
        """
        if label in peer.forgotten:
            peer.forgotten.discard(label)
            return []
        if label in peer.errands:
            return [peer.errands.pop(label)]
        errands = [*peer.errands.values()]
        peer.errands.clear()
        return errands

    async def _greet(self, peer: _Peer, facts: dict[str, Plain]) -> None:
        """Check what a client has that built its half, and give it what it lacks."""
        wrong = self.check(peer.client, facts)
        if wrong is not None:
            raise Refused(wrong)
        news: Sequence[Message] = self._news.pop(peer.client, [])
        if self._lives.get(peer.client) != peer.life:
            news = self.tell_newcomer(peer.client)
        for message in news:
            await peer.wire.send(message)
        self._lives[peer.client] = peer.life
        for _ in range(_FIRST_EXCHANGES):
            await self._ask_clock(peer)
        await peer.wire.send(Message("go"))

    async def _compare_clocks(self, peer: _Peer) -> None:
        """Compare clocks with a client every few seconds, until it is gone."""
        with contextlib.suppress(Gone, Refused):
            while True:
                await asyncio.sleep(self.patience.beat_s)
                await self._ask_clock(peer)

    async def _ask_clock(self, peer: _Peer) -> None:
        """Ask a client for its clock; `_hear` takes the answer."""
        number = next(self._numbers)

        def ask() -> Message:
            peer.asked_s[number] = time.monotonic()
            if len(peer.asked_s) > 1000:
                peer.asked_s.pop(next(iter(peer.asked_s)))
            return Message("clock", {"number": number})

        await peer.wire.send(ask)

    def _lose(self, peer: _Peer, why: str) -> None:
        """Note that a connection is over: what was under way there will not come."""
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

    # ---- what the server wants -------------------------------------------------------

    async def _give(
        self, client: int, label: str, task: Message, errand: _Errand
    ) -> None:
        peer = self._peers.get(client)
        if peer is None or not peer.ready:
            errand.sent_s = time.monotonic()
            self.post(
                errand.sent_s, partial(errand.tell, errand.arrival(None, ClockLine()))
            )
            return
        peer.errands[label] = errand

        def leave() -> Message:
            errand.sent_s = time.monotonic()
            return task

        with contextlib.suppress(Gone, Refused):  # whoever listens to it hears so, too
            await peer.wire.send(leave, errand.add_sent)

    async def _take_back(self, client: int, label: str) -> _Errand | None:
        peer = self._peers.get(client)
        if peer is None or label not in peer.errands:
            return None
        peer.forgotten.add(label)
        return peer.errands.pop(label)

    async def _tell(self, client: int, message: Message) -> None:
        """Tell a client something, now or when it is back."""
        peer = self._peers.get(client)
        if peer is None or not peer.ready:
            self._news.setdefault(client, []).append(message)
            return
        with contextlib.suppress(Gone, Refused):
            await peer.wire.send(message)

    async def _ask(self, client: int, what: str, parcel: Parcel) -> Parcel | None:
        peer = self._peers.get(client)
        if peer is None or not peer.ready:
            return None
        number = next(self._numbers)
        waiting: asyncio.Future[Message] = self._loop.create_future()
        peer.questions[number] = waiting
        facts = {**parcel.facts, "number": number, "what": what}
        try:
            await peer.wire.send(Message("ask", facts, parcel.body))
            answer = await asyncio.wait_for(waiting, self.patience.answer_s)
        except (Gone, Refused, asyncio.TimeoutError):
            return None
        finally:
            peer.questions.pop(number, None)
        return Parcel(answer.facts, answer.body)

    async def _hang_up(self, code: int) -> None:
        for door in self.doors:
            door.end_all()
        closing = [peer.wire.close(code) for peer in self._peers.values()]
        await asyncio.gather(*closing, return_exceptions=True)
        for server in self._servers:
            server.close()
        with contextlib.suppress(asyncio.TimeoutError):
            ends = [server.wait_closed() for server in self._servers]
            await asyncio.wait_for(asyncio.gather(*ends), _FAREWELL_S)


def _open_doors(host: str, port: int) -> list[Doorstep]:
    """Open a listening socket for every address that a name stands for here.

    Raises:
        OSError: an address is not to be had; where others are, one without IPv6 does
        not count.
    """
    doors: list[Doorstep] = []
    missing: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(
        socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    ):
        try:
            listener = socket.create_server(
                (str(address[0]), port), family=family, backlog=128
            )
        except OSError as error:
            # as ::1 without IPv6
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                missing = error
                continue
            for door in doors:
                door.close()
            raise
        doors.append(Doorstep(listener))
    if missing is not None and not doors:
        raise missing
    return doors


def _print_in_a_line(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Say in a line what asyncio would print with a traceback."""
    error = context.get("exception")
    logging.getLogger(__name__).warning(
        "%s%s", context["message"], (f": {error}") if error else ""
    )


def _read_text(facts: Mapping[str, Plain], name: str) -> str:
    value = facts.get(name)
    return value if isinstance(value, str) else ""


def _read_int(value: object) -> int:
    return value if type(value) is int else -1
