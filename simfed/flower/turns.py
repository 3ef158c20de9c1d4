"""One baton: foreign code in threads that take turns with the simulated clock.

One thread runs at a time. `ForeignThread.run` hands the baton to a thread and has it
back when that one asks for something (`ask`), has a result, or fails; so foreign code
blocks wherever it wants to while the simulated clock goes on. A client app has one
thread. A server app has the one that it is called in and those of its pools
(`ThreadPoolExecutor`), Flower's legacy server's included. Each gives way where it asks
the grid, sleeps, or waits for a future, an event, a condition or a queue. So what they
do depends on the app alone, not on how the host schedules threads.

Refused are event loops and further threads of a server app's own, which nobody gives
turns. Ignored are locks: one that a thread holds while it waits for the grid, and that
another one asks for, blocks the run; and threads of libraries (loaders of data,
progress bars), which are the host's.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import math
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

from simfed.flower.clocks import ForeignClock, is_of_app, replaced, thread_clock
from simfed.flower.computing import WorkWatch
from simfed.flower.grid import Question, ServerClock
from simfed.ground.errors import RunFailed, SimfedError
from simfed.scenario.fleet_file import Computing


class ForeignError(Exception):
    """Carries what foreign code raised out of its thread."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class ThreadEnd(BaseException):
    """Raised inside foreign code to end its thread when the run is over."""


@dataclass(frozen=True, slots=True)
class CodeResult:
    """The foreign code has returned this result."""

    answer: object


class ForeignThread:
    """A thread for foreign code, which runs only while it has the baton.

    `run` and `answer` are called by the clock's thread, `ask` by the foreign code.
    Ignored is a thread that the code starts itself.
    """

    def __init__(
        self,
        name: str,
        clock: ForeignClock,
        patience_s: float,
        computing: Computing | None = None,
    ) -> None:
        """Start the thread, which waits for its first code.

        Args:
            name: how sentences call the code.
            clock: the time that the code is told.
            patience_s: host seconds after which code that does not come back is given
            up.
            computing: how its work is charged; None: it is not.
        """
        self.name = name
        self.watch = WorkWatch(computing)
        self.done = True
        """No code of it is under way, or about to be."""
        self._clock = clock
        self._patience_s = patience_s
        self._ours: SimpleQueue[object] = SimpleQueue()
        """Questions, results (`CodeResult`) and exceptions of the code."""
        self._theirs: SimpleQueue[Any] = SimpleQueue()
        """Code to run, then answers."""
        self._stopped = False
        self._process = os.getpid()
        self.thread = threading.Thread(
            target=self._serve, name=f"simfed {name}", daemon=True
        )
        self.thread.start()

    def run(self, code: Callable[[], object]) -> object:
        """Let the thread run this code.

        Returns:
            Its first question, or its result (`CodeResult`).

        Raises:
            ForeignError: with what the code raises.
            RunFailed: it does not come back.
        """
        self.done = False
        return self.answer(code)

    def answer(self, answer: object) -> object:
        """Let code that has asked go on with the answer.

        Returns, and raises, as `run`: the next question, or the result.
        """
        self._theirs.put(answer)
        try:
            said = self._ours.get(timeout=self._patience_s)
        except Empty:
            self._stopped = True
            raise make_stuck_error(self.name, self._patience_s) from None
        if isinstance(said, (SimfedError, KeyboardInterrupt)):
            raise said
        if isinstance(said, BaseException):
            raise ForeignError(said) from said
        return said

    def stop(self) -> None:
        """End whatever is still going on.

        Code that waits for an answer ends by `ThreadEnd`, code that computes by
        `SystemExit`; it is not waited for where it does not listen.
        """
        self._stopped = True
        self._theirs.put(None)
        self.thread.join(timeout=0.2)
        if self.thread.is_alive() and self.thread.ident is not None:
            # in the middle of its work: a thread that computes when Python ends aborts
            # the process
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.thread.ident), ctypes.py_object(SystemExit)
            )
            self.thread.join(timeout=2.0)

    # ---- in the thread ---------------------------------------------------------------

    def ask(self, question: object) -> object:
        """Hand the baton over with a question, and return the answer.

        Raises:
            ThreadEnd: the run is over.
        """
        if self._stopped:
            raise ThreadEnd
        self._hand_over(question)
        answer = self._theirs.get()
        if self._stopped:
            raise ThreadEnd
        return answer

    def _hand_over(self, said: object) -> None:
        end_forked(self.name, self._process)
        self._ours.put(said)

    def _serve(self) -> None:
        """Run one piece of code after another, each when it comes."""
        with thread_clock(self._clock):
            while True:
                code = self._theirs.get()
                if self._stopped:
                    return
                try:
                    said: object = CodeResult(code())
                except ThreadEnd:
                    return
                except BaseException as error:
                    said = error
                self.done = True
                self._hand_over(said)


