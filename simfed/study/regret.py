"""Regret inside a run: what every arm would have brought, on a sample of its rounds.

Before a sampled round the whole state is forked, clock and learning alike. One fork plays the round
as the run is about to; then, for each client that chooses in it and each other arm, a fork plays it
with that client's choice replaced. The reward of that client is written down and the fork thrown
away, so the run itself goes on as if nobody had looked. What is modelled: everything that a run
models, for one round: the client's own time, the links it shares, the merge with the others'
uploads, what the safeguard does. Other clients play what they play in the run. What is ignored:
everything after that round. An arm that leaves a better residual, or teaches the policy more, is
paid nothing for it, so the regret is that of single steps and not of whole runs.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from simfed.compress.choice import Choice
from simfed.experiment.assembly import Parts
from simfed.experiment.running import (
    Progress,
    RunResult,
    build_simulation,
    make_method_workload,
    run,
)
from simfed.ground.errors import InputError, Interrupted
from simfed.policy import Policy, Pull
from simfed.policy.base import Wrapped
from simfed.record.recorder import Recorder
from simfed.report.statistics import compute_half_width
from simfed.scenario import Scenario

if TYPE_CHECKING:
    from simfed.fleet.contract import Workload
    from simfed.record.checkpoint import Checkpoint
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

    Intervals are 95 %, over the means of the sampled rounds as if these were independent.
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
    """The regret of the best single arm on the same pulls, chosen in hindsight; NaN where no arm
    is everybody's."""
    fixed_arm: str
    """Empty where no arm is everybody's."""
    hits: float
    """Share of pulls that played a best arm."""


def run_with_oracle(
    scenario: Scenario,
    out: str | Path | None = None,
    *,
    every: int = 10,
    source: str | Path | None = None,
    workers: int | None = None,
    device: str = "cpu",
    overwrite: bool = False,
    progress: bool | Progress = True,
) -> tuple[RunResult, pd.DataFrame]:
    """Play a scenario; the run, and a `RegretSample` per arm, client and round that is a multiple
    of `every` (from the second round on). The run is the same bit for bit as without an oracle.

    Rounds in which the server forces the arm, and clients whose policy does not learn, have none.
    Raises: as `simfed.run`; `InputError` for a server that merges uploads of other rounds, and
    where nobody chooses.
    """
    _check_scenario(scenario, every)
    samples: list[RegretSample] = []

    @contextlib.contextmanager
    def beside(parts: Parts, simulation: Simulation) -> Iterator[Progress]:
        with contextlib.closing(make_method_workload(parts, 1, device)) as workload:
            oracle = _Oracle(parts, workload)

            def look(round: int, time_s: float, accuracy: float | None) -> None:
                if (round + 1) % every == 0 and round < scenario.rounds:
                    samples.extend(oracle.samples(simulation.checkpoint()))

            yield look

    result = run(
        scenario,
        out,
        source=source,
        workers=workers,
        device=device,
        overwrite=overwrite,
        progress=progress,
        beside=beside,
    )
    return result, pd.DataFrame(samples, columns=list(RegretSample._fields))


def regret_of(samples: pd.DataFrame) -> Regret:
    """The regret of a table of `RegretSample` rows. Raises: `InputError` for an empty one.

    >>> rows = [RegretSample(2, 0, "p", "a", True, "exploit", 0.1, 0.1),
    ...         RegretSample(2, 0, "p", "b", False, "exploit", 0.4, 0.4)]
    >>> regret = regret_of(pd.DataFrame(rows))
    >>> round(regret.regret, 3), round(regret.random, 3), regret.fixed_arm, regret.hits
    (0.3, 0.15, 'b', 0.0)
    """
    if not len(samples):
        raise InputError("at least one sampled pull", problem="no pull was sampled")
    table = samples.pivot_table(index=["round", "client"], columns="arm", values="reward")
    # an arm that a client may not play has no reward there
    played = samples[samples["played"]].set_index(["round", "client"])["reward"].loc[table.index]
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
            "a policy that learns from rewards", where="policy.kind", got=policies[0].kind
        )
    for policy in policies:
        if policy.learns and policy.sets_k:
            raise InputError(
                "a policy that chooses among arms: one that sets K has no others to compare with",
                where="policy.kind",
                got=policy.kind,
            )


class _Oracle:
    """Forks a run, with a learning side of its own that every fork begins anew with."""

    def __init__(self, parts: Parts, workload: Workload) -> None:
        self._parts = parts
        self._workload = workload

    def samples(self, checkpoint: Checkpoint) -> Iterator[RegretSample]:
        """All arms of all who choose in the round after `checkpoint`."""
        facts = copy.deepcopy(checkpoint.facts)  # the run goes on with what it was made of
        before = type(checkpoint)(checkpoint.round, facts, checkpoint.arrays)
        for client, row in self._fork(before, None).items():
            if row["choice"] == "forced" or row["reward"] is None:
                continue
            group = self._parts.group(client)
            rows = {
                arm: row if arm.label == row["arm"] else self._fork(before, (client, arm))[client]
                for arm in self._parts.scenario.arms_of_group(group)
            }
            if any(result["reward"] is None for result in rows.values()):
                continue  # nothing to compare with
            for arm, result in rows.items():
                yield RegretSample(
                    round=row["round"],
                    client=client,
                    prototype=row["prototype"],
                    arm=arm.label,
                    played=result is row,
                    choice=row["choice"],
                    reward_raw=result["reward_raw"],
                    reward=result["reward"],
                )

    def _fork(
        self, checkpoint: Checkpoint, forced: tuple[int, Choice] | None
    ) -> dict[int, dict[str, Any]]:
        """Client → its row of the next round, played from `checkpoint`; `forced`: one client
        and its arm."""

        def make_policy(client: int) -> Policy:
            policy = self._parts.policy(client)
            if forced is not None and forced[0] == client:
                return _FixedArm(policy, forced[1])
            return policy

        recorder = Recorder(own=self._parts.own_columns)
        fork = build_simulation(self._parts, self._workload, recorder, make_policy)
        fork.restore(
            type(checkpoint)(checkpoint.round, copy.deepcopy(checkpoint.facts), checkpoint.arrays)
        )
        with contextlib.suppress(Interrupted):
            fork.run(stop_requested=lambda: True)
        rows = recorder.table("participations").to_pylist()
        return {row["client"]: row for row in rows if row["round"] == checkpoint.round + 1}


class _FixedArm(Wrapped):
    """A client's policy that plays a given arm, whatever it would have chosen."""

    draws = False

    def __init__(self, policy: Policy, arm: Choice) -> None:
        super().__init__(policy)
        self._arm = arm

    def pull(self, rng: np.random.Generator) -> Pull:
        return Pull(self._arm, "explore")

    def update(self, pull: Pull, reward: float) -> None:
        """Nothing is learned: the fork ends here."""

    def void(self, pull: Pull) -> None:
        """Nothing is learned: the fork ends here."""
