"""Invariants of a run directory, checked from its files alone.

Each check is a function from the columns of a run to what is broken: a sentence, or
`WrongRows`, the rows of a table that are wrong in one way. `FILES` hold the files
against each other; they are asked of every run. `CLOCK` are what a clock's rows must
obey, whoever wrote them: they are asked of runs that cannot be played again (Flower
apps), since playing again (`simfed.verify.again`) finds whatever they find.

Sums of phases match spans to 1e-9 relative, beside the rounding of instants: a
difference of two instants near t is only good to a few units in the last place of t.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from simfed.ground.errors import InputError
from simfed.ground.inputs import read_bytes
from simfed.ground.measure import CLASS_MEASURES, MEASURES, RECALL
from simfed.record.checkpoint import CheckpointFolder
from simfed.record.digest import digest_manifest, digest_scenario, fingerprint, sha256
from simfed.record.journal import read_finished
from simfed.record.read import Run
from simfed.record.schema import (
    CHOICES,
    HELD_UP,
    LANE,
    OUTCOMES,
    TABLES,
    columns,
    list_phases,
)
from simfed.record.summary import summarise

RELATIVE = 1e-9
Array = np.ndarray[Any, Any]


class WrongRows(NamedTuple):
    """Rows of a table that are wrong in the same way.

    Checks yield it for what may hit any number of rows; `run_check` drops it where no
    row is wrong, and else puts count and first row into a sentence.
    """

    table: str
    """Its name, without `.parquet`."""
    wrong: Array
    """True for each row of the table that is wrong."""
    what: str
    """The end of a sentence: `3 rows {what}, first: …`."""


Broken = Iterator[str | WrongRows]
"""What a check finds."""


def find_broken(run: Run, *, clock: bool = True) -> list[str]:
    """Return what is broken in an open run, a sentence each.

    Args:
        run: any, with or without a folder.
        clock: also check the rows of its clock, which playing again checks otherwise.
    """
    facts = RunColumns(run)
    broken = run_check(_values_are_in_range, facts) if clock else []
    if broken:  # the other checks would trip over such values
        return broken
    checks = (*FILES, *CLOCK) if clock else FILES
    return [sentence for check in checks for sentence in run_check(check, facts)]


def run_check(
    check: Callable[..., Broken], facts: RunColumns, *more: object
) -> list[str]:
    """Return what a check finds in a run whose cells may be of any type.

    What the check trips over is broken as well, and said in the words of its name.

    Args:
        check: yields what is broken.
        facts: the run.
        more: further arguments of the check.

    Returns:
        A sentence each.
    """
    broken: list[str] = []
    try:
        for one in check(facts, *more):
            if isinstance(one, str):
                broken.append(one)
            elif one.wrong.any():
                broken.append(_describe_rows(one, facts))
    except InputError as error:
        broken.append(str(error))
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        what = check.__name__.strip("_").replace("_", " ")
        broken.append(
            "scenario.yaml or manifest.json: a value that no run writes; whether "
            f"{what} cannot be told ({type(error).__name__}: {error})"
        )
    return broken


def _describe_rows(rows: WrongRows, facts: RunColumns) -> str:
    """Return a sentence: how many rows are wrong, how, and which is the first.

    Args:
        rows: at least one of which is wrong.
        facts: the run, in which the first wrong row is looked up. A span or an interval
            of a link is named by its track and start, other rows by their keys.
    """
    at = np.flatnonzero(rows.wrong)
    row = {name: values[at[0]] for name, values in facts[rows.table].items()}
    if rows.table == "spans":
        first = f"{row['track']} from {float(row['started_at_s'])!r} s"
    elif rows.table == "links":
        first = f"{row['link']} from {float(row['from_s'])!r} s"
    else:
        first = ", ".join(
            f"{k} {row[k]}" for k in ("round", "client", "prototype") if k in row
        )
    return f"{rows.table}.parquet: {len(at)} rows {rows.what}, first: {first}"


class RunColumns:
    """The columns of a run as arrays, and what several checks need of them.

    `facts["rounds"]["duration_s"]` is a column, read once. Nothing is checked here:
    properties may raise where a file says nonsense, which `run_check` reports.
    """

    def __init__(self, run: Run) -> None:
        """Begin with nothing read; `run`: the one that is checked."""
        self.run = run
        self._tables: dict[str, dict[str, Array]] = {}

    def __getitem__(self, name: str) -> dict[str, Array]:
        """Return a table's columns; missing numbers are NaN, missing text is None."""
        if name not in self._tables:
            table = self.run.table(name)
            self._tables[name] = {
                c: table.column(c).to_numpy() for c in table.column_names
            }
        return self._tables[name]

    @cached_property
    def rounds(self) -> int:
        """The number of rounds the run had."""
        return len(self["rounds"]["round"])

    @cached_property
    def row_of_round(self) -> Array:
        """The row in `rounds` of the round that each participation was started for."""
        return self["participations"]["round"] - 1

    @cached_property
    def row_of_merge(self) -> Array:
        """The row in `rounds` of the merge that settled each participation."""
        return self["participations"]["merge"] - 1

    @cached_property
    def lost(self) -> Array:
        """Per participation, whether its upload was lost."""
        return np.isin(self["participations"]["outcome"], ("dropped", "failed"))


