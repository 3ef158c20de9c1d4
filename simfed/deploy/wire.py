"""One connection: messages go out one after the other, and are sealed once both ends know a key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from simfed.deploy.frames import Frame, Seal, read_frame, write_frame


@dataclass(eq=False)
class Wire:
    """The messages of one connection, both ways."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    patience_s: float
    """How long the other end may take or send nothing."""

    def __post_init__(self) -> None:
        self._free = asyncio.Lock()
        self._ours: Seal | None = None
        self._theirs: Seal | None = None

    def seal(self, ours: bytes, theirs: bytes) -> None:
        """From now on every message carries a digest under the key of the end that sends it."""
        self._ours, self._theirs = Seal(ours), Seal(theirs)

    async def send(
        self,
        frame: Frame | Callable[[], Frame],
        left: Callable[[int], object] = lambda size: None,
    ) -> None:
        """Send a message, or what a function makes at that very moment; `left` is called with the
        bytes of each piece that has left. Raises: `Gone`."""
        async with self._free:
            await write_frame(
                self.writer,
                frame if isinstance(frame, Frame) else frame(),
                patience_s=self.patience_s,
                seal=self._ours,
                left=left,
            )

    async def receive(
        self, most_body: int | Callable[[], int], heard: Callable[[], object] = lambda: None
    ) -> Frame:
        """The next message; see `read_frame`. Raises: `Altered`, `Gone`, `Refused`."""
        return await read_frame(
            self.reader,
            most_body=most_body,
            patience_s=self.patience_s,
            heard=heard,
            seal=self._theirs,
        )

    def close(self) -> None:
        """Hang up once all is sent."""
        self.writer.close()
