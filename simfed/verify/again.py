"""A finished run, played again and held against its tables.

`replay` lets the clock play once more with all of its keyed draws, over the journal of
what learning answered: every row of every table follows. `recompute` learns again, too:
from the run's beginning, or from the checkpoint that a finished run keeps beside its
last one, up to the last of a sample of its rounds.

Numbers must agree to 1e-9: another version of a library, or another kind of processor,
may change the last bits of a draw's logarithm, and with them more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simfed.compress.choice import Choice
from simfed.experiment.assembly import Parts, load_parts
from simfed.experiment.running import (
    build_simulation,
    choose_workers,
    make_method_workload,
    make_time_only_workload,
)
from simfed.fleet.tasks import choose_pull, count_told
from simfed.ground.errors import InputError, InputErrors, Interrupted, RunFailed
from simfed.ground.seeding import Streams
from simfed.policy import Policy, Pull, Spent, paces_of, watches
from simfed.record.checkpoint import Checkpoint, CheckpointFolder, Loaded
from simfed.record.journal import COMPRESSED, Journal
from simfed.record.manifest import versions
from simfed.record.read import Run, number_turns, open_run
from simfed.record.recorder import Recorder
from simfed.record.schema import TABLES
from simfed.replay.journaled import Journaled
from simfed.verify.invariants import Broken, Columns, Rows

if TYPE_CHECKING:
    import pyarrow as pa

TOLERANCE = 1e-9
ROUNDING = 1e-13
"""What sums and differences of instants are rounded by, as a share of the largest."""


class Again(list[str]):
    """What differs, one sentence each, and in `said` what was played again."""

    said: str = ""


def replay(run: Run, parts: Parts) -> list[str]:
    """Play a simulated run again; what its tables say otherwise."""
    recorder = Recorder(own=parts.own_columns)
    try:
        if run.manifest.get("mode") == "full":
            workload = Journaled(parts.tasks, open_finished(run))
            build_simulation(parts, workload, recorder).run()
            workload.note_open()
        else:
            build_simulation(parts, make_time_only_workload(parts), recorder).run()
    except (InputError, InputErrors, RunFailed) as error:
        return [f"scenario.yaml: cannot be played again: {error}"]
    return [*_compare_tables(run, recorder)]


def open_finished(run: Run, end: int | None = None) -> Journal:
    """Return the journal of a finished run up to `end` bytes (None: all), to read alone."""
    assert run.path is not None
    return Journal(run.path / COMPRESSED, end, appends=False)


def recompute(
    path: str | os.PathLike[str],
    rounds: int,
    *,
    workers: int | None = None,
) -> Again:
    """Learn a sample of so many of a full run's rounds again, and whatever lies before them.

    Raises: `InputError` for what is no finished run, or one without learning.
    """
    run, problems = open_run(path), Again()
    if run.manifest.get("mode") != "full":
        raise InputError(
            "a run that learned",
            where="--recompute",
            got=run.manifest.get("mode"),
            hint="simfed verify plays a clock again without it",
        )
    try:
        parts = load_parts(run, path)
        total = parts.scenario.rounds
        kept = {one.checkpoint.round: one for one in _list_kept_checkpoints(run)}
        start = kept[min(kept)] if kept and min(kept) < total else None
        begun = 0 if start is None else start.checkpoint.round
        sample = draw_rounds(run, rounds, total)
        stretches: list[tuple[Loaded | None, int]] = []
        if early := [number for number in sample if number <= begun or start is None]:
            stretches.append((None, early[-1]))
        if start is not None and sample[-1] > begun:
            stretches.append((start, total))
        for loaded, last in stretches:
            recorder, round, arrays = _learn_rounds(run, parts, loaded, last, workers)
            problems += _compare_tables(run, recorder)
            if round in kept:
                problems += _compare_weights(kept[round].checkpoint, arrays)
    except (InputError, InputErrors, RunFailed) as error:
        problems.append(f"scenario.yaml: cannot be played again: {error}")
        return problems
    problems += compare_versions(run) if problems else []
    stretch_texts = [f"{begun + 1 if loaded else 1} to {last}" for loaded, last in stretches]
    problems.said = f"rounds {' and '.join(stretch_texts)}"
    return problems


def draw_rounds(run: Run, count: int, total: int) -> list[int]:
    """Which rounds are learned again: drawn from the run's fingerprint, in ascending order."""
    seed = int(str(run.manifest["fingerprint"])[:12], 16)
    drawn = Streams(seed)("recompute").choice(total, size=min(count, total), replace=False)
    return sorted(int(round) + 1 for round in drawn)


