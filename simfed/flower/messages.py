"""Flower's messages: bytes on the wire, copies, and errors in their place.

A message travels as Flower's grid sends it: its own part (metadata, or an error) and,
apart from it, every record, array and piece of an array once. The bytes are those of
all these objects as Flower writes them. What is ignored: the names of objects that are
asked for, HTTP's headers and TLS; a network of kind `tcp` adds those of TCP.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Array, Message
from flwr.app.error import Error
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    no_object_id_recompute,
)

from simfed.flower.clocks import EPOCH_S
from simfed.ground.plain import Plain
from simfed.sim.flight import Flight


@dataclass(frozen=True, slots=True)
class PackedMessage:
    """A message as it was when it was sent: nobody who has it can change another's."""

    metadata: Metadata
    content: bytes | None
    error: Error | None = None

    @classmethod
    def of(
        cls, message: Message, contents: dict[int, bytes] | None = None
    ) -> PackedMessage:
        """Return a message packed.

        Args:
            message: with content or an error.
            contents: packed contents by identity, of which this one may be; gets it as
            well.
        """
        if message.has_error():
            return cls(message.metadata, None, message.error)
        contents = {} if contents is None else contents
        content = message.content
        if id(content) not in contents:
            contents[id(content)] = pack(content)
        return cls(message.metadata, contents[id(content)])

    def message(self) -> Message:
        """Return a new message with the packed content or error.

        Nothing is shared with others.
        """
        metadata = pickle.loads(pack(self.metadata))
        if self.content is None:
            return make_message(metadata=metadata, error=self.error)
        return make_message(metadata=metadata, content=pickle.loads(self.content))


@dataclass(slots=True, eq=False)
class Mail:
    """One message from the server and what becomes of it."""

    number: int
    """The place among the messages of a run, from 1."""
    node: int
    """The id of the node that it is for."""
    message: PackedMessage
    size_bytes: int
    expires_at_s: float
    client: int = -1
    """The node's place in the fleet, once the message is sent."""
    reply: PackedMessage | None = None
    """The reply of its node, when it has arrived at the server."""
    replied_at_s: float = 0.0
    answered: bool = False
    """The server has its reply, or an error in its place."""
    polled: bool = False
    """The server has looked for its reply."""
    flight: Flight | None = None
    """The participation that it became, when it has begun."""

    @property
    def id(self) -> str:
        """The message id that Flower gave it."""
        return str(self.message.metadata.message_id)

    @property
    def type(self) -> str:
        """The message's type, with the action behind a dot if there is one."""
        return str(self.message.metadata.message_type)

    @property
    def kind(self) -> str:
        """`train`, `evaluate`, `query`, or a legacy type.

        Without the action behind a dot.
        """
        return self.type.partition(".")[0]


class _ArrayPickler(pickle.Pickler):
    """Leaves out what arrays keep of their last weighing, which cannot be packed."""

    dispatch_table = copyreg.dispatch_table.copy()
    dispatch_table[Array] = lambda a: (
        Array,
        (a.dtype, a.shape, a.stype, bytes(a.data)),
    )


def pack(value: object) -> bytes:
    """Return records, contexts or metadata as bytes; `pickle.loads` gives them anew."""
    buffer = io.BytesIO()
    _ArrayPickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def count_message_bytes(
    message: Message, contents: dict[int, int] | None = None
) -> int:
    """Return a message's bytes on the wire.

    Args:
        message: with content or an error.
        contents: bytes of contents by identity, of which this one may be; gets it as
        well.
    """
    with no_object_id_recompute():
        if message.has_error():
            return len(message.deflate())
        contents = {} if contents is None else contents
        content = message.content
        if id(content) not in contents:
            objects = get_all_nested_objects(content).values()
            contents[id(content)] = sum(len(part.deflate()) for part in objects)
        return len(message.deflate()) + contents[id(content)]


def make_unavailable(
    message_id: str, now_s: float, run_id: int, gone: Mail | None = None
) -> Message:
    """Return what the server is told in place of a reply.

    Args:
        message_id: of the message that it asked about.
        now_s: the clock.
        run_id: Flower's number of the run.
        gone: the message, not expired, whose node is away; None: it has expired, or was
        never known.
    """
    code, reason = (
        ErrorCode.MESSAGE_UNAVAILABLE,
        "the message has expired or does not exist",
    )
    group, ttl, kind = "", 0.0, SYSTEM_MESSAGE_TYPE
    if gone is not None:
        code, reason = (
            ErrorCode.NODE_UNAVAILABLE,
            "the node has not been heard of for too long",
        )
        asked = gone.message.metadata
        group, kind = asked.group_id, asked.message_type
        ttl = gone.expires_at_s - now_s
    metadata = Metadata(
        run_id=run_id,
        message_id=message_id[1:] + "e",
        src_node_id=SUPERLINK_NODE_ID,
        dst_node_id=SUPERLINK_NODE_ID,
        reply_to_message_id=message_id,
        group_id=group,
        created_at=EPOCH_S + now_s,
        ttl=ttl,
        message_type=kind,
    )
    return make_message(metadata=metadata, error=Error(code=code, reason=reason))


def read_message_config(message: Message) -> dict[str, Plain]:
    """Return texts, truth values and numbers of a message's configuration, by name.

    Of equal names in several records the first's.
    """
    return _read_values(message, "config_records")


def _read_values(message: Message, kind: str) -> dict[str, Plain]:
    """Return texts, truth values and numbers of a message's records of one kind."""
    values: dict[str, Plain] = {}
    if message.has_content():
        for record in getattr(message.content, kind).values():
            for name, value in record.items():
                if isinstance(value, (str, int, float)):
                    values.setdefault(name, value)
    return values


def read_metrics(message: Message) -> Mapping[str, float]:
    """Return the numbers in a message's metric records, by name.

    Legacy replies have them in records of configuration. Of equal names the first's.
    """
    metrics = _read_values(message, "metric_records")
    # legacy replies keep the number of examples and the metrics in records of plain
    # values
    for name, value in _read_values(message, "config_records").items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            metrics.setdefault(name, value)
    return metrics
