"""Rows of the source's evaluation: a run each, of the studies in scenarios/paper.

    simfed study run scenarios/paper/mnist-k.yaml --out studies/mnist-k
    # keeps rows of runs that have none yet
    python analysis/paper_rows.py studies/mnist-k

A row of paper.parquet is a run: its setting and seed, its curves as lists over
evaluations or rounds; `smaller` and `larger` are the two prototypes' accuracies, `_kd`
their distillation losses, `_chose` how often each of `FIXED` was played by free choice.
Rows of `cifar10-stacks` have no times, and the mean of both prototypes in either place.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from kept import KeptStudy, provenance_of
from scipy import stats

import simfed
from simfed.report.statistics import Estimate, PairedTimes, compare_times, estimate_mean
from simfed.scenario import Scenario

ROWS = Path(__file__).with_name("paper.parquet")
FIXED = ("top-k", "random-k", "periodic-k")
USUAL = {
    "dataset": "mnist",
    "rounds": 1000,
    "public": 256,
    "k": 1000,
    "alpha": 0.5,
    "up_mbps": 50,
    "variant": "",
}
KEYS = (*USUAL, "policy", "rho", "beta", "c")
TAKEN = {
    "credit": "causal",
    "f_n": "probe",
    "clip": "[-1.0, 1.0]",
    "safeguard": "on",
    "compression ×": "1",
    "local steps": "1",
    "distillation ×": "1",
    "residuals": "restored",
    "reference": "last-accepted",
    "forces": "top-k",
    "in a row": "1",
}
"""Open points as they are taken; a row's `variant` says what differs."""
MEASURES: dict[str, Callable[[Any], float]] = {
    "the last evaluation": lambda curve: curve[-1],
    "the mean of the last ten": lambda curve: curve[-10:].mean(),
    "the mean of all evaluations of a run": lambda curve: curve.mean(),
}
"""What may count as a run's accuracy, of its curve."""
LAST = next(iter(MEASURES))
Runs = dict[int, Any]
"""Seed → row."""


def setting(scenario: Scenario) -> dict[str, Any]:
    """Return what tells a run from others of the evaluation, seed aside."""
    said = scenario.model_dump(mode="json")
    policy, safe, rate = (
        said["policy"],
        said["safeguard"],
        said["training"]["learning_rate"],
    )
    reward, back = policy.get("reward") or {}, safe["rollback"] or {}
    local, scale = (
        reward.get("local_loss", {}),
        said["clients"][0]["device"]["scale"] or {},
    )
    here = {
        "credit": local.get("credit"),
        "f_n": local.get("data"),
        "clip": reward and (reward["clip"] or "none"),
        "safeguard": policy["kind"] == "ascend" and not back and "off",
        "compression ×": f"{scale.get('compression') or 1:g}",
        "local steps": said["training"]["local_steps"],
        "distillation ×": f"{(said['distillation']['learning_rate'] or rate) / rate:g}",
        "residuals": back and safe["residuals"]["kind"],
        "reference": back and safe["reference"]["kind"],
        "forces": back and safe["forces"],
        "in a row": back.get("max_consecutive"),
    }
    changed = [f"{k} {v}" for k, v in here.items() if v and str(v) != TAKEN[k]]
    return {
        "dataset": said["dataset"]["name"],
        "rounds": said["rounds"],
        "public": said["dataset"]["public"],
        "k": said["compression"]["k"],
        "alpha": said["dataset"]["partition"]["alpha"],
        "up_mbps": round(
            float(scenario.clients[0].link.up) * 8 / 1e6,  # type: ignore[arg-type]
            6,
        ),
        "variant": ", ".join(changed),
        "policy": policy.get("strategy") or policy["kind"],
        "rho": reward.get("rho"),
        "beta": reward.get("beta"),
        "c": policy.get("c"),
    }


