"""Everything that a run directory says, recomputed from its scenario as far as it follows from it.

`simfed.record.verify` holds the files against each other. Here the scenario is taken up again with
the parts that play it: who takes part, K, what travels, and what every client's policy thought,
chose (from its keyed draws) and was told, round after round. What is not recomputed is what the
world gave: the losses and accuracies that learning came to, and the durations drawn for devices.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from simfed.assembly import Parts
from simfed.contract import FORCED_ARM
from simfed.errors import InputError, InputErrors
from simfed.levels import energy_of, split_arm
from simfed.record.invariants import verify as verify_files
from simfed.record.read import Run, open_run
from simfed.record.schema import CLIENT_KINDS
from simfed.scenario.load import validated

__all__ = ["verify"]

Broken = Iterator[str]


def verify(path: str | os.PathLike[str]) -> list[str]:
    """The broken invariants of a run directory, one sentence each; empty: all hold.

    Raises: `InputError` for what is no finished run directory at all.
    """
    broken = verify_files(path)
    if broken:
        return broken
    run = open_run(path)
    where = Path(path) / "scenario.yaml"
    try:
        scenario = validated(run.scenario, source=where.name, folder=Path(path), recorded=True)
        parts = Parts(scenario, where)
        return [sentence for check in _CHECKS for sentence in check(run, parts)]
    except InputErrors as several:
        return [str(error) for error in several.errors]
    except InputError as error:
        return [str(error)]


def _participations_are_those_of_the_scenario(run: Run, parts: Parts) -> Broken:
    """Prototype, K and bytes of each participation."""
    from simfed.sim import TimeOnlyWorkload

    sizes, seen, clients = TimeOnlyWorkload(parts.tasks), _Seen(), parts.scenario.client_count
    held = _held_versions(run, parts)
    for at, row in enumerate(_rows(run, "participations")):
        client, number = row["client"], row["round"]
        who = f"round {number}, client {client}"
        if not 0 <= client < clients:
            seen.add("are of a client that the scenario does not have", who)
            continue
        task = parts.tasks.task(number, client, row["model_version"], held=held.get(at))
        codec, ks = _allowed_k(row, parts, task.plan.longest)
        k = row["k"]
        if row["prototype"] != task.prototype:
            seen.add("are of another prototype than the scenario's", who)
        elif not ks[0] <= k <= ks[1]:
            seen.add("keep another K than the scenario's", who)
        elif row["outcome"] in ("aggregated", "late"):
            received, planned = row["downlink_bytes"], task.downlink_bytes
            varies = parts.tasks.downlink_varies(task)  # the plan then says the most
            if not (_near(received, planned) or (varies and 0 < received < planned)):
                seen.add("did not receive what the plan sends", who)
            try:
                sent = sizes.size_bytes(task, codec, k)
            except InputError:  # it depends on the data
                continue
            if not _near(row["uplink_bytes"], sent):
                seen.add("sent another number of bytes than arm, K and plan come to", who)
    yield from seen.sentences("participations")


def _allowed_k(row: dict[str, Any], parts: Parts, length: int) -> tuple[str, tuple[int, int]]:
    """The codec of a participation, and the smallest and largest K that it may have kept."""
    client, (codec, level) = row["client"], split_arm(row["arm"])
    spec = parts.scenario.policy_of_group(parts.group(client))
    if row["choice"] == "forced" or not length:
        pass
    elif energy_of(level) is not None:
        return codec, (1, length)
    elif spec.arms_from is not None and any(parts.recorded[spec.arms_from].levels(client)):
        return codec, (1, length)  # as recorded, which `_policies_chose…` holds it against
    elif spec.sets_k:
        ends = [parts.fleet.k(client, length, split_arm(arm)[1]) for arm in spec.arms(())]
        return codec, (min(ends), max(ends))
    k = parts.fleet.k(client, length, level)
    return codec, (k, k)


def _held_versions(run: Run, parts: Parts) -> dict[int, int]:
    """Row of participations → the version that its client had before, where changes travel down."""
    if parts.scenario.downlink.compression is None:
        return {}
    rows = list(enumerate(_rows(run, "participations")))
    held: dict[int, int] = {}
    found: dict[int, int] = {}
    for at, row in sorted(rows, key=lambda of: (of[1]["started_at_s"], of[0])):
        client, version = row["client"], row["model_version"]
        if client in held:
            found[at] = held[client]
        # a client takes part in one thing at a time
        task = parts.tasks.task(row["round"], client, version, held=held.get(client))
        lost = row["outcome"] in ("dropped", "failed")
        worked = row["training_s"] > 0 or row["compression_s"] > 0
        moved = _near(row["downlink_bytes"], task.downlink_bytes) and row["outcome"] == "dropped"
        if not lost or worked or moved:
            held[client] = version
    return found


def _policies_chose_and_learned_as_recorded(run: Run, parts: Parts) -> Broken:
    """Every client's policy is played again with its keyed draws and its recorded rewards."""
    from simfed.policy import Pull

    if parts.scenario.aggregation.mode != "synchronous":
        return
    shown: dict[tuple[int, int], list[tuple[str, float | None]]] = {}
    for value in _rows(run, "policies"):
        shown.setdefault((value["round"], value["client"]), []).append(
            (value["arm"], value["value"])
        )
    policies: dict[int, Any] = {}
    seen = _Seen()
    for row in _rows(run, "participations"):
        client, number = row["client"], row["round"]
        who = f"round {number}, client {client}"
        policy = policies.setdefault(client, None) or parts.policy(client)
        policies[client] = policy
        if policy.learns:
            expected = dict(zip(policy.arms, policy.values(), strict=True))
            told = shown.get((number, client), [])
            if [arm for arm, _ in told] != list(expected) or not all(
                _same(value, expected[arm]) for arm, value in told
            ):
                seen.add("have values in policies.parquet that their rewards do not come to", who)
        if row["choice"] == "forced":
            if row["arm"] != FORCED_ARM:
                seen.add(f"were forced to another arm than {FORCED_ARM}", who)
            continue
        pull: Pull = policy.pull(parts.streams("policy", client, number))
        task = parts.tasks.task(number, client, row["model_version"])
        if (pull.arm, pull.choice) != (row["arm"], row["choice"]):
            seen.add("did not choose what their policy draws", who)
        elif (
            pull.k is not None
            and row["k"] != parts.fleet.compression(client, pull, task.plan.longest)[1]
        ):
            seen.add("keep another K than their policy sets", who)
        if row["outcome"] in ("dropped", "failed"):
            policy.void(pull)
        elif policy.learns:
            if row["reward"] is None:
                seen.add("were not told a reward", who)
                return (yield from seen.sentences("participations"))
            policy.update(pull, row["reward"])
    yield from seen.sentences("participations")


