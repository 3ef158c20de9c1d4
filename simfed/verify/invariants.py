"""What must hold in every run directory, checked from its files alone.

Each check is a function from the facts of a run to sentences about what is broken; together they
are `simfed verify`. Sums of phases match spans to 1e-9 relative, beside the rounding of instants:
a difference of two instants near t is only good to a few units in the last place of t.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, ParamSpec

import numpy as np

from simfed.compress.choice import recorded_labels, shown_labels
from simfed.ground.errors import InputError
from simfed.record.checkpoint import CheckpointFolder
from simfed.record.digest import fingerprint, manifest_digest, scenario_digest, sha256
from simfed.record.read import Run, open_run
from simfed.record.schema import (
    ADDED_COLUMNS,
    CHOICES,
    CLIENT_KINDS,
    HELD_UP,
    HOST,
    MESSAGE_NAMES,
    OUTCOMES,
    PHASES,
    TABLES,
    columns,
)
from simfed.record.summary import summarise

__all__ = ["broken_in", "tried", "verify"]

RELATIVE = 1e-9
Array = np.ndarray[Any, Any]
Broken = Iterator[str]
_LEARNING = ("full", "deployed")
"""Modes in which something is learned."""


def verify(path: str | os.PathLike[str]) -> list[str]:
    """The broken invariants of a run directory, one sentence each; empty: all hold.

    Raises: `InputError` for what is no finished run directory at all.
    """
    return broken_in(open_run(path))


def broken_in(run: Run) -> list[str]:
    """The same of a run that is open."""
    facts = RunFacts(run)
    broken = list(_values_are_in_range(facts))
    if broken:  # the other checks would trip over such values
        return broken
    return [sentence for check in _CHECKS for sentence in tried(check, facts)]


P = ParamSpec("P")


def tried(check: Callable[P, Broken], *facts: P.args, **options: P.kwargs) -> Broken:
    """A check over facts that may be of any type: what it trips over is broken as well."""
    try:
        yield from check(*facts, **options)
    except InputError as error:
        yield str(error)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = check.__name__.strip("_").replace("_", " ")
        yield (
            f"scenario.yaml or manifest.json: a value that no run writes; whether {what} cannot be "
            f"told ({type(error).__name__}: {error})"
        )


class RunFacts:
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
        """The row in `rounds` of the round that each participation was started for."""
        return self["participations"]["round"] - 1

    @cached_property
    def row_of_merge(self) -> Array:
        """The row in `rounds` of the merge that settled each participation."""
        merge = self["participations"]["merge"]
        settled: Array = np.where(merge > 0, merge - 1, self.row_of_participation)
        return settled  # runs of earlier versions do not name it

    @cached_property
    def elapsed_s(self) -> Array:
        """Each participation's time until its upload arrived."""
        parts = self["participations"]
        total: Array = sum(parts[name] for name in PHASES[:4])  # type: ignore[assignment]
        return total + self.host_s if self.deployed else total

    @cached_property
    def deployed(self) -> bool:
        """Clients were real: so were bytes, durations and who was there."""
        return bool(self.run.manifest.get("mode") == "deployed")

    @cached_property
    def host_s(self) -> Array:
        """What no column of a deployed participation tells of its span; its spans say what of."""
        parts = self["participations"]
        told_s = sum(parts[name] for name in PHASES)
        rest: Array = parts["finished_at_s"] - parts["started_at_s"] - told_s
        return rest

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
    def faults(self) -> dict[str, Any]:
        """What the scenario lets go wrong."""
        return self.run.scenario.get("faults") or {}

    @cached_property
    def mode(self) -> str:
        """The server's; of an app that brings its own server, `exchanges`."""
        if self.run.manifest.get("mode") == "flower":
            return "exchanges"
        return str(self.run.scenario.get("aggregation", {}).get("mode", "synchronous"))

    @property
    def synchronous(self) -> bool:
        """The merge waits for everybody."""
        return self.mode == "synchronous"

    @property
    def filled(self) -> bool:
        """Clients are kept in flight: one may start again before its upload is merged."""
        return self.mode in ("buffered", "asynchronous")

    @property
    def repeats(self) -> bool:
        """A client may take part twice in one round."""
        return self.filled or self.mode == "exchanges"


