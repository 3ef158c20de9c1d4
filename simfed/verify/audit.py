"""Everything that a run directory says, derived again from its scenario as far as it follows from
it.

`simfed.verify.invariants` holds the files against each other. Here the scenario is taken up again
with the parts that play it. The clock of a simulated run plays once more, and every row is held
against what comes out (`simfed.verify.again.replay`); the manifest, the scenario's text and the
names of the files beside it are those that such a run begins with. What is not derived is what
learning came to: of that, gains and accuracies are held against each other. Of a deployed run,
whose clients were real, the policies and the K that they kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simfed.compress.choice import Choice
from simfed.experiment.assembly import Parts, parts_of_run
from simfed.experiment.running import facts_at_start, self_contained
from simfed.fleet.tasks import k_of, pull_for
from simfed.ground.errors import InputError, InputErrors
from simfed.ground.levels import energy_of
from simfed.ground.method import Plan
from simfed.learn.catalogue import dataset_facts
from simfed.policy import Pull, Spent, watches
from simfed.record.manifest import is_of_this_version, oddities
from simfed.record.read import Run, open_run, with_turns
from simfed.record.schema import OWN_LOSSES, arrow_schema
from simfed.scenario.load import import_plugins
from simfed.verify.again import replay
from simfed.verify.invariants import broken_in, tried

__all__ = ["verify"]

Broken = Iterator[str]


def verify(path: str | os.PathLike[str], *, allow_plugins: bool = False) -> list[str]:
    """The broken invariants of a run directory, one sentence each; empty: all hold.

    It takes as long as a time-only run of the scenario: its clock is played again.
    `allow_plugins`: run the plug-ins that it keeps, see `simfed.load_scenario`.

    Raises: `InputError` for what is no finished run directory at all, or plug-ins without consent.
    """
    run = open_run(path)
    broken = broken_in(run) or [f"manifest.json: {odd}" for odd in oddities(run.manifest)]
    if broken:
        return broken
    if run.manifest.get("mode") == "flower":
        return []  # what the app did follows from no scenario
    import_plugins(
        run.scenario, source=f"{path}{os.sep}scenario.yaml", folder=Path(path), allow=allow_plugins,
        allow_outside=True,
    )  # fmt: skip
    try:
        parts = parts_of_run(run, path)
    except InputErrors as several:
        return [str(error) for error in several.errors]
    except InputError as error:
        return [str(error)]
    checks = _CHECKS_OF_REAL_RUNS if run.manifest.get("mode") == "deployed" else _CHECKS
    for check in checks:
        broken = list(tried(check, run, parts))
        if broken:  # the next ones would trip over it
            break
    return broken


def _manifest_is_that_of_such_a_run(run: Run, parts: Parts) -> Broken:
    """What a run says from its beginning follows from its scenario, and so does how the scenario
    and the files beside it are written."""
    manifest, same_version = run.manifest, is_of_this_version(run.manifest)
    again = facts_at_start(parts, manifest["mode"], manifest["device"])
    if same_version and ("opened" in manifest) != ("opened" in again):
        yield "manifest.json: opened is said where no plug-in opens a file, or not where one does"
    for key in again.keys() - {"versions", "warnings"}:
        if manifest.get(key, again[key]) != again[key] and (same_version or key != "profiles"):
            yield f"manifest.json: {key} is {manifest[key]}, that of scenario.yaml is {again[key]}"
    missing = sorted(set(parts.warnings()) - set(manifest["warnings"]))
    if not same_version:
        return
    if missing:
        yield f"manifest.json: the run does not warn of this: {missing[0]}"
    files, text = self_contained(parts)
    if text != run.scenario_yaml:
        yield "scenario.yaml: is not as simfed writes this scenario"
    strange = sorted(files.keys() ^ manifest["files"].keys())
    if strange:
        yield f"manifest.json: {strange[0]} is either no file of the scenario or not named here"


def _clock_plays_as_recorded(run: Run, parts: Parts) -> Broken:
    yield from replay(run, parts)


def _losses_are_those_of_the_method(run: Run, parts: Parts) -> Broken:
    method, table = parts.scenario.method.made, run.table(OWN_LOSSES)
    asked = arrow_schema(OWN_LOSSES, method.losses).names
    if table.column_names != asked:
        yield f"{OWN_LOSSES}.parquet: columns are {table.column_names}, the method's are {asked}"
    measured = {method.shared_loss, *method.losses}
    if "kd_loss" not in measured and table.column("kd_loss").null_count < len(table):
        yield f"{OWN_LOSSES}.parquet: kd_loss, which the method does not have"


def _evaluations_agree(run: Run, parts: Parts) -> Broken:
    """An accuracy is a share of the test samples. A client's is that of its prototype or, where
    models are personal, the prototype's is the mean of its clients'."""
    personal = parts.scenario.method.made.personal
    samples = dataset_facts(parts.scenario.dataset).test_samples
    names = "round", "prototype", "test_accuracy", "test_loss"
    seen, of_clients = _Seen(), _Seen()
    shown: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for row in _rows(run, "clients"):
        key = row["round"], parts.tasks.who(row["client"]).prototype
        shown.setdefault(key, []).append((row["accuracy"], row["loss"]))
        if not _is_share(row["accuracy"], samples):
            who = f"round {row['round']}, client {row['client']}"
            of_clients.add("have an accuracy that is no share of the test samples", who)
    for number, prototype, accuracy, loss in zip(*_columns(run, "prototypes", *names), strict=True):
        where, of_mine = f"round {number}, {prototype}", shown.pop((number, prototype), [])
        if accuracy is None:
            continue
        if not personal and not _is_share(accuracy, samples):
            seen.add("have an accuracy that is no share of the test samples", where)
        elif personal or of_mine:
            means = np.mean(of_mine, axis=0) if personal else np.array(of_mine)
            # the two sum losses in another order, of single precision
            if not np.allclose(means, (accuracy, loss), rtol=1e-6, atol=0.0, equal_nan=True):
                seen.add("are not what the clients' evaluations come to", where)
    for number, prototype in shown:
        of_clients.add("are of a round that is not evaluated", f"round {number}, {prototype}")
    yield from seen.sentences("prototypes")
    yield from of_clients.sentences("clients")


def _is_share(accuracy: float, samples: int) -> bool:
    """Of a whole number of samples."""
    right = accuracy * samples
    return abs(right - round(right)) <= 1e-6


def _everybody_is_evaluated(run: Run, parts: Parts) -> Broken:
    """In an evaluated round all clients, or where models are personal all that have one."""
    scenario = parts.scenario
    personal = scenario.method.made.personal
    if not personal and not scenario.evaluation.clients:
        if len(run.table("clients")):
            yield "clients.parquet: rows, but the scenario asks for no evaluation of clients"
        return
    joined: dict[int, set[int]] = {}
    for merge, client, outcome in zip(
        *_columns(run, "participations", "merge", "client", "outcome"), strict=True
    ):
        if outcome in ("aggregated", "late"):
            joined.setdefault(merge, set()).add(client)
    shown: dict[int, list[int]] = {}
    for number, client in zip(*_columns(run, "clients", "round", "client"), strict=True):
        shown.setdefault(number, []).append(client)
    everybody = set() if personal else set(range(scenario.client_count))
    evaluated = {number for (number,) in zip(*_columns(run, "prototypes", "round"), strict=True)}
    for number in range(1, scenario.rounds + 1):
        everybody |= joined.get(number, set())
        due = scenario.evaluation.due(number, scenario.rounds) and number in evaluated
        if due and shown.get(number, []) != sorted(everybody):
            yield f"clients.parquet: round {number} is not of the clients that are evaluated"
            return


def _participations_are_those_of_the_scenario(run: Run, parts: Parts) -> Broken:
    """Prototype and K of each participation of a deployed run."""
    seen, clients = _Seen(), parts.scenario.client_count
    for row in _rows(run, "participations"):
        client, number = row["client"], row["round"]
        who = f"round {number}, client {client}"
        if not 0 <= client < clients:
            seen.add("are of a client that the scenario does not have", who)
            continue
        task = parts.tasks.task(number, client, row["model_version"])
        try:
            least, most = _allowed_k(row, parts, task.plan)
        except InputError:
            seen.add("play an arm that is none", who)
            continue
        if row["prototype"] != task.prototype:
            seen.add("are of another prototype than the scenario's", who)
        elif _arrived(row) and not least <= row["k"] <= most:
            seen.add("keep another K than the scenario's", who)
    yield from seen.sentences("participations")


def _allowed_k(row: dict[str, Any], parts: Parts, plan: Plan) -> tuple[int, int]:
    """The smallest and largest K that a participation may have kept."""
    client, arm, length = row["client"], Choice.of(row["arm"]), plan.longest
    spec = parts.scenario.policy_of_group(parts.group(client))
    if row["choice"] == "forced" or not length:
        pass
    elif energy_of(arm.level) is not None:
        return 1, length
    elif spec.arms_from is not None and any(parts.recorded[spec.arms_from].levels(client)):
        return 1, length  # as recorded, which `_policies_chose…` holds it against
    elif spec.sets_k:
        ends = [parts.fleet.k(client, length, end.level) for end in spec.arms(())]
        return min(ends), max(ends)
    k = k_of(plan, parts.fleet.compression(client, Pull(arm, row["choice"]), plan))
    assert isinstance(k, int)
    return k, k


def _policies_chose_and_learned_as_recorded(run: Run, parts: Parts) -> Broken:
    """Every client's policy is played again with its keyed draws and its recorded rewards.

    In any mode: what a client starts for a round it chooses knowing the merges before that round.
    """
    shown: dict[tuple[int, int], list[tuple[str, float | None]]] = {}
    for value in _rows(run, "policies"):
        shown.setdefault((value["round"], value["client"]), []).append(
            (value["arm"], value["value"])
        )
    started: dict[int, list[_Pulled]] = {}
    settled: dict[int, list[_Pulled]] = {}
    keyed = ((row["round"], row["client"], row) for row in _rows(run, "participations"))
    for turn, (_, _, row) in with_turns(keyed):
        one = _Pulled(row, turn)
        started.setdefault(row["round"], []).append(one)
        settled.setdefault(row["merge"] or row["round"], []).append(one)
    policies: dict[int, Any] = {}
    seen = _Seen()
    for number in range(1, len(run.table("rounds")) + 1):
        for one in started.get(number, ()):
            client = one.row["client"]
            if client not in policies:
                policies[client] = parts.policy(client)
            rows = shown.get((number, client), [])
            _pull_again(one, policies[client], parts, rows, seen)
        for one in settled.get(number, ()):
            if one.pull is None:
                continue
            policy, lost = policies[one.row["client"]], one.row["outcome"] in ("dropped", "failed")
            if watches(policy) and not lost:
                policy.watch(one.pull, one.spent)
            if lost or one.row["choice"] == "forced":
                policy.void(one.pull)
            elif policy.learns and one.row["reward"] is None:
                seen.add("were not told a reward", one.where)
                return (yield from seen.sentences("participations"))
            elif policy.learns:
                policy.update(one.pull, one.row["reward"])
    yield from seen.sentences("participations")


@dataclass(slots=True)
class _Pulled:
    """One participation, as it is recorded and as its policy chooses again."""

    row: dict[str, Any]
    turn: int
    pull: Any = None

    @property
    def where(self) -> str:
        return f"round {self.row['round']}, client {self.row['client']}"

    @property
    def spent(self) -> Spent:
        row = self.row
        work_s = row["training_s"] + row["compression_s"]
        return Spent(row["downlink_s"], work_s, row["uplink_s"], row["slack_s"] or 0.0)


def _pull_again(
    one: _Pulled, policy: Any, parts: Parts, shown: list[tuple[str, float | None]], seen: _Seen
) -> None:
    """What this policy would have known and chosen, held against what is recorded."""
    row = one.row
    if policy.learns:
        arms = len(policy.arms)
        told = shown[one.turn * arms : (one.turn + 1) * arms]
        expected = dict(zip(map(str, policy.arms), policy.values(), strict=True))
        if [arm for arm, _ in told] != list(expected) or not all(
            _same(value, expected[arm]) for arm, value in told
        ):
            seen.add("have values in policies.parquet that their rewards do not come to", one.where)
    task = parts.tasks.task(row["round"], row["client"], row["model_version"], one.turn)
    forced = row["choice"] == "forced"
    arm = Choice.of(row["arm"])
    if forced and arm not in parts.scenario.forced_arms:
        seen.add("were forced to another arm than the safeguard says", one.where)
    one.pull = pull_for(task, policy, arm if forced else None, parts.streams)
    if (one.pull.arm, one.pull.choice) != (arm, row["choice"]):
        seen.add("did not choose what their policy draws", one.where)
    elif (
        one.pull.k is not None
        and row["k"] != parts.fleet.compression(row["client"], one.pull, task.plan).level
    ):
        seen.add("keep another K than their policy sets", one.where)


def _gains_are_those_of_the_losses(run: Run, parts: Parts) -> Broken:
    """ρ·(shared loss before − after) + β·(local loss before − after), where all four are known.

    What a client's loss was before is what it was after its last participation, if no merge came
    between and the samples are the same. The first models' shared loss is in no table.
    """
    scenario, method = parts.scenario, parts.scenario.method.made
    if method.personal:
        return  # a client's own model changes between merges too
    undone = dict(zip(*_columns(run, "rounds", "round", "rolled_back"), strict=True))
    measured = _columns(run, "prototypes", "round", "prototype", method.shared_loss or "kd_loss")
    shared = {
        (round, prototype): loss
        for round, prototype, loss in zip(*measured, strict=True)
        if loss is not None
    }
    merged = {row["merge"] for row in _rows(run, "participations") if _arrived(row)}
    accepted = [0, *(round for round in sorted(merged) if not undone.get(round))]
    at_version: dict[str, list[float | None]] = {}
    for prototype in scenario.prototypes:
        known: list[float | None] = []
        for round in accepted:
            last = known[-1] if known else None
            known.append(shared.get((round, prototype), last))
        at_version[prototype] = known
    version_after = {round: version for version, round in enumerate(accepted)}
    told: dict[int, tuple[int | None, float]] = {}
    seen = _Seen()
    for row in _rows(run, "participations"):
        client, merge, loss = row["client"], row["merge"], row["local_loss"]
        if loss is None or not _arrived(row):
            continue
        policy = scenario.policy_of_group(parts.group(client))
        rule, (version, before) = policy.reward, told.get(client, (None, 0.0))
        told[client] = version_after.get(merge), loss
        same_samples = rule.local_loss.data != "batch" and rule.local_loss.credit == "causal"
        shared_before = at_version[row["prototype"]][row["model_version"]]
        shared_after = shared.get((merge, row["prototype"]))
        if method.shared_loss is None:  # there is no such part of a gain
            shared_before = shared_after = 0.0
        if row["gain"] is None or shared_before is None or shared_after is None:
            continue
        if rule.beta and (version != row["model_version"] or not same_samples):
            continue
        terms = (
            rule.rho * shared_before, -rule.rho * shared_after, rule.beta * before,
            -rule.beta * loss,
        )  # fmt: skip
        if abs(sum(terms) - row["gain"]) > 1e-6 * max(map(abs, terms)):
            where = f"round {row['round']}, client {client}"
            seen.add("have a gain that is not that of the losses", where)
    yield from seen.sentences("participations")


_LEARNED = (
    _losses_are_those_of_the_method,
    _gains_are_those_of_the_losses,
    _evaluations_agree,
    _everybody_is_evaluated,
)

_CHECKS: tuple[Callable[[Run, Parts], Broken], ...] = (
    _manifest_is_that_of_such_a_run,
    _clock_plays_as_recorded,
    *_LEARNED,
)

_CHECKS_OF_REAL_RUNS = (
    _manifest_is_that_of_such_a_run,
    _participations_are_those_of_the_scenario,
    _policies_chose_and_learned_as_recorded,
    *_LEARNED,
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


def _columns(run: Run, table: str, *names: str) -> list[list[Any]]:
    found = run.table(table)
    return [found.column(name).to_pylist() for name in names]


def _arrived(row: dict[str, Any]) -> bool:
    return row["outcome"] in ("aggregated", "late")


def _same(value: float | None, expected: float) -> bool:
    """A cell and a value; what is not a number is stored as empty."""
    return np.isnan(expected) if value is None else bool(value == expected)
