"""One price of foreign code: arithmetic per kind of message, and a kernel.

The arithmetic gives seconds of some machine, the kernel's factor those of a device of
speed 1. `work`: the laws of a work file, whose kernel is a gradient that every profile
can price. `declared`: what the user wrote, for a device of speed 1. `measured`: the
host's seconds, with `speed` as the factor. `metered`: counted steps and passes, with
the seconds that the device's profile has for them, whose level is that of a measured
play where a work file is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simfed.device import ModelWork, Processor
from simfed.device.noise import Measured
from simfed.flower.computing import HostSpent
from simfed.flower.metering import PassSum, WorkCount
from simfed.flower.workfile import KindLaw, Visible, WorkFile
from simfed.ground.arithmetic import read_arithmetic
from simfed.ground.errors import InputError, listed, within
from simfed.ground.plain import Plain
from simfed.scenario.fleet_file import Computing

_ARITHMETIC = {"measured": "host_s", "metered": "steps * step_s + passes * pass_s"}
_FREE = {
    "measured": "the host's clock stood still",
    "metered": "it does nothing that PyTorch's hooks see",
}
_FLOPS_PER_BYTE = 36.0
"""FLOPs of a processor in the time in which it moves a byte."""
_FLOPS_BESIDE = 70.0
"""FLOPs per moved byte of the models that profiles are fitted to: so much is in their
laws."""


@dataclass(frozen=True, slots=True)
class MessagePrice:
    """The charge of a message."""

    work_s: float = 0.0
    """Seconds of work on a device of speed 1."""
    free: str | None = None
    """Why there is no work, where nobody has declared that."""
    start_s: float = 0.0
    """Seconds until the node's process works on it, on a device of speed 1."""
    waits_s: float = 0.0
    """Seconds of waiting, whatever the device."""
    noise: Measured | None = None
    """The noise of this kind of messages, for devices without noise of their own."""


