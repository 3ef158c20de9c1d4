"""Learning without a clock: the Workload contract in a plain loop.

Rounds follow one another, everybody is there, every upload arrives, and a second is a
round: policies that learn are paid the gain per round, and no client is faster than
another. With a policy and a selection that do not look at time, a full run's learning
curve is the same bit for bit, whatever its network. SimPy is never imported.

This file is one round from top to bottom, and a good one to begin reading at: cohort,
tasks, pulls, execution, merge, rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from simfed.compress.choice import Choice
from simfed.fleet.columns import Fleet
from simfed.fleet.contract import Outcome, Workload
from simfed.fleet.selection import Selector
from simfed.ground.errors import InputError
from simfed.ground.seeding import Streams
from simfed.policy import Pull, gain, reward
from simfed.scenario import Scenario
from simfed.tasks.tasks import choose_pull, make_policy_maker


@dataclass(frozen=True)
class PlainRound:
    """One round of the plain loop: what was played and what came of it.

    Mappings are by client. `arms` has labels of choices, `uplink_bytes` what uploads
    would have had on the wire, `rewards` those of policies that learned.
    """

    round: int
    arms: dict[int, str]
    uplink_bytes: dict[int, float]
    rewards: dict[int, float]
    outcome: Outcome


def plain_rounds(
    scenario: Scenario,
    workload: Workload,
    streams: Streams,
    *,
    tau_s: Callable[[int, int], float] = lambda round, client: 1.0,
) -> Iterator[PlainRound]:
    """Play the scenario's rounds.

    Args:
        scenario: its network and devices are not looked at.
        workload: as `simfed.learn.HostedWorkload`; its rounds begin at 1.
        streams: of the run's seed.
        tau_s: (round, client) → the seconds in a reward's denominator, and what a
            selection is told that a participation took.

    Yields:
        A round at a time, once it is merged and policies are paid.

    Raises:
        InputError: for a server that does not wait for everybody, for clients that
            leave or fail, and for policies that watch time: what is learned then hangs
            on the clock.
    """
    _require_no_clock(scenario)
    selecting = Selector(
        scenario.participation.selection.made,
        scenario.client_count,
        lambda client: workload.task(1, client).who.samples,
    )
    fleet = Fleet(scenario, streams)
    group_of = scenario.group_of_client()
    makers = [make_policy_maker(scenario, group) for group in scenario.clients]
    policies = [makers[group]() for group in group_of]
    forced: Choice | None = None
    for round in range(1, scenario.rounds + 1):
        pulls: dict[int, Pull] = {}
        uploads = []
        for client in selecting.cohort(
            streams, round, scenario.participation.clients_per_round
        ):
            task = workload.task(round, client)
            pulls[client] = choose_pull(task, policies[client], forced, streams)
            choice = fleet.compression(task, pulls[client])
            uploads.append(workload.execute(task, choice))
        outcome = workload.merge(round, uploads)
        rewards: dict[int, float] = {}
        for upload in uploads:
            task, client = upload.task, upload.task.client
            pull = pulls[client]
            before, after = outcome.local_loss.get(task.label, (None, None))
            selecting.tell(client, tau_s(round, client), after)
            if not task.plan.longest:
                continue  # nothing was compressed, and the policy not asked
            if not policies[client].learns or pull.choice == "forced":
                policies[client].void(pull)
                continue
            rule = scenario.policy_of_group(scenario.clients[group_of[client]]).reward
            worth = gain(
                rule.rho, rule.beta,
                outcome.shared_loss_before.get(task.prototype),
                outcome.shared_loss.get(task.prototype), before, after,
            )  # fmt: skip
            _, rewards[client] = reward(worth, tau_s(round, client), rule.bounds)
            policies[client].update(pull, rewards[client])
        forced = None if outcome.forced_arm is None else Choice(outcome.forced_arm)
        yield PlainRound(
            round,
            {client: pull.arm.label for client, pull in pulls.items()},
            {upload.task.client: upload.uplink_bytes() for upload in uploads},
            rewards,
            outcome,
        )


def _require_no_clock(scenario: Scenario) -> None:
    """Refuse a scenario whose learning cannot be had without its clock.

    Raises:
        InputError: with the key that asks for time.
    """
    mode = scenario.aggregation.mode
    if mode != "synchronous":
        raise InputError(
            "mode synchronous in learning without a clock",
            where="aggregation.mode",
            got=mode,
        )
    if scenario.aggregation.edge_servers is not None:
        raise InputError(
            "null in learning without a clock, which has no network",
            where="aggregation.edge_servers",
        )
    if scenario.faults is not None:
        raise InputError(
            "null", where="faults", problem="without a clock nothing can go wrong"
        )
    if Fleet(scenario, Streams(scenario.seed)).presence() is not None:
        raise InputError(
            "clients that are always there",
            where="clients",
            problem="without a clock nobody comes, goes or fails",
        )
    for i, group in enumerate(scenario.clients):
        if group.local_time is not None:
            raise InputError(
                "null in learning without a clock, which counts no seconds",
                where=f"clients[{i}].local_time",
            )
        policy = scenario.policy_of_group(group)
        if policy.follows_clock:
            raise InputError(
                "a policy that needs no time in learning without a clock",
                where=f"{scenario.policy_key(i)}.kind",
                got=policy.kind,
            )
