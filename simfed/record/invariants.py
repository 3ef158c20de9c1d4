"""What must hold in every run directory, checked from its files alone.

Each check is a function from the facts of a run to sentences about what is broken; together they
are `simfed verify`. Sums of phases match spans to 1e-9 relative, beside the rounding of instants:
a difference of two instants near t is only good to a few units in the last place of t.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from simfed.record.digest import fingerprint, scenario_digest
from simfed.record.read import Run, open_run
from simfed.record.schema import CHOICES, CLIENT_KINDS, OUTCOMES, PHASES, TABLES, columns
from simfed.record.summary import summarise

__all__ = ["verify"]

RELATIVE = 1e-9
Array = np.ndarray[Any, Any]
Broken = Iterator[str]


def verify(path: str | os.PathLike[str]) -> list[str]:
    """The broken invariants of a run directory, one sentence each; empty: all hold.

    Raises: `InputError` for what is no finished run directory at all.
    """
    facts = Facts(open_run(path))
    broken = list(_values_are_in_range(facts))
    if broken:  # the other checks would trip over such values
        return broken
    return [sentence for check in _CHECKS for sentence in check(facts)]


class Facts:
    """The columns of a run as arrays, and what several checks need."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._tables: dict[str, dict[str, Array]] = {}

    def __getitem__(self, name: str) -> dict[str, Array]:
        """A table's columns; missing numbers are NaN, missing text is None."""
        if name not in self._tables:
            table = self.run.table(name)
            self._tables[name] = {c: table.column(c).to_numpy() for c in table.column_names}
        return self._tables[name]

    @cached_property
    def rounds(self) -> int:
        return len(self["rounds"]["round"])

    @cached_property
    def row_of_participation(self) -> Array:
        """Each participation's row in `rounds`."""
        return self["participations"]["round"] - 1

    @cached_property
    def elapsed_s(self) -> Array:
        """Each participation's time until its upload arrived."""
        parts = self["participations"]
        total: Array = sum(parts[name] for name in PHASES[:4])  # type: ignore[assignment]
        return total

    @cached_property
    def lost(self) -> Array:
        return np.isin(self["participations"]["outcome"], ("dropped", "failed"))

    @cached_property
    def policies(self) -> list[dict[str, Any]]:
        """The scenario's policy, and those of groups that have their own."""
        scenario = self.run.scenario
        own = [g["policy"] for g in scenario.get("clients", []) if g.get("policy")]
        return [scenario.get("policy") or {}, *own]

    @cached_property
    def synchronous(self) -> bool:
        mode = self.run.scenario.get("aggregation", {}).get("mode", "synchronous")
        return bool(mode == "synchronous")


def _values_are_in_range(facts: Facts) -> Broken:
    for table in TABLES:
        for column in columns(table):
            arrow = facts.run.table(table).column(column.name)
            where = f"{table}.parquet: {column.name}"
            if arrow.null_count and not column.nullable:
                yield f"{where}: {arrow.null_count} empty values in a column that has none"
                continue
            if column.dtype != "float64" or column.name in _ANY_NUMBER:
                continue
            values = arrow.drop_null().to_numpy()
            if not np.isfinite(values).all():
                yield f"{where}: values that are not finite numbers"
            elif column.name not in _ANY_SIGN and (values < 0).any():
                yield f"{where}: negative values, the lowest is {float(values.min())!r}"
    parts = facts["participations"]
    for name, known in (("outcome", OUTCOMES), ("choice", CHOICES)):
        strange = sorted(set(parts[name].tolist()) - set(known))
        if strange:
            yield f"participations.parquet: {name}: {strange[0]!r} is none of {', '.join(known)}"
    numbers = facts["rounds"]["round"]
    if not np.array_equal(numbers, np.arange(1, facts.rounds + 1)):
        yield f"rounds.parquet: the rounds are not 1 to {facts.rounds}"
    for table in ("participations", "prototypes", "policies"):
        of = facts[table]["round"]
        if ((of < 1) | (of > facts.rounds)).any():
            yield f"{table}.parquet: rows of a round that rounds.parquet does not have"