# ---- of every run: its files against each other --------------------------------------


def _values_are_in_range(facts: RunColumns) -> Broken:
    """Check signs, finite numbers, empty cells, words, and numbers of rounds.

    The other checks compute with these values.
    """
    signed, endless = _list_unbounded(facts)
    for table in TABLES:
        for column in columns(table):
            arrow = facts.run.table(table).column(column.name)
            where = f"{table}.parquet: {column.name}"
            if arrow.null_count and not column.nullable:
                yield (
                    f"{where}: {arrow.null_count} empty values in a column that has "
                    f"none"
                )
                continue
            if column.dtype != "float64":
                continue
            values = arrow.drop_null().to_numpy()
            finite = np.isfinite(values)
            if column.name in _CROSS_ENTROPIES - endless:
                finite |= np.isnan(values)  # of outputs that are no numbers
            if column.name not in endless and not finite.all():
                yield f"{where}: values that are not finite numbers"
            elif column.name not in signed and (values < 0).any():
                lowest = float(np.nanmin(values))
                yield f"{where}: negative values, the lowest is {lowest!r}"
    parts = facts["participations"]
    for name, words in (("outcome", OUTCOMES), ("choice", CHOICES)):
        strange = sorted(set(parts[name].tolist()) - set(words))
        if strange:
            yield (
                f"participations.parquet: {name}: {strange[0]!r} is none of "
                f"{', '.join(words)}"
            )
    numbers = facts["rounds"]["round"]
    if not np.array_equal(numbers, np.arange(1, facts.rounds + 1)):
        yield f"rounds.parquet: the rounds are not 1 to {facts.rounds}"
    for table in TABLES:
        round = facts[table].get("round")
        if table == "spans" or round is None:  # a span may belong to no round
            continue
        if ((round < 1) | (round > facts.rounds)).any():
            yield f"{table}.parquet: rows of a round that rounds.parquet does not have"
    if ((parts["merge"] < parts["round"]) | (parts["merge"] > facts.rounds)).any():
        yield (
            "participations.parquet: rows of a merge that rounds.parquet does not have "
            "after them"
        )


