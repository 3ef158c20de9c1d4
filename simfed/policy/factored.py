"""Strategy and level chosen apart: a bandit for each, in place of one for all pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from typing_extensions import override

from simfed.compress.choice import Choice, has_all_pairs
from simfed.ground.errors import InputError
from simfed.policy.base import Context, Policy, Pull, Reason, reads_context

_MOST_OF: tuple[Reason, ...] = ("warm-up", "explore", "exploit", "fixed")
"""The reasons of a pull of two parts, most important first: the pull has the first that
one of its parts has."""


class Factored(Policy):
    """A bandit for the codec and one for the level, of the same kind.

    `make(arms)` makes them.

    Each pull asks the one for a codec and, where that codec goes by K, the other for a
    level; both are paid the whole reward. With C codecs and L levels that is C + L
    values to learn instead of C·L, which is right where a level is as good beside one
    codec as beside another. What it cannot learn is that the best level is another one
    for each codec: a level's value is its mean over the codecs that it was played with.

    The arms in `arms`, and in `policies.parquet`, are the codecs and then the levels
    (`@500`); what a pull plays is the two together (`top-k@500`), and its probability
    their product. `choice` is `warm-up`, else `explore`, where one of the two is.

    >>> from simfed.policy import Ascend
    >>> arms = Choice("top-k", 500), Choice("top-k", 1000), Choice("dense")
    >>> policy = Factored(arms, lambda arms: Ascend(arms, warmup=1))
    >>> [str(arm) for arm in policy.arms]
    ['top-k', 'dense', '@500', '@1000']
    >>> policy.pull(np.random.default_rng(1))
    Pull(arm='top-k@1000', choice='warm-up', probability=0.25)

    Raises: `InputError` for arms that are not all pairs of some codecs and some levels.
    """

    learns = True

    def __init__(
        self, arms: Sequence[Choice], make: Callable[[tuple[Choice, ...]], Policy]
    ) -> None:
        if not has_all_pairs(arms):
            allowed = "arms that are every pair of codecs and levels"
            raise InputError(allowed, got=list(map(str, arms)))
        self._with_level = {arm.at(None) for arm in arms if arm.level is not None}
        self._codec = make(tuple(dict.fromkeys(arm.at(None) for arm in arms)))
        levels = dict.fromkeys(arm.level for arm in arms if arm.level is not None)
        self._level = make(tuple(Choice("", level) for level in levels))
        self.arms = (*self._codec.arms, *self._level.arms)
        self.reads_context = reads_context(self._codec)  # type: ignore[misc]

    @override
    def pull(self, rng: np.random.Generator, context: Context | None = None) -> Pull:
        told = (context,) if self.reads_context else ()
        parts = [self._codec.pull(rng, *told)]
        if parts[0].arm in self._with_level:
            parts.append(self._level.pull(rng, *told))
        choices = {part.choice for part in parts}
        return Pull(
            parts[0].arm.at(parts[-1].arm.level),
            next(choice for choice in _MOST_OF if choice in choices),
            float(np.prod([part.probability for part in parts])),
            parts=tuple(parts),
        )

    @override
    def update(self, pull: Pull, reward: float) -> None:
        for policy, part in zip((self._codec, self._level), pull.parts, strict=False):
            policy.update(part, reward)

    @override
    def void(self, pull: Pull) -> None:
        # a forced pull has no parts, and both may count it
        parts = pull.parts or (pull, pull)
        for policy, part in zip((self._codec, self._level), parts, strict=False):
            policy.void(part)

    @override
    def values(self) -> tuple[float, ...]:
        return (*self._codec.values(), *self._level.values())