_ANY_SIGN = ("saved_without_critical_s",)
_ANY_NUMBER = ("value", "gain", "reward", "reward_raw", "kd_loss", "test_loss", "local_loss")
"""Metrics may be whatever a diverged training makes them."""


def _fingerprint_is_that_of_the_tables(facts: Facts) -> Broken:
    found = fingerprint(lambda name: [facts.run.table(name)])
    if found != facts.run.fingerprint:
        yield f"manifest.json: the fingerprint is {facts.run.fingerprint}, that of the tables is {found}"


def _manifest_is_that_of_the_scenario(facts: Facts) -> Broken:
    manifest, scenario = facts.run.manifest, facts.run.scenario
    begun = manifest.get("scenario_sha256")  # runs of earlier versions have none
    if begun is not None and begun != scenario_digest(facts.run.scenario_yaml):
        yield "scenario.yaml: is not the file that this run began with"
    network = scenario.get("network") or {}
    for key, value in (
        ("name", scenario.get("name")),
        ("seed", scenario.get("seed")),
        ("network", network.get("model") if isinstance(network, dict) else None),
    ):
        if key in manifest and value is not None and manifest[key] != value:
            yield f"manifest.json: {key} is {manifest[key]!r}, that of scenario.yaml is {value!r}"
    if scenario.get("rounds") not in (None, facts.rounds):
        yield f"rounds.parquet: {facts.rounds} rounds, scenario.yaml says {scenario['rounds']!r}"
    if manifest.get("mode") == "time-only" and len(facts["prototypes"]["round"]):
        yield "manifest.json: mode is 'time-only', but prototypes.parquet tells of learning"


def _models_are_those_of_the_scenario(facts: Facts) -> Broken:
    models, parts = facts.run.manifest.get("models"), facts["participations"]
    prototypes = facts.run.scenario.get("prototypes")
    if not isinstance(models, dict) or not isinstance(prototypes, dict):
        return
    said = {name: facts_of.get("model") for name, facts_of in models.items()}
    asked = {name: prototype.get("model") for name, prototype in prototypes.items()}
    if said != asked:
        yield f"manifest.json: models are {said}, those of scenario.yaml are {asked}"
        return
    for name, facts_of in models.items():
        wrong = (parts["prototype"] == name) & (parts["k"] > facts_of.get("parameters", np.inf))
        yield from _rows("participations", wrong, facts, f"keep more entries than {name} has")


def _rounds_follow_each_other(facts: Facts) -> Broken:
    rounds = facts["rounds"]
    begun, ended = rounds["started_at_s"], rounds["finished_at_s"]
    yield from _rows("rounds", _differ(begun[1:], ended[:-1], 0 * begun[1:]), facts, "do not start when the one before ends", 1)  # fmt: skip
    yield from _rows("rounds", _span_differs(begun, ended, rounds["duration_s"]), facts, "last longer or shorter than their duration")  # fmt: skip
    yield from _rows("rounds", rounds["server_s"] > rounds["duration_s"] * (1 + RELATIVE), facts, "are shorter than the server's work in them")  # fmt: skip


def _rounds_count_their_participations(facts: Facts) -> Broken:
    rounds, parts = facts["rounds"], facts["participations"]
    of, late = facts.row_of_participation, parts["outcome"] == "late"
    for name, counted in (("participants", np.ones(len(of), bool)), ("late", late), ("dropped", facts.lost)):  # fmt: skip
        counts = np.bincount(of[counted], minlength=facts.rounds)
        yield from _rows("rounds", counts != rounds[name], facts, f"miscount their {name}")
    for name in ("uplink_bytes", "downlink_bytes"):
        sums = np.bincount(of, weights=parts[name], minlength=facts.rounds)
        yield from _rows("rounds", _differ(sums, rounds[name], rounds[name]), facts, f"do not add up: {name}")  # fmt: skip


