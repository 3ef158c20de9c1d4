"""Somebody on the way changes, repeats, swaps, holds back: with a token it is noticed at once."""

import asyncio
import threading

import deploy_talks as talks
import deploy_worlds as worlds
import numpy as np
import pytest
from deploy_talks import HEAD, TOKEN, Proxy, kind_of

from simfed.deploy.frames import Altered, Frame, Gone, Refused
from simfed.deploy.handshake import read_token
from simfed.deploy.joining import join
from simfed.deploy.serving import Listening
from simfed.ground.errors import InputError
from simfed.learn.parcel import Parcel

NOTICED = "a message was changed, repeated or left out on its way"
LABELS = ("0/1", "0/2", "0/3")


def spoiled(message, at):
    """With one bit changed; negative places count from the end."""
    changed = bytearray(message)
    changed[at] ^= 0x80
    return bytes(changed)


def without_digest(message):
    _, facts, body = HEAD.unpack(message[: HEAD.size])
    return HEAD.pack(b"sfd1", facts, body) + message[HEAD.size : -32]


def with_shorter_body(message):
    magic, facts, body = HEAD.unpack(message[: HEAD.size])
    return HEAD.pack(magic, facts, body - 4) + message[HEAD.size :]


class Meddling:
    """With the second message of a `kind`, by name; what else passes is left as it is."""

    def __init__(self, how, kind):
        self._how, self._kind = how, kind
        self._seen = []
        self._from_there = None
        self.struck = False

    def __call__(self, upward, message):
        kind = kind_of(message)
        if kind != self._kind:
            if kind in ("welcome", "ping"):
                self._from_there = message
            return [message]
        self._seen.append(message)
        if len(self._seen) != 2:
            return [message] if len(self._seen) < 3 else self._afterwards(message)
        self.struck = True
        return self._second(message)

    def _second(self, message):
        return {
            "a bit of the body": [spoiled(message, -40)],
            "a bit of the facts": [spoiled(message, HEAD.size + 12)],
            "a bit of the digest": [spoiled(message, -1)],
            "a bit of the magic": [spoiled(message, 0)],
            "a bit of the length": [spoiled(message, 4)],
            "a shorter body": [with_shorter_body(message)],
            "no digest": [without_digest(message)],
            "another's digest": [message[:-32] + self._seen[0][-32:]],
            "repeated": [message, message],
            "repeated later": [message, self._seen[0]],
            "left out": [],
            "swapped": [],
            "sent back": [self._from_there],
            "cut": [message[:-20], Proxy.CUT],
        }[self._how]

    def _afterwards(self, message):
        if self._how == "swapped" and len(self._seen) == 3:
            return [message, self._seen[1]]
        return [message]


HOWS = (
    "a bit of the body",
    "a bit of the facts",
    "a bit of the digest",
    "a bit of the magic",
    "a bit of the length",
    "a shorter body",
    "no digest",
    "another's digest",
    "repeated",
    "repeated later",
    "left out",
    "swapped",
    "sent back",
    "cut",
)


def three_tasks(meddle):
    """(uploads that the server took, why the client was gone, what the client was told)."""
    came = []

    def answer(task):
        body = np.full(1000, int(task.facts["label"][-1]), np.float32).tobytes()
        yield Frame("upload", {"label": task.facts["label"]}, body)

    async def play(server):
        async with Proxy(server.address, meddle) as proxy:
            talk = asyncio.ensure_future(
                talks.take_part(await talks.welcomed(proxy.address), answer)
            )
            while not server.joined:
                await asyncio.sleep(0.005)
            for label in LABELS:
                parcel = Parcel({"label": label}, bytes(1000))
                server.peers.give(0, label, parcel, 2**20, came.append)
            while len(came) < len(LABELS) and not talk.done():
                await asyncio.sleep(0.005)
            if not talk.done():
                await asyncio.to_thread(server.peers.close, Frame("bye"))
            return await talk

    with talks.Server() as server:
        told = asyncio.run(play(server))
        server.peers.close(Frame("bye"))
        return [c.frame for c in came if c.frame is not None], server.left, told


def test_messages_that_nobody_changes_come_as_they_were_sent():
    uploads, left, told = three_tasks(lambda upward, message: [message])
    assert [frame.facts["label"] for frame in uploads] == list(LABELS)
    assert [frame.body[:4] for frame in uploads] == [np.float32(n).tobytes() for n in (1, 2, 3)]
    assert left == ["the connection was closed"]
    assert told[-1].kind == "bye"


@pytest.mark.parametrize("how", HOWS)
def test_an_upload_that_was_meddled_with_is_not_taken_and_the_talk_is_over(how):
    meddle = Meddling(how, "upload")
    uploads, left, told = three_tasks(meddle)
    assert meddle.struck
    taken = 2 if how.startswith("repeated") else 1
    assert [frame.facts["label"] for frame in uploads] == list(LABELS[:taken])
    assert len(left) == 1
    if how == "cut":
        assert left[0].startswith("the connection was")
        assert isinstance(told[-1], Gone)
        return
    expected = {
        "a bit of the magic": "the other end does not speak simfed's protocol",
        "a bit of the length": "bytes of facts, at most",
        "no digest": "a message without a digest came",
    }.get(how, NOTICED)
    assert expected in left[0]
    # the client is told, and may come again
    assert told[-1].kind == "refused"
    assert told[-1].facts == {"why": left[0], "later": True}


