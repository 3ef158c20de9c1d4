"""The server's end of all connections: who is there, what is under way, what came.

Runs on a thread of its own, so that hearts beat while the server merges. What happens is told to
`post`, with the instant by this machine's monotonic clock at which it happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from simfed.deploy import handshake
from simfed.deploy.clocks import Exchange, Line
from simfed.deploy.frames import Busy, Frame, Gone, Refused, read_frame, write_frame
from simfed.errors import InputError
from simfed.learn.parcel import Parcel

__all__ = ["Came", "Patience", "Peers"]

_Result = TypeVar("_Result")
Post = Callable[[float, Callable[[], object]], object]

_STRANGERS = 64
"""Connections at a time that have not said who they are."""
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
class Came:
    """An upload, or why there will be none."""

    frame: Frame | None
    """None: its client is gone."""
    sent_s: float
    """When the first byte of the task left, by this machine's monotonic clock."""
    sent_bytes: int
    line: Line


@dataclass(slots=True)
class _Errand:
    """Something that a client was given and has not answered."""

    told: Callable[[Came], object]
    most_body: int
    sent_s: float = 0.0
    sent_bytes: int = 0


@dataclass(eq=False, slots=True)
class _Peer:
    """One connection whose other end is known."""

    client: int
    life: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    line: Line = field(default_factory=Line)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    errands: dict[str, _Errand] = field(default_factory=dict)
    asked: dict[int, asyncio.Future[Frame]] = field(default_factory=dict)
    ready: bool = False
    most: int = _SMALL
    heard_s: float = 0.0
    pinged_s: dict[int, float] = field(default_factory=dict)

    def heard(self) -> None:
        """A byte has come."""
        self.heard_s = time.monotonic()

    def most_body(self) -> int:
        """The longest body that may come: of what was asked for so far, as the answer to what
        nobody waits for any longer may still be on its way."""
        return self.most

    def expect(self, name: str, errand: _Errand) -> None:
        """Something that is to be answered."""
        self.errands[name] = errand
        self.most = max(self.most, errand.most_body)


