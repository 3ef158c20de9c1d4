"""Foreign code that runs aside: in a thread of its own, with a time and a randomness of its own.

One thread runs at a time. `Aside.run` hands over to the other thread and comes back when that one
asks for something (`ask`), has an answer, or fails. So foreign code blocks wherever it wants to
while the simulated clock goes on.
"""

from __future__ import annotations

import ctypes
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import NoReturn

import numpy as np

from simfed.flower.clocks import Foreign, thread_clock
from simfed.ground.errors import RunFailed, SimfedError


class Raised(Exception):
    """Carries what foreign code raised out of its thread."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Stopped(BaseException):
    """Raised inside foreign code to end its thread when the run is over."""


@dataclass(frozen=True, slots=True)
class ForeignDone:
    """The foreign code has returned this result."""

    answer: object


class Aside:
    """A thread for foreign code."""

    def __init__(
        self,
        name: str,
        clock: Foreign,
        patience_s: float,
        thread: threading.Thread | None = None,
    ) -> None:
        """`patience_s`: host seconds after which code that does not come back is given up;
        `thread`: one that foreign code has made, and that is to call `carry`."""
        self._name = name
        self._clock = clock
        self._patience_s = patience_s
        # of C: what Python's own semaphores wait with is replaced in foreign threads
        self._ours: SimpleQueue[None] = SimpleQueue()
        self._theirs: SimpleQueue[None] = SimpleQueue()
        self._code: Callable[[], object] = lambda: None
        self._question: object = None
        self._answer: object = None
        self._error: BaseException | None = None
        self._stopped = False
        self.done = False
        """The thread's own code has ended."""
        if thread is None:
            thread = threading.Thread(target=self._run_codes, name=f"simfed {name}", daemon=True)
            thread.start()
        self.thread = thread

    def run(self, code: Callable[[], object]) -> object:
        """Run foreign code; its first question, or its result (`ForeignDone`). Raises: `Raised`
        with what the code raises; `RunFailed`."""
        self._code = code
        return self.begin()

    def begin(self) -> object:
        """Let the code that there is run; its first question, or its result."""
        return self._hand_over()

    def answer(self, answer: object) -> object:
        """Let the code that asked go on with an answer; its next question, or its result."""
        self._answer = answer
        return self._hand_over()

    def stop(self) -> None:
        """End whatever is still going on; it is not waited for where it does not listen."""
        self._stopped = True
        self._theirs.put(None)
        self.thread.join(timeout=0.2)
        if self.thread.is_alive() and self.thread.ident is not None:
            # in the middle of its work: a thread that computes when Python ends aborts the process
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.thread.ident), ctypes.py_object(SystemExit)
            )
            self.thread.join(timeout=2.0)

    def ask(self, question: object) -> object:
        """Called in the aside: hand over, and wait for the answer."""
        if self._stopped:
            raise Stopped
        self._question = question
        self._ours.put(None)
        self._theirs.get()
        if self._stopped:
            raise Stopped
        return self._answer

    def _hand_over(self) -> object:
        """Let the aside run until it hands over in its turn."""
        self._theirs.put(None)
        try:
            self._ours.get(timeout=self._patience_s)
        except Empty:
            self._stopped = True
            raise RunFailed(
                f"the {self._name} has not come back for {self._patience_s:g} s of host time: it "
                "blocks on something that the clock cannot see, such as a lock, a socket or a "
                "thread of its own, or it computes for longer than --host-timeout"
            ) from None
        if self._error is not None:
            self._raise_error(self._error)
        return self._question

    def _raise_error(self, error: BaseException) -> NoReturn:
        self._error = None
        if isinstance(error, (SimfedError, KeyboardInterrupt)):
            raise error
        raise Raised(error) from error

    def carry(self, code: Callable[[], object]) -> None:
        """Called in a thread of foreign code's own: run this when it is the thread's turn."""
        self._code = code
        with thread_clock(self._clock):
            self._run_code()

    def _run_codes(self) -> None:
        """The aside's thread: one piece of foreign code after another."""
        with thread_clock(self._clock):
            while self._run_code():
                pass

    def _run_code(self) -> bool:
        """Run a piece of foreign code when it comes; whether the run goes on."""
        self._theirs.get()
        if self._stopped:
            return False
        try:
            self._question = ForeignDone(self._code())
        except Stopped:
            return False
        except BaseException as error:
            self._error = error
        self.done = True
        self._ours.put(None)
        return True


# ---- randomness ----------------------------------------------------------------------------------


@contextmanager
def foreign_randomness(seed: int) -> Iterator[None]:
    """Meanwhile the global generators of Python, NumPy and PyTorch (where it is in use) stand at
    their beginnings by this seed; afterwards they are as they were."""
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002
    if torch is not None:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(states[2])


def describe_error(error: BaseException) -> str:
    """An exception of foreign code in one line."""
    if isinstance(error, SimfedError):
        return str(error)
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