def policies_play_again(facts: Columns, parts: Parts) -> Broken:
    """Every client's policy of a deployed run, with its keyed draws and its recorded rewards: what
    it thought of its arms, which it chose, and the K that follows.

    In any mode: what a client starts for a round it chooses knowing the merges before that round.
    """
    table = facts.run.table("participations")
    rows = [row for batch in table.to_batches(max_chunksize=10_000) for row in batch.to_pylist()]
    turns = [turn for turn, _ in number_turns((row["round"], row["client"]) for row in rows)]
    values: dict[tuple[int, int], list[tuple[str, float | None]]] = {}
    for row in facts.run.table("policies").to_pylist():
        values.setdefault((row["round"], row["client"]), []).append((row["arm"], row["value"]))
    wrong = {what: np.zeros(len(rows), bool) for what in _OTHERWISE}
    # of one round's end first the merges, then the starts that know of them
    begins = [(row["round"] - 1, 1, at) for at, row in enumerate(rows)]
    merges = [(row["merge"], 0, at) for at, row in enumerate(rows)]
    paces = _compute_paces(rows)
    pulls: dict[int, Pull | None] = {}
    policies: dict[int, Policy] = {}
    for _, begin, at in sorted(begins + merges):
        row, client = rows[at], rows[at]["client"]
        if not 0 <= client < parts.scenario.client_count:
            wrong[_NO_CLIENT][at] = True
        elif begin:
            if client not in policies:
                policies[client] = parts.policy(client)
            policy = policies[client]
            shown = values.get((row["round"], client), [])
            arms = len(policy.arms) if policy.learns else 0
            told, rest = shown[:arms], shown[arms:]
            values[row["round"], client] = rest
            expected = list(zip(map(str, policy.arms), policy.values(), strict=True))[:arms]
            wrong[_OTHER_VALUES][at] = not _are_same(told, expected)
            try:
                pulls[at] = _pull_again(row, turns[at], policy, parts, wrong, at)
            except InputError:
                wrong[_OTHER_CHOICE][at] = True
        elif (pull := pulls.get(at)) and not _settle_pull(row, policies[client], pull, paces[at]):
            wrong[_NO_REWARD][at] = True
            break
    yield from (Rows("participations", mask, what) for what, mask in wrong.items())
    if any(values.values()) and not any(mask.any() for mask in wrong.values()):
        yield "policies.parquet: values of participations that there are not"


_NO_CLIENT = "are of a client that the scenario does not have"
_OTHER_VALUES = "have values in policies.parquet that their rewards do not come to"
_OTHER_PROTOTYPE = "are of another prototype than the scenario's"
_OTHER_FORCED = "were forced to another arm than the safeguard says"
_OTHER_CHOICE = "did not choose what their policy draws"
_OTHER_K = "keep another K than what they chose comes to"
_NO_REWARD = "were not told a reward"
_OTHERWISE = (
    _NO_CLIENT,
    _OTHER_VALUES,
    _OTHER_PROTOTYPE,
    _OTHER_FORCED,
    _OTHER_CHOICE,
    _OTHER_K,
    _NO_REWARD,
)
"""What a participation's policy may have done otherwise."""


