"""`simfed verify`: a run is what its scenario comes to.

Its files are held against each other (`simfed.verify.invariants`), then the scenario is taken up
again with the parts that play it. The clock of a simulated run plays once more, and every row is
held against what comes out (`simfed.verify.again.replay`). Of a deployed run, whose clients were
real, only the policies can play again; its clock's rows must keep the invariants. What learning
came to is not derived: gains, losses and accuracies are held against each other.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from simfed.experiment.assembly import Parts, load_parts
from simfed.experiment.checks import Checks
from simfed.experiment.running import collect_facts_at_start, make_self_contained
from simfed.ground.errors import InputError, InputErrors
from simfed.learn.catalogue import dataset_facts
from simfed.record.manifest import NOT_ALWAYS, list_oddities
from simfed.record.read import Run, open_run
from simfed.record.schema import OWN_LOSSES, TABLES, arrow_schema
from simfed.scenario.load import import_plugins
from simfed.verify.again import compare_versions, policies_play_again, replay
from simfed.verify.invariants import Array, Broken, Columns, Rows, find_broken, run_check


def verify(path: str | os.PathLike[str], *, allow_plugins: bool = False) -> list[str]:
    """What is broken in a run directory, one sentence each; empty: nothing.

    It takes as long as a time-only run of the scenario: its clock is played again.
    `allow_plugins`: run the plug-ins that it keeps, see `simfed.load_scenario`.

    Raises: `InputError` for what is no finished run directory at all, or plug-ins without consent.
    """
    run = open_run(path)
    mode = run.manifest.get("mode")
    broken = find_broken(run, clock=mode in ("deployed", "flower"))
    broken = broken or [f"manifest.json: {odd}" for odd in list_oddities(run.manifest)]
    if not broken and mode != "flower":  # what an app did follows from no scenario
        broken = _follow(run, path, allow_plugins=allow_plugins)
    return broken + (compare_versions(run) if broken else [])


def _follow(run: Run, path: str | os.PathLike[str], *, allow_plugins: bool) -> list[str]:
    """What is not as the run's scenario comes to."""
    import_plugins(
        run.scenario,
        source=f"{path}{os.sep}scenario.yaml",
        folder=Path(path),
        allow=allow_plugins,
    )
    try:
        parts = load_parts(run, path)
    except InputErrors as several:
        return [*map(str, several.sentences())]
    except InputError as error:
        return [str(error)]
    facts = Columns(run)
    of_tables = (policies_play_again, *_LEARNED) if facts.deployed else (_plays_again,)
    for check in (_manifest_is_that_of_such_a_run, *of_tables):
        broken = run_check(check, facts, parts)
        if broken:  # the next ones would trip over it
            break
    return broken


def _manifest_is_that_of_such_a_run(facts: Columns, parts: Parts) -> Broken:
    """What a run says from its beginning follows from its scenario, and so does how the scenario
    and the files beside it are written."""
    manifest = facts.run.manifest
    again = collect_facts_at_start(parts, manifest["mode"], manifest["device"])
    keys = again.keys() | (manifest.keys() & NOT_ALWAYS)
    for key in sorted(keys - {"versions", "warnings"}):
        if manifest.get(key) != again.get(key):
            yield (
                f"manifest.json: {key} is {manifest.get(key)}, that of scenario.yaml is "
                f"{again.get(key)}"
            )
    missing = sorted(set(Checks(parts).warnings()) - set(manifest["warnings"]))
    if missing:
        yield f"manifest.json: the run does not warn of this: {missing[0]}"
    files, text = make_self_contained(parts)
    if text != facts.run.scenario_yaml:
        yield "scenario.yaml: is not as simfed writes this scenario"
    strange = sorted(files.keys() ^ manifest["files"].keys())
    if strange:
        yield f"manifest.json: {strange[0]} is either no file of the scenario or not named here"


