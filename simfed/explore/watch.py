"""The page of a run that is under way, served by a process beside it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path

from simfed.explore.serve import announce, serve
from simfed.explore.world import ExploredWorld
from simfed.ground.errors import SimfedError

_NICE = 5
"""Lower priority than the run, which is not to wait for whoever looks at it."""


class PageProcess:
    """A process that serves a run's page.

    It follows the run's journal, and ends with us. `simfed run --watch` makes it; the
    run itself knows nothing of it and never waits for it.
    """

    def __init__(self, *, allow_plugins: bool = False) -> None:
        """Begin without a process; `allow_plugins`: run those that the run keeps."""
        self._allow_plugins = allow_plugins
        self._process: multiprocessing.process.BaseProcess | None = None

    def start(self, folder: Path) -> None:
        """Serve the page of the run that has begun in a folder, and say where."""
        fresh = multiprocessing.get_context("spawn")
        self._process = fresh.Process(target=_serve, args=(folder, self._allow_plugins))
        self._process.start()

    def stay(self) -> None:
        """Wait until somebody has seen enough, and says so by Ctrl-C."""
        if self._process is None or not self._process.is_alive():
            return
        with contextlib.suppress(KeyboardInterrupt):
            print("the page stays until Ctrl-C", file=sys.stderr, flush=True)
            self._process.join()

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._process.is_alive():
            self._process.terminate()
            self._process.join()


def _serve(folder: Path, allow_plugins: bool) -> None:
    """Serve a run's page until the process that started this one ends."""
    os.setsid()  # Ctrl-C is the run's, which saves what it has
    os.nice(_NICE)
    run = multiprocessing.parent_process()
    assert run is not None

    def end_with_it() -> None:
        run.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_it, daemon=True).start()
    try:
        serve(ExploredWorld(folder, allow_plugins=allow_plugins), 0, announce)
    except SimfedError as error:
        print(f"--watch: {error}", file=sys.stderr, flush=True)
