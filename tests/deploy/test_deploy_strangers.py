"""Whoever should not be talked to is refused in a sentence.

Nothing hangs, no memory is taken.
"""

import asyncio
import contextlib
import socket
import time
import tracemalloc

import numpy as np
import pytest
from deploy_talks import (
    HASTE,
    LIFE,
    MOST,
    TOKEN,
    Server,
    connected,
    soon,
    take_part,
    until,
    welcomed,
)
from deploy_worlds import free_port
from websockets.exceptions import InvalidStatus

from simfed import InputError, RunFailed
from simfed.deploy import Gone, Message, Refused, join
from simfed.deploy.access import is_here, read_token, require_guard
from simfed.ground import VERSION
from simfed.learn import Parcel, pack, unpack


@pytest.fixture
def server():
    """A server's end without a run."""
    with Server() as server:
        yield server


WRONG_TOKEN = "the token is another one than the server's, or none was given"
OTHER = f"this is a server of simfed {VERSION}, to which `simfed join` talks"


@pytest.mark.parametrize(
    ("token", "path", "why"),
    [
        ("another-secret-as-long", None, WRONG_TOKEN),
        ("", None, WRONG_TOKEN),
        (TOKEN + "x", None, WRONG_TOKEN),
        ("", f"/0.0.9/0/{LIFE}", WRONG_TOKEN),
        (TOKEN, f"/0.0.9/0/{LIFE}", f"client has simfed 0.0.9, the server {VERSION}: "),
        (TOKEN, f"/{VERSION}/3/{LIFE}", "clients are 0 to 2 in this scenario, got 3"),
        *(
            (TOKEN, f"/{path}", OTHER)
            for path in (
                f"{VERSION}/-1/{LIFE}",
                f"{VERSION}/0/short",
                f"{VERSION}/0/{LIFE}/",
                "",
            )
        ),
    ],
)
def test_stranger_is_refused_in_a_sentence(server, token, path, why):
    with pytest.raises(InvalidStatus) as raised:
        soon(connected(server.address, token=token, path=path))
    response = raised.value.response
    assert response.status_code == 403
    assert why in response.body.decode()
    assert why in server.refused[0]
    assert server.joined == []


def test_page_in_a_browser_is_refused(server):
    with pytest.raises(InvalidStatus):
        soon(connected(server.address, origin="https://elsewhere.example"))


def test_client_says_why_it_was_refused(server):
    with pytest.raises(Refused, match=WRONG_TOKEN):
        join(*server.address, 0, token="another-secret-as-long", patience_s=120.0)


@pytest.mark.parametrize("said", [b"\r", b"GET / HTTP/1.1\r\nHost: m", b"\x16\x03"])
def test_connection_that_does_not_say_who_it_is_ends_and_nothing_is_printed(
    said, caplog
):
    """Also one that says a byte now and then, each in time."""
    with (
        Server(patience=HASTE) as server,
        socket.create_connection(server.address) as connection,
    ):
        connection.settimeout(HASTE.handshake_s / 8)
        connection.sendall(said[:-1])
        begun_s, ended = time.monotonic(), False
        while not ended:
            assert time.monotonic() - begun_s < 20
            try:
                ended = connection.recv(1000) == b""
            except TimeoutError:
                with contextlib.suppress(OSError):
                    connection.sendall(said[-1:])
            except ConnectionError:
                ended = True
    assert caplog.records == []


@pytest.mark.parametrize(("addresses", "held"), [(1, 16), (20, 63)])
def test_silent_connections_keep_nobody_out(server, addresses, held):
    """The oldest of an address go first, or of all."""
    silent = [
        socket.create_connection(
            server.address, source_address=(f"127.0.0.{2 + i % addresses}", 0)
        )
        for i in range(200)
    ]

    async def join_and_see():
        talk = asyncio.ensure_future(take_part(await welcomed(server.address)))
        await until(lambda: server.joined)
        talk.cancel()
        return server.strangers

    assert soon(join_and_see()) == held
    for connection in silent:
        connection.close()


async def _end(wire):
    """The code and the reason with which the server hangs up."""
    while True:
        try:
            await wire.receive()
        except Gone as gone:
            return gone.code, str(gone)