def _plays_again(facts: Columns, parts: Parts) -> Broken:
    yield from replay(facts.run, parts)


# ---- what was learned ----------------------------------------------------------------------------


def _losses_are_those_of_the_method(facts: Columns, parts: Parts) -> Broken:
    method, kd_losses = parts.scenario.method.made, facts.run.table(OWN_LOSSES).column("kd_loss")
    for name in (OWN_LOSSES, "rounds", "clients"):
        table = facts.run.table(name)
        asked = arrow_schema(name, parts.own_columns.get(name, ())).names
        if table.column_names != asked and (len(table) or not TABLES[name].optional):
            yield f"{name}.parquet: columns are {table.column_names}, the scenario's are {asked}"
    measured = {method.shared_loss, *method.losses}
    if "kd_loss" not in measured and kd_losses.null_count < len(kd_losses):
        yield f"{OWN_LOSSES}.parquet: kd_loss, which the method does not have"


def _prototypes_are_evaluated_when_due(facts: Columns, parts: Parts) -> Broken:
    """Each one every `evaluation.every` rounds and after the last one, as a share of the test
    samples; where models are personal, once some client of the prototype has one."""
    rows, scenario = facts["prototypes"], parts.scenario
    if facts.run.manifest["mode"] == "time-only":
        return
    column = facts.run.measure.column
    # of a training that diverged it may be NaN
    measured = facts.run.table("prototypes").column(column).is_valid().to_numpy()
    pairs = list(zip(rows["round"].tolist(), rows["prototype"].tolist(), strict=True))
    shown = {pair for pair, was_measured in zip(pairs, measured, strict=True) if was_measured}
    numbers = _list_due_rounds(facts, parts)
    if scenario.method.made.personal:
        having = _list_clients_with_models(facts, parts)
        due = {(n, parts.tasks.who(c).prototype) for n in numbers for c in having(n)}
    else:
        due = {(number, name) for number in numbers for name in scenario.prototypes}
    if missing := sorted(due - shown):
        which = "round {}, {}".format(*missing[0])
        yield f"prototypes.parquet: {len(missing)} evaluations are missing, first: {which}"
    strange = np.array([pair not in due for pair in pairs], bool)
    yield Rows("prototypes", measured & strange, "are measured in a round that is not evaluated")
    was_measured = np.isin(rows["prototype"], list(scenario.prototypes))
    yield Rows("prototypes", ~was_measured, "are of no prototype of scenario.yaml")
    if not scenario.method.made.personal:
        wrong = measured & ~_are_shares(rows["test_accuracy"], parts)
        yield Rows("prototypes", wrong, "have an accuracy that is no share of the test samples")
        if column != "test_accuracy":
            wrong = measured & ~_are_of_losses(rows[column], rows["test_loss"], parts)
            yield Rows("prototypes", wrong, f"have a {column} that is not that of the test_loss")