class Peers:
    """The connections of one server.

    welcome(client): what a client is told beside the server's proof. check(client, facts): what is
    wrong with what it says of itself, or None. state_of(client): what a client that has begun anew
    goes on from, or None. joined(client), left(client, why): called in the story's time.
    """

    def __init__(
        self,
        clients: int,
        token: bytes,
        post: Post,
        *,
        welcome: Callable[[int], Parcel],
        check: Callable[[int, dict[str, Any]], str | None],
        state_of: Callable[[int], Parcel | None],
        joined: Callable[[int], object],
        left: Callable[[int, str], object],
        most_state: int,
        patience: Patience | None = None,
    ) -> None:
        self._clients, self._token, self._post = clients, token, post
        self._welcome, self._check, self._state_of = welcome, check, state_of
        self._joined, self._left = joined, left
        self._most_state = most_state
        self._patience = patience or Patience()
        self._peers: dict[int, _Peer] = {}
        self._lives: dict[int, str] = {}
        self._news: dict[int, list[Frame]] = {}
        self._clocks: dict[int, Line] = {}
        self._strangers = 0
        self._numbers = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="simfed-peers", daemon=True)
        self.refused: list[str] = []
        """Why connections were refused, for whoever looks on."""

    # ---- from the server's thread ----------------------------------------------------------------

    def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Begin to accept connections; where. Raises: `InputError`."""
        self._thread.start()
        try:
            self._server = self._wait(
                asyncio.start_server(self._meet, host, port, ssl=tls, limit=2**18)
            )
        except OSError as error:
            self.close(Frame("bye"))
            raise InputError(
                "an address of this machine and a free port", where="--listen",
                got=f"{host}:{port}", hint=error.strerror or str(error),
            ) from None  # fmt: skip
        where = self._server.sockets[0].getsockname()
        return str(where[0]), int(where[1])

    def give(
        self, client: int, label: str, parcel: Parcel, most_body: int,
        told: Callable[[Came], object],
    ) -> None:  # fmt: skip
        """A task for a client; `told` is called, in the story's time, with what comes of it."""
        frame = Frame("task", parcel.facts, parcel.body)
        self._soon(self._give(client, label, frame, _Errand(told, most_body)))

    def forget(self, client: int, label: str) -> None:
        """Nobody waits for this upload any longer: it need not be sent."""
        self._soon(self._forget(client, label))

    def tell(self, client: int, frame: Frame) -> None:
        """Something that a client must know, now or when it is back."""
        self._soon(self._tell(client, frame))

    def ask(
        self, what: str, asked: Sequence[tuple[int, Parcel]], most_body: int = _SMALL
    ) -> list[Parcel | None]:
        """What only clients know, of all at once; None: it is gone."""

        async def told() -> list[Frame | None]:
            return await asyncio.gather(
                *(self._ask(client, what, parcel, most_body) for client, parcel in asked)
            )

        return [None if f is None else Parcel(f.facts, f.body) for f in self._wait(told())]

    def keep_all(self) -> dict[int, Parcel]:
        """What every client that is there needs to go on from here."""

        async def kept() -> dict[int, Frame | None]:
            there = [client for client, peer in self._peers.items() if peer.ready]
            found = await asyncio.gather(
                *(self._ask(client, "keep", Parcel({}), self._most_state) for client in there)
            )
            return dict(zip(there, found, strict=True))

        return {c: Parcel(f.facts, f.body) for c, f in self._wait(kept()).items() if f is not None}

    @property
    def there(self) -> list[int]:
        """Clients that are ready, ascending."""
        return sorted(client for client, peer in list(self._peers.items()) if peer.ready)

    def clocks(self) -> dict[str, dict[str, float]]:
        """Of every client's clock: what is known of it."""
        return {
            str(client): {
                "ahead_s": line.ahead_s, "unsure_s": line.unsure_s, "exchanges": line.exchanges,
                "wandered_s": line.wandered_s,
            }
            for client, line in sorted(self._clocks.items())
            if line.exchanges
        }  # fmt: skip

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

    def _wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _soon(self, work: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop)

    # ---- one connection --------------------------------------------------------------------------

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        peer: _Peer | None = None
        why = "the connection was closed"
        try:
            with self._one_more_stranger():
                peer = await self._shake_hands(reader, writer)
            await self._listen_to(peer)
        except Refused as error:
            why = str(error)
            self.refused.append(why)
            with contextlib.suppress(Gone):
                frame = Frame("refused", {"why": why, "later": isinstance(error, Busy)})
                await write_frame(writer, frame, patience_s=self._patience.handshake_s)
        except Gone as error:
            why = str(error)
        except (ConnectionError, ssl.SSLError) as error:
            why = f"the connection was lost ({error})"
        except asyncio.CancelledError:
            why = "the server has stopped"
        finally:
            self._tasks.discard(task)
            if peer is not None:
                self._lose(peer, why)
            writer.close()

    @contextlib.contextmanager
    def _one_more_stranger(self) -> Iterator[None]:
        if self._strangers >= _STRANGERS:
            raise Busy("too many connections at once that have not said who they are")
        self._strangers += 1
        try:
            yield
        finally:
            self._strangers -= 1

    async def _shake_hands(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Peer:
        patience_s, ours = self._patience.handshake_s, handshake.nonce()
        await write_frame(writer, handshake.greeting(ours), patience_s=patience_s)
        said = await asyncio.wait_for(
            read_frame(reader, most_body=0, patience_s=patience_s), 2 * patience_s
        )
        client = handshake.check_hello(said, self._token, ours, self._clients)
        peer = _Peer(client, str(said.facts.get("life")), reader, writer)
        peer.heard()
        before = self._peers.get(client)
        if before is not None:
            alive = time.monotonic() - before.heard_s < 3 * self._patience.beat_s
            if before.life != peer.life and alive:
                raise Busy(f"client {client} is here already")
            self._lose(before, "its client has come again")
            before.writer.close()
        self._peers[client] = peer
        parcel = self._welcome(client)
        told = {
            **parcel.facts,
            "beat_s": self._patience.beat_s,
            "silence_s": self._patience.silence_s,
            "proof": handshake.proof(self._token, "server", ours, str(said.facts.get("nonce"))),
        }
        await self._write(peer, Frame("welcome", told, parcel.body))
        return peer

    async def _listen_to(self, peer: _Peer) -> None:
        beat = asyncio.ensure_future(self._beat(peer))
        try:
            while True:
                frame = await read_frame(
                    peer.reader, most_body=peer.most_body, patience_s=self._patience.silence_s,
                    heard=peer.heard,
                )  # fmt: skip
                await self._hear(peer, frame)
        finally:
            beat.cancel()

    async def _hear(self, peer: _Peer, frame: Frame) -> None:
        facts = frame.facts
        if frame.kind == "pong":
            asked_s = peer.pinged_s.pop(_int(facts.get("n")), None)
            if asked_s is not None:
                heard_s, answered_s = _instant(facts, "heard_s"), _instant(facts, "answered_s")
                peer.line.add(Exchange(asked_s, heard_s, answered_s, frame.at_s))
                self._clocks[peer.client] = peer.line
        elif frame.kind in ("upload", "failed"):
            errand = peer.errands.pop(str(facts.get("label")), None)
            if errand is not None:
                came = Came(frame, errand.sent_s, errand.sent_bytes, peer.line)
                self._post(frame.at_s, lambda: errand.told(came))
        elif frame.kind == "answer":
            waiting = peer.asked.pop(_int(facts.get("number")), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)
        elif frame.kind == "built":
            await self._greet(peer, dict(facts))
        elif frame.kind == "ready":
            if not peer.line.exchanges:
                raise Refused("its clock is not known yet")
            peer.ready = True
            self._post(frame.at_s, lambda: self._joined(peer.client))
        elif frame.kind != "beat":
            raise Refused(f"a message {frame.kind[:40]!r} that no client sends")

    async def _greet(self, peer: _Peer, facts: dict[str, Any]) -> None:
        """A client that has built its half: check what it has, give it what it lacks."""
        wrong = self._check(peer.client, facts)
        if wrong is not None:
            raise Refused(wrong)
        news = self._news.pop(peer.client, [])
        if self._lives.get(peer.client) == peer.life:
            for frame in news:
                await self._write(peer, frame)
        else:
            state = self._state_of(peer.client)
            if state is not None:
                await self._write(peer, Frame("take up", state.facts, state.body))
        self._lives[peer.client] = peer.life
        for _ in range(_FIRST_EXCHANGES):
            await self._ping(peer)
        await self._write(peer, Frame("go"))

    async def _beat(self, peer: _Peer) -> None:
        with contextlib.suppress(Gone):
            while True:
                await asyncio.sleep(self._patience.beat_s)
                await self._ping(peer)

    async def _ping(self, peer: _Peer) -> None:
        self._numbers += 1
        number = self._numbers
        async with peer.lock:
            peer.pinged_s[number] = time.monotonic()
            if len(peer.pinged_s) > 1000:
                peer.pinged_s.pop(next(iter(peer.pinged_s)))
            frame = Frame("ping", {"n": number})
            await write_frame(peer.writer, frame, patience_s=self._patience.silence_s)

    async def _write(self, peer: _Peer, frame: Frame) -> tuple[float, int]:
        """When it began to leave, and its size."""
        async with peer.lock:
            since_s = time.monotonic()
            size = await write_frame(peer.writer, frame, patience_s=self._patience.silence_s)
        return since_s, size

    def _lose(self, peer: _Peer, why: str) -> None:
        """A connection is over: what was under way there will not come."""
        if self._peers.get(peer.client) is peer:
            del self._peers[peer.client]
        now_s = time.monotonic()
        for errand in peer.errands.values():
            came = Came(None, errand.sent_s, errand.sent_bytes, peer.line)
            self._post(now_s, lambda told=errand.told, came=came: told(came))  # type: ignore[misc]
        peer.errands.clear()
        for waiting in peer.asked.values():
            if not waiting.done():
                waiting.set_exception(Gone(why))
        if peer.ready:
            peer.ready = False
            self._post(now_s, lambda: self._left(peer.client, why))

    # ---- what the server wants -------------------------------------------------------------------

    async def _give(self, client: int, label: str, frame: Frame, errand: _Errand) -> None:
        peer = self._peers.get(client)
        if peer is None or not peer.ready:
            came = Came(None, time.monotonic(), 0, Line())
            self._post(came.sent_s, lambda: errand.told(came))
            return
        peer.expect(label, errand)
        try:
            errand.sent_s, errand.sent_bytes = await self._write_task(peer, frame, errand)
        except Gone as error:
            self._lose(peer, str(error))
            peer.writer.close()

    async def _write_task(self, peer: _Peer, frame: Frame, errand: _Errand) -> tuple[float, int]:
        async with peer.lock:
            errand.sent_s = time.monotonic()  # its answer may come before `write_frame` returns
            size = await write_frame(peer.writer, frame, patience_s=self._patience.silence_s)
        return errand.sent_s, size

    async def _forget(self, client: int, label: str) -> None:
        peer = self._peers.get(client)
        if peer is not None and peer.errands.pop(label, None) is not None:
            with contextlib.suppress(Gone):
                await self._write(peer, Frame("skip", {"label": label}))

    async def _tell(self, client: int, frame: Frame) -> None:
        peer = self._peers.get(client)
        if peer is None or not peer.ready:
            self._news.setdefault(client, []).append(frame)
            return
        with contextlib.suppress(Gone):
            await self._write(peer, frame)

    async def _ask(self, client: int, what: str, parcel: Parcel, most_body: int) -> Frame | None:
        peer = self._peers.get(client)
        if peer is None or not peer.ready:
            return None
        self._numbers += 1
        number, name = self._numbers, f"ask {self._numbers}"
        waiting: asyncio.Future[Frame] = self._loop.create_future()
        peer.asked[number] = waiting
        # an errand of nobody's: its answer may be so long
        peer.expect(name, _Errand(lambda came: None, most_body))
        facts = {**parcel.facts, "number": number, "what": what}
        try:
            await self._write(peer, Frame("ask", facts, parcel.body))
            return await asyncio.wait_for(waiting, self._patience.answer_s)
        except (Gone, asyncio.TimeoutError):
            return None
        finally:
            peer.asked.pop(number, None)
            peer.errands.pop(name, None)

    async def _hang_up(self, last: Frame) -> None:
        if hasattr(self, "_server"):
            self._server.close()
        for peer in list(self._peers.values()):
            with contextlib.suppress(Gone):
                await asyncio.wait_for(self._write(peer, last), self._patience.handshake_s)
        # who is told hangs up; closing first could throw away what is on its way to a client
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=_FAREWELL_S)
        for peer in list(self._peers.values()):
            peer.writer.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _int(value: Any) -> int:
    return value if type(value) is int else -1


def _instant(facts: Any, name: str) -> float:
    value = facts.get(name)
    if not isinstance(value, (int, float)) or not abs(value) < 1e12:
        raise Refused(f"a message whose {name} is no instant")
    return float(value)
