"""What all mappings of a scenario file have in common, and keys that say something only sometimes.

A key that only some kinds use carries an `Only` in its annotation. That mark is all there is: by it
the key is refused elsewhere, with the kinds that use it; it is required where it is `needed`; dumps
leave it out where it says nothing; the reference and the JSON Schema say it. So a key is used or
refused, and a new one needs no check of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails

from simfed.errors import InputError, listed
from simfed.registry import registry

__all__ = ["Only", "OnlyWith", "Section", "misplaced", "said", "without_unused"]


@dataclass(frozen=True, init=False)
class Only:
    """This key says something only where another key has one of `values`; without values: where
    it is given at all.

    `key` stands beside this one; with a dot, as in `network.model`, it is a path from the top of
    the scenario. `needed`: where the key says something it is required.
    """

    key: str
    values: tuple[Any, ...] = ()
    needed: bool = False

    def __init__(self, key: str, *values: Any, needed: bool = False) -> None:
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "needed", needed)

    @property
    def from_the_top(self) -> bool:
        """Whether the scenario as a whole decides."""
        return "." in self.key

    def chosen(self, section: Any) -> Any:
        """What the other key says, seen from the mapping that `key` starts at."""
        return functools.reduce(getattr, self.key.split("."), section)

    def holds(self, section: Any) -> bool:
        """Whether this key says something there."""
        chosen = self.chosen(section)
        return chosen in self.values if self.values else bool(chosen)

    def refusal(self, name: str, section: Any, mapping: type[Section]) -> InputError:
        """What is said about the key where it says nothing."""
        if not self.values:
            return InputError(f"the key {name!r} only beside {self.key.rpartition('.')[2]}")
        chosen = self.chosen(section)
        if chosen is None:
            return InputError(f"the key {name!r} only beside {self}")
        own = [
            key
            for key, only in marked(mapping)
            if isinstance(only, Only) and only.key == self.key and chosen in only.values
        ]
        return InputError(
            f"a key of {self.key} {_written(chosen)}: {listed(own) or 'it has none'}",
            got=name,
            hint=f"{name} belongs to {self}",
        )

    def __str__(self) -> str:
        if not self.values:
            return self.key
        return f"{self.key} {listed(map(_written, self.values))}"


@dataclass(frozen=True)
class OnlyWith:
    """This key says something only with registered parts whose class says so.

    With methods it is the scenario's method that decides, else the `kind` beside the key.
    """

    part: str
    """What is registered: `method`, `policy`."""
    attribute: str
    """Of the part's class; where it is not there, it is taken for true."""
    value: bool = True

    @property
    def from_the_top(self) -> bool:
        """Whether the scenario as a whole decides."""
        return self.part == "method"

    def holds(self, section: Any) -> bool:
        """Whether this key says something there."""
        return self._is_one(self._kind(section))

    def refusal(self, name: str, section: Any, mapping: type[Section]) -> InputError:
        """What is said about the key where it says nothing."""
        return InputError(
            f"no {name} with {self.part} {self._kind(section)}, which does not use it",
            hint=f"{name} belongs to {self}",
        )

    def _kind(self, section: Any) -> str:
        return str((section.method if self.from_the_top else section).kind)

    def _is_one(self, kind: str) -> bool:
        return bool(getattr(registry(self.part).get(kind), self.attribute, True)) is self.value

    def __str__(self) -> str:
        takers = []
        for name in registry(self.part).names():
            with suppress(ImportError):  # a broken package is not what the user asked about
                if self._is_one(name):
                    takers.append(name)
        return f"{self.part} {listed(takers)}"


Mark = Only | OnlyWith


