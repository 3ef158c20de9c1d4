"""ASCEND with a constant step over ten million plays: the table of docs/theory.md.

    python analysis/theory_steps.py [--clients 24] [--plays 10000000]

Plays the rule of `simfed.policy`'s ASCEND for many clients at once on three arms whose means never
change, and prints what exploitation costs per play so far, the power of T by which it grows, and
the mean utility of each arm. tests/theory holds this rule to the policy itself, play by play. Ten
million plays take some five minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from theory_bandits import CLOSE, Interval, interval

from simfed.ground.seeding import Streams

Floats = NDArray[np.float64]
STEPS = (0.1, 0.03)
MARKS = (10_000, 100_000, 1_000_000, 10_000_000)
WARMUP, C = 5, 3.0
"""The policy's defaults: plays of each arm before it chooses, and ε_t = min(1, C/√t)."""
BLOCK = 50_000
"""Plays whose random numbers are drawn at once."""


@dataclass(frozen=True)
class Draws:
    """Random numbers of some plays, (plays, clients) each."""

    coin: Floats
    """Below ε_t: explore."""
    arm: NDArray[np.int64]
    """Played if exploring."""
    pay: Floats
    """Below the mean of the arm that was played: a reward of 1, else 0."""

    @classmethod
    def of(cls, rng: np.random.Generator, plays: int, clients: int, arms: int) -> Draws:
        shape = plays, clients
        return cls(rng.random(shape), rng.integers(arms, size=shape), rng.random(shape))


@dataclass
class Clients:
    """Many clients that play ASCEND, after their warm-up."""

    utility: Floats
    """Q of (arms, clients)."""
    step: Floats
    """η of each client: Q ← (1 − η)·Q + η·reward."""
    means: Floats
    pulls: int
    """Plays so far, alike for all."""

    @classmethod
    def warmed_up(cls, rng: np.random.Generator, step: Floats, means: Sequence[float]) -> Clients:
        """Each arm played `WARMUP` times; a utility is the mean of its rewards."""
        pays = rng.random((WARMUP, len(means), len(step))) < np.array(means)[:, None]
        return cls(pays.mean(axis=0), step, np.array(means), WARMUP * len(means))

    def play(self, draws: Draws) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The arm of each play and whether it was explored, (plays, clients)."""
        plays, clients = draws.coin.shape
        t = self.pulls + 1 + np.arange(plays)
        explores = draws.coin < np.minimum(1.0, C / np.sqrt(t))[:, None]
        played = np.empty((plays, clients), np.int64)
        utility, step, means, each = self.utility, self.step, self.means, np.arange(clients)
        for row in range(plays):
            at = np.where(explores[row], draws.arm[row], utility.argmax(axis=0))
            before = utility[at, each]
            reward = draws.pay[row] < means[at]
            utility[at, each] = (1 - step) * before + step * reward
            played[row] = at
        self.pulls += plays
        return played, explores


@dataclass(frozen=True)
class Account:
    """What exploitation has cost (marks, clients), and the utilities (marks, arms, clients)."""

    exploited: Floats
    utility: Floats


def exploitation(
    steps: Sequence[float],
    clients: int,
    marks: Sequence[int] = MARKS,
    means: Sequence[float] = CLOSE,
    seed: int = 0,
) -> dict[float, Account]:
    """Regret of exploitation so far, and utilities, after so many plays; all steps at once."""
    rng = Streams(seed)("steps")
    crowd = Clients.warmed_up(rng, np.repeat(steps, clients), means)
    gap = max(means) - np.array(means)
    cost, exploited, utility = np.zeros(len(crowd.step)), [], []
    for mark in marks:
        while crowd.pulls < mark:
            draws = Draws.of(rng, min(BLOCK, mark - crowd.pulls), len(crowd.step), len(means))
            played, explored = crowd.play(draws)
            cost += (gap[played] * ~explored).sum(axis=0)
        exploited.append(cost.copy())
        utility.append(crowd.utility.copy())
    return {
        step: Account(
            np.array(exploited)[:, crowd.step == step], np.array(utility)[:, :, crowd.step == step]
        )
        for step in steps
    }


def powers(exploited: Floats, marks: Sequence[int] = MARKS) -> list[Interval]:
    """By which power of T it grows from each mark to the next: √T would be 0.5, a floor 1."""
    growth = np.diff(np.log(exploited), axis=0) / np.diff(np.log(marks))[:, None]
    return [interval(of_clients) for of_clients in growth]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--plays", type=int, default=MARKS[-1], help="the last mark")
    arguments = parser.parse_args()
    marks = [mark for mark in MARKS if mark <= arguments.plays]
    for step, account in exploitation(STEPS, arguments.clients, marks).items():
        for mark, cost, utility in zip(marks, account.exploited, account.utility, strict=True):
            mean = ", ".join(f"{value:.3f}" for value in utility.mean(axis=1))
            print(f"step {step}, {mark:,} plays: {interval(cost / mark)} per play; Q {mean}")
        for first, last, power in zip(
            marks, marks[1:], powers(account.exploited, marks), strict=False
        ):
            print(f"step {step}, from {first:,} to {last:,}: like T to the power of {power}")


if __name__ == "__main__":
    main()