def _clients_are_evaluated_with_their_prototypes(facts: Columns, parts: Parts) -> Broken:
    """In an evaluated round all clients, or where models are personal all that have one (of a
    deployment, those of them who were there): an accuracy is that of the client's prototype or, of
    personal models, whose mean the prototype's is."""
    rows, scenario = facts["clients"], parts.scenario
    personal = scenario.method.made.personal
    if not personal and not scenario.evaluates_clients:
        if len(rows["round"]):
            yield "clients.parquet: rows, but the scenario asks for no evaluation of clients"
        return
    yield Rows("clients", rows["own_accuracy"] > 1, "have an own_accuracy above 1")
    wrong = ~_are_shares(rows["accuracy"], parts)
    yield Rows("clients", wrong, "have an accuracy that is no share of the test samples")
    if not len(rows["round"]):  # such a table is not kept, nor are the measure's columns of it
        rows = {**rows, "measure": rows["loss"], "own_measure": rows["own_loss"]}
    compared_columns = [("test_accuracy", "accuracy"), ("test_loss", "loss")]
    if (measure := facts.run.measure).key != "accuracy":
        compared_columns.append((measure.column, measure.key))
        for column, loss in (("measure", "loss"), ("own_measure", "own_loss")):
            wrong = ~_are_of_losses(rows[column], rows[loss], parts)
            yield Rows("clients", wrong, f"have a {column} that is not that of the {loss}")
    having = _list_clients_with_models(facts, parts)
    evaluated = set(facts["prototypes"]["round"].tolist())
    for number in sorted(_list_due_rounds(facts, parts) & evaluated):
        if rows["client"][rows["round"] == number].tolist() != having(number):
            yield f"clients.parquet: round {number} is not of the clients that are evaluated"
            return
    prototype = np.array([parts.tasks.who(client).prototype for client in rows["client"]])
    of_prototypes, compared = facts["prototypes"], np.zeros(len(prototype), bool)
    measured = facts.run.table("prototypes").column(measure.column).is_valid().to_numpy()
    wrong = np.zeros(len(of_prototypes["round"]), bool)
    for at, (number, name) in enumerate(
        zip(of_prototypes["round"], of_prototypes["prototype"], strict=True)
    ):
        mine = (rows["round"] == number) & (prototype == name)
        compared |= mine
        if not measured[at]:
            continue
        told = [of_prototypes[column][at] for column, _ in compared_columns]
        theirs = np.stack([rows[column][mine] for _, column in compared_columns], axis=1)
        if personal and mine.any():
            theirs = theirs.mean(axis=0)
        # the two sum losses in another order, of single precision
        wrong[at] = not np.allclose(theirs, told, rtol=1e-6, atol=0.0, equal_nan=True)
    yield Rows("prototypes", wrong, "are not what the clients' evaluations come to")
    yield Rows("clients", ~compared, "are of a round that is not evaluated")


def _list_clients_with_models(facts: Columns, parts: Parts) -> Callable[[int], list[int]]:
    """Number of a round → the clients that have a model to evaluate after it, ascending: all of
    them or, where models are personal, those of whom an upload was merged (in a deployment: of
    these, those who answered; others were gone or had begun anew)."""
    everybody = range(parts.scenario.client_count)
    if not parts.scenario.method.made.personal:
        return lambda number: list(everybody)
    played, rows = facts["participations"], facts["clients"]

    def find_having(number: int) -> list[int]:
        merged = ~facts.lost & (played["merge"] <= number)
        having = set(everybody) & set(played["client"][merged].tolist())
        if facts.deployed:
            having &= set(rows["client"][rows["round"] == number].tolist())
        return sorted(having)

    return find_having


def _list_due_rounds(facts: Columns, parts: Parts) -> set[int]:
    """The rounds after which models must have been evaluated."""
    rounds, evaluation = parts.scenario.rounds, parts.scenario.evaluation
    return {number for number in range(1, facts.rounds + 1) if evaluation.due(number, rounds)}


def _are_shares(accuracy: Array, parts: Parts) -> Array:
    """Which accuracies are 0 to 1 and of a whole number of samples; of a regression, which are at
    most 1."""
    if parts.task == "regression":
        return ~(accuracy.astype(float) > 1)  # NaN of a training that diverged
    right = accuracy.astype(float) * dataset_facts(parts.scenario.dataset).answers
    whole: Array = (np.abs(right - np.round(right)) <= 1e-6) & (accuracy >= 0) & (accuracy <= 1)
    return whole


def _are_of_losses(measures: Array, losses: Array, parts: Parts) -> Array:
    """Which measures are those that the mean losses beside them say; of a regression up to the
    target's unit, which is in no table."""
    values, losses = measures.astype(float), losses.astype(float)
    if parts.task == "next-token":
        with np.errstate(over="ignore"):
            expected = np.exp(losses)
    else:
        roots = np.sqrt(losses)
        usable = np.isfinite(values) & (roots > 0)
        unit = np.median(values[usable] / roots[usable]) if usable.any() else 1.0
        expected = unit * roots
    close: Array = np.isclose(values, expected, rtol=1e-9, atol=0.0, equal_nan=True)
    return close


