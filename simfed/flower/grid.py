"""The grid that a server app talks to, played on the simulated clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from typing import Any

import simpy
from flwr.app import Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from simfed.flower.clocks import EPOCH_S, ForeignClock
from simfed.flower.messages import Mail, PackedMessage, count_message_bytes

Question = Callable[[Any], Generator[simpy.Event, object, Any]]
"""What a thread of the server app asks of the play (`AppPlay`, which imports this): a
story of the simulated clock, whose result is the answer."""


class ServerClock(ForeignClock):
    """The simulated clock as the server app's `time` module shows it.

    `simfed.flower.play` sets it (`at_s`) whenever a thread of the app goes on.
    """

    def __init__(self, ask: Callable[[Question], Any]) -> None:
        """`ask`: asks the play, from whatever thread of the app."""
        self._ask = ask
        self.at_s = 0.0

    def now_s(self) -> float:
        """Return simulated seconds since the run's start."""
        return self.at_s

    def sleep(self, seconds: float) -> None:
        """Let these simulated seconds pass for the app."""
        self._ask(lambda play: play.sleep(seconds))


class SimGrid(Grid):
    """Flower's grid, played on the simulated clock.

    Ignored are Flower's own processes, heartbeats and polls: a reply is there with its
    last byte.
    """

    def __init__(self, run: Run, ask: Callable[[Question], Any]) -> None:
        """Begin with nothing sent.

        Args:
            run: Flower's description of the run.
            ask: asks the play, and returns its answer.
        """
        self._run = run
        self._ask = ask
        self._sent = 0

    def set_run(self, run: Run) -> None:
        """Flower's: say which run this is."""
        self._run = run

    @property
    def run(self) -> Run:
        """Flower's: a copy of what `set_run` was given."""
        return Run(**vars(self._run))

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message to a node; Flower itself prefers the constructor."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are there, in the order of the fleet's clients."""
        return list(self._ask(lambda play: play.list_nodes()))

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes that are there, as Flower describes nodes."""
        return [NodeInfo(node_id=node) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages now, at the clock's time, and return the ids they are given.

        What they carry is packed once for all that carry the same.

        Raises:
            ValueError: a message is a reply, or has no time to live.
        """
        mails = []
        packed: dict[int, bytes] = {}
        weighed: dict[int, int] = {}
        # so that no other content gets the identity of one of these
        messages = list(messages)
        for message in messages:
            metadata = message.metadata
            self._sent += 1
            metadata.__dict__["_run_id"] = self._run.run_id
            metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
            metadata.__dict__["_message_id"] = f"{self._sent:064x}"
            if metadata.reply_to_message_id != "" or not metadata.ttl > 0:
                raise ValueError(f"Invalid message: {message}")
            mails.append(
                Mail(
                    number=self._sent,
                    node=metadata.dst_node_id,
                    message=PackedMessage.of(message, packed),
                    size_bytes=count_message_bytes(message, weighed),
                    expires_at_s=metadata.created_at - EPOCH_S + metadata.ttl,
                )
            )
        return list(self._ask(lambda play: play.push(mails)))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there now."""
        ids = list(message_ids)
        return list(self._ask(lambda play: play.pull(ids)))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for all replies, or until `timeout` seconds are over.

        Replies are taken when they arrive: Flower's own grid looks for them every few
        seconds.
        """
        ids = list(self.push_messages(messages))
        until_s = math.inf if timeout is None else timeout
        return list(self._ask(lambda play: play.pull(ids, until_s)))
