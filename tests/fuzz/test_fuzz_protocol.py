"""Whatever somebody sends to a server, or to a client: it goes on, and says a line at
most.
"""

import asyncio
import contextlib
import gc
import logging
import os
import random
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from mutations import STRANGE, mutated_bytes
from websockets.asyncio.server import serve
from websockets.exceptions import WebSocketException

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))
import deploy_talks as talks
from deploy_talks import LIFE, MOST, TOKEN

from simfed import RunFailed, SimfedError
from simfed.deploy import Message, Seat, Wire, joining
from simfed.deploy.wire import ServerEnd
from simfed.learn import Parcel

COUNT = int(os.environ.get("SIMFED_FUZZ_MESSAGES", "30000"))
"""Messages that a server gets in the long test; a client gets a fiftieth of them."""
CODES = 1000, 1000, 1001, 1008, 1013, 4000
AT_A_TIME = 12
"""Connections: fewer than a server lets one address have that it does not know."""
MORE_STRANGE = [
    "\ud800",
    "\ud800" * 3000,
    "a\nb\x1b[31m",
    10**400,
    -(10**4000),
    [[[[[[]]]]]],
    *STRANGE,
]
UPWARD = {
    "built": "digest data versions",
    "clock": "number heard_s answered_s",
    "upload": "label times parts",
    "failed": "label why",
    "answer": "number parts loss",
    "ready": "",
}
DOWNWARD = {
    "clock": "number",
    "skip": "label",
    "settle": "label fate",
    "task": "label parts",
    "ask": "number what",
    "take up": "parts",
    "anew": "",
    "agree": "parts mirrors",
    "go": "",
}
"""Messages and their facts."""
REQUEST = (
    f"GET {Seat(0, LIFE).path()} HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
    f"Sec-WebSocket-Version: 13\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
).encode()
ANSWER = (
    b"HTTP/1.1 101 Switching Protocols\r\n"
    b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
)


def draw_facts(rng, names, share):
    """Strange values of some of these."""
    return {name: rng.choice(MORE_STRANGE) for name in names if rng.random() < share}


def strange_message(rng, kinds):
    """One that is nearly right."""
    kind = rng.choice(list(kinds))
    facts = draw_facts(rng, kinds[kind].split(), 0.8)
    if rng.random() < 0.02:
        kind = rng.choice(["", "\ud800", "x" * 10_000, "welcome"])
    return Message(kind, facts, rng.randbytes(rng.choice((0, 0, 0, 1, 100))))


def strange_request(rng):
    """Bytes that are nearly how a client says who it is.

    The last ones may come late.
    """
    match rng.randrange(5):
        case 0:
            return rng.randbytes(rng.choice((1, 16, 200)))
        case 1:
            more = b"X: " + b"y" * rng.choice((9_000, 100_000)) + b"\r\nHost"
            return REQUEST.replace(b"Host", more)
        case 2:
            return REQUEST.replace(b"Host", 1000 * b"X: y\r\n" + b"Host")
        case 3:
            return REQUEST[: rng.randrange(len(REQUEST))]
        case _:
            return mutated_bytes(rng, REQUEST)


async def send_nonsense(rng, wire, kinds):
    """One message that is nearly right, or breaks WebSocket's rules."""
    message = strange_message(rng, kinds)
    send, raw = wire.connection.send, wire.connection.transport.write
    match rng.randrange(40):
        case 0:
            await send(rng.choice(["", "a text", "\u2028" * 1000]))
        case 1:
            await send(mutated_bytes(rng, message.encode()))
        case 2:
            await send([rng.randbytes(100)] * rng.choice((1, 5, 2000)))
        case 3:
            await send(bytes(MOST * rng.choice((1, 2))))
        case 4:
            length = rng.choice((10**10, 2**63 - 1, 2**64 - 1))
            raw(b"\x82\xff" + length.to_bytes(8, "big"))
        case 5:
            raw(rng.randbytes(rng.choice((1, 2, 10, 200))))
        case 6:
            await send(b"[" * rng.choice((10, 900, MOST - 1)) + b"\n")
        case 7:
            await wire.connection.ping(rng.randbytes(100))
        case _:
            await wire.send(message)


async def close(rng, wire):
    code, why = rng.choice(CODES), rng.choice(("", "a\nb\x1b[31m"))
    await wire.close(code, why)


