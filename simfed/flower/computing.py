"""Watches foreign code: counted work, host seconds, processor seconds and waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from simfed.flower.children import Usage, UsageMeter
from simfed.flower.clocks import read_host_s
from simfed.flower.metering import FlopMeter, WorkCount
from simfed.scenario.fleet_file import Computing


@dataclass(frozen=True, slots=True)
class HostSpent:
    """One stretch of foreign code, as it was watched."""

    counted: WorkCount
    host_s: float
    slept_s: float = 0.0
    """Simulated seconds for which it asked to sleep."""
    work_s: float = 0.0
    """Processor seconds, those of child processes included, where it is measured."""
    waited_s: float = 0.0
    """Seconds in which neither it nor a child worked, where it is measured."""


class WorkWatch:
    """Watches foreign code as one kind of computing needs it.

    Host seconds are always taken, PyTorch's operators counted where computing is
    metered, and processor seconds and waits where `meter` is set, as in a process that
    measures an app.
    """

    meter: UsageMeter | None = None
    """The meter of work and waits, in a process that measures an app."""
    counts = False
    """The work is counted, in a process that counts what an app does."""

    def __init__(self, computing: Computing | None) -> None:
        """Begin with nothing spent.

        Args:
            computing: how the code is charged; None: it is not.
        """
        metered = self.counts or (computing is not None and computing.kind == "metered")
        self._flops = FlopMeter() if metered else None
        self._begun_s = self._host_s = 0.0
        self._begun, self._used = Usage(), Usage()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count what the body of the `with` spends, in its own thread."""
        self.resume()
        try:
            with self._flops.watched() if self._flops is not None else nullcontext():
                yield
        finally:  # what raises has taken its time as well
            self.pause()

    def pause(self) -> None:
        """Stop counting host time: what follows is simfed's own."""
        self._host_s += read_host_s() - self._begun_s
        if self.meter is not None:
            pairs = zip(self._used, self.meter.end(), self._begun, strict=True)
            self._used = Usage(*(used + now - begun for used, now, begun in pairs))

    def resume(self) -> None:
        """Count host time as the code's again."""
        if self.meter is not None:
            self._begun = self.meter.begin()
        self._begun_s = read_host_s()

    def collect(self) -> HostSpent:
        """Return what was spent since the last call; asked after `pause`."""
        counted = WorkCount() if self._flops is None else self._flops.collect()
        spent = HostSpent(counted, self._host_s, **self._used._asdict())
        self._host_s, self._used = 0.0, Usage()
        return spent