def _measures_are_those_of_classes(facts: RunColumns) -> Broken:
    """Check that measures per class are shares, and balanced accuracy is their mean."""
    named = (facts.run.scenario.get("evaluation") or {}).get("measures", ())
    keys = {c.key for name, c in CLASS_MEASURES.items() if name in named} - {"accuracy"}
    for table, prefix in (("prototypes", "test_"), ("clients", "")):
        rows = facts.run.table(table).to_pandas()
        recalls = [name for name in rows if name.startswith(f"{prefix}{RECALL}_")]
        for key in sorted(keys):
            if prefix + key not in rows and len(rows):
                yield f"{table}.parquet: the column {prefix + key!r} is missing"
        for name in [*recalls, *(prefix + key for key in keys if prefix + key in rows)]:
            wrong = (rows[name] < 0) | (rows[name] > 1)
            yield WrongRows(table, wrong.to_numpy(), f"have a {name} outside of 0 to 1")
        balanced = f"{prefix}{CLASS_MEASURES['balanced-accuracy'].key}"
        if recalls and balanced in rows:
            apart = (rows[recalls].mean(axis=1) - rows[balanced]).abs() > RELATIVE
            what = f"have a {balanced} that is not the mean of their recalls"
            yield WrongRows(table, apart.to_numpy(), what)


_ACCURACIES = {"test_accuracy", "accuracy", "own_accuracy"}
_CROSS_ENTROPIES = {"test_loss", "loss", "own_loss"}
_FILLED = ("buffered", "asynchronous")
"""Modes that keep clients in flight: one may start again before its upload merges."""
_GAINS = {"value", "gain", "reward", "reward_raw"}


def _list_unbounded(facts: RunColumns) -> tuple[set[str], set[str]]:
    """Return columns that may be negative, and columns that may be no numbers.

    The latter may be infinite or NaN, as a diverged training makes them. A regression's
    accuracies are R², its losses squared errors; of an app nobody knows what it
    measured.
    """
    signed = {"saved_without_critical_s"} | _GAINS
    endless = {"kd_loss", "local_loss"} | _GAINS
    is_app = facts.run.manifest.get("mode") == "flower"
    if is_app or facts.run.measure == MEASURES["regression"]:
        signed |= _ACCURACIES
        endless |= _ACCURACIES | _CROSS_ENTROPIES
    if is_app:
        signed |= _CROSS_ENTROPIES
    return signed, endless


def _fingerprint_is_that_of_the_tables(facts: RunColumns) -> Broken:
    """Check the manifest's fingerprint against all rows of all tables."""
    again = fingerprint(lambda name: [facts.run.table(name)])
    if again != facts.run.fingerprint:
        yield (
            f"manifest.json: the fingerprint is {facts.run.fingerprint}, that of the "
            f"tables is {again}"
        )


def _files_are_what_was_written(facts: RunColumns) -> Broken:
    """Check digests: of the manifest, the files beside it, journal and checkpoints.

    The manifest seals itself and names the digests of the other files, so that damage
    is found whatever was damaged. Whoever seals everything anew is found by playing
    again.
    """
    manifest, path = facts.run.manifest, facts.run.path
    if manifest.get("digest") != digest_manifest(manifest):
        yield "manifest.json: was changed after it was written"
    if path is None:
        return
    files = manifest.get("files")
    for name, digest in files.items() if isinstance(files, dict) else ():
        try:
            if sha256(read_bytes(path / name)) != digest:
                yield f"{name}: is not the file that this run began with"
        except InputError as error:
            yield str(error).removeprefix(f"{path}/")
    if "journal" in manifest:
        for _ in read_finished(path, manifest["journal"]):
            pass
    for damage in CheckpointFolder(
        path / "checkpoint", str(manifest.get("id", ""))
    ).list_damages():
        yield str(damage).removeprefix(f"{path}/")


