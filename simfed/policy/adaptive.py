"""Policies that set K themselves, for one codec: no arms, a number that moves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from typing_extensions import override

from simfed.compress.choice import Choice
from simfed.ground.registry import NameOf
from simfed.policy.base import Bandit, Pull, check_option
from simfed.policy.interval import SetsK

_NARROWEST = 1e-6  # of its upper end: below, the two points would be the same number


class AdaptiveK(SetsK, Bandit):
    """Moves K by the sign of what a change does to the time of the loss's fall.

    With K in [`least`, `most`] of width B, the m-th step is K ← K − δ·ŝ, kept in the
    interval, with δ = B/√(2m). ŝ is the sign of the derivative of time per decrease of
    the loss, estimated from two plays: one at K (`exploit`), one at K' = K − δ/2
    (`explore`; K + δ/2 where that is below the interval). A reward is decrease per
    second, so time per decrease falls where the reward rises. Every `window` steps the
    interval shrinks to [lowest K in it/`widen`, highest·`widen`], within the first one,
    and m begins anew; but only if that pays: new width ≤ (√2 − 1)·old, and no fewer
    steps than at the last time.

    Left open or changed: in the paper the server sets one K for all and evaluates both
    points on the losses of one round; here a client has its own K and sees its own
    rewards only, so the two points are successive plays: half as many steps, and what
    the round itself did to the loss is noise in ŝ. Equal rewards (both clipped, say) do
    not move K, but count in m. The first K is the geometric middle. A pull without a
    reward is played again; rewards for points that K has left are forgotten.

    `least` and `most` are two numbers of entries or two shares of the model (`0.2%`),
    then the same for models of every size. `values` has K itself, a share in per cent.

    Source: Han, Wang and Leung, "Adaptive gradient sparsification for efficient
    federated learning: an online learning approach" (2020).

    >>> policy = AdaptiveK(("top-k",), least=100, most=900)
    >>> rng = np.random.default_rng(0)
    >>> first = policy.pull(rng); policy.update(first, 0.2); first
    Pull(arm='top-k', choice='exploit', probability=1.0, k=300)
    >>> second = policy.pull(rng); policy.update(second, 0.1); second
    Pull(arm='top-k', choice='explore', probability=1.0, k=583)
    >>> policy.values()  # fewer entries were better: as few as there may be
    (100.0,)
    """

    def __init__(
        self,
        arms: Sequence[Choice],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        strategy: Annotated[str, NameOf("codec"), "the codec"] = "top-k",
        least: Annotated[int | str, "smallest K, or share of the model"] = "0.2%",
        most: Annotated[int | str, "largest K, or share of the model"] = "100%",
        window: Annotated[int, "steps between two looks at the interval"] = 20,
        widen: Annotated[float, "factor around the K of a window"] = 1.5,
    ) -> None:
        SetsK.__init__(self, arms, strategy, least, most)
        Bandit.__init__(self, self.arms, reward_range)
        check_option("window", window, window >= 1, "a whole number of at least 1")
        check_option("widen", widen, 1 <= widen < math.inf, "a number of at least 1")
        self.window = window
        self.widen = widen
        self._low, self._high = self._within.least, self._within.most
        self._steps = 0
        self._steps_before = 0
        self._seen: list[float] = []
        self._rewards: list[float | None] = [None, None]

    @override
    def pull(self, rng: np.random.Generator) -> Pull:
        here, there = self._list_points()
        probes = self._rewards[0] is not None
        return Pull(
            self.strategy,
            "explore" if probes else "exploit",
            k=self._within.level(there if probes else here),
        )

    def _learn(self, at: int, pull: Pull, share: float) -> None:
        points = self._list_points()
        for i, (point, choice) in enumerate(
            zip(points, ("exploit", "explore"), strict=True)
        ):
            fits = pull.choice == choice and pull.k == self._within.level(point)
            if fits and self._rewards[i] is None:
                self._rewards[i] = share
        here, there = self._rewards
        if here is not None and there is not None:
            self._rewards = [None, None]
            # time per decrease rises with K where the reward falls
            self._step(float(np.sign(there - here) * np.sign(points[0] - points[1])))

    def _step(self, sign: float) -> None:
        self._k = min(
            max(self._k - self._compute_delta() * sign, self._low), self._high
        )
        self._steps += 1
        self._seen.append(self._k)
        if len(self._seen) == self.window:
            low = self._within.clamp(min(self._seen) / self.widen)
            high = self._within.clamp(max(self._seen) * self.widen)
            pays = high - low <= (math.sqrt(2) - 1) * (self._high - self._low)
            apart = high - low > _NARROWEST * high
            if apart and pays and self._steps >= self._steps_before:
                self._low, self._high = low, high
                self._steps_before, self._steps = self._steps, 0
            self._seen = []

    def _compute_delta(self) -> float:
        return (self._high - self._low) / math.sqrt(2 * (self._steps + 1))

    def _list_points(self) -> tuple[float, float]:
        """Return K and the other point it is compared with, an entry or more apart."""
        here, apart = self._k, self._compute_delta() / 2
        if not self._within.in_shares:
            here, apart = float(round(here)), max(1.0, float(round(apart)))
        below = here - apart >= self._low or here + apart > self._within.most
        return here, max(here - apart, self._within.least) if below else here + apart