def _values_are_in_range(facts: RunFacts) -> Broken:
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
    if ((parts["merge"] < 0) | (parts["merge"] > facts.rounds)).any():
        yield "participations.parquet: rows of a merge that rounds.parquet does not have"


_ANY_SIGN = ("saved_without_critical_s",)
_ANY_NUMBER = ("value", "gain", "reward", "reward_raw", "kd_loss", "test_loss", "local_loss")
"""Metrics may be whatever a diverged training makes them."""


def _fingerprint_is_that_of_the_tables(facts: RunFacts) -> Broken:
    found = fingerprint(lambda name: [facts.run.table(name)])
    if found != facts.run.fingerprint:
        yield (
            f"manifest.json: the fingerprint is {facts.run.fingerprint}, that of the tables is "
            f"{found}"
        )


def _files_are_what_was_written(facts: RunFacts) -> Broken:
    manifest, path = facts.run.manifest, facts.run.path
    # earlier versions wrote no digest, and no digests of files either
    kept = manifest.get("digest", None if "files" in manifest else manifest_digest(manifest))
    if kept != manifest_digest(manifest):
        yield "manifest.json: was changed after it was written"
    if path is None:
        return
    written = manifest.get("files")
    for name, digest in written.items() if isinstance(written, dict) else ():
        try:
            if sha256((path / name).read_bytes()) != digest:
                yield f"{name}: is not the file that this run began with"
        except OSError as error:
            yield f"{name}: cannot be read ({error.strerror or error})"
    for damage in CheckpointFolder(path / "checkpoint", str(manifest.get("id", ""))).damages():
        yield str(damage).removeprefix(f"{path}/")


def _manifest_is_that_of_the_scenario(facts: RunFacts) -> Broken:
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


def _models_are_those_of_the_scenario(facts: RunFacts) -> Broken:
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


def _rounds_follow_each_other(facts: RunFacts) -> Broken:
    rounds = facts["rounds"]
    begun, ended = rounds["started_at_s"], rounds["finished_at_s"]
    yield from _rows(
        "rounds",
        _differ(begun[1:], ended[:-1], 0 * begun[1:]),
        facts,
        "do not start when the one before ends",
        1,
    )
    yield from _rows(
        "rounds",
        _span_differs(begun, ended, rounds["duration_s"]),
        facts,
        "last longer or shorter than their duration",
    )
    yield from _rows(
        "rounds",
        rounds["server_s"] > rounds["duration_s"] * (1 + RELATIVE),
        facts,
        "are shorter than the server's work in them",
    )


def _rounds_count_their_participations(facts: RunFacts) -> Broken:
    rounds, parts = facts["rounds"], facts["participations"]
    of, late = facts.row_of_merge, parts["outcome"] == "late"
    for name, counted in (
        ("participants", np.ones(len(of), bool)),
        ("late", late),
        ("dropped", facts.lost),
    ):
        counts = np.bincount(of[counted], minlength=facts.rounds)
        yield from _rows("rounds", counts != rounds[name], facts, f"miscount their {name}")
    for name in ("uplink_bytes", "downlink_bytes"):
        sums = np.bincount(of, weights=parts[name], minlength=facts.rounds)
        yield from _rows(
            "rounds", _differ(sums, rounds[name], rounds[name]), facts, f"do not add up: {name}"
        )


def _phases_sum_to_their_participation(facts: RunFacts) -> Broken:
    parts = facts["participations"]
    total_s = facts.elapsed_s + parts["waiting_s"] + parts["offline_s"]
    begun, ended = parts["started_at_s"], parts["finished_at_s"]
    yield from _rows(
        "participations",
        _span_differs(begun, ended, total_s),
        facts,
        "have phases that do not sum to their span",
    )
    if facts.deployed:
        less = facts.host_s < -(RELATIVE * np.abs(total_s) + _rounding(ended))
        yield from _rows("participations", less, facts, "have phases longer than their span")
    keys = _keys(parts["round"], parts["client"])
    if not facts.repeats and len(np.unique(keys)) != len(keys):
        yield "participations.parquet: a client takes part twice in one round"
    for instants, borders, early in (
        (begun, facts["rounds"]["started_at_s"][facts.row_of_participation], True),
        (begun, facts["rounds"]["finished_at_s"][facts.row_of_participation], False),
        (ended, facts["rounds"]["finished_at_s"][facts.row_of_merge], False),
    ):
        outside = _differ(instants, borders, 0 * borders) & ((instants < borders) == early)
        yield from _rows("participations", outside, facts, "lie outside their round")


