"""ASCEND with a constant step over ten million plays: the table of docs/theory.md.

    python analysis/theory_steps.py [--clients 24]

Plays the rule of `simfed.policy`'s ASCEND for many clients at once on three arms whose
means never change, and keeps in theory_rows.csv what exploitation has cost so far and
the utility of each arm, a row per client. tests/theory holds this rule to the policy
itself, play by play. Ten million plays take some five minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pages import markdown, write_page
from theory_bandits import CLOSE
from theory_rows import PAGE, Interval, Rows, interval

from simfed.ground.seeding import Streams

__all__ = ["PAGE"]
Floats = NDArray[np.float64]
STEPS = (0.1, 0.03)
MARKS = (10_000, 100_000, 1_000_000, 10_000_000)
WARMUP, C = 5, 3.0
"""The policy's defaults: plays of each arm before it chooses, and ε_t = min(1,
C/√t)."""
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
    def warmed_up(
        cls, rng: np.random.Generator, step: Floats, means: Sequence[float]
    ) -> Clients:
        """Each arm played `WARMUP` times; a utility is the mean of its rewards."""
        pays = rng.random((WARMUP, len(means), len(step))) < np.array(means)[:, None]
        return cls(pays.mean(axis=0), step, np.array(means), WARMUP * len(means))

    def play(self, draws: Draws) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The arm of each play and whether it was explored, (plays, clients)."""
        plays, clients = draws.coin.shape
        t = self.pulls + 1 + np.arange(plays)
        explores = draws.coin < np.minimum(1.0, C / np.sqrt(t))[:, None]
        played = np.empty((plays, clients), np.int64)
        utility, step, means, each = (
            self.utility,
            self.step,
            self.means,
            np.arange(clients),
        )
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
    """What exploitation has cost (marks, clients), and the utilities (marks, arms,
    clients).
    """

    exploited: Floats
    utility: Floats


def exploitation(
    steps: Sequence[float],
    clients: int,
    marks: Sequence[int] = MARKS,
    means: Sequence[float] = CLOSE,
    seed: int = 0,
) -> dict[float, Account]:
    """Regret of exploitation so far, and utilities, after so many plays.

    All steps at once.
    """
    rng = Streams(seed)("steps")
    crowd = Clients.warmed_up(rng, np.repeat(steps, clients), means)
    gap = max(means) - np.array(means)
    cost, exploited, utility = np.zeros(len(crowd.step)), [], []
    for mark in marks:
        while crowd.pulls < mark:
            draws = Draws.of(
                rng, min(BLOCK, mark - crowd.pulls), len(crowd.step), len(means)
            )
            played, explored = crowd.play(draws)
            cost += (gap[played] * ~explored).sum(axis=0)
        exploited.append(cost.copy())
        utility.append(crowd.utility.copy())
    return {
        step: Account(
            np.array(exploited)[:, crowd.step == step],
            np.array(utility)[:, :, crowd.step == step],
        )
        for step in steps
    }


def powers(exploited: Floats, marks: Sequence[int] = MARKS) -> list[Interval]:
    """By which power of T it grows from each mark to the next: √T would be 0.5, a floor
    1.
    """
    growth = np.diff(np.log(exploited), axis=0) / np.diff(np.log(marks))[:, None]
    return [interval(of_clients) for of_clients in growth]


def long_table(rows: Rows) -> str:
    """What exploitation costs per play, and how fast that grows."""
    last = ["from", *(f"{mark:,}" for mark in MARKS[-2:])]
    lines = [["plays", *(f"{mark:,}" for mark in MARKS)]]
    lines[0].append(f"{last[0]} {last[1]} to {last[2]} like T to the power of")
    for step in STEPS:
        exploited = rows.over("exploitation, long", f"step {step}", MARKS).T
        costs = (
            str(interval(cost / mark))
            for mark, cost in zip(MARKS, exploited, strict=True)
        )
        lines.append([f"step {step}", *costs, str(powers(exploited)[-1])])
    return markdown(lines)


def utilities_table(rows: Rows) -> str:
    """Mean utilities after all plays beside the means of the arms."""
    lines = [["arm's mean", *(f"its utility, step {step}" for step in STEPS)]]
    for mean in CLOSE:
        at_end = (
            rows.values(f"utility of {mean}", f"step {step}", MARKS[-1])
            for step in STEPS
        )
        lines.append([f"{mean}", *(f"{utilities.mean():.2f}" for utilities in at_end)])
    return markdown(lines)


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    rows = Rows.read()
    return {"long": long_table(rows), "utilities": utilities_table(rows)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=24)
    accounts = exploitation(STEPS, parser.parse_args().clients)
    rows = Rows.read()
    for step, account in accounts.items():
        for mark, cost in zip(MARKS, account.exploited, strict=True):
            rows.put("exploitation, long", f"step {step}", mark, cost)
        for mean, utilities in zip(CLOSE, account.utility[-1], strict=True):
            rows.put(f"utility of {mean}", f"step {step}", MARKS[-1], utilities)
    rows.save()
    write_page("theory_steps")


if __name__ == "__main__":
    main()
