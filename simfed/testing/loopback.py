"""Learning whose clients are behind a socket of the loopback, for checks of methods."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from multiprocessing.connection import Client, Listener
from typing import Any

from simfed.compress.choice import Choice
from simfed.fleet.contract import Task
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.learn.apart import RealClient, make_server_workload
from simfed.learn.orders import Order
from simfed.learn.parcel import Parcel, pack, unpack
from simfed.scenario import Scenario


class LoopbackWorkload:
    """A `Learning` whose orders and results travel as bytes, as in a deployment.

    Its state has what clients keep at their ends in the place where a simulation has
    it. So it must come to the same bits as learning in one process, or a method keeps
    something that does not travel. What it leaves out: links take no time, and nobody
    hangs up.
    """

    def __init__(self, scenario: Scenario, streams: Streams, workers: int = 1) -> None:
        """Make a real client for each of the scenario, behind one socket.

        Args:
            scenario: of the run.
            streams: of the server's side; clients make their own of the seed.
            workers: taken and not used, as there is one process.
        """
        self._clients = [
            RealClient(scenario, Streams(scenario.seed), client)
            for client in range(scenario.client_count)
        ]
        listener = Listener(("127.0.0.1", 0))
        threading.Thread(target=self._answer, args=(listener,), daemon=True).start()
        self._line = Client(listener.address)
        self._real = make_server_workload(scenario, streams, self._ask, self._tell)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def execute(self, task: Task, choice: Choice) -> Order:
        """Have the client do its work, and deliver what it sends.

        Raises:
            AssertionError: it sends what no real client may.
        """
        order = self._real.execute(task, choice)
        ends: Any = self._real.clients
        parcel = self._send(task.client, "work", ends.outgoing(order))
        try:
            ends.deliver(order, parcel)
        except InputError as error:
            raise AssertionError(
                f"expected what a real client may send; {error}"
            ) from None
        return order

    def state(self) -> tuple[dict[str, Plain], dict[str, Plain]]:
        """Return what server and clients keep, as one simulation's state has it."""
        facts, arrays = self._real.state()
        for name in ("mirrors", "known"):
            del facts[name]
        own: dict[str, Plain] = {
            n: one for n, one in arrays.items() if not n.startswith("mirrors/")
        }
        facts["clients"] = {}
        for client in range(len(self._clients)):
            kept, parts = unpack(self._send(client, "keep", pack({}, {})))
            facts["clients"] |= kept["kept"]["clients"]
            own |= parts
        return facts, own

    def close(self) -> None:
        """Hang up, and end the learning."""
        self._line.close()
        for client in self._clients:
            client.close()
        self._real.close()

    def _ask(self, what: str, asked: Sequence[tuple[int, Parcel]]) -> list[Parcel]:
        """Return the answers of clients to questions of one kind."""
        return [self._send(client, what, parcel) for client, parcel in asked]

    def _tell(self, client: int, label: str, fate: str) -> None:
        """Tell a client what became of its upload."""
        self._send(client, "settle", pack({"label": label, "fate": fate}, {}))

    def _send(self, client: int, what: str, parcel: Parcel) -> Parcel:
        """Return a client's answer to a message.

        Raises:
            AssertionError: its end raised something.
        """
        self._line.send_bytes(_encode(parcel, client=client, what=what))
        answer = _decode(self._line.recv_bytes())
        if "error" in answer.facts:
            raise AssertionError(f"client {client}, {what}: {answer.facts['error']}")
        return answer

    def _answer(self, listener: Listener) -> None:
        """Answer messages until the other side hangs up; errors in words."""
        with listener, listener.accept() as line:
            while True:
                try:
                    asked = _decode(line.recv_bytes())
                except (EOFError, OSError):
                    return
                try:
                    answer = self._carry_out(asked)
                except Exception as error:
                    answer = Parcel({"error": f"{type(error).__name__}: {error}"})
                line.send_bytes(_encode(answer))

    def _carry_out(self, asked: Parcel) -> Parcel:
        """Return the answer of the client that a message names."""
        facts = dict(asked.facts)
        client: RealClient = self._clients[facts.pop("client")]
        what = facts.pop("what")
        if what == "work":
            return client.work(Parcel(facts, asked.body)).parcel
        if what == "keep":
            return client.keep()
        if what == "settle":
            client.settle(facts["label"], facts["fate"])
            return pack({}, {})
        return client.answer(what, Parcel(facts, asked.body))


def _encode(parcel: Parcel, **more: object) -> bytes:
    """Return a parcel as bytes: a line of JSON, then its body."""
    return json.dumps({**parcel.facts, **more}).encode() + b"\n" + parcel.body


def _decode(data: bytes) -> Parcel:
    """Return the parcel of bytes that `_encode` wrote."""
    facts, _, body = data.partition(b"\n")
    return Parcel(json.loads(facts), body)