def _merges_follow_starts(facts: RunFacts) -> Broken:
    parts, late = facts["participations"], facts["participations"]["outcome"] == "late"
    age = facts.row_of_merge - facts.row_of_participation
    yield from _rows("participations", age < 0, facts, "are settled before their round")
    known = parts["merge"] > 0
    yield from _rows(
        "participations",
        known & (parts["staleness"] != age),
        facts,
        "have a staleness that is not the merges between",
    )
    if facts.filled:
        yield from _rows("participations", late, facts, "are late where nobody can be")
    else:
        arrived = ~facts.lost
        yield from _rows(
            "participations",
            arrived & late & (age == 0),
            facts,
            "are late and yet merged with their round",
        )
        yield from _rows(
            "participations",
            known & arrived & ~late & (age != 0),
            facts,
            "are not late and yet merged after their round",
        )
    if facts.mode == "synchronous":
        yield from _rows(
            "participations",
            age > 0,
            facts,
            "are settled after their round, in a server that waits for all",
        )


def _waiting_is_slack_and_server_work(facts: RunFacts) -> Broken:
    parts, rounds = facts["participations"], facts["rounds"]
    of, slack_s = facts.row_of_merge, parts["slack_s"]
    length_s, known = rounds["duration_s"][of], ~np.isnan(slack_s)
    server_s = rounds["server_s"][of]
    if facts.synchronous:
        expected_s = slack_s + server_s
        wrong = known & _differ(parts["waiting_s"], expected_s, length_s)
        yield from _rows(
            "participations",
            wrong,
            facts,
            "wait for something else than their slack and the server",
        )
        wrong = known & _differ(facts.elapsed_s + expected_s, length_s, length_s)
        yield from _rows(
            "participations", wrong, facts, "have a slack that does not reach their round's end"
        )
    else:
        ended, merged = parts["finished_at_s"] - parts["waiting_s"], rounds["finished_at_s"][of]
        wrong = known & _span_differs(ended, merged, slack_s + server_s)
        yield from _rows(
            "participations", wrong, facts, "have a slack that does not reach their merge"
        )
        if facts.filled:
            yield from _rows(
                "participations", parts["waiting_s"] > 0, facts, "wait where nobody is waited for"
            )
    critical = rounds["critical_client"][of] == parts["client"]
    least_s = np.full(facts.rounds, np.inf)  # it may have several uploads in one merge
    np.minimum.at(least_s, of[critical & known], slack_s[critical & known])
    wrong = critical & (slack_s == least_s[of]) & _differ(slack_s, 0 * slack_s, length_s)
    yield from _rows("participations", wrong, facts, "are critical and yet have slack")
    named = ~np.isnan(rounds["critical_client"])
    found = np.bincount(of[critical], minlength=facts.rounds)
    yield from _rows(
        "rounds", named & (found == 0), facts, "have a critical client that took no part"
    )


