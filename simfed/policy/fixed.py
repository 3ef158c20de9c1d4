"""Policies that do not learn: one strategy for good, or the arms of a recorded run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from simfed.compress.codec import check_level, codec_from_spec
from simfed.errors import InputError
from simfed.levels import Level, arm_of, energy_level
from simfed.policy.base import Policy, Pull, check_arms, check_option
from simfed.registry import NameOf

__all__ = ["EnergyShare", "Replay", "Uniform"]


class Uniform(Policy):
    """One strategy for all clients and rounds.

    Stateless: one object may serve every client.

    >>> policy = Uniform(("top-k", "random-k"), strategy="random-k")
    >>> policy.pull(np.random.default_rng(0))
    Pull(arm='random-k', choice='fixed', probability=1.0)
    >>> policy.values()
    (0.0, 1.0)
    """

    learns = False
    draws = False

    def __init__(
        self,
        arms: Sequence[str],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        strategy: Annotated[str, NameOf("compressor"), "the strategy"],
    ) -> None:
        self.arms = tuple(arms) if strategy in arms else (*arms, strategy)
        self._pull = Pull(strategy, "fixed")

    def pull(self, rng: np.random.Generator) -> Pull:
        return self._pull

    def update(self, pull: Pull, reward: float) -> None:
        pass

    def void(self, pull: Pull) -> None:
        pass

    def values(self) -> tuple[float, ...]:
        return tuple(float(arm == self._pull.arm) for arm in self.arms)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


class EnergyShare(Uniform):
    """As many of the largest entries as hold a share of the update's energy.

    K is the smallest number whose entries' squares make up `share` of all, of residual + update;
    so it differs by client and round, and a step in which few entries matter costs little. Nothing
    is learned from rewards. K is known once the update is: time-only runs replay recorded ones.

    What is left open in the literature is which energy: here that of what the codec gets, the
    residual included. `share` 1 sends all that is not zero.

    >>> EnergyShare(("top-k",), share=0.9).pull(np.random.default_rng(0))
    Pull(arm='top-k@energy:90%', choice='fixed', probability=1.0)
    """

    def __init__(
        self,
        arms: Sequence[str],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        share: Annotated[float, "of the energy, above 0, up to 1"] = 0.9,
        strategy: Annotated[str, NameOf("compressor"), "top-k, or a chain behind it"] = "top-k",
    ) -> None:
        check_option("share", share, 0 < share <= 1, "a share above 0, up to 1")
        check_option("strategy", strategy, "@" not in strategy, "a strategy without a level")
        try:
            check_level(codec_from_spec(strategy), energy_level(share))
        except InputError as error:
            raise error.within("strategy") from None
        super().__init__(arms, reward_range, strategy=arm_of(strategy, energy_level(share)))

    @staticmethod
    def ends(share: float = 0.9, strategy: str = "top-k", **rest: Any) -> tuple[str, ...]:
        """The arm that it plays."""
        return (arm_of(strategy, energy_level(share)),)


class Replay(Policy):
    """The arms that one client played in a recorded run, in order: its n-th pull is the n-th arm.

    `recorded` holds every participation of the client, forced ones included: a replay has no losses
    and so no rollback that could force an arm. `levels`: the K of each, None where that is not the
    choice's own but the scenario's, or said by the arm. Raises `InputError` when the record is used
    up.

    >>> policy = Replay(("top-k", "random-k"), recorded=["random-k", "top-k"])
    >>> [policy.pull(np.random.default_rng(0)).arm for _ in range(2)]
    ['random-k', 'top-k']
    """

    learns = False
    draws = False

    def __init__(
        self,
        arms: Sequence[str],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        recorded: Sequence[str],
        levels: Sequence[Level | None] = (),
    ) -> None:
        self.arms = check_arms(arms, *dict.fromkeys(recorded))
        self._recorded = tuple(recorded)
        self._levels = tuple(levels) or (None,) * len(self._recorded)
        self._next = 0

    def pull(self, rng: np.random.Generator) -> Pull:
        if self._next == len(self._recorded):
            raise InputError(
                f"a recorded run in which this client takes part more than {self._next} times"
            )
        arm, level = self._recorded[self._next], self._levels[self._next]
        self._next += 1
        return Pull(arm, "fixed", k=level)

    def update(self, pull: Pull, reward: float) -> None:
        pass

    def void(self, pull: Pull) -> None:
        pass

    def values(self) -> tuple[float, ...]:
        upcoming = self._recorded[self._next] if self._next < len(self._recorded) else None
        return tuple(float(arm == upcoming) for arm in self.arms)

    def state(self) -> dict[str, Any]:
        return {"next": self._next}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._next = int(state["next"])