def make_stuck_error(name: str, patience_s: float) -> RunFailed:
    """Return what to say of code that has not come back for so long."""
    return RunFailed(
        f"the {name} has not come back for {patience_s:g} s of host time: it blocks on "
        "something that the clock cannot see, such as a lock, a socket or a thread of "
        "its own, it works until its clock, which sleep alone moves, shows a time, or "
        "it computes for longer than --host-timeout"
    )


def end_forked(name: str, process: int) -> None:
    """End this process where foreign code has forked it off `process`.

    Its child returned to the run, which is not the child's.
    """
    if os.getpid() != process:
        said = f"the {name} forked a process that did not end: it is ended\n"
        os.write(2, said.encode())  # what buffers hold is the parent's
        os._exit(1)


def describe_error(error: BaseException) -> str:
    r"""Return an exception of foreign code in one line.

    >>> describe_error(KeyError("rows")), describe_error(ValueError("no\nmore"))
    ("KeyError: 'rows'", 'ValueError: no')
    """
    if isinstance(error, SimfedError):
        return str(error)
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


# ---- a server app --------------------------------------------------------------------


@dataclass(slots=True)
class _PoolCalls:
    """The calls that a pool of the app has been asked for."""

    waiting: deque[tuple[Future[Any], Callable[[], object]]] = field(
        default_factory=deque
    )
    working: int = 0
    """Threads under way."""


