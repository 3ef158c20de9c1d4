"""Whether the best strategy changes in the course of training: an oracle beside ASCEND's runs.

Before every 25th round the whole state is forked, and each client plays each strategy in turn,
everybody else playing what they play (`simfed.study.regret`). What is kept of it: each strategy's reward,
per client and sampled round.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
from campaign import STUDIES
from results import FIXED

import simfed
from simfed.report.statistics import Estimate, estimate_mean

FOLDER = "oracle-runs"
"""Beside the compact results."""
KS, SEEDS, EVERY = (1000, 5000), (0, 1, 2), 25
REWARDS = {"reward_raw": "unclipped", "reward": "clipped"}
"""Columns of what is kept: rewards as they are, and as the policy that ran was paid them."""
_KEPT = ["round", "client", "prototype", "arm", "played", "choice", "reward_raw", "reward"]


def play(out: Path, folder: Path) -> None:
    """Every run that is missing; some three minutes each."""
    from simfed.study.regret import run_with_oracle

    for k, seed in itertools.product(KS, SEEDS):
        if _file(folder, k, seed).exists():
            continue
        scenario = simfed.load_scenario(
            STUDIES / "mnist.yaml", overrides={"compression.k": k, "seed": seed}
        )
        _, table = run_with_oracle(
            scenario, out / f"k{k}-seed{seed}", every=EVERY, overwrite=True, workers=1
        )
        keep(table, k, seed, folder)


def keep(table: pd.DataFrame, k: int, seed: int, folder: Path) -> None:
    """What the page needs of a run's samples, in a few kilobytes."""
    folder.mkdir(exist_ok=True)
    columns = table[_KEPT].assign(played=table["played"].astype(int))
    columns.to_csv(
        _file(folder, k, seed),
        index=False,
        float_format="%.6g",
        compression={"method": "gzip", "mtime": 0},
    )


def samples(k: int, folder: Path, reward: str = "reward_raw") -> dict[int, pd.DataFrame]:
    """Seed → one row per client and sampled round: who, when, each strategy's reward, that of what
    was played, and for each strategy whether it was chosen (`chosen top-k`; NaN where the client was
    not free) and whether it would have been best (`best top-k`: a share where the clip makes some
    equal)."""
    by_seed = {}
    for seed in SEEDS:
        file = _file(folder, k, seed)
        if not file.exists():
            continue
        table = pd.read_csv(file)
        keys = ["round", "client", "prototype"]
        wide = table.pivot_table(index=keys, columns="arm", values=reward).reset_index()
        played = table[table["played"] == 1].set_index(keys)
        free = played["arm"].where(played["choice"].isin(["explore", "exploit"]))
        index = wide.set_index(keys).index
        arms = wide[list(FIXED)]
        best = arms.eq(arms.max(axis=1), axis=0)
        shares = best.div(best.sum(axis=1), axis=0).add_prefix("best ")
        chosen = index.map(free)
        for arm in FIXED:
            shares[f"chosen {arm}"] = np.where(chosen.isna(), np.nan, chosen == arm)
        by_seed[seed] = wide.assign(played=index.map(played[reward])).join(shares)
    return by_seed


def shares_over_thirds(
    which: str, k: int, prototype: str, folder: Path, reward: str = "reward_raw"
) -> dict[str, tuple[float, float, Estimate]]:
    """Strategy → in which share of a prototype's pulls it was `best`, or of its free choices
    `chosen`, in the first third of the run and in the last, and the change over seeds."""
    shares: dict[str, list[tuple[float, float]]] = {arm: [] for arm in FIXED}
    for table in samples(k, folder, reward).values():
        for arm in FIXED:
            each = table[f"{which} {arm}"]
            thirds = [
                float(each[rows].mean()) for rows in _thirds(table, table["prototype"] == prototype)
            ]
            shares[arm].append((thirds[0], thirds[2]))
    return {
        arm: (
            float(np.mean([early for early, _ in each])),
            float(np.mean([late for _, late in each])),
            estimate_mean([late - early for early, late in each]),
        )
        for arm, each in shares.items()
        if each
    }


def gain_over_time(
    k: int, folder: Path, reward: str = "reward_raw"
) -> list[tuple[float, float, float]]:
    """In each third of the run, the share of what can be gained over a random choice that ASCEND
    gains, and that the strategy gains which is best for each prototype over the run; and the share
    of pulls on which ASCEND played the best one."""
    thirds = []
    tables = list(samples(k, folder, reward).values())
    for third in range(3):
        gains = []
        for table in tables:
            there = _thirds(table, pd.Series(True, index=table.index))[third]
            arms = table.loc[there, list(FIXED)]
            best, random = arms.max(axis=1), arms.mean(axis=1)
            fixed = pd.Series(0.0, index=arms.index)
            for prototype, rows in table[there].groupby("prototype"):
                everywhere = table[table["prototype"] == prototype][list(FIXED)].mean()
                fixed[rows.index] = arms.loc[rows.index, everywhere.idxmax()]
            room = float((best - random).mean())
            gains.append(
                (
                    float((table.loc[there, "played"] - random).mean()) / room,
                    float((fixed - random).mean()) / room,
                    float((table.loc[there, "played"] >= best).mean()),
                )
            )
        thirds.append(tuple(np.mean(gains, axis=0)))
    return thirds


def _thirds(table: pd.DataFrame, there: pd.Series) -> list[pd.Series]:
    last = table["round"].max()
    third = np.minimum(3 * (table["round"] - 1) // last, 2)
    return [there & (third == i) for i in range(3)]


def _file(folder: Path, k: int, seed: int) -> Path:
    return folder / f"k{k}-seed{seed}.csv.gz"
