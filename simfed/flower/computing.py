"""What foreign code is charged: counted work, what a reply declares, or host seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from simfed.device import ModelWork, Processor
from simfed.flower.asides import read_host_s
from simfed.flower.metering import Counted, FlopMeter, Pass
from simfed.ground.arithmetic import read_arithmetic
from simfed.ground.errors import InputError
from simfed.scenario.fleet_file import Computing

__all__ = ["Charge", "Coverage", "HostSpent", "price", "why_free"]


@dataclass(frozen=True, slots=True)
class HostSpent:
    """One stretch of foreign code, as it was watched."""

    counted: Counted
    host_s: float
    slept_s: float = 0.0
    """Simulated seconds for which it asked to sleep."""


class Charge:
    """Watches foreign code as one kind of computing needs it."""

    def __init__(self, computing: Computing | None) -> None:
        """`computing` None: nothing is charged, host time is counted all the same."""
        metered = computing is not None and computing.kind == "metered"
        self._meter = FlopMeter() if metered else None
        self._begun = 0.0
        self._host_s = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count what the body of the `with` spends, in its own thread."""
        self.resume()
        try:
            with self._meter.watched() if self._meter is not None else nullcontext():
                yield
        finally:  # what raises has taken its time as well
            self.pause()

    def pause(self) -> None:
        """Stop counting host time: what follows is simfed's own."""
        self._host_s += read_host_s() - self._begun

    def resume(self) -> None:
        """Count host time as the code's again."""
        self._begun = read_host_s()

    def collect(self) -> HostSpent:
        """What was spent since the last call; asked after `pause`."""
        counted = Counted() if self._meter is None else self._meter.collect()
        spent, self._host_s = HostSpent(counted, self._host_s), 0.0
        return spent


def price(
    computing: Computing,
    spent: HostSpent,
    processor: Processor | None,
    kind: str,
    values: Callable[[], Mapping[str, float]],
) -> float:
    """Seconds of a stretch of foreign code on a device of speed 1, before noise.

    `kind`: the type of message, by which declared seconds may be told apart; `values`: what a
    declared expression may name; `processor`: prices counted work.
    Raises: `InputError`.
    """
    if computing.kind == "measured":
        return spent.host_s * computing.speed
    if computing.kind == "declared":
        expression = _declared_seconds(computing, kind)
        try:
            seconds = read_arithmetic(expression)(values())
            if seconds < 0:
                raise InputError("at least 0 seconds", where=expression, got=seconds)
        except InputError as error:
            raise error.within("computing.seconds") from None
        return seconds
    assert processor is not None
    return sum(_price_pass(processor, step) for step in spent.counted.passes)


def why_free(computing: Computing, spent: HostSpent, kind: str) -> str | None:
    """Why a stretch of code is charged 0 s, though nobody declared that it takes none; None:
    somebody did, by a price without any metric in it or for a device's passes."""
    if computing.kind == "declared":
        expression = _declared_seconds(computing, kind)
        return f"{expression!r} comes to 0" if read_arithmetic(expression).names else None
    if computing.kind == "measured":
        return "the host's clock stood still"
    if not spent.counted.nothing:
        return None
    if spent.counted.uncounted:
        coverage = Coverage()
        coverage.add(spent.counted)
        return f"metered computing counts nothing of what it does ({coverage.largest()})"
    return "it does nothing that PyTorch's hooks see"


class Coverage:
    """How much of the operators that were seen metered computing counts."""

    OVERHEAD = 50_000
    """Numbers that other operators may go through in each pass: they take less than the overhead
    that a pass is charged."""
    SMALL, LARGE = 0.25, 0.75
    """Shares of what is not counted: above the first it is said, above the second it is refused."""

    def __init__(self) -> None:
        self._flops = 0.0
        self._passes = 0
        self._uncounted: dict[str, float] = {}

    def add(self, counted: Counted) -> None:
        """What was seen in one more stretch of code."""
        self._flops += counted.flops
        self._passes += len(counted.passes)
        for name, numbers in counted.uncounted.items():
            self._uncounted[name] = self._uncounted.get(name, 0.0) + numbers

    @property
    def missing(self) -> float:
        """The share that is not counted, from 0 to 1: numbers that operators without a formula go
        through, beside FLOPs."""
        beyond = sum(self._uncounted.values()) - self.OVERHEAD * self._passes
        return beyond / (beyond + self._flops) if beyond > 0 else 0.0

    def largest(self) -> str:
        """The operators that most of it goes to."""
        ranked = sorted(self._uncounted.items(), key=lambda item: (-item[1], item[0]))
        names = [name for name, _ in ranked]
        return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")

    def sentence(self, kind: str) -> str:
        """What to tell the user; `kind`: of the messages."""
        return (
            f"metered computing counts {1 - self.missing:.0%} of what PyTorch does on messages of "
            f"type {kind}: it has no formula for {self.largest()}"
        )


def _declared_seconds(computing: Computing, kind: str) -> str:
    """The expression for a type of message. Raises: `InputError` where there is none."""
    seconds = computing.seconds
    if isinstance(seconds, dict):
        if kind in seconds:
            return seconds[kind]
        allowed = f"seconds of {kind!r}, which the app sends"
        raise InputError(allowed, where="computing.seconds", got=list(seconds))
    assert seconds is not None
    return seconds


def _price_pass(processor: Processor, step: Pass) -> float:
    """Seconds by the profile's laws for models that were not measured. Raises: `InputError`."""
    quantity = "training" if step.trained else "inference"
    size: dict[str, Any] = {"batch" if step.trained else "samples": step.samples}
    flops = step.flops / step.samples
    name = f"a model of {step.parameters} parameters and {flops:.17g} FLOPs a sample"
    processor.profile.models.setdefault(name, ModelWork(step.parameters, flops, flops))
    try:
        return processor.nominal_s(quantity, model=name, **size)
    except InputError as error:
        allowed = (
            f"a profile with a law of {quantity} for any model, by which counted work is priced"
        )
        cure = f"another profile, `assume: {{{quantity}: 0 s}}` beside it, or declared computing"
        raise InputError(allowed, where=error.where, got=name, hint=cure) from None