def _spans_tell_the_same_as_the_phases(facts: RunFacts) -> Broken:
    spans, parts = facts["spans"], facts["participations"]
    begun, ended = spans["started_at_s"], spans["finished_at_s"]
    if (ended < begun).any():
        yield "spans.parquet: spans that end before they start"
    yield from _overlaps("spans", spans["track"], begun, ended)
    ids, inverse = np.unique(_keys(parts["round"], parts["client"]), return_inverse=True)
    on_client = np.char.startswith(spans["track"].astype(str), "client ")
    kinds = spans["kind"].astype(str)
    if facts.faults:  # what held a phase up is part of it, and named after it
        kinds = np.where(np.isin(kinds, HELD_UP), spans["name"].astype(str), kinds)
    known = np.isin(kinds, (*CLIENT_KINDS, HOST) if facts.deployed else CLIENT_KINDS)
    counted = np.where(known, kinds, "training")  # units of a method's own are local work
    spent = [(kind, parts[phase], phase) for kind, phase in zip(CLIENT_KINDS, PHASES, strict=True)]
    if facts.deployed:
        spent.append((HOST, np.maximum(facts.host_s, 0.0), "the rest of their span"))
    for kind, seconds, phase in spent:
        mine = on_client & (counted == kind)
        keys = _keys(spans["round"][mine], spans["client"][mine])
        at = np.searchsorted(ids, keys)
        if not np.isin(keys, ids).all():
            yield f"spans.parquet: {kind} of clients in rounds in which they took no part"
            continue
        shown_s = np.bincount(at, weights=(ended - begun)[mine], minlength=len(ids))[inverse]
        spent_s = np.bincount(inverse, weights=seconds, minlength=len(ids))[inverse]
        wrong = np.abs(shown_s - spent_s) > RELATIVE * spent_s + _rounding(parts["finished_at_s"])
        yield from _rows(
            "participations", wrong, facts, f"have {kind} spans that do not sum to {phase}"
        )


def _tracks_are_named_after_whom_they_show(facts: RunFacts) -> Broken:
    spans = facts["spans"]
    tracks = spans["track"].astype(str)
    numbered = ~np.isnan(spans["client"].astype(float))
    on_client = np.char.startswith(tracks, "client ")
    of = np.char.add("client ", np.where(numbered, spans["client"], -1).astype(int).astype(str))
    wrong = on_client & (~numbered | (tracks != of))
    yield from _spans(wrong, spans, "are on the track of another client")
    on_link = np.char.startswith(tracks, "link ")
    yield from _spans(
        on_link != (spans["kind"] == "busy"), spans, "are busy, but on no link's track"
    )
    yield from _spans(~(on_client | on_link | (tracks == "server")), spans, "are on no known track")
    rounds = spans["round"].astype(float)
    none = np.isnan(rounds) | (rounds < 1) | (rounds > facts.rounds)
    yield from _spans(none, spans, "belong to no round")
    if not facts.synchronous or none.any():
        return
    of_round = rounds.astype(int) - 1
    for name, sign in (("started_at_s", 1), ("finished_at_s", -1)):
        border, instants = facts["rounds"][name][of_round], spans[name]
        outside = sign * (border - instants) > _rounding(border) + RELATIVE * np.abs(border)
        yield from _spans(outside, spans, "lie outside their round")
    yield from _labels_are_those_of_the_work(facts, of_round)


def _labels_are_those_of_the_work(facts: RunFacts, of_round: Array) -> Broken:
    """Compressions are named after the arm, transfers after themselves."""
    spans, parts = facts["spans"], facts["participations"]
    arms = dict(zip(_keys(parts["round"], parts["client"]), parts["arm"], strict=True))
    mine = np.flatnonzero((spans["kind"] == "compression") & (spans["track"] != "server"))
    keys = _keys(spans["round"][mine], spans["client"][mine])
    wrong = np.zeros(len(of_round), bool)
    wrong[mine] = [
        arms.get(key, name) != name for key, name in zip(keys, spans["name"][mine], strict=True)
    ]
    yield from _spans(wrong, spans, "are named after another arm")
    transfers = np.isin(spans["kind"], ("download", "upload", "waiting", "offline", "busy"))
    wrong = transfers & (spans["name"] != spans["kind"])
    if facts.faults.get("messages"):
        messages = np.isin(spans["kind"], ("download", "upload"))
        wrong &= ~(messages & np.isin(spans["name"], MESSAGE_NAMES))
    yield from _spans(wrong, spans, "are not named as their kind")


def _links_are_busy_when_they_carry(facts: RunFacts) -> Broken:
    spans, links = facts["spans"], facts["links"]
    on_link = spans["kind"] == "busy"
    if not on_link.any():  # recorded elsewhere, without intervals of links
        return
    names = np.array([track[len("link ") :] for track in spans["track"][on_link]], str)
    shown = _joined(names, spans["started_at_s"][on_link], spans["finished_at_s"][on_link])
    used = _joined(links["link"].astype(str), links["from_s"], links["to_s"])
    for name in sorted(shown.keys() | used.keys()):
        if not np.array_equal(shown.get(name, ()), used.get(name, ())):
            yield (
                f"spans.parquet: link {name} is not busy when links.parquet says that it carried "
                "something"
            )
            return


