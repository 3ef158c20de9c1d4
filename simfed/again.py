"""A finished run, played again and held against its tables.

`replay_draws` lets the clock play once more with all of its keyed draws: who is asked, who is
there, what is explored, how long devices take, what fails. What learning came to is taken from the
tables. `recompute` learns again, too: from the run's beginning, or from the checkpoint that a
finished run keeps beside its last one, up to the last of a sample of its rounds.

What is compared is every row on the way, not only those of the sampled rounds. Numbers must agree
to 1e-9: another version of a library, or another kind of processor, may change the last bits of a
draw's logarithm, and with them more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from simfed.assembly import Parts, parts_of_run
from simfed.contract import Contribution, Outcome
from simfed.errors import InputError, InputErrors, Interrupted, RunFailed
from simfed.experiment import default_workers, learning_of, restore, simulation_of
from simfed.method import key_of
from simfed.record.checkpoint import Checkpoint, CheckpointFolder
from simfed.record.manifest import versions
from simfed.record.read import Run, open_run, with_turns
from simfed.record.recorder import Recorder
from simfed.record.schema import TABLES
from simfed.seeding import Streams
from simfed.sim.workload import Recorded, TimeOnlyWorkload
from simfed.units import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from simfed.tasks import Tasks

__all__ = ["Again", "recompute", "replay_draws", "sampled_rounds"]

TOLERANCE = 1e-9
_LEARNED: dict[str, Sequence[str] | None] = {
    "participations": ("choice", "local_loss", "gain", "reward_raw", "reward"),
    "prototypes": None,
    "policies": None,
    "clients": None,
}
"""What a replay of the clock alone does not come to: columns; None: the whole table."""


class Again(list[str]):
    """What differs, one sentence each, and in `said` what was played again."""

    said: str = ""


def replay_draws(path: str | os.PathLike[str]) -> Again:
    """Play the clock of a finished run again and compare.

    Raises: `InputError` for what is no finished run directory.
    """
    run, found = open_run(path), Again()
    if run.manifest.get("mode") == "flower":
        raise InputError(
            "a run of a scenario", where="--replay-draws", got="a Flower app's",
            hint="run the app again: its fingerprint is the same, unless computing was measured",
        )  # fmt: skip
    try:
        parts = parts_of_run(run, path)
        full = run.manifest.get("mode") == "full"
        record = Recorded(run)
        learning = any(parts.scenario.measures_losses(g) for g in parts.scenario.clients)
        replays = learning or any(
            parts.scenario.policy_of_group(g).arms_from for g in parts.scenario.clients
        )
        # where policies choose for themselves, what was forced on them is forced again
        forced = None if replays else next(iter(parts.scenario.forced_arms), None)
        workload = _Remembered(parts.tasks, record, run, forced=forced)
        recorder = Recorder(losses=parts.scenario.method.made.losses)
        make_policy = partial(parts.replay, record) if replays else None
        simulation_of(parts, workload, recorder, make_policy).run()
    except (InputError, InputErrors, RunFailed) as error:
        found.append(f"scenario.yaml: cannot be played again: {error}")
        return found
    found += _differences(run, recorder, skipped=_LEARNED if full else {})
    found += _other_versions(run) if found else []
    found.said = f"the clock of {counted(parts.scenario.rounds, 'round')}"
    return found


def recompute(
    path: str | os.PathLike[str],
    rounds: int,
    *,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda round: None,
) -> Again:
    """Learn a sample of so many of a full run's rounds again, and whatever lies before them.

    Raises: `InputError` for what is no finished run, or one without learning.
    """
    run, found = open_run(path), Again()
    if run.manifest.get("mode") != "full":
        raise InputError(
            "a run that learned", where="--recompute", got=run.manifest.get("mode"),
            hint="--replay-draws plays a clock again",
        )  # fmt: skip
    try:
        parts = parts_of_run(run, path)
        total = parts.scenario.rounds
        kept = _kept_checkpoint(run, total)
        sample = sampled_rounds(run, rounds, total)
        early = [number for number in sample if kept is None or number <= kept.round]
        stretches: list[tuple[Checkpoint | None, int]] = [(None, early[-1])] if early else []
        if kept is not None and sample[-1] > kept.round:
            stretches.append((kept, total))
        for start, last in stretches:
            recorder = _learn(parts, str(run.manifest["device"]), start, last, workers, progress)
            found += _differences(run, recorder, skipped={}, from_the_end=start is not None)
    except (InputError, InputErrors, RunFailed) as error:
        found.append(f"scenario.yaml: cannot be played again: {error}")
        return found
    found += _other_versions(run) if found else []
    said = [f"{start.round + 1 if start else 1} to {last}" for start, last in stretches]
    found.said = f"rounds {' and '.join(said)}"
    return found


def sampled_rounds(run: Run, count: int, total: int) -> list[int]:
    """Which rounds are learned again: drawn from the run's fingerprint, in ascending order."""
    seed = int(str(run.manifest["fingerprint"])[:12], 16)
    drawn = Streams(seed)("recompute").choice(total, size=min(count, total), replace=False)
    return sorted(int(round) + 1 for round in drawn)


