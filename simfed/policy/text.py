"""Policies that were written for arms as text: one adapter between them and choices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simfed.compress.choice import Choice
from simfed.ground.levels import Level
from simfed.policy.base import Policy, Pull, Spent, Wrapped, watches


class TextPolicy(Wrapped):
    """A policy that knows its arms by their labels, as one that knows them as choices.

    All that it says and is told goes through; `Pull`s come back to it with arm and K as it gave
    them, as text or a number.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.arms = tuple(map(Choice.of, policy.arms))
        self.draws = getattr(policy, "draws", True)  # type: ignore[misc]
        self.watches_time = watches(policy)  # type: ignore[misc]

    def pull(self, rng: np.random.Generator) -> Pull:
        pull = self._policy.pull(rng)
        k = None if pull.k is None else Level.read(pull.k)
        return replace(pull, arm=Choice.of(pull.arm), k=k)

    def update(self, pull: Pull, reward: float) -> None:
        self._policy.update(_label_pull(pull), reward)

    def void(self, pull: Pull) -> None:
        self._policy.void(_label_pull(pull))

    def watch(self, pull: Pull, spent: Spent) -> None:
        self._policy.watch(_label_pull(pull), spent)


def _label_pull(pull: Pull) -> Pull:
    k = None if pull.k is None else pull.k.plain
    return replace(pull, arm=pull.arm.label, k=k)  # type: ignore[arg-type]
