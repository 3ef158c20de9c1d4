"""A finished run, played again and held against its tables.

`replay` lets the clock play once more with all of its keyed draws, over the journal of
what learning answered: every row of every table follows. `recompute` learns again, too:
from the run's beginning, or from the checkpoint that a finished run keeps beside its
last one, up to the last of a sample of its rounds.

Numbers must agree to 1e-9: another version of a library, or another kind of processor,
may change the last bits of a draw's logarithm, and with them more.

Both give sentences: which table and column, in how many rows, the first of them, what
the file says and what playing again came to.
"""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from simfed.experiment.assembly import Parts, load_parts
from simfed.experiment.running import (
    build_simulation,
    choose_workers,
    make_method_workload,
    make_time_only_workload,
)
from simfed.ground.errors import InputError, InputErrors, Interrupted, RunFailed
from simfed.ground.registry import import_part
from simfed.ground.seeding import Streams
from simfed.record.checkpoint import Checkpoint, CheckpointFolder
from simfed.record.journal import COMPRESSED, Journal
from simfed.record.manifest import versions
from simfed.record.read import Run, open_run
from simfed.record.recorder import Recorder
from simfed.record.schema import TABLES
from simfed.replay.journaled import Journaled

if TYPE_CHECKING:
    import pyarrow as pa

TOLERANCE = 1e-9
ROUNDING = 1e-13
"""The rounding of sums and differences of instants, as a share of the largest."""


class Again(list[str]):
    """The differences that learning again found, one sentence each.

    A list, so that empty means that nothing differs; made by `recompute` and printed by
    `simfed verify --recompute`.
    """

    said: str = ""
    """The rounds that were learned again, in words."""


def replay(run: Run, parts: Parts) -> list[str]:
    """Play a run's clock again, and return what its tables say otherwise.

    What learning answered is taken from the run's journal, so nothing is trained.

    Args:
        run: a finished simulated or deployed run, not one of an app.
        parts: those of its scenario.

    Returns:
        A sentence per column that differs; one alone where the clock cannot be played.
    """
    recorder = Recorder(own=parts.own_columns)
    mode = run.manifest["mode"]
    try:
        if mode == "time-only":
            build_simulation(parts, make_time_only_workload(parts), recorder).run()
        else:
            workload = Journaled(
                parts.tasks, open_finished(run), elsewhere=mode == "deployed"
            )
            if mode == "deployed":
                # of a room above this one, which no simulated run needs
                import_part("simfed.deploy.playing:play_again")(
                    parts, workload, recorder
                )
            else:
                build_simulation(parts, workload, recorder).run()
            workload.note_open()
    except (InputError, InputErrors, RunFailed) as error:
        return [f"scenario.yaml: cannot be played again: {error}"]
    return [*_compare_tables(run, recorder)]


def open_finished(run: Run, end: int | None = None) -> Journal:
    """Return the journal of a finished run, to read.

    Args:
        run: with a folder.
        end: the bytes of it that are read; None: all.
    """
    assert run.path is not None
    return Journal(run.path / COMPRESSED, end, appends=False)


