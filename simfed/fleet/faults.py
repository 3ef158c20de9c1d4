"""Faults of the simulated world: strikes, and messages that are lost.

A *strike* is an interval in which something does not work: a link carries nothing
(stall), a device does not compute (freeze), the server is down (restart); see
`simfed.ground.strikes`.

A *message* is a transfer of a payload; what becomes of its n-th transmission hangs on
the client, its participation, the direction and n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from simfed.ground.distributions import Discrete, Law
from simfed.ground.errors import InputError
from simfed.ground.seeding import Streams
from simfed.ground.strikes import Exponential, Rhythm, Strikes
from simfed.schema.distribution import STAY, Distribution, DrawnStay
from simfed.schema.fields import Fraction, PositiveDuration, PositiveInt
from simfed.schema.section import Section


class Fate(NamedTuple):
    """The fate of one transmission of a message."""

    copies: int
    """2: it leaves twice at once."""
    lost: bool
    """None of its copies is of use where it arrives."""


@dataclass(frozen=True)
class Messages:
    """The fates of messages.

    Where one is lost, its sender waits `timeout_s` after its last byte and sends it
    again, `tries` times in all, and a last time waits in vain.
    """

    lost: float
    """Probability, of each copy."""
    doubled: float
    """Probability, of each transmission."""
    timeout_s: float
    tries: int

    def fate(
        self, streams: Streams, client: int, key: int | str, phase: str, nth: int
    ) -> Fate:
        """Return the fate of a transmission of a message.

        Args:
            streams: keyed generators.
            client: its id.
            key: of the participation.
            phase: the message's name, such as `download`.
            nth: transmissions of it before.
        """
        doubled, *lost = streams("message", client, key, phase, nth).random(3).tolist()
        copies = 2 if doubled < self.doubled else 1
        return Fate(copies, max(lost[:copies]) < self.lost)


class Faults:
    """The faults of a run; what is None never happens."""

    def __init__(
        self,
        streams: Streams,
        *,
        stalls: Rhythm | None = None,
        freezes: Rhythm | None = None,
        messages: Messages | None = None,
        restarts: Rhythm | None = None,
    ) -> None:
        self.streams = streams
        self.stalls = stalls
        self.freezes = freezes
        self.messages = messages
        self.restarts = (
            None if restarts is None else Strikes(restarts, streams, "restart")
        )
        self._frozen: dict[int, Strikes] = {}

    def find_freezes(self, client: int) -> Strikes | None:
        """Return the intervals in which a client's device is frozen.

        None: it never is.
        """
        if self.freezes is None:
            return None
        freezes = self._frozen.get(client)
        if freezes is None:
            freezes = self._frozen[client] = Strikes(
                self.freezes, self.streams, "freeze", client
            )
        return freezes

    def stalls_of(self, link: str) -> Strikes:
        """Return intervals in which a link, named as in records, carries nothing."""
        assert self.stalls is not None
        return Strikes(self.stalls, self.streams, "stall", name_cable(link))

    def fate(self, client: int, key: int | str, phase: str, nth: int) -> Fate:
        """Return the fate of a transmission; see `Messages.fate`."""
        assert self.messages is not None
        return self.messages.fate(self.streams, client, key, phase, nth)


def name_cable(link: str) -> str:
    """Return the name that both directions of a link share, as they stall together.

    >>> name_cable("client-3/up"), name_cable("server/receive"), name_cable("b>a")
    ('client-3', 'server', 'a>b')
    """
    tail, arrow, head = link.partition(">")
    if arrow:
        return ">".join(sorted((tail, head)))
    name, _, way = link.rpartition("/")
    return name if way in ("up", "down", "receive", "send") else link


# ---- the section ---------------------------------------------------------------------


class StrikeSpec(Section):
    """The frequency and length of strikes on each of those that may be struck."""

    between: DrawnStay = Field(
        description="from the end of one to the beginning of the next: the mean of "
        "exponentially distributed times, or their distribution"
    )
    lasts: DrawnStay = Field(description="always so long, or a distribution of lengths")

    @model_validator(mode="after")
    def _refuse_columns(self) -> StrikeSpec:
        for key in ("between", "lasts"):
            value = getattr(self, key)
            if isinstance(value, Distribution) and value.column is not None:
                allowed = "a law, as every time is drawn anew"
                raise InputError(allowed, where=f"{key}.column", got=value.column)
        return self

    def build(self) -> Rhythm:
        """Return the laws of times between strikes and of their lengths."""
        return Rhythm(
            _make_law(self.between, Exponential),
            _make_law(self.lasts, lambda length_s: Discrete((length_s,))),
        )


def _make_law(amount: float | Distribution, of_number: Callable[[float], Law]) -> Law:
    law = (
        amount.law(STAY)
        if isinstance(amount, Distribution)
        else of_number(float(amount))
    )
    assert law is not None  # a column is refused where it is written
    return law


class StallsSpec(StrikeSpec):
    """Links that carry nothing for a while, both directions of one together."""

    links: Literal["clients", "network", "all"] = Field(
        default="clients",
        description="clients: their own links; network: the server's and those between "
        "nodes",
    )


class MessagesSpec(Section):
    """Transfers whose payload is lost, or leaves twice at once.

    The sender of a lost one waits `timeout` after its last byte and sends it again,
    `tries` times in all; then the participation has failed.
    """

    lost: Fraction = Field(default=0.0, description="probability, of each copy")
    doubled: Fraction = Field(
        default=0.0, description="probability, of each transmission"
    )
    timeout: PositiveDuration | None = Field(
        default=None, description="beside lost; 1 s if omitted"
    )
    tries: PositiveInt | None = Field(
        default=None, description="beside lost; 5 if omitted"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("lost"):
            written = {
                key: option for key, option in value.items() if option is not None
            }
            return {"timeout": "1 s", "tries": 5, **written}
        return value

    @model_validator(mode="after")
    def _check_some(self) -> MessagesSpec:
        if not self.lost and not self.doubled:
            raise InputError(problem="lost or doubled must be above 0")
        for key in ("timeout", "tries"):
            if not self.lost and getattr(self, key) is not None:
                raise InputError(problem=f"without lost, {key} says nothing")
        return self

    def build(self) -> Messages:
        """Return how messages fare."""
        return Messages(self.lost, self.doubled, self.timeout or 0.0, self.tries or 1)


class FaultsSpec(Section):
    """The faults of the simulated world, see faults."""

    stalls: StallsSpec | None = Field(
        default=None, description="links that carry nothing for a while"
    )
    freezes: StrikeSpec | None = Field(
        default=None, description="devices that stand still meanwhile"
    )
    messages: MessagesSpec | None = Field(
        default=None, description="lost, or sent twice"
    )
    restarts: StrikeSpec | None = Field(
        default=None, description="the server loses what it got since its last merge"
    )

    @model_validator(mode="after")
    def _check_some(self) -> FaultsSpec:
        if not self.model_fields_set or all(
            getattr(self, name) is None for name in type(self).model_fields
        ):
            allowed = "one of stalls, freezes, messages or restarts; null for none"
            raise InputError(allowed, got={})
        return self

    def build(self, streams: Streams) -> Faults:
        """Return the faults of a run."""
        return Faults(streams, **{name: part and part.build() for name, part in self})
