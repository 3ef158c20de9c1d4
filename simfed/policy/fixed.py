"""Policies that do not learn: one strategy for good, or the arms of a recorded run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from typing_extensions import override

from simfed.compress.choice import Choice
from simfed.ground.errors import InputError
from simfed.ground.levels import Level
from simfed.ground.registry import NameOf
from simfed.policy.base import Pull, Unpaid, check_arms


class Uniform(Unpaid):
    """One strategy for all clients and rounds.

    Stateless: one object may serve every client.

    >>> policy = Uniform(("top-k", "random-k"), strategy="random-k")
    >>> policy.pull(np.random.default_rng(0))
    Pull(arm='random-k', choice='fixed', probability=1.0)
    >>> policy.values()
    (0.0, 1.0)
    """

    privacy = ("client", "sample")
    one_for_all: ClassVar[bool] = True

    def __init__(
        self,
        arms: Sequence[Choice],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        strategy: Annotated[str, NameOf("codec"), "the strategy"],
    ) -> None:
        offered = tuple(map(Choice.of, arms))
        chosen = next((arm for arm in offered if arm.label == strategy), None)
        self.arms = offered if chosen is not None else (*offered, Choice.of(strategy))
        self._pull = Pull(chosen or self.arms[-1], "fixed")

    @override
    def pull(self, rng: np.random.Generator) -> Pull:
        return self._pull

    @override
    def values(self) -> tuple[float, ...]:
        return tuple(float(arm == self._pull.arm) for arm in self.arms)


class Replay(Unpaid):
    """The arms that one client played in a recorded run, in order.

    Its n-th pull is the n-th arm.

    `recorded` holds every participation of the client, forced ones included: a replay
    has no losses and so no rollback that could force an arm. `levels`: the K of each,
    None where that is not the choice's own but the scenario's, or said by the arm.
    Raises `InputError` when the record is used up.

    >>> first, second = Choice("random-k"), Choice("top-k")
    >>> policy = Replay((second, first), recorded=[first, second])
    >>> [policy.pull(np.random.default_rng(0)).arm for _ in range(2)]
    [Choice('random-k'), Choice('top-k')]
    """

    def __init__(
        self,
        arms: Sequence[Choice],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        recorded: Sequence[Choice],
        levels: Sequence[int | None] = (),
    ) -> None:
        self.arms = check_arms(arms, *dict.fromkeys(recorded))
        self._recorded = tuple(recorded)
        self._levels = tuple(levels) or (None,) * len(self._recorded)
        self._next = 0

    @override
    def pull(self, rng: np.random.Generator) -> Pull:
        if self._next == len(self._recorded):
            raise InputError(
                "one with more",
                problem=f"the recorded run has only {self._next} participations of "
                f"this client",
            )
        arm, level = self._recorded[self._next], self._levels[self._next]
        self._next += 1
        return Pull(arm, "fixed", k=None if level is None else Level.of(level))

    @override
    def values(self) -> tuple[float, ...]:
        upcoming = self._recorded[self._next : self._next + 1]
        return tuple(float(arm in upcoming) for arm in self.arms)
