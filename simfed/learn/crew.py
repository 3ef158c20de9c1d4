"""Worker processes for units of work whose operands lie in shared memory.

A `Crew` maps a method of an object over small descriptions of work. The object was built before
the processes were forked, so each has its own copy of the program's state and sees the same
shared arrays; only the descriptions and small results travel through pipes. A unit's result must
not depend on which process runs it, so neither do a run's results depend on how many there are.

Processes are forked, as PyTorch's own data loader does on Linux: models that a user registered
in a script or notebook come along, and data sets are not copied. What makes that safe here is
that the children run PyTorch on the CPU with one thread and touch nothing else of the parent.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn

import torch

from simfed.errors import RunFailed, SimfedError

__all__ = ["Crew"]


class Crew:
    """`workers` processes, this one included, that share `subject`.

    With one worker nothing is forked. `close` ends the others; they also end by themselves when
    this process goes away, however it goes.

    >>> with Crew("a,b", 2) as crew:
    ...     crew.map("split", [",", "b", "x"])
    [['a', 'b'], ['a,', ''], ['a,b']]
    """

    def __init__(self, subject: Any, workers: int) -> None:
        self._subject = subject
        self._others: list[_Worker] = []
        self._broken = False
        try:
            for number in range(1, workers):
                self._others.append(_Worker(subject, number, self._others))
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> int:
        """Processes that share the work."""
        return 1 + len(self._others)

    def map(
        self, method: str, units: Sequence[Any], costs: Sequence[float] | None = None
    ) -> list[Any]:
        """`subject.method(unit)` for every unit, in the order given, over all processes.

        `costs` balance the load: the dearest units are dealt first, each to the process with the
        least so far. Raises: the first error of a unit; `RunFailed` when a process has died.
        """
        function = getattr(self._subject, method)
        if not self._others or len(units) < 2:
            return [function(unit) for unit in units]
        if self._broken:
            raise RunFailed(
                "the worker processes were stopped by an earlier error; start the run again"
            )
        shares = deal(costs or [1.0] * len(units), self.workers)
        results: list[Any] = [None] * len(units)
        self._broken = True  # until every answer is in: an interrupted exchange cannot be resumed
        busy = [
            (worker, share) for worker, share in zip(self._others, shares[1:], strict=True) if share
        ]
        for worker, share in busy:
            worker.send(method, [units[i] for i in share])
        for i in shares[0]:
            results[i] = function(units[i])
        for worker, share in busy:
            for i, result in zip(share, worker.receive(), strict=True):
                results[i] = result
        self._broken = False
        return results

    def close(self) -> None:
        """End the other processes; safe to call twice."""
        for worker in self._others:
            worker.close()
        self._others = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def deal(costs: Sequence[float], hands: int) -> list[list[int]]:
    """Indices of `costs` in `hands` shares of nearly equal sums: longest processing time first.

    >>> deal([3, 1, 1, 1], 2)
    [[0], [1, 2, 3]]
    """
    shares: list[list[int]] = [[] for _ in range(hands)]
    loads = [0.0] * hands
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        lightest = loads.index(min(loads))
        shares[lightest].append(i)
        loads[lightest] += costs[i]
    return shares


class _Worker:
    """A forked process that answers (method, units) with their results, and the parent's end of its pipe."""

    connection: Connection

    def __init__(self, subject: Any, number: int, elder: Sequence[_Worker]) -> None:
        self.number = number
        ours, theirs = Pipe()
        watched, self._lifeline = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            # Children hold no parent's end of any pipe, so that each end of file means what it says.
            for worker in elder:
                worker.connection.close()
                os.close(worker._lifeline)
            ours.close()
            os.close(self._lifeline)
            _live(subject, theirs, watched, number)
        theirs.close()
        os.close(watched)
        self.connection = ours

    def send(self, method: str, units: list[Any]) -> None:
        try:
            self.connection.send((method, units))
        except (BrokenPipeError, ConnectionResetError):
            raise self._died() from None

    def receive(self) -> list[Any]:
        try:
            kind, answer = self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._died() from None
        if kind == "error":
            raise answer
        return answer  # type: ignore[no-any-return]

    def close(self) -> None:
        if not self.connection.closed:
            self._end()

    def _died(self) -> RunFailed:
        status = self._end()
        how = "ended"
        if status is not None and os.WIFSIGNALED(status):
            how = f"was ended by {signal.Signals(os.WTERMSIG(status)).name}"
            if os.WTERMSIG(status) == signal.SIGKILL:
                how += " (for want of memory, perhaps)"
        return RunFailed(
            f"worker process {self.number} {how} in the middle of a round; "
            "resume from the last checkpoint, with fewer workers if memory is short"
        )

    def _end(self) -> int | None:
        """The process's exit status. It has nothing to save, so it is not asked but killed."""
        self.connection.close()
        os.close(self._lifeline)
        try:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            return os.waitpid(self.pid, 0)[1]
        except ChildProcessError:  # somebody else's handler has collected it
            return None


def _live(subject: Any, connection: Connection, lifeline: int, number: int) -> NoReturn:
    """The life of a worker process: answer until the parent is gone."""
    try:
        # Ctrl-C reaches the whole process group; the parent decides what becomes of the run.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        gc.freeze()  # the collector would write to, and so copy, every page shared with the parent
        torch.set_num_threads(1)
        # In the middle of a long unit, too: nobody is left to want its result.
        threading.Thread(target=_leave_with, args=(lifeline,), daemon=True).start()
        begin_process = getattr(subject, "begin_process", None)
        if begin_process is not None:
            begin_process(number)
        while True:
            method, units = connection.recv()
            connection.send(_answer(subject, method, units))
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)  # no exit handlers, no flushing: those are the parent's


def _leave_with(lifeline: int) -> None:
    """End this process when the parent's end of the pipe is gone, even if the parent was killed."""
    os.read(lifeline, 1)
    os._exit(1)


def _answer(subject: Any, method: str, units: list[Any]) -> tuple[str, Any]:
    try:
        function = getattr(subject, method)
        return "results", [function(unit) for unit in units]
    except SimfedError as error:
        return "error", error
    except Exception as error:
        if "fork-based multiprocessing" in str(error):  # PyTorch's words
            return "error", RunFailed(
                "worker processes cannot compute gradients here, because this process did so before "
                "on a machine with a GPU; use 1 worker, or start the run in a new process"
            )
        return "error", RuntimeError(f"in a worker process:\n{traceback.format_exc()}")
