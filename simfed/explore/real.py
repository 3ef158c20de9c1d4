"""The real run of a setting, in a process of its own, where no journal knows what is learned."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from simfed.explore.settings import Setting, apply_setting
from simfed.explore.world import Answer, World, name_setting
from simfed.ground.errors import SimfedError
from simfed.ground.plain import Plain


class RealRun:
    """At most one at a time; `state` is what pages show of it."""

    def __init__(self, world: World) -> None:
        self.state: Answer = {"status": "none"}
        self._world = world
        self._folder = Path(tempfile.mkdtemp(prefix="simfed-explore-"))
        self._lock = threading.Lock()
        self._process: multiprocessing.process.BaseProcess | None = None

    def start(self, setting: Setting) -> None:
        """Begin the run of a setting, unless one is under way. Raises: `InputErrors`."""
        scenario = apply_setting(self._world.base, setting, self._world.source)
        with self._lock:
            if self.state["status"] == "running":
                return
            rounds = scenario.rounds
            self.state = {"status": "running", "round": 0, "rounds": rounds}
        out = self._folder / f"run-{len(self._world.real) + 1}"
        ours, theirs = multiprocessing.Pipe(duplex=False)
        fresh = multiprocessing.get_context("spawn")
        asked = (self._world.base, dict(setting), self._world.source, out, theirs)
        self._process = fresh.Process(target=_run, args=asked, daemon=True)
        self._process.start()
        theirs.close()
        threading.Thread(
            target=self._follow, args=(ours, name_setting(setting), out), daemon=True
        ).start()

    def _follow(self, told: Connection, name: str, out: Path) -> None:
        problem = "the run ended without a word"
        try:
            while True:
                said = told.recv()
                if isinstance(said, int):
                    self.state["round"] = said
                else:
                    problem = said
        except EOFError:
            pass
        if problem:
            self.state = {"status": "failed", "words": problem}
            return
        self._world.real[name] = out
        self.state = {"status": "done"}

    def close(self) -> None:
        """End what is under way, and remove what was written."""
        if self._process is not None and self._process.is_alive():
            self._process.terminate()
            self._process.join()
        shutil.rmtree(self._folder, ignore_errors=True)


def _run(
    base: Mapping[str, Plain], setting: Setting, source: Path, out: Path, tell: Connection
) -> None:
    from simfed.experiment.running import run

    def progress(round: int, _at_s: float, _measure: float | None) -> None:
        tell.send(round)

    report: Callable[[str], None] = tell.send
    try:
        scenario = apply_setting(base, setting, source)
        run(scenario, out, source=source, workers=1, progress=progress)
        report("")
    except SimfedError as error:
        report(str(error))