class ServerThreads:
    """The threads of one server app, the first of which is there from the beginning.

    Calls of the app's pools become threads of this kind, as many at a time as a pool
    has workers; one whose call is done takes the next, of whatever pool.
    `simfed.flower.play` runs them, the app asks through the grid that has `ask`.
    """

    def __init__(self, computing: Computing | None, patience_s: float) -> None:
        """Start the first thread.

        Args:
            computing: how the server's work is charged; None: it is not.
            patience_s: host seconds, as for `ForeignThread`.
        """
        self.clock = ServerClock(self.ask)
        self._computing = computing
        self._patience_s = patience_s
        self._of_thread: dict[threading.Thread, ForeignThread] = {}
        self._idle: list[ForeignThread] = []
        """Threads whose calls are done."""
        self._pools: dict[ThreadPoolExecutor, _PoolCalls] = {}
        self._places = itertools.count(1)
        self._starting: set[threading.Thread] = set()
        """Threads that wait, in host time, until one that they start is there."""
        self.first = self._make_thread()

    def _make_thread(self) -> ForeignThread:
        thread = ForeignThread(
            "server app", self.clock, self._patience_s, self._computing
        )
        self._of_thread[thread.thread] = thread
        return thread

    def run(self, thread: ForeignThread, code: Callable[[], object]) -> object:
        """Let a thread run this code, watched; as `ForeignThread.run`."""

        def watched() -> object:
            with thread.watch.watched():
                return code()

        return thread.run(watched)

    def stop(self) -> None:
        """End whatever is still going on."""
        for thread in self._of_thread.values():
            thread.stop()

    def ask(self, question: Question) -> object:
        """Ask the simulated clock, in a thread of the app, and return the answer.

        Host time and work of the thread are not counted meanwhile.

        Raises:
            RunFailed: the thread is not the app's.
        """
        thread = self._of_thread.get(threading.current_thread())
        if thread is None:
            raise RunFailed(
                "the server app talks to the grid from a thread of a library, which "
                "the clock cannot see"
            )
        thread.watch.pause()
        try:
            return thread.ask(question)
        finally:
            thread.watch.resume()

    def _is_mine(self) -> bool:
        return threading.current_thread() in self._of_thread

    def _others_may_wake(self) -> bool:
        """Return whether this is one of several of the app's threads under way."""
        return (
            self._is_mine()
            and threading.current_thread() not in self._starting
            and sum(not thread.done for thread in self._of_thread.values()) > 1
        )

    # ---- what is put in the place of Python's own ------------------------------------

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Have the app's pools and waits take turns meanwhile; refuse what cannot.

        Threads that are not the app's keep Python's own.
        """
        with ExitStack() as stack:
            for owner, name, make in (
                (ThreadPoolExecutor, "submit", self._make_submit),
                (ThreadPoolExecutor, "shutdown", self._make_shutdown),
                (threading.Condition, "wait", self._make_wait),
                (threading.Thread, "start", self._make_start),
                (asyncio.BaseEventLoop, "run_forever", self._make_run_forever),
                (threading, "_time", self._make_time),
                (queue, "time", self._make_time),
            ):
                stack.enter_context(replaced(owner, name, make(getattr(owner, name))))
            yield

    def _make_submit(
        self, real: Callable[..., Future[Any]]
    ) -> Callable[..., Future[Any]]:
        """Return a `submit` that queues a call, and begins a thread if one is free."""

        def submit(
            pool: ThreadPoolExecutor,
            call: Callable[..., object],
            /,
            *arguments: Any,
            **named: Any,
        ) -> Future[Any]:
            if not self._is_mine() or pool._shutdown:
                return real(pool, call, *arguments, **named)
            calls = self._pools.setdefault(pool, _PoolCalls())
            future: Future[Any] = Future()
            calls.waiting.append((future, partial(call, *arguments, **named)))
            if calls.working < pool._max_workers:
                calls.working += 1
                thread = self._idle.pop() if self._idle else self._make_thread()
                thread.done = False
                work = partial(self._work, pool, calls)
                self.ask(lambda play: play.begin(thread, work))
            return future

        return submit

    def _work(self, pool: Any, calls: _PoolCalls) -> None:
        """Do a pool's calls one after another, in a thread of it."""
        if hasattr(pool, "_create_worker_context"):  # since Python 3.14
            pool._create_worker_context().initialize()
        elif pool._initializer is not None:
            pool._initializer(*pool._initargs)
        while calls.waiting:
            future, call = calls.waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except ThreadEnd:
                raise
            except BaseException as error:
                settle = partial(future.set_exception, error)
            else:
                settle = partial(future.set_result, result)
            future.place = next(self._places)  # type: ignore[attr-defined]
            settle()
        calls.working -= 1
        self._idle.append(self._of_thread[threading.current_thread()])

    def _make_shutdown(self, real: Callable[..., None]) -> Callable[..., None]:
        """Return a `shutdown` that waits for a pool's calls in simulated time."""

        def shutdown(
            pool: ThreadPoolExecutor, wait: bool = True, *, cancel_futures: bool = False
        ) -> None:
            calls = self._pools.pop(pool, None)
            if calls is not None:
                for future, _ in calls.waiting if cancel_futures else ():
                    future.cancel()
                if wait:
                    self.ask(lambda play: play.wait_until(lambda: not calls.working))
            real(pool, wait, cancel_futures=cancel_futures)

        return shutdown

    def _make_wait(self, real: Callable[..., bool]) -> Callable[..., bool]:
        """Return a `Condition.wait` that lets the other threads take their turns.

        Futures, events, queues and barriers of Python wait by it.
        """

        def wait(condition: Any, timeout: float | None = None) -> bool:
            if not self._others_may_wake():
                return real(condition, timeout)
            if not condition._is_owned():
                raise RuntimeError("cannot wait on un-acquired lock")
            waiter = threading.Lock()
            waiter.acquire()
            condition._waiters.append(waiter)
            saved = condition._release_save()
            try:
                until_s = math.inf if timeout is None else timeout
                return bool(
                    self.ask(
                        lambda play: play.wait_until(
                            lambda: not waiter.locked(), until_s
                        )
                    )
                )
            finally:
                condition._acquire_restore(saved)
                if waiter.locked():
                    condition._waiters.remove(waiter)

        return wait

    def _make_time(self, real: Callable[[], float]) -> Callable[[], float]:
        """Deadlines of waits that are told a timeout."""
        return lambda: self.clock.at_s if self._others_may_wake() else real()

    def _make_start(
        self, real: Callable[[threading.Thread], None]
    ) -> Callable[..., None]:
        """Return a `Thread.start` that refuses threads of the app's own."""

        def start(thread: threading.Thread) -> None:
            if self._is_mine() and is_of_app(sys._getframe(1)):
                _refuse("a thread of its own")
            mine = threading.current_thread()
            self._starting.add(mine)
            try:
                real(thread)
            finally:
                self._starting.discard(mine)

        return start

    def _make_run_forever(self, real: Callable[[Any], None]) -> Callable[[Any], None]:
        def run_forever(loop: Any) -> None:
            if self._is_mine():
                _refuse("an event loop (asyncio)")
            real(loop)

        return run_forever


def _refuse(what: str) -> NoReturn:
    raise RunFailed(
        f"the server app starts {what}, which the simulated clock cannot give turns: a "
        "loop over `grid.push_messages` and `grid.pull_messages` waits for many nodes, "
        "and so do the threads of a concurrent.futures.ThreadPoolExecutor"
    )


def list_done(futures: Iterable[Any]) -> list[Any]:
    """Return futures of pools in the order in which they were done."""
    return sorted(futures, key=lambda future: future.place)