def _gains_are_those_of_the_losses(facts: Columns, parts: Parts) -> Broken:
    """ρ·(shared loss before − after) + β·(local loss before − after), where all four are known.

    What a client's loss was before is what it was after its last participation, if no merge came
    between and the samples are the same. The first models' shared loss is in no table.
    """
    scenario, method = parts.scenario, parts.scenario.method.made
    if method.personal:
        return  # a client's own model changes between merges too
    rows, measured = facts["participations"], facts["prototypes"]
    losses = measured[method.shared_loss or "kd_loss"].astype(float).tolist()
    pairs = zip(measured["round"].tolist(), measured["prototype"].tolist(), strict=True)
    shared = {pair: loss for pair, loss in zip(pairs, losses, strict=True) if loss == loss}
    undone = facts["rounds"]["rolled_back"]
    merged = sorted(set(rows["merge"][~facts.lost].tolist()))
    accepted = [0, *(number for number in merged if not undone[number - 1])]
    version_after = {number: version for version, number in enumerate(accepted)}
    at_version: dict[tuple[int, str], float] = {}
    for prototype in scenario.prototypes:
        for version, number in enumerate(accepted):
            last = at_version.get((version - 1, prototype), np.nan)
            at_version[version, prototype] = shared.get((number, prototype), last)
    told: dict[int, tuple[int | None, float]] = {}
    wrong = np.zeros(len(rows["round"]), bool)
    for at in np.flatnonzero(~np.isnan(rows["local_loss"]) & ~facts.lost):
        client, merge, version, gain, loss = (
            rows[name][at].item()
            for name in ("client", "merge", "model_version", "gain", "local_loss")
        )
        rule = scenario.policy_of_group(parts.group(client)).reward
        start, before = told.get(client, (None, 0.0))
        told[client] = version_after.get(merge), loss
        same_samples = rule.local_loss.data != "batch" and rule.local_loss.credit == "causal"
        if rule.beta and (start != version or not same_samples or facts.tiered):
            continue  # a client of an edge server may begin from what that server has merged since
        prototype = rows["prototype"][at]
        both = at_version[version, prototype], shared.get((merge, prototype), np.nan)
        if method.shared_loss is None:  # there is no such part of a gain
            both = 0.0, 0.0
        terms = rule.rho * both[0], -rule.rho * both[1], rule.beta * before, -rule.beta * loss
        # where one of them is in no table, this compares with what is no number
        wrong[at] = abs(sum(terms) - gain) > 1e-6 * max(map(abs, terms))
    yield Rows("participations", wrong, "have a gain that is not that of the losses")


def _clients_have_spent_what_they_took_part_in(facts: Columns, parts: Parts) -> Broken:
    """ε of each client's samples is that of its participations so far."""
    account, rows = parts.account(), facts["clients"]
    if account is None or "epsilon" not in rows:
        return
    played, wrong = facts["participations"], np.zeros(len(rows["round"]), bool)
    for at, (number, client) in enumerate(zip(rows["round"], rows["client"], strict=True)):
        times = int(((played["client"] == client) & (played["merge"] <= number)).sum())
        expected = account.of_client(int(client), times)
        wrong[at] = not np.isclose(rows["epsilon"][at], expected, rtol=1e-9)
    yield Rows("clients", wrong, "have an epsilon that their participations do not come to")


_LEARNED: tuple[Callable[[Columns, Parts], Broken], ...] = (
    _losses_are_those_of_the_method,
    _gains_are_those_of_the_losses,
    _prototypes_are_evaluated_when_due,
    _clients_are_evaluated_with_their_prototypes,
    _clients_have_spent_what_they_took_part_in,
)
