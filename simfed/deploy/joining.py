"""A client's end: `simfed join`.

The connection lives on an event loop, so that it answers at once whatever the client is doing; the
work is done on one other thread, one thing after another in the order in which the server asked. A
lost connection is sought again for a while: the same process keeps what it has learned about its
residual, and the server tells it which of its uploads are lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from simfed.deploy import handshake
from simfed.deploy.frames import Altered, Frame, Gone, Refused, RefusedForNow, quote, wait_within
from simfed.deploy.wire import Wire
from simfed.ground.errors import RunFailed, SimfedError
from simfed.ground.plain import Plain
from simfed.learn.parcel import Parcel, Part, unpack
from simfed.record.digest import digest_scenario
from simfed.record.manifest import versions

if TYPE_CHECKING:
    from simfed.learn.apart import ClientHalf, Fate

_WELCOME = 2**26
"""Bytes of a scenario and its files."""
_MOST = 2**20
"""Bytes of a message beside models and states."""
_HANDSHAKE_S = 10.0
"""For each message of a handshake; the welcome, with all files, may take twice as long to begin."""
_LAST_WORDS_S = 1.0
"""How long to listen to a server to whom nothing can be sent any longer."""
Say = Callable[[str], object]
_Result = TypeVar("_Result")


def join(
    host: str,
    port: int,
    client: int,
    *,
    token: bytes = b"",
    tls: ssl.SSLContext | None = None,
    patience_s: float = 60.0,
    allow_plugins: bool = False,
    say: Say = lambda sentence: None,
) -> None:
    """Be one client of a served scenario until it is done.

    patience_s: how long to look for a server that is not there (yet, or any longer).
    allow_plugins: run the Python files that the scenario names and the server sends.
    Raises: `Refused` where the server or this end does not take the other, `RunFailed` where the
    server is gone for good or the learning fails.
    """
    asyncio.run(_Client(client, token, tls, patience_s, allow_plugins, say).live(host, port))


@dataclass(eq=False)
class _Client:
    client: int
    token: bytes
    tls: ssl.SSLContext | None
    patience_s: float
    allow_plugins: bool
    say: Say

    def __post_init__(self) -> None:
        self.life = secrets.token_hex(8)
        self._digest: str | None = None
        self._half: ClientHalf | None = None
        self._thread = ThreadPoolExecutor(1, "simfed-client")
        self._folder = contextlib.ExitStack()

    async def live(self, host: str, port: int) -> None:
        """Connect, and again whenever the connection is lost, until the run is done."""
        since_s: float | None = None
        try:
            while True:
                talk = None
                try:
                    wire = await self._connect(host, port)
                    try:
                        talk = _Talk(self, wire)
                        if await talk.hold():
                            return
                        since_s = None
                    finally:
                        wire.close()
                except (Gone, RefusedForNow) as error:
                    if talk is not None and talk.begun:
                        since_s = None
                    since_s = self._search_since(since_s, str(error))
                    await asyncio.sleep(0.5)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)
            if self._half is not None:
                self._half.close()
            self._folder.close()

    async def _connect(self, host: str, port: int) -> Wire:
        """Raises: `Refused` where TLS does not come about, `Gone`."""
        opening = asyncio.open_connection(host, port, ssl=self.tls, limit=2**18)
        try:
            reader, writer = await wait_within(_HANDSHAKE_S, opening)
        except ssl.SSLError as error:
            raise Refused(f"{host}:{port}: TLS: {error.reason or error}") from None
        except asyncio.TimeoutError:
            raise Gone(f"{host}:{port}: no answer") from None
        except OSError as error:
            raise Gone(f"{host}:{port}: {error.strerror or error}") from None
        return Wire(reader, writer, _HANDSHAKE_S)

    def _search_since(self, since_s: float | None, why: str) -> float:
        """Since when there has been no server. Raises: `RunFailed` once that is too long."""
        now_s = time.monotonic()
        if since_s is None:
            self.say(f"client {self.client}: {why}; looking for the server")
            return now_s
        if now_s - since_s > self.patience_s:
            raise RunFailed(f"client {self.client}: no server for {self.patience_s:g} s: {why}")
        return since_s

    # ---- on the client's thread ------------------------------------------------------------------

    async def do(self, work: Callable[..., _Result], *arguments: object) -> _Result:
        """The result of some work on the client's own thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(work, *arguments))

    def build(self, text: str, files: Mapping[str, Part]) -> dict[str, Plain]:
        """Build its half of the scenario's learning; the facts by which the server checks it."""
        from simfed.ground.reading import parse_yaml
        from simfed.ground.seeding import Streams
        from simfed.learn.apart import client_half
        from simfed.replay.key import data_digest
        from simfed.scenario.load import import_plugins, validate_scenario

        digest = digest_scenario(text)
        if self._digest not in (None, digest):
            raise Refused("the server plays another scenario now than when this client joined")
        if self._half is None:
            folder = Path(self._folder.enter_context(tempfile.TemporaryDirectory("-simfed")))
            _write_files(folder, files)
            plain, source = parse_yaml(text, where="scenario.yaml"), "the server's scenario.yaml"
            import_plugins(
                plain,
                source=source,
                folder=folder,
                allow=self.allow_plugins,
            )
            scenario = validate_scenario(plain, source=source, folder=folder)
            self._half = client_half(scenario, Streams(scenario.seed), self.client)
            self._digest = digest
            self._dataset = scenario.dataset
        return {"digest": digest, "data": data_digest(self._dataset), "versions": versions()}

    @property
    def half(self) -> ClientHalf:
        """Its half of the learning, once it is built."""
        assert self._half is not None
        return self._half


