"""Messages between a server and its clients: a kind, facts as JSON, and a body.

A message travels as one binary message of a WebSocket: its facts on one line, then what
`simfed.learn.parcel` writes. Nothing of it is code, or could become code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from simfed.ground.errors import SimfedError
from simfed.ground.plain import Plain

MOST_FACTS = 2**20
"""Bytes of a message's facts: a scenario, a codec's memory; arrays travel in the
body."""


class Gone(SimfedError):
    """The other end is not there any longer, or says nothing.

    Inside `simfed.deploy` alone: a client then looks for its server again, a server
    gives the client's work up.
    """

    code = 0
    """The code with which it has closed the connection; 0 if it did not."""


class Refused(SimfedError):
    """The other end sends, or is, what this one does not take. Exit code 2.

    A server refuses a client for good by it (wrong token, version, scenario, nonsense),
    a client a server; an upload that is refused counts as a failure of its client.
    """

    exit_code = 2


class RefusedForNow(Refused):
    """A refusal for now: it may be taken later."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message between server and client: its kind, JSON-able facts and bytes.

    `encode` is what travels; nothing of it is code. Kinds of a server: welcome, task,
    settle, take up, anew, agree, ask, skip, clock, go; of a client: built, ready,
    upload, failed, answer, clock.
    """

    kind: str
    facts: Mapping[str, Plain] = field(default_factory=dict)
    body: bytes = b""
    at_s: float = 0.0
    """The instant at which all of it had come, by this end's monotonic clock."""
    size: int = 0
    """Bytes of the message; heads of the frames that carried it are not counted."""

    def encode(self) -> bytes:
        r"""Return the bytes that travel.

        >>> Message("skip", {"label": "0/1"}, b"body").encode()
        b'{"kind": "skip", "label": "0/1"}\nbody'
        """
        facts = json.dumps({"kind": self.kind, **self.facts})
        return facts.encode() + b"\n" + self.body

    @classmethod
    def decode(cls, data: bytes, at_s: float) -> Message:
        """Return the message that has come.

        Args:
            data: as `encode` writes it.
            at_s: when all of it had come.

        Raises:
            Refused: it has no facts in its first `MOST_FACTS` bytes, or none with a
            kind.
        """
        end = data.find(b"\n", 0, MOST_FACTS)
        if end < 0:
            raise Refused(f"a message without facts in its first {MOST_FACTS:,} bytes")
        try:
            facts = json.loads(data[:end].decode())
            kind = facts.pop("kind")
            if not isinstance(kind, str):
                raise TypeError(kind)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise Refused("a message whose facts cannot be read") from None
        return cls(kind, facts, data[end + 1 :], at_s, len(data))


def read_number(facts: object, name: str) -> float:
    """Return a number of the other end's facts.

    Args:
        facts: as they came.
        name: the number's.

    Raises:
        Refused: there is none, or none below 1e12.
    """
    number = facts.get(name) if isinstance(facts, Mapping) else None
    if not isinstance(number, (int, float)) or not abs(number) < 1e12:
        raise Refused(f"a message whose {name} is no instant")
    return float(number)


def quote(value: object) -> str:
    """Return a value of the other end's, short and printable, for a sentence.

    >>> quote("hello"), quote(50 * "a")[-6:], quote(7), quote(10**50), quote({"a": 1})
    ("'hello'", "aa...'", '7', 'a value of type int',
    'a value of type dict')
    """
    if isinstance(value, str):
        return ascii(value) if len(value) <= 40 else ascii(value[:37])[:-1] + "...'"
    if value is None or (isinstance(value, (int, float)) and abs(value) < 1e15):
        return str(value)
    return f"a value of type {type(value).__name__}"


def format_reason(reason: object) -> str:
    """Return the other end's reason as one line that a terminal can show.

    Empty if it is none.
    """
    return (
        "".join(c for c in reason[:500] if c.isprintable())
        if isinstance(reason, str)
        else ""
    )