def _manifest_is_that_of_the_scenario(facts: RunColumns) -> Broken:
    """Check what the manifest repeats of the scenario, and that modes fit the files."""
    manifest, scenario = facts.run.manifest, facts.run.scenario
    if manifest.get("scenario_sha256") != digest_scenario(facts.run.scenario_yaml):
        yield "scenario.yaml: is not the file that this run began with"
    network = scenario.get("network") or {}
    for key, value in (
        ("name", scenario.get("name")),
        ("seed", scenario.get("seed")),
        ("network", network.get("model") if isinstance(network, dict) else None),
    ):
        if key in manifest and value is not None and manifest[key] != value:
            yield (
                f"manifest.json: {key} is {manifest[key]!r}, that of scenario.yaml is "
                f"{value!r}"
            )
    if scenario.get("rounds") not in (None, facts.rounds):
        yield (
            f"rounds.parquet: {facts.rounds} rounds, scenario.yaml says "
            f"{scenario['rounds']!r}"
        )
    if manifest.get("mode") == "time-only" and len(facts["prototypes"]["round"]):
        yield (
            "manifest.json: mode is 'time-only', but prototypes.parquet tells of "
            "learning"
        )
    if manifest.get("mode") == "flower" and "dataset" in scenario:
        yield (
            "manifest.json: mode is 'flower', but scenario.yaml has a data set, which "
            "no app has"
        )


def _columns_are_those_of_the_format(facts: RunColumns) -> Broken:
    """Check names, types and the order of columns in the files."""
    for table in TABLES:
        written, schema = facts.run.read_schema(table), facts.run.table(table).schema
        strange = [name for name in written.names if name not in schema.names]
        if strange:
            yield f"{table}.parquet: a column that no run writes, {strange[0]!r}"
            continue
        for field, expected in zip(written, schema, strict=False):
            if field != expected:
                yield f"{table}.parquet: a column {field} where runs have {expected}"
                break


def _rows_are_in_order(facts: RunColumns) -> Broken:
    """Check the order of rows that each table declares, and that none stands twice.

    Beliefs of policies are in the order of clients within a round only where each
    client is started once in a round.
    """
    server = facts.run.scenario.get("aggregation") or {}
    for name, table in TABLES.items():
        order, rows = table.order, facts[name]
        if name == "policies" and server.get("edge_servers") is not None:
            order = ()  # each edge server starts its own when it can
        elif name == "policies" and server.get("mode") not in _FILLED:
            order = ("round", "client")
        if order:
            key = rows[order[0]]
            if len(order) > 1:
                key = _make_keys(key, rows[order[1]])
            what = f"are not in the order of {' and '.join(order)}"
            yield WrongRows(name, np.diff(key, prepend=key[:1]) < 0, what)
        if table.once:
            keys = list(
                zip(*(rows[column].tolist() for column in table.once), strict=True)
            )
            if len(set(keys)) < len(keys):
                yield f"{name}.parquet: rows of one {' and '.join(table.once)} twice"


def _pulls_follow_rollbacks(facts: RunColumns) -> Broken:
    """Check that forced pulls and model versions are those that rollbacks leave.

    A client starts from the model after as many accepted merges as its version says.
    """
    parts, rolled_back = facts["participations"], facts["rounds"]["rolled_back"]
    forced = parts["choice"] == "forced"
    after = np.concatenate([[False], rolled_back[:-1]])[facts.row_of_round]
    yield WrongRows(
        "participations", forced & ~after, ("are forced without a rollback before")
    )
    if (facts.run.scenario.get("safeguard") or {}).get("forces") != "none":
        what = "are free although the round before was rolled back"
        yield WrongRows("participations", after & ~forced, what)
    merged = np.bincount(facts.row_of_merge[~facts.lost], minlength=facts.rounds) > 0
    if (facts.run.scenario.get("privacy") or {}).get("level") == "client":
        merged[:] = True  # noise at least
    versions = np.concatenate([[0], np.cumsum(merged & ~rolled_back)])
    wrong = parts["model_version"] != versions[facts.row_of_round]
    yield WrongRows(
        "participations", wrong, ("do not start from the number of accepted merges")
    )


