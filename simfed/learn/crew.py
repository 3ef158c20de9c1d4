"""Worker processes for units of work whose operands lie in shared memory.

A `Crew` maps a method of an object over small descriptions of work. The object was
built before the processes were forked, so each has its own copy of the program's state
and sees the same shared arrays; only the descriptions and small results travel through
pipes. A unit's result must not depend on which process runs it, so neither do a run's
results depend on how many there are.

Processes are forked, as PyTorch's own data loader does on Linux: models that a user
registered in a script or notebook come along, and data sets are not copied. What makes
that safe here is that the children run PyTorch on the CPU with one thread and touch
nothing else of the parent.
"""

from __future__ import annotations

import gc
import os
import signal
import struct
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn

import torch

from simfed.ground.errors import RunFailed, SimfedError

_WORTH_SHARING = 5e7
"""FLOPs: about a millisecond (measured)."""

_TICKET = struct.Struct("<II")


class Crew:
    """`workers` processes, this one included, that share `subject`.

    With one worker nothing is forked. `close` ends the others; they also end by
    themselves when this process goes away, however it goes.

    >>> with Crew("a,b", 2) as crew:
    ...     crew.map("split", [",", "b", "x"])
    [['a', 'b'], ['a,', ''], ['a,b']]
    """

    def __init__(self, subject: Any, workers: int) -> None:
        """Fork the processes.

        Args:
            subject: whose methods do the units; its `begin_process(number)`, if it has
                one, is called in each process that was forked.
            workers: how many processes, at least 1.
        """
        self.subject = subject
        self._tickets = _Tickets()
        self._others: list[_Worker] = []
        self._broken = False
        try:
            for number in range(1, workers):
                self._others.append(
                    _Worker(subject, self._tickets, number, self._others)
                )
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
        """Return `subject.method(unit)` for every unit, in the order given.

        Whoever is free takes the next unit, those with the highest `costs` first.

        Args:
            method: its name.
            units: what travels to the processes: small.
            costs: of each unit, in any measure; None: they are taken in order.

        Raises:
            RunFailed: when a process has died, or died in an earlier call.
            Exception: the first error of a unit.
        """
        function = getattr(self.subject, method)
        if not self._others or len(units) < 2:
            return [function(unit) for unit in units]
        if self._broken:
            raise RunFailed(
                "the worker processes were stopped by an earlier error; start the run "
                "again"
            )
        # until every answer is in: an interrupted exchange cannot be resumed
        self._broken = True
        expected = costs or [0.0] * len(units)
        order = sorted(range(len(units)), key=lambda i: -expected[i])
        queue = [units[i] for i in order]
        self._tickets.lay_out(len(queue))
        for worker in self._others:
            worker.send(method, queue)
        result_at = {place: function(queue[place]) for place in self._tickets.take()}
        for worker in self._others:
            result_at |= worker.receive()
        self._broken = False
        results: list[Any] = [None] * len(units)
        for place, i in enumerate(order):
            results[i] = result_at[place]
        return results

    def close(self) -> None:
        """End the other processes; safe to call twice."""
        for worker in self._others:
            worker.close()
        self._others = []
        self._tickets.close()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def is_worth_sharing(flops: float) -> bool:
    """Return whether arithmetic takes longer than the messages that share it."""
    return flops >= _WORTH_SHARING


