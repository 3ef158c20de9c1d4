"""Messages on a stream: a fixed head that says how long the rest is, facts as JSON, a body.

    4 bytes   "sfd1"
    4 bytes   length of the facts, big-endian
    8 bytes   length of the body, big-endian
    …         facts: JSON, UTF-8, with `kind`
    …         body: what `simfed.learn.parcel` writes

Lengths are checked before anything of that size is read or set aside, and what is read grows with
what has come. Every wait has an end.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simfed.errors import SimfedError

__all__ = ["MOST_FACTS", "Busy", "Frame", "Gone", "Refused", "read_frame", "write_frame"]

_HEAD = struct.Struct(">4sIQ")
_MAGIC = b"sfd1"
MOST_FACTS = 2**20
"""Bytes of a frame's facts: a scenario, a codec's memory; arrays travel in the body."""
_PIECE = 2**18


class Gone(SimfedError):
    """The other end is not there any longer, or says nothing."""


class Refused(SimfedError):
    """The other end sends, or is, what this one does not take. Exit code 2."""

    exit_code = 2


class Busy(Refused):
    """Not now: it may be taken later."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    kind: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    body: bytes = b""
    at_s: float = 0.0
    """When its last byte had come, by this end's monotonic clock."""
    size: int = 0
    """Bytes on the wire, head included."""


def encode(frame: Frame) -> bytes:
    """As it travels.

    >>> encode(Frame("ping", {"n": 1}))[:4]
    b'sfd1'
    """
    facts = json.dumps({"kind": frame.kind, **frame.facts}).encode()
    if len(facts) > MOST_FACTS:
        raise ValueError(f"facts of at most {MOST_FACTS} bytes, got {len(facts)}")
    return _HEAD.pack(_MAGIC, len(facts), len(frame.body)) + facts + frame.body


async def write_frame(writer: asyncio.StreamWriter, frame: Frame, *, patience_s: float) -> int:
    """Send it; how many bytes that were. Raises: `Gone` if the other end takes nothing for so
    long."""
    data = memoryview(encode(frame))
    try:
        for at in range(0, len(data), _PIECE):
            writer.write(data[at : at + _PIECE])
            await asyncio.wait_for(writer.drain(), patience_s)
    except (OSError, asyncio.TimeoutError) as error:
        raise Gone(_why(error, patience_s)) from None
    return len(data)


async def read_frame(
    reader: asyncio.StreamReader,
    *,
    most_body: int | Callable[[], int],
    patience_s: float,
    heard: Callable[[], object] = lambda: None,
) -> Frame:
    """The next message.

    most_body: longer bodies are refused before a byte of them is read; a function is asked when the
    head has come. patience_s: how long to wait
    for the next bytes, whatever they are. `heard` is called whenever some come.
    Raises: `Gone`, `Refused`.
    """
    magic, facts_size, body_size = _HEAD.unpack(await _read(reader, _HEAD.size, patience_s, heard))
    if magic != _MAGIC:
        raise Refused("the other end does not speak simfed's protocol")
    if facts_size > MOST_FACTS:
        raise Refused(f"a message with {facts_size:,} bytes of facts, at most {MOST_FACTS:,} are")
    most = most_body if isinstance(most_body, int) else most_body()
    if body_size > most:
        raise Refused(f"a message of {body_size:,} bytes, at most {most:,} are expected now")
    text = await _read(reader, facts_size, patience_s, heard)
    try:
        facts = json.loads(text.decode())
        kind = facts.pop("kind")
        if not isinstance(kind, str):
            raise TypeError(kind)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise Refused("a message whose facts cannot be read") from None
    body = await _read(reader, body_size, patience_s, heard)
    return Frame(kind, facts, body, time.monotonic(), _HEAD.size + facts_size + body_size)


async def _read(
    reader: asyncio.StreamReader, size: int, patience_s: float, heard: Callable[[], object]
) -> bytes:
    got = bytearray()
    while len(got) < size:
        try:
            piece = await asyncio.wait_for(reader.read(min(_PIECE, size - len(got))), patience_s)
        except (OSError, asyncio.TimeoutError) as error:
            raise Gone(_why(error, patience_s)) from None
        if not piece:
            raise Gone("the connection was closed")
        heard()
        got += piece
    return bytes(got)


def _why(error: BaseException, patience_s: float) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return f"nothing came or went for {patience_s:g} s"
    return f"the connection was lost ({error})" if str(error) else "the connection was lost"
