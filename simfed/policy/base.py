"""What a policy is: one client's way of choosing an arm (a compression strategy) per round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from simfed.compress.choice import Choice
from simfed.ground.errors import InputError, check_known
from simfed.ground.levels import Level
from simfed.ground.vocabulary import CHOICES, Reason

__all__ = [
    "CHOICES",
    "Bandit",
    "Policy",
    "Pull",
    "Reason",
    "Spent",
    "Unpaid",
    "Wrapped",
    "check_arms",
    "check_option",
    "finite_reward",
    "paces_of",
    "watches",
]


@dataclass(frozen=True, slots=True, repr=False)
class Pull:
    """One choice of an arm: which, why, and how probable a policy that asks for it drew it.

    `forced` pulls are made by the server after a rollback, never by a policy, and get no reward.
    """

    arm: Choice
    choice: Reason
    probability: float = 1.0
    k: Level | None = None
    """The level, where the policy sets it itself; else the arm says it, or the scenario's K
    counts."""
    parts: tuple[Pull, ...] = ()
    """Where strategy and level are chosen apart: the pull of each."""

    def __repr__(self) -> str:
        level = f", k={Level.of(self.k).plain!r}" if self.k is not None else ""
        why = f"choice={self.choice!r}, probability={self.probability!r}"
        return f"Pull(arm={str(self.arm)!r}, {why}{level})"


@dataclass(frozen=True, slots=True)
class Spent:
    """What one participation took of its client's time, and how its uplink compares."""

    downlink_s: float
    work_s: float
    """Its local work: training and compression."""
    uplink_s: float
    slack_s: float
    """How much later its upload could have arrived without delaying the merge."""
    pace: float = 1.0
    """The rate of its upload over that of the slowest upload that the server settled with it: what
    no client knows by itself."""


@runtime_checkable
class Policy(Protocol):
    """One client's policy. Made as `cls(arms, reward_range=(low, high), **options)`.

    A policy sees its own client's rewards and nothing else, but one with `watches_time`, which is
    told what its client's participations took. It owns no random numbers: `pull` gets the generator
    keyed by client and round. Each pull of a policy that learns, forced ones included, comes back
    once, possibly after later pulls (a late contribution): to `update` with its reward, or to
    `void`.

    `arms` are values (`simfed.compress.choice.Choice`: a codec, a level), which a policy that only
    counts need not look into; one equals its label.

    The keywords of the constructor, with their annotations and defaults, are the policy's keys in
    scenarios; `Annotated[float, "what it is"]` explains one in the reference. A value that the
    constructor refuses is an `InputError` whose `where` names the keyword.

    Under privacy it is refused unless its own class says `privacy = ("client", "sample")`, or one
    of them: `client` where it knows nothing of other clients, both where no reward counts.
    """

    arms: tuple[Choice, ...]
    draws: ClassVar[bool] = True
    """Whether a pull uses the generator that it gets."""
    learns: bool
    """Whether rewards change its choices (if not, a time-only run needs no rewards)."""
    watches_time: ClassVar[bool] = False
    """Whether `watch` is to be called."""
    one_for_all: ClassVar[bool] = False
    """Whether one object may serve every client, as nothing in it ever changes; a class says it of
    itself, not of those that extend it."""
    compares_clients: ClassVar[bool] = False
    """Whether it lives on `Spent.pace`, which says nothing where each merge has one upload."""

    def pull(self, rng: np.random.Generator) -> Pull:
        """The arm to play now."""
        ...

    def update(self, pull: Pull, reward: float) -> None:
        """The clipped reward of an earlier pull, which was not forced."""
        ...

    def void(self, pull: Pull) -> None:
        """This pull gets no reward: its upload was lost, dropped or failed, or it was forced."""
        ...

    def watch(self, pull: Pull, spent: Spent) -> None:
        """What a participation took that arrived, forced ones included; before `update` or
        `void`."""
        return

    def values(self) -> tuple[float, ...]:
        """What the next pull would be based on, per arm: utilities (NaN: none yet) or
        probabilities."""
        ...


class Unpaid(Policy):
    """What policies that neither draw nor look at rewards have in common."""

    learns = False
    draws = False

    def update(self, pull: Pull, reward: float) -> None:
        pass

    def void(self, pull: Pull) -> None:
        pass


class Wrapped(Policy):
    """What policies that stand before another one have in common: its arms, what it shows and what
    it keeps. How it is asked and told is theirs."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.arms, self.learns = policy.arms, policy.learns

    def values(self) -> tuple[float, ...]:
        return self._policy.values()


class Bandit(Policy):
    """What policies that learn from rewards between two bounds have in common.

    A subclass has `pull`, `values`, `state`, `restore` and `_learn`, which is told the arm's index,
    the pull and the reward scaled to [0, 1]. Forced and void pulls change nothing.
    """

    learns = True

    def __init__(self, arms: Sequence[Choice], reward_range: tuple[float, float]) -> None:
        self.arms = check_arms(arms)
        self.low, self.high = reward_range
        if not self.low < self.high:
            raise InputError("a reward range (low, high) with low < high", got=reward_range)
        if math.isinf(self.high - self.low):
            raise InputError("rewards between two bounds", where="reward_range", got=reward_range)

    def update(self, pull: Pull, reward: float) -> None:
        if pull.choice != "forced":
            share = (finite_reward(reward) - self.low) / (self.high - self.low)
            self._learn(self.arms.index(pull.arm), pull, share)

    def void(self, pull: Pull) -> None:
        pass

    def _learn(self, at: int, pull: Pull, share: float) -> None:
        raise NotImplementedError


def watches(policy: Policy) -> bool:
    """Whether a policy is told what its participations took; one without the key `watches_time`
    is not."""
    return bool(getattr(policy, "watches_time", False))


def serves_all(policy: Policy) -> bool:
    """Whether one object serves all clients of a group: its own class says `one_for_all`."""
    return bool(vars(type(policy)).get("one_for_all", False))


def paces_of(uploads: Iterable[tuple[float, float]]) -> list[float]:
    """The rate of each upload (bytes, seconds) over that of the slowest among them.

    >>> paces_of([(100, 2.0), (100, 0.5), (50, 1.0)])
    [1.0, 4.0, 1.0]
    """
    rates = [size / seconds if seconds > 0 else math.inf for size, seconds in uploads]
    slowest = min((rate for rate in rates if rate > 0), default=math.inf)
    return [1.0 if rate == slowest else rate / slowest for rate in rates]


def check_arms(arms: Sequence[Choice], *chosen: Choice) -> tuple[Choice, ...]:
    """`arms` as a tuple: at least one, each once, `chosen` among them; else `InputError`."""
    arms = tuple(arms)
    if not arms or len(set(arms)) != len(arms):
        raise InputError("at least one arm, each once", got=list(map(str, arms)))
    for arm in chosen:
        check_known(str(arm), map(str, arms), "an arm:")
    return arms


def check_option(name: str, value: object, holds: bool, allowed: str) -> None:
    """`InputError` about the option `name` of a constructor unless it `holds` (NaN never does)."""
    if not holds:
        raise InputError(allowed, where=name, got=value)


def finite_reward(reward: float) -> float:
    """`reward` as a float; `InputError` where it is not a finite number.

    A NaN would make every later comparison false and so freeze the policy without a word.
    """
    if not math.isfinite(reward):
        raise InputError("a finite reward", got=float(reward), hint="has the learning diverged?")
    return float(reward)
