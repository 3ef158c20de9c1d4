"""A server app's threads: one at a time, and the simulated clock goes on when all of them wait.

Flower's users send from pools of threads, or from an event loop that hands calls to a pool. Each
thread that the app starts is an aside of its own; it gives way where it asks the grid, sleeps, or
waits for another one (futures, events, conditions, queues, `join`). So what they do depends on the
app alone, not on how the host schedules threads. What is ignored: a lock that one thread holds
while it waits for the grid and that another one asks for blocks the run; threads of libraries
(loaders of data, progress bars) are the host's.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from simfed.flower.asides import Aside, Stopped
from simfed.flower.clocks import replaced
from simfed.flower.computing import Charge
from simfed.flower.grid import Begin, ServerClock, Until
from simfed.ground.errors import RunFailed, SimfedError
from simfed.scenario.fleet_file import Computing


@dataclass(frozen=True, slots=True, eq=False)
class Strand:
    """One thread of the server app, and what it is charged."""

    aside: Aside
    charge: Charge

    def ask(self, question: object) -> object:
        """Called in the thread: hand over, and wait for the answer."""
        self.charge.pause()
        try:
            return self.aside.ask(question)
        finally:
            self.charge.resume()


class Strands:
    """All threads of one server app, the first of which is there from the beginning."""

    def __init__(self, clock: ServerClock, computing: Computing | None, patience_s: float) -> None:
        self._clock = clock
        self._computing = computing
        self._patience_s = patience_s
        self._of_thread: dict[threading.Thread, Strand] = {}
        self._starts_one = False
        self.first = Strand(Aside("server app", clock, patience_s), Charge(computing))
        self._of_thread[self.first.aside.thread] = self.first

    def stop(self) -> None:
        """End whatever is still going on."""
        # a pool logs what ends its threads
        with replaced(logging.getLogger("concurrent.futures"), "disabled", True):
            for strand in self._of_thread.values():
                strand.aside.stop()

    def ask(self, question: object) -> object:
        """Called in a thread of the app: a question for the simulated clock. Raises: `RunFailed`
        in a thread that is nobody's."""
        strand = self._current()
        if strand is None:
            raise RunFailed(
                "the server app talks to the grid from a thread of a library, which the clock "
                "cannot see"
            )
        return strand.ask(question)

    @property
    def several(self) -> bool:
        """Whether more than one thread is under way."""
        return sum(not strand.aside.done for strand in self._of_thread.values()) > 1

    def _current(self) -> Strand | None:
        return None if self._starts_one else self._of_thread.get(threading.current_thread())

    # ---- what threads of the app start and wait for ----------------------------------------------

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Meanwhile threads that the app starts are asides, and wait for each other on the
        simulated clock."""
        start, join, wait = threading.Thread.start, threading.Thread.join, threading.Condition.wait

        def start_aside(thread: threading.Thread) -> None:
            if self._current() is None or not _is_of_app(sys._getframe(1)):
                start(thread)
            else:
                self._start(thread, start)

        def join_aside(thread: threading.Thread, timeout: float | None = None) -> None:
            strand, other = self._current(), self._of_thread.get(thread)
            if strand is None or other is None:
                join(thread, timeout)
            elif strand.ask(Until(lambda: other.aside.done, timeout)):
                join(thread)  # it is through with its own code

        def wait_aside(condition: Any, timeout: float | None = None) -> bool:
            strand = self._current()
            if strand is None or not self.several:
                return wait(condition, timeout)
            return _wait_on_condition(condition, timeout, strand)

        with ExitStack() as stack:
            stack.enter_context(replaced(threading.Thread, "start", start_aside))
            stack.enter_context(replaced(threading.Thread, "join", join_aside))
            stack.enter_context(replaced(threading.Condition, "wait", wait_aside))
            # one that is written in C waits where nobody can see it
            stack.enter_context(replaced(queue, "SimpleQueue", queue._PySimpleQueue))  # type: ignore[attr-defined]
            for owner, name in ((threading, "_time"), (queue, "time")):
                stack.enter_context(replaced(owner, name, self._deadlines_of(owner, name)))
            yield

    def _start(self, thread: threading.Thread, start: Callable[[threading.Thread], None]) -> None:
        """Start a thread of the app as an aside, and let the clock know of it."""
        aside = Aside("server app", self._clock, self._patience_s, thread)
        strand = Strand(aside, Charge(self._computing))
        run = thread.run

        def work() -> None:
            with strand.charge.watched():
                try:
                    run()
                except (SimfedError, Stopped):
                    raise
                except SystemExit:
                    pass  # as a thread takes it
                except BaseException:
                    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), thread)))

        thread.run = lambda: aside.carry(work)  # type: ignore[method-assign]
        self._starts_one = True  # Python's own wait for the thread to be there
        try:
            start(thread)
        finally:
            self._starts_one = False
        self._of_thread[thread] = strand
        self.ask(Begin(strand))

    def _deadlines_of(self, owner: Any, name: str) -> Callable[[], float]:
        real = getattr(owner, name)

        def now() -> float:
            told = self._current() is not None and self.several
            return self._clock.now_s() if told else real()

        return now


def _wait_on_condition(condition: Any, timeout: float | None, strand: Strand) -> bool:
    """`Condition.wait`, whose waiter another thread of the app releases."""
    if not condition._is_owned():
        raise RuntimeError("cannot wait on un-acquired lock")
    waiter = threading.Lock()
    waiter.acquire()
    condition._waiters.append(waiter)
    saved = condition._release_save()
    try:
        return bool(strand.ask(Until(lambda: not waiter.locked(), timeout)))
    finally:
        condition._acquire_restore(saved)
        if waiter.locked():
            condition._waiters.remove(waiter)


_POOLS = {"concurrent", "asyncio", "threading"}
"""Python's own packages that start threads for whom calls them."""


def _is_of_app(frame: FrameType | None) -> bool:
    """Whether a thread is started by the app's own code, not by a library."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _POOLS:
            file = frame.f_code.co_filename
            return package not in sys.stdlib_module_names and "-packages" not in file
        frame = frame.f_back
    return False