def _phases_sum_to_their_participation(facts: Facts) -> Broken:
    parts = facts["participations"]
    total_s = facts.elapsed_s + parts["waiting_s"] + parts["offline_s"]
    begun, ended = parts["started_at_s"], parts["finished_at_s"]
    yield from _rows("participations", _span_differs(begun, ended, total_s), facts, "have phases that do not sum to their span")  # fmt: skip
    keys = _keys(parts["round"], parts["client"])
    if len(np.unique(keys)) != len(keys):
        yield "participations.parquet: a client takes part twice in one round"
    of = facts.row_of_participation
    for instants, borders, early in (
        (begun, facts["rounds"]["started_at_s"], True),
        (ended, facts["rounds"]["finished_at_s"], False),
    ):
        border = borders[of]
        outside = _differ(instants, border, 0 * border) & ((instants < border) == early)
        if facts.synchronous:
            yield from _rows("participations", outside, facts, "lie outside their round")


def _waiting_is_slack_and_server_work(facts: Facts) -> Broken:
    if not facts.synchronous:
        return
    parts, rounds = facts["participations"], facts["rounds"]
    of, slack_s = facts.row_of_participation, parts["slack_s"]
    length_s, known = rounds["duration_s"][of], ~np.isnan(slack_s)
    expected_s = slack_s + rounds["server_s"][of]
    wrong = known & _differ(parts["waiting_s"], expected_s, length_s)
    yield from _rows("participations", wrong, facts, "wait for something else than their slack and the server")  # fmt: skip
    wrong = known & _differ(facts.elapsed_s + expected_s, length_s, length_s)
    yield from _rows("participations", wrong, facts, "have a slack that does not reach their round's end")  # fmt: skip
    critical = rounds["critical_client"][of] == parts["client"]
    wrong = critical & known & _differ(slack_s, 0 * slack_s, length_s)
    yield from _rows("participations", wrong, facts, "are critical and yet have slack")
    named = ~np.isnan(rounds["critical_client"])
    found = np.bincount(of[critical], minlength=facts.rounds)
    yield from _rows("rounds", named & (found != 1), facts, "have a critical client that took no part")  # fmt: skip


def _spans_tell_the_same_as_the_phases(facts: Facts) -> Broken:
    spans, parts = facts["spans"], facts["participations"]
    begun, ended = spans["started_at_s"], spans["finished_at_s"]
    if (ended < begun).any():
        yield "spans.parquet: spans that end before they start"
    yield from _overlaps("spans", spans["track"], begun, ended)
    ids, inverse = np.unique(_keys(parts["round"], parts["client"]), return_inverse=True)
    on_client = np.char.startswith(spans["track"].astype(str), "client ")
    known = np.isin(spans["kind"].astype(str), CLIENT_KINDS)
    counted = np.where(known, spans["kind"], "training")  # units of a method's own are local work
    for kind, phase in zip(CLIENT_KINDS, PHASES, strict=True):
        mine = on_client & (counted == kind)
        keys = _keys(spans["round"][mine], spans["client"][mine])
        at = np.searchsorted(ids, keys)
        if not np.isin(keys, ids).all():
            yield f"spans.parquet: {kind} of clients in rounds in which they took no part"
            continue
        shown_s = np.bincount(at, weights=(ended - begun)[mine], minlength=len(ids))[inverse]
        wrong = np.abs(shown_s - parts[phase]) > RELATIVE * parts[phase] + _rounding(parts["finished_at_s"])  # fmt: skip
        yield from _rows("participations", wrong, facts, f"have {kind} spans that do not sum to {phase}")  # fmt: skip


