"""Work and waits of an app and its child processes while it is measured.

They are read from /proc: on other systems than Linux children that live on are not
seen. Work is processor time of the whole process, as an app may compute in threads of
its own, and of its children: `getrusage` knows those that have ended, those that live
on (a loader's workers) are read here. Whether a stretch of time was waiting is sampled:
it is not while a thread or a child is running or queues for a processor. What the
samples take themselves comes off.
"""

from __future__ import annotations

import os
import resource
import select
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from simfed.flower.clocks import read_host_s, read_processor_s, read_thread_s

_EVERY_S = 0.01
_IDLE = 0.2
"""The share of a slice between two samples below which an idle app was at work."""


class Usage(NamedTuple):
    """Seconds since some beginning."""

    work_s: float = 0.0
    """Processor seconds of the process and its children."""
    waited_s: float = 0.0
    """Seconds in which neither the app nor a child worked, though a processor was to be
    had."""


def list_children() -> list[int]:
    """Return all living descendants of this process."""
    found, todo = [], [os.getpid()]
    while todo:
        for thread in _list_threads(todo.pop()):
            with (
                suppress(OSError),
                open(f"{thread}/children", encoding="ascii") as file,
            ):
                new = [int(word) for word in file.read().split()]
                found += new
                todo += new
    return found


def read_children_s() -> float:
    """Return processor seconds of children, of ended and of living ones.

    Children of children count where their parents have waited for them, or live.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living_s = sum(_read_process_s(child) for child in list_children())
    return ended.ru_utime + ended.ru_stime + living_s


def _read_process_s(process: int) -> float:
    """Return what a process, with its own children that have ended, has worked."""
    ran_s = sum(_read_schedule(thread)[0] for thread in _list_threads(process))
    ended = [int(word) for word in _read_status(f"/proc/{process}")[13:15]]
    return ran_s + sum(ended) / os.sysconf("SC_CLK_TCK")


def _list_threads(process: int) -> Iterator[str]:
    with suppress(OSError):  # it has just ended, or there is no /proc
        yield from (
            f"/proc/{process}/task/{thread}"
            for thread in os.listdir(f"/proc/{process}/task")
        )


def _read_schedule(thread: str) -> tuple[float, float]:
    """Return the seconds that a thread has run, and queued for a processor."""
    with (
        suppress(OSError, ValueError),
        open(f"{thread}/schedstat", encoding="ascii") as file,
    ):
        ran_ns, queued_ns, _ = file.read().split()
        return int(ran_ns) / 1e9, int(queued_ns) / 1e9
    return 0.0, 0.0


def _read_status(task: str) -> list[str]:
    """Return the fields of `stat` behind the name, of which the first is the state."""
    with suppress(OSError), open(f"{task}/stat", encoding="ascii") as file:
        return file.read().rpartition(")")[2].split()
    return []


class UsageMeter:
    """Meters an app whose threads take turns, as they call `begin` and `end`.

    A thread of its own samples every 10 ms whether the app waits.
    """

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._sampled_s = 0.0
        """Processor seconds that the samples took."""
        self._thread: str | None = None
        self._last = 0.0, 0.0, 0.0
        self._lock = threading.Lock()
        threading.Thread(target=self._sample, daemon=True).start()

    def begin(self) -> Usage:
        """Return what was used so far; the calling thread goes on with the app."""
        with self._lock:
            self._thread = f"/proc/self/task/{threading.get_native_id()}"
            self._last = self._read()
            return self._used()

    def end(self) -> Usage:
        """Return what was used so far; what follows is simfed's own."""
        with self._lock:
            used = self._used()
            if self._thread is not None:
                self._step()
            self._thread = None
            return used._replace(waited_s=self._waited_s)

    def _used(self) -> Usage:
        return Usage(
            read_processor_s() - self._sampled_s + read_children_s(), self._waited_s
        )

    def _read(self) -> tuple[float, float, float]:
        """Return now, and seconds that the app's thread and other threads were busy.

        The app's thread is busy while it runs or queues, other threads while they run.
        """
        ran_s, queued_s = _read_schedule(str(self._thread))
        others_s = read_processor_s() - self._sampled_s - ran_s
        return read_host_s(), ran_s + queued_s, others_s

    def _step(self) -> None:
        """Judge the time since the last sample."""
        now = self._read()
        slice_s, busy_s, others_s = (
            a - b for a, b in zip(now, self._last, strict=True)
        )
        # a slice in which another thread or a child is at work counts as work from end
        # to end. A thread's state alone does not tell: while this one looks, the other
        # sleeps because it waits for the interpreter's lock
        if slice_s - busy_s > _IDLE * slice_s > others_s and not _is_any_ready():
            self._waited_s += slice_s - busy_s
        self._last = now

    def _sample(self) -> None:
        while True:
            select.select([], [], [], _EVERY_S)
            with self._lock:
                if self._thread is not None:
                    began_s = read_thread_s()
                    self._step()
                    self._sampled_s += read_thread_s() - began_s


def _is_any_ready() -> bool:
    """Return whether another thread, or a child, runs or queues for a processor."""
    own = f"/proc/{os.getpid()}/task/{threading.get_native_id()}"
    return any(
        _read_status(thread)[:1] == ["R"]
        for process in (os.getpid(), *list_children())
        for thread in _list_threads(process)
        if thread != own
    )
