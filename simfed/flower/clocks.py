"""The time and the randomness that foreign code is given.

`foreign_time` replaces what foreign code takes for the time: the functions of the
module `time`, wherever a module has them by name, Flower's own `now`, and what the
event loop of a client app waits with. Threads that have no clock here keep the real
ones. Waiting and sleep alone move it; `process_time` and `thread_time` stand still.
Ignored are `datetime.now()` in apps, which cannot be replaced from outside, and threads
that a client app starts itself. Logs and progress bars keep the host's time:
they are read by people.
"""

from __future__ import annotations

import random
import selectors
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from types import FrameType
from typing import Any

import numpy as np

EPOCH_S = 1_767_225_600.0
"""The value of `time.time()` at simulated 0 s: the beginning of 2026, UTC."""


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Meanwhile an attribute of a module or class is `value`."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class ForeignClock:
    """The clock that foreign code reads.

    One is a server app's (`simfed.flower.grid.ServerClock`), one a client app's
    (`simfed.flower.work.NodeClock`).
    """

    readings = 0
    """The number of times that the app's own code has read it."""

    def now_s(self) -> float:
        """Return simulated seconds since the run's start."""
        raise NotImplementedError

    def read_s(self) -> float:
        """Return `now_s`, as the code itself reads it."""
        return self.now_s()

    def sleep(self, seconds: float) -> None:
        """Block the code for these simulated seconds, as it asks for."""
        raise NotImplementedError


_clocks: dict[int, ForeignClock] = {}
"""Thread → its clock, for threads of foreign code."""


@contextmanager
def thread_clock(clock: ForeignClock) -> Iterator[None]:
    """Give this thread the time of `clock` in the block."""
    _clocks[threading.get_ident()] = clock
    try:
        yield
    finally:
        _clocks.pop(threading.get_ident(), None)


_FOR_PEOPLE = {"logging", "tqdm"}
"""Packages whose readings of the time are shown, and change nothing."""

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_REAL: dict[str, Callable[..., float]] = {
    name: getattr(time, name)
    for name in (*_CLOCKS, *(f"{clock}_ns" for clock in _CLOCKS), "sleep")
}
"""The functions of the module `time` that foreign code does not get."""


def _make_replacement(name: str) -> Callable[..., float | None]:
    """Return what stands for a function of the module `time` in foreign code.

    Args:
        name: `time`, `sleep`, `monotonic_ns` and their like.
    """
    real = _REAL[name]

    def replacement(*arguments: float) -> float | None:
        clock = _clocks.get(threading.get_ident())
        if clock is None:
            return real(*arguments)
        caller = sys._getframe(1)
        package = _find_package(caller)
        if package in _FOR_PEOPLE and name != "sleep":
            return real(*arguments)
        if name == "sleep":
            seconds = float(arguments[0])
            if not seconds >= 0:
                raise ValueError("sleep length must be non-negative")
            clock.sleep(seconds)
            return None
        clock.readings += is_of_app(caller)
        kind, now_s = name.removesuffix("_ns"), 0.0
        if kind not in ("process_time", "thread_time"):
            # an event loop looks at the clock all the time, whatever its app does
            now_s = clock.now_s() if package == "asyncio" else clock.read_s()
            now_s += EPOCH_S if kind == "time" else 0.0
        return round(now_s * 1e9) if name != kind else now_s

    return replacement


def _find_package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def is_of_app(frame: FrameType) -> bool:
    """Return whether the code of a frame is the app's own, not a library's."""
    package = _find_package(frame)
    library = (
        package in sys.stdlib_module_names or "-packages" in frame.f_code.co_filename
    )
    return not library and package != "simfed"


_REPLACEMENTS = [(real, _make_replacement(name)) for name, real in _REAL.items()]


def read_host_s() -> float:
    """Return seconds of the host's own clock, in whatever thread.

    Foreign code that asks the module `time` is told simulated ones.
    """
    return _REAL["perf_counter"]()


def read_processor_s() -> float:
    """Return seconds of processor of this process, by the host's own clock."""
    return _REAL["process_time"]()


def read_thread_s() -> float:
    """Return seconds of processor of this thread, by the host's own clock."""
    return _REAL["thread_time"]()


@contextmanager
def foreign_time(flower_now: Callable[[], datetime]) -> Iterator[None]:
    """Give threads that have a clock its time in the block.

    Args:
        flower_now: Flower's function of the date, which becomes a simulated one.
    """

    def now() -> datetime:
        clock = _clocks.get(threading.get_ident())
        if clock is None:
            return flower_now()
        return datetime.fromtimestamp(EPOCH_S + clock.now_s(), timezone.utc)

    pairs: list[tuple[object, object]] = [*_REPLACEMENTS, (flower_now, now)]
    _replace_in_modules(pairs)
    try:
        with replaced(selectors.DefaultSelector, "select", _select):
            yield
    finally:
        _replace_in_modules([(after, before) for before, after in pairs])


_real_select = selectors.DefaultSelector.select


def _select(selector: Any, timeout: float | None = None) -> Any:
    """Wait as an event loop does: on a node for simulated seconds."""
    clock = _clocks.get(threading.get_ident())
    if clock is None or timeout is None or timeout <= 0:  # or for a socket or a process
        return _real_select(selector, timeout)
    ready = _real_select(selector, 0)
    if not ready:
        clock.sleep(timeout)
        ready = _real_select(selector, 0)
    return ready


def _replace_in_modules(pairs: list[tuple[object, object]]) -> None:
    """Put, in every module, the second of each pair in the place of the first."""
    by_id = {id(before): after for before, after in pairs}
    # copies, as a list of items is made piece by piece: what garbage does as it is
    # collected meanwhile may import
    for module_name, module in sys.modules.copy().items():
        # Python's own library waits in host time, or would not wake up from its locks
        if module_name == __name__ or (
            module_name in sys.stdlib_module_names
            and not module_name.startswith("time")
        ):
            continue
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        for name, value in names.copy().items():
            if id(value) in by_id:
                names[name] = by_id[id(value)]


@contextmanager
def foreign_randomness(seed: int) -> Iterator[None]:
    """Set the global generators of Python, NumPy and PyTorch by this seed in the block.

    PyTorch's is set where that is in use. Afterwards they are as they were.
    """
    torch = sys.modules.get("torch")
    own, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002
    torchs = torch and torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002
    if torch is not None:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(own)
        np.random.set_state(numpys)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(torchs)
