"""A choice as a value: by which codec the compressed fields of an upload travel, at which level.

Policies choose among such values, and everybody else is handed them; this module alone writes them
as text and reads them again, for scenarios, tables and plots: `top-k@500`, `random-k+qsgd(4)@1%`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from simfed.compress.codec import Codec, check_level, codec_from_spec
from simfed.compress.labels import find_names, format_link, read_label, split
from simfed.ground.errors import InputError, did_you_mean, listed
from simfed.ground.levels import LEVEL, Level, WrittenLevel
from simfed.ground.memo import Memo
from simfed.ground.plain import Plain
from simfed.ground.registry import registry

_FIELDS = "fields"
"""What the label of a choice per field begins with, and its key in scenarios."""

_ARM = re.compile(rf"(.*)@\s*{LEVEL}\s*", re.DOTALL)


class Choice:
    """A codec and, where that belongs to the choice, a level; or such a pair for each field.

    Equal where the labels are. The codec may be given by its label, and is then made when it is
    asked for; the level as files have it. `fields`: patterns of names of compressed fields and
    their own choices, of which the first that matches counts; with it, a field that none matches is
    not compressed.

    >>> Choice("top-k", 500), Choice.of("top-k+qsgd(4)@1%").level
    (Choice('top-k@500'), Level('1%'))
    >>> Choice.per_field({"update": Choice("top-k", "1%"), "*": Choice("qsgd")}).of_field("control")
    Choice('qsgd')
    """

    __slots__ = ("_at", "_codec", "_label", "fields", "level", "strategy")

    def __init__(
        self,
        codec: Codec | str,
        level: Level | WrittenLevel | None = None,
        fields: tuple[tuple[str, Choice], ...] = (),
    ) -> None:
        text = isinstance(codec, str)
        self.strategy: str = codec if text else codec.label  # type: ignore[assignment, union-attr]
        """The codec's label, under which profiles know its times; of a choice per field, its
        own."""
        self.level = None if level is None else Level.of(level)
        """How many entries of each field; None: the scenario's K."""
        self.fields = fields
        self._codec: Codec | None = None if text else codec  # type: ignore[assignment]
        self._label: str | None = None
        self._at: Memo[Level | WrittenLevel | None, Choice] = Memo()

    @classmethod
    def per_field(cls, fields: Mapping[str, Choice]) -> Choice:
        """A choice of its own for each field; keys are names, or patterns such as `*`."""
        for name, choice in fields.items():
            if choice.follows_update:
                raise InputError(
                    "a level that is known before the update is",
                    where=f"{_FIELDS}: {name}",
                    got=choice.label,
                )
        text = format_link(_FIELDS, {name: choice.label for name, choice in fields.items()})
        return cls(text, None, tuple(fields.items()))

    @classmethod
    def of(cls, text: Choice | str) -> Choice:
        """The choice of a label, which nobody checks; a choice itself as it is."""
        if isinstance(text, Choice):
            return text
        if text.startswith(f"{_FIELDS}("):
            fields = read_label(text)[0][1]
            return cls.per_field({str(name): cls.of(str(label)) for name, label in fields.items()})
        return cls(*_split_label(text))

    @classmethod
    def read(cls, value: object) -> Choice:
        """The choice as a scenario writes it: a label with or without a level, `{name: {option:
        value}}`, `{chain: […]}`, `{layers: {pattern: strategy}}` or `{fields: {pattern:
        strategy}}`.

        Raises: `InputError` for what is none, and for a level that does not suit its codec.
        """
        codecs = registry("codec")
        if isinstance(value, str) and value in codecs and codecs.origin(value) != "built in":
            return cls(value)  # by the name that it was registered under
        if isinstance(value, str) and value.startswith(f"{_FIELDS}("):
            value = {_FIELDS: read_label(value)[0][1]}
        if isinstance(value, Mapping) and list(value) == [_FIELDS]:
            return cls._read_fields(value[_FIELDS])
        spec, level = _split_label(value) if isinstance(value, str) else (value, None)
        codec = codec_from_spec(spec)
        if level is None:
            return cls(codec)
        check_level(codec, checked := Level.read(level))
        return cls(codec, checked)

    @classmethod
    def _read_fields(cls, fields: Any) -> Choice:
        if not isinstance(fields, Mapping) or not fields:
            raise InputError("a strategy for each field", where=_FIELDS, got=fields)
        choices = {}
        for name, value in fields.items():
            try:
                choices[str(name)] = choice = cls.read(value)
                if choice.fields:
                    raise InputError("a codec", got=value)
            except InputError as error:
                raise error.within(f"{_FIELDS}: {name}") from None
        return cls.per_field(choices)

    @property
    def codec(self) -> Codec:
        """Raises: `InputError` for the label of a codec that is not registered."""
        if self._codec is None:
            self._codec = codec_from_spec("dense" if self.fields else self.strategy)
        return self._codec

    @property
    def label(self) -> str:
        """As tables and plots have it, and `of` reads it."""
        if self._label is None:
            bare = self.level is None
            self._label = self.strategy if bare else f"{self.strategy}@{self.level}"
        return self._label

    @property
    def follows_update(self) -> bool:
        """Whether K is known once the update is: its level is a share of the energy."""
        return self.level is not None and self.level.kind == "energy"

    @property
    def pairs(self) -> tuple[Choice, ...]:
        """Every pair of codec and level in it."""
        return tuple(choice for _, choice in self.fields) or (self,)

    @property
    def names(self) -> tuple[str, ...]:
        """Whatever in it may be the name of a registered part, in the label's order."""
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

    def of_field(self, name: str) -> Choice:
        """What a compressed field of this name travels by."""
        if not self.fields:
            return self
        return next((c for pattern, c in self.fields if fnmatchcase(name, pattern)), NO_COMPRESSION)

    def check_fields(self, names: Iterable[str]) -> None:
        """`InputError` for a pattern that matches none of these compressed fields."""
        names = list(names)
        for pattern, _ in self.fields:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise InputError(
                    f"a compressed field of the method: {listed(names) or 'it has none'}",
                    where=_FIELDS,
                    got=pattern,
                    hint=did_you_mean(pattern, names),
                )

    def at(self, level: Level | WrittenLevel | None) -> Choice:
        """The same codec at this level; one object for each, as every participation asks."""
        choice = self._at.get(level)
        if choice is None:
            choice = self._at[level] = Choice(self.strategy, level)
            choice._codec = self._codec
        return choice

    def entries(self, length: int) -> int:
        """K of a field of so many entries, where the level is a number: all without one."""
        if self.level is None:
            return length
        k = self.level.entries
        assert k is not None
        return min(k, length)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Choice) and self.label == other.label)

    def __hash__(self) -> int:
        return hash(self.label)

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        return f"Choice({self.label!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Choice.of, (self.label,)