def _cohorts_are_those_drawn(run: Run, parts: Parts) -> Broken:
    from simfed.selection import cohort

    scenario = parts.scenario
    synchronous = scenario.aggregation.mode == "synchronous"
    if not synchronous or scenario.participation.selection.kind != "uniform":
        return  # others look at what clients told the server
    table = run.table("participations")
    rounds, clients = (table.column(name).to_numpy() for name in ("round", "client"))
    begun, presence = table.column("started_at_s").to_numpy(), parts.fleet.presence()
    per_round = scenario.participation.clients_per_round
    for number in range(1, len(run.table("rounds")) + 1):
        first, last = np.searchsorted(rounds, (number, number + 1))
        if presence is None:
            asked = cohort(parts.streams, number, scenario.client_count, per_round)
        else:
            there = presence.available(float(begun[first])) if first < last else clients[:0]
            size = None if per_round is None else min(per_round, len(there))
            asked = there[cohort(parts.streams, number, len(there), size)]
        if not np.array_equal(clients[first:last], asked):
            yield (
                f"participations.parquet: round {number} is not of the clients that the scenario "
                "draws"
            )
            return


def _work_is_that_of_the_plans(run: Run, parts: Parts) -> Broken:
    """The spans of clients are the units of their plans, by kind and name."""
    versions = {
        (row["round"], row["client"]): row["model_version"] for row in _rows(run, "participations")
    }
    seen, changes = _Seen(), parts.scenario.downlink.compression
    for span in _rows(run, "spans"):
        key = span["round"], span["client"]
        if not span["track"].startswith("client ") or key not in versions:
            continue
        if span["kind"] in CLIENT_KINDS and span["kind"] != "training":
            continue
        plan = parts.tasks.task(*key, versions[key]).plan
        units = {
            (work.kind or work.quantity, work.name or work.kind or work.quantity)
            for work in plan.work
        }
        if changes is not None:
            units.add(("decompression", changes.strategy))
        if (span["kind"], span["name"]) not in units:
            seen.add("are no work of their client's plan", f"round {key[0]}, client {key[1]}")
    yield from seen.sentences("spans")


_CHECKS = (
    _work_is_that_of_the_plans,
    _participations_are_those_of_the_scenario,
    _cohorts_are_those_drawn,
    _policies_chose_and_learned_as_recorded,
)


class _Seen:
    """What is wrong, how often, and where first."""

    def __init__(self) -> None:
        self._found: dict[str, list[Any]] = {}

    def add(self, what: str, where: str) -> None:
        self._found.setdefault(what, [0, where])[0] += 1

    def sentences(self, table: str) -> Broken:
        for what, (count, first) in self._found.items():
            yield f"{table}.parquet: {count} rows {what}, first: {first}"


def _rows(run: Run, table: str) -> Iterator[dict[str, Any]]:
    for batch in run.table(table).to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _near(found: float, expected: float) -> bool:
    return abs(found - expected) <= 1e-9 * abs(expected)


def _same(value: float | None, expected: float) -> bool:
    """A cell and a value; what is not a number is stored as empty."""
    return np.isnan(expected) if value is None else bool(value == expected)
