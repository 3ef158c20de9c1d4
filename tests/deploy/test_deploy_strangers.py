"""Whoever should not be talked to is refused in a sentence; nothing hangs, no memory is taken."""

import asyncio
import contextlib
import json
import socket
import threading
import tracemalloc

import pytest
from deploy_talks import HASTE, HEAD, TOKEN, Server, connected, opening, take_part, welcomed

from simfed.deploy import handshake
from simfed.deploy.frames import Frame, Gone, Refused, Seal, encode, read_frame, write_frame
from simfed.deploy.joining import join
from simfed.ground.errors import InputError, RunFailed
from simfed.learn.parcel import Parcel, pack, unpack


@pytest.fixture
def server():
    """(peers, address, who joined): a server's end without a run."""
    with Server() as server:
        yield server.peers, server.address, server.joined


def talk(address, *sent):
    """What the server says to somebody who sends these bytes after its greeting, to the end."""
    said = []

    async def talked():
        reader, writer = await asyncio.open_connection(*address)
        seal = None
        for data in (None, *sent):
            if data is not None:
                writer.write(data(said[0]) if callable(data) else data)
                await writer.drain()
            if len(said) == 1:
                seal = Seal(opening(said[0], 0, "a life").keys(TOKEN)[0])
            try:
                said.append(await read_frame(reader, most_body=1000, patience_s=20.0, seal=seal))
            except Gone:
                break
        writer.close()

    asyncio.run(talked())
    return said


def hello(token=TOKEN, client=0, **changes):
    """The client's first words; `changes`: facts that are another's."""

    def made(greeting):
        frame = handshake.hello(opening(greeting, client, "a life"), token)
        return encode(Frame("hello", {**frame.facts, **changes}))

    return made


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (hello(token=b"another secret, as long"), "the token is another one than the server's"),
        (hello(version="0.0.9"), "the client has simfed 0.0.9, this end"),
        (
            hello(protocol=99),
            "the client speaks protocol 99, this end 2: both need the same simfed",
        ),
        (hello(client=3), "clients are 0 to 2 in this scenario, got 3"),
        (hello(client="0"), "the client says no number"),
        (b"GET / HTTP/1.1\r\nHost: me\r\n\r\n", "does not speak simfed's protocol"),
        (HEAD.pack(b"sfd1", 20, 10 * 10**9), "a message of 10,000,000,000 bytes, at most 0 are"),
        (HEAD.pack(b"sfd1", 2**31, 0), "2,147,483,648 bytes of facts"),
        (HEAD.pack(b"sfd1", 5, 0) + b"[[[[[", "whose facts cannot be read"),
        (HEAD.pack(b"sfd1", 2, 0) + b"{}", "whose facts cannot be read"),
        (encode(Frame("upload", {"label": "0/1"})), "a message 'hello' was due"),
        (
            hello(nonce="\ud800"),
            r"the client's nonce is no text of at most 128 ASCII characters, got '\ud800'",
        ),
        (hello(proof="\ud800"), "the client's proof is no text"),
        (hello(life="\ud800"), "the client's life is no text"),
        (hello(life="another life"), "the token is another one than the server's, or none was"),
        (hello(version="\ud800\n" * 100_000), r"the client has simfed \ud800\n\ud800\n"),
        (hello(version=[[[]]]), "the client has simfed a value of type list"),
        (encode(Frame("\ud800")), r"a message 'hello' was due, '\ud800' came"),
    ],
)
def test_a_stranger_is_refused_in_a_sentence(server, sent, why):
    _, address, joined = server
    last = talk(address, sent)[-1]
    assert last.kind == "refused"
    assert why in last.facts["why"]
    assert joined == []


@pytest.mark.parametrize("said", [b"", HEAD.pack(b"sfd1", 100, 0)])
def test_a_peer_that_does_not_say_who_it_is_is_hung_up_on_and_nothing_is_printed(said, caplog):
    """Nor one that says a byte now and then, each in time."""
    with Server(patience=HASTE) as server, socket.create_connection(server.address) as connection:
        connection.settimeout(HASTE.handshake_s / 8)
        connection.sendall(said[:-1])
        ended = False
        while not ended:
            try:
                ended = connection.recv(1000) == b""
            except TimeoutError:
                with contextlib.suppress(OSError):
                    connection.sendall(said[-1:])
            except ConnectionError:
                ended = True
    assert caplog.records == []


def test_silent_connections_keep_nobody_out():
    """The oldest of an address go first; those of others stay."""

    async def crowd(address):
        other = await connected(address, local_addr=("127.0.0.2", 0))
        silent = [await connected(address) for _ in range(100)]
        talk = asyncio.ensure_future(take_part(await welcomed(address)))
        while not calm.joined:
            await asyncio.sleep(0.01)
        talk.cancel()
        assert len(calm.peers.strangers) == 16  # the other, and the last 15
        for wire in silent[:85]:
            with contextlib.suppress(Gone):  # ended before it was greeted
                assert (await wire.receive(0)).kind == "simfed"
            with pytest.raises(Gone, match=r"the connection was (closed|lost)"):
                await wire.receive(0)
        for wire in (*silent[85:], other):
            assert (await wire.receive(0)).kind == "simfed"
        other.patience_s = 0.1
        with pytest.raises(Gone, match=r"nothing came or went for 0\.1 s"):
            await other.receive(0)
        for wire in (*silent, other):
            wire.close()

    with Server() as calm:
        asyncio.run(crowd(calm.address))


