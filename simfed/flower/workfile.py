"""Work files: the laws of an app's messages, as `simfed flower measure` writes them.

A file holds one *law* per kind of message: arithmetic over values that can be seen from
outside (the reply's metrics, the message's own configuration, the node's and the run's,
`nodes`, bytes), in seconds of the machine that was measured. That machine and a device
are linked by the time of one piece of work that both know, the *kernel*: a law's
seconds are multiplied by what the device's profile says of it over what the measured
machine took. What an app waits for is not scaled.

Nothing is guessed: a kind that was not measured is refused; values outside of what was
measured, settings that never varied and texts that changed become warnings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, model_validator

from simfed.device import ModelWork, Processor
from simfed.device.noise import Measured
from simfed.ground.arithmetic import read_arithmetic, spell_name
from simfed.ground.errors import InputError, listed
from simfed.ground.inputs import read_text
from simfed.ground.plain import Plain
from simfed.ground.reading import parse_yaml
from simfed.ground.writing import put_output
from simfed.schema.fields import NonNegative, Positive, PositiveInt
from simfed.schema.section import Section
from simfed.schema.sentences import validate_as

SUFFIX = ".work.yaml"
SIZE, COUNT, NOTHING = "size", "count of messages", "nothing"
"""The roles of a number in a configuration."""
BEYOND = 2.0
"""The factor beyond what was measured from which on a run warns of a value."""

Start = Literal["never", "once", "per message"]
"""The times at which imports and the first message's extra time are charged."""

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Visible:
    """The values of one message that can be seen from outside of the app."""

    message_type: str
    """The type with the action behind a dot, if there is one."""
    config: Mapping[str, Plain] = field(default_factory=dict)
    """Numbers and texts of the message's configuration records."""
    reply: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the reply's metrics."""
    downlink_bytes: float = 0.0
    uplink_bytes: float = 0.0
    node_config: Mapping[str, Plain] = field(default_factory=dict)
    """The fleet's configuration of the node, beside its partition."""

    @property
    def texts(self) -> dict[str, str]:
        """Texts and truth values of the message's configuration."""
        return {n: str(v) for n, v in self.config.items() if isinstance(v, (bool, str))}

    def values(self, run_config: Mapping[str, Plain], nodes: int) -> dict[str, float]:
        """Return the numbers that a law may name, as arithmetic spells their names.

        Of equal names the one nearest to the reply counts: reply, message, node, run.

        Args:
            run_config: of the run.
            nodes: how many the fleet has.

        >>> Visible("train", reply={"num-examples": 8}).values({"local-epochs": 2}, 5)
        {'local_epochs': 2.0, 'nodes': 5.0, 'bytes_down': 0.0, 'bytes_up': 0.0,
        'num_examples': 8.0}
        """
        return {
            **select_numbers(run_config),
            "nodes": float(nodes),
            "bytes_down": self.downlink_bytes,
            "bytes_up": self.uplink_bytes,
            **select_numbers(self.node_config),
            **select_numbers(self.config),
            **select_numbers(self.reply),
        }


