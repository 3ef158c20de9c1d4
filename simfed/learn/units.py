"""Units of learning work: small records that say what to do with rows of shared arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from simfed.levels import Level

__all__ = [
    "Distil",
    "Evaluate",
    "Infer",
    "MeasureLoss",
    "Result",
    "Send",
    "Sent",
    "Train",
    "Unit",
]


@dataclass(frozen=True, slots=True)
class Train:
    """Local training of clients of one prototype, from the server's weights; each one's update is
    added to its residual. Numbers: the mean loss of each one's batches."""

    clients: tuple[int, ...]
    round: int
    keys: tuple[int | str, ...]
    """What keys each one's draws, see `Task.key`."""
    rate: float
    """The learning rate of this round."""
    shift: Any = None
    """What the codec of the only client of this unit wants added to the weights before it trains,
    float32 of length d; None: nothing."""


@dataclass(frozen=True, slots=True)
class Send:
    """What a client that has trained sends of its residual. No number."""

    client: int
    round: int
    """On whose public samples its logits are made, where it is asked for them."""
    key: int | str
    """What keys its draws, see `Task.key`."""
    arm: str
    k: Level
    """K, or a level of energy."""
    memory: Any
    """What the compressor remembers of this client."""
    scale: float
    """As in `Infer`."""
    with_logits: bool
    """Also its model's public logits, when they are known to be needed."""


@dataclass(frozen=True, slots=True)
class Infer:
    """The public logits of the model that `client`'s payload makes of the server's. No number."""

    client: int
    row: int
    """Where the payload is."""
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
class MeasureLoss:
    """f_n of a client at the server's weights, on its samples of a participation. Number: f_n."""

    client: int
    key: int | str
    """What keys the participation's draws."""


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Part of the test set at a prototype's weights. Numbers: right answers, sum of losses."""

    prototype: str
    part: int


Unit = Train | Send | Infer | Distil | MeasureLoss | Evaluate


class Sent(NamedTuple):
    """What became of a `Send`; indices, values, statistics and logits lie in the client's row."""

    entries: int
    memory: Any
    """What the compressor remembers afterwards."""
    seed: int | None
    if_lost: Any = None
    """What it is to remember instead if the upload is lost."""
    wire_bytes: float | None = None
    """Its size where that depends on the data."""


class Result(NamedTuple):
    """What a unit answers."""

    numbers: list[float]
    sent: Sent | None = None
