"""Whatever somebody sends to a server, or to a client: it goes on, and says a line at most."""

import asyncio
import gc
import json
import os
import random
import resource

import deploy_talks as talks
import pytest
from deploy_talks import HEAD, TOKEN
from mutations import STRANGE, mutated_bytes

from simfed.deploy import handshake, joining
from simfed.deploy.frames import Frame, Gone, encode
from simfed.ground.errors import RunFailed, SimfedError
from simfed.learn.parcel import Parcel

COUNT = int(os.environ.get("SIMFED_FUZZ_MESSAGES", "30000"))
"""Messages that a server gets in the long test; a client gets a fiftieth of them."""
AT_A_TIME = 12
"""Connections: fewer than a server lets one address have that it does not know."""
MORE_STRANGE = [
    "\ud800",
    "\ud800" * 3000,
    "a\nb\x1b[31m",
    10**400,
    -(10**4000),
    [[[[[[]]]]]],
    "n" * 64,
    *STRANGE,
]
UPWARD = {
    "hello": ("protocol", "version", "client", "nonce", "proof", "life"),
    "built": ("digest", "data", "versions"),
    "pong": ("n", "heard_s", "answered_s"),
    "upload": ("label", "times", "parts"),
    "failed": ("label", "why"),
    "answer": ("number", "parts", "loss"),
    "ready": (),
    "beat": (),
}
DOWNWARD = {
    "ping": ("n",),
    "skip": ("label",),
    "settle": ("label", "fate"),
    "task": ("label", "parts"),
    "ask": ("number", "what"),
    "take up": ("parts",),
    "anew": (),
    "agree": ("parts", "mirrors"),
    "go": (),
    "refused": ("why", "later"),
    "bye": (),
}


def strange_message(rng, kinds):
    """One that is nearly right."""
    weights = [0.1 if kind in ("hello", "ready", "bye", "refused") else 1 for kind in kinds]
    (kind,) = rng.choices(list(kinds), weights)
    facts = {name: rng.choice(MORE_STRANGE) for name in kinds[kind] if rng.random() < 0.8}
    if rng.random() < 0.01:
        kind = rng.choice(["", "\ud800", "x" * 10_000, "welcome", "simfed"])
    return Frame(kind, facts, rng.randbytes(rng.choice((0, 0, 0, 1, 100))))


def strange_bytes(rng, frame, sealed=False):
    """Bytes that are nearly a message."""
    match rng.randrange(6):
        case 0:
            return rng.randbytes(rng.choice((1, 15, 16, 17, 200)))
        case 1:
            return b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
        case 2:
            lengths = rng.choice((0, 1, 2**20, 2**31)), rng.choice((0, 1, 2**16, 2**40, 2**63))
            return HEAD.pack(rng.choice((b"sfd1", b"sfd2", b"sfd3")), *lengths) + rng.randbytes(40)
        case 3:
            depth = rng.choice((10, 900, 100_000))
            text = b'{"kind": "hello", "nonce": ' + b"[" * depth + b"]" * depth + b"}"
            return HEAD.pack(b"sfd1", len(text), 0) + text
        case 4:
            text = json.dumps(rng.choice(MORE_STRANGE)).encode()
            return HEAD.pack(b"sfd1", len(text), 0) + text
        case _:
            return mutated_bytes(rng, encode(frame, sealed=sealed))


async def hear(reader, wanted_s=20.0):
    """Read what comes, until the other end hangs up."""
    while await asyncio.wait_for(reader.read(2**16), wanted_s):
        pass


