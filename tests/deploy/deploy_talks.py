"""Both ends of a deployment's protocol without a run, and somebody between them."""

import asyncio
import contextlib
import struct

from simfed.deploy import handshake
from simfed.deploy.frames import Frame, Gone
from simfed.deploy.peers import Patience, Peers
from simfed.deploy.wire import Wire
from simfed.learn.parcel import Parcel

TOKEN = b"a secret of many bytes"
HASTE = Patience(handshake_s=0.4, silence_s=0.8, beat_s=0.1, answer_s=1.0)
CALM = Patience(handshake_s=20.0, silence_s=20.0, beat_s=5.0, answer_s=20.0)
HEAD = struct.Struct(">4sIQ")


class Server:
    """A server's end without a run; `joined`, `left` and `refused` say what it was told."""

    def __init__(self, token=TOKEN, clients=3, patience=CALM):
        self.joined, self.left, self.refused = [], [], []
        self.peers = Peers(
            clients,
            token,
            lambda at_s, happen: happen(),
            welcome=lambda client: Parcel({"scenario": "none", "most_down": 0, "parts": []}),
            check=lambda client, facts: None,
            tell_newcomer=lambda client: [],
            joined=self.joined.append,
            left=lambda client, why: self.left.append(why),
            most_state=0,
            patience=patience,
        )
        self.peers.refused = self.refused
        self.address = self.peers.listen("127.0.0.1", 0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.peers.close(Frame("bye"))


def opening(greeting, client, life):
    return handshake.Opening(greeting.facts["nonce"], client, "n" * 64, life)


async def connected(address, patience_s=20.0, **options):
    """A connection to a server."""
    return Wire(*await asyncio.open_connection(*address, limit=2**18, **options), patience_s)


async def welcomed(address, client=0, *, token=TOKEN, life="a life"):
    """A connection whose server knows who this end is. Raises: `Gone` if it is refused."""
    wire = await connected(address)
    told = opening(await wire.receive(0), client, life)
    await wire.send(handshake.hello(told, token))
    if token:
        theirs, ours = told.keys(token)
        wire.seal(ours, theirs)
    welcome = await wire.receive(2**20)
    if welcome.kind != "welcome":
        wire.close()
        raise Gone(welcome.facts.get("why"))
    return wire


async def take_part(wire, answer=lambda task: ()):
    """Be a client, until the connection ends; what came, in order. `answer`: to a task."""
    came = []
    try:
        await wire.send(Frame("built"))
        while True:
            frame = await wire.receive(2**20)
            if frame.kind == "ping":
                now_s = frame.at_s
                facts = {"n": frame.facts["n"], "heard_s": now_s, "answered_s": now_s}
                await wire.send(Frame("pong", facts))
                continue
            came.append(frame)
            if frame.kind == "go":
                await wire.send(Frame("ready"))
            elif frame.kind == "task":
                for message in answer(frame):
                    await wire.send(message)
            elif frame.kind in ("bye", "done", "refused"):
                return came
    except Gone as error:
        return [*came, error]
    finally:
        wire.close()


class Proxy:
    """Passes messages on between clients and a server, as `meddle` likes.

    `meddle(upward, message)` gives the messages that go on in place of this one, as bytes; `CUT`
    among them ends the connection.
    """

    CUT = b""

    def __init__(self, server, meddle):
        self._server_address, self._meddle = server, meddle

    async def __aenter__(self):
        self._pairs = []
        self._listening = await asyncio.start_server(self._meet, "127.0.0.1", 0, limit=2**18)
        self.address = self._listening.sockets[0].getsockname()
        return self

    async def __aexit__(self, *_):
        self._listening.close()
        for task in self._pairs:
            task.cancel()
        await asyncio.gather(*self._pairs, return_exceptions=True)

    async def _meet(self, reader, writer):
        above = await asyncio.open_connection(*self._server_address, limit=2**18)
        ends = (writer, above[1])
        for upward, source, target in ((True, reader, above[1]), (False, above[0], writer)):
            self._pairs.append(asyncio.ensure_future(self._pass_on(upward, source, target, ends)))

    async def _pass_on(self, upward, source, target, ends):
        try:
            while True:
                for piece in self._meddle(upward, await raw_message(source)):
                    if piece == self.CUT:
                        return
                    target.write(piece)
                await target.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                for end in ends:
                    end.close()


async def raw_message(reader):
    """The bytes of the next message."""
    head = await reader.readexactly(HEAD.size)
    magic, facts, body = HEAD.unpack(head)
    return head + await reader.readexactly(facts + body + (32 if magic == b"sfd2" else 0))


def kind_of(message):
    """Of a message's bytes."""
    _, facts, _ = HEAD.unpack(message[: HEAD.size])
    text = message[HEAD.size : HEAD.size + facts].decode()
    return text.split('"kind": "')[1].split('"')[0]
