"""Choices as values: the codec of an upload's compressed fields, and its level.

Policies choose among such values, and everybody else is handed them; this module alone
writes them as text and reads them again, for scenarios, tables and plots: `top-k@500`,
`random-k+qsgd(4)@1%`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from simfed.compress.codec import Codec, check_level, codec_from_spec
from simfed.compress.labels import find_names, read_label, split
from simfed.ground.levels import LEVEL, Level, WrittenLevel
from simfed.ground.memo import Memo
from simfed.ground.plain import Plain
from simfed.ground.registry import registry

_ARM = re.compile(rf"(.*)@\s*{LEVEL}\s*", re.DOTALL)


class Choice:
    """A codec and, where that belongs to the choice, a level.

    Equal where the labels are. The codec may be given by its label, and is then made
    when it is asked for; the level as files have it.

    >>> Choice("top-k", 500), Choice.of("top-k+qsgd(4)@1%").level
    (Choice('top-k@500'), Level('1%'))
    """

    __slots__ = ("_at", "_codec", "k", "label", "level", "strategy")

    def __init__(
        self, codec: Codec | str, level: Level | WrittenLevel | None = None
    ) -> None:
        self._codec = None if isinstance(codec, str) else codec
        self.strategy = codec if isinstance(codec, str) else codec.label
        """The codec's label, under which profiles know its times."""
        self.label = self.strategy
        """The text in tables and plots, which `of` reads."""
        self.level = None if level is None else Level.of(level)
        """Entries of each field; None: the scenario's K."""
        if self.level is not None:
            self.label += f"@{self.level}"
            if self.level.kind == "entries":
                self.k = int(self.level.amount)
                """The level as a number of entries, which every played choice has."""
        self._at: Memo[Level | WrittenLevel | None, Choice] = Memo()

    @classmethod
    def of(cls, text: Choice | str) -> Choice:
        """Return the choice of a label, which nobody checks.

        A choice itself as it is.
        """
        return text if isinstance(text, Choice) else cls(*_split_label(text))

    @classmethod
    def read(cls, value: object) -> Choice:
        """Return the choice that a scenario writes.

        It is a label with or without a level, `{name: {option: value}}` or `{chain:
        […]}`.

        Raises: `InputError` for anything else, and for a level that does not suit its
        codec.
        """
        codecs = registry("codec")
        if (
            isinstance(value, str)
            and value in codecs
            and codecs.origin(value) != "built in"
        ):
            return cls(value)  # by the name that it was registered under
        spec, level = _split_label(value) if isinstance(value, str) else (value, None)
        codec = codec_from_spec(spec)
        if level is None:
            return cls(codec)
        check_level(codec, checked := Level.read(level))
        return cls(codec, checked)

    @property
    def codec(self) -> Codec:
        """Raises: `InputError` for the label of a codec that is not registered."""
        if self._codec is None:
            self._codec = codec_from_spec(self.strategy)
        return self._codec

    @property
    def names(self) -> tuple[str, ...]:
        """The words that may be names of registered parts, in the label's order."""
        return tuple(find_names(self.label))

    @property
    def links(self) -> tuple[str, ...]:
        """The labels of the codec's links, of which a chain has several."""
        return tuple(split(self.strategy, "+"))

    @property
    def bare(self) -> str:
        """The codec's label without options, which stands for the codec with any.

        >>> Choice("top-k+qsgd(4)").bare
        'top-k+qsgd'
        """
        return "+".join(name for name, _ in read_label(self.strategy))

    def at(self, level: Level | WrittenLevel | None) -> Choice:
        """Return the same codec at this level.

        There is one object for each level, as every participation asks.
        """
        choice = self._at.get(level)
        if choice is None:
            choice = self._at[level] = Choice(self.strategy, level)
            choice._codec = self._codec
        return choice

    def entries(self, length: int) -> int:
        """Return K of a field of `length` entries; all of them without a level."""
        return length if self.level is None else min(self.k, length)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Choice) and self.label == other.label
        )

    def __hash__(self) -> int:
        return hash(self.label)

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        return f"Choice({self.label!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Choice.of, (self.label,)


NO_COMPRESSION = Choice("dense")
"""The choice of a participation that compresses nothing."""


@lru_cache(maxsize=4096)
def _split_label(label: str) -> tuple[str, WrittenLevel | None]:
    """Return (codec's label, level) of a choice's label.

    No level where the choice is of the codec alone.

    >>> [_split_label(label) for label in ("top-k+qsgd(4)@1%", "top-k@500", "top-k")]
    [('top-k+qsgd(4)', '1%'), ('top-k', 500), ('top-k', None)]
    """
    match = _ARM.fullmatch(label)
    if match is None:
        return label, None
    codec, level = match.groups()
    return codec, int(level) if level.isdigit() else level


def list_choices(
    strategies: Iterable[str], levels: Sequence[WrittenLevel] = ()
) -> tuple[Choice, ...]:
    """Return the choices that a policy may pull, each once, in the order written.

    Each strategy that goes by K and names no level comes with each of `levels`.

    >>> strategies = ["top-k", "qsgd(16)", "random-k@2%"]
    >>> [str(choice) for choice in list_choices(strategies, [500, 1000])]
    ['top-k@500', 'top-k@1000', 'qsgd(16)', 'random-k@2%']
    """
    choices: list[Choice] = []
    for choice in map(Choice.of, strategies):
        if levels and choice.level is None and choice.codec.takes_k:
            choices += [choice.at(level) for level in levels]
        else:
            choices.append(choice)
    return tuple(dict.fromkeys(choices))


def has_all_pairs(choices: Iterable[Choice]) -> bool:
    """Return whether every codec that has levels comes with all levels there are.

    >>> has_all_pairs(list_choices(["top-k", "dense"], [1, 2]))
    True
    >>> has_all_pairs(list_choices(["top-k@1", "random-k@2"]))
    False
    """
    levels: dict[str, list[Level]] = {}
    for choice in choices:
        with_it = levels.setdefault(choice.strategy, [])
        with_it += [] if choice.level is None else [choice.level]
    sets = [frozenset(with_it) for with_it in levels.values() if with_it]
    return bool(sets) and len(set(sets)) == 1


def split_list(text: str) -> list[str]:
    """Labels separated by commas, as commands take them.

    Options have commas of their own.

    >>> split_list("dense, qsgd(4,bucket=64)")
    ['dense', 'qsgd(4,bucket=64)']
    """
    return [part.strip() for part in split(text, ",") if part.strip()]


def list_recorded_labels(scenario: Mapping[str, Plain]) -> tuple[str, ...]:
    """Return the labels that a run's recorded scenario lets policies choose from."""
    compression = scenario.get("compression") or {}
    strategies = map(str, compression.get("strategies") or ())
    return tuple(
        c.label for c in list_choices(strategies, compression.get("k_choices") or ())
    )
