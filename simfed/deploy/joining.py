"""A client's end: `simfed join`.

The connection lives on an event loop, so that it answers at once whatever the client is
doing; the work is done on one other thread, one thing after another in the order in
which the server asked. A lost connection is sought again for a while: the same process
keeps what it has learned about its residual, and the server tells it which of its
uploads are lost.

`_Client` is the process, `_Talk` one connection of it.
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
from typing import TYPE_CHECKING, Any, TypeVar

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake, InvalidStatus

from simfed.deploy.access import Seat, is_here, load_client_tls
from simfed.deploy.messages import (
    Gone,
    Message,
    Refused,
    RefusedForNow,
    format_reason,
    quote,
    read_number,
)
from simfed.deploy.wire import DONE, LATER, REFUSED, SILENT, ClientEnd, Wire
from simfed.ground.errors import RunFailed, SimfedError
from simfed.ground.plain import Plain
from simfed.learn.parcel import Parcel, Part, unpack
from simfed.record.digest import digest_scenario
from simfed.record.manifest import versions

if TYPE_CHECKING:
    from simfed.learn.apart import RealClient
    from simfed.learn.state import Fate

_MOST = 2**31
"""Bytes of a server's longest message: a model of 500 million weights."""
_OPENING_S = 10.0
"""Seconds for the connection to come about."""
_PING_S = 2.0
_WELCOME_S = 20.0
"""Without a byte, until the server has said for how long it may be silent."""
Say = Callable[[str], object]
_Result = TypeVar("_Result")


def join(
    host: str,
    port: int,
    client: int,
    *,
    token: str = "",
    tls: ssl.SSLContext | None = None,
    patience_s: float = 60.0,
    allow_plugins: bool = False,
    say: Say = lambda sentence: None,
) -> None:
    """Be one client of a served scenario until it is done.

    Args:
        host: the server's.
        port: the server's.
        client: the number that this process is, from 0.
        token: the server's secret.
        tls: for a server on another machine what this machine trusts, if not given;
        there is no connection to another machine without TLS.
        patience_s: how long to look for a server that is not there (yet, or any
        longer).
        allow_plugins: run the Python files that the scenario names and the server
        sends.
        say: is told, in a sentence, when the client is ready, and when the server is
        gone.

    Raises:
        Refused: the server or this end does not take the other.
        RunFailed: the server is gone for good, or the learning fails.
    """
    if tls is None and not is_here(host):
        tls = load_client_tls(None)
    asyncio.run(
        _Client(client, token, tls, patience_s, allow_plugins, say).live(host, port)
    )


