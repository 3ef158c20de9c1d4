"""A processor's speed from moment to moment, and the end of its work.

The speed at time t, relative to the measured device, is a product:

    speed × cores × (1 − background load at t)
    × clock step after so long busy × throttle factor

Each factor is constant between its own switching instants, so the work done is
piecewise linear in time and its end is found exactly: regime by regime, whole periods
of a repeating trace in one step.

- *Cores*: n cores do 1 + efficiency·(n − 1) times the work of one; the measured device
  had m.
- *Background load*: the share of the processor that others take, constant or a trace.
- *Clock steps* (DVFS): a factor that depends on how long the processor has been busy: a
  governor that ramps up, a turbo that ends. A rest of `reset_after_s` starts them over.
- *Quota*: `simfed.device.quota`; it stands without load, clock steps and heat.
- *Heat* (first order, relative: 0 cold, 1 where it would settle when busy for ever): h'
  = (1 − h)/τ_heating when busy, h' = −h/τ_cooling when idle. At `throttle_at` the speed
  falls by `factor` until it has cooled to `resume_at`. In degrees: h = (T −
  T_idle)/(T_busy − T_idle).

What is ignored: load and clock change neither the heating nor the power; work is spread
evenly over its phase; the memory system is as fast as the clock. Source: textbook
first-order models; their constants are the scenario's.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from simfed.device.quota import Quota
from simfed.ground.errors import InputError, listed

_SAME_INSTANT_S = 1e-9
"""A phase starts when the last one ended, up to rounding of late instants."""


@dataclass(frozen=True, slots=True)
class Load:
    """The share of the processor that others take: a step function.

    It is repeated where it has a period.
    """

    at_s: tuple[float, ...]
    """Instants at which the load changes; the first is 0."""
    share: tuple[float, ...]
    period_s: float = math.inf
    """Seconds after which the trace begins anew; infinite: the last share stays."""
    random_offset: bool = False
    """True if each client starts at a random place of the period."""

    def __post_init__(self) -> None:
        where = "background.trace"
        if not self.at_s or self.at_s[0] != 0:
            raise InputError("a first entry at 0 s", where=where, got=self.at_s[:1])
        if any(b <= a for a, b in zip(self.at_s, self.at_s[1:], strict=False)):
            raise InputError("instants that increase", where=where, got=list(self.at_s))
        if self.period_s <= self.at_s[-1]:
            allowed = "a period longer than the trace's last instant"
            got = f"{self.period_s:g} s"
            raise InputError(allowed, where="background.period", got=got)
        if self.random_offset and math.isinf(self.period_s):
            raise InputError(
                "a period beside a random offset", where="background.period", got=None
            )
        forever = min(self.share) if math.isfinite(self.period_s) else self.share[-1]
        if forever >= 1:
            allowed = "a load that leaves something of the processor"
            raise InputError(allowed, where=where, got=list(self.share))

    @property
    def ends_s(self) -> tuple[float, ...]:
        """Seconds into the period at which each share of the processor ends."""
        return (*self.at_s[1:], self.period_s)


@dataclass(frozen=True, slots=True)
class ClockSteps:
    """Clock steps by time busy: factor and how long it holds.

    The last one holds for ever.
    """

    factors: tuple[float, ...]
    lasts_s: tuple[float, ...]
    """Seconds that each step holds; the last entry is infinite."""
    reset_after_s: float

    def after(self, busy_s: float) -> Iterator[tuple[float, float]]:
        """Return (factor, seconds it lasts) from `busy_s` of being busy on."""
        for factor, lasts_s in zip(self.factors, self.lasts_s, strict=True):
            if busy_s < lasts_s:
                yield factor, lasts_s - busy_s
            busy_s = max(0.0, busy_s - lasts_s)


@dataclass(frozen=True, slots=True)
class Thermal:
    """First-order heating and cooling with a throttled speed; see the module's text."""

    heating_s: float
    cooling_s: float
    throttle_at: float
    factor: float
    resume_at: float

    def __post_init__(self) -> None:
        if self.resume_at > self.throttle_at:
            allowed = f"at most throttle_at ({self.throttle_at:g})"
            raise InputError(allowed, where="thermal.resume_at", got=self.resume_at)


