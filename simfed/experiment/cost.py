"""The cost of a run on this machine, foretold from its first rounds.

They are played twice, a few and some more of them, and what all of its rounds come to
follows from both.

What is supposed: later rounds take what those took. A round that is evaluated takes
longer than others; a client that takes part for the first time may leave a state
behind; tables and pictures are made at the end, of as many rows as there are rounds.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from simfed.experiment.running import run
from simfed.ground.errors import RunFailed, SimfedError
from simfed.ground.inputs import list_files_below
from simfed.record.read import Run
from simfed.scenario import Scenario

_FEW = 3
"""Rounds of the shorter play, in which things warm up."""
_PLAYED_S = 5.0
"""Processor seconds that the rounds of the longer play are to take, about."""


class Cost(NamedTuple):
    """The cost of a run on this machine, as `estimate_cost` foretells it.

    Seconds are those of this machine with what else it does now; pictures and tables at
    the end are in them.
    """

    wall_s: float
    """Beside what else the machine does now."""
    processor_s: float
    """Processor seconds of all its processes."""
    memory_bytes: float
    """Bytes of its largest process, at most."""
    disk_bytes: float
    played: int
    """Rounds from which this follows."""


class _Seconds(NamedTuple):
    """The seconds of a play by one clock."""

    begun_s: float
    """Seconds before its first round had ended."""
    rounds_s: Sequence[float]
    """Seconds of each round after the first."""
    ended_s: float
    """Seconds after the last one."""


class _Play(NamedTuple):
    """The cost of a play of the first rounds."""

    rounds: int
    wall: _Seconds
    processor: _Seconds
    """Processor seconds of the process that leads the others."""
    others_s: float
    """Processor seconds of its workers."""
    memory_bytes: float
    checkpoint_bytes: float
    others_bytes: float
    """Bytes of all other files."""


def estimate_cost(
    scenario: Scenario,
    source: str | Path | None = None,
    *,
    workers: int | None = None,
    time_only: bool = False,
    finish: Callable[[Run], object] = lambda run: None,
    begun_s: float = 0.0,
) -> Cost:
    """Return what a run of the scenario will take.

    Args:
        scenario: a valid one.
        source: its file, beside which profiles are looked for.
        workers: learning processes, as of `run`.
        time_only: without learning.
        finish: what becomes of the run at its end.
        begun_s: what the program takes before the run.

    Raises:
        RunFailed: the first rounds cannot be played.
    """
    play = partial(_play, scenario, source, workers, time_only, finish)
    few = more = play(min(_FEW, scenario.rounds))
    if few.rounds < scenario.rounds:
        likely = _PLAYED_S / (
            min(few.processor.rounds_s) + few.others_s / few.rounds + 1e-4
        )
        more = play(min(max(int(likely), 2 * _FEW), scenario.rounds))
    found = _extrapolate(scenario, few, more)
    both_s = found.wall_s + begun_s, found.processor_s + begun_s
    return found._replace(wall_s=both_s[0], processor_s=both_s[1])


def _extrapolate(scenario: Scenario, few: _Play, more: _Play) -> Cost:
    """Return the cost of all rounds, from a play of a few and one of more of them.

    What grows with rounds goes on growing alike; what grows with clients that take part
    for the first time, only until all have.
    """
    further, apart = scenario.rounds - more.rounds, max(more.rounds - few.rounds, 1)
    clients = scenario.client_count
    met = clients / (scenario.participation.clients_per_round or clients)
    # states are those of clients that have taken part: afterwards they are no more
    growing = min(max(met - more.rounds, 0.0), further)

    def follow(before: float, now: float, rounds: float) -> float:
        return now + max(now - before, 0.0) / apart * rounds

    return Cost(
        wall_s=_follow(scenario, few.wall, more.wall),
        processor_s=_follow(scenario, few.processor, more.processor)
        + more.others_s * scenario.rounds / more.rounds,
        memory_bytes=follow(few.memory_bytes, more.memory_bytes, growing),
        disk_bytes=follow(few.checkpoint_bytes, more.checkpoint_bytes, growing)
        + follow(few.others_bytes, more.others_bytes, further),
        played=more.rounds,
    )


def _follow(scenario: Scenario, few: _Seconds, more: _Seconds) -> float:
    """Return the seconds of all rounds by one clock.

    Args:
        scenario: says which rounds are evaluated, which take longer.
        few: the shorter play.
        more: the longer play; rounds that both have played count as warm-up.
    """
    played, warm = len(more.rounds_s) + 1, len(few.rounds_s)
    further = scenario.rounds - played
    if not further:
        return more.begun_s + sum(more.rounds_s) + more.ended_s
    later = [*enumerate(more.rounds_s, 2)][warm:]
    tested = [
        spent_s for round, spent_s in later if scenario.evaluation.due(round, played)
    ]
    others = [
        spent_s
        for round, spent_s in later
        if not scenario.evaluation.due(round, played)
    ]
    test_s = statistics.mean(tested)  # the last one is evaluated
    round_s = statistics.mean(others or tested)
    every = scenario.evaluation.every
    tests = scenario.rounds // every - played // every
    slope_s = max(more.ended_s - few.ended_s, 0.0) / (played - warm - 1)
    further_s = further * (round_s + slope_s) + tests * max(test_s - round_s, 0.0)
    return more.begun_s + sum(more.rounds_s) + more.ended_s + further_s


def _play(
    scenario: Scenario,
    source: str | Path | None,
    workers: int | None,
    time_only: bool,
    finish: Callable[[Run], object],
    rounds: int,
) -> _Play:
    """Play the first rounds in a process of its own, whose memory is theirs alone.

    Checkpoints are saved as often as the whole run would, at least twice.

    Raises:
        RunFailed: the process ended, or says why it could not play.
    """
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    every = scenario.checkpoint.every
    # two are kept, as soon as there are
    saving = scenario.checkpoint.model_copy(
        update={
            "every": min(
                every, rounds if scenario.rounds <= every else max(rounds // 2, 1)
            )
        }
    )
    shorter = scenario.model_copy(update={"rounds": rounds, "checkpoint": saving})
    work = partial(run, shorter, source=source, workers=workers, time_only=time_only)
    process = fork.Process(target=_measure, args=(theirs, work, finish, rounds))
    process.start()
    theirs.close()
    try:
        found = ours.recv()
    except EOFError:
        found = (
            "the process that played the first rounds ended, as one does that "
            "needs more memory"
        )
    finally:
        process.join()
    if isinstance(found, str):
        raise RunFailed(f"{scenario.name}: {found}")
    play: _Play = found
    return play


def _measure(
    tell: Connection,
    work: Callable[..., Run],
    finish: Callable[[Run], object],
    rounds: int,
) -> None:
    """Send what a play of the first rounds took, or the error that ended it.

    Args:
        tell: the way back to the process that asked.
        work: the run, which is called with a folder.
        finish: what becomes of the run at its end.
        rounds: how many are played.
    """
    at_s = [(time.perf_counter(), time.process_time())]

    def note(round: int, simulated_s: float, accuracy: float | None) -> None:
        at_s.append((time.perf_counter(), time.process_time()))

    try:
        with tempfile.TemporaryDirectory(prefix="simfed-cost-") as folder:
            finish(work(out=Path(folder) / "run", progress=note))
            note(0, 0.0, None)
            sizes = {
                file: file.stat().st_size for file in list_files_below(Path(folder))
            }
    except SimfedError as error:
        tell.send(str(error))
        return
    wall, processor = (
        _Seconds(spent_s[0], spent_s[1:-1], spent_s[-1])
        for spent_s in (
            [b - a for a, b in pairwise(clock)] for clock in zip(*at_s, strict=True)
        )
    )
    own, others = map(
        resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    memory_bytes = max(own.ru_maxrss, others.ru_maxrss) * (
        1 if sys.platform == "darwin" else 1024
    )
    others_s = others.ru_utime + others.ru_stime
    kept_bytes = sum(
        size for file, size in sizes.items() if file.parent.name == "checkpoint"
    )
    others_bytes = sum(sizes.values()) - kept_bytes
    tell.send(
        _Play(rounds, wall, processor, others_s, memory_bytes, kept_bytes, others_bytes)
    )
