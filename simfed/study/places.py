"""Places of runs: processes on this machine, or an existing Dask cluster.

Both give `concurrent.futures`. A process that dies takes down the run that it was
doing, which another goes on with, and nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from simfed.experiment.interrupt import CtrlC
from simfed.ground.children import starting_elsewhere
from simfed.ground.cluster import SchedulerConnection
from simfed.ground.cores import available_cores, most_processes

_T = TypeVar("_T")

_HELD = (signal.SIGINT, signal.SIGTERM)
"""The signals that end a process; the study ends its workers itself."""

_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class RunProcesses:
    """Processes on this machine, one run and one thread each, started afresh (no fork).

    They are started when they are needed, and end with the process that made them,
    however that ends.
    """

    def __init__(self, jobs: int | None, device: str = "cpu") -> None:
        """Begin with no process.

        `jobs`: runs at once; None: one per core, or one where they would share a GPU.
        """
        usual = 1 if device == "cuda" else available_cores()
        self._jobs = min(usual if jobs is None else jobs, most_processes())
        self._idle: list[_Seat] = []
        self._busy: dict[Future[Any], _Seat] = {}

    def slots(self) -> int:
        """Return how many runs can be under way at once."""
        return self._jobs

    def submit(self, function: Callable[..., _T], *arguments: object) -> Future[_T]:
        """Begin a call in a process that has nothing to do, or in a new one.

        Not to be called with `slots` calls under way.

        Args:
            function: at the top of a module.
            arguments: that can be pickled.
        """
        while self._idle:
            seat = self._idle.pop()
            try:
                future = seat.pool.submit(function, *arguments)
                break
            except BrokenExecutor:  # it died while it had nothing to do
                seat.close()
        else:
            seat = _Seat()
            future = seat.pool.submit(function, *arguments)
        self._busy[future] = seat
        return future

    def collect(self, future: Future[_T]) -> _T:
        """Return what a call returned that has ended, and free its process.

        Raises:
            BrokenExecutor: the process died.
            Exception: what the call raised.
        """
        seat = self._busy.pop(future)
        if future.exception() is None:
            self._idle.append(seat)
        else:
            seat.close()
        return future.result()

    def stop(self) -> None:
        """Ask every run to save its state and stop."""
        for seat in self._busy.values():
            with suppress(OSError):
                seat.line.send("stop")

    def close(self) -> None:
        """End all processes, those with a run under way included."""
        for seat in [*self._idle, *self._busy.values()]:
            seat.close()


class _Seat:
    """A worker process with a line to it.

    A message on the line is Ctrl-C; its end is the process's end.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        theirs, self.line = context.Pipe(duplex=False)
        with _one_thread(), starting_elsewhere(), _holding_signals():
            self.pool = ProcessPoolExecutor(
                1, mp_context=context, initializer=_take_seat, initargs=(theirs,)
            )
            self.pool.submit(os.getpid)  # which starts the process
        theirs.close()

    def close(self) -> None:
        """End the process."""
        self.line.close()
        self.pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that start in the block compute on one thread."""
    before = {name: os.environ[name] for name in _ONE_THREAD if name in os.environ}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name in _ONE_THREAD:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _holding_signals() -> Iterator[None]:
    """Hold signals back in the block.

    A process starts in it that no signal ends before it has said which it ignores.
    """
    # else started inside, which lets the signals through
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take_seat(line: Connection) -> None:
    """Begin the life of a worker: signals, output, and the line to the study."""
    # Ctrl-C and a cluster's SIGTERM go to the study, which asks its workers in its own
    # time
    os.setpgid(0, 0)
    CtrlC().hear_on()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
    # what libraries print would run through the study's lines; errors travel in results
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115

    def listen() -> None:
        with suppress(EOFError, OSError):
            while line.recv():
                os.kill(os.getpid(), signal.SIGINT)
        os._exit(1)  # the study has ended, however that was

    threading.Thread(target=listen, daemon=True, name="line-to-study").start()


class Cluster:
    """The workers of an existing Dask cluster.

    They must see the study's folder under the same path, and have this version of
    simfed.
    """

    def __init__(self, address: str, *, timeout_s: float = 10.0) -> None:
        self._connection = SchedulerConnection(address, timeout_s=timeout_s)
        self._executor = self._connection.client.get_executor(pure=False)

    def slots(self) -> int:
        """Return how many threads its workers have, at least 1.

        With no worker yet, one run waits for the first.

        Raises:
            RunFailed: the cluster is gone.
        """
        return max(1, sum(self._connection.threads().values()))

    def submit(self, function: Callable[..., _T], *arguments: object) -> Future[_T]:
        """Begin a call on one of the workers; one that dies is followed by another.

        Raises:
            RunFailed: the cluster is gone.
        """
        with self._connection.answering():
            future: Future[_T] = self._executor.submit(function, *arguments)
        return future

    def collect(self, future: Future[_T]) -> _T:
        """Return what a call returned that has ended.

        Raises:
            RunFailed: the cluster is gone.
            Exception: what the call raised.
        """
        with self._connection.answering():
            if future.cancelled():
                raise ConnectionError("it dropped its runs")
            return future.result()

    def stop(self) -> None:
        """Ask nobody: a run on a cluster cannot be; it stays at its last checkpoint."""
        self.close()

    def close(self) -> None:
        """Cancel what was submitted, and leave the cluster."""
        if self._connection.client.status == "running":
            self._executor.shutdown(wait=False)
        self._connection.close()