@dataclass(frozen=True, slots=True)
class ProcessorState:
    """The memory of a processor from one piece of work to the next."""

    heat: float = 0.0
    throttled: bool = False
    busy_s: float = 0.0
    """Seconds that it has been busy without a rest."""
    idle_from_s: float = 0.0
    """The instant at which it last stopped working."""
    used_s: float = 0.0
    """Processor seconds that it has used of its quota's allowance by then."""


@dataclass(frozen=True, slots=True)
class Regimes:
    """The factors of a processor's speed, put together.

    A quota stands alone; load, clock steps and heat go together.
    """

    speed: float = 1.0
    load: Load | None = None
    clock: ClockSteps | None = None
    thermal: Thermal | None = None
    quota: Quota | None = None

    def __post_init__(self) -> None:
        others = {"background": self.load, "dvfs": self.clock, "thermal": self.thermal}
        beside = [name for name, regime in others.items() if regime is not None]
        if self.quota is not None and beside:
            raise InputError(f"no {listed(beside)} beside it", where="quota")

    @property
    def steady(self) -> bool:
        """True if the speed never changes."""
        return (self.load or self.clock or self.thermal or self.quota) is None

    def run(
        self,
        work_s: float,
        start_at_s: float,
        memory: ProcessorState,
        offset_s: float = 0.0,
    ) -> tuple[float, ProcessorState]:
        """Return how long work takes from an instant on, and the memory at its end.

        Exact up to rounding: the integral of the speed over the duration is the work.
        Durations are added up as durations, so a late start costs no digits.

        Args:
            work_s: seconds at speed 1.
            start_at_s: on the run's clock, not before the last work's end.
            memory: of the processor, as the last call returned it.
            offset_s: how far the load's trace, or the quota's period, is when time
            begins.

        >>> halved = Regimes(load=Load(at_s=(0.0, 10.0), share=(0.0, 0.5)))
        >>> # 5 s of work: 2 s at full speed, the rest at half speed
        >>> halved.run(8.0, 5.0, ProcessorState())[0]
        11.0
        """
        if self.quota is not None:
            return self._run_under(self.quota, work_s, start_at_s, memory, offset_s)
        memory = self.rested(memory, start_at_s)
        load = _LoadPosition(self.load, start_at_s + offset_s)
        duration_s, left_s = 0.0, work_s
        for factor, lasts_s in self._list_clock_factors(memory):
            used_s, done_s = load.work(self.speed * factor, left_s, lasts_s)
            duration_s, left_s = duration_s + used_s, left_s - done_s
            if left_s <= 0:
                break
        return duration_s, self._remember_work(memory, duration_s, start_at_s)

    def _run_under(
        self,
        quota: Quota,
        work_s: float,
        at_s: float,
        memory: ProcessorState,
        offset_s: float,
    ) -> tuple[float, ProcessorState]:
        """Return the same as `run`, under a quota."""
        rested = quota.filled(memory.idle_from_s + offset_s, at_s + offset_s)
        left_s = quota.most_s - (0.0 if rested else memory.used_s)
        fill_in_s = quota.fill_in_s(at_s + offset_s)
        duration_s, left_s = quota.run(work_s / self.speed, left_s, fill_in_s)
        ended = ProcessorState(
            idle_from_s=at_s + duration_s, used_s=quota.most_s - left_s
        )
        return duration_s, ended

    def rested(self, memory: ProcessorState, at_s: float) -> ProcessorState:
        """Return the processor's memory at `at_s`, idle since it last worked."""
        idle_s = at_s - memory.idle_from_s
        if idle_s <= _SAME_INSTANT_S * max(1.0, at_s):
            return memory
        heat, throttled, busy_s = memory.heat, memory.throttled, memory.busy_s
        if self.thermal:
            heat *= math.exp(-idle_s / self.thermal.cooling_s)
            throttled = throttled and heat > self.thermal.resume_at
        if self.clock and idle_s >= self.clock.reset_after_s:
            busy_s = 0.0
        return ProcessorState(heat, throttled, busy_s, at_s)

    def _list_clock_factors(
        self, memory: ProcessorState
    ) -> Iterator[tuple[float, float]]:
        """Yield clock step × throttle, and the seconds of each product, while busy."""
        throttle_in_s, throttled = self._throttle_in_s(memory), 1.0
        if self.thermal:
            throttled = self.thermal.factor
        for factor, lasts_s in (
            self.clock.after(memory.busy_s) if self.clock else _STEADY
        ):
            if throttle_in_s < lasts_s:
                yield factor, throttle_in_s
                yield factor * throttled, lasts_s - throttle_in_s
            else:
                yield factor, lasts_s
            throttle_in_s = (
                max(0.0, throttle_in_s - lasts_s) if lasts_s < math.inf else 0.0
            )

    def _throttle_in_s(self, memory: ProcessorState) -> float:
        """Return the seconds of work until the processor is throttled; inf: never."""
        if self.thermal is None:
            return math.inf
        if memory.throttled or memory.heat >= self.thermal.throttle_at:
            return 0.0
        rise = (1 - memory.heat) / (1 - self.thermal.throttle_at)
        return self.thermal.heating_s * math.log(rise)

    def _remember_work(
        self, memory: ProcessorState, seconds: float, start_at_s: float
    ) -> ProcessorState:
        """Return the memory at the end of `seconds` of work."""
        heat = memory.heat
        if self.thermal:
            heat = 1 - (1 - heat) * math.exp(-seconds / self.thermal.heating_s)
        throttled = self._throttle_in_s(memory) <= seconds
        return ProcessorState(
            heat, throttled, memory.busy_s + seconds, start_at_s + seconds
        )


