"""Nodes' work shared among processes: what comes out does not depend on how many there are.

A call is given to the crew when its message begins to travel, and fetched when the node begins to
compute. What no process has begun by then is done here. An app that asks for the time is told it
when its call is fetched, as it is then known when its node begins to compute. What is ignored: what
an app keeps in its modules, of which each process has its own.
"""

from __future__ import annotations

import itertools
import multiprocessing
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from flwr.clientapp import ClientApp

from simfed.flower.asides import Aside, ForeignDone, Raised, describe_error
from simfed.flower.clocks import thread_clock
from simfed.flower.computing import HostSpent
from simfed.flower.work import Answer, Call, NodeClock, Tell, work_on
from simfed.ground.errors import RunFailed, SimfedError
from simfed.scenario.fleet_file import Computing


@dataclass(eq=False, slots=True)
class Ticket:
    """A call that was given to the crew."""

    call: Call
    worker: _AppWorker | None = None
    answer: Answer | SimfedError | None = None
    """An error: what went wrong."""
    tell: Tell | None = None
    """Tells the app the time, when that is known."""


@dataclass(eq=False, slots=True)
class _AppWorker:
    """A process and the call that it works on."""

    process: BaseProcess
    pipe: Connection
    ticket: Ticket | None = None
    asks: HostSpent | None = None
    """The app waits to be told the time, having spent this."""


class AppCrew:
    """Works on calls, in this process alone (`workers` 1) or in several."""

    def __init__(
        self, app: ClientApp, computing: Computing, workers: int, patience_s: float
    ) -> None:
        """`patience_s`: host seconds after which an app that gives no sign is given up."""
        self._app = app
        self._computing = computing
        self._patience_s = patience_s
        self._tell: Tell = lambda spent: 0.0
        self._clock = NodeClock(lambda spent: self._tell(spent))
        self._queue: deque[Ticket] = deque()
        fork = multiprocessing.get_context("fork")
        self._workers: list[_AppWorker] = []
        for _ in range(workers - 1):
            ours, theirs = fork.Pipe()
            process = fork.Process(
                target=_serve_calls, args=(theirs, ours, app, computing), daemon=True
            )
            process.start()
            theirs.close()
            self._workers.append(_AppWorker(process, ours))
        self._aside = Aside("client app", self._clock, patience_s)

    def close(self) -> None:
        """Terminate the workers' processes and wait for their ends."""
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

    def fetch(self, ticket: Ticket, tell: Tell) -> Answer:
        """The answer to a call whose node begins to compute now; `tell` is asked for the time.
        Raises: `RunFailed`."""
        if ticket.answer is None and ticket.worker is None:
            if self._workers:
                self._queue.remove(ticket)
            return self._work_here(ticket.call, tell)
        ticket.tell = tell
        self._tell_time(ticket.worker)
        while ticket.answer is None:
            if not self._serve_workers(self._patience_s):
                raise RunFailed(
                    f"the client app has not come back for {self._patience_s:g} s of host time: it "
                    "blocks on something that the clock cannot see, or it computes for longer "
                    "than --host-timeout"
                )
        if isinstance(ticket.answer, SimfedError):
            raise ticket.answer
        return ticket.answer

    def again(self, ticket: Ticket, tell: Tell, pace_s: float) -> Answer:
        """The answer to a call that was fetched, made anew with a clock of this pace. Raises:
        `RunFailed`."""
        return self._work_here(replace(ticket.call, pace_s=pace_s), tell)

    def drop(self, ticket: Ticket) -> None:
        """Nobody waits for this call's answer any longer."""
        if ticket in self._queue:
            self._queue.remove(ticket)
        else:
            hours = itertools.count()  # so that an app that waits for a time comes to its end
            ticket.tell = lambda spent: 3600.0 * next(hours)
            self._tell_time(ticket.worker)

    def _tell_time(self, worker: _AppWorker | None) -> None:
        """Tell a worker the time where it has asked for it and it is known."""
        if worker is None or worker.ticket is None or worker.ticket.tell is None:
            return
        if worker.asks is not None:
            spent, worker.asks = worker.asks, None
            worker.pipe.send(worker.ticket.tell(spent))

    def _work_here(self, call: Call, tell: Tell) -> Answer:
        self._tell = tell
        try:
            done = self._aside.run(lambda: work_on(self._app, call, self._computing, self._clock))
        except Raised as raised:
            raise RunFailed(_describe_failure(call, raised.error)) from raised.error
        assert isinstance(done, ForeignDone)
        assert isinstance(done.answer, Answer)
        return done.answer

    def _serve_workers(self, patience_s: float) -> bool:
        """Receive answers, and send queued calls to idle workers; whether anything was received
        within `patience_s` of host time."""
        busy = [w for w in self._workers if w.ticket is not None and w.asks is None]
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

    def _receive(self, worker: _AppWorker) -> None:
        """An answer, or what the app has spent when it asks for the time. Raises: `RunFailed`."""
        ticket = worker.ticket
        assert ticket is not None
        try:
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            raise RunFailed(
                f"the process that worked on a message to node {ticket.call.client} died"
            ) from None
        if isinstance(answer, HostSpent):
            worker.asks = answer
            self._tell_time(worker)
        else:
            ticket.answer, ticket.worker, worker.ticket = answer, None, None


def _serve_calls(pipe: Connection, other: Connection, app: ClientApp, computing: Computing) -> None:
    """A process of the crew: one call after another, until the run closes the pipe."""
    other.close()

    def tell(spent: HostSpent) -> float:
        pipe.send(spent)
        return float(pipe.recv())

    clock = NodeClock(tell)
    while True:
        try:
            call = pipe.recv()
        except (EOFError, OSError):
            return
        answer: Answer | SimfedError
        try:
            with thread_clock(clock):
                answer = work_on(app, call, computing, clock)
        except (EOFError, OSError):
            return
        except SimfedError as error:
            answer = error
        except BaseException as error:
            answer = RunFailed(_describe_failure(call, error))
        pipe.send(answer)


def _describe_failure(call: Call, error: BaseException) -> str:
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