def test_silent_connections_of_many_addresses_keep_nobody_out():
    async def crowd(address):
        silent = [
            await connected(address, local_addr=(f"127.0.0.{2 + i % 20}", 0)) for i in range(200)
        ]
        talk = asyncio.ensure_future(take_part(await welcomed(address)))
        while not calm.joined:
            await asyncio.sleep(0.01)
        assert len(calm.peers.strangers) == 63
        talk.cancel()
        for wire in silent:
            wire.close()

    with Server() as calm:
        asyncio.run(crowd(calm.address))


def test_a_known_client_that_announces_ten_gigabytes_is_refused_and_nothing_is_set_aside(server):
    tracemalloc.start()
    said = talk(server[1], hello(), HEAD.pack(b"sfd1", 2, 10 * 10**9) + b"{}", b"")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    refusal = [frame for frame in said if frame.kind == "refused"]
    assert "10,000,000,000 bytes, at most 65,536 are expected now" in refusal[0].facts["why"]
    assert peak < 20e6


def test_one_client_cannot_be_there_twice(server):
    asyncio.run(_twice(server[1]))


async def _twice(address):
    async def shake(life):
        reader, writer = await asyncio.open_connection(*address)
        greeting = await read_frame(reader, most_body=0, patience_s=5.0)
        told = opening(greeting, 1, life)
        writer.write(encode(handshake.hello(told, TOKEN)))
        seal = Seal(told.keys(TOKEN)[0])
        return await read_frame(reader, most_body=1000, patience_s=20.0, seal=seal), writer

    (first, one), (second, other) = await shake("one"), await shake("two")
    assert first.kind == "welcome"
    assert second.facts == {"why": "client 1 is here already", "later": True}
    third, again = await shake("one")  # the same process, whose connection broke
    assert third.kind == "welcome"
    for writer in (one, other, again):
        writer.close()


def test_a_client_does_not_believe_a_server_without_the_token():
    greeting = encode(handshake.greeting("s" * 64))
    welcome = encode(Frame("welcome", {"proof": "0" * 64, "scenario": "rounds: 1"}))
    with _answering(greeting + welcome) as (host, port), pytest.raises(Refused, match="not know"):
        join(host, port, 0, token=TOKEN, patience_s=0.5)


def test_a_client_refuses_a_server_of_another_version():
    facts = {"protocol": handshake.PROTOCOL, "version": "9.9", "nonce": "s" * 64}
    with (
        _answering(encode(Frame("simfed", facts))) as (host, port),
        pytest.raises(Refused, match=r"the server has simfed 9\.9"),
    ):
        join(host, port, 0, token=TOKEN, patience_s=0.5)


def test_a_client_gives_up_a_server_that_is_not_there():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(RunFailed, match=r"no server for 0.3 s"):
        join("127.0.0.1", port, 0, patience_s=0.3)


class _answering:
    """A server that says these bytes to the first who comes, and no more."""

    def __init__(self, data):
        self._data = data

    def __enter__(self):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()
        return self._socket.getsockname()

    def _answer(self):
        self._connection, _ = self._socket.accept()
        self._connection.sendall(self._data)

    def __exit__(self, *_):
        self._connection.close()
        self._socket.close()


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"parts": 3},
        {"parts": [["w", "<f4"]]},
        {"parts": [["w", "O", [1]]]},
        {"parts": [["w", "<f4", [-1]]]},
        {"parts": [["w", "<f4", [2**39, 2**39]]]},
        {"parts": [["w", "<f4", [3]]]},
        {"parts": [["w", "<f4", [1]]]},
    ],
    ids=json.dumps,
)
def test_a_body_that_is_not_what_its_facts_say_is_refused(facts):
    with pytest.raises(InputError):
        unpack(Parcel(facts, bytes(8)))


def test_objects_do_not_travel():
    import numpy as np

    with pytest.raises(InputError, match="plain numbers"):
        pack({}, {"w": np.array([object()])})


def test_a_token_that_could_be_guessed_is_refused(tmp_path):
    (tmp_path / "token").write_text("secret\n")
    with pytest.raises(InputError, match="at least 16 bytes"):
        handshake.read_token(tmp_path / "token")


def test_nothing_is_left_unfinished_where_a_server_ends(server):
    peers, _, _ = server
    waits = asyncio.run_coroutine_threadsafe(asyncio.sleep(100), peers._loop)
    peers.close(Frame("bye"))
    assert waits.cancelled()


@pytest.mark.parametrize("moment", range(12))
def test_whoever_is_told_to_stop_while_sending_stops(moment):
    """At whatever moment between the pieces of a message, which nobody reads."""

    async def stop(address):
        _, writer = await asyncio.open_connection(*address)
        frame = Frame("task", {}, bytes(2**25))
        sending = asyncio.ensure_future(write_frame(writer, frame, patience_s=20.0))
        for _ in range(moment):
            await asyncio.sleep(0)
        asked = sending.cancel()
        await asyncio.wait([sending], timeout=10.0)
        writer.transport.abort()
        return asked, sending.cancelled()

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        assert asyncio.run(stop(deaf.getsockname())) == (True, True)