async def stranger(rng, address):
    """Somebody whom the server does not know; how many messages that were."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(strange_request(rng))
        if rng.random() < 0.9:
            writer.write_eof()
            while await asyncio.wait_for(reader.read(2**16), 20.0):
                pass
    finally:
        writer.close()
    return 1


async def false_client(rng, server, token, client):
    """Somebody who knows the token, talks sense at first, and nonsense then.

    How many messages that were.
    """
    life = f"{rng.getrandbits(64):016x}"
    wire = await talks.welcomed(server.address, client, token=token, life=life)
    sent = 1
    try:
        if rng.random() < 0.7:
            await wire.send(Message("built"))
            while (message := await wire.receive()).kind == "clock":
                facts = {**message.facts, "heard_s": 0.0, "answered_s": 0.0}
                await wire.send(Message("clock", facts))
            assert message.kind == "go"
            await wire.send(Message("ready"))
            for label in ("x", ""):  # as some of what is strange
                server.peers.give(client, label, Parcel({}), lambda came: None)
            sent += 10
        for _ in range(rng.choice((1, 5, 40))):
            sent += 1
            await send_nonsense(rng, wire, UPWARD)
    finally:
        if rng.random() < 0.5:
            wire.connection.transport.abort()
        await close(rng, wire)
    return sent


async def talk_nonsense(rng, server, token, count):
    """So many messages, from many at a time."""
    sent = 0

    async def talk(client):
        nonlocal sent
        while sent < count:
            try:
                if rng.random() < 0.6:
                    more = await false_client(rng, server, token, client)
                else:
                    more = await stranger(rng, server.address)
            except (OSError, SimfedError, WebSocketException, asyncio.TimeoutError):
                more = 1  # hung up on in the middle of it
            sent += more

    await asyncio.gather(*map(talk, range(AT_A_TIME)))


def bad_sentence(text):
    return not (text and text.isprintable() and len(text) < 500)


def run_apart(story, within_s):
    """Run a coroutine in a thread: a browser's tests leave a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(talks.soon, story, within_s).result()


async def join_once(server, token):
    wire = await talks.welcomed(server.address, AT_A_TIME, token=token)
    talk = asyncio.ensure_future(talks.take_part(wire))
    await talks.until(lambda: AT_A_TIME in server.joined and not server.strangers)
    talk.cancel()


def check_server(token, count, caplog, capfd):
    with talks.Server(token, clients=AT_A_TIME + 2) as server:
        run_apart(talk_nonsense(random.Random(token), server, token, count), 300)
        said = server.refused + server.left
        assert [text for text in said if bad_sentence(text)] == []
        # it is as ready as ever for who talks sense
        server.joined.clear()
        run_apart(join_once(server, token), 30)
    assert server.peers._peers == {}
    gc.collect()  # of a task that failed, asyncio would speak now
    assert caplog.records == []
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("token", [TOKEN, ""])
def test_server_takes_nonsense_without_a_word(token, caplog, capfd):
    check_server(token, 500, caplog, capfd)


@pytest.mark.long
def test_server_takes_very_much_nonsense_without_a_word(caplog, capfd):
    check_server(TOKEN, COUNT // 20, caplog, capfd)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check_server(TOKEN, COUNT - COUNT // 20 - COUNT // 4, caplog, capfd)
    check_server("", COUNT // 4, caplog, capfd)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 50_000


class Half:
    """A client's half that takes what it is given."""

    def work(self, parcel):
        raise RunFailed("nothing to learn")

    def answer(self, what, parcel):
        return parcel

    def keep(self):
        return Parcel({})

    def take(self, *_):
        pass

    settle = take_up = begin_anew = agree = close = take


async def false_server(rng, connection):
    """Talks nonsense, at once or later."""
    wire = Wire(connection)
    facts = {"scenario": "x", "parts": [], "silence_s": 5.0}
    if rng.random() < 0.3:
        facts |= draw_facts(rng, facts, 0.4)
    with contextlib.suppress(SimfedError, WebSocketException):
        await wire.send(Message(rng.choice(["welcome"] * 9 + ["task"]), facts))
        for _ in range(rng.choice((1, 5, 20))):
            await send_nonsense(rng, wire, DOWNWARD)
        await close(rng, wire)


async def no_websocket(rng, reader, writer):
    await reader.read(1000)
    some = mutated_bytes(rng, ANSWER), rng.randbytes(50), ANSWER, b""
    writer.write(rng.choice(some))
    writer.close()


async def join_false(host, port, sentences):
    """Be a client of one of them, which says a sentence at its end."""
    client = joining._Client(0, TOKEN, None, 0.0, False, sentences.append)
    try:
        await client.live(host, port)
        sentences.append("done")
    except SimfedError as error:
        sentences.append(str(error))


async def join_false_servers(rng, count, sentences):
    silent = logging.Logger("silent", logging.CRITICAL + 1)
    options = {"create_connection": ServerEnd, "compression": None, "logger": silent}
    here = "127.0.0.1", 0
    async with (
        serve(partial(false_server, rng), *here, **options) as false,
        await asyncio.start_server(partial(no_websocket, rng), *here) as other,
    ):
        ends = [one.sockets[0].getsockname() for one in (false, false, false, other)]
        for _ in range(max(count // 25, 1)):
            joins = (join_false(*rng.choice(ends), sentences) for _ in range(25))
            await asyncio.wait_for(asyncio.gather(*joins), 60)


def check_client(count, monkeypatch, caplog):
    def build(self, text, files):
        self._half = Half()
        return {"digest": "", "data": "", "versions": {}}

    monkeypatch.setattr(joining._Client, "build", build)
    monkeypatch.setattr(joining, "_OPENING_S", 0.5)
    sentences = []
    run_apart(join_false_servers(random.Random(count), count, sentences), 3000)
    assert len(sentences) >= count // 25 * 25
    assert [text for text in sentences if "\n" in text or len(text) > 600] == []
    gc.collect()
    assert caplog.records == []


def test_client_ends_with_a_sentence_whatever_its_server_says(monkeypatch, caplog):
    check_client(50, monkeypatch, caplog)


@pytest.mark.long
def test_many_clients_end_with_a_sentence(monkeypatch, caplog):
    check_client(COUNT // 25, monkeypatch, caplog)
