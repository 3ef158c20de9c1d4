"""Messages on a stream: a fixed head that says how long the rest is, facts as JSON, a body.

    4 bytes   "sfd1", or "sfd2" where a digest follows
    4 bytes   length of the facts, big-endian
    8 bytes   length of the body, big-endian
    …         facts: JSON, UTF-8, with `kind`
    …         body: what `simfed.learn.parcel` writes
    32 bytes  HMAC-SHA-256 of all of it and of the message's number, under a key that both ends know

Lengths are checked before anything of that size is read or set aside, and what is read grows with
what has come. Every wait has an end. Where a digest is due, nothing of a message is believed before
its digest was checked, but its lengths.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from simfed.ground.errors import SimfedError
from simfed.ground.plain import Plain

_HEAD = struct.Struct(">4sIQ")
_PLAIN, _SEALED = b"sfd1", b"sfd2"
MOST_FACTS = 2**20
"""Bytes of a frame's facts: a scenario, a codec's memory; arrays travel in the body."""
_PIECE = 2**18
_Result = TypeVar("_Result")
_ALTERED = "a message was changed, repeated or left out on its way: its digest is another one"


class Gone(SimfedError):
    """The other end is not there any longer, or says nothing."""


class Altered(Gone):
    """What came is not what the other end sent: nothing that comes after it can be believed."""


class Refused(SimfedError):
    """The other end sends, or is, what this one does not take. Exit code 2."""

    exit_code = 2


class RefusedForNow(Refused):
    """Not now: it may be taken later."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message between server and client: its kind, JSON-able facts and bytes."""

    kind: str
    facts: Mapping[str, Plain] = field(default_factory=dict)
    body: bytes = b""
    at_s: float = 0.0
    """When its last byte had come, by this end's monotonic clock."""
    size: int = 0
    """Bytes on the wire, head included."""