@pytest.mark.parametrize("how", [how for how in HOWS if how != "a bit of the length"])
def test_a_task_that_was_meddled_with_is_not_done(how):
    meddle = Meddling(how, "task")
    uploads, _, told = three_tasks(meddle)
    assert meddle.struck
    taken = 2 if how.startswith("repeated") else 1
    tasks = [frame.facts["label"] for frame in told[:-1] if frame.kind == "task"]
    assert tasks == list(LABELS[:taken])
    assert isinstance(told[-1], Gone)
    assert isinstance(told[-1], Altered) == (how != "cut")
    assert len(uploads) <= taken


@pytest.mark.parametrize("kind", ["simfed", "hello", "welcome"])
def test_a_handshake_that_was_changed_is_none(kind):
    def meddle(upward, message):
        if kind_of(message) != kind:
            return [message]
        # a digit of a nonce, of the client's process, of the scenario: all of it is proved
        old, new = {"welcome": (b'"none"', b'"nine"')}.get(kind, (b'"nonce": "', b'"nonce": "0'))
        changed = message.replace(old, new, 1)
        if kind != "welcome":
            end = changed.index(b'"', changed.index(new) + len(new))
            changed = changed[: end - 1] + changed[end:]
        assert changed != message
        return [changed]

    async def play(server):
        async with Proxy(server.address, meddle) as proxy:
            host, port = proxy.address
            await asyncio.to_thread(join, host, port, 0, token=TOKEN, patience_s=120.0)

    with talks.Server() as server, pytest.raises(Refused, match="token"):
        asyncio.run(play(server))


def test_who_joined_before_digests_is_refused_in_a_sentence():
    async def play(server):
        wire = await talks.connected(server.address)
        greeting = await wire.receive(0)
        # what a client of protocol 1 looks at, and turns away from by itself
        assert {"protocol", "version", "nonce"} == greeting.facts.keys()
        facts = {**greeting.facts, "protocol": 1, "client": 0, "nonce": "n" * 64, "proof": "0" * 64}
        await wire.send(Frame("hello", facts))
        return await wire.receive(0)

    with talks.Server() as server:
        refusal = asyncio.run(play(server))
    assert refusal.facts["why"] == (
        "the client speaks protocol 1, this end 2: both need the same simfed"
    )


def test_a_server_from_before_digests_is_known_by_its_first_words():
    async def greet(reader, writer):
        facts = {"protocol": 1, "version": "0.1.0", "nonce": "s" * 64}
        await talks.Wire(reader, writer, 5.0).send(Frame("simfed", facts))

    async def play():
        async with await asyncio.start_server(greet, "127.0.0.1", 0) as old:
            host, port = old.sockets[0].getsockname()
            await asyncio.to_thread(join, host, port, 0, token=TOKEN, patience_s=120.0)

    with pytest.raises(Refused, match="the server speaks protocol 1, this end 2: both need the"):
        asyncio.run(play())


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        (TOKEN, b"", "the token is another one than the server's, or none was given"),
        (b"", TOKEN, "the server was started without a token: join without one"),
    ],
)
def test_a_token_at_one_end_alone_is_refused_in_a_sentence(ours, theirs, why):
    with talks.Server(token=ours) as server, pytest.raises(Refused, match=why):
        join(*server.address, 0, token=theirs, patience_s=120.0)


def test_a_token_that_never_ends_is_refused(tmp_path):
    with pytest.raises(
        InputError, match="/dev/zero: got 'more', expected a token of at most 4,096 bytes"
    ):
        read_token("/dev/zero")
    (tmp_path / "token").write_text("  " + "x" * 4000 + "\n")
    assert read_token(tmp_path / "token") == b"x" * 4000


class Through(worlds.Crowd):
    """Clients who reach the server through somebody."""

    def __init__(self, meddle, **options):
        super().__init__(**options)
        self._meddle, self._loop = meddle, asyncio.new_event_loop()

    def begin(self, host, port):
        self._proxy = Proxy((host, port), self._meddle)
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._proxy.__aenter__(), self._loop).result(10)
        super().begin(*self._proxy.address)

    def end(self):
        super().end()
        asyncio.run_coroutine_threadsafe(self._proxy.__aexit__(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)


def test_a_run_does_not_learn_what_somebody_on_the_way_made_of_an_upload(tmp_path, monkeypatch):
    """The signs of one upload are turned over; without digests it would have been merged."""
    uploads, ready = [], []
    struck, back = threading.Event(), threading.Event()

    def turn_over(upward, message):
        kind = kind_of(message)
        if kind == "ready":
            ready.append(message)
            if len(ready) == 4:
                back.set()
        if kind != "upload":
            return [message]
        uploads.append(message)
        if len(uploads) != 4:
            return [message]
        struck.set()
        _, facts, body = HEAD.unpack(message[: HEAD.size])
        at = HEAD.size + facts
        values = -np.frombuffer(message[at : at + body], np.float32)
        return [message[:at] + values.tobytes() + message[at + body :]]

    class Waits(worlds.Slow):
        """Works on when the client whose upload was changed is back."""

        def work(self, parcel):
            if struck.is_set():
                back.wait(60)
            return super().work(parcel)

    monkeypatch.setattr(worlds, "Slow", Waits)
    plan = worlds.scenario(
        rounds=4, method="fedavg", policy={"kind": "uniform", "strategy": "dense"}
    )
    crowd = Through(turn_over, token=TOKEN, patience_s=120.0)
    listening = Listening(patience=worlds.QUICK, join_s=300.0, token=TOKEN)
    real = worlds.deployed(plan, tmp_path / "run", crowd=crowd, listening=listening)
    assert crowd.errors == {}
    outcomes = real.participations["outcome"].value_counts()
    assert outcomes["dropped"] == 1
    assert outcomes["aggregated"] == len(real.participations) - 1
    assert [NOTICED in warning for warning in real.manifest["warnings"]].count(True) == 1
    # it came again, and had a part in the last round
    assert (real.participations["round"] == 4).sum() == 3
