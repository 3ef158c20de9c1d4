"""Whoever should not be talked to is refused in a sentence; nothing hangs, no memory is taken."""

import asyncio
import json
import socket
import struct
import threading
import tracemalloc

import pytest

from simfed.deploy import handshake
from simfed.deploy.frames import Frame, Gone, Refused, encode, read_frame
from simfed.deploy.joining import join
from simfed.deploy.peers import Patience, Peers
from simfed.errors import InputError, RunFailed
from simfed.learn.parcel import Parcel, pack, unpack

TOKEN = b"a secret of many bytes"
HASTE = Patience(handshake_s=0.4, silence_s=0.8, beat_s=0.1, answer_s=1.0)
HEAD = struct.Struct(">4sIQ")


@pytest.fixture
def server():
    """(peers, address, who joined): a server's end without a run."""
    joined = []
    peers = Peers(
        3, TOKEN, lambda at_s, happen: happen(),
        welcome=lambda client: Parcel({"scenario": "none", "most_down": 0, "parts": []}),
        check=lambda client, facts: None, state_of=lambda client: None,
        joined=joined.append, left=lambda client, why: None, most_state=0, patience=HASTE,
    )  # fmt: skip
    address = peers.listen("127.0.0.1", 0)
    yield peers, address, joined
    peers.close(Frame("bye"))


def talk(address, *sent):
    """What the server says to somebody who sends these bytes after its greeting, to the end."""
    said = []

    async def talked():
        reader, writer = await asyncio.open_connection(*address)
        for data in (None, *sent):
            if data is not None:
                writer.write(data(said[0]) if callable(data) else data)
                await writer.drain()
            try:
                said.append(await read_frame(reader, most_body=1000, patience_s=5.0))
            except Gone:
                break
        writer.close()

    asyncio.run(talked())
    return said


def hello(token=TOKEN, client=0, **changes):
    """The client's first words; `changes`: facts that are another's."""

    def made(greeting):
        frame = handshake.hello(greeting, token, client, "n" * 64, "a life")
        return encode(Frame("hello", {**frame.facts, **changes}))

    return made


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (hello(token=b"another secret, as long"), "the token is another one than the server's"),
        (hello(version="0.0.9"), "the client has simfed 0.0.9, this end"),
        (hello(protocol=99), "the client speaks protocol 99, this end 1"),
        (hello(client=3), "clients are 0 to 2 in this scenario, got 3"),
        (hello(client="0"), "the client says no number"),
        (b"GET / HTTP/1.1\r\nHost: me\r\n\r\n", "does not speak simfed's protocol"),
        (HEAD.pack(b"sfd1", 20, 10 * 10**9), "a message of 10,000,000,000 bytes, at most 0 are"),
        (HEAD.pack(b"sfd1", 2**31, 0), "2,147,483,648 bytes of facts"),
        (HEAD.pack(b"sfd1", 5, 0) + b"[[[[[", "whose facts cannot be read"),
        (HEAD.pack(b"sfd1", 2, 0) + b"{}", "whose facts cannot be read"),
        (encode(Frame("upload", {"label": "0/1"})), "a message 'hello' was due"),
    ],
)
def test_a_stranger_is_refused_in_a_sentence(server, sent, why):
    _, address, joined = server
    last = talk(address, sent)[-1]
    assert last.kind == "refused"
    assert why in last.facts["why"]
    assert joined == []


def test_a_peer_that_says_nothing_is_hung_up_on(server):
    with socket.create_connection(server[1]) as connection:
        connection.settimeout(5.0)
        while connection.recv(1000):
            pass  # the greeting, then the end


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
        writer.write(encode(handshake.hello(greeting, TOKEN, 1, "n" * 64, life)))
        return await read_frame(reader, most_body=1000, patience_s=5.0), writer

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
    facts = {"protocol": 1, "version": "9.9", "nonce": "s" * 64}
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
