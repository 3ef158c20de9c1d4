"""The protocol of policies, its records, and bases that implementations share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from typing_extensions import override

from simfed.compress.choice import Choice
from simfed.ground.errors import InputError, check_known
from simfed.ground.levels import Level
from simfed.ground.vocabulary import CHOICES, Reason

__all__ = [
    "CHOICES",
    "Bandit",
    "Context",
    "Policy",
    "Pull",
    "Reason",
    "Spent",
    "Unpaid",
    "check_arms",
    "check_option",
    "check_reward",
    "paces_of",
    "reads_context",
    "watches",
]


@dataclass(frozen=True, slots=True)
class Context:
    """What a client knows of itself when its policy is asked.

    Further fields may join these; each has a value where nothing is known.
    """

    round: int
    """The round or merge that it trains for, from 1 on."""
    rounds: int
    """Those of the whole run."""
    battery: float = 1.0
    """How full its battery is, as a share; 1 where it has none."""
    rate: float | None = None
    """Bytes per second of its last upload that arrived, over the seconds of the upload,
    latency included, once the server has settled it; None: there was none."""


@dataclass(frozen=True, slots=True, repr=False)
class Pull:
    """One choice of an arm: which, why, and how probable it was.

    The last is told by policies that ask for it.

    `forced` pulls are made by the server after a rollback, never by a policy, and get
    no reward.
    """

    arm: Choice
    choice: Reason
    probability: float = 1.0
    k: Level | None = None
    """The level, where the policy sets it itself; else the arm says it, or the
    scenario's K counts."""
    parts: tuple[Pull, ...] = ()
    """The pulls of strategy and level where a `Factored` policy chooses them apart."""
    context: Context | None = None
    """The context in which it was made, where the policy keeps it with the pull."""

    def __repr__(self) -> str:
        level = f", k={Level.of(self.k).plain!r}" if self.k is not None else ""
        why = f"choice={self.choice!r}, probability={self.probability!r}"
        return f"Pull(arm={str(self.arm)!r}, {why}{level})"


@dataclass(frozen=True, slots=True)
class Spent:
    """The seconds that a participation took of its client, and its uplink's pace.

    What policies with `watches_time` are told of every upload that arrived. Seconds
    are simulated, and those of this client alone.
    """

    downlink_s: float
    work_s: float
    """The client's local work: training and compression."""
    uplink_s: float
    slack_s: float
    """Seconds by which the upload could have arrived later without delaying a merge."""
    pace: float = 1.0
    """The rate of its upload over that of the slowest upload that the server settled
    with it: what no client knows by itself."""


@runtime_checkable
class Policy(Protocol):
    """One client's policy. Made as `cls(arms, reward_range=(low, high), **options)`.

    A policy sees its own client's rewards and nothing else, but one with
    `watches_time`, which is told what its client's participations took, and one with
    `reads_context`, which is asked with its client's `Context`. It owns no
    random numbers: `pull` gets the generator keyed by client and round. Each pull of a
    policy that learns, forced ones included, comes back once, possibly after later
    pulls (a late contribution): to `update` with its reward, or to `void`.

    `arms` are values (`simfed.compress.choice.Choice`: a codec, a level), which a
    policy that only counts need not look into; one equals its label.

    The keywords of the constructor, with their annotations and defaults, are the
    policy's keys in scenarios; `Annotated[float, "what it is"]` explains one in the
    reference. A value that the constructor refuses is an `InputError` whose `where`
    names the keyword.

    Under privacy it is refused unless its own class says `privacy = ("client",
    "sample")`, or one of them: `client` where it knows nothing of other clients, both
    where no reward counts.
    """

    arms: tuple[Choice, ...]
    draws: ClassVar[bool] = True
    """True if a pull uses the generator that it gets."""
    learns: bool
    """True if rewards change later choices; else a time-only run needs no rewards."""
    watches_time: ClassVar[bool] = False
    """True if `watch` is to be called."""
    reads_context: ClassVar[bool] = False
    """True if `pull` takes the client's context: `pull(rng, context)`."""
    one_for_all: ClassVar[bool] = False
    """True if one object may serve every client because nothing in it changes. A class
    says it of itself, not of its subclasses."""
    compares_clients: ClassVar[bool] = False
    """True if it depends on `Spent.pace`, which is void where each merge has one
    upload."""

    def pull(self, rng: np.random.Generator) -> Pull:
        """Return the arm to play now."""
        ...

    def update(self, pull: Pull, reward: float) -> None:
        """Learn from the clipped reward of an earlier pull that was not forced."""
        ...

    def void(self, pull: Pull) -> None:
        """Take note that a pull gets no reward.

        Its upload was lost, dropped or failed, or the pull was forced.
        """
        ...

    def watch(self, pull: Pull, spent: Spent) -> None:
        """Take note of the seconds of a participation that arrived.

        It is called for forced pulls as well, and before `update` or `void`.
        """
        return

    def values(self) -> tuple[float, ...]:
        """Return per arm what the next pull is based on.

        These are utilities (NaN for an arm that has none yet) or probabilities.
        """
        ...


