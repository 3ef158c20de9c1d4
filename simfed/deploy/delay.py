"""Latency in user space, where the kernel has no `netem`: a process between clients and server that
holds every byte back.

What comes from a client's address waits `up` seconds before it goes on to the server, what comes
for it `down` seconds; order and bytes are as they were. TCP sees a short way on either side, so
that its windows grow as if there were no latency, which `netem` would not let them. Standard
library only.

    python delay.py '{"listen": "198.18.0.1", "to": ["198.18.0.1", 7000],
                      "delays": {"198.18.0.6": [0.02, 0.01]}}'

prints its port and goes on until its input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_PIECE = 2**16
_MOST = 2**26
"""Bytes that may wait of one direction of a connection; more are not read."""


def start_delays(
    host: str, to: tuple[str, int], delays: Mapping[str, tuple[float, float]]
) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and the port of `host` at which it stands for the server at `to`. delays:
    client's address → (up, down) seconds."""
    told = json.dumps({"listen": host, "to": to, "delays": dict(delays)})
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), told],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


async def _serve_delays(
    host: str, to: tuple[str, int], delays: Mapping[str, tuple[float, float]]
) -> None:
    # A loop knows its tasks, and a connection its reader, by weak references alone: tasks that wait
    # for bytes would be collected, and their connections cut, whenever the collector runs.
    meetings: set[asyncio.Task[None]] = set()

    def start_meeting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        meeting = asyncio.ensure_future(meet(reader, writer))
        meetings.add(meeting)
        meeting.add_done_callback(meetings.discard)

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_s, down_s = delays.get(writer.get_extra_info("peername")[0], (0.0, 0.0))
        try:
            there, back = await asyncio.open_connection(*to)
        except OSError:
            writer.close()
            return
        ways = _carry_bytes(reader, back, up_s), _carry_bytes(there, writer, down_s)
        await asyncio.gather(*ways)
        for end in (writer, back):
            end.close()

    server = await asyncio.start_server(start_meeting, host, 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


async def _carry_bytes(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
) -> None:
    """Every piece that comes goes on so much later, until the end has come, or nobody hears."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MOST // _PIECE)

    async def read() -> None:
        piece = b" "
        while piece:
            try:
                piece = await reader.read(_PIECE)
            except OSError:
                piece = b""
            await waiting.put((loop.time() + delay_s, piece))

    reading = asyncio.ensure_future(read())
    with contextlib.suppress(OSError):
        while True:
            due_s, piece = await waiting.get()
            await asyncio.sleep(due_s - loop.time())
            if not piece:
                break
            writer.write(piece)
            await writer.drain()
    reading.cancel()
    with contextlib.suppress(OSError):
        writer.write_eof()


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    asyncio.run(_serve_delays(asked["listen"], tuple(asked["to"]), asked["delays"]))
