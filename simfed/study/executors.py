"""Where the runs of a study are done: processes on this machine, or a Dask cluster.

An executor takes jobs and gives back results in whatever order they end. A worker that dies takes
down the run it was doing and nothing else; that run is tried again elsewhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import multiprocessing
import os
import queue
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from simfed.ground.children import starting_elsewhere
from simfed.ground.cores import available_cores, most_processes
from simfed.ground.errors import InputError, RunFailed
from simfed.study.work import Job, Result, do

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_T = TypeVar("_T")

_ATTEMPTS = 2
"""How often a run is begun before the death of its worker counts against it."""

_HELD = (signal.SIGINT, signal.SIGTERM)
"""What ends a process; workers leave both to the study."""

_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class ExecutorLost(RunFailed):
    """The place where runs were done is gone."""


class Executor(Protocol):
    """What a study needs of a place where runs are done."""

    def slots(self) -> int:
        """How many runs can be under way at once, now."""

    def submit(self, job: Job) -> None:
        """Begin a run, and return at once."""

    def ended(self, timeout_s: float) -> list[Result]:
        """Runs that ended; waits for one for at most `timeout_s`."""

    def under_way(self) -> int:
        """How many runs have begun and not ended."""

    def interrupt(self) -> None:
        """Ask every run to save its state and stop."""

    def close(self) -> None:
        """End what is still under way; safe to call twice."""


def make_executor(name: str, *, jobs: int | None, device: str = "cpu") -> Executor:
    """`local`, or `dask=ADDRESS`. Raises: `InputError`."""
    if name == "local":
        return LocalExecutor(choose_jobs(device) if jobs is None else jobs)
    kind, equals, address = name.partition("=")
    if kind != "dask" or not equals or not address:
        raise InputError("local or dask=ADDRESS", where="--executor", got=name)
    if jobs is not None:
        raise InputError(
            "no --jobs beside a Dask cluster: its workers are the jobs", where="--jobs", got=jobs
        )
    return DaskExecutor(address)


def choose_jobs(device: str) -> int:
    """Runs at once on this machine: one per core, or one where they would share a GPU."""
    return 1 if device == "cuda" else available_cores()


# --- this machine ------------------------------------------------------------------------------


class LocalExecutor:
    """Processes on this machine, one run and one thread each, started afresh (no fork).

    They end with the process that made them, however that ends.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = min(jobs, most_processes())
        self._crew: list[_JobWorker] = []
        self._attempts: dict[str, int] = {}
        self._lost: list[Result] = []

    def slots(self) -> int:
        return self._jobs

    def submit(self, job: Job) -> None:
        self._attempts[job.address] = self._attempts.get(job.address, 0) + 1
        for idle in [worker for worker in self._crew if worker.job is None]:
            if idle.begin(job):
                return
            self._crew.remove(idle)  # it died while it had nothing to do
            idle.end()
        worker = _JobWorker()
        self._crew.append(worker)
        if not worker.begin(job):
            self._replace(worker)

    def ended(self, timeout_s: float) -> list[Result]:
        results = []
        workers: dict[object, _JobWorker] = {worker.pipe: worker for worker in self._crew}
        for pipe in wait([worker.pipe for worker in self._crew], 0 if self._lost else timeout_s):
            worker = workers[pipe]
            if worker not in self._crew:
                continue  # dead, as another's run was to begin again on it
            try:
                results.append(worker.pipe.recv())
                worker.job = None
            except (EOFError, OSError):
                self._replace(worker)
        results += self._lost
        self._lost.clear()
        return results

    def under_way(self) -> int:
        return sum(worker.job is not None for worker in self._crew)

    def interrupt(self) -> None:
        for worker in self._crew:
            if worker.job is not None:
                worker.signal(signal.SIGINT)

    def close(self) -> None:
        for worker in self._crew:
            worker.end()
        self._crew.clear()

    def _replace(self, worker: _JobWorker) -> None:
        """A worker died: its run begins again on another, a few times."""
        self._crew.remove(worker)
        job, cause = worker.job, worker.end()
        if job is None:
            return
        if self._attempts[job.address] < _ATTEMPTS:
            self.submit(job)
        else:
            reason = f"its worker process died ({cause}) {_ATTEMPTS} times"
            self._lost.append(Result(job.address, "failed", reason))