def _are_same(
    told: Sequence[tuple[str, float | None]], expected: Sequence[tuple[str, float]]
) -> bool:
    """Whether cells are these values; what is not a number is stored as empty."""
    return [arm for arm, _ in told] == [arm for arm, _ in expected] and all(
        np.isnan(value) if cell is None else cell == value
        for (_, cell), (_, value) in zip(told, expected, strict=True)
    )


def _pull_again(
    row: Mapping[str, Any],
    turn: int,
    policy: Policy,
    parts: Parts,
    wrong: Mapping[str, np.ndarray[Any, Any]],
    at: int,
) -> Pull | None:
    """What this policy would have chosen, None where it is not asked, as nothing is compressed;
    `wrong` marks what is recorded otherwise."""
    task = parts.tasks.task(row["round"], row["client"], row["model_version"], turn)
    arm, forced = Choice.of(row["arm"]), row["choice"] == "forced"
    wrong[_OTHER_PROTOTYPE][at] = row["prototype"] != task.prototype
    wrong[_OTHER_FORCED][at] = forced and arm not in parts.scenario.forced_arms
    pull = choose_pull(task, policy, arm if forced else None, parts.streams)
    wrong[_OTHER_CHOICE][at] = (pull.arm, pull.choice) != (arm, row["choice"])
    k = parts.fleet.compression(task, pull).k
    if row["outcome"] in ("aggregated", "late"):  # of others nobody knows
        wrong[_OTHER_K][at] = row["k"] != (count_told(task, pull.arm, k) or row["k"])
    return pull if task.plan.longest else None


