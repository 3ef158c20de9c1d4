"""The real run of a setting, in a process of its own.

It is played where no journal knows what is learned. `RealRun` is the server's side: it
starts the process, hears how far it is, and makes the journal known once it is done.
`LearningJob` is the process's: it answers from what is known (`KeptTrajectory`), takes
up the learning state where that ends, and learns the rest.
"""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from simfed.experiment.checks import check_parts
from simfed.experiment.running import (
    build_simulation,
    carry_out_run,
    make_method_workload,
)
from simfed.explore.known import KnownAnswers
from simfed.explore.settings import LEARNED, Setting, apply_setting
from simfed.explore.world import Answer, ExploredWorld
from simfed.fleet.contract import Outcome
from simfed.ground.errors import InputError, SimfedError
from simfed.ground.plain import Plain
from simfed.record.checkpoint import CheckpointFolder
from simfed.record.digest import digest_value
from simfed.record.read import read_manifest
from simfed.replay.cached import Cached
from simfed.replay.key import learning_key
from simfed.replay.store import Trajectory, TrajectoryStore


class RealRun:
    """The real run, at most one at a time, of a server's world.

    Each run lies in a folder of its own below the system's, which goes with the server.
    """

    def __init__(self, world: ExploredWorld) -> None:
        """Begin without a run; `world`: what is explored."""
        self.state: Answer = {"status": "none"}
        """What pages show: `status` none, running (with `round, rounds, again`), failed
        (with `words`) or done."""
        self._world = world
        self._lock = threading.Lock()
        self._folders: list[str] = []
        self._process: multiprocessing.process.BaseProcess | None = None

    def start(self, setting: Setting) -> None:
        """Begin the run of a setting, unless one is under way.

        Args:
            setting: of a page.

        Raises:
            InputErrors: a sentence for each mistake.
        """
        rounds = self._world.apply(setting).rounds
        made, known = self._world.complete(setting), self._world.find_answers(setting)
        with self._lock:
            if self.state["status"] == "running":
                return
            self.state = {
                "status": "running",
                "round": 0,
                "rounds": rounds,
                "again": None,
            }
        self._folders.append(tempfile.mkdtemp(prefix="simfed-explore-"))
        out = Path(self._folders[-1], "run")
        folders = [] if known is None else [*known.folders]
        job = LearningJob(self._world.base, made, self._world.source, out, folders)
        ours, theirs = multiprocessing.Pipe(duplex=False)
        fresh = multiprocessing.get_context("spawn")
        self._process = fresh.Process(target=job.run, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        threading.Thread(
            target=self._follow, args=(ours, known, out), daemon=True
        ).start()

    def _follow(self, told: Connection, known: KnownAnswers | None, out: Path) -> None:
        """Hear the process until it ends; then its run knows answers, or it failed.

        Args:
            told: what the process says: its progress, then a problem or nothing.
            known: the answers of the setting, to which the run's are added.
            out: the run's folder.
        """
        problem = "the run ended without a word"
        try:
            while True:
                said = told.recv()
                if isinstance(said, dict):
                    self.state |= said
                else:
                    problem = said
        except EOFError:
            pass
        if problem:
            self.state = {"status": "failed", "words": problem}
            return
        if known is not None:
            known.add(out)
        self.state = {"status": "done"}

    def close(self) -> None:
        """End what is under way, and remove what was written."""
        if self._process is not None and self._process.is_alive():
            self._process.terminate()
            self._process.join()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)


class LearningJob:
    """A setting that is run in another process, to which it is sent.

    It has plain values alone, from which the process builds scenario and parts anew.
    """

    def __init__(
        self,
        base: Mapping[str, Plain],
        setting: Setting,
        source: Path,
        out: Path,
        folders: Sequence[Path],
    ) -> None:
        """Prepare a run.

        Args:
            base: the scenario as its file has it.
            setting: as `--set` takes it.
            source: the scenario's file.
            out: the folder of the run.
            folders: runs that know the beginning.
        """
        self._base, self._setting, self._source = base, setting, source
        self._out, self._folders = out, folders

    def run(self, tell: Connection) -> None:
        """Run it.

        Args:
            tell: hears how far it is (`round`: the clock; `again`: learning on the way
                to where nothing is known), and in the end why it failed, else an empty
                text.
        """
        try:
            scenario = apply_setting(self._base, self._setting, self._source)
            parts = check_parts(scenario, self._source, time_only=False)
            kept = self._open_kept()
            real = partial(make_method_workload, parts, 1, "cpu")
            carry_out_run(
                parts,
                self._out,
                mode="full",
                device="cpu",
                workers=1,
                make_workload=lambda: Cached(
                    parts.tasks, lambda: ToldWorkload(real(), tell), kept
                ),
                make_simulation=build_simulation,
                progress=lambda round, _at_s, _value: tell.send(
                    {"round": round, "again": None}
                ),
            )
            tell.send("")
        except SimfedError as error:
            tell.send(str(error))

    def _open_kept(self) -> KeptTrajectory:
        """Return what is known, and the states that real runs of this setup keep."""
        learned = {path: v for path, v in self._setting.items() if path in LEARNED}
        base = apply_setting(self._base, learned, self._source)
        answers = KnownAnswers()
        for folder in self._folders:
            answers.add(folder)
        answers.read_on()
        own = self._out.parent / f"kept-{digest_value(learned)}"
        study = TrajectoryStore().open(learning_key(base), {})
        return KeptTrajectory(own, answers, study)


class ToldWorkload:
    """Learning that tells after each merge up to where it has come."""

    def __init__(self, real: Any, tell: Connection) -> None:
        """Stand before the real workload; `tell` hears the round."""
        self._real, self._tell = real, tell

    def __getattr__(self, name: str) -> Any:
        """Return what the real workload has, for everything but merges."""
        return getattr(self._real, name)

    def merge(self, round: int, *more: Any) -> Outcome:
        """Return the outcome of a merge, and tell how far it is."""
        outcome: Outcome = self._real.merge(round, *more)
        self._tell.send({"again": round})
        return outcome


class KeptTrajectory(Trajectory):
    """A trajectory that also knows what runs recorded, and what states they kept."""

    def __init__(self, folder: Path, answers: KnownAnswers, study: Trajectory) -> None:
        """Begin with what is known.

        Args:
            folder: where this setup's own answers and states are kept.
            answers: of recorded runs, read.
            study: what studies keep of the same learning, whose states are good as
                well.
        """
        super().__init__(folder, {})
        self._answers, self._study = answers, study
        self._states: dict[str, tuple[dict[str, Plain], dict[str, np.ndarray]]] = {}
        for run in answers.folders:
            for state in _list_states(run):
                node = answers.merged_at.get((run, state.round))
                if node is not None:
                    self._states[node] = (dict(state.facts), dict(state.arrays))

    def known(self, node: str) -> Plain:
        """Return what was recorded at a node, by a run or here; None: nothing."""
        answer = self._answers.find(node)
        return super().known(node) if answer is None else answer

    def state(self, node: str) -> tuple[dict[str, Plain], dict[str, np.ndarray]] | None:
        """Return the learning state that was kept after a node; None: none was.

        It is (facts, arrays by name), as checkpoints have it.
        """
        return super().state(node) or self._states.get(node) or self._study.state(node)


def _list_states(run: Path) -> Sequence[Any]:
    """Return a run's checkpoints; none where they cannot be read."""
    try:
        return CheckpointFolder(
            run / "checkpoint", str(read_manifest(run).get("id"))
        ).kept()
    except InputError:
        return []