def select_numbers(values: Mapping[str, Plain]) -> dict[str, float]:
    """Return the numbers among plain values, by name, as arithmetic spells it.

    >>> select_numbers({"batch-size": 32, "shuffle": True, "name": "digits"})
    {'batch_size': 32.0}
    """
    return {
        spell_name(name): float(value)
        for name, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def round_number(value: float) -> float:
    """Return a number to the four digits that files have.

    >>> round_number(0.123456)
    0.1235
    """
    return float(f"{value:.4g}")


# ---- the file ------------------------------------------------------------------------


class Kernel(Section):
    """A gradient of a known model on the measured machine.

    Every profile can price it, which links that machine to a device.
    """

    model: str = "lenet5"
    batch: PositiveInt = 32
    parameters: PositiveInt
    flops: Positive
    """Of one sample, forward and backward."""
    seconds: Positive

    def factor(self, processor: Processor) -> float:
        """Seconds on a device per second on the measured machine.

        Raises: `InputError` where the device's profile cannot price the kernel.
        """
        # says how long simfed's own training takes, not this
        if "training" in processor.assume:
            return 1.0
        model = ModelWork(self.parameters, self.flops / 3, self.flops)
        processor.profile.models[self.model] = model  # the world's own are placeholders
        device_s = processor.nominal_s("training", model=self.model, batch=self.batch)
        return device_s / self.seconds


class LawError(Section):
    """The errors of a law, as shares of what was measured."""

    median: NonNegative
    """Over messages, as `worst`."""
    worst: NonNegative
    held_out: NonNegative | None = None
    """The error of a play's sum, by the law fitted to the others: their median. None:
    there was one play."""
    held_out_worst: NonNegative | None = None


class LawPlay(Section):
    """The mean seconds of one kind's messages in one play."""

    play: str
    """What is special about it."""
    messages: PositiveInt
    measured: NonNegative
    fitted: NonNegative
    """By the law."""
    unseen: NonNegative | None = None
    """By the law fitted to all other plays."""


class KindLaw(Section):
    """The law of one kind's messages on the measured machine."""

    message: str
    """The type of message, with its action."""
    texts: dict[str, str] = Field(default={})
    """Those of the message's configuration that tell the kind."""
    seconds: str
    """Arithmetic over values that can be seen from outside."""
    waits: NonNegative = 0.0
    """Seconds without work, which are never scaled."""
    first: NonNegative = 0.0
    """Seconds that the first message of a process takes on top."""
    scatter: dict[str, Plain] = Field(default={})
    """Of messages around the law, as a profile writes noise."""
    ranges: dict[str, Range] = Field(default={})
    """The least and largest of each value that was seen."""
    messages: PositiveInt
    """So many the law was fitted to."""
    share: NonNegative
    """Of all work that was measured."""
    error: LawError
    counted: list[float] = Field(default=[])
    """Of a message of the first play, by metered computing: steps, their FLOPs and
    moved bytes, passes with theirs, parameters. Empty: no operator was counted."""
    plays: list[LawPlay] = Field(default=[])

    @model_validator(mode="after")
    def _check(self) -> KindLaw:
        try:
            read_arithmetic(self.seconds)
            if self.scatter:
                Measured.read(self.scatter, "scatter")
        except InputError as error:
            where = error.where if error.where == "scatter" else "seconds"
            raise InputError(error.allowed, where=where, got=error.got) from None
        return self

    @cached_property
    def names(self) -> frozenset[str]:
        """The values that the law names."""
        return frozenset(read_arithmetic(self.seconds).names)

    @cached_property
    def noise(self) -> Measured | None:
        """The scatter of messages around the law."""
        return Measured.read(self.scatter, "scatter") if self.scatter else None

    def list_doubts(self, values: Mapping[str, float]) -> list[str]:
        """Return a sentence for each value further outside than laws were tried.

        Args:
            values: of a message, see `Visible.values`.
        """
        return [
            f"{name} of {self.title} is outside of twice what was measured ({low:g} "
            f"to {high:g}); charges beyond are not known to be right"
            for name, (low, high) in self.ranges.items()
            if name in values and not low / BEYOND <= values[name] <= high * BEYOND
        ]

    def covers(self, message_type: str, texts: Mapping[str, str]) -> bool:
        """Return whether a message is of this kind.

        Args:
            message_type: with its action.
            texts: of the message's configuration; those that the law has must be the
            same.
        """
        same = all(texts.get(name) == text for name, text in self.texts.items())
        return self.message == message_type and same

    @property
    def title(self) -> str:
        """The name of the kind in sentences."""
        texts = ", ".join(f"{name} {text!r}" for name, text in self.texts.items())
        return f"{self.message} with {texts}" if texts else self.message


class WorkFile(Section):
    """The laws of an app's work, as a validated file.

    `simfed flower measure` writes it, `simfed.flower.price` reads it.
    """

    kind: Literal["work"] = "work"
    app: str
    digest: str
    """Of the Python files in the app's folder."""
    machine: dict[str, str] = Field(default={})
    kernel: Kernel
    imports: NonNegative = 0.0
    """Seconds of work until the client app is imported."""
    run_config: dict[str, list[Plain]] = Field(default={})
    """Every value that a key had in plays, as in `node_config`."""
    node_config: dict[str, list[Plain]] = Field(default={})
    settings: dict[str, str] = Field(default={})
    """Number of a configuration → size, count of messages, nothing, or unknown."""
    nodes: list[PositiveInt]
    """How many each play had."""
    repeats: PositiveInt = 1
    """Plays in all, those made again included."""
    busy: NonNegative = 0.0
    """By how much the two least times of a play differ, in the median."""
    left_out: list[str] = Field(default=[])
    """Plays that failed, and why."""
    kinds: list[KindLaw]

    def card(self) -> dict[str, Plain]:
        """Return what each law was worth, for pages and pictures.

        It is `laws` of a run's manifest: a mapping for each kind, with its plays.
        """
        told = {"seconds", "share", "messages", "error", "plays"}
        kinds = [
            {"title": law.title, **law.model_dump(mode="json", include=told)}
            for law in self.kinds
        ]
        return {"busy": self.busy, "repeats": self.repeats, "kinds": kinds}

    def find(self, message_type: str, texts: Mapping[str, str]) -> KindLaw:
        """Return the law of a message.

        Args:
            message_type: with its action.
            texts: of the message's configuration.

        Raises:
            InputError: the kind was not measured.
        """
        for law in self.kinds:
            if law.covers(message_type, texts):
                return law
        asked = {
            name
            for law in self.kinds
            if law.message == message_type
            for name in law.texts
        }
        named = {name: text for name, text in texts.items() if name in asked}
        title = KindLaw.model_construct(message=message_type, texts=named).title
        raise InputError(
            f"a kind of message that was measured: "
            f"{listed(law.title for law in self.kinds)}",
            got=title,
            hint="simfed flower measure with the run configuration that this run has",
        )

    def list_doubts(self, run_config: Mapping[str, Plain], start: Start) -> list[str]:
        """Return sentences on what charges by this file do not know.

        They are on settings that differ from all that was measured, laws that were far
        off, and starts that are not charged.

        Args:
            run_config: of the run.
            start: when the run charges starts.
        """
        named = {name for law in self.kinds for name in law.names}
        changed = []
        for key, values in self.run_config.items():
            now, found = run_config.get(key, values[0]), self.settings.get(key)
            if now in values or spell_name(key) in named or found in (COUNT, NOTHING):
                continue
            why = " (a size that is in no law)" if found == SIZE else ""
            had = listed(map(repr, values))
            changed.append(f"{key} is {now!r} here and was {had} in all plays{why}")
        doubts = []
        if changed:
            settings = "; ".join(changed)
            doubts.append(
                f"what these settings change is not in the charges: {settings}"
            )
        for law in self.kinds:
            worst = law.error.held_out_worst
            if law.share >= 0.05 and (worst is None or worst > 0.3):
                off = (
                    "could not be checked" if worst is None else f"was {worst:.0%} off"
                )
                doubts.append(
                    f"the law of {law.title} {off} on plays that it had not seen"
                )
        if start == "never" and self.imports > 0:
            doubts.append(
                f"imports ({self.imports:.3g} s of the measured machine) and what "
                "first messages take on top are not charged; a SuperNode that starts a "
                "process for each message spends them on every one (`start: per "
                "message`)"
            )
        return doubts


def load_work(path: str | os.PathLike[str]) -> WorkFile:
    """Read and validate a work file.

    Raises:
        InputError, InputErrors: it cannot be read, or is none.
    """
    data = parse_yaml(read_text(path), where=str(path))
    if not isinstance(data, dict) or data.get("kind") != "work":
        allowed = "a file that `simfed flower measure` wrote, with `kind: work`"
        raise InputError(allowed, where=str(path))
    return validate_as(WorkFile, data, source=str(path), folder=Path(path).parent)


def write_work(work: WorkFile, path: str | os.PathLike[str]) -> None:
    """Write a work file, with a comment that says what it is.

    Raises:
        InputError: the disk refuses.
    """
    plain = work.model_dump(mode="json", exclude_defaults=True)
    head = (
        "# What the messages of a Flower app take, by `simfed flower measure`: seconds "
        "of work of\n"
        "# one thread of the machine below. `simfed flower run` scales them by "
        "devices.\n"
    )
    text = yaml.safe_dump(
        {"kind": "work", **plain},
        sort_keys=False,
        allow_unicode=True,
        width=100,
        default_flow_style=None,
    )
    put_output(path, head + text)
