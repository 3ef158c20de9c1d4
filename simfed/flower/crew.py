"""Nodes' work shared among processes: what comes out does not depend on how many there are.

A call is given to the crew when its message begins to travel, and fetched when the node begins to
compute. What no process has begun by then is done here. An app that asks for the time is told it
when the node begins to compute, which is when it is fetched. What is ignored: what an app keeps in
its modules, of which each process has its own.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from flwr.clientapp import ClientApp

from simfed.flower.asides import Aside, ForeignDone, Raised, describe_error, thread_clock
from simfed.flower.work import Answer, Call, NodeClock, work_on
from simfed.ground.errors import RunFailed
from simfed.scenario.fleet_file import Computing

__all__ = ["AppCrew", "Ticket", "one_thread"]


@dataclass(eq=False, slots=True)
class Ticket:
    """A call that was given to the crew."""

    call: Call
    worker: _Worker | None = None
    answer: Answer | str | None = None
    """A sentence: what went wrong."""


@dataclass(eq=False, slots=True)
class _Worker:
    """A process and the call that it works on."""

    process: BaseProcess
    pipe: Connection
    ticket: Ticket | None = None
    asks_time: bool = False


class AppCrew:
    """Works on calls, in this process alone (`workers` 1) or in several."""

    def __init__(
        self, app: ClientApp, computing: Computing, workers: int, patience_s: float
    ) -> None:
        """`patience_s`: host seconds after which an app that gives no sign is given up."""
        self._app = app
        self._computing = computing
        self._patience_s = patience_s
        self._begins: Callable[[], float] = lambda: 0.0
        self._clock = NodeClock(lambda: self._begins())
        self._queue: deque[Ticket] = deque()
        fork = multiprocessing.get_context("fork")
        self._workers: list[_Worker] = []
        for _ in range(workers - 1):
            ours, theirs = fork.Pipe()
            process = fork.Process(target=_serve, args=(theirs, ours, app, computing), daemon=True)
            process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours))
        self._aside = Aside("client app", self._clock, patience_s)

    def close(self) -> None:
        """End all processes."""
        self._aside.stop()
        for worker in self._workers:
            worker.pipe.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()

    def give(self, call: Call) -> Ticket:
        """Queue a call, which a process may begin with at once."""
        ticket = Ticket(call)
        if self._workers:
            self._queue.append(ticket)
            self._serve_workers(0.0)
        return ticket

    def fetch(self, ticket: Ticket, begins_at_s: float) -> Answer:
        """The answer to a call whose node begins to compute now. Raises: `RunFailed`."""
        if ticket.answer is None and ticket.worker is None:
            if self._workers:
                self._queue.remove(ticket)
            return self._work_here(ticket.call, begins_at_s)
        while ticket.answer is None:
            if self._tell_time(ticket.worker, begins_at_s):
                continue
            if not self._serve_workers(self._patience_s):
                raise RunFailed(
                    f"the client app has not come back for {self._patience_s:g} s of host time: it "
                    "blocks on something that the clock cannot see, or it computes for longer "
                    "than --host-timeout"
                )
        if isinstance(ticket.answer, str):
            raise RunFailed(ticket.answer)
        return ticket.answer

    def drop(self, ticket: Ticket) -> None:
        """Nobody waits for this call's answer any longer."""
        if ticket in self._queue:
            self._queue.remove(ticket)
        else:
            self._tell_time(ticket.worker, 0.0)

    def _tell_time(self, worker: _Worker | None, begins_at_s: float) -> bool:
        """Whether the worker had asked when its node begins to compute."""
        if worker is None or not worker.asks_time:
            return False
        worker.asks_time = False
        worker.pipe.send(begins_at_s)
        return True

    def _work_here(self, call: Call, begins_at_s: float) -> Answer:
        self._begins = lambda: begins_at_s
        try:
            done = self._aside.run(lambda: work_on(self._app, call, self._computing, self._clock))
        except Raised as raised:
            raise RunFailed(_failure_of(call, raised.error)) from raised.error
        assert isinstance(done, ForeignDone)
        assert isinstance(done.answer, Answer)
        return done.answer

    def _serve_workers(self, patience_s: float) -> bool:
        """Receive answers, and send queued calls to idle workers; whether anything was received
        within `patience_s` of host time."""
        busy = [w for w in self._workers if w.ticket is not None and not w.asks_time]
        ready = wait([w.pipe for w in busy], patience_s) if busy else []
        for worker in busy:
            if worker.pipe in ready:
                self._receive(worker)
        for worker in self._workers:
            if worker.ticket is None and self._queue:
                worker.ticket = ticket = self._queue.popleft()
                ticket.worker = worker
                worker.pipe.send(ticket.call)
        return bool(ready)

    def _receive(self, worker: _Worker) -> None:
        """An answer, or None: the app asks for the time. Raises: `RunFailed`."""
        ticket = worker.ticket
        assert ticket is not None
        try:
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            raise RunFailed(
                f"the process that worked on a message to node {ticket.call.client} died"
            ) from None
        if answer is None:
            worker.asks_time = True
        else:
            ticket.answer, ticket.worker, worker.ticket = answer, None, None


def _serve(pipe: Connection, other: Connection, app: ClientApp, computing: Computing) -> None:
    """A process of the crew: one call after another, until the run closes the pipe."""
    other.close()
    begins: list[float] = []

    def begins_at_s() -> float:
        if not begins:
            pipe.send(None)
            begins.append(pipe.recv())
        return begins[0]

    clock = NodeClock(begins_at_s)
    while True:
        begins.clear()
        try:
            call = pipe.recv()
        except (EOFError, OSError):
            return
        answer: Answer | str
        try:
            with thread_clock(clock):
                answer = work_on(app, call, computing, clock)
        except (EOFError, OSError):
            return
        except BaseException as error:
            answer = _failure_of(call, error)
        pipe.send(answer)


def _failure_of(call: Call, error: BaseException) -> str:
    return f"the client app of node {call.client} raised {describe_error(error)}"


@contextmanager
def one_thread() -> Iterator[None]:
    """Meanwhile PyTorch (where it is in use) computes with one thread, whatever the crew: sums
    over several are others in their last bits."""
    torch = sys.modules.get("torch")
    if torch is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
