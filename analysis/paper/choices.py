"""What clients chose in the course of a run, and what the safeguard did: read from the plays and
distillation losses per round that a compact result carries (`by_round`; results of earlier
campaigns have none)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from campaign import CHOICES, unpacked
from results import FIXED, Result

Array = np.ndarray[Any, Any]
FREE = tuple(CHOICES.index(name) for name in ("explore", "exploit"))
THRESHOLD = 2.0
"""Of the safeguard, in all runs of the campaign."""


@dataclass(frozen=True)
class Plays:
    """A run's plays by client and round, of those of one prototype."""

    arms: tuple[str, ...]
    arm: Array
    """(clients, rounds): index in `arms`."""
    choice: Array
    """(clients, rounds): index in `CHOICES`."""


def plays_of(run: Result, prototype: str) -> Plays | None:
    """None where the result does not carry them."""
    by_round = run.facts.get("by_round")
    if by_round is None:
        return None
    of_client = by_round["clients"]
    code = unpacked(by_round["plays"], "uint8", len(of_client), run.facts["setting"]["rounds"])
    rows = [
        row
        for row, client in enumerate(sorted(of_client, key=int))
        if of_client[client] == prototype
    ]
    return Plays(tuple(by_round["arms"]), code[rows] % 16, code[rows] // 16)


def shares_over_time(run: Result, prototype: str, stretches: int) -> dict[str, list[float]] | None:
    """Strategy → its share of free choices in each of so many equal stretches of the run; NaN where
    nobody was free. None where the result does not say."""
    plays = plays_of(run, prototype)
    if plays is None:
        return None
    free = np.isin(plays.choice, FREE)
    shares: dict[str, list[float]] = {}
    for name in FIXED:
        played = plays.arm == (plays.arms.index(name) if name in plays.arms else 255)
        parts = zip(
            np.array_split(played & free, stretches, axis=1),
            np.array_split(free, stretches, axis=1),
            strict=True,
        )
        shares[name] = [float(a.sum() / b.sum()) if b.any() else np.nan for a, b in parts]
    return shares


@dataclass(frozen=True)
class Attempt:
    """A round that the safeguard undid and those around it, of the prototype that exceeded most."""

    round: int
    losses: Array
    """Distillation losses of the rounds before, this one (`at`), and those after, as multiples of
    their median; NaN where there was no such round."""
    at: int
    bound: float
    """Above which a second attempt exceeds the threshold again, in the same unit."""

    @property
    def undone(self) -> float:
        return float(self.losses[self.at])

    @property
    def second(self) -> float:
        """The round after: everybody once more, from the same weights."""
        return float(self.losses[self.at + 1])

    @property
    def exceeds_again(self) -> bool:
        return bool(self.second > self.bound)


def losses_around(run: Result, before: int = 10, after: int = 10) -> list[Attempt]:
    """Every undone round of a run whose own predecessor was accepted and which another follows;
    none where the result does not carry losses."""
    by_round = run.facts.get("by_round")
    if by_round is None:
        return []
    rounds = run.facts["setting"]["rounds"]
    losses = np.array([unpacked(text, "float32", rounds) for text in by_round["kd_loss"].values()])
    undone = set(by_round["undone"])
    attempts = []
    for number in by_round["undone"]:
        at = number - 1
        if at < 1 or number == rounds or number - 1 in undone:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):  # a loss may be 0, and stay 0
            rise = losses[:, at] / losses[:, at - 1]
        worst = losses[int(np.argmax(np.nan_to_num(rise, posinf=np.inf)))].astype(float)
        padded = np.pad(worst, (before, after), constant_values=np.nan)
        around = padded[at : at + before + after + 1]
        usual = float(np.nanmedian(around)) or 1.0
        attempts.append(Attempt(number, around / usual, before, THRESHOLD * worst[at - 1] / usual))
    return attempts
