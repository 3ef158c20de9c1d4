"""What a policy is: one client's way of choosing an arm (a compression strategy) per round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from simfed.errors import InputError, did_you_mean, listed
from simfed.vocabulary import CHOICES, Choice

__all__ = ["CHOICES", "Choice", "Policy", "Pull", "check_arms", "finite_reward"]


@dataclass(frozen=True, slots=True)
class Pull:
    """One choice of an arm: which, why, and how probable it was when it was drawn.

    `forced` pulls are made by the server after a rollback, never by a policy, and update nothing.
    """

    arm: str
    choice: Choice
    probability: float = 1.0


@runtime_checkable
class Policy(Protocol):
    """One client's policy. Made as `cls(arms, reward_range=(low, high), **options)`.

    A policy sees its own client's rewards and nothing else. It owns no random numbers: `pull` gets
    the generator keyed by client and round. At most one reward follows each pull, possibly after
    later pulls (a late contribution); a pull that gets none is given to `void`.
    """

    arms: tuple[str, ...]
    learns: bool
    """Whether rewards change its choices (if not, a time-only run needs no rewards)."""

    def pull(self, rng: np.random.Generator) -> Pull:
        """The arm to play now."""
        ...

    def update(self, pull: Pull, reward: float) -> None:
        """The clipped reward of an earlier pull. Forced pulls are ignored."""
        ...

    def void(self, pull: Pull) -> None:
        """This pull gets no reward: its upload was lost, dropped or failed."""
        ...

    def values(self) -> tuple[float, ...]:
        """What the next pull would be based on, per arm: utilities (NaN: none yet) or probabilities."""
        ...

    def state(self) -> dict[str, Any]:
        """All that changes, as strict JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`, on a policy made with the same arguments."""
        ...


def check_arms(arms: Sequence[str], *chosen: str) -> tuple[str, ...]:
    """`arms` as a tuple: at least one, each once, `chosen` among them; else `InputError`."""
    arms = tuple(arms)
    if not arms or len(set(arms)) != len(arms):
        raise InputError("at least one arm, each once", got=list(arms))
    for arm in chosen:
        if arm not in arms:
            raise InputError(f"an arm: {listed(arms)}", got=arm, hint=did_you_mean(arm, arms))
    return arms


def finite_reward(reward: float) -> float:
    """`reward` as a float; `InputError` where it is not a finite number.

    A NaN would make every later comparison false and so freeze the policy without a word.
    """
    if not math.isfinite(reward):
        raise InputError("a finite reward", got=float(reward), hint="has the learning diverged?")
    return float(reward)
