"""What foreign code is charged: counted work, what a reply declares, or host seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from simfed.arithmetic import read_arithmetic
from simfed.device import ModelWork, Processor
from simfed.errors import InputError, RunFailed
from simfed.flower.metering import Counted, Meter
from simfed.scenario.fleet_file import Computing

__all__ = ["Charge", "Spent", "price"]


@dataclass(frozen=True, slots=True)
class Spent:
    """One stretch of foreign code, as it was watched."""

    counted: Counted
    host_s: float
    slept_s: float = 0.0
    """Simulated seconds for which it asked to sleep."""


class Charge:
    """Watches foreign code as one kind of computing needs it."""

    def __init__(self, computing: Computing | None) -> None:
        """None: it is not charged at all."""
        metered = computing is not None and computing.kind == "metered"
        self._meter = Meter() if metered else None
        self._begun = 0.0
        self._host_s = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Around the code, in its thread."""
        self.resume()
        with self._meter.watched() if self._meter is not None else nullcontext():
            yield
        self.pause()

    def pause(self) -> None:
        """Host time that passes now is not the code's."""
        self._host_s += _wall_s() - self._begun

    def resume(self) -> None:
        """Host time is the code's again."""
        self._begun = _wall_s()

    def take(self) -> Spent:
        """What was spent since the last time; call it after `pause`."""
        counted = Counted() if self._meter is None else self._meter.take()
        host_s, self._host_s = self._host_s, 0.0
        return Spent(counted, host_s)


_wall_s = time.perf_counter


def price(
    computing: Computing,
    spent: Spent,
    *,
    processor: Processor | None,
    kind: str,
    values: Callable[[], Mapping[str, Any]],
    must_count: bool = False,
) -> float:
    """Seconds of a stretch of foreign code on a device of speed 1, before noise.

    `kind`: the type of message, by which declared seconds may be told apart; `values`: what a
    declared expression may name; `must_count`: work that hooks do not see is an error.
    Raises: `InputError`, `RunFailed`.
    """
    if computing.kind == "measured":
        return spent.host_s * computing.speed
    if computing.kind == "declared":
        seconds = computing.seconds
        if isinstance(seconds, dict):
            if kind not in seconds:
                raise InputError(f"seconds of {kind!r}, which the app sends",
                                 where="computing.seconds", got=list(seconds))  # fmt: skip
            seconds = seconds[kind]
        assert seconds is not None
        try:
            found = read_arithmetic(seconds)(values())
            if found < 0:
                raise InputError("at least 0 seconds", where=seconds, got=found)
        except InputError as error:
            raise error.within("computing.seconds") from None
        return found
    if must_count and spent.counted.nothing:
        raise RunFailed(
            f"a node's work on a message of type {kind} does nothing that PyTorch's hooks see, so "
            "metered computing cannot tell how long it takes; `computing: {kind: declared, "
            "seconds: …}` or `computing: measured` can"
        )
    assert processor is not None
    return sum(_seconds(processor, one.parameters, one.samples, one.flops, one.trained)
               for one in spent.counted.passes)  # fmt: skip


def _seconds(
    processor: Processor, parameters: int, samples: int, flops: float, trained: bool
) -> float:
    """One pass, by the profile's laws for models that were not measured."""
    quantity = "training" if trained else "inference"
    each = flops / samples
    name = f"a model of {parameters} parameters and {each:g} FLOPs a sample"
    known = processor.profile.models
    if name not in known:
        known[name] = ModelWork(parameters, each, each)
    size: dict[str, Any] = {"batch" if trained else "samples": samples}
    try:
        return processor.nominal_s(quantity, model=name, **size)
    except InputError as error:
        raise InputError(
            f"a profile with a law of {quantity} for any model, by which counted work is priced",
            where=error.where, got=name,
            hint="another profile, `assume: {" + quantity + ": 0 s}` beside it, or declared "
            "computing",
        ) from None  # fmt: skip
