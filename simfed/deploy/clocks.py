"""Two monotonic clocks on one time line.

One end notes its clock as it asks (t0) and as the answer comes (t3), the other as it
hears the question (t1) and as it answers (t2). The other clock is then ahead by ((t1 −
t0) + (t2 − t3))/2, wrong by at most half of what the messages were on their way: (t3 −
t0) − (t2 − t1). Of the recent exchanges the one that was shortest on its way counts,
since what makes a way long (a queue behind an upload) makes it unequal.

What is ignored: that clocks run at different rates, beyond asking again all the time.
At 20 ppm and an exchange every two seconds that is 0.3 ms over the window.
"""

from __future__ import annotations

from typing import NamedTuple

_WINDOW = 8
_DRIFT_S = 0.001
"""More than clocks drift apart within the window."""


class Exchange(NamedTuple):
    """A question and its answer: t0 and t3 by one clock, t1 and t2 by the other.

    All in seconds of monotonic clocks, which begin anywhere.
    """

    asked_s: float
    heard_s: float
    answered_s: float
    came_s: float

    @property
    def ahead_s(self) -> float:
        """Seconds by which the other clock is ahead."""
        return ((self.heard_s - self.asked_s) + (self.answered_s - self.came_s)) / 2

    @property
    def unsure_s(self) -> float:
        """Seconds by which that may be off."""
        return (
            max((self.came_s - self.asked_s) - (self.answered_s - self.heard_s), 0.0)
            / 2
        )


class ClockLine:
    """The lead of another clock over this one, from exchanges so far.

    The server has one for each client; `simfed.deploy.measured` puts a client's
    instants on the run's line by it.

    >>> line = ClockLine()
    >>> line.add(Exchange(10.0, 110.0, 110.5, 10.7))
    >>> round(line.ahead_s, 6), round(line.unsure_s, 6)
    (99.9, 0.1)
    """

    def __init__(self) -> None:
        self._recent: tuple[Exchange, ...] = ()
        """Replaced and never changed: other threads read it."""
        self.exchanges = 0
        self._offsets: list[float] = []
        """The smallest and the largest that counted."""

    def add(self, exchange: Exchange) -> None:
        """Learn from one more exchange.

        Earlier ones that contradict it are of a clock that has stood still since, as a
        laptop's does while it sleeps.
        """
        agreeing = (
            before
            for before in self._recent
            if abs(before.ahead_s - exchange.ahead_s)
            <= before.unsure_s + exchange.unsure_s + _DRIFT_S
        )
        self._recent = (*agreeing, exchange)[-_WINDOW:]
        self.exchanges += 1
        if self.exchanges >= _WINDOW:  # earlier ones are hardly known
            offsets = [*self._offsets, self._best.ahead_s]
            self._offsets = [min(offsets), max(offsets)]

    @property
    def ahead_s(self) -> float:
        """Seconds by which the other clock is ahead, by the best exchange."""
        return self._best.ahead_s

    @property
    def unsure_s(self) -> float:
        """Seconds by which `ahead_s` may be off."""
        return self._best.unsure_s

    @property
    def wandered_s(self) -> float:
        """Seconds between the extremes of the offsets that counted."""
        return self._offsets[1] - self._offsets[0] if self._offsets else 0.0

    @property
    def _best(self) -> Exchange:
        return min(self._recent, key=lambda exchange: exchange.unsure_s)
