"""Foreign code that runs aside: in a thread of its own, with a time and a randomness of its own.

One thread runs at a time. `Aside.run` hands over to the other thread and comes back when that one
asks for something (`ask`), has an answer, or fails. So foreign code blocks wherever it wants to
while the simulated clock goes on.

`foreign_time` puts what foreign code takes for the time in its place. What is replaced are the
functions of the module `time`, wherever a module has them by name, and Flower's own `now`; threads
that are not asides keep the real ones. What is ignored: `datetime.now()` in apps, which cannot be
replaced from outside, and threads that foreign code starts itself.
"""

from __future__ import annotations

import ctypes
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NoReturn

import numpy as np

from simfed.ground.errors import RunFailed, SimfedError

__all__ = [
    "EPOCH_S",
    "Aside",
    "Foreign",
    "ForeignDone",
    "Raised",
    "describe_error",
    "foreign_randomness",
    "foreign_time",
    "read_host_s",
    "read_processor_s",
    "thread_clock",
]

EPOCH_S = 1_767_225_600.0
"""What `time.time()` says at simulated 0 s: the beginning of 2026, UTC."""


class Raised(Exception):
    """Carries what foreign code raised out of its thread."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class _Stopped(BaseException):
    """Raised inside foreign code to end its thread when the run is over."""


@dataclass(frozen=True, slots=True)
class ForeignDone:
    """The foreign code has returned this result."""

    answer: object


class Foreign:
    """The clock that foreign code reads; one object per aside."""

    def now_s(self) -> float:
        """Simulated seconds since the run's start."""
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        """Block the code for these simulated seconds."""
        raise NotImplementedError


class Aside:
    """A thread for foreign code."""

    def __init__(self, name: str, clock: Foreign, patience_s: float) -> None:
        """`patience_s`: host seconds after which code that does not come back is given up."""
        self._name = name
        self._clock = clock
        self._patience_s = patience_s
        self._ours, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._code: Callable[[], object] = lambda: None
        self._question: object = None
        self._answer: object = None
        self._error: BaseException | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run_codes, name=f"simfed {name}", daemon=True)
        self._thread.start()

    def run(self, code: Callable[[], object]) -> object:
        """Run foreign code; its first question, or its result (`ForeignDone`). Raises: `Raised`
        with what the code raises; `RunFailed`."""
        self._code = code
        return self._hand_over()

    def answer(self, answer: object) -> object:
        """Let the code that asked go on with an answer; its next question, or its result."""
        self._answer = answer
        return self._hand_over()

    def stop(self) -> None:
        """End whatever is still going on; it is not waited for where it does not listen."""
        self._stopped = True
        self._theirs.release()
        self._thread.join(timeout=0.2)
        if self._thread.is_alive() and self._thread.ident is not None:
            # in the middle of its work: a thread that computes when Python ends aborts the process
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread.ident), ctypes.py_object(SystemExit)
            )
            self._thread.join(timeout=2.0)

    def ask(self, question: object) -> object:
        """Called in the aside: hand over, and wait for the answer."""
        if threading.current_thread() is not self._thread:
            raise RunFailed(
                f"the {self._name} talks to the grid from a thread that it started itself, which "
                "the clock cannot see"
            )
        self._question = question
        self._ours.release()
        self._theirs.acquire()
        if self._stopped:
            raise _Stopped
        return self._answer

    def _hand_over(self) -> object:
        """Let the aside run until it hands over in its turn."""
        self._theirs.release()
        if not self._ours.acquire(timeout=self._patience_s):
            self._stopped = True
            raise RunFailed(
                f"the {self._name} has not come back for {self._patience_s:g} s of host time: it "
                "blocks on something that the clock cannot see, such as a lock, a socket or a "
                "thread of its own, or it computes for longer than --host-timeout"
            )
        if self._error is not None:
            self._raise_error(self._error)
        return self._question

    def _raise_error(self, error: BaseException) -> NoReturn:
        self._error = None
        if isinstance(error, (SimfedError, KeyboardInterrupt)):
            raise error
        raise Raised(error) from error

    def _run_codes(self) -> None:
        """The aside's thread: one piece of foreign code after another."""
        _clocks[threading.get_ident()] = self._clock
        try:
            while True:
                self._theirs.acquire()
                if self._stopped:
                    return
                try:
                    self._question = ForeignDone(self._code())
                except _Stopped:
                    return
                except BaseException as error:
                    self._error = error
                self._ours.release()
        finally:
            _clocks.pop(threading.get_ident(), None)


# ---- time ----------------------------------------------------------------------------------------

_clocks: dict[int, Foreign] = {}
"""Thread → its clock, for threads of foreign code."""


@contextmanager
def thread_clock(clock: Foreign) -> Iterator[None]:
    """Meanwhile this thread, as an aside does, has the time of `clock`."""
    _clocks[threading.get_ident()] = clock
    try:
        yield
    finally:
        del _clocks[threading.get_ident()]


_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_REAL: dict[str, Callable[..., float]] = {
    name: getattr(time, name) for name in (*_CLOCKS, *(f"{clock}_ns" for clock in _CLOCKS), "sleep")
}
"""The functions of the module `time` that foreign code does not get."""


def _replacement_of(name: str) -> Callable[..., float | None]:
    real = _REAL[name]

    def replacement(*arguments: float) -> float | None:
        clock = _clocks.get(threading.get_ident())
        if clock is None:
            return real(*arguments)
        if name == "sleep":
            seconds = float(arguments[0])
            if not seconds >= 0:
                raise ValueError("sleep length must be non-negative")
            clock.sleep(seconds)
            return None
        now_s = clock.now_s() + (EPOCH_S if name in ("time", "time_ns") else 0.0)
        return round(now_s * 1e9) if name.endswith("_ns") else now_s

    return replacement


_REPLACEMENTS = [(real, _replacement_of(name)) for name, real in _REAL.items()]


def read_host_s() -> float:
    """Seconds of the host's own clock, in whatever thread: an aside that asked the module `time`
    would be told simulated ones."""
    return _REAL["perf_counter"]()


def read_processor_s() -> float:
    """Seconds of processor that this process has used, by the host's own clock."""
    return _REAL["process_time"]()


@contextmanager
def foreign_time(flower_now: Callable[[], datetime]) -> Iterator[None]:
    """Meanwhile asides have their own time; `flower_now` is Flower's function of the date."""

    def now() -> datetime:
        clock = _clocks.get(threading.get_ident())
        if clock is None:
            return flower_now()
        return datetime.fromtimestamp(EPOCH_S + clock.now_s(), timezone.utc)

    pairs: list[tuple[object, object]] = [*_REPLACEMENTS, (flower_now, now)]
    _replace_in_modules(pairs)
    try:
        yield
    finally:
        _replace_in_modules([(after, before) for before, after in pairs])


def _replace_in_modules(pairs: list[tuple[object, object]]) -> None:
    """In every module, put the second of each pair in the place of the first."""
    by_id = {id(before): after for before, after in pairs}
    for module_name, module in list(sys.modules.items()):
        # Python's own library waits in host time, or would not wake up from its locks
        if module_name == __name__ or (
            module_name in sys.stdlib_module_names and not module_name.startswith("time")
        ):
            continue
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            if id(value) in by_id:
                names[name] = by_id[id(value)]


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