def _joined(names: Array, begun: Array, ended: Array) -> dict[str, Array]:
    """Per name the borders of its intervals, those that touch each other as one."""
    found = {}
    order = np.lexsort((ended, begun, names))
    names, begun, ended = names[order], begun[order], ended[order]
    for name in np.unique(names):
        mine = names == name
        first, last = begun[mine], ended[mine]
        apart = first[1:] != last[:-1]
        borders = [first[np.concatenate([[True], apart])], last[np.concatenate([apart, [True]])]]
        found[str(name)] = np.stack(borders)
    return found


def _links_carry_what_was_sent(facts: RunFacts) -> Broken:
    links, parts = facts["links"], facts["participations"]
    begun, ended = links["from_s"], links["to_s"]
    largest = max(parts[way].max(initial=0) for way in ("uplink_bytes", "downlink_bytes"))
    # an interval's bytes are a difference of what transfers still have to go
    most = links["capacity_bytes_per_s"] * (ended - begun + _rounding(ended))
    most += np.where(links["capacity_bytes_per_s"] > 0, _rounding(largest), 0.0)
    if (ended < begun).any():
        yield "links.parquet: intervals that end before they start"
    if (links["bytes"] > most * (1 + RELATIVE)).any():
        worst = int(np.argmax(links["bytes"] - most))
        yield (
            f"links.parquet: more bytes than the capacity allows, first on {links['link'][worst]} "
            f"from {float(begun[worst])!r} s"
        )
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
            yield (
                f"links.parquet: {name} carried {total!r} bytes, the transfers over it are "
                f"{float(sent)!r}"
            )


def _pulls_follow_the_policy(facts: RunFacts) -> Broken:
    parts, rolled_back = facts["participations"], facts["rounds"]["rolled_back"]
    forced = parts["choice"] == "forced"
    after = np.concatenate([[False], rolled_back[:-1]])[facts.row_of_participation]
    yield from _rows(
        "participations", forced & ~after, facts, "are forced without a rollback before"
    )
    yield from _rows(
        "participations",
        after & ~forced,
        facts,
        "are free although the round before was rolled back",
    )
    merged = np.bincount(facts.row_of_merge[~facts.lost], minlength=facts.rounds) > 0
    versions = np.concatenate([[0], np.cumsum(merged & ~rolled_back)])
    wrong = parts["model_version"] != versions[facts.row_of_participation]
    yield from _rows(
        "participations", wrong, facts, "do not start from the number of accepted merges"
    )
    yield from _warm_ups_are_balanced(facts)


def _merges_are_counted(facts: RunFacts) -> Broken:
    """Rounds count merges, so what is merged later than its own round is that much stale."""
    parts = facts["participations"]
    stale = parts["merge"] - parts["round"]
    wrong = (stale != parts["staleness"]) | (stale < 0) | (parts["merge"] > facts.rounds)
    yield from _rows(
        "participations", wrong, facts, "have a staleness that their merge does not come to"
    )
    if facts.synchronous:
        yield from _rows(
            "participations", stale != 0, facts, "are merged in another round than their own"
        )


def _warm_ups_are_balanced(facts: RunFacts) -> Broken:
    parts = facts["participations"]
    warmups = [p["warmup"] for p in facts.policies if p.get("warmup")]
    compression = facts.run.scenario.get("compression", {})
    played = (parts["choice"] == "warm-up") & ~facts.lost
    if not played.any() or compression.get("pairs") == "factored":
        return  # of two bandits that warm up apart, no pair is played equally often
    arms = recorded_labels(facts.run.scenario)
    clients = int(parts["client"].max()) + 1
    counts = np.stack(
        [
            np.bincount(parts["client"][played & (parts["arm"] == arm)], minlength=clients)
            for arm in arms
        ],
        axis=1,
    )
    done = np.zeros(clients, bool)
    done[parts["client"][np.isin(parts["choice"], ("explore", "exploit"))]] = True
    done &= counts.any(axis=1)  # a policy without a warm-up
    if facts.filled:
        # whose warm-up was lost may have gone on before the next merge gave its turn back
        lost = (parts["choice"] == "warm-up") & facts.lost
        done[parts["client"][lost]] = False
    even = (counts == counts[:, :1]).all(axis=1) & np.isin(counts[:, 0], warmups)
    wrong = np.flatnonzero((counts.max(axis=1) > max(warmups, default=0)) | (done & ~even))
    if len(wrong):
        yield (
            f"participations.parquet: {len(wrong)} clients did not warm up each strategy equally "
            f"often, first: client {wrong[0]}"
        )