def _summary_is_that_of_the_tables(facts: RunColumns) -> Broken:
    """Check `summary.json` by summing up the tables again.

    Texts are compared, in which what is no number equals itself.
    """
    clients: dict[str, int] = {}
    for group in facts.run.scenario.get("clients", []):
        clients[group["prototype"]] = clients.get(group["prototype"], 0) + group.get(
            "count", 1
        )
    again, summary = (
        summarise(facts.run.table, clients, facts.run.measure),
        facts.run.summary,
    )
    for key in sorted(again.keys() | summary.keys()):
        if key not in again or json.dumps(summary.get(key)) != json.dumps(again[key]):
            yield f"summary.json: {key} is not what the tables say"


FILES: tuple[Callable[[RunColumns], Broken], ...] = (
    _files_are_what_was_written,
    _fingerprint_is_that_of_the_tables,
    _manifest_is_that_of_the_scenario,
    _columns_are_those_of_the_format,
    _rows_are_in_order,
    _measures_are_those_of_classes,
    _pulls_follow_rollbacks,
    _summary_is_that_of_the_tables,
)


# ---- of runs that cannot be played again: rounds and participations ------------------


def _rounds_follow_each_other(facts: RunColumns) -> Broken:
    """Check that rounds leave no gap, and last as long as they say.

    A round starts when the one before ends, and the server's work is part of it.
    """
    rounds = facts["rounds"]
    begun, ended, length_s = (
        rounds[f"{k}_s"] for k in ("started_at", "finished_at", "duration")
    )
    wrong = np.r_[np.zeros(len(begun[:1]), bool), _differ(begun[1:], ended[:-1])]
    yield WrongRows("rounds", wrong, "do not start when the one before ends")
    wrong = _differ_in_span(begun, ended, length_s)
    yield WrongRows("rounds", wrong, "last longer or shorter than their duration")
    wrong = rounds["server_s"] > length_s * (1 + RELATIVE)
    yield WrongRows("rounds", wrong, "are shorter than the server's work in them")


def _rounds_count_their_participations(facts: RunColumns) -> Broken:
    """Check counts and bytes of rounds against the participations settled in them.

    Those are the participations whose `merge` is the round's number, lost ones
    included.
    """
    rounds, parts, merge = facts["rounds"], facts["participations"], facts.row_of_merge
    for name, mask in (
        ("participants", np.ones(len(merge), bool)),
        ("late", parts["outcome"] == "late"),
        ("dropped", facts.lost),
    ):
        counts = np.bincount(merge[mask], minlength=facts.rounds)
        yield WrongRows("rounds", counts != rounds[name], f"miscount their {name}")
    for name in ("uplink_bytes", "downlink_bytes"):
        sums = np.bincount(merge, weights=parts[name], minlength=facts.rounds)
        yield WrongRows(
            "rounds",
            _differ(sums, rounds[name], rounds[name]),
            (f"do not add up: {name}"),
        )


def _phases_sum_to_their_participation(facts: RunColumns) -> Broken:
    """Check that phases fill a participation, which lies within its rounds.

    It starts in the round that it was started for, and ends before the end of the round
    that settles it.
    """
    parts, rounds = facts["participations"], facts["rounds"]
    begun, ended = parts["started_at_s"], parts["finished_at_s"]
    total_s = np.sum([parts[name] for name in list_phases(parts)], axis=0)
    wrong = _differ_in_span(begun, ended, total_s)
    yield WrongRows(
        "participations", wrong, "have phases that do not sum to their span"
    )
    outside = np.zeros(len(begun), bool)
    for instants, border, early in (
        (begun, rounds["started_at_s"][facts.row_of_round], True),
        (begun, rounds["finished_at_s"][facts.row_of_round], False),
        (ended, rounds["finished_at_s"][facts.row_of_merge], False),
    ):
        outside |= _differ(instants, border) & ((instants < border) == early)
    yield WrongRows("participations", outside, "lie outside their round")


