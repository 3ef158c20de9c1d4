"""One message in a client app: what goes in is packed, and so is what comes out.

A call depends on nothing but its arguments (and on what the app keeps outside of its
context), so it can be made in any process.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NoReturn

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.common.constant import NUM_PARTITIONS_KEY, PARTITION_ID_KEY, ErrorCode

from simfed.flower.clocks import ForeignClock, foreign_randomness, replaced
from simfed.flower.computing import HostSpent, WorkWatch
from simfed.flower.messages import (
    PackedMessage,
    count_message_bytes,
    pack,
    read_message_config,
    read_metrics,
)
from simfed.flower.metering import WorkCount
from simfed.flower.turns import describe_error
from simfed.flower.workfile import Visible
from simfed.ground.errors import SimfedError
from simfed.ground.plain import Plain
from simfed.scenario.fleet_file import Computing


@dataclass(frozen=True, slots=True)
class Call:
    """A message, and the node that is to work on it."""

    message: PackedMessage
    size_bytes: int
    """The message's bytes on the wire."""
    client: int
    nodes: int
    """The number of nodes."""
    state: bytes | None
    """The packed state that earlier messages left on the node; None: nothing."""
    run_config: Mapping[str, Plain]
    seed: int
    """The seed of the global generators during the call."""
    reply_id: str
    node_config: Mapping[str, Plain]
    """The fleet's configuration of the node, beside its partition and their number."""
    start_s: float
    """The instant at which the node begins with the message, as its clock shows it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a call."""

    reply: PackedMessage
    visible: Visible
    """All that laws and declared seconds may go by."""
    state: bytes | None
    spent: HostSpent
    error: str | None = None
    """The exception of the app, in one line."""
    exited: bool = False
    """The app ended its process, and with it the node: nobody will see the reply."""
    readings: int = 0
    """The number of times that its own code read its clock."""


class NodeClock(ForeignClock):
    """A client app's clock: the node's start with the message, plus its sleep."""

    TICK_S = 1e-6
    """Between two readings, however soon the second comes: apps divide by what they see
    pass."""

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, start_s: float) -> None:
        """Set the clock to the beginning of a message."""
        self._start_s, self._last_s = start_s, -math.inf
        self.slept_s, self.readings = 0.0, 0

    def now_s(self) -> float:
        """Return simulated seconds since the run's start."""
        return self._start_s + self.slept_s

    def read_s(self) -> float:
        """Return `now_s`, as the code reads it."""
        self._last_s = max(self.now_s(), self._last_s + self.TICK_S)
        return self._last_s

    def sleep(self, seconds: float) -> None:
        """Charge these seconds to the call: the app goes on at once, its node later."""
        self.slept_s += seconds


def work_on(
    app: ClientApp, call: Call, computing: Computing, clock: NodeClock
) -> Answer:
    """Let the app work on a message, in this thread, whose time is `clock`.

    Args:
        app: the client app.
        call: the message and the node.
        computing: how the work is charged.
        clock: of the node; set to its start with the message.

    Returns:
        The reply, or an error in its place where the app raises or ends its process.

    Raises:
        SimfedError: an error of simfed's own, which is no answer.
    """
    message = call.message.message()
    state = RecordDict() if call.state is None else pickle.loads(call.state)
    metadata = message.metadata
    partition = {PARTITION_ID_KEY: call.client, NUM_PARTITIONS_KEY: call.nodes}
    node_config = {**partition, **call.node_config}
    run_config = dict(call.run_config)
    context = Context(
        metadata.run_id, metadata.dst_node_id, node_config, state, run_config
    )
    config = read_message_config(message)
    charge, error, exited = WorkWatch(computing), None, False
    clock.begin(call.start_s)
    with foreign_randomness(call.seed):
        try:
            with charge.watched(), _leaving_as_exit():
                reply = app(message, context)
            if not isinstance(reply, Message):
                raise TypeError(
                    f"a client app answers with a Message, got {type(reply).__name__}"
                )
        except SimfedError:
            raise
        except (
            Exception,
            SystemExit,
        ) as raised:  # Flower as well reports them as messages
            error, exited = describe_error(raised), isinstance(raised, SystemExit)
            reply = _make_raised_reply(message, error)
    spent = replace(charge.collect(), slept_s=clock.slept_s)
    reply.metadata.__dict__["_message_id"] = call.reply_id
    after = call.state
    if error is None:
        after = pack(context.state) if context.state else None
    visible = Visible(
        message_type=call.message.metadata.message_type,
        config=config,
        reply=read_metrics(reply),
        downlink_bytes=call.size_bytes,
        uplink_bytes=count_message_bytes(reply),
        node_config=call.node_config,
    )
    return Answer(
        reply=PackedMessage.of(reply),
        visible=visible,
        state=after,
        spent=spent,
        error=error,
        exited=exited,
        readings=clock.readings,
    )


def make_killed_answer(call: Call) -> Answer:
    """Return what becomes of a call whose process has died at it."""
    error = "its process was killed"
    reply = _make_raised_reply(call.message.message(), error)
    return Answer(
        reply=PackedMessage.of(reply),
        visible=Visible(call.message.metadata.message_type),
        state=call.state,
        spent=HostSpent(WorkCount(), 0.0),
        error=error,
        exited=True,
    )


def _make_raised_reply(message: Message, error: str) -> Message:
    reason = f"<class 'flwr.clientapp.client_app.ClientAppException'>:<'{error}'>"
    raised = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason)
    return Message(raised, reply_to=message)


@contextmanager
def _leaving_as_exit() -> Iterator[None]:
    """Make `os._exit` of an app its `sys.exit` in the block.

    The process is not the app's alone. What the app forked leaves as ever.
    """
    leave, process = os._exit, os.getpid()

    def end_node(status: int) -> NoReturn:
        if os.getpid() != process:
            leave(status)
        raise SystemExit(status)

    with replaced(os, "_exit", end_node):
        yield
