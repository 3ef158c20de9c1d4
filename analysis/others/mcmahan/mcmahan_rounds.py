"""Rounds until McMahan's CNN is right on 99 % of MNIST's test images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ledger import HERE, STATED, Row

import simfed
from simfed.ground.errors import RunFailed

TARGET = 0.99


class Setting(NamedTuple):
    """A row of the source's table, of those that cost least."""

    epochs: int
    batch: int
    published_rounds: int
    most_rounds: int
    """After which the search ends."""


SETTINGS = (Setting(1, 10, 34, 50), Setting(1, 50, 65, 90))


def rounds_to(accuracies: Sequence[tuple[int, float]], target: float) -> float | None:
    """Where the best accuracy so far crosses the target, straight between evaluations.

    >>> rounds_to([(2, 0.90), (4, 0.98), (6, 0.97), (8, 1.0)], 0.99)
    7.0
    >>> rounds_to([(2, 0.90)], 0.99)
    """
    last_round, best = 0, 0.0
    for number, accuracy in accuracies:
        if accuracy >= target:
            return last_round + (number - last_round) * (target - best) / (accuracy - best)
        last_round, best = number, max(best, accuracy)
    return None


def compare_rows(data: Path | None = None) -> list[Row]:
    """A row per setting, one seed each; MNIST is where simfed looks for it."""
    rows = []
    for setting in SETTINGS:
        changes = {
            "rounds": setting.most_rounds,
            "training.local_epochs": setting.epochs,
            "training.batch_size": setting.batch,
        }
        scenario = simfed.load_scenario(HERE / "mcmahan" / "scenario.yaml", changes)
        measured = simfed.run(scenario, workers=1).prototypes.dropna(subset=["test_accuracy"])
        curve = list(zip(measured["round"], measured["test_accuracy"], strict=True))
        rounds = rounds_to(curve, TARGET)
        if rounds is None:
            raise RunFailed(f"{TARGET:.0%} was not reached in {setting.most_rounds} rounds")
        quantity = f"rounds to 99 %, E = {setting.epochs}, B = {setting.batch}"
        note = "one seed, rate 0.1; the source takes the best of a grid of rates"
        rows.append(Row(quantity, "rounds", setting.published_rounds, rounds, STATED, note=note))
    return rows