def _merges_follow_starts(facts: RunColumns) -> Broken:
    """Check that what is merged later than its own round is that much stale.

    Staleness is counted in merges, and rounds are merges.
    """
    parts, late = facts["participations"], facts["participations"]["outcome"] == "late"
    age = parts["merge"] - parts["round"]
    wrong = parts["staleness"] != age
    yield WrongRows(
        "participations", wrong, "have a staleness that is not the merges between"
    )
    wrong = ~facts.lost & (late != (age > 0))
    yield WrongRows(
        "participations", wrong, "are late without being merged after their round"
    )


def _waiting_is_slack_and_server_work(facts: RunColumns) -> Broken:
    """Check that slack and the server's work fill the time from upload to merge.

    Of the critical client's uploads in a merge the one of least slack has none.
    """
    parts, rounds, merge = facts["participations"], facts["rounds"], facts.row_of_merge
    slack_s, length_s = parts["slack_s"], rounds["duration_s"][merge]
    has_slack, due_s = ~np.isnan(slack_s), slack_s + rounds["server_s"][merge]
    ended = parts["finished_at_s"] - parts["waiting_s"]
    wrong = has_slack & _differ_in_span(ended, rounds["finished_at_s"][merge], due_s)
    yield WrongRows(
        "participations", wrong, "have a slack that does not reach their merge"
    )
    critical = rounds["critical_client"][merge] == parts["client"]
    least_s = np.full(facts.rounds, np.inf)  # it may have several uploads in one merge
    np.minimum.at(least_s, merge[critical & has_slack], slack_s[critical & has_slack])
    wrong = (
        critical & (slack_s == least_s[merge]) & _differ(slack_s, 0 * slack_s, length_s)
    )
    yield WrongRows("participations", wrong, "are critical and yet have slack")
    named = ~np.isnan(rounds["critical_client"])
    took_part = np.bincount(merge[critical], minlength=facts.rounds) > 0
    yield WrongRows(
        "rounds", named & ~took_part, "have a critical client that took no part"
    )


# ---- the same: spans and links -------------------------------------------------------


def _spans_tell_the_same_as_the_phases(facts: RunColumns) -> Broken:
    """Check that spans of a participation sum to its phases and do not overlap.

    Units of a method's own count as training, what held a phase up counts as that
    phase, and lanes beside a client's own are left out, as they show the same time
    again.
    """
    spans, parts = facts["spans"], facts["participations"]
    begun, ended = spans["started_at_s"], spans["finished_at_s"]
    yield WrongRows("spans", ended < begun, "end before they start")
    yield WrongRows(
        "spans",
        _find_overlaps(spans["track"], begun, ended),
        ("are overlaps on one track"),
    )
    ids, inverse = np.unique(
        _make_keys(parts["round"], parts["client"]), return_inverse=True
    )
    # lanes beside a client's own show what it covers
    tracks = spans["track"].astype(str)
    on_client = np.char.startswith(tracks, "client ") & (np.char.find(tracks, LANE) < 0)
    kinds = spans["kind"].astype(str)
    if facts.run.scenario.get(
        "faults"
    ):  # what held a phase up is part of it, and named after it
        kinds = np.where(np.isin(kinds, HELD_UP), spans["name"].astype(str), kinds)
    phases = list_phases(parts)
    is_phase = np.isin(kinds, [*phases.values()])
    counted = np.where(
        is_phase, kinds, "training"
    )  # units of a method's own are local work
    rounding_s = _compute_rounding(parts["finished_at_s"])
    for phase, kind in phases.items():
        mine = on_client & (counted == kind)
        keys = _make_keys(spans["round"][mine], spans["client"][mine])
        if not np.isin(keys, ids).all():
            yield (
                f"spans.parquet: {kind} of clients in rounds in which they took no part"
            )
            continue
        at, lasted_s = np.searchsorted(ids, keys), (ended - begun)[mine]
        shown_s = np.bincount(at, weights=lasted_s, minlength=len(ids))[inverse]
        spent_s = np.bincount(inverse, weights=parts[phase], minlength=len(ids))
        spent_s = spent_s[inverse]
        wrong = np.abs(shown_s - spent_s) > RELATIVE * spent_s + rounding_s
        what = f"have {kind} spans that do not sum to {phase}"
        yield WrongRows("participations", wrong, what)