class Price:
    """What foreign code costs by one kind of computing."""

    def __init__(
        self,
        computing: Computing,
        run_config: Mapping[str, Plain] | None = None,
        nodes: int = 0,
        work: WorkFile | None = None,
    ) -> None:
        """`work`: the file's contents, where computing is by one."""
        self._computing = computing
        self._run_config = run_config or {}
        self._nodes = nodes
        self._work = work
        self._begun: set[tuple[int, str]] = set()
        """Nodes, and the kinds that each has had: what is started once is charged
        once."""

    def price_message(
        self,
        visible: Visible,
        client: int,
        spent: HostSpent,
        processor: Processor | None,
    ) -> tuple[MessagePrice, list[str]]:
        """Return the charge of a message to a node, and doubts about it.

        Raises: `InputError` for a kind that has no price, and a value that a price
        names and that is not there.
        """
        values = visible.values(self._run_config, self._nodes)
        law = None
        if self._work is not None:
            law = self._work.find(visible.message_type, visible.texts)
        if law is None or self._computing.kind == "metered":
            price = self.price_code(list_names(visible), values, spent, processor)
            if law is not None and law.counted and law.plays:
                level = self._find_level(law, processor)
                price = replace(price, work_s=price.work_s * level)
            return price, []
        factor = self._find_factor(processor)
        price = MessagePrice(
            work_s=max(read_arithmetic(law.seconds)(values), 0.0) * factor,
            start_s=self._start_s(law, client) * factor,
            waits_s=law.waits,
            noise=law.noise,
        )
        return price, law.list_doubts(values)

    def price_code(
        self,
        names: Sequence[str],
        values: Mapping[str, float],
        spent: HostSpent,
        processor: Processor | None,
    ) -> MessagePrice:
        """Return the charge of a stretch of code that has no measured law.

        `names`: what declared seconds may call it, the nearest first; `values`: what
        they may name.
        """
        kind = self._computing.kind
        text = _ARITHMETIC.get(kind) or self._find_declared(names)
        if kind == "measured":
            values = {"host_s": spent.host_s}
        elif kind == "metered":
            assert processor is not None
            values = _price_counted(spent, processor)
        arithmetic = read_arithmetic(text)
        with within("computing.seconds"):
            seconds = arithmetic(values)
            if seconds < 0:
                raise InputError("at least 0 seconds", where=text, got=seconds)
        work_s = seconds * self._find_factor(processor)
        # without names somebody wrote 0, and of counted work a device does it for free
        if work_s > 0 or spent.counted.flops or not arithmetic.names:
            return MessagePrice(work_s)
        return MessagePrice(work_s, _FREE.get(kind, f"{text!r} comes to 0"))

    def _find_declared(self, names: Sequence[str]) -> str:
        """Return the arithmetic of code of these names.

        Raises: `InputError` where there is none.
        """
        seconds = self._computing.seconds
        if not isinstance(seconds, dict):
            return str(seconds)
        for name in (*names, "default"):
            if name in seconds:
                return seconds[name]
        called = listed(map(repr, dict.fromkeys(names)))
        allowed = f"seconds of {called}, which the app sends, or of `default`"
        raise InputError(allowed, where="computing.seconds", got=list(seconds))

    def _find_factor(self, processor: Processor | None) -> float:
        """Return seconds on a device of speed 1 per second of the arithmetic."""
        if self._computing.kind != "work":
            return self._computing.speed
        assert self._work is not None
        return 1.0 if processor is None else self._work.kernel.factor(processor)

    def _find_level(self, law: KindLaw, processor: Processor | None) -> float:
        """Return what a message of the first play took, as a multiple of metered."""
        assert self._work is not None
        assert processor is not None
        training, inference = PassSum(*law.counted[:3]), PassSum(*law.counted[3:6])
        counted = WorkCount(training, inference, int(law.counted[6]))
        metered = self.price_code([], {}, HostSpent(counted, 0.0), processor)
        took_s = law.plays[0].measured * self._work.kernel.factor(processor)
        return took_s / metered.work_s if metered.work_s else 1.0

    def _start_s(self, law: KindLaw, client: int) -> float:
        """Imports and the first message's extra, as often as the run charges them."""
        assert self._work is not None
        if self._computing.start == "never":
            return 0.0
        if self._computing.start == "per message":
            return self._work.imports + law.first
        first_at_all = (client, "") not in self._begun
        first_of_kind = (client, law.title) not in self._begun
        self._begun |= {(client, ""), (client, law.title)}
        return self._work.imports * first_at_all + law.first * first_of_kind


def list_names(visible: Visible) -> list[str]:
    """Return the names that declared seconds may have for a message.

    They are its type with its action, the action, texts of its configuration (the
    stages of secure aggregation), its type.
    """
    kind, dot, action = visible.message_type.partition(".")
    texts = [text for _, text in sorted(visible.texts.items())]
    return [visible.message_type, *([action] if dot else []), *texts, kind]


def _price_counted(spent: HostSpent, processor: Processor) -> dict[str, float]:
    """Return counted steps and passes, and the seconds of a mean one of each."""
    counted = spent.counted
    return {
        "steps": counted.training.times,
        "step_s": _price_pass(processor, "training", counted.training, spent),
        "passes": counted.inference.times,
        "pass_s": _price_pass(processor, "inference", counted.inference, spent),
    }


def _price_pass(
    processor: Processor, quantity: str, work: PassSum, spent: HostSpent
) -> float:
    """Return seconds by the profile's law for models that were not measured.

    Bytes that are moved beyond what goes with the FLOPs of usual models count as the
    FLOPs of their time. Raises: `InputError`.
    """
    if not work.times:
        return 0.0
    beyond = max(0.0, work.moved_bytes - work.flops / _FLOPS_BESIDE)
    flops = max(1.0, (work.flops + _FLOPS_PER_BYTE * beyond) / work.times)
    # so many "samples" of one FLOP: one model for all
    parameters = spent.counted.parameters
    name = f"a model of {parameters} parameters"
    processor.profile.models.setdefault(name, ModelWork(parameters, 1.0, 1.0))
    size: dict[str, Any] = {"batch" if quantity == "training" else "samples": flops}
    try:
        return processor.nominal_s(quantity, model=name, **size)
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