async def stranger(rng, address):
    """Somebody whom the server does not know; how many messages that were."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        greeting = await talks.Wire(reader, writer, 20.0).receive(0)
        frame = handshake.hello(talks.opening(greeting, AT_A_TIME + 1, "a life"), TOKEN)
        if rng.random() < 0.6:
            strange = strange_message(rng, {"hello": UPWARD["hello"]})
            facts = {**frame.facts, **strange.facts}
            writer.write(encode(Frame("hello", facts, strange.body)))
        else:
            writer.write(strange_bytes(rng, frame))
        if rng.random() < 0.9:
            writer.write_eof()
            await hear(reader)
    finally:
        writer.close()
    return 1


async def false_client(rng, server, token, client):
    """Somebody who knows the token, talks sense at first, and nonsense then; how many messages that
    were."""
    wire = await talks.welcomed(server.address, client, token=token, life=str(rng.random()))
    sent = 1
    try:
        if rng.random() < 0.7:
            await wire.send(Frame("built"))
            while (frame := await wire.receive(0)).kind == "ping":
                facts = {"n": frame.facts["n"], "heard_s": 0.0, "answered_s": 0.0}
                await wire.send(Frame("pong", facts))
            assert frame.kind == "go"
            await wire.send(Frame("ready"))
            for label in ("x", ""):  # as some of what is strange
                server.peers.give(client, label, Parcel({}), 100, lambda came: None)
            sent += 10
        for _ in range(rng.choice((1, 5, 40))):
            sent += 1
            frame = strange_message(rng, UPWARD)
            if rng.random() < 0.03:
                wire.writer.write(strange_bytes(rng, frame, sealed=bool(token)))
                break
            await wire.send(frame)
        wire.writer.write_eof()
        await hear(wire.reader)
    finally:
        wire.close()
    return sent


async def talk_nonsense(rng, server, token, count):
    """So many messages, from many at a time."""
    sent = 0

    async def worker(number):
        nonlocal sent
        while sent < count:
            try:
                if rng.random() < 0.6:
                    messages = await false_client(rng, server, token, number)
                else:
                    messages = await stranger(rng, server.address)
                sent += messages
            except (OSError, Gone, asyncio.TimeoutError):
                sent += 1  # hung up on in the middle of it

    await asyncio.gather(*map(worker, range(AT_A_TIME)))
    return sent


def bad_sentence(text):
    return not (text and text.isprintable() and text.isascii() and len(text) < 500)


def check_server(token, count, caplog, capfd):
    with talks.Server(token, clients=AT_A_TIME + 2) as server:
        sent = asyncio.run(talk_nonsense(random.Random(str(token)), server, token, count))
        assert sent >= count
        assert [text for text in server.refused + server.left if bad_sentence(text)] == []
        # it is as ready as ever for who talks sense
        server.joined.clear()

        async def join():
            talk = asyncio.ensure_future(
                talks.take_part(await talks.welcomed(server.address, AT_A_TIME, token=token))
            )
            while AT_A_TIME not in server.joined:
                await asyncio.sleep(0.01)
            talk.cancel()

        asyncio.run(asyncio.wait_for(join(), 20))
        assert len(server.peers.strangers) == 0
        peers = server.peers
    assert peers._peers == {}
    gc.collect()  # of a task that failed, asyncio would speak now
    assert caplog.records == []
    assert capfd.readouterr().err == ""
    return sent


@pytest.mark.parametrize("token", [TOKEN, b""])
def test_a_server_takes_nonsense_without_a_word(token, caplog, capfd):
    check_server(token, 500, caplog, capfd)


@pytest.mark.long
def test_a_server_takes_very_much_nonsense_without_a_word(caplog, capfd):
    check_server(TOKEN, COUNT // 20, caplog, capfd)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check_server(TOKEN, COUNT - COUNT // 20 - COUNT // 4, caplog, capfd)
    check_server(b"", COUNT // 4, caplog, capfd)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 50_000


class Half:
    """A client's half that takes what it is given."""

    def work(self, parcel):
        raise RunFailed("nothing to learn")

    def settle(self, label, fate):
        pass

    def answer(self, what, parcel):
        return parcel

    def keep(self):
        return self.answer("", Parcel({}))

    def take_up(self, parcel):
        pass

    def begin_anew(self):
        pass

    def agree(self, parcel):
        pass

    def close(self):
        pass


async def false_server(rng, token, reader, writer):
    """Talks nonsense, at once or later."""
    wire = talks.Wire(reader, writer, 20.0)
    nonce = handshake.nonce()
    greeting = handshake.greeting(nonce)
    try:
        if rng.random() < 0.2:
            strange = {n: rng.choice(MORE_STRANGE) for n in greeting.facts if rng.random() < 0.4}
            writer.write(encode(Frame("simfed", {**greeting.facts, **strange})))
        elif rng.random() < 0.1:
            writer.write(strange_bytes(rng, greeting))
        else:
            await wire.send(greeting)
        opening = handshake.check_hello(await wire.receive(0), token, nonce, 1)
        if token:
            wire.seal(*opening.keys(token))
        facts = {
            "scenario": "x",
            "parts": [],
            "most_down": 1000,
            "silence_s": 5.0,
            "beat_s": 0.1,
        }
        if rng.random() < 0.3:
            facts |= {name: rng.choice(MORE_STRANGE) for name in facts if rng.random() < 0.4}
        await wire.send(Frame("welcome", facts))
        for _ in range(rng.choice((1, 5, 20))):
            frame = strange_message(rng, DOWNWARD)
            if rng.random() < 0.05:
                writer.write(strange_bytes(rng, frame, sealed=bool(token)))
            else:
                await wire.send(frame)
        if rng.random() < 0.5:  # else it comes again
            await wire.send(Frame("done"))
        writer.write_eof()
        await hear(reader)
    except (SimfedError, OSError, asyncio.TimeoutError):
        pass
    finally:
        writer.close()


def check_client(token, count, monkeypatch, caplog):
    def build(self, text, files):
        self._half = Half()
        return {"digest": "", "data": "", "versions": {}}

    monkeypatch.setattr(joining._Client, "build", build)
    monkeypatch.setattr(joining, "_HANDSHAKE_S", 0.5)
    rng, sentences = random.Random(str(token)), []

    async def join(host, port):
        client = joining._Client(0, token, None, 0.0, False, sentences.append)
        try:
            await client.live(host, port)
        except SimfedError as error:
            sentences.append(str(error))

    async def play():
        met = []

        def meet(reader, writer):
            met.append(asyncio.ensure_future(false_server(rng, token, reader, writer)))

        async with await asyncio.start_server(meet, "127.0.0.1", 0) as server:
            address = server.sockets[0].getsockname()
            for _ in range(count // 50):
                await asyncio.wait_for(asyncio.gather(*(join(*address) for _ in range(50))), 60)
        await asyncio.gather(*met)

    asyncio.run(play())
    assert len(sentences) >= count // 50 * 50
    assert [text for text in sentences if "\n" in text or len(text) > 600] == []
    gc.collect()
    assert caplog.records == []


@pytest.mark.parametrize("token", [TOKEN, b""])
def test_a_client_ends_with_a_sentence_whatever_its_server_says(token, monkeypatch, caplog):
    check_client(token, 50, monkeypatch, caplog)


@pytest.mark.long
@pytest.mark.parametrize("token", [TOKEN, b""])
def test_many_clients_end_with_a_sentence(token, monkeypatch, caplog):
    check_client(token, COUNT // 50, monkeypatch, caplog)