NO_COMPRESSION = Choice("dense")
"""Of a field, or a participation, that compresses nothing."""


@lru_cache(maxsize=4096)
def _split_label(label: str) -> tuple[str, WrittenLevel | None]:
    """(codec's label, level) of a choice's label; no level where the choice is of the codec alone.

    >>> _split_label("top-k+qsgd(4)@1%"), _split_label("top-k@500"), _split_label("top-k")
    (('top-k+qsgd(4)', '1%'), ('top-k', 500), ('top-k', None))
    """
    match = _ARM.fullmatch(label)
    if match is None:
        return label, None
    codec, level = match.groups()
    return codec, int(level) if level.isdigit() else level


def list_choices(
    strategies: Iterable[str], levels: Sequence[WrittenLevel] = ()
) -> tuple[Choice, ...]:
    """What policies choose from: each strategy that goes by K and names no level, with each of
    `levels`.

    >>> [str(c) for c in list_choices(["top-k", "qsgd(16)", "random-k@2%"], [500, 1000])]
    ['top-k@500', 'top-k@1000', 'qsgd(16)', 'random-k@2%']
    """
    choices: list[Choice] = []
    for choice in map(Choice.of, strategies):
        if levels and choice.level is None and not choice.fields and choice.codec.takes_k:
            choices += [choice.at(level) for level in levels]
        else:
            choices.append(choice)
    return tuple(dict.fromkeys(choices))


def has_all_pairs(choices: Iterable[Choice]) -> bool:
    """Whether there are levels, and every codec that has any comes with all of them.

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
    """Labels separated by commas, as commands take them; options have commas of their own.

    >>> split_list("dense, qsgd(4,bucket=64)")
    ['dense', 'qsgd(4,bucket=64)']
    """
    return [part.strip() for part in split(text, ",") if part.strip()]


def list_recorded_labels(scenario: Mapping[str, Plain]) -> tuple[str, ...]:
    """What a scenario, as a run keeps it, lets policies choose from."""
    compression = scenario.get("compression") or {}
    strategies = map(str, compression.get("strategies") or ())
    return tuple(c.label for c in list_choices(strategies, compression.get("k_choices") or ()))
