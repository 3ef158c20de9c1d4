"""The safeguard: which rounds are undone because a shared loss has grown.

It compares losses that the method measures on the server; what an undone round does to
models, clients and versions is `simfed.learn.hosted`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

from simfed.ground.method import Losses
from simfed.ground.plain import Plain
from simfed.scenario import Scenario

_ROUNDING = 1e-12
"""A shared loss up to here is rounding: one client's model is its own teacher."""

SharedLosses = dict[str, float]
"""Prototype → the loss whose decrease is the shared part of a gain."""


class Safeguard:
    """The shared losses of accepted rounds, and what is compared with them.

    A round is rejected where the loss of a prototype exceeds `threshold` times that of
    the last accepted round, or the median of a window of them. After `max_consecutive`
    rejections in a row the next round stands whatever its losses.
    """

    def __init__(self, scenario: Scenario, name: str | None) -> None:
        """Begin without a loss.

        Args:
            scenario: its `safeguard` says when to reject and what to compare with.
            name: of the method's shared loss; None: it has none, and nothing is
                rejected.
        """
        self._rollback = scenario.safeguard.rollback
        self._reference = scenario.safeguard.reference
        self._name = name
        self._shared_loss: SharedLosses = {}
        self._rollbacks_in_a_row = 0
        self._accepted: list[SharedLosses] = []
        """Losses of the last accepted rounds, where their median counts."""

    def before(self, measure_first: Callable[[], Losses] | None = None) -> SharedLosses:
        """Return the shared losses of the last accepted round.

        The first models count as round 0: `measure_first` measures theirs, and is
        called once at most.
        """
        if (
            measure_first is not None
            and self._name is not None
            and not self._shared_loss
        ):
            self._shared_loss = self.shared(measure_first())
        return dict(self._shared_loss)

    def shared(self, losses: Losses) -> SharedLosses:
        """Return the shared one among the losses of each prototype."""
        if self._name is None:
            return {}
        return {
            name: one[self._name] for name, one in losses.items() if self._name in one
        }

    def rejects(self, before: SharedLosses, after: SharedLosses) -> bool:
        """Return whether a round with these losses is undone.

        A loss that is no number rejects.
        """
        if (
            self._rollback is None
            or self._rollbacks_in_a_row >= self._rollback.max_consecutive
        ):
            return False
        for name in before if self._accepted else ():
            # a prototype that nobody brought anything of has no loss of that round
            told = [then[name] for then in self._accepted if name in then]
            before = {**before, name: median(told or [before[name]])}
        # not (≤) rather than (>), so that a NaN is rejected
        most = {
            name: self._rollback.threshold * before[name] + _ROUNDING for name in after
        }
        return any(not after[name] <= most[name] for name in after)

    def reject(self) -> None:
        """Take note that the round was undone."""
        self._rollbacks_in_a_row += 1

    def accept(self, before: SharedLosses, after: SharedLosses) -> None:
        """Take note that the round stands; the next one is compared with its losses."""
        self._rollbacks_in_a_row = 0
        if self._rollback is not None and self._reference.kind == "running-median":
            self._accepted = [*(self._accepted or [before]), after][
                -self._reference.window :
            ]
        self._shared_loss = {**self._shared_loss, **after}

    def plain(self) -> dict[str, Plain]:
        """Return what a checkpoint keeps: accepted losses, rollbacks in a row."""
        return {
            "shared_loss": self._shared_loss,
            "rollbacks_in_a_row": self._rollbacks_in_a_row,
            "accepted": self._accepted,
        }

    def restore(self, facts: Mapping[str, Plain]) -> None:
        """Take up what `plain` returned."""
        self._shared_loss = dict(facts["shared_loss"])
        self._rollbacks_in_a_row = int(facts["rollbacks_in_a_row"])
        self._accepted = list(facts["accepted"])