@pytest.mark.parametrize(
    ("sent", "code", "why"),
    [
        (b"\xff", 1007, ""),
        ("a text", 1008, "a text came, where messages are bytes"),
        (b"\xff\xfe", 1008, "a message without facts in its first 1,048,576 bytes"),
        *(
            (sent, 1008, "a message whose facts cannot be read")
            for sent in (b"[1]\n", b"{}\n", b"\xff\n", b"[" * 50_000 + b"\n")
        ),
        (b'{"kind": "\\ud800"}\n', 1008, r"a message '\ud800' that no client sends"),
        (Message("ready").encode(), 1008, "its clock is not known yet"),
        (bytes(MOST + 1), 1009, ""),
        ([bytes(MOST // 2 + 1)] * 2, 1009, ""),
    ],
)
def test_client_that_talks_nonsense_is_hung_up_on_with_a_sentence(
    server, sent, code, why
):
    async def say():
        wire = await welcomed(server.address)
        # a text that is none, though it is sent as one
        await wire.connection.send(sent, text=True if code == 1007 else None)
        return await _end(wire)

    said = soon(say())
    assert said[0] == code
    assert why in said[1]
    assert server.peers.there == []


def test_message_of_ten_gigabytes_is_refused_and_nothing_is_set_aside(server):
    async def announce():
        wire = await welcomed(server.address)
        wire.connection.transport.write(
            b"\x82\xff" + (10**10).to_bytes(8, "big") + bytes(1000)
        )
        code, _ = await _end(wire)
        await until(lambda: server.refused)
        return code

    tracemalloc.start()
    code = soon(announce())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert code == 1009
    assert "cannot be read" in server.refused[-1]
    assert peak < 20e6


def test_one_client_cannot_be_there_twice(server):
    """Nor one who has stolen its token."""

    async def twice():
        talk = asyncio.ensure_future(take_part(await welcomed(server.address, 1)))
        await until(lambda: server.joined)
        second = await connected(server.address, 1, life="f" * 16)
        with pytest.raises(Gone, match="client 1 is here already") as raised:
            await second.receive()
        assert raised.value.code == 1013
        assert (server.peers.there, server.left) == ([1], [])
        # the same process, whose connection broke
        again = await welcomed(server.address, 1)
        talk.cancel()
        await again.close()

    soon(twice())


def test_silent_client_is_gone():
    """It neither reads nor answers, as a laptop that sleeps."""

    async def fall_asleep():
        wire = await welcomed(server.address)
        talk = asyncio.ensure_future(take_part(wire))
        await until(lambda: server.joined)
        wire.connection.transport.pause_reading()
        await until(lambda: server.left)
        talk.cancel()

    with Server(patience=HASTE) as server:
        soon(fall_asleep())
    assert server.left == ["nothing came for 0.8 s"]


def test_client_that_asks_and_does_not_read_is_hung_up_on(server):
    """Pings by the million fill no memory with their answers."""
    ping = b"\x89\xfd" + bytes(4) + bytes(125)

    async def flood():
        transport = (await welcomed(server.address)).connection.transport
        transport.pause_reading()
        while not transport.is_closing():
            transport.write(1000 * ping)
            while transport.get_write_buffer_size() and not transport.is_closing():
                await asyncio.sleep(0.001)

    soon(flood(), 60)


def test_client_that_is_ready_again_is_refused(server):
    async def twice():
        wire = await welcomed(server.address)
        talk = asyncio.ensure_future(take_part(wire))
        await until(lambda: server.joined)
        await wire.send(Message("ready"))
        return (await talk)[-1]

    end = soon(twice())
    assert (end.code, str(end)) == (1008, "a message 'ready' that no client sends")
    assert server.joined == [0]


def test_client_gives_up_a_server_that_is_not_there():
    with pytest.raises(RunFailed, match=r"no server for 0.3 s"):
        join("127.0.0.1", free_port(), 0, patience_s=0.3)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"hello\r\n\r\n", "no simfed server answers"),
        (b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:1/\r\n\r\n", "HTTP 302"),
    ],
)
def test_client_says_what_else_it_found(answer, why):
    async def play():
        async def meet(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        async with await asyncio.start_server(meet, "127.0.0.1", 0) as other:
            where = other.sockets[0].getsockname()
            await asyncio.to_thread(join, *where, 0, token=TOKEN, patience_s=0.3)

    with pytest.raises(RunFailed, match=why):
        asyncio.run(play())


@pytest.mark.parametrize(
    ("said", "keep"),
    [
        ({}, 200),
        *(({"bytes": wrong}, 200) for wrong in (3, ["none"], ["w"], [["code"]])),
        ({"bytes": ["code"]}, -1),
        ({"bytes": ["code"]}, 8),
    ],
    ids=str,
)
def test_body_that_is_not_as_its_facts_say_is_refused(said, keep):
    sent = pack({}, {"w": np.ones(2, np.float32), "code": b"abc"})
    assert unpack(sent)[1]["code"] == b"abc"
    with pytest.raises(InputError):
        unpack(Parcel(said, sent.body[:keep]))


def test_objects_do_not_travel():
    with pytest.raises(InputError, match="plain numbers"):
        pack({}, {"w": np.array([object()])})


def test_token_is_read_without_white_space(tmp_path):
    (tmp_path / "token").write_text("  " + "x" * 4000 + "\n")
    assert read_token(tmp_path / "token") == "x" * 4000


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "198.18.0.1"])
def test_server_that_others_cannot_reach_needs_no_token(host):
    require_guard(host, "", None)
    assert is_here(host)


def test_nothing_is_left_unfinished_where_a_server_ends(server):
    waits = asyncio.run_coroutine_threadsafe(asyncio.sleep(100), server.peers._loop)
    server.peers.close()
    assert waits.cancelled()