class _Talk:
    def __init__(self, owner: _Client, wire: Wire) -> None:
        self._owner, self._wire = owner, wire
        self._skipped: set[str] = set()
        """Tasks whose uploads nobody waits for any longer."""
        self._due: asyncio.Queue[Frame] = asyncio.Queue()
        """What the server has asked for and is not done yet."""
        self._beat_s = 2.0
        self._most_body = _MOST
        self.begun = False

    async def hold(self) -> bool:
        """Talk until the connection is over; whether the run is done."""
        welcome = await self._shake_hands()
        self._wire.patience_s = _read_number(welcome.facts, "silence_s", 0.01, 1e9)
        self._beat_s = _read_number(welcome.facts, "beat_s", 0.01, 1e9)
        self._most_body = int(_read_number(welcome.facts, "most_down", 0, 1e15))
        helpers = [asyncio.ensure_future(work) for work in (self._beat(), self._work(welcome))]
        hearing = asyncio.ensure_future(self._hear())
        try:
            await asyncio.wait([*helpers, hearing], return_when=asyncio.FIRST_COMPLETED)
            if not hearing.done() and all(_has_gone(h) for h in helpers if h.done()):
                # nothing can be sent any longer, but the server's last words may be here
                await asyncio.wait([hearing], timeout=_LAST_WORDS_S)
            if hearing.done() and hearing.exception() is None:
                return hearing.result()
            for ended in (helpers[1], hearing, helpers[0]):
                if ended.done():
                    return bool(ended.result())
            return False
        finally:
            for helper in (*helpers, hearing):
                helper.cancel()
            await asyncio.gather(*helpers, hearing, return_exceptions=True)

    async def _shake_hands(self) -> Frame:
        """The server's welcome. Raises: `Gone`, `Refused`."""
        owner, wire = self._owner, self._wire
        opening = handshake.Opening(
            handshake.check_greeting(await wire.receive(0)),
            owner.client,
            handshake.nonce(),
            owner.life,
        )
        await wire.send(handshake.hello(opening, owner.token))
        if owner.token:
            theirs, ours = opening.keys(owner.token)
            wire.seal(ours, theirs)
        wire.patience_s = 2 * _HANDSHAKE_S
        try:
            welcome = await wire.receive(_WELCOME)
        except Altered:
            raise Refused(
                "the server does not know the token, or its answer was changed on its way"
            ) from None
        handshake.check_welcome(welcome)
        return welcome

    async def _hear(self) -> bool:
        while True:
            frame = await self._wire.receive(self._most_body)
            if frame.kind == "ping":
                await self._wire.send(lambda: _build_pong(frame))  # noqa: B023
            elif frame.kind == "done":
                return True
            elif frame.kind == "refused":
                handshake.heed_refusal(frame)
            elif frame.kind == "bye":
                raise Gone("the server has stopped")
            elif frame.kind == "skip":
                self._skipped.add(_read_text(frame.facts, "label"))
            else:
                self._due.put_nowait(frame)

    async def _beat(self) -> bool:
        while True:
            await asyncio.sleep(self._beat_s)
            await self._wire.send(Frame("beat"))

    async def _work(self, welcome: Frame) -> bool:
        owner = self._owner
        facts, files = unpack(Parcel(welcome.facts, welcome.body))
        built = await owner.do(owner.build, _read_text(facts, "scenario"), files)
        await self._wire.send(Frame("built", built))
        while True:
            frame = await self._due.get()
            begun_s = time.monotonic()
            if frame.kind == "task":
                await self._do_task(frame, begun_s)
            elif frame.kind == "settle":
                label, fate = _read_text(frame.facts, "label"), _read_fate(frame.facts.get("fate"))
                await owner.do(owner.half.settle, label, fate)
            elif frame.kind == "take up":
                await owner.do(owner.half.take_up, Parcel(frame.facts, frame.body))
            elif frame.kind == "anew":
                await owner.do(owner.half.begin_anew)
            elif frame.kind == "agree":
                await owner.do(owner.half.agree, Parcel(frame.facts, frame.body))
            elif frame.kind == "ask":
                await self._answer(frame)
            elif frame.kind == "go":
                self.begun = True
                await self._wire.send(Frame("ready"))
                owner.say(f"client {owner.client}: ready")
            else:
                raise Refused(f"a message {quote(frame.kind)} that no server sends")

    async def _do_task(self, frame: Frame, begun_s: float) -> None:
        owner, label = self._owner, _read_text(frame.facts, "label")
        idle_s = time.process_time()
        try:
            work = await owner.do(owner.half.work, Parcel(frame.facts, frame.body))
        except SimfedError as error:
            await self._wire.send(Frame("failed", {"label": label, "why": str(error)}))
            return
        if label in self._skipped:
            self._skipped.discard(label)
            return

        def upload() -> Frame:
            times = {
                "received_s": frame.at_s,
                "begun_s": begun_s,
                "training_s": work.training_s,
                "compression_s": work.compression_s,
                "packing_s": work.packing_s,
                "training_busy_s": work.training_busy_s,
                "compression_busy_s": work.compression_busy_s,
                "busy_s": time.process_time() - idle_s,
                "sending_s": time.monotonic(),
            }
            return Frame("upload", {**work.parcel.facts, "times": times}, work.parcel.body)

        await self._wire.send(upload)

    async def _answer(self, frame: Frame) -> None:
        owner, facts = self._owner, dict(frame.facts)
        number, what = facts.pop("number", None), facts.pop("what", None)
        if what == "keep":
            answer = await owner.do(owner.half.keep)
        else:
            answer = await owner.do(owner.half.answer, str(what), Parcel(facts, frame.body))
        await self._wire.send(Frame("answer", {**answer.facts, "number": number}, answer.body))