def _tracks_are_named_after_whom_they_show(facts: RunColumns) -> Broken:
    """Check that each span stands on the track of its client, link or server."""
    spans = facts["spans"]
    tracks, clients = spans["track"].astype(str), spans["client"].astype(float)
    if not len(tracks):  # nobody took any time, and NumPy parts no empty column
        return
    on_client = np.char.startswith(tracks, "client ")
    own_tracks = np.char.add(
        "client ", np.nan_to_num(clients, nan=-1).astype(int).astype(str)
    )
    whose = np.array([track.split(LANE)[0] for track in tracks.tolist()], str)
    yield WrongRows(
        "spans",
        on_client & (whose != own_tracks),
        ("are on the track of another client"),
    )
    on_link = np.char.startswith(tracks, "link ")
    yield WrongRows(
        "spans",
        on_link != (spans["kind"] == "busy"),
        ("are busy, but on no link's track"),
    )
    is_track = (
        on_client
        | on_link
        | (tracks == "server")
        | np.char.endswith(tracks, f"{LANE}steps")
    )
    yield WrongRows("spans", ~is_track, "are on no known track")
    rounds = spans["round"].astype(float)
    none = np.isnan(rounds) | (rounds < 1) | (rounds > facts.rounds)
    yield WrongRows("spans", none, "belong to no round")


def _links_are_busy_when_they_carry(facts: RunColumns) -> Broken:
    """Check that links' spans are where `links.parquet` says that they were used.

    Both are joined where intervals touch; a run without spans of links passes.
    """
    spans, links = facts["spans"], facts["links"]
    on_link = spans["kind"] == "busy"
    if not on_link.any():  # recorded elsewhere, without intervals of links
        return
    names = np.array([track[len("link ") :] for track in spans["track"][on_link]], str)
    shown = _join_intervals(
        names, spans["started_at_s"][on_link], spans["finished_at_s"][on_link]
    )
    used = _join_intervals(links["link"].astype(str), links["from_s"], links["to_s"])
    for name in sorted(shown.keys() | used.keys()):
        if not np.array_equal(shown.get(name, ()), used.get(name, ())):
            yield (
                f"spans.parquet: link {name} is not busy when links.parquet says that "
                "it carried something"
            )
            return


def _join_intervals(names: Array, begun: Array, ended: Array) -> dict[str, Array]:
    """Return per name the borders of its intervals, joined where they touch.

    Args:
        names: of each interval's link.
        begun: when each begins.
        ended: when each ends.

    Returns:
        Name → begin and end of each stretch, shape (2, stretches).
    """
    borders = {}
    order = np.lexsort((ended, begun, names))
    names, begun, ended = names[order], begun[order], ended[order]
    for name in np.unique(names):
        mine = names == name
        first, last = begun[mine], ended[mine]
        apart = first[1:] != last[:-1]
        borders[str(name)] = np.stack(
            [first[np.r_[True, apart]], last[np.r_[apart, True]]]
        )
    return borders