def _rewards_are_gains_over_time(facts: RunFacts) -> Broken:
    parts = facts["participations"]
    tau_s = parts["training_s"] + parts["compression_s"] + parts["uplink_s"]
    known = np.isfinite(parts["reward_raw"]) & (tau_s > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        wrong = known & _differ(parts["reward_raw"], parts["gain"] / tau_s, parts["reward_raw"])
    yield from _rows("participations", wrong, facts, "have a raw reward that is not gain over time")
    clips = [p.get("reward", {}).get("clip", (-1.0, 1.0)) for p in facts.policies]
    bounds = [clip or (-np.inf, np.inf) for clip in clips]
    paid, raw = ~np.isnan(parts["reward"]), parts["reward_raw"]
    fits = np.zeros(len(raw), bool)
    for low, high in bounds:
        fits |= parts["reward"] == np.clip(raw, low, high)
    yield from _rows(
        "participations", paid & ~fits, facts, "have a reward that is not the clipped one"
    )
    yield from _rows(
        "participations", paid & facts.lost, facts, "are rewarded although they were lost"
    )


def _rows_are_in_order(facts: RunFacts) -> Broken:
    for table, names in (
        ("participations", ("merge", "client")),
        ("policies", ("round",) if facts.filled else ("round", "client")),
        ("prototypes", ("round",)),
        ("clients", ("round", "client")),
    ):
        if table not in TABLES:
            continue
        columns_ = [facts[table][name].astype(float) for name in names]
        at = columns_[0] if len(names) == 1 else _keys(*columns_)
        if (np.diff(at) < 0).any():
            yield f"{table}.parquet: rows that are not in the order of {' and '.join(names)}"


def _columns_are_those_of_the_format(facts: RunFacts) -> Broken:
    """Names, types and their order, those that earlier versions did not write aside."""
    for table in TABLES:
        written, known = facts.run.schema_in_file(table), facts.run.table(table).schema
        strange = [name for name in written.names if name not in known.names]
        if strange:
            yield f"{table}.parquet: a column that no run writes, {strange[0]!r}"
            continue
        added = [name for name in ADDED_COLUMNS.get(table, ()) if name not in written.names]
        asked = [field for field in known if field.name not in added]
        for field, expected in zip(written, asked, strict=False):
            if field != expected:
                yield f"{table}.parquet: a column {field} where runs have {expected}"
                break


def _evaluations_are_due(facts: RunFacts) -> Broken:
    """Every prototype is measured every `evaluation.every` rounds and after the last one."""
    found, scenario = facts["prototypes"], facts.run.scenario
    every = (scenario.get("evaluation") or {}).get("every")
    learned = facts.run.manifest.get("mode") in _LEARNING
    if not learned or not every or not scenario.get("prototypes"):
        return
    measured = ~np.isnan(found["test_accuracy"].astype(float))
    due = (found["round"] % every == 0) | (found["round"] == facts.rounds)
    yield from _rows(
        "prototypes", measured & ~due, facts, "are measured in a round that is not evaluated"
    )
    rounds_due = {r for r in range(1, facts.rounds + 1) if r % every == 0 or r == facts.rounds}
    pairs = set(
        zip(found["round"][measured].tolist(), found["prototype"][measured].tolist(), strict=True)
    )
    missing = sorted({(r, p) for r in rounds_due for p in scenario["prototypes"]} - pairs)
    if missing:
        yield (
            f"prototypes.parquet: {len(missing)} evaluations are missing, first: round "
            f"{missing[0][0]}, {missing[0][1]}"
        )
    unknown = sorted(set(found["prototype"].tolist()) - set(scenario["prototypes"]))
    if unknown:
        yield f"prototypes.parquet: {unknown[0]!r} is no prototype of scenario.yaml"


def _clients_are_evaluated_when_prototypes_are(facts: RunFacts) -> Broken:
    """Everybody, or where models are personal everybody who has taken part, once per round."""
    found, scenario = facts["clients"], facts.run.scenario
    rounds, clients = found["round"], found["client"]
    if not len(rounds):
        return
    if len(np.unique(_keys(rounds, clients))) != len(rounds):
        yield "clients.parquet: a client twice in one round"
    count = sum(int(group.get("count", 1)) for group in scenario.get("clients", []))
    strange = (clients < 0) | (clients >= count)
    yield from _rows("clients", strange, facts, "are of a client that the scenario does not have")
    every = (scenario.get("evaluation") or {}).get("every")
    if every:
        due = (rounds % every == 0) | (rounds == facts.rounds)
        yield from _rows("clients", ~due, facts, "are of a round that is not evaluated")
    for name in ("accuracy", "own_accuracy"):
        yield from _rows("clients", found[name] > 1, facts, f"have a {name} above 1")


def _prototypes_are_measured_once(facts: RunFacts) -> Broken:
    found = facts["prototypes"]
    pairs = set(zip(found["round"].tolist(), found["prototype"].tolist(), strict=True))
    if len(pairs) != len(found["round"]):
        yield "prototypes.parquet: a prototype twice in one round"
    accuracy = found["test_accuracy"].astype(float)
    if ((accuracy < 0) | (accuracy > 1)).any():
        yield "prototypes.parquet: test_accuracy outside 0 to 1"


def _policies_have_every_arm_once(facts: RunFacts) -> Broken:
    rows, parts = facts["policies"], facts["participations"]
    played = facts.run.table("policies").group_by(["round", "client", "arm"]).aggregate([])
    if not facts.filled and played.num_rows != len(rows["round"]):
        yield "policies.parquet: an arm of a client twice in one round"
    keys = _keys(parts["round"], parts["client"])
    known = np.isin(_keys(rows["round"], rows["client"]), keys)
    if not known.all():
        yield "policies.parquet: values of clients in rounds in which they took no part"
    of_client = np.isin(parts["client"], np.unique(rows["client"]))
    if facts.run.manifest.get("mode") in _LEARNING:
        of_client |= np.isin(parts["choice"], ("warm-up", "explore", "exploit"))
    factored = (facts.run.scenario.get("compression") or {}).get("pairs") == "factored"
    arms = shown_labels(recorded_labels(facts.run.scenario), factored=factored)
    if any(policy.get("arms_from") for policy in facts.policies) or not arms:
        return
    arms_of_k = {
        *arms,
        *recorded_labels(facts.run.scenario),
    }  # one that sets K chooses among these, though factored
    named = {str(p["strategy"]) for p in facts.policies if p.get("strategy")}
    shown = np.isin(keys, _keys(rows["round"], rows["client"]))
    yield from _rows(
        "participations", of_client & ~shown, facts, "have no values in policies.parquet"
    )
    strange = sorted(set(rows["arm"].tolist()) - arms_of_k - named)
    if strange:
        yield f"policies.parquet: {strange[0]!r} is no strategy of scenario.yaml"
    if not named and len(rows["round"]) != len(arms) * int((of_client & shown).sum()):
        yield "policies.parquet: not one row for each strategy of each client and round"


def _critical_phases_are_the_longest(facts: RunFacts) -> Broken:
    """Of the critical client's phases and the server's work."""
    if not facts.synchronous:
        return
    rounds, parts = facts["rounds"], facts["participations"]
    of = facts.row_of_participation
    mine = np.flatnonzero(rounds["critical_client"][of] == parts["client"])
    named, server_s = rounds["critical_phase"][of[mine]], rounds["server_s"][of[mine]]
    longest = np.max([*(parts[name][mine] for name in PHASES[:4]), server_s], axis=0)
    spent = server_s.copy()
    for kind, phase in zip(CLIENT_KINDS[:4], PHASES[:4], strict=True):
        spent = np.where(named == kind, parts[phase][mine], spent)
    known = np.isin(named, (*CLIENT_KINDS[:4], "server"))  # units of other kinds have no column
    wrong = np.zeros(facts.rounds, bool)
    wrong[of[mine]] = known & _differ(spent, longest, longest) & (server_s < longest)
    yield from _rows("rounds", wrong, facts, "have a critical phase that is not the longest")
    links = set(facts["links"]["link"].tolist())
    strange = np.array([n is not None and n not in links for n in rounds["critical_link"]], bool)
    yield from _rows("rounds", strange, facts, "have a critical link that carried nothing")
    carries = np.isin(rounds["critical_phase"], ("download", "upload"))
    has_link = np.array([name is not None for name in rounds["critical_link"]], bool)
    yield from _rows(
        "rounds", has_link & ~carries, facts, "have a critical link, but no transfer was critical"
    )
    saved = rounds["saved_without_critical_s"].astype(float)
    yield from _rows(
        "rounds",
        saved > rounds["duration_s"] * (1 + RELATIVE),
        facts,
        "would be shorter than nothing without their critical client",
    )


def _summary_is_that_of_the_tables(facts: RunFacts) -> Broken:
    clients: dict[str, int] = {}
    for group in facts.run.scenario.get("clients", []):
        clients[group["prototype"]] = clients.get(group["prototype"], 0) + group.get("count", 1)
    again, summary = summarise(facts.run.table, clients), facts.run.summary
    for key in sorted(again.keys() | summary.keys()):
        if key not in again or summary.get(key) != again[key]:
            yield f"summary.json: {key} is not what the tables say"


_CHECKS = (
    _files_are_what_was_written,
    _fingerprint_is_that_of_the_tables,
    _manifest_is_that_of_the_scenario,
    _models_are_those_of_the_scenario,
    _rounds_follow_each_other,
    _rounds_count_their_participations,
    _phases_sum_to_their_participation,
    _merges_follow_starts,
    _waiting_is_slack_and_server_work,
    _spans_tell_the_same_as_the_phases,
    _tracks_are_named_after_whom_they_show,
    _links_are_busy_when_they_carry,
    _links_carry_what_was_sent,
    _pulls_follow_the_policy,
    _merges_are_counted,
    _rewards_are_gains_over_time,
    _clients_are_evaluated_when_prototypes_are,
    _prototypes_are_measured_once,
    _policies_have_every_arm_once,
    _rows_are_in_order,
    _columns_are_those_of_the_format,
    _evaluations_are_due,
    _critical_phases_are_the_longest,
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


def _rows(table: str, wrong: Array, facts: RunFacts, what: str, offset: int = 0) -> Broken:
    """One sentence for all rows that are wrong in the same way."""
    at = np.flatnonzero(wrong)
    if len(at) == 0:
        return
    rows, first = facts[table], int(at[0]) + offset
    which = f"round {rows['round'][first]}"
    if table == "participations":
        which += f", client {rows['client'][first]}"
    yield f"{table}.parquet: {len(at)} rows {what}, first: {which}"


def _spans(wrong: Array, spans: dict[str, Array], what: str) -> Broken:
    at = np.flatnonzero(wrong)
    if len(at):
        yield (
            f"spans.parquet: {len(at)} spans {what}, first: {spans['track'][at[0]]} from "
            f"{float(spans['started_at_s'][at[0]])!r} s"
        )


def _overlaps(table: str, tracks: Array, begun: Array, ended: Array) -> Broken:
    order = np.lexsort((ended, begun, tracks.astype(str)))
    track, begun, ended = tracks[order], begun[order], ended[order]
    wrong = (track[1:] == track[:-1]) & (ended[:-1] - begun[1:] > _rounding(begun[1:]))
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        yield (
            f"{table}.parquet: {int(wrong.sum())} overlaps on one track, first on {track[first]} "
            f"at {float(begun[first + 1])!r} s"
        )


def _keys(rounds: Array, clients: Array) -> Array:
    """One whole number per (round, client), which no run counts up to 2^31; -1: one of them is
    missing."""
    known = ~(np.isnan(rounds.astype(float)) | np.isnan(clients.astype(float)))
    high = np.where(known, rounds, 0).astype(np.int64) << 32
    found: Array = np.where(known, high | np.where(known, clients, 0).astype(np.int64), -1)
    return found
