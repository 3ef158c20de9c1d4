"""Rounds until McMahan's CNN is right on 99 % of MNIST's test images.

    python analysis/others/mcmahan/mcmahan_rounds.py [--device cuda] [--jobs 6]

plays what curves.csv lacks of `PLAYS`, so many at once, and adds each play's curve to
it when it is over, so it may be stopped and called again. `others.py mcmahan` makes
rows of what is there.
"""

from __future__ import annotations

import argparse
import csv
import math
import multiprocessing
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ledger import HERE, STATED, Row

import simfed
from simfed.ground.errors import RunFailed
from simfed.ground.seeding import Streams
from simfed.ground.units import counted
from simfed.learn.hosted import HostedWorkload
from simfed.learn.plain import plain_rounds
from simfed.report.statistics import estimate_mean

TARGET = 0.99
RATES = (0.1, 0.215, 0.0464)
"""Three of a grid of three per decade; the source takes the best of a grid of its
own."""
SEEDS = (0, 1, 2)
ALL = 600
"""What a client owns, which the source calls B = ∞."""
CURVES = HERE / "mcmahan" / "curves.csv"


class Setting(NamedTuple):
    """A row of the source's table."""

    epochs: int
    batch: int
    published_rounds: int
    rates: tuple[float, ...] = RATES

    @property
    def most_rounds(self) -> int:
        """After which a play ends without having reached the target."""
        return 2 * self.published_rounds


SETTINGS = (
    Setting(1, 10, 34),
    Setting(1, 50, 65),
    Setting(5, 10, 20),
    Setting(5, 50, 29),
    Setting(1, ALL, 626, (0.1, 0.215, 0.464)),
)
"""The last is the source's FedSGD, a step a round, which bears a higher rate. Those of
E = 20 are left out: a round takes four times as long as one of E = 5."""


class Play(NamedTuple):
    """One run: a setting, a learning rate and a seed."""

    epochs: int
    batch: int
    rate: float
    seed: int


Curve = list[tuple[int, float]]
"""(round, share of right answers), until the target or the last round."""

PLAYS = tuple(
    (setting, Play(setting.epochs, setting.batch, rate, seed))
    for some in (SETTINGS[:-1], SETTINGS[-1:])
    for seed in SEEDS
    for setting in some
    for rate in setting.rates
)
"""In the order in which they are done."""


def play_curve(most_rounds: int, play: Play, device: str = "cpu") -> Curve:
    """Rounds without a clock, until the target is met.

    Where the learning diverges, the curve ends with an accuracy of 0.
    """
    changes = {
        "rounds": most_rounds,
        "seed": play.seed,
        "training.local_epochs": play.epochs,
        "training.batch_size": play.batch,
        "training.learning_rate": play.rate,
    }
    scenario = simfed.load_scenario(HERE / "mcmahan" / "scenario.yaml", changes)
    streams = Streams(scenario.seed)
    workload = HostedWorkload(scenario, streams, device=device)
    curve: Curve = []
    try:
        for played in plain_rounds(scenario, workload, streams):
            for tested in played.outcome.evaluation.values():
                curve.append((played.round, tested.accuracy))
                print(*play, *curve[-1], flush=True)
            if curve and curve[-1][1] >= TARGET:
                break
    except RunFailed as error:
        print(*play, error, flush=True)
        curve.append((len(curve) + 1, 0.0))
    finally:
        workload.close()
    return curve


def rounds_to(accuracies: Sequence[tuple[int, float]], target: float) -> float | None:
    """Where the best accuracy so far crosses the target, straight between evaluations.

    >>> rounds_to([(2, 0.90), (4, 0.98), (6, 0.97), (8, 1.0)], 0.99)
    7.0
    >>> rounds_to([(2, 0.90)], 0.99)
    """
    last_round, best = 0, 0.0
    for number, accuracy in accuracies:
        if accuracy >= target:
            return last_round + (number - last_round) * (target - best) / (
                accuracy - best
            )
        last_round, best = number, max(best, accuracy)
    return None


def compare_rows(data: Path | None = None) -> list[Row]:
    """A row per setting that was played, at the rate whose mean over seeds is the
    least, among those that met the target with every seed.
    """
    curves = read_curves()
    rows = []
    for setting in SETTINGS:
        rounds: dict[float, list[float | None]] = defaultdict(list)
        for play, curve in curves.items():
            if play[:2] == setting[:2]:
                rounds[play.rate].append(rounds_to(curve, TARGET))
        met = {
            rate: [number for number in numbers if number is not None]
            for rate, numbers in rounds.items()
            if None not in numbers
        }
        if not met:
            continue
        best = min(met, key=lambda rate: statistics.fmean(met[rate]))
        mean = estimate_mean(met[best])
        notes = [f"rate {best:g}, {counted(len(met[best]), 'seed')}"]
        for rate in rounds.keys() - {best}:
            mean_rounds = (
                f"{statistics.fmean(met[rate]):.1f}"
                if rate in met
                else "not always met"
            )
            notes.append(
                f"rate {rate:g}, {counted(len(rounds[rate]), 'seed')}: {mean_rounds}"
            )
        low, high = (None, None) if math.isnan(mean.low) else (mean.low, mean.high)
        batch = "∞" if setting.batch == ALL else setting.batch
        quantity = f"rounds to 99 %, E = {setting.epochs}, B = {batch}"
        published = float(setting.published_rounds)
        note = "; ".join(notes)
        rows.append(
            Row(quantity, "rounds", published, mean.least, STATED, low, high, note)
        )
    return rows


def read_curves(path: Path = CURVES) -> dict[Play, Curve]:
    """What was played so far."""
    curves: dict[Play, Curve] = defaultdict(list)
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                key = Play(
                    int(line["epochs"]),
                    int(line["batch"]),
                    float(line["rate"]),
                    int(line["seed"]),
                )
                curves[key].append((int(line["round"]), float(line["accuracy"])))
    return dict(curves)


def add_curve(
    play: Play, curve: Iterable[tuple[int, float]], path: Path = CURVES
) -> None:
    """A play's curve behind those that are there."""
    begun = path.is_file()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not begun:
            writer.writerow([*Play._fields, "round", "accuracy"])
        writer.writerows(
            [*play, number, f"{accuracy:.4f}"] for number, accuracy in curve
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--jobs", type=int, default=1, help="plays at once, a process each"
    )
    arguments, played = parser.parse_args(), read_curves()
    with ProcessPoolExecutor(
        arguments.jobs, multiprocessing.get_context("spawn")
    ) as pool:
        plays = {
            pool.submit(play_curve, setting.most_rounds, play, arguments.device): play
            for setting, play in PLAYS
            if play not in played
        }
        for ended in as_completed(plays):
            add_curve(plays[ended], ended.result())


if __name__ == "__main__":
    main()
