"""One message in a client app: what goes in is packed, and so is what comes out.

A call depends on nothing but its arguments (and on what the app keeps outside of its context), so
it can be made in any process.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import NUM_PARTITIONS_KEY, PARTITION_ID_KEY, ErrorCode

from simfed.flower.asides import Foreign, describe_error, foreign_randomness
from simfed.flower.computing import Charge, HostSpent
from simfed.flower.messages import (
    Packed,
    config_of,
    error_reply,
    message_bytes,
    metrics_of,
    pack,
)
from simfed.ground.errors import SimfedError
from simfed.ground.plain import Plain
from simfed.scenario.fleet_file import Computing

__all__ = ["Answer", "Call", "NodeClock", "work_on"]


@dataclass(frozen=True, slots=True)
class Call:
    """A message, and the node that is to work on it."""

    message: Packed
    client: int
    nodes: int
    """How many there are."""
    state: bytes | None
    """The packed state that earlier messages left on the node; None: nothing."""
    run_config: Mapping[str, Plain]
    seed: int
    """Of the global generators during the call."""
    reply_id: str
    counts: bool = False
    """PyTorch's operators are to be counted, whatever the computing."""
    node_config: Mapping[str, Plain] = field(default_factory=dict)
    """What the fleet says of the node, beside its partition and their number."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a call."""

    reply: Packed
    size_bytes: int
    state: bytes | None
    spent: HostSpent
    metrics: Mapping[str, float] = field(default_factory=dict)
    config: Mapping[str, Plain] = field(default_factory=dict)
    """Plain values of the configuration that the message came with."""
    error: str | None = None
    """What the app raised, in one line."""
    exited: bool = False
    """The app ended its process, and with it the node: nobody will see the reply."""


class NodeClock(Foreign):
    """A client app's time: that at which its computing began, and what it slept since."""

    def __init__(self, begins_at_s: Callable[[], float]) -> None:
        """`begins_at_s` is asked only when the app asks for the time."""
        self._begins_at_s = begins_at_s
        self.slept_s = 0.0

    def now_s(self) -> float:
        """Simulated seconds since the run's start."""
        return self._begins_at_s() + self.slept_s

    def sleep(self, seconds: float) -> None:
        """Charge these simulated seconds to the call: the app goes on at once, its node later."""
        self.slept_s += seconds


def work_on(app: ClientApp, call: Call, computing: Computing, clock: NodeClock) -> Answer:
    """Let the app work on a message, in this thread, whose time is `clock`."""
    message = call.message.message()
    state = RecordDict() if call.state is None else pickle.loads(call.state)
    metadata = message.metadata
    partition = {PARTITION_ID_KEY: call.client, NUM_PARTITIONS_KEY: call.nodes}
    node_config = {**partition, **call.node_config}
    run_config = dict(call.run_config)
    context = Context(metadata.run_id, metadata.dst_node_id, node_config, state, run_config)
    config = config_of(message)
    charge, error, exited = Charge(computing, counts=call.counts), None, False
    clock.slept_s = 0.0
    with foreign_randomness(call.seed):
        try:
            with charge.watched():
                reply = app(message, context)
            if not isinstance(reply, Message):
                raise TypeError(f"a client app answers with a Message, got {type(reply).__name__}")
        except SimfedError:
            raise
        except (Exception, SystemExit) as raised:  # Flower as well reports them as messages
            error, exited = describe_error(raised), isinstance(raised, SystemExit)
            reason = f"<class 'flwr.clientapp.client_app.ClientAppException'>:<'{error}'>"
            reply = error_reply(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
    spent = replace(charge.collect(), slept_s=clock.slept_s)
    reply.metadata.__dict__["_message_id"] = call.reply_id
    after = call.state
    if error is None:
        after = pack(context.state) if context.state else None
    size_bytes, metrics = message_bytes(reply), metrics_of(reply)
    return Answer(Packed.of(reply), size_bytes, after, spent, metrics, config, error, exited)
