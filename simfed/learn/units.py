"""Units of learning work: small records that say what to do with rows of shared arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Distil", "Evaluate", "Knowledge", "OwnLoss", "Result", "Send", "Sent", "Unit"]


@dataclass(frozen=True, slots=True)
class Send:
    """One client's round up to its payload. Number: the training loss; then f_n, if asked for."""

    client: int
    round: int
    arm: str
    k: int
    memory: Any
    """What the compressor remembers of this client."""
    rate: float
    """The learning rate of this round."""
    scale: float
    """As in `Knowledge`."""
    with_loss: bool
    """Also f_n at the weights the client starts from."""
    with_knowledge: bool
    """Also its model's public logits, when they are known to be needed."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The public logits of the model that `client`'s payload makes of the server's. No number."""

    client: int
    round: int
    entries: int
    scale: float
    """The payload is added to the server's weights times this: −η, or −1 for weight differences."""


@dataclass(frozen=True, slots=True)
class Distil:
    """Part of the public set as a student sees it; the gradient goes to a row of its prototype's.

    Number: the sum of KL over the part.
    """

    prototype: str
    part: int
    round: int


@dataclass(frozen=True, slots=True)
class OwnLoss:
    """f_n of a client at the server's weights, on its samples of `round`. Number: f_n."""

    client: int
    round: int


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Part of the test set at a prototype's weights. Numbers: right answers, sum of losses."""

    prototype: str
    part: int


Unit = Send | Knowledge | Distil | OwnLoss | Evaluate


class Sent(NamedTuple):
    """What became of a `Send`; indices, values, statistics and logits lie in the client's row."""

    entries: int
    memory: Any
    """What the compressor remembers afterwards."""
    seed: int | None


class Result(NamedTuple):
    """What a unit answers."""

    numbers: list[float]
    sent: Sent | None = None