@dataclass(eq=False)
class _Client:
    """One client's process: who it is, its learning, and the search for its server."""

    client: int
    token: str
    tls: ssl.SSLContext | None
    patience_s: float
    allow_plugins: bool
    say: Say

    def __post_init__(self) -> None:
        self.life = secrets.token_hex(8)
        self._digest: str | None = None
        self._end: RealClient | None = None
        self._thread = ThreadPoolExecutor(1, "simfed-client")
        self._folder = contextlib.ExitStack()

    async def live(self, host: str, port: int) -> None:
        """Connect, and again whenever the connection is lost, until the run is done."""
        since_s: float | None = None
        try:
            while True:
                talk = None
                try:
                    talk = _Talk(self, await self._connect(host, port))
                    await talk.hold()
                except (Gone, RefusedForNow) as error:
                    code = error.code if isinstance(error, Gone) else LATER
                    if code == DONE:
                        return
                    if code == REFUSED:
                        raise Refused(str(error)) from None
                    since_s = None if talk is not None and talk.begun else since_s
                    since_s = self._search_since(since_s, str(error))
                    await asyncio.sleep(0.5)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)
            if self._end is not None:
                self._end.close()
            self._folder.close()

    async def _connect(self, host: str, port: int) -> Wire:
        """Return a new connection to the server.

        Raises:
            Refused: by the server, or where TLS does not come about.
            Gone: there is no server, or it does not answer.
        """
        name = f"[{host}]" if ":" in host else host
        scheme = "ws" if self.tls is None else "wss"
        where = f"{host}:{port}"
        try:
            connection = await _Direct(
                f"{scheme}://{name}:{port}{Seat(self.client, self.life).path()}",
                additional_headers={"Authorization": (f"Bearer {self.token}")}
                if self.token
                else {},
                ssl=self.tls,
                proxy=None,
                create_connection=ClientEnd,
                compression=None,
                max_size=_MOST,
                open_timeout=_OPENING_S,
                close_timeout=1.0,
                ping_interval=_PING_S,
                ping_timeout=None,  # see `Wire.watch`
                logger=SILENT,
            )
        except InvalidStatus as error:
            said = format_reason(
                (error.response.body or b"").decode("utf-8", "replace").strip()
            )
            if error.response.status_code == 403:
                raise Refused(said or "the server gives no reason") from None
            raise Gone(f"{where}: {error}") from None
        except InvalidHandshake as error:
            raise Gone(
                f"{where}: no simfed server answers ({format_reason(str(error))})"
            ) from None
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason or error
            raise Refused(f"{where}: TLS: {reason}") from None
        except TimeoutError:
            raise Gone(f"{where}: no answer") from None
        except OSError as error:
            raise Gone(f"{where}: {error.strerror or error}") from None
        assert isinstance(connection, ClientEnd)
        return Wire(connection)

    def _search_since(self, since_s: float | None, why: str) -> float:
        """Return the instant since which there has been no server.

        Args:
            since_s: what was returned last; None: there was one.
            why: it is not there.

        Raises:
            RunFailed: that is longer than the client's patience.
        """
        now_s = time.monotonic()
        if since_s is None:
            self.say(f"client {self.client}: {why}; looking for the server")
            return now_s
        if now_s - since_s > self.patience_s:
            raise RunFailed(
                f"client {self.client}: no server for {self.patience_s:g} s: {why}"
            )
        return since_s

    # ---- on the client's thread ------------------------------------------------------

    async def do(self, work: Callable[..., _Result], *arguments: object) -> _Result:
        """Return the result of some work on the client's own thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(work, *arguments))

    def build(self, text: str, files: Mapping[str, Part]) -> dict[str, Plain]:
        """Build its half of the scenario's learning, if that is not there yet.

        Args:
            text: the scenario, as YAML.
            files: beside it, by their paths: plugins, data sets, profiles.

        Returns:
            The facts by which the server checks it.

        Raises:
            Refused: the server plays another scenario than before.
            InputError: this end does not run its plugins, or lacks its data.
        """
        from simfed.ground.reading import parse_yaml
        from simfed.ground.seeding import Streams
        from simfed.learn import apart
        from simfed.replay.key import data_digest
        from simfed.scenario.load import import_plugins, validate_scenario

        digest = digest_scenario(text)
        if self._digest not in (None, digest):
            raise Refused(
                "the server plays another scenario now than when this client joined"
            )
        if self._end is None:
            folder = Path(
                self._folder.enter_context(tempfile.TemporaryDirectory("-simfed"))
            )
            _write_files(folder, files)
            plain = parse_yaml(text, where="scenario.yaml")
            place: dict[str, Any] = {
                "source": "the server's scenario.yaml",
                "folder": folder,
            }
            import_plugins(plain, allow=self.allow_plugins, **place)
            scenario = validate_scenario(plain, **place)
            self._end = apart.RealClient(scenario, Streams(scenario.seed), self.client)
            self._digest, self._data = digest, data_digest(scenario)
        return {"digest": digest, "data": self._data, "versions": versions()}

    @property
    def end(self) -> RealClient:
        """The client's end of the learning.

        Raises: `Refused` before it is built.
        """
        if self._end is None:
            raise Refused("the server asks for work before it has sent a scenario")
        return self._end


class _Direct(connect):
    """A connection to the server that was named, and no other."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class _Talk:
    """One connection to the server, from its welcome until it is over.

    `_hear` sorts what comes, `_work` does it in order, and whichever ends first ends
    the talk.
    """

    def __init__(self, owner: _Client, wire: Wire) -> None:
        self._owner, self._wire = owner, wire
        self._skipped: set[str] = set()
        """Tasks whose uploads nobody waits for any longer."""
        self._due: asyncio.Queue[Message] = asyncio.Queue()
        """The messages that the server has sent and that are not done yet."""
        self.begun = False

    async def hold(self) -> None:
        """Talk until the connection is over.

        Raises: `Gone`, `Refused`; `RunFailed`.
        """
        wire = self._wire
        watching = asyncio.ensure_future(wire.watch(_WELCOME_S))
        parts = [watching]
        try:
            welcome = await wire.receive()
            if welcome.kind != "welcome":
                raise Refused(
                    f"a message 'welcome' was due, {quote(welcome.kind)} came"
                )
            silence_s = read_number(welcome.facts, "silence_s")
            watching.cancel()
            parts += map(asyncio.ensure_future, (self._hear(), self._work(welcome)))
            parts.append(asyncio.ensure_future(wire.watch(silence_s)))
            done, _ = await asyncio.wait(
                parts[1:3], return_when=asyncio.FIRST_COMPLETED
            )
            for part in done:
                part.result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await wire.close()

    async def _hear(self) -> None:
        """Take what the server says, at once.

        Questions about the clock are answered, uploads that need not be sent are noted,
        and everything else is queued for `_work`.
        """
        while True:
            message = await self._wire.receive()
            if message.kind == "clock":
                await self._wire.send(partial(_tell_clock, message))
            elif message.kind == "skip":
                self._skipped.add(_read_text(message.facts, "label"))
            else:
                self._due.put_nowait(message)

    async def _work(self, welcome: Message) -> None:
        """Build the learning, then do what the server asks, one thing after another.

        Raises:
            Refused: a message that no server sends.
            Gone: the connection is over.
        """
        owner = self._owner
        facts, files = unpack(Parcel(welcome.facts, welcome.body))
        built = await owner.do(owner.build, _read_text(facts, "scenario"), files)
        await self._wire.send(Message("built", built))
        while True:
            message = await self._due.get()
            begun_s = time.monotonic()
            if message.kind == "task":
                await self._do_task(message, begun_s)
            elif message.kind == "settle":
                fate = _read_fate(message.facts.get("fate"))
                label = _read_text(message.facts, "label")
                await owner.do(owner.end.settle, label, fate)
            elif message.kind == "take up":
                await owner.do(owner.end.take_up, Parcel(message.facts, message.body))
            elif message.kind == "anew":
                await owner.do(owner.end.begin_anew)
            elif message.kind == "agree":
                await owner.do(owner.end.agree, Parcel(message.facts, message.body))
            elif message.kind == "ask":
                await self._answer(message)
            elif message.kind == "go":
                self.begun = True
                await self._wire.send(Message("ready"))
                owner.say(f"client {owner.client}: ready")
            else:
                raise Refused(f"a message {quote(message.kind)} that no server sends")

    async def _do_task(self, message: Message, begun_s: float) -> None:
        """Train and compress, and send the upload with its times.

        An upload that nobody waits for any longer is not sent; one that fails is told.
        """
        owner, label = self._owner, _read_text(message.facts, "label")
        idle_s = time.process_time()
        try:
            work = await owner.do(owner.end.work, Parcel(message.facts, message.body))
        except SimfedError as error:
            await self._wire.send(
                Message("failed", {"label": label, "why": str(error)})
            )
            return
        if label in self._skipped:
            self._skipped.discard(label)
            return

        def upload() -> Message:
            times = {
                "received_s": message.at_s,
                "begun_s": begun_s,
                "training_s": work.training_s,
                "compression_s": work.compression_s,
                "packing_s": work.packing_s,
                "training_busy_s": work.training_busy_s,
                "compression_busy_s": work.compression_busy_s,
                "busy_s": time.process_time() - idle_s,
                "sending_s": time.monotonic(),
            }
            return Message(
                "upload", {**work.parcel.facts, "times": times}, work.parcel.body
            )

        await self._wire.send(upload)

    async def _answer(self, message: Message) -> None:
        """Answer a question that only this client can: a loss, its state."""
        owner, facts = self._owner, dict(message.facts)
        number, what = facts.pop("number", None), facts.pop("what", None)
        if what == "keep":
            answer = await owner.do(owner.end.keep)
        else:
            answer = await owner.do(
                owner.end.answer, str(what), Parcel(facts, message.body)
            )
        await self._wire.send(
            Message("answer", {**answer.facts, "number": number}, answer.body)
        )


def _tell_clock(asked: Message) -> Message:
    facts = {"heard_s": asked.at_s, "answered_s": time.monotonic()}
    return Message("clock", {"number": asked.facts.get("number"), **facts})


def _read_text(facts: Mapping[str, Plain], name: str) -> str:
    """Return the text of that name.

    Raises: `Refused` where there is none.
    """
    value = facts.get(name)
    if not isinstance(value, str):
        raise Refused(f"a message whose {name} is no text, got {quote(value)}")
    return value


def _write_files(folder: Path, files: Mapping[str, Part]) -> None:
    """Write the files that a scenario names beside it.

    Args:
        folder: of the scenario.
        files: contents by paths relative to it.

    Raises:
        Refused: a path leads elsewhere.
    """
    for name, content in files.items():
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()) or not isinstance(content, bytes):
            raise Refused(f"a file {name!r} that is not beside its scenario")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _read_fate(name: object) -> Fate:
    """Return the fate of an upload.

    Raises: `Refused` for any other word.
    """
    if name == "merged" or name == "lost" or name == "undone":
        return name
    raise Refused(f"an upload that became {quote(name)}")
