"""Regret inside a run: what every arm would have brought, on a sample of its rounds.

    python analysis/regret.py scenarios/quickstart.yaml --every 50
        [--policies ascend,ucb]

At the border before a sampled round this process is forked. One fork plays the round as
the run is about to; then, for each client that chooses in it and each other arm, a fork
plays it with that client's choice replaced. The reward of that client is written down
and the fork ends, so the run itself goes on as if nobody had looked. What is modelled:
everything that a run models, for one round: the client's own time, the links it shares,
the merge with the others' uploads, what the safeguard does. Other clients play what
they play in the run. What is ignored: everything after that round. An arm that leaves a
better residual, or teaches the policy more, is paid nothing for it, so the regret is
that of single steps and not of whole runs. One process, on a processor.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from simfed.compress.choice import Choice
from simfed.experiment.assembly import Parts
from simfed.experiment.running import Progress, RunResult, run
from simfed.ground.errors import InputError
from simfed.ground.registry import registry
from simfed.policy import Policy, Pull
from simfed.report.statistics import compute_half_width
from simfed.scenario import Scenario, load_scenario

if TYPE_CHECKING:
    from simfed.sim import Simulation


class RegretSample(NamedTuple):
    """What one arm brought one client, or would have brought it, in one round."""

    round: int
    client: int
    prototype: str
    arm: str
    played: bool
    """Whether it is what the run played."""
    choice: str
    """Why the run played what it played: warm-up, explore, exploit."""
    reward_raw: float
    """Gain per simulated second of the client's own time."""
    reward: float
    """`reward_raw` within the reward's clip: what a policy is told."""


class Regret(NamedTuple):
    """The regret of a policy per pull of the sampled rounds, in clipped rewards.

    Intervals are 95 %, over the means of the sampled rounds as if these were
    independent.
    """

    pulls: int
    rounds: int
    played: float
    """Mean reward of what was played."""
    best: float
    """Mean of the best arm's reward, chosen anew for each pull."""
    regret: float
    low: float
    high: float
    random: float
    """The regret of a uniformly random arm on the same pulls."""
    fixed: float
    """The regret of the best single arm on the same pulls, chosen in hindsight; NaN
    where no arm is everybody's."""
    fixed_arm: str
    """Empty where no arm is everybody's."""
    hits: float
    """Share of pulls that played a best arm."""


def run_with_oracle(
    scenario: Scenario,
    *,
    every: int = 10,
    source: str | Path | None = None,
    progress: bool | Progress = True,
) -> tuple[RunResult, pd.DataFrame]:
    """Play a scenario in memory.

    The run, and a `RegretSample` per arm, client and round that is a multiple of
    `every` (from the second round on). The run is the same bit for bit as without an
    oracle.

    Rounds in which the server forces the arm, and clients whose policy does not learn,
    have none. Raises: as `simfed.run`; `InputError` for a server that merges uploads of
    other rounds, and where nobody chooses.
    """
    _check_scenario(scenario, every)
    samples: list[RegretSample] = []

    @contextlib.contextmanager
    def beside(parts: Parts, simulation: Simulation) -> Iterator[Progress]:
        oracle = _Oracle(parts, simulation)

        def look(round: int, time_s: float, accuracy: float | None) -> None:
            oracle.end_fork(round)
            if (round + 1) % every == 0 and round < scenario.rounds:
                samples.extend(oracle.samples(round + 1))

        yield look

    result = run(scenario, source=source, workers=1, progress=progress, beside=beside)
    return result, pd.DataFrame(samples, columns=list(RegretSample._fields))


def regret_of(samples: pd.DataFrame) -> Regret:
    """The regret of a table of `RegretSample` rows.

    Raises: `InputError` for an empty one.

    >>> rows = [RegretSample(2, 0, "p", "a", True, "exploit", 0.1, 0.1),
    ...         RegretSample(2, 0, "p", "b", False, "exploit", 0.4, 0.4)]
    >>> regret = regret_of(pd.DataFrame(rows))
    >>> round(regret.regret, 3), round(regret.random, 3), regret.fixed_arm, regret.hits
    (0.3, 0.15, 'b', 0.0)
    """
    if not len(samples):
        raise InputError("at least one sampled pull", problem="no pull was sampled")
    table = samples.pivot_table(
        index=["round", "client"], columns="arm", values="reward"
    )
    # an arm that a client may not play has no reward there
    played = (
        samples[samples["played"]]
        .set_index(["round", "client"])["reward"]
        .loc[table.index]
    )
    best = table.max(axis=1)
    lost = best - played
    means = lost.groupby("round").mean()
    half = compute_half_width(means.tolist())
    everybodys = table.dropna(axis="columns")
    fixed_arm = str(everybodys.mean().idxmax()) if len(everybodys.columns) else ""
    fixed = everybodys[fixed_arm] if fixed_arm else math.nan
    regret = float(lost.mean())
    return Regret(
        pulls=len(table),
        rounds=len(means),
        played=float(played.mean()),
        best=float(best.mean()),
        regret=regret,
        low=max(regret - half, 0.0),  # nothing beats the best; NaN stays
        high=regret + half,
        random=float((best - table.mean(axis=1)).mean()),
        fixed=float((best - fixed).mean()),
        fixed_arm=fixed_arm,
        hits=float((lost <= 0).mean()),
    )