class Unpaid(Policy):
    """The base of policies that neither draw nor look at rewards."""

    learns = False
    draws = False

    @override
    def update(self, pull: Pull, reward: float) -> None:
        pass

    @override
    def void(self, pull: Pull) -> None:
        pass


class Bandit(Policy):
    """The base of policies that learn from rewards between two bounds.

    A subclass has `pull`, `values` and `_learn`, which is told the arm's index, the
    pull and the reward scaled to [0, 1]. Forced and void pulls change nothing.
    """

    learns = True

    def __init__(
        self, arms: Sequence[Choice], reward_range: tuple[float, float]
    ) -> None:
        self.arms = check_arms(arms)
        self.low, self.high = reward_range
        if not self.low < self.high:
            raise InputError(
                "a reward range (low, high) with low < high", got=reward_range
            )
        if math.isinf(self.high - self.low):
            raise InputError(
                "rewards between two bounds", where="reward_range", got=reward_range
            )

    @override
    def update(self, pull: Pull, reward: float) -> None:
        if pull.choice != "forced":
            share = (check_reward(reward) - self.low) / (self.high - self.low)
            self._learn(self.arms.index(pull.arm), pull, share)

    @override
    def void(self, pull: Pull) -> None:
        pass

    def _learn(self, at: int, pull: Pull, share: float) -> None:
        raise NotImplementedError


def watches(policy: Policy) -> bool:
    """Return whether a policy is told what its participations took.

    A policy without the attribute `watches_time` is not.
    """
    return bool(getattr(policy, "watches_time", False))


def reads_context(policy: Policy) -> bool:
    """Return whether a policy is asked with its client's context.

    A policy without the attribute `reads_context` is not.
    """
    return bool(getattr(policy, "reads_context", False))


def serves_all(policy: Policy) -> bool:
    """Return whether one object serves all clients of a group.

    The policy's own class must set `one_for_all`; an inherited value does not count.
    """
    return bool(vars(type(policy)).get("one_for_all", False))


def paces_of(uploads: Iterable[tuple[float, float]]) -> list[float]:
    """Return the rate of each upload (bytes, seconds) over that of the slowest of them.

    >>> paces_of([(100, 2.0), (100, 0.5), (50, 1.0)])
    [1.0, 4.0, 1.0]
    """
    rates = [size / seconds if seconds > 0 else math.inf for size, seconds in uploads]
    slowest = min((rate for rate in rates if rate > 0), default=math.inf)
    return [1.0 if rate == slowest else rate / slowest for rate in rates]


def check_arms(arms: Sequence[Choice], *chosen: Choice) -> tuple[Choice, ...]:
    """Return `arms` as a tuple; raise `InputError` unless they are valid.

    There must be at least one arm, each once, and each of `chosen` among them.
    """
    arms = tuple(arms)
    if not arms or len(set(arms)) != len(arms):
        raise InputError("at least one arm, each once", got=list(map(str, arms)))
    for arm in chosen:
        check_known(str(arm), map(str, arms), "an arm:")
    return arms


def check_option(name: str, value: object, holds: bool, allowed: str) -> None:
    """Check a constructor's option, so that a scenario's error names its key.

    Args:
        name: the keyword.
        value: what it was given.
        holds: whether that may be.
        allowed: what may be, as an error says it after "expected".

    Raises:
        InputError: it does not hold.
    """
    if not holds:
        raise InputError(allowed, where=name, got=value)


def check_reward(reward: float) -> float:
    """Return `reward` as a float; raise `InputError` where it is not a finite number.

    A NaN would make every later comparison false and so freeze the policy without a
    word.
    """
    if not math.isfinite(reward):
        raise InputError(
            "a finite reward", got=float(reward), hint="has the learning diverged?"
        )
    return float(reward)