_STEADY = ((1.0, math.inf),)


class _LoadPosition:
    """A place in the background load that moves on as work is done under it."""

    def __init__(self, load: Load | None, at_s: float) -> None:
        self._load = load
        if load is None:
            self._free, self._left_s = 1.0, math.inf
            return
        # positions are local to the period: late instants must not eat digits of short
        # durations
        position_s = at_s % load.period_s if load.period_s < math.inf else at_s
        self._i = bisect_right(load.at_s, position_s) - 1
        self._free = 1 - load.share[self._i]
        self._left_s = load.ends_s[self._i] - position_s

    def work(
        self, speed: float, work_s: float, at_most_s: float
    ) -> tuple[float, float]:
        """Work until something is done or time is over; return (seconds, work done).

        Args:
            speed: without the load, whose free share it is multiplied by.
            work_s: seconds at speed 1 that are to be done.
            at_most_s: seconds that it may take.
        """
        used_s, done_s = self._fit_whole_periods(speed, work_s, at_most_s)
        while done_s < work_s and used_s < at_most_s:
            step_s = min(self._left_s, at_most_s - used_s)
            rate = speed * self._free
            if rate * step_s >= work_s - done_s:
                step_s = (work_s - done_s) / rate
                self._advance(step_s)
                return used_s + step_s, work_s
            self._advance(step_s)
            used_s, done_s = used_s + step_s, done_s + rate * step_s
        return used_s, done_s

    def _fit_whole_periods(
        self, speed: float, work_s: float, at_most_s: float
    ) -> tuple[float, float]:
        """Return the whole periods that fit in at once.

        Any place of a period comes back to itself.
        """
        load = self._load
        if load is None or math.isinf(load.period_s):
            return 0.0, 0.0
        pieces = zip(load.share, load.at_s, load.ends_s, strict=True)
        per_period_s = speed * math.fsum(
            (1 - share) * (end_s - start_s) for share, start_s, end_s in pieces
        )
        periods = math.floor(min(work_s / per_period_s, at_most_s / load.period_s))
        return periods * load.period_s, periods * per_period_s

    def _advance(self, seconds: float) -> None:
        """Move on by seconds of time, at most to the end of the present share."""
        self._left_s -= seconds
        if self._load is not None and self._left_s <= 0:
            self._i = (self._i + 1) % len(self._load.share)
            self._free = 1 - self._load.share[self._i]
            self._left_s = self._load.ends_s[self._i] - self._load.at_s[self._i]