def row_of(run: Any) -> dict[str, Any]:
    """Return the row of a finished run."""
    scenario = simfed.load_scenario(run.path / "scenario.yaml")
    rounds, plays = run.rounds.set_index("round"), run.participations
    wide = run.prototypes.pivot(index="round", columns="prototype")
    tested, losses = wide["test_accuracy"].dropna(), wide["kd_loss"]
    free = plays[~plays["choice"].isin(["warm-up", "forced"])]
    rewarded, phases_s = plays.dropna(subset=["reward"]), run.summary["phases_s"]
    work_s = sum(
        phases_s[f"{name}_s"] for name in ("training", "compression", "uplink")
    )
    row = setting(scenario) | {
        "seed": scenario.seed,
        "simulated_s": run.summary["simulated_s"],
        "uplink_bytes": run.summary["uplink_bytes"],
        "compression_share": phases_s["compression_s"] / work_s,
        "random": int(plays["choice"].isin(["warm-up", "explore"]).sum()),
        "forced": int((plays["choice"] == "forced").sum()),
        "rewards": len(rewarded),
        "clipped": int((rewarded["reward"] != rewarded["reward_raw"]).sum()),
        "round": tested.index.to_numpy(),
        "at_s": rounds["finished_at_s"].loc[tested.index].to_numpy(),
        "undone": rounds.index[rounds["rolled_back"]].to_numpy(),
        "rollbacks": run.summary["rollbacks"],
        "wall_s": run.manifest["wall_s"]["total"],
        "device": run.manifest["device"],
    }
    models = sorted(scenario.prototypes, key=("lenet5", "resnet18").__contains__)
    for name, model in zip(("smaller", "larger"), models, strict=True):
        arms = free.loc[free["prototype"] == model, "arm"]
        row |= {name: tested[model].to_numpy(), f"{name}_kd": losses[model].to_numpy()}
        row[f"{name}_chose"] = [int((arms == arm).sum()) for arm in FIXED]
    return row


STUDIES = [
    KeptStudy(path, {}, lambda run, curve: row_of(run), told=setting)
    for path in sorted((ROWS.parents[1] / "scenarios" / "paper").glob("*.yaml"))
    if "base" in yaml.safe_load(path.read_text("utf-8"))
]


def add(study: str) -> int:
    """Keep the rows of a study's finished runs of which there is none.

    How many these are.
    """
    kept = pd.read_parquet(ROWS)
    known = set(_keys(kept))
    made = pd.DataFrame(
        [
            row_of(run) | provenance_of(run, entry["address"])
            for entry, run in simfed.load_study(study).finished
        ]
    )
    made = made[[key not in known for key in _keys(made)]] if len(made) else made
    if len(made):
        write(pd.concat([kept, made]))
    return len(made)


def write(table: pd.DataFrame) -> None:
    """Keep these rows, in order of their settings."""
    ordered = table.sort_values([*KEYS, "seed"], ignore_index=True)
    losses = [f"{name}_kd.list.element" for name in ("smaller", "larger")]
    ordered.to_parquet(
        ROWS,
        index=False,
        compression="zstd",
        compression_level=19,
        use_dictionary=["dataset", "policy", "variant", "device", "code"],
        use_byte_stream_split=losses,
    )


def _keys(table: pd.DataFrame) -> list[tuple[Any, ...]]:
    names = table[[*KEYS, "seed"]].astype(object)
    return list(names.where(names.notna(), None).itertuples(index=False, name=None))


class Rows:
    """The kept runs by their setting, whose accuracy is taken by a measure."""

    def __init__(self, measure: str = LAST) -> None:
        table = pd.read_parquet(ROWS).assign(measure=measure)
        self.stacks = table[table["dataset"] == "cifar10-stacks"]
        table = table.drop(self.stacks.index)
        table["accuracy"] = (table["smaller"] + table["larger"]) / 2
        bare = table.astype(object).where(table.notna(), None)
        self.all: list[Any] = list(bare.itertuples(index=False))
        self._of: dict[tuple[Any, ...], Runs] = {}
        for run, key in zip(self.all, _keys(table), strict=True):
            self._of.setdefault(key[:-1], {})[run.seed] = run

    def of(self, policy: str, **changes: Any) -> Runs:
        """Return the runs of a setting by seed; none where there are none."""
        at = {**USUAL, "policy": policy}
        if policy in ("exp3", "ascend"):
            at |= {"rho": 0.6, "beta": 0.4, "c": 3 if policy == "ascend" else None}
        at |= changes
        return self._of.get(tuple(at.get(name) for name in KEYS), {})

    def at(self, **changes: Any) -> Callable[[str], Runs]:
        """Return what gives each policy's runs of a setting."""
        return lambda policy: self.of(policy, **changes)


# --- numbers of runs ------------------------------------------------------------------


