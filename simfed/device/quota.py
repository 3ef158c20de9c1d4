"""Quotas of processor time, as Linux keeps them: so much of every period.

An allowance is filled up to `share`·`period` at instants a period apart; what was left
of it is lost. Work runs at full speed while the allowance lasts, and waits for the next
filling when it is used up. So work that is shorter than what is left takes no longer
than without a quota, long work takes 1/share times as long, and what comes next, in the
same participation, begins with what was left.

What is ignored: that the kernel stops work some tenths of a millisecond late now and
then, for which what comes later waits, and that each processor takes its slices of the
allowance for itself. Source: Linux, Documentation/scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_ROUNDING = 1e-9
"""The share of the allowance that is rounding: work that is longer than what is left by
less does not wait."""


@dataclass(frozen=True, slots=True)
class Quota:
    """So much processor time of every period.

    >>> quota = Quota(share=0.15, period_s=0.1)
    >>> # 20 ms of work at a filling: 15 ms at once, the rest at the next one
    >>> seconds, left_s = quota.run(0.020, left_s=quota.most_s, fill_in_s=0.1)
    >>> round(seconds, 6), round(left_s, 6)
    (0.105, 0.01)
    """

    share: float
    """The share of the processor, above 0 and below 1."""
    period_s: float

    @property
    def most_s(self) -> float:
        """The allowance when it has just been filled: processor seconds."""
        return self.share * self.period_s

    def filled(self, since_s: float, until_s: float) -> bool:
        """Return whether the allowance is filled after `since_s`, until `until_s`.

        The latter is included; it is filled at every multiple of the period.
        """
        return math.floor(until_s / self.period_s) > math.floor(since_s / self.period_s)

    def fill_in_s(self, at_s: float) -> float:
        """Seconds from `at_s` to the next filling, above 0."""
        return self.period_s - at_s % self.period_s

    def run(
        self, work_s: float, left_s: float, fill_in_s: float
    ) -> tuple[float, float]:
        """Return how long `work_s` of processor time takes, and the allowance left.

        `left_s`: what is left when it begins. `fill_in_s`: until the next filling.
        Exact up to rounding, in one step however long the work is.
        """
        before_s = min(left_s, fill_in_s)
        if work_s <= before_s + _ROUNDING * self.most_s:
            return work_s, max(left_s - work_s, 0.0)
        work_s -= before_s
        cycles = math.ceil(work_s / self.most_s - _ROUNDING) - 1
        work_s -= cycles * self.most_s
        return fill_in_s + cycles * self.period_s + work_s, max(
            self.most_s - work_s, 0.0
        )