def _links_carry_what_was_sent(facts: RunColumns) -> Broken:
    """Check that links carry no more than they can, and all that went over them.

    The sum is checked for access links and the server's own, in the fluid model; other
    models send headers, and links inside a topology carry whatever takes their way.
    """
    links, parts = facts["links"], facts["participations"]
    begun, ended, carried = links["from_s"], links["to_s"], links["bytes"]
    capacity = links["capacity_bytes_per_s"]
    sent = {"up": parts["uplink_bytes"], "down": parts["downlink_bytes"]}
    # an interval's bytes are a difference of what transfers still have to go
    largest = max(amounts.max(initial=0) for amounts in sent.values())
    most = capacity * (ended - begun + _compute_rounding(ended))
    most += np.where(capacity > 0, _compute_rounding(largest), 0.0)
    yield WrongRows("links", ended < begun, "end before they start")
    yield WrongRows(
        "links",
        carried > most * (1 + RELATIVE),
        ("carry more bytes than the capacity allows"),
    )
    airtime_s = links["airtime_s"].astype(float)  # nan: no cell's
    longest_s = (ended - begun) * (1 + RELATIVE) + _compute_rounding(ended)
    yield WrongRows("links", airtime_s > longest_s, "have more airtime than time")
    yield WrongRows(
        "links", links["flows"] < 1, ("are intervals in which nobody used the link")
    )
    yield WrongRows(
        "links",
        _find_overlaps(links["link"], begun, ended),
        ("are overlaps on one track"),
    )
    if facts.run.scenario.get("network", {}).get("model", "fluid") != "fluid":
        return  # other models send headers too
    names, inverse = np.unique(links["link"].astype(str), return_inverse=True)
    totals = np.bincount(inverse, weights=carried, minlength=len(names))
    for name, total in zip(names.tolist(), totals.tolist(), strict=True):
        access = re.fullmatch(r"client-(\d+)/(up|down)", name)
        if access:
            through = sent[access[2]][parts["client"] == int(access[1])]
        elif name in ("server/receive", "server/send"):
            through = sent["up" if name == "server/receive" else "down"]
        else:
            continue  # a link inside a topology of its own
        most = float(through.sum())
        if abs(total - most) > 1e-7 * most:
            yield (
                f"links.parquet: {name} carried {total!r} bytes, the transfers over it "
                f"are {most!r}"
            )


CLOCK: tuple[Callable[[RunColumns], Broken], ...] = (
    _rounds_follow_each_other,
    _rounds_count_their_participations,
    _phases_sum_to_their_participation,
    _merges_follow_starts,
    _waiting_is_slack_and_server_work,
    _spans_tell_the_same_as_the_phases,
    _tracks_are_named_after_whom_they_show,
    _links_are_busy_when_they_carry,
    _links_carry_what_was_sent,
)


def _compute_rounding(instants: Array) -> Array:
    """Return the most that a difference of two instants may be wrong by.

    Args:
        instants: the later ones, in seconds; or any sums of that size.
    """
    return 16 * np.spacing(np.abs(instants))


def _differ(values: Array, expected: Array, scale: Array | float = 0.0) -> Array:
    """Return which values differ by more than rounding; NaN always does.

    Args:
        values: those of the file.
        expected: what they should be.
        scale: amounts of which `RELATIVE` is forgiven, too.
    """
    most = RELATIVE * np.abs(scale) + _compute_rounding(expected)
    near: Array = np.abs(values - expected) <= most
    return ~near  # so that what is no number differs


def _differ_in_span(begun: Array, ended: Array, length_s: Array) -> Array:
    """Return which spans from `begun` to `ended` are not `length_s` long."""
    most = RELATIVE * length_s + _compute_rounding(ended)
    near: Array = np.abs(ended - begun - length_s) <= most
    return ~near


def _find_overlaps(tracks: Array, begun: Array, ended: Array) -> Array:
    """Return which intervals begin before the one before on their track has ended."""
    order = np.lexsort((ended, begun, tracks.astype(str)))
    track, first, last = tracks[order], begun[order], ended[order]
    overlap = last[:-1] - first[1:] > _compute_rounding(first[1:])
    wrong = np.zeros(len(order), bool)
    wrong[order[1:]] = (track[1:] == track[:-1]) & overlap
    return wrong


def _make_keys(rounds: Array, clients: Array) -> Array:
    """Return one whole number per (round, client); −1 where one of them is missing.

    The round stands in the upper 32 bits, so keys ascend by round, then by client.
    """
    complete = ~(np.isnan(rounds.astype(float)) | np.isnan(clients.astype(float)))
    high = np.where(complete, rounds, 0).astype(np.int64) << 32
    return np.where(
        complete, high | np.where(complete, clients, 0).astype(np.int64), -1
    )