class Section(BaseModel):
    """A mapping in a scenario file: unknown keys are errors, values never change after loading.

    With `recorded` in the validation's context, keys that say nothing are passed over: earlier
    versions wrote them into the resolved scenarios of their runs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)

    @model_validator(mode="before")
    @classmethod
    def _null_takes_back(cls, value: Any) -> Any:
        """Null stands for a key that is not given: so a file can take back what it extends."""
        if not isinstance(value, Mapping):
            return value
        taken = [
            name
            for name, _ in marked(cls)
            if name in value and value[name] is None and cls.model_fields[name].default is not None
        ]
        return {key: value[key] for key in value if key not in taken} if taken else value

    @model_validator(mode="after")
    def _only_what_is_used(self, info: ValidationInfo) -> Any:
        wrong = [
            said(error, (), None)
            for name, only in marked(type(self))
            if not only.from_the_top and (error := _wrong(self, name, only, self, info.context))
        ]
        if wrong:
            raise ValidationError.from_exception_data(type(self).__name__, wrong)
        return self

    @model_serializer(mode="wrap")
    def _used(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = dump(self)
        for name, only in marked(type(self)):
            if not only.from_the_top and name in plain and not only.holds(self):
                del plain[name]
        return plain

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> dict[str, Any]:
        found: dict[str, Any] = handler.resolve_ref_schema(handler(core_schema))
        for name, only in marked(cls):
            node = found["properties"][name]
            node["description"] = f"{node.get('description', '')} (only with {only})".strip()
            if isinstance(only, Only) and not only.from_the_top:
                other: dict[str, Any] = {"properties": {only.key: {"enum": [*only.values]}}}
                if not only.values:
                    other = {"required": [only.key]}
                elif cls.model_fields[only.key].default not in only.values:
                    other["required"] = [only.key]
                found.setdefault("dependentSchemas", {})[name] = other
        return found


@functools.cache
def marked(mapping: type[BaseModel]) -> tuple[tuple[str, Mark], ...]:
    """The keys of a mapping that say something only sometimes."""
    return tuple(
        (name, mark)
        for name, field in mapping.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Mark)
    )


def misplaced(scenario: Section, context: Any) -> list[InitErrorDetails]:
    """An error for each key of a scenario that says nothing, as the scenario as a whole decides."""
    return [
        said(error, where, None)
        for where, name, only, section in _from_the_top(scenario)
        if (error := _wrong(section, name, only, scenario, context))
    ]


def without_unused(scenario: Section, plain: dict[str, Any]) -> dict[str, Any]:
    """A scenario's plain values without the keys that say nothing in it."""
    for where, name, only, _ in _from_the_top(scenario):
        if not only.holds(scenario):
            node: Any = plain
            for step in where:
                try:
                    node = node[step]
                except (LookupError, TypeError):  # left out of this dump, or null
                    break
            if isinstance(node, dict):
                node.pop(name, None)
    return plain


def said(error: InputError, where: tuple[int | str, ...], value: Any) -> InitErrorDetails:
    """An error as pydantic collects it."""
    return InitErrorDetails(
        type="value_error", loc=where, input=value, ctx={"error": ValueError(error)}
    )


def _wrong(
    section: Section, name: str, only: Mark, decides: Any, context: Any
) -> InputError | None:
    given = name in section.model_fields_set and getattr(section, name) is not None
    if only.holds(decides):
        if isinstance(only, Only) and only.needed and not given:
            beside = f"{only.key} {_written(only.chosen(decides))}" if only.values else only.key
            return InputError(f"the key {name!r} beside {beside}")
        return None
    if not given or (context or {}).get("recorded"):
        return None
    return only.refusal(name, decides, type(section))


def _from_the_top(
    part: Any, where: tuple[int | str, ...] = ()
) -> Iterator[tuple[tuple[int | str, ...], str, Mark, Section]]:
    """Every marked key of a scenario on which the scenario as a whole decides."""
    if isinstance(part, Section):
        for name, only in marked(type(part)):
            if only.from_the_top:
                yield where, name, only, part
        for name in type(part).model_fields:
            yield from _from_the_top(getattr(part, name), (*where, name))
    elif isinstance(part, Mapping):
        for name, inner in part.items():
            yield from _from_the_top(inner, (*where, name))
    elif isinstance(part, tuple):
        for at, inner in enumerate(part):
            yield from _from_the_top(inner, (*where, at))


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
