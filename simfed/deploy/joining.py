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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simfed.deploy import handshake
from simfed.deploy.frames import Busy, Frame, Gone, Refused, read_frame, write_frame
from simfed.errors import RunFailed, SimfedError
from simfed.learn.parcel import Parcel, unpack
from simfed.record.digest import scenario_digest
from simfed.record.manifest import versions

if TYPE_CHECKING:
    from simfed.learn.apart import ClientHalf, Fate

__all__ = ["join"]

_WELCOME = 2**26
"""Bytes of a scenario and its files."""
_MOST = 2**20
"""Bytes of a message beside models and states."""
_LAST_WORDS_S = 1.0
"""How long to listen to a server to whom nothing can be sent any longer."""
Say = Callable[[str], object]


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


class _Client:
    def __init__(
        self, client: int, token: bytes, tls: ssl.SSLContext | None, patience_s: float,
        allow_plugins: bool, say: Say,
    ) -> None:  # fmt: skip
        self._client, self._token, self._tls = client, token, tls
        self._patience_s, self._allow_plugins, self._say = patience_s, allow_plugins, say
        self._life = secrets.token_hex(8)
        self._digest: str | None = None
        self._half: ClientHalf | None = None
        self._most_down = 0
        self._thread = ThreadPoolExecutor(1, "simfed-client")
        self._folder = contextlib.ExitStack()

    async def live(self, host: str, port: int) -> None:
        since_s: float | None = None
        try:
            while True:
                try:
                    reader, writer = await asyncio.wait_for(
                        asyncio.open_connection(host, port, ssl=self._tls, limit=2**18), 10.0
                    )
                except ssl.SSLError as error:
                    raise Refused(f"{host}:{port}: TLS: {error.reason or error}") from None
                except (OSError, asyncio.TimeoutError) as error:
                    since_s = self._lost_since(since_s, f"{host}:{port}: {_told(error)}")
                    await asyncio.sleep(0.5)
                    continue
                try:
                    talk = _Talk(self, reader, writer)
                    if await talk.hold():
                        return
                    since_s = None
                except (Gone, Busy) as error:
                    since_s = self._lost_since(since_s if not talk.begun else None, str(error))
                    await asyncio.sleep(0.5)
                finally:
                    writer.close()
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)
            if self._half is not None:
                self._half.close()
            self._folder.close()

    def _lost_since(self, since_s: float | None, why: str) -> float:
        now_s = time.monotonic()
        if since_s is None:
            self._say(f"client {self._client}: {why}; looking for the server")
            return now_s
        if now_s - since_s > self._patience_s:
            raise RunFailed(f"client {self._client}: no server for {self._patience_s:g} s: {why}")
        return since_s

    # ---- on the client's thread ------------------------------------------------------------------

    async def _do(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def build(self, text: str, files: Mapping[str, Any]) -> dict[str, Any]:
        """Its half of the scenario's learning; what it says of itself."""
        from simfed.learn.apart import client_half
        from simfed.reading import parse_yaml
        from simfed.replay.key import data_digest
        from simfed.scenario.load import import_plugins, validated
        from simfed.seeding import Streams

        digest = scenario_digest(text)
        if self._digest not in (None, digest):
            raise Refused("the server plays another scenario now than when this client joined")
        if self._half is None:
            folder = Path(self._folder.enter_context(tempfile.TemporaryDirectory("-simfed")))
            _write(folder, files)
            plain, source = parse_yaml(text, where="scenario.yaml"), "the server's scenario.yaml"
            import_plugins(plain, source=source, folder=folder, allow=self._allow_plugins,
                           allow_outside=False)  # fmt: skip
            scenario = validated(plain, source=source, folder=folder, recorded=True)
            self._half = client_half(scenario, Streams(scenario.seed), self._client)
            self._digest = digest
            self._dataset = scenario.dataset.name
        return {
            "digest": digest, "data": data_digest(self._dataset), "versions": versions(),
        }  # fmt: skip

    @property
    def half(self) -> ClientHalf:
        assert self._half is not None
        return self._half


class _Talk:
    """One connection."""

    def __init__(
        self, owner: _Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._owner, self._reader, self._writer = owner, reader, writer
        self._lock = asyncio.Lock()
        self._skipped: set[str] = set()
        self._due: asyncio.Queue[Frame] = asyncio.Queue()
        self._silence_s, self._beat_s = 30.0, 2.0
        self._most_body = _MOST
        self.begun = False

    async def hold(self) -> bool:
        """Until it is over; whether the run is done."""
        owner = self._owner
        ours = handshake.nonce()
        greeting = await read_frame(self._reader, most_body=0, patience_s=10.0)
        handshake.heed_refusal(greeting)
        said = handshake.hello(greeting, owner._token, owner._client, ours, owner._life)
        await write_frame(self._writer, said, patience_s=10.0)
        welcome = await read_frame(self._reader, most_body=_WELCOME, patience_s=20.0)
        theirs = str(greeting.facts.get("nonce"))
        handshake.check_welcome(welcome, owner._token, theirs, ours)
        self._silence_s = float(welcome.facts["silence_s"])
        self._beat_s = float(welcome.facts["beat_s"])
        self._most_body = int(welcome.facts["most_down"])
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

    async def _hear(self) -> bool:
        while True:
            frame = await read_frame(
                self._reader, most_body=self._most_body, patience_s=self._silence_s
            )
            if frame.kind == "ping":
                heard_s = frame.at_s
                async with self._lock:
                    facts = {
                        "n": frame.facts.get("n"), "heard_s": heard_s,
                        "answered_s": time.monotonic(),
                    }  # fmt: skip
                    await self._put(Frame("pong", facts))
            elif frame.kind == "done":
                return True
            elif frame.kind == "refused":
                handshake.heed_refusal(frame)
            elif frame.kind == "bye":
                raise Gone("the server has stopped")
            elif frame.kind == "skip":
                self._skipped.add(str(frame.facts.get("label")))
            else:
                self._due.put_nowait(frame)

    async def _beat(self) -> bool:
        while True:
            await asyncio.sleep(self._beat_s)
            await self._send(Frame("beat"))

    async def _work(self, welcome: Frame) -> bool:
        owner = self._owner
        facts, files = unpack(Parcel(welcome.facts, welcome.body))
        built = await owner._do(lambda: owner.build(str(facts["scenario"]), files))
        await self._send(Frame("built", built))
        while True:
            frame = await self._due.get()
            begun_s = time.monotonic()
            if frame.kind == "task":
                await self._take_part(frame, begun_s)
            elif frame.kind == "settle":
                label, fate = str(frame.facts["label"]), _fate(frame.facts["fate"])
                await owner._do(lambda: owner.half.settle(label, fate))  # noqa: B023
            elif frame.kind == "take up":
                parcel = Parcel(frame.facts, frame.body)
                await owner._do(lambda: owner.half.take_up(parcel))  # noqa: B023
            elif frame.kind == "ask":
                await self._answer(frame)
            elif frame.kind == "go":
                self.begun = True
                await self._send(Frame("ready"))
                owner._say(f"client {owner._client}: ready")
            else:
                raise Refused(f"a message {frame.kind[:40]!r} that no server sends")

    async def _take_part(self, frame: Frame, begun_s: float) -> None:
        owner, label = self._owner, str(frame.facts.get("label"))
        try:
            made = await owner._do(lambda: owner.half.work(Parcel(frame.facts, frame.body)))
        except SimfedError as error:
            await self._send(Frame("failed", {"label": label, "why": str(error)}))
            return
        if label in self._skipped:
            self._skipped.discard(label)
            return
        async with self._lock:
            times = {
                "received_s": frame.at_s, "begun_s": begun_s, "training_s": made.training_s,
                "compression_s": made.compression_s, "packing_s": made.packing_s,
                "sending_s": time.monotonic(),
            }  # fmt: skip
            facts = {**made.parcel.facts, "times": times}
            await self._put(Frame("upload", facts, made.parcel.body))

    async def _answer(self, frame: Frame) -> None:
        owner, facts = self._owner, dict(frame.facts)
        number, what = facts.pop("number"), facts.pop("what")
        parcel = Parcel(facts, frame.body)
        if what == "keep":
            found = await owner._do(lambda: owner.half.keep())
        else:
            found = await owner._do(lambda: owner.half.answer(str(what), parcel))
        await self._send(Frame("answer", {**found.facts, "number": number}, found.body))

    async def _send(self, frame: Frame) -> None:
        async with self._lock:
            await self._put(frame)

    async def _put(self, frame: Frame) -> None:
        await write_frame(self._writer, frame, patience_s=self._silence_s)


def _has_gone(work: asyncio.Future[Any]) -> bool:
    return not work.cancelled() and isinstance(work.exception(), Gone)


def _write(folder: Path, files: Mapping[str, Any]) -> None:
    """The files that a scenario names, beside it. Raises: `Refused` for places elsewhere."""
    for name, content in files.items():
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()) or not isinstance(content, bytes):
            raise Refused(f"a file {name!r} that is not beside its scenario")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _fate(said: Any) -> Fate:
    if said not in ("merged", "lost", "undone"):
        raise Refused(f"an upload that became {str(said)[:40]!r}")
    fate: Fate = said
    return fate


def _told(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return "no answer"
    return getattr(error, "strerror", None) or str(error)