def _links_carry_what_was_sent(facts: Facts) -> Broken:
    links, parts = facts["links"], facts["participations"]
    begun, ended = links["from_s"], links["to_s"]
    most = links["capacity_bytes_per_s"] * (ended - begun + _rounding(ended))
    if (ended < begun).any():
        yield "links.parquet: intervals that end before they start"
    if (links["bytes"] > most * (1 + RELATIVE)).any():
        worst = int(np.argmax(links["bytes"] - most))
        yield f"links.parquet: more bytes than the capacity allows, first on {links['link'][worst]} from {float(begun[worst])!r} s"  # fmt: skip
    if (links["flows"] < 1).any():
        yield "links.parquet: intervals in which nobody used the link"
    yield from _overlaps("links", links["link"], begun, ended)
    if facts.run.scenario.get("network", {}).get("model", "fluid") != "fluid":
        return  # other models send headers too
    names, inverse = np.unique(links["link"].astype(str), return_inverse=True)
    carried = np.bincount(inverse, weights=links["bytes"], minlength=len(names))
    up, down = parts["uplink_bytes"], parts["downlink_bytes"]
    for name, total in zip(names.tolist(), carried.tolist(), strict=True):
        access = re.fullmatch(r"client-(\d+)/(up|down)", name)
        if access:
            sent = (up if access[2] == "up" else down)[parts["client"] == int(access[1])].sum()
        elif name in ("server/receive", "server/send"):
            sent = (up if name == "server/receive" else down).sum()
        else:
            continue  # a link inside a topology of its own
        if abs(total - sent) > 1e-7 * sent:
            yield f"links.parquet: {name} carried {total!r} bytes, the transfers over it are {float(sent)!r}"  # fmt: skip


def _pulls_follow_the_policy(facts: Facts) -> Broken:
    parts, rolled_back = facts["participations"], facts["rounds"]["rolled_back"]
    forced = parts["choice"] == "forced"
    after = np.concatenate([[False], rolled_back[:-1]])[facts.row_of_participation]
    yield from _rows("participations", forced & ~after, facts, "are forced without a rollback before")  # fmt: skip
    if facts.synchronous:
        yield from _rows("participations", after & ~forced, facts, "are free although the round before was rolled back")  # fmt: skip
        merged = np.bincount(facts.row_of_participation[~facts.lost], minlength=facts.rounds) > 0
        versions = np.concatenate([[0], np.cumsum(merged & ~rolled_back)])
        wrong = parts["model_version"] != versions[facts.row_of_participation]
        yield from _rows("participations", wrong, facts, "do not start from the number of accepted merges")  # fmt: skip
    yield from _warm_ups_are_balanced(facts)


def _warm_ups_are_balanced(facts: Facts) -> Broken:
    parts = facts["participations"]
    warmups = [p["warmup"] for p in facts.policies if p.get("warmup")]
    arms = facts.run.scenario.get("compression", {}).get("strategies", ())
    played = (parts["choice"] == "warm-up") & ~facts.lost
    if not played.any():
        return
    clients = int(parts["client"].max()) + 1
    counts = np.stack(
        [np.bincount(parts["client"][played & (parts["arm"] == arm)], minlength=clients) for arm in arms],
        axis=1,
    )  # fmt: skip
    done = np.zeros(clients, bool)
    done[parts["client"][np.isin(parts["choice"], ("explore", "exploit"))]] = True
    done &= counts.any(axis=1)  # a policy without a warm-up
    even = (counts == counts[:, :1]).all(axis=1) & np.isin(counts[:, 0], warmups)
    wrong = np.flatnonzero((counts.max(axis=1) > max(warmups, default=0)) | (done & ~even))
    if len(wrong):
        yield f"participations.parquet: {len(wrong)} clients did not warm up each strategy equally often, first: client {wrong[0]}"  # fmt: skip