def end(run: Any, curve: str = "accuracy") -> float:
    """Return a run's accuracy by its measure."""
    return float(MEASURES[run.measure](getattr(run, curve)))


def mean(run: Any) -> float:
    """Return accuracy averaged over a run's evaluations."""
    return float(run.accuracy.mean())


def until(run: Any, at_s: float) -> float:
    """Return the accuracy of the last evaluation not later than this."""
    done = int((run.at_s <= at_s).sum())
    return float(run.accuracy[done - 1]) if done else math.nan


def at_equal_time(a: Any, b: Any) -> float:
    """Return the difference in accuracy when the first of two runs ended."""
    end_s = min(a.at_s[-1], b.at_s[-1])
    return until(a, end_s) - until(b, end_s)


def first_s(run: Any, level: float) -> tuple[float, bool]:
    """Return when accuracy first was at least this, or else when the run ended; which.

    Between two evaluations it is taken to rise in a straight line.
    """
    there = run.accuracy >= level
    if not there.any():
        return run.simulated_s, False
    two = slice(max(0, int(there.argmax()) - 1), int(there.argmax()) + 1)
    return float(np.interp(level, run.accuracy[two], run.at_s[two])), True


def lead(run: Any, model: str, arm: str) -> float:
    """Return by how much a strategy's share of free choices is above the next one's."""
    chose = getattr(run, f"{model}_chose")
    return float(
        (chose[FIXED.index(arm)] - max(np.delete(chose, FIXED.index(arm))))
        / chose.sum()
    )


def evenness(run: Any, model: str) -> float:
    """Return the least chosen strategy's share less the most chosen's."""
    chose = getattr(run, f"{model}_chose")
    return float((min(chose) - max(chose)) / chose.sum())


def more_even(run: Any) -> float:
    """Return by how much the larger prototype chooses more evenly."""
    return evenness(run, "larger") - evenness(run, "smaller")


def shift(before: Any, after: Any, model: str) -> float:
    """Return how much the share of Random-K has grown."""
    shares = [getattr(run, f"{model}_chose") for run in (before, after)]
    return float(shares[1][1] / shares[1].sum() - shares[0][1] / shares[0].sum())


def over(measure: Callable[..., float], *several: Runs) -> tuple[Estimate, int]:
    """Return the mean of a number made of the runs of one seed, and over how many
    seeds.
    """
    seeds = sorted(set.intersection(*map(set, several)))
    return estimate_mean([measure(*(runs[s] for runs in several)) for s in seeds]), len(
        seeds
    )


def gap(a: Runs, b: Runs, of: Callable[[Any], float] = end) -> Estimate:
    """Return accuracy of `a` less that of `b`."""
    return over(lambda one, other: of(one) - of(other), a, b)[0]


def ratio(a: Runs, b: Runs, level: float = 0.9) -> PairedTimes:
    """Return how many times sooner `a` reached an accuracy than `b`."""
    seeds = sorted(set(a) & set(b))
    times = [[first_s(runs[s], level) for s in seeds] for runs in (a, b)]
    columns: Any = [[one[i] for one in each] for each in times for i in (0, 1)]
    return compare_times(*columns)


def spread_of(table: np.ndarray) -> tuple[float, int]:
    """Return the deviation, and its degrees of freedom, of what is left of a table of
    settings × seeds once the levels of both are taken out: one variance for all.
    """
    left = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    return math.sqrt(float((left**2).sum()) / max(freedom, 1)), freedom


def around(middle: float, error: float, freedom: int) -> Estimate:
    """Return Student's t interval of a number of known error."""
    half = float(stats.t.ppf(0.975, freedom)) * error if freedom else math.nan
    return Estimate(
        middle, middle, middle - half, middle + half, 0.95 if freedom else 0.0
    )


def powers(e: Estimate) -> Estimate:
    """Return the estimate of a ratio from that of its logarithm."""
    least, low, high = map(math.exp, (e.least, e.low, e.high))
    return Estimate(least, least, low, high, e.coverage)


def points(e: Estimate, digits: int = 2) -> str:
    """Return an estimate in percentage points with its interval."""
    least, low, high = (f"{100 * x:+.{digits}f}" for x in (e.least, e.low, e.high))
    return f"{least} points" + (f" [{low}, {high}]" if e.coverage else "")


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        print(f"{folder}: {add(folder)} new rows")
