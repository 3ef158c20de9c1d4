"""SimPy's clock, run by the real one.

The server loop of simulations waits for events at instants. Here an event comes when
its instant has come by the monotonic clock, and what happens outside, on other threads,
becomes an event of the instant at which it happened. `now` is the instant of the event
that is being handled, not of its handling: an upload whose last byte came before a
deadline counts, however long the server was busy with something else.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

import simpy

from simfed.net.instants import Call, at


class RealTime(simpy.Environment):
    """An environment whose seconds are real ones.

    It goes on from `initial_time`. Other threads `post` what happens; played again over
    a journal (`happen_again`) no time passes.
    """

    def __init__(self, initial_time: float = 0.0) -> None:
        super().__init__(initial_time)
        self._zero_s = time.monotonic() - initial_time
        self._outside: queue.SimpleQueue[tuple[float, Call]] = queue.SimpleQueue()
        self._from_outside: set[simpy.Event] = set()
        self.handled = 0
        """Events so far that somebody waited for and that did not come from outside."""
        self.happen_again: Callable[[], bool] | None = None
        """While it is played again: lets what happened next outside happen, if that
        came after as many events as there were; says whether it did."""

    def set_out(self, now_s: float) -> None:
        """Set the clock to `now_s`."""
        self._now = now_s

    def begin(self) -> None:
        """Let time pass from now on; before, the clock has stood still."""
        self._zero_s = time.monotonic() - self.now

    def real_now_s(self) -> float:
        """Return the instant it is, whatever is being handled."""
        return time.monotonic() - self._zero_s

    def instant_s(self, monotonic_s: float) -> float:
        """Return an instant of this machine's monotonic clock on the run's timeline."""
        return monotonic_s - self._zero_s

    def post(self, monotonic_s: float, happen: Callable[[], object]) -> None:
        """Have `happen()` called at an instant of the story, or now if that is over.

        Args:
            monotonic_s: the instant by this machine's monotonic clock.
            happen: is called in the story's thread; this may be any other.
        """
        self._outside.put((monotonic_s, lambda _: happen()))

    def step(self) -> None:
        """Handle the next event, once its instant has come; played again, at once."""
        if self.happen_again is not None:
            if not self.happen_again():
                # cancelled ones leave the clock at other times than they did
                while self._queue and not self._queue[0][3].callbacks:
                    super().step()
                self._step()
            return
        while True:
            self._let_in(0.0)
            due_s = self.peek()
            ahead_s = due_s - self.real_now_s()
            if ahead_s <= 0:
                self._step()
                return
            self._let_in(ahead_s)

    def _step(self) -> None:
        """Handle the next event at once, and count it if somebody waited for it."""
        event = self._queue[0][3] if self._queue else None
        if event in self._from_outside:
            self._from_outside.remove(event)
        elif event is not None and event.callbacks:
            self.handled += 1
        super().step()

    def _let_in(self, patience_s: float) -> None:
        """Make events of what has happened outside; wait so long for the first."""
        try:
            # in bounded pieces, so that signals are heard on every system
            happened = (
                self._outside.get(timeout=min(patience_s, 0.5))
                if patience_s > 0
                else self._outside.get_nowait()
            )
            while True:
                monotonic_s, happen = happened
                self._from_outside.add(
                    at(self, self.instant_s(monotonic_s), call=happen)
                )
                happened = self._outside.get_nowait()
        except queue.Empty:
            return