def _rewards_are_gains_over_time(facts: Facts) -> Broken:
    parts = facts["participations"]
    tau_s = parts["training_s"] + parts["compression_s"] + parts["uplink_s"]
    known = np.isfinite(parts["reward_raw"]) & (tau_s > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        wrong = known & _differ(parts["reward_raw"], parts["gain"] / tau_s, parts["reward_raw"])
    yield from _rows("participations", wrong, facts, "have a raw reward that is not gain over time")
    clips = [p.get("reward", {}).get("clip", (-1.0, 1.0)) for p in facts.policies]
    paid, raw = ~np.isnan(parts["reward"]), parts["reward_raw"]
    fits = np.zeros(len(raw), bool)
    for low, high in clips:
        fits |= parts["reward"] == np.clip(raw, low, high)
    yield from _rows("participations", paid & ~fits, facts, "have a reward that is not the clipped one")  # fmt: skip
    yield from _rows("participations", paid & facts.lost, facts, "are rewarded although they were lost")  # fmt: skip


def _prototypes_are_measured_once(facts: Facts) -> Broken:
    found = facts["prototypes"]
    pairs = set(zip(found["round"].tolist(), found["prototype"].tolist(), strict=True))
    if len(pairs) != len(found["round"]):
        yield "prototypes.parquet: a prototype twice in one round"
    accuracy = found["test_accuracy"].astype(float)
    if ((accuracy < 0) | (accuracy > 1)).any():
        yield "prototypes.parquet: test_accuracy outside 0 to 1"


def _policies_have_every_arm_once(facts: Facts) -> Broken:
    rows, parts = facts["policies"], facts["participations"]
    played = facts.run.table("policies").group_by(["round", "client", "arm"]).aggregate([])
    if played.num_rows != len(rows["round"]):
        yield "policies.parquet: an arm of a client twice in one round"
    known = np.isin(_keys(rows["round"], rows["client"]), _keys(parts["round"], parts["client"]))
    if not known.all():
        yield "policies.parquet: values of clients in rounds in which they took no part"


def _summary_is_that_of_the_tables(facts: Facts) -> Broken:
    clients: dict[str, int] = {}
    for group in facts.run.scenario.get("clients", []):
        clients[group["prototype"]] = clients.get(group["prototype"], 0) + group.get("count", 1)
    for key, value in summarise(facts.run.table, clients).items():
        if facts.run.summary.get(key) != value:
            yield f"summary.json: {key} is not what the tables say"


_CHECKS = (
    _fingerprint_is_that_of_the_tables,
    _manifest_is_that_of_the_scenario,
    _models_are_those_of_the_scenario,
    _rounds_follow_each_other,
    _rounds_count_their_participations,
    _phases_sum_to_their_participation,
    _waiting_is_slack_and_server_work,
    _spans_tell_the_same_as_the_phases,
    _links_carry_what_was_sent,
    _pulls_follow_the_policy,
    _rewards_are_gains_over_time,
    _prototypes_are_measured_once,
    _policies_have_every_arm_once,
    _summary_is_that_of_the_tables,
)


def _rounding(instants: Array) -> Array:
    """What a difference of two instants may be wrong by."""
    found: Array = 16 * np.spacing(np.abs(instants))
    return found


def _differ(found: Array, expected: Array, scale: Array) -> Array:
    near: Array = np.abs(found - expected) <= RELATIVE * np.abs(scale) + _rounding(expected)
    return ~near  # so that what is no number differs


def _span_differs(begun: Array, ended: Array, length_s: Array) -> Array:
    near: Array = np.abs(ended - begun - length_s) <= RELATIVE * length_s + _rounding(ended)
    return ~near


def _rows(table: str, wrong: Array, facts: Facts, what: str, offset: int = 0) -> Broken:
    """One sentence for all rows that are wrong in the same way."""
    at = np.flatnonzero(wrong)
    if len(at) == 0:
        return
    rows, first = facts[table], int(at[0]) + offset
    which = f"round {rows['round'][first]}"
    if table == "participations":
        which += f", client {rows['client'][first]}"
    yield f"{table}.parquet: {len(at)} rows {what}, first: {which}"


def _overlaps(table: str, tracks: Array, begun: Array, ended: Array) -> Broken:
    order = np.lexsort((ended, begun, tracks.astype(str)))
    track, begun, ended = tracks[order], begun[order], ended[order]
    wrong = (track[1:] == track[:-1]) & (ended[:-1] - begun[1:] > _rounding(begun[1:]))
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        yield f"{table}.parquet: {int(wrong.sum())} overlaps on one track, first on {track[first]} at {float(begun[first + 1])!r} s"  # fmt: skip


def _keys(rounds: Array, clients: Array) -> Array:
    """One whole number per (round, client); neither comes near 2^31."""
    found: Array = (rounds.astype(np.int64) << 32) | clients.astype(np.int64)
    return found