class Seal:
    """Makes digests of the messages of one connection that go one way, in their order.

    Each is made under `key`, and of the message's number as well, which never travels: a message
    that was changed, left out, repeated, or put before another has the digest of none that is due.
    """

    size = 32
    """Bytes of a digest."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.count = 0
        """Messages so far."""

    def digest(self) -> hmac.HMAC:
        """Of the next message, to be fed with its bytes."""
        number = self.count.to_bytes(8, "big")
        self.count += 1
        return hmac.new(self._key, number, hashlib.sha256)


def encode(frame: Frame, *, sealed: bool = False) -> bytes:
    """A message's bytes on the wire, without its digest.

    >>> encode(Frame("ping", {"n": 1}))[:4]
    b'sfd1'
    """
    facts = json.dumps({"kind": frame.kind, **frame.facts}).encode()
    if len(facts) > MOST_FACTS:
        raise ValueError(f"facts of at most {MOST_FACTS} bytes, got {len(facts)}")
    magic = _SEALED if sealed else _PLAIN
    return _HEAD.pack(magic, len(facts), len(frame.body)) + facts + frame.body


async def write_frame(
    writer: asyncio.StreamWriter,
    frame: Frame,
    *,
    patience_s: float,
    seal: Seal | None = None,
    left: Callable[[int], object] = lambda size: None,
) -> None:
    """Send a message, with a digest where there is a seal; `left` is called with the bytes of each
    piece that has left. Raises: `Gone` if the other end takes nothing for `patience_s`."""
    data = memoryview(encode(frame, sealed=seal is not None))
    digest = None if seal is None else seal.digest()
    try:
        for at in range(0, len(data), _PIECE):
            piece = data[at : at + _PIECE]
            if digest is not None:
                digest.update(piece)
                if at + _PIECE >= len(data):  # in one write: one segment where it fits into one
                    piece = memoryview(bytes(piece) + digest.digest())
            writer.write(piece)
            left(len(piece))  # an answer may come while the last piece is waited for
            await wait_within(patience_s, writer.drain())
    except (OSError, asyncio.TimeoutError) as error:
        raise _make_gone(error, patience_s) from None


async def read_frame(
    reader: asyncio.StreamReader,
    *,
    most_body: int | Callable[[], int],
    patience_s: float,
    heard: Callable[[], object] = lambda: None,
    seal: Seal | None = None,
) -> Frame:
    """The next message.

    most_body: longer bodies are refused before a byte of them is read; a function is asked when the
    head has come. patience_s: how long to wait for the next bytes. `heard` is called whenever some
    come. seal: the other end's, where both know a key; the first message may then still be a
    refusal without a digest, as of a server that was given another token.
    Raises: `Altered`, `Gone`, `Refused`.
    """
    digest = None if seal is None else seal.digest()
    head = await _read_bytes(reader, _HEAD.size, patience_s, heard, digest)
    magic, facts_size, body_size = _HEAD.unpack(head)
    wrong = Refused if seal is None else Altered  # a head is believed with its digest alone
    if magic not in (_PLAIN, _SEALED):
        raise wrong("the other end does not speak simfed's protocol")
    if facts_size > MOST_FACTS:
        raise wrong(f"a message with {facts_size:,} bytes of facts, at most {MOST_FACTS:,} are")
    most = most_body if isinstance(most_body, int) else most_body()
    if body_size > most:
        raise wrong(f"a message of {body_size:,} bytes, at most {most:,} are expected now")
    text = await _read_bytes(reader, facts_size, patience_s, heard, digest)
    body = await _read_bytes(reader, body_size, patience_s, heard, digest)
    size = _HEAD.size + facts_size + body_size
    signature = b""
    if magic == _SEALED:
        signature = await _read_bytes(reader, Seal.size, patience_s, heard)
        size += Seal.size
    at_s = time.monotonic()
    if digest is not None and signature and not hmac.compare_digest(digest.digest(), signature):
        raise Altered(_ALTERED)
    try:
        facts = json.loads(text.decode())
        kind = facts.pop("kind")
        if not isinstance(kind, str):
            raise TypeError(kind)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise Refused("a message whose facts cannot be read") from None
    if seal is not None and magic == _PLAIN and (kind != "refused" or seal.count > 1):
        raise Altered("a message without a digest came")
    return Frame(kind, facts, body, at_s, size)


async def _read_bytes(
    reader: asyncio.StreamReader,
    size: int,
    patience_s: float,
    heard: Callable[[], object],
    digest: hmac.HMAC | None = None,
) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            piece = await wait_within(patience_s, reader.read(min(_PIECE, size - len(data))))
        except (OSError, asyncio.TimeoutError) as error:
            raise _make_gone(error, patience_s) from None
        if not piece:
            raise Gone("the connection was closed")
        heard()
        if digest is not None:
            digest.update(piece)
        data += piece
    return bytes(data)


async def wait_within(patience_s: float, work: Awaitable[_Result]) -> _Result:
    """The result of some work, in time. Raises: `asyncio.TimeoutError`.

    A task that is cancelled here ends: `asyncio.wait_for` goes on, until Python 3.12, where the
    work was done at that very moment.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait((task,), timeout=patience_s)
        if not done:
            raise asyncio.TimeoutError
    except (asyncio.CancelledError, asyncio.TimeoutError):
        task.cancel()
        # asked for, so that asyncio does not print it
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        raise
    return task.result()


def read_number(facts: object, name: str) -> float:
    """A number of the other end's facts. Raises: `Refused`."""
    number = facts.get(name) if isinstance(facts, Mapping) else None
    if not isinstance(number, (int, float)) or not abs(number) < 1e12:
        raise Refused(f"a message whose {name} is no instant")
    return float(number)


def quote(value: object) -> str:
    """A value of the other end's, short and printable, for a sentence.

    >>> quote("hello"), quote(50 * "a")[-6:], quote(7), quote(10**50), quote({"a": 1})
    ("'hello'", "aa...'", '7', 'a value of type int',
    'a value of type dict')
    """
    if isinstance(value, str):
        return ascii(value) if len(value) <= 40 else ascii(value[:37])[:-1] + "...'"
    if value is None or (isinstance(value, (int, float)) and abs(value) < 1e15):
        return str(value)
    return f"a value of type {type(value).__name__}"


def format_reason(reason: object) -> str:
    """The other end's reason as one line that a terminal can show; empty if it is no text."""
    return "".join(c for c in reason[:500] if c.isprintable()) if isinstance(reason, str) else ""


def _make_gone(error: BaseException, patience_s: float) -> Gone:
    if isinstance(error, asyncio.TimeoutError):
        return Gone(f"nothing came or went for {patience_s:g} s")
    return Gone(f"the connection was lost ({error})" if str(error) else "the connection was lost")
