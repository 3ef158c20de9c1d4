"""One message in a client app: what goes in is packed, and so is what comes out.

A call depends on nothing but its arguments (and on what the app keeps outside of its context), so
it can be made in any process.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NoReturn

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import NUM_PARTITIONS_KEY, PARTITION_ID_KEY, ErrorCode

from simfed.flower.asides import describe_error, foreign_randomness
from simfed.flower.clocks import Foreign, Spin, read_processor_s, replaced
from simfed.flower.computing import Charge, HostSpent
from simfed.flower.messages import (
    Packed,
    count_message_bytes,
    make_error_reply,
    pack,
    read_message_config,
    read_metrics,
)
from simfed.ground.errors import RunFailed, SimfedError
from simfed.ground.plain import Plain
from simfed.scenario.fleet_file import Computing

__all__ = ["PACED", "Answer", "Call", "NodeClock", "Tell", "work_on"]


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
    node_config: Mapping[str, Plain] = field(default_factory=dict)
    """What the fleet says of the node, beside its partition and their number."""
    paced: bool = False
    """Only the reply tells what the work takes, and so what its clock should have shown."""
    pace_s: float | None = None
    """Seconds of work between two readings of the clock, where only the reply tells what the work
    takes; None: not known yet."""


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
    node_config: Mapping[str, Plain] = field(default_factory=dict)
    """What the fleet says of the node."""
    error: str | None = None
    """What the app raised, in one line."""
    readings: int = 0
    """How often it read its clock."""
    paced_s: float = 0.0
    """Seconds of work that its clock showed from the first of them to the last."""
    exited: bool = False
    """The app ended its process, and with it the node: nobody will see the reply."""


Tell = Callable[[HostSpent], float]
"""What an app on a node has spent so far → the instant at which its device has got there."""


class NodeClock(Foreign):
    """A client app's time: when its computing began, what its device has worked since, as far as it
    is charged already, and what it slept."""

    COMPUTES_S = 20.0
    """Seconds of the host's processor between readings that are all equal: so long no loop takes
    that only looks."""

    def __init__(self, tell: Tell) -> None:
        """`tell` is asked only when the app asks for the time."""
        self._tell = tell
        self._spin = Spin(self.READS)
        self.begin(Charge(None), paced=False)

    def begin(self, charge: Charge, *, paced: bool, pace_s: float | None = None) -> None:
        """A call begins, which is watched by `charge`; `paced`: work is not charged before it is
        over, and every reading is `pace_s` after the one before (None: some time after it)."""
        self._charge, self._paced, self._pace_s = charge, paced, pace_s
        self.readings, self.paced_s = 0, 0.0
        self._last_s = -math.inf
        self._spin.stop()
        self.slept_s = 0.0
        self.stood_still = False
        """Two readings in a row were equal."""
        self._stood_at_s = 0.0
        self.refused: SimfedError | None = None
        """Why the app cannot go on, which it may have swallowed."""

    def busy_s(self) -> float:
        """Simulated seconds of its work, from the run's start. Raises: `RunFailed`."""
        self._step()
        return self._worked_s()

    def _step(self) -> None:
        """The clock is read, which may go at a pace."""
        self.readings += 1
        if not self._paced:
            return
        if self.readings > 1:
            guess_s = max(1e-3, 0.01 * self.paced_s)
            self.paced_s += guess_s if self._pace_s is None else self._pace_s
        if self.readings > self.READS:
            self.refused = RunFailed(
                f"the client app has read its clock more than {self.READS:,} times on one message; "
                f"{PACED}"
            )
            raise self.refused

    def _worked_s(self) -> float:
        self._charge.pause()
        try:
            return self._tell(self._charge.peek()) + self.paced_s
        except SimfedError as error:
            self.refused = error
            raise
        finally:
            self._charge.resume()

    def now_s(self) -> float:
        """Simulated seconds since the run's start."""
        return self._worked_s() + self.slept_s

    def read_s(self) -> float:
        """`now_s`; an app that only reads the time, in a loop, sleeps until it comes. Raises:
        `RunFailed`."""
        self._step()
        now_s = self.now_s()
        if now_s != self._last_s:
            self._spin.stop()
            self._stood_at_s = read_processor_s()
        else:
            if read_processor_s() - self._stood_at_s > self.COMPUTES_S:
                self.refused = RunFailed(
                    "the client app goes by its clock, which stood still while the app computed "
                    f"for {self.COMPUTES_S:g} s of this machine; {STANDS_STILL}"
                )
                raise self.refused
            self.stood_still = True
            step_s = self._spin.step_s()
            self.slept_s += step_s
            now_s += step_s
        self._last_s = now_s
        return now_s

    def sleep(self, seconds: float) -> None:
        """Charge these simulated seconds to the call: the app goes on at once, its node later."""
        self.slept_s += seconds


STANDS_STILL = (
    "work moves it as it is charged, and nothing was charged in between (metered computing sees "
    "PyTorch's operators only); `computing: measured` moves it all the time"
)

PACED = (
    "declared seconds and those of a work file are known when the reply is there, and what an app "
    "does by its clock they cannot always tell; `computing: measured` can, `metered` for PyTorch"
)


def work_on(app: ClientApp, call: Call, computing: Computing, clock: NodeClock) -> Answer:
    """Let the app work on a message, in this thread, whose time is `clock`."""
    message = call.message.message()
    state = RecordDict() if call.state is None else pickle.loads(call.state)
    metadata = message.metadata
    partition = {PARTITION_ID_KEY: call.client, NUM_PARTITIONS_KEY: call.nodes}
    node_config = {**partition, **call.node_config}
    run_config = dict(call.run_config)
    context = Context(metadata.run_id, metadata.dst_node_id, node_config, state, run_config)
    config = read_message_config(message)
    charge, error, exited = Charge(computing), None, False
    clock.begin(charge, paced=call.paced, pace_s=call.pace_s)
    with foreign_randomness(call.seed):
        try:
            with charge.watched(), _leaving_as_exit():
                reply = app(message, context)
            if not isinstance(reply, Message):
                raise TypeError(f"a client app answers with a Message, got {type(reply).__name__}")
        except SimfedError:
            raise
        except (Exception, SystemExit) as raised:  # Flower as well reports them as messages
            if isinstance(raised, ZeroDivisionError) and clock.stood_still:
                raise RunFailed(
                    f"the client app of node {call.client} divides by zero, and its clock stood "
                    f"still between two readings; {STANDS_STILL}"
                ) from raised
            error, exited = describe_error(raised), isinstance(raised, SystemExit)
            reason = f"<class 'flwr.clientapp.client_app.ClientAppException'>:<'{error}'>"
            reply = make_error_reply(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
    if clock.refused is not None:
        raise clock.refused
    spent = replace(charge.collect(), slept_s=clock.slept_s)
    reply.metadata.__dict__["_message_id"] = call.reply_id
    after = call.state
    if error is None:
        after = pack(context.state) if context.state else None
    return Answer(
        Packed.of(reply),
        count_message_bytes(reply),
        after,
        spent,
        read_metrics(reply),
        config,
        call.node_config,
        error,
        readings=clock.readings,
        paced_s=clock.paced_s,
        exited=exited,
    )


@contextmanager
def _leaving_as_exit() -> Iterator[None]:
    """`os._exit` of an app is its `sys.exit`: the process is not the app's alone. What the app
    forked leaves as ever."""
    leave, process = os._exit, os.getpid()

    def end_node(status: int) -> NoReturn:
        if os.getpid() != process:
            leave(status)
        raise SystemExit(status)

    with replaced(os, "_exit", end_node):
        yield
