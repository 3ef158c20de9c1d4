"""The grid that a server app talks to, played on the simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from simfed.flower.clocks import EPOCH_S, Foreign
from simfed.flower.messages import Packed, count_message_bytes

Ask = Callable[[Any], Any]
"""A question for the simulated clock (`Push`, `PullReplies`, `AvailableNodes`, …) → its
answer."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message on its way out of the server app."""

    message: Packed
    size_bytes: int
    expires_at_s: float


@dataclass(frozen=True, slots=True)
class Push:
    """Send these messages now; the answer is their ids."""

    messages: tuple[Outgoing, ...]


@dataclass(frozen=True, slots=True)
class PullReplies:
    """A question for the replies that are there.

    Errors stand in place of those that will never be. `wait`: until all of them are;
    `timeout_s`: but no longer than this.
    """

    ids: tuple[str, ...]
    wait: bool = False
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class AvailableNodes:
    """Ask which nodes are available; the answer is their ids."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """The server app sleeps: its clock goes on by these seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Begin:
    """A thread of a pool wants its turns."""

    turn: Any
    code: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Until:
    """Wait until a condition holds, which another thread of the app brings about.

    The answer is whether it holds.
    """

    condition: Callable[[], bool]
    timeout_s: float | None


class ServerClock(Foreign):
    """The simulated clock as the server app's `time` module shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.at_s = 0.0
        self.worked_s = 0.0
        """Seconds that the app's own work has taken."""
        self.turns: Any = None
        """The turns of the app's threads."""

    def ask(self, question: object) -> Any:
        """Ask the simulated clock, from whatever thread of the app."""
        self.spin.stop()
        return self.turns.ask(question)

    def now_s(self) -> float:
        """Return simulated seconds since the run's start."""
        return self.at_s

    def busy_s(self) -> float:
        """Return seconds that the app's own work has taken."""
        return self.worked_s

    def wait(self, seconds: float) -> None:
        """Let these simulated seconds pass for the app."""
        self.turns.ask(Sleep(seconds))


class SimGrid(Grid):
    """Flower's grid, played on the simulated clock."""

    def __init__(self, run: Run, ask: Ask) -> None:
        self._run = run
        self._ask = ask
        self._sent = 0

    def set_run(self, run: Run) -> None:
        """Flower's: say which run this is.

        Raises: `TypeError` for no `Run`.
        """
        if not isinstance(run, Run):
            raise TypeError(
                f"`run` must be an instance of Run, got {type(run).__name__}"
            )
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
        return list(self._ask(AvailableNodes()))

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes that are there, as Flower describes nodes."""
        return [NodeInfo(node_id=node) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Flower's: send them now, at the clock's time; returns their ids."""
        outgoing = []
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
            outgoing.append(
                Outgoing(
                    Packed.of(message, packed),
                    count_message_bytes(message, weighed),
                    metadata.created_at - EPOCH_S + metadata.ttl,
                )
            )
        return list(self._ask(Push(tuple(outgoing))))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there now."""
        return list(self._ask(PullReplies(tuple(message_ids))))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for all replies, or until `timeout` seconds are over.

        Replies are taken when they arrive: Flower's own grid looks for them every few
        seconds.
        """
        ids = tuple(self.push_messages(messages))
        return list(self._ask(PullReplies(ids, wait=True, timeout_s=timeout)))