class _Remembered(TimeOnlyWorkload):
    """A stand-in for learning that knows from the tables what it came to."""

    def __init__(self, tasks: Tasks, record: Recorded, run: Run, *, forced: str | None) -> None:
        """`forced`: what everybody plays after a rollback; None: policies say it."""
        super().__init__(tasks, recorded=record)
        self._undone = record.rolled_back
        self._forced = forced
        self._losses = dict(_local_losses(run))

    def merge(
        self, round: int, contributions: Sequence[Contribution], weights: Sequence[float] = ()
    ) -> Outcome:
        """Counts it, and tells the losses that are in the tables."""
        labels = [contribution.task.label for contribution in contributions]
        found = super().merge(round, contributions, weights)
        undone = round in self._undone
        return replace(
            found,
            rolled_back=undone,
            forced_arm=self._forced if undone else None,
            local_loss={
                label: (self._losses[label], self._losses[label])
                for label in labels
                if label in self._losses
            },
        )


def _local_losses(run: Run) -> Iterator[tuple[str, float]]:
    """`Task.label` → loss after the round, of those who told it."""
    table = run.table("participations").select(["round", "client", "local_loss"])
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    for turn, (round, client, loss) in with_turns(rows):
        if loss is not None:
            yield f"{client}/{key_of(round, turn)}", loss


def _kept_checkpoint(run: Run, total: int) -> Checkpoint | None:
    """The one before the last that a finished run keeps, if rounds were played after it."""
    if run.path is None:
        return None
    folder = CheckpointFolder(run.path / "checkpoint", str(run.manifest.get("id", "")))
    kept = [checkpoint for checkpoint in folder.kept() if 0 < checkpoint.round < total]
    return min(kept, key=lambda checkpoint: checkpoint.round, default=None)


def _learn(
    parts: Parts,
    device: str,
    start: Checkpoint | None,
    last: int,
    workers: int | None,
    progress: Callable[[int], None],
) -> Recorder:
    """The rows of the rounds after `start` (None: the beginning) up to `last`."""
    recorder = Recorder(losses=parts.scenario.method.made.losses)
    reached = [0]

    def show(round: int, simulated_s: float, accuracy: float | None) -> None:
        reached[0] = round
        progress(round)

    made = learning_of(parts, workers or default_workers(parts.scenario), device)
    with contextlib.closing(made) as workload, contextlib.suppress(Interrupted):
        simulation = simulation_of(parts, workload, recorder)
        if start is not None:
            restore(simulation, start)
        simulation.run(progress=show, stop_requested=lambda: reached[0] >= last)
    return recorder


def _differences(
    run: Run,
    recorder: Recorder,
    *,
    skipped: Mapping[str, Sequence[str] | None],
    from_the_end: bool = False,
) -> Iterator[str]:
    """What the rows that were played again say otherwise than the first, or last, of a run's."""
    whole = len(recorder.table("rounds")) == len(run.table("rounds"))
    for name in TABLES:
        without = skipped.get(name, ())
        if without is None:
            continue
        mine, theirs = recorder.table(name), run.table(name)
        if len(theirs) < len(mine) or (whole and len(theirs) != len(mine)):
            yield (
                f"{name}.parquet: {len(theirs):,} rows where playing again comes to {len(mine):,}"
            )
            continue
        theirs = theirs.slice(len(theirs) - len(mine) if from_the_end else 0, len(mine))
        for column in mine.column_names:
            if column not in without and column in theirs.column_names:
                yield from _column_differs(name, column, mine, theirs)


def _column_differs(name: str, column: str, mine: pa.Table, theirs: pa.Table) -> Iterator[str]:
    if mine.schema.field(column).type in ("double", "float64"):
        found, expected = (t.column(column).to_pandas().to_numpy() for t in (theirs, mine))
        wrong = ~np.isclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    else:
        found, expected = (t.column(column).to_pylist() for t in (theirs, mine))
        wrong = np.array([a != b for a, b in zip(found, expected, strict=True)], bool)
    at = np.flatnonzero(wrong)
    if not len(at):
        return
    row = theirs.slice(int(at[0]), 1).to_pylist()[0]
    where = [f"{key} {row[key]}" for key in ("round", "client", "link") if row.get(key) is not None]
    yield (
        f"{name}.parquet: {column} of {len(at)} rows is not what playing again comes to, first: "
        f"{', '.join(where)}: {found[at[0]]!s} in the file, {expected[at[0]]!s} again"
    )


def _other_versions(run: Run) -> list[str]:
    """A sentence where other versions may be why something differs."""
    then, now = run.manifest.get("versions"), versions()
    if not isinstance(then, dict) or then == now:
        return []
    other = [f"{of} {then.get(of)} (here {now.get(of)})" for of in now if then.get(of) != now[of]]
    return [f"manifest.json: the run was made with {', '.join(other)}, which may be why"]
