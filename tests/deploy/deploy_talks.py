"""A server's end of a deployment without a run, and somebody who talks to it."""

import asyncio
import logging

from websockets.asyncio.client import connect

from simfed.deploy import Gone, Message, Patience, Peers, Seat, Wire
from simfed.deploy.wire import ClientEnd
from simfed.learn import pack

TOKEN = "a-secret-of-many-bytes"
LIFE = "0123456789abcdef"
CALM = Patience(handshake_s=20.0, silence_s=20.0, beat_s=5.0, answer_s=20.0)
HASTE = Patience(handshake_s=0.4, silence_s=0.8, beat_s=0.1, answer_s=1.0)
MOST = 2**16


def soon(work, within_s=20):
    """What a coroutine comes to, within so many seconds."""
    return asyncio.run(asyncio.wait_for(work, within_s))


async def until(condition):
    """Come back once a condition holds."""
    while not condition():
        await asyncio.sleep(0.01)


class Server:
    """A server's end without a run.

    `joined`, `left` and `refused` say what it was told.
    """

    def __init__(self, token=TOKEN, clients=3, patience=CALM, tls=None):
        self.joined, self.left, self.refused = [], [], []
        self.peers = Peers(
            clients,
            token,
            lambda at_s, happen: happen(),
            welcome=pack({"scenario": "none"}, {}),
            check=lambda client, facts: None,
            tell_newcomer=lambda client: [],
            joined=self.joined.append,
            left=lambda client, why: self.left.append(why),
            most=MOST,
            patience=patience,
        )
        self.peers.refused = self.refused
        self.address = self.peers.listen("127.0.0.1", 0, tls)

    @property
    def strangers(self):
        return sum(door.strangers for door in self.peers.doors)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.peers.close()


async def connected(address, client=0, *, token=TOKEN, life=LIFE, path=None, **options):
    """A connection to a server that has taken what this end says it is."""
    host, port = address
    scheme = "wss" if options.get("ssl") else "ws"
    connection = await connect(
        f"{scheme}://{host}:{port}{path or Seat(client, life).path()}",
        additional_headers={"Authorization": f"Bearer {token}"} if token else {},
        create_connection=ClientEnd,
        proxy=None,
        compression=None,
        close_timeout=0.5,
        logger=logging.Logger("silent", logging.CRITICAL + 1),
        **options,
    )
    return Wire(connection)


async def welcomed(address, client=0, **options):
    """A connection whose server has welcomed this end.

    Raises: `Gone` if it is refused.
    """
    wire = await connected(address, client, **options)
    assert (await wire.receive()).kind == "welcome"
    return wire


async def take_part(wire, answer=lambda task: ()):
    """Be a client, until the connection ends; what came, in order.

    `answer`: to a task.
    """
    came = []
    try:
        await wire.send(Message("built"))
        while True:
            message = await wire.receive()
            if message.kind == "clock":
                facts = {"heard_s": message.at_s, "answered_s": message.at_s}
                await wire.send(Message("clock", {**message.facts, **facts}))
                continue
            came.append(message)
            if message.kind == "go":
                await wire.send(Message("ready"))
            elif message.kind == "task":
                for sent in answer(message):
                    await wire.send(sent)
    except Gone as error:
        return [*came, error]
    finally:
        await wire.close()