def _compute_paces(rows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """By its place, each row's pace among those that were settled by the same merge."""
    of_merge: dict[int, list[int]] = {}
    for at, row in enumerate(rows):
        of_merge.setdefault(row["merge"], []).append(at)
    paces: dict[int, float] = {}
    for places in of_merge.values():
        uploads = [
            (0, 0) if _is_lost(row) else (row["uplink_bytes"], row["uplink_s"])
            for row in map(rows.__getitem__, places)
        ]
        paces |= dict(zip(places, paces_of(uploads), strict=True))
    return paces


def _is_lost(row: Mapping[str, Any]) -> bool:
    return row["outcome"] in ("dropped", "failed")


def _settle_pull(row: Mapping[str, Any], policy: Policy, pull: Pull, pace: float) -> bool:
    """Tell a policy what became of its pull; False: no reward is known that it was told."""
    lost = _is_lost(row)
    if watches(policy) and not lost:
        work_s = row["training_s"] + row["compression_s"]
        slack_s = row["slack_s"] or 0.0
        policy.watch(pull, Spent(row["downlink_s"], work_s, row["uplink_s"], slack_s, pace))
    if lost or row["choice"] == "forced":
        policy.void(pull)
    elif policy.learns and row["reward"] is None:
        return False
    elif policy.learns:
        policy.update(pull, row["reward"])
    return True


def _list_kept_checkpoints(run: Run) -> list[Loaded]:
    """The last one, and the one before it, of those that hold what was learned: while learning is
    answered from a record, they hold the decisions alone."""
    assert run.path is not None
    folder = CheckpointFolder(run.path / "checkpoint", str(run.manifest.get("id", "")))
    return [
        one
        for one in folder.kept()
        if "steps" not in one.checkpoint.facts["workload"].get("replay", {})
    ]


def _learn_rounds(
    run: Run, parts: Parts, start: Loaded | None, last: int, workers: int | None
) -> tuple[Recorder, int, Mapping[str, np.ndarray]]:
    """Learn the rounds after `start` (None: the beginning) up to `last`.

    Returns the rows of all rounds up to the one that was reached, that one, and the
    arrays that were learned.
    """
    recorder = Recorder(own=parts.own_columns)
    end, first = (0, 0) if start is None else (start.journal.bytes, start.checkpoint.round)
    device = str(run.manifest["device"])
    learning = make_method_workload(parts, choose_workers(parts.scenario, workers), device)
    journal = open_finished(run, end)
    with contextlib.closing(Journaled(parts.tasks, journal, learning, live=not end)) as workload:
        simulation = build_simulation(parts, workload, recorder)

        def take_up(round: int) -> int:
            if start is not None and round == first:
                workload.take_up(start.checkpoint.facts["workload"], start.checkpoint.arrays)
            return 0

        with contextlib.suppress(Interrupted):
            simulation.run(stop_requested=lambda: simulation.round > last, plays_again=take_up)
        return recorder, simulation.round - 1, workload.state()[1]


def _compare_weights(kept_one: Checkpoint, arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    """What a kept checkpoint holds otherwise than what was learned again."""
    for name in sorted(kept_one.arrays.keys() | arrays.keys()):
        mine, theirs = (held.get(name, np.empty(0)) for held in (arrays, kept_one.arrays))
        if mine.shape != theirs.shape or not np.allclose(
            theirs, mine, rtol=TOLERANCE, atol=0.0, equal_nan=mine.dtype.kind == "f"
        ):
            yield (
                f"checkpoint: {name} after round {kept_one.round} is not what learning again "
                "comes to"
            )
            return


def _compare_tables(run: Run, recorder: Recorder) -> Iterator[str]:
    """What the rows that were played again say otherwise than a run's first ones."""
    rounds = recorder.table("rounds")
    whole = len(rounds) == len(run.table("rounds"))
    end_s = max(rounds.column("finished_at_s").to_pylist(), default=0.0)
    for name in TABLES:
        mine, theirs = recorder.table(name), run.table(name)
        if len(theirs) < len(mine) or (whole and len(theirs) != len(mine)):
            yield (
                f"{name}.parquet: {len(theirs):,} rows where playing again comes to {len(mine):,}"
            )
            continue
        if len(theirs) and theirs.column_names != mine.column_names:
            yield f"{name}.parquet: columns are {theirs.column_names}, not {mine.column_names}"
            continue
        theirs = theirs.slice(0, len(mine))
        for column in mine.column_names if len(mine) else ():
            yield from _compare_column(name, column, mine, theirs, end_s)


def _compare_column(
    name: str, column: str, mine: pa.Table, theirs: pa.Table, end_s: float
) -> Iterator[str]:
    if theirs.column(column).equals(mine.column(column)):
        return  # all but what is no number, which equals nothing
    if mine.schema.field(column).type in ("double", "float64"):
        recorded, expected = (t.column(column).to_pandas().to_numpy() for t in (theirs, mine))
        least = ROUNDING * (end_s if column.endswith("_s") else 0.0)
        wrong = ~np.isclose(recorded, expected, rtol=TOLERANCE, atol=least, equal_nan=True)
    else:
        recorded, expected = (t.column(column).to_pylist() for t in (theirs, mine))
        wrong = np.array([a != b for a, b in zip(recorded, expected, strict=True)], bool)
    at = np.flatnonzero(wrong)
    if not len(at):
        return
    row = theirs.slice(int(at[0]), 1).to_pylist()[0]
    where = [f"{key} {row[key]}" for key in ("round", "client", "link") if row.get(key) is not None]
    yield (
        f"{name}.parquet: {column} of {len(at)} rows is not what playing again comes to, first: "
        f"{', '.join(where)}: {recorded[at[0]]!s} in the file, {expected[at[0]]!s} again"
    )


def compare_versions(run: Run) -> list[str]:
    """A sentence where other versions may be why something differs."""
    then, now = run.manifest.get("versions"), versions()
    then = then if isinstance(then, dict) else {}
    other = [
        f"{name} {then.get(name)} (here {now.get(name)})"
        for name in now
        if then.get(name) != now[name]
    ]
    return other and [f"manifest.json: the run was made with {', '.join(other)}, which may be why"]