class _Tickets:
    """Numbers that processes take from one pile, each number once.

    The pile is a pipe: the kernel hands every ticket to one reader, without locks that
    a dying process could keep. Dealing beforehand would need to know how fast each
    process will be.
    """

    _MOST = 2048
    """Tickets at a time, each for one number or several: a pipe holds 64 KiB, or 16 at
    times."""

    def __init__(self) -> None:
        self._from, self._into = os.pipe()
        os.set_blocking(self._from, False)

    def lay_out(self, count: int) -> None:
        """Put the numbers below `count` on the pile, the lowest on top."""
        share = -(-count // self._MOST)
        stacks = [
            _TICKET.pack(i, min(i + share, count)) for i in range(0, count, share)
        ]
        os.write(self._into, b"".join(stacks))

    def take(self) -> Iterator[int]:
        """Numbers from the pile until it is empty."""
        while True:
            try:
                ticket = os.read(self._from, _TICKET.size)
            except BlockingIOError:
                return
            yield from range(*_TICKET.unpack(ticket))

    def close(self) -> None:
        if self._from >= 0:
            os.close(self._from)
            os.close(self._into)
            self._from = self._into = -1


class _Worker:
    """A forked process that shares a queue of units, and its pipe's near end.

    It answers with its results.
    """

    connection: Connection

    def __init__(
        self, subject: Any, tickets: _Tickets, number: int, elder: Sequence[_Worker]
    ) -> None:
        self.number = number
        ours, theirs = Pipe()
        watched, self._lifeline = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            # Children hold no parent's end of any pipe, so that each end of file means
            # what it says.
            for worker in elder:
                worker.connection.close()
                os.close(worker._lifeline)
            ours.close()
            os.close(self._lifeline)
            _run_worker(subject, tickets, theirs, watched, number)
        theirs.close()
        os.close(watched)
        self.connection = ours

    def send(self, method: str, units: list[Any]) -> None:
        """Hand the process a queue of units; it takes tickets for them."""
        try:
            self.connection.send((method, units))
        except (BrokenPipeError, ConnectionResetError):
            raise self._explain_death() from None

    def receive(self) -> dict[int, Any]:
        """Return place in the queue → result, of the units that the process did."""
        try:
            kind, answer = self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._explain_death() from None
        if kind == "error":
            raise answer
        return answer  # type: ignore[no-any-return]

    def close(self) -> None:
        if not self.connection.closed:
            self._end()

    def _explain_death(self) -> RunFailed:
        """Return the error of a process that is gone, with the signal that ended it."""
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
        """Return the process's exit status.

        It has nothing to save, so it is not asked but killed.
        """
        self.connection.close()
        os.close(self._lifeline)
        try:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            return os.waitpid(self.pid, 0)[1]
        except ChildProcessError:  # somebody else's handler has collected it
            return None


def _run_worker(
    subject: Any, tickets: _Tickets, connection: Connection, lifeline: int, number: int
) -> NoReturn:
    """Answer units in a worker process until the parent is gone."""
    try:
        # Both reach the whole process group; the parent decides what becomes of the
        # run.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        # the collector would write to, and so copy, every page shared with the parent
        gc.freeze()
        torch.set_num_threads(1)
        # In the middle of a long unit, too: nobody is left to want its result.
        threading.Thread(
            target=_exit_with_parent, args=(lifeline,), daemon=True
        ).start()
        begin_process = getattr(subject, "begin_process", None)
        if begin_process is not None:
            begin_process(number)
        while True:
            method, queue = connection.recv()
            connection.send(_answer_call(subject, tickets, method, queue))
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)  # no exit handlers, no flushing: those are the parent's


def _exit_with_parent(lifeline: int) -> None:
    """End this process when the parent's end of the pipe is gone.

    So it ends even if the parent was killed.
    """
    os.read(lifeline, 1)
    os._exit(1)


def _answer_call(
    subject: Any, tickets: _Tickets, method: str, queue: list[Any]
) -> tuple[str, Any]:
    """Return what a process sends back: results by place, or the first error."""
    try:
        function = getattr(subject, method)
        return "results", {place: function(queue[place]) for place in tickets.take()}
    except SimfedError as error:
        return "error", error
    except Exception as error:
        if "fork-based multiprocessing" in str(error):  # PyTorch's words
            return "error", RunFailed(
                "worker processes cannot compute gradients here, because this process "
                "did so before on a machine with a GPU; use 1 worker, or start the run "
                "in a new process"
            )
        return "error", RuntimeError(f"in a worker process:\n{traceback.format_exc()}")