def _check_scenario(scenario: Scenario, every: int) -> None:
    if every < 1:
        raise InputError("a whole number of at least 1", where="every", got=every)
    mode = scenario.aggregation.mode
    if mode != "synchronous":
        allowed = "synchronous, where a round's uploads are paid in that round"
        raise InputError(allowed, where="aggregation.mode", got=mode)
    policies = [scenario.policy_of_group(group) for group in scenario.clients]
    if not any(policy.learns for policy in policies):
        raise InputError(
            "a policy that learns from rewards",
            where="policy.kind",
            got=policies[0].kind,
        )
    for policy in policies:
        if policy.learns and policy.sets_k:
            raise InputError(
                "a policy that chooses among arms: one that sets K has no others to "
                "compare with",
                where="policy.kind",
                got=policy.kind,
            )


class _Forked(BaseException):
    """Leaves `samples` in a fork, which goes on with the round."""


class _Oracle:
    """Forks this process at a round's border."""

    def __init__(self, parts: Parts, simulation: Simulation) -> None:
        self._parts, self._simulation = parts, simulation
        self._tells: int | None = None
        """In a fork: the pipe that its rows go to."""

    def end_fork(self, round: int) -> None:
        """A fork has played its round: it tells the rows, and is over."""
        if self._tells is None:
            return
        rows = self._simulation._recorder.table("participations").to_pylist()
        told = json.dumps([row for row in rows if row["round"] == round])
        with os.fdopen(self._tells, "w") as file:
            file.write(told)
        os._exit(0)

    def samples(self, round: int) -> list[RegretSample]:
        """All arms of all who choose in this round.

        Nothing, in a fork that is to play it.
        """
        try:
            return list(self._samples(round))
        except _Forked:
            return []

    def _samples(self, round: int) -> Iterator[RegretSample]:
        for client, row in self._fork(None).items():
            if row["choice"] == "forced" or row["reward"] is None:
                continue
            group = self._parts.group(client)
            rows = {
                arm: row
                if arm.label == row["arm"]
                else self._fork((client, arm))[client]
                for arm in self._parts.scenario.arms_of_group(group)
            }
            if any(result["reward"] is None for result in rows.values()):
                continue  # nothing to compare with
            for arm, result in rows.items():
                yield RegretSample(
                    round=round,
                    client=client,
                    prototype=row["prototype"],
                    arm=arm.label,
                    played=result is row,
                    choice=row["choice"],
                    reward_raw=result["reward_raw"],
                    reward=result["reward"],
                )

    def _fork(self, forced: tuple[int, Choice] | None) -> dict[int, dict[str, Any]]:
        """Client → its row of the round, played from here.

        `forced`: one client and its arm.
        """
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read)
            self._tells = write
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            if forced is not None:
                client, arm = forced
                policies = self._simulation._population._policies
                policies[client] = _FixedArm(
                    self._simulation._population.policy(client), arm
                )
            raise _Forked
        os.close(write)
        with os.fdopen(read) as file:
            told = file.read()
        os.waitpid(pid, 0)
        if not told:
            raise RuntimeError("a fork of the run ended before its round")
        return {row["client"]: row for row in json.loads(told)}


class _FixedArm(Policy):
    """A client's policy that plays a given arm, whatever it would have chosen."""

    draws = False

    def __init__(self, policy: Policy, arm: Choice) -> None:
        self.arms, self.learns = policy.arms, policy.learns
        self._policy, self._arm = policy, arm

    def pull(self, rng: np.random.Generator) -> Pull:
        return Pull(self._arm, "explore")

    def values(self) -> tuple[float, ...]:
        return self._policy.values()

    def update(self, pull: Pull, reward: float) -> None:
        """Nothing is learned: the fork ends here."""

    def void(self, pull: Pull) -> None:
        """Nothing is learned: the fork ends here."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument(
        "--policies", default="", help="kinds that learn, or `all` of them"
    )
    parser.add_argument("--out", type=Path, help="a CSV file for the rewards")
    asked = parser.parse_args()
    base = load_scenario(asked.scenario)
    kinds = asked.policies.split(",") if asked.policies else [base.policy.kind]
    if kinds == ["all"]:
        learns = {
            name: registry("policy").get(name) for name in registry("policy").names()
        }
        kinds = [k for k, of in learns.items() if of.learns and not hasattr(of, "ends")]
    tables, regrets = [], {}
    for kind in kinds:
        policy = {"kind": kind, "reward": base.policy.reward.model_dump(mode="json")}
        chosen = {} if kind == base.policy.kind else {"policy": policy}
        scenario = load_scenario(asked.scenario, chosen)
        _, samples = run_with_oracle(scenario, every=asked.every, source=asked.scenario)
        tables.append(samples.assign(policy=kind))
        regrets[kind] = regret_of(samples)._asdict()
    print(pd.DataFrame(regrets).T.sort_values("regret").to_string())
    if asked.out is not None:
        pd.concat(tables).to_csv(asked.out, index=False)


if __name__ == "__main__":
    main()