def recompute(
    path: str | os.PathLike[str],
    rounds: int,
    *,
    workers: int | None = None,
) -> Again:
    """Learn so many of a full run's rounds again, and whatever lies before them.

    Rounds after the run's kept checkpoint are learned from there on, earlier ones from
    the beginning.

    Args:
        path: the run directory.
        rounds: how many rounds to draw.
        workers: processes that train; None: as many as pay.

    Returns:
        A sentence per column, and per kept checkpoint, that differs; more of them, with
        the versions of libraries, where any does.

    Raises:
        InputError: for what is no finished run, or one without learning.
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
        kept = {one.round: one for one in _list_kept_checkpoints(run)}
        start = kept[min(kept)] if kept and min(kept) < total else None
        begun = 0 if start is None else start.round
        sample = draw_rounds(run, rounds, total)
        stretches: list[tuple[Checkpoint | None, int]] = []
        if early := [number for number in sample if number <= begun or start is None]:
            stretches.append((None, early[-1]))
        if start is not None and sample[-1] > begun:
            stretches.append((start, total))
        for loaded, last in stretches:
            recorder, round, arrays = _learn_rounds(run, parts, loaded, last, workers)
            problems += _compare_tables(run, recorder)
            if round in kept:
                problems += _compare_weights(kept[round], arrays)
    except (InputError, InputErrors, RunFailed) as error:
        problems.append(f"scenario.yaml: cannot be played again: {error}")
        return problems
    problems += compare_versions(run) if problems else []
    stretch_texts = [
        (f"{begun + 1 if loaded else 1} to {last}") for loaded, last in stretches
    ]
    problems.said = f"rounds {' and '.join(stretch_texts)}"
    return problems


def draw_rounds(run: Run, count: int, total: int) -> list[int]:
    """Return the rounds to learn again, ascending.

    They are drawn by the run's fingerprint: the same for everybody who asks, and not to
    be chosen by whoever made the run.

    Args:
        run: with its manifest.
        count: how many, at most all.
        total: the number of the scenario's rounds.
    """
    seed = int(str(run.manifest["fingerprint"])[:12], 16)
    drawn = Streams(seed)("recompute").choice(
        total, size=min(count, total), replace=False
    )
    return sorted(int(round) + 1 for round in drawn)


def _list_kept_checkpoints(run: Run) -> list[Checkpoint]:
    """Return the last checkpoint of a finished run, and the one before it."""
    assert run.path is not None
    return CheckpointFolder(
        run.path / "checkpoint", str(run.manifest.get("id", ""))
    ).kept()


def _learn_rounds(
    run: Run, parts: Parts, start: Checkpoint | None, last: int, workers: int | None
) -> tuple[Recorder, int, Mapping[str, np.ndarray]]:
    """Learn the rounds after a checkpoint again.

    Args:
        run: the finished run, whose journal answers up to the checkpoint.
        parts: those of its scenario.
        start: the checkpoint; None: the beginning.
        last: the round after which nothing more is learned.
        workers: processes that train; None: as many as pay.

    Returns:
        The rows of all rounds up to the one that was reached, that round's number, and
        the arrays that were learned: name → values.
    """
    recorder = Recorder(own=parts.own_columns)
    end, first = (0, 0) if start is None else (start.journal.bytes, start.round)
    device = str(run.manifest["device"])
    learning = make_method_workload(
        parts, choose_workers(parts.scenario, workers), device
    )
    journal = open_finished(run, end)
    with contextlib.closing(
        Journaled(parts.tasks, journal, learning, live=not end)
    ) as workload:
        simulation = build_simulation(parts, workload, recorder)

        def take_up(round: int) -> int:
            if start is not None and round == first:
                workload.take_up(start.facts, start.arrays)
            return 0

        with contextlib.suppress(Interrupted):
            simulation.run(
                stop_requested=lambda: simulation.round > last, plays_again=take_up
            )
        return recorder, simulation.round - 1, workload.state()[1]


def _compare_weights(
    kept_one: Checkpoint, arrays: Mapping[str, np.ndarray]
) -> Iterator[str]:
    """Yield how a kept checkpoint differs from what was learned again, at most once.

    Args:
        kept_one: of the run.
        arrays: name → values after the same round.
    """
    for name in sorted(kept_one.arrays.keys() | arrays.keys()):
        mine, theirs = (
            held.get(name, np.empty(0)) for held in (arrays, kept_one.arrays)
        )
        if mine.shape != theirs.shape or not np.allclose(
            theirs, mine, rtol=TOLERANCE, atol=0.0, equal_nan=mine.dtype.kind == "f"
        ):
            yield (
                f"checkpoint: {name} after round {kept_one.round} is not what learning "
                "again comes to"
            )
            return


def _compare_tables(run: Run, recorder: Recorder) -> Iterator[str]:
    """Yield the differences of a run's first rows from those that were played again.

    Args:
        run: whose tables may go on after the rounds that were played.
        recorder: what was played; if it has all rounds, rows must be as many.
    """
    rounds = recorder.table("rounds")
    whole = len(rounds) == len(run.table("rounds"))
    end_s = max(rounds.column("finished_at_s").to_pylist(), default=0.0)
    for name in TABLES:
        mine, theirs = recorder.table(name), run.table(name)
        if len(theirs) < len(mine) or (whole and len(theirs) != len(mine)):
            yield (
                f"{name}.parquet: {len(theirs):,} rows where playing again comes to "
                f"{len(mine):,}"
            )
            continue
        if len(theirs) and theirs.column_names != mine.column_names:
            yield (
                f"{name}.parquet: columns are {theirs.column_names}, not "
                f"{mine.column_names}"
            )
            continue
        theirs = theirs.slice(0, len(mine))
        for column in mine.column_names if len(mine) else ():
            yield from _compare_column(name, column, mine, theirs, end_s)


def _compare_column(
    name: str, column: str, mine: pa.Table, theirs: pa.Table, end_s: float
) -> Iterator[str]:
    """Yield how a column differs from what was played again, in at most one sentence.

    Args:
        name: the table's.
        column: the column's.
        mine: rows that were played again.
        theirs: as many rows of the file.
        end_s: the last instant, by which sums of instants are rounded.
    """
    if theirs.column(column).equals(mine.column(column)):
        return  # all but what is no number, which equals nothing
    if mine.schema.field(column).type in ("double", "float64"):
        recorded, expected = (
            t.column(column).to_pandas().to_numpy() for t in (theirs, mine)
        )
        least = ROUNDING * (end_s if column.endswith("_s") else 0.0)
        wrong = ~np.isclose(
            recorded, expected, rtol=TOLERANCE, atol=least, equal_nan=True
        )
    else:
        recorded, expected = (t.column(column).to_pylist() for t in (theirs, mine))
        wrong = np.array([*map(operator.ne, recorded, expected)], bool)
    at = np.flatnonzero(wrong)
    if not len(at):
        return
    row = theirs.slice(int(at[0]), 1).to_pylist()[0]
    where = [
        (f"{key} {row[key]}")
        for key in ("round", "client", "link")
        if row.get(key) is not None
    ]
    yield (
        f"{name}.parquet: {column} of {len(at)} rows is not what playing again comes "
        f"to, first: {', '.join(where)}: {recorded[at[0]]!s} in the file, "
        f"{expected[at[0]]!s} again"
    )


def compare_versions(run: Run) -> list[str]:
    """Return a sentence where other versions may be why something differs, else none.

    Versions of Python and of the libraries that the manifest names count.
    """
    then = run.manifest.get("versions")
    then = then if isinstance(then, dict) else {}
    other = ", ".join(
        f"{name} {then.get(name)} (here {now})"
        for name, now in versions().items()
        if then.get(name) != now
    )
    if not other:
        return []
    return [f"manifest.json: the run was made with {other}, which may be why"]
