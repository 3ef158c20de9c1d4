"""LinUCB: upper confidence bounds of rewards that are linear in a client's context."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from typing_extensions import override

from simfed.compress.choice import Choice
from simfed.ground.arrays import Floats
from simfed.policy.base import Bandit, Context, Pull, check_option

_FIELDS = 4


class LinUcb(Bandit):
    """Upper confidence bounds over a ridge regression per arm on the client's context.

    x = (1, round / rounds, battery, lg(rate / 1 MB/s) / 3), with 0 for a rate that
    nobody has seen. Each arm s has A = `ridge`·I + Σ x·xᵀ and b = Σ r·x over its
    rewarded plays, r the reward scaled to [0, 1] by the reward range. Plays the arm of
    the largest θᵀx + `alpha`·√(xᵀA⁻¹x), θ = A⁻¹b; ties go to the lowest index. `choice`
    is `exploit` where the arm also has the largest θᵀx, else `explore`.

    A pull without a reward teaches nothing of the arm's mean, but it narrows its width
    until the arm is paid again, so that one whose uploads never arrive does not hold
    the client up. Nothing is forgotten. It is the paper's algorithm with disjoint
    models; that a reward is linear in these fields is an assumption.

    Source: Li, Chu, Langford and Schapire, "A contextual-bandit approach to
    personalized news article recommendation" (2010), algorithm 1, with A begun at I
    there (`ridge` 1).

    >>> policy = LinUcb(("top-k", "dense"), alpha=0.3)
    >>> for t in range(40):  # dense is worth something on a fast link, else top-k
    ...     fast = t % 2
    ...     context = Context(t + 1, 40, 1.0, 10e6 if fast else 0.1e6)
    ...     pull = policy.pull(np.random.default_rng(t), context)
    ...     policy.update(pull, 0.5 if (pull.arm == "dense") == fast else -0.5)
    >>> slow, fast = (Context(41, 40, 1.0, rate) for rate in (0.1e6, 10e6))
    >>> rng = np.random.default_rng(0)
    >>> str(policy.pull(rng, slow).arm), str(policy.pull(rng, fast).arm)
    ('top-k', 'dense')
    """

    draws = False
    reads_context = True

    def __init__(
        self,
        arms: Sequence[Choice],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        alpha: Annotated[float, "α, of the width of the bound"] = 1.0,
        ridge: Annotated[float, "λ of the regressions"] = 1.0,
    ) -> None:
        super().__init__(arms, reward_range)
        finite = 0 <= alpha < math.inf
        check_option("alpha", alpha, finite, "a number of at least 0")
        check_option("ridge", ridge, 0 < ridge < math.inf, "a number above 0")
        self.alpha, self.ridge = alpha, ridge
        count = len(self.arms)
        self._a = np.stack([ridge * np.eye(_FIELDS)] * count)
        """λ·I + Σ x·xᵀ of each arm's rewarded pulls, shape (arms, fields, fields)."""
        self._unpaid = np.zeros_like(self._a)
        """Σ x·xᵀ of each arm's pulls since its last reward."""
        self._b = np.zeros((count, _FIELDS))
        self._paid = np.zeros(count, dtype=bool)
        self._x = list_features(Context(1, 1))

    @override
    def pull(self, rng: np.random.Generator, context: Context | None = None) -> Pull:
        context = context or Context(1, 1)
        x = self._x = list_features(context)
        means = self._compute_means()
        columns = np.broadcast_to(x[:, None], (*self._b.shape, 1))
        # pulls that wait for their reward narrow the bound already, else one arm would
        # be pulled by all who come before the first reward
        widths = np.sqrt(np.linalg.solve(self._a + self._unpaid, columns)[..., 0] @ x)
        at = int(np.argmax(means + self.alpha * widths))
        self._unpaid[at] += np.outer(x, x)
        best = means[at] == means.max()
        return Pull(self.arms[at], "exploit" if best else "explore", context=context)

    def _compute_means(self) -> Floats:
        """Return each arm's expected reward, scaled to 0–1, at the last context."""
        means: Floats = np.linalg.solve(self._a, self._b[..., None])[..., 0] @ self._x
        return means

    def _learn(self, at: int, pull: Pull, share: float) -> None:
        x = list_features(pull.context or Context(1, 1))
        self._unpaid[at] = 0.0
        self._a[at] += np.outer(x, x)
        self._b[at] += share * x
        self._paid[at] = True

    @override
    def values(self) -> tuple[float, ...]:
        # at the context of the last pull
        means = self.low + (self.high - self.low) * self._compute_means()
        return tuple(np.where(self._paid, means, math.nan).tolist())


def list_features(context: Context) -> Floats:
    """Return x of a context: one, and its fields on scales of about one.

    >>> list_features(Context(10, 40, 0.5, 1e6)).tolist()
    [1.0, 0.25, 0.5, 0.0]
    """
    rate = context.rate
    heard = math.log10(rate / 1e6) / 3 if rate else 0.0
    return np.array([1.0, context.round / context.rounds, context.battery, heard])
