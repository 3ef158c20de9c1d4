"""Crews: nodes' work shared among processes, with the same results.

A call is given to the crew when its message begins to travel, and fetched when the node
begins to compute. One process alone works here, in a thread that is given up when it
does not come back; several are forks of this one, which have the app. A fork that dies
at a call ends that call's node alone: another one takes its place, and what it had not
begun. Ignored is what an app keeps in its modules, of which each process has its own.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flwr.clientapp import ClientApp

from simfed.flower.clocks import thread_clock
from simfed.flower.turns import (
    CodeResult,
    ForeignError,
    ForeignThread,
    describe_error,
    end_forked,
    make_stuck_error,
)
from simfed.flower.work import Answer, Call, NodeClock, make_killed_answer, work_on
from simfed.ground.errors import RunFailed, SimfedError
from simfed.scenario.fleet_file import Computing


@dataclass(eq=False, slots=True)
class Ticket:
    """A call that was given to the crew."""

    call: Call
    seat: _Seat | None = None
    future: Future[Answer] = field(default_factory=Future)


class _Seat:
    """One process of the crew, and the calls that it has not ended.

    A pool of one process each, so that a death is that of the call that was under way.
    """

    def __init__(self, app: ClientApp, computing: Computing) -> None:
        self._app = app
        self._computing = computing
        self.tickets: list[Ticket] = []
        self._open()

    def _open(self) -> None:
        self._pool = ProcessPoolExecutor(
            1,
            mp_context=multiprocessing.get_context("fork"),
            initializer=_seated.extend,
            initargs=((self._app, self._computing, NodeClock()),),
        )
        self._pool.submit(os.getpid)  # which starts the process

    @property
    def load(self) -> int:
        """The number of calls that it has not done."""
        return sum(not ticket.future.done() for ticket in self.tickets)

    def give(self, ticket: Ticket) -> None:
        """Have the process work on a call after those that it has."""
        ticket.seat = self
        self.tickets.append(ticket)
        try:
            ticket.future = self._pool.submit(_work, ticket.call)
        except BrokenExecutor:  # it has died at nothing
            self.mend()

    def mend(self) -> None:
        """Take another process.

        The first call that the dead one had begun ended its node; the others are given
        anew.
        """
        self._pool.shutdown(wait=False)
        tickets, self.tickets = self.tickets, []
        broken = [ticket for ticket in tickets if not _is_whole(ticket.future)]
        self._open()
        for nth, ticket in enumerate(broken):
            if nth == 0 and ticket.future.done():
                ticket.future = Future()
                ticket.future.set_result(make_killed_answer(ticket.call))
            else:
                self.give(ticket)

    def close(self) -> None:
        """Kill the process."""
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
            process.join()


def _is_whole(future: Future[Answer]) -> bool:
    """Return whether a future is done by its call."""
    return future.cancelled() or (
        future.done() and not isinstance(future.exception(), BrokenExecutor)
    )


class AppCrew:
    """Works on calls, in this process alone (`workers` 1) or in several others.

    The answers do not depend on how many there are.
    """

    def __init__(
        self, app: ClientApp, computing: Computing, workers: int, patience_s: float
    ) -> None:
        """Start the processes.

        Args:
            app: the client app.
            computing: how its work is charged.
            workers: processes; 1: this one, in a thread of its own.
            patience_s: host seconds after which an app without a sign is given up.
        """
        self._app = app
        self._computing = computing
        self._patience_s = patience_s
        self._clock = NodeClock()
        self._seats = [
            _Seat(app, computing) for _ in range(workers if workers > 1 else 0)
        ]
        self._turn = ForeignThread("client app", self._clock, patience_s)

    def close(self) -> None:
        """End whatever is under way."""
        self._turn.stop()
        for seat in self._seats:
            seat.close()

    def give(self, call: Call) -> Ticket:
        """Queue a call, which a process may begin with at once."""
        ticket = Ticket(call)
        if self._seats:
            min(self._seats, key=lambda seat: seat.load).give(ticket)
        return ticket

    def fetch(self, ticket: Ticket) -> Answer:
        """Return the answer to a call whose node begins to compute now.

        It waits for the processes' earlier calls first, and puts a new process in the
        place of one that has died.

        Raises:
            RunFailed: the app gives no sign, or raises what is no answer.
        """
        seat = ticket.seat
        if seat is None:
            return self._work_here(ticket.call)
        while not _is_whole(ticket.future):
            before = seat.tickets[0]
            wait_for([before.future], self._patience_s)
            if not before.future.done():
                name = f"client app of node {before.call.client}"
                raise make_stuck_error(name, self._patience_s)
            if _is_whole(before.future):
                seat.tickets.remove(before)
            else:
                seat.mend()
        if ticket in seat.tickets:
            seat.tickets.remove(ticket)
        return ticket.future.result()

    def _work_here(self, call: Call) -> Answer:
        self._turn.name = f"client app of node {call.client}"
        try:
            done = self._turn.run(
                lambda: work_on(self._app, call, self._computing, self._clock)
            )
        except ForeignError as raised:
            raise RunFailed(_describe_failure(call, raised.error)) from raised.error
        assert isinstance(done, CodeResult)
        assert isinstance(done.answer, Answer)
        return done.answer


_seated: list[Any] = []
"""The app, computing and clock with which a process of the crew works."""


def _work(call: Call) -> Answer:
    """Work on a call in a process of the crew."""
    app, computing, clock = _seated
    process = os.getpid()
    try:
        with thread_clock(clock):
            return work_on(app, call, computing, clock)
    except SimfedError:
        raise
    except BaseException as error:
        raise RunFailed(_describe_failure(call, error)) from None
    finally:
        end_forked(f"client app of node {call.client}", process)


def _describe_failure(call: Call, error: BaseException) -> str:
    return f"the client app of node {call.client} raised {describe_error(error)}"


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch (where it is in use) compute with one thread in the block.

    Sums over several are others in their last bits, whatever the crew.
    """
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
