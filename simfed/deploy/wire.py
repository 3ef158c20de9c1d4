"""One connection of the library `websockets`: messages, silence, and how it ended.

Long messages go out in pieces, so that a sign of life passes between two of them and
the sender knows how many bytes have left. Whether the other end is alive shows in bytes
of any kind, not in answers to pings, which stand behind an upload on a narrow link.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from simfed.deploy.access import Seat
from simfed.deploy.messages import Gone, Message, Refused, format_reason

DONE, LEAVING, REFUSED, LATER = 1000, 1001, 1008, 1013
"""Codes with which a connection is closed: the run is done, the server goes away, the
client is refused for good or for now."""
_UNREADABLE = (1002, 1007, 1009)
"""The codes with which the library closes: it is no WebSocket's frame, no text, too
long."""
_PIECE = 2**18
_MOST_UNREAD = 2**20
"""Bytes that wait to leave; of messages there are never more than one piece."""
_LONGEST_REASON = 123
SILENT = logging.Logger("simfed.deploy", logging.CRITICAL + 1)
"""The library's log: strangers and clients must not fill a server's terminal."""


class _Heard(asyncio.Protocol):
    """Notes when bytes came last, and ends where the other end asks without reading."""

    heard_s = 0.0
    transport: asyncio.Transport

    def data_received(self, data: bytes) -> None:
        self.heard_s = time.monotonic()
        super().data_received(data)
        # the library answers pings without waiting until its answers have left
        if self.transport.get_write_buffer_size() > _MOST_UNREAD:
            self.transport.abort()


class ServerEnd(_Heard, ServerConnection):
    """A server's end of a connection."""

    seat: Seat
    """The client at the other end, once it has said who it is."""


class ClientEnd(_Heard, ClientConnection):
    """A client's end of a connection."""


class Wire:
    """The messages of one connection, both ways.

    Messages leave one after another; several tasks may ask to `send` at once, one alone
    may `receive`.
    """

    def __init__(self, connection: ServerEnd | ClientEnd) -> None:
        self.connection = connection
        self._free = asyncio.Lock()
        self._silence_s = 0.0
        """Seconds for which the other end had been silent when it was given up."""

    async def send(
        self,
        message: Message | Callable[[], Message],
        left: Callable[[int], object] = lambda size: None,
    ) -> None:
        """Send a message, or the one that a function makes at that very moment.

        Args:
            message: what to send, or what makes it.
            left: is called with the bytes of each piece that leaves.

        Raises:
            Gone: the connection is over.
            Refused: the other end sent what cannot be read.
        """
        async with self._free:
            data = (message if isinstance(message, Message) else message()).encode()
            try:
                if len(data) > _PIECE:
                    await self.connection.send(_cut(memoryview(data), left))
                else:
                    left(len(data))  # the answer may come before `send` returns
                    await self.connection.send(data)
            except ConnectionClosed as closed:
                raise self._explain(closed) from None

    async def receive(self) -> Message:
        """Return the next message.

        Raises:
            Gone: the connection is over.
            Refused: what came cannot be read.
        """
        try:
            data = await self.connection.recv()
        except ConnectionClosed as closed:
            raise self._explain(closed) from None
        at_s = time.monotonic()
        if isinstance(data, str):
            raise Refused("a text came, where messages are bytes")
        return Message.decode(data, at_s)

    async def watch(self, silence_s: float) -> None:
        """Cut the connection once no byte has come for so many seconds."""
        while (left_s := self.connection.heard_s + silence_s - time.monotonic()) > 0:
            await asyncio.sleep(left_s)
        self._silence_s = silence_s
        self.connection.transport.abort()

    async def close(
        self, code: int = DONE, why: str = "", patience_s: float = 2.0
    ) -> None:
        """Hang up, once what is being sent has left or patience is over.

        Args:
            code: tells the other end whether to come again: `DONE`, `LEAVING`,
            `REFUSED`, `LATER`.
            why: a sentence for it, cut where it is too long.
            patience_s: seconds.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            # the library breaks off a message that is under way, and tells another code
            # then
            await asyncio.wait_for(self._free.acquire(), patience_s)
        reason = why.encode("ascii", "replace")[:_LONGEST_REASON].decode()
        await self.connection.close(code, reason)

    def _explain(self, closed: ConnectionClosed) -> Gone | Refused:
        """Return what the end of the connection means here."""
        ours, theirs = closed.sent, closed.rcvd
        if ours is not None and ours.code in _UNREADABLE and not closed.rcvd_then_sent:
            return Refused(f"what came cannot be read: {format_reason(ours.reason)}")
        if self._silence_s:
            return Gone(f"nothing came for {self._silence_s:g} s")
        if theirs is None:
            return Gone("the connection was lost")
        gone = Gone(format_reason(theirs.reason) or "the connection was closed")
        gone.code = theirs.code
        return gone


def _cut(data: memoryview, left: Callable[[int], object]) -> Iterator[memoryview]:
    """Yield the pieces of a message as they leave."""
    for at in range(0, len(data), _PIECE):
        piece = data[at : at + _PIECE]
        left(len(piece))
        yield piece
