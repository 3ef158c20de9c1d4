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
from multiprocessing.connection import Connection, wait
from typing import Any

from flwr.clientapp import ClientApp

from simfed.errors import RunFailed
from simfed.flower.asides import Aside, Done, Raised, said, told_time
from simfed.flower.work import Answer, Call, NodeClock, work_on
from simfed.scenario.fleet_file import Computing

__all__ = ["Crew", "Ticket", "one_thread"]


class Ticket:
    """A call that was given to the crew."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.worker: _Worker | None = None
        self.answer: Answer | str | None = None
        """A sentence: what went wrong."""


class _Worker:
    """A process, and what it is at."""

    def __init__(self, process: Any, pipe: Connection) -> None:
        self.process = process
        self.pipe = pipe
        self.ticket: Ticket | None = None
        self.asks_time = False


class Crew:
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
        """Somebody may begin with it."""
        ticket = Ticket(call)
        if self._workers:
            self._queue.append(ticket)
            self._look(0.0)
        return ticket

    def fetch(self, ticket: Ticket, begins_at_s: float) -> Answer:
        """What became of a call whose node begins to compute now. Raises: `RunFailed`."""
        if ticket.answer is None and ticket.worker is None:
            if self._workers:
                self._queue.remove(ticket)
            return self._do(ticket.call, begins_at_s)
        while ticket.answer is None:
            worker = ticket.worker
            assert worker is not None
            if worker.asks_time:
                worker.asks_time = False
                worker.pipe.send(begins_at_s)
            elif not self._look(self._patience_s):
                raise RunFailed(
                    f"the client app has not come back for {self._patience_s:g} s of host time: it "
                    "blocks on something that the clock cannot see, or it computes for longer "
                    "than --host-timeout"
                )
        if isinstance(ticket.answer, str):
            raise RunFailed(ticket.answer)
        return ticket.answer

    def drop(self, ticket: Ticket) -> None:
        """Nobody wants it any more."""
        if ticket in self._queue:
            self._queue.remove(ticket)
        elif ticket.worker is not None and ticket.worker.asks_time:
            ticket.worker.asks_time = False
            ticket.worker.pipe.send(0.0)

    def _do(self, call: Call, begins_at_s: float) -> Answer:
        self._begins = lambda: begins_at_s
        try:
            done = self._aside.run(lambda: work_on(self._app, call, self._computing, self._clock))
        except Raised as raised:
            raise RunFailed(_sentence(call, raised.error)) from raised.error
        assert isinstance(done, Done)
        answer: Answer = done.answer
        return answer

    def _look(self, patience_s: float) -> bool:
        """Take what is ready, and hand out what waits; whether anything was ready."""
        busy = {w.pipe: w for w in self._workers if w.ticket is not None and not w.asks_time}
        ready = wait(list(busy), patience_s) if busy else []
        for pipe in ready:
            worker = busy[pipe]  # type: ignore[index]
            ticket = worker.ticket
            assert ticket is not None
            try:
                found = worker.pipe.recv()
            except (EOFError, OSError):
                raise RunFailed(
                    f"the process that worked on a message to node {ticket.call.client} died"
                ) from None
            if found is None:
                worker.asks_time = True
                continue
            ticket.answer, ticket.worker, worker.ticket = found, None, None
        for worker in self._workers:
            if worker.ticket is None and self._queue:
                worker.ticket = ticket = self._queue.popleft()
                ticket.worker = worker
                worker.pipe.send(ticket.call)
        return bool(ready)


def _serve(pipe: Connection, other: Connection, app: ClientApp, computing: Computing) -> None:
    """A process of the crew: one call after another, until nobody is there any more."""
    other.close()

    def begins_at_s() -> float:
        if not known:
            pipe.send(None)
            known.append(pipe.recv())
        return known[0]

    clock = NodeClock(begins_at_s)
    while True:
        known: list[float] = []
        try:
            call = pipe.recv()
        except (EOFError, OSError):
            return
        found: Answer | str
        try:
            with told_time(clock):
                found = work_on(app, call, computing, clock)
        except (EOFError, OSError):
            return
        except BaseException as error:
            found = _sentence(call, error)
        pipe.send(found)


def _sentence(call: Call, error: BaseException) -> str:
    return f"the client app of node {call.client} raised {said(error)}"


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
