"""One price of foreign code: arithmetic per kind of message, and a factor.

The arithmetic gives seconds of some machine, the factor those of a device of speed 1.
`work`: the laws of a work file, whose factor is a kernel's: a gradient that every
profile can price. `declared`: what the user wrote, for a device of speed 1. `measured`:
the host's seconds, with `speed` as the factor. `metered`: counted steps and passes,
with the seconds that the device's profile has for them, whose level is that of a
measured play where a work file is there.

The device's own speed, load and noise come on top later (`simfed.flower.node`).
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

FREE = {
    "measured": "the host's clock stood still",
    "metered": "it does nothing that PyTorch's hooks see",
}
"""Kind of computing → why code comes to 0 s by it."""
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
    """The price of foreign code by one kind of computing.

    A run has one for its nodes, which remembers what each has begun; its server's is
    made at each question (`simfed.flower.charging`).
    """

    def __init__(
        self,
        computing: Computing,
        run_config: Mapping[str, Plain] | None = None,
        nodes: int = 0,
        work: WorkFile | None = None,
    ) -> None:
        """Set up a price.

        Args:
            computing: the kind, as the fleet says it.
            run_config: numbers of it may be named in arithmetic.
            nodes: how many the fleet has, the value of `nodes`.
            work: the work file's contents, where computing is by one.
        """
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

        Args:
            visible: what can be seen of the message from outside.
            client: the node's number, by which a start is charged once.
            spent: what this machine spent on it.
            processor: the node's; None where no profile is needed.

        Returns:
            The charge; a sentence for each value beyond what the law was tried at.

        Raises:
            InputError: the kind has no price, or a value that a price names is not
            there.
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

        Args:
            names: what declared seconds may call it, the nearest first.
            values: what declared seconds may name.
            spent: what this machine spent on it.
            processor: whose profile prices what was counted.

        Raises:
            InputError: declared seconds have no such name, or are below 0.
        """
        kind = self._computing.kind
        free = FREE.get(kind)
        if kind == "measured":
            seconds = spent.host_s
        elif kind == "metered":
            assert processor is not None
            seconds = _price_counted(spent.counted, processor)
        else:
            text = self._find_declared(names)
            arithmetic = read_arithmetic(text)
            with within("computing.seconds"):
                seconds = arithmetic(values)
                if seconds < 0:
                    raise InputError("at least 0 seconds", where=text, got=seconds)
            # without names somebody wrote 0
            free = f"{text!r} comes to 0" if arithmetic.names else None
        work_s = seconds * self._find_factor(processor)
        # counted work that takes no time is what the device does for free
        return MessagePrice(work_s, None if work_s or spent.counted.flops else free)

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
        """Return what a message took when it was measured, over what it is metered.

        It is one of the law's first play; 1 where metered computing says 0 s.
        """
        assert self._work is not None
        assert processor is not None
        training, inference = PassSum(*law.counted[:3]), PassSum(*law.counted[3:6])
        counted = WorkCount(training, inference, int(law.counted[6]))
        metered = self.price_code([], {}, HostSpent(counted, 0.0), processor)
        took_s = law.plays[0].measured * self._work.kernel.factor(processor)
        return took_s / metered.work_s if metered.work_s else 1.0

    def _start_s(self, law: KindLaw, client: int) -> float:
        """Return the seconds of a node's start that this message is charged.

        They are imports and the first message's extra, as often as `start` says.
        """
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
    """Return the names that declared seconds may have for a message, the nearest first.

    They are its type with its action, the action, texts of its configuration (the
    stages of secure aggregation), its type.

    >>> list_names(Visible("train.sum", {"stage": "setup"}))
    ['train.sum', 'sum', 'setup', 'train']
    """
    kind, dot, action = visible.message_type.partition(".")
    texts = [text for _, text in sorted(visible.texts.items())]
    return [visible.message_type, *([action] if dot else []), *texts, kind]


def _price_counted(counted: WorkCount, processor: Processor) -> float:
    """Return the seconds of counted steps and passes on a device of speed 1.

    Each takes what the profile's law for models that were not measured says of a mean
    one. Bytes that are moved beyond what goes with the FLOPs of usual models count as
    the FLOPs of their time.

    Raises: `InputError` where the profile has no such law.
    """
    name, total_s = f"a model of {counted.parameters} parameters", 0.0
    # so many "samples" of one FLOP: one model for all
    processor.profile.models.setdefault(name, ModelWork(counted.parameters, 1.0, 1.0))
    for quantity, unit, work in (
        ("training", "batch", counted.training),
        ("inference", "samples", counted.inference),
    ):
        if not work.times:
            continue
        beyond = max(0.0, work.moved_bytes - work.flops / _FLOPS_BESIDE)
        size: dict[str, Any] = {
            unit: max(1.0, (work.flops + _FLOPS_PER_BYTE * beyond) / work.times)
        }
        try:
            mean_s = processor.nominal_s(quantity, model=name, **size)
        except InputError as error:
            raise InputError(
                f"a profile with a law of {quantity} for any model, by which counted "
                "work is priced",
                where=error.where,
                got=name,
                hint=f"another profile, `assume: {{{quantity}: 0 s}}` beside it, or "
                "declared computing",
            ) from None
        total_s += work.times * mean_s
    return total_s