def _build_pong(ping: Frame) -> Frame:
    facts = {"n": ping.facts.get("n"), "heard_s": ping.at_s, "answered_s": time.monotonic()}
    return Frame("pong", facts)


def _read_text(facts: Mapping[str, Plain], name: str) -> str:
    """The text of that name. Raises: `Refused` where there is none."""
    value = facts.get(name)
    if not isinstance(value, str):
        raise Refused(f"a message whose {name} is no text, got {quote(value)}")
    return value


def _read_number(facts: Mapping[str, Plain], name: str, least: float, most: float) -> float:
    """The number of that name. Raises: `Refused` outside `least` to `most`."""
    value = facts.get(name)
    if not (isinstance(value, (int, float)) and least <= value <= most):
        allowed = f"a number from {least:g} to {most:g}"
        raise Refused(f"a welcome whose {name} is not {allowed}, got {quote(value)}")
    return float(value)


def _has_gone(work: asyncio.Future[bool]) -> bool:
    return not work.cancelled() and isinstance(work.exception(), Gone)


def _write_files(folder: Path, files: Mapping[str, Part]) -> None:
    """The files that a scenario names, beside it. Raises: `Refused` for places elsewhere."""
    for name, content in files.items():
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()) or not isinstance(content, bytes):
            raise Refused(f"a file {name!r} that is not beside its scenario")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _read_fate(name: object) -> Fate:
    """What an upload became. Raises: `Refused` for any other word."""
    if name == "merged" or name == "lost" or name == "undone":
        return name
    raise Refused(f"an upload that became {quote(name)}")
