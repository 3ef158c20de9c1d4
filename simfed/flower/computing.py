"""Prices of foreign code: counted work, a reply's declared seconds, host seconds.

Measured laws are in `simfed.flower.workfile`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from simfed.device import ModelWork, Processor
from simfed.flower.children import Usage, UsageMeter
from simfed.flower.clocks import read_host_s
from simfed.flower.metering import FlopMeter, PassSum, WorkCount
from simfed.flower.workfile import Visible
from simfed.ground.arithmetic import read_arithmetic
from simfed.ground.errors import InputError, listed, within
from simfed.scenario.fleet_file import Computing

__all__ = ["HostSpent", "WorkWatch", "price", "stage_names", "why_free"]


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
    """Watches foreign code as one kind of computing needs it."""

    meter: UsageMeter | None = None
    """The meter of work and waits, in a process that measures an app."""

    def __init__(self, computing: Computing | None) -> None:
        """`computing` None: nothing is charged."""
        metered = computing is not None and computing.kind == "metered"
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


def price(
    computing: Computing,
    spent: HostSpent,
    processor: Processor | None,
    names: Sequence[str],
    values: Callable[[], Mapping[str, float]],
) -> float:
    """Seconds of a stretch of foreign code on a device of speed 1, before noise.

    `names`: what declared seconds may call it, the nearest first; `values`: what a
    declared expression may name; `processor`: prices counted work.
    Raises: `InputError`.
    """
    if computing.kind == "measured":
        return spent.host_s * computing.speed
    if computing.kind == "declared":
        expression = _find_expression(computing, names)
        with within("computing.seconds"):
            seconds = read_arithmetic(expression)(values())
            if seconds < 0:
                raise InputError("at least 0 seconds", where=expression, got=seconds)
        return seconds
    assert processor is not None
    counted = spent.counted
    return sum(
        _price_work(processor, quantity, work, counted.parameters)
        for quantity, work in (
            ("training", counted.training),
            ("inference", counted.inference),
        )
        if work.times
    )


def stage_names(visible: Visible) -> list[str]:
    """Return the names that declared seconds may have for a message.

    They are its type with its action, the action, texts of its configuration (the
    stages of secure aggregation), its type.
    """
    kind, dot, action = visible.message_type.partition(".")
    texts = [text for _, text in sorted(visible.texts.items())]
    return [visible.message_type, *([action] if dot else []), *texts, kind]


def why_free(
    computing: Computing, spent: HostSpent, names: Sequence[str]
) -> str | None:
    """Return why a stretch of code is charged 0 s though nobody declared it free.

    None: somebody did, by a price without any metric in it or for a device's passes.
    """
    if computing.kind == "declared":
        expression = _find_expression(computing, names)
        return (
            f"{expression!r} comes to 0" if read_arithmetic(expression).names else None
        )
    if computing.kind == "measured":
        return "the host's clock stood still"
    if spent.counted.flops:
        return None
    return "it does nothing that PyTorch's hooks see"


def _find_expression(computing: Computing, names: Sequence[str]) -> str:
    """Return the expression for a message of these names.

    Raises: `InputError` where there is none.
    """
    seconds = computing.seconds
    if isinstance(seconds, dict):
        for name in (*names, "default"):
            if name in seconds:
                return seconds[name]
        called = listed(map(repr, dict.fromkeys(names)))
        allowed = f"seconds of {called}, which the app sends, or of `default`"
        raise InputError(allowed, where="computing.seconds", got=list(seconds))
    assert seconds is not None
    return seconds


_FLOPS_PER_BYTE = 36.0
"""FLOPs of a processor in the time in which it moves a byte."""
_FLOPS_BESIDE = 70.0
"""FLOPs per moved byte of the models that profiles are fitted to: so much is in their
laws."""


def _price_work(
    processor: Processor, quantity: str, work: PassSum, parameters: int
) -> float:
    """Return seconds by the profile's law for models that were not measured.

    Each step, or pass, has the mean of all. Bytes that are moved beyond what goes with
    the FLOPs of usual models count as the FLOPs of their time. Raises: `InputError`.
    """
    beyond = max(0.0, work.moved_bytes - work.flops / _FLOPS_BESIDE)
    flops = max(1.0, (work.flops + _FLOPS_PER_BYTE * beyond) / work.times)
    # so many "samples" of one FLOP: one model for all
    name = f"a model of {parameters} parameters"
    processor.profile.models.setdefault(name, ModelWork(parameters, 1.0, 1.0))
    size: dict[str, Any] = {"batch" if quantity == "training" else "samples": flops}
    try:
        return work.times * processor.nominal_s(quantity, model=name, **size)
    except InputError as error:
        allowed = (
            f"a profile with a law of {quantity} for any model, by which counted work "
            f"is priced"
        )
        cure = (
            f"another profile, `assume: {{{quantity}: 0 s}}` beside it, or "
            f"declared computing"
        )
        raise InputError(allowed, where=error.where, got=name, hint=cure) from None