@contextmanager
def _holding_signals() -> Iterator[None]:
    """A block in which a process starts that no signal ends before it has said which it
    ignores."""
    resource_tracker.ensure_running()  # else started inside, which lets the signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _JobWorker:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.job: Job | None = None
        self.pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_serve_jobs, args=(theirs,), daemon=False
        )
        before = {name: os.environ[name] for name in _ONE_THREAD if name in os.environ}
        os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
        try:
            with starting_elsewhere(), _holding_signals():
                self._process.start()
        finally:
            for name in _ONE_THREAD:
                del os.environ[name]
            os.environ.update(before)
        theirs.close()  # so that its death ends our pipe, and ours ends its

    def begin(self, job: Job) -> bool:
        """Hand it a job; False where it is dead."""
        self.job = job
        try:
            self.pipe.send(job)
        except OSError:
            return False
        return True

    def signal(self, number: int) -> None:
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, number)

    def end(self) -> str:
        """End it at once if it has not ended; returns how it ended, in words."""
        self.pipe.close()
        if self.job is not None and self._process.is_alive():
            self._process.join(0.2)
            self._process.kill()
        self._process.join()
        code = self._process.exitcode or 0
        if code < 0:
            name = signal.Signals(-code).name
            return f"{name}: perhaps it ran out of memory" if name == "SIGKILL" else name
        return f"exit code {code}"


def _serve_jobs(pipe: Connection) -> None:
    """The life of a worker: jobs until the pipe ends."""
    # Ctrl-C and a cluster's SIGTERM go to the study, which asks its workers in its own time
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
    _end_with_parent()
    # what libraries print would run through the table of runs; errors travel in results
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        result = do(job)
        try:
            pipe.send(result)
        except OSError:
            return


def _end_with_parent() -> None:
    """However the parent ends (`kill -9` too), this process ends with it."""
    import threading

    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()


# --- a Dask cluster ----------------------------------------------------------------------------


class DaskExecutor:
    """An existing Dask cluster. Its workers must see the study's folder under the same path."""

    def __init__(self, address: str, *, timeout_s: float = 10.0) -> None:
        try:
            distributed: Any = importlib.import_module("distributed")
        except ModuleNotFoundError:
            problem = "the package distributed, for --executor dask, is missing"
            raise InputError(problem=problem, hint="pip install 'simfed[dask]'") from None
        self._timeout: type[Exception] = distributed.TimeoutError
        self._address = address
        self._futures: dict[Any, Job] = {}
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        try:
            # a client of an address that cannot be is half made: it takes 20 s and a traceback to
            # go
            distributed.comm.resolve_address(address)
            with _without_logs():
                self._client = distributed.Client(address, timeout=timeout_s, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            first = str(error).partition("\n")[0]
            allowed = f"the address of a Dask scheduler that answers within {timeout_s:g} s"
            got = f"dask={address}"
            hint = first or type(error).__name__
            raise InputError(allowed, where="--executor", got=got, hint=hint) from None

    def slots(self) -> int:
        threads: dict[str, int] = self._answer(lambda: self._client.nthreads())
        return max(1, sum(threads.values()))  # with no worker yet, one run waits for the first

    def submit(self, job: Job) -> None:
        job = dataclasses.replace(job, contested=True)
        name = f"simfed-{job.address}-{os.urandom(4).hex()}"  # never a result of another day
        future = self._answer(lambda: self._client.submit(do, job, pure=False, key=name))
        self._futures[future] = job
        future.add_done_callback(self._done.put)

    def ended(self, timeout_s: float) -> list[Result]:
        results = []
        with contextlib.suppress(queue.Empty):
            done = self._done.get(timeout=timeout_s)
            while True:
                job = self._futures.pop(done, None)
                if job is not None:
                    results.append(self._result(done, job))
                done = self._done.get_nowait()
        self._answer(lambda: None)
        return results

    def under_way(self) -> int:
        return len(self._futures)

    def interrupt(self) -> None:
        """A run on a cluster cannot be asked; what it has not finished is lost."""
        self.close()

    def close(self) -> None:
        if self._futures and self._client.status == "running":
            self._client.cancel([*self._futures])
        self._futures.clear()
        self._client.close(timeout=2)

    def _answer(self, ask: Callable[[], _T]) -> _T:
        text = f"the Dask cluster at {self._address} no longer answers"
        if self._client.status in ("closed", "closing"):
            raise ExecutorLost(text)
        try:
            return ask()
        except (OSError, self._timeout) as error:
            raise ExecutorLost(f"{text} ({error})") from error

    def _result(self, future: Any, job: Job) -> Result:
        if future.status == "finished":
            done: Result = future.result()
            return done
        if future.status in ("cancelled", "lost"):
            raise ExecutorLost(f"the Dask cluster at {self._address} dropped its runs")
        error = future.exception()
        return Result(job.address, "failed", f"{type(error).__name__}: {error}".splitlines()[0])


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """What libraries log meanwhile is not shown: the error that comes of it says enough."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
